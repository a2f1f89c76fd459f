/* Calls of a communicator over several domains: what is checked before the first step, barriers,
 * sends and receives. shares.c and for_each.c have the collectives: calls of the domain's
 * communicator, and of NCCL's on the rails, one after another in the caller's stream. */
#include <stdlib.h>
#include <string.h>

#include "src/rails/wide_call.h"
#include "symwin/float.h"

/* ---- order ----------------------------------------------------------------------------------- */

/* *capture: 0: the stream is in none. What the driver refuses in an invalid one would count as the
 * failure of a call that other ranks have launched. */
static symwin_status see_capture(const char *call, CUstream stream, cuuint64_t *capture)
{
    struct sw_stream_seen seen;

    sw_capture_see(stream, &seen);
    *capture = seen.capture.id;
    return sw_check_capture(seen.capturing, call);
}

static symwin_status wait_for(CUstream stream, CUevent event, const char *call)
{
    return sw_check_stream(sw_drv.cuStreamWaitEvent(stream, event, 0), call, "cuStreamWaitEvent");
}

static struct sw_wide_captured *find_capture(struct sw_wide *w, cuuint64_t id)
{
    int i = 0;

    while (i < SW_CAPTURES && w->captured[i].id != id)
        i++;
    return i < SW_CAPTURES ? &w->captured[i] : NULL;
}

/* Whether a stream of the communicator's is in no other capture. */
static symwin_status is_free(const char *call, CUstream stream, cuuint64_t capture, int *is)
{
    struct sw_stream_seen seen;

    sw_capture_see(stream, &seen);
    *is = seen.capturing == CU_STREAM_CAPTURE_STATUS_NONE || seen.capture.id == capture;
    return sw_check(seen.result, "%s: cuStreamGetCaptureInfo", call);
}

/* Which of the lanes' streams a call takes. Those for captures are in one until it ends. */
static symwin_status find_lanes(struct sw_wide_call *c, cuuint64_t capture)
{
    symwin_status status = SYMWIN_OK;
    int is = 1;

    c->is_captured = capture != 0;
    if (c->is_captured)
        status = is_free(c->r->name, c->wide->lanes[0].streams[1], capture, &is);
    c->lanes = !is ? -1 : c->is_captured;
    return status;
}

/* Calls run in their order, also on several streams: they share the scratch. So do those of one
 * capture; the program orders captures. */
static symwin_status come_after(struct sw_wide *w, const char *call, CUstream stream,
                                cuuint64_t capture)
{
    const struct sw_wide_captured *before = capture != 0 ? find_capture(w, capture) : NULL;
    symwin_status status;

    if (capture == 0)
        return w->has_last ? wait_for(stream, w->last_call, call) : SYMWIN_OK;
    if (before == NULL || before->stream == stream)
        return SYMWIN_OK;
    status = sw_check_stream(sw_drv.cuEventRecord(w->edge, before->stream), call, "cuEventRecord");
    return status == SYMWIN_OK ? wait_for(stream, w->edge, call) : status;
}

static symwin_status be_last(struct sw_wide *w, const char *call, CUstream stream,
                             cuuint64_t capture)
{
    struct sw_wide_captured *entry = capture != 0 ? find_capture(w, capture) : NULL;
    symwin_status status = SYMWIN_OK;

    if (capture == 0) {
        status = sw_check_stream(sw_drv.cuEventRecord(w->last_call, stream), call, "cuEventRecord");
        w->has_last = status == SYMWIN_OK;
        return status;
    }
    if (entry == NULL) {
        entry = &w->captured[w->oldest];
        w->oldest = (w->oldest + 1) % SW_CAPTURES;
    }
    *entry = (struct sw_wide_captured){capture, stream};
    return status;
}

