/* Multicast objects: a team of devices, and for each device the memory behind each granule.
 *
 *   mcast.c      the objects: life, export and import, devices
 *   team.c       the state that all processes with the object share: devices and bindings
 *   mcast_see.c  this process's copy of that state, with a table of host addresses that kernels
 *                read without a lock
 *   mcast_bind.c bind and unbind
 *   switch.c     the slots of the switch
 *   mcast_fault.c faults on demand
 *
 * A binding does not hold memory. If memory is freed before it is unbound, accesses fault there and
 * the unbind is refused, as on hardware.
 */
#ifndef SYMWIN_EMU_MCAST_H
#define SYMWIN_EMU_MCAST_H

#include "team.h"

/* This process's copy of a binding. */
struct seen_bind {
    uint64_t serial; /* 0: none */
    unsigned member;
    size_t offset, bytes;
    int is_own;
    unsigned char *memory;        /* mapped here; NULL: gone or not available */
    const struct emu_physical *p; /* its allocation; NULL: no handle in this process */
};

/* Memory that another process has bound and that has no handle in this process. It stays mapped as
 * long as the object exists here: a kernel may be writing to it. */
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

    /* The copy of the state. */
    _Atomic uint64_t version;
    unsigned size, added;                     /* devices of the team; devices added */
    CUdevice devices[EMU_MAX_DEVICES];        /* in the order of addition */
    unsigned char is_member[EMU_MAX_DEVICES]; /* constant when complete, as all above */
    struct seen_bind *binds;                  /* one per record of the state */
    uint64_t bind_count;
    struct guest *guests;
    _Atomic(unsigned char *) *targets; /* [granule][member]: NULL where nothing is bound */

    int has_slot;
    int slot_fd; /* owned: holds the slot if processes share them; otherwise -1 */
};

/* Under emu_memory_mutex, all of them. */

static inline int emu_multicast_is_complete(const struct emu_multicast *mc)
{
    return mc->added == mc->size;
}

/* Updates the copy from the team's state, which the caller has locked. Without memory the old copy
 * stays. */
CUresult emu_multicast_see(struct emu_multicast *mc);

/* The same if anything has changed; locks the state itself. */
void emu_multicast_catch_up(struct emu_multicast *mc);

/* Makes room for copies of `count` bindings. -1: no memory. */
int emu_multicast_reserve(struct emu_multicast *mc, uint64_t count);

/* Clears the copy and frees its memory. */
void emu_multicast_see_nothing(struct emu_multicast *mc);

/* Takes a slot of the switch for the object, unless it has one; with the state locked.
 * OUT_OF_MEMORY if all are taken. */
CUresult emu_slot_take(struct emu_multicast *mc);
void emu_slot_give(struct emu_multicast *mc);

/* First statement of every entry point on multicast. */
CUresult emu_multicast_enter(enum emu_entry entry);

#endif
