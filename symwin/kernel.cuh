/* For your own kernels, which `symwin-perf --kernel FILE.cu[:NAME]` checks and times.
 *
 *   about      what a kernel declares about itself
 *   elements   floats in memory
 *
 * A kernel takes a struct symwin_kernel_args by value; its comment says what a kernel can rely on:
 *
 *     #include "symwin/kernel.cuh"
 *
 *     SYMWIN_KERNEL_ABOUT(NAME, "types=f32 ops=sum windows")
 *
 *     extern "C" __global__ void NAME(const struct symwin_kernel_args args)
 *
 * The file is compiled by nvcc, and by the host compiler for the emulated driver. So it contains
 * device code only, and accesses memory through the functions of the symwin/ headers.
 * docs/your-own-kernel.md has the rest.
 */
#ifndef SYMWIN_KERNEL_CUH
#define SYMWIN_KERNEL_CUH

#include "symwin/channel.cuh"
#include "symwin/float.h"
#include "symwin/kernel.h"

/* ---- about ----------------------------------------------------------------------------------- */

/* What a kernel supports: words in a string, separated by spaces. Without any, it must serve every
 * call.
 *
 *   word          meaning                                                                default
 *   collective=   allreduce, allgather, alltoall, broadcast, gather, scatter,
 *                 reduce_scatter, reduce, sendrecv, alltoallv, allgatherv,
 *                 reduce_scatterv or barrier                                             allreduce
 *   types=LIST    element types, comma-separated: f64 f32 f16 bf16 e4m3 e5m2
 *                 i8 u8 i32 u32 i64 u64                                                  all
 *   ops=LIST      operations, comma-separated: sum prod min max avg; of a collective
 *                 that reduces                                                           all
 *   bytes=N       longest message in bytes, of the larger buffer; suffixes K, M, G       any
 *   multiple=N    counts are multiples of N; not of unequal parts                        1
 *   align=N       in and out are aligned to N bytes                                      an element
 *   ranks=N       most ranks                                                             any
 *   windows       in and out are in windows at equal offsets: peers can access them      no
 *   out-of-place  in and out are never the same buffer                                   no
 *   no-limit      waits have no limit: a missing rank makes the kernel wait for ever     no
 *   blocks=N      most blocks of the grid                                                16
 *   threads=N     most threads of a block, whole warps                                   512
 *   fixed         the grid always has exactly these blocks and threads; without it
 *                 they may also be fewer                                                 no
 *   shared=N      dynamic shared memory of a block in bytes                              0
 *   scratch=N     bytes of scratch                                                       64K
 *   slots=N       bytes of slots                                                         0 */
#if SYMWIN_EMULATED
#define SYMWIN_KERNEL_ABOUT(name, text)                                                            \
    extern "C" const char name##_about[];                                                          \
    const char name##_about[] = text;
#else
/* A kernel that returns the text: the compiler chooses the symbol name of a string. */
#define SYMWIN_KERNEL_ABOUT(name, text)                                                            \
    extern "C" __global__ void name##_about(uint64_t to)                                           \
    {                                                                                              \
        for (uint32_t i = 0; i < sizeof(text); i++)                                                \
            symwin_store_u8(to + i, (uint8_t)(text)[i]);                                           \
    }
#endif

/* Only for a file that you compile for the emulated driver yourself: put it behind the kernel, and
 * pass the shared object to symwin-perf as FILE.so:NAME. For a FILE.cu symwin-perf does this
 * itself. Does nothing on GPUs. */
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

/* Tells the host that a wait reached its limit. By one thread or more, before they return. */
SYMWIN_DEVICE void symwin_give_up(const struct symwin_kernel_args &args)
{
    symwin_store_relaxed_u32(args.gave_up, 1);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* A float of the same bits, and the reverse. */
SYMWIN_DEVICE float symwin_f32_of(uint32_t bits)
{
    return sw_f32_of_bits(bits);
}

SYMWIN_DEVICE uint32_t symwin_f32_bits(float value)
{
    return sw_f32_bits(value);
}

/* A float in memory; weak, as symwin_load_u32(). */
SYMWIN_DEVICE float symwin_load_f32(uint64_t addr)
{
    return symwin_f32_of(symwin_load_u32(addr));
}

SYMWIN_DEVICE void symwin_store_f32(uint64_t addr, float value)
{
    symwin_store_u32(addr, symwin_f32_bits(value));
}

#endif
