/* Sends, receives and groups that fail: wrong arguments are refused; messages that differ, ranks
 * that do not come or have left, and aborts end both ranks' calls, and nothing is stored outside
 * the outputs. Also runs on GPUs (tests/gpu/both.txt). */
#include "collectives.h"
#include "kernels/pair_layout.h"

static void refused(const struct rank *r, symwin_status status, symwin_status want,
                    const char *words)
{
    if (status != want || !host_error_has(words))
        fprintf(stderr, "rank %d: %s \"%s\", not %s \"%s\"\n", r->rank, symwin_status_name(status),
                symwin_last_error(), symwin_status_name(want), words);
    must_be(status == want && host_error_has(words), words, r->rank);
}

/* ---- arguments ---- */

static void begin(void)
{
    host_must(symwin_group_begin(), "symwin_group_begin");
}

static symwin_status send_u32(const struct rank *r, void *in, uint64_t count, int peer)
{
    return symwin_send(r->comm, in, count, SYMWIN_U32, peer, r->streams[0]);
}

static symwin_status recv_u32(const struct rank *r, void *out, uint64_t count, int peer)
{
    return symwin_recv(r->comm, out, count, SYMWIN_U32, peer, r->streams[0]);
}

static void arguments(const struct rank *r)
{
    symwin_collective_options put = {.size = sizeof put, .algo = SYMWIN_ALGO_PUT};
    symwin_message_info info;
    const int next = (r->rank + 1) % r->nranks;

    refused(r, symwin_send(NULL, r->in, 1, SYMWIN_U32, 0, NULL), SYMWIN_INVALID,
            "symwin_send: comm is NULL");
    refused(r, send_u32(r, r->in, 1, r->nranks), SYMWIN_INVALID,
            "symwin_send: peer is 3 and must be a rank, 0 to 2");
    refused(r, recv_u32(r, r->out, 1, -1), SYMWIN_INVALID,
            "symwin_recv: peer is -1 and must be a rank, 0 to 2");
    refused(r, send_u32(r, NULL, 1, next), SYMWIN_INVALID, "symwin_send: in is NULL");
    refused(r, recv_u32(r, NULL, 1, next), SYMWIN_INVALID, "symwin_recv: out is NULL");
    refused(r, recv_u32(r, r->out + 2, 1, next), SYMWIN_INVALID, "not aligned to u32");
    refused(r, send_u32(r, r->host, 1, next), SYMWIN_INVALID, "is not device memory");
    refused(r, send_u32(r, r->in, ((uint64_t)1 << 46) + 1, next), SYMWIN_INVALID,
            "more than any memory holds");
    refused(r, symwin_recv(r->comm, r->out, 1, (symwin_type)12, next, NULL), SYMWIN_INVALID,
            "symwin_recv: there is no type 12");
    refused(r, symwin_send_with(r->comm, r->in, 1, SYMWIN_U32, next, &put, NULL),
            SYMWIN_UNSUPPORTED, "symwin_send_with: there is no algorithm put for it; pass auto");
    refused(r, symwin_send_query(r->comm, r->in, 1, SYMWIN_U32, next, NULL, NULL), SYMWIN_INVALID,
            "symwin_send_query: info is NULL");
    refused(r, symwin_recv_query(NULL, r->out, 1, SYMWIN_U32, next, NULL, &info), SYMWIN_INVALID,
            "symwin_recv_query: comm is NULL");
    refused(r, symwin_recv_query(r->comm, r->out, 1, SYMWIN_U32, 7, NULL, &info), SYMWIN_INVALID,
            "symwin_recv_query: peer is 7 and must be a rank, 0 to 2");
    refused(r, symwin_send_query(r->comm, r->in, 1, SYMWIN_U32, next, &put, &info),
            SYMWIN_UNSUPPORTED, "symwin_send_query: there is no algorithm put for it; pass auto");
    put.algo = SYMWIN_ALGO_AUTO;
    put.blocks = 100000;
    refused(r, symwin_send_with(r->comm, r->in, 1, SYMWIN_U32, next, &put, r->streams[0]),
            SYMWIN_UNSUPPORTED,
            "symwin_send_with: 100000 blocks were asked for|; pass no more, or 0");
    refused(r, symwin_recv_query(r->comm, r->out, 1, SYMWIN_U32, next, &put, &info),
            SYMWIN_UNSUPPORTED, "symwin_recv_query: 100000 blocks were asked for");
    refused(r, send_u32(r, r->in, 1, r->rank), SYMWIN_INVALID,
            "symwin_send: rank |sends to itself without a receive in the group");
    refused(r, recv_u32(r, r->out, 1, r->rank), SYMWIN_INVALID,
            "symwin_recv: rank |receives from itself without a send in the group");
}

