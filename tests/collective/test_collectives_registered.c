/* Collectives on registered buffers: which calls connect them and which wait for nobody, ranges
 * that each rank cuts in its own way, what only the root has, calls that fail on one rank, captures
 * and groups. All-reduces are in tests/window/test_register*.c. */
#define TEST_ROOM (1 << 22) /* some calls of AUTO that fit go over windows */
#include "collectives.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) /* slow sums */
enum { MOST_RANKS = 2, EACH = 11, LARGE_COPIES_ONLY = 1 };
#else
enum { MOST_RANKS = 4, EACH = 2, LARGE_COPIES_ONLY = 0 };
#endif
enum { CUTS = 4, COUNT = 512, SHORT_MS = 1500 };

/* ---- calls ----------------------------------------------------------------------------------- */

static struct job job_by(const struct rank *r, const struct shape *is, symwin_algo algo)
{
    return (struct job){.is = is,
                        .options = {.size = sizeof(symwin_collective_options), .algo = algo},
                        .type = SYMWIN_F32,
                        .count = COUNT,
                        .root = r->nranks - 1,
                        .in = GUARD,
                        .out = GUARD,
                        .seed = 2};
}

/* Calls see() with a job by each algorithm over windows of each collective. */
static void each_algorithm(struct processes *p, struct rank *r,
                           void (*see)(struct processes *p, struct rank *r, const struct job *j))
{
    int s, a;

    for (s = 0; s < SHAPES; s++)
        for (a = 1; a < ALGOS && shape_connects(&shapes[s]); a++) {
            const struct job j = job_by(r, &shapes[s], shapes[s].algos[a]);

            if (j.options.algo != SYMWIN_ALGO_AUTO)
                see(p, r, &j);
        }
}

/* Whether its buffers are windows for it now. */
static int is_connected(const struct rank *r, const struct job *j)
{
    symwin_collective_info info;

    return job_query(r, j, &info) == SYMWIN_OK;
}

/* ---- registrations --------------------------------------------------------------------------- */

struct ranges {
    symwin_registration *of[CUTS];
};

/* Registers all of a buffer in ranges that overlap, of other sizes on each rank and each time. */
static void enter(const struct rank *r, unsigned char *buffer, unsigned seed, struct ranges *out)
{
    const size_t step = ROOM / CUTS;
    int i;

    for (i = 0; i < CUTS; i++) {
        const size_t begin = i == 0 ? 0
                                    : (size_t)i * step -
                                          mix(seed + (unsigned)(r->rank * 7 + i)) % step;

        host_must(
            symwin_register(r->comm, buffer + begin, (size_t)(i + 1) * step - begin, &out->of[i]),
            "symwin_register");
    }
}

static void leave(const struct rank *r, struct ranges *ranges)
{
    int i;

    for (i = 0; i < CUTS; i++)
        host_must(symwin_deregister(r->comm, ranges->of[i]), "symwin_deregister");
}

static unsigned char *deciding(const struct rank *r, const struct shape *is)
{
    return is->decides == IN ? r->in : r->out;
}

/* ---- which calls connect --------------------------------------------------------------------- */

/* A call by an algorithm over windows connects the buffer that decides, once. It stays so until it
 * is deregistered, which a rank may do when its own call has completed. */
static void once(struct processes *p, struct rank *r, const struct job *j)
{
    struct ranges ranges;
    uint64_t sequence = r->comm->sequence;
    int turn;

    for (turn = 0; turn < 2; turn++) {
        enter(r, deciding(r, j->is), (unsigned)turn, &ranges);
        must_be(!is_connected(r, j), "no window before the first call", r->rank);
        sequence = r->comm->sequence;
        job_run(r, j);
        must_be(r->comm->sequence > sequence, "the first call agrees", r->rank);
        sequence = r->comm->sequence;
        job_run(r, j);
        must_be(r->comm->sequence == sequence && is_connected(r, j), "the second one does not",
                r->rank);
        processes_barrier(p);
        leave(r, &ranges);
        must_be(!is_connected(r, j), "deregistered", r->rank);
    }
}

