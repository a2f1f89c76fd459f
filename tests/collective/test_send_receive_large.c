/* Large messages through the ring, which have no flags, among small ones, which have: lengths about
 * the limit and the ring's, any alignment, both kernels against each other, both directions, groups
 * that two ranks cut differently, graphs, bytes that look like flags, and aborts. Also runs on GPUs
 * (tests/gpu/both.txt). */
#define TEST_ROOM (1 << 18)
#include "collectives.h"
#include "kernels/pair_layout.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TURNS = 1, ABORTS = 2, MOST = 24 };
#else
enum { TURNS = 8, ABORTS = 6, MOST = 48 };
#endif
enum { WAITS_MS = 10000, REPLAYS = 3 };

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

static void drop(struct processes *p, struct rank *other)
{
    processes_barrier(p);
    symwin_comm_destroy(other->comm);
    processes_barrier(p);
}

/* ---- exchanges of two ranks ------------------------------------------------------------------ */

/* Who has the kernel for any number of messages: a group of one block has. */
enum kernels { BOTH_FEW, FIRST_FEW, SECOND_FEW, MIXED, WAYS };

struct message {
    size_t bytes, at; /* in this rank's memory */
};

struct exchange {
    unsigned seed;
    enum kernels kernels;
    int counts[2]; /* of messages from each rank */
    struct message messages[2][MOST];
};

/* Lengths for a slot of so many bytes. */
static size_t length_of(size_t slot, unsigned random)
{
    const size_t limit = SW_PAIR_EAGER * slot / 2, ring = SW_PAIR_SLOTS * slot;
    const size_t lengths[] = {0,
                              1,
                              8,
                              17,
                              slot,
                              limit - 16,
                              limit - 1,
                              limit,
                              limit + 1,
                              limit + 2,
                              limit + 15,
                              limit + 16,
                              limit * 2 + 3,
                              ring - 1,
                              ring,
                              ring + 1,
                              ring + slot + 5,
                              ring + 20 * slot - 7};

    return lengths[random % (sizeof lengths / sizeof lengths[0])];
}

/* Both ranks know the lengths; each chooses its places. */
static void exchange_of(const struct rank *r, size_t slot_bytes, unsigned seed, struct exchange *e)
{
    const size_t slot = SW_PAIR_SLOT_BYTES(slot_bytes);
    int from;

    e->seed = seed;
    e->kernels = (enum kernels)(seed % WAYS);
    for (from = 0; from < 2; from++) {
        size_t at = GUARD, sum = 2 * GUARD;
        int k;

        for (k = 0; k < MOST; k++) {
            const unsigned random = mix(seed * 97u + (unsigned)(from * MOST + k));
            const size_t bytes = length_of(slot, random);

            sum += bytes + 32;
            if (sum > ROOM)
                break;
            at = (at + 15) / 16 * 16 + mix(random + 3u + (unsigned)r->rank) % 3 % 2 *
                                           (mix(random + 5u + (unsigned)r->rank) % 16);
            e->messages[from][k] = (struct message){bytes, at};
            at += bytes;
        }
        e->counts[from] = k;
    }
}

static unsigned char byte_of(const struct exchange *e, unsigned turn, int from, int k, size_t i)
{
    return (unsigned char)mix(e->seed + turn * 1013u + (unsigned)(from * MOST + k) * 7919u +
                              (unsigned)i);
}

/* What is in the memory that rank `from`'s messages leave, or come to. */
static void image_of(const struct exchange *e, unsigned turn, int from, unsigned char *to)
{
    int k;

    memset(to, FILLED, ROOM);
    for (k = 0; k < e->counts[from]; k++) {
        const struct message *m = &e->messages[from][k];
        size_t i;

        for (i = 0; i < m->bytes; i++)
            to[m->at + i] = byte_of(e, turn, from, k, i);
    }
}

static void prepare(const struct rank *r, const struct exchange *e, unsigned turn)
{
    image_of(e, turn, r->rank, r->host);
    host_must(host_copy(r->device, r->in, r->host, ROOM), "fill");
    memset(r->host, FILLED, ROOM);
    host_must(host_copy(r->device, r->out, r->host, ROOM), "fill");
}

