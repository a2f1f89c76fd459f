/* Which bytes are registered with one communicator. Calls must not run concurrently; none of them
 * calls the driver.
 *
 * A range is the bytes of one registration, with a reference count. The bytes of all ranges
 * together are kept as pieces: sorted intervals that do not overlap. All ranges on a piece are of
 * one buffer. A piece also points to what serves it, which only the cache's owner interprets. Its
 * bytes have stayed registered since that began to serve them.
 *
 * A range becomes stale when its addresses belong to another buffer: it has no pieces and lookups
 * skip it, but it exists until its last reference is released. */
#ifndef SYMWIN_RANGE_CACHE_H
#define SYMWIN_RANGE_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* The head of what serves pieces. */
struct sw_use {
    size_t pieces; /* how many it serves */
    int firm;      /* no other use takes pieces from it, and it takes none from others */
};

struct sw_piece {
    uintptr_t begin, end;
    uint64_t buffer_id;
    struct sw_use *use; /* NULL: nothing serves it */
    uint32_t ranges;    /* how many cover it; each covers all of it */
    uint32_t begins;    /* how many ranges begin where it begins */
    int foreign;        /* another allocator's memory: nothing keeps it from being freed */
    uint64_t born;      /* sw_range_cache.births when its bytes were added */
};

struct sw_range {
    /* Aligned so that finding and counting a known range touches one cache line. */
    _Alignas(64) struct sw_range *next; /* in its bucket */
    uintptr_t begin, end;
    uint64_t buffer_id; /* of the mapping; never reused */
    uintptr_t handle;   /* for the owner: register.c */
    uint32_t refs;      /* for the owner */
    int stale;
    int foreign;
    void *nccl; /* for the owner: from ncclCommRegister(); NULL: none */
};

struct sw_range_cache {
    struct sw_range **buckets; /* owned; hashed by first and last byte */
    size_t bucket_count;       /* a power of two, or 0 */
    size_t range_count;
    struct sw_piece *pieces; /* owned */
    size_t piece_count, piece_room;
    size_t reserved; /* part of the room that is kept for sw_range_cache_serve() */
    uint64_t births; /* ranges added so far */
};

/* The range of exactly these bytes that is not stale; NULL: none. */
struct sw_range *sw_range_cache_known(const struct sw_range_cache *cache, uintptr_t begin,
                                      uintptr_t end);

/* Adds a range without references. Overlapping ranges of other buffers become stale.
 * NULL: no host memory. */
struct sw_range *sw_range_cache_add(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                                    uint64_t buffer_id, int foreign);

/* Removes a range; the caller frees it. */
void sw_range_cache_remove(struct sw_range_cache *cache, struct sw_range *range);

/* The piece that contains the byte, or NULL. */
const struct sw_piece *sw_range_cache_piece(const struct sw_range_cache *cache, uintptr_t at);

/* Whether ranges of one buffer cover all of [begin, end), which must not be empty. Returns the
 * first piece and sets *use to what serves all of the bytes, NULL if that is not one use.
 * Otherwise returns NULL. */
const struct sw_piece *sw_range_cache_find(const struct sw_range_cache *cache, uintptr_t begin,
                                           uintptr_t end, struct sw_use **use);

/* The interval around `at` that ranges of one buffer cover without a gap. A range must cover
 * `at`. */
void sw_range_cache_span(const struct sw_range_cache *cache, uintptr_t at, uintptr_t *begin,
                         uintptr_t *end);

/* Keeps room for `calls` calls of sw_range_cache_serve(), in place of what was reserved before.
 * 0: no host memory. */
int sw_range_cache_reserve(struct sw_range_cache *cache, size_t calls);

/* Lets `use` serve the buffer's pieces in [begin, end). Skips pieces added after `births`. Unless
 * `all`, also skips pieces of another use where that one or `use` is firm. */
void sw_range_cache_serve(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                          uint64_t buffer_id, uint64_t births, int all, struct sw_use *use);

/* Makes all ranges of the buffer that overlap [begin, end) stale. */
void sw_range_cache_forget(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                           uint64_t buffer_id);

/* Calls see() for each range. see() must not add or remove ranges. */
void sw_range_cache_each(const struct sw_range_cache *cache,
                         void (*see)(struct sw_range *range, void *context), void *context);

/* Frees everything, ranges included. */
void sw_range_cache_clear(struct sw_range_cache *cache);

#endif
