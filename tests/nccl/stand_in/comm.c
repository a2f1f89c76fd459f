/* Communicators of the stand-in: their states, their end, and what programs ask them. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *comms; /* with a handle */

/* ---- life ---- */

struct ncclComm *comm_create(int ranks, int rank, int blocking)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);

    if (comm == NULL)
        return NULL;
    atomic_init(&comm->refs, 1);
    atomic_init(&comm->error, ncclInProgress);
    comm->ranks = ranks;
    comm->rank = rank;
    comm->blocking = blocking;
    comm->retained = -1;
    pthread_mutex_init(&comm->running, NULL);
    pthread_mutex_init(&comm->mutex, NULL);
    pthread_mutex_lock(&mutex);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&mutex);
    reach_live(1);
    return comm;
}

/* Like the CUDA runtime, takes the primary context of device 0 if none is current. */
ncclResult_t comm_place(struct ncclComm *comm, int device)
{
    const struct driver *cu = driver_get();
    CUcontext old;
    CUresult result = CUDA_SUCCESS;

    if (cu == NULL)
        return refuse(ncclUnhandledCudaError, "no CUDA driver");
    if (device < 0)
        result = cu->cuCtxGetCurrent(&comm->context);
    if (result == CUDA_SUCCESS && comm->context == NULL) {
        result = cu->cuDeviceGet(&comm->retained, device < 0 ? 0 : device);
        if (result == CUDA_SUCCESS)
            result = cu->cuDevicePrimaryCtxRetain(&comm->context, comm->retained);
        if (result != CUDA_SUCCESS)
            comm->retained = -1;
    }
    if (result == CUDA_SUCCESS)
        result = cu->cuCtxPushCurrent(comm->context);
    if (result != CUDA_SUCCESS)
        return driver_check(result, "no context");
    result = cu->cuCtxGetDevice(&comm->device);
    if (result == CUDA_SUCCESS)
        result = cu->cuEventCreate(&comm->last, CU_EVENT_DISABLE_TIMING);
    cu->cuCtxPopCurrent(&old);
    return driver_check(result, "cuEventCreate");
}

struct ncclComm *comm_ref(struct ncclComm *comm)
{
    if (comm != NULL)
        atomic_fetch_add(&comm->refs, 1);
    return comm;
}

void comm_unref(struct ncclComm *comm)
{
    if (comm == NULL || atomic_fetch_sub(&comm->refs, 1) != 1)
        return;
    if (comm->wire != NULL)
        wire_release(comm->wire);
    if (comm->kind != NULL)
        comm->kind->close();
    ranges_free(comm);
    while (comm->shrinkings != NULL) {
        struct shrinking *next = comm->shrinkings->next;

        free(comm->shrinkings);
        comm->shrinkings = next;
    }
    free(comm->premuls);
    pthread_mutex_destroy(&comm->running);
    pthread_mutex_destroy(&comm->mutex);
    free(comm);
}

/* A birth on another thread may be about to give it a wire. */
static void mark(struct ncclComm *comm, enum seat seat)
{
    pthread_mutex_lock(&comm->mutex);
    if (comm->wire != NULL)
        wire_mark(comm->wire, comm->rank, seat);
    pthread_mutex_unlock(&comm->mutex);
}

ncclResult_t comm_open(struct ncclComm *comm, const struct wire_kind *kind)
{
    const ncclResult_t result = kind->open();

    if (result == ncclSuccess)
        comm->kind = kind;
    return result;
}

ncclResult_t comm_join(struct ncclComm *comm)
{
    struct wire *wire;
    const ncclResult_t result = comm->kind->join(comm, &wire);

    if (result != ncclSuccess)
        return result;
    pthread_mutex_lock(&comm->mutex);
    comm->wire = wire;
    pthread_mutex_unlock(&comm->mutex);
    if (atomic_load(&comm->stop))
        mark(comm, SEAT_FAILED);
    return ncclSuccess;
}

void comm_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void comm_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

void comm_close(struct ncclComm *comm, enum seat seat)
{
    const struct driver *cu = driver_get();
    struct ncclComm **at = &comms;

    pthread_mutex_lock(&mutex);
    while (*at != NULL && *at != comm)
        at = &(*at)->next;
    if (*at != NULL)
        *at = comm->next;
    pthread_mutex_unlock(&mutex);
    mark(comm, seat);
    if (cu != NULL && comm->last != NULL)
        cu->cuEventDestroy(comm->last);
    if (cu != NULL && comm->retained >= 0)
        cu->cuDevicePrimaryCtxRelease(comm->retained);
    reach_live(-1);
    comm_unref(comm);
}

