/* The ranks of a communicator exchange records over NCCL, in a stream of its own. The host waits by
 * asking, so that an abort or a deadline ends it.
 *
 * A rank that waits no longer may not decide that alone. So there are two exchanges: when the
 * records of all have come, a function of the host, in the stream's order, closes the word by which
 * this rank can say that it has given up, and the second exchange carries the words. Either a rank
 * gives up before that, and all read it, or it learns that all have come. */
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

/* Where the ranks' records and words are, in the memory of a meeting. */
struct head {
    atomic_int arrival; /* of all ranks */
    uint32_t word;      /* this rank's, which the second exchange carries */
};
enum { AWAITED, ARRIVED, NOT_AWAITED };
enum { HEAD_BYTES = 64, WORD_BYTES = 8 };

static struct head *head_of(const struct sw_comm *comm)
{
    return (struct head *)comm->meeting.memory;
}

static char *words_of(const struct sw_comm *comm)
{
    return comm->meeting.memory + HEAD_BYTES;
}

static char *record_at(const struct sw_comm *comm, int place)
{
    return words_of(comm) + (size_t)comm->ranks * WORD_BYTES + (size_t)place * comm->meeting.bytes;
}

const void *sw_met(const struct sw_comm *comm, int rank)
{
    return record_at(comm, rank + 1);
}

const void *sw_meet_mine(const struct sw_comm *comm)
{
    return record_at(comm, 0);
}

int sw_met_gave_up(const struct sw_comm *comm, int rank)
{
    return *(const uint32_t *)(words_of(comm) + (size_t)rank * WORD_BYTES) == NOT_AWAITED;
}

/* Without a stream or pinned memory of its own the rank exchanges all the same, in the call's
 * stream and in device memory, and reads nothing: its record says that it cannot agree. Memory is
 * kept until the communicator's death: to free it may wait for kernels that wait for ranks. */
ncclResult_t sw_meet_prepare(struct sw_comm *comm, size_t bytes)
{
    const struct sw_cu *cu = sw_cu();
    struct sw_meeting *m = &comm->meeting;
    const size_t all = HEAD_BYTES + (size_t)comm->ranks * WORD_BYTES +
                       ((size_t)comm->ranks + 1) * bytes;
    CUresult result = CUDA_SUCCESS;
    void *memory = NULL;

    m->bytes = bytes;
    if (m->device_memory == 0) {
        if (m->stream == NULL)
            result = cu->cuStreamCreate(&m->stream, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS && m->memory == NULL)
            result = cu->cuMemHostAlloc(&memory, all, CU_MEMHOSTALLOC_PORTABLE);
        if (result == CUDA_SUCCESS && m->memory == NULL)
            m->memory = memory;
        if (result == CUDA_SUCCESS)
            return ncclSuccess;
        if (cu->cuMemAlloc(&m->device_memory, all) == CUDA_SUCCESS)
            m->memory = (char *)(uintptr_t)m->device_memory; /* addresses only */
        else
            m->device_memory = 0;
    }
    if (m->device_memory != 0 && !sw_order_is_captured((cudaStream_t)comm->meets_for))
        return ncclSuccess;
    return sw_error(ncclUnhandledCudaError,
                    "symwin: no stream, or no memory, for the ranks of a communicator to agree on "
                    "it (CUDA error %d); free some memory",
                    (int)result);
}

static CUstream stream_of(const struct sw_comm *comm)
{
    return sw_meet_is_deaf(comm) ? comm->meets_for : comm->meeting.stream;
}

static ncclResult_t gather(struct sw_comm *comm, const void *mine, void *all, size_t bytes)
{
    const struct sw_from from = SW_NCCL_OF(comm, ncclAllGather);

    return sw_error_is_nccls(SW_PASS(
        &from, ncclAllGather,
        (mine, all, bytes, ncclUint8, atomic_load(&comm->handle), (cudaStream_t)stream_of(comm))));
}

/* All ranks have come: a thread of the driver's is here, in the stream's order. */
static void all_came(void *data)
{
    struct head *head = data;
    int arrival = AWAITED;

    (void)atomic_compare_exchange_strong(&head->arrival, &arrival, ARRIVED);
    head->word = (uint32_t)atomic_load(&head->arrival);
}

/* Behind the records: whether each rank has waited for all others. Without a function of the host
 * this one cannot, and says so: it has given up. */
static ncclResult_t exchange_words(struct sw_comm *comm)
{
    struct head *head = head_of(comm);

    comm->meeting.words_are_due = 0;
    if (!sw_meet_is_deaf(comm) &&
        sw_cu()->cuLaunchHostFunc(comm->meeting.stream, all_came, head) != CUDA_SUCCESS) {
        atomic_store(&head->arrival, NOT_AWAITED);
        head->word = NOT_AWAITED;
    }
    return gather(comm, &head->word, words_of(comm), WORD_BYTES);
}

