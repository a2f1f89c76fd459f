/* Model of agreements on registered buffers for fuzz/calls.c: when ranks connect, and when that
 * ends. */
#ifndef SYMWIN_FUZZ_CALLS_AGREEMENTS_H
#define SYMWIN_FUZZ_CALLS_AGREEMENTS_H

#include "calls_ranges.h"

/* ---- holds of graphs ---- */

/* Drops the holds of ended graphs. */
static void settle(struct comm *comm, int rank)
{
    int i;

    for (i = 0; i < CONNECTED; i++) {
        struct connected *c = &comm->connected[rank][i];

        if (c->number != 0)
            c->graphs -= c->returned;
        c->returned = 0;
    }
}

static void settle_all(void)
{
    int i, r;

    for (i = 0; i < COMMS; i++)
        for (r = 0; r < model.nranks; r++)
            settle(&model.comm[i], r);
}

/* How often a memory is held without ended graphs. */
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

/* ---- agreements ---- */

/* One rank's buffer in an agreement. */
struct part {
    struct memory *memory;
    char *ptr;
    int none; /* the agreement is not about it; the rest does not count */
    int settled, registered;
    char *span;           /* where the registered span begins, in its allocation */
    size_t before, after; /* registered bytes around the buffer */
};

/* An index that is free on all ranks; CONNECTED: none. */
static int connected_place(const struct comm *comm)
{
    int i, r, used;

    for (i = 0; i < CONNECTED; i++) {
        for (used = 0, r = 0; r < model.nranks; r++)
            used += comm->connected[r][i].number != 0;
        if (used == 0)
            break;
    }
    return i;
}

/* A rank's view of its device, in blocks of calls that have ended. */
static struct view {
    uint32_t done, counted, copied;
    int copying;
} views[RANKS];

static void look_at_devices(const struct comm *comm)
{
    int r;

    for (r = 0; r < model.nranks; r++) {
        const struct sw_registrations *g = comm->ptr[r]->registrations;

        if (g->copying)
            fuzz_must(sw_drv.cuStreamSynchronize(g->side) == CUDA_SUCCESS, "no synchronization");
        views[r] = (struct view){comm->ptr[r]->done, g->counted, comm->ptr[r]->report->done,
                                 g->copying};
    }
}

/* As in an agreement: takes the last answer and asks again. */
static void ask_device(struct view *v)
{
    v->counted = v->copying ? v->copied : v->counted;
    v->copying = v->counted != v->done;
    v->copied = v->done;
}

/* Marks connections that are not used any more as over. */
static void find_over(struct comm *comm)
{
    int i, r;

    for (r = 0; r < model.nranks; r++) {
        int any = 0;

        for (i = 0; i < CONNECTED; i++) {
            struct connected *c = &comm->connected[r][i];

            if (c->number != 0 && !c->over && !is_used(comm, r, i)) {
                c->over = 1;
                c->done = views[r].done;
            }
            any |= c->number != 0 && c->over;
        }
        if (any)
            ask_device(&views[r]);
    }
}

/* Closes connections that are over on all ranks. */
static void take_down(struct comm *comm)
{
    int i, r;

    for (i = 0; i < CONNECTED; i++) {
        int gone = 1;

        for (r = 0; r < model.nranks; r++) {
            const struct connected *c = &comm->connected[r][i];

            gone = gone && c->number != 0 && c->over && (int32_t)(views[r].counted - c->done) >= 0;
        }
        for (r = 0; r < model.nranks && gone; r++)
            connected_close(comm, &comm->connected[r][i]);
    }
}

/* Whether windows of the segment get a multicast address. */
static int gets_multicast(const struct comm *comm, struct segment *segment, unsigned flags,
                          int is_new)
{
    if (!comm->info.multicast || segment->uneven)
        return 0;
    if ((is_new && (flags & SYMWIN_WINDOW_NO_MULTICAST) == 0) ||
        (flags & SYMWIN_WINDOW_MULTICAST) != 0)
        segment->multicast = 1;
    return segment->multicast && (flags & SYMWIN_WINDOW_NO_MULTICAST) == 0;
}

/* The segment of the buffers, with a window that begins `before` bytes earlier; NOTHING: not
 * possible. Buffers that nobody has registered take no multicast. */
static int segment_for(struct comm *comm, const struct part parts[RANKS], size_t before,
                       int registered, unsigned *transports)
{
    const unsigned flags = registered ? 0 : SYMWIN_WINDOW_NO_MULTICAST;
    struct shown on[RANKS];
    int segment, r;
    size_t room;

    for (r = 0; r < model.nranks; r++) {
        on[r] = (struct shown){parts[r].memory,
                               (size_t)(parts[r].ptr - before - parts[r].memory->ptr)};
        if (on[r].offset % GRANULE != on[0].offset % GRANULE)
            return NOTHING;
    }
    *transports = SYMWIN_TRANSPORT_PEER;
    segment = common_segment(comm, on);
    if (segment >= 0) {
        if (gets_multicast(comm, &comm->segments[segment], flags, 0))
            *transports |= SYMWIN_TRANSPORT_MULTICAST;
        return segment;
    }
    room = segment_room(comm, segment_of_all(on).bytes);
    if (room == 0)
        return NOTHING;
    segment = segment_make(comm, room, on);
    if (gets_multicast(comm, &comm->segments[segment], flags, 1))
        *transports |= SYMWIN_TRANSPORT_MULTICAST;
    return segment;
}

