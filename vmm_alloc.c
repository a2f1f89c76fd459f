/* Physical memory of one rank: allocate, free, describe, export, import.
 *
 * Each allocation is one cuMemCreate behind one address range of its own:
 *
 *   create (POSIX fd, and fabric where permitted) -> reserve -> map -> access -> listed
 *
 * with one way back, memory_release(), from any step. What symwin handed out is listed by address,
 * so that a wrong free is refused and memory under a window cannot go. Any thread.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum stage { EMPTY, CREATED, RESERVED, MAPPED };
enum owner { FOREIGN, ALLOCATED, IMPORTED };

struct memory {
    enum stage stage;
    enum owner owner;
    CUmemGenericAllocationHandle handle; /* owned from CREATED on */
    CUdeviceptr base;                    /* owned from RESERVED on, `bytes` long */
    size_t bytes;
    int device;
    int holds; /* windows on it */
};

/* What this process allocated or imported, sorted by base. */
static struct {
    pthread_mutex_t mutex;
    struct memory *list;
    size_t count, room;
} owned = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* A device whose driver refused fabric handles once is not asked again: a bit per device below 64. */
static _Atomic uint64_t fabric_refused;

static void memory_release(struct memory *m)
{
    switch (m->stage) {
    case MAPPED:
        sw_drop(sw_drv.cuMemUnmap(m->base, m->bytes), "cuMemUnmap");
        /* fallthrough */
    case RESERVED:
        sw_drop(sw_drv.cuMemAddressFree(m->base, m->bytes), "cuMemAddressFree");
        /* fallthrough */
    case CREATED:
        sw_drop(sw_drv.cuMemRelease(m->handle), "cuMemRelease");
        /* fallthrough */
    case EMPTY:
        break;
    }
    m->stage = EMPTY;
}

