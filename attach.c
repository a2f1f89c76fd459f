/* Windows: collective registration, local deregistration.
 *
 * Registration goes in agreed steps, and whatever fails on one rank fails on all:
 *
 *   prepare   every rank looks at its memory and keeps hold of it       (undoable)
 *   agree     sizes, flags and offsets are the same on all ranks
 *   known?    all ranks' allocations are in one segment already: done
 *   place     find an offset that is free in all processes               agree
 *   map       every rank shows its memory there, to all devices          agree
 *   trade     processes send each other their memory, and show it        agree; wipe fabric handles
 *   multicast create, agree, add devices, agree, bind, agree, map, agree; or do without, all alike
 *   publish   the handle, and the registry entry (window.c)
 */
#include <string.h>

#include "internal.h"

/* What a registration holds on its way. */
struct attempt {
    const char *call;
    struct sw_physical physical;
    CUmemGenericAllocationHandle memory; /* owned until a segment takes it, 0: none */
    CUdeviceptr held;                    /* an address in owned memory, 0: none */
    struct sw_segment *segment;          /* holds a reference, NULL: none */
    size_t offset;                       /* of the window in the allocation */
};

enum { V_BYTES, V_FLAGS, V_OFFSET, V_SEGMENT, V_ALLOCATION, V_COUNT };

/* ---- preparing: everything that one rank can find out and undo alone ---- */

static symwin_status retain(struct attempt *a)
{
    const CUdeviceptr base = a->physical.base;
    symwin_status status;

    status = sw_check(sw_drv.cuMemRetainAllocationHandle(&a->memory, (void *)(uintptr_t)base),
                      "cuMemRetainAllocationHandle of 0x%llx", base);
    if (status != SYMWIN_OK)
        a->memory = 0;
    return status;
}

static symwin_status prepare(symwin_comm *comm, struct attempt *a, void *ptr, size_t bytes,
                             unsigned flags)
{
    const unsigned known = SYMWIN_WINDOW_MULTICAST | SYMWIN_WINDOW_NO_MULTICAST;
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    struct sw_allocation ours;
    symwin_status status;
    size_t left;

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
    a->physical = ours.physical;
    left = (size_t)(ours.begin + ours.bytes - address);
    if (a->physical.device != comm->device)
        return sw_fail(SYMWIN_INVALID,
                       "%p is memory of device %d and this rank's communicator is on device %d",
                       ptr, a->physical.device, comm->device);
    a->offset = (size_t)(address - a->physical.base);
    if (bytes > left)
        return sw_fail(
            SYMWIN_INVALID,
            "the window of %zu bytes at %p passes the end of its allocation by %zu bytes", bytes,
            ptr, bytes - left);
    if ((flags & SYMWIN_WINDOW_MULTICAST) != 0 && !comm->group->multicast)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "SYMWIN_WINDOW_MULTICAST was asked for, but this communicator has no "
                       "multicast (it needs one device a rank, support by all devices, and on real "
                       "hardware SYMWIN_NVLS=1)");
    a->segment = sw_segment_find(comm->group, comm->rank, a->physical.buffer_id);
    if (a->segment != NULL)
        return SYMWIN_OK;
    return retain(a);
}

/* The only way back, for every rank that did not get its window. */
static void abandon(symwin_comm *comm, struct attempt *a)
{
    if (a->segment != NULL)
        sw_segment_release(comm->group, a->segment, comm->rank);
    if (a->memory != 0)
        sw_drop(sw_drv.cuMemRelease(a->memory), "cuMemRelease");
    if (a->held != 0)
        sw_allocation_drop(a->held);
    *a = (struct attempt){.call = a->call};
}

/* ---- agreeing ---- */

/* The ranks must have voted for the same value `i`. */
static symwin_status agreed(symwin_comm *comm, const char *call, int i, const char *what,
                            const char *advice)
{
    int r;

    for (r = 1; r < comm->nranks; r++)
        if (comm->votes[r].values[i] != comm->votes[0].values[i])
            return sw_fail(SYMWIN_MISMATCH, "%s: %s differs: %llu on rank 0, %llu on rank %d; %s",
                           call, what, (unsigned long long)comm->votes[0].values[i],
                           (unsigned long long)comm->votes[r].values[i], r, advice);
    return SYMWIN_OK;
}

