/* Rules 1 to 25: general rules, address ranges, allocations and their references. Cases that need
 * their own process (before cuInit, double release) are in test_emu_memory.c. */
#include <string.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemAllocationProp device_prop(int id)
{
    return conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, id, CU_MEM_HANDLE_TYPE_NONE);
}

/* Rules 2 and 3. */
static void flags_and_null(void)
{
    const CUmemAllocationProp prop = device_prop(conf.device);
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(g);
    CUmemGenericAllocationHandle handle = conf_create(conf.device, g, FD), other = 0;
    int fd = -1;
    CUresult result;

    conf_accepted(2, "reserve with flags 0", conf_try_reserve(g, 0, 0, 0));
    conf_refused(2, "reserve with a flag", conf_try_reserve(g, 0, 0, 1), WANT(IV));
    conf_accepted(2, "create with flags 0", conf_try_create(g, &prop, 0));
    conf_refused(2, "create with a flag", conf_try_create(g, &prop, 1), WANT(IV));
    conf_accepted(2, "map with flags 0", conf_try_map(va, g, 0, handle, 0));
    conf_refused(2, "map with a flag", conf_try_map(va, g, 0, handle, 1), WANT(IV));
    result = sw_drv.cuMemExportToShareableHandle(&fd, handle, FD, 0);
    conf_accepted(2, "export with flags 0", result);
    if (result == CUDA_SUCCESS)
        close(fd);
    result = sw_drv.cuMemExportToShareableHandle(&fd, handle, FD, 1);
    conf_refused(2, "export with a flag", result, WANT(IV));
    if (result == CUDA_SUCCESS)
        close(fd);

    conf_accepted(3, "create with out-pointer and properties", conf_try_create(g, &prop, 0));
    conf_refused(3, "create without out-pointer", sw_drv.cuMemCreate(NULL, g, &prop, 0), WANT(IV));
    conf_refused(3, "create without properties", sw_drv.cuMemCreate(&other, g, NULL, 0), WANT(IV));
    conf_value(3, REFUSED, "the out-pointer of a refused create is untouched", (long long)other, 0);
    conf_refused(3, "reserve without out-pointer", sw_drv.cuMemAddressReserve(NULL, g, 0, 0, 0),
                 WANT(IV));
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    conf_must(sw_drv.cuMemAddressFree(va, g), "cuMemAddressFree");
}

/* Rules 4 to 8. */
static void reserve(void)
{
    const size_t g = conf.granule, page = conf.page;
    const CUdeviceptr taken = conf_reserve(4 * g);
    CUdeviceptr va = 0;
    CUresult result;

    conf_accepted(4, "reserve of one granule", conf_try_reserve(g, 0, 0, 0));
    conf_refused(4, "reserve of one host page", conf_try_reserve(page, 0, 0, 0), WANT(IV));
    conf_refused(4, "reserve of no bytes", conf_try_reserve(0, 0, 0, 0), WANT(IV));
    conf_refused(4, "reserve of half a host page", conf_try_reserve(page / 2, 0, 0, 0), WANT(IV));
    conf_refused(4, "reserve of a granule and a byte", conf_try_reserve(g + 1, 0, 0, 0), WANT(IV));
    conf_accepted(5, "reserve near an address that is a granule's",
                  conf_try_reserve(g, 0, taken + g, 0));
    conf_refused(5, "reserve near an address inside a granule",
                 conf_try_reserve(g, 0, taken + page, 0), WANT(IV));

    conf_accepted(6, "reserve with alignment 0", conf_try_reserve(g, 0, 0, 0));
    result = sw_drv.cuMemAddressReserve(&va, g, 16 * g, 0, 0);
    conf_accepted(6, "reserve with 16 granules' alignment", result);
    if (result == CUDA_SUCCESS) {
        conf_value(6, ACCEPTED, "the address is so aligned", (long long)(va % (16 * g)), 0);
        sw_drv.cuMemAddressFree(va, g);
    }
    conf_refused(6, "reserve with 3 pages' alignment", conf_try_reserve(g, 3 * page, 0, 0),
                 WANT(IV));
    conf_refused(6, "reserve with 3 granules' alignment", conf_try_reserve(g, 3 * g, 0, 0),
                 WANT(IV));

    result = sw_drv.cuMemAddressReserve(&va, g, 0, taken, 0);
    conf_accepted(7, "reserve where a reservation is", result);
    if (result == CUDA_SUCCESS) {
        conf_value(7, ACCEPTED, "it is elsewhere", va >= taken && va < taken + 4 * g, 0);
        sw_drv.cuMemAddressFree(va, g);
    }
    conf_none(7, REFUSED, "an address is a hint");

    conf_accepted(8, "reserve of 1024 granules", conf_try_reserve(1024 * g, 0, 0, 0));
    conf_refused(8, "reserve of more addresses than there are",
                 conf_try_reserve((size_t)1 << 62, 0, 0, 0), WANT(OOM));
    conf_must(sw_drv.cuMemAddressFree(taken, 4 * g), "cuMemAddressFree");
}

