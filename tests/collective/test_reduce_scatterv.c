/* Reduce-scatter of unequal parts against a plain reference: all types and operations, random
 * counts, gaps, alignments and grids, with arrays on the host and in device memory; in place; among
 * other collectives; in graphs whose counts and scalars change. Then what fails. Also runs on GPUs
 * (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 1024 /* a round has two entries for each thread of a warp */
#include "parts.h"

#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 30, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5, MANY = 2 };
static const int many_ranks[] = {16, 17};
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 72, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 5, MANY = 2 };
static const int many_ranks[] = {16, 17, 40};
#else
enum { SWEEP = 144, FLIGHTS = 5, REPLAYS = 6, MOST_RANKS = 8, MANY = 6 };
static const int many_ranks[] = {16, 17, 40, 72};
#endif
enum { IN_FLIGHT = 8, REDUCE_SCATTER = 5 /* of the shapes */ };

/* One call, as this rank makes it. */
struct call {
    struct job job;    /* type, operation, options, seed and scalars */
    size_t base, room; /* what it has of both buffers, in bytes */
    int on_device, packed, in_place;
    unsigned words; /* parts are whole words of one round, of so many elements each, for one warp;
                       0: neither */
};

static struct call call_of(const struct rank *r, unsigned number, size_t base, size_t room)
{
    const uint32_t all = mix(number * 2654435761u + 5), own = mix(all + (uint32_t)r->rank * 31u);
    struct call c = {
        .job = {.is = &shapes[REDUCE_SCATTER],
                .options = {.size = sizeof(symwin_collective_options),
                            .blocks = own % 3 == 0 ? 1 + (int)(own / 3 % 3) : 0,
                            .threads = own / 16 % 3 == 0 ? 1 + (int)(own / 64 % 40) : 0},
                .type = (symwin_type)(number % 12),
                .op = (symwin_op)(number / 12 % 6),
                .seed = number,
                .scalars = number},
        .base = base,
        .room = room,
        .on_device = (int)(own / 1024 % 2),
        .packed = (int)(own / 4096 % 2),
        .in_place = (int)(own / 8192 % 3) == 0};

    if (all / 64 % 4 == 0) {
        c.words = 8 / (unsigned)symwin_type_bytes(c.job.type);
        c.job.options.blocks = 1;
        c.job.options.threads = 32;
    }
    return c;
}

/* Elements of rank p's part: none, a few, about a round, or many rounds. */
static uint64_t count_of(const struct rank *r, const struct call *c, int p)
{
    static const uint64_t counts[] = {0, 1, 2, 7, 8, 31, 32, 33, 64, 65, 96, 97};
    const uint32_t random = mix(c->job.seed * 977u + (uint32_t)p * 131u);
    const uint64_t most = (c->room - 2 * GUARD) / (uint64_t)r->nranks /
                              symwin_type_bytes(c->job.type) -
                          4;
    const uint64_t count = c->words != 0     ? random / 8 % (SLOT / 16 + 1) * c->words
                           : random % 5 == 0 ? mix(random) % 1500
                                             : counts[random / 8 % 12];

    return count < most ? count : most;
}

/* Where rank p's part begins in this rank's input, in elements. */
static uint64_t place_of(const struct rank *r, const struct call *c, int p)
{
    uint64_t place = 0;
    int q;

    for (q = 0; q < p; q++)
        place += count_of(r, c, q) +
                 (c->packed && !c->on_device ? 0 : (c->job.seed + (unsigned)(q + r->rank)) % 4) *
                     (c->words != 0 ? c->words : 1);
    return place;
}

static unsigned char *in_of(const struct rank *r, const struct call *c)
{
    return r->in + c->base + GUARD;
}

static unsigned char *out_of(const struct rank *r, const struct call *c)
{
    return c->in_place ? in_of(r, c) + place_of(r, c, r->rank) * symwin_type_bytes(c->job.type)
                       : r->out + c->base + GUARD;
}

/* Part `p` of the input of rank `of`. */
static void fill_part(const struct rank *r, const struct call *c, int of, int p, void *to)
{
    reference_fill(c->job.type, c->job.op, c->job.seed * 131u + (unsigned)p, of, 0,
                   (size_t)count_of(r, c, p), to);
}

