/* Groups of collectives against a plain reference: which of them are one launch, calls that use
 * each other's results, random calls on two streams, in graphs, among sends, of two communicators,
 * and by one thread for all ranks. test_group_refused.c tests what fails. Also runs on GPUs
 * (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 8192
#include "collectives.h"
#include <signal.h>

#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 6, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 12, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 8 };
#else
enum { SWEEP = 50, FLIGHTS = 5, REPLAYS = 5, MOST_RANKS = 8 };
#endif
enum { MOST = 24, GROUPS = 3, PITCH = ROOM / MOST / GROUPS / 64 * 64, WORDS = 16 };

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

static int is_grouped(const struct rank *r)
{
    return r->rank % 2 == 0;
}

/* After a call, an all-reduce that shares its launch with none; where they are grouped, the end. */
static void end_grouped_by_some(const struct rank *r, void *in, float *out)
{
    const symwin_collective_options twoshot = {.size = sizeof twoshot,
                                               .algo = SYMWIN_ALGO_TWOSHOT_PUSH};

    host_must(
        symwin_allreduce_with(r->comm, in, out, 2, SYMWIN_F32, SYMWIN_SUM, &twoshot, r->streams[0]),
        "2");
    if (is_grouped(r))
        host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

/* A call that no other shares a launch with is the same in a group and in none. */
static void grouped_by_some(const struct rank *r)
{
    float *const in = (float *)(void *)r->in, *const out = (float *)(void *)r->out;
    const float all = (float)(r->nranks * (r->nranks + 1) / 2);
    const float words[4] = {(float)(r->rank + 1), (float)(r->rank + 1)};
    float found[2][2];
    int i;

    host_must(host_copy(r->device, in, words, sizeof words), "fill");
    if (is_grouped(r))
        host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allreduce(r->comm, in, out, 2, SYMWIN_F32, SYMWIN_SUM, r->streams[0]), "1");
    end_grouped_by_some(r, in, out + 64);
    for (i = 0; i < 2; i++) {
        host_must(host_copy(r->device, found[i], out + 64 * i, sizeof found[i]), "read");
        must_be(found[i][0] == all && found[i][1] == all, "grouped by some ranks", r->rank);
    }
}

/* The same of a call whose own kernel sends bundles, on the emulated driver. */
static void bundles_by_some(const struct rank *r)
{
    enum { BYTES = SLOT };
    float *const sums = (float *)(void *)(r->out + (size_t)r->nranks * BYTES);
    unsigned char part[BYTES];
    size_t i;
    int p;

    memset(part, r->rank + 1, sizeof part);
    host_must(host_copy(r->device, r->in, part, sizeof part), "fill");
    if (is_grouped(r))
        host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allgather(r->comm, r->in, r->out, BYTES, SYMWIN_U8, r->streams[0]), "1");
    end_grouped_by_some(r, r->in, sums);
    for (p = 0; p < r->nranks; p++) {
        unsigned char found[BYTES];

        host_must(host_copy(r->device, found, r->out + (size_t)p * BYTES, BYTES), "read");
        for (i = 0; i < BYTES && found[i] == p + 1; i++)
            ;
        must_be(i == BYTES, "bundles, grouped by some ranks", r->rank);
    }
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

static const struct shape allreduce = {.name = "allreduce",
                                       .collective = SYMWIN_ALLREDUCE,
                                       .reduces = 1,
                                       .multicast = SYMWIN_ALGO_ONESHOT_MC};

/* Any call; one of three reduces. */
static struct job any(const struct rank *r, unsigned number, int k, int place)
{
    const int at = place * MOST + k;
    struct job j = job_any(r, number, k, (size_t)at * PITCH, PITCH);
    const uint32_t more = mix(number * 7919u + (uint32_t)k);

    if (more % 3 == 0)
        j.is = more / 3 % 2 == 0 ? &allreduce : &shapes[5 + more / 6 % 2];
    if (more % 3 == 0 && more / 12 % 4 == 0)
        j.op = SYMWIN_PREMUL_SUM;
    j.scalars = (unsigned)at;
    if (j.is == &allreduce) { /* in windows its buffers lie alike on all ranks */
        j.in_place = more / 48 % 3 == 0;
        j.in = j.out = (size_t)at * PITCH + GUARD + more / 144 % 9 * symwin_type_bytes(j.type);
    }
    return j;
}

