/* All-reduce, broadcast and reduce over several domains. Each rail moves a share of the message,
 * which the rank has that serves the rail. Large messages go in pieces. Of an all-reduce each piece
 * goes by a lane, so that kernels of one run while others are on their way. */
#include "src/rails/wide_call.h"

/* Up to SHORT_BYTES, two steps are quicker than three. A piece of fewer than LEAST_BYTES gains less
 * than its own calls cost (docs/scaling.md). */
enum { SHORT_BYTES = 32 << 10, LEAST_BYTES = 256 << 10 };

/* ---- shares ---------------------------------------------------------------------------------- */

/* Elements of each rail's share of a piece, and of this rank's. */
struct piece {
    uint64_t at, count; /* elements; count is a multiple of the rails */
    uint64_t share, own;
};

static int serve_alike(const struct sw_domains *d, int domain)
{
    return d->rails % d->size_of[domain] == 0;
}

/* Whether shares can be reduced and gathered in all domains. */
static int divides(const struct sw_domains *d)
{
    int i = 0;

    while (i < d->count && (serve_alike(d, i) || d->size_of[i] <= SW_TABLE_RANKS))
        i++;
    return i == d->count;
}

/* What each rank of the domain has of a piece. */
static void counts_of(const struct sw_wide *w, uint64_t share, uint64_t *counts)
{
    int i;

    for (i = 0; i < w->domains.size_of[w->domain]; i++)
        counts[i] = share * (uint64_t)(sw_rail_first(&w->domains, w->domain, i + 1) -
                                       sw_rail_first(&w->domains, w->domain, i));
}

/* The most elements of a piece: a rank that serves most rails has room for its shares in `room`
 * bytes. The same on all ranks. */
static uint64_t most_of_piece(const struct sw_wide_call *c, size_t room)
{
    const struct sw_domains *d = &c->wide->domains;
    int most = 1, i;

    for (i = 0; i < d->count; i++)
        if ((d->rails + d->size_of[i] - 1) / d->size_of[i] > most)
            most = (d->rails + d->size_of[i] - 1) / d->size_of[i];
    return room / c->element / (uint64_t)most * (uint64_t)d->rails;
}

static struct piece piece_of(const struct sw_wide_call *c, uint64_t at, uint64_t left,
                             uint64_t most)
{
    const uint64_t rails = (uint64_t)c->wide->domains.rails;
    struct piece p = {.at = at, .count = left < most ? left / rails * rails : most};

    p.share = p.count / rails;
    p.own = p.share * (uint64_t)c->wide->rail_count;
    return p;
}

/* Where there is enough for all lanes, each has a piece. */
static uint64_t most_for_lanes(const struct sw_wide_call *c, uint64_t whole)
{
    const uint64_t rails = (uint64_t)c->wide->domains.rails, most = most_of_piece(c, c->wide->part),
                   least = (LEAST_BYTES / c->element + rails - 1) / rails * rails,
                   even = (whole / rails + SW_LANES - 1) / SW_LANES * rails,
                   wanted = even > least ? even : least;

    return wanted < most ? wanted : most;
}

static char *part_of(const struct sw_wide_call *c, unsigned number)
{
    return c->wide->scratch + number % SW_PARTS * c->wide->part;
}

/* Inside the domain: each rank gets the sum of its shares. */
static symwin_status share_sums(const struct sw_wide_call *c, const struct piece *p, char *to)
{
    const struct sw_request *r = c->r;
    const char *in = c->in + p->at * c->element;
    uint64_t counts[SW_TABLE_RANKS];
    const symwin_parts parts = {.counts = counts};

    if (serve_alike(&c->wide->domains, c->wide->domain))
        return symwin_reduce_scatter_with(c->inner, in, to, p->own, r->type, r->op, &c->options,
                                          c->stream);
    counts_of(c->wide, p->share, counts);
    return symwin_reduce_scatterv_with(c->inner, in, &parts, to, r->type, r->op, &c->options,
                                       c->stream);
}

/* Inside the domain: all get all shares. */
static symwin_status gather_shares(const struct sw_wide_call *c, const struct piece *p,
                                   const char *from)
{
    const symwin_collective_options options = {.size = sizeof options,
                                               .algo = c->options.algo,
                                               .blocks = c->options.blocks,
                                               .threads = c->options.threads};
    char *out = c->out + p->at * c->element;
    uint64_t counts[SW_TABLE_RANKS];
    const symwin_parts parts = {.counts = counts};

    if (serve_alike(&c->wide->domains, c->wide->domain))
        return symwin_allgather_with(c->inner, from, out, p->own, c->r->type, &options, c->stream);
    counts_of(c->wide, p->share, counts);
    return symwin_allgatherv_with(c->inner, from, out, &parts, c->r->type, &options, c->stream);
}

