/* What the order of several communicators on one set of devices costs: how often a stream waits for
 * a count, and how many launches may begin early. And the counts themselves: they wrap around, and
 * outlive their communicators. */
#include "order.h"

/* ---- what it costs ---- */

static CUresult (*plain_wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static atomic_int waits;

static CUresult count_wait(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    atomic_fetch_add(&waits, 1);
    return plain_wait(stream, address, value, flags);
}

static const struct cost_case {
    struct order_case c;
    int waits, early; /* for each rank */
} costs[] = {
    {{.name = "one", .script = "aaaa", .comms = 1}, 0, 4},
    {{.name = "one of two", .script = "aaaa", .comms = 2}, 0, 4},
    {{.name = "two, small", .script = "abababab", .comms = 2, .blocks = 1, .wide = 4}, 0, 8},
    {{.name = "two, large", .script = "ababab", .comms = 2}, 5, 1},
    {{.name = "two, large, several of each", .script = "aaabbb", .comms = 2}, 1, 5},
    {{.name = "two on one stream", .script = "ababab", .comms = 2, .one_stream = 1}, 0, 6},
    {{.name = "two that fit by max_blocks",
      .script = "ababab",
      .comms = 2,
      .max_blocks = 16,
      .wide = 32},
     0,
     0},
    {{.name = "two that are not ordered",
      .script = "aabb",
      .comms = 2,
      .flags = SYMWIN_COMM_NO_ORDER},
     0,
     4},
    /* The put ahead of the copies fills 32 multiprocessors, the sums between them 16. */
    {{.name = "copies in place, whose put has more blocks than their sums",
      .script = "abab",
      .comms = 2,
      .algo = SYMWIN_ALGO_COPIES,
      .count = 1 << 12,
      .max_blocks = 32,
      .wide = 32},
     3,
     0},
    {{.name = "a graph of few blocks", .script = "bA", .comms = 2, .blocks = 1, .wide = 4}, 0, 3},
    {{.name = "a graph of many", .script = "bA", .comms = 2}, 0, 1},
    {{.name = "a graph beside one that made no call", .script = "A", .comms = 2}, 0, 2},
    {{.name = "a graph of the only one, then another", .script = "Ab", .comms = 2}, 0, 3},
    {{.name = "room for kernels that begin early",
      .script = "ab",
      .comms = 2,
      .blocks = TWO_FIFTHS,
      .wide = 16},
     1,
     1},
    {{.name = "a small call behind a large one",
      .script = "aa.b",
      .comms = 2,
      .blocks = TWO_FIFTHS,
      .wide = 16},
     1,
     2},
    {{.name = "two that do not fit beside a graph",
      .script = "bcAbc",
      .comms = 3,
      .blocks = TWO_FIFTHS,
      .wide = 16},
     3,
     1},
    {{.name = "behind one that was destroyed",
      .script = "abc!ab",
      .comms = 3,
      .blocks = 1,
      .wide = 8},
     2,
     3},
    {{.name = "groups, large",
      .script = "ababab",
      .comms = 2,
      .blocks = TWO_FIFTHS,
      .count = FEW,
      .algo = SYMWIN_ALGO_ONESHOT,
      .groups = BROADCASTS,
      .wide = 16},
     5,
     1},
    {{.name = "groups, small",
      .script = "abab",
      .comms = 2,
      .blocks = 1,
      .count = FEW,
      .algo = SYMWIN_ALGO_ONESHOT,
      .groups = BROADCASTS,
      .wide = 4},
     0,
     4},
    {{.name = "one where ranks share a device", .script = "aaaa", .comms = 1, .shares = 1}, 0, 0},
    {{.name = "two where ranks share a device", .script = "abab", .comms = 2, .shares = 1}, 3, 0},
};

static void run_cost(struct harness_team *team, int rank, void *arg)
{
    const struct cost_case *cost = arg;
    struct member m;
    const char *at;

    open_member(&m, team, rank, &cost->c);
    harness_barrier(team);
    for (at = cost->c.script; *at != '\0'; at++) {
        m.small = at[1] == '.';
        if (*at == '!') {
            symwin_comm_destroy(m.comms[at[-1] - 'a']);
            m.comms[at[-1] - 'a'] = NULL;
            harness_barrier(team); /* unmapping waits for kernels, which would wait for this rank */
        } else if (isupper(*at))   /* captures two calls and launches none */
            for (int i = 0; i < 2; i++)
                host_must_cuda(sw_drv.cuGraphExecDestroy(capture(&m, 0, 0)), "cuGraphExecDestroy");
        else
            make_call(&m, *at - 'a');
        at += m.small;
    }
    tap_ok(finish(&m) == SYMWIN_OK, "%s, rank %d", cost->c.name, rank);
    close_member(&m);
}

static void check_cost(struct cost_case *cost)
{
    plain_wait = sw_drv.cuStreamWaitValue32;
    sw_drv.cuStreamWaitValue32 = count_wait;
    atomic_store(&waits, 0);
    atomic_store(&early, 0);
    harness_run(RANKS, run_cost, cost);
    sw_drv.cuStreamWaitValue32 = plain_wait;
    tap_ok(atomic_load(&waits) == RANKS * cost->waits, "%s: %d waits, %d are right", cost->c.name,
           atomic_load(&waits), RANKS * cost->waits);
    tap_ok(atomic_load(&early) == RANKS * cost->early, "%s: %d launches begin early, %d are right",
           cost->c.name, atomic_load(&early), RANKS * cost->early);
}

static __thread int launches_fail;

static CUresult fail_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    return launches_fail ? CUDA_ERROR_OUT_OF_MEMORY : plain_launch(config, function, params, extra);
}

