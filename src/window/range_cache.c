/* The hash of ranges and the sorted pieces; range_cache.h explains them. */
#include "src/window/range_cache.h"

#include <stdlib.h>
#include <string.h>

/* ---- known ranges: a hash -------------------------------------------------------------------- */

static size_t bucket_of(const struct sw_range_cache *cache, uintptr_t begin, uintptr_t end)
{
    const uint64_t mix = begin * 0x9e3779b97f4a7c15u ^ end * 0xbf58476d1ce4e5b9u;

    return (size_t)(mix >> 32) & (cache->bucket_count - 1);
}

struct sw_range *sw_range_cache_known(const struct sw_range_cache *cache, uintptr_t begin,
                                      uintptr_t end)
{
    struct sw_range *range;

    if (cache->bucket_count == 0)
        return NULL;
    range = cache->buckets[bucket_of(cache, begin, end)];
    while (range != NULL && (range->begin != begin || range->end != end || range->stale))
        range = range->next;
    return range;
}

/* Keeps about one range per bucket; more if there is no host memory to grow. 0: there is none at
 * all. */
static int grow(struct sw_range_cache *cache)
{
    const size_t count = cache->bucket_count == 0 ? 64 : 2 * cache->bucket_count;
    struct sw_range **old = cache->buckets;
    const size_t old_count = cache->bucket_count;
    struct sw_range **buckets;
    size_t i;

    if (cache->range_count < old_count)
        return 1;
    buckets = calloc(count, sizeof(struct sw_range *));
    if (buckets == NULL)
        return old_count > 0;
    cache->buckets = buckets;
    cache->bucket_count = count;
    for (i = 0; i < old_count; i++)
        while (old[i] != NULL) {
            struct sw_range *range = old[i];
            struct sw_range **to = &buckets[bucket_of(cache, range->begin, range->end)];

            old[i] = range->next;
            range->next = *to;
            *to = range;
        }
    free(old);
    return 1;
}

static void unhash(struct sw_range_cache *cache, struct sw_range *range)
{
    struct sw_range **at = &cache->buckets[bucket_of(cache, range->begin, range->end)];

    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
}

/* ---- pieces: sorted, without overlap --------------------------------------------------------- */

/* How many pieces begin at or before the address. */
static size_t pieces_up_to(const struct sw_range_cache *cache, uintptr_t address)
{
    const struct sw_piece *pieces = cache->pieces;
    size_t base = 0, left = cache->piece_count;

    while (left > 1) { /* no branch depends on the comparison */
        const size_t half = left / 2;

        base += (pieces[base + half - 1].begin <= address) * half;
        left -= half;
    }
    return base + (left == 1 && pieces[base].begin <= address);
}

const struct sw_piece *sw_range_cache_piece(const struct sw_range_cache *cache, uintptr_t at)
{
    const size_t i = pieces_up_to(cache, at);

    return i > 0 && at < cache->pieces[i - 1].end ? &cache->pieces[i - 1] : NULL;
}

/* Whether b follows a without a gap and is of the same buffer. */
static int adjoin(const struct sw_piece *a, const struct sw_piece *b)
{
    return a->end == b->begin && a->buffer_id == b->buffer_id;
}

const struct sw_piece *sw_range_cache_find(const struct sw_range_cache *cache, uintptr_t begin,
                                           uintptr_t end, struct sw_use **use)
{
    const struct sw_piece *first = sw_range_cache_piece(cache, begin), *p = first;

    if (first == NULL)
        return NULL;
    *use = first->use;
    while (p->end < end) {
        if (p + 1 == cache->pieces + cache->piece_count || !adjoin(p, p + 1))
            return NULL;
        p++;
        *use = p->use == *use ? *use : NULL;
    }
    return first;
}

