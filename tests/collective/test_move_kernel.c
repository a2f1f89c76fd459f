/* The kernel that moves bytes by push, launched directly on the emulated driver with each pattern:
 * what a call leaves behind (epoch, rounds, slots, counted blocks), and ranks that have nothing in
 * common but the pattern and the bytes: each with an alignment, a grid and a place for its input of
 * its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "kernel_team.h"
#include "kernels/table_layout.h"
#include "tap.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

enum { GUARD = 32, WORD = 8, ENTRY = 16, IN_FLIGHT = 24, TURNS = 6 };
enum { GROUP = 4096, GROUP_DATA = 3584 }; /* of bundles: bytes of a slot, and of a part */

/* To ThreadSanitizer 72 ranks are nothing that 17 are not, and take it many times as long. THREADS
 * is the limit of a block in the emulated driver (kernels/emu_image.cc). */
#if defined(__SANITIZE_THREAD__)
enum { MOST_RANKS = 17, THIN = 3, THREADS = 40 };
#elif defined(__SANITIZE_ADDRESS__)
enum { MOST_RANKS = 72, THIN = 2, THREADS = 64 };
#else
enum { MOST_RANKS = 72, THIN = 1, THREADS = 64 };
#endif

/* Which ranks have an input or an output, and whether it has a part for each rank. */
static const struct pattern {
    const char *name;
    int root_sends, root_receives, in_each, out_each;
} patterns[] = {
    {"all-gather", 0, 0, 0, 1}, {"all-to-all", 0, 0, 1, 1}, {"broadcast", 1, 0, 0, 0},
    {"gather", 0, 1, 0, 1},     {"scatter", 1, 0, 1, 0},
};

/* A call; rank r's buffers and grid follow from it. */
struct call {
    size_t bytes;
    unsigned seed;
    int alike; /* else ranks differ in all that they may differ in */
    int root;
    const struct pattern *is;
    size_t base; /* of its buffers in both areas */
    int bundles; /* parts are sent in bundles */
};

static struct call call_of(size_t bytes, unsigned seed, int alike, int nranks)
{
    return (struct call){bytes,
                         seed,
                         alike,
                         (int)(seed / COUNT_OF(patterns)) % nranks,
                         &patterns[seed % COUNT_OF(patterns)],
                         0,
                         0};
}

static int sends(const struct call *c, int rank)
{
    return !c->is->root_sends || rank == c->root;
}

static int receives(const struct call *c, int rank)
{
    return !c->is->root_receives || rank == c->root;
}

static size_t in_bytes(const struct team *team, const struct call *c)
{
    return c->bytes * (c->is->in_each ? (size_t)team->nranks : 1);
}

static size_t out_bytes(const struct team *team, const struct call *c)
{
    return c->bytes * (c->is->out_each ? (size_t)team->nranks : 1);
}

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
    struct place at = {.in = team->input + c->base + GUARD,
                       .out = team->output + c->base + GUARD,
                       .grid = 1 + random % 3,
                       .block = 1 + random / 4 % THREADS};

    if (!c->bundles || random / 128 % 2 == 0) {
        at.in += random / 256 % 16;
        at.out += random / 4096 % 16;
    }
    if (random / 65536 % 3 == 0 && sends(c, rank) && receives(c, rank)) { /* in place */
        if (!c->is->in_each)
            at.in = at.out + (c->is->out_each ? (size_t)rank * c->bytes : 0);
        else if (c->is->out_each)
            at.in = at.out;
        else
            at.out = at.in + (size_t)rank * c->bytes;
    }
    return at;
}

/* Rounds are those of whole slots: of entries of a word each, or of groups of bundles. */
static uint32_t rounds_of(const struct team *team, const struct call *c)
{
    const size_t each = c->bundles ? GROUP_DATA : WORD, slot = c->bundles ? GROUP : ENTRY;
    const size_t parts = (c->bytes + each - 1) / each, most = 2 * team->slot_bytes / slot;

    return (uint32_t)((parts + most - 1) / most);
}

