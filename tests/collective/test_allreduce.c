/* The all-reduce on the emulated driver: see allreduce_cases.h. */
#include "allreduce_cases.h"
#include "harness.h"

#if defined(__SANITIZE_THREAD__)
/* REPLAYED: ranks. With 9 of them, a call takes a second. */
enum { THIN = 131, RUNS = 8, REPLAYED = 5, LARGE = 1 << 18 };
#elif defined(__SANITIZE_ADDRESS__)
enum { THIN = 67, RUNS = 20, REPLAYED = 9, LARGE = 1 << 18 };
#else
enum { THIN = 2, RUNS = 200, REPLAYED = 9, LARGE = 1 << 20 };
#endif

int main(void)
{
    static const size_t few[] = {1, 5, 259, 4099, 0};
    static const size_t some[] = {3, 1027, 0};
    const char *seed = getenv("SYMWIN_TEST_SEED");

    harness_fork();
    harness_start();
    if (harness_processes > 0) { /* started by tests/collective/test_allreduce_processes.t */
        allreduce_matrix(harness_processes, few, 3 * THIN);
        allreduce_shapes(harness_processes, LARGE);
        allreduce_long(harness_processes);
        allreduce_graphs(harness_processes, 20);
        allreduce_scalars(harness_processes, 6);
        allreduce_streams(harness_processes, 60);
        allreduce_random(harness_processes, RUNS, 1 << 16, 3);
        return harness_done();
    }
    allreduce_matrix(1, some, 5 * THIN);
    allreduce_matrix(2, some, 2 * THIN);
    allreduce_matrix(3, some, 5 * THIN);
    allreduce_matrix(4, few, THIN);
    allreduce_matrix(8, some, 3 * THIN);
    allreduce_matrix(16, some, 11 * THIN); /* two ranks per device */
    allreduce_shapes(1, 100000);
    allreduce_shapes(4, LARGE);
    allreduce_long(2);
    allreduce_long(4);
    allreduce_long(8);
    allreduce_graphs(4, 20);
    allreduce_scalars(1, 3);
    allreduce_scalars(4, 6);
    allreduce_graphs(REPLAYED, 6);
    allreduce_streams(4, 60);
    allreduce_random(4, RUNS, 1 << 16, seed != NULL ? (unsigned)atoi(seed) : 1);
    allreduce_random(5, RUNS, 1 << 16, seed != NULL ? (unsigned)atoi(seed) : 2);
    return tap_done();
}
