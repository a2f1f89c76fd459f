/* Groups of collectives against a plain reference: which of them are one launch, calls that use
 * each other's results, random calls on two streams, in graphs, among sends, and of two
 * communicators. test_group_one_thread.c and test_group_some_ranks.c test who makes them,
 * test_group_refused.c what fails. Also runs on GPUs (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 8192
#include "group_jobs.h"

#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 6, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 12, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 8 };
#else
enum { SWEEP = 50, FLIGHTS = 5, REPLAYS = 5, MOST_RANKS = 8 };
#endif
enum { WORDS = 16 };

/* ---- which calls are one launch -------------------------------------------------------------- */

/* Calls, a letter each: of 16 bytes, allGather, allToall (t), Broadcast, gatHer, Scatter, reDuce,
 * reduCe-scatter; capitals are all-reduce (R), the same by an algorithm that shares no launch (T),
 * a barrier (B), a call without elements (Z), and broadcasts of half a slot (H) and of more than a
 * slot (L). A digit is the stream of the calls after it. */
static const struct counted {
    const char *calls;
    uint32_t launches;
} counted[] = {
    {"b", 1},
    {"bbbbbbbb", 1},
    {"tttttttt", 1},
    {"gtbhsgtbhsgtbhsg", 1},  /* 16, the most */
    {"gtbhsgtbhsgtbhsgt", 2}, /* 17 */
    {"bZbZb", 1},
    {"Z", 0},
    {"ZZ", 0},
    {"RRRRRRRR", 1},
    {"dcRdcRdcRdcRdcRd", 1},
    {"dcRdcRdcRdcRdcRdc", 2},
    {"bbRbb", 1},
    {"RZbR", 1},
    {"bbTbb", 3},
    {"bBR", 3},
    {"RT", 2},
    {"0b1b0b1b", 1},
    {"1bb0R1bb", 1},
    {"1bb0T1bb", 3},
    {"Lbb", 2},
    {"bbL", 2},
    {"bLb", 3},
    {"HH", 1},
    {"HHb", 2},
    {"bHH", 2},
};

static void make_counted(const struct rank *r, const struct counted *c)
{
    const symwin_collective_options oneshot = {.size = sizeof oneshot, .algo = SYMWIN_ALGO_ONESHOT};
    const symwin_collective_options twoshot = {.size = sizeof twoshot,
                                               .algo = SYMWIN_ALGO_TWOSHOT_PUSH};
    const int last = r->nranks - 1;
    int stream = 0, k;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; c->calls[k] != '\0'; k++) {
        unsigned char *const in = r->in + k * 2048, *const out = r->out + k * 2048;
        struct CUstream_st *const s = r->streams[stream];
        symwin_status status = SYMWIN_OK;

        switch (c->calls[k]) {
        case 'g':
            status = symwin_allgather_with(r->comm, in, out, 16, SYMWIN_U8, &oneshot, s);
            break;
        case 't':
            status = symwin_alltoall_with(r->comm, in, out, 16, SYMWIN_U8, &oneshot, s);
            break;
        case 'b':
            status = symwin_broadcast_with(r->comm, in, out, 2, SYMWIN_F64, last, &oneshot, s);
            break;
        case 'h':
            status = symwin_gather_with(r->comm, in, out, 16, SYMWIN_U8, 0, &oneshot, s);
            break;
        case 's':
            status = symwin_scatter_with(r->comm, in, out, 16, SYMWIN_U8, last, &oneshot, s);
            break;
        case 'R':
            status = symwin_allreduce(r->comm, in, out, 4, SYMWIN_F32, SYMWIN_SUM, s);
            break;
        case 'T':
            status = symwin_allreduce_with(r->comm, in, out, 4, SYMWIN_F32, SYMWIN_SUM, &twoshot,
                                           s);
            break;
        case 'd':
            status = symwin_reduce(r->comm, in, out, 8, SYMWIN_BF16, SYMWIN_MAX, last, s);
            break;
        case 'c':
            status = symwin_reduce_scatter(r->comm, in, out, 4, SYMWIN_I32, SYMWIN_AVG, s);
            break;
        case 'B':
            status = symwin_barrier(r->comm, s);
            break;
        case 'Z':
            status = symwin_broadcast(r->comm, NULL, NULL, 0, SYMWIN_F64, 0, s);
            break;
        case 'H':
            status = symwin_broadcast_with(r->comm, in, out, SLOT / 2, SYMWIN_U8, 0, &oneshot, s);
            break;
        case 'L':
            status = symwin_broadcast_with(r->comm, in, out, SLOT + 1, SYMWIN_U8, 0, &oneshot, s);
            break;
        default:
            stream = c->calls[k] - '0';
        }
        host_must(status, "a call of a group");
    }
    host_must(symwin_group_end(), "symwin_group_end");
}

