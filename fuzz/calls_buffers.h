/* The buffers of a planned collective: where they lie, and how the library must treat them. */
#ifndef SYMWIN_FUZZ_CALLS_BUFFERS_H
#define SYMWIN_FUZZ_CALLS_BUFFERS_H

#include "calls_shapes.h"

/* One rank's buffer, and how the library must treat it. */
struct buffer {
    char *ptr;
    struct memory *memory; /* NULL: none */
    int in_window;         /* public, or of its connection */
    size_t offset;         /* in the flat range, if in a window */
    unsigned transports;
    int is_public;
    int place;            /* of its connection; NOTHING: none */
    int registered;       /* completely */
    char *span;           /* start of the registered span */
    size_t before, after; /* registered around it, in its allocation */
    int skip;             /* the result is not defined */
    int nowhere;          /* not memory that a call accepts */
    symwin_status status;
};

/* One rank's call. */
static struct planned {
    const struct sw_collective *is;
    uint64_t count;
    int root;
    size_t bytes, in_bytes, out_bytes; /* of `count` elements, and of the buffers; 0: it has none */
    char *table; /* the arrays of parts, if they are in device memory; otherwise NULL */
    struct buffer in, out;
    int windows;
    int meets; /* in an agreement, before the call */
    unsigned transports;
    symwin_status status;
    symwin_status asked; /* what its query gives, before an agreement */
    symwin_algo algo;    /* which it says */
} planned[RANKS];

/* Sets the connection that serves the buffer. */
static void place_buffer(const struct comm *comm, int rank, struct buffer *b, int place)
{
    const struct connected *c = &comm->connected[rank][place];

    b->is_public = 0;
    b->place = place;
    b->in_window = !c->refused;
    b->offset = c->offset + (size_t)(b->ptr - c->begin);
    b->transports = c->transports;
}

/* Looks up a buffer in one of the rank's memories. */
static void look(const struct comm *comm, int rank, struct buffer *b, size_t bytes, size_t align)
{
    const size_t at = (size_t)(b->ptr - b->memory->ptr), left = b->memory->bytes - at;
    size_t room = b->memory->asked > at ? b->memory->asked - at : 0;
    const struct window *window = NULL;
    const enum found found = window_of(comm, rank, b->ptr, bytes, &window);
    char *begin = NULL, *end = NULL;

    *b = (struct buffer){.ptr = b->ptr, .memory = b->memory, .place = NOTHING};
    b->registered = span_of(comm, rank, b->ptr, bytes, &begin, &end);
    b->span = b->ptr;
    if (b->registered && bytes <= left) {
        begin = begin > b->memory->ptr ? begin : b->memory->ptr;
        end = end < b->ptr + left ? end : b->ptr + left;
        b->before = (size_t)(b->ptr - begin);
        b->after = (size_t)(end - b->ptr) - bytes;
        b->span = begin;
    }
    b->is_public = found >= FOUND_ONE;
    b->skip = found == FOUND_SEVERAL;
    if (b->is_public) {
        b->in_window = 1;
        b->offset = window->offset + (size_t)(b->ptr - window->begin);
        b->transports = window->transports;
    } else if (b->registered) {
        const int place = serves(comm, rank, b->ptr, bytes);

        if (place != NOTHING)
            place_buffer(comm, rank, b, place);
    } else {
        b->nowhere = found == FOUND_PART || b->memory->device != model.device[rank];
    }
    if (b->registered)
        room = left;
    if (b->nowhere || (uintptr_t)b->ptr % align != 0 || (!b->is_public && bytes > room))
        b->status = SYMWIN_INVALID;
    b->skip |= b->is_public && bytes > left;
}

static struct buffer choose_buffer(int rank, unsigned slot, unsigned place)
{
    static const size_t offsets[] = {0, 64, 4096, 8192, GRANULE / 2, 4, 1, 128};
    struct memory *m = &model.memory[rank][slot % MEMORIES];