/* What of a call goes in shares of rails; the rest, or all of a short message, does not. */
static uint64_t in_shares(const struct sw_wide_call *c, int can)
{
    const uint64_t count = c->r->count, rails = (uint64_t)c->wide->domains.rails;

    return !can || count * c->element <= SHORT_BYTES ? 0 : count / rails * rails;
}

/* Calls `rest` for what comes behind `whole` elements. */
static symwin_status in_rests(const struct sw_wide_call *c, uint64_t whole,
                              symwin_status (*rest)(const struct sw_wide_call *, uint64_t,
                                                    uint64_t))
{
    const uint64_t count = c->r->count, room = c->wide->half / c->element;
    symwin_status status = SYMWIN_OK;
    uint64_t at, some;

    for (at = whole; at < count && status == SYMWIN_OK; at += some) {
        some = count - at < room ? count - at : room;
        status = rest(c, at, some);
    }
    return status;
}

/* Calls `piece` for shares of rails, and `rest` for the rest. */
static symwin_status
in_pieces(const struct sw_wide_call *c, int can,
          symwin_status (*piece)(const struct sw_wide_call *, const struct piece *),
          symwin_status (*rest)(const struct sw_wide_call *, uint64_t, uint64_t))
{
    const uint64_t whole = in_shares(c, can), most = most_of_piece(c, c->wide->half);
    symwin_status status = SYMWIN_OK;
    struct piece p;
    uint64_t at;

    for (at = 0; at < whole && status == SYMWIN_OK; at += p.count) {
        p = piece_of(c, at, whole - at, most);
        status = piece(c, &p);
    }
    return status == SYMWIN_OK ? in_rests(c, whole, rest) : status;
}

/* ---- streams --------------------------------------------------------------------------------- */

symwin_status sw_follow_stream(CUevent event, CUstream from, CUstream to)
{
    symwin_status status = sw_check(sw_drv.cuEventRecord(event, from), "cuEventRecord");

    return status == SYMWIN_OK
               ? sw_check(sw_drv.cuStreamWaitEvent(to, event, 0), "cuStreamWaitEvent")
               : status;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* Each rail reduces its share, in place. */
static symwin_status reduce_on_rails(const struct sw_wide_call *c, const struct piece *p,
                                     char *shares, CUstream stream, int lane)
{
    const struct sw_wide *w = c->wide;
    struct ncclComm **const rails = sw_rails_of(w, lane);
    struct sw_batch b;
    symwin_status status = sw_batch_begin_in(&b, c, stream, lane);
    int i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++) {
        char *share = shares + (uint64_t)i * p->share * c->element;

        sw_batch_note(&b, w->engine->all_reduce(share, share, p->share, sw_engine_type(c->r->type),
                                                sw_rail_op(c->r), rails[i], stream));
    }
    sw_batch_verdicts(&b);
    return sw_batch_end(&b);
}

/* Two steps: the domain's sum on each rank, then each rail adds all of it. A rank that serves
 * several rails has the result of its first one. */
static symwin_status reduce_all_short(const struct sw_wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    char *const sum = w->scratch, *const spare = w->scratch + w->half;
    symwin_collective_options options = c->options;
    struct sw_batch b;
    symwin_status status;
    int i;

    options.algo = SYMWIN_ALGO_ONESHOT; /* which asks for no window, though `sum` is in one */
    status = symwin_allreduce_with(c->inner, c->in + at * c->element, sum, count, r->type, r->op,
                                   &options, c->stream);
    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++)
        sw_batch_note(&b, w->engine->all_reduce(sum, i == 0 ? c->out + at * c->element : spare,
                                                count, sw_engine_type(r->type), sw_rail_op(r),
                                                w->rails[i], c->stream));
    sw_batch_verdicts(&b);
    return sw_batch_end(&b);
}

/* A piece is reduced inside, and is on its way on the rails. */
static symwin_status send_piece(const struct sw_wide_call *c, unsigned k, const struct piece *p)
{
    struct sw_wide *w = c->wide;
    const int lane = (int)(k % SW_LANES);
    const CUstream stream = sw_lane_stream(c, lane);
    symwin_status status = share_sums(c, p, part_of(c, k));

    if (status == SYMWIN_OK && stream != c->stream)
        status = sw_follow_stream(w->ready[k % SW_PARTS], c->stream, stream);
    if (status == SYMWIN_OK)
        status = reduce_on_rails(c, p, part_of(c, k), stream, lane);
    if (status == SYMWIN_OK && stream != c->stream)
        status = sw_check(sw_drv.cuEventRecord(w->moved[k % SW_PARTS], stream), "cuEventRecord");
    return status;
}

