/* What the memory files share.
 *
 * There are three kinds of things, as on a device: objects (physical allocations and multicast
 * objects), to which handles refer (object.c, share.c, physical.c, mcast.c); ranges of addresses
 * (space.c, block.c); and mappings, which map an object at a range (map.c). One lock,
 * emu_memory_mutex, guards all of them. Nobody holds it while waiting for a device. A call that
 * waits for a multicast team unlocks it, and looks everything up again afterwards.
 *
 * Kernels and copies read emu_table and its mappings (emu_access.h) without the lock. They take it
 * only where another process has changed a multicast object (mcast_see.c).
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

/* The same for multicast objects and the memory bound to them. */
static inline int emu_is_multicast_granular(size_t n)
{
    return n % emu_machine.multicast_unit == 0;
}

/* ---- object.c: objects behind handles -------------------------------------------------------- */

enum emu_object_kind { EMU_PHYSICAL = 1, EMU_MULTICAST = 2 };

/* 128 random bits that name an object in descriptors and fabric handles. */
struct emu_id {
    unsigned char bytes[16];
};

/* First member of struct emu_physical and struct emu_multicast. */
struct emu_object {
    enum emu_object_kind kind;
    CUmemGenericAllocationHandle handle; /* unchanged for the object's whole life */
    unsigned refs;                       /* Create, Import, Retain minus Release */
    unsigned mappings;
    size_t bytes;
    unsigned handle_types; /* allowed for export */
    struct emu_id id;
};

/* Under the lock, from here to the end of the section. */

/* Adds the object to the table, with a handle and one reference. -1: no memory. */
int emu_object_add(struct emu_object *object, const struct emu_id *id);
CUresult emu_id_make(struct emu_id *id);

/* The object of a handle that has references, NULL if there is none (of that kind). */
struct emu_object *emu_object_find(CUmemGenericAllocationHandle handle);
struct emu_physical *emu_physical_find(CUmemGenericAllocationHandle handle);
struct emu_multicast *emu_multicast_find(CUmemGenericAllocationHandle handle);
/* The objects of a kind, one at a call: set *at to 0 first; NULL after the last. Any of them may be
 * removed meanwhile. */
struct emu_object *emu_object_next(enum emu_object_kind kind, size_t *at);
/* The first of that name: imports of memory have the original's. */
struct emu_object *emu_object_named(enum emu_object_kind kind, const struct emu_id *id);

void emu_object_ref(struct emu_object *object);

/* Call after a reference or a mapping is gone: frees the object if nothing holds it. */
void emu_object_settle(struct emu_object *object);

/* Removes the object from the table. */
void emu_object_remove(struct emu_object *object);

/* ---- physical.c ------------------------------------------------------------------------------ */

struct emu_physical {
    struct emu_object object;
    CUmemAllocationProp prop; /* effective properties */
    unsigned char *memory;    /* canonical addresses */
    int fd;                   /* owned: memfd with the memory, then the passport */
    int exported;             /* a descriptor was handed out and may hold the memory */
    int foreign;              /* an import: the memory is charged to the original */
};

/* Charges `bytes` to the device, or to the host (device -1), which has no limit here. -1: not
 * enough left. Under the lock. */
int emu_memory_take(CUdevice device, size_t bytes);
void emu_memory_give(CUdevice device, size_t bytes);
size_t emu_memory_left(CUdevice device);

/* Frees the allocation unless a descriptor holds it. Under the lock. */
void emu_physical_settle(struct emu_physical *p);

/* Frees allocations that were held only by descriptors and whose descriptors have been closed. */
void emu_physical_sweep(void);
void emu_physical_print(int fd);

/* ---- space.c --------------------------------------------------------------------------------- */

enum emu_range_kind { EMU_RESERVATION, EMU_DEVICE_BLOCK, EMU_HOST_BLOCK };

/* A mapping with this side's data. The table points to `seen`. A view is reused but never freed: a
 * program that reads through a mapping while another thread unmaps it has undefined results, here
 * as on hardware, but must not make the emulator read memory that has become something else. */
struct emu_view {
    struct emu_mapping seen;
    struct emu_object *object; /* NULL: plain memory */
    enum emu_range_kind kind;
    CUdevice device;           /* where the memory is; -1: host */
    struct CUctx_st *ctx;      /* a block's context */
    uint64_t buffer_id;        /* never used again */
    unsigned char host_access; /* host memory: the host's own access */
    int shown;                 /* the memory is mapped into the arena too */
    struct emu_view *next_free;
};

CUresult emu_space_start(void);
void emu_space_print(int fd);

/* Under the lock, from here to the end of the section. */

/* Reserves at least `bytes` addresses, at `hint` if that is free. 0: no room. */
CUdeviceptr emu_range_take(size_t bytes, size_t alignment, CUdeviceptr hint,
                           enum emu_range_kind kind);
void emu_range_give(CUdeviceptr va);

/* Puts a mapping without access into the table. NULL: no memory. */
struct emu_view *emu_view_add(CUdeviceptr va, size_t bytes, struct emu_object *object);
void emu_view_remove(struct emu_view *view);

/* The mapping or block at `addr`, NULL if none. */
struct emu_view *emu_view_at(CUdeviceptr addr);
int emu_is_reserved(CUdeviceptr addr);

/* The reservation or block at `addr`, which must exist, with the size that was asked for. */
void emu_range_find(CUdeviceptr addr, CUdeviceptr *va, size_t *bytes);

/* Whether the whole range lies in one reservation. */
int emu_range_covers(CUdeviceptr va, size_t bytes);

/* The context has ended, and its plain memory is inaccessible now. The blocks stay: they can be
 * freed, and count as live until then. */
void emu_blocks_lose(const struct CUctx_st *ctx);

/* Returns the arena's pages to PROT_NONE. -1: the system has no memory for that. */
int emu_arena_hide(CUdeviceptr va, size_t bytes);

/* The set of devices with any access to the view; drain, without the lock, waits for those
 * devices. */
struct emu_device_set {
    unsigned char has[EMU_MAX_DEVICES];
};
void emu_view_devices(const struct emu_view *view, struct emu_device_set *set);
void emu_drain_devices(const struct emu_device_set *set);

/* ---- mcast_fault.c --------------------------------------------------------------------------- */

/* The fault that a call is to have: it must stall for `stall_ms`, without a lock, and give the
 * answer unless that is CUDA_SUCCESS. */
struct emu_fault {
    CUresult answer;
    int stall_ms; /* 0: not at all */
};
struct emu_fault emu_fault_take(enum sw_emu_fault_call call, CUdevice device);
void emu_fault_stall(int ms);
void emu_fault_read(void); /* from the environment */

/* ---- mcast.c --------------------------------------------------------------------------------- */

/* Under the lock, all of them. */

/* Unlocks and waits until all devices have been added to the object. Returns INVALID_VALUE if the
 * object's last handle is released meanwhile. Earlier lookups may be stale afterwards. */
CUresult emu_multicast_wait(CUmemGenericAllocationHandle handle);

void emu_multicast_free(struct emu_multicast *mc);
void emu_multicast_wake(void); /* a handle was released: waiters check again */
void emu_multicast_memory_gone(const struct emu_physical *p);
void emu_multicast_print(int fd); /* locks by itself */

#endif
