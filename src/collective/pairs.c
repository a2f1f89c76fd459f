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

static symwin_status find_buffer(struct sw_pair_call *c, enum sw_checked checked)
{
    struct sw_launched launched = {.stream = c->stream, .checked = checked};
    const int which = c->receives; /* in, out */
    struct sw_buffer buffers[2] = {{0}};
    symwin_status status;
    struct sw_scope scope;

    buffers[which] = (struct sw_buffer){.address = (CUdeviceptr)(uintptr_t)c->buffer,
                                        .bytes = c->bytes};
    status = sw_scope_enter_context(c->comm->context, &scope);
    if (status == SYMWIN_OK)
        status = sw_buffers_find(c->comm, c->name, c->name, SYMWIN_OK, c->type, buffers, &launched);
    sw_scope_leave(&scope);
    c->place = SW_NO_OFFSET;
    if (c->receives && buffers[which].is_public)
        c->place = buffers[which].offset;
    return status;
}

symwin_status sw_pair_check(struct sw_pair_call *c, enum sw_checked checked)
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
        status = find_buffer(c, checked);
    sw_comm_leave(c->comm);
    return status;
}

static int is_own(const struct sw_pair_call *c)
{
    return c->peer == c->comm->rank;
}

static symwin_status check_own(const struct sw_pair_call *send, const struct sw_pair_call *receive,
                               const char *call)
{
    const uintptr_t in = send != NULL ? (uintptr_t)send->buffer : 0;
    const uintptr_t out = receive != NULL ? (uintptr_t)receive->buffer : 0;
    const int rank = (send != NULL ? send : receive)->peer;

    if (send == NULL || receive == NULL)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d %s itself without a %s in the group; make both between "
                       "symwin_group_begin() and symwin_group_end()",
                       call, rank, receive != NULL ? "receives from" : "sends to",
                       receive != NULL ? "send" : "receive");
    if (send->count != receive->count || send->type != receive->type)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d sends %llu elements of %s to itself and receives %llu of %s; "
                       "pass equal counts and types",
                       call, rank, (unsigned long long)send->count, symwin_type_name(send->type),
                       (unsigned long long)receive->count, symwin_type_name(receive->type));
    if (in != out && in < out + receive->bytes && out < in + send->bytes)
        return sw_fail(SYMWIN_INVALID,
                       "%s: what rank %d sends to itself (0x%llx) and receives (0x%llx) overlap in "
                       "part; pass the same buffer or two that do not touch",
                       call, rank, (unsigned long long)in, (unsigned long long)out);
    return SYMWIN_OK;
}

/* ---- the order of messages ------------------------------------------------------------------- */

struct sw_pair_entry {
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

