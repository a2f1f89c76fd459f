#include "allreduce_cases.h"

#include <stdint.h>

#include "allreduce_member.h"
#include "harness.h"
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

static void run(int nranks, struct member_shared *s,
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
    struct member_shared s = {.counts = counts, .thin = thin};
    int i;

    for (i = 0; counts[i] != 0; i++)
        if (counts[i] * 8 + 64 > s.bytes)
            s.bytes = counts[i] * 8 + 64;
    run(nranks, &s, matrix_body, "matrix");
}

/* ---- shapes ---- */

/* The same result from memory that is in no window, on odd ranks aligned to an element only: ranks with kernels for aligned
 * messages and ranks without work together. */
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
    harness_barrier(m->team); /* it may wait for the device too: no kernel may wait for this rank */
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
    harness_barrier(m->team); /* so may cuMemFree */
    sw_drop(sw_drv.cuMemFree(memory), "cuMemFree");
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
            /* Elements that go in one round: of a whole slot or, with flags, half; of that a rank or half. */
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
                member_prepare(&m, SYMWIN_F32, SYMWIN_SUM, 0, (unsigned)i, rounds[i].count);
                member_call(&m, SYMWIN_F32, SYMWIN_SUM, &rounds[i]);
            }
            report(&m, symwin_algo_name(algo));
        }
        for (i = 0; i < (int)(sizeof whole / sizeof whole[0]); i++) {
            member_prepare(&m, SYMWIN_F32, SYMWIN_SUM, 1, (unsigned)i, whole[i].count);
            member_call(&m, SYMWIN_F32, SYMWIN_SUM, &whole[i]);
        }
        report(&m, "a large message");
        plain_memory(&m, 1000);
        plain_memory(&m, 1001);
        plain_memory(&m, s->slot_bytes);
        report(&m, "memory in no window");
        /* Nothing happens, so it does not matter that the others do not call. */
        if (rank == 0)
            member_ok(&m,
                      symwin_allreduce(m.comm, m.in, m.out, 0, SYMWIN_F32, SYMWIN_SUM, m.stream),
                      "none");
        report(&m, "count 0 does nothing");
    }
    member_destroy(&m);
}

void allreduce_shapes(int nranks, size_t large_bytes)
{
    struct member_shared s = {.bytes = large_bytes, .slot_bytes = 4096};

    run(nranks, &s, shapes_body, "shapes");
}

/* ---- long messages ---- */

/* Those of which every thread has several entries: kernels of their own, that send, reduce and collect at the same time.
 * By ranks of different grids, in one round and several, with shares of all lengths. Copies have one in place. */
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
                const int windows = algos[a] == SYMWIN_ALGO_COPIES; /* which need equal offsets */

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
                report(&m, name);
            }
    member_destroy(&m);
}

void allreduce_long(int nranks)
{
    const size_t least = sw_driver_is_emulated() ? 4 << 10 : 4 << 20; /* choice.c */
    struct member_shared s = {.bytes = 6 * least, .slot_bytes = least};

    run(nranks, &s, long_body, "long messages");
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
    status = symwin_allreduce(m->comm, m->in + MEMBER_GUARD, m->out + MEMBER_GUARD, count,
                              SYMWIN_I32, SYMWIN_SUM, m->stream);
    if (status == SYMWIN_OK) {
        const symwin_allreduce_options two = {sizeof two, SYMWIN_ALGO_TWOSHOT, 0, 0};

        status = symwin_allreduce_with(m->comm, m->out + MEMBER_GUARD, m->out + MEMBER_GUARD, count,
                                       SYMWIN_I32, SYMWIN_SUM, &two, m->stream);
    }
    ended = sw_drv.cuStreamEndCapture(m->stream, &graph);
    if (status == SYMWIN_OK)
        status = sw_check(ended, "cuStreamEndCapture");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphInstantiateWithFlags(exec, graph, 0), "cuGraphInstantiate");
    if (status == SYMWIN_OK)
        status = sw_graph_upload(*exec, m->stream);
    if (graph != NULL)
        sw_drop(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return status;
}

