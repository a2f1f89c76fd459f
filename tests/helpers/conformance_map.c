/* Rules 26 to 50: mappings and access rights. Those on multicast (29, 35, 36, 47) are in
 * test_emu_multicast.c. */
#include "conformance.h"

#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define READ CU_MEM_ACCESS_FLAGS_PROT_READ
#define NONE CU_MEM_ACCESS_FLAGS_PROT_NONE

/* Rules 26, 27. */
static void where_to_map(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(4 * g), gone = conf_reserve(2 * g);
    const CUmemGenericAllocationHandle two = conf_create(conf.device, 2 * g, 0);
    const CUmemGenericAllocationHandle one = conf_create(conf.device, g, 0);

    conf_must(sw_drv.cuMemAddressFree(gone, 2 * g), "cuMemAddressFree");
    conf_accepted(26, "map inside a reservation", conf_try_map(va + g, 2 * g, 0, two, 0));
    conf_refused(26, "map where nothing is reserved", conf_try_map(gone, 2 * g, 0, two, 0),
                 WANT(IV));
    conf_stricter(26, "map past the reservation's end", conf_try_map(va + 3 * g, 2 * g, 0, two, 0));
    conf_must(sw_drv.cuMemMap(va + g, 2 * g, 0, two, 0), "cuMemMap");
    conf_accepted(27, "map right behind a mapping", conf_try_map(va + 3 * g, g, 0, one, 0));
    conf_accepted(27, "map right before a mapping", conf_try_map(va, g, 0, one, 0));
    conf_refused(27, "map over a mapping", sw_drv.cuMemMap(va + g, 2 * g, 0, two, 0), WANT(IV));
    conf_refused(27, "map over a mapping's start", sw_drv.cuMemMap(va, 2 * g, 0, two, 0), WANT(IV));
    conf_refused(27, "map over a mapping's end", sw_drv.cuMemMap(va + 2 * g, 2 * g, 0, two, 0),
                 WANT(IV));
    conf_must(sw_drv.cuMemUnmap(va + g, 2 * g), "cuMemUnmap");
    conf_must(sw_drv.cuMemRelease(one), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(two), "cuMemRelease");
    conf_must(sw_drv.cuMemAddressFree(va, 4 * g), "cuMemAddressFree");
}

/* Rules 28, 30 to 32. */
static void what_to_map(void)
{
    const size_t g = conf.granule, page = conf.page;
    const CUdeviceptr va = conf_reserve(4 * g);
    const CUmemGenericAllocationHandle two = conf_create(conf.device, 2 * g, 0);

    conf_accepted(28, "map of granules", conf_try_map(va, 2 * g, 0, two, 0));
    conf_refused(28, "map at a page", conf_try_map(va + page, 2 * g, 0, two, 0), WANT(IV));
    conf_refused(28, "map of a page", conf_try_map(va, page, 0, two, 0), WANT(NS));
    conf_refused(28, "map from a page on", conf_try_map(va, g, page, two, 0), WANT(NS));
    conf_accepted(30, "map from offset 0", conf_try_map(va, 2 * g, 0, two, 0));
    conf_refused(30, "map from the second granule on", conf_try_map(va, g, g, two, 0), WANT(NS));
    conf_accepted(31, "map of the whole allocation", conf_try_map(va, 2 * g, 0, two, 0));
    conf_refused(31, "map of the allocation's first half", conf_try_map(va, g, 0, two, 0),
                 WANT(NS));
    conf_refused(31, "map of more than the allocation", conf_try_map(va, 3 * g, 0, two, 0),
                 WANT(NS));
    conf_accepted(32, "map of address, size and handle", conf_try_map(va, 2 * g, 0, two, 0));
    conf_refused(32, "map at address 0", conf_try_map(0, 2 * g, 0, two, 0), WANT(IV));
    conf_refused(32, "map of no bytes", conf_try_map(va, 0, 0, two, 0), WANT(IV));
    conf_refused(32, "map of handle 0", conf_try_map(va, 2 * g, 0, 0, 0), WANT(IV));
    conf_must(sw_drv.cuMemRelease(two), "cuMemRelease");
    conf_must(sw_drv.cuMemAddressFree(va, 4 * g), "cuMemAddressFree");
}

