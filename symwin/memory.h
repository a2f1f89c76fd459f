/* Memory: a part of symwin.h, which includes this.
 *
 * Allocations come from pools. An allocation below the granularity of physical memory (2 MiB on
 * current GPUs) is suballocated from a chunk of 64 MiB. So small buffers do not take 2 MiB each,
 * and the first window in a chunk maps the whole chunk for the peers; later windows cost
 * microseconds. A larger allocation has its own physical memory. Freed memory is kept for the next
 * allocation, up to SYMWIN_MEM_KEEP bytes per device; symwin_mem_trim() returns it to the device.
 *
 * Each thread has its own pools, one per device and kind of memory. So the same calls give the same
 * offsets on every rank, whatever other threads allocate in between, also if ranks are threads of
 * one process or share a device. Any thread may free memory; it returns to the pool that it came
 * from. A pool of a thread that has ended is taken over by another thread only once all its memory
 * is free. So a long-lived thread should allocate what outlives short-lived threads.
 *
 * Allocate while the device has a context. Without one, the driver sets the device up and shuts it
 * down for each new chunk, which takes 1 ms instead of about 50 us (H200).
 *
 * Environment, read at the first allocation:
 *
 *   SYMWIN_MEM_POOL=0     no pools: each allocation has its own physical memory, released by its
 *                         free
 *   SYMWIN_MEM_KEEP=N     bytes of free memory kept per device; K, M, G or T after N multiply by
 *                         2^10, 2^20, 2^30 or 2^40. Default: 1/32 of the device's memory. 0: none
 *   SYMWIN_MEM_DEBUG=1    new memory is filled with 0xcd, freed memory with 0xdd, and each
 *                         allocation is followed by a guard of at least 512 bytes, which
 *                         symwin_mem_free() checks. Slow: for debugging
 */
#ifndef SYMWIN_MEMORY_H
#define SYMWIN_MEMORY_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SYMWIN_HANDLE_POSIX_FD = 1, SYMWIN_HANDLE_FABRIC = 8 };

enum {
    SYMWIN_MEM_PEERS = 1, /* access for all peer devices, not for `device` alone */
    SYMWIN_MEM_OWN = 2,   /* its own physical memory at any size: its windows begin at offset 0 */
    /* Aligned to 4 KiB, as NCCL's windows must be, and suballocated from chunks of 16 MiB, because
     * NCCL maps the whole chunk for each window. */
    SYMWIN_MEM_NCCL = 4
};

/* Allocates device memory that can become a window and can be exported to other processes.
 *
 *   device  ordinal, or SYMWIN_DEVICE_CURRENT
 *   bytes   > 0. Below the granularity (2 MiB on current GPUs) address and size are rounded up to
 *           512 bytes, or to 4 KiB with SYMWIN_MEM_NCCL. At or above it, and with SYMWIN_MEM_OWN,
 *           they are rounded up to the granularity, as ncclMemAlloc() does
 *   flags   SYMWIN_MEM_*, or 0. With SYMWIN_MEM_PEERS the peers of `device` may access this address
 *           too, as with ncclMemAlloc(). That costs milliseconds per chunk; windows do not need it
 *   ptr     free with symwin_mem_free(). The contents are undefined, and may be those of earlier
 *           use
 *
 * The physical memory can always be exported as a POSIX file descriptor, and as a fabric handle if
 * the system permits it. If the device has too little memory left, the pools return their free
 * memory before the call fails.
 *
 *   SYMWIN_INVALID      bytes 0 or beyond the address space, unknown flag, no such device, or
 *                       SYMWIN_DEVICE_CURRENT without a current context
 *   SYMWIN_NO_MEMORY    too little memory on the device, or on the host for the pool's tables
 *   SYMWIN_UNSUPPORTED  the device has no virtual memory management */
SYMWIN_API symwin_status symwin_mem_alloc(int device, size_t bytes, unsigned flags, void **ptr);

/* Frees what symwin_mem_alloc() or symwin_mem_import() returned. NULL does nothing. Any thread.
 * Does not wait: call it when the work that uses the memory is done, the peers' work too if it was
 * a window. The next allocation may get the memory at once. (After a failure see
 * symwin_allreduce(): peers may write until their streams have drained.) What the pools do not keep
 * goes back to the device soon, also if the driver waits for kernels before it unmaps. Until then
 * it counts in reserved_bytes, and an allocation waits for it, a second at most, before it fails.
 *
 *   SYMWIN_INVALID  no such pointer: already freed, inside an allocation, or foreign. With
 *                   SYMWIN_MEM_DEBUG also: the guard was overwritten; then the memory is freed
 *                   anyway
 *   SYMWIN_BUSY     nothing was freed: the memory is in a window, registered by symwin_register(),
 *                   in a channel, or used by a captured graph. Deregister or destroy that first */
SYMWIN_API symwin_status symwin_mem_free(void *ptr);

#define SYMWIN_DEVICE_ALL (-2)

/* Returns free memory of the pools to the device, until they keep at most `keep` bytes of it.
 * Chunks that are partly in use stay. Waits until the device has the memory, a second at most: the
 * driver may wait for kernels before it unmaps.
 *
 *   device  ordinal, SYMWIN_DEVICE_CURRENT, or SYMWIN_DEVICE_ALL: each device separately
 *
 *   SYMWIN_INVALID  no such device */
SYMWIN_API symwin_status symwin_mem_trim(int device, size_t keep);

