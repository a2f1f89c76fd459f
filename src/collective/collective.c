/* Collectives: what the call is about; launch. Which algorithm and grid: choice.c. After which other calls: order.c.
 *
 * A kernel may begin while the one ahead of it in the stream is ending (programmatic stream
 * serialization), and waits for that one's end before it touches memory: that hides what a launch
 * costs. Not in launches through a graph (graph_launch.c), and order.c says where else not.
 */
#include <stddef.h>
#include <string.h>

#include "src/collective/copies.h"
#include "src/collective/order.h"
#include "src/collective/select.h"

static const char allreduce_call[] = "symwin_allreduce";

/* ---- what the call is about ---- */

struct call {
    symwin_comm *comm;
    CUdeviceptr in, out;
    uint64_t count;
    size_t bytes;
    symwin_type type;
    symwin_op op;
    symwin_algo algo;
    struct sw_grid asked; /* 0: as fits */
    struct sw_selection choice;
    CUstream stream;
    struct sw_buffer buffers[2]; /* in and out, as they lie */
    int windows;                 /* both in windows: the offsets are theirs */
    unsigned transports;         /* that both windows have */
    size_t in_offset, out_offset;
    struct sw_query query; /* what the choice depends on: all of the above */
};

/* One buffer: in a window, or else any device memory of this rank. */
static symwin_status check_buffer(const struct call *c, const char *which, struct sw_buffer *buffer)
{
    const CUdeviceptr address = buffer->address;
    struct sw_window_index_entry *entry = &buffer->entry;
    enum sw_found found;
    symwin_status status = SYMWIN_OK;

    if (address == 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", allreduce_call, which);
    found = sw_window_index_find(c->comm->index, (uintptr_t)address, c->bytes, entry);
    buffer->in_window = found == SW_FOUND_ALL;
    if (!buffer->in_window)
        buffer->found = sw_registered_find(c->comm, (uintptr_t)address, c->bytes, entry);
    buffer->is_known = buffer->in_window || buffer->found != SW_FOUND_NONE;
    if (!buffer->is_known && found == SW_FOUND_PART)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %llu elements (%zu bytes) at %s pass the end of its window, which has "
                       "%zu bytes from there",
                       allreduce_call, (unsigned long long)c->count, c->bytes, which,
                       (size_t)(entry->end - (uintptr_t)address));
    if (!buffer->is_known)
        status = sw_comm_check_device(c->comm, allreduce_call, which, address, -1);
    buffer->is_known = status != SYMWIN_INVALID;
    if (status == SYMWIN_OK && address % symwin_type_bytes(c->type) != 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is 0x%llx, which is not aligned to %s's %zu bytes",
                       allreduce_call, which, address, symwin_type_name(c->type),
                       symwin_type_bytes(c->type));
    return status;
}

/* Whether there is a window of all ranks around the buffer. */
static int is_in_window(const struct sw_buffer *b)
{
    return b->in_window || (b->found == SW_FOUND_ALL && b->entry.transports != 0);
}

static int overlap_in_part(const struct call *c, uint64_t in, uint64_t out)
{
    return in != out && in < out + c->bytes && out < in + c->bytes;
}

/* Whether the buffers' windows, which know nothing of each other, show them on the same memory. Of windows on several
 * allocations that is not looked for. */
static int overlap_in_memory(const struct call *c, const struct sw_window_index_entry *in,
                             const struct sw_window_index_entry *out)
{
    const uint64_t from = in->within + (c->in - in->begin);
    const uint64_t to = out->within + (c->out - out->begin);

    return in->memory != 0 && in->memory == out->memory && c->in_offset != c->out_offset &&
           (from == to || overlap_in_part(c, from, to));
}

/* Goes by windows, if both buffers are in any. */
static symwin_status place_buffers(struct call *c)
{
    const struct sw_window_index_entry *in = &c->buffers[0].entry, *out = &c->buffers[1].entry;

    c->windows = is_in_window(&c->buffers[0]) && is_in_window(&c->buffers[1]);
    c->in_offset = c->out_offset = 0;
    c->transports = 0;
    if (c->windows) {
        c->in_offset = in->offset + (size_t)(c->in - in->begin);
        c->out_offset = out->offset + (size_t)(c->out - out->begin);
        c->transports = in->transports & out->transports;
    }
    /* By addresses they do not. Offsets are alike on all ranks, and so is this. */
    if (c->windows && overlap_in_part(c, c->in_offset, c->out_offset))
        return sw_fail(SYMWIN_INVALID,
                       "%s: in (0x%llx) and out (0x%llx) are addresses of the same memory and "
                       "overlap in part there; pass the same memory or two parts that do not touch",
                       allreduce_call, c->in, c->out);
    if (c->windows && overlap_in_memory(c, in, out))
        return sw_fail(
            SYMWIN_INVALID,
            "%s: in (0x%llx) and out (0x%llx) are addresses of the same memory in windows "
            "at different offsets, and overlap there; pass one address or two parts that "
            "do not touch",
            allreduce_call, c->in, c->out);
    return SYMWIN_OK;
}

