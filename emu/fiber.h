/* The CUDA threads of one block, as fibers on one OS thread.
 *
 * An OS thread that runs blocks owns one struct emu_fibers and keeps it for all its blocks: stacks
 * are mapped once. Fibers never move to another OS thread, so thread-local storage (__shared__,
 * emu_dev_self) may be used freely by what runs on them.
 */
#ifndef SYMWIN_EMU_FIBER_H
#define SYMWIN_EMU_FIBER_H

#include <stdatomic.h>

#include "emu.h"

/* One launch, as its blocks see it. Owned by emu_grid_run() for as long as any block runs. */
struct emu_grid {
    const struct sw_emu_kernel *kernel;
    const void *params;
    CUdevice device;
    int partition;
    unsigned grid[3], block[3];
    unsigned shared;   /* dynamic shared memory of a block, bytes */
    atomic_int killed; /* its threads leave at their next pause, barrier or refused access */

    /* grid.c's, under the device's lock */
    unsigned long long blocks;  /* to be run in all */
    unsigned long long started; /* given a place */
    unsigned long long claimed; /* given an index */
    unsigned long long running;
    unsigned long long cost; /* of one block, in places */
    struct emu_grid *queue;
    pthread_cond_t done;
};

struct emu_fibers;

/* Kept as long as its OS thread, which is to the end of the process. NULL: no memory. */
struct emu_fibers *emu_fibers_create(void);

/* Runs block number `index` of the grid to its end, or to its death where the grid is killed. Kills
 * the grid with LAUNCH_OUT_OF_RESOURCES where there is no memory for stacks or shared memory. Returns whether it
 * called emu_block_waits(). */
int emu_fibers_run(struct emu_fibers *fibers, struct emu_grid *grid, unsigned long long index);

/* Ends the grid and leaves `code` on its context; the first code stays. (grid.c) */
void emu_grid_kill(struct emu_grid *grid, CUresult code);

/* All threads of a block of the grid wait for something. Once a block at most. (grid.c) */
void emu_block_waits(struct emu_grid *grid);

/* One turn of a wait that found nothing new: yields, later sleeps for growing times. `turns` starts
 * at 0. (fiber.c) */
void emu_rest(unsigned *turns);

/* Runs a kernel's thread so that each of its stack traces tells which it is. Under ThreadSanitizer. (trail.c) */
struct emu_dev_thread;
void emu_trail_run(const struct emu_dev_thread *me, void (*run)(const void *params),
                   const void *params);

/* From a fiber: its grid; and away for good, which only a killed grid's threads may. */
struct emu_grid *emu_fiber_grid(void);
_Noreturn void emu_fiber_leave(void);

#endif
