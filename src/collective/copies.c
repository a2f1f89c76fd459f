/* All-reduce by copies: queues the kernels and copies of kernels/copies.cu, which says what they do and why it is
 * right.
 *
 * The caller's stream has the copies, a stream of the communicator the sums, events fork and join them. With ranks 1 to
 * k after this one:
 *
 *   caller's   BEGIN  scatter to 1 .. k - 1   to k: first  F  to k: second  J F  gather to 1: first  J  2 .. k  1: rest  END
 *   side                                                   F SUM first      J F SUM second           J
 *
 * The copy beside a sum is queued ahead of it: a graph goes on in one queue of the device with what was captured first
 * behind a node, and if that is the sum, the copies change queues in every call. Two H200s then took 387 us for 128 MiB
 * by graphs of 20 calls and 400 by 80, where it is 373 by any number.
 *
 * A copy costs several microseconds beside what its bytes take, so only one in each half is made in two pieces: enough
 * to hide a sum behind.
 *
 * One stream of copies pushes to one peer after another, from the right neighbour on, so that no two ranks push to
 * the same one: a GPU's links are then busy both ways. Streams of their own would share them and gain nothing.
 *
 * Two events serve all calls, since a wait means the record that was the last when it was called ("use the most
 * recently captured state at the time of the API call", says CUDA's documentation of cuEventRecord): each record here
 * is waited for before the next one of its event. So an event that a capture recorded is recorded anew before it is
 * waited for outside.
 *
 * Captures have a side stream of their own: it belongs to the capture until that ends, and a call outside must not.
 *
 * In place the kernel of the two-shot put comes instead of BEGIN and reduces what copies do not bring
 * (copies_layout.h): the places where that was are free then for what they bring.
 */
#include "src/collective/copies.h"
#include "kernels/copies_layout.h"

enum { FLAG_THREADS = 64 }; /* of the kernels that only wait for peers */

struct copies {
    symwin_comm *comm;
    const struct sw_call *call;
    const struct sw_kernel_args *args;
    const char *name; /* the public one's name, for errors */
    int captured;
    struct sw_copies_layout layout;
    CUstream side;
};

/* ---- streams and events ---- */

symwin_status sw_copies_create(symwin_comm *comm)
{
    struct sw_copies *copies = &comm->copies;
    CUevent *const events[] = {&copies->fork, &copies->join};
    CUstream *const streams[] = {&copies->side, &copies->captured_side};
    symwin_status status = SYMWIN_OK;
    int i;

    for (i = 0; i < 2 && status == SYMWIN_OK; i++)
        if (*events[i] == NULL)
            status = sw_check(sw_drv.cuEventCreate(events[i], CU_EVENT_DISABLE_TIMING),
                              "cuEventCreate");
    for (i = 0; i < 2 && status == SYMWIN_OK; i++)
        if (*streams[i] == NULL)
            status = sw_check(sw_drv.cuStreamCreate(streams[i], CU_STREAM_NON_BLOCKING),
                              "cuStreamCreate");
    return status;
}

void sw_copies_release(symwin_comm *comm)
{
    struct sw_copies *copies = &comm->copies;

    /* A call that was queued in part may have a sum that no stream of the caller's waits for. */
    if (copies->loose)
        sw_drop(sw_drv.cuStreamSynchronize(copies->side), "cuStreamSynchronize");
    if (copies->side != NULL)
        sw_drop(sw_drv.cuStreamDestroy(copies->side), "cuStreamDestroy");
    if (copies->captured_side != NULL)
        sw_drop(sw_drv.cuStreamDestroy(copies->captured_side), "cuStreamDestroy");
    if (copies->fork != NULL)
        sw_drop(sw_drv.cuEventDestroy(copies->fork), "cuEventDestroy");
    if (copies->join != NULL)
        sw_drop(sw_drv.cuEventDestroy(copies->join), "cuEventDestroy");
    *copies = (struct sw_copies){0};
}

/* Those of a communicator that has none yet, because its ranks share a device. */
static symwin_status create_late(symwin_comm *comm, const char *call)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    symwin_status status;

    if (comm->copies.captured_side != NULL)
        return SYMWIN_OK;
    status = sw_check(sw_drv.cuThreadExchangeStreamCaptureMode(&mode),
                      "%s: cuThreadExchangeStreamCaptureMode", call);
    if (status != SYMWIN_OK)
        return status;
    status = sw_copies_create(comm);
    if (status != SYMWIN_OK)
        status = sw_fail_in(status, call, "");
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    return status;
}

/* Whether the side stream of captures is free for the capture that the caller's stream is in. */
static symwin_status check_capture(const symwin_comm *comm, const char *call)
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    symwin_status status;

    status = sw_check(sw_drv.cuStreamGetCaptureInfo_v2(comm->copies.captured_side, &capturing, &id,
                                                       NULL, NULL, NULL),
                      "%s: cuStreamGetCaptureInfo", call);
    if (status == SYMWIN_OK && capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
        id != comm->capture_id)
        return sw_fail(SYMWIN_BUSY,
                       "%s: a call by copies of rank %d's communicator is in another capture; end "
                       "that one first",
                       call, comm->rank);
    return status;
}

