/* What the range cache costs: symwin_register() of a known and of a new range, each with its
 * symwin_deregister(), and the search that a call makes.
 *
 *     build/bench/registration            rows for 1, 100 and 10,000 ranges
 *
 * Prints CSV: what, the number of ranges, and the median over rounds of the time per call in
 * nanoseconds. "known" and "first" use symwin's memory, "known foreign" and "first foreign" memory
 * of cuMemAlloc, of which the driver is asked for the present owner. "find" is the search for the
 * pieces of random buffers, with the range cache in the CPU's caches as far as it fits. One rank,
 * on device 0.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common.h"
#include "src/window/register.h"

enum { ROUNDS = 9, CALLS = 20000, MOST = 10000, BYTES = 8192 };

static char *memory, *foreign; /* MOST + 1 ranges of BYTES, with gaps */

static void print(const char *before, const char *what, int ranges, double rounds[ROUNDS])
{
    printf("%s%s,%d,%.1f\n", before, what, ranges, median(rounds, ROUNDS));
    fflush(stdout);
}

/* Ranges that are not adjacent, so each is a piece. */
static char *range(char *at, int i)
{
    return at + (size_t)i * 2 * BYTES;
}

static void known(symwin_comm *comm, const char *what, char *at, int ranges)
{
    double take[ROUNDS], give[ROUNDS];
    symwin_registration *registration = NULL;

    for (int round = 0; round < ROUNDS; round++) {
        double start = bench_now_ns();

        for (int i = 0; i < CALLS; i++)
            bench_check(symwin_register(comm, range(at, i * 7919 % ranges), BYTES, &registration));
        take[round] = (bench_now_ns() - start) / CALLS;
        start = bench_now_ns();
        for (int i = 0; i < CALLS; i++) {
            bench_check(symwin_register(comm, range(at, i * 7919 % ranges), BYTES, &registration));
            bench_check(symwin_deregister(comm, registration));
        }
        give[round] = (bench_now_ns() - start) / CALLS - take[round];
    }
    print("", what, ranges, take);
    print("deregister ", what, ranges, give);
}

static void first(symwin_comm *comm, const char *what, char *at, int ranges)
{
    double take[ROUNDS], give[ROUNDS];
    symwin_registration *registration = NULL;

    for (int round = 0; round < ROUNDS; round++) {
        double taken = 0, given = 0;

        for (int i = 0; i < CALLS / 20; i++) {
            double start = bench_now_ns();

            bench_check(symwin_register(comm, at, BYTES, &registration));
            taken += bench_now_ns() - start;
            start = bench_now_ns();
            bench_check(symwin_deregister(comm, registration));
            given += bench_now_ns() - start;
        }
        take[round] = taken / (CALLS / 20.0);
        give[round] = given / (CALLS / 20.0);
    }
    print("", what, ranges, take);
    print("deregister ", what, ranges, give);
}

static void find(symwin_comm *comm, int ranges)
{
    static uintptr_t places[CALLS];
    struct sw_use *use = NULL;
    double ns[ROUNDS];
    int found = 0;

    for (int i = 0; i < CALLS; i++)
        places[i] = (uintptr_t)range(memory, (int)((unsigned)rand() % (unsigned)ranges)) + 100;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = bench_now_ns();

        for (int i = 0; i < CALLS; i++)
            found += sw_range_cache_find(&comm->registrations->cache, places[i], places[i] + 4096,
                                         &use) != NULL;
        ns[round] = (bench_now_ns() - start) / CALLS;
    }
    if (found != CALLS * ROUNDS) {
        fprintf(stderr, "registration: %d of %d found\n", found, CALLS * ROUNDS);
        exit(1);
    }
    print("", "find", ranges, ns);
}

int main(int argc, char **argv)
{
    const symwin_comm_options options = {.size = sizeof options};
    symwin_registration *registration;
    symwin_comm *comm = NULL;
    symwin_unique_id id;
    CUdeviceptr address = 0;
    struct sw_scope scope;
    int ranges, i = 0;

    bench_begin("registration", argc, argv, 0);
    bench_check(symwin_unique_id_create(&id));
    bench_check(symwin_comm_create(&id, 1, 0, 0, &options, &comm));
    bench_check(symwin_mem_alloc(0, (size_t)(MOST + 1) * 2 * BYTES, 0, (void **)&memory));
    bench_check(sw_scope_enter(0, &scope));
    bench_check(
        sw_check(sw_drv.cuMemAlloc(&address, (size_t)(MOST + 1) * 2 * BYTES), "cuMemAlloc"));
    foreign = (char *)(uintptr_t)address;
    printf("what,ranges,ns\n");
    for (ranges = 1; ranges <= MOST; ranges *= 100) {
        for (; i < ranges; i++)
            bench_check(symwin_register(comm, range(memory, i), BYTES, &registration));
        known(comm, "known", memory, ranges);
        first(comm, "first", range(memory, MOST), ranges);
        first(comm, "first foreign", foreign, ranges);
        find(comm, ranges);
    }
    for (i = 0, ranges = 1; ranges <= MOST; ranges *= 100) { /* in addition to all of those */
        for (; i < ranges; i++)
            bench_check(symwin_register(comm, range(foreign, i), BYTES, &registration));
        known(comm, "known foreign", foreign, ranges);
    }
    symwin_comm_destroy(comm);
    bench_check(sw_check(sw_drv.cuMemFree(address), "cuMemFree"));
    sw_scope_leave(&scope);
    bench_check(symwin_mem_free(memory));
    return bench_end();
}