/* Index of the first listed memory with base >= `base`. Under the mutex. */
static size_t owned_position(CUdeviceptr base)
{
    size_t low = 0;
    size_t high = owned.count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (owned.list[middle].base < base)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The listed memory that begins at `base`, NULL if none does. Under the mutex. */
static struct memory *owned_at(CUdeviceptr base)
{
    const size_t i = owned_position(base);

    return i < owned.count && owned.list[i].base == base ? &owned.list[i] : NULL;
}

static symwin_status owned_insert(const char *call, const struct memory *m)
{
    symwin_status status = SYMWIN_OK;
    size_t i;

    pthread_mutex_lock(&owned.mutex);
    if (owned.count == owned.room) {
        const size_t room = owned.room == 0 ? 64 : owned.room * 2;
        struct memory *list = realloc(owned.list, room * sizeof *list);

        if (list == NULL) {
            status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to list the allocation", call);
        } else {
            owned.list = list;
            owned.room = room;
        }
    }
    if (status == SYMWIN_OK) {
        i = owned_position(m->base);
        memmove(&owned.list[i + 1], &owned.list[i], (owned.count - i) * sizeof *m);
        owned.list[i] = *m;
        owned.count++;
    }
    pthread_mutex_unlock(&owned.mutex);
    return status;
}

static void owned_remove(const struct memory *m)
{
    const size_t i = (size_t)(m - owned.list);

    owned.count--;
    memmove(&owned.list[i], &owned.list[i + 1], (owned.count - i) * sizeof *m);
    if (owned.count == 0) {
        free(owned.list);
        owned.list = NULL;
        owned.room = 0;
    }
}

int sw_memory_hold(CUdeviceptr base)
{
    struct memory *m;

    pthread_mutex_lock(&owned.mutex);
    m = owned_at(base);
    if (m != NULL)
        m->holds++;
    pthread_mutex_unlock(&owned.mutex);
    return m != NULL;
}

void sw_memory_drop(CUdeviceptr base)
{
    struct memory *m;

    pthread_mutex_lock(&owned.mutex);
    m = owned_at(base);
    if (m != NULL)
        m->holds--;
    pthread_mutex_unlock(&owned.mutex);
}

symwin_status sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count)
{
    CUmemAccessDesc *access = calloc((size_t)count, sizeof *access);
    symwin_status status;
    int i;

    if (access == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d access descriptors", count);
    for (i = 0; i < count; i++) {
        access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[i].location.id = devices[i];
        access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    status = sw_check(sw_drv.cuMemSetAccess(ptr, bytes, access, (size_t)count),
                      "cuMemSetAccess: %zu bytes for %d devices", bytes, count);
    free(access);
    return status;
}

/* Gives `device`, and with SYMWIN_MEM_PEERS every peer of it, access to the memory. */
static symwin_status memory_access(const struct memory *m, int device, unsigned flags)
{
    symwin_status status;
    int count = 0;
    int *devices;
    int used = 1;
    int i;

    if ((flags & SYMWIN_MEM_PEERS) == 0)
        return sw_memory_access(m->base, m->bytes, &device, 1);
    status = sw_check(sw_drv.cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (status != SYMWIN_OK)
        return status;
    devices = calloc((size_t)count + 1, sizeof *devices);
    if (devices == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for a list of %d devices", count);
    devices[0] = device;
    for (i = 0; i < count && status == SYMWIN_OK; i++) {
        int can = 0;

        if (i == device)
            continue;
        status = sw_check(sw_drv.cuDeviceCanAccessPeer(&can, i, device),
                          "cuDeviceCanAccessPeer: device %d to %d", i, device);
        if (can)
            devices[used++] = i;
    }
    if (status == SYMWIN_OK)
        status = sw_memory_access(m->base, m->bytes, devices, used);
    free(devices);
    return status;
}

/* An import's size is what its handle says, which may be anything. */
static symwin_status check_show(CUresult result, const char *call, const char *step,
                                const struct memory *m)
{
    if (m->owner == IMPORTED &&
        (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED))
        return sw_fail(SYMWIN_INVALID,
                       "%s: the handle says %zu bytes, which its allocation has not; pass what "
                       "symwin_mem_export filled",
                       call, m->bytes);
    return sw_check(result, "%s: %s of %zu bytes", call, step, m->bytes);
}

/* From CREATED to listed: an address range, the mapping, access. */
static symwin_status memory_show(const char *call, struct memory *m, size_t granularity, int device,
                                 unsigned flags)
{
    symwin_status status;

    status = check_show(sw_drv.cuMemAddressReserve(&m->base, m->bytes, granularity, 0, 0), call,
                        "cuMemAddressReserve", m);
    if (status != SYMWIN_OK)
        return status;
    m->stage = RESERVED;
    status = check_show(sw_drv.cuMemMap(m->base, m->bytes, 0, m->handle, 0), call, "cuMemMap", m);
    if (status != SYMWIN_OK)
        return status;
    m->stage = MAPPED;
    status = memory_access(m, device, flags);
    return status == SYMWIN_OK ? owned_insert(call, m) : status;
}

static symwin_status attribute(int device, CUdevice_attribute which, const char *name, int *value)
{
    *value = 0;
    return sw_check(sw_drv.cuDeviceGetAttribute(value, which, device),
                    "cuDeviceGetAttribute: %s of device %d", name, device);
}

/* The properties that ncclMemAlloc asks for, fabric handles included where the device claims them. */
static symwin_status allocation_properties(const char *call, int device, CUmemAllocationProp *prop)
{
    symwin_status status;
    int managed, fabric, rdma;

    *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = device;
    status = attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                       "virtual memory management", &managed);
    if (status == SYMWIN_OK && !managed)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: device %d has no virtual memory management; use a GPU of compute "
                       "capability 7.0 or later",
                       call, device);
    if (status == SYMWIN_OK)
        status = attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                           "GPUDirect RDMA", &rdma);
    if (status == SYMWIN_OK)
        status = attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
                           "fabric handles", &fabric);
    if (status != SYMWIN_OK)
        return status;
    if (device < 64 && (atomic_load(&fabric_refused) >> device & 1) != 0)
        fabric = 0;
    prop->allocFlags.gpuDirectRDMACapable = rdma != 0;
    prop->requestedHandleTypes =
        (CUmemAllocationHandleType)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                    (fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0));
    return SYMWIN_OK;
}

