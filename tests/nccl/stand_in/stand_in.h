/* The stand-in for NCCL, as programs and tests see it: the types of nccl.h 2.28, the functions that
 * it has, and what it counts.
 *
 * It is a libnccl.so.2 that moves and reduces data between ranks that are threads or processes, of
 * one host or over TCP, in memory of malloc or of the emulated driver. A call in a stream is a host
 * function of that stream. Reductions are done in rank order, in float, in double for ncclFloat64.
 *
 * It does not have: device communicators, one-sided signals, ncclCommMemStats,
 * ncclCommQueryProperties, ncclGroupSimulateEnd. Of ncclConfig_t it reads magic and blocking, and
 * notes maxCTAs; of ncclCollConfig_t it reads the magic. All unique ids of
 * ncclCommInitRankScalable but the first are ignored. It is strict: what two ranks call must agree
 * in kind, type, operation and size, else the communicator has the error ncclInvalidUsage.
 *
 * STAND_IN_FAIL=NAME:N:CODE   the N-th call of NAME in a process returns CODE and does nothing; -1:
 *                             it stops the process; -2: it takes STAND_IN_PAUSE_MS
 * STAND_IN_TIMEOUT_MS=20000   how long a rank waits for others
 * STAND_IN_WIRE=tcp           communicators of unique ids that are made so, and their children, go
 *                             over TCP; else through memory that is shared
 * STAND_IN_NAME=WORD          begins the names of that memory, behind /dev/shm/stand-in-
 * STAND_IN_ADDRESS=127.0.0.1  where this process listens for others, in IPv4
 * STAND_IN_WAITS=1            as NCCL has it: in a communicator that does not block, the first
 *                             collective of each kind is in progress until all ranks have made it,
 *                             and an abort waits for calls of all communicators of the process
 * STAND_IN_THREADS=1          a call outside of captures runs on a thread of its own, for which its
 *                             stream waits: of a process's host functions CUDA runs one at a time.
 *                             With threads as ranks on a GPU, buffers have to be the host's
 * STAND_IN_DRIVER=symwin      CUDA is what symwin_driver_find() gives, if the program exports that;
 *                             else that of libcuda.so.1 */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdatomic.h>
#include <stddef.h>

#include "nccl/full/names.h"

enum { STAND_IN_PAUSE_MS = 200 };

#define STAND_IN_API __attribute__((visibility("default")))

/* ---- of nccl.h ---- */

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef void *cudaStream_t; /* a CUstream */
typedef struct {
    char internal[128];
} ncclUniqueId;

/* What follows maxCTAs is not read. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    char more[96];
} ncclConfig_t;

/* Of a collective, from NCCL 2.31 on. What follows is not there. */
typedef struct {
    size_t size;
    unsigned magic, version;
    void *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize; /* INT_MIN: not set */
    const char *algSelection;
} ncclCollConfig_t;

typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
    ncclNumResults
} ncclResult_t;

typedef enum {
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
} ncclDataType_t;

typedef enum {
    ncclSum,
    ncclProd,
    ncclMax,
    ncclMin,
    ncclAvg,
    ncclNumOps,
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_WIN_COLL_SYMMETRIC 1
#define NCCL_SHRINK_ABORT 1

STAND_IN_API ncclResult_t ncclGetVersion(int *version);
STAND_IN_API ncclResult_t ncclResetDebugInit(void);
STAND_IN_API const char *ncclGetErrorString(ncclResult_t result);
STAND_IN_API const char *ncclGetLastError(ncclComm_t comm);
STAND_IN_API ncclResult_t ncclGetUniqueId(ncclUniqueId *id);

STAND_IN_API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
STAND_IN_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id,
                                                 int rank, ncclConfig_t *config);
STAND_IN_API ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank,
                                                   int id_count, ncclUniqueId *ids,
                                                   ncclConfig_t *config);
STAND_IN_API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices);
STAND_IN_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                                        ncclConfig_t *config);
STAND_IN_API ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count,
                                         ncclComm_t *child, ncclConfig_t *config, int flags);
STAND_IN_API ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
STAND_IN_API ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank,
                                       ncclComm_t *child, ncclConfig_t *config);
