/* Collectives over several domains in which each rank has a part: all-gather, reduce-scatter,
 * all-to-all, gather, scatter, and those of unequal parts. */
#include "src/rails/wide_call.h"

/* ---- parts for each rank --------------------------------------------------------------------- */

static const char *in_part(const struct sw_wide_call *c, int rank)
{
    return c->in + (uint64_t)rank * c->r->count * c->element;
}

static char *out_part(const struct sw_wide_call *c, int rank)
{
    return c->out + (uint64_t)rank * c->r->count * c->element;
}

static symwin_status copy(const struct sw_wide_call *c, char *to, const char *from, uint64_t count)
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
static symwin_status exchange_parts(const struct sw_wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const size_t bytes = (size_t)c->r->count * c->element;
    struct sw_batch b;
    symwin_status status = sw_batch_begin(&b, c);
    int k, q;

    if (status != SYMWIN_OK)
        return status;
    for (k = 0; k < d->count; k++)
        if (k != w->domain)
            sw_batch_note(
                &b, w->engine->send(c->in, bytes, SW_ENGINE_BYTES, k, w->rails[0], c->stream));
    for (q = 0; q < d->nranks; q++) {
        const int rail = sw_rail_of(w, q);

        if (d->domain_of[q] != w->domain && sw_serves(w, rail))
            sw_batch_note(&b,
                          w->engine->recv(out_part(c, q), bytes, SW_ENGINE_BYTES, d->domain_of[q],
                                          w->rails[rail - w->first_rail], c->stream));
    }
    return sw_batch_end(&b);
}

symwin_status sw_gather_all(const struct sw_wide_call *c)
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
            r->type, is_here ? d->index_of[q] : sw_server_here(w, sw_rail_of(w, q)), c->stream);
    }
    return status;
}

/* The domain's sums of rank q's part, `count` elements from `in` on, go to the server of its first
 * rail, and on the rail to rank q. */
static symwin_status reduce_part(const struct sw_wide_call *c, int q, const char *in, char *out,
                                 uint64_t count)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int rail = sw_rail_of(w, q);
    const uint64_t room = w->half / c->element;
    symwin_status status = SYMWIN_OK;
    uint64_t at, some;
    struct sw_batch b;

    for (at = 0; at < count && status == SYMWIN_OK; at += some) {
        some = count - at < room ? count - at : room;
        status = symwin_reduce_with(c->inner, in + at * c->element, w->scratch, some, r->type,
                                    r->op, sw_server_here(w, rail), &c->options, c->stream);
        if (status != SYMWIN_OK || !sw_serves(w, rail))
            continue;
        status = sw_batch_begin(&b, c);
        if (status != SYMWIN_OK)
            return status;
        sw_batch_note(&b, w->engine->reduce(
                              w->scratch, q == r->comm->rank ? out + at * c->element : w->scratch,
                              some, sw_engine_type(r->type), sw_rail_op(r), w->domains.domain_of[q],
                              w->rails[rail - w->first_rail], c->stream));
        sw_batch_verdict(&b, rail - w->first_rail);
        status = sw_batch_end(&b);
    }
    return status;
}

symwin_status sw_reduce_parts(const struct sw_wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    const size_t bytes = r->count * c->element;
    symwin_status status = SYMWIN_OK;
    struct sw_batch b;
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
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    sw_batch_note(&b,
                  w->engine->reduce_scatter(w->scratch, c->out, r->count, sw_engine_type(r->type),
                                            sw_rail_op(r), w->rails[0], c->stream));
    sw_batch_verdict(&b, 0);
    return sw_batch_end(&b);
}

