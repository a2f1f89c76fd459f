#include "allreduce_cases.h"

#include <stdint.h>

#include "../kernels/types.h"
#include "harness.h"
#include "reference.h"

enum { GUARD = 64, TYPES = 12, OPS = 5, ALGOS = 7, MOST_RANKS = 72 };

/* What one rank holds, and what all share through `team->arg`. */
struct shared {
    size_t bytes; /* of the data part of each buffer */
    int thin;
    const size_t *counts;
    int runs;
    unsigned seed;
    size_t slot_bytes;
    unsigned char *inputs[MOST_RANKS]; /* host, `bytes` each */
    unsigned char *expected;           /* host, `bytes` */
    int failed; /* rank 0, or this process's: something went wrong at the end */
};

struct member {
    struct harness_team *team;
    struct shared *shared;
    int rank, device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    symwin_window *windows[2];
    atomic_int *wrong;       /* the team's: ranks that found a difference since it was cleared */
    unsigned char *in, *out; /* device: GUARD + bytes + GUARD each, in windows */
    unsigned char *host;     /* as large */
};

static const symwin_algo algos[ALGOS] = {SYMWIN_ALGO_ONESHOT,          SYMWIN_ALGO_TWOSHOT,
                                         SYMWIN_ALGO_ONESHOT_MC,       SYMWIN_ALGO_TWOSHOT_MC,
                                         SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
                                         SYMWIN_ALGO_TWOSHOT_PUT};

static int over_multicast(symwin_algo algo)
{
    return algo == SYMWIN_ALGO_ONESHOT_MC || algo == SYMWIN_ALGO_TWOSHOT_MC;
}

static int ok(const struct member *m, symwin_status status, const char *what)
{
    if (status == SYMWIN_OK)
        return 1;
    printf("# rank %d: %s: %s\n", m->rank, what, symwin_last_error());
    (*m->wrong)++;
    return 0;
}

static size_t buffer_bytes(const struct shared *s)
{
    return s->bytes + 2 * GUARD;
}

/* A process has all ranks' inputs to itself; threads have one rank's each. */
static int has_inputs_of(const struct member *m, int rank)
{
    return harness_job != NULL || m->rank == rank;
}

static int member_create(struct member *m, struct harness_team *team, int rank)
{
    struct shared *s = team->arg;
    const char *blocks = getenv("SYMWIN_TEST_BLOCKS"); /* for tools that leave less room on a GPU */
    const symwin_comm_options options = {
        .size = sizeof options,
        .timeout_ms = 20000,
        .kernel_timeout_ms = 20000,
        .slot_bytes = s->slot_bytes,
        .max_blocks = blocks != NULL ? atoi(blocks) : 0,
    };
    const size_t bytes = buffer_bytes(s);
    void *in = NULL;
    void *out = NULL;
    int good, r;

    *m = (struct member){.team = team,
                         .shared = s,
                         .rank = rank,
                         .device = harness_device(rank),
                         .wrong = harness_count(team)};
    m->host = malloc(bytes);
    for (r = 0; r < team->nranks; r++)
        if (has_inputs_of(m, r))
            s->inputs[r] = malloc(s->bytes);
    good = ok(m, symwin_comm_create(&team->id, team->nranks, rank, m->device, &options, &m->comm),
              "comm_create") &&
           ok(m, symwin_stream_create(m->device, &m->stream), "stream_create") &&
           ok(m, symwin_mem_alloc(m->device, bytes, 0, &in), "mem_alloc") &&
           ok(m, symwin_mem_alloc(m->device, bytes, 0, &out), "mem_alloc") &&
           ok(m, symwin_window_register(m->comm, in, bytes, 0, &m->windows[0]), "register") &&
           ok(m, symwin_window_register(m->comm, out, bytes, 0, &m->windows[1]), "register");
    m->in = in;
    m->out = out;
    harness_barrier(team);
    return good && *m->wrong == 0;
}

