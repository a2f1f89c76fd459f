/* Reduce-scatter of unequal parts against a plain reference: all types and operations, random
 * counts, gaps, alignments and grids, with arrays on the host and in device memory; in place; among
 * other collectives; in graphs whose counts and scalars change. Large parts, with the inputs of all
 * ranks, of some and of none in windows. Then what fails. Also runs on GPUs (tests/gpu/both.txt).
 */
#define TEST_SLOT_BYTES 1024 /* a round has two entries for each thread of a warp */
#include "parts.h"

#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 30, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5, MANY = 2 };
static const int many_ranks[] = {16, 17};
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 36, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 5, MANY = 2 };
static const int many_ranks[] = {16, 17, 40};
#else
enum {
    SWEEP = 72 /* each type and operation */,
    FLIGHTS = 5,
    REPLAYS = 6,
    MOST_RANKS = 8,
    MANY = 6
};
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
    int large;      /* most parts are; the input is in a window if `base` is 0 */
    int alike;      /* the parts for a rank begin at the same place of all inputs */
    unsigned shift[2]; /* elements before the input, and before the output */
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

/* The same with large parts. Of four calls, the inputs are in windows on all ranks in two, of which
 * one has parts that are congruent; on some ranks in the third, and on none in the last. */
static struct call large_call_of(const struct rank *r, unsigned number, size_t room)
{
    const uint32_t all = mix(number * 31u + 7), own = mix(all + (uint32_t)r->rank * 101u);
    const int inside = all / 64 % 4 < 2 || (all / 64 % 4 == 2 && own % 2 == 0);
    struct call c = call_of(r, number, inside ? 0 : ROOM / 2, room);

    c.large = 1;
    c.words = 0;
    c.alike = all / 64 % 4 == 0;
    c.packed = c.packed && !c.alike;
    c.shift[0] = (c.alike ? all : own) / 1024 % 4;
    c.shift[1] = own / 4096 % 4;
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
    const uint64_t count = c->large && random % 4 != 0
                               ? 1 + (512 + mix(random) % 3000) / symwin_type_bytes(c->job.type)
                           : c->words != 0   ? random / 8 % (SLOT / 16 + 1) * c->words
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
                 (c->packed && !c->on_device
                      ? 0
                      : (c->job.seed + (unsigned)(q + (c->alike ? 0 : r->rank))) % 4) *
                     (c->words != 0 ? c->words : 1);
    return place;
}

static unsigned char *in_of(const struct rank *r, const struct call *c)
{
    return r->in + c->base + GUARD + c->shift[0] * symwin_type_bytes(c->job.type);
}

static unsigned char *out_of(const struct rank *r, const struct call *c)
{
    return c->in_place ? in_of(r, c) + place_of(r, c, r->rank) * symwin_type_bytes(c->job.type)
                       : r->out + c->base + GUARD + c->shift[1] * symwin_type_bytes(c->job.type);
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
                  to + GUARD + (c->shift[0] + place_of(r, c, p)) * symwin_type_bytes(c->job.type));
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

/* Also calls of which some ranks' kernels have no large part. */
static void large_sweep(const struct rank *r, struct arrays *a, unsigned calls)
{
    unsigned i;

    for (i = 0; i < calls; i++) {
        struct call c = large_call_of(r, 20000 + i, ROOM / 2);

        c.large = i % 8 != 0;
        run(r, &c, a);
    }
}

/* ---- what is loaded from windows ---- */

/* As many elements for rank 0 from each rank, and for rank 1 as well with `two`; its part begins
 * `apart` elements behind. Of u8, whose maximum is that of equal bytes. */
static void to_first(const struct rank *r, unsigned char *in, uint64_t count, int two,
                     uint64_t apart, unsigned char *out, struct arrays *a)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const symwin_parts parts = {device, device + PARTS_RANKS, ROOM / 2 - 2 * GUARD, 1};
    const symwin_collective_options one = {.size = sizeof one, .blocks = 1, .threads = 1};
    size_t i, wrong = 0;

    memset(a->host, 0, sizeof a->host);
    a->host[0][0] = count;
    a->host[0][1] = two ? count : 0;
    a->host[1][1] = apart;
    memset(r->host, FILLED, ROOM / 2);
    host_must(host_copy(r->device, in, r->host, 2 * count), "fill");
    host_must(host_copy(r->device, a->device, a->host, ARRAYS_BYTES), "arrays");
    host_must(symwin_reduce_scatterv_with(r->comm, in, &parts, out, SYMWIN_U8, SYMWIN_MAX, &one,
                                          r->streams[0]),
              "symwin_reduce_scatterv_with");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    host_must(host_copy(r->device, r->host, out, count), "read");
    for (i = 0; i < count && r->rank <= two; i++)
        wrong += r->host[i] != FILLED;
    must_be(wrong == 0, "a maximum", r->rank);
}

