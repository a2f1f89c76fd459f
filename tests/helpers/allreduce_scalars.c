/* Pre-multiplied sums in graphs: a case of allreduce_cases.h. */
#include "allreduce_cases.h"
#include "allreduce_member.h"
#include "reference.h"

static const symwin_algo scalar_algos[] = {SYMWIN_ALGO_ONESHOT,      SYMWIN_ALGO_ONESHOT_SENTINEL,
                                           SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_TWOSHOT_PUT,
                                           SYMWIN_ALGO_TWOSHOT,      SYMWIN_ALGO_COPIES};

enum { SCALAR_ALGOS = sizeof scalar_algos / sizeof scalar_algos[0] };

/* Where the n-th call of the graph has its output. */
static unsigned char *scalar_output(const struct member *m, size_t count, int n)
{
    return m->out + MEMBER_GUARD + (size_t)n * (count * 4 + 16) / 16 * 16;
}

static int has_scalar_in_graph(const struct member *m)
{
    return m->rank % 3 == 0;
}

static symwin_status captured_scalars(struct member *m, size_t count)
{
    symwin_status status = SYMWIN_OK;
    uint64_t captured = m->scalar;
    int i;

    for (i = 0; i < SCALAR_ALGOS && status == SYMWIN_OK; i++) {
        const symwin_allreduce_options options = {.size = sizeof options,
                                                  .algo = scalar_algos[i],
                                                  .scalar = has_scalar_in_graph(m) ? &captured
                                                                                   : m->scalar_at,
                                                  .scalar_on_device = !has_scalar_in_graph(m)};

        status = symwin_allreduce_with(m->comm, m->in + MEMBER_GUARD, scalar_output(m, count, i),
                                       count, SYMWIN_F32, SYMWIN_PREMUL_SUM, &options, m->stream);
    }
    captured = ~captured; /* it was read by the call */
    return status;
}

/* What a replay must leave: the scalars of ranks 0, 3, ... are those of the first seed. */
static void expect_scalars(struct member *m, size_t count, unsigned seed)
{
    unsigned char *const products = malloc((size_t)m->team->nranks * count * 4);
    const void *inputs[MOST_RANKS];
    int r, i;

    for (r = 0; r < m->team->nranks; r++) {
        unsigned char *const at = products + (size_t)r * count * 4;

        reference_fill(SYMWIN_F32, SYMWIN_PREMUL_SUM, seed, r, 0, count, at);
        reference_premultiply(SYMWIN_F32, reference_scalar(SYMWIN_F32, r % 3 == 0 ? 0 : seed, r),
                              at, count);
        inputs[r] = at;
    }
    reference_allreduce(SYMWIN_F32, SYMWIN_SUM, m->team->nranks, inputs, products, count);
    for (i = 0; i < SCALAR_ALGOS; i++) {
        member_ok(
            m, symwin_memcpy(m->device, m->host, scalar_output(m, count, i), count * 4, m->stream),
            "result");
        member_ok(m, symwin_stream_synchronize(m->device, m->stream), "synchronize");
        if (reference_compare(SYMWIN_F32, m->host, products, count) >= 0)
            *m->wrong += printf("# rank %d, %s, seed %u: wrong\n", m->rank,
                                symwin_algo_name(scalar_algos[i]), seed) > 0;
    }
    member_ok(m, symwin_comm_check(m->comm), "check");
    free(products);
}

static void refuse_multicast(struct member *m, size_t count)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT_MC, .scalar = &m->scalar};

    if (!member_offers(m, SYMWIN_ALGO_TWOSHOT_MC, SYMWIN_SUM))
        return;
    if (symwin_allreduce_with(m->comm, m->in + MEMBER_GUARD, m->out + MEMBER_GUARD, count,
                              SYMWIN_F32, SYMWIN_PREMUL_SUM, &options,
                              m->stream) != SYMWIN_UNSUPPORTED ||
        strstr(symwin_last_error(), "multicast cannot reduce f32 by mulsum") == NULL)
        *m->wrong += printf("# rank %d: multicast: %s\n", m->rank, symwin_last_error()) > 0;
}

static void scalars_body(struct harness_team *team, int rank, void *arg)
{
    struct member_shared *s = arg;
    const size_t count = s->bytes / 4 / (SCALAR_ALGOS + 1);
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    struct member m;
    int k;

    if (member_create(&m, team, rank) && member_ok(&m, sw_scope_enter(m.device, &scope), "scope")) {
        member_prepare(&m, SYMWIN_F32, SYMWIN_PREMUL_SUM, 0, 0, count);
        refuse_multicast(&m, count);
        if (member_ok(
                &m,
                member_capture(&m, CU_STREAM_CAPTURE_MODE_RELAXED, captured_scalars, count, &exec),
                "capture"))
            member_ok(&m, sw_graph_upload(exec, m.stream), "upload");
        for (k = 0; k < s->runs && exec != NULL; k++) {
            member_prepare(&m, SYMWIN_F32, SYMWIN_PREMUL_SUM, 0, (unsigned)k, count);
            member_put(&m, m.in + MEMBER_GUARD, count);
            member_ok(&m, symwin_memcpy(m.device, m.scalar_at, &m.scalar, 8, m.stream), "scalar");
            member_ok(&m, sw_check(sw_drv.cuGraphLaunch(exec, m.stream), "launch"), "launch");
            member_ok(&m, symwin_stream_synchronize(m.device, m.stream), "synchronize");
            expect_scalars(&m, count, (unsigned)k);
        }
        member_report(&m, "pre-multiplied sums in a graph while the scalars change");
        if (exec != NULL)
            sw_drop(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        sw_scope_leave(&scope);
    }
    member_destroy(&m);
}

void allreduce_scalars(int nranks, int replays)
{
    struct member_shared s = {.bytes = 50000, .runs = replays, .slot_bytes = 4096};

    member_run(nranks, &s, scalars_body, "scalars");
}
