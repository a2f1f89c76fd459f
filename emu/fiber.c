/* Fibers: the CUDA threads of a block, and their scheduling.
 *
 * The OS thread calls emu_fibers_run(), which switches to the first fiber. Fibers then switch
 * directly to each other: to a thread not yet started while there is one, otherwise to the fiber
 * that has been ready for longest. The last one to end switches back to the OS thread's own stack.
 * A fiber whose thread has ended starts the block's next thread itself, so a kernel that never
 * waits runs on one stack, without a switch. (Not under ThreadSanitizer, which would consider
 * threads of one fiber ordered.)
 *
 * ThreadSanitizer is told of every switch with the flag that says "this orders nothing": only
 * barriers, the start and the end of a block, and the kernel's own atomics order its threads. For
 * that reason the data that this file shares between fibers is hidden from it (UNSEEN).
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "emu_device.h"
#include "emu_internal.h"
#include "exec.h"
#include "fiber.h"
#include "swap.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif

#if defined(EMU_TSAN)
#if defined(__clang__) /* whose no_sanitize() leaves out all but atomics */
#define UNSEEN __attribute__((disable_sanitizer_instrumentation))
#else
#define UNSEEN __attribute__((no_sanitize("thread")))
#endif
void *__tsan_create_fiber(unsigned flags);
void *__tsan_get_current_fiber(void);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define ORDERS_NOTHING 1u
#define RETIRED(w) (&(w)->spent)
#else
#define UNSEEN
#define RETIRED(w) (&(w)->idle)
static inline void __tsan_acquire(void *addr)
{
    (void)addr;
}
static inline void __tsan_release(void *addr)
{
    (void)addr;
}
#endif

#if defined(EMU_ASAN)
void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *size);
void __asan_unpoison_memory_region(const volatile void *addr, size_t size);
#endif

#if defined(EMU_ASAN) || defined(EMU_TSAN)
#define STACK_BYTES ((size_t)256 << 10)
#else
#define STACK_BYTES ((size_t)64 << 10)
#endif

/* After this many rounds of polls in vain, a block counts as waiting. */
#define WAITS_AFTER 2

/* Stacks are mapped this many at a time. */
#define BATCH 16
#define GUARDED 8192

struct fiber {
    struct emu_dev_thread self;
    struct fiber *next; /* in its current queue */
    void *context;      /* swap.c's */
    unsigned char *stack;
    int begun; /* inside fiber_main(), waiting for a thread to run */
#if defined(EMU_ASAN)
    void *fake_stack;
#endif
#if defined(EMU_TSAN)
    void *tsan;
#endif
};

struct queue {
    struct fiber *first, *last;
    unsigned count;
};

struct batch {
    struct batch *next;
    unsigned char *stacks;
    struct fiber fibers[BATCH];
};

enum { SHARED_ALIGN = 1024 };

struct emu_fibers {
    struct fiber os; /* the OS thread's own context */
    struct batch *batches;
    struct queue idle, ready;
    struct queue waiting; /* at the barrier */
    /* ended in this block, under ThreadSanitizer: not reused for another thread of the block */
    struct queue spent;
    struct emu_grid *grid;
    struct emu_dev_dim block; /* index */
    void *shared;             /* dynamic shared memory, of exactly the requested size, or NULL */
    unsigned total, started, ended;
    unsigned barrier; /* barriers passed; its parity selects the word that orders it */
    unsigned polls;   /* consecutive pauses without progress */
    unsigned turns;   /* of emu_rest() since the last progress */
    unsigned rounds;  /* in which all threads polled in vain */
    char order_start, order_end, order_barrier[2];
#if defined(EMU_ASAN)
    const void *os_bottom;
    size_t os_bytes;
#endif
};

__thread struct emu_dev_thread *emu_dev_self;
static __thread struct emu_fibers *my_fibers;

/* ---- switches, queues, stacks ---------------------------------------------------------------- */

