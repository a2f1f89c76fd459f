/* All-to-all and all-gather of unequal parts against a plain reference: random counts, gaps,
 * types, alignments and grids, with arrays on the host and in device memory; outputs of all, of
 * some and of no rank in windows; among other collectives; in graphs whose counts change; in place;
 * by a table that says which parts go straight into windows; of more ranks than the arguments of a
 * kernel have room for.
 * test_alltoallv_refused.c tests what fails. Also runs on GPUs (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 1024 /* a round has two entries for each thread of a warp */
#include "parts.h"

/* ONE_BLOCK: bytes for which one block has enough threads, and not for eight times as many. */
#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 14, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5, ONE_BLOCK = 64, MANY = 2 };
static const int many_ranks[] = {17};
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 10, FLIGHTS = 1, REPLAYS = 3, MOST_RANKS = 5, ONE_BLOCK = 1024, MANY = 2 };
static const int many_ranks[] = {17, 40};
#else
enum { SWEEP = 60, FLIGHTS = 4, REPLAYS = 6, MOST_RANKS = 8, ONE_BLOCK = 1024, MANY = 2 };
static const int many_ranks[] = {17, 40, 72};
#endif
enum { IN_FLIGHT = 8 };

/* `windows`: the first half of the outputs is in one, which each rank uses or not. */
static void sweep(const struct rank *r, const struct arrays *a, int windows, unsigned calls)
{
    unsigned i;

    for (i = 0; i < calls; i++) {
        const unsigned own = windows ? mix(i * 31u + (unsigned)r->rank) % 3 / 2 : 0;
        const struct parts_job j = parts_job_of(r, windows ? i + 20000u : i, own * (ROOM / 2),
                                                ROOM / 2);

        parts_prepare(r, &j, a);
        host_must(parts_call(r, &j, a, 0), "symwin_alltoallv");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(parts_right(r, &j), "a call", r->rank);
    }
}

/* Several calls under way in two streams, with an all-to-all, an all-reduce and a broadcast between
 * them, which use the same slots. */
static void in_flight(const struct rank *r, const struct arrays *a, int turns)
{
    const size_t pitch = ROOM / IN_FLIGHT / 64 * 64;
    struct parts_job jobs[IN_FLIGHT];
    struct job others[IN_FLIGHT];
    int turn, i;

    for (turn = 0; turn < turns; turn++) {
        for (i = 0; i < IN_FLIGHT; i++) {
            const unsigned number = 5000u + (unsigned)(turn * IN_FLIGHT + i);

            if (i % 2 == 0) {
                jobs[i] = parts_job_of(r, number, (size_t)i * pitch, pitch);
                parts_prepare(r, &jobs[i], &a[i]);
                continue;
            }
            others[i] = (struct job){.is = &shapes[number / 2 % 3],
                                     .options = {.size = sizeof others[i].options},
                                     .type = SYMWIN_U8,
                                     .count = mix(number) % (pitch / 2 / (unsigned)r->nranks),
                                     .root = (int)(mix(number + 1) % (unsigned)r->nranks),
                                     .in = (size_t)i * pitch + GUARD,
                                     .out = (size_t)i * pitch + GUARD,
                                     .seed = number};
            job_prepare(r, &others[i]);
        }
        for (i = 0; i < IN_FLIGHT; i++) {
            const int stream = (int)(mix((unsigned)(turn * 100 + i)) % 2);

            if (i % 2 == 0)
                host_must(parts_call(r, &jobs[i], &a[i], stream), "symwin_alltoallv");
            else
                host_must(job_call(r, &others[i], stream), others[i].is->name);
        }
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (i = 0; i < IN_FLIGHT; i++)
            must_be(i % 2 == 0 ? parts_right(r, &jobs[i]) : job_is_right(r, &others[i]),
                    "a call among others", r->rank);
    }
}

/* A graph that copies counts to where the call reads them: each replay has other counts, and the
 * host knows none of them. */
