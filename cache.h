/* Which ranges of memory are registered: one communicator's, one thread at a time. Knows nothing of devices.
 *
 * A range is what was registered, rounded out to pages within its allocation, with counts of local and of graph
 * references. Where ranges of one buffer overlap or adjoin, a search takes them as one: a span. A range whose addresses have
 * become another buffer's is stale: it is in no span and is not found any more, but goes only when its references do. */
#ifndef SYMWIN_CACHE_H
#define SYMWIN_CACHE_H

#include <stddef.h>
#include <stdint.h>

enum sw_reference { SW_REF_LOCAL, SW_REF_GRAPH };

struct sw_span {
    uintptr_t begin, end;
    uint64_t buffer_id;
    struct sw_range *ranges;
};

struct sw_range {
    /* A known range is found and counted by these: one line of the processor's cache. */
    _Alignas(64) struct sw_range *next; /* in its bucket */
    uintptr_t begin, end;
    struct sw_span *span; /* NULL: stale */
    uint64_t buffer_id;   /* of the physical allocation, unique for ever */
    uint32_t refs[2];
    uintptr_t handle; /* this and the next: the owner's, see register.c */
    int foreign;      /* not memory of ours, so that nothing keeps it from being freed */

    struct sw_range *beside; /* the next of its span */
    struct sw_span own;      /* so that a span that falls apart needs no memory */
    void *nccl;              /* the owner's too: what ncclCommRegister() gave, NULL: nothing */
    uint64_t capture;        /* that took the last graph reference, 0: none did */
};

struct sw_cache {
    struct sw_range **buckets; /* owned; by first and last page */
    size_t bucket_count;       /* a power of two, or 0 */
    size_t range_count;
    uintptr_t *begins, *ends; /* owned; of the spans, sorted: what a search reads */
    struct sw_span **spans;   /* owned; the spans are their ranges' */
    size_t span_count, span_room;
};

/* The range that is not stale, of the same pages, and has all of [begin, end); NULL: none. */
struct sw_range *sw_cache_known(const struct sw_cache *cache, uintptr_t begin, uintptr_t end);

/* A new one, without references. It does not go beyond [low, high), its allocation, which is `buffer_id`'s: what other
 * buffers have there is stale from now on. NULL: no host memory. */
struct sw_range *sw_cache_add(struct sw_cache *cache, uintptr_t begin, uintptr_t end, uintptr_t low,
                              uintptr_t high, uint64_t buffer_id);

/* Takes out a range, which is the caller's to free. */
void sw_cache_remove(struct sw_cache *cache, struct sw_range *range);

/* The span that holds all of [begin, end), or NULL. */
struct sw_span *sw_cache_find(const struct sw_cache *cache, uintptr_t begin, uintptr_t end);

/* Whether any range of the buffer has a byte of [begin, end). */
int sw_cache_touches(const struct sw_cache *cache, uintptr_t begin, uintptr_t end,
                     uint64_t buffer_id);

/* Makes all ranges of the span stale. */
void sw_cache_forget(struct sw_cache *cache, struct sw_span *span);

/* Calls see() for each range, which may not change the cache. */
void sw_cache_each(const struct sw_cache *cache, void (*see)(struct sw_range *range, void *context),
                   void *context);

/* Frees all, ranges too. */
void sw_cache_clear(struct sw_cache *cache);

#endif