void sw_range_cache_span(const struct sw_range_cache *cache, uintptr_t at, uintptr_t *begin,
                         uintptr_t *end)
{
    const struct sw_piece *first = sw_range_cache_piece(cache, at), *last = first;

    while (first > cache->pieces && adjoin(first - 1, first))
        first--;
    while (last + 1 < cache->pieces + cache->piece_count && adjoin(last, last + 1))
        last++;
    *begin = first->begin;
    *end = last->end;
}

static int make_room(struct sw_range_cache *cache, size_t more)
{
    const size_t need = cache->piece_count + cache->reserved + more;
    size_t room = cache->piece_room == 0 ? 16 : cache->piece_room;
    struct sw_piece *pieces;

    if (need <= cache->piece_room)
        return 1;
    while (room < need)
        room *= 2;
    pieces = realloc(cache->pieces, room * sizeof *pieces);
    if (pieces == NULL)
        return 0;
    cache->pieces = pieces;
    cache->piece_room = room;
    return 1;
}

static void insert(struct sw_range_cache *cache, size_t at, const struct sw_piece *piece)
{
    memmove(&cache->pieces[at + 1], &cache->pieces[at],
            (cache->piece_count - at) * sizeof *cache->pieces);
    cache->pieces[at] = *piece;
    cache->piece_count++;
}

/* Splits the piece that contains the address, so that one begins there. Returns the index of the
 * first piece at or after the address. */
static size_t split(struct sw_range_cache *cache, uintptr_t address)
{
    const size_t i = pieces_up_to(cache, address);
    struct sw_piece *p = i > 0 ? &cache->pieces[i - 1] : NULL;
    struct sw_piece rest;

    if (p == NULL || p->end <= address)
        return i;
    if (p->begin == address)
        return i - 1;
    rest = *p;
    rest.begin = address;
    rest.begins = 0;
    p->end = address;
    if (rest.use != NULL)
        rest.use->pieces++;
    insert(cache, i, &rest);
    return i;
}

/* Drops pieces in [from, to] that no range covers, and merges equal neighbours. Two adjoining
 * pieces with equally many ranges, where none begins at the second, have the same ranges: as none
 * begins there, none ends there. */
static void tidy(struct sw_range_cache *cache, size_t from, size_t to)
{
    struct sw_piece *pieces = cache->pieces;
    const size_t stop = to < cache->piece_count ? to + 1 : cache->piece_count;
    size_t out = from, i;

    for (i = from; i < stop; i++) {
        struct sw_piece *p = &pieces[i], *before = out > 0 ? &pieces[out - 1] : NULL;
        const int same = p->ranges > 0 && before != NULL && p->begins == 0 && adjoin(before, p) &&
                         before->use == p->use && before->ranges == p->ranges &&
                         before->born == p->born;

        if (same)
            before->end = p->end;
        if ((same || p->ranges == 0) && p->use != NULL)
            p->use->pieces--;
        if (!same && p->ranges > 0)
            pieces[out++] = *p;
    }
    memmove(&pieces[out], &pieces[stop], (cache->piece_count - stop) * sizeof *pieces);
    cache->piece_count -= stop - out;
}

/* Counts one more range on its bytes. The caller has made room. */
static void cover(struct sw_range_cache *cache, const struct sw_range *range)
{
    uintptr_t at = range->begin;
    size_t first, i;

    split(cache, range->end);
    first = i = split(cache, range->begin);
    for (; at < range->end; i++) {
        struct sw_piece *p = &cache->pieces[i];
        uintptr_t stop = range->end;

        if (i < cache->piece_count && p->begin == at) {
            p->ranges++;
        } else {
            stop = i < cache->piece_count && p->begin < stop ? p->begin : stop;
            insert(cache, i,
                   &(struct sw_piece){.begin = at,
                                      .end = stop,
                                      .buffer_id = range->buffer_id,
                                      .ranges = 1,
                                      .foreign = range->foreign,
                                      .born = cache->births});
        }
        at = cache->pieces[i].end;
    }
    cache->pieces[first].begins++;
}

