/* The sentence for ncclGetLastError(): of this library, or of NCCL, whichever failed last. As
 * NCCL's own, it is that of the process. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/comms.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char last[512];     /* "": NCCL's */
static atomic_int is_ours; /* whether there is one */

ncclResult_t sw_error(ncclResult_t result, const char *format, ...)
{
    va_list list;

    pthread_mutex_lock(&mutex);
    va_start(list, format);
    vsnprintf(last, sizeof last, format, list);
    va_end(list);
    atomic_store(&is_ours, 1);
    pthread_mutex_unlock(&mutex);
    return result;
}

ncclResult_t sw_error_of(symwin_status status)
{
    ncclResult_t result;

    switch (status) {
    case SYMWIN_OK:
        return ncclSuccess;
    case SYMWIN_INVALID:
        result = ncclInvalidArgument;
        break;
    case SYMWIN_MISMATCH:
    case SYMWIN_BUSY:
        result = ncclInvalidUsage;
        break;
    case SYMWIN_PEER_LOST:
    case SYMWIN_TIMEOUT:
    case SYMWIN_ABORTED:
        result = ncclRemoteError;
        break;
    case SYMWIN_DRIVER:
    case SYMWIN_NO_MEMORY:
        result = ncclUnhandledCudaError;
        break;
    default:
        result = ncclSystemError;
    }
    return sw_error(result, "symwin: %s", symwin_last_error());
}

ncclResult_t sw_error_is_nccls(ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress)
        atomic_store(&is_ours, 0);
    return result;
}

/* A copy of the thread's own: others may fail meanwhile. */
static const char *last_error(const struct sw_from *from, ncclComm_t comm)
{
    static _Thread_local char copy[sizeof last];
    const char *path = sw_next_path();

    if (!from->inside && atomic_load(&is_ours)) {
        pthread_mutex_lock(&mutex);
        memcpy(copy, last, sizeof copy);
        pthread_mutex_unlock(&mutex);
        return copy;
    }
    if (from->symbol != NULL)
        return ((__typeof__(&ncclGetLastError))from->symbol)(comm);
    snprintf(copy, sizeof copy,
             "symwin: no NCCL with %s is among the libraries of the program or of the one that "
             "calls, nor found as %.256s%s; set SYMWIN_NCCL to the path of one",
             from->next->name, path, strchr(path, '/') != NULL ? "" : " by the loader");
    return copy;
}

const char *ncclGetLastError(ncclComm_t comm)
{
    struct sw_from room;

    return last_error(SW_FROM(ncclGetLastError, &room), comm);
}

const char *pncclGetLastError(ncclComm_t comm)
{
    struct sw_from room;

    return last_error(SW_FROM(pncclGetLastError, &room), comm);
}
