/* Memory of this process: declarations grouped by the file that defines them. */
#ifndef SYMWIN_MEMORY_PRIVATE_H
#define SYMWIN_MEMORY_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/base/base.h"
#include "src/driver/driver.h"

/* ---- physical.c: physical memory behind an address range ------------------------------------- */

/* Ranges begin and end at multiples of this, so no slot of the address map has two owners. */
#define SW_MEMORY_SLOT_BITS 21
#define SW_MEMORY_SLOT ((size_t)1 << SW_MEMORY_SLOT_BITS)

enum sw_memory_stage { SW_MEMORY_NONE, SW_MEMORY_CREATED, SW_MEMORY_RESERVED, SW_MEMORY_MAPPED };

struct sw_memory {
    enum sw_memory_stage stage;
    int imported;
    CUmemGenericAllocationHandle handle; /* owned from CREATED on */
    CUdeviceptr base;                    /* owned from RESERVED on, range_bytes long */
    size_t bytes, range_bytes;
    int device;
    uint64_t buffer_id; /* of its mapping, when MAPPED */
};

/* The properties of allocations on a device. */
struct sw_memory_kind {
    CUmemAllocationProp prop;
    size_t granularity;
};
symwin_status sw_memory_kind_find(const char *call, int device, struct sw_memory_kind *kind);

/* Creates memory, mapped with access. `flags`: SYMWIN_MEM_PEERS or 0. If the system does not permit
 * fabric handles, it removes them from `kind`. */
symwin_status sw_memory_create(const char *call, struct sw_memory_kind *kind, size_t bytes,
                               unsigned flags, struct sw_memory *m);

/* From stage CREATED to MAPPED, with access for `device`. */
symwin_status sw_memory_show(const char *call, struct sw_memory *m, size_t granularity, int device,
                             unsigned flags);

/* From any stage. What may wait for kernels is left to the reaper. */
void sw_memory_release(struct sw_memory *m);

/* For the reaper: unmaps; and the same, then releases the rest. */
void sw_memory_unmap(struct sw_memory *m);
void sw_memory_drop(struct sw_memory *m);

/* Fills memory on the current context's device, and waits for the fill only. */
symwin_status sw_memory_fill(CUdeviceptr ptr, int byte, size_t bytes);

/* Gives each of `devices` read-write access. *answer, unless it is NULL: the driver's. */
symwin_status sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count,
                               CUresult *answer);

/* The physical allocation under an address. */
struct sw_physical {
    CUdeviceptr base; /* of its mapping */
    size_t bytes;
    int device;
    uint64_t buffer_id; /* of the mapping: each has its own, and none is used again */
};
symwin_status sw_physical_find(const char *call, CUdeviceptr ptr, struct sw_physical *out);

/* The same, with its properties and a reference to its handle. */
symwin_status sw_physical_open(const char *call, CUdeviceptr ptr,
                               CUmemGenericAllocationHandle *handle, struct sw_physical *out,
                               CUmemAllocationProp *prop);

/* The most physical allocations under a window: ranks exchange their handles one by one. */
#define SW_PIECES 1024

/* The contiguous physical allocations under [ptr, ptr + bytes) in one reservation, such as those of
 * PyTorch's expandable segments. `first`: the allocation at `ptr`. *out: `count` allocations,
 * including `first`; the caller frees it. They may end before the range does. SYMWIN_INVALID: there
 * are more than SW_PIECES. */
symwin_status sw_physical_span(const char *call, CUdeviceptr ptr, size_t bytes,
                               const struct sw_physical *first, struct sw_physical **out,
                               int *count);

/* The start and size of the reservation around a VMM address. 0: the reservation is no longer than
 * the mapping at `ptr`, or `ptr` is not VMM memory. */
CUdeviceptr sw_physical_reservation(CUdeviceptr ptr, size_t *bytes);

/* The range [*low, *high) of contiguous mappings around `ptr`: at most `most` of them, in one
 * reservation. It stops growing once it covers [begin, end). If nothing is mapped at `ptr`, *low
 * and *high do not change. */
