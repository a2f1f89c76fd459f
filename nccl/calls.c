/* The collectives, sends and receives: each goes to symwin or on to NCCL, at once or with its
 * group. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/calls.h"

/* ---- on to NCCL ---- */

#define PASS(name, ...) SW_PASS(c, name, (__VA_ARGS__))

static ncclResult_t pass_configured(const struct sw_call *c)
{
    switch (c->kind) {
    case SW_ALL_REDUCE:
        return PASS(ncclAllReduceConfig, c->in, c->out, c->count, c->type, c->op, c->handle,
                    c->stream, c->config);
    case SW_REDUCE_SCATTER:
        return PASS(ncclReduceScatterConfig, c->in, c->out, c->count, c->type, c->op, c->handle,
                    c->stream, c->config);
    case SW_ALL_GATHER:
        return PASS(ncclAllGatherConfig, c->in, c->out, c->count, c->type, c->handle, c->stream,
                    c->config);
    case SW_ALL_TO_ALL:
        return PASS(ncclAlltoAllConfig, c->in, c->out, c->count, c->type, c->handle, c->stream,
                    c->config);
    case SW_BROADCAST:
        return PASS(ncclBroadcastConfig, c->in, c->out, c->count, c->type, c->root, c->handle,
                    c->stream, c->config);
    case SW_REDUCE:
        return PASS(ncclReduceConfig, c->in, c->out, c->count, c->type, c->op, c->root, c->handle,
                    c->stream, c->config);
    case SW_GATHER:
        return PASS(ncclGatherConfig, c->in, c->out, c->count, c->type, c->root, c->handle,
                    c->stream, c->config);
    case SW_SCATTER:
        return PASS(ncclScatterConfig, c->in, c->out, c->count, c->type, c->root, c->handle,
                    c->stream, c->config);
    default:
        return ncclInternalError;
    }
}

ncclResult_t sw_call_pass(const struct sw_call *c)
{
    if (c->has_config)
        return pass_configured(c);
    switch (c->kind) {
    case SW_ALL_REDUCE:
        return PASS(ncclAllReduce, c->in, c->out, c->count, c->type, c->op, c->handle, c->stream);
    case SW_REDUCE_SCATTER:
        return PASS(ncclReduceScatter, c->in, c->out, c->count, c->type, c->op, c->handle,
                    c->stream);
    case SW_ALL_GATHER:
        return PASS(ncclAllGather, c->in, c->out, c->count, c->type, c->handle, c->stream);
    case SW_ALL_TO_ALL:
        return PASS(ncclAlltoAll, c->in, c->out, c->count, c->type, c->handle, c->stream);
    case SW_BROADCAST:
        if (c->in_one_buffer)
            return PASS(ncclBcast, c->out, c->count, c->type, c->root, c->handle, c->stream);
        return PASS(ncclBroadcast, c->in, c->out, c->count, c->type, c->root, c->handle, c->stream);
    case SW_REDUCE:
        return PASS(ncclReduce, c->in, c->out, c->count, c->type, c->op, c->root, c->handle,
                    c->stream);
    case SW_GATHER:
        return PASS(ncclGather, c->in, c->out, c->count, c->type, c->root, c->handle, c->stream);
    case SW_SCATTER:
        return PASS(ncclScatter, c->in, c->out, c->count, c->type, c->root, c->handle, c->stream);
    case SW_SEND:
        return PASS(ncclSend, c->in, c->count, c->type, c->root, c->handle, c->stream);
    case SW_RECV:
        return PASS(ncclRecv, c->out, c->count, c->type, c->root, c->handle, c->stream);
    case SW_KINDS:
        break;
    }
    return ncclInternalError;
}

/* ---- whose it is ---- */

static int reduces(enum sw_kind kind)
{
    return kind == SW_ALL_REDUCE || kind == SW_REDUCE_SCATTER || kind == SW_REDUCE;
}

static int has_root(enum sw_kind kind)
{
    return kind == SW_BROADCAST || kind == SW_REDUCE || kind == SW_GATHER || kind == SW_SCATTER ||
           kind == SW_SEND || kind == SW_RECV;
}

