/* Ranks as processes, and what they do.
 *
 * Ranks are forked from a parent that never uses symwin's driver, so that each child loads its own.
 * What ranks tell each other and the parent is in shared memory.
 *
 *     static void body(struct processes *p, int rank) { ... }
 *     processes_run("name", 4, body, arg);   forks 4, waits, prints one TAP line for each
 */
#ifndef SYMWIN_TESTS_PROCESSES_H
#define SYMWIN_TESTS_PROCESSES_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "nap.h"

/* Beside other tests on two slow cores, ranks need several times as long as alone. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { PROCESSES_LIMIT_S = 120 };
#else
enum { PROCESSES_LIMIT_S = 90 };
#endif
enum { PROCESSES_GPU_LIMIT_S = 150, PROCESSES_MOST = 80 };

/* Whether the ranks may use GPUs: if the variable is not set, they set it to emu. Asks no driver:
 * the parent of ranks loads none. */
HARNESS_UNUSED int processes_use_gpus(void)
{
    const char *driver = getenv("SYMWIN_DRIVER");

    return driver != NULL && strcmp(driver, "emu") != 0;
}

/* Seconds that a rank has. The processes that share a GPU take turns of milliseconds, and each call
 * takes several. */
HARNESS_UNUSED unsigned processes_limit(void)
{
    return processes_use_gpus() ? PROCESSES_GPU_LIMIT_S : PROCESSES_LIMIT_S;
}

/* In shared memory. */
struct processes {
    int count;
    void *arg;
    symwin_unique_id id;
    atomic_int id_made;
    atomic_int arrived; /* at the barrier, all rounds together */
    struct {
        atomic_int status;        /* of the call under test; -1: not known yet */
        atomic_llong at_us;       /* when it became known */
        char text[SW_TEXT_BYTES]; /* its error */
        atomic_int step;
        symwin_unique_id id; /* as this rank has it */
        atomic_llong number; /* for the body to use */
    } rank[PROCESSES_MOST];
    pid_t pids[PROCESSES_MOST];
};

HARNESS_UNUSED int64_t processes_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Makes this process one of the host that `hosts` names, a letter for each rank. NULL: one host. */
HARNESS_UNUSED void processes_on_host(const char *hosts, int rank)
{
    if (hosts != NULL) {
        const char host[] = {hosts[rank], '\0'};

        setenv("SYMWIN_HOST_ID", host, 1);
        setenv("SYMWIN_ADDR", "127.0.0.1", 1);
        setenv("SYMWIN_EMU_FABRIC", "2", 1);
    }
}

/* Puts a rank's status, with its error, where the parent sees it. */
HARNESS_UNUSED symwin_status processes_note(struct processes *p, int rank, symwin_status status)
{
    p->rank[rank].at_us = processes_now_us();
    if (status != SYMWIN_OK)
        snprintf(p->rank[rank].text, SW_TEXT_BYTES, "%s", symwin_last_error());
    p->rank[rank].status = (int)status;
    return status;
}

/* A check in a rank's process: a failure makes its exit status nonzero. */
HARNESS_UNUSED void must_be(int right, const char *what, int rank)
{
    if (right)
        return;
    fprintf(stderr, "rank %d: not so: %s; the last error here: %s\n", rank, what,
            *symwin_last_error() != '\0' ? symwin_last_error() : "none");
    tap_failures++;
}

HARNESS_UNUSED void must_equal(long long got, long long want, const char *what, int rank)
{
    if (got == want)
        return;
    fprintf(stderr, "rank %d: %s: got %lld, want %lld\n", rank, what, got, want);
    tap_failures++;
}

/* The id, which rank 0 creates. */
HARNESS_UNUSED const symwin_unique_id *processes_id(struct processes *p, int rank)
{
    unsigned slept = 0;

    if (rank == 0) {
        host_must(symwin_unique_id_create(&p->id), "symwin_unique_id_create");
        p->id_made = 1;
    }
    while (!p->id_made)
        nap(&slept);
    return &p->id;
}

HARNESS_UNUSED void processes_barrier(struct processes *p)
{
    const int mine = atomic_fetch_add(&p->arrived, 1);
    const int all = (mine / p->count + 1) * p->count;
    unsigned slept = 0;

    while (p->arrived < all)
        nap(&slept);
}

