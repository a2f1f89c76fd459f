/* Windows: collective registration, local deregistration.
 *
 * All ranks register in these steps. A failure on one rank becomes a failure on all at the next
 * agreement.
 *
 *   step        what is done                                                  agreements
 *   prepare     each rank finds its memory and holds it; it can undo that     one
 *   compare     sizes and flags must be equal, offsets modulo the
 *               granularity, in all ballots
 *   known?      if one segment has all ranks' allocations, with the window
 *               at one offset: go on to publish, or to multicast if the
 *               flags demand it
 *   offset      find one that is free in all processes                        one per round
 *   map         each rank maps its memory there, for all devices              one
 *   exchange    processes send and map each other's memory, piece by piece    one per piece
 *   wipe        between hosts: overwrite fabric handles in the exchange       one; two on failure
 *   multicast   bind memory to the object, which the first one makes          multicast.c
 *   publish     the handle and the window index entry (window.c)
 */
#include <stdlib.h>
#include <string.h>

#include "src/window/window.h"

/* A registration under way, and what it holds. */
struct attempt {
    const char *call;
    struct sw_physical *pieces; /* owned: the allocations that the window lies on */
    int count;
    size_t stretch; /* bytes of all pieces */
    /* Owned, as are the handles in it until a segment takes them; NULL: none. */
    CUmemGenericAllocationHandle *handles;
    CUdeviceptr held;           /* owned memory kept from being freed, 0: none */
    struct sw_segment *segment; /* a reference, NULL: none */
    size_t offset;              /* of the window in its first allocation */
    size_t flat_offset;         /* of the window in the flat range, once there is a segment */
    int tries;                  /* to have multicast: the same on all ranks */
};

enum {
    V_BYTES,
    V_FLAGS,
    V_OFFSET,
    V_SEGMENT,
    V_FLAT_OFFSET,
    V_STRETCH,
    V_PIECES,
    V_TRIES,
    V_COUNT
};

/* ---- prepare: what one rank can find out and undo alone ---- */

