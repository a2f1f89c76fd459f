/* Sends, receives and groups against a plain reference: random messages among all ranks, in one
 * group and outside groups, more than a ring holds, with and without windows, in graphs, among
 * collectives, on two communicators, and by one thread for all ranks. test_send_receive_refused.c
 * tests what fails. Also runs on GPUs (tests/gpu/both.txt). */
#include "collectives.h"
#include "kernels/pair_layout.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 3, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5 };
#else
enum { SWEEP = 12, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 8 };
#endif
enum { HALF = ROOM / 2, MESSAGES = 256, MOST_OF_PAIR = 2, AHEAD = 100 };
/* EACH: two small messages and a large one for each pair. */
enum { EACH = -1, EACH_OF_PAIR = 3, LARGE = 1 + SW_PAIR_EAGER * SW_PAIR_SLOT_BYTES(SLOT) / 2 };

/* A send or a receive of this rank. */
struct message {
    int receives, peer;
    symwin_type type;
    uint64_t count;
    size_t at;   /* in `in`, or in `out` */
    int in_half; /* of a receive: in the upper half of `in`, which is in no window */
    unsigned seed;
};

struct exchange {
    struct message messages[MESSAGES];
    int count;
    symwin_collective_options options;
};

/* Message `k` from one rank to another, as both know it. `room`: bytes. */
static struct message message_of(unsigned number, int from, int to, int k, size_t room)
{
    static const unsigned bytes[] = {0,  1,  4,  7,   8,   9,   31,  32,  33,
                                     63, 64, 65, 127, 128, 129, 512, 513, 520};
    const unsigned seed = mix(number * 2654435761u + (unsigned)(from * 521 + to * 17 + k));
    struct message m = {.type = (symwin_type)(seed % 12), .seed = seed};
    size_t most = seed / 16 % 5 == 0 ? mix(seed) % 5000 : bytes[seed / 128 % 18];

    if (most > room)
        most = room;
    m.count = (most + symwin_type_bytes(m.type) - 1) / symwin_type_bytes(m.type);
    return m;
}

/* How many messages one rank sends another. */
static int count_of(unsigned number, int plain, int from, int to, int nranks)
{
    if (plain == EACH)
        return from != to ? EACH_OF_PAIR : 0;
    if (plain > 0)
        return nranks > 1 && to == (from + 1) % nranks ? plain : 0;
    return (int)(mix(number + (unsigned)(from * 7 + to)) % (MOST_OF_PAIR + 1));
}

/* The messages of this rank: up to two for each pair, `plain` to the next rank, or EACH. */
static void exchange_of(const struct rank *r, unsigned number, int plain, size_t base, size_t most,
                        struct exchange *e)
{
    const unsigned own = mix(number * 31u + (unsigned)r->rank);
    const int of_pair = plain == EACH ? EACH_OF_PAIR : MOST_OF_PAIR;
    const size_t room = most / (size_t)(plain > 0 ? plain : of_pair * r->nranks);
    size_t at[3] = {base, base, base};
    int step, k, receives;

    e->count = 0;
    e->options = (symwin_collective_options){.size = sizeof e->options,
                                             .blocks = own % 3 == 0 ? 1 + (int)(own / 4 % 3) : 0,
                                             .threads = own % 5 == 0 ? 1 + (int)(own % 40) : 0};
    for (step = 0; step < r->nranks; step++)
        for (receives = 0; receives < 2; receives++) {
            const int turned = (int)(own / 8 % 2) ? r->nranks - 1 - step : step;
            const int other = receives ? (r->rank - turned + r->nranks) % r->nranks
                                       : (r->rank + turned) % r->nranks;
            const int from = receives ? other : r->rank, to = receives ? r->rank : other;
            const int count = count_of(number, plain, from, to, r->nranks);

            for (k = 0; k < count; k++) {
                struct message *m = &e->messages[e->count++];
                const unsigned random = mix(own + (unsigned)(e->count * 77));
                size_t element, *place;

                *m = message_of(number, from, to, k, room - 32);
                if (plain == EACH) {
                    m->type = SYMWIN_U8;
                    m->count = k < EACH_OF_PAIR - 1 ? 8 : LARGE;
                }
                m->receives = receives;
                m->peer = other;
                m->in_half = receives && random % 3 == 0;
                element = symwin_type_bytes(m->type);
                place = &at[m->in_half ? 2 : receives];
                *place = (*place + element - 1) / element * element + random / 8 % 2 * element;
                m->at = *place + (m->in_half ? HALF : 0);
                *place += (size_t)m->count * element;
            }
        }
}

