/* Sends and receives: checks them, and launches the kernel with a table of them (kernels/pairs.cu).
 *
 * The kernel makes progress with all items of its table. Those that do not fit go to later kernels
 * of the stream. For this, messages have one order that all ranks know (docs/design.md, "Send and
 * receive, and groups"): first by their number among those of their pair in the group, then by the
 * distance of the two ranks. What one rank has of each place in that order, a send, a receive or
 * both, is in one kernel.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/pair_layout.h"
#include "src/collective/order.h"
#include "src/collective/pairs.h"

_Static_assert(sizeof(struct sw_pair_args) <= 4096, "what a kernel takes");
_Static_assert(offsetof(struct sw_pair_args, item) == offsetof(struct sw_few_args, item) &&
                   offsetof(struct sw_pair_args, items) == offsetof(struct sw_few_args, items),
               "one is the beginning of the other");

enum { WARP = 32, LEAST_THREADS = 64, MOST_THREADS = 512, WORD_BYTES = 8, VECTOR_BYTES = 16 };
enum { LARGE_CHUNKS = SW_PAIR_SLOTS / 2 };
/* If items are few: threads of a block, while there are blocks for all words. One block takes up to
 * ONE_BLOCK words: a second one costs 0.2 us, because the item's blocks then count themselves. */
enum { FEW_THREADS = 128, ONE_BLOCK = 256 };

/* ---- checks ---------------------------------------------------------------------------------- */

static symwin_status find_buffer(struct sw_pair_call *c)
{
    const int which = c->receives; /* in, out */
    struct sw_buffer buffers[2] = {{0}};
    symwin_status status;
    struct sw_scope scope;

    buffers[which] = (struct sw_buffer){.address = (CUdeviceptr)(uintptr_t)c->buffer,
                                        .bytes = c->bytes};
    status = sw_scope_enter_context(c->comm->context, &scope);
    if (status == SYMWIN_OK)
        status = sw_buffers_find(c->comm, c->name, c->name, SYMWIN_OK, c->type, buffers, NULL);
    sw_scope_leave(&scope);
    c->place = SW_NO_OFFSET;
    if (c->receives && buffers[which].is_public)
        c->place = buffers[which].offset;
    return status;
}

symwin_status sw_pair_check(struct sw_pair_call *c)
{
    symwin_status status = sw_comm_enter(c->comm, c->name);

    if (status != SYMWIN_OK)
        return status;
    if (c->peer < 0 || c->peer >= c->comm->nranks)
        status = sw_fail(SYMWIN_INVALID, "%s: peer is %d and must be a rank, 0 to %d", c->name,
                         c->peer, c->comm->nranks - 1);
    else if (c->count > SW_MOST_BYTES / symwin_type_bytes(c->type))
        status = sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds", c->name,
                         (unsigned long long)c->count);
    c->bytes = (size_t)c->count * symwin_type_bytes(c->type);
    if (status == SYMWIN_OK)
        status = find_buffer(c);
    sw_comm_leave(c->comm);
    return status;
}

static int is_own(const struct sw_pair_call *c)
{
    return c->peer == c->comm->rank;
}

/* The receive from this rank itself that is for call `i`, a send; NULL: there is none. And the
 * other way round. */
static const struct sw_pair_call *partner(const struct sw_pair_call *const *calls, size_t n,
                                          size_t i)
{
    size_t before = 0, j;

    for (j = 0; j < i; j++)
        before += is_own(calls[j]) && calls[j]->receives == calls[i]->receives;
    for (j = 0; j < n; j++)
        if (is_own(calls[j]) && calls[j]->receives != calls[i]->receives && before-- == 0)
            return calls[j];
    return NULL;
}

static symwin_status check_own(const struct sw_pair_call *c, const struct sw_pair_call *other,
                               const char *call)
{
    const uintptr_t in = (uintptr_t)c->buffer;

    if (other == NULL)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d %s itself without a %s in the group; make both between "
                       "symwin_group_begin() and symwin_group_end()",
                       call, c->peer, c->receives ? "receives from" : "sends to",
                       c->receives ? "send" : "receive");
    if (c->count != other->count || c->type != other->type)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d sends %llu elements of %s to itself and receives %llu of %s; "
                       "pass equal counts and types",
                       call, c->peer, (unsigned long long)(c->receives ? other : c)->count,
                       symwin_type_name((c->receives ? other : c)->type),
                       (unsigned long long)(c->receives ? c : other)->count,
                       symwin_type_name((c->receives ? c : other)->type));
    if (in != (uintptr_t)other->buffer && in < (uintptr_t)other->buffer + c->bytes &&
        (uintptr_t)other->buffer < in + c->bytes)
        return sw_fail(SYMWIN_INVALID,
                       "%s: what rank %d sends to itself (0x%llx) and receives (0x%llx) overlap in "
                       "part; pass the same buffer or two that do not touch",
                       call, c->peer, (unsigned long long)in,
                       (unsigned long long)(uintptr_t)other->buffer);
    return SYMWIN_OK;
}

