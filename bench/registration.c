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
#include <string.h>
#include <time.h>

#include "common.h"
#include "median.h"
#include "src/window/register.h"

enum { ROUNDS = 9, CALLS = 20000, MOST = 10000, BYTES = 8192 };

static char *memory, *foreign; /* MOST + 1 ranges of BYTES, with gaps */

static void check(symwin_status status)
{
    if (status == SYMWIN_OK)
        return;
    fprintf(stderr, "registration: %s\n", symwin_last_error());
    exit(1);
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void print(const char *what, int ranges, double rounds[ROUNDS])
{
    printf("%s,%d,%.1f\n", what, ranges, median(rounds, ROUNDS));
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
    int round, i;

    for (round = 0; round < ROUNDS; round++) {
        double start = now_ns();

        for (i = 0; i < CALLS; i++)
            check(symwin_register(comm, range(at, i * 7919 % ranges), BYTES, &registration));
        take[round] = (now_ns() - start) / CALLS;
        start = now_ns();
        for (i = 0; i < CALLS; i++) {
            check(symwin_register(comm, range(at, i * 7919 % ranges), BYTES, &registration));
            check(symwin_deregister(comm, registration));
        }
        give[round] = (now_ns() - start) / CALLS - take[round];
    }
    printf("%s", what);
    print("", ranges, take);
    printf("deregister %s", what);
    print("", ranges, give);
}

static void first(symwin_comm *comm, const char *what, char *at, int ranges)
{
    double take[ROUNDS], give[ROUNDS];
    symwin_registration *registration = NULL;
    int round, i;

    for (round = 0; round < ROUNDS; round++) {
        double taken = 0, given = 0;

        for (i = 0; i < CALLS / 20; i++) {
            double start = now_ns();

            check(symwin_register(comm, at, BYTES, &registration));
            taken += now_ns() - start;
            start = now_ns();
            check(symwin_deregister(comm, registration));
            given += now_ns() - start;
        }
        take[round] = taken / (CALLS / 20.0);
        give[round] = given / (CALLS / 20.0);
    }
    printf("%s", what);
    print("", ranges, take);
    printf("deregister %s", what);
    print("", ranges, give);
}

static void find(symwin_comm *comm, int ranges)
{
    static uintptr_t places[CALLS];
    struct sw_use *use = NULL;
    double ns[ROUNDS];
    int round, i, found = 0;

    for (i = 0; i < CALLS; i++)
        places[i] = (uintptr_t)range(memory, (int)((unsigned)rand() % (unsigned)ranges)) + 100;
    for (round = 0; round < ROUNDS; round++) {
        const double start = now_ns();

        for (i = 0; i < CALLS; i++)
            found += sw_range_cache_find(&comm->registrations->cache, places[i], places[i] + 4096,
                                         &use) != NULL;
        ns[round] = (now_ns() - start) / CALLS;
    }
    if (found != CALLS * ROUNDS) {
        fprintf(stderr, "registration: %d of %d found\n", found, CALLS * ROUNDS);
        exit(1);
    }
    print("find", ranges, ns);
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
    check(symwin_unique_id_create(&id));
    check(symwin_comm_create(&id, 1, 0, 0, &options, &comm));
    check(symwin_mem_alloc(0, (size_t)(MOST + 1) * 2 * BYTES, 0, (void **)&memory));
    check(sw_scope_enter(0, &scope));
    check(sw_check(sw_drv.cuMemAlloc(&address, (size_t)(MOST + 1) * 2 * BYTES), "cuMemAlloc"));
    foreign = (char *)(uintptr_t)address;
    printf("what,ranges,ns\n");
    for (ranges = 1; ranges <= MOST; ranges *= 100) {
        for (; i < ranges; i++)
            check(symwin_register(comm, range(memory, i), BYTES, &registration));
        known(comm, "known", memory, ranges);
        first(comm, "first", range(memory, MOST), ranges);
        first(comm, "first foreign", foreign, ranges);
        find(comm, ranges);
    }
    for (i = 0, ranges = 1; ranges <= MOST; ranges *= 100) { /* in addition to all of those */
        for (; i < ranges; i++)
            check(symwin_register(comm, range(foreign, i), BYTES, &registration));
        known(comm, "known foreign", foreign, ranges);
    }
    symwin_comm_destroy(comm);
    check(sw_check(sw_drv.cuMemFree(address), "cuMemFree"));
    sw_scope_leave(&scope);
    check(symwin_mem_free(memory));
    return bench_end("registration");
}
