/* How a communicator ends on several hosts, and which rank is named: every rank gets the same
 * error, soon. SYMWIN_HOST_ID plays the hosts. Ranks leave, come late, are killed or stopped. Also
 * one process of threads: when a host call ends, so do the other threads' kernels. */
#include "processes.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 4 };
#else
enum { SLOWER = 1 };
#endif

enum { WAIT_MS = 1500 * SLOWER, SOON_MS = 500 * SLOWER, KERNEL_MS = 60000 };

static void must_end(symwin_status status, symwin_status want, const char *words, int rank)
{
    if (status == want && host_error_has(words))
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, symwin_status_name(status), symwin_last_error());
    tap_failures++;
}

static void must_be_soon(int64_t since_us, int64_t ms, int rank)
{
    const int64_t took = (processes_now_us() - since_us) / 1000;

    if (took <= ms)
        return;
    fprintf(stderr, "rank %d: after %lld ms\n", rank, (long long)took);
    tap_failures++;
}

/* ---- the rank that links the deciding host leaves, and the others continue ---- */

static void left(struct processes *p, int rank)
{
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    int64_t start;
    void *memory;

    processes_on_host(rank < 2 ? "a" : "b", 0);
    host_must(processes_comm(p, rank, WAIT_MS, &comm), "symwin_comm_create");
    memory = host_alloc(rank, 64);
    processes_barrier(p);
    if (rank == 0)
        symwin_comm_destroy(comm);
    processes_barrier(p);
    start = processes_now_us();
    if (rank != 0) {
        must_end(symwin_window_register(comm, memory, 64, 0, &window), SYMWIN_PEER_LOST,
                 "rank 0 has destroyed", rank);
        must_be_soon(start, SOON_MS, rank);
    }
    processes_barrier(p); /* otherwise the first to leave is named */
    if (rank != 0)
        symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- on another host, one rank is late and one never comes ---- */

static void late(struct processes *p, int rank)
{
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;

    processes_on_host(rank == 0 ? "a" : "b", 0);
    host_must(processes_comm(p, rank, WAIT_MS, &comm), "symwin_comm_create");
    memory = host_alloc(rank, 64);
    processes_barrier(p);
    if (rank == 1)
        usleep(WAIT_MS * 600);
    if (rank != 2)
        must_end(symwin_window_register(comm, memory, 64, 0, &window), SYMWIN_TIMEOUT, "rank 2",
                 rank);
    processes_barrier(p);
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- a process is killed after its lowest rank has left ---- */

struct team {
    struct processes *p;
    int rank;
    symwin_comm *comm;
};

static void *join(void *arg)
{
    struct team *t = arg;
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = WAIT_MS, .kernel_timeout_ms = KERNEL_MS};

    host_must(
        symwin_comm_create(processes_id(t->p, t->rank), 3, t->rank, t->rank, &options, &t->comm),
        "symwin_comm_create");
    return NULL;
}

/* Ranks 1 and 2 are threads of the killed process. */
static void killed(struct processes *p, int rank)
{
    struct team own = {.p = p, .rank = rank}, other = {.p = p, .rank = 2};
    symwin_status status = SYMWIN_OK;
    pthread_t thread;
    int64_t start;

    processes_on_host(rank == 0 ? "a" : "b", 0);
    if (rank == 1) {
        processes_child_threads();
        pthread_create(&thread, NULL, join, &other);
        join(&own);
        pthread_join(thread, NULL);
        symwin_comm_destroy(own.comm);
        p->rank[1].step = 1;
        usleep(100000); /* its LEAVE has to arrive */
        kill(getpid(), SIGKILL);
    }
    join(&own);
    while (p->rank[1].step == 0)
        usleep(1000);
    start = processes_now_us();
    while (status == SYMWIN_OK && processes_now_us() - start < 1000000 * SLOWER)
        status = symwin_comm_check(own.comm);
    must_end(status, SYMWIN_PEER_LOST, "rank 2", 0);
    symwin_comm_destroy(own.comm);
}

static void run_killed(void)
{
    struct processes *p = processes_new(2, NULL);

    processes_fork(p, 0, killed);
    processes_fork(p, 1, killed);
    tap_ok(processes_wait(p, 0) == 0,
           "killed after its lowest rank has left: the other host hears of it");
    tap_ok(WTERMSIG(processes_wait(p, 1)) == SIGKILL,
           "killed after its lowest rank has left: it was");
    processes_free(p);
}

/* ---- the deciding host is stopped, and a rank aborts ---- */

static void stopped(struct processes *p, int rank)
{
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;

    processes_on_host(rank == 0 ? "a" : "b", 0);
    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    memory = host_alloc(rank, 64);
    processes_barrier(p);
    if (rank == 0)
        kill(getpid(), SIGSTOP);
    if (rank == 2) {
        usleep(100000);
        p->rank[2].number = processes_now_us();
        host_must(symwin_comm_abort(comm), "symwin_comm_abort");
        while (p->rank[1].step == 0)
            usleep(1000);
        kill(p->pids[0], SIGCONT);
    }
    if (rank == 1) {
        must_end(symwin_window_register(comm, memory, 64, 0, &window), SYMWIN_ABORTED, "rank 2",
                 rank);
        /* one of the two seconds is for the answer */
        must_be_soon(p->rank[2].number, 2000 * SLOWER, rank);
        p->rank[1].step = 1;
    }
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- threads of one process: when a host call ends, so do the other threads' kernels ---- */

static void threads(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = WAIT_MS, .kernel_timeout_ms = KERNEL_MS};
    const int64_t start = processes_now_us();
    struct CUstream_st *stream = NULL;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    uint32_t *memory = host_alloc(rank, 128);

    (void)arg;
    host_must(symwin_comm_create(&team->id, team->nranks, rank, rank, &options, &comm),
              "symwin_comm_create");
    host_must(symwin_stream_create(rank, &stream), "symwin_stream_create");
    harness_barrier(team);
    if (rank == 0)
        must_end(symwin_window_register(comm, memory, 64, 0, &window), SYMWIN_TIMEOUT, "rank 1",
                 rank);
    if (rank == 1) {
        host_must(symwin_allreduce(comm, memory, memory + 16, 16, SYMWIN_U32, SYMWIN_SUM, stream),
                  "symwin_allreduce");
        host_must(symwin_stream_synchronize(rank, stream), "symwin_stream_synchronize");
        must_be_soon(start, KERNEL_MS / 2, rank);
    }
    harness_barrier(team);
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(rank, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

int main(void)
{
    int before;

    processes_run("left by the rank that speaks for the deciding host", 3, left, NULL);
    processes_run("late and absent on another host", 3, late, NULL);
    run_killed();
    processes_run("aborted while the deciding host is stopped", 3, stopped, NULL);
    before = tap_failures;
    harness_run(3, threads, NULL);
    tap_ok(tap_failures == before,
           "a host call of one thread that times out ends another's kernel");
    return tap_done();
}