static void member_destroy(struct member *m)
{
    int r;

    harness_barrier(m->team);
    symwin_comm_destroy(m->comm);
    symwin_mem_free(m->in);
    symwin_mem_free(m->out);
    if (m->stream != NULL)
        symwin_stream_destroy(m->device, m->stream);
    free(m->host);
    if (has_inputs_of(m, 0)) /* once a process */
        m->shared->failed = *m->wrong;
    harness_barrier(m->team);
    for (r = 0; r < m->team->nranks; r++)
        if (has_inputs_of(m, r))
            free(m->shared->inputs[r]);
}

/* Small whole numbers, so that any order of additions gives one result: for multicast, whose order is
 * the hardware's. */
static void fill_whole(symwin_type type, unsigned seed, int rank, size_t count, unsigned char *out)
{
    size_t i;

    for (i = 0; i < count; i++) {
        const int n = (int)((i * 7 + (size_t)rank * 13 + seed) % 17) - 8;
        const float f = (float)n;
        const double d = n;
        const uint16_t h = sw_f16_from_f32(f);
        const uint16_t b = sw_bf16_from_f32(f);

        switch (type) {
        case SYMWIN_F64:
            memcpy(out + i * 8, &d, 8);
            break;
        case SYMWIN_F32:
            memcpy(out + i * 4, &f, 4);
            break;
        case SYMWIN_F16:
            memcpy(out + i * 2, &h, 2);
            break;
        case SYMWIN_BF16:
            memcpy(out + i * 2, &b, 2);
            break;
        default:
            break;
        }
    }
}

static int is_float(symwin_type type)
{
    return type == SYMWIN_F64 || type == SYMWIN_F32 || type == SYMWIN_F16 || type == SYMWIN_BF16 ||
           type == SYMWIN_F8E4M3 || type == SYMWIN_F8E5M2;
}

/* Fills all ranks' inputs and the expected result of `count` elements, then lets everybody go on. */
static void prepare(struct member *m, symwin_type type, symwin_op op, int multicast, unsigned seed,
                    size_t count)
{
    struct shared *s = m->shared;
    const void *inputs[MOST_RANKS];
    int r;

    harness_barrier(m->team);
    for (r = 0; r < m->team->nranks; r++) {
        if (!has_inputs_of(m, r))
            continue;
        if (multicast && is_float(type))
            fill_whole(type, seed, r, count, s->inputs[r]);
        else
            reference_fill(type, op, seed, r, 0, count, s->inputs[r]);
    }
    harness_barrier(m->team);
    if (has_inputs_of(m, 0)) {
        for (r = 0; r < m->team->nranks; r++)
            inputs[r] = s->inputs[r];
        reference_allreduce(type, op, m->team->nranks, inputs, s->expected, count);
    }
    harness_barrier(m->team);
}

struct placement {
    symwin_algo algo;
    size_t count;
    size_t in_offset, out_offset; /* bytes from the start of the data part */
    int in_place;
    int blocks;
};

/* One call on prepared inputs. Returns 0 if the library does not offer the combination. */
static int one_call(struct member *m, symwin_type type, symwin_op op, const struct placement *p)
{
    struct shared *s = m->shared;
    const size_t bytes = p->count * symwin_type_bytes(type);
    const symwin_allreduce_options options = {sizeof options, p->algo, p->blocks};
    unsigned char *in = m->in + GUARD + p->in_offset;
    unsigned char *out = p->in_place ? in : m->out + GUARD + p->out_offset;
    unsigned char *const base = p->in_place ? m->in : m->out;
    const size_t at = (size_t)(out - base);
    symwin_status status;
    char text[64], want[64];
    int64_t differs;
    size_t i;

    /* Poison what will be written and what lies around it, then put the input in. */
    memset(m->host, 0xa5, buffer_bytes(s));
    ok(m, symwin_memcpy(m->device, base, m->host, buffer_bytes(s), m->stream), "poison");
    ok(m, symwin_memcpy(m->device, in, s->inputs[m->rank], bytes, m->stream), "input");
    ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    /* A sanitizer's copies wait for the whole device, so where ranks share one all must be done. */
    harness_barrier(m->team);
    status = symwin_allreduce_with(m->comm, in, out, p->count, type, op, &options, m->stream);
    if (status == SYMWIN_UNSUPPORTED)
        return 0;
    ok(m, status, "allreduce");
    ok(m, symwin_memcpy(m->device, m->host, base, buffer_bytes(s), m->stream), "result");
    ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    ok(m, symwin_comm_check(m->comm), "check");
    differs = reference_compare(type, m->host + at, s->expected, p->count);
    for (i = 0; differs < 0 && i < buffer_bytes(s); i++)
        if ((i < at || i >= at + bytes) && m->host[i] != 0xa5) {
            printf("# rank %d wrote byte %lld outside its output\n", m->rank,
                   (long long)i - (long long)at);
            (*m->wrong)++;
            break;
        }
    if (differs >= 0) {
        printf(
            "# rank %d of %d, %s %s %s, %zu elements, %s, offsets %zu %zu: [%lld] is %s, not %s\n",
            m->rank, m->team->nranks, symwin_algo_name(p->algo), symwin_type_name(type),
            symwin_op_name(op), p->count, p->in_place ? "in place" : "out of place", p->in_offset,
            p->out_offset, (long long)differs,
            reference_print(type, m->host + at, (size_t)differs, text, sizeof text),
            reference_print(type, s->expected, (size_t)differs, want, sizeof want));
        (*m->wrong)++;
    }
    return 1;
}

