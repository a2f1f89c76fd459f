/* Memory of symwin: a part of symwin.h, which includes this.
 *
 * Allocations come out of a pool. What is smaller than the granularity of physical memory (2 MiB on today's GPUs) is
 * carved out of chunks of 64 MiB, so that small buffers neither take 2 MiB each nor are shown to peers one by one: the
 * first window in a chunk maps the chunk, the others cost microseconds. What is larger has physical memory of its own.
 * Freed memory is kept for the next allocation, up to SYMWIN_MEM_KEEP bytes a device; symwin_mem_trim() gives it back.
 *
 * Each thread has pools of its own, one for each device and kind of memory. So the same calls give the same offsets on
 * every rank, whatever other threads allocate in between, also where ranks are threads and share a device. Memory may be
 * freed by any thread; it goes back to the pool that it came from. What a thread leaves when it ends is taken over by
 * another one when all of it is free: so what outlives many short threads is best allocated by one that stays.
 *
 * Allocate when the device has a context: in a process that has none the driver sets the device up and shuts it down for each
 * new chunk, which takes a millisecond instead of some 50 us (H200).
 *
 * The environment, read at the first allocation:
 *
 *   SYMWIN_MEM_POOL=0     no pool: each allocation has physical memory of its own, which its free gives back
 *   SYMWIN_MEM_KEEP=N     bytes of free memory that are kept for each device, K, M, G or T behind N for powers of 2^10;
 *                         a 32nd of the device's memory where it is not set, 0: none
 *   SYMWIN_MEM_DEBUG=1    new memory is filled with 0xcd, freed memory with 0xdd, and at least 512 bytes behind each
 *                         allocation are a guard that symwin_mem_free() looks at. Slow: for searching faults
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
    SYMWIN_MEM_OWN =
        2, /* physical memory of its own, whatever the size: a window on it begins at offset 0 */
    SYMWIN_MEM_NCCL =
        4 /* aligned to 4 KiB, as NCCL's windows must be, and carved out of chunks of 16 MiB: NCCL maps
                           * the whole chunk for each window */
};

/* Allocates device memory that can be a window on every rank and exported to other processes.
 *
 *   device  ordinal, or SYMWIN_DEVICE_CURRENT
 *   bytes   > 0. Below the granularity (2 MiB on today's GPUs) address and size are rounded up to 512 bytes, or to 4 KiB
 *           with SYMWIN_MEM_NCCL; from there on, and with SYMWIN_MEM_OWN, to the granularity, as ncclMemAlloc does
 *   flags   SYMWIN_MEM_*, or 0. With SYMWIN_MEM_PEERS peers of `device` may use this address too (ncclMemAlloc does
 *           that; it costs milliseconds for each chunk, and windows do not need it)
 *   ptr     free with symwin_mem_free(). Contents are undefined: they may be what the memory held before.
 *
 * The physical memory can be exported as a POSIX file descriptor always, and as a fabric handle where the system permits
 * it. Where the device has not enough left, what the pools keep is given back before the call fails.
 *
 *   SYMWIN_INVALID      bytes 0 or beyond the address space, unknown flag, no such device, or
 *                       SYMWIN_DEVICE_CURRENT without a current context
 *   SYMWIN_NO_MEMORY    the device, or the host for its lists, has not so much left
 *   SYMWIN_UNSUPPORTED  the device has no virtual memory management */
SYMWIN_API symwin_status symwin_mem_alloc(int device, size_t bytes, unsigned flags, void **ptr);

/* Gives back what symwin_mem_alloc() or symwin_mem_import() returned. NULL is fine. Call it when the work that uses the
 * memory is done, its peers' too where it was a window: it does not wait, and the next allocation may have the memory
 * at once. (After a failure see symwin_allreduce(): peers may write until their streams have drained.)
 *
 *   SYMWIN_INVALID  not such a pointer: freed before, inside an allocation, or foreign; or, with SYMWIN_MEM_DEBUG, the
 *                   guard behind it was overwritten: then the memory is free all the same
 *   SYMWIN_BUSY     registered, as a window or by symwin_register(): deregister first; or in a channel, or used by a captured
 *                   graph: destroy it; nothing was freed */
SYMWIN_API symwin_status symwin_mem_free(void *ptr);

#define SYMWIN_DEVICE_ALL (-2)

/* Gives free memory that the pools keep back to the device, until they keep at most `keep` bytes of it. Chunks of which a
 * part is in use stay.
 *
 *   device  ordinal, SYMWIN_DEVICE_CURRENT, or SYMWIN_DEVICE_ALL: each device on its own
 *
 *   SYMWIN_INVALID  no such device */
SYMWIN_API symwin_status symwin_mem_trim(int device, size_t keep);

/* What the pools of this process have on a device. Of the memory that the device gave (reserved_bytes), used_bytes are
 * handed out, kept_bytes are whole chunks that are free, and what remains are free parts of chunks in use: they are
 * fragmented by 1 - largest_free_bytes / (reserved_bytes - used_bytes - kept_bytes). */
