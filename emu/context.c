/* Devices and their attributes, primary contexts, error texts. */
#include <stdio.h>
#include <string.h>

#include "exec.h"
#include "memory.h"

struct CUctx_st emu_contexts[EMU_MAX_DEVICES];

__attribute__((constructor)) static void contexts_init(void)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        emu_contexts[i].device = i;
}

/* ---- devices --------------------------------------------------------------------------------- */

CUresult sw_emu_cuDeviceGetCount(int *count)
{
    CUresult result = emu_enter_unless(EMU_cuDeviceGetCount, count == NULL);

    if (result == CUDA_SUCCESS)
        *count = emu_machine.devices;
    return result;
}

/* First statement of every call on a device; `out` must not be NULL. */
static CUresult enter_device(enum emu_entry entry, const void *out, CUdevice device)
{
    const CUresult result = emu_enter_unless(entry, out == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    return emu_device_exists(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sw_emu_cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = enter_device(EMU_cuDeviceGet, device, ordinal);

    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

CUresult sw_emu_cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult result = enter_device(EMU_cuDeviceGetName, name, dev);

    if (result != CUDA_SUCCESS)
        return result;
    if (len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "symwin emulated GPU");
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult result = enter_device(EMU_cuDeviceGetUuid, uuid, dev);

    if (result != CUDA_SUCCESS)
        return result;
    memset(uuid, 0, sizeof *uuid);
    snprintf(uuid->bytes, sizeof uuid->bytes, "symwin-emu-%u",
             (unsigned)(unsigned char)dev); /* at most 128 devices */
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    CUresult result = enter_device(EMU_cuDeviceTotalMem, bytes, dev);

    if (result == CUDA_SUCCESS)
        *bytes = emu_machine.mem_bytes;
    return result;
}

int emu_capability(CUdevice dev)
{
    return dev >= emu_machine.devices - emu_machine.old ? 80 : 90;
}

/* -1: the attribute is not known. */
static int attribute_value(CUdevice_attribute attribute, CUdevice dev)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return EMU_BLOCK_THREADS;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        return INT32_MAX;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return EMU_BLOCK_SHARED;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: /* kHz */
        return 1000000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return EMU_MULTIPROCESSORS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return EMU_MULTIPROCESSOR_THREADS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return emu_capability(dev) / 10;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return dev + 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: /* no entry point here */
        return 0;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        return emu_machine.fabric != 0;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        return emu_machine.multicast && emu_capability(dev) >= 90;
    }
    return -1;
}

CUresult sw_emu_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
    CUresult result = enter_device(EMU_cuDeviceGetAttribute, value, dev);
    int found;

    if (result != CUDA_SUCCESS)
        return result;
    found = attribute_value(attribute, dev);
    if (found < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *value = found;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
    CUresult result = enter_device(EMU_cuDeviceCanAccessPeer, can, dev);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = dev != peer && !emu_machine.strangers;
    return CUDA_SUCCESS;
}

/* All links are alike. A pair of the same device is refused, as by real drivers. */
CUresult sw_emu_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice dev,
                                        CUdevice peer)
{
    CUresult result = enter_device(EMU_cuDeviceGetP2PAttribute, value, dev);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(peer) || dev == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = !emu_machine.strangers;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* The thread's context stack; the last one is current. */
static _Thread_local struct {
    struct CUctx_st *pushed[64];
    unsigned depth;
} stack;

static struct CUctx_st *top(void)
{
    return stack.depth > 0 ? stack.pushed[stack.depth - 1] : NULL;
}

/* A context without references cannot be used. */
struct CUctx_st *emu_current(void)
{
    struct CUctx_st *ctx = top();

    return ctx != NULL && atomic_load(&ctx->refs) > 0 ? ctx : NULL;
}

void sw_emu_clear_sticky(void)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        atomic_store(&emu_contexts[i].sticky, CUDA_SUCCESS);
}

int emu_is_context(const struct CUctx_st *ctx)
{
    for (int i = 0; i < emu_machine.devices; i++)
        if (ctx == &emu_contexts[i])
            return atomic_load(&ctx->refs) > 0;
    return 0;
}