static void uncover(struct sw_range_cache *cache, const struct sw_range *range)
{
    const size_t first = pieces_up_to(cache, range->begin) - 1;
    size_t i;

    cache->pieces[first].begins--;
    for (i = first; i < cache->piece_count && cache->pieces[i].begin < range->end; i++)
        cache->pieces[i].ranges--;
    tidy(cache, first, i);
}

int sw_range_cache_reserve(struct sw_range_cache *cache, size_t calls)
{
    cache->reserved = 2 * calls;
    return make_room(cache, 0);
}

void sw_range_cache_serve(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                          uint64_t buffer_id, uint64_t births, int all, struct sw_use *use)
{
    size_t first, i;

    split(cache, end);
    first = i = split(cache, begin);
    for (; i < cache->piece_count && cache->pieces[i].begin < end; i++) {
        struct sw_piece *p = &cache->pieces[i];

        if (p->buffer_id != buffer_id || p->born > births ||
            (!all && p->use != NULL && (p->use->firm || use->firm)))
            continue;
        if (p->use != NULL)
            p->use->pieces--;
        p->use = use;
        use->pieces++;
    }
    tidy(cache, first, i);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Makes ranges of other buffers that overlap [begin, end) stale. Returns how many pieces are left
 * there. */
static size_t displace(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                       uint64_t buffer_id)
{
    size_t i = pieces_up_to(cache, end - 1), count = 0;

    while (i > 0 && cache->pieces[i - 1].end > begin) {
        const uint64_t other = cache->pieces[i - 1].buffer_id;

        if (other == buffer_id) {
            i--;
            count++;
            continue;
        }
        sw_range_cache_forget(cache, begin, end, other);
        i = pieces_up_to(cache, end - 1); /* look again */
        count = 0;
    }
    return count;
}

struct sw_range *sw_range_cache_add(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                                    uint64_t buffer_id, int foreign)
{
    struct sw_range *range;
    struct sw_range **bucket;

    /* Two splits add a piece each; each gap before, between and after the pieces adds one too. */
    if (!grow(cache) || !make_room(cache, displace(cache, begin, end, buffer_id) + 3))
        return NULL;
    range = aligned_alloc(_Alignof(struct sw_range), sizeof *range);
    if (range == NULL)
        return NULL;
    memset(range, 0, sizeof *range);
    range->begin = begin;
    range->end = end;
    range->buffer_id = buffer_id;
    range->foreign = foreign;
    bucket = &cache->buckets[bucket_of(cache, begin, end)];
    range->next = *bucket;
    *bucket = range;
    cache->range_count++;
    cache->births++;
    cover(cache, range);
    return range;
}

void sw_range_cache_remove(struct sw_range_cache *cache, struct sw_range *range)
{
    unhash(cache, range);
    cache->range_count--;
    if (!range->stale)
        uncover(cache, range);
}

void sw_range_cache_forget(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                           uint64_t buffer_id)
{
    size_t i;

    for (i = 0; i < cache->bucket_count; i++) {
        struct sw_range *range;

        for (range = cache->buckets[i]; range != NULL; range = range->next) {
            if (range->stale || range->buffer_id != buffer_id || range->begin >= end ||
                range->end <= begin)
                continue;
            range->stale = 1;
            uncover(cache, range);
        }
    }
}

void sw_range_cache_each(const struct sw_range_cache *cache,
                         void (*see)(struct sw_range *range, void *context), void *context)
{
    size_t i;

    for (i = 0; i < cache->bucket_count; i++) {
        struct sw_range *range = cache->buckets[i];

        while (range != NULL) {
            struct sw_range *next = range->next;

            see(range, context);
            range = next;
        }
    }
}

static void free_range(struct sw_range *range, void *unused)
{
    (void)unused;
    free(range);
}

void sw_range_cache_clear(struct sw_range_cache *cache)
{
    sw_range_cache_each(cache, free_range, NULL);
    free(cache->buckets);
    free(cache->pieces);
    *cache = (struct sw_range_cache){.buckets = NULL};
}
