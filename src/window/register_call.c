/* Where the buffers of a call lie, and whether it runs a connect agreement.
 *
 * All ranks must decide alike whether a call runs an agreement. So the decision depends only on
 * what all ranks do in the order of their programs: whether the call is captured, which bytes are
 * registered, and what earlier agreements decided about them. It never depends on what only this
 * rank can see, nor on a buffer that other ranks do not pass alike.
 */
#include <string.h>

#include "src/window/register.h"

/* ---- where a buffer lies --------------------------------------------------------------------- */

static int captures_register(const symwin_comm *comm)
{
    return (comm->flags & SYMWIN_COMM_NO_GRAPH_REGISTER) == 0;
}

/* What this rank knows of a buffer of a call. */
struct known {
    const struct sw_buffer *is;
    int is_valid;                       /* 0: not here; other ranks may have theirs in a window */
    int in_window;                      /* a public one */
    enum sw_found found;                /* if not in_window: by sw_registered_find() */
    size_t room;                        /* as in struct sw_buffer */
    struct sw_window_index_entry entry; /* of the window or the connection, if there is one */
};

static int is_settled(const struct known *k)
{
    return k->in_window || k->found == SW_FOUND_ALL;
}

static int is_known(const struct known *k)
{
    return k->in_window || k->found != SW_FOUND_NONE;
}

static symwin_status check_room(const symwin_comm *comm, const char *call, const char *which,
                                size_t element, CUdeviceptr address, uint64_t bytes, size_t room)
{
    if (bytes <= room)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: rank %d's %llu elements (%llu bytes) at %s (0x%llx) pass the end of its "
                   "allocation, which has %zu bytes from there; pass fewer, or a larger buffer",
                   call, comm->rank, (unsigned long long)(bytes / element),
                   (unsigned long long)bytes, which, address, room);
}

/* The driver does not tell: the pool keeps the memory, and gives it to the next that asks. */
static symwin_status was_freed(const char *call, const char *which, CUdeviceptr address)
{
    return sw_fail(SYMWIN_INVALID, "%s: %s (0x%llx) was freed; pass memory that is allocated", call,
                   which, address);
}

symwin_status sw_window_check_memory(const symwin_comm *comm, const char *call, const char *which,
                                     size_t element, CUdeviceptr address, uint64_t bytes)
{
    struct sw_allocation a;
    const enum sw_owned owned = sw_allocation_find(address, &a);
    symwin_status status;

    if (owned == SW_OWNED_FREE)
        return was_freed(call, which, address);
    if (owned == SW_OWNED_NOT)
        return sw_comm_check_buffer(comm, call, which, address);
    status = sw_comm_check_device(comm, call, which, address, a.physical.device);
    return status == SYMWIN_OK ? check_room(comm, call, which, element, address, bytes,
                                            sw_allocation_room(&a, address))
                               : status;
}

/* Another allocator's memory that was right when the call was added to a group. The driver is asked
 * for the number of what is there, which is its shortest answer. */
static symwin_status check_still(const symwin_comm *comm, const char *call, const char *which,
                                 CUdeviceptr address)
{
    symwin_status status = SYMWIN_OK;

    if (sw_buffer_at(address) == 0)
        status = sw_comm_check_buffer(comm, call, which, address);
    return status == SYMWIN_INVALID ? was_freed(call, which, address) : status;
}

/* Memory in no window: of this rank's device, and of this library's allocations as much as the call
 * uses. A registered buffer may use the bytes to which its allocation was rounded up. `k->is_valid`
 * is set if the address is. Asks the driver about other allocators' memory only, and knows no sizes
 * of that: a driver takes longer to tell than to launch. */
static symwin_status check_memory(const symwin_comm *comm, const char *call, const char *which,
                                  size_t element, enum sw_checked checked, struct known *k)
{
    const CUdeviceptr address = k->is->address;
    const size_t bytes = k->is->bytes;
    struct sw_allocation a;
    const enum sw_owned owned = sw_allocation_find(address, &a);
    symwin_status status = SYMWIN_OK;

    if (owned == SW_OWNED_FREE)
        return was_freed(call, which, address);
    if (owned == SW_OWNED_NOT && k->is_valid)
        return checked == SW_CHECKED_BEFORE && !is_known(k)
                   ? check_still(comm, call, which, address)
                   : SYMWIN_OK;
    if (owned == SW_OWNED_NOT) {
        status = sw_comm_check_buffer(comm, call, which, address);
        k->is_valid = status != SYMWIN_INVALID;
        return status;
    }
    if (!k->is_valid)
        status = sw_comm_check_device(comm, call, which, address, a.physical.device);
    if (!is_known(k))
        a.room = a.asked;
    k->room = sw_allocation_room(&a, address);
    k->is_valid = status != SYMWIN_INVALID;
    return status == SYMWIN_OK ? check_room(comm, call, which, element, address, bytes, k->room)
                               : status;
}

