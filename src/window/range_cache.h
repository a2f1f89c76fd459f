/* Which bytes are registered: one communicator's, one thread at a time. Knows nothing of devices.
 *
 * A range is what was registered, byte for byte, with a count of references. The bytes of all ranges are kept as pieces,
 * sorted: each has the ranges of one buffer on it, and what serves it, which is the owner's affair. A piece's bytes were
 * registered without a break since that began to serve them. A range whose addresses have become another buffer's is stale: it
 * has no piece and is not found any more, but goes only when its references do. */
#ifndef SYMWIN_CACHE_H
#define SYMWIN_CACHE_H

#include <stddef.h>
#include <stdint.h>

/* The head of what serves pieces. */
struct sw_use {
    size_t pieces; /* so many */
    int firm;      /* others do not take its pieces, nor it theirs */
};

struct sw_piece {
    uintptr_t begin, end;
    uint64_t buffer_id;
    struct sw_use *use; /* NULL: nothing serves it */
    uint32_t ranges;    /* that have all of it */
    uint32_t begins;    /* of ranges, here */
    int foreign;        /* not memory of ours, so that nothing keeps it from being freed */
    uint64_t born;      /* when its bytes came, as sw_range_cache.births has it */
};

struct sw_range {
    /* A known range is found and counted by these: one line of the processor's cache. */
    _Alignas(64) struct sw_range *next; /* in its bucket */
    uintptr_t begin, end;
    uint64_t buffer_id; /* of the physical allocation, unique for ever */
    uintptr_t handle;   /* the owner's, see register.c */
    uint32_t refs;      /* and this */
    int stale;
    int foreign;
    void *nccl; /* the owner's too: what ncclCommRegister() gave, NULL: nothing */
};

struct sw_range_cache {
    struct sw_range **buckets; /* owned; by first and last byte */
    size_t bucket_count;       /* a power of two, or 0 */
    size_t range_count;
    struct sw_piece *pieces; /* owned */
    size_t piece_count, piece_room;
    size_t reserved; /* of the room, for sw_range_cache_serve() */
    uint64_t births; /* ranges added so far */
};

/* The range of just these bytes that is not stale; NULL: none. */
struct sw_range *sw_range_cache_known(const struct sw_range_cache *cache, uintptr_t begin,
                                      uintptr_t end);

/* A new one, without references. What other buffers have there is stale from now on. NULL: no host memory. */
struct sw_range *sw_range_cache_add(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                                    uint64_t buffer_id, int foreign);

/* Takes out a range, which is the caller's to free. */
void sw_range_cache_remove(struct sw_range_cache *cache, struct sw_range *range);

/* The piece that has the byte, or NULL. */
const struct sw_piece *sw_range_cache_piece(const struct sw_range_cache *cache, uintptr_t at);

/* Whether ranges of one buffer have all of [begin, end), which is not empty; *use is what serves all of it, or NULL. Returns
 * its first piece, or NULL. */
const struct sw_piece *sw_range_cache_find(const struct sw_range_cache *cache, uintptr_t begin,
                                           uintptr_t end, struct sw_use **use);

/* The bytes without a gap around one that a range has, which are of its buffer. */
void sw_range_cache_span(const struct sw_range_cache *cache, uintptr_t at, uintptr_t *begin,
                         uintptr_t *end);

/* Keeps room for so many calls of sw_range_cache_serve(). 0: no host memory. */
int sw_range_cache_reserve(struct sw_range_cache *cache, size_t calls);

/* From now on `use` serves the buffer's pieces of [begin, end), but for those that came after `births`, and, unless `all`, those
 * that have another use, if either is firm. */
void sw_range_cache_serve(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                          uint64_t buffer_id, uint64_t births, int all, struct sw_use *use);

/* Makes all ranges of the buffer that have a byte of [begin, end) stale. */
void sw_range_cache_forget(struct sw_range_cache *cache, uintptr_t begin, uintptr_t end,
                           uint64_t buffer_id);

/* Calls see() for each range, which may not change which ranges there are. */
void sw_range_cache_each(const struct sw_range_cache *cache,
                         void (*see)(struct sw_range *range, void *context), void *context);

/* Frees all, ranges too. */
void sw_range_cache_clear(struct sw_range_cache *cache);

#endif
