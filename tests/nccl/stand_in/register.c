/* What the stand-in keeps for a program: memory, registered buffers, windows, and pre-multiplied
 * sums. Registration changes nothing but what can be asked. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

struct range {
    struct range *next;
    void *ptr;
    size_t size;
    int is_window;
};

/* ---- memory ---- */

EXPORTED(ncclMemAlloc, (void **ptr, size_t size), (ptr, size))
{
    const struct driver *cu = driver_get();
    CUdeviceptr address = 0;
    ncclResult_t result;

    if (cu == NULL || ptr == NULL)
        return refuse(ncclUnhandledCudaError, "MemAlloc : no CUDA driver, or no pointer");
    *ptr = NULL;
    if (size == 0)
        return ncclSuccess;
    result = driver_check(cu->cuMemAlloc(&address, size), "cuMemAlloc");
    *ptr = (void *)(uintptr_t)address;
    return result;
}

EXPORTED(ncclMemFree, (void *ptr), (ptr))
{
    const struct driver *cu = driver_get();

    if (ptr == NULL)
        return ncclSuccess;
    if (cu == NULL)
        return refuse(ncclUnhandledCudaError, "MemFree : no CUDA driver");
    return driver_check(cu->cuMemFree((CUdeviceptr)(uintptr_t)ptr), "cuMemFree");
}

/* ---- registered buffers and windows ---- */

static struct range *keep(struct ncclComm *comm, void *ptr, size_t size, int is_window)
{
    struct range *range = malloc(sizeof *range);

    if (range == NULL)
        return NULL;
    pthread_mutex_lock(&comm->mutex);
    *range = (struct range){comm->ranges, ptr, size, is_window};
    comm->ranges = range;
    pthread_mutex_unlock(&comm->mutex);
    return range;
}

/* The link to a range; NULL if it is not this communicator's. The mutex is held. */
static struct range **find(struct ncclComm *comm, const void *handle, int is_window)
{
    struct range **at = &comm->ranges;

    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    return *at != NULL && (*at)->is_window == is_window ? at : NULL;
}

static ncclResult_t forget(struct ncclComm *comm, void *handle, int is_window, const char *function)
{
    ncclResult_t result = comm_check(comm, function);
    struct range **at, *range = NULL;

    if (result != ncclSuccess || handle == NULL)
        return result;
    pthread_mutex_lock(&comm->mutex);
    at = find(comm, handle, is_window);
    if (at != NULL) {
        range = *at;
        *at = range->next;
    }
    pthread_mutex_unlock(&comm->mutex);
    if (range == NULL)
        return refuse(ncclInvalidUsage, "%s : unknown handle", function);
    free(range);
    return ncclSuccess;
}

void ranges_free(struct ncclComm *comm)
{
    while (comm->ranges != NULL) {
        struct range *next = comm->ranges->next;

        free(comm->ranges);
        comm->ranges = next;
    }
}

EXPORTED(ncclCommRegister, (ncclComm_t comm, void *ptr, size_t size, void **handle),
         (comm, ptr, size, handle))
{
    const ncclResult_t result = comm_alive(comm, "CommRegister");

    if (result != ncclSuccess)
        return result;
    if (ptr == NULL || handle == NULL || size == 0)
        return refuse(ncclInvalidArgument, "CommRegister : an argument is NULL or 0");
    *handle = keep(comm, ptr, size, 0);
    return *handle != NULL ? ncclSuccess : refuse(ncclSystemError, "out of memory");
}

EXPORTED(ncclCommDeregister, (ncclComm_t comm, void *handle), (comm, handle))
{
    return forget(comm, handle, 0, "CommDeregister");
}

static ncclResult_t run_window(struct task *task)
{
    const size_t mine = task->size;
    size_t all[MOST_RANKS];
    const ncclResult_t result = comm_exchange(task->parent, task->ticket, &mine, all, sizeof mine);
    struct range *range;

    if (result != ncclSuccess)
        return result;
    range = keep(task->parent, task->ptr, mine, 1);
    *task->window = (ncclWindow_t)(void *)range;
    return range != NULL ? ncclSuccess : refuse(ncclSystemError, "out of memory");
}

