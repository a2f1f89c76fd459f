/* What the tests of the emulated driver's streams and graphs begin and end with: device 0, and pinned words that streams
 * and tests talk through. */
#ifndef SYMWIN_TESTS_EMU_WORDS_H
#define SYMWIN_TESTS_EMU_WORDS_H

#include <unistd.h>

#include "emu/emu.h"
#include "tap.h"

enum { WORDS = 64 };

static uint32_t *host_words;
static CUdeviceptr device_words;

static inline CUdeviceptr word(int i)
{
    return device_words + (CUdeviceptr)i * 4;
}

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

static inline void words_begin(void)
{
    void *p = NULL;

    alarm(120); /* a test that fails here may wait for ever */
    (void)sw_emu_cuInit(0);
    use_device(0);
    (void)sw_emu_cuMemHostAlloc(&p, WORDS * 4, CU_MEMHOSTALLOC_PORTABLE);
    (void)sw_emu_cuMemHostGetDevicePointer(&device_words, p, 0);
    host_words = p;
}

/* Returns what main() does. */
static inline int words_end(void)
{
    (void)sw_emu_cuMemFreeHost(host_words);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}

#endif
