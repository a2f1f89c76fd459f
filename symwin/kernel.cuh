/* For kernels of one's own that `symwin-perf --kernel FILE.cu[:NAME]` checks and times.
 *
 *   about      what a kernel says of itself
 *   elements   floats in memory
 *
 * A kernel takes a struct symwin_kernel_args by value, whose comment says what it may count on:
 *
 *     #include "symwin/kernel.cuh"
 *
 *     SYMWIN_KERNEL_ABOUT(NAME, "types=f32 ops=sum windows")
 *
 *     extern "C" __global__ void NAME(const struct symwin_kernel_args args)
 *
 * The file is compiled by nvcc and by the host compiler for the emulated driver, so it has device code only and reaches
 * memory through the functions of the headers in symwin/. docs/your-own-kernel.md has the rest.
 */
#ifndef SYMWIN_KERNEL_CUH
#define SYMWIN_KERNEL_CUH

#include "symwin/channel.cuh"
#include "symwin/float.h"
#include "symwin/kernel.h"

/* ---- about ----------------------------------------------------------------------------------- */

/* What a kernel can do: words with spaces between them, in a string. Without any it is taken to serve every call.
 *
 *   types=LIST    element types, with commas: f64 f32 f16 bf16 e4m3 e5m2 i8 u8 i32 u32 i64 u64             all
 *   ops=LIST      operations: sum prod min max avg                                                         all
 *   bytes=N       of the longest message; suffixes K, M, G                                                 any
 *   multiple=N    elements come in multiples of N                                                            1
 *   align=N       in and out are aligned to N bytes                                                 an element
 *   ranks=N       most ranks                                                                               any
 *   windows       in and out are in windows, at equal offsets: peers can reach them
 *   out-of-place  in and out are never the same
 *   no-limit      waits have none: a rank that does not come is waited for for ever
 *   blocks=N      most blocks of the grid                                                                   16
 *   threads=N     most threads of a block, whole warps                                                     512
 *   fixed         the grid is always of so many blocks of so many threads. Else it is of any less, too
 *   shared=N      bytes of dynamic shared memory of a block                                                  0
 *   scratch=N     bytes of scratch                                                                         64K
 *   slots=N       bytes of slots                                                                             0 */
#if SYMWIN_EMULATED
#define SYMWIN_KERNEL_ABOUT(name, text)                                                            \
    extern "C" const char name##_about[];                                                          \
    const char name##_about[] = text;
#else
/* A kernel that tells it: what a symbol of the text is called is the compiler's affair. */
#define SYMWIN_KERNEL_ABOUT(name, text)                                                            \
    extern "C" __global__ void name##_about(uint64_t to)                                           \
    {                                                                                              \
        for (uint32_t i = 0; i < sizeof(text); i++)                                                \
            symwin_store_u8(to + i, (uint8_t)(text)[i]);                                           \
    }
#endif

/* Behind the kernel in a file that is compiled for the emulated driver by hand, to a shared object that symwin-perf
 * takes as FILE.so:NAME. symwin-perf does it by itself for a FILE.cu. Nothing on GPUs. */
#if SYMWIN_EMULATED
#define SYMWIN_KERNEL_EMULATED(name)                                                               \
    extern "C" void name##_emulated(const void *params);                                           \
    extern "C" void name##_emulated(const void *params)                                            \
    {                                                                                              \
        name(*static_cast<const struct symwin_kernel_args *>(params));                             \
    }
#else
#define SYMWIN_KERNEL_EMULATED(name)
#endif

/* Tells the host that a wait came to its limit. */
SYMWIN_DEVICE void symwin_give_up(const struct symwin_kernel_args &args)
{
    symwin_store_relaxed_u32(args.gave_up, 1);
}

/* ---- elements -------------------------------------------------------------------------------- */

SYMWIN_DEVICE float symwin_f32_of(uint32_t bits)
{
    return sw_f32_of_bits(bits);
}

SYMWIN_DEVICE uint32_t symwin_f32_bits(float value)
{
    return sw_f32_bits(value);
}

/* Weak, as symwin_load_u32() is. */
SYMWIN_DEVICE float symwin_load_f32(uint64_t addr)
{
    return symwin_f32_of(symwin_load_u32(addr));
}

SYMWIN_DEVICE void symwin_store_f32(uint64_t addr, float value)
{
    symwin_store_u32(addr, symwin_f32_bits(value));
}

#endif
