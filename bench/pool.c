/* What the pool costs: allocations from kept memory, new ones, and the overhead of small ones.
 *
 *     build/bench/pool [threads]          default: 8, for the contended rows
 *
 * Prints CSV: what, threads, bytes of an allocation, and the median over rounds of the slowest
 * thread's time per call in nanoseconds. The last rows are bytes taken from the device per byte
 * requested. "warm" is an allocation followed by its free; in "handed" another thread frees what
 * one has allocated. All on device 0 of the current driver. Its primary context is held, because
 * otherwise the driver would create and destroy it in each call, which takes 1 ms. bench/memory.c
 * times NCCL's allocator.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

enum { ROUNDS = 9, MOST_THREADS = 64, HANDS = 64 };

struct job {
    size_t bytes;
    int turns, number, threads;
    pthread_barrier_t *barrier;
    double ns[ROUNDS];
};

/* What a thread passes to the next one: NULL, or an allocation. */
static _Atomic(void *) hands[MOST_THREADS][HANDS];

static void *alloc(size_t bytes)
{
    void *ptr = NULL;

    bench_check(symwin_mem_alloc(0, bytes, 0, &ptr));
    return ptr;
}

static void *warm(void *arg)
{
    struct job *job = arg;

    bench_check(symwin_mem_free(alloc(job->bytes)));
    for (int round = 0; round < ROUNDS; round++) {
        double start;

        pthread_barrier_wait(job->barrier);
        start = bench_now_ns();
        for (int i = 0; i < job->turns; i++)
            bench_check(symwin_mem_free(alloc(job->bytes)));
        job->ns[round] = (bench_now_ns() - start) / job->turns / 2;
    }
    return NULL;
}

/* Passes an allocation to the next thread if its slot is empty, and frees what is in the own
 * slot. */
static void *handed(void *arg)
{
    struct job *job = arg;
    _Atomic(void *) *to = hands[(job->number + 1) % job->threads], *own = hands[job->number];

    for (int round = 0; round < ROUNDS; round++) {
        double start;

        pthread_barrier_wait(job->barrier);
        start = bench_now_ns();
        for (int i = 0; i < job->turns; i++) {
            void *none = NULL, *ptr = alloc(job->bytes);

            if (!atomic_compare_exchange_strong(&to[i % HANDS], &none, ptr))
                bench_check(symwin_mem_free(ptr));
            bench_check(symwin_mem_free(atomic_exchange(&own[i % HANDS], NULL)));
        }
        job->ns[round] = (bench_now_ns() - start) / job->turns / 2;
    }
    pthread_barrier_wait(job->barrier);
    for (int i = 0; i < HANDS; i++)
        bench_check(symwin_mem_free(atomic_exchange(&own[i], NULL)));
    return NULL;
}

static void run(const char *what, void *(*body)(void *), int threads, size_t bytes, int turns)
{
    static struct job jobs[MOST_THREADS];
    pthread_barrier_t barrier;
    double slowest = 0;

    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        jobs[i] = (struct job){bytes, turns, i, threads, &barrier, {0}};
    common_threads("pool", jobs, threads, sizeof jobs[0], body);
    for (int i = 0; i < threads; i++) {
        const double ns = median(jobs[i].ns, ROUNDS);

        slowest = ns > slowest ? ns : slowest;
    }
    pthread_barrier_destroy(&barrier);
    printf("%s,%d,%zu,%.1f\n", what, threads, bytes, slowest);
    fflush(stdout);
}

static void cold(size_t bytes)
{
    double alloc_ns[ROUNDS], free_ns[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        double start;
        void *ptr;

        bench_check(symwin_mem_trim(0, 0));
        start = bench_now_ns();
        ptr = alloc(bytes);
        alloc_ns[i] = bench_now_ns() - start;
        bench_check(symwin_mem_free(ptr)); /* kept, or returned if the pool keeps less */
        start = bench_now_ns();
        bench_check(symwin_mem_trim(0, 0));
        free_ns[i] = bench_now_ns() - start;
    }
    printf("cold alloc,1,%zu,%.1f\ntrim,1,%zu,%.1f\n", bytes, median(alloc_ns, ROUNDS), bytes,
           median(free_ns, ROUNDS));
}

/* Bytes of the device per byte of 10,000 allocations. */
static void overhead(size_t bytes)
{
    enum { COUNT = 10000 };
    static void *ptrs[COUNT];
    symwin_mem_usage usage;

    bench_check(symwin_mem_trim(0, 0));
    for (int i = 0; i < COUNT; i++)
        ptrs[i] = alloc(bytes);
    bench_check(symwin_mem_stats(0, &usage));
    printf("overhead of 10000,1,%zu,%.4f\n", bytes,
           (double)usage.reserved_bytes / ((double)COUNT * (double)bytes));
    for (int i = 0; i < COUNT; i++)
        bench_check(symwin_mem_free(ptrs[i]));
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64 << 10, 2 << 20, 64 << 20};
    CUcontext context;
    int many;

    bench_begin("pool", argc, argv, 1);
    many = bench_number(argc, argv, 1, 1, MOST_THREADS, 8);
    bench_check(sw_driver_load());
    bench_check(sw_check(sw_drv.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain"));
    printf("what,threads,bytes,ns\n");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run("warm", warm, 1, sizes[i], 100000);
        run("warm", warm, many, sizes[i], 20000);
    }
    run("handed", handed, many, 64 << 10, 20000);
    cold(128 << 20);
    cold((size_t)1 << 30);
    overhead(100 << 10);
    return bench_end();
}
