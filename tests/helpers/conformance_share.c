/* Rules 51 to 65: export, import, queries. Those on multicast (54, 62) are in
 * test_emu_multicast.c; memory shared between processes is in test_emu_share.c. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define WIN32 CU_MEM_HANDLE_TYPE_WIN32

static CUresult try_export_fd(CUmemGenericAllocationHandle handle)
{
    int fd = -1;
    const CUresult result = sw_drv.cuMemExportToShareableHandle(&fd, handle, FD, 0);

    if (result == CUDA_SUCCESS)
        close(fd);
    return result;
}

static CUresult try_import_fd(int fd)
{
    return conf_try_import((void *)(intptr_t)fd, FD);
}

/* Rules 51 to 53. */
static void export_fd(void)
{
    const size_t g = conf.granule;
    const CUmemGenericAllocationHandle shared = conf_create(conf.device, g, FD);
    const CUmemGenericAllocationHandle unshared = conf_create(conf.device, g, 0);
    CUmemFabricHandle fabric;
    int first, second;

    conf_accepted(51, "export of the type that create was asked for", try_export_fd(shared));
    conf_refused(51, "export where create was asked for none", try_export_fd(unshared), WANT(IV));
    conf_refused(51, "export of another type",
                 sw_drv.cuMemExportToShareableHandle(&fabric, shared, FABRIC, 0), WANT(IV));
    conf_refused(51, "export of a type of another system",
                 sw_drv.cuMemExportToShareableHandle(&fabric, shared, WIN32, 0), WANT(IV, NS));
    conf_accepted(52, "export of a handle to a descriptor", try_export_fd(shared));
    conf_refused(52, "export to NULL", sw_drv.cuMemExportToShareableHandle(NULL, shared, FD, 0),
                 WANT(IV));
    conf_refused(52, "export of handle 0", try_export_fd(0), WANT(IV));

    first = conf_export_fd(shared);
    second = conf_export_fd(shared);
    conf_value(53, ACCEPTED, "each export is a descriptor of its own", first != second, 1);
    conf_value(53, ACCEPTED, "the caller closes the first", close(first), 0);
    conf_accepted(53, "import from the second", try_import_fd(second));
    conf_value(53, ACCEPTED, "the caller closes the second", close(second), 0);
    conf_none(53, REFUSED, "export again and again is legal");
    conf_must(sw_drv.cuMemRelease(shared), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(unshared), "cuMemRelease");
}

/* Rules 55, 57, 60: an allocation and two imports of it. */
static void import_fd(void)
{
    const size_t g = conf.granule;
    CUmemGenericAllocationHandle one = 0, two = 0;
    struct conf_block block;
    CUdeviceptr va;
    int fd, again = -1;

    conf_block_make(&block, conf.device, g, FD);
    conf_must(conf_poke(block.va, 21), "cuMemcpyHtoD");
    fd = conf_export_fd(block.handle);
    conf_accepted(60, "import", conf_import_fd(&one, fd));
    conf_accepted(60, "import of the same descriptor again", conf_import_fd(&two, fd));
    conf_none(60, REFUSED, "handles of imports may be equal or not");
    conf_value(57, ACCEPTED, "import does not consume the descriptor", fcntl(fd, F_GETFD) >= 0, 1);
    conf_value(57, ACCEPTED, "it is the caller's to close", close(fd), 0);
    va = conf_map(one, g);
    conf_value(57, ACCEPTED, "the memory outlives the descriptor", conf_word(va), 21);
    conf_must(conf_poke(va, 22), "cuMemcpyHtoD");
    conf_value(57, ACCEPTED, "it is the memory that was exported", conf_word(block.va), 22);
    conf_none(57, REFUSED, "what a closed descriptor gives is rule 58");

    conf_none(55, ACCEPTED, "what can be exported is rule 51");
    conf_refused(55, "export of an import", sw_drv.cuMemExportToShareableHandle(&again, one, FD, 0),
                 WANT(IV));

    conf_unmap(va, g);
    conf_accepted(60, "release of the first import", sw_drv.cuMemRelease(one));
    conf_accepted(60, "release of the second import", sw_drv.cuMemRelease(two));
    conf_value(60, ACCEPTED, "the original is as it was", conf_word(block.va), 22);
    conf_block_drop(&block);
}

