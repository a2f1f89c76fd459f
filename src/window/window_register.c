/* Windows: collective registration, local deregistration.
 *
 * Registration goes in agreed steps, and whatever fails on one rank fails on all:
 *
 *   prepare   every rank looks at its memory and keeps hold of it       (undoable)
 *   agree     sizes and flags are the same on all ranks, offsets but for whole granules
 *   known?    all ranks' allocations are in one segment already, and the window at one offset: done
 *   place     find an offset that is free in all processes               agree
 *   map       every rank shows its memory there, to all devices          agree
 *   trade     processes send each other their memory, and show it        agree, after each allocation; wipe fabric handles
 *   multicast create, agree, add devices, agree, bind, agree, map, agree; or do without, all alike
 *   publish   the handle, and the registry entry (window.c)
 */
#include <stdlib.h>
#include <string.h>

#include "src/window/window.h"

/* What a registration holds on its way. */
struct attempt {
    const char *call;
    struct sw_physical *pieces; /* owned: what the window lies on */
    int count;
    size_t stretch; /* bytes of all of them */
    CUmemGenericAllocationHandle
        *handles;               /* owned, and they until a segment takes them; NULL: none */
    CUdeviceptr held;           /* an address in owned memory, 0: none */
    struct sw_segment *segment; /* holds a reference, NULL: none */
    size_t offset;              /* of the window in the first allocation, */
    size_t place;               /* and in the flat range, where there is a segment */
};

enum { V_BYTES, V_FLAGS, V_OFFSET, V_SEGMENT, V_PLACE, V_STRETCH, V_PIECES, V_COUNT };

/* ---- preparing: everything that one rank can find out and undo alone ---- */

static symwin_status retain(struct attempt *a)
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

/* What is under the window, of an allocation of ours or of one or more of others'. */
static symwin_status find_pieces(symwin_comm *comm, struct attempt *a,
                                 const struct sw_allocation *first, CUdeviceptr address,
                                 size_t bytes)
{
    size_t left = (size_t)(first->begin + first->bytes - address);
    symwin_status status;
    int p;

    /* What is behind an allocation of ours is not this one's. */
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
    if ((flags & ~known) != 0 || (flags & known) == known)
        return sw_fail(SYMWIN_INVALID,
                       "flags are 0x%x; pass 0, SYMWIN_WINDOW_MULTICAST or "
                       "SYMWIN_WINDOW_NO_MULTICAST",
                       flags);
    status = sw_memory_hold(a->call, address, &ours);
    if (status != SYMWIN_OK)
        return status;
    a->held = ours.owned ? address : 0;
    status = find_pieces(comm, a, &ours, address, bytes);
    if (status != SYMWIN_OK)
        return status;
    if ((flags & SYMWIN_WINDOW_MULTICAST) != 0 && !comm->group->multicast)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "SYMWIN_WINDOW_MULTICAST was asked for, but this communicator has no "
                       "multicast (it needs one device a rank, support by all devices, and on real "
                       "hardware SYMWIN_NVLS=1)");
    a->segment = sw_segment_find(comm->group, comm->rank, a->pieces, a->count, &a->place);
    a->place += a->offset;
    if (a->segment != NULL)
        return SYMWIN_OK;
    return retain(a);
}

static void forget(struct attempt *a)
{
    int p;

    for (p = 0; p < a->count && a->handles != NULL; p++)
        if (a->handles[p] != 0)
            sw_drop(sw_drv.cuMemRelease(a->handles[p]), "cuMemRelease");
    free(a->handles);
    free(a->pieces);
    *a = (struct attempt){.call = a->call};
}

/* The only way back, for every rank that did not get its window. */
static void abandon(symwin_comm *comm, struct attempt *a)
{
    if (a->segment != NULL)
        sw_segment_release(comm->group, a->segment, comm->rank);
    if (a->held != 0)
        sw_allocation_drop(a->held);
    forget(a);
}

/* ---- agreeing ---- */

