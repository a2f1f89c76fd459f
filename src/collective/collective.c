/* Collectives: checks the buffers of a call and launches it. calls.c has the public calls. The
 * algorithm and the grid are selected in select.c; order.c finds the calls that must come before.
 *
 * A kernel may begin while the kernel ahead of it in the stream is ending (programmatic stream
 * serialization), and waits for that end before it accesses memory. This hides the cost of a
 * launch. Launches through a graph (graph_launch.c) cannot do this, and order.c decides when other
 * launches may.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/collective/call.h"

/* ---- what the calls of a communicator need ---- */

symwin_status sw_calls_create(symwin_comm *comm)
{
    struct sw_calls *calls = calloc(1, sizeof *calls);
    symwin_status status = SYMWIN_OK;

    if (calls == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for the calls of a communicator");
    calls->comm = comm;
    comm->calls = calls;
    calls->plans = sw_plans_create();
    if (calls->plans == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for plans of calls");
    if (comm->nranks > SW_TABLE_RANKS) {
        calls->rows = calloc(3 * (size_t)comm->nranks, sizeof *calls->rows);
        if (calls->rows == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "no host memory for parts of %d ranks", comm->nranks);
    }
    /* If ranks share a device, an extra stream may share a hardware queue with a stream that waits
     * for it. So then it is created only when needed. */
    if (comm->ranks_on_device == 1)
        status = sw_copies_create(&calls->copies);
    if (status == SYMWIN_OK)
        status = sw_graph_launch_create(comm);
    return status == SYMWIN_OK ? sw_order_join(calls) : status;
}

void sw_calls_destroy(symwin_comm *comm)
{
    struct sw_calls *calls = comm->calls;

    if (calls == NULL)
        return;
    sw_copies_release(&calls->copies);
    sw_graph_launch_release(&calls->graph_launch);
    sw_order_leave(calls);
    sw_plans_destroy(calls->plans);
    free(calls->rows);
    free(calls);
    comm->calls = NULL;
}

/* ---- the arguments ---- */

int sw_call_sends_to(const struct call *c)
{
    if (c->collective->root_sends && c->query.comm->rank != c->root)
        return SW_NO_RANK;
    return c->collective->root_receives ? c->root : SW_EVERY_RANK;
}

int sw_call_receives_from(const struct call *c)
{
    if (c->collective->root_receives && c->query.comm->rank != c->root)
        return SW_NO_RANK;
    return c->collective->root_sends ? c->root : SW_EVERY_RANK;
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
    return in < out + c->buffers[OUT].bytes && out < in + c->buffers[IN].bytes;
}

static int overlap_in_part(const struct call *c, uint64_t in, uint64_t out)
{
    return overlap(c, in, out) && !is_in_place(c, in, out);
}

/* Whether the two windows, which are independent, show the same memory, and not as in place. */
static int overlap_in_memory(const struct call *c, int by_offsets)
{
    const struct sw_buffer *in = &c->buffers[IN], *out = &c->buffers[OUT];
    const int in_place = by_offsets ? is_in_place(c, in->offset, out->offset)
                                    : is_in_place(c, in->within, out->within);

    return !in_place && sw_buffers_overlap_in_memory(in, out);
}

static symwin_status check_memory(const struct call *c, int b)
{
    return sw_window_check_memory(c->query.comm, c->name, b == IN ? "in" : "out",
                                  symwin_type_bytes(c->query.type), c->buffers[b].address,
                                  c->buffers[b].bytes);
}

/* What to pass instead of buffers that overlap: a count that passes the end of one reaches into the
 * next, if they were allocated in a row. */
static symwin_status refuse_overlap(const struct call *c, const char *how)
{
    const CUdeviceptr in = c->buffers[IN].address, out = c->buffers[OUT].address;
    const struct sw_collective *is = c->collective;
    char advice[96] = "pass the same buffer or two that do not touch";
    symwin_status status = check_memory(c, IN);

    if (status == SYMWIN_OK)
        status = check_memory(c, OUT);
    if (status != SYMWIN_OK)
        return status;
    if (is->in_each != is->out_each)
        snprintf(advice, sizeof advice, "in place, %s is %s + rank * count elements (0x%llx)",
                 is->out_each ? "in" : "out", is->out_each ? "out" : "in",
                 (is->out_each ? out : in) + (CUdeviceptr)c->query.comm->rank * c->query.bytes);
    else if (c->query.collective == SYMWIN_ALLGATHERV)
        snprintf(advice, sizeof advice, "in place, in is this rank's part of out");
    else if (c->query.collective == SYMWIN_REDUCE_SCATTERV)
        snprintf(advice, sizeof advice, "in place, out is this rank's part of in");
    return sw_fail(SYMWIN_INVALID, "%s: in (0x%llx) and out (0x%llx) %s; %s", c->name, in, out, how,
                   advice);
}

static const char in_other_window[] =
    "are addresses of the same memory in windows at different offsets, and overlap there";

/* Where a collective does not register, nothing holds a registered buffer's window for a graph. */
static int is_usable(const struct call *c, const struct sw_buffer *buffer)
{
    return c->collective->registers != SW_CONNECTS_NEVER ? buffer->in_window : buffer->is_public;
}

/* The offset that all ranks have; 0: each has its own. */
static uint64_t common(enum sw_lies lies, const struct sw_buffer *buffer)
{
    return lies == SW_AT_ONE_OFFSET ? buffer->offset : 0;
}

/* The buffer's offset in the flat range, for kernels that use it. */
static uint64_t place(const struct call *c, const struct sw_buffer *buffer, enum sw_lies lies)
{
    if (!c->query.windows || lies == SW_ANYWHERE)
        return 0;
    if (lies == SW_WHERE_ROOT_TELLS && !is_usable(c, buffer))
        return SW_NO_OFFSET;
    return buffer->offset;
}

/* Uses the offsets in the flat range if the buffers that need it are in windows. */
static symwin_status place_buffers(struct call *c)
{
    struct sw_buffer *in = &c->buffers[IN], *out = &c->buffers[OUT];
    const int in_windows = in->in_window && out->in_window;
    const struct sw_collective *is = c->collective;
    struct sw_query *q = &c->query;
    const int by_in = sw_decides(is->in), by_out = sw_decides(is->out);
    int by_offsets;

    q->windows = (by_in || by_out) && (!by_in || is_usable(c, in)) &&
                 (!by_out || is_usable(c, out));
    by_offsets = q->windows && by_in && by_out;
    if (q->windows)
        q->transports = (by_in ? in : out)->transports & (by_out ? out : in)->transports;
    in->offset = place(c, in, is->in);
    out->offset = place(c, out, is->out);
    /* Memory may have two addresses. Offsets are equal on all ranks, and kernels use them. */
    q->in_place = by_offsets ? is_in_place(c, in->offset, out->offset)
                             : is_in_place(c, in->address, out->address) ||
                                   (in->memory != 0 && in->memory == out->memory &&
                                    is_in_place(c, in->within, out->within));
    q->windows_aligned = (common(is->in, in) | common(is->out, out)) % 16 == 0;
    q->aligned = q->windows_aligned && (in->address | out->address) % 16 == 0;
    if (in_windows && overlap_in_memory(c, by_offsets))
        return refuse_overlap(c, in_other_window);
    return SYMWIN_OK;
}

/* Whether a scalar is in host memory if it is said to be; otherwise whether this rank's device
 * reads it at its address. */
static symwin_status check_scalar(const struct call *c)
{
    const size_t element = symwin_type_bytes(c->query.type);

    if (c->scalar_unread)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->scalar (0x%llx) is device memory; set "
                       "options->scalar_on_device, or pass host memory",
                       c->name, (unsigned long long)c->scalar);
    if (!c->scalar_on_device)
        return SYMWIN_OK;
    return sw_window_check_memory(c->query.comm, c->name, "options->scalar", element, c->scalar,
                                  element);
}

static symwin_status look_up(struct call *c, symwin_status status, struct sw_launched *launched)
{
    return sw_buffers_find(c->query.comm, c->name, c->collective->call, status, c->query.type,
                           c->buffers, launched);
}

/* Looks the buffers up. Runs an agreement about them only if it makes a difference. */
static symwin_status find_or_agree(struct call *c, symwin_status status,
                                   struct sw_launched *launched)
{
    const enum sw_connects registers = c->collective->registers;
    symwin_status found;
    int later;

    if (launched == NULL || registers == SW_CONNECTS_NEVER)
        return look_up(c, status, launched); /* no buffer decides, so nothing is agreed on */
    later = launched->later;
    launched->later = 1;
    found = look_up(c, status, launched);
    launched->later = later;
    if (launched->agrees && registers == SW_CONNECTS_TO_USE)
        launched->agrees = sw_select_wants_windows(&c->query, c->algo);
    if (!launched->agrees)
        return found;
    launched->agrees = later;
    if (found == SYMWIN_OK)
        launched->checked = SW_CHECKED;
    return later ? SYMWIN_OK : look_up(c, status, launched);
}

static void set_parts(const struct call *c, struct sw_buffer *buffer, enum sw_lies lies)
{
    const int registers = c->collective->registers != SW_CONNECTS_NEVER;

    buffer->decides = registers && lies == SW_AT_ONE_OFFSET;
    buffer->told = registers && lies == SW_WHERE_ROOT_TELLS;
}

symwin_status sw_call_find_buffers(struct call *c, struct sw_launched *launched)
{
    struct sw_buffer *in = &c->buffers[IN], *out = &c->buffers[OUT];
    const size_t nranks = (size_t)c->query.comm->nranks;
    symwin_status status = SYMWIN_OK;

    if (c->count > SW_MOST_BYTES / symwin_type_bytes(c->query.type) / nranks)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds", c->name,
                       (unsigned long long)c->count);
    c->query.bytes = (size_t)c->count * symwin_type_bytes(c->query.type);
    in->bytes = c->query.bytes * (c->collective->in_each ? nranks : 1);
    out->bytes = c->query.bytes * (c->collective->out_each ? nranks : 1);
    set_parts(c, in, c->collective->in);
    set_parts(c, out, c->collective->out);
    if (sw_call_sends_to(c) == SW_NO_RANK)
        *in = (struct sw_buffer){0};
    if (sw_call_receives_from(c) == SW_NO_RANK)
        *out = (struct sw_buffer){0};
    status = check_scalar(c);
    if (status == SYMWIN_OK && in->address != 0 && out->address != 0 &&
        overlap_in_part(c, in->address, out->address))
        status = refuse_overlap(c, "overlap in part");
    status = find_or_agree(c, status, launched);
    if (status != SYMWIN_OK || (launched != NULL && launched->agrees))
        return status;
    return place_buffers(c);
}