/* Messages that pass the end of their buffer's allocation. */
static void past_memory(const struct rank *r)
{
    const int next = (r->rank + 1) % r->nranks;
    symwin_message_info info;
    void *small;

    host_must(symwin_mem_alloc(r->device, 1000, 0, &small), "symwin_mem_alloc");
    host_must(symwin_recv_query(r->comm, small, 250, SYMWIN_U32, next, NULL, &info), "all of it");
    refused(r, send_u32(r, small, 251, next), SYMWIN_INVALID,
            "symwin_send: rank |'s 251 elements (1004 bytes) at in (0x|) pass the end of its "
            "allocation, which has 1000 bytes from there; pass fewer, or a larger buffer");
    refused(r, recv_u32(r, (char *)small + 996, 2, next), SYMWIN_INVALID,
            "symwin_recv: rank |'s 2 elements (8 bytes) at out (0x|which has 4 bytes");
    begin();
    host_must(send_u32(r, r->in, 1, next), "a send");
    refused(r, recv_u32(r, small, 251, next), SYMWIN_INVALID, "which has 1000 bytes");
    refused(r, symwin_group_end(), SYMWIN_INVALID, "symwin_recv: rank |which has 1000 bytes");
    host_must(symwin_mem_free(small), "symwin_mem_free");
}

/* The driver may give one rank's freed address to another rank of the process. */
static pthread_mutex_t allocating = PTHREAD_MUTEX_INITIALIZER;

/* A buffer that is freed within its group, of the pool or of the driver. */
static void freed_in_group(const struct rank *r, int receives, int of_driver)
{
    const uint32_t launches = job_launches(r);
    const int next = (r->rank + 1) % r->nranks;
    struct sw_scope scope;
    CUdeviceptr at = 0;
    void *memory;

    pthread_mutex_lock(&allocating);
    host_must(sw_scope_enter(r->device, &scope), "sw_scope_enter");
    if (of_driver)
        host_must_cuda(sw_drv.cuMemAlloc(&at, 4096), "cuMemAlloc");
    else
        host_must(symwin_mem_alloc(r->device, 4096, 0, &memory), "symwin_mem_alloc");
    if (of_driver)
        memory = (void *)(uintptr_t)at;
    begin();
    host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
    host_must(receives ? recv_u32(r, memory, 1, next) : send_u32(r, memory, 1, next), "a message");
    if (of_driver)
        host_must_cuda(sw_drv.cuMemFree(at), "cuMemFree");
    else
        host_must(symwin_mem_free(memory), "symwin_mem_free");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            receives ? "symwin_recv: out (0x|) was freed; pass memory that is allocated"
                     : "symwin_send: in (0x|) was freed; pass memory that is allocated");
    sw_scope_leave(&scope);
    pthread_mutex_unlock(&allocating);
    must_equal(job_launches(r), launches, "launches", r->rank);
}

