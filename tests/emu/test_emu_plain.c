/* What the conformance rules leave open about the emulated driver's memory: plain blocks, copies
 * and fills over several mappings, forged descriptors, contexts that nobody retains. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu_internal.h"

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

/* Copies over two adjacent allocations. */
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

/* ---- zeros ----------------------------------------------------------------------------------- */

enum { PATTERN = 0xa5 };

/* The number of bytes at `from`, as the host sees them, that differ from `value`. */
static size_t differing(CUdeviceptr from, size_t bytes, unsigned char value)
{
    const unsigned char *p = (const unsigned char *)(uintptr_t)from;
    size_t wrong = 0;

    for (size_t i = 0; i < bytes; i++)
        wrong += p[i] != value;
    return wrong;
}

/* The number of resident pages of the device's memory in this range; -1: the system does not
 * tell. */
static long pages_in_use(CUdeviceptr at, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    static unsigned char there[8192];
    long used = 0;

    if (bytes / page > sizeof there ||
        mincore(emu_access(conf.device, at, bytes, 0), bytes, there) != 0)
        return -1;
    for (size_t i = 0; i < bytes / page; i++)
        used += there[i] & 1;
    return used;
}

/* Zeroes the middle of memory with a pattern, from and to odd addresses. */
static void zero_middle(const char *what, CUdeviceptr at, size_t bytes)
{
    static const size_t lengths[] = {1, 4095, 65535, 65536, 65537, 1000003};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const size_t first = i % 2 == 0 ? 4096 - 13 : 8192, length = lengths[i],
                     end = first + length;

        conf_must(sw_drv.cuMemsetD8(at, PATTERN, bytes), "cuMemsetD8");
        conf_must(sw_drv.cuMemsetD8(at + first, 0, length), "cuMemsetD8");
        tap_ok(differing(at, first, PATTERN) == 0 && differing(at + first, length, 0) == 0 &&
                   differing(at + end, bytes - end, PATTERN) == 0,
               "%s: %zu zeroes from %zu", what, length, first);
    }
    conf_must(sw_drv.cuMemsetD8(at, PATTERN, bytes), "cuMemsetD8");
    conf_must(sw_drv.cuMemsetD32Async(at + 4, 0, bytes / 4 - 2, NULL), "cuMemsetD32Async");
    conf_must(sw_drv.cuStreamSynchronize(NULL), "cuStreamSynchronize");
    tap_ok(differing(at, 4, PATTERN) == 0 && differing(at + 4, bytes - 8, 0) == 0 &&
               differing(at + bytes - 4, 4, PATTERN) == 0,
           "%s: all words but the first and the last", what);
}

/* New memory, zeroed before any write and again after some writes. Under ThreadSanitizer the
 * emulated driver writes the zeros, so that the sanitizer sees them. */
static void zero_new(const char *what, CUdeviceptr at, size_t bytes)
{
#if defined(__SANITIZE_THREAD__)
    const int tells = 0;
#else
    const int tells = pages_in_use(at, bytes) == 0;
#endif
    const char *skip = tells ? "" : " # SKIP nobody can tell here";
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    long written;

    conf_must(sw_drv.cuMemsetD8Async(at, 0, bytes, NULL), "cuMemsetD8Async");
    conf_must(sw_drv.cuStreamSynchronize(NULL), "cuStreamSynchronize");
    tap_ok(!tells || pages_in_use(at, bytes) == 0, "%s: zeroes take no memory%s", what, skip);
    for (size_t i = 0; i < bytes; i += bytes / 16)
        conf_must(sw_drv.cuMemsetD8(at + i + page - 5, PATTERN, 10), "cuMemsetD8");
    written = pages_in_use(at, bytes);
    conf_must(sw_drv.cuMemsetD8(at, 0, bytes), "cuMemsetD8");
    tap_ok(!tells || (written > 0 && pages_in_use(at, bytes) == written),
           "%s: no more than what was written has memory%s", what, skip);
    TAP_EQ("and all is zero", differing(at, bytes, 0), 0);
}

