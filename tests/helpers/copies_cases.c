#include "copies_cases.h"

#include <stdint.h>

#include "harness.h"
#include "kernels/copies_layout.h"
#include "reference.h"

enum { GUARD = 256, MOST_RANKS = 32, TYPES = 12, OPS = 5, BUFFERS = 2, MOST_STREAMS = 3 };

struct shared {
    size_t bytes;      /* of the data part of a buffer */
    size_t slot_bytes; /* in place, more than twice a share makes several rounds */
    int thin, runs, streams;
    unsigned char *inputs[MOST_RANKS], *expected; /* host; a process has its own of all */
    int failed;
};

struct member {
    struct harness_team *team;
    struct shared *shared;
    atomic_int *wrong;
    int rank, device;
    symwin_comm *comm;
    struct CUstream_st *streams[MOST_STREAMS];
    symwin_window *windows[BUFFERS];
    unsigned char *buffers[BUFFERS]; /* device: GUARD + bytes + GUARD */
    unsigned char *host;             /* as large */
};

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

/* What lies around an output: unlike the other ranks', so that a peer's shows where it was copied. */
static unsigned char guard_of(int rank)
{
    return (unsigned char)(0xa5 + 7 * rank);
}

static int has_inputs_of(const struct member *m, int rank)
{
    return harness_job != NULL || m->rank == rank;
}

static int member_open(struct member *m, struct harness_team *team, int rank)
{
    struct shared *s = team->arg;
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = 60000,
                                         .kernel_timeout_ms = 60000,
                                         .slot_bytes = s->slot_bytes};
    int good, i;

    *m = (struct member){.team = team,
                         .shared = s,
                         .rank = rank,
                         .device = harness_device(rank),
                         .wrong = harness_count(team)};
    m->host = malloc(buffer_bytes(s));
    for (i = 0; i < team->nranks; i++)
        if (has_inputs_of(m, i))
            s->inputs[i] = malloc(s->bytes);
    good = ok(m, symwin_comm_create(&team->id, team->nranks, rank, m->device, &options, &m->comm),
              "comm_create");
    for (i = 0; i < s->streams && good; i++)
        good = ok(m, symwin_stream_create(m->device, &m->streams[i]), "stream_create");
    for (i = 0; i < BUFFERS && good; i++) {
        void *buffer = NULL;

        good = ok(m, symwin_mem_alloc(m->device, buffer_bytes(s), 0, &buffer), "mem_alloc") &&
               ok(m, symwin_window_register(m->comm, buffer, buffer_bytes(s), 0, &m->windows[i]),
                  "register");
        m->buffers[i] = buffer;
    }
    harness_barrier(team);
    return good && *m->wrong == 0;
}

static void member_close(struct member *m, const char *name)
{
    int i;

    harness_barrier(m->team);
    if (m->rank == 0)
        tap_ok(*m->wrong == 0, "%d ranks: %s", m->team->nranks, name);
    symwin_comm_destroy(m->comm);
    for (i = 0; i < BUFFERS; i++)
        symwin_mem_free(m->buffers[i]);
    for (i = 0; i < m->shared->streams; i++)
        if (m->streams[i] != NULL)
            symwin_stream_destroy(m->device, m->streams[i]);
    free(m->host);
    harness_barrier(m->team);
    for (i = 0; i < m->team->nranks; i++)
        if (has_inputs_of(m, i))
            free(m->shared->inputs[i]);
}

static void run(int nranks, struct shared *s,
                void (*body)(struct harness_team *team, int rank, void *arg), const char *name)
{
    const struct harness_leaks before = harness_leaks_now();

    s->expected = malloc(s->bytes);
    harness_run(nranks, body, s);
    free(s->expected);
    harness_no_leaks(name, &before);
}

/* All ranks' inputs and the result. */
static void prepare(struct member *m, symwin_type type, symwin_op op, unsigned seed, size_t count)
{
    struct shared *s = m->shared;
    const void *inputs[MOST_RANKS];
    int r;

    harness_barrier(m->team);
    for (r = 0; r < m->team->nranks; r++) {
        if (has_inputs_of(m, r))
            reference_fill(type, op, seed, r, 0, count, s->inputs[r]);
        inputs[r] = s->inputs[r];
    }
    harness_barrier(m->team);
    for (r = 0; r < m->team->nranks; r++)
        inputs[r] = s->inputs[r];
    if (has_inputs_of(m, 0))
        reference_allreduce(type, op, m->team->nranks, inputs, s->expected, count);
    harness_barrier(m->team);
}

