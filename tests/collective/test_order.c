/* Several communicators on one set of devices. Calls made in the same order on all devices
 * complete, whatever streams they use. Each case holds up streams of two ranks so that their
 * devices reach the calls in opposite orders. */
#include "order.h"

#if defined(__SANITIZE_THREAD__)
enum { WITH_TSAN = 1 };
#else
enum { WITH_TSAN = 0 };
#endif

static const struct order_case cases[] = {
    {.name = "nothing orders them: a deadlock",
     .script = "ab",
     .comms = 2,
     .blocks = ALL, /* with fewer, pairs of blocks that meet would make room for others */
     .flags = SYMWIN_COMM_NO_ORDER,
     .hangs = 1},
    {.name = "eager, large grids", .script = "ab", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "eager, default grids", .script = "abab", .comms = 2},
    {.name = "several of each", .script = "aabbab", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "three", .script = "abcacb", .comms = 3, .blocks = MORE_THAN_HALF},
    {.name = "three, one of them small", .script = "abcacb", .comms = 3, .blocks = 20},
    {.name = "parts of one", .script = "abab", .comms = 2, .blocks = MORE_THAN_HALF, .splits = 1},
    {.name = "from several threads",
     .script = "abba",
     .comms = 2,
     .blocks = MORE_THAN_HALF,
     .threads = 1},
    {.name = "launches through graphs",
     .script = "abab",
     .comms = 2,
     .blocks = MORE_THAN_HALF,
     .flags = SYMWIN_COMM_GRAPH_LAUNCH},
    {.name = "captured in one graph", .script = "x", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "three in one graph", .script = "xx", .comms = 3, .blocks = MORE_THAN_HALF},
    {.name = "a graph each", .script = "AB", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "a graph each of three", .script = "ABCA", .comms = 3, .blocks = MORE_THAN_HALF},
    {.name = "a graph and eager", .script = "Ab", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "eager and a graph", .script = "aB", .comms = 2, .blocks = MORE_THAN_HALF},
    {.name = "copies",
     .script = "abab",
     .comms = 2,
     .algo = SYMWIN_ALGO_COPIES,
     .blocks = MORE_THAN_HALF},
    {.name = "graphs of copies",
     .script = "AB",
     .comms = 2,
     .algo = SYMWIN_ALGO_COPIES,
     .blocks = MORE_THAN_HALF},
    {.name = "copies and a graph",
     .script = "aB",
     .comms = 2,
     .algo = SYMWIN_ALGO_COPIES,
     .blocks = MORE_THAN_HALF},
    {.name = "groups",
     .script = "abab",
     .comms = 2,
     .blocks = ALL,
     .count = FEW,
     .algo = SYMWIN_ALGO_ONESHOT,
     .groups = BROADCASTS},
    {.name = "a graph each of groups",
     .script = "AB",
     .comms = 2,
     .blocks = ALL,
     .count = FEW,
     .algo = SYMWIN_ALGO_ONESHOT,
     .groups = BROADCASTS},
    {.name = "on one stream", .script = "abab", .comms = 2, .one_stream = 1},
    {.name = "few blocks, in opposite orders",
     .script = "ab",
     .comms = 2,
     .blocks = 1,
     .opposite = 1,
     .wide = 4},
    {.name = "limits that fit, in opposite orders",
     .script = "ab",
     .comms = 2,
     .max_blocks = 16,
     .opposite = 1,
     .wide = 32},
    /* Before others share devices: from then on, the library takes each thread for a rank. */
    {.name = "beside one with more ranks on each device, which came later",
     .script = "ab",
     .comms = 2,
     .blocks = ALL,
     .count = FEW,
     .algo = SYMWIN_ALGO_ONESHOT,
     .crowded = LATE,
     .shares = 1},
    {.name = "beside one with more ranks on each device",
     .script = "ab",
     .comms = 2,
     .blocks = ALL,
     .count = FEW,
     .algo = SYMWIN_ALGO_ONESHOT,
     .crowded = EARLY,
     .shares = 1},
    {.name = "beside one with more ranks on each device, which other threads have",
     .script = "ab",
     .comms = 2,
     .blocks = ALL,
     .count = FEW,
     .algo = SYMWIN_ALGO_ONESHOT,
     .crowded = APART,
     .shares = 1,
     .wide = 4},
    {.name = "ranks that share a device", .script = "abab", .comms = 2, .shares = 1},
};