static symwin_status compare(symwin_comm *comm, const char *call)
{
    symwin_status status = agreed(comm, call, V_BYTES, "bytes", "it must agree");

    if (status == SYMWIN_OK)
        status = agreed(comm, call, V_FLAGS, "flags", "it must agree");
    if (status == SYMWIN_OK)
        status = agreed(
            comm, call, V_OFFSET, "the offset in the allocation",
            "it must agree: let all ranks' threads allocate alike, or with SYMWIN_MEM_OWN");
    return status;
}

static int all_in_one_segment(const symwin_comm *comm)
{
    int r;

    for (r = 0; r < comm->nranks; r++)
        if (comm->votes[r].values[V_SEGMENT] == 0 ||
            comm->votes[r].values[V_SEGMENT] != comm->votes[0].values[V_SEGMENT])
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
    const struct sw_vote *votes = comm->votes;
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
        status = sw_agree(comm, a->call, status, &value, 1);
        if (status != SYMWIN_OK)
            return status;
        for (low = high = 0, r = 1; r < comm->nranks; r++) {
            low = votes[r].values[0] < votes[low].values[0] ? r : low;
            high = votes[r].values[0] > votes[high].values[0] ? r : high;
        }
        value = votes[low].values[0];
        if (value < from)
            return sw_fail(SYMWIN_MISMATCH, "%s: rank %d wants offset %llu, below %llu", a->call,
                           low, (unsigned long long)value, from);
        from = votes[high].values[0];
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
        after = sw_agree(comm, call, SYMWIN_OK, NULL, 0);
    return after != SYMWIN_OK ? after : status;
}

/* A new segment for all ranks' allocations. After success every rank holds a reference. */
static symwin_status place(symwin_comm *comm, struct attempt *a)
{
    symwin_status status = SYMWIN_OK;
    uint64_t fabric[SW_FABRIC_WORDS] = {0};
    size_t offset = 0;
    size_t bytes = 0;
    int r;

    for (r = 0; r < comm->nranks; r++)
        if (comm->votes[r].values[V_ALLOCATION] > bytes)
            bytes = (size_t)comm->votes[r].values[V_ALLOCATION];
    /* A segment that only some ranks know, or that pairs other allocations, does not serve. */
    if (a->segment != NULL) {
        sw_segment_release(comm->group, a->segment, comm->rank);
        a->segment = NULL;
        status = retain(a);
    }
    status = find_offset(comm, a, status, bytes, &offset);
    if (status != SYMWIN_OK)
        return status;
    status = sw_segment_join(comm->group, comm->rank, comm->sequence, offset, bytes, &a->segment);
    if (status == SYMWIN_OK) {
        const CUmemGenericAllocationHandle memory = a->memory;

        a->memory = 0; /* the segment's from here on */
        status = sw_segment_map(comm->group, a->segment, comm->rank, memory, a->physical.bytes,
                                a->physical.buffer_id);
    }
    if (status == SYMWIN_OK && comm->group->hosts > 1)
        status = sw_handles_fabric(a->segment, comm->rank, fabric);
    status = sw_agree(comm, a->call, status, fabric, SW_FABRIC_WORDS);
    if (status != SYMWIN_OK)
        return wipe(comm, a->call, status, 2);
    if (comm->group->processes == 1)
        return SYMWIN_OK;
    if (comm->rank == comm->group->leader) {
        status = sw_handles_trade(comm->group, a->segment, comm->timeout_ms, a->call);
        for (r = 0; r < comm->nranks && status == SYMWIN_OK; r++)
            if (comm->group->host_of[r] != comm->group->host)
                status = sw_handles_import(comm->group, a->segment, r, comm->votes[r].values);
    }
    return wipe(comm, a->call, sw_agree(comm, a->call, status, NULL, 0), 1);
}

