/* Loads the driver: libcuda, found at run time, or the emulated driver. Turns the results of its
 * calls into statuses, and makes contexts current.
 *
 * SYMWIN_DRIVER selects it, once per process: "cuda" and "emu" load that driver or fail; "auto"
 * (the default) loads libcuda if it has at least one device, and otherwise the emulated driver,
 * with one line on stderr. Any thread.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "src/base/base.h"
#include "src/driver/driver.h"

struct sw_driver sw_drv;

static struct {
    pthread_once_t once;
    int done;   /* a driver was loaded, or failed to, in this process or before the fork */
    int forked; /* it was before the fork; no driver survives one */
    symwin_status status;
    int emulated;
    char text[SW_TEXT_BYTES]; /* why loading failed */
} loaded = {.once = PTHREAD_ONCE_INIT};

typedef CUresult (*get_proc_address_fn)(const char *symbol, void **fn, int version, uint64_t flags,
                                        CUdriverProcAddressQueryResult *found);

enum need { OPTIONAL, REQUIRED };

static const struct {
    const char *symbol;
    int version;
    enum need need;
} entries[] = {
#define DRIVER_ENTRY(name, symbol, version, need, params) {symbol, version, need},
    SW_DRIVER_LIST(DRIVER_ENTRY)
#undef DRIVER_ENTRY
};

#define ENTRY_COUNT (sizeof entries / sizeof entries[0])

_Static_assert(sizeof(struct sw_driver) == ENTRY_COUNT * sizeof(void *),
               "the table is an array of function pointers in list order");

static symwin_status resolve(get_proc_address_fn get, struct sw_driver *table)
{
    unsigned char *out = (unsigned char *)table;
    size_t i;

    for (i = 0; i < ENTRY_COUNT; i++) {
        void *fn = NULL;
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        const CUresult result = get(entries[i].symbol, &fn, entries[i].version, 0, &found);

        if (result != CUDA_SUCCESS || found != CU_GET_PROC_ADDRESS_SUCCESS)
            fn = NULL;
        if (fn == NULL && entries[i].need == REQUIRED)
            return sw_fail(
                SYMWIN_UNSUPPORTED,
                "libcuda.so.1 has no %s of CUDA %d.%d: install a driver for CUDA 12.0 or "
                "later, or set SYMWIN_DRIVER=emu",
                entries[i].symbol, entries[i].version / 1000, entries[i].version % 1000 / 10);
        memcpy(out + i * sizeof fn, &fn, sizeof fn);
    }
    return SYMWIN_OK;
}

/* Fills `table` from libcuda and initialises it. libcuda stays loaded, as CUDA expects. */
static symwin_status load_cuda(struct sw_driver *table)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    get_proc_address_fn get = NULL;
    symwin_status status;
    void *symbol;
    CUresult result;
    int count = 0;

    if (library == NULL)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "libcuda.so.1 cannot be loaded (%s); install NVIDIA's driver, or set "
                       "LD_LIBRARY_PATH to the folder of libcuda.so.1, or SYMWIN_DRIVER=emu",
                       dlerror());
    symbol = dlsym(library, "cuGetProcAddress_v2");
    if (symbol == NULL)
        return sw_fail(SYMWIN_UNSUPPORTED, "libcuda.so.1 is older than CUDA 12.0: it has no "
                                           "cuGetProcAddress_v2; install a newer driver");
    memcpy(&get, &symbol, sizeof get);
    status = resolve(get, table);
    if (status != SYMWIN_OK)
        return status;
    result = table->cuInit(0);
    if (result == CUDA_SUCCESS)
        result = table->cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS || count < 1)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "libcuda.so.1 has no usable device (cuInit gave %d, %d devices); see "
                       "nvidia-smi and CUDA_VISIBLE_DEVICES, or set SYMWIN_DRIVER=emu",
                       (int)result, count);
    return SYMWIN_OK;
}

