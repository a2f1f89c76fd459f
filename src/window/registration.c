/* The public calls on registered buffers: references, an attached NCCL, queries.
 *
 * Registering and deregistering is local and may come from any thread.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "src/window/register.h"

/* ---- registering: under the mutex ------------------------------------------------------------ */

/* An allocation, owned or another allocator's: [low, high). */
struct extent {
    uintptr_t low, high;
    uint64_t buffer_id;
    int foreign;
};

/* Finds another allocator's device memory. */
static symwin_status find_foreign(const char *call, CUdeviceptr ptr, size_t wanted,
                                  struct extent *p)
{
    CUdeviceptr low = 0, high = ptr, start;
    size_t bytes = 0;
    CUresult result;

    result = sw_drv.cuPointerGetAttribute(&low, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr);
    if (result == CUDA_SUCCESS)
        result = sw_drv.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr);
    if (result == CUDA_SUCCESS)
        result = sw_drv.cuPointerGetAttribute(&p->buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
    p->low = (uintptr_t)low;
    p->high = (uintptr_t)low + bytes;
    p->foreign = 1;
    start = sw_physical_reservation(ptr, &bytes);
    if (start != 0) {
        sw_physical_extend(ptr, ptr, ptr + wanted, INT_MAX, &low, &high);
        p->buffer_id = SW_RESERVATION | start;
        p->low = (uintptr_t)ptr;
        p->high = (uintptr_t)high;
    }
    return sw_check(result, "%s: cuPointerGetAttribute of 0x%llx", call, ptr);
}

/* Finds the allocation. If it is owned, it cannot be freed until sw_allocation_drop(). */
static symwin_status find_allocation(const char *call, const symwin_comm *comm, CUdeviceptr ptr,
                                     size_t bytes, struct extent *p)
{
    struct sw_allocation a = {0};
    int device = -1; /* unknown */
    symwin_status status;
    size_t left;

    *p = (struct extent){0};
    switch (sw_allocation_hold(ptr, &a)) {
    case SW_OWNED_FREE:
        return sw_fail(SYMWIN_INVALID, "%s: 0x%llx was freed", call, ptr);
    case SW_OWNED_LIVE:
        *p = (struct extent){a.begin, a.begin + a.room, a.physical.buffer_id, 0};
        device = a.physical.device;
        break;
    case SW_OWNED_NOT:
        break;
    }
    status = sw_comm_check_device(comm, call, "ptr", ptr, device);
    if (status == SYMWIN_OK && !a.owned)
        status = find_foreign(call, ptr, bytes, p);
    left = ptr < p->high ? (size_t)(p->high - ptr) : 0;
    if (status == SYMWIN_OK && bytes > left)
        status = sw_fail(SYMWIN_INVALID,
                         "%s: %zu bytes at 0x%llx pass the end of their allocation by %zu", call,
                         bytes, ptr, bytes - left);
    if (status != SYMWIN_OK && a.owned)
        sw_allocation_drop(ptr);
    return status;
}

/* Removes a range whose last reference is gone. Returns the failure of NCCL, if any, after all the
 * rest is done. */
static symwin_status remove_range(const char *call, struct sw_registrations *r,
                                  struct sw_range *range)
{
    const symwin_status status = sw_nccl_take(call, r, range);

    sw_range_cache_remove(&r->cache, range);
    if (range->handle != 0)
        sw_handle_table_remove(&r->handles, range->handle);
    if (!range->foreign)
        sw_allocation_drop(range->begin);
    free(range);
    atomic_fetch_sub(&r->count, 1);
    return status;
}

/* Adds a range with one reference. */
static symwin_status add_range(const char *call, symwin_comm *comm, CUdeviceptr ptr, size_t bytes,
                               struct sw_range **out)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_range *range;
    struct extent p;
    symwin_status status = find_allocation(call, comm, ptr, bytes, &p);

    if (status != SYMWIN_OK)
        return status;
    range = sw_handle_table_reserve(&r->handles)
                ? sw_range_cache_add(&r->cache, (uintptr_t)ptr, (uintptr_t)ptr + bytes, p.buffer_id,
                                     p.foreign)
                : NULL;
    if (range == NULL) {
        if (!p.foreign)
            sw_allocation_drop(ptr);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a registration", call);
    }
    atomic_fetch_add(&r->count, 1);
    if (r->nccl != NULL)
        status = sw_nccl_put(call, r, range);
    if (status != SYMWIN_OK) {
        remove_range(call, r, range);
        return status;
    }
    range->handle = sw_handle_table_add(&r->handles, range);
    range->refs = 1;
    *out = range;
    return SYMWIN_OK;
}