void sw_physical_extend(CUdeviceptr ptr, CUdeviceptr begin, CUdeviceptr end, int most,
                        CUdeviceptr *low, CUdeviceptr *high);

/* The device, or a lower number, and the range of the mapping or allocation at `ptr`, in as few
 * questions as tell all of it. 0: it is no device memory, or there is more to ask. */
int sw_physical_look(CUdeviceptr ptr, int *device, CUdeviceptr *begin, CUdeviceptr *end);

/* The end of another allocator's memory at `ptr`: of the allocation, or of the mappings from there
 * on without a gap in the reservation, as far as `wanted`. `wanted`: the driver does not tell. */
CUdeviceptr sw_physical_end(CUdeviceptr ptr, CUdeviceptr wanted);

/* ---- address_map.c: from an address to its chunk --------------------------------------------- */

void *sw_address_map_find(CUdeviceptr address); /* NULL: none; takes no lock */
symwin_status sw_address_map_insert(const char *call, CUdeviceptr base, size_t bytes, void *thing);
void sw_address_map_remove(CUdeviceptr base, size_t bytes);

/* ---- vmm_alloc.c: allocations ---------------------------------------------------------------- */

/* Whether an address is in memory of symwin_mem_alloc() or symwin_mem_import(). */
enum sw_owned { SW_OWNED_NOT, SW_OWNED_FREE, SW_OWNED_LIVE };

struct sw_allocation {
    CUdeviceptr begin;
    size_t bytes; /* rounded up */
    size_t asked;
    size_t room; /* of `bytes`, those before the guard of SYMWIN_MEM_DEBUG */
    struct sw_physical physical;
    int owned; /* 0: of another allocator */
    int imported;
    int holds; /* owners that keep it from being freed */
};

/* How many bytes from an address on may be used. */
static inline size_t sw_allocation_room(const struct sw_allocation *a, CUdeviceptr address)
{
    return address - a->begin < a->room ? a->room - (size_t)(address - a->begin) : 0;
}

/* Fills `out` if LIVE; if FREE, only out->physical is valid. */
enum sw_owned sw_allocation_find(CUdeviceptr ptr, struct sw_allocation *out);

/* The same; a LIVE allocation cannot be freed until sw_allocation_drop() of the same address. */
enum sw_owned sw_allocation_hold(CUdeviceptr ptr, struct sw_allocation *out);
void sw_allocation_drop(CUdeviceptr ptr); /* calls no driver */

/* Like symwin_mem_free(), but a held allocation is FREE for all later calls, and goes back to its
 * pool with the last hold. */
symwin_status sw_allocation_free_late(const char *call, void *ptr);

/* Registers a function that drops holds which nobody needs any more. It is called before a call
 * fails because memory is held. Any thread. */
void sw_memory_on_held(void (*settle)(void));

/* Gives memory back to the device where sw_allocation_drop() has made the pools keep too much. Call
 * it without a lock after dropping holds. Costs one atomic load if there is nothing to do. */
void sw_allocations_settle(void);

/* ---- share.c: query, export, import ---------------------------------------------------------- */

/* Finds the memory for a window: an allocation of this library, held until sw_allocation_drop() of
 * the address, or the mapping of another allocator. SYMWIN_INVALID: neither. */
symwin_status sw_memory_hold(const char *call, CUdeviceptr ptr, struct sw_allocation *out);

/* Checks that what another process has sent, as the memory of `rank`, is memory. A multicast object
 * is not: the driver may wait for ever before it maps one. */
symwin_status sw_memory_check_sent(CUmemGenericAllocationHandle sent, int rank);

/* ---- pool.c: what pools keep, imported memory (see also pool.h) ------------------------------ */

/* Gives all kept memory of a device back to it. 0: there was none. */
int sw_pool_make_room(int device);

/* Creates at least `bytes` in no pool, for which pools give back what they keep. */
symwin_status sw_pool_create_apart(const char *call, int device, size_t bytes, struct sw_memory *m);

/* Takes ownership of imported memory; the caller's address is at byte `offset`. */
symwin_status sw_pool_import(const char *call, const struct sw_memory *m, size_t offset);

#endif
