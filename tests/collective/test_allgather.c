/* The all-gather: all bytes of any value reach every rank, and nothing else is written; from any
 * memory, in place or not, in graphs, and between all-reduces of the same communicator. Errors in
 * the arguments of a call are reported. Also runs on GPUs (tests/gpu/both.txt). */
#include "processes.h"

enum { MOST = 8, ROOM = 1 << 17, GUARD = 64, SLOT = 512, REPLAYS = 5 };

#if defined(__SANITIZE_THREAD__)
enum { THIN = 5, ALTERNATIONS = 16, WAIT_MS = 100000 };
#elif defined(__SANITIZE_ADDRESS__)
enum { THIN = 3, ALTERNATIONS = 48, WAIT_MS = 60000 };
#else
enum { THIN = 1, ALTERNATIONS = 48, WAIT_MS = 20000 };
#endif

struct rank {
    int nranks, rank, device;
    symwin_comm *comm;
    struct CUstream_st *streams[2];
    unsigned char *in, *out; /* device memory of ROOM bytes each, in no window */
    unsigned char *host;     /* ROOM bytes */
};

/* One call. */
struct gather {
    symwin_type type;
    uint64_t count;
    size_t in, out; /* offsets in the rank's memory */
    int in_place;
    unsigned seed;
};

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Byte `i` of a rank's input. There are words of all zeros and of all ones. */
static unsigned char byte_of(unsigned seed, int rank, size_t i)
{
    const uint32_t word = mix(seed * 31u + (uint32_t)rank * 7919u + (uint32_t)(i / 8) * 104729u);

    if (word % 4 < 2)
        return word % 4 == 0 ? 0 : 0xff;
    return (unsigned char)mix(word + (uint32_t)(i % 8));
}

static size_t bytes_of(const struct gather *g)
{
    return (size_t)g->count * symwin_type_bytes(g->type);
}

static unsigned char *input_of(const struct rank *r, const struct gather *g)
{
    return g->in_place ? r->out + g->out + (size_t)r->rank * bytes_of(g) : r->in + g->in;
}

/* Fills the output and a guard on each side with another byte, then the input. */
static void prepare(const struct rank *r, const struct gather *g)
{
    const size_t bytes = bytes_of(g), all = bytes * (size_t)r->nranks;
    size_t i;

    memset(r->host, 0x5a, all + 2 * GUARD);
    host_must(host_copy(r->device, r->out + g->out - GUARD, r->host, all + 2 * GUARD), "fill");
    for (i = 0; i < bytes; i++)
        r->host[i] = byte_of(g->seed, r->rank, i);
    host_must(host_copy(r->device, input_of(r, g), r->host, bytes), "fill");
}

/* Number of wrong bytes, including the guards and the input. */
static size_t differences(const struct rank *r, const struct gather *g)
{
    const size_t bytes = bytes_of(g), all = bytes * (size_t)r->nranks;
    size_t wrong = 0, i;

    host_must(host_copy(r->device, r->host, r->out + g->out - GUARD, all + 2 * GUARD), "read");
    for (i = 0; i < GUARD; i++)
        wrong += (r->host[i] != 0x5a) + (r->host[GUARD + all + i] != 0x5a);
    for (i = 0; i < all; i++)
        wrong += r->host[GUARD + i] != byte_of(g->seed, (int)(i / bytes), i % bytes);
    host_must(host_copy(r->device, r->host, input_of(r, g), bytes), "read");
    for (i = 0; i < bytes; i++)
        wrong += r->host[i] != byte_of(g->seed, r->rank, i);
    return wrong;
}

static symwin_status call(const struct rank *r, const struct gather *g, int stream)
{
    return symwin_allgather(r->comm, input_of(r, g), r->out + g->out, g->count, g->type,
                            r->streams[stream]);
}

static void wait_for(const struct rank *r, int stream)
{
    host_must(symwin_stream_synchronize(r->device, r->streams[stream]), "synchronize");
}

