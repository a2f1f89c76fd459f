/* Collectives: checks the arguments of a call and launches it. The algorithm and the grid are
 * selected in select.c; order.c finds the calls that must come before.
 *
 * A kernel may begin while the kernel ahead of it in the stream is ending (programmatic stream
 * serialization), and waits for that end before it accesses memory. This hides the cost of a
 * launch. Launches through a graph (graph_launch.c) cannot do this, and order.c decides when other
 * launches may.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "src/collective/order.h"
#include "src/collective/select.h"

/* ---- the arguments ---- */

struct call {
    const struct sw_collective *collective;
    CUdeviceptr in, out;
    uint64_t count;
    symwin_algo algo;
    struct sw_grid asked; /* 0: no request */
    CUstream stream;
    size_t in_bytes, out_bytes;
    struct sw_buffer buffers[2]; /* in and out */
    size_t in_offset, out_offset;
    struct sw_query query; /* what the plan depends on */
};

/* One buffer: in a window, or any other device memory of this rank. */
static symwin_status check_buffer(const struct call *c, const char *which, size_t bytes,
                                  struct sw_buffer *buffer)
{
    const char *call = c->collective->call;
    const symwin_type type = c->query.type;
    const size_t element = symwin_type_bytes(type);
    const CUdeviceptr address = buffer->address;
    struct sw_window_index_entry *entry = &buffer->entry;
    enum sw_found found;
    symwin_status status = SYMWIN_OK;

    if (address == 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, which);
    found = sw_window_index_find(c->query.comm->index, (uintptr_t)address, bytes, entry);
    buffer->in_window = found == SW_FOUND_ALL;
    if (!buffer->in_window)
        buffer->found = sw_registered_find(c->query.comm, (uintptr_t)address, bytes, entry);
    buffer->is_known = buffer->in_window || buffer->found != SW_FOUND_NONE;
    if (!buffer->is_known && found == SW_FOUND_PART)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %llu elements (%zu bytes) at %s pass the end of its window, which has "
                       "%zu bytes from there",
                       call, (unsigned long long)(bytes / element), bytes, which,
                       (size_t)(entry->end - (uintptr_t)address));
    if (!buffer->is_known)
        status = sw_comm_check_device(c->query.comm, call, which, address, -1);
    buffer->is_known = status != SYMWIN_INVALID;
    if (status == SYMWIN_OK && address % element != 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is 0x%llx, which is not aligned to %s's %zu bytes",
                       call, which, address, symwin_type_name(type), element);
    return status;
}

/* Whether the buffer is in a window of all ranks. */
static int is_in_window(const struct sw_buffer *b)
{
    return b->in_window || (b->found == SW_FOUND_ALL && b->entry.transports != 0);
}

/* Whether a rank's own part of the larger buffer is the smaller buffer, or both are equal. */
static int is_in_place(const struct call *c, uint64_t in, uint64_t out)
{
    const uint64_t own = (uint64_t)c->query.comm->rank * c->query.bytes;

    if (c->collective->in_each == c->collective->out_each)
        return in == out;
    return c->collective->out_each ? in == out + own : out == in + own;
}

static int overlap(const struct call *c, uint64_t in, uint64_t out)
{
    return in < out + c->out_bytes && out < in + c->in_bytes;
}

static int overlap_in_part(const struct call *c, uint64_t in, uint64_t out)
{
    return overlap(c, in, out) && !is_in_place(c, in, out);
}

/* Whether the two windows, which are independent, show the same memory at overlapping addresses.
 * Windows on several allocations are not checked. */
static int overlap_in_memory(const struct call *c, const struct sw_window_index_entry *in,
                             const struct sw_window_index_entry *out)
{
    const uint64_t from = in->within + (c->in - in->begin);
    const uint64_t to = out->within + (c->out - out->begin);
    const int in_place = c->query.windows ? is_in_place(c, c->in_offset, c->out_offset)
                                          : is_in_place(c, from, to);

    return in->memory != 0 && in->memory == out->memory && !in_place && overlap(c, from, to);
}

/* What to pass instead of buffers that overlap. */
static symwin_status refuse_overlap(const struct call *c, const char *how)
{
    const struct sw_collective *is = c->collective;
    char advice[96] = "pass the same buffer or two that do not touch";

    if (is->in_each != is->out_each)
        snprintf(advice, sizeof advice, "in place, %s is %s + rank * count elements (0x%llx)",
                 is->out_each ? "in" : "out", is->out_each ? "out" : "in",
                 (is->out_each ? c->out : c->in) +
                     (CUdeviceptr)c->query.comm->rank * c->query.bytes);
    return sw_fail(SYMWIN_INVALID, "%s: in (0x%llx) and out (0x%llx) %s; %s", is->call, c->in,
                   c->out, how, advice);
}