/* ---- the matrix ---- */

static int offered(const struct member *m, symwin_algo algo, symwin_op op)
{
    symwin_comm_info info;

    if (!over_multicast(algo))
        return 1;
    return op != SYMWIN_PROD && symwin_comm_query(m->comm, &info) == SYMWIN_OK && info.multicast;
}

static void matrix_line(struct member *m, symwin_type type, symwin_op op, symwin_algo algo,
                        size_t largest, int *turn)
{
    struct shared *s = m->shared;
    const size_t unit = symwin_type_bytes(type);
    int calls = 0;
    int i, shape;

    prepare(m, type, op, over_multicast(algo), (unsigned)type * 31 + (unsigned)op, largest);
    for (i = 0; s->counts[i] != 0; i++)
        for (shape = 0; shape < 8; shape++) {
            const struct placement p = {
                .algo = algo,
                .count = s->counts[i],
                .in_offset = (shape & 1) != 0 ? unit : 0,
                .out_offset = (shape & 2) != 0 ? 3 * unit : 0,
                .in_place = (shape & 4) != 0,
                .blocks = i % 3, /* the default, 1 and 2 */
            };

            if ((*turn)++ % s->thin != 0 || (p.in_place && (shape & 2) != 0))
                continue;
            calls += one_call(m, type, op, &p);
        }
    harness_barrier(m->team);
    if (m->rank == 0 && (calls > 0 || *m->wrong > 0))
        tap_ok(*m->wrong == 0, "%d ranks: %s %s %s, %d calls", m->team->nranks,
               symwin_algo_name(algo), symwin_type_name(type), symwin_op_name(op), calls);
    harness_barrier(m->team);
    if (m->rank == 0)
        *m->wrong = 0;
}

static void matrix_body(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    struct member m;
    size_t largest = 0;
    int type, op, a, i;
    int turn = 0;

    for (i = 0; s->counts[i] != 0; i++)
        largest = s->counts[i] > largest ? s->counts[i] : largest;
    if (member_create(&m, team, rank))
        for (type = 0; type < TYPES; type++)
            for (op = 0; op < OPS; op++)
                for (a = 0; a < ALGOS; a++)
                    if (offered(&m, algos[a], (symwin_op)op))
                        matrix_line(&m, (symwin_type)type, (symwin_op)op, algos[a], largest, &turn);
    member_destroy(&m);
}

static void run(int nranks, struct shared *s,
                void (*body)(struct harness_team *team, int rank, void *arg), const char *name)
{
    const struct harness_leaks before = harness_leaks_now();

    s->expected = malloc(s->bytes);
    harness_run(nranks, body, s);
    free(s->expected);
    if (s->failed)
        tap_ok(0, "%d ranks: %s", nranks, name);
    harness_no_leaks(name, &before);
}

void allreduce_matrix(int nranks, const size_t *counts, int thin)
{
    struct shared s = {.counts = counts, .thin = thin};
    int i;

    for (i = 0; counts[i] != 0; i++)
        if (counts[i] * 8 + 64 > s.bytes)
            s.bytes = counts[i] * 8 + 64;
    run(nranks, &s, matrix_body, "matrix");
}