/* Rules 56, 58, 59, for descriptors. */
static void import_refused(void)
{
    const CUmemGenericAllocationHandle handle = conf_create(conf.device, conf.granule, FD);
    CUmemFabricHandle nobody;
    int fd = conf_export_fd(handle), null, pipes[2], memory;

    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    memory = memfd_create("not ours", MFD_CLOEXEC);
    if (null < 0 || memory < 0 || ftruncate(memory, (off_t)(4 * conf.granule)) != 0 ||
        pipe2(pipes, O_CLOEXEC) != 0)
        conf_bail("opening files");
    memset(&nobody, 0, sizeof nobody);

    conf_accepted(56, "import of a descriptor's value", try_import_fd(fd));
    conf_refused(56, "import of a descriptor's address", conf_try_import(&fd, FD), WANT(UNKNOWN));
    conf_accepted(58, "import of an exported descriptor", try_import_fd(fd));
    conf_refused(58, "import without out-pointer",
                 sw_drv.cuMemImportFromShareableHandle(NULL, (void *)(intptr_t)fd, FD), WANT(IV));
    close(fd);
    conf_refused(58, "import of a closed descriptor", try_import_fd(fd), WANT(UNKNOWN));
    conf_refused(58, "import of descriptor -1", try_import_fd(-1), WANT(UNKNOWN));
    conf_refused(58, "import of /dev/null", try_import_fd(null), WANT(UNKNOWN));
    conf_refused(58, "import of a pipe", try_import_fd(pipes[0]), WANT(UNKNOWN));
    conf_refused(58, "import of memory of another make", try_import_fd(memory), WANT(UNKNOWN));
    if (conf.emulated) /* libcuda may crash on what it reads there */
        conf_refused(58, "import of a fabric handle at NULL", conf_try_import(NULL, FABRIC),
                     WANT(IV));
    conf_refused(59, "import of a type of another system", conf_try_import(&nobody, WIN32),
                 WANT(NS, IV));
    close(null);
    close(memory);
    close(pipes[0]);
    close(pipes[1]);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
}

/* Rules 56, 59, 61 on a machine that has fabric handles. */
static void fabric_handles(void)
{
    const size_t g = conf.granule;
    CUmemGenericAllocationHandle imported = 0;
    CUmemFabricHandle handle, forged;
    struct conf_block block;
    CUdeviceptr va;
    int fd;

    conf_block_make(&block, conf.device, g, (unsigned)FABRIC | (unsigned)FD);
    conf_must(conf_poke(block.va, 31), "cuMemcpyHtoD");
    conf_accepted(56, "export to 64 bytes",
                  sw_drv.cuMemExportToShareableHandle(&handle, block.handle, FABRIC, 0));
    conf_accepted(56, "import of the address of 64 bytes",
                  sw_drv.cuMemImportFromShareableHandle(&imported, &handle, FABRIC));
    conf_none(59, ACCEPTED, "what can be imported is rule 56");
    va = conf_map(imported, g);
    conf_value(56, ACCEPTED, "it is the memory that was exported", conf_word(va), 31);
    conf_unmap(va, g);
    conf_must(sw_drv.cuMemRelease(imported), "cuMemRelease");

    conf_accepted(61, "import while the memory lives", conf_try_import(&handle, FABRIC));
    for (size_t i = 0; i < sizeof forged.data; i += 7) {
        forged = handle;
        forged.data[i] ^= 1;
        conf_refused(61, "import of a handle with one bit wrong", conf_try_import(&forged, FABRIC),
                     WANT(IV, NP));
    }
    memset(&forged, 0, sizeof forged);
    conf_refused(61, "import of 64 zero bytes", conf_try_import(&forged, FABRIC), WANT(IV, NP));
    fd = conf_export_fd(block.handle);
    conf_block_drop(&block);
    close(fd);
    conf_refused(61, "import after the memory has gone", conf_try_import(&handle, FABRIC),
                 WANT(IV, NP));
    conf_block_make(&block, conf.device, g, (unsigned)FABRIC | (unsigned)FD);
    conf_refused(61, "import when other memory has come", conf_try_import(&handle, FABRIC),
                 WANT(IV, NP));
    conf_block_drop(&block);
}

static void fabric(void)
{
    const CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device, FABRIC);
    CUmemFabricHandle nobody;
    CUresult possible;

    memset(&nobody, 0, sizeof nobody);
    if (conf.emulated) {
        conf_machine(0, 1);
        conf_refused(59, "import of a fabric handle without a fabric",
                     conf_try_import(&nobody, FABRIC), WANT(NS));
        conf_machine(1, 1);
        conf_refused(59, "import of a fabric handle without a channel",
                     conf_try_import(&nobody, FABRIC), WANT(NP));
        conf_machine(2, 1);
    }
    possible = conf_try_create(conf.granule, &prop, 0);
    if (possible == CUDA_SUCCESS) {
        fabric_handles();
    } else {
        conf_none(59, ACCEPTED, "what can be imported is rule 56");
        conf_skip(61, ACCEPTED, "no fabric handles here");
        conf_refused(61, "import of 64 zero bytes", conf_try_import(&nobody, FABRIC),
                     WANT(IV, NP, NS));
    }
    if (conf.emulated)
        conf_machine(1, 1);
}

