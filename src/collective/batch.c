/* Small calls of a group that push, in one launch (kernels/move.cu has the kernels).
 *
 * All ranks must find the same calls for a launch. So what they pass alike decides: collective,
 * count, type, root, algorithm and order, and whether streams are captured. What a rank alone knows
 * changes no more than its streams, its grid, and which of its own calls wait for each other.
 */
#include <stddef.h>
#include <string.h>

#include "src/collective/call.h"

_Static_assert(sizeof(struct sw_group_args) <= 4096, "what a kernel takes");

struct batch {
    struct sw_group_args args;
    struct call calls[SW_GROUP_CALLS];
    cuuint64_t capture; /* that the first call's stream is in; 0: none */
    uint32_t stage;     /* the calls from here on do not use each other's results */
    int in_bundles;     /* the first one has a kernel that sends bundles */
    int are_short;      /* each of them moves bytes and has a kernel for short calls */
    size_t longest;     /* bytes of a part */
    uint64_t digests[SW_GROUP_CALLS];
    int in_flat_range[SW_GROUP_CALLS]; /* a buffer of the call is given by an address there */
};

static uint64_t entries_of(const struct call *c)
{
    return (c->query.bytes + SW_GROUP_WORD_BYTES - 1) / SW_GROUP_WORD_BYTES;
}

static int has_room(const struct batch *b, const struct call *c)
{
    const uint64_t slot = 2 * c->query.comm->slot_bytes / SW_GROUP_ENTRY_BYTES;
    const uint64_t most = slot < SW_GROUP_MOST_ENTRIES ? slot : SW_GROUP_MOST_ENTRIES;

    return b->args.call.calls < SW_GROUP_CALLS && c->query.bytes <= most * SW_GROUP_ENTRY_BYTES &&
           b->args.entries + entries_of(c) <= most;
}

/* Whether the call's stream is captured as the first one's. */
static symwin_status compare_capture(struct batch *b, const struct call *c, int *same)
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    symwin_status status;

    *same = b->args.call.calls > 0 && c->stream == b->calls[0].stream;
    if (*same)
        return SYMWIN_OK;
    status = sw_check_stream(
        sw_drv.cuStreamGetCaptureInfo_v2(c->stream, &capturing, &id, NULL, NULL, NULL), c->name,
        "cuStreamGetCaptureInfo");
    if (capturing == CU_STREAM_CAPTURE_STATUS_NONE)
        id = 0;
    if (b->args.call.calls == 0)
        b->capture = id;
    *same = b->capture == id;
    return status;
}

/* How a call that uses one buffer waits for one that uses the other, if either writes. */
static enum sw_group_waits share_memory(const struct sw_buffer *a, const struct sw_buffer *b)
{
    if (a->bytes == 0 || b->bytes == 0)
        return SW_GROUP_WAITS_NOT;
    if (a->address < b->address + b->bytes && b->address < a->address + a->bytes)
        return SW_GROUP_WAITS;
    return sw_buffers_overlap_in_memory(a, b) ? SW_GROUP_WAITS_ALIAS : SW_GROUP_WAITS_NOT;
}

struct in_ranges {
    const struct call *call;
    int found;
};

static void look_in_range(symwin_comm *comm, void *context)
{
    const struct sw_group *group = comm->group;
    const uint64_t bytes = (uint64_t)group->stride * (uint64_t)comm->nranks;
    struct in_ranges *in = context;

    in->found |= in->call->buffers[IN].address - group->base < bytes ||
                 in->call->buffers[OUT].address - group->base < bytes;
}

/* Whether a buffer is given by its address in a flat range, that of another communicator too: the
 * memory there has another one, by which other calls may know it. */
static int is_in_flat_range(const struct call *c)
{
    struct in_ranges in = {.call = c};

    sw_comm_each(look_in_range, &in);
    return in.found;
}

/* How call `k`, the next, waits for call `i` if it uses what that one writes, or the other way
 * round. A call with a scalar in device memory waits, wherever that lies, and so does the one after
 * it. */
static enum sw_group_waits waits_for(const struct batch *b, const struct call *c, uint32_t k,
                                     uint32_t i)
{
    const struct call *other = &b->calls[i];
    const struct sw_buffer *pairs[][2] = {{&c->buffers[IN], &other->buffers[OUT]},
                                          {&c->buffers[OUT], &other->buffers[OUT]},
                                          {&c->buffers[OUT], &other->buffers[IN]}};
    enum sw_group_waits waits = SW_GROUP_WAITS_NOT;
    size_t j;

    if (c->scalar_on_device || other->scalar_on_device)
        return SW_GROUP_WAITS_ALIAS;
    if (b->in_flat_range[i] || b->in_flat_range[k])
        return SW_GROUP_WAITS_ALIAS;
    for (j = 0; j < sizeof pairs / sizeof pairs[0]; j++) {
        const enum sw_group_waits one = share_memory(pairs[j][0], pairs[j][1]);

        waits = one > waits ? one : waits;
    }
    return waits;
}

