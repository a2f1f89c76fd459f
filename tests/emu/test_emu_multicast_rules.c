/* Hardware's rules on multicast that no number of the conformance suite has: objects that are much
 * larger than what is bound to them, slots, granularities, access, copies by the host, and faults
 * of the fabric. emu/README.md tells where each rule comes from. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "emu/emu_device.h"
#include "emu_member.h"

#define NONE CU_MEM_ACCESS_FLAGS_PROT_NONE
#define IA CUDA_ERROR_ILLEGAL_ADDRESS

enum { DEVICES = 8 };

/* ---- large objects --------------------------------------------------------------------------- */

#define LARGE ((size_t)64 << 30)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MOST_MB = 1024, MOST_MS = 20000 };
#else
enum { MOST_MB = 64, MOST_MS = 2000 };
#endif

static long resident_mb(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long all = 0, resident = 0;

    if (file == NULL || fscanf(file, "%ld %ld", &all, &resident) != 2)
        conf_bail("/proc/self/statm");
    fclose(file);
    return resident * (long)conf.page >> 20;
}

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* An object of all devices, with segments of two units on each, mapped once and bound at offsets
 * far from each other. */
enum { SEGMENTS = 3 };

struct large {
    CUmemGenericAllocationHandle mc;
    CUdeviceptr va;
    size_t at[SEGMENTS];
    struct conf_block blocks[SEGMENTS][DEVICES];
};

static CUresult large_bind(struct large *l, int segment, int device)
{
    return sw_drv.cuMulticastBindMem(l->mc, l->at[segment], l->blocks[segment][device].handle, 0,
                                     2 * unit, 0);
}

static CUresult large_unbind(struct large *l, int segment, int device)
{
    return sw_drv.cuMulticastUnbind(l->mc, device, l->at[segment], 2 * unit);
}

static int large_reach(const struct large *l, size_t offset)
{
    void *targets[EMU_MAX_DEVICES];

    return emu_multicast_access(1, l->va + offset, 8, 1, targets);
}

static void large_make(struct large *l)
{
    const CUmulticastObjectProp prop = conf_mc_prop(DEVICES, LARGE, 0);

    *l = (struct large){.at = {0, (size_t)40 << 30, LARGE - 2 * unit}};
    conf_must(sw_drv.cuMulticastCreate(&l->mc, &prop), "cuMulticastCreate");
    for (int i = 0; i < DEVICES; i++)
        conf_must(sw_drv.cuMulticastAddDevice(l->mc, i), "cuMulticastAddDevice");
    for (int k = 0; k < SEGMENTS; k++)
        for (int i = 0; i < DEVICES; i++)
            conf_block_make(&l->blocks[k][i], i, 2 * unit, 0);
}

static void large_drop(struct large *l)
{
    conf_unmap(l->va, LARGE);
    conf_must(sw_drv.cuMemRelease(l->mc), "cuMemRelease");
    for (int k = 0; k < SEGMENTS; k++)
        for (int i = 0; i < DEVICES; i++)
            conf_block_drop(&l->blocks[k][i]);
}

static void large_map(struct large *l)
{
    l->va = conf_reserve(LARGE);
    conf_must(sw_drv.cuMemMap(l->va, LARGE, 0, l->mc, 0), "cuMemMap");
    for (int i = 0; i < DEVICES; i++)
        conf_must(conf_access(l->va, LARGE, i, RW), "cuMemSetAccess");
}

/* Bits of the segments that are reached, and that a copy reaches on every device. */
static int large_segments(struct large *l)
{
    static uint32_t serial = 1000;
    int reached = 0;

    for (int k = 0; k < SEGMENTS; k++) {
        const size_t offset = l->at[k] + 2 * unit - 8;
        int arrived = 1;

        if (large_reach(l, offset) != DEVICES)
            continue;
        conf_must(conf_poke(l->blocks[k][0].va, ++serial), "cuMemcpyHtoD");
        conf_must(sw_drv.cuMemcpyDtoD(l->va + offset, l->blocks[k][0].va, 4), "cuMemcpyDtoD");
        for (int i = 0; i < DEVICES; i++)
            arrived &= conf_word(l->blocks[k][i].va + 2 * unit - 8) == serial;
        reached |= arrived << k;
    }
    return reached;
}