static symwin_status reduce(struct member *m, symwin_algo algo, void *in, void *out, size_t count,
                            symwin_type type, symwin_op op, int blocks, struct CUstream_st *stream)
{
    const symwin_allreduce_options options = {sizeof options, algo, blocks, 0};

    return symwin_allreduce_with(m->comm, in, out, count, type, op, &options, stream);
}

/* ---- the matrix ---- */

struct place {
    size_t count, in, out; /* bytes from the data part's begin */
    int in_place;          /* at `out` */
    int blocks;
};

/* One call on prepared inputs: the result's bits, the guard around it, the input afterwards. */
static void one_call(struct member *m, symwin_type type, symwin_op op, const struct place *p)
{
    struct shared *s = m->shared;
    const size_t bytes = p->count * symwin_type_bytes(type), at = GUARD + p->out;
    unsigned char *out = m->buffers[1] + at;
    unsigned char *in = p->in_place ? out : m->buffers[0] + GUARD + p->in;
    char text[64], want[64];
    int64_t differs;
    size_t i;

    memset(m->host, guard_of(m->rank), buffer_bytes(s));
    ok(m, symwin_memcpy(m->device, m->buffers[1], m->host, buffer_bytes(s), m->streams[0]), "fill");
    ok(m, symwin_memcpy(m->device, in, s->inputs[m->rank], bytes, m->streams[0]), "input");
    ok(m, symwin_stream_synchronize(m->device, m->streams[0]), "synchronize");
    harness_barrier(m->team);
    ok(m, reduce(m, SYMWIN_ALGO_COPIES, in, out, p->count, type, op, p->blocks, m->streams[0]),
       "allreduce");
    ok(m, symwin_memcpy(m->device, m->host, m->buffers[1], buffer_bytes(s), m->streams[0]), "out");
    ok(m, symwin_stream_synchronize(m->device, m->streams[0]), "synchronize");
    ok(m, symwin_comm_check(m->comm), "check");
    differs = reference_compare(type, m->host + at, s->expected, p->count);
    if (differs >= 0)
        printf("# rank %d of %d, %s %s, %zu elements at %zu and %zu%s: [%lld] is %s, not %s\n",
               m->rank, m->team->nranks, symwin_type_name(type), symwin_op_name(op), p->count,
               p->in, p->out, p->in_place ? ", in place" : "", (long long)differs,
               reference_print(type, m->host + at, (size_t)differs, text, sizeof text),
               reference_print(type, s->expected, (size_t)differs, want, sizeof want));
    for (i = 0; differs < 0 && i < buffer_bytes(s); i++)
        if ((i < at || i >= at + bytes) && m->host[i] != guard_of(m->rank)) {
            printf("# rank %d wrote byte %zu, its output is %zu at %zu\n", m->rank, i, bytes, at);
            differs = (int64_t)i;
        }
    *m->wrong += differs >= 0;
    if (p->in_place)
        return;
    ok(m, symwin_memcpy(m->device, m->host, in, bytes, m->streams[0]), "input");
    ok(m, symwin_stream_synchronize(m->device, m->streams[0]), "synchronize");
    if (memcmp(m->host, s->inputs[m->rank], bytes) != 0)
        *m->wrong += printf("# rank %d: the input has changed\n", m->rank) > 0;
}

static void matrix_body(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    const size_t shares = SW_COPIES_ALIGN * (size_t)team->nranks;
    int type, op, shape, turn = 0;
    struct member m;

    if (member_open(&m, team, rank))
        for (type = 0; type < TYPES; type++)
            for (op = 0; op < OPS; op++) {
                const size_t unit = symwin_type_bytes((symwin_type)type), room = s->bytes / unit;
                /* No share, one chunk, two, chunks that differ, and one element more or less than each. */
                const size_t counts[] = {1,
                                         SW_COPIES_ALIGN / unit,
                                         shares / unit - 1,
                                         shares / unit,
                                         shares / unit + 1,
                                         2 * shares / unit - 1,
                                         2 * shares / unit + 3,
                                         5 * shares / unit + 1,
                                         40 * shares / unit + 7};

                prepare(&m, (symwin_type)type, (symwin_op)op, (unsigned)(type * 31 + op),
                        room - GUARD / unit);
                for (shape = 0; shape < 5 * 9; shape++) {
                    const struct place p = {.count = counts[shape / 5],
                                            .in = (shape % 5 & 1) != 0 ? 5 * unit : 0,
                                            .out = (shape % 5 & 2) != 0 ? 3 * unit : 0,
                                            .in_place = shape % 5 == 4 || (type + shape) % 10 == 3,
                                            .blocks = (shape + type) % 3};

                    if (turn++ % s->thin != 0)
                        continue;
                    /* The reference is element by element, so of more elements it begins with that of fewer. */
                    one_call(&m, (symwin_type)type, (symwin_op)op, &p);
                }
            }
    member_close(&m, "types, operations, counts and offsets");
}

