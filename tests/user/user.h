/* Shared by ring.cu and sum.cu. Each is a user's file: it includes all of symwin's device headers
 * and has its own kernel. nvcc builds them into a program on the CUDA runtime, the host compiler
 * into one for the emulated driver. */
#ifndef SYMWIN_TESTS_USER_H
#define SYMWIN_TESTS_USER_H

#include <stdio.h>
#include <stdlib.h>

#include "symwin.h"

#include "symwin/bulk.cuh"
#include "symwin/channel.cuh"
#include "symwin/copy.cuh"
#include "symwin/cvt.cuh"
#include "symwin/device.cuh"
#include "symwin/kernel.cuh"
#include "symwin/multicast.cuh"
#include "symwin/multimem.cuh"
#include "symwin/packet.cuh"
#include "symwin/reduce.cuh"
#include "symwin/signal.cuh"
#include "symwin/team.cuh"

enum { RANKS = 2, COUNT = 20001, BLOCKS = 3, THREADS = 128, TURNS = 4, PIECES = 4, PIECE = 2048 };

/* Offsets in a rank's window, in bytes. */
enum {
    SOURCE = 0,
    RECEIVED = 1 << 17,
    RESULT = 2 << 17,
    SIGNALS = 3 << 17,
    GAVE_UP = SIGNALS + 8,
    BARRIER = SIGNALS + 128,
    WINDOW = 1 << 19
};

struct user_args {
    symwin_span span;
    uint64_t turn; /* 1, 2, ... */
    uint64_t timeout_ns;
};

struct user_rank {
    int rank, device;
    struct CUstream_st *stream;
    struct user_args args;
};

/* In sum.cu: after a barrier of all ranks, the sum of what they have received; then another
 * barrier. */
bool user_sum(const struct user_rank *r);

/* ---- launches ---- */

#ifdef __CUDACC__

#define USER_LAUNCH(kernel, r, shared)                                                             \
    (kernel<<<BLOCKS, THREADS, shared, (r)->stream>>>((r)->args), cudaGetLastError() == cudaSuccess)

#else

#include "emu/emu.h"
#include "src/driver/driver.h"

#define USER_LAUNCH(kernel, r, shared) user_launch(kernel, r, shared)

static inline bool user_launch(void (*kernel)(const void *), const struct user_rank *r,
                               unsigned shared)
{
    const struct sw_emu_kernel entry = {"kernel", kernel, sizeof(struct user_args), THREADS};
    const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 1, &entry};
    struct user_args args = r->args;
    void *params[] = {&args};
    CUfunction function;
    CUlibrary library;
    CUkernel found;
    bool right;

    right = sw_drv.cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0) == 0 &&
            sw_drv.cuLibraryGetKernel(&found, library, "kernel") == 0 &&
            sw_drv.cuKernelGetFunction(&function, found) == 0 &&
            sw_drv.cuLaunchKernel(function, BLOCKS, 1, 1, THREADS, 1, 1, shared, r->stream, params,
                                  NULL) == 0 &&
            sw_drv.cuStreamSynchronize(r->stream) == 0;
    return right && sw_drv.cuLibraryUnload(library) == 0;
}

#endif
#endif
