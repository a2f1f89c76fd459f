/* Collectives, sends and receives of a communicator over several domains: calls of the domain's
 * communicator, and of NCCL's on the rails, one after another in the caller's stream. Large
 * messages go in pieces, and NCCL works in a stream of its own, so that kernels of one piece run
 * while another is on its way.
 *
 * A rail's share of a message goes to the rank that serves the rail: the rank of index i in its
 * domain has the shares of the rails from sw_rail_first(i) on.
 */
#include <stdlib.h>

#include "src/rails/rails.h"
#include "symwin/float.h"

/* A call, from its first check to its end. */
struct wide_call {
    const struct sw_request *r;
    struct sw_wide *wide;
    symwin_comm *inner;
    CUstream stream;
    int is_captured;
    size_t element; /* bytes */
    const char *in;
    char *out;
    symwin_collective_options options; /* of calls inside */
};

enum { SHORT_BYTES = 32 << 10 }; /* up to there, two steps are quicker than three */

static int is_captured(CUstream stream)
{
    struct sw_stream_seen seen;

    sw_capture_see(stream, &seen);
    return seen.capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- NCCL's calls ---------------------------------------------------------------------------- */

/* Calls between ncclGroupStart and ncclGroupEnd, in one stream. */
struct batch {
    struct sw_wide *wide;
    const char *call;
    CUstream stream;
    int marks; /* whether the stream says when NCCL is in it */
    int result;
};

/* A captured call says nothing: in replays the word would always be the same. */
static symwin_status mark(const struct batch *b, uint32_t value)
{
    return b->marks ? sw_check_stream(
                          sw_drv.cuStreamWriteValue32(b->stream, b->wide->inside_address, value, 0),
                          b->call, "cuStreamWriteValue32")
                    : SYMWIN_OK;
}

static symwin_status batch_begin_in(struct batch *b, const struct wide_call *c, CUstream stream)
{
    symwin_status status = sw_rail_begin(c->wide, c->r->name);

    *b = (struct batch){
        .wide = c->wide, .call = c->r->name, .stream = stream, .marks = !c->is_captured};
    if (status != SYMWIN_OK)
        return status;
    status = mark(b, 1);
    if (status == SYMWIN_OK)
        b->result = c->wide->engine->group_start();
    else
        sw_rail_end(c->wide);
    return status;
}

static symwin_status batch_begin(struct batch *b, const struct wide_call *c)
{
    return batch_begin_in(b, c, c->stream);
}

static void note(struct batch *b, int result)
{
    if (b->result == SW_ENGINE_OK && result != SW_ENGINE_IN_PROGRESS)
        b->result = result;
}

/* All communicators of this rank may have been in the group. */
static symwin_status batch_end(struct batch *b)
{
    struct sw_wide *wide = b->wide;
    const int result = wide->engine->group_end();
    symwin_status status = SYMWIN_OK;
    int i;

    if (b->result == SW_ENGINE_OK)
        b->result = result;
    for (i = 0; i <= wide->rail_count && status == SYMWIN_OK && b->result != SW_ENGINE_OK; i++)
        status = sw_rail_settle(wide, b->call, "ncclGroupEnd",
                                i < wide->rail_count ? wide->rails[i] : wide->all, b->result);
    sw_rail_end(wide);
    return status == SYMWIN_OK ? mark(b, 0) : status;
}

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

/* The most elements of a piece: a rank that serves most rails has room for its shares. The same on
 * all ranks. */
static uint64_t most_of_piece(const struct wide_call *c)
{
    const struct sw_domains *d = &c->wide->domains;
    int most = 1, i;

    for (i = 0; i < d->count; i++)
        if ((d->rails + d->size_of[i] - 1) / d->size_of[i] > most)
            most = (d->rails + d->size_of[i] - 1) / d->size_of[i];
    return c->wide->half / c->element / (uint64_t)most * (uint64_t)d->rails;
}

static struct piece piece_of(const struct wide_call *c, uint64_t at, uint64_t left)
{
    const uint64_t rails = (uint64_t)c->wide->domains.rails, most = most_of_piece(c);
    struct piece p = {.at = at, .count = left < most ? left / rails * rails : most};

    p.share = p.count / rails;
    p.own = p.share * (uint64_t)c->wide->rail_count;
    return p;
}

static char *half_of(const struct wide_call *c, unsigned number)
{
    return c->wide->scratch + number % 2 * c->wide->half;
}

/* Inside the domain: each rank gets the sum of its shares. */
static symwin_status share_sums(const struct wide_call *c, const struct piece *p, char *to)
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
static symwin_status gather_shares(const struct wide_call *c, const struct piece *p,
                                   const char *from)
{
    char *out = c->out + p->at * c->element;
    uint64_t counts[SW_TABLE_RANKS];
    const symwin_parts parts = {.counts = counts};

    if (serve_alike(&c->wide->domains, c->wide->domain))
        return symwin_allgather(c->inner, from, out, p->own, c->r->type, c->stream);
    counts_of(c->wide, p->share, counts);
    return symwin_allgatherv(c->inner, from, out, &parts, c->r->type, c->stream);
}

/* What of a call goes in shares of rails; the rest, or all of a short message, does not. */
static uint64_t in_shares(const struct wide_call *c, int can)
{
    const uint64_t count = c->r->count, rails = (uint64_t)c->wide->domains.rails;

    return !can || count * c->element <= SHORT_BYTES ? 0 : count / rails * rails;
}

/* Calls `rest` for what comes behind `whole` elements. */
static symwin_status in_rests(const struct wide_call *c, uint64_t whole,
                              symwin_status (*rest)(const struct wide_call *, uint64_t, uint64_t))
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
static symwin_status in_pieces(const struct wide_call *c, int can,
                               symwin_status (*piece)(const struct wide_call *,
                                                      const struct piece *),
                               symwin_status (*rest)(const struct wide_call *, uint64_t, uint64_t))
{
    const uint64_t whole = in_shares(c, can);
    symwin_status status = SYMWIN_OK;
    struct piece p;
    uint64_t at;

    for (at = 0; at < whole && status == SYMWIN_OK; at += p.count) {
        p = piece_of(c, at, whole - at);
        status = piece(c, &p);
    }
    return status == SYMWIN_OK ? in_rests(c, whole, rest) : status;
}

/* ---- streams --------------------------------------------------------------------------------- */

static symwin_status follow(CUevent event, CUstream from, CUstream to)
{
    symwin_status status = sw_check(sw_drv.cuEventRecord(event, from), "cuEventRecord");

    return status == SYMWIN_OK
               ? sw_check(sw_drv.cuStreamWaitEvent(to, event, 0), "cuStreamWaitEvent")
               : status;
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* NCCL's operation: averages and pre-multiplied sums were prepared inside. */
static int rail_op(const struct sw_request *r)
{
    const int op = sw_engine_op(r->op);

    return op >= 0 ? op : sw_engine_op(SYMWIN_SUM);
}

/* Each rail reduces its share, in place. */
static symwin_status reduce_on_rails(const struct wide_call *c, const struct piece *p, char *shares,
                                     CUstream stream)
{
    const struct sw_wide *w = c->wide;
    struct batch b;
    symwin_status status = batch_begin_in(&b, c, stream);
    int i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++) {
        char *share = shares + (uint64_t)i * p->share * c->element;

        note(&b, w->engine->all_reduce(share, share, p->share, sw_engine_type(c->r->type),
                                       rail_op(c->r), w->rails[i], stream));
    }
    return batch_end(&b);
}

/* Two steps: the domain's sum on each rank, then each rail adds all of it. A rank that serves
 * several rails has the result of its first one. */
static symwin_status reduce_all_short(const struct wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    char *const sum = w->scratch, *const spare = w->scratch + w->half;
    symwin_status status = symwin_allreduce_with(c->inner, c->in + at * c->element, sum, count,
                                                 r->type, r->op, &c->options, c->stream);
    struct batch b;
    int i;

    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++)
        note(&b,
             w->engine->all_reduce(sum, i == 0 ? c->out + at * c->element : spare, count,
                                   sw_engine_type(r->type), rail_op(r), w->rails[i], c->stream));
    return batch_end(&b);
}