static void count(const struct rank *r)
{
    size_t i;

    for (i = 0; i < sizeof counted / sizeof counted[0]; i++) {
        const uint32_t before = job_launches(r);

        make_counted(r, &counted[i]);
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(job_launches(r) - before == counted[i].launches, counted[i].calls, r->rank);
    }
}

/* ---- calls that use each other's results ----------------------------------------------------- */

static uint64_t word_of(const struct rank *r, const uint64_t *from, int i)
{
    uint64_t word = 0;

    host_must(host_copy(r->device, &word, (const void *)&from[i], sizeof word), "read");
    return word;
}

/* Blocks and threads are those of one call alone; what was written before is read, and what was
 * read is written, in the order of the calls. */
static void in_order(const struct rank *r)
{
    uint64_t *const a = (uint64_t *)(void *)r->in, *const b = (uint64_t *)(void *)r->out;
    uint64_t *const c = a + 1024, *const d = b + 1024, *const e = a + 2048;
    const int n = r->nranks, last = n - 1;
    const uint32_t before = job_launches(r);
    uint64_t words[WORDS];
    int i, p;

    for (i = 0; i < WORDS; i++)
        words[i] = (uint64_t)(r->rank * 100 + i);
    host_must(host_copy(r->device, a, words, sizeof words), "fill");
    host_must(symwin_group_begin(), "symwin_group_begin");
    /* b = all ranks' a; c = n times this rank's a; d = n times the last rank's a */
    host_must(symwin_allgather(r->comm, a, b, WORDS, SYMWIN_U64, r->streams[0]), "1");
    host_must(symwin_alltoall(r->comm, b, c, WORDS, SYMWIN_U64, r->streams[1]), "2");
    host_must(symwin_broadcast(r->comm, c, d, WORDS * (uint64_t)n, SYMWIN_U64, last, r->streams[0]),
              "3");
    /* a is written after it was read; then once more */
    host_must(symwin_broadcast(r->comm, d, a, WORDS, SYMWIN_U64, 0, r->streams[0]), "4");
    host_must(symwin_broadcast(r->comm, b, a, WORDS, SYMWIN_U64, last, r->streams[1]), "5");
    /* e = all ranks' a, which is rank 0's first one */
    host_must(symwin_gather(r->comm, a, e, WORDS, SYMWIN_U64, last, r->streams[0]), "6");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(job_launches(r) - before == 1, "one launch", r->rank);
    for (p = 0; p < n; p++)
        for (i = 0; i < WORDS; i++) {
            must_be(word_of(r, b, p * WORDS + i) == (uint64_t)(p * 100 + i), "the first", r->rank);
            must_be(word_of(r, c, p * WORDS + i) == (uint64_t)(r->rank * 100 + i), "the second",
                    r->rank);
            must_be(word_of(r, d, p * WORDS + i) == (uint64_t)(last * 100 + i), "the third",
                    r->rank);
            must_be(word_of(r, a, i) == (uint64_t)i, "the fifth", r->rank);
            must_be(r->rank != last || word_of(r, e, p * WORDS + i) == (uint64_t)i, "the sixth",
                    r->rank);
        }
}

/* A scalar in device memory that a call of the group writes, and that one writes after it was read;
 * and results that later calls reduce. */
