/* The device API's base: what a kernel needs to work on symmetric memory.
 *
 *   shared memory   the block's dynamic shared memory
 *   peers           addresses of other ranks and of the multicast alias; this thread in its grid
 *   memory          weak, relaxed, release and acquire accesses; atomics; a fence
 *   launch          a kernel's overlap with the kernels before and after it
 *   waiting         pause and clock for poll loops
 *   cvt             f32 to and from the small floating-point types: symwin/cvt.cuh
 *
 * One source serves two compilers. nvcc compiles it to PTX. The host compiler compiles the same
 * kernels for the emulated driver (emu/emu_device.h): there each function has a second
 * implementation, which checks the address and which sanitizers can see. So a kernel for both
 * drivers must access memory only through these functions, take one struct by value, and call
 * symwin_pause() in each iteration of a poll loop.
 *
 * Memory order is PTX's (PTX ISA, chapter "Memory Consistency Model"). The scope is system unless a
 * name says otherwise, because a peer is another GPU. Each access is naturally aligned to its size.
 * Device addresses are uint64_t, because kernels compute them in the flat range.
 *
 * docs/device-api.md states for each call who makes it, its memory order and how it fails.
 */
#ifndef SYMWIN_DEVICE_CUH
#define SYMWIN_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>

#include "symwin/kernel.h" /* struct symwin_peers */

#ifdef __CUDACC__
#define SYMWIN_EMULATED 0
#define SYMWIN_DEVICE static __device__ __forceinline__
#define SYMWIN_MEMBER __device__ __forceinline__
#define SYMWIN_UNROLL _Pragma("unroll")
#define SYMWIN_NO_UNROLL _Pragma("unroll 1")
/* Multicast addresses exist from sm_90 on, and .acc::f32 from CUDA 12.2 (PTX 8.2) on; without them
 * their functions are not declared. The host pass of nvcc generates no code and declares them
 * all. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define SYMWIN_HAS_LAUNCH_CONTROL 1
#else
#define SYMWIN_HAS_LAUNCH_CONTROL 0
#endif
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1202
#define SYMWIN_HAS_MULTIMEM 0
#else
#define SYMWIN_HAS_MULTIMEM SYMWIN_HAS_LAUNCH_CONTROL
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define SYMWIN_HAS_CVT_F8 1
#else
#define SYMWIN_HAS_CVT_F8 0
#endif
#else
#include "emu/emu_device.h"
#define SYMWIN_EMULATED 1
#define SYMWIN_DEVICE static inline
#define SYMWIN_MEMBER inline
#define SYMWIN_UNROLL
#define SYMWIN_NO_UNROLL
#define SYMWIN_HAS_MULTIMEM 1
#define SYMWIN_HAS_LAUNCH_CONTROL 0
#define SYMWIN_HAS_CVT_F8 0
#endif

/* Runs before each access to device memory: `symwin-perf --race` delays threads here. (On the
 * emulated driver emu_dev_load_addr() and similar functions do.) */
#ifdef SYMWIN_RACE
#include "symwin/race.cuh"
#endif
#if defined(SYMWIN_RACE) && !SYMWIN_EMULATED
#define SW_ACCESS(addr) sw_race_point(addr)
#else
#define SW_ACCESS(addr) (void)0
#endif

/* A condition that is nearly always true: the compiler moves the other branch out of the way. */
#define SYMWIN_LIKELY(condition) __builtin_expect(!!(condition), 1)

/* SYMWIN_KERNEL(name, struct arguments, args, threads) { ... } defines a kernel that takes one
 * struct by value, named `args`, in blocks of at most `threads` threads. On the emulated driver the
 * result is a function for the `run` member of a struct sw_emu_kernel. */
#if SYMWIN_EMULATED
#define SYMWIN_KERNEL(name, type, args, threads)                                                   \
    static void name##_body(const type &args);                                                     \
    extern "C" void name(const void *params);                                                      \
    extern "C" void name(const void *params)                                                       \
    {                                                                                              \
        name##_body(*static_cast<const type *>(params));                                           \
    }                                                                                              \
    static void name##_body(const type &args)
#else
#define SYMWIN_KERNEL(name, type, args, threads)                                                   \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ type args)
#endif