/* The input's room, with its guards. */
static void fill_input(const struct rank *r, const struct call *c, unsigned char *to)
{
    int p;

    memset(to, FILLED, c->room);
    for (p = 0; p < r->nranks; p++)
        fill_part(r, c, r->rank, p,
                  to + GUARD + place_of(r, c, p) * symwin_type_bytes(c->job.type));
}

/* Fills the buffers, the arrays in device memory, and the scalar. */
static void prepare(const struct rank *r, const struct call *c, struct arrays *a)
{
    const uint64_t scalar = job_scalar(&c->job, r->rank);
    int p;

    for (p = 0; p < r->nranks; p++) {
        a->host[0][p] = count_of(r, c, p);
        a->host[1][p] = place_of(r, c, p);
    }
    host_must(host_copy(r->device, a->device, a->host, ARRAYS_BYTES), "fill");
    if (job_multiplies(&c->job) && job_scalar_on_device(&c->job, r->rank))
        host_must(host_copy(r->device, job_scalar_place(r, &c->job), &scalar, 8), "scalar");
    memset(r->host, FILLED, c->room);
    host_must(host_copy(r->device, r->out + c->base, r->host, c->room), "fill");
    fill_input(r, c, r->host);
    host_must(host_copy(r->device, r->in + c->base, r->host, c->room), "fill");
}

static symwin_status launch(const struct rank *r, const struct call *c, const struct arrays *a,
                            int stream)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const uint64_t room = (c->room - 2 * GUARD) / symwin_type_bytes(c->job.type);
    const symwin_parts parts = {c->on_device ? device : a->host[0],
                                c->on_device ? device + PARTS_RANKS
                                : c->packed  ? NULL
                                             : a->host[1],
                                room, c->on_device};
    uint64_t scalar;
    const symwin_collective_options options = job_options(r, &c->job, &scalar);

    return symwin_reduce_scatterv_with(r->comm, in_of(r, c), &parts, out_of(r, c), c->job.type,
                                       c->job.op, &options, r->streams[stream]);
}

/* The output, and what is around it, and the input. */
static int is_right(const struct rank *r, const struct call *c)
{
    const size_t bytes = (size_t)count_of(r, c, r->rank) * symwin_type_bytes(c->job.type);
    const size_t at = (size_t)(out_of(r, c) - (c->in_place ? r->in : r->out)) - c->base;
    unsigned char *inputs[PROCESSES_MOST], *const result = malloc(bytes + 1);
    size_t i, wrong = 0;
    int p;

    for (p = 0; p < r->nranks; p++) {
        inputs[p] = malloc(bytes + 1);
        fill_part(r, c, p, r->rank, inputs[p]);
        if (job_multiplies(&c->job))
            reference_premultiply(c->job.type, job_scalar(&c->job, p), inputs[p],
                                  (size_t)count_of(r, c, r->rank));
    }
    reference_allreduce(c->job.type, c->job.op, r->nranks, (const void *const *)inputs, result,
                        (size_t)count_of(r, c, r->rank));
    host_must(host_copy(r->device, r->host, (c->in_place ? r->in : r->out) + c->base, c->room),
              "read");
    wrong += reference_compare(c->job.type, r->host + at, result,
                               (size_t)count_of(r, c, r->rank)) >= 0;
    if (c->in_place)
        fill_input(r, c, r->want);
    else
        memset(r->want, FILLED, c->room);
    for (i = 0; i < c->room; i++)
        wrong += (i < at || i >= at + bytes) && r->host[i] != r->want[i];
    if (!c->in_place) {
        fill_input(r, c, r->want);
        host_must(host_copy(r->device, r->host, r->in + c->base, c->room), "read");
        wrong += memcmp(r->host, r->want, c->room) != 0;
    }
    for (p = 0; p < r->nranks; p++)
        free(inputs[p]);
    free(result);
    if (wrong > 0)
        fprintf(stderr, "rank %d of %d, seed %u, %s %s, %s place: wrong\n", r->rank, r->nranks,
                c->job.seed, symwin_type_name(c->job.type), symwin_op_name(c->job.op),
                c->in_place ? "in" : "out of");
    return wrong == 0;
}

