/* The kernel of the all-gather, launched directly on the emulated driver: what a call leaves behind
 * (epoch, rounds, slots, counted blocks), and ranks that have nothing in common but the bytes: each
 * with an alignment, a grid and a place for its input of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "kernel_team.h"
#include "tap.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

enum { GUARD = 32, WORD = 8, ENTRY = 16 };

/* To ThreadSanitizer 72 ranks are nothing that 17 are not, and take it many times as long. THREADS
 * is the limit of a block in the emulated driver (kernels/emu_image.cc). */
#if defined(__SANITIZE_THREAD__)
enum { MOST_RANKS = 17, THIN = 3, THREADS = 40 };
#elif defined(__SANITIZE_ADDRESS__)
enum { MOST_RANKS = 72, THIN = 2, THREADS = 64 };
#else
enum { MOST_RANKS = 72, THIN = 1, THREADS = 64 };
#endif

/* A call; rank r's buffers and grid follow from it. */
struct call {
    size_t bytes;
    unsigned seed;
    int alike; /* else ranks differ in all that they may differ in */
};

struct place {
    size_t in, out; /* offsets in the segment */
    unsigned grid, block;
};

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("Bail out! %s: CUresult %d\n", what, (int)result);
    exit(1);
}

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Zeros are among them: an entry of zeros must arrive too. */
static unsigned char byte_of(const struct call *c, int rank, size_t i)
{
    const uint32_t word = mix(c->seed * 31u + (uint32_t)rank * 7919u + (uint32_t)(i / WORD));

    return word % 3 == 0 ? 0 : (unsigned char)mix(word + (uint32_t)i);
}

static struct place place_of(const struct team *team, const struct call *c, int rank)
{
    const uint32_t random = mix(c->seed + (c->alike ? 0 : (uint32_t)rank * 101u));
    struct place at = {.in = team->input + GUARD,
                       .out = team->output + GUARD,
                       .grid = 1 + random % 3,
                       .block = 1 + random / 4 % THREADS};

    at.in += random / 256 % 16;
    at.out += random / 4096 % 16;
    if (random / 65536 % 3 == 0)
        at.in = at.out + (size_t)rank * c->bytes; /* in place */
    return at;
}

static CUfunction kernel_of(const struct team *team)
{
    CUkernel kernel = NULL;
    CUfunction function = NULL;

    must(sw_drv.cuLibraryGetKernel(&kernel, team->library[0],
                                   "sw_allgather_oneshot_bytes_move_n_any"),
         "cuLibraryGetKernel");
    must(sw_drv.cuKernelGetFunction(&function, kernel), "cuKernelGetFunction");
    return function;
}

static void launch(const struct team *team, const struct call *c, int rank)
{
    const struct place at = place_of(team, c, rank);
    const CUdeviceptr own = team->base + (CUdeviceptr)rank * team->stride;
    struct sw_kernel_args args = {.base = team->base,
                                  .stride = team->stride,
                                  .rank = rank,
                                  .nranks = team->nranks,
                                  .in = own + at.in,
                                  .out = own + at.out,
                                  .count = c->bytes,
                                  .bytes = c->bytes,
                                  .digest = c->seed,
                                  .done = own + offsetof(struct sw_comm_state, done),
                                  .slot_bytes = team->slot_bytes,
                                  .timeout_ns = 20000000000u};
    void *params[] = {&args};
    CUdeviceptr report = 0;

    must(sw_drv.cuCtxSetCurrent(team->context[rank]), "cuCtxSetCurrent");
    must(sw_drv.cuMemHostGetDevicePointer(&report, team->report[rank], 0), "report");
    args.report = report;
    must(sw_drv.cuLaunchKernel(kernel_of(team), at.grid, 1, 1, at.block, 1, 1, 0,
                               team->stream[rank], params, NULL),
         "cuLaunchKernel");
}

/* Fills a rank's output, and what is around it, with another byte, and its input. */
static void prepare(const struct team *team, const struct call *c, int rank)
{
    const struct place at = place_of(team, c, rank);
    const size_t all = c->bytes * (size_t)team->nranks + 2 * GUARD;
    unsigned char *data = job_alloc(all);
    size_t i;

    memset(data, JOB_PATTERN, all);
    team_write(team, rank, at.out - GUARD, data, all);
    for (i = 0; i < c->bytes; i++)
        data[i] = byte_of(c, rank, i);
    team_write(team, rank, at.in, data, c->bytes);
    free(data);
}

static int has_come(const struct team *team, const struct call *c, int rank)
{
    const struct place at = place_of(team, c, rank);
    const size_t all = c->bytes * (size_t)team->nranks;
    unsigned char *data = job_alloc(all + 2 * GUARD);
    size_t wrong = 0, i;

    team_read(team, rank, at.out - GUARD, data, all + 2 * GUARD);
    for (i = 0; i < GUARD; i++)
        wrong += (data[i] != JOB_PATTERN) + (data[GUARD + all + i] != JOB_PATTERN);
    for (i = 0; i < all; i++)
        wrong += data[GUARD + i] != byte_of(c, (int)(i / c->bytes), i % c->bytes);
    team_read(team, rank, at.in, data, c->bytes);
    for (i = 0; i < c->bytes; i++)
        wrong += data[i] != byte_of(c, rank, i);
    free(data);
    if (wrong > 0)
        printf("# rank %d of %d, %zu bytes, seed %u: %zu wrong bytes\n", rank, team->nranks,
               c->bytes, c->seed, wrong);
    return wrong == 0;
}