/* Switches from `from`, which runs, to `to`. With `for_good` nothing returns to the stack of
 * `from`. */
UNSEEN static void fiber_switch(struct emu_fibers *w, struct fiber *from, struct fiber *to,
                                int for_good)
{
    (void)w;
    (void)for_good;
    __atomic_store_n(&emu_dev_self, to == &w->os ? NULL : &to->self, __ATOMIC_RELAXED);
#if defined(EMU_ASAN)
    __sanitizer_start_switch_fiber(for_good ? NULL : &from->fake_stack,
                                   to == &w->os ? w->os_bottom : to->stack,
                                   to == &w->os ? w->os_bytes : STACK_BYTES);
#endif
#if defined(EMU_TSAN)
    __tsan_switch_to_fiber(to->tsan, ORDERS_NOTHING);
#endif
    emu_swap(&from->context, to->context);
#if defined(EMU_ASAN)
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

UNSEEN static void queue_put(struct queue *q, struct fiber *f)
{
    f->next = NULL;
    if (q->last != NULL)
        q->last->next = f;
    else
        q->first = f;
    q->last = f;
    q->count++;
}

UNSEEN static struct fiber *queue_take(struct queue *q)
{
    struct fiber *f = q->first;

    if (f == NULL)
        return NULL;
    q->first = f->next;
    if (q->first == NULL)
        q->last = NULL;
    q->count--;
    return f;
}

UNSEEN static void queue_move(struct queue *to, struct queue *from)
{
    struct fiber *f;

    while ((f = queue_take(from)) != NULL)
        queue_put(to, f);
}

/* Adds BATCH idle fibers. A guard page below each stack splits mappings: it costs two of the
 * process's 65530 (the default limit). So fibers beyond GUARDED have no guard page. */
static int batch_add(struct emu_fibers *w)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t pitch = STACK_BYTES + page;
    static atomic_uint guarded;
    const int guard = atomic_fetch_add(&guarded, BATCH) < GUARDED;
    struct batch *b = calloc(1, sizeof *b);

    if (b == NULL)
        return -1;
    b->stacks = mmap(NULL, BATCH * pitch, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->stacks == MAP_FAILED) {
        free(b);
        return -1;
    }
    for (int i = 0; i < BATCH; i++) {
        if (guard)
            (void)mprotect(b->stacks + (size_t)i * pitch, page, PROT_NONE);
        b->fibers[i].stack = b->stacks + (size_t)i * pitch + page;
        queue_put(&w->idle, &b->fibers[i]);
    }
    b->next = w->batches;
    w->batches = b;
    return 0;
}

static void fiber_main(void);

#if defined(EMU_ASAN)
static void os_stack_find(struct emu_fibers *w)
{
    pthread_attr_t attr;
    void *bottom;

    if (w->os_bottom != NULL || pthread_getattr_np(pthread_self(), &attr) != 0)
        return;
    if (pthread_attr_getstack(&attr, &bottom, &w->os_bytes) == 0)
        w->os_bottom = bottom;
    pthread_attr_destroy(&attr);
}
#endif

/* Makes an idle fiber ready to switch to. */
UNSEEN static int fiber_prepare(struct fiber *f)
{
    if (f->begun)
        return 0;
    if (emu_swap_make(&f->context, f->stack, STACK_BYTES, fiber_main) != 0)
        return -1;
#if defined(EMU_ASAN)
    /* A fiber that left inside a call has not cleared its frames' redzones. */
    __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
#if defined(EMU_TSAN)
    /* And ThreadSanitizer would keep the calls that never returned. */
    if (f->tsan != NULL)
        __tsan_destroy_fiber(f->tsan);
    f->tsan = __tsan_create_fiber(0);
#endif
    f->begun = 1;
    return 0;
}

struct emu_fibers *emu_fibers_create(void)
{
    return calloc(1, sizeof(struct emu_fibers));
}

/* ---- scheduling ------------------------------------------------------------------------------ */

