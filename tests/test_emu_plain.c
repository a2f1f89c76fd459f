/* What the conformance rules leave open about the emulated driver's memory: plain blocks, copies
 * and fills over several mappings, descriptors that only look right, contexts that nobody retains. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../emu/emu_internal.h"
#include "conformance.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* ---- plain memory ---------------------------------------------------------------------------- */

static void device_blocks(void)
{
    CUdeviceptr block = 0;

    conf_must(sw_drv.cuMemAlloc(&block, 1000), "cuMemAlloc");
    TAP_EQ("a block is aligned to 512", block % 512, 0);
    tap_ok(emu_access(conf.device, block + 999, 1, 1) != NULL, "its device writes its last byte");
    tap_ok(emu_access(conf.device, block + 1000, 1, 0) == NULL, "and does not read one more");
    tap_ok(emu_access(conf.peer, block, 1, 0) == NULL, "another device does not read it");
    TAP_EQ("a fill of one byte more", sw_drv.cuMemsetD8(block, 1, 1001), IV);
    TAP_EQ("free of an address inside", sw_drv.cuMemFree(block + 512), IV);
    TAP_EQ("free as pinned memory", sw_drv.cuMemFreeHost((void *)(uintptr_t)block), IV);
    TAP_EQ("free", sw_drv.cuMemFree(block), OK);
    TAP_EQ("free twice", sw_drv.cuMemFree(block), IV);
}

static void nap(void *done)
{
    usleep(50000);
    atomic_store((atomic_int *)done, 1);
}

static void free_waits(void)
{
    atomic_int done = 0;
    CUdeviceptr block = 0;
    void *host = NULL;

    conf_must(sw_drv.cuMemAlloc(&block, 16), "cuMemAlloc");
    conf_must(sw_drv.cuMemHostAlloc(&host, 16, 0), "cuMemHostAlloc");
    conf_must(sw_drv.cuLaunchHostFunc(NULL, nap, &done), "cuLaunchHostFunc");
    TAP_EQ("free of a block with work on its device", sw_drv.cuMemFree(block), OK);
    TAP_EQ("it waited for the work", atomic_load(&done), 1);
    atomic_store(&done, 0);
    conf_must(sw_drv.cuLaunchHostFunc(NULL, nap, &done), "cuLaunchHostFunc");
    TAP_EQ("free of pinned memory", sw_drv.cuMemFreeHost(host), OK);
    TAP_EQ("it waited too", atomic_load(&done), 1);
}

static void host_blocks(void)
{
    unsigned type = 0;
    CUdeviceptr there = 0;
    void *host = NULL;

    TAP_EQ("unknown flags", sw_drv.cuMemHostAlloc(&host, 64, 0x80), IV);
    conf_must(sw_drv.cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    conf_must(sw_drv.cuMemHostGetDevicePointer(&there, (char *)host + 8, 0), "device pointer");
    TAP_EQ("a device has the host's address", there, (CUdeviceptr)(uintptr_t)host + 8);
    for (CUdevice d = 0; d < conf.devices; d++)
        tap_ok(emu_access(d, there, 56, 1) == (char *)host + 8, "device %d writes there", d);
    conf_must(sw_drv.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, there), "type");
    TAP_EQ("it is host memory", type, CU_MEMORYTYPE_HOST);
    conf_must(sw_drv.cuMemFreeHost(host), "cuMemFreeHost");
    TAP_EQ("a freed one has no device pointer", sw_drv.cuMemHostGetDevicePointer(&there, host, 0),
           IV);
}

/* ---- copies and fills ------------------------------------------------------------------------ */

/* Two allocations side by side. */
static void across(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(2 * g), seam = va + g - 8;
    CUmemGenericAllocationHandle part[2];
    uint32_t out[4] = {1, 2, 3, 4}, in[4] = {0};

    for (size_t i = 0; i < 2; i++) {
        part[i] = conf_create(conf.device, g, 0);
        conf_must(sw_drv.cuMemMap(va + i * g, g, 0, part[i], 0), "cuMemMap");
        conf_must(sw_drv.cuMemRelease(part[i]), "cuMemRelease");
    }
    conf_must(conf_access(va, 2 * g, conf.device, RW), "cuMemSetAccess");
    TAP_EQ("a copy to two mappings", sw_drv.cuMemcpyHtoD(seam, out, sizeof out), OK);
    TAP_EQ("a copy from two mappings", sw_drv.cuMemcpyDtoH(in, seam, sizeof in), OK);
    tap_ok(memcmp(in, out, sizeof in) == 0, "brings back what was copied");
    tap_ok(memcmp((void *)(uintptr_t)seam, out, sizeof out) == 0, "as does the host's own look");
    TAP_EQ("a fill of two mappings", sw_drv.cuMemsetD32Async(seam, 0x01020304, 4, NULL), OK);
    TAP_EQ("is done", sw_drv.cuMemcpyDtoH(in, seam, sizeof in), OK);
    tap_ok(in[0] == 0x01020304 && in[1] == in[0] && in[2] == in[0] && in[3] == in[0],
           "with every element");
    TAP_EQ("a copy past the second", sw_drv.cuMemcpyHtoD(va + 2 * g - 8, out, sizeof out), IV);
    conf_must(sw_drv.cuMemUnmap(va + g, g), "cuMemUnmap");
    TAP_EQ("a copy where the second was", sw_drv.cuMemcpyHtoD(seam, out, sizeof out), IV);
    conf_must(sw_drv.cuMemUnmap(va, g), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(va, 2 * g), "cuMemAddressFree");
}

