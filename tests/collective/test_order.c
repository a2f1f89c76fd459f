/* Several communicators on one set of devices. Calls made in the same order on all devices
 * complete, whatever streams they use. Each case holds up streams of two ranks so that their
 * devices reach the calls in opposite orders.
 *
 * A script has a letter for each call. a, b, c: a call of that communicator on its stream. A, B, C:
 * launches a graph of one such call there. x: launches, in the first stream, a graph with a call of
 * each communicator in parallel branches. Where waits are counted, a dot after a letter gives the
 * call one block, and "!" destroys the communicator.
 */
#include <ctype.h>

#include "harness.h"

#if defined(__SANITIZE_THREAD__) /* slow for each element */
enum { COUNT = 1 << 13 };
#else
enum { COUNT = 1 << 17 };
#endif

enum { RANKS = 2, MOST = 3, BYTES = 4 * COUNT };
enum { MORE_THAN_HALF = -1, TWO_FIFTHS = -2 }; /* of the blocks that fit on a device */

struct order_case {
    const char *name;
    const char *script;
    int comms;
    int blocks; /* of each call */
    symwin_algo algo;
    unsigned flags;
    int max_blocks;
    int shares;     /* ranks share a device */
    int splits;     /* all communicators but the first are splits of it */
    int threads;    /* each call is made by its own thread */
    int one_stream; /* for all communicators */
    int opposite;   /* rank 1 makes the calls in reverse order */
    int hangs;
    /* Multiprocessors that the case needs: more than an emulated device has under
     * ThreadSanitizer. */
    int wide;
};

static const struct order_case cases[] = {
    {.name = "nothing orders them: a deadlock",
     .script = "ab",
     .comms = 2,
     .blocks = MORE_THAN_HALF,
     .flags = SYMWIN_COMM_NO_ORDER,
     .hangs = 1},
    {.name = "eager, large grids", .script = "ab", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "eager, default grids", .script = "abab", .comms = 2},
    {.name = "several of each", .script = "aabbab", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "three", .script = "abcacb", .comms = 3, .blocks = MORE_THAN_HALF},
    {.name = "three, one of them small", .script = "abcacb", .comms = 3, .blocks = 20},
    {.name = "parts of one", .script = "abab", .comms = 2, .blocks = MORE_THAN_HALF, .splits = 1},
    {.name = "from several threads",
     .script = "abba",
     .comms = 2,
     .blocks = MORE_THAN_HALF,
     .threads = 1},
    {.name = "ranks that share a device", .script = "abab", .comms = 2, .shares = 1},
    {.name = "launches through graphs",
     .script = "abab",
     .comms = 2,
     .blocks = MORE_THAN_HALF,
     .flags = SYMWIN_COMM_GRAPH_LAUNCH},
    {.name = "captured in one graph", .script = "x", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "three in one graph", .script = "xx", .comms = 3, .blocks = MORE_THAN_HALF},
    {.name = "a graph each", .script = "AB", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "a graph each of three", .script = "ABCA", .comms = 3, .blocks = MORE_THAN_HALF},
    {.name = "a graph and eager", .script = "Ab", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "eager and a graph", .script = "aB", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "copies",
     .script = "abab",
     .comms = 2,
     .algo = SYMWIN_ALGO_COPIES,
     .blocks = MORE_THAN_HALF},
    {.name = "graphs of copies",
     .script = "AB",
     .comms = 2,
     .algo = SYMWIN_ALGO_COPIES,
     .blocks = MORE_THAN_HALF},
    {.name = "copies and a graph",
     .script = "aB",
     .comms = 2,
     .algo = SYMWIN_ALGO_COPIES,
     .blocks = MORE_THAN_HALF},
    {.name = "on one stream", .script = "abab", .comms = 2, .one_stream = 1},
    {.name = "few blocks, in opposite orders",
     .script = "ab",
     .comms = 2,
     .blocks = 1,
     .opposite = 1,
     .wide = 4},
    {.name = "limits that fit, in opposite orders",
     .script = "ab",
     .comms = 2,
     .max_blocks = 16,
     .opposite = 1,
     .wide = 32},
};

