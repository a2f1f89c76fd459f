/* All-gathers that fail: errors in the arguments of a call are reported, and so are calls that
 * differ and ranks that do not come. Also runs on GPUs (tests/gpu/both.txt). */
#include "gather.h"

static void refused(const struct rank *r, symwin_status status, symwin_status want,
                    const char *words)
{
    must_be(status == want && host_error_has(words), words, r->rank);
}

/* ---- arguments ---- */

/* Where a refused call's buffer is. */
enum at { NOWHERE, IN, OUT, PLACE /* of an `in` of 16 f32 in place */, HOST };

/* Nothing is launched, so no other rank has to call. */
static const struct refusal {
    enum at in, out;
    size_t in_offset, out_offset;
    uint64_t count;
    symwin_type type;
    symwin_collective_options options; /* size: less than the right one */
    symwin_status status;
    const char *words;
} refusals[] = {
    {NOWHERE, OUT, 0, 0, 8, SYMWIN_F32, {0}, SYMWIN_INVALID, "symwin_allgather: in is NULL"},
    {IN, NOWHERE, 0, 0, 8, SYMWIN_F32, {0}, SYMWIN_INVALID, "symwin_allgather: out is NULL"},
    {NOWHERE, NOWHERE, 0, 0, 8, SYMWIN_F32, {0}, SYMWIN_INVALID, "symwin_allgather: in is NULL"},
    {IN, OUT, 0, 0, 8, (symwin_type)12, {0}, SYMWIN_INVALID, "there is no type 12"},
    {IN,
     OUT,
     2,
     0,
     8,
     SYMWIN_F32,
     {0},
     SYMWIN_INVALID,
     "symwin_allgather: in is 0x|not aligned to f32's 4 bytes"},
    {IN,
     OUT,
     0,
     1,
     8,
     SYMWIN_F16,
     {0},
     SYMWIN_INVALID,
     "symwin_allgather: out is 0x|not aligned to f16's 2 bytes"},
    {HOST, OUT, 0, 0, 1, SYMWIN_U8, {0}, SYMWIN_INVALID, "symwin_allgather: in"},
    {IN,
     OUT,
     0,
     0,
     UINT64_MAX / 2,
     SYMWIN_F32,
     {0},
     SYMWIN_INVALID,
     "symwin_allgather: count is 9223372036854775807"},
    {IN,
     OUT,
     0,
     0,
     UINT64_MAX / 16 + 1,
     SYMWIN_F64,
     {0},
     SYMWIN_INVALID,
     "symwin_allgather: count is 1152921504606846976"},
    {PLACE,
     OUT,
     4,
     0,
     16,
     SYMWIN_F32,
     {0},
     SYMWIN_INVALID,
     "overlap in part; in place, in is out + rank * count elements (0x"},
    {IN,
     OUT,
     0,
     0,
     8,
     SYMWIN_F32,
     {.algo = SYMWIN_ALGO_TWOSHOT},
     SYMWIN_UNSUPPORTED,
     "symwin_allgather: there is no algorithm twoshot for it; pass auto"},
    {IN,
     OUT,
     0,
     0,
     8,
     SYMWIN_F32,
     {.size = 1},
     SYMWIN_INVALID,
     "symwin_allgather: options->size is |symwin_collective_options"},
};

static void refuse(const struct rank *r, const struct refusal *c)
{
    static unsigned char here[8];
    unsigned char *const at[] = {NULL, r->in + GUARD, r->out + GUARD,
                                 r->out + GUARD + (size_t)r->rank * 64, here};
    symwin_collective_options options = c->options;

    options.size = sizeof options - c->options.size;
    refused(r,
            symwin_allgather_with(r->comm, c->in == NOWHERE ? NULL : at[c->in] + c->in_offset,
                                  c->out == NOWHERE ? NULL : at[c->out] + c->out_offset, c->count,
                                  c->type, &options, r->streams[0]),
            c->status, c->words);
}

