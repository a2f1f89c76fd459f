/* Dynamic shared memory of the emulated driver: what a function may ask for, and what its blocks
 * get. */
#include <string.h>
#include <unistd.h>

#include "emu/emu.h"
#include "symwin/device.cuh"
#include "tap.h"

enum { THREADS = 32, PLAIN = 48 << 10, MOST = 227 << 10 };

struct request {
    CUdeviceptr bytes, wrong; /* wrong: a word for each block */
};

/* Every thread fills its part of the shared memory, then checks the next thread's. */
__global__ static void fill(const void *params)
{
    const request *to = (const request *)params;
    const uint32_t n = symwin_shared_bytes(), t = threadIdx.x;
    unsigned char *bytes = (unsigned char *)symwin_shared();
    uint32_t wrong = (uintptr_t)bytes % 1024 != 0;

    for (uint32_t i = t; i < n; i += blockDim.x)
        bytes[i] = (unsigned char)(blockIdx.x + i % blockDim.x);
    __syncthreads();
    for (uint32_t i = (t + 1) % blockDim.x; i < n; i += blockDim.x)
        wrong += bytes[i] != (unsigned char)(blockIdx.x + i % blockDim.x);
    if (wrong != 0)
        symwin_store_relaxed_u32(to->wrong + 4 * blockIdx.x, wrong);
    if (t == 0)
        symwin_store_relaxed_u32(to->bytes + 4 * blockIdx.x, n);
}

static const struct sw_emu_kernel kernels[] = {{"fill", fill, sizeof(request), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 1, kernels};

static CUresult launch(CUfunction function, unsigned blocks, unsigned shared, request to)
{
    void *params[] = {&to};

    return sw_emu_cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, shared, NULL, params, NULL);
}

static uint32_t word(CUdeviceptr p, unsigned index)
{
    uint32_t value = 0xdeadbeef;

    (void)sw_emu_cuMemcpyDtoH(&value, p + 4 * index, 4);
    return value;
}

static void test_attribute(CUfunction function, CUkernel kernel)
{
    const CUfunction_attribute attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    int value = 0;

    TAP_EQ("of a device",
           sw_emu_cuDeviceGetAttribute(&value,
                                       CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0),
           CUDA_SUCCESS);
    TAP_EQ("at most", value, MOST);
    TAP_EQ("ask", sw_emu_cuFuncGetAttribute(&value, attribute, function), CUDA_SUCCESS);
    TAP_EQ("at first", value, PLAIN);
    TAP_EQ("more than there is", sw_emu_cuFuncSetAttribute(function, attribute, MOST + 1),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("less than none", sw_emu_cuFuncSetAttribute(function, attribute, -1),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("another attribute", sw_emu_cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 32),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("of no function", sw_emu_cuFuncSetAttribute(NULL, attribute, 1024),
           CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("of a kernel", sw_emu_cuFuncSetAttribute((CUfunction)kernel, attribute, 1024),
           CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("refused requests change nothing",
           sw_emu_cuFuncGetAttribute(&value, attribute, function) == CUDA_SUCCESS && value == PLAIN,
           1);
}

static void test_occupancy(CUfunction function)
{
    static const struct {
        size_t shared;
        int want;
    } cases[] = {{0, 32},   {6 << 10, 32},    {(6 << 10) + 512, 30}, {113 << 10, 2},
                 {MOST, 1}, {0xfffffc00u, 0}, {MOST + 1, 0}};

    for (const auto &c : cases) {
        int blocks = -1;

        (void)sw_emu_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, THREADS,
                                                                 c.shared);
        TAP_EQ("blocks of a multiprocessor", blocks, c.want);
    }
}

static void test_launch(CUfunction function, CUkernel kernel)
{
    enum { BLOCKS = 5 };
    const unsigned sizes[] = {0, 1, 1000, PLAIN, MOST};
    request to = {};

    (void)sw_emu_cuMemAlloc(&to.bytes, 4 * BLOCKS);
    (void)sw_emu_cuMemAlloc(&to.wrong, 4 * BLOCKS);
    TAP_EQ("more than was asked for", launch(function, 1, PLAIN + 1, to), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ(
        "ask for all",
        sw_emu_cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, MOST),
        CUDA_SUCCESS);
    TAP_EQ("more than there is", launch(function, 1, MOST + 1, to), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("not for the kernel", launch((CUfunction)kernel, 1, PLAIN + 1, to),
           CUDA_ERROR_INVALID_VALUE);
    for (unsigned shared : sizes) {
        int wrong = 0;

        (void)sw_emu_cuMemsetD8(to.bytes, 0xff, 4 * BLOCKS);
        (void)sw_emu_cuMemsetD8(to.wrong, 0, 4 * BLOCKS);
        TAP_EQ("launch", launch(function, BLOCKS, shared, to), CUDA_SUCCESS);
        for (unsigned b = 0; b < BLOCKS; b++)
            wrong += word(to.bytes, b) != shared || word(to.wrong, b) != 0;
        TAP_EQ("each block has what was asked for, and for itself", wrong, 0);
    }
    (void)sw_emu_cuMemFree(to.bytes);
    (void)sw_emu_cuMemFree(to.wrong);
}

int main(void)
{
    CUcontext ctx;
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUfunction function = NULL;

    alarm(120);
    (void)sw_emu_cuInit(0);
    (void)sw_emu_cuDevicePrimaryCtxRetain(&ctx, 0);
    (void)sw_emu_cuCtxSetCurrent(ctx);
    TAP_EQ("load", sw_emu_cuLibraryLoadData(&library, &image, 0, 0, 0, 0, 0, 0), CUDA_SUCCESS);
    (void)sw_emu_cuLibraryGetKernel(&kernel, library, "fill");
    TAP_EQ("function", sw_emu_cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    test_attribute(function, kernel);
    test_occupancy(function);
    test_launch(function, kernel);
    TAP_EQ("unload", sw_emu_cuLibraryUnload(library), CUDA_SUCCESS);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