/* Whether call `k`, the next, begins a stage, since it waits for calls of the last one. A call that
 * knows what an earlier stage used by another address needs the fence before its own stage. */
static void place_in_stage(struct batch *b, const struct call *c, uint32_t k)
{
    struct sw_group_item *item = b->args.item;
    int alias = 0;
    uint32_t i;

    item[k].waits = SW_GROUP_WAITS_NOT;
    for (i = 0; i < k; i++) {
        const enum sw_group_waits waits = waits_for(b, c, k, i);

        alias |= waits == SW_GROUP_WAITS_ALIAS;
        if (i >= b->stage && waits > item[k].waits)
            item[k].waits = waits;
    }
    if (item[k].waits)
        b->stage = k;
    if (alias)
        item[b->stage].waits = SW_GROUP_WAITS_ALIAS;
}

/* Lists a call: as the next of the batch, or to say what comes after it. */
static struct sw_group_item *list(struct batch *b, const struct call *c, symwin_algo algo,
                                  unsigned number)
{
    struct sw_group_item *item = &b->args.item[b->args.listed++];
    const struct sw_query *q = &c->query;

    item->says = (struct sw_said_call){
        .count = c->count,
        .what = SW_WHAT(q->collective, q->type, q->op, algo, q->windows),
        .root = c->root,
        .number = number};
    return item;
}

static void put_in(struct batch *b, const struct call *c, const struct sw_plan *plan,
                   unsigned number)
{
    struct sw_group_item *item = list(b, c, plan->algo, number);
    const uint32_t k = b->args.call.calls;

    item->in = c->buffers[IN].address;
    item->out = c->buffers[OUT].address;
    item->in_step = c->collective->in_each ? c->query.bytes : 0;
    item->out_step = c->collective->out_each ? c->query.bytes : 0;
    item->bytes = c->query.bytes;
    item->to = sw_call_sends_to(c);
    item->from = sw_call_receives_from(c);
    item->reduces = (uint32_t)c->collective->reduces;
    item->op = (uint32_t)c->query.op | (c->scalar_on_device ? (uint32_t)SW_KERNEL_SCALAR_AT : 0);
    item->scalar = c->scalar;
    item->begin = b->args.entries;
    b->args.entries += (uint32_t)entries_of(c);
    b->args.entries = (b->args.entries + SW_GROUP_ENTRIES - 1) / SW_GROUP_ENTRIES *
                      SW_GROUP_ENTRIES;
    b->in_flat_range[k] = is_in_flat_range(c);
    place_in_stage(b, c, k);
    b->args.call.calls++;
    b->are_short = (k == 0 || b->are_short) && !item->reduces &&
                   plan->kernel->shape == SW_SHAPE_short;
    if (k == 0)
        b->in_bundles = plan->stage == SW_MOVE_BUNDLES;
    if (b->longest < c->query.bytes)
        b->longest = c->query.bytes;
    b->calls[k] = *c;
    b->digests[k] = sw_call_digest(c, plan);
}

/* Finds the calls of the batch. */
static symwin_status gather(struct batch *b, const struct call *const *calls, size_t n,
                            unsigned number, size_t *taken)
{
    symwin_status status = SYMWIN_OK;
    size_t i;

    for (i = 0; i < n && status == SYMWIN_OK; i++, number++) {
        const struct call *c = calls[i];
        struct sw_plan plan = {.algo = c->algo};
        int joins = sw_joins(c->query.collective);

        if (c->count == 0 && joins)
            continue;
        if (joins)
            status = sw_select_plan(&c->query, c->algo, &c->asked, &plan);
        if (status == SYMWIN_OK && joins)
            joins = (plan.algo == SYMWIN_ALGO_ONESHOT ||
                     plan.algo == SYMWIN_ALGO_ONESHOT_SENTINEL) &&
                    has_room(b, c);
        if (status == SYMWIN_OK && joins)
            status = compare_capture(b, c, &joins);
        if (status == SYMWIN_OK && !joins && b->args.call.calls > 0)
            (void)list(b, c, plan.algo, number);
        if (status != SYMWIN_OK || !joins)
            break;
        put_in(b, c, &plan, number);
    }
    *taken = i;
    return status;
}