/* Rules 9 to 11. */
static void address_free(void)
{
    const size_t g = conf.granule;
    CUmemGenericAllocationHandle handle = conf_create(conf.device, g, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr va = conf_reserve(4 * g);

    conf_refused(9, "free of no address", sw_drv.cuMemAddressFree(0, 4 * g), WANT(IV));
    conf_refused(9, "free of no bytes", sw_drv.cuMemAddressFree(va, 0), WANT(IV));
    conf_refused(10, "free of the first half", sw_drv.cuMemAddressFree(va, 2 * g), WANT(IV));
    conf_refused(10, "free of the second half", sw_drv.cuMemAddressFree(va + 2 * g, 2 * g),
                 WANT(IV));
    conf_refused(10, "free of the reservation's length from its middle on",
                 sw_drv.cuMemAddressFree(va + 2 * g, 4 * g), WANT(IV));
    conf_refused(10, "free of more than the reservation", sw_drv.cuMemAddressFree(va, 8 * g),
                 WANT(IV));
    conf_must(sw_drv.cuMemMap(va + g, g, 0, handle, 0), "cuMemMap");
    conf_refused(11, "free of a reservation with a mapping", sw_drv.cuMemAddressFree(va, 4 * g),
                 WANT(IV));
    (void)sw_drv.cuMemUnmap(va + g, g); /* fails if the reservation is freed */
    conf_accepted(11, "free once nothing is mapped", sw_drv.cuMemAddressFree(va, 4 * g));
    conf_refused(11, "free twice", sw_drv.cuMemAddressFree(va, 4 * g), WANT(IV));
    va = conf_reserve(g);
    conf_accepted(9, "free of address and size", sw_drv.cuMemAddressFree(va, g));
    va = conf_reserve(3 * g);
    conf_accepted(10, "free of exactly what was reserved", sw_drv.cuMemAddressFree(va, 3 * g));
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
}

/* Rules 12 to 14, 19. */
static void create_arguments(void)
{
    const size_t g = conf.granule;
    CUmemAllocationProp prop = device_prop(conf.device);
    char metadata[64] = "";

    conf_accepted(12, "create of one granule", conf_try_create(g, &prop, 0));
    conf_accepted(12, "create of three granules", conf_try_create(3 * g, &prop, 0));
    conf_refused(12, "create of no bytes", conf_try_create(0, &prop, 0), WANT(IV));
    conf_refused(12, "create of half a granule", conf_try_create(g / 2, &prop, 0), WANT(IV));
    conf_refused(12, "create of a granule and a page", conf_try_create(g + conf.page, &prop, 0),
                 WANT(IV));
    conf_accepted(13, "create of pinned memory on a device", conf_try_create(g, &prop, 0));
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    conf_refused(13, "create of type 0", conf_try_create(g, &prop, 0), WANT(IV));
    prop.type = (CUmemAllocationType)77;
    conf_refused(13, "create of an unknown type", conf_try_create(g, &prop, 0), WANT(IV));
    prop = device_prop(conf.device);
    prop.location.type = CU_MEM_LOCATION_TYPE_INVALID;
    conf_refused(13, "create at location type 0", conf_try_create(g, &prop, 0), WANT(IV));
    prop.location.type = (CUmemLocationType)77;
    conf_refused(13, "create at an unknown location type", conf_try_create(g, &prop, 0), WANT(IV));

    prop = device_prop(conf.devices - 1);
    conf_accepted(14, "create on the last device", conf_try_create(g, &prop, 0));
    prop = device_prop(-1);
    conf_refused(14, "create on device -1", conf_try_create(g, &prop, 0), WANT(ID));
    prop = device_prop(conf.devices);
    conf_refused(14, "create on a device past the last", conf_try_create(g, &prop, 0), WANT(ID));

    prop = device_prop(conf.device);
    conf_accepted(19, "create without Windows metadata", conf_try_create(g, &prop, 0));
    prop.win32HandleMetaData = metadata;
    conf_refused(19, "create with Windows metadata", conf_try_create(g, &prop, 0), WANT(IV));
}

/* Rules 15 to 17. */
static void create_on_host(void)
{
    CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_HOST, 12345, 0);
    const size_t g = conf.granule;
    int numa = 0;

    conf_accepted(15, "create on the host whatever the id", conf_try_create(g, &prop, 0));
    prop.requestedHandleTypes = FD;
    conf_refused(15, "create on the host to be exported", conf_try_create(g, &prop, 0), WANT(IV));

    prop = conf_prop(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, 0);
    conf_refused(16, "create on the current NUMA node", conf_try_create(g, &prop, 0), WANT(IV));
    conf_none(16, ACCEPTED, "that location type is for other calls");

    conf_must(
        sw_drv.cuDeviceGetAttribute(
            &numa, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, conf.device),
        "cuDeviceGetAttribute");
    prop = conf_prop(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 0);
    conf_check(17, ACCEPTED, "create on NUMA node 0", conf_try_create(g, &prop, 0),
               numa ? WANT(OK) : WANT(OK, NS));
    prop.location.id = 1 << 20;
    conf_refused(17, "create on a NUMA node that is not there", conf_try_create(g, &prop, 0),
                 WANT(IV, ID, NS));
}

