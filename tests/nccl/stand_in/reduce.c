/* The stand-in's types and operations. Integers wrap; floats are added in rank order, in float, in
 * double for ncclFloat64, and rounded to their type at the end. */
#include <math.h>
#include <string.h>

#include "inside.h"

/* A small float: its exponent and mantissa in bits, the largest finite one, and whether it has
 * infinities. Without them it saturates, as CUDA's conversions do. */
struct format {
    int exponent, mantissa;
    unsigned largest;
    int infinities;
};

static const struct {
    size_t width;
    int is_signed; /* of integers */
    struct format format;
} types[ncclNumTypes] = {
    [ncclInt8] = {1, 1, {0}},
    [ncclUint8] = {1, 0, {0}},
    [ncclInt32] = {4, 1, {0}},
    [ncclUint32] = {4, 0, {0}},
    [ncclInt64] = {8, 1, {0}},
    [ncclUint64] = {8, 0, {0}},
    [ncclFloat16] = {2, 0, {5, 10, 0x7bff, 1}},
    [ncclFloat32] = {4, 0, {0}},
    [ncclFloat64] = {8, 0, {0}},
    [ncclBfloat16] = {2, 0, {8, 7, 0x7f7f, 1}},
    [ncclFloat8e4m3] = {1, 0, {4, 3, 0x7e, 0}},
    [ncclFloat8e5m2] = {1, 0, {5, 2, 0x7b, 0}},
};

size_t type_width(ncclDataType_t type)
{
    return types[type].width;
}

/* ---- small floats ---- */

static double decode(ncclDataType_t type, unsigned bits)
{
    const struct format *f = &types[type].format;
    const int bias = (1 << (f->exponent - 1)) - 1;
    const unsigned size = bits & ((1u << (f->exponent + f->mantissa)) - 1);
    const unsigned mantissa = size & ((1u << f->mantissa) - 1);
    const int exponent = (int)(size >> f->mantissa);
    double value;

    if (size > f->largest) /* e5m2 has infinities too, but no sum becomes one */
        value = type != ncclFloat8e4m3 && mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - f->mantissa);
    else
        value = ldexp(mantissa | 1u << f->mantissa, exponent - bias - f->mantissa);
    return size == bits ? value : -value;
}

static unsigned encode(ncclDataType_t type, double value)
{
    const struct format *f = &types[type].format;
    const int bias = (1 << (f->exponent - 1)) - 1;
    const unsigned sign = signbit(value) ? 1u << (f->exponent + f->mantissa) : 0;
    const double size = fabs(value);
    unsigned bits;
    int exponent;

    if (isnan(value))
        return sign | ((1u << (f->exponent + f->mantissa)) - 1);
    if (size == 0)
        return sign;
    if (isinf(value))
        return sign | (f->largest + (unsigned)f->infinities);
    exponent = ilogb(size) < 1 - bias ? 1 - bias : ilogb(size);
    if (exponent > bias + 1)
        return sign | (f->largest + (unsigned)f->infinities);
    bits = ((unsigned)(exponent + bias - 1) << f->mantissa) +
           (unsigned)nearbyint(ldexp(size, f->mantissa - exponent));
    if (bits > f->largest)
        bits = f->largest + (unsigned)f->infinities;
    return sign | bits;
}

/* ---- elements ---- */

static int is_float(ncclDataType_t type)
{
    return type == ncclFloat32 || type == ncclFloat64 || types[type].format.exponent > 0;
}

static double read_float(ncclDataType_t type, const char *at)
{
    double d;
    float f;
    uint16_t bits = 0;

    if (type == ncclFloat64) {
        memcpy(&d, at, sizeof d);
        return d;
    }
    if (type == ncclFloat32) {
        memcpy(&f, at, sizeof f);
        return (double)f;
    }
    memcpy(&bits, at, types[type].width);
    return decode(type, bits);
}

static void write_float(ncclDataType_t type, char *at, double value)
{
    const float f = (float)value;
    uint16_t bits;

    if (type == ncclFloat64) {
        memcpy(at, &value, sizeof value);
    } else if (type == ncclFloat32) {
        memcpy(at, &f, sizeof f);
    } else {
        bits = (uint16_t)encode(type, value);
        memcpy(at, &bits, types[type].width);
    }
}

static uint64_t read_integer(ncclDataType_t type, const char *at)
{
    const unsigned unused = 64 - 8 * (unsigned)types[type].width;
    uint64_t bits = 0;

    memcpy(&bits, at, types[type].width);
    return types[type].is_signed ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits;
}

/* ---- operations ---- */

static double join_floats(ncclRedOp_t op, double a, double b)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return b > a || isnan(b) ? b : a;
    case ncclMin:
        return b < a || isnan(b) ? b : a;
    default:
        return a + b;
    }
}

static uint64_t join_integers(ncclRedOp_t op, int is_signed, uint64_t a, uint64_t b)
{
    const int greater = is_signed ? (int64_t)b > (int64_t)a : b > a;

    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return greater ? b : a;
    case ncclMin:
        return greater ? a : b;
    default:
        return a + b;
    }
}

static void reduce_float(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t stride,
                         const char *in, char *out)
{
    double sum = read_float(type, in);

    for (int r = 1; r < ranks; r++) {
        sum = join_floats(op, sum, read_float(type, in + (size_t)r * stride));
        if (type != ncclFloat64)
            sum = (double)(float)sum;
    }
    write_float(type, out, op == ncclAvg ? sum / ranks : sum);
}

/* A word is stored at once, as a GPU does: another thread may read it meanwhile. */
static void store(char *out, uint64_t value, size_t width)
{
    if (width == sizeof(uint32_t) && (uintptr_t)out % sizeof(uint32_t) == 0)
        __atomic_store_n((uint32_t *)(void *)out, (uint32_t)value, __ATOMIC_RELEASE);
    else
        memcpy(out, &value, width);
}

static void reduce_integer(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t stride,
                           const char *in, char *out)
{
    uint64_t sum = read_integer(type, in);

    for (int r = 1; r < ranks; r++)
        sum = join_integers(op, types[type].is_signed, sum,
                            read_integer(type, in + (size_t)r * stride));
    store(out, sum, types[type].width);
    if (op == ncclAvg) {
        sum = read_integer(type, out);
        sum = types[type].is_signed ? (uint64_t)((int64_t)sum / ranks) : sum / (unsigned)ranks;
        store(out, sum, types[type].width);
    }
}

void reduce(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t count, const char *in, char *out)
{
    const size_t width = types[type].width;

    for (size_t at = 0; at < count * width; at += width)
        (is_float(type) ? reduce_float : reduce_integer)(type, op, ranks, count * width, in + at,
                                                         out + at);
}

void scale(const struct premul *premul, size_t count, const char *in, char *out)
{
    const char *by = premul->where != NULL ? premul->where : premul->value;
    const size_t width = types[premul->type].width;

    for (size_t at = 0; at < count * width; at += width) {
        if (is_float(premul->type)) {
            write_float(premul->type, out + at,
                        read_float(premul->type, in + at) * read_float(premul->type, by));
        } else {
            const uint64_t product = read_integer(premul->type, in + at) *
                                     read_integer(premul->type, by);

            memcpy(out + at, &product, width);
        }
    }
}