/* The ranks must have voted for the same value `i`. */
static symwin_status agreed(symwin_comm *comm, const char *call, int i, const char *what,
                            const char *advice)
{
    int r;

    for (r = 1; r < comm->nranks; r++)
        if (comm->ballots[r].values[i] != comm->ballots[0].values[i])
            return sw_fail(SYMWIN_MISMATCH, "%s: %s differs: %llu on rank 0, %llu on rank %d; %s",
                           call, what, (unsigned long long)comm->ballots[0].values[i],
                           (unsigned long long)comm->ballots[r].values[i], r, advice);
    return SYMWIN_OK;
}

static symwin_status compare(symwin_comm *comm, const char *call)
{
    const uint64_t granularity = comm->group->granularity;
    const struct sw_ballot *ballots = comm->ballots;
    symwin_status status = agreed(comm, call, V_BYTES, "bytes", "it must agree");
    int r;

    if (status == SYMWIN_OK)
        status = agreed(comm, call, V_FLAGS, "flags", "it must agree");
    for (r = 0; r < comm->nranks && status == SYMWIN_OK; r++) {
        const uint64_t *v = ballots[r].values;

        if (v[V_OFFSET] % granularity != ballots[0].values[V_OFFSET] % granularity)
            status = agreed(comm, call, V_OFFSET, "the offset in the allocation",
                            "it must agree, but for multiples of the granularity (2 MiB): let all "
                            "ranks' threads allocate alike, or with SYMWIN_MEM_OWN");
        else if (v[V_PIECES] < 1 || v[V_PIECES] > SW_PIECES || v[V_OFFSET] >= v[V_STRETCH])
            status = sw_fail(SYMWIN_MISMATCH,
                             "%s: rank %d's window is at byte %llu of %llu allocations of %llu "
                             "bytes",
                             call, r, (unsigned long long)v[V_OFFSET],
                             (unsigned long long)v[V_PIECES], (unsigned long long)v[V_STRETCH]);
    }
    return status;
}

static int all_in_one_segment(const symwin_comm *comm)
{
    int r;

    for (r = 0; r < comm->nranks; r++)
        if (comm->ballots[r].values[V_SEGMENT] == 0 ||
            comm->ballots[r].values[V_SEGMENT] != comm->ballots[0].values[V_SEGMENT] ||
            comm->ballots[r].values[V_PLACE] != comm->ballots[0].values[V_PLACE])
            return 0;
    return 1;
}

/* ---- a new segment ---- */

/* Finds the lowest offset that is free in every process: each rank votes for the lowest from a common
 * start on, and the highest vote is the next start, until all agree. One round where all processes
 * have registered and deregistered alike. The start only grows and time is limited, whatever a rank
 * votes for. */
static symwin_status find_offset(symwin_comm *comm, const struct attempt *a, symwin_status status,
                                 size_t bytes, size_t *offset)
{
    const int64_t deadline = sw_now_ms() + comm->timeout_ms;
    const struct sw_ballot *ballots = comm->ballots;
    unsigned long long from = 0;
    int low, high = 0, r;

    for (;;) {
        uint64_t value = 0;

        if (status == SYMWIN_OK && sw_now_ms() >= deadline)
            status = sw_fail(SYMWIN_TIMEOUT,
                             "no offset suits all ranks in %d ms; rank %d was the last to want "
                             "another, %llu",
                             comm->timeout_ms, high, from);
        if (status == SYMWIN_OK) {
            status = sw_segment_room(comm->group, bytes, (size_t)from, offset);
            value = *offset;
        }
        status = sw_comm_agree(comm, a->call, status, &value, 1);
        if (status != SYMWIN_OK)
            return status;
        for (low = high = 0, r = 1; r < comm->nranks; r++) {
            low = ballots[r].values[0] < ballots[low].values[0] ? r : low;
            high = ballots[r].values[0] > ballots[high].values[0] ? r : high;
        }
        value = ballots[low].values[0];
        if (value < from)
            return sw_fail(SYMWIN_MISMATCH, "%s: rank %d wants offset %llu, below %llu", a->call,
                           low, (unsigned long long)value, from);
        from = ballots[high].values[0];
        if (value == from)
            return SYMWIN_OK;
    }
}

