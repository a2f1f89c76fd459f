/* A storm of random calls of NCCL, each with its result checked: run by
 * tests/programs/test_nccl_storm.t, with ranks that are threads of several processes.
 *
 *   storm SEED CALLS PROCESSES THREADS
 *
 * CALLS counts those of all ranks. The first wrong result ends the run, with its step. After a
 * fifth of the calls all communicators end, and again at the end: both times a process must have
 * the same descriptors, about the same threads, and the same free device memory.
 *
 * STORM_ONLY=collectives,groups,p2p,capture,births,registrations,states   leaves out the others
 * STORM_PATIENCE_S=60   how long a rank may spend in one call or wait */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "storm.h"

enum { ARENA = 16 << 20, MOST_DEVICES = 16 };

struct world *world;
struct used_driver cu;

static pthread_barrier_t barrier; /* of a process's ranks and its main thread */
static unsigned long long rounds[2];

/* ---- errors, progress ---- */

static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

void fail(const struct rank *rank, const char *format, ...)
{
    va_list args;

    pthread_mutex_lock(&printing); /* for good: one message of each process */
    if (atomic_fetch_add(&world->wrong, 1) == 0) {
        fprintf(stderr,
                "storm: seed %llu, %d ranks, rank %d, step %d: ", (unsigned long long)rank->seed,
                rank->ranks, rank->rank, rank->step);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fprintf(stderr, "\n");
    }
    _exit(1);
}

static long long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void pause_briefly(void)
{
    const struct timespec pause = {0, 100000};

    nanosleep(&pause, NULL);
}

void begin(struct rank *rank, const struct comm *comm, const char *what)
{
    atomic_store_explicit(&rank->what, what, memory_order_relaxed);
    atomic_store_explicit(&rank->at_comm, comm != NULL ? comm->id : 0, memory_order_relaxed);
    atomic_store_explicit(&rank->at_step, rank->step, memory_order_relaxed);
    atomic_store_explicit(&rank->since, now_ms(), memory_order_relaxed);
}

void driver_done(struct rank *rank, CUresult result)
{
    if (result != CUDA_SUCCESS)
        fail(rank, "%s returned %d", atomic_load(&rank->what), (int)result);
}

void nccl_done(struct rank *rank, struct comm *comm, ncclResult_t result)
{
    const int may_wait = comm == NULL ? rank->depth > 0 : !comm->blocking;
    const char *what = atomic_load(&rank->what);

    if (result == ncclInProgress && may_wait && rank->depth > 0)
        return;
    while (result == ncclInProgress && may_wait) {
        ncclResult_t asked = ncclCommGetAsyncError(comm->handle, &result);

        if (asked != ncclSuccess)
            result = asked;
        if (result == ncclInProgress)
            pause_briefly();
    }
    if (result != ncclSuccess)
        fail(rank, "%s of communicator %d (0: none) returned %d: %s", what,
             atomic_load(&rank->at_comm), (int)result, ncclGetLastError(NULL));
}

struct process {
    struct rank *ranks;
    int threads;
    long long patience_ms;
    atomic_int done;
};

/* Ends the process if a rank does not come on, or if another process has failed. */
static void *watch(void *data)
{
    struct process *process = data;

    while (!atomic_load(&process->done)) {
        for (int t = 0; t < 100 && !atomic_load(&process->done); t++)
            pause_briefly();
        for (int t = 0; t < process->threads; t++) {
            struct rank *rank = &process->ranks[t];
            const char *what = atomic_load(&rank->what);

            if (what == NULL || now_ms() - atomic_load(&rank->since) < process->patience_ms)
                continue;
            atomic_fetch_add(&world->wrong, 1);
            for (int u = 0; u < process->threads; u++) {
                rank = &process->ranks[u];
                what = atomic_load(&rank->what);
                fprintf(stderr,
                        "storm: stuck: seed %llu, rank %d, step %d: for %lld ms in %s, "
                        "communicator %d (0: none)\n",
                        (unsigned long long)rank->seed, rank->rank, atomic_load(&rank->at_step),
                        now_ms() - atomic_load(&rank->since), what != NULL ? what : "nothing",
                        atomic_load(&rank->at_comm));
            }
            _exit(3);
        }
        if (atomic_load(&world->wrong) > 0) {
            for (int t = 0; t < 5000; t++) /* others may be stuck too, and have more to say */
                pause_briefly();
            _exit(1);
        }
    }
    return NULL;
}

/* ---- a rank ---- */

static void warmed(void *data)
{
    atomic_int *busy = data;

    atomic_fetch_add(busy, 1);
    for (int i = 0; i < 100 && atomic_load(busy) < 4; i++)
        pause_briefly();
}