static void capture_all(struct member *m)
{
    int i;

    for (i = 0; i < m->c->comms; i++)
        if (strchr(m->c->script, 'A' + i) != NULL)
            m->graphs[i] = capture(m, i, i);
    if (strchr(m->c->script, 'x') != NULL)
        m->all = capture(m, 0, m->c->comms - 1);
}

static void step(struct member *m, char what)
{
    const int i = what == 'x' ? 0 : tolower(what) - 'a';
    int k;

    if (what == 'x') {
        for (k = 0; k < m->c->comms; k++)
            m->calls[k]++;
        host_must_cuda(sw_drv.cuGraphLaunch(m->all, m->streams[0]), "cuGraphLaunch");
    } else if (isupper(what)) {
        m->calls[i]++;
        host_must_cuda(sw_drv.cuGraphLaunch(m->graphs[i], m->streams[i]), "cuGraphLaunch");
    } else {
        make_call(m, i);
    }
}

/* Holds streams until all calls are made: on rank 0 those late in the script, on rank 1 those early
 * in it. Where other threads have the later ones, on their devices. */
static void hold(CUstream stream)
{
    host_must_cuda(sw_drv.cuStreamWaitValue32(stream, shared.address, 1, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
}

static void hold_streams(const struct member *m)
{
    int i;

    for (i = 0; i < m->c->comms && !m->c->one_stream; i++)
        if (m->comms[i] != NULL && (m->rank < RANKS || m->c->crowded == APART) &&
            (m->rank % RANKS == 0 ? i > 0 : i == 0))
            hold(m->streams[i]);
}

/* The headers that this rank's kernels have posted to the peer, of even and of odd calls. */
static uint64_t headers_of(const struct member *m, int i)
{
    const symwin_comm *comm = m->comms[i];
    const uint64_t peer = comm->group->base + (uint64_t)(1 - comm->rank) * comm->group->stride;
    uint64_t both = 0, header;
    int odd;

    for (odd = 0; odd < 2; odd++) {
        const uint64_t at = SW_STATE_HEADER(comm->nranks, odd, comm->rank);

        host_must(
            host_copy(m->device, &header, (void *)(peer + comm->state_offset + at), sizeof header),
            "a header");
        both = both * 31 + header;
    }
    return both;
}

/* Waits until the calls that nothing holds up are on their devices, before others are released:
 * rank 0's first, and without an order rank 1's second one too. */
static void release_streams(const struct member *m, uint64_t before)
{
    int looks;

    harness_barrier(m->team);
    /* A kernel may write a header that the host reads here, which ThreadSanitizer reports. */
    if (!WITH_TSAN && (m->rank == 0 || m->c->hangs))
        for (looks = 0; looks < 10000 && headers_of(m, m->rank) == before; looks++)
            host_pause_ms(1);
    host_pause_ms(50); /* those that must not begin would begin now */
    harness_barrier(m->team);
    if (m->rank == 0)
        atomic_store(shared.word, 1);
}

/* It gets half of a device of which another communicator's ranks share all; or a third, if these
 * are other threads'. */
static void check_share(const struct member *m)
{
    const int parts = m->c->crowded == APART ? 3 : 2;
    const int most = multiprocessors > parts ? multiprocessors / parts : 1;
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = m->c->algo, .blocks = multiprocessors, .threads = 32};
    symwin_allreduce_info info;

    host_must(symwin_allreduce_query(m->comms[0], m->data[0], m->data[0], count_of(m->c),
                                     SYMWIN_F32, SYMWIN_SUM, &options, &info),
              "a query");
    tap_ok(info.blocks == most, "%s, rank %d: %d blocks of %d", m->c->name, m->rank, info.blocks,
           multiprocessors);
}

static void run_case(struct harness_team *team, int rank, void *arg)
{
    const struct order_case *c = arg;
    const int steps = (int)strlen(c->script);
    uint64_t before = 0;
    struct member m;
    symwin_status status;
    int i, right = 1;

    open_member(&m, team, rank, c);
    harness_barrier(team);
    if (c->crowded && rank < RANKS)
        check_share(&m);
    for (i = 0; i < c->comms && !c->hangs; i++) {
        make_call(&m, i); /* all are used before the first capture */
        m.calls[i] = 0;
    }
    (void)finish(&m);
    harness_barrier(team);
    for (i = 0; i < c->comms; i++)
        fill(&m, i);
    capture_all(&m);
    harness_barrier(team);
    if (rank < RANKS && m.comms[rank] != NULL)
        before = headers_of(&m, rank);
    hold_streams(&m);
    for (i = 0; i < steps; i++)
        step(&m, c->script[c->opposite && rank == 1 ? steps - 1 - i : i]);
    release_streams(&m, before);
    status = finish(&m);
    for (i = 0; i < c->comms && !c->hangs; i++)
        right = is_right(&m, i) && right;
    tap_ok(right && (c->hangs ? status == SYMWIN_TIMEOUT : status == SYMWIN_OK), "%s, rank %d%s%s",
           c->name, rank, status == SYMWIN_OK || c->hangs ? "" : ": ",
           status == SYMWIN_OK || c->hangs ? "" : symwin_last_error());
    close_member(&m);
}

/* ---- ends ---- */

static const struct order_case two = {.name = "two", .comms = 2, .blocks = MORE_THAN_HALF};

/* The first call waits for a peer that does not come, and the second for the first. */
static void run_abort(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    (void)arg;
    open_member(&m, team, rank, &two);
    fill(&m, 1);
    if (rank == 0)
        host_must(call(&m, 0, m.streams[0]), "a call that no peer answers");
    make_call(&m, 1);
    host_pause_ms(50);
    harness_barrier(team);
    if (rank == 0)
        host_must(symwin_comm_abort(m.comms[0]), "symwin_comm_abort");
    host_must(symwin_stream_synchronize(m.device, m.streams[1]), "synchronize");
    host_expect("after an abort of what it waited for", symwin_comm_check(m.comms[1]), SYMWIN_OK,
                "");
    tap_ok(is_right(&m, 1), "and right, rank %d", rank);
    host_must(symwin_stream_synchronize(m.device, m.streams[0]), "synchronize");
    close_member(&m);
}

/* Threads, each with a rank of one communicator or more. */
static int threads_of(const struct order_case *c)
{
    return c->crowded == APART ? 3 * RANKS : ranks_of(c, 1);
}

/* Those where ranks share a device, or the others. */
static void run_cases(const char *only, int shares)
{
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct order_case c = cases[i];

        /* On GPUs both grids may fit after all: the library counts blocks, not their threads. */
        if (c.shares == shares && is_wanted(&c, only) && (!c.hangs || sw_driver_is_emulated()))
            harness_run(threads_of(&c), run_case, &c);
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    struct harness_leaks before;

    order_start();
    before = harness_leaks_now();
    run_cases(only, 0);
    harness_run(RANKS, run_abort, NULL);
    if (only[0] == '\0')
        tap_ok(atomic_load(&early) > 0, "%d launches may begin early", atomic_load(&early));
    run_cases(only, 1); /* from here on, the library takes each thread for a rank */
    harness_no_leaks("communicators beside each other", &before);
    return tap_done();
}
