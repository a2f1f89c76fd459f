/* The all-reduce on real GPUs (allreduce_cases.h). Ranks are distributed over the devices, so one
 * GPU runs four ranks as well as four GPUs do. SYMWIN_TEST_RANKS: number of ranks, default 4.
 * SYMWIN_TEST_THIN: only every n-th placement, for slow tools. */
#include "allreduce_cases.h"
#include "harness.h"

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL && atoi(text) > 0 ? atoi(text) : otherwise;
}

int main(void)
{
    static const size_t counts[] = {1, 7, 1027, 65537, 0};
    static const size_t small[] = {1, 7, 1027, 20011, 0};
    const int ranks = number("SYMWIN_TEST_PROCESSES", number("SYMWIN_TEST_RANKS", 4));
    const int thin = number("SYMWIN_TEST_THIN", 1);
    struct sw_scope contexts[64]; /* kept for the whole run: creating one takes a second */
    int devices = 0;

    setenv("SYMWIN_DRIVER", "cuda", 0);
    harness_fork();
    harness_start();
    if (sw_driver_is_emulated())
        tap_skip_all("SYMWIN_DRIVER names the emulated driver");
    while (devices < harness_device_count() && devices < 64 &&
           sw_scope_enter(devices, &contexts[devices]) == SYMWIN_OK)
        devices++;
    allreduce_matrix(ranks, thin > 1 ? small : counts, thin);
    allreduce_shapes(ranks, thin > 1 ? 1 << 20 : 64 << 20);
    allreduce_long(ranks);
    allreduce_graphs(ranks, thin > 1 ? 10 : 200);
    if (harness_device(ranks - 1) == ranks - 1) /* copies need queues of their own */
        allreduce_scalars(ranks, thin > 1 ? 5 : 50);
    /* Two streams may share a hardware queue. Then one rank's wait holds up another rank's
     * kernel. */
    if (harness_device(ranks - 1) == ranks - 1)
        allreduce_streams(ranks, thin > 1 ? 20 : 300);
    else
        tap_ok(1, "calls in flight over three streams # SKIP ranks share a device");
    allreduce_random(ranks, 1000 / thin, 1 << 20, 1);
    allreduce_random(ranks, 20 / thin, 64 << 20, 2);
    while (devices-- > 0)
        sw_scope_leave(&contexts[devices]);
    return harness_done();
}