static symwin_status load_emulated(struct sw_driver *table)
{
    const symwin_status status = sw_settings_check(NULL, SW_READER_EMULATED);
    CUresult result;

    if (status != SYMWIN_OK)
        return status;
    *table = sw_emu_driver;
    result = table->cuInit(0);
    if (result != CUDA_SUCCESS)
        return sw_fail(SYMWIN_UNSUPPORTED, "the emulated driver cannot start (cuInit gave %d)",
                       (int)result);
    return SYMWIN_OK;
}

/* In a forked child: marks the driver unusable, if the parent had one. */
static void forget(void)
{
    loaded.forked = loaded.done;
}

static void load(void)
{
    const uint64_t choice = sw_setting(SW_SETTING_DRIVER);
    char before[SW_TEXT_BYTES], no_gpu[SW_TEXT_BYTES] = "";

    snprintf(before, sizeof before, "%s", symwin_last_error());
    sw_fork_register(forget);
    loaded.done = 1;
    loaded.status = sw_settings_check(NULL, SW_READER_DRIVER);
    loaded.emulated = choice == SW_CHOICE_EMU;
    if (loaded.status == SYMWIN_OK && !loaded.emulated) {
        loaded.status = load_cuda(&sw_drv);
        if (loaded.status != SYMWIN_OK && choice == SW_CHOICE_AUTO) {
            snprintf(no_gpu, sizeof no_gpu, "%s", symwin_last_error());
            loaded.emulated = 1;
            loaded.status = SYMWIN_OK;
        }
    }
    if (loaded.status == SYMWIN_OK && loaded.emulated)
        loaded.status = load_emulated(&sw_drv);
    if (loaded.status != SYMWIN_OK) {
        snprintf(loaded.text, sizeof loaded.text, "%s", symwin_last_error());
        return;
    }
    sw_hook_driver_loaded(no_gpu[0] != '\0' ? no_gpu : NULL);
    sw_error_restore(before);
}

symwin_status sw_fork_check(const char *call)
{
    if (!loaded.forked)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_FORKED,
                   "%s: this process is a fork of one that used the CUDA driver, which does not "
                   "survive a fork; fork before the first call to symwin, or exec",
                   call);
}

symwin_status sw_driver_load(void)
{
    const symwin_status forked = sw_fork_check("symwin");

    if (forked != SYMWIN_OK)
        return forked;
    pthread_once(&loaded.once, load);
    if (loaded.status != SYMWIN_OK)
        return sw_fail(loaded.status, "%s", loaded.text);
    return SYMWIN_OK;
}

int sw_driver_is_emulated(void)
{
    return loaded.emulated;
}

/* ---- results ---- */

/* The status that tells the caller what can be done about the driver's error. */
static symwin_status status_of(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS:
        return SYMWIN_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return SYMWIN_NO_MEMORY;
    case CUDA_ERROR_NOT_PERMITTED:
        return SYMWIN_DENIED;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
        return SYMWIN_UNSUPPORTED;
    default:
        return SYMWIN_DRIVER;
    }
}