static void graphs(const struct rank *r, struct arrays *a)
{
    struct parts_job j = parts_job_of(r, 1, 0, ROOM / 2);
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;

    j.type = SYMWIN_U8;
    j.gathers = r->nranks % 2;
    j.on_device[0] = j.on_device[1] = 1;
    parts_prepare(r, &j, a);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_memcpy(r->device, a->device, a->spare, ARRAYS_BYTES, r->streams[0]), "counts");
    host_must(parts_call(r, &j, a, 0), "a captured call");
    exec = host_end_capture(r->streams[0], NULL);
    for (k = 0; k < REPLAYS; k++) {
        j.seed = 7000u + k;
        parts_prepare(r, &j, a);
        host_must(symwin_memcpy(r->device, a->spare, a->device, ARRAYS_BYTES, r->streams[0]),
                  "counts");
        job_wait(r, 0);
        memset(r->host, 0xff, ARRAYS_BYTES);
        host_must(host_copy(r->device, a->device, r->host, ARRAYS_BYTES), "other counts");
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(parts_right(r, &j), "a replay", r->rank);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* `out` is `in`, on all ranks or on some, and each pair swaps what it has. */
static void in_place(const struct rank *r, const struct arrays *a, unsigned calls)
{
    unsigned k;

    for (k = 0; k < calls; k++) {
        struct parts_job j = parts_job_of(r, 900 + k, 0, ROOM / 2);

        j.in_place = 1;
        j.apart = k >= calls / 2 && mix(k * 31u + (unsigned)r->rank) % 2;
        j.gathers = (int)k % 2;
        parts_prepare(r, &j, a);
        host_must(parts_call(r, &j, a, 0), "symwin_alltoallv in place");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(parts_right(r, &j), "a call in place", r->rank);
    }
}

/* An all-gather whose parts of `out` are whole words, and whose `in` begins within one. */
static void within_a_word(const struct rank *r)
{
    enum { BYTES = 16 };
    uint64_t counts[PARTS_RANKS];
    const symwin_parts parts = {counts, NULL, 0, 0};
    const size_t all = (size_t)r->nranks * BYTES;
    size_t i, wrong = 0;

    for (i = 0; i < (size_t)r->nranks; i++)
        counts[i] = BYTES;
    memset(r->host, 1 + r->rank, BYTES);
    host_must(host_copy(r->device, r->in + 1, r->host, BYTES), "fill");
    host_must(symwin_allgatherv(r->comm, r->in + 1, r->out, &parts, SYMWIN_U8, r->streams[0]),
              "symwin_allgatherv");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    host_must(host_copy(r->device, r->host, r->out, all), "read");
    for (i = 0; i < all; i++)
        wrong += r->host[i] != 1 + i / BYTES;
    must_be(wrong == 0, "a part that begins within a word", r->rank);
}

/* ---- what goes straight into windows ---- */

/* A part of `bytes` from each rank to the next one, into an output at `base`. */
static void to_the_next(const struct rank *r, size_t base, uint64_t bytes, int in_place)
{
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    uint64_t sends[PARTS_RANKS] = {0}, receives[PARTS_RANKS] = {0}, places[PARTS_RANKS] = {0};
    const symwin_parts in = {sends, places, 0, 0}, out = {receives, places, 0, 0};

    sends[next] = receives[before] = bytes;
    host_must(symwin_alltoallv(r->comm, in_place ? r->out + base : r->in, &in, r->out + base, &out,
                               SYMWIN_U8, r->streams[0]),
              "symwin_alltoallv");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

static void straight(const struct rank *r)
{
    const int before = (r->rank + r->nranks - 1) % r->nranks;
    const unsigned begun = parts_landed(r, before);

    if (!sw_driver_is_emulated()) /* where parts are large from 513 bytes on */
        return;
    to_the_next(r, 0, 513, 0);
    must_be(parts_landed(r, before) == begun + 1, "a large part goes straight", r->rank);
    to_the_next(r, 3, 5000, 0);
    must_be(parts_landed(r, before) == begun + 2, "and another one", r->rank);
    to_the_next(r, 0, 512, 0);
    must_be(parts_landed(r, before) == begun + 2, "a small one does not", r->rank);
    to_the_next(r, ROOM / 2, 5000, 0);
    must_be(parts_landed(r, before) == begun + 2, "nor one that is received in no window", r->rank);
    if (r->nranks == 2)
        to_the_next(r, 0, 5000, 1);
    must_be(parts_landed(r, before) == begun + 2, "nor one in place", r->rank);
}

/* Rank 0 is in place by two windows on one memory, so it offers nothing. Otherwise rank 1 would
 * store there at once, and rank 0 sends nothing before it knows the place of rank 2, which is late.
 * The others' outputs are in no window, or in one: then rank 0 stores straight from what it is to
 * receive. */
static void in_place_by_two_windows(struct processes *p, const struct rank *r, int others)
{
    enum { BYTES = 3000, OTHER = 1 << 14 };
    const int swaps = r->rank < 2, with = swaps ? 1 - r->rank : 0;
    uint64_t counts[PARTS_RANKS] = {0}, places[PARTS_RANKS] = {0};
    const symwin_parts parts = {counts, places, 0, 0};
    struct host_raw again;
    unsigned char *const other = host_map_again(r->device, r->out, &again);
    unsigned char *const out = r->rank == 0 || others ? r->out : r->out + ROOM / 2;
    symwin_collective_info info;
    symwin_window *window;
    size_t i, wrong = 0;

    host_must(symwin_window_register(r->comm, other, ROOM / 2, 0, &window), "register");
    memset(r->host, 1 + r->rank, ROOM / 2);
    host_must(host_copy(r->device, r->rank == 0 ? r->out : r->in, r->host, ROOM / 2), "fill");
    counts[with] = BYTES;
    if (r->rank == 0)
        counts[2] = BYTES;
    places[2] = OTHER;
    processes_barrier(p);
    if (r->rank == 2)
        host_pause_ms(20);
    host_must(symwin_alltoallv(r->comm, r->rank == 0 ? other : r->in, &parts, out, &parts,
                               SYMWIN_U8, r->streams[0]),
              "symwin_alltoallv");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    host_must(host_copy(r->device, r->host, out, BYTES), "read");
    for (i = 0; i < BYTES; i++)
        wrong += r->host[i] != 1 + with;
    must_be(wrong == 0, "in place by two windows", r->rank);
    must_be(symwin_alltoallv(r->comm, other + 8, &parts, r->out, &parts, SYMWIN_U8,
                             r->streams[0]) == SYMWIN_INVALID &&
                host_error_has("addresses of the same memory in windows at different offsets"),
            "overlap by two windows", r->rank);
    for (i = 0; i < (size_t)r->nranks; i++) {
        counts[i] = 8;
        places[i] = 8 * i;
    }
    host_must(symwin_reduce_scatterv_query(r->comm, other, &parts, r->out + places[r->rank],
                                           SYMWIN_U8, SYMWIN_SUM, NULL, &info),
              "a reduce-scatter in place by two windows");
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
    processes_barrier(p);
    host_raw_free(&again);
}

/* On the emulated driver: with 2 and 3 ranks parts of more than 64 bytes go straight, with 4 ranks
 * none, and all of an all-gather of 3 ranks. */
static const char rows[] = "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"
                           "alltoallv,symwin emulated GPU,2,1,integer,1,64,oneshot,0,0\n"
                           "alltoallv,symwin emulated GPU,2,1,integer,1,4096,put,0,0\n"
                           "alltoallv,symwin emulated GPU,3,1,integer,1,64,oneshot,0,0\n"
                           "alltoallv,symwin emulated GPU,3,1,integer,1,4096,put,0,0\n"
                           "allgatherv,symwin emulated GPU,3,1,integer,1,8,put,0,0\n"
                           "alltoallv,symwin emulated GPU,4,1,integer,1,4096,oneshot,0,0\n";

static void by_table(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const int before = (rank + r.nranks - 1) % r.nranks;
    struct arrays arrays;
    symwin_window *window;
    unsigned begun;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &arrays);
    host_must(symwin_window_register(r.comm, r.out, ROOM / 2, 0, &window),
              "symwin_window_register");
    begun = parts_landed(&r, before);
    to_the_next(&r, 3, 64, 0);
    must_be(!sw_driver_is_emulated() || parts_landed(&r, before) == begun,
            "a part of a row that is no put", rank);
    to_the_next(&r, 3, 65, 0);
    to_the_next(&r, 0, 5000, 0);
    must_be(!sw_driver_is_emulated() ||
                parts_landed(&r, before) == begun + (r.nranks < 4 ? 2u : 0u),
            "parts of a put", rank);
    sweep(&r, &arrays, 1, SWEEP);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "symwin_window_deregister");
    arrays_close(&arrays);
    close_rank(p, &r);
}

