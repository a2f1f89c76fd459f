/* The kernels of tests/helpers/channel_kernels.cuh as the emulated driver loads them. */
#ifndef SYMWIN_TESTS_CHANNEL_KERNELS_H
#define SYMWIN_TESTS_CHANNEL_KERNELS_H

#include "channel_args.h"
#include "emu/emu.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct sw_emu_image channel_image;

#ifdef __cplusplus
}
#endif

#endif