/* The same for a collective by parts. Its kernels need no windows, but may use one. */
static symwin_status find_parts_at(struct call *c, const struct sw_request *r)
{
    struct sw_buffer *in = &c->buffers[IN], *out = &c->buffers[OUT];
    struct sw_launched launched = {.stream = c->stream, .checked = r->checked};
    struct sw_parts_found found = {.part = 0};
    symwin_status status = sw_parts_find(r, &found);

    if (status == SYMWIN_OK)
        status = check_scalar(c);
    if (status != SYMWIN_OK)
        return status;
    in->bytes = found.reach[IN];
    out->bytes = found.reach[OUT];
    c->query.bytes = found.part;
    c->query.large_parts = found.most > r->table->large;
    c->query.reads_parts = r->table->in.counts != 0 || r->table->out.counts != 0;
    c->query.short_parts = found.is_short && !c->query.reads_parts;
    c->query.in_place = sw_parts_in_place(r);
    if (in->bytes > 0 && out->bytes > 0 && !c->query.in_place &&
        overlap(c, in->address, out->address))
        return refuse_overlap(c, "overlap in part");
    status = sw_buffers_find(c->query.comm, c->name, c->collective->call, SYMWIN_OK, c->query.type,
                             c->buffers, &launched);
    if (status == SYMWIN_OK) {
        sw_parts_limit(r, c->buffers);
        sw_parts_place(r, c->buffers, c->query.in_place);
    }
    c->query.by_window = r->table->place != SW_NO_OFFSET;
    in->offset = out->offset = 0; /* what kernels use is in the table */
    return status;
}