/* ---- grids ---- */

static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static unsigned launched; /* threads of the last kernel; of one rank alone */

static CUresult note_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    launched = config->gridDimX * config->blockDimX;
    return plain_launch(config, function, params, extra);
}

static unsigned threads_for(const struct rank *r, const symwin_parts *parts, symwin_type type)
{
    symwin_collective_info gathers = {0}, exchanges = {0};

    host_must(symwin_alltoallv_query(r->comm, r->in, parts, r->out, parts, type, NULL, &exchanges),
              "symwin_alltoallv_query");
    host_must(symwin_allgatherv_query(r->comm, r->in, r->out, parts, type, NULL, &gathers),
              "symwin_allgatherv_query");
    host_must(symwin_alltoallv(r->comm, r->in, parts, r->out, parts, type, r->streams[0]),
              "symwin_alltoallv");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be((unsigned)(exchanges.blocks * exchanges.threads) == launched &&
                (unsigned)(gathers.blocks * gathers.threads) == launched &&
                exchanges.algo == SYMWIN_ALGO_ONESHOT && !exchanges.measured,
            "a query says what is launched", r->rank);
    return launched;
}

/* The longest part's bytes decide the grid; of parts in device memory, what a rank has of the
 * room. */
static void grids(const struct rank *r, struct arrays *a)
{
    static const uint64_t count[] = {ONE_BLOCK}, bytes[] = {8 * ONE_BLOCK}, place[] = {0};
    const symwin_parts elements = {count, place, 0, 0}, alike = {bytes, place, 0, 0};
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    const symwin_parts on_device = {device, device + PARTS_RANKS, count[0], 1};
    unsigned wide, small;

    plain_launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuLaunchKernelEx = note_launch;
    wide = threads_for(r, &elements, SYMWIN_U64);
    small = threads_for(r, &elements, SYMWIN_U8);
    memset(a->host, 0, sizeof a->host);
    a->host[0][0] = count[0];
    host_must(host_copy(r->device, a->device, a->host, ARRAYS_BYTES), "counts");
    must_be(small < wide, "more bytes have more threads", r->rank);
    must_be(threads_for(r, &alike, SYMWIN_U8) == wide, "as many bytes, as many threads", r->rank);
    must_be(threads_for(r, &on_device, SYMWIN_U64) == wide, "as much room, as many threads",
            r->rank);
    must_be(threads_for(r, &on_device, SYMWIN_U8) == small, "and as little", r->rank);
    sw_drv.cuLaunchKernelEx = plain_launch;
}

