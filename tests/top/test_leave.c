/* A rank destroys its communicator while the others continue. What still waits for it ends soon on
 * all of them, with PEER_LOST and its name. What it has taken part in completes. Ranks are threads,
 * processes, or processes on two hosts.
 */
#include "processes.h"

/* Beside other tests a rank waits for a processor, and with a sanitizer a kernel polls slowly.
 * ThreadSanitizer has no room for many threads. */
#if defined(__SANITIZE_THREAD__)
enum { SOON_MS = 20000, WAIT_MS = 60000, THREADS = 32 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SOON_MS = 4000, WAIT_MS = 20000, THREADS = 64 };
#else
enum { SOON_MS = 2000, WAIT_MS = 20000, THREADS = 64 };
#endif

enum {
    RANKS = 3,
    LEAVES = RANKS - 1,
    COUNT = 4096,
    BYTES = COUNT * 4,
    LATE_MS = 60,
    GRACE_MS = 2000 /* of the leaving rank, for its own calls */
};

enum story {
    BEFORE_LAUNCH, /* it has left before the others call */
    WHILE_WAITING, /* the others' kernels wait for it */
    REPLAY,        /* the others replay a graph */
    EARLY,         /* it has made a call that a peer has yet to make */
    FAILED,        /* the same, and its next call was INVALID */
    HOST_CALL,     /* the others are in a host call, and its last call waits for theirs */
    LINGER,        /* the same, and the others keep their communicators meanwhile */
    STORIES
};

static const char *const story_names[STORIES] = {"before the others call",
                                                 "while their kernels wait",
                                                 "before they replay a graph",
                                                 "ahead of a slow peer",
                                                 "after a call that failed",
                                                 "while the others are in a host call",
                                                 "while the others are in a host call, and linger"};

struct way {
    enum story story;
    symwin_algo algo;
};

struct rank {
    struct processes *p;
    const struct way *way;
    int rank, device;
    symwin_comm *comm;
    symwin_window *window;
    struct CUstream_st *stream;
    uint32_t *memory; /* input; output in the second half */
};

static symwin_status reduce(const struct rank *r)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = r->way->algo, .blocks = 2, .threads = THREADS};

    return symwin_allreduce_with(r->comm, r->memory, r->memory + COUNT, COUNT, SYMWIN_U32,
                                 SYMWIN_SUM, &options, r->stream);
}

static void finish(const struct rank *r)
{
    host_must(symwin_stream_synchronize(r->device, r->stream), "symwin_stream_synchronize");
}

/* A call of all ranks, with a right result. */
static void all_reduce(const struct rank *r)
{
    host_must(reduce(r), "symwin_allreduce");
    finish(r);
    /* Not symwin_comm_check(): another rank may already have reported the next call. */
    must_be(r->comm->report->code == SW_KERNEL_OK, "a call of all ranks", r->rank);
    must_be(host_get_u32(r->device, r->memory + 2 * COUNT - 1) == RANKS * (RANKS + 1) / 2,
            "its result", r->rank);
}

static void is_lost(const struct rank *r, int64_t since_us)
{
    const int64_t us = processes_now_us() - since_us;
    const symwin_status status = processes_note(r->p, r->rank, symwin_comm_check(r->comm));

    must_be(status == SYMWIN_PEER_LOST && host_error_has("rank 2|has destroyed"), "PEER_LOST",
            r->rank);
    must_be(us < SOON_MS * 1000, "soon", r->rank);
}

static void leave(struct rank *r)
{
    r->p->rank[r->rank].number = processes_now_us();
    symwin_comm_destroy(r->comm);
    r->comm = NULL;
}

/* Waits until the rank has begun to leave or, if `whole`, has left. Returns when it began. */
static int64_t await_leave(const struct rank *r, int whole)
{
    while (r->p->rank[LEAVES].number == 0 || (whole && !r->p->rank[LEAVES].step))
        usleep(100);
    return r->p->rank[LEAVES].number;
}

/* ---- stories --------------------------------------------------------------------------------- */

