/* Physical memory: one cuMemCreate, or one import, mapped in an address range of its own.
 *
 *   create (POSIX fd, and fabric where permitted) -> reserve -> map -> access
 *
 * sw_memory_drop() is the way back from every step. Where memory is mapped it may wait for kernels,
 * so sw_memory_release() leaves it to the reaper. This file also tells what an address of VMM
 * memory is, whoever allocated it. Any thread.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "src/memory/memory.h"

/* A bit per device below 64: the driver has refused fabric handles once, and is not asked again. */
static _Atomic uint64_t fabric_refused;

void sw_memory_unmap(struct sw_memory *m)
{
    if (m->stage != SW_MEMORY_MAPPED)
        return;
    sw_drop(sw_drv.cuMemUnmap(m->base, m->bytes), "cuMemUnmap");
    m->stage = SW_MEMORY_RESERVED;
}

void sw_memory_drop(struct sw_memory *m)
{
    sw_memory_unmap(m);
    switch (m->stage) {
    case SW_MEMORY_MAPPED:
    case SW_MEMORY_RESERVED:
        sw_drop(sw_drv.cuMemAddressFree(m->base, m->range_bytes), "cuMemAddressFree");
        /* fallthrough */
    case SW_MEMORY_CREATED:
        sw_drop(sw_drv.cuMemRelease(m->handle), "cuMemRelease");
        /* fallthrough */
    case SW_MEMORY_NONE:
        break;
    }
    m->stage = SW_MEMORY_NONE;
}

struct released {
    struct sw_remains remains; /* first */
    struct sw_memory memory;
};

static void drop_released(struct sw_remains *remains)
{
    struct released *released = (struct released *)(void *)remains;

    sw_memory_drop(&released->memory);
    free(released);
}

void sw_memory_release(struct sw_memory *m)
{
    struct released *released = m->stage == SW_MEMORY_MAPPED ? malloc(sizeof *released) : NULL;

    if (released == NULL) { /* nothing waits, or there is no host memory */
        sw_memory_drop(m);
        return;
    }
    released->memory = *m;
    m->stage = SW_MEMORY_NONE;
    sw_reaper_take(&released->remains, drop_released);
}

