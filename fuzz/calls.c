/* Fuzzer of the public calls, on the emulated driver. Ranks as threads run one random script in
 * lockstep, with valid and invalid calls, while a model tells what each call must return and what
 * is live. At the end of each input nothing may be left.
 *
 * Input: two bytes for the ranks, their devices and the machine, then five per step: the kind of
 * step, three arguments, and a twist, by which one rank can do something else than the others.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../emu/emu.h"
#include "calls_comms.h"
#include "calls_graphs.h"
#include "calls_memory.h"
#include "calls_register.h"

enum { MOST_STEPS = 48, SCANNED = 300 };

/* A collective in a stream, in a capture, and one whose arguments differ on a rank, which ends the
 * communicator. */
#define EACH(which)                                                                                \
    {step_collective, done_collective, which, 0}, {step_capture, done_capture, which, 0},          \
    {                                                                                              \
        step_collective, done_collective, which, 1                                                 \
    }

/* The same as `how` says. */
#define MORE(which, how)                                                                           \
    {step_collective, done_collective, which, how},                                                \
    {                                                                                              \
        step_capture, done_capture, which, how                                                     \
    }

/* What each rank calls in a step, and the effect on the model. */
static const struct kind {
    void (*plan)(const struct step *s, int rank, struct call *c);
    void (*done)(const struct step *s, int rank, const struct call *c);
    int collective, how; /* of a step that makes one: which, and enum how */
} kinds[] = {
    {step_alloc, done_alloc, 0, 0},
    {step_alloc, done_alloc, 0, 0},
    {step_free, done_free, 0, 0},
    {step_mem_query, done_mem_query, 0, 0},
    {step_export, done_export, 0, 0},
    {step_close, NULL, 0, 0},
    {step_import, done_import, 0, 0},
    {step_create, done_create, 0, 0},
    {step_create, done_create, 0, 0},
    {step_split, done_split, 0, 0},
    {step_destroy, done_destroy, 0, 0},
    {step_comm_query, done_comm_query, 0, 0},
    {step_check, NULL, 0, 0},
    {step_abort, done_abort, 0, 0},
    {step_register, done_register, 0, 0},
    {step_register, done_register, 0, 0},
    {step_register, done_register, 0, 0},
    {step_deregister, done_deregister, 0, 0},
    {step_window_query, done_window_query, 0, 0},
    {step_peer, done_peer, 0, 0},
    {step_multicast, done_multicast, 0, 0},
    {step_find, done_find, 0, 0},
    {step_collective, done_collective, SYMWIN_ALLREDUCE, 0},
    {step_collective, done_collective, SYMWIN_ALLREDUCE, 0},
    {step_register_twice, done_register, 0, 0},
    {step_enter, done_enter, 0, 0},
    {step_enter, done_enter, 0, 0},
    {step_leave, done_leave, 0, 0},
    {step_range_query, done_range_query, 0, 0},
    {step_capture, done_capture, 0, 0},
    {step_graph, NULL, 0, 0},
    {step_callbacks, NULL, 0, 0},
    {step_capture, done_capture, 0, 0},
    {step_collective, done_collective, SYMWIN_ALLGATHER, 0},
    {step_collective, done_collective, SYMWIN_ALLGATHER, 0},
    {step_capture, done_capture, SYMWIN_ALLGATHER, 0},
    EACH(SYMWIN_ALLTOALL),
    EACH(SYMWIN_BROADCAST),
    EACH(SYMWIN_GATHER),
    EACH(SYMWIN_SCATTER),
    EACH(SYMWIN_REDUCE_SCATTER),
    EACH(SYMWIN_REDUCE),
    EACH(SYMWIN_BARRIER),
    EACH(SYMWIN_ALLTOALLV),
    EACH(SYMWIN_ALLGATHERV),
    EACH(PAIRS),
    EACH(SYMWIN_REDUCE_SCATTERV),
    MORE(SYMWIN_ALLREDUCE, BY_COPIES),
    MORE(SYMWIN_ALLGATHER, BY_COPIES),
    MORE(SYMWIN_ALLTOALL, BY_COPIES),
    MORE(SYMWIN_BROADCAST, BY_COPIES),
    MORE(SYMWIN_GATHER, BY_COPIES),
    MORE(SYMWIN_SCATTER, BY_COPIES),
    MORE(SYMWIN_ALLREDUCE, IN_A_GROUP),
    MORE(SYMWIN_ALLGATHER, IN_A_GROUP),
    MORE(SYMWIN_BROADCAST, IN_A_GROUP),
    MORE(SYMWIN_REDUCE_SCATTER, IN_A_GROUP),
    MORE(PAIRS, IN_A_GROUP),
    MORE(SYMWIN_ALLTOALLV, IN_A_GROUP),
    MORE(SYMWIN_ALLGATHERV, IN_A_GROUP),
    MORE(SYMWIN_REDUCE_SCATTERV, IN_A_GROUP),
    MORE(SYMWIN_ALLREDUCE, COPIES_IN_A_GROUP),
    MORE(SYMWIN_ALLGATHER, COPIES_IN_A_GROUP),
    MORE(SYMWIN_BROADCAST, COPIES_IN_A_GROUP),
    MORE(SYMWIN_GATHER, COPIES_IN_A_GROUP),
    MORE(SYMWIN_ALLREDUCE, APART_IN_A_GROUP),
    MORE(SYMWIN_ALLGATHER, APART_IN_A_GROUP),
    MORE(SYMWIN_REDUCE_SCATTER, APART_IN_A_GROUP),
    MORE(SYMWIN_ALLTOALLV, APART_IN_A_GROUP),
    MORE(PAIRS, APART_IN_A_GROUP),
};