/* The multicast steps; on failure no rank has touched the object after the last agreement. */
static symwin_status multicast_steps(symwin_comm *comm, struct attempt *a)
{
    struct sw_group *group = comm->group;
    symwin_status status = SYMWIN_OK;

    if (comm->rank == 0)
        status = sw_multicast_create(group, a->segment);
    status = sw_agree(comm, a->call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = sw_multicast_add(a->segment, comm->device);
    status = sw_agree(comm, a->call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = sw_multicast_bind(a->segment, comm->rank, comm->device);
    status = sw_agree(comm, a->call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    if (comm->rank == 0)
        status = sw_multicast_map(group, a->segment);
    return sw_agree(comm, a->call, status, NULL, 0);
}

/* Gives the segment a multicast object, or, if that fails on any rank, none on all: an error only
 * where the caller insists or the communicator has ended. */
static symwin_status multicast(symwin_comm *comm, struct attempt *a, size_t bytes, unsigned flags)
{
    const int insist = (flags & SYMWIN_WINDOW_MULTICAST) != 0;
    symwin_status status = SYMWIN_OK, after;
    char text[SW_TEXT_BYTES];

    if (!comm->group->multicast || (flags & SYMWIN_WINDOW_NO_MULTICAST) != 0)
        return SYMWIN_OK;
    memcpy(text, symwin_last_error(), sizeof text);
    if (!a->segment->multicast_mapped) {
        status = multicast_steps(comm, a);
        after = sw_exchange_status(comm->group->exchange, a->call); /* alike on all ranks */
        if (after != SYMWIN_OK)
            return after;
        if (status != SYMWIN_OK && insist)
            memcpy(text, symwin_last_error(), sizeof text);
        if (status != SYMWIN_OK && comm->rank == 0)
            sw_multicast_release(comm->group, a->segment);
        /* Nobody looks at the segment before rank 0 has made up its mind. */
        after = sw_agree(comm, a->call, SYMWIN_OK, NULL, 0);
        if (after != SYMWIN_OK)
            return after;
        sw_error_restore(text);
    }
    if (insist && status == SYMWIN_OK && a->offset + bytes > a->segment->multicast_bytes)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: SYMWIN_WINDOW_MULTICAST was asked for, and the smallest rank's allocation "
            "has only %zu bytes for multicast, short of the window's end at %zu",
            a->call, a->segment->multicast_bytes, a->offset + bytes);
    return insist ? status : SYMWIN_OK;
}

/* ---- attach and detach ---- */

static void fill(const struct attempt *a, void *ptr, size_t bytes, unsigned flags,
                 struct sw_window *window)
{
    *window = (struct sw_window){
        .ptr = ptr,
        .bytes = bytes,
        .offset = a->segment->offset + a->offset,
        .buffer_id = a->physical.buffer_id,
        .segment = a->segment,
        .held = a->held,
        .transports = SYMWIN_TRANSPORT_PEER,
    };
    /* The object covers what all ranks have; a window beyond it does without. */
    if (a->segment->multicast_mapped && a->offset + bytes <= a->segment->multicast_bytes &&
        (flags & SYMWIN_WINDOW_NO_MULTICAST) == 0)
        window->transports |= SYMWIN_TRANSPORT_MULTICAST;
}

symwin_status sw_window_attach(symwin_comm *comm, const char *call, symwin_status status, void *ptr,
                               size_t bytes, unsigned flags, struct sw_window *window)
{
    struct attempt a = {.call = call};
    uint64_t values[V_COUNT] = {bytes, flags, 0, 0, 0};
    int known;

    comm->sequence++;
    if (status == SYMWIN_OK)
        status = prepare(comm, &a, ptr, bytes, flags);
    values[V_OFFSET] = a.offset;
    values[V_SEGMENT] = a.segment != NULL ? a.segment->id : 0;
    values[V_ALLOCATION] = a.physical.bytes;
    status = sw_agree(comm, call, status, values, V_COUNT);
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
