/* The connect agreement of all ranks: what serves the buffers of a call, and which connections go.
 *
 * Each rank reports what it has; all ranks decide from the same ballots. A buffer that the program
 * registered on all ranks becomes a window or is refused, together with the bytes around it that
 * all ranks have registered. So all ranks decide alike whether a later call's buffer lies in it. A
 * buffer that only a capture registers gets a window of just the buffer, or uses a connection that
 * all ranks have already.
 *
 * A connection that nothing on this rank uses any more is over. It is removed once all ranks have
 * reported it as over. A rank reports it only when its device has ended all calls that may use it.
 * It knows that from the block count, which it copies to the host on a separate stream, without
 * waiting for the copy.
 *
 * Only the thread in a collective call runs this.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/window/register.h"

/* The flags of a buffer. F_SAME: the two buffers have one address. F_NEAR: the registered bytes
 * around them begin at one address. */
enum { F_SETTLED = 1, F_REGISTERED = 2, F_CAN = 4, F_SAME = 8, F_NEAR = 16 };

/* Indices of the ballot's values: first for each of the two buffers, then for the call. */
enum { V_FLAGS, V_BEFORE, V_AFTER, V_ID, V_OFFSET, V_PHYSICAL, V_BUFFER };
enum { V_BYTES = 2 * V_BUFFER, V_OVER, V_COUNT };
_Static_assert((int)V_COUNT <= SW_BALLOT_VALUES, "a ballot has room for all values");

enum { ASKED = 64 }; /* connections that one agreement asks about: bits of a value */

/* What all ballots together say about one buffer. */
struct plan {
    int settled, registered, can; /* on all ranks */
    int unable;                   /* the first rank that cannot share it; -1: all can */
    int whole;                    /* the registered bytes around it are equally many on all ranks */
    uint64_t id;                  /* of the connection that all have around it, 0: none */
    uint64_t before, after;       /* bytes before and after it that all ranks have registered */
    int alike;                    /* the same connections serve those on all ranks */
    int placed;                   /* its offset in the allocation is the same on all ranks */
    int apart; /* its offset in the physical allocation is not: a window is impossible */
};

static uint64_t ballot(const symwin_comm *comm, int rank, int buffer, int what)
{
    return comm->ballots[rank].values[buffer * V_BUFFER + what];
}

static struct plan make_plan(const symwin_comm *comm, int b)
{
    struct plan p = {.unable = -1, .whole = 1, .id = ballot(comm, 0, b, V_ID)};
    const uint64_t around = ballot(comm, 0, b, V_BEFORE) + ballot(comm, 0, b, V_AFTER);
    uint64_t all = UINT64_MAX;
    int r;

    p.before = p.after = UINT64_MAX;
    for (r = 0; r < comm->nranks; r++) {
        const uint64_t before = ballot(comm, r, b, V_BEFORE), after = ballot(comm, r, b, V_AFTER);

        all &= ballot(comm, r, b, V_FLAGS);
        p.unable = p.unable < 0 && (ballot(comm, r, b, V_FLAGS) & F_CAN) == 0 ? r : p.unable;
        p.before = before < p.before ? before : p.before;
        p.after = after < p.after ? after : p.after;
        p.whole = p.whole && before + after == around;
        if (ballot(comm, r, b, V_ID) != p.id ||
            ballot(comm, r, b, V_OFFSET) != ballot(comm, 0, b, V_OFFSET))
            p.id = 0;
        p.apart = p.apart || ballot(comm, r, b, V_PHYSICAL) != ballot(comm, 0, b, V_PHYSICAL);
    }
    p.settled = (all & F_SETTLED) != 0;
    p.registered = (all & F_REGISTERED) != 0;
    p.can = (all & F_CAN) != 0;
    return p;
}

/* ---- removing connections -------------------------------------------------------------------- */

/* Updates r->counted, the number of blocks that the device has ended: takes the result of the last
 * copy and starts a new one, for the next agreement. */
