#include "allreduce_cases.h"

#include "allreduce_member.h"
#include "kernels/copies_layout.h"
#include "reference.h"

/* ---- the matrix ---- */

static void matrix_line(struct member *m, symwin_type type, symwin_op op, symwin_algo algo,
                        size_t largest, int *turn)
{
    struct member_shared *s = m->shared;
    const size_t unit = symwin_type_bytes(type);
    int calls = 0;
    int i, shape;

    member_prepare(m, type, op, member_over_multicast(algo), (unsigned)type * 31 + (unsigned)op,
                   largest);
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
            calls += member_call(m, type, op, &p);
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
    struct member_shared *s = arg;
    struct member m;
    size_t largest = 0;
    int type, op, a, i;
    int turn = 0;

    for (i = 0; s->counts[i] != 0; i++)
        largest = s->counts[i] > largest ? s->counts[i] : largest;
    if (member_create(&m, team, rank))
        for (type = 0; type < MEMBER_TYPES; type++)
            for (op = 0; op < MEMBER_OPS; op++)
                for (a = 0; a < MEMBER_ALGOS; a++)
                    if (member_offers(&m, member_algos[a], (symwin_op)op))
                        matrix_line(&m, (symwin_type)type, (symwin_op)op, member_algos[a], largest,
                                    &turn);
    member_destroy(&m);
}

void allreduce_matrix(int nranks, const size_t *counts, int thin)
{
    struct member_shared s = {.counts = counts, .thin = thin};
    int i;

    for (i = 0; counts[i] != 0; i++)
        if (counts[i] * 8 + 64 > s.bytes)
            s.bytes = counts[i] * 8 + 64;
    member_run(nranks, &s, matrix_body, "matrix");
}

/* ---- shapes ---- */

/* The same result from memory that is in no window. On odd ranks it is aligned to an element only,
 * so that ranks with kernels for aligned messages work with ranks without. */
static void plain_memory(struct member *m, size_t count)
{
    struct member_shared *s = m->shared;
    struct sw_scope scope;
    CUdeviceptr memory = 0, plain;

    member_prepare(m, SYMWIN_F32, SYMWIN_SUM, 0, 7, count);
    if (!member_ok(m, sw_scope_enter(m->device, &scope), "scope"))
        return;
    member_ok(m, sw_check(sw_drv.cuMemAlloc(&memory, (count + 1) * 4), "cuMemAlloc"), "cuMemAlloc");
    plain = memory + (CUdeviceptr)(m->rank % 2) * 4;
    /* cuMemAlloc may wait for the device: no kernel may wait for this rank. */
    harness_barrier(m->team);
    member_ok(m,
              symwin_memcpy(m->device, (void *)(uintptr_t)plain, s->inputs[m->rank], count * 4,
                            m->stream),
              "input");
    member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    member_ok(m,
              symwin_allreduce(m->comm, (void *)(uintptr_t)plain, (void *)(uintptr_t)plain, count,
                               SYMWIN_F32, SYMWIN_SUM, m->stream),
              "allreduce");
    member_ok(m, symwin_memcpy(m->device, m->host, (void *)(uintptr_t)plain, count * 4, m->stream),
              "result");
    member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    if (reference_compare(SYMWIN_F32, m->host, s->expected, count) >= 0)
        (*m->wrong)++;
    harness_barrier(m->team); /* cuMemFree may wait too */
    sw_drop(sw_drv.cuMemFree(memory), "cuMemFree");
    sw_scope_leave(&scope);
}