static symwin_status memory_create(const char *call, struct memory *m, CUmemAllocationProp *prop)
{
    CUresult result = sw_drv.cuMemCreate(&m->handle, m->bytes, prop, 0);

    /* The attribute says that the GPU could; whether the system lets it shows only here. */
    if ((result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED) &&
        (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
        if (m->device < 64)
            atomic_fetch_or(&fabric_refused, (uint64_t)1 << m->device);
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        result = sw_drv.cuMemCreate(&m->handle, m->bytes, prop, 0);
    }
    if (result == CUDA_SUCCESS)
        m->stage = CREATED;
    return sw_check(result, "%s: cuMemCreate of %zu bytes on device %d", call, m->bytes, m->device);
}

symwin_status symwin_mem_alloc(int device, size_t bytes, unsigned flags, void **ptr)
{
    static const char call[] = "symwin_mem_alloc";
    struct memory m = {.stage = EMPTY, .owner = ALLOCATED};
    CUmemAllocationProp prop;
    size_t granularity = 0;
    symwin_status status;

    if (ptr == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: ptr is NULL; pass where to put the address", call);
    if (bytes == 0)
        return sw_fail(SYMWIN_INVALID, "%s: bytes is 0; ask for at least one byte", call);
    if ((flags & ~(unsigned)SYMWIN_MEM_PEERS) != 0)
        return sw_fail(SYMWIN_INVALID, "%s: unknown flags 0x%x; pass 0 or SYMWIN_MEM_PEERS", call,
                       flags);
    status = sw_device_resolve(call, device, &m.device);
    if (status == SYMWIN_OK)
        status = allocation_properties(call, m.device, &prop);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemGetAllocationGranularity(
                              &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                          "%s: cuMemGetAllocationGranularity of device %d", call, m.device);
    if (status != SYMWIN_OK)
        return status;
    if (bytes > SIZE_MAX / 4)
        return sw_fail(SYMWIN_INVALID, "%s: %zu bytes are more than any address space holds", call,
                       bytes);
    m.bytes = (bytes + granularity - 1) / granularity * granularity;
    status = memory_create(call, &m, &prop);
    if (status == SYMWIN_OK)
        status = memory_show(call, &m, granularity, m.device, flags);
    if (status != SYMWIN_OK) {
        memory_release(&m);
        return status;
    }
    *ptr = (void *)(uintptr_t)m.base;
    return SYMWIN_OK;
}

symwin_status symwin_mem_free(void *ptr)
{
    static const char call[] = "symwin_mem_free";
    symwin_status status = sw_fork_check(call);
    struct memory gone = {.stage = EMPTY};
    struct memory *m;

    if (ptr == NULL || status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&owned.mutex);
    m = owned_at((CUdeviceptr)(uintptr_t)ptr);
    if (m == NULL) {
        status = sw_fail(SYMWIN_INVALID,
                         "%s: %p is not an address that symwin_mem_alloc or symwin_mem_import "
                         "returned, or it was freed before",
                         call, ptr);
    } else if (m->holds > 0) {
        status = sw_fail(SYMWIN_BUSY, "%s: %p is registered as a window %d times; deregister first",
                         call, ptr, m->holds);
    } else {
        gone = *m;
        owned_remove(m);
    }
    pthread_mutex_unlock(&owned.mutex);
    memory_release(&gone); /* outside the mutex: cuMemUnmap waits for the device */
    return status;
}

/* ---- what an address is ---- */

/* The handle of the allocation mapped at `ptr`, with a reference for the caller. */
static symwin_status retain_handle(const char *call, CUdeviceptr ptr,
                                   CUmemGenericAllocationHandle *handle)
{
    CUresult result;

    result = sw_drv.cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)ptr);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
        return sw_fail(SYMWIN_INVALID,
                       "%s: 0x%llx is not in VMM memory; allocate it with symwin_mem_alloc, "
                       "ncclMemAlloc or another cuMemCreate allocator (cudaMalloc is none)",
                       call, ptr);
    return sw_check(result, "%s: cuMemRetainAllocationHandle of 0x%llx", call, ptr);
}