/* Rule 63. */
static void retain(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr empty = conf_reserve(g);
    CUmemGenericAllocationHandle handle = 0, untouched = 77;
    struct conf_block block;

    conf_block_make(&block, conf.device, 2 * g, 0);
    conf_accepted(63, "retain at a mapping's start",
                  sw_drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)block.va));
    conf_value(63, ACCEPTED, "it is the handle that create gave", handle == block.handle, 1);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    conf_accepted(
        63, "retain at an address inside",
        sw_drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(block.va + g + 3)));
    conf_value(63, ACCEPTED, "it is the same handle", handle == block.handle, 1);
    conf_must(sw_drv.cuMemRelease(block.handle), "cuMemRelease");
    conf_unmap(block.va, block.bytes);
    block.va = conf_map(handle, 2 * g);
    conf_value(63, ACCEPTED, "its reference keeps the memory", conf_poke(block.va, 1), OK);
    conf_refused(63, "retain where nothing is mapped",
                 sw_drv.cuMemRetainAllocationHandle(&untouched, (void *)(uintptr_t)empty),
                 WANT(IV));
    conf_refused(63, "retain at an address of the host",
                 sw_drv.cuMemRetainAllocationHandle(&untouched, &handle), WANT(IV));
    conf_value(63, REFUSED, "the out-pointer is untouched", (long long)untouched, 77);
    conf_refused(63, "retain without out-pointer",
                 sw_drv.cuMemRetainAllocationHandle(NULL, (void *)(uintptr_t)block.va), WANT(IV));
    block.handle = handle;
    conf_block_drop(&block);
    conf_must(sw_drv.cuMemAddressFree(empty, g), "cuMemAddressFree");
}

