/* The functions of the CUDA driver that programs use which test NCCL and its stand-in. */
#ifndef USED_DRIVER_H
#define USED_DRIVER_H

#include <stdio.h>
#include <stdlib.h>

#include "stand_in/driver_fill.h"

/* X(name, version, parameters) */
#define USED_ENTRIES(X)                                                                            \
    X(cuInit, 2000, (unsigned))                                                                    \
    X(cuDeviceGet, 2000, (CUdevice *, int))                                                        \
    X(cuDeviceGetCount, 2000, (int *))                                                             \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                     \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                \
    X(cuCtxGetCurrent, 4000, (CUcontext *))                                                        \
    X(cuCtxSetCurrent, 4000, (CUcontext))                                                          \
    X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                    \
    X(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                           \
    X(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *))                           \
    X(cuStreamCreate, 2000, (CUstream *, unsigned))                                                \
    X(cuStreamDestroy, 4000, (CUstream))                                                           \
    X(cuStreamSynchronize, 2000, (CUstream))                                                       \
    X(cuStreamQuery, 2000, (CUstream))                                                             \
    X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned))                                      \
    X(cuStreamWaitValue32, 11070, (CUstream, CUdeviceptr, cuuint32_t, unsigned))                   \
    X(cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *))                                       \
    X(cuEventCreate, 2000, (CUevent *, unsigned))                                                  \
    X(cuEventRecord, 2000, (CUevent, CUstream))                                                    \
    X(cuEventDestroy, 4000, (CUevent))                                                             \
    X(cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode))                                \
    X(cuStreamEndCapture, 10000, (CUstream, CUgraph *))                                            \
    X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long))            \
    X(cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                               \
    X(cuGraphExecDestroy, 10000, (CUgraphExec))                                                    \
    X(cuGraphDestroy, 10000, (CUgraph))

extern struct used_driver {
#define USED_MEMBER(name, version, params) CUresult(*name) params;
    USED_ENTRIES(USED_MEMBER)
#undef USED_MEMBER
} cu;

/* Fills `cu`, and ends the process without a driver. */
static inline void load_driver(void)
{
    static const struct driver_entry entries[] = {
#define USED_ENTRY(name, version, params) {#name, version, offsetof(struct used_driver, name)},
        USED_ENTRIES(USED_ENTRY)
#undef USED_ENTRY
    };
    const char *missing = driver_fill(entries, sizeof entries / sizeof entries[0], &cu);

    if (missing != NULL || cu.cuInit(0) != CUDA_SUCCESS) {
        fprintf(stderr, "no %s\n", missing != NULL ? missing : "device");
        exit(1);
    }
}

/* STAND_IN_HOSTS=aabb: a letter for each process, the host that it is on for symwin. */
static inline void on_host(int process)
{
    const char *hosts = getenv("STAND_IN_HOSTS");
    const char id[2] = {hosts != NULL ? hosts[process] : '\0'};

    if (id[0] != '\0')
        setenv("SYMWIN_HOST_ID", id, 1);
}

#endif
