/* What processes pay to create a communicator, with symwin and with NCCL, and to agree.
 *
 *     build/bench/startup [processes] [rounds] [hosts]
 *                                                  default: one per device, 5 rounds, one host
 *     SYMWIN_NCCL=path/libnccl.so.2                as for bench/memory; so is NCCL_NVLS_ENABLE
 *
 * Prints CSV: what, library, processes, the median over the rounds in microseconds. "create": from
 * the first call (creating the id) to a usable communicator, on the slowest rank, in new processes
 * whose CUDA contexts exist. "processes": from the first fork until the last process is at that
 * point. "agree": the median of one agreement of all ranks, in a loop, on the slowest rank.
 * "register": the median of 100 windows, each on an allocation of 2 MiB, on the slowest rank; if
 * the communicator has multicast, also "register-unicast", of windows without. Of NCCL: "call", the
 * first all-reduce of the communicator; "create-2" and "call-2", a further communicator of the same
 * ranks. With libsymwin-nccl.so preloaded they are what it adds to NCCL.
 * Processes that share a device say that they are different hosts (NCCL_HOSTID), or NCCL refuses.
 *
 * `hosts` has a letter for each process, the host that it says it is on, as "aabb". On the emulated
 * driver, with the tests' stand-in for NCCL between hosts:
 *
 *     SYMWIN_DRIVER=emu SYMWIN_ADDR=127.0.0.1 SYMWIN_EMU_FABRIC=1 STAND_IN_DRIVER=symwin \
 *         SYMWIN_NCCL=build/tests/nccl/stand_in/libnccl.so.2 build/bench/startup 8 5 aaaabbbb
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "rivals/multicast.h"
#include "rivals/nccl.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

enum { FLOAT32 = 7, SUM = 0 }; /* NCCL's */
enum { MOST = 128, MOST_ROUNDS = 64, AGREEMENTS = 20000, WINDOWS = 100 };

/* In shared memory. */
static struct job {
    int count;
    atomic_int arrived, id_made, failed, has_multicast;
    symwin_unique_id id;
    nccl_unique_id nccl_id[2];
    double start_us, ready_us[MOST], create_us[2][MOST], agree_us[MOST], call_us[2][MOST],
        register_us[2][MOST];
} * job;

static const char *hosts; /* of the command; NULL: one host */

/* Sleeps for a moment; ends the process if another one has failed. */
static void pause_for_others(void)
{
    const struct timespec moment = {.tv_nsec = 20000};

    if (atomic_load(&job->failed))
        exit(1);
    nanosleep(&moment, NULL);
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

    for (int r = 0; r < job->count; r++)
        most = values[r] > most ? values[r] : most;
    return most;
}

/* ---- symwin ---- */

static void wait_for_id(void)
{
    while (!atomic_load(&job->id_made))
        pause_for_others();
}

/* The median time of a registration of new memory. */
static double register_all(symwin_comm *comm, int device, unsigned flags)
{
    double times[WINDOWS];
    symwin_window *windows[WINDOWS];
    void *memory[WINDOWS];
    int i;

    for (i = 0; i < WINDOWS; i++)
        bench_must(symwin_mem_alloc(device, 2 << 20, 0, &memory[i]), "symwin_mem_alloc");
    for (i = 0; i < WINDOWS; i++) {
        meet();
        times[i] = bench_now_us();
        bench_must(symwin_window_register(comm, memory[i], 2 << 20, flags, &windows[i]),
                   "symwin_window_register");
        times[i] = bench_now_us() - times[i];
    }
    for (i = 0; i < WINDOWS; i++) {
        bench_must(symwin_window_deregister(comm, windows[i]), "symwin_window_deregister");
        bench_must(symwin_mem_free(memory[i]), "symwin_mem_free");
    }
    return median(times, WINDOWS);
}

static void symwin_rank(int rank, int device)
{
    static double times[AGREEMENTS];
    symwin_comm *comm = NULL;
    symwin_comm_info info;
    double begin, last;

    meet();
    begin = bench_now_us();
    if (rank == 0) {
        bench_must(symwin_unique_id_create(&job->id), "symwin_unique_id_create");
        atomic_store(&job->id_made, 1);
    }
    wait_for_id();
    bench_must(symwin_comm_create(&job->id, job->count, rank, device, NULL, &comm),
               "symwin_comm_create");
    job->create_us[0][rank] = bench_now_us() - begin;
    meet();
    last = bench_now_us();
    for (int i = 0; i < AGREEMENTS; i++) {
        const double before = last;

        bench_must(sw_comm_agree(comm, "startup", SYMWIN_OK, NULL, 0), "sw_comm_agree");
        last = bench_now_us();
        times[i] = last - before;
    }
    job->agree_us[rank] = median(times, AGREEMENTS);
    meet();
    job->register_us[1][rank] = register_all(comm, device, SYMWIN_WINDOW_NO_MULTICAST);
    bench_must(symwin_comm_query(comm, &info), "symwin_comm_query");
    job->has_multicast = info.multicast;
    job->register_us[0][rank] = register_all(comm, device, 0);
    meet();
    symwin_comm_destroy(comm);
}

/* ---- NCCL ---- */

