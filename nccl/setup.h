/* What the environment says, and the driver's functions: read once a process. */
#ifndef SYMWIN_NCCL_SETUP_H
#define SYMWIN_NCCL_SETUP_H

#include "nccl/api.h"
#include "src/driver/cuda_abi.h"

/* The collectives, as NCCL counts them. */
enum sw_kind {
    SW_ALL_REDUCE,
    SW_REDUCE_SCATTER,
    SW_ALL_GATHER,
    SW_ALL_TO_ALL,
    SW_BROADCAST,
    SW_REDUCE,
    SW_GATHER,
    SW_SCATTER,
    SW_SEND,
    SW_RECV,
    SW_KINDS
};
extern const char *const sw_kind_names[SW_KINDS]; /* as in SYMWIN_NCCL_SERVE */

enum sw_serve { SW_SERVE_AUTO, SW_SERVE_ALL, SW_SERVE_NONE };

struct sw_setup {
    int usable;  /* symwin has a driver */
    int memory;  /* and serves ncclMemAlloc() */
    int refused; /* a variable is invalid: `why` */
    char why[256];
    int emulated;
    void *cuda;     /* libcuda; NULL: there is none, or symwin's driver is the emulated one */
    unsigned flags; /* for symwin_mem_alloc() */
    int (*retain)(unsigned long long *handle, void *address); /* NULL: no CUDA driver */
    int (*release)(unsigned long long handle);
    enum sw_serve serve[SW_KINDS];
    size_t room; /* most device memory of a communicator */
    int report;
    int most_blocks; /* NCCL_MAX_CTAS; 0: not set */
};
const struct sw_setup *sw_setup(void);

/* Read the values of SYMWIN_NCCL_SERVE and SYMWIN_NCCL_MEMORY; NULL: it is not set. 0: it makes no
 * sense. */
int sw_read_serve(const char *text, enum sw_serve serve[SW_KINDS]);
int sw_read_room(const char *text, size_t *room);

/* X(name, symbol, parameters): functions of the driver, in the current context, and what libcuda
 * calls them. */
#define SW_CU_LIST(X)                                                                              \
    X(cuDeviceGet, cuDeviceGet, (CUdevice *, int))                                                 \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                 \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))                         \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext))                                          \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext *))                                          \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                 \
    X(cuMemFreeHost, cuMemFreeHost, (void *))                                                      \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                          \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr))                                                      \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                          \
    X(cuLaunchHostFunc, cuLaunchHostFunc, (CUstream, CUhostFn, void *))                            \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream))                                        \
    X(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned))                                      \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream))                                             \
    X(cuStreamQuery, cuStreamQuery, (CUstream))                                                    \
    X(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                         \
    X(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2,                                        \
      (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,           \
       size_t *))                                                                                  \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,                        \
      (CUstreamCaptureMode *))                                                                     \
    X(cuEventCreate, cuEventCreate, (CUevent *, unsigned))                                         \
    X(cuEventRecord, cuEventRecord, (CUevent, CUstream))                                           \
    X(cuEventDestroy, cuEventDestroy_v2, (CUevent))

struct sw_cu {
#define SW_CU_MEMBER(name, symbol, params) CUresult(*name) params;
    SW_CU_LIST(SW_CU_MEMBER)
#undef SW_CU_MEMBER
};
const struct sw_cu *sw_cu(void); /* NULL: there is no driver */

#endif
