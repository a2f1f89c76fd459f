/* All-reduce by copies: queues the kernels and copies of kernels/copies.cu, which says what they do and why it is
 * right.
 *
 * Out of place, the caller's stream has the copies, a stream of the communicator the sums, events fork and join them:
 *
 *   caller's   BEGIN  scatter 0  F  scatter 1  J F  gather 0  J  gather 1  END
 *   side                         F SUM 0 J       F SUM 1      J
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
 * In place, where pieces cannot wait in the output, the kernel of the two-shot put brings them through the slots, and
 * only its results are copied, all in the caller's stream:
 *
 *   caller's   put, results here  gather  END
 */
#include "copies.h"
#include "kernels/copies_layout.h"
#include "kernels/put_layout.h"

enum { FLAG_THREADS = 64 }; /* of the kernels that only wait for peers */

struct plan {
    symwin_comm *comm;
    const struct sw_copies_call *call;
    int captured;
    struct sw_copies_layout layout; /* out of place */
    CUstream side;                  /* NULL: none is needed */
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

static symwin_status launch(const struct plan *p, const struct kernel *kernel)
{
    const struct sw_copies_call *call = p->call;
    struct sw_kernel_args args = *call->args;
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
        .numAttrs = kernel->first && call->early, /* the others come after copies */
    };
    void *params[] = {&args};

    args.stage = kernel->stage;
    args.done = kernel->last ? args.done : 0;
    return sw_check(sw_drv.cuLaunchKernelEx(&config, kernel->function, params, NULL),
                    "%s: cuLaunchKernelEx of stage %u, %u blocks", call->name, kernel->stage,
                    kernel->blocks);
}

/* BEGIN or END. */
static symwin_status launch_flags(const struct plan *p, enum sw_copies_stage stage)
{
    const unsigned most = p->call->threads;

    return launch(p, &(struct kernel){.function = p->call->function,
                                      .stage = stage,
                                      .blocks = 1,
                                      .threads = most < FLAG_THREADS ? most : FLAG_THREADS,
                                      .stream = p->call->stream,
                                      .first = stage == SW_COPIES_BEGIN,
                                      .last = stage == SW_COPIES_END});
}

static symwin_status launch_sum(const struct plan *p, enum sw_copies_stage stage)
{
    return launch(p, &(struct kernel){.function = p->call->function,
                                      .stage = stage,
                                      .blocks = p->call->blocks,
                                      .threads = p->call->threads,
                                      .stream = p->side});
}

/* What comes next in `to` comes after what is in `from` so far. */
static symwin_status record(const struct plan *p, CUevent event, CUstream from)
{
    return sw_check(sw_drv.cuEventRecord(event, from), "%s: cuEventRecord", p->call->name);
}

static symwin_status await(const struct plan *p, CUevent event, CUstream to)
{
    return sw_check(sw_drv.cuStreamWaitEvent(to, event, 0), "%s: cuStreamWaitEvent", p->call->name);
}

static int peer_after(const struct plan *p, int step)
{
    return (p->call->args->rank + step) % p->call->args->nranks;
}

/* `bytes` at `from` to what is `at` bytes into the output of `peer`. */
static symwin_status push_to(const struct plan *p, int peer, CUdeviceptr from, uint64_t at,
                             size_t bytes)
{
    const struct sw_kernel_args *args = p->call->args;

    return sw_check(sw_drv.cuMemcpyAsync(
                        sw_group_address(p->comm->group, peer, (size_t)(args->out_offset + at)),
                        from, bytes, p->call->stream),
                    "%s: cuMemcpyAsync of %zu bytes to rank %d", p->call->name, bytes, peer);
}

/* ---- out of place ---- */

/* A chunk of this rank's input for each peer's share (scatter), or of its result for all (gather), to where the
 * peers' outputs have this rank's share. */
static symwin_status push(const struct plan *p, int chunk, int gather)
{
    const struct sw_kernel_args *args = p->call->args;
    const struct sw_copies_layout *l = &p->layout;
    const uint64_t begin = chunk == 0 ? 0 : l->first;
    const size_t bytes = (size_t)(chunk == 0 ? l->first : l->share - l->first);
    const uint64_t mine = l->head + (uint64_t)args->rank * l->share + begin;
    symwin_status status = SYMWIN_OK;
    int step;

    for (step = 1; step < args->nranks && bytes > 0 && status == SYMWIN_OK; step++) {
        const int peer = peer_after(p, step);
        const uint64_t from = gather ? args->out + mine
                                     : args->in + l->head + (uint64_t)peer * l->share + begin;

        status = push_to(p, peer, (CUdeviceptr)from, mine, bytes);
    }
    return status;
}

