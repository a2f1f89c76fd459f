/* Calls of one communicator keep their order, whoever serves them, on whatever streams. symwin
 * orders its own, and NCCL its own. Where the server changes, the stream waits for the call before:
 * symwin's are followed by symwin_comm_follow(), NCCL's by an event behind each, which is recorded
 * while the communicator has one of symwin's. Calls in a capture wait for those in it (of the last
 * eight that NCCL had calls in), and others for others. */
#include "nccl/calls.h"

/* 0: it is in no capture. */
static cuuint64_t capture_of(cudaStream_t stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;

    if (sw_cu()->cuStreamGetCaptureInfo_v2((CUstream)stream, &status, &id, NULL, NULL, NULL) !=
            CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return 0;
    return id;
}

int sw_order_is_captured(cudaStream_t stream)
{
    return capture_of(stream) != 0;
}

/* Of calls in that capture; 0: outside of captures. NULL: NCCL had none in it. */
static struct sw_last *last_of(struct sw_comm *comm, cuuint64_t capture)
{
    int i = capture != 0;

    while (i <= SW_CAPTURES && comm->nccls[i].capture != capture)
        i++;
    return i <= SW_CAPTURES ? &comm->nccls[i] : NULL;
}

/* Calls in another capture, or outside of one, are ordered by the program. */
void sw_order_await_nccls(struct sw_comm *comm, cudaStream_t stream)
{
    const cuuint64_t capture = capture_of(stream);
    struct sw_last *last = last_of(comm, capture);
    struct sw_comm_scope scope;
    int i;

    if (last == NULL || !last->is_ahead || !sw_comm_scope_enter(comm, &scope))
        return;
    if (sw_cu()->cuStreamWaitEvent((CUstream)stream, last->event, 0) == CUDA_SUCCESS)
        last->is_ahead = 0; /* for other streams too: symwin orders its own calls */
    sw_comm_scope_leave(&scope);
    for (comm->some_ahead = i = 0; i <= SW_CAPTURES; i++)
        comm->some_ahead |= comm->nccls[i].is_ahead;
}

void sw_order_before_nccls(struct sw_call *call)
{
    struct sw_comm *comm = call->comm;
    symwin_comm *symwin = atomic_load_explicit(&comm->symwin, memory_order_relaxed);

    if (symwin == NULL)
        return;
    call->capture = capture_of(call->stream);
    if (call->capture != 0 || comm->ours_ahead)
        (void)symwin_comm_follow(symwin, call->stream);
    comm->ours_ahead = call->capture != 0 && comm->ours_ahead;
}

/* In every call of NCCL's, so in as few calls of the driver as there can be. A stream's handle has
 * its context; only the names of those that threads and contexts have (0 to 2) need a current one.
 */
static void record(struct sw_comm *comm, cudaStream_t stream, cuuint64_t capture)
{
    struct sw_last *last = last_of(comm, capture);
    struct sw_comm_scope scope;

    if (last == NULL)
        last = &comm->nccls[1 + comm->captures++ % SW_CAPTURES];
    comm->some_ahead = 1;
    last->is_ahead = last->event != NULL && (uintptr_t)stream > 2 &&
                     sw_cu()->cuEventRecord(last->event, (CUstream)stream) == CUDA_SUCCESS;
    last->capture = capture;
    if (last->is_ahead || !sw_comm_scope_enter(comm, &scope))
        return;
    if (last->event == NULL &&
        sw_cu()->cuEventCreate(&last->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        last->event = NULL;
    if (last->event != NULL)
        last->is_ahead = sw_cu()->cuEventRecord(last->event, (CUstream)stream) == CUDA_SUCCESS;
    sw_comm_scope_leave(&scope);
}

void sw_order_after_nccls(const struct sw_call *call, ncclResult_t result)
{
    struct sw_comm *comm = call->comm;

    comm->passed = 1;
    if (atomic_load_explicit(&comm->symwin, memory_order_relaxed) == NULL)
        return;
    if (result == ncclInProgress)
        (void)sw_meet_launched(comm);
    record(comm, call->stream, call->capture);
}

void sw_order_forget(struct sw_comm *comm)
{
    int i;

    for (i = 0; i <= SW_CAPTURES; i++)
        comm->nccls[i].is_ahead = 0;
    comm->some_ahead = comm->ours_ahead = 0;
}

void sw_order_end(struct sw_comm *comm)
{
    int i;

    sw_order_forget(comm);
    for (i = 0; i <= SW_CAPTURES; i++) {
        if (comm->nccls[i].event != NULL)
            (void)sw_cu()->cuEventDestroy(comm->nccls[i].event);
        comm->nccls[i].event = NULL;
    }
    for (i = 0; i < 2; i++) {
        if (comm->lent[i] != NULL)
            (void)sw_cu()->cuStreamDestroy((CUstream)comm->lent[i]);
        comm->lent[i] = NULL;
    }
}

CUresult sw_order_join(struct sw_comm *comm, cudaStream_t from, cudaStream_t to)
{
    const struct sw_cu *cu = sw_cu();
    struct sw_comm_scope scope;
    CUresult result;
    CUevent event;

    if (!sw_comm_scope_enter(comm, &scope))
        return CUDA_ERROR_INVALID_CONTEXT;
    result = cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) {
        result = cu->cuEventRecord(event, (CUstream)from);
        if (result == CUDA_SUCCESS)
            result = cu->cuStreamWaitEvent((CUstream)to, event, 0);
        (void)cu->cuEventDestroy(event);
    }
    sw_comm_scope_leave(&scope);
    return result;
}

/* A stream that has come into a capture stays there until that ends. */
CUresult sw_order_lend(struct sw_comm *comm, cudaStream_t *stream)
{
    const cudaStream_t own = (cudaStream_t)CU_STREAM_PER_THREAD;
    struct sw_comm_scope scope;
    CUresult result = CUDA_SUCCESS;
    cudaStream_t *lent;
    cuuint64_t capture, other;

    if (!sw_comm_scope_enter(comm, &scope))
        return CUDA_ERROR_INVALID_CONTEXT;
    capture = capture_of(own);
    lent = &comm->lent[capture != 0];
    if (*lent == NULL) {
        CUstream made;

        result = sw_cu()->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS)
            *lent = (cudaStream_t)made;
    }
    other = result == CUDA_SUCCESS ? capture_of(*lent) : 0;
    sw_comm_scope_leave(&scope);
    if (other != 0 && other != capture)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    *stream = *lent;
    return result == CUDA_SUCCESS ? sw_order_join(comm, own, *lent) : result;
}

ncclResult_t sw_order_failed(CUresult result)
{
    if (result == CUDA_ERROR_STREAM_CAPTURE_MERGE)
        return sw_error(ncclInvalidUsage,
                        "symwin: streams of the group are in two captures; make its calls in one, "
                        "and those on a thread's own default stream when no other capture has any "
                        "of the communicator");
    return sw_error(ncclUnhandledCudaError,
                    "symwin: the streams of a group cannot wait for each other (CUDA error %d); if "
                    "a capture has failed, end it, and capture again",
                    (int)result);
}