static unsigned char message_byte(const struct message *m, size_t i)
{
    return (unsigned char)mix(m->seed + (unsigned)i * 13u);
}

/* Writes what the messages are, or shall be, into two images of memory. */
static void image_of(const struct exchange *e, int received, unsigned char *in, unsigned char *out)
{
    size_t i;
    int k;

    for (k = 0; k < e->count; k++) {
        const struct message *m = &e->messages[k];
        unsigned char *to = (m->receives && !m->in_half ? out : in) + m->at;

        for (i = 0; i < (size_t)m->count * symwin_type_bytes(m->type) && m->receives == received;
             i++)
            to[i] = message_byte(m, i);
    }
}

static void prepare(const struct rank *r, const struct exchange *e)
{
    memset(r->host, FILLED, ROOM);
    memset(r->want, FILLED, ROOM);
    image_of(e, 0, r->host, r->want);
    host_must(host_copy(r->device, r->in, r->host, ROOM), "fill");
    host_must(host_copy(r->device, r->out, r->want, ROOM), "fill");
}

static int is_right(const struct rank *r, const struct exchange *e)
{
    unsigned char *const got = malloc(2 * ROOM);
    size_t i, wrong = 0;

    if (got == NULL)
        abort();
    memset(r->host, FILLED, ROOM);
    memset(r->want, FILLED, ROOM);
    image_of(e, 0, r->host, r->want);
    image_of(e, 1, r->host, r->want);
    host_must(host_copy(r->device, got, r->in, ROOM), "read");
    host_must(host_copy(r->device, got + ROOM, r->out, ROOM), "read");
    for (i = 0; i < ROOM; i++)
        wrong += (got[i] != r->host[i]) + (got[ROOM + i] != r->want[i]);
    if (wrong > 0)
        fprintf(stderr, "rank %d of %d: %zu bytes are wrong\n", r->rank, r->nranks, wrong);
    free(got);
    return wrong == 0;
}

static symwin_status message_call(const struct rank *r, const struct exchange *e,
                                  const struct message *m, int stream)
{
    unsigned char *const at = (m->receives && !m->in_half ? r->out : r->in) + m->at;

    if (m->receives)
        return symwin_recv_with(r->comm, at, m->count, m->type, m->peer, &e->options,
                                r->streams[stream]);
    return symwin_send_with(r->comm, at, m->count, m->type, m->peer, &e->options,
                            r->streams[stream]);
}

static void add(const struct rank *r, const struct exchange *e, int stream)
{
    int k;

    for (k = 0; k < e->count; k++)
        host_must(message_call(r, e, &e->messages[k], stream), "a message");
}

static void in_a_group(const struct rank *r, const struct exchange *e, int stream)
{
    host_must(symwin_group_begin(), "symwin_group_begin");
    add(r, e, stream);
    host_must(symwin_group_end(), "symwin_group_end");
}