static void gather(const struct rank *r, const struct gather *g, struct processes *p)
{
    prepare(r, g);
    processes_barrier(p);
    host_must(call(r, g, 0), "symwin_allgather");
    wait_for(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    if (differences(r, g) != 0) {
        fprintf(stderr, "rank %d of %d: %llu of %s, in +%zu, out +%zu, %s place: %zu wrong bytes\n",
                r->rank, r->nranks, (unsigned long long)g->count, symwin_type_name(g->type), g->in,
                g->out, g->in_place ? "in" : "out of", differences(r, g));
        must_be(0, "wrong bytes", r->rank);
    }
}

/* ---- what is gathered ------------------------------------------------------------------------ */

/* Sizes around the kernel's limits: word, entry, round (of SLOT / 8 entries), and several
 * rounds. */
static void matrix(struct processes *p, struct rank *r)
{
    static const symwin_type types[] = {SYMWIN_U8, SYMWIN_BF16, SYMWIN_F32, SYMWIN_F64};
    static const uint64_t counts[] = {1, 2, 3, 7, 8, 9, 63, 64, 65, 128, 129, 1000};
    unsigned seed = 1;
    size_t t, c;
    int k;

    for (t = 0; t < 4; t++)
        for (c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (k = 0; k < 4; k++) {
                const size_t size = symwin_type_bytes(types[t]);
                const struct gather g = {.type = types[t],
                                         .count = counts[c],
                                         .in = GUARD + (k % 2 == 0 ? 0 : (1 + c) % 5 * size),
                                         .out = GUARD + (k < 2 ? 0 : (3 + c) % 7 * size),
                                         .in_place = k == 3,
                                         .seed = seed};

                if (seed++ % THIN == 0)
                    gather(r, &g, p);
            }
    must_be(symwin_allgather(r->comm, NULL, NULL, 0, SYMWIN_F32, r->streams[0]) == SYMWIN_OK,
            "no elements", r->rank);
}

static void refused(const struct rank *r, symwin_status status, symwin_status want,
                    const char *words)
{
    must_be(status == want && host_error_has(words), words, r->rank);
}

/* The output has to fit with all ranks' parts. Nothing is launched. */
static void past_a_window(const struct rank *r)
{
    const uint64_t count = 4096 / (uint64_t)r->nranks;
    symwin_window *window;
    char words[160];

    host_must(symwin_window_register(r->comm, r->out, 4096, 0, &window), "register");
    snprintf(words, sizeof words,
             "symwin_allgather: %llu elements (%llu bytes) at out pass the end of its window, "
             "which has 4096",
             (unsigned long long)(count + 1) * (unsigned long long)r->nranks,
             (unsigned long long)(count + 1) * (unsigned long long)r->nranks);
    refused(r, symwin_allgather(r->comm, r->in, r->out, count + 1, SYMWIN_U8, r->streams[0]),
            SYMWIN_INVALID, words);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
}

/* A window changes nothing, nor does it that some ranks' buffers lie in one. */
static void in_windows(struct processes *p, struct rank *r)
{
    unsigned char *const plain[] = {r->in, r->out};
    symwin_window *windows[2];
    struct gather g = {SYMWIN_I32, 777, GUARD, GUARD, 0, 5};
    int i;

    r->in = host_alloc(r->device, ROOM);
    r->out = host_alloc(r->device, ROOM);
    past_a_window(r);
    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    for (i = 0; i < 4; i++) {
        unsigned char *const in = r->in, *const out = r->out;

        if (i >= 2 && r->rank % 2 != 0) {
            r->in = plain[0];
            r->out = plain[1];
        }
        g.in_place = i % 2;
        g.seed = 5 + (unsigned)i;
        gather(r, &g, p);
        r->in = in;
        r->out = out;
    }
    host_must(symwin_window_deregister(r->comm, windows[0]), "deregister");
    host_must(symwin_window_deregister(r->comm, windows[1]), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(r->in), "symwin_mem_free");
    host_must(symwin_mem_free(r->out), "symwin_mem_free");
    r->in = plain[0];
    r->out = plain[1];
}

/* ---- what one rank knows alone ---- */

/* Where a rank's buffers lie, whether it works in place, and its grid are its own affair. */
static void each_its_own(struct processes *p, struct rank *r)
{
    unsigned seed = 500;
    int i;

    for (i = 0; i < 24; i++) {
        const uint32_t random = mix((uint32_t)(i * 16 + r->rank));
        const symwin_collective_options options = {.size = sizeof options,
                                                   .blocks = 1 + (int)(random % 3),
                                                   .threads = 1 + (int)(random / 4 % 40)};
        const struct gather g = {.type = SYMWIN_U8,
                                 .count = 1 + mix((uint32_t)i) % 1500,
                                 .in = GUARD + random / 1024 % 16,
                                 .out = GUARD + random / 16384 % 16,
                                 .in_place = random / 262144 % 2 != 0,
                                 .seed = seed + (unsigned)i};

        if (i % THIN != 0)
            continue;
        prepare(r, &g);
        processes_barrier(p);
        host_must(symwin_allgather_with(r->comm, input_of(r, &g), r->out + g.out, g.count, g.type,
                                        &options, r->streams[0]),
                  "symwin_allgather_with");
        wait_for(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(differences(r, &g) == 0, "ranks that have only the bytes in common", r->rank);
    }
}

/* Captured on this rank alone, and never launched. */
static void captured(const struct rank *r, const struct gather *g)
{
    CUgraph graph = NULL;
    struct sw_scope scope;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(call(r, g, 0), "a captured call");
    host_must_cuda(sw_drv.cuStreamEndCapture(r->streams[0], &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    sw_scope_leave(&scope);
}

/* A rank's part of the output may have its own window too, which the all-gather does not use. */
static void part_in_its_own_window(struct processes *p, struct rank *r)
{
    const size_t part = 2 << 20;
    unsigned char *const out = host_alloc(r->device, part * (size_t)r->nranks);
    unsigned char *const in = out + (size_t)r->rank * part;
    const unsigned char mine = (unsigned char)(0x50 + r->rank);
    symwin_window *whole = NULL, *own = NULL;
    unsigned char last = 0;
    int peer;

    host_must(symwin_window_register(r->comm, out, part * (size_t)r->nranks, 0, &whole), "whole");
    host_must(symwin_window_register(r->comm, in, part, 0, &own), "own");
    host_must(host_copy(r->device, in + part - 1, &mine, 1), "copy");
    processes_barrier(p);
    host_must(symwin_allgather(r->comm, in, out, part, SYMWIN_U8, r->streams[0]), "in place");
    host_must(symwin_stream_synchronize(r->device, r->streams[0]), "synchronize");
    for (peer = 0; peer < r->nranks; peer++) {
        host_must(host_copy(r->device, &last, out + (size_t)(peer + 1) * part - 1, 1), "copy");
        must_be(last == 0x50 + peer, "each part has arrived", r->rank);
    }
    host_must(symwin_window_deregister(r->comm, own), "deregister");
    host_must(symwin_window_deregister(r->comm, whole), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(out), "symwin_mem_free");
}

/* Buffers are registered on one rank, which waits for nobody because of that, in a capture or not:
 * the others' buffers are not. */
static void registered(struct processes *p, struct rank *r)
{
    struct gather g = {SYMWIN_I64, 99, GUARD, GUARD, 0, 600};
    symwin_registration *in = NULL, *out = NULL;
    symwin_comm_info before, after;

    host_must(symwin_comm_query(r->comm, &before), "symwin_comm_query");
    if (r->rank == 0) {
        host_must(symwin_register(r->comm, r->in, ROOM, &in), "symwin_register");
        host_must(symwin_register(r->comm, r->out, ROOM, &out), "symwin_register");
    }
    gather(r, &g, p);
    g.in_place = 1;
    g.seed++;
    gather(r, &g, p);
    if (r->rank == 0)
        captured(r, &g);
    host_must(symwin_comm_query(r->comm, &after), "symwin_comm_query");
    must_be(after.windows == before.windows && after.allocations == before.allocations,
            "no window is made", r->rank);
    if (r->rank == 0) {
        host_must(symwin_deregister(r->comm, in), "symwin_deregister");
        host_must(symwin_deregister(r->comm, out), "symwin_deregister");
    }
}

/* ---- among all-reduces ----------------------------------------------------------------------- */

/* Calls in flight in two streams, with consecutive rounds and epochs. Every second one is an
 * all-reduce of one word with a known sum, by various algorithms. */
static void alternate(struct processes *p, struct rank *r)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT_PUSH,
                                        SYMWIN_ALGO_AUTO};
    const size_t pitch = ROOM / ALTERNATIONS / 64 * 64;
    struct gather g[ALTERNATIONS];
    uint32_t sums[ALTERNATIONS];
    int i;

    for (i = 0; i < ALTERNATIONS; i++) {
        const size_t most = (pitch - 2 * GUARD - 8) / (size_t)r->nranks;

        g[i] = (struct gather){.type = SYMWIN_U8,
                               .count = 1 + mix((unsigned)i) % (uint32_t)most,
                               .in = (size_t)i * pitch,
                               .out = (size_t)i * pitch + GUARD,
                               .seed = 100 + (unsigned)i};
        if (i % 2 == 0)
            prepare(r, &g[i]);
        else
            host_put_u32(r->device, r->in + g[i].in, (uint32_t)(r->rank + 1) * (uint32_t)i);
    }
    processes_barrier(p);
    for (i = 0; i < ALTERNATIONS; i++) {
        const symwin_allreduce_options options = {.size = sizeof options, .algo = algos[i / 2 % 3]};
        const int stream = (int)(mix((unsigned)i + 7) % 2);

        if (i % 2 == 0)
            host_must(call(r, &g[i], stream), "symwin_allgather");
        else
            host_must(symwin_allreduce_with(r->comm, r->in + g[i].in, r->out + g[i].out - GUARD, 1,
                                            SYMWIN_U32, SYMWIN_SUM, &options, r->streams[stream]),
                      "symwin_allreduce");
    }
    wait_for(r, 0);
    wait_for(r, 1);
    for (i = 0; i < ALTERNATIONS; i++) {
        if (i % 2 == 0) {
            must_be(differences(r, &g[i]) == 0, "an all-gather among all-reduces", r->rank);
            continue;
        }
        sums[i] = (uint32_t)(r->nranks * (r->nranks + 1) / 2 * i);
        must_be(host_get_u32(r->device, r->out + g[i].out - GUARD) == sums[i],
                "an all-reduce among all-gathers", r->rank);
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static CUgraphExec capture(const struct rank *r, const struct gather *g, const struct gather *h)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(call(r, g, 0), "a captured call");
    host_must(symwin_allreduce(r->comm, r->in + ROOM / 2, r->in + ROOM / 2, 3, SYMWIN_I32,
                               SYMWIN_MAX, r->streams[0]),
              "a captured all-reduce");
    host_must(call(r, h, 0), "a captured call");
    host_must_cuda(sw_drv.cuStreamEndCapture(r->streams[0], &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    host_must(sw_graph_upload(exec, r->streams[0]), "cuGraphUpload");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return exec;
}

/* Two calls with an all-reduce between them, replayed with other inputs. */
static void graphs(struct processes *p, struct rank *r)
{
    struct gather g = {SYMWIN_U8, 1001, GUARD + 3, GUARD + 5, 0, 0};
    struct gather h = {SYMWIN_F16, 77, GUARD, ROOM / 2 + GUARD, 1, 0};
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    exec = capture(r, &g, &h);
    processes_barrier(p);
    for (k = 0; k < REPLAYS; k++) {
        g.seed = 200 + k;
        h.seed = 300 + k;
        prepare(r, &g);
        prepare(r, &h);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        wait_for(r, 0);
        must_be(differences(r, &g) == 0 && differences(r, &h) == 0, "a replay", r->rank);
        if (k == 2) {
            g.seed = 400;
            gather(r, &g, p);
        }
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

/* Nothing is launched, so no other rank has to call. */
static void arguments(struct processes *p, struct rank *r)
{
    struct CUstream_st *const stream = r->streams[0];
    symwin_collective_options options = {.size = sizeof options};
    symwin_collective_info info = {.blocks = -1};
    unsigned char *const in = r->in + GUARD, *const out = r->out + GUARD;
    const size_t own = (size_t)r->rank * 64;
    int here = 0;

    (void)p;
    refused(r, symwin_allgather(r->comm, NULL, out, 8, SYMWIN_F32, stream), SYMWIN_INVALID,
            "symwin_allgather: in is NULL");
    refused(r, symwin_allgather(r->comm, in, NULL, 8, SYMWIN_F32, stream), SYMWIN_INVALID,
            "symwin_allgather: out is NULL");
    refused(r, symwin_allgather(r->comm, in, out, 8, (symwin_type)12, stream), SYMWIN_INVALID,
            "there is no type 12");
    refused(r, symwin_allgather(r->comm, in + 2, out, 8, SYMWIN_F32, stream), SYMWIN_INVALID,
            "symwin_allgather: in is 0x|not aligned to f32's 4 bytes");
    refused(r, symwin_allgather(r->comm, in, out + 1, 8, SYMWIN_F16, stream), SYMWIN_INVALID,
            "symwin_allgather: out is 0x|not aligned to f16's 2 bytes");
    refused(r, symwin_allgather(r->comm, &here, out, 1, SYMWIN_U8, stream), SYMWIN_INVALID,
            "symwin_allgather: in");
    refused(r, symwin_allgather(r->comm, in, out, UINT64_MAX / 2, SYMWIN_F32, stream),
            SYMWIN_INVALID, "symwin_allgather: count is 9223372036854775807");
    refused(r,
            symwin_allgather(r->comm, in, out,
                             r->nranks > 1 ? UINT64_MAX / 16 : UINT64_MAX / 16 + 1, SYMWIN_F64,
                             stream),
            SYMWIN_INVALID, "symwin_allgather: count is 11529215046068469");
    refused(r, symwin_allgather(r->comm, out + own + 4, out, 16, SYMWIN_F32, stream),
            SYMWIN_INVALID, "overlap in part; in place, in is out + rank * count elements (0x");
    if (r->rank > 0) /* of rank 0 it is the place */
        refused(r, symwin_allgather(r->comm, out, out, 16, SYMWIN_F32, stream), SYMWIN_INVALID,
                "overlap in part; in place, in is out + rank * count elements (0x");
    refused(r, symwin_allgather(r->comm, NULL, NULL, 8, SYMWIN_F32, stream), SYMWIN_INVALID,
            "symwin_allgather: in is NULL");
    options.algo = SYMWIN_ALGO_TWOSHOT;
    refused(r, symwin_allgather_with(r->comm, in, out, 8, SYMWIN_F32, &options, stream),
            SYMWIN_UNSUPPORTED,
            "symwin_allgather: there is no algorithm twoshot for it; pass auto");
    options.size = 3;
    refused(r, symwin_allgather_with(r->comm, in, out, 8, SYMWIN_F32, &options, stream),
            SYMWIN_INVALID, "symwin_allgather: options->size is 3|symwin_collective_options");
    refused(r, symwin_allgather_query(r->comm, in, out, 0, SYMWIN_F32, NULL, &info), SYMWIN_INVALID,
            "symwin_allgather_query: count is 0");
    refused(r, symwin_allgather_query(r->comm, in, out, 8, SYMWIN_F32, NULL, NULL), SYMWIN_INVALID,
            "symwin_allgather_query: info is NULL");
    must_be(info.blocks == -1, "nothing is written", r->rank);
    options = (symwin_collective_options){.size = sizeof options, .blocks = 1, .threads = 32};
    host_must(symwin_allgather_query(r->comm, in, out, 1000, SYMWIN_F32, &options, &info), "query");
    must_be(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks == 1 && info.threads > 0 &&
                info.threads <= 32 && !info.measured,
            "what would be launched", r->rank);
}

/* ---- calls that differ, and ranks that are late ---------------------------------------------- */

enum oddity { SAME, COLLECTIVE, COUNT, TYPE, LATE, LEAVES, ABORTS };

static const struct row {
    const char *name;
    int nranks;
    int odd;
    enum oddity oddity;
    symwin_status status;
    const char *words;
} rows[] = {
    {"a rank that calls all-reduce", 3, 2, COLLECTIVE, SYMWIN_MISMATCH,
     "the call differs: rank 2 called symwin_allreduce(), rank 0 called symwin_allgather()|rank 2 "
     "differs from ranks 0 and 1|call the same on every rank"},
    {"a rank 0 that calls all-reduce", 4, 0, COLLECTIVE, SYMWIN_MISMATCH,
     "the call differs: rank 0 called symwin_allreduce(), rank 1 called symwin_allgather()"},
    {"another count", 3, 1, COUNT, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 99, rank 0 passed 100|pass the same on every rank"},
    {"another type of that size", 3, 1, TYPE, SYMWIN_MISMATCH,
     "type differs: rank 1 passed f32, rank 0 passed u32"},
    {"a late rank", 3, 1, LATE, SYMWIN_TIMEOUT, "waited 100 ms for rank 1"},
    {"a rank that leaves", 3, 2, LEAVES, SYMWIN_PEER_LOST,
     "rank 2 has destroyed its communicator|waited for it in collective 1"},
    {"a rank that aborts", 3, 1, ABORTS, SYMWIN_ABORTED, "rank 1"},
};

static symwin_status odd_call(const struct rank *r, enum oddity oddity)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_ONESHOT};

    if (oddity == COLLECTIVE)
        return symwin_allreduce_with(r->comm, r->in, r->out, 100, SYMWIN_U32, SYMWIN_SUM, &options,
                                     r->streams[0]);
    return symwin_allgather(r->comm, r->in, r->out, oddity == COUNT ? 99 : 100,
                            oddity == TYPE ? SYMWIN_F32 : SYMWIN_U32, r->streams[0]);
}

static void differs(struct processes *p, struct rank *r, const struct row *row)
{
    const int odd = r->rank == row->odd;
    symwin_status status;

    processes_barrier(p);
    if (odd && row->oddity == LEAVES) {
        symwin_comm_destroy(r->comm);
        r->comm = NULL;
        processes_barrier(p);
        processes_barrier(p);
        return;
    }
    if (odd && row->oddity == LATE)
        host_pause_ms(300);
    if (odd && row->oddity == ABORTS) {
        host_pause_ms(50); /* the others are in the call by then, or come to it later */
        host_must(symwin_comm_abort(r->comm), "symwin_comm_abort");
    } else if (row->oddity == ABORTS) {
        (void)odd_call(r, SAME);
    } else {
        host_must(odd_call(r, odd ? row->oddity : SAME), "a call");
    }
    processes_barrier(p);
    wait_for(r, 0);
    status = processes_note(p, r->rank, symwin_comm_check(r->comm));
    must_be(status == row->status && host_error_has(row->words), symwin_status_name(status),
            r->rank);
    processes_barrier(p);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct story {
    const struct row *row; /* NULL: the cases that succeed */
};

static void open_rank(struct processes *p, struct rank *r, const struct row *row)
{
    const int late = row != NULL && row->oddity == LATE;
    const symwin_comm_options options = {.size = sizeof options,
                                         /* Through a graph of one kernel, which was another's. */
                                         .flags = r->nranks == 5 ? SYMWIN_COMM_GRAPH_LAUNCH : 0,
                                         .timeout_ms = WAIT_MS,
                                         .kernel_timeout_ms = late ? 100 : WAIT_MS,
                                         .slot_bytes = SLOT};

    host_must(symwin_comm_create(processes_id(p, r->rank), r->nranks, r->rank, r->device, &options,
                                 &r->comm),
              "symwin_comm_create");
    host_must(symwin_stream_create(r->device, &r->streams[0]), "symwin_stream_create");
    host_must(symwin_stream_create(r->device, &r->streams[1]), "symwin_stream_create");
    r->in = host_alloc(r->device, ROOM);
    r->out = host_alloc(r->device, ROOM);
    r->host = malloc(ROOM);
    if (r->host == NULL)
        abort();
}

static void close_rank(struct processes *p, struct rank *r)
{
    processes_barrier(p);
    symwin_comm_destroy(r->comm);
    processes_barrier(p);
    host_must(symwin_stream_destroy(r->device, r->streams[0]), "symwin_stream_destroy");
    host_must(symwin_stream_destroy(r->device, r->streams[1]), "symwin_stream_destroy");
    host_must(symwin_mem_free(r->in), "symwin_mem_free");
    host_must(symwin_mem_free(r->out), "symwin_mem_free");
    free(r->host);
}

static void body(struct processes *p, int rank)
{
    const struct story *story = places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, story->row);
    if (story->row != NULL) {
        differs(p, &r, story->row);
    } else {
        matrix(p, &r);
        in_windows(p, &r);
        part_in_its_own_window(p, &r);
        each_its_own(p, &r);
        registered(p, &r);
        alternate(p, &r);
        graphs(p, &r);
        arguments(p, &r);
        alternate(p, &r); /* the communicator still works */
    }
    close_rank(p, &r);
}

int main(void)
{
    static const int counts[] = {1, 2, 3, 4, 5, 8};
    struct processes *p;
    size_t place, i;
    int r, right;

    for (i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct story story = {NULL};

        right = places_run(&places_all[0], counts[i], body, &story, &p);
        tap_ok(right, "%d ranks of a process", counts[i]);
        processes_free(p);
    }
    for (place = 1; place < places_count(); place++) {
        struct story story = {NULL};

        right = places_run(&places_all[place], 3, body, &story, &p);
        tap_ok(right, "3 ranks, %s", places_all[place].name);
        processes_free(p);
    }
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct story story = {&rows[i]};

        right = places_run(&places_all[0], rows[i].nranks, body, &story, &p);
        for (r = 1; r < rows[i].nranks && rows[i].oddity < LEAVES; r++)
            right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
        tap_ok(right, "%s: %s", rows[i].name, p->rank[0].text);
        processes_free(p);
    }
    return tap_done();
}
