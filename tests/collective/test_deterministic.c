/* The same bits everywhere: every algorithm except multicast ones, with different grids, counts and
 * offsets and in several runs, gives on every rank the sum in rank order with one rounding. With
 * this data another order, or one rounding more, gives other bits. */
#include "allreduce_member.h"
#include "harness.h"
#include "reference.h"

static const symwin_algo algos[] = {
    SYMWIN_ALGO_AUTO,         SYMWIN_ALGO_ONESHOT,     SYMWIN_ALGO_ONESHOT_SENTINEL,
    SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_TWOSHOT_PUT, SYMWIN_ALGO_TWOSHOT,
    SYMWIN_ALGO_TWOSHOT_BULK, SYMWIN_ALGO_COPIES};
static const symwin_type types[] = {SYMWIN_F32, SYMWIN_BF16, SYMWIN_F16};
static const symwin_op ops[] = {SYMWIN_SUM, SYMWIN_PREMUL_SUM};

/* From one element to several slots, one of them in whole vectors. An element has the same inputs
 * in every count. */
static const size_t counts[] = {1, 9, 1027, 4096, 6151};
static const struct {
    int blocks, threads;
} grids[] = {{0, 0}, {1, 33}, {3, 40}};

enum {
    ALGOS = sizeof algos / sizeof algos[0],
    TYPES = sizeof types / sizeof types[0],
    OPS = sizeof ops / sizeof ops[0],
    COUNTS = sizeof counts / sizeof counts[0],
    GRIDS = sizeof grids / sizeof grids[0],
    SHAPES = 5, /* four pairs of offsets, and in place */
    RUNS = 2,
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    THIN = 23,
#else
    THIN = 7, /* prime to the numbers above */
#endif
    SEED = 11
};

/* How many of `count` result elements change: for f32, if the ranks are added in the opposite
 * order; for types that are added in f32, if every sum is rounded to the type. */
static void control(const struct member *m, symwin_type type, size_t count)
{
    const struct member_shared *s = m->shared;
    const int n = m->team->nranks;
    const int order = type == SYMWIN_F32;
    const size_t unit = symwin_type_bytes(type);
    unsigned char *other = malloc(count * unit);
    size_t differ = 0, i;
    int r;

    memcpy(other, s->inputs[order ? n - 1 : 0], count * unit);
    for (r = 1; r < n; r++) {
        const void *const two[] = {other, s->inputs[order ? n - 1 - r : r]};

        reference_allreduce(type, SYMWIN_SUM, 2, two, other, count);
    }
    for (i = 0; i < count; i++)
        differ += memcmp(other + i * unit, s->expected + i * unit, unit) != 0;
    free(other);
    tap_ok(differ > count / 16, "%d ranks, %s, %s: %zu of %zu elements differ", n,
           symwin_type_name(type), order ? "another order" : "more roundings", differ, count);
}

static int served_call(struct member *m, symwin_type type, symwin_op op, const struct placement *p)
{
    const int served = member_call(m, type, op, p);

    if (!served)
        member_ok(m, SYMWIN_UNSUPPORTED, symwin_algo_name(p->algo));
    return served;
}

/* Calls of one algorithm, each compared on every rank. Returns how many there were. */
static int calls_of(struct member *m, symwin_type type, symwin_op op, symwin_algo algo,
                    size_t count, int *turn)
{
    const size_t unit = symwin_type_bytes(type);
    int served = 0;
    int grid, shape, run;

    for (grid = 0; grid < GRIDS; grid++)
        for (shape = 0; shape < SHAPES; shape++)
            for (run = 0; run < RUNS; run++) {
                const struct placement p = {
                    .algo = algo,
                    .count = count,
                    .in_offset = (shape & 1) != 0 ? unit : 0,
                    .out_offset = (shape & 2) != 0 ? 3 * unit : 0,
                    .in_place = shape == SHAPES - 1,
                    .blocks = grids[grid].blocks,
                    .threads = grids[grid].threads,
                };

                if ((*turn)++ % THIN == 0)
                    served += served_call(m, type, op, &p);
            }
    return served;
}

/* One line of TAP. */
static void check(struct member *m, symwin_type type, symwin_op op, symwin_algo algo, int *turn)
{
    int calls = 0, count;

    for (count = 0; count < COUNTS; count++) {
        member_prepare(m, type, op, 0, SEED, counts[count]);
        calls += calls_of(m, type, op, algo, counts[count], turn);
    }
    harness_barrier(m->team);
    if (m->rank == 0) {
        tap_ok(*m->wrong == 0 && calls > 0, "%d ranks, %s %s, %s: %d calls, the same bits",
               m->team->nranks, symwin_type_name(type), symwin_op_name(op), symwin_algo_name(algo),
               calls);
        *m->wrong = 0;
    }
}

static void body(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    int type, op, algo;
    int turn = 0;

    (void)arg;
    if (member_create(&m, team, rank))
        for (type = 0; type < TYPES; type++) {
            for (op = OPS - 1; op >= 0; op--) /* the sum last, for the control */
                for (algo = 0; algo < ALGOS; algo++)
                    check(&m, types[type], ops[op], algos[algo], &turn);
            if (rank == 0)
                control(&m, types[type], counts[COUNTS - 1]);
            harness_barrier(team);
        }
    member_destroy(&m);
}

static void same_bits(int nranks)
{
    const struct harness_leaks before = harness_leaks_now();
    struct member_shared s = {.bytes = counts[COUNTS - 1] * 4 + 64, .slot_bytes = 4096};

    s.expected = malloc(s.bytes);
    harness_run(nranks, body, &s);
    free(s.expected);
    harness_no_leaks("the same bits", &before);
}

int main(void)
{
    setenv("SYMWIN_EMU_MULTICAST", "0", 1); /* otherwise AUTO could choose it */
    harness_start();
    same_bits(3);
    same_bits(4);
    return tap_done();
}