static const struct sw_nccl_op *find_op(const struct sw_call *call)
{
    const struct sw_nccl_op *op = call->comm->ops;

    while (op != NULL && op->op != call->op)
        op = op->next;
    return op;
}

/* Reads a pre-multiplied sum too: in a group it may be gone when the call is launched. */
static int read_op(struct sw_call *call)
{
    const struct sw_nccl_op *op;

    if (!reduces(call->kind) || (call->op >= 0 && call->op < ncclNumOps))
        return 1;
    op = find_op(call);
    if (op == NULL || op->type != call->type)
        return 0;
    call->scalar_on_device = op->scalar != NULL;
    if (call->scalar_on_device)
        call->scalar.at = op->scalar;
    else
        memcpy(call->scalar.value, op->value, sizeof op->value);
    return 1;
}

/* The tag for profilers, which comes after these, decides nothing. */
static int asks_for_more(const ncclCollConfig_t *config)
{
    return config != NULL && (config->size < sizeof *config || config->ext != NULL ||
                              config->minCTAs != INT_MIN || config->maxCTAs != INT_MIN ||
                              config->nvlsCTAs != INT_MIN || config->cgaClusterSize != INT_MIN ||
                              (config->algSelection != NULL && config->algSelection[0] != '\0'));
}

static int is_integer(ncclDataType_t type)
{
    return type == ncclInt8 || type == ncclUint8 || type == ncclInt32 || type == ncclUint32 ||
           type == ncclInt64 || type == ncclUint64;
}

int sw_call_averages_integers(const struct sw_call *call)
{
    return reduces(call->kind) && call->op == ncclAvg && is_integer(call->type);
}

/* What NCCL refuses is passed on, so that it says why. Not an all-to-all in place, which NCCL does
 * not refuse: one rank may be in place alone. */
void sw_call_sort(struct sw_call *call)
{
    call->sort = SW_PLAIN_CALL;
    if (sw_type_bytes(call->type) == 0 || !read_op(call) ||
        (has_root(call->kind) && (call->root < 0 || call->root >= call->comm->ranks)))
        call->sort = SW_WRONG;
    else if (call->count == 0 && !sw_is_pair(call))
        call->sort = SW_EMPTY;
    else if (asks_for_more(call->config))
        call->sort = SW_CONFIGURED;
    call->class = sw_serve_class(call->comm, call->kind, call->count, call->type);
}

/* ---- to symwin ---- */

static const symwin_op ops[ncclNumOps] = {[ncclSum] = SYMWIN_SUM,
                                          [ncclProd] = SYMWIN_PROD,
                                          [ncclMax] = SYMWIN_MAX,
                                          [ncclMin] = SYMWIN_MIN,
                                          [ncclAvg] = SYMWIN_AVG};

static symwin_status serve(const struct sw_call *c, symwin_comm *comm, cudaStream_t stream)
{
    /* What only moves is bytes, as NCCL has it: at any address, and a message's two ends may have
     * other types. */
    const symwin_type type = reduces(c->kind) ? sw_type_of(c->type) : SYMWIN_U8;
    const size_t count = reduces(c->kind) ? c->count : c->count * sw_type_bytes(c->type);
    const int premul = reduces(c->kind) && c->op >= ncclNumOps;
    const symwin_op op = premul || !reduces(c->kind) ? SYMWIN_PREMUL_SUM : ops[c->op];
    const symwin_collective_options *options = NULL;
    symwin_collective_options with;

    if (premul) {
        options = &with;
        with = (symwin_collective_options){.size = sizeof with};
        with.scalar = c->scalar_on_device ? c->scalar.at : c->scalar.value;
        with.scalar_on_device = c->scalar_on_device;
    }
    switch (c->kind) {
    case SW_ALL_REDUCE:
        return symwin_allreduce_with(comm, c->in, c->out, count, type, op, options, stream);
    case SW_REDUCE_SCATTER:
        return symwin_reduce_scatter_with(comm, c->in, c->out, count, type, op, options, stream);
    case SW_REDUCE:
        return symwin_reduce_with(comm, c->in, c->out, count, type, op, c->root, options, stream);
    case SW_ALL_GATHER:
        return symwin_allgather_with(comm, c->in, c->out, count, type, options, stream);
    case SW_ALL_TO_ALL:
        return symwin_alltoall_with(comm, c->in, c->out, count, type, options, stream);
    case SW_BROADCAST:
        return symwin_broadcast_with(comm, c->in, c->out, count, type, c->root, options, stream);
    case SW_GATHER:
        return symwin_gather_with(comm, c->in, c->out, count, type, c->root, options, stream);
    case SW_SCATTER:
        return symwin_scatter_with(comm, c->in, c->out, count, type, c->root, options, stream);
    case SW_SEND:
        return symwin_send_with(comm, c->in, count, type, c->root, options, stream);
    case SW_RECV:
        return symwin_recv_with(comm, c->out, count, type, c->root, options, stream);
    case SW_KINDS:
        break;
    }
    return SYMWIN_INVALID;
}

