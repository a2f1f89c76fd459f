/* Communicators whose ranks are in several domains, on the emulated driver without fabric handles:
 * every collective, sends and receives against a plain reference, groups, graphs, windows. The
 * engine between domains is the stand-in for NCCL (tests/nccl/stand_in). Also runs on GPUs
 * (tests/gpu/both.txt), with NCCL: SYMWIN_NCCL, or the loader's. */
#define TEST_ROOM (1 << 20)
#include "parts.h"
#include "rails_jobs.h"
#include "src/rails/rails.h"
#include <sys/syscall.h>

#if defined(__SANITIZE_THREAD__) ||                                                                \
    defined(__SANITIZE_ADDRESS__) /* the kinds of calls, once or so */
enum { RANDOM = 8, UNEQUAL = 2, GROUPED = 2, REPLAYS = 2, FEW = 1 };
#else
enum { RANDOM = 40, UNEQUAL = 12, GROUPED = 8, REPLAYS = 3, FEW = 0 };
#endif

/* Bytes of a call in steps, all parts together: each takes two slices at least. Emulated kernels
 * take a microsecond for each element. */
enum { STEPPED = 256 << 10 };

/* A letter for each rank: the host that it is on. */
static const struct place places[] = {
    {"2 x 2", 1, "aabb"},       {"in turn", 1, "abab"}, {"2 x 4", 1, "aaaabbbb"},
    {"4 x 2", 1, "aabbccdd"},   {"3 + 1", 1, "aaab"},   {"3 + 2 + 1", 1, "aaabbc"},
    {"one on each", 1, "abcd"},
};

static void run_any(const struct rank *r)
{
    struct job j;
    unsigned i;

    for (i = 0; i < some(r, RANDOM); i++) {
        j = any(r, i);
        job_run(r, &j);
    }
}

/* ---- parts of unequal lengths ---- */

/* Every other call in a group. */
static void unequal(const struct rank *r)
{
    struct parts_job j;
    struct arrays a;
    unsigned i;

    arrays_open(r, &a);
    for (i = 0; i < some(r, UNEQUAL) || i < 2; i++) {
        j = parts_job_of(r, i, 0, 1 << 16);
        j.on_device[0] = j.on_device[1] = 0;
        parts_prepare(r, &j, &a);
        if (i % 2 == 1)
            host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(parts_call(r, &j, &a, 0), "unequal parts");
        if (i % 2 == 1)
            host_must(symwin_group_end(), "symwin_group_end");
        job_wait(r, 0);
        must_be(parts_right(r, &j), "unequal parts", r->rank);
    }
    arrays_close(&a);
}

/* Each rank's part of the sum has (rank + 1) * `unit` elements. */
static void reduce_unequal(const struct rank *r, uint64_t unit)
{
    uint32_t *const in = (uint32_t *)(void *)r->in, *const out = (uint32_t *)(void *)r->out;
    uint32_t *const words = (uint32_t *)(void *)r->host;
    uint64_t counts[PARTS_RANKS], all = 0, before = 0, i;
    const symwin_parts parts = {.counts = counts};
    const uint32_t n = (uint32_t)r->nranks;
    size_t wrong = 0;
    int p;

    for (p = 0; p < r->nranks; p++) {
        counts[p] = unit * (uint64_t)(p + 1);
        before += p < r->rank ? counts[p] : 0;
        all += counts[p];
    }
    for (i = 0; i < all; i++)
        words[i] = (uint32_t)i * 7 + (uint32_t)r->rank;
    host_must(host_copy(r->device, in, words, all * sizeof *words), "fill");
    host_must(
        symwin_reduce_scatterv(r->comm, in, &parts, out, SYMWIN_U32, SYMWIN_SUM, r->streams[0]),
        "symwin_reduce_scatterv");
    job_wait(r, 0);
    host_must(host_copy(r->device, words, out, counts[r->rank] * sizeof *words), "read");
    for (i = 0; i < counts[r->rank]; i++)
        wrong += words[i] != (uint32_t)(before + i) * 7 * n + n * (n - 1) / 2;
    must_equal((long long)wrong, 0, "sums of unequal parts", r->rank);
}

/* ---- sends, receives and groups ---- */

/* Every rank sends `words` words to every rank, itself too, in one group; so many for rank 0, and
 * one more for each next one. */