/* ---- one call ---- */

/* A kernel of the call: what it is, its grid and stream; `first`: nothing of the call comes before it. */
struct kernel {
    CUfunction function;
    uint32_t stage;
    unsigned blocks, threads;
    CUstream stream;
    int first, last;
};

static symwin_status launch(const struct copies *p, const struct kernel *kernel)
{
    struct sw_kernel_args args = *p->args;
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {
        .gridDimX = kernel->blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = kernel->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = kernel->stream,
        .attrs = &early,
        .numAttrs = kernel->first && p->call->early, /* the others come after copies */
    };
    void *params[] = {&args};

    args.stage = kernel->stage;
    args.done = kernel->last ? args.done : 0;
    return sw_check(sw_drv.cuLaunchKernelEx(&config, kernel->function, params, NULL),
                    "%s: cuLaunchKernelEx of stage %u, %u blocks", p->name, kernel->stage,
                    kernel->blocks);
}

/* BEGIN or END. */
static symwin_status launch_flags(const struct copies *p, enum sw_copies_stage stage)
{
    const unsigned most = p->call->plan->grid.threads;

    return launch(p, &(struct kernel){.function = p->call->plan->kernel->function,
                                      .stage = stage,
                                      .blocks = 1,
                                      .threads = most < FLAG_THREADS ? most : FLAG_THREADS,
                                      .stream = p->call->stream,
                                      .first = stage == SW_COPIES_BEGIN,
                                      .last = stage == SW_COPIES_END});
}

static symwin_status launch_sum(const struct copies *p, enum sw_copies_stage stage)
{
    return launch(p, &(struct kernel){.function = p->call->plan->kernel->function,
                                      .stage = stage,
                                      .blocks = p->call->plan->grid.blocks,
                                      .threads = p->call->plan->grid.threads,
                                      .stream = p->side});
}

/* What comes next in `to` comes after what is in `from` so far. */
static symwin_status record(const struct copies *p, CUevent event, CUstream from)
{
    return sw_check(sw_drv.cuEventRecord(event, from), "%s: cuEventRecord", p->name);
}

static symwin_status await(const struct copies *p, CUevent event, CUstream to)
{
    return sw_check(sw_drv.cuStreamWaitEvent(to, event, 0), "%s: cuStreamWaitEvent", p->name);
}

static int peer_after(const struct copies *p, int step)
{
    return (p->args->rank + step) % p->args->nranks;
}

/* `bytes` at `from` to what is `at` bytes into the output of `peer`. */
static symwin_status push_to(const struct copies *p, int peer, CUdeviceptr from, uint64_t at,
                             size_t bytes)
{
    const struct sw_kernel_args *args = p->args;

    if (peer == args->rank) /* a communicator of one rank */
        return SYMWIN_OK;
    return sw_check(sw_drv.cuMemcpyAsync(
                        sw_group_address(p->comm->group, peer, (size_t)(args->out_offset + at)),
                        from, bytes, p->call->stream),
                    "%s: cuMemcpyAsync of %zu bytes to rank %d", p->name, bytes, peer);
}

/* ---- the stages ---- */

/* Bytes begin .. end - 1 of this rank's input for each peer's share, to where that peer's output keeps them until they
 * are added; to the peers `from` to `to` steps after this rank. */
static symwin_status scatter(const struct copies *p, int from, int to, uint64_t begin, uint64_t end)
{
    const struct sw_kernel_args *args = p->args;
    const struct sw_copies_layout *l = &p->layout;
    const uint64_t place = l->head + (uint32_t)args->rank * l->share + l->landing + begin;
    symwin_status status = SYMWIN_OK;
    int step;

    for (step = from; step <= to && begin < end && status == SYMWIN_OK; step++) {
        const int peer = peer_after(p, step);
        const uint64_t theirs = l->head + (uint32_t)peer * l->share + begin;

        status = push_to(p, peer, (CUdeviceptr)(args->in + theirs), place, (size_t)(end - begin));
    }
    return status;
}

/* The same of this rank's share, reduced, to its place. */
static symwin_status gather(const struct copies *p, int from, int to, uint64_t begin, uint64_t end)
{
    const struct sw_kernel_args *args = p->args;
    const uint64_t share = p->layout.head + (uint32_t)args->rank * p->layout.share;
    symwin_status status = SYMWIN_OK;
    int step;

    for (step = from; step <= to && begin < end && status == SYMWIN_OK; step++)
        status = push_to(p, peer_after(p, step), (CUdeviceptr)(args->out + share + begin),
                         share + begin, (size_t)(end - begin));
    return status;
}

