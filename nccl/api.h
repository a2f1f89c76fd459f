/* What nccl.h declares of the functions that libsymwin-nccl.so defines, so that nccl.h need not be
 * installed. From nccl.h 2.28; the forms with a configuration are of 2.31. */
#ifndef SYMWIN_NCCL_API_H
#define SYMWIN_NCCL_API_H

#include <stddef.h>

#include "symwin.h"

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;
/* Programs pass what they like, so these are no enums. */
typedef int ncclDataType_t;
enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes
};

typedef int ncclRedOp_t;
enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps };

typedef int ncclScalarResidence_t;
enum { ncclScalarDevice, ncclScalarHostImmediate };

enum { NCCL_SHRINK_ABORT = 1, NCCL_WIN_COLL_SYMMETRIC = 1 };

typedef struct {
    char internal[128];
} ncclUniqueId;

/* Its first members, the same since nccl.h 2.17. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs; /* INT_MIN: not set */
} ncclConfig_t;

/* Its first members. */
typedef struct {
    size_t size;
    unsigned magic, version;
    void *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize; /* INT_MIN: not set */
    const char *algSelection;
} ncclCollConfig_t;

/* X(name, parameters) */
#define SW_NCCL_CALLS(X)                                                                           \
    X(ncclAllReduce, (const void *in, void *out, size_t count, ncclDataType_t type,                \
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream))                       \
    X(ncclReduceScatter, (const void *in, void *out, size_t count, ncclDataType_t type,            \
                          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream))                   \
    X(ncclAllGather, (const void *in, void *out, size_t count, ncclDataType_t type,                \
                      ncclComm_t comm, cudaStream_t stream))                                       \
    X(ncclAlltoAll, (const void *in, void *out, size_t count, ncclDataType_t type,                 \
                     ncclComm_t comm, cudaStream_t stream))                                        \
    X(ncclBroadcast, (const void *in, void *out, size_t count, ncclDataType_t type, int root,      \
                      ncclComm_t comm, cudaStream_t stream))                                       \
    X(ncclReduce, (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,   \
                   int root, ncclComm_t comm, cudaStream_t stream))                                \
    X(ncclGather, (const void *in, void *out, size_t count, ncclDataType_t type, int root,         \
                   ncclComm_t comm, cudaStream_t stream))                                          \
    X(ncclScatter, (const void *in, void *out, size_t count, ncclDataType_t type, int root,        \
                    ncclComm_t comm, cudaStream_t stream))                                         \
    X(ncclBcast, (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,      \
                  cudaStream_t stream))                                                            \
    X(ncclSend, (const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,     \
                 cudaStream_t stream))                                                             \
    X(ncclRecv, (void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,          \
                 cudaStream_t stream))

#define SW_NCCL_CONFIG_CALLS(X)                                                                    \
    X(ncclAllReduceConfig,                                                                         \
      (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,               \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))                      \
    X(ncclReduceScatterConfig,                                                                     \
      (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,               \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))                      \
    X(ncclAllGatherConfig, (const void *in, void *out, size_t count, ncclDataType_t type,          \
                            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)) \
    X(ncclAlltoAllConfig, (const void *in, void *out, size_t count, ncclDataType_t type,           \
                           ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))  \
    X(ncclBroadcastConfig,                                                                         \
      (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,    \
       cudaStream_t stream, const ncclCollConfig_t *config))                                       \
    X(ncclReduceConfig,                                                                            \
      (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,     \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))                      \
    X(ncclGatherConfig, (const void *in, void *out, size_t count, ncclDataType_t type, int root,   \
                         ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))    \
    X(ncclScatterConfig, (const void *in, void *out, size_t count, ncclDataType_t type, int root,  \
                          ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))

#define SW_NCCL_BIRTHS(X)                                                                          \
    X(ncclCommInitRankConfig,                                                                      \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))             \
    X(ncclCommInitRankScalable, (ncclComm_t * comm, int ranks, int rank, int count,                \
                                 ncclUniqueId *ids, ncclConfig_t *config))                         \
    X(ncclCommSplit,                                                                               \
      (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config))              \
    X(ncclCommGrow, (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank,                 \
                     ncclComm_t *child, ncclConfig_t *config))

#define SW_NCCL_STATES(X)                                                                          \
    X(ncclCommShrink, (ncclComm_t comm, int *excluded, int count, ncclComm_t *child,               \
                       ncclConfig_t *config, int flags))                                           \
    X(ncclCommFinalize, (ncclComm_t comm))                                                         \
    X(ncclCommDestroy, (ncclComm_t comm))                                                          \
    X(ncclCommAbort, (ncclComm_t comm))                                                            \
    X(ncclCommRevoke, (ncclComm_t comm, int flags))                                                \
    X(ncclCommSuspend, (ncclComm_t comm, int flags))                                               \
    X(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                              \
    X(ncclCommWindowRegister,                                                                      \
      (ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags))                  \
    X(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))                            \
    X(ncclRedOpCreatePreMulSum, (ncclRedOp_t * op, void *scalar, ncclDataType_t type,              \
                                 ncclScalarResidence_t residence, ncclComm_t comm))                \
    X(ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))

#define SW_NCCL_OTHERS(X)                                                                          \
    X(ncclMemAlloc, (void **ptr, size_t size))                                                     \
    X(ncclMemFree, (void *ptr))                                                                    \
    X(ncclGroupStart, (void))                                                                      \
    X(ncclGroupEnd, (void))                                                                        \
    X(ncclGroupSimulateEnd, (void *info))

/* All of these but ncclGetLastError(), whose result is a text. */
#define SW_NCCL_SERVED(X)                                                                          \
    SW_NCCL_CALLS(X) SW_NCCL_CONFIG_CALLS(X) SW_NCCL_BIRTHS(X) SW_NCCL_STATES(X) SW_NCCL_OTHERS(X)

#define SW_NCCL_DECLARE(name, params)                                                              \
    SYMWIN_API ncclResult_t name params;                                                           \
    SYMWIN_API ncclResult_t p##name params;
SW_NCCL_SERVED(SW_NCCL_DECLARE)
#undef SW_NCCL_DECLARE

SYMWIN_API const char *ncclGetLastError(ncclComm_t comm);
SYMWIN_API const char *pncclGetLastError(ncclComm_t comm);

/* Only called here, in NCCL: by ncclCommCount() and so on. */
typedef ncclResult_t (*sw_comm_number_fn)(ncclComm_t comm, int *number);

#endif