/* One buffer: in a public window, else registered, else any other device memory of this rank, or
 * pinned host memory. */
static symwin_status look_up(symwin_comm *comm, const char *call, const char *which,
                             symwin_type type, const struct sw_buffer *buffer,
                             enum sw_checked checked, struct known *k)
{
    const size_t element = symwin_type_bytes(type), bytes = buffer->bytes;
    const CUdeviceptr address = buffer->address;
    enum sw_found found;
    symwin_status status = SYMWIN_OK;

    *k = (struct known){.is = buffer, .found = SW_FOUND_NONE};
    if (bytes == 0)
        return SYMWIN_OK;
    if (address == 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL; pass device memory of %llu elements", call,
                       which, (unsigned long long)(bytes / element));
    found = sw_window_index_find(comm->index, (uintptr_t)address, bytes, &k->entry);
    k->in_window = found == SW_FOUND_ALL;
    if (!k->in_window)
        k->found = sw_registered_find(comm, (uintptr_t)address, bytes, &k->entry);
    k->is_valid = is_known(k);
    if (!k->is_valid && found == SW_FOUND_PART)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d's %llu elements (%zu bytes) at %s (0x%llx) pass the end of its "
                       "window, which has %zu bytes from there; pass fewer, or a buffer in a "
                       "larger window",
                       call, comm->rank, (unsigned long long)(bytes / element), bytes, which,
                       address, (size_t)(k->entry.end - (uintptr_t)address));
    k->is_valid = k->is_valid || checked != SW_CHECKED_NOT || k->in_window;
    if (k->in_window)
        k->room = (size_t)(k->entry.end - (uintptr_t)address);
    else
        status = check_memory(comm, call, which, element, checked, k);
    if (status == SYMWIN_OK && address % element != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %s is 0x%llx, which is not aligned to %s's %zu bytes; pass an address "
                       "that is a multiple of them",
                       call, which, address, symwin_type_name(type), element);
    return status;
}

/* ---- the connect agreement ------------------------------------------------------------------- */

/* Extends [*low, *high), the mapping at `ptr`, by adjoining mappings of its reservation, as far as
 * they overlap [begin, end). */
static void extend(CUdeviceptr ptr, uintptr_t begin, uintptr_t end, uintptr_t *low, uintptr_t *high)
{
    CUdeviceptr first = *low, last = *high;

    sw_physical_extend(ptr, begin, end, SW_PIECES, &first, &last);
    *low = (uintptr_t)first;
    *high = (uintptr_t)last;
}

/* Finds what this rank has of a buffer. */
static void make_offer(symwin_comm *comm, const struct known *b, struct sw_offer *o)
{
    const CUdeviceptr address = b->is->address;
    const uintptr_t begin = (uintptr_t)address, end = begin + b->is->bytes;
    struct sw_registrations *r = comm->registrations;
    struct sw_allocation a = {0};
    char text[SW_TEXT_BYTES];
    uintptr_t low, high, first = begin, last = end;
    CUdeviceptr start = 0;

    *o = (struct sw_offer){.settled = 1};
    if (!b->is->decides)
        return; /* the agreement is not about it */
    o->address = address;
    o->settled = is_settled(b);
    o->can = 1;
    if (sw_allocation_find(address, &a) == SW_OWNED_LIVE) {
        low = (uintptr_t)a.begin;
        high = low + a.room;
    } else {
        memcpy(text, symwin_last_error(), sizeof text);
        o->can = sw_physical_find("a buffer", address, &a.physical) == SYMWIN_OK;
        sw_error_restore(text); /* not VMM memory: o->can tells all ranks */
        low = o->can ? (uintptr_t)a.physical.base : begin;
        high = o->can ? low + a.physical.bytes : end;
    }
    if (o->can && !a.owned)
        extend(address, begin, end, &low, &high);
    o->can = o->can && begin >= low && end <= high && a.physical.device == comm->device;
    o->buffer_id = a.physical.buffer_id;
    o->place = o->can ? begin - (uintptr_t)a.physical.base : 0;
    if (b->in_window)
        return;
    if (!a.owned && sw_drv.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                                 address) == CUDA_SUCCESS)
        o->start = (size_t)(address - start);
    else
        o->start = a.owned ? begin - (uintptr_t)a.begin : 0;
    pthread_mutex_lock(&r->mutex);
    o->registered = sw_range_cache_piece(&r->cache, begin) != NULL && b->found != SW_FOUND_NONE;
    if (o->registered) {
        o->buffer_id = sw_range_cache_piece(&r->cache, begin)->buffer_id;
        sw_range_cache_span(&r->cache, begin, &first, &last);
    }
    o->births = r->cache.births;
    pthread_mutex_unlock(&r->mutex);
    if (o->can && !a.owned)
        extend(address, first, last, &low, &high);
    if (o->can) {
        first = first > low ? first : low;
        last = last < high ? last : high;
    }
    o->before = first < begin ? begin - first : 0;
    o->after = last > end ? last - end : 0;
}

