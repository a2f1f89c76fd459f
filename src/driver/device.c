/* Driver and device queries, and streams and copies for programs without the CUDA runtime. */
#include <string.h>

#include "src/base/base.h"
#include "src/driver/driver.h"

int sw_driver_has_kernels(void)
{
    return sw_driver_is_emulated() || sw_fatbin_count > 0;
}

symwin_status symwin_driver_query(symwin_driver_info *info)
{
    static const char call[] = "symwin_driver_query";
    symwin_driver_info out = {0};
    symwin_status status;

    if (info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: info is NULL", call);
    status = sw_driver_load();
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDriverGetVersion(&out.version), "%s: cuDriverGetVersion", call);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDeviceGetCount(&out.device_count), "%s: cuDeviceGetCount", call);
    if (status != SYMWIN_OK)
        return status;
    out.name = sw_driver_is_emulated() ? "emu" : "cuda";
    out.has_kernels = sw_driver_has_kernels();
    *info = out;
    return SYMWIN_OK;
}

symwin_status symwin_driver_find(const char *name, void **function)
{
    static const char call[] = "symwin_driver_find";
    static const char *const names[] = {
#define NAME(name, symbol, version, need, params) #name,
        SW_DRIVER_LIST(NAME)
#undef NAME
    };
    enum { COUNT = sizeof names / sizeof names[0] };
    symwin_status status;
    void *found = NULL;
    size_t i = 0;

    if (name == NULL || function == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, name == NULL ? "name" : "function");
    status = sw_driver_load();
    if (status != SYMWIN_OK)
        return status;
    while (i < COUNT && strcmp(names[i], name) != 0)
        i++;
    if (i == COUNT)
        return sw_fail(SYMWIN_INVALID,
                       "%s: symwin does not use %s of the driver; load it from libcuda.so.1", call,
                       name);
    memcpy(&found, (const char *)&sw_drv + i * sizeof found, sizeof found);
    if (found == NULL)
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: this driver has no %s", call, name);
    *function = found;
    return SYMWIN_OK;
}

symwin_status symwin_device_query(int device, symwin_device_info *info)
{
    static const char call[] = "symwin_device_query";
    symwin_device_info out;
    int major = 0;
    int minor = 0;
    const struct {
        CUdevice_attribute which;
        int *value;
    } attributes[] = {
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &out.multiprocessors},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &out.posix_fd},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, &out.fabric},
        {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &out.multicast},
    };
    symwin_status status;
    size_t i;

    memset(&out, 0, sizeof out);
    if (info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: info is NULL", call);
    status = sw_device_resolve(call, device, &device);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDeviceGetName(out.name, sizeof out.name, device),
                          "%s: cuDeviceGetName of device %d", call, device);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDeviceTotalMem(&out.total_bytes, device),
                          "%s: cuDeviceTotalMem of device %d", call, device);
    for (i = 0; i < sizeof attributes / sizeof attributes[0] && status == SYMWIN_OK; i++)
        status = sw_check(
            sw_drv.cuDeviceGetAttribute(attributes[i].value, attributes[i].which, device),
            "%s: cuDeviceGetAttribute %d of device %d", call, (int)attributes[i].which, device);
    if (status != SYMWIN_OK)
        return status;
    out.capability = major * 10 + minor;
    *info = out;
    return SYMWIN_OK;
}

/* ---- streams and copies ---- */

