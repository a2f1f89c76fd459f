/* Ranks with several communicators on one set of devices, for the tests of their order.
 *
 * A script has a letter for each call. a, b, c: a call of that communicator on its stream. A, B, C:
 * launches a graph of one such call there. x: launches, in the first stream, a graph with a call of
 * each communicator in parallel branches. Where waits are counted, a dot after a letter gives the
 * call one block, and "!" destroys the communicator.
 */
#ifndef SYMWIN_TESTS_ORDER_H
#define SYMWIN_TESTS_ORDER_H

#include <ctype.h>

#include "harness.h"

/* Elements for each block of the largest grid: a block without any ends before it waits. */
#if defined(__SANITIZE_THREAD__) /* slow for each element, and a smaller device */
enum { COUNT = 1 << 13 };
#else
enum { COUNT = 1 << 17 };
#endif

enum { RANKS = 2, MOST = 3, BYTES = 4 * COUNT };
enum { FEW = COUNT < 1 << 15 ? COUNT : 1 << 15 };        /* one for each thread of a part */
enum { MORE_THAN_HALF = -1, TWO_FIFTHS = -2, ALL = -3 }; /* of the blocks that fit on a device */

struct order_case {
    const char *name;
    const char *script;
    int comms;
    int blocks; /* of each call */
    int count;  /* of elements; 0: COUNT */
    symwin_algo algo;
    unsigned flags;
    int max_blocks;
    int shares; /* ranks share a device */
    /* The second communicator has twice as many ranks, two on each device. It is created before the
     * first one, or (LATE) after it. APART: before, and the first one's ranks are other threads. */
    enum { EARLY = 1, LATE, APART } crowded;
    int splits;     /* all communicators but the first are splits of it */
    int threads;    /* each call is made by its own thread */
    int one_stream; /* for all communicators */
    int opposite;   /* rank 1 makes the calls in reverse order */
    int hangs;
    /* A call is a group of two broadcasts, from each rank; or of a send and a receive. */
    enum { BROADCASTS = 1, MESSAGES } groups;
    /* Multiprocessors that the case needs: more than an emulated device has under
     * ThreadSanitizer. */
    int wide;
};

static int ranks_of(const struct order_case *c, int i)
{
    return c->crowded && i == 1 ? 2 * RANKS : RANKS;
}

/* The rank that a thread has in communicator i; -1: none. */
static int rank_in(const struct order_case *c, int thread, int i)
{
    const int rank = c->crowded == APART && i == 1 ? thread - RANKS : thread;

    return rank < ranks_of(c, i) ? rank : -1;
}

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
    /* On the emulated driver, the streams of crowded cases and of groups have a part of a device
     * each, which few blocks fill. */
    CUgreenCtx parts[RANKS];
    unsigned in_part; /* multiprocessors; 0: streams have whole devices */
} shared;

static int multiprocessors;

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
        host_must(symwin_comm_create(&shared.ids[i], ranks_of(m->c, i), rank_in(m->c, m->rank, i),
                                     m->device, &options, &m->comms[i]),
                  "symwin_comm_create");
}

static void make_stream(struct member *m, int i)
{
    if (shared.in_part > 0)
        host_must_cuda(sw_drv.cuGreenCtxStreamCreate(&m->streams[i], shared.parts[m->device],
                                                     CU_STREAM_NON_BLOCKING, 0),
                       "cuGreenCtxStreamCreate");
    else
        host_must(symwin_stream_create(m->device, &m->streams[i]), "symwin_stream_create");
}

static void end_stream(const struct member *m, int i)
{
    if (shared.in_part > 0)
        host_must_cuda(sw_drv.cuStreamDestroy(m->streams[i]), "cuStreamDestroy");
    else
        host_must(symwin_stream_destroy(m->device, m->streams[i]), "symwin_stream_destroy");
}

/* What the rank needs for its calls on a communicator, if it is in it. */
static void open_comm(struct member *m, int i)
{
    if (rank_in(m->c, m->rank, i) < 0)
        return;
    create(m, i);
    host_must(symwin_window_register(m->comms[i], m->data[i], BYTES, 0, &m->windows[i]),
              "symwin_window_register");
    if (i == 0 || !m->c->one_stream)
        make_stream(m, i);
    else
        m->streams[i] = m->streams[0];
}

