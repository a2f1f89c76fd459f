/* All-reduce over several domains by two exchanges of messages on the rails. In the first one
 * domain d gets the d-th part of the share of all domains, which a kernel sums in the domains'
 * order; in the second one all get the sums. So the bits of a result depend neither on NCCL nor on
 * the number of pieces, and no byte takes more than two hops. */
#include "src/rails/wide_call.h"

uint64_t sw_twoshot_room(const struct sw_wide *w, size_t element)
{
    const size_t served = (size_t)sw_most_served(&w->domains),
                 lost = 16 + served * (size_t)w->domains.count * (16 + element);

    return w->part > lost ? (w->part - lost) / (2 * served * element) : 0;
}

uint64_t sw_twoshot_rest(const struct sw_wide *w, size_t element)
{
    const size_t arrays = 1 + (size_t)sw_most_served(&w->domains) * (size_t)w->domains.count;

    return 2 * w->half / arrays / 16 * 16 / element;
}

/* Elements of a share's parts but for the last ones: vectors of 16 bytes. */
static uint64_t part_elements(const struct sw_wide_call *c, uint64_t share)
{
    const uint64_t domains = (uint64_t)c->wide->domains.count, vector = 16 / c->element,
                   even = (share + domains - 1) / domains;

    return (even + vector - 1) / vector * vector;
}

/* Bytes that shares take in a part of the scratch; behind them comes what is received. */
static size_t shares_bytes(const struct sw_wide_call *c, uint64_t shares)
{
    return (shares * c->element + 15) / 16 * 16;
}

/* A rail's share in the scratch, of a piece or what it is divided into. */
struct twoshot {
    uint64_t each, own; /* elements of a part, and of this domain's */
    char *share, *mine; /* this rail's share, and this domain's part of it */
    char *received;     /* as many parts as there are domains */
};

static uint64_t part_of(uint64_t share, uint64_t each, int domain)
{
    const uint64_t at = each * (uint64_t)domain;

    return share <= at ? 0 : share - at < each ? share - at : each;
}

static struct twoshot twoshot_of(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                 char *room, int i)
{
    const struct sw_wide *w = c->wide;
    const uint64_t each = part_elements(c, p->share);
    struct twoshot t = {.each = each, .own = part_of(p->share, each, w->domain)};

    t.share = room + (uint64_t)i * p->share * c->element;
    t.mine = t.share + (uint64_t)w->domain * each * c->element;
    t.received = room + shares_bytes(c, p->own) +
                 (uint64_t)i * (uint64_t)w->domains.count * each * c->element;
    return t;
}

static void swap(const struct sw_wide_call *c, const char *out, uint64_t sends, char *in,
                 uint64_t receives, int domain, CUstream stream, struct ncclComm *comm,
                 struct sw_batch *b)
{
    const struct sw_engine *e = c->wide->engine;

    if (sends > 0)
        sw_batch_note(b, e->send(out, sends * c->element, SW_ENGINE_BYTES, domain, comm, stream));
    if (receives > 0)
        sw_batch_note(b, e->recv(in, receives * c->element, SW_ENGINE_BYTES, domain, comm, stream));
}

/* Each domain gets its part of all domains' shares. Where it has none, one element travels all the
 * same: NCCL connects two ranks at their first message, so the first call connects all, however
 * small it is. */
void sw_twoshot_swap(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                     CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    const struct twoshot t = twoshot_of(c, p, room, i);
    int k;

    for (k = 0; k < c->wide->domains.count; k++) {
        const uint64_t at = (uint64_t)k * t.each * c->element, part = part_of(p->share, t.each, k);

        if (k != c->wide->domain)
            swap(c, part > 0 ? t.share + at : t.share, part > 0 ? part : 1, t.received + at,
                 t.own > 0 ? t.own : 1, k, stream, comm, b);
    }
}

/* Sums arrays of `count` elements in the domains' order: this domain's at `own`, that of domain d
 * at received + d * stride. */
static symwin_status sum_arrays(const struct sw_wide_call *c, const char *own, const char *received,
                                size_t stride, uint64_t count, char *out, CUstream stream)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const struct sw_kernel *kernel = sw_kernels_sum(w->kernels);
    const symwin_op op = r->op == SYMWIN_PREMUL_SUM ? SYMWIN_SUM : r->op; /* an average is one */
    struct sw_kernel_args args = {.base = (uintptr_t)received,
                                  .stride = stride,
                                  .rank = w->domain,
                                  .nranks = w->domains.count,
                                  .in = (uintptr_t)own,
                                  .out = (uintptr_t)out,
                                  .op = (uint32_t)op,
                                  .what = SW_WHAT(r->collective, r->type, op, 0, 0),
                                  .bytes = count * c->element};
    const uint64_t threads = (uint64_t)kernel->threads, units = (args.bytes + 15) / 16,
                   most = (uint64_t)sw_blocks_of_rail(w, SW_SPARE),
                   blocks = (units + threads - 1) / threads;
    const CUlaunchConfig config = {.gridDimX = (unsigned)(blocks < most ? blocks : most),
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = (unsigned)kernel->threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream};
    void *params[] = {&args};

    return count == 0
               ? SYMWIN_OK
               : sw_check_stream(sw_drv.cuLaunchKernelEx(&config, kernel->function, params, NULL),
                                 r->name, "cuLaunchKernelEx");
}

symwin_status sw_twoshot_sum(const struct sw_wide_call *c, const struct sw_line_piece *p,
                             char *room, CUstream stream, int i)
{
    const struct twoshot t = twoshot_of(c, p, room, i);

    return sum_arrays(c, t.mine, t.received, t.each * c->element, t.own, t.mine, stream);
}

/* All get the sums, each where its part was. */
void sw_twoshot_spread(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                       CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    const struct twoshot t = twoshot_of(c, p, room, i);
    int k;

    for (k = 0; k < c->wide->domains.count; k++)
        if (k != c->wide->domain)
            swap(c, t.mine, t.own, t.share + (uint64_t)k * t.each * c->element,
                 part_of(p->share, t.each, k), k, stream, comm, b);
}

/* What goes in no shares: every domain gets the sums of all the others, and each rank adds them. A
 * rank that serves several rails takes what comes by its first one. */
symwin_status sw_twoshot_short(const struct sw_wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const uint64_t each = part_elements(c, count * (uint64_t)w->domains.count);
    char *const sum = w->scratch, *const received = sum + each * c->element;
    struct sw_batch b;
    symwin_status status = sw_begin_short(c, at, count, &b);
    int i, k;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++)
        for (k = 0; k < w->domains.count; k++)
            if (k != w->domain)
                swap(c, sum, count,
                     received + (size_t)(i * w->domains.count + k) * each * c->element, count, k,
                     c->stream, w->rails[i], &b);
    sw_batch_verdicts(&b);
    status = sw_batch_end(&b);
    return status == SYMWIN_OK ? sum_arrays(c, sum, received, each * c->element, count,
                                            c->out + at * c->element, c->stream)
                               : status;
}