static symwin_status retain_handles(struct attempt *a)
{
    symwin_status status = SYMWIN_OK;
    int p;

    a->handles = calloc((size_t)a->count, sizeof *a->handles);
    if (a->handles == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d handles", a->count);
    for (p = 0; p < a->count && status == SYMWIN_OK; p++) {
        const CUdeviceptr base = a->pieces[p].base;

        status = sw_check(
            sw_drv.cuMemRetainAllocationHandle(&a->handles[p], (void *)(uintptr_t)base),
            "cuMemRetainAllocationHandle of 0x%llx", base);
        if (status != SYMWIN_OK)
            a->handles[p] = 0;
    }
    return status;
}

/* Finds the allocations under the window: one of symwin's own, or one or more of another
 * allocator. */
static symwin_status find_pieces(symwin_comm *comm, struct attempt *a,
                                 const struct sw_allocation *first, CUdeviceptr address,
                                 size_t bytes)
{
    size_t left = sw_allocation_room(first, address);
    symwin_status status;
    int p;

    /* An owned allocation is never joined with the memory behind it. */
    status = sw_physical_span(a->call, address, first->owned ? 1 : bytes, &first->physical,
                              &a->pieces, &a->count);
    if (status != SYMWIN_OK)
        return status;
    for (p = 0; p < a->count; p++) {
        if (a->pieces[p].device != comm->device)
            return sw_fail(SYMWIN_INVALID,
                           "%p is memory of device %d and this rank's communicator is on device %d",
                           (void *)(uintptr_t)(p == 0 ? address : a->pieces[p].base),
                           a->pieces[p].device, comm->device);
        a->stretch += a->pieces[p].bytes;
        left += p > 0 ? a->pieces[p].bytes : 0;
    }
    a->offset = (size_t)(address - a->pieces[0].base);
    if (bytes > left)
        return sw_fail(
            SYMWIN_INVALID,
            "the window of %zu bytes at %p passes the end of its allocation by %zu bytes", bytes,
            (void *)(uintptr_t)address, bytes - left);
    return SYMWIN_OK;
}

static symwin_status prepare(symwin_comm *comm, struct attempt *a, void *ptr, size_t bytes,
                             unsigned flags)
{
    const unsigned known = SYMWIN_WINDOW_MULTICAST | SYMWIN_WINDOW_NO_MULTICAST;
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    struct sw_allocation ours;
    symwin_status status;

    if (ptr == NULL)
        return sw_fail(SYMWIN_INVALID, "ptr is NULL");
    if (bytes == 0)
        return sw_fail(SYMWIN_INVALID, "bytes is 0; a window has at least one byte");
    if ((flags & ~known) != 0)
        return sw_fail(SYMWIN_INVALID,
                       "flags has 0x%x, which is unknown; pass SYMWIN_WINDOW_* or 0",
                       flags & ~known);
    if ((flags & known) == known)
        return sw_fail(SYMWIN_INVALID, "flags has SYMWIN_WINDOW_MULTICAST and "
                                       "SYMWIN_WINDOW_NO_MULTICAST; pass one of them, or 0");
    status = sw_memory_hold(a->call, address, &ours);
    if (status != SYMWIN_OK)
        return status;
    a->held = ours.owned ? address : 0;
    status = find_pieces(comm, a, &ours, address, bytes);
    if (status != SYMWIN_OK)
        return status;
    if ((flags & SYMWIN_WINDOW_MULTICAST) != 0 && !comm->group->multicast) {
        char lack[SW_REASON_BYTES];

        sw_multicast_lack(comm->group, lack, sizeof lack);
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "SYMWIN_WINDOW_MULTICAST was asked for, but this communicator has no "
                       "multicast: %s",
                       lack);
    }
    a->segment = sw_segment_find(comm->group, comm->rank, a->pieces, a->count, &a->flat_offset);
    a->flat_offset += a->offset;
    if (a->segment != NULL)
        return SYMWIN_OK;
    return retain_handles(a);
}

static void free_attempt(struct attempt *a)
{
    int p;

    for (p = 0; p < a->count && a->handles != NULL; p++)
        if (a->handles[p] != 0)
            sw_drop(sw_drv.cuMemRelease(a->handles[p]), "cuMemRelease");
    free(a->handles);
    free(a->pieces);
    *a = (struct attempt){.call = a->call};
}

/* The only teardown of a failed registration, whichever step failed. */
static void abandon(symwin_comm *comm, struct attempt *a)
{
    if (a->segment != NULL)
        sw_segment_release(comm->group, a->segment, comm->rank);
    if (a->held != 0)
        sw_allocation_drop(a->held);
    free_attempt(a);
}

/* ---- agree ---- */

/* Checks that value `i` is equal in all ballots. */
static symwin_status check_equal(symwin_comm *comm, const char *call, int i, const char *what,
                                 const char *advice)
{
    int r;

    for (r = 1; r < comm->nranks; r++)
        if (comm->ballots[r].values[i] != comm->ballots[0].values[i])
            return sw_fail(SYMWIN_MISMATCH, "%s: %s differs: %llu on rank %d, %llu on rank %d; %s",
                           call, what, (unsigned long long)comm->ballots[0].values[i],
                           sw_exchange_number(comm->group->exchange, 0),
                           (unsigned long long)comm->ballots[r].values[i],
                           sw_exchange_number(comm->group->exchange, r), advice);
    return SYMWIN_OK;
}