static void shapes_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    const size_t large = s->bytes / 4 - 4, ranks = (size_t)team->nranks;
    struct member m;
    int i;

    if (member_create(&m, team, rank)) {
        static const symwin_algo pushes[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_ONESHOT_SENTINEL,
                                             SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_TWOSHOT_PUT};
        int a;
        const struct placement whole[] = {
            {SYMWIN_ALGO_AUTO, large, 0, 0, 0, 0, 0},
            {SYMWIN_ALGO_AUTO, large, 0, 0, 1, 0, 0},
            {SYMWIN_ALGO_TWOSHOT, large - 3, 4, 12, 0, 0, 0},
        };

        for (a = 0; a < 4; a++) {
            const symwin_algo algo = pushes[a];
            const symwin_type type = algo == SYMWIN_ALGO_ONESHOT ? SYMWIN_I32 : SYMWIN_F32;
            /* Elements of one round: a whole slot, or half a slot for entries with flags; for each
             * rank in the two-shots. */
            const size_t one = (algo == SYMWIN_ALGO_ONESHOT            ? s->slot_bytes
                                : algo == SYMWIN_ALGO_ONESHOT_SENTINEL ? 2 * s->slot_bytes
                                : algo == SYMWIN_ALGO_TWOSHOT_PUT      ? 2 * s->slot_bytes * ranks
                                                                       : s->slot_bytes * ranks) /
                               4;
            const struct placement rounds[] = {
                {algo, one, 0, 0, 0, 0, 0},         {algo, one + 1, 0, 0, 0, 0, 0}, /* two rounds */
                {algo, 2 * one + 3, 4, 4, 0, 1, 0}, /* three, one block */
                {algo, 5 * one + 1, 0, 0, 1, 0, 0}, /* many, in place */
                {algo, 1, 0, 0, 0, 0, 0},           /* short after long */
                {algo, one + 1, 0, 0, 0, 2, 33},
            };

            for (i = 0; i < (int)(sizeof rounds / sizeof rounds[0]); i++) {
                member_prepare(&m, type, SYMWIN_SUM, 0, (unsigned)i, rounds[i].count);
                member_call(&m, type, SYMWIN_SUM, &rounds[i]);
            }
            member_report(&m, symwin_algo_name(algo));
        }
        for (i = 0; i < (int)(sizeof whole / sizeof whole[0]); i++) {
            member_prepare(&m, SYMWIN_F32, SYMWIN_SUM, 1, (unsigned)i, whole[i].count);
            member_call(&m, SYMWIN_F32, SYMWIN_SUM, &whole[i]);
        }
        member_report(&m, "a large message");
        plain_memory(&m, 1000);
        plain_memory(&m, 1001);
        plain_memory(&m, s->slot_bytes);
        member_report(&m, "memory in no window");
        /* The call does nothing, so the other ranks need not call. */
        if (rank == 0)
            member_ok(&m,
                      symwin_allreduce(m.comm, m.in, m.out, 0, SYMWIN_F32, SYMWIN_SUM, m.stream),
                      "none");
        member_report(&m, "count 0 does nothing");
    }
    member_destroy(&m);
}

void allreduce_shapes(int nranks, size_t large_bytes)
{
    struct member_shared s = {.bytes = large_bytes, .slot_bytes = 4096};

    member_run(nranks, &s, shapes_body, "shapes");
}

/* ---- long messages ---- */

/* Messages with several entries for each thread have their own kernels, which send, reduce and
 * collect at the same time. Ranks have different grids; messages take one round or several, with
 * shares of all lengths. The copies have such a kernel in place. */
static void long_body(struct harness_team *team, int rank, void *arg)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
                                        SYMWIN_ALGO_COPIES};
    static const symwin_type types[] = {SYMWIN_F32, SYMWIN_F16, SYMWIN_BF16, SYMWIN_F8E4M3,
                                        SYMWIN_F8E5M2};
    const struct member_shared *s = arg;
    const size_t least = s->slot_bytes,
                 lengths[] = {least, least + 16, 2 * least + 1040, 5 * least + 48};
    char name[64];
    struct member m;
    int a, t, i;

    if (member_create(&m, team, rank))
        for (a = 0; a < 3; a++)
            for (t = 0; t < 5; t++) {
                const int windows = algos[a] == SYMWIN_ALGO_COPIES; /* these need equal offsets */

                for (i = 0; i < 12; i++) {
                    /* Sometimes half of the ranks have the kernel for any alignment. */
                    const size_t odd = !windows && i % 3 == 1 && rank % 2 != 0
                                           ? symwin_type_bytes(types[t])
                                           : 0;
                    const struct placement p = {
                        .algo = algos[a],
                        .count = lengths[i % 4] / symwin_type_bytes(types[t]),
                        .in_offset = (size_t)(i % 3) * 16 + odd,
                        .out_offset = (size_t)(i % 2) * 16,
                        .in_place = windows || i % 5 == 0,
                        .blocks = i % 4 == 3 ? 0 : 1 + (rank + i) % 3,
                        .threads = i < 6 || rank % 2 != 0 ? 0 : 32,
                    };

                    member_prepare(&m, types[t], SYMWIN_SUM, 0, (unsigned)i, p.count);
                    member_call(&m, types[t], SYMWIN_SUM, &p);
                }
                snprintf(name, sizeof name, "long messages, %s %s", symwin_algo_name(algos[a]),
                         symwin_type_name(types[t]));
                member_report(&m, name);
            }
    member_destroy(&m);
}