/* Uses the offsets in the flat range if both buffers are in windows. */
static symwin_status place_buffers(struct call *c)
{
    const struct sw_window_index_entry *in = &c->buffers[0].entry, *out = &c->buffers[1].entry;
    struct sw_query *q = &c->query;

    const int in_windows = is_in_window(&c->buffers[0]) && is_in_window(&c->buffers[1]);

    q->windows = c->collective->uses_windows && in_windows;
    if (q->windows) {
        c->in_offset = in->offset + (size_t)(c->in - in->begin);
        c->out_offset = out->offset + (size_t)(c->out - out->begin);
        q->transports = in->transports & out->transports;
    }
    /* A buffer may have two addresses. Offsets are equal on all ranks, and kernels use them. */
    q->in_place = q->windows ? is_in_place(c, c->in_offset, c->out_offset)
                             : is_in_place(c, c->in, c->out);
    q->aligned = (c->in | c->out | c->in_offset | c->out_offset) % 16 == 0;
    /* check_both() has compared the addresses only. Offsets that kernels use, and so this result,
     * are equal on all ranks. */
    if (q->windows && overlap_in_part(c, c->in_offset, c->out_offset))
        return refuse_overlap(c, "are addresses of the same memory and overlap in part there");
    if (in_windows && overlap_in_memory(c, in, out))
        return refuse_overlap(c, "are addresses of the same memory in windows at different "
                                 "offsets, and overlap there");
    return SYMWIN_OK;
}

static symwin_status check_both(struct call *c)
{
    symwin_status status;

    if (c->in != 0 && c->out != 0 && overlap_in_part(c, c->in, c->out))
        return refuse_overlap(c, "overlap in part");
    status = check_buffer(c, "in", c->in_bytes, &c->buffers[0]);
    return status == SYMWIN_OK ? check_buffer(c, "out", c->out_bytes, &c->buffers[1]) : status;
}

static symwin_status check_buffers(struct call *c)
{
    const size_t nranks = (size_t)c->query.comm->nranks;
    char text[SW_TEXT_BYTES];
    symwin_status status;

    if (c->count > SIZE_MAX / 16 / nranks)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds",
                       c->collective->call, (unsigned long long)c->count);
    c->query.bytes = (size_t)c->count * symwin_type_bytes(c->query.type);
    c->in_bytes = c->query.bytes * (c->collective->in_each ? nranks : 1);
    c->out_bytes = c->query.bytes * (c->collective->out_each ? nranks : 1);
    c->buffers[0].address = c->in;
    c->buffers[1].address = c->out;
    status = check_both(c);
    if (status == SYMWIN_OK)
        return SYMWIN_OK;
    /* The other ranks may start an agreement. What is known of both buffers says whether they
     * do. */
    memcpy(text, symwin_last_error(), sizeof text);
    (void)check_buffer(c, "in", c->in_bytes, &c->buffers[0]);
    (void)check_buffer(c, "out", c->out_bytes, &c->buffers[1]);
    sw_error_restore(text);
    return status;
}

/* ---- launch ---- */

_Static_assert((int)SW_KERNEL_SUM == SYMWIN_SUM && (int)SW_KERNEL_PROD == SYMWIN_PROD &&
                   (int)SW_KERNEL_MIN == SYMWIN_MIN && (int)SW_KERNEL_MAX == SYMWIN_MAX &&
                   (int)SW_KERNEL_AVERAGE == SYMWIN_AVG,
               "kernels and callers name operations alike");

/* What must be equal on all ranks, in 32 bits (FNV-1a over words, folded). The kernels compare
 * it. */