/* Rule 18. By default the emulated machine is a host without an IMEX channel. */
static void create_for_fabric(void)
{
    const CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device,
                                               CU_MEM_HANDLE_TYPE_FABRIC);
    const size_t g = conf_granularity(&prop);
    int attribute = 0;

    if (!conf.emulated) {
        conf_check(18, ACCEPTED, "create for a fabric handle", conf_try_create(g, &prop, 0),
                   WANT(OK, NP, NS));
        conf_none(18, REFUSED, "a host has channels or has not");
        return;
    }
    conf_machine(1, 1);
    conf_must(sw_drv.cuDeviceGetAttribute(
                  &attribute, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, conf.device),
              "cuDeviceGetAttribute");
    conf_value(18, REFUSED, "the attribute says yes all the same", attribute, 1);
    conf_refused(18, "create for a fabric handle without a channel", conf_try_create(g, &prop, 0),
                 WANT(NP));
    conf_machine(0, 1);
    conf_refused(18, "create for a fabric handle without a fabric", conf_try_create(g, &prop, 0),
                 WANT(NS));
    conf_machine(2, 1);
    conf_accepted(18, "create for a fabric handle", conf_try_create(g, &prop, 0));
    conf_machine(1, 1);
}

/* Rules 20 and 21. */
static void create_anywhere(void)
{
    const CUmemAllocationProp prop = device_prop(conf.device);
    const size_t g = conf.granule;
    size_t total = 0;
    CUcontext ctx = NULL;
    CUresult result;

    conf_must(sw_drv.cuCtxGetCurrent(&ctx), "cuCtxGetCurrent");
    conf_must(sw_drv.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    result = conf_try_create(g, &prop, 0);
    conf_must(sw_drv.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
    conf_accepted(20, "create without a current context", result);
    conf_none(20, REFUSED, "create needs no context and maps nothing");

    conf_must(sw_drv.cuDeviceTotalMem(&total, conf.device), "cuDeviceTotalMem");
    conf_accepted(21, "create of a 64th of the memory",
                  conf_try_create(total / 64 / g * g, &prop, 0));
    conf_refused(21, "create of twice the memory", conf_try_create(2 * (total / g * g), &prop, 0),
                 WANT(OOM));
}

/* Rule 22: after each way to get a reference, one more release. */
static void references(void)
{
    const size_t g = conf.granule;
    struct conf_block block;
    CUmemGenericAllocationHandle retained = 0, imported = 0;
    CUmemAllocationProp prop;
    struct sw_emu_live before, after;
    int fd;

    conf_block_make(&block, conf.device, g, FD);
    if (conf.emulated)
        sw_emu_live_count(&before);
    conf_must(sw_drv.cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)block.va),
              "cuMemRetainAllocationHandle");
    fd = conf_export_fd(block.handle);
    conf_must(conf_import_fd(&imported, fd), "cuMemImportFromShareableHandle");
    close(fd);
    if (conf.emulated) {
        sw_emu_live_count(&after);
        conf_value(22, ACCEPTED, "retain and import are a reference each",
                   (long long)(after.handle_refs - before.handle_refs), 2);
        conf_value(22, ACCEPTED, "and only import's is one of another object",
                   (long long)(after.allocations - before.allocations), 1);
    }
    conf_accepted(22, "release of what retain gave", sw_drv.cuMemRelease(retained));
    conf_accepted(22, "release of what import gave", sw_drv.cuMemRelease(imported));
    conf_accepted(22, "create's reference is still there",
                  sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, block.handle));
    conf_none(22, REFUSED, "a release too many is rule 24");
    conf_block_drop(&block);
}

