/* Queries of memory, and its export to and import from other processes. Any thread. */
#include <string.h>

#include "src/memory/memory.h"

static symwin_status fail_freed(const char *call, CUdeviceptr ptr)
{
    return sw_fail(SYMWIN_INVALID,
                   "%s: 0x%llx is in no live allocation of VMM memory: it was freed", call, ptr);
}

symwin_status sw_memory_hold(const char *call, CUdeviceptr ptr, struct sw_allocation *out)
{
    symwin_status status = SYMWIN_OK;

    *out = (struct sw_allocation){0};
    switch (sw_allocation_hold(ptr, out)) {
    case SW_OWNED_FREE:
        return fail_freed(call, ptr);
    case SW_OWNED_NOT:
        status = sw_physical_find(call, ptr, &out->physical);
        out->begin = out->physical.base;
        out->bytes = out->physical.bytes;
        out->room = out->bytes;
        break;
    case SW_OWNED_LIVE:
        break;
    }
    return status;
}

/* Opens the physical memory at an address, unless that is in free memory of a pool. */
static symwin_status open_live(const char *call, CUdeviceptr ptr,
                               CUmemGenericAllocationHandle *handle, struct sw_physical *out,
                               CUmemAllocationProp *prop, struct sw_allocation *ours)
{
    *ours = (struct sw_allocation){0};
    if (sw_allocation_find(ptr, ours) == SW_OWNED_FREE)
        return fail_freed(call, ptr);
    return sw_physical_open(call, ptr, handle, out, prop);
}

symwin_status symwin_mem_query(const void *ptr, symwin_mem_info *info)
{
    static const char call[] = "symwin_mem_query";
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    CUmemGenericAllocationHandle handle = 0;
    struct sw_physical physical;
    struct sw_allocation ours;
    CUmemAllocationProp prop;
    symwin_status status;

    if (ptr == NULL || info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, ptr == NULL ? "ptr" : "info");
    status = sw_driver_load();
    if (status == SYMWIN_OK)
        status = open_live(call, address, &handle, &physical, &prop, &ours);
    if (status != SYMWIN_OK)
        return status;
    sw_drop(sw_drv.cuMemRelease(handle), "cuMemRelease");
    *info = (symwin_mem_info){
        .base = (void *)(uintptr_t)physical.base,
        .bytes = physical.bytes,
        .device = physical.device,
        .handle_types = (unsigned)prop.requestedHandleTypes &
                        (SYMWIN_HANDLE_POSIX_FD | SYMWIN_HANDLE_FABRIC),
        .buffer_id = physical.buffer_id,
    };
    if (!ours.owned)
        return SYMWIN_OK;
    info->owned = ours.imported ? 2 : 1;
    info->ptr = (void *)(uintptr_t)ours.begin;
    info->size = ours.room;
    info->registrations = ours.holds;
    return SYMWIN_OK;
}

/* ---- export and import ---- */

static symwin_status check_type(const char *call, unsigned type)
{
    if (type == SYMWIN_HANDLE_POSIX_FD || type == SYMWIN_HANDLE_FABRIC)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: %u is not a handle type; pass SYMWIN_HANDLE_POSIX_FD or "
                   "SYMWIN_HANDLE_FABRIC",
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
    /* Type and handle are valid, so the driver refuses it because the memory was imported. */
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the driver does not export imported memory; export it where it was "
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
    struct sw_allocation ours;
    CUmemAllocationProp prop;
    symwin_status status;

    if (ptr == NULL || handle == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, ptr == NULL ? "ptr" : "handle");
    status = check_type(call, type);
    if (status == SYMWIN_OK)
        status = sw_driver_load();
    if (status == SYMWIN_OK)
        status = open_live(call, address, &memory, &physical, &prop, &ours);
    if (status != SYMWIN_OK)
        return status;
    out.bytes = physical.bytes;
    out.offset = (size_t)(address - physical.base);
    status = export_handle(call, memory, type, &out);
    sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    if (status == SYMWIN_OK)
        *handle = out;
    return status;
}

static symwin_status import_handle(const char *call, const symwin_mem_handle *handle,
                                   struct sw_memory *m)
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
        m->stage = SW_MEMORY_CREATED;
    /* The driver returns UNKNOWN for a descriptor that it did not create. */
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE ||
        (result == CUDA_ERROR_UNKNOWN && handle->type == SYMWIN_HANDLE_POSIX_FD))
        return sw_fail(SYMWIN_INVALID,
                       "%s: the handle (type %u, fd %d) names no exported allocation; pass what "
                       "symwin_mem_export filled, while the memory lives",
                       call, handle->type, handle->fd);
    return sw_check(result, "%s: cuMemImportFromShareableHandle", call);
}

symwin_status sw_memory_check_sent(CUmemGenericAllocationHandle sent, int rank)
{
    CUmemAllocationProp prop;
    const CUresult result = sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, sent);

    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(SYMWIN_MISMATCH,
                       "rank %d sent an object that is no memory; run one version of symwin on all "
                       "ranks",
                       rank);
    return sw_check(result, "cuMemGetAllocationPropertiesFromHandle of rank %d's memory", rank);
}

symwin_status symwin_mem_import(int device, const symwin_mem_handle *handle, void **ptr)
{
    static const char call[] = "symwin_mem_import";
    struct sw_memory m = {.stage = SW_MEMORY_NONE, .imported = 1};
    CUmemAllocationProp prop;
    size_t granularity = 0;
    symwin_status status;
    int accessor;

    if (handle == NULL || ptr == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, ptr == NULL ? "ptr" : "handle");
    status = check_type(call, handle->type);
    if (status == SYMWIN_OK && handle->offset >= handle->bytes)
        status = sw_fail(SYMWIN_INVALID,
                         "%s: the handle's offset %zu is not below its size, %zu bytes", call,
                         handle->offset, handle->bytes);
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
        m.device = prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop.location.id : -1;
        status = sw_memory_show(call, &m, granularity, accessor, 0);
    }
    if (status == SYMWIN_OK)
        status = sw_pool_import(call, &m, handle->offset);
    if (status != SYMWIN_OK) {
        sw_memory_release(&m);
        return status;
    }
    *ptr = (void *)(uintptr_t)(m.base + handle->offset);
    return SYMWIN_OK;
}
