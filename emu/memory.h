/* What the memory side's files share.
 *
 * Three things, as on the device: physical allocations and multicast objects, which handles refer
 * to (object.c, share.c, physical.c, mcast.c); ranges of addresses (space.c, block.c); and
 * mappings, which show the one at the other (map.c). One lock guards all of them. Nobody holds it
 * while waiting for a device, and a call that waits for a multicast team gives it up and then looks
 * everything up again.
 *
 * Kernels and copies read emu_table and the mappings in it (emu_access.h) without the lock. They take
 * it only where another process has changed a multicast object (mcast_see.c).
 */
#ifndef SYMWIN_EMU_MEMORY_H
#define SYMWIN_EMU_MEMORY_H

#include "emu_internal.h"

extern pthread_mutex_t emu_memory_mutex;

static inline int emu_device_exists(CUdevice device)
{
    return device >= 0 && device < emu_machine.devices;
}

static inline int emu_is_granular(size_t n)
{
    return n % EMU_GRANULE == 0;
}

/* The same for multicast objects and what is bound to them. */
static inline int emu_is_multicast_granular(size_t n)
{
    return n % emu_machine.multicast_unit == 0;
}

/* ---- object.c: what handles refer to --------------------------------------------------------- */

enum emu_object_kind { EMU_PHYSICAL = 1, EMU_MULTICAST = 2 };

/* 128 random bits that name an object in descriptors and fabric handles. */
struct emu_id {
    unsigned char bytes[16];
};

/* First member of struct emu_physical and struct emu_multicast. */
struct emu_object {
    enum emu_object_kind kind;
    CUmemGenericAllocationHandle handle; /* the same one for the object's whole life */
    unsigned refs;                       /* Create, Import, Retain, less Release */
    unsigned mappings;
    size_t bytes;
    unsigned handle_types; /* that it may be exported as */
    struct emu_id id;
    struct emu_object *next, **link; /* in emu_objects */
};
extern struct emu_object *emu_objects;

/* The rest of this section under the lock. */

/* Lists the object and gives it its handle and one reference. -1: no memory. */
int emu_object_add(struct emu_object *object, const struct emu_id *id);
CUresult emu_id_make(struct emu_id *id);

/* The object behind a handle with references, NULL if there is none (of that kind). */
struct emu_object *emu_object_find(CUmemGenericAllocationHandle handle);
struct emu_physical *emu_physical_find(CUmemGenericAllocationHandle handle);
struct emu_multicast *emu_multicast_find(CUmemGenericAllocationHandle handle);
struct emu_object *emu_object_named(enum emu_object_kind kind, const struct emu_id *id);

void emu_object_ref(struct emu_object *object);

/* To be called when a reference or a mapping has gone: ends the object if nothing holds it. */
void emu_object_settle(struct emu_object *object);

/* Takes the object out of the list and its handle out of the table. */
void emu_object_remove(struct emu_object *object);

/* ---- physical.c ------------------------------------------------------------------------------ */

struct emu_physical {
    struct emu_object object;
    CUmemAllocationProp prop; /* effective */
    unsigned char *memory;    /* the canonical addresses */
    uint64_t buffer_id;
    int fd;       /* owned: a memfd, the memory and behind it the passport */
    int exported; /* a descriptor of it has been handed out: it may hold the memory */
    int foreign;  /* another process's, which pays for it */
};

/* Takes `bytes` of the device's memory, or of the host's (device -1), which has no limit here.
 * -1: it has not that much left. Under the lock. */
int emu_memory_take(CUdevice device, size_t bytes);
void emu_memory_give(CUdevice device, size_t bytes);
size_t emu_memory_left(CUdevice device);
uint64_t emu_buffer_id(void);

/* Under the lock: ends it unless a descriptor holds it; and what only a descriptor held has got a
 * reference again. */
void emu_physical_settle(struct emu_physical *p);
void emu_physical_revive(const struct emu_physical *p);

void emu_physical_sweep(void); /* ends what was held by descriptors that have been closed */
void emu_physical_print(int fd);

/* ---- space.c --------------------------------------------------------------------------------- */

enum emu_range_kind { EMU_RESERVATION, EMU_DEVICE_BLOCK, EMU_HOST_BLOCK };

/* A mapping as this side knows it. The table points to `seen`. Never freed, only used again: a
 * program that reads through a mapping while another thread unmaps it has undefined results there
 * and here, but here it must not read memory that has become something else. */
struct emu_view {
    struct emu_mapping seen;
    struct emu_object *object; /* what is mapped; NULL for blocks of plain memory */
    enum emu_range_kind kind;
    CUdevice device;      /* where the memory lives; -1: on the host */
    struct CUctx_st *ctx; /* that a block belongs to */
    uint64_t buffer_id;
    unsigned char host_access; /* of memory that lives on the host */
    int shown;                 /* the arena's own pages are those of the memory */
    struct emu_view *next_free;
};

CUresult emu_space_start(void);
void emu_space_print(int fd);

/* The rest under the lock. */

/* A range of at least `bytes` addresses, at `hint` if that is free. 0: no room. */
CUdeviceptr emu_range_take(size_t bytes, size_t alignment, CUdeviceptr hint,
                           enum emu_range_kind kind);
void emu_range_give(CUdeviceptr va);

/* Puts a mapping without rights into the table; NULL: no memory. */
struct emu_view *emu_view_add(CUdeviceptr va, size_t bytes, struct emu_object *object);
void emu_view_remove(struct emu_view *view);

/* The mapping or block that `addr` is in, NULL if none. */
struct emu_view *emu_view_at(CUdeviceptr addr);
int emu_is_reserved(CUdeviceptr addr);

/* The reservation or block that `addr` is in, which there is, as it was asked for. */
void emu_range_find(CUdeviceptr addr, CUdeviceptr *va, size_t *bytes);

/* Whether all of it lies in one reservation. */
int emu_range_covers(CUdeviceptr va, size_t bytes);

/* The context has ended, and its plain memory with it: nobody can reach it any more, though it is still there to be
 * freed, and counted as living until then. */
void emu_blocks_lose(const struct CUctx_st *ctx);

/* Gives the arena's pages back to the reserve. -1: the system has no memory for that. */
int emu_arena_hide(CUdeviceptr va, size_t bytes);

/* Which devices have any rights to the view; then, without the lock, waits for these. */
struct emu_device_set {
    unsigned char has[EMU_MAX_DEVICES];
};
void emu_view_devices(const struct emu_view *view, struct emu_device_set *set);
void emu_drain_devices(const struct emu_device_set *set);

/* ---- mcast.c --------------------------------------------------------------------------------- */

/* All under the lock. */

/* Waits, giving up the lock, until the object has all its devices, and answers INVALID_VALUE if its
 * last handle goes away instead. What was looked up before may be gone when it has waited. */
CUresult emu_multicast_wait(CUmemGenericAllocationHandle handle);

void emu_multicast_free(struct emu_multicast *mc);
void emu_multicast_wake(void); /* a handle has gone: who waits is to look again */
void emu_multicast_memory_gone(const struct emu_physical *p);
void emu_multicast_print(int fd); /* takes the lock itself */

#endif