static void messages(const struct rank *r, uint64_t words)
{
    uint32_t *const in = (uint32_t *)(void *)r->in, *const out = (uint32_t *)(void *)r->out;
    uint32_t *const host = (uint32_t *)(void *)r->host;
    const uint64_t pitch = words + (uint64_t)r->nranks;
    uint64_t wrong = 0, i;
    int p;

    for (i = 0; i < pitch * (uint64_t)r->nranks; i++)
        host[i] = (uint32_t)(i * 31 + (uint64_t)r->rank * 100003);
    host_must(host_copy(r->device, in, host, pitch * (uint64_t)r->nranks * 4), "fill");
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (p = 0; p < r->nranks; p++)
        host_must(symwin_send(r->comm, in + (uint64_t)p * pitch, words + (uint64_t)p, SYMWIN_U32, p,
                              r->streams[0]),
                  "symwin_send");
    for (p = 0; p < r->nranks; p++)
        host_must(symwin_recv(r->comm, out + (uint64_t)p * pitch, words + (uint64_t)r->rank,
                              SYMWIN_U32, p, r->streams[0]),
                  "symwin_recv");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(host_copy(r->device, host, out, pitch * (uint64_t)r->nranks * 4), "read");
    for (p = 0; p < r->nranks; p++)
        for (i = 0; i < words + (uint64_t)r->rank; i++)
            wrong += host[(uint64_t)p * pitch + i] !=
                     (uint32_t)(((uint64_t)r->rank * pitch + i) * 31 + (uint64_t)p * 100003);
    must_equal((long long)wrong, 0, "words of messages", r->rank);
}

/* One after another, in a ring, without a group: even ranks send first. */
static void ring(const struct rank *r)
{
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    unsigned char *const got = r->out + 64;
    int turn;

    host_put_u32(r->device, r->in, (uint32_t)r->rank + 70);
    for (turn = 0; turn < 2; turn++)
        if ((turn == 0) == (r->rank % 2 == 0 && r->rank + 1 < r->nranks))
            host_must(symwin_send(r->comm, r->in, 1, SYMWIN_U32, next, r->streams[0]), "send");
        else
            host_must(symwin_recv(r->comm, got, 1, SYMWIN_U32, before, r->streams[0]), "recv");
    job_wait(r, 0);
    must_equal(host_get_u32(r->device, got), before + 70, "the word of a ring", r->rank);
}

/* Of a group's messages inside and between, one waits for the other, whichever it is. */
static void cross(const struct rank *r)
{
    const int turn = r->rank;
    struct CUstream_st *const s = r->streams[0];
    symwin_comm *const c = r->comm;

    if (turn == 0) {
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_recv(c, r->out, 1, SYMWIN_U32, 2, s), "recv");
        host_must(symwin_send(c, r->in, 1, SYMWIN_U32, 1, s), "send");
        host_must(symwin_group_end(), "symwin_group_end");
    } else {
        host_must(symwin_recv(c, r->out, 1, SYMWIN_U32, turn - 1, s), "recv");
        host_must(symwin_send(c, r->in, 1, SYMWIN_U32, (turn + 1) % 3, s), "send");
    }
}

/* In a stream, and in a graph. */
static void crossing(const struct rank *r, const char *hosts)
{
    struct sw_scope scope;
    CUgraphExec exec;

    if (r->rank > 2 || hosts[0] != hosts[1] || hosts[0] == hosts[2])
        return;
    cross(r);
    job_wait(r, 0);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    cross(r);
    exec = host_end_capture(r->streams[0], NULL);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
    job_wait(r, 0);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
    host_must(symwin_comm_check(r->comm), "messages that wait for each other");
}

/* Calls of several collectives in one group, on two streams. */
static void groups(const struct rank *r)
{
    struct job jobs[4];
    unsigned i, k;

    for (i = 0; i < some(r, GROUPED); i++) {
        for (k = 0; k < 4; k++) {
            jobs[k] = any(r, 1000 + 4 * i + k);
            if (jobs[k].count > 500)
                jobs[k].count = 500;
            jobs[k].in += (size_t)k * (ROOM / 4);
            jobs[k].out += (size_t)k * (ROOM / 4);
            job_prepare(r, &jobs[k]);
        }
        host_must(symwin_group_begin(), "symwin_group_begin");
        for (k = 0; k < 4; k++)
            host_must(job_call(r, &jobs[k], (int)k % 2), "a call of a group");
        host_must(symwin_group_end(), "symwin_group_end");
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (k = 0; k < 4; k++)
            must_be(job_is_right(r, &jobs[k]), "a group", r->rank);
    }
}