HARNESS_UNUSED symwin_status processes_comm_with(struct processes *p, int rank,
                                                 const symwin_unique_id *id, int timeout_ms,
                                                 symwin_comm **comm)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = timeout_ms,
                                         .kernel_timeout_ms = timeout_ms,
                                         .slot_bytes = 8192};

    return symwin_comm_create(id, p->count, rank, rank % harness_device_count(), &options, comm);
}

HARNESS_UNUSED symwin_status processes_comm(struct processes *p, int rank, int timeout_ms,
                                            symwin_comm **comm)
{
    return processes_comm_with(p, rank, processes_id(p, rank), timeout_ms, comm);
}

HARNESS_UNUSED struct processes *processes_new(int count, void *arg)
{
    struct processes *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                               -1, 0);
    int r;

    if (p == MAP_FAILED) {
        perror("processes_new");
        exit(1);
    }
    p->count = count;
    p->arg = arg;
    for (r = 0; r < PROCESSES_MOST; r++)
        p->rank[r].status = -1;
    return p;
}

HARNESS_UNUSED void processes_free(struct processes *p)
{
    munmap(p, sizeof *p);
}

/* A real driver may keep descriptors and threads; a process that has loaded none may not. */
HARNESS_UNUSED int processes_leave_something(int fds_before)
{
    if (sw_drv.cuInit != NULL && !sw_driver_is_emulated())
        return 0;
    return sw_emu_live_objects() != 0 || harness_count_entries("/proc/self/fd") != fds_before ||
           harness_service_threads() != 0;
}

/* Call it in a forked child, of a parent with threads, that starts threads. ThreadSanitizer
 * believes that the parent's threads exist in the child. It ends a child in which a new thread gets
 * the stack, and so the id, of one of them. Larger stacks are different ones. */
HARNESS_UNUSED void processes_child_threads(void)
{
#if defined(__SANITIZE_THREAD__)
    pthread_attr_t larger;

    pthread_attr_init(&larger);
    pthread_attr_setstacksize(&larger, 64 << 20);
    pthread_setattr_default_np(&larger);
    pthread_attr_destroy(&larger);
#endif
}

/* Forks one rank. Its exit status is 0 if the body returned, no check failed and nothing was left
 * behind. */
HARNESS_UNUSED void processes_fork(struct processes *p, int rank,
                                   void (*body)(struct processes *p, int rank))
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid > 0)
        p->pids[rank] = pid;
    if (pid == 0) {
        struct harness_leaks before;
        int i;

        alarm(processes_limit()); /* ends a process that hangs */
        tap_failures = 0;
        setenv("SYMWIN_DRIVER", "emu", 0);
        before = (struct harness_leaks){0, harness_count_entries("/proc/self/fd"), 0, 0};
        body(p, rank);
        /* Memory that peers have mapped lives until they unmap it. */
        symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
        for (i = 0; i < 5000 && processes_leave_something(before.fds); i++) {
            sw_poll_settle();
            usleep(1000);
        }
        if (processes_leave_something(before.fds)) {
            fprintf(stderr, "rank %d leaves %zu objects, %d descriptors (had %d), %d threads\n",
                    rank, sw_emu_live_objects(), harness_count_entries("/proc/self/fd"), before.fds,
                    harness_service_threads());
            sw_emu_live_print(2);
            fflush(NULL);
            _exit(3);
        }
        fflush(NULL);
        _exit(tap_failures > 0 ? 4 : 0);
    }
}

