/* Multicast objects: a team of devices, and for each of them which memory lies behind each granule.
 *
 * What is bound is kept twice: as a list, for the checks, and as a table of host addresses, which
 * kernels read without a lock. The devices of a team are known once the last one has been added;
 * whatever needs the team waits until then, without end if that never happens. A thread that waits
 * is let go, with INVALID_VALUE, by whoever releases the object's last handle.
 *
 * A binding does not keep memory: where memory goes before it is unbound, accesses fault there and
 * the unbind is refused, as on hardware.
 */
#include <stdio.h>
#include <stdlib.h>

#include "share.h"

/* As many as a machine has. */
#define MOST_OBJECTS 128

struct bind {
    struct bind *next;
    unsigned member;
    size_t offset, bytes;
    const struct emu_physical *memory; /* NULL: gone */
};

struct emu_multicast {
    struct emu_object object;
    unsigned size, added;                     /* devices of the team; how many are known */
    CUdevice devices[EMU_MAX_DEVICES];        /* in the order in which they were added */
    unsigned char is_member[EMU_MAX_DEVICES]; /* constant when complete, as all above */
    struct bind *binds;
    _Atomic(unsigned char *) *targets; /* [granule][member]: NULL where nothing is bound */
};

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned object_count;

static int is_complete(const struct emu_multicast *mc)
{
    return mc->added == mc->size;
}

/* ---- access ---------------------------------------------------------------------------------- */

/* The member's memory at the offset, if all of it is bound in one piece. */
static unsigned char *target_at(const struct emu_multicast *mc, unsigned member, size_t offset,
                                size_t bytes)
{
    const size_t first = offset >> EMU_GRANULE_SHIFT;
    const size_t last = bytes > 0 ? (offset + bytes - 1) >> EMU_GRANULE_SHIFT : first;
    unsigned char *base = atomic_load_explicit(&mc->targets[first * mc->size + member],
                                               memory_order_acquire);

    for (size_t i = first + 1; base != NULL && i <= last; i++)
        if (atomic_load_explicit(&mc->targets[i * mc->size + member], memory_order_acquire) !=
            base + (i - first) * EMU_GRANULE)
            return NULL;
    return base != NULL ? base + offset % EMU_GRANULE : NULL;
}

int emu_multicast_access(CUdevice device, CUdeviceptr addr, size_t bytes, int write,
                         void *targets[EMU_MAX_DEVICES])
{
    const size_t offset = (size_t)(addr - (CUdeviceptr)(uintptr_t)emu_arena);
    const unsigned need = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                : CU_MEM_ACCESS_FLAGS_PROT_READ;
    const struct emu_multicast *mc;
    const struct emu_mapping *m;

    if (offset >= emu_arena_bytes)
        return 0;
    m = EMU_LOAD_ACQUIRE(&emu_table[offset >> EMU_GRANULE_SHIFT]);
    if (m == NULL || m->multicast == NULL || bytes > m->bytes || addr - m->va > m->bytes - bytes ||
        (EMU_LOAD_RELAXED(&m->access[device]) & need) != need)
        return 0;
    mc = m->multicast;
    if (!mc->is_member[device])
        return 0;
    for (unsigned i = 0; i < mc->size; i++) {
        targets[i] = target_at(mc, i, (size_t)(addr - m->va), bytes);
        if (targets[i] == NULL)
            return 0;
    }
    return (int)mc->size;
}

static void targets_set(struct emu_multicast *mc, const struct bind *b, unsigned char *memory)
{
    for (size_t at = 0; at < b->bytes; at += EMU_GRANULE)
        atomic_store_explicit(
            &mc->targets[((b->offset + at) >> EMU_GRANULE_SHIFT) * mc->size + b->member],
            memory != NULL ? memory + at : NULL, memory_order_release);
}

/* ---- lifetime -------------------------------------------------------------------------------- */