EXPORTED(ncclCommWindowRegister,
         (ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags),
         (comm, ptr, size, window, flags))
{
    const struct task task = {.run = run_window,
                              .comm = comm,
                              .parent = comm,
                              .ptr = ptr,
                              .size = size,
                              .window = window};
    ncclResult_t result = comm_ready(comm, "CommWindowRegister");

    if (result == ncclSuccess &&
        (ptr == NULL || window == NULL || size == 0 || (uintptr_t)ptr % 4096 != 0 ||
         (flags != 0 && flags != NCCL_WIN_COLL_SYMMETRIC)))
        result = refuse(ncclInvalidArgument, "CommWindowRegister : an argument is NULL or 0, not "
                                             "aligned, or unknown");
    if (result != ncclSuccess)
        return group_fault(result);
    *window = NULL;
    return group_task(&task);
}

EXPORTED(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window), (comm, window))
{
    return forget(comm, window, 1, "CommWindowDeregister");
}

EXPORTED(ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t window, void **ptr), (comm, window, ptr))
{
    ncclResult_t result = comm_check(comm, "WinGetUserPtr");
    struct range **at;

    if (result != ncclSuccess)
        return result;
    if (ptr == NULL)
        return refuse(ncclInvalidArgument, "WinGetUserPtr : outUserPtr argument is NULL");
    pthread_mutex_lock(&comm->mutex);
    at = find(comm, window, 1);
    *ptr = at != NULL ? (*at)->ptr : NULL;
    pthread_mutex_unlock(&comm->mutex);
    return *ptr != NULL ? ncclSuccess
                        : refuse(ncclInvalidArgument, "WinGetUserPtr : unknown window");
}

/* ---- pre-multiplied sums ---- */

EXPORTED(ncclRedOpCreatePreMulSum,
         (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,
          ncclComm_t comm),
         (op, scalar, type, residence, comm))
{
    ncclResult_t result = comm_ready(comm, "RedOpCreatePreMulSum");
    struct premul premul = {.used = 1, .type = type}, *more;
    int at = 0;

    if (result != ncclSuccess)
        return result;
    if (op == NULL || scalar == NULL || (unsigned)type >= ncclNumTypes)
        return refuse(ncclInvalidArgument, "RedOpCreatePreMulSum : invalid argument");
    if (residence == ncclScalarHostImmediate)
        memcpy(premul.value, scalar, type_width(type));
    else /* NCCL asks no more */
        premul.where = scalar;
    pthread_mutex_lock(&comm->mutex);
    while (at < comm->premul_count && comm->premuls[at].used)
        at++;
    more = realloc(comm->premuls, (size_t)(comm->premul_count + 1) * sizeof *more);
    if (more != NULL) {
        comm->premuls = more;
        comm->premul_count += at == comm->premul_count;
        comm->premuls[at] = premul;
        *op = (ncclRedOp_t)(ncclNumOps + at);
    } else {
        result = refuse(ncclSystemError, "out of memory");
    }
    pthread_mutex_unlock(&comm->mutex);
    return result;
}

EXPORTED(ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm))
{
    const int at = (int)op - ncclNumOps;
    ncclResult_t result = comm_check(comm, "RedOpDestroy");

    if (result != ncclSuccess)
        return result;
    pthread_mutex_lock(&comm->mutex);
    if (at < 0 || at >= comm->premul_count || !comm->premuls[at].used)
        result = refuse(ncclInvalidArgument,
                        "RedOpDestroy : operation %d unknown to this "
                        "communicator",
                        (int)op);
    else
        comm->premuls[at].used = 0;
    pthread_mutex_unlock(&comm->mutex);
    return result;
}
