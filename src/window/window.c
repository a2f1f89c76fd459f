/* The public calls on windows: handles and queries; and the communicator's own memory.
 * window_register.c creates windows.
 *
 * The communicator's mutex protects the handle table. Registration is collective; all other calls
 * are local and may come from any thread.
 */
#include <stdlib.h>

#include "src/window/window.h"

/* ---- handles ---- */

/* Makes room for one more window, so that publish() cannot fail. */
static symwin_status reserve(symwin_comm *comm)
{
    size_t room;
    int reserved;

    pthread_mutex_lock(&comm->mutex);
    room = comm->windows.room;
    reserved = sw_handle_table_reserve(&comm->windows);
    pthread_mutex_unlock(&comm->mutex);
    return reserved ? SYMWIN_OK
                    : sw_fail(SYMWIN_NO_MEMORY, "no host memory for more than %zu windows", room);
}

/* Copies the live window of a handle. */
static symwin_status get(const char *call, symwin_comm *comm, const symwin_window *window,
                         struct sw_window *out)
{
    const struct sw_window *found;
    const symwin_status status = sw_fork_check(call);

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", call);
    pthread_mutex_lock(&comm->mutex);
    found = sw_handle_table_find(&comm->windows, (uintptr_t)window);
    if (found != NULL)
        *out = *found;
    pthread_mutex_unlock(&comm->mutex);
    if (found == NULL)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %p is no live window of rank %d's communicator: it was deregistered "
                       "before, or belongs to another communicator",
                       call, (const void *)window, comm->rank);
    return SYMWIN_OK;
}

/* Gives the window a handle and enters it in the window index. Cannot fail: room was reserved. */
static symwin_window *publish(symwin_comm *comm, struct sw_window *window)
{
    struct sw_window_index_entry entry;

    pthread_mutex_lock(&comm->mutex);
    window->handle = sw_handle_table_add(&comm->windows, window);
    entry = sw_window_entry(window, window->handle);
    sw_window_index_insert(comm->index, &entry);
    pthread_mutex_unlock(&comm->mutex);
    return (symwin_window *)window->handle;
}

