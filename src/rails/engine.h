/* The engine between domains: NCCL, which is found at run time. Types and values are those of
 * nccl.h 2.18 to 2.31, in which they are the same. */
#ifndef SYMWIN_ENGINE_H
#define SYMWIN_ENGINE_H

#include "src/base/base.h"

struct ncclComm;
typedef struct sw_engine_id {
    char bytes[128];
} sw_engine_id;

enum sw_engine_result { SW_ENGINE_OK = 0, SW_ENGINE_REMOTE_ERROR = 6, SW_ENGINE_IN_PROGRESS = 7 };

/* What ncclConfig_t begins with; NCCL reads as many bytes as `size` says. INT_MIN: its default. */
struct sw_engine_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
};
_Static_assert(sizeof(struct sw_engine_config) == 32, "NCCL reads no padding");

/* X(member, name, parameters) */
#define SW_ENGINE_LIST(X)                                                                          \
    X(get_version, "ncclGetVersion", (int *version))                                               \
    X(get_id, "ncclGetUniqueId", (sw_engine_id * id))                                              \
    X(init, "ncclCommInitRankConfig",                                                              \
      (struct ncclComm * *comm, int ranks, sw_engine_id id, int rank,                              \
       struct sw_engine_config *config))                                                           \
    X(finalize, "ncclCommFinalize", (struct ncclComm * comm))                                      \
    X(destroy, "ncclCommDestroy", (struct ncclComm * comm))                                        \
    X(abort, "ncclCommAbort", (struct ncclComm * comm))                                            \
    X(get_state, "ncclCommGetAsyncError", (struct ncclComm * comm, int *state))                    \
    X(group_start, "ncclGroupStart", (void))                                                       \
    X(group_end, "ncclGroupEnd", (void))                                                           \
    X(all_reduce, "ncclAllReduce",                                                                 \
      (const void *in, void *out, size_t count, int type, int op, struct ncclComm *comm,           \
       struct CUstream_st *stream))                                                                \
    X(all_gather, "ncclAllGather",                                                                 \
      (const void *in, void *out, size_t count, int type, struct ncclComm *comm,                   \
       struct CUstream_st *stream))                                                                \
    X(reduce_scatter, "ncclReduceScatter",                                                         \
      (const void *in, void *out, size_t count, int type, int op, struct ncclComm *comm,           \
       struct CUstream_st *stream))                                                                \
    X(reduce, "ncclReduce",                                                                        \
      (const void *in, void *out, size_t count, int type, int op, int root, struct ncclComm *comm, \
       struct CUstream_st *stream))                                                                \
    X(broadcast, "ncclBroadcast",                                                                  \
      (const void *in, void *out, size_t count, int type, int root, struct ncclComm *comm,         \
       struct CUstream_st *stream))                                                                \
    X(send, "ncclSend",                                                                            \
      (const void *in, size_t count, int type, int peer, struct ncclComm *comm,                    \
       struct CUstream_st *stream))                                                                \
    X(recv, "ncclRecv",                                                                            \
      (void *out, size_t count, int type, int peer, struct ncclComm *comm,                         \
       struct CUstream_st *stream))

#define SW_ENGINE_MEMBER(member, name, params) int(*member) params;
struct sw_engine {
    SW_ENGINE_LIST(SW_ENGINE_MEMBER)
    const char *(*text_of)(int result);
    const char *(*last_text)(struct ncclComm *comm);
    int version; /* 22809: 2.28.9 */
};
#undef SW_ENGINE_MEMBER

/* Loads NCCL: the library that SYMWIN_NCCL names, or libnccl.so.2, which the process may have
 * loaded already. It stays loaded. Any thread. SYMWIN_UNSUPPORTED: there is none, or it lacks a
 * function; the sentence names it. */
symwin_status sw_engine_load(const char *call, const struct sw_engine **engine);

enum { SW_ENGINE_LEAST = 21800, SW_ENGINE_FP8 = 22400, SW_ENGINE_BYTES = 1 /* ncclUint8 */ };

/* NCCL's numbers. What only moves goes as SW_ENGINE_BYTES. */
int sw_engine_type(symwin_type type);
int sw_engine_op(symwin_op op); /* -1: it has none: pre-multiplied sums */

#endif