static void groups(const struct rank *r)
{
    const symwin_collective_options many = {.size = sizeof many, .blocks = 100000};
    const int next = (r->rank + 1) % r->nranks;

    refused(r, symwin_group_end(), SYMWIN_INVALID, "symwin_group_end: this thread has no group");
    begin();
    host_must(symwin_group_end(), "an empty group");
    begin();
    host_must(send_u32(r, r->in, 4, r->rank), "a send");
    refused(r, symwin_group_end(), SYMWIN_INVALID, "symwin_group_end: rank |sends to itself");
    begin();
    host_must(send_u32(r, r->in, 4, r->rank), "a send");
    host_must(recv_u32(r, r->out, 5, r->rank), "a receive");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            "sends 4 elements of u32 to itself and receives 5 of u32");
    begin();
    host_must(send_u32(r, r->in, 4, r->rank), "a send");
    host_must(symwin_recv(r->comm, r->out, 4, SYMWIN_U64, r->rank, r->streams[0]), "a receive");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            "sends 4 elements of u32 to itself and receives 4 of u64");
    begin();
    host_must(send_u32(r, r->in + 16, 4, r->rank), "a send");
    host_must(recv_u32(r, r->in, 4, r->rank), "a receive");
    host_must(symwin_group_end(), "buffers that touch");
    begin();
    host_must(send_u32(r, r->in, 4, r->rank), "a send");
    host_must(recv_u32(r, r->in + 4, 4, r->rank), "a receive");
    refused(r, symwin_group_end(), SYMWIN_INVALID, "overlap in part");
    begin();
    host_must(send_u32(r, r->in, 1, next), "a send");
    host_must(symwin_send(r->comm, r->in, 1, SYMWIN_U32, next, r->streams[1]), "a send");
    refused(r, symwin_group_end(), SYMWIN_INVALID, "are on two streams; pass one stream");
    begin(); /* nothing is launched, and both ends say why */
    host_must(send_u32(r, r->in, 1, next), "a send");
    host_must(symwin_barrier(r->comm, r->streams[0]), "a barrier");
    refused(r, recv_u32(r, r->out, 1, 7), SYMWIN_INVALID, "peer is 7");
    begin();
    host_must(symwin_group_end(), "an inner group");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            "symwin_group_end: a call of the group failed, and nothing was launched: symwin_recv: "
            "peer is 7");
    begin(); /* the barrier would be launched first */
    host_must(symwin_barrier(r->comm, r->streams[0]), "a barrier");
    refused(r, symwin_send_with(r->comm, r->in, 1, SYMWIN_U32, next, &many, r->streams[0]),
            SYMWIN_UNSUPPORTED, "symwin_send_with: 100000 blocks were asked for");
    refused(r, symwin_group_end(), SYMWIN_UNSUPPORTED, "nothing was launched: symwin_send_with: ");
    begin();
    refused(r, symwin_allgather(r->comm, r->in, NULL, 1, SYMWIN_U32, r->streams[0]), SYMWIN_INVALID,
            "out is NULL");
    refused(r, symwin_group_end(), SYMWIN_INVALID, "nothing was launched: symwin_allgather: out");
    begin();
    refused(r, symwin_allgather(r->comm, r->in, r->out, 1, (symwin_type)12, r->streams[0]),
            SYMWIN_INVALID, "there is no type 12");
    refused(r, symwin_group_end(), SYMWIN_INVALID, "nothing was launched: symwin_allgather: there");
}

/* ---- messages that differ, and ranks that are late, leave or abort ---- */

/* Elements: more wait for the receiver. */
enum { LARGE = SW_PAIR_EAGER * SW_PAIR_SLOT_BYTES(SLOT) / 2 / 4 };

/* UNTAKEN: of `sent` messages, one of each length from 0 on, `received` are received.
 * ONE_BLOCK: COUNT, with fewer blocks than items, so by the kernel for any number of them.
 * TWICE, SECOND: of two receives none gets its message, of three the first one alone.
 * BOTH: a send to the rank that is late, besides. */
enum oddity {
    SAME,
    COUNT,
    ONE_BLOCK,
    TYPE,
    LATE,
    TWICE,
    SECOND,
    BOTH,
    CHAIN,
    LEAVES,
    UNTAKEN,
    ABORTS,
    DESTROYS
};

/* Rank 0 sends to rank 1. */
struct row {
    const char *name;
    enum oddity oddity;
    uint64_t sent, received; /* elements */
    int window;              /* the receiver's output is in one */
    symwin_status status;
    const char *words; /* NULL: both counts */
};

