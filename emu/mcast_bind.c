/* Binds memory to multicast objects and unbinds it. Bindings are written to the state of the
 * object's team, which all processes see.
 */
#include <unistd.h>

#include "mcast.h"

/* ---- bind ------------------------------------------------------------------------------------ */

/* The device's index in the team; -1: not a member. */
static int member_of(const struct emu_multicast *mc, CUdevice dev)
{
    for (unsigned i = 0; i < mc->added; i++)
        if (mc->devices[i] == dev)
            return (int)i;
    return -1;
}

/* The binding that a call requests; both kinds of call use this. */
struct request {
    CUmemGenericAllocationHandle mc;
    size_t mc_offset, bytes;
    CUdevice device;                     /* -1: the memory's device */
    CUmemGenericAllocationHandle memory; /* with memory_offset; or 0 and an address */
    size_t memory_offset;
    CUdeviceptr address;
};

/* The memory to be bound. Under the lock. */
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

/* The checks that do not need a complete team; repeated once it is complete. Under the lock. */
static CUresult request_check(const struct request *r, struct emu_multicast **mc,
                              struct emu_physical **memory, size_t *offset)
{
    *mc = emu_multicast_find(r->mc);
    *memory = request_memory(r, offset);
    if (*mc == NULL || *memory == NULL || r->bytes == 0 || !emu_is_multicast_granular(r->bytes) ||
        !emu_is_multicast_granular(r->mc_offset) || !emu_is_multicast_granular(*offset) ||
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

/* Whether something is bound there already. Bindings of processes that have ended are removed. */
static int is_bound(struct emu_multicast *mc, unsigned member, size_t offset, size_t bytes)
{
    for (uint64_t i = 0; i < mc->team.state->bind_count; i++) {
        struct emu_team_bind *b = &mc->team.state->binds[i];

        if (atomic_load(&b->serial) == 0 || b->gone || b->member != member ||
            offset >= b->offset + b->bytes || b->offset >= offset + bytes)
            continue;
        if (emu_team_is_seated(&mc->team, b->seat))
            return 1;
        emu_team_bind_free(&mc->team, b);
    }
    return 0;
}

/* With the state locked. */
static CUresult bind_add(struct emu_multicast *mc, const struct request *r,
                         const struct emu_physical *memory, size_t offset)
{
    const int member = member_of(mc, memory->prop.location.id);
    struct emu_team_bind *record;
    CUresult result;

    if (member < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (is_bound(mc, (unsigned)member, r->mc_offset, r->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    result = emu_slot_take(mc);
    if (result != CUDA_SUCCESS)
        return result;
    record = emu_team_bind_new(&mc->team);
    if (record == NULL || emu_multicast_reserve(mc, mc->team.state->bind_count) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    record->seat = mc->team.seat;
    record->offset = r->mc_offset;
    record->bytes = r->bytes;
    record->memory_offset = offset;
    record->memory = (struct emu_place){memory->object.id, getpid(), memory->fd};
    record->member = (unsigned)member;
    record->gone = 0;
    emu_team_announce(&mc->team, record);
    return emu_multicast_see(mc);
}

static CUresult bind_request(enum emu_entry entry, const struct request *r, int names_device,
                             unsigned long long flags)
{
    CUresult result = emu_multicast_enter(entry);
    struct emu_multicast *mc;
    struct emu_physical *memory;
    struct emu_fault fault;
    size_t offset;

    if (result != CUDA_SUCCESS)
        return result;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (names_device && !emu_device_exists(r->device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&emu_memory_mutex);
    result = request_check(r, &mc, &memory, &offset);
    if (result == CUDA_SUCCESS && !emu_multicast_is_complete(mc)) {
        result = emu_multicast_wait(r->mc);
        if (result == CUDA_SUCCESS)
            result = request_check(r, &mc, &memory, &offset);
    }
    if (result == CUDA_SUCCESS) {
        fault = emu_fault_take(SW_EMU_FAULT_BIND, memory->prop.location.id);
        if (fault.stall_ms != 0) {
            pthread_mutex_unlock(&emu_memory_mutex);
            emu_fault_stall(fault.stall_ms);
            pthread_mutex_lock(&emu_memory_mutex);
            result = request_check(r, &mc, &memory, &offset);
        }
        if (fault.answer != CUDA_SUCCESS)
            result = fault.answer;
    }
    if (result == CUDA_SUCCESS) {
        emu_team_lock(&mc->team);
        result = bind_add(mc, r, memory, offset);
        emu_team_unlock(&mc->team);
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMulticastBindMem(CUmemGenericAllocationHandle mc, size_t mc_offset,
                                   CUmemGenericAllocationHandle mem, size_t mem_offset, size_t size,
                                   unsigned long long flags)
{
    return bind_request(EMU_cuMulticastBindMem,
                        &(struct request){mc, mc_offset, size, -1, mem, mem_offset, 0}, 0, flags);
}

CUresult sw_emu_cuMulticastBindMem_v2(CUmemGenericAllocationHandle mc, CUdevice dev,
                                      size_t mc_offset, CUmemGenericAllocationHandle mem,
                                      size_t mem_offset, size_t size, unsigned long long flags)
{
    return bind_request(EMU_cuMulticastBindMem_v2,
                        &(struct request){mc, mc_offset, size, dev, mem, mem_offset, 0}, 1, flags);
}

CUresult sw_emu_cuMulticastBindAddr(CUmemGenericAllocationHandle mc, size_t mc_offset,
                                    CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    return bind_request(EMU_cuMulticastBindAddr,
                        &(struct request){mc, mc_offset, size, -1, 0, 0, ptr}, 0, flags);
}

CUresult sw_emu_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mc, CUdevice dev,
                                       size_t mc_offset, CUdeviceptr ptr, size_t size,
                                       unsigned long long flags)
{
    return bind_request(EMU_cuMulticastBindAddr_v2,
                        &(struct request){mc, mc_offset, size, dev, 0, 0, ptr}, 1, flags);
}

/* ---- unbind ---------------------------------------------------------------------------------- */

/* If memory was freed and the range bound again, the new binding is removed first. */
static CUresult unbind(struct emu_multicast *mc, unsigned member, size_t offset, size_t bytes)
{
    struct emu_team_bind *found = NULL;
    CUresult result;

    emu_team_lock(&mc->team);
    for (uint64_t i = 0; i < mc->team.state->bind_count; i++) {
        struct emu_team_bind *b = &mc->team.state->binds[i];

        if (atomic_load(&b->serial) != 0 && b->member == member && b->offset == offset &&
            b->bytes == bytes && (found == NULL || !b->gone))
            found = b;
    }
    if (found == NULL)
        emu_misuse("cuMulticastUnbind of %zu bytes at %zu on device %d: not bound as that", bytes,
                   offset, mc->devices[member]);
    result = found->gone ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    emu_team_bind_free(&mc->team, found);
    (void)emu_multicast_see(mc);
    emu_team_unlock(&mc->team);
    return result;
}

CUresult sw_emu_cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev,
                                  size_t mc_offset, size_t size)
{
    CUresult result = emu_multicast_enter(EMU_cuMulticastUnbind);
    struct emu_multicast *mc;
    int member;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    mc = emu_multicast_find(handle);
    if (mc != NULL)
        emu_multicast_catch_up(mc);
    member = mc != NULL ? member_of(mc, dev) : -1;
    if (mc == NULL || size == 0 || !emu_is_multicast_granular(size) ||
        !emu_is_multicast_granular(mc_offset) || mc_offset > mc->object.bytes ||
        size > mc->object.bytes - mc_offset)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (member < 0)
        result = CUDA_ERROR_INVALID_DEVICE;
    else
        result = unbind(mc, (unsigned)member, mc_offset, size);
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}