static unsigned threads_of(const struct rank *r, const symwin_parts *in, const symwin_parts *out)
{
    symwin_collective_info info = {0};

    host_must(symwin_alltoallv_query(r->comm, r->in, in, r->out, out, SYMWIN_U8, NULL, &info),
              "symwin_alltoallv_query");
    return (unsigned)(info.blocks * info.threads);
}

/* The longest part is that of either buffer; of a room in device memory, a rank's share. */
static void grids_of_several(const struct rank *r, struct arrays *a)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;
    uint64_t few[PARTS_RANKS], many[PARTS_RANKS];
    const symwin_parts less = {few, NULL, 0, 0}, more = {many, NULL, 0, 0};
    const symwin_parts room = {device, device, (uint64_t)r->nranks * ONE_BLOCK, 1};
    unsigned wide, small;
    int p;

    for (p = 0; p < r->nranks; p++)
        few[p] = many[p] = ONE_BLOCK;
    many[(r->rank + 1) % r->nranks] = 8 * ONE_BLOCK;
    wide = threads_of(r, &more, &more);
    small = threads_of(r, &less, &less);
    must_be(small < wide && threads_of(r, &less, &more) == wide &&
                threads_of(r, &more, &less) == wide,
            "the longest part's threads", r->rank);
    must_be(threads_of(r, &room, &room) == small, "a share's threads", r->rank);
}