static struct row rows[] = {
    {"arguments", SAME, 0, 0, 0, SYMWIN_OK, ""},
    {"5 of 4 elements", COUNT, 5, 4, 0, SYMWIN_MISMATCH,
     "in a send or receive, a count differs: rank 0 sends 5 elements to rank 1, which receives 4"},
    {"4 of 5 elements", COUNT, 4, 5, 0, SYMWIN_MISMATCH, NULL},
    {"none of 5 elements", COUNT, 0, 5, 0, SYMWIN_MISMATCH, NULL},
    {"5 of no elements", COUNT, 5, 0, 0, SYMWIN_MISMATCH, NULL},
    {"none of many", COUNT, 0, 900, 0, SYMWIN_MISMATCH, NULL},
    {"many of none", COUNT, 900, 0, 0, SYMWIN_MISMATCH, NULL},
    {"many of more", COUNT, 900, 901, 0, SYMWIN_MISMATCH, NULL},
    {"many of a few, in a window", COUNT, 900, 7, 1, SYMWIN_MISMATCH, NULL},
    {"a few of many, in a window", COUNT, 7, 900, 1, SYMWIN_MISMATCH, NULL},
    {"more of many, in a window", COUNT, 2000, 900, 1, SYMWIN_MISMATCH, NULL},
    {"more of many, in a window, once more", COUNT, 5000, 900, 1, SYMWIN_MISMATCH, NULL},
    {"many of more, one block", ONE_BLOCK, 900, 901, 0, SYMWIN_MISMATCH, NULL},
    {"more of many, in a window, one block", ONE_BLOCK, 2000, 900, 1, SYMWIN_MISMATCH, NULL},
    {"more of many, in a window, one block, once more", ONE_BLOCK, 5000, 900, 1, SYMWIN_MISMATCH,
     NULL},
    {"the most with flags, of one more", COUNT, LARGE, LARGE + 1, 0, SYMWIN_MISMATCH, NULL},
    {"the least without flags, of one less", COUNT, LARGE + 1, LARGE, 0, SYMWIN_MISMATCH, NULL},
    {"the most with flags, of one more, one block", ONE_BLOCK, LARGE, LARGE + 1, 0, SYMWIN_MISMATCH,
     NULL},
    {"the least without flags, of one less, one block", ONE_BLOCK, LARGE + 1, LARGE, 0,
     SYMWIN_MISMATCH, NULL},
    {"another type", TYPE, 5, 5, 0, SYMWIN_MISMATCH,
     "in a send or receive, the type differs: rank 0 sends u32 to rank 1, which receives f32"},
    {"another type of many", TYPE, 900, 900, 1, SYMWIN_MISMATCH, "rank 0 sends u32|receives f32"},
    {"a sender that is late", LATE, 5, 5, 0, SYMWIN_TIMEOUT,
     "in a receive of 5 elements of u32 from rank 0, rank 1 waited 100 ms for rank 0; every send "
     "needs its receive, and "
     "those that wait for each other are made in one group (symwin_group_begin()); destroy"},
    {"a receiver that is late", LATE, 900, 900, 0, SYMWIN_TIMEOUT,
     "in a send of 900 elements of u32 to rank 1, rank 0 waited 100 ms for rank 1;"},
    {"a sender of two that is late", TWICE, 5, 5, 0, SYMWIN_TIMEOUT,
     "in a receive of 5 elements of u32 from rank 0, number 1 of 2 launched together, rank 1 "
     "waited 100 ms for rank 0;"},
    {"the second of three that is late", SECOND, 5, 6, 0, SYMWIN_TIMEOUT,
     "in a receive of 6 elements of u32 from rank 0, number 2 of 3 launched together, rank 1 "
     "waited 100 ms for rank 0;"},
    {"one of an exchange that is late", BOTH, 5, 5, 0, SYMWIN_TIMEOUT,
     "in a receive of 5 elements of u32 from rank 0, rank 1 waited 100 ms for rank 0;"},
    {"a rank that another waits for", CHAIN, 900, 900, 0, SYMWIN_TIMEOUT,
     "in a send of 900 elements of u32 to rank 1, rank 0 waited 1500 ms for rank 2;"},
    {"a sender that leaves", LEAVES, 5, 5, 0, SYMWIN_PEER_LOST,
     "rank 0 has destroyed its communicator, and rank 1 waited for it in a send or receive"},
    {"a receiver that leaves", LEAVES, 900, 900, 1, SYMWIN_PEER_LOST,
     "rank 1 has destroyed its communicator, and rank 0 waited for it in a send or receive"},
    {"a message without a receive", UNTAKEN, 1, 0, 0, SYMWIN_MISMATCH, NULL},
    {"one more message than receives", UNTAKEN, 4, 3, 0, SYMWIN_MISMATCH, NULL},
    {"and in a ring that was full before", UNTAKEN, 200, 198, 0, SYMWIN_MISMATCH, NULL},
    {"as many receives as messages", UNTAKEN, 200, 200, 0, SYMWIN_OK, NULL},
    {"an abort", ABORTS, 900, 900, 0, SYMWIN_ABORTED, "aborted"},
    {"a group of a communicator that is destroyed", DESTROYS, 1, 1, 0, SYMWIN_OK, ""},
};