/* Whoever has a fabric handle gets at the memory, and what ranks post stays until the round after next
 * (exchange.c): `rounds` more, and nothing is left of it. `status` is what all ranks have. */
static symwin_status wipe(symwin_comm *comm, const char *call, symwin_status status, int rounds)
{
    symwin_status after = SYMWIN_OK;

    while (rounds-- > 0 && comm->group->hosts > 1)
        after = sw_comm_agree(comm, call, SYMWIN_OK, NULL, 0);
    return after != SYMWIN_OK ? after : status;
}

/* Every rank's stretch, of the votes: each begins so that the windows are at one offset, `*lead` behind the first of them. The
 * caller frees it; NULL: no host memory. */
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

        a->handles[p] = 0; /* the segment's from here on */
        status = sw_segment_map(comm->group, a->segment, comm->rank, memory, a->pieces[p].bytes,
                                a->pieces[p].buffer_id);
    }
    return status;
}

/* What other processes and hosts have as piece `p` of their ranks' stretches, and this one for them. By the leader. */
static symwin_status take_in(symwin_comm *comm, const struct attempt *a, int p)
{
    struct sw_group *group = comm->group;
    symwin_status status = sw_handle_exchange_run(group, a->segment, p, comm->timeout_ms, a->call);
    int r;

    for (r = 0; r < comm->nranks && status == SYMWIN_OK; r++)
        if (group->host_of[r] != group->host && p < a->segment->rank[r].stretch.pieces)
            status = sw_handle_exchange_import(group, a->segment, r, comm->ballots[r].values);
    return status;
}

/* Each rank's memory is shown in all processes, piece by piece: of each rank at most one is on its way, so that nobody needs
 * many descriptors at a time. `status` is what mapping its own gave. */
static symwin_status show(symwin_comm *comm, const struct attempt *a, symwin_status status,
                          int most)
{
    int p;

    for (p = 0; p < most; p++) {
        uint64_t fabric[SW_FABRIC_WORDS] = {0};

        if (status == SYMWIN_OK && comm->group->hosts > 1 && p < a->count)
            status = sw_handle_exchange_fabric(a->segment, comm->rank, p, fabric);
        status = sw_comm_agree(comm, a->call, status, fabric, SW_FABRIC_WORDS);
        if (status != SYMWIN_OK)
            return wipe(comm, a->call, status, 2);
        if (comm->group->processes == 1)
            return SYMWIN_OK;
        if (comm->rank == comm->group->leader)
            status = take_in(comm, a, p);
    }
    return wipe(comm, a->call, sw_comm_agree(comm, a->call, status, NULL, 0), 1);
}

/* A new segment for all ranks' allocations. After success every rank holds a reference. */
static symwin_status place(symwin_comm *comm, struct attempt *a)
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
    /* A segment that only some ranks know, or that pairs other allocations, does not serve. */
    if (a->segment != NULL) {
        sw_segment_release(comm->group, a->segment, comm->rank);
        a->segment = NULL;
        if (status == SYMWIN_OK)
            status = retain(a);
    }
    status = find_offset(comm, a, status, bytes, &offset);
    if (status == SYMWIN_OK) {
        status = sw_segment_join(comm->group, comm->rank, comm->sequence, offset, stretches,
                                 &a->segment);
        if (status == SYMWIN_OK)
            status = map_own(comm, a);
        a->place = offset + lead;
        status = show(comm, a, status, most);
    }
    free(stretches);
    return status;
}