/* While NCCL reduces a piece in the side stream, the next one is reduced inside, and the one before
 * is gathered. */
static symwin_status reduce_all(const struct wide_call *c)
{
    struct sw_wide *w = c->wide;
    const uint64_t whole = in_shares(c, divides(&w->domains));
    struct piece p[2] = {{0}};
    symwin_status status = SYMWIN_OK;
    uint64_t at = 0;
    unsigned k, n = 0;

    for (k = 0; status == SYMWIN_OK && (at < whole || k <= n); k++) {
        if (at < whole) {
            p[k % 2] = piece_of(c, at, whole - at);
            at += p[k % 2].count;
            n = k + 1;
            status = share_sums(c, &p[k % 2], half_of(c, k));
            if (status == SYMWIN_OK)
                status = follow(w->ready[k % 2], c->stream, w->side);
            if (status == SYMWIN_OK)
                status = reduce_on_rails(c, &p[k % 2], half_of(c, k), w->side);
            if (status == SYMWIN_OK)
                status = sw_check(sw_drv.cuEventRecord(w->moved[k % 2], w->side), "cuEventRecord");
        }
        if (status == SYMWIN_OK && k > 0 && k - 1 < n)
            status = sw_check(sw_drv.cuStreamWaitEvent(c->stream, w->moved[(k - 1) % 2], 0),
                              "cuStreamWaitEvent");
        if (status == SYMWIN_OK && k > 0 && k - 1 < n)
            status = gather_shares(c, &p[(k - 1) % 2], half_of(c, k - 1));
    }
    return status == SYMWIN_OK ? in_rests(c, whole, reduce_all_short) : status;
}