static void fill(const struct rank *r)
{
    memset(r->host, FILLED, ROOM);
    host_must(host_copy(r->device, r->out, r->host, ROOM), "fill");
}

static void nothing_outside(const struct rank *r, uint64_t received)
{
    size_t i, wrong = 0;

    host_must(host_copy(r->device, r->host, r->out, ROOM), "read");
    for (i = 0; i < ROOM; i++)
        if (i < GUARD || i >= GUARD + (size_t)received * 4)
            wrong += r->host[i] != FILLED;
    must_be(wrong == 0, "nothing is written past what is received", r->rank);
}

/* What a rank says that notices. */
static const char *words_of(const struct row *row, char text[64])
{
    if (row->words != NULL)
        return row->words;
    snprintf(text, 64, "sends %llu |which receives %llu ", (unsigned long long)row->sent,
             (unsigned long long)row->received);
    return text;
}

/* A rank whose kernels have ended, or that has none, knows from the others that a call has failed:
 * from those of its host what differs, and otherwise not all of why. The kernel of a small send has
 * ended. */
static const char *words_for(const struct processes *p, const struct rank *r, const struct row *row,
                             char text[64])
{
    const struct place *place = ((const struct places_job *)p->arg)->place;
    const int late = row->oddity >= LATE && row->oddity <= CHAIN;
    const int waits = late ? r->rank == (row->sent > LARGE ? 0 : 1)
                           : r->rank == 1 || (r->rank == 0 && row->sent > LARGE);

    if (row->status == SYMWIN_MISMATCH && (place->hosts == NULL || row->sent > LARGE))
        return words_of(row, text);
    if (row->status == SYMWIN_MISMATCH && r->rank == 2) /* rank 0, on its host, may have noticed */
        return "differ|destroy";
    if (row->oddity == CHAIN && r->rank == 1) /* its kernel or its host may be told first */
        return "rank 2|destroy";
    if (late && !waits && place->hosts == NULL) /* another host is told less */
        return "symwin_comm_check: rank |did not come to a send or receive in time; destroy";
    return waits || row->oddity == ABORTS ? words_of(row, text) : "";
}

/* The status in which the communicator ends. Another host's may need a moment. */
static symwin_status outcome(const struct rank *r)
{
    symwin_status status = SYMWIN_OK;
    int turn;

    for (turn = 0; turn < 5000 && status == SYMWIN_OK; turn++) {
        host_pause_ms(1);
        status = symwin_comm_check(r->comm);
    }
    return status;
}

/* Both calls in a group with one in the other direction, which is right. */
static void differs(struct processes *p, const struct rank *r, const struct row *row)
{
    const symwin_collective_options options = {.size = sizeof options,
                                               .blocks = row->oddity == ONE_BLOCK};
    char text[64];

    processes_barrier(p);
    begin();
    if (r->rank == 0) {
        host_must(
            symwin_send_with(r->comm, r->in, row->sent, SYMWIN_U32, 1, &options, r->streams[0]),
            "a send");
        host_must(recv_u32(r, r->out + GUARD, 3, 1), "a receive");
    } else if (r->rank == 1) {
        host_must(symwin_recv_with(r->comm, r->out + GUARD, row->received,
                                   row->oddity == TYPE ? SYMWIN_F32 : SYMWIN_U32, 0, &options,
                                   r->streams[0]),
                  "a receive");
        host_must(send_u32(r, r->in, 3, 0), "a send");
    }
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    (void)symwin_comm_check(r->comm);
    processes_barrier(p);
    job_wait(r, 0);
    refused(r, outcome(r), row->status, words_for(p, r, row, text));
    nothing_outside(r, r->rank == 1 ? row->received : r->rank == 0 ? 3 : 0);
}

