/* All-reduce, broadcast and reduce over several domains. Each rail moves a share of the message,
 * which the rank has that serves the rail. Large messages go in pieces, each by a lane, so that
 * kernels of one run while others are on their way. Short ones, and what is left of others, have
 * one exchange between domains (ways.c chooses). */
#include "src/rails/wide_call.h"

/* ---- shares ---------------------------------------------------------------------------------- */

int sw_serve_alike(const struct sw_domains *d, int domain)
{
    return d->rails % d->size_of[domain] == 0;
}

int sw_most_served(const struct sw_domains *d)
{
    int most = 1, i;

    for (i = 0; i < d->count; i++)
        if ((d->rails + d->size_of[i] - 1) / d->size_of[i] > most)
            most = (d->rails + d->size_of[i] - 1) / d->size_of[i];
    return most;
}

/* What each rank of the domain has of a piece. */
static symwin_parts parts_of(const struct sw_wide *w, uint64_t share)
{
    int i;

    for (i = 0; i < w->domains.size_of[w->domain]; i++)
        w->counts[i] = share * (uint64_t)(sw_rail_first(&w->domains, w->domain, i + 1) -
                                          sw_rail_first(&w->domains, w->domain, i));
    return (symwin_parts){.counts = w->counts};
}

/* The elements of a piece, of `whole`. The same on all ranks. */
static uint64_t elements_of_piece(const struct sw_wide_call *c, uint64_t whole)
{
    const uint64_t rails = (uint64_t)c->wide->domains.rails, pieces = c->way.pieces;

    return (whole / rails + pieces - 1) / pieces * rails;
}

static struct sw_line_piece piece_of(const struct sw_wide_call *c, uint64_t at, uint64_t left,
                                     uint64_t most)
{
    const uint64_t rails = (uint64_t)c->wide->domains.rails;
    struct sw_line_piece p = {.at = at, .count = left < most ? left / rails * rails : most};

    p.share = p.count / rails;
    p.own = p.share * (uint64_t)c->wide->rail_count;
    return p;
}

/* Inside the domain: each rank gets the sum of its shares. */
static symwin_status share_sums(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                char *to)
{
    const struct sw_request *r = c->r;
    const char *in = c->in + p->at * c->element;
    symwin_parts parts;

    if (sw_serve_alike(&c->wide->domains, c->wide->domain))
        return symwin_reduce_scatter_with(c->inner, in, to, p->own, r->type, r->op, &c->options,
                                          c->stream);
    parts = parts_of(c->wide, p->share);
    return symwin_reduce_scatterv_with(c->inner, in, &parts, to, r->type, r->op, &c->options,
                                       c->stream);
}