void allreduce_long(int nranks)
{
    const size_t least = sw_driver_is_emulated() ? 4 << 10 : 4 << 20; /* select.c */
    struct member_shared s = {.bytes = 6 * least, .slot_bytes = least};

    member_run(nranks, &s, long_body, "long messages");
}

/* ---- graphs and streams ---- */

/* A short one-shot, a two-shot, and the result of both summed once more. */
static symwin_status captured_calls(struct member *m, size_t count)
{
    unsigned char *const in = m->in + MEMBER_GUARD, *const out = m->out + MEMBER_GUARD;
    const symwin_status status = member_enqueue(m, SYMWIN_ALGO_AUTO, in, out, count, SYMWIN_I32,
                                                SYMWIN_SUM, 0, m->stream);

    return status != SYMWIN_OK ? status
                               : member_enqueue(m, SYMWIN_ALGO_TWOSHOT, out, out, count, SYMWIN_I32,
                                                SYMWIN_SUM, 0, m->stream);
}

static void graphs_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    const size_t count = s->bytes / 4;
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    struct member m;
    int k;

    if (member_create(&m, team, rank) && member_ok(&m, sw_scope_enter(m.device, &scope), "scope")) {
        unsigned char *const in = m.in + MEMBER_GUARD;

        if (member_ok(&m,
                      member_capture(&m, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, captured_calls, count,
                                     &exec),
                      "capture"))
            member_ok(&m, sw_graph_upload(exec, m.stream), "upload");
        for (k = 0; k < s->runs && exec != NULL; k++) {
            member_prepare(&m, SYMWIN_I32, SYMWIN_SUM, 0, (unsigned)k, count);
            member_ok(&m, symwin_memcpy(m.device, in, s->inputs[rank], count * 4, m.stream),
                      "input");
            member_ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.stream), "cuGraphLaunch"),
                      "launch");
            if (k % 3 == 0) /* a call outside the graph between two replays */
                member_ok(&m,
                          member_enqueue(&m, SYMWIN_ALGO_ONESHOT, in, in, 5, SYMWIN_I32, SYMWIN_MAX,
                                         0, m.stream),
                          "allreduce");
            member_expect(&m, m.out + MEMBER_GUARD, count, (uint32_t)team->nranks, "replay");
        }
        member_report(&m, "graph replays while the inputs change");
        if (exec != NULL)
            sw_drop(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        sw_scope_leave(&scope);
    }
    member_destroy(&m);
}

void allreduce_graphs(int nranks, int replays)
{
    struct member_shared s = {.bytes = 40004, .runs = replays};

    member_run(nranks, &s, graphs_body, "graphs");
}

/* Calls in flight over three streams in turn. Each works on the result of the previous one: only
 * the order that the library keeps makes the result right. */
static void streams_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    const size_t count = s->bytes / 4;
    struct member m;
    uint32_t factor = 1;
    int k;

    if (member_create(&m, team, rank)) {
        unsigned char *const in = m.in + MEMBER_GUARD;

        member_prepare(&m, SYMWIN_U32, SYMWIN_SUM, 0, 3, count);
        member_put(&m, in, count);
        for (k = 0; k < s->runs; k++) {
            member_ok(&m,
                      member_enqueue(&m, member_algos[k / 2 % 2], in, in, count, SYMWIN_U32,
                                     SYMWIN_SUM, k % 3, m.streams[k % MEMBER_STREAMS]),
                      "allreduce");
            factor *= k > 0 ? (uint32_t)team->nranks : 1;
        }
        for (k = 0; k < MEMBER_STREAMS; k++)
            member_ok(&m, symwin_stream_synchronize(m.device, m.streams[k]), "synchronize");
        member_expect(&m, in, count, factor, "streams");
        member_report(&m, "calls in flight over three streams");
    }
    member_destroy(&m);
}