symwin_status sw_pairs_check(const struct sw_pair_call *const *calls, size_t n, const char *call)
{
    symwin_status status = SYMWIN_OK;
    size_t i;

    for (i = 0; i < n && status == SYMWIN_OK; i++) {
        if (calls[i]->stream != calls[0]->stream)
            return sw_fail(SYMWIN_INVALID,
                           "%s: sends and receives of rank %d's communicator are on two streams; "
                           "pass one stream to all that are in a group",
                           call, calls[i]->comm->rank);
        if (is_own(calls[i]))
            status = check_own(calls[i], partner(calls, n, i), call);
    }
    return status;
}

/* ---- the order of messages ------------------------------------------------------------------- */

struct entry {
    struct sw_pair_item item;
    uint64_t number; /* among the messages of its pair in the group */
    int distance;    /* from sender to receiver, modulo the number of ranks */
};

/* Cuts a message into chunks. A large one gets half as many as the ring has slots, or chunks of
 * whole slots: more of them cost more than they gain. Its least chunks, of a quarter of a slot and
 * rounding, are more than SW_PAIR_EAGER too. */
static void cut(const symwin_comm *comm, struct sw_pair_item *item)
{
    const uint64_t slot = SW_PAIR_SLOT_BYTES(comm->slot_bytes), bytes = item->bytes;
    const uint64_t unit = slot / 128 < VECTOR_BYTES ? VECTOR_BYTES
                                                    : slot / 128 / VECTOR_BYTES * VECTOR_BYTES;
    const uint64_t step = unit * LARGE_CHUNKS;
    uint64_t extent = slot / 2;

    if (bytes > SW_PAIR_EAGER * extent) {
        extent = (bytes + step - 1) / step * unit;
        if (extent > slot)
            extent = slot;
    }
    item->extent = (uint32_t)extent;
    item->chunks = bytes <= extent ? 1 : (bytes + extent - 1) / extent;
}

/* If it is of this rank itself, without the place to copy to. */
static struct sw_pair_item item_of(const struct sw_pair_call *c)
{
    const enum sw_pair_kind kind = is_own(c)     ? SW_PAIR_COPY
                                   : c->receives ? SW_PAIR_RECEIVE
                                                 : SW_PAIR_SEND;

    struct sw_pair_item item = {.address = (uintptr_t)c->buffer,
                                .place = c->place,
                                .says = SW_PAIR_SAYS(c->count, c->type),
                                .bytes = c->bytes,
                                .peer = c->peer,
                                .kind = (uint16_t)kind};

    cut(c->comm, &item);
    return item;
}

static struct entry entry_of(const struct sw_pair_call *const *calls, size_t n, size_t i)
{
    const struct sw_pair_call *c = calls[i];
    const int nranks = c->comm->nranks, step = c->peer - c->comm->rank;
    struct entry e = {.item = item_of(c),
                      .distance = ((c->receives ? -step : step) + nranks) % nranks};
    size_t j;

    for (j = 0; j < i; j++)
        e.number += calls[j]->peer == c->peer && calls[j]->receives == c->receives;
    if (is_own(c))
        e.item.place = (uintptr_t)partner(calls, n, i)->buffer;
    return e;
}