/* Fills `out` and the properties for an address under which `handle` is mapped. */
static symwin_status describe(const char *call, CUdeviceptr ptr,
                              CUmemGenericAllocationHandle handle, struct sw_physical *out,
                              CUmemAllocationProp *prop)
{
    unsigned long long id = 0;
    symwin_status status;

    *out = (struct sw_physical){.device = -1};
    status = sw_check(sw_drv.cuMemGetAllocationPropertiesFromHandle(prop, handle),
                      "%s: cuMemGetAllocationPropertiesFromHandle", call);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemGetAddressRange(&out->base, &out->bytes, ptr),
                          "%s: cuMemGetAddressRange of 0x%llx", call, ptr);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr),
                          "%s: cuPointerGetAttribute (buffer id) of 0x%llx", call, ptr);
    if (status != SYMWIN_OK)
        return status;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        out->device = prop->location.id;
    out->buffer_id = id;
    return SYMWIN_OK;
}

symwin_status sw_physical_find(const char *call, CUdeviceptr ptr, struct sw_physical *out)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop;
    symwin_status status = retain_handle(call, ptr, &handle);

    if (status != SYMWIN_OK)
        return status;
    status = describe(call, ptr, handle, out, &prop);
    sw_drop(sw_drv.cuMemRelease(handle), "cuMemRelease");
    return status;
}

symwin_status symwin_mem_query(const void *ptr, symwin_mem_info *info)
{
    static const char call[] = "symwin_mem_query";
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    CUmemGenericAllocationHandle handle = 0;
    struct sw_physical physical;
    CUmemAllocationProp prop;
    const struct memory *m;
    symwin_status status;

    if (ptr == NULL || info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, ptr == NULL ? "ptr" : "info");
    status = sw_driver_load();
    if (status == SYMWIN_OK)
        status = retain_handle(call, address, &handle);
    if (status != SYMWIN_OK)
        return status;
    status = describe(call, address, handle, &physical, &prop);
    sw_drop(sw_drv.cuMemRelease(handle), "cuMemRelease");
    if (status != SYMWIN_OK)
        return status;
    *info = (symwin_mem_info){
        .base = (void *)(uintptr_t)physical.base,
        .bytes = physical.bytes,
        .device = physical.device,
        .handle_types = (unsigned)prop.requestedHandleTypes &
                        (SYMWIN_HANDLE_POSIX_FD | SYMWIN_HANDLE_FABRIC),
        .buffer_id = physical.buffer_id,
    };
    pthread_mutex_lock(&owned.mutex);
    m = owned_at(physical.base);
    if (m != NULL) {
        info->owned = m->owner;
        info->registrations = m->holds;
    }
    pthread_mutex_unlock(&owned.mutex);
    return SYMWIN_OK;
}

/* ---- export and import ---- */

static symwin_status check_type(const char *call, unsigned type)
{
    if (type == SYMWIN_HANDLE_POSIX_FD || type == SYMWIN_HANDLE_FABRIC)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: %u is no handle type; pass SYMWIN_HANDLE_POSIX_FD or SYMWIN_HANDLE_FABRIC",
                   call, type);
}

static symwin_status export_handle(const char *call, CUmemGenericAllocationHandle memory,
                                   unsigned type, symwin_mem_handle *out)
{
    CUmemAllocationProp prop;
    symwin_status status;
    CUresult result;

    status = sw_check(sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, memory),
                      "%s: cuMemGetAllocationPropertiesFromHandle", call);
    if (status != SYMWIN_OK)
        return status;
    if (((unsigned)prop.requestedHandleTypes & type) == 0)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the allocation was created for handle types 0x%x, not for 0x%x", call,
                       (unsigned)prop.requestedHandleTypes, type);
    out->type = type;
    result = sw_drv.cuMemExportToShareableHandle(
        type == SYMWIN_HANDLE_POSIX_FD ? (void *)&out->fd : (void *)out->fabric, memory,
        (CUmemAllocationHandleType)type, 0);
    /* The type is right and so is the handle: what the driver does not take is an import. */
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the driver does not export what was imported; export it where it was "
                       "allocated",
                       call);
    return sw_check(result, "%s: cuMemExportToShareableHandle", call);
}

