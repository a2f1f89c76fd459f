/* How objects travel between processes: a descriptor of shared memory that carries a passport, so
 * that whoever gets it can tell a real one from any other and knows all that there is to know.
 */
#ifndef SYMWIN_EMU_SHARE_H
#define SYMWIN_EMU_SHARE_H

#include <sys/types.h>

#include "memory.h"

/* The last EMU_PASSPORT_BYTES of the file. Everything before them is the memory, or the state of a
 * multicast object (team.h). */
#define EMU_PASSPORT_BYTES 4096

struct emu_passport {
    char magic[16];
    uint32_t kind, handle_types;
    uint64_t bytes;
    struct emu_id id;
    int32_t location_type, location_id;
    uint32_t rdma, devices; /* the latter: numDevices of a multicast object */
    uint64_t digest;        /* of everything above */
};

/* A new file of what the passport speaks of, with the passport behind it, sealed against any change
 * of size. Fills in magic and digest. */
CUresult emu_passport_issue(struct emu_passport *passport, int *fd);

/* A lock on one byte that belongs to the open file and ends with it. -1: another one is in the way,
 * and `wait` is 0. */
int emu_file_lock(int fd, off_t byte, int type, int wait);

/* Whether another open file has a lock on any of these bytes; count 0: all from there on. */
int emu_file_is_locked(int fd, off_t first, off_t count);

/* The same file opened once more; `high`: as a number that programs do not count on. -1: errno. */
int emu_file_reopen(int fd, int high);
int emu_file_is_same(int a, int b); /* and not a copy */

/* Where an object's file is to be had without a descriptor being sent: some process of this user has
 * it open under that number. What is found there is the object's file only if it bears its name. */
struct emu_place {
    struct emu_id id;
    int32_t pid, fd;
};

/* A descriptor of its own of the file, and the passport in it; -1: that process has it no more, or
 * the object was not made for any of these handle types. */
int emu_place_open(const struct emu_place *place, enum emu_object_kind kind, unsigned types,
                   struct emu_passport *passport);

/* Whether an object may be made with these handle types: NOT_SUPPORTED or NOT_PERMITTED where the
 * machine has no such ones, INVALID_VALUE for what is no handle type. */
CUresult emu_handle_types_ok(unsigned long long types);

/* physical.c, under the lock. The import finds the allocation if it lives in this process. */
CUresult emu_physical_export(struct emu_physical *p, int *fd);
CUresult emu_physical_import(const struct emu_passport *passport, int fd,
                             struct emu_object **object);

/* The same without a descriptor being handed over: the place holds nothing, and who comes there
 * when nothing holds the memory any more gets INVALID_VALUE. */
void emu_physical_place(struct emu_physical *p, struct emu_place *place);
CUresult emu_physical_visit(const struct emu_passport *passport, int fd,
                            struct emu_object **object);

/* mcast.c, under the lock. The import makes an empty object if no process has it any more: a
 * descriptor does not keep a multicast object. */
CUresult emu_multicast_export(struct emu_multicast *mc, int *fd);
CUresult emu_multicast_place(struct emu_multicast *mc, struct emu_place *place);
CUresult emu_multicast_import(const struct emu_passport *passport, int fd,
                              struct emu_object **object);

#endif
