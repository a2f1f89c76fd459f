/* Handles: the table of their objects, reference counts, and the end of an object.
 *
 * A handle is an index and a generation, so a stale handle is recognized. An object has one handle
 * for its whole life, which may have several references.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "memory.h"

pthread_mutex_t emu_memory_mutex = PTHREAD_MUTEX_INITIALIZER;
struct emu_object *emu_objects;

struct slot {
    struct emu_object *object;
    uint32_t generation;
    uint32_t next_free; /* index + 1 */
};

static struct slot *slots;
static uint32_t slot_count, slot_room, slot_free;

/* ---- the table ------------------------------------------------------------------------------- */

static struct slot *slot_of(CUmemGenericAllocationHandle handle)
{
    const uint32_t index = (uint32_t)handle - 1;

    if (index >= slot_count || slots[index].generation != handle >> 32)
        return NULL;
    return slots[index].object != NULL ? &slots[index] : NULL;
}

int emu_object_add(struct emu_object *object, const struct emu_id *id)
{
    uint32_t index = slot_free - 1;

    if (slot_free == 0) {
        if (slot_count == slot_room) {
            const uint32_t room = slot_room > 0 ? 2 * slot_room : 64;
            struct slot *grown = realloc(slots, room * sizeof *grown);

            if (grown == NULL)
                return -1;
            slots = grown;
            slot_room = room;
        }
        index = slot_count++;
        slots[index].generation = 0;
    } else {
        slot_free = slots[index].next_free;
    }
    slots[index].object = object;
    slots[index].generation++;
    object->handle = (uint64_t)slots[index].generation << 32 | (index + 1);
    object->id = *id;
    object->refs = 1;
    object->next = emu_objects;
    object->link = &emu_objects;
    if (emu_objects != NULL)
        emu_objects->link = &object->next;
    emu_objects = object;
    emu_live_add(EMU_LIVE_HANDLE_REF, 1);
    return 0;
}

void emu_object_remove(struct emu_object *object)
{
    struct slot *s = slot_of(object->handle);

    s->object = NULL;
    s->next_free = slot_free;
    slot_free = (uint32_t)(s - slots) + 1;
    *object->link = object->next;
    if (object->next != NULL)
        object->next->link = object->link;
}

struct emu_object *emu_object_find(CUmemGenericAllocationHandle handle)
{
    const struct slot *s = slot_of(handle);

    return s != NULL && s->object->refs > 0 ? s->object : NULL;
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
    struct emu_object *object = emu_objects;

    while (object != NULL && (object->kind != kind || memcmp(&object->id, id, sizeof *id) != 0))
        object = object->next;
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
    if (object->kind == EMU_PHYSICAL && object->refs == 0 && object->mappings == 0)
        emu_physical_revive((struct emu_physical *)object);
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