static symwin_status check_both(struct call *c)
{
    symwin_status status;

    if (overlap_in_part(c, c->in, c->out))
        return sw_fail(
            SYMWIN_INVALID,
            "%s: in (0x%llx) and out (0x%llx) overlap in part; pass the same buffer or two "
            "that do not touch",
            allreduce_call, c->in, c->out);
    status = check_buffer(c, "in", &c->buffers[0]);
    return status == SYMWIN_OK ? check_buffer(c, "out", &c->buffers[1]) : status;
}

static symwin_status check_buffers(struct call *c)
{
    char text[SW_TEXT_BYTES];
    symwin_status status;

    if (c->count > SIZE_MAX / 16)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds",
                       allreduce_call, (unsigned long long)c->count);
    c->bytes = (size_t)c->count * symwin_type_bytes(c->type);
    c->buffers[0].address = c->in;
    c->buffers[1].address = c->out;
    status = check_both(c);
    if (status == SYMWIN_OK)
        return SYMWIN_OK;
    /* The other ranks may meet: whether they do, both buffers tell. */
    memcpy(text, symwin_last_error(), sizeof text);
    (void)check_buffer(c, "in", &c->buffers[0]);
    (void)check_buffer(c, "out", &c->buffers[1]);
    sw_error_restore(text);
    return status;
}

/* ---- which algorithm, which grid ---- */

static struct sw_query query(const struct call *c)
{
    return (struct sw_query){
        .comm = c->comm,
        .collective = SYMWIN_ALLREDUCE,
        .type = c->type,
        .op = c->op,
        .bytes = c->bytes,
        /* A buffer may have two addresses; offsets all ranks have alike, and kernels go by them. */
        .in_place = c->windows ? c->in_offset == c->out_offset : c->in == c->out,
        .aligned = (c->in | c->out | c->in_offset | c->out_offset) % 16 == 0,
        .windows = c->windows,
        .transports = c->transports,
    };
}

/* Whether the algorithm that was asked for can serve the call. */
static symwin_status check_algo(const struct call *c)
{
    const char *name = symwin_algo_name(c->algo);

    switch (sw_select_support(&c->query, c->algo)) {
    case SW_NEEDS_ALGORITHM:
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: it does not go by %s", allreduce_call, name);
    case SW_NEEDS_WINDOWS:
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %s needs both buffers in windows of this communicator", allreduce_call,
                       name);
    case SW_NEEDS_MULTICAST:
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %s needs windows with multicast (see "
                       "symwin_window_info.transports)",
                       allreduce_call, name);
    case SW_NEEDS_KERNEL:
        if (!sw_algo_needs(SYMWIN_ALLREDUCE, c->algo, SW_NEEDS_MULTICAST))
            return sw_fail(
                SYMWIN_UNSUPPORTED,
                "%s: %s needs sm_90, and a device of this communicator is older, or its kernels "
                "were built for older ones (make help: ARCH)",
                allreduce_call, name);
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: multicast cannot reduce %s by %s", allreduce_call,
                       symwin_type_name(c->type), symwin_op_name(c->op));
    case SW_NEEDS_TWO_BUFFERS:
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: oneshot_mc reads all ranks' inputs while it writes and cannot work in "
                       "place",
                       allreduce_call);
    case SW_NEEDS_STREAMS:
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: copies needs three streams a rank, and ranks that share a device have %d of "
            "them; set CUDA_DEVICE_MAX_CONNECTIONS to three times the number of ranks "
            "(32 at most) before CUDA starts, or use fewer ranks a device",
            allreduce_call, c->comm->streams_per_rank);
    case SW_SERVES:
        break;
    }
    return SYMWIN_OK;
}

static symwin_status choose(struct call *c)
{
    c->query = query(c);
    c->choice = (struct sw_selection){.algo = c->algo};
    if (c->algo != SYMWIN_ALGO_AUTO)
        return check_algo(c);
    sw_select_make(&c->query, &c->choice);
    c->algo = c->choice.algo;
    return SYMWIN_OK;
}

static symwin_status make_grid(const struct call *c, struct sw_grid *grid)
{
    return sw_select_grid(&c->query, &c->choice, &c->asked, grid);
}

