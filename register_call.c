/* What calls do about registered buffers: capture holds them, the first call connects them.
 *
 * A graph's reference is a user object of the graph. Its callback may call no driver, and may come on any thread, so it only
 * puts the reference on a list, which the next call that may go by it empties.
 */
#include <stdlib.h>
#include <string.h>

#include "register.h"

/* ---- what graphs hold ------------------------------------------------------------------------- */

struct held {
    struct held *next;
    struct sw_returns *returns; /* a reference */
    uintptr_t handle;
};

struct sw_returns {
    atomic_int refs; /* the communicator, and what graphs hold */
    _Atomic(struct held *) list;
};

struct sw_returns *sw_returns_create(void)
{
    struct sw_returns *returns = calloc(1, sizeof *returns);

    if (returns != NULL)
        atomic_init(&returns->refs, 1);
    return returns;
}

void sw_returns_unref(struct sw_returns *returns)
{
    struct held *held;

    if (returns == NULL || atomic_fetch_sub(&returns->refs, 1) != 1)
        return;
    held = atomic_load(&returns->list);
    while (held != NULL) {
        struct held *next = held->next;

        free(held);
        held = next;
    }
    free(returns);
}

static void give_back(void *context)
{
    struct held *held = context;
    struct sw_returns *returns = held->returns;

    held->next = atomic_load(&returns->list);
    while (!atomic_compare_exchange_weak(&returns->list, &held->next, held))
        ;
    sw_returns_unref(returns);
}

static int captures_register(const symwin_comm *comm)
{
    return (comm->flags & SYMWIN_COMM_NO_GRAPH_REGISTER) == 0;
}

static int is_any_registered(const symwin_comm *comm)
{
    return atomic_load_explicit(&comm->registrations->count, memory_order_relaxed) > 0;
}

int sw_registrations_any(const symwin_comm *comm, int served)
{
    return is_any_registered(comm) || (!served && captures_register(comm));
}

static int is_in_window(symwin_comm *comm, CUdeviceptr ptr, size_t bytes)
{
    struct sw_registry_entry entry;

    return sw_registry_find(comm->registry, (uintptr_t)ptr, bytes, &entry) == SW_FOUND_ALL;
}

enum sw_found sw_registered_find(symwin_comm *comm, uintptr_t begin, size_t bytes,
                                 struct sw_registry_entry *out)
{
    struct sw_registrations *r = comm->registrations;
    enum sw_found found = SW_FOUND_NONE;

    if (!is_any_registered(comm))
        return SW_FOUND_NONE;
    if (sw_registry_find(r->refusals, begin, bytes, out) == SW_FOUND_ALL ||
        sw_registry_find(r->windows, begin, bytes, out) == SW_FOUND_ALL)
        return SW_FOUND_ALL;
    pthread_mutex_lock(&r->mutex);
    if (bytes > 0 && sw_cache_find(&r->cache, begin, begin + bytes) != NULL)
        found = SW_FOUND_PART;
    pthread_mutex_unlock(&r->mutex);
    return found;
}

void sw_returns_collect(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    struct held *held;

    if (atomic_load_explicit(&r->returns->list, memory_order_relaxed) == NULL)
        return;
    held = atomic_exchange(&r->returns->list, NULL);
    while (held != NULL) {
        struct held *next = held->next;
        struct sw_range *range;

        pthread_mutex_lock(&r->mutex);
        range = sw_tickets_find(&r->handles, held->handle);
        if (range != NULL && range->refs[SW_REF_GRAPH] > 0)
            sw_range_drop("symwin_deregister", r, range, SW_REF_GRAPH);
        pthread_mutex_unlock(&r->mutex);
        free(held);
        held = next;
    }
}

/* ---- captures --------------------------------------------------------------------------------- */

