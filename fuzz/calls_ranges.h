/* Model of registered ranges for fuzz/calls.c: which bytes they cover, and which connection serves
 * them. All memory here is symwin's, so an address never becomes another buffer's while it is
 * registered. */
#ifndef SYMWIN_FUZZ_CALLS_RANGES_H
#define SYMWIN_FUZZ_CALLS_RANGES_H

#include "calls_model.h"
#include "src/collective/collective.h"

static int is_live(const struct range *range)
{
    return range->refs > 0;
}

/* ---- one rank's ranges ---- */

/* The contiguous registered bytes around the buffer; 0: not all of it is registered. */
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
        i = -1; /* search again */
    }
    return bytes <= (size_t)(*end - ptr);
}

/* The range of exactly these bytes; NULL: none. */
static struct range *known_range(struct comm *comm, int rank, const char *ptr, size_t bytes)
{
    int i;

    for (i = 0; i < RANGES; i++) {
        struct range *r = &comm->ranges[rank][i];

        if (is_live(r) && r->begin == ptr && (size_t)(r->end - r->begin) == bytes)
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

/* The known range or a new one, without an additional reference. */
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
    *r = (struct range){.begin = ptr, .end = ptr + bytes, .memory = m, .id = m->id};
    return r;
}

/* ---- connections that serve bytes ---- */

static int is_empty(const struct served *s)
{
    return s->begin == s->end;
}

static void serve_stretch(struct comm *comm, int rank, const struct served *stretch)
{
    int i = 0;

    if (stretch->begin >= stretch->end)
        return;
    while (i < SERVED && !is_empty(&comm->served[rank][i]))
        i++;
    fuzz_must(i < SERVED, "more stretches than the model has places for");
    comm->served[rank][i] = *stretch;
}

/* Nothing serves the bytes any more. */
static void unserve(struct comm *comm, int rank, char *begin, char *end)
{
    int i;

    for (i = 0; i < SERVED; i++) {
        const struct served s = comm->served[rank][i];

        if (is_empty(&s) || s.begin >= end || s.end <= begin)
            continue;
        comm->served[rank][i] = (struct served){NULL, NULL, 0, NOTHING};
        serve_stretch(comm, rank, &(struct served){s.begin, begin, s.id, s.place});
        serve_stretch(comm, rank, &(struct served){end, s.end, s.id, s.place});
        i = -1; /* search again */
    }
}

/* Deregistered bytes are not served any more. */
static void trim(struct comm *comm, int rank)
{
    static struct served old[SERVED];
    int i;

    memcpy(old, comm->served[rank], sizeof old);
    memset(comm->served[rank], 0, sizeof comm->served[rank]);
    for (i = 0; i < SERVED; i++) {
        char *at = old[i].begin;

        while (at < old[i].end) {
            char *begin = NULL, *end = NULL, *next = old[i].end;
            int k;

            if (span_of(comm, rank, at, 1, &begin, &end)) {
                next = end < next ? end : next;
                serve_stretch(comm, rank, &(struct served){at, next, old[i].id, old[i].place});
            } else {
                for (k = 0; k < RANGES; k++) {
                    const struct range *r = &comm->ranges[rank][k];

                    if (is_live(r) && r->begin > at && r->begin < next)
                        next = r->begin;
                }
            }
            at = next;
        }
    }
}

/* The index of the connection that serves a byte; *end is reduced to where that ends. */
static int served_at(const struct comm *comm, int rank, const char *at, const char **end)
{
    int i;

    for (i = 0; i < SERVED; i++) {
        const struct served *s = &comm->served[rank][i];

        if (!is_empty(s) && at >= s->begin && at < s->end) {
            *end = s->end < *end ? s->end : *end;
            return s->place;
        }
        if (!is_empty(s) && s->begin > at && s->begin < *end)
            *end = s->begin;
    }
    return NOTHING;
}

/* The index of the one connection that serves all of the bytes. */
static int serves(const struct comm *comm, int rank, const char *ptr, size_t bytes)
{
    const char *at = ptr, *stop = ptr + bytes;
    int place = NOTHING;

    while (at < stop) {
        const char *end = stop;
        const int here = served_at(comm, rank, at, &end);

        if (here == NOTHING || (at > ptr && here != place))
            return NOTHING;
        place = here;
        at = end;
    }
    return place;
}

/* From now on the connection at `place` serves the registered ones of these bytes. Without `all`,
 * it replaces another connection only if neither of the two is a refusal. */
static void serve(struct comm *comm, int rank, char *begin, char *end, int place, int all)
{
    const struct connected *places = comm->connected[rank];
    char *at = begin;

    while (at < end) {
        const char *stop = end;
        const int here = served_at(comm, rank, at, &stop);

        if (all || here == NOTHING || (!places[here].refused && !places[place].refused)) {
            unserve(comm, rank, at, (char *)(uintptr_t)stop);
            serve_stretch(comm, rank,
                          &(struct served){at, (char *)(uintptr_t)stop, places[place].id, place});
        }
        at = (char *)(uintptr_t)stop;
    }
    trim(comm, rank);
}

static int is_used(const struct comm *comm, int rank, int place)
{
    int i;

    for (i = 0; i < SERVED; i++)
        if (!is_empty(&comm->served[rank][i]) && comm->served[rank][i].place == place)
            return 1;
    return comm->connected[rank][place].graphs > 0;
}

#endif