static void done(const struct rank *r, const struct exchange *e, unsigned turn, const char *what)
{
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), what);
    image_of(e, turn, 1 - r->rank, r->want);
    host_must(host_copy(r->device, r->host, r->out, ROOM), "read");
    must_be(memcmp(r->host, r->want, ROOM) == 0, what, r->rank);
}

static void call(const struct rank *r, const struct message *m, int sends,
                 const symwin_collective_options *options)
{
    const int peer = 1 - r->rank;

    host_must(sends ? symwin_send_with(r->comm, r->in + m->at, m->bytes, SYMWIN_U8, peer, options,
                                       r->streams[0])
                    : symwin_recv_with(r->comm, r->out + m->at, m->bytes, SYMWIN_U8, peer, options,
                                       r->streams[0]),
              "a message");
}

/* Groups of the next messages in both directions, as this rank cuts them. */
static void add(const struct rank *r, const struct exchange *e)
{
    const int most = e->counts[0] > e->counts[1] ? e->counts[0] : e->counts[1];
    int k = 0;

    while (k < most) {
        const unsigned own = mix(e->seed + (unsigned)(k * 2 + r->rank) * 31u);
        const int any = e->kernels == MIXED ? (int)(own % 2)
                                            : e->kernels == (r->rank == 0 ? SECOND_FEW : FIRST_FEW);
        const int end = k + (any ? 1 + (int)(own / 4 % 4) : 1);
        const symwin_collective_options options = {
            .size = sizeof options,
            .blocks = any ? 1 + (int)(own / 16 % 2) * 2 : (int)(own / 16 % 3) * 5,
            .threads = own / 64 % 3 == 0 ? 1 + (int)(own % 40) : 0};

        host_must(symwin_group_begin(), "symwin_group_begin");
        for (; k < end; k++) {
            if (k < e->counts[r->rank])
                call(r, &e->messages[r->rank][k], 1, &options);
            if (k < e->counts[1 - r->rank])
                call(r, &e->messages[1 - r->rank][k], 0, &options);
        }
        host_must(symwin_group_end(), "symwin_group_end");
    }
}