symwin_status sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count,
                               CUresult *answer)
{
    CUmemAccessDesc *access = calloc((size_t)count, sizeof *access);
    CUresult result;
    int i;

    if (access == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d access descriptors", count);
    for (i = 0; i < count; i++) {
        access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[i].location.id = devices[i];
        access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    result = sw_drv.cuMemSetAccess(ptr, bytes, access, (size_t)count);
    free(access);
    if (answer != NULL)
        *answer = result;
    return sw_check(result, "cuMemSetAccess: %zu bytes for %d devices", bytes, count);
}

/* Gives access to `device` and, with SYMWIN_MEM_PEERS, to all its peers. */
static symwin_status memory_access(const struct sw_memory *m, int device, unsigned flags)
{
    symwin_status status;
    int count = 0;
    int *devices;
    int used = 1;
    int i;

    if ((flags & SYMWIN_MEM_PEERS) == 0)
        return sw_memory_access(m->base, m->bytes, &device, 1, NULL);
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
        status = sw_memory_access(m->base, m->bytes, devices, used, NULL);
    free(devices);
    return status;
}

/* The size of an import comes from its handle, and may be anything. */
static symwin_status check_show(CUresult result, const char *call, const char *step,
                                const struct sw_memory *m)
{
    if (m->imported && (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED))
        return sw_fail(SYMWIN_INVALID,
                       "%s: the handle says %zu bytes, but its allocation has another size; pass "
                       "what symwin_mem_export filled",
                       call, m->bytes);
    return sw_check(result, "%s: %s of %zu bytes", call, step, m->bytes);
}

static symwin_status ask(const char *call, CUdeviceptr ptr, CUpointer_attribute attribute,
                         const char *name, void *answer)
{
    return sw_check(sw_drv.cuPointerGetAttribute(answer, attribute, ptr),
                    "%s: cuPointerGetAttribute (%s) of 0x%llx", call, name, ptr);
}

symwin_status sw_memory_show(const char *call, struct sw_memory *m, size_t granularity, int device,
                             unsigned flags)
{
    const size_t slot = granularity > SW_MEMORY_SLOT ? granularity : SW_MEMORY_SLOT;
    symwin_status status;

    /* An import can have any size; the driver refuses one that no address space holds. */
    m->range_bytes = m->bytes > SIZE_MAX - slot ? m->bytes : (m->bytes + slot - 1) / slot * slot;
    status = check_show(sw_drv.cuMemAddressReserve(&m->base, m->range_bytes, slot, 0, 0), call,
                        "cuMemAddressReserve", m);
    if (status != SYMWIN_OK)
        return status;
    m->stage = SW_MEMORY_RESERVED;
    status = check_show(sw_drv.cuMemMap(m->base, m->bytes, 0, m->handle, 0), call, "cuMemMap", m);
    if (status != SYMWIN_OK)
        return status;
    m->stage = SW_MEMORY_MAPPED;
    status = memory_access(m, device, flags);
    if (status == SYMWIN_OK)
        status = ask(call, m->base, CU_POINTER_ATTRIBUTE_BUFFER_ID, "buffer id", &m->buffer_id);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_fail_in(status, call, "");
}

static symwin_status attribute(int device, CUdevice_attribute which, const char *name, int *value)
{
    *value = 0;
    return sw_check(sw_drv.cuDeviceGetAttribute(value, which, device),
                    "cuDeviceGetAttribute: %s of device %d", name, device);
}

/* The same properties as ncclMemAlloc: with fabric handles if the device claims them. */
static symwin_status properties(const char *call, int device, CUmemAllocationProp *prop)
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

symwin_status sw_memory_kind_find(const char *call, int device, struct sw_memory_kind *kind)
{
    symwin_status status = properties(call, device, &kind->prop);

    if (status == SYMWIN_OK)
        status = sw_check(
            sw_drv.cuMemGetAllocationGranularity(&kind->granularity, &kind->prop,
                                                 CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
            "%s: cuMemGetAllocationGranularity of device %d", call, device);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_fail_in(status, call, "");
}

/* If there is too little memory, what is to be unmapped comes back first. */
static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop)
{
    const int waits = sw_reaper_count() > 0;
    CUresult result = sw_drv.cuMemCreate(handle, bytes, prop, 0);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && waits) {
        (void)sw_reaper_wait(SW_REAPER_MS);
        result = sw_drv.cuMemCreate(handle, bytes, prop, 0);
    }
    return result;
}

symwin_status sw_memory_create(const char *call, struct sw_memory_kind *kind, size_t bytes,
                               unsigned flags, struct sw_memory *m)
{
    CUmemAllocationProp *prop = &kind->prop;
    const int device = prop->location.id;
    symwin_status status;
    CUresult result;

    *m = (struct sw_memory){.bytes = bytes, .device = device};
    result = create(&m->handle, bytes, prop);
    /* The attribute tells what the GPU supports; only this call tells what the system permits. */
    if ((result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED) &&
        (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
        if (device < 64)
            atomic_fetch_or(&fabric_refused, (uint64_t)1 << device);
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        result = create(&m->handle, bytes, prop);
    }
    if (result == CUDA_SUCCESS)
        m->stage = SW_MEMORY_CREATED;
    status = sw_check(result, "%s: cuMemCreate of %zu bytes on device %d", call, bytes, device);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) /* and the pools keep none, or are asked next */
        sw_fail(status, "%s; free memory of the device, in other processes too",
                symwin_last_error());
    if (status == SYMWIN_OK)
        status = sw_memory_show(call, m, kind->granularity, device, flags);
    if (status != SYMWIN_OK)
        sw_memory_release(m);
    return status;
}

symwin_status sw_memory_fill(CUdeviceptr ptr, int byte, size_t bytes)
{
    CUstream stream = NULL;
    symwin_status status = sw_check(sw_drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                                    "cuStreamCreate");

    if (status != SYMWIN_OK)
        return status;
    status = sw_check(sw_drv.cuMemsetD8Async(ptr, (unsigned char)byte, bytes, stream),
                      "cuMemsetD8Async of %zu bytes", bytes);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuStreamSynchronize(stream), "cuStreamSynchronize");
    sw_drop(sw_drv.cuStreamDestroy(stream), "cuStreamDestroy");
    return status;
}

