/* The device API's multicast accesses: one access reads or writes the memory of every rank.
 *
 * If SYMWIN_HAS_MULTIMEM is 0 (below sm_90, or CUDA before 12.2), this header declares nothing. By
 * one thread each.
 *
 * Memory order: every access is relaxed at system scope. A multicast address is an alias of the
 * ranks' memory. In a kernel that reaches a byte by both, a release-acquire chain is not enough:
 * PTX asks for symwin_alias_fence(), in both directions,
 *
 *   after stores by one address, before the release that tells of them
 *   after the acquire that waits for them, before accesses by the other address
 *
 * Between kernels nothing is needed. (PTX ISA, "Memory Consistency Model", causality order and
 * proxies; "membar / fence": fence.proxy.alias)
 *
 * Numerics: the switch chooses the order in which a load-reduce combines the ranks. PTX says
 * neither that order, nor how a sum is rounded, nor that two load-reduces of the same bytes give
 * the same bits. Sums of 16-bit floats ask for intermediate results of at least f32 (.acc::f32).
 * The emulated driver adds in the order in which the devices were added, and rounds once. (PTX ISA,
 * "multimem.ld_reduce, multimem.st, multimem.red")
 *
 * Accesses on sm_90 that this header wraps. An access has 16 bytes if the instruction supports
 * vectors, otherwise one element:
 *
 *   add        f32 x4; f16 x8 and bf16 x8; f64; u32 and u64 (two's complement, so also for the
 *              signed types)
 *   min, max   f16 x8, bf16 x8, u32, s32, u64, s64
 *   store      16 bytes of any type
 */
#ifndef SYMWIN_MULTIMEM_CUH
#define SYMWIN_MULTIMEM_CUH

#include "symwin/device.cuh"

#if SYMWIN_HAS_MULTIMEM

#if SYMWIN_EMULATED

#include "symwin/float.h"

template <typename T>
static inline T symwin_emu_same(T value)
{
    return value;
}

template <typename T>
static inline T symwin_emu_add(T a, T b)
{
    return a + b;
}

template <typename T>
static inline T symwin_emu_min(T a, T b)
{
    return b < a || a != a ? b : a;
}

template <typename T>
static inline T symwin_emu_max(T a, T b)
{
    return b > a || a != a ? b : a;
}

/* Combines `bytes` bytes of elements `Memory` over the members, in the type `Wide`. */
template <typename Memory, typename Wide, Wide (*widen)(Memory), Wide (*combine)(Wide, Wide),
          Memory (*narrow)(Wide)>
static inline void symwin_emu_multimem_load(uint64_t addr, size_t bytes, void *result)
{
    void *member[EMU_MAX_DEVICES];
    const int members = emu_dev_multicast((const void *)(uintptr_t)addr, bytes, 0, member);

    for (size_t at = 0; at < bytes; at += sizeof(Memory)) {
        Wide sum = Wide();
        Memory value;

        for (int i = 0; i < members; i++) {
            __builtin_memcpy(&value, (const char *)member[i] + at, sizeof value);
            sum = i == 0 ? widen(value) : combine(sum, widen(value));
        }
        value = narrow(sum);
        __builtin_memcpy((char *)result + at, &value, sizeof value);
    }
}

#define SYMWIN_MULTIMEM_V16(name, ptx, memory, wide, widen, combine, narrow)                       \
    SYMWIN_DEVICE symwin_v16 symwin_multimem_##name(uint64_t addr)                                 \
    {                                                                                              \
        symwin_v16 v;                                                                              \
        symwin_emu_multimem_load<memory, wide, widen, combine<wide>, narrow>(addr, 16, &v);        \
        return v;                                                                                  \
    }

#define SYMWIN_MULTIMEM_WORD(name, ptx, bits, reg, memory, combine)                                \
    SYMWIN_DEVICE uint##bits##_t symwin_multimem_##name(uint64_t addr)                             \
    {                                                                                              \
        uint##bits##_t v;                                                                          \
        symwin_emu_multimem_load<memory, memory, symwin_emu_same<memory>, combine<memory>,         \
                                 symwin_emu_same<memory>>(addr, bits / 8, &v);                     \
        return v;                                                                                  \
    }

#else

#define SYMWIN_MULTIMEM_V16(name, ptx, memory, wide, widen, combine, narrow)                       \
    SYMWIN_DEVICE symwin_v16 symwin_multimem_##name(uint64_t addr)                                 \
    {                                                                                              \
        uint32_t w0, w1, w2, w3;                                                                   \
        asm volatile("multimem.ld_reduce.relaxed.sys.global." ptx " {%0, %1, %2, %3}, [%4];"       \
                     : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)                                      \
                     : "l"(addr)                                                                   \
                     : "memory");                                                                  \
        return symwin_v16{w0 | (uint64_t)w1 << 32, w2 | (uint64_t)w3 << 32};                       \
    }

