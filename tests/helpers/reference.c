#include "reference.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "symwin/float.h"

size_t reference_bytes(symwin_type type)
{
    switch (type) {
    case SYMWIN_F64:
    case SYMWIN_I64:
    case SYMWIN_U64:
        return 8;
    case SYMWIN_F32:
    case SYMWIN_I32:
    case SYMWIN_U32:
        return 4;
    case SYMWIN_F16:
    case SYMWIN_BF16:
        return 2;
    case SYMWIN_F8E4M3:
    case SYMWIN_F8E5M2:
    case SYMWIN_I8:
    case SYMWIN_U8:
        return 1;
    }
    return 0;
}

/* ---- one element, as bits and as a value ----------------------------------------------------- */

enum kind { KIND_F64, KIND_F32, KIND_SIGNED, KIND_UNSIGNED };

/* What the element is reduced as: F32 for all floats but f64. */
static enum kind kind_of(symwin_type type)
{
    switch (type) {
    case SYMWIN_F64:
        return KIND_F64;
    case SYMWIN_I8:
    case SYMWIN_I32:
    case SYMWIN_I64:
        return KIND_SIGNED;
    case SYMWIN_U8:
    case SYMWIN_U32:
    case SYMWIN_U64:
        return KIND_UNSIGNED;
    default:
        return KIND_F32;
    }
}

static uint64_t bits_at(symwin_type type, const void *data, size_t i)
{
    const char *at = (const char *)data + i * reference_bytes(type);
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;

    switch (reference_bytes(type)) {
    case 8:
        memcpy(&u64, at, 8);
        return u64;
    case 4:
        memcpy(&u32, at, 4);
        return u32;
    case 2:
        memcpy(&u16, at, 2);
        return u16;
    default:
        return *(const unsigned char *)at;
    }
}

static void bits_put(symwin_type type, void *data, size_t i, uint64_t bits)
{
    char *at = (char *)data + i * reference_bytes(type);
    const uint32_t u32 = (uint32_t)bits;
    const uint16_t u16 = (uint16_t)bits;

    switch (reference_bytes(type)) {
    case 8:
        memcpy(at, &bits, 8);
        break;
    case 4:
        memcpy(at, &u32, 4);
        break;
    case 2:
        memcpy(at, &u16, 2);
        break;
    default:
        *(unsigned char *)at = (unsigned char)bits;
    }
}

static float f32_of(symwin_type type, uint64_t bits)
{
    switch (type) {
    case SYMWIN_F16:
        return sw_f32_from_f16((uint16_t)bits);
    case SYMWIN_BF16:
        return sw_f32_from_bf16((uint16_t)bits);
    case SYMWIN_F8E4M3:
        return sw_f32_from_e4m3((uint8_t)bits);
    case SYMWIN_F8E5M2:
        return sw_f32_from_e5m2((uint8_t)bits);
    default:
        return sw_f32_of_bits((uint32_t)bits);
    }
}

static uint64_t f32_to(symwin_type type, float value)
{
    switch (type) {
    case SYMWIN_F16:
        return sw_f16_from_f32(value);
    case SYMWIN_BF16:
        return sw_bf16_from_f32(value);
    case SYMWIN_F8E4M3:
        return sw_e4m3_from_f32(value);
    case SYMWIN_F8E5M2:
        return sw_e5m2_from_f32(value);
    default:
        return sw_f32_bits(value);
    }
}

/* Sign-extends an integer of the type's width; all integers are reduced as 64 bits. */
static int64_t signed_of(symwin_type type, uint64_t bits)
{
    const unsigned unused = 64 - 8 * (unsigned)reference_bytes(type);

    return (int64_t)(bits << unused) >> unused;
}

/* ---- the reduction --------------------------------------------------------------------------- */

static double combine_f64(symwin_op op, double a, double b)
{
    switch (op) {
    case SYMWIN_PROD:
        return a * b;
    case SYMWIN_MIN:
        return b < a || isnan(a) ? b : a;
    case SYMWIN_MAX:
        return b > a || isnan(a) ? b : a;
    default:
        return a + b;
    }
}

static float combine_f32(symwin_op op, float a, float b)
{
    switch (op) {
    case SYMWIN_PROD:
        return a * b;
    case SYMWIN_MIN:
        return b < a || isnan(a) ? b : a;
    case SYMWIN_MAX:
        return b > a || isnan(a) ? b : a;
    default:
        return a + b;
    }
}