symwin_status sw_check(CUresult result, const char *format, ...)
{
    const char *name = NULL;
    const char *meaning = NULL;
    const char *advice = "";
    char text[SW_TEXT_BYTES];
    va_list args;

    if (result == CUDA_SUCCESS)
        return SYMWIN_OK;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (sw_drv.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        name = "an unknown error";
    if (sw_drv.cuGetErrorString(result, &meaning) != CUDA_SUCCESS || meaning == NULL)
        meaning = "no description";
    /* The driver reports a lack of descriptors by this code too. */
    if (result == CUDA_ERROR_OPERATING_SYSTEM)
        advice = "; if too many files are open, raise ulimit -n";
    return sw_fail(status_of(result), "%s: %s (%s)%s", text, name, meaning, advice);
}

symwin_status sw_blame_stream(symwin_status status)
{
    CUdevice device = -1;

    if (sw_drv.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return status;
    return sw_fail(status, "%s; pass a stream of device %d that has not been destroyed",
                   symwin_last_error(), device);
}

symwin_status sw_check_stream(CUresult result, const char *call, const char *what)
{
    const symwin_status status = sw_check(result, "%s: %s", call, what);

    return result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT ||
                   result == CUDA_ERROR_CONTEXT_IS_DESTROYED
               ? sw_blame_stream(status)
               : status;
}

symwin_status sw_check_capture(CUstreamCaptureStatus capturing, const char *call)
{
    return capturing != CU_STREAM_CAPTURE_STATUS_INVALIDATED
               ? SYMWIN_OK
               : sw_fail(SYMWIN_INVALID,
                         "%s: the capture of the stream is invalid; end it, and capture again",
                         call);
}

void sw_drop(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS && sw_setting(SW_SETTING_DEBUG))
        fprintf(stderr, "symwin: %s failed with %d during teardown\n", call, (int)result);
}

void sw_driver_thread_get(struct sw_driver_thread *out)
{
    if (sw_driver_is_emulated())
        sw_emu_thread_get(out->words, sizeof out->words);
}

void sw_driver_thread_set(const struct sw_driver_thread *in)
{
    if (sw_driver_is_emulated())
        sw_emu_thread_set(in->words, sizeof in->words);
}

/* ---- contexts ---- */

symwin_status sw_scope_enter_context(CUcontext context, struct sw_scope *scope)
{
    CUcontext current = NULL;
    symwin_status status;

    *scope = (struct sw_scope){.device = -1};
    if (sw_drv.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context)
        return SYMWIN_OK;
    status = sw_check(sw_drv.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    scope->pushed = status == SYMWIN_OK;
    return status;
}

symwin_status sw_scope_enter(int device, struct sw_scope *scope)
{
    CUcontext context = NULL;
    symwin_status status;

    *scope = (struct sw_scope){.device = -1};
    status = sw_check(sw_drv.cuDevicePrimaryCtxRetain(&context, device),
                      "cuDevicePrimaryCtxRetain: device %d", device);
    if (status != SYMWIN_OK)
        return status;
    status = sw_scope_enter_context(context, scope);
    if (status == SYMWIN_OK)
        scope->device = device;
    else
        sw_drop(sw_drv.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    return status;
}

void sw_scope_leave(struct sw_scope *scope)
{
    CUcontext context;

    if (scope->pushed)
        sw_drop(sw_drv.cuCtxPopCurrent(&context), "cuCtxPopCurrent");
    if (scope->device >= 0)
        sw_drop(sw_drv.cuDevicePrimaryCtxRelease(scope->device), "cuDevicePrimaryCtxRelease");
    *scope = (struct sw_scope){.device = -1};
}

symwin_status sw_device_resolve(const char *call, int device, int *out)
{
    symwin_status status = sw_driver_load();
    CUresult result;
    int count = 0;

    if (status != SYMWIN_OK)
        return status;
    if (device == SYMWIN_DEVICE_CURRENT) {
        result = sw_drv.cuCtxGetDevice(&device);
        if (result == CUDA_ERROR_INVALID_CONTEXT)
            return sw_fail(SYMWIN_INVALID,
                           "%s: SYMWIN_DEVICE_CURRENT needs a current CUDA context and this thread "
                           "has none; pass a device ordinal",
                           call);
        status = sw_check(result, "%s: cuCtxGetDevice", call);
        if (status == SYMWIN_OK)
            *out = device;
        return status;
    }
    status = sw_check(sw_drv.cuDeviceGetCount(&count), "%s: cuDeviceGetCount", call);
    if (status != SYMWIN_OK)
        return status;
    if (device < 0 || device >= count)
        return sw_fail(SYMWIN_INVALID, "%s: there is no device %d; pass 0 to %d", call, device,
                       count - 1);
    *out = device;
    return SYMWIN_OK;
}
