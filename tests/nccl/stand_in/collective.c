/* The stand-in's collectives, sends and receives: their arguments are checked here. */
#include "inside.h"

static ncclResult_t find_premul(const struct call *call, struct premul *premul)
{
    struct ncclComm *comm = call->comm;
    const int at = (int)call->op - ncclNumOps;
    ncclResult_t result = ncclSuccess;

    pthread_mutex_lock(&comm->mutex);
    if (at >= comm->premul_count || !comm->premuls[at].used)
        result = refuse(ncclInvalidArgument, "Reduction operation %d unknown to this communicator",
                        (int)call->op);
    else if (comm->premuls[at].type != call->type)
        result = refuse(ncclInvalidArgument, "Data type supplied to user-created ncclRedOp_t does "
                                             "not match type given to reduction operation");
    else
        *premul = comm->premuls[at];
    pthread_mutex_unlock(&comm->mutex);
    return result;
}

/* Whether this rank reads its input, or writes its output. */
static int takes_in(const struct call *call)
{
    return call->kind != KIND_RECV &&
           ((call->kind != KIND_BROADCAST && call->kind != KIND_SCATTER) ||
            call->root == call->comm->rank);
}

static int gives_out(const struct call *call)
{
    return call->kind != KIND_SEND && ((call->kind != KIND_REDUCE && call->kind != KIND_GATHER) ||
                                       call->root == call->comm->rank);
}

static ncclResult_t check(const struct call *call, const char *function)
{
    const ncclResult_t result = comm_ready(call->comm, function);

    if (result != ncclSuccess)
        return result;
    if (call->root < 0 || call->root >= call->comm->ranks)
        return refuse(ncclInvalidArgument,
                      "%s : invalid root %d (root should be in the 0..%d "
                      "range)",
                      function, call->root, call->comm->ranks);
    if ((unsigned)call->type >= ncclNumTypes)
        return refuse(ncclInvalidArgument, "%s : invalid type %d", function, (int)call->type);
    if ((int)call->op < 0)
        return refuse(ncclInvalidArgument, "%s : invalid reduction operation %d", function,
                      (int)call->op);
    if (call->count > SIZE_MAX / 8 / MOST_RANKS)
        return refuse(ncclInvalidArgument, "%s : invalid count", function);
    if (call->count > 0 &&
        ((takes_in(call) && call->in == NULL) || (gives_out(call) && call->out == NULL)))
        return refuse(ncclInvalidArgument, "%s : a buffer argument is NULL", function);
    return ncclSuccess;
}

/* Sends and receives may be empty; other calls without elements do nothing, as with NCCL. */
static ncclResult_t make(struct call call, const char *function)
{
    ncclResult_t result = check(&call, function);

    if (result == ncclSuccess && call.op >= ncclNumOps) {
        result = find_premul(&call, &call.premul);
        call.op = ncclNumOps;
    }
    if (result != ncclSuccess)
        return group_fault(result);
    if (call.count == 0 && call.kind != KIND_SEND && call.kind != KIND_RECV)
        return ncclSuccess;
    return group_call(&call);
}

/* A call with the parameters that all functions have, and those of `...`. */
#define CALL(kind_of, ...)                                                                         \
    ((struct call){.kind = (kind_of),                                                              \
                   .in = in,                                                                       \
                   .out = out,                                                                     \
                   .count = count,                                                                 \
                   .type = type,                                                                   \
                   .comm = comm,                                                                   \
                   .stream = (CUstream)stream,                                                     \
                   __VA_ARGS__})

EXPORTED(ncclAllReduce,
         (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
          ncclComm_t comm, cudaStream_t stream),
         (in, out, count, type, op, comm, stream))
{
    return make(CALL(KIND_ALL_REDUCE, .op = op), "AllReduce");
}

EXPORTED(ncclReduceScatter,
         (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
          ncclComm_t comm, cudaStream_t stream),
         (in, out, count, type, op, comm, stream))
{
    return make(CALL(KIND_REDUCE_SCATTER, .op = op), "ReduceScatter");
}

EXPORTED(ncclReduce,
         (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
          ncclComm_t comm, cudaStream_t stream),
         (in, out, count, type, op, root, comm, stream))
{
    return make(CALL(KIND_REDUCE, .op = op, .root = root), "Reduce");
}

EXPORTED(ncclAllGather,
         (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
          cudaStream_t stream),
         (in, out, count, type, comm, stream))
{
    return make(CALL(KIND_ALL_GATHER, .root = 0), "AllGather");
}

EXPORTED(ncclAlltoAll,
         (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
          cudaStream_t stream),
         (in, out, count, type, comm, stream))
{
    return make(CALL(KIND_ALL_TO_ALL, .root = 0), "AlltoAll");
}

EXPORTED(ncclBroadcast,
         (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (in, out, count, type, root, comm, stream))
{
    return make(CALL(KIND_BROADCAST, .root = root), "Broadcast");
}

EXPORTED(ncclBcast,
         (void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (out, count, type, root, comm, stream))
{
    const void *in = out;

    return make(CALL(KIND_BROADCAST, .root = root), "Bcast");
}

EXPORTED(ncclGather,
         (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (in, out, count, type, root, comm, stream))
{
    return make(CALL(KIND_GATHER, .root = root), "Gather");
}

EXPORTED(ncclScatter,
         (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (in, out, count, type, root, comm, stream))
{
    return make(CALL(KIND_SCATTER, .root = root), "Scatter");
}

EXPORTED(ncclSend,
         (const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
          cudaStream_t stream),
         (in, count, type, peer, comm, stream))
{
    void *out = NULL;

    return make(CALL(KIND_SEND, .root = peer), "Send");
}

EXPORTED(ncclRecv,
         (void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
          cudaStream_t stream),
         (out, count, type, peer, comm, stream))
{
    const void *in = NULL;

    return make(CALL(KIND_RECV, .root = peer), "Recv");
}
