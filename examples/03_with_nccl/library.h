/* The functions of NCCL and the CUDA driver that this program uses, loaded at run time, so it
 * builds without either. Names and values are those of nccl.h and cuda.h. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow *ncclWindow_t;
typedef struct CUstream_st *CUstream;
typedef struct CUctx_st *CUcontext;
typedef struct {
    char internal[128];
} ncclUniqueId;

enum { ncclSuccess = 0, ncclFloat = 7, ncclSum = 0, NCCL_WIN_COLL_SYMMETRIC = 1 };
enum { CU_STREAM_NON_BLOCKING = 1 };

/* X(name, parameters) */
#define NCCL_LIST(X)                                                                               \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclGetUniqueId, (ncclUniqueId * id))                                                        \
    X(ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))                \
    X(ncclCommDestroy, (ncclComm_t comm))                                                          \
    X(ncclMemAlloc, (void **ptr, size_t bytes))                                                    \
    X(ncclMemFree, (void *ptr))                                                                    \
    X(ncclCommRegister, (ncclComm_t comm, void *ptr, size_t bytes, void **handle))                 \
    X(ncclCommDeregister, (ncclComm_t comm, void *handle))                                         \
    X(ncclCommWindowRegister,                                                                      \
      (ncclComm_t comm, void *ptr, size_t bytes, ncclWindow_t *window, int flags))                 \
    X(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))                            \
    X(ncclAllReduce, (const void *in, void *out, size_t count, int type, int op, ncclComm_t comm,  \
                      CUstream stream))

/* X(name, version of the function, parameters) */
#define CUDA_LIST(X)                                                                               \
    X(cuInit, 2000, (unsigned flags))                                                              \
    X(cuDeviceGetCount, 2000, (int *count))                                                        \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, int device))                           \
    X(cuCtxSetCurrent, 4000, (CUcontext context))                                                  \
    X(cuStreamCreate, 2000, (CUstream * stream, unsigned flags))                                   \
    X(cuStreamDestroy, 4000, (CUstream stream))                                                    \
    X(cuStreamSynchronize, 2000, (CUstream stream))                                                \
    X(cuMemcpyAsync, 4000, (uint64_t to, uint64_t from, size_t bytes, CUstream stream))

struct library {
#define NCCL_MEMBER(name, params) int(*name) params;
    NCCL_LIST(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*ncclGetErrorString)(int result);
#define CUDA_MEMBER(name, version, params) int(*name) params;
    CUDA_LIST(CUDA_MEMBER)
#undef CUDA_MEMBER
    int version; /* NCCL's version */
    int devices;
};

extern struct library lib;

/* Loads both and counts the GPUs. Returns 0 if one of them is missing, with the reason in `why`. */
int library_load(char *why, size_t bytes);

/* Whose memory an address from ncclMemAlloc() is: "symwin" or "NCCL". */
const char *library_owner(const void *ptr);

#endif