/* AUTO connects registered buffers if it goes over windows then, and otherwise waits for nobody. */
static void if_it_makes_a_difference(struct processes *p, struct rank *r)
{
    const uint64_t most = (ROOM - 4 * GUARD) / 4 / (uint64_t)r->nranks;
    uint64_t sequence;
    unsigned made = 0;
    int s;

    for (s = 0; s < SHAPES; s++) {
        const struct shape *is = &shapes[s];
        struct job j = job_by(r, is, SYMWIN_ALGO_AUTO);

        j.whole = 1; /* AUTO may go by multicast, which adds in any order */
        j.count = LARGE_COPIES_ONLY && is->reduces ? most / 64 : most;
        for (; shape_connects(is) && j.count > 0; j.count /= 64) {
            struct job over = j;
            symwin_collective_info info = {.algo = SYMWIN_ALGO_AUTO};
            struct ranges ranges;
            int goes;

            enter(r, deciding(r, is), 0, &ranges);
            over.options.algo = is->algos[1];
            host_must(job_call(r, &over, 0), is->name);
            job_wait(r, 0);
            host_must(job_query(r, &j, &info), "a query");
            goes = info.algo != is->algos[0] && info.algo != is->shares;
            processes_barrier(p);
            leave(r, &ranges);
            enter(r, deciding(r, is), 1, &ranges);
            sequence = r->comm->sequence;
            job_run(r, &j);
            must_be((r->comm->sequence > sequence) == goes, "AUTO agrees if it goes over windows",
                    r->rank);
            made += (unsigned)goes;
            over.options.algo = is->algos[0];
            sequence = r->comm->sequence;
            host_must(job_call(r, &over, 0), is->name);
            job_wait(r, 0);
            must_be(r->comm->sequence == sequence, "one that needs no window does not", r->rank);
            processes_barrier(p);
            leave(r, &ranges);
        }
    }
    must_be(made > 0 || r->nranks == 1, "some calls of AUTO go over windows", r->rank);
}

/* What not all ranks pass alike may be registered or not. If an earlier call has connected it, the
 * root's may be used. */
static void what_others_have(struct processes *p, struct rank *r, const struct job *j)
{
    unsigned char *const other = deciding(r, j->is) == r->in ? r->out : r->in;
    const symwin_collective_options twoshot = {.size = sizeof twoshot, .algo = SYMWIN_ALGO_TWOSHOT};
    struct ranges first, second = {{NULL}};
    uint64_t sequence;

    enter(r, deciding(r, j->is), 3, &first);
    if (r->rank % 2 == 0)
        enter(r, other, 4, &second);
    job_run(r, j);
    sequence = r->comm->sequence;
    job_run(r, j);
    must_be(r->comm->sequence == sequence, "one rank's other buffer plays no part", r->rank);
    processes_barrier(p);
    if (r->rank % 2 != 0)
        enter(r, other, 4, &second);
    host_must(symwin_allreduce_with(r->comm, other, other, COUNT, SYMWIN_F32, SYMWIN_SUM, &twoshot,
                                    r->streams[0]),
              "symwin_allreduce_with");
    job_wait(r, 0);
    sequence = r->comm->sequence;
    job_run(r, j);
    must_be(r->comm->sequence == sequence, "nor when it is connected", r->rank);
    processes_barrier(p);
    leave(r, &first);
    leave(r, &second);
}

/* Gather and scatter use no registered buffer as a window, though an all-reduce has connected
 * it. */
static void not_where_ranks_may_differ(struct processes *p, struct rank *r)
{
    const symwin_collective_options twoshot = {.size = sizeof twoshot, .algo = SYMWIN_ALGO_TWOSHOT};
    struct ranges in, out;
    int s;

    enter(r, r->in, 9, &in);
    enter(r, r->out, 9, &out);
    host_must(symwin_allreduce_with(r->comm, r->in, r->out, COUNT, SYMWIN_F32, SYMWIN_SUM, &twoshot,
                                    r->streams[0]),
              "symwin_allreduce_with");
    for (s = 0; s < SHAPES; s++) {
        const struct job j = job_by(r, &shapes[s], shapes[s].algos[1]);

        must_be(is_connected(r, &j) == shape_connects(&shapes[s]), shapes[s].name, r->rank);
    }
    job_wait(r, 0);
    processes_barrier(p);
    leave(r, &in);
    leave(r, &out);
}