/* Kernels know by addresses whether a part is in place. */
static symwin_status find_parts(struct call *c, const struct sw_request *r)
{
    const symwin_status status = find_parts_at(c, r);
    struct sw_request by_one;

    if (status != SYMWIN_OK || !sw_parts_by_one_window(r, c->buffers, &by_one))
        return status;
    if (!sw_parts_in_place(&by_one))
        return refuse_overlap(c, in_other_window);
    c->buffers[IN].address = (CUdeviceptr)(uintptr_t)by_one.in;
    c->buffers[OUT].address = (CUdeviceptr)(uintptr_t)by_one.out;
    return find_parts_at(c, &by_one);
}

/* ---- launch ---- */

_Static_assert((int)SW_KERNEL_SUM == SYMWIN_SUM && (int)SW_KERNEL_PROD == SYMWIN_PROD &&
                   (int)SW_KERNEL_MIN == SYMWIN_MIN && (int)SW_KERNEL_MAX == SYMWIN_MAX &&
                   (int)SW_KERNEL_AVERAGE == SYMWIN_AVG &&
                   (int)SW_KERNEL_PREMUL_SUM == SYMWIN_PREMUL_SUM,
               "kernels and callers name operations alike");
_Static_assert((int)SW_KERNEL_F64 == SYMWIN_F64 && (int)SW_KERNEL_F32 == SYMWIN_F32 &&
                   (int)SW_KERNEL_F16 == SYMWIN_F16 && (int)SW_KERNEL_BF16 == SYMWIN_BF16 &&
                   (int)SW_KERNEL_F8E4M3 == SYMWIN_F8E4M3 &&
                   (int)SW_KERNEL_F8E5M2 == SYMWIN_F8E5M2 && (int)SW_KERNEL_I8 == SYMWIN_I8 &&
                   (int)SW_KERNEL_U8 == SYMWIN_U8 && (int)SW_KERNEL_I32 == SYMWIN_I32 &&
                   (int)SW_KERNEL_U32 == SYMWIN_U32 && (int)SW_KERNEL_I64 == SYMWIN_I64 &&
                   (int)SW_KERNEL_U64 == SYMWIN_U64,
               "and types");

