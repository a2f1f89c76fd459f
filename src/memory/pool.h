/* The pools: threads' arenas, and the chunks in them. For pool.c and vmm_alloc.c. */
#ifndef SYMWIN_POOL_H
#define SYMWIN_POOL_H

#include "src/memory/memory.h"
#include "src/memory/suballoc.h"

#define SW_POOL_BINS 64

struct sw_arena;

struct sw_chunk {
    struct sw_arena *arena;  /* for ever; the rest is under its mutex */
    struct sw_chunk *every;  /* of all that the arena ever had, in use or not; set once */
    struct sw_memory memory; /* SW_MEMORY_NONE: not in use */
    uint32_t number;         /* in the arena's carve; SW_SUBALLOC_NONE: one allocation's own */
    uint32_t in_use;         /* allocations */
    size_t offset; /* of an own allocation: where the caller's address is, in imported memory */
    size_t asked;  /* and as it was asked for */
    int holds;
    int late; /* freed while it was held: it goes with the last hold */
    int kept;
    struct sw_chunk *older, *newer; /* of the arena's kept ones */
    struct sw_chunk *next,
        *prev; /* of those in a bin; next also of others: in a list of the moment */
};

struct sw_arena {
    pthread_mutex_t mutex;
    struct sw_arena *next;    /* of all; set once */
    struct sw_arena *sibling; /* of the same thread, or of none */
    int device;
    unsigned flags; /* SYMWIN_MEM_PEERS, SYMWIN_MEM_NCCL */
    int orphan;     /* its thread has ended; under pool.mutex */
    size_t granularity;
    size_t keep; /* of all of the device */
    unsigned unit_bits;
    struct sw_suballoc suballoc;
    struct sw_chunk **suballocated; /* owned: by number */
    uint32_t suballocated_room;
    struct sw_chunk *oldest, *newest;    /* kept */
    struct sw_chunk *bins[SW_POOL_BINS]; /* of these, own ones by size */
    struct sw_chunk *every, *unused;
    symwin_mem_usage usage; /* but for what is counted by device */
};

struct sw_pool_settings {
    int off, debug;
    uint64_t keep; /* SW_KEEP_DEFAULT */
};
extern struct sw_pool_settings sw_pool_settings; /* constant once there is an arena */

/* This thread's arena for the device and flags. */
symwin_status sw_arena_of(const char *call, int device, unsigned flags, struct sw_arena **out);

/* Memory of the arena: `bytes` and more, of which `asked` were asked for. */
symwin_status sw_arena_take(const char *call, struct sw_arena *arena, size_t asked, size_t bytes,
                            int own, CUdeviceptr *ptr);

/* An allocation, or none: under the arena's mutex. */
struct sw_locked {
    enum sw_owned owned;
    struct sw_chunk *chunk;
    struct sw_block *block; /* NULL: the chunk is the allocation's own */
};

/* Takes the allocation back, while it is locked. To be followed by sw_pool_settle(), when it is not. */
void sw_arena_give(const struct sw_locked *locked, const struct sw_allocation *a);
void sw_pool_settle(struct sw_chunk *chunk);

/* For memory that was taken back where no driver may be called: what is kept beyond its limit goes with the next
 * sw_allocations_settle(). */
void sw_pool_settle_later(void);

/* Gives kept chunks of a device back until there are at most `bytes`: of arenas whose thread has ended first, then of
 * `own`, or of all where that is NULL. Whether there was any. */
int sw_pool_shed(int device, size_t bytes, const struct sw_arena *own);

/* Fills in what is counted by device. */
void sw_pool_totals(int device, symwin_mem_usage *usage);
void sw_pool_usage(int device, symwin_mem_usage *usage); /* all of it: vmm_alloc.c */

/* Calls see() for every arena, last for that of imported memory (its device is -1), under a mutex of all of them and
 * the arena's own: it may look at all of the arena, and call nothing that locks. */
void sw_pool_each(void (*see)(const struct sw_arena *arena, void *context), void *context);

#endif