void allreduce_streams(int nranks, int calls)
{
    struct member_shared s = {.bytes = 20000, .runs = calls, .streams = MEMBER_STREAMS};

    member_run(nranks, &s, streams_body, "streams");
}

/* ---- random ---- */

static void random_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    uint64_t state = s->seed; /* the same sequence on every rank */
    struct member m;
    int calls = 0;
    int k;

    if (member_create(&m, team, rank))
        for (k = 0; k < s->runs && *m.wrong == 0; k++) {
            const symwin_type type = (symwin_type)(host_random(&state) % MEMBER_TYPES);
            const symwin_op op = (symwin_op)(host_random(&state) % MEMBER_OPS);
            const size_t unit = symwin_type_bytes(type);
            const size_t room = (s->bytes - 256) / unit;
            const int in_place = (int)(host_random(&state) % 2);
            const struct placement p = {
                .algo = (symwin_algo)(host_random(&state) % SW_ALGOS),
                /* small counts as likely as large ones */
                .count = 1 + host_random(&state) % (1 + (room >> host_random(&state) % 16)),
                .in_offset = host_random(&state) % (256 / unit) * unit,
                .out_offset = host_random(&state) % (256 / unit) * unit,
                .in_place = in_place,
                .blocks = (int)(host_random(&state) % 4),
                .threads = (int)(host_random(&state) % 3) * 29, /* the default, one warp, two */
            };
            const int whole = p.algo == SYMWIN_ALGO_AUTO || member_over_multicast(p.algo);
            struct placement fitting = p;

            if (fitting.count > room)
                fitting.count = room;
            if (!member_offers(&m, p.algo, op))
                continue;
            member_prepare(&m, type, op, whole, (unsigned)k, fitting.count);
            calls += member_call(&m, type, op, &fitting);
            harness_barrier(team);
        }
    harness_barrier(team);
    if (rank == 0)
        tap_ok(*m.wrong == 0, "%d ranks: %d random calls (seed %u)", team->nranks, calls, s->seed);
    member_destroy(&m);
}

void allreduce_random(int nranks, int runs, size_t most_bytes, unsigned seed)
{
    struct member_shared s = {.bytes = most_bytes, .runs = runs, .seed = seed};

    member_run(nranks, &s, random_body, "random");
}

/* ---- the all-reduce by copies ---- */

/* The data's offset in a buffer: a multiple of SW_COPIES_ALIGN with MEMBER_GUARD. */
enum { COPIES_AT = SW_COPIES_ALIGN - MEMBER_GUARD, COPIES_GUARD = MEMBER_GUARD + COPIES_AT };

static void copies_line(struct member *m, symwin_type type, symwin_op op, const size_t *counts,
                        int *turn)
{
    struct member_shared *s = m->shared;
    const size_t unit = symwin_type_bytes(type);
    int shape;

    /* The reference of the longest message begins with those of the shorter ones. */
    member_prepare(m, type, op, 0, (unsigned)type * 31 + (unsigned)op, (s->bytes - 256) / unit);
    for (shape = 0; shape < 5 * 9; shape++) {
        const int in_place = shape % 5 == 4 || ((int)type + shape) % 10 == 3;
        const size_t in = (shape % 5 & 1) != 0 ? 5 * unit : 0;
        const size_t out = (shape % 5 & 2) != 0 ? 3 * unit : 0;
        const struct placement p = {.algo = SYMWIN_ALGO_COPIES,
                                    .count = counts[shape / 5],
                                    .in_offset = COPIES_AT + (in_place ? out : in),
                                    .out_offset = COPIES_AT + out,
                                    .in_place = in_place,
                                    .blocks = (shape + (int)type) % 3};

        if ((*turn)++ % s->thin == 0 && !member_call(m, type, op, &p))
            member_ok(m, SYMWIN_UNSUPPORTED, "copies");
    }
}