/* Also when no rank has elements. */
static void asks(const struct rank *r, const struct call *c)
{
    static const uint64_t none[PARTS_RANKS] = {0};
    const symwin_parts parts = {none, NULL, 0, 0};
    uint64_t scalar;
    const symwin_collective_options options = job_options(r, &c->job, &scalar);
    symwin_collective_info info = {0};

    host_must(symwin_reduce_scatterv_query(r->comm, in_of(r, c), &parts, out_of(r, c), c->job.type,
                                           c->job.op, &options, &info),
              "symwin_reduce_scatterv_query");
    must_be(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks == 1 && info.threads > 0, "a query",
            r->rank);
}

static void run(const struct rank *r, const struct call *c, struct arrays *a)
{
    prepare(r, c, a);
    asks(r, c);
    host_must(launch(r, c, a, 0), "symwin_reduce_scatterv_with");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(is_right(r, c), "a call", r->rank);
}

/* Several calls under way in two streams, with other collectives between them, which use the same
 * slots. */
static void in_flight(const struct rank *r, struct arrays *a)
{
    const size_t pitch = ROOM / IN_FLIGHT / 64 * 64;
    struct call calls[IN_FLIGHT];
    int turn, i;

    for (turn = 0; turn < FLIGHTS; turn++) {
        for (i = 0; i < IN_FLIGHT; i++) {
            calls[i] = call_of(r, 5000u + (unsigned)(turn * IN_FLIGHT + i) * 5, (size_t)i * pitch,
                               pitch);
            prepare(r, &calls[i], &a[i]);
        }
        for (i = 0; i < IN_FLIGHT; i++) {
            const int stream = (int)(mix((unsigned)(turn * 100 + i)) % 2);

            host_must(launch(r, &calls[i], &a[i], stream), "symwin_reduce_scatterv_with");
            if (i % 3 == 0)
                host_must(symwin_barrier(r->comm, r->streams[!stream]), "symwin_barrier");
        }
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (i = 0; i < IN_FLIGHT; i++)
            must_be(is_right(r, &calls[i]), "a call among others", r->rank);
    }
}

/* Each replay has other counts, and other scalars where these are in device memory; with arrays on
 * the host, the counts of the capture. */
