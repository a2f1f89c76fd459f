/* Kernels for the emulated driver, written as its images have them; a launch, and memory. */
#ifndef SYMWIN_TESTS_EMU_KERNELS_H
#define SYMWIN_TESTS_EMU_KERNELS_H

#include <string.h>
#include <unistd.h>

#include "emu/emu.h"
#include "emu/emu_device.h"
#include "tap.h"

extern "C" void sw_emu_clear_sticky(void);

/* ThreadSanitizer keeps a clock of all threads, including CUDA threads, for each thread. */
#ifdef EMU_TSAN
enum { MANY_BLOCKS = 16, MANY_RANKS = 24 };
#else
enum { MANY_BLOCKS = 96, MANY_RANKS = 72 };
#endif

/* ---- kernels --------------------------------------------------------------------------------- */

struct words {
    CUdeviceptr p;
    CUdeviceptr q;
    unsigned n;
};

static uint32_t *word_at(CUdeviceptr base, uint64_t index)
{
    return (uint32_t *)(uintptr_t)base + index;
}

static unsigned linear(const emu_dev_dim &at, const emu_dev_dim &size)
{
    return at.x + size.x * (at.y + size.y * at.z);
}

static unsigned block_threads()
{
    return blockDim.x * blockDim.y * blockDim.z;
}

__global__ static void shape(const void *params)
{
    const words *a = (const words *)params;
    const unsigned i = linear(blockIdx, gridDim) * block_threads() + linear(threadIdx, blockDim);

    *(uint32_t *)emu_dev_store_addr(word_at(a->p, i), 4) += i + 1;
}

/* The block's sum by a tree in shared memory: wrong if the barrier lets a thread through early. */
__global__ static void __launch_bounds__(1024) tree(const void *params)
{
    __shared__ uint32_t partial[1024];
    const words *a = (const words *)params;
    const unsigned t = threadIdx.x;

    partial[t] = *(uint32_t *)emu_dev_load_addr(word_at(a->p, blockIdx.x * blockDim.x + t), 4);
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half)
            partial[t] += partial[t + half];
        __syncthreads();
    }
    if (t == 0)
        *(uint32_t *)emu_dev_store_addr(word_at(a->q, blockIdx.x), 4) = partial[0];
}