/* ---- states ---- */

ncclResult_t comm_check(struct ncclComm *comm, const char *function)
{
    const struct ncclComm *at;

    if (comm == NULL)
        return refuse(ncclInvalidArgument, "%s : comm argument is NULL", function);
    pthread_mutex_lock(&mutex);
    for (at = comms; at != NULL && at != comm; at = at->next)
        ;
    pthread_mutex_unlock(&mutex);
    return at != NULL
               ? ncclSuccess
               : refuse(ncclInvalidArgument, "%s : corrupted comm object detected", function);
}

ncclResult_t comm_alive(struct ncclComm *comm, const char *function)
{
    ncclResult_t result = comm_check(comm, function);

    if (result != ncclSuccess)
        return result;
    result = (ncclResult_t)atomic_load(&comm->error);
    if (result == ncclInProgress)
        return refuse(ncclInvalidArgument,
                      "%s : Attempt to use communicator before the previous operation returned "
                      "ncclSuccess",
                      function);
    return result;
}

ncclResult_t comm_ready(struct ncclComm *comm, const char *function)
{
    const ncclResult_t result = comm_alive(comm, function);

    if (result != ncclSuccess)
        return result;
    if (atomic_load(&comm->stop) || atomic_load(&comm->suspended) || atomic_load(&comm->finalized))
        return refuse(ncclInvalidUsage, "%s : the communicator is revoked, suspended or finalized",
                      function);
    return ncclSuccess;
}

void comm_fail(struct ncclComm *comm, ncclResult_t code)
{
    int error = atomic_load(&comm->error);

    if (atomic_load(&comm->stop))
        return;
    while ((error == ncclSuccess || error == ncclInProgress) &&
           !atomic_compare_exchange_weak(&comm->error, &error, (int)code))
        ;
    wire_mark(comm->wire, comm->rank, SEAT_FAILED);
}

int comm_is_over(struct ncclComm *comm)
{
    const int error = atomic_load(&comm->error);

    return atomic_load(&comm->stop) || (error != ncclSuccess && error != ncclInProgress);
}

void comm_stop(struct ncclComm *comm, enum stop stop)
{
    atomic_store(&comm->stop, stop);
    mark(comm, stop == STOP_REVOKED ? SEAT_REVOKED : SEAT_FAILED);
    pthread_mutex_lock(&comm->running);
    pthread_mutex_unlock(&comm->running);
}

static atomic_int all_pending; /* of all communicators */

void comm_pends(struct ncclComm *comm, int more)
{
    atomic_fetch_add(&comm->pending, more);
    atomic_fetch_add(&all_pending, more);
}

static ncclResult_t drain(struct ncclComm *comm)
{
    struct wait wait = wait_begin();

    while (atomic_load(&comm->pending) > 0)
        if (!wait_more(&wait))
            return refuse(ncclSystemError, "calls have not ended in time");
    return ncclSuccess;
}

/* ---- the control plane ---- */

static ncclResult_t exchange(struct ncclComm *comm, unsigned ticket, const char *mine, char *all,
                             size_t bytes)
{
    struct wait wait = wait_begin();
    size_t sent[MOST_RANKS] = {0}, got[MOST_RANKS] = {0};
    int left = comm->ranks, lost;

    memcpy(all + (size_t)comm->rank * bytes, mine, bytes);
    while (atomic_load(&comm->turn) != ticket)
        if (!wait_more(&wait))
            return refuse(ncclSystemError, "an earlier call has not ended in time");
    while (left > 0) {
        left = 0;
        for (int r = 0; r < comm->ranks; r++) {
            if (r == comm->rank)
                continue;
            sent[r] += wire_put(comm->wire, PLANE_CONTROL, comm->rank, r, mine + sent[r],
                                bytes - sent[r]);
            lost = wait.idle > PATIENCE && wire_is_lost(comm->wire, r, PLANE_CONTROL);
            got[r] += wire_get(comm->wire, PLANE_CONTROL, r, comm->rank,
                               all + (size_t)r * bytes + got[r], bytes - got[r]);
            if (lost && got[r] < bytes)
                return refuse(ncclRemoteError, "rank %d is gone", r);
            left += sent[r] < bytes || got[r] < bytes;
        }
        if (left > 0 && atomic_load(&comm->stop) == STOP_ABORTED)
            return refuse(ncclInternalError, "aborted");
        if (left > 0 && !wait_more(&wait))
            return refuse(ncclSystemError, "not all ranks have come in time");
    }
    return ncclSuccess;
}