static symwin_status run_agreement(symwin_comm *comm, const char *call, struct known buffers[2],
                                   size_t bytes, symwin_status status, int can,
                                   struct sw_connected *by[2])
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct sw_offer offers[2];
    int b;

    for (b = 0; b < 2; b++) {
        make_offer(comm, &buffers[b], &offers[b]);
        offers[b].can = offers[b].can && can;
    }
    /* Relaxed mode: these driver calls must not invalidate other captures of this thread. */
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    status = sw_register_agree(comm, call, status, offers, bytes, by);
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    for (b = 0; b < 2 && status == SYMWIN_OK; b++) {
        if (by[b] == NULL)
            continue;
        buffers[b].in_window = 0;
        buffers[b].found = SW_FOUND_ALL;
        buffers[b].entry = sw_window_entry(&by[b]->window, (uintptr_t)by[b]);
    }
    return status;
}

/* Lets a capture hold the connections that the call uses: `by`, or what settled the buffers
 * before. */
static void hold(struct sw_registrations *r, const struct known buffers[2],
                 struct sw_connected *by[2])
{
    int b;

    pthread_mutex_lock(&r->mutex);
    for (b = 0; b < 2; b++) {
        const struct sw_buffer *is = buffers[b].is;
        struct sw_use *use = NULL;

        if ((is->decides || is->told) && !buffers[b].in_window && by[b] == NULL &&
            buffers[b].found == SW_FOUND_ALL &&
            sw_range_cache_find(&r->cache, (uintptr_t)is->address,
                                (uintptr_t)is->address + is->bytes, &use) != NULL)
            by[b] = (struct sw_connected *)use;
        sw_held_add(r, by[b]);
    }
    pthread_mutex_unlock(&r->mutex);
}