/* How many parts rank 0 has loaded from this rank. */
static void straight(const struct rank *r, struct arrays *a)
{
    unsigned char *const in = r->in + GUARD, *const out = r->out + GUARD;
    const int sends = r->rank != 0;
    unsigned now = parts_landed(r, 0);

    if (!sw_driver_is_emulated()) /* where parts are large from 513 bytes on */
        return;
    to_first(r, in, 512, 0, 0, out, a);
    must_equal(parts_landed(r, 0), now, "a small part is not loaded", r->rank);
    to_first(r, in, 513, 0, 0, out, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "a large one is", r->rank);
    to_first(r, in + (r->rank + 1) * 3, 5001, 0, 0, out + 1, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "of any alignment", r->rank);
    to_first(r, in, 5001, 0, 0, r->rank == 0 ? in : out, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "with the result in place", r->rank);
    to_first(r, in + (r->rank == 1 ? ROOM / 2 : 0), 5001, 0, 0, out, a);
    must_equal(parts_landed(r, 0), now += r->rank > 1, "not from no window", r->rank);
    to_first(r, in, 3001, 1, 1000, out, a);
    must_equal(parts_landed(r, 0), now += (unsigned)sends, "parts that are read overlap", r->rank);
#if !defined(__SANITIZE_THREAD__) /* the bytes are sent while as many equal ones are stored */
    to_first(r, in, 3001, 1, 1000, r->rank == 1 ? in + 1000 : out, a);
    must_equal(parts_landed(r, 0), now += r->rank > 1, "not where it is to be overwritten",
               r->rank);
#endif
    to_first(r, in, 3001, 1, 3001, r->rank == 1 ? in + 3001 : out, a);
    must_equal(parts_landed(r, 0), now + (unsigned)sends, "parts that touch do not overlap",
               r->rank);
}

/* A call has ended when its input may be overwritten: rank 0 adds by one thread, byte by byte. */
static void overwritten(const struct rank *r, struct arrays *a)
{
    enum { COUNT = 20000, TURNS = 4 };
    const symwin_collective_options one = {
        .size = sizeof one, .blocks = r->rank == 0, .threads = r->rank == 0};
    const symwin_parts parts = {a->host[0], NULL, 0, 0};
    struct sw_scope scope;
    size_t i, turn, wrong = 0;

    memset(a->host, 0, sizeof a->host);
    a->host[0][0] = COUNT;
    host_must(sw_scope_enter(r->device, &scope), "scope");
    for (turn = 0; turn < TURNS; turn++) {
        const CUdeviceptr in = (CUdeviceptr)(uintptr_t)(r->in + r->rank % 3);

        host_must_cuda(sw_drv.cuMemsetD8Async(in, (unsigned char)(1 + turn), COUNT, r->streams[0]),
                       "cuMemsetD8Async");
        host_must(symwin_reduce_scatterv_with(r->comm, r->in + r->rank % 3, &parts, r->out,
                                              SYMWIN_U8, SYMWIN_SUM, &one, r->streams[0]),
                  "symwin_reduce_scatterv_with");
        host_must_cuda(sw_drv.cuMemsetD8Async(in, 99, COUNT, r->streams[0]), "cuMemsetD8Async");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        host_must(host_copy(r->device, r->host, r->out, COUNT), "read");
        for (i = 0; i < COUNT && r->rank == 0; i++)
            wrong += r->host[i] != (unsigned char)((1 + turn) * (unsigned)r->nranks);
    }
    sw_scope_leave(&scope);
    must_be(wrong == 0, "inputs that are overwritten after the call", r->rank);
}

/* ---- among others, and in graphs ---- */

/* Several calls under way in two streams, with other collectives between them, which use the same
 * slots. */
