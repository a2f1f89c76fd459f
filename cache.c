/* The ranges' hash and the spans' order. cache.h says what they are. */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_BITS = 12 };

/* ---- known ranges: a hash --------------------------------------------------------------------- */

static size_t bucket_of(const struct sw_cache *cache, uintptr_t begin, uintptr_t end)
{
    const uint64_t mix = (begin >> PAGE_BITS) * 0x9e3779b97f4a7c15u ^
                         ((end - 1) >> PAGE_BITS) * 0xbf58476d1ce4e5b9u;

    return (size_t)(mix >> 32) & (cache->bucket_count - 1);
}

/* A range that was cut off at its allocation's ends still has their pages. */
static int same_pages(const struct sw_range *range, uintptr_t begin, uintptr_t end)
{
    return range->begin >> PAGE_BITS == begin >> PAGE_BITS &&
           (range->end - 1) >> PAGE_BITS == (end - 1) >> PAGE_BITS;
}

struct sw_range *sw_cache_known(const struct sw_cache *cache, uintptr_t begin, uintptr_t end)
{
    struct sw_range *range;

    if (cache->bucket_count == 0)
        return NULL;
    range = cache->buckets[bucket_of(cache, begin, end)];
    /* Two allocations may share a page, and then a range of each has the same pages. */
    while (range != NULL && (!same_pages(range, begin, end) || range->span == NULL ||
                             begin < range->begin || end > range->end))
        range = range->next;
    return range;
}

/* So that a bucket has one range or so. Without memory it has more. */
static int grow(struct sw_cache *cache)
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

static void unhash(struct sw_cache *cache, struct sw_range *range)
{
    struct sw_range **at = &cache->buckets[bucket_of(cache, range->begin, range->end)];

    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
}

/* ---- spans: sorted, and none touches another ---------------------------------------------------- */

/* How many begin at or before the address. */
static size_t spans_up_to(const struct sw_cache *cache, uintptr_t address)
{
    const uintptr_t *begins = cache->begins;
    size_t base = 0, left = cache->span_count;

    while (left > 1) { /* without branches that depend on what is compared */
        const size_t half = left / 2;

        base += (begins[base + half - 1] <= address) * half;
        left -= half;
    }
    return base + (left == 1 && begins[base] <= address);
}

struct sw_span *sw_cache_find(const struct sw_cache *cache, uintptr_t begin, uintptr_t end)
{
    const size_t i = spans_up_to(cache, begin);

    return i > 0 && end <= cache->ends[i - 1] ? cache->spans[i - 1] : NULL;
}

/* Room for a span for each range, and one range more: so that no other step needs memory. */
static int reserve(struct sw_cache *cache)
{
    const size_t room = cache->span_room == 0 ? 16 : 2 * cache->span_room;
    struct sw_span **spans;
    uintptr_t *begins, *ends;

    if (cache->range_count < cache->span_room)
        return 1;
    begins = realloc(cache->begins, room * sizeof *begins);
    if (begins == NULL)
        return 0;
    cache->begins = begins;
    ends = realloc(cache->ends, room * sizeof *ends);
    if (ends == NULL)
        return 0;
    cache->ends = ends;
    spans = realloc(cache->spans, room * sizeof(struct sw_span *));
    if (spans == NULL)
        return 0;
    cache->spans = spans;
    cache->span_room = room;
    return 1;
}

static void insert(struct sw_cache *cache, struct sw_span *span)
{
    const size_t at = spans_up_to(cache, span->begin), after = cache->span_count - at;

    memmove(&cache->begins[at + 1], &cache->begins[at], after * sizeof *cache->begins);
    memmove(&cache->ends[at + 1], &cache->ends[at], after * sizeof *cache->ends);
    memmove(&cache->spans[at + 1], &cache->spans[at], after * sizeof(struct sw_span *));
    cache->begins[at] = span->begin;
    cache->ends[at] = span->end;
    cache->spans[at] = span;
    cache->span_count++;
}

