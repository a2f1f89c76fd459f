/* Reduce-scatter of unequal parts that fails: wrong arguments are refused; counts that differ,
 * parts past a buffer, other calls, and ranks that do not come are named, and nothing is written
 * past what is received. Also runs on GPUs (tests/gpu/both.txt). */
#include "scattered.h"

static symwin_status plain(const struct rank *r, const void *in, const symwin_parts *parts,
                           void *out)
{
    return symwin_reduce_scatterv(r->comm, in, parts, out, SYMWIN_U32, SYMWIN_SUM, r->streams[0]);
}

static void arguments(const struct rank *r, const struct arrays *a)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const float half = 0.5f;
    const symwin_collective_options put = {.size = sizeof put, .algo = SYMWIN_ALGO_PUT},
                                    scalar = {.size = sizeof scalar,
                                              .scalar = &half,
                                              .scalar_on_device = 1};
    uint64_t counts[PARTS_RANKS], same[PARTS_RANKS] = {0};
    symwin_parts good = {counts, NULL, 0, 0}, bad = good;
    symwin_collective_info info;
    int p;

    for (p = 0; p < PARTS_RANKS; p++)
        counts[p] = 4;
    refused(r,
            symwin_reduce_scatterv_query(r->comm, r->in, &good, r->out, SYMWIN_F32,
                                         SYMWIN_PREMUL_SUM, NULL, &info),
            SYMWIN_INVALID, "symwin_reduce_scatterv_query: SYMWIN_PREMUL_SUM multiplies");
    refused(r, plain(r, r->in, NULL, r->out), SYMWIN_INVALID,
            "symwin_reduce_scatterv: parts is NULL");
    bad.counts = NULL;
    refused(r, plain(r, r->in, &bad, r->out), SYMWIN_INVALID, "parts->counts is NULL");
    refused(r, plain(r, NULL, &good, r->out), SYMWIN_INVALID, "in is NULL");
    refused(r, plain(r, r->in, &good, NULL), SYMWIN_INVALID, "out is NULL");
    refused(r, plain(r, r->in, &good, r->out + 1), SYMWIN_INVALID, "not aligned to u32");
    refused(r, plain(r, r->in, &good, r->in + r->rank * 16 + 4), SYMWIN_INVALID,
            "overlap in part; in place, out is this rank's part of in");
    bad = (symwin_parts){counts, NULL, 4 * (uint64_t)r->nranks - 1, 0};
    refused(r, plain(r, r->in, &bad, r->out), SYMWIN_INVALID,
            "in parts has 4 elements from element |and the buffer has room for ");
    bad = (symwin_parts){counts, same, 0, 0};
    host_must(symwin_reduce_scatterv_query(r->comm, r->in, &bad, r->out, SYMWIN_U32, SYMWIN_SUM,
                                           NULL, &info),
              "one part for all ranks");
    if (r->nranks > 1)
        refused(r, plain(r, r->in, &bad, r->in), SYMWIN_INVALID,
                "in parts, 4 elements from element 0 on for rank 1 overlap 4 from element 0 on for "
                "rank 0; pass parts that do not");
    bad = (symwin_parts){device, NULL, 100, 1};
    refused(r, plain(r, r->in, &bad, r->out), SYMWIN_INVALID,
            "parts->displacements is NULL, and must be an array in device memory");
    refused(r,
            symwin_reduce_scatterv_with(r->comm, r->in, &good, r->out, SYMWIN_U32, SYMWIN_SUM, &put,
                                        r->streams[0]),
            SYMWIN_UNSUPPORTED, "there is no algorithm put for it; pass auto");
    refused(r,
            symwin_reduce_scatterv(r->comm, r->in, &good, r->out, SYMWIN_F32, SYMWIN_PREMUL_SUM,
                                   r->streams[0]),
            SYMWIN_INVALID, "options->scalar of symwin_reduce_scatterv_with");
    refused(r,
            symwin_reduce_scatterv_with(r->comm, r->in, &good, r->out, SYMWIN_F32,
                                        SYMWIN_PREMUL_SUM, &scalar, r->streams[0]),
            SYMWIN_INVALID, "options->scalar (0x|is not device memory");
    refused(r,
            symwin_reduce_scatterv(r->comm, r->in, &good, r->out, SYMWIN_U32, (symwin_op)6,
                                   r->streams[0]),
            SYMWIN_INVALID, "there is no operation 6");
}