/* FNV-1a over words, folded to 32 bits. */
uint32_t sw_call_fold(const uint64_t *words, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i;

    for (i = 0; i < n; i++) {
        hash = (hash ^ words[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

/* The offset that must be equal on all ranks; otherwise 0. */
static uint64_t agreed(const struct call *c, const struct sw_plan *plan, int side)
{
    const enum sw_lies lies = side == IN ? c->collective->in : c->collective->out;

    if ((plan->algorithm->needs & SW_NEEDS_WINDOWS) == 0)
        return 0;
    if (lies == SW_AT_ANY_OFFSET && plan->algorithm->one_offset)
        return c->buffers[side].offset;
    return common(lies, &c->buffers[side]);
}

uint32_t sw_call_digest(const struct call *c, const struct sw_plan *plan)
{
    const uint64_t in_offset = agreed(c, plan, IN), out_offset = agreed(c, plan, OUT);
    const uint64_t words[] = {
        (uint64_t)c->query.collective,
        c->count,
        (uint64_t)c->query.type,
        (uint64_t)c->query.op,
        (uint64_t)c->root,
        (uint64_t)plan->algo,
        in_offset,
        out_offset,
    };

    return sw_call_fold(words, sizeof words / sizeof words[0]);
}

struct sw_kernel_args sw_kernel_args_of(const struct sw_turn *turn)
{
    const symwin_comm *comm = turn->calls->comm;

    return (struct sw_kernel_args){
        .base = comm->group->base,
        .stride = comm->group->stride,
        .state = comm->state_offset,
        .rank = comm->rank,
        .nranks = comm->nranks,
        .done = turn->captured ? 0 : comm->done_address,
        .slot_bytes = comm->slot_bytes,
        .report = comm->report_address,
        .timeout_ns = comm->kernel_timeout_ms < 0 ? 0
                                                  : (uint64_t)comm->kernel_timeout_ms * 1000000u,
    };
}

static struct sw_kernel_args args_of(const struct call *c, const struct sw_turn *turn,
                                     const struct sw_plan *plan)
{
    const struct sw_query *q = &c->query;
    struct sw_kernel_args args = sw_kernel_args_of(turn);

    args.in = c->buffers[IN].address;
    args.out = c->buffers[OUT].address;
    args.in_offset = c->buffers[IN].offset;
    args.out_offset = c->buffers[OUT].offset;
    args.count = c->count;
    args.digest = sw_call_digest(c, plan);
    args.what = SW_WHAT(q->collective, q->type, q->op, plan->algo, q->windows);
    args.op = sw_kernel_op(plan->kernel, q->type, q->op) |
              (c->scalar_on_device ? (uint32_t)SW_KERNEL_SCALAR_AT : 0);
    args.scalar = c->scalar;
    args.bytes = q->bytes;
    args.stage = plan->stage;
    args.to = sw_call_sends_to(c);
    args.from = sw_call_receives_from(c);
    args.in_step = c->collective->in_each ? q->bytes : 0;
    args.out_step = c->collective->out_each ? q->bytes : 0;
    args.root = c->root;
    return args;
}

symwin_status sw_kernel_queue(const struct sw_turn *turn, const struct sw_kernel *kernel,
                              const struct sw_grid *grid, void *args, int fixed)
{
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {.gridDimX = grid->blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = grid->threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = kernel->shared,
                                   .hStream = turn->stream,
                                   .attrs = &early,
                                   .numAttrs = (unsigned)turn->early};
    void *params[] = {args};
    char what[64];
    CUresult result;

    if (turn->calls->graph_launch.exec != NULL && fixed && !turn->captured &&
        turn->partition == NULL)
        return sw_graph_launch(&turn->calls->graph_launch, &config, kernel->function, params,
                               turn->call);
    result = sw_drv.cuLaunchKernelEx(&config, kernel->function, params, NULL);
    if (result == CUDA_SUCCESS)
        return SYMWIN_OK;
    snprintf(what, sizeof what, "cuLaunchKernelEx of %u blocks", grid->blocks);
    return sw_check_stream(result, turn->call, what);
}

/* Launches the call's kernel, for all of the message or for one piece after the other. What ranks
 * compare is the whole call's, and the number of the piece. Adds the blocks to *counted. If a later
 * piece is refused, the peers would wait for it. */
static symwin_status queue_pieces(const struct sw_turn *turn, const struct sw_plan *plan,
                                  struct sw_kernel_args *args, unsigned *counted)
{
    uint64_t left = args->bytes;
    symwin_status status;

    do {
        args->bytes = left < plan->bytes ? left : plan->bytes;
        status = sw_kernel_queue(turn, plan->kernel, &plan->grid, args, 1);
        if (status == SYMWIN_OK)
            *counted += plan->grid.blocks;
        args->in += args->bytes;
        args->out += args->bytes;
        left -= args->bytes;
        args->digest++;
    } while (left > 0 && status == SYMWIN_OK);
    if (status != SYMWIN_OK && *counted > 0 && !turn->captured)
        (void)symwin_comm_abort(turn->calls->comm);
    return status;
}

/* Queues the call in the stream, as `turn` allows. *counted: the blocks that the device will have
 * counted when it has ended. */
static symwin_status queue(const struct call *c, const struct sw_turn *turn,
                           const struct sw_plan *plan, unsigned *counted)
{
    struct sw_kernel_args args = args_of(c, turn, plan);
    symwin_status status;

    *counted = 0;
    if (c->table == NULL && plan->algorithm->queue == NULL)
        return queue_pieces(turn, plan, &args, counted);
    if (c->table == NULL) {
        status = plan->algorithm->queue(&(struct sw_call){.query = &c->query,
                                                          .plan = plan,
                                                          .args = &args,
                                                          .stream = c->stream,
                                                          .early = turn->early});
    } else {
        c->table->call = args;
        status = turn->calls->rows != NULL ? sw_parts_queue_rows(turn, c->table) : SYMWIN_OK;
        if (status == SYMWIN_OK)
            status = sw_kernel_queue(turn, plan->kernel, &plan->grid, c->table, 0);
    }
    if (status == SYMWIN_OK)
        *counted = plan->algorithm->queue != NULL ? 1 : plan->grid.blocks;
    return status;
}

symwin_status sw_call_launch(struct call *c)
{
    struct sw_query *q = &c->query;
    struct sw_plan plan;
    struct sw_turn turn;
    unsigned counted = 0;
    symwin_status status = sw_turn_begin(q->comm, c->name, c->stream, &turn);

    if (status != SYMWIN_OK)
        return status;
    q->multiprocessors = turn.multiprocessors;
    q->most_blocks = turn.most_blocks;
    q->buffers = c->buffers;
    status = sw_select_plan(q, c->algo, &c->asked, &plan);
    if (status == SYMWIN_OK)
        status = sw_turn_order(&turn, plan.grid.blocks > plan.put_grid.blocks
                                          ? plan.grid.blocks
                                          : plan.put_grid.blocks);
    if (status == SYMWIN_OK)
        status = queue(c, &turn, &plan, &counted);
    sw_turn_end(&turn, counted > 0, counted);
    return status;
}

/* `later`: the call is launched later, on its stream. */
static symwin_status answer(struct call *c, symwin_collective_info *info, int later)
{
    symwin_status status = SYMWIN_OK;
    struct sw_plan plan;

    c->query.most_blocks = sw_order_most_blocks(c->query.comm);
    c->query.buffers = c->buffers;
    if (later)
        status = sw_order_multiprocessors(c->query.comm, c->name, c->stream,
                                          &c->query.multiprocessors);
    if (status == SYMWIN_OK)
        status = sw_select_plan(&c->query, c->algo, &c->asked, &plan);
    if (status == SYMWIN_OK && later && plan.algorithm->queue != NULL)
        status = sw_copies_check(c->query.comm, c->name, c->stream);
    if (status == SYMWIN_OK)
        *info = (symwin_collective_info){plan.algo, (int)plan.grid.blocks, (int)plan.grid.threads,
                                         plan.measured};
    return status;
}

/* ---- a call ---- */

/* Looks whether the collective's root is a rank. */
static symwin_status check_root(const struct call *c)
{
    if (c->root == SW_NO_RANK || (c->root >= 0 && c->root < c->query.comm->nranks))
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID, "%s: root is %d and must be a rank, 0 to %d", c->name, c->root,
                   c->query.comm->nranks - 1);
}

struct call sw_call_of(const struct sw_request *r)
{
    struct call c = {
        .collective = &sw_collectives[r->collective],
        .name = r->name,
        .buffers = {{.address = (CUdeviceptr)(uintptr_t)r->in},
                    {.address = (CUdeviceptr)(uintptr_t)r->out}},
        .count = r->count,
        .stream = r->stream,
        .query = {.call = r->name,
                  .comm = r->comm,
                  .collective = r->collective,
                  .type = r->type,
                  .op = r->op},
        .root = sw_has_root(r->collective) ? r->root : SW_NO_RANK,
        .scalar = r->scalar,
        .scalar_unread = r->scalar_unread,
        .table = r->table,
    };

    if (r->options != NULL) {
        c.algo = r->options->algo;
        c.scalar_on_device = r->options->scalar_on_device != 0;
        c.asked = (struct sw_grid){(unsigned)r->options->blocks, (unsigned)r->options->threads};
    }
    return c;
}

/* `info`: NULL: launches. `is_checked`: NULL, or the call is launched later, and this is as
 * sw_request_check_grouped() says. */
static symwin_status run(const struct sw_request *r, symwin_collective_info *info, int *is_checked)
{
    struct call c = sw_call_of(r);
    symwin_status status = sw_comm_enter(r->comm, r->name);
    const int later = is_checked != NULL;
    struct sw_launched launched = {.stream = c.stream, .later = later, .checks = later};
    struct sw_scope scope;

    if (status != SYMWIN_OK)
        return status;
    status = check_root(&c);
    if (status == SYMWIN_OK && (c.count > 0 || c.collective->no_data || c.collective->by_parts)) {
        status = sw_scope_enter_context(r->comm->context, &scope);
        if (status == SYMWIN_OK && c.collective->by_parts)
            status = find_parts(&c, r);
        else if (status == SYMWIN_OK && !c.collective->no_data)
            status = sw_call_find_buffers(&c, info == NULL || later ? &launched : NULL);
        if (status == SYMWIN_OK && !launched.agrees)
            status = info != NULL ? answer(&c, info, later) : sw_call_launch(&c);
        sw_scope_leave(&scope);
    }
    if (is_checked != NULL)
        *is_checked = !launched.agrees || launched.checked != SW_CHECKED_NOT;
    sw_comm_leave(r->comm);
    return status;
}

symwin_status sw_request_run(const struct sw_request *r, symwin_collective_info *info)
{
    const struct sw_wide_calls *wide = sw_wide_calls_of(r->comm);

    return wide != NULL ? wide->run(r, info) : run(r, info, NULL);
}

symwin_status sw_request_check_grouped(const struct sw_request *r, int *is_checked)
{
    const struct sw_wide_calls *wide = sw_wide_calls_of(r->comm);
    symwin_collective_info info;

    return wide != NULL ? wide->check(r) : run(r, &info, is_checked);
}

symwin_status sw_request_find(const struct sw_request *r, struct call *found, int *agrees)
{
    struct sw_launched launched = {
        .stream = r->stream, .seen = r->seen, .later = agrees != NULL, .checked = r->checked};
    symwin_status status = sw_comm_enter(r->comm, r->name);
    symwin_collective_info info;
    struct sw_scope scope;

    if (status != SYMWIN_OK)
        return status;
    *found = sw_call_of(r);
    status = sw_scope_enter_context(r->comm->context, &scope);
    if (status == SYMWIN_OK && found->collective->by_parts)
        status = find_parts(found, r);
    else if (status == SYMWIN_OK && found->count > 0)
        status = sw_call_find_buffers(found, &launched);
    if (agrees != NULL)
        *agrees = launched.agrees;
    if (status == SYMWIN_OK && found->count > 0 && agrees == NULL)
        status = answer(found, &info, 1); /* what sw_request_check_grouped() has left out */
    sw_scope_leave(&scope);
    sw_comm_leave(r->comm);
    return status;
}

symwin_status sw_found_run(struct call *found)
{
    symwin_comm *comm = found->query.comm;
    symwin_status status = sw_comm_enter(comm, found->name);
    struct sw_scope scope;

    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK && found->count > 0)
        status = sw_call_launch(found);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return status;
}

symwin_status symwin_comm_follow(symwin_comm *comm, struct CUstream_st *stream)
{
    const char *call = "symwin_comm_follow";
    const struct sw_wide_calls *wide = sw_wide_calls_of(comm);
    symwin_status status = sw_comm_enter(comm, call);
    struct sw_scope scope;

    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK)
        status = wide != NULL ? wide->follow(comm, call, stream)
                              : sw_order_follow(comm, call, stream);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return status;
}