    if (m->owner == NOBODY)
        return (struct buffer){.ptr = (place & 1) != 0 ? host_memory : NULL};
    if (place == 14) /* across the end of a page */
        return (struct buffer){.memory = m, .ptr = m->ptr + PAGE - 64};
    if (place == 15)
        return (struct buffer){.memory = m, .ptr = m->ptr + m->bytes - 64};
    return (struct buffer){.memory = m, .ptr = m->ptr + offsets[place % 8]};
}

/* Whether two buffers do not overlap, also where one memory has two addresses. */
static int apart(const struct buffer *a, size_t a_bytes, const struct buffer *b, size_t b_bytes)
{
    size_t x, y;

    if (a_bytes == 0 || b_bytes == 0)
        return 1;
    x = (size_t)(a->ptr - a->memory->ptr);
    y = (size_t)(b->ptr - b->memory->ptr);
    return a->memory->physical != b->memory->physical || x + a_bytes <= y || y + b_bytes <= x;
}

/* Where the smaller buffer lies in the larger one if the call is in place. */
static size_t own_offset(const struct planned *p, int rank, int in_moves)
{
    if (in_moves != !((p->is->in_each && !p->is->out_each) || is_reducev(p->is)))
        return 0;
    return (size_t)own_place(p->is, p->count, rank) * (p->count > 0 ? p->bytes / p->count : 0);
}

static int is_in_place_at(const struct planned *p, int rank, uintptr_t in, uintptr_t out)
{
    return in + own_offset(p, rank, 0) == out + own_offset(p, rank, 1);
}

/* Whether both buffers decide, as those of all-reduces. */
static int both_decide(const struct planned *p)
{
    return sw_decides(p->is->in) && sw_decides(p->is->out);
}

static int is_in_place(const struct planned *p, int rank)
{
    return is_in_place_at(p, rank, (uintptr_t)p->in.ptr, (uintptr_t)p->out.ptr);
}

/* Whether the call is in place by other addresses, or its buffers do not overlap in memory. An
 * import counts as other memory. */
static int fits_in_memory(const struct planned *p, int rank)
{
    const size_t x = (size_t)(p->in.ptr - p->in.memory->ptr);
    const size_t y = (size_t)(p->out.ptr - p->out.memory->ptr);

    return (p->windows && both_decide(p) ? p->in.offset == p->out.offset
                                         : is_in_place_at(p, rank, x, y)) ||
           p->in.memory->handle != p->out.memory->handle ||
           apart(&p->in, p->in_bytes, &p->out, p->out_bytes);
}

/* The buffer of a rank's own part alone, whose length the host does not know; NULL: it knows
 * both. */
static struct buffer *hidden(struct planned *p)
{
    if (p->table == NULL)
        return NULL;
    return is_gatherv(p->is) ? &p->in : is_reducev(p->is) ? &p->out : NULL;
}

/* How the call treats its buffers, with the communicator as it is. */
static void judge_buffers(const struct comm *comm, int rank, const struct call *c)
{
    const size_t size = symwin_type_bytes((symwin_type)c->type);
    struct planned *r = &planned[rank];
    struct buffer *const both[2] = {&r->in, &r->out};
    int b;

    r->status = SYMWIN_OK;
    for (b = 0; b < 2; b++)
        if ((b == 0 ? r->in_bytes : r->out_bytes) == 0)
            *both[b] = (struct buffer){.ptr = both[b]->ptr, .place = NOTHING};
        else if (both[b]->memory != NULL)
            look(comm, rank, both[b],
                 both[b] == hidden(r) ? size
                 : b == 1             ? r->out_bytes
                                      : r->in_bytes,
                 size);
        else
            *both[b] = (struct buffer){
                .ptr = both[b]->ptr, .place = NOTHING, .nowhere = 1, .status = SYMWIN_INVALID};
    if (r->in.status != SYMWIN_OK || r->out.status != SYMWIN_OK ||
        (!is_in_place(r, rank) && hidden(r) == NULL && r->in_bytes > 0 && r->out_bytes > 0 &&
         (!is_pairs(r->is) || r->root == 0) && r->in.ptr < r->out.ptr + r->out_bytes &&
         r->out.ptr < r->in.ptr + r->in_bytes))
        r->status = SYMWIN_INVALID;
    if (r->in.memory != NULL && !r->in.nowhere && hidden(r) == &r->in)
        r->in.skip |= r->in_bytes > (size_t)(r->in.memory->ptr + r->in.memory->bytes - r->in.ptr);
    if (r->out.memory != NULL && !r->out.nowhere && hidden(r) == &r->out)
        r->out.skip |= r->out_bytes >
                       (size_t)(r->out.memory->ptr + r->out.memory->bytes - r->out.ptr);
}

