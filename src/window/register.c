/* What is registered: which memory, which connections serve it, and what graphs hold.
 *
 * Each communicator has one mutex for all of this. No thread holds it while it waits for other
 * ranks or unmaps memory. Until the communicator is destroyed, only connect agreements add and
 * remove connections (register_agree.c).
 *
 * A capture holds its connections by one user object in its graph. The object's callback must not
 * call the driver, and may come late and on any thread. So it only appends the object to a list;
 * sw_returns_collect() empties that later.
 */
#include <stdlib.h>
#include <string.h>

#include "src/window/register.h"

/* ---- what graphs hold ------------------------------------------------------------------------ */

struct sw_held {
    struct sw_held *next;
    struct sw_returns *returns; /* a reference */
    struct sw_connected **by;   /* owned: `count` connections that it holds, each once */
    size_t count, room;
};

struct sw_returns {
    atomic_int refs; /* one for the communicator, one for each struct sw_held */
    _Atomic(struct sw_held *) list;
};

static struct sw_returns *create_returns(void)
{
    struct sw_returns *returns = calloc(1, sizeof *returns);

    if (returns != NULL)
        atomic_init(&returns->refs, 1);
    return returns;
}

static void free_held(struct sw_held *held)
{
    free(held->by);
    free(held);
}

static void unref_returns(struct sw_returns *returns)
{
    struct sw_held *held;

    if (returns == NULL || atomic_fetch_sub(&returns->refs, 1) != 1)
        return;
    held = atomic_load(&returns->list);
    while (held != NULL) {
        struct sw_held *next = held->next;

        free_held(held);
        held = next;
    }
    free(returns);
}

static void on_graph_destroyed(void *context)
{
    struct sw_held *held = context;
    struct sw_returns *returns = held->returns;

    held->next = atomic_load(&returns->list);
    while (!atomic_compare_exchange_weak(&returns->list, &held->next, held))
        ;
    unref_returns(returns);
}

void sw_returns_collect(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_held *held;

    if (atomic_load_explicit(&r->returns->list, memory_order_relaxed) == NULL)
        return;
    pthread_mutex_lock(&r->mutex);
    held = atomic_exchange(&r->returns->list, NULL);
    while (held != NULL) {
        struct sw_held *next = held->next;
        size_t i;

        for (i = 0; i < held->count; i++) {
            struct sw_connected *c = held->by[i];

            if (--c->graphs > 0 || c->held == 0)
                continue;
            sw_allocation_drop(c->held);
            c->held = 0;
        }
        free_held(held);
        held = next;
    }
    pthread_mutex_unlock(&r->mutex);
}

