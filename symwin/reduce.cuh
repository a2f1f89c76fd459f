/* Reductions over the memory of all ranks of a team: sum, product, minimum, maximum and average of twelve types.
 *
 *   symwin_type_<name>   f64 f32 f16 bf16 e4m3 e5m2 i8 u8 i32 u32 i64 u64: takes eight bytes of memory apart into `per`
 *                        accumulators and puts them together again
 *   symwin_op_<name>     sum prod min max avg: combines two accumulators
 *   symwin_accumulator   one of each: eight bytes, which are half of a vector access or, with the upper bytes zero, a single
 *                        element
 *   symwin_reduce()      a message of a group's, from all ranks of a team
 *
 * Arithmetic: f16, bf16 and fp8 in f32, everything else in its own type; integers wrap modulo their
 * width. An average divides the sum in the accumulator, so it rounds once. Of two equal values
 * (zeros of either sign) min and max keep the first operand, the lower rank's; of a NaN and a
 * number the number. Written out, not fminf(): the same bits from every compiler. Infinities of
 * e5m2 saturate like everything else that is stored as fp8.
 *
 * The library's own kernels are made of the same types and operations. Like all of the device API this is compiled by nvcc and
 * for the emulated driver. symwin/device.cuh says what memory order means.
 */
#ifndef SYMWIN_REDUCE_CUH
#define SYMWIN_REDUCE_CUH

#include "symwin/copy.cuh"
#include "symwin/float.h"
#include "symwin/team.cuh"

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

struct symwin_op_sum : sw_op_of<symwin_op_sum> {
    enum { averages = 1, divides = 0 };
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        typedef typename sw_wrap<A>::type W;
        return (A)((W)a + (W)b);
    }
};

/* The sum, divided by the number of ranks when it is complete. */
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

typedef sw_type_plain<double, uint64_t> symwin_type_f64;
typedef sw_type_plain<float, uint32_t> symwin_type_f32;
typedef sw_type_plain<int8_t, uint8_t> symwin_type_i8;
typedef sw_type_plain<uint8_t, uint8_t> symwin_type_u8;
typedef sw_type_plain<int32_t, uint32_t> symwin_type_i32;
typedef sw_type_plain<uint32_t, uint32_t> symwin_type_u32;
typedef sw_type_plain<int64_t, uint64_t> symwin_type_i64;
typedef sw_type_plain<uint64_t, uint64_t> symwin_type_u64;

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

typedef sw_type_small<sw_some_f16> symwin_type_f16;
typedef sw_type_small<sw_some_bf16> symwin_type_bf16;
typedef sw_type_small<sw_some_e4m3> symwin_type_e4m3;
typedef sw_type_small<sw_some_e5m2> symwin_type_e5m2;

/* ---- a reduction of eight bytes -------------------------------------------------------------- */

/* `op` is for operations that are several (the library's kernels have one). */
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

/* One element at `offset` of all ranks of the team, combined in the team's order. */
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

/* Combines U vectors, `step` bytes apart; a rank's loads are under way while the one before is added. */
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

/* How a message of `count` elements lies between two places: vectors of 16 bytes, where both have the same rest by 16, and
 * elements before and behind them. */
struct sw_between {
    uint64_t head, vectors, tail; /* elements, vectors, elements */
};

SYMWIN_DEVICE sw_between sw_cut_between(uint64_t to, uint64_t from, uint64_t count, uint32_t size)
{
    const uint64_t ahead = (0 - to) % 16 / size, head = ahead < count ? ahead : count;
    const uint64_t vectors = (count - head) * size / 16;

    if ((to ^ from) % 16 != 0)
        return {count, 0, 0};
    return {head, vectors, count - head - vectors * 16 / size};
}

/* Reduces `count` elements at `offset` (in the flat range, aligned to the element) of all ranks of the team into this rank's
 * memory at `to`, aligned to the element: in the team's order, so that every rank that does it gets the same bits; quickest
 * where `to` and `offset` have the same rest by 16. `to` may be where this rank's own elements are, if no other rank reads
 * them; else it overlaps none of them. By all threads of the group, each of which does its part and waits for nobody.
 *
 * Weak accesses: what the ranks have put there must have been acquired before (a barrier of the team, or a wait), and nobody
 * changes it until all that reduce have said that they are done. */
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
