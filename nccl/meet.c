/* The ranks of a communicator exchange records over NCCL, in a stream of its own. The host waits by
 * asking, so that an abort or a deadline ends it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl/calls.h"

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Memory is kept until the communicator's death: to free it may wait for kernels that wait for
 * ranks. */
static ncclResult_t prepare(struct sw_comm *comm, size_t bytes)
{
    struct sw_meeting *m = &comm->meeting;
    const size_t all = ((size_t)comm->ranks + 1) * bytes;
    void *memory = NULL;
    CUresult result = CUDA_SUCCESS;

    if (m->stream == NULL)
        result = sw_cu()->cuStreamCreate(&m->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && m->memory == NULL) {
        result = sw_cu()->cuMemHostAlloc(&memory, all, CU_MEMHOSTALLOC_PORTABLE);
        m->memory = result == CUDA_SUCCESS ? memory : NULL;
        m->bytes = bytes;
    }
    if (result != CUDA_SUCCESS)
        return sw_error(ncclUnhandledCudaError,
                        "symwin: no stream or pinned memory for the ranks of a communicator to "
                        "agree on it (CUDA error %d); free some memory",
                        (int)result);
    return ncclSuccess;
}

ncclResult_t sw_meet_begin(struct sw_comm *comm, const void *mine, size_t bytes)
{
    const struct sw_from from = SW_NCCL_OF(comm, ncclAllGather);
    struct sw_meeting *m = &comm->meeting;
    ncclResult_t result = prepare(comm, bytes);

    if (result != ncclSuccess)
        return result;
    memcpy(m->memory, mine, bytes);
    /* The all-gather takes the call's place: graphs that were launched before may have calls of the
     * communicator, which NCCL does not order. */
    if (comm->passed && !sw_order_is_captured((cudaStream_t)comm->meets_for))
        sw_order_join(comm, (cudaStream_t)comm->meets_for, (cudaStream_t)m->stream);
    return sw_error_is_nccls(SW_PASS(&from, ncclAllGather,
                                     (m->memory, m->memory + bytes, bytes, ncclUint8,
                                      atomic_load(&comm->handle), (cudaStream_t)m->stream)));
}

ncclResult_t sw_meet_was_aborted(void)
{
    return sw_error(ncclInternalError, "symwin: the communicator was aborted");
}

ncclComm_t sw_meet_ask(struct sw_comm *comm)
{
    atomic_fetch_add(&comm->asking, 1);
    return atomic_load(&comm->handle);
}

void sw_meet_has_asked(struct sw_comm *comm)
{
    atomic_fetch_sub(&comm->asking, 1);
}

/* What NCCL says of its communicator. */
static ncclResult_t state_of(struct sw_comm *comm)
{
    const struct sw_from from = SW_NCCL_OF(comm, ncclCommGetAsyncError);
    ncclResult_t state = ncclSuccess, result = ncclSuccess;
    const ncclComm_t handle = sw_meet_ask(comm);

    if (handle != NULL)
        result = SW_PASS(&from, ncclCommGetAsyncError, (handle, &state));
    sw_meet_has_asked(comm);
    if (handle == NULL)
        return sw_meet_was_aborted();
    return sw_error_is_nccls(result != ncclSuccess ? result : state);
}

void sw_meet_all_asked(struct sw_comm *comm)
{
    const struct timespec moment = {.tv_nsec = 5000};

    while (atomic_load(&comm->asking) > 0)
        nanosleep(&moment, NULL);
}

/* ncclInProgress: it is not over yet. */
static ncclResult_t look(struct sw_comm *comm)
{
    ncclResult_t state;
    CUresult result;

    if (atomic_load(&comm->stop))
        return sw_meet_was_aborted();
    state = state_of(comm);
    if (state != ncclSuccess)
        return state; /* with blocking=0 the call itself may be in progress */
    result = sw_cu()->cuStreamQuery(comm->meeting.stream);
    if (result == CUDA_SUCCESS)
        return ncclSuccess;
    return result == CUDA_ERROR_NOT_READY
               ? ncclInProgress
               : sw_error(ncclUnhandledCudaError, "symwin: CUDA error %d in NCCL's all-gather",
                          (int)result);
}

