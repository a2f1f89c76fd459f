#include "conformance.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "emu/emu.h"

struct conf_world conf;

static FILE *csv;
static unsigned char seen[CONF_RULES + 1][2];

static const char *const side_names[] = {[ACCEPTED] = "accepted", [REFUSED] = "refused"};

/* ---- cases ----------------------------------------------------------------------------------- */

void conf_must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("Bail out! %s gave %d\n", what, (int)result);
    exit(1);
}

void conf_bail(const char *what)
{
    printf("Bail out! %s: %s\n", what, strerror(errno));
    exit(1);
}

static const char *code_name(CUresult code)
{
    const char *name = NULL;

    if (code == CUDA_SUCCESS)
        return "SUCCESS";
    if (sw_drv.cuGetErrorName(code, &name) != CUDA_SUCCESS || name == NULL)
        return "unknown";
    return strncmp(name, "CUDA_ERROR_", 11) == 0 ? name + 11 : name;
}

static void record(int rule, enum conf_side side, const char *text, const char *want,
                   const char *got)
{
    seen[rule][side] = 1;
    if (csv != NULL)
        fprintf(csv, "%d,\"%s: %s\",\"%s\",\"%s\"\n", rule, side_names[side], text, want, got);
}

void conf_check(int rule, enum conf_side side, const char *text, CUresult got, const CUresult *want)
{
    char names[160] = "", answer[64];
    size_t used = 0;
    int met = 0;

    for (int i = 0; want[i] != CONF_END && used < sizeof names; i++) {
        met |= got == want[i];
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? " or " : "",
                                 code_name(want[i]));
    }
    snprintf(answer, sizeof answer, "%s", code_name(got));
    record(rule, side, text, names, answer);
    if (met)
        tap_ok(1, "rule %d %s: %s", rule, side_names[side], text);
    else
        tap_ok(0, "rule %d %s: %s (got %s (%d), want %s)", rule, side_names[side], text, answer,
               (int)got, names);
}

void conf_accepted(int rule, const char *text, CUresult got)
{
    conf_check(rule, ACCEPTED, text, got, WANT(OK));
}

void conf_stricter(int rule, const char *text, CUresult got)
{
    conf_refused(rule, text, got, conf.emulated ? WANT(IV) : WANT(IV, OK));
}

void conf_refused(int rule, const char *text, CUresult got, const CUresult *want)
{
    conf_check(rule, REFUSED, text, got, want);
}

void conf_value(int rule, enum conf_side side, const char *text, long long got, long long want)
{
    char wanted[24], answer[24];

    snprintf(wanted, sizeof wanted, "%lld", want);
    snprintf(answer, sizeof answer, "%lld", got);
    record(rule, side, text, wanted, answer);
    if (got == want)
        tap_ok(1, "rule %d %s: %s", rule, side_names[side], text);
    else
        tap_ok(0, "rule %d %s: %s (got %lld, want %lld)", rule, side_names[side], text, got, want);
}

void conf_none(int rule, enum conf_side side, const char *why)
{
    record(rule, side, why, "none", "none");
    tap_ok(1, "rule %d %s: none: %s", rule, side_names[side], why);
}

void conf_skip(int rule, enum conf_side side, const char *why)
{
    record(rule, side, why, "skipped", "skipped");
    tap_ok(1, "rule %d %s # SKIP %s", rule, side_names[side], why);
}

static void find_peer(void)
{
    conf.peer = -1;
    for (int i = 1; i < conf.devices && conf.peer < 0; i++) {
        int there = 0, back = 0;

        if (sw_drv.cuDeviceCanAccessPeer(&there, conf.device, i) == CUDA_SUCCESS && there &&
            sw_drv.cuDeviceCanAccessPeer(&back, i, conf.device) == CUDA_SUCCESS && back)
            conf.peer = i;
    }
}