static void large_objects(void)
{
    const long began_ms = now_ms(), began_mb = resident_mb();
    struct large l;

    large_make(&l);
    for (int i = 0; i < DEVICES; i++)
        conf_must(large_bind(&l, 0, i), "cuMulticastBindMem");
    large_map(&l);
    TAP_EQ("mapped after the first segment was bound, that one is reached", large_segments(&l), 1);
    for (int i = 0; i < DEVICES; i++)
        conf_must(large_bind(&l, 2, i), "cuMulticastBindMem");
    TAP_EQ("one bound to the mapped object is reached too", large_segments(&l), 5);
    for (int i = 0; i < DEVICES - 1; i++)
        conf_must(large_bind(&l, 1, i), "cuMulticastBindMem");
    TAP_EQ("one without the last device is not", large_segments(&l), 5);
    conf_must(large_bind(&l, 1, DEVICES - 1), "cuMulticastBindMem");
    TAP_EQ("with it, it is", large_segments(&l), 7);
    TAP_EQ("not the byte behind a segment", large_reach(&l, l.at[1] + 2 * unit), 0);
    TAP_EQ("nor the one before", large_reach(&l, l.at[1] - 8), 0);
    TAP_EQ("nor across the end", large_reach(&l, l.at[1] + 2 * unit - 4), 0);
    for (int i = 0; i < DEVICES; i++)
        conf_must(large_unbind(&l, 1, i), "cuMulticastUnbind");
    TAP_EQ("a segment is unbound alone", large_segments(&l), 5);
    for (int times = 0; times < 3; times++)
        for (int i = 0; i < DEVICES; i++) {
            conf_must(large_bind(&l, 1, i), "cuMulticastBindMem");
            conf_must(large_unbind(&l, 0, i), "cuMulticastUnbind");
            conf_must(large_bind(&l, 0, i), "cuMulticastBindMem");
            conf_must(large_unbind(&l, 1, i), "cuMulticastUnbind");
        }
    TAP_EQ("bound and unbound repeatedly, the others are reached", large_segments(&l), 5);
    for (int i = 0; i < DEVICES; i++)
        conf_must(large_bind(&l, 1, i), "cuMulticastBindMem");
    TAP_EQ("and all when all are bound", large_segments(&l), 7);
    for (int i = 0; i < DEVICES; i++)
        for (int k = 0; k < SEGMENTS; k++)
            conf_must(large_unbind(&l, k, i), "cuMulticastUnbind");
    TAP_EQ("none when all are unbound", large_segments(&l), 0);
    large_drop(&l);
    tap_ok(resident_mb() - began_mb <= MOST_MB, "%ld MB of the host's memory",
           resident_mb() - began_mb);
    tap_ok(now_ms() - began_ms <= MOST_MS, "%ld ms", now_ms() - began_ms);
}

/* Stores a word to the multicast address. */
static void touch(const void *params)
{
    const CUdeviceptr va = *(const CUdeviceptr *)params;
    void *targets[EMU_MAX_DEVICES];

    for (int i = emu_dev_multicast((void *)(uintptr_t)va, 4, 1, targets) - 1; i >= 0; i--)
        __atomic_store_n((uint32_t *)targets[i], 1, __ATOMIC_RELEASE);
}

static const struct sw_emu_kernel kernels[] = {{"touch", touch, sizeof(CUdeviceptr), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 1, kernels};

static CUresult kernel_touch(CUdeviceptr va)
{
    void *params[] = {&va};
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUresult result;

    conf_must(sw_drv.cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0), "library");
    conf_must(sw_drv.cuLibraryGetKernel(&kernel, library, "touch"), "cuLibraryGetKernel");
    conf_must(sw_drv.cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
              "cuLaunchKernel");
    result = sw_drv.cuStreamSynchronize(NULL);
    sw_emu_clear_sticky();
    conf_must(sw_drv.cuLibraryUnload(library), "cuLibraryUnload");
    return result;
}