UNSEEN static int must_leave(const struct emu_fibers *w)
{
    return atomic_load_explicit(&w->grid->killed, memory_order_relaxed);
}

/* A failed context and the end of the process kill the grid too. Asked once for many switches: when
 * a thread starts, at a barrier that all have reached, after a round of polls. */
UNSEEN static void look_for_the_end(const struct emu_fibers *w)
{
    if (atomic_load_explicit(&emu_contexts[w->grid->device].sticky, memory_order_relaxed) !=
            CUDA_SUCCESS ||
        emu_exiting())
        atomic_store_explicit(&w->grid->killed, 1, memory_order_relaxed);
}

/* Makes the block's next thread run on the fiber. */
UNSEEN static void thread_assign(struct emu_fibers *w, struct fiber *f)
{
    const unsigned *size = w->grid->block;
    const unsigned i = w->started++;

    f->self.thread.x = i % size[0];
    f->self.thread.y = i / size[0] % size[1];
    f->self.thread.z = i / size[0] / size[1];
    f->self.block = w->block;
    f->self.block_dim = (struct emu_dev_dim){size[0], size[1], size[2]};
    f->self.shared = w->shared;
    f->self.shared_bytes = w->grid->shared;
    f->self.grid_dim = (struct emu_dev_dim){w->grid->grid[0], w->grid->grid[1], w->grid->grid[2]};
    f->self.device = w->grid->device;
    f->self.stored = 0;
    f->self.accesses = 0;
    w->turns = 0;
}

/* Whether a thread is left to start. */
UNSEEN static int may_start(const struct emu_fibers *w)
{
    if (w->started == w->total)
        return 0;
    look_for_the_end(w);
    return !must_leave(w);
}