static symwin_status compare_ballots(symwin_comm *comm, const char *call)
{
    const uint64_t granularity = comm->group->granularity;
    const struct sw_ballot *ballots = comm->ballots;
    symwin_status status = check_equal(comm, call, V_BYTES, "bytes",
                                       "it must be equal on all ranks");
    int r;

    if (status == SYMWIN_OK)
        status = check_equal(comm, call, V_FLAGS, "flags", "it must be equal on all ranks");
    for (r = 0; r < comm->nranks && status == SYMWIN_OK; r++) {
        const uint64_t *v = ballots[r].values;

        if (v[V_OFFSET] % granularity != ballots[0].values[V_OFFSET] % granularity)
            status = check_equal(
                comm, call, V_OFFSET, "the offset in the allocation",
                "it must be equal on all ranks modulo the granularity (2 MiB): make the same "
                "allocations on all ranks, or use SYMWIN_MEM_OWN");
        else if (v[V_PIECES] < 1 || v[V_PIECES] > SW_PIECES || v[V_OFFSET] >= v[V_STRETCH])
            status = sw_fail(SYMWIN_MISMATCH,
                             "%s: rank %d's window is at byte %llu of %llu allocations of %llu "
                             "bytes",
                             call, sw_exchange_number(comm->group->exchange, r),
                             (unsigned long long)v[V_OFFSET], (unsigned long long)v[V_PIECES],
                             (unsigned long long)v[V_STRETCH]);
    }
    return status;
}

static int all_in_one_segment(const symwin_comm *comm)
{
    int r;

    for (r = 0; r < comm->nranks; r++)
        if (comm->ballots[r].values[V_SEGMENT] == 0 ||
            comm->ballots[r].values[V_SEGMENT] != comm->ballots[0].values[V_SEGMENT] ||
            comm->ballots[r].values[V_FLAT_OFFSET] != comm->ballots[0].values[V_FLAT_OFFSET])
            return 0;
    return 1;
}

/* A rank that knows of something that was unbound tries again, and all do. */
static int any_tries(const symwin_comm *comm)
{
    int r = 0;

    while (r < comm->nranks && comm->ballots[r].values[V_TRIES] == 0)
        r++;
    return r < comm->nranks;
}

/* ---- a new segment ---- */

/* A vote for no offset: segments that this process does not use are in the way, and agreements may
 * end them. */
#define NO_ROOM_YET UINT64_MAX

/* Each agreement ends one unused segment at most. After two scans of them that ended none, there is
 * none that no process uses. (The first may have begun before all ranks had released theirs.) */
static int may_gain_room(const symwin_comm *comm, size_t bytes, int64_t deadline)
{
    return bytes <= comm->group->limit && comm->unused_scans < 2 && sw_now_ms() < deadline &&
           sw_segment_unused_from(comm->group, 0) != 0;
}

/* The lowest rank that has voted so; -1: none. */
static int who_waits(const symwin_comm *comm)
{
    int r = 0;

    while (r < comm->nranks && comm->ballots[r].values[0] != NO_ROOM_YET)
        r++;
    return r < comm->nranks ? r : -1;
}

/* Finds an offset that is free in all processes. Each rank votes for its lowest free offset from a
 * common start; the highest vote is the next start, until all votes are equal. This takes one round
 * if all processes have registered and deregistered the same windows. A vote for none begins anew.
 * It ends whatever ranks vote for: the start only grows, and time is limited. */
