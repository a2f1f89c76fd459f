/* What the emulated driver adds to the real one: injected faults, counts of live objects, the
 * configured machine, and its quota. Also what every driver has but no numbered rule covers: plain
 * memory and pointer attributes. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUresult create_and_release(void)
{
    const CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device, 0);

    return conf_try_create(conf.granule, &prop, 0);
}

/* ---- injected faults ------------------------------------------------------------------------- */

static void fault_once(void)
{
    const size_t objects = sw_emu_live_objects();
    int count = -1;

    sw_emu_fail_nth(2, CUDA_ERROR_UNKNOWN, 0, 0);
    TAP_EQ("before the nth call nothing fails", sw_drv.cuDeviceGetCount(&count), OK);
    TAP_EQ("nor has fired", sw_emu_fault_fired(), 0);
    tap_ok(sw_emu_fault_name() == NULL, "nor has a name");
    TAP_EQ("the nth call fails with the code", create_and_release(), CUDA_ERROR_UNKNOWN);
    TAP_EQ("and does nothing", sw_emu_live_objects(), objects);
    TAP_EQ("the fault has fired", sw_emu_fault_fired(), 1);
    tap_ok(sw_emu_fault_name() != NULL && strcmp(sw_emu_fault_name(), "cuMemCreate") == 0,
           "and says where");
    TAP_EQ("the call after it succeeds", create_and_release(), OK);
    TAP_EQ("calls are counted, frees are not", sw_emu_calls(), 3);
    sw_emu_fail_nth(1, OOM, 0, 0);
    TAP_EQ("a new fault begins anew", sw_emu_calls() + (unsigned)sw_emu_fault_fired(), 0);
    sw_emu_fail_nth(0, OK, 0, 0);
    TAP_EQ("switched off nothing fails", create_and_release(), OK);
    TAP_EQ("nor fires", sw_emu_fault_fired(), 0);
}

static void fault_persistent(void)
{
    struct conf_block block;
    int count = -1;

    conf_block_make(&block, conf.device, conf.granule, 0);
    sw_emu_fail_nth(2, SNR, 1, 0);
    TAP_EQ("persistent: the first call", sw_drv.cuDeviceGetCount(&count), OK);
    TAP_EQ("persistent: the second", create_and_release(), SNR);
    TAP_EQ("persistent: the third", sw_drv.cuDeviceGetCount(&count), SNR);
    TAP_EQ("persistent: unmap is spared", sw_drv.cuMemUnmap(block.va, block.bytes), OK);
    TAP_EQ("persistent: so is the free of addresses",
           sw_drv.cuMemAddressFree(block.va, block.bytes), OK);
    TAP_EQ("persistent: so is release", sw_drv.cuMemRelease(block.handle), OK);
    TAP_EQ("persistent: the name is the first one's",
           sw_emu_fault_name() != NULL && strcmp(sw_emu_fault_name(), "cuMemCreate") == 0, 1);
    sw_emu_fail_nth(0, OK, 0, 0);

    conf_block_make(&block, conf.device, conf.granule, 0);
    sw_emu_fail_nth(1, IS, 0, 1);
    TAP_EQ("teardown included: unmap fails", sw_drv.cuMemUnmap(block.va, block.bytes), IS);
    TAP_EQ("teardown included: once", sw_drv.cuMemUnmap(block.va, block.bytes), OK);
    TAP_EQ("teardown included: it is counted", sw_emu_calls(), 2);
    sw_emu_fail_nth(0, OK, 0, 0);
    conf_must(sw_drv.cuMemAddressFree(block.va, block.bytes), "cuMemAddressFree");
    conf_must(sw_drv.cuMemRelease(block.handle), "cuMemRelease");
}

static void *other_thread(void *result)
{
    int count;

    *(CUresult *)result = sw_drv.cuDeviceGetCount(&count);
    return NULL;
}

static void fault_of_a_thread(void)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    pthread_t thread;
    int count;

    sw_emu_fail_nth(1, NS, 1, 0);
    if (pthread_create(&thread, NULL, other_thread, &result) != 0)
        conf_bail("pthread_create");
    pthread_join(thread, NULL);
    TAP_EQ("another thread's calls go on", result, OK);
    TAP_EQ("this thread's do not", sw_drv.cuDeviceGetCount(&count), NS);
    sw_emu_fail_nth(0, OK, 0, 0);
}

/* ---- live objects ---------------------------------------------------------------------------- */