static int compare(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return a->distance - b->distance;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* A launch of a table: its kernel and grid. */
struct pair_plan {
    const struct sw_kernel *kernel;
    struct sw_grid grid;
};

static uint64_t longest(const struct sw_pair_args *args)
{
    uint64_t bytes = 0;
    unsigned i;

    for (i = 0; i < args->items; i++)
        if (bytes < args->item[i].bytes)
            bytes = args->item[i].bytes;
    return bytes;
}

/* Whole warps with a thread for each word, as long as a block takes so many. */
static unsigned threads_of(uint64_t words, const struct sw_grid *limits, unsigned room)
{
    unsigned threads = MOST_THREADS;

    if (limits->threads > 0)
        threads = limits->threads;
    else if (words < MOST_THREADS)
        threads = words > LEAST_THREADS ? (unsigned)words : LEAST_THREADS;
    threads = (threads + WARP - 1) / WARP * WARP;
    return threads < room ? threads : room;
}

static int is_large(const struct sw_pair_item *item)
{
    return item->chunks > SW_PAIR_EAGER;
}

/* Whether the kernel for few items can do it. */
static int are_few(const struct sw_pair_args *args)
{
    unsigned i;

    for (i = 0; i < args->items && i < SW_PAIR_FEW; i++)
        if (args->item[i].kind == SW_PAIR_COPY || args->item[i].before > 0)
            return 0;
    return args->items <= SW_PAIR_FEW;
}

/* Each item gets equally many blocks. */
static symwin_status plan_few(const struct sw_query *q, const struct sw_grid *asked,
                              const struct sw_pair_args *args, struct pair_plan *plan)
{
    const uint64_t words = (longest(args) + WORD_BYTES - 1) / WORD_BYTES;
    struct sw_grid limits;
    symwin_status status;
    uint64_t parts, most, want;

    plan->kernel = sw_kernels_pairs(q->comm->kernels, 1);
    status = sw_select_pairs(q, plan->kernel, asked, &limits);
    if (status != SYMWIN_OK)
        return status;
    most = limits.blocks / args->items;
    want = most > 0 ? (words + most - 1) / most : 0;
    if (words <= ONE_BLOCK)
        want = words + 1; /* the last thread takes the header */
    else if (want < FEW_THREADS)
        want = FEW_THREADS;
    plan->grid.threads = threads_of(want, &limits, (unsigned)plan->kernel->threads);
    parts = words / plan->grid.threads + 1;
    if (parts > most)
        parts = most;
    plan->grid.blocks = (unsigned)parts * args->items;
    return SYMWIN_OK;
}

static symwin_status plan_any(const struct sw_query *q, const struct sw_grid *asked,
                              const struct sw_pair_args *args, struct pair_plan *plan)
{
    struct sw_grid limits;
    symwin_status status;
    uint64_t blocks = 0;
    unsigned i;

    plan->kernel = sw_kernels_pairs(q->comm->kernels, 0);
    status = sw_select_pairs(q, plan->kernel, asked, &limits);
    if (status != SYMWIN_OK)
        return status;
    for (i = 0; i < args->items; i++)
        blocks += args->item[i].chunks;
    plan->grid.threads = threads_of(longest(args) / WORD_BYTES, &limits,
                                    (unsigned)plan->kernel->threads);
    plan->grid.blocks = blocks < limits.blocks ? (unsigned)blocks : limits.blocks;
    return SYMWIN_OK;
}

static symwin_status plan_of(const struct sw_query *q, const struct sw_grid *asked,
                             const struct sw_pair_args *args, struct pair_plan *plan)
{
    symwin_status status = SYMWIN_OK;

    plan->grid.blocks = 0;
    if (are_few(args))
        status = plan_few(q, asked, args, plan);
    if (status == SYMWIN_OK && plan->grid.blocks == 0)
        status = plan_any(q, asked, args, plan);
    return status;
}

static symwin_status launch(const struct sw_pair_call *c, const struct sw_grid *asked,
                            struct sw_pair_args *args, const char *call)
{
    struct sw_query q = {.call = call, .comm = c->comm};
    struct pair_plan plan = {.grid = {0}};
    struct sw_turn turn;
    symwin_status status = sw_turn_begin(c->comm, call, c->stream, &turn);

    if (status != SYMWIN_OK)
        return status;
    q.multiprocessors = turn.multiprocessors;
    q.most_blocks = turn.most_blocks;
    status = plan_of(&q, asked, args, &plan);
    if (status == SYMWIN_OK)
        status = sw_turn_order(&turn, plan.grid.blocks);
    if (status == SYMWIN_OK) {
        args->call = sw_kernel_args_of(&turn);
        args->call.what = SW_WHAT_PAIRS;
        status = sw_kernel_queue(&turn, plan.kernel, &plan.grid, args, 0);
    }
    sw_turn_end(&turn, status == SYMWIN_OK, plan.grid.blocks);
    return status;
}

static enum symwin_path path_of(const struct sw_pair_item *item)
{
    if (item->kind == SW_PAIR_COPY)
        return SYMWIN_PATH_OWN;
    if (!is_large(item))
        return SYMWIN_PATH_RING;
    if (item->kind == SW_PAIR_SEND)
        return SYMWIN_PATH_RECEIVER;
    return item->place != SW_NO_OFFSET ? SYMWIN_PATH_WINDOW : SYMWIN_PATH_RING;
}

/* Whether an item may not be in the table any more: nothing follows a large message of its pair. */
static int must_follow(const struct sw_pair_args *args, const struct sw_pair_item *item)
{
    unsigned i;

    for (i = 0; i < args->items; i++)
        if (args->item[i].kind == item->kind && args->item[i].peer == item->peer &&
            is_large(&args->item[i]) && item->kind != SW_PAIR_COPY)
            return 1;
    return 0;
}

static void put_in(struct sw_pair_args *args, const struct sw_pair_item *item)
{
    struct sw_pair_item *to = &args->item[args->items];
    unsigned i;

    *to = *item;
    to->last = 1;
    for (i = 0; i < args->items; i++)
        if (args->item[i].kind == item->kind && args->item[i].peer == item->peer) {
            args->item[i].last = 0;
            to->before += (uint32_t)args->item[i].chunks; /* of small ones; a copy needs none */
        }
    args->large |= (uint32_t)is_large(item);
    args->items++;
}

/* Launches the entries, which are in order. */
static symwin_status launch_entries(const struct sw_pair_call *c, const struct sw_grid *asked,
                                    const struct entry *entries, size_t n, const char *call)
{
    struct sw_pair_args args = {.items = 0};
    symwin_status status = SYMWIN_OK;
    size_t i = 0, end;

    while (i < n && status == SYMWIN_OK) {
        int full = 0;
        size_t k;

        for (end = i; end < n && compare(&entries[end], &entries[i]) == 0; end++)
            full |= must_follow(&args, &entries[end].item);
        if (args.items + (end - i) > SW_PAIR_ITEMS || full) {
            status = launch(c, asked, &args, call);
            args = (struct sw_pair_args){.items = 0};
        }
        for (k = i; k < end; k++)
            put_in(&args, &entries[k].item);
        i = end;
    }
    return status == SYMWIN_OK && args.items > 0 ? launch(c, asked, &args, call) : status;
}

static symwin_status find_multiprocessors(const struct sw_pair_call *c, unsigned *out)
{
    struct sw_scope scope;
    symwin_status status = sw_scope_enter_context(c->comm->context, &scope);

    if (status == SYMWIN_OK)
        status = sw_order_multiprocessors(c->comm, c->name, c->stream, out);
    sw_scope_leave(&scope);
    return status;
}

symwin_status sw_pair_answer(const struct sw_pair_call *c, int later, symwin_message_info *info)
{
    const struct sw_pair_item item = item_of(c);
    struct sw_query q = {.call = c->name, .comm = c->comm};
    struct sw_pair_args args = {.items = 0};
    struct pair_plan plan = {.grid = {0}};
    symwin_status status = sw_comm_enter(c->comm, c->name);

    if (status != SYMWIN_OK)
        return status;
    put_in(&args, &item);
    q.most_blocks = sw_order_most_blocks(c->comm);
    if (later)
        status = find_multiprocessors(c, &q.multiprocessors);
    if (status == SYMWIN_OK)
        status = plan_of(&q, &c->asked, &args, &plan);
    if (status == SYMWIN_OK)
        status = sw_select_check(&q, plan.kernel, &c->asked);
    if (status == SYMWIN_OK)
        *info = (symwin_message_info){.algo = SYMWIN_ALGO_ONESHOT,
                                      .blocks = (int)plan.grid.blocks,
                                      .threads = (int)plan.grid.threads,
                                      .few = plan.kernel == sw_kernels_pairs(c->comm->kernels, 1),
                                      .path = path_of(&item)};
    sw_comm_leave(c->comm);
    return status;
}

symwin_status sw_pairs_launch(const struct sw_pair_call *const *calls, size_t n, const char *call)
{
    symwin_comm *comm = calls[0]->comm;
    struct entry *entries = calloc(n, sizeof *entries);
    struct sw_grid asked = {0};
    struct sw_scope scope;
    symwin_status status;
    size_t i, used = 0;

    if (entries == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu sends and receives", call, n);
    for (i = 0; i < n; i++) {
        if (asked.blocks < calls[i]->asked.blocks)
            asked.blocks = calls[i]->asked.blocks;
        if (asked.threads < calls[i]->asked.threads)
            asked.threads = calls[i]->asked.threads;
        if (!is_own(calls[i]) || (!calls[i]->receives && calls[i]->bytes > 0 &&
                                  calls[i]->buffer != partner(calls, n, i)->buffer))
            entries[used++] = entry_of(calls, n, i);
    }
    qsort(entries, used, sizeof *entries, compare);
    status = sw_comm_enter(comm, call);
    if (status == SYMWIN_OK) {
        status = sw_scope_enter_context(comm->context, &scope);
        if (status == SYMWIN_OK)
            status = launch_entries(calls[0], &asked, entries, used, call);
        sw_scope_leave(&scope);
        sw_comm_leave(comm);
    }
    free(entries);
    return status;
}