/* Waits for one rank; its wait status. */
HARNESS_UNUSED int processes_wait(struct processes *p, int rank)
{
    int status = -1;

    while (waitpid(p->pids[rank], &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* The same; says how it ended, unless well. What its checks found it has said itself. */
HARNESS_UNUSED int processes_wait_loud(struct processes *p, int rank)
{
    const int status = processes_wait(p, rank), code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

    if (WIFSIGNALED(status))
        fprintf(
            stderr,
            "# the process of rank %d of %d ended by signal %d (%s%s), %d barriers done, step %d\n",
            rank, p->count, WTERMSIG(status), strsignal(WTERMSIG(status)),
            WTERMSIG(status) == SIGALRM ? ": it took too long" : "", p->arrived / p->count,
            p->rank[rank].step);
    else if (code != 0)
        fprintf(stderr,
                "# the process of rank %d of %d ended with status %d (%s), %d barriers done\n",
                rank, p->count, code,
                code == 4   ? "checks failed"
                : code == 3 ? "it left something"
                            : "it gave up",
                p->arrived / p->count);
    return status;
}

HARNESS_UNUSED void processes_run(const char *name, int count,
                                  void (*body)(struct processes *p, int rank), void *arg)
{
    struct processes *p = processes_new(count, arg);
    int r;

    for (r = 0; r < count; r++)
        processes_fork(p, r, body);
    for (r = 0; r < count; r++) {
        const int status = processes_wait(p, r);

        tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
               "%s: rank %d of %d (wait status 0x%x)", name, r, count, (unsigned)status);
    }
    processes_free(p);
}

/* ---- ranks as threads, as processes, as both, or as processes of two hosts ---- */

struct place {
    const char *name;
    int together;      /* ranks of a process, as its threads */
    const char *hosts; /* a letter for each rank, of at most 4; NULL: one host */
};

__attribute__((unused)) static const struct place places_all[] = {{"threads", PROCESSES_MOST, NULL},
                                                                  {"processes", 1, NULL},
                                                                  {"mixed", 2, NULL},
                                                                  {"hosts", 1, "abab"}};

/* Whether all ranks are threads of one process. */
HARNESS_UNUSED int places_one(const struct place *place)
{
    return place->together == PROCESSES_MOST;
}

/* The first rank of the process of `rank`. */
HARNESS_UNUSED int places_first(const struct place *place, int rank)
{
    return rank - rank % place->together;
}

/* Hosts need a fabric between them, which the emulated driver has and a single machine has not. */
HARNESS_UNUSED size_t places_count(void)
{
    const size_t all = sizeof places_all / sizeof places_all[0];

    return processes_use_gpus() ? all - 1 : all;
}

struct places_job {
    const struct place *place;
    void (*body)(struct processes *p, int rank);
    void *arg;
};

struct places_thread {
    struct processes *p;
    int rank;
};

HARNESS_UNUSED void *places_arg(const struct processes *p)
{
    return ((const struct places_job *)p->arg)->arg;
}

HARNESS_UNUSED void *places_thread_main(void *arg)
{
    const struct places_thread *t = arg;

    ((const struct places_job *)t->p->arg)->body(t->p, t->rank);
    return NULL;
}

/* Runs the ranks of one process, of which `first` is the first one: as threads, or here if it is
 * the only one. */
HARNESS_UNUSED void places_process(struct processes *p, int first)
{
    const struct places_job *job = p->arg;
    struct places_thread ranks[PROCESSES_MOST];
    pthread_t threads[PROCESSES_MOST];
    int r;

    if (job->place->together == 1) {
        processes_on_host(job->place->hosts, first);
        job->body(p, first);
        return;
    }
    processes_child_threads();
    for (r = first; r < p->count && r - first < job->place->together; r++) {
        ranks[r] = (struct places_thread){p, r};
        if (pthread_create(&threads[r], NULL, places_thread_main, &ranks[r]) != 0)
            abort();
    }
    while (r-- > first)
        pthread_join(threads[r], NULL);
}

/* 1: see places_stay(). */
__attribute__((weak)) int places_stays;

/* From here on, all places are threads. On GPUs, these are threads of this process: a process takes
 * a second to start. It can fork no rank any more. */
HARNESS_UNUSED void places_stay(void)
{
    places_stays = processes_use_gpus();
    if (places_stays)
        harness_start();
}

/* Runs the ranks as threads of this process; whether no check failed. */
HARNESS_UNUSED int places_run_here(struct processes *p)
{
    const int failures = tap_failures;
    int right;

    alarm(processes_limit());
    places_process(p, 0);
    alarm(0);
    right = tap_failures == failures;
    tap_failures = failures; /* the caller's line counts */
    return right;
}

/* Runs body(p, rank) as `nranks` ranks; whether all exited with status 0. *out has what they told,
 * for processes_free(). */
HARNESS_UNUSED int places_run(const struct place *place, int nranks,
                              void (*body)(struct processes *p, int rank), void *arg,
                              struct processes **out)
{
    struct places_job job = {place, body, arg};
    struct processes *p = processes_new(nranks, &job);
    int right = 1, r;

    *out = p;
    if (place->together < 1) /* processes without end */
        abort();
    if (places_stays && places_one(place))
        return places_run_here(p);
    for (r = 0; r < nranks; r += place->together)
        processes_fork(p, r, places_process);
    for (r = 0; r < nranks; r += place->together)
        right &= processes_wait_loud(p, r) == 0;
    return right;
}

/* ---- ports ---- */

/* A TCP port that nobody uses: the system chooses it, and it is released. The next call gives
 * another port, because the system goes through its range in turn. */
HARNESS_UNUSED int ports_free(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof any;

    if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof any) != 0 ||
        getsockname(fd, (struct sockaddr *)&any, &bytes) != 0) {
        perror("ports_free");
        exit(1);
    }
    close(fd);
    return ntohs(any.sin_port);
}