/* ---- multicast ------------------------------------------------------------------------------- */

static void multicast(void)
{
    const CUmulticastObjectProp prop = {2, conf.granule, 0, 0};
    CUmemGenericAllocationHandle mc = 0;
    struct conf_block blocks[2];
    CUdeviceptr va = conf_reserve(conf.granule);
    void *targets[EMU_MAX_DEVICES];

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    conf_must(sw_drv.cuMulticastAddDevice(mc, 0), "cuMulticastAddDevice");
    conf_must(sw_drv.cuMulticastAddDevice(mc, 1), "cuMulticastAddDevice");
    for (int i = 0; i < 2; i++) {
        conf_block_make(&blocks[i], i, conf.granule, 0);
        conf_must(sw_drv.cuMulticastBindMem(mc, 0, blocks[i].handle, 0, conf.granule, 0), "bind");
    }
    conf_must(sw_drv.cuMemMap(va, conf.granule, 0, mc, 0), "cuMemMap");
    for (CUdevice d = 0; d < 3; d++)
        conf_must(conf_access(va, conf.granule, d, RW), "cuMemSetAccess");
    TAP_EQ("a member reaches the team", emu_multicast_access(1, va, 4, 1, targets), 2);
    TAP_EQ("a stranger does not", emu_multicast_access(2, va, 4, 1, targets), 0);
    TAP_EQ("a copy to the team", conf_poke(va + 64, 0x77), OK);
    TAP_EQ("reaches the first member", conf_word(blocks[0].va + 64), 0x77);
    TAP_EQ("and the second", *(uint32_t *)(uintptr_t)(blocks[1].va + 64), 0x77);
    conf_unmap(va, conf.granule);
    for (int i = 0; i < 2; i++)
        conf_must(sw_drv.cuMulticastUnbind(mc, i, 0, conf.granule), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_block_drop(&blocks[0]);
    conf_block_drop(&blocks[1]);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* A file with the contents of a real one: without seals anybody could cut it short later, and with
 * them it is still not the memory that its passport names. */
static void forged_descriptor(void)
{
    const CUmemGenericAllocationHandle handle = conf_create(conf.device, conf.granule, FD);
    const int real = conf_export_fd(handle);
    const int forged = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    static unsigned char copy[4096];
    struct stat file;

    tap_ok(fstat(real, &file) == 0 && ftruncate(forged, file.st_size) == 0 &&
               pread(real, copy, sizeof copy, file.st_size - (off_t)sizeof copy) > 0 &&
               pwrite(forged, copy, sizeof copy, file.st_size - (off_t)sizeof copy) > 0,
           "a descriptor is copied");
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    TAP_EQ("the copy is refused while there is the real one",
           conf_try_import((void *)(intptr_t)forged, FD), UNKNOWN);
    close(real);
    TAP_EQ("all of it has gone", sw_emu_live_objects(), 1); /* the context */
    TAP_EQ("a file without seals is refused", conf_try_import((void *)(intptr_t)forged, FD),
           UNKNOWN);
    tap_ok(ftruncate(forged, 4096) == 0, "as it could be cut short");
    close(forged);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void contexts(void)
{
    CUcontext ctx = NULL, current = NULL;
    CUdevice device = -1;
    CUdeviceptr block = 0;

    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, conf.peer), "cuDevicePrimaryCtxRetain");
    TAP_EQ("push", sw_drv.cuCtxPushCurrent(ctx), OK);
    TAP_EQ("the context's device", sw_drv.cuCtxGetDevice(&device), OK);
    TAP_EQ("is the one it was retained for", device, conf.peer);
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.peer), "cuDevicePrimaryCtxRelease");
    TAP_EQ("one release too many", sw_drv.cuDevicePrimaryCtxRelease(conf.peer),
           CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("an allocation in what was released", sw_drv.cuMemAlloc(&block, 16),
           CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("pop of what was released", sw_drv.cuCtxPopCurrent(&current), OK);
    tap_ok(current == ctx, "gives it back");
    TAP_EQ("push of it", sw_drv.cuCtxPushCurrent(ctx), CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("making it current", sw_drv.cuCtxSetCurrent(ctx), CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("making anything current", sw_drv.cuCtxSetCurrent((CUcontext)(void *)&block),
           CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("the one below is current again", sw_drv.cuCtxGetDevice(&device), OK);
    TAP_EQ("with its device", device, conf.device);
}

int main(void)
{
    setenv("SYMWIN_EMU_DEVICES", "4", 1);
    setenv("SYMWIN_EMU_MULTICAST", "1", 1);
    if (sw_driver_load() == SYMWIN_OK && !sw_driver_is_emulated())
        tap_skip_all("it is about the emulated driver");
    conf_start();
    conf_group("device blocks", device_blocks);
    conf_group("free waits", free_waits);
    conf_group("host blocks", host_blocks);
    conf_group("across mappings", across);
    conf_group("multicast", multicast);
    conf_group("forged descriptor", forged_descriptor);
    conf_group("contexts", contexts);
    return conf_done(NULL);
}
