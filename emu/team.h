/* The state of a multicast object that all processes share: its devices and its bindings.
 *
 * The state lies in this process's memory until the object is exported, then in a file, to which
 * the descriptor or the fabric handle leads. Every process opens that file itself and locks one
 * byte of it, its seat, as long as it has the object: the system releases the seat however the
 * process ends. Whoever changes the state locks another byte, so a process that dies never leaves
 * it locked.
 */
#ifndef SYMWIN_EMU_TEAM_H
#define SYMWIN_EMU_TEAM_H

#include "share.h"

struct emu_team_bind {
    _Atomic uint64_t serial; /* changes with the record, written last; 0: free */
    uint64_t seat;           /* of the process that bound it */
    uint64_t offset, bytes;  /* in the object */
    uint64_t memory_offset;
    struct emu_place memory; /* where other processes find the memory */
    uint32_t member;
    uint32_t gone; /* the memory has been freed */
};

struct emu_team_state {
    _Atomic uint64_t version; /* changes with everything below */
    uint64_t last_seat, last_serial;
    uint64_t bind_count; /* records, free ones included */
    _Atomic uint32_t added;
    int32_t devices[EMU_MAX_DEVICES]; /* in the order of addition */
    uint32_t slot;                    /* of the switch, from 1 on, if processes share them */
    struct emu_team_bind binds[];
};

struct emu_team {
    struct emu_team_state *state; /* owned */
    size_t bytes;                 /* of the state */
    uint64_t most_binds;
    uint64_t seat;
    int fd; /* owned; -1: no other process has the object */
};

/* Under emu_memory_mutex, all of them. */

/* Size of an object's state, and of its file without the passport. */
size_t emu_team_bytes(size_t object_bytes, unsigned devices);

CUresult emu_team_begin(struct emu_team *team, size_t object_bytes, unsigned devices);

/* Moves the state into a file, so that other processes can join. The object had no file before. */
CUresult emu_team_share(struct emu_team *team, struct emu_passport *passport);

/* Takes a seat in the file's team; starts a new state if no process has a seat, since the
 * descriptor does not hold the object. The caller keeps its descriptor. */
CUresult emu_team_join(struct emu_team *team, const struct emu_passport *passport, int fd);
void emu_team_end(struct emu_team *team);

/* Around every access to the state. */
void emu_team_lock(const struct emu_team *team);
void emu_team_unlock(const struct emu_team *team);

/* Whether the process with this seat still has the object. */
int emu_team_is_seated(const struct emu_team *team, uint64_t seat);

/* The number of the object's slot, from 1 on; 0: no process with the object has one, be it that the
 * process which had it has died. Who takes a slot says so; -1: it cannot. */
uint32_t emu_team_slot(const struct emu_team *team);
int emu_team_slot_set(struct emu_team *team, uint32_t slot);

/* A free record, to be filled in and announced; NULL: too many. */
struct emu_team_bind *emu_team_bind_new(struct emu_team *team);

/* Tells all processes that the record has changed (NULL: something else has); or that it is free
 * now. */
void emu_team_announce(struct emu_team *team, struct emu_team_bind *bind);
void emu_team_bind_free(struct emu_team *team, struct emu_team_bind *bind);

#endif