HARNESS_UNUSED void ports_name(char name[16])
{
    snprintf(name, 16, "%d", ports_free());
}

/* ---- the life of a rank ---- */

/* Elements: many rounds of small slots. There are fewer under ThreadSanitizer, to which every poll
 * of a waiting kernel is a call. */
#if defined(__SANITIZE_THREAD__)
enum { EVERYTHING_COUNT = 6000 };
#else
enum { EVERYTHING_COUNT = 30000 };
#endif

/* Reduces once and compares every element. */
HARNESS_UNUSED void everything_reduce(struct processes *p, int rank, symwin_comm *comm,
                                      uint32_t *in, uint32_t *out, symwin_algo algo,
                                      struct CUstream_st *stream)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo};
    const int device = rank % harness_device_count();
    uint32_t words[EVERYTHING_COUNT];
    uint32_t ranks = (uint32_t)p->count;
    int wrong = 0;
    uint32_t i;

    for (i = 0; i < EVERYTHING_COUNT; i++)
        words[i] = i * (uint32_t)(rank + 1);
    host_must(host_copy(device, in, words, sizeof words), "copy");
    host_must(symwin_allreduce_with(comm, in, out, EVERYTHING_COUNT, SYMWIN_U32, SYMWIN_SUM,
                                    &options, stream),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    must_be(symwin_comm_check(comm) == SYMWIN_OK, "symwin_comm_check", rank);
    host_must(host_copy(device, words, out, sizeof words), "copy");
    for (i = 0; i < EVERYTHING_COUNT; i++)
        wrong += words[i] != i * (ranks * (ranks + 1) / 2);
    must_be(wrong == 0, "the sum", rank);
}

/* The whole life of a communicator: all-reduces, windows, the memory of peers, destruction. */
HARNESS_UNUSED void everything_with(struct processes *p, int rank, const symwin_unique_id *id)
{
    const int device = rank % harness_device_count();
    struct CUstream_st *stream = NULL;
    symwin_window *window = NULL, *second = NULL;
    symwin_comm *comm = NULL;
    symwin_comm_info info;
    uint32_t *buffer;
    void *peer;
    int i;

    host_must(processes_comm_with(p, rank, id, 20000, &comm), "symwin_comm_create");
    buffer = host_alloc(device, 2 * EVERYTHING_COUNT * sizeof *buffer);
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    everything_reduce(p, rank, comm, buffer, buffer + EVERYTHING_COUNT, SYMWIN_ALGO_AUTO,
                      stream); /* no window */
    host_must(
        symwin_window_register(comm, buffer, 2 * EVERYTHING_COUNT * sizeof *buffer, 0, &window),
        "symwin_window_register");
    for (i = 0; i < 3; i++) {
        everything_reduce(p, rank, comm, buffer, buffer + EVERYTHING_COUNT, SYMWIN_ALGO_ONESHOT,
                          stream);
        everything_reduce(p, rank, comm, buffer, buffer + EVERYTHING_COUNT, SYMWIN_ALGO_TWOSHOT,
                          stream);
    }
    host_must(symwin_window_register(comm, buffer, 64, 0, &second), "symwin_window_register");
    must_be(symwin_comm_query(comm, &info) == SYMWIN_OK && info.allocations == 1 &&
                info.windows == 2,
            "one allocation, two windows", rank);
    /* The flat range shows what peers wrote. */
    host_put_u32(device, buffer, 7000u + (uint32_t)rank);
    processes_barrier(p);
    for (i = 0; i < p->count; i++) {
        host_must(symwin_window_peer_pointer(comm, window, i, 0, &peer), "peer pointer");
        must_be(host_get_u32(device, peer) == 7000u + (uint32_t)i, "a peer's word", rank);
    }
    processes_barrier(p);
    host_must(symwin_window_deregister(comm, window), "symwin_window_deregister");
    host_must(symwin_window_deregister(comm, second), "symwin_window_deregister");
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
}

HARNESS_UNUSED void everything(struct processes *p, int rank)
{
    everything_with(p, rank, processes_id(p, rank));
}

#endif