/* Of bundles a rank whose parts are whole items may use the kernel for these. */
static const char *kernel_name(const struct team *team, const struct call *c, int rank)
{
    const struct place at = place_of(team, c, rank);
    const int whole = c->bytes % 16 == 0 && at.in % 16 == 0 && at.out % 16 == 0;

    return c->bundles && whole && rounds_of(team, c) == 1 && (c->seed + (unsigned)rank) % 3 != 0
               ? "sw_move_oneshot_bytes_move_n_long"
               : "sw_move_oneshot_bytes_move_n_any";
}

static CUfunction kernel_of(const struct team *team, const char *name)
{
    CUkernel kernel = NULL;
    CUfunction function = NULL;

    must(sw_drv.cuLibraryGetKernel(&kernel, team->library[0], name), "cuLibraryGetKernel");
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
                                  .in = sends(c, rank) ? own + at.in : 1,
                                  .out = receives(c, rank) ? own + at.out : 1,
                                  .count = c->bytes,
                                  .bytes = c->bytes,
                                  .to = !sends(c, rank)        ? SW_NO_RANK
                                        : c->is->root_receives ? c->root
                                                               : SW_EVERY_RANK,
                                  .from = !receives(c, rank)  ? SW_NO_RANK
                                          : c->is->root_sends ? c->root
                                                              : SW_EVERY_RANK,
                                  .in_step = c->is->in_each ? c->bytes : 0,
                                  .out_step = c->is->out_each ? c->bytes : 0,
                                  .digest = c->seed,
                                  .stage = c->bundles ? SW_MOVE_BUNDLES : SW_MOVE_FLAGS,
                                  .done = own + offsetof(struct sw_comm_state, done),
                                  .slot_bytes = team->slot_bytes,
                                  .timeout_ns = 20000000000u};
    void *params[] = {&args};
    CUdeviceptr report = 0;

    must(sw_drv.cuCtxSetCurrent(team->context[rank]), "cuCtxSetCurrent");
    must(sw_drv.cuMemHostGetDevicePointer(&report, team->report[rank], 0), "report");
    args.report = report;
    must(sw_drv.cuLaunchKernel(kernel_of(team, kernel_name(team, c, rank)), at.grid, 1, 1, at.block,
                               1, 1, 0, team->stream[rank], params, NULL),
         "cuLaunchKernel");
}

/* Fills a rank's output, and what is around it, with another byte, and its input. */
static void prepare(const struct team *team, const struct call *c, int rank)
{
    const struct place at = place_of(team, c, rank);
    const size_t all = c->bytes * (size_t)team->nranks + 2 * GUARD, in = in_bytes(team, c);
    unsigned char *data = job_alloc(all);
    size_t i;

    memset(data, JOB_PATTERN, all);
    team_write(team, rank, at.out - GUARD, data, out_bytes(team, c) + 2 * GUARD);
    for (i = 0; i < in; i++)
        data[i] = byte_of(c, rank, i);
    if (sends(c, rank))
        team_write(team, rank, at.in, data, in);
    free(data);
}

/* Byte `i` of a rank's output. */
static unsigned char expected(const struct call *c, int rank, size_t i)
{
    const int source = c->is->out_each ? (int)(i / c->bytes) : c->root;

    return byte_of(c, source, (c->is->in_each ? (size_t)rank * c->bytes : 0) + i % c->bytes);
}

static int has_come(const struct team *team, const struct call *c, int rank)
{
    const struct place at = place_of(team, c, rank);
    const size_t out = out_bytes(team, c), in = in_bytes(team, c);
    const int in_place = at.in < at.out + out && at.out < at.in + in;
    unsigned char *data = job_alloc(c->bytes * (size_t)team->nranks + 2 * GUARD);
    size_t wrong = 0, i;

    team_read(team, rank, at.out - GUARD, data, out + 2 * GUARD);
    for (i = 0; i < GUARD && !in_place; i++)
        wrong += (data[i] != JOB_PATTERN) + (data[GUARD + out + i] != JOB_PATTERN);
    for (i = 0; i < out; i++)
        wrong += data[GUARD + i] != (receives(c, rank) ? expected(c, rank, i) : JOB_PATTERN);
    team_read(team, rank, at.in, data, in);
    for (i = 0; i < in && sends(c, rank) && !in_place; i++)
        wrong += data[i] != byte_of(c, rank, i);
    free(data);
    if (wrong > 0)
        printf("# %s, rank %d of %d, root %d, %zu bytes, seed %u: %zu wrong bytes\n", c->is->name,
               rank, team->nranks, c->root, c->bytes, c->seed, wrong);
    return wrong == 0;
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
            printf("# %s, rank %d, %zu bytes: %u rounds and not %u, epoch %u after %u, failed %u\n",
                   c->is->name, r, c->bytes, now.rounds - before[r].rounds, rounds_of(team, c),
                   now.epoch, before[r].epoch, now.failed);
        ok = has_come(team, c, r) && right && ok;
    }
    return ok;
}

