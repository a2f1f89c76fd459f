/* The example's test data, and the expected result, computed on the host.
 *
 * The input differs on every rank and at every index, and the result is exact in every type and for
 * every order of the ranks, so each byte can be compared:
 *
 *   sum   g(r) - g(r+1), plus one term that the differences leave over: they cancel around the ring
 *   avg   the same around a value q on every rank, so that the sum is nranks * q
 *   prod  1 or -1, and 2 on three ranks
 *   min, max  anything
 *
 * where g is pseudo-random between 0 and what the narrowest intermediate result allows.
 */
#include "host.h"

/* The floating-point types as (exponent bits, mantissa bits); {0, 0} are integers. */
static const struct {
    int exponent, mantissa;
} formats[] = {
    [SYMWIN_F64] = {11, 52}, [SYMWIN_F32] = {8, 23},   [SYMWIN_F16] = {5, 10},
    [SYMWIN_BF16] = {8, 7},  [SYMWIN_F8E4M3] = {4, 3}, [SYMWIN_F8E5M2] = {5, 2},
    [SYMWIN_U64] = {0, 0},
};

static int is_unsigned(symwin_type type)
{
    return type == SYMWIN_U8 || type == SYMWIN_U32 || type == SYMWIN_U64;
}

/* A problem and the ranges of its data. */
struct data {
    const struct problem *problem;
    uint32_t top; /* g is 0 .. top: sums of three are exact in the type */
    /* The q of an average is mean_low .. mean_low + mean_top. Sums of nranks of them are exact too,
     * since multicast rounds the sum before the division. */
    uint32_t mean_low;
    uint32_t mean_top;
};

static struct data sizes(const struct problem *problem)
{
    const int mantissa = formats[problem->type].mantissa;
    const int integer = 8 * (int)symwin_type_bytes(problem->type) - !is_unsigned(problem->type);
    const int bits = mantissa == 0 ? integer : mantissa + 1; /* integers below 2^bits are exact */
    const uint64_t all = (UINT64_C(1) << (bits < 32 ? bits : 32)) - 1;
    const uint32_t top = (uint32_t)(bits < 16 ? all + 1 : 65536) / 3;
    const uint64_t share = all / (2 * (uint64_t)problem->nranks);
    const uint32_t mean = share < top ? (uint32_t)share : top;

    if (problem->op == SYMWIN_AVG && is_unsigned(problem->type)) /* must not be negative */
        return (struct data){problem, mean, mean, mean};
    return (struct data){problem, top, 0, 2 * mean};
}

/* Pseudo-random in 0 .. top, a function of rank and index only. */
static int64_t g(int rank, uint64_t index, uint32_t top)
{
    uint64_t x = index * UINT64_C(0x9e3779b97f4a7c15) +
                 (uint64_t)rank * UINT64_C(0xd1b54a32d192ed03);

    x = (x ^ (x >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (int64_t)(((x >> 32) * (top + UINT64_C(1))) >> 32);
}

/* Element `index` of a rank's input. */
static int64_t input(const struct data *data, int rank, uint64_t index)
{
    const symwin_type type = data->problem->type;
    const int n = data->problem->nranks;
    const uint32_t top = data->top;
    const int64_t difference = g(rank, index, top) - g((rank + 1) % n, index, top);

    switch (data->problem->op) {
    case SYMWIN_SUM:
        return difference + (index % (unsigned)n == (unsigned)rank ? g(n, index, top) : 0);
    case SYMWIN_AVG:
        return difference + data->mean_low + g(n, index, data->mean_top);
    case SYMWIN_PROD: {
        const int64_t sign = is_unsigned(type) || difference >= 0 ? 1 : -1;
        return sign * (((uint64_t)rank + index) % (unsigned)n < 3 ? 2 : 1);
    }
    default:
        return is_unsigned(type) ? difference + top : difference;
    }
}

/* The expected result: a plain loop over the ranks. */
static int64_t reduced(const struct data *data, uint64_t index)
{
    const struct problem *problem = data->problem;
    int64_t result = input(data, 0, index);

    for (int rank = 1; rank < problem->nranks; rank++) {
        const int64_t x = input(data, rank, index);

        switch (problem->op) {
        case SYMWIN_PROD:
            result *= x;
            break;
        case SYMWIN_MIN:
            result = x < result ? x : result;
            break;
        case SYMWIN_MAX:
            result = x > result ? x : result;
            break;
        default:
            result += x;
        }
    }
    return problem->op == SYMWIN_AVG ? result / problem->nranks : result;
}

/* The bits of an integer in a type that represents it exactly. */
static uint64_t encode(symwin_type type, int64_t value)
{
    const int mantissa = formats[type].mantissa;
    const uint64_t magnitude = value < 0 ? (uint64_t)-value : (uint64_t)value;
    int exponent = 0, bias;
    uint64_t fraction;

    if (mantissa == 0 || value == 0)
        return (uint64_t)value;
    while (magnitude >> exponent > 1)
        exponent++;
    bias = (1 << (formats[type].exponent - 1)) - 1;
    fraction = (exponent < mantissa ? magnitude << (mantissa - exponent)
                                    : magnitude >> (exponent - mantissa)) -
               (UINT64_C(1) << mantissa);
    return (uint64_t)(value < 0) << (formats[type].exponent + mantissa) |
           (uint64_t)(exponent + bias) << mantissa | fraction;
}

void host_fill(const struct problem *problem, int rank, uint64_t first, size_t count, void *to)
{
    const size_t bytes = symwin_type_bytes(problem->type);
    const struct data data = sizes(problem);

    for (size_t i = 0; i < count; i++) {
        const int64_t value = rank == HOST_RESULT ? reduced(&data, first + i)
                                                  : input(&data, rank, first + i);
        const uint64_t bits = encode(problem->type, value);

        switch (bytes) {
        case 1:
            ((uint8_t *)to)[i] = (uint8_t)bits;
            break;
        case 2:
            ((uint16_t *)to)[i] = (uint16_t)bits;
            break;
        case 4:
            ((uint32_t *)to)[i] = (uint32_t)bits;
            break;
        default:
            ((uint64_t *)to)[i] = bits;
        }
    }
}
