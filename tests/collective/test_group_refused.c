/* Groups of collectives that fail: a rank's call differs from the others' in each argument and at
 * each place of the group, or it groups them otherwise; and ranks that are late, leave or abort.
 * All ranks report the same. Also runs on GPUs (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 8192
#include "collectives.h"

enum { CALLS = 20, PITCH = 4096 };

enum oddity {
    COLLECTIVE,
    COUNT,
    TYPE,
    ROOT,
    ALGO,
    LARGE,
    REDUCES,
    FEWER,
    ALONE,
    LATE,
    LEAVES,
    ABORTS,
    ODDITIES
};

/* "#" is the number of the odd call in the group; 1 and 2 are the ranks: the odd one, and the
 * lowest of the others. */
static const struct oddity_text {
    const char *name, *words;
    symwin_status status;
} texts[ODDITIES] = {
    [COLLECTIVE] =
        {"another call",
         "the call with number # in a group differs: rank 1 called symwin_scatter(), rank 2 called "
         "symwin_broadcast()| call the same on every rank",
         SYMWIN_MISMATCH},
    [COUNT] = {"another count",
               "count of call # of a group differs: rank 1 passed 99, rank 2 passed 100| pass the "
               "same on every rank",
               SYMWIN_MISMATCH},
    [TYPE] = {"another type of that size",
              "type of call # of a group differs: rank 1 passed f32, rank 2 passed u32",
              SYMWIN_MISMATCH},
    [ROOT] = {"another root", "root of call # of a group differs: rank 1 passed 0, rank 2 passed 2",
              SYMWIN_MISMATCH},
    [ALGO] =
        {"another algorithm",
         "algorithm of call # of a group differs: rank 1 passed put (buffers in windows), rank "
         "2 passed oneshot",
         SYMWIN_MISMATCH},
    [LARGE] = {"a count that fits in no launch with others",
               "count of call # of a group differs: rank 1 passed 4000, rank 2 passed 100",
               SYMWIN_MISMATCH},
    [REDUCES] = {"a call that reduces",
                 "the call with number # in a group differs: rank 1 called symwin_allreduce(), "
                 "rank 2 called symwin_broadcast()",
                 SYMWIN_MISMATCH},
    [FEWER] = {"a group that ends before", /* the last launch has 4 calls */
               "the number of calls made at once in a group differs: rank 1 made |, rank 2 made |"
               " group calls alike on every rank",
               SYMWIN_MISMATCH},
    [ALONE] = {"calls in no group",
               "the number of calls made at once in a group differs: rank 1 made 1, rank 2 made 16",
               SYMWIN_MISMATCH},
    [LATE] = {"a late rank", "waited 100 ms for rank 1;", SYMWIN_TIMEOUT},
    [LEAVES] = {"a rank that leaves",
                "rank 1 has destroyed its communicator|waited for it in collective 1",
                SYMWIN_PEER_LOST},
    [ABORTS] = {"a rank that aborts", "rank 1", SYMWIN_ABORTED},
};

struct row {
    enum oddity oddity;
    int place; /* of the odd call */
    int odd;   /* the rank */
};

/* Call `k` of a group of broadcasts. */
static symwin_status make_call(const struct rank *r, const struct row *row, int k, int odd)
{
    const symwin_collective_options put = {.size = sizeof put, .algo = SYMWIN_ALGO_PUT};
    const symwin_collective_options oneshot = {.size = sizeof put, .algo = SYMWIN_ALGO_ONESHOT};
    unsigned char *const in = r->in + k * PITCH, *const out = r->out + k * PITCH;
    const enum oddity is = odd && k == row->place ? row->oddity : ODDITIES;
    struct CUstream_st *const s = r->streams[0];

    if (is == COLLECTIVE)
        return symwin_scatter_with(r->comm, in, out, 100, SYMWIN_U32, 2, &oneshot, s);
    if (is == REDUCES)
        return symwin_allreduce(r->comm, in, out, 100, SYMWIN_U32, SYMWIN_SUM, s);
    return symwin_broadcast_with(r->comm, in, out,
                                 is == COUNT   ? 99
                                 : is == LARGE ? 4000
                                               : 100,
                                 is == TYPE ? SYMWIN_F32 : SYMWIN_U32, is == ROOT ? 0 : 2,
                                 is == ALGO ? &put : &oneshot, s);
}

/* A later call may already know of the failure. */
static void may_fail(const struct row *row, symwin_status status, const char *what)
{
    if (row->oddity == ODDITIES || status != texts[row->oddity].status)
        host_must(status, what);
}

static void make_calls(const struct rank *r, const struct row *row, int odd)
{
    const int n = odd && row->oddity == FEWER ? row->place : CALLS;
    const int grouped = !odd || row->oddity != ALONE;
    int k;

    if (grouped)
        host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < n; k++)
        may_fail(row, make_call(r, row, k, odd), "a call");
    if (grouped)
        may_fail(row, symwin_group_end(), "symwin_group_end");
    if (odd && row->oddity == FEWER)
        may_fail(row, symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
}