/* Makes the struct sw_held of a capture. The capture's graph owns it, through a user object. */
static symwin_status make_held(const char *call, struct sw_registrations *r,
                               const struct sw_capture *capture)
{
    struct sw_held *held = calloc(1, sizeof *held);
    CUuserObject object = NULL;
    symwin_status status;

    if (held == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to list the buffers of a graph", call);
    held->returns = r->returns;
    atomic_fetch_add(&r->returns->refs, 1);
    status = sw_check(sw_drv.cuUserObjectCreate(&object, held, on_graph_destroyed, 1,
                                                CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
                      "%s: cuUserObjectCreate", call);
    if (status != SYMWIN_OK) {
        unref_returns(held->returns);
        free_held(held);
        return status;
    }
    status = sw_check(
        sw_drv.cuGraphRetainUserObject(capture->graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE),
        "%s: cuGraphRetainUserObject", call);
    if (status != SYMWIN_OK) {
        sw_drop(sw_drv.cuUserObjectRelease(object, 1), "cuUserObjectRelease");
        return status;
    }
    r->capture = capture->id;
    r->held = held;
    return SYMWIN_OK;
}

symwin_status sw_held_reserve(const char *call, struct sw_registrations *r,
                              const struct sw_capture *capture)
{
    struct sw_held *held;
    symwin_status status;

    if (r->capture != capture->id) {
        status = make_held(call, r, capture);
        if (status != SYMWIN_OK)
            return status;
    }
    held = r->held;
    if (held->room - held->count < 2) {
        const size_t room = held->room == 0 ? 4 : 2 * held->room;
        struct sw_connected **by = realloc(held->by, room * sizeof(struct sw_connected *));

        if (by == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to list the buffers of a graph",
                           call);
        held->by = by;
        held->room = room;
    }
    return SYMWIN_OK;
}

void sw_held_add(struct sw_registrations *r, struct sw_connected *c)
{
    struct sw_allocation a = {0};

    if (c == NULL || c->refused[0] != '\0' || (c->graphs > 0 && c->capture == r->capture))
        return;
    if (c->graphs == 0 &&
        sw_allocation_hold((CUdeviceptr)(uintptr_t)c->window.ptr, &a) == SW_OWNED_LIVE)
        c->held = (CUdeviceptr)(uintptr_t)c->window.ptr;
    c->graphs++;
    c->capture = r->capture;
    r->held->by[r->held->count++] = c;
}

/* ---- creation and destruction ---------------------------------------------------------------- */

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
    r->returns = create_returns();
    if (r->returns == NULL || pthread_mutex_init(&r->mutex, NULL) != 0) {
        unref_returns(r->returns);
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

void sw_connected_release(symwin_comm *comm, struct sw_connected *c)
{
    if (c->held != 0)
        sw_allocation_drop(c->held);
    if (c->window.segment != NULL)
        sw_window_detach(comm, &c->window);
    free(c);
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
    unref_returns(r->returns);
    sw_handle_table_release(&r->handles);
    free(r);
    comm->registrations = NULL;
    sw_error_restore(text);
}

/* ---- what serves some bytes ------------------------------------------------------------------ */

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

    if ((buffer_id & SW_RESERVATION) == 0)
        return sw_buffer_at(begin) == buffer_id;
    if (c == NULL)
        return 1;
    last = (uintptr_t)c->window.ptr + c->window.bytes;
    return sw_connected_is_current(comm, c, begin, (end < last ? end : last) - begin);
}

struct sw_range *sw_registered_known(symwin_comm *comm, uintptr_t begin, size_t bytes)
{
    struct sw_range_cache *cache = &comm->registrations->cache;
    struct sw_range *range = sw_range_cache_known(cache, begin, begin + bytes);

    if (range != NULL && range->foreign &&
        !serves_current(comm, sw_range_cache_piece(cache, range->begin)->use, range->begin,
                        range->end, range->buffer_id)) {
        sw_range_cache_forget(cache, range->begin, range->end, range->buffer_id);
        range = NULL;
    }
    return range;
}

enum sw_found sw_registered_find(symwin_comm *comm, uintptr_t begin, size_t bytes,
                                 struct sw_window_index_entry *out)
{
    struct sw_registrations *r = comm->registrations;
    enum sw_found found = SW_FOUND_NONE;
    const struct sw_piece *piece;
    struct sw_use *use = NULL;

    if (atomic_load_explicit(&r->count, memory_order_relaxed) == 0 || bytes == 0)
        return SW_FOUND_NONE;
    pthread_mutex_lock(&r->mutex);
    piece = sw_range_cache_find(&r->cache, begin, begin + bytes, &use);
    if (piece != NULL) {
        found = use != NULL ? SW_FOUND_ALL : SW_FOUND_PART;
        if (piece->foreign && !serves_current(comm, use, begin, begin + bytes, piece->buffer_id)) {
            sw_range_cache_forget(&r->cache, begin, begin + bytes, piece->buffer_id);
            found = SW_FOUND_NONE;
        }
    }
    if (found == SW_FOUND_ALL)
        *out = sw_window_entry(&((struct sw_connected *)use)->window, (uintptr_t)use);
    pthread_mutex_unlock(&r->mutex);
    return found;
}