/* ---- broadcast and reduce -------------------------------------------------------------------- */

/* The first rail that a rank serves: its own messages take that. */
static int rail_of(const struct sw_wide *w, int rank)
{
    return sw_rail_first(&w->domains, w->domains.domain_of[rank], w->domains.index_of[rank]);
}

/* The index in this domain of the rank that serves a rail. */
static int server_here(const struct sw_wide *w, int rail)
{
    return sw_rail_server(&w->domains, w->domain, rail);
}

static int serves(const struct sw_wide *w, int rail)
{
    return rail >= w->first_rail && rail < w->first_rail + w->rail_count;
}

/* On the root's rail, then inside each domain. */
static symwin_status broadcast_short(const struct wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const int rail = rail_of(w, c->r->root), here = server_here(w, rail);
    const char *in = c->r->comm->rank == c->r->root ? c->in + at * c->element : NULL;
    char *const out = c->out + at * c->element;
    struct batch b;
    symwin_status status = SYMWIN_OK;

    if (serves(w, rail)) {
        status = batch_begin(&b, c);
        if (status != SYMWIN_OK)
            return status;
        note(&b, w->engine->broadcast(in, out, count, sw_engine_type(c->r->type),
                                      w->domains.domain_of[c->r->root],
                                      w->rails[rail - w->first_rail], c->stream));
        status = batch_end(&b);
    }
    return status == SYMWIN_OK
               ? symwin_broadcast(c->inner, out, out, count, c->r->type, here, c->stream)
               : status;
}

/* The root's domain has all of a piece first; then each rail passes on its share, and the other
 * domains gather. */
static symwin_status broadcast_piece(const struct wide_call *c, const struct piece *p)
{
    const struct sw_wide *w = c->wide;
    const int root = c->r->root, domain = w->domains.domain_of[root];
    const char *in = c->r->comm->rank == root ? c->in + p->at * c->element : NULL;
    char *const out = c->out + p->at * c->element;
    symwin_status status = SYMWIN_OK;
    struct batch b;
    int i;

    if (w->domain == domain)
        status = symwin_broadcast(c->inner, in, out, p->count, c->r->type,
                                  w->domains.index_of[root], c->stream);
    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++) {
        const uint64_t at = (uint64_t)(w->first_rail + i) * p->share * c->element;
        char *const share = w->scratch + (uint64_t)i * p->share * c->element;

        note(&b, w->engine->broadcast(out + at, w->domain == domain ? out + at : share, p->share,
                                      sw_engine_type(c->r->type), domain, w->rails[i], c->stream));
    }
    status = batch_end(&b);
    return status == SYMWIN_OK && w->domain != domain ? gather_shares(c, p, w->scratch) : status;
}

static symwin_status reduce_short(const struct wide_call *c, uint64_t at, uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int rail = rail_of(w, r->root), here = server_here(w, rail);
    char *const sum = w->scratch;
    struct batch b;
    symwin_status status = symwin_reduce_with(c->inner, c->in + at * c->element, sum, count,
                                              r->type, r->op, here, &c->options, c->stream);

    if (status != SYMWIN_OK || !serves(w, rail))
        return status;
    status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    note(&b,
         w->engine->reduce(sum, r->comm->rank == r->root ? c->out + at * c->element : sum, count,
                           sw_engine_type(r->type), rail_op(r), w->domains.domain_of[r->root],
                           w->rails[rail - w->first_rail], c->stream));
    return batch_end(&b);
}