/* Where nothing is bound, an access is refused as where nothing is mapped. The driver knows of a
 * mapping, so a copy fails on the device only. */
static void unbound(void)
{
    struct large l;
    CUdeviceptr nothing, memory;

    large_make(&l);
    for (int i = 0; i < DEVICES; i++)
        conf_must(large_bind(&l, 0, i), "cuMulticastBindMem");
    large_map(&l);
    memory = l.blocks[0][0].va;
    nothing = conf_reserve(unit);
    TAP_EQ("a copy to no memory", sw_drv.cuMemcpyDtoD(nothing, memory, 8), IV);
    TAP_EQ("a copy to an unbound part", sw_drv.cuMemcpyDtoD(l.va + l.at[1], memory, 8), IA);
    TAP_EQ("a copy that begins in the bound part",
           sw_drv.cuMemcpyDtoD(l.va + 2 * unit - 8, memory, 16), IA);
    TAP_EQ("an access to no memory", large_reach(&l, (size_t)(nothing - l.va)), 0);
    TAP_EQ("an access to an unbound part", large_reach(&l, l.at[1]), 0);
    TAP_EQ("a kernel's store to no memory", kernel_touch(nothing), IA);
    TAP_EQ("a kernel's store to an unbound part", kernel_touch(l.va + l.at[1]), IA);
    TAP_EQ("a kernel's store to the bound part", kernel_touch(l.va + 8), OK);
    TAP_EQ("a misaligned one", kernel_touch(l.va + 2), CUDA_ERROR_MISALIGNED_ADDRESS);
    conf_must(sw_drv.cuMemAddressFree(nothing, unit), "cuMemAddressFree");
    for (int i = 0; i < DEVICES; i++)
        conf_must(large_unbind(&l, 0, i), "cuMulticastUnbind");
    large_drop(&l);
}

/* The object in three processes, each of which binds its own memory at one offset of it. */
static void large_shared(CUmemAllocationHandleType type)
{
    enum { ALL = 3, FAR = 20000 };
    const CUmulticastObjectProp prop = conf_mc_prop(ALL, LARGE, (unsigned)type);
    const uint32_t units = (uint32_t)(LARGE / unit);
    CUmemGenericAllocationHandle mc = 0;
    struct remote there[ALL - 1];
    struct member here;
    uint32_t sum;
    int wrong = 0;

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    member_make(&here, 0, mc);
    here.mapped = LARGE;
    conf_must(sw_drv.cuMulticastAddDevice(mc, 0), "cuMulticastAddDevice");
    for (int i = 0; i < ALL - 1; i++) {
        wrong += remote_start(&there[i], i + 1, mc, type) != OK || ask(&there[i], ADD) != OK;
        order_give(&there[i], SPAN, 0, units);
        wrong += answer_of(&there[i]) != 0;
    }
    conf_must(member_bind(&here), "cuMulticastBindMem");
    conf_must(member_map(&here), "cuMemMap");
    for (int i = 0; i < ALL - 1; i++)
        wrong += ask(&there[i], BIND) != OK || ask(&there[i], MAP) != OK;
    TAP_EQ("three processes import, bind and map", wrong, 0);
    TAP_EQ("a store reaches all", member_reach(&here, 8, 71, &sum), ALL);
    TAP_EQ("as the last one finds", word_there(&there[1], 8), 71);

    here.at = FAR * unit;
    conf_must(sw_drv.cuMulticastUnbind(mc, 0, 0, unit), "cuMulticastUnbind");
    conf_must(member_bind(&here), "cuMulticastBindMem");
    for (int i = 0; i < ALL - 1; i++) {
        wrong += ask(&there[i], UNBIND) != OK;
        order_give(&there[i], AT, 0, FAR);
        wrong += answer_of(&there[i]) != 0 || ask(&there[i], BIND) != OK;
    }
    TAP_EQ("all bind elsewhere in the mapped object", wrong, 0);
    TAP_EQ("a store there reaches all", member_reach(&here, 16, 72, &sum), ALL);
    TAP_EQ("as another finds", word_there(&there[0], 16), 72);
    TAP_EQ("a store by another too", store_there(&there[1], 24, 73), ALL);
    TAP_EQ("as we find", conf_word(here.block.va + 24), 73);
    here.at = 0;
    TAP_EQ("where they had bound before, nothing is", reach(&here), 0);
    here.at = FAR * unit;
    conf_must(member_unbind(&here), "cuMulticastUnbind");
    conf_must(member_release(&here), "cuMemRelease");
    conf_block_drop(&here.block);
    for (int i = 0; i < ALL - 1; i++)
        remote_end(&there[i]);
}

