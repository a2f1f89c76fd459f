/* What each collective is for fuzz/calls.c: its buffers, and what a call must leave in them. A pair
 * of a send and a receive in a group counts as one more collective. */
#ifndef SYMWIN_FUZZ_CALLS_SHAPES_H
#define SYMWIN_FUZZ_CALLS_SHAPES_H

#include "calls_agreements.h"

enum { MOST_ELEMENTS = 600, MOST_PARTS = RANKS * MOST_ELEMENTS, PAGE = 4096 };

static int is_pairs(const struct sw_collective *is)
{
    return is == &pairs_shape;
}

static int has_root(const struct sw_collective *is)
{
    return is->root_sends || is->root_receives || is_pairs(is);
}

static int sends(const struct sw_collective *is, int rank, int root)
{
    return !is->root_sends || rank == root;
}

static int receives(const struct sw_collective *is, int rank, int root)
{
    return !is->root_receives || rank == root;
}

static int is_gatherv(const struct sw_collective *is)
{
    return is == &sw_collectives[SYMWIN_ALLGATHERV];
}

static int is_reducev(const struct sw_collective *is)
{
    return is == &sw_collectives[SYMWIN_REDUCE_SCATTERV];
}

/* Elements that one rank sends to another by parts: equal in both directions, so that calls work in
 * place, and unequal otherwise. */
static uint64_t part_between(const struct sw_collective *is, uint64_t count, int from, int to)
{
    const int what = is_gatherv(is) ? from : is_reducev(is) ? to : from + to + from * to;

    return what % 3 == 2 ? 0 : what % 2 == 1 ? count / 2 : count;
}

static uint64_t parts_before(const struct sw_collective *is, uint64_t count, int rank, int part,
                             int sent)
{
    uint64_t sum = 0;
    int p;

    for (p = 0; p < part; p++)
        sum += sent ? part_between(is, count, rank, p) : part_between(is, count, p, rank);
    return sum;
}

/* Elements of a rank's input and output. */
static uint64_t in_count(const struct sw_collective *is, uint64_t count, int rank, int root)
{
    if (is->no_data || !sends(is, rank, root))
        return 0;
    if (is_gatherv(is))
        return part_between(is, count, rank, rank);
    if (is->by_parts)
        return parts_before(is, count, rank, model.nranks, 1);
    return is->in_each ? count * (uint64_t)model.nranks : count;
}

static uint64_t out_count(const struct sw_collective *is, uint64_t count, int rank, int root)
{
    if (is->no_data || !receives(is, rank, root))
        return 0;
    if (is_reducev(is))
        return part_between(is, count, rank, rank);
    if (is->by_parts)
        return parts_before(is, count, rank, model.nranks, 0);
    return is->out_each ? count * (uint64_t)model.nranks : count;
}

/* Where a rank's own part of the larger buffer begins, in elements. */
static uint64_t own_place(const struct sw_collective *is, uint64_t count, int rank)
{
    if (is_gatherv(is) || is_reducev(is))
        return parts_before(is, count, rank, rank, is_reducev(is));
    return is->in_each == is->out_each ? 0 : (uint64_t)rank * count;
}

static void make_input(int rank, uint32_t data[MOST_PARTS])
{
    size_t i;

    for (i = 0; i < MOST_PARTS; i++)
        data[i] = (uint32_t)(rank + 1) * 0x9e3779b9u + (uint32_t)i;
}

/* The bytes of a rank's output of elements of `size` bytes; sums are of U32. `inputs`: of all
 * ranks. */
static void make_output(const struct sw_collective *is, uint64_t count, size_t size, int rank,
                        int root, uint32_t inputs[RANKS][MOST_PARTS], uint32_t want[MOST_PARTS])
{
    const uint64_t own = is_reducev(is) ? own_place(is, count, rank) : (uint64_t)rank * count;
    const size_t bytes = (size_t)count * size;
    const size_t first = is->in_each || is_reducev(is) ? (size_t)own * size : 0;
    unsigned char *to = (unsigned char *)want;
    size_t i;
    int r;

    memset(want, 0, MOST_PARTS * sizeof *want);
    for (r = 0; r < model.nranks; r++) {
        const uint32_t *data = inputs[r];
        const unsigned char *from = (const unsigned char *)data;

        if (is->reduces) {
            for (i = 0; i < (is_reducev(is) ? part_between(is, count, rank, rank) : count); i++)
                want[i] += data[first / sizeof *data + i];
        } else if (is->by_parts) {
            memcpy(to + parts_before(is, count, rank, r, 0) * size,
                   from + (is_gatherv(is) ? 0 : parts_before(is, count, r, rank, 1) * size),
                   part_between(is, count, r, rank) * size);
        } else if (is->out_each) {
            memcpy(to + (size_t)r * bytes, from + first, bytes);
        } else if (is_pairs(is) ? (r + root) % model.nranks == rank : r == root) {
            memcpy(to, from + first, bytes);
        }
    }
}

#endif