/* ---- calls that fail on one rank ------------------------------------------------------------- */

/* The last rank passes an address that is not aligned: all get its failure. Then the call works. */
static void fails_on_one(struct processes *p, struct rank *r, const struct job *j)
{
    struct ranges ranges;
    struct rank at = *r;
    char words[32];

    if (r->nranks == 1)
        return;
    enter(r, deciding(r, j->is), 5, &ranges);
    snprintf(words, sizeof words, "rank %d: ", r->nranks - 1);
    if (r->rank == r->nranks - 1) {
        at.in += j->is->decides == IN ? 2 : 0;
        at.out += j->is->decides == OUT ? 2 : 0;
    }
    must_be(job_call(&at, j, 0) == SYMWIN_INVALID && host_error_has(words) &&
                host_error_has("aligned"),
            "a failure is that of all", r->rank);
    job_run(r, j);
    must_be(is_connected(r, j), "the next call", r->rank);
    processes_barrier(p);
    leave(r, &ranges);
}

/* ---- captures -------------------------------------------------------------------------------- */

static CUgraphExec capture(const struct rank *r, const struct job *j)
{
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(job_call(r, j, 0), "a captured call");
    return host_end_capture(r->streams[0], NULL);
}

static void replay(const struct rank *r, struct job *j, CUgraphExec exec)
{
    int turn;

    for (turn = 0; turn < 2; turn++) {
        j->seed += 2;
        job_prepare(r, j);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(job_is_right(r, j), "a replay", r->rank);
    }
}

static int is_busy(void *ptr, int now)
{
    symwin_status status = symwin_mem_free(ptr);
    int turns = 0;

    for (; status == SYMWIN_BUSY && !now && turns < 5000; turns++) {
        host_pause_ms(1);
        status = symwin_mem_free(ptr);
    }
    return status == SYMWIN_BUSY;
}

/* A captured call's graph holds the buffer that decides, and no other: one that nobody registered,
 * and one that was deregistered after the capture. Of what the root alone has it holds what lies in
 * a connection, also if the buffer that decides is in a window of symwin_window_register(). */
static void graphs(struct processes *p, struct rank *r, const struct job *j)
{
    const symwin_collective_options twoshot = {.size = sizeof twoshot, .algo = SYMWIN_ALGO_TWOSHOT};
    const int told = j->is->root_sends || j->is->root_receives;
    enum { UNREGISTERED, BOTH_REGISTERED, IN_WINDOW, WAYS } way;

    for (way = UNREGISTERED; way < WAYS; way++) {
        const int holds_told = way != UNREGISTERED && told && r->rank == j->root;
        struct rank own = *r;
        struct ranges ranges[2];
        struct job job = *j;
        symwin_window *window = NULL;
        unsigned char *other, *decides;
        CUgraphExec exec;

        own.in = host_alloc(r->device, ROOM);
        own.out = host_alloc(r->device, ROOM);
        decides = deciding(&own, j->is);
        other = decides == own.in ? own.out : own.in;
        if (way == BOTH_REGISTERED)
            enter(&own, decides, 6, &ranges[0]);
        if (way == IN_WINDOW)
            host_must(symwin_window_register(r->comm, decides, ROOM, 0, &window), "register");
        if (way != UNREGISTERED) {
            enter(&own, other, 6, &ranges[1]);
            host_must(symwin_allreduce_with(r->comm, other, other, COUNT, SYMWIN_F32, SYMWIN_SUM,
                                            &twoshot, r->streams[0]),
                      "symwin_allreduce_with");
            job_wait(r, 0);
        }
        exec = capture(&own, &job);
        must_be(is_connected(&own, j) == (way != UNREGISTERED), "calls outside", r->rank);
        replay(&own, &job, exec);
        processes_barrier(p);
        if (way == BOTH_REGISTERED)
            leave(&own, &ranges[0]);
        if (way != UNREGISTERED) {
            leave(&own, &ranges[1]);
            replay(&own, &job, exec);
        }
        processes_barrier(p);
        must_be(is_busy(decides, 1), "a graph, or a window, holds the buffer", r->rank);
        must_be(is_busy(other, 1) == holds_told, "a graph holds the root's other buffer alone",
                r->rank);
        processes_barrier(p);
        host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        if (way == IN_WINDOW)
            host_must(symwin_window_deregister(r->comm, window), "deregister");
        must_be(!is_busy(decides, 0) && (!holds_told || !is_busy(other, 0)), "until it is gone",
                r->rank);
    }
}

