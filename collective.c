/* Collectives: what the call is about, in which order; launch. Which algorithm and grid: choice.c.
 *
 * Calls on one communicator must run one after another on the device, since they share an epoch and
 * receive slots. On one stream they do. When the stream changes, the new one first waits until all
 * blocks of the calls so far have counted themselves (state.done): no event has to be recorded at
 * every call, and it does not matter whether the old stream still exists. Streams are told apart by their
 * ids: a handle can be that of a new stream, or each thread's own. Inside a stream capture the order becomes
 * edges of the graph instead.
 *
 * A kernel may begin while the one ahead of it in the stream is ending (programmatic stream
 * serialization), and waits for that one's end before it touches memory: that hides what a launch
 * costs. Not where ranks share a device: blocks that wait would keep others from coming to theirs. Nor where
 * max_blocks says what a communicator may use, since two of its kernels would take twice that; nor in launches through a
 * graph (graph_launch.c).
 */
#include <stddef.h>
#include <string.h>

#include "choice.h"
#include "copies.h"
#include "register.h"

static const char allreduce_call[] = "symwin_allreduce";

size_t symwin_type_bytes(symwin_type type)
{
    switch (type) {
#define TYPE_CASE(name, value, text, bytes)                                                        \
    case name:                                                                                     \
        return bytes;
        SYMWIN_TYPE_LIST(TYPE_CASE)
#undef TYPE_CASE
    }
    return 0;
}

const char *symwin_type_name(symwin_type type)
{
    switch (type) {
#define TYPE_CASE(name, value, text, bytes)                                                        \
    case name:                                                                                     \
        return #text;
        SYMWIN_TYPE_LIST(TYPE_CASE)
#undef TYPE_CASE
    }
    return NULL;
}

const char *symwin_op_name(symwin_op op)
{
    switch (op) {
#define OP_CASE(name, value, text)                                                                 \
    case name:                                                                                     \
        return #text;
        SYMWIN_OP_LIST(OP_CASE)
#undef OP_CASE
    }
    return NULL;
}

const char *symwin_algo_name(symwin_algo algo)
{
    switch (algo) {
#define ALGO_CASE(name, value, text)                                                               \
    case name:                                                                                     \
        return #text;
        SYMWIN_ALGO_LIST(ALGO_CASE)
#undef ALGO_CASE
    }
    return NULL;
}

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
    struct sw_choice choice;
    CUstream stream;
    int windows;         /* in and out both lie in windows: the offsets are theirs */
    unsigned transports; /* that both windows have */
    size_t in_offset, out_offset;
    struct sw_question question; /* what the choice depends on: all of the above */
};

/* One buffer: in a window, or else any device memory of this rank. */
static symwin_status check_buffer(const struct call *c, const char *which, CUdeviceptr address,
                                  struct sw_registry_entry *entry, int *in_window)
{
    struct sw_registry_entry registered;
    enum sw_found found;

    if (address == 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", allreduce_call, which);
    if (address % symwin_type_bytes(c->type) != 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is 0x%llx, which is not aligned to %s's %zu bytes",
                       allreduce_call, which, address, symwin_type_name(c->type),
                       symwin_type_bytes(c->type));
    found = sw_registry_find(c->comm->registry, (uintptr_t)address, c->bytes, entry);
    *in_window = found == SW_FOUND_ALL;
    if (found == SW_FOUND_ALL)
        return SYMWIN_OK;
    switch (sw_registered_find(c->comm, (uintptr_t)address, c->bytes, &registered)) {
    case SW_FOUND_ALL:
        *in_window = registered.transports != 0;
        *entry = registered;
        return SYMWIN_OK;
    case SW_FOUND_PART:
        return SYMWIN_OK;
    case SW_FOUND_NONE:
        break;
    }
    if (found == SW_FOUND_PART)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %llu elements (%zu bytes) at %s pass the end of its window, which has "
                       "%zu bytes from there",
                       allreduce_call, (unsigned long long)c->count, c->bytes, which,
                       (size_t)(entry->end - (uintptr_t)address));
    return sw_comm_check_device(c->comm, allreduce_call, which, address, -1);
}

static symwin_status check_buffers(struct call *c)
{
    struct sw_registry_entry in, out;
    symwin_status status;
    int in_window, out_window;

    if (c->count > SIZE_MAX / 16)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds",
                       allreduce_call, (unsigned long long)c->count);
    c->bytes = (size_t)c->count * symwin_type_bytes(c->type);
    if (c->in != c->out && c->in < c->out + c->bytes && c->out < c->in + c->bytes)
        return sw_fail(
            SYMWIN_INVALID,
            "%s: in (0x%llx) and out (0x%llx) overlap in part; pass the same buffer or two "
            "that do not touch",
            allreduce_call, c->in, c->out);
    status = check_buffer(c, "in", c->in, &in, &in_window);
    if (status == SYMWIN_OK)
        status = check_buffer(c, "out", c->out, &out, &out_window);
    if (status != SYMWIN_OK)
        return status;
    c->windows = in_window && out_window;
    c->in_offset = c->out_offset = 0;
    c->transports = 0;
    if (c->windows) {
        c->in_offset = in.offset + (size_t)(c->in - in.begin);
        c->out_offset = out.offset + (size_t)(c->out - out.begin);
        c->transports = in.transports & out.transports;
    }
    return SYMWIN_OK;
}