struct neighbour {
    volatile unsigned char *at[2];
    atomic_int stop;
    size_t lost; /* values that were overwritten before the next write */
};

static void *count_up(void *arg)
{
    struct neighbour *n = arg;

    for (unsigned i = 1; !atomic_load(&n->stop); i = i % UINT8_MAX + 1) {
        *n->at[0] = *n->at[1] = (unsigned char)i;
        sched_yield();
        n->lost += (*n->at[0] != i) + (*n->at[1] != i);
    }
    return NULL;
}

/* Another thread writes the bytes next to those being zeroed. */
static void zero_beside(CUdeviceptr at, size_t bytes)
{
    unsigned char *memory = emu_access(conf.device, at, bytes, 1);
    struct neighbour n = {.at = {memory + 4096 + 99, memory + bytes - 99}};
    pthread_t thread;
    size_t wrong = 0;

    pthread_create(&thread, NULL, count_up, &n);
    for (int i = 0; i < 20; i++) {
        const CUdeviceptr from = at + 4096 + 100;
        const size_t length = bytes - 99 - 4096 - 100;

        conf_must(sw_drv.cuMemsetD8(from, PATTERN, length), "cuMemsetD8");
        conf_must(sw_drv.cuMemsetD8(from, 0, length), "cuMemsetD8");
        wrong += differing(from, length, 0);
    }
    atomic_store(&n.stop, 1);
    pthread_join(thread, NULL);
    TAP_EQ("zeroes beside what another thread writes", wrong, 0);
    TAP_EQ("do not reach it", n.lost, 0);
}

static void zeroes(void)
{
    const size_t bytes = 2 * conf.granule;
    struct conf_block block;
    CUdeviceptr plain = 0;

    conf_block_make(&block, conf.device, bytes, 0);
    zero_new("an allocation", block.va, bytes);
    zero_middle("an allocation", block.va, bytes);
    zero_beside(block.va, bytes);
    conf_block_drop(&block);
    conf_must(sw_drv.cuMemAlloc(&plain, bytes), "cuMemAlloc");
    zero_new("plain memory", plain, bytes);
    zero_middle("plain memory", plain, bytes);
    zero_beside(plain, bytes);
    conf_must(sw_drv.cuMemFree(plain), "cuMemFree");
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
    conf_must(conf_poke(blocks[0].va, 0x77), "cuMemcpyHtoD");
    TAP_EQ("a copy to the team", sw_drv.cuMemcpyDtoD(va + 64, blocks[0].va, 4), OK);
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

/* A copy of a real descriptor's file. Without seals it is refused because it could be truncated
 * later; with seals it is still not the memory that its passport names. */
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

/* Whether a process can read the byte; the process may die. */
static int can_read(const volatile unsigned char *at)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would print a report */
        _exit(*at != 7);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

/* An allocation of a context ends with it, portable or not. */
static void context_ends(void)
{
    CUcontext ctx, before;
    void *memory = NULL;

    conf_must(sw_drv.cuCtxGetCurrent(&before), "cuCtxGetCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, 3), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, 3), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
    conf_must(sw_drv.cuMemHostAlloc(&memory, 100, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    memset(memory, 7, 100);
    conf_must(sw_drv.cuCtxSetCurrent(before), "cuCtxSetCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(3), "cuDevicePrimaryCtxRelease");
    tap_ok(can_read(memory), "pinned memory of a context that is still retained");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(3), "cuDevicePrimaryCtxRelease");
    tap_ok(!can_read(memory), "and of one that is not any more");
    TAP_EQ("which is still to be freed", sw_drv.cuMemFreeHost(memory), OK);
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
    conf_group("zeroes", zeroes);
    conf_group("multicast", multicast);
    conf_group("forged descriptor", forged_descriptor);
    conf_group("contexts", contexts);
    conf_group("context ends", context_ends);
    return conf_done(NULL);
}
