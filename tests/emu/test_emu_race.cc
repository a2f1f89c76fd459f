/* Delays before memory accesses: for all threads, for those of a device, a block or a warp, and for
 * none. */
#define SYMWIN_RACE

#include "emu/emu.h"
#include "emu/emu_device.h"
#include "tap.h"

enum { ACCESSES = 40, BLOCKS = 2, THREADS = 64, ALL = BLOCKS * THREADS };

struct words {
    CUdeviceptr took; /* per thread, nanoseconds */
    CUdeviceptr from; /* the words that it loads */
};

static void *at(CUdeviceptr base, uint64_t index)
{
    return (uint64_t *)(uintptr_t)base + index;
}

/* Measures the thread's own time, in which it waits for no other thread. */
__global__ static void look(const void *params)
{
    const words *a = (const words *)params;
    const uint64_t begun = emu_dev_globaltimer();

    for (uint64_t i = 0; i < ACCESSES; i++)
        (void)emu_dev_load64(emu_dev_load_addr(at(a->from, i), 8), __ATOMIC_RELAXED);
    *(uint64_t *)emu_dev_store_addr(at(a->took, blockIdx.x * blockDim.x + threadIdx.x),
                                    8) = emu_dev_globaltimer() - begun;
}

static const struct sw_emu_kernel kernels[] = {{"look", look, sizeof(words), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 1, kernels};

/* The shortest time of a warp's threads in nanoseconds: other threads may be slow for other
 * reasons. */
static uint64_t shortest(const uint64_t took[ALL], int block, int warp)
{
    const uint64_t *of = took + block * THREADS + warp * 32;
    uint64_t least = of[0];

    for (int i = 1; i < 32; i++)
        least = of[i] < least ? of[i] : least;
    return least;
}

static CUlibrary library;

static void run(int device, const struct sw_emu_race *race, uint64_t took[ALL])
{
    words args = {};
    void *params[] = {&args};
    CUkernel kernel = NULL;
    CUcontext ctx;

    (void)sw_emu_cuDevicePrimaryCtxRetain(&ctx, device);
    (void)sw_emu_cuCtxSetCurrent(ctx);
    (void)sw_emu_cuMemAlloc(&args.took, ALL * 8);
    (void)sw_emu_cuMemAlloc(&args.from, ACCESSES * 8);
    (void)sw_emu_cuMemsetD8(args.from, 0, ACCESSES * 8);
    (void)sw_emu_cuLibraryGetKernel(&kernel, library, "look");
    sw_emu_race_set(race);
    TAP_EQ("launch",
           sw_emu_cuLaunchKernel((CUfunction)kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, params,
                                 NULL),
           CUDA_SUCCESS);
    TAP_EQ("its end", sw_emu_cuCtxSynchronize(), CUDA_SUCCESS);
    (void)sw_emu_cuMemcpyDtoH(took, args.took, ALL * 8);
    (void)sw_emu_cuMemFree(args.took);
    (void)sw_emu_cuMemFree(args.from);
    (void)sw_emu_cuDevicePrimaryCtxRelease(device);
}

/* Selected threads are delayed at every access, on average by half of `most`. Of the others, at
 * least one thread per warp takes less than a tenth of that. */
static void held(const char *who, struct sw_emu_race race, int device, const int want[BLOCKS][2])
{
    const uint64_t most = 100000, much = ACCESSES * most / 4, little = ACCESSES * most / 20;
    uint64_t took[ALL];

    race.seed = 7;
    race.most_ns = (unsigned)most;
    run(device, &race, took);
    for (int block = 0; block < BLOCKS; block++)
        for (int warp = 0; warp < 2; warp++) {
            const uint64_t least = shortest(took, block, warp);

            tap_ok(want[block][warp] ? least > much : least < little,
                   "%s: block %d, warp %d is %sheld up (%llu ns)", who, block, warp,
                   want[block][warp] ? "" : "not ", (unsigned long long)least);
        }
}

int main()
{
    static const int nobody[BLOCKS][2] = {{0, 0}, {0, 0}}, all[BLOCKS][2] = {{1, 1}, {1, 1}};
    static const int second_block[BLOCKS][2] = {{0, 0}, {1, 1}},
                     second_warp[BLOCKS][2] = {{0, 1}, {0, 1}};

    (void)sw_emu_cuInit(0);
    (void)sw_emu_cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0);
    held("nobody", {0, 0, 0, -1, -1, -1}, 0, nobody);
    held("all", {0, 1, 0, -1, -1, -1}, 0, all);
    held("a device, on it", {0, 1, 0, 1, -1, -1}, 1, all);
    held("a device, on another", {0, 1, 0, 1, -1, -1}, 0, nobody);
    held("a block", {0, 1, 0, -1, 1, -1}, 0, second_block);
    held("a warp", {0, 1, 0, -1, -1, 1}, 0, second_warp);
    (void)sw_emu_cuLibraryUnload(library);
    TAP_EQ("objects left", (long long)sw_emu_live_objects(), 0);
    return tap_done();
}