/* Calls under way at the same time, of any patterns and any number of rounds: no entry may come to
 * a slot that still has another. */
static void test_in_flight(int nranks, int bundles)
{
    const size_t pitch = (size_t)1 << 12;
    struct call calls[IN_FLIGHT];
    struct team team;
    int r, i, turn, ok = 1;

    team_open(&team, nranks, nranks < 4 ? nranks : 4, 0, bundles ? GROUP / 2 : 32, (size_t)1 << 17);
    for (turn = 0; turn < TURNS; turn++) {
        for (i = 0; i < IN_FLIGHT; i++) {
            const uint32_t random = mix((uint32_t)(turn * IN_FLIGHT + i));

            calls[i] = call_of(1 + random % 200, random, 0, nranks);
            calls[i].base = (size_t)i * pitch;
            calls[i].bundles = bundles && random / 256 % 2 == 0;
            for (r = 0; r < nranks; r++)
                prepare(&team, &calls[i], r);
        }
        for (r = 0; r < nranks; r++)
            for (i = 0; i < IN_FLIGHT; i++)
                launch(&team, &calls[i], r);
        for (r = 0; r < nranks; r++)
            team_wait(&team, r);
        for (r = 0; r < nranks; r++) {
            for (i = 0; i < IN_FLIGHT; i++)
                ok = has_come(&team, &calls[i], r) && ok;
            ok = team_slots_are_empty(&team, r) && team_state(&team, r).failed == 0 && ok;
        }
    }
    tap_ok(ok, "%d ranks: calls of all patterns under way%s", nranks,
           bundles ? ", some in bundles" : "");
    team_close(&team);
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
        for (k = 0; k < (nranks > 16 ? 1 : 11); k++, seed++) {
            const struct call c = call_of(bytes[i], seed, k == 0, nranks);

            if (seed % THIN == 0)
                ok = run(&team, &c) && ok;
        }
    tap_ok(ok, "%d ranks, slots of %zu bytes, each rank as it likes", nranks, slot_bytes);
    /* Counters wrap like those of any other call. */
    team_set_epochs(&team, 0u - 2, 0u - 3);
    for (k = 0, ok = 1; k < 6; k++, seed++) {
        const struct call c = call_of(nranks > 16 ? 9 : 300, seed, 0, nranks);

        ok = run(&team, &c) && ok;
    }
    tap_ok(ok, "%d ranks: counters wrap", nranks);
    team_close(&team);
}

/* Around item, bundle, group and round. Half of the cases have parts of whole items at places that
 * are aligned to one. */