/* ---- shapes ---- */

/* The same result from memory that is in no window. */
static void plain_memory(struct member *m, size_t count)
{
    struct shared *s = m->shared;
    struct sw_scope scope;
    CUdeviceptr plain = 0;

    prepare(m, SYMWIN_F32, SYMWIN_SUM, 0, 7, count);
    if (!ok(m, sw_scope_enter(m->device, &scope), "scope"))
        return;
    ok(m, sw_check(sw_drv.cuMemAlloc(&plain, count * 4), "cuMemAlloc"), "cuMemAlloc");
    harness_barrier(m->team); /* it may wait for the device too: no kernel may wait for this rank */
    ok(m,
       symwin_memcpy(m->device, (void *)(uintptr_t)plain, s->inputs[m->rank], count * 4, m->stream),
       "input");
    ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    ok(m,
       symwin_allreduce(m->comm, (void *)(uintptr_t)plain, (void *)(uintptr_t)plain, count,
                        SYMWIN_F32, SYMWIN_SUM, m->stream),
       "allreduce");
    ok(m, symwin_memcpy(m->device, m->host, (void *)(uintptr_t)plain, count * 4, m->stream),
       "result");
    ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    if (reference_compare(SYMWIN_F32, m->host, s->expected, count) >= 0)
        (*m->wrong)++;
    harness_barrier(m->team); /* so may cuMemFree */
    sw_drop(sw_drv.cuMemFree(plain), "cuMemFree");
    sw_scope_leave(&scope);
}

static void report(struct member *m, const char *name)
{
    harness_barrier(m->team);
    if (m->rank == 0) {
        tap_ok(*m->wrong == 0, "%d ranks: %s", m->team->nranks, name);
        *m->wrong = 0;
    }
    harness_barrier(m->team);
}

static void shapes_body(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    const size_t large = s->bytes / 4 - 4, ranks = (size_t)team->nranks;
    struct member m;
    int i;

    if (member_create(&m, team, rank)) {
        static const symwin_algo pushes[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_ONESHOT_SENTINEL,
                                             SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_TWOSHOT_PUT};
        int a;
        const struct placement whole[] = {
            {SYMWIN_ALGO_AUTO, large, 0, 0, 0, 0},
            {SYMWIN_ALGO_AUTO, large, 0, 0, 1, 0},
            {SYMWIN_ALGO_TWOSHOT, large - 3, 4, 12, 0, 0},
        };

        for (a = 0; a < 4; a++) {
            const symwin_algo algo = pushes[a];
            /* Elements that go in one round: of a whole slot or, with flags, half; of that a rank or half. */
            const size_t one = (algo == SYMWIN_ALGO_ONESHOT            ? s->slot_bytes
                                : algo == SYMWIN_ALGO_ONESHOT_SENTINEL ? 2 * s->slot_bytes
                                : algo == SYMWIN_ALGO_TWOSHOT_PUT      ? 2 * s->slot_bytes * ranks
                                                                       : s->slot_bytes * ranks) /
                               4;
            const struct placement rounds[] = {
                {algo, one, 0, 0, 0, 0},         {algo, one + 1, 0, 0, 0, 0}, /* two rounds */
                {algo, 2 * one + 3, 4, 4, 0, 1},                              /* three, one block */
                {algo, 5 * one + 1, 0, 0, 1, 0},                              /* many, in place */
                {algo, 1, 0, 0, 0, 0},                                        /* short after long */
                {algo, one + 1, 0, 0, 0, 2},
            };

            for (i = 0; i < (int)(sizeof rounds / sizeof rounds[0]); i++) {
                prepare(&m, SYMWIN_F32, SYMWIN_SUM, 0, (unsigned)i, rounds[i].count);
                one_call(&m, SYMWIN_F32, SYMWIN_SUM, &rounds[i]);
            }
            report(&m, symwin_algo_name(algo));
        }
        for (i = 0; i < (int)(sizeof whole / sizeof whole[0]); i++) {
            prepare(&m, SYMWIN_F32, SYMWIN_SUM, 1, (unsigned)i, whole[i].count);
            one_call(&m, SYMWIN_F32, SYMWIN_SUM, &whole[i]);
        }
        report(&m, "a large message");
        plain_memory(&m, 1000);
        plain_memory(&m, s->slot_bytes);
        report(&m, "memory in no window");
        /* Nothing happens, so it does not matter that the others do not call. */
        if (rank == 0)
            ok(&m, symwin_allreduce(m.comm, m.in, m.out, 0, SYMWIN_F32, SYMWIN_SUM, m.stream),
               "none");
        report(&m, "count 0 does nothing");
    }
    member_destroy(&m);
}

