/* Alias fences, on demand: memory that a kernel stores to by its own address and uses by a
 * multicast address, or the other way round, unless the kernel that stored had ended before the
 * other began. (A kernel that was there before may still be wrong when the first has ended, says
 * CUDA's guide of virtual aliases.)
 *
 * PTX wants fence.proxy.alias on the way from one to the other, in any of the threads that pass it
 * on. Which threads these are is not known here, so a fence counts if any thread of either grid has
 * made it since. That finds kernels that forget it, not all that have it in the wrong place.
 *
 * The last store to each 16 bytes is kept in a table that has no room for all memory: a store may
 * be forgotten, but none is invented.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "emu_device.h"
#include "fiber.h"

enum { CELL = 16, CELLS = 1 << 20, LOCKS = 64, RUNS = 256 };

/* A grid, kept after its end until its slot is needed. Slot 0 is for grids that found no other;
 * they are not checked. */
static struct run {
    _Atomic uint64_t serial;       /* 0: none */
    _Atomic uint64_t began, ended; /* times; ended 0: it runs */
    _Atomic uint64_t fenced;       /* the time of its last alias fence */
} runs[RUNS];

struct cell {
    uintptr_t at; /* address of the memory, over CELL */
    uint64_t serial, time;
    int run, by_multicast;
};

EMU_VISIBLE int emu_dev_alias_watch;

static struct cell *cells;
static pthread_mutex_t locks[LOCKS];
static pthread_mutex_t runs_mutex = PTHREAD_MUTEX_INITIALIZER; /* where a grid takes a slot */
static uint64_t last_serial;
static _Atomic uint64_t now = 1; /* counts fences, and beginnings and ends of grids */

int sw_emu_alias_watch(int on)
{
    if (on && cells == NULL) {
        for (int i = 0; i < LOCKS; i++)
            pthread_mutex_init(&locks[i], NULL);
        cells = calloc(CELLS, sizeof *cells);
        if (cells == NULL)
            return -1;
    }
    __atomic_store_n(&emu_dev_alias_watch, on, __ATOMIC_RELEASE);
    return 0;
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* The slots are used in turn, so the grids that ended last stay. */
int emu_alias_begin(void)
{
    int slot = 0;

    if (!__atomic_load_n(&emu_dev_alias_watch, __ATOMIC_ACQUIRE))
        return 0;
    pthread_mutex_lock(&runs_mutex);
    for (int i = 0; i < RUNS && slot == 0; i++) {
        const int next = (int)(++last_serial % RUNS);

        if (next != 0 && (runs[next].serial == 0 || runs[next].ended != 0))
            slot = next;
    }
    if (slot != 0) {
        runs[slot].serial = last_serial;
        runs[slot].ended = 0;
        runs[slot].fenced = 0;
        runs[slot].began = ++now;
    }
    pthread_mutex_unlock(&runs_mutex);
    return slot;
}

void emu_alias_end(int run)
{
    if (run != 0)
        runs[run].ended = ++now;
}

/* ---- accesses -------------------------------------------------------------------------------- */

/* Whether the cell was stored to by the other kind of address, in a grid that had not ended when
 * this one began, and neither has made a fence since. */
static int is_unfenced(const struct cell *c, int run, int by_multicast)
{
    const struct run *theirs = &runs[c->run], *mine = &runs[run];

    /* The last look at the serial number: the slot may have gone to another grid in between. */
    return c->by_multicast != by_multicast && theirs->serial == c->serial &&
           (theirs->ended == 0 || theirs->ended > mine->began) && theirs->fenced <= c->time &&
           mine->fenced <= c->time && theirs->serial == c->serial;
}

static int cell_use(uintptr_t at, int run, int write, int by_multicast)
{
    const size_t index = (size_t)((at * 0x9e3779b97f4a7c15u) >> 44);
    struct cell *c = &cells[index];
    int unfenced;

    _Static_assert(CELLS == 1 << 20, "the highest 20 of 64 bits");
    pthread_mutex_lock(&locks[index % LOCKS]);
    unfenced = c->at == at && is_unfenced(c, run, by_multicast);
    if (write)
        *c = (struct cell){at, runs[run].serial, now, run, by_multicast};
    pthread_mutex_unlock(&locks[index % LOCKS]);
    return unfenced;
}

int emu_alias_use(const void *host, size_t n, int write, int by_multicast)
{
    const int run = emu_fiber_grid()->alias_run;
    const uintptr_t first = (uintptr_t)host / CELL;
    const uintptr_t last = ((uintptr_t)host + (n > 0 ? n - 1 : 0)) / CELL;
    int unfenced = 0;

    for (uintptr_t at = first; run != 0 && at <= last; at++)
        unfenced |= cell_use(at, run, write, by_multicast);
    return unfenced;
}

void emu_dev_alias_fenced(void)
{
    const int run = emu_fiber_grid()->alias_run;

    runs[run].fenced = ++now;
}