/* The stream keeps the device's context alive: it holds the reference taken here. */
symwin_status symwin_stream_create(int device, struct CUstream_st **stream)
{
    static const char call[] = "symwin_stream_create";
    struct sw_scope scope;
    CUstream out = NULL;
    symwin_status status;

    if (stream == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: stream is NULL", call);
    status = sw_device_resolve(call, device, &device);
    if (status == SYMWIN_OK)
        status = sw_scope_enter(device, &scope);
    if (status != SYMWIN_OK)
        return status;
    status = sw_check(sw_drv.cuStreamCreate(&out, CU_STREAM_NON_BLOCKING),
                      "%s: cuStreamCreate on device %d", call, device);
    if (status == SYMWIN_OK) {
        scope.device = -1; /* keep the reference */
        *stream = out;
    }
    sw_scope_leave(&scope);
    return status;
}

symwin_status symwin_stream_destroy(int device, struct CUstream_st *stream)
{
    static const char call[] = "symwin_stream_destroy";
    struct sw_scope scope;
    symwin_status status;

    if (stream == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: stream is NULL; the default stream cannot be destroyed",
                       call);
    status = sw_device_resolve(call, device, &device);
    if (status == SYMWIN_OK)
        status = sw_scope_enter(device, &scope);
    if (status != SYMWIN_OK)
        return status;
    status = sw_check_stream(sw_drv.cuStreamDestroy(stream), call, "cuStreamDestroy");
    sw_scope_leave(&scope);
    if (status == SYMWIN_OK)
        sw_drop(sw_drv.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    return status;
}

symwin_status symwin_stream_synchronize(int device, struct CUstream_st *stream)
{
    static const char call[] = "symwin_stream_synchronize";
    struct sw_scope scope;
    symwin_status status = sw_device_resolve(call, device, &device);

    if (status == SYMWIN_OK)
        status = sw_scope_enter(device, &scope);
    if (status != SYMWIN_OK)
        return status;
    status = sw_check_stream(sw_drv.cuStreamSynchronize(stream), call, "cuStreamSynchronize");
    sw_scope_leave(&scope);
    return status;
}

/* Whether the driver does not know the address: pageable host memory. */
static int is_pageable(const void *ptr)
{
    CUmemorytype kind = 0;

    return sw_drv.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        (CUdeviceptr)(uintptr_t)ptr) != CUDA_SUCCESS;
}

/* What the thread has asked the driver about lately. */
enum { HOST = -1, ANSWERS = 16 };
static _Thread_local struct {
    struct {
        CUdeviceptr address;
        size_t bytes;
        int device;
        unsigned long long buffer; /* the driver's number of the memory; of the host's 0 */
    } known[ANSWERS];
    unsigned next;
} asked;

static int is_known(int device, CUdeviceptr address, size_t bytes, unsigned long long buffer)
{
    unsigned i = 0;

    while (i < ANSWERS && (asked.known[i].address != address || asked.known[i].bytes != bytes ||
                           asked.known[i].device != device || asked.known[i].buffer != buffer))
        i++;
    return i < ANSWERS;
}

static void now_known(int device, CUdeviceptr address, size_t bytes, unsigned long long buffer)
{
    const unsigned i = asked.next++ % ANSWERS;

    asked.known[i].address = address;
    asked.known[i].bytes = bytes;
    asked.known[i].device = device;
    asked.known[i].buffer = buffer;
}

unsigned long long sw_buffer_at(CUdeviceptr address)
{
    unsigned long long id = 0;

    return sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) ==
                   CUDA_SUCCESS
               ? id
               : 0;
}

int sw_is_known(int device, CUdeviceptr address, size_t bytes, struct sw_there *there)
{
    const int lies_there = address >= there->begin && address + bytes <= there->end;

    if (there->number != 0 && is_known(device, address, bytes, there->number))
        return 1;
    if (lies_there)
        sw_now_known(device, address, bytes, there);
    else
        *there = (struct sw_there){.number = sw_buffer_at(address)};
    return lies_there || (there->number != 0 && is_known(device, address, bytes, there->number));
}

void sw_now_known(int device, CUdeviceptr address, size_t bytes, const struct sw_there *there)
{
    if (there->number != 0)
        now_known(device, address, bytes, there->number);
}

static int ask_whether_on_device(CUdeviceptr address)
{
    CUmemorytype kind = CU_MEMORYTYPE_HOST;
    unsigned managed = 0;

    return sw_drv.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           kind == CU_MEMORYTYPE_DEVICE &&
           (sw_drv.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) !=
                CUDA_SUCCESS ||
            !managed);
}

int sw_is_on_device(const void *ptr)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr,
                      page = address & ~(CUdeviceptr)(SW_PAGE - 1);

    if (is_known(HOST, page, SW_PAGE, 0))
        return 0;
    if (ask_whether_on_device(address))
        return 1;
    now_known(HOST, page, SW_PAGE, 0);
    return 0;
}

symwin_status symwin_memcpy(int device, void *dst, const void *src, size_t bytes,
                            struct CUstream_st *stream)
{
    static const char call[] = "symwin_memcpy";
    struct sw_scope scope;
    symwin_status status;

    if (bytes == 0)
        return SYMWIN_OK;
    if (dst == NULL || src == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, dst == NULL ? "dst" : "src");
    status = sw_device_resolve(call, device, &device);
    if (status == SYMWIN_OK)
        status = sw_scope_enter(device, &scope);
    if (status != SYMWIN_OK)
        return status;
    /* With pageable memory, the driver waits for the stream inside the copy and holds a lock that
     * other threads need even for a launch on the device. If the stream runs a collective, its peer
     * on the same device could never start: a deadlock. So wait first, while no lock is held. */
    if (is_pageable(dst) || is_pageable(src))
        status = sw_check(sw_drv.cuStreamSynchronize(stream), "%s: cuStreamSynchronize", call);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)dst,
                                               (CUdeviceptr)(uintptr_t)src, bytes, stream),
                          "%s: cuMemcpyAsync of %zu bytes from %p to %p", call, bytes, src, dst);
    sw_scope_leave(&scope);
    return status;
}
