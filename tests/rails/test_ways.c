/* Which way calls take between domains, and in how many pieces (src/rails/ways.c): the model beside
 * the simulation of docs/scaling.md. */
#include "src/rails/wide_call.h"
#include "tap.h"

#define KIB 1024.0
#define MIB (1024 * KIB)
#define PART (81 * MIB / SW_PARTS) /* of the scratch, on a GPU */

enum { GPUS = 8 };

static const symwin_algo all[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_RAILS};

static double us_of(int hosts, double bytes, struct sw_way way)
{
    return sw_way_us(SYMWIN_ALLREDUCE, hosts, GPUS, bytes, way.algo, way.pieces);
}

static struct sw_way chosen(symwin_collective collective, int hosts, double bytes)
{
    return sw_way_by_model(collective, hosts, GPUS, bytes, GPUS * PART);
}

static double us_by_two_exchanges(int hosts, double bytes)
{
    double least = 0;
    unsigned pieces;

    for (pieces = 1; pieces <= 32; pieces *= 2) {
        const double us = sw_way_us(SYMWIN_ALLREDUCE, hosts, GPUS, bytes, SYMWIN_ALGO_TWOSHOT_PUSH,
                                    pieces);

        least = pieces == 1 || us < least ? us : least;
    }
    return least;
}

/* What `bench/scale/scale.py --ways stages,whole` and `--ways swaps` say of hosts of 8 GPUs with
 * 50 GB/s each. */
static void near_simulation(void)
{
    static const struct {
        int hosts;
        double bytes, us, by_swaps;
    } rows[] = {
        {2, 64 * KIB, 23.6, 34.2},      {2, 16 * MIB, 124, 142},      {2, 256 * MIB, 1436, 1436},
        {2, 1024 * MIB, 5567, 5567},    {16, 64 * KIB, 55.1, 62.2},   {16, 16 * MIB, 222, 181},
        {16, 256 * MIB, 1741, 1516},    {16, 1024 * MIB, 6135, 5819}, {128, 64 * KIB, 85.1, 286},
        {128, 16 * MIB, 273, 384},      {128, 256 * MIB, 1803, 1846}, {128, 1024 * MIB, 6274, 5906},
        {1024, 64 * KIB, 115, 2078},    {1024, 16 * MIB, 324, 2176},  {1024, 256 * MIB, 1896, 3520},
        {1024, 1024 * MIB, 6414, 8332},
    };
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const double us = us_of(rows[i].hosts, rows[i].bytes,
                                chosen(SYMWIN_ALLREDUCE, rows[i].hosts, rows[i].bytes)),
                     swaps = us_by_two_exchanges(rows[i].hosts, rows[i].bytes);

        tap_ok(us > 0.75 * rows[i].us && us < 1.25 * rows[i].us,
               "%d hosts, %.0f KiB: %.1f us, by the simulation %.1f", rows[i].hosts,
               rows[i].bytes / KIB, us, rows[i].us);
        tap_ok(swaps > 0.75 * rows[i].by_swaps && swaps < 1.25 * rows[i].by_swaps,
               "%d hosts, %.0f KiB by two exchanges: %.1f us, by the simulation %.1f",
               rows[i].hosts, rows[i].bytes / KIB, swaps, rows[i].by_swaps);
    }
}

/* Nothing that can be chosen is quicker, by the same model. */
static void the_least(void)
{
    static const symwin_collective collectives[] = {SYMWIN_ALLREDUCE, SYMWIN_BROADCAST,
                                                    SYMWIN_REDUCE};
    int worse = 0, hosts, c;
    unsigned pieces;
    double bytes;
    size_t a;

    for (c = 0; c < 3; c++)
        for (hosts = 2; hosts <= 4096; hosts *= 4)
            for (bytes = 8; bytes <= 4096 * MIB; bytes *= 8)
                for (a = 0; a < 2; a++)
                    for (pieces = 1; pieces <= (a == 0 ? 1u : 32u); pieces *= 2) {
                        const struct sw_way way = chosen(collectives[c], hosts, bytes);
                        const double least = sw_way_us(collectives[c], hosts, GPUS, bytes, way.algo,
                                                       way.pieces);

                        worse += bytes / pieces <= GPUS * PART &&
                                 sw_way_us(collectives[c], hosts, GPUS, bytes, all[a], pieces) <
                                     least / 1.05;
                    }
    tap_ok(worse == 0, "the least time of all, but for 5 %%: %d are less", worse);
}

static void choices(void)
{
    static const struct {
        symwin_collective collective;
        int hosts;
        double bytes;
        symwin_algo algo;
        unsigned least, most; /* pieces */
    } rows[] = {
        {SYMWIN_ALLREDUCE, 2, 8, SYMWIN_ALGO_ONESHOT, 1, 1},
        {SYMWIN_ALLREDUCE, 128, 4 * KIB, SYMWIN_ALGO_ONESHOT, 1, 1},
        {SYMWIN_ALLREDUCE, 2, 1 * MIB, SYMWIN_ALGO_RAILS, 1, 2},
        {SYMWIN_ALLREDUCE, 128, 16 * MIB, SYMWIN_ALGO_RAILS, 2, 8},
        {SYMWIN_ALLREDUCE, 128, 1024 * MIB, SYMWIN_ALGO_RAILS, 16, 16},
        {SYMWIN_BROADCAST, 2, 8, SYMWIN_ALGO_ONESHOT, 1, 1},
        {SYMWIN_BROADCAST, 4, 64 * MIB, SYMWIN_ALGO_RAILS, 2, 32},
        {SYMWIN_REDUCE, 4, 64 * MIB, SYMWIN_ALGO_RAILS, 2, 32},
        {SYMWIN_ALLGATHER, 2, 8, SYMWIN_ALGO_RAILS, 1, 1},
        {SYMWIN_ALLGATHER, 128, 4 * KIB, SYMWIN_ALGO_RAILS, 1, 1},
        {SYMWIN_ALLGATHER, 2, 16 * MIB, SYMWIN_ALGO_RAILS, 2, 2},
        {SYMWIN_ALLGATHER, 128, 16 * MIB, SYMWIN_ALGO_RAILS, 128, 128},
        {SYMWIN_REDUCE_SCATTER, 16, 8, SYMWIN_ALGO_RAILS, 1, 1},
        {SYMWIN_REDUCE_SCATTER, 16, 16 * MIB, SYMWIN_ALGO_RAILS, 16, 16},
        {SYMWIN_ALLTOALL, 16, 8, SYMWIN_ALGO_RAILS, 1, 1},
        {SYMWIN_ALLTOALL, 16, 4 * MIB, SYMWIN_ALGO_RAILS, 16, 16},
    };
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct sw_way way = chosen(rows[i].collective, rows[i].hosts, rows[i].bytes);

        tap_ok(
            way.algo == rows[i].algo && way.pieces >= rows[i].least && way.pieces <= rows[i].most,
            "%s of %.0f KiB on %d hosts: %s, %u pieces", symwin_collective_name(rows[i].collective),
            rows[i].bytes / KIB, rows[i].hosts, symwin_algo_name(way.algo), way.pieces);
    }
}

int main(void)
{
    near_simulation();
    the_least();
    choices();
    return tap_done();
}
