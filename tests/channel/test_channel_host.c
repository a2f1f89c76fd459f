/* Channels created by the host: on windows, on memory that only one rank has, among many ranks,
 * with lanes; what they hold and release. Ranks are threads, or processes with
 * SYMWIN_TEST_PROCESSES. Errors: test_channel_refused.c.
 */
#include "device_member.h"

enum { SECOND = 3 * ENDS_BYTES, HALF = 1 << 20 };

static symwin_window *window_on(const struct ends_member *m, void *ptr, size_t bytes)
{
    symwin_window *window = NULL;

    host_must(symwin_window_register(m->comm, ptr, bytes, 0, &window), "symwin_window_register");
    return window;
}

static symwin_channel_info query(const struct ends_member *m, const symwin_channel_end *end)
{
    symwin_channel_info info;

    host_must(symwin_channel_query(m->comm, end, &info), "symwin_channel_query");
    return info;
}

static size_t mappings(void)
{
    struct sw_emu_live live = {0};

    (void)sw_reaper_wait(10000);
    if (sw_driver_is_emulated())
        sw_emu_live_count(&live);
    return live.mappings;
}

/* The peer: ranks 0 and 1 are a pair, 2 and 3, and so on. The last of an odd number has none. */
static int other(const struct ends_member *m)
{
    const int peer = m->rank ^ 1;

    return peer < m->nranks ? peer : -1;
}

/* ---- on windows ---- */

static void windows(struct harness_team *team, int rank, void *unused)
{
    symwin_channel channel, again;
    symwin_channel_end *end;
    symwin_channel_info info;
    symwin_window *window;
    struct ends_member m;
    size_t before;
    char *memory;
    void *theirs;
    int peer;

    (void)unused;
    ends_open(&m, team, rank);
    peer = other(&m);
    memory = ends_alloc(&m, 4 * ENDS_BYTES);
    window = window_on(&m, memory, 4 * ENDS_BYTES);
    harness_barrier(team);
    before = mappings();
    /* The two ranks use different parts. */
    end = ends_offer(&m, peer, memory + (rank % 2 ? SECOND : 0), ENDS_BYTES, 0);
    info = query(&m, end);
    tap_ok(info.peer == peer && info.lanes == 1 && info.window && info.bytes == ENDS_BYTES &&
               info.ptr == memory + (rank % 2 ? SECOND : 0),
           "what an end is before it is connected");
    channel = ends_connect(&m, end);
    harness_barrier(team);
    TAP_EQ("windows are not mapped again", mappings(), before);
    host_must(symwin_window_peer_pointer(m.comm, window, peer, rank % 2 ? 0 : SECOND, &theirs),
              "peer pointer");
    tap_ok(channel.own == (uintptr_t)info.ptr && channel.theirs == (uintptr_t)theirs,
           "its addresses are the windows'");
    info = query(&m, end);
    tap_ok(info.connected && info.their_bytes == ENDS_BYTES, "and when it is connected");
    again = ends_connect(&m, end);
    tap_ok(memcmp(&channel, &again, sizeof again) == 0, "connecting again gives the same");
    tap_ok(ends_play(&m, peer, &channel, "ends_lanes", 1), "put, signal and wait");
    harness_barrier(team);
    tap_ok(ends_play(&m, peer, &channel, "ends_many", ENDS_BLOCKS),
           "all blocks signal, one waits for them");
    harness_barrier(team);
    tap_ok(ends_play(&m, peer, &channel, "ends_packed", 1), "packets");
    harness_barrier(team);
    host_must(symwin_window_deregister(m.comm, window), "symwin_window_deregister");
    harness_barrier(team);
    tap_ok(ends_play(&m, peer, &channel, "ends_lanes", 1), "it outlives the windows");
    harness_barrier(team);
    host_expect("free of memory that is in a channel", symwin_mem_free(memory), SYMWIN_BUSY,
                "channels or captured graphs; by 1 in all");
    ends_destroy(&m, end);
    harness_barrier(team);
    host_expect("when it is destroyed", symwin_mem_free(memory), SYMWIN_OK, "");
    ends_close(&m);
}

