/* Calls of a communicator over several domains: what is checked before the first step, barriers,
 * sends and receives. shares.c and for_each.c have the collectives: calls of the domain's
 * communicator, and of NCCL's on the rails, one after another in the caller's stream. */
#include <stdlib.h>

#include "src/rails/wide_call.h"
#include "symwin/float.h"

static int is_captured(CUstream stream)
{
    struct sw_stream_seen seen;

    sw_capture_see(stream, &seen);
    return seen.capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* All ranks of a domain have come when its barrier is over, and a rank of each domain is on each
 * rail. */
static symwin_status meet(const struct sw_wide_call *c)
{
    const struct sw_wide *w = c->wide;
    symwin_status status = symwin_barrier(c->inner, c->stream);
    struct sw_batch b;
    int i;

    if (status == SYMWIN_OK)
        status = sw_batch_begin(&b, c);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < w->rail_count; i++)
        sw_batch_note(&b, w->engine->all_reduce(w->scratch + 8 * i, w->scratch + 8 * i, 1,
                                                sw_engine_type(SYMWIN_U8), sw_engine_op(SYMWIN_SUM),
                                                w->rails[i], c->stream));
    return sw_batch_end(&b);
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
    const struct sw_wide_call c = {.r = &r,
                                   .wide = w,
                                   .stream = calls[0]->stream,
                                   .is_captured = is_captured(calls[0]->stream)};
    struct sw_batch b;
    symwin_status status = sw_batch_begin(&b, &c);
    size_t i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < n; i++) {
        const struct sw_pair_call *p = calls[i];
        const int type = sw_engine_type(p->type);

        if (w->domains.domain_of[p->peer] == w->domain || p->count == 0)
            continue;
        sw_batch_note(&b, p->receives ? w->engine->recv((void *)(uintptr_t)p->buffer, p->count,
                                                        type, p->peer, w->all, p->stream)
                                      : w->engine->send(p->buffer, p->count, type, p->peer, w->all,
                                                        p->stream));
    }
    return sw_batch_end(&b);
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

static symwin_status launch(const struct sw_wide_call *c)
{
    switch (c->r->collective) {
    case SYMWIN_ALLREDUCE:
        return sw_reduce_all(c);
    case SYMWIN_ALLGATHER:
        return sw_gather_all(c);
    case SYMWIN_ALLTOALL:
        return sw_exchange_each(c);
    case SYMWIN_BROADCAST:
        return sw_broadcast_all(c);
    case SYMWIN_GATHER:
        return sw_collect(c, 1);
    case SYMWIN_SCATTER:
        return sw_collect(c, 0);
    case SYMWIN_REDUCE_SCATTER:
        return sw_reduce_parts(c);
    case SYMWIN_REDUCE:
        return sw_reduce_to_root(c);
    case SYMWIN_BARRIER:
        return meet(c);
    case SYMWIN_ALLTOALLV:
        return sw_exchange_all(c);
    case SYMWIN_ALLGATHERV:
        return sw_gather_unequal(c);
    case SYMWIN_REDUCE_SCATTERV:
        return sw_reduce_unequal(c);
    }
    return SYMWIN_UNSUPPORTED;
}

/* An average is a pre-multiplied sum inside, as NCCL has it: of elements times 1 / ranks. */
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
    struct sw_wide_call c = {.r = &r,
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