struct member {
    struct harness_team *team;
    const struct order_case *c;
    int rank, device;
    symwin_comm *comms[MOST];
    CUstream streams[MOST];
    float *data[MOST];
    symwin_window *windows[MOST];
    CUgraphExec graphs[MOST], all;
    int calls[MOST]; /* of each communicator so far */
    int small;       /* the next call has one block */
    struct sw_scope scope;
};

static struct {
    symwin_unique_id ids[MOST];
    _Atomic uint32_t *word; /* held streams wait for it; in pinned memory */
    CUdeviceptr address;
} shared;

/* ---- communicators and memory ---- */

static void create(struct member *m, int i)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .flags = m->c->flags | SYMWIN_COMM_NO_GRAPH_REGISTER,
                                         .timeout_ms = 20000,
                                         .kernel_timeout_ms = m->c->hangs ? 1500 : 20000,
                                         .slot_bytes = 1 << 20,
                                         .max_blocks = m->c->max_blocks};

    if (i > 0 && m->c->splits)
        host_must(symwin_comm_split(m->comms[0], 0, -m->rank, &options, &m->comms[i]), "split");
    else
        host_must(
            symwin_comm_create(&shared.ids[i], RANKS, m->rank, m->device, &options, &m->comms[i]),
            "symwin_comm_create");
}

static void open_member(struct member *m, struct harness_team *team, int rank,
                        const struct order_case *c)
{
    void *word = NULL;
    int i;

    *m = (struct member){.team = team, .c = c, .rank = rank};
    m->device = c->shares ? 0 : harness_device(rank);
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    if (rank == 0) {
        for (i = 0; i < MOST; i++)
            host_must(symwin_unique_id_create(&shared.ids[i]), "symwin_unique_id_create");
        host_must_cuda(sw_drv.cuMemHostAlloc(&word, 4096,
                                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                       "cuMemHostAlloc");
        shared.word = word;
        atomic_store(shared.word, 0);
        host_must_cuda(sw_drv.cuMemHostGetDevicePointer(&shared.address, word, 0), "address");
    }
    harness_barrier(team);
    for (i = 0; i < c->comms; i++) {
        create(m, i);
        m->data[i] = host_alloc(m->device, BYTES);
        host_must(symwin_window_register(m->comms[i], m->data[i], BYTES, 0, &m->windows[i]),
                  "symwin_window_register");
        if (i == 0 || !c->one_stream)
            host_must(symwin_stream_create(m->device, &m->streams[i]), "symwin_stream_create");
        else
            m->streams[i] = m->streams[0];
    }
}

static void close_member(struct member *m)
{
    int i;

    harness_barrier(m->team);
    for (i = 0; i < m->c->comms; i++) {
        if (m->graphs[i] != NULL)
            host_must_cuda(sw_drv.cuGraphExecDestroy(m->graphs[i]), "cuGraphExecDestroy");
        if (m->comms[i] != NULL)
            symwin_comm_destroy(m->comms[i]);
        if (i == 0 || !m->c->one_stream)
            host_must(symwin_stream_destroy(m->device, m->streams[i]), "symwin_stream_destroy");
    }
    if (m->all != NULL)
        host_must_cuda(sw_drv.cuGraphExecDestroy(m->all), "cuGraphExecDestroy");
    harness_barrier(m->team);
    for (i = 0; i < m->c->comms; i++)
        host_must(symwin_mem_free(m->data[i]), "symwin_mem_free");
    if (m->rank == 0) {
        for (i = 0; i < MOST; i++)
            symwin_unique_id_release(&shared.ids[i]);
        host_must_cuda(sw_drv.cuMemFreeHost((void *)shared.word), "cuMemFreeHost");
    }
    sw_scope_leave(&m->scope);
}

static void fill(const struct member *m, int i)
{
    static float values[RANKS][COUNT];
    int k;

    for (k = 0; k < COUNT; k++)
        values[m->rank][k] = (float)(m->rank + 1);
    host_must(host_copy(m->device, m->data[i], values[m->rank], BYTES), "fill");
}

/* The value is 1 + 2 after the first call, and each later call doubles it. */
static int is_right(const struct member *m, int i)
{
    static float values[RANKS][COUNT];
    const float want = m->calls[i] > 0 ? (float)(3 << (m->calls[i] - 1)) : (float)(m->rank + 1);
    int k, wrong = 0;

    host_must(host_copy(m->device, values[m->rank], m->data[i], BYTES), "read");
    for (k = 0; k < COUNT; k++)
        wrong += values[m->rank][k] != want;
    return wrong == 0;
}

/* ---- calls ---- */

/* More than half of the largest grid that the library accepts, so two such grids do not fit. The
 * error text for too many blocks has that number. */
static int many_blocks(const struct member *m)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = m->c->algo, .blocks = 100000};
    symwin_allreduce_info info;
    const char *text;

    if (symwin_allreduce_query(m->comms[0], m->data[0], m->data[0], COUNT, SYMWIN_F32, SYMWIN_SUM,
                               &options, &info) == SYMWIN_OK)
        return 0;
    text = strstr(symwin_last_error(), "asked for and ");
    return text != NULL ? atoi(text + 14) * 6 / 10 : 0;
}

