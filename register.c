/* Registrations: who has how many references to which memory.
 *
 * All of it is under one mutex a communicator, which nobody holds while he waits for other ranks or takes mappings down.
 * Calls find what is connected in a table of its own (registry.c), without the mutex.
 */
#include <stdlib.h>
#include <string.h>

#include "register.h"

/* ---- a communicator's ------------------------------------------------------------------------- */

struct sw_registrations *sw_registrations_create(void)
{
    struct sw_registrations *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->returns = sw_returns_create();
    r->windows = sw_registry_create();
    r->refusals = sw_registry_create();
    if (r->returns == NULL || r->windows == NULL || r->refusals == NULL ||
        pthread_mutex_init(&r->mutex, NULL) != 0) {
        sw_returns_unref(r->returns);
        sw_registry_destroy(r->windows);
        sw_registry_destroy(r->refusals);
        free(r);
        return NULL;
    }
    return r;
}

/* ---- taking back: under the mutex but where it says otherwise --------------------------------- */

void sw_retire_untouched(struct sw_registrations *r)
{
    struct sw_connected **at = &r->connected;

    while (*at != NULL) {
        struct sw_connected *c = *at;
        const uintptr_t begin = (uintptr_t)c->window.ptr;

        if (sw_cache_touches(&r->cache, begin, begin + c->window.bytes, c->window.buffer_id)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        sw_registry_remove(c->refused[0] != '\0' ? r->refusals : r->windows, (uintptr_t)c);
        c->next = atomic_load(&r->retired);
        atomic_store(&r->retired, c);
    }
}

static void take_down(symwin_comm *comm, struct sw_connected *c)
{
    while (c != NULL) {
        struct sw_connected *next = c->next;

        if (c->window.segment != NULL)
            sw_window_detach(comm, &c->window);
        free(c);
        c = next;
    }
}

void sw_registrations_settle(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_connected *retired;

    sw_returns_collect(comm);
    if (atomic_load_explicit(&r->retired, memory_order_relaxed) == NULL)
        return;
    pthread_mutex_lock(&r->mutex);
    retired = atomic_exchange(&r->retired, NULL);
    pthread_mutex_unlock(&r->mutex);
    take_down(comm, retired);
}

static void settle_one(symwin_comm *comm, void *unused)
{
    (void)unused;
    sw_registrations_settle(comm);
}

void sw_registrations_settle_all(void)
{
    sw_comm_each(settle_one, NULL);
}

/* A range without references goes, with all that it has but windows. The first failure is returned. */
static symwin_status forget(const char *call, struct sw_registrations *r, struct sw_range *range)
{
    const symwin_status status = sw_nccl_take(call, r, range);

    sw_cache_remove(&r->cache, range);
    if (range->handle != 0)
        sw_tickets_remove(&r->handles, range->handle);
    if (!range->foreign)
        sw_allocation_drop(range->begin);
    free(range);
    atomic_fetch_sub(&r->count, 1);
    return status;
}

symwin_status sw_range_drop(const char *call, struct sw_registrations *r, struct sw_range *range,
                            enum sw_reference kind)
{
    symwin_status status;

    range->refs[kind]--;
    if (range->refs[SW_REF_LOCAL] + range->refs[SW_REF_GRAPH] > 0)
        return SYMWIN_OK;
    status = forget(call, r, range);
    sw_retire_untouched(r);
    return status;
}

static void undo(struct sw_range *range, void *context)
{
    struct sw_registrations *r = context;

    sw_nccl_take("symwin_comm_destroy", r, range);
    if (!range->foreign)
        sw_allocation_drop(range->begin);
}

void sw_registrations_destroy(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    char text[SW_TEXT_BYTES];

    if (r == NULL)
        return;
    memcpy(text, symwin_last_error(), sizeof text);
    sw_cache_each(&r->cache, undo, r);
    take_down(comm, r->connected);
    take_down(comm, atomic_load(&r->retired));
    sw_cache_clear(&r->cache);
    sw_registry_destroy(r->windows);
    sw_registry_destroy(r->refusals);
    pthread_mutex_destroy(&r->mutex);
    sw_returns_unref(r->returns);
    sw_tickets_release(&r->handles);
    free(r);
    comm->registrations = NULL;
    sw_error_restore(text);
}

/* ---- registering: under the mutex ------------------------------------------------------------- */

/* An allocation, of ours or another's: [low, high). */
struct place {
    uintptr_t low, high;
    uint64_t buffer_id;
    int foreign;
};

/* Another allocator's device memory. */
static symwin_status find_foreign(const char *call, CUdeviceptr ptr, struct place *p)
{
    CUdeviceptr low = 0;
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
    return sw_check(result, "%s: cuPointerGetAttribute of 0x%llx", call, ptr);
}

/* Finds the allocation; one of ours is not freed until sw_allocation_drop(). */
static symwin_status find(const char *call, const symwin_comm *comm, CUdeviceptr ptr, size_t bytes,
                          struct place *p)
{
    struct sw_allocation a = {0};
    int device = -1; /* not known */
    symwin_status status;

    *p = (struct place){0};
    switch (sw_allocation_hold(ptr, &a)) {
    case SW_OWNED_FREE:
        return sw_fail(SYMWIN_INVALID, "%s: 0x%llx was freed", call, ptr);
    case SW_OWNED_LIVE:
        *p = (struct place){a.begin, a.begin + a.bytes, a.physical.buffer_id, 0};
        device = a.physical.device;
        break;
    case SW_OWNED_NOT:
        break;
    }
    status = sw_comm_check_device(comm, call, "ptr", ptr, device);
    if (status == SYMWIN_OK && !a.owned)
        status = find_foreign(call, ptr, p);
    if (status == SYMWIN_OK && bytes > p->high - ptr)
        status = sw_fail(SYMWIN_INVALID,
                         "%s: %zu bytes at 0x%llx pass the end of their allocation by %zu", call,
                         bytes, ptr, bytes - (size_t)(p->high - ptr));
    if (status != SYMWIN_OK && a.owned)
        sw_allocation_drop(ptr);
    return status;
}

/* A new range, with one reference. */
static symwin_status add(const char *call, symwin_comm *comm, CUdeviceptr ptr, size_t bytes,
                         enum sw_reference kind, struct sw_range **out)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_range *range;
    struct place p;
    symwin_status status = find(call, comm, ptr, bytes, &p);

    if (status != SYMWIN_OK)
        return status;
    range = sw_tickets_reserve(&r->handles)
                ? sw_cache_add(&r->cache, (uintptr_t)ptr, (uintptr_t)ptr + bytes, p.low, p.high,
                               p.buffer_id)
                : NULL;
    if (range == NULL) {
        if (!p.foreign)
            sw_allocation_drop(ptr);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a registration", call);
    }
    range->foreign = p.foreign;
    atomic_fetch_add(&r->count, 1);
    if (r->nccl != NULL)
        status = sw_nccl_put(call, r, range);
    if (status != SYMWIN_OK) {
        forget(call, r, range);
        return status;
    }
    range->handle = sw_tickets_add(&r->handles, range);
    range->refs[kind] = 1;
    *out = range;
    return SYMWIN_OK;
}