/* What must be equal on all ranks, in 32 bits (FNV-1a over words, folded). The kernels compare it. */
static uint32_t digest(const struct call *c)
{
    const int needs_windows = sw_algo_needs(SYMWIN_ALLREDUCE, c->algo, SW_NEEDS_WINDOWS);
    const uint64_t words[] = {
        c->count,
        (uint64_t)c->type,
        (uint64_t)c->op,
        (uint64_t)c->algo,
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

/* ---- launch ---- */

_Static_assert((int)SW_KERNEL_SUM == SYMWIN_SUM && (int)SW_KERNEL_PROD == SYMWIN_PROD &&
                   (int)SW_KERNEL_MIN == SYMWIN_MIN && (int)SW_KERNEL_MAX == SYMWIN_MAX &&
                   (int)SW_KERNEL_AVERAGE == SYMWIN_AVG,
               "kernels and callers name operations alike");

/* Of a call by copies in place. */
static int puts_first(const struct call *c)
{
    return c->algo == SYMWIN_ALGO_COPIES && c->query.in_place;
}

static symwin_status queue_copies(const struct call *c, const struct sw_kernel_args *args,
                                  const struct sw_grid *grid, const struct sw_grid *put_grid,
                                  int early)
{
    const struct sw_copies_call call = {
        .name = allreduce_call,
        .args = args,
        .element = (uint32_t)symwin_type_bytes(c->type),
        .is_float = sw_type_is_float(c->type),
        .function = sw_select_find(&c->query, c->algo)->function,
        .grid = *grid,
        .put = puts_first(c) ? sw_select_find_put(&c->query)->function : NULL,
        .put_grid = *put_grid,
        .early = early,
        .stream = c->stream,
    };

    return sw_copies_queue(c->comm, &call);
}

/* What the kernels are told. */
static struct sw_kernel_args args_of(const struct call *c, CUdeviceptr done)
{
    const symwin_comm *comm = c->comm;

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
        .digest = digest(c),
        .what = SW_WHAT(c->type, c->op, c->algo, c->windows),
        .op = (uint32_t)c->op,
        .done = done,
        .slot_bytes = comm->slot_bytes,
        .report = comm->report_address,
        .timeout_ns = comm->kernel_timeout_ms < 0 ? 0
                                                  : (uint64_t)comm->kernel_timeout_ms * 1000000u,
    };
}

/* Into the stream, by what `turn` has found. */
static symwin_status queue(const struct call *c, const struct sw_turn *turn,
                           const struct sw_grid *grid, const struct sw_grid *put_grid)
{
    symwin_comm *comm = c->comm;
    const struct sw_kernel *kernel = sw_select_find(&c->query, c->algo);
    struct sw_kernel_args args = args_of(c, turn->captured ? 0 : comm->done_address);
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {.gridDimX = grid->blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = grid->threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = kernel->shared,
                                   .hStream = c->stream,
                                   .attrs = &early,
                                   .numAttrs = (unsigned)turn->early};
    void *params[] = {&args};

    if (c->algo == SYMWIN_ALGO_COPIES)
        return queue_copies(c, &args, grid, put_grid, turn->early);
    if (comm->graph_launch.exec != NULL && !turn->captured && turn->partition == NULL)
        return sw_graph_launch(comm, &config, kernel->function, params, allreduce_call);
    return sw_check(sw_drv.cuLaunchKernelEx(&config, kernel->function, params, NULL),
                    "%s: cuLaunchKernelEx of %u blocks", allreduce_call, grid->blocks);
}

static symwin_status launch(struct call *c)
{
    struct sw_grid grid = {0, 0}, put_grid = {0, 0};
    struct sw_turn turn;
    symwin_status status = sw_turn_begin(c->comm, allreduce_call, c->stream, &turn);

    if (status != SYMWIN_OK)
        return status;
    c->query.multiprocessors = turn.multiprocessors;
    c->query.most_blocks = turn.most_blocks;
    status = make_grid(c, &grid);
    if (status == SYMWIN_OK && puts_first(c))
        status = sw_select_put_grid(&c->query, &c->asked, &put_grid);
    if (status == SYMWIN_OK)
        status = sw_turn_order(&turn,
                               grid.blocks > put_grid.blocks ? grid.blocks : put_grid.blocks);
    if (status == SYMWIN_OK)
        status = queue(c, &turn, &grid, &put_grid);
    sw_turn_end(&turn, status == SYMWIN_OK, c->algo == SYMWIN_ALGO_COPIES ? 1 : grid.blocks);
    return status;
}

static symwin_status answer(struct call *c, symwin_allreduce_info *info)
{
    struct sw_grid grid = {0, 0};
    symwin_status status;

    c->query.most_blocks = sw_order_most_blocks(c->comm);
    status = make_grid(c, &grid);
    if (status == SYMWIN_OK)
        *info = (symwin_allreduce_info){c->algo, (int)grid.blocks, (int)grid.threads,
                                        c->choice.measured};
    return status;
}

/* Launches the call, or answers what would be launched. */
static symwin_status run(struct call *c, symwin_allreduce_info *info)
{
    struct sw_scope scope;
    symwin_status status = sw_scope_enter_context(c->comm->context, &scope);

    if (status == SYMWIN_OK)
        status = check_buffers(c);
    if (info == NULL && sw_registrations_any(c->comm, c->buffers))
        status = sw_registrations_prepare(c->comm, allreduce_call, status, c->buffers, c->bytes,
                                          c->stream);
    if (status == SYMWIN_OK)
        status = place_buffers(c);
    if (status == SYMWIN_OK)
        status = choose(c);
    if (status == SYMWIN_OK)
        status = info != NULL ? answer(c, info) : launch(c);
    sw_scope_leave(&scope);
    return status;
}

static symwin_status check_options(const symwin_allreduce_options *o)
{
    if (o->size != sizeof *o)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->size is %zu; set it to sizeof(symwin_allreduce_options), %zu",
                       allreduce_call, o->size, sizeof *o);
    if (symwin_algo_name(o->algo) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no algorithm %d; see SYMWIN_ALGO_LIST",
                       allreduce_call, (int)o->algo);
    if (o->blocks < 0)
        return sw_fail(SYMWIN_INVALID, "%s: blocks is %d; pass 0 for the default", allreduce_call,
                       o->blocks);
    if (o->threads < 0)
        return sw_fail(SYMWIN_INVALID, "%s: threads is %d; pass 0 for the default", allreduce_call,
                       o->threads);
    return SYMWIN_OK;
}

