/* Multicast objects: a team of devices, and for each of them which memory lies behind each granule.
 *
 *   mcast.c      the objects: life, export and import, devices
 *   team.c       what all processes that have an object know of it: devices and bindings
 *   mcast_see.c  the same as this process has last seen it, with a table of host addresses, which
 *                kernels read without a lock
 *   mcast_bind.c bind and unbind
 *
 * A binding does not keep memory: where memory goes before it is unbound, accesses fault there and
 * the unbind is refused, as on hardware.
 */
#ifndef SYMWIN_EMU_MCAST_H
#define SYMWIN_EMU_MCAST_H

#include "team.h"

/* A binding as it was last seen. */
struct seen_bind {
    uint64_t serial; /* 0: none */
    unsigned member;
    size_t offset, bytes;
    int is_own;
    unsigned char *memory;        /* its bytes here; NULL: gone, or not to be had */
    const struct emu_physical *p; /* that they belong to; NULL: we have no handle of it */
};

/* Memory that another process has bound and that this one has no handle of. It stays mapped as long
 * as the object is here: a kernel may be writing to it. */
struct guest {
    struct guest *next;
    struct emu_id id;
    unsigned char *memory;
    size_t bytes;
};

struct emu_multicast {
    struct emu_object object;
    struct emu_team team;
    struct emu_team_state *_Atomic shared; /* team.state if other processes may change it */

    /* As last seen. */
    _Atomic uint64_t version;
    unsigned size, added;                     /* devices of the team; how many are known */
    CUdevice devices[EMU_MAX_DEVICES];        /* in the order in which they were added */
    unsigned char is_member[EMU_MAX_DEVICES]; /* constant when complete, as all above */
    struct seen_bind *binds;                  /* one a record of the state */
    uint64_t bind_count;
    struct guest *guests;
    _Atomic(unsigned char *) *targets; /* [granule][member]: NULL where nothing is bound */
};

/* All under the lock. */

static inline int emu_multicast_is_complete(const struct emu_multicast *mc)
{
    return mc->added == mc->size;
}

/* Sees what has changed in the team's state, which the caller has locked. Without memory for that,
 * what was seen before stays. */
CUresult emu_multicast_see(struct emu_multicast *mc);

/* The same if anything has changed; locks the state itself. */
void emu_multicast_catch_up(struct emu_multicast *mc);

/* Room for what is to be seen of so many bindings. -1: no memory. */
int emu_multicast_reserve(struct emu_multicast *mc, uint64_t count);

/* Gives up all that is seen, and its memory. */
void emu_multicast_see_nothing(struct emu_multicast *mc);

/* First statement of every entry point on multicast. */
CUresult emu_multicast_enter(enum emu_entry entry);

#endif
