/* What processes pay to create a communicator, with symwin and with NCCL, and to agree.
 *
 *     build/bench/startup [processes] [rounds]     default: one per device, 5 rounds
 *     SYMWIN_NCCL=path/libnccl.so.2                as for bench/memory; so is NCCL_NVLS_ENABLE
 *
 * Prints CSV: what, library, processes, the median over the rounds in microseconds. "create": from
 * the first call (creating the id) to a usable communicator, on the slowest rank, in new processes
 * whose CUDA contexts exist. "processes": from the first fork until the last process is at that
 * point. "agree": the median of one agreement of all ranks, in a loop, on the slowest rank.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "median.h"
#include "rivals/multicast.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

enum { MOST = 128, MOST_ROUNDS = 64, AGREEMENTS = 20000 };

typedef struct nccl_comm *nccl_comm_t;
typedef struct {
    char internal[128];
} nccl_unique_id;

/* In shared memory. */
static struct job {
    int count;
    atomic_int arrived, id_made, failed;
    symwin_unique_id id;
    nccl_unique_id nccl_id;
    double start_us, ready_us[MOST], create_us[MOST], agree_us[MOST];
} * job;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "startup: %s: %s\n", what, why);
    exit(1);
}

/* Sleeps for a moment; ends the process if another one has failed. */
static void pause_for_others(void)
{
    const struct timespec moment = {.tv_nsec = 20000};

    if (atomic_load(&job->failed))
        exit(1);
    nanosleep(&moment, NULL);
}

static void must(symwin_status status, const char *what)
{
    if (status != SYMWIN_OK)
        fail(what, symwin_last_error());
}

/* A barrier of all processes. */
static void meet(void)
{
    const int target = (atomic_fetch_add(&job->arrived, 1) / job->count + 1) * job->count;

    while (atomic_load(&job->arrived) < target)
        pause_for_others();
}

static double slowest(const double *values)
{
    double most = 0;
    int r;

    for (r = 0; r < job->count; r++)
        most = values[r] > most ? values[r] : most;
    return most;
}

/* ---- symwin ---- */

static void wait_for_id(void)
{
    while (!atomic_load(&job->id_made))
        pause_for_others();
}

static void symwin_rank(int rank, int device)
{
    static double times[AGREEMENTS];
    symwin_comm *comm = NULL;
    double begin, last;
    int i;

    meet();
    begin = now_us();
    if (rank == 0) {
        must(symwin_unique_id_create(&job->id), "symwin_unique_id_create");
        atomic_store(&job->id_made, 1);
    }
    wait_for_id();
    must(symwin_comm_create(&job->id, job->count, rank, device, NULL, &comm), "symwin_comm_create");
    job->create_us[rank] = now_us() - begin;
    meet();
    last = now_us();
    for (i = 0; i < AGREEMENTS; i++) {
        const double before = last;

        must(sw_comm_agree(comm, "startup", SYMWIN_OK, NULL, 0), "sw_comm_agree");
        last = now_us();
        times[i] = last - before;
    }
    job->agree_us[rank] = median(times, AGREEMENTS);
    meet();
    symwin_comm_destroy(comm);
}

/* ---- NCCL ---- */