/* Lets the graph that `capture` makes hold the buffer. The reference is the graph's from here on. */
static symwin_status hand_over(const char *call, struct sw_registrations *r, struct sw_range *range,
                               CUgraph graph)
{
    struct held *held = malloc(sizeof *held);
    CUuserObject object = NULL;
    symwin_status status;

    if (held == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a graph's reference", call);
    *held = (struct held){NULL, r->returns, range->handle};
    atomic_fetch_add(&r->returns->refs, 1);
    status = sw_check(
        sw_drv.cuUserObjectCreate(&object, held, give_back, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
        "%s: cuUserObjectCreate", call);
    if (status != SYMWIN_OK) {
        give_back(held);
        return status;
    }
    status = sw_check(sw_drv.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
                      "%s: cuGraphRetainUserObject", call);
    if (status != SYMWIN_OK)
        sw_drop(sw_drv.cuUserObjectRelease(object, 1), "cuUserObjectRelease");
    return status;
}

/* Holds a buffer for the graph, once, if it is registered or captures are to register it. */
static symwin_status hold(const char *call, symwin_comm *comm, CUdeviceptr ptr, size_t bytes,
                          cuuint64_t capture, CUgraph graph)
{
    struct sw_registrations *r = comm->registrations;
    const int unasked = captures_register(comm) && !is_in_window(comm, ptr, bytes);
    struct sw_range *range = NULL;
    symwin_status status = SYMWIN_OK;
    int known;

    pthread_mutex_lock(&r->mutex);
    if (!unasked && sw_cache_find(&r->cache, (uintptr_t)ptr, (uintptr_t)ptr + bytes) == NULL) {
        pthread_mutex_unlock(&r->mutex);
        return SYMWIN_OK;
    }
    range = sw_cache_known(&r->cache, (uintptr_t)ptr, (uintptr_t)ptr + bytes);
    known = range != NULL && range->capture == capture && range->refs[SW_REF_GRAPH] > 0;
    if (!known)
        status = sw_range_take(call, comm, ptr, bytes, SW_REF_GRAPH, &range);
    if (!known && status == SYMWIN_OK) {
        status = hand_over(call, r, range, graph);
        range->capture = status == SYMWIN_OK ? capture : 0;
    }
    pthread_mutex_unlock(&r->mutex);
    return status;
}

/* ---- connecting ------------------------------------------------------------------------------- */

/* Whether all of the buffer is in a window, or was connected or refused. */
static int is_settled(symwin_comm *comm, CUdeviceptr ptr, size_t bytes)
{
    struct sw_registry_entry entry;

    return is_in_window(comm, ptr, bytes) ||
           sw_registered_find(comm, (uintptr_t)ptr, bytes, &entry) == SW_FOUND_ALL;
}

/* Where the buffer is, and what there is before and behind it in `span`, if it is to be connected. */
static void look_around(CUdeviceptr ptr, size_t bytes, const struct sw_span *span,
                        struct sw_surroundings *s)
{
    const uintptr_t begin = (uintptr_t)ptr, end = begin + bytes;
    struct sw_allocation a = {0};
    char text[SW_TEXT_BYTES];
    uintptr_t low = 0, high = UINTPTR_MAX;

    *s = (struct sw_surroundings){.address = ptr, .registered = span != NULL, .can = 1};
    if (sw_allocation_find(ptr, &a) == SW_OWNED_LIVE) {
        low = (uintptr_t)a.begin;
        high = low + a.bytes;
    } else {
        memcpy(text, symwin_last_error(), sizeof text);
        s->can = sw_physical_find("symwin_allreduce", ptr, &a.physical) == SYMWIN_OK;
        sw_error_restore(text); /* if it is no VMM memory: all ranks hear of it */
    }
    if (s->can && !a.owned) {
        low = (uintptr_t)a.physical.base;
        high = low + a.physical.bytes;
    }
    s->can = s->can && begin >= low && end <= high;
    if (span == NULL)
        return;
    s->buffer_id = span->buffer_id;
    if (end <= high) {
        s->before = begin - (span->begin > low ? span->begin : low);
        s->after = (span->end < high ? span->end : high) - end;
    }
}

/* Lists what was connected, in room that was reserved. What was deregistered meanwhile is retired at once. */
static void publish(struct sw_registrations *r, struct sw_connected *made)
{
    pthread_mutex_lock(&r->mutex);
    while (made != NULL) {
        struct sw_connected *c = made;

        made = c->next;
        c->next = r->connected;
        r->connected = c;
        sw_registry_insert(c->refused[0] != '\0' ? r->refusals : r->windows,
                           &(struct sw_registry_entry){
                               .begin = (uintptr_t)c->window.ptr,
                               .end = (uintptr_t)c->window.ptr + c->window.bytes,
                               .window = (uintptr_t)c,
                               .offset = c->window.offset,
                               .transports = c->window.transports,
                           });
    }
    sw_retire_untouched(r);
    pthread_mutex_unlock(&r->mutex);
}

static symwin_status connect(symwin_comm *comm, const char *call,
                             const struct sw_surroundings around[2], size_t bytes)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct sw_connected *made = NULL;
    symwin_status status;

    status = sw_registry_reserve(comm->registrations->windows, 2);
    if (status == SYMWIN_OK)
        status = sw_registry_reserve(comm->registrations->refusals, 2);
    /* A capture of this thread is not to be harmed by what has nothing to do with its stream. */
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    status = sw_connect(comm, call, status, around, bytes, &made);
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    publish(comm->registrations, made);
    return status;
}

/* In a capture, lets its graph hold what is registered of the buffers. */
static symwin_status hold_captured(symwin_comm *comm, const char *call,
                                   const CUdeviceptr buffers[2], size_t bytes, CUstream stream)
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t capture = 0;
    CUgraph graph = NULL;
    symwin_status status = sw_check(
        sw_drv.cuStreamGetCaptureInfo_v2(stream, &capturing, &capture, &graph, NULL, NULL),
        "%s: cuStreamGetCaptureInfo", call);
    int b;

    for (b = 0; b < 2 && status == SYMWIN_OK && capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE; b++)
        status = hold(call, comm, buffers[b], bytes, capture, graph);
    return status;
}