ncclResult_t sw_call_serve(const struct sw_call *call, cudaStream_t stream)
{
    symwin_comm *comm = atomic_load_explicit(&call->comm->symwin, memory_order_relaxed);
    const symwin_status status = serve(call, comm, stream);

    return status == SYMWIN_OK ? ncclSuccess : sw_error_of(status);
}

void sw_call_is_lost(struct sw_comm *comm, ncclResult_t result)
{
    symwin_comm *symwin = atomic_load(&comm->symwin);
    int none = ncclSuccess;

    (void)atomic_compare_exchange_strong(&comm->failed, &none, (int)result);
    if (symwin != NULL)
        (void)symwin_comm_abort(symwin);
}

/* ---- a call ---- */

static int begins_later(struct sw_call *call);

/* Around what a thread of this library's (`later` is NULL) has NCCL do: the program may abort the
 * communicator meanwhile. */
static int may_ask(struct sw_comm *comm, const int *later)
{
    return later != NULL || sw_meet_ask(comm) != NULL;
}

static ncclResult_t has_asked(struct sw_comm *comm, const int *later, ncclResult_t result)
{
    if (later == NULL)
        sw_meet_has_asked(comm);
    return result;
}

/* The ranks agree at their first collective, and may find then that symwin serves more than rank 0
 * knew: they meet once more. *later: a thread has the call, and the reference to its communicator;
 * NULL: this is that thread. */
static ncclResult_t alone(struct sw_call *call, int *later)
{
    struct sw_comm *comm = call->comm;
    int ours, meetings = 0;
    ncclResult_t result;

    sw_call_sort(call);
    while (sw_call_may_meet(call) && sw_attach_is_due(comm) && meetings++ < 2) {
        comm->meets_for = (CUstream)call->stream;
        result = has_asked(comm, later,
                           may_ask(comm, later) ? sw_attach_begin(comm) : sw_meet_was_aborted());
        if (result == ncclInProgress && later != NULL && (*later = begins_later(call)) != 0)
            return result;
        if (result == ncclSuccess || result == ncclInProgress)
            result = sw_attach_end(comm);
        if (result != ncclSuccess)
            return result;
    }
    ours = sw_call_is_ours(call) &&
           atomic_load_explicit(&comm->symwin, memory_order_relaxed) != NULL;
    call->server = ours ? SW_OURS : SW_NCCLS;
    sw_order_before(call, call->server);
    if (ours)
        result = sw_call_serve(call, call->stream);
    else
        result = has_asked(comm, later,
                           may_ask(comm, later) ? sw_error_is_nccls(sw_call_pass(call))
                                                : sw_meet_was_aborted());
    if (result == ncclSuccess || result == ncclInProgress) {
        sw_order_after(call, call->server, result);
        sw_report_call(call);
    } else if (ours) {
        sw_call_is_lost(comm, result);
    }
    return result;
}

/* ---- a call that waits for ranks, of a communicator that does not block ---- */

static void *later_main(void *data)
{
    struct sw_call *call = data;
    struct sw_comm *comm = call->comm;
    struct sw_comm_scope scope;
    ncclResult_t result = sw_attach_end(comm);

    if (result == ncclSuccess && !sw_comm_scope_enter(comm, &scope)) {
        result = sw_error(ncclUnhandledCudaError, "symwin: device %d has no context", comm->device);
    } else if (result == ncclSuccess) {
        result = alone(call, NULL);
        sw_comm_scope_leave(&scope);
    }
    atomic_store(&comm->later, result == ncclInProgress ? ncclSuccess : result);
    atomic_store(&comm->is_later, 0);
    sw_comm_leave(comm);
    free(call);
    return NULL;
}