/* ---- streams and graphs ---- */

static const struct shape allreduce = {
    .name = "allreduce", .collective = SYMWIN_ALLREDUCE, .reduces = 1};

/* Calls on two streams in turn: each uses the result of the one before, which nothing else orders.
 */
static void two_streams(const struct rank *r)
{
    uint32_t want = (uint32_t)r->nranks;
    int i;

    for (i = 0; i < 6; i++)
        host_put_u32(r->device, r->in + 64 * i, 1);
    for (i = 0; i < 5; i++, want *= (uint32_t)r->nranks)
        host_must(symwin_allreduce(r->comm, r->in + 64 * i, r->in + 64 * (i + 1), 1, SYMWIN_U32,
                                   SYMWIN_SUM, r->streams[i % 2]),
                  "symwin_allreduce");
    job_wait(r, 0);
    job_wait(r, 1);
    must_equal(host_get_u32(r->device, r->in + 64 * 5), want / (uint32_t)r->nranks,
               "calls on two streams", r->rank);
}

static void wait_a_while(void *arg)
{
    (void)arg;
    host_pause_ms(30);
}

/* Calls in a thread's own default stream come after what is ahead in it, and its synchronization
 * waits for them, though NCCL launches in another thread. */
static void own_stream(const struct rank *r)
{
    const uint32_t n = (uint32_t)r->nranks;
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    const CUstream own = CU_STREAM_PER_THREAD;
    struct sw_scope scope;
    CUgraphExec exec = NULL;
    int captured;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    for (captured = 0; captured < 2; captured++) {
        host_put_u32(r->device, r->in, (uint32_t)r->rank + 1);
        if (captured)
            host_must_cuda(sw_drv.cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                           "cuStreamBeginCapture");
        host_must_cuda(sw_drv.cuLaunchHostFunc(own, wait_a_while, NULL), "cuLaunchHostFunc");
        host_must(symwin_allreduce(r->comm, r->in, r->in + 64, 1, SYMWIN_U32, SYMWIN_SUM, own),
                  "symwin_allreduce");
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_send(r->comm, r->in + 64, 1, SYMWIN_U32, next, own), "send");
        host_must(symwin_recv(r->comm, r->in + 128, 1, SYMWIN_U32, before, own), "recv");
        host_must(symwin_group_end(), "symwin_group_end");
        host_must(symwin_allreduce(r->comm, r->in + 128, r->out, 1, SYMWIN_U32, SYMWIN_SUM, own),
                  "symwin_allreduce");
        if (captured) {
            exec = host_end_capture(own, NULL);
            host_must_cuda(sw_drv.cuGraphLaunch(exec, own), "cuGraphLaunch");
        }
        host_must_cuda(sw_drv.cuStreamSynchronize(own), "cuStreamSynchronize");
        must_equal(host_get_u32(r->device, r->out), n * n * (n + 1) / 2,
                   "calls in a thread's own default stream", r->rank);
        host_put_u32(r->device, r->out, 0);
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* The last rank's domain comes late: what others have on the rails waits there. */
static void be_late(const struct rank *r, const char *hosts)
{
    if (hosts[r->rank] == hosts[r->nranks - 1])
        host_pause_ms(40);
}

/* Several pieces of an all-reduce, of which the first waits on the rails while the next is reduced
 * inside. */
static void late_pieces(const struct rank *r, const char *hosts, symwin_algo way)
{
    struct job j = any(r, 5000);

    j.is = &allreduce;
    j.options.algo = way;
    j.options.blocks = 7; /* pieces */
    j.type = SYMWIN_U64;
    j.op = SYMWIN_SUM;
    j.in_place = 0;
    /* By rails more pieces than 7 where a rank serves three rails. */
    j.count = way == SYMWIN_ALGO_RAILS ? 50000 : 10000;
    job_prepare(r, &j);
    be_late(r, hosts);
    host_must(job_call(r, &j, 0), "a call of several pieces");
    job_wait(r, 0);
    must_be(job_is_right(r, &j), "several pieces", r->rank);
}

/* An element of a rank's message, whose sums depend on their order. */
static float uneven(uint32_t i, int rank)
{
    const uint32_t dice = mix(i * 64u + (uint32_t)rank);

    return (float)(int32_t)dice * (float)(1u << dice % 13);
}

/* Sums of a domain in the order of its ranks, then those in the order of domains. */
static float in_order(const struct rank *r, const char *hosts, uint32_t i)
{
    float all = 0;
    int d, q, domains = 0;

    for (d = 0; d < r->nranks; d++) {
        float sum = 0;
        int ranks = 0;

        if (strchr(hosts, hosts[d]) != hosts + d)
            continue; /* of a domain that has been added */
        for (q = d; q < r->nranks; q++)
            if (hosts[q] == hosts[d])
                sum = ranks++ == 0 ? uneven(i, q) : sum + uneven(i, q);
        all = domains++ == 0 ? sum : all + sum;
    }
    return all;
}

/* By two exchanges the bits of a sum depend on neither NCCL nor the pieces. */
static void in_the_order_of_domains(const struct rank *r, const char *hosts)
{
    static const uint32_t counts[] = {1, 24, 4099, 5, 8200};
    static const int pieces[] = {1, 1, 5, 0, 0};
    float *const values = (float *)(void *)r->host;
    symwin_collective_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT_PUSH};
    symwin_allreduce_info info;
    size_t k;

    for (k = 0; k < (FEW ? 3 : 5); k++) {
        const uint32_t count = counts[k];
        const size_t bytes = count * sizeof *values;
        int wrong = 0;
        uint32_t i;

        options.blocks = pieces[k];
        for (i = 0; i < count; i++)
            values[i] = uneven(i, r->rank);
        host_must(host_copy(r->device, r->in, values, bytes), "copy to the device");
        host_must(symwin_allreduce_query(r->comm, r->in, r->out, count, SYMWIN_F32, SYMWIN_SUM,
                                         &options, &info),
                  "symwin_allreduce_query");
        must_equal((int)info.algo, SYMWIN_ALGO_TWOSHOT_PUSH, "the way", r->rank);
        must_be(info.blocks >= 1 && (count < 4099 || info.blocks >= pieces[k]), "pieces", r->rank);
        host_must(symwin_allreduce_with(r->comm, r->in, r->out, count, SYMWIN_F32, SYMWIN_SUM,
                                        &options, r->streams[0]),
                  "two exchanges");
        job_wait(r, 0);
        host_must(host_copy(r->device, values, r->out, bytes), "copy from the device");
        for (i = 0; i < count; i++) {
            const float sum = in_order(r, hosts, i);

            wrong += memcmp(&values[i], &sum, sizeof sum) != 0;
        }
        must_equal(wrong, 0, "elements that are not in the order of domains", r->rank);
    }
}

