/* Registrations: which memory is registered, with how many references; and queries.
 *
 * Each communicator has one mutex for all of this. No thread holds it while it waits for other
 * ranks or unmaps memory. Until the communicator is destroyed, only connect agreements add and
 * remove connections (register_agree.c). Registering and deregistering is local and may come from
 * any thread.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "src/window/register.h"

/* ---- creation -------------------------------------------------------------------------------- */

static void settle_one(symwin_comm *comm, void *unused)
{
    (void)unused;
    sw_registrations_settle(comm);
}

static void settle_all(void)
{
    sw_comm_each(settle_one, NULL);
}

struct sw_registrations *sw_registrations_create(void)
{
    struct sw_registrations *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->returns = sw_returns_create();
    if (r->returns == NULL || pthread_mutex_init(&r->mutex, NULL) != 0) {
        sw_returns_unref(r->returns);
        free(r);
        return NULL;
    }
    sw_memory_on_held(settle_all);
    return r;
}

void sw_registrations_settle(symwin_comm *comm)
{
    sw_returns_collect(comm);
    sw_allocations_settle();
}

/* ---- deregistering: under the mutex ---------------------------------------------------------- */

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

static void release_range(struct sw_range *range, void *context)
{
    struct sw_registrations *r = context;

    sw_nccl_take("symwin_comm_destroy", r, range);
    if (!range->foreign)
        sw_allocation_drop(range->begin);
}

void sw_registrations_end(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;

    if (r == NULL || r->side == NULL)
        return;
    sw_drop(sw_drv.cuStreamSynchronize(r->side), "cuStreamSynchronize");
    sw_drop(sw_drv.cuStreamDestroy(r->side), "cuStreamDestroy");
    r->side = NULL;
}

void sw_registrations_destroy(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    char text[SW_TEXT_BYTES];

    if (r == NULL)
        return;
    memcpy(text, symwin_last_error(), sizeof text);
    sw_range_cache_each(&r->cache, release_range, r);
    while (r->connected != NULL) {
        struct sw_connected *c = r->connected;

        r->connected = c->next;
        sw_connected_release(comm, c);
    }
    sw_range_cache_clear(&r->cache);
    pthread_mutex_destroy(&r->mutex);
    sw_returns_unref(r->returns);
    sw_handle_table_release(&r->handles);
    free(r);
    comm->registrations = NULL;
    sw_error_restore(text);
}

/* ---- registering: under the mutex ------------------------------------------------------------ */

/* An allocation, owned or another allocator's: [low, high). */
struct extent {
    uintptr_t low, high;
    uint64_t buffer_id;
    int foreign;
};

/* Memory in a reservation that can have several mappings is identified by the reservation: this
 * bit, which no driver's buffer id has, and its address. Mappings come and go there, and a range
 * may lie on several. Whether a connection still shows the memory is checked mapping by mapping. */
#define RESERVATION ((uint64_t)1 << 63)

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
        p->buffer_id = RESERVATION | start;
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

    *p = (struct extent){0};
    switch (sw_allocation_hold(ptr, &a)) {
    case SW_OWNED_FREE:
        return sw_fail(SYMWIN_INVALID, "%s: 0x%llx was freed", call, ptr);
    case SW_OWNED_LIVE:
        *p = (struct extent){a.begin, a.begin + a.bytes, a.physical.buffer_id, 0};
        device = a.physical.device;
        break;
    case SW_OWNED_NOT:
        break;
    }
    status = sw_comm_check_device(comm, call, "ptr", ptr, device);
    if (status == SYMWIN_OK && !a.owned)
        status = find_foreign(call, ptr, bytes, p);
    if (status == SYMWIN_OK && bytes > p->high - ptr)
        status = sw_fail(SYMWIN_INVALID,
                         "%s: %zu bytes at 0x%llx pass the end of their allocation by %zu", call,
                         bytes, ptr, bytes - (size_t)(p->high - ptr));
    if (status != SYMWIN_OK && a.owned)
        sw_allocation_drop(ptr);
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

/* Whether the address still belongs to that buffer. */
static int is_current(uintptr_t address, uint64_t buffer_id)
{
    unsigned long long id = 0;

    return sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                        (CUdeviceptr)address) == CUDA_SUCCESS &&
           id == buffer_id;
}

int sw_connected_is_current(const symwin_comm *comm, const struct sw_connected *c, uintptr_t begin,
                            size_t bytes)
{
    const size_t at = begin - (uintptr_t)c->window.ptr;

    return c->window.segment == NULL || sw_segment_is_current(c->window.segment, comm->rank,
                                                              c->window.offset + at, begin, bytes);
}

/* Whether registered bytes are still the memory that was registered. `use` is the connection that
 * serves them, or NULL. */
static int serves_current(const symwin_comm *comm, const struct sw_use *use, uintptr_t begin,
                          uintptr_t end, uint64_t buffer_id)
{
    const struct sw_connected *c = (const struct sw_connected *)use;
    uintptr_t last;

    if ((buffer_id & RESERVATION) == 0)
        return is_current(begin, buffer_id);
    if (c == NULL)
        return 1;
    last = (uintptr_t)c->window.ptr + c->window.bytes;
    return sw_connected_is_current(comm, c, begin, (end < last ? end : last) - begin);
}

/* Adds a reference to a known range, or adds the range. */
static symwin_status add_reference(const char *call, symwin_comm *comm, CUdeviceptr ptr,
                                   size_t bytes, struct sw_range **out)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_range *range = sw_range_cache_known(&r->cache, (uintptr_t)ptr,
                                                  (uintptr_t)ptr + bytes);

    if (range != NULL && range->foreign &&
        !serves_current(comm, sw_range_cache_piece(&r->cache, range->begin)->use, range->begin,
                        range->end, range->buffer_id)) {
        sw_range_cache_forget(&r->cache, range->begin, range->end, range->buffer_id);
        range = NULL;
    }
    if (range == NULL)
        return add_range(call, comm, ptr, bytes, out);
    range->refs++;
    *out = range;
    return SYMWIN_OK;
}

struct sw_registered sw_registered_look(symwin_comm *comm, uintptr_t begin, size_t bytes)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_use *use = NULL;
    const struct sw_piece *piece = sw_range_cache_find(&r->cache, begin, begin + bytes, &use);

    if (piece == NULL)
        return (struct sw_registered){0};
    if (piece->foreign && !serves_current(comm, use, begin, begin + bytes, piece->buffer_id)) {
        sw_range_cache_forget(&r->cache, begin, begin + bytes, piece->buffer_id);
        return (struct sw_registered){0};
    }
    return (struct sw_registered){1, (struct sw_connected *)use, piece->buffer_id};
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
    status = sw_comm_status(comm, call);
    if (status != SYMWIN_OK)
        return status;
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

/* ---- queries --------------------------------------------------------------------------------- */

/* How often graphs hold connections that overlap the range. Under the mutex. */
static unsigned graphs_on(const struct sw_registrations *r, const struct sw_range *range)
{
    const struct sw_connected *c;
    unsigned count = 0;

    for (c = r->connected; c != NULL; c = c->next) {
        const uintptr_t begin = (uintptr_t)c->window.ptr;

        if ((c->window.buffer_id == range->buffer_id || (range->buffer_id & RESERVATION) != 0) &&
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