/* ---- which algorithm, which grid ---- */

static struct sw_question question(const struct call *c)
{
    return (struct sw_question){
        .comm = c->comm,
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

    switch (sw_choice_service(&c->question, c->algo)) {
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
        if (!sw_algo_needs_multicast(c->algo))
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
    c->question = question(c);
    c->choice = (struct sw_choice){.algo = c->algo};
    if (c->algo != SYMWIN_ALGO_AUTO)
        return check_algo(c);
    sw_choice_make(&c->question, &c->choice);
    c->algo = c->choice.algo;
    return SYMWIN_OK;
}

static symwin_status make_grid(const struct call *c, struct sw_grid *grid)
{
    return sw_choice_grid(&c->question, &c->choice, &c->asked, grid);
}

/* What must be equal on all ranks, in 32 bits (FNV-1a over words, folded). The kernels compare it. */
static uint32_t digest(const struct call *c)
{
    const uint64_t words[] = {
        c->count,
        (uint64_t)c->type,
        (uint64_t)c->op,
        (uint64_t)c->algo,
        sw_algo_needs_windows(c->algo) ? c->in_offset : 0,
        sw_algo_needs_windows(c->algo) ? c->out_offset : 0,
    };
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++) {
        hash = (hash ^ words[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

/* ---- order ---- */

/* What is remembered of a capture; the one that was seen first makes room for a new one. */
static struct sw_captured *captured(symwin_comm *comm, cuuint64_t id)
{
    struct sw_captured *c;
    int i;

    for (i = 0; i < SW_CAPTURES; i++)
        if (comm->captured[i].id == id)
            return &comm->captured[i];
    c = &comm->captured[comm->oldest];
    comm->oldest = (comm->oldest + 1) % SW_CAPTURES;
    *c = (struct sw_captured){0};
    return c;
}

static symwin_status order_in_capture(symwin_comm *comm, CUstream stream, cuuint64_t id)
{
    struct sw_captured *last = captured(comm, id);
    symwin_status status = SYMWIN_OK;

    if (last->id == id && last->stream != stream) {
        if (comm->order == NULL)
            status = sw_check(sw_drv.cuEventCreate(&comm->order, CU_EVENT_DISABLE_TIMING),
                              "%s: cuEventCreate", allreduce_call);
        if (status == SYMWIN_OK)
            status = sw_check(sw_drv.cuEventRecord(comm->order, last->stream), "%s: cuEventRecord",
                              allreduce_call);
        if (status == SYMWIN_OK)
            status = sw_check(sw_drv.cuStreamWaitEvent(stream, comm->order, 0),
                              "%s: cuStreamWaitEvent", allreduce_call);
    }
    if (status == SYMWIN_OK) {
        *last = (struct sw_captured){id, stream};
        comm->capture_id = id;
    }
    return status;
}

/* Whether the stream is that of the last call outside captures; *id becomes its id, 0: the driver tells none. */
static symwin_status is_last_stream(const struct call *c, unsigned long long *id, int *is)
{
    const symwin_comm *comm = c->comm;
    symwin_status status = SYMWIN_OK;

    *id = 0;
    if (sw_drv.cuStreamGetId != NULL)
        status = sw_check(sw_drv.cuStreamGetId(c->stream, id), "%s: cuStreamGetId", allreduce_call);
    if (*id != 0 && comm->last_id != 0)
        *is = *id == comm->last_id;
    else
        *is = c->stream == comm->last_stream && c->stream != CU_STREAM_PER_THREAD;
    return status;
}

/* Puts the call after the one before; *counts says whether its blocks shall count themselves, and *id is its stream's,
 * if it is in no capture. */
static symwin_status order(const struct call *c, uint32_t *counts, unsigned long long *id)
{
    symwin_comm *comm = c->comm;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    symwin_status status = SYMWIN_OK;
    cuuint64_t capture = 0;
    int same = 0;

    *counts = 0;
    status = sw_check(
        sw_drv.cuStreamGetCaptureInfo_v2(c->stream, &capturing, &capture, NULL, NULL, NULL),
        "%s: cuStreamGetCaptureInfo", allreduce_call);
    if (status != SYMWIN_OK)
        return status;
    if (capturing != CU_STREAM_CAPTURE_STATUS_NONE)
        return order_in_capture(comm, c->stream, capture);
    status = is_last_stream(c, id, &same);
    if (status == SYMWIN_OK && comm->has_last && !same)
        status = sw_check(
            sw_drv.cuStreamWaitValue32(
                c->stream,
                sw_group_address(comm->group, comm->rank,
                                 comm->state.offset + offsetof(struct sw_comm_state, done)),
                comm->done, CU_STREAM_WAIT_VALUE_GEQ),
            "%s: cuStreamWaitValue32", allreduce_call);
    *counts = 1;
    return status;
}

void sw_collective_release(symwin_comm *comm)
{
    if (comm->order != NULL)
        sw_drop(sw_drv.cuEventDestroy(comm->order), "cuEventDestroy");
    comm->order = NULL;
}

/* ---- launch ---- */

_Static_assert((int)SW_KERNEL_SUM == SYMWIN_SUM && (int)SW_KERNEL_PROD == SYMWIN_PROD &&
                   (int)SW_KERNEL_MIN == SYMWIN_MIN && (int)SW_KERNEL_MAX == SYMWIN_MAX &&
                   (int)SW_KERNEL_AVERAGE == SYMWIN_AVG,
               "kernels and callers name operations alike");

static int begins_early(const symwin_comm *comm)
{
    return comm->ranks_on_device == 1 && comm->max_blocks == 0 &&
           sw_kernels_begin_early(comm->kernels);
}

/* Of a call by copies in place. */
static int puts_first(const struct call *c)
{
    return c->algo == SYMWIN_ALGO_COPIES && c->question.in_place;
}

static symwin_status queue_copies(const struct call *c, const struct sw_kernel_args *args,
                                  const struct sw_grid *grid, const struct sw_grid *put_grid)
{
    const struct sw_copies_call call = {
        .name = allreduce_call,
        .args = args,
        .element = (uint32_t)symwin_type_bytes(c->type),
        .is_float = sw_type_is_float(c->type),
        .function = sw_choice_find(&c->question, c->algo)->function,
        .grid = *grid,
        .put = puts_first(c) ? sw_choice_find_put(&c->question)->function : NULL,
        .put_grid = *put_grid,
        .early = begins_early(c->comm),
        .stream = c->stream,
    };

    return sw_copies_queue(c->comm, &call);
}

static symwin_status launch(struct call *c)
{
    symwin_comm *comm = c->comm;
    struct sw_kernel_args args = {
        .base = comm->group->base,
        .stride = comm->group->stride,
        .state = comm->state.offset,
        .rank = comm->rank,
        .nranks = comm->nranks,
        .in = c->in,
        .out = c->out,
        .in_offset = c->in_offset,
        .out_offset = c->out_offset,
        .count = c->count,
        .digest = digest(c),
        .op = (uint32_t)c->op,
        .slot_bytes = comm->slot_bytes,
        .report = comm->report_address,
        .timeout_ns = comm->kernel_timeout_ms < 0 ? 0
                                                  : (uint64_t)comm->kernel_timeout_ms * 1000000u,
    };
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {.gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = c->stream,
                             .attrs = &early};
    const struct sw_kernel *kernel = sw_choice_find(&c->question, c->algo);
    void *params[] = {&args};
    symwin_status status;
    struct sw_grid grid = {0, 0}, put_grid = {0, 0};
    unsigned long long stream_id = 0;

    status = make_grid(c, &grid);
    if (status == SYMWIN_OK && puts_first(c))
        status = sw_choice_put_grid(&c->question, &c->asked, &put_grid);
    if (status == SYMWIN_OK)
        status = order(c, &args.done, &stream_id);
    if (status != SYMWIN_OK)
        return status;
    config.gridDimX = grid.blocks;
    config.blockDimX = grid.threads;
    config.sharedMemBytes = kernel->shared;
    config.numAttrs = begins_early(comm);
    if (c->algo == SYMWIN_ALGO_COPIES)
        status = queue_copies(c, &args, &grid, &put_grid);
    else if (comm->graph_launch.exec != NULL && args.done != 0)
        status = sw_graph_launch(comm, &config, kernel->function, params, allreduce_call);
    else
        status = sw_check(sw_drv.cuLaunchKernelEx(&config, kernel->function, params, NULL),
                          "%s: cuLaunchKernelEx of %u blocks", allreduce_call, grid.blocks);
    if (status == SYMWIN_OK && args.done != 0) {
        comm->done += c->algo == SYMWIN_ALGO_COPIES ? 1 : grid.blocks;
        comm->has_last = 1;
        comm->last_stream = c->stream;
        comm->last_id = stream_id;
    }
    return status;
}

static symwin_status answer(const struct call *c, symwin_allreduce_info *info)
{
    struct sw_grid grid = {0, 0};
    const symwin_status status = make_grid(c, &grid);

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
    int changed = 0;

    sw_returns_collect(c->comm); /* before anything is found that this would retire */
    if (status == SYMWIN_OK)
        status = check_buffers(c);
    if (status == SYMWIN_OK && info == NULL && sw_registrations_any(c->comm, c->windows))
        status = sw_registrations_prepare(c->comm, allreduce_call, c->in, c->out, c->bytes,
                                          c->stream, c->windows, &changed);
    if (status == SYMWIN_OK && changed)
        status = check_buffers(c);
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