/* The newest connection around the buffer, which the rank offers. */
static int place_around(const struct comm *comm, int rank, const struct part *p, size_t bytes)
{
    int best = NOTHING, i;

    for (i = 0; i < CONNECTED; i++) {
        const struct connected *c = &comm->connected[rank][i];

        if (c->number != 0 && !c->over && !c->refused && c->id == p->memory->id &&
            p->ptr >= c->begin && p->ptr <= c->begin + c->bytes &&
            bytes <= (size_t)(c->begin + c->bytes - p->ptr) &&
            (best == NOTHING || c->number > comm->connected[rank][best].number))
            best = i;
    }
    return best;
}

/* The one connection that all ranks have around the buffer at one offset. */
static int common_place(const struct comm *comm, const struct part parts[RANKS], size_t bytes)
{
    const int place = place_around(comm, 0, &parts[0], bytes);
    int r;

    for (r = 1; r < model.nranks && place != NOTHING; r++)
        if (place_around(comm, r, &parts[r], bytes) != place ||
            parts[r].ptr - comm->connected[r][place].begin !=
                parts[0].ptr - comm->connected[0][place].begin)
            return NOTHING;
    return place;
}

static int all_registered(const struct part parts[RANKS])
{
    int r;

    for (r = 0; r < model.nranks; r++)
        if (!parts[r].registered)
            return 0;
    return 1;
}

static int is_whole(const struct part parts[RANKS])
{
    int r;

    for (r = 1; r < model.nranks; r++)
        if (parts[r].before + parts[r].after != parts[0].before + parts[0].after)
            return 0;
    return 1;
}

/* Whether the same connections serve the bytes of all ranks, from each rank's start. */
static int served_alike(const struct comm *comm, char *const begin[RANKS], size_t bytes)
{
    size_t at, next;
    int r;

    for (r = 1; r < model.nranks; r++)
        for (at = 0; at < bytes; at = next) {
            const char *end = begin[r] + bytes, *first = begin[0] + bytes;

            if (served_at(comm, r, begin[r] + at, &end) !=
                served_at(comm, 0, begin[0] + at, &first))
                return 0;
            next = (size_t)(end - begin[r]);
            next = (size_t)(first - begin[0]) < next ? (size_t)(first - begin[0]) : next;
        }
    return 1;
}

/* Whether the new connection may also take over, on all ranks, what serves the bytes around the
 * buffer. */
static int is_alike(const struct comm *comm, const struct part parts[RANKS], size_t bytes,
                    size_t before, size_t after)
{
    char *common[RANKS], *all[RANKS];
    int r;

    for (r = 0; r < model.nranks; r++) {
        common[r] = parts[r].ptr - before;
        all[r] = parts[r].ptr - parts[r].before;
    }
    return served_alike(comm, common, before + bytes + after) &&
           (!is_whole(parts) || served_alike(comm, all, parts[0].before + bytes + parts[0].after));
}

/* Whether the buffer has one offset in all ranks' allocations. */
static int is_placed(const struct part parts[RANKS])
{
    int r;

    for (r = 1; r < model.nranks; r++)
        if (parts[r].ptr - parts[r].memory->ptr != parts[0].ptr - parts[0].memory->ptr)
            return 0;
    return 1;
}

/* Connects one buffer that is not settled. On entry *place is a connection that all have around it,
 * on return the one that serves it; or NOTHING. 0: the model has no room. */