/* ---- what the driver is asked about ---- */

static CUresult (*plain_question)(void *, CUpointer_attribute, CUdeviceptr);
static CUresult (*plain_questions)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
static CUdeviceptr arrays_begin, arrays_end;
static int questions, numbers; /* about these arrays, and for the number of their memory */

static CUresult note_question(void *answer, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    const int is_number = attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID;

    if (ptr >= arrays_begin && ptr < arrays_end) {
        questions += !is_number;
        numbers += is_number;
    }
    return plain_question(answer, attribute, ptr);
}

static CUresult note_questions(unsigned count, CUpointer_attribute *attributes, void **answers,
                               CUdeviceptr ptr)
{
    questions += ptr >= arrays_begin && ptr < arrays_end;
    return plain_questions(count, attributes, answers, ptr);
}

static int questions_of(const struct rank *r, const uint64_t *arrays, int on_device)
{
    const symwin_parts parts = {arrays, arrays + 1, 8, on_device};

    arrays_begin = (CUdeviceptr)(uintptr_t)arrays;
    arrays_end = arrays_begin + 2 * sizeof *arrays;
    questions = numbers = 0;
    host_must(symwin_alltoallv(r->comm, r->in, &parts, r->out, &parts, SYMWIN_U8, r->streams[0]),
              "symwin_alltoallv");
    job_wait(r, 0);
    return questions;
}

/* Answers of the driver take up to 3 us: it is asked about the same arrays once. Which memory is
 * there it tells at once: a call asks that once for all arrays in it. */
static void asks_once(const struct rank *r)
{
    uint64_t *const host = aligned_alloc(4096, 4096); /* nothing else is in its page */
    struct sw_scope scope;
    CUdeviceptr device = 0;

    if (host == NULL)
        abort();
    host[0] = 8;
    host[1] = 0;
    plain_question = sw_drv.cuPointerGetAttribute;
    plain_questions = sw_drv.cuPointerGetAttributes;
    sw_drv.cuPointerGetAttribute = note_question;
    sw_drv.cuPointerGetAttributes = note_questions;
    must_be(questions_of(r, host, 0) > 0, "host memory is asked about", r->rank);
    must_equal(questions_of(r, host, 0), 0, "and not again", r->rank);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuMemAlloc(&device, 2 * sizeof *host), "cuMemAlloc");
    host_must(host_copy(r->device, (void *)(uintptr_t)device, host, 2 * sizeof *host), "counts");
    /* A GPU's driver has a mapping around it. */
    must_equal(questions_of(r, (const uint64_t *)(uintptr_t)device, 1),
               sw_driver_is_emulated() ? 2 : 3, "questions about device memory", r->rank);
    must_equal(numbers, 1, "questions for the number of new memory", r->rank);
    must_equal(questions_of(r, (const uint64_t *)(uintptr_t)device, 1), 0, "and not again",
               r->rank);
    must_equal(numbers, 1, "questions for the memory of four arrays", r->rank);
    host_must_cuda(sw_drv.cuMemFree(device), "cuMemFree");
    sw_scope_leave(&scope);
    sw_drv.cuPointerGetAttribute = plain_question;
    sw_drv.cuPointerGetAttributes = plain_questions;
    free(host);
}