static size_t printed_lines(void)
{
    const int file = memfd_create("live", MFD_CLOEXEC);
    char text[4096];
    ssize_t bytes;
    size_t lines = 0;

    sw_emu_live_print(file);
    bytes = pread(file, text, sizeof text, 0);
    for (ssize_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    close(file);
    return lines;
}

static void live_counts(void)
{
    const size_t lines = printed_lines();
    struct sw_emu_live before, now;
    struct conf_block block;
    CUmulticastObjectProp mc_prop = {2, conf.granule, 0, 0};
    CUmemGenericAllocationHandle mc = 0;
    CUdeviceptr plain = 0;
    void *host = NULL;

    sw_emu_live_count(&before);
    conf_block_make(&block, conf.device, conf.granule, 0);
    conf_must(sw_drv.cuMulticastCreate(&mc, &mc_prop), "cuMulticastCreate");
    conf_must(sw_drv.cuMulticastAddDevice(mc, 0), "cuMulticastAddDevice");
    conf_must(sw_drv.cuMulticastAddDevice(mc, 1), "cuMulticastAddDevice");
    conf_must(sw_drv.cuMulticastBindMem(mc, 0, block.handle, 0, conf.granule, 0), "bind");
    conf_must(sw_drv.cuMemAlloc(&plain, 100), "cuMemAlloc");
    conf_must(sw_drv.cuMemHostAlloc(&host, 100, 0), "cuMemHostAlloc");
    sw_emu_live_count(&now);
    TAP_EQ("live: references", now.handle_refs - before.handle_refs, 2);
    TAP_EQ("live: allocations", now.allocations - before.allocations, 1);
    TAP_EQ("live: reservations", now.reservations - before.reservations, 1);
    TAP_EQ("live: mappings", now.mappings - before.mappings, 1);
    TAP_EQ("live: multicast objects", now.multicasts - before.multicasts, 1);
    TAP_EQ("live: binds", now.binds - before.binds, 1);
    TAP_EQ("live: device blocks", now.device_blocks - before.device_blocks, 1);
    TAP_EQ("live: host blocks", now.host_blocks - before.host_blocks, 1);
    TAP_EQ("live: contexts", now.contexts, before.contexts);
    TAP_EQ("live: the sum", sw_emu_live_objects(),
           now.handle_refs + now.allocations + now.reservations + now.mappings + now.multicasts +
               now.binds + now.device_blocks + now.host_blocks + now.contexts + now.streams +
               now.events + now.libraries + now.graphs + now.graph_execs + now.user_objects);
    tap_ok(printed_lines() > lines, "live: what lives is printed, a line each");
    conf_must(sw_drv.cuMulticastUnbind(mc, 0, 0, conf.granule), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_must(sw_drv.cuMemFree(plain), "cuMemFree");
    conf_must(sw_drv.cuMemFreeHost(host), "cuMemFreeHost");
    conf_block_drop(&block);
    TAP_EQ("live: what is gone is not printed", printed_lines(), lines);
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* In the child: compares the machine with `arg`, which lists devices, memory, fabric, multicast and
 * so on. Returns one bit per difference. */
static int child_machine(const char *arg)
{
    struct sw_emu_machine machine, want;
    unsigned long long mem_bytes = 0;
    size_t total = 0;

    if (sw_driver_load() != SYMWIN_OK) {
        fprintf(stderr, "%s\n", symwin_last_error());
        return 99;
    }
    if (sscanf(arg, "%d %llu %d %d %d %d %zu %zu %d %d %d", &want.devices, &mem_bytes, &want.fabric,
               &want.multicast, &want.old, &want.strangers, &want.multicast_unit,
               &want.multicast_recommended, &want.multicast_slots, &want.multicast_alone,
               &want.machine) != 11)
        return 98;
    sw_emu_machine(&machine);
    conf_must(sw_drv.cuDeviceTotalMem(&total, machine.devices - 1), "cuDeviceTotalMem");
    if (machine.multicast_recommended != want.multicast_recommended ||
        machine.multicast_slots != want.multicast_slots ||
        machine.multicast_alone != want.multicast_alone || machine.machine != want.machine)
        return 97;
    return (machine.devices != want.devices) + 2 * (machine.mem_bytes != mem_bytes) +
           4 * (machine.fabric != want.fabric) + 8 * (machine.multicast != want.multicast) +
           16 * (total != mem_bytes) + 32 * (machine.old != want.old) +
           64 * (machine.strangers != want.strangers) +
           128 * (machine.multicast_unit != want.multicast_unit);
}

static void environment(void)
{
    static const struct {
        const char *text, *machine; /* NULL: cuInit refuses */
        const char *env[16];
    } cases[] = {
        {"the defaults", "8 8589934592 1 1 0 0 2097152 536870912 128 0 0", {NULL}},
        {"all set",
         "3 67108864 0 0 2 1 8388608 16777216 64 1 77",
         {"SYMWIN_EMU_DEVICES=3", "SYMWIN_EMU_MEM=64M", "SYMWIN_EMU_FABRIC=0",
          "SYMWIN_EMU_MULTICAST=0", "SYMWIN_EMU_OLD=2", "SYMWIN_EMU_STRANGERS=1",
          "SYMWIN_EMU_MULTICAST_UNIT=8M", "SYMWIN_EMU_MULTICAST_RECOMMENDED=16M",
          "SYMWIN_EMU_MULTICAST_SLOTS=64", "SYMWIN_EMU_MULTICAST_ALONE=1",
          "SYMWIN_EMU_MACHINE=77"}},
        {"no slots",
         "8 8589934592 1 1 0 0 2097152 536870912 -1 0 0",
         {"SYMWIN_EMU_MULTICAST_SLOTS=0"}},
        {"the most devices",
         "128 1073741824 2 1 0 0 2097152 536870912 128 0 0",
         {"SYMWIN_EMU_DEVICES=128", "SYMWIN_EMU_MEM=1G", "SYMWIN_EMU_FABRIC=2",
          "SYMWIN_EMU_MULTICAST=1"}},
        {"memory in K",
         "1 16777216 1 1 0 0 2097152 536870912 128 0 0",
         {"SYMWIN_EMU_DEVICES=1", "SYMWIN_EMU_MEM=16384K"}},
        {"memory in bytes",
         "1 4194304 1 1 0 0 2097152 536870912 128 0 0",
         {"SYMWIN_EMU_DEVICES=1", "SYMWIN_EMU_MEM=4194304"}},
        {"no device", NULL, {"SYMWIN_EMU_DEVICES=0"}},
        {"a device too many", NULL, {"SYMWIN_EMU_DEVICES=129"}},
        {"a negative number", NULL, {"SYMWIN_EMU_DEVICES=-1"}},
        {"no number", NULL, {"SYMWIN_EMU_DEVICES=many"}},
        {"a number and more", NULL, {"SYMWIN_EMU_DEVICES=4x"}},
        {"a number of 70 bits", NULL, {"SYMWIN_EMU_MEM=1180591620717411303424"}},
        {"a suffix that makes it too large", NULL, {"SYMWIN_EMU_MEM=17179869185G"}},
        {"less memory than a granule", NULL, {"SYMWIN_EMU_MEM=1K"}},
        {"an unknown fabric", NULL, {"SYMWIN_EMU_FABRIC=3"}},
        {"an unknown multicast", NULL, {"SYMWIN_EMU_MULTICAST=2"}},
        {"too many old devices", NULL, {"SYMWIN_EMU_OLD=129"}},
        {"nothing", NULL, {"SYMWIN_EMU_DEVICES="}},
        {"half a stranger", NULL, {"SYMWIN_EMU_STRANGERS=2"}},
        {"multicast by less than a granule", NULL, {"SYMWIN_EMU_MULTICAST_UNIT=1M"}},
        {"by more than there is", NULL, {"SYMWIN_EMU_MULTICAST_UNIT=2G"}},
        {"by a granule and a half", NULL, {"SYMWIN_EMU_MULTICAST_UNIT=3M"}},
        {"too many slots", NULL, {"SYMWIN_EMU_MULTICAST_SLOTS=1025"}},
        {"a machine without number", NULL, {"SYMWIN_EMU_MACHINE=mine"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *want = cases[i].machine != NULL ? cases[i].machine : "0 0 0 0 0 0 0 0 0 0 0";
        struct conf_child process;
        char text[80];

        snprintf(text, sizeof text, "environment: %s", cases[i].text);
        TAP_EQ(text, conf_child_run(&process, "machine", want, cases[i].env),
               cases[i].machine != NULL ? 0 : 99);
        if (cases[i].machine == NULL)
            tap_ok(strstr(process.text, "SYMWIN_EMU_") != NULL, "%s: the sentence says which",
                   text);
    }
}

static void configure(void)
{
    const CUmulticastObjectProp prop = conf_mc_prop(2, conf.granule, 0);
    CUmemGenericAllocationHandle mc;
    struct sw_emu_machine old, machine;
    CUcontext ctx;
    size_t total = 0;
    int count = 0;

    sw_emu_machine(&old);
    machine = old;
    machine.devices = 3;
    machine.mem_bytes = (size_t)64 << 20;
    TAP_EQ("configure while a context lives", sw_emu_configure(&machine), IS);
    conf_must(sw_drv.cuDeviceGetCount(&count), "cuDeviceGetCount");
    TAP_EQ("then nothing changes", count, old.devices);
    conf_must(sw_drv.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.device), "cuDevicePrimaryCtxRelease");
    TAP_EQ("configure while nothing lives", sw_emu_configure(&machine), OK);
    conf_must(sw_drv.cuDeviceGetCount(&count), "cuDeviceGetCount");
    TAP_EQ("the devices are as configured", count, 3);
    TAP_EQ("the first device past them", sw_drv.cuDeviceTotalMem(&total, 3), ID);
    TAP_EQ("the last device", sw_drv.cuDeviceTotalMem(&total, 2), OK);
    TAP_EQ("the memory is as configured", total, (size_t)64 << 20);
    machine.old = 1;
    machine.strangers = 1;
    TAP_EQ("configure of an old device, and no peers", sw_emu_configure(&machine), OK);
    for (int dev = 0; dev < 3; dev++) {
        int major = 0, multicast = 0, can = 1;

        conf_must(
            sw_drv.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev),
            "cuDeviceGetAttribute");
        conf_must(
            sw_drv.cuDeviceGetAttribute(&multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, dev),
            "cuDeviceGetAttribute");
        conf_must(sw_drv.cuDeviceCanAccessPeer(&can, dev, (dev + 1) % 3), "cuDeviceCanAccessPeer");
        TAP_EQ("the last device is old", major * 10 + multicast, dev == 2 ? 80 : 91);
        TAP_EQ("and none has a peer", can, 0);
        can = 1;
        conf_must(sw_drv.cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                                                 dev, (dev + 1) % 3),
                  "cuDeviceGetP2PAttribute");
        TAP_EQ("nor a link", can, 0);
    }
    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    TAP_EQ("an old device joins no multicast object", sw_drv.cuMulticastAddDevice(mc, 2),
           CUDA_ERROR_NOT_SUPPORTED);
    TAP_EQ("another one does", sw_drv.cuMulticastAddDevice(mc, 1), OK);
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    machine.devices = 0;
    TAP_EQ("configure of no device", sw_emu_configure(&machine), IV);
    machine.devices = 129;
    TAP_EQ("configure of too many devices", sw_emu_configure(&machine), IV);
    TAP_EQ("configure of nothing", sw_emu_configure(NULL), IV);
    TAP_EQ("configure as before", sw_emu_configure(&old), OK);
    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, conf.device), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
}

/* ---- quota ----------------------------------------------------------------------------------- */

static size_t available(void)
{
    size_t bytes = 0, total = 0;

    conf_must(sw_drv.cuMemGetInfo(&bytes, &total), "cuMemGetInfo");
    return bytes;
}

/* A create that fails because descriptors run out takes no memory. */
static void quota_when_create_fails(void)
{
    const size_t before = available();
    struct rlimit limit, none;
    CUresult result;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        conf_bail("getrlimit");
    none = limit;
    none.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &none) != 0)
        conf_bail("setrlimit");
    result = create_and_release();
    setrlimit(RLIMIT_NOFILE, &limit);
    TAP_EQ("create without a descriptor to be had", result, CUDA_ERROR_OPERATING_SYSTEM);
    TAP_EQ("it takes no memory", available(), before);
    TAP_EQ("create with descriptors", create_and_release(), OK);
}

