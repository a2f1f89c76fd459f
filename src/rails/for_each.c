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

/* ---- steps ----------------------------------------------------------------------------------- */

/* In each step two domains exchange what their ranks have for each other, while kernels work on
 * what other steps need. Step s joins the domains d and (s - d) mod n, alike from both sides; if
 * that is d itself, nothing travels. A rank's part goes by its first rail. */
static int partner_of(const struct sw_wide *w, int step)
{
    return (step - w->domain + w->domains.count) % w->domains.count;
}

/* Elements of each part that a step has, if `each` parts are in the scratch. The same on all ranks.
 */
static uint64_t elements_of_step(const struct sw_wide_call *c, int each)
{
    const unsigned domains = (unsigned)c->wide->domains.count,
                   turns = (c->way.pieces + domains - 1) / domains;
    const uint64_t room = c->wide->part / c->element / (uint64_t)each,
                   even = (c->r->count + turns - 1) / turns;

    return even < room ? even : room;
}

/* All steps, for `some` elements of each part after the other. `sums`: all domains send to one, and
 * none exchange. */
static symwin_status run_steps(const struct sw_wide_call *c, const struct sw_flow *flow,
                               uint64_t some, int sums)
{
    const struct sw_wide *w = c->wide;
    struct sw_line line = {.call = c, .flow = flow};
    symwin_status status = SYMWIN_OK;
    uint64_t at;
    int step;

    for (at = 0; at < c->r->count && status == SYMWIN_OK; at += some)
        for (step = 0; step < w->domains.count && status == SYMWIN_OK; step++) {
            const int domain = sums ? step : partner_of(w, step);
            const uint64_t left = c->r->count - at;
            const struct sw_line_piece p = {.at = at,
                                            .count = left < some ? left : some,
                                            .domain = domain,
                                            .stays = !sums && domain == w->domain};

            status = sw_line_put(&line, &p);
        }
    return status == SYMWIN_OK ? sw_line_end(&line) : status;
}

/* The rank of a domain whose first rail that is; -1: none. */
static int rank_of_rail(const struct sw_wide *w, int domain, int rail)
{
    const struct sw_domains *d = &w->domains;
    const int index = sw_rail_server(d, domain, rail);

    return sw_rail_first(d, domain, index) == rail ? sw_domain_rank(d, domain, index) : -1;
}

/* Where domains differ: a rank has, of the parts of a piece's domain, those that go by the rails
 * which it serves. In round `round`, the next one of each rank here, or, if all of each part is
 * meant, the next ones that are beside each other. Whether there are any, alike on all ranks here.
 */
static int next_parts(const struct sw_wide_call *c, const struct sw_line_piece *p, int round,
                      symwin_parts *parts)
{
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    uint64_t *const counts = w->counts, *const at = counts + d->nranks;
    int k, number = 0, found = 0, before = -1, last = -1;

    for (k = 0; k < d->size_of[w->domain]; k++)
        counts[k] = at[k] = 0;
    for (k = 0; k < d->size_of[p->domain]; k++) {
        const int q = sw_domain_rank(d, p->domain, k), here = sw_server_here(w, sw_rail_of(w, q));

        if (here != before)
            number = 0;
        else if (q != last + 1 || p->count < c->r->count)
            number++;
        before = here;
        last = q;
        if (number != round)
            continue;
        if (counts[here] == 0)
            at[here] = (uint64_t)q * c->r->count + p->at;
        counts[here] += p->count;
        found = 1;
    }
    *parts = (symwin_parts){.counts = counts, .displacements = at};
    return found;
}

/* The same elements of the parts of a domain's ranks, as parts of unequal lengths; and as they are
 * joined. */
static symwin_parts slices_of(const struct sw_wide_call *c, const struct sw_line_piece *p,
                              symwin_parts *joined)
{
    const struct sw_wide *w = c->wide;
    uint64_t *const counts = w->counts, *const at = counts + w->domains.nranks,
                    *const joined_at = at + w->domains.nranks;
    int i;

    for (i = 0; i < w->domains.size_of[0]; i++) {
        counts[i] = p->count;
        at[i] = (uint64_t)i * c->r->count + p->at;
        joined_at[i] = (uint64_t)i * p->count;
    }
    *joined = (symwin_parts){.counts = counts, .displacements = joined_at};
    return (symwin_parts){.counts = counts, .displacements = at};
}