static void in_flight(const struct rank *r, struct arrays *a, int large)
{
    const size_t pitch = ROOM / IN_FLIGHT / 64 * 64;
    struct call calls[IN_FLIGHT];
    int turn, i;

    for (turn = 0; turn < FLIGHTS; turn++) {
        for (i = 0; i < IN_FLIGHT; i++) {
            calls[i] = call_of(r, 5000u + (unsigned)(turn * IN_FLIGHT + i) * 5, (size_t)i * pitch,
                               pitch);
            if (large && i % 3 != 2) {
                calls[i].large = 1;
                calls[i].words = 0;
            }
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

/* Each replay has other counts, other places of parts, and other scalars where these are in device
 * memory; with arrays on the host, the counts of the capture. */
static void graphs(const struct rank *r, struct arrays *a, int on_device, int large)
{
    struct call c = call_of(r, 1, 0, ROOM / 2), other = call_of(r, 2, ROOM / 2, ROOM / 2);
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;

    c.job.op = SYMWIN_PREMUL_SUM;
    c.large = large;
    c.words = large ? 0 : c.words;
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

/* As many ranks as a kernel's arguments have room for, and more. */
static void many(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *window;
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
    host_must(symwin_window_register(r.comm, r.in, ROOM / 2, 0, &window), "symwin_window_register");
    for (i = 0; i < MANY; i++) {
        c = large_call_of(&r, 72 * 4 + 5 * i, ROOM / 2);
        c.on_device = i % 2 == 1 && rank % 2;
        run(&r, &c, &a);
    }
    graphs(&r, &a, 0, 0);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
    arrays_close(&a);
    close_rank(p, &r);
}

/* Of 3 ranks parts of more than 64 bytes are loaded, on GPUs too, of 2 none. */
static void write_rows(const char *name)
{
    static const char *const ends[] = {"3,1,integer,1,64,oneshot", "3,1,integer,1,4096,put",
                                       "3,4,float,1,64,oneshot", "3,4,float,1,4096,put",
                                       "2,1,integer,1,4096,oneshot"};
    FILE *const to = fopen(name, "w");
    char gpu[128] = "";
    size_t i;

    host_must(sw_driver_load(), "sw_driver_load");
    host_must_cuda(sw_drv.cuDeviceGetName(gpu, (int)sizeof gpu, 0), "cuDeviceGetName");
    if (to == NULL)
        abort();
    fprintf(to, "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n");
    for (i = 0; i < sizeof ends / sizeof ends[0]; i++)
        fprintf(to, "reduce_scatterv,%s,%s,0,0\n", gpu, ends[i]);
    if (fclose(to) != 0)
        abort();
}

static void by_table(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const unsigned sends = rank != 0 && p->count == 3;
    symwin_window *window;
    struct arrays a;

    if (rank == 0)
        write_rows(getenv("SYMWIN_TUNING"));
    processes_barrier(p);
    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    host_must(symwin_window_register(r.comm, r.in, ROOM / 2, 0, &window), "symwin_window_register");
    to_first(&r, r.in, 64, 0, 0, r.out, &a);
    must_equal(parts_landed(&r, 0), 0, "a part of a row that is no put", rank);
    to_first(&r, r.in, 65, 0, 0, r.out, &a);
    to_first(&r, r.in, 5000, 0, 0, r.out, &a);
    must_equal(parts_landed(&r, 0), 2 * sends, "parts of a put", rank);
    large_sweep(&r, &a, SWEEP);
    overwritten(&r, &a);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
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
    symwin_window *window;
    int i;

    open_rank(p, &r, WAIT_MS);
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_open(&r, &arrays[i]);
    for (i = 0; i < SWEEP; i++) {
        const struct call c = call_of(&r, (unsigned)i, 0, ROOM / 2);

        run(&r, &c, &arrays[0]);
    }
    in_flight(&r, arrays, 0);
    graphs(&r, arrays, 1, 0);
    host_must(symwin_window_register(r.comm, r.in, ROOM / 2, 0, &window), "symwin_window_register");
    large_sweep(&r, arrays, SWEEP);
    if (r.nranks > 1) {
        straight(&r, arrays);
        overwritten(&r, arrays);
    }
    in_flight(&r, arrays, 1);
    graphs(&r, arrays, 1, 1);
    graphs(&r, arrays, 0, 1);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
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
    int r, right, kind, ranks, number = 0;

    everywhere(body, MOST_RANKS);
    places_stay();
    tap_ok(places_run(&places_all[0], 3, fails, &row, &p), "arguments that are wrong");
    processes_free(p);
    with_many_ranks(many_ranks, sizeof many_ranks / sizeof many_ranks[0], many);
    parts_by_table("", 3, by_table);
    for (r = 0; r < 2; r++) {
        tap_ok(places_run(&places_all[0], 1, passes_room, past[r], &p),
               "a part of %d elements from element %d on", (int)past[r][0], (int)past[r][1]);
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