/* Each rail reduces its share to the root's domain, where the root collects them. */
static symwin_status reduce_piece(const struct wide_call *c, const struct piece *p)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int domain = w->domains.domain_of[r->root], index = w->domains.index_of[r->root];
    symwin_status status = share_sums(c, p, w->scratch);
    struct batch b;
    int i;

    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++) {
        char *const share = w->scratch + (uint64_t)i * p->share * c->element;

        note(&b, w->engine->reduce(share, share, p->share, sw_engine_type(r->type), rail_op(r),
                                   domain, w->rails[i], c->stream));
    }
    status = batch_end(&b);
    if (status != SYMWIN_OK || w->domain != domain)
        return status;
    return symwin_gather(c->inner, w->scratch, c->out + p->at * c->element, p->own, r->type, index,
                         c->stream);
}

/* ---- parts for each rank --------------------------------------------------------------------- */

static const char *in_part(const struct wide_call *c, int rank)
{
    return c->in + (uint64_t)rank * c->r->count * c->element;
}

static char *out_part(const struct wide_call *c, int rank)
{
    return c->out + (uint64_t)rank * c->r->count * c->element;
}

static symwin_status copy(const struct wide_call *c, char *to, const char *from, uint64_t count)
{
    if (to == from)
        return SYMWIN_OK;
    return sw_check_stream(sw_drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
                                                (CUdeviceptr)(uintptr_t)from, count * c->element,
                                                c->stream),
                           c->r->name, "cuMemcpyAsync");
}

/* The first rank of a domain whose ranks follow each other. */
static int first_rank(const struct sw_wide *w, int domain)
{
    return sw_domain_rank(&w->domains, domain, 0);
}

/* A rank's part goes to the server of its first rail in each other domain, straight to its place.
 * There it is given to all. */
static symwin_status exchange_parts(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const int type = sw_engine_type(c->r->type);
    struct batch b;
    symwin_status status = batch_begin(&b, c);
    int k, q;

    if (status != SYMWIN_OK)
        return status;
    for (k = 0; k < d->count; k++)
        if (k != w->domain)
            note(&b, w->engine->send(c->in, c->r->count, type, k, w->rails[0], c->stream));
    for (q = 0; q < d->nranks; q++) {
        const int rail = rail_of(w, q);

        if (d->domain_of[q] != w->domain && serves(w, rail))
            note(&b, w->engine->recv(out_part(c, q), c->r->count, type, d->domain_of[q],
                                     w->rails[rail - w->first_rail], c->stream));
    }
    return batch_end(&b);
}

static symwin_status gather_all(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    symwin_status status = exchange_parts(c);
    int k, q;

    for (k = 0; k < d->count && status == SYMWIN_OK && d->regular; k++) {
        char *const to = out_part(c, first_rank(w, k));

        status = symwin_allgather(
            c->inner, k == w->domain ? c->in : to + (uint64_t)w->index * r->count * c->element, to,
            r->count, r->type, c->stream);
    }
    for (q = 0; q < d->nranks && status == SYMWIN_OK && !d->regular; q++) {
        const int is_here = d->domain_of[q] == w->domain;

        status = symwin_broadcast(
            c->inner, q == r->comm->rank ? c->in : out_part(c, q), out_part(c, q), r->count,
            r->type, is_here ? d->index_of[q] : server_here(w, rail_of(w, q)), c->stream);
    }
    return status;
}

/* The domain's sums of rank q's part, `count` elements from `in` on, go to the server of its first
 * rail, and on the rail to rank q. */
static symwin_status reduce_part(const struct wide_call *c, int q, const char *in, char *out,
                                 uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int rail = rail_of(w, q);
    const uint64_t room = w->half / c->element;
    symwin_status status = SYMWIN_OK;
    uint64_t at, some;
    struct batch b;

    for (at = 0; at < count && status == SYMWIN_OK; at += some) {
        some = count - at < room ? count - at : room;
        status = symwin_reduce_with(c->inner, in + at * c->element, w->scratch, some, r->type,
                                    r->op, server_here(w, rail), &c->options, c->stream);
        if (status != SYMWIN_OK || !serves(w, rail))
            continue;
        status = batch_begin(&b, c);
        if (status != SYMWIN_OK)
            return status;
        note(&b,
             w->engine->reduce(w->scratch, q == r->comm->rank ? out + at * c->element : w->scratch,
                               some, sw_engine_type(r->type), rail_op(r), w->domains.domain_of[q],
                               w->rails[rail - w->first_rail], c->stream));
        status = batch_end(&b);
    }
    return status;
}

