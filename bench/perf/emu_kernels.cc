/* The kernels of kernels.cu for the emulated driver, and the image that it loads. */
#include "kernels.cu"

#include "emu/emu.h"

/* A CUDA thread costs a stack and switches on the CPU, and gains nothing there: use few. */
#define BLOCK_THREADS 64

static const struct sw_emu_kernel kernels[] = {
    {"symwin_perf_fill", symwin_perf_fill, sizeof(struct perf_fill_args), BLOCK_THREADS},
    {"symwin_perf_compare", symwin_perf_compare, sizeof(struct perf_fill_args), BLOCK_THREADS},
    {"symwin_perf_copy", symwin_perf_copy, sizeof(struct perf_copy_args), BLOCK_THREADS},
    {"symwin_perf_spread", symwin_perf_spread, sizeof(struct perf_spread_args), BLOCK_THREADS},
    {"symwin_perf_parts", symwin_perf_parts, sizeof(struct perf_parts_args), BLOCK_THREADS},
    {"symwin_perf_delay", symwin_perf_delay, sizeof(struct perf_delay_args), BLOCK_THREADS},
    {"symwin_perf_nothing", symwin_perf_nothing, sizeof(struct perf_nothing_args), BLOCK_THREADS},
    {"symwin_perf_nothing_parts", symwin_perf_nothing_parts, sizeof(struct perf_nothing_parts_args),
     BLOCK_THREADS},
};

extern "C" const struct sw_emu_image perf_emu_image;
const struct sw_emu_image perf_emu_image = {SW_EMU_IMAGE_MAGIC, sizeof kernels / sizeof kernels[0],
                                            kernels};
