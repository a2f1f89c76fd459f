/* CUDA C for the host compiler: what a kernel source sees when g++ compiles it for the emulated
 * driver. symwin/device.cuh is built on top of this; kernels include only that header.
 *
 * A CUDA thread is a fiber. All fibers of a block share one OS thread for the block's whole life,
 * so __shared__ is thread-local storage, and a thread runs until it pauses, reaches __syncthreads()
 * or ends. A loop that waits for another thread must call emu_dev_pause() in each iteration:
 * nothing else lets the others run.
 *
 * Device addresses (from the driver, pinned host memory, kernel arguments that contain either) go
 * through emu_dev_load_addr() and emu_dev_store_addr(). The returned pointer is valid until the
 * thread pauses, and is what the atomics below take. The kernel's own variables and parameters are
 * ordinary memory and never go through these functions.
 *
 * Memory order: ThreadSanitizer ignores atomic_thread_fence. So the order belongs on the flag
 * itself: write data, store the flag with __ATOMIC_RELEASE; load the flag with __ATOMIC_ACQUIRE,
 * read data. emu_dev_fence() orders fences among each other for the sanitizer too (fence, relaxed
 * store -> relaxed load, fence is clean), but there a fence does not pair with an acquire or a
 * release.
 */
#ifndef SYMWIN_EMU_DEVICE_H
#define SYMWIN_EMU_DEVICE_H

#include "emu_access.h"

#if defined(__SANITIZE_THREAD__)
#define EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMU_TSAN 1
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct emu_dev_dim {
    unsigned x, y, z;
};

/* A CUDA thread's own data. */
struct emu_dev_thread {
    struct emu_dev_dim thread, block, block_dim, grid_dim;
    void *shared; /* the block's dynamic shared memory */
    unsigned shared_bytes;
    int device;
    int stored;        /* since its last pause; such a thread is not polling in vain */
    unsigned accesses; /* counted with SYMWIN_RACE */
};

/* The running thread. The sanitizer does not know that fibers of one OS thread never overlap, hence
 * the atomic access, which costs nothing. */
EMU_VISIBLE extern __thread struct emu_dev_thread *emu_dev_self;

