/* The wires of the stand-in: which one a communicator has, and its functions. The unique id says
 * which, so all ranks have the same. Children have that of their parent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "inside.h"

ncclResult_t wire_id(ncclUniqueId *id)
{
    static atomic_uint made;
    const char *wire = getenv("STAND_IN_WIRE");
    struct timespec now;

    if (wire != NULL && strcmp(wire, "tcp") == 0)
        return meet_id(id);
    if (wire != NULL && strcmp(wire, "segment") != 0)
        return refuse(ncclInvalidArgument, "STAND_IN_WIRE=%s is neither segment nor tcp", wire);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id->internal, sizeof id->internal, "%x-%lx-%lx-%x", (unsigned)getpid(),
             (unsigned long)now.tv_sec, (unsigned long)now.tv_nsec, atomic_fetch_add(&made, 1));
    return ncclSuccess;
}

const struct wire_kind *wire_kind_of(const ncclUniqueId *id)
{
    return meet_is_id(id) ? &socket_kind : &segment_kind;
}

void wire_release(struct wire *wire)
{
    wire->kind->release(wire);
}

void wire_mark(struct wire *wire, int rank, enum seat seat)
{
    wire->kind->mark(wire, rank, seat);
}

int wire_is_lost(struct wire *wire, int rank, enum plane plane)
{
    return wire->kind->is_lost(wire, rank, plane);
}

size_t wire_put(struct wire *wire, enum plane plane, int from, int to, const void *data,
                size_t bytes)
{
    return wire->kind->put(wire, plane, from, to, data, bytes);
}

size_t wire_get(struct wire *wire, enum plane plane, int from, int to, void *data, size_t bytes)
{
    return wire->kind->get(wire, plane, from, to, data, bytes);
}