/* The pools of this process on one device. reserved_bytes is the device memory that they hold. Of
 * it, used_bytes are allocated and kept_bytes are whole free chunks. The rest are free parts of
 * chunks in use; their fragmentation is
 *
 *     1 - largest_free_bytes / (reserved_bytes - used_bytes - kept_bytes) */
typedef struct symwin_mem_usage {
    uint64_t asked_bytes;        /* live allocations, as requested */
    uint64_t used_bytes;         /* the same, rounded up */
    uint64_t reserved_bytes;     /* physical memory */
    uint64_t kept_bytes;         /* of reserved_bytes: chunks with nothing in use */
    uint64_t largest_free_bytes; /* the largest free part of a chunk in use */
    uint64_t peak_used_bytes;    /* sum over the pools of each pool's peak */
    uint64_t peak_reserved_bytes;
    uint64_t allocations; /* live allocations */
    uint64_t chunks;      /* live physical allocations */
    uint64_t allocs;      /* successful calls since the process began: symwin_mem_alloc() */
    uint64_t frees;       /* symwin_mem_free() */
    uint64_t creates;     /* cuMemCreate for the pools */
    uint64_t releases;    /* cuMemRelease for the pools */
} symwin_mem_usage;

/* Reports the pools on `device`, without imported memory. Any thread; the values of one pool are
 * from one moment.
 *
 *   SYMWIN_INVALID  no such device, or usage is NULL */
SYMWIN_API symwin_status symwin_mem_stats(int device, symwin_mem_usage *usage);

typedef struct symwin_mem_info {
    void *base;            /* of the mapping that holds the pointer: a chunk, or one allocation */
    size_t bytes;          /* of the mapping */
    int device;            /* where the memory is */
    unsigned handle_types; /* SYMWIN_HANDLE_* that symwin_mem_export() accepts */
    uint64_t buffer_id;    /* of the mapping; never reused here. Another mapping of the memory, such
                            * as that of an import or of a window, has another */
    int owned;             /* 1: symwin_mem_alloc(); 2: imported; 0: another allocator's */
    /* References that prevent a free: windows, channels, registered ranges and graphs, of all
     * communicators of this process. Owned memory only. */
    int registrations;
    void *ptr;   /* the allocation that holds the pointer, as it was returned; else NULL */
    size_t size; /* of that allocation, rounded up, but not with SYMWIN_MEM_DEBUG; 0 if ptr is
                  * NULL */
} symwin_mem_info;

/* Describes the VMM memory at an address, of any allocator. Any thread.
 *
 *   SYMWIN_INVALID  no VMM allocation is mapped there (it was freed, or is cudaMalloc or host
 *                   memory) */
SYMWIN_API symwin_status symwin_mem_query(const void *ptr, symwin_mem_info *info);

/* An exported allocation, for import in another process. `fd` belongs to whoever holds the struct:
 * close it after importing or sending it. It is -1 for a fabric handle. */
typedef struct symwin_mem_handle {
    unsigned type; /* SYMWIN_HANDLE_POSIX_FD or SYMWIN_HANDLE_FABRIC */
    int fd;
    size_t bytes; /* of the physical allocation */
    unsigned char fabric[64];
    size_t offset; /* of the exported pointer in the physical allocation */
} symwin_mem_handle;

/* Exports the physical allocation under `ptr`. An importer can access all of it, so use
 * SYMWIN_MEM_OWN for memory that goes to others than peers. Each export has its own descriptor.
 *
 *   type  one SYMWIN_HANDLE_*
 *
 *   SYMWIN_INVALID      no VMM allocation there, or no such type
 *   SYMWIN_UNSUPPORTED  the allocation was not created for that type (see handle_types), or was
 *                       itself imported */
SYMWIN_API symwin_status symwin_mem_export(const void *ptr, unsigned type,
                                           symwin_mem_handle *handle);

/* Maps an exported allocation for access by `device`, whichever device the memory is on. The handle
 * is not consumed.
 *
 *   ptr  the exported pointer's address in this process; free with symwin_mem_free()
 *
 *   SYMWIN_INVALID      no valid handle, or its memory is gone
 *   SYMWIN_DENIED       the system does not permit the import (no common IMEX channel)
 *   SYMWIN_UNSUPPORTED  this machine cannot import that type */
SYMWIN_API symwin_status symwin_mem_import(int device, const symwin_mem_handle *handle, void **ptr);

/* ---- for PyTorch ----------------------------------------------------------------------------- */

/* The two functions for a torch.cuda.memory.CUDAPluggableAllocator:
 *
 *     allocator = CUDAPluggableAllocator("libsymwin.so", "symwin_torch_alloc", "symwin_torch_free")
 *     pool = torch.cuda.MemPool(allocator.allocator())
 *
 * Memory is as ncclMemAlloc()'s: SYMWIN_MEM_NCCL and SYMWIN_MEM_PEERS. If there is none, the result
 * is NULL and symwin_last_error() says why. 0 bytes give NULL too, which is no failure and leaves
 * symwin_last_error() as it was. The free waits for the device, as cudaFree does. Memory
 * that is still in a window or a channel, or registered by symwin_register() or by a graph, is
 * freed by the call that ends that use (for a graph: by a later free, or by a later call about
 * registrations). Until then nothing new can be registered there. SYMWIN_MEM_DEBUG does not check
 * the guard of such memory. */
SYMWIN_API void *symwin_torch_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream);
SYMWIN_API void symwin_torch_free(void *ptr, ptrdiff_t bytes, int device,
                                  struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