/* The text that is wanted, with numbers for its signs. */
static void expected(const struct row *row, char *to, size_t room)
{
    const char *from = texts[row->oddity].words;
    size_t at = 0;

    for (; *from != '\0' && at + 8 < room; from++)
        if (*from == '#')
            at += (size_t)snprintf(to + at, room - at, "%d", row->place + 1);
        else if (strncmp(from, "rank 1 ", 7) == 0 || strncmp(from, "rank 1;", 7) == 0 ||
                 strcmp(from, "rank 1") == 0 || strncmp(from, "rank 2 ", 7) == 0) {
            at += (size_t)snprintf(to + at, room - at, "rank %d",
                                   from[5] == '1'  ? row->odd
                                   : row->odd == 0 ? 1
                                                   : 0);
            from += 5;
        } else
            to[at++] = *from;
    to[at] = '\0';
}

static void body(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    const struct oddity_text *is = &texts[row->oddity];
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const int odd = rank == row->odd, waits = row->oddity == LATE;
    symwin_window *window = NULL;
    symwin_status status;
    char words[512];

    open_rank(p, &r, waits ? 100 : WAIT_MS);
    expected(row, words, sizeof words);
    if (row->oddity == ALGO)
        host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &window), "register");
    processes_barrier(p);
    if (odd && row->oddity == LEAVES) {
        symwin_comm_destroy(r.comm);
        r.comm = NULL;
    }
    if (odd && row->oddity == ABORTS) {
        host_pause_ms(20); /* the others are in the call by then, or come to it later */
        host_must(symwin_comm_abort(r.comm), "symwin_comm_abort");
    } else if (row->oddity == ABORTS) { /* it may have been aborted before */
        (void)symwin_group_begin();
        (void)make_call(&r, row, 0, 0);
        (void)make_call(&r, row, 1, 0);
        (void)symwin_group_end();
    } else if (r.comm != NULL && !(odd && waits)) {
        make_calls(&r, row, odd);
    }
    if (waits && !odd)
        job_wait(&r, 0);
    processes_barrier(p);
    if (odd && waits)
        make_calls(&r, row, 0);
    processes_barrier(p);
    job_wait(&r, 0);
    if (r.comm != NULL) {
        status = processes_note(p, r.rank, symwin_comm_check(r.comm));
#if defined(__SANITIZE_THREAD__)
        /* On a busy machine ranks may take longer than a judge waits for their arguments. */
        if (host_error_has("the arguments differ"))
            words[0] = '\0';
#endif
        if (status != is->status || !host_error_has(words))
            fprintf(stderr, "%s \"%s\", not \"%s\"\n", symwin_status_name(status),
                    symwin_last_error(), words);
        must_be(status == is->status && host_error_has(words), is->name, r.rank);
    }
    close_rank(p, &r);
}

/* What a thread alone can see: nothing of the group is launched. */
static void refused(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const symwin_collective_options copies = {.size = sizeof copies, .algo = SYMWIN_ALGO_COPIES};
    const struct row none = {.oddity = ODDITIES};
    int turn;

    open_rank(p, &r, WAIT_MS);
    for (turn = 0; turn < 3; turn++) {
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(make_call(&r, &none, 0, 0), "a call");
        must_be(symwin_broadcast(r.comm, r.in, r.out, 4, SYMWIN_U32, 9, r.streams[0]) ==
                    SYMWIN_INVALID,
                "a root that is no rank", rank);
        must_be(symwin_barrier_with(r.comm, &copies, r.streams[0]) == SYMWIN_UNSUPPORTED,
                "then an algorithm that there is not", rank);
        host_must(make_call(&r, &none, 1, 0), "a call");
        must_be(symwin_group_end() == SYMWIN_INVALID && host_error_has("root is 9"), "its group",
                rank);
    }
    make_calls(&r, &none, 0); /* the communicator still works */
    job_wait(&r, 0);
    host_must(symwin_comm_check(r.comm), "symwin_comm_check");
    close_rank(p, &r);
}

/* The rows whose ranks are threads, or all others. */
static void rows(int threads)
{
    static const int places[] = {0, 1, 7, 15, 16, 19};
    struct row row = {.oddity = COLLECTIVE};
    struct processes *p;
    size_t i;
    int r, right;

    for (row.oddity = COLLECTIVE; row.oddity < ODDITIES; row.oddity++)
        for (i = 0; i < (row.oddity < ALONE ? sizeof places / sizeof places[0] : 1); i++) {
            if (places_one(&places_all[i % places_count()]) != threads)
                continue;
            row.place = places[i];
            row.odd = ((int)row.oddity + (int)i) % 3;
            if (row.oddity == FEWER && row.place % 16 == 0)
                continue; /* its launches are alike, and another call follows */
            right = places_run(&places_all[i % places_count()], 3, body, &row, &p);
            for (r = 1; r < 3 && row.oddity < LEAVES; r++)
                right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
            tap_ok(right, "%s at %d: %s", texts[row.oddity].name, row.place, p->rank[0].text);
            processes_free(p);
        }
}

int main(void)
{
    struct processes *p;

    rows(0);
    places_stay();
    tap_ok(places_run(&places_all[0], 3, refused, NULL, &p), "a call that fails alone");
    processes_free(p);
    rows(1);
    return tap_done();
}
