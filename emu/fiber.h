/* The CUDA threads of one block, as fibers on one OS thread.
 *
 * An OS thread that runs blocks owns one struct emu_fibers and keeps it for all its blocks, so
 * stacks are mapped once. Fibers never move to another OS thread, so code on them may use
 * thread-local storage (__shared__, emu_dev_self).
 */
#ifndef SYMWIN_EMU_FIBER_H
#define SYMWIN_EMU_FIBER_H

#include <stdatomic.h>

#include "emu.h"

/* One launch, as its blocks see it. emu_grid_run() owns it until the last block has ended. */
struct emu_grid {
    const struct sw_emu_kernel *kernel;
    const void *params;
    CUdevice device;
    int partition;
    unsigned grid[3], block[3];
    unsigned shared;   /* dynamic shared memory per block, bytes */
    atomic_int killed; /* threads leave at the next pause, barrier or refused access */
    int alias_run;     /* for alias.c */

    /* For grid.c, under the device's lock. */
    unsigned long long blocks;  /* to run in all */
    unsigned long long started; /* with a place on the device */
    unsigned long long claimed; /* with an index */
    unsigned long long running;
    unsigned long long cost; /* of one block, in places */
    struct emu_grid *queue;
    pthread_cond_t done;
};

struct emu_fibers;

/* Lives as long as its OS thread, to the end of the process. NULL: no memory. */
struct emu_fibers *emu_fibers_create(void);

/* Runs block number `index` of the grid until it ends or the grid is killed. Kills the grid with
 * LAUNCH_OUT_OF_RESOURCES if there is no memory for stacks or shared memory. Returns whether it
 * called emu_block_waits(). */
int emu_fibers_run(struct emu_fibers *fibers, struct emu_grid *grid, unsigned long long index);

/* Ends the grid and sets the sticky error of its context; the first error stays. (grid.c) */
void emu_grid_kill(struct emu_grid *grid, CUresult code);

/* All threads of a block of the grid are waiting. Called at most once per block. (grid.c) */
void emu_block_waits(struct emu_grid *grid);

/* One round of a wait that found nothing new: yields at first, later sleeps for growing times.
 * `turns` starts at 0. (fiber.c) */
void emu_rest(unsigned *turns);

/* Under ThreadSanitizer: runs a CUDA thread of a kernel so that its stack traces identify it.
 * (trail.c) */
struct emu_dev_thread;
void emu_trail_run(const struct emu_dev_thread *me, void (*run)(const void *params),
                   const void *params);

/* alias.c: before the first block and after the last; and, on a fiber, whether an access to the
 * memory at `host` lacks an alias fence. Called while alias fences are watched only. */
int emu_alias_begin(void);
void emu_alias_end(int run);
int emu_alias_use(const void *host, size_t n, int write, int by_multicast);

/* Called on a fiber: its grid; and an exit without return, only for threads of a killed grid. */
struct emu_grid *emu_fiber_grid(void);
_Noreturn void emu_fiber_leave(void);

#endif