/* ---- all-gather, reduce-scatter, all-to-all -------------------------------------------------- */

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

/* All parts of a domain's ranks, when each rank here has those that go by its rails. */
static symwin_status gather_unlike(const struct sw_wide_call *c, const struct sw_line_piece *p)
{
    const struct sw_wide *w = c->wide;
    symwin_status status = SYMWIN_OK;
    symwin_parts parts;
    int round;

    for (round = 0; status == SYMWIN_OK && next_parts(c, p, round, &parts); round++)
        status = symwin_allgatherv(
            c->inner,
            p->domain == w->domain ? c->in : c->out + parts.displacements[w->index] * c->element,
            c->out, &parts, c->r->type, c->stream);
    return status;
}

/* The same, where domains do not differ too. */
static symwin_status gather_domain(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                   char *room)
{
    const struct sw_wide *w = c->wide;
    char *const to = out_part(c, first_rank(w, p->domain));

    (void)room;
    if (!w->domains.regular)
        return gather_unlike(c, p);
    return symwin_allgather(
        c->inner,
        p->domain == w->domain ? c->in : to + (uint64_t)w->index * c->r->count * c->element, to,
        c->r->count, c->r->type, c->stream);
}

static void exchange_part(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                          CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    const struct sw_wide *w = c->wide;
    const size_t bytes = (size_t)c->r->count * c->element;
    const int from = rank_of_rail(w, p->domain, w->first_rail + i);

    (void)room;
    if (i == 0)
        sw_batch_note(b, w->engine->send(c->in, bytes, SW_ENGINE_BYTES, p->domain, comm, stream));
    if (from >= 0)
        sw_batch_note(
            b, w->engine->recv(out_part(c, from), bytes, SW_ENGINE_BYTES, p->domain, comm, stream));
}