/* ---- shared memory --------------------------------------------------------------------------- */

/* The block's dynamic shared memory, aligned to 1,024 bytes; and its size in bytes, as launched. */
SYMWIN_DEVICE void *symwin_shared(void)
{
#if SYMWIN_EMULATED
    return emu_dev_me()->shared;
#else
    extern __shared__ __align__(1024) unsigned char symwin_shared_memory[];
    return symwin_shared_memory;
#endif
}

SYMWIN_DEVICE uint32_t symwin_shared_bytes(void)
{
#if SYMWIN_EMULATED
    return emu_dev_me()->shared_bytes;
#else
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
#endif
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Addresses of the byte at `offset` of the flat range: on rank `rank`, on this rank, and on all
 * ranks (multicast). Nothing is checked. */
SYMWIN_DEVICE uint64_t symwin_peer_address(const symwin_peers &peers, int32_t rank, uint64_t offset)
{
    return peers.base + (uint64_t)rank * peers.stride + offset;
}

SYMWIN_DEVICE uint64_t symwin_own_address(const symwin_peers &peers, uint64_t offset)
{
    return symwin_peer_address(peers, peers.rank, offset);
}

SYMWIN_DEVICE uint64_t symwin_multicast_address(const symwin_peers &peers, uint64_t offset)
{
    return symwin_peer_address(peers, peers.nranks, offset);
}

/* This thread's index in a one-dimensional grid, and the grid's number of threads. */
SYMWIN_DEVICE uint64_t symwin_thread_index(void)
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

SYMWIN_DEVICE uint64_t symwin_thread_count(void)
{
    return (uint64_t)gridDim.x * blockDim.x;
}

/* __syncthreads() that also returns whether `mine` is true for any thread of the block. All threads
 * of the block call it, and all get the same result. */
SYMWIN_DEVICE bool symwin_block_any(bool mine)
{
#if SYMWIN_EMULATED
    __shared__ bool any;

    if (threadIdx.x == 0)
        any = false;
    __syncthreads();
    if (mine) /* several threads may do this at the same time */
        __atomic_store_n(&any, true, __ATOMIC_RELAXED);
    __syncthreads();
    mine = any;
    __syncthreads();
    return mine;
#else
    return __syncthreads_or(mine) != 0;
#endif
}

/* Whether this is the first active thread of its warp. */
SYMWIN_DEVICE bool symwin_is_first_of_warp(void)
{
#if SYMWIN_EMULATED
    return true;
#else
    uint32_t before;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
    return (__activemask() & before) == 0;
#endif
}

/* The active threads of this warp, as a mask. */
SYMWIN_DEVICE uint32_t symwin_warp_here(void)
{
#if SYMWIN_EMULATED
    return 1;
#else
    return __activemask();
#endif
}

/* __syncwarp() of the threads in the mask. */
SYMWIN_DEVICE void symwin_warp_meet(uint32_t threads)
{
#if SYMWIN_EMULATED
    (void)threads;
#else
    __syncwarp(threads);
#endif
}

/* ---- memory: loads and stores ---------------------------------------------------------------- */

/* Sixteen bytes in registers: `lo` holds the bytes at the lower address. */
struct symwin_v16 {
    uint64_t lo, hi;
};

#if SYMWIN_EMULATED

/* A weak access is an ordinary one, so that ThreadSanitizer reports races on it. */
template <typename T>
static inline T symwin_emu_load(uint64_t addr)
{
    T value;

    __builtin_memcpy(&value, emu_dev_load_addr((const void *)(uintptr_t)addr, sizeof value),
                     sizeof value);
    return value;
}

template <typename T>
static inline void symwin_emu_store(uint64_t addr, T value)
{
    __builtin_memcpy(emu_dev_store_addr((void *)(uintptr_t)addr, sizeof value), &value,
                     sizeof value);
}

static inline void *symwin_emu_source(uint64_t addr, size_t bytes)
{
    return emu_dev_load_addr((const void *)(uintptr_t)addr, bytes);
}

static inline void *symwin_emu_target(uint64_t addr, size_t bytes)
{
    return emu_dev_store_addr((void *)(uintptr_t)addr, bytes);
}

#define SYMWIN_WEAK(suffix, type, bits, ptx, reg)                                                  \
    SYMWIN_DEVICE type symwin_load_##suffix(uint64_t addr)                                         \
    {                                                                                              \
        return symwin_emu_load<type>(addr);                                                        \
    }                                                                                              \
    SYMWIN_DEVICE void symwin_store_##suffix(uint64_t addr, type value)                            \
    {                                                                                              \
        symwin_emu_store<type>(addr, value);                                                       \
    }

#define SYMWIN_STRONG(bits, reg, load_name, load_ptx, load_order, store_name, store_ptx,           \
                      store_order)                                                                 \
    SYMWIN_DEVICE uint##bits##_t symwin_load_##load_name##_u##bits(uint64_t addr)                  \
    {                                                                                              \
        return emu_dev_load##bits(symwin_emu_source(addr, bits / 8), load_order);                  \
    }                                                                                              \
    SYMWIN_DEVICE void symwin_store_##store_name##_u##bits(uint64_t addr, uint##bits##_t value)    \
    {                                                                                              \
        emu_dev_store##bits(symwin_emu_target(addr, bits / 8), value, store_order);                \
    }