/* What NCCL has been given in lanes that only pieces and steps use. */
static uint32_t on_later_lanes(const struct rank *r)
{
    uint32_t batches = 0;
    int i;

    for (i = 1; i < SW_LANES; i++)
        batches += r->comm->wide->lanes[i].batches;
    return batches;
}

/* A part for each rank, which the scratch does not hold, in steps: domains exchange, or sum, what
 * is for one of them, while others are under way. */
static void steps(const struct rank *r, const char *hosts)
{
    static const symwin_collective in_steps[] = {SYMWIN_ALLGATHER, SYMWIN_REDUCE_SCATTER,
                                                 SYMWIN_ALLTOALL};
    static const int pieces[] = {1, 2, 9};
    uint32_t before;
    struct job j;
    int i, k, n;

    for (i = 0; i < 3; i++)
        for (k = FEW; k < 3; k++) {
            n = 3 * i + k;
            j = any(r, 5100 + (unsigned)n);
            for (j.is = shapes; j.is->collective != in_steps[i];)
                j.is++;
            j.type = n % 2 == 0 ? SYMWIN_U32 : SYMWIN_F32;
            j.op = SYMWIN_SUM;
            j.in_place = n % 2 == 1;
            j.count = STEPPED / 4 / (uint64_t)r->nranks;
            j.in = j.out = GUARD;
            j.options = (symwin_collective_options){
                .size = sizeof j.options, .algo = SYMWIN_ALGO_RAILS, .blocks = pieces[k]};
            job_prepare(r, &j);
            if (!equal_domains && in_steps[i] == SYMWIN_ALLTOALL) {
                must_be(job_call(r, &j, 0) == SYMWIN_UNSUPPORTED &&
                            host_error_has("the domains differ in size"),
                        "an all-to-all of unequal domains by rails", r->rank);
                j.options.algo = SYMWIN_ALGO_AUTO;
                j.options.blocks = 0;
            }
            if (k == 1)
                be_late(r, hosts);
            before = on_later_lanes(r);
            host_must(job_call(r, &j, 0), "a call in steps");
            must_be(k == 0 || j.options.algo == SYMWIN_ALGO_AUTO || on_later_lanes(r) > before,
                    "steps go by several lanes", r->rank);
            job_wait(r, 0);
            must_be(job_is_right(r, &j), j.is->name, r->rank);
        }
}