static void quota(void)
{
    const size_t g = conf.granule, before = available();
    const CUmemAllocationProp here = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device, 0);
    const CUmemAllocationProp there = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, 1, 0);
    CUmemGenericAllocationHandle all, more = 0;
    CUdeviceptr plain = 0;
    size_t total = 0;

    conf_must(sw_drv.cuDeviceTotalMem(&total, conf.device), "cuDeviceTotalMem");
    TAP_EQ("all memory is free at first", before, total);
    all = conf_create(conf.device, total - 2 * g, 0);
    TAP_EQ("what is created is not free", available(), 2 * g);
    TAP_EQ("create beyond what is free", sw_drv.cuMemCreate(&more, 3 * g, &here, 0), OOM);
    TAP_EQ("alloc beyond what is free", sw_drv.cuMemAlloc(&plain, 2 * g + 1), OOM);
    TAP_EQ("what was refused takes nothing", available(), 2 * g);
    TAP_EQ("create on another device", conf_try_create(3 * g, &there, 0), OK);
    TAP_EQ("alloc of a byte", sw_drv.cuMemAlloc(&plain, 1), OK);
    tap_ok(available() < 2 * g, "it takes some of what is free");
    TAP_EQ("free of the byte", sw_drv.cuMemFree(plain), OK);
    TAP_EQ("create of all that is free", sw_drv.cuMemCreate(&more, 2 * g, &here, 0), OK);
    TAP_EQ("nothing is free", available(), 0);
    TAP_EQ("alloc of one byte more", sw_drv.cuMemAlloc(&plain, 1), OOM);
    conf_must(sw_drv.cuMemRelease(more), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(all), "cuMemRelease");
    TAP_EQ("all is free again", available(), before);
}