static void update_counted(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    CUresult result = CUDA_SUCCESS;

    if (r->copying) {
        if (sw_drv.cuStreamQuery(r->side) != CUDA_SUCCESS)
            return;
        r->copying = 0;
        r->counted = __atomic_load_n(&comm->report->done, __ATOMIC_RELAXED);
    }
    if (r->counted == comm->done)
        return;
    if (r->side == NULL)
        result = sw_drv.cuStreamCreate(&r->side, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = sw_drv.cuMemcpyAsync(comm->report_address +
                                          offsetof(struct sw_kernel_report, done),
                                      comm->done_address, sizeof(uint32_t), r->side);
    sw_drop(result, "the copy of the count of blocks");
    r->copying = result == CUDA_SUCCESS;
}

/* Marks the connections that nothing on this rank uses any more. Bit i of the result: the i-th
 * connection from r->asked on may be removed. */
static uint64_t find_over(symwin_comm *comm)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_connected *c;
    uint64_t bits = 0, i = 0;
    int any = 0;

    if (r->keeps)
        return 0;
    sw_returns_collect(comm);
    pthread_mutex_lock(&r->mutex);
    for (c = r->connected; c != NULL; c = c->next) {
        if (!c->over && c->graphs == 0 && c->use.pieces == 0) {
            c->over = 1;
            c->done = comm->done;
        }
        c->done = sw_done_since(comm, c->done);
        any |= c->over;
    }
    pthread_mutex_unlock(&r->mutex);
    r->counted = sw_done_since(comm, r->counted);
    if (any)
        update_counted(comm);
    for (c = r->connected; c != NULL && any; c = c->next) {
        if (c->id < r->asked)
            continue;
        if (i == ASKED)
            break;
        if (c->over && (int32_t)(r->counted - c->done) >= 0)
            bits |= (uint64_t)1 << i;
        i++;
    }
    return bits;
}

/* Removes the connections that are over on all ranks: bit i is the i-th from r->asked on. */
static void remove_connections(symwin_comm *comm, uint64_t bits)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_connected *gone = NULL, **at = &r->connected, *c;
    uint64_t last = 0, i = 0;

    pthread_mutex_lock(&r->mutex);
    while ((c = *at) != NULL && i < ASKED) {
        if (c->id < r->asked) {
            at = &c->next;
            continue;
        }
        last = c->id;
        if ((bits >> i++ & 1) == 0) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->next = gone;
        gone = c;
    }
    r->asked = *at != NULL ? last + 1 : 0;
    pthread_mutex_unlock(&r->mutex);
    while ((c = gone) != NULL) {
        gone = c->next;
        sw_connected_release(comm, c);
    }
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Makes a window of the buffer and p->before and p->after bytes around it. An error has ended the
 * communicator; any other failure is a refusal, made->refused. */
static symwin_status make_window(symwin_comm *comm, const char *call, const struct sw_offer *o,
                                 size_t bytes, const struct plan *p, struct sw_connected *made)
{
    symwin_status status;

    if (!p->can) {
        snprintf(made->refused, sizeof made->refused,
                 "rank %d's buffer is not in VMM memory, or passes its end; allocate it with "
                 "symwin_mem_alloc, ncclMemAlloc or another cuMemCreate allocator",
                 p->unable);
        return SYMWIN_OK;
    }
    status = sw_window_register(comm, call, SYMWIN_OK, (void *)(uintptr_t)(o->address - p->before),
                                bytes + (size_t)(p->before + p->after),
                                p->registered ? 0 : SYMWIN_WINDOW_NO_MULTICAST, &made->window);
    if (status == SYMWIN_OK)
        return SYMWIN_OK;
    if (sw_exchange_settled(comm->group->exchange, call) != SYMWIN_OK)
        return status;
    snprintf(made->refused, sizeof made->refused, "%s", symwin_last_error());
    return SYMWIN_OK;
}

