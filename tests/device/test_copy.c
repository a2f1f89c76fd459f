/* symwin/copy.cuh: copies by all groups and through rings in shared memory, of all lengths and
 * alignments. The copy is equal, and nothing beside it changes. Two ranks as threads, on windows.
 *
 *   test_copy get|put BYTES [BLOCKS THREADS PIECES PIECE_BYTES]
 *
 * This times such a copy by both ranks at once, in GB/s for each direction. PIECES 0: by
 * threads. */
#include "device_member.h"

enum { BYTES = 1 << 19, MARGIN = 160, LONGEST = 100000, TURNS = 200 };

#if defined(__SANITIZE_THREAD__)
enum { COPIES = 200 };
#else
enum { COPIES = 400 };
#endif

/* One copy of `length` bytes, from offset `from` of the source to offset `to` of the target. */
struct copy {
    size_t to, from, length;
    int put;
};

static const unsigned widths[] = {1, 31, 32, 33, 64};

/* Compares every byte of the target, also beside the copy, with what it should be. */
static int copy_goes_wrong(const struct member *m, const char *kernel, unsigned blocks,
                           unsigned threads, size_t shared, const struct copy *copy,
                           struct channel_copy_args *args, void *launched)
{
    static unsigned char bytes[LONGEST + 2 * MARGIN], want[LONGEST + 2 * MARGIN];
    const size_t span = copy->length + 2 * MARGIN;
    char *const target = (copy->put ? m->theirs : m->memory) + BYTES / 2;
    char *const source = copy->put ? m->memory : m->theirs;
    uint64_t state = copy->to * 4096 + copy->from * 64 + copy->length;
    size_t k;

    for (k = 0; k < span; k++) {
        bytes[k] = (unsigned char)host_random(&state);
        want[k] = (unsigned char)(bytes[k] + 1 + k % 200);
    }
    host_must(host_copy(m->device, source, bytes, span), "fill");
    host_must(host_copy(m->device, target, want, span), "fill");
    args->to = member_at(target, copy->to);
    args->from = member_at(source, copy->from);
    args->bytes = copy->length;
    member_launch(m, kernel, blocks, threads, shared, launched);
    for (k = 0; k < copy->length; k++)
        want[copy->to + k] = bytes[copy->from + k];
    host_must(host_copy(m->device, bytes, target, span), "read");
    if (memcmp(bytes, want, span) == 0)
        return 0;
    printf("# %s, %u blocks of %u, %zu of shared memory: %zu bytes from %zu to %zu\n", kernel,
           blocks, threads, shared, copy->length, copy->from, copy->to);
    return 1;
}

static struct copy random_copy(uint64_t *state, size_t apart, size_t longest)
{
    return (struct copy){.to = host_random(state) % apart,
                         .from = host_random(state) % apart,
                         .length = host_random(state) % longest,
                         .put = (int)(host_random(state) % 2)};
}

static void by_threads(const struct member *m)
{
    uint64_t state = 7;
    int wrong = 0, i;

    for (i = 0; i < COPIES; i++) {
        struct channel_copy_args args = {.group = (uint32_t)(i % CHANNEL_GROUPS)};
        const struct copy copy = random_copy(&state, 16, i % 8 == 0 ? 9000 : 80);

        wrong += copy_goes_wrong(m, "channel_copy", args.group == CHANNEL_GRID ? 3 : 1,
                                 widths[host_random(&state) % 5], 0, &copy, &args, &args);
    }
    TAP_EQ("copies of random lengths and alignments, by all groups, that went wrong", wrong, 0);
}

/* In most copies both addresses have the same remainder modulo 16: only those use the ring. */
static void by_rings(const struct member *m)
{
    uint64_t state = 11;
    int wrong = 0, i;

    for (i = 0; i < COPIES; i++) {
        const size_t most = i % 16 == 0 ? LONGEST : i % 4 == 0 ? 9000 : 300;
        struct channel_bulk_args args = {
            .copy = {.group = i % 2 ? CHANNEL_GRID : CHANNEL_BLOCK},
            .pieces = (uint32_t)(2 + host_random(&state) % 4),
            .piece_bytes = (uint32_t)(128 * (1 + host_random(&state) % (most > 300 ? 30 : 2))),
            .cuts = 1 + host_random(&state) % 4,
        };
        const size_t shared = (args.pieces + 1) * (args.piece_bytes + 8u);
        struct copy copy = random_copy(&state, MARGIN, most);

        if (i % 8 != 0)
            copy.to = copy.to / 16 * 16 + copy.from % 16;
        wrong += copy_goes_wrong(m, "channel_bulk", args.copy.group == CHANNEL_GRID ? 3 : 1,
                                 widths[host_random(&state) % 5], shared, &copy, &args.copy, &args);
    }
    TAP_EQ("copies by rings, of blocks and grids, that went wrong", wrong, 0);
}

