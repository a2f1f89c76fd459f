/* What the model alone selects. test_select.c asks for calls on a communicator. */
#include "harness.h"
#include "src/collective/select.h"

#define KIB ((size_t)1 << 10)

/* The model's time for an all-reduce. */
static double model_us(symwin_algo algo, const struct sw_model *m)
{
    return sw_algorithm(SYMWIN_ALLREDUCE, algo)->model_us(m);
}

/* The algorithm with the shortest time in the model. */
static symwin_algo best(int nranks, size_t bytes, int is_float, int windows)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
                                        SYMWIN_ALGO_TWOSHOT_PUT, SYMWIN_ALGO_COPIES,
                                        SYMWIN_ALGO_TWOSHOT};
    const struct sw_model m = {.nranks = nranks, .bytes = bytes, .is_float = is_float};
    symwin_algo found = algos[0];
    int i;

    for (i = 1; i < 2 + 3 * windows; i++)
        if (model_us(algos[i], &m) < model_us(found, &m))
            found = algos[i];
    return found;
}

static void prefers(int nranks, size_t bytes, int is_float, int windows, symwin_algo want)
{
    const symwin_algo got = best(nranks, bytes, is_float, windows);

    tap_ok(got == want, "%d ranks, %zu bytes of %s%s: %s%s%s", nranks, bytes,
           is_float ? "floats" : "integers", windows ? " in windows" : "", symwin_algo_name(want),
           got == want ? "" : ", not ", got == want ? "" : symwin_algo_name(got));
}