static symwin_status find_offset(symwin_comm *comm, const struct attempt *a, symwin_status status,
                                 size_t bytes, size_t *offset)
{
    const int patience_ms = sw_comm_patience(comm);
    const int64_t deadline = sw_now_ms() + patience_ms;
    const struct sw_ballot *ballots = comm->ballots;
    unsigned long long from = 0;
    char text[SW_TEXT_BYTES];
    int low, high = 0, r, waits = -1;

    memcpy(text, symwin_last_error(), sizeof text);
    comm->unused_scans = 0;
    for (;;) {
        uint64_t value = 0;

        if (status == SYMWIN_OK && (from > 0 || waits >= 0) && sw_now_ms() >= deadline)
            status = sw_fail(SYMWIN_TIMEOUT,
                             "the ranks found no common free offset in %d ms; rank %d last voted "
                             "for %s %llu",
                             patience_ms, sw_exchange_number(comm->group->exchange, high),
                             waits >= 0 ? "none yet, from" : "a higher one,", from);
        if (status == SYMWIN_OK) {
            status = sw_segment_room(comm->group, bytes, (size_t)from, offset);
            value = *offset;
            if (status != SYMWIN_OK && may_gain_room(comm, bytes, deadline)) {
                sw_error_restore(text);
                status = SYMWIN_OK;
                value = NO_ROOM_YET;
            }
        }
        status = sw_comm_agree(comm, a->call, status, &value, 1);
        if (status != SYMWIN_OK)
            return status;
        waits = who_waits(comm);
        if (waits >= 0) {
            high = waits;
            from = 0;
            continue;
        }
        for (low = high = 0, r = 1; r < comm->nranks; r++) {
            low = ballots[r].values[0] < ballots[low].values[0] ? r : low;
            high = ballots[r].values[0] > ballots[high].values[0] ? r : high;
        }
        value = ballots[low].values[0];
        if (value < from)
            return sw_fail(SYMWIN_MISMATCH, "%s: rank %d voted for offset %llu, below %llu",
                           a->call, sw_exchange_number(comm->group->exchange, low),
                           (unsigned long long)value, from);
        from = ballots[high].values[0];
        if (value == from)
            return SYMWIN_OK;
    }
}

/* Overwrites fabric handles in the exchange, because whoever has one can reach the memory. A ballot
 * stays there until the round after next (exchange.c), so `rounds` empty agreements follow. Returns
 * `status`, the same on all ranks, unless one of these agreements fails. */
static symwin_status overwrite_handles(symwin_comm *comm, const char *call, symwin_status status,
                                       int rounds)
{
    symwin_status after = SYMWIN_OK;

    while (rounds-- > 0 && comm->group->hosts > 1)
        after = sw_comm_agree(comm, call, SYMWIN_OK, NULL, 0);
    return after != SYMWIN_OK ? after : status;
}

/* Each rank's stretch, from the ballots, placed so that the window has one offset on all ranks:
 * *lead bytes after the beginning of the segment. The caller frees the array; NULL: no host
 * memory. */
static struct sw_stretch *lay_out(const symwin_comm *comm, size_t *lead)
{
    struct sw_stretch *stretches = calloc((size_t)comm->nranks, sizeof *stretches);
    const struct sw_ballot *ballots = comm->ballots;
    int r;

    *lead = 0;
    for (r = 0; r < comm->nranks; r++)
        if (ballots[r].values[V_OFFSET] > *lead)
            *lead = (size_t)ballots[r].values[V_OFFSET];
    for (r = 0; r < comm->nranks && stretches != NULL; r++)
        stretches[r] = (struct sw_stretch){
            .begin = *lead - (size_t)ballots[r].values[V_OFFSET],
            .bytes = (size_t)ballots[r].values[V_STRETCH],
            .pieces = (int)ballots[r].values[V_PIECES],
        };
    return stretches;
}

static symwin_status map_own(symwin_comm *comm, struct attempt *a)
{
    symwin_status status = SYMWIN_OK;
    int p;

    for (p = 0; p < a->count && status == SYMWIN_OK; p++) {
        const CUmemGenericAllocationHandle memory = a->handles[p];

        a->handles[p] = 0; /* owned by the segment from here on */
        status = sw_segment_map(comm->group, a->segment, comm->rank, memory, a->pieces[p].bytes,
                                a->pieces[p].buffer_id);
    }
    return status;
}

/* Exchanges piece `p` with the other processes of this host, and maps that of ranks on other hosts.
 * Only the leader calls it. */
static symwin_status exchange_piece(symwin_comm *comm, const struct attempt *a, int p)
{
    struct sw_group *group = comm->group;
    symwin_status status = sw_handle_exchange_run(group, a->segment, p, sw_comm_patience(comm),
                                                  a->call);
    int r;

    for (r = 0; r < comm->nranks && status == SYMWIN_OK; r++)
        if (group->host_of[r] != group->host && p < a->segment->rank[r].stretch.pieces)
            status = sw_handle_exchange_import(group, a->segment, r, comm->ballots[r].values);
    return status;
}