/* The emulated driver keeps its threads: it makes them now, so that later ones show. */
static void warm_up(struct rank *rank)
{
    CUstream streams[4];
    atomic_int busy = 0;

    for (int i = 0; i < 4; i++) {
        DRIVER(rank, cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
        DRIVER(rank, cuLaunchHostFunc, streams[i], warmed, &busy);
    }
    for (int i = 0; i < 4; i++) {
        DRIVER(rank, cuStreamSynchronize, streams[i]);
        DRIVER(rank, cuStreamDestroy, streams[i]);
    }
}

static void meet(struct rank *rank)
{
    atomic_store(&rank->what, NULL);
    pthread_barrier_wait(&barrier);
}

static void *rank_main(void *data)
{
    struct rank *rank = data;
    CUdevice device;
    CUcontext context;

    DRIVER(rank, cuDeviceGet, &device, rank->device);
    DRIVER(rank, cuDevicePrimaryCtxRetain, &context, device);
    DRIVER(rank, cuCtxSetCurrent, context);
    for (int i = 0; i < STREAMS; i++)
        DRIVER(rank, cuStreamCreate, &rank->streams[i], CU_STREAM_NON_BLOCKING);
    DRIVER(rank, cuEventCreate, &rank->event, CU_EVENT_DISABLE_TIMING);
    warm_up(rank);
    memory_make(rank, &rank->arena, ARENA);
    for (int g = 0; g < MOST_GRAPHS; g++)
        memory_make(rank, &rank->graphs[g].memory, ARENA / 16);
    for (int i = 0; i < 2; i++) {
        run_plan(rank, rounds[i]);
        meet(rank); /* the main thread looks what there is */
        meet(rank);
    }
    for (int g = 0; g < MOST_GRAPHS; g++)
        memory_free(rank, &rank->graphs[g].memory);
    memory_free(rank, &rank->arena);
    DRIVER(rank, cuEventDestroy, rank->event);
    for (int i = 0; i < STREAMS; i++)
        DRIVER(rank, cuStreamDestroy, rank->streams[i]);
    DRIVER(rank, cuDevicePrimaryCtxRelease, device);
    atomic_store(&rank->what, NULL);
    atomic_fetch_add(&world->calls, rank->calls_made);
    atomic_fetch_add(&world->replayed, rank->replayed);
    atomic_fetch_add(&world->checked, rank->checked);
    return NULL;
}

/* ---- a process ---- */

/* What a process has: entries of a folder, and free memory of the devices. */
struct holdings {
    int files, threads;
    size_t memory;
};

static int entries_of(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;

    while (dir != NULL && readdir(dir) != NULL)
        count++;
    if (dir != NULL)
        closedir(dir);
    return count;
}

/* But for those of the emulated driver, which keeps them. */
static int threads_of_process(void)
{
    DIR *dir = opendir("/proc/self/task");
    const struct dirent *entry;
    int count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300], name[32] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name); /* see tap.h */
        file = fopen(path, "r");
        if (file == NULL)
            continue;
        count += fgets(name, sizeof name, file) != NULL && strcmp(name, "emu-worker\n") != 0;
        fclose(file);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

static struct holdings look(const CUcontext *contexts, int devices)
{
    struct holdings holdings = {entries_of("/proc/self/fd"), threads_of_process(), 0};
    size_t left, total;

    for (int d = 0; d < devices; d++)
        if (cu.cuCtxSetCurrent(contexts[d]) == CUDA_SUCCESS &&
            cu.cuMemGetInfo(&left, &total) == CUDA_SUCCESS)
            holdings.memory += left;
    return holdings;
}

/* The emulated driver may have made a few threads that have no name yet. */
static int is_as_before(const struct holdings *before, const struct holdings *now, int threads)
{
    return now->files <= before->files && now->threads <= before->threads + 4 * threads &&
           now->memory >= before->memory;
}

static void check_holdings(struct process *process, const CUcontext *contexts, int devices)
{
    struct holdings before = {0}, now;

    for (int i = 0; i < 2; i++) {
        pthread_barrier_wait(&barrier);
        now = look(contexts, devices);
        for (int t = 0; t < 300 && i == 0; t++) /* threads that have just ended */
            pause_briefly();
        if (i == 0)
            before = look(contexts, devices);
        for (int t = 0; t < 50000 && i == 1 && !is_as_before(&before, &now, process->threads);
             t++) {
            pause_briefly();
            now = look(contexts, devices);
        }
        if (i == 1 && !is_as_before(&before, &now, process->threads))
            fail(&process->ranks[0],
                 "something is left: %d descriptors after %d, %d threads after %d, "
                 "%zu bytes of device memory less",
                 now.files, before.files, now.threads, before.threads, before.memory - now.memory);
        if (atomic_load(&stand_in()->live) != 0)
            fail(&process->ranks[0], "%d communicators are left", atomic_load(&stand_in()->live));
        pthread_barrier_wait(&barrier);
    }
}

