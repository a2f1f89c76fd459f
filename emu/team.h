/* What a multicast object is to all processes that have it: its devices, and what is bound.
 *
 * It lies in this process's own memory until the object is exported, and then in a file, to which
 * the descriptor or the fabric handle leads. Every process opens that file for itself and locks a
 * byte of it, its seat, for as long as it has the object: however it ends, its seat is empty then.
 * Another byte is locked by whoever changes the state, so that nobody dies with it locked either.
 */
#ifndef SYMWIN_EMU_TEAM_H
#define SYMWIN_EMU_TEAM_H

#include "share.h"

struct emu_team_bind {
    _Atomic uint64_t serial; /* changes with the record, and is written last; 0: free */
    uint64_t seat;           /* of the process that bound it */
    uint64_t offset, bytes;  /* in the object */
    uint64_t memory_offset;
    struct emu_place memory; /* where the other processes find it */
    uint32_t member;
    uint32_t gone; /* the memory has ended */
};

struct emu_team_state {
    _Atomic uint64_t version; /* changes with everything below */
    uint64_t last_seat, last_serial;
    uint64_t bind_count; /* records in use, and free ones among them */
    _Atomic uint32_t added;
    int32_t devices[EMU_MAX_DEVICES]; /* in the order in which they were added */
    struct emu_team_bind binds[];
};

struct emu_team {
    struct emu_team_state *state; /* owned */
    size_t bytes;                 /* of the state */
    uint64_t most_binds;
    uint64_t seat;
    int fd; /* owned; -1: no other process has the object */
};

/* All under emu_memory_mutex. */

/* How long the state of an object is, and its file without the passport. */
size_t emu_team_bytes(size_t object_bytes, unsigned devices);

CUresult emu_team_begin(struct emu_team *team, size_t object_bytes, unsigned devices);

/* Lets other processes in: moves the state into a file. The object had none before. */
CUresult emu_team_share(struct emu_team *team, struct emu_passport *passport);

/* Takes a seat in the file's team, a new one if nobody sits there: the descriptor keeps no object.
 * The descriptor stays the caller's. */
CUresult emu_team_join(struct emu_team *team, const struct emu_passport *passport, int fd);
void emu_team_end(struct emu_team *team);

/* Around every look at the state and every change of it. */
void emu_team_lock(const struct emu_team *team);
void emu_team_unlock(const struct emu_team *team);

/* Whether the process that has, or had, this seat still has the object. */
int emu_team_is_seated(const struct emu_team *team, uint64_t seat);

/* A free record, to be filled in and announced; NULL: there are too many. */
struct emu_team_bind *emu_team_bind_new(struct emu_team *team);

/* Tells all processes that the record (NULL: something else) is another one now; or is none. */
void emu_team_announce(struct emu_team *team, struct emu_team_bind *bind);
void emu_team_bind_free(struct emu_team *team, struct emu_team_bind *bind);

#endif
