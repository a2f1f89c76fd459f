/* Alias fences on the emulated driver: kernels that use memory by its own address and by a
 * multicast address, with and without a fence between. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "conformance.h"
#include "emu/emu_device.h"
#include "emu/emu_internal.h"

#define LF CUDA_ERROR_LAUNCH_FAILED
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* ---- kernels --------------------------------------------------------------------------------- */

/* What the two threads of a block do, the second after the first, a letter for each step:
 * s and l store and load by the memory's own address, S and L by the multicast address, f is an
 * alias fence; n and N are s and S of the next 16 bytes;
 * w waits until the host says go. */
struct params {
    CUdeviceptr memory, multicast;
    char first[8], second[8];
};

static atomic_int waits, go;

static void wait_for_host(void)
{
    atomic_store(&waits, 1);
    while (!atomic_load(&go))
        emu_dev_pause();
}

static void by_memory(CUdeviceptr at, int store)
{
    void *const p = (void *)(uintptr_t)at;

    if (store)
        emu_dev_store32(emu_dev_store_addr(p, 4), 1, __ATOMIC_RELAXED);
    else
        (void)emu_dev_load32(emu_dev_load_addr(p, 4), __ATOMIC_RELAXED);
}

static void by_multicast(CUdeviceptr at, int store)
{
    void *targets[EMU_MAX_DEVICES];
    const int count = emu_dev_multicast((void *)(uintptr_t)at, 4, store, targets);

    for (int i = 0; store && i < count; i++)
        emu_dev_store32(targets[i], 1, __ATOMIC_RELAXED);
}

static void steps(const struct params *a, const char *letters)
{
    for (; *letters != '\0'; letters++) {
        const size_t offset = *letters == 'n' || *letters == 'N' ? 16 : 0;

        if (*letters == 'f')
            emu_dev_alias_fence();
        else if (*letters == 'w')
            wait_for_host();
        else if (strchr("sln", *letters) != NULL)
            by_memory(a->memory + offset, *letters != 'l');
        else
            by_multicast(a->multicast + offset, *letters != 'L');
    }
}

static void work(const void *params)
{
    const struct params *a = params;
    const unsigned thread = emu_dev_me()->thread.x;

    if (thread == 0)
        steps(a, a->first);
    emu_dev_barrier();
    if (thread == 1)
        steps(a, a->second);
}

static const struct sw_emu_kernel kernels[] = {{"work", work, sizeof(struct params), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 1, kernels};

/* ---- fixture --------------------------------------------------------------------------------- */

static struct conf_block blocks[2];
static CUmemGenericAllocationHandle mc;
static CUdeviceptr multicast;
static CUlibrary library;
static CUkernel kernel;
static CUcontext contexts[2];
static size_t unit;

static void set_up(void)
{
    const CUmulticastObjectProp prop = conf_mc_prop(2, unit, 0);

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    for (int i = 0; i < 2; i++) {
        conf_must(sw_drv.cuMulticastAddDevice(mc, i), "cuMulticastAddDevice");
        conf_must(sw_drv.cuDevicePrimaryCtxRetain(&contexts[i], i), "cuDevicePrimaryCtxRetain");
    }
    multicast = conf_reserve(unit);
    for (int i = 0; i < 2; i++) {
        conf_block_make(&blocks[i], i, unit, 0);
        conf_must(conf_access(blocks[i].va, unit, i, RW), "cuMemSetAccess");
        conf_must(sw_drv.cuMulticastBindMem(mc, 0, blocks[i].handle, 0, unit, 0), "bind");
    }
    conf_must(sw_drv.cuMemMap(multicast, unit, 0, mc, 0), "cuMemMap");
    for (int i = 0; i < 2; i++)
        conf_must(conf_access(multicast, unit, i, RW), "cuMemSetAccess");
    conf_must(sw_drv.cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0), "library");
    conf_must(sw_drv.cuLibraryGetKernel(&kernel, library, "work"), "cuLibraryGetKernel");
}