/* Pieces of an all-reduce in a capture; and a message that comes in one stream, and is used in the
 * other. */
static void two_captured(const struct rank *r, const char *hosts)
{
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    const uint32_t n = (uint32_t)r->nranks;
    struct sw_scope scope;
    CUgraphExec exec;
    int i;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_follow(r->streams[0], r->streams[1]);
    for (i = 0; i < 4; i += 2) { /* one ends with NCCL, and one begins with it */
        host_must(symwin_allreduce(r->comm, r->in + 65536 * i, r->in + 65536 * (i + 1), 1000,
                                   SYMWIN_U32, SYMWIN_SUM, r->streams[0]),
                  "a captured call");
        host_must(symwin_allgather(r->comm, r->in + 65536 * (i + 1), r->in + 65536 * (i + 2), 1000,
                                   SYMWIN_U32, r->streams[1]),
                  "a captured call");
    }
    host_follow(r->streams[1], r->streams[0]);
    exec = host_end_capture(r->streams[0], NULL);
    host_put_u32(r->device, r->in, 1);
    be_late(r, hosts);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
    job_wait(r, 0);
    must_equal(host_get_u32(r->device, r->in + 65536 * 4), n * n, "captured calls on two streams",
               r->rank);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
    host_put_u32(r->device, r->in, (uint32_t)r->rank);
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_send(r->comm, r->in, 1, SYMWIN_U32, next, r->streams[0]), "send");
    host_must(symwin_recv(r->comm, r->in + 64, 1, SYMWIN_U32, before, r->streams[0]), "recv");
    host_must(symwin_group_end(), "symwin_group_end");
    host_must(
        symwin_allreduce(r->comm, r->in + 64, r->out, 1, SYMWIN_U32, SYMWIN_SUM, r->streams[1]),
        "symwin_allreduce");
    job_wait(r, 1);
    must_equal(host_get_u32(r->device, r->out), n * (n - 1) / 2, "a sum of messages", r->rank);
    job_wait(r, 0);
}

static CUgraphExec capture(const struct rank *r, const struct job *j)
{
    struct sw_scope scope;
    CUgraphExec exec;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(job_call(r, j, 0), "a captured call");
    exec = host_end_capture(r->streams[0], NULL);
    sw_scope_leave(&scope);
    return exec;
}

/* Calls of several pieces in two captures at once, the second of which finds the lanes taken. */
static void two_captures(const struct rank *r, symwin_algo way)
{
    struct job j = any(r, 6000);
    CUgraphExec execs[2];
    struct sw_scope scope;
    int i;

    if (r->streams[0] == r->streams[1])
        return; /* on GPUs with too few hardware queues */
    j.is = &allreduce;
    j.options.algo = way;
    j.options.blocks = 7; /* pieces */
    j.type = SYMWIN_U64;
    j.op = SYMWIN_SUM;
    j.in_place = 0;
    j.count = way == SYMWIN_ALGO_RAILS ? 21000 : 9000;
    host_must(sw_scope_enter(r->device, &scope), "scope");
    for (i = 0; i < 2; i++)
        host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[i], CU_STREAM_CAPTURE_MODE_RELAXED),
                       "cuStreamBeginCapture");
    for (i = 0; i < 2; i++)
        host_must(job_call(r, &j, i), "a call in one of two captures");
    for (i = 0; i < 2; i++)
        execs[i] = host_end_capture(r->streams[i], NULL);
    for (i = 0; i < 2; i++) {
        job_prepare(r, &j);
        host_must_cuda(sw_drv.cuGraphLaunch(execs[i], r->streams[i]), "cuGraphLaunch");
        job_wait(r, i);
        must_be(job_is_right(r, &j), "a call in one of two captures", r->rank);
        host_must_cuda(sw_drv.cuGraphExecDestroy(execs[i]), "cuGraphExecDestroy");
    }
    sw_scope_leave(&scope);
}

