/* Physical allocations: memfds. Each is mapped once for the driver's own use, at its canonical
 * addresses, where kernels and copies of every device read and write.
 *
 * An allocation ends when its last handle reference, its last mapping and its last exported
 * descriptor are gone. Descriptors belong to the system: they are duplicated, sent and closed
 * without notice. So each export opens the file anew and puts a lock on the open file description.
 * The lock lives as long as any copy of the descriptor, or any mapping made through one, in any
 * process. So the driver asks the system whether a lock is left.
 *
 * The importer of a fabric handle opens the file without receiving a descriptor, and takes the same
 * lock. To find out whether the memory has ended meanwhile, it looks for these locks and for a
 * second lock, which the owner holds as long as it has a handle or a mapping.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "share.h"

static size_t taken[EMU_MAX_DEVICES]; /* bytes in use on each device */
static size_t held_by_descriptors;    /* allocations that nothing else holds */

/* ---- memory limits --------------------------------------------------------------------------- */

static void sweep(void);

int emu_memory_take(CUdevice device, size_t bytes)
{
    if (device < 0)
        return 0;
    sweep();
    if (bytes > emu_machine.mem_bytes - taken[device])
        return -1;
    taken[device] += bytes;
    return 0;
}

void emu_memory_give(CUdevice device, size_t bytes)
{
    if (device >= 0)
        taken[device] -= bytes;
}

size_t emu_memory_left(CUdevice device)
{
    sweep();
    return emu_machine.mem_bytes - taken[device];
}

/* ---- end of an allocation -------------------------------------------------------------------- */

static CUdevice device_of(const struct emu_physical *p)
{
    return p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? p->prop.location.id : -1;
}

/* Byte offsets of the locks in the file. */
enum { HELD_BY_DESCRIPTORS, HELD_BY_OWNER, HOLDS };