ncclResult_t sw_meet_wait(struct sw_comm *comm)
{
    struct timespec moment = {.tv_nsec = 5000};
    ncclResult_t result;

    while ((result = look(comm)) == ncclInProgress) {
        nanosleep(&moment, NULL);
        moment.tv_nsec = moment.tv_nsec < 500000 ? moment.tv_nsec * 5 / 4 : moment.tv_nsec;
    }
    return result;
}

int sw_meet_launched(struct sw_comm *comm)
{
    const struct timespec moment = {.tv_nsec = 5000};
    ncclResult_t state = ncclInProgress;

    while (!atomic_load(&comm->stop) && (state = state_of(comm)) == ncclInProgress)
        nanosleep(&moment, NULL);
    return state == ncclSuccess;
}

static int may_end(struct sw_comm *comm)
{
    return !atomic_load(&comm->stop) &&
           symwin_comm_check_calls(atomic_load(&comm->symwin)) == SYMWIN_OK;
}

/* What the driver says of symwin's calls so far. */
static CUresult follow(struct sw_comm *comm, int ms)
{
    const struct timespec moment = {.tv_nsec = 20000};
    const uint64_t until = now_ms() + (uint64_t)(ms > 0 ? ms : 0);
    struct sw_comm_scope scope;
    CUresult result = CUDA_ERROR_UNKNOWN;

    if (!sw_comm_scope_enter(comm, &scope))
        return result;
    if (symwin_comm_follow(atomic_load(&comm->symwin),
                           (struct CUstream_st *)comm->meeting.stream) == SYMWIN_OK)
        while ((result = sw_cu()->cuStreamQuery(comm->meeting.stream)) == CUDA_ERROR_NOT_READY &&
               (ms < 0 ? may_end(comm) : now_ms() < until))
            nanosleep(&moment, NULL);
    sw_comm_scope_leave(&scope);
    return result;
}

int sw_meet_idle(struct sw_comm *comm, int ms)
{
    return follow(comm, ms) == CUDA_SUCCESS;
}

int sw_meet_runs(struct sw_comm *comm, int ms)
{
    return follow(comm, ms) == CUDA_ERROR_NOT_READY;
}

/* What a communicator leaves behind. */
struct remains {
    CUstream stream;
    void *memory;
    CUcontext context;
    int device;
};

static void *release_main(void *data)
{
    struct remains *r = data;
    const struct sw_cu *cu = sw_cu();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the program may be capturing */
    CUcontext context;
    CUdevice device;

    (void)cu->cuThreadExchangeStreamCaptureMode(&mode);
    if (cu->cuCtxPushCurrent(r->context) == CUDA_SUCCESS) {
        if (r->stream != NULL)
            (void)cu->cuStreamDestroy(r->stream);
        if (r->memory != NULL)
            (void)cu->cuMemFreeHost(r->memory);
        (void)cu->cuCtxPopCurrent(&context);
    }
    if (cu->cuDeviceGet(&device, r->device) == CUDA_SUCCESS)
        (void)cu->cuDevicePrimaryCtxRelease(device);
    (void)cu->cuThreadExchangeStreamCaptureMode(&mode);
    free(r);
    return NULL;
}

/* In a thread of its own: pinned memory is freed when the device has nothing to do, and a call of
 * another communicator there may wait for what this thread does next. */
void sw_meet_end(struct sw_comm *comm)
{
    struct remains *r;

    if (comm->context == NULL)
        return;
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return; /* it is lost */
    *r = (struct remains){comm->meeting.stream, comm->meeting.memory, comm->context, comm->device};
    comm->meeting = (struct sw_meeting){0};
    comm->context = NULL;
    if (!sw_comm_begin_thread(NULL, release_main, r))
        (void)release_main(r);
}