/* Inside the domain: all get all shares. */
static symwin_status gather_shares(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                   char *from)
{
    const symwin_collective_options options = {.size = sizeof options,
                                               .algo = c->options.algo,
                                               .blocks = c->options.blocks,
                                               .threads = c->options.threads};
    char *out = c->out + p->at * c->element;
    symwin_parts parts;

    if (sw_serve_alike(&c->wide->domains, c->wide->domain))
        return symwin_allgather_with(c->inner, from, out, p->own, c->r->type, &options, c->stream);
    parts = parts_of(c->wide, p->share);
    return symwin_allgatherv_with(c->inner, from, out, &parts, c->r->type, &options, c->stream);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* What goes in no shares: `count` elements from `at` on, in one exchange. */
typedef symwin_status rest_fn(const struct sw_wide_call *c, uint64_t at, uint64_t count);

/* What shares leave, or all of a message that has none, has one exchange. */
static symwin_status run_flow(const struct sw_wide_call *c, const struct sw_flow *f, rest_fn *rest)
{
    const uint64_t rails = (uint64_t)c->wide->domains.rails, count = c->r->count,
                   whole = c->way.algo == SYMWIN_ALGO_ONESHOT ? 0 : count / rails * rails,
                   most = elements_of_piece(c, whole),
                   room = c->way.algo == SYMWIN_ALGO_TWOSHOT_PUSH
                              ? sw_twoshot_rest(c->wide, c->element)
                              : c->wide->half / c->element;
    struct sw_line line = {.call = c, .flow = f};
    symwin_status status = SYMWIN_OK;
    struct sw_line_piece p;
    uint64_t at, some;

    for (at = 0; at < whole && status == SYMWIN_OK; at += p.count) {
        p = piece_of(c, at, whole - at, most);
        status = sw_line_put(&line, &p);
    }
    if (status == SYMWIN_OK)
        status = sw_line_end(&line);
    for (; at < count && status == SYMWIN_OK; at += some) {
        some = count - at < room ? count - at : room;
        status = rest(c, at, some);
    }
    return status;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* Each rail reduces its share, in place. */
static void reduce_share(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                         CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    char *const share = room + (uint64_t)i * p->share * c->element;

    sw_batch_note(b, c->wide->engine->all_reduce(share, share, p->share, sw_engine_type(c->r->type),
                                                 sw_rail_op(c->r), comm, stream));
}

symwin_status sw_begin_short(const struct sw_wide_call *c, uint64_t at, uint64_t count,
                             struct sw_batch *b)
{
    symwin_collective_options options = c->options;
    symwin_status status;

    options.algo = SYMWIN_ALGO_ONESHOT; /* which asks for no window, though the scratch is one */
    status = symwin_allreduce_with(c->inner, c->in + at * c->element, c->wide->scratch, count,
                                   c->r->type, c->r->op, &options, c->stream);
    return status == SYMWIN_OK ? sw_batch_begin(b, c) : status;
}

/* Two steps: the domain's sum on each rank, then each rail adds all of it. A rank that serves
 * several rails has the result of its first one. */
static symwin_status reduce_all_short(const struct sw_wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    char *const sum = w->scratch, *const spare = w->scratch + w->half;
    struct sw_batch b;
    symwin_status status = sw_begin_short(c, at, count, &b);
    int i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++)
        sw_batch_note(&b, w->engine->all_reduce(sum, i == 0 ? c->out + at * c->element : spare,
                                                count, sw_engine_type(r->type), sw_rail_op(r),
                                                w->rails[i], c->stream));
    sw_batch_verdicts(&b);
    return sw_batch_end(&b);
}

symwin_status sw_reduce_all(const struct sw_wide_call *c)
{
    static const struct sw_flow by_nccl = {
        .first = share_sums, .rail = reduce_share, .last = gather_shares};
    static const struct sw_flow twoshot = {.first = share_sums,
                                           .rail = sw_twoshot_swap,
                                           .between = sw_twoshot_sum,
                                           .again = sw_twoshot_spread,
                                           .last = gather_shares};

    return c->way.algo == SYMWIN_ALGO_TWOSHOT_PUSH ? run_flow(c, &twoshot, sw_twoshot_short)
                                                   : run_flow(c, &by_nccl, reduce_all_short);
}

/* ---- broadcast and reduce -------------------------------------------------------------------- */

/* On the root's rail, then inside each domain. */
static symwin_status broadcast_short(const struct sw_wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const int rail = sw_rail_of(w, c->r->root), here = sw_server_here(w, rail);
    const char *in = c->r->comm->rank == c->r->root ? c->in + at * c->element : NULL;
    char *const out = c->out + at * c->element;
    struct sw_batch b;
    symwin_status status = SYMWIN_OK;

    if (sw_serves(w, rail)) {
        status = sw_batch_begin(&b, c);
        if (status != SYMWIN_OK)
            return status;
        sw_batch_note(&b, w->engine->broadcast(in, out, count * c->element, SW_ENGINE_BYTES,
                                               w->domains.domain_of[c->r->root],
                                               w->rails[rail - w->first_rail], c->stream));
        status = sw_batch_end(&b);
    }
    return status == SYMWIN_OK
               ? symwin_broadcast(c->inner, out, out, count, c->r->type, here, c->stream)
               : status;
}

/* The root's domain has all of a piece first; then each rail passes on its share, and the other
 * domains gather. */
static symwin_status spread_inside(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                   char *room)
{
    const struct sw_wide *w = c->wide;
    const int root = c->r->root;
    const char *in = c->r->comm->rank == root ? c->in + p->at * c->element : NULL;

    (void)room;
    return w->domain != w->domains.domain_of[root]
               ? SYMWIN_OK
               : symwin_broadcast(c->inner, in, c->out + p->at * c->element, p->count, c->r->type,
                                  w->domains.index_of[root], c->stream);
}

static void pass_share(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                       CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    const struct sw_wide *w = c->wide;
    const int domain = w->domains.domain_of[c->r->root];
    char *const from = c->out + (p->at + (uint64_t)(w->first_rail + i) * p->share) * c->element,
                *const to = w->domain == domain ? from : room + (uint64_t)i * p->share * c->element;

    sw_batch_note(b, w->engine->broadcast(from, to, p->share * c->element, SW_ENGINE_BYTES, domain,
                                          comm, stream));
}

/* No limits of the grid: only these domains would refuse them, when pieces are on their way. */
static symwin_status gather_passed(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                   char *room)
{
    const struct sw_wide *w = c->wide;
    struct sw_wide_call plain = *c;

    plain.options = (symwin_collective_options){.size = sizeof plain.options};
    return w->domain != w->domains.domain_of[c->r->root] ? gather_shares(&plain, p, room)
                                                         : SYMWIN_OK;
}

static symwin_status reduce_short(const struct sw_wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int rail = sw_rail_of(w, r->root), here = sw_server_here(w, rail);
    char *const sum = w->scratch;
    struct sw_batch b;
    symwin_status status = symwin_reduce_with(c->inner, c->in + at * c->element, sum, count,
                                              r->type, r->op, here, &c->options, c->stream);

    if (status != SYMWIN_OK || !sw_serves(w, rail))
        return status;
    status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    sw_batch_note(
        &b, w->engine->reduce(sum, r->comm->rank == r->root ? c->out + at * c->element : sum, count,
                              sw_engine_type(r->type), sw_rail_op(r), w->domains.domain_of[r->root],
                              w->rails[rail - w->first_rail], c->stream));
    sw_batch_verdict(&b, rail - w->first_rail);
    return sw_batch_end(&b);
}

/* Each rail reduces its share to the root's domain, where the root collects them. */
static void reduce_to_domain(const struct sw_wide_call *c, const struct sw_line_piece *p,
                             char *room, CUstream stream, int i, struct ncclComm *comm,
                             struct sw_batch *b)
{
    const struct sw_wide *w = c->wide;
    char *const share = room + (uint64_t)i * p->share * c->element;

    sw_batch_note(b, w->engine->reduce(share, share, p->share, sw_engine_type(c->r->type),
                                       sw_rail_op(c->r), w->domains.domain_of[c->r->root], comm,
                                       stream));
}

static symwin_status collect_shares(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                    char *room)
{
    const struct sw_domains *d = &c->wide->domains;
    const int root = c->r->root;

    return c->wide->domain != d->domain_of[root]
               ? SYMWIN_OK
               : symwin_gather(c->inner, room, c->out + p->at * c->element, p->own, c->r->type,
                               d->index_of[root], c->stream);
}

symwin_status sw_broadcast_all(const struct sw_wide_call *c)
{
    static const struct sw_flow flow = {
        .first = spread_inside, .rail = pass_share, .last = gather_passed};

    return run_flow(c, &flow, broadcast_short);
}

symwin_status sw_reduce_to_root(const struct sw_wide_call *c)
{
    static const struct sw_flow flow = {
        .first = share_sums, .rail = reduce_to_domain, .last = collect_shares};

    return run_flow(c, &flow, reduce_short);
}

/* ---- NCCL alone ------------------------------------------------------------------------------ */

symwin_status sw_by_nccl(const struct sw_wide_call *c)
{
    const struct sw_request *r = c->r;
    const struct sw_wide *w = c->wide;
    const struct sw_engine *e = w->engine;
    const int type = sw_engine_type(r->type), op = sw_engine_op(r->op);
    const size_t bytes = (size_t)r->count * c->element;
    struct sw_batch b;
    const symwin_status status = sw_batch_begin(&b, c);
    int result = SW_ENGINE_OK;

    if (status != SYMWIN_OK)
        return status;
    switch (r->collective) {
    case SYMWIN_ALLREDUCE:
        result = e->all_reduce(c->in, c->out, r->count, type, op, w->all, c->stream);
        break;
    case SYMWIN_REDUCE:
        result = e->reduce(c->in, c->out, r->count, type, op, r->root, w->all, c->stream);
        break;
    case SYMWIN_REDUCE_SCATTER:
        result = e->reduce_scatter(c->in, c->out, r->count, type, op, w->all, c->stream);
        break;
    case SYMWIN_ALLGATHER:
        result = e->all_gather(c->in, c->out, bytes, SW_ENGINE_BYTES, w->all, c->stream);
        break;
    default: /* a broadcast */
        result = e->broadcast(c->in, c->out, bytes, SW_ENGINE_BYTES, r->root, w->all, c->stream);
    }
    sw_batch_note(&b, result);
    return sw_batch_end(&b);
}