static void take_out(struct sw_cache *cache, size_t i)
{
    const size_t after = cache->span_count - i - 1;

    memmove(&cache->begins[i], &cache->begins[i + 1], after * sizeof *cache->begins);
    memmove(&cache->ends[i], &cache->ends[i + 1], after * sizeof *cache->ends);
    memmove(&cache->spans[i], &cache->spans[i + 1], after * sizeof(struct sw_span *));
    cache->span_count--;
}

static void join(struct sw_span *span, struct sw_range *range)
{
    range->span = span;
    range->beside = span->ranges;
    span->ranges = range;
    span->begin = range->begin < span->begin ? range->begin : span->begin;
    span->end = range->end > span->end ? range->end : span->end;
}

/* Takes the spans that overlap the range, or of its own buffer adjoin it, into the range's own, but for those of other
 * buffers, which are stale. */
static void place(struct sw_cache *cache, struct sw_range *range)
{
    struct sw_span *span = &range->own;
    size_t i = spans_up_to(cache, range->end);

    *span = (struct sw_span){range->begin, range->end, range->buffer_id, NULL};
    join(span, range);
    while (i > 0 && cache->ends[i - 1] >= range->begin) {
        struct sw_span *other = cache->spans[--i];
        const int same = other->buffer_id == range->buffer_id;

        if (!same && (other->end == range->begin || other->begin == range->end))
            continue;
        take_out(cache, i);
        while (other->ranges != NULL) {
            struct sw_range *moved = other->ranges;

            other->ranges = moved->beside;
            moved->span = NULL;
            if (same)
                join(span, moved);
        }
    }
    insert(cache, span);
}

/* ---- ranges ----------------------------------------------------------------------------------- */

struct sw_range *sw_cache_add(struct sw_cache *cache, uintptr_t begin, uintptr_t end, uintptr_t low,
                              uintptr_t high, uint64_t buffer_id)
{
    const uintptr_t page = (uintptr_t)1 << PAGE_BITS;
    struct sw_range *range = reserve(cache) && grow(cache)
                                 ? aligned_alloc(_Alignof(struct sw_range), sizeof *range)
                                 : NULL;
    struct sw_range **bucket;

    if (range == NULL)
        return NULL;
    memset(range, 0, sizeof *range);
    range->begin = begin / page * page > low ? begin / page * page : low;
    range->end = high - end > page - 1 - (end - 1) % page ? ((end - 1) / page + 1) * page : high;
    range->buffer_id = buffer_id;
    bucket = &cache->buckets[bucket_of(cache, range->begin, range->end)];
    range->next = *bucket;
    *bucket = range;
    cache->range_count++;
    place(cache, range);
    return range;
}

void sw_cache_remove(struct sw_cache *cache, struct sw_range *range)
{
    struct sw_span *span = range->span;
    struct sw_range *left = NULL;

    unhash(cache, range);
    cache->range_count--;
    if (span != NULL) {
        take_out(cache, spans_up_to(cache, span->begin) - 1);
        left = span->ranges;
    }
    while (left != NULL) {
        struct sw_range *next = left->beside;

        if (left != range)
            place(cache, left);
        left = next;
    }
    range->span = NULL;
}

int sw_cache_touches(const struct sw_cache *cache, uintptr_t begin, uintptr_t end,
                     uint64_t buffer_id)
{
    size_t i = spans_up_to(cache, end - 1);

    while (i > 0 && cache->ends[i - 1] > begin)
        if (cache->spans[--i]->buffer_id == buffer_id)
            return 1;
    return 0;
}

static void make_stale(struct sw_span *span)
{
    struct sw_range *range = span->ranges;

    while (range != NULL) {
        struct sw_range *next = range->beside;

        range->span = NULL;
        range = next;
    }
}

void sw_cache_forget(struct sw_cache *cache, struct sw_span *span)
{
    take_out(cache, spans_up_to(cache, span->begin) - 1);
    make_stale(span);
}

void sw_cache_each(const struct sw_cache *cache, void (*see)(struct sw_range *range, void *context),
                   void *context)
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

void sw_cache_clear(struct sw_cache *cache)
{
    sw_cache_each(cache, free_range, NULL);
    free(cache->buckets);
    free(cache->begins);
    free(cache->ends);
    free(cache->spans);
    *cache = (struct sw_cache){.buckets = NULL};
}
