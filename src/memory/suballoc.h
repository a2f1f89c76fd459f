/* Suballocation: which parts of which chunks are in use. Host-side bookkeeping only: it knows no
 * addresses and no devices. One thread at a time. */
#ifndef SYMWIN_SUBALLOC_H
#define SYMWIN_SUBALLOC_H

#include <stddef.h>
#include <stdint.h>

#define SW_SUBALLOC_NONE UINT32_MAX
#define SW_SUBALLOC_CLASSES 448
#define SW_SUBALLOC_UNITS ((uint32_t)1 << 17) /* the most units in a chunk */

/* A range of a chunk, in use or free. Two free blocks are never neighbours. */
struct sw_block {
    uint32_t chunk;
    uint32_t begin, units;
    uint32_t before, after; /* neighbours in the chunk; SW_SUBALLOC_NONE at its ends */
    uint32_t next, prev;    /* free: in the list of its class; unused: `next` links them */
    uint32_t in_use;
    size_t asked; /* this and the next two belong to the caller (pool.c) */
    int holds;
    int late;
};

struct sw_suballoc_chunk {
    void *owner;      /* the caller's */
    uint64_t *begins; /* owned; a bit for each unit: whether a block begins there */
    uint32_t
        *starts; /* behind it; by unit: 1 + the block that begins there, or 0. NULL: no chunk */
};

struct sw_suballoc {
    uint32_t chunk_units;
    struct sw_block *blocks; /* owned */
    uint32_t block_count, block_room;
    uint32_t unused; /* list of unused elements of `blocks` */
    uint32_t lists[SW_SUBALLOC_CLASSES];
    uint64_t filled[SW_SUBALLOC_CLASSES / 64]; /* bit i: list i has blocks */
    struct sw_suballoc_chunk *chunks;          /* owned */
    uint32_t chunk_count;
};

void sw_suballoc_init(struct sw_suballoc *suballoc, uint32_t chunk_units);
void sw_suballoc_clear(struct sw_suballoc *suballoc); /* chunks may be left in it */

/* Adds an empty chunk under the lowest free number. SW_SUBALLOC_NONE: no host memory. */
uint32_t sw_suballoc_add(struct sw_suballoc *suballoc, void *owner);

/* Nothing of the chunk may be in use. */
void sw_suballoc_remove(struct sw_suballoc *suballoc, uint32_t chunk);

enum sw_suballoc_result { SW_SUBALLOC_DONE, SW_SUBALLOC_FULL, SW_SUBALLOC_NO_HOST };

/* The same calls get the same offsets, no matter how many empty chunks there are. */
enum sw_suballoc_result sw_suballoc_take(struct sw_suballoc *suballoc, uint32_t units,
                                         uint32_t *block);

/* Frees a block. Returns whether its chunk is empty now. */
int sw_suballoc_give(struct sw_suballoc *suballoc, uint32_t block);

/* The block in use that contains the unit, or SW_SUBALLOC_NONE. `longest`: units of the longest
 * block that can be in use. */
uint32_t sw_suballoc_find(const struct sw_suballoc *suballoc, uint32_t chunk, uint32_t unit,
                          uint32_t longest);

/* Units of the longest free block in chunks that are not empty. */
uint32_t sw_suballoc_largest(const struct sw_suballoc *suballoc);

#endif