/* Whether a thread has it now. Not if that thread could not do the same: the operation may be
 * destroyed after the call, a capture goes on in the thread that has begun it, and each thread has
 * a default stream of its own. */
static int begins_later(struct sw_call *call)
{
    struct sw_call *copy;

    if ((call->has_config && call->config != NULL) || call->op >= ncclNumOps ||
        (CUstream)call->stream == CU_STREAM_PER_THREAD || sw_order_is_captured(call->stream) ||
        (copy = malloc(sizeof *copy)) == NULL)
        return 0;
    *copy = *call;
    atomic_store(&call->comm->is_later, 1);
    if (sw_comm_begin_thread(NULL, later_main, copy))
        return 1;
    atomic_store(&call->comm->is_later, 0);
    free(copy);
    return 0;
}

ncclResult_t sw_call_refuse_later(void)
{
    return sw_error(ncclInvalidArgument,
                    "symwin: the call before this one is in progress; wait until "
                    "ncclCommGetAsyncError gives ncclSuccess");
}

/* ---- any call ---- */

static ncclResult_t pass(struct sw_call *call)
{
    const ncclResult_t result = sw_error_is_nccls(sw_call_pass(call));

    if (call->comm != NULL && result == ncclSuccess) {
        call->comm->passed = 1;
        call->server = SW_NCCLS;
        sw_report_call(call);
    }
    return result;
}

/* Where the call is written: in the group that is open, if any, or in `room`. */
static struct sw_call *begin(const struct sw_from *from, struct group **g, struct sw_call *room)
{
    struct sw_call *call;

    *g = from->inside ? NULL : sw_group_of(from->library);
    call = *g != NULL ? sw_group_next(*g) : NULL;
    return call != NULL ? call : room;
}

static ncclResult_t run(const struct sw_from *from, struct group *g, struct sw_call *call)
{
    struct sw_comm *comm = g != NULL ? sw_group_comm(g, call->handle) : NULL;
    ncclResult_t result = ncclSuccess;
    int kept = comm != NULL; /* by the group, or a thread that has the call */
    int state;

    call->comm = comm;
    if (comm == NULL && !from->inside)
        result = sw_comm_get(call->handle, from->caller, &call->comm);
    comm = call->comm;
    state = comm != NULL ? atomic_load(&comm->state) : SW_REFUSED;
    if (result != ncclSuccess) {
        (void)sw_group_fail(from->library, result);
    } else if (comm != NULL && atomic_load(&comm->is_later)) {
        result = sw_group_fail(from->library, sw_call_refuse_later());
    } else if (comm == NULL || (state != SW_BORN && state != SW_ATTACHED) ||
               atomic_load(&comm->stop)) {
        result = pass(call);
        if (g != NULL)
            result = sw_group_has_passed(g, call, result);
    } else if (g == NULL) {
        result = alone(call, &kept);
    } else {
        sw_call_sort(call);
        if (call->sort == SW_CONFIGURED)
            sw_order_before(call, SW_NCCLS);
        result = call->sort == SW_PLAIN_CALL ? sw_group_add(g, call)
                                             : sw_group_has_passed(g, call, pass(call));
    }
    if (!kept)
        sw_comm_leave(comm);
    return result;
}

/* ---- exported functions ---- */

#define CALL(...)                                                                                  \
    __extension__({                                                                                \
        struct sw_call room, *call;                                                                \
        struct group *g;                                                                           \
                                                                                                   \
        call = begin(from, &g, &room);                                                             \
        *call = (struct sw_call){                                                                  \
            .symbol = from->symbol, .handle = comm, .stream = stream, __VA_ARGS__};                \
        run(from, g, call);                                                                        \
    })
#define BUFFERS .in = in, .out = out, .count = count, .type = type
#define CONFIG .config = config, .has_config = 1