static void done(const struct rank *r, const struct exchange *e, const char *what)
{
    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(is_right(r, e), what, r->rank);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void sweep(const struct rank *r, unsigned seed, struct exchange *e)
{
    unsigned i;

    for (i = 0; i < SWEEP; i++) {
        exchange_of(r, seed + i, 0, GUARD, HALF - 2 * GUARD, e);
        prepare(r, e);
        in_a_group(r, e, 0);
        done(r, e, "an exchange");
    }
}

/* Each rank sends to the next one. Outside groups one rank has to receive first. */
static void alone(const struct rank *r, struct exchange *e)
{
    unsigned i;
    int k;

    for (i = 0; i < SWEEP && r->nranks > 1; i++) {
        exchange_of(r, 3000 + i, 1, GUARD, HALF - 2 * GUARD, e);
        prepare(r, e);
        if (i % 2 == 0) {
            in_a_group(r, e, 0);
        } else {
            for (k = 0; k < e->count; k++)
                if (e->messages[k].receives == (r->rank == 0))
                    host_must(message_call(r, e, &e->messages[k], 0), "a message");
            for (k = 0; k < e->count; k++)
                if (e->messages[k].receives != (r->rank == 0))
                    host_must(message_call(r, e, &e->messages[k], 1), "a message");
        }
        done(r, e, "a ring");
    }
}

/* The messages of a side in groups of one to three. */
static void some_at_a_time(const struct rank *r, const struct exchange *e, int receives, int stream)
{
    int k, open = 0;

    for (k = 0; k < e->count; k++) {
        if (e->messages[k].receives != receives)
            continue;
        if (open == 0)
            host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(message_call(r, e, &e->messages[k], stream), "a message");
        open = (open + 1) % (1 + (k + r->rank) / 9 % 3);
        if (open == 0)
            host_must(symwin_group_end(), "symwin_group_end");
    }
    if (open > 0)
        host_must(symwin_group_end(), "symwin_group_end");
}

/* Senders come to the end of the ring before their receivers have begun. The ranks cut the messages
 * into groups differently. */
static void ahead(const struct rank *r, struct exchange *e)
{
    int i;

    for (i = 0; i < 2 && r->nranks > 1; i++) {
        exchange_of(r, 4000u + (unsigned)i, AHEAD, GUARD, HALF - 2 * GUARD, e);
        e->options.blocks = 2 * i * e->options.blocks;
        prepare(r, e);
        if (r->rank == 0)
            host_pause_ms(20);
        some_at_a_time(r, e, r->rank == 0, 0);
        some_at_a_time(r, e, r->rank != 0, 0);
        done(r, e, "many ahead");
    }
}

/* Rank 0 sends and rank 1 receives more messages than a launch has items, in one group. Each of
 * them is one item, so that the first launch is full. */
static void one_way(const struct rank *r, struct exchange *e)
{
    int k, kept = 0;

    exchange_of(r, 6000, AHEAD, GUARD, HALF - 2 * GUARD, e);
    for (k = 0; k < e->count; k++)
        if (r->rank <= 1 && e->messages[k].receives == r->rank)
            e->messages[kept++] = e->messages[k];
    e->count = kept;
    prepare(r, e);
    in_a_group(r, e, 0);
    done(r, e, "more messages than items");
}

/* What came from the other rank's input, at offset `at`. */
static void arrived(const struct rank *r, size_t at, size_t bytes, const char *what)
{
    size_t i, wrong = 0;

    host_must(host_copy(r->device, r->host, r->out, ROOM), "read");
    for (i = 0; i < bytes; i++)
        wrong += r->host[at + i] != (unsigned char)mix((unsigned)(at + i));
    must_be(wrong == 0 && r->host[at + bytes] == FILLED, what, r->rank);
}

static void message(const struct rank *r, int sends, size_t at, size_t bytes,
                    const symwin_collective_options *options)
{
    const int peer = 1 - r->rank;

    host_must(sends ? symwin_send_with(r->comm, r->in + at, bytes, SYMWIN_U8, peer, options,
                                       r->streams[0])
                    : symwin_recv_with(r->comm, r->out + at, bytes, SYMWIN_U8, peer, options,
                                       r->streams[0]),
              "a message");
}

/* As many messages as the ring holds and one more, large or small, before the other rank receives
 * any: the first ones of the communicator, because later the ring is known to be empty in part.
 * Then messages of which each of few threads has several entries. Of ranks 0 and 1. */
static void full_ring(const struct rank *r)
{
    const symwin_collective_options few = {.size = sizeof few, .blocks = 1, .threads = 32};
    static const size_t last[] = {10000, 8}, lengths[] = {504, 507};
    const size_t all = SW_PAIR_SLOTS * 8;
    size_t i;
    int turn;

    if (r->rank > 1 || r->nranks == 1)
        return;
    for (i = 0; i < ROOM; i++)
        r->host[i] = (unsigned char)mix((unsigned)i);
    host_must(host_copy(r->device, r->in, r->host, ROOM), "fill");
    for (turn = 0; turn < 2; turn++) {
        const int sends = r->rank == turn;

        memset(r->host, FILLED, ROOM);
        host_must(host_copy(r->device, r->out, r->host, ROOM), "fill");
        if (!sends)
            host_pause_ms(20);
        for (i = 0; i <= SW_PAIR_SLOTS; i++)
            message(r, sends, i * 8, i < SW_PAIR_SLOTS ? 8 : last[turn], NULL);
        job_wait(r, 0);
        if (!sends)
            arrived(r, 0, all + last[turn], "a full ring, then one more");
        message(r, sends, HALF, lengths[turn], &few);
        job_wait(r, 0);
        if (!sends)
            arrived(r, HALF, lengths[turn], "several entries of a thread");
    }
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

/* Two exchanges, each in a half of the buffers, which are filled for both. */
static void two_exchanges(const struct rank *r, unsigned seed, struct exchange e[2])
{
    int k;

    for (k = 0; k < 2; k++)
        exchange_of(r, seed + (unsigned)k, 0, GUARD + (size_t)k * HALF / 2, HALF / 2 - 2 * GUARD,
                    &e[k]);
    prepare(r, &e[0]);
    memset(r->host, FILLED, ROOM);
    for (k = 0; k < 2; k++)
        image_of(&e[k], 0, r->host, r->want);
    host_must(host_copy(r->device, r->in, r->host, ROOM), "fill");
}

/* Exchanges among collectives on both streams, and collectives in the groups. */
static void in_flight(const struct rank *r, struct exchange *e)
{
    uint32_t *const words = host_alloc(r->device, 4096);
    const uint32_t nranks = (uint32_t)r->nranks;
    uint32_t got = 0;
    int turn;

    for (turn = 0; turn < FLIGHTS; turn++) {
        two_exchanges(r, 5000u + 2 * (unsigned)turn, e);
        host_put_u32(r->device, (unsigned char *)words, 1);
        host_must(symwin_allreduce(r->comm, words, words, 1, SYMWIN_U32, SYMWIN_SUM, r->streams[1]),
                  "symwin_allreduce");
        in_a_group(r, &e[0], 0);
        host_must(symwin_barrier(r->comm, r->streams[1]), "symwin_barrier");
        host_must(symwin_group_begin(), "symwin_group_begin");
        if (r->rank % 2 == 0) /* where it is among the messages does not matter */
            host_must(
                symwin_allreduce(r->comm, words, words, 1, SYMWIN_U32, SYMWIN_SUM, r->streams[0]),
                "symwin_allreduce");
        host_must(symwin_group_begin(), "symwin_group_begin");
        add(r, &e[1], 1);
        host_must(symwin_group_end(), "symwin_group_end");
        if (r->rank % 2 != 0)
            host_must(
                symwin_allreduce(r->comm, words, words, 1, SYMWIN_U32, SYMWIN_SUM, r->streams[0]),
                "symwin_allreduce");
        host_must(symwin_group_end(), "symwin_group_end");
        job_wait(r, 0);
        got = host_get_u32(r->device, (unsigned char *)words);
        must_be(got == nranks * nranks, "collectives in a group", r->rank);
        memcpy(&e[0].messages[e[0].count], e[1].messages,
               (size_t)e[1].count * sizeof e[1].messages[0]);
        e[0].count += e[1].count;
        done(r, &e[0], "exchanges among collectives");
    }
    host_must(symwin_mem_free(words), "symwin_mem_free");
}

static void graphs(const struct rank *r, struct exchange *e)
{
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;
    int i;

    exchange_of(r, 7000, 0, GUARD, HALF - 2 * GUARD, e);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    in_a_group(r, e, 0);
    exec = host_end_capture(r->streams[0], NULL);
    for (k = 0; k < REPLAYS; k++) {
        for (i = 0; i < e->count; i++)
            e->messages[i].seed = mix(e->messages[i].seed);
        prepare(r, e);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        done(r, e, "a replay");
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

static void in_windows(struct processes *p, const struct rank *r, struct exchange *e)
{
    symwin_window *window;

    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &window), "register");
    sweep(r, 1000, e);
    alone(r, e);
    graphs(r, e);
    in_flight(r, e);
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
    processes_barrier(p);
}

/* A second communicator of the same ranks, in one group with the first. */
static void two_communicators(struct processes *p, const struct rank *r, struct exchange *e)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = WAIT_MS, .slot_bytes = SLOT};
    struct rank other = *r;
    unsigned i;

    host_must(symwin_comm_split(r->comm, 0, r->rank, &options, &other.comm), "symwin_comm_split");
    for (i = 0; i < 4; i++) {
        two_exchanges(r, 8000u + 2 * i, e);
        host_must(symwin_group_begin(), "symwin_group_begin");
        add(r, &e[0], 0);
        add(&other, &e[1], 1);
        host_must(symwin_group_end(), "symwin_group_end");
        memcpy(&e[0].messages[e[0].count], e[1].messages,
               (size_t)e[1].count * sizeof e[1].messages[0]);
        e[0].count += e[1].count;
        done(r, &e[0], "two communicators in a group");
        host_must(symwin_comm_check(other.comm), "symwin_comm_check");
    }
    processes_barrier(p);
    symwin_comm_destroy(other.comm);
    processes_barrier(p);
}

