/* Handles: the table of their objects, reference counts, and the end of an object.
 *
 * No handle is used twice, so a stale one is recognized. An object has one handle for its whole
 * life, which may have several references.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "memory.h"
#include "src/base/base.h"

pthread_mutex_t emu_memory_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sw_handle_table table; /* of struct emu_object */

/* ---- the table ------------------------------------------------------------------------------- */

int emu_object_add(struct emu_object *object, const struct emu_id *id)
{
    if (!sw_handle_table_reserve(&table))
        return -1;
    object->handle = sw_handle_table_add(&table, object);
    object->id = *id;
    object->refs = 1;
    emu_live_add(EMU_LIVE_HANDLE_REF, 1);
    return 0;
}

void emu_object_remove(struct emu_object *object)
{
    sw_handle_table_remove(&table, (uintptr_t)object->handle);
}

struct emu_object *emu_object_next(enum emu_object_kind kind, size_t *at)
{
    struct emu_object *object;

    do
        object = sw_handle_table_next(&table, at);
    while (object != NULL && object->kind != kind);
    return object;
}

struct emu_object *emu_object_find(CUmemGenericAllocationHandle handle)
{
    struct emu_object *object = sw_handle_table_find(&table, (uintptr_t)handle);

    return object != NULL && object->refs > 0 ? object : NULL;
}

struct emu_physical *emu_physical_find(CUmemGenericAllocationHandle handle)
{
    struct emu_object *object = emu_object_find(handle);

    return object != NULL && object->kind == EMU_PHYSICAL ? (struct emu_physical *)object : NULL;
}

struct emu_multicast *emu_multicast_find(CUmemGenericAllocationHandle handle)
{
    struct emu_object *object = emu_object_find(handle);

    return object != NULL && object->kind == EMU_MULTICAST ? (struct emu_multicast *)object : NULL;
}

struct emu_object *emu_object_named(enum emu_object_kind kind, const struct emu_id *id)
{
    struct emu_object *object;
    size_t at = 0;

    do
        object = emu_object_next(kind, &at);
    while (object != NULL && memcmp(&object->id, id, sizeof *id) != 0);
    return object;
}

CUresult emu_id_make(struct emu_id *id)
{
    ssize_t got;

    do
        got = getrandom(id, sizeof *id, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *id ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* ---- references ------------------------------------------------------------------------------ */

void emu_object_ref(struct emu_object *object)
{
    object->refs++;
    emu_live_add(EMU_LIVE_HANDLE_REF, 1);
}

void emu_object_settle(struct emu_object *object)
{
    if (object->refs > 0 || object->mappings > 0)
        return;
    if (object->kind == EMU_PHYSICAL)
        emu_physical_settle((struct emu_physical *)object);
    else
        emu_multicast_free((struct emu_multicast *)object);
}

CUresult sw_emu_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = emu_enter_unless(EMU_cuMemRelease, handle == 0);
    struct emu_object *object;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    object = emu_object_find(handle);
    if (object == NULL)
        emu_misuse("cuMemRelease of 0x%llx, which is no handle or was released before", handle);
    emu_live_add(EMU_LIVE_HANDLE_REF, -1);
    if (--object->refs == 0 && object->kind == EMU_MULTICAST)
        emu_multicast_wake();
    emu_object_settle(object);
    pthread_mutex_unlock(&emu_memory_mutex);
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUresult result = emu_enter_unless(EMU_cuMemRetainAllocationHandle,
                                       handle == NULL || addr == NULL);
    struct emu_view *view;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    view = emu_view_at((CUdeviceptr)(uintptr_t)addr);
    if (view == NULL || view->object == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        emu_object_ref(view->object);
        *handle = view->object->handle;
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}