static void mixes(struct processes *p, const struct rank *r, size_t slot_bytes, struct exchange *e)
{
    struct sw_scope scope;
    struct rank other;
    CUgraphExec exec;
    unsigned i;

    split(r, slot_bytes, &other);
    for (i = 0; i < TURNS; i++) {
        exchange_of(&other, slot_bytes, (unsigned)slot_bytes + i, e);
        prepare(&other, e, 0);
        add(&other, e);
        done(&other, e, 0, "large and small messages");
    }
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    add(&other, e);
    exec = host_end_capture(r->streams[0], NULL);
    for (i = 1; i <= REPLAYS; i++) {
        prepare(&other, e, i);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        done(&other, e, i, "a replay");
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
    drop(p, &other);
}

/* ---- bytes that look like flags -------------------------------------------------------------- */

enum { SMALL = 32, SMALLS = 2 * SW_PAIR_SLOTS + 8 };

/* Each word of the message has the flag of the chunk that comes next into its slot, or where a
 * later chunk of the message covers it, of the one after. */
static void fill_with_flags(const struct rank *r, size_t bytes, size_t extent)
{
    const size_t chunks = (bytes + extent - 1) / extent;
    size_t i;

    memset(r->host, 0x11, ROOM);
    for (i = 0; i + 8 <= bytes; i += 8) {
        const size_t next = i / extent + 1 + SW_PAIR_SLOTS;
        const uint64_t number = next <= chunks ? next + SW_PAIR_SLOTS : next;
        const uint64_t word = (number | 0x80000000u) << 32 | 0xdeadbeefu;

        memcpy(r->host + i, &word, 8);
    }
    host_must(host_copy(r->device, r->in, r->host, ROOM), "fill");
}

/* From rank 0 to rank 1, which waits for each small message before it is sent. The large one comes
 * to offset `at`. It is the first of its communicator, so its chunks' numbers are known. */
static void like_flags(struct processes *p, const struct rank *r, size_t bytes, size_t extent,
                       size_t at)
{
    const symwin_collective_options options = {.size = sizeof options};
    struct rank other;
    size_t i, wrong = 0;

    split(r, 1024, &other);
    fill_with_flags(r, bytes, extent);
    memset(r->want, FILLED, ROOM);
    host_must(host_copy(r->device, r->out, r->want, ROOM), "fill");
    for (i = 0; i <= SMALLS; i++) {
        const struct message m = {i == 0 ? bytes : SMALL,
                                  i == 0 ? (r->rank == 0 ? 0 : at) : ROOM / 2 + i * SMALL};

        if (r->rank == 0 && i > 0)
            host_pause_ms(1);
        call(&other, &m, r->rank == 0, &options);
    }
    job_wait(&other, 0);
    host_must(symwin_comm_check(other.comm), "symwin_comm_check");
    host_must(host_copy(r->device, r->want, r->out, ROOM), "read");
    for (i = 0; i < (SMALLS + 1) * SMALL; i++)
        wrong += r->want[ROOM / 2 + i] != (i < SMALL ? FILLED : 0x11);
    must_be(r->rank == 0 || (wrong == 0 && memcmp(r->host, r->want + at, bytes) == 0),
            "small messages after bytes that look like flags", r->rank);
    drop(p, &other);
}

static void body(struct processes *p, int rank)
{
    static const size_t slots[] = {512, 8192, 128 << 10};
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct exchange *e = calloc(1, sizeof *e);
    size_t i;

    if (e == NULL)
        abort();
    open_rank(p, &r, WAIT_MS);
    for (i = 0; i < sizeof slots / sizeof slots[0]; i++)
        mixes(p, &r, slots[i], e);
    like_flags(p, &r, 2048, 32, 0);
    like_flags(p, &r, 8192, 64, 0);
    like_flags(p, &r, 10000, 64, 0);
    like_flags(p, &r, 8192, 64, 8);
    free(e);
    close_rank(p, &r);
}

/* ---- aborts ---------------------------------------------------------------------------------- */

/* Rank 2 aborts while ranks 0 and 1 exchange messages, more than end before. */
static void aborts(struct processes *p, int rank)
{
    enum { BYTES = 30000, MANY = 400 };
    const struct message m = {BYTES, GUARD};
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    int turn;

    open_rank(p, &r, WAIT_MS);
    for (turn = 0; turn < ABORTS; turn++) {
        const symwin_collective_options options = {
            .size = sizeof options, .blocks = 1 + turn % 2 * 3, .threads = 32};
        size_t i, wrong = 0;
        struct rank other;
        int k;

        split(&r, 512, &other);
        memset(r.host, FILLED, ROOM);
        host_must(host_copy(r.device, r.out, r.host, ROOM), "fill");
        processes_barrier(p);
        if (rank == 2) {
            host_pause_ms(3 * turn);
            host_must(symwin_comm_abort(other.comm), "symwin_comm_abort");
        }
        for (k = 0; k < MANY && rank < 2; k++) {
            const symwin_status status = symwin_group_begin();

            if (status != SYMWIN_OK ||
                symwin_send_with(other.comm, r.in + m.at, m.bytes, SYMWIN_U8, 1 - rank, &options,
                                 r.streams[0]) != SYMWIN_OK ||
                symwin_recv_with(other.comm, r.out + m.at, m.bytes, SYMWIN_U8, 1 - rank, &options,
                                 r.streams[0]) != SYMWIN_OK) {
                (void)symwin_group_end();
                break;
            }
            if (symwin_group_end() != SYMWIN_OK)
                break;
        }
        job_wait(&other, 0);
        processes_barrier(p);
        for (k = 0; k < 5000 && symwin_comm_check(other.comm) == SYMWIN_OK; k++)
            host_pause_ms(1);
        must_be(symwin_comm_check(other.comm) == SYMWIN_ABORTED, "an abort", rank);
        host_must(host_copy(r.device, r.want, r.out, ROOM), "read");
        for (i = 0; i < ROOM; i++)
            wrong += (i < GUARD || i >= GUARD + BYTES) && r.want[i] != FILLED;
        must_be(wrong == 0, "nothing is written outside the output", rank);
        drop(p, &other);
    }
    close_rank(p, &r);
}

int main(void)
{
    struct processes *p;
    size_t place;

    for (place = 0; place < places_count(); place++) {
        tap_ok(places_run(&places_all[place], 2, body, NULL, &p), "2 ranks, %s",
               places_all[place].name);
        processes_free(p);
    }
    tap_ok(places_run(&places_all[0], 3, aborts, NULL, &p), "aborts");
    processes_free(p);
    return tap_done();
}