/* What can be said of the arguments without the communicator. */
static symwin_status check_call(struct call *c, const symwin_allreduce_options *options)
{
    symwin_status status;

    if (symwin_type_name(c->type) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no type %d; see SYMWIN_TYPE_LIST",
                       allreduce_call, (int)c->type);
    if (symwin_op_name(c->op) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no operation %d; see SYMWIN_OP_LIST",
                       allreduce_call, (int)c->op);
    if (options == NULL)
        return SYMWIN_OK;
    status = check_options(options);
    if (status != SYMWIN_OK)
        return status;
    c->algo = options->algo;
    c->asked = (struct sw_grid){(unsigned)options->blocks, (unsigned)options->threads};
    return SYMWIN_OK;
}

symwin_status symwin_allreduce_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, symwin_op op,
                                    const symwin_allreduce_options *options,
                                    struct CUstream_st *stream)
{
    struct call c = {
        .comm = comm,
        .in = (CUdeviceptr)(uintptr_t)in,
        .out = (CUdeviceptr)(uintptr_t)out,
        .count = count,
        .type = type,
        .op = op,
        .stream = stream,
    };
    symwin_status status = check_call(&c, options);

    if (status == SYMWIN_OK)
        status = sw_comm_enter(comm, allreduce_call);
    if (status != SYMWIN_OK)
        return status;
    if (count > 0)
        status = run(&c, NULL);
    sw_comm_leave(comm);
    return status;
}

symwin_status symwin_allreduce_query(symwin_comm *comm, const void *in, const void *out,
                                     uint64_t count, symwin_type type, symwin_op op,
                                     const symwin_allreduce_options *options,
                                     symwin_allreduce_info *info)
{
    struct call c = {
        .comm = comm,
        .in = (CUdeviceptr)(uintptr_t)in,
        .out = (CUdeviceptr)(uintptr_t)out,
        .count = count,
        .type = type,
        .op = op,
    };
    symwin_status status = check_call(&c, options);

    if (status == SYMWIN_OK && (info == NULL || count == 0))
        return sw_fail(SYMWIN_INVALID, "symwin_allreduce_query: %s",
                       info == NULL ? "info is NULL" : "count is 0, for which nothing is launched");
    if (status == SYMWIN_OK)
        status = sw_comm_enter(comm, "symwin_allreduce_query");
    if (status != SYMWIN_OK)
        return status;
    status = run(&c, info);
    sw_comm_leave(comm);
    return status;
}

symwin_status symwin_allreduce(symwin_comm *comm, const void *in, void *out, uint64_t count,
                               symwin_type type, symwin_op op, struct CUstream_st *stream)
{
    return symwin_allreduce_with(comm, in, out, count, type, op, NULL, stream);
}
