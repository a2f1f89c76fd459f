/* Sends and receives whose blocks are not alike in speed: no block misses an offer because a later
 * one has come, a sender's threads keep no block of a receiver from chunks that they wait for, and
 * no message is counted before all threads have read the count. Also runs on GPUs
 * (tests/gpu/both.txt). */
#include "collectives.h"
#include "kernels/pair_layout.h"

#if defined(__SANITIZE_THREAD__)
enum { TURNS = 20 };
#elif defined(__SANITIZE_ADDRESS__)
enum { TURNS = 30 };
#else
enum { TURNS = 300 };
#endif
enum { WAITS_MS = 10000 };

/* Another communicator of the same ranks, with slots of its own. */
static void split(const struct rank *r, size_t slot_bytes, struct rank *other)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = WAIT_MS,
                                         .kernel_timeout_ms = WAITS_MS,
                                         .slot_bytes = slot_bytes};

    *other = *r;
    host_must(symwin_comm_split(r->comm, 0, r->rank, &options, &other->comm), "symwin_comm_split");
}

/* Under ThreadSanitizer: a block of rank `rank`, or a warp of it, is slow from now on; -1: none
 * is. */
static void slow(struct processes *p, const struct rank *r, unsigned seed, int rank, int block,
                 int warp)
{
    const struct sw_emu_race race = {.seed = seed,
                                     .one_in = rank >= 0 ? 8 : 0,
                                     .most_ns = 10000000,
                                     .device = rank >= 0 ? rank % harness_device_count() : -1,
                                     .block = block,
                                     .warp = warp};

    processes_barrier(p);
    if (r->rank == 0 && sw_driver_is_emulated())
        sw_emu_race_set(&race);
    processes_barrier(p);
}

/* Rank 0 sends `bytes` bytes at `at` to rank 1. */
static void message(const struct rank *r, size_t at, size_t bytes, int blocks, int threads)
{
    const symwin_collective_options options = {
        .size = sizeof options, .blocks = blocks, .threads = threads};

    if (r->rank == 0)
        host_must(
            symwin_send_with(r->comm, r->in + at, bytes, SYMWIN_U8, 1, &options, r->streams[0]),
            "symwin_send_with");
    else
        host_must(
            symwin_recv_with(r->comm, r->out + at, bytes, SYMWIN_U8, 0, &options, r->streams[0]),
            "symwin_recv_with");
}

static void fill(const struct rank *r, unsigned seed)
{
    size_t i;

    for (i = 0; i < ROOM; i++)
        r->host[i] = (unsigned char)mix(seed + (unsigned)i);
    host_must(host_copy(r->device, r->in, r->host, ROOM), "fill");
}

static void done(const struct rank *r, size_t bytes, const char *what)
{
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), what);
    host_must(host_copy(r->device, r->want, r->out, ROOM), "read");
    must_be(r->rank != 1 || memcmp(r->want, r->host, bytes) == 0, what, r->rank);
}

/* Large messages through the ring, the least ones, of fewer chunks than their sender has blocks: it
 * has as many as a large message may have chunks. */
static void more_blocks_than_chunks(struct processes *p, const struct rank *r)
{
    enum {
        SLOTS_OF = 65536,
        BLOCKS = SW_PAIR_SLOTS / 2,
        BYTES = SW_PAIR_EAGER * SW_PAIR_SLOT_BYTES(SLOTS_OF) / 2 + 16,
        CHUNK = (BYTES / (16 * BLOCKS) + 1) * 16,
        CHUNKS = (BYTES + CHUNK - 1) / CHUNK,
        AHEAD = 4
    };
    struct rank other;
    int turn, k;

    split(r, SLOTS_OF, &other);
    for (turn = 0; turn < TURNS; turn++) {
        fill(&other, (unsigned)turn);
        slow(p, r, (unsigned)turn, 0, CHUNKS + turn % (BLOCKS - CHUNKS), -1);
        for (k = 0; k < AHEAD; k++)
            message(&other, (size_t)k * BYTES, BYTES, BLOCKS, 32);
        done(&other, (size_t)AHEAD * BYTES, "a large message by many blocks");
    }
    slow(p, r, 0, -1, 0, -1);
    symwin_comm_destroy(other.comm);
    processes_barrier(p);
}

/* The receiver has all messages in one launch, and its blocks take chunks of each in turn. The last
 * message needs the room of the first one's second half. Its sender has one block, whose threads
 * have entries of two chunks. */
static void ring_is_full(struct processes *p, const struct rank *r)
{
    enum { SLOTS_OF = 5120, CHUNK = SW_PAIR_SLOT_BYTES(SLOTS_OF) / 2 };
    enum { MOST = SW_PAIR_EAGER, SOME = (SW_PAIR_SLOTS - MOST) / 8 };
    static const size_t chunks[] = {MOST, SOME, SOME, SOME,     SOME, SOME,
                                    SOME, SOME, SOME, MOST / 2, MOST};
    const int messages = sizeof chunks / sizeof chunks[0];
    struct rank other;
    int turn, k;

    split(r, SLOTS_OF, &other);
    for (turn = 0; turn < TURNS; turn++) {
        size_t at = 0;

        fill(&other, 1000u + (unsigned)turn);
        slow(p, r, (unsigned)turn, 1, 1, -1);
        host_must(symwin_group_begin(), "symwin_group_begin");
        for (k = 0; k < messages; k++) {
            const int last = r->rank == 0 && k == messages - 1;

            if (last)
                host_must(symwin_group_end(), "symwin_group_end");
            message(&other, at, chunks[k] * CHUNK, last ? 1 : 8, 32);
            at += chunks[k] * CHUNK;
        }
        if (r->rank != 0)
            host_must(symwin_group_end(), "symwin_group_end");
        done(&other, at, "a message into a full ring");
    }
    slow(p, r, 0, -1, 0, -1);
    symwin_comm_destroy(other.comm);
    processes_barrier(p);
}

/* Messages one after the other, of one block of two warps, which have an entry in each thread. The
 * first warp reads the count late. */
static void counted_early(struct processes *p, const struct rank *r)
{
    enum { SLOTS_OF = 65536, THREADS = 40, BYTES = THREADS * 8, MESSAGES = 16 };
    struct rank other;
    int turn, k;

    split(r, SLOTS_OF, &other);
    for (turn = 0; turn < TURNS; turn++) {
        fill(&other, 2000u + (unsigned)turn);
        slow(p, r, (unsigned)turn, turn % 2, 0, 0);
        for (k = 0; k < MESSAGES; k++)
            message(&other, (size_t)k * BYTES, BYTES, 1, THREADS);
        done(&other, (size_t)MESSAGES * BYTES, "a message of two warps");
    }
    slow(p, r, 0, -1, 0, -1);
    symwin_comm_destroy(other.comm);
    processes_barrier(p);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, WAIT_MS);
    more_blocks_than_chunks(p, &r);
    ring_is_full(p, &r);
    counted_early(p, &r);
    close_rank(p, &r);
}

int main(void)
{
    struct processes *p;

    tap_ok(places_run(&places_all[0], 2, body, NULL, &p), "2 ranks of a process");
    processes_free(p);
    return tap_done();
}