static void scalars_in_order(const struct rank *r)
{
    float *const a = (float *)(void *)r->in, *const b = (float *)(void *)r->out;
    float *const scalar = a + 1024, *const later = a + 1088, *const sum = b + 1024;
    const int n = r->nranks, all = n * (n + 1) / 2;
    const symwin_collective_options by_scalar = {
        .size = sizeof by_scalar, .scalar = scalar, .scalar_on_device = 1};
    const uint32_t before = job_launches(r);
    float words[WORDS], found[2][WORDS];
    int i;

    for (i = 0; i < WORDS; i++)
        words[i] = (float)(r->rank + 1);
    host_must(host_copy(r->device, a, words, sizeof words), "fill");
    words[0] = 3;
    host_must(host_copy(r->device, later, words, sizeof words[0]), "fill");
    words[0] = 1000;
    host_must(host_copy(r->device, scalar, words, sizeof words[0]), "fill");
    host_must(symwin_group_begin(), "symwin_group_begin");
    /* the scalar becomes 3, then the sum of all ranks' numbers */
    host_must(symwin_broadcast(r->comm, later, scalar, 1, SYMWIN_F32, 0, r->streams[0]), "1");
    host_must(symwin_allreduce_with(r->comm, a, b, WORDS, SYMWIN_F32, SYMWIN_PREMUL_SUM, &by_scalar,
                                    r->streams[0]),
              "2");
    host_must(symwin_allreduce(r->comm, a, scalar, 1, SYMWIN_F32, SYMWIN_SUM, r->streams[1]), "3");
    host_must(symwin_allreduce_with(r->comm, b, sum, WORDS, SYMWIN_F32, SYMWIN_PREMUL_SUM,
                                    &by_scalar, r->streams[0]),
              "4");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(job_launches(r) - before == 1, "one launch", r->rank);
    host_must(host_copy(r->device, found[0], b, sizeof found[0]), "read");
    host_must(host_copy(r->device, found[1], sum, sizeof found[1]), "read");
    for (i = 0; i < WORDS; i++)
        must_be(found[0][i] == (float)(3 * all) && found[1][i] == (float)(3 * all * all * n),
                "scalars in the order of the calls", r->rank);
}

/* Calls for all of which there are kernels for short calls, some of which reduce. */
static void short_calls(const struct rank *r)
{
    float *const in = (float *)(void *)r->in, *const out = (float *)(void *)r->out;
    const float all = (float)(r->nranks * (r->nranks + 1) / 2);
    float words[4 * PROCESSES_MOST], found[3][4];
    int i;

    for (i = 0; i < 4 * r->nranks; i++)
        words[i] = (float)(r->rank + 1);
    host_must(host_copy(r->device, in, words, 16 * (size_t)r->nranks), "fill");
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allreduce(r->comm, in, out, 4, SYMWIN_F32, SYMWIN_SUM, r->streams[0]), "1");
    host_must(symwin_broadcast(r->comm, in, out + 512, 4, SYMWIN_F32, 0, r->streams[0]), "2");
    host_must(
        symwin_reduce_scatter(r->comm, in, out + 1024, 4, SYMWIN_F32, SYMWIN_SUM, r->streams[0]),
        "3");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    for (i = 0; i < 3; i++)
        host_must(host_copy(r->device, found[i], out + 512 * i, sizeof found[i]), "read");
    for (i = 0; i < 4; i++)
        must_be(found[0][i] == all && found[1][i] == 1 && found[2][i] == all, "short calls",
                r->rank);
}

/* Two all-gathers, each from a place to another, and whether the second one waits for the first. */
enum { PART = 512 }; /* which takes a block on a GPU too */
static const struct pair {
    const char *name;
    int from, to, then_from, then_to, waits;
} pairs[] = {
    {"apart", 0, 8192, 16384, 24576, 0},
    {"both read the same", 0, 8192, 0, 24576, 0},
    {"reads what was written", 0, 8192, 8192, 24576, 1},
    {"reads the last byte that was written", 0, 8192, 8192 - PART + 1, 24576, 1},
    {"reads up to what was written", 0, 8192, 8192 - PART, 24576, 0},
    {"writes what was written", 0, 8192, 16384, 8192, 1},
    {"writes what was read", PART, 8192, 16384, PART, 1},
};