/* ---- queries --------------------------------------------------------------------------------- */

enum { SMALL = 8 };

/* What a query says of a message to the next rank or from the one before, or of this rank
 * itself. */
static const struct asked {
    const char *name;
    int receives, own, in_window;
    unsigned count; /* of bytes */
    symwin_path path;
    int few;
} asked[] = {
    {"no bytes", 0, 0, 0, 0, SYMWIN_PATH_RING, 1},
    {"a small send", 0, 0, 0, SMALL, SYMWIN_PATH_RING, 1},
    {"a small receive", 1, 0, 1, SMALL, SYMWIN_PATH_RING, 1},
    {"a large send", 0, 0, 1, LARGE, SYMWIN_PATH_RECEIVER, 1},
    {"a large receive", 1, 0, 0, LARGE, SYMWIN_PATH_RING, 1},
    {"a large receive in a window", 1, 0, 1, LARGE, SYMWIN_PATH_WINDOW, 1},
    {"a send to itself", 0, 1, 0, SMALL, SYMWIN_PATH_OWN, 0},
    {"a large receive from itself", 1, 1, 1, LARGE, SYMWIN_PATH_OWN, 0},
};

static symwin_status query(const struct rank *r, const struct asked *a, unsigned char *buffer,
                           const symwin_collective_options *options, symwin_message_info *info)
{
    const int step = a->own ? 0 : a->receives ? r->nranks - 1 : 1;
    const int peer = (r->rank + step) % r->nranks;
    unsigned char *const at = a->count > 0 ? buffer : NULL;

    return a->receives ? symwin_recv_query(r->comm, at, a->count, SYMWIN_U8, peer, options, info)
                       : symwin_send_query(r->comm, at, a->count, SYMWIN_U8, peer, options, info);
}

