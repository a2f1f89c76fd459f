/* The conversions of symwin/float.h against a computed value of every code of a type: all codes,
 * every midpoint between two neighbours, and random values. */
#include <math.h>
#include <stdint.h>

#include "symwin/float.h"
#include "tap.h"

/* A type by its definition, and the functions under test. */
struct small_type {
    const char *name;
    int exponent_bits, mantissa_bits;
    int has_infinity; /* else the top exponent holds numbers; all mantissa bits set is NaN */
    int saturates;
    unsigned (*narrow)(float value);
    float (*widen)(unsigned code);
};

static unsigned narrow_f16(float value)
{
    return sw_f16_from_f32(value);
}

static unsigned narrow_bf16(float value)
{
    return sw_bf16_from_f32(value);
}

static unsigned narrow_e4m3(float value)
{
    return sw_e4m3_from_f32(value);
}

static unsigned narrow_e5m2(float value)
{
    return sw_e5m2_from_f32(value);
}

static float widen_f16(unsigned code)
{
    return sw_f32_from_f16((uint16_t)code);
}

static float widen_bf16(unsigned code)
{
    return sw_f32_from_bf16((uint16_t)code);
}

static float widen_e4m3(unsigned code)
{
    return sw_f32_from_e4m3((uint8_t)code);
}

static float widen_e5m2(unsigned code)
{
    return sw_f32_from_e5m2((uint8_t)code);
}

static const struct small_type types[] = {
    {"f16", 5, 10, 1, 0, narrow_f16, widen_f16},
    {"bf16", 8, 7, 1, 0, narrow_bf16, widen_bf16},
    {"e4m3", 4, 3, 0, 1, narrow_e4m3, widen_e4m3},
    {"e5m2", 5, 2, 1, 1, narrow_e5m2, widen_e5m2},
};

static unsigned sign_of(const struct small_type *t)
{
    return 1u << (t->exponent_bits + t->mantissa_bits);
}

/* The largest code of a finite positive value. */
static unsigned largest_of(const struct small_type *t)
{
    const unsigned top = sign_of(t) - 1;

    return t->has_infinity ? top - (1u << t->mantissa_bits) : top - 1;
}

/* The value of a code without sign. One code past the largest finite one is valid too, as if the
 * exponent range went on. */
static double worth(const struct small_type *t, unsigned code)
{
    const int bias = (1 << (t->exponent_bits - 1)) - 1;
    const int exponent = (int)(code >> t->mantissa_bits);
    const double mantissa = (double)(code & ((1u << t->mantissa_bits) - 1));
    const double unit = ldexp(1.0, -t->mantissa_bits);

    return exponent == 0 ? ldexp(mantissa * unit, 1 - bias)
                         : ldexp(1.0 + mantissa * unit, exponent - bias);
}

/* Nearest code of a finite magnitude, found by search; ties go to the even code. */
static unsigned nearest(const struct small_type *t, double magnitude)
{
    const unsigned largest = largest_of(t);
    unsigned low = 0, high = largest + 1; /* worth(low) <= magnitude < worth(high) if in range */
    double below, above;

    if (magnitude >= worth(t, high))
        return t->saturates ? largest : high;
    while (high - low > 1) {
        const unsigned middle = low + (high - low) / 2;

        if (worth(t, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    below = magnitude - worth(t, low);
    above = worth(t, high) - magnitude;
    if (below > above || (!(below < above) && (low & 1) != 0))
        low = high;
    return low > largest && t->saturates ? largest : low;
}

static unsigned narrow_expected(const struct small_type *t, float value)
{
    const unsigned sign = signbit(value) ? sign_of(t) : 0;

    if (isnan(value))
        return sign_of(t) - 1;
    if (isinf(value))
        return sign | (t->saturates ? largest_of(t) : largest_of(t) + 1);
    return sign | nearest(t, fabs((double)value));
}

static void test_widen_every_code(const struct small_type *t)
{
    const unsigned largest = largest_of(t);
    int wrong = 0;
    unsigned code;

    for (code = 0; code < 2 * sign_of(t); code++) {
        const unsigned magnitude = code & (sign_of(t) - 1);
        const double sign = (code & sign_of(t)) != 0 ? -1.0 : 1.0;
        const float got = t->widen(code);

        if (magnitude <= largest)
            wrong += sw_f64_bits((double)got) != sw_f64_bits(sign * worth(t, magnitude));
        else if (t->has_infinity && magnitude == largest + 1)
            wrong += (double)got != sign * (double)INFINITY;
        else
            wrong += !isnan(got);
    }
    TAP_EQ(t->name, wrong, 0);
}

static void test_narrow_inverts_widen(const struct small_type *t)
{
    int wrong = 0;
    unsigned code;

    for (code = 0; code < 2 * sign_of(t); code++) {
        const float value = t->widen(code);

        wrong += t->narrow(value) != narrow_expected(t, value);
        if ((code & (sign_of(t) - 1)) <= largest_of(t))
            wrong += t->narrow(value) != code;
    }
    TAP_EQ(t->name, wrong, 0);
}

/* The midpoint of two neighbours is exact in f32 for every type. So are the midpoint's
 * neighbours. */
static void test_narrow_rounds_at_every_midpoint(const struct small_type *t)
{
    int wrong = 0, inexact = 0;
    unsigned code;

    for (code = 0; code <= largest_of(t); code++) {
        const double middle = (worth(t, code) + worth(t, code + 1)) / 2;
        const float exact = (float)middle;
        const float values[] = {exact, nextafterf(exact, 0), nextafterf(exact, INFINITY)};
        size_t i;

        inexact += (double)exact != middle;
        for (i = 0; i < sizeof values / sizeof values[0]; i++) {
            wrong += t->narrow(values[i]) != narrow_expected(t, values[i]);
            wrong += t->narrow(-values[i]) != narrow_expected(t, -values[i]);
        }
    }
    TAP_EQ(t->name, wrong, 0);
    TAP_EQ("midpoints are f32", inexact, 0);
}

static void test_narrow_random_bits(const struct small_type *t)
{
    uint32_t bits = 12345, i;
    int wrong = 0;

    for (i = 0; i < 400000; i++) {
        float value;

        bits = bits * 1664525u + 1013904223u;
        value = sw_f32_of_bits(bits ^ bits >> 15);
        wrong += t->narrow(value) != narrow_expected(t, value);
    }
    TAP_EQ(t->name, wrong, 0);
}

int main(void)
{
    static const float edges[] = {
        0.0f,           -0.0f,           1e-45f,   -1e-45f,   1.17549435e-38f,
        3.40282347e38f, -3.40282347e38f, INFINITY, -INFINITY, NAN};
    size_t i, k;

    for (i = 0; i < sizeof types / sizeof types[0]; i++) {
        const struct small_type *t = &types[i];

        test_widen_every_code(t);
        test_narrow_inverts_widen(t);
        test_narrow_rounds_at_every_midpoint(t);
        test_narrow_random_bits(t);
        for (k = 0; k < sizeof edges / sizeof edges[0]; k++) {
            char name[64];

            snprintf(name, sizeof name, "%s of %g", t->name, (double)edges[k]);
            TAP_EQ(name, t->narrow(edges[k]), narrow_expected(t, edges[k]));
        }
    }
    return tap_done();
}