static void graphs_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    const size_t count = s->bytes / 4;
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    struct member m;
    size_t i;
    int k;

    if (member_create(&m, team, rank) && member_ok(&m, sw_scope_enter(m.device, &scope), "scope")) {
        member_ok(&m, capture(&m, count, &exec), "capture");
        for (k = 0; k < s->runs && exec != NULL; k++) {
            member_prepare(&m, SYMWIN_I32, SYMWIN_SUM, 0, (unsigned)k, count);
            member_ok(
                &m,
                symwin_memcpy(m.device, m.in + MEMBER_GUARD, s->inputs[rank], count * 4, m.stream),
                "input");
            member_ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.stream), "cuGraphLaunch"),
                      "launch");
            if (k % 3 == 0) { /* a call outside the graph between two replays */
                const symwin_allreduce_options one = {sizeof one, SYMWIN_ALGO_ONESHOT, 0, 0};

                member_ok(&m,
                          symwin_allreduce_with(m.comm, m.in + MEMBER_GUARD, m.in + MEMBER_GUARD, 5,
                                                SYMWIN_I32, SYMWIN_MAX, &one, m.stream),
                          "allreduce");
            }
            member_ok(&m,
                      symwin_memcpy(m.device, m.host, m.out + MEMBER_GUARD, count * 4, m.stream),
                      "result");
            member_ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
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
        member_ok(&m, symwin_comm_check(m.comm), "check");
        report(&m, "graph replays while the inputs change");
        if (exec != NULL)
            sw_drop(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        sw_scope_leave(&scope);
    }
    member_destroy(&m);
}

void allreduce_graphs(int nranks, int replays)
{
    struct member_shared s = {.bytes = 40004, .runs = replays};

    run(nranks, &s, graphs_body, "graphs");
}

/* Calls in flight over three streams in turn, each working on the result of the one before: only the
 * order that the library keeps makes the result right. */
static void streams_body(struct harness_team *team, int rank, void *arg)
{
    enum { STREAMS = 3 };
    struct member_shared *s = arg;
    const size_t count = s->bytes / 4;
    struct CUstream_st *streams[STREAMS] = {NULL};
    struct member m;
    uint32_t factor = 1;
    size_t i;
    int k;

    if (member_create(&m, team, rank)) {
        for (k = 0; k < STREAMS; k++)
            member_ok(&m, symwin_stream_create(m.device, &streams[k]), "stream_create");
        member_prepare(&m, SYMWIN_U32, SYMWIN_SUM, 0, 3, count);
        member_ok(
            &m, symwin_memcpy(m.device, m.in + MEMBER_GUARD, s->inputs[rank], count * 4, m.stream),
            "input");
        member_ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
        for (k = 0; k < s->runs; k++) {
            const symwin_allreduce_options options = {sizeof options, member_algos[k / 2 % 2],
                                                      k % 3, 0};

            member_ok(&m,
                      symwin_allreduce_with(m.comm, m.in + MEMBER_GUARD, m.in + MEMBER_GUARD, count,
                                            SYMWIN_U32, SYMWIN_SUM, &options, streams[k % STREAMS]),
                      "allreduce");
            factor *= k > 0 ? (uint32_t)team->nranks : 1;
        }
        for (k = 0; k < STREAMS; k++)
            member_ok(&m, symwin_stream_synchronize(m.device, streams[k]), "synchronize");
        member_ok(&m, symwin_memcpy(m.device, m.host, m.in + MEMBER_GUARD, count * 4, m.stream),
                  "result");
        member_ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
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
        member_ok(&m, symwin_comm_check(m.comm), "check");
        for (k = 0; k < STREAMS; k++)
            symwin_stream_destroy(m.device, streams[k]);
        report(&m, "calls in flight over three streams");
    }
    member_destroy(&m);
}

void allreduce_streams(int nranks, int calls)
{
    struct member_shared s = {.bytes = 20000, .runs = calls};

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
    struct member_shared *s = arg;
    uint64_t state = s->seed; /* the same sequence on every rank */
    struct member m;
    int calls = 0;
    int k;

    if (member_create(&m, team, rank))
        for (k = 0; k < s->runs && *m.wrong == 0; k++) {
            const symwin_type type = (symwin_type)(next_random(&state) % MEMBER_TYPES);
            const symwin_op op = (symwin_op)(next_random(&state) % MEMBER_OPS);
            const size_t unit = symwin_type_bytes(type);
            const size_t room = (s->bytes - 256) / unit;
            const int in_place = (int)(next_random(&state) % 2);
            const struct placement p = {
                .algo = (symwin_algo)(next_random(&state) % SW_ALGOS),
                /* small counts as likely as large ones */
                .count = 1 + next_random(&state) % (1 + (room >> next_random(&state) % 16)),
                .in_offset = next_random(&state) % (256 / unit) * unit,
                .out_offset = next_random(&state) % (256 / unit) * unit,
                .in_place = in_place,
                .blocks = (int)(next_random(&state) % 4),
                .threads = (int)(next_random(&state) % 3) * 29, /* the default, one warp, two */
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

    run(nranks, &s, random_body, "random");
}
