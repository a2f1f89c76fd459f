/* symwin/channel.cuh: signals that are never reset, packets, limits of waits, fetch-and-add. Ranks
 * are threads, on windows. */
#include "device_member.h"

enum { BYTES = 1 << 16, TURNS = 200, DRAWS = 50 };

/* ---- signals and packets ---- */

static struct channel_play_args play_args(const struct member *m, uint64_t bytes, uint64_t turns)
{
    const uint64_t own = (uint64_t)(uintptr_t)m->memory, theirs = (uint64_t)(uintptr_t)m->theirs;

    return (struct channel_play_args){
        .own = own,
        .theirs = theirs,
        .signals = own + BYTES - 8,
        .their_signals = theirs + BYTES - 8,
        .waited = own + BYTES - 16,
        .wrong = own + BYTES - 24,
        .bytes = bytes,
        .turns = turns,
        .first = 1000u * (unsigned)(m->rank + 1),
        .their_first = 1000u * (unsigned)(2 - m->rank),
        .first_flag = 1,
        .timeout_ns = 20000000000u,
    };
}

static void play(struct harness_team *team, int rank, void *unused)
{
    struct channel_play_args args;
    struct member m;
    int launches;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    harness_barrier(team);
    args = play_args(&m, 4096, TURNS);
    for (launches = 0; launches < 3; launches++) /* the counters continue from the last launch */
        member_launch(&m, "channel_play", 1, CHANNEL_THREADS, 0, &args);
    TAP_EQ("words that were not what the peer had put", member_word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", member_word(&m, args.wrong + 4), 0);
    TAP_EQ("signals that came", member_word(&m, args.signals), 3 * TURNS);
    TAP_EQ("and were waited for", member_word(&m, args.waited), 3 * TURNS);
    harness_barrier(team);
    for (launches = 0; launches < 3; launches++) {
        member_launch(&m, "channel_packets", 1, CHANNEL_THREADS, 0, &args);
        args.first_flag += TURNS;
    }
    TAP_EQ("words that were not what the peer had sent in packets", member_word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", member_word(&m, args.wrong + 4), 0);
    member_close(&m);
}

/* ---- limits ---- */

static void limits(struct harness_team *team, int rank, void *unused)
{
    struct channel_play_args args;
    uint32_t *abort_word;
    struct member m;
    int64_t start;
    int i;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    harness_barrier(team);
    args = play_args(&m, 64, 1);
    if (rank == 0) { /* the peer never comes */
        args.timeout_ns = 50000000;
        start = host_now_ms();
        member_launch(&m, "channel_play", 1, 32, 0, &args);
        tap_ok(member_word(&m, args.wrong + 4) == 1 && host_now_ms() - start >= 50,
               "a wait ends when its time is over");
        TAP_EQ("and the signal is still to be waited for", member_word(&m, args.waited), 0);
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        member_launch(&m, "channel_packets", 1, 32, 0, &args);
        TAP_EQ("packets too", member_word(&m, args.wrong + 4), 1);
        /* One of the last packet's two flags is missing, then the other one, then none. */
        for (i = 0; i < 3; i++) {
            uint32_t packets[32];
            int k;

            for (k = 0; k < 32; k++)
                packets[k] = k % 2 == 1 && k != 29 + 2 * i ? 1 : 0;
            host_must(host_copy(m.device, m.memory + 4 * args.bytes, packets, sizeof packets),
                      "packets");
            host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
            member_launch(&m, "channel_packets", 1, 32, 0, &args);
            TAP_EQ("a packet has arrived when both its halves have",
                   member_word(&m, args.wrong + 4), i < 2);
        }
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        abort_word = (uint32_t *)(void *)(m.memory + BYTES - 32);
        host_put_u32(m.device, abort_word, 1);
        args.abort = (uint64_t)(uintptr_t)abort_word;
        args.timeout_ns = 0;
        member_launch(&m, "channel_play", 1, 32, 0, &args);
        TAP_EQ("a wait for ever ends by the abort word", member_word(&m, args.wrong + 4), 1);
    }
    member_close(&m);
}

/* ---- fetch and add ---- */

static void draw(struct harness_team *team, int rank, void *unused)
{
    const int drawn = 2 * 2 * CHANNEL_THREADS * DRAWS; /* by two blocks of each of two ranks */
    struct channel_play_args args;
    struct member m;
    int i, wrong = 0;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    harness_barrier(team);
    args = play_args(&m, 0, DRAWS);
    if (rank == 1) { /* both draw from rank 0's counter and mark in its memory */
        args.signals = args.their_signals;
        args.own = args.theirs;
    }
    member_launch(&m, "channel_draw", 2, CHANNEL_THREADS, 0, &args);
    harness_barrier(team);
    if (rank == 0) {
        static uint32_t marks[BYTES / 4];

        host_must(host_copy(m.device, marks, m.memory, 4 * (size_t)drawn), "read");
        for (i = 0; i < drawn; i++)
            wrong += marks[i] != 1;
        TAP_EQ("numbers that were not drawn once", wrong, 0);
        TAP_EQ("numbers drawn", member_word(&m, args.signals), drawn);
    }
    member_close(&m);
}

int main(void)
{
    struct harness_leaks before;

    channel_start();
    before = harness_leaks_now();
    harness_run(2, play, NULL);
    harness_run(2, limits, NULL);
    harness_run(2, draw, NULL);
    harness_no_leaks("channels", &before);
    return tap_done();
}