/* Rounds are those of whole slots of entries of a word each. */
static uint32_t rounds_of(const struct team *team, const struct call *c)
{
    const size_t words = (c->bytes + WORD - 1) / WORD, most = 2 * team->slot_bytes / ENTRY;

    return (uint32_t)((words + most - 1) / most);
}

static int run(struct team *team, const struct call *c)
{
    struct sw_comm_state before[TEAM_MAX_RANKS];
    int r, ok = 1;

    for (r = 0; r < team->nranks; r++) {
        before[r] = team_state(team, r);
        prepare(team, c, r);
    }
    for (r = 0; r < team->nranks; r++)
        launch(team, c, r);
    for (r = 0; r < team->nranks; r++)
        team_wait(team, r);
    for (r = 0; r < team->nranks; r++) {
        const struct sw_comm_state now = team_state(team, r);
        const int right = now.epoch - before[r].epoch == 1 && now.arrived == 0 &&
                          now.rounds - before[r].rounds == rounds_of(team, c) && now.failed == 0 &&
                          now.done - before[r].done == place_of(team, c, r).grid &&
                          team_slots_are_empty(team, r);

        if (!right)
            printf("# rank %d, %zu bytes: %u rounds and not %u, epoch %u after %u, failed %u\n", r,
                   c->bytes, now.rounds - before[r].rounds, rounds_of(team, c), now.epoch,
                   before[r].epoch, now.failed);
        ok = has_come(team, c, r) && right && ok;
    }
    return ok;
}

/* Around word, entry and round; messages of many rounds. */
static void test_ranks(int nranks, size_t slot_bytes)
{
    static const size_t bytes[] = {1, 7, 8, 9, 63, 64, 65, 71, 72, 127, 128, 129, 200, 513, 1000};
    struct team team;
    unsigned seed = 1;
    size_t i;
    int k, ok = 1;

    team_open(&team, nranks, nranks < 4 ? nranks : 4, 0, slot_bytes, 1 << 17);
    for (i = 0; i < COUNT_OF(bytes); i++)
        for (k = 0; k < (nranks > 16 ? 1 : 4); k++, seed++) {
            const struct call c = {bytes[i], seed, k == 0};

            if (seed % THIN == 0)
                ok = run(&team, &c) && ok;
        }
    tap_ok(ok, "%d ranks, slots of %zu bytes, each rank as it likes", nranks, slot_bytes);
    /* Counters wrap like those of any other call. */
    team_set_epochs(&team, 0u - 2, 0u - 3);
    for (k = 0, ok = 1; k < 5; k++, seed++) {
        const struct call c = {nranks > 16 ? 9 : 300, seed, 0};

        ok = run(&team, &c) && ok;
    }
    tap_ok(ok, "%d ranks: counters wrap", nranks);
    team_close(&team);
}

/* ---- failures -------------------------------------------------------------------------------- */

static int output_is_untouched(const struct team *team, const struct call *c, int rank)
{
    const size_t all = c->bytes * (size_t)team->nranks;
    unsigned char *data = job_alloc(all);
    size_t i;

    team_read(team, rank, place_of(team, c, rank).out, data, all);
    for (i = 0; i < all && data[i] == JOB_PATTERN; i++)
        ;
    free(data);
    return i == all;
}

/* A kernel that begins after a failure sends nothing and receives nothing. */
static void test_after_a_failure(void)
{
    const struct call c = {700, 10, 1};
    struct sw_comm_state state;
    struct team team;

    team_open(&team, 2, 2, 0, 64, 1 << 16);
    tap_ok(run(&team, &c), "a call before the failure");
    prepare(&team, &c, 0);
    state = team_state(&team, 0);
    state.failed = SW_FAILED(SW_KERNEL_ABORTED, 1, state.epoch);
    team_write(&team, 0, 0, &state, sizeof state);
    launch(&team, &c, 0);
    team_wait(&team, 0);
    TAP_EQ("it moves no epoch", team_state(&team, 0).epoch, state.epoch);
    TAP_EQ("it leaves no block behind", team_state(&team, 0).arrived, 0);
    TAP_EQ("it counts its blocks", team_state(&team, 0).done - state.done,
           place_of(&team, &c, 0).grid);
    tap_ok(team_slots_are_empty(&team, 1), "it sends nothing");
    tap_ok(output_is_untouched(&team, &c, 0), "it writes nothing");
    team_close(&team);
}

int main(void)
{
    static const int counts[] = {1, 2, 3, 4, 5, 8, 9, 17, 72};
    size_t i;

    setenv("SYMWIN_DRIVER", "emu", 1);
    setenv("SYMWIN_EMU_DEVICES", "4", 1);
    if (sw_driver_load() != SYMWIN_OK) {
        printf("Bail out! no emulated driver\n");
        return 1;
    }
    for (i = 0; i < COUNT_OF(counts) && counts[i] <= MOST_RANKS; i++)
        test_ranks(counts[i], 64);
    test_ranks(3, 16); /* rounds of two words */
    test_after_a_failure();
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
