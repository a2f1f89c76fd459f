/* The table of kernels that the emulated driver's cuLibraryLoadData takes: every kernel of
 * kernel_list.h, as the host compiler made it. */
#include <stddef.h>

#include "../emu/emu.h"
#include "kernel_args.h"
#include "kernel_list.h"

#define SW_DECLARE(algo, type, op)                                                                 \
    extern "C" void sw_allreduce_##algo##_##type##_##op(const void *params);
#define SW_DECLARE_FILE(file, list) list(SW_DECLARE)
SW_KERNEL_FILE_LIST(SW_DECLARE_FILE)

/* A CUDA thread costs the CPU a stack and switches, and gains nothing: few of them. ThreadSanitizer makes
 * each cost a megabyte, so there are as few as leave some for the message beside the 32 ushers. */
#if defined(__SANITIZE_THREAD__)
#define BLOCK_THREADS 40
#else
#define BLOCK_THREADS 64
#endif

#define SW_ENTRY(algo, type, op)                                                                   \
    {"sw_allreduce_" #algo "_" #type "_" #op, sw_allreduce_##algo##_##type##_##op,                 \
     sizeof(struct sw_kernel_args), BLOCK_THREADS},
#define SW_ENTRY_FILE(file, list) list(SW_ENTRY)
static const struct sw_emu_kernel kernels[] = {SW_KERNEL_FILE_LIST(SW_ENTRY_FILE)};

extern "C" const struct sw_emu_image sw_kernels_emu_image;
const struct sw_emu_image sw_kernels_emu_image = {SW_EMU_IMAGE_MAGIC,
                                                  sizeof kernels / sizeof kernels[0], kernels};