static void one_comes(struct processes *p, const struct rank *r, const struct row *row)
{
    const int odd = row->sent > LARGE; /* the receiver does not come */
    const symwin_collective_options one = {.size = sizeof one, .blocks = 1};
    char text[64];

    processes_barrier(p);
    if (r->rank == 1 && row->oddity == CHAIN)
        host_pause_ms(300); /* rank 0's time is over first */
    begin();
    if (r->rank == 0 && odd) {
        host_must(send_u32(r, r->in, 3, 2), "a small send, which waits for nothing");
        host_must(send_u32(r, r->in, row->sent, 1), "a send");
    }
    if (row->oddity == SECOND && r->rank == 0)
        host_must(send_u32(r, r->in, row->sent, 1), "the first one");
    if (row->oddity == SECOND && r->rank == 1)
        host_must(symwin_recv_with(r->comm, r->out + GUARD + 64, row->sent, SYMWIN_U32, 0, &one,
                                   r->streams[0]),
                  "the first one");
    if (r->rank == 1 && (!odd || row->oddity == CHAIN))
        host_must(recv_u32(r, r->out + GUARD, row->received, row->oddity == CHAIN ? 2 : 0),
                  "a receive");
    if (r->rank == 1 && (row->oddity == TWICE || row->oddity == SECOND))
        host_must(symwin_recv_with(r->comm, r->out + GUARD + 128, row->received, SYMWIN_U32, 0,
                                   &one, r->streams[0]),
                  "another one");
    if (r->rank == 1 && row->oddity == BOTH)
        host_must(send_u32(r, r->in, 3, 0), "a send, which waits for nothing");
    host_must(symwin_group_end(), "symwin_group_end");
    if (row->oddity == ABORTS && r->rank == 2) {
        host_pause_ms(20);
        host_must(symwin_comm_abort(r->comm), "symwin_comm_abort");
    }
    job_wait(r, 0);
    (void)symwin_comm_check(r->comm);
    processes_barrier(p);
    refused(r, outcome(r), row->status, words_for(p, r, row, text));
}

/* A rank sends a small message and leaves: it arrives. The next one does not come. */
static void leaves(struct processes *p, struct rank *r, const struct row *row)
{
    const int leaver = row->sent > LARGE;

    processes_barrier(p);
    if (r->rank == 0)
        host_must(send_u32(r, r->in, 3, 1), "a small send");
    if (r->rank == 1)
        host_must(recv_u32(r, r->out + GUARD, 3, 0), "a small receive");
    if (r->rank == leaver) {
        symwin_comm_destroy(r->comm);
        r->comm = NULL;
    } else if (r->rank == 1 - leaver) {
        if (leaver == 1)
            host_must(send_u32(r, r->in, row->sent, 1), "a send");
        else
            host_must(recv_u32(r, r->out + GUARD + 12, row->received, 0), "a receive");
        job_wait(r, 0);
        refused(r, symwin_comm_check(r->comm), row->status, row->words);
        if (leaver == 0)
            must_be(host_get_u32(r->device, r->out + GUARD) == 0x77777777u, "the small message", 1);
    }
    processes_barrier(p);
}

/* A rank sends more messages than the other one receives before it leaves. */
static void untaken(struct processes *p, struct rank *r, const struct row *row)
{
    const struct place *place = ((const struct places_job *)p->arg)->place;
    char text[64];
    uint64_t i;

    processes_barrier(p);
    for (i = 0; i < row->sent; i++) {
        if (r->rank == 0)
            host_must(send_u32(r, r->in, i, 1), "a send");
        if (r->rank == 1 && i < row->received)
            host_must(recv_u32(r, r->out + GUARD, i, 0), "a receive");
    }
    job_wait(r, 0);
    processes_barrier(p);
    snprintf(text, sizeof text, "rank 0 |sent rank 1 %llu elements",
             (unsigned long long)row->received);
    if (r->rank == 1) {
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        symwin_comm_destroy(r->comm);
        r->comm = NULL;
        must_be(row->status == SYMWIN_OK || host_error_has(text), "the destroy says so", 1);
    }
    processes_barrier(p);
    if (r->rank != 1 && row->status == SYMWIN_OK) /* that it has left is no failure */
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    else if (r->rank != 1) /* another host is told less */
        refused(r, outcome(r), row->status,
                place->hosts == NULL || place->hosts[r->rank] == place->hosts[1]
                    ? text
                    : "rank 1's calls differ");
}