STAND_IN_API ncclResult_t ncclCommFinalize(ncclComm_t comm);
STAND_IN_API ncclResult_t ncclCommDestroy(ncclComm_t comm);
STAND_IN_API ncclResult_t ncclCommAbort(ncclComm_t comm);
STAND_IN_API ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
STAND_IN_API ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
STAND_IN_API ncclResult_t ncclCommResume(ncclComm_t comm);
STAND_IN_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
STAND_IN_API ncclResult_t ncclCommCount(ncclComm_t comm, int *count);
STAND_IN_API ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device);
STAND_IN_API ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);

STAND_IN_API ncclResult_t ncclMemAlloc(void **ptr, size_t size);
STAND_IN_API ncclResult_t ncclMemFree(void *ptr);
STAND_IN_API ncclResult_t ncclCommRegister(ncclComm_t comm, void *ptr, size_t size, void **handle);
STAND_IN_API ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
STAND_IN_API ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *ptr, size_t size,
                                                 ncclWindow_t *window, int flags);
STAND_IN_API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
STAND_IN_API ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **ptr);
STAND_IN_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                                   ncclDataType_t type,
                                                   ncclScalarResidence_t residence,
                                                   ncclComm_t comm);
STAND_IN_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

STAND_IN_API ncclResult_t ncclAllReduce(const void *in, void *out, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                        cudaStream_t stream);
STAND_IN_API ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count,
                                            ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                            cudaStream_t stream);
STAND_IN_API ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, int root, ncclComm_t comm,
                                     cudaStream_t stream);
STAND_IN_API ncclResult_t ncclAllGather(const void *in, void *out, size_t count,
                                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);
STAND_IN_API ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                                       ncclComm_t comm, cudaStream_t stream);
STAND_IN_API ncclResult_t ncclBroadcast(const void *in, void *out, size_t count,
                                        ncclDataType_t type, int root, ncclComm_t comm,
                                        cudaStream_t stream);
STAND_IN_API ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
                                    ncclComm_t comm, cudaStream_t stream);
STAND_IN_API ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type,
                                     int root, ncclComm_t comm, cudaStream_t stream);
STAND_IN_API ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                                      int root, ncclComm_t comm, cudaStream_t stream);
STAND_IN_API ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream);
STAND_IN_API ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream);
#define STAND_IN_CONFIGURED(name, ...)                                                             \
    STAND_IN_API ncclResult_t name(const void *in, void *out, size_t count, ncclDataType_t type,   \
                                   __VA_ARGS__, ncclComm_t comm, cudaStream_t stream,              \
                                   const ncclCollConfig_t *config);
STAND_IN_CONFIGURED(ncclAllReduceConfig, ncclRedOp_t op)
STAND_IN_CONFIGURED(ncclReduceScatterConfig, ncclRedOp_t op)
STAND_IN_CONFIGURED(ncclReduceConfig, ncclRedOp_t op, int root)
STAND_IN_CONFIGURED(ncclBroadcastConfig, int root)
STAND_IN_CONFIGURED(ncclGatherConfig, int root)
STAND_IN_CONFIGURED(ncclScatterConfig, int root)
#undef STAND_IN_CONFIGURED
STAND_IN_API ncclResult_t ncclAllGatherConfig(const void *in, void *out, size_t count,
                                              ncclDataType_t type, ncclComm_t comm,
                                              cudaStream_t stream, const ncclCollConfig_t *config);
STAND_IN_API ncclResult_t ncclAlltoAllConfig(const void *in, void *out, size_t count,
                                             ncclDataType_t type, ncclComm_t comm,
                                             cudaStream_t stream, const ncclCollConfig_t *config);
STAND_IN_API ncclResult_t ncclGroupStart(void);
STAND_IN_API ncclResult_t ncclGroupEnd(void);

/* ---- what it counts ---- */

/* STAND_IN_ncclAllReduce and so on: a function's place in `functions`. */
enum {
#define STAND_IN_NUMBER(name, result) STAND_IN_##name,
    SW_NCCL_NAMES(STAND_IN_NUMBER)
#undef STAND_IN_NUMBER
        STAND_IN_FUNCTIONS
};

/* Of this process. A call counts under either name, with or without a p, also one that fails. */
struct stand_in {
    struct {
        const char *name;
        atomic_uint calls;
    } functions[STAND_IN_FUNCTIONS];
    atomic_int live; /* communicators that were neither destroyed nor aborted */
};

STAND_IN_API const struct stand_in *stand_in(void);

/* What the configuration of a communicator of ncclCommInitRankConfig had; INT_MIN: its default. */
STAND_IN_API int stand_in_max_ctas(ncclComm_t comm);

#endif
