/* Multicast objects: life, devices, export and import.
 *
 * A team is complete when its last device has been added. Calls that need the team wait for that,
 * without a time limit. When the last handle of this process is released, waiting calls return
 * INVALID_VALUE.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "mcast.h"

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* ---- lifetime -------------------------------------------------------------------------------- */

/* Creates an object with the team, which the caller keeps on failure. */
static CUresult multicast_make(const struct emu_passport *about, const struct emu_team *team,
                               struct emu_object **object)
{
    struct emu_multicast *mc = calloc(1, sizeof *mc);

    if (mc == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mc->object.kind = EMU_MULTICAST;
    mc->object.bytes = about->bytes;
    mc->object.handle_types = about->handle_types;
    mc->team = *team;
    mc->size = about->devices;
    mc->slot_fd = -1;
    mc->targets = calloc(about->bytes / EMU_GRANULE, about->devices * sizeof *mc->targets);
    if (mc->targets == NULL || emu_object_add(&mc->object, &about->id) != 0) {
        free(mc->targets);
        free(mc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (team->fd >= 0)
        atomic_store(&mc->shared, team->state);
    emu_live_add(EMU_LIVE_MULTICAST, 1);
    *object = &mc->object;
    return CUDA_SUCCESS;
}

/* Creates an object as described, with the team of the file, or with a new team (fd -1). */
static CUresult multicast_new(const struct emu_passport *about, int fd, struct emu_object **object)
{
    struct emu_team team;
    CUresult result;

    result = fd < 0 ? emu_team_begin(&team, about->bytes, about->devices)
                    : emu_team_join(&team, about, fd);
    if (result != CUDA_SUCCESS)
        return result;
    result = multicast_make(about, &team, object);
    if (result != CUDA_SUCCESS)
        emu_team_end(&team);
    return result;
}

void emu_multicast_free(struct emu_multicast *mc)
{
    emu_multicast_see_nothing(mc);
    emu_object_remove(&mc->object);
    emu_slot_give(mc);
    emu_team_end(&mc->team);
    free(mc->targets);
    free(mc);
    emu_live_add(EMU_LIVE_MULTICAST, -1);
}

void emu_multicast_wake(void)
{
    pthread_cond_broadcast(&changed);
}

/* Unlocks until something may have changed. Other processes cannot wake this one, hence the
 * polling. */
static void rest(const struct emu_multicast *mc)
{
    const struct timespec nap = {0, 1000000};

    if (mc->team.fd < 0) {
        pthread_cond_wait(&changed, &emu_memory_mutex);
        return;
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    nanosleep(&nap, NULL);
    pthread_mutex_lock(&emu_memory_mutex);
}

CUresult emu_multicast_wait(CUmemGenericAllocationHandle handle)
{
    struct emu_multicast *mc;

    while ((mc = emu_multicast_find(handle)) != NULL) {
        emu_multicast_catch_up(mc);
        if (emu_multicast_is_complete(mc))
            return CUDA_SUCCESS;
        rest(mc);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static void binds_print(int fd, const struct emu_multicast *mc)
{
    for (uint64_t i = 0; i < mc->bind_count; i++) {
        const struct seen_bind *b = &mc->binds[i];

        if (b->is_own)
            dprintf(fd, "live: binding in 0x%llx, %zu bytes at %zu, device %d, of 0x%llx\n",
                    mc->object.handle, b->bytes, b->offset, mc->devices[b->member],
                    b->p != NULL ? b->p->object.handle : 0);
    }
}

void emu_multicast_print(int fd)
{
    const struct emu_multicast *mc;
    size_t at = 0;

    pthread_mutex_lock(&emu_memory_mutex);
    while ((mc = (struct emu_multicast *)emu_object_next(EMU_MULTICAST, &at)) != NULL) {
        dprintf(fd,
                "live: multicast object 0x%llx, %zu bytes, %u of %u devices: %u references, %u "
                "mappings\n",
                mc->object.handle, mc->object.bytes, mc->added, mc->size, mc->object.refs,
                mc->object.mappings);
        binds_print(fd, mc);
    }
    pthread_mutex_unlock(&emu_memory_mutex);
}

/* ---- export and import ----------------------------------------------------------------------- */

/* Moves the state into a file for other processes, unless done before. */
static CUresult share(struct emu_multicast *mc)
{
    struct emu_passport passport = {
        .kind = EMU_MULTICAST,
        .handle_types = mc->object.handle_types,
        .bytes = mc->object.bytes,
        .id = mc->object.id,
        .devices = mc->size,
    };
    CUresult result;

    if (mc->team.fd >= 0)
        return CUDA_SUCCESS;
    result = emu_team_share(&mc->team, &passport);
    if (result != CUDA_SUCCESS)
        return result;
    atomic_store_explicit(&mc->shared, mc->team.state, memory_order_release);
    emu_multicast_wake(); /* waiters must poll for other processes from now on */
    return CUDA_SUCCESS;
}

CUresult emu_multicast_export(struct emu_multicast *mc, int *fd)
{
    const CUresult result = share(mc);

    if (result != CUDA_SUCCESS)
        return result;
    *fd = emu_file_reopen(mc->team.fd, 0);
    return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult emu_multicast_place(struct emu_multicast *mc, struct emu_place *place)
{
    const CUresult result = share(mc);

    *place = (struct emu_place){mc->object.id, getpid(), mc->team.fd};
    return result;
}

CUresult emu_multicast_import(const struct emu_passport *passport, int fd,
                              struct emu_object **object)
{
    *object = emu_object_named(EMU_MULTICAST, &passport->id);
    if (*object != NULL) {
        if (!emu_file_is_same(fd, ((struct emu_multicast *)*object)->team.fd))
            return CUDA_ERROR_INVALID_VALUE;
        emu_object_ref(*object);
        return CUDA_SUCCESS;
    }
    if (passport->devices < 2 || passport->devices > (unsigned)emu_machine.devices)
        return CUDA_ERROR_INVALID_VALUE;
    return multicast_new(passport, fd, object);
}

/* ---- entry points ---------------------------------------------------------------------------- */

CUresult emu_multicast_enter(enum emu_entry entry)
{
    const CUresult result = emu_enter(entry);

    if (result != CUDA_SUCCESS)
        return result;
    return emu_machine.multicast ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* A whole number of minimums. */
static size_t recommended(void)
{
    const size_t unit = emu_machine.multicast_unit;

    return (emu_machine.multicast_recommended + unit - 1) / unit * unit;
}

CUresult sw_emu_cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                          CUmulticastGranularity_flags option)
{
    CUresult result = emu_multicast_enter(EMU_cuMulticastGetGranularity);

    if (result != CUDA_SUCCESS)
        return result;
    if (granularity == NULL || prop == NULL || prop->numDevices == 0 || prop->size == 0 ||
        (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
         option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = option == CU_MULTICAST_GRANULARITY_MINIMUM ? emu_machine.multicast_unit
                                                              : recommended();
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuMulticastCreate(CUmemGenericAllocationHandle *mc,
                                  const CUmulticastObjectProp *prop)
{
    CUresult result = emu_multicast_enter(EMU_cuMulticastCreate);
    struct emu_passport about = {.kind = EMU_MULTICAST};
    struct emu_object *object;

    if (result != CUDA_SUCCESS)
        return result;
    /* A team of one is refused, as by real drivers. */
    if (mc == NULL || prop == NULL || prop->flags != 0 || prop->size == 0 ||
        !emu_is_multicast_granular(prop->size) || prop->numDevices < 2 ||
        prop->numDevices > (unsigned)emu_machine.devices)
        return CUDA_ERROR_INVALID_VALUE;
    result = emu_handle_types_ok(prop->handleTypes);
    if (result == CUDA_SUCCESS)
        result = emu_id_make(&about.id);
    if (result != CUDA_SUCCESS)
        return result;
    about.bytes = prop->size;
    about.devices = prop->numDevices;
    about.handle_types = (unsigned)prop->handleTypes;
    pthread_mutex_lock(&emu_memory_mutex);
    result = multicast_new(&about, -1, &object);
    if (result == CUDA_SUCCESS)
        *mc = object->handle;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* Under the lock. */
static CUresult device_add(struct emu_multicast *mc, CUdevice dev)
{
    struct emu_team_state *state = mc->team.state;
    CUresult result;

    emu_team_lock(&mc->team);
    result = emu_multicast_see(mc);
    if (result == CUDA_SUCCESS && (emu_multicast_is_complete(mc) || mc->is_member[dev]))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        state->devices[mc->added] = dev;
        atomic_store(&state->added, mc->added + 1);
        emu_team_announce(&mc->team, NULL);
        result = emu_multicast_see(mc);
    }
    emu_team_unlock(&mc->team);
    if (emu_multicast_is_complete(mc))
        emu_multicast_wake();
    return result;
}

CUresult sw_emu_cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev)
{
    CUresult result = emu_multicast_enter(EMU_cuMulticastAddDevice);
    struct emu_multicast *mc;
    struct emu_fault fault;

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (emu_capability(dev) < 90)
        return CUDA_ERROR_NOT_SUPPORTED;
    fault = emu_fault_take(SW_EMU_FAULT_ADD, dev);
    emu_fault_stall(fault.stall_ms);
    if (fault.answer != CUDA_SUCCESS)
        return fault.answer;
    pthread_mutex_lock(&emu_memory_mutex);
    mc = emu_multicast_find(handle);
    result = mc != NULL ? device_add(mc, dev) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}