static symwin_status reduce_parts(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    const size_t bytes = r->count * c->element;
    symwin_status status = SYMWIN_OK;
    struct batch b;
    int k, q;

    if (!d->regular || bytes * (size_t)d->count > 2 * w->half) {
        for (q = 0; q < d->nranks && status == SYMWIN_OK; q++)
            status = reduce_part(c, q, in_part(c, q), c->out, r->count);
        return status;
    }
    for (k = 0; k < d->count && status == SYMWIN_OK; k++)
        status = symwin_reduce_scatter_with(c->inner, in_part(c, first_rank(w, k)),
                                            w->scratch + (size_t)k * bytes, r->count, r->type,
                                            r->op, &c->options, c->stream);
    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    note(&b, w->engine->reduce_scatter(w->scratch, c->out, r->count, sw_engine_type(r->type),
                                       rail_op(r), w->rails[0], c->stream));
    return batch_end(&b);
}

/* The parts for a domain are joined on the rank that is on their receiver's rail. */
static symwin_status exchange_joined(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    const uint64_t joined = r->count * (uint64_t)d->size_of[0];
    const int type = sw_engine_type(r->type);
    symwin_status status = SYMWIN_OK;
    struct batch b;
    int k;

    for (k = 0; k < d->count && status == SYMWIN_OK; k++) {
        const int first = first_rank(w, k);

        status = symwin_alltoall(c->inner, in_part(c, first),
                                 k == w->domain ? out_part(c, first)
                                                : w->scratch + (uint64_t)k * joined * c->element,
                                 r->count, r->type, c->stream);
    }
    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (k = 0; k < d->count; k++) {
        if (k == w->domain)
            continue;
        note(&b, w->engine->send(w->scratch + (uint64_t)k * joined * c->element, joined, type, k,
                                 w->rails[0], c->stream));
        note(&b, w->engine->recv(out_part(c, first_rank(w, k)), joined, type, k, w->rails[0],
                                 c->stream));
    }
    return batch_end(&b);
}

/* Where what a rank sends to another, or receives from it, begins in a buffer, and its elements. */
struct span {
    uint64_t at, count;
};

static struct span span_of(const symwin_parts *parts, uint64_t count, int rank)
{
    struct span s = {(uint64_t)rank * count, count};
    int i;

    if (parts == NULL)
        return s;
    s = (struct span){0, parts->counts[rank]};
    if (parts->displacements != NULL)
        s.at = parts->displacements[rank];
    for (i = 0; i < rank && parts->displacements == NULL; i++)
        s.at += parts->counts[i];
    return s;
}

/* Each rank's part goes to its receiver by the communicator of all ranks. In place, what is sent
 * is copied first, as far as there is room for it; ranks may differ in that. */
static symwin_status exchange_all(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int n = r->comm->nranks, type = sw_engine_type(r->type), in_place = c->in == c->out;
    const uint64_t room = 2 * w->half / c->element / (uint64_t)n;
    symwin_status status = SYMWIN_OK;
    uint64_t at = 0, most = 0;
    struct batch b;
    int q;

    for (q = 0; q < n; q++) {
        const struct span out = span_of(r->parts[1], r->count, q);
        const struct span in = span_of(r->parts[0], r->count, q);

        most = in.count > most ? in.count : most;
        most = out.count > most ? out.count : most;
    }
    for (; at < most && status == SYMWIN_OK; at += room) {
        for (q = 0; q < n && in_place && status == SYMWIN_OK; q++) {
            const struct span s = span_of(r->parts[0], r->count, q);
            const uint64_t some = s.count <= at ? 0 : s.count - at < room ? s.count - at : room;

            if (some > 0)
                status = copy(c, w->scratch + (uint64_t)q * room * c->element,
                              c->in + (s.at + at) * c->element, some);
        }
        if (status == SYMWIN_OK)
            status = batch_begin(&b, c);
        if (status != SYMWIN_OK)
            return status;
        for (q = 0; q < n; q++) {
            const struct span in = span_of(r->parts[0], r->count, q);
            const struct span out = span_of(r->parts[1], r->count, q);
            const uint64_t sends = in.count <= at ? 0 : in.count - at;
            const uint64_t receives = out.count <= at ? 0 : out.count - at;

            if (sends > 0)
                note(&b, w->engine->send(in_place ? w->scratch + (uint64_t)q * room * c->element
                                                  : c->in + (in.at + at) * c->element,
                                         sends < room ? sends : room, type, q, w->all, c->stream));
            if (receives > 0)
                note(&b, w->engine->recv(c->out + (out.at + at) * c->element,
                                         receives < room ? receives : room, type, q, w->all,
                                         c->stream));
        }
        status = batch_end(&b);
    }
    return status;
}

