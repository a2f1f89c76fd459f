/* The test of the stand-in for NCCL (tests/nccl/stand_in), case by case: run by
 * tests/programs/test_stand_in.t with ranks in threads and in processes. A rank goes on after a
 * check that fails. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nap.h"
#include "stand_in_user.h"

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

ncclResult_t wait_ready(ncclComm_t comm)
{
    ncclResult_t error = ncclInProgress;
    unsigned slept = 0;

    while (ncclCommGetAsyncError(comm, &error) == ncclSuccess && error == ncclInProgress)
        nap(&slept);
    return error;
}

void sync_stream(const struct rank *rank)
{
    EXPECT(cu.cuStreamSynchronize(rank->stream), CUDA_SUCCESS);
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

long long ones(ncclComm_t comm, CUstream stream)
{
    long long *data = room(sizeof *data), result;

    *data = 1;
    EXPECT(ncclAllReduce(data, data, 1, ncclInt64, ncclSum, comm, stream), ncclSuccess);
    EXPECT(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
    result = *data;
    room_free(data);
    return result;
}

/* Segments that this process still has. */
static int mapped(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "/stand-in-") != NULL;
    if (file != NULL)
        fclose(file);
    return count;
}

int over_tcp(void)
{
    const char *wire = getenv("STAND_IN_WIRE");

    return wire != NULL && strcmp(wire, "tcp") == 0;
}

int count_sockets(void)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    struct stat status;
    int count = 0;

    while (folder != NULL && (entry = readdir(folder)) != NULL)
        count += fstatat(dirfd(folder), entry->d_name, &status, 0) == 0 && S_ISSOCK(status.st_mode);
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* Threads that end what they have made may be behind. */
int settles(int (*count)(void), int to)
{
    for (int i = 0; i < 2000 && count() != to; i++)
        usleep(1000);
    return count();
}

static int sockets_before;

/* That there were not at first. Those of ids may be gone. */
static int more_sockets(void)
{
    const int more = count_sockets() - sockets_before;

    return more > 0 ? more : 0;
}

static void make_ids(int process)
{
    for (int i = 0; i < MOST_IDS && process == 0; i++)
        EXPECT(ncclGetUniqueId(&world->ids[i]), ncclSuccess);
    if (process == 0)
        atomic_store(&world->ids_made, 1);
    while (!atomic_load(&world->ids_made))
        usleep(200);
}

/* All-gathers may be those by which ranks agree. */
static unsigned passed(void)
{
    static const int functions[] = {STAND_IN_ncclAllReduce, STAND_IN_ncclReduceScatter,
                                    STAND_IN_ncclAlltoAll,  STAND_IN_ncclBroadcast,
                                    STAND_IN_ncclBcast,     STAND_IN_ncclReduce,
                                    STAND_IN_ncclGather,    STAND_IN_ncclScatter,
                                    STAND_IN_ncclSend,      STAND_IN_ncclRecv};
    unsigned count = 0;

    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        count += atomic_load(&stand_in()->functions[functions[i]].calls);
    return count;
}

struct start {
    struct rank rank;
    const struct test *test;
};

static void *rank_main(void *data)
{
    struct start *start = data;
    struct rank *rank = &start->rank;
    CUdevice device;
    CUcontext context;

    EXPECT(cu.cuDeviceGet(&device, rank->rank % 4), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT(cu.cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    if (!start->test->bare &&
        !EXPECT(ncclCommInitRank(&rank->comm, rank->ranks, world->ids[0], rank->rank), ncclSuccess))
        exit(1);
    start->test->run(rank);
    EXPECT(cu.cuStreamSynchronize(rank->stream), CUDA_SUCCESS);
    if (!start->test->bare)
        EXPECT(ncclCommDestroy(rank->comm), ncclSuccess);
    EXPECT(cu.cuStreamDestroy(rank->stream), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
    return NULL;
}

/* STAND_IN_SET=PROCESS:NAME=VALUE: a variable of one process alone. */
static void set_variable(int process)
{
    const char *text = getenv("STAND_IN_SET");
    char *colon = NULL, name[64];
    const char *equals;

    on_host(process);
    if (text == NULL || strtol(text, &colon, 10) != process)
        return;
    equals = strchr(colon, '=');
    snprintf(name, sizeof name, "%.*s", (int)(equals - colon - 1), colon + 1);
    setenv(name, equals + 1, 1);
}

static void process_main(const struct test *test, int process, int processes, int threads)
{
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    struct start *starts = calloc((size_t)threads, sizeof *starts);
    int t;

    load_driver();
    make_ids(process);
    sockets_before = count_sockets();
    for (t = 0; t < threads; t++) {
        starts[t].test = test;
        starts[t].rank = (struct rank){
            .rank = process * threads + t, .ranks = processes * threads, .processes = processes};
        pthread_create(&ids[t], NULL, rank_main, &starts[t]);
    }
    for (t = 0; t < threads; t++)
        pthread_join(ids[t], NULL);
    EXPECT(atomic_load(&stand_in()->live), 0);
    EXPECT(mapped(), 0);
    if (over_tcp())
        EXPECT(settles(more_sockets, 0), 0);
    atomic_fetch_add(&world->passed, passed());
    free(ids);
    free(starts);
}

static const struct test tests[] = {
#define TEST(name, bare) {#name, test_##name, bare},
    STAND_IN_TESTS(TEST)
#undef TEST
        {NULL, NULL, 0},
};

/* stand_in_user TEST PROCESSES THREADS: prints how many checks were made and how many failed, and
 * how many processes were killed. STAND_IN_PASSED: how many calls NCCL gets. */
int main(int argc, char **argv)
{
    const int processes = argc == 4 ? atoi(argv[2]) : 0, threads = argc == 4 ? atoi(argv[3]) : 0;
    const struct test *test = tests;
    const char *passes = getenv("STAND_IN_PASSED");
    int killed = 0, bad = 0, status, i;

    while (test->name != NULL && argc == 4 && strcmp(test->name, argv[1]) != 0)
        test++;
    if (processes < 1 || threads < 1 || test->name == NULL) {
        fprintf(stderr, "usage: stand_in_user TEST PROCESSES THREADS\n");
        return 2;
    }
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED)
        return 2;
    for (i = 0; i < processes; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* timeout --foreground ends the parent alone */
            set_variable(i);
            process_main(test, i, processes, threads);
            exit(0); /* and not _exit(): sanitizers look for leaks */
        }
    while (wait(&status) > 0) {
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        bad += WIFEXITED(status) ? WEXITSTATUS(status) != 0 : WTERMSIG(status) != SIGKILL;
    }
    if (passes != NULL)
        EXPECT(atomic_load(&world->passed), atoi(passes));
    printf("%d checks, %d failed, %d killed\n", atomic_load(&world->checks),
           atomic_load(&world->failures), killed);
    return bad > 0 || atomic_load(&world->failures) > 0;
}