/* The sum of a chunk, beside what comes next in the caller's stream. */
static symwin_status sum_beside(const struct plan *p, int chunk)
{
    const struct sw_copies *copies = &p->comm->copies;
    symwin_status status = record(p, copies->fork, p->call->stream);

    if (status == SYMWIN_OK)
        status = await(p, copies->fork, p->side);
    if (status == SYMWIN_OK)
        status = launch_sum(p, chunk == 0 ? SW_COPIES_SUM_FIRST : SW_COPIES_SUM_SECOND);
    if (status == SYMWIN_OK)
        status = record(p, copies->join, p->side);
    return status;
}

/* All behind BEGIN. */
static symwin_status queue_chunks(const struct plan *p)
{
    const CUevent join = p->comm->copies.join;
    const int chunks = p->layout.first < p->layout.share ? 2 : 1;
    symwin_status status = SYMWIN_OK;
    int c;

    for (c = 0; c < chunks && status == SYMWIN_OK; c++) {
        status = push(p, c, 0);
        if (status == SYMWIN_OK && c > 0)
            status = await(p, join, p->call->stream);
        if (status == SYMWIN_OK)
            status = sum_beside(p, c);
        if (status == SYMWIN_OK && c > 0)
            status = push(p, c - 1, 1);
    }
    if (status == SYMWIN_OK)
        status = await(p, join, p->call->stream);
    if (status == SYMWIN_OK)
        status = push(p, chunks - 1, 1);
    return status == SYMWIN_OK ? launch_flags(p, SW_COPIES_END) : status;
}

/* The driver refused a part of the call, and the peers would wait for it. What a capture holds has not run and will
 * not, since the side stream has not joined or the caller knows. */
static void abandon(const struct plan *p)
{
    struct sw_copies *copies = &p->comm->copies;

    if (p->captured)
        return;
    (void)symwin_comm_abort(p->comm);
    if (p->side == NULL)
        return;
    copies->loose = 1;
    if (sw_drv.cuEventRecord(copies->join, p->side) == CUDA_SUCCESS)
        sw_drop(sw_drv.cuStreamWaitEvent(p->call->stream, copies->join, 0), "cuStreamWaitEvent");
}

static symwin_status queue_out_of_place(struct plan *p)
{
    const struct sw_kernel_args *args = p->call->args;
    symwin_status status = create_late(p->comm, p->call->name);

    if (status == SYMWIN_OK && p->captured)
        status = check_capture(p->comm, p->call->name);
    if (status != SYMWIN_OK)
        return status;
    p->side = p->captured ? p->comm->copies.captured_side : p->comm->copies.side;
    p->layout = sw_copies_layout_of(args->count, p->call->element, args->nranks, args->out_offset);
    status = launch_flags(p, SW_COPIES_BEGIN);
    if (status != SYMWIN_OK)
        return status;
    status = queue_chunks(p);
    if (status != SYMWIN_OK)
        abandon(p);
    return status;
}

/* ---- in place ---- */

/* This rank's share, which the kernel has left reduced in its output, to all peers. */
static symwin_status push_share(const struct plan *p)
{
    const struct sw_kernel_args *args = p->call->args;
    const uint32_t payload = SW_PUT_PAYLOAD(p->call->is_float);
    const uint64_t bytes = args->count * p->call->element;
    const struct sw_put_layout l = sw_put_layout_of(bytes, payload, args->nranks,
                                                    SW_PUT_ROOM(args->slot_bytes));
    const uint64_t share = l.share * payload, mine = (uint32_t)args->rank * share;
    symwin_status status = SYMWIN_OK;
    uint64_t length;
    int step;

    if (mine >= bytes)
        return SYMWIN_OK;
    length = bytes - mine < share ? bytes - mine : share;
    for (step = 1; step < args->nranks && status == SYMWIN_OK; step++)
        status = push_to(p, peer_after(p, step), (CUdeviceptr)(args->out + mine), mine,
                         (size_t)length);
    return status;
}

static symwin_status queue_in_place(const struct plan *p)
{
    symwin_status status = launch(p, &(struct kernel){.function = p->call->put,
                                                      .stage = SW_PUT_HERE,
                                                      .blocks = p->call->blocks,
                                                      .threads = p->call->threads,
                                                      .stream = p->call->stream,
                                                      .first = 1});

    if (status != SYMWIN_OK)
        return status;
    status = push_share(p);
    if (status == SYMWIN_OK)
        status = launch_flags(p, SW_COPIES_END);
    if (status != SYMWIN_OK)
        abandon(p);
    return status;
}

symwin_status sw_copies_queue(symwin_comm *comm, const struct sw_copies_call *call)
{
    struct plan p = {.comm = comm, .call = call, .captured = call->args->done == 0};

    return call->put != NULL ? queue_in_place(&p) : queue_out_of_place(&p);
}