/* A captured call that goes by pushes agrees with nobody: rank 0 alone captures it. */
static void captured_alone(struct processes *p, struct rank *r)
{
    const uint64_t sequence = r->comm->sequence;
    int s;

    for (s = 0; s < SHAPES && r->rank == 0; s++) {
        struct job j = job_by(r, &shapes[s], SYMWIN_ALGO_AUTO);

        j.count = 2;
        host_must_cuda(sw_drv.cuGraphExecDestroy(capture(r, &j)), "cuGraphExecDestroy");
    }
    must_be(r->comm->sequence == sequence, "a small captured call waits for nobody", r->rank);
    processes_barrier(p);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Whether the thread's captures forbid what they did before. */
static int has_its_capture_mode(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL; /* each thread begins with it */

    host_must_cuda(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "exchange");
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* A group connects the buffers of all its calls before it launches the first. */
static void in_a_group(struct processes *p, struct rank *r, const struct job *j)
{
    struct job jobs[3] = {*j, *j, *j};
    struct ranges ranges[2];
    uint64_t sequence;
    int k, turn;

    enter(r, r->in, 7, &ranges[0]);
    enter(r, r->out, 7, &ranges[1]);
    for (turn = 0; turn < 2; turn++) {
        for (k = 0; k < 3; k++) {
            jobs[k].in += (size_t)k * ROOM / 4;
            jobs[k].out += (size_t)k * ROOM / 4;
            jobs[k].count = 64;
            jobs[k].options.algo = k == 1 ? j->options.algo : SYMWIN_ALGO_AUTO;
            job_prepare(r, &jobs[k]);
        }
        sequence = r->comm->sequence;
        host_must(symwin_group_begin(), "symwin_group_begin");
        for (k = 0; k < 3; k++)
            host_must(job_call(r, &jobs[k], k % 2), "a call of a group");
        must_be(r->comm->sequence == sequence, "nobody agrees before the end", r->rank);
        host_must(symwin_group_end(), "symwin_group_end");
        must_be((r->comm->sequence > sequence) == (turn == 0), "the group agrees once", r->rank);
        must_be(has_its_capture_mode(), "the thread's capture mode", r->rank);
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (k = 0; k < 3; k++) {
            must_be(job_is_right(r, &jobs[k]), "a group", r->rank);
            jobs[k].in = jobs[k].out = GUARD;
        }
    }
    processes_barrier(p);
    leave(r, &ranges[0]);
    leave(r, &ranges[1]);
}

/* The buffers of a group's second call cannot become windows, since its offsets differ. The ranks
 * know that only when they have agreed, and launch nothing. With another communicator in the group,
 * they agree in a thread. */
static void refused_beside(struct processes *p, struct rank *r, const struct job *j,
                           symwin_comm *other_comm)
{
    unsigned char *const memory = host_alloc(r->device, ROOM), *const other = memory + ROOM / 2;
    unsigned char *const own = memory + (r->rank == 0 ? GUARD : 2 * GUARD);
    const int by_in = j->is->decides == IN;
    struct job first = *j, second = *j;
    struct ranges ranges;
    uint32_t before;

    enter(r, memory, 8, &ranges);
    first.options.algo = SYMWIN_ALGO_ONESHOT;
    second.count = 8;
    job_prepare(r, &first);
    before = host_get_u32(r->device, job_out(r, &first));
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(job_call(r, &first, 0), "a call of a group");
    host_must(job_call_on(r, &second, by_in ? own : other, by_in ? other : own, r->streams[0]),
              "a call of a group");
    if (other_comm != NULL)
        host_must(symwin_barrier(other_comm, r->streams[1]), "a call of a group");
    must_be(symwin_group_end() == SYMWIN_UNSUPPORTED && host_error_has("in a window"),
            "no windows after all", r->rank);
    job_wait(r, 0);
    must_be(host_get_u32(r->device, job_out(r, &first)) == before, "nothing was launched", r->rank);
    processes_barrier(p);
    leave(r, &ranges);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    job_run(r, &first);
}

/* A captured group that was refused leaves nothing in the graph: it does not hold the buffers. */
static void refused_in_a_capture(struct processes *p, struct rank *r)
{
    struct job job = job_by(r, &shapes[0], shapes[0].algos[1]);
    struct rank own = *r;
    struct ranges ranges;
    unsigned char *decides;
    CUgraphExec exec;

    own.in = host_alloc(r->device, ROOM);
    own.out = host_alloc(r->device, ROOM);
    decides = deciding(&own, job.is);
    enter(&own, decides, 10, &ranges);
    job_run(&own, &job);
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(job_call(&own, &job, 0), "a captured call of a group");
    must_be(symwin_broadcast(r->comm, NULL, NULL, 1, SYMWIN_U8, 0, r->streams[0]) != SYMWIN_OK,
            "a wrong call", r->rank);
    must_be(symwin_group_end() != SYMWIN_OK && host_error_has("nothing was launched"),
            "the group is refused", r->rank);
    exec = host_end_capture(r->streams[0], NULL);
    processes_barrier(p);
    leave(&own, &ranges);
    must_be(!is_busy(decides, 0), "a refused group holds no buffer", r->rank);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must(symwin_mem_free(decides == own.in ? own.out : own.in), "symwin_mem_free");
}

/* A captured group with an all-reduce, on which the ranks agree. The last rank's buffer is too
 * short for it, or no device memory: the group fails on all ranks. */
static void wrong_in_a_capture(struct processes *p, struct rank *r)
{
    unsigned char *const memory = host_alloc(r->device, 64);
    char on_host[64];
    CUgraphExec exec;
    int turn;

    for (turn = 0; turn < 2; turn++) {
        void *const odd = turn == 0 ? (void *)memory : (void *)on_host;

        host_must_cuda(
            sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            "cuStreamBeginCapture");
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_allreduce(r->comm, r->in, r->rank == r->nranks - 1 ? odd : r->out,
                                   turn == 0 ? 17 : 1, SYMWIN_U32, SYMWIN_SUM, r->streams[0]),
                  "a captured call of a group");
        must_be(symwin_group_end() == SYMWIN_INVALID, "a wrong buffer in a captured group",
                r->rank);
        exec = host_end_capture(r->streams[0], NULL);
        host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    }
    processes_barrier(p);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* An all-reduce that rank 0 makes in place, and others do not, captured or on registered buffers:
 * they become no windows for it. */
static void in_place_on_some(struct processes *p, struct rank *r)
{
    struct rank own = *r;
    uint32_t word, *in, *out;
    CUgraphExec exec = NULL;
    struct ranges ranges[2];
    int turn;

    own.in = host_alloc(r->device, ROOM);
    own.out = host_alloc(r->device, ROOM);
    in = (uint32_t *)(void *)own.in;
    out = r->rank == 0 ? in : (uint32_t *)(void *)own.out;
    for (turn = 0; turn < 4; turn++) {
        CUstream stream = r->streams[0];

        if (turn == 2) {
            enter(&own, own.in, 3, &ranges[0]);
            enter(&own, own.out, 4, &ranges[1]);
        }
        for (word = 0; word < COUNT; word += COUNT - 1)
            host_put_u32(r->device, (unsigned char *)(in + word),
                         word + (uint32_t)(r->rank * 1000 + turn));
        if (turn == 0)
            host_must_cuda(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                           "cuStreamBeginCapture");
        if (turn != 1)
            host_must(symwin_allreduce(r->comm, in, out, COUNT, SYMWIN_U32, SYMWIN_SUM, stream),
                      "in place on some ranks");
        if (turn == 0)
            exec = host_end_capture(stream, NULL);
        if (turn < 2)
            host_must_cuda(sw_drv.cuGraphLaunch(exec, stream), "cuGraphLaunch");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (word = 0; word < COUNT; word += COUNT - 1)
            must_equal(host_get_u32(r->device, (unsigned char *)(out + word)),
                       (uint32_t)r->nranks * (word + (uint32_t)turn) +
                           500u * (uint32_t)(r->nranks * (r->nranks - 1)),
                       "a sum", r->rank);
    }
    processes_barrier(p);
    leave(&own, &ranges[0]);
    leave(&own, &ranges[1]);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must(symwin_mem_free(own.in), "symwin_mem_free");
    host_must(symwin_mem_free(own.out), "symwin_mem_free");
}

static void refused_in_a_group(struct processes *p, struct rank *r, const struct job *j)
{
    refused_beside(p, r, j, NULL);
}

static void refused_in_a_thread(struct processes *p, struct rank *r)
{
    const struct job j = job_by(r, &shapes[0], shapes[0].algos[1]);
    symwin_comm *other = NULL;

    host_must(symwin_comm_split(r->comm, 0, r->rank, NULL, &other), "symwin_comm_split");
    refused_beside(p, r, &j, other);
    processes_barrier(p);
    symwin_comm_destroy(other);
    processes_barrier(p);
}

/* ---- ranks that disagree --------------------------------------------------------------------- */

/* The last rank has not registered its buffer: it cannot make the call, and the others are told
 * which rank did not come. */
static void alone(struct processes *p, int rank)
{
    const struct shape *is = &shapes[*(const int *)places_arg(p)];
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = SHORT_MS, .slot_bytes = SLOT};
    symwin_comm *first;
    struct ranges ranges;
    symwin_status status;
    struct job j;

    open_rank(p, &r, WAIT_MS);
    first = r.comm;
    host_must(symwin_comm_split(first, 0, rank, &options, &r.comm), "symwin_comm_split");
    j = job_by(&r, is, is->algos[1]);
    if (rank != r.nranks - 1)
        enter(&r, deciding(&r, is), 0, &ranges);
    processes_barrier(p);
    status = job_call(&r, &j, 0);
    if (rank == r.nranks - 1)
        must_be(status == SYMWIN_UNSUPPORTED && host_error_has("in a window"), "not registered",
                rank);
    else
        must_be(status == SYMWIN_TIMEOUT &&
                    host_error_has("rank 2 did not come to the agreement about registered buffers"),
                "the others", rank);
    processes_barrier(p);
    symwin_comm_destroy(r.comm);
    r.comm = first;
    close_rank(p, &r);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct sw_scope scope;

    open_rank(p, &r, WAIT_MS);
    host_must(sw_scope_enter(r.device, &scope), "scope");
    captured_alone(p, &r);
    each_algorithm(p, &r, once);
    if_it_makes_a_difference(p, &r);
    each_algorithm(p, &r, what_others_have);
    not_where_ranks_may_differ(p, &r);
    each_algorithm(p, &r, fails_on_one);
    each_algorithm(p, &r, in_a_group);
    each_algorithm(p, &r, graphs);
    if (r.nranks > 1)
        each_algorithm(p, &r, refused_in_a_group);
    if (r.nranks > 1)
        in_place_on_some(p, &r);
    if (r.nranks == 2) {
        refused_in_a_capture(p, &r);
        wrong_in_a_capture(p, &r);
        refused_in_a_thread(p, &r);
    }
    sw_scope_leave(&scope);
    close_rank(p, &r);
}

int main(void)
{
    struct processes *p;
    int s;

    everywhere(body, MOST_RANKS);
    for (s = 0; s < SHAPES; s += EACH) {
        if (!shape_connects(&shapes[s]))
            continue;
        tap_ok(places_run(&places_all[0], 3, alone, &s, &p), "%s: one rank has not registered",
               shapes[s].name);
        processes_free(p);
    }
    return tap_done();
}
