/* What a rank tells a peer about its memory, when the numbers of calls and chunks come again: rank
 * 0 comes first, finds rank 1's header, and must wait for what rank 1 says in this call. What it
 * said in an earlier call of the same number is not taken. Launched directly on the emulated
 * driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/emu.h"
#include "kernel_team.h"
#include "kernels/pair_layout.h"
#include "kernels/table_layout.h"
#include "tap.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Rank 1 tells rank 0 where its memory is: at A, or at B, in the input area or the output area, or
 * that it is in no window. */
enum { A = 0, B = 8192, NOWHERE = 1, BYTES = 4096, AREA = 3 * BYTES, ZEROS = BYTES, TURNS = 3 };
enum { SLOT = 64, CHUNK = 64, GRID = 2, BLOCK = 32, DIGEST = 77, EARLY_US = 100000, FILLED = 0x5a };

/* The call of each turn. Another one of the same number is the second; the third has the number
 * that words have which nobody has written. Chunks have 31 bits of their numbers as flags. */
static const uint32_t epochs[TURNS] = {1, 1, 0};
static const uint64_t chunks[TURNS] = {1, ((uint64_t)1 << 31) + 1, ((uint64_t)1 << 32) + 1};

union args {
    struct sw_kernel_args call;
    struct sw_table_args table;
    struct sw_pair_args pair;
};

struct kind {
    const char *name, *kernel;
    int loads; /* rank 0 loads from rank 1's input; otherwise it stores to rank 1's output */
    int root;
    void (*more)(const struct team *team, int rank, size_t at, union args *args);
};

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("Bail out! %s: CUresult %d\n", what, (int)result);
    exit(1);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void gather(const struct team *team, int rank, size_t at, union args *args)
{
    (void)team;
    (void)at;
    args->call.to = 0;
    args->call.from = rank == 0 ? SW_EVERY_RANK : SW_NO_RANK;
    args->call.out_step = BYTES;
}

static void broadcast(const struct team *team, int rank, size_t at, union args *args)
{
    (void)team;
    (void)at;
    args->call.to = rank == 1 ? SW_EVERY_RANK : SW_NO_RANK;
    args->call.from = 1;
}

static void scatter(const struct team *team, int rank, size_t at, union args *args)
{
    (void)team;
    (void)at;
    args->call.to = rank == 0 ? SW_EVERY_RANK : SW_NO_RANK;
    args->call.from = 0;
    args->call.in_step = rank == 0 ? BYTES : 0;
    args->call.stage = SW_PUT_OFFERED;
}

static void reduce(const struct team *team, int rank, size_t at, union args *args)
{
    (void)team;
    (void)at;
    args->call.in_offset -= rank == 1 ? at : 0;
    args->call.in -= rank == 1 ? at : 0;
    args->call.stage = SW_LOADS_ROOT;
}

static void table(const struct team *team, int rank, size_t at, union args *args)
{
    args->table.element = 1;
    args->table.large = BYTES / 2;
    args->table.place = at == NOWHERE ? SW_NO_OFFSET : team->output + at;
    args->table.in.room = args->table.out.room = SW_TABLE_ANY_ROOM;
    args->table.in.rows[1].count = rank == 0 ? BYTES : 0;
    args->table.out.rows[0].count = rank == 1 ? BYTES : 0;
}

/* Rank 0 adds rank 1's part to its own, which is zero. */
static void added(const struct team *team, int rank, size_t at, union args *args)
{
    table(team, rank, at, args);
    args->table.place = at == NOWHERE ? SW_NO_OFFSET : team->input + at;
    args->table.in.rows[0] = (struct sw_table_row){BYTES, rank == 0 ? ZEROS : 0};
    args->table.in.rows[1].count = 0;
    args->table.out.rows[0].count = args->table.out.rows[1].count = rank == 0 ? BYTES : 0;
    args->call.what = SW_WHAT(0, SW_KERNEL_U8, SW_KERNEL_SUM, 0, 0);
    args->call.op = SW_KERNEL_SUM;
}

static void pair(const struct team *team, int rank, size_t at, union args *args)
{
    args->pair.items = args->pair.large = 1;
    args->pair.item[0] = (struct sw_pair_item){
        .address = rank == 0 ? args->call.in : args->call.out,
        .place = at == NOWHERE ? SW_NO_OFFSET : team->output + at,
        .says = SW_PAIR_SAYS(BYTES, 7),
        .bytes = BYTES,
        .chunks = BYTES / CHUNK,
        .extent = CHUNK,
        .peer = 1 - rank,
        .kind = rank == 0 ? SW_PAIR_SEND : SW_PAIR_RECEIVE,
        .last = 1};
}

static const struct kind kinds[] = {
    {"a gather", "sw_move_twoshot_bytes_move_n_any", 1, 0, gather},
    {"a broadcast", "sw_move_twoshot_bytes_move_n_any", 1, 1, broadcast},
    {"a scatter", "sw_move_put_bytes_move_n_any", 0, 0, scatter},
    {"a reduce", "sw_allreduce_twoshot_u8_sum_n_any", 0, 1, reduce},
    {"a large unequal part", "sw_table_oneshot_bytes_move_n_long", 0, 0, table},
    {"a large part that is added", "sw_table_oneshot_bytes_other_n_long", 1, 0, added},
    {"a large send", "sw_pair_oneshot_bytes_move_n_any", 0, 0, pair},
    {"a large send, one of few", "sw_few_oneshot_bytes_move_n_short", 0, 0, pair},
};