/* A call launches as many blocks as its query says. By rank 0 and rank 1 alone. */
static void as_asked(const struct rank *r, const struct asked *a, unsigned char *window)
{
    const uint32_t before = r->comm->done;
    unsigned char *const in = r->in, *const out = a->in_window ? window : r->out;
    symwin_message_info info = {.blocks = -1};

    if (r->rank > 1 || a->own || a->receives != (r->rank == 1))
        return;
    host_must(query(r, a, a->receives ? out : in, NULL, &info), a->name);
    if (a->receives)
        host_must(symwin_recv(r->comm, out, a->count, SYMWIN_U8, 0, r->streams[0]), a->name);
    else
        host_must(symwin_send(r->comm, in, a->count, SYMWIN_U8, 1, r->streams[0]), a->name);
    must_be(r->comm->done - before == (uint32_t)info.blocks, a->name, r->rank);
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

static void queries(struct processes *p, const struct rank *r)
{
    const symwin_collective_options one = {.size = sizeof one, .blocks = 1, .threads = 32};
    unsigned char *const memory = host_alloc(r->device, ROOM);
    symwin_registration *registration = NULL;
    symwin_window *window = NULL;
    size_t i;

    host_must(symwin_window_register(r->comm, memory, ROOM, 0, &window), "register");
    host_must(symwin_register(r->comm, r->out, ROOM, &registration), "symwin_register");
    for (i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        const struct asked *a = &asked[i];
        unsigned char *const at = a->in_window ? memory : r->out;
        const int own = a->own || r->nranks == 1;
        symwin_message_info info = {.blocks = -1};

        host_must(query(r, a, at, NULL, &info), a->name);
        must_be(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks > 0 && info.threads > 0 &&
                    info.path == (own ? SYMWIN_PATH_OWN : a->path) && info.few == (!own && a->few),
                a->name, r->rank);
        host_must(query(r, a, at, &one, &info), a->name);
        must_be(info.blocks == 1 && info.threads == 32, "as asked for", r->rank);
        /* A send of each kind, then its receive. */
        if (r->nranks > 1 && !a->own && !a->receives) {
            struct asked other = *a;

            other.receives = 1;
            as_asked(r, r->rank == 1 ? &other : a, memory);
        }
        processes_barrier(p);
    }
    host_must(symwin_deregister(r->comm, registration), "symwin_deregister");
    host_must(symwin_window_deregister(r->comm, window), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct exchange *e = calloc(2, sizeof *e);

    if (e == NULL)
        abort();
    open_rank(p, &r, WAIT_MS);
    full_ring(&r);
    sweep(&r, 0, e);
    alone(&r, e);
    ahead(&r, e);
    if (r.nranks > 1)
        one_way(&r, e);
    in_flight(&r, e);
    graphs(&r, e);
    in_windows(p, &r, e);
    queries(p, &r);
    if (r.nranks == 3)
        two_communicators(p, &r, e);
    free(e);
    close_rank(p, &r);
}

/* Rank 0's thread makes the calls of all ranks, in one group. */
static struct rank all[4];

static void by_one_thread(struct processes *p, int rank)
{
    struct rank *r = &all[rank];
    struct exchange *e = calloc(1, sizeof *e);
    unsigned i;
    int q;

    if (e == NULL)
        abort();
    *r = (struct rank){.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    open_rank(p, r, WAIT_MS);
    for (i = 0; i < 6; i++) {
        exchange_of(r, 9000 + i, 0, GUARD, HALF - 2 * GUARD, e);
        prepare(r, e);
        processes_barrier(p);
        for (q = 0; q < p->count && rank == 0; q++) {
            if (q == 0)
                host_must(symwin_group_begin(), "symwin_group_begin");
            exchange_of(&all[q], 9000 + i, 0, GUARD, HALF - 2 * GUARD, e);
            host_must(symwin_allgather(all[q].comm, all[q].in, all[q].in, 0, SYMWIN_U8,
                                       all[q].streams[0]),
                      "symwin_allgather");
            add(&all[q], e, 0);
            host_must(symwin_barrier(all[q].comm, all[q].streams[0]), "symwin_barrier");
        }
        if (rank == 0)
            host_must(symwin_group_end(), "symwin_group_end");
        processes_barrier(p);
        exchange_of(r, 9000 + i, 0, GUARD, HALF - 2 * GUARD, e);
        done(r, e, "one thread for all ranks");
        processes_barrier(p);
    }
    free(e);
    close_rank(p, r);
}

/* Many ranks: a ring, and messages of random pairs, or EACH. */
static void many(struct processes *p, int rank)
{
    const int each = *(const int *)places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct exchange *e = calloc(1, sizeof *e);
    unsigned i;

    if (e == NULL)
        abort();
    open_rank(p, &r, WAIT_MS);
    for (i = 0; i < (each ? 1 : 3); i++) {
        exchange_of(&r, 9500 + i, each ? EACH : i < 2, GUARD, HALF - 2 * GUARD, e);
        prepare(&r, e);
        in_a_group(&r, e, 0);
        done(&r, e, "many ranks");
    }
    free(e);
    close_rank(p, &r);
}

int main(void)
{
    static const int ranks[] = {17, 12}; /* EACH of 12 are 66 items, more than a launch has */
    struct processes *p;
    int each;

    /* For ranks that share a GPU: the most that CUDA takes. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    everywhere(body, MOST_RANKS);
    tap_ok(places_run(&places_all[0], 4, by_one_thread, NULL, &p), "one thread drives 4 ranks");
    processes_free(p);
    for (each = 0; each < 2; each++) {
        tap_ok(places_run(&places_all[0], ranks[each], many, &each, &p), "%d ranks of a process",
               ranks[each]);
        processes_free(p);
    }
    return tap_done();
}