ncclResult_t sw_meet_begin(struct sw_comm *comm, const void *mine)
{
    struct sw_meeting *m = &comm->meeting;
    ncclResult_t result;

    if (sw_meet_is_deaf(comm)) {
        if (sw_cu()->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)record_at(comm, 0), mine, m->bytes) !=
            CUDA_SUCCESS)
            return sw_error(ncclUnhandledCudaError, "symwin: the driver copies no record");
    } else {
        memcpy(record_at(comm, 0), mine, m->bytes);
        atomic_store(&head_of(comm)->arrival, AWAITED);
    }
    /* The all-gather takes the call's place: graphs that were launched before may have calls of the
     * communicator, which NCCL does not order. */
    if (comm->passed && !sw_meet_is_deaf(comm) &&
        !sw_order_is_captured((cudaStream_t)comm->meets_for))
        (void)sw_order_join(comm, (cudaStream_t)comm->meets_for, (cudaStream_t)m->stream);
    m->words_are_due = 1;
    result = gather(comm, record_at(comm, 0), record_at(comm, 1), m->bytes);
    return result == ncclSuccess ? exchange_words(comm) : result;
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

/* Success: NCCL has begun both exchanges. */
static ncclResult_t look(struct sw_comm *comm)
{
    ncclResult_t state;

    if (atomic_load(&comm->stop))
        return sw_meet_was_aborted();
    state = state_of(comm); /* with blocking=0 a call itself may be in progress */
    if (state != ncclSuccess || !comm->meeting.words_are_due)
        return state;
    state = sw_meet_ask(comm) != NULL ? exchange_words(comm) : sw_meet_was_aborted();
    sw_meet_has_asked(comm);
    return state;
}

ncclResult_t sw_meet_query(const struct sw_comm *comm)
{
    const CUresult result = sw_cu()->cuStreamQuery(comm->meeting.stream);

    if (result == CUDA_SUCCESS)
        return ncclSuccess;
    return result == CUDA_ERROR_NOT_READY
               ? ncclInProgress
               : sw_error(ncclUnhandledCudaError, "symwin: CUDA error %d in NCCL's all-gather",
                          (int)result);
}

static void pause(struct timespec *moment)
{
    nanosleep(moment, NULL);
    moment->tv_nsec = moment->tv_nsec < 500000 ? moment->tv_nsec * 5 / 4 : moment->tv_nsec;
}

/* The others hear of it if all come later. Whether they have not come yet. */
static int give_up(const struct sw_comm *comm)
{
    int arrival = AWAITED;

    return atomic_compare_exchange_strong(&head_of(comm)->arrival, &arrival, NOT_AWAITED);
}

ncclResult_t sw_meet_await(struct sw_comm *comm, int ms, int *came)
{
    struct timespec moment = {.tv_nsec = 5000};
    uint64_t until = 0; /* NCCL has begun */
    ncclResult_t result;

    *came = 0;
    for (;; pause(&moment)) {
        result = look(comm);
        if (result == ncclSuccess && sw_meet_is_deaf(comm))
            return ncclSuccess;
        if (result == ncclSuccess) {
            const int arrival = atomic_load(&head_of(comm)->arrival);

            *came = arrival == ARRIVED;
            if (arrival != AWAITED)
                return ncclSuccess;
            result = sw_meet_query(comm);
            until = until == 0 ? now_ms() + (uint64_t)ms : until;
            if (result == ncclInProgress && now_ms() >= until && give_up(comm))
                return ncclSuccess;
        }
        if (result != ncclSuccess && result != ncclInProgress)
            return result;
    }
}

ncclResult_t sw_meet_wait(struct sw_comm *comm)
{
    struct timespec moment = {.tv_nsec = 5000};
    ncclResult_t result;

    while ((result = look(comm)) == ncclInProgress ||
           (result == ncclSuccess && (result = sw_meet_query(comm)) == ncclInProgress))
        pause(&moment);
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

/* One look. Another thread may be in a call of symwin's, or ask the same. */
static CUresult look_behind(struct sw_comm *comm, int *follows)
{
    symwin_status status = SYMWIN_OK;

    if (!*follows)
        status = symwin_comm_follow(atomic_load(&comm->symwin),
                                    (struct CUstream_st *)comm->meeting.stream);
    *follows = status == SYMWIN_OK;
    if (*follows)
        return sw_cu()->cuStreamQuery(comm->meeting.stream);
    return status == SYMWIN_BUSY ? CUDA_ERROR_NOT_READY : CUDA_ERROR_UNKNOWN;
}

/* What the driver says of symwin's calls so far. */
static CUresult follow(struct sw_comm *comm, int ms)
{
    const struct timespec moment = {.tv_nsec = 20000};
    const uint64_t until = now_ms() + (uint64_t)(ms > 0 ? ms : 0);
    struct sw_comm_scope scope;
    CUresult result = CUDA_ERROR_UNKNOWN;
    int follows = 0;

    if (!sw_comm_scope_enter(comm, &scope))
        return result;
    while ((result = look_behind(comm, &follows)) == CUDA_ERROR_NOT_READY &&
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
    struct sw_meeting meeting;
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
        /* Its function of the host may be to come: after an abort, or if this rank gave up. */
        if (r->meeting.stream != NULL) {
            (void)cu->cuStreamSynchronize(r->meeting.stream);
            (void)cu->cuStreamDestroy(r->meeting.stream);
        }
        if (r->meeting.device_memory != 0)
            (void)cu->cuMemFree(r->meeting.device_memory);
        else if (r->meeting.memory != NULL)
            (void)cu->cuMemFreeHost(r->meeting.memory);
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
    *r = (struct remains){comm->meeting, comm->context, comm->device};
    comm->meeting = (struct sw_meeting){0};
    comm->context = NULL;
    if (!sw_comm_begin_thread(NULL, release_main, r))
        (void)release_main(r);
}
