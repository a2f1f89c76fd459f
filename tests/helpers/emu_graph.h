/* What the tests of the emulated driver's graphs share: words that kernels count in, kernels, captures. */
#ifndef SYMWIN_TESTS_EMU_GRAPH_H
#define SYMWIN_TESTS_EMU_GRAPH_H

#include "emu_words.h"

#define GRAPH_UNUSED __attribute__((unused)) static

enum { COUNT = 0, LEFT = 1, RIGHT = 2, GATE = 3 };

GRAPH_UNUSED CUevent event_new(void)
{
    CUevent e = NULL;

    (void)sw_emu_cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
    return e;
}

GRAPH_UNUSED void count_up(void *p)
{
    __atomic_fetch_add((int *)p, 1, __ATOMIC_RELAXED);
}

/* A kernel: adds one to a word by its only thread. */
static void bump(const void *params)
{
    const CUdeviceptr p = *(const CUdeviceptr *)params;

    (*(uint32_t *)(uintptr_t)p)++;
}

/* Another: each of its threads appends a digit to a word. */
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
GRAPH_UNUSED CUfunction append_function;
static CUkernel append_kernel;

GRAPH_UNUSED CUresult launch_bump(CUstream s, uint32_t *p)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)p;
    void *params[] = {&address};

    return sw_emu_cuLaunchKernel(bump_function, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

/* The same by cuLaunchKernelEx: the kernel may, and here does not, begin before what is ahead. */
GRAPH_UNUSED CUresult launch_bump_early(CUstream s, uint32_t *p)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)p;
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, s, &attribute, 1};
    void *params[] = {&address};

    return sw_emu_cuLaunchKernelEx(&config, bump_function, params, NULL);
}

GRAPH_UNUSED void begin(CUstream s, CUstreamCaptureMode mode)
{
    TAP_EQ("begin capture", sw_emu_cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
}

/* Ends a capture that must fail, with that code and no graph. */
GRAPH_UNUSED void end_fails(const char *name, CUstream s, CUresult want)
{
    CUgraph graph = (CUgraph)(void *)&graph;

    TAP_EQ(name, sw_emu_cuStreamEndCapture(s, &graph), want);
    tap_ok(graph == NULL, "no graph");
}

GRAPH_UNUSED CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;

    TAP_EQ("instantiate", sw_emu_cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
}

/* Runs them on device 0, with a stream, and counts what they left. */
GRAPH_UNUSED int graph_tests(void (*run)(CUstream s))
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