static int multiprocessors;

static symwin_status call(const struct member *m, int i, CUstream stream)
{
    const int blocks = m->small                         ? 1
                       : m->c->blocks == MORE_THAN_HALF ? many_blocks(m)
                       : m->c->blocks == TWO_FIFTHS     ? multiprocessors * 2 / 5
                                                        : m->c->blocks;
    const symwin_allreduce_options options = {
        .size = sizeof options,
        .algo = m->c->algo,
        .blocks = m->c->blocks > 1 && i == 2 ? 2 : blocks,
        .threads = m->c->blocks < 0 ? 32 : 0,
    };

    return symwin_allreduce_with(m->comms[i], m->data[i], m->data[i], COUNT, SYMWIN_F32, SYMWIN_SUM,
                                 &options, stream);
}

struct caller {
    struct member *m;
    int i;
};

static void *call_in_thread(void *arg)
{
    const struct caller *caller = arg;

    host_must(call(caller->m, caller->i, caller->m->streams[caller->i]), "a call of a thread");
    return NULL;
}

static void make_call(struct member *m, int i)
{
    struct caller caller = {m, i};
    pthread_t thread;

    m->calls[i]++;
    if (!m->c->threads) {
        host_must(call(m, i, m->streams[i]), "a call");
        return;
    }
    if (pthread_create(&thread, NULL, call_in_thread, &caller) != 0)
        abort();
    pthread_join(thread, NULL);
}