/* Rules 64 and 65. */
static void properties(void)
{
    const CUmemGenericAllocationHandle handle = conf_create(conf.device, conf.granule, FD);
    CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_INVALID, -1, 0);
    size_t minimum = 0, recommended = 0;

    conf_accepted(64, "properties of a handle",
                  sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    conf_value(64, ACCEPTED, "the type", prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    conf_value(64, ACCEPTED, "the location's type", prop.location.type,
               CU_MEM_LOCATION_TYPE_DEVICE);
    conf_value(64, ACCEPTED, "the device", prop.location.id, conf.device);
    conf_value(64, ACCEPTED, "the handle types", prop.requestedHandleTypes, FD);
    conf_refused(64, "properties to NULL",
                 sw_drv.cuMemGetAllocationPropertiesFromHandle(NULL, handle), WANT(IV));
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");

    prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device, 0);
    conf_accepted(
        65, "the minimum granularity",
        sw_drv.cuMemGetAllocationGranularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    conf_accepted(65, "the recommended granularity",
                  sw_drv.cuMemGetAllocationGranularity(&recommended, &prop,
                                                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    conf_value(65, ACCEPTED, "the minimum is pages", minimum > 0 && minimum % conf.page == 0, 1);
    conf_value(65, ACCEPTED, "the recommended one is so many minimums",
               minimum > 0 && recommended >= minimum && recommended % minimum == 0, 1);
    conf_refused(
        65, "granularity to NULL",
        sw_drv.cuMemGetAllocationGranularity(NULL, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        WANT(IV));
    conf_refused(
        65, "granularity of NULL",
        sw_drv.cuMemGetAllocationGranularity(&minimum, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        WANT(IV));
    conf_refused(
        65, "an unknown granularity",
        sw_drv.cuMemGetAllocationGranularity(&minimum, &prop, (CUmemAllocationGranularity_flags)7),
        WANT(IV));
    prop.location.id = conf.devices + 1;
    conf_accepted(
        65, "granularity for a device that is not there",
        sw_drv.cuMemGetAllocationGranularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

/* The mapping at `at` begins at `base`, has `size` bytes and has an id. */
static void check_mapping(const char *what, CUdeviceptr at, CUdeviceptr base, size_t size)
{
    unsigned long long id = 0;
    CUdeviceptr got_base = 0;
    size_t got_size = 0;

    conf_accepted(
        85, "base of a mapping",
        sw_drv.cuPointerGetAttribute(&got_base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at));
    conf_accepted(85, "size of a mapping",
                  sw_drv.cuPointerGetAttribute(&got_size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at));
    conf_accepted(85, "buffer id of a mapping",
                  sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    conf_value(85, ACCEPTED, what, got_base == base && got_size == size && id != 0, 1);
}

/* Rule 85: what an address is; the query needs no context. */
static void what_an_address_is(void)
{
    const size_t g = conf.granule;
    const CUdeviceptr va = conf_reserve(3 * g);
    const CUmemGenericAllocationHandle a = conf_create(conf.device, g, FD);
    const CUmemGenericAllocationHandle b = conf_create(conf.device, 2 * g, FD);
    CUdeviceptr base = 0;
    CUcontext context;

    conf_must(sw_drv.cuMemMap(va, g, 0, a, 0), "cuMemMap");
    conf_must(sw_drv.cuMemMap(va + g, 2 * g, 0, b, 0), "cuMemMap");
    conf_must(conf_access(va, 3 * g, conf.device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              "cuMemSetAccess");
    check_mapping("the first of two in a reservation", va + 8, va, g);
    check_mapping("the second, from its middle", va + 2 * g, va + g, 2 * g);
    conf_must(sw_drv.cuCtxPopCurrent(&context), "cuCtxPopCurrent");
    check_mapping("with no context current", va + 2 * g + 1, va + g, 2 * g);
    conf_must(sw_drv.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    conf_must(sw_drv.cuMemUnmap(va, g), "cuMemUnmap");
    conf_refused(85, "base of what is not mapped",
                 sw_drv.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, va),
                 WANT(IV));
    conf_must(sw_drv.cuMemUnmap(va + g, 2 * g), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(va, 3 * g), "cuMemAddressFree");
    conf_must(sw_drv.cuMemRelease(a), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(b), "cuMemRelease");
}

static unsigned long long buffer_id(CUdeviceptr at)
{
    unsigned long long id = 0;

    conf_must(sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), "buffer id");
    return id;
}

/* What cuMemRetainAllocationHandle() gives. The reference is returned at once. */
static CUmemGenericAllocationHandle handle_at(CUdeviceptr at)
{
    CUmemGenericAllocationHandle handle = 0;

    conf_must(sw_drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at), "retain");
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    return handle;
}

/* Rule 86: a buffer id is that of one mapping, a handle that of one allocation or import. */
static void who_is_who(void)
{
    const size_t g = conf.granule;
    CUmemGenericAllocationHandle imported = 0;
    CUdeviceptr twice, theirs;
    struct conf_block block, other;
    unsigned long long first;
    int fd;

    conf_block_make(&block, conf.device, 2 * g, FD);
    conf_block_make(&other, conf.device, 2 * g, FD);
    twice = conf_map(block.handle, 2 * g);
    fd = conf_export_fd(block.handle);
    conf_must(conf_import_fd(&imported, fd), "cuMemImportFromShareableHandle");
    close(fd);
    theirs = conf_map(imported, 2 * g);
    first = buffer_id(block.va);
    conf_value(86, ACCEPTED, "a mapping has one id", buffer_id(block.va + 2 * g - 1) == first, 1);
    conf_value(86, ACCEPTED, "another mapping has another", buffer_id(twice) != first, 1);
    conf_value(86, ACCEPTED, "both have create's handle",
               handle_at(block.va) == block.handle && handle_at(twice + g) == block.handle, 1);
    conf_value(86, ACCEPTED, "an import has a handle of its own",
               imported != block.handle && handle_at(theirs) == imported, 1);
    conf_value(86, ACCEPTED, "and an id",
               buffer_id(theirs) != first && buffer_id(theirs) != buffer_id(twice), 1);
    conf_must(sw_drv.cuMemUnmap(block.va, 2 * g), "cuMemUnmap");
    conf_must(sw_drv.cuMemMap(block.va, 2 * g, 0, other.handle, 0), "cuMemMap");
    conf_value(86, ACCEPTED, "what is mapped there instead has a new id",
               buffer_id(block.va) != first && buffer_id(block.va) != buffer_id(other.va), 1);
    conf_must(sw_drv.cuMemUnmap(block.va, 2 * g), "cuMemUnmap");
    conf_must(sw_drv.cuMemMap(block.va, 2 * g, 0, block.handle, 0), "cuMemMap");
    conf_value(86, ACCEPTED, "and so has the memory when it is mapped there again",
               buffer_id(block.va) != first, 1);
    conf_must(sw_drv.cuMemRelease(block.handle), "cuMemRelease");
    conf_value(86, ACCEPTED, "the handle is the same after create's was released",
               handle_at(twice) == block.handle && handle_at(block.va) == block.handle, 1);
    conf_none(86, REFUSED, "what is not mapped is rule 85");
    conf_unmap(theirs, 2 * g);
    conf_must(sw_drv.cuMemRelease(imported), "cuMemRelease");
    conf_unmap(twice, 2 * g);
    conf_unmap(block.va, 2 * g);
    conf_block_drop(&other);
}

void conf_rules_share(void)
{
    conf_group("export", export_fd);
    conf_group("import", import_fd);
    conf_group("import refused", import_refused);
    conf_group("fabric handles", fabric);
    conf_group("retain", retain);
    conf_group("properties", properties);
    conf_group("what an address is", what_an_address_is);
    conf_group("who is who", who_is_who);
}