static void shared(void)
{
    large_shared(FD);
    conf_machine(2, 1);
    large_shared(FABRIC);
    conf_machine(1, 1);
}

/* An object of devices 0 and 1, to which nothing is bound. */
static CUmemGenericAllocationHandle complete(unsigned types)
{
    const CUmemGenericAllocationHandle mc = object_make(2, types);

    for (int i = 0; i < 2; i++)
        conf_must(sw_drv.cuMulticastAddDevice(mc, i), "cuMulticastAddDevice");
    return mc;
}

static CUresult bind_to(CUmemGenericAllocationHandle mc, const struct conf_block *block)
{
    return sw_drv.cuMulticastBindMem(mc, 0, block->handle, 0, unit, 0);
}

/* ---- granularities --------------------------------------------------------------------------- */

static size_t granularity(CUmulticastGranularity_flags which)
{
    const CUmulticastObjectProp prop = conf_mc_prop(2, 1, 0);
    size_t size = 0;

    conf_must(sw_drv.cuMulticastGetGranularity(&size, &prop, which), "cuMulticastGetGranularity");
    return size;
}

/* Address and size of a mapping are multiples of the minimum, here of two units. */
static void map_at_minimum(void)
{
    CUmulticastObjectProp prop = conf_mc_prop(2, 4, 0);
    CUmemGenericAllocationHandle mc = 0;
    const CUdeviceptr range = conf_reserve(6 * unit);
    const CUdeviceptr va = (range + 2 * unit - 1) / (2 * unit) * (2 * unit);

    prop.size = 4 * unit;
    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    for (int i = 0; i < 2; i++)
        conf_must(sw_drv.cuMulticastAddDevice(mc, i), "cuMulticastAddDevice");
    TAP_EQ("half of the minimum further", sw_drv.cuMemMap(va + unit, 2 * unit, 0, mc, 0), IV);
    TAP_EQ("half of the minimum longer", sw_drv.cuMemMap(va, 3 * unit, 0, mc, 0), IV);
    TAP_EQ("a multiple of the minimum", sw_drv.cuMemMap(va, 2 * unit, 0, mc, 0), OK);
    conf_must(sw_drv.cuMemUnmap(va, 2 * unit), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(range, 6 * unit), "cuMemAddressFree");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
}

static void granularities(void)
{
    static const struct {
        size_t minimum, recommended, want_mb; /* as configured, in MiB; 0: the default */
    } cases[] = {{0, 0, 512}, {0, 2, 2}, {0, 64, 64}, {1024, 0, 1024}, {6, 0, 516}, {6, 4, 6}};
    struct sw_emu_machine usual, machine;
    struct conf_block block;
    CUmemGenericAllocationHandle mc;

    sw_emu_machine(&usual);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        machine = usual;
        machine.multicast_unit = cases[i].minimum << 20;
        machine.multicast_recommended = cases[i].recommended << 20;
        conf_configure(&machine);
        TAP_EQ("the minimum", granularity(CU_MULTICAST_GRANULARITY_MINIMUM) >> 20,
               cases[i].minimum > 0 ? cases[i].minimum : 2);
        TAP_EQ("the recommended granularity",
               granularity(CU_MULTICAST_GRANULARITY_RECOMMENDED) >> 20, cases[i].want_mb);
    }
    machine = usual;
    machine.multicast_unit = 2 * unit;
    conf_configure(&machine);
    map_at_minimum();
    machine = usual;
    machine.multicast_recommended = 3 << 20;
    TAP_EQ("one that is no multiple of 2 MiB", sw_emu_configure(&machine), IV);
    conf_configure(&usual);
    mc = complete(0);
    conf_block_make(&block, 0, 3 * unit, 0);
    TAP_EQ("the recommended one is not enforced",
           sw_drv.cuMulticastBindMem(mc, 0, block.handle, 2 * unit, unit, 0), OK);
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_block_drop(&block);
}