static void open_member(struct member *m, struct harness_team *team, int rank,
                        const struct order_case *c)
{
    void *word = NULL;
    int i;

    *m = (struct member){.team = team, .c = c, .rank = rank};
    m->device = c->crowded ? rank % RANKS : c->shares ? 0 : harness_device(rank);
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
        shared.in_part = 0;
        for (i = 0; i < RANKS && (c->crowded || c->groups) && sw_driver_is_emulated(); i++)
            shared.parts[i] = host_make_part(i, c->crowded == APART ? 3 : 2, &shared.in_part);
    }
    harness_barrier(team);
    for (i = 0; i < c->comms; i++)
        m->data[i] = host_alloc(m->device, BYTES);
    for (i = 0; i < c->comms; i++)
        open_comm(m, c->crowded && c->crowded != LATE ? c->comms - 1 - i : i);
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
        if (m->streams[i] != NULL && (i == 0 || !m->c->one_stream))
            end_stream(m, i);
    }
    if (m->all != NULL)
        host_must_cuda(sw_drv.cuGraphExecDestroy(m->all), "cuGraphExecDestroy");
    harness_barrier(m->team);
    for (i = 0; i < m->c->comms; i++)
        host_must(symwin_mem_free(m->data[i]), "symwin_mem_free");
    if (m->rank == 0) {
        for (i = 0; i < MOST; i++)
            symwin_unique_id_release(&shared.ids[i]);
        for (i = 0; i < RANKS && shared.in_part > 0; i++)
            host_must_cuda(sw_drv.cuGreenCtxDestroy(shared.parts[i]), "cuGreenCtxDestroy");
        host_must_cuda(sw_drv.cuMemFreeHost((void *)shared.word), "cuMemFreeHost");
    }
    sw_scope_leave(&m->scope);
}

static int count_of(const struct order_case *c)
{
    return c->count > 0 ? c->count : COUNT;
}

static void fill(const struct member *m, int i)
{
    static float values[3 * RANKS][COUNT];
    const int rank = rank_in(m->c, m->rank, i);
    int k;

    if (rank < 0)
        return;
    for (k = 0; k < COUNT; k++)
        values[m->rank][k] = (float)(rank + 1);
    host_must(host_copy(m->device, m->data[i], values[m->rank], BYTES), "fill");
}

/* The value is 1 + 2 + ... after the first call, and each later call multiplies it. */
static int is_right(const struct member *m, int i)
{
    static float values[3 * RANKS][COUNT];
    const int ranks = ranks_of(m->c, i), rank = rank_in(m->c, m->rank, i);
    float want = (float)(rank + 1);
    int k, wrong = 0;

    if (rank < 0)
        return 1;
    for (k = 0; k < m->calls[i]; k++)
        want = k == 0 ? (float)(ranks * (ranks + 1) / 2) : want * (float)ranks;
    host_must(host_copy(m->device, values[m->rank], m->data[i], BYTES), "read");
    for (k = 0; k < count_of(m->c); k++) {
        if (m->c->groups == BROADCASTS)
            want = (float)(k / (count_of(m->c) / 2) + 1);
        if (m->c->groups == MESSAGES)
            want = (float)(k < count_of(m->c) / 2 ? rank + 1 : ranks - rank);
        wrong += values[m->rank][k] != want;
    }
    return wrong == 0;
}

/* ---- calls ---- */

/* All or more than half of the largest grid that the library accepts, so two such grids do not fit.
 * The error text for too many blocks has that number. */
static int many_blocks(const struct member *m, int i)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = m->c->algo, .blocks = 100000};
    symwin_allreduce_info info;
    const int part = shared.in_part > 0 ? (int)shared.in_part : multiprocessors;
    const char *text;

    if (symwin_allreduce_query(m->comms[i], m->data[i], m->data[i], count_of(m->c), SYMWIN_F32,
                               SYMWIN_SUM, &options, &info) == SYMWIN_OK)
        return 0;
    text = strstr(symwin_last_error(), "asked for and ");
    return text == NULL
               ? 0
               : atoi(text + 14) * part / multiprocessors * (m->c->blocks == ALL ? 10 : 6) / 10;
}

/* Two small calls in one launch: each rank broadcasts a half, or sends its first half, which the
 * other rank receives into its second one. */
