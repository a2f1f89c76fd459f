/* What the library makes of registered ranges, as fuzz/calls.c expects it: when they are one, when they connect, and when
 * that ends. All memory here is symwin's, so an address never becomes another buffer's while it is registered. */
#ifndef SYMWIN_FUZZ_CALLS_RANGES_H
#define SYMWIN_FUZZ_CALLS_RANGES_H

#include "calls_model.h"

enum { PAGE = 4096 };

static int is_live(const struct range *range)
{
    return range->local + range->graph > 0;
}

/* ---- one rank's ranges ---- */

/* The ranges without a gap around the bytes; 0: they are not all registered. */
static int span_of(const struct comm *comm, int rank, const char *ptr, size_t bytes, char **begin,
                   char **end)
{
    const struct range *ranges = comm->ranges[rank];
    const struct range *first = NULL;
    int i;

    for (i = 0; i < RANGES && first == NULL; i++)
        if (is_live(&ranges[i]) && ptr >= ranges[i].begin && ptr < ranges[i].end)
            first = &ranges[i];
    if (first == NULL)
        return 0;
    *begin = first->begin;
    *end = first->end;
    for (i = 0; i < RANGES; i++) {
        const struct range *r = &ranges[i];

        if (!is_live(r) || r->id != first->id || r->begin > *end || r->end < *begin ||
            (r->begin >= *begin && r->end <= *end))
            continue;
        *begin = r->begin < *begin ? r->begin : *begin;
        *end = r->end > *end ? r->end : *end;
        i = -1; /* look again */
    }
    return bytes <= (size_t)(*end - ptr);
}

/* The range of just these pages, NULL: none is. */
static struct range *known_range(struct comm *comm, int rank, const char *ptr, size_t bytes)
{
    const uintptr_t first = (uintptr_t)ptr / PAGE, last = ((uintptr_t)ptr + bytes - 1) / PAGE;
    int i;

    for (i = 0; i < RANGES; i++) {
        struct range *r = &comm->ranges[rank][i];

        if (is_live(r) && (uintptr_t)r->begin / PAGE == first &&
            ((uintptr_t)r->end - 1) / PAGE == last)
            return r;
    }
    return NULL;
}

static int has_room_for_ranges(const struct comm *comm, int rank, int count)
{
    int i;

    for (i = 0; i < RANGES; i++)
        count -= !is_live(&comm->ranges[rank][i]);
    return count <= 0;
}

/* The known range or a new one, without a reference more. */
static struct range *find_or_make(struct comm *comm, int rank, struct memory *m, char *ptr,
                                  size_t bytes)
{
    struct range *r = known_range(comm, rank, ptr, bytes);
    int i = 0;

    if (r != NULL)
        return r;
    while (is_live(&comm->ranges[rank][i]))
        i++;
    r = &comm->ranges[rank][i];
    *r = (struct range){.begin = (char *)((uintptr_t)ptr / PAGE * PAGE),
                        .end = (char *)(((uintptr_t)ptr + bytes + PAGE - 1) / PAGE * PAGE),
                        .memory = m,
                        .id = m->id,
                        .serial = ++model.ranges_made};
    return r;
}

/* ---- what becomes of what is connected ---- */

static int is_touched(const struct comm *comm, int rank, const struct connected *c)
{
    int i;

    for (i = 0; i < RANGES; i++) {
        const struct range *r = &comm->ranges[rank][i];

        if (is_live(r) && r->id == c->id && r->begin < c->begin + c->bytes && r->end > c->begin)
            return 1;
    }
    return 0;
}

static void retire(struct comm *comm, int rank)
{
    int i;

    for (i = 0; i < CONNECTED; i++) {
        struct connected *c = &comm->connected[rank][i];

        if (c->state == IS_CONNECTED && !is_touched(comm, rank, c))
            c->state = IS_RETIRED;
    }
}

/* What graphs have held goes, where they are gone. */
static void collect(struct comm *comm, int rank)
{
    int i;

    for (i = 0; i < RANGES; i++) {
        struct range *r = &comm->ranges[rank][i];

        if (is_live(r))
            r->graph -= r->returned;
        r->returned = 0;
    }
    retire(comm, rank);
}

static void settle(struct comm *comm, int rank)
{
    int i;

    collect(comm, rank);
    for (i = 0; i < CONNECTED; i++)
        if (comm->connected[rank][i].state == IS_RETIRED)
            connected_close(comm, &comm->connected[rank][i]);
}

static void settle_all(void)
{
    int i, r;

    for (i = 0; i < COMMS; i++)
        for (r = 0; r < model.nranks; r++)
            settle(&model.comm[i], r);
}

/* How often a memory is held when all that is over is gone. */
static int holds_settled(const struct memory *m)
{
    static struct comm comm;
    int count = 0, i, r;

    for (i = 0; i < COMMS; i++) {
        comm = model.comm[i];
        for (r = 0; r < model.nranks; r++)
            settle(&comm, r);
        count += holds_in(&comm, m);
    }
    return count;
}