SW_DEFINE(ncclAllReduce,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
           ncclComm_t comm, cudaStream_t stream),
          (in, out, count, type, op, comm, stream))
{
    return CALL(.kind = SW_ALL_REDUCE, BUFFERS, .op = op);
}

SW_DEFINE(ncclAllReduceConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
           ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, op, comm, stream, config))
{
    return CALL(.kind = SW_ALL_REDUCE, BUFFERS, .op = op, CONFIG);
}

SW_DEFINE(ncclReduceScatter,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
           ncclComm_t comm, cudaStream_t stream),
          (in, out, count, type, op, comm, stream))
{
    return CALL(.kind = SW_REDUCE_SCATTER, BUFFERS, .op = op);
}

SW_DEFINE(ncclReduceScatterConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
           ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, op, comm, stream, config))
{
    return CALL(.kind = SW_REDUCE_SCATTER, BUFFERS, .op = op, CONFIG);
}

SW_DEFINE(ncclReduce,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
           ncclComm_t comm, cudaStream_t stream),
          (in, out, count, type, op, root, comm, stream))
{
    return CALL(.kind = SW_REDUCE, BUFFERS, .op = op, .root = root);
}

SW_DEFINE(ncclReduceConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
           ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, op, root, comm, stream, config))
{
    return CALL(.kind = SW_REDUCE, BUFFERS, .op = op, .root = root, CONFIG);
}

SW_DEFINE(ncclAllGather,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
           cudaStream_t stream),
          (in, out, count, type, comm, stream))
{
    return CALL(.kind = SW_ALL_GATHER, BUFFERS);
}

SW_DEFINE(ncclAllGatherConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
           cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, comm, stream, config))
{
    return CALL(.kind = SW_ALL_GATHER, BUFFERS, CONFIG);
}

SW_DEFINE(ncclAlltoAll,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
           cudaStream_t stream),
          (in, out, count, type, comm, stream))
{
    return CALL(.kind = SW_ALL_TO_ALL, BUFFERS);
}

SW_DEFINE(ncclAlltoAllConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
           cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, comm, stream, config))
{
    return CALL(.kind = SW_ALL_TO_ALL, BUFFERS, CONFIG);
}

SW_DEFINE(ncclBroadcast,
          (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream),
          (in, out, count, type, root, comm, stream))
{
    return CALL(.kind = SW_BROADCAST, BUFFERS, .root = root);
}

SW_DEFINE(ncclBroadcastConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, root, comm, stream, config))
{
    return CALL(.kind = SW_BROADCAST, BUFFERS, .root = root, CONFIG);
}

SW_DEFINE(ncclBcast,
          (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream),
          (buffer, count, type, root, comm, stream))
{
    return CALL(.kind = SW_BROADCAST, .in_one_buffer = 1, .in = buffer, .out = buffer,
                .count = count, .type = type, .root = root);
}

SW_DEFINE(ncclGather,
          (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream),
          (in, out, count, type, root, comm, stream))
{
    return CALL(.kind = SW_GATHER, BUFFERS, .root = root);
}

SW_DEFINE(ncclGatherConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, root, comm, stream, config))
{
    return CALL(.kind = SW_GATHER, BUFFERS, .root = root, CONFIG);
}

SW_DEFINE(ncclScatter,
          (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream),
          (in, out, count, type, root, comm, stream))
{
    return CALL(.kind = SW_SCATTER, BUFFERS, .root = root);
}

SW_DEFINE(ncclScatterConfig,
          (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
           cudaStream_t stream, const ncclCollConfig_t *config),
          (in, out, count, type, root, comm, stream, config))
{
    return CALL(.kind = SW_SCATTER, BUFFERS, .root = root, CONFIG);
}

SW_DEFINE(ncclSend,
          (const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
           cudaStream_t stream),
          (in, count, type, peer, comm, stream))
{
    return CALL(.kind = SW_SEND, .in = in, .count = count, .type = type, .root = peer);
}

SW_DEFINE(ncclRecv,
          (void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
           cudaStream_t stream),
          (out, count, type, peer, comm, stream))
{
    return CALL(.kind = SW_RECV, .out = out, .count = count, .type = type, .root = peer);
}
