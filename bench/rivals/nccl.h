/* NCCL, loaded by dlopen: the part of nccl.h that the benchmarks use, with NCCL's names and values.
 * A program includes this in one file. */
#ifndef SYMWIN_RIVALS_NCCL_H
#define SYMWIN_RIVALS_NCCL_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char internal[128];
} nccl_unique_id;

enum { NCCL_WIN_COLL_SYMMETRIC = 1, NCCL_SCALAR_HOST_IMMEDIATE = 1 };

struct CUstream_st;

/* X(result, name, parameters). Communicators, windows and handles are pointers to something. */
#define NCCL_LIST(X)                                                                               \
    X(int, ncclGetVersion, (int *version))                                                         \
    X(int, ncclGetUniqueId, (nccl_unique_id * id))                                                 \
    X(int, ncclCommInitRank, (void **comm, int nranks, nccl_unique_id id, int rank))               \
    X(int, ncclCommDestroy, (void *comm))                                                          \
    X(const char *, ncclGetErrorString, (int result))                                              \
    X(const char *, ncclGetLastError, (void *comm))                                                \
    X(int, ncclMemAlloc, (void **ptr, size_t bytes))                                               \
    X(int, ncclMemFree, (void *ptr))                                                               \
    X(int, ncclCommWindowRegister, (void *comm, void *ptr, size_t bytes, void **win, int flags))   \
    X(int, ncclCommWindowDeregister, (void *comm, void *win))                                      \
    X(int, ncclCommRegister, (void *comm, void *ptr, size_t bytes, void **handle))                 \
    X(int, ncclCommDeregister, (void *comm, void *handle))                                         \
    X(int, ncclAllReduce,                                                                          \
      (const void *in, void *out, size_t count, int type, int op, void *comm,                      \
       struct CUstream_st *stream))                                                                \
    X(int, ncclAllGather,                                                                          \
      (const void *in, void *out, size_t count, int type, void *comm, struct CUstream_st *stream)) \
    X(int, ncclReduceScatter,                                                                      \
      (const void *in, void *out, size_t count, int type, int op, void *comm,                      \
       struct CUstream_st *stream))                                                                \
    X(int, ncclBroadcast,                                                                          \
      (const void *in, void *out, size_t count, int type, int root, void *comm,                    \
       struct CUstream_st *stream))                                                                \
    X(int, ncclReduce,                                                                             \
      (const void *in, void *out, size_t count, int type, int op, int root, void *comm,            \
       struct CUstream_st *stream))                                                                \
    X(int, ncclRedOpCreatePreMulSum, (int *op, void *scalar, int type, int residence, void *comm)) \
    X(int, ncclRedOpDestroy, (int op, void *comm))                                                 \
    X(int, ncclGroupStart, (void))                                                                 \
    X(int, ncclGroupEnd, (void))                                                                   \
    X(int, ncclSend,                                                                               \
      (const void *in, size_t count, int type, int peer, void *comm, struct CUstream_st *stream))  \
    X(int, ncclRecv,                                                                               \
      (void *out, size_t count, int type, int peer, void *comm, struct CUstream_st *stream))

/* NULL before 2.28. */
#define NCCL_NEWER_LIST(X)                                                                         \
    X(int, ncclAlltoAll,                                                                           \
      (const void *in, void *out, size_t count, int type, void *comm, struct CUstream_st *stream)) \
    X(int, ncclGather,                                                                             \
      (const void *in, void *out, size_t count, int type, int root, void *comm,                    \
       struct CUstream_st *stream))                                                                \
    X(int, ncclScatter,                                                                            \
      (const void *in, void *out, size_t count, int type, int root, void *comm,                    \
       struct CUstream_st *stream))

#define NCCL_MEMBER(result, name, params) result(*name) params;
static struct {
    NCCL_LIST(NCCL_MEMBER)
    NCCL_NEWER_LIST(NCCL_MEMBER)
} nccl;

/* NULL: there is none; dlerror() says why. */
static inline void *nccl_open(void)
{
    const char *path = getenv("SYMWIN_NCCL");

    return dlopen(path != NULL && path[0] != '\0' ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
}

/* Fills in `nccl`. Returns the first function of NCCL_LIST that the library lacks; NULL: none. */
static inline const char *nccl_find(void *library)
{
#define NCCL_NAME(result, name, params) #name,
#define NCCL_ONE(result, name, params) +1
    static const char *const names[] = {NCCL_LIST(NCCL_NAME) NCCL_NEWER_LIST(NCCL_NAME)};
    const size_t needed = 0 NCCL_LIST(NCCL_ONE);
    const char *missing = NULL;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(library, names[i]);

        if (symbol == NULL && missing == NULL && i < needed)
            missing = names[i];
        memcpy((unsigned char *)&nccl + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return missing;
}

#endif