static symwin_status call_group(const struct member *m, int i, CUstream stream, int blocks)
{
    const symwin_collective_options options = {
        .size = sizeof options, .algo = m->c->algo, .blocks = blocks, .threads = 32};
    const int half = count_of(m->c) / 2;
    const int messages = m->c->groups == MESSAGES;
    symwin_status status = symwin_group_begin(), end;
    int k;

    if (messages && status == SYMWIN_OK)
        status = symwin_send_with(m->comms[i], m->data[i], (size_t)half, SYMWIN_F32, !m->rank,
                                  &options, stream);
    if (messages && status == SYMWIN_OK)
        status = symwin_recv_with(m->comms[i], m->data[i] + half, (size_t)half, SYMWIN_F32,
                                  !m->rank, &options, stream);
    for (k = 0; k < 2 && !messages && status == SYMWIN_OK; k++)
        status = symwin_broadcast_with(m->comms[i], m->data[i] + k * half, m->data[i] + k * half,
                                       (size_t)half, SYMWIN_F32, k, &options, stream);
    end = symwin_group_end();
    return status != SYMWIN_OK ? status : end;
}

static symwin_status call(const struct member *m, int i, CUstream stream)
{
    const int blocks = m->small                     ? 1
                       : m->c->blocks == TWO_FIFTHS ? multiprocessors * 2 / 5
                       : m->c->blocks < 0           ? many_blocks(m, i)
                                                    : m->c->blocks;
    const symwin_allreduce_options options = {
        .size = sizeof options,
        .algo = m->c->algo,
        .blocks = m->c->blocks > 1 && i == 2 ? 2 : blocks,
        .threads = m->c->blocks < 0 ? 32 : 0,
    };

    if (m->c->groups)
        return call_group(m, i, stream, blocks);
    return symwin_allreduce_with(m->comms[i], m->data[i], m->data[i], count_of(m->c), SYMWIN_F32,
                                 SYMWIN_SUM, &options, stream);
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

    if (m->comms[i] == NULL)
        return;
    m->calls[i]++;
    if (!m->c->threads) {
        host_must(call(m, i, m->streams[i]), "a call");
        return;
    }
    if (pthread_create(&thread, NULL, call_in_thread, &caller) != 0)
        abort();
    pthread_join(thread, NULL);
}

/* A graph with a call of each of the communicators `first` to `last`. */
static CUgraphExec capture(const struct member *m, int first, int last)
{
    int i;

    host_must_cuda(sw_drv.cuStreamBeginCapture(m->streams[first], CU_STREAM_CAPTURE_MODE_RELAXED),
                   "begin");
    for (i = first + 1; i <= last; i++)
        host_follow(m->streams[first], m->streams[i]);
    for (i = first; i <= last; i++)
        host_must(call(m, i, m->streams[i]), "a captured call");
    for (i = first + 1; i <= last; i++)
        host_follow(m->streams[i], m->streams[first]);
    return host_end_capture(m->streams[first], NULL);
}

static symwin_status finish(const struct member *m)
{
    symwin_status status = SYMWIN_OK;
    int i;

    for (i = 0; i < m->c->comms; i++)
        if (m->streams[i] != NULL)
            host_must(symwin_stream_synchronize(m->device, m->streams[i]), "synchronize");
    for (i = 0; i < m->c->comms && status == SYMWIN_OK; i++)
        if (m->comms[i] != NULL)
            status = symwin_comm_check(m->comms[i]);
    return status;
}

static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static atomic_int early; /* launches that may begin before the kernel ahead has ended */

static CUresult count_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                             void **extra)
{
    atomic_fetch_add(&early, (int)config->numAttrs);
    return plain_launch(config, function, params, extra);
}

/* Starts the driver without tables of choices, and counts launches that may begin early. Skips the
 * test on fewer than two GPUs: if they are shared, no launch begins early. */
static void order_start(void)
{
    setenv("SYMWIN_TUNING", "0", 1);
    harness_start();
    if (!sw_driver_is_emulated() && harness_device_count() < RANKS)
        tap_skip_all("takes two GPUs");
    plain_launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuLaunchKernelEx = count_launch;
    host_must_cuda(
        sw_drv.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
        "cuDeviceGetAttribute");
}

static int is_wanted(const struct order_case *c, const char *only)
{
    if (strstr(c->name, only) == NULL)
        return 0;
    if (c->wide > multiprocessors)
        printf("# left out, for want of multiprocessors: %s\n", c->name);
    return c->wide <= multiprocessors;
}

#endif