/* Lets the streams of all calls be ordered with the launch: before it, or after it. */
static symwin_status join_streams(const struct batch *b, struct sw_turn *turn, int after)
{
    symwin_status status = SYMWIN_OK;
    uint32_t k, j;

    for (k = 1; k < b->args.call.calls && status == SYMWIN_OK; k++) {
        const CUstream stream = b->calls[k].stream;

        for (j = 0; b->calls[j].stream != stream; j++)
            ;
        if (j == k) { /* the first call of the stream */
            turn->early = 0;
            status = sw_turn_follow(turn, after ? turn->stream : stream,
                                    after ? stream : turn->stream);
        }
    }
    return status;
}

static void complete_args(struct batch *b, const struct sw_turn *turn)
{
    struct sw_kernel_args *args = &b->args.call;
    const uint32_t calls = args->calls;

    *args = sw_kernel_args_of(turn);
    args->calls = calls;
    args->digest = calls == 1 ? (uint32_t)b->digests[0] : sw_call_fold(b->digests, calls);
    args->what = b->args.item[0].says.what;
    args->root = b->calls[0].root;
    args->to = args->from = SW_EVERY_RANK;
}

/* The kernel and its grid; *q is like each of the calls. */
static symwin_status select_grid(const struct batch *b, struct sw_query *q,
                                 const struct sw_grid *asked, const struct sw_kernel **kernel,
                                 struct sw_grid *grid)
{
    struct sw_grid limits = *asked;
    symwin_status status = SYMWIN_OK;

    *kernel = sw_kernels_group(q->comm->kernels, SW_SHAPE_short);
    if (*kernel != NULL && b->are_short && b->stage == 0) {
        q->bytes = b->longest;
        status = sw_select_group(q, *kernel, b->args.call.calls, asked, grid);
    }
    if (status != SYMWIN_OK || grid->blocks > 0)
        return status;
    *kernel = sw_kernels_group(q->comm->kernels, SW_SHAPE_any);
    q->bytes = (size_t)b->args.entries * SW_GROUP_WORD_BYTES; /* a thread for each */
    if (b->stage > 0)
        limits.blocks = 1; /* calls that use each other's results meet in the block */
    return sw_select_group(q, *kernel, 1, &limits, grid);
}

static symwin_status launch_batch(struct batch *b)
{
    const struct sw_kernel *kernel = NULL;
    struct sw_query q = b->calls[0].query;
    struct sw_grid asked = {0, 0}, grid = {0, 0};
    struct sw_turn turn;
    symwin_status status = sw_turn_begin(q.comm, q.call, b->calls[0].stream, &turn);
    uint32_t k;

    if (status != SYMWIN_OK)
        return status;
    for (k = 0; k < b->args.call.calls; k++) {
        const struct sw_grid *own = &b->calls[k].asked;

        asked.blocks = own->blocks > asked.blocks ? own->blocks : asked.blocks;
        asked.threads = own->threads > asked.threads ? own->threads : asked.threads;
    }
    q.multiprocessors = turn.multiprocessors;
    q.most_blocks = turn.most_blocks;
    status = select_grid(b, &q, &asked, &kernel, &grid);
    if (status == SYMWIN_OK)
        status = sw_turn_order(&turn, grid.blocks);
    if (status == SYMWIN_OK)
        status = join_streams(b, &turn, 0);
    if (status == SYMWIN_OK) {
        complete_args(b, &turn);
        status = sw_kernel_queue(&turn, kernel, &grid, &b->args, 0);
    }
    if (status != SYMWIN_OK) {
        sw_turn_end(&turn, 0, 0);
        return status;
    }
    status = join_streams(b, &turn, 1);
    sw_turn_end(&turn, 1, grid.blocks);
    return status;
}

/* Whether one call goes by its own kernel: always if that sends other words than the kernel for
 * several, since ranks may make the same call in no group, or as the last of one. */
static int goes_alone(const struct batch *b)
{
    if (b->args.call.calls != 1)
        return 0;
    return b->args.listed == 1 || b->in_bundles || b->calls[0].collective->reduces;
}

symwin_status sw_batch_run(const struct call *const *calls, size_t n, unsigned number,
                           size_t *taken)
{
    symwin_comm *comm = calls[0]->query.comm;
    symwin_status status = sw_comm_enter(comm, calls[0]->name);
    struct batch b;
    struct sw_scope scope;

    *taken = 0;
    if (status != SYMWIN_OK)
        return status;
    memset(&b, 0, offsetof(struct batch, calls));
    b.stage = 0;
    b.longest = 0;
    status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK)
        status = gather(&b, calls, n, number, taken);
    if (status == SYMWIN_OK && goes_alone(&b))
        status = sw_call_launch(&b.calls[0]);
    else if (status == SYMWIN_OK && b.args.listed > 1)
        status = launch_batch(&b);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    return status;
}