enum oddity { SAME, MORE, MUCH, PAST_IN, NULL_OUT, OPERATION, LATE, ABORTS };

struct row {
    enum oddity oddity;
    int on_device, odd;
    int windows; /* the inputs are in some */
};

/* Elements that each rank has for each; with windows, parts of as many are loaded from them. */
static int each_of(const struct row *row)
{
    return row->windows ? 200 : 100;
}

/* What all three ranks, or the two that differ, say: of the odd rank, then of the other. */
static const struct oddity_text {
    const char *name, *words;
    symwin_status status;
    int on_device; /* the host would refuse it */
} texts[] = {
    [MORE] = {"a rank with another count",
              "a count differs: rank %d sends %d elements to rank %d, which receives %d from it",
              SYMWIN_MISMATCH, 0},
    [MUCH] = {"a rank with many rounds",
              "a count differs: rank %d sends %d elements to rank %d, which receives %d from it",
              SYMWIN_MISMATCH, 0},
    [PAST_IN] = {"a part past the end of in",
                 "in in of rank %d ends at element %d, and the buffer has room for 1024|"
                 "the part for rank %d in in of",
                 SYMWIN_MISMATCH, 1},
    [NULL_OUT] = {"elements for an out that is NULL",
                  "out of rank %d is NULL, and its part for rank ", SYMWIN_MISMATCH, 1},
    [OPERATION] = {"another operation", "operation differs: rank %d passed max, rank %d passed sum",
                   SYMWIN_MISMATCH, 0},
    [LATE] = {"a late rank", "waited 100 ms for rank %d", SYMWIN_TIMEOUT, 0},
    [ABORTS] = {"a rank that aborts", "aborted", SYMWIN_ABORTED, 0},
};

/* As many elements for each rank, but for what is odd in what the odd rank has for `other`. */
static symwin_status odd_call(const struct rank *r, const struct row *row, struct arrays *a,
                              int odd, int other)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const uint64_t each = (uint64_t)each_of(row);
    symwin_parts parts = {a->host[0], a->host[1], 1024, 0};
    int p;

    for (p = 0; p < r->nranks; p++) {
        a->host[0][p] = each;
        a->host[1][p] = (uint64_t)p * each;
    }
    if (odd && row->oddity == MORE)
        a->host[0][other] = each + 1;
    if (odd && row->oddity == MUCH) {
        a->host[0][other] = 900;
        a->host[1][other] = 0;
    }
    if (odd && row->oddity == PAST_IN)
        a->host[1][other] = 1025;
    if (row->on_device) {
        host_must(host_copy(r->device, a->device, a->host, ARRAYS_BYTES), "arrays");
        parts = (symwin_parts){device, device + PARTS_RANKS, 1024, 1};
    }
    return symwin_reduce_scatterv(
        r->comm, r->in, &parts, odd && row->oddity == NULL_OUT ? NULL : r->out + GUARD, SYMWIN_U32,
        odd && row->oddity == OPERATION ? SYMWIN_MAX : SYMWIN_SUM, r->streams[0]);
}