#else

/* The type of an asm operand: registers have at least 16 bits. */
#define SYMWIN_REGISTER(bits) SYMWIN_REGISTER_##bits
#define SYMWIN_REGISTER_8 uint16_t
#define SYMWIN_REGISTER_16 uint16_t
#define SYMWIN_REGISTER_32 uint32_t
#define SYMWIN_REGISTER_64 uint64_t

/* The "memory" clobbers keep the compiler from moving accesses across barriers and fences. */
#define SYMWIN_WEAK(suffix, type, bits, ptx, reg)                                                  \
    SYMWIN_DEVICE type symwin_load_##suffix(uint64_t addr)                                         \
    {                                                                                              \
        uint##bits##_t value;                                                                      \
        SW_ACCESS(addr);                                                                           \
        asm volatile("ld.global." ptx " %0, [%1];" : "=" reg(value) : "l"(addr) : "memory");       \
        return (type)value;                                                                        \
    }                                                                                              \
    SYMWIN_DEVICE void symwin_store_##suffix(uint64_t addr, type value)                            \
    {                                                                                              \
        SW_ACCESS(addr);                                                                           \
        asm volatile("st.global." ptx " [%0], %1;"                                                 \
                     :                                                                             \
                     : "l"(addr), reg((uint##bits##_t)value)                                       \
                     : "memory");                                                                  \
    }

#define SYMWIN_STRONG(bits, reg, load_name, load_ptx, load_order, store_name, store_ptx,           \
                      store_order)                                                                 \
    SYMWIN_DEVICE uint##bits##_t symwin_load_##load_name##_u##bits(uint64_t addr)                  \
    {                                                                                              \
        SYMWIN_REGISTER(bits) value;                                                               \
        SW_ACCESS(addr);                                                                           \
        asm volatile(load_ptx " %0, [%1];" : "=" reg(value) : "l"(addr) : "memory");               \
        return (uint##bits##_t)value;                                                              \
    }                                                                                              \
    SYMWIN_DEVICE void symwin_store_##store_name##_u##bits(uint64_t addr, uint##bits##_t value)    \
    {                                                                                              \
        SW_ACCESS(addr);                                                                           \
        asm volatile(store_ptx " [%0], %1;"                                                        \
                     :                                                                             \
                     : "l"(addr), reg((SYMWIN_REGISTER(bits))value)                                \
                     : "memory");                                                                  \
    }

#endif

/* Weak accesses, for data that something else orders already: a release-acquire chain, a packet or
 * the end of a kernel. (PTX ISA, "ld", "st")
 *
 *   uint8_t  symwin_load_u8(uint64_t addr)     void symwin_store_u8(uint64_t addr, uint8_t value)
 *   ... _u16, _u32, _u64 */
SYMWIN_WEAK(u8, uint8_t, 32, "u8", "r")
SYMWIN_WEAK(u16, uint16_t, 16, "u16", "h")
SYMWIN_WEAK(u32, uint32_t, 32, "u32", "r")
SYMWIN_WEAK(u64, uint64_t, 64, "u64", "l")

/* Strong accesses, system scope.
 *
 *   relaxed   single-copy atomic; ordered only with accesses to the same address
 *   acquire   what the storing thread released, and everything ordered before that, is visible to
 *             later accesses of this thread
 *   release   everything ordered before it in this thread is visible to whoever acquires the value;
 *             that includes other threads' accesses before a __syncthreads() or an acquire
 *
 * (PTX ISA, "ld", "st", "Memory Consistency Model")
 *
 *   uint32_t symwin_load_relaxed_u32(uint64_t addr)   void symwin_store_relaxed_u32(addr, value)
 *   uint32_t symwin_load_acquire_u32(uint64_t addr)   void symwin_store_release_u32(addr, value)
 *   ... _u64; relaxed also _u8, _u16 */
SYMWIN_STRONG(8, "h", relaxed, "ld.relaxed.sys.global.u8", __ATOMIC_RELAXED, /* */
              relaxed, "st.relaxed.sys.global.u8", __ATOMIC_RELAXED)
SYMWIN_STRONG(16, "h", relaxed, "ld.relaxed.sys.global.u16", __ATOMIC_RELAXED, /* */
              relaxed, "st.relaxed.sys.global.u16", __ATOMIC_RELAXED)
SYMWIN_STRONG(32, "r", relaxed, "ld.relaxed.sys.global.u32", __ATOMIC_RELAXED, /* */
              relaxed, "st.relaxed.sys.global.u32", __ATOMIC_RELAXED)
SYMWIN_STRONG(64, "l", relaxed, "ld.relaxed.sys.global.u64", __ATOMIC_RELAXED, /* */
              relaxed, "st.relaxed.sys.global.u64", __ATOMIC_RELAXED)
SYMWIN_STRONG(32, "r", acquire, "ld.acquire.sys.global.u32", __ATOMIC_ACQUIRE, /* */
              release, "st.release.sys.global.u32", __ATOMIC_RELEASE)
SYMWIN_STRONG(64, "l", acquire, "ld.acquire.sys.global.u64", __ATOMIC_ACQUIRE, /* */
              release, "st.release.sys.global.u64", __ATOMIC_RELEASE)

/* Weak, 16 bytes in one access. Loads allocate no line in the L1 cache: a collective reads every
 * byte once. */
SYMWIN_DEVICE symwin_v16 symwin_load_v16(uint64_t addr)
{
#if SYMWIN_EMULATED
    return symwin_emu_load<symwin_v16>(addr);
#else
    symwin_v16 v;
    SW_ACCESS(addr);
    asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.lo), "=l"(v.hi)
                 : "l"(addr)
                 : "memory");
    return v;
#endif
}