/* A hash of which connections serve which of the buffer's registered bytes in [begin, end). */
static uint64_t layout(struct sw_registrations *r, uint64_t buffer_id, uintptr_t begin,
                       uintptr_t end)
{
    const struct sw_use *last = NULL;
    uint64_t sum = 0;
    size_t i;

    pthread_mutex_lock(&r->mutex);
    for (i = 0; i < r->cache.piece_count; i++) {
        const struct sw_piece *p = &r->cache.pieces[i];
        const struct sw_connected *c = (const struct sw_connected *)p->use;

        if (p->end <= begin || p->begin >= end || p->buffer_id != buffer_id || p->use == last)
            continue;
        sum = (sum ^ ((p->begin > begin ? p->begin : begin) - begin)) * 0x9e3779b97f4a7c15u;
        sum = ((sum ^ sum >> 32) + (c != NULL ? c->id : 0)) * 0xbf58476d1ce4e5b9u;
        sum ^= sum >> 29;
        last = p->use;
    }
    pthread_mutex_unlock(&r->mutex);
    return sum;
}

/* Sets p->alike: whether the same connections serve the same bytes around the buffer on all ranks.
 * Compares the bytes that all ranks have registered and, if a refusal would cover them, all
 * registered bytes. Sets p->placed too. */
static symwin_status compare_layouts(symwin_comm *comm, const char *call, const struct sw_offer *o,
                                     size_t bytes, struct plan *p)
{
    const uintptr_t begin = (uintptr_t)o->address, end = begin + bytes;
    struct sw_registrations *r = comm->registrations;
    const uint64_t values[3] = {
        layout(r, o->buffer_id, begin - (uintptr_t)p->before, end + (uintptr_t)p->after),
        layout(r, o->buffer_id, begin - o->before, end + o->after),
        o->start,
    };
    symwin_status status = sw_comm_agree(comm, call, SYMWIN_OK, values, 3);
    int i;

    p->alike = p->placed = 1;
    for (i = 0; i < comm->nranks && status == SYMWIN_OK; i++) {
        const uint64_t *theirs = comm->ballots[i].values, *first = comm->ballots[0].values;

        p->alike = p->alike && theirs[0] == first[0] && (!p->whole || theirs[1] == first[1]);
        p->placed = p->placed && theirs[2] == first[2];
    }
    return status;
}

/* Appends the connection as the newest and lets it serve the bytes that the program registered. If
 * ranks are not alike it serves only the buffer: otherwise it would take over different bytes from
 * other connections on each rank. */
static void publish(struct sw_registrations *r, const struct sw_offer *o, size_t bytes,
                    const struct plan *p, struct sw_connected *made)
{
    const uintptr_t begin = (uintptr_t)made->window.ptr, address = (uintptr_t)o->address;
    struct sw_connected **at = &r->connected;

    pthread_mutex_lock(&r->mutex);
    made->id = ++r->made;
    while (*at != NULL)
        at = &(*at)->next;
    *at = made;
    made->use.firm = made->refused[0] != '\0';
    if (p->registered && p->alike)
        sw_range_cache_serve(&r->cache, begin, begin + made->window.bytes, o->buffer_id, o->births,
                             0, &made->use);
    if (p->registered)
        sw_range_cache_serve(&r->cache, address, address + bytes, o->buffer_id, o->births, 1,
                             &made->use);
    pthread_mutex_unlock(&r->mutex);
}

static struct sw_connected *find_by_id(const struct sw_registrations *r, uint64_t id)
{
    struct sw_connected *c = r->connected;

    while (c != NULL && c->id != id)
        c = c->next;
    return c;
}

/* Finds or makes the connection of one buffer. A new one takes *spare, which is NULL then. */
static symwin_status connect_buffer(symwin_comm *comm, const char *call, const struct sw_offer *o,
                                    size_t bytes, struct plan *p, struct sw_connected **spare,
                                    struct sw_connected **by)
{
    struct sw_registrations *r = comm->registrations;
    struct sw_connected *made = *spare;
    struct plan just; /* without the bytes around, if only a capture registers it */
    symwin_status status = SYMWIN_OK;

