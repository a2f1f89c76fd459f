/* The table of kernels for the emulated driver's cuLibraryLoadData: every kernel of kernel_list.h,
 * compiled by the host compiler. */
#include <stddef.h>

#include "../emu/emu.h"
#include "group_layout.h"
#include "kernel_list.h"
#include "pair_layout.h"
#include "table_layout.h"

#define SW_DECLARE(file, family, algo, type, op, ranks, shape)                                     \
    extern "C" void SW_KERNEL_NAME(family, algo, type, op, ranks, shape)(const void *params);
SW_KERNEL_LIST(SW_DECLARE)

/* A CUDA thread costs the CPU a stack and context switches and gains nothing, so blocks are small.
 * With ThreadSanitizer each thread costs 1 MB: only 8 workers beside the 32 threads of the control
 * warp. */
#if defined(__SANITIZE_THREAD__)
#define BLOCK_THREADS 40
#else
#define BLOCK_THREADS 64
#endif

#define SW_ENTRY(file, family, algo, type, op, ranks, shape)                                       \
    {SW_KERNEL_TEXT(family, algo, type, op, ranks, shape),                                         \
     SW_KERNEL_NAME(family, algo, type, op, ranks, shape), sizeof(SW_KERNEL_ARGS_##family),        \
     BLOCK_THREADS},
static const struct sw_emu_kernel kernels[] = {SW_KERNEL_LIST(SW_ENTRY)};

extern "C" const struct sw_emu_image sw_kernels_emu_image;
const struct sw_emu_image sw_kernels_emu_image = {SW_EMU_IMAGE_MAGIC,
                                                  sizeof kernels / sizeof kernels[0], kernels};