void copies_matrix(int nranks, int thin)
{
    struct shared s = {.bytes = (size_t)nranks * SW_COPIES_ALIGN * 41 + 1024,
                       .slot_bytes = 1024,
                       .thin = thin,
                       .streams = 1};

    run(nranks, &s, matrix_body, "matrix");
}

/* ---- calls in flight ---- */

/* Whether a buffer has the sum of the prepared inputs `factor` times over. */
static void expect(struct member *m, int buffer, size_t count, uint32_t factor, const char *what)
{
    size_t i;

    ok(m, symwin_memcpy(m->device, m->host, m->buffers[buffer] + GUARD, count * 4, m->streams[0]),
       "result");
    ok(m, symwin_stream_synchronize(m->device, m->streams[0]), "synchronize");
    ok(m, symwin_comm_check(m->comm), "check");
    for (i = 0; i < count; i++) {
        uint32_t got, sum;

        memcpy(&got, m->host + i * 4, 4);
        memcpy(&sum, m->shared->expected + i * 4, 4);
        if (got != sum * factor) {
            printf("# rank %d, %s: [%zu] is %u, not %u\n", m->rank, what, i, got, sum * factor);
            (*m->wrong)++;
            return;
        }
    }
}

static void put_input(struct member *m, size_t count)
{
    ok(m,
       symwin_memcpy(m->device, m->buffers[0] + GUARD, m->shared->inputs[m->rank], count * 4,
                     m->streams[0]),
       "input");
    ok(m, symwin_stream_synchronize(m->device, m->streams[0]), "synchronize");
}

static void chain_body(struct harness_team *team, int rank, void *arg)
{
    static const symwin_algo others[] = {SYMWIN_ALGO_TWOSHOT, SYMWIN_ALGO_COPIES,
                                         SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT_PUSH};
    struct shared *s = arg;
    const size_t count = s->bytes / 4;
    struct member m;
    uint32_t factor = 1;
    int k, at = 0;

    if (member_open(&m, team, rank)) {
        prepare(&m, SYMWIN_U32, SYMWIN_SUM, 5, count);
        put_input(&m, count);
        for (k = 0; k < s->runs; k++) {
            struct CUstream_st *stream = m.streams[k / 2 % s->streams];
            unsigned char *from = m.buffers[at] + GUARD, *to = m.buffers[1 - at] + GUARD;
            /* One rank sums with one block, a different one each time: the others are far ahead of it. */
            const int blocks = (k + rank) % team->nranks == 0 ? 1 : 4;

            if (k % 4 == 3) {
                ok(&m,
                   reduce(&m, others[k / 4 % 4], from, from, count, SYMWIN_U32, SYMWIN_SUM, 0,
                          stream),
                   "in place");
            } else {
                ok(&m,
                   reduce(&m, SYMWIN_ALGO_COPIES, from, to, count, SYMWIN_U32, SYMWIN_SUM, blocks,
                          stream),
                   "copies");
                at = 1 - at;
            }
            factor *= k > 0 ? (uint32_t)team->nranks : 1;
        }
        for (k = 0; k < s->streams; k++)
            ok(&m, symwin_stream_synchronize(m.device, m.streams[k]), "synchronize");
        expect(&m, at, count, factor, "chain");
    }
    member_close(&m, s->streams > 1 ? "calls in flight over streams in turn" : "calls in flight");
}

void copies_chain(int nranks, int calls, int streams, unsigned count)
{
    struct shared s = {
        .bytes = (size_t)count * 4, .slot_bytes = 4096, .runs = calls, .streams = streams};

    run(nranks, &s, chain_body, "chain");
}

/* ---- graphs ---- */