SYMWIN_DEVICE void symwin_store_v16(uint64_t addr, symwin_v16 v)
{
#if SYMWIN_EMULATED
    symwin_emu_store<symwin_v16>(addr, v);
#else
    SW_ACCESS(addr);
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" : : "l"(addr), "l"(v.lo), "l"(v.hi) : "memory");
#endif
}

/* Relaxed, system scope, 16 bytes in one access; `addr` is aligned to 16. PTX treats a vector
 * access as one access per element, in no defined order. So each 64-bit word is whole, but the two
 * may arrive at different times. If each word of a message shows its own arrival, no fence is
 * needed. (PTX ISA, "Memory Consistency Model", vector data types) */
SYMWIN_DEVICE symwin_v16 symwin_load_relaxed_v16(uint64_t addr)
{
    symwin_v16 v;
#if SYMWIN_EMULATED
    const unsigned char *from = (const unsigned char *)symwin_emu_source(addr, 16);

    v.lo = emu_dev_load64(from, __ATOMIC_RELAXED);
    v.hi = emu_dev_load64(from + 8, __ATOMIC_RELAXED);
#else
    SW_ACCESS(addr);
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.lo), "=l"(v.hi)
                 : "l"(addr)
                 : "memory");
#endif
    return v;
}

/* The same of four words of 32 bits: each is whole. */
SYMWIN_DEVICE void symwin_load_relaxed_v4_u32(uint64_t addr, uint32_t v[4])
{
#if SYMWIN_EMULATED
    const unsigned char *from = (const unsigned char *)symwin_emu_source(addr, 16);

    for (int i = 0; i < 4; i++)
        v[i] = emu_dev_load32(from + 4 * i, __ATOMIC_RELAXED);
#else
    SW_ACCESS(addr);
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(addr)
                 : "memory");