static size_t free_bytes(void)
{
    size_t available = 0, total = 0;

    conf_must(sw_drv.cuMemGetInfo(&available, &total), "cuMemGetInfo");
    return available;
}

/* Rules 23 and 24. On a real device other users allocate and free at the same time, so the cases
 * compare halves of a large allocation. */
static void release(void)
{
    const size_t bytes = 32 * conf.granule;
    const size_t before = free_bytes();
    struct conf_block block;

    conf_block_make(&block, conf.device, bytes, CU_MEM_HANDLE_TYPE_NONE);
    conf_must(conf_poke(block.va, 0x5eed), "cuMemcpyHtoD");
    conf_accepted(23, "release while mapped", sw_drv.cuMemRelease(block.handle));
    conf_value(23, ACCEPTED, "the mapping keeps the contents", conf_word(block.va), 0x5eed);
    conf_value(23, ACCEPTED, "the mapping keeps the memory", free_bytes() + bytes / 2 < before, 1);
    conf_unmap(block.va, block.bytes);
    conf_value(23, REFUSED, "the memory goes with the last of both",
               free_bytes() + bytes / 2 < before, 0);
    conf_refused(
        23, "nothing is at the address",
        sw_drv.cuPointerGetAttribute(&block.bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block.va),
        WANT(IV));

    conf_accepted(24, "release of a handle",
                  sw_drv.cuMemRelease(conf_create(conf.device, conf.granule, 0)));
    conf_refused(24, "release of handle 0", sw_drv.cuMemRelease(0), WANT(IV));
}

/* Rule 25. */
static void open_descriptor(void)
{
    const size_t bytes = 32 * conf.granule;
    const size_t before = free_bytes();
    struct conf_block block;
    int fd;

    conf_block_make(&block, conf.device, bytes, FD);
    conf_must(conf_poke(block.va + bytes - 4, 0xf00d), "cuMemcpyHtoD");
    fd = conf_export_fd(block.handle);
    conf_block_drop(&block);
    conf_value(25, ACCEPTED, "the descriptor keeps the memory", free_bytes() + bytes / 2 < before,
               1);
    conf_accepted(25, "import after everything else is gone", conf_import_fd(&block.handle, fd));
    close(fd);
    block.va = conf_map(block.handle, bytes);
    conf_value(25, ACCEPTED, "the descriptor kept the contents", conf_word(block.va + bytes - 4),
               0xf00d);
    conf_block_drop(&block);
    conf_value(25, REFUSED, "a closed descriptor keeps nothing", free_bytes() + bytes / 2 < before,
               0);
    block.handle = conf_create(conf.device, bytes, FD);
    fd = conf_export_fd(block.handle);
    conf_must(sw_drv.cuMemRelease(block.handle), "cuMemRelease");
    close(fd);
    conf_value(25, REFUSED, "nor one that was closed last of all",
               free_bytes() + bytes / 2 < before, 0);
}

void conf_rules_create(void)
{
    conf_group("flags and null pointers", flags_and_null);
    conf_group("reserve", reserve);
    conf_group("free of addresses", address_free);
    conf_group("arguments of create", create_arguments);
    conf_group("create on the host", create_on_host);
    conf_group("create for fabric handles", create_for_fabric);
    conf_group("create anywhere", create_anywhere);
    conf_group("references", references);
    conf_group("release", release);
    conf_group("open descriptor", open_descriptor);
}
