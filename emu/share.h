/* How objects travel between processes: a descriptor of shared memory that carries a passport, so
 * that whoever gets it can tell a real one from any other and knows all that there is to know.
 */
#ifndef SYMWIN_EMU_SHARE_H
#define SYMWIN_EMU_SHARE_H

#include "memory.h"

/* The last EMU_PASSPORT_BYTES of the file. Everything before them is the memory. */
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

/* A new file of the memory that the passport speaks of (none for a multicast object), with the
 * passport behind it, sealed against any change of size. Fills in magic and digest. */
CUresult emu_passport_issue(struct emu_passport *passport, int *fd);

/* Whether an object may be made with these handle types: NOT_SUPPORTED or NOT_PERMITTED where the
 * machine has no such ones, INVALID_VALUE for what is no handle type. */
CUresult emu_handle_types_ok(unsigned long long types);

/* physical.c, under the lock. The import finds the allocation if it lives in this process. */
CUresult emu_physical_export(struct emu_physical *p, int *fd);
CUresult emu_physical_import(const struct emu_passport *passport, int fd,
                             struct emu_object **object);

/* mcast.c, under the lock. The import makes an empty object if there is none of that name: a
 * descriptor does not keep a multicast object. */
CUresult emu_multicast_export(const struct emu_multicast *mc, int *fd);
CUresult emu_multicast_import(const struct emu_passport *passport, struct emu_object **object);

#endif