    if (!p->registered && p->id != 0) {
        *by = find_by_id(r, p->id);
        return SYMWIN_OK;
    }
    if (p->registered)
        status = compare_layouts(comm, call, o, bytes, p);
    just = *p;
    if (!p->registered)
        just.before = just.after = 0;
    if (status == SYMWIN_OK)
        status = make_window(comm, call, o, bytes, &just, made);
    if (status != SYMWIN_OK || (made->refused[0] != '\0' && !p->registered))
        return status;
    /* Ranks that differ in the number of registered bytes and in the buffer's offset too cannot
     * record a refusal of the same bytes: each call asks again. */
    if (made->refused[0] != '\0' && !p->whole && !p->placed)
        return status;
    if (made->refused[0] != '\0') {
        const uint64_t before = p->whole ? o->before : p->before;
        const uint64_t after = p->whole ? o->after : p->after;

        made->window = (struct sw_window){
            .ptr = (void *)(uintptr_t)(o->address - before),
            .bytes = bytes + (size_t)(before + after),
            .buffer_id = o->buffer_id,
        };
    }
    publish(r, o, bytes, p, made);
    *by = made;
    *spare = NULL;
    return SYMWIN_OK;
}

/* Whether a buffer has a window or may get one, if only a capture registers it. */
static int may_serve(const struct plan *p)
{
    return p->settled || p->id != 0 || (p->can && !p->apart);
}

/* Decides and acts on the ballots of all ranks. */
static symwin_status decide(symwin_comm *comm, const char *call, const struct sw_offer offers[2],
                            size_t bytes, struct sw_connected *spares[2],
                            struct sw_connected *by[2])
{
    struct plan plans[2] = {make_plan(comm, 0), make_plan(comm, 1)};
    uint64_t bits = UINT64_MAX, theirs = bytes;
    int same = 1, apart = 1, near = 1, odd = -1, b, r, useful;
    symwin_status status = SYMWIN_OK;

    for (r = 0; r < comm->nranks; r++) { /* the next agreement overwrites the ballots */
        bits &= comm->ballots[r].values[V_OVER];
        same = same && (ballot(comm, r, 0, V_FLAGS) & F_SAME) != 0;
        apart = apart && (ballot(comm, r, 0, V_FLAGS) & F_SAME) == 0;
        near = near && (ballot(comm, r, 0, V_FLAGS) & F_NEAR) != 0;
        if (odd < 0 && comm->ballots[r].values[V_BYTES] != comm->ballots[0].values[V_BYTES]) {
            odd = r;
            theirs = comm->ballots[r].values[V_BYTES];
        }
    }
    bytes = (size_t)comm->ballots[0].values[V_BYTES];
    remove_connections(comm, bits);
    if (odd > 0)
        status = sw_fail(SYMWIN_MISMATCH,
                         "%s: rank 0 passes %zu bytes and rank %d %llu; pass the same number on "
                         "all ranks",
                         call, bytes, odd, (unsigned long long)theirs);
    /* A buffer that only a capture registers needs a window only if the other buffer gets one
     * too. */
    useful = may_serve(&plans[0]) && may_serve(&plans[1]);
    /* If some ranks work in place and others do not, none has windows: one buffer would be in two,
     * at two offsets. */
    for (b = 0; b < 2 && status == SYMWIN_OK && (same || apart); b++) {
        if (plans[b].settled || !(plans[b].registered || useful))
            continue;
        /* Both have one connection if they are the same, or if one refusal covers the bytes around
         * both. */
        if (b == 1 && (same || (near && plans[0].whole && plans[0].alike && by[0] != NULL &&
                                by[0]->use.firm)))
            by[1] = by[0];
        else
            status = connect_buffer(comm, call, &offers[b], bytes, &plans[b], &spares[b], &by[b]);
    }
    return status;
}

/* The newest connection around the buffer that can be used again. Ranks that have all captured the
 * buffer before find the same one. */
static const struct sw_connected *find_around(const symwin_comm *comm, const struct sw_offer *o,
                                              size_t bytes)
{
    const struct sw_registrations *r = comm->registrations;
    const struct sw_connected *c, *found = NULL;

    for (c = r->connected; c != NULL; c = c->next) {
        const uintptr_t begin = (uintptr_t)c->window.ptr;

        if (!c->over && c->refused[0] == '\0' && o->address >= begin &&
            o->address - begin <= c->window.bytes &&
            bytes <= c->window.bytes - (size_t)(o->address - begin) &&
            sw_connected_is_current(comm, c, (uintptr_t)o->address, bytes))
            found = c;
    }
    return found;
}