    if (bytes > SW_PAIR_EAGER_BYTES(comm->slot_bytes)) {
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

/* With the number that it has among all calls. */
static void add_entry(struct sw_pairs *pairs, const struct sw_pair_call *c, uint64_t place)
{
    struct sw_pair_entry *e = &pairs->entries[pairs->count];
    const int nranks = c->comm->nranks, step = c->peer - c->comm->rank;

    e->item = item_of(c);
    e->item.place = place;
    e->number = pairs->count++;
    e->distance = ((c->receives ? -step : step) + nranks) % nranks;
}

/* The next send to this rank itself, or receive from it, at `at` or after it; NULL: there is none.
 */
static const struct sw_pair_call *next_own(const struct sw_pair_call *const *calls, size_t n,
                                           int receives, size_t *at)
{
    while (*at < n) {
        const struct sw_pair_call *c = calls[(*at)++];

        if (is_own(c) && c->receives == receives)
            return c;
    }
    return NULL;
}

/* A rank's messages to itself: the first send is for the first receive, and so on. */
static symwin_status add_own(struct sw_pairs *pairs, const struct sw_pair_call *const *calls,
                             size_t n)
{
    symwin_status status = SYMWIN_OK;
    size_t sends = 0, receives = 0;

    while (status == SYMWIN_OK) {
        const struct sw_pair_call *send = next_own(calls, n, 0, &sends);
        const struct sw_pair_call *receive = next_own(calls, n, 1, &receives);

        if (send == NULL && receive == NULL)
            break;
        status = check_own(send, receive, pairs->call);
        if (status == SYMWIN_OK && send->bytes > 0 && send->buffer != receive->buffer)
            add_entry(pairs, send, (uintptr_t)receive->buffer);
    }
    return status;
}

static symwin_status add_all(struct sw_pairs *pairs, const struct sw_pair_call *const *calls,
                             size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (calls[i]->stream != pairs->stream)
            return sw_fail(SYMWIN_INVALID,
                           "%s: sends and receives of rank %d's communicator are on two streams; "
                           "pass one stream to all that are in a group",
                           pairs->call, pairs->comm->rank);
        if (pairs->asked.blocks < calls[i]->asked.blocks)
            pairs->asked.blocks = calls[i]->asked.blocks;
        if (pairs->asked.threads < calls[i]->asked.threads)
            pairs->asked.threads = calls[i]->asked.threads;
        if (!is_own(calls[i]))
            add_entry(pairs, calls[i], calls[i]->place);
    }
    return add_own(pairs, calls, n);
}

static int by_pair(const void *left, const void *right)
{
    const struct sw_pair_entry *a = left, *b = right;

    if (a->distance != b->distance)
        return a->distance - b->distance;
    if (a->item.kind != b->item.kind)
        return a->item.kind - b->item.kind;
    return a->number < b->number ? -1 : 1;
}

static int by_place(const void *left, const void *right)
{
    const struct sw_pair_entry *a = left, *b = right;

    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return a->distance - b->distance;
}

/* Gives each message its number among those of its pair, and all their order. */
static void put_in_order(struct sw_pair_entry *entries, size_t n)
{
    uint64_t number = 0;
    size_t i;

    qsort(entries, n, sizeof *entries, by_pair);
    for (i = 0; i < n; i++) {
        if (i > 0 && (entries[i].distance != entries[i - 1].distance ||
                      entries[i].item.kind != entries[i - 1].item.kind))
            number = 0;
        entries[i].number = number++;
    }
    qsort(entries, n, sizeof *entries, by_place);
}

symwin_status sw_pairs_open(const struct sw_pair_call *const *calls, size_t n, const char *call,
                            struct sw_pairs *pairs)
{
    symwin_status status;

    *pairs = (struct sw_pairs){.comm = calls[0]->comm, .stream = calls[0]->stream, .call = call};
    pairs->entries = calloc(n, sizeof *pairs->entries);
    if (pairs->entries == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu sends and receives", call, n);
    status = add_all(pairs, calls, n);
    if (status != SYMWIN_OK)
        sw_pairs_close(pairs);
    else
        put_in_order(pairs->entries, pairs->count);
    return status;
}

int sw_pairs_left(const struct sw_pairs *pairs)
{
    return pairs->next < pairs->count;
}

void sw_pairs_close(struct sw_pairs *pairs)
{
    free(pairs->entries);
    *pairs = (struct sw_pairs){.count = 0};
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

static symwin_status launch(const struct sw_pairs *pairs, struct sw_pair_args *args)
{
    struct sw_query q = {.call = pairs->call, .comm = pairs->comm};
    struct pair_plan plan = {.grid = {0}};
    struct sw_turn turn;
    symwin_status status = sw_turn_begin(pairs->comm, pairs->call, pairs->stream, &turn);

    if (status != SYMWIN_OK)
        return status;
    q.multiprocessors = turn.multiprocessors;
    q.most_blocks = turn.most_blocks;
    status = plan_of(&q, &pairs->asked, args, &plan);
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

/* Fills a table with the entries that are next. */
static void fill(struct sw_pairs *pairs, struct sw_pair_args *args)
{
    const struct sw_pair_entry *const entries = pairs->entries;

    while (sw_pairs_left(pairs)) {
        const size_t first = pairs->next;
        size_t end;
        int full = 0;

        for (end = first; end < pairs->count && by_place(&entries[end], &entries[first]) == 0;
             end++)
            full |= must_follow(args, &entries[end].item);
        if (args->items + (end - first) > SW_PAIR_ITEMS || full)
            return;
        while (pairs->next < end)
            put_in(args, &entries[pairs->next++].item);
    }
}

symwin_status sw_pairs_launch(struct sw_pairs *pairs)
{
    struct sw_pair_args args = {.items = 0};
    struct sw_scope scope;
    symwin_status status;

    if (!sw_pairs_left(pairs))
        return SYMWIN_OK;
    status = sw_comm_enter(pairs->comm, pairs->call);
    if (status != SYMWIN_OK)
        return status;
    fill(pairs, &args);
    status = sw_scope_enter_context(pairs->comm->context, &scope);
    if (status == SYMWIN_OK)
        status = launch(pairs, &args);
    sw_scope_leave(&scope);
    sw_comm_leave(pairs->comm);
    return status;
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
