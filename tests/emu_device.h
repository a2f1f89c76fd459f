/* What the tests of the emulated driver's streams and graphs begin with. */
#ifndef SYMWIN_TESTS_EMU_DEVICE_H
#define SYMWIN_TESTS_EMU_DEVICE_H

#include "../emu/emu.h"

/* Retains its primary context and makes that current. */
static inline CUcontext use_device(int device)
{
    CUcontext ctx = NULL;

    (void)sw_emu_cuDevicePrimaryCtxRetain(&ctx, device);
    (void)sw_emu_cuCtxSetCurrent(ctx);
    return ctx;
}

static inline CUstream stream_new(unsigned flags)
{
    CUstream s = NULL;

    (void)sw_emu_cuStreamCreate(&s, flags);
    return s;
}

#endif