static void arguments(const struct rank *r)
{
    symwin_collective_options options = {.size = sizeof options, .blocks = 1, .threads = 32};
    symwin_collective_info info = {.blocks = -1};
    unsigned char *const in = r->in + GUARD, *const out = r->out + GUARD;
    size_t i;

    for (i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        refuse(r, &refusals[i]);
    if (r->nranks > 1)
        refused(r, symwin_allgather(r->comm, in, out, UINT64_MAX / 16, SYMWIN_F64, r->streams[0]),
                SYMWIN_INVALID, "symwin_allgather: count is 1152921504606846975");
    if (r->rank > 0) /* of rank 0 it is the place */
        refused(r, symwin_allgather(r->comm, out, out, 16, SYMWIN_F32, r->streams[0]),
                SYMWIN_INVALID, "overlap in part; in place, in is out + rank * count elements (0x");
    refused(r, symwin_allgather_query(r->comm, in, out, 0, SYMWIN_F32, NULL, &info), SYMWIN_INVALID,
            "symwin_allgather_query: count is 0");
    refused(r, symwin_allgather_query(r->comm, in, out, 8, SYMWIN_F32, NULL, NULL), SYMWIN_INVALID,
            "symwin_allgather_query: info is NULL");
    must_be(info.blocks == -1, "nothing is written", r->rank);
    host_must(symwin_allgather_query(r->comm, in, out, 1000, SYMWIN_F32, &options, &info), "query");
    must_be(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks == 1 && info.threads > 0 &&
                info.threads <= 32 && !info.measured,
            "what would be launched", r->rank);
}

/* The output has to fit with all ranks' parts. Nothing is launched. */
static void past_a_window(const struct rank *r)
{
    const uint64_t count = 4096 / (uint64_t)r->nranks;
    symwin_window *window;
    char words[160];

    host_must(symwin_window_register(r->comm, r->out, 4096, 0, &window), "register");
    snprintf(words, sizeof words,
             "symwin_allgather: %llu elements (%llu bytes) at out pass the end of its window, "
             "which has 4096",
             (unsigned long long)(count + 1) * (unsigned long long)r->nranks,
             (unsigned long long)(count + 1) * (unsigned long long)r->nranks);
    refused(r, symwin_allgather(r->comm, r->in, r->out, count + 1, SYMWIN_U8, r->streams[0]),
            SYMWIN_INVALID, words);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
}

/* ---- calls that differ, and ranks that are late ---------------------------------------------- */

enum oddity { SAME, COLLECTIVE, COUNT, TYPE, LATE, LEAVES, ABORTS };

static const struct row {
    const char *name;
    int nranks;
    int odd;
    enum oddity oddity;
    symwin_status status;
    const char *words;
} rows[] = {
    {"a rank that calls all-reduce", 3, 2, COLLECTIVE, SYMWIN_MISMATCH,
     "the call differs: rank 2 called symwin_allreduce(), rank 0 called symwin_allgather()|rank 2 "
     "differs from ranks 0 and 1|call the same on every rank"},
    {"a rank 0 that calls all-reduce", 4, 0, COLLECTIVE, SYMWIN_MISMATCH,
     "the call differs: rank 0 called symwin_allreduce(), rank 1 called symwin_allgather()"},
    {"another count", 3, 1, COUNT, SYMWIN_MISMATCH,
     "count differs: rank 1 passed 99, rank 0 passed 100|pass the same on every rank"},
    {"another type of that size", 3, 1, TYPE, SYMWIN_MISMATCH,
     "type differs: rank 1 passed f32, rank 0 passed u32"},
    {"a late rank", 3, 1, LATE, SYMWIN_TIMEOUT, "waited 100 ms for rank 1"},
    {"a rank that leaves", 3, 2, LEAVES, SYMWIN_PEER_LOST,
     "rank 2 has destroyed its communicator|waited for it in collective 1"},
    {"a rank that aborts", 3, 1, ABORTS, SYMWIN_ABORTED, "rank 1"},
};

static symwin_status odd_call(const struct rank *r, enum oddity oddity)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_ONESHOT};

    if (oddity == COLLECTIVE)
        return symwin_allreduce_with(r->comm, r->in, r->out, 100, SYMWIN_U32, SYMWIN_SUM, &options,
                                     r->streams[0]);
    return symwin_allgather(r->comm, r->in, r->out, oddity == COUNT ? 99 : 100,
                            oddity == TYPE ? SYMWIN_F32 : SYMWIN_U32, r->streams[0]);
}

static void differs(struct processes *p, struct rank *r, const struct row *row)
{
    const int odd = r->rank == row->odd;
    symwin_status status;

    processes_barrier(p);
    if (odd && row->oddity == LEAVES) {
        symwin_comm_destroy(r->comm);
        r->comm = NULL;
        processes_barrier(p);
        processes_barrier(p);
        return;
    }
    if (odd && row->oddity == LATE)
        host_pause_ms(300);
    if (odd && row->oddity == ABORTS) {
        host_pause_ms(50); /* the others are in the call by then, or come to it later */
        host_must(symwin_comm_abort(r->comm), "symwin_comm_abort");
    } else if (row->oddity == ABORTS) {
        (void)odd_call(r, SAME);
    } else {
        host_must(odd_call(r, odd ? row->oddity : SAME), "a call");
    }
    processes_barrier(p);
    wait_for(r, 0);
    status = processes_note(p, r->rank, symwin_comm_check(r->comm));
    must_be(status == row->status && host_error_has(row->words), symwin_status_name(status),
            r->rank);
    processes_barrier(p);
}

static void body(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    const struct gather g = {SYMWIN_U8, 1000, GUARD, GUARD, 0, 1};
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, row->oddity == LATE ? 100 : WAIT_MS);
    if (row->oddity != SAME) {
        differs(p, &r, row);
    } else {
        arguments(&r);
        past_a_window(&r);
        gather(&r, &g, p); /* the communicator still works */
    }
    close_rank(p, &r);
}

int main(void)
{
    struct row same = {.nranks = 3, .oddity = SAME};
    struct processes *p;
    size_t place, i;
    int r, right;

    for (place = 0; place < places_count(); place++) {
        right = places_run(&places_all[place], 3, body, &same, &p);
        tap_ok(right, "arguments that are wrong, %s", places_all[place].name);
        processes_free(p);
    }
    tap_ok(places_run(&places_all[0], 1, body, &same, &p), "and on one rank alone");
    processes_free(p);
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct row row = rows[i];

        right = places_run(&places_all[0], row.nranks, body, &row, &p);
        for (r = 1; r < row.nranks && row.oddity < LEAVES; r++)
            right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
        tap_ok(right, "%s: %s", row.name, p->rank[0].text);
        processes_free(p);
    }
    return tap_done();
}
