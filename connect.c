/* How registered memory becomes windows: in the first all-reduce on it, by an agreement of all ranks.
 *
 * Each rank says how much before and behind the buffer is registered. The window is what all ranks have around it, so that
 * it is equally long on all, and whether a later call lies in it is alike on all as well. Where they cannot have one, each
 * remembers all of its range as refused, and nobody asks again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "register.h"

enum { F_REGISTERED = 1, F_CAN = 2, F_SAME = 4 };

/* The places of the values in the vote: of each of the two buffers, and then their bytes. */
enum { V_FLAGS, V_BEFORE, V_AFTER, V_BUFFER };
enum { V_BYTES = 2 * V_BUFFER, V_COUNT };

static uint64_t vote(const symwin_comm *comm, int rank, int buffer, int what)
{
    return comm->votes[rank].values[buffer * V_BUFFER + what];
}

/* The first rank whose buffer cannot be shared; -1: all can. */
static int unable(const symwin_comm *comm, int buffer)
{
    int r = 0;

    while (r < comm->nranks && (vote(comm, r, buffer, V_FLAGS) & F_CAN) != 0)
        r++;
    return r < comm->nranks ? r : -1;
}

static uint64_t least(const symwin_comm *comm, int buffer, int what)
{
    uint64_t value = UINT64_MAX;
    int r;

    for (r = 0; r < comm->nranks; r++)
        if (vote(comm, r, buffer, what) < value)
            value = vote(comm, r, buffer, what);
    return value;
}

static int ranks_with(const symwin_comm *comm, int buffer, unsigned flag)
{
    int count = 0, r;

    for (r = 0; r < comm->nranks; r++)
        count += (vote(comm, r, buffer, V_FLAGS) & flag) != 0;
    return count;
}

/* An error is one that has ended the communicator. */
static symwin_status connect_one(symwin_comm *comm, const char *call,
                                 const struct sw_surroundings *s, size_t bytes, uint64_t before,
                                 uint64_t after, struct sw_connected *made)
{
    symwin_status status = SYMWIN_OK;

    if (made->refused[0] == '\0') {
        status = sw_window_attach(comm, call, SYMWIN_OK, (void *)(uintptr_t)(s->address - before),
                                  bytes + (size_t)(before + after), 0, &made->window);
        if (status == SYMWIN_OK)
            return SYMWIN_OK;
        if (sw_exchange_status(comm->group->exchange, call) != SYMWIN_OK)
            return status;
        snprintf(made->refused, sizeof made->refused, "%s", symwin_last_error());
        /* Nobody launches before all have taken down what they had: a driver that waits for kernels before it unmaps would
         * wait for one that waits for this rank's. */
        status = sw_agree(comm, call, SYMWIN_OK, NULL, 0);
        if (status != SYMWIN_OK)
            return status;
    }
    /* All of this rank's range, whatever the others have: they refuse all of theirs. */
    made->window = (struct sw_window){
        .ptr = (void *)(uintptr_t)(s->address - s->before),
        .bytes = s->before + bytes + s->after,
        .buffer_id = s->buffer_id,
    };
    return SYMWIN_OK;
}

/* With the votes of all. */
static symwin_status connect_both(symwin_comm *comm, const char *call,
                                  const struct sw_surroundings buffers[2], size_t bytes,
                                  struct sw_connected *spare[2], struct sw_connected **made)
{
    const int same = ranks_with(comm, 0, F_SAME) == comm->nranks;
    uint64_t extents[2][2];
    symwin_status status = SYMWIN_OK;
    int wanted[2], b, r;

    for (r = 1; r < comm->nranks; r++)
        if (comm->votes[r].values[V_BYTES] != comm->votes[0].values[V_BYTES])
            return sw_fail(SYMWIN_MISMATCH,
                           "%s: rank 0 passes %llu bytes and rank %d %llu; pass as many on all "
                           "ranks",
                           call, (unsigned long long)comm->votes[0].values[V_BYTES], r,
                           (unsigned long long)comm->votes[r].values[V_BYTES]);
    for (b = 0; b < 2; b++) { /* the next agreement overwrites the votes */
        wanted[b] = ranks_with(comm, b, F_REGISTERED) > 0 && !(b == 1 && same);
        extents[b][0] = least(comm, b, V_BEFORE);
        extents[b][1] = least(comm, b, V_AFTER);
        r = unable(comm, b);
        if (r >= 0)
            snprintf(spare[b]->refused, sizeof spare[b]->refused,
                     "rank %d's buffer is not in one allocation of VMM memory; allocate it with "
                     "symwin_mem_alloc, ncclMemAlloc or another cuMemCreate allocator",
                     r);
    }
    for (b = 0; b < 2 && status == SYMWIN_OK; b++) {
        if (!wanted[b])
            continue;
        status = connect_one(comm, call, &buffers[b], bytes, extents[b][0], extents[b][1],
                             spare[b]);
        if (status != SYMWIN_OK)
            break;
        spare[b]->next = *made;
        *made = spare[b];
        spare[b] = NULL;
    }
    return status;
}

symwin_status sw_connect(symwin_comm *comm, const char *call, symwin_status status,
                         const struct sw_surroundings buffers[2], size_t bytes,
                         struct sw_connected **made)
{
    struct sw_connected *spare[2] = {calloc(1, sizeof *spare[0]), calloc(1, sizeof *spare[0])};
    const int same = buffers[0].address == buffers[1].address;
    uint64_t values[V_COUNT] = {0};
    char text[SW_TEXT_BYTES];
    int b;

    memcpy(text, symwin_last_error(), sizeof text);
    for (b = 0; b < 2; b++) {
        uint64_t *v = &values[b * V_BUFFER];

        v[V_FLAGS] = (buffers[b].registered ? F_REGISTERED : 0u) | (buffers[b].can ? F_CAN : 0u) |
                     (same ? F_SAME : 0u);
        v[V_BEFORE] = buffers[b].before;
        v[V_AFTER] = buffers[b].after;
    }
    values[V_BYTES] = bytes;
    if (status == SYMWIN_OK && (spare[0] == NULL || spare[1] == NULL))
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory to connect registered buffers");
    comm->sequence++;
    status = sw_agree(comm, call, status, values, V_COUNT);
    if (status == SYMWIN_OK)
        status = connect_both(comm, call, buffers, bytes, spare, made);
    if (status == SYMWIN_OK)
        sw_error_restore(text);
    free(spare[0]);
    free(spare[1]);
    return status;
}