/* ---- access ---------------------------------------------------------------------------------- */

static CUresult access_for(CUdeviceptr va, int a, CUmemAccess_flags of_a, int b,
                           CUmemAccess_flags of_b)
{
    const CUmemAccessDesc desc[] = {{{CU_MEM_LOCATION_TYPE_DEVICE, a}, of_a},
                                    {{CU_MEM_LOCATION_TYPE_DEVICE, b}, of_b}};

    return sw_drv.cuMemSetAccess(va, unit, desc, 2);
}

/* On a machine where a mapping is for one device. */
static void alone(CUdeviceptr va, CUdeviceptr second, CUdeviceptr memory)
{
    TAP_EQ("access for two devices", access_for(va, 0, RW, 1, RW), IV);
    TAP_EQ("gives it to none", conf_rights(va, 0) + conf_rights(va, 1), 0);
    TAP_EQ("access for one", conf_access(va, unit, 0, RW), OK);
    TAP_EQ("for the same again", conf_access(va, unit, 0, RW), OK);
    TAP_EQ("for another too", conf_access(va, unit, 1, RW), IV);
    TAP_EQ("it has none", conf_rights(va, 1), 0);
    TAP_EQ("a second mapping for the other", conf_access(second, unit, 1, RW), OK);
    TAP_EQ("a change from one to the other", access_for(va, 0, NONE, 1, RW), OK);
    TAP_EQ("memory is for all", access_for(memory, 0, RW, 1, RW), OK);
}