/* NCCL launches in a thread of its own, where a thread's own default stream is another one. */
static symwin_status step_aside(struct sw_wide_call *c, cuuint64_t capture)
{
    const CUstream beside = c->wide->beside[c->is_captured];
    symwin_status status = SYMWIN_OK;
    int is = 1;

    if (c->stream != CU_STREAM_PER_THREAD)
        return SYMWIN_OK;
    if (c->is_captured)
        status = is_free(c->r->name, beside, capture, &is);
    if (status == SYMWIN_OK && !is)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: over several domains, one capture at a time has calls in a thread's "
                         "own default stream; pass a stream of the device",
                         c->r->name);
    if (status == SYMWIN_OK)
        status = sw_follow_stream(c->wide->edge, c->stream, beside);
    c->stream = beside;
    return status;
}

/* Before a call's steps, and after them. */
static symwin_status begin_steps(struct sw_wide_call *c, cuuint64_t capture)
{
    symwin_status status = find_lanes(c, capture);

    if (status == SYMWIN_OK)
        status = come_after(c->wide, c->r->name, c->stream, capture);
    return status == SYMWIN_OK ? step_aside(c, capture) : status;
}

static symwin_status end_steps(const struct sw_wide_call *c, CUstream callers, cuuint64_t capture)
{
    const symwin_status status = be_last(c->wide, c->r->name, c->stream, capture);

    return status == SYMWIN_OK && c->stream != callers
               ? sw_follow_stream(c->wide->edge, c->stream, callers)
               : status;
}

/* ---- a call that fails ----------------------------------------------------------------------- */

static int is_in_part_of_device(CUstream stream)
{
    CUgreenCtx part = NULL;

    return sw_drv.cuStreamGetGreenCtx != NULL && stream != NULL && stream != CU_STREAM_LEGACY &&
           stream != CU_STREAM_PER_THREAD &&
           sw_drv.cuStreamGetGreenCtx(stream, &part) == CUDA_SUCCESS && part != NULL;
}

/* Whether it fails on all ranks before anything is launched, by what they pass. The limits of a
 * call have room on all whole devices or on none, but the call's stream may have a part of one.
 * `launches`: that was checked which can be checked before. */
static int is_alike(const struct sw_wide_call *c, symwin_status status, int launches)
{
    if (status != SYMWIN_UNSUPPORTED || !launches)
        return status == SYMWIN_INVALID || status == SYMWIN_UNSUPPORTED;
    return (c->options.blocks > 0 || c->options.threads > 0) && !is_in_part_of_device(c->stream);
}

/* A rank may fail alone, when others are in the call, or some steps of it are launched: they would
 * wait for this rank, and its next call would meet this one's. Nothing of a capture has run. */
static void abandon(const struct sw_wide_call *c, symwin_status status, int launches)
{
    symwin_comm *comm = c->wide->comm;
    struct sw_exchange *x = comm->group->exchange;
    struct sw_stream_seen seen;
    char text[SW_TEXT_BYTES] = "";

    if (status == SYMWIN_OK || is_alike(c, status, launches))
        return;
    strncpy(text, symwin_last_error(), sizeof text - 1);
    sw_capture_see(c->r->stream, &seen); /* the caller's: c->stream may not have got there */
    if (seen.capturing == CU_STREAM_CAPTURE_STATUS_NONE) {
        sw_wide_look(comm); /* what has ended the domain's communicator names a rank */
        if (!sw_exchange_ended(x)) {
            sw_exchange_say_why(x, comm->rank, text);
            sw_exchange_fail(x, status, status == SYMWIN_MISMATCH ? SW_NOBODY : comm->rank);
        }
    }
    sw_error_restore(text);
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
    sw_batch_verdicts(&b);
    return sw_batch_end(&b);
}

/* ---- sends and receives ---------------------------------------------------------------------- */