/* Whether the call is in place, also by two addresses of one memory. */
static int is_one_buffer(const struct planned *r, int rank)
{
    if (both_decide(r))
        return r->in.offset == r->out.offset;
    return is_in_place(r, rank) ||
           (r->in.in_window && r->out.in_window && r->in.memory->handle == r->out.memory->handle &&
            is_in_place_at(r, rank, (uintptr_t)(r->in.ptr - r->in.memory->ptr),
                           (uintptr_t)(r->out.ptr - r->out.memory->ptr)));
}

/* Whether a buffer allows algorithms over windows. */
static int allows(const struct sw_collective *is, enum sw_lies lies, const struct buffer *b)
{
    return !sw_decides(lies) || (is->registers ? b->in_window : b->is_public);
}

static void judge_algorithm(int rank, const struct call *c)
{
    struct planned *r = &planned[rank];
    const struct sw_algorithm *algorithm = &r->is->algos[c->how.algo];
    unsigned lacks = r->windows ? 0 : SW_NEEDS_WINDOWS;

    if (r->status != SYMWIN_OK || c->how.algo == SYMWIN_ALGO_AUTO)
        return;
    lacks |= (r->transports & SYMWIN_TRANSPORT_MULTICAST) != 0 ? 0 : SW_NEEDS_MULTICAST;
    lacks |= c->type == SYMWIN_U32 ? 0 : SW_NEEDS_KERNEL;
    lacks |= is_one_buffer(r, rank) ? SW_NEEDS_TWO_BUFFERS : 0;
    if (algorithm->chosen == SW_ABSENT || (algorithm->needs & lacks) != 0)
        r->status = SYMWIN_UNSUPPORTED;
}

/* Whether the call may go over windows. */
static void judge_windows(struct planned *r)
{
    r->windows = (sw_decides(r->is->in) || sw_decides(r->is->out)) &&
                 allows(r->is, r->is->in, &r->in) && allows(r->is, r->is->out, &r->out);
    r->transports = r->windows && both_decide(r) ? r->in.transports & r->out.transports : 0;
}

/* With buffers and windows as they are. */
static void judge_call(int rank, const struct call *c)
{
    struct planned *r = &planned[rank];

    if (r->in.in_window && r->out.in_window && !r->is->by_parts && !is_pairs(r->is) &&
        !fits_in_memory(r, rank))
        r->status = SYMWIN_INVALID;
    judge_algorithm(rank, c);
}

/* These calls are too small for any other algorithm. */
static symwin_algo chosen_algo(const struct sw_collective *is, const struct call *c)
{
    return c->how.algo != SYMWIN_ALGO_AUTO ? c->how.algo : is->small;
}

/* What the query gives. */
static void judge_query(int rank, const struct call *c)
{
    struct planned *r = &planned[rank];
    const struct planned before = *r;
    symwin_status asked;
    symwin_algo algo;

    judge_windows(r);
    judge_call(rank, c);
    asked = r->status;
    algo = chosen_algo(r->is, c);
    *r = before;
    r->asked = asked;
    r->algo = algo;
}

/* ---- parts ---- */

