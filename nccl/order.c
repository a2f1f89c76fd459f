/* Calls of one communicator keep their order, whoever serves them, on whatever streams. symwin
 * orders its own, and NCCL its own. Where the server changes, the stream waits for the call before:
 * symwin's are followed by symwin_comm_follow(), NCCL's by an event behind each, which is recorded
 * while the communicator has one of symwin's. */
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

/* A call in another capture, or outside of one, is ordered by the program. */
static void wait_for_nccls(struct sw_comm *comm, cudaStream_t stream)
{
    struct sw_comm_scope scope;

    if (!comm->recorded || !sw_comm_scope_enter(comm, &scope))
        return;
    if (capture_of(stream) == comm->capture)
        (void)sw_cu()->cuStreamWaitEvent((CUstream)stream, comm->event, 0);
    sw_comm_scope_leave(&scope);
}

void sw_order_before(struct sw_comm *comm, enum sw_server server, cudaStream_t stream)
{
    symwin_comm *symwin = atomic_load_explicit(&comm->symwin, memory_order_relaxed);

    if (symwin == NULL || server == comm->server || comm->server == SW_NOBODY)
        return;
    if (server == SW_OURS)
        wait_for_nccls(comm, stream);
    else
        (void)symwin_comm_follow(symwin, stream);
}

static void record(struct sw_comm *comm, cudaStream_t stream)
{
    struct sw_comm_scope scope;

    if (!sw_comm_scope_enter(comm, &scope))
        return;
    comm->recorded = 0;
    if (comm->event == NULL &&
        sw_cu()->cuEventCreate(&comm->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        comm->event = NULL;
    if (comm->event != NULL &&
        sw_cu()->cuEventRecord(comm->event, (CUstream)stream) == CUDA_SUCCESS) {
        comm->capture = capture_of(stream);
        comm->recorded = 1;
    }
    sw_comm_scope_leave(&scope);
}

void sw_order_after(struct sw_comm *comm, enum sw_server server, cudaStream_t stream)
{
    if (server == SW_NCCLS && atomic_load_explicit(&comm->symwin, memory_order_relaxed) != NULL)
        record(comm, stream);
    comm->server = server;
    comm->passed = comm->passed || server == SW_NCCLS;
}

void sw_order_join(struct sw_comm *comm, cudaStream_t from, cudaStream_t to)
{
    const struct sw_cu *cu = sw_cu();
    struct sw_comm_scope scope;
    CUevent event;

    if (!sw_comm_scope_enter(comm, &scope))
        return;
    if (cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        if (cu->cuEventRecord(event, (CUstream)from) == CUDA_SUCCESS)
            (void)cu->cuStreamWaitEvent((CUstream)to, event, 0);
        (void)cu->cuEventDestroy(event);
    }
    sw_comm_scope_leave(&scope);
}
