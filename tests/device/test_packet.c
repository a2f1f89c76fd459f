/* symwin/packet.cuh: packets of 8 and 16 bytes and lines, for all groups and sizes, call after call
 * on the same memory, with an epoch that the device counts. A packet that has not arrived is not
 * accepted. Two ranks as threads, on windows. */
#include "device_member.h"

enum { BYTES = 1 << 18, ROOM = BYTES / 16, CALLS = 12 };

static const char *const kind_names[] = {"packets of 8 bytes", "packets of 16 bytes", "lines"};
static const unsigned kind_units[] = {4, 8, 8};

static struct packet_args args_of(const struct member *m, unsigned kind)
{
    return (struct packet_args){
        .places = member_at(m->memory, 0),
        .their_places = member_at(m->theirs, 0),
        .source = member_at(m->memory, (size_t)4 * ROOM),
        .target = member_at(m->memory, (size_t)8 * ROOM),
        .room = 2 * ROOM,
        .epoch = member_at(m->memory, BYTES - 48),
        .first = 1000000u * (unsigned)(m->rank + 1),
        .their_first = 1000000u * (unsigned)(2 - m->rank),
        .wrong = member_at(m->memory, BYTES - 24),
        .kind = kind,
        .timeout_ns = 20000000000u,
    };
}

static void put(const struct member *m, uint64_t addr, const void *bytes, size_t length)
{
    if (length > 0)
        host_must(host_copy(m->device, (void *)(uintptr_t)addr, bytes, length), "put");
}

static void get(const struct member *m, void *bytes, uint64_t addr, size_t length)
{
    if (length > 0)
        host_must(host_copy(m->device, bytes, (const void *)(uintptr_t)addr, length), "get");
}

/* Zeroes the packets and sets the epoch. */
static void begin(const struct member *m, const struct packet_args *args, uint64_t epoch)
{
    static const char zeros[4 * ROOM];
    const uint64_t words[2] = {epoch, 0};

    harness_barrier(m->team);
    put(m, args->places, zeros, sizeof zeros);
    put(m, args->epoch, words, sizeof words);
    harness_barrier(m->team);
}

/* Fills the source of the next call, as the kernel does for later calls. */
static void fill_next(const struct member *m, struct packet_args *args)
{
    uint32_t words[ROOM / 4];
    size_t i;

    get(m, &args->since, args->epoch, 8);
    for (i = 0; i < args->bytes / 4; i++)
        words[i] = (uint32_t)(args->first + 7 * (args->since + 1) + i);
    put(m, args->source + (args->since + 1) % 2 * args->room, words, args->bytes);
}

/* Counts wrong words of the last call, which no later call has checked. */
static int last_is_wrong(const struct member *m, const struct packet_args *args)
{
    uint32_t words[ROOM / 4 + 1];
    uint64_t epoch;
    int wrong = 0;
    size_t i;

    get(m, &epoch, args->epoch, 8);
    get(m, words, args->target + epoch % 2 * args->room, args->bytes + 4);
    for (i = 0; i < args->bytes / 4; i++)
        wrong += words[i] != (uint32_t)(args->their_first + 7 * epoch + i);
    return wrong + (words[i] != 0xeeeeeeee);
}

/* Calls of one size. Grids differ between ranks and between consecutive calls. */
static int calls_go_wrong(const struct member *m, struct packet_args *args)
{
    static const unsigned threads[] = {32, 64, 8, 40};
    uint32_t guard = 0xeeeeeeee;
    int call;

    fill_next(m, args);
    put(m, args->target + args->bytes, &guard, sizeof guard);
    put(m, args->target + args->room + args->bytes, &guard, sizeof guard);
    for (call = 0; call < CALLS; call++)
        member_launch_only(m, "packet_swap", 1 + (unsigned)(call + m->rank) % 3,
                           threads[(call + m->rank) % 4], 0, args);
    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    return last_is_wrong(m, args);
}