#endif
}

/* symwin_load_relaxed_v16() if the condition is true; otherwise *v is unchanged. It has no branch,
 * so that several such loads are in flight together. */
SYMWIN_DEVICE void symwin_load_relaxed_v16_if(bool condition, uint64_t addr, symwin_v16 *v)
{
#if SYMWIN_EMULATED
    if (condition)
        *v = symwin_load_relaxed_v16(addr);
#else
    SW_ACCESS(addr);
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.u32 p, %3, 0;\n\t"
                 "@p ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];\n\t"
                 "}"
                 : "+l"(v->lo), "+l"(v->hi)
                 : "l"(addr), "r"((uint32_t)condition)
                 : "memory");
#endif
}

SYMWIN_DEVICE void symwin_store_relaxed_v16(uint64_t addr, symwin_v16 v)
{
#if SYMWIN_EMULATED
    unsigned char *to = (unsigned char *)symwin_emu_target(addr, 16);

    emu_dev_store64(to, v.lo, __ATOMIC_RELAXED);
    emu_dev_store64(to + 8, v.hi, __ATOMIC_RELAXED);
#else
    SW_ACCESS(addr);
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(addr), "l"(v.lo), "l"(v.hi)
                 : "memory");
#endif
}

/* ---- memory: atomics and the fence ----------------------------------------------------------- */

/* Atomics that return the old value, with acquire and release at system scope: an adder that gets
 * the expected count sees everything that earlier adders did, on any GPU. (PTX ISA, "atom") */
SYMWIN_DEVICE uint32_t symwin_atomic_add_u32(uint64_t addr, uint32_t value)
{
#if SYMWIN_EMULATED
    return emu_dev_add32(symwin_emu_target(addr, 4), value, __ATOMIC_ACQ_REL);
#else
    uint32_t old;
    SW_ACCESS(addr);
    asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(addr), "r"(value)
                 : "memory");
    return old;
#endif
}

/* Returns the old value; relaxed, for threads of one device. (PTX ISA, "atom") */
SYMWIN_DEVICE uint32_t symwin_add_relaxed_u32(uint64_t addr, uint32_t value)
{
#if SYMWIN_EMULATED
    return emu_dev_add32(symwin_emu_target(addr, 4), value, __ATOMIC_RELAXED);
#else
    uint32_t old;
    SW_ACCESS(addr);
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(addr), "r"(value)
                 : "memory");
    return old;
#endif
}

/* Returns the old value; acquire and release, for threads of one device. What such a thread
 * releases at system scope after it includes what the adders before it did. Unlike system scope it
 * does not wait for stores to peers. (PTX ISA, "atom", causality order) */
SYMWIN_DEVICE uint32_t symwin_add_acq_rel_u32(uint64_t addr, uint32_t value)
{
#if SYMWIN_EMULATED
    return emu_dev_add32(symwin_emu_target(addr, 4), value, __ATOMIC_ACQ_REL);
#else
    uint32_t old;
    SW_ACCESS(addr);
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(addr), "r"(value)
                 : "memory");
    return old;
#endif
}

/* Adds without a result; release, for threads of one device. Unlike system scope it does not wait
 * for stores to peers. (PTX ISA, "red") */
SYMWIN_DEVICE void symwin_add_release_u32(uint64_t addr, uint32_t value)
{
#if SYMWIN_EMULATED
    emu_dev_add32(symwin_emu_target(addr, 4), value, __ATOMIC_RELEASE);
#else
    SW_ACCESS(addr);
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" : : "l"(addr), "r"(value) : "memory");
#endif
}

/* Adds without a result; release, at system scope. The thread waits for no answer. (PTX ISA, "red")
 */
SYMWIN_DEVICE void symwin_add_system_u32(uint64_t addr, uint32_t value)
{
#if SYMWIN_EMULATED
    emu_dev_add32(symwin_emu_target(addr, 4), value, __ATOMIC_RELEASE);
#else
    SW_ACCESS(addr);
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" : : "l"(addr), "r"(value) : "memory");
#endif
}

