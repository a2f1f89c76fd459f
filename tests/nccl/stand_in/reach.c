/* The stand-in's counts, its faults, its texts, and the functions that need no communicator. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"

static struct stand_in counts = {
    .functions =
        {
#define COUNTED(name, result) {#name, 0},
            SW_NCCL_NAMES(COUNTED)
#undef COUNTED
        },
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char last_error[256];

STAND_IN_API const struct stand_in *stand_in(void)
{
    return &counts;
}

int reach_count(int function)
{
    const unsigned call = atomic_fetch_add(&counts.functions[function].calls, 1) + 1;
    const char *fault = getenv("STAND_IN_FAIL");
    char name[64];
    unsigned at;
    int code;

    if (fault == NULL || sscanf(fault, "%63[^:]:%u:%d", name, &at, &code) != 3 || at != call ||
        strcmp(name, counts.functions[function].name) != 0)
        return -1;
    if (code == -1)
        raise(SIGSTOP);
    else if (code == -2)
        usleep(STAND_IN_PAUSE_MS * 1000);
    else if (code != ncclSuccess)
        refuse((ncclResult_t)code, "%s: the fault of STAND_IN_FAIL=%s", name, fault);
    return code;
}

void reach_live(int change)
{
    atomic_fetch_add(&counts.live, change);
}

ncclResult_t refuse(ncclResult_t code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    pthread_mutex_lock(&mutex);
    vsnprintf(last_error, sizeof last_error, format, args);
    pthread_mutex_unlock(&mutex);
    va_end(args);
    return code;
}

STAND_IN_API const char *ncclGetLastError(ncclComm_t comm)
{
    static _Thread_local char text[sizeof last_error];

    (void)comm;
    reach_count(STAND_IN_ncclGetLastError);
    pthread_mutex_lock(&mutex);
    memcpy(text, last_error, sizeof text);
    pthread_mutex_unlock(&mutex);
    return text;
}

STAND_IN_API const char *pncclGetLastError(ncclComm_t comm)
    __attribute__((alias("ncclGetLastError")));

STAND_IN_API const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        [ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        [ncclInternalError] = "internal error - please report this issue to the NCCL developers",
        [ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
        [ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
        [ncclRemoteError] = "remote process exited or there was a network error",
        [ncclInProgress] = "NCCL operation in progress",
    };

    reach_count(STAND_IN_ncclGetErrorString);
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

STAND_IN_API const char *pncclGetErrorString(ncclResult_t result)
    __attribute__((alias("ncclGetErrorString")));

EXPORTED(ncclGetVersion, (int *version), (version))
{
    if (version == NULL)
        return refuse(ncclInvalidArgument, "GetVersion : version argument is NULL");
    *version = 22809;
    return ncclSuccess;
}

EXPORTED(ncclResetDebugInit, (void), ())
{
    return ncclSuccess;
}

ncclResult_t reach_id(ncclUniqueId *id, const char *function)
{
    if (id == NULL)
        return refuse(ncclInvalidArgument, "%s : uniqueId argument is NULL", function);
    memset(id, 0, sizeof *id);
    return wire_id(id);
}

EXPORTED(ncclGetUniqueId, (ncclUniqueId * id), (id))
{
    return reach_id(id, "GetUniqueId");
}

EXPORTED(ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id), (comm, id))
{
    const ncclResult_t result = comm_ready(comm, "CommGetUniqueId");

    return result == ncclSuccess ? reach_id(id, "CommGetUniqueId") : result;
}