/* Shows each rank's memory in all processes. At most one piece per rank is in flight, so that no
 * process needs many descriptors at a time. `status` is the result of mapping this rank's own
 * memory; `most` is the largest number of pieces of a rank. */
static symwin_status exchange_memory(symwin_comm *comm, const struct attempt *a,
                                     symwin_status status, int most)
{
    int p;

    for (p = 0; p < most; p++) {
        uint64_t fabric[SW_FABRIC_WORDS] = {0};

        if (status == SYMWIN_OK && comm->group->hosts > 1 && p < a->count)
            status = sw_handle_exchange_fabric(a->segment, comm->rank, p, fabric);
        status = sw_comm_agree(comm, a->call, status, fabric, SW_FABRIC_WORDS);
        if (status != SYMWIN_OK)
            return overwrite_handles(comm, a->call, status, 2);
        if (comm->group->processes == 1)
            return SYMWIN_OK;
        if (comm->rank == comm->group->leader)
            status = exchange_piece(comm, a, p);
    }
    return overwrite_handles(comm, a->call, sw_comm_agree(comm, a->call, status, NULL, 0), 1);
}

/* Creates a segment for all ranks' allocations. After success each rank holds a reference. */
static symwin_status make_segment(symwin_comm *comm, struct attempt *a)
{
    size_t offset = 0, lead = 0, bytes = 0;
    struct sw_stretch *stretches = lay_out(comm, &lead);
    symwin_status status = SYMWIN_OK;
    int most = 0, r;

    for (r = 0; r < comm->nranks; r++)
        if ((int)comm->ballots[r].values[V_PIECES] > most)
            most = (int)comm->ballots[r].values[V_PIECES];
    if (stretches == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory to lay out %d ranks", comm->nranks);
    else
        bytes = sw_segment_bytes(stretches, comm->nranks);
    /* A segment that only some ranks have found, or at different offsets, cannot be used. */
    if (a->segment != NULL) {
        sw_segment_release(comm->group, a->segment, comm->rank);
        a->segment = NULL;
        if (status == SYMWIN_OK)
            status = retain_handles(a);
    }
    status = find_offset(comm, a, status, bytes, &offset);
    if (status == SYMWIN_OK) {
        status = sw_segment_join(comm->group, comm->rank, comm->sequence, offset, stretches,
                                 &a->segment);
        if (status == SYMWIN_OK)
            status = map_own(comm, a);
        a->flat_offset = offset + lead;
        status = exchange_memory(comm, a, status, most);
    }
    free(stretches);
    return status;
}

/* Gives the segment multicast addresses, or none on all ranks if a step fails on one. That is an
 * error only if the caller insists on multicast or the communicator has ended. */
static symwin_status multicast(symwin_comm *comm, struct attempt *a, size_t bytes, unsigned flags)
{
    const int insist = (flags & SYMWIN_WINDOW_MULTICAST) != 0;
    const size_t end = a->flat_offset - a->segment->offset + bytes;
    const int uneven = a->segment->uneven;
    symwin_status status;
    char text[SW_TEXT_BYTES];
    int ended;

    if (!comm->group->multicast || (flags & SYMWIN_WINDOW_NO_MULTICAST) != 0 ||
        (!insist && (uneven >= 0 || !a->tries)))
        return SYMWIN_OK;
    if (uneven >= 0 && a->segment->rank[uneven].stretch.pieces > 1)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: SYMWIN_WINDOW_MULTICAST was asked for, but rank %d's window is on %d "
                       "physical allocations; take one allocation of symwin_mem_alloc()",
                       a->call, uneven, a->segment->rank[uneven].stretch.pieces);
    if (uneven >= 0)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: SYMWIN_WINDOW_MULTICAST was asked for, but rank %d's window is at "
                       "another offset in its allocation than other ranks'; make the same "
                       "allocations on all ranks",
                       a->call, uneven);
    memcpy(text, symwin_last_error(), sizeof text);
    if (a->segment->rank[comm->rank].bound == 0) { /* on all ranks, or on none */
        status = sw_multicast_bind(comm, a->call, a->segment, &ended);
        if (status != SYMWIN_OK && (insist || ended))
            return status;
        sw_error_restore(text);
    }
    if (insist && end > a->segment->bound_bytes)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: SYMWIN_WINDOW_MULTICAST was asked for, but the smallest allocation has only %zu "
            "bytes for multicast, and the window ends at byte %zu; allocate whole units, or "
            "register a smaller window",
            a->call, (size_t)a->segment->bound_bytes, end);
    return SYMWIN_OK;
}

