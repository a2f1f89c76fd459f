/* The data of the storm. Inputs are computed from the call's key, so each rank knows those of all.
 * Inputs of reductions are small whole numbers, chosen so that the result and all sums on the way
 * are exact in the type, in any order. Data that is only moved is random bits. */
#include <string.h>

#include "storm.h"

const size_t widths[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* ---- random numbers: splitmix64 ---- */

uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t roll(struct dice *dice)
{
    dice->state += 0x9e3779b97f4a7c15u;
    return mix(dice->state);
}

int draw(struct dice *dice, int n)
{
    return (int)(roll(dice) % (uint64_t)n);
}

static uint64_t hash(uint64_t key, int rank, size_t i)
{
    return mix((key ^ ((uint64_t)(unsigned)rank + 1) * 0xd1342543de82ef95u) +
               (uint64_t)i * 0x9e3779b97f4a7c15u);
}

/* ---- types ---- */

/* The whole numbers up to `limit` are exact. */
static const struct {
    int is_signed, exponent, mantissa; /* exponent 0: an integer */
    int64_t limit;
} types[ncclNumTypes] = {
    [ncclInt8] = {1, 0, 0, 127},
    [ncclUint8] = {0, 0, 0, 255},
    [ncclInt32] = {1, 0, 0, 0x7fffffff},
    [ncclUint32] = {0, 0, 0, 0xffffffff},
    [ncclInt64] = {1, 0, 0, (int64_t)1 << 50},
    [ncclUint64] = {0, 0, 0, (int64_t)1 << 50},
    [ncclFloat16] = {1, 5, 10, 2048},
    [ncclFloat32] = {1, 8, 23, 1 << 24},
    [ncclFloat64] = {1, 11, 52, (int64_t)1 << 50},
    [ncclBfloat16] = {1, 8, 7, 256},
    [ncclFloat8e4m3] = {1, 4, 3, 16},
    [ncclFloat8e5m2] = {1, 5, 2, 8},
};

/* The quotient is exact in the type. */
static void encode(ncclDataType_t type, int64_t number, int by, char *to)
{
    const int e = types[type].exponent, m = types[type].mantissa;
    const double value = (double)number / by;
    uint64_t bits, result;

    if (e == 0) {
        number /= by;
        memcpy(to, &number, widths[type]);
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    result = bits >> 63 << (e + m);
    if (value != 0) {
        result |= ((bits >> 52 & 0x7ff) - 1023 + ((1u << (e - 1)) - 1)) << m;
        result |= (bits & (((uint64_t)1 << 52) - 1)) >> (52 - m);
    }
    memcpy(to, &result, widths[type]);
}

/* ---- numbers ---- */

/* The numbers of a call: unit times -span to span, of at most `most` ranks; the others have the
 * neutral one. */
struct range {
    int64_t unit, span, most; /* span 0: any 64 bits */
    int scalars;              /* 1 to this many */
};

static int is_power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

static struct range range_of(const struct call *call)
{
    const int64_t limit = types[call->type].limit, n = call->ranks;
    struct range range = {1, 1, n, 1};

    if (call->op == ncclMax || call->op == ncclMin || call->numbers) {
        range.span = widths[call->type] == 8 && types[call->type].exponent == 0 ? 0 : limit;
        return range;
    }
    if (call->op == ncclProd) {
        range.most = n < 4 ? n : 4;
        return range;
    }
    if (call->op == PREMUL)
        range.scalars = limit < 256 ? 2 : 3;
    /* A server may multiply by 1/n: that is exact, or rounded to what is exact. */
    if (call->op == ncclAvg && (types[call->type].exponent == 0 || !is_power_of_two((int)n)))
        range.unit = n;
    if (widths[call->type] == 1 && types[call->type].exponent > 0 && range.unit > 1) {
        range.most = n < 8 ? 2 : 0; /* 2 x 7 has three bits */
        return range;
    }
    range.span = limit / (range.unit * range.scalars * n);
    if (range.span < 1) {
        range.span = 1;
        range.most = limit / (range.unit * range.scalars);
    }
    return range;
}

static int64_t number(const struct call *call, const struct range *range, int rank, size_t i)
{
    const int is_signed = types[call->type].is_signed;
    const uint64_t h = hash(call->key, rank, i);
    const int counts = range->most >= call->ranks ||
                       ((uint64_t)rank + hash(call->key, MOST_RANKS, i)) % (uint64_t)call->ranks <
                           (uint64_t)range->most;

    if (call->op == ncclProd && !call->numbers)
        return counts && h % 4 == 0 ? 2 : is_signed && h % 4 == 1 ? -1 : 1;
    if (!counts)
        return 0;
    if (range->span == 0)
        return (int64_t)h;
    return range->unit * (is_signed ? (int64_t)(h % (2 * (uint64_t)range->span + 1)) - range->span
                                    : (int64_t)(h % ((uint64_t)range->span + 1)));
}

static int64_t scalar(const struct call *call, const struct range *range, int rank)
{
    return 1 + (int64_t)(hash(call->draws, rank, 1) % (uint64_t)range->scalars);
}

void write_scalar(const struct call *call, char *to)
{
    const struct range range = range_of(call);

    encode(call->type, scalar(call, &range, call->me), 1, to);
}

static int64_t join(const struct call *call, int64_t a, int64_t b)
{
    const int less = call->type == ncclUint64 ? (uint64_t)a < (uint64_t)b : a < b;

    switch (call->op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return less ? b : a;
    case ncclMin:
        return less ? a : b;
    default:
        return a + b;
    }
}

/* ---- calls ---- */

/* Parts for each rank, in the input and the output. */
static const struct {
    int in_parts, out_parts, reduces;
} shapes[COLLECTIVES + 1] = {
    [ALL_REDUCE] = {0, 0, 1}, [REDUCE_SCATTER] = {1, 0, 1}, [REDUCE] = {0, 0, 1},
    [ALL_GATHER] = {0, 1, 0}, [ALL_TO_ALL] = {1, 1, 0},     [BROADCAST] = {0, 0, 0},
    [BCAST] = {0, 0, 0},      [GATHER] = {0, 1, 0},         [SCATTER] = {1, 0, 0},
    [MESSAGE] = {0, 0, 0},
};

size_t in_elements(const struct call *call)
{
    return call->count * (shapes[call->kind].in_parts ? (size_t)call->ranks : 1);
}

size_t out_elements(const struct call *call)
{
    return call->count * (shapes[call->kind].out_parts ? (size_t)call->ranks : 1);
}

int takes_in(const struct call *call)
{
    if (call->kind == BROADCAST || call->kind == BCAST || call->kind == SCATTER ||
        call->kind == MESSAGE)
        return call->me == call->root;
    return 1;
}

int gives_out(const struct call *call)
{
    if (call->kind == REDUCE || call->kind == GATHER)
        return call->me == call->root;
    return call->kind != MESSAGE || call->me == call->peer;
}

static void write_part(const struct call *call, int rank, size_t first, size_t count, char *to)
{
    const size_t width = widths[call->type];
    const struct range range = range_of(call);

    if (call->before != NULL) {
        const struct call *before = call->before;
        const char *from = before->memory->shadow + (before->out - before->memory->base);

        memcpy(to, from + first * width, count * width);
        return;
    }
    for (size_t i = first; i < first + count; i++, to += width) {
        const uint64_t bits = hash(call->key, rank, i);

        if (shapes[call->kind].reduces || call->numbers)
            encode(call->type, number(call, &range, rank, i), 1, to);
        else
            memcpy(to, &bits, width);
    }
}

void write_input(const struct call *call, char *to)
{
    write_part(call, call->me, 0, in_elements(call), to);
}

static void write_sums(const struct call *call, size_t first, char *to)
{
    const struct range range = range_of(call);
    int64_t scalars[MOST_RANKS];

    for (int r = 0; r < call->ranks; r++)
        scalars[r] = call->op == PREMUL ? scalar(call, &range, r) : 1;
    for (size_t i = first; i < first + call->count; i++, to += widths[call->type]) {
        int64_t sum = scalars[0] * number(call, &range, 0, i);

        for (int r = 1; r < call->ranks; r++)
            sum = join(call, sum, scalars[r] * number(call, &range, r, i));
        encode(call->type, sum, call->op == ncclAvg ? call->ranks : 1, to);
    }
}

/* A reduction of another call's output takes the greatest or least of equal ones. */
void write_expected(const struct call *call, char *to)
{
    const size_t count = call->count, part = count * widths[call->type];
    const size_t mine = (size_t)call->me * count;
    const int sums = shapes[call->kind].reduces && call->before == NULL;

    switch (call->kind) {
    case ALL_REDUCE:
    case REDUCE:
        if (sums)
            write_sums(call, 0, to);
        else
            write_part(call, 0, 0, count, to);
        break;
    case REDUCE_SCATTER:
        if (sums)
            write_sums(call, mine, to);
        else
            write_part(call, 0, mine, count, to);
        break;
    case ALL_GATHER:
    case GATHER:
        for (int r = 0; r < call->ranks; r++)
            write_part(call, r, 0, count, to + (size_t)r * part);
        break;
    case ALL_TO_ALL:
        for (int r = 0; r < call->ranks; r++)
            write_part(call, r, mine, count, to + (size_t)r * part);
        break;
    case SCATTER:
        write_part(call, call->root, mine, count, to);
        break;
    default:
        write_part(call, call->root, 0, count, to);
    }
}