static void destroys(struct processes *p, struct rank *r)
{
    begin();
    host_must(send_u32(r, r->in, 1, (r->rank + 1) % r->nranks), "a send");
    host_must(symwin_barrier(r->comm, r->streams[0]), "a barrier");
    processes_barrier(p);
    symwin_comm_destroy(r->comm);
    r->comm = NULL;
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            "a communicator was destroyed in the group that uses it");
}

static void body(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *window;
    int i;

    open_rank(p, &r,
              row->oddity >= LATE && row->oddity <= BOTH ? 100
              : row->oddity == CHAIN                     ? 1500
                                                         : WAIT_MS);
    fill(&r);
    memset(r.host, 0x77, ROOM);
    host_must(host_copy(r.device, r.in, r.host, ROOM), "fill");
    if (row->window)
        host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &window), "register");
    switch (row->oddity) {
    case SAME:
        arguments(&r);
        past_memory(&r);
        processes_barrier(p); /* nobody else allocates */
        for (i = 0; i < 4; i++)
            freed_in_group(&r, i / 2, i % 2);
        processes_barrier(p);
        groups(&r);
        processes_barrier(p);
        host_must(symwin_barrier(r.comm, r.streams[0]), "the communicator still works");
        job_wait(&r, 0);
        host_must(symwin_comm_check(r.comm), "symwin_comm_check");
        break;
    case COUNT:
    case ONE_BLOCK:
    case TYPE:
        differs(p, &r, row);
        break;
    case LATE:
    case TWICE:
    case SECOND:
    case BOTH:
    case CHAIN:
    case ABORTS:
        one_comes(p, &r, row);
        break;
    case LEAVES:
        leaves(p, &r, row);
        break;
    case UNTAKEN:
        untaken(p, &r, row);
        break;
    case DESTROYS:
        destroys(p, &r);
    }
    close_rank(p, &r);
}

/* A thread ends with its group open. In this process, where LeakSanitizer looks. */
static void *stays_open(void *comm)
{
    begin();
    host_must(symwin_barrier(comm, NULL), "a barrier");
    return NULL;
}

static void *stays_open_without(void *comm)
{
    (void)stays_open(comm);
    symwin_comm_destroy(comm);
    return NULL;
}

static pthread_key_t own_key;

static void destroy(void *comm)
{
    symwin_comm_destroy(comm);
}

/* The program's own destructor comes after the library's, whose key is older. */
static void *leaves_to_a_key(void *comm)
{
    (void)stays_open(comm);
    host_must(pthread_setspecific(own_key, comm) == 0 ? SYMWIN_OK : SYMWIN_NO_MEMORY, "a key");
    return NULL;
}

static symwin_comm *comm_of_one(void)
{
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    return comm;
}

int main(void)
{
    symwin_comm *comm;
    pthread_t thread;
    int threads;
    size_t i;

    for (threads = 0; threads < 2; threads++) { /* processes first */
        if (threads)
            places_stay();
        for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            struct processes *p;
            const size_t place = i % places_count();

            if (places_one(&places_all[place]) != threads)
                continue;
            tap_ok(places_run(&places_all[place], 3, body, &rows[i], &p), "%s, %s", rows[i].name,
                   places_all[place].name);
            processes_free(p);
        }
    }
    tap_ok(pthread_create(&thread, NULL, stays_open_without, comm_of_one()) == 0 &&
               pthread_join(thread, NULL) == 0,
           "a thread ends with a group open whose communicator is destroyed");
    comm = comm_of_one();
    tap_ok(pthread_create(&thread, NULL, stays_open, comm) == 0 && pthread_join(thread, NULL) == 0,
           "and one whose communicator is destroyed later");
    symwin_comm_destroy(comm);
    tap_ok(pthread_key_create(&own_key, destroy) == 0 &&
               pthread_create(&thread, NULL, leaves_to_a_key, comm_of_one()) == 0 &&
               pthread_join(thread, NULL) == 0,
           "and one whose communicator is destroyed as the thread ends");
    return tap_done();
}