void conf_open_csv(void)
{
    const char *path = getenv("SYMWIN_CONFORMANCE_CSV");
    char name[128] = "";
    int version = 0;

    if (path == NULL || path[0] == '\0')
        return;
    csv = fopen(path, "w");
    if (csv == NULL)
        conf_bail(path);
    conf_must(sw_drv.cuDriverGetVersion(&version), "cuDriverGetVersion");
    conf_must(sw_drv.cuDeviceGetName(name, (int)sizeof name, conf.device), "cuDeviceGetName");
    fprintf(csv, "rule,case,expected,got\n0,driver,,\"CUDA %d.%d on %d of %s\"\n", version / 1000,
            version % 1000 / 10, conf.devices, name);
}

static void make_current(void)
{
    CUcontext ctx = NULL;

    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, conf.device), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
}

void conf_start(void)
{
    CUmemAllocationProp prop;

    if (sw_driver_load() != SYMWIN_OK) {
        printf("Bail out! no driver: %s\n", symwin_last_error());
        exit(1);
    }
    conf.emulated = sw_driver_is_emulated();
    conf_must(sw_drv.cuDeviceGetCount(&conf.devices), "cuDeviceGetCount");
    conf.device = 0;
    conf.page = (size_t)sysconf(_SC_PAGESIZE);
    make_current();
    find_peer();
    prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device,
                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    conf.granule = conf_granularity(&prop);
}

int conf_done(int (*mine)(int rule))
{
    char missing[400] = "";
    size_t used = 0;

    for (int rule = 1; mine != NULL && rule <= CONF_RULES; rule++)
        if (mine(rule) && !(seen[rule][ACCEPTED] && seen[rule][REFUSED]) && used < sizeof missing)
            used += (size_t)snprintf(missing + used, sizeof missing - used, " %d", rule);
    if (mine != NULL)
        tap_ok(used == 0, "every rule has an accepted and a refused case%s%s",
               used > 0 ? ", but for rules" : "", missing);
    conf_must(sw_drv.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.device), "cuDevicePrimaryCtxRelease");
    if (conf.emulated) {
        if (!TAP_EQ("nothing is left behind", sw_emu_live_objects(), 0))
            sw_emu_live_print(STDERR_FILENO);
    }
    if (csv != NULL && fclose(csv) != 0)
        tap_ok(0, "the CSV is written: %s", strerror(errno));
    return tap_done();
}

void conf_group(const char *name, void (*run)(void))
{
    const size_t objects = conf.emulated ? sw_emu_live_objects() : 0;
    const int fds = harness_count_entries("/proc/self/fd");
    char text[128];

    run();
    if (!conf.emulated) /* the real driver may keep descriptors open */
        return;
    snprintf(text, sizeof text, "%s: no object left behind", name);
    if (!TAP_EQ(text, sw_emu_live_objects(), objects))
        sw_emu_live_print(STDERR_FILENO);
    snprintf(text, sizeof text, "%s: no descriptor left behind", name);
    TAP_EQ(text, harness_count_entries("/proc/self/fd"), fds);
}

/* ---- memory ---------------------------------------------------------------------------------- */

CUmemAllocationProp conf_prop(CUmemLocationType type, int id, unsigned handle_types)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = type;
    prop.location.id = id;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)handle_types;
    return prop;
}

size_t conf_granularity(const CUmemAllocationProp *prop)
{
    size_t bytes = 0;

    conf_must(sw_drv.cuMemGetAllocationGranularity(&bytes, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              "cuMemGetAllocationGranularity");
    return bytes;
}

CUmemGenericAllocationHandle conf_create(CUdevice device, size_t bytes, unsigned types)
{
    const CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, device, types);
    CUmemGenericAllocationHandle handle = 0;

    conf_must(sw_drv.cuMemCreate(&handle, bytes, &prop, 0), "cuMemCreate");
    return handle;
}

CUdeviceptr conf_reserve(size_t bytes)
{
    CUdeviceptr va = 0;

    conf_must(sw_drv.cuMemAddressReserve(&va, bytes, 0, 0, 0), "cuMemAddressReserve");
    return va;
}

CUresult conf_access(CUdeviceptr va, size_t bytes, CUdevice device, CUmemAccess_flags flags)
{
    const CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

    return sw_drv.cuMemSetAccess(va, bytes, &desc, 1);
}

