/* The pools: the arenas of threads, and their chunks. For pool.c, vmm_alloc.c and inspect/. */
#ifndef SYMWIN_POOL_H
#define SYMWIN_POOL_H

#include "src/memory/memory.h"
#include "src/memory/suballoc.h"

#define SW_POOL_BINS 64

struct sw_arena;

struct sw_chunk {
    struct sw_remains remains; /* first; of a chunk that is given back to the driver */
    struct sw_arena *arena;    /* never changes; its mutex protects the rest */
    struct sw_chunk *every;    /* next of all chunks that the arena ever had; set once */
    struct sw_memory memory;   /* SW_MEMORY_NONE: unused structure */
    uint32_t number;           /* in arena->suballoc; SW_SUBALLOC_NONE: a single allocation */
    uint32_t in_use;           /* allocations */
    size_t offset;             /* single allocation: of the caller's address, if imported */
    size_t asked;              /* single allocation: bytes that the caller asked for */
    int holds;
    int late; /* freed while held: goes back to the pool with the last hold */
    int kept;
    struct sw_chunk *older, *newer; /* in the arena's list of kept chunks */
    struct sw_chunk *next;          /* in a bin, and in the unused and temporary lists */
    struct sw_chunk **link;         /* in a bin: what points to this chunk */
};

struct sw_arena {
    pthread_mutex_t mutex;
    struct sw_arena *next;    /* of all arenas; set once */
    struct sw_arena *sibling; /* next of the same thread */
    int device;
    unsigned flags; /* SYMWIN_MEM_PEERS, SYMWIN_MEM_NCCL */
    int orphan;     /* its thread has ended; protected by pool.mutex */
    size_t granularity;
    size_t keep; /* bytes that all arenas of the device may keep */
    unsigned unit_bits;
    struct sw_suballoc suballoc;         /* its chunks belong to struct sw_chunk */
    struct sw_chunk *oldest, *newest;    /* kept chunks */
    struct sw_chunk *bins[SW_POOL_BINS]; /* kept chunks of single allocations, by size */
    struct sw_chunk *every, *unused;
    symwin_mem_usage usage; /* without what is counted per device */
};

struct sw_pool_settings {
    int off, debug;
    uint64_t keep; /* or SW_KEEP_DEFAULT */
};
extern struct sw_pool_settings sw_pool_settings; /* constant once an arena exists */

/* The calling thread's arena for the device and flags. */
symwin_status sw_arena_of(const char *call, int device, unsigned flags, struct sw_arena **out);

/* Takes at least `bytes`, of which `asked` were asked for. `own`: a single allocation. */
symwin_status sw_arena_take(const char *call, struct sw_arena *arena, size_t asked, size_t bytes,
                            int own, CUdeviceptr *ptr);

/* What is at an address, while the arena's mutex is held. */
struct sw_locked {
    enum sw_owned owned;
    struct sw_chunk *chunk;
    struct sw_block *block; /* NULL: the chunk is a single allocation */
};

/* Takes an allocation back, under the mutex. Call sw_pool_settle() after unlocking it. */
void sw_arena_give(const struct sw_locked *locked, const struct sw_allocation *a);
void sw_pool_settle(struct sw_chunk *chunk);

/* Instead of sw_pool_settle() where the driver must not be called: the next sw_allocations_settle()
 * releases what is kept beyond the limit. */
void sw_pool_settle_later(void);

/* Releases kept chunks of a device until at most `bytes` are kept: first those of arenas whose
 * thread has ended, then those of `own`, or of all arenas if that is NULL. Returns whether it
 * released any. */
int sw_pool_shed(int device, size_t bytes, const struct sw_arena *own);

/* Fills the members that are counted per device. */
void sw_pool_totals(int device, symwin_mem_usage *usage);
void sw_pool_usage(int device, symwin_mem_usage *usage); /* all members; in vmm_alloc.c */

/* Calls see() for every arena; the last is that of imported memory (device -1). It runs under
 * pool.mutex and the arena's mutex, so it may read the whole arena but must not lock anything. */
void sw_pool_each(void (*see)(const struct sw_arena *arena, void *context), void *context);

#endif