static void graphs(const struct rank *r)
{
    struct job j;
    CUgraphExec exec;
    unsigned i, turn;

    for (i = 0; i < SHAPES; i++) {
        j = any(r, 2000 + i);
        j.is = &shapes[i];
        j.options.algo = SYMWIN_ALGO_AUTO;
        choose_way(&j, i);
        j.count = i % 2 == 0 ? 33 : 70000;
        while ((j.count * symwin_type_bytes(j.type) + GUARD + 72) * (uint64_t)r->nranks > ROOM)
            j.count /= 2;
        job_prepare(r, &j);
        exec = capture(r, &j);
        for (turn = 0; turn < REPLAYS; turn++) {
            j.seed = j.seed / 2 * 2 + 2; /* its parity says what is no buffer */
            job_prepare(r, &j);
            host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
            job_wait(r, 0);
            host_must(symwin_comm_check(r->comm), "symwin_comm_check");
            must_be(job_is_right(r, &j), "a replay", r->rank);
        }
        host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    }
}

/* ---- windows ---- */

/* The line of symwin_dump(). */
static void says_domain(const struct rank *r, const char *hosts, int ranks, int rank)
{
    static char text[1 << 16], want[128];
    const int file = (int)syscall(SYS_memfd_create, "dump", 1);
    ssize_t bytes;
    int domain = 0, i;

    for (i = 0; hosts[i] != hosts[r->rank]; i++)
        domain += strchr(hosts, hosts[i]) == &hosts[i];
    host_must(symwin_dump(file), "symwin_dump");
    bytes = pread(file, text, sizeof text - 1, 0);
    close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    snprintf(want, sizeof want, "\ndomain %d comm=0 domains=%d rank=%d ranks=%d rails=%d\n", domain,
             domains_of(hosts), rank, ranks, largest_of(hosts));
    must_be(strstr(text, want) != NULL, want, r->rank);
}

/* They are of the rank's domain, and calls use them. */
static void windows(struct processes *p, const struct rank *r, const char *hosts)
{
    symwin_window *w[2], *found;
    symwin_window_info info;
    symwin_comm_info comm;
    int here = 0, before = 0, i;
    void *peer;

    for (i = 0; i < r->nranks; i++) {
        here += hosts[i] == hosts[r->rank];
        before += hosts[i] == hosts[r->rank] && i < r->rank;
    }
    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &w[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &w[1]), "register");
    host_must(symwin_window_query(r->comm, w[0], &info), "symwin_window_query");
    must_be(info.nranks == here && info.rank == before, "ranks of a window", r->rank);
    host_must(symwin_window_peer_pointer(r->comm, w[1], here - 1, 0, &peer), "a peer's address");
    must_be(symwin_window_peer_pointer(r->comm, w[1], here, 0, &peer) == SYMWIN_INVALID,
            "no peer of another domain", r->rank);
    host_must(symwin_window_find(r->comm, r->in + 8, 8, &found), "symwin_window_find");
    must_be(found == w[0], "the window of an address", r->rank);
    host_must(symwin_comm_query(r->comm, &comm), "symwin_comm_query");
    must_be(comm.nranks == r->nranks && comm.rank == r->rank && comm.domains == domains_of(hosts) &&
                comm.domain_ranks == here && comm.domain_rank == before &&
                comm.rails == largest_of(hosts) && comm.base == info.base && comm.windows == 2,
            "what the communicator is", r->rank);
    says_domain(r, hosts, here, before);
    for (i = 0; i < (int)some(r, 30); i++) {
        const struct job j = any(r, 3000u + (unsigned)i);

        job_run(r, &j);
    }
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, w[0]), "deregister");
    host_must(symwin_window_deregister(r->comm, w[1]), "deregister");
    processes_barrier(p);
}