/* The sum of a chunk, beside what is in the caller's stream since the fork was recorded. */
static symwin_status sum_beside(const struct copies *p, int chunk)
{
    const struct sw_copies *copies = &p->comm->copies;
    symwin_status status = await(p, copies->fork, p->side);

    if (status == SYMWIN_OK)
        status = launch_sum(p, chunk == 0 ? SW_COPIES_SUM_FIRST : SW_COPIES_SUM_SECOND);
    if (status == SYMWIN_OK)
        status = record(p, copies->join, p->side);
    return status;
}

/* BEGIN, or in place the put. */
static symwin_status queue_begin(const struct copies *p)
{
    const struct sw_plan *plan = p->call->plan;

    if (plan->put == NULL)
        return launch_flags(p, SW_COPIES_BEGIN);
    return launch(p, &(struct kernel){.function = plan->put->function,
                                      .stage = SW_PUT_HERE,
                                      .blocks = plan->put_grid.blocks,
                                      .threads = plan->put_grid.threads,
                                      .stream = p->call->stream,
                                      .first = 1});
}

static symwin_status queue_scatter(const struct copies *p, int last)
{
    const struct sw_copies_layout *l = &p->layout;
    symwin_status status = scatter(p, 1, last - 1, 0, l->copied);

    if (status == SYMWIN_OK)
        status = scatter(p, last, last, 0, l->first);
    if (status == SYMWIN_OK)
        status = record(p, p->comm->copies.fork, p->call->stream);
    if (status == SYMWIN_OK)
        status = scatter(p, last, last, l->first, l->copied);
    if (status == SYMWIN_OK)
        status = sum_beside(p, 0);
    if (status == SYMWIN_OK)
        status = await(p, p->comm->copies.join, p->call->stream);
    return status;
}

/* `mine`: bytes of this rank's share, of which the last ones in place may have fewer. */
static symwin_status queue_gather(const struct copies *p, int last, uint64_t mine)
{
    const uint64_t first = p->layout.first < p->layout.copied ? p->layout.first : 0;
    symwin_status status = SYMWIN_OK;

    if (first > 0) {
        status = record(p, p->comm->copies.fork, p->call->stream);
        if (status == SYMWIN_OK)
            status = gather(p, 1, 1, 0, first);
        if (status == SYMWIN_OK)
            status = sum_beside(p, 1);
        if (status == SYMWIN_OK)
            status = await(p, p->comm->copies.join, p->call->stream);
    }
    if (status == SYMWIN_OK)
        status = gather(p, 2, last, 0, mine);
    if (status == SYMWIN_OK)
        status = gather(p, 1, 1, first, mine);
    return status;
}

/* All behind the first. */
static symwin_status queue_stages(const struct copies *p)
{
    const struct sw_kernel_args *args = p->args;
    const struct sw_copies_layout *l = &p->layout;
    const uint64_t ahead = l->head + (uint32_t)args->rank * l->share;
    const uint64_t bytes = p->call->query->bytes;
    const uint64_t left = ahead < bytes ? bytes - ahead : 0;
    const int last = args->nranks - 1;
    symwin_status status = SYMWIN_OK;

    if (p->call->plan->put == NULL || l->copied > 0)
        status = queue_scatter(p, last);
    if (status == SYMWIN_OK)
        status = queue_gather(p, last, left < l->share ? left : l->share);
    return status == SYMWIN_OK ? launch_flags(p, SW_COPIES_END) : status;
}

/* The driver refused a part of the call, and the peers would wait for it. What a capture holds has not run and will
 * not, since the side stream has not joined or the caller knows. */
static void abandon(const struct copies *p)
{
    struct sw_copies *copies = &p->comm->copies;

    if (p->captured)
        return;
    (void)symwin_comm_abort(p->comm);
    copies->loose = 1;
    if (sw_drv.cuEventRecord(copies->join, p->side) == CUDA_SUCCESS)
        sw_drop(sw_drv.cuStreamWaitEvent(p->call->stream, copies->join, 0), "cuStreamWaitEvent");
}

symwin_status sw_copies_queue(const struct sw_call *call)
{
    const struct sw_query *q = call->query;
    struct copies p = {.comm = q->comm,
                       .call = call,
                       .args = call->args,
                       .name = sw_collectives[q->collective].call,
                       .captured = call->args->done == 0};
    symwin_status status = create_late(p.comm, p.name);

    if (status == SYMWIN_OK && p.captured)
        status = check_capture(p.comm, p.name);
    if (status != SYMWIN_OK)
        return status;
    p.side = p.captured ? p.comm->copies.captured_side : p.comm->copies.side;
    p.layout = sw_copies_layout_of(call->args, (uint32_t)symwin_type_bytes(q->type),
                                   sw_type_is_float(q->type));
    status = queue_begin(&p);
    if (status != SYMWIN_OK)
        return status;
    status = queue_stages(&p);
    if (status != SYMWIN_OK)
        abandon(&p);
    return status;
}