/* What a call finds for bytes that are in no public window: what was refused, or else the smallest that is connected. */
static enum found connected_of(const struct comm *comm, int rank, const char *ptr, size_t bytes,
                               const struct connected **out)
{
    const struct connected *best = NULL;
    enum found found = FOUND_NONE;
    int i;

    for (i = 0; i < CONNECTED; i++) {
        const struct connected *c = &comm->connected[rank][i];

        if (c->state != IS_CONNECTED || ptr < c->begin || ptr >= c->begin + c->bytes ||
            bytes > (size_t)(c->begin + c->bytes - ptr))
            continue;
        if (c->refused) {
            *out = c;
            return FOUND_ONE;
        }
        if (best == NULL || c->bytes < best->bytes) {
            best = c;
            found = FOUND_ONE;
        } else if (c->bytes == best->bytes &&
                   (c->transports != best->transports || c->segment != best->segment)) {
            found = FOUND_SEVERAL;
        }
    }
    *out = best;
    return found;
}

/* ---- connecting ---- */

/* One rank's buffer in the call that connects. */
struct part {
    struct memory *memory;
    char *ptr;
    int registered;       /* and not connected, nor refused, nor in a window */
    size_t before, after; /* what is registered around it, within its allocation */
};

/* A place that is free on all ranks, CONNECTED: none. */
static int connected_place(const struct comm *comm)
{
    int i, r, used;

    for (i = 0; i < CONNECTED; i++) {
        for (used = 0, r = 0; r < model.nranks; r++)
            used += comm->connected[r][i].state != NOT_CONNECTED;
        if (used == 0)
            break;
    }
    return i;
}

/* Whether the windows of a segment that was there or not can have a multicast address. */
static int gets_multicast(const struct comm *comm, struct segment *segment, unsigned flags,
                          int is_new)
{
    if (!comm->info.multicast)
        return 0;
    if ((is_new && (flags & SYMWIN_WINDOW_NO_MULTICAST) == 0) ||
        (flags & SYMWIN_WINDOW_MULTICAST) != 0)
        segment->multicast = 1;
    return segment->multicast && (flags & SYMWIN_WINDOW_NO_MULTICAST) == 0;
}

/* The segment of the buffers, with a window `before` them; -1: they cannot have one. */
static int segment_for(struct comm *comm, const struct part parts[RANKS], size_t before,
                       unsigned *transports)
{
    struct memory *on[RANKS];
    size_t most = 0, room;
    int segment, r;

    for (r = 0; r < model.nranks; r++) {
        on[r] = parts[r].memory;
        most = on[r]->bytes > most ? on[r]->bytes : most;
        if (parts[r].ptr - before - on[r]->ptr != parts[0].ptr - before - on[0]->ptr)
            return -1;
    }
    *transports = SYMWIN_TRANSPORT_PEER;
    segment = common_segment(comm, on);
    if (segment >= 0) {
        if (gets_multicast(comm, &comm->segments[segment], 0, 0))
            *transports |= SYMWIN_TRANSPORT_MULTICAST;
        return segment;
    }
    room = segment_room(comm, most);
    if (room == 0)
        return -1;
    segment = segment_make(comm, room, on);
    if (gets_multicast(comm, &comm->segments[segment], 0, 1))
        *transports |= SYMWIN_TRANSPORT_MULTICAST;
    return segment;
}

/* All ranks' parts of one buffer. 0: the model has no place for it. */
static int connect_one(struct comm *comm, const struct part parts[RANKS], size_t bytes)
{
    const int place = connected_place(comm);
    size_t before = SIZE_MAX, after = SIZE_MAX;
    unsigned transports = 0;
    int segment, r;

    if (place == CONNECTED)
        return 0;
    for (r = 0; r < model.nranks; r++) {
        before = parts[r].before < before ? parts[r].before : before;
        after = parts[r].after < after ? parts[r].after : after;
    }
    segment = segment_for(comm, parts, before, &transports);
    for (r = 0; r < model.nranks; r++) {
        struct connected *c = &comm->connected[r][place];
        const struct part *p = &parts[r];

        *c = (struct connected){.state = IS_CONNECTED, .memory = p->memory};
        if (segment >= 0) {
            c->begin = p->ptr - before;
            c->bytes = before + bytes + after;
            c->segment = segment;
            c->offset = comm->segments[segment].offset + (size_t)(c->begin - p->memory->ptr);
            c->transports = transports;
            c->id = p->memory->id;
            comm->segments[segment].holders++;
        } else { /* each rank refuses all of its own */
            c->refused = 1;
            c->begin = p->ptr - p->before;
            c->bytes = p->before + bytes + p->after;
            c->id = p->registered ? p->memory->id : 0;
        }
    }
    return 1;
}

/* The call that connects what is registered of two buffers. 0: the model has no place for it. */
static int connect_both(struct comm *comm, struct part parts[2][RANKS], size_t bytes)
{
    int same = 1, b, r;

    for (r = 0; r < model.nranks; r++)
        same &= parts[0][r].ptr == parts[1][r].ptr;
    for (b = 0; b < 2; b++) {
        int wanted = 0;

        for (r = 0; r < model.nranks; r++)
            wanted |= parts[b][r].registered;
        if (wanted && !(b == 1 && same) && !connect_one(comm, parts[b], bytes))
            return 0;
    }
    for (r = 0; r < model.nranks; r++)
        retire(comm, r);
    return 1;
}

#endif
