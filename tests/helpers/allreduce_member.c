#include "allreduce_member.h"

#include "reference.h"

const symwin_algo member_algos[MEMBER_ALGOS] = {
    SYMWIN_ALGO_ONESHOT,     SYMWIN_ALGO_TWOSHOT,          SYMWIN_ALGO_ONESHOT_MC,
    SYMWIN_ALGO_TWOSHOT_MC,  SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
    SYMWIN_ALGO_TWOSHOT_PUT, SYMWIN_ALGO_TWOSHOT_BULK};

int member_over_multicast(symwin_algo algo)
{
    return algo == SYMWIN_ALGO_ONESHOT_MC || algo == SYMWIN_ALGO_TWOSHOT_MC;
}

int member_ok(const struct member *m, symwin_status status, const char *what)
{
    if (status == SYMWIN_OK)
        return 1;
    printf("# rank %d: %s: %s\n", m->rank, what, symwin_last_error());
    (*m->wrong)++;
    return 0;
}

static size_t buffer_bytes(const struct member_shared *s)
{
    return s->bytes + 2 * MEMBER_GUARD;
}

/* The byte around an output. It differs from rank to rank, so that a peer's shows. */
static unsigned char guard_of(int rank)
{
    return (unsigned char)(0xa5 + 7 * rank);
}

/* In ranks as processes each has the inputs of all ranks; threads have one rank's each. */
static int has_inputs_of(const struct member *m, int rank)
{
    return harness_job != NULL || m->rank == rank;
}

int member_create(struct member *m, struct harness_team *team, int rank)
{
    struct member_shared *s = team->arg;
    const char *blocks = getenv("SYMWIN_TEST_BLOCKS"); /* for tools that need room on a GPU */
    const symwin_comm_options options = {
        .size = sizeof options,
        .timeout_ms = 60000,
        .kernel_timeout_ms = 60000,
        .slot_bytes = s->slot_bytes,
        .max_blocks = blocks != NULL ? atoi(blocks) : 0,
    };
    const size_t bytes = buffer_bytes(s);
    void *in = NULL;
    void *out = NULL;
    int good, r, i;

    *m = (struct member){.team = team,
                         .shared = s,
                         .rank = rank,
                         .device = harness_device(rank),
                         .wrong = harness_count(team)};
    m->host = malloc(bytes);
    for (r = 0; r < team->nranks; r++)
        if (has_inputs_of(m, r))
            s->inputs[r] = malloc(s->bytes);
    good = member_ok(
               m, symwin_comm_create(&team->id, team->nranks, rank, m->device, &options, &m->comm),
               "comm_create") &&

           member_ok(m, symwin_mem_alloc(m->device, bytes, 0, &in), "mem_alloc") &&
           member_ok(m, symwin_mem_alloc(m->device, bytes, 0, &out), "mem_alloc") &&
           member_ok(m, symwin_mem_alloc(m->device, 8, 0, &m->scalar_at), "mem_alloc") &&
           member_ok(m, symwin_window_register(m->comm, in, bytes, 0, &m->windows[0]),
                     "register") &&
           member_ok(m, symwin_window_register(m->comm, out, bytes, 0, &m->windows[1]), "register");
    for (i = 0; i < (s->streams > 0 ? s->streams : 1) && good; i++)
        good = member_ok(m, symwin_stream_create(m->device, &m->streams[i]), "stream_create");
    m->stream = m->streams[0];
    m->in = in;
    m->out = out;
    harness_barrier(team);
    return good && *m->wrong == 0;
}

void member_destroy(struct member *m)
{
    int r;

    harness_barrier(m->team);
    symwin_comm_destroy(m->comm);
    symwin_mem_free(m->in);
    symwin_mem_free(m->out);
    symwin_mem_free(m->scalar_at);
    for (r = 0; r < MEMBER_STREAMS; r++)
        if (m->streams[r] != NULL)
            symwin_stream_destroy(m->device, m->streams[r]);
    free(m->host);
    if (has_inputs_of(m, 0)) /* once in each process */
        m->shared->failed = *m->wrong;
    harness_barrier(m->team);
    for (r = 0; r < m->team->nranks; r++)
        if (has_inputs_of(m, r))
            free(m->shared->inputs[r]);
}

static int is_float(symwin_type type)
{
    return type == SYMWIN_F64 || type == SYMWIN_F32 || type == SYMWIN_F16 || type == SYMWIN_BF16 ||
           type == SYMWIN_F8E4M3 || type == SYMWIN_F8E5M2;
}

/* The inputs as they are added, in memory of their own. */
static void expect_premultiplied(const struct member *m, symwin_type type, unsigned seed,
                                 size_t count)
{
    const size_t bytes = count * symwin_type_bytes(type), nranks = (size_t)m->team->nranks;
    unsigned char *const products = malloc(bytes * nranks + 1);
    const void *inputs[MOST_RANKS];
    size_t r;

    for (r = 0; r < nranks; r++) {
        inputs[r] = memcpy(products + r * bytes, m->shared->inputs[r], bytes);
        reference_premultiply(type, reference_scalar(type, seed, (int)r), products + r * bytes,
                              count);
    }
    reference_allreduce(type, SYMWIN_SUM, (int)nranks, inputs, m->shared->expected, count);
    free(products);
}

