/* Channels that cannot work: bad arguments, ends that do not match, late or lost ranks, waits that
 * end. Each case gets a status and an error text, the same on both ranks where both take part. */
#include "device_member.h"

enum { SHORT_MS = 400 };

static int peer_of(const struct ends_member *m)
{
    return 1 - m->rank;
}

/* Tries to create a channel that must be refused. */
static void refuse(const char *name, const struct ends_member *m, int peer, void *ptr, size_t bytes,
                   int lanes, symwin_status want, const char *words)
{
    const symwin_channel_options options = {.size = sizeof options, .lanes = lanes};
    symwin_channel_end *end = NULL;

    host_expect(name, symwin_channel_create(m->comm, peer, ptr, bytes, &options, &end), want,
                words);
    if (end != NULL)
        tap_ok(0, "%s: and gives no end", name);
}

static void expect(const char *name, const struct ends_member *m, symwin_channel_end *end,
                   symwin_status want, const char *words)
{
    symwin_channel channel = {.own = 1};

    host_expect(name, symwin_channel_connect(m->comm, end, &channel), want, words);
    if (want != SYMWIN_OK && channel.own != 1)
        tap_ok(0, "%s: and gives no channel", name);
}

/* ---- arguments ---- */

/* Rank 0 passes wrong arguments. Rank 1 creates as many channels and gets the errors. */
static void arguments(struct harness_team *team, int rank, void *unused)
{
    const symwin_channel_options wrong_size = {.size = 3};
    symwin_channel_end *end = NULL;
    CUdeviceptr plain = 0;
    struct ends_member m;
    symwin_channel channel;
    symwin_channel_info info;
    symwin_limit limit;
    void *memory, *elsewhere;
    int i, heard = 0;

    (void)unused;
    ends_open(&m, team, rank);
    memory = ends_alloc(&m, GRANULE);
    elsewhere = host_alloc((m.device + 1) % harness_device_count(), 4096);
    host_must_cuda(sw_drv.cuMemAlloc(&plain, 4096), "cuMemAlloc");
    /* Without a valid peer nobody else is told. */
    refuse("a channel with oneself", &m, rank, memory, 64, 0, SYMWIN_INVALID,
           "another rank|0 to 1");
    refuse("with a rank that is not there", &m, 2, memory, 64, 0, SYMWIN_INVALID, "peer is 2");
    refuse("with rank -1", &m, -1, memory, 64, 0, SYMWIN_INVALID, "peer is -1");
    host_expect("no communicator", symwin_channel_create(NULL, 1, NULL, 0, NULL, &end),
                SYMWIN_INVALID, "comm is NULL");
    host_expect("connecting what is no end", symwin_channel_connect(m.comm, NULL, &channel),
                SYMWIN_INVALID, "no live end");
    host_expect("connecting to nowhere", symwin_channel_connect(m.comm, NULL, NULL), SYMWIN_INVALID,
                "channel is NULL");
    host_expect("connecting without a communicator", symwin_channel_connect(NULL, NULL, &channel),
                SYMWIN_INVALID, "comm is NULL");
    host_expect("a limit of nothing", symwin_channel_limit(NULL, &limit), SYMWIN_INVALID,
                "comm is NULL");
    host_expect("a limit to nowhere", symwin_channel_limit(m.comm, NULL), SYMWIN_INVALID,
                "limit is NULL");
    host_expect("asking for what is no end", symwin_channel_query(m.comm, NULL, &info),
                SYMWIN_INVALID, "no live end");
    host_expect("asking for nothing", symwin_channel_query(m.comm, NULL, NULL), SYMWIN_INVALID,
                "info is NULL");
    host_expect("destroying what is no end", symwin_channel_destroy(m.comm, NULL), SYMWIN_INVALID,
                "no live end");
    if (rank == 0) {
        host_expect("options of another size",
                    symwin_channel_create(m.comm, 1, memory, 64, &wrong_size, &end), SYMWIN_INVALID,
                    "options->size is 3");
        refuse("fewer lanes than one", &m, 1, memory, 64, -1, SYMWIN_INVALID, "lanes is -1");
        refuse("more lanes than there are", &m, 1, memory, 64, SYMWIN_CHANNEL_LANES + 1,
               SYMWIN_INVALID, "lanes is 16385");
        refuse("memory of no bytes", &m, 1, memory, 0, 0, SYMWIN_INVALID, "one byte at least");
        refuse("bytes of no memory", &m, 1, NULL, 64, 0, SYMWIN_INVALID, "one byte at least");
        refuse("past the end of it", &m, 1, host_at(memory, GRANULE - 63), 64, 0, SYMWIN_INVALID,
               "pass the end|by 1 bytes");
        refuse("host memory", &m, 1, &m, 64, 0, SYMWIN_INVALID, "VMM memory");
        refuse("memory of cudaMalloc", &m, 1, (void *)(uintptr_t)plain, 64, 0, SYMWIN_INVALID,
               "symwin_mem_alloc");
        refuse("another device's memory", &m, 1, elsewhere, 64, 0, SYMWIN_INVALID,
               "memory of device");
        host_expect("nowhere to put the end", symwin_channel_create(m.comm, 1, NULL, 0, NULL, NULL),
                    SYMWIN_INVALID, "symwin_channel_create: end is NULL");
    }
    for (i = 0; i < 10 && rank == 1; i++) {
        end = ends_offer(&m, 0, NULL, 0, 0);
        heard += symwin_channel_connect(m.comm, end, &channel) == SYMWIN_INVALID &&
                 host_error_has("symwin_channel_connect: rank 0: ");
        ends_destroy(&m, end);
    }
    if (rank == 1)
        TAP_EQ("the peer hears of each", heard, 10);
    end = ends_offer(&m, peer_of(&m), memory, 64, 0);
    expect("and the next one is made", &m, end, SYMWIN_OK, "");
    ends_destroy(&m, end);
    host_expect("connecting what was destroyed", symwin_channel_connect(m.comm, end, &channel),
                SYMWIN_INVALID, "destroyed before");
    host_expect("destroying it again", symwin_channel_destroy(m.comm, end), SYMWIN_INVALID,
                "destroyed before");
    harness_barrier(team);
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    host_must(symwin_mem_free(elsewhere), "symwin_mem_free");
}