symwin_status sw_gather_all(const struct sw_wide_call *c)
{
    static const struct sw_flow flow = {.rail = exchange_part, .last = gather_domain};
    const struct sw_domains *d = &c->wide->domains;
    const struct sw_request *r = c->r;
    symwin_status status;
    struct sw_line_piece p = {.count = r->count};

    if (c->way.pieces > 1)
        return run_steps(c, &flow, r->count, 0);
    status = exchange_parts(c);
    for (; p.domain < d->count && status == SYMWIN_OK; p.domain++)
        status = gather_domain(c, &p, NULL);
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

/* The domain's sums of what is for a domain: on each rank those that go by its rails. */
static symwin_status sum_unlike(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                char *room)
{
    const struct sw_wide *w = c->wide;
    const struct sw_request *r = c->r;
    symwin_status status = SYMWIN_OK;
    symwin_parts parts;
    int round;

    for (round = 0; status == SYMWIN_OK && next_parts(c, p, round, &parts); round++) {
        status = symwin_reduce_scatterv_with(c->inner, c->in, &parts, room, r->type, r->op,
                                             &c->options, c->stream);
        room += parts.counts[w->index] * c->element;
    }
    return status;
}

/* This rank's part of them. */
static symwin_status sum_domain(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                char *room)
{
    const struct sw_request *r = c->r;
    const char *in = in_part(c, first_rank(c->wide, p->domain));
    symwin_parts parts, joined;

    if (!c->wide->domains.regular)
        return sum_unlike(c, p, room);
    if (p->count == r->count)
        return symwin_reduce_scatter_with(c->inner, in, room, r->count, r->type, r->op, &c->options,
                                          c->stream);
    parts = slices_of(c, p, &joined);
    return symwin_reduce_scatterv_with(c->inner, in, &parts, room, r->type, r->op, &c->options,
                                       c->stream);
}

static void add_sums(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                     CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    const struct sw_wide *w = c->wide;
    const int to = rank_of_rail(w, p->domain, w->first_rail + i), me = c->r->comm->rank;
    int k;

    if (to < 0)
        return;
    for (k = 0; k < i; k++)
        if (rank_of_rail(w, p->domain, w->first_rail + k) >= 0)
            room += p->count * c->element;
    sw_batch_note(b, w->engine->reduce(room, to == me ? c->out + p->at * c->element : room,
                                       p->count, sw_engine_type(c->r->type), sw_rail_op(c->r),
                                       p->domain, comm, stream));
}

symwin_status sw_reduce_parts(const struct sw_wide_call *c)
{
    static const struct sw_flow flow = {.first = sum_domain, .rail = add_sums};
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    const size_t bytes = r->count * c->element;
    const int fits = bytes * (size_t)d->count <= 2 * w->half;
    symwin_status status = SYMWIN_OK;
    struct sw_line_piece p = {.count = r->count};
    struct sw_batch b;
    int q;

    if (c->way.pieces > 1 || (d->regular && !fits))
        return run_steps(c, &flow, elements_of_step(c, sw_most_served(d)), 1);
    if (!d->regular) {
        for (q = 0; q < d->nranks && status == SYMWIN_OK; q++)
            status = reduce_part(c, q, in_part(c, q), c->out, r->count);
        return status;
    }
    for (; p.domain < d->count && status == SYMWIN_OK; p.domain++)
        status = sum_domain(c, &p, w->scratch + (size_t)p.domain * bytes);
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

/* The parts for a domain are joined on the rank that is on their receiver's rail. What is for this
 * domain needs no more. */
static symwin_status join_parts(const struct sw_wide_call *c, const struct sw_line_piece *p,
                                char *room)
{
    const struct sw_request *r = c->r;
    const int first = first_rank(c->wide, p->domain);
    const char *in = in_part(c, first);
    symwin_parts from, to;

    if (p->domain == c->wide->domain)
        return p->at > 0 ? SYMWIN_OK
                         : symwin_alltoall(c->inner, in, out_part(c, first), r->count, r->type,
                                           c->stream);
    if (p->count == r->count)
        return symwin_alltoall(c->inner, in, room, r->count, r->type, c->stream);
    from = slices_of(c, p, &to);
    return symwin_alltoallv(c->inner, in, &from, room, &to, r->type, c->stream);
}

/* With the rank of a domain that is on this rank's rail: one message, or one for each part. */
static void exchange_joined(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                            CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b)
{
    const struct sw_wide *w = c->wide;
    const int all = p->count == c->r->count, first = first_rank(w, p->domain),
              messages = all ? 1 : w->domains.size_of[0];
    const size_t bytes = p->count * c->element * (size_t)(all ? w->domains.size_of[0] : 1);
    int k;

    (void)i;
    for (k = 0; k < messages; k++) {
        sw_batch_note(b, w->engine->send(room + (size_t)k * bytes, bytes, SW_ENGINE_BYTES,
                                         p->domain, comm, stream));
        sw_batch_note(b, w->engine->recv(out_part(c, first + k) + p->at * c->element, bytes,
                                         SW_ENGINE_BYTES, p->domain, comm, stream));
    }
}

symwin_status sw_exchange_joined(const struct sw_wide_call *c)
{
    static const struct sw_flow flow = {.first = join_parts, .rail = exchange_joined};
    const struct sw_wide *w = c->wide;
    const struct sw_domains *d = &w->domains;
    const struct sw_request *r = c->r;
    const uint64_t joined = r->count * (uint64_t)d->size_of[0] * c->element; /* bytes */
    symwin_status status = SYMWIN_OK;
    struct sw_line_piece p = {.count = r->count};
    struct sw_batch b;

    if (c->way.pieces > 1 || joined * (uint64_t)d->count > 2 * w->half)
        return run_steps(c, &flow, elements_of_step(c, d->size_of[0]), 0);
    for (; p.domain < d->count && status == SYMWIN_OK; p.domain++)
        status = join_parts(c, &p, w->scratch + (uint64_t)p.domain * joined);
    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (p.domain = 0; p.domain < d->count; p.domain++)
        if (p.domain != w->domain)
            exchange_joined(c, &p, w->scratch + (uint64_t)p.domain * joined, c->stream, 0,
                            w->rails[0], &b);
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