/* Begins and ends at special places: every length near a vector, a line or a piece. */
static void by_edges(const struct member *m)
{
    static const size_t lengths[] = {0,   1,   15,  16,  17,  31,  32,  111, 112,
                                     113, 127, 128, 129, 143, 144, 145, 255, 256,
                                     257, 511, 512, 513, 767, 768, 769, 1025};
    int wrong = 0;
    size_t i;

    for (i = 0; i < sizeof lengths / sizeof lengths[0] * 4; i++) {
        static const size_t begins[] = {0, 1, 16, 127};
        const struct copy copy = {begins[i % 4], begins[i % 4], lengths[i / 4], (int)(i / 4 % 2)};
        struct channel_bulk_args args = {
            .copy = {.group = CHANNEL_GRID}, .pieces = 2, .piece_bytes = 256, .cuts = 1};

        wrong += copy_goes_wrong(m, "channel_bulk", 1 + (unsigned)(i % 3), 32, 3 * (256 + 8), &copy,
                                 &args.copy, &args);
    }
    TAP_EQ("copies by rings, of the lengths where something begins, that went wrong", wrong, 0);
}

static void copies(struct harness_team *team, int rank, void *unused)
{
    struct member m;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    if (rank == 0) {
        by_threads(&m);
        by_rings(&m);
        by_edges(&m);
    }
    member_close(&m);
}

/* ---- order ---- */

static void play(struct harness_team *team, int rank, void *unused)
{
    struct channel_bulk_play_args args;
    uint64_t own, theirs;
    struct member m;
    int launches;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    own = member_at(m.memory, 0);
    theirs = member_at(m.theirs, 0);
    args = (struct channel_bulk_play_args){
        .play = {.own = own,
                 .theirs = theirs,
                 .signals = own + BYTES - 8,
                 .their_signals = theirs + BYTES - 8,
                 .waited = own + BYTES - 16,
                 .wrong = own + BYTES - 24,
                 .bytes = 4096,
                 .turns = TURNS,
                 .first = 1000u * (unsigned)(rank + 1),
                 .their_first = 1000u * (unsigned)(2 - rank),
                 .timeout_ns = 20000000000u},
        .pieces = 3,
        .piece_bytes = 640,
    };
    harness_barrier(team);
    for (launches = 0; launches < 3; launches++)
        member_launch(&m, "channel_bulk_play", 1, CHANNEL_THREADS, 3 * (640 + 8), &args);
    TAP_EQ("words that were not what the peer had put, or had to be got",
           member_word(&m, args.play.wrong), 0);
    TAP_EQ("waits that were given up", member_word(&m, args.play.wrong + 4), 0);
    member_close(&m);
}

/* ---- the kernel for timing ---- */

static struct channel_rate_args rate_args(const struct member *m, int put, size_t bytes,
                                          unsigned pieces, unsigned piece_bytes)
{
    const size_t half = m->bytes / 2;

    return (struct channel_rate_args){
        .to = member_at(put ? m->theirs : m->memory, half),
        .from = member_at(put ? m->memory : m->theirs, 0),
        .bytes = bytes,
        .signals = member_at(m->memory, m->bytes - 8),
        .their_signals = member_at(m->theirs, m->bytes - 8),
        .waited = member_at(m->memory, m->bytes - 16),
        .gave_up = member_at(m->memory, m->bytes - 24),
        .pieces = pieces,
        .piece_bytes = piece_bytes,
        .timeout_ns = 20000000000u,
    };
}

