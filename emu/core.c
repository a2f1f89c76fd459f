/* Start-up and end of the emulated driver, the emulated machine, injected faults, counts of live
 * objects, and the table of entry points.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "memory.h"
#include "src/base/base.h"

#define TABLE_ENTRY(name, symbol, version, need, params) .name = sw_emu_##name,
const struct sw_driver sw_emu_driver = {SW_DRIVER_LIST(TABLE_ENTRY)};
#undef TABLE_ENTRY

#define ENTRY_NAME(name, symbol, version, need, params) #name,
static const char *const entry_names[EMU_ENTRY_COUNT] = {SW_DRIVER_LIST(ENTRY_NAME)};
#undef ENTRY_NAME

struct sw_emu_machine emu_machine;

/* The driver's state in this process. A forked child has the parent's memory but none of its
 * threads, and must free nothing of it, so it has no driver. */
enum state { FRESH, READY, FORKED, ENDED };
static _Atomic int state;

static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static int machine_is_set; /* sw_emu_configure() was called before cuInit */

/* ---- start and end --------------------------------------------------------------------------- */

static void after_fork(void)
{
    if (atomic_load(&state) != FRESH)
        atomic_store(&state, FORKED);
}

int emu_is_forked(void)
{
    return atomic_load(&state) == FORKED;
}

/* cuInit registers this. So it runs after exit handlers registered later, by code that uses the
 * driver, and before those registered earlier. */
static void at_end(void)
{
    if (atomic_load(&state) == READY)
        atomic_store(&state, ENDED);
}

_Static_assert(EMU_MAX_DEVICES == SW_EMU_DEVICES_MOST, "settings.h");

/* driver.c reports invalid settings in words; as a libcuda.so.1 this driver only fails. */
static CUresult read_machine(void)
{
    if (sw_settings_check("cuInit", SW_READER_EMULATED) != SYMWIN_OK)
        return CUDA_ERROR_INVALID_VALUE;
    emu_machine.devices = (int)sw_setting(SW_SETTING_EMU_DEVICES);
    emu_machine.mem_bytes = (size_t)sw_setting(SW_SETTING_EMU_MEM) / EMU_GRANULE * EMU_GRANULE;
    emu_machine.fabric = (int)sw_setting(SW_SETTING_EMU_FABRIC);
    emu_machine.multicast = (int)sw_setting(SW_SETTING_EMU_MULTICAST);
    emu_machine.old = (int)sw_setting(SW_SETTING_EMU_OLD);
    emu_machine.strangers = (int)sw_setting(SW_SETTING_EMU_STRANGERS);
    emu_machine.multicast_unit = (size_t)sw_setting(SW_SETTING_EMU_MULTICAST_UNIT);
    emu_machine.multicast_recommended = (size_t)sw_setting(SW_SETTING_EMU_MULTICAST_RECOMMENDED);
    emu_machine.multicast_slots = (int)sw_setting(SW_SETTING_EMU_MULTICAST_SLOTS);
    if (emu_machine.multicast_slots == 0)
        emu_machine.multicast_slots = -1;
    emu_machine.multicast_alone = (int)sw_setting(SW_SETTING_EMU_MULTICAST_ALONE);
    emu_machine.machine = (int)sw_setting(SW_SETTING_EMU_MACHINE);
    emu_fault_read();
    if (sw_setting(SW_SETTING_EMU_ALIAS) && sw_emu_alias_watch(1) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuInit(unsigned int flags)
{
    CUresult result = emu_enter_unless(EMU_cuInit, flags != 0);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&start_mutex);
    if (atomic_load(&state) == FRESH) {
        if (!machine_is_set)
            result = read_machine();
        if (result == CUDA_SUCCESS)
            result = emu_space_start();
        if (result == CUDA_SUCCESS &&
            (pthread_atfork(NULL, NULL, after_fork) != 0 || atexit(at_end) != 0))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            atomic_store(&state, READY);
    }
    pthread_mutex_unlock(&start_mutex);
    return result;
}

CUresult sw_emu_cuDriverGetVersion(int *version)
{
    CUresult result = emu_enter_unless(EMU_cuDriverGetVersion, version == NULL);

    if (result == CUDA_SUCCESS)
        *version = 13010;
    return result;
}

CUresult sw_emu_configure(const struct sw_emu_machine *machine)
{
    CUresult result = CUDA_SUCCESS;

    if (machine == NULL || machine->devices < 1 || machine->devices > EMU_MAX_DEVICES ||
        machine->mem_bytes < EMU_GRANULE || machine->mem_bytes > SW_EMU_MEM_MOST ||
        machine->fabric < 0 || machine->fabric > 2 || machine->multicast < 0 ||
        machine->multicast > 1 || machine->old < 0 || machine->strangers < 0 ||
        machine->strangers > 1 || machine->multicast_unit % EMU_GRANULE != 0 ||
        machine->multicast_recommended % EMU_GRANULE != 0 || machine->multicast_slots < -1 ||
        machine->multicast_slots > SW_EMU_SLOTS_MOST || machine->multicast_alone < 0 ||
        machine->multicast_alone > 1 || machine->machine < 0 ||
        machine->machine > SW_EMU_MACHINE_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&start_mutex);
    if (sw_emu_live_objects() != 0) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        emu_machine = *machine;
        emu_machine.mem_bytes = machine->mem_bytes / EMU_GRANULE * EMU_GRANULE;
        if (emu_machine.multicast_unit == 0)
            emu_machine.multicast_unit = EMU_GRANULE;
        if (emu_machine.multicast_recommended == 0)
            emu_machine.multicast_recommended = (size_t)512 << 20;
        if (emu_machine.multicast_slots == 0)
            emu_machine.multicast_slots = 128;
        machine_is_set = 1;
    }
    pthread_mutex_unlock(&start_mutex);
    return result;
}

