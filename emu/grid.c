/* The thread pool behind the devices, and the block scheduler.
 *
 * Every resident block has its own OS thread, so a block that waits for another one never keeps it
 * from running. A device holds as many blocks as its multiprocessors have places for; more blocks
 * wait in launch order. As on hardware, a grid hangs if it spins for blocks that do not fit.
 *
 * Of the resident blocks, at most ACTIVE at a time run that have not been seen to wait. A block
 * that only computes ends soon and leaves its thread to the next one, so a grid of a thousand such
 * blocks does not need a thousand threads. A block stops counting as active for good once all of
 * its threads have polled in vain a few times (emu_block_waits()).
 *
 * The pool's mutex guards the list of idle workers. Each device has its own mutex for its grids.
 */
#include <stdlib.h>
#include <time.h>

#include "exec.h"
#include "fiber.h"

#define ACTIVE 2

/* ---- the thread pool ------------------------------------------------------------------------- */

struct worker {
    struct worker *next; /* in the list of idle workers */
    pthread_cond_t wake;
    void (*fn)(void *arg);
    void *arg;
    struct emu_fibers *fibers; /* owned; created for its first block */
};

static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct worker *pool_idle;
static unsigned pool_busy;
static atomic_int exiting;
static __thread struct worker *self;

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    pthread_setname_np(pthread_self(), "emu-worker");
    self = w;
    for (;;) {
        w->fn(w->arg);
        pthread_mutex_lock(&pool_mutex);
        w->fn = NULL;
        pool_busy--;
        w->next = pool_idle;
        pool_idle = w;
        while (w->fn == NULL)
            pthread_cond_wait(&w->wake, &pool_mutex);
        pthread_mutex_unlock(&pool_mutex);
    }
    return NULL;
}

static int worker_create(void (*fn)(void *arg), void *arg)
{
    enum { STACK = 256 << 10 };
    struct worker *w = calloc(1, sizeof *w);
    pthread_attr_t attr;
    pthread_t thread;
    int error;

    if (w == NULL)
        return -1;
    w->fn = fn;
    w->arg = arg;
    pthread_cond_init(&w->wake, NULL);
    error = pthread_attr_init(&attr);
    if (error == 0) {
        (void)pthread_attr_setstacksize(&attr, STACK);
        (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attr, worker_main, w);
        pthread_attr_destroy(&attr);
    }
    if (error != 0) {
        pthread_cond_destroy(&w->wake);
        free(w);
        return -1;
    }
    return 0;
}

int emu_pool_start(void (*fn)(void *arg), void *arg)
{
    struct worker *w;

    pthread_mutex_lock(&pool_mutex);
    pool_busy++;
    w = pool_idle;
    if (w != NULL) {
        pool_idle = w->next;
        w->fn = fn;
        w->arg = arg;
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&pool_mutex);
    if (w != NULL || worker_create(fn, arg) == 0)
        return 0;
    pthread_mutex_lock(&pool_mutex);
    pool_busy--;
    pthread_mutex_unlock(&pool_mutex);
    return -1;
}

int emu_exiting(void)
{
    return atomic_load_explicit(&exiting, memory_order_relaxed);
}

/* At exit: kernels and waits end when they see `exiting`. Threads asleep on a lock need not be
 * waited for, hence the limit. */
__attribute__((destructor)) static void pool_wind_up(void)
{
    const struct timespec nap = {0, 1000000};

    if (emu_is_forked())
        return;
    atomic_store(&exiting, 1);
    for (int i = 0; i < 200; i++) {
        unsigned busy;

        pthread_mutex_lock(&pool_mutex);
        busy = pool_busy;
        pthread_mutex_unlock(&pool_mutex);
        if (busy == 0)
            return;
        nanosleep(&nap, NULL);
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

#define PARTITIONS 32 /* 0 is the whole device */

/* A device has EMU_MULTIPROCESSORS * EMU_MULTIPROCESSOR_THREADS places. A block takes as many as
 * make `occupancy` blocks fill a multiprocessor. A block in a partition takes places of the device
 * too. */
struct device {
    pthread_mutex_t mutex;
    struct {
        unsigned long long places; /* 0: no such partition */
        unsigned long long used;
    } partitions[PARTITIONS];
    unsigned active;               /* running blocks not seen to wait */
    struct emu_grid *first, *last; /* grids with blocks not started */
};

static struct device devices[EMU_MAX_DEVICES];

__attribute__((constructor)) static void devices_init(void)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++) {
        pthread_mutex_init(&devices[i].mutex, NULL);
        devices[i].partitions[0].places = (unsigned long long)EMU_MULTIPROCESSORS *
                                          EMU_MULTIPROCESSOR_THREADS;
    }
}

