/* symwin/team.cuh: teams of all sizes; barriers of blocks and of grids, of all ranks, of neighbours
 * and across neighbours, never reset; their limits. Ranks as threads, on windows. */
#include "device_member.h"

enum { BYTES = 1 << 16, WRONG = BYTES - 24 };

struct meeting {
    uint32_t team;
    int size;
};

static struct team_args args_of(const struct member *m, const struct meeting *meeting)
{
    symwin_window_info info;

    host_must(symwin_window_query(m->comm, m->window, &info), "symwin_window_query");
    return (struct team_args){
        .base = (uint64_t)(uintptr_t)info.base,
        .stride = info.stride,
        .rank = info.rank,
        .nranks = info.nranks,
        .offset = info.offset,
        .bytes = info.bytes,
        .team = meeting->team,
        .size = meeting->size,
        .barrier = info.offset + BYTES / 2,
        .wrong = WRONG,
        .turns = 20,
        .timeout_ns = 20000000000u,
    };
}

static int members(const struct member *m, const struct meeting *meeting)
{
    const int n = m->team->nranks, first = m->rank / meeting->size * meeting->size;

    if (meeting->team == TEAM_ALL)
        return n;
    if (meeting->team == TEAM_NEAR)
        return n - first < meeting->size ? n - first : meeting->size;
    return (n - m->rank % meeting->size + meeting->size - 1) / meeting->size;
}

static void meet(struct harness_team *team, int rank, void *arg)
{
    const struct meeting *meeting = arg;
    struct team_args args;
    struct member m;
    int launches;

    member_open(&m, team, rank, BYTES);
    harness_barrier(team);
    args = args_of(&m, meeting);
    for (launches = 0; launches < 3; launches++) { /* the counters continue from the last launch */
        member_launch(&m, "team_blocks", 3, 33, 0, &args);
        args.launched += args.turns;
    }
    harness_barrier(team);
    args.barrier += BYTES / 4;
    for (launches = 0; launches < 3; launches++) {
        member_launch(&m, "team_grids", 3, 33, 0, &args);
        args.launched += args.turns;
    }
    TAP_EQ("words that were not those of the turn", host_get_u32(m.device, m.memory + WRONG), 0);
    TAP_EQ("barriers that were given up", host_get_u32(m.device, m.memory + WRONG + 4), 0);
    harness_barrier(team);
    if (rank == 0) { /* the others never come */
        const int left = members(&m, meeting) > 1 ? 3 * 32 : 0;

        if (left > 0)
            args.timeout_ns = 30000000;
        member_launch(&m, "team_grids", 3, 32, 0, &args);
        TAP_EQ("a grid's barrier ends for all threads when its time is over",
               host_get_u32(m.device, m.memory + WRONG + 4), left);
        host_put_u32(m.device, m.memory + WRONG + 4, 0);
        args.barrier -= BYTES / 4;
        member_launch(&m, "team_blocks", 3, 32, 0, &args);
        TAP_EQ("and a block's", host_get_u32(m.device, m.memory + WRONG + 4), left);
    }
    member_close(&m);
}

/* Barriers without a time limit, to which the others never come, end by the abort word. It is in
 * host memory, so the host can store to it while a kernel runs. */
static void aborts(struct harness_team *team, int rank, void *unused)
{
    static const struct meeting all = {TEAM_ALL, 1};
    struct team_args args;
    void *word = NULL;
    struct member m;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    args = args_of(&m, &all);
    args.timeout_ns = 0;
    if (rank == 0) {
        host_must_cuda(sw_drv.cuMemHostAlloc(&word, 4096,
                                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                       "cuMemHostAlloc");
        __atomic_store_n((uint32_t *)word, 0, __ATOMIC_RELAXED);
        args.abort = (uint64_t)(uintptr_t)word;
        member_launch_only(&m, "team_grids", 3, 32, 0, &args);
        host_pause_ms(20);
        __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELAXED);
        host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
        TAP_EQ("a grid's barrier ends by the abort word",
               host_get_u32(m.device, m.memory + WRONG + 4), 3 * 32);
        host_put_u32(m.device, m.memory + WRONG + 4, 0);
        args.barrier += BYTES / 4;
        member_launch(&m, "team_blocks", 3, 32, 0, &args);
        TAP_EQ("and a block's", host_get_u32(m.device, m.memory + WRONG + 4), 3 * 32);
        host_must_cuda(sw_drv.cuMemFreeHost(word), "cuMemFreeHost");
    }
    member_close(&m);
}

/* Barriers of a grid of `*arg` blocks use no more than symwin_barrier_bytes(): the memory behind
 * does not change. */
static void words(struct harness_team *team, int rank, void *arg)
{
    static const struct meeting all = {TEAM_ALL, 1};
    static const char *const kernels[] = {"team_blocks", "team_grids"};
    const int blocks = *(const int *)arg;
    struct team_args args;
    struct member m;
    uint32_t behind;
    char name[80];
    int k;

    member_open(&m, team, rank, BYTES);
    args = args_of(&m, &all);
    for (k = 0; k < 2; k++, args.barrier += BYTES / 4) {
        args.size = blocks;
        member_launch(&m, "team_bytes", 1, 1, 0, &args);
        behind = (uint32_t)(args.barrier - args.offset) + host_get_u32(m.device, m.memory);
        args.size = all.size;
        host_put_u32(m.device, m.memory + behind, 0x600df00d);
        harness_barrier(team);
        member_launch(&m, kernels[k], (unsigned)blocks, 33, 0, &args);
        snprintf(name, sizeof name, "%s, %d ranks, %d blocks: the word behind", kernels[k],
                 team->nranks, blocks);
        TAP_EQ(name, host_get_u32(m.device, m.memory + behind), 0x600df00d);
        TAP_EQ("words that were not those of the turn", host_get_u32(m.device, m.memory + WRONG),
               0);
        harness_barrier(team);
    }
    TAP_EQ("barriers that were given up", host_get_u32(m.device, m.memory + WRONG + 4), 0);
    member_close(&m);
}

static void check(struct harness_team *team, int rank, void *unused)
{
    static const struct meeting all = {TEAM_ALL, 1};
    struct team_args args;
    struct member m;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    args = args_of(&m, &all);
    member_launch(&m, "team_check", 1, 1, 0, &args);
    TAP_EQ("teams that are not as they should be", host_get_u32(m.device, m.memory + WRONG), 0);
    member_close(&m);
}

int main(void)
{
    static struct meeting all = {TEAM_ALL, 1}, near = {TEAM_NEAR, 2}, across = {TEAM_ACROSS, 2},
                          uneven = {TEAM_NEAR, 3};
    struct harness_leaks before;
    int blocks, ranks;

    channel_start();
    before = harness_leaks_now();
    harness_run(1, check, NULL);
    harness_run(1, meet, &all);
    harness_run(2, meet, &all);
    harness_run(4, meet, &all);
    harness_run(4, meet, &near);
    harness_run(4, meet, &across);
    harness_run(4, meet, &uneven);
    for (ranks = 1; ranks <= 3; ranks++)
        for (blocks = 1; blocks <= 4; blocks++)
            harness_run(ranks, words, &blocks);
    harness_run(2, aborts, NULL);
    harness_no_leaks("teams", &before);
    return tap_done();
}