void member_prepare(struct member *m, symwin_type type, symwin_op op, int whole, unsigned seed,
                    size_t count)
{
    struct member_shared *s = m->shared;
    const void *inputs[MOST_RANKS];
    int r;

    harness_barrier(m->team);
    for (r = 0; r < m->team->nranks; r++) {
        if (!has_inputs_of(m, r))
            continue;
        if (whole && is_float(type))
            reference_fill_whole(type, seed, r, 0, count, s->inputs[r]);
        else
            reference_fill(type, op, seed, r, 0, count, s->inputs[r]);
    }
    m->scalar = reference_scalar(type, seed, m->rank);
    harness_barrier(m->team);
    if (has_inputs_of(m, 0) && op == SYMWIN_PREMUL_SUM) {
        expect_premultiplied(m, type, seed, count);
    } else if (has_inputs_of(m, 0)) {
        for (r = 0; r < m->team->nranks; r++)
            inputs[r] = s->inputs[r];
        reference_allreduce(type, op, m->team->nranks, inputs, s->expected, count);
    }
    harness_barrier(m->team);
}

/* The scalar in host memory, or in device memory. */
static void pass_scalar(struct member *m, int on_device, symwin_allreduce_options *options)
{
    options->scalar = on_device ? m->scalar_at : &m->scalar;
    options->scalar_on_device = on_device;
    if (on_device)
        member_ok(m, symwin_memcpy(m->device, m->scalar_at, &m->scalar, 8, m->stream), "scalar");
}

int member_call(struct member *m, symwin_type type, symwin_op op, const struct placement *p)
{
    struct member_shared *s = m->shared;
    const size_t bytes = p->count * symwin_type_bytes(type);
    symwin_allreduce_options options = {
        .size = sizeof options, .algo = p->algo, .blocks = p->blocks, .threads = p->threads};
    unsigned char *in = m->in + MEMBER_GUARD + p->in_offset;
    unsigned char *out = p->in_place ? in : m->out + MEMBER_GUARD + p->out_offset;
    unsigned char *const base = p->in_place ? m->in : m->out;
    const size_t at = (size_t)(out - base);
    symwin_status status;
    char text[64], want[64];
    int64_t differs;
    size_t i;

    /* Poison the output and what lies around it, then write the input. */
    memset(m->host, guard_of(m->rank), buffer_bytes(s));
    member_ok(m, symwin_memcpy(m->device, base, m->host, buffer_bytes(s), m->stream), "poison");
    member_ok(m, symwin_memcpy(m->device, in, s->inputs[m->rank], bytes, m->stream), "input");
    if (op == SYMWIN_PREMUL_SUM)
        pass_scalar(m, (m->rank + (int)p->count) % 2, &options);
    member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    /* A sanitizer's copies wait for the whole device, so ranks that share one must all be done. */
    harness_barrier(m->team);
    status = symwin_allreduce_with(m->comm, in, out, p->count, type, op, &options, m->stream);
    if (status == SYMWIN_UNSUPPORTED)
        return 0;
    member_ok(m, status, "allreduce");
    if (!p->in_place) {
        member_ok(m, symwin_memcpy(m->device, m->host, in, bytes, m->stream), "input");
        member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
        if (memcmp(m->host, s->inputs[m->rank], bytes) != 0)
            *m->wrong += printf("# rank %d: the input has changed\n", m->rank) > 0;
    }
    member_ok(m, symwin_memcpy(m->device, m->host, base, buffer_bytes(s), m->stream), "result");
    member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    member_ok(m, symwin_comm_check(m->comm), "check");
    differs = reference_compare(type, m->host + at, s->expected, p->count);
    for (i = 0; differs < 0 && i < buffer_bytes(s); i++)
        if ((i < at || i >= at + bytes) && m->host[i] != guard_of(m->rank)) {
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

int member_offers(const struct member *m, symwin_algo algo, symwin_op op)
{
    symwin_comm_info info;

    if (!member_over_multicast(algo))
        return 1;
    return op != SYMWIN_PROD && op != SYMWIN_PREMUL_SUM &&
           symwin_comm_query(m->comm, &info) == SYMWIN_OK && info.multicast;
}

/* ---- sequences of calls ---- */

void member_put(struct member *m, void *to, size_t count)
{
    member_ok(m, symwin_memcpy(m->device, to, m->shared->inputs[m->rank], count * 4, m->stream),
              "input");
    member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
}

symwin_status member_enqueue(struct member *m, symwin_algo algo, void *in, void *out, size_t count,
                             symwin_type type, symwin_op op, int blocks, struct CUstream_st *stream)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = algo, .blocks = blocks};

    return symwin_allreduce_with(m->comm, in, out, count, type, op, &options, stream);
}

symwin_status member_capture(struct member *m, CUstreamCaptureMode mode,
                             symwin_status (*calls)(struct member *m, size_t count), size_t count,
                             CUgraphExec *exec)
{
    CUgraph graph = NULL;
    symwin_status status = sw_check(sw_drv.cuStreamBeginCapture(m->stream, mode),
                                    "cuStreamBeginCapture");
    CUresult ended;

    *exec = NULL;
    if (status != SYMWIN_OK)
        return status;
    status = calls(m, count);
    ended = sw_drv.cuStreamEndCapture(m->stream, &graph);
    if (status == SYMWIN_OK)
        status = sw_check(ended, "cuStreamEndCapture");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphInstantiateWithFlags(exec, graph, 0), "cuGraphInstantiate");
    if (graph != NULL)
        sw_drop(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return status;
}

void member_expect(struct member *m, const void *from, size_t count, uint32_t factor,
                   const char *what)
{
    size_t i;

    member_ok(m, symwin_memcpy(m->device, m->host, from, count * 4, m->stream), "result");
    member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
    member_ok(m, symwin_comm_check(m->comm), "check");
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

void member_report(struct member *m, const char *name)
{
    harness_barrier(m->team);
    if (m->rank == 0) {
        tap_ok(*m->wrong == 0, "%d ranks: %s", m->team->nranks, name);
        *m->wrong = 0;
    }
    harness_barrier(m->team);
}

void member_run(int nranks, struct member_shared *s,
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
