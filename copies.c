/* All-reduce by copies: queues the kernels and copies of kernels/copies.cu, which says what they do and why it is
 * right.
 *
 * The caller's stream has the copies, a stream of the communicator the sums, events fork and join them:
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
 */
#include "copies.h"
#include "kernels/copies_layout.h"

enum {
    MOST_BLOCKS =
        32, /* more take bandwidth of the memory from the copies beside (measured on H200s) */
    FLAG_THREADS = 64 /* of the kernels that only wait for peers */
};

struct plan {
    symwin_comm *comm;
    const struct sw_copies_call *call;
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
    if (comm->streams_per_rank < 3)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: copies needs three streams a rank, and the ranks that share device %d "
                       "have %d of them; set CUDA_DEVICE_MAX_CONNECTIONS to three times the "
                       "number of ranks (32 at most) before CUDA starts, or use fewer ranks a "
                       "device",
                       call, comm->device, comm->streams_per_rank);
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

static symwin_status launch(const struct plan *p, enum sw_copies_stage stage)
{
    const struct sw_copies_call *call = p->call;
    const int sums = stage == SW_COPIES_SUM_FIRST || stage == SW_COPIES_SUM_SECOND;
    struct sw_kernel_args args = *call->args;
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {
        .gridDimX = sums ? call->blocks : 1,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = sums || call->threads < FLAG_THREADS ? call->threads : FLAG_THREADS,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = sums ? p->side : call->stream,
        .attrs = &early,
        .numAttrs = stage == SW_COPIES_BEGIN && call->early, /* the others come after copies */
    };
    void *params[] = {&args};

    args.stage = stage;
    args.done = stage == SW_COPIES_END ? args.done : 0;
    return sw_check(sw_drv.cuLaunchKernelEx(&config, call->function, params, NULL),
                    "%s: cuLaunchKernelEx of stage %d, %u blocks", call->name, (int)stage,
                    config.gridDimX);
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
    int i;

    for (i = 1; i < args->nranks && bytes > 0 && status == SYMWIN_OK; i++) {
        const int peer = (args->rank + i) % args->nranks;
        const uint64_t from = gather ? args->out + mine
                                     : args->in + l->head + (uint64_t)peer * l->share + begin;

        status = sw_check(sw_drv.cuMemcpyAsync(sw_group_address(p->comm->group, peer,
                                                                (size_t)(args->out_offset + mine)),
                                               (CUdeviceptr)from, bytes, p->call->stream),
                          "%s: cuMemcpyAsync of %zu bytes to rank %d", p->call->name, bytes, peer);
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
        status = launch(p, chunk == 0 ? SW_COPIES_SUM_FIRST : SW_COPIES_SUM_SECOND);
    if (status == SYMWIN_OK)
        status = record(p, copies->join, p->side);
    return status;
}

/* All behind BEGIN. */
static symwin_status queue(const struct plan *p)
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
    return status == SYMWIN_OK ? launch(p, SW_COPIES_END) : status;
}

/* The driver refused a part of the call, and the peers would wait for it. What a capture holds has not run and will
 * not, since the side stream has not joined or the caller knows. */
static void abandon(const struct plan *p, int captured)
{
    struct sw_copies *copies = &p->comm->copies;

    if (captured)
        return;
    copies->loose = 1;
    (void)symwin_comm_abort(p->comm);
    if (sw_drv.cuEventRecord(copies->join, p->side) == CUDA_SUCCESS)
        sw_drop(sw_drv.cuStreamWaitEvent(p->call->stream, copies->join, 0), "cuStreamWaitEvent");
}

symwin_status sw_copies_queue(symwin_comm *comm, const struct sw_copies_call *call)
{
    const struct sw_kernel_args *args = call->args;
    const int captured = args->done == 0;
    struct sw_copies_call limited = *call;
    struct plan p = {.comm = comm, .call = &limited};
    symwin_status status;

    if (!call->blocks_asked && limited.blocks > MOST_BLOCKS)
        limited.blocks = MOST_BLOCKS;
    status = create_late(comm, call->name);
    if (status == SYMWIN_OK && captured)
        status = check_capture(comm, call->name);
    if (status != SYMWIN_OK)
        return status;
    p.side = captured ? comm->copies.captured_side : comm->copies.side;
    p.layout = sw_copies_layout_of(args->count, call->element, args->nranks, args->out_offset);
    status = launch(&p, SW_COPIES_BEGIN);
    if (status != SYMWIN_OK)
        return status;
    status = queue(&p);
    if (status != SYMWIN_OK)
        abandon(&p, captured);
    return status;
}