/* Prepares a group at place `place` of the buffers. */
static int prepare(const struct rank *r, unsigned number, int place, struct job *jobs)
{
    const int n = 1 + (int)(mix(number) % MOST);
    int k;

    for (k = 0; k < n; k++) {
        jobs[k] = any(r, number, k, place);
        job_prepare(r, &jobs[k]);
    }
    return n;
}

static void add(const struct rank *r, const struct job *jobs, int n, int streams)
{
    int k;

    for (k = 0; k < n; k++)
        host_must(job_call(r, &jobs[k],
                           streams == 1 ? 0 : (int)(mix(jobs[k].seed + (unsigned)r->rank) % 2)),
                  "a call of a group");
}

static void right(const struct rank *r, const struct job *jobs, int n, const char *what)
{
    int k;

    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    for (k = 0; k < n; k++)
        must_be(job_is_right(r, &jobs[k]), what, r->rank);
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
    grouped_by_some(&r);
    bundles_by_some(&r);
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

/* ---- one thread for all ranks ---------------------------------------------------------------- */

static struct rank all[4];
static struct job all_jobs[4][MOST];

/* All ranks' calls in a group: rank by rank, or call by call. */
static void make_all(int nranks, int n, int by_call)
{
    int i;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (i = 0; i < nranks * n; i++) {
        const int q = by_call ? i % nranks : i / n, k = by_call ? i / nranks : i % n;

        host_must(job_call(&all[q], &all_jobs[q][k], 0), "a call of a group");
    }
    host_must(symwin_group_end(), "symwin_group_end");
}

/* Rank 0's thread makes the calls on its own stream, which is another one on each device. */
static int on_own_streams;

static CUstream stream_of(int q)
{
    return on_own_streams ? CU_STREAM_PER_THREAD : all[q].streams[0];
}

/* Begins or ends a capture of each rank's stream. */
static void captures_begin(int nranks)
{
    struct sw_scope scope;
    int q;

    for (q = 0; q < nranks; q++) {
        host_must(sw_scope_enter(all[q].device, &scope), "scope");
        host_must_cuda(sw_drv.cuStreamBeginCapture(stream_of(q), CU_STREAM_CAPTURE_MODE_RELAXED),
                       "cuStreamBeginCapture");
        sw_scope_leave(&scope);
    }
}

static void captures_end(int nranks, CUgraphExec *exec)
{
    struct sw_scope scope;
    int q;

    for (q = 0; q < nranks; q++) {
        host_must(sw_scope_enter(all[q].device, &scope), "scope");
        exec[q] = host_end_capture(stream_of(q), NULL);
        sw_scope_leave(&scope);
    }
}

/* All ranks' calls on buffers on which the ranks agree: two all-reduces, and others around them. */
static void reduce_all(int nranks)
{
    int q, k;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (q = 0; q < nranks; q++)
        for (k = 0; k < 4; k++) {
            unsigned char *const in = all[q].in + k * 1024, *const out = all[q].out + k * 1024;

            if (k % 3 == 0)
                host_must(symwin_allgather(all[q].comm, in, out, 1, SYMWIN_U32, stream_of(q)),
                          "symwin_allgather");
            else
                host_must(
                    symwin_allreduce(all[q].comm, in, out, 1, SYMWIN_U32, SYMWIN_SUM, stream_of(q)),
                    "symwin_allreduce");
        }
    host_must(symwin_group_end(), "symwin_group_end");
}

/* Launches the captured graphs, if there are some, and waits for the thread's own streams. */
static void run_all(int nranks, CUgraphExec *exec)
{
    struct sw_scope scope;
    int q;

    for (q = 0; q < nranks && exec != NULL; q++) {
        host_must(sw_scope_enter(all[q].device, &scope), "scope");
        host_must_cuda(sw_drv.cuGraphLaunch(exec[q], stream_of(q)), "cuGraphLaunch");
        sw_scope_leave(&scope);
    }
    for (q = 0; q < nranks && on_own_streams; q++) {
        host_must(sw_scope_enter(all[q].device, &scope), "scope");
        host_must_cuda(sw_drv.cuStreamSynchronize(CU_STREAM_PER_THREAD), "synchronize");
        sw_scope_leave(&scope);
    }
}

static void reduced(const struct rank *r, const char *what)
{
    int k, n = r->nranks;

    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    for (k = 0; k < 4; k++)
        must_be(host_get_u32(r->device, r->out + k * 1024 + (k % 3 == 0 ? 4 * (n - 1) : 0)) ==
                    (uint32_t)(k % 3 == 0 ? n - 1 + k * 10 : n * (n - 1) / 2 + n * k * 10),
                what, r->rank);
}

/* One thread makes the calls whose buffers become windows: registered ones, and captured ones. */
static void agree_by_one_thread(struct processes *p, struct rank *r)
{
    const symwin_collective_options twoshot = {.size = sizeof twoshot, .algo = SYMWIN_ALGO_TWOSHOT};
    const int turns = p->count <= harness_device_count() ? 3 : 2; /* the third: on own streams */
    symwin_registration *in = NULL, *out = NULL;
    symwin_collective_info info;
    CUgraphExec exec[4];
    sigset_t signals;
    int turn, q, k;

    for (k = 0; k < 4; k++)
        host_put_u32(r->device, r->in + k * 1024, (uint32_t)(r->rank + k * 10));
    processes_barrier(p);
    for (turn = 0; turn < turns; turn++) { /* each capture agrees again */
        if (r->rank == 0) {
            on_own_streams = turn == 2;
            captures_begin(p->count);
            reduce_all(p->count);
            captures_end(p->count, exec);
            run_all(p->count, exec);
        }
        processes_barrier(p);
        reduced(r, "agreed on in a capture");
        processes_barrier(p);
        for (q = 0; q < p->count && r->rank == 0; q++)
            host_must_cuda(sw_drv.cuGraphExecDestroy(exec[q]), "cuGraphExecDestroy");
    }
    host_must(symwin_register(r->comm, r->in, ROOM, &in), "symwin_register");
    host_must(symwin_register(r->comm, r->out, ROOM, &out), "symwin_register");
    for (turn = 0; turn < turns; turn++) {
        host_put_u32(r->device, r->out + 1024, 0);
        processes_barrier(p);
        if (r->rank == 0) {
            on_own_streams = turn == 2;
            reduce_all(p->count);
            run_all(p->count, NULL);
        }
        processes_barrier(p);
        reduced(r, "on registered buffers");
    }
    must_be(pthread_sigmask(SIG_SETMASK, NULL, &signals) == 0 && !sigismember(&signals, SIGUSR1),
            "the thread has its signals", r->rank);
    host_must(
        symwin_allreduce_query(r->comm, r->in, r->out, 1, SYMWIN_U32, SYMWIN_SUM, &twoshot, &info),
        "registered buffers become windows");
    processes_barrier(p);
    host_must(symwin_deregister(r->comm, in), "symwin_deregister");
    host_must(symwin_deregister(r->comm, out), "symwin_deregister");
    processes_barrier(p);
}

static void by_one_thread(struct processes *p, int rank)
{
    struct rank *r = &all[rank];
    CUgraphExec exec[4];
    unsigned i;
    int n, q;

    *r = (struct rank){.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    open_rank(p, r, WAIT_MS);
    for (i = 0; i < 8; i++) {
        n = prepare(r, 4000 + i, 0, all_jobs[rank]);
        processes_barrier(p);
        if (rank == 0)
            make_all(p->count, n, i % 2);
        processes_barrier(p);
        right(r, all_jobs[rank], n, "one thread for all ranks");
        processes_barrier(p);
    }
    n = prepare(r, 4000, 0, all_jobs[rank]);
    for (q = 0; q < n; q++) { /* those that run no agreement in a capture */
        all_jobs[rank][q].is = &shapes[q % 5];
        job_prepare(r, &all_jobs[rank][q]);
    }
    processes_barrier(p);
    if (rank == 0) {
        captures_begin(p->count);
        make_all(p->count, n, 1);
        captures_end(p->count, exec);
    }
    for (q = 0; q < p->count && rank == 0; q++)
        host_must_cuda(sw_drv.cuGraphLaunch(exec[q], all[q].streams[0]), "cuGraphLaunch");
    processes_barrier(p);
    right(r, all_jobs[rank], n, "captured by one thread for all ranks");
    processes_barrier(p);
    for (q = 0; q < p->count && rank == 0; q++)
        host_must_cuda(sw_drv.cuGraphExecDestroy(exec[q]), "cuGraphExecDestroy");
    agree_by_one_thread(p, r);
    close_rank(p, r);
}

int main(void)
{
    struct processes *p;

    /* For ranks that share a GPU: the most that CUDA takes. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    everywhere(body, MOST_RANKS);
    tap_ok(places_run(&places_all[0], 4, by_one_thread, NULL, &p), "one thread drives 4 ranks");
    processes_free(p);
    return tap_done();
}