static void test_bundles(int nranks, size_t slot_bytes)
{
    static const size_t bytes[] = {1,    16,   111,  112,  496,  3568,  3583,
                                   3584, 3585, 3600, 7168, 7169, 10752, 14001};
    struct team team;
    unsigned seed = 1;
    size_t i;
    int k, ok = 1;

    team_open(&team, nranks, nranks < 4 ? nranks : 4, 0, slot_bytes, (size_t)1 << 17);
    for (i = 0; i < COUNT_OF(bytes); i++)
        for (k = 0; k < 6; k++, seed++) {
            struct call c = call_of(bytes[i], seed, k == 0, nranks);

            c.bundles = 1;
            if (seed % THIN == 0)
                ok = run(&team, &c) && ok;
        }
    tap_ok(ok, "%d ranks, slots of %zu bytes: bundles", nranks, slot_bytes);
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
    const struct call c = {700, 10, 1, 0, &patterns[0], 0, 0};
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

/* Rank 0 alone receives a group of bundles from rank 1, which lies in its slot but for word
 * `missing` of one bundle: it waits for that one. */
static int waits_for(unsigned missing)
{
    enum { RANKS = 2, EPOCH = 1, BUNDLE = 5, GROUP_BUNDLES = 32, WORDS = GROUP / WORD };
    struct sw_kernel_args args = {0};
    const uint64_t header = (uint64_t)EPOCH << 32, flag = (uint64_t)1 << 63;
    const struct team_call call = {.count = GROUP_DATA, .timeout_ns = 30000000};
    void *params[] = {&args};
    uint64_t slot[WORDS];
    CUdeviceptr address = 0;
    struct team team;
    unsigned i;
    int waited;

    team_open(&team, RANKS, RANKS, 0, GROUP / 2, GROUP);
    for (i = 0; i < WORDS; i++)
        slot[i] = flag;
    if (missing < 2 * GROUP / GROUP_BUNDLES / ENTRY)
        slot[2 * (missing / 2 * GROUP_BUNDLES + BUNDLE) + missing % 2] = 0;
    team_write(&team, 0, SW_STATE_HEADER(RANKS, EPOCH & 1, 1), &header, sizeof header);
    team_write(&team, 0, SW_STATE_SLOT(RANKS, team.slot_bytes, 1, 1), slot, sizeof slot);
    args = team_args(&team, &call, 0);
    args.digest = 0;
    args.bytes = GROUP_DATA;
    args.stage = SW_MOVE_BUNDLES;
    args.to = SW_NO_RANK;
    args.from = 1;
    must(sw_drv.cuCtxSetCurrent(team.context[0]), "cuCtxSetCurrent");
    must(sw_drv.cuMemHostGetDevicePointer(&address, team.report[0], 0), "report");
    args.report = address;
    must(sw_drv.cuLaunchKernel(kernel_of(&team, "sw_move_oneshot_bytes_move_n_any"), 1, 1, 1, 1, 1,
                               1, 0, team.stream[0], params, NULL),
         "cuLaunchKernel");
    team_wait(&team, 0);
    waited = team.report[0]->code == SW_KERNEL_TIMEOUT && team.report[0]->found.rank == 1;
    team_close(&team);
    return waited;
}

static void test_whole_bundles(void)
{
    unsigned missing;
    int ok = 1;

    for (missing = 0; missing < 16; missing++)
        ok = waits_for(missing) && ok;
    tap_ok(ok && !waits_for(missing), "a bundle is taken when all its words are there");
}

/* ---- unequal parts --------------------------------------------------------------------------- */

/* What rank 1 does not do, whom rank 0 waits for. */
static const struct missing {
    const char *name, *kernel;
    int tells;    /* it has told its counts */
    int sends;    /* rank 0 sends it five bytes, and receives none; otherwise the other way */
    int straight; /* they are a large part in a window of who receives it, or who sends it */
} missings[] = {
    {"tells no counts", "sw_table_oneshot_bytes_move_n_any", 0, 0, 0},
    {"sends nothing", "sw_table_oneshot_bytes_move_n_any", 1, 0, 0},
    {"does not say where a part is to be", "sw_table_oneshot_bytes_move_n_long", 1, 1, 1},
    {"does not store", "sw_table_oneshot_bytes_move_n_long", 1, 0, 1},
    {"does not say where a part is", "sw_table_oneshot_bytes_other_n_long", 1, 0, 1},
    {"does not load", "sw_table_oneshot_bytes_other_n_long", 1, 1, 1},
};

/* Rank 0 alone, to whom all seem to have come. Only the wait itself can say whom it waited for. */
static void test_names(const struct missing *is)
{
    enum { RANKS = 3, ODD = 1, EPOCH = 1, BYTES = 5 };
    struct sw_table_args args = {.element = 1,
                                 .large = is->straight ? 1 : UINT64_MAX,
                                 .in.room = SW_TABLE_ANY_ROOM,
                                 .out.room = SW_TABLE_ANY_ROOM,
                                 .in.rows[ODD].count = is->sends ? BYTES : 0,
                                 .out.rows[ODD].count = is->sends ? 0 : BYTES};
    const uint64_t header = (uint64_t)EPOCH << 32;
    void *params[] = {&args};
    struct team_call call = {.count = BYTES, .timeout_ns = 100000000};
    struct sw_kernel_report *report;
    CUdeviceptr address = 0;
    struct team team;
    int r, which;

    team_open(&team, RANKS, RANKS, 0, 64, 4096);
    report = team.report[0];
    for (r = 1; r < RANKS; r++) {
        team_write(&team, 0, SW_STATE_HEADER(RANKS, EPOCH & 1, r), &header, sizeof header);
        for (which = 0; which < 2 && (r != ODD || is->tells); which++) {
            const uint64_t word = 1 + (r == ODD && which == is->sends ? BYTES : 0);

            team_write(&team, 0, SW_STATE_COUNTS(RANKS, EPOCH & 1, which, r), &word, sizeof word);
        }
    }
    args.call = team_args(&team, &call, 0);
    args.call.digest = 0;
    must(sw_drv.cuCtxSetCurrent(team.context[0]), "cuCtxSetCurrent");
    must(sw_drv.cuMemHostGetDevicePointer(&address, report, 0), "report");
    args.call.report = address;
    args.call.what = SW_WHAT(0, SW_KERNEL_U8, 0, 0, 0);
    args.place = is->sends ? args.call.in_offset : args.call.out_offset;
    must(sw_drv.cuLaunchKernel(kernel_of(&team, is->kernel), 1, 1, 1, 1, 1, 1, 0, team.stream[0],
                               params, NULL),
         "cuLaunchKernel");
    team_wait(&team, 0);
    tap_ok(report->code == SW_KERNEL_TIMEOUT && report->found.rank == ODD,
           "a rank that %s: code %u, rank %d", is->name, report->code, report->found.rank);
    team_close(&team);
}

/* ---- barriers -------------------------------------------------------------------------------- */

/* They use no finish words, and let none of them grow old. */
static void test_barriers(void)
{
    enum { RANKS = 3, CALLS = 5 };
    const struct team_call call = {.count = 1, .timeout_ns = 20000000000u};
    struct team team;
    int r, p, i, ok = 1;

    team_open(&team, RANKS, RANKS, 0, 64, 4096);
    team_set_epochs(&team, 1000, 0);
    for (i = 0; i < CALLS; i++)
        for (r = 0; r < RANKS; r++) {
            struct sw_kernel_args args = team_args(&team, &call, r);
            void *params[] = {&args};
            CUdeviceptr report = 0;

            must(sw_drv.cuCtxSetCurrent(team.context[r]), "cuCtxSetCurrent");
            must(sw_drv.cuMemHostGetDevicePointer(&report, team.report[r], 0), "report");
            args.report = report;
            must(sw_drv.cuLaunchKernel(kernel_of(&team, "sw_barrier_oneshot_bytes_move_n_any"), 1,
                                       1, 1, 1 + (unsigned)i, 1, 1, 0, team.stream[r], params,
                                       NULL),
                 "cuLaunchKernel");
        }
    for (r = 0; r < RANKS; r++)
        team_wait(&team, r);
    for (r = 0; r < RANKS; r++)
        for (p = 0; p < RANKS; p++) {
            uint64_t word;

            team_read(&team, r, SW_STATE_FINISH(RANKS, p), &word, sizeof word);
            ok = ok && word > 1000 + CALLS - RANKS && word <= 1000 + CALLS;
        }
    tap_ok(ok && team_state(&team, 0).epoch == 1000 + CALLS, "barriers keep finish words fresh");
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
    for (i = 0; i < 2; i++) {
        test_in_flight(3, (int)i);
        test_in_flight(6, (int)i);
    }
    test_bundles(1, GROUP / 2);
    test_bundles(2, GROUP / 2); /* rounds of a group */
    test_bundles(3, GROUP);
    test_bundles(5, GROUP / 2);
    test_bundles(8, 2 * GROUP);
    test_whole_bundles();
    test_after_a_failure();
    for (i = 0; i < COUNT_OF(missings); i++)
        test_names(&missings[i]);
    test_barriers();
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
