/* The kernels for the emulated driver, and their image. */
#include "kernels.cu"

#include "emu/emu.h"

static const struct sw_emu_kernel list[] = {
    {"bidir_put", bidir_put, sizeof(copy_args), MOST_THREADS},
    {"bidir_get", bidir_get, sizeof(copy_args), MOST_THREADS},
    {"bidir_get_bulk", bidir_get_bulk, sizeof(copy_args), MOST_THREADS},
    {"bidir_put_packets", bidir_put_packets, sizeof(copy_args), MOST_THREADS},
};

static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, sizeof list / sizeof list[0], list};

const void *const kernels_emulated = &image;