/* Where a rank has its arrays in device memory: behind all buffers. NULL: they are on the host. */
static char *choose_table(const struct step *s, int rank, const struct planned *p)
{
    const struct memory *m = p->in.memory;

    if ((s->twist & 32) == 0 || rank == s->odd || !p->is->by_parts || p->count == 0 || m == NULL ||
        m->device != model.device[rank] || m->asked < m->bytes || p->out.memory == NULL)
        return NULL;
    return m->ptr + m->bytes - 1024 + (size_t)rank * sizeof calls->parts;
}

/* Of each rank's part of a buffer. */
static void lengths_of(const struct sw_collective *is, uint64_t count, int rank,
                       struct lengths parts[2])
{
    int b, p;

    for (b = 0; b < 2 && is->by_parts; b++)
        for (p = 0; p < model.nranks; p++) {
            parts[b].counts[p] = count == SIZE_MAX ? SIZE_MAX
                                 : b == 0          ? part_between(is, count, rank, p)
                                                   : part_between(is, count, p, rank);
            parts[b].places[p] = p > 0 ? parts[b].places[p - 1] + parts[b].counts[p - 1] : 0;
        }
}

static void set_parts(struct call *c, int rank)
{
    lengths_of(shape_of(c->collective), c->bytes, rank, c->parts);
    c->table = planned[rank].table;
    if (c->table != NULL && planned[rank].in_bytes == 0)
        c->ptr = NULL;
    if (c->table != NULL && planned[rank].out_bytes == 0)
        c->out = NULL;
}

/* ---- queries ---- */

static int launches_once(const struct call *c)
{
    return c->member_count == 0 && !c->ends_early;
}

/* A launch must be what was said of it. In a group, a send and a receive share one. */
static void check_launched(const struct call *c, int blocks, int threads)
{
    fuzz_must(blocks > 0 && threads > 0, "a query says %d blocks of %d threads", blocks, threads);
    fuzz_must(c->blocks == 0 || ((unsigned)blocks == c->blocks && (unsigned)threads == c->threads),
              "%s launches %u blocks of %u threads, and its query says %d of %d",
              shape_of(c->collective)->call, c->blocks, c->threads, blocks, threads);
}

static void check_message(int rank, const struct call *c, int receives)
{
    const symwin_message_info *info = &c->answers[receives].message;
    const size_t bytes = c->bytes * symwin_type_bytes((symwin_type)c->type);
    const int large = bytes > SW_PAIR_EAGER * SW_PAIR_SLOT_BYTES(c->comm->slot_bytes) / 2;
    const symwin_path path = c->root == 0                  ? SYMWIN_PATH_OWN
                             : !large                      ? SYMWIN_PATH_RING
                             : !receives                   ? SYMWIN_PATH_RECEIVER
                             : planned[rank].out.is_public ? SYMWIN_PATH_WINDOW
                                                           : SYMWIN_PATH_RING;

    fuzz_must(info->algo == SYMWIN_ALGO_ONESHOT && info->path == path &&
                  info->few == (path != SYMWIN_PATH_OWN),
              "a message of %zu bytes goes by path %d, few %d, and its query says %d and %d", bytes,
              (int)path, path != SYMWIN_PATH_OWN, (int)info->path, info->few);
}

/* What the queries have said before a call that succeeded. */
static void check_answers(int rank, const struct call *c)
{
    const symwin_collective_info *info = &c->answers[0].call;
    const symwin_message_info *message = &c->answers[0].message;

    if (!is_asked_about(c) || c->no_result || c->answers[0].got != SYMWIN_OK)
        return;
    if (c->collective != PAIRS) {
        fuzz_must(info->algo == planned[rank].algo && info->measured == 0,
                  "the query of %s says algorithm %d, not %d, measured %d",
                  shape_of(c->collective)->call, (int)info->algo, (int)planned[rank].algo,
                  info->measured);
        /* Copies launch several kernels, and so does a group. */
        if (!planned[rank].meets && info->algo != SYMWIN_ALGO_COPIES && launches_once(c))
            check_launched(c, info->blocks, info->threads);
        return;
    }
    check_message(rank, c, 0);
    check_message(rank, c, 1);
    if (c->root == 0 && launches_once(c))
        check_launched(c, message->blocks, message->threads);
}

#endif