/* Adds a reference to a known range, or adds the range. */
static symwin_status add_reference(const char *call, symwin_comm *comm, CUdeviceptr ptr,
                                   size_t bytes, struct sw_range **out)
{
    struct sw_range *range = sw_registered_known(comm, (uintptr_t)ptr, bytes);

    if (range == NULL)
        return add_range(call, comm, ptr, bytes, out);
    range->refs++;
    *out = range;
    return SYMWIN_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

symwin_status symwin_register(symwin_comm *comm, void *ptr, size_t bytes,
                              symwin_registration **registration)
{
    static const char call[] = "symwin_register";
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    struct sw_range *range = NULL;
    symwin_status status;

    if (comm == NULL || ptr == NULL || registration == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call,
                       comm == NULL  ? "comm"
                       : ptr == NULL ? "ptr"
                                     : "registration");
    if (bytes == 0 || bytes > UINTPTR_MAX - address)
        return sw_fail(SYMWIN_INVALID, "%s: bytes is %zu; pass at least 1, within the allocation",
                       call, bytes);
    status = sw_comm_reason(comm, call, sw_comm_status(sw_comm_inside(comm), call));
    if (status != SYMWIN_OK)
        return status;
    comm = sw_comm_inside(comm);
    pthread_mutex_lock(&comm->registrations->mutex);
    status = add_reference(call, comm, address, bytes, &range);
    if (status == SYMWIN_OK)
        *registration = (symwin_registration *)range->handle;
    pthread_mutex_unlock(&comm->registrations->mutex);
    sw_registrations_settle(comm);
    return status;
}

static symwin_status fail_handle(const char *call, const symwin_comm *comm, const void *handle)
{
    return sw_fail(SYMWIN_INVALID,
                   "%s: %p is no live registration of rank %d's communicator: it was deregistered "
                   "as often as it was registered, or belongs to another communicator",
                   call, handle, comm->rank);
}

symwin_status symwin_deregister(symwin_comm *comm, symwin_registration *registration)
{
    static const char call[] = "symwin_deregister";
    symwin_status status = sw_fork_check(call);
    struct sw_range *range;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", call);
    comm = sw_comm_inside(comm);
    pthread_mutex_lock(&comm->registrations->mutex);
    range = sw_handle_table_find(&comm->registrations->handles, (uintptr_t)registration);
    if (range == NULL)
        status = fail_handle(call, comm, registration);
    else if (--range->refs == 0)
        status = remove_range(call, comm->registrations, range);
    pthread_mutex_unlock(&comm->registrations->mutex);
    sw_registrations_settle(comm);
    return status;
}

symwin_status symwin_comm_attach_nccl(symwin_comm *comm, struct ncclComm *nccl)
{
    static const char call[] = "symwin_comm_attach_nccl";
    symwin_status status = sw_fork_check(call);

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", call);
    comm = sw_comm_inside(comm);
    sw_registrations_settle(comm);
    pthread_mutex_lock(&comm->registrations->mutex);
    status = sw_nccl_attach(call, comm->registrations, nccl);
    pthread_mutex_unlock(&comm->registrations->mutex);
    return status;
}

/* ---- queries --------------------------------------------------------------------------------- */

/* How often graphs hold connections that overlap the range. Under the mutex. */
static unsigned graphs_on(const struct sw_registrations *r, const struct sw_range *range)
{
    const struct sw_connected *c;
    unsigned count = 0;

    for (c = r->connected; c != NULL; c = c->next) {
        const uintptr_t begin = (uintptr_t)c->window.ptr;

        if ((c->window.buffer_id == range->buffer_id || (range->buffer_id & SW_RESERVATION) != 0) &&
            begin < range->end && range->begin < begin + c->window.bytes)
            count += c->graphs;
    }
    return count;
}

/* The connection that serves the first byte, or NULL. Under the mutex. */
static const struct sw_connected *first_of(const struct sw_registrations *r,
                                           const struct sw_range *range)
{
    const struct sw_piece *piece = range->stale ? NULL
                                                : sw_range_cache_piece(&r->cache, range->begin);

    return piece != NULL ? (const struct sw_connected *)piece->use : NULL;
}

symwin_status symwin_registration_query(symwin_comm *comm, const symwin_registration *registration,
                                        symwin_registration_info *info)
{
    static const char call[] = "symwin_registration_query";
    symwin_status status = sw_fork_check(call);
    const struct sw_connected *c;
    const struct sw_range *range;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL || info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, comm == NULL ? "comm" : "info");
    comm = sw_comm_inside(comm);
    sw_registrations_settle(comm);
    pthread_mutex_lock(&comm->registrations->mutex);
    range = sw_handle_table_find(&comm->registrations->handles, (uintptr_t)registration);
    if (range == NULL) {
        status = fail_handle(call, comm, registration);
    } else {
        *info = (symwin_registration_info){
            .ptr = (void *)range->begin,
            .bytes = range->end - range->begin,
            .local_references = range->refs,
            .graph_references = graphs_on(comm->registrations, range),
            .transports = range->nccl != NULL ? SYMWIN_TRANSPORT_NCCL : 0,
            .buffer_id = range->buffer_id,
        };
        c = first_of(comm->registrations, range);
        if (c != NULL) {
            info->transports |= c->window.transports;
            memcpy(info->refused, c->refused, sizeof info->refused);
        }
    }
    pthread_mutex_unlock(&comm->registrations->mutex);
    return status;
}

void sw_registered_refusal(const symwin_comm *comm, CUdeviceptr at, char why[SW_REFUSED_BYTES])
{
    struct sw_registrations *r = comm->registrations;
    const struct sw_piece *piece;

    pthread_mutex_lock(&r->mutex);
    piece = sw_range_cache_piece(&r->cache, (uintptr_t)at);
    if (piece != NULL && piece->use != NULL)
        memcpy(why, ((const struct sw_connected *)piece->use)->refused, SW_REFUSED_BYTES);
    pthread_mutex_unlock(&r->mutex);
}

struct visit {
    const struct sw_registrations *r;
    void (*see)(const struct sw_range *range, const struct sw_connected *connected, unsigned graphs,
                void *context);
    void *context;
};

static void visit(struct sw_range *range, void *context)
{
    const struct visit *v = context;

    v->see(range, first_of(v->r, range), graphs_on(v->r, range), v->context);
}

void sw_registrations_each(symwin_comm *comm,
                           void (*see)(const struct sw_range *range,
                                       const struct sw_connected *connected, unsigned graphs,
                                       void *context),
                           void *context)
{
    struct visit v = {comm->registrations, see, context};

    pthread_mutex_lock(&comm->registrations->mutex);
    sw_range_cache_each(&comm->registrations->cache, visit, &v);
    pthread_mutex_unlock(&comm->registrations->mutex);
}