/* The multicast steps; on failure no rank has touched the object after the last agreement. */
static symwin_status multicast_steps(symwin_comm *comm, struct attempt *a)
{
    struct sw_group *group = comm->group;
    symwin_status status = SYMWIN_OK;

    if (comm->rank == 0)
        status = sw_multicast_create(group, a->segment);
    status = sw_comm_agree(comm, a->call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = sw_multicast_add(a->segment, comm->device);
    status = sw_comm_agree(comm, a->call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = sw_multicast_bind(a->segment, comm->rank, comm->device);
    status = sw_comm_agree(comm, a->call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    if (comm->rank == 0)
        status = sw_multicast_map(group, a->segment);
    return sw_comm_agree(comm, a->call, status, NULL, 0);
}

/* Gives the segment a multicast object, or, if that fails on any rank, none on all: an error only
 * where the caller insists or the communicator has ended. */
static symwin_status multicast(symwin_comm *comm, struct attempt *a, size_t bytes, unsigned flags)
{
    const int insist = (flags & SYMWIN_WINDOW_MULTICAST) != 0;
    symwin_status status = SYMWIN_OK, after;
    char text[SW_TEXT_BYTES];

    const size_t end = a->place - a->segment->offset + bytes;
    const int uneven = a->segment->uneven;

    if (!comm->group->multicast || (flags & SYMWIN_WINDOW_NO_MULTICAST) != 0)
        return SYMWIN_OK;
    if (uneven >= 0 && insist)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: SYMWIN_WINDOW_MULTICAST was asked for, and rank %d's window is on %d "
                       "physical allocations, or at another offset of its allocation than the "
                       "others': multicast takes one on each rank, and one offset",
                       a->call, uneven, a->segment->rank[uneven].stretch.pieces);
    if (uneven >= 0)
        return SYMWIN_OK;
    memcpy(text, symwin_last_error(), sizeof text);
    if (!a->segment->multicast_mapped) {
        status = multicast_steps(comm, a);
        after = sw_exchange_settled(comm->group->exchange, a->call); /* alike on all ranks */
        if (after != SYMWIN_OK)
            return after;
        if (status != SYMWIN_OK && insist)
            memcpy(text, symwin_last_error(), sizeof text);
        if (status != SYMWIN_OK && comm->rank == 0)
            sw_multicast_release(comm->group, a->segment);
        /* Nobody looks at the segment before rank 0 has made up its mind. */
        after = sw_comm_agree(comm, a->call, SYMWIN_OK, NULL, 0);
        if (after != SYMWIN_OK)
            return after;
        sw_error_restore(text);
    }
    if (insist && status == SYMWIN_OK && end > a->segment->multicast_bytes)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: SYMWIN_WINDOW_MULTICAST was asked for, and the smallest rank's allocation "
            "has only %zu bytes for multicast, short of the window's end at %zu",
            a->call, a->segment->multicast_bytes, end);
    return insist ? status : SYMWIN_OK;
}

/* ---- attach and detach ---- */

static void fill(const struct attempt *a, void *ptr, size_t bytes, unsigned flags,
                 struct sw_window *window)
{
    *window = (struct sw_window){
        .ptr = ptr,
        .bytes = bytes,
        .offset = a->place,
        .buffer_id = a->pieces[0].buffer_id,
        .within = a->offset,
        .pieces = a->count,
        .segment = a->segment,
        .held = a->held,
        .transports = SYMWIN_TRANSPORT_PEER,
    };
    /* The object covers what all ranks have; a window beyond it does without. */
    if (a->segment->multicast_mapped &&
        a->place - a->segment->offset + bytes <= a->segment->multicast_bytes &&
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
    values[V_PLACE] = a.place;
    values[V_STRETCH] = a.stretch;
    values[V_PIECES] = (uint64_t)a.count;
    status = sw_comm_agree(comm, call, status, values, V_COUNT);
    if (status == SYMWIN_OK)
        status = compare(comm, call);
    known = status == SYMWIN_OK && all_in_one_segment(comm);
    if (status == SYMWIN_OK && !known)
        status = place(comm, &a);
    if (status == SYMWIN_OK && (!known || (flags & SYMWIN_WINDOW_MULTICAST) != 0))
        status = multicast(comm, &a, bytes, flags);
    if (status != SYMWIN_OK) {
        abandon(comm, &a);
        return status;
    }
    fill(&a, ptr, bytes, flags, window);
    forget(&a);
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
        .memory = window->pieces == 1 ? window->buffer_id : 0,
        .within = window->within,
        .transports = window->transports,
    };
}