static void copies_matrix_body(struct harness_team *team, int rank, void *arg)
{
    const size_t shares = SW_COPIES_ALIGN * (size_t)team->nranks;
    int type, op, turn = 0;
    struct member m;

    (void)arg;
    if (member_create(&m, team, rank)) {
        for (type = 0; type < MEMBER_TYPES; type++) {
            const size_t unit = symwin_type_bytes((symwin_type)type);
            /* No share, one chunk, two, unequal chunks, and one element more or less than each. */
            const size_t counts[] = {1,
                                     SW_COPIES_ALIGN / unit,
                                     shares / unit - 1,
                                     shares / unit,
                                     shares / unit + 1,
                                     2 * shares / unit - 1,
                                     2 * shares / unit + 3,
                                     5 * shares / unit + 1,
                                     40 * shares / unit + 7};

            for (op = 0; op < MEMBER_OPS; op++)
                copies_line(&m, (symwin_type)type, (symwin_op)op, counts, &turn);
        }
        member_report(&m, "copies: types, operations, counts and offsets");
    }
    member_destroy(&m);
}

void copies_matrix(int nranks, int thin)
{
    struct member_shared s = {
        .bytes = (size_t)nranks * SW_COPIES_ALIGN * 41 + 1024, .slot_bytes = 1024, .thin = thin};

    member_run(nranks, &s, copies_matrix_body, "copies matrix");
}

static void copies_chain_body(struct harness_team *team, int rank, void *arg)
{
    static const symwin_algo others[] = {SYMWIN_ALGO_TWOSHOT, SYMWIN_ALGO_COPIES,
                                         SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT_PUSH};
    struct member_shared *s = arg;
    const size_t count = (s->bytes - COPIES_AT) / 4;
    struct member m;
    uint32_t factor = 1;
    int k;

    if (member_create(&m, team, rank)) {
        unsigned char *from = m.in + COPIES_GUARD, *to = m.out + COPIES_GUARD;

        member_prepare(&m, SYMWIN_U32, SYMWIN_SUM, 0, 5, count);
        member_put(&m, from, count);
        for (k = 0; k < s->runs; k++) {
            struct CUstream_st *stream = m.streams[k / 2 % s->streams];
            /* One rank, another each time, sums with one block: the others are far ahead of it. */
            const int blocks = (k + rank) % team->nranks == 0 ? 1 : 4;

            if (k % 4 == 3) {
                member_ok(&m,
                          member_enqueue(&m, others[k / 4 % 4], from, from, count, SYMWIN_U32,
                                         SYMWIN_SUM, 0, stream),
                          "in place");
            } else {
                unsigned char *const result = to;

                member_ok(&m,
                          member_enqueue(&m, SYMWIN_ALGO_COPIES, from, to, count, SYMWIN_U32,
                                         SYMWIN_SUM, blocks, stream),
                          "copies");
                to = from;
                from = result;
            }
            factor *= k > 0 ? (uint32_t)team->nranks : 1;
        }
        for (k = 0; k < s->streams; k++)
            member_ok(&m, symwin_stream_synchronize(m.device, m.streams[k]), "synchronize");
        member_expect(&m, from, count, factor, "chain");
        member_report(&m, s->streams > 1 ? "copies in flight over streams in turn"
                                         : "copies in flight");
    }
    member_destroy(&m);
}

void copies_chain(int nranks, int calls, int streams, unsigned count)
{
    struct member_shared s = {.bytes = (size_t)count * 4 + COPIES_AT,
                              .slot_bytes = 4096,
                              .runs = calls,
                              .streams = streams};

    member_run(nranks, &s, copies_chain_body, "copies chain");
}

/* A group of which the second call is refused there. */
static int group_refused(struct member *m, unsigned char *a, unsigned char *b, size_t count,
                         struct CUstream_st *stream)
{
    member_ok(m, symwin_group_begin(), "symwin_group_begin");
    member_ok(
        m, member_enqueue(m, SYMWIN_ALGO_ONESHOT, a, b, count, SYMWIN_U32, SYMWIN_MAX, 0, stream),
        "the first call of a group");
    (void)member_enqueue(m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32, SYMWIN_MAX, 0, stream);
    return symwin_group_end() == SYMWIN_BUSY &&
           strstr(symwin_last_error(), "in another capture") != NULL;
}