static void graphs(const struct rank *r, struct arrays *a, int on_device)
{
    struct call c = call_of(r, 1, 0, ROOM / 2), other = call_of(r, 2, ROOM / 2, ROOM / 2);
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;

    c.job.op = SYMWIN_PREMUL_SUM;
    c.on_device = on_device;
    c.in_place = 0;
    prepare(r, &c, a);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(launch(r, &c, a, 0), "a captured call");
    exec = host_end_capture(r->streams[0], NULL);
    for (k = 0; k < REPLAYS; k++) {
        c.job.seed = on_device ? 7000u + k : c.job.seed;
        if (!on_device)
            run(r, &other, a);
        prepare(r, &c, a);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(is_right(r, &c), "a replay", r->rank);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* ---- what fails ---- */

static void refused(const struct rank *r, symwin_status status, symwin_status want,
                    const char *words)
{
    if (status != want || !host_error_has(words))
        fprintf(stderr, "%s \"%s\", not %s \"%s\"\n", symwin_status_name(status),
                symwin_last_error(), symwin_status_name(want), words);
    must_be(status == want && host_error_has(words), words, r->rank);
}

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

enum oddity { SAME, MORE, MUCH, PAST_IN, NULL_OUT, OPERATION, LATE };

struct row {
    enum oddity oddity;
    int on_device, odd;
};

/* What all three ranks, or the two that differ, say: of the odd rank, then of the other. */
static const struct oddity_text {
    const char *name, *words;
    symwin_status status;
    int on_device; /* the host would refuse it */
} texts[] = {
    [MORE] = {"a rank with another count",
              "a count differs: rank %d sends 101 elements to rank %d, which receives 100 from it",
              SYMWIN_MISMATCH, 0},
    [MUCH] = {"a rank with many rounds",
              "a count differs: rank %d sends 900 elements to rank %d, which receives 100 from it",
              SYMWIN_MISMATCH, 0},
    [PAST_IN] = {"a part past the end of in",
                 "in in of rank %d ends at element 1125, and the buffer has room for 1024|"
                 "the part for rank %d in in of",
                 SYMWIN_MISMATCH, 1},
    [NULL_OUT] = {"elements for an out that is NULL",
                  "out of rank %d is NULL, and its part for rank ", SYMWIN_MISMATCH, 1},
    [OPERATION] = {"another operation", "operation differs: rank %d passed max, rank %d passed sum",
                   SYMWIN_MISMATCH, 0},
    [LATE] = {"a late rank", "waited 100 ms for rank %d", SYMWIN_TIMEOUT, 0},
};

/* 100 elements for each rank, but for what is odd in what the odd rank has for `other`. */
static symwin_status odd_call(const struct rank *r, const struct row *row, struct arrays *a,
                              int odd, int other)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    symwin_parts parts = {a->host[0], a->host[1], 1024, 0};
    int p;

    for (p = 0; p < r->nranks; p++) {
        a->host[0][p] = 100;
        a->host[1][p] = (uint64_t)p * 100;
    }
    if (odd && row->oddity == MORE)
        a->host[0][other] = 101;
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
    const int odd = r->rank == row->odd, other = row->odd == 0 ? 1 : 0;
    symwin_status status;
    size_t i, wrong = 0;
    char words[200];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(words, sizeof words, is->words, row->odd, other);
#pragma GCC diagnostic pop
    memset(r->host, FILLED, ROOM);
    host_must(host_copy(r->device, r->out, r->host, ROOM), "fill");
    processes_barrier(p);
    if (row->oddity == LATE && !odd) {
        host_must(odd_call(r, row, a, 0, other), "a call");
        job_wait(r, 0);
    }
    if (row->oddity == LATE)
        processes_barrier(p);
    if (odd || row->oddity != LATE)
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
    for (i = 0; i < ROOM; i++)
        if (i < GUARD || i >= GUARD + 400)
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

/* As many ranks as a kernel's arguments have room for, and more. */
static void many(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct call c;
    struct arrays a;
    unsigned i;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    for (i = 0; i < MANY; i++) {
        c = call_of(&r, 72 * 3 + 5 * i, 0, ROOM / 2);
        c.on_device = i % 2 == 1 && rank % 2;
        run(&r, &c, &a);
    }
    graphs(&r, &a, 0);
    arrays_close(&a);
    close_rank(p, &r);
}

/* One rank's own part passes the room of `in`, whose table it has: nothing is reduced. */
static void passes_room(struct processes *p, int rank)
{
    const uint64_t *part = places_arg(p); /* its count and its place */
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
    host_must(plain(&r, r.in, &parts, r.out), "symwin_reduce_scatterv");
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

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct arrays arrays[IN_FLIGHT];
    int i;

    open_rank(p, &r, WAIT_MS);
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_open(&r, &arrays[i]);
    for (i = 0; i < SWEEP; i++) {
        const struct call c = call_of(&r, (unsigned)i, 0, ROOM / 2);

        run(&r, &c, &arrays[0]);
    }
    in_flight(&r, arrays);
    graphs(&r, arrays, 1);
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_close(&arrays[i]);
    close_rank(p, &r);
}

int main(void)
{
    /* More than the buffer has; and by its place only, so that the result has room in `out`. */
    uint64_t past[2][2] = {{2000, 0}, {100, 1000}};
    struct row row = {.oddity = SAME};
    struct processes *p;
    int r, right, number = 0;

    everywhere(body, MOST_RANKS);
    places_stay();
    tap_ok(places_run(&places_all[0], 3, fails, &row, &p), "arguments that are wrong");
    processes_free(p);
    with_many_ranks(many_ranks, sizeof many_ranks / sizeof many_ranks[0], many);
    for (r = 0; r < 2; r++) {
        tap_ok(places_run(&places_all[0], 1, passes_room, past[r], &p),
               "a part of %d elements from element %d on", (int)past[r][0], (int)past[r][1]);
        processes_free(p);
    }
    for (row.on_device = 0; row.on_device < 2; row.on_device++)
        for (row.oddity = MORE; row.oddity <= LATE; row.oddity++) {
            if (!row.on_device && texts[row.oddity].on_device)
                continue;
            row.odd = number++ % 3;
            right = places_run(&places_all[0], 3, fails, &row, &p);
            for (r = 1; r < 3 && row.oddity > NULL_OUT; r++)
                right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
            tap_ok(right, "%s, arrays on the %s: %s", texts[row.oddity].name,
                   row.on_device ? "device" : "host", p->rank[0].text);
            processes_free(p);
        }
    return tap_done();
}