static void differs(struct processes *p, struct rank *r, const struct row *row, struct arrays *a)
{
    const struct oddity_text *is = &texts[row->oddity];
    const int odd = r->rank == row->odd, other = row->odd == 0 ? 1 : 0, each = each_of(row);
    const int sent = row->oddity == MORE ? each + 1 : 900;
    const int loads = row->windows && sw_driver_is_emulated(); /* on GPUs longer ones */
    const int comes = row->oddity < LATE &&
                      !(loads &&
                        (row->oddity == OPERATION || (row->oddity <= PAST_IN && r->rank == other)));
    symwin_window *window;
    symwin_status status;
    size_t i, wrong = 0;
    char words[200];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (row->oddity <= MUCH)
        snprintf(words, sizeof words, is->words, row->odd, sent, other, each);
    else if (row->oddity == PAST_IN)
        snprintf(words, sizeof words, is->words, row->odd, 1025 + each, other);
    else
        snprintf(words, sizeof words, is->words, row->odd, other);
#pragma GCC diagnostic pop
    if (row->windows)
        host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &window),
                  "symwin_window_register");
    memset(r->host, FILLED, ROOM);
    host_must(host_copy(r->device, r->out, r->host, ROOM), "fill");
    processes_barrier(p);
    if (row->oddity >= LATE && !odd)
        host_must(odd_call(r, row, a, 0, other), "a call");
    if (row->oddity == ABORTS)
        processes_barrier(p);
    if (row->oddity == ABORTS && odd)
        host_must(symwin_comm_abort(r->comm), "symwin_comm_abort");
    job_wait(r, 0);
    if (row->oddity == LATE)
        processes_barrier(p);
    if (odd ? row->oddity != ABORTS : row->oddity < LATE)
        host_must(odd_call(r, row, a, odd, other), "a call");
    processes_barrier(p);
    job_wait(r, 0);
    (void)symwin_comm_check(r->comm);
    processes_barrier(p);
    status = processes_note(p, r->rank, symwin_comm_check(r->comm));
    /* A rank that needs nothing of the two may have succeeded: the others tell it. */
    if (row->oddity <= NULL_OUT && !odd)
        words[0] = '\0';
#if defined(__SANITIZE_THREAD__)
    if (host_error_has("the arguments differ"))
        words[0] = '\0';
#endif
    refused(r, status, is->status, words);
    host_must(host_copy(r->device, r->host, r->out, ROOM), "read");
    /* A part in a window is not loaded if its bytes are others, or the call is. */
    for (i = 0; i < ROOM; i++)
        if (!comes || i < GUARD || i >= GUARD + (size_t)each * 4)
            wrong += r->host[i] != FILLED;
    must_be(wrong == 0, "nothing is written past what is received", r->rank);
    processes_barrier(p);
}

static void fails(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct arrays a;

    open_rank(p, &r, row->oddity == LATE ? 100 : WAIT_MS);
    arrays_open(&r, &a);
    if (row->oddity != SAME) {
        differs(p, &r, row, &a);
    } else {
        const struct call c = call_of(&r, 3, 0, ROOM / 2);

        arguments(&r, &a);
        processes_barrier(p);
        run(&r, &c, &a); /* the communicator still works */
    }
    arrays_close(&a);
    close_rank(p, &r);
}

/* One rank's own part passes the room of `in`, whose table it has: nothing is reduced. */
static void passes_room(struct processes *p, int rank)
{
    const uint64_t *part = places_arg(p); /* its count, its place, and the type */
    struct rank r = {.nranks = p->count, .rank = rank, .device = 0};
    symwin_parts parts = {.room = 1024, .on_device = 1};
    struct arrays a;
    size_t i, wrong = 0;
    char words[128];

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    a.host[0][0] = part[0];
    a.host[1][0] = part[1];
    host_must(host_copy(r.device, a.device, a.host, ARRAYS_BYTES), "arrays");
    parts.counts = (const uint64_t *)(const void *)a.device;
    parts.displacements = parts.counts + PARTS_RANKS;
    memset(r.host, FILLED, ROOM);
    host_must(host_copy(r.device, r.out, r.host, ROOM), "fill");
    host_must(symwin_reduce_scatterv(r.comm, r.in, &parts, r.out, (symwin_type)part[2], SYMWIN_SUM,
                                     r.streams[0]),
              "symwin_reduce_scatterv");
    job_wait(&r, 0);
    host_must(host_copy(r.device, r.host, r.out, ROOM), "read");
    for (i = 0; i < ROOM; i++)
        wrong += r.host[i] != FILLED;
    must_be(wrong == 0, "nothing is written for a part that is not there", rank);
    snprintf(words, sizeof words,
             "the part for rank 0 in in of rank 0 ends at element %d, and the buffer has room for "
             "1024",
             (int)(part[0] + part[1]));
    refused(&r, symwin_comm_check(r.comm), SYMWIN_MISMATCH, words);
    arrays_close(&a);
    close_rank(p, &r);
}