static int connect_one(struct comm *comm, const struct part parts[RANKS], size_t bytes, int *place,
                       int *alike)
{
    const int registered = all_registered(parts), whole = is_whole(parts);
    size_t before = registered ? SIZE_MAX : 0, after = before;
    unsigned transports = 0;
    int segment, r;

    if (!registered && *place != NOTHING)
        return 1;
    for (r = 0; r < model.nranks && registered; r++) {
        before = parts[r].before < before ? parts[r].before : before;
        after = parts[r].after < after ? parts[r].after : after;
    }
    *alike = registered && is_alike(comm, parts, bytes, before, after);
    segment = segment_for(comm, parts, before, registered, &transports);
    if (segment == NOTHING && (!registered || (!whole && !is_placed(parts)))) {
        *place = NOTHING;
        return 1;
    }
    *place = connected_place(comm);
    if (*place == CONNECTED)
        return 0;
    comm->connections_made++;
    for (r = 0; r < model.nranks; r++) {
        struct connected *c = &comm->connected[r][*place];
        const struct part *p = &parts[r];
        const size_t more = segment == NOTHING && whole ? p->before : before;
        const size_t beyond = segment == NOTHING && whole ? p->after : after;

        *c = (struct connected){.number = comm->connections_made,
                                .refused = segment == NOTHING,
                                .begin = p->ptr - more,
                                .bytes = more + bytes + beyond,
                                .memory = p->memory,
                                .id = p->memory->id};
        if (segment != NOTHING) {
            c->segment = segment;
            c->offset = comm->segments[segment].offset + comm->segments[segment].begin[r] +
                        (size_t)(c->begin - p->memory->ptr);
            c->transports = transports;
            comm->segments[segment].holders++;
        }
        if (!registered)
            continue;
        if (*alike)
            serve(comm, r, c->begin, c->begin + c->bytes, *place, 0);
        serve(comm, r, p->ptr, p->ptr + bytes, *place, 1);
    }
    return 1;
}

static int all_settled(const struct part parts[RANKS])
{
    int r;

    for (r = 0; r < model.nranks; r++)
        if (!parts[r].settled)
            return 0;
    return 1;
}

/* Whether the buffer has, or can get, a window. `place` is a connection that all have around it. */
static int may_serve(const struct part parts[RANKS], int place)
{
    int r;

    for (r = 1; r < model.nranks; r++)
        if ((size_t)(parts[r].ptr - parts[r].memory->ptr) % GRANULE !=
            (size_t)(parts[0].ptr - parts[0].memory->ptr) % GRANULE)
            return all_settled(parts) || place != NOTHING;
    return 1;
}

static int keeps; /* an agreement was made for the same group, which alone removes connections */

/* An agreement on one or two buffers; `places` are the connections that serve them afterwards. 0:
 * the model has no room. */
static int meet(struct comm *comm, struct part parts[2][RANKS], size_t bytes, int places[2])
{
    int same = 1, apart = 1, near = 1, whole = !parts[0]->none && is_whole(parts[0]);
    int alike[2] = {0, 0}, useful, b, r;

    /* What is over by now is not offered. */
    if (!keeps)
        find_over(comm);
    for (b = 0; b < 2; b++)
        places[b] = parts[b]->none ? NOTHING : common_place(comm, parts[b], bytes);
    if (!keeps)
        take_down(comm);
    keeps = 1;
    for (r = 0; r < model.nranks; r++) {
        const int one = !parts[0][r].none && !parts[1][r].none &&
                        parts[0][r].ptr == parts[1][r].ptr;

        same &= one;
        apart &= !one;
        near &= parts[0][r].registered && parts[1][r].registered &&
                parts[0][r].span == parts[1][r].span;
    }
    useful = (parts[0]->none || may_serve(parts[0], places[0])) &&
             (parts[1]->none || may_serve(parts[1], places[1]));
    for (b = 0; b < 2; b++) {
        if (parts[b]->none || all_settled(parts[b]) || !(all_registered(parts[b]) || useful) ||
            !(same || apart)) { /* some ranks work in place, and others do not */
            places[b] = NOTHING;
            continue;
        }
        if (b == 1 && (same || (near && whole && alike[0] && places[0] != NOTHING &&
                                comm->connected[0][places[0]].refused)))
            places[1] = places[0];
        else if (!connect_one(comm, parts[b], bytes, &places[b], &alike[b]))
            return 0;
    }
    return 1;
}

/* The library's ranks must have the connections of the model. */
static void check_connected(const struct comm *comm)
{
    int r, i;

    for (r = 0; r < model.nranks && comm->left == 0 && comm->members == model.nranks; r++) {
        const struct sw_connected *c = comm->ptr[r]->registrations->connected;
        int count = 0, listed = 0;

        for (i = 0; i < CONNECTED; i++)
            count += comm->connected[r][i].number != 0;
        for (; c != NULL; c = c->next) {
            const struct connected *m = NULL;

            listed++;
            for (i = 0; i < CONNECTED && m == NULL; i++)
                if (comm->connected[r][i].number == c->id)
                    m = &comm->connected[r][i];
            fuzz_must(m != NULL, "rank %d has connection %llu, which is none", r,
                      (unsigned long long)c->id);
            fuzz_must((char *)c->window.ptr == m->begin && c->window.bytes == m->bytes &&
                          (c->refused[0] != '\0') == m->refused && c->window.offset == m->offset &&
                          c->window.transports == m->transports,
                      "rank %d: connection %llu is %zu bytes, not %zu", r,
                      (unsigned long long)c->id, c->window.bytes, m->bytes);
        }
        fuzz_must(listed == count, "rank %d has %d connections, not %d", r, listed, count);
    }
}

#endif