/* What was measured on H200s, and the crossings between these results. */
static void measured(void)
{
    prefers(2, 8, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(2, (size_t)MIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(2, 2 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(2, 8 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(2, 16 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(2, 64 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUT);
    prefers(2, 64 * (size_t)MIB, 1, 0, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 128 * KIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(4, 256 * KIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 4 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 64 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUT);
    prefers(4, 256 * (size_t)MIB, 1, 1, SYMWIN_ALGO_COPIES);
    prefers(2, 256 * (size_t)MIB, 1, 1, SYMWIN_ALGO_COPIES);
    prefers(4, 1024 * (size_t)MIB, 1, 0, SYMWIN_ALGO_TWOSHOT_PUSH);
}

static void others(void)
{
    const struct sw_model floats = {.nranks = 4, .bytes = 4096, .is_float = 1};
    const struct sw_model integers = {.nranks = 4, .bytes = 4096};

    prefers(1, 8, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(3, 256 * KIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(3, 512 * KIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(8, 32 * KIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(8, 128 * KIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(8, 64 * (size_t)MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUT);
    prefers(4096, 8, 1, 0, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(4096, 64 * KIB, 1, 0, SYMWIN_ALGO_TWOSHOT_PUSH);
    /* With flags, pushes carry twice the bytes. */
    prefers(2, 512 * KIB, 0, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(2, (size_t)MIB, 0, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 32 * (size_t)MIB, 0, 1, SYMWIN_ALGO_TWOSHOT);
    tap_ok(model_us(SYMWIN_ALGO_ONESHOT, &floats) ==
               model_us(SYMWIN_ALGO_ONESHOT_SENTINEL, &integers),
           "flags cost as much whatever the type");
}

/* With few blocks. Measured on H200s, in us; "own" are loads by kernels for that number of ranks:
 *
 *   GPUs  size     blocks  loads  own loads  bulk  copies  pushes  puts
 *   2     16 MiB    4      118    100        114   147
 *   2     64 MiB    8      292    215        225   292
 *   2     256 MiB  16      843                     760
 *   2     64 MiB   32      220                     211
 *   2     16 MiB   16      62.5                                    66.7
 *   2     16 MiB   32      59.7                                    61.9
 *   4     1 MiB     4             15.0                     29.7
 *   4     1 MiB    16             12.7                     12.1
 *   4     8 MiB    24             47                       54
 *   4     64 MiB    4             400              508
 *   4     256 MiB   8             1288             1496
 *   4     256 MiB  16             1293             1237 */
static void few_blocks(void)
{
    static const struct {
        int nranks, blocks, own_loads;
        size_t bytes;
        symwin_algo want;
    } cases[] = {{2, 4, 0, 16 * MIB, SYMWIN_ALGO_TWOSHOT_BULK},
                 {2, 8, 0, 64 * MIB, SYMWIN_ALGO_TWOSHOT_BULK},
                 {2, 4, 1, 16 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {2, 8, 1, 64 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {2, 8, 1, 256 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {2, 16, 0, 16 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {2, 32, 0, 16 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {2, 32, 1, 64 * MIB, SYMWIN_ALGO_COPIES},
                 {2, 16, 0, 256 * MIB, SYMWIN_ALGO_COPIES},
                 {2, 16, 1, 256 * MIB, SYMWIN_ALGO_COPIES},
                 {4, 4, 1, MIB, SYMWIN_ALGO_TWOSHOT},
                 {4, 16, 1, MIB, SYMWIN_ALGO_TWOSHOT_PUSH},
                 {4, 24, 1, 8 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {4, 4, 1, 64 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {4, 8, 1, 256 * MIB, SYMWIN_ALGO_TWOSHOT},
                 {4, 16, 1, 256 * MIB, SYMWIN_ALGO_COPIES}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct sw_model m = {.nranks = cases[i].nranks,
                                   .bytes = cases[i].bytes,
                                   .is_float = 1,
                                   .most_blocks = cases[i].blocks,
                                   .own_loads = cases[i].own_loads};
        symwin_algo found = SYMWIN_ALGO_ONESHOT_SENTINEL;
        int a;

        for (a = SYMWIN_ALGO_ONESHOT; symwin_algo_name((symwin_algo)a) != NULL; a++)
            if (sw_algo_is_there(SYMWIN_ALLREDUCE, (symwin_algo)a) &&
                !sw_algo_needs(SYMWIN_ALLREDUCE, (symwin_algo)a, SW_NEEDS_MULTICAST) &&
                model_us((symwin_algo)a, &m) < model_us(found, &m))
                found = (symwin_algo)a;
        tap_ok(found == cases[i].want, "%d ranks, %zu bytes by %d blocks%s: %s", cases[i].nranks,
               cases[i].bytes, cases[i].blocks,
               cases[i].own_loads ? ", loads by kernels for so many ranks" : "",
               symwin_algo_name(found));
    }
}

struct fastest {
    symwin_collective collective;
    int nranks;
    size_t bytes; /* of a part */
    symwin_algo want;
    int blocks; /* 0: no limit */
};

/* What the model selects for a call whose buffers lie in windows. */
static void is_fastest(const struct fastest *f, int one_device)
{
    const struct sw_collective *c = &sw_collectives[f->collective];
    const struct sw_model m = {.nranks = f->nranks,
                               .bytes = f->bytes,
                               .is_float = 1,
                               .most_blocks = f->blocks,
                               .own_loads = f->collective == SYMWIN_REDUCE_SCATTER,
                               .bundles = c->algos[c->small].bundles &&
                                          f->bytes * (size_t)f->nranks >= 256 * KIB,
                               .one_device = one_device};
    int a, found = (int)c->small;

    for (a = 0; a < SW_ALGOS; a++)
        if (c->algos[a].chosen == SW_CHOSEN && !c->algos[a].one_offset &&
            (!one_device || (c->algos[a].needs & SW_NEEDS_STREAMS) == 0) &&
            c->algos[a].model_us(&m) < c->algos[found].model_us(&m))
            found = a;
    tap_ok(found == (int)f->want, "%d ranks%s, %s of %zu bytes by %d blocks: %s", f->nranks,
           one_device ? " of one device" : "", c->call, f->bytes, f->blocks,
           symwin_algo_name((symwin_algo)found));
}

/* Ranks that share a device. What was fastest on one H100, or at most a tenth slower.
 * bench/results/2026-11-25-1-x-nvidia-h100-shared-algos.csv */
static void one_device(void)
{
    static const struct fastest cases[] = {
        {SYMWIN_ALLREDUCE, 2, 256 * KIB, SYMWIN_ALGO_ONESHOT_SENTINEL, 0},
        {SYMWIN_ALLREDUCE, 2, 16 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_ALLREDUCE, 4, 32 * KIB, SYMWIN_ALGO_ONESHOT_SENTINEL, 0},
        {SYMWIN_ALLREDUCE, 4, 256 * KIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_ALLREDUCE, 4, 2 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_ALLREDUCE, 8, 256 * KIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_ALLREDUCE, 8, 2 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 4, 64 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 4, 4 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 8, 256 * KIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_REDUCE, 4, MIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_REDUCE, 4, 2 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE, 8, 2 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_ALLGATHER, 4, 64 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLGATHER, 4, 512 * KIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLTOALL, 8, 32 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLTOALL, 8, 256 * KIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_BROADCAST, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_BROADCAST, 4, MIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_BROADCAST, 4, 4 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_BROADCAST, 8, 2 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_GATHER, 4, 4 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_GATHER, 8, 2 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_SCATTER, 4, 64 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_SCATTER, 4, 4 * MIB, SYMWIN_ALGO_PUT, 0}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        is_fastest(&cases[i], 1);
}

/* What was fastest on two H100s, or at most a twentieth slower, in us for the whole message:
 *
 *                  64 MiB            512 MiB
 *                  windows  copies   windows  copies
 *   all-gather     101.7    119.5    740.9    757.1
 *   all-to-all     100.3    117.7    742.3    755.0
 *   broadcast      190.1    198.3    1456     1368
 *   scatter        98.4     110.8    733.1    723.3
 *   gather         98.4     110.7    725.3    777.0
 *
 * Scatters and gathers by copies must be asked for. Few blocks were not timed: each moves 33 GB/s
 * in the model. */
static void two_devices(void)
{
    static const struct fastest cases[] = {
        {SYMWIN_ALLGATHER, 2, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLGATHER, 2, 8 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLGATHER, 2, 32 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLGATHER, 2, 256 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLGATHER, 2, 512 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLTOALL, 2, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLTOALL, 2, 8 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLTOALL, 2, 32 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLTOALL, 2, 256 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_BROADCAST, 2, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_BROADCAST, 2, 2 * MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_BROADCAST, 2, 64 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_BROADCAST, 2, 512 * MIB, SYMWIN_ALGO_COPIES, 0},
        {SYMWIN_SCATTER, 2, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_SCATTER, 2, 256 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_GATHER, 2, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_GATHER, 2, 256 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 2, 2 * MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 2, 8 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE, 2, 64 * MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_REDUCE, 2, 128 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE, 2, 512 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_ALLGATHER, 2, 2 * MIB, SYMWIN_ALGO_PUT, 4},
        {SYMWIN_ALLGATHER, 2, 8 * MIB, SYMWIN_ALGO_COPIES, 4},
        {SYMWIN_ALLTOALL, 4, 8 * MIB, SYMWIN_ALGO_COPIES, 4},
        {SYMWIN_BROADCAST, 2, 8 * MIB, SYMWIN_ALGO_COPIES, 4}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        is_fastest(&cases[i], 0);
}

/* What was fastest on four H100s, or at most a twentieth slower, by tuning/h100-x4.csv. Broadcasts
 * and reductions in shares came later: they are fastest with four ranks on two H200s
 * (bench/results/2026-11-30-2-x-nvidia-h200-shares-4-ranks.csv). */
static void four_devices(void)
{
    static const struct fastest cases[] = {
        {SYMWIN_ALLGATHER, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLGATHER, 4, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLGATHER, 4, 256 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLTOALL, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLTOALL, 4, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_ALLTOALL, 4, 16 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_ALLTOALL, 4, 256 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_BROADCAST, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_BROADCAST, 4, MIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_BROADCAST, 4, 256 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_BROADCAST, 72, 8 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_GATHER, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_GATHER, 4, 4 * MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_SCATTER, 4, 256 * KIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_SCATTER, 4, 4 * MIB, SYMWIN_ALGO_PUT, 0},
        {SYMWIN_REDUCE_SCATTER, 4, MIB, SYMWIN_ALGO_ONESHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 4, 4 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE_SCATTER, 4, 64 * MIB, SYMWIN_ALGO_TWOSHOT, 0},
        {SYMWIN_REDUCE, 4, MIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_REDUCE, 4, 4 * MIB, SYMWIN_ALGO_TWOSHOT_PUSH, 0},
        {SYMWIN_REDUCE, 4, 256 * MIB, SYMWIN_ALGO_TWOSHOT, 0}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        is_fastest(&cases[i], 0);
}

/* Threads of a block for collectives of 132 blocks of 640 threads at most, on devices apart. */
static void workers(void)
{
    static const struct {
        symwin_collective collective;
        symwin_algo algo;
        int nranks, sharers, blocks;
        size_t bytes;
        unsigned want;
    } cases[] = {{SYMWIN_ALLGATHER, SYMWIN_ALGO_PUT, 4, 1, 132, 64 * KIB, 128},
                 {SYMWIN_ALLGATHER, SYMWIN_ALGO_PUT, 4, 1, 132, 4 * MIB, 128},
                 {SYMWIN_ALLGATHER, SYMWIN_ALGO_PUT, 4, 1, 132, 8 * MIB, 256},
                 {SYMWIN_ALLGATHER, SYMWIN_ALGO_PUT, 4, 1, 132, 64 * MIB, 640},
                 {SYMWIN_GATHER, SYMWIN_ALGO_TWOSHOT, 2, 1, 132, 4 * MIB, 128},
                 {SYMWIN_BROADCAST, SYMWIN_ALGO_TWOSHOT, 4, 1, 132, 64 * MIB, 96},
                 {SYMWIN_BROADCAST, SYMWIN_ALGO_TWOSHOT, 2, 1, 132, 64 * MIB, 640},
                 {SYMWIN_BROADCAST, SYMWIN_ALGO_TWOSHOT, 4, 4, 132, 64 * MIB, 640},
                 {SYMWIN_BROADCAST, SYMWIN_ALGO_TWOSHOT, 4, 1, 16, 64 * MIB, 640},
                 {SYMWIN_REDUCE, SYMWIN_ALGO_TWOSHOT, 3, 1, 132, 64 * MIB, 96},
                 {SYMWIN_REDUCE_SCATTER, SYMWIN_ALGO_TWOSHOT, 2, 1, 132, 64 * MIB, 288},
                 {SYMWIN_ALLREDUCE, SYMWIN_ALGO_TWOSHOT, 4, 1, 132, 64 * MIB, 640},
                 {SYMWIN_ALLREDUCE, SYMWIN_ALGO_TWOSHOT_PUSH, 4, 1, 132, 128 * KIB, 64},
                 {SYMWIN_ALLREDUCE, SYMWIN_ALGO_TWOSHOT_PUSH, 4, 1, 132, 4 * MIB, 640}};
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const symwin_comm comm = {.nranks = cases[i].nranks, .sharers = cases[i].sharers};
        const unsigned got = sw_select_workers(sw_algorithm(cases[i].collective, cases[i].algo),
                                               &comm, cases[i].bytes / 16,
                                               (uint64_t)cases[i].blocks, 640);

        tap_ok(got == cases[i].want, "%s by %s, %zu bytes, %d ranks, %d on a device, %d blocks: %u",
               sw_collectives[cases[i].collective].call, symwin_algo_name(cases[i].algo),
               cases[i].bytes, cases[i].nranks, cases[i].sharers, cases[i].blocks, got);
    }
}

/* With growing size, an algorithm that was left for the next one is not selected again. */
static void crosses_once(int nranks)
{
    symwin_algo last = SYMWIN_ALGO_ONESHOT_SENTINEL;
    unsigned left = 0; /* algorithms, as bits */
    int again = 0;
    size_t bytes;

    for (bytes = 8; bytes < (size_t)1 << 50; bytes += bytes / 8) {
        const symwin_algo now = best(nranks, bytes, 1, 1);

        if (now != last)
            left |= 1u << last;
        again += (left >> now & 1) != 0;
        last = now;
    }
    tap_ok(!again && last == SYMWIN_ALGO_COPIES, "%d ranks: from one shot to copies", nranks);
}

int main(void)
{
    int nranks;

    measured();
    others();
    few_blocks();
    one_device();
    two_devices();
    four_devices();
    workers();
    for (nranks = 2; nranks <= 4096; nranks *= 2)
        crosses_once(nranks);
    return tap_done();
}
