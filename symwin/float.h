/* Conversions between f32 and the small floating-point types, by integer arithmetic alone.
 *
 *   f16    1 sign, 5 exponent, 10 mantissa bits; IEEE binary16
 *   bf16   1, 8, 7; the upper half of an f32
 *   e4m3   1, 4, 3; no infinities, 0x7f and 0xff are NaN, largest 448
 *   e5m2   1, 5, 2; the upper half of an f16, largest finite 57344
 *
 * Rounding is to nearest, ties to even. f16 and bf16 overflow to infinity; both fp8 types saturate
 * to their largest finite value, infinities included. A NaN becomes the type's canonical NaN
 * (all bits below the sign set, sign clear), so the bits equal those of PTX
 * cvt.rn{.satfinite}, which kernels use where the architecture has it (PTX ISA 9.7.9, "cvt").
 *
 * C11, C++17 and CUDA. Pure functions of their arguments; any thread.
 */
#ifndef SYMWIN_FLOAT_H
#define SYMWIN_FLOAT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SW_TYPES_FN static __host__ __device__ __forceinline__
#else
#define SW_TYPES_FN static inline
#endif

SW_TYPES_FN uint32_t sw_f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SW_TYPES_FN float sw_f32_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

SW_TYPES_FN uint64_t sw_f64_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SW_TYPES_FN double sw_f64_of_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to a small type, described by its mantissa width, its exponent bias and its largest finite
 * magnitude; larger values become `overflow`. Callers handle sign and NaN. */
SW_TYPES_FN uint32_t sw_round_magnitude(uint32_t f32_magnitude, int mantissa_bits, int bias,
                                        uint32_t largest, uint32_t overflow)
{
    const int drop = 23 - mantissa_bits;
    const int exponent = (int)(f32_magnitude >> 23) - 127 + bias; /* in the small type */
    uint32_t significand, rounded;
    int shift = drop;

    if (exponent > 0) {
        /* Normal: rebias, then let the rounding carry run into the exponent. */
        significand = f32_magnitude - ((uint32_t)(127 - bias) << 23);
    } else {
        /* Subnormal or zero: the implicit bit becomes explicit and moves down. Beyond 24 further
         * places the rest is less than half of the smallest subnormal. An f32 subnormal is below
         * the range of every small type except bf16, which does not use this function. */
        if (exponent < -24)
            return 0;
        significand = (f32_magnitude & 0x7fffffu) | 0x800000u;
        shift = drop + 1 - exponent;
        if (shift > 25)
            return 0;
    }
    rounded = significand + ((1u << (shift - 1)) - 1u) + ((significand >> shift) & 1u);
    rounded >>= shift;
    return rounded > largest ? overflow : rounded;
}

SW_TYPES_FN float sw_widen_magnitude(uint32_t magnitude, uint32_t sign, int mantissa_bits, int bias)
{
    const uint32_t exponent = magnitude >> mantissa_bits;
    const uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1u);
    float value;

    if (exponent > 0)
        return sw_f32_of_bits(sign | ((exponent + (uint32_t)(127 - bias)) << 23) |
                              (mantissa << (23 - mantissa_bits)));
    /* Subnormal: the mantissa counts units of 2^(1 - bias - mantissa_bits); both factors and the
     * product are exact in f32. */
    value = (float)mantissa * sw_f32_of_bits((uint32_t)(128 - bias - mantissa_bits) << 23);
    return sw_f32_of_bits(sign | sw_f32_bits(value));
}

/* ---- f16 ------------------------------------------------------------------------------------- */

SW_TYPES_FN uint16_t sw_f16_from_f32(float value)
{
    const uint32_t bits = sw_f32_bits(value), magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return 0x7fffu;
    return (uint16_t)((bits >> 16 & 0x8000u) |
                      sw_round_magnitude(magnitude, 10, 15, 0x7bffu, 0x7c00u));
}

SW_TYPES_FN float sw_f32_from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;

    if (magnitude > 0x7c00u)
        return sw_f32_of_bits(0x7fffffffu);
    if (magnitude == 0x7c00u)
        return sw_f32_of_bits(sign | 0x7f800000u);
    return sw_widen_magnitude(magnitude, sign, 10, 15);
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

SW_TYPES_FN uint16_t sw_bf16_from_f32(float value)
{
    const uint32_t bits = sw_f32_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fffu;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

SW_TYPES_FN float sw_f32_from_bf16(uint16_t half)
{
    return sw_f32_of_bits((uint32_t)half << 16);
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

SW_TYPES_FN uint8_t sw_e4m3_from_f32(float value)
{
    const uint32_t bits = sw_f32_bits(value), magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return 0x7fu;
    return (uint8_t)((bits >> 24 & 0x80u) | sw_round_magnitude(magnitude, 3, 7, 0x7eu, 0x7eu));
}

SW_TYPES_FN float sw_f32_from_e4m3(uint8_t small)
{
    const uint32_t sign = (uint32_t)(small & 0x80u) << 24, magnitude = small & 0x7fu;

    if (magnitude == 0x7fu)
        return sw_f32_of_bits(0x7fffffffu);
    return sw_widen_magnitude(magnitude, sign, 3, 7);
}

SW_TYPES_FN uint8_t sw_e5m2_from_f32(float value)
{
    const uint32_t bits = sw_f32_bits(value), magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return 0x7fu;
    return (uint8_t)((bits >> 24 & 0x80u) | sw_round_magnitude(magnitude, 2, 15, 0x7bu, 0x7bu));
}

SW_TYPES_FN float sw_f32_from_e5m2(uint8_t small)
{
    return sw_f32_from_f16((uint16_t)((uint32_t)small << 8));
}

#endif
