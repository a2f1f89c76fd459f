/* The test data: predictable, and exact in every type for every order of the ranks.
 *
 * Element `index` of a rank's input is a small integer that depends on rank, index and seed. Let M
 * be the largest power of two such that the type has all integers up to M:
 *
 *   sum       at most M ranks have a value, each of at most M / (their number) in magnitude. So
 *             every partial sum, in any order, is an integer within [-M, M]
 *   avg       q on all ranks, except q + d and q - d on two of them. Partial sums are as above, and
 *             the result, q, is exact. If values are scaled before they are added, it is exact if
 *             the number of ranks is a power of two
 *   mulsum    as sum, of half the values: rank r's scalar is 2 if r is even, otherwise 1
 *   prod      magnitude 1 or 3 on one rank, 1 or 2 on three, 1 on the others
 *   min, max  within [-M, M]
 *
 * Signed types have values of both signs. Which rank has which value changes with the index. No
 * value is a negative zero, so results can be compared bit by bit.
 *
 * C11, C++17 and CUDA: the host, nvcc's kernels and the emulated driver's kernels make the same
 * data.
 */
#ifndef PERF_DATA_H
#define PERF_DATA_H

#include <stdint.h>

#include "symwin.h"
#include "symwin/float.h"

#define PERF_FN SW_TYPES_FN

/* Instead of a rank: the result of the all-reduce; parts of `part` elements, the first ones of
 * each rank in turn; or unequal parts, what each rank in turn has for rank `to`. */
enum { PERF_RESULT = -1, PERF_PARTS = -2, PERF_UNEQUAL = -3 };
enum { PERF_TO_ALL = -1 };

struct perf_data {
    int32_t nranks;
    int32_t type; /* symwin_type */
    int32_t op;   /* symwin_op */
    uint32_t seed;
    int32_t without; /* PERF_PARTS: a rank that has no part */
    int32_t to;      /* PERF_UNEQUAL; PERF_TO_ALL: each rank has one part, for all */
    uint32_t which;  /* PERF_UNEQUAL: which parts */
    uint64_t part;   /* PERF_PARTS; PERF_UNEQUAL: elements of a share */
    uint64_t first;  /* the index of what is called element 0, also of each part */
};

/* M, or M - 1 for integers; at most 2^20, which is enough. */
PERF_FN uint32_t perf_top(int32_t type)
{
    switch (type) {
    case SYMWIN_F16:
        return 1u << 11;
    case SYMWIN_BF16:
        return 1u << 8;
    case SYMWIN_F8E4M3:
        return 1u << 4;
    case SYMWIN_F8E5M2:
        return 1u << 3;
    case SYMWIN_I8:
        return 127;
    case SYMWIN_U8:
        return 255;
    default:
        return 1u << 20;
    }
}

PERF_FN int perf_signed(int32_t type)
{
    return type != SYMWIN_U8 && type != SYMWIN_U32 && type != SYMWIN_U64;
}