#define SYMWIN_MULTIMEM_WORD(name, ptx, bits, reg, memory, combine)                                \
    SYMWIN_DEVICE uint##bits##_t symwin_multimem_##name(uint64_t addr)                             \
    {                                                                                              \
        uint##bits##_t v;                                                                          \
        asm volatile("multimem.ld_reduce.relaxed.sys.global." ptx " %0, [%1];"                     \
                     : "=" reg(v)                                                                  \
                     : "l"(addr)                                                                   \
                     : "memory");                                                                  \
        return v;                                                                                  \
    }

#endif

/* symwin_v16 symwin_multimem_<op>_<elements>(uint64_t addr): 16 bytes reduced over all ranks. */
SYMWIN_MULTIMEM_V16(add_f32x4, "add.v4.f32", float, float, symwin_emu_same<float>, symwin_emu_add,
                    symwin_emu_same<float>)
SYMWIN_MULTIMEM_V16(add_f16x8, "add.acc::f32.v4.f16x2", uint16_t, float, sw_f32_from_f16,
                    symwin_emu_add, sw_f16_from_f32)
SYMWIN_MULTIMEM_V16(min_f16x8, "min.v4.f16x2", uint16_t, float, sw_f32_from_f16, symwin_emu_min,
                    sw_f16_from_f32)
SYMWIN_MULTIMEM_V16(max_f16x8, "max.v4.f16x2", uint16_t, float, sw_f32_from_f16, symwin_emu_max,
                    sw_f16_from_f32)
SYMWIN_MULTIMEM_V16(add_bf16x8, "add.acc::f32.v4.bf16x2", uint16_t, float, sw_f32_from_bf16,
                    symwin_emu_add, sw_bf16_from_f32)
SYMWIN_MULTIMEM_V16(min_bf16x8, "min.v4.bf16x2", uint16_t, float, sw_f32_from_bf16, symwin_emu_min,
                    sw_bf16_from_f32)
SYMWIN_MULTIMEM_V16(max_bf16x8, "max.v4.bf16x2", uint16_t, float, sw_f32_from_bf16, symwin_emu_max,
                    sw_bf16_from_f32)

/* uint32_t or uint64_t symwin_multimem_<op>_<element>(uint64_t addr): the bits of one reduced
 * element. */
SYMWIN_MULTIMEM_WORD(add_u32, "add.u32", 32, "r", uint32_t, symwin_emu_add)
SYMWIN_MULTIMEM_WORD(min_u32, "min.u32", 32, "r", uint32_t, symwin_emu_min)
SYMWIN_MULTIMEM_WORD(max_u32, "max.u32", 32, "r", uint32_t, symwin_emu_max)
SYMWIN_MULTIMEM_WORD(min_s32, "min.s32", 32, "r", int32_t, symwin_emu_min)
SYMWIN_MULTIMEM_WORD(max_s32, "max.s32", 32, "r", int32_t, symwin_emu_max)
SYMWIN_MULTIMEM_WORD(add_f64, "add.f64", 64, "l", double, symwin_emu_add)
SYMWIN_MULTIMEM_WORD(add_u64, "add.u64", 64, "l", uint64_t, symwin_emu_add)
SYMWIN_MULTIMEM_WORD(min_u64, "min.u64", 64, "l", uint64_t, symwin_emu_min)
SYMWIN_MULTIMEM_WORD(max_u64, "max.u64", 64, "l", uint64_t, symwin_emu_max)
SYMWIN_MULTIMEM_WORD(min_s64, "min.s64", 64, "l", int64_t, symwin_emu_min)
SYMWIN_MULTIMEM_WORD(max_s64, "max.s64", 64, "l", int64_t, symwin_emu_max)

/* Stores 16 bytes to all ranks. */
SYMWIN_DEVICE void symwin_multimem_store_v16(uint64_t addr, symwin_v16 v)
{
#if SYMWIN_EMULATED
    void *member[EMU_MAX_DEVICES];
    const int members = emu_dev_multicast((const void *)(uintptr_t)addr, sizeof v, 1, member);

    for (int i = 0; i < members; i++)
        __builtin_memcpy(member[i], &v, sizeof v);
#else
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(addr), "r"((uint32_t)v.lo), "r"((uint32_t)(v.lo >> 32)), "r"((uint32_t)v.hi),
                   "r"((uint32_t)(v.hi >> 32))
                 : "memory");
#endif
}

#undef SYMWIN_MULTIMEM_V16
#undef SYMWIN_MULTIMEM_WORD

#endif
#endif