static void open_all(struct processes *p, int rank, struct rank *r, struct arrays *arrays)
{
    int i;

    *r = (struct rank){.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    open_rank(p, r, WAIT_MS);
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_open(r, &arrays[i]);
}

static void close_all(struct processes *p, struct rank *r, struct arrays *arrays,
                      symwin_window *window)
{
    int i;

    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, window), "symwin_window_deregister");
    for (i = 0; i < IN_FLIGHT; i++)
        arrays_close(&arrays[i]);
    close_rank(p, r);
}

static void body(struct processes *p, int rank)
{
    struct arrays arrays[IN_FLIGHT];
    symwin_window *window;
    struct rank r;
    int i;

    open_all(p, rank, &r, arrays);
    sweep(&r, arrays, 0, SWEEP);
    within_a_word(&r);
    in_place(&r, arrays, 24);
    if (r.nranks == 1) {
        grids(&r, arrays);
        asks_once(&r);
    } else {
        grids_of_several(&r, arrays);
    }
    host_must(symwin_window_register(r.comm, r.out, ROOM / 2, 0, &window),
              "symwin_window_register");
    sweep(&r, arrays, 1, SWEEP);
    if (r.nranks > 1)
        straight(&r);
    for (i = 0; i < 2 && r.nranks == 3; i++)
        in_place_by_two_windows(p, &r, i);
    in_flight(&r, arrays, FLIGHTS);
    graphs(&r, arrays);
    in_place(&r, arrays, 24);
    close_all(p, &r, arrays, window);
}

/* ---- many ranks ---- */

/* A graph of calls with arrays on the host, which change as soon as they are made: each replay has
 * the counts that its calls had, also after a call with others. Two are in a group. */
static void kept_in_graph(const struct rank *r, const struct arrays *a)
{
    enum { CALLS = 4 };
    struct parts_job jobs[CALLS + 1];
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned i, k;

    for (i = 0; i <= CALLS; i++) {
        jobs[i] = parts_job_of(r, 300 + i, i * (ROOM / (CALLS + 1) / 64 * 64),
                               ROOM / (CALLS + 1) / 64 * 64);
        jobs[i].gathers = i % 2 == 1;
        jobs[i].on_device[0] = jobs[i].on_device[1] = 0;
    }
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    for (i = 0; i < CALLS; i++) {
        if (i == 1)
            host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(parts_call(r, &jobs[i], a, 0), "a captured call");
        if (i == 2)
            host_must(symwin_group_end(), "symwin_group_end");
    }
    exec = host_end_capture(r->streams[0], NULL);
    for (k = 0; k < 2; k++) {
        for (i = 0; i <= CALLS; i++)
            parts_prepare(r, &jobs[i], a);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        host_must(parts_call(r, &jobs[CALLS], a, 0), "a call behind it");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (i = 0; i <= CALLS; i++)
            must_be(parts_right(r, &jobs[i]), "a replay of calls with arrays on the host", r->rank);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* More ranks than a kernel's arguments have room for. */
static void many(struct processes *p, int rank)
{
    struct arrays arrays[IN_FLIGHT];
    symwin_window *window;
    struct rank r;

    open_all(p, rank, &r, arrays);
    sweep(&r, arrays, 0, MANY);
    to_the_next(&r, 0, 0, 0); /* nothing at all */
    in_place(&r, arrays, 2);
    host_must(symwin_window_register(r.comm, r.out, ROOM / 2, 0, &window),
              "symwin_window_register");
    sweep(&r, arrays, 1, MANY);
    straight(&r);
    in_flight(&r, arrays, 1);
    kept_in_graph(&r, arrays);
    close_all(p, &r, arrays, window);
}

int main(void)
{
    everywhere(body, MOST_RANKS);
    parts_by_table(rows, 4, by_table);
    places_stay();
    with_many_ranks(many_ranks, sizeof many_ranks / sizeof many_ranks[0], many);
    return tap_done();
}