/* Barriers: what ranks count before one, all have counted after it. */
static void barriers(struct processes *p, const struct rank *r)
{
    int i, q;

    for (i = 0; i < 5; i++) {
        p->rank[r->rank].step = 100 + i;
        host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
        job_wait(r, 0);
        for (q = 0; q < r->nranks; q++)
            must_be(p->rank[q].step >= 100 + i, "a rank before the barrier", q);
    }
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    atomic_int *const step = &p->rank[rank].step; /* told of a rank that hangs */

    equal_domains = domains_are_equal(places_arg(p));
    open_rank(p, &r, WAIT_MS);
    *step = 1;
    run_any(&r);
    *step = 2;
    unequal(&r);
    reduce_unequal(&r, 1);
    reduce_unequal(&r, 3000);
    *step = 3;
    messages(&r, 1);
    messages(&r, 9000);
    ring(&r);
    *step = 4;
    crossing(&r, places_arg(p));
    *step = 5;
    groups(&r);
    *step = 6;
    two_streams(&r);
    own_stream(&r);
    *step = 7;
    two_captured(&r, places_arg(p));
    *step = 8;
    late_pieces(&r, places_arg(p), SYMWIN_ALGO_RAILS);
    if (!FEW)
        late_pieces(&r, places_arg(p), SYMWIN_ALGO_TWOSHOT_PUSH);
    in_the_order_of_domains(&r, places_arg(p));
    steps(&r, places_arg(p));
    if (!FEW)
        two_captures(&r, SYMWIN_ALGO_RAILS);
    two_captures(&r, SYMWIN_ALGO_TWOSHOT_PUSH);
    *step = 9;
    graphs(&r);
    *step = 10;
    windows(p, &r, places_arg(p));
    barriers(p, &r);
    close_rank(p, &r);
}

static void main_of(struct processes *p, int rank)
{
    rails_set_engine(rank);
    body(p, rank);
}

/* Hosts of as many ranks as they have GPUs: here many processes, which make few calls. */
static void many(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank};
    symwin_comm_info comm;

    equal_domains = domains_are_equal(places_arg(p));
    rails_set_engine(rank);
    r.device = rank % harness_device_count();
    open_rank(p, &r, WAIT_MS);
    host_must(symwin_comm_query(r.comm, &comm), "symwin_comm_query");
    must_equal(comm.domains, domains_of(places_arg(p)), "domains", rank);
    run_any(&r);
    messages(&r, 1);
    late_pieces(&r, places_arg(p), SYMWIN_ALGO_RAILS);
    barriers(p, &r);
    close_rank(p, &r);
}

/* One rank of the smaller host serves two rails, so shares are parts of unequal lengths. */
static void unlike(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank};

    rails_set_engine(rank);
    r.device = rank % harness_device_count();
    open_rank(p, &r, WAIT_MS);
    unequal(&r);
    late_pieces(&r, places_arg(p), SYMWIN_ALGO_RAILS);
    late_pieces(&r, places_arg(p), SYMWIN_ALGO_TWOSHOT_PUSH);
    in_the_order_of_domains(&r, places_arg(p));
    close_rank(p, &r);
}

/* Without an argument: all but large hosts. On GPUs four processes, which may share one: six took
 * longer than their time there. */
static int is_asked_for(const char *argument, const struct place *place, int is_large)
{
    const int every = processes_use_gpus() ? 6 : FEW ? 5 : 1;

    if (argument == NULL)
        return !is_large && (place - places) % every == 0;
    return strcmp(argument, is_large ? "large" : place->hosts) == 0 ||
           strcmp(argument, place->hosts) == 0;
}

int main(int argc, char **argv)
{
    static const struct place large[] = {
        {"8 x 8", 1, "aaaaaaaabbbbbbbbccccccccddddddddeeeeeeeeffffffffgggggggghhhhhhhh"},
        {"18 + 17", 1, "aaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbb"}};
    const size_t few = sizeof places / sizeof places[0];
    const char *argument = argc > 1 ? argv[1] : NULL;
    struct processes *p;
    size_t i;

    if (argument != NULL && strcmp(argument, "large") == 0 && FEW)
        tap_skip_all("many processes, and a sanitizer");
    for (i = 0; i < few + 2; i++) {
        const struct place *place = i < few ? &places[i] : &large[i - few];

        if (!is_asked_for(argument, place, i >= few))
            continue;
        tap_ok(places_run(place, (int)strlen(place->hosts),
                          i < few    ? main_of
                          : i == few ? many
                                     : unlike,
                          (void *)(uintptr_t)place->hosts, &p),
               "%s", place->name);
        processes_free(p);
    }
    return tap_done();
}