/* Rule 33: queries on a byte give its reservation and its mapping. */
static void expect_place(CUdeviceptr at, CUdeviceptr range, size_t range_bytes, CUdeviceptr mapping,
                         size_t mapping_bytes)
{
    CUdeviceptr start = 0, base = 0;
    size_t bytes = 0, size = 0;

    conf_must(sw_drv.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
              "RANGE_START_ADDR");
    conf_must(sw_drv.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at),
              "RANGE_SIZE");
    conf_must(sw_drv.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at),
              "MAPPING_BASE_ADDR");
    conf_must(sw_drv.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at),
              "MAPPING_SIZE");
    conf_value(33, ACCEPTED, "the range's start is the reservation's", (long long)start,
               (long long)range);
    conf_value(33, ACCEPTED, "so is its size", (long long)bytes, (long long)range_bytes);
    conf_value(33, ACCEPTED, "the mapping's base", (long long)base, (long long)mapping);
    conf_value(33, ACCEPTED, "and its size", (long long)size, (long long)mapping_bytes);
}

/* Rule 33: A at two addresses, B between them, in one reservation. */
static void several_mappings(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(3 * g);
    const CUmemGenericAllocationHandle a = conf_create(conf.device, g, 0);
    const CUmemGenericAllocationHandle b = conf_create(conf.device, g, 0);

    conf_must(sw_drv.cuMemMap(va, g, 0, a, 0), "cuMemMap");
    conf_accepted(33, "map of another handle in the reservation",
                  sw_drv.cuMemMap(va + g, g, 0, b, 0));
    conf_accepted(33, "map of a handle a second time", sw_drv.cuMemMap(va + 2 * g, g, 0, a, 0));
    conf_none(33, REFUSED, "no number of mappings is too many");
    conf_must(conf_access(va, g, conf.device, RW), "cuMemSetAccess");
    conf_must(conf_access(va + g, g, conf.device, RW), "cuMemSetAccess");
    conf_must(conf_access(va + 2 * g, g, conf.device, RW), "cuMemSetAccess");
    expect_place(va + 1, va, 3 * g, va, g);
    expect_place(va + 2 * g - 1, va, 3 * g, va + g, g);
    conf_must(conf_poke(va, 1), "cuMemcpyHtoD");
    conf_must(conf_poke(va + g, 2), "cuMemcpyHtoD");
    conf_value(33, ACCEPTED, "what is written here is read there", conf_word(va + 2 * g), 1);
    conf_must(conf_poke(va + 2 * g, 3), "cuMemcpyHtoD");
    conf_value(33, ACCEPTED, "and the other way round", conf_word(va), 3);
    conf_value(33, ACCEPTED, "the other handle's memory is its own", conf_word(va + g), 2);
    conf_must(sw_drv.cuMemUnmap(va, g), "cuMemUnmap");
    conf_value(33, ACCEPTED, "one mapping outlives the other", conf_word(va + 2 * g), 3);
    conf_must(sw_drv.cuMemUnmap(va + g, g), "cuMemUnmap");
    conf_must(sw_drv.cuMemUnmap(va + 2 * g, g), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(va, 3 * g), "cuMemAddressFree");
    conf_must(sw_drv.cuMemRelease(a), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(b), "cuMemRelease");
}

/* Rules 34, 39, 50: a mapping starts without rights, the first one and every later one. */
static void fresh_mapping(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(g);
    const CUmemGenericAllocationHandle handle = conf_create(conf.device, g, 0);

    conf_must(sw_drv.cuMemMap(va, g, 0, handle, 0), "cuMemMap");
    conf_refused(34, "copy to a mapping without rights", conf_poke(va, 1), WANT(IV));
    conf_value(50, ACCEPTED, "a fresh mapping's rights are none", conf_rights(va, conf.device),
               NONE);
    conf_must(conf_access(va, g, conf.device, RW), "cuMemSetAccess");
    conf_accepted(34, "copy to a mapping with rights", conf_poke(va, 1));
    conf_value(50, REFUSED, "with rights set they are no longer none",
               conf_rights(va, conf.device) == NONE, 0);
    conf_must(sw_drv.cuMemUnmap(va, g), "cuMemUnmap");
    conf_accepted(39, "map again after unmap", sw_drv.cuMemMap(va, g, 0, handle, 0));
    conf_value(39, ACCEPTED, "the new mapping's rights are none", conf_rights(va, conf.device),
               NONE);
    conf_refused(39, "copy to the new mapping", conf_poke(va, 2), WANT(IV));
    conf_must(conf_access(va, g, conf.device, RW), "cuMemSetAccess");
    conf_value(39, ACCEPTED, "the memory is as it was", conf_word(va), 1);
    conf_unmap(va, g);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
}