long long conf_rights(CUdeviceptr va, CUdevice device)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    unsigned long long flags = 0;

    return sw_drv.cuMemGetAccess(&flags, &location, va) == CUDA_SUCCESS ? (long long)flags : -1;
}

CUdeviceptr conf_map(CUmemGenericAllocationHandle handle, size_t bytes)
{
    const CUdeviceptr va = conf_reserve(bytes);

    conf_must(sw_drv.cuMemMap(va, bytes, 0, handle, 0), "cuMemMap");
    conf_must(conf_access(va, bytes, conf.device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              "cuMemSetAccess");
    return va;
}

void conf_unmap(CUdeviceptr va, size_t bytes)
{
    conf_must(sw_drv.cuMemUnmap(va, bytes), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(va, bytes), "cuMemAddressFree");
}

void conf_block_make(struct conf_block *block, CUdevice device, size_t bytes, unsigned types)
{
    block->bytes = bytes;
    block->handle = conf_create(device, bytes, types);
    block->va = conf_map(block->handle, bytes);
}

void conf_block_drop(struct conf_block *block)
{
    conf_unmap(block->va, block->bytes);
    conf_must(sw_drv.cuMemRelease(block->handle), "cuMemRelease");
}

CUresult conf_try_reserve(size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
    CUdeviceptr va = 0;
    const CUresult result = sw_drv.cuMemAddressReserve(&va, size, alignment, addr, flags);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMemAddressFree(va, size);
    return result;
}

CUresult conf_try_create(size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = sw_drv.cuMemCreate(&handle, size, prop, flags);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMemRelease(handle);
    return result;
}

CUresult conf_try_map(CUdeviceptr ptr, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const CUresult result = sw_drv.cuMemMap(ptr, size, offset, handle, flags);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMemUnmap(ptr, size);
    return result;
}

CUresult conf_try_import(void *shareable, CUmemAllocationHandleType type)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = sw_drv.cuMemImportFromShareableHandle(&handle, shareable, type);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMemRelease(handle);
    return result;
}

CUresult conf_poke(CUdeviceptr to, uint32_t value)
{
    return sw_drv.cuMemcpyHtoD(to, &value, sizeof value);
}

CUresult conf_peek(CUdeviceptr from, uint32_t *value)
{
    return sw_drv.cuMemcpyDtoH(value, from, sizeof *value);
}

long long conf_word(CUdeviceptr from)
{
    uint32_t value = 0;

    return conf_peek(from, &value) == CUDA_SUCCESS ? (long long)value : -1;
}