static void sizes(struct harness_team *team, int rank, void *arg)
{
    static const unsigned units[] = {0,  1,  2,  3,   7,   14,  15,  16, 29,
                                     30, 31, 45, 100, 239, 240, 241, 513};
    const unsigned kind = *(const unsigned *)arg;
    uint64_t epoch = 0;
    struct packet_args args;
    struct member m;
    int wrong = 0;
    size_t i;

    member_open(&m, team, rank, BYTES);
    args = args_of(&m, kind);
    begin(&m, &args, 0);
    for (i = 0; i < 3 * sizeof units / sizeof units[0]; i++) {
        args.group = CHANNEL_WARP + (uint32_t)(i % 3);
        if (kind != PACKETS_LINES && i % 9 == 0)
            args.group = CHANNEL_THREAD;
        args.bytes = (uint64_t)units[i / 3] * kind_units[kind];
        wrong += calls_go_wrong(&m, &args);
    }
    TAP_EQ(kind_names[kind], wrong, 0);
    get(&m, &epoch, args.epoch, 8);
    TAP_EQ("calls that the device counted", epoch, CALLS * i);
    TAP_EQ("words that were not what the peer had sent", member_word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", member_word(&m, args.wrong + 4), 0);
    member_close(&m);
}

/* Crosses the 32 bits of packets' flags, as if that many calls had been made. */
static void wrap(struct harness_team *team, int rank, void *arg)
{
    const unsigned kind = *(const unsigned *)arg;
    static const uint64_t epochs[] = {0xfffffffau, 0x1fffffff5u, 0xfffffffffffu - 5};
    struct packet_args args;
    struct member m;
    int wrong = 0;
    size_t i;

    member_open(&m, team, rank, BYTES);
    args = args_of(&m, kind);
    args.group = CHANNEL_GRID;
    args.bytes = 240;
    for (i = 0; i < sizeof epochs / sizeof epochs[0]; i++) {
        begin(&m, &args, epochs[i]);
        wrong += calls_go_wrong(&m, &args);
    }
    TAP_EQ("flags that begin anew", wrong, 0);
    TAP_EQ("words that were not what the peer had sent", member_word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", member_word(&m, args.wrong + 4), 0);
    member_close(&m);
}

/* The same call captured, two calls in a graph, and replayed. */
static void graphs(struct harness_team *team, int rank, void *arg)
{
    enum { REPLAYS = 60 };
    struct packet_args args;
    CUgraphExec exec;
    CUgraph graph;
    uint64_t epoch = 0;
    struct member m;
    int i;

    member_open(&m, team, rank, BYTES);
    args = args_of(&m, *(const unsigned *)arg);
    args.group = CHANNEL_GRID;
    args.bytes = 2040;
    begin(&m, &args, 0);
    fill_next(&m, &args);
    host_must_cuda(sw_drv.cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    member_launch_only(&m, "packet_swap", 3, 64, 0, &args);
    member_launch_only(&m, "packet_swap", 2, 32, 0, &args);
    exec = host_end_capture(m.stream, &graph);
    for (i = 0; i < REPLAYS; i++)
        host_must_cuda(sw_drv.cuGraphLaunch(exec, m.stream), "launch");
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "destroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "destroy");
    get(&m, &epoch, args.epoch, 8);
    TAP_EQ("calls of replays", epoch, 2 * REPLAYS);
    TAP_EQ("words that were wrong in them", member_word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", member_word(&m, args.wrong + 4), 0);
    member_close(&m);
}

/* ---- packets that have not arrived ---- */

/* Lays out a message of one kind as it would arrive, with one wrong flag: of one packet, or of half
 * a packet. */
static size_t lay_out(unsigned kind, uint64_t epoch, int missing, uint64_t *words)
{
    const uint64_t flag = epoch % 0xffffffffu + 1;
    int i;

    if (kind == PACKETS_LINES) { /* an epoch that differs only in its upper half */
        for (i = 0; i < 32; i++)
            words[i] = i % 16 != 15        ? (uint64_t)i
                       : i / 16 == missing ? epoch - (1ull << 32)
                                           : epoch;
        return 240;
    }
    for (i = 0; i < 32; i++)
        words[i] = (uint64_t)i | (i == missing ? flag - 1 : flag) << 32;
    return kind == PACKETS_8 ? 128 : 128;
}

static int got_right(const struct member *m, const struct packet_args *args)
{
    uint64_t words[30];
    int right = 1, i;

    get(m, words, args->target, args->bytes);
    for (i = 0; i < (int)args->bytes / 8; i++)
        right = right && words[i] == (args->kind == PACKETS_LINES
                                          ? (uint64_t)(i / 15 * 16 + i % 15)
                                          : (uint64_t)(2 * i) | (uint64_t)(2 * i + 1) << 32);
    return right;
}

static void limits(struct harness_team *team, int rank, void *arg)
{
    const unsigned kind = *(const unsigned *)arg;
    const int flags = kind == PACKETS_LINES ? 2 : 32;
    uint64_t words[32];
    struct packet_args args;
    struct member m;
    int64_t start;
    int i, taken = 0, late = 0;

    member_open(&m, team, rank, BYTES);
    args = args_of(&m, kind);
    args.group = CHANNEL_WARP;
    args.since = 5 + (1ull << 32);
    args.timeout_ns = 20000000;
    for (i = 0; i < flags && rank == 0; i++) {
        args.bytes = lay_out(kind, args.since, i, words);
        put(&m, args.places, words, sizeof words);
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        start = host_now_ms();
        member_launch(&m, "packet_get", 1, 32, 0, &args);
        taken += member_word(&m, args.wrong + 4) == 0;
        late += host_now_ms() - start < 20;
    }
    if (rank == 0) {
        TAP_EQ("taken without one of its flags", taken, 0);
        TAP_EQ("or before the time was over", late, 0);
        args.bytes = lay_out(kind, args.since, -1, words);
        put(&m, args.places, words, sizeof words);
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        member_launch(&m, "packet_get", 1, 32, 0, &args);
        tap_ok(member_word(&m, args.wrong + 4) == 0 && got_right(&m, &args), "%s: taken with all",
               kind_names[kind]);
        args.since++;
        args.timeout_ns = 0;
        args.abort = member_at(m.memory, BYTES - 32);
        host_put_u32(m.device, (void *)(uintptr_t)args.abort, 1);
        member_launch(&m, "packet_get", 1, 32, 0, &args);
        tap_ok(member_word(&m, args.wrong + 4) != 0, "a wait for ever ends by the abort word");
    }
    member_close(&m);
}

int main(void)
{
    static unsigned kinds[] = {PACKETS_8, PACKETS_16, PACKETS_LINES};
    struct harness_leaks before;
    int i;

    channel_start();
    before = harness_leaks_now();
    for (i = 0; i < PACKETS_KINDS; i++) {
        harness_run(2, sizes, &kinds[i]);
        harness_run(2, wrap, &kinds[i]);
        harness_run(2, graphs, &kinds[i]);
        harness_run(2, limits, &kinds[i]);
    }
    harness_no_leaks("packets", &before);
    return tap_done();
}