/* Rules 37 and 38. */
static void unmap(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(4 * g);
    const CUmemGenericAllocationHandle two = conf_create(conf.device, 2 * g, 0);

    conf_must(sw_drv.cuMemMap(va, 2 * g, 0, two, 0), "cuMemMap");
    conf_refused(37, "unmap of a mapping's first half", sw_drv.cuMemUnmap(va, g), WANT(IV));
    conf_refused(37, "unmap of a mapping's second half", sw_drv.cuMemUnmap(va + g, g), WANT(IV));
    conf_refused(37, "unmap of a mapping's length from its middle on",
                 sw_drv.cuMemUnmap(va + g, 2 * g), WANT(IV));
    conf_refused(38, "unmap of address 0", sw_drv.cuMemUnmap(0, 2 * g), WANT(IV));
    conf_refused(38, "unmap of no bytes", sw_drv.cuMemUnmap(va, 0), WANT(IV));
    conf_stricter(38, "unmap where nothing is mapped", sw_drv.cuMemUnmap(va + 2 * g, 2 * g));
    conf_accepted(37, "unmap of a mapping", sw_drv.cuMemUnmap(va, 2 * g));
    conf_stricter(38, "unmap twice", sw_drv.cuMemUnmap(va, 2 * g));
    conf_must(sw_drv.cuMemMap(va, 2 * g, 0, two, 0), "cuMemMap");
    conf_stricter(37, "unmap of more than a mapping", sw_drv.cuMemUnmap(va, 3 * g));
    (void)sw_drv.cuMemUnmap(va, 2 * g); /* it may have been unmapped */
    conf_must(sw_drv.cuMemMap(va + 2 * g, 2 * g, 0, two, 0), "cuMemMap");
    conf_accepted(38, "unmap of address and size", sw_drv.cuMemUnmap(va + 2 * g, 2 * g));
    conf_must(sw_drv.cuMemRelease(two), "cuMemRelease");
    conf_must(sw_drv.cuMemAddressFree(va, 4 * g), "cuMemAddressFree");
}

/* Rule 40. */
static void unmap_frees(void)
{
    const size_t bytes = 32 * conf.granule;
    size_t mapped = 0, after = 0, total = 0;
    struct conf_block block;

    conf_block_make(&block, conf.device, bytes, CU_MEM_HANDLE_TYPE_NONE);
    conf_must(sw_drv.cuMemRelease(block.handle), "cuMemRelease");
    conf_must(sw_drv.cuMemGetInfo(&mapped, &total), "cuMemGetInfo");
    conf_must(sw_drv.cuMemsetD8Async(block.va, 1, bytes, NULL), "cuMemsetD8Async");
    /* The header says that unmapping synchronises. An H200's driver did not wait: the memset lost
     * its memory and faulted the context. So wait where it is real. */
    if (!conf.emulated)
        conf_must(sw_drv.cuCtxSynchronize(), "cuCtxSynchronize");
    conf_accepted(40, "unmap of a released handle's memory", sw_drv.cuMemUnmap(block.va, bytes));
    conf_must(sw_drv.cuMemGetInfo(&after, &total), "cuMemGetInfo");
    conf_value(40, ACCEPTED, "it frees the memory", after >= mapped + bytes / 2, 1);
    conf_none(40, REFUSED, "it takes any range that is mapped");
    conf_must(sw_drv.cuMemAddressFree(block.va, bytes), "cuMemAddressFree");
}

