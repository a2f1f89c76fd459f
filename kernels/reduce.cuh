/* Element types and operations, eight bytes at a time.
 *
 * A type sw_type_<name> takes eight bytes of memory apart into `per` accumulators and puts them
 * together again; an operation sw_op_<name> combines two accumulators. struct sw_reduce joins one
 * of each. Eight bytes is the payload of a packet, half of a vector access, and, with the upper
 * bytes zero, a single element.
 *
 * Arithmetic: f16, bf16 and fp8 in f32, everything else in its own type; integers wrap modulo their
 * width. An average divides the sum in the accumulator, so it rounds once. Of two equal values
 * (zeros of either sign) min and max keep the first operand, the lower rank's; of a NaN and a
 * number the number. Written out, not fminf(): the same bits from every compiler. Infinities of
 * e5m2 saturate like everything else that is stored as fp8.
 */
#ifndef SYMWIN_KERNELS_REDUCE_CUH
#define SYMWIN_KERNELS_REDUCE_CUH

#include "../symwin_device.cuh"
#include "kernel_args.h"
#include "types.h"

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* Sums and products of integers go through this type: unsigned, and never narrower than int, so
 * that they wrap and are not promoted to something that overflows. */
template <typename T>
struct sw_wrap {
    typedef uint32_t type;
};
template <>
struct sw_wrap<float> {
    typedef float type;
};
template <>
struct sw_wrap<double> {
    typedef double type;
};
template <>
struct sw_wrap<int64_t> {
    typedef uint64_t type;
};
template <>
struct sw_wrap<uint64_t> {
    typedef uint64_t type;
};

SYMWIN_DEVICE bool sw_is_nan(float a)
{
    return a != a;
}

SYMWIN_DEVICE bool sw_is_nan(double a)
{
    return a != a;
}

template <typename T>
SYMWIN_DEVICE bool sw_is_nan(T)
{
    return false;
}

/* What kernels do with all accumulators of a word: `op` says what it is where they do not know. */
template <class One>
struct sw_op_of {
    template <int n, typename A>
    SYMWIN_DEVICE void combine_all(A *a, const A *b, uint32_t)
    {
        SYMWIN_UNROLL
        for (int i = 0; i < n; i++)
            a[i] = One::combine(a[i], b[i]);
    }
};

struct sw_op_sum : sw_op_of<sw_op_sum> {
    enum { averages = 1 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        typedef typename sw_wrap<A>::type W;
        return (A)((W)a + (W)b);
    }
};

struct sw_op_prod : sw_op_of<sw_op_prod> {
    enum { averages = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        typedef typename sw_wrap<A>::type W;
        return (A)((W)a * (W)b);
    }
};

struct sw_op_min : sw_op_of<sw_op_min> {
    enum { averages = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        return b < a || sw_is_nan(a) ? b : a;
    }
};

struct sw_op_max : sw_op_of<sw_op_max> {
    enum { averages = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        return b > a || sw_is_nan(a) ? b : a;
    }
};

/* Any of those above but the sum. */
struct sw_op_other {
    enum { averages = 0 };
    template <int n, typename A>
    SYMWIN_DEVICE void combine_all(A *a, const A *b, uint32_t op)
    {
        if (op == SW_KERNEL_MIN)
            sw_op_min::combine_all<n>(a, b, op);
        else if (op == SW_KERNEL_MAX)
            sw_op_max::combine_all<n>(a, b, op);
        else
            sw_op_prod::combine_all<n>(a, b, op);
    }
};

/* The divisor as the accumulator's type, or as int where a rank count may not fit. */
SYMWIN_DEVICE float sw_divide(float sum, int32_t nranks)
{
    return sum / (float)nranks;
}

SYMWIN_DEVICE double sw_divide(double sum, int32_t nranks)
{
    return sum / (double)nranks;
}

SYMWIN_DEVICE int8_t sw_divide(int8_t sum, int32_t nranks)
{
    return (int8_t)(sum / nranks);
}