symwin_status symwin_mem_export(const void *ptr, unsigned type, symwin_mem_handle *handle)
{
    static const char call[] = "symwin_mem_export";
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    symwin_mem_handle out = {.fd = -1};
    CUmemGenericAllocationHandle memory = 0;
    struct sw_physical physical;
    CUmemAllocationProp prop;
    symwin_status status;

    if (ptr == NULL || handle == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, ptr == NULL ? "ptr" : "handle");
    status = check_type(call, type);
    if (status == SYMWIN_OK)
        status = sw_driver_load();
    if (status == SYMWIN_OK)
        status = retain_handle(call, address, &memory);
    if (status != SYMWIN_OK)
        return status;
    status = describe(call, address, memory, &physical, &prop);
    out.bytes = physical.bytes;
    if (status == SYMWIN_OK)
        status = export_handle(call, memory, type, &out);
    sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    if (status == SYMWIN_OK)
        *handle = out;
    return status;
}

static symwin_status import_handle(const char *call, const symwin_mem_handle *handle,
                                   struct memory *m)
{
    unsigned char fabric[sizeof handle->fabric];
    void *shareable = fabric;
    CUresult result;

    memcpy(fabric, handle->fabric, sizeof fabric);
    if (handle->type == SYMWIN_HANDLE_POSIX_FD)
        shareable = (void *)(uintptr_t)handle->fd;
    result = sw_drv.cuMemImportFromShareableHandle(&m->handle, shareable,
                                                   (CUmemAllocationHandleType)handle->type);
    if (result == CUDA_SUCCESS)
        m->stage = CREATED;
    /* UNKNOWN is what the driver says of a descriptor that it did not make. */
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
        (result == CUDA_ERROR_UNKNOWN && handle->type == SYMWIN_HANDLE_POSIX_FD))
        return sw_fail(SYMWIN_INVALID,
                       "%s: the handle (type %u, fd %d) names no exported allocation; pass what "
                       "symwin_mem_export filled, while the memory lives",
                       call, handle->type, handle->fd);
    return sw_check(result, "%s: cuMemImportFromShareableHandle", call);
}

symwin_status symwin_mem_import(int device, const symwin_mem_handle *handle, void **ptr)
{
    static const char call[] = "symwin_mem_import";
    struct memory m = {.stage = EMPTY, .owner = IMPORTED};
    CUmemAllocationProp prop;
    size_t granularity = 0;
    symwin_status status;
    int accessor;

    if (handle == NULL || ptr == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, ptr == NULL ? "ptr" : "handle");
    status = check_type(call, handle->type);
    if (status == SYMWIN_OK && handle->bytes == 0)
        status = sw_fail(SYMWIN_INVALID, "%s: the handle says 0 bytes", call);
    if (status == SYMWIN_OK)
        status = sw_device_resolve(call, device, &accessor);
    if (status != SYMWIN_OK)
        return status;
    m.bytes = handle->bytes;
    status = import_handle(call, handle, &m);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, m.handle),
                          "%s: cuMemGetAllocationPropertiesFromHandle", call);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemGetAllocationGranularity(
                              &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                          "%s: cuMemGetAllocationGranularity", call);
    if (status == SYMWIN_OK) {
        m.device = prop.location.id;
        status = memory_show(call, &m, granularity, accessor, 0);
    }
    if (status != SYMWIN_OK) {
        memory_release(&m);
        return status;
    }
    *ptr = (void *)(uintptr_t)m.base;
    return SYMWIN_OK;
}