/* ---- one step ---- */

static void run_step(struct fuzz_input *in)
{
    const struct kind *kind = &kinds[fuzz_byte(in) % (sizeof kinds / sizeof kinds[0])];
    struct step s = {
        .collective = kind->collective, .how = (enum how)kind->how, .a = fuzz_byte(in)};
    int r;

    s.b = fuzz_byte(in);
    s.c = fuzz_byte(in);
    s.twist = fuzz_byte(in);
    s.odd = (int)(s.twist >> 6) < model.nranks ? (int)(s.twist >> 6) : -1;
    memset(calls, 0, sizeof calls);
    twice = -1;
    for (r = 0; r < model.nranks; r++)
        kind->plan(&s, r, &calls[r]);
    fill_inputs();
    if (twice < 0)
        team_make(calls, model.nranks);
    else
        team_make_twice(calls, model.nranks, twice, &tried);
    for (r = 0; r < model.nranks && kind->done != NULL; r++)
        if (calls[r].kind != CALL_NONE)
            kind->done(&s, r, &calls[r]);
    check_exhausted();
}

/* ---- mutating a script ---- */

enum { HEAD_BYTES = 2, STEP_BYTES = 5 };

static uint64_t change_state;

static unsigned dice(size_t below)
{
    change_state = change_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((change_state >> 33) % below);
}

/* Small numbers matter most: indices that are in use, valid values. */
static uint8_t dice_argument(void)
{
    return (uint8_t)(dice(4) == 0 ? dice(256) : dice(8));
}

static void fill_step(uint8_t *step)
{
    int i;

    step[0] = (uint8_t)dice(sizeof kinds / sizeof kinds[0]);
    for (i = 1; i < STEP_BYTES - 1; i++)
        step[i] = dice_argument();
    step[STEP_BYTES - 1] = (uint8_t)(dice(2) == 0 ? 0xc0 | dice(64) : dice(256));
}

/* One change of whole steps. Returns the new number of steps. */
static size_t change_steps(uint8_t *steps, size_t count, size_t most)
{
    uint8_t *at = steps + dice(count + 1) * STEP_BYTES;
    uint8_t *end = steps + count * STEP_BYTES;
    uint8_t copy[STEP_BYTES];

    switch (dice(6)) {
    case 0:
    case 1: /* a new step, or a copy of one */
        fill_step(copy);
        if (count > 0 && dice(3) == 0)
            memcpy(copy, steps + dice(count) * STEP_BYTES, STEP_BYTES);
        if (count == most)
            return count;
        memmove(at + STEP_BYTES, at, (size_t)(end - at));
        memcpy(at, copy, STEP_BYTES);
        return count + 1;
    case 2: /* one step less */
        if (at == end)
            return count;
        memmove(at, at + STEP_BYTES, (size_t)(end - at) - STEP_BYTES);
        return count - 1;
    default:
        if (at != end)
            at[dice(STEP_BYTES)] = dice_argument();
        return count;
    }
}

/* Called by libFuzzer and by fuzz/main.c. A mutation of single bytes would shift all later
 * steps. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed)
{
    const size_t fit = room < HEAD_BYTES ? 0 : (room - HEAD_BYTES) / STEP_BYTES;
    const size_t most = fit < MOST_STEPS ? fit : MOST_STEPS;
    size_t count = size < HEAD_BYTES ? 0 : (size - HEAD_BYTES) / STEP_BYTES;
    unsigned changes;

    if (room < HEAD_BYTES)
        return 0;
    change_state = seed;
    if (count > most)
        count = most;
    if (size < HEAD_BYTES || dice(20) == 0) {
        data[0] = (uint8_t)dice(RANKS);
        data[1] = (uint8_t)(dice(2) == 0 ? dice(3) : dice(64));
    }
    for (changes = 1 + dice(4); changes > 0; changes--)
        count = change_steps(data + HEAD_BYTES, count, most);
    return HEAD_BYTES + count * STEP_BYTES;
}

/* ---- start and end ---- */

