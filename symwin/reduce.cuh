/* Reductions over the memory of all ranks of a team: sum, product, minimum, maximum and average of
 * twelve types.
 *
 *   symwin_type_<name>    f64 f32 f16 bf16 e4m3 e5m2 i8 u8 i32 u32 i64 u64: unpacks eight bytes of
 *                         memory to `per` accumulators, and packs them again
 *   symwin_op_<name>      sum prod min max avg: combines two accumulators
 *   symwin_accumulator    a type and an operation on eight bytes: half of a vector access or, with
 *                         the upper bytes zero, a single element
 *   symwin_reduce_peers() a group's message, from all ranks of a team
 *
 * Arithmetic: f16, bf16 and fp8 are reduced in f32, everything else in its own type. Integers wrap
 * modulo their width. An average divides the sum in the accumulator, so it rounds once. Of two
 * equal values (zeros of either sign) min and max keep the first operand, the lower rank's; of a
 * NaN and a number they keep the number. Comparisons are written out, without fminf(), so that
 * every compiler gives the same bits. Infinities of e5m2 saturate, like everything that is stored
 * as fp8.
 *
 * The library's own kernels use the same types and operations. Compiled by nvcc and for the
 * emulated driver, as all of the device API. symwin/device.cuh explains memory order.
 */
#ifndef SYMWIN_REDUCE_CUH
#define SYMWIN_REDUCE_CUH

#include "symwin/copy.cuh"
#include "symwin/float.h"
#include "symwin/team.cuh"

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* The type of integer sums and products: unsigned and at least as wide as int, so that they wrap
 * and are not promoted to a signed type that overflows. */
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

/* Combines all accumulators of a word. The last parameter serves operations that are chosen at run
 * time. */
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

struct symwin_op_sum : sw_op_of<symwin_op_sum> {
    enum { averages = 1, divides = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        typedef typename sw_wrap<A>::type W;
        return (A)((W)a + (W)b);
    }
};

/* The sum; the complete sum is divided by the number of ranks. */
struct symwin_op_avg : symwin_op_sum {
    enum { divides = 1 };
};

struct symwin_op_prod : sw_op_of<symwin_op_prod> {
    enum { averages = 0, divides = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        typedef typename sw_wrap<A>::type W;
        return (A)((W)a * (W)b);
    }
};

struct symwin_op_min : sw_op_of<symwin_op_min> {
    enum { averages = 0, divides = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        return b < a || sw_is_nan(a) ? b : a;
    }
};

struct symwin_op_max : sw_op_of<symwin_op_max> {
    enum { averages = 0, divides = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        return b > a || sw_is_nan(a) ? b : a;
    }
};

/* The divisor has the accumulator's type, or int if that type may be too small for a rank count. */
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

/* An integer, or a float that is its own accumulator type. */
template <typename T, typename Bits>
struct sw_type_plain {
    typedef T acc;
    /* spares: all ones is a NaN, which another NaN can replace */
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

typedef sw_type_plain<double, uint64_t> symwin_type_f64;
typedef sw_type_plain<float, uint32_t> symwin_type_f32;
typedef sw_type_plain<int8_t, uint8_t> symwin_type_i8;
typedef sw_type_plain<uint8_t, uint8_t> symwin_type_u8;
typedef sw_type_plain<int32_t, uint32_t> symwin_type_i32;
typedef sw_type_plain<uint32_t, uint32_t> symwin_type_u32;
typedef sw_type_plain<int64_t, uint64_t> symwin_type_i64;
typedef sw_type_plain<uint64_t, uint64_t> symwin_type_u64;

/* 32 bits of a small type: the hardware converts them without splitting a word. */
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

typedef sw_type_small<sw_some_f16> symwin_type_f16;
typedef sw_type_small<sw_some_bf16> symwin_type_bf16;
typedef sw_type_small<sw_some_e4m3> symwin_type_e4m3;
typedef sw_type_small<sw_some_e5m2> symwin_type_e5m2;

/* ---- a reduction of eight bytes -------------------------------------------------------------- */

/* The argument `op` serves operations that are chosen at run time, as one of the library's is. */
template <typename T, typename O>
struct symwin_accumulator {
    enum { bytes = T::bytes /* of an element */, spares = T::spares };
    typename T::acc sum[T::per];

    SYMWIN_MEMBER void first(uint64_t word)
    {
        T::unpack(word, sum);
    }

    SYMWIN_MEMBER void add(uint64_t word, uint32_t op = 0)
    {
        typename T::acc operand[T::per];

        T::unpack(word, operand);
        O::template combine_all<T::per>(sum, operand, op);
    }