static void before_launch(struct rank *r)
{
    int64_t since;

    if (r->rank == LEAVES) {
        leave(r);
        return;
    }
    (void)await_leave(r, 1);
    since = processes_now_us();
    (void)reduce(r); /* fails if another rank has already reported the loss */
    finish(r);
    is_lost(r, since);
}

static void while_waiting(struct rank *r)
{
    if (r->rank == LEAVES) {
        host_pause_ms(LATE_MS);
        leave(r);
        return;
    }
    host_must(reduce(r), "symwin_allreduce");
    finish(r);
    must_be(r->p->rank[LEAVES].number != 0, "not before it leaves", r->rank);
    is_lost(r, await_leave(r, 0));
}

static void replay(struct rank *r)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    struct sw_scope scope;
    int64_t since;

    host_must(sw_scope_enter(r->device, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(reduce(r), "a captured call");
    exec = host_end_capture(r->stream, &graph);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, r->stream), "cuGraphLaunch");
    finish(r);
    must_be(r->comm->report->code == SW_KERNEL_OK, "a replay of all ranks", r->rank);
    if (r->rank == LEAVES) {
        leave(r);
    } else {
        (void)await_leave(r, 0);
        since = processes_now_us();
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->stream), "cuGraphLaunch");
        finish(r);
        is_lost(r, since);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    sw_scope_leave(&scope);
}

static void early(struct rank *r)
{
    if (r->rank == LEAVES) {
        host_must(reduce(r), "symwin_allreduce");
        if (r->way->story == FAILED)
            must_be(symwin_allreduce(r->comm, r->memory, r->memory, 0x10, (symwin_type)99,
                                     SYMWIN_SUM, r->stream) == SYMWIN_INVALID,
                    "a call that fails", r->rank);
        leave(r);
        return;
    }
    if (r->rank == 0) { /* the slow rank */
        (void)await_leave(r, 0);
        host_pause_ms(LATE_MS);
    }
    all_reduce(r);
    if (r->way->story == EARLY)
        return;
    (void)reduce(r);
    finish(r);
    is_lost(r, await_leave(r, 0));
}

static void host_call(struct rank *r)
{
    symwin_window *window = NULL;

    if (r->rank == LEAVES) {
        host_must(reduce(r), "symwin_allreduce");
        leave(r);
        must_be(processes_now_us() - r->p->rank[LEAVES].number < (GRACE_MS + SOON_MS) * 1000,
                "it does not wait for a call that nobody will make", r->rank);
        return;
    }
    must_be(symwin_window_register(r->comm, r->memory, 64, 0, &window) == SYMWIN_PEER_LOST &&
                host_error_has("rank 2|has destroyed"),
            "symwin_window_register", r->rank);
    is_lost(r, await_leave(r, 0));
    if (r->way->story == LINGER)
        (void)await_leave(r, 1);
}

static void (*const stories[STORIES])(struct rank *r) = {
    before_launch, while_waiting, replay, early, early, host_call, host_call};

/* ---- ranks ----------------------------------------------------------------------------------- */