/* Memory of two windows; each rank of a pair uses another one. */
static void two_windows(struct harness_team *team, int rank, void *unused)
{
    symwin_channel channel;
    symwin_channel_end *end;
    struct ends_member m;
    char *memory[2];
    int i;

    (void)unused;
    ends_open(&m, team, rank);
    for (i = 0; i < 2; i++) {
        memory[i] = ends_alloc(&m, GRANULE);
        (void)window_on(&m, memory[i] + i * 4096, (size_t)GRANULE / (size_t)(i + 1) - 8192);
    }
    end = ends_offer(&m, other(&m), memory[rank % 2] + 8192, ENDS_BYTES, 0);
    channel = ends_connect(&m, end);
    harness_barrier(team);
    tap_ok(ends_play(&m, other(&m), &channel, "ends_lanes", 1), "two windows of two ranks");
    harness_barrier(team);
    ends_close(&m); /* destroys the remaining ends */
    for (i = 0; i < 2; i++)
        host_must(symwin_mem_free(memory[i]), "symwin_mem_free");
}

/* ---- on memory that is no window ---- */

/* Rank 0 of a pair offers memory, rank 1 none. */
static void one_sided(struct harness_team *team, int rank, void *unused)
{
    uint32_t words[64] = {0}, want[64];
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_member m;
    char *memory = NULL;
    int i;

    (void)unused;
    ends_open(&m, team, rank);
    for (i = 0; i < 64; i++)
        want[i] = 77u * (unsigned)i + (unsigned)(rank | 1);
    if (rank % 2 == 0)
        memory = ends_alloc(&m, HALF);
    end = ends_offer(&m, other(&m), memory != NULL ? memory + 4097 : NULL,
                     memory != NULL ? 12345 : 0, 0);
    channel = ends_connect(&m, end);
    tap_ok((channel.own != 0) == (rank % 2 == 0) && (channel.theirs != 0) == (rank % 2 == 1),
           "who has memory, and who reaches it");
    if (rank % 2 == 1)
        TAP_EQ("bytes of the peer's", query(&m, end).their_bytes, 12345);
    if (rank % 2 == 1)
        host_must(host_copy(m.device, (void *)(uintptr_t)channel.theirs, want, sizeof want), "put");
    harness_barrier(team);
    if (rank % 2 == 0)
        host_must(host_copy(m.device, words, memory + 4097, sizeof words), "read");
    tap_ok(rank % 2 == 1 || memcmp(words, want, sizeof want) == 0, "what was put is there");
    harness_barrier(team);
    if (rank % 2 == 0)
        host_expect("free of memory that is in a channel alone", symwin_mem_free(memory),
                    SYMWIN_BUSY, "channels or captured graphs; by 1 in all");
    ends_destroy(&m, end);
    harness_barrier(team);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* Another allocator's memory, of different sizes, whose owner has released its handle. The channel
 * keeps the memory alive. */
static void foreign(struct harness_team *team, int rank, void *unused)
{
    const size_t bytes = (size_t)GRANULE * (size_t)(1 + rank);
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_member m;
    struct host_raw raw;

    (void)unused;
    ends_open(&m, team, rank);
    raw = host_raw_alloc(m.device, bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    host_must_cuda(sw_drv.cuMemsetD8Async(raw.ptr, 0, bytes, m.stream), "memset");
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    host_raw_release_handle(&raw);
    end = ends_offer(&m, other(&m), (void *)(uintptr_t)(raw.ptr + bytes - ENDS_BYTES), ENDS_BYTES,
                     0);
    channel = ends_connect(&m, end);
    tap_ok(!query(&m, end).window, "in no window");
    harness_barrier(team);
    tap_ok(ends_play(&m, other(&m), &channel, "ends_packed", 1), "another allocator's memory");
    harness_barrier(team);
    ends_destroy(&m, end);
    ends_close(&m);
    host_raw_free(&raw);
}

/* Many channels on one allocation: it is mapped once, until the last channel is destroyed. */
static void imports(struct harness_team *team, int rank, void *unused)
{
    /* More messages than a peer socket buffers: creating does not wait for the reader. */
    enum { COUNT = 300 };
    symwin_channel_end *ends[COUNT];
    symwin_channel first, last;
    struct ends_member m;
    size_t before, with;
    char *memory;
    int i;

    (void)unused;
    ends_open(&m, team, rank);
    memory = ends_alloc(&m, (size_t)COUNT * ENDS_BYTES);
    harness_barrier(team);
    before = mappings();
    harness_barrier(team);
    for (i = 0; i < COUNT; i++)
        ends[i] = ends_offer(&m, other(&m), memory + (size_t)i * ENDS_BYTES, ENDS_BYTES, 0);
    harness_barrier(team); /* nobody connects before all ends exist */
    last = ends_connect(&m, ends[COUNT - 1]);
    first = ends_connect(&m, ends[0]);
    harness_barrier(team);
    with = mappings() - before;
    TAP_EQ("allocations that are mapped for a lot of channels", with,
           !sw_driver_is_emulated() ? 0
           : harness_job != NULL    ? 1
                                    : team->nranks);
    TAP_EQ("the last one's memory is behind the first one's", last.theirs - first.theirs,
           (uint64_t)(COUNT - 1) * ENDS_BYTES);
    tap_ok(ends_play(&m, other(&m), &last, "ends_lanes", 1), "the last one serves");
    harness_barrier(team);
    for (i = 0; i < COUNT - 1; i++)
        ends_destroy(&m, ends[i]);
    harness_barrier(team);
    TAP_EQ("they stay mapped for the last channel", mappings() - before, with);
    tap_ok(ends_play(&m, other(&m), &last, "ends_lanes", 1), "which serves still");
    harness_barrier(team);
    ends_destroy(&m, ends[COUNT - 1]);
    harness_barrier(team);
    TAP_EQ("and no longer", mappings(), before);
    harness_barrier(team);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- among many ranks ---- */

/* Each rank connects to each other rank, in its own order. Some channels use windows, some do
 * not. */
static void mesh(struct harness_team *team, int rank, void *unused)
{
    symwin_channel_end *ends[16];
    symwin_channel channels[16];
    struct ends_member m;
    char *shared, *own;
    int i, right = 1;

    (void)unused;
    ends_open(&m, team, rank);
    shared = ends_alloc(&m, (size_t)m.nranks * ENDS_BYTES);
    own = ends_alloc(&m, (size_t)m.nranks * ENDS_BYTES);
    (void)window_on(&m, shared, (size_t)m.nranks * ENDS_BYTES);
    for (i = 1; i < m.nranks; i++) {
        const int peer = (rank + i) % m.nranks; /* around the ring */

        ends[peer] = ends_offer(&m, peer, ((rank + peer) % 2 ? shared : own) + peer * ENDS_BYTES,
                                ENDS_BYTES, 0);
    }
    for (i = 1; i < m.nranks; i++) {
        const int peer = (rank + m.nranks - i) % m.nranks; /* in the other direction */

        channels[peer] = ends_connect(&m, ends[peer]);
    }
    harness_barrier(team);
    for (i = 1; i < m.nranks; i++) /* disjoint pairs: rank ^ i, of a power of two ranks */
        right &= ends_play(&m, rank ^ i, &channels[rank ^ i], "ends_lanes", 1);
    tap_ok(right, "every rank with every other");
    harness_barrier(team);
    for (i = 0; i < m.nranks; i++)
        if (i != rank)
            ends_destroy(&m, ends[i]);
    harness_barrier(team);
    ends_close(&m);
    host_must(symwin_mem_free(shared), "symwin_mem_free");
    host_must(symwin_mem_free(own), "symwin_mem_free");
}

/* A rank's n-th end connects to its peer's n-th end, however far ahead one of them is. */
static void order(struct harness_team *team, int rank, void *unused)
{
    enum { COUNT = 5 };
    symwin_channel_end *ends[COUNT];
    int i, wrong = 0;
    struct ends_member m;
    symwin_channel channel;
    char *memory;

    (void)unused;
    ends_open(&m, team, rank);
    memory = ends_alloc(&m, (size_t)COUNT * ENDS_BYTES);
    if (rank % 2 == 1)
        harness_barrier(team); /* once the peer has created all ends */
    for (i = 0; i < COUNT; i++) {
        ends[i] = ends_offer(&m, other(&m), memory + i * ENDS_BYTES, 1000u + (unsigned)i, 0);
        if (rank % 2 == 1)
            (void)ends_connect(&m, ends[i]);
    }
    if (rank % 2 == 0)
        harness_barrier(team);
    for (i = COUNT - 1; i >= 0; i--) {
        channel = ends_connect(&m, ends[i]);
        wrong += query(&m, ends[i]).their_bytes != 1000u + (unsigned)i || channel.theirs == 0;
    }
    TAP_EQ("channels that met another one's end", wrong, 0);
    harness_barrier(team);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- lanes ---- */

static uint64_t word(const struct ends_member *m, uint64_t address)
{
    uint64_t value = 1;

    host_must(host_copy(m->device, &value, (const void *)(uintptr_t)address, sizeof value), "read");
    return value;
}

static void lanes(struct harness_team *team, int rank, void *unused)
{
    symwin_channel_end *ends[3], *full;
    symwin_channel channel, second, third;
    const uint64_t lane = SYMWIN_CHANNEL_LANE_BYTES;
    struct ends_member m;
    char *memory;

    (void)unused;
    ends_open(&m, team, rank);
    memory = ends_alloc(&m, 2 * ENDS_BYTES);
    ends[0] = ends_offer(&m, other(&m), memory, ENDS_BYTES, ENDS_BLOCKS);
    channel = ends_connect(&m, ends[0]);
    TAP_EQ("lanes", query(&m, ends[0]).lanes, ENDS_BLOCKS);
    harness_barrier(team);
    tap_ok(ends_play(&m, other(&m), &channel, "ends_lanes", ENDS_BLOCKS),
           "a block of one rank with one of the other");
    harness_barrier(team);
    TAP_EQ("signals on the last lane", word(&m, channel.signals + (ENDS_BLOCKS - 1) * lane),
           2 * ENDS_TURNS);
    TAP_EQ("and waited for", word(&m, channel.waited + (ENDS_BLOCKS - 1) * lane), 2 * ENDS_TURNS);
    harness_barrier(team);

    /* One rank keeps its end. Meanwhile nobody else may use the peer's counters. */
    if (rank % 2 == 0)
        ends_destroy(&m, ends[0]);
    harness_barrier(team);
    ends[1] = ends_offer(&m, other(&m), memory + ENDS_BYTES, ENDS_BYTES, 1);
    second = ends_connect(&m, ends[1]);
    tap_ok(second.signals >= channel.signals + ENDS_BLOCKS * lane,
           "counters that a peer can still reach are not used again");
    if (rank % 2 == 1)
        ends_destroy(&m, ends[0]);
    harness_barrier(team);
    ends[2] = ends_offer(&m, other(&m), memory, ENDS_BYTES, 2);
    third = ends_connect(&m, ends[2]);
    tap_ok(third.signals == channel.signals, "and are when both ends are gone");
    TAP_EQ("from zero", word(&m, third.signals) + word(&m, third.waited), 0);
    harness_barrier(team);
    tap_ok(ends_play(&m, other(&m), &third, "ends_lanes", 2), "which the counts begin from");
    harness_barrier(team);

    full = ends_offer(&m, other(&m), NULL, 0, SYMWIN_CHANNEL_LANES - 4); /* 2, 1 free, 1 */
    channel = ends_connect(&m, full);
    TAP_EQ("the most that there is", query(&m, full).lanes, SYMWIN_CHANNEL_LANES - 4);
    host_expect("and more", symwin_channel_create(m.comm, other(&m), NULL, 0, NULL, &ends[0]),
                SYMWIN_OK, "");
    host_expect("and one more than that",
                symwin_channel_create(m.comm, other(&m), NULL, 0, NULL, &full), SYMWIN_NO_MEMORY,
                "adjacent lanes of 16384 are free");
    harness_barrier(team);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- destroy ---- */

/* Ends in all states remain when communicators are destroyed. One communicator goes while its peer
 * still uses the channel. */
static void leave(struct harness_team *team, int rank, void *unused)
{
    symwin_channel_end *ends[3];
    symwin_channel channel;
    struct ends_member m;
    char *memory;

    (void)unused;
    ends_open(&m, team, rank);
    memory = ends_alloc(&m, 2 * ENDS_BYTES);
    ends[0] = ends_offer(&m, other(&m), memory, ENDS_BYTES, 0);
    ends[1] = ends_offer(&m, other(&m), memory, ENDS_BYTES, 0);
    ends[2] = rank % 2 == 0 ? ends_offer(&m, other(&m), memory, ENDS_BYTES, 0) : NULL;
    channel = ends_connect(&m, ends[0]);
    if (rank % 2 == 1)
        harness_barrier(team);
    ends_close(&m);
    if (rank % 2 == 0)
        harness_barrier(team);
    tap_ok(channel.theirs != 0, "communicators go with channels in all states");
    harness_barrier(team);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

int main(void)
{
    static void (*const cases[])(struct harness_team *, int, void *) = {
        windows, two_windows, one_sided, foreign, imports, order, lanes, leave};
    struct harness_leaks before;
    size_t i;

    harness_fork();
    harness_load_ahead();
    harness_start();
    (void)device_code();
    before = harness_leaks_now();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        harness_run(harness_processes > 0 ? harness_processes : 2, cases[i], NULL);
    if (harness_processes == 0) {
        harness_run(4, windows, NULL);
        harness_run(4, mesh, NULL);
    }
    harness_run(harness_processes > 0 ? harness_processes : 8, mesh, NULL);
    harness_no_leaks("channels of the host", &before);
    return harness_done();
}