int conf_export_fd(CUmemGenericAllocationHandle handle)
{
    int fd = -1;

    conf_must(sw_drv.cuMemExportToShareableHandle(&fd, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              "cuMemExportToShareableHandle");
    return fd;
}

CUresult conf_import_fd(CUmemGenericAllocationHandle *handle, int fd)
{
    return sw_drv.cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* ---- the emulated machine -------------------------------------------------------------------- */

void conf_emulate(const char *devices)
{
    if (setenv("SYMWIN_DRIVER", "emu", 1) != 0 || setenv("SYMWIN_EMU_DEVICES", devices, 1) != 0 ||
        unsetenv("SYMWIN_EMU_MEM") != 0 || unsetenv("SYMWIN_EMU_FABRIC") != 0 ||
        unsetenv("SYMWIN_EMU_MULTICAST") != 0 || unsetenv("SYMWIN_EMU_MULTICAST_SLOTS") != 0 ||
        unsetenv("SYMWIN_EMU_MULTICAST_RECOMMENDED") != 0 ||
        unsetenv("SYMWIN_EMU_MULTICAST_ALONE") != 0 ||
        unsetenv("SYMWIN_EMU_MULTICAST_FAULT") != 0 || unsetenv("SYMWIN_EMU_MACHINE") != 0)
        conf_bail("setenv");
    conf_start();
    if (!conf.emulated) /* checked again: on real hardware a mistake may disturb the GPUs */
        tap_skip_all("it runs on the emulated driver only");
}

void conf_configure(const struct sw_emu_machine *machine)
{
    conf_must(sw_drv.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.device), "cuDevicePrimaryCtxRelease");
    conf_must(sw_emu_configure(machine), "sw_emu_configure");
    make_current();
}

void conf_machine(int fabric, int multicast)
{
    struct sw_emu_machine machine;

    sw_emu_machine(&machine);
    machine.fabric = fabric;
    machine.multicast = multicast;
    conf_configure(&machine);
}

/* ---- multicast ------------------------------------------------------------------------------- */

#define RETURN_WITHIN_MS 50

static size_t mc_unit;

size_t conf_team_start(void)
{
    const CUmulticastObjectProp prop = conf_mc_prop(CONF_MEMBERS, (size_t)64 << 20, 0);

    conf_must(sw_drv.cuMulticastGetGranularity(&mc_unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
              "cuMulticastGetGranularity");
    return mc_unit;
}

CUmulticastObjectProp conf_mc_prop(unsigned devices, size_t size, unsigned long long types)
{
    return (CUmulticastObjectProp){.numDevices = devices, .size = size, .handleTypes = types};
}

CUmemGenericAllocationHandle conf_mc_create(unsigned long long types)
{
    const CUmulticastObjectProp prop = conf_mc_prop(CONF_MEMBERS, 2 * mc_unit, types);
    CUmemGenericAllocationHandle mc = 0;

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    return mc;
}

void conf_team_make(struct conf_team *team, unsigned types)
{
    team->mc = conf_mc_create(types);
    for (int i = CONF_MEMBERS - 1; i >= 0; i--)
        conf_must(sw_drv.cuMulticastAddDevice(team->mc, i), "cuMulticastAddDevice");
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_block_make(&team->blocks[i], i, mc_unit, types);
}

void conf_team_bind(struct conf_team *team)
{
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_must(sw_drv.cuMulticastBindMem(team->mc, 0, team->blocks[i].handle, 0, mc_unit, 0),
                  "cuMulticastBindMem");
}

void conf_team_unbind(struct conf_team *team)
{
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_must(sw_drv.cuMulticastUnbind(team->mc, i, 0, mc_unit), "cuMulticastUnbind");
}

void conf_team_drop(struct conf_team *team)
{
    conf_must(sw_drv.cuMemRelease(team->mc), "cuMemRelease");
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_block_drop(&team->blocks[i]);
}

static void *call_main(void *arg)
{
    struct conf_call *call = arg;

    switch (call->kind) {
    case CALL_MAP:
        call->result = sw_drv.cuMemMap(call->va, 2 * mc_unit, 0, call->mc, 0);
        break;
    case CALL_BIND_MEM:
        call->result = sw_drv.cuMulticastBindMem(call->mc, 0, call->mem, 0, mc_unit, 0);
        break;
    case CALL_BIND_ADDR:
        call->result = sw_drv.cuMulticastBindAddr(call->mc, 0, call->va, mc_unit, 0);
        break;
    }
    atomic_store(&call->done, 1);
    return NULL;
}

void conf_call_start(struct conf_call *call)
{
    struct timespec left = {0, RETURN_WITHIN_MS * 1000000L};

    atomic_init(&call->done, 0);
    if (pthread_create(&call->thread, NULL, call_main, call) != 0)
        conf_bail("pthread_create");
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

void conf_must_block(int rule, const char *what, struct conf_call *call)
{
    char text[96];

    for (int i = 0; i < CONF_MEMBERS - 1; i++)
        conf_must(sw_drv.cuMulticastAddDevice(call->mc, i), "cuMulticastAddDevice");
    conf_call_start(call);
    snprintf(text, sizeof text, "%s blocks while a device is missing", what);
    conf_value(rule, REFUSED, text, atomic_load(&call->done), 0);
    conf_must(sw_drv.cuMulticastAddDevice(call->mc, CONF_MEMBERS - 1), "cuMulticastAddDevice");
    pthread_join(call->thread, NULL);
    snprintf(text, sizeof text, "%s returns when the last device is added", what);
    conf_accepted(rule, text, call->result);
}