static void tear_down(void)
{
    conf_must(sw_drv.cuLibraryUnload(library), "cuLibraryUnload");
    conf_unmap(multicast, unit);
    for (int i = 0; i < 2; i++)
        conf_must(sw_drv.cuMulticastUnbind(mc, i, 0, unit), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    for (int i = 0; i < 2; i++) {
        conf_block_drop(&blocks[i]);
        conf_must(sw_drv.cuDevicePrimaryCtxRelease(i), "cuDevicePrimaryCtxRelease");
    }
}

static void launch(int device, const char *first, const char *second)
{
    struct params a = {blocks[device].va, multicast, "", ""};
    void *params[] = {&a};

    memcpy(a.first, first, strlen(first) + 1);
    memcpy(a.second, second, strlen(second) + 1);
    conf_must(sw_drv.cuCtxSetCurrent(contexts[device]), "cuCtxSetCurrent");
    conf_must(sw_drv.cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 2, 1, 1, 0, NULL, params, NULL),
              "cuLaunchKernel");
}

static CUresult finish(int device)
{
    CUresult result;

    conf_must(sw_drv.cuCtxSetCurrent(contexts[device]), "cuCtxSetCurrent");
    result = sw_drv.cuStreamSynchronize(NULL);
    sw_emu_clear_sticky();
    conf_must(sw_drv.cuCtxSetCurrent(contexts[0]), "cuCtxSetCurrent");
    return result;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void one_kernel(void)
{
    static const struct {
        const char *text, *first, *second;
        CUresult want;
    } cases[] = {
        {"one address", "slsl", "ls", OK},
        {"multicast", "SLSL", "LS", OK},
        {"loads by both", "lL", "Ll", OK},
        {"other bytes", "s", "N", OK},
        {"a load before a store", "l", "S", OK},
        {"store, multicast load", "s", "L", LF},
        {"store, multicast store", "s", "S", LF},
        {"multicast store, load", "S", "l", LF},
        {"multicast store, store", "S", "s", LF},
        {"in one thread", "sL", "", LF},
        {"the next bytes", "sn", "N", LF},
        {"with a fence", "sf", "L", OK},
        {"with a fence of the other thread", "S", "fl", OK},
        {"with a fence in one thread", "sfL", "", OK},
        {"with a fence too early", "fs", "L", LF},
        {"with a fence too late", "s", "Lf", LF},
        {"with a fence for one of two stores", "sfs", "L", LF},
        {"with a fence each time", "sfSfl", "", OK},
    };

    set_up();
    for (int on = 0; on <= 1; on++) {
        conf_must(sw_emu_alias_watch(on) == 0 ? OK : OOM, "sw_emu_alias_watch");
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            launch(0, cases[i].first, cases[i].second);
            TAP_EQ(cases[i].text, finish(0), on ? cases[i].want : OK);
        }
    }
    tear_down();
}

/* Launches a kernel that comes to a wait. */
static void launch_waiting(int device, const char *letters)
{
    atomic_store(&waits, 0);
    atomic_store(&go, 0);
    launch(device, letters, "");
    while (!atomic_load(&waits))
        sched_yield();
}

/* The end of a kernel is enough for those that begin after it. */
static void several_kernels(void)
{
    char text[256];

    set_up();
    conf_must(sw_emu_alias_watch(1) == 0 ? OK : OOM, "sw_emu_alias_watch");
    launch(0, "s", "");
    launch(0, "L", "");
    TAP_EQ("one kernel after the other", finish(0), OK);
    for (int fence = 0; fence <= 1; fence++) {
        launch_waiting(0, fence ? "Sfw" : "Sw");
        launch(1, "l", "");
        TAP_EQ("a kernel of another device, while the first runs", finish(1), fence ? OK : LF);
        atomic_store(&go, 1);
        TAP_EQ("the first one", finish(0), OK);
        launch(1, "l", "");
        TAP_EQ("and when it has ended", finish(1), OK);
    }
    (void)sw_emu_last_fault(text, sizeof text);
    tap_ok(strstr(text, "device 1, kernel work: unfenced read of 4 bytes") != NULL, "%s", text);
    for (int fence = 0; fence <= 1; fence++) {
        launch_waiting(1, fence ? "wfl" : "wl");
        launch(0, "S", "");
        TAP_EQ("a kernel that ends", finish(0), OK);
        atomic_store(&go, 1);
        TAP_EQ("one that was there before", finish(1), fence ? OK : LF);
    }
    conf_must(sw_emu_alias_watch(0) == 0 ? OK : OOM, "sw_emu_alias_watch");
    tear_down();
}

int main(void)
{
    conf_emulate("2");
    unit = conf_team_start();
    conf_group("one kernel", one_kernel);
    conf_group("several kernels", several_kernels);
    return conf_done(NULL);
}