/* Copies the spans around the buffers, of no ranges where there is none. Whether one has turned out to be stale. */
static int find_spans(struct sw_registrations *r, const CUdeviceptr buffers[2], size_t bytes,
                      struct sw_span spans[2])
{
    int stale = 0, b;

    pthread_mutex_lock(&r->mutex);
    for (b = 0; b < 2; b++) {
        const uintptr_t begin = (uintptr_t)buffers[b];
        struct sw_span *span = sw_cache_find(&r->cache, begin, begin + bytes);

        spans[b] = (struct sw_span){0};
        if (span != NULL && sw_span_is_current(r, span, buffers[b]))
            spans[b] = *span;
        else
            stale |= span != NULL;
    }
    pthread_mutex_unlock(&r->mutex);
    return stale;
}

symwin_status sw_registrations_prepare(symwin_comm *comm, const char *call, CUdeviceptr in,
                                       CUdeviceptr out, size_t bytes, CUstream stream, int served,
                                       int *changed)
{
    const CUdeviceptr buffers[2] = {in, out};
    struct sw_surroundings around[2];
    struct sw_span spans[2];
    int settled[2], b;
    symwin_status status;

    *changed = 0;
    status = hold_captured(comm, call, buffers, bytes, stream);
    if (status != SYMWIN_OK || !is_any_registered(comm))
        return status;
    *changed = find_spans(comm->registrations, buffers, bytes, spans);
    if (served && !*changed)
        return SYMWIN_OK;
    for (b = 0; b < 2; b++) {
        settled[b] = is_settled(comm, buffers[b], bytes);
        if (!settled[b] && spans[b].ranges == NULL)
            return SYMWIN_OK; /* a buffer that is not registered: nothing to connect */
    }
    if (settled[0] && settled[1])
        return SYMWIN_OK;
    for (b = 0; b < 2; b++)
        look_around(buffers[b], bytes, settled[b] ? NULL : &spans[b], &around[b]);
    *changed = 1;
    return connect(comm, call, around, bytes);
}