static void accesses(void)
{
    struct sw_emu_machine usual, machine;

    sw_emu_machine(&usual);
    for (int on = 0; on <= 1; on++) {
        CUdeviceptr va[2];
        struct conf_block block;
        CUmemGenericAllocationHandle mc;

        machine = usual;
        machine.multicast_alone = on;
        conf_configure(&machine);
        mc = complete(0);
        conf_block_make(&block, 0, unit, 0);
        for (int i = 0; i < 2; i++) {
            va[i] = conf_reserve(unit);
            conf_must(sw_drv.cuMemMap(va[i], unit, 0, mc, 0), "cuMemMap");
        }
        if (on)
            alone(va[0], va[1], block.va);
        else
            TAP_EQ("two devices on the usual machine", access_for(va[0], 0, RW, 1, RW), OK);
        for (int i = 0; i < 2; i++)
            conf_unmap(va[i], unit);
        conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
        conf_block_drop(&block);
    }
    conf_configure(&usual);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Only devices use a multicast address. */
static void copies(void)
{
    const CUmemGenericAllocationHandle mc = complete(0);
    struct conf_block blocks[2];
    const CUdeviceptr va = conf_reserve(unit);
    CUdeviceptr device = 0;
    uint32_t word = 5;
    void *pinned = NULL;

    for (int i = 0; i < 2; i++) {
        conf_block_make(&blocks[i], i, unit, 0);
        conf_must(bind_to(mc, &blocks[i]), "cuMulticastBindMem");
    }
    conf_must(sw_drv.cuMemMap(va, unit, 0, mc, 0), "cuMemMap");
    conf_must(conf_access(va, unit, 0, RW), "cuMemSetAccess");
    conf_must(sw_drv.cuMemHostAlloc(&pinned, 64, 0), "cuMemHostAlloc");
    conf_must(sw_drv.cuMemAlloc(&device, 64), "cuMemAlloc");

    TAP_EQ("from the host", sw_drv.cuMemcpyHtoD(va, &word, 4), IV);
    TAP_EQ("to the host", sw_drv.cuMemcpyDtoH(&word, va, 4), IV);
    TAP_EQ("from pinned memory", sw_drv.cuMemcpyHtoD(va, pinned, 4), IV);
    TAP_EQ("from pinned memory, called the device's",
           sw_drv.cuMemcpyDtoD(va, (CUdeviceptr)(uintptr_t)pinned, 4), IV);
    TAP_EQ("from the host in a stream",
           sw_drv.cuMemcpyAsync(va, (CUdeviceptr)(uintptr_t)&word, 4, NULL), IV);
    TAP_EQ("to the host in a stream",
           sw_drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)&word, va, 4, NULL), IV);
    TAP_EQ("from pinned memory in a stream",
           sw_drv.cuMemcpyAsync(va, (CUdeviceptr)(uintptr_t)pinned, 4, NULL), IV);
    TAP_EQ("a fill", sw_drv.cuMemsetD8(va, 1, 4), IV);
    TAP_EQ("a fill of bytes in a stream", sw_drv.cuMemsetD8Async(va, 1, 4, NULL), IV);
    TAP_EQ("a fill of words in a stream", sw_drv.cuMemsetD32Async(va, 1, 4, NULL), IV);
    TAP_EQ("nothing has changed", conf_word(blocks[0].va) + conf_word(blocks[1].va) + word, 5);
    conf_must(conf_poke(device, 9), "cuMemcpyHtoD");
    TAP_EQ("from the device", sw_drv.cuMemcpyDtoD(va, device, 4), OK);
    TAP_EQ("arrives in both", conf_word(blocks[0].va) * 10 + conf_word(blocks[1].va), 99);
    TAP_EQ("from the device in a stream", sw_drv.cuMemcpyAsync(va + 4, device, 4, NULL), OK);
    conf_must(sw_drv.cuStreamSynchronize(NULL), "cuStreamSynchronize");
    TAP_EQ("arrives too", conf_word(blocks[0].va + 4) * 10 + conf_word(blocks[1].va + 4), 99);

    conf_must(sw_drv.cuMemFree(device), "cuMemFree");
    conf_must(sw_drv.cuMemFreeHost(pinned), "cuMemFreeHost");
    conf_unmap(va, unit);
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_block_drop(&blocks[0]);
    conf_block_drop(&blocks[1]);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void machine_of_slots(int slots, int number)
{
    struct sw_emu_machine machine;

    sw_emu_machine(&machine);
    machine.multicast_slots = slots;
    machine.machine = number;
    conf_configure(&machine);
}

/* How many objects get a slot; the last one made does not. All stay. */
static int objects_until_full(CUmemGenericAllocationHandle *mc, int most,
                              const struct conf_block *block)
{
    CUresult result = OK;
    int count = 0;

    for (; count < most && result == OK; count++) {
        mc[count] = complete(0);
        result = bind_to(mc[count], block);
    }
    TAP_EQ("the first bind of one object too many", result, OOM);
    return count - 1;
}

static void slots_of(int slots, int want)
{
    CUmemGenericAllocationHandle mc[200];
    struct conf_block block, other;
    int count;

    machine_of_slots(slots, 0);
    conf_block_make(&block, 0, unit, 0);
    conf_block_make(&other, 1, unit, 0);
    count = objects_until_full(mc, 200, &block);
    TAP_EQ("so many objects have bindings", count, want);
    TAP_EQ("a bind of another device does not find one either", bind_to(mc[count], &other), OOM);
    if (count > 1) {
        TAP_EQ("an object with a slot takes no other", bind_to(mc[0], &other), OK);
        conf_must(sw_drv.cuMulticastUnbind(mc[0], 0, 0, unit), "cuMulticastUnbind");
        conf_must(sw_drv.cuMulticastUnbind(mc[0], 1, 0, unit), "cuMulticastUnbind");
        TAP_EQ("and keeps it when all is unbound", bind_to(mc[count], &block), OOM);
        TAP_EQ("for what is bound next", bind_to(mc[0], &block), OK);
        conf_must(sw_drv.cuMemRelease(mc[1]), "cuMemRelease");
        TAP_EQ("a slot is free when its object has ended", bind_to(mc[count], &block), OK);
        mc[1] = mc[count--];
    }
    for (int i = 0; i <= count; i++)
        conf_must(sw_drv.cuMemRelease(mc[i]), "cuMemRelease");
    conf_block_drop(&other);
    conf_block_drop(&block);
}