/* ---- what is at an address ---- */

/* The handle of the allocation mapped at `ptr`; the caller gets a reference. */
static symwin_status retain_handle(const char *call, CUdeviceptr ptr,
                                   CUmemGenericAllocationHandle *handle)
{
    CUresult result;

    result = sw_drv.cuMemRetainAllocationHandle(handle, (void *)(uintptr_t)ptr);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
        return sw_fail(SYMWIN_INVALID,
                       "%s: 0x%llx is not in VMM memory; allocate it with symwin_mem_alloc, "
                       "ncclMemAlloc or another cuMemCreate allocator (not cudaMalloc)",
                       call, ptr);
    return sw_check(result, "%s: cuMemRetainAllocationHandle of 0x%llx", call, ptr);
}

/* Fills `out` and the properties; `handle` is mapped at `ptr`. Needs no current context, unlike
 * cuMemGetAddressRange. */
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
        status = ask(call, ptr, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "base", &out->base);
    if (status == SYMWIN_OK)
        status = ask(call, ptr, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "size", &out->bytes);
    if (status == SYMWIN_OK)
        status = ask(call, ptr, CU_POINTER_ATTRIBUTE_BUFFER_ID, "buffer id", &id);
    if (status != SYMWIN_OK)
        return status;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        out->device = prop->location.id;
    out->buffer_id = id;
    return SYMWIN_OK;
}

symwin_status sw_physical_open(const char *call, CUdeviceptr ptr,
                               CUmemGenericAllocationHandle *handle, struct sw_physical *out,
                               CUmemAllocationProp *prop)
{
    symwin_status status = retain_handle(call, ptr, handle);

    if (status != SYMWIN_OK)
        return status;
    status = describe(call, ptr, *handle, out, prop);
    if (status != SYMWIN_OK)
        sw_drop(sw_drv.cuMemRelease(*handle), "cuMemRelease");
    return status;
}

/* The end of the reservation around an address. */
static symwin_status range_end(const char *call, CUdeviceptr ptr, CUdeviceptr *end)
{
    CUdeviceptr start = 0;
    size_t bytes = 0;
    symwin_status status = ask(call, ptr, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "range", &start);

    if (status == SYMWIN_OK)
        status = ask(call, ptr, CU_POINTER_ATTRIBUTE_RANGE_SIZE, "range size", &bytes);
    *end = start + bytes;
    return status;
}