/* Rule 41: two mappings side by side, a reserved granule on either side. */
static void access_ranges(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(6 * g);
    const CUmemGenericAllocationHandle two = conf_create(conf.device, 2 * g, 0);

    conf_must(sw_drv.cuMemMap(va + g, 2 * g, 0, two, 0), "cuMemMap");
    conf_must(sw_drv.cuMemMap(va + 3 * g, 2 * g, 0, two, 0), "cuMemMap");
    conf_refused(41, "rights to what is not mapped", conf_access(va, g, conf.device, RW), WANT(IV));
    conf_refused(41, "rights to half a mapping", conf_access(va + g, g, conf.device, RW), WANT(IV));
    conf_refused(41, "rights to a mapping's length from its middle on",
                 conf_access(va + 2 * g, 2 * g, conf.device, RW), WANT(IV));
    conf_refused(41, "rights to a mapping and what is before it",
                 conf_access(va, 3 * g, conf.device, RW), WANT(IV));
    conf_refused(41, "rights to a mapping and what is behind it",
                 conf_access(va + 3 * g, 3 * g, conf.device, RW), WANT(IV));
    conf_value(41, REFUSED, "a refused call gave no rights",
               conf_rights(va + g, conf.device) | conf_rights(va + 3 * g, conf.device), NONE);
    conf_accepted(41, "rights to a mapping", conf_access(va + g, 2 * g, conf.device, RW));
    conf_value(41, ACCEPTED, "and not to the next", conf_rights(va + 3 * g, conf.device), NONE);
    conf_accepted(41, "rights to two mappings side by side",
                  conf_access(va + g, 4 * g, conf.device, READ));
    conf_value(41, ACCEPTED, "the first has them", conf_rights(va + 2 * g, conf.device), READ);
    conf_value(41, ACCEPTED, "the second has them", conf_rights(va + 4 * g, conf.device), READ);
    conf_must(sw_drv.cuMemUnmap(va + g, 2 * g), "cuMemUnmap");
    conf_must(sw_drv.cuMemUnmap(va + 3 * g, 2 * g), "cuMemUnmap");
    conf_must(sw_drv.cuMemRelease(two), "cuMemRelease");
    conf_must(sw_drv.cuMemAddressFree(va, 6 * g), "cuMemAddressFree");
}

static CUresult set_access(const struct conf_block *block, CUmemLocationType type, int id,
                           unsigned flags)
{
    const CUmemAccessDesc desc = {{type, id}, (CUmemAccess_flags)flags};

    return sw_drv.cuMemSetAccess(block->va, block->bytes, &desc, 1);
}

/* Rules 42, 43, 45. */
static void access_arguments(void)
{
    const CUmemAccessDesc rw = {{CU_MEM_LOCATION_TYPE_DEVICE, conf.device}, RW};
    struct conf_block b;

    conf_block_make(&b, conf.device, conf.granule, 0);
    conf_accepted(42, "one descriptor", sw_drv.cuMemSetAccess(b.va, b.bytes, &rw, 1));
    conf_refused(42, "no descriptors", sw_drv.cuMemSetAccess(b.va, b.bytes, &rw, 0), WANT(IV));
    conf_refused(42, "descriptors at NULL", sw_drv.cuMemSetAccess(b.va, b.bytes, NULL, 1),
                 WANT(IV));
    conf_refused(42, "unknown rights",
                 set_access(&b, CU_MEM_LOCATION_TYPE_DEVICE, conf.device, 0x70), WANT(IV));
    conf_refused(42, "the right to write only",
                 set_access(&b, CU_MEM_LOCATION_TYPE_DEVICE, conf.device, 2), WANT(IV));
    conf_refused(42, "location type 0", set_access(&b, CU_MEM_LOCATION_TYPE_INVALID, 0, RW),
                 WANT(IV));
    conf_refused(42, "an unknown location type", set_access(&b, (CUmemLocationType)77, 0, RW),
                 WANT(IV));
    conf_value(42, REFUSED, "the rights are as before", conf_rights(b.va, conf.device), RW);
    conf_accepted(43, "rights for the last device",
                  set_access(&b, CU_MEM_LOCATION_TYPE_DEVICE, conf.devices - 1, RW));
    conf_refused(43, "rights for device -1", set_access(&b, CU_MEM_LOCATION_TYPE_DEVICE, -1, RW),
                 WANT(IV, ID));
    conf_refused(43, "rights for a device past the last",
                 set_access(&b, CU_MEM_LOCATION_TYPE_DEVICE, conf.devices, RW), WANT(IV, ID));
    conf_refused(45, "rights for the host to a device's memory",
                 set_access(&b, CU_MEM_LOCATION_TYPE_HOST, 0, RW), WANT(NS));
    conf_refused(45, "rights for a NUMA node to a device's memory",
                 set_access(&b, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, RW), WANT(IV, NS));
    conf_block_drop(&b);
}