/* The next to run: a thread not started, a ready fiber, or the OS thread when all have ended. */
UNSEEN static struct fiber *choose(struct emu_fibers *w)
{
    struct fiber *f;

    if (may_start(w)) {
        if (w->idle.first == NULL && batch_add(w) != 0) {
            emu_grid_kill(w->grid, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        } else if (fiber_prepare(w->idle.first) != 0) {
            emu_grid_kill(w->grid, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        } else {
            f = queue_take(&w->idle);
            thread_assign(w, f);
            return f;
        }
    }
    /* In a killed grid no thread reaches the barrier any more. */
    if (must_leave(w))
        queue_move(&w->ready, &w->waiting);
    f = queue_take(&w->ready);
    return f != NULL ? f : &w->os;
}

UNSEEN static void barrier_release_if_complete(struct emu_fibers *w)
{
    if (w->waiting.count == 0 || w->waiting.count + w->ended < w->total)
        return;
    look_for_the_end(w);
    w->barrier++;
    w->turns = 0;
    queue_move(&w->ready, &w->waiting);
}

UNSEEN static struct fiber *current(void)
{
    return (struct fiber *)(void *)emu_dev_me();
}

/* Ends the running thread without unwinding it. */
_Noreturn UNSEEN static void leave(struct emu_fibers *w)
{
    struct fiber *me = current();

    __tsan_release(&w->order_end);
    w->ended++;
    me->begun = 0;
    queue_put(RETIRED(w), me);
    fiber_switch(w, me, choose(w), 1);
    __builtin_unreachable();
}

/* The bottom of every fiber's stack: runs threads while there are any. */
UNSEEN static void fiber_main(void)
{
    struct emu_fibers *w = my_fibers;
    struct fiber *me = current();

#if defined(EMU_ASAN)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    for (;;) {
        __tsan_acquire(&w->order_start);
#if defined(EMU_TSAN)
        emu_trail_run(&me->self, w->grid->kernel->run, w->grid->params);
#else
        w->grid->kernel->run(w->grid->params);
#endif
        __tsan_release(&w->order_end);
        w->ended++;
        w->turns = 0;
        barrier_release_if_complete(w);
#if !defined(EMU_TSAN)
        if (may_start(w)) {
            thread_assign(w, me);
            continue;
        }
#endif
        queue_put(RETIRED(w), me);
        fiber_switch(w, me, choose(w), 0);
    }
}

UNSEEN int emu_fibers_run(struct emu_fibers *w, struct emu_grid *grid, unsigned long long index)
{
    struct fiber *first;

    w->grid = grid;
    w->total = grid->block[0] * grid->block[1] * grid->block[2];
    w->started = w->ended = 0;
    w->turns = w->polls = w->rounds = 0;
    w->block.x = (unsigned)(index % grid->grid[0]);
    w->block.y = (unsigned)(index / grid->grid[0] % grid->grid[1]);
    w->block.z = (unsigned)(index / grid->grid[0] / grid->grid[1]);
    w->shared = NULL;
    if (grid->shared > 0 && posix_memalign(&w->shared, SHARED_ALIGN, grid->shared) != 0) {
        emu_grid_kill(grid, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        return 0;
    }
    my_fibers = w;
    queue_move(&w->idle, &w->spent);
#if defined(EMU_ASAN)
    os_stack_find(w);
#endif
#if defined(EMU_TSAN)
    w->os.tsan = __tsan_get_current_fiber();
#endif
    __tsan_release(&w->order_start);
    first = choose(w);
    if (first != &w->os)
        fiber_switch(w, &w->os, first, 0);
    __tsan_acquire(&w->order_end);
    free(w->shared);
    return w->rounds >= WAITS_AFTER;
}

/* ---- what kernels call ----------------------------------------------------------------------- */

UNSEEN void emu_rest(unsigned *turns)
{
    enum { YIELDS = 64, SHORTEST_NS = 20000, LONGEST_NS = 1000000 };
    const unsigned n = (*turns)++;
    struct timespec nap = {0, SHORTEST_NS};

    if (n < YIELDS) {
        sched_yield();
        return;
    }
    for (unsigned i = YIELDS; i < n && nap.tv_nsec < LONGEST_NS; i += 8)
        nap.tv_nsec += nap.tv_nsec / 2;
    if (nap.tv_nsec > LONGEST_NS)
        nap.tv_nsec = LONGEST_NS;
    nanosleep(&nap, NULL);
}

UNSEEN struct emu_grid *emu_fiber_grid(void)
{
    return my_fibers->grid;
}

_Noreturn UNSEEN void emu_fiber_leave(void)
{
    leave(my_fibers);
}

/* Every ready fiber has paused since the last round. */
UNSEEN static void round_end(struct emu_fibers *w)
{
    w->polls = 0;
    look_for_the_end(w);
    if (w->rounds < WAITS_AFTER && ++w->rounds == WAITS_AFTER)
        emu_block_waits(w->grid);
    emu_rest(&w->turns);
}

UNSEEN void emu_dev_pause(void)
{
    struct emu_fibers *w = my_fibers;
    struct fiber *me = current(), *next;

    if (me->self.stored) {
        me->self.stored = 0;
        w->turns = 0;
    }
    if (++w->polls > w->ready.count && w->started == w->total)
        round_end(w);
    if (must_leave(w))
        leave(w);
    queue_put(&w->ready, me);
    next = choose(w);
    if (next == me)
        return;
    fiber_switch(w, me, next, 0);
    if (must_leave(w))
        leave(w);
}

UNSEEN void emu_dev_barrier(void)
{
    struct emu_fibers *w = my_fibers;
    struct fiber *me = current(), *next;
    char *order = &w->order_barrier[w->barrier & 1];

    if (must_leave(w))
        leave(w);
    __tsan_release(order);
    queue_put(&w->waiting, me);
    barrier_release_if_complete(w);
    next = choose(w);
    if (next != me)
        fiber_switch(w, me, next, 0);
    if (must_leave(w))
        leave(w);
    __tsan_acquire(order);
}