static CUresult multicast_make(unsigned devices, size_t bytes, unsigned handle_types,
                               const struct emu_id *id, struct emu_object **object)
{
    struct emu_multicast *mc;

    if (object_count == MOST_OBJECTS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mc = calloc(1, sizeof *mc);
    if (mc == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mc->object.kind = EMU_MULTICAST;
    mc->object.bytes = bytes;
    mc->object.handle_types = handle_types;
    mc->size = devices;
    mc->targets = calloc(bytes / EMU_GRANULE, devices * sizeof *mc->targets);
    if (mc->targets == NULL || emu_object_add(&mc->object, id) != 0) {
        free(mc->targets);
        free(mc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_count++;
    emu_live_add(EMU_LIVE_MULTICAST, 1);
    *object = &mc->object;
    return CUDA_SUCCESS;
}

static void bind_free(struct bind *b)
{
    free(b);
    emu_live_add(EMU_LIVE_BIND, -1);
}

void emu_multicast_free(struct emu_multicast *mc)
{
    struct bind *b;

    while ((b = mc->binds) != NULL) {
        mc->binds = b->next;
        bind_free(b);
    }
    emu_object_remove(&mc->object);
    free(mc->targets);
    free(mc);
    object_count--;
    emu_live_add(EMU_LIVE_MULTICAST, -1);
}

void emu_multicast_wake(void)
{
    pthread_cond_broadcast(&changed);
}

CUresult emu_multicast_wait(CUmemGenericAllocationHandle handle)
{
    const struct emu_multicast *mc;

    while ((mc = emu_multicast_find(handle)) != NULL && !is_complete(mc))
        pthread_cond_wait(&changed, &emu_memory_mutex);
    return mc != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void emu_multicast_memory_gone(const struct emu_physical *p)
{
    for (struct emu_object *o = emu_objects; o != NULL; o = o->next) {
        struct emu_multicast *mc = (struct emu_multicast *)o;

        if (o->kind != EMU_MULTICAST)
            continue;
        for (struct bind *b = mc->binds; b != NULL; b = b->next) {
            if (b->memory != p)
                continue;
            targets_set(mc, b, NULL);
            b->memory = NULL;
        }
    }
}

static void binds_print(int fd, const struct emu_multicast *mc)
{
    for (const struct bind *b = mc->binds; b != NULL; b = b->next)
        dprintf(fd, "live: binding in 0x%llx, %zu bytes at %zu, device %d, of 0x%llx\n",
                mc->object.handle, b->bytes, b->offset, mc->devices[b->member],
                b->memory != NULL ? b->memory->object.handle : 0);
}

void emu_multicast_print(int fd)
{
    pthread_mutex_lock(&emu_memory_mutex);
    for (const struct emu_object *o = emu_objects; o != NULL; o = o->next) {
        const struct emu_multicast *mc = (const struct emu_multicast *)o;

        if (o->kind != EMU_MULTICAST)
            continue;
        dprintf(fd,
                "live: multicast object 0x%llx, %zu bytes, %u of %u devices: %u references, %u "
                "mappings\n",
                o->handle, o->bytes, mc->added, mc->size, o->refs, o->mappings);
        binds_print(fd, mc);
    }
    pthread_mutex_unlock(&emu_memory_mutex);
}

/* ---- export and import ----------------------------------------------------------------------- */

CUresult emu_multicast_export(const struct emu_multicast *mc, int *fd)
{
    struct emu_passport passport = {
        .kind = EMU_MULTICAST,
        .handle_types = mc->object.handle_types,
        .bytes = mc->object.bytes,
        .id = mc->object.id,
        .devices = mc->size,
    };

    return emu_passport_issue(&passport, fd);
}

CUresult emu_multicast_import(const struct emu_passport *passport, struct emu_object **object)
{
    *object = emu_object_named(EMU_MULTICAST, &passport->id);
    if (*object != NULL) {
        emu_object_ref(*object);
        return CUDA_SUCCESS;
    }
    if (passport->devices < 2 || passport->devices > (unsigned)emu_machine.devices)
        return CUDA_ERROR_INVALID_VALUE;
    return multicast_make(passport->devices, passport->bytes, passport->handle_types, &passport->id,
                          object);
}

/* ---- entry points ---------------------------------------------------------------------------- */

static CUresult enter(enum emu_entry entry)
{
    const CUresult result = emu_enter(entry);

    if (result != CUDA_SUCCESS)
        return result;
    return emu_machine.multicast ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sw_emu_cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                          CUmulticastGranularity_flags option)
{
    CUresult result = enter(EMU_cuMulticastGetGranularity);

    if (result != CUDA_SUCCESS)
        return result;
    if (granularity == NULL || prop == NULL || prop->numDevices == 0 || prop->size == 0 ||
        (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
         option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = EMU_GRANULE;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuMulticastCreate(CUmemGenericAllocationHandle *mc,
                                  const CUmulticastObjectProp *prop)
{
    CUresult result = enter(EMU_cuMulticastCreate);
    struct emu_object *object;
    struct emu_id id;

    if (result != CUDA_SUCCESS)
        return result;
    /* A team of one is refused, as drivers do it. */
    if (mc == NULL || prop == NULL || prop->flags != 0 || prop->size == 0 ||
        !emu_is_granular(prop->size) || prop->numDevices < 2 ||
        prop->numDevices > (unsigned)emu_machine.devices)
        return CUDA_ERROR_INVALID_VALUE;
    result = emu_handle_types_ok(prop->handleTypes);
    if (result == CUDA_SUCCESS)
        result = emu_id_make(&id);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    result = multicast_make(prop->numDevices, prop->size, (unsigned)prop->handleTypes, &id,
                            &object);
    if (result == CUDA_SUCCESS)
        *mc = object->handle;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev)
{
    CUresult result = enter(EMU_cuMulticastAddDevice);
    struct emu_multicast *mc;

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&emu_memory_mutex);
    mc = emu_multicast_find(handle);
    if (mc == NULL || is_complete(mc) || mc->is_member[dev]) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        mc->is_member[dev] = 1;
        mc->devices[mc->added++] = dev;
        if (is_complete(mc))
            emu_multicast_wake();
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* The device's place in the team; -1: it has none. */
static int member_of(const struct emu_multicast *mc, CUdevice dev)
{
    for (unsigned i = 0; i < mc->added; i++)
        if (mc->devices[i] == dev)
            return (int)i;
    return -1;
}

/* What is to be bound, as both kinds of call give it. */
struct request {
    CUmemGenericAllocationHandle mc;
    size_t mc_offset, bytes;
    CUdevice device;                     /* -1: the memory's own */
    CUmemGenericAllocationHandle memory; /* with memory_offset; or 0 and an address */
    size_t memory_offset;
    CUdeviceptr address;
};

/* The memory that is to be bound. Under the lock. */
static struct emu_physical *request_memory(const struct request *r, size_t *offset)
{
    const struct emu_view *view;

    *offset = r->memory_offset;
    if (r->memory != 0)
        return emu_physical_find(r->memory);
    view = emu_view_at(r->address);
    if (view == NULL || view->object == NULL || view->object->kind != EMU_PHYSICAL)
        return NULL;
    *offset = (size_t)(r->address - view->seen.va);
    if (*offset > view->seen.bytes || r->bytes > view->seen.bytes - *offset)
        return NULL;
    return (struct emu_physical *)view->object;
}

/* What can be checked before the team is complete, and must hold when it is. Under the lock. */
static CUresult request_check(const struct request *r, struct emu_multicast **mc,
                              struct emu_physical **memory, size_t *offset)
{
    *mc = emu_multicast_find(r->mc);
    *memory = request_memory(r, offset);
    if (*mc == NULL || *memory == NULL || r->bytes == 0 || !emu_is_granular(r->bytes) ||
        !emu_is_granular(r->mc_offset) || !emu_is_granular(*offset) ||
        *offset > (*memory)->object.bytes || r->bytes > (*memory)->object.bytes - *offset ||
        r->mc_offset > (*mc)->object.bytes || r->bytes > (*mc)->object.bytes - r->mc_offset ||
        (*memory)->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if ((*mc)->object.handle_types != 0 && (*memory)->object.handle_types == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (r->device >= 0 && r->device != (*memory)->prop.location.id)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult bind_add(struct emu_multicast *mc, const struct request *r,
                         const struct emu_physical *memory, size_t offset)
{
    const int member = member_of(mc, memory->prop.location.id);
    struct bind *made;

    if (member < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    for (const struct bind *b = mc->binds; b != NULL; b = b->next)
        if (b->memory != NULL && b->member == (unsigned)member &&
            r->mc_offset < b->offset + b->bytes && b->offset < r->mc_offset + r->bytes)
            return CUDA_ERROR_INVALID_VALUE;
    made = malloc(sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct bind){mc->binds, (unsigned)member, r->mc_offset, r->bytes, memory};
    mc->binds = made;
    targets_set(mc, made, memory->memory + offset);
    emu_live_add(EMU_LIVE_BIND, 1);
    return CUDA_SUCCESS;
}

static CUresult bind_request(enum emu_entry entry, const struct request *r, int names_device,
                             unsigned long long flags)
{
    CUresult result = enter(entry);
    struct emu_multicast *mc;
    struct emu_physical *memory;
    size_t offset;

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (names_device && !emu_device_exists(r->device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&emu_memory_mutex);
    result = request_check(r, &mc, &memory, &offset);
    if (result == CUDA_SUCCESS && !is_complete(mc)) {
        result = emu_multicast_wait(r->mc);
        if (result == CUDA_SUCCESS)
            result = request_check(r, &mc, &memory, &offset);
    }
    if (result == CUDA_SUCCESS)
        result = bind_add(mc, r, memory, offset);
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMulticastBindMem(CUmemGenericAllocationHandle mc, size_t mc_offset,
                                   CUmemGenericAllocationHandle mem, size_t mem_offset, size_t size,
                                   unsigned long long flags)
{
    const struct request r = {mc, mc_offset, size, -1, mem, mem_offset, 0};

    return bind_request(EMU_cuMulticastBindMem, &r, 0, flags);
}

CUresult sw_emu_cuMulticastBindMem_v2(CUmemGenericAllocationHandle mc, CUdevice dev,
                                      size_t mc_offset, CUmemGenericAllocationHandle mem,
                                      size_t mem_offset, size_t size, unsigned long long flags)
{
    const struct request r = {mc, mc_offset, size, dev, mem, mem_offset, 0};

    return bind_request(EMU_cuMulticastBindMem_v2, &r, 1, flags);
}

CUresult sw_emu_cuMulticastBindAddr(CUmemGenericAllocationHandle mc, size_t mc_offset,
                                    CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    const struct request r = {mc, mc_offset, size, -1, 0, 0, ptr};

    return bind_request(EMU_cuMulticastBindAddr, &r, 0, flags);
}

CUresult sw_emu_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mc, CUdevice dev,
                                       size_t mc_offset, CUdeviceptr ptr, size_t size,
                                       unsigned long long flags)
{
    const struct request r = {mc, mc_offset, size, dev, 0, 0, ptr};

    return bind_request(EMU_cuMulticastBindAddr_v2, &r, 1, flags);
}

/* What has been bound over memory that went away comes before the binding of that memory. */
static CUresult unbind(struct emu_multicast *mc, unsigned member, size_t offset, size_t bytes)
{
    struct bind **found = NULL, *b;
    CUresult result;

    for (struct bind **link = &mc->binds; (b = *link) != NULL; link = &b->next)
        if (b->member == member && b->offset == offset && b->bytes == bytes &&
            (found == NULL || b->memory != NULL))
            found = link;
    if (found == NULL)
        emu_misuse("cuMulticastUnbind of %zu bytes at %zu on device %d: not bound as that", bytes,
                   offset, mc->devices[member]);
    b = *found;
    result = b->memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (b->memory != NULL)
        targets_set(mc, b, NULL);
    *found = b->next;
    bind_free(b);
    return result;
}

CUresult sw_emu_cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev,
                                  size_t mc_offset, size_t size)
{
    CUresult result = enter(EMU_cuMulticastUnbind);
    struct emu_multicast *mc;
    int member;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    mc = emu_multicast_find(handle);
    member = mc != NULL ? member_of(mc, dev) : -1;
    if (mc == NULL || size == 0 || !emu_is_granular(size) || !emu_is_granular(mc_offset) ||
        mc_offset > mc->object.bytes || size > mc->object.bytes - mc_offset)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (member < 0)
        result = CUDA_ERROR_INVALID_DEVICE;
    else
        result = unbind(mc, (unsigned)member, mc_offset, size);
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}