/* Compare and swap; order and result as symwin_atomic_add_u32(). */
SYMWIN_DEVICE uint32_t symwin_atomic_cas_u32(uint64_t addr, uint32_t expected, uint32_t value)
{
#if SYMWIN_EMULATED
    return emu_dev_cas32(symwin_emu_target(addr, 4), expected, value, __ATOMIC_ACQ_REL);
#else
    uint32_t old;
    SW_ACCESS(addr);
    asm volatile("atom.acq_rel.sys.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(addr), "r"(expected), "r"(value)
                 : "memory");
    return old;
#endif
}

/* Orders this thread's accesses at system scope: before a relaxed store it makes a release, after a
 * relaxed load an acquire. It does not order an earlier store with a later load. Prefer release and
 * acquire accesses: sanitizers understand them. (PTX ISA, "membar / fence": fence.acq_rel.sys) */
SYMWIN_DEVICE void symwin_fence(void)
{
#if SYMWIN_EMULATED
    emu_dev_fence();
#else
    asm volatile("fence.acq_rel.sys;" : : : "memory");
#endif
}

/* Orders this thread's accesses to one memory by several of its addresses: by a window's and those
 * that the program has for it, by two windows', or by a multicast address and a rank's. Needed in a
 * kernel between a store by one address and a load or store by another, in the thread that stored
 * and in the one that goes on, on both sides of what orders the two. Between kernels nothing is
 * needed. (PTX ISA, "membar / fence": fence.proxy.alias) */
SYMWIN_DEVICE void symwin_alias_fence(void)
{
#if SYMWIN_EMULATED
    emu_dev_alias_fence();
#else
    asm volatile("fence.proxy.alias;" : : : "memory");
#endif
}

/* A word in shared memory for the threads of a block, release and acquire in the block: a thread
 * that loads the sum sees everything that the adders did before. */
SYMWIN_DEVICE void symwin_shared_add_release(uint32_t *word, uint32_t value)
{
#if SYMWIN_EMULATED
    __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
#else
    asm volatile("red.release.cta.shared.add.u32 [%0], %1;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(word)), "r"(value)
                 : "memory");
#endif
}

SYMWIN_DEVICE uint32_t symwin_shared_load_acquire(const uint32_t *word)
{
#if SYMWIN_EMULATED
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#else
    uint32_t value;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"((uint32_t)__cvta_generic_to_shared(word))
                 : "memory");
    return value;
#endif
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* In a kernel launched with programmatic stream serialization, which may begin before the kernel
 * ahead of it in the stream has ended: waits for that end; then everything that kernel wrote is
 * visible. In any other kernel: does nothing. Needs sm_90. (PTX ISA, "griddepcontrol") */
SYMWIN_DEVICE void symwin_launch_wait(void)
{
#if !SYMWIN_EMULATED && SYMWIN_HAS_LAUNCH_CONTROL
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/* Lets such a kernel behind this one begin, once every block has called this or ended. The next
 * kernel's symwin_launch_wait() still waits for the end of this one. */
SYMWIN_DEVICE void symwin_launch_next(void)
{
#if !SYMWIN_EMULATED && SYMWIN_HAS_LAUNCH_CONTROL
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Call once in each iteration of a poll loop. On a GPU it does nothing, since other threads run
 * anyway. */
SYMWIN_DEVICE void symwin_pause(void)
{
#if SYMWIN_EMULATED
    emu_dev_pause();
#endif
}

/* Time in nanoseconds, comparable on one device only. Advances in steps of up to about 1 us.
 * (PTX ISA, "%globaltimer") */
SYMWIN_DEVICE uint64_t symwin_clock_ns(void)
{
#if SYMWIN_EMULATED
    return emu_dev_globaltimer();
#else
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) : : "memory");
    return ns;
#endif
}

#undef SYMWIN_WEAK
#undef SYMWIN_STRONG
#undef SYMWIN_REGISTER
#undef SYMWIN_REGISTER_8
#undef SYMWIN_REGISTER_16
#undef SYMWIN_REGISTER_32
#undef SYMWIN_REGISTER_64

#include "symwin/cvt.cuh"

#endif