static symwin_status take_piece(const struct sw_wide_call *c, unsigned k, const struct piece *p)
{
    symwin_status status = SYMWIN_OK;

    if (c->lanes >= 0)
        status = sw_check(sw_drv.cuStreamWaitEvent(c->stream, c->wide->moved[k % SW_PARTS], 0),
                          "cuStreamWaitEvent");
    return status == SYMWIN_OK ? gather_shares(c, p, part_of(c, k)) : status;
}

/* While NCCL has as many pieces as there are lanes, the next one is reduced inside, and the oldest
 * is gathered: that one's part of the scratch is the next one's. */
symwin_status sw_reduce_all(const struct sw_wide_call *c)
{
    const uint64_t whole = in_shares(c, divides(&c->wide->domains)),
                   most = most_for_lanes(c, whole);
    struct piece p[SW_PARTS] = {{0}};
    symwin_status status = SYMWIN_OK;
    unsigned sent = 0, taken = 0;
    uint64_t at;

    for (at = 0; at < whole && status == SYMWIN_OK; sent++) {
        p[sent % SW_PARTS] = piece_of(c, at, whole - at, most);
        at += p[sent % SW_PARTS].count;
        status = send_piece(c, sent, &p[sent % SW_PARTS]);
        if (status == SYMWIN_OK && sent - taken == SW_LANES) {
            status = take_piece(c, taken, &p[taken % SW_PARTS]);
            taken++;
        }
    }
    for (; taken < sent && status == SYMWIN_OK; taken++)
        status = take_piece(c, taken, &p[taken % SW_PARTS]);
    return status == SYMWIN_OK ? in_rests(c, whole, reduce_all_short) : status;
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
static symwin_status broadcast_piece(const struct sw_wide_call *c, const struct piece *p)
{
    const struct sw_wide *w = c->wide;
    const int root = c->r->root, domain = w->domains.domain_of[root];
    const char *in = c->r->comm->rank == root ? c->in + p->at * c->element : NULL;
    char *const out = c->out + p->at * c->element;
    symwin_status status = SYMWIN_OK;
    struct sw_batch b;
    int i;

    if (w->domain == domain)
        status = symwin_broadcast(c->inner, in, out, p->count, c->r->type,
                                  w->domains.index_of[root], c->stream);
    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++) {
        const uint64_t at = (uint64_t)(w->first_rail + i) * p->share * c->element;
        char *const share = w->scratch + (uint64_t)i * p->share * c->element;

        sw_batch_note(&b, w->engine->broadcast(out + at, w->domain == domain ? out + at : share,
                                               p->share * c->element, SW_ENGINE_BYTES, domain,
                                               w->rails[i], c->stream));
    }
    sw_batch_verdicts(&b);
    status = sw_batch_end(&b);
    return status == SYMWIN_OK && w->domain != domain ? gather_shares(c, p, w->scratch) : status;
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
static symwin_status reduce_piece(const struct sw_wide_call *c, const struct piece *p)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int domain = w->domains.domain_of[r->root], index = w->domains.index_of[r->root];
    symwin_status status = share_sums(c, p, w->scratch);
    struct sw_batch b;
    int i;

    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++) {
        char *const share = w->scratch + (uint64_t)i * p->share * c->element;

        sw_batch_note(&b, w->engine->reduce(share, share, p->share, sw_engine_type(r->type),
                                            sw_rail_op(r), domain, w->rails[i], c->stream));
    }
    sw_batch_verdicts(&b);
    status = sw_batch_end(&b);
    if (status != SYMWIN_OK || w->domain != domain)
        return status;
    return symwin_gather(c->inner, w->scratch, c->out + p->at * c->element, p->own, r->type, index,
                         c->stream);
}

symwin_status sw_broadcast_all(const struct sw_wide_call *c)
{
    return in_pieces(c, divides(&c->wide->domains), broadcast_piece, broadcast_short);
}

symwin_status sw_reduce_to_root(const struct sw_wide_call *c)
{
    const struct sw_domains *d = &c->wide->domains;

    return in_pieces(c, divides(d) && serve_alike(d, d->domain_of[c->r->root]), reduce_piece,
                     reduce_short);
}
