/* The device API's hardware conversions: f32 to and from the small floating-point types. A part of
 * symwin/device.cuh, which includes it. The emulated driver has none; the types of
 * symwin/reduce.cuh work on both drivers.
 */
#ifndef SYMWIN_CVT_CUH
#define SYMWIN_CVT_CUH

#include "symwin/device.cuh"

#if !SYMWIN_EMULATED

/* Each converts as many values as 32 bits hold, the first value in the lowest bits, to nearest
 * even. f16 and bf16 overflow to infinity; the 8-bit types saturate to their largest finite value;
 * NaN stays NaN. f16x2 and bf16x2 need sm_80, the 8-bit types sm_89 (SYMWIN_HAS_CVT_F8). (PTX ISA,
 * "cvt") */
SYMWIN_DEVICE uint32_t symwin_cvt_f16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

SYMWIN_DEVICE uint32_t symwin_cvt_bf16x2(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

SYMWIN_DEVICE void symwin_cvt_f32_f16x2(uint32_t pair, float *lo, float *hi)
{
    asm("{\n\t"
        ".reg .b16 l, h;\n\t"
        "mov.b32 {l, h}, %2;\n\t"
        "cvt.f32.f16 %0, l;\n\t"
        "cvt.f32.f16 %1, h;\n\t"
        "}"
        : "=f"(*lo), "=f"(*hi)
        : "r"(pair));
}

/* Four e5m2 values: each is the upper half of an f16. */
SYMWIN_DEVICE void symwin_cvt_f16x2_e5m2x4(uint32_t four, uint32_t *lo, uint32_t *hi)
{
    asm("prmt.b32 %0, %1, 0, 0x1404;" : "=r"(*lo) : "r"(four));
    asm("prmt.b32 %0, %1, 0, 0x3424;" : "=r"(*hi) : "r"(four));
}

#if SYMWIN_HAS_CVT_F8
SYMWIN_DEVICE void symwin_cvt_f16x2_e4m3x4(uint32_t four, uint32_t *lo, uint32_t *hi)
{
    asm("{\n\t"
        ".reg .b16 l, h;\n\t"
        "mov.b32 {l, h}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n\t"
        "}"
        : "=r"(*lo), "=r"(*hi)
        : "r"(four));
}

#define SYMWIN_CVT_F8(name)                                                                        \
    SYMWIN_DEVICE uint32_t symwin_cvt_##name##x4(const float *a)                                   \
    {                                                                                              \
        uint32_t d;                                                                                \
        asm("{\n\t"                                                                                \
            ".reg .b16 l, h;\n\t"                                                                  \
            "cvt.rn.satfinite." #name "x2.f32 l, %2, %1;\n\t"                                      \
            "cvt.rn.satfinite." #name "x2.f32 h, %4, %3;\n\t"                                      \
            "mov.b32 %0, {l, h};\n\t"                                                              \
            "}"                                                                                    \
            : "=r"(d)                                                                              \
            : "f"(a[0]), "f"(a[1]), "f"(a[2]), "f"(a[3]));                                         \
        return d;                                                                                  \
    }
SYMWIN_CVT_F8(e4m3)
SYMWIN_CVT_F8(e5m2)
#undef SYMWIN_CVT_F8
#endif

#endif /* !SYMWIN_EMULATED */

#endif