static symwin_status exchange(const struct wide_call *c)
{
    const struct sw_domains *d = &c->wide->domains;
    const size_t all = c->r->count * c->element * (size_t)d->nranks;

    return d->regular && all <= 2 * c->wide->half ? exchange_joined(c) : exchange_all(c);
}

/* To or from one rank. */
static symwin_status collect(const struct wide_call *c, int gathers)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int n = r->comm->nranks, me = r->comm->rank, type = sw_engine_type(r->type);
    symwin_status status = SYMWIN_OK;
    struct batch b;
    int q;

    if (me == r->root)
        status = copy(c, gathers ? out_part(c, me) : c->out, gathers ? c->in : in_part(c, me),
                      r->count);
    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    if (me != r->root)
        note(&b, gathers ? w->engine->send(c->in, r->count, type, r->root, w->all, c->stream)
                         : w->engine->recv(c->out, r->count, type, r->root, w->all, c->stream));
    for (q = 0; q < n && me == r->root; q++)
        if (q != me)
            note(&b, gathers
                         ? w->engine->recv(out_part(c, q), r->count, type, q, w->all, c->stream)
                         : w->engine->send(in_part(c, q), r->count, type, q, w->all, c->stream));
    return batch_end(&b);
}

/* ---- unequal parts --------------------------------------------------------------------------- */

static symwin_status gather_unequal(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int n = r->comm->nranks, me = r->comm->rank, type = sw_engine_type(r->type);
    const struct span own = span_of(r->parts[1], 0, me);
    symwin_status status = SYMWIN_OK;
    struct batch b;
    int q;

    if (own.count > 0)
        status = copy(c, c->out + own.at * c->element, c->in, own.count);
    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (q = 0; q < n; q++) {
        const struct span s = span_of(r->parts[1], 0, q);

        if (q == me)
            continue;
        if (own.count > 0)
            note(&b, w->engine->send(c->in, own.count, type, q, w->all, c->stream));
        if (s.count > 0)
            note(&b,
                 w->engine->recv(c->out + s.at * c->element, s.count, type, q, w->all, c->stream));
    }
    return batch_end(&b);
}

static symwin_status reduce_unequal(const struct wide_call *c)
{
    symwin_status status = SYMWIN_OK;
    int q;

    for (q = 0; q < c->r->comm->nranks && status == SYMWIN_OK; q++) {
        const struct span s = span_of(c->r->parts[0], 0, q);

        status = reduce_part(c, q, c->in + s.at * c->element, c->out, s.count);
    }
    return status;
}

/* All ranks of a domain have come when its barrier is over, and a rank of each domain is on each
 * rail. */
static symwin_status meet(const struct wide_call *c)
{
    const struct sw_wide *w = c->wide;
    symwin_status status = symwin_barrier(c->inner, c->stream);
    struct batch b;
    int i;

    if (status == SYMWIN_OK)
        status = batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++)
        note(&b, w->engine->all_reduce(w->scratch + 8 * i, w->scratch + 8 * i, 1,
                                       sw_engine_type(SYMWIN_U8), sw_engine_op(SYMWIN_SUM),
                                       w->rails[i], c->stream));
    return batch_end(&b);
}

/* ---- sends and receives ---------------------------------------------------------------------- */

static symwin_status check_pair(const struct sw_pair_call *p)
{
    symwin_status status = SYMWIN_OK;

    if (p->peer < 0 || p->peer >= p->comm->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: peer is %d and must be a rank, 0 to %d", p->name,
                       p->peer, p->comm->nranks - 1);
    if (p->count > SIZE_MAX / 16)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds", p->name,
                       (unsigned long long)p->count);
    if (p->count > 0)
        status = sw_comm_check_buffer(p->comm, p->name, p->receives ? "out" : "in",
                                      (CUdeviceptr)(uintptr_t)p->buffer);
    return status;
}