/* Odd threads leave before the barrier, which counts them as arrived. */
__global__ static void leavers(const void *params)
{
    __shared__ uint32_t first[64];
    const words *a = (const words *)params;

    if (threadIdx.x % 2 == 1)
        return;
    first[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    *(uint32_t *)emu_dev_store_addr(word_at(a->p, threadIdx.x), 4) = first[62 - threadIdx.x];
}

/* One thread reaches the barrier late; the others read what it wrote before. */
__global__ static void late(const void *params)
{
    __shared__ uint32_t value;
    const words *a = (const words *)params;

    if (threadIdx.x == a->n) {
        for (int i = 0; i < 20; i++)
            emu_dev_pause();
        value = a->n + 100;
    }
    __syncthreads();
    *(uint32_t *)emu_dev_store_addr(word_at(a->p, threadIdx.x), 4) = value;
}

/* Thread i waits for thread i + 1 of its block, the last one for the last threads of all blocks.
 * Works only if threads take turns and all blocks are resident. */
__global__ static void chain(const void *params)
{
    const words *a = (const words *)params;
    const unsigned threads = block_threads(), me = linear(threadIdx, blockDim);
    void *next = emu_dev_load_addr(word_at(a->p, blockIdx.x * threads + me + 1), 4);
    void *all = emu_dev_store_addr(word_at(a->q, 0), 4);

    if (me + 1 == threads) {
        emu_dev_add32(all, 1, __ATOMIC_ACQ_REL);
        while (emu_dev_load32(all, __ATOMIC_ACQUIRE) < a->n)
            emu_dev_pause();
    } else {
        while (emu_dev_load32(next, __ATOMIC_ACQUIRE) == 0)
            emu_dev_pause();
    }
    emu_dev_store32(emu_dev_store_addr(word_at(a->p, blockIdx.x * threads + me), 4), 1,
                    __ATOMIC_RELEASE);
}

/* A lock that threads only poll by stores. */
__global__ static void locked_add(const void *params)
{
    const words *a = (const words *)params;

    while (emu_dev_exchange32(emu_dev_store_addr(word_at(a->p, 0), 4), 1, __ATOMIC_ACQUIRE) != 0)
        emu_dev_pause();
    *(uint32_t *)emu_dev_store_addr(word_at(a->p, 1), 4) += 1;
    emu_dev_store32(emu_dev_store_addr(word_at(a->p, 0), 4), 0, __ATOMIC_RELEASE);
}

/* Passes data by flag between blocks, with fences instead of release and acquire. */
__global__ static void fenced(const void *params)
{
    const words *a = (const words *)params;
    void *flag = emu_dev_store_addr(word_at(a->p, 0), 4);
    uint32_t *data = (uint32_t *)emu_dev_store_addr(word_at(a->p, 1), 4);

    if (blockIdx.x == 0) {
        *data = 41;
        emu_dev_fence();
        emu_dev_store32(flag, 1, __ATOMIC_RELAXED);
    } else {
        while (emu_dev_load32(flag, __ATOMIC_RELAXED) == 0)
            emu_dev_pause();
        emu_dev_fence();
        *data += 1;
    }
}

/* One thread makes a refused access, the others wait for ever. */
__global__ static void bad_access(const void *params)
{
    const words *a = (const words *)params;
    void *never = emu_dev_load_addr(word_at(a->q, 0), 4);

    if (blockIdx.x == 1 && threadIdx.x == 3)
        (void)emu_dev_store_addr(word_at(a->p, a->n), 4);
    if (threadIdx.x == 4)
        __syncthreads();
    while (emu_dev_load32(never, __ATOMIC_ACQUIRE) == 0)
        emu_dev_pause();
}

__global__ static void bad_read(const void *params)
{
    const words *a = (const words *)params;

    (void)*(uint32_t *)emu_dev_load_addr((void *)(uintptr_t)a->p, 4);
}

__global__ static void bad_multicast(const void *params)
{
    const words *a = (const words *)params;
    void *targets[EMU_MAX_DEVICES];

    (void)emu_dev_multicast((void *)(uintptr_t)a->p, 4, 1, targets);
}

__global__ static void deep(const void *params)
{
    const words *a = (const words *)params;
    volatile char local[24 << 10];

    for (unsigned i = 0; i < sizeof local; i += 512)
        local[i] = (char)i;
    __syncthreads();
    if (local[512] == 0)
        *(uint32_t *)emu_dev_store_addr(word_at(a->p, threadIdx.x), 4) = 7;
}

__global__ static void timer(const void *)
{
    const uint64_t from = emu_dev_globaltimer();

    while (emu_dev_globaltimer() - from < 2000000)
        emu_dev_pause();
}

static const struct sw_emu_kernel kernels[] = {
    {"shape", shape, sizeof(words), 0},       {"tree", tree, sizeof(words), 0},
    {"leavers", leavers, sizeof(words), 0},   {"late", late, sizeof(words), 0},
    {"chain", chain, sizeof(words), 0},       {"locked_add", locked_add, sizeof(words), 0},
    {"fenced", fenced, sizeof(words), 0},     {"bad_access", bad_access, sizeof(words), 0},
    {"bad_read", bad_read, sizeof(words), 0}, {"bad_multicast", bad_multicast, sizeof(words), 0},
    {"deep", deep, sizeof(words), 0},         {"timer", timer, 0, 0},
};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, sizeof kernels / sizeof kernels[0],
                                          kernels};

/* ---- helpers --------------------------------------------------------------------------------- */

static CUlibrary library;

static CUkernel kernel_of(const char *name)
{
    CUkernel kernel = NULL;

    (void)sw_emu_cuLibraryGetKernel(&kernel, library, name);
    return kernel;
}

static CUresult launch(const char *name, unsigned blocks, unsigned threads, CUstream stream,
                       words args)
{
    void *params[] = {&args};

    return sw_emu_cuLaunchKernel((CUfunction)kernel_of(name), blocks, 1, 1, threads, 1, 1, 0,
                                 stream, params, NULL);
}

static void use_device(int device)
{
    CUcontext ctx;

    (void)sw_emu_cuDevicePrimaryCtxRetain(&ctx, device);
    (void)sw_emu_cuCtxSetCurrent(ctx);
}

static CUdeviceptr zeroed(size_t words_)
{
    CUdeviceptr p = 0;

    (void)sw_emu_cuMemAlloc(&p, words_ * 4);
    (void)sw_emu_cuMemsetD8(p, 0, words_ * 4);
    return p;
}

static uint32_t read_word(CUdeviceptr p, size_t index)
{
    uint32_t value = 0xdeadbeef;

    (void)sw_emu_cuMemcpyDtoH(&value, p + index * 4, 4);
    return value;
}

#endif