/* Appends the allocation at `at`, which follows `count` others. */
static symwin_status span_next(const char *call, CUdeviceptr at, struct sw_physical **pieces,
                               int count)
{
    struct sw_physical *grown = *pieces;
    symwin_status status;

    if (count == SW_PIECES)
        return sw_fail(SYMWIN_INVALID,
                       "%s: the memory at 0x%llx consists of more than %d physical allocations; "
                       "register parts of it",
                       call, (*pieces)[0].base, SW_PIECES);
    if ((count & (count - 1)) == 0) /* a power of two: the array is full */
        grown = realloc(*pieces, 2 * (size_t)count * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d allocations", call, 2 * count);
    *pieces = grown;
    status = sw_physical_find(call, at, &grown[count]);
    if (status == SYMWIN_OK && grown[count].base != at) /* mapped meanwhile */
        return sw_fail(SYMWIN_INVALID, "%s: 0x%llx is inside the mapping at 0x%llx", call, at,
                       grown[count].base);
    return status;
}

symwin_status sw_physical_span(const char *call, CUdeviceptr ptr, size_t bytes,
                               const struct sw_physical *first, struct sw_physical **out,
                               int *count)
{
    struct sw_physical *pieces = malloc(sizeof *pieces);
    CUdeviceptr at = first->base + first->bytes, limit = at;
    symwin_status status = SYMWIN_OK;
    char text[SW_TEXT_BYTES];
    int n = 1;

    if (pieces == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for an allocation", call);
    pieces[0] = *first;
    if (bytes > at - ptr)
        status = range_end(call, ptr, &limit);
    memcpy(text, symwin_last_error(), sizeof text);
    while (status == SYMWIN_OK && at < limit && bytes > at - ptr) {
        status = span_next(call, at, &pieces, n);
        if (status == SYMWIN_INVALID && n < SW_PIECES) { /* nothing is mapped at `at` */
            sw_error_restore(text);
            status = SYMWIN_OK;
            break;
        }
        if (status == SYMWIN_OK)
            at += pieces[n++].bytes;
    }
    if (status != SYMWIN_OK) {
        free(pieces);
        return status;
    }
    *out = pieces;
    *count = n;
    return SYMWIN_OK;
}

/* 0 if the driver does not know the address: no error is set. */
static CUdeviceptr peek(CUdeviceptr ptr, CUpointer_attribute attribute)
{
    CUdeviceptr answer = 0;

    return sw_drv.cuPointerGetAttribute(&answer, attribute, ptr) == CUDA_SUCCESS ? answer : 0;
}

CUdeviceptr sw_physical_reservation(CUdeviceptr ptr, size_t *bytes)
{
    const CUdeviceptr mapped = peek(ptr, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);

    *bytes = (size_t)peek(ptr, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
    return mapped != 0 && mapped < *bytes ? peek(ptr, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) : 0;
}

void sw_physical_extend(CUdeviceptr ptr, CUdeviceptr begin, CUdeviceptr end, int most,
                        CUdeviceptr *low, CUdeviceptr *high)
{
    const CUdeviceptr base = peek(ptr, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
    CUdeviceptr start, next;
    size_t bytes;

    if (base == 0)
        return;
    start = sw_physical_reservation(ptr, &bytes);
    *low = base;
    *high = base + peek(ptr, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
    for (; start != 0 && *high < end && *high < start + bytes && most > 1; most--) {
        next = peek(*high, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
        if (next == 0)
            break;
        *high += next;
    }
    for (; start != 0 && *low > begin && *low > start && most > 1; most--) {
        next = peek(*low - 1, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
        if (next == 0)
            break;
        *low = next;
    }
}

int sw_physical_look(CUdeviceptr ptr, int *device, CUdeviceptr *begin, CUdeviceptr *end)
{
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    CUmemorytype type = (CUmemorytype)0;
    CUdeviceptr base = 0, mapped;
    size_t bytes = 0;
    void *answers[] = {&type, device, &base, &bytes};

    *device = -1;
    if (sw_drv.cuPointerGetAttributes(4, attributes, answers, ptr) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE)
        return 0;
    *begin = base;
    *end = base + bytes;
    mapped = peek(ptr, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
    if (mapped != 0) { /* in a reservation; or around an allocation of cuMemAlloc(), on a GPU */
        const CUdeviceptr mapped_end = mapped + peek(ptr, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);

        *begin = mapped > base ? mapped : base;
        *end = mapped_end < *end ? mapped_end : *end;
    }
    return ptr >= *begin && ptr < *end;
}

CUdeviceptr sw_physical_end(CUdeviceptr ptr, CUdeviceptr wanted)
{
    const CUdeviceptr end = peek(ptr, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) +
                            peek(ptr, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
    CUdeviceptr low = 0, high = 0;

    sw_physical_extend(ptr, ptr, wanted, INT_MAX, &low, &high);
    if (high > ptr && high < end) /* a reservation that is not mapped to its end */
        return high;
    return end > ptr ? end : wanted;
}

symwin_status sw_physical_find(const char *call, CUdeviceptr ptr, struct sw_physical *out)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop;
    symwin_status status = sw_physical_open(call, ptr, &handle, out, &prop);

    if (status == SYMWIN_OK)
        sw_drop(sw_drv.cuMemRelease(handle), "cuMemRelease");
    return status;
}