static void nccl_comm(int which, int rank, int device, struct CUstream_st *stream, float *data)
{
    void *comm = NULL;
    double begin;

    meet();
    begin = bench_now_us();
    if (rank == 0) {
        if (nccl.ncclGetUniqueId(&job->nccl_id[which]) != 0)
            bench_fail("ncclGetUniqueId", "failed");
        atomic_store(&job->id_made, which + 1);
    }
    while (atomic_load(&job->id_made) <= which)
        pause_for_others();
    if (nccl.ncclCommInitRank(&comm, job->count, job->nccl_id[which], rank) != 0)
        bench_fail("ncclCommInitRank", "failed");
    job->create_us[which][rank] = bench_now_us() - begin;
    meet();
    begin = bench_now_us();
    if (nccl.ncclAllReduce(data, data, 16, FLOAT32, SUM, comm, stream) != 0)
        bench_fail("ncclAllReduce", "failed");
    bench_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    job->call_us[which][rank] = bench_now_us() - begin;
    meet();
    if (which == 0)
        nccl_comm(1, rank, device, stream, data);
    nccl.ncclCommDestroy(comm);
}

static void nccl_rank(int rank, int device)
{
    struct CUstream_st *stream = NULL;
    void *data = NULL;

    bench_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    bench_must(symwin_mem_alloc(device, 4096, 0, &data), "symwin_mem_alloc");
    nccl_comm(0, rank, device, stream, data);
    bench_must(symwin_mem_free(data), "symwin_mem_free");
    bench_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
}

/* ---- rounds ---- */

static void child(int rank, void (*body)(int rank, int device))
{
    struct CUstream_st *stream = NULL;
    symwin_driver_info driver;
    struct sw_scope scope;
    int device;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* killing the parent ends the run */
    if (hosts != NULL) {
        const char host[] = {hosts[rank], '\0'};

        setenv("SYMWIN_HOST_ID", host, 1);
    }
    bench_must(symwin_driver_query(&driver), "symwin_driver_query");
    device = rank % driver.device_count;
    if (job->count > driver.device_count) {
        char host[16];

        snprintf(host, sizeof host, "host-%d", rank);
        setenv("NCCL_HOSTID", host, 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    }
    /* also creates the context */
    bench_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    bench_must(sw_scope_enter(device, &scope), "context");
    job->ready_us[rank] = bench_now_us();
    body(rank, device);
    sw_scope_leave(&scope);
    symwin_stream_destroy(device, stream);
    exit(0);
}

static void round_of(int count, void (*body)(int rank, int device))
{
    memset(job, 0, sizeof *job);
    job->count = count;
    job->start_us = bench_now_us();
    for (int r = 0; r < count; r++) {
        const pid_t pid = fork();

        if (pid < 0)
            bench_fail("fork", "failed");
        if (pid == 0)
            child(r, body);
    }
    for (int r = 0; r < count; r++) {
        int status = 0;

        if (wait(&status) < 0 || status != 0)
            atomic_store(&job->failed, 1);
    }
    if (atomic_load(&job->failed))
        bench_fail("a process", "failed");
}

static void print(const char *what, const char *name, int count, const double *values, int rounds)
{
    double sorted[MOST_ROUNDS];

    memcpy(sorted, values, (size_t)rounds * sizeof *sorted);
    printf("%s,%s,%d,%.2f\n", what, name, count, median(sorted, rounds));
}

static void library(const char *name, int count, int rounds, void (*body)(int rank, int device))
{
    double create[2][MOST_ROUNDS], agree[MOST_ROUNDS], ready[MOST_ROUNDS], call[2][MOST_ROUNDS];
    double windows[2][MOST_ROUNDS];

    for (int i = 0; i < rounds; i++) {
        round_of(count, body);
        agree[i] = slowest(job->agree_us);
        ready[i] = slowest(job->ready_us) - job->start_us;
        for (int k = 0; k < 2; k++) {
            create[k][i] = slowest(job->create_us[k]);
            call[k][i] = slowest(job->call_us[k]);
            windows[k][i] = slowest(job->register_us[k]);
        }
    }
    print("processes", name, count, ready, rounds);
    print("create", name, count, create[0], rounds);
    if (body == symwin_rank) {
        print("agree", name, count, agree, rounds);
        print("register", name, count, windows[0], rounds);
        if (job->has_multicast)
            print("register-unicast", name, count, windows[1], rounds);
    } else {
        print("call", name, count, call[0], rounds);
        print("create-2", name, count, create[1], rounds);
        print("call-2", name, count, call[1], rounds);
    }
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
        bench_fail("devices", "there are none");
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    const char *driver = getenv("SYMWIN_DRIVER");
    int count, rounds;
    char text[256];

    bench_begin("startup", argc, argv, 3);
    count = bench_number(argc, argv, 1, 1, MOST, 0);
    rounds = bench_number(argc, argv, 2, 1, MOST_ROUNDS, 5);
    hosts = argc > 3 ? argv[3] : NULL;
    if (hosts != NULL && strlen(hosts) != (size_t)count) {
        fprintf(stderr, "startup: hosts is \"%s\": give a letter for each of %d processes\n", hosts,
                count);
        return 2;
    }
    signal(SIGCHLD, SIG_DFL);
    if (count == 0)
        count = device_count();
    if (rivals_multicast_off(text, sizeof text) != 0)
        bench_fail("NCCL", text);
    job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED)
        bench_fail("mmap", "failed");
    printf("what,library,processes,median_us\n");
    fflush(stdout);
    library("symwin", count, rounds, symwin_rank);
    if (driver == NULL || strcmp(driver, "emu") != 0) {
        void *found = nccl_open();

        if (found != NULL)
            (void)nccl_find(found); /* four functions are enough here */
        if (nccl.ncclCommInitRank != NULL)
            library("nccl", count, rounds, nccl_rank);
        else
            fprintf(stderr, "startup: without NCCL\n");
    }
    return bench_end();
}