/* Those to and from ranks of the domain: by its communicator. `launches`: 0: they are checked. */
static symwin_status pairs_inside(const struct sw_pair_call *const *calls, size_t n,
                                  const char *call, CUstream stream, int launches)
{
    const struct sw_wide *w = calls[0]->comm->wide;
    struct sw_pair_call *inside = calloc(n, sizeof *inside);
    const struct sw_pair_call **list = calloc(n, sizeof *list);
    struct sw_pairs pairs = {.count = 0};
    symwin_status status = SYMWIN_OK;
    size_t i, found = 0;

    if (inside == NULL || list == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", call, n);
    for (i = 0; i < n && status == SYMWIN_OK; i++) {
        if (w->domains.domain_of[calls[i]->peer] != w->domain)
            continue;
        inside[found] = *calls[i];
        inside[found].comm = w->comm->inner;
        inside[found].stream = stream;
        inside[found].peer = w->domains.index_of[calls[i]->peer];
        status = sw_pair_check(&inside[found], SW_CHECKED_NOT);
        list[found] = &inside[found];
        found++;
    }
    if (status == SYMWIN_OK && found > 0)
        status = sw_pairs_open(list, found, call, &pairs);
    while (status == SYMWIN_OK && launches && sw_pairs_left(&pairs))
        status = sw_pairs_launch(&pairs);
    sw_pairs_close(&pairs);
    free(inside);
    free(list);
    return status;
}

static symwin_status pairs_between(const struct sw_pair_call *const *calls, size_t n,
                                   const struct sw_wide_call *c, CUstream stream)
{
    const struct sw_wide *w = c->wide;
    struct sw_batch b;
    symwin_status status = sw_batch_begin_in(&b, c, stream, 0);
    size_t i;

    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < n; i++) {
        const struct sw_pair_call *p = calls[i];
        void *const buffer = (void *)(uintptr_t)p->buffer;
        const size_t bytes = (size_t)p->count * symwin_type_bytes(p->type);

        if (w->domains.domain_of[p->peer] == w->domain || bytes == 0)
            continue;
        sw_batch_note(
            &b, p->receives
                    ? w->engine->recv(buffer, bytes, SW_ENGINE_BYTES, p->peer, w->all, stream)
                    : w->engine->send(buffer, bytes, SW_ENGINE_BYTES, p->peer, w->all, stream));
    }
    return sw_batch_end(&b);
}

/* Messages inside and between are on their way together: one may wait for the other. If another
 * capture has the lanes, they are one after the other. */
static symwin_status launch_pairs(const struct sw_pair_call *const *calls, size_t n,
                                  const struct sw_wide_call *c)
{
    struct sw_wide *w = c->wide;
    const CUstream side = sw_lane_stream(c, 0);
    symwin_status status = SYMWIN_OK;

    if (side != c->stream)
        status = sw_follow_stream(w->ready[0], c->stream, side);
    if (status == SYMWIN_OK)
        status = pairs_between(calls, n, c, side);
    if (status == SYMWIN_OK)
        status = pairs_inside(calls, n, c->r->name, c->stream, 1);
    if (status == SYMWIN_OK && side != c->stream)
        status = sw_follow_stream(w->moved[0], side, c->stream);
    return status;
}

/* ---- a call ---------------------------------------------------------------------------------- */

static int is_in_window(const struct sw_wide_call *c, const void *buffer)
{
    struct sw_window_index_entry entry;

    return sw_window_index_find(c->inner->index, (uintptr_t)buffer, c->r->count * c->element,
                                &entry) == SW_FOUND_ALL;
}