/* ---- pointers -------------------------------------------------------------------------------- */

static unsigned long long buffer_id(CUdeviceptr at)
{
    unsigned long long id = 0;

    conf_must(sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), "buffer id");
    return id;
}

static void buffer_ids(void)
{
    const size_t g = conf.granule;
    struct conf_block block, other;
    unsigned long long id;
    CUdeviceptr plain = 0, same;
    int reused = 0;

    conf_block_make(&block, conf.device, g, 0);
    conf_block_make(&other, conf.device, g, 0);
    id = buffer_id(block.va);
    tap_ok(id != 0 && id != buffer_id(other.va), "a buffer's id is its own");
    TAP_EQ("it is the same at every byte", buffer_id(block.va + g - 1), id);
    same = block.va;
    conf_block_drop(&block);
    TAP_EQ("it goes with the mapping",
           sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, same), IV);
    for (int i = 0; i < 8; i++) {
        conf_block_make(&block, conf.device, g, 0);
        reused += buffer_id(block.va) <= id;
        conf_block_drop(&block);
    }
    TAP_EQ("an id is never used again", reused, 0);
    conf_must(sw_drv.cuMemAlloc(&plain, 1000), "cuMemAlloc");
    tap_ok(buffer_id(plain) > id && buffer_id(plain) != buffer_id(other.va),
           "plain memory has an id too");
    conf_must(sw_drv.cuMemFree(plain), "cuMemFree");
    conf_block_drop(&other);
}

