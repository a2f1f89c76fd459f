/* Maps objects at reserved addresses, and sets the access of devices.
 *
 * Each mapping has its own access per device. The arena's pages get the union, so the host can
 * dereference what some device can; a multicast mapping has no pages. All checks come before any
 * change, so a call that fails has changed nothing.
 */
#include <sys/mman.h>

#include "memory.h"

/* ---- map and unmap --------------------------------------------------------------------------- */

/* Under the lock. Finds the object that may be mapped there; waits until a multicast object is
 * complete. */
static CUresult map_check(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, struct emu_object **object)
{
    struct emu_object *o = emu_object_find(handle);
    CUresult result;

    if (o != NULL && o->kind == EMU_MULTICAST) {
        result = emu_multicast_wait(handle);
        if (result != CUDA_SUCCESS)
            return result;
        o = emu_object_find(handle);
    }
    if (o == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    /* Memory can only be mapped whole: a CUDA 13.0 driver answers NOT_SUPPORTED otherwise, also for
     * sizes that are no multiple of the granularity (docs/conformance.md). */
    if (o->kind != EMU_MULTICAST && (offset != 0 || size != o->bytes))
        return CUDA_ERROR_NOT_SUPPORTED;
    /* A multicast object: at a multiple of its minimum, as all sources have it. */
    if (o->kind == EMU_MULTICAST &&
        (!emu_is_multicast_granular(ptr) || !emu_is_multicast_granular(size)))
        return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || !emu_is_granular(size) || size > o->bytes || !emu_range_covers(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < size; at += EMU_GRANULE)
        if (emu_view_at(ptr + at) != NULL)
            return CUDA_ERROR_INVALID_VALUE;
    *object = o;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = emu_enter_unless(EMU_cuMemMap, ptr == 0 || size == 0 || handle == 0 ||
                                                         flags != 0 || !emu_is_granular(ptr));
    struct emu_object *object;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    result = map_check(ptr, size, offset, handle, &object);
    if (result == CUDA_SUCCESS) {
        if (emu_view_add(ptr, size, object) == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            object->mappings++;
            emu_live_add(EMU_LIVE_MAPPING, 1);
        }
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* The mapping that begins at ptr and is `size` bytes long, NULL if there is none. */
static struct emu_view *exact_view(CUdeviceptr ptr, size_t size)
{
    struct emu_view *view = emu_view_at(ptr);

    if (view == NULL || view->object == NULL || view->seen.va != ptr || view->seen.bytes != size)
        return NULL;
    return view;
}

static atomic_int unmap_waits = 1;

void sw_emu_unmap_waits(int waits)
{
    atomic_store(&unmap_waits, waits);
}

CUresult sw_emu_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result = emu_enter_unless(EMU_cuMemUnmap, ptr == 0 || size == 0);
    struct emu_device_set users;
    struct emu_view *view;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    view = exact_view(ptr, size);
    if (view != NULL)
        emu_view_devices(view, &users);
    pthread_mutex_unlock(&emu_memory_mutex);
    if (view == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&unmap_waits))
        emu_drain_devices(&users);

    pthread_mutex_lock(&emu_memory_mutex);
    view = exact_view(ptr, size); /* another thread may have unmapped it meanwhile */
    if (view == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (view->shown && emu_arena_hide(ptr, size) != 0) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        struct emu_object *object = view->object;

        emu_view_remove(view);
        object->mappings--;
        emu_live_add(EMU_LIVE_MAPPING, -1);
        emu_object_settle(object);
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* ---- access ---------------------------------------------------------------------------------- */

/* Whether the descriptor may be applied to the mapping. */
static CUresult access_ok(const struct emu_view *view, const CUmemAccessDesc *desc)
{
    const int on_host = view->seen.multicast == NULL && view->device < 0;

    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    switch (desc->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (!emu_device_exists(desc->location.id))
            return CUDA_ERROR_INVALID_VALUE;
        return emu_machine.strangers && view->device >= 0 && view->device != desc->location.id
                   ? CUDA_ERROR_NOT_SUPPORTED
                   : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
        return on_host ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return on_host && desc->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    case CU_MEM_LOCATION_TYPE_INVALID:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static void access_now(const struct emu_view *view, unsigned char access[EMU_MAX_DEVICES])
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        access[i] = atomic_load_explicit(&view->seen.access[i], memory_order_relaxed);
}

static void access_apply(const CUmemAccessDesc *desc, size_t count,
                         unsigned char access[EMU_MAX_DEVICES], unsigned char *host_access)
{
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            access[desc[i].location.id] = (unsigned char)desc[i].flags;
        else
            *host_access = (unsigned char)desc[i].flags;
    }
}

/* Whether one device at most has access to the mapping afterwards. */
static int access_alone(const struct emu_view *view, const CUmemAccessDesc *desc, size_t count)
{
    unsigned char access[EMU_MAX_DEVICES];
    unsigned char host_access = 0;
    int devices = 0;

    access_now(view, access);
    access_apply(desc, count, access, &host_access);
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        devices += access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return devices <= 1;
}

/* Whether the range consists of whole mappings without a gap, and all descriptors may be applied to
 * it. */
static CUresult access_check(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                             size_t count)
{
    for (size_t done = 0; done < size;) {
        const struct emu_view *view = emu_view_at(ptr + done);

        if (view == NULL || view->object == NULL || view->seen.va != ptr + done ||
            view->seen.bytes > size - done)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < count; i++) {
            const CUresult result = access_ok(view, &desc[i]);

            if (result != CUDA_SUCCESS)
                return result;
        }
        if (emu_machine.multicast_alone && view->seen.multicast != NULL &&
            !access_alone(view, desc, count))
            return CUDA_ERROR_INVALID_VALUE;
        done += view->seen.bytes;
    }
    return CUDA_SUCCESS;
}

/* Maps the memory into the arena with this access. -1: the system refused. */
static int view_show(struct emu_view *view, unsigned rights)
{
    void *at = (void *)(uintptr_t)view->seen.va;
    const int protection = (rights & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : 0) |
                           (rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0);

    if (view->seen.multicast != NULL)
        return 0;
    if (view->shown)
        return mprotect(at, view->seen.bytes, protection);
    if (protection == PROT_NONE)
        return 0;
    if (mmap(at, view->seen.bytes, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
             ((struct emu_physical *)view->object)->fd, 0) == MAP_FAILED)
        return -1;
    (void)madvise(at, view->seen.bytes,
                  MADV_DONTDUMP); /* as the arena; the memory is mapped twice */
    view->shown = 1;
    return 0;
}

static CUresult access_set(struct emu_view *view, const CUmemAccessDesc *desc, size_t count)
{
    unsigned char access[EMU_MAX_DEVICES];
    unsigned char host_access = view->host_access;
    unsigned rights;

    access_now(view, access);
    access_apply(desc, count, access, &host_access);
    rights = host_access;
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        rights |= access[i];
    if (view_show(view, rights) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    view->host_access = host_access;
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        atomic_store_explicit(&view->seen.access[i], access[i], memory_order_relaxed);
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                               size_t count)
{
    CUresult result = emu_enter_unless(EMU_cuMemSetAccess,
                                       ptr == 0 || size == 0 || desc == NULL || count == 0);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    result = access_check(ptr, size, desc, count);
    for (size_t done = 0; done < size && result == CUDA_SUCCESS;) {
        struct emu_view *view = emu_view_at(ptr + done);

        result = access_set(view, desc, count);
        done += view->seen.bytes;
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                               CUdeviceptr ptr)
{
    CUresult result = emu_enter_unless(EMU_cuMemGetAccess,
                                       flags == NULL || location == NULL || ptr == 0);
    const struct emu_view *view;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    view = emu_view_at(ptr);
    if (view == NULL || view->object == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (location->type == CU_MEM_LOCATION_TYPE_DEVICE && emu_device_exists(location->id))
        *flags = atomic_load_explicit(&view->seen.access[location->id], memory_order_relaxed);
    else if (location->type == CU_MEM_LOCATION_TYPE_HOST ||
             (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location->id == 0))
        *flags = view->host_access;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}