void sw_emu_machine(struct sw_emu_machine *machine)
{
    *machine = emu_machine;
}

/* ---- common start of every entry point ------------------------------------------------------- */

/* Calls that only free, and calls that only describe an error. */
static const unsigned char is_teardown[EMU_ENTRY_COUNT] = {
    [EMU_cuMemRelease] = 1,      [EMU_cuMemUnmap] = 1,         [EMU_cuMemAddressFree] = 1,
    [EMU_cuMulticastUnbind] = 1, [EMU_cuStreamDestroy] = 1,    [EMU_cuEventDestroy] = 1,
    [EMU_cuGraphDestroy] = 1,    [EMU_cuGraphExecDestroy] = 1, [EMU_cuUserObjectRelease] = 1,
    [EMU_cuMemFree] = 1,         [EMU_cuMemFreeHost] = 1,      [EMU_cuLibraryUnload] = 1,
    [EMU_cuCtxPopCurrent] = 1,   [EMU_cuCtxSetCurrent] = 1,    [EMU_cuDevicePrimaryCtxRelease] = 1,
    [EMU_cuGetErrorName] = 1,    [EMU_cuGetErrorString] = 1,   [EMU_cuGreenCtxDestroy] = 1,
};

static _Thread_local struct fault {
    unsigned nth, calls;
    CUresult code;
    int persistent, including_teardown, fired;
    const char *name;
} own_fault;

_Static_assert(sizeof(struct fault) <= 32, "as sw_emu_thread_get() says");

void sw_emu_thread_get(void *out, size_t bytes)
{
    if (bytes >= sizeof own_fault)
        memcpy(out, &own_fault, sizeof own_fault);
}

void sw_emu_thread_set(const void *in, size_t bytes)
{
    if (bytes >= sizeof own_fault)
        memcpy(&own_fault, in, sizeof own_fault);
}

void sw_emu_fail_nth(unsigned nth, CUresult code, int persistent, int including_teardown)
{
    own_fault = (struct fault){nth, 0, code, persistent, including_teardown, 0, NULL};
}

unsigned sw_emu_calls(void)
{
    return own_fault.calls;
}

int sw_emu_fault_fired(void)
{
    return own_fault.fired;
}

const char *sw_emu_fault_name(void)
{
    return own_fault.name;
}

static CUresult injected_fault(enum emu_entry entry)
{
    struct fault *f = &own_fault;

    if (is_teardown[entry] && !f->including_teardown)
        return CUDA_SUCCESS;
    f->calls++;
    if (f->nth == 0 || f->calls < f->nth || (f->calls > f->nth && !f->persistent))
        return CUDA_SUCCESS;
    if (!f->fired)
        f->name = entry_names[entry];
    f->fired = 1;
    return f->code;
}

CUresult emu_enter(enum emu_entry entry)
{
    const CUresult result = injected_fault(entry);

    if (result != CUDA_SUCCESS)
        return result;
    if (emu_in_host_function && entry != EMU_cuGetErrorName && entry != EMU_cuGetErrorString)
        return CUDA_ERROR_NOT_PERMITTED;
    switch ((enum state)atomic_load(&state)) {
    case READY:
        return CUDA_SUCCESS;
    case FRESH:
        if (entry == EMU_cuInit)
            return CUDA_SUCCESS;
        break;
    case FORKED:
        break;
    case ENDED:
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (entry == EMU_cuGetErrorName || entry == EMU_cuGetErrorString ||
        entry == EMU_cuDriverGetVersion)
        return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_INITIALIZED;
}

CUresult emu_enter_unless(enum emu_entry entry, int invalid)
{
    const CUresult result = emu_enter(entry);

    return result == CUDA_SUCCESS && invalid ? CUDA_ERROR_INVALID_VALUE : result;
}

_Noreturn void emu_misuse(const char *format, ...)
{
    va_list args;

    fputs("symwin: the emulated driver was misused: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

/* ---- live objects ---------------------------------------------------------------------------- */

static _Atomic long live_counts[EMU_LIVE_KINDS];

#define LIVE_NAME(kind, member, name) name,
static const char *const live_names[] = {SW_EMU_LIVE_LIST(LIVE_NAME)};

void emu_live_add(enum emu_kind kind, long delta)
{
    atomic_fetch_add(&live_counts[kind], delta);
}

void sw_emu_live_count(struct sw_emu_live *live)
{
    emu_physical_sweep(); /* ends memory whose last descriptor was closed */
#define LIVE_COUNT(kind, member, name)                                                             \
    live->member = (size_t)atomic_load(&live_counts[EMU_LIVE_##kind]);
    SW_EMU_LIVE_LIST(LIVE_COUNT)
}

size_t sw_emu_live_objects(void)
{
    size_t sum = 0;

    emu_physical_sweep();
    for (int i = 0; i < EMU_LIVE_KINDS; i++)
        sum += (size_t)atomic_load(&live_counts[i]);
    return sum;
}

void sw_emu_live_print(int fd)
{
    emu_physical_sweep();
    emu_physical_print(fd);
    emu_multicast_print(fd);
    emu_space_print(fd);
    for (int i = 0; i < EMU_LIVE_KINDS; i++) {
        const long count = atomic_load(&live_counts[i]);

        if (count != 0)
            dprintf(fd, "live: %ld of kind %s\n", count, live_names[i]);
    }
}