/* 0 -> 1 by copies, 1 in place by copies, 1 -> 0 by copies. */
static symwin_status captured_calls(struct member *m, size_t count)
{
    unsigned char *const a = m->buffers[0] + GUARD, *const b = m->buffers[1] + GUARD;
    symwin_status status = reduce(m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32, SYMWIN_SUM, 0,
                                  m->streams[0]);

    if (status == SYMWIN_OK)
        status = reduce(m, SYMWIN_ALGO_COPIES, b, b, count, SYMWIN_U32, SYMWIN_SUM, 0,
                        m->streams[0]);
    if (status == SYMWIN_OK)
        status = reduce(m, SYMWIN_ALGO_COPIES, b, a, count, SYMWIN_U32, SYMWIN_SUM, 2,
                        m->streams[0]);
    return status;
}

/* In the middle of the capture: a call outside of it, and one in another capture, which is refused. */
static void beside_capture(struct member *m, size_t count)
{
    unsigned char *const a = m->buffers[0] + GUARD, *const b = m->buffers[1] + GUARD;
    CUgraph graph = NULL;

    ok(m, reduce(m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32, SYMWIN_MAX, 0, m->streams[1]),
       "a call beside a capture");
    ok(m, symwin_stream_synchronize(m->device, m->streams[1]), "synchronize");
    if (sw_drv.cuStreamBeginCapture(m->streams[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) !=
        CUDA_SUCCESS)
        (*m->wrong)++;
    if (reduce(m, SYMWIN_ALGO_COPIES, a, b, count, SYMWIN_U32, SYMWIN_MAX, 0, m->streams[1]) !=
            SYMWIN_BUSY ||
        strstr(symwin_last_error(), "in another capture") == NULL)
        *m->wrong += printf("# a second capture: %s\n", symwin_last_error()) > 0;
    if (sw_drv.cuStreamEndCapture(m->streams[1], &graph) != CUDA_SUCCESS ||
        sw_drv.cuGraphDestroy(graph) != CUDA_SUCCESS)
        (*m->wrong)++;
}

static symwin_status capture(struct member *m, size_t count, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    symwin_status status = sw_check(
        sw_drv.cuStreamBeginCapture(m->streams[0], CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    CUresult ended;

    *exec = NULL;
    if (status != SYMWIN_OK)
        return status;
    status = captured_calls(m, count);
    beside_capture(m, count);
    ended = sw_drv.cuStreamEndCapture(m->streams[0], &graph);
    if (status == SYMWIN_OK)
        status = sw_check(ended, "end");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphInstantiateWithFlags(exec, graph, 0), "instantiate");
    if (graph != NULL)
        sw_drop(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return status;
}

static void graphs_body(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    const size_t count = s->bytes / 4;
    const uint32_t n = (uint32_t)team->nranks;
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    struct member m;
    int k;

    if (member_open(&m, team, rank) && ok(&m, sw_scope_enter(m.device, &scope), "scope")) {
        prepare(&m, SYMWIN_U32, SYMWIN_SUM, 99, count);
        put_input(&m, count);
        harness_barrier(team);
        ok(&m, capture(&m, count, &exec), "capture");
        for (k = 0; k < s->runs && exec != NULL; k++) {
            prepare(&m, SYMWIN_U32, SYMWIN_SUM, (unsigned)k, count);
            put_input(&m, count);
            ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.streams[0]), "launch"), "launch");
            if (k % 3 == 1) /* and once more, which the sums are summed by */
                ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.streams[0]), "launch"), "launch");
            if (k % 3 == 2)
                ok(&m,
                   reduce(&m, SYMWIN_ALGO_COPIES, m.buffers[0] + GUARD, m.buffers[1] + GUARD, count,
                          SYMWIN_U32, SYMWIN_SUM, 0, m.streams[0]),
                   "a call between replays");
            expect(&m, k % 3 == 2, count,
                   k % 3 == 0   ? n * n
                   : k % 3 == 1 ? n * n * n * n * n
                                : n * n * n,
                   "replay");
        }
        if (exec != NULL)
            sw_drop(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        sw_scope_leave(&scope);
    }
    member_close(&m, "graph replays while the inputs change");
}

void copies_graphs(int nranks, int replays, unsigned count)
{
    struct shared s = {
        .bytes = (size_t)count * 4, .slot_bytes = 4096, .runs = replays, .streams = 2};

    run(nranks, &s, graphs_body, "graphs");
}