static inline struct emu_dev_thread *emu_dev_me(void)
{
    return __atomic_load_n(&emu_dev_self, __ATOMIC_RELAXED);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Ends the grid with ILLEGAL_ADDRESS, or MISALIGNED_ADDRESS if only the alignment is wrong. */
EMU_VISIBLE __attribute__((noreturn)) void emu_dev_fault(const void *p, size_t n, int write);

/* Must be called in every iteration of a poll loop. */
EMU_VISIBLE void emu_dev_pause(void);

/* __syncthreads(): a barrier of all threads of the block that have not ended. */
EMU_VISIBLE void emu_dev_barrier(void);

/* Nanoseconds of a clock common to all devices. */
EMU_VISIBLE uint64_t emu_dev_globaltimer(void);

/* Sometimes delays the thread (race.c). */
EMU_VISIBLE void emu_dev_race(const void *p);

/* While alias fences are watched (alias.c): for each access by an address of memory; for each alias
 * fence. */
EMU_VISIBLE void emu_dev_alias(const void *p, const void *host, size_t n, int write);
EMU_VISIBLE void emu_dev_alias_fenced(void);
EMU_VISIBLE extern int emu_dev_alias_watch;

static inline int emu_dev_watches_aliases(void)
{
    return __builtin_expect(__atomic_load_n(&emu_dev_alias_watch, __ATOMIC_RELAXED), 0);
}

/* Host pointers to the `n` bytes, a power of two, at multicast address `p`, one in each member's
 * memory; returns their number. An unusable or misaligned multicast address ends the grid. */
EMU_VISIBLE int emu_dev_multicast(const void *p, size_t n, int write,
                                  void *targets[EMU_MAX_DEVICES]);

/* ---- memory ---------------------------------------------------------------------------------- */

#ifdef SYMWIN_RACE
#define EMU_RACE(p) emu_dev_race(p)
#else
#define EMU_RACE(p) (void)0
#endif

/* Host pointers for reading and for writing `n` bytes. n of 2, 4, 8 or 16 is one access of that
 * size, which must be aligned as on a device; any other n is a sequence of bytes. */
static inline void *emu_dev_addr(const struct emu_dev_thread *me, const void *p, size_t n,
                                 int write)
{
    const uintptr_t mask = (n == 2 || n == 4 || n == 8 || n == 16) ? n - 1 : 0;
    void *host;

    EMU_RACE(p);
    host = emu_access(me->device, (CUdeviceptr)(uintptr_t)p, n, write);
    if (__builtin_expect(host == NULL || ((uintptr_t)p & mask) != 0, 0))
        emu_dev_fault(p, n, write);
    if (emu_dev_watches_aliases())
        emu_dev_alias(p, host, n, write);
    return host;
}

static inline void *emu_dev_load_addr(const void *p, size_t n)
{
    return emu_dev_addr(emu_dev_me(), p, n, 0);
}

static inline void *emu_dev_store_addr(void *p, size_t n)
{
    struct emu_dev_thread *me = emu_dev_me();
    void *host = emu_dev_addr(me, p, n, 1);

    me->stored = 1;
    return host;
}

/* Atomics on the pointers that the above return: emu_dev_load32() and so on. `order` is one of the
 * compiler's __ATOMIC_ constants. */
#define EMU_LOAD_STORE(bits)                                                                       \
    static inline uint##bits##_t emu_dev_load##bits(const void *p, int order)                      \
    {                                                                                              \
        return __atomic_load_n((const uint##bits##_t *)p, order);                                  \
    }                                                                                              \
    static inline void emu_dev_store##bits(void *p, uint##bits##_t value, int order)               \
    {                                                                                              \
        __atomic_store_n((uint##bits##_t *)p, value, order);                                       \
    }
EMU_LOAD_STORE(8)
EMU_LOAD_STORE(16)
EMU_LOAD_STORE(32)
EMU_LOAD_STORE(64)

/* These return the old value. `cas` has relaxed order if the comparison fails. */
#define EMU_MODIFY(bits)                                                                           \
    static inline uint##bits##_t emu_dev_add##bits(void *p, uint##bits##_t value, int order)       \
    {                                                                                              \
        return __atomic_fetch_add((uint##bits##_t *)p, value, order);                              \
    }                                                                                              \
    static inline uint##bits##_t emu_dev_exchange##bits(void *p, uint##bits##_t value, int order)  \
    {                                                                                              \
        return __atomic_exchange_n((uint##bits##_t *)p, value, order);                             \
    }                                                                                              \
    static inline uint##bits##_t emu_dev_cas##bits(void *p, uint##bits##_t expected,               \
                                                   uint##bits##_t value, int order)                \
    {                                                                                              \
        __atomic_compare_exchange_n((uint##bits##_t *)p, &expected, value, 0, order,               \
                                    __ATOMIC_RELAXED);                                             \
        return expected;                                                                           \
    }
EMU_MODIFY(32)
EMU_MODIFY(64)

/* fence.acq_rel.sys. Under ThreadSanitizer, an access to one word that all fences share. */
#ifdef EMU_TSAN
EMU_VISIBLE void emu_dev_fence(void);
#else
static inline void emu_dev_fence(void)
{
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
#endif

/* fence.proxy.alias: nothing to do for memory without proxies. */
static inline void emu_dev_alias_fence(void)
{
    if (emu_dev_watches_aliases())
        emu_dev_alias_fenced();
}

#ifdef __cplusplus
} /* extern "C" */

/* ---- CUDA keywords and variables ------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local /* no initialiser, as in CUDA: it outlives the block */

#define threadIdx (emu_dev_me()->thread)
#define blockIdx (emu_dev_me()->block)
#define blockDim (emu_dev_me()->block_dim)
#define gridDim (emu_dev_me()->grid_dim)

static inline void __syncthreads(void)
{
    emu_dev_barrier();
}

#endif
#endif