/* During the capture: a call outside it, and a call and a group in another capture, which are
 * refused: nothing of them is launched. */
static void beside_capture(struct member *m, size_t count)
{
    unsigned char *const a = m->in + COPIES_GUARD, *const b = m->out + COPIES_GUARD;
    struct CUstream_st *const other = m->streams[1];
    CUgraph graph = NULL;
    size_t nodes = 1;

    member_ok(m,
              member_enqueue(m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32, SYMWIN_MAX, 0, other),
              "a call beside a capture");
    member_ok(m, symwin_stream_synchronize(m->device, other), "synchronize");
    if (sw_drv.cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) != CUDA_SUCCESS)
        (*m->wrong)++;
    if (member_enqueue(m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32, SYMWIN_MAX, 0, other) !=
            SYMWIN_BUSY ||
        strstr(symwin_last_error(), "in another capture") == NULL)
        *m->wrong += printf("# a second capture: %s\n", symwin_last_error()) > 0;
    if (!group_refused(m, a, b, count, other))
        *m->wrong += printf("# a group in a second capture: %s\n", symwin_last_error()) > 0;
    if (sw_drv.cuStreamEndCapture(other, &graph) != CUDA_SUCCESS ||
        sw_drv.cuGraphGetNodes(graph, NULL, &nodes) != CUDA_SUCCESS || nodes > 0 ||
        sw_drv.cuGraphDestroy(graph) != CUDA_SUCCESS)
        *m->wrong += printf("# a second capture has %zu nodes\n", nodes) > 0;
}

/* a -> b by copies, b in place by copies, b -> a by copies. */
static symwin_status captured_copies(struct member *m, size_t count)
{
    unsigned char *const a = m->in + COPIES_GUARD, *const b = m->out + COPIES_GUARD;
    unsigned char *const way[] = {a, b, b, a};
    symwin_status status = SYMWIN_OK;
    int i;

    for (i = 0; i < 3 && status == SYMWIN_OK; i++)
        status = member_enqueue(m, SYMWIN_ALGO_COPIES, way[i], way[i + 1], count, SYMWIN_U32,
                                SYMWIN_SUM, i == 2 ? 2 : 0, m->stream);
    beside_capture(m, count);
    return status;
}

static void copies_graphs_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    const size_t count = (s->bytes - COPIES_AT) / 4;
    const uint32_t n = (uint32_t)team->nranks;
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    struct member m;
    int k;

    if (member_create(&m, team, rank) && member_ok(&m, sw_scope_enter(m.device, &scope), "scope")) {
        unsigned char *const a = m.in + COPIES_GUARD, *const b = m.out + COPIES_GUARD;

        member_prepare(&m, SYMWIN_U32, SYMWIN_SUM, 0, 99, count);
        member_put(&m, a, count);
        harness_barrier(team);
        member_ok(&m,
                  member_capture(&m, CU_STREAM_CAPTURE_MODE_RELAXED, captured_copies, count, &exec),
                  "capture");
        for (k = 0; k < s->runs && exec != NULL; k++) {
            member_prepare(&m, SYMWIN_U32, SYMWIN_SUM, 0, (unsigned)k, count);
            member_put(&m, a, count);
            member_ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.stream), "launch"), "launch");
            if (k % 3 == 1) /* once more: sums of the sums */
                member_ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.stream), "launch"), "launch");
            if (k % 3 == 2)
                member_ok(&m,
                          member_enqueue(&m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32,
                                         SYMWIN_SUM, 0, m.stream),
                          "a call between replays");
            member_expect(&m, k % 3 == 2 ? b : a, count,
                          k % 3 == 0   ? n * n
                          : k % 3 == 1 ? n * n * n * n * n
                                       : n * n * n,
                          "replay");
        }
        member_report(&m, "copies: graph replays while the inputs change");
        if (exec != NULL)
            sw_drop(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        sw_scope_leave(&scope);
    }
    member_destroy(&m);
}

void copies_graphs(int nranks, int replays, unsigned count)
{
    struct member_shared s = {
        .bytes = (size_t)count * 4 + COPIES_AT, .slot_bytes = 4096, .runs = replays, .streams = 2};

    member_run(nranks, &s, copies_graphs_body, "copies graphs");
}