CUresult sw_emu_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    CUresult result = enter_device(EMU_cuDevicePrimaryCtxRetain, ctx, dev);

    if (result != CUDA_SUCCESS)
        return result;
    atomic_fetch_add(&emu_contexts[dev].refs, 1);
    emu_live_add(EMU_LIVE_CONTEXT, 1);
    *ctx = &emu_contexts[dev];
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CUresult result = emu_enter(EMU_cuDevicePrimaryCtxRelease);
    int refs;

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    refs = atomic_load(&emu_contexts[dev].refs);
    do {
        if (refs == 0)
            return CUDA_ERROR_INVALID_CONTEXT;
    } while (!atomic_compare_exchange_weak(&emu_contexts[dev].refs, &refs, refs - 1));
    emu_live_add(EMU_LIVE_CONTEXT, -1);
    if (refs == 1) {
        pthread_mutex_lock(&emu_memory_mutex);
        emu_blocks_lose(&emu_contexts[dev]);
        pthread_mutex_unlock(&emu_memory_mutex);
    }
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuCtxGetCurrent(CUcontext *ctx)
{
    CUresult result = emu_enter_unless(EMU_cuCtxGetCurrent, ctx == NULL);

    if (result == CUDA_SUCCESS)
        *ctx = top();
    return result;
}

CUresult sw_emu_cuCtxSetCurrent(CUcontext ctx)
{
    CUresult result = emu_enter(EMU_cuCtxSetCurrent);

    if (result != CUDA_SUCCESS)
        return result;
    if (ctx == NULL) {
        if (stack.depth > 0)
            stack.depth--;
        return CUDA_SUCCESS;
    }
    if (!emu_is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.depth == 0)
        stack.depth = 1;
    stack.pushed[stack.depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuCtxPushCurrent(CUcontext ctx)
{
    CUresult result = emu_enter_unless(EMU_cuCtxPushCurrent, ctx == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.depth == sizeof stack.pushed / sizeof stack.pushed[0])
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack.pushed[stack.depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuCtxPopCurrent(CUcontext *ctx)
{
    CUresult result = emu_enter(EMU_cuCtxPopCurrent);

    if (result != CUDA_SUCCESS)
        return result;
    if (stack.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack.depth--;
    if (ctx != NULL)
        *ctx = stack.pushed[stack.depth];
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuCtxGetDevice(CUdevice *dev)
{
    CUresult result = emu_enter_unless(EMU_cuCtxGetDevice, dev == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    if (emu_current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *dev = emu_current()->device;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuCtxSynchronize(void)
{
    struct CUctx_st *ctx;
    CUresult result = emu_begin(EMU_cuCtxSynchronize, &ctx, 0);

    if (result == CUDA_SUCCESS)
        result = emu_capture_forbids();
    return result == CUDA_SUCCESS ? emu_device_drain(ctx->device) : result;
}

/* ---- error texts ----------------------------------------------------------------------------- */

#define ERROR_LIST(X)                                                                              \
    X(CUDA_SUCCESS, "no error")                                                                    \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                   \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                          \
    X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                            \
    X(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")                                    \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                  \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                  \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                        \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")    \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between two devices")      \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "Unsupported exec affinity")                           \
    X(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")         \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
    X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")          \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                              \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                    \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                      \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")               \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                        \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                     \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")                                         \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                      \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")            \
    X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")                                         \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                         \
    X(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")                                   \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver "    \
                                         "combination")                                            \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")   \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during "    \
                                             "capture")                                            \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture "    \
                                       "sequences")                                                \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                    \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another "     \
                                           "stream")                                               \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a "    \
                                          "capturing blocking stream")                             \
    X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a "         \
                                 "capturing stream")                                               \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture "       \
                                              "sequence from another thread")                      \
    X(CUDA_ERROR_TIMEOUT, "wait operation timed out")                                              \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

#define ERROR_ROW(code, text) {code, #code, text},
static const struct error {
    CUresult code;
    const char *name, *text;
} errors[] = {ERROR_LIST(ERROR_ROW)};
#undef ERROR_ROW

static const struct error *error_find(CUresult code)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == code)
            return &errors[i];
    return NULL;
}

static CUresult error_text(enum emu_entry entry, CUresult error, const char **out, int is_name)
{
    const CUresult result = emu_enter_unless(entry, out == NULL);
    const struct error *e = error_find(error);

    if (result != CUDA_SUCCESS)
        return result;
    *out = e == NULL ? NULL : is_name ? e->name : e->text;
    return e != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sw_emu_cuGetErrorName(CUresult error, const char **name)
{
    return error_text(EMU_cuGetErrorName, error, name, 1);
}

CUresult sw_emu_cuGetErrorString(CUresult error, const char **text)
{
    return error_text(EMU_cuGetErrorString, error, text, 0);
}