static symwin_status launch(struct sw_wide_call *c)
{
    if (c->way.algo == SYMWIN_ALGO_NCCL && sw_way_is_there(c->r->collective, SYMWIN_ALGO_RAILS))
        return c->r->collective == SYMWIN_ALLTOALL ? sw_exchange_all(c) : sw_by_nccl(c);
    switch (c->r->collective) {
    case SYMWIN_ALLREDUCE: /* uses windows if both are in some, as in one domain */
        if (!is_in_window(c, c->in) || !is_in_window(c, c->out))
            c->options.algo = SYMWIN_ALGO_ONESHOT;
        return sw_reduce_all(c);
    case SYMWIN_ALLGATHER:
        return sw_gather_all(c);
    case SYMWIN_ALLTOALL:
        return sw_exchange_joined(c);
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

/* A collective begins, has ended, or has not been made. All ranks make those outside captures. */
static void count_call(struct sw_wide *w, cuuint64_t capture, int step)
{
    if (capture != 0)
        return;
    w->calls_made += (uint64_t)step;
    sw_exchange_count(w->comm->group->exchange, w->comm->rank, w->calls_made);
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
    cuuint64_t capture;
    int launches = 0;

    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK)
        status = sw_wide_check(&r);
    if (status == SYMWIN_OK)
        status = sw_way_choose(&r, &c.way);
    if (status == SYMWIN_OK && sw_collectives[r.collective].reduces && r.op == SYMWIN_AVG &&
        c.way.algo != SYMWIN_ALGO_NCCL)
        set_average(&r);
    if (r.op == SYMWIN_PREMUL_SUM) {
        c.options.scalar_on_device = r.options != NULL && r.options->scalar_on_device;
        c.options.scalar = c.options.scalar_on_device ? (const void *)(uintptr_t)r.scalar
                                                      : (const void *)&r.scalar;
    }
    if (r.options != NULL) {
        c.options.blocks = sw_way_has_pieces(r.options->algo) ? 0 : r.options->blocks;
        c.options.threads = r.options->threads;
    }
    if (status == SYMWIN_OK && info != NULL)
        *info = (symwin_collective_info){c.way.algo, (int)c.way.pieces, 0, c.way.measured};
    else if (status == SYMWIN_OK &&
             (r.count > 0 || sw_collectives[r.collective].no_data ||
              sw_collectives[r.collective].by_parts) &&
             (status = see_capture(r.name, c.stream, &capture)) == SYMWIN_OK) {
        launches = 1;
        count_call(c.wide, capture, 1);
        status = begin_steps(&c, capture);
        if (status == SYMWIN_OK)
            status = launch(&c);
        if (status == SYMWIN_OK)
            status = end_steps(&c, r.stream, capture);
        count_call(c.wide, capture, status == SYMWIN_OK ? 1 : -1);
    }
    if (info == NULL)
        abandon(&c, status, launches);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return sw_comm_reason(comm, r.name, status);
}

/* A call of a group, which is launched later. */
static symwin_status check_later(const struct sw_request *r)
{
    symwin_status status = sw_comm_enter(r->comm, r->name);
    struct sw_wide_call c = {.r = r, .wide = r->comm->wide, .stream = r->stream};

    if (status != SYMWIN_OK)
        return status;
    status = sw_wide_check(r);
    if (status == SYMWIN_OK)
        status = sw_way_choose(r, &c.way);
    abandon(&c, status, 0);
    sw_comm_leave(r->comm);
    return status;
}

/* `launches`: 0: they are checked. */
static symwin_status pairs(const struct sw_pair_call *const *calls, size_t n, const char *call,
                           int launches)
{
    const struct sw_request r = {.name = call, .stream = calls[0]->stream};
    symwin_comm *comm = calls[0]->comm;
    struct sw_wide_call c = {.r = &r, .wide = comm->wide, .stream = calls[0]->stream};
    symwin_status status = sw_comm_enter(comm, call);
    struct sw_scope scope;
    cuuint64_t capture;

    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK)
        status = sw_wide_check_pairs(calls, n, call);
    if (status == SYMWIN_OK && !launches)
        status = pairs_inside(calls, n, call, c.stream, 0);
    if (status == SYMWIN_OK && launches &&
        (status = see_capture(call, c.stream, &capture)) == SYMWIN_OK) {
        status = begin_steps(&c, capture);
        if (status == SYMWIN_OK)
            status = launch_pairs(calls, n, &c);
        if (status == SYMWIN_OK)
            status = end_steps(&c, calls[0]->stream, capture);
    }
    abandon(&c, status, 1);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return sw_comm_reason(comm, call, status);
}

static symwin_status follow_calls(symwin_comm *comm, const char *call, CUstream stream)
{
    cuuint64_t capture;
    const symwin_status status = see_capture(call, stream, &capture);

    return status == SYMWIN_OK ? come_after(comm->wide, call, stream, capture) : status;
}

const struct sw_wide_calls sw_wide_calls = {run, check_later, pairs, follow_calls, sw_wide_look};