void sw_capture_see(CUstream stream, struct sw_stream_seen *seen)
{
    *seen = (struct sw_stream_seen){.capturing = CU_STREAM_CAPTURE_STATUS_NONE};
    seen->result = sw_drv.cuStreamGetCaptureInfo_v2(stream, &seen->capturing, &seen->capture.id,
                                                    &seen->capture.graph, NULL, NULL);
    if (seen->result != CUDA_SUCCESS)
        seen->capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (seen->capturing != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        seen->capture.id = 0;
}

/* Finds the capture that the stream is in. `status` is an earlier result: if it is an error, that
 * is returned, with its text. */
static symwin_status find_capture(const char *call, symwin_status status,
                                  const struct sw_launched *launched, struct sw_stream_seen *seen)
{
    if (launched->seen != NULL)
        *seen = *launched->seen;
    else
        sw_capture_see(launched->stream, seen);
    return status != SYMWIN_OK ? status
                               : sw_check_stream(seen->result, call, "cuStreamGetCaptureInfo");
}

/* Whether a buffer needs an agreement. Also true if the call has failed on this rank, unless the
 * address is not valid: the other ranks may have their buffers in a window, and not come. */
static int is_unsettled(const struct known *k)
{
    return k->is_valid && !is_settled(k);
}

/* Runs the agreement if all ranks do, and lets a capture hold what the call uses. */
static symwin_status prepare(symwin_comm *comm, const char *call, symwin_status status,
                             struct known buffers[2], struct sw_launched *launched)
{
    int settled = 1, unsettled = 0, known = 1; /* of those that decide */
    struct sw_registrations *r = comm->registrations;
    struct sw_connected *by[2] = {NULL, NULL};
    struct sw_stream_seen seen;
    symwin_status reserved = SYMWIN_OK;
    char text[SW_TEXT_BYTES];
    size_t bytes = 0;
    int agrees, holds, b;

    for (b = 0; b < 2; b++) {
        const struct known *k = &buffers[b];

        if (!k->is->decides)
            continue;
        settled = settled && is_settled(k);
        unsettled = unsettled || is_unsettled(k);
        known = known && is_known(k);
        bytes = k->is->bytes;
    }
    status = find_capture(call, status, launched, &seen);
    /* An invalidated capture counts as a capture: the other ranks wait for this one. */
    agrees = unsettled && (known || (seen.capturing != CU_STREAM_CAPTURE_STATUS_NONE &&
                                     captures_register(comm)));
    launched->agrees = agrees && launched->later;
    if (launched->agrees || (status != SYMWIN_OK && !agrees))
        return status;
    if (status == SYMWIN_OK && agrees)
        status = sw_check_capture(seen.capturing, call);
    /* Otherwise the call uses no connection, and there is nothing to hold. */
    holds = status == SYMWIN_OK && seen.capture.id != 0 && (agrees || settled) && !launched->checks;
    if (holds) {
        memcpy(text, symwin_last_error(), sizeof text);
        reserved = sw_held_reserve(call, r, &seen.capture);
        if (reserved != SYMWIN_OK && agrees && !known)
            sw_error_restore(text);
    }
    if (status == SYMWIN_OK && known)
        status = reserved;
    if (agrees)
        /* A failed reservation is no error if only the capture registers the buffers: this rank
         * reports that it cannot share, and no rank gets a window. */
        status = run_agreement(comm, call, buffers, bytes, status, reserved == SYMWIN_OK, by);
    else
        status = reserved;
    if (status == SYMWIN_OK && holds && reserved == SYMWIN_OK)
        hold(r, buffers, by);
    for (b = 0; b < 2; b++)
        if (by[b] != NULL && by[b]->window.held != 0) { /* ranges and graphs hold memory */
            sw_allocation_drop(by[b]->window.held);
            by[b]->window.held = 0;
        }
    return status;
}

/* Whether prepare() may have anything to do. */
static int may_agree(const symwin_comm *comm, const struct known *k)
{
    if (k->in_window)
        return 0;
    return (k->is->decides && (captures_register(comm) || k->found != SW_FOUND_NONE)) ||
           (k->is->told && k->found == SW_FOUND_ALL);
}

symwin_status sw_buffers_find(symwin_comm *comm, const char *call, const char *agreement,
                              symwin_status status, symwin_type type, struct sw_buffer buffers[2],
                              struct sw_launched *launched)
{
    static const char *const names[2] = {"in", "out"};
    struct known known[2];
    char text[SW_TEXT_BYTES];
    const enum sw_checked checked = launched != NULL ? launched->checked : SW_CHECKED_NOT;
    int b;

    for (b = 0; b < 2; b++) {
        const symwin_status before = status;

        /* After a failure the other ranks may start an agreement. What is known of both buffers
         * says whether they do. */
        if (before != SYMWIN_OK)
            memcpy(text, symwin_last_error(), sizeof text);
        status = look_up(comm, call, names[b], type, &buffers[b], checked, &known[b]);
        if (before != SYMWIN_OK) {
            status = before;
            sw_error_restore(text);
        }
    }
    if (launched != NULL && (may_agree(comm, &known[0]) || may_agree(comm, &known[1])))
        status = prepare(comm, agreement, status, known, launched);
    for (b = 0; b < 2 && status == SYMWIN_OK; b++) {
        const struct sw_window_index_entry *e = &known[b].entry;

        buffers[b].room = known[b].room;
        if (!is_settled(&known[b]) || e->transports == 0)
            continue;
        buffers[b].in_window = 1;
        buffers[b].is_public = known[b].in_window;
        buffers[b].transports = e->transports;
        buffers[b].offset = e->offset + ((uintptr_t)buffers[b].address - e->begin);
        buffers[b].memory = e->memory;
        buffers[b].within = e->within + ((uintptr_t)buffers[b].address - e->begin);
    }
    return status;
}