/* Allocates what this rank needs later, when the others already rely on it. */
static symwin_status reserve(struct sw_registrations *r, struct sw_connected *spares[2])
{
    int reserved, b;

    for (b = 0; b < 2; b++)
        spares[b] = calloc(1, sizeof *spares[b]);
    pthread_mutex_lock(&r->mutex);
    reserved = sw_range_cache_reserve(&r->cache, 4);
    pthread_mutex_unlock(&r->mutex);
    return spares[0] != NULL && spares[1] != NULL && reserved
               ? SYMWIN_OK
               : sw_fail(SYMWIN_NO_MEMORY, "no host memory to connect registered buffers");
}

symwin_status sw_register_agree(symwin_comm *comm, const char *call, symwin_status status,
                                const struct sw_offer offers[2], size_t bytes,
                                struct sw_connected *by[2])
{
    const int asked = offers[0].registered || offers[1].registered;
    const int same = offers[0].address == offers[1].address;
    const int near = offers[0].registered && offers[1].registered &&
                     offers[0].address - offers[0].before == offers[1].address - offers[1].before;
    struct sw_registrations *r = comm->registrations;
    struct sw_connected *spares[2] = {NULL, NULL};
    symwin_status reserved = SYMWIN_OK;
    uint64_t values[V_COUNT] = {0};
    char text[SW_TEXT_BYTES];
    int b, absent;

    memcpy(text, symwin_last_error(), sizeof text);
    values[V_BYTES] = bytes;
    values[V_OVER] = find_over(comm);
    if (status == SYMWIN_OK)
        reserved = reserve(r, spares);
    for (b = 0; b < 2; b++) {
        uint64_t *v = &values[b * V_BUFFER];
        const struct sw_connected *around = offers[b].can ? find_around(comm, &offers[b], bytes)
                                                          : NULL;

        v[V_FLAGS] = (offers[b].settled ? F_SETTLED : 0u) |
                     (offers[b].registered ? F_REGISTERED : 0u) | (same ? F_SAME : 0u) |
                     (near ? F_NEAR : 0u) | (offers[b].can && reserved == SYMWIN_OK ? F_CAN : 0u);
        v[V_BEFORE] = offers[b].before;
        v[V_AFTER] = offers[b].after;
        v[V_ID] = around != NULL ? around->id : 0;
        v[V_OFFSET] = around != NULL ? offers[b].address - (uintptr_t)around->window.ptr : 0;
        v[V_PHYSICAL] = offers[b].place % comm->group->granularity;
    }
    /* No failure if only a capture registers the buffers: the program did not ask for that. */
    status = status == SYMWIN_OK && asked ? reserved : status;
    comm->sequence++;
    status = sw_comm_agree(comm, call, status, values, V_COUNT);
    absent = status == SYMWIN_TIMEOUT ? sw_comm_absent(comm) : -1;
    if (absent == comm->rank) /* it is here, and the others' kernels waited for it */
        sw_fail(status,
                "%s: other ranks waited for rank %d until their time was over, but not in the "
                "agreement about registered buffers, where it is: they have not made this call, or "
                "their buffers are not registered, or their calls are not captured, as here; "
                "register the buffers (symwin_register) on all ranks or none, and destroy the "
                "communicator on every rank",
                call, sw_exchange_number(comm->group->exchange, absent));
    else if (absent >= 0) /* it may well have made the call */
        sw_fail(status,
                "%s: rank %d did not come to the agreement about registered buffers in time: it "
                "has not made this call, or its buffers are not registered, or its call is not "
                "captured, as here; register the buffers (symwin_register) on all ranks or none, "
                "and destroy the communicator on every rank",
                call, sw_exchange_number(comm->group->exchange, absent));
    if (status == SYMWIN_OK)
        status = decide(comm, call, offers, bytes, spares, by);
    if (status == SYMWIN_OK)
        sw_error_restore(text);
    pthread_mutex_lock(&r->mutex);
    sw_range_cache_reserve(&r->cache, 0);
    pthread_mutex_unlock(&r->mutex);
    free(spares[0]);
    free(spares[1]);
    return status;
}