/* Calls of which one waits for another have one block, and others more. */
static void waits(const struct rank *r)
{
    size_t i;

    for (i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const struct pair *p = &pairs[i];
        const uint32_t before = r->comm->done;

        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_allgather(r->comm, r->in + p->from, r->in + p->to, PART, SYMWIN_U8,
                                   r->streams[0]),
                  "the first");
        host_must(symwin_allgather(r->comm, r->in + p->then_from, r->in + p->then_to, PART,
                                   SYMWIN_U8, r->streams[0]),
                  "the second");
        host_must(symwin_group_end(), "symwin_group_end");
        must_be((r->comm->done - before == 1) == p->waits, p->name, r->rank);
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    }
}

/* ---- streams --------------------------------------------------------------------------------- */

/* A launch comes after what is in the streams of all its calls, and before what follows there. */
static void on_two_streams(const struct rank *r)
{
    uint32_t *const gate = (uint32_t *)(void *)r->in, *const from = gate + 64,
                    *const in = gate + 128;
    uint32_t *const out = (uint32_t *)(void *)r->out, *const copy = out + 128;
    const uint32_t before = job_launches(r);
    struct sw_scope scope;
    int p;

    host_put_u32(r->device, (unsigned char *)gate, 0);
    host_put_u32(r->device, (unsigned char *)from, (uint32_t)r->rank + 5);
    host_put_u32(r->device, (unsigned char *)in, 1);
    for (p = 0; p < r->nranks; p++)
        host_put_u32(r->device, (unsigned char *)(copy + p), 2);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamWaitValue32(r->streams[1], (CUdeviceptr)(uintptr_t)gate, 1,
                                              CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
    sw_scope_leave(&scope);
    host_must(symwin_memcpy(r->device, in, from, 4, r->streams[1]), "copy");
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allgather(r->comm, from, out, 1, SYMWIN_U32, r->streams[0]), "stream 0");
    host_must(symwin_allgather(r->comm, in, out + 64, 1, SYMWIN_U32, r->streams[1]), "stream 1");
    host_must(symwin_group_end(), "symwin_group_end");
    host_must(symwin_memcpy(r->device, copy, out + 64, 4 * (size_t)r->nranks, r->streams[1]),
              "copy");
    host_pause_ms(r->rank == 0 ? 40 : 10); /* the last rank alone */
    host_put_u32(r->device, (unsigned char *)gate, 1);
    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(job_launches(r) - before == 1, "one launch", r->rank);
    for (p = 0; p < r->nranks; p++)
        must_be(host_get_u32(r->device, (unsigned char *)(out + p)) == (uint32_t)p + 5 &&
                    host_get_u32(r->device, (unsigned char *)(copy + p)) == (uint32_t)p + 5,
                "calls on two streams", r->rank);
}

/* ---- random calls ---------------------------------------------------------------------------- */

static void add(const struct rank *r, const struct job *jobs, int n, int streams)
{
    int k;

    for (k = 0; k < n; k++)
        host_must(job_call(r, &jobs[k],
                           streams == 1 ? 0 : (int)(mix(jobs[k].seed + (unsigned)r->rank) % 2)),
                  "a call of a group");
}

static void sweep(const struct rank *r, unsigned seed)
{
    struct job jobs[MOST];
    unsigned i;

    for (i = 0; i < SWEEP; i++) {
        const int n = prepare(r, seed + i, 0, jobs);

        host_must(symwin_group_begin(), "symwin_group_begin");
        add(r, jobs, n, 2);
        host_must(symwin_group_end(), "symwin_group_end");
        right(r, jobs, n, "a group");
    }
}