static void process_main(uint64_t seed, int number, int processes, int threads)
{
    const char *patience = getenv("STORM_PATIENCE_S");
    struct process process = {.threads = threads};
    pthread_t *ids = calloc((size_t)threads, sizeof *ids), watcher;
    CUcontext contexts[MOST_DEVICES];
    int devices = 0;

    on_host(number);
    load_driver();
    process.ranks = calloc((size_t)threads, sizeof *process.ranks);
    process.patience_ms = 1000 * (patience != NULL ? atol(patience) : 60);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    if (cu.cuDeviceGetCount(&devices) != CUDA_SUCCESS || devices < 1)
        exit(1);
    devices = devices < MOST_DEVICES ? devices : MOST_DEVICES;
    if (threads > devices) { /* to free memory waits for its device, so for the other rank */
        fprintf(stderr, "storm: %d devices for %d ranks of a process\n", devices, threads);
        exit(1);
    }
    for (int d = 0; d < devices; d++)
        if (cu.cuDevicePrimaryCtxRetain(&contexts[d], d) != CUDA_SUCCESS)
            exit(1);
    for (int t = 0; t < threads; t++) {
        struct rank *rank = &process.ranks[t];

        rank->rank = number * threads + t;
        rank->ranks = processes * threads;
        rank->device = rank->rank % devices;
        rank->devices = devices;
        rank->threads = threads;
        rank->seed = seed;
        rank->plan.state = mix(seed);
        pthread_create(&ids[t], NULL, rank_main, rank);
    }
    pthread_create(&watcher, NULL, watch, &process);
    check_holdings(&process, contexts, devices);
    for (int t = 0; t < threads; t++)
        pthread_join(ids[t], NULL);
    atomic_store(&process.done, 1);
    pthread_join(watcher, NULL);
    for (int d = 0; d < devices; d++)
        cu.cuDevicePrimaryCtxRelease(d);
    free(ids);
    free(process.ranks);
}

/* ---- */

static int choose_steps(const char *only)
{
    int known = 0;

    for (int i = 0; i < STEPS; i++) {
        const char *at = only != NULL ? strstr(only, step_names[i]) : NULL;
        const size_t length = strlen(step_names[i]);

        steps_on[i] = only == NULL || (at != NULL && (at[length] == ',' || at[length] == '\0') &&
                                       (at == only || at[-1] == ','));
        known += steps_on[i];
    }
    return known;
}

int main(int argc, char **argv)
{
    const uint64_t seed = argc == 5 ? strtoull(argv[1], NULL, 10) : 0;
    const unsigned long long calls = argc == 5 ? strtoull(argv[2], NULL, 10) : 0;
    const int processes = argc == 5 ? atoi(argv[3]) : 0, threads = argc == 5 ? atoi(argv[4]) : 0;
    int bad = 0, status;

    if (processes < 1 || threads < 1 || processes * threads > MOST_RANKS ||
        choose_steps(getenv("STORM_ONLY")) == 0) {
        fprintf(stderr,
                "usage: storm SEED CALLS PROCESSES THREADS (at most %d ranks)\n"
                "STORM_ONLY=",
                MOST_RANKS);
        for (int i = 0; i < STEPS; i++)
            fprintf(stderr, "%s%s", step_names[i], i < STEPS - 1 ? "," : "\n");
        return 2;
    }
    rounds[0] = calls / 5;
    rounds[1] = calls - rounds[0];
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (world == MAP_FAILED)
        return 2;
    for (int i = 0; i < processes; i++)
        if (fork() == 0) {
            process_main(seed, i, processes, threads);
            exit(0); /* and not _exit(): sanitizers look for leaks */
        }
    while (wait(&status) > 0)
        bad += status != 0;
    if (bad > 0 && atomic_load(&world->wrong) == 0)
        atomic_store(&world->wrong, bad);
    printf("%llu calls, %d wrong\n", atomic_load(&world->calls), atomic_load(&world->wrong));
    printf("%llu results checked, %llu calls replayed, %llu communicators born, seed %llu\n",
           atomic_load(&world->checked), atomic_load(&world->replayed), atomic_load(&world->births),
           (unsigned long long)seed);
    return bad > 0 || atomic_load(&world->wrong) > 0;
}