static uint64_t reduce_f64(symwin_op op, int nranks, const void *const *inputs, size_t i)
{
    double acc = sw_f64_of_bits(bits_at(SYMWIN_F64, inputs[0], i));
    int r;

    for (r = 1; r < nranks; r++)
        acc = combine_f64(op, acc, sw_f64_of_bits(bits_at(SYMWIN_F64, inputs[r], i)));
    return sw_f64_bits(op == SYMWIN_AVG ? acc / nranks : acc);
}

static uint64_t reduce_f32(symwin_type type, symwin_op op, int nranks, const void *const *inputs,
                           size_t i)
{
    float acc = f32_of(type, bits_at(type, inputs[0], i));
    int r;

    for (r = 1; r < nranks; r++)
        acc = combine_f32(op, acc, f32_of(type, bits_at(type, inputs[r], i)));
    return f32_to(type, op == SYMWIN_AVG ? acc / (float)nranks : acc);
}

static uint64_t reduce_integer(symwin_type type, symwin_op op, int nranks,
                               const void *const *inputs, size_t i)
{
    const int has_sign = kind_of(type) == KIND_SIGNED;
    const uint64_t mask = UINT64_MAX >> (64 - 8 * reference_bytes(type));
    uint64_t acc = bits_at(type, inputs[0], i);
    int r;

    for (r = 1; r < nranks; r++) {
        const uint64_t b = bits_at(type, inputs[r], i);
        const int less = has_sign ? signed_of(type, b) < signed_of(type, acc) : b < acc;

        if (op == SYMWIN_PROD)
            acc = acc * b & mask;
        else if (op == SYMWIN_MIN)
            acc = less ? b : acc;
        else if (op == SYMWIN_MAX)
            acc = less ? acc : b;
        else
            acc = (acc + b) & mask;
    }
    if (op != SYMWIN_AVG)
        return acc;
    return has_sign ? (uint64_t)(signed_of(type, acc) / nranks) : acc / (uint64_t)nranks;
}

void reference_allreduce(symwin_type type, symwin_op op, int nranks, const void *const *inputs,
                         void *out, size_t count)
{
    const enum kind kind = kind_of(type);
    size_t i;

    for (i = 0; i < count; i++) {
        uint64_t bits;

        if (kind == KIND_F64)
            bits = reduce_f64(op, nranks, inputs, i);
        else if (kind == KIND_F32)
            bits = reduce_f32(type, op, nranks, inputs, i);
        else
            bits = reduce_integer(type, op, nranks, inputs, i);
        bits_put(type, out, i, bits);
    }
}