/* The parts for a domain are joined on the rank that is on their receiver's rail. */
symwin_status sw_exchange_joined(const struct sw_wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    const uint64_t joined = r->count * (uint64_t)d->size_of[0] * c->element; /* bytes */
    symwin_status status = SYMWIN_OK;
    struct sw_batch b;
    int k;

    for (k = 0; k < d->count && status == SYMWIN_OK; k++) {
        const int first = first_rank(w, k);

        status = symwin_alltoall(c->inner, in_part(c, first),
                                 k == w->domain ? out_part(c, first)
                                                : w->scratch + (uint64_t)k * joined,
                                 r->count, r->type, c->stream);
    }
    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (k = 0; k < d->count; k++) {
        if (k == w->domain)
            continue;
        sw_batch_note(&b, w->engine->send(w->scratch + (uint64_t)k * joined, joined,
                                          SW_ENGINE_BYTES, k, w->rails[0], c->stream));
        sw_batch_note(&b, w->engine->recv(out_part(c, first_rank(w, k)), joined, SW_ENGINE_BYTES, k,
                                          w->rails[0], c->stream));
    }
    sw_batch_verdict(&b, 0);
    return sw_batch_end(&b);
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
symwin_status sw_exchange_all(const struct sw_wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int n = r->comm->nranks, in_place = c->in == c->out;
    const uint64_t room = 2 * w->half / c->element / (uint64_t)n;
    symwin_status status = SYMWIN_OK;
    uint64_t at = 0, most = 0;
    struct sw_batch b;
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
            status = sw_batch_begin(&b, c);
        if (status != SYMWIN_OK)
            return status;
        for (q = 0; q < n; q++) {
            const struct span in = span_of(r->parts[0], r->count, q);
            const struct span out = span_of(r->parts[1], r->count, q);
            const uint64_t sends = in.count <= at ? 0 : in.count - at;
            const uint64_t receives = out.count <= at ? 0 : out.count - at;

            if (sends > 0)
                sw_batch_note(&b, w->engine->send(in_place
                                                      ? w->scratch + (uint64_t)q * room * c->element
                                                      : c->in + (in.at + at) * c->element,
                                                  (sends < room ? sends : room) * c->element,
                                                  SW_ENGINE_BYTES, q, w->all, c->stream));
            if (receives > 0)
                sw_batch_note(&b, w->engine->recv(c->out + (out.at + at) * c->element,
                                                  (receives < room ? receives : room) * c->element,
                                                  SW_ENGINE_BYTES, q, w->all, c->stream));
        }
        status = sw_batch_end(&b);
    }
    return status;
}

/* To or from one rank. */
symwin_status sw_collect(const struct sw_wide_call *c, int gathers)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int n = r->comm->nranks, me = r->comm->rank;
    symwin_status status = SYMWIN_OK;
    struct sw_batch b;
    int q;

    if (me == r->root)
        status = copy(c, gathers ? out_part(c, me) : c->out, gathers ? c->in : in_part(c, me),
                      r->count);
    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    if (me != r->root)
        sw_batch_note(&b, gathers ? w->engine->send(c->in, r->count * c->element, SW_ENGINE_BYTES,
                                                    r->root, w->all, c->stream)
                                  : w->engine->recv(c->out, r->count * c->element, SW_ENGINE_BYTES,
                                                    r->root, w->all, c->stream));
    for (q = 0; q < n && me == r->root; q++)
        if (q != me)
            sw_batch_note(&b, gathers ? w->engine->recv(out_part(c, q), r->count * c->element,
                                                        SW_ENGINE_BYTES, q, w->all, c->stream)
                                      : w->engine->send(in_part(c, q), r->count * c->element,
                                                        SW_ENGINE_BYTES, q, w->all, c->stream));
    return sw_batch_end(&b);
}

/* ---- unequal parts --------------------------------------------------------------------------- */

symwin_status sw_gather_unequal(const struct sw_wide_call *c)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    const int n = r->comm->nranks, me = r->comm->rank;
    const struct span own = span_of(r->parts[1], 0, me);
    symwin_status status = SYMWIN_OK;
    struct sw_batch b;
    int q;

    if (own.count > 0)
        status = copy(c, c->out + own.at * c->element, c->in, own.count);
    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (q = 0; q < n; q++) {
        const struct span s = span_of(r->parts[1], 0, q);

        if (q == me)
            continue;
        if (own.count > 0)
            sw_batch_note(&b, w->engine->send(c->in, own.count * c->element, SW_ENGINE_BYTES, q,
                                              w->all, c->stream));
        if (s.count > 0)
            sw_batch_note(&b, w->engine->recv(c->out + s.at * c->element, s.count * c->element,
                                              SW_ENGINE_BYTES, q, w->all, c->stream));
    }
    return sw_batch_end(&b);
}

symwin_status sw_reduce_unequal(const struct sw_wide_call *c)
{
    symwin_status status = SYMWIN_OK;
    int q;

    for (q = 0; q < c->r->comm->nranks && status == SYMWIN_OK; q++) {
        const struct span s = span_of(c->r->parts[0], 0, q);

        status = reduce_part(c, q, c->in + s.at * c->element, c->out, s.count);
    }
    return status;
}