/* Makes `to` wait for `from`, and join its capture. */
static void follow(CUstream from, CUstream to)
{
    CUevent event = NULL;

    host_must_cuda(sw_drv.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    host_must_cuda(sw_drv.cuEventRecord(event, from), "cuEventRecord");
    host_must_cuda(sw_drv.cuStreamWaitEvent(to, event, 0), "cuStreamWaitEvent");
    host_must_cuda(sw_drv.cuEventDestroy(event), "cuEventDestroy");
}

/* A graph with a call of each of the communicators `first` to `last`. */
static CUgraphExec capture(const struct member *m, int first, int last)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    int i;

    host_must_cuda(sw_drv.cuStreamBeginCapture(m->streams[first], CU_STREAM_CAPTURE_MODE_RELAXED),
                   "begin");
    for (i = first + 1; i <= last; i++)
        follow(m->streams[first], m->streams[i]);
    for (i = first; i <= last; i++)
        host_must(call(m, i, m->streams[i]), "a captured call");
    for (i = first + 1; i <= last; i++)
        follow(m->streams[i], m->streams[first]);
    host_must_cuda(sw_drv.cuStreamEndCapture(m->streams[first], &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    host_must(sw_graph_upload(exec, m->streams[first]), "upload");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return exec;
}

static void capture_all(struct member *m)
{
    int i;

    for (i = 0; i < m->c->comms; i++)
        if (strchr(m->c->script, 'A' + i) != NULL)
            m->graphs[i] = capture(m, i, i);
    if (strchr(m->c->script, 'x') != NULL)
        m->all = capture(m, 0, m->c->comms - 1);
}

static void step(struct member *m, char what)
{
    const int i = what == 'x' ? 0 : tolower(what) - 'a';
    int k;

    if (what == 'x') {
        for (k = 0; k < m->c->comms; k++)
            m->calls[k]++;
        host_must_cuda(sw_drv.cuGraphLaunch(m->all, m->streams[0]), "cuGraphLaunch");
    } else if (isupper(what)) {
        m->calls[i]++;
        host_must_cuda(sw_drv.cuGraphLaunch(m->graphs[i], m->streams[i]), "cuGraphLaunch");
    } else {
        make_call(m, i);
    }
}

/* Holds streams until all calls are made: on rank 0 those late in the script, on rank 1 those early
 * in it. */
static void hold(CUstream stream)
{
    host_must_cuda(sw_drv.cuStreamWaitValue32(stream, shared.address, 1, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
}

static void hold_streams(const struct member *m)
{
    int i;

    for (i = 0; i < m->c->comms && !m->c->one_stream; i++)
        if (m->rank == 0 ? i > 0 : i == 0)
            hold(m->streams[i]);
}

static void release_streams(const struct member *m)
{
    harness_barrier(m->team);
    host_pause_ms(50); /* calls that are not held up reach their device */
    harness_barrier(m->team);
    if (m->rank == 0)
        atomic_store(shared.word, 1);
}

static symwin_status finish(const struct member *m)
{
    symwin_status status = SYMWIN_OK;
    int i;

    for (i = 0; i < m->c->comms; i++)
        host_must(symwin_stream_synchronize(m->device, m->streams[i]), "synchronize");
    for (i = 0; i < m->c->comms && status == SYMWIN_OK; i++)
        if (m->comms[i] != NULL)
            status = symwin_comm_check(m->comms[i]);
    return status;
}

static void run_case(struct harness_team *team, int rank, void *arg)
{
    const struct order_case *c = arg;
    const int steps = (int)strlen(c->script);
    struct member m;
    symwin_status status;
    int i, right = 1;

    open_member(&m, team, rank, c);
    for (i = 0; i < c->comms && !c->hangs; i++) {
        make_call(&m, i); /* all are used before the first capture */
        m.calls[i] = 0;
    }
    (void)finish(&m);
    harness_barrier(team);
    for (i = 0; i < c->comms; i++)
        fill(&m, i);
    capture_all(&m);
    harness_barrier(team);
    hold_streams(&m);
    for (i = 0; i < steps; i++)
        step(&m, c->script[c->opposite && rank == 1 ? steps - 1 - i : i]);
    release_streams(&m);
    status = finish(&m);
    for (i = 0; i < c->comms && !c->hangs; i++)
        right = is_right(&m, i) && right;
    tap_ok(right && (c->hangs ? status == SYMWIN_TIMEOUT : status == SYMWIN_OK), "%s, rank %d%s%s",
           c->name, rank, status == SYMWIN_OK || c->hangs ? "" : ": ",
           status == SYMWIN_OK || c->hangs ? "" : symwin_last_error());
    close_member(&m);
}

/* ---- ends ---- */

static const struct order_case two = {.name = "two", .comms = 2, .blocks = MORE_THAN_HALF};
static const struct order_case three = {.name = "three", .comms = 3, .blocks = MORE_THAN_HALF};
static const struct order_case narrow = {.name = "narrow", .comms = 3, .max_blocks = 20};

/* The first call waits for a peer that does not come, and the second for the first. */
static void run_abort(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    (void)arg;
    open_member(&m, team, rank, &two);
    fill(&m, 1);
    if (rank == 0)
        host_must(call(&m, 0, m.streams[0]), "a call that no peer answers");
    make_call(&m, 1);
    host_pause_ms(50);
    harness_barrier(team);
    if (rank == 0)
        host_must(symwin_comm_abort(m.comms[0]), "symwin_comm_abort");
    host_must(symwin_stream_synchronize(m.device, m.streams[1]), "synchronize");
    host_expect("after an abort of what it waited for", symwin_comm_check(m.comms[1]), SYMWIN_OK,
                "");
    tap_ok(is_right(&m, 1), "and right, rank %d", rank);
    host_must(symwin_stream_synchronize(m.device, m.streams[0]), "synchronize");
    close_member(&m);
}

/* A call with so many blocks, which begins no earlier than it must. */
static void call_small(const struct member *m, int i, int blocks)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT, .blocks = blocks, .threads = 32};

    host_must(symwin_allreduce_with(m->comms[i], m->data[i], m->data[i], COUNT, SYMWIN_F32,
                                    SYMWIN_SUM, &options, m->streams[i]),
              "a call");
}

/* Whether the stream finishes. If it does not, this releases it. */
static int comes_to_its_end(const struct member *m, int i, const symwin_comm *waited, uint32_t met)
{
    enum { MOST_MS = 20000 };
    int ms = 0;

    for (; ms < MOST_MS && sw_drv.cuStreamQuery(m->streams[i]) != CUDA_SUCCESS; ms++)
        host_pause_ms(1);
    if (ms == MOST_MS)
        host_put_u32(m->device, (void *)(uintptr_t)waited->done_address, met);
    host_must(symwin_stream_synchronize(m->device, m->streams[i]), "synchronize");
    host_put_u32(m->device, (void *)(uintptr_t)waited->done_address, waited->done);
    return ms < MOST_MS;
}

/* A communicator's block count advances by half of its range and more. Only then another
 * communicator waits for the count noted at the beginning of the generation. */
static void run_around(struct harness_team *team, int rank, void *arg)
{
    const uint32_t *blocks = arg;
    struct member m;
    uint32_t before;

    open_member(&m, team, rank, &narrow);
    call_small(&m, 0, 16);
    call_small(&m, 1, 2);
    before = m.comms[1]->done;
    call_small(&m, 2, 20); /* does not fit beside both, though each fits beside it */
    call_small(&m, 1, 2);
    (void)finish(&m);
    harness_barrier(team);
    host_count_on(m.comms[1], *blocks);
    call_small(&m, 0, 2);
    tap_ok(m.comms[0]->calls->generation == m.comms[1]->calls->generation &&
               m.comms[1]->calls->before_done == before &&
               comes_to_its_end(&m, 0, m.comms[1], before),
           "%u blocks later, rank %d", *blocks, rank);
    (void)finish(&m);
    close_member(&m);
}

static CUresult (*plain_wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static CUresult (*plain_unmap)(CUdeviceptr, size_t);
static _Atomic CUdeviceptr waited[RANKS]; /* by the streams of each device */
static atomic_int gone[RANKS];

static CUresult see_wait(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    CUdevice device = 0;

    (void)sw_drv.cuCtxGetDevice(&device);
    waited[device % RANKS] = address;
    return plain_wait(stream, address, value, flags);
}

static CUresult see_unmap(CUdeviceptr ptr, size_t bytes)
{
    int i;

    for (i = 0; i < RANKS; i++)
        if (waited[i] - ptr < bytes)
            atomic_store(&gone[i], 1);
    return plain_unmap(ptr, bytes);
}

/* The counter that a stream waits for outlives its communicator and serves another one. The
 * emulated driver waits for the device before it unmaps, so the wait has ended by then; on hardware
 * it need not have. */
static void run_destroyed(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    int round;

    (void)arg;
    open_member(&m, team, rank, &three);
    symwin_comm_destroy(m.comms[2]);
    m.comms[2] = NULL;
    harness_barrier(team);
    fill(&m, 1);
    fill(&m, 2);
    for (round = 0; round < 3; round++) {
        make_call(&m, round == 0 ? 0 : 2);
        make_call(&m, 1);
        host_must(symwin_stream_synchronize(m.device, m.streams[1]), "synchronize");
        symwin_comm_destroy(m.comms[round == 0 ? 0 : 2]);
        m.comms[round == 0 ? 0 : 2] = NULL;
        tap_ok(waited[m.device] != 0 && !gone[m.device],
               "what a stream waits for is there when its communicator has gone, rank %d", rank);
        harness_barrier(team);
        if (rank == 0)
            host_must(symwin_unique_id_create(&shared.ids[2]), "symwin_unique_id_create");
        harness_barrier(team);
        create(&m, 2);
    }
    make_call(&m, 2);
    tap_ok(finish(&m) == SYMWIN_OK && is_right(&m, 1) && is_right(&m, 2),
           "calls that took turns with those of communicators that went, rank %d", rank);
    close_member(&m);
}

static void destroyed(void)
{
    plain_wait = sw_drv.cuStreamWaitValue32;
    plain_unmap = sw_drv.cuMemUnmap;
    sw_drv.cuStreamWaitValue32 = see_wait;
    sw_drv.cuMemUnmap = see_unmap;
    harness_run(RANKS, run_destroyed, NULL);
    sw_drv.cuStreamWaitValue32 = plain_wait;
    sw_drv.cuMemUnmap = plain_unmap;
}

/* ---- what it costs ---- */

static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static atomic_int waits, early;

static CUresult count_wait(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    atomic_fetch_add(&waits, 1);
    return plain_wait(stream, address, value, flags);
}

static CUresult count_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                             void **extra)
{
    atomic_fetch_add(&early, (int)config->numAttrs);
    return plain_launch(config, function, params, extra);
}

static const struct cost_case {
    struct order_case c;
    int waits, early; /* for each rank */
} costs[] = {
    {{.name = "one", .script = "aaaa", .comms = 1}, 0, 4},
    {{.name = "one of two", .script = "aaaa", .comms = 2}, 0, 4},
    {{.name = "two, small", .script = "abababab", .comms = 2, .blocks = 1, .wide = 4}, 0, 8},
    {{.name = "two, large", .script = "ababab", .comms = 2}, 5, 1},
    {{.name = "two, large, several of each", .script = "aaabbb", .comms = 2}, 1, 5},
    {{.name = "two on one stream", .script = "ababab", .comms = 2, .one_stream = 1}, 0, 6},
    {{.name = "two that fit by max_blocks",
      .script = "ababab",
      .comms = 2,
      .max_blocks = 16,
      .wide = 32},
     0,
     0},
    {{.name = "two that are not ordered",
      .script = "aabb",
      .comms = 2,
      .flags = SYMWIN_COMM_NO_ORDER},
     0,
     4},
    {{.name = "a graph of few blocks", .script = "bA", .comms = 2, .blocks = 1, .wide = 4}, 0, 3},
    {{.name = "a graph of many", .script = "bA", .comms = 2}, 0, 1},
    {{.name = "a graph beside one that made no call", .script = "A", .comms = 2}, 0, 2},
    {{.name = "a graph of the only one, then another", .script = "Ab", .comms = 2}, 0, 3},
    {{.name = "room for kernels that begin early",
      .script = "ab",
      .comms = 2,
      .blocks = TWO_FIFTHS,
      .wide = 16},
     1,
     1},
    {{.name = "a small call behind a large one",
      .script = "aa.b",
      .comms = 2,
      .blocks = TWO_FIFTHS,
      .wide = 16},
     1,
     2},
    {{.name = "two that do not fit beside a graph",
      .script = "bcAbc",
      .comms = 3,
      .blocks = TWO_FIFTHS,
      .wide = 16},
     3,
     1},
    {{.name = "behind one that was destroyed",
      .script = "abc!ab",
      .comms = 3,
      .blocks = 1,
      .wide = 8},
     2,
     3},
    {{.name = "one where ranks share a device", .script = "aaaa", .comms = 1, .shares = 1}, 0, 0},
    {{.name = "two where ranks share a device", .script = "abab", .comms = 2, .shares = 1}, 3, 0},
};

static void run_cost(struct harness_team *team, int rank, void *arg)
{
    const struct cost_case *cost = arg;
    struct member m;
    const char *at;

    open_member(&m, team, rank, &cost->c);
    harness_barrier(team);
    for (at = cost->c.script; *at != '\0'; at++) {
        m.small = at[1] == '.';
        if (*at == '!') {
            symwin_comm_destroy(m.comms[at[-1] - 'a']);
            m.comms[at[-1] - 'a'] = NULL;
            harness_barrier(team); /* unmapping waits for kernels, which would wait for this rank */
        } else if (isupper(*at))   /* captures two calls and launches none */
            for (int i = 0; i < 2; i++)
                host_must_cuda(sw_drv.cuGraphExecDestroy(capture(&m, 0, 0)), "cuGraphExecDestroy");
        else
            make_call(&m, *at - 'a');
        at += m.small;
    }
    tap_ok(finish(&m) == SYMWIN_OK, "%s, rank %d", cost->c.name, rank);
    close_member(&m);
}

static void check_cost(struct cost_case *cost)
{
    plain_wait = sw_drv.cuStreamWaitValue32;
    plain_launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuStreamWaitValue32 = count_wait;
    sw_drv.cuLaunchKernelEx = count_launch;
    atomic_store(&waits, 0);
    atomic_store(&early, 0);
    harness_run(RANKS, run_cost, cost);
    sw_drv.cuStreamWaitValue32 = plain_wait;
    sw_drv.cuLaunchKernelEx = plain_launch;
    tap_ok(atomic_load(&waits) == RANKS * cost->waits, "%s: %d waits, %d are right", cost->c.name,
           atomic_load(&waits), RANKS * cost->waits);
    tap_ok(atomic_load(&early) == RANKS * cost->early, "%s: %d launches begin early, %d are right",
           cost->c.name, atomic_load(&early), RANKS * cost->early);
}

static int is_wanted(const struct order_case *c, const char *only)
{
    if (strstr(c->name, only) == NULL)
        return 0;
    if (c->wide > multiprocessors)
        printf("# left out, for want of multiprocessors: %s\n", c->name);
    return c->wide <= multiprocessors;
}

int main(int argc, char **argv)
{
    static uint32_t blocks[] = {0, 1u << 30, (1u << 31) - 4, 1u << 31, 3u << 30, UINT32_MAX};
    const char *only = argc > 1 ? argv[1] : "";
    struct harness_leaks before;
    size_t i;

    setenv("SYMWIN_TUNING", "0", 1);
    harness_start();
    if (!sw_driver_is_emulated())
        tap_skip_all("deadlocks are for the emulated driver");
    host_must_cuda(
        sw_drv.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
        "cuDeviceGetAttribute");
    before = harness_leaks_now();
    for (i = 0; i < sizeof costs / sizeof costs[0]; i++) {
        struct cost_case cost = costs[i];

        if (!cost.c.shares && is_wanted(&cost.c, only))
            check_cost(&cost);
    }
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct order_case c = cases[i];

        if (!c.shares && is_wanted(&c, only))
            harness_run(RANKS, run_case, &c);
    }
    harness_run(RANKS, run_abort, NULL);
    for (i = 0; i < sizeof blocks / sizeof blocks[0] && multiprocessors >= 32; i++)
        harness_run(RANKS, run_around, &blocks[i]);
    destroyed();
    /* Last: from here on, the library takes each thread for a rank. */
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct order_case c = cases[i];

        if (c.shares && is_wanted(&c, only))
            harness_run(RANKS, run_case, &c);
    }
    for (i = 0; i < sizeof costs / sizeof costs[0]; i++) {
        struct cost_case cost = costs[i];

        if (cost.c.shares && is_wanted(&cost.c, only))
            check_cost(&cost);
    }
    harness_no_leaks("communicators beside each other", &before);
    return tap_done();
}