int sw_span_is_current(struct sw_registrations *r, struct sw_span *span, CUdeviceptr address)
{
    unsigned long long id = 0;

    if (!span->ranges->foreign)
        return 1;
    if (sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) ==
            CUDA_SUCCESS &&
        id == span->buffer_id)
        return 1;
    sw_cache_forget(&r->cache, span);
    sw_retire_untouched(r);
    return 0;
}

symwin_status sw_range_take(const char *call, symwin_comm *comm, CUdeviceptr ptr, size_t bytes,
                            enum sw_reference kind, struct sw_range **out)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_range *range = sw_cache_known(&r->cache, (uintptr_t)ptr, (uintptr_t)ptr + bytes);

    if (range != NULL && range->foreign && !sw_span_is_current(r, range->span, ptr))
        range = NULL;
    if (range == NULL)
        return add(call, comm, ptr, bytes, kind, out);
    range->refs[kind]++;
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
    status = sw_comm_status(comm, call);
    if (status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&comm->registrations->mutex);
    status = sw_range_take(call, comm, address, bytes, SW_REF_LOCAL, &range);
    if (status == SYMWIN_OK)
        *registration = (symwin_registration *)range->handle;
    pthread_mutex_unlock(&comm->registrations->mutex);
    sw_registrations_settle(comm);
    return status;
}