static char folder[64]; /* for sockets; empty between two inputs */

static void folder_remove(void)
{
    rmdir(folder);
}

static void start_once(void)
{
    static int started;
    const char *place = getenv("TMPDIR");

    if (started)
        return;
    started = 1;
    snprintf(folder, sizeof folder, "%.40s/symwin-fuzz-XXXXXX", place != NULL ? place : "/tmp");
    fuzz_must(mkdtemp(folder) != NULL, "mkdtemp: %s", strerror(errno));
    atexit(folder_remove);
    setenv("TMPDIR", folder, 1);
    unsetenv("XDG_RUNTIME_DIR");
    setenv("SYMWIN_DRIVER", "emu", 1);
    setenv("SYMWIN_EMU_DEVICES", "3", 1);
    setenv("SYMWIN_EMU_MEM", "1G", 1);
    /* No pool, so the model knows how much memory is left; tests/memory/test_pool.c tests it. */
    setenv("SYMWIN_MEM_POOL", "0", 1);
    setenv("SYMWIN_TIMEOUT_MS", "60000", 1); /* later than the fuzzer's limit for hangs */
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "60000", 1);
    fuzz_must(sw_driver_load() == SYMWIN_OK, "%s", symwin_last_error());
    sw_drv.cuLaunchKernelEx = note_launch;
    team_start();
}

static void start(struct fuzz_input *in)
{
    static const size_t totals[] = {(size_t)1 << 30, (size_t)1 << 30, 8 * GRANULE, 3 * GRANULE};
    const unsigned ranks = fuzz_byte(in), devices = fuzz_byte(in);
    struct sw_emu_machine machine;
    int r;

    memset(&model, 0, sizeof model);
    memset(rests, 0, sizeof rests);
    served_want = 0;
    model.nranks = 1 + (int)(ranks % RANKS);
    for (r = 0; r < model.nranks; r++) /* any device's callbacks may be late from the start */
        model.device[r] = devices % 4 == 1 ? 0 : devices % 4 == 2 ? r % 2 : r;
    for (r = 0; r < model.nranks; r++)
        set_late(r, (int)(devices >> (6 + r % 2) & 1));
    model.multicast = (devices & 4) == 0;
    model.fabric = (devices & 8) != 0;
    sw_emu_machine(&machine);
    model.total = totals[devices >> 4 & 3];
    machine.mem_bytes = model.total;
    machine.multicast = model.multicast;
    machine.fabric = model.fabric ? 2 : 0;
    fuzz_must(sw_emu_configure(&machine) == CUDA_SUCCESS, "something lives");
}

/* Communicators first: memory under a window cannot be freed. */
static void finish(void)
{
    int r, i;

    for (r = 0; r < model.nranks; r++)
        for (i = 0; i < COMMS; i++)
            if (model.comm[i].ptr[r] != NULL) {
                symwin_comm_destroy(model.comm[i].ptr[r]);
                comm_leave(&model.comm[i], r);
            }
    destroy_graphs(); /* which outlive what they were captured from */
    drop_extra();
    for (r = 0; r < model.nranks; r++)
        set_late(r, 0);
    callbacks_come(-1);
    for (r = 0; r < model.nranks; r++) {
        if (model.stream[r] != NULL)
            fuzz_must(symwin_stream_destroy(model.device[r], model.stream[r]) == SYMWIN_OK, "%s",
                      symwin_last_error());
        for (i = 0; i < EXPORTS; i++)
            close_export(&model.exported[r][i]);
    }
    for (r = 0; r < model.nranks; r++)
        for (i = 0; i < MEMORIES; i++)
            if (model.memory[r][i].owner != NOBODY)
                fuzz_must(symwin_mem_free(model.memory[r][i].ptr) == SYMWIN_OK, "%s",
                          symwin_last_error());
}

static void check_nothing_left(int descriptors)
{
    (void)sw_reaper_wait(10000);
    if (sw_emu_live_objects() != 0)
        sw_emu_live_print(2);
    fuzz_must(sw_emu_live_objects() == 0, "%zu objects of the driver are left",
              sw_emu_live_objects());
    fuzz_must(fuzz_open_descriptors(SCANNED) == descriptors, "%d descriptors are open, not %d",
              fuzz_open_descriptors(SCANNED), descriptors);
    fuzz_must(rmdir(folder) == 0 && mkdir(folder, 0700) == 0, "%s: %s", folder, strerror(errno));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    int descriptors, steps;

    start_once();
    descriptors = fuzz_open_descriptors(SCANNED);
    start(&in);
    for (steps = 0; steps < MOST_STEPS && in.left > 0; steps++)
        run_step(&in);
    finish();
    check_nothing_left(descriptors);
    return 0;
}
