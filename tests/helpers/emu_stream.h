/* What tests of the emulated driver's streams and graphs share: device 0, words of pinned memory
 * that streams and tests write, events, kernels and captures. */
#ifndef SYMWIN_TESTS_EMU_STREAM_H
#define SYMWIN_TESTS_EMU_STREAM_H

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

    alarm(120); /* a failing test may wait forever */
    (void)sw_emu_cuInit(0);
    use_device(0);
    (void)sw_emu_cuMemHostAlloc(&p, WORDS * 4, CU_MEMHOSTALLOC_PORTABLE);
    (void)sw_emu_cuMemHostGetDevicePointer(&device_words, p, 0);
    host_words = p;
}

/* Returns main()'s exit status. */
static inline int words_end(void)
{
    (void)sw_emu_cuMemFreeHost(host_words);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}

/* ---- graphs ---- */

#define EMU_UNUSED __attribute__((unused)) static

/* Words that kernels and host functions write. */
enum { COUNT = 0, LEFT = 1, RIGHT = 2, GATE = 3 };

EMU_UNUSED CUevent event_new(void)
{
    CUevent e = NULL;

    (void)sw_emu_cuEventCreate(&e, CU_EVENT_DEFAULT);
    return e;
}

EMU_UNUSED void count_up(void *p)
{
    __atomic_fetch_add((int *)p, 1, __ATOMIC_RELAXED);
}

/* A kernel of one thread: adds one to a word. */
static void bump(const void *params)
{
    const CUdeviceptr p = *(const CUdeviceptr *)params;

    (*(uint32_t *)(uintptr_t)p)++;
}

/* A kernel: each thread appends a digit to a word. */
static void append(const void *params)
{
    uint32_t *p = &host_words[RIGHT], old = __atomic_load_n(p, __ATOMIC_RELAXED);

    while (!__atomic_compare_exchange_n(p, &old, 10 * old + *(const uint32_t *)params, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static const struct sw_emu_kernel kernels[] = {{"bump", bump, sizeof(CUdeviceptr), 0},
                                               {"append", append, sizeof(uint32_t), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 2, kernels};
static CUfunction bump_function;
EMU_UNUSED CUfunction append_function;
static CUkernel append_kernel;

EMU_UNUSED CUresult launch_bump(CUstream s, uint32_t *p)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)p;
    void *params[] = {&address};

    return sw_emu_cuLaunchKernel(bump_function, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

/* The same by cuLaunchKernelEx. The attribute allows the kernel to begin before earlier work ends;
 * this one does not. */
EMU_UNUSED CUresult launch_bump_early(CUstream s, uint32_t *p)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)p;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, s, &attribute, 1};
    void *params[] = {&address};

    return sw_emu_cuLaunchKernelEx(&config, bump_function, params, NULL);
}

EMU_UNUSED void begin(CUstream s, CUstreamCaptureMode mode)
{
    TAP_EQ("begin capture", sw_emu_cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
}

/* Ends a capture that must fail with this code and give no graph. */
EMU_UNUSED void end_fails(const char *name, CUstream s, CUresult want)
{
    CUgraph graph = (CUgraph)(void *)&graph;

    TAP_EQ(name, sw_emu_cuStreamEndCapture(s, &graph), want);
    tap_ok(graph == NULL, "no graph");
}

EMU_UNUSED CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;

    TAP_EQ("instantiate", sw_emu_cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
}

/* Runs tests on device 0 with a stream, and checks that nothing is left behind. */
EMU_UNUSED int graph_tests(void (*run)(CUstream s))
{
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUstream s;

    words_begin();
    (void)sw_emu_cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0);
    (void)sw_emu_cuLibraryGetKernel(&kernel, library, "bump");
    (void)sw_emu_cuKernelGetFunction(&bump_function, kernel);
    (void)sw_emu_cuLibraryGetKernel(&append_kernel, library, "append");
    (void)sw_emu_cuKernelGetFunction(&append_function, append_kernel);
    s = stream_new(CU_STREAM_NON_BLOCKING);
    run(s);
    (void)sw_emu_cuStreamDestroy(s);
    (void)sw_emu_cuLibraryUnload(library);
    return words_end();
}

#endif
