/* Which part of which chunk is in use: the host's account of memory that is carved out of chunks. Knows nothing of
 * addresses and devices; one thread at a time. */
#ifndef SYMWIN_CARVE_H
#define SYMWIN_CARVE_H

#include <stddef.h>
#include <stdint.h>

#define SW_SUBALLOC_NONE UINT32_MAX
#define SW_SUBALLOC_CLASSES 448
#define SW_SUBALLOC_UNITS ((uint32_t)1 << 17) /* that a chunk has at the most */

/* A stretch of a chunk, in use or free. Two free ones are never neighbours. */
struct sw_block {
    uint32_t chunk;
    uint32_t begin, units;
    uint32_t before, after; /* its neighbours in the chunk, SW_SUBALLOC_NONE at its ends */
    uint32_t next,
        prev; /* of a free one: in the list of its class. `next` of an unused one: the next such */
    uint32_t in_use;
    size_t asked; /* the owner's, as are the next two */
    int holds;
    int late;
};

struct sw_suballoc {
    uint32_t chunk_units;
    struct sw_block *blocks; /* owned */
    uint32_t block_count, block_room;
    uint32_t unused; /* blocks that are none */
    uint32_t lists[SW_SUBALLOC_CLASSES];
    uint64_t filled[SW_SUBALLOC_CLASSES / 64]; /* bit i: list i has blocks */
    uint32_t **
        starts; /* owned, of each chunk: 1 + the block that begins at a unit, or 0. NULL: no such chunk */
    uint32_t chunk_count;
};

void sw_suballoc_init(struct sw_suballoc *suballoc, uint32_t chunk_units);
void sw_suballoc_clear(struct sw_suballoc *suballoc); /* also with chunks in it */

/* An empty chunk more, by the lowest number that is free. SW_SUBALLOC_NONE: no host memory. */
uint32_t sw_suballoc_add(struct sw_suballoc *suballoc);

/* Of a chunk of which nothing is in use. */
void sw_suballoc_remove(struct sw_suballoc *suballoc, uint32_t chunk);

enum sw_suballoc_result { SW_SUBALLOC_DONE, SW_SUBALLOC_FULL, SW_SUBALLOC_NO_HOST };

/* The same calls take the same places, whatever chunks there are in which nothing is in use. */
enum sw_suballoc_result sw_suballoc_take(struct sw_suballoc *suballoc, uint32_t units,
                                         uint32_t *block);

/* Whether nothing is in use in the block's chunk now. */
int sw_suballoc_give(struct sw_suballoc *suballoc, uint32_t block);

/* The block in use that holds the unit, or SW_SUBALLOC_NONE. `longest`: units of the longest block that was taken. */
uint32_t sw_suballoc_find(const struct sw_suballoc *suballoc, uint32_t chunk, uint32_t unit,
                          uint32_t longest);

/* Units of the longest free block of a chunk of which something is in use. */
uint32_t sw_suballoc_largest(const struct sw_suballoc *suballoc);

#endif