    SYMWIN_MEMBER uint64_t result(int32_t count, bool divide = O::divides != 0)
    {
        if (divide) {
            SYMWIN_UNROLL
            for (int i = 0; i < T::per; i++)
                sum[i] = sw_divide(sum[i], count);
        }
        return T::pack(sum);
    }
};

/* ---- a message ------------------------------------------------------------------------------- */

/* Reduces one element at `offset` of all ranks of the team, in the team's order. */
template <typename T, typename O>
SYMWIN_DEVICE uint64_t symwin_reduce_element(const symwin_team &team, uint64_t offset)
{
    typedef sw_unit<(uint32_t)T::bytes> unit;
    symwin_accumulator<T, O> sum;

    sum.first(unit::load(symwin_peer_address(team.peers, symwin_team_rank(team, 0), offset)));
    SYMWIN_NO_UNROLL
    for (int32_t i = 1; i < team.count; i++)
        sum.add(unit::load(symwin_peer_address(team.peers, symwin_team_rank(team, i), offset)));
    return sum.result(team.count);
}

/* Reduces U vectors, `step` bytes apart. The next rank's loads are in flight while one rank's are
 * added. */
template <typename T, typename O, int U>
SYMWIN_DEVICE void sw_reduce_vectors(const symwin_team &team, uint64_t to, uint64_t offset,
                                     uint64_t step)
{
    symwin_accumulator<T, O> lo[U] = {}, hi[U] = {};
    symwin_v16 now[U], next[U];

    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        next[u] = symwin_load_v16(symwin_peer_address(team.peers, symwin_team_rank(team, 0),
                                                      offset + (uint64_t)u * step));
    SYMWIN_NO_UNROLL
    for (int32_t i = 0; i < team.count; i++) {
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            now[u] = next[u];
        if (i + 1 < team.count) {
            SYMWIN_UNROLL
            for (int u = 0; u < U; u++)
                next[u] = symwin_load_v16(symwin_peer_address(
                    team.peers, symwin_team_rank(team, i + 1), offset + (uint64_t)u * step));
        }
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++) {
            if (i == 0) {
                lo[u].first(now[u].lo);
                hi[u].first(now[u].hi);
            } else {
                lo[u].add(now[u].lo);
                hi[u].add(now[u].hi);
            }
        }
    }
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        symwin_store_v16(to + (uint64_t)u * step,
                         {lo[u].result(team.count), hi[u].result(team.count)});
}

/* How `count` elements are divided: whole vectors of 16 bytes if both addresses are equal modulo
 * 16, and single elements before (head) and behind (tail). */
struct sw_between {
    uint64_t head, vectors, tail; /* in elements, vectors, elements */
};

SYMWIN_DEVICE sw_between sw_cut_between(uint64_t to, uint64_t from, uint64_t count, uint32_t size)
{
    const uint64_t ahead = (0 - to) % 16 / size, head = ahead < count ? ahead : count;
    const uint64_t vectors = (count - head) * size / 16;

    if ((to ^ from) % 16 != 0)
        return {count, 0, 0};
    return {head, vectors, count - head - vectors * 16 / size};
}

/* Reduces `count` elements at `offset` of all ranks of the team into this rank's memory at address
 * `to`. `offset` is in the flat range; both are aligned to the element. Ranks are combined in the
 * team's order, so every rank gets the same bits. Fastest if `to` and `offset` are equal modulo 16.
 * `to` may be the address of this rank's own elements if no other rank reads them; otherwise it
 * overlaps none of them. All threads of the group call it; each does its part and waits for nobody.
 *
 * Weak accesses. The ranks' data must have been acquired before (a barrier of the team, or a wait),
 * and stays unchanged until all ranks that reduce have said that they are done. */
template <typename T, typename O>
SYMWIN_DEVICE void symwin_reduce_peers(symwin_group group, const symwin_team &team, uint64_t to,
                                       uint64_t offset, uint64_t count)
{
    enum { SIZE = T::bytes, AT_ONCE = SIZE == 1 ? 2 : 4 };
    const sw_between cut = sw_cut_between(to, offset, count, SIZE);
    const uint64_t edge = cut.head + cut.tail, step = group.count * 16;
    uint64_t v = group.index;

    SYMWIN_NO_UNROLL
    for (; v + (AT_ONCE - 1) * group.count < cut.vectors; v += AT_ONCE * group.count)
        sw_reduce_vectors<T, O, AT_ONCE>(team, to + cut.head * SIZE + v * 16,
                                         offset + cut.head * SIZE + v * 16, step);
    SYMWIN_NO_UNROLL
    for (; v < cut.vectors; v += group.count)
        sw_reduce_vectors<T, O, 1>(team, to + cut.head * SIZE + v * 16,
                                   offset + cut.head * SIZE + v * 16, step);
    SYMWIN_NO_UNROLL
    for (uint64_t e = group.index; e < edge; e += group.count) {
        const uint64_t at = e * SIZE + (e < cut.head ? 0 : cut.vectors * 16);
        typedef sw_unit<SIZE> unit;

        unit::store(to + at, (typename unit::type)symwin_reduce_element<T, O>(team, offset + at));
    }
}

#endif
