/* One rank's memory: private declarations, grouped by the file that defines them. */
#ifndef SYMWIN_MEMORY_PRIVATE_H
#define SYMWIN_MEMORY_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/base/base.h"
#include "src/driver/driver.h"

/* ---- physical.c: physical memory behind an address range -------------------------------------- */

/* Ranges begin and end at multiples of this, so that it tells what is whose (vmm_alloc.c). */
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
    uint64_t buffer_id; /* when MAPPED */
};

struct sw_memory_kind { /* what allocations of a device are like */
    CUmemAllocationProp prop;
    size_t granularity;
};
symwin_status sw_memory_kind_find(const char *call, int device, struct sw_memory_kind *kind);

/* Mapped, with access. `flags`: SYMWIN_MEM_PEERS or 0. `kind` then says what the system permits. */
symwin_status sw_memory_create(const char *call, struct sw_memory_kind *kind, size_t bytes,
                               unsigned flags, struct sw_memory *m);

/* From CREATED to MAPPED, with access for `device`. */
symwin_status sw_memory_show(const char *call, struct sw_memory *m, size_t granularity, int device,
                             unsigned flags);
void sw_memory_release(struct sw_memory *m); /* at any stage */

/* Fills memory of the current context's device, and waits for that alone. */
symwin_status sw_memory_fill(CUdeviceptr ptr, int byte, size_t bytes);

/* Read-write access for each of `devices`. */
symwin_status sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count);

/* The physical allocation under an address. */
struct sw_physical {
    CUdeviceptr base; /* of the mapping */
    size_t bytes;
    int device;
    uint64_t buffer_id;
};
symwin_status sw_physical_find(const char *call, CUdeviceptr ptr, struct sw_physical *out);

/* The same, with its properties and a reference to its handle. */
symwin_status sw_physical_open(const char *call, CUdeviceptr ptr,
                               CUmemGenericAllocationHandle *handle, struct sw_physical *out,
                               CUmemAllocationProp *prop);

/* How many physical allocations a window may lie on: their handles are traded one by one. */
#define SW_PIECES 1024

/* All physical allocations under [ptr, ptr + bytes) that adjoin in one reservation, as those of PyTorch's expandable segments;
 * `first` is what is at `ptr`. *out, owned by the caller, gets `count` of them, the first one too. They may end before the
 * range does. SYMWIN_INVALID: more than SW_PIECES. */
symwin_status sw_physical_span(const char *call, CUdeviceptr ptr, size_t bytes,
                               const struct sw_physical *first, struct sw_physical **out,
                               int *count);

/* Where the reservation is that an address of VMM memory lies in, if it is longer than the mapping there; 0: it is not, or the
 * memory is none. */
CUdeviceptr sw_physical_reservation(CUdeviceptr ptr, size_t *bytes);

/* How far mappings adjoin around the one at `ptr`, in its reservation: [*low, *high), as far as there is anything of
 * [begin, end), of up to `most` mappings. Both stay as they are where nothing is mapped at `ptr`. */
void sw_physical_extend(CUdeviceptr ptr, CUdeviceptr begin, CUdeviceptr end, int most,
                        CUdeviceptr *low, CUdeviceptr *high);

/* ---- place.c: what is at an address ---------------------------------------------------------- */

void *sw_address_map_find(CUdeviceptr address); /* NULL: nothing; no lock */
symwin_status sw_address_map_insert(const char *call, CUdeviceptr base, size_t bytes, void *thing);
void sw_address_map_remove(CUdeviceptr base, size_t bytes);

/* ---- vmm_alloc.c: one rank's memory ---------------------------------------------------------- */

/* Whether an address is in memory that symwin_mem_alloc() or symwin_mem_import() gave out. */
enum sw_owned { SW_OWNED_NOT, SW_OWNED_FREE, SW_OWNED_LIVE };

struct sw_allocation {
    CUdeviceptr begin;
    size_t bytes; /* rounded up */
    size_t asked;
    struct sw_physical physical;
    int owned; /* ours */
    int imported;
    int holds;
};

/* Fills `out` for LIVE; for FREE only its physical memory. */
enum sw_owned sw_allocation_find(CUdeviceptr ptr, struct sw_allocation *out);

/* The same, and what is LIVE is not freed until sw_allocation_drop() of the same address. */
enum sw_owned sw_allocation_hold(CUdeviceptr ptr, struct sw_allocation *out);
void sw_allocation_drop(CUdeviceptr ptr); /* calls no driver */

/* As symwin_mem_free(), but an allocation that is held is FREE for all from now on, and goes back to its pool with the last
 * hold. */
symwin_status sw_allocation_free_late(const char *call, void *ptr);

/* From now on `settle` is called before memory that is held is taken for held: it drops what nobody needs any more. Any
 * thread. */
void sw_memory_on_held(void (*settle)(void));

/* Gives memory that has gone back to its pool in sw_allocation_drop() to the device, where the pools keep too much. To be
 * called without a lock after holds were dropped; costs a load where there is none. */
void sw_allocations_settle(void);

/* ---- share.c: memory as others see it --------------------------------------------------------- */

/* What a window is to be on: an allocation of ours, which is not freed until sw_allocation_drop() of the address, or
 * another allocator's mapping. SYMWIN_INVALID: neither. */
symwin_status sw_memory_hold(const char *call, CUdeviceptr ptr, struct sw_allocation *out);

/* ---- pool.c: see pool.h; and imported memory ------------------------------------------------- */

/* Gives back what the pools keep of a device. 0: nothing. */
int sw_pool_make_room(int device);

/* Takes it over; it was handed out at byte `offset`. */
symwin_status sw_pool_import(const char *call, const struct sw_memory *m, size_t offset);

#endif