/* Checks the attributes and the range of the byte at `at`, which lies in `bytes` bytes at
 * `base`. */
static void check_pointer(const char *what, CUdeviceptr at, CUdeviceptr base, size_t bytes,
                          CUmemorytype type)
{
    CUdeviceptr start = 0, ptr = 0;
    CUmemorytype got = (CUmemorytype)0;
    size_t size = 0;
    int ordinal = -1, managed = 1, mapped = 0;

    conf_must(sw_drv.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at),
              "range start");
    conf_must(sw_drv.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at),
              "range size");
    tap_ok(start == base && size == bytes, "%s: the range", what);
    conf_must(sw_drv.cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), "type");
    TAP_EQ("the memory's type", got, type);
    conf_must(sw_drv.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at),
              "ordinal");
    TAP_EQ("the device", ordinal, conf.device);
    conf_must(sw_drv.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at),
              "managed");
    TAP_EQ("not managed", managed & 0xff, 0);
    conf_must(sw_drv.cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at), "mapped");
    TAP_EQ("mapped", mapped & 0xff, 1);
    conf_must(sw_drv.cuPointerGetAttribute(&ptr, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at),
              "device pointer");
    TAP_EQ("the device's pointer", ptr, at);
}

/* Several attributes at once. `type` 0: the driver does not know the address. */
static void check_pointers(const char *what, CUdeviceptr at, CUmemorytype type)
{
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    CUmemorytype got = (CUmemorytype)7;
    int ordinal = -1;
    CUdeviceptr ptr = 1;
    void *answers[] = {&got, &ordinal, &ptr};

    conf_must(sw_drv.cuPointerGetAttributes(3, asked, answers, at), "cuPointerGetAttributes");
    tap_ok(got == type && ordinal == (type == 0 ? -2 : conf.device) && ptr == (type == 0 ? 0 : at),
           "%s: several attributes at once", what);
}

