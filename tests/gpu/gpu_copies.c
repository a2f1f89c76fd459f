/* The all-reduce by copies on real GPUs (allreduce_cases.h). SYMWIN_TEST_RANKS: number of ranks,
 * each with its own GPU. Default: the number of GPUs. */
#include "allreduce_cases.h"
#include "harness.h"

int main(void)
{
    const char *text = getenv("SYMWIN_TEST_PROCESSES");
    int ranks;

    if (text == NULL)
        text = getenv("SYMWIN_TEST_RANKS");
    setenv("SYMWIN_DRIVER", "cuda", 0);
    harness_fork();
    harness_start();
    ranks = text != NULL && atoi(text) > 0 ? atoi(text) : harness_device_count();
    if (sw_driver_is_emulated())
        tap_skip_all("SYMWIN_DRIVER names the emulated driver");
    if (ranks < 2 || ranks > harness_device_count())
        tap_skip_all("each rank needs a GPU of its own");
    copies_matrix(ranks, 1);
    copies_chain(ranks, 40, 1, 50021);
    copies_chain(ranks, 40, 3, 8 << 20);
    copies_graphs(ranks, 30, 5003);
    copies_graphs(ranks, 12, 16 << 20);
    return harness_done();
}