/* 32 random bits of index, rank and seed. */
PERF_FN uint32_t perf_hash(uint64_t index, int32_t rank, uint32_t seed)
{
    uint64_t x = index * 0x9e3779b97f4a7c15u +
                 (uint64_t)(uint32_t)(rank + 1) * 0xd1b54a32d192ed03u +
                 (uint64_t)seed * 0x8cb92ba72f3d8dd7u;

    x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* Maps random bits to 0 .. top. */
PERF_FN int64_t perf_upto(uint32_t random, uint32_t top)
{
    return (int64_t)((uint64_t)random * (top + UINT64_C(1)) >> 32);
}

/* Maps random bits to -top .. top, or to 0 .. top if unsigned. */
PERF_FN int64_t perf_within(uint32_t random, uint32_t top, int is_signed)
{
    return is_signed ? perf_upto(random, 2 * top) - (int64_t)top : perf_upto(random, top);
}

/* The q of avg. */
PERF_FN int64_t perf_mean(const struct perf_data *data, uint32_t common)
{
    return perf_within(common, perf_top(data->type) / (2 * (uint32_t)data->nranks),
                       perf_signed(data->type));
}

/* A rank's scalar for the pre-multiplied sum. */
PERF_FN int64_t perf_scalar(int32_t rank)
{
    return 2 - rank % 2;
}

/* common: the hash that all ranks have at this index. place: the rank's position in the order of
 * this index. */
PERF_FN int64_t perf_value(const struct perf_data *data, int32_t rank, uint64_t index,
                           uint32_t common, uint32_t place)
{
    const uint32_t top = perf_top(data->type), n = (uint32_t)data->nranks;
    const uint32_t random = perf_hash(index, rank, data->seed);
    const int is_signed = perf_signed(data->type);
    const uint32_t most = data->op == SYMWIN_PREMUL_SUM ? top / 2 : top;
    const uint32_t active = n < most ? n : most;
    int64_t value, d;

    switch (data->op) {
    case SYMWIN_SUM:
    case SYMWIN_PREMUL_SUM:
        return place < active ? perf_within(random, most / active, is_signed) : 0;
    case SYMWIN_AVG:
        value = perf_mean(data, common);
        if (n == 1 || place > 1)
            return value;
        d = perf_upto(common * 0x9e3779b1u, is_signed ? top / 2 : (uint32_t)value);
        return place == 0 ? value + d : value - d;
    case SYMWIN_PROD:
        value = 1;
        if (place < 4 && (random & 1) != 0)
            value = place == 0 ? 3 : 2;
        return is_signed && (random & 2) != 0 ? -value : value;
    default:
        return perf_within(random, top, is_signed);
    }
}

PERF_FN int64_t perf_input(const struct perf_data *data, int32_t rank, uint64_t index)
{
    const uint32_t common = perf_hash(index, -1, data->seed), n = (uint32_t)data->nranks;

    return perf_value(data, rank, index, common, ((uint32_t)rank + common % n) % n);
}

/* Reduces in a plain loop over the ranks. */
PERF_FN int64_t perf_reduced(const struct perf_data *data, uint64_t index)
{
    const uint32_t common = perf_hash(index, -1, data->seed), n = (uint32_t)data->nranks;
    uint32_t place = common % n;
    int64_t result = 0;

    if (data->op == SYMWIN_AVG)
        return perf_mean(data, common);
    for (int32_t rank = 0; rank < data->nranks; rank++) {
        const int64_t x = perf_value(data, rank, index, common, place);

        place = place + 1 < n ? place + 1 : 0;
        if (data->op == SYMWIN_PREMUL_SUM)
            result += x * perf_scalar(rank);
        else if (rank == 0)
            result = x;
        else if (data->op == SYMWIN_PROD)
            result *= x;
        else if (data->op == SYMWIN_MIN)
            result = x < result ? x : result;
        else if (data->op == SYMWIN_MAX)
            result = x > result ? x : result;
        else
            result += x;
    }
    return result;
}

/* The bits of an integer that the type represents exactly. */
PERF_FN uint64_t perf_encode(int32_t type, int64_t value)
{
    switch (type) {
    case SYMWIN_F64:
        return sw_f64_bits((double)value);
    case SYMWIN_F32:
        return sw_f32_bits((float)value);
    case SYMWIN_F16:
        return sw_f16_from_f32((float)value);
    case SYMWIN_BF16:
        return sw_bf16_from_f32((float)value);
    case SYMWIN_F8E4M3:
        return sw_e4m3_from_f32((float)value);
    case SYMWIN_F8E5M2:
        return sw_e5m2_from_f32((float)value);
    case SYMWIN_I8:
    case SYMWIN_U8:
        return (uint64_t)value & 0xff;
    case SYMWIN_I32:
    case SYMWIN_U32:
        return (uint64_t)value & 0xffffffff;
    default:
        return (uint64_t)value;
    }
}

/* Unequal parts, the first ones (`which` is 0): the shares that rank `from` has for rank `to`, and
 * as many the other way. Rank 0 has 1, 2, 3, ... of them for the ranks, and for the last of three
 * or more ranks none; rank r has the same, from its r-th on. */
PERF_FN int32_t perf_shares(int32_t nranks, int32_t from, int32_t to)
{
    return (from + to + 1) % nranks + (nranks < 3);
}

/* The elements that rank `from` has for rank `to`. Other parts than the first ones are random: none
 * in four cases, otherwise up to a share. */
PERF_FN uint64_t perf_part(const struct perf_data *data, int32_t from, int32_t to)
{
    const int32_t one = to == PERF_TO_ALL ? 0 : to;
    uint32_t random;

    if (data->which == 0)
        return data->part * (uint64_t)perf_shares(data->nranks, from, one);
    random = perf_hash((uint64_t)one, from, data->which);
    return random % 4 == 0 ? 0 : (random >> 2) % (data->part + 1);
}

/* The rank whose part is the k-th: in half of the other parts the last rank's is the first. */
PERF_FN int32_t perf_kth(const struct perf_data *data, uint32_t half, int32_t k)
{
    return (data->which & half) != 0 ? data->nranks - 1 - k : k;
}

/* Where the part for rank `to` begins in the input of rank `from`; if `to` is nranks, where the
 * last one ends. */
PERF_FN uint64_t perf_part_in(const struct perf_data *data, int32_t from, int32_t to)
{
    uint64_t before = 0;
    int32_t p;

    for (int32_t k = 0; k < data->nranks && to != PERF_TO_ALL; k++) {
        p = perf_kth(data, 1, k);
        if (p == to)
            break;
        before += perf_part(data, from, p);
    }
    return before;
}

/* The same of the part from rank `from` in the output of rank `to`. */
PERF_FN uint64_t perf_part_out(const struct perf_data *data, int32_t from, int32_t to)
{
    uint64_t before = 0;
    int32_t p;

    for (int32_t k = 0; k < data->nranks; k++) {
        p = perf_kth(data, 2, k);
        if (p == from)
            break;
        before += perf_part(data, p, to);
    }
    return before;
}

/* Finds the rank and the element of its input that is element *index of unequal parts. */
PERF_FN int32_t perf_unequal(const struct perf_data *data, uint64_t *index)
{
    int32_t rank = 0;
    uint64_t part;

    for (int32_t k = 0; k < data->nranks; k++) {
        rank = perf_kth(data, 2, k);
        part = perf_part(data, rank, data->to);
        if (*index < part)
            break;
        *index -= part;
    }
    *index += perf_part_in(data, rank, data->to);
    return rank;
}

/* The bits of an element of a rank's input, of the result (PERF_RESULT) or of parts (PERF_PARTS,
 * PERF_UNEQUAL). */
PERF_FN uint64_t perf_element(const struct perf_data *data, int32_t rank, uint64_t index)
{
    if (rank == PERF_UNEQUAL)
        rank = perf_unequal(data, &index);
    if (rank == PERF_PARTS) {
        rank = (int32_t)(index / data->part);
        rank += rank >= data->without;
        index %= data->part;
    }
    return perf_encode(data->type, rank >= 0 ? perf_input(data, rank, data->first + index)
                                             : perf_reduced(data, data->first + index));
}

#endif