/* Put and get, by threads and by rings, several times. */
static void rates(struct harness_team *team, int rank, void *unused)
{
    static unsigned char bytes[2][LONGEST], got[2][LONGEST];
    const size_t half = BYTES / 2;
    struct member m;
    int i;

    (void)unused;
    member_open(&m, team, rank, BYTES);
    for (i = 0; i < LONGEST; i++)
        bytes[rank][i] = (unsigned char)(i * 7 + i / 256 + 100 * rank);
    host_must(host_copy(m.device, m.memory, bytes[rank], LONGEST), "fill");
    memset(got[rank], 0, LONGEST);
    for (i = 0; i < 8; i++) {
        struct channel_rate_args args = rate_args(&m, i % 2, LONGEST, i % 4 < 2 ? 4 : 0, 2048);

        host_must(host_copy(m.device, m.memory + half, bytes[rank], LONGEST), "fill");
        harness_barrier(team);
        member_launch(&m, "channel_rate", 3, CHANNEL_THREADS, args.pieces * (2048u + 8), &args);
        host_must(host_copy(m.device, got[rank], m.memory + half, LONGEST), "read");
        tap_ok(
            memcmp(got[rank], bytes[1 - rank], LONGEST) == 0 && member_word(&m, args.gave_up) == 0,
            "rank %d: %s by %s", rank, i % 2 ? "put" : "get", args.pieces ? "a ring" : "threads");
        harness_barrier(team);
    }
    member_close(&m);
}

struct timed {
    int put;
    size_t bytes;
    unsigned blocks, threads, pieces, piece_bytes;
};

static void timed(struct harness_team *team, int rank, void *arg)
{
    enum { ROUNDS = 9, LAUNCHES = 20 };
    const struct timed *t = arg;
    const unsigned shared = t->pieces * (t->piece_bytes + 8);
    double rate[ROUNDS];
    struct member m;
    int round, i, k;

    member_open(&m, team, rank, 2 * t->bytes + 4096);
    for (round = 0; round < ROUNDS; round++) {
        struct channel_rate_args args = rate_args(&m, t->put, t->bytes, t->pieces, t->piece_bytes);
        struct timespec from, to;

        harness_barrier(team);
        member_launch(&m, "channel_rate", t->blocks, t->threads, shared, &args);
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (i = 0; i < LAUNCHES; i++)
            member_launch_only(&m, "channel_rate", t->blocks, t->threads, shared, &args);
        host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
        clock_gettime(CLOCK_MONOTONIC, &to);
        rate[round] = LAUNCHES * (double)t->bytes /
                      ((double)(to.tv_sec - from.tv_sec) * 1e9 +
                       (double)(to.tv_nsec - from.tv_nsec));
        for (k = round; k > 0 && rate[k - 1] > rate[k]; k--) {
            const double one = rate[k];

            rate[k] = rate[k - 1];
            rate[k - 1] = one;
        }
    }
    printf("rank %d: %s of %zu bytes, %u blocks of %u threads, %u pieces of %u bytes: %.1f GB/s "
           "(%.1f to %.1f)%s\n",
           rank, t->put ? "put" : "get", t->bytes, t->blocks, t->threads, t->pieces, t->piece_bytes,
           rate[ROUNDS / 2], rate[0], rate[ROUNDS - 1],
           member_word(&m, member_at(m.memory, m.bytes - 24)) != 0 ? ", and a wait was given up"
                                                                   : "");
    member_close(&m);
}

/* The timing that the command line asks for. */
static int time_copy(int argc, char **argv)
{
    struct timed t = {.blocks = 132, .threads = 512, .pieces = 4, .piece_bytes = 16384};
    unsigned *number[] = {&t.blocks, &t.threads, &t.pieces, &t.piece_bytes};
    int i;

    t.put = strcmp(argv[1], "put") == 0;
    t.bytes = argc > 2 ? (size_t)strtoull(argv[2], NULL, 0) : (size_t)128 << 20;
    for (i = 3; i < argc && i < 7; i++)
        *number[i - 3] = (unsigned)strtoul(argv[i], NULL, 0);
    harness_run(2, timed, &t);
    return 0;
}

int main(int argc, char **argv)
{
    struct harness_leaks before;

    channel_start();
    if (argc > 1)
        return time_copy(argc, argv);
    before = harness_leaks_now();
    harness_run(2, copies, NULL);
    harness_run(2, play, NULL);
    harness_run(2, rates, NULL);
    harness_no_leaks("copies", &before);
    return tap_done();
}