/* Its part of the result is longer than what is left of `out`: nothing is written. */
static void passes_output(struct processes *p, int rank)
{
    const uint64_t *part = places_arg(p); /* its count, and the type */
    struct rank r = {.nranks = p->count, .rank = rank, .device = 0};
    symwin_parts parts = {.room = 1024, .on_device = 1};
    unsigned char now[1024];
    struct arrays a;
    size_t i, wrong = 0;
    void *small;
    char words[128];
    const size_t left = 4 * symwin_type_bytes((symwin_type)part[1]);

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    host_must(symwin_mem_alloc(r.device, sizeof now, 0, &small), "symwin_mem_alloc");
    memset(now, FILLED, sizeof now);
    host_must(host_copy(r.device, small, now, sizeof now), "fill");
    a.host[0][0] = part[0];
    a.host[1][0] = 0;
    host_must(host_copy(r.device, a.device, a.host, ARRAYS_BYTES), "arrays");
    parts.counts = (const uint64_t *)(const void *)a.device;
    parts.displacements = parts.counts + PARTS_RANKS;
    host_must(symwin_reduce_scatterv(r.comm, r.in, &parts, (char *)small + sizeof now - left,
                                     (symwin_type)part[1], SYMWIN_SUM, r.streams[0]),
              "symwin_reduce_scatterv");
    job_wait(&r, 0);
    host_must(host_copy(r.device, now, small, sizeof now), "read");
    for (i = 0; i < sizeof now; i++)
        wrong += now[i] != FILLED;
    must_be(wrong == 0, "nothing is written for a part that is too long", rank);
    snprintf(words, sizeof words,
             "the part from rank 0 in out of rank 0 ends at element %d, and the buffer has room "
             "for 4;",
             (int)part[0]);
    refused(&r, symwin_comm_check(r.comm), SYMWIN_MISMATCH, words);
    arrays_close(&a);
    close_rank(p, &r);
    host_must(symwin_mem_free(small), "symwin_mem_free");
}

int main(void)
{
    /* More than the buffer has; by its place only, so that the result has room in `out`; and no
     * whole words, which go by another kernel. */
    uint64_t past[][3] = {{2000, 0, SYMWIN_U32}, {100, 1000, SYMWIN_U32}, {99, 1001, SYMWIN_U8}};
    uint64_t longer[][2] = {{5, SYMWIN_U32}, {1000, SYMWIN_U64}, {7, SYMWIN_U8}};
    struct row row = {.oddity = SAME};
    struct processes *p;
    int r, right, kind, ranks, number = 0;

    places_stay();
    tap_ok(places_run(&places_all[0], 3, fails, &row, &p), "arguments that are wrong");
    processes_free(p);
    for (r = 0; r < 3; r++) {
        tap_ok(places_run(&places_all[0], 1, passes_room, past[r], &p),
               "a part of %d %ss from element %d on", (int)past[r][0],
               symwin_type_name((symwin_type)past[r][2]), (int)past[r][1]);
        processes_free(p);
    }
    for (r = 0; r < 3; r++) {
        tap_ok(places_run(&places_all[0], 1, passes_output, longer[r], &p),
               "a part of %d %ss of an output of 4", (int)longer[r][0],
               symwin_type_name((symwin_type)longer[r][1]));
        processes_free(p);
    }
    for (kind = 0; kind < 4; kind++)
        for (row.oddity = MORE; row.oddity <= ABORTS; row.oddity++) {
            row.on_device = kind % 2;
            row.windows = kind / 2;
            if (!row.on_device && texts[row.oddity].on_device)
                continue;
            row.odd = number++ % 3;
            ranks = row.on_device ? 4 : 3; /* with kernels that read arrays, and with others */
            right = places_run(&places_all[0], ranks, fails, &row, &p);
            for (r = 1; r < ranks && row.oddity > NULL_OUT && row.oddity < ABORTS; r++)
                right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
            tap_ok(right, "%s, arrays on the %s%s: %s", texts[row.oddity].name,
                   row.on_device ? "device" : "host", row.windows ? ", inputs in windows" : "",
                   p->rank[0].text);
            processes_free(p);
        }
    return tap_done();
}
