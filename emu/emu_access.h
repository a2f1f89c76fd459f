/* Access to device memory by copies and kernels: the table of mappings, and the check of every
 * access.
 *
 * Included by the emulated driver's C files (through emu_internal.h) and by kernels compiled as C++
 * (through emu_device.h), so that an access costs a kernel no call. C++ sees the _Atomic members as
 * their plain types, which have the same layout; both sides read them with atomic loads.
 */
#ifndef SYMWIN_EMU_ACCESS_H
#define SYMWIN_EMU_ACCESS_H

#include "src/driver/cuda_abi.h"

#ifdef __cplusplus
#define EMU_ATOMIC(type) type
#define EMU_LOAD_ACQUIRE(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define EMU_LOAD_RELAXED(p) __atomic_load_n(p, __ATOMIC_RELAXED)
extern "C" {
#else
#include <stdatomic.h>
#define EMU_ATOMIC(type) _Atomic(type)
#define EMU_LOAD_ACQUIRE(p) atomic_load_explicit(p, memory_order_acquire)
#define EMU_LOAD_RELAXED(p) atomic_load_explicit(p, memory_order_relaxed)
#endif

#define EMU_GRANULE ((size_t)2 << 20)
#define EMU_GRANULE_SHIFT 21
#define EMU_MAX_DEVICES 128

/* Exported for kernels that symwin-perf loads as shared objects. */
#define EMU_VISIBLE __attribute__((visibility("default")))

struct emu_multicast; /* mcast.c */

/* A mapping at a range of device addresses. In the table only access[] changes. */
struct emu_mapping {
    CUdeviceptr va;
    size_t bytes;                    /* exact: plain memory need not be whole granules */
    unsigned char *canonical;        /* host address of the byte at va; NULL: multicast */
    struct emu_multicast *multicast; /* NULL: memory */
    EMU_ATOMIC(unsigned char) access[EMU_MAX_DEVICES]; /* CUmemAccess_flags per device */
};

EMU_VISIBLE extern unsigned char *emu_arena; /* first address; NULL before cuInit */
EMU_VISIBLE extern size_t emu_arena_bytes;
/* one entry per granule of the arena */
EMU_VISIBLE extern EMU_ATOMIC(struct emu_mapping *) * emu_table;

/* The mapping in the table at `addr`; NULL: none, or outside the arena. */
static inline const struct emu_mapping *emu_mapping_at(CUdeviceptr addr)
{
    const size_t off = (size_t)(addr - (CUdeviceptr)(uintptr_t)emu_arena);

    return off < emu_arena_bytes ? EMU_LOAD_ACQUIRE(&emu_table[off >> EMU_GRANULE_SHIFT]) : NULL;
}

static inline int emu_may_access(const struct emu_mapping *m, CUdevice device, int write)
{
    const unsigned need = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                : CU_MEM_ACCESS_FLAGS_PROT_READ;

    return (EMU_LOAD_RELAXED(&m->access[device]) & need) == need;
}

/* Host pointer to `bytes` bytes at `addr` if `device` may read (or write) all of them and they lie
 * in one mapping of memory, else NULL. NULL outside the arena: pageable host memory is not device
 * memory. */
static inline void *emu_access(CUdevice device, CUdeviceptr addr, size_t bytes, int write)
{
    const struct emu_mapping *m = emu_mapping_at(addr);

    if (m == NULL || m->canonical == NULL || addr < m->va || bytes > m->bytes ||
        addr - m->va > m->bytes - bytes || !emu_may_access(m, device, write))
        return NULL;
    return m->canonical + (addr - m->va);
}

#ifdef __cplusplus
}
#endif
#endif
