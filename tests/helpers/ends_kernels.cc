/* The kernels of ends_kernels.cuh for the emulated driver. */
#include "ends_kernels.cuh"

#include "emu/emu.h"

static const struct sw_emu_kernel kernels[] = {
    {"ends_lanes", ends_lanes, sizeof(ends_args), 0},
    {"ends_many", ends_many, sizeof(ends_args), 0},
    {"ends_packed", ends_packed, sizeof(ends_args), 0},
};

extern "C" const struct sw_emu_image ends_image;
const struct sw_emu_image ends_image = {SW_EMU_IMAGE_MAGIC, sizeof kernels / sizeof kernels[0],
                                        kernels};