int emu_partition_open(CUdevice device, unsigned multiprocessors)
{
    struct device *d = &devices[device];
    int p = 1;

    pthread_mutex_lock(&d->mutex);
    while (p < PARTITIONS && (d->partitions[p].places != 0 || d->partitions[p].used != 0))
        p++;
    if (p < PARTITIONS)
        d->partitions[p].places = (unsigned long long)multiprocessors * EMU_MULTIPROCESSOR_THREADS;
    pthread_mutex_unlock(&d->mutex);
    return p < PARTITIONS ? p : 0;
}

void emu_partition_close(CUdevice device, int partition)
{
    struct device *d = &devices[device];

    if (partition == 0)
        return;
    pthread_mutex_lock(&d->mutex);
    d->partitions[partition].places = 0;
    pthread_mutex_unlock(&d->mutex);
}

unsigned emu_occupancy(unsigned long long threads, size_t shared)
{
    const unsigned long long whole_warps = (threads + 31) / 32 * 32;
    unsigned blocks = EMU_MULTIPROCESSOR_BLOCKS;
    unsigned by_shared;

    if (threads == 0 || threads > EMU_BLOCK_THREADS || shared > EMU_BLOCK_SHARED)
        return 0;
    if (EMU_MULTIPROCESSOR_THREADS / whole_warps < blocks)
        blocks = (unsigned)(EMU_MULTIPROCESSOR_THREADS / whole_warps);
    by_shared = EMU_MULTIPROCESSOR_SHARED / ((unsigned)shared + 1024);
    return by_shared < blocks ? by_shared : blocks;
}

void emu_context_fail(CUdevice device, CUresult code)
{
    int none = CUDA_SUCCESS;

    atomic_compare_exchange_strong(&emu_contexts[device].sticky, &none, (int)code);
}

void emu_grid_kill(struct emu_grid *grid, CUresult code)
{
    emu_context_fail(grid->device, code);
    atomic_store(&grid->killed, 1);
}

/* The functions from here to start_blocks() are called under the device's lock. */

static void grid_enqueue(struct device *d, struct emu_grid *grid)
{
    grid->queue = NULL;
    if (d->last != NULL)
        d->last->queue = grid;
    else
        d->first = grid;
    d->last = grid;
}

/* Blocks left in a closed partition may use the whole device. */
static int has_room(const struct device *d, int partition, unsigned cost)
{
    return d->partitions[partition].places == 0 ||
           d->partitions[partition].used + cost <= d->partitions[partition].places;
}

/* Removes *link from the queue; `last` is its predecessor. */
static void grid_unlink(struct device *d, struct emu_grid **link, struct emu_grid *last)
{
    if (d->last == *link)
        d->last = last;
    *link = (*link)->queue;
}

/* The grid whose next block may start now, with the place taken; NULL: none. A grid whose partition
 * is full delays later grids of that partition, not of others. */
static struct emu_grid *block_take(struct device *d)
{
    struct emu_grid **link = &d->first, *last = NULL, *grid;
    unsigned full = 0;

    if (d->active >= ACTIVE)
        return NULL;
    for (; (grid = *link) != NULL; last = grid, link = &grid->queue) {
        if (!has_room(d, 0, grid->cost))
            return NULL;
        if ((full & 1u << grid->partition) == 0 && has_room(d, grid->partition, grid->cost))
            break;
        full |= 1u << grid->partition;
    }
    if (grid == NULL)
        return NULL;
    d->partitions[0].used += grid->cost;
    if (grid->partition != 0)
        d->partitions[grid->partition].used += grid->cost;
    d->active++;
    grid->running++;
    if (++grid->started == grid->blocks)
        grid_unlink(d, link, last);
    return grid;
}