static void launch(const struct team *team, const struct kind *kind, int rank, size_t at)
{
    const size_t place = rank == 1 && at != NOWHERE ? at : 0;
    const struct team_call call = {.count = BYTES,
                                   .in = kind->loads || kind->more == reduce ? place : 0,
                                   .out = kind->loads ? 0 : place,
                                   .timeout_ns = 10000000000u};
    CUkernel kernel = NULL;
    CUfunction function = NULL;
    CUdeviceptr report = 0;
    union args args;
    void *params[] = {&args};

    memset(&args, 0, sizeof args);
    args.call = team_args(team, &call, rank);
    args.call.bytes = BYTES;
    args.call.digest = DIGEST;
    args.call.root = kind->root;
    kind->more(team, rank, rank == 1 ? at : 0, &args);
    must(sw_drv.cuCtxSetCurrent(team->context[rank]), "cuCtxSetCurrent");
    must(sw_drv.cuMemHostGetDevicePointer(&report, team->report[rank], 0), "report");
    args.call.report = report;
    must(sw_drv.cuLibraryGetKernel(&kernel, team->library[0], kind->kernel), kind->kernel);
    must(sw_drv.cuKernelGetFunction(&function, kernel), kind->kernel);
    must(sw_drv.cuLaunchKernel(function, GRID, 1, 1, BLOCK, 1, 1, 0, team->stream[rank], params,
                               NULL),
         kind->kernel);
}

/* ---- a turn ---------------------------------------------------------------------------------- */

static unsigned char sent(int turn, size_t at)
{
    return (unsigned char)(1 + turn * 4 + (at == B ? 1 : 0));
}

/* Inputs have what is sent from there; a reduce adds nothing to it. */
static void prepare(const struct team *team, const struct kind *kind, int turn)
{
    unsigned char data[AREA];
    int r;

    for (r = 0; r < 2; r++) {
        memset(data, FILLED, AREA);
        team_write(team, r, team->output, data, AREA);
        memset(data, kind->more == reduce && r == 1 ? 0 : sent(turn, A), AREA);
        if (kind->loads)
            memset(data + B, sent(turn, B), AREA - B);
        if (kind->more == added)
            memset(data + ZEROS, 0, BYTES);
        team_write(team, r, team->input, data, AREA);
    }
}

/* The numbers of the turn's call and chunks, and in rank 0's memory rank 1's header, which may be
 * there before all that was sent ahead of it. */
static void number(const struct team *team, int turn)
{
    const uint64_t zero = 0, before = chunks[turn] - 1;
    const uint64_t header = (uint64_t)epochs[turn] << 32 | DIGEST;
    int r;

    team_set_epochs(team, epochs[turn] - 1, team_state(team, 0).rounds);
    team_write(team, 0, SW_STATE_HEADER(2, epochs[turn] & 1, 1), &header, sizeof header);
    for (r = 0; r < 2; r++) {
        const size_t words = SW_STATE_PAIR(2, SLOT, 1 - r);

        team_write(team, r, SW_STATE_FINISH(2, 1 - r), &zero, sizeof zero);
        team_write(
            team, r,
            words + (r == 0 ? offsetof(struct sw_pair, sent) : offsetof(struct sw_pair, received)),
            &before, sizeof before);
        team_write(team, r, words + offsetof(struct sw_pair, ended), &before, sizeof before);
    }
}

static int is_right(const struct team *team, const struct kind *kind, int turn, size_t at)
{
    const size_t place = at == NOWHERE ? 0 : at;
    const size_t begin = !kind->loads ? place : kind->more == gather ? BYTES : 0;
    unsigned char data[AREA];
    size_t i, wrong = 0;

    team_read(team, kind->loads ? 0 : 1, team->output, data, AREA);
    for (i = 0; i < AREA; i++)
        if (i >= begin && i < begin + BYTES)
            wrong += data[i] != sent(turn, kind->loads ? at : A);
        else
            wrong += data[i] != FILLED && !(kind->more == gather && i < BYTES);
    if (wrong > 0 || team_state(team, 0).failed != 0 || team_state(team, 1).failed != 0)
        printf("# turn %d: %zu wrong bytes, failed %u and %u\n", turn, wrong,
               team_state(team, 0).failed, team_state(team, 1).failed);
    return wrong == 0 && team_state(team, 0).failed == 0 && team_state(team, 1).failed == 0;
}

static void run(const struct kind *kind, const char *what, const size_t places[TURNS])
{
    struct team team;
    int turn, ok = 1;

    team_open(&team, 2, 2, 0, SLOT, AREA);
    for (turn = 0; turn < TURNS && ok; turn++) {
        prepare(&team, kind, turn);
        number(&team, turn);
        launch(&team, kind, 0, A);
        usleep(EARLY_US);
        launch(&team, kind, 1, places[turn]);
        team_wait(&team, 0);
        team_wait(&team, 1);
        ok = is_right(&team, kind, turn, places[turn]);
    }
    tap_ok(ok, "%s: %s", kind->name, what);
    team_close(&team);
}

int main(void)
{
    static const size_t moves[] = {A, B, A}, enters[] = {NOWHERE, B, NOWHERE},
                        leaves[] = {A, NOWHERE, B};
    size_t i;

    setenv("SYMWIN_DRIVER", "emu", 1);
    setenv("SYMWIN_EMU_DEVICES", "2", 1);
    if (sw_driver_load() != SYMWIN_OK) {
        printf("Bail out! no emulated driver\n");
        return 1;
    }
    for (i = 0; i < COUNT_OF(kinds); i++) {
        run(&kinds[i], "at another place", moves);
        if (kinds[i].more != table && kinds[i].more != added && kinds[i].more != pair)
            continue;
        run(&kinds[i], "first in no window", enters);
        run(&kinds[i], "then in no window", leaves);
    }
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