static void pointers(void)
{
    const size_t g = conf.granule;
    struct conf_block block;
    CUdeviceptr plain = 0, device = 0, start = 0;
    unsigned long long types = 0;
    void *host = NULL, *host_pointer = NULL;
    unsigned rights = 0;
    int mapped = 1;
    size_t size = 0;

    conf_block_make(&block, conf.device, 2 * g, FD);
    check_pointer("mapped memory", block.va + g + 5, block.va, 2 * g, CU_MEMORYTYPE_DEVICE);
    conf_must(
        sw_drv.cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, block.va),
        "handle types");
    TAP_EQ("mapped memory: the handle types", types, FD);
    conf_must(sw_drv.cuMemAlloc(&plain, 1000), "cuMemAlloc");
    TAP_EQ("plain memory is aligned", plain % 512, 0);
    check_pointer("plain memory", plain + 999, plain, 1000, CU_MEMORYTYPE_DEVICE);
    check_pointers("plain memory", plain + 999, CU_MEMORYTYPE_DEVICE);
    TAP_EQ("plain memory works", conf_poke(plain + 996, 5), OK);
    TAP_EQ("and keeps what it was given", conf_word(plain + 996), 5);
    TAP_EQ("a copy past its end", conf_poke(plain + 997, 6), IV);
    TAP_EQ("its address cannot be freed but whole", sw_drv.cuMemFree(plain + 512), IV);
    TAP_EQ("free", sw_drv.cuMemFree(plain), OK);
    TAP_EQ("alloc of no bytes", sw_drv.cuMemAlloc(&plain, 0), IV);
    TAP_EQ("alloc without out-pointer", sw_drv.cuMemAlloc(NULL, 1), IV);

    conf_must(sw_drv.cuMemHostAlloc(&host, 1000, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    memset(host, 0x5a, 1000);
    conf_must(sw_drv.cuMemHostGetDevicePointer(&device, host, 0), "cuMemHostGetDevicePointer");
    check_pointer("pinned memory", device + 10, device, 1000, CU_MEMORYTYPE_HOST);
    check_pointers("pinned memory", device + 10, CU_MEMORYTYPE_HOST);
    TAP_EQ("the device sees what the host wrote", conf_word(device + 8), 0x5a5a5a5a);
    conf_must(conf_poke(device, 0x01020304), "cuMemcpyHtoD");
    TAP_EQ("the host sees what the device wrote", *(uint32_t *)host, 0x01020304);
    conf_must(
        sw_drv.cuPointerGetAttribute(&host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, device + 10),
        "host pointer");
    tap_ok(host_pointer == (char *)host + 10, "pinned memory: the host's pointer");
    TAP_EQ("free of pinned memory", sw_drv.cuMemFreeHost(host), OK);
    TAP_EQ("host alloc without out-pointer", sw_drv.cuMemHostAlloc(NULL, 1, 0), IV);

    TAP_EQ("attribute of an address that is none",
           sw_drv.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        (CUdeviceptr)(uintptr_t)&size),
           IV);
    check_pointers("an address that is none", (CUdeviceptr)(uintptr_t)&size, (CUmemorytype)0);
    TAP_EQ("attribute to NULL",
           sw_drv.cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block.va), IV);
    conf_must(sw_drv.cuPointerGetAttribute(&rights, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, block.va),
              "access flags");
    TAP_EQ("the rights of the current device", rights, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    start = conf_reserve(g);
    conf_must(sw_drv.cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, start), "mapped");
    TAP_EQ("a reserved address is not mapped", mapped & 0xff, 0);
    conf_must(sw_drv.cuMemAddressFree(start, g), "cuMemAddressFree");
    TAP_EQ("an unknown attribute",
           sw_drv.cuPointerGetAttribute(&size, (CUpointer_attribute)999, block.va), IV);
    conf_block_drop(&block);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return child_machine(argv[2]);
    conf_emulate("8");
    conf_group("a fault once", fault_once);
    conf_group("a persistent fault", fault_persistent);
    conf_group("a thread's own faults", fault_of_a_thread);
    conf_group("what lives", live_counts);
    conf_group("environment", environment);
    conf_group("configure", configure);
    conf_group("quota", quota);
    conf_group("quota when create fails", quota_when_create_fails);
    conf_group("buffer ids", buffer_ids);
    conf_group("pointers", pointers);
    return conf_done(NULL);
}