ncclResult_t comm_exchange(struct ncclComm *comm, unsigned ticket, const void *mine, void *all,
                           size_t bytes)
{
    const ncclResult_t result = exchange(comm, ticket, mine, all, bytes);

    atomic_store(&comm->turn, ticket + 1);
    return result;
}

/* ---- the functions ---- */

EXPORTED(ncclCommFinalize, (ncclComm_t comm), (comm))
{
    const ncclResult_t result = comm_ready(comm, "CommFinalize");

    if (result != ncclSuccess)
        return result;
    atomic_store(&comm->finalized, 1);
    return comm->blocking ? drain(comm) : ncclInProgress;
}

EXPORTED(ncclCommDestroy, (ncclComm_t comm), (comm))
{
    ncclResult_t result;

    if (comm == NULL)
        return ncclSuccess;
    result = comm_check(comm, "CommDestroy");
    if (result != ncclSuccess)
        return result;
    if (atomic_load(&comm->error) == ncclInProgress)
        return comm_alive(comm, "CommDestroy");
    result = drain(comm);
    comm_close(comm, SEAT_LEFT);
    return result;
}

EXPORTED(ncclCommAbort, (ncclComm_t comm), (comm))
{
    ncclResult_t result;
    struct wait wait;

    if (comm == NULL)
        return ncclSuccess;
    result = comm_check(comm, "CommAbort");
    if (result != ncclSuccess)
        return result;
    comm_stop(comm, STOP_ABORTED);
    for (wait = wait_begin(); atomic_load(&comm->error) == ncclInProgress && wait_more(&wait);)
        ; /* its birth ends too */
    for (wait = wait_begin();
         getenv("STAND_IN_WAITS") != NULL && atomic_load(&all_pending) > 0 && wait_more(&wait);)
        ; /* as cudaFreeHost() does */
    comm_close(comm, SEAT_FAILED);
    return ncclSuccess;
}

EXPORTED(ncclCommRevoke, (ncclComm_t comm, int flags), (comm, flags))
{
    const ncclResult_t result = comm_check(comm, "CommRevoke");

    if (result != ncclSuccess)
        return result;
    if (flags != 0)
        return refuse(ncclInvalidArgument, "CommRevoke : flags must be 0");
    comm_stop(comm, STOP_REVOKED);
    return ncclSuccess;
}

static ncclResult_t suspend(struct ncclComm *comm, const char *function, int from, int to)
{
    const ncclResult_t result = comm_alive(comm, function);

    if (result != ncclSuccess)
        return result;
    if (!atomic_compare_exchange_strong(&comm->suspended, &from, to))
        return refuse(ncclInvalidUsage, "%s : the communicator is %ssuspended", function,
                      to ? "" : "not ");
    return drain(comm);
}

EXPORTED(ncclCommSuspend, (ncclComm_t comm, int flags), (comm, flags))
{
    (void)flags;
    return suspend(comm, "CommSuspend", 0, 1);
}

EXPORTED(ncclCommResume, (ncclComm_t comm), (comm))
{
    return suspend(comm, "CommResume", 1, 0);
}

EXPORTED(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error))
{
    const ncclResult_t result = comm_check(comm, "CommGetAsyncError");

    if (result != ncclSuccess)
        return result;
    if (error == NULL)
        return refuse(ncclInvalidArgument, "CommGetAsyncError : asyncError argument is NULL");
    *error = (ncclResult_t)atomic_load(&comm->error);
    if (*error == ncclSuccess && atomic_load(&comm->finalized) && atomic_load(&comm->pending) > 0)
        *error = ncclInProgress;
    return ncclSuccess;
}

#define SAME(code) (code)

static ncclResult_t ask(struct ncclComm *comm, int *answer, size_t member, const char *function)
{
    const ncclResult_t result = comm_alive(comm, function);

    if (result != ncclSuccess)
        return result;
    if (answer == NULL)
        return refuse(ncclInvalidArgument, "%s : the argument is NULL", function);
    memcpy(answer, (const char *)comm + member, sizeof *answer);
    return ncclSuccess;
}

EXPORTED_AS(ncclCommCount, (ncclComm_t comm, int *count), (comm, count), SAME)
{
    return ask(comm, count, offsetof(struct ncclComm, ranks), "CommCount");
}

EXPORTED_AS(ncclCommCuDevice, (ncclComm_t comm, int *device), (comm, device), SAME)
{
    return ask(comm, device, offsetof(struct ncclComm, device), "CommCuDevice");
}

EXPORTED_AS(ncclCommUserRank, (ncclComm_t comm, int *rank), (comm, rank), SAME)
{
    return ask(comm, rank, offsetof(struct ncclComm, rank), "CommUserRank");
}