static void slots(void)
{
    slots_of(0, 128);
    slots_of(3, 3);
    slots_of(-1, 0);
    machine_of_slots(0, 0);
}

/* A machine of two slots, shared with processes of members. */
static void shared_slots(void)
{
    CUmemGenericAllocationHandle mine, third;
    struct remote there, other;
    struct member here;
    struct conf_block block;
    char number[16];

    snprintf(number, sizeof number, "%d", (int)getpid() % 4194303 + 1);
    setenv("SYMWIN_EMU_MULTICAST_SLOTS", "2", 1);
    setenv("SYMWIN_EMU_MACHINE", number, 1);
    machine_of_slots(2, (int)getpid() % 4194303 + 1);
    conf_block_make(&block, 0, unit, (unsigned)FD);
    pair_make(&here, &there);
    mine = complete(0);
    TAP_EQ("an object of two processes has one slot", bind_to(mine, &block), OK);
    third = complete((unsigned)FD);
    TAP_EQ("a third object has none here", bind_to(third, &block), OOM);
    TAP_EQ("import of it", remote_start(&other, 1, third, FD), OK);
    TAP_EQ("nor has it there", ask(&other, BIND), OOM);
    remote_kill(&there);
    TAP_EQ("a slot stays while one of its object's processes lives", ask(&other, BIND), OOM);
    conf_must(sw_drv.cuMemRelease(mine), "cuMemRelease");
    TAP_EQ("it finds the one that is free", ask(&other, BIND), OK);
    TAP_EQ("and has it here too", bind_to(third, &block), OK);
    mine = complete((unsigned)FD);
    TAP_EQ("again there is none", bind_to(mine, &block), OOM);
    remote_kill(&other);
    TAP_EQ("nor when the process that took it is killed", bind_to(mine, &block), OOM);
    conf_must(sw_drv.cuMemRelease(third), "cuMemRelease");
    TAP_EQ("import of another", remote_start(&other, 1, mine, FD), OK);
    TAP_EQ("another process takes the slot", ask(&other, BIND), OK);
    third = complete((unsigned)FD);
    TAP_EQ("so it is gone", bind_to(third, &block), OOM);
    remote_kill(&other);
    TAP_EQ("until its only holder is killed", bind_to(third, &block), OK);
    TAP_EQ("the object that had it then does not share it", bind_to(mine, &block), OOM);
    TAP_EQ("import of one that has its slot already", remote_start(&other, 1, third, FD), OK);
    TAP_EQ("it has the same one there", ask(&other, BIND), OK);
    remote_kill(&other);
    conf_must(sw_drv.cuMemRelease(mine), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(third), "cuMemRelease");
    conf_must(member_unbind(&here), "cuMulticastUnbind");
    conf_must(member_release(&here), "cuMemRelease");
    conf_block_drop(&here.block);
    conf_block_drop(&block);
    unsetenv("SYMWIN_EMU_MULTICAST_SLOTS");
    unsetenv("SYMWIN_EMU_MACHINE");
    machine_of_slots(0, 0);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return member_child((int)strtol(argv[2], NULL, 10));
    conf_emulate("8");
    unit = conf_team_start();
    conf_group("large objects", large_objects);
    conf_group("unbound parts", unbound);
    conf_group("a large object in several processes", shared);
    conf_group("granularities", granularities);
    conf_group("access", accesses);
    conf_group("copies", copies);
    conf_group("slots", slots);
    conf_group("slots of several processes", shared_slots);
    return conf_done(NULL);
}
