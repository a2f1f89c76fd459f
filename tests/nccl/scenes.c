/* Scenes of programs on NCCL with libsymwin-nccl.so, on the stand-in for NCCL: run by
 * tests/programs/test_nccl_scenes.t. Ranks are threads of one or several processes. A rank goes on
 * after a check that fails. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "nap.h"
#include "scenes.h"
#include "tap.h"

struct world *world;
struct used_driver cu;

int expect(long long got, long long want, const char *what, const char *file, int line)
{
    atomic_fetch_add(&world->checks, 1);
    if (got == want)
        return 1;
    atomic_fetch_add(&world->failures, 1);
    fprintf(stderr, "%s:%d: %s is %lld, not %lld; last error: %s\n", file, line, what, got, want,
            ncclGetLastError(NULL));
    return 0;
}

long long now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int is_set(const char *variable)
{
    return getenv(variable) != NULL;
}

/* ---- between ranks ---- */

void flag_set(int flag)
{
    atomic_fetch_add(&world->flags[flag], 1);
}

void flag_wait(int flag, int value)
{
    unsigned slept = 0;

    while (atomic_load(&world->flags[flag]) < value)
        nap(&slept);
}

void meet(const struct rank *rank)
{
    const int ticket = atomic_fetch_add(&world->arrived, 1);
    const int all = (ticket / rank->ranks + 1) * rank->ranks;
    unsigned slept = 0;

    while (atomic_load(&world->arrived) < all)
        nap(&slept);
}

/* ---- calls ---- */

ncclComm_t birth(const struct rank *rank, int id)
{
    ncclComm_t comm = NULL;

    if (!EXPECT(ncclCommInitRank(&comm, rank->ranks, world->ids[id], rank->rank), ncclSuccess))
        exit(1);
    return comm;
}

ncclResult_t state(ncclComm_t comm)
{
    ncclResult_t error = ncclNumResults;

    EXPECT(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    return error;
}

unsigned calls(int function)
{
    return atomic_load(&stand_in()->functions[function].calls);
}

long long sum(const struct rank *rank, ncclComm_t comm, long long mine)
{
    long long *data = room(sizeof *data), result;

    *data = mine;
    EXPECT(ncclAllReduce(data, data, 1, ncclInt64, ncclSum, comm, rank->stream), ncclSuccess);
    EXPECT(cu.cuStreamSynchronize(rank->stream), CUDA_SUCCESS);
    result = state(comm) == ncclSuccess ? *data : -1;
    room_free(data);
    return result;
}

ncclCollConfig_t one_block(void)
{
    return (ncclCollConfig_t){.size = sizeof(ncclCollConfig_t),
                              .magic = NCCL_CONFIG_MAGIC,
                              .minCTAs = INT_MIN,
                              .maxCTAs = 1,
                              .nvlsCTAs = INT_MIN,
                              .cgaClusterSize = INT_MIN};
}

int drains(CUstream stream)
{
    const long long until = now_us() + (SLOW ? 30 : 5) * 1000000ll;
    unsigned slept = 0;
    CUresult result;

    while ((result = cu.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY && now_us() < until)
        nap(&slept);
    return result == CUDA_SUCCESS;
}

void *room(size_t bytes)
{
    void *ptr = NULL;

    if (!EXPECT(ncclMemAlloc(&ptr, bytes), ncclSuccess))
        exit(1);
    memset(ptr, 0, bytes);
    return ptr;
}

void room_free(void *ptr)
{
    EXPECT(ncclMemFree(ptr), ncclSuccess);
}

/* ---- a process ---- */

struct scene {
    const char *name;
    void (*run)(struct rank *rank);
};

static const struct scene scenes[] = {
#define SCENE(name) {#name, scene_##name},
    SCENES(SCENE)
#undef SCENE
        {NULL, NULL},
};

struct start {
    struct rank rank;
    const struct scene *scene;
};

static void *rank_main(void *data)
{
    struct start *start = data;
    struct rank *rank = &start->rank;
    CUcontext context;

    EXPECT(cu.cuDeviceGet(&rank->device, rank->rank % DEVICES), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRetain(&context, rank->device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT(cu.cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    start->scene->run(rank);
    EXPECT(drains(rank->stream), 1);
    EXPECT(cu.cuStreamDestroy(rank->stream), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRelease(rank->device), CUDA_SUCCESS);
    return NULL;
}

/* A process that ends within an abort has threads that nobody has joined, as a sanitizer sees. A
 * list of threads may lack some while others end, so it is read three times. */
static void await_aborts(void)
{
    int turns, none = 0;

    for (turns = 0; turns < 5000 && none < 3; turns++) {
        none = harness_threads("symwin-abort") == 0 ? none + 1 : 0;
        usleep(1000);
    }
    EXPECT(none, 3);
}

static void process_main(const struct scene *scene, int process, int processes, int threads)
{
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    struct start *starts = calloc((size_t)threads, sizeof *starts);
    int t;

    on_host(process);
    load_driver();
    for (t = 0; t < threads; t++) {
        starts[t].scene = scene;
        starts[t].rank = (struct rank){.rank = process * threads + t,
                                       .ranks = processes * threads,
                                       .processes = processes,
                                       .thread = t};
        pthread_create(&ids[t], NULL, rank_main, &starts[t]);
    }
    for (t = 0; t < threads; t++)
        pthread_join(ids[t], NULL);
    /* What an abort leaves to a thread may have communicators of symwin's own, between hosts. */
    for (t = 0; t < 25000 && atomic_load(&stand_in()->live) > 0; t++)
        usleep(200);
    EXPECT(atomic_load(&stand_in()->live), 0);
    await_aborts();
    free(ids);
    free(starts);
}

/* scenes SCENE PROCESSES THREADS: prints how many checks were made and how many failed. */
int main(int argc, char **argv)
{
    const int processes = argc == 4 ? atoi(argv[2]) : 0, threads = argc == 4 ? atoi(argv[3]) : 0;
    const struct scene *scene = scenes;
    int bad = 0, status, i;

    if (argc == 4 && strcmp(argv[1], "without") == 0 && strlen(argv[2]) == 2 * sizeof(ncclUniqueId))
        return without_main(argv[2], strtoul(argv[3], NULL, 10));
    while (scene->name != NULL && argc == 4 && strcmp(scene->name, argv[1]) != 0)
        scene++;
    if (processes < 1 || threads < 1 || scene->name == NULL) {
        fprintf(stderr, "usage: scenes SCENE PROCESSES THREADS\n");
        return 2;
    }
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED)
        return 2;
    for (i = 0; i < MOST_IDS; i++)
        EXPECT(ncclGetUniqueId(&world->ids[i]), ncclSuccess);
    for (i = 0; i < processes; i++)
        if (fork() == 0) {
            process_main(scene, i, processes, threads);
            exit(0); /* and not _exit(): sanitizers look for leaks */
        }
    while (wait(&status) > 0)
        bad += status != 0;
    printf("%d checks, %d failed\n", atomic_load(&world->checks), atomic_load(&world->failures));
    return bad > 0 || atomic_load(&world->failures) > 0;
}