static void *nccl_symbol(const char *name)
{
    const char *path = getenv("SYMWIN_NCCL");
    void *library = dlopen(path != NULL ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

    return library == NULL ? NULL : dlsym(library, name);
}

static void nccl_rank(int rank, int device)
{
    int (*get_id)(nccl_unique_id *) = NULL;
    int (*init)(nccl_comm_t *, int, nccl_unique_id, int) = NULL;
    int (*destroy)(nccl_comm_t) = NULL;
    void *symbols[] = {nccl_symbol("ncclGetUniqueId"), nccl_symbol("ncclCommInitRank"),
                       nccl_symbol("ncclCommDestroy")};
    nccl_comm_t comm = NULL;
    double begin;

    (void)device;
    memcpy(&get_id, &symbols[0], sizeof get_id);
    memcpy(&init, &symbols[1], sizeof init);
    memcpy(&destroy, &symbols[2], sizeof destroy);
    meet();
    begin = now_us();
    if (rank == 0) {
        if (get_id(&job->nccl_id) != 0)
            fail("ncclGetUniqueId", "failed");
        atomic_store(&job->id_made, 1);
    }
    wait_for_id();
    if (init(&comm, job->count, job->nccl_id, rank) != 0)
        fail("ncclCommInitRank", "failed");
    job->create_us[rank] = now_us() - begin;
    meet();
    destroy(comm);
}

/* ---- rounds ---- */

static void child(int rank, void (*body)(int rank, int device))
{
    struct CUstream_st *stream = NULL;
    symwin_driver_info driver;
    struct sw_scope scope;
    int device;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* killing the parent ends the run */
    must(symwin_driver_query(&driver), "symwin_driver_query");
    device = rank % driver.device_count;
    /* also creates the context */
    must(symwin_stream_create(device, &stream), "symwin_stream_create");
    must(sw_scope_enter(device, &scope), "context");
    job->ready_us[rank] = now_us();
    body(rank, device);
    sw_scope_leave(&scope);
    symwin_stream_destroy(device, stream);
    exit(0);
}

static void round_of(int count, void (*body)(int rank, int device))
{
    int r;

    memset(job, 0, sizeof *job);
    job->count = count;
    job->start_us = now_us();
    for (r = 0; r < count; r++) {
        const pid_t pid = fork();

        if (pid < 0)
            fail("fork", "failed");
        if (pid == 0)
            child(r, body);
    }
    for (r = 0; r < count; r++) {
        int status = 0;

        if (wait(&status) < 0 || status != 0)
            atomic_store(&job->failed, 1);
    }
    if (atomic_load(&job->failed))
        fail("a process", "failed");
}

static void library(const char *name, int count, int rounds, void (*body)(int rank, int device))
{
    double create[MOST_ROUNDS], agree[MOST_ROUNDS], ready[MOST_ROUNDS];
    int i;

    for (i = 0; i < rounds; i++) {
        round_of(count, body);
        create[i] = slowest(job->create_us);
        agree[i] = slowest(job->agree_us);
        ready[i] = slowest(job->ready_us) - job->start_us;
    }
    printf("processes,%s,%d,%.1f\n", name, count, median(ready, rounds));
    printf("create,%s,%d,%.1f\n", name, count, median(create, rounds));
    if (body == symwin_rank)
        printf("agree,%s,%d,%.2f\n", name, count, median(agree, rounds));
    fflush(stdout);
}

/* Asks in a separate process: the driver would not survive the later forks. */
static int device_count(void)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0) {
        symwin_driver_info driver;

        _exit(symwin_driver_query(&driver) == SYMWIN_OK ? driver.device_count : 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) == 0)
        fail("devices", "there are none");
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    const char *driver = getenv("SYMWIN_DRIVER");
    int count, rounds;
    char text[256];

    bench_begin("startup", argc, argv, 2);
    count = bench_number("startup", argc, argv, 1, 1, MOST, 0);
    rounds = bench_number("startup", argc, argv, 2, 1, MOST_ROUNDS, 5);
    signal(SIGCHLD, SIG_DFL);
    if (count == 0)
        count = device_count();
    if (rivals_multicast_off(text, sizeof text) != 0)
        fail("NCCL", text);
    job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED)
        fail("mmap", "failed");
    printf("what,library,processes,median_us\n");
    fflush(stdout);
    library("symwin", count, rounds, symwin_rank);
    if (driver == NULL || strcmp(driver, "emu") != 0) {
        if (nccl_symbol("ncclCommInitRank") != NULL)
            library("nccl", count, rounds, nccl_rank);
        else
            fprintf(stderr, "startup: without NCCL\n");
    }
    return bench_end("startup");
}