/* Those to and from ranks of the domain: by its communicator. */
static symwin_status pairs_inside(const struct sw_pair_call *const *calls, size_t n,
                                  const char *call)
{
    const struct sw_wide *w = calls[0]->comm->wide;
    struct sw_pair_call *inside = calloc(n, sizeof *inside);
    const struct sw_pair_call **list = calloc(n, sizeof *list);
    symwin_status status = SYMWIN_OK;
    size_t i, found = 0;

    if (inside == NULL || list == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", call, n);
    for (i = 0; i < n && status == SYMWIN_OK; i++) {
        if (w->domains.domain_of[calls[i]->peer] != w->domain)
            continue;
        inside[found] = *calls[i];
        inside[found].comm = w->comm->inner;
        inside[found].peer = w->domains.index_of[calls[i]->peer];
        status = sw_pair_check(&inside[found]);
        list[found] = &inside[found];
        found++;
    }
    if (status == SYMWIN_OK && found > 0)
        status = sw_pairs_check(list, found, call);
    if (status == SYMWIN_OK && found > 0)
        status = sw_pairs_launch(list, found, call);
    free(inside);
    free(list);
    return status;
}

static symwin_status pairs_between(const struct sw_pair_call *const *calls, size_t n,
                                   const char *call)
{
    const struct sw_request r = {.name = call};
    struct sw_wide *w = calls[0]->comm->wide;
    const struct wide_call c = {.r = &r,
                                .wide = w,
                                .stream = calls[0]->stream,
                                .is_captured = is_captured(calls[0]->stream)};
    struct batch b;
    symwin_status status = batch_begin(&b, &c);
    size_t i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < n; i++) {
        const struct sw_pair_call *p = calls[i];
        const int type = sw_engine_type(p->type);

        if (w->domains.domain_of[p->peer] == w->domain || p->count == 0)
            continue;
        note(&b, p->receives
                     ? w->engine->recv((void *)(uintptr_t)p->buffer, p->count, type, p->peer,
                                       w->all, p->stream)
                     : w->engine->send(p->buffer, p->count, type, p->peer, w->all, p->stream));
    }
    return batch_end(&b);
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Calls run in their order, also on several streams: they share the scratch. */
static symwin_status come_after(struct sw_wide *w, const char *call, CUstream stream)
{
    if (!w->has_last || w->last_stream == stream)
        return SYMWIN_OK;
    return sw_check_stream(sw_drv.cuStreamWaitEvent(stream, w->last_call, 0), call,
                           "cuStreamWaitEvent");
}

static symwin_status be_last(struct sw_wide *w, const char *call, CUstream stream)
{
    symwin_status status;

    status = sw_check_stream(sw_drv.cuEventRecord(w->last_call, stream), call, "cuEventRecord");
    w->has_last = status == SYMWIN_OK;
    w->last_stream = stream;
    return status;
}

/* Checks what this rank alone can see, before anything is launched. */
static symwin_status check(const struct sw_request *r)
{
    const struct sw_collective *is = &sw_collectives[r->collective];
    const int is_root = r->comm->rank == r->root;
    symwin_status status = SYMWIN_OK;
    int b;

    if (sw_has_root(r->collective) && (r->root < 0 || r->root >= r->comm->nranks))
        return sw_fail(SYMWIN_INVALID, "%s: root is %d and must be a rank, 0 to %d", r->name,
                       r->root, r->comm->nranks - 1);
    if (r->count > SIZE_MAX / 16 / (size_t)r->comm->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds", r->name,
                       (unsigned long long)r->count);
    if (r->options != NULL && r->options->algo != SYMWIN_ALGO_AUTO)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the communicator's ranks are in several domains, where a call has "
                       "several steps; pass SYMWIN_ALGO_AUTO, not %s",
                       r->name, symwin_algo_name(r->options->algo));
    if (is->by_parts)
        for (b = 0; b < 2; b++)
            if (r->parts[b] != NULL && (r->parts[b]->on_device || r->parts[b]->counts == NULL))
                return sw_fail(SYMWIN_UNSUPPORTED,
                               "%s: the communicator's ranks are in several domains; pass counts "
                               "in host memory",
                               r->name);
    if (is->reduces && r->op == SYMWIN_AVG && !sw_type_is_float(r->type))
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: there are no averages of integers over several domains; pass "
                       "SYMWIN_SUM and divide",
                       r->name);
    if (is->no_data || is->by_parts)
        return SYMWIN_OK;
    if (!is->root_sends || is_root)
        status = sw_comm_check_buffer(r->comm, r->name, "in", (CUdeviceptr)(uintptr_t)r->in);
    if (status == SYMWIN_OK && (!is->root_receives || is_root))
        status = sw_comm_check_buffer(r->comm, r->name, "out", (CUdeviceptr)(uintptr_t)r->out);
    return status;
}