/* Several groups under way, with a message in each. */
static void in_flight(const struct rank *r)
{
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    uint32_t *const words = host_alloc(r->device, 4096);
    struct job jobs[GROUPS][MOST];
    int n[GROUPS], turn, g;

    for (turn = 0; turn < FLIGHTS; turn++) {
        for (g = 0; g < GROUPS; g++)
            n[g] = prepare(r, 1000u + (unsigned)(turn * GROUPS + g), g, jobs[g]);
        host_put_u32(r->device, (unsigned char *)words, (uint32_t)r->rank + 7);
        for (g = 0; g < GROUPS; g++) {
            host_must(symwin_group_begin(), "symwin_group_begin");
            host_must(symwin_send(r->comm, words + g, 1, SYMWIN_U32, next, r->streams[g % 2]),
                      "symwin_send");
            add(r, jobs[g], n[g], 2);
            host_must(symwin_recv(r->comm, words + g + 1, 1, SYMWIN_U32, before, r->streams[g % 2]),
                      "symwin_recv");
            host_must(symwin_group_end(), "symwin_group_end");
        }
        for (g = 0; g < GROUPS; g++)
            right(r, jobs[g], n[g], "groups under way");
        must_be(host_get_u32(r->device, (unsigned char *)(words + GROUPS)) ==
                    (uint32_t)((r->rank + GROUPS * (r->nranks - 1)) % r->nranks + 7),
                "messages of groups", r->rank);
    }
    host_must(symwin_mem_free(words), "symwin_mem_free");
}

static void graphs(const struct rank *r)
{
    struct job jobs[MOST];
    const int n = prepare(r, 2000, 0, jobs);
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned turn;
    int k;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_group_begin(), "symwin_group_begin");
    add(r, jobs, n, 1);
    host_must(symwin_group_end(), "symwin_group_end");
    exec = host_end_capture(r->streams[0], NULL);
    for (turn = 0; turn < REPLAYS; turn++) {
        for (k = 0; k < n; k++) {
            jobs[k].seed = mix(jobs[k].seed) / 2 * 2; /* its parity says what is no buffer */
            job_prepare(r, &jobs[k]);
        }
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        right(r, jobs, n, "a replay");
        sweep(r, 2100 + turn);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* Windows may give calls other algorithms, which are launches of their own. */
static void in_windows(struct processes *p, const struct rank *r)
{
    symwin_window *windows[2];

    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    in_order(r);
    in_flight(r);
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, windows[0]), "deregister");
    host_must(symwin_window_deregister(r->comm, windows[1]), "deregister");
    processes_barrier(p);
}

/* Calls of two communicators in turn, in one group: each has one launch. */
static void two_communicators(struct processes *p, const struct rank *r)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = WAIT_MS, .slot_bytes = SLOT};
    struct rank other = *r;
    struct job jobs[2][MOST];
    uint32_t before[2];
    int k;

    host_must(symwin_comm_split(r->comm, 0, r->rank, &options, &other.comm), "symwin_comm_split");
    before[0] = job_launches(r);
    before[1] = job_launches(&other);
    for (k = 0; k < 6; k++) {
        jobs[0][k] = job_any(r, 3000, k, (size_t)k * PITCH, PITCH);
        jobs[1][k] = job_any(r, 3001, k, (size_t)(MOST + k) * PITCH, PITCH);
        jobs[0][k].is = jobs[1][k].is = &shapes[k % 5];
        jobs[0][k].count = jobs[1][k].count = 5;
        job_prepare(r, &jobs[0][k]);
        job_prepare(r, &jobs[1][k]);
    }
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 6; k++) {
        host_must(job_call(r, &jobs[0][k], 0), "a call of a group");
        host_must(job_call(&other, &jobs[1][k], k % 2), "a call of a group");
    }
    host_must(symwin_group_end(), "symwin_group_end");
    right(r, jobs[0], 6, "the first communicator");
    right(&other, jobs[1], 6, "the second communicator");
    must_be(job_launches(r) - before[0] == 1 && job_launches(&other) - before[1] == 1,
            "a launch each", r->rank);
    processes_barrier(p);
    symwin_comm_destroy(other.comm);
    processes_barrier(p);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, WAIT_MS);
    count(&r);
    in_order(&r);
    scalars_in_order(&r);
    short_calls(&r);
    waits(&r);
    on_two_streams(&r);
    sweep(&r, 0);
    in_flight(&r);
    graphs(&r);
    in_windows(p, &r);
    if (r.nranks == 3)
        two_communicators(p, &r);
    close_rank(p, &r);
}

int main(void)
{
    /* For ranks that share a GPU: the most that CUDA takes. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    everywhere(body, MOST_RANKS);
    return tap_done();
}