void allreduce_shapes(int nranks, size_t large_bytes)
{
    struct shared s = {.bytes = large_bytes, .slot_bytes = 4096};

    run(nranks, &s, shapes_body, "shapes");
}

/* ---- graphs and streams ---- */

static symwin_status capture(struct member *m, size_t count, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    symwin_status status;
    CUresult ended;

    *exec = NULL;
    status = sw_check(sw_drv.cuStreamBeginCapture(m->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                      "cuStreamBeginCapture");
    if (status != SYMWIN_OK)
        return status;
    /* A short one-shot, a two-shot, and the result of both summed once more. */
    status = symwin_allreduce(m->comm, m->in + GUARD, m->out + GUARD, count, SYMWIN_I32, SYMWIN_SUM,
                              m->stream);
    if (status == SYMWIN_OK) {
        const symwin_allreduce_options two = {sizeof two, SYMWIN_ALGO_TWOSHOT, 0};

        status = symwin_allreduce_with(m->comm, m->out + GUARD, m->out + GUARD, count, SYMWIN_I32,
                                       SYMWIN_SUM, &two, m->stream);
    }
    ended = sw_drv.cuStreamEndCapture(m->stream, &graph);
    if (status == SYMWIN_OK)
        status = sw_check(ended, "cuStreamEndCapture");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphInstantiateWithFlags(exec, graph, 0), "cuGraphInstantiate");
    if (graph != NULL)
        sw_drop(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return status;
}

static void graphs_body(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    const size_t count = s->bytes / 4;
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    struct member m;
    size_t i;
    int k;

    if (member_create(&m, team, rank) && ok(&m, sw_scope_enter(m.device, &scope), "scope")) {
        ok(&m, capture(&m, count, &exec), "capture");
        for (k = 0; k < s->runs && exec != NULL; k++) {
            prepare(&m, SYMWIN_I32, SYMWIN_SUM, 0, (unsigned)k, count);
            ok(&m, symwin_memcpy(m.device, m.in + GUARD, s->inputs[rank], count * 4, m.stream),
               "input");
            ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.stream), "cuGraphLaunch"), "launch");
            if (k % 3 == 0) { /* a call outside the graph between two replays */
                const symwin_allreduce_options one = {sizeof one, SYMWIN_ALGO_ONESHOT, 0};

                ok(&m,
                   symwin_allreduce_with(m.comm, m.in + GUARD, m.in + GUARD, 5, SYMWIN_I32,
                                         SYMWIN_MAX, &one, m.stream),
                   "allreduce");
            }
            ok(&m, symwin_memcpy(m.device, m.host, m.out + GUARD, count * 4, m.stream), "result");
            ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
            for (i = 0; i < count; i++) {
                uint32_t got, sum;

                memcpy(&got, m.host + i * 4, 4);
                memcpy(&sum, s->expected + i * 4, 4);
                if (got != sum * (uint32_t)team->nranks) {
                    printf("# rank %d, replay %d: [%zu] is %u, not %u\n", rank, k, i, got,
                           sum * (uint32_t)team->nranks);
                    (*m.wrong)++;
                    break;
                }
            }
        }
        ok(&m, symwin_comm_check(m.comm), "check");
        report(&m, "graph replays while the inputs change");
        if (exec != NULL)
            sw_drop(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        sw_scope_leave(&scope);
    }
    member_destroy(&m);
}

void allreduce_graphs(int nranks, int replays)
{
    struct shared s = {.bytes = 40004, .runs = replays};

    run(nranks, &s, graphs_body, "graphs");
}

/* Calls in flight over three streams in turn, each working on the result of the one before: only the
 * order that the library keeps makes the result right. */