/* What is wrong with a handle; under the mutex. */
static symwin_status fail_handle(const char *call, const symwin_comm *comm, const void *handle,
                                 const struct sw_range *range)
{
    if (range == NULL)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %p is no live registration of rank %d's communicator: it was "
                       "deregistered before, or is another communicator's",
                       call, handle, comm->rank);
    return sw_fail(SYMWIN_INVALID,
                   "%s: %p was deregistered as often as it was registered; only graphs hold it, "
                   "until they are destroyed",
                   call, handle);
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
    range = sw_tickets_find(&comm->registrations->handles, (uintptr_t)registration);
    if (range == NULL || range->refs[SW_REF_LOCAL] == 0)
        status = fail_handle(call, comm, registration, range);
    else
        status = sw_range_drop(call, comm->registrations, range, SW_REF_LOCAL);
    pthread_mutex_unlock(&comm->registrations->mutex);
    sw_registrations_settle(comm);
    return status;
}

/* What was refused at a byte, or else connected; NULL: nothing. Under the mutex. */
static const struct sw_connected *connected_at(const struct sw_registrations *r, uintptr_t address,
                                               uint64_t buffer_id)
{
    const struct sw_connected *c, *found = NULL;

    for (c = r->connected; c != NULL; c = c->next)
        if (c->window.buffer_id == buffer_id && address >= (uintptr_t)c->window.ptr &&
            address - (uintptr_t)c->window.ptr < c->window.bytes &&
            (found == NULL || c->refused[0] != '\0'))
            found = c;
    return found;
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
    range = sw_tickets_find(&comm->registrations->handles, (uintptr_t)registration);
    if (range == NULL) {
        status = fail_handle(call, comm, registration, NULL);
    } else {
        *info = (symwin_registration_info){
            .ptr = (void *)range->begin,
            .bytes = range->end - range->begin,
            .local_references = range->refs[SW_REF_LOCAL],
            .graph_references = range->refs[SW_REF_GRAPH],
            .transports = range->nccl != NULL ? SYMWIN_TRANSPORT_NCCL : 0,
            .buffer_id = range->buffer_id,
        };
        c = connected_at(comm->registrations, range->begin, range->buffer_id);
        if (c != NULL) {
            info->transports |= c->window.transports;
            memcpy(info->refused, c->refused, sizeof info->refused);
        }
    }
    pthread_mutex_unlock(&comm->registrations->mutex);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

struct visit {
    const struct sw_registrations *r;
    void (*see)(const struct sw_range *range, const struct sw_connected *connected, void *context);
    void *context;
};

static void visit(struct sw_range *range, void *context)
{
    const struct visit *v = context;

    v->see(range, connected_at(v->r, range->begin, range->buffer_id), v->context);
}

void sw_registrations_each(symwin_comm *comm,
                           void (*see)(const struct sw_range *range,
                                       const struct sw_connected *connected, void *context),
                           void *context)
{
    struct visit v = {comm->registrations, see, context};

    pthread_mutex_lock(&comm->registrations->mutex);
    sw_cache_each(&comm->registrations->cache, visit, &v);
    pthread_mutex_unlock(&comm->registrations->mutex);
}
