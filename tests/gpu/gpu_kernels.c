/* The collective kernels on GPUs, launched directly: four ranks on any number of GPUs. No
 * multicast: tests must not use it on a shared host. */
#include <stdlib.h>

#include "kernel_team.h"
#include "src/driver/driver.h"
#include "src/driver/fatbins.h"
#include "tap.h"

int main(void)
{
    struct kernel_cases cases = {0, 0, 8, NULL};

    setenv("SYMWIN_DRIVER", "cuda", 1);
    /* A kernel that loads at its first launch can wait for a kernel that waits for it. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    /* Streams that share a hardware queue wait for each other. The ranks' kernels must not. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (sw_driver_load() != SYMWIN_OK || sw_drv.cuDeviceGetCount(&cases.devices) != CUDA_SUCCESS ||
        cases.devices < 1)
        tap_skip_all("no CUDA device");
    if (sw_fatbin_count == 0)
        tap_skip_all("built without nvcc");
    return kernel_cases_run(&cases);
}