static void streams_body(struct harness_team *team, int rank, void *arg)
{
    enum { STREAMS = 3 };
    struct shared *s = arg;
    const size_t count = s->bytes / 4;
    struct CUstream_st *streams[STREAMS] = {NULL};
    struct member m;
    uint32_t factor = 1;
    size_t i;
    int k;

    if (member_create(&m, team, rank)) {
        for (k = 0; k < STREAMS; k++)
            ok(&m, symwin_stream_create(m.device, &streams[k]), "stream_create");
        prepare(&m, SYMWIN_U32, SYMWIN_SUM, 0, 3, count);
        ok(&m, symwin_memcpy(m.device, m.in + GUARD, s->inputs[rank], count * 4, m.stream),
           "input");
        ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
        for (k = 0; k < s->runs; k++) {
            const symwin_allreduce_options options = {sizeof options, algos[k / 2 % 2], k % 3};

            ok(&m,
               symwin_allreduce_with(m.comm, m.in + GUARD, m.in + GUARD, count, SYMWIN_U32,
                                     SYMWIN_SUM, &options, streams[k % STREAMS]),
               "allreduce");
            factor *= k > 0 ? (uint32_t)team->nranks : 1;
        }
        for (k = 0; k < STREAMS; k++)
            ok(&m, symwin_stream_synchronize(m.device, streams[k]), "synchronize");
        ok(&m, symwin_memcpy(m.device, m.host, m.in + GUARD, count * 4, m.stream), "result");
        ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
        for (i = 0; i < count; i++) {
            uint32_t got, sum;

            memcpy(&got, m.host + i * 4, 4);
            memcpy(&sum, s->expected + i * 4, 4);
            if (got != sum * factor) {
                printf("# rank %d: [%zu] is %u, not %u\n", rank, i, got, sum * factor);
                (*m.wrong)++;
                break;
            }
        }
        ok(&m, symwin_comm_check(m.comm), "check");
        for (k = 0; k < STREAMS; k++)
            symwin_stream_destroy(m.device, streams[k]);
        report(&m, "calls in flight over three streams");
    }
    member_destroy(&m);
}

void allreduce_streams(int nranks, int calls)
{
    struct shared s = {.bytes = 20000, .runs = calls};

    run(nranks, &s, streams_body, "streams");
}

/* ---- random ---- */

static uint64_t next_random(uint64_t *state) /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void random_body(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    uint64_t state = s->seed; /* the same sequence on every rank */
    struct member m;
    int calls = 0;
    int k;

    if (member_create(&m, team, rank))
        for (k = 0; k < s->runs && *m.wrong == 0; k++) {
            const symwin_type type = (symwin_type)(next_random(&state) % TYPES);
            const symwin_op op = (symwin_op)(next_random(&state) % OPS);
            const size_t unit = symwin_type_bytes(type);
            const size_t room = (s->bytes - 256) / unit;
            const int in_place = (int)(next_random(&state) % 2);
            const struct placement p = {
                .algo = (symwin_algo)(next_random(&state) % (ALGOS + 1)),
                /* small counts as likely as large ones */
                .count = 1 + next_random(&state) % (1 + (room >> next_random(&state) % 16)),
                .in_offset = next_random(&state) % (256 / unit) * unit,
                .out_offset = next_random(&state) % (256 / unit) * unit,
                .in_place = in_place,
                .blocks = (int)(next_random(&state) % 4),
            };
            const int whole = p.algo == SYMWIN_ALGO_AUTO || over_multicast(p.algo);
            struct placement fitting = p;

            if (fitting.count > room)
                fitting.count = room;
            if (!offered(&m, p.algo, op))
                continue;
            prepare(&m, type, op, whole, (unsigned)k, fitting.count);
            calls += one_call(&m, type, op, &fitting);
            harness_barrier(team);
        }
    harness_barrier(team);
    if (rank == 0)
        tap_ok(*m.wrong == 0, "%d ranks: %d random calls (seed %u)", team->nranks, calls, s->seed);
    member_destroy(&m);
}

void allreduce_random(int nranks, int runs, size_t most_bytes, unsigned seed)
{
    struct shared s = {.bytes = most_bytes, .runs = runs, .seed = seed};

    run(nranks, &s, random_body, "random");
}
