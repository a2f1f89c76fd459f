/* symwin-perf's test data (bench/perf/data.h): exact in every type, in whatever order the ranks are
 * added, and of both signs. Otherwise a right result could be called wrong, or a wrong one
 * right. */
#include <stdlib.h>

#include "bench/perf/data.h"
#include "tap.h"

enum { INDICES = 300, ORDERS = 4 };

static const int rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 72, 300};
static const char *const type_names[] = {
#define NAME(name, value, text, bytes) #text,
    SYMWIN_TYPE_LIST(NAME)};
static const char *const op_names[] = {
#define OP_NAME(name, value, text) #text,
    SYMWIN_OP_LIST(OP_NAME)};

enum {
    TYPES = sizeof type_names / sizeof type_names[0],
    OPS = sizeof op_names / sizeof op_names[0]
};

/* The value that the bits stand for. */
static double decode(int type, uint64_t bits)
{
    switch (type) {
    case SYMWIN_F64:
        return sw_f64_of_bits(bits);
    case SYMWIN_F32:
        return sw_f32_of_bits((uint32_t)bits);
    case SYMWIN_F16:
        return sw_f32_from_f16((uint16_t)bits);
    case SYMWIN_BF16:
        return sw_f32_from_bf16((uint16_t)bits);
    case SYMWIN_F8E4M3:
        return sw_f32_from_e4m3((uint8_t)bits);
    case SYMWIN_F8E5M2:
        return sw_f32_from_e5m2((uint8_t)bits);
    case SYMWIN_I8:
        return (int8_t)bits;
    case SYMWIN_I32:
        return (int32_t)bits;
    case SYMWIN_I64:
        return (double)(int64_t)bits;
    default:
        return (double)bits;
    }
}

static int exact(int type, int64_t value)
{
    return decode(type, perf_encode(type, value)) == (double)value;
}

static int64_t combine(int op, int64_t a, int64_t b)
{
    switch (op) {
    case SYMWIN_PROD:
        return a * b;
    case SYMWIN_MIN:
        return a < b ? a : b;
    case SYMWIN_MAX:
        return a > b ? a : b;
    default:
        return a + b;
    }
}

/* Reduces in a random order. Returns whether every step is exact and the result is that of
 * perf_reduced(). */
static int one_order(const struct perf_data *data, uint64_t index)
{
    int order[300], n = data->nranks;
    int64_t partial = 0;

    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        const int j = rand() % (i + 1), rank = order[i];

        order[i] = order[j];
        order[j] = rank;
    }
    for (int i = 0; i < n; i++) {
        const int64_t input = perf_input(data, order[i], index);
        const int64_t x = input *
                          (data->op == SYMWIN_PREMUL_SUM ? perf_scalar(order[i]) : INT64_C(1));

        if (!exact(data->type, input) || !exact(data->type, x))
            return 0;
        partial = i == 0 ? x : combine(data->op, partial, x);
        if (!exact(data->type, partial))
            return 0;
    }
    if (data->op == SYMWIN_AVG)
        return partial == data->nranks * perf_reduced(data, index);
    return partial == perf_reduced(data, index);
}

static int all_exact(const struct perf_data *data)
{
    for (uint64_t index = 0; index < INDICES; index++)
        for (int order = 0; order < ORDERS; order++)
            if (!one_order(data, index * 7919))
                return 0;
    return 1;
}

/* The values vary, and some are negative if the type has negative values. */
static int varied(const struct perf_data *data)
{
    int negative = 0, different = 0;

    for (uint64_t index = 0; index < INDICES; index++) {
        negative |= perf_input(data, 0, index) < 0;
        different |= perf_input(data, 0, index) != perf_input(data, 0, 0);
    }
    return different && negative == perf_signed(data->type);
}

/* Unequal parts of an all-to-all: that rank `to`'s output has every element of them, where the
 * displacements say. Counts the empty ones among random parts. */
static int unequal(const struct perf_data *data, int32_t to, int *empty)
{
    struct perf_data of_rank = *data;
    uint64_t all = 0;

    of_rank.to = to;
    for (int32_t from = 0; from < data->nranks; from++) {
        const uint64_t part = perf_part(data, from, to);

        all += part;
        *empty += data->which > 0 && part == 0;
        if (part > data->part * (data->which == 0 ? (uint64_t)data->nranks : 1) ||
            perf_part_in(data, from, to) + part > perf_part_in(data, from, data->nranks))
            return 0;
        for (uint64_t i = 0; i < part; i++)
            if (perf_element(&of_rank, PERF_UNEQUAL, perf_part_out(data, from, to) + i) !=
                perf_element(data, from, perf_part_in(data, from, to) + i))
                return 0;
    }
    return all == perf_part_out(data, data->nranks, to);
}

/* Of a few kinds of parts: some are empty, and not all are in the order of the ranks. */
static int all_unequal(void)
{
    int empty = 0, good = 1, forwards = 0, backwards = 0;

    for (int n = 1; n <= 5; n++)
        for (uint32_t which = 0; which < 8; which++) {
            const struct perf_data data = {.nranks = n,
                                           .type = SYMWIN_F64,
                                           .op = SYMWIN_MAX,
                                           .seed = 3,
                                           .which = which,
                                           .part = 9};

            for (int32_t to = 0; to < n; to++)
                good &= unequal(&data, to, &empty);
            forwards += perf_part_in(&data, 0, 0) < perf_part_in(&data, 0, n - 1);
            backwards += perf_part_in(&data, 0, 0) > perf_part_in(&data, 0, n - 1);
        }
    return good && empty > 8 && forwards > 8 && backwards > 8;
}

int main(void)
{
    struct perf_data data = {.nranks = 4, .type = SYMWIN_F32, .op = SYMWIN_SUM, .seed = 1};
    struct perf_data other = data, parts = data;
    int same = 0, placed = 0;

    other.seed = 2;
    parts.part = 7;
    parts.first = 100;
    parts.without = 1;

    for (int type = 0; type < TYPES; type++)
        for (int op = 0; op < OPS; op++) {
            int good = 1;

            for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
                const struct perf_data all = {
                    .nranks = rank_counts[i], .type = type, .op = op, .seed = 1};

                good &= all_exact(&all);
                if (rank_counts[i] <= 4)
                    good &= varied(&all);
            }
            tap_ok(good, "%s %s: exact in any order, of both signs", type_names[type],
                   op_names[op]);
        }
    for (uint64_t index = 0; index < INDICES; index++)
        same += perf_input(&data, 0, index) == perf_input(&data, 1, index) ||
                perf_input(&data, 0, index) == perf_input(&other, 0, index);
    tap_ok(same < 5, "ranks and seeds have different data");
    for (uint64_t index = 0; index < 21; index++) {
        static const int ranks[] = {0, 2, 3};

        placed += perf_element(&parts, PERF_PARTS, index) ==
                  perf_element(&data, ranks[index / 7], 100 + index % 7);
    }
    tap_ok(placed == 21, "parts are the ranks' elements, of all but one");
    tap_ok(all_unequal(), "unequal parts: each element is where the displacements say");
    return tap_done();
}