static void owner_holds(const struct emu_physical *p, int holds)
{
    if ((p->object.handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && !p->foreign)
        (void)emu_file_lock(p->fd, HELD_BY_OWNER, holds ? F_RDLCK : F_UNLCK, 0);
}

static void physical_free(struct emu_physical *p)
{
    emu_object_remove(&p->object);
    emu_multicast_memory_gone(p);
    munmap(p->memory, p->object.bytes);
    close(p->fd);
    if (!p->foreign)
        emu_memory_give(device_of(p), p->object.bytes);
    free(p);
    emu_live_add(EMU_LIVE_ALLOCATION, -1);
}

static int descriptors_left(const struct emu_physical *p)
{
    return emu_file_is_locked(p->fd, HELD_BY_DESCRIPTORS, 1);
}

void emu_physical_settle(struct emu_physical *p)
{
    if (p->foreign || !p->exported || !descriptors_left(p)) {
        physical_free(p);
        return;
    }
    held_by_descriptors++;
    owner_holds(p, 0);
}

static void sweep(void)
{
    struct emu_physical *p;
    size_t at = 0;

    while (held_by_descriptors > 0 &&
           (p = (struct emu_physical *)emu_object_next(EMU_PHYSICAL, &at)) != NULL) {
        if (p->object.refs > 0 || p->object.mappings > 0 || descriptors_left(p))
            continue;
        held_by_descriptors--;
        physical_free(p);
    }
}

void emu_physical_sweep(void)
{
    pthread_mutex_lock(&emu_memory_mutex);
    sweep();
    pthread_mutex_unlock(&emu_memory_mutex);
}

void emu_physical_print(int fd)
{
    const struct emu_object *o;
    size_t at = 0;

    pthread_mutex_lock(&emu_memory_mutex);
    while ((o = emu_object_next(EMU_PHYSICAL, &at)) != NULL)
        dprintf(fd, "live: allocation 0x%llx, %zu bytes, device %d: %u references, %u mappings%s\n",
                o->handle, o->bytes, device_of((const struct emu_physical *)o), o->refs,
                o->mappings, o->refs == 0 && o->mappings == 0 ? ", held by a descriptor" : "");
    pthread_mutex_unlock(&emu_memory_mutex);
}

/* ---- start of an allocation ------------------------------------------------------------------ */

/* Creates everything but the descriptor, which the caller keeps on failure. Under the lock; the
 * memory has been charged. */
static CUresult physical_make(const CUmemAllocationProp *prop, size_t bytes,
                              const struct emu_id *id, int fd, struct emu_physical **out)
{
    struct emu_physical *p = calloc(1, sizeof *p);
    void *memory;

    if (p == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;

        free(p);
        return error == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    p->object.kind = EMU_PHYSICAL;
    p->object.bytes = bytes;
    p->object.handle_types = (unsigned)prop->requestedHandleTypes;
    p->prop = *prop;
    p->memory = memory;
    p->fd = fd;
    if (emu_object_add(&p->object, id) != 0) {
        munmap(memory, bytes);
        free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    emu_live_add(EMU_LIVE_ALLOCATION, 1);
    *out = p;
    return CUDA_SUCCESS;
}

static CUresult physical_create(const CUmemAllocationProp *prop, size_t bytes,
                                struct emu_physical **out)
{
    const CUdevice device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id
                                                                               : -1;
    struct emu_passport passport = {
        .kind = EMU_PHYSICAL,
        .handle_types = (uint32_t)prop->requestedHandleTypes,
        .bytes = bytes,
        .location_type = (int32_t)prop->location.type,
        .location_id = prop->location.id,
        .rdma = prop->allocFlags.gpuDirectRDMACapable,
    };
    CUresult result;
    int fd;

    if (emu_memory_take(device, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = emu_id_make(&passport.id);
    if (result == CUDA_SUCCESS)
        result = emu_passport_issue(&passport, &fd);
    if (result == CUDA_SUCCESS) {
        result = physical_make(prop, bytes, &passport.id, fd, out);
        if (result == CUDA_SUCCESS)
            owner_holds(*out, 1);
        else
            close(fd);
    }
    if (result != CUDA_SUCCESS)
        emu_memory_give(device, bytes);
    return result;
}

static CUresult location_ok(const CUmemAllocationProp *prop)
{
    switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return emu_device_exists(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST: /* the id has no meaning */
        return prop->requestedHandleTypes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: /* one node only */
        return prop->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    case CU_MEM_LOCATION_TYPE_INVALID:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sw_emu_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result = emu_enter_unless(
        EMU_cuMemCreate,
        handle == NULL || prop == NULL || flags != 0 || size == 0 || !emu_is_granular(size) ||
            prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->win32HandleMetaData != NULL);
    struct emu_physical *p;
    CUmemAllocationProp effective;

    if (result != CUDA_SUCCESS)
        return result;
    result = location_ok(prop);
    if (result == CUDA_SUCCESS)
        result = emu_handle_types_ok((unsigned)prop->requestedHandleTypes);
    if (result != CUDA_SUCCESS)
        return result;
    memset(&effective, 0, sizeof effective);
    effective.type = prop->type;
    effective.requestedHandleTypes = prop->requestedHandleTypes;
    effective.location = prop->location;
    effective.allocFlags.gpuDirectRDMACapable = prop->allocFlags.gpuDirectRDMACapable != 0;
    pthread_mutex_lock(&emu_memory_mutex);
    result = physical_create(&effective, size, &p);
    if (result == CUDA_SUCCESS)
        *handle = p->object.handle;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

CUresult emu_physical_export(struct emu_physical *p, int *fd)
{
    const int opened = emu_file_reopen(p->fd, 0);

    if (opened < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (emu_file_lock(opened, HELD_BY_DESCRIPTORS, F_RDLCK, 0) != 0) {
        close(opened);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    p->exported = 1;
    *fd = opened;
    return CUDA_SUCCESS;
}

static CUresult import_foreign(const struct emu_passport *passport, int fd,
                               struct emu_object **object)
{
    CUmemAllocationProp prop;
    struct emu_physical *p;
    CUresult result;
    int own;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)passport->handle_types;
    prop.location.type = (CUmemLocationType)passport->location_type;
    prop.location.id = passport->location_id;
    prop.allocFlags.gpuDirectRDMACapable = passport->rdma != 0;
    if (location_ok(&prop) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    own = fcntl(fd, F_DUPFD_CLOEXEC, 256);
    if (own < 0)
        own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    result = physical_make(&prop, passport->bytes, &passport->id, own, &p);
    if (result != CUDA_SUCCESS) {
        close(own);
        return result;
    }
    p->foreign = 1;
    *object = &p->object;
    return CUDA_SUCCESS;
}

CUresult emu_physical_import(const struct emu_passport *passport, int fd,
                             struct emu_object **object)
{
    struct emu_object *known = emu_object_named(EMU_PHYSICAL, &passport->id);

    if (known != NULL && !emu_file_is_same(fd, ((struct emu_physical *)known)->fd))
        return CUDA_ERROR_INVALID_VALUE;
    return import_foreign(passport, fd, object);
}

void emu_physical_place(struct emu_physical *p, struct emu_place *place)
{
    p->exported = 1; /* an importer holds it as a descriptor does */
    *place = (struct emu_place){p->object.id, getpid(), p->fd};
}

CUresult emu_physical_visit(const struct emu_passport *passport, int fd, struct emu_object **object)
{
    if (emu_file_lock(fd, HELD_BY_DESCRIPTORS, F_RDLCK, 0) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    return emu_file_is_locked(fd, 0, HOLDS) ? import_foreign(passport, fd, object)
                                            : CUDA_ERROR_INVALID_VALUE;
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Accepts a location or type that does not exist, as on hardware. */
CUresult sw_emu_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option)
{
    CUresult result = emu_enter_unless(EMU_cuMemGetAllocationGranularity,
                                       granularity == NULL || prop == NULL ||
                                           (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                                            option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));

    if (result == CUDA_SUCCESS)
        *granularity = EMU_GRANULE;
    return result;
}

CUresult sw_emu_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                       CUmemGenericAllocationHandle handle)
{
    CUresult result = emu_enter_unless(EMU_cuMemGetAllocationPropertiesFromHandle, prop == NULL);
    const struct emu_physical *p;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    p = emu_physical_find(handle);
    if (p != NULL)
        *prop = p->prop;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}