static symwin_status launch(const struct wide_call *c)
{
    const int can = divides(&c->wide->domains);

    switch (c->r->collective) {
    case SYMWIN_ALLREDUCE:
        return reduce_all(c);
    case SYMWIN_ALLGATHER:
        return gather_all(c);
    case SYMWIN_ALLTOALL:
        return exchange(c);
    case SYMWIN_BROADCAST:
        return in_pieces(c, can, broadcast_piece, broadcast_short);
    case SYMWIN_GATHER:
        return collect(c, 1);
    case SYMWIN_SCATTER:
        return collect(c, 0);
    case SYMWIN_REDUCE_SCATTER:
        return reduce_parts(c);
    case SYMWIN_REDUCE:
        return in_pieces(
            c, can && serve_alike(&c->wide->domains, c->wide->domains.domain_of[c->r->root]),
            reduce_piece, reduce_short);
    case SYMWIN_BARRIER:
        return meet(c);
    case SYMWIN_ALLTOALLV:
        return exchange_all(c);
    case SYMWIN_ALLGATHERV:
        return gather_unequal(c);
    case SYMWIN_REDUCE_SCATTERV:
        return reduce_unequal(c);
    }
    return SYMWIN_UNSUPPORTED;
}

/* An average is a pre-multiplied sum inside, as NCCL has it: each rank's elements times 1 / ranks. */
static void set_average(struct sw_request *r)
{
    const double scalar = 1.0 / r->comm->nranks;
    const float narrow = (float)scalar;

    r->op = SYMWIN_PREMUL_SUM;
    r->scalar = r->type == SYMWIN_F64      ? sw_f64_bits(scalar)
                : r->type == SYMWIN_F32    ? sw_f32_bits(narrow)
                : r->type == SYMWIN_F16    ? sw_f16_from_f32(narrow)
                : r->type == SYMWIN_BF16   ? sw_bf16_from_f32(narrow)
                : r->type == SYMWIN_F8E4M3 ? sw_e4m3_from_f32(narrow)
                                           : sw_e5m2_from_f32(narrow);
}

/* What a call of the domain alone would be. */
static symwin_status answer(const struct sw_request *r, symwin_collective_info *info)
{
    const struct sw_wide *w = r->comm->wide;
    struct sw_request inside = *r;

    inside.comm = r->comm->inner;
    inside.root = w->domains.domain_of[r->root] == w->domain ? w->domains.index_of[r->root] : 0;
    return sw_request_run(&inside, info);
}

static symwin_status run(const struct sw_request *request, symwin_collective_info *info)
{
    struct sw_request r = *request;
    symwin_comm *comm = r.comm;
    struct wide_call c = {.r = &r,
                          .wide = comm->wide,
                          .inner = comm->inner,
                          .stream = r.stream,
                          .element = symwin_type_bytes(r.type),
                          .in = r.in,
                          .out = (char *)(uintptr_t)r.out,
                          .options = {.size = sizeof c.options}};
    symwin_status status = sw_comm_enter(comm, r.name);
    struct sw_scope scope;

    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK)
        status = check(&r);
    if (status == SYMWIN_OK && sw_collectives[r.collective].reduces && r.op == SYMWIN_AVG)
        set_average(&r);
    if (r.op == SYMWIN_PREMUL_SUM) {
        c.options.scalar_on_device = r.options != NULL && r.options->scalar_on_device;
        c.options.scalar = c.options.scalar_on_device ? (const void *)(uintptr_t)r.scalar
                                                      : (const void *)&r.scalar;
    }
    if (r.options != NULL) {
        c.options.blocks = r.options->blocks;
        c.options.threads = r.options->threads;
    }
    if (status == SYMWIN_OK && info != NULL)
        status = answer(&r, info);
    else if (status == SYMWIN_OK && (r.count > 0 || sw_collectives[r.collective].no_data ||
                                     sw_collectives[r.collective].by_parts)) {
        c.is_captured = is_captured(c.stream);
        if (!c.is_captured)
            status = come_after(c.wide, r.name, c.stream);
        if (status == SYMWIN_OK)
            status = launch(&c);
        if (status == SYMWIN_OK && !c.is_captured)
            status = be_last(c.wide, r.name, c.stream);
    }
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return status;
}

static symwin_status pairs(const struct sw_pair_call *const *calls, size_t n, const char *call)
{
    symwin_comm *comm = calls[0]->comm;
    symwin_status status = sw_comm_enter(comm, call);
    struct sw_scope scope;
    size_t i;

    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(comm->context, &scope);
    for (i = 0; i < n && status == SYMWIN_OK; i++)
        status = check_pair(calls[i]);
    if (status == SYMWIN_OK)
        status = pairs_between(calls, n, call);
    if (status == SYMWIN_OK)
        status = pairs_inside(calls, n, call);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return status;
}

static symwin_status follow_calls(symwin_comm *comm, const char *call, CUstream stream)
{
    return is_captured(stream) ? SYMWIN_OK : come_after(comm->wide, call, stream);
}

const struct sw_wide_calls sw_wide_calls = {run, pairs, follow_calls, sw_wide_look};