/* Calls that fail before they are ordered, and after it, when they are launched. */
static const struct failed_case {
    struct order_case c;
    int is_launched;
    int waits; /* for each rank; the failed call may have queued one */
} failed_cases[] = {
    {{.name = "refused", .comms = 2, .blocks = 1}, 0, 1},
    {{.name = "not launched", .comms = 2, .blocks = 1}, 1, 2},
    {{.name = "a group, not launched",
      .comms = 2,
      .blocks = 1,
      .count = FEW,
      .algo = SYMWIN_ALGO_ONESHOT,
      .groups = BROADCASTS},
     1,
     2},
    {{.name = "messages, not launched", .comms = 2, .blocks = 1, .count = FEW, .groups = MESSAGES},
     1,
     2},
};

/* A call that has failed is not the last one of the communicator: the next one on its stream still
 * waits for the one before, on another stream. Its blocks are not counted. */
static void run_failed(struct harness_team *team, int rank, void *arg)
{
    const symwin_allreduce_options many = {
        .size = sizeof many, .algo = SYMWIN_ALGO_TWOSHOT, .blocks = 1 << 20};
    const struct failed_case *f = arg;
    struct member m;
    uint32_t done;

    open_member(&m, team, rank, &f->c);
    fill(&m, 0);
    host_must(call(&m, 0, m.streams[0]), "a call");
    done = m.comms[0]->done;
    launches_fail = f->is_launched;
    if (f->is_launched)
        host_expect("a launch fails", call(&m, 0, m.streams[1]), SYMWIN_NO_MEMORY, "cuLaunch");
    else
        host_expect("more blocks than fit",
                    symwin_allreduce_with(m.comms[0], m.data[0], m.data[0], COUNT, SYMWIN_F32,
                                          SYMWIN_SUM, &many, m.streams[1]),
                    SYMWIN_UNSUPPORTED, "blocks");
    launches_fail = 0;
    TAP_EQ("blocks of a call that has failed", m.comms[0]->done - done, 0);
    host_must(call(&m, 0, m.streams[1]), "a call on the stream of the failed one");
    m.calls[0] = 2;
    tap_ok(finish(&m) == SYMWIN_OK && is_right(&m, 0), "%s: calls around it, rank %d", f->c.name,
           rank);
    close_member(&m);
}

static _Atomic unsigned widest;

static CUresult see_grid(const CUlaunchConfig *config, CUfunction function, void **params,
                         void **extra)
{
    unsigned seen = atomic_load(&widest);

    while (seen < config->gridDimX &&
           !atomic_compare_exchange_weak(&widest, &seen, config->gridDimX))
        ;
    return plain_launch(config, function, params, extra);
}