/* ---- register and deregister ---- */

static void fill_window(const symwin_comm *comm, const struct attempt *a, void *ptr, size_t bytes,
                        unsigned flags, struct sw_window *window)
{
    *window = (struct sw_window){
        .ptr = ptr,
        .bytes = bytes,
        .offset = a->flat_offset,
        .buffer_id = a->pieces[0].buffer_id,
        .memory = a->count == 1 ? sw_segment_memory(a->segment, comm->rank, a->flat_offset) : 0,
        .within = a->offset,
        .pieces = a->count,
        .segment = a->segment,
        .held = a->held,
        .transports = SYMWIN_TRANSPORT_PEER,
        .refused = (flags & SYMWIN_WINDOW_NO_MULTICAST) != 0,
    };
    if (a->flat_offset - a->segment->offset + bytes <= a->segment->bound_bytes &&
        (flags & SYMWIN_WINDOW_NO_MULTICAST) == 0)
        window->transports |= SYMWIN_TRANSPORT_MULTICAST;
}

symwin_status sw_window_register(symwin_comm *comm, const char *call, symwin_status status,
                                 void *ptr, size_t bytes, unsigned flags, struct sw_window *window)
{
    struct attempt a = {.call = call};
    uint64_t values[V_COUNT] = {bytes, flags};
    int known;

    comm->sequence++;
    if (status == SYMWIN_OK)
        status = prepare(comm, &a, ptr, bytes, flags);
    values[V_OFFSET] = a.offset;
    values[V_SEGMENT] = a.segment != NULL ? a.segment->id : 0;
    values[V_FLAT_OFFSET] = a.flat_offset;
    values[V_STRETCH] = a.stretch;
    values[V_PIECES] = (uint64_t)a.count;
    values[V_TRIES] = (uint64_t)sw_multicast_may_try(comm->group);
    status = sw_comm_agree(comm, call, status, values, V_COUNT);
    if (status == SYMWIN_OK)
        status = compare_ballots(comm, call);
    a.tries = status == SYMWIN_OK && any_tries(comm);
    known = status == SYMWIN_OK && all_in_one_segment(comm);
    if (status == SYMWIN_OK && !known)
        status = make_segment(comm, &a);
    if (status == SYMWIN_OK && (!known || (flags & SYMWIN_WINDOW_MULTICAST) != 0))
        status = multicast(comm, &a, bytes, flags);
    if (status != SYMWIN_OK) {
        abandon(comm, &a);
        return status;
    }
    fill_window(comm, &a, ptr, bytes, flags, window);
    free_attempt(&a);
    return SYMWIN_OK;
}

void sw_window_detach(symwin_comm *comm, struct sw_window *window)
{
    sw_segment_release(comm->group, window->segment, comm->rank);
    if (window->held != 0)
        sw_allocation_drop(window->held);
    window->segment = NULL;
    window->held = 0;
}

struct sw_window_index_entry sw_window_entry(const struct sw_window *window, uintptr_t handle)
{
    return (struct sw_window_index_entry){
        .begin = (uintptr_t)window->ptr,
        .end = (uintptr_t)window->ptr + window->bytes,
        .window = handle,
        .offset = window->offset,
        .memory = window->memory,
        .within = window->within,
        .transports = window->transports,
    };
}