static void block_finish(struct device *d, struct emu_grid *grid, int waited)
{
    d->partitions[0].used -= grid->cost;
    if (grid->partition != 0)
        d->partitions[grid->partition].used -= grid->cost;
    d->active -= !waited;
    if (--grid->running == 0 && grid->started == grid->blocks)
        pthread_cond_signal(&grid->done);
}

/* A killed grid does not need its blocks that have not started. */
static void grid_cut(struct device *d, struct emu_grid *grid)
{
    struct emu_grid **link = &d->first, *last = NULL;

    for (; *link != NULL && *link != grid; link = &(*link)->queue)
        last = *link;
    if (*link == NULL)
        return;
    grid_unlink(d, link, last);
    grid->blocks = grid->started;
}

static void block_main(void *arg);

static void start_blocks(struct device *d)
{
    struct emu_grid *grid;

    while ((grid = block_take(d)) != NULL) {
        if (emu_pool_start(block_main, grid) == 0)
            continue;
        emu_grid_kill(grid, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        grid_cut(d, grid);
        grid->claimed++;
        block_finish(d, grid, 0);
    }
}

/* Runs one block of the grid. The lock is held on entry and on return. */
static void block_run(struct device *d, struct emu_grid *grid)
{
    const unsigned long long index = grid->claimed++;
    int waited = 0;

    pthread_mutex_unlock(&d->mutex);
    if (self->fibers == NULL)
        self->fibers = emu_fibers_create();
    if (self->fibers != NULL)
        waited = emu_fibers_run(self->fibers, grid, index);
    else
        emu_grid_kill(grid, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    pthread_mutex_lock(&d->mutex);
    if (atomic_load(&grid->killed))
        grid_cut(d, grid);
    block_finish(d, grid, waited);
}

static void block_main(void *arg)
{
    struct emu_grid *grid = arg;
    struct device *d = &devices[grid->device];

    pthread_mutex_lock(&d->mutex);
    while (grid != NULL) {
        block_run(d, grid);
        grid = block_take(d);
        start_blocks(d);
    }
    pthread_mutex_unlock(&d->mutex);
}

void emu_block_waits(struct emu_grid *grid)
{
    struct device *d = &devices[grid->device];

    pthread_mutex_lock(&d->mutex);
    d->active--;
    start_blocks(d);
    pthread_mutex_unlock(&d->mutex);
}

CUresult emu_grid_run(CUdevice device, int partition, const struct sw_emu_kernel *kernel,
                      const unsigned grid[3], const unsigned block[3], unsigned shared,
                      const void *params)
{
    struct device *d = &devices[device];
    const unsigned occupancy = emu_occupancy((unsigned long long)block[0] * block[1] * block[2],
                                             shared);
    struct emu_grid g = {
        .kernel = kernel,
        .params = params,
        .device = device,
        .partition = partition,
        .grid = {grid[0], grid[1], grid[2]},
        .block = {block[0], block[1], block[2]},
        .shared = shared,
        .blocks = (unsigned long long)grid[0] * grid[1] * grid[2],
    };

    if (occupancy == 0 || g.blocks == 0)
        return CUDA_ERROR_INVALID_VALUE;
    g.cost = EMU_MULTIPROCESSOR_THREADS / occupancy;
    g.alias_run = emu_alias_begin();
    pthread_cond_init(&g.done, NULL);
    pthread_mutex_lock(&d->mutex);
    grid_enqueue(d, &g);
    /* A pool thread, which would only wait, runs blocks of its own grid itself. */
    while (self != NULL && d->first == &g && has_room(d, partition, g.cost) &&
           block_take(d) == &g) {
        start_blocks(d);
        block_run(d, &g);
    }
    start_blocks(d);
    while (g.running != 0 || g.started != g.blocks)
        pthread_cond_wait(&g.done, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
    pthread_cond_destroy(&g.done);
    emu_alias_end(g.alias_run);
    if (atomic_load(&g.killed))
        return (CUresult)atomic_load(&emu_contexts[device].sticky);
    return CUDA_SUCCESS;
}