/* A captured call gets its share of the device, though it asks for more. */
static const struct order_case large = {.name = "large", .comms = 2, .blocks = MORE_THAN_HALF};
static const struct order_case groups = {.name = "groups",
                                         .comms = 2,
                                         .blocks = MORE_THAN_HALF,
                                         .count = FEW,
                                         .algo = SYMWIN_ALGO_ONESHOT,
                                         .groups = BROADCASTS};
static const struct order_case messages = {.name = "messages",
                                           .comms = 2,
                                           .blocks = MORE_THAN_HALF,
                                           .count = FEW,
                                           .algo = SYMWIN_ALGO_ONESHOT,
                                           .groups = MESSAGES};

static void run_share(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    int i;

    open_member(&m, team, rank, arg);
    for (i = 0; i < 2; i++)
        make_call(&m, i);
    tap_ok(finish(&m) == SYMWIN_OK, "calls of two, rank %d", rank);
    harness_barrier(team);
    if (rank == 0)
        sw_drv.cuLaunchKernelEx = see_grid;
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(capture(&m, 0, 0)), "cuGraphExecDestroy");
    harness_barrier(team);
    if (rank == 0)
        sw_drv.cuLaunchKernelEx = count_launch;
    close_member(&m);
}

static void share(const struct order_case *c)
{
    struct order_case one = *c;

    atomic_store(&widest, 0);
    harness_run(RANKS, run_share, &one);
    tap_ok(widest > 0 && widest <= (unsigned)multiprocessors / 2,
           "%s: a captured grid: %u blocks of %d", c->name, widest, multiprocessors);
}

static void failed(const struct failed_case *f)
{
    struct failed_case one = *f;

    plain_wait = sw_drv.cuStreamWaitValue32;
    sw_drv.cuStreamWaitValue32 = count_wait;
    sw_drv.cuLaunchKernelEx = fail_launch;
    atomic_store(&waits, 0);
    harness_run(RANKS, run_failed, &one);
    sw_drv.cuStreamWaitValue32 = plain_wait;
    sw_drv.cuLaunchKernelEx = count_launch;
    tap_ok(atomic_load(&waits) == RANKS * f->waits,
           "%s: %d waits for the call before, %d are right", f->c.name, atomic_load(&waits),
           RANKS * f->waits);
}

/* ---- counts ---- */

static const struct order_case three = {.name = "three", .comms = 3, .blocks = MORE_THAN_HALF};
static const struct order_case narrow = {.name = "narrow", .comms = 3, .max_blocks = 20};

/* A call with so many blocks, which begins no earlier than it must. */
static void call_small(const struct member *m, int i, int blocks)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT, .blocks = blocks, .threads = 32};

    host_must(symwin_allreduce_with(m->comms[i], m->data[i], m->data[i], COUNT, SYMWIN_F32,
                                    SYMWIN_SUM, &options, m->streams[i]),
              "a call");
}

/* Whether the stream finishes. If it does not, this releases it. */
static int comes_to_its_end(const struct member *m, int i, const symwin_comm *waited, uint32_t met)
{
    enum { MOST_MS = 20000 };
    int ms = 0;

    for (; ms < MOST_MS && sw_drv.cuStreamQuery(m->streams[i]) != CUDA_SUCCESS; ms++)
        host_pause_ms(1);
    if (ms == MOST_MS)
        host_put_u32(m->device, (void *)(uintptr_t)waited->done_address, met);
    host_must(symwin_stream_synchronize(m->device, m->streams[i]), "synchronize");
    host_put_u32(m->device, (void *)(uintptr_t)waited->done_address, waited->done);
    return ms < MOST_MS;
}

/* A communicator's block count advances by half of its range and more. Only then another
 * communicator waits for the count noted at the beginning of the generation. */
static void run_around(struct harness_team *team, int rank, void *arg)
{
    const uint32_t *blocks = arg;
    struct member m;
    uint32_t before;

    open_member(&m, team, rank, &narrow);
    call_small(&m, 0, 16);
    call_small(&m, 1, 2);
    before = m.comms[1]->done;
    call_small(&m, 2, 20); /* does not fit beside both, though each fits beside it */
    call_small(&m, 1, 2);
    (void)finish(&m);
    harness_barrier(team);
    host_count_on(m.comms[1], *blocks);
    call_small(&m, 0, 2);
    tap_ok(m.comms[0]->calls->generation == m.comms[1]->calls->generation &&
               m.comms[1]->calls->before_done == before &&
               comes_to_its_end(&m, 0, m.comms[1], before),
           "%u blocks later, rank %d", *blocks, rank);
    (void)finish(&m);
    close_member(&m);
}

