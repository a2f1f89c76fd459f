/* How objects travel between processes: a descriptor of shared memory that carries a passport. The
 * receiver can tell a genuine descriptor from any other, and the passport has all facts of the
 * object.
 */
#ifndef SYMWIN_EMU_SHARE_H
#define SYMWIN_EMU_SHARE_H

#include <sys/types.h>

#include "memory.h"

/* The passport is the last EMU_PASSPORT_BYTES of the file. Before it lies the memory, or the state
 * of a multicast object (team.h). */
#define EMU_PASSPORT_BYTES 4096

struct emu_passport {
    char magic[16];
    uint32_t kind, handle_types;
    uint64_t bytes;
    struct emu_id id;
    int32_t location_type, location_id;
    uint32_t rdma, devices; /* devices: numDevices of a multicast object */
    uint64_t digest;        /* of everything above */
};

/* Creates a file for the passport's object, with the passport at its end, sealed against any change
 * of size. Fills in magic and digest. */
CUresult emu_passport_issue(struct emu_passport *passport, int *fd);

/* Locks one byte for the open file description; the lock ends with it. -1: another lock conflicts
 * and `wait` is 0. */
int emu_file_lock(int fd, off_t byte, int type, int wait);

/* Whether another open file description has a lock on any of these bytes; count 0: to the end. */
int emu_file_is_locked(int fd, off_t first, off_t count);

/* Opens the same file once more; `high`: with a number that programs do not rely on. -1: see
 * errno. */
int emu_file_reopen(int fd, int high);
int emu_file_is_same(int a, int b); /* the same file, not a copy */

/* Where to open an object's file without receiving a descriptor: a process of the same user has it
 * open under that number. The file found there is the object's only if it bears the object's id. */
struct emu_place {
    struct emu_id id;
    int32_t pid, fd;
};

/* A new descriptor of the file, and its passport. -1: the process no longer has it, or the object
 * was not created for any of these handle types. */
int emu_place_open(const struct emu_place *place, enum emu_object_kind kind, unsigned types,
                   struct emu_passport *passport);

/* Whether an object may be created with these handle types: NOT_SUPPORTED or NOT_PERMITTED if the
 * machine lacks them, INVALID_VALUE if they are no handle types. */
CUresult emu_handle_types_ok(unsigned long long types);

/* physical.c, under the lock. Each import is an object of its own, also where the memory was
 * created. */
CUresult emu_physical_export(struct emu_physical *p, int *fd);
CUresult emu_physical_import(const struct emu_passport *passport, int fd,
                             struct emu_object **object);

/* The same without a descriptor being passed. The place holds nothing: INVALID_VALUE if nothing
 * holds the memory any more. */
void emu_physical_place(struct emu_physical *p, struct emu_place *place);
CUresult emu_physical_visit(const struct emu_passport *passport, int fd,
                            struct emu_object **object);

/* mcast.c, under the lock. The import creates an empty object if no process has it any more: a
 * descriptor does not hold a multicast object. */
CUresult emu_multicast_export(struct emu_multicast *mc, int *fd);
CUresult emu_multicast_place(struct emu_multicast *mc, struct emu_place *place);
CUresult emu_multicast_import(const struct emu_passport *passport, int fd,
                              struct emu_object **object);

#endif