/* ---- ends that do not match ---- */

static void misfits(struct harness_team *team, int rank, void *unused)
{
    symwin_channel_end *end, *more;
    struct ends_member m, second;
    symwin_unique_id *id = unused;
    void *memory;

    ends_open(&m, team, rank);
    memory = ends_alloc(&m, GRANULE);
    end = ends_offer(&m, peer_of(&m), memory, 64, 1 + rank);
    expect("lanes that differ", &m, end, SYMWIN_MISMATCH, "rank 0: |rank 1 has 2 lanes|rank 0 1");
    expect("and still do", &m, end, SYMWIN_MISMATCH, "lanes");
    ends_destroy(&m, end);

    end = ends_offer(&m, peer_of(&m), memory, 64, 0);
    if (rank == 0) {
        ends_destroy(&m, end);
        harness_barrier(team);
    } else {
        harness_barrier(team);
        expect("an end whose peer was destroyed", &m, end, SYMWIN_MISMATCH,
               "rank 0: destroyed its end");
        ends_destroy(&m, end);
    }

    /* An end of another communicator. */
    if (rank == 0)
        host_must(symwin_unique_id_create(id), "symwin_unique_id_create");
    harness_barrier(team);
    ends_open_with(&second, id, 2, rank, 20000);
    end = ends_offer(&m, peer_of(&m), memory, 64, 0);
    more = ends_offer(&second, peer_of(&m), memory, 64, 0);
    expect("an end of another communicator", &m, more, SYMWIN_INVALID,
           "belongs to another communicator");
    expect("here it is right", &second, more, SYMWIN_OK, "");
    expect("and here the other one", &m, end, SYMWIN_OK, "");
    harness_barrier(team);
    ends_close(&second);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- late or lost ranks ---- */

struct waiter {
    struct ends_member *m;
    symwin_channel_end *end;
    symwin_status status;
    char text[SW_TEXT_BYTES];
};

static void *wait_for_peer(void *arg)
{
    struct waiter *w = arg;
    symwin_channel channel;

    do
        w->status = symwin_channel_connect(w->m->comm, w->end, &channel);
    while (w->status == SYMWIN_BUSY); /* the other thread was first */
    snprintf(w->text, sizeof w->text, "%s", symwin_last_error());
    return NULL;
}

static void late(struct harness_team *team, int rank, void *unused)
{
    symwin_channel_end *end = NULL;
    struct ends_member m;
    int64_t start;

    (void)unused;
    ends_open_with(&m, &team->id, 2, rank, SHORT_MS);
    start = host_now_ms();
    if (rank == 0) {
        end = ends_offer(&m, 1, NULL, 0, 0);
        expect("a peer that does not come", &m, end, SYMWIN_TIMEOUT,
               "rank 1 did not call symwin_channel_create|symwin_channel_connect, for|destroy");
        tap_ok(host_now_ms() - start >= SHORT_MS - 5 && host_now_ms() - start < 10 * SHORT_MS,
               "in its time");
        host_expect("then the communicator has ended", symwin_comm_check(m.comm), SYMWIN_TIMEOUT,
                    "symwin_comm_check: rank 1 did not come to symwin_channel_connect");
        host_expect("an end is destroyed all the same", symwin_channel_destroy(m.comm, end),
                    SYMWIN_OK, "");
    }
    harness_barrier(team);
    if (rank == 1)
        host_expect("and makes no more channels",
                    symwin_channel_create(m.comm, 0, NULL, 0, NULL, &end), SYMWIN_TIMEOUT,
                    "symwin_channel_create: rank 1 did not come to symwin_channel_connect");
    ends_close(&m);
}

/* The peer leaves or aborts while this rank waits. Meanwhile another thread gets BUSY. */
static void gone(struct harness_team *team, int rank, void *how)
{
    const int aborts = *(const int *)how;
    struct ends_member m;
    struct waiter w = {.m = &m};
    symwin_channel_end *other;
    pthread_t thread;

    ends_open(&m, team, rank);
    harness_barrier(team);
    if (rank == 0) {
        w.end = ends_offer(&m, 1, NULL, 0, 0);
        pthread_create(&thread, NULL, wait_for_peer, &w);
        do
            host_pause_ms(1);
        while (symwin_channel_create(m.comm, 1, NULL, 0, NULL, &other) == SYMWIN_OK);
        host_expect("a second thread in a call of the communicator",
                    symwin_channel_create(m.comm, 1, NULL, 0, NULL, &other), SYMWIN_BUSY,
                    "another thread");
        harness_barrier(team);
        pthread_join(thread, NULL);
        tap_ok(w.status == (aborts ? SYMWIN_ABORTED : SYMWIN_PEER_LOST) &&
                   strstr(w.text, "rank 1") != NULL,
               "the peer %s: %s", aborts ? "aborts" : "leaves", w.text);
        harness_barrier(team);
        ends_close(&m);
        return;
    }
    harness_barrier(team);
    host_pause_ms(20);
    if (aborts)
        host_must(symwin_comm_abort(m.comm), "symwin_comm_abort");
    if (!aborts)
        ends_close(&m);
    harness_barrier(team);
    if (aborts)
        ends_close(&m);
}

/* ---- kernels whose peer does not come ---- */

static void limits(struct harness_team *team, int rank, void *unused)
{
    const symwin_comm_options for_ever = {
        .size = sizeof for_ever, .kernel_timeout_ms = -1, .slot_bytes = 8192};
    symwin_unique_id *id = unused;
    symwin_channel_end *end;
    symwin_channel channel;
    struct ends_args args;
    symwin_comm *patient = NULL;
    struct ends_member m;
    symwin_limit limit;
    uint32_t gave_up;
    void *memory;

    ends_open(&m, team, rank);
    memory = ends_alloc(&m, ENDS_BYTES);
    end = ends_offer(&m, peer_of(&m), memory, ENDS_BYTES, 0);
    channel = ends_connect(&m, end);
    args = ends_args_of(&m, peer_of(&m), &channel);
    tap_ok(args.limit.timeout_ns == 20000000000u && args.limit.abort != 0,
           "the limit is the communicator's");
    if (rank == 0)
        host_must(symwin_unique_id_create(id), "symwin_unique_id_create");
    harness_barrier(team);
    host_must(symwin_comm_create(id, 2, rank, m.device, &for_ever, &patient), "symwin_comm_create");
    host_must(symwin_channel_limit(patient, &limit), "symwin_channel_limit");
    TAP_EQ("of one that waits for ever", limit.timeout_ns, 0);
    harness_barrier(team);
    symwin_comm_destroy(patient);
    harness_barrier(team); /* unmaps the memory, which waits for kernels */

    if (rank == 0) { /* the peer's kernel never comes */
        args.limit.timeout_ns = 30000000;
        ends_launch(&m, "ends_lanes", 1, &args);
        host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
        gave_up = host_get_u32(m.device, (const void *)(uintptr_t)(args.wrong + 4));
        TAP_EQ("a kernel leaves when its time is over", gave_up, 1);
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        args.limit.timeout_ns = 0;
        ends_launch(&m, "ends_lanes", 1, &args);
    }
    harness_barrier(team);
    host_pause_ms(20);
    if (rank == 1)
        host_must(symwin_comm_abort(m.comm), "symwin_comm_abort");
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    gave_up = host_get_u32(m.device, (const void *)(uintptr_t)(args.wrong + 4));
    TAP_EQ("and where the communicator is aborted", gave_up, rank == 0);
    host_expect("which says why", symwin_comm_check(m.comm), SYMWIN_ABORTED, "rank 1");
    harness_barrier(team);
    ends_close(&m);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

int main(void)
{
    static int leaves = 0, aborts = 1;
    static symwin_unique_id id;
    struct harness_leaks before;

    harness_start();
    (void)device_code();
    before = harness_leaks_now();
    harness_run(2, arguments, NULL);
    harness_run(2, misfits, &id);
    harness_run(2, late, NULL);
    harness_run(2, gone, &leaves);
    harness_run(2, gone, &aborts);
    harness_run(2, limits, &id);
    harness_no_leaks("channels that cannot be", &before);
    return tap_done();
}