typedef struct symwin_mem_usage {
    uint64_t asked_bytes;        /* live allocations, as they were asked for */
    uint64_t used_bytes;         /* the same, rounded up */
    uint64_t reserved_bytes;     /* physical memory */
    uint64_t kept_bytes;         /* of it, in chunks of which nothing is in use */
    uint64_t largest_free_bytes; /* the largest free part of a chunk in use */
    uint64_t peak_used_bytes;    /* the most used at once: by each pool on its own, added up */
    uint64_t peak_reserved_bytes;
    uint64_t allocations; /* live */
    uint64_t chunks;      /* physical allocations */
    uint64_t allocs;   /* calls that succeeded, since the process began: of symwin_mem_alloc(), */
    uint64_t frees;    /* of symwin_mem_free(), */
    uint64_t creates;  /* and of cuMemCreate for them, */
    uint64_t releases; /* and of cuMemRelease */
} symwin_mem_usage;

/* Imported memory is not counted. Any thread; the values of one pool are of one moment.
 *
 *   SYMWIN_INVALID  no such device, or usage is NULL */
SYMWIN_API symwin_status symwin_mem_stats(int device, symwin_mem_usage *usage);

typedef struct symwin_mem_info {
    void *
        base; /* first address of the mapping that holds the pointer: of a chunk, or of one's own memory */
    size_t bytes;          /* its length */
    int device;            /* where the memory is */
    unsigned handle_types; /* SYMWIN_HANDLE_* that an export will accept */
    uint64_t buffer_id;    /* the physical allocation's, unique in this process for ever */
    int owned;             /* 1: from symwin_mem_alloc(); 2: imported; 0: another allocator's */
    int registrations; /* what keeps it from being freed: windows, channels, registered ranges and what graphs hold, of all
                        * communicators of this process; owned memory only */
    void *
        ptr; /* the allocation that holds the pointer, as it was returned; NULL: another allocator's */
    size_t size; /* its length, rounded up; 0 where ptr is NULL */
} symwin_mem_info;

/* What an address of VMM memory is, whoever allocated it.
 *
 *   SYMWIN_INVALID  no VMM allocation is mapped there (cudaMalloc and host memory are none), or it was freed */
SYMWIN_API symwin_status symwin_mem_query(const void *ptr, symwin_mem_info *info);

/* An allocation in a form that another process can import. `fd` is owned by whoever holds the
 * struct: close it once it was imported or sent; -1 for a fabric handle. */
typedef struct symwin_mem_handle {
    unsigned type; /* SYMWIN_HANDLE_POSIX_FD or SYMWIN_HANDLE_FABRIC */
    int fd;
    size_t bytes; /* of the physical allocation */
    unsigned char fabric[64];
    size_t offset; /* in it, of the pointer that was exported */
} symwin_mem_handle;

/* Exports the physical allocation that `ptr` lies in: whoever imports it gets at all of it, so memory that goes to others
 * than peers is best allocated with SYMWIN_MEM_OWN. Every export is a descriptor of its own.
 *
 *   type  one SYMWIN_HANDLE_*
 *
 *   SYMWIN_INVALID      no VMM allocation there, or no such type
 *   SYMWIN_UNSUPPORTED  the allocation was not created for that type (see handle_types), or was itself
 *                       imported */
SYMWIN_API symwin_status symwin_mem_export(const void *ptr, unsigned type,
                                           symwin_mem_handle *handle);

/* Maps an exported allocation, wherever it lies, for access by `device`. The handle is not consumed.
 *
 *   ptr  what `ptr` of the export is here; free with symwin_mem_free()
 *
 *   SYMWIN_INVALID      not such a handle, or it names memory that is gone
 *   SYMWIN_DENIED       the system does not permit the import (no common IMEX channel)
 *   SYMWIN_UNSUPPORTED  this machine cannot import that type */
SYMWIN_API symwin_status symwin_mem_import(int device, const symwin_mem_handle *handle, void **ptr);

/* ---- for PyTorch ------------------------------------------------------------------------------ */

/* The two functions of a torch.cuda.memory.CUDAPluggableAllocator:
 *
 *     allocator = CUDAPluggableAllocator("libsymwin.so", "symwin_torch_alloc", "symwin_torch_free")
 *     pool = torch.cuda.MemPool(allocator.allocator())
 *
 * Memory is as ncclMemAlloc's: SYMWIN_MEM_NCCL and SYMWIN_MEM_PEERS. NULL: there is none, as symwin_last_error() says. The
 * free waits for the device, as cudaFree does. Memory that is still registered, as a window, by symwin_register() or by a
 * graph, or in a channel, is freed when that ends, by the call that ends it (for a graph: by a later free, or call about
 * registrations); until then nothing new can be registered there. SYMWIN_MEM_DEBUG does not look at the guard of such
 * memory. */
SYMWIN_API void *symwin_torch_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream);
SYMWIN_API void symwin_torch_free(void *ptr, ptrdiff_t bytes, int device,
                                  struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