static uint32_t digest(const struct call *c, const struct sw_plan *plan)
{
    const int needs_windows = (plan->algorithm->needs & SW_NEEDS_WINDOWS) != 0;
    const uint64_t words[] = {
        (uint64_t)c->query.collective,
        c->count,
        (uint64_t)c->query.type,
        (uint64_t)c->query.op,
        (uint64_t)plan->algo,
        needs_windows ? c->in_offset : 0,
        needs_windows ? c->out_offset : 0,
    };
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++) {
        hash = (hash ^ words[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

static struct sw_kernel_args args_of(const struct call *c, const struct sw_plan *plan,
                                     CUdeviceptr done)
{
    const struct sw_query *q = &c->query;
    const symwin_comm *comm = q->comm;

    return (struct sw_kernel_args){
        .base = comm->group->base,
        .stride = comm->group->stride,
        .state = comm->state_offset,
        .rank = comm->rank,
        .nranks = comm->nranks,
        .in = c->in,
        .out = c->out,
        .in_offset = c->in_offset,
        .out_offset = c->out_offset,
        .count = c->count,
        .digest = digest(c, plan),
        .what = SW_WHAT(q->collective, q->type, q->op, plan->algo, q->windows),
        .op = sw_kernel_op(plan->kernel, q->type, q->op),
        .done = done,
        .slot_bytes = comm->slot_bytes,
        .report = comm->report_address,
        .bytes = q->bytes,
        .timeout_ns = comm->kernel_timeout_ms < 0 ? 0
                                                  : (uint64_t)comm->kernel_timeout_ms * 1000000u,
    };
}

/* Queues the call in the stream, as `turn` allows. */
static symwin_status queue(const struct call *c, const struct sw_turn *turn,
                           const struct sw_plan *plan)
{
    symwin_comm *comm = c->query.comm;
    struct sw_kernel_args args = args_of(c, plan, turn->captured ? 0 : comm->done_address);
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {.gridDimX = plan->grid.blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = plan->grid.threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = plan->kernel->shared,
                                   .hStream = c->stream,
                                   .attrs = &early,
                                   .numAttrs = (unsigned)turn->early};
    void *params[] = {&args};

    if (plan->algorithm->queue != NULL)
        return plan->algorithm->queue(&(struct sw_call){.query = &c->query,
                                                        .plan = plan,
                                                        .args = &args,
                                                        .stream = c->stream,
                                                        .early = turn->early});
    if (comm->graph_launch.exec != NULL && !turn->captured && turn->partition == NULL)
        return sw_graph_launch(comm, &config, plan->kernel->function, params, c->collective->call);
    return sw_check(sw_drv.cuLaunchKernelEx(&config, plan->kernel->function, params, NULL),
                    "%s: cuLaunchKernelEx of %u blocks", c->collective->call, plan->grid.blocks);
}

static symwin_status launch(struct call *c)
{
    struct sw_query *q = &c->query;
    struct sw_plan plan;
    struct sw_turn turn;
    symwin_status status = sw_turn_begin(q->comm, c->collective->call, c->stream, &turn);

    if (status != SYMWIN_OK)
        return status;
    q->multiprocessors = turn.multiprocessors;
    q->most_blocks = turn.most_blocks;
    status = sw_select_plan(q, c->algo, &c->asked, &plan);
    if (status == SYMWIN_OK)
        status = sw_turn_order(&turn, plan.grid.blocks > plan.put_grid.blocks
                                          ? plan.grid.blocks
                                          : plan.put_grid.blocks);
    if (status == SYMWIN_OK)
        status = queue(c, &turn, &plan);
    if (status == SYMWIN_OK)
        sw_turn_end(&turn, 1, plan.algorithm->queue != NULL ? 1 : plan.grid.blocks);
    else
        sw_turn_end(&turn, 0, 0);
    return status;
}

static symwin_status answer(struct call *c, symwin_collective_info *info)
{
    struct sw_plan plan;
    symwin_status status;

    c->query.most_blocks = sw_order_most_blocks(c->query.comm);
    status = sw_select_plan(&c->query, c->algo, &c->asked, &plan);
    if (status == SYMWIN_OK)
        *info = (symwin_collective_info){plan.algo, (int)plan.grid.blocks, (int)plan.grid.threads,
                                         plan.measured};
    return status;
}

/* Launches the call, or reports what would be launched. */
static symwin_status run(struct call *c, symwin_collective_info *info)
{
    symwin_comm *comm = c->query.comm;
    struct sw_scope scope;
    symwin_status status = sw_scope_enter_context(comm->context, &scope);

    if (status == SYMWIN_OK)
        status = check_buffers(c);
    if (info == NULL && c->collective->uses_windows && sw_registrations_any(comm, c->buffers))
        status = sw_registrations_prepare(comm, c->collective->call, status, c->buffers,
                                          c->query.bytes, c->stream);
    if (status == SYMWIN_OK)
        status = place_buffers(c);
    if (status == SYMWIN_OK)
        status = info != NULL ? answer(c, info) : launch(c);
    sw_scope_leave(&scope);
    return status;
}

/* ---- the calls ---- */

static symwin_status check_options(const char *call, const symwin_collective_options *o)
{
    if (o->size != sizeof *o)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->size is %zu; set it to sizeof(symwin_collective_options), %zu",
                       call, o->size, sizeof *o);
    if (symwin_algo_name(o->algo) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no algorithm %d; see SYMWIN_ALGO_LIST", call,
                       (int)o->algo);
    if (o->blocks < 0)
        return sw_fail(SYMWIN_INVALID, "%s: blocks is %d; pass 0 for the default", call, o->blocks);
    if (o->threads < 0)
        return sw_fail(SYMWIN_INVALID, "%s: threads is %d; pass 0 for the default", call,
                       o->threads);
    return SYMWIN_OK;
}

/* Checks the arguments that need no communicator. */
static symwin_status check_call(struct call *c, const symwin_collective_options *options)
{
    const char *call = c->collective->call;
    symwin_status status;

    if (symwin_type_name(c->query.type) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no type %d; see SYMWIN_TYPE_LIST", call,
                       (int)c->query.type);
    if (symwin_op_name(c->query.op) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no operation %d; see SYMWIN_OP_LIST", call,
                       (int)c->query.op);
    if (options == NULL)
        return SYMWIN_OK;
    status = check_options(call, options);
    if (status != SYMWIN_OK)
        return status;
    c->algo = options->algo;
    c->asked = (struct sw_grid){(unsigned)options->blocks, (unsigned)options->threads};
    return SYMWIN_OK;
}

static symwin_status call(struct call *c, const symwin_collective_options *options)
{
    symwin_comm *comm = c->query.comm;
    symwin_status status = check_call(c, options);

    if (status == SYMWIN_OK)
        status = sw_comm_enter(comm, c->collective->call);
    if (status != SYMWIN_OK)
        return status;
    if (c->count > 0)
        status = run(c, NULL);
    sw_comm_leave(comm);
    return status;
}

/* `name`: the name of the public call. */
static symwin_status query(struct call *c, const char *name,
                           const symwin_collective_options *options, symwin_collective_info *info)
{
    symwin_comm *comm = c->query.comm;
    symwin_status status = check_call(c, options);

    if (status == SYMWIN_OK && (info == NULL || c->count == 0))
        return sw_fail(SYMWIN_INVALID, "%s: %s", name,
                       info == NULL ? "info is NULL" : "count is 0, for which nothing is launched");
    if (status == SYMWIN_OK)
        status = sw_comm_enter(comm, name);
    if (status != SYMWIN_OK)
        return status;
    status = run(c, info);
    sw_comm_leave(comm);
    return status;
}

static struct call call_of(symwin_collective collective, symwin_comm *comm, const void *in,
                           const void *out, uint64_t count, symwin_type type, symwin_op op)
{
    return (struct call){
        .collective = &sw_collectives[collective],
        .in = (CUdeviceptr)(uintptr_t)in,
        .out = (CUdeviceptr)(uintptr_t)out,
        .count = count,
        .query = {.comm = comm, .collective = collective, .type = type, .op = op},
    };
}

symwin_status symwin_allreduce_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, symwin_op op,
                                    const symwin_collective_options *options,
                                    struct CUstream_st *stream)
{
    struct call c = call_of(SYMWIN_ALLREDUCE, comm, in, out, count, type, op);

    c.stream = stream;
    return call(&c, options);
}

symwin_status symwin_allreduce_query(symwin_comm *comm, const void *in, const void *out,
                                     uint64_t count, symwin_type type, symwin_op op,
                                     const symwin_collective_options *options,
                                     symwin_collective_info *info)
{
    struct call c = call_of(SYMWIN_ALLREDUCE, comm, in, out, count, type, op);

    return query(&c, "symwin_allreduce_query", options, info);
}

symwin_status symwin_allreduce(symwin_comm *comm, const void *in, void *out, uint64_t count,
                               symwin_type type, symwin_op op, struct CUstream_st *stream)
{
    return symwin_allreduce_with(comm, in, out, count, type, op, NULL, stream);
}

symwin_status symwin_allgather_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, const symwin_collective_options *options,
                                    struct CUstream_st *stream)
{
    struct call c = call_of(SYMWIN_ALLGATHER, comm, in, out, count, type, (symwin_op)0);

    c.stream = stream;
    return call(&c, options);
}

symwin_status symwin_allgather_query(symwin_comm *comm, const void *in, const void *out,
                                     uint64_t count, symwin_type type,
                                     const symwin_collective_options *options,
                                     symwin_collective_info *info)
{
    struct call c = call_of(SYMWIN_ALLGATHER, comm, in, out, count, type, (symwin_op)0);

    return query(&c, "symwin_allgather_query", options, info);
}

symwin_status symwin_allgather(symwin_comm *comm, const void *in, void *out, uint64_t count,
                               symwin_type type, struct CUstream_st *stream)
{
    return symwin_allgather_with(comm, in, out, count, type, NULL, stream);
}