static symwin_status register_with(symwin_comm *comm, const char *call, void *ptr, size_t bytes,
                                   unsigned flags, symwin_window **out)
{
    struct sw_window *window;
    struct sw_scope scope;
    symwin_status status = sw_comm_enter(comm, call);

    if (status != SYMWIN_OK)
        return status;
    /* After a failure from here on this rank still joins the agreement, to tell the others. */
    status = sw_scope_enter_context(comm->context, &scope);
    window = calloc(1, sizeof *window);
    if (status == SYMWIN_OK && out == NULL)
        status = sw_fail(SYMWIN_INVALID, "window is NULL; pass where to put the handle");
    if (status == SYMWIN_OK && window == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory for a window");
    if (status == SYMWIN_OK)
        status = reserve(comm);
    if (status == SYMWIN_OK)
        status = sw_window_index_reserve(comm->index, 1);
    status = sw_window_register(comm, call, status, ptr, bytes, flags, window);
    if (status == SYMWIN_OK)
        *out = publish(comm, window);
    else
        free(window);
    sw_scope_leave(&scope);
    sw_comm_leave(comm);
    sw_allocations_settle(); /* a failure may have dropped the last hold on freed memory */
    return status;
}

symwin_status symwin_window_register(symwin_comm *comm, void *ptr, size_t bytes, unsigned flags,
                                     symwin_window **out)
{
    static const char call[] = "symwin_window_register";
    const symwin_status status = register_with(sw_comm_inside(comm), call, ptr, bytes, flags, out);

    return sw_comm_reason(comm, call, status);
}

symwin_status symwin_window_deregister(symwin_comm *comm, symwin_window *window)
{
    static const char call[] = "symwin_window_deregister";
    struct sw_window *found = NULL;
    struct sw_window copy;
    symwin_status status;

    comm = sw_comm_inside(comm);
    status = get(call, comm, window, &copy);
    if (status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&comm->mutex);
    found = sw_handle_table_find(&comm->windows, copy.handle); /* NULL: another thread was faster */
    if (found != NULL) {
        sw_handle_table_remove(&comm->windows, copy.handle);
        sw_window_index_remove(comm->index, found->handle);
    }
    pthread_mutex_unlock(&comm->mutex);
    if (found == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %p was deregistered by another thread meanwhile", call,
                       (void *)window);
    sw_window_detach(comm, found);
    free(found);
    sw_allocations_settle();
    return SYMWIN_OK;
}

void sw_window_detach_all(symwin_comm *comm)
{
    struct sw_window *window;
    size_t at = 0;

    while ((window = sw_handle_table_next(&comm->windows, &at)) != NULL) {
        sw_handle_table_remove(&comm->windows, window->handle);
        sw_window_detach(comm, window);
        free(window);
    }
    sw_window_detach(comm, &comm->memory->window);
}

/* ---- the communicator's own memory ---- */

/* It does not come from a pool: after a failed call, kernels of peers may write to it until they
 * end. Their mappings keep the physical memory alive until then, so it must not be reused for
 * anything else. */
symwin_status sw_own_memory_create(symwin_comm *comm, const char *call)
{
    struct sw_memory *memory = &comm->memory->memory;
    symwin_status status = sw_pool_create_apart(
        call, comm->device, SW_STATE_BYTES(comm->nranks, comm->slot_bytes), memory);

    if (status == SYMWIN_NO_MEMORY)
        sw_fail(status,
                "%s; pass a smaller slot_bytes, or free memory of the device, also "
                "in other processes (symwin_mem_trim)",
                symwin_last_error());
    if (status != SYMWIN_OK)
        return status;
    comm->stage = SW_COMM_MEMORY;
    return sw_memory_fill(memory->base, 0, memory->bytes);
}

symwin_status sw_own_memory_register(symwin_comm *comm, const char *call)
{
    struct sw_comm_memory *own = comm->memory;
    const symwin_status status = sw_window_register(
        comm, call, SYMWIN_OK, (void *)(uintptr_t)own->memory.base,
        SW_STATE_BYTES(comm->nranks, comm->slot_bytes), SYMWIN_WINDOW_NO_MULTICAST, &own->window);

    if (status != SYMWIN_OK)
        return status;
    comm->stage = SW_COMM_REGISTERED;
    comm->state_offset = own->window.offset;
    return SYMWIN_OK;
}

/* ---- queries ---- */

symwin_status symwin_window_query(symwin_comm *comm, const symwin_window *window,
                                  symwin_window_info *info)
{
    static const char call[] = "symwin_window_query";
    const struct sw_window *found;
    struct sw_window w;
    symwin_status status;

    if (info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: info is NULL", call);
    comm = sw_comm_inside(comm);
    status = get(call, comm, window, &w);
    if (status != SYMWIN_OK)
        return status;
    *info = (symwin_window_info){
        .ptr = w.ptr,
        .bytes = w.bytes,
        .base = (void *)(uintptr_t)comm->group->base,
        .stride = comm->group->stride,
        .offset = w.offset,
        .rank = comm->rank,
        .nranks = comm->nranks,
        .transports = w.transports,
        .buffer_id = w.buffer_id,
        .allocations = w.pieces,
    };
    pthread_mutex_lock(&comm->mutex);
    found = sw_handle_table_find(&comm->windows, w.handle); /* it holds the segment */
    if (found != NULL && (w.transports & SYMWIN_TRANSPORT_MULTICAST) == 0)
        sw_multicast_reason(w.segment, w.offset - w.segment->offset + w.bytes, w.refused,
                            info->multicast_reason, sizeof info->multicast_reason);
    pthread_mutex_unlock(&comm->mutex);
    return SYMWIN_OK;
}

symwin_status symwin_window_peer_pointer(symwin_comm *comm, const symwin_window *window, int peer,
                                         size_t offset, void **ptr)
{
    static const char call[] = "symwin_window_peer_pointer";
    struct sw_window w;
    symwin_status status;

    if (ptr == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: ptr is NULL", call);
    comm = sw_comm_inside(comm);
    status = get(call, comm, window, &w);
    if (status != SYMWIN_OK)
        return status;
    if (peer < 0 || peer >= comm->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d; pass 0 to %d", call, peer,
                       comm->nranks - 1);
    if (offset >= w.bytes)
        return sw_fail(SYMWIN_INVALID, "%s: offset %zu is past the window of %zu bytes", call,
                       offset, w.bytes);
    *ptr = (void *)(uintptr_t)sw_group_address(comm->group, peer, w.offset + offset);
    return SYMWIN_OK;
}

symwin_status symwin_window_multicast_pointer(symwin_comm *comm, const symwin_window *window,
                                              size_t offset, void **ptr)
{
    static const char call[] = "symwin_window_multicast_pointer";
    struct sw_window w;
    symwin_status status;

    if (ptr == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: ptr is NULL", call);
    comm = sw_comm_inside(comm);
    status = get(call, comm, window, &w);
    if (status != SYMWIN_OK)
        return status;
    if ((w.transports & SYMWIN_TRANSPORT_MULTICAST) == 0)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: this window has no multicast address (symwin_window_query() says why); "
                       "use peer pointers",
                       call);
    if (offset >= w.bytes)
        return sw_fail(SYMWIN_INVALID, "%s: offset %zu is past the window of %zu bytes", call,
                       offset, w.bytes);
    *ptr = (void *)(uintptr_t)sw_group_address(comm->group, comm->nranks, w.offset + offset);
    return SYMWIN_OK;
}

symwin_status symwin_window_find(symwin_comm *comm, const void *ptr, size_t bytes,
                                 symwin_window **window)
{
    static const char call[] = "symwin_window_find";
    const symwin_status status = sw_fork_check(call);
    struct sw_window_index_entry entry;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL || window == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, comm == NULL ? "comm" : "window");
    comm = sw_comm_inside(comm);
    if (sw_window_index_find(comm->index, (uintptr_t)ptr, bytes, &entry) != SW_FOUND_ALL)
        return sw_fail(SYMWIN_INVALID, "%s: no window of rank %d contains %zu bytes at %p", call,
                       comm->rank, bytes, ptr);
    *window = (symwin_window *)entry.window;
    return SYMWIN_OK;
}