void reference_premultiply(symwin_type type, uint64_t scalar, void *data, size_t count)
{
    const enum kind kind = kind_of(type);
    size_t i;

    for (i = 0; i < count; i++) {
        uint64_t bits = bits_at(type, data, i);

        if (kind == KIND_F64)
            bits = sw_f64_bits(sw_f64_of_bits(bits) * sw_f64_of_bits(scalar));
        else if (kind == KIND_F32)
            bits = f32_to(type, f32_of(type, bits) * f32_of(type, scalar));
        else
            bits *= scalar;
        bits_put(type, data, i, bits);
    }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* splitmix64: every (seed, rank, index) its own 64 bits. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random_bits(uint64_t seed, int rank, size_t index)
{
    return mix(mix(seed ^ (uint64_t)(unsigned)rank << 48) + index);
}

/* A finite value from 64 random bits. */
static double random_value(symwin_op op, uint64_t bits)
{
    const double sign = (bits & 1) != 0 ? -1.0 : 1.0;
    const double fraction = (double)(bits >> 12) * 0x1p-52; /* [0, 1) */
    const int exponent = (int)(bits >> 1 & 7) - 6;          /* -6 .. 1 */
    const unsigned special = bits >> 4 & 63;

    if (special == 0)
        return sign * 0.0;
    if (op == SYMWIN_PROD)
        return sign * (0.75 + 0.625 * fraction);
    if (special == 1)
        return sign * ldexp(1.0 + fraction, -16); /* subnormal in f16 and fp8 */
    return sign * ldexp(1.0 + fraction, exponent);
}

void reference_fill(symwin_type type, symwin_op op, uint64_t seed, int rank, size_t first,
                    size_t count, void *out)
{
    const enum kind kind = kind_of(type);
    size_t i;

    for (i = 0; i < count; i++) {
        uint64_t bits = random_bits(seed, rank, first + i);

        if (kind == KIND_F64)
            bits = sw_f64_bits(random_value(op, bits));
        else if (kind == KIND_F32)
            bits = f32_to(type, (float)random_value(op, bits));
        bits_put(type, out, i, bits);
    }
}

uint64_t reference_scalar(symwin_type type, uint64_t seed, int rank)
{
    const uint64_t bits = random_bits(~seed, rank, 0);
    const double value = ((bits & 1) != 0 ? -1.0 : 1.0) *
                         (0.5 + 1.5 * (double)(bits >> 12) * 0x1p-52);

    if (kind_of(type) == KIND_F64)
        return sw_f64_bits(value);
    if (kind_of(type) == KIND_F32)
        return f32_to(type, (float)value);
    return bits & UINT64_MAX >> (64 - 8 * reference_bytes(type));
}

void reference_fill_wild(symwin_type type, uint64_t seed, int rank, size_t first, size_t count,
                         void *out)
{
    size_t i;

    for (i = 0; i < count; i++)
        bits_put(type, out, i, random_bits(seed, rank, first + i));
}

void reference_fill_whole(symwin_type type, unsigned seed, int rank, size_t first, size_t count,
                          void *to)
{
    unsigned char *out = to;
    size_t i;

    for (i = 0; i < count; i++) {
        const int n = (int)(((first + i) * 7 + (size_t)rank * 13 + seed) % 17) - 8;
        const float f = (float)n;
        const double d = n;
        const uint16_t h = sw_f16_from_f32(f);
        const uint16_t b = sw_bf16_from_f32(f);

        switch (type) {
        case SYMWIN_F64:
            memcpy(out + i * 8, &d, 8);
            break;
        case SYMWIN_F32:
            memcpy(out + i * 4, &f, 4);
            break;
        case SYMWIN_F16:
            memcpy(out + i * 2, &h, 2);
            break;
        case SYMWIN_BF16:
            memcpy(out + i * 2, &b, 2);
            break;
        default:
            break;
        }
    }
}

/* ---- comparison ------------------------------------------------------------------------------ */

static int is_nan(symwin_type type, uint64_t bits)
{
    switch (kind_of(type)) {
    case KIND_F64:
        return isnan(sw_f64_of_bits(bits));
    case KIND_F32:
        return isnan(f32_of(type, bits));
    default:
        return 0;
    }
}

int64_t reference_compare(symwin_type type, const void *got, const void *want, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++) {
        const uint64_t a = bits_at(type, got, i), b = bits_at(type, want, i);

        if (a != b && !(is_nan(type, a) && is_nan(type, b)))
            return (int64_t)i;
    }
    return -1;
}

/* Floats as integers in the order of their values, neighbours one apart; both zeros are 0. */
static int64_t rank_of_float(symwin_type type, uint64_t bits)
{
    const uint64_t sign = (uint64_t)1 << (8 * reference_bytes(type) - 1);

    return (bits & sign) != 0 ? -(int64_t)(bits & ~sign) : (int64_t)bits;
}

int64_t reference_compare_ulps(symwin_type type, const void *got, const void *want, size_t count,
                               unsigned ulps)
{
    size_t i;

    if (kind_of(type) == KIND_SIGNED || kind_of(type) == KIND_UNSIGNED)
        return reference_compare(type, got, want, count);
    for (i = 0; i < count; i++) {
        const uint64_t a = bits_at(type, got, i), b = bits_at(type, want, i);
        const int64_t ra = rank_of_float(type, a), rb = rank_of_float(type, b);
        const uint64_t apart = ra > rb ? (uint64_t)ra - (uint64_t)rb : (uint64_t)rb - (uint64_t)ra;

        if (is_nan(type, a) != is_nan(type, b) || (!is_nan(type, a) && apart > ulps))
            return (int64_t)i;
    }
    return -1;
}

const char *reference_print(symwin_type type, const void *data, size_t index, char *text,
                            size_t text_bytes)
{
    const uint64_t bits = bits_at(type, data, index);

    switch (kind_of(type)) {
    case KIND_F64:
        snprintf(text, text_bytes, "%.17g (0x%" PRIx64 ")", sw_f64_of_bits(bits), bits);
        break;
    case KIND_F32:
        snprintf(text, text_bytes, "%.9g (0x%" PRIx64 ")", (double)f32_of(type, bits), bits);
        break;
    case KIND_SIGNED:
        snprintf(text, text_bytes, "%" PRId64, signed_of(type, bits));
        break;
    case KIND_UNSIGNED:
        snprintf(text, text_bytes, "%" PRIu64, bits);
        break;
    }
    return text;
}