static void body(struct processes *p, int rank)
{
    const struct way *way = places_arg(p);
    struct rank r = {.p = p, .way = way, .rank = rank};
    uint32_t input[COUNT];
    int i;

    r.device = rank % harness_device_count();
    r.memory = host_alloc(r.device, 2 * BYTES);
    host_must(symwin_stream_create(r.device, &r.stream), "symwin_stream_create");
    host_must(processes_comm(p, rank, WAIT_MS, &r.comm), "symwin_comm_create");
    host_must(symwin_window_register(r.comm, r.memory, 2 * BYTES, 0, &r.window), "register");
    for (i = 0; i < COUNT; i++)
        input[i] = (uint32_t)rank + 1;
    host_must(host_copy(r.device, r.memory, input, sizeof input), "copy");
    /* Where ranks share a GPU, this copy can wait in the copy engine behind a peer's call by
     * copies, whose copies wait for this rank's call. */
    processes_barrier(p);
    all_reduce(&r);
    processes_barrier(p);
    stories[way->story](&r);
    p->rank[rank].step = 1; /* set as it leaves */
    symwin_comm_destroy(r.comm);
    processes_barrier(p); /* peers reach this memory: free it after all have left */
    host_must(symwin_stream_destroy(r.device, r.stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(r.memory), "symwin_mem_free");
}

/* ---- a lost host link ---- */

/* Ranks 0 and 1 link two hosts. Rank 1 is killed, and rank 3 of its host leaves therefore. Rank 2
 * of the other host waits for both, and rank 0, which would tell it who was lost, is stopped. */
static void apart(struct processes *p, int rank)
{
    const struct way way = {WHILE_WAITING, SYMWIN_ALGO_ONESHOT};
    struct rank r = {.p = p, .way = &way, .rank = rank};
    symwin_status status = SYMWIN_OK;

    processes_on_host("abab", rank);
    r.device = rank % harness_device_count();
    r.memory = host_alloc(r.device, 2 * BYTES);
    host_must(symwin_stream_create(r.device, &r.stream), "symwin_stream_create");
    host_must(processes_comm(p, rank, WAIT_MS, &r.comm), "symwin_comm_create");
    host_must(reduce(&r), "symwin_allreduce");
    finish(&r);
    processes_barrier(p);
    while (rank == 1)
        pause();
    if (rank == 2) {
        host_must(reduce(&r), "symwin_allreduce");
        p->rank[2].step = 1;
    }
    if (rank == 3) {
        while (!p->rank[2].step)
            usleep(100);
        kill(p->pids[0], SIGSTOP);
        kill(p->pids[1], SIGKILL);
    }
    finish(&r);
    while (status == SYMWIN_OK) {
        usleep(100);
        status = symwin_comm_check(r.comm);
    }
    (void)processes_note(p, rank, status);
    symwin_comm_destroy(r.comm);
    if (rank == 3) {
        host_pause_ms(5 * LATE_MS); /* rank 2 looks for a rank that has left */
        kill(p->pids[0], SIGCONT);
    }
    host_must(symwin_stream_destroy(r.device, r.stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(r.memory), "symwin_mem_free");
}

static void lost_link(void)
{
    struct processes *p = processes_new(4, NULL);
    int r, right = 1;

    for (r = 0; r < 4; r++)
        processes_fork(p, r, apart);
    for (r = 0; r < 4; r++)
        right &= r == 1 ? WTERMSIG(processes_wait(p, r)) == SIGKILL
                        : processes_wait_loud(p, r) == 0;
    for (r = 0; r < 4; r++)
        tap_ok(right && (r == 1 || (p->rank[r].status == SYMWIN_PEER_LOST &&
                                    strstr(p->rank[r].text, "process of rank 1 has ended"))),
               "a lost host link: rank %d: %s", r, p->rank[r].text);
    processes_free(p);
}

static void run(const struct place *place, struct way way)
{
    struct processes *p;
    const int right = places_run(place, RANKS, body, &way, &p);
    int64_t last = 0;
    int r;

    for (r = 0; r < LEAVES; r++)
        last = p->rank[r].at_us > last ? p->rank[r].at_us : last;
    tap_ok(right, "%s, %s: a rank leaves %s", place->name, symwin_algo_name(way.algo),
           story_names[way.story]);
    if (way.story == WHILE_WAITING)
        printf("# %s, %s: the last rank has left %lld us after it\n", place->name,
               symwin_algo_name(way.algo), (long long)(last - p->rank[LEAVES].number));
    processes_free(p);
}

int main(void)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT,      SYMWIN_ALGO_TWOSHOT,
                                        SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_TWOSHOT_PUT,
                                        SYMWIN_ALGO_TWOSHOT_BULK, SYMWIN_ALGO_COPIES};
    size_t place, i;
    int story;

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "9", 0); /* copies take three streams a rank */
    for (place = 0; place < places_count(); place++)
        for (story = 0; story < STORIES; story++)
            for (i = 0; i < sizeof algos / sizeof algos[0]; i++)
                if (story < HOST_CALL || i == 0)
                    run(&places_all[place], (struct way){(enum story)story, algos[i]});
    if (!processes_use_gpus()) /* hosts of GPUs need fabric handles */
        lost_link();
    return tap_done();
}