SYMWIN_DEVICE uint8_t sw_divide(uint8_t sum, int32_t nranks)
{
    return (uint8_t)(sum / nranks);
}

SYMWIN_DEVICE int32_t sw_divide(int32_t sum, int32_t nranks)
{
    return sum / nranks;
}

SYMWIN_DEVICE uint32_t sw_divide(uint32_t sum, int32_t nranks)
{
    return sum / (uint32_t)nranks;
}

SYMWIN_DEVICE int64_t sw_divide(int64_t sum, int32_t nranks)
{
    return sum / nranks;
}

SYMWIN_DEVICE uint64_t sw_divide(uint64_t sum, int32_t nranks)
{
    return sum / (uint64_t)nranks;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* An integer, or a float that is its own accumulator. */
template <typename T, typename Bits>
struct sw_type_plain {
    typedef T acc;
    /* spares: all ones is a NaN, which another can stand for */
    enum { bytes = sizeof(T), per = 8 / sizeof(T), spares = (T)0.5f != (T)0 };

    SYMWIN_DEVICE void unpack(uint64_t word, T *a)
    {
        SYMWIN_UNROLL
        for (int i = 0; i < per; i++) {
            const Bits bits = (Bits)(word >> (i * 8 * bytes % 64));
            memcpy(&a[i], &bits, sizeof bits);
        }
    }

    SYMWIN_DEVICE uint64_t pack(const T *a)
    {
        uint64_t word = 0;

        SYMWIN_UNROLL
        for (int i = 0; i < per; i++) {
            Bits bits;
            memcpy(&bits, &a[i], sizeof bits);
            word |= (uint64_t)bits << (i * 8 * bytes % 64);
        }
        return word;
    }
};

typedef sw_type_plain<double, uint64_t> sw_type_f64;
typedef sw_type_plain<float, uint32_t> sw_type_f32;
typedef sw_type_plain<int8_t, uint8_t> sw_type_i8;
typedef sw_type_plain<uint8_t, uint8_t> sw_type_u8;
typedef sw_type_plain<int32_t, uint32_t> sw_type_i32;
typedef sw_type_plain<uint32_t, uint32_t> sw_type_u32;
typedef sw_type_plain<int64_t, uint64_t> sw_type_i64;
typedef sw_type_plain<uint64_t, uint64_t> sw_type_u64;

/* 32 bits of a small type: what the hardware converts without taking a word apart. */
struct sw_some_f16 {
    enum { bytes = 2 };
    SYMWIN_DEVICE void unpack(uint32_t some, float *a)
    {
#if SYMWIN_EMULATED
        a[0] = sw_f32_from_f16((uint16_t)some);
        a[1] = sw_f32_from_f16((uint16_t)(some >> 16));
#else
        symwin_cvt_f32_f16x2(some, &a[0], &a[1]);
#endif
    }
    SYMWIN_DEVICE uint32_t pack(const float *a)
    {
#if SYMWIN_EMULATED
        return sw_f16_from_f32(a[0]) | (uint32_t)sw_f16_from_f32(a[1]) << 16;
#else
        return symwin_cvt_f16x2(a[0], a[1]);
#endif
    }
};

struct sw_some_bf16 {
    enum { bytes = 2 };
    SYMWIN_DEVICE void unpack(uint32_t some, float *a)
    {
        a[0] = sw_f32_from_bf16((uint16_t)some);
        a[1] = sw_f32_from_bf16((uint16_t)(some >> 16));
    }
    SYMWIN_DEVICE uint32_t pack(const float *a)
    {
#if SYMWIN_EMULATED
        return sw_bf16_from_f32(a[0]) | (uint32_t)sw_bf16_from_f32(a[1]) << 16;
#else
        return symwin_cvt_bf16x2(a[0], a[1]);
#endif
    }
};

struct sw_some_e4m3 {
    enum { bytes = 1 };
    SYMWIN_DEVICE void unpack(uint32_t some, float *a)
    {
#if !SYMWIN_EMULATED && SYMWIN_HAS_CVT_F8
        uint32_t lo, hi;

        symwin_cvt_f16x2_e4m3x4(some, &lo, &hi);
        sw_some_f16::unpack(lo, a);
        sw_some_f16::unpack(hi, a + 2);
#else
        SYMWIN_UNROLL
        for (int i = 0; i < 4; i++)
            a[i] = sw_f32_from_e4m3((uint8_t)(some >> 8 * i));
#endif
    }
    SYMWIN_DEVICE uint32_t pack(const float *a)
    {
#if !SYMWIN_EMULATED && SYMWIN_HAS_CVT_F8
        return symwin_cvt_e4m3x4(a);
#else
        return sw_e4m3_from_f32(a[0]) | (uint32_t)sw_e4m3_from_f32(a[1]) << 8 |
               (uint32_t)sw_e4m3_from_f32(a[2]) << 16 | (uint32_t)sw_e4m3_from_f32(a[3]) << 24;
#endif
    }
};

struct sw_some_e5m2 {
    enum { bytes = 1 };
    SYMWIN_DEVICE void unpack(uint32_t some, float *a)
    {
#if SYMWIN_EMULATED
        SYMWIN_UNROLL
        for (int i = 0; i < 4; i++)
            a[i] = sw_f32_from_e5m2((uint8_t)(some >> 8 * i));
#else
        uint32_t lo, hi;

        symwin_cvt_f16x2_e5m2x4(some, &lo, &hi);
        sw_some_f16::unpack(lo, a);
        sw_some_f16::unpack(hi, a + 2);
#endif
    }
    SYMWIN_DEVICE uint32_t pack(const float *a)
    {
#if !SYMWIN_EMULATED && SYMWIN_HAS_CVT_F8
        return symwin_cvt_e5m2x4(a);
#else
        return sw_e5m2_from_f32(a[0]) | (uint32_t)sw_e5m2_from_f32(a[1]) << 8 |
               (uint32_t)sw_e5m2_from_f32(a[2]) << 16 | (uint32_t)sw_e5m2_from_f32(a[3]) << 24;
#endif
    }
};

template <typename Some>
struct sw_type_small {
    typedef float acc;
    enum { bytes = Some::bytes, per = 8 / bytes, spares = 1 };

    SYMWIN_DEVICE void unpack(uint64_t word, float *a)
    {
        Some::unpack((uint32_t)word, a);
        Some::unpack((uint32_t)(word >> 32), a + per / 2);
    }

    SYMWIN_DEVICE uint64_t pack(const float *a)
    {
        return Some::pack(a) | (uint64_t)Some::pack(a + per / 2) << 32;
    }
};

typedef sw_type_small<sw_some_f16> sw_type_f16;
typedef sw_type_small<sw_some_bf16> sw_type_bf16;
typedef sw_type_small<sw_some_e4m3> sw_type_e4m3;
typedef sw_type_small<sw_some_e5m2> sw_type_e5m2;

/* ---- a reduction of eight bytes -------------------------------------------------------------- */

template <typename T, typename O>
struct sw_reduce {
    enum { bytes = T::bytes /* of an element */, spares = T::spares };
    typename T::acc sum[T::per];

    SYMWIN_MEMBER void first(uint64_t word)
    {
        T::unpack(word, sum);
    }

    SYMWIN_MEMBER void add(uint64_t word, uint32_t op)
    {
        typename T::acc operand[T::per];

        T::unpack(word, operand);
        O::template combine_all<T::per>(sum, operand, op);
    }

    SYMWIN_MEMBER uint64_t result(uint32_t op, int32_t nranks)
    {
        if (O::averages && op != SW_KERNEL_SUM) {
            SYMWIN_UNROLL
            for (int i = 0; i < T::per; i++)
                sum[i] = sw_divide(sum[i], nranks);
        }
        return T::pack(sum);
    }
};

#endif
