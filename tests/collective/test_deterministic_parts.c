/* The same bits in the other collectives that reduce: reduce, reduce-scatter, and reduce-scatter of
 * unequal parts give the sum in the order of the ranks with one rounding, by each algorithm, with
 * different grids, in place and not, and in several runs. Another order gives other bits with this
 * data, which is checked too. test_deterministic.c has the all-reduce. */
#include "parts.h"

/* Under sanitizers each length runs once, by fewer grids and one number of ranks: which bits come
 * out is no matter of theirs. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RUNS = 1, MOST_RANKS = 3 };
static const uint64_t counts[] = {1, 64, 1027};
#else
enum { RUNS = 2, MOST_RANKS = 4 };
static const uint64_t counts[] = {1, 9, 64, 1027, 3072};
#endif
enum { REDUCE_SCATTER = 5, REDUCE = 6, SEED = 11 };

static const symwin_type types[] = {SYMWIN_F64, SYMWIN_F32, SYMWIN_BF16};
static const struct {
    int blocks, threads;
} grids[] = {{0, 0},
             {3, 40},
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
             {1, 33}
#endif
};

enum {
    TYPES = sizeof types / sizeof types[0],
    COUNTS = sizeof counts / sizeof counts[0],
    GRIDS = sizeof grids / sizeof grids[0]
};

/* Reduces with the ranks in the opposite order; how many elements differ. */
static size_t differ_backwards(const struct rank *r, symwin_type type, uint64_t count)
{
    const size_t element = symwin_type_bytes(type);
    unsigned char *inputs[MOST_RANKS], *back[MOST_RANKS];
    unsigned char *const forth = malloc(count * element), *const other = malloc(count * element);
    size_t differ = 0, i;
    int p;

    for (p = 0; p < r->nranks; p++) {
        inputs[p] = malloc(count * element);
        if (inputs[p] == NULL || forth == NULL || other == NULL)
            abort();
        reference_fill(type, SYMWIN_SUM, SEED, p, 0, (size_t)count, inputs[p]);
        back[r->nranks - 1 - p] = inputs[p];
    }
    reference_allreduce(type, SYMWIN_SUM, r->nranks, (const void *const *)inputs, forth, count);
    reference_allreduce(type, SYMWIN_SUM, r->nranks, (const void *const *)back, other, count);
    for (i = 0; i < count; i++)
        differ += memcmp(forth + i * element, other + i * element, element) != 0;
    for (p = 0; p < r->nranks; p++)
        free(inputs[p]);
    free(forth);
    free(other);
    return differ;
}

/* One shape by one algorithm: every grid, in place and not, several times. */
static void equal_parts(const struct rank *r, int shape, symwin_algo algo)
{
    int t, c, g, again;

    for (t = 0; t < TYPES; t++)
        for (c = 0; c < COUNTS; c++)
            for (g = 0; g < GRIDS; g++)
                for (again = 0; again < 2 * RUNS; again++) {
                    const struct job j = {.is = &shapes[shape],
                                          .options = {.size = sizeof j.options,
                                                      .algo = algo,
                                                      .blocks = grids[g].blocks,
                                                      .threads = grids[g].threads},
                                          .type = types[t],
                                          .op = SYMWIN_SUM,
                                          .count = counts[c],
                                          .root = c % r->nranks,
                                          .in_place = again % 2,
                                          .in = GUARD,
                                          .out = GUARD,
                                          .seed = SEED};

                    job_run(r, &j);
                }
}

/* Rank p's part begins behind those of the ranks before it. */
static void unequal_parts(const struct rank *r, symwin_type type, int grid, int in_place)
{
    const symwin_collective_options options = {
        .size = sizeof options, .blocks = grids[grid].blocks, .threads = grids[grid].threads};
    const size_t element = symwin_type_bytes(type);
    uint64_t lengths[MOST_RANKS], all = 0, place = 0;
    const symwin_parts parts = {lengths, NULL, 0, 0};
    unsigned char *inputs[MOST_RANKS], *out;
    size_t own;
    int p;

    for (p = 0; p < r->nranks; p++) {
        lengths[p] = counts[(p + grid) % COUNTS];
        place += p < r->rank ? lengths[p] : 0;
        all += lengths[p];
    }
    own = (size_t)lengths[r->rank];
    for (p = 0; p < r->nranks; p++) {
        inputs[p] = malloc(own * element);
        if (inputs[p] == NULL)
            abort();
        reference_fill(type, SYMWIN_SUM, SEED, p, (size_t)place, own, inputs[p]);
    }
    reference_allreduce(type, SYMWIN_SUM, r->nranks, (const void *const *)inputs, r->want, own);
    reference_fill(type, SYMWIN_SUM, SEED, r->rank, 0, (size_t)all, r->host);
    host_must(host_copy(r->device, r->in, r->host, all * element), "fill");
    out = in_place ? r->in + place * element : r->out;
    host_must(symwin_reduce_scatterv_with(r->comm, r->in, &parts, out, type, SYMWIN_SUM, &options,
                                          r->streams[0]),
              "symwin_reduce_scatterv");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    host_must(host_copy(r->device, r->host, out, own * element), "read");
    must_be(memcmp(r->host, r->want, own * element) == 0, "reduce_scatterv: the same bits",
            r->rank);
    for (p = 0; p < r->nranks; p++)
        free(inputs[p]);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *windows[2];
    int t, i;

    open_rank(p, &r, WAIT_MS);
    for (t = 0; t < 2; t++) /* narrow types are added in f32, which has bits to spare */
        must_be(differ_backwards(&r, types[t], counts[COUNTS - 1]) > counts[COUNTS - 1] / 16,
                "another order gives other bits", rank);
    for (i = REDUCE_SCATTER; i <= REDUCE; i++) {
        equal_parts(&r, i, SYMWIN_ALGO_AUTO);
        equal_parts(&r, i, SYMWIN_ALGO_ONESHOT);
    }
    equal_parts(&r, REDUCE, SYMWIN_ALGO_TWOSHOT_PUSH);
    for (i = 0; i < TYPES * GRIDS * 2 * RUNS; i++)
        unequal_parts(&r, types[i % TYPES], i / TYPES % GRIDS, i / TYPES / GRIDS % 2);
    host_must(symwin_window_register(r.comm, r.in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &windows[1]), "register");
    for (i = REDUCE_SCATTER; i <= REDUCE; i++) {
        equal_parts(&r, i, SYMWIN_ALGO_AUTO);
        equal_parts(&r, i, SYMWIN_ALGO_TWOSHOT);
    }
    processes_barrier(p); /* unmapping a window may wait for kernels */
    for (i = 0; i < 2; i++)
        host_must(symwin_window_deregister(r.comm, windows[i]), "deregister");
    close_rank(p, &r);
}

int main(void)
{
    struct processes *p;
    int nranks;

    setenv("SYMWIN_EMU_MULTICAST", "0", 1); /* otherwise AUTO could choose it */
    for (nranks = 3; nranks <= MOST_RANKS; nranks++) {
        tap_ok(places_run(&places_all[0], nranks, body, NULL, &p), "%d ranks: the same bits",
               nranks);
        processes_free(p);
    }
    return tap_done();
}