/* Rule 45, refused. */
static void access_to_host(void)
{
    const CUmemAllocationProp host = conf_prop(CU_MEM_LOCATION_TYPE_HOST, 0, 0);
    struct conf_block b = {0, 0, conf.granule};
    CUresult result;

    if (sw_drv.cuMemCreate(&b.handle, b.bytes, &host, 0) != CUDA_SUCCESS) {
        conf_skip(45, ACCEPTED, "no memory can be created on the host");
        return;
    }
    b.va = conf_reserve(b.bytes);
    conf_must(sw_drv.cuMemMap(b.va, b.bytes, 0, b.handle, 0), "cuMemMap");
    result = set_access(&b, CU_MEM_LOCATION_TYPE_HOST, 0, RW);
    conf_accepted(45, "rights for the host to the host's memory", result);
    if (result == CUDA_SUCCESS)
        *(uint32_t *)(uintptr_t)b.va = 7;
    conf_accepted(45, "rights for a device to the host's memory",
                  set_access(&b, CU_MEM_LOCATION_TYPE_DEVICE, conf.device, RW));
    if (result == CUDA_SUCCESS)
        conf_value(45, ACCEPTED, "the device reads what the host wrote", conf_word(b.va), 7);
    conf_block_drop(&b);
}

/* Rules 44 and 46. */
static void access_of_peers(void)
{
    struct conf_block b;

    conf_none(46, REFUSED, "every device here is a peer of every other, or there is one only");
    if (conf.peer < 0) {
        conf_skip(44, ACCEPTED, "one device");
        conf_none(44, REFUSED, "rights are a location's own");
        conf_skip(46, ACCEPTED, "no two devices that are peers");
        return;
    }
    conf_block_make(&b, conf.device, conf.granule, 0);
    conf_value(44, REFUSED, "rights of one device are not another's", conf_rights(b.va, conf.peer),
               NONE);
    conf_accepted(46, "rights for a peer", conf_access(b.va, b.bytes, conf.peer, READ));
    conf_value(44, ACCEPTED, "the owner keeps its rights", conf_rights(b.va, conf.device), RW);
    conf_value(44, ACCEPTED, "the peer has its own", conf_rights(b.va, conf.peer), READ);
    conf_must(conf_access(b.va, b.bytes, conf.device, NONE), "cuMemSetAccess");
    conf_value(44, ACCEPTED, "the peer keeps its rights", conf_rights(b.va, conf.peer), READ);
    conf_block_drop(&b);
}

/* Rules 48 and 49. */
static void rights(void)
{
    const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, conf.device};
    const CUdeviceptr empty = conf_reserve(conf.granule);
    struct conf_block b;
    unsigned long long flags = 0;

    conf_block_make(&b, conf.device, conf.granule, 0);
    conf_accepted(48, "copy to a mapping with all rights", conf_poke(b.va, 11));
    conf_must(conf_access(b.va, b.bytes, conf.device, READ), "cuMemSetAccess");
    conf_refused(48, "copy to a mapping to be read", conf_poke(b.va, 12), WANT(IV));
    conf_value(48, ACCEPTED, "copy from it", conf_word(b.va), 11);
    conf_must(conf_access(b.va, b.bytes, conf.device, NONE), "cuMemSetAccess");
    conf_refused(48, "copy to a mapping without rights", conf_poke(b.va, 13), WANT(IV));
    conf_must(conf_access(b.va, b.bytes, conf.device, RW), "cuMemSetAccess");
    conf_value(48, REFUSED, "refused copies wrote nothing", conf_word(b.va), 11);

    conf_accepted(49, "rights at an address inside a mapping",
                  sw_drv.cuMemGetAccess(&flags, &here, b.va + b.bytes / 2 + 1));
    conf_value(49, ACCEPTED, "they are the mapping's", (long long)flags, RW);
    conf_refused(49, "rights without out-pointer", sw_drv.cuMemGetAccess(NULL, &here, b.va),
                 WANT(IV));
    conf_refused(49, "rights without location", sw_drv.cuMemGetAccess(&flags, NULL, b.va),
                 WANT(IV));
    conf_refused(49, "rights at address 0", sw_drv.cuMemGetAccess(&flags, &here, 0), WANT(IV));
    conf_refused(49, "rights where nothing is mapped", sw_drv.cuMemGetAccess(&flags, &here, empty),
                 WANT(IV));
    conf_block_drop(&b);
    conf_must(sw_drv.cuMemAddressFree(empty, conf.granule), "cuMemAddressFree");
}

void conf_rules_map(void)
{
    conf_group("where to map", where_to_map);
    conf_group("what to map", what_to_map);
    conf_group("several mappings", several_mappings);
    conf_group("fresh mapping", fresh_mapping);
    conf_group("unmap", unmap);
    conf_group("unmap frees", unmap_frees);
    conf_group("ranges of rights", access_ranges);
    conf_group("arguments of rights", access_arguments);
    conf_group("rights to the host's memory", access_to_host);
    conf_group("rights of peers", access_of_peers);
    conf_group("what rights do", rights);
}