static CUresult (*plain_unmap)(CUdeviceptr, size_t);
static _Atomic CUdeviceptr waited[RANKS]; /* by the streams of each device */
static atomic_int gone[RANKS];

static CUresult see_wait(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    CUdevice device = 0;

    (void)sw_drv.cuCtxGetDevice(&device);
    waited[device % RANKS] = address;
    return plain_wait(stream, address, value, flags);
}

static CUresult see_unmap(CUdeviceptr ptr, size_t bytes)
{
    int i;

    for (i = 0; i < RANKS; i++)
        if (waited[i] - ptr < bytes)
            atomic_store(&gone[i], 1);
    return plain_unmap(ptr, bytes);
}

/* The counter that a stream waits for outlives its communicator and serves another one. The
 * emulated driver waits for the device before it unmaps, so the wait has ended by then; on hardware
 * it need not have. */
static void run_destroyed(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    int round;

    (void)arg;
    open_member(&m, team, rank, &three);
    symwin_comm_destroy(m.comms[2]);
    m.comms[2] = NULL;
    harness_barrier(team);
    fill(&m, 1);
    fill(&m, 2);
    for (round = 0; round < 3; round++) {
        make_call(&m, round == 0 ? 0 : 2);
        make_call(&m, 1);
        host_must(symwin_stream_synchronize(m.device, m.streams[1]), "synchronize");
        symwin_comm_destroy(m.comms[round == 0 ? 0 : 2]);
        m.comms[round == 0 ? 0 : 2] = NULL;
        tap_ok(waited[m.device] != 0 && !gone[m.device],
               "what a stream waits for is there when its communicator has gone, rank %d", rank);
        harness_barrier(team);
        if (rank == 0)
            host_must(symwin_unique_id_create(&shared.ids[2]), "symwin_unique_id_create");
        harness_barrier(team);
        create(&m, 2);
    }
    make_call(&m, 2);
    tap_ok(finish(&m) == SYMWIN_OK && is_right(&m, 1) && is_right(&m, 2),
           "calls that took turns with those of communicators that went, rank %d", rank);
    close_member(&m);
}

static void destroyed(void)
{
    plain_wait = sw_drv.cuStreamWaitValue32;
    plain_unmap = sw_drv.cuMemUnmap;
    sw_drv.cuStreamWaitValue32 = see_wait;
    sw_drv.cuMemUnmap = see_unmap;
    harness_run(RANKS, run_destroyed, NULL);
    sw_drv.cuStreamWaitValue32 = plain_wait;
    sw_drv.cuMemUnmap = plain_unmap;
}

/* Those where ranks share a device, or the others. */
static void check_costs(const char *only, int shares)
{
    size_t i;

    for (i = 0; i < sizeof costs / sizeof costs[0]; i++) {
        struct cost_case cost = costs[i];

        if (cost.c.shares == shares && is_wanted(&cost.c, only))
            check_cost(&cost);
    }
}

int main(int argc, char **argv)
{
    static uint32_t blocks[] = {0, 1u << 30, (1u << 31) - 4, 1u << 31, 3u << 30, UINT32_MAX};
    const char *only = argc > 1 ? argv[1] : "";
    struct harness_leaks before;
    size_t i;

    order_start();
    if (!sw_driver_is_emulated())
        tap_skip_all("the counts are those of the emulated driver's device");
    before = harness_leaks_now();
    check_costs(only, 0);
    for (i = 0; i < sizeof blocks / sizeof blocks[0] && multiprocessors >= 32; i++)
        harness_run(RANKS, run_around, &blocks[i]);
    destroyed();
    for (i = 0; i < sizeof failed_cases / sizeof failed_cases[0]; i++)
        failed(&failed_cases[i]);
    share(&large);
    share(&groups);
    share(&messages);
    check_costs(only, 1); /* from here on, the library takes each thread for a rank */
    harness_no_leaks("communicators beside each other", &before);
    return tap_done();
}
