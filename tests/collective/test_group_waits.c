/* Groups: memory with several addresses, calls in a capture and outside it, parts of unequal
 * lengths among others, and calls on one small memory at random. test_group.c has the rest. Also
 * runs on GPUs (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 8192
#include "collectives.h"

/* The second call of a group reads what the first one has written, by another address. */
static void by_addresses(const struct rank *r, void *to, void *from, const char *what)
{
    uint32_t *const word = (uint32_t *)(void *)r->in, *const out = word + 1024;
    int turn, p;

    for (turn = 1; turn < 4; turn++) {
        const uint32_t before = r->comm->done;

        host_put_u32(r->device, (unsigned char *)word, (uint32_t)(r->rank + 100 * turn));
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_broadcast(r->comm, word, to, 1, SYMWIN_U32, 0, r->streams[0]),
                  "the first");
        host_must(symwin_allgather(r->comm, from, out, 1, SYMWIN_U32, r->streams[0]), "the second");
        host_must(symwin_group_end(), "symwin_group_end");
        must_equal(r->comm->done - before, 1, "blocks of the launch", r->rank);
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (p = 0; p < r->nranks; p++)
            must_equal(host_get_u32(r->device, (unsigned char *)(out + p)), 100 * turn, what,
                       r->rank);
    }
}

static uint64_t buffer_id(const void *ptr)
{
    symwin_mem_info info = {.bytes = 0};

    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    return info.buffer_id;
}

/* Two windows show one memory if it is one allocation. Each mapping has a buffer id of its own. */
static void by_two_windows(struct processes *p, const struct rank *r)
{
    struct host_raw again;
    unsigned char *other = host_map_again(r->device, r->out, &again);
    symwin_window *window;

    must_be(buffer_id(r->out) != buffer_id(other), "a buffer id for each mapping", r->rank);
    host_must(symwin_window_register(r->comm, other, ROOM, 0, &window), "register");
    by_addresses(r, r->out + 4096, other + 4096, "two windows on one memory, the first written");
    by_addresses(r, other + 4096, r->out + 4096, "two windows on one memory, the second written");
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
    processes_barrier(p);
    host_raw_free(&again);
}

/* The address is of another communicator's flat range. */
static void by_another_comm(struct processes *p, const struct rank *r)
{
    symwin_comm *another;
    symwin_window *window;
    void *other = NULL;

    host_must(symwin_comm_split(r->comm, 0, r->rank, NULL, &another), "symwin_comm_split");
    host_must(symwin_window_register(another, r->out, ROOM, 0, &window), "register");
    host_must(symwin_window_peer_pointer(another, window, r->rank, 4096, &other), "pointer");
    by_addresses(r, r->out + 4096, other, "another communicator's address, read");
    by_addresses(r, other, r->out + 4096, "another communicator's address, written");
    processes_barrier(p);
    host_must(symwin_window_deregister(another, window), "deregister");
    symwin_comm_destroy(another);
}

/* The memory that a call writes has other addresses too: in the flat range, and mapped again. */
static void by_other_addresses(struct processes *p, const struct rank *r, symwin_window *window)
{
    void *other = NULL;

    host_must(symwin_window_peer_pointer(r->comm, window, r->rank, 4096, &other), "pointer");
    by_addresses(r, r->out + 4096, other, "an address of the flat range, read");
    by_addresses(r, other, r->out + 4096, "an address of the flat range, written");
    by_another_comm(p, r);
    by_two_windows(p, r);
}

/* All-gathers in a capture and outside it, in one group. */
static void in_and_outside_a_capture(const struct rank *r)
{
    uint32_t *const in = (uint32_t *)(void *)r->in, *const out = in + 1024;
    const uint32_t before = job_launches(r);
    struct sw_scope scope;
    CUgraphExec exec;
    int k, p;

    for (k = 0; k < 4; k++)
        host_put_u32(r->device, (unsigned char *)(in + k), (uint32_t)(r->rank + 100 * k));
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 4; k++)
        host_must(symwin_allgather(r->comm, in + k, out + k * r->nranks, 1, SYMWIN_U32,
                                   r->streams[k / 2]),
                  "symwin_allgather");
    host_must(symwin_group_end(), "symwin_group_end");
    exec = host_end_capture(r->streams[1], NULL);
    job_wait(r, 0);
    must_equal(job_launches(r) - before, 1, "launches outside the capture", r->rank);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[1]), "cuGraphLaunch");
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_equal(job_launches(r) - before, 2, "launches, with that in it", r->rank);
    for (k = 0; k < 4; k++)
        for (p = 0; p < r->nranks; p++)
            must_be(host_get_u32(r->device, (unsigned char *)(out + k * r->nranks + p)) ==
                        (uint32_t)(p + 100 * k),
                    "in a capture, or outside it", r->rank);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

/* A group of two communicators in a capture, whose buffers are agreed on: on rank 0 the captured
 * stream is its thread's own. */
static void on_the_threads_own_stream(struct processes *p, const struct rank *r)
{
    const CUstream stream = r->rank == 0 ? CU_STREAM_PER_THREAD : r->streams[0];
    symwin_comm *comms[2] = {r->comm};
    struct sw_scope scope;
    CUgraphExec exec;
    int k;

    host_must(symwin_comm_split(r->comm, 0, r->rank, NULL, &comms[1]), "symwin_comm_split");
    host_must(sw_scope_enter(r->device, &scope), "scope");
    processes_barrier(p); /* a copy by another thread would wait for the captured stream */
    host_must_cuda(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 2; k++)
        host_must(symwin_allreduce(comms[k], r->in + k * 4096, r->out + k * 4096, 8, SYMWIN_U32,
                                   SYMWIN_SUM, stream),
                  "symwin_allreduce");
    host_must(symwin_group_end(), "symwin_group_end");
    exec = host_end_capture(stream, NULL);
    processes_barrier(p);
    for (k = 0; k < 2; k++)
        host_put_u32(r->device, r->in + k * 4096, (uint32_t)r->rank + (uint32_t)k);
    processes_barrier(p);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
    job_wait(r, 0);
    for (k = 0; k < 2; k++)
        must_equal(host_get_u32(r->device, r->out + k * 4096),
                   (uint32_t)(r->nranks * (r->nranks - 1) / 2 + k * r->nranks),
                   "a sum of the captured group", r->rank);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
    processes_barrier(p);
    symwin_comm_destroy(comms[1]);
}

/* Blocks of a launch of two calls, of which one asks for `blocks`. */
static uint32_t blocks_of(const struct rank *r, int blocks)
{
    const symwin_collective_options options = {.size = sizeof options, .blocks = blocks};
    const uint32_t before = r->comm->done;
    int k;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 2; k++)
        host_must(symwin_broadcast_with(r->comm, r->in, r->out + k * 4096, 2048, SYMWIN_U8, 0,
                                        k == 0 ? &options : NULL, r->streams[0]),
                  "symwin_broadcast_with");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    return r->comm->done - before;
}

/* Blocks of a launch of a send and a receive that ask for so many. */
static uint32_t pair_blocks_of(const struct rank *r, int send, int receive)
{
    const symwin_collective_options options[2] = {{.size = sizeof options[0], .blocks = send},
                                                  {.size = sizeof options[1], .blocks = receive}};
    const uint32_t before = r->comm->done;
    const int n = r->nranks, to = (r->rank + 1) % n, from = (r->rank + n - 1) % n;

    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_send_with(r->comm, r->in, 4096, SYMWIN_U8, to, &options[0], r->streams[0]),
              "symwin_send_with");
    host_must(symwin_recv_with(r->comm, r->out, 4096, SYMWIN_U8, from, &options[1], r->streams[0]),
              "symwin_recv_with");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    return r->comm->done - before;
}

static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
/* Of the last kernel of one rank alone: threads of a block, and how calls of a group wait. */
static unsigned launched;
static uint32_t waits[3];

static CUresult note_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    const struct sw_group_args *args = (const struct sw_group_args *)params[0];
    uint32_t k;

    launched = config->blockDimX;
    for (k = 0; k < sizeof waits / sizeof waits[0] && k < args->call.calls; k++)
        waits[k] = args->item[k].waits;
    return plain_launch(config, function, params, extra);
}

/* Threads of a block of such a launch, of whose calls the two ask for so many. */
static unsigned threads_of(const struct rank *r, int first, int second)
{
    const symwin_collective_options options[2] = {{.size = sizeof options[0], .threads = first},
                                                  {.size = sizeof options[1], .threads = second}};
    int k;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 2; k++)
        host_must(symwin_allgather_with(r->comm, r->in, r->out + k * 4096, 512, SYMWIN_U8,
                                        &options[k], r->streams[0]),
                  "symwin_allgather_with");
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    return launched;
}

/* Calls ask for as many threads as a block takes if they are alone. The kernel for several calls
 * takes fewer on GPUs: a rank that refused them would leave the others waiting. */
static void most_threads(const struct rank *r)
{
    symwin_collective_options options = {.size = sizeof options, .threads = 1024};
    symwin_collective_info info;
    int k;

    while (symwin_broadcast_query(r->comm, r->in, r->out, 1026, SYMWIN_U32, 0, &options, &info) !=
           SYMWIN_OK)
        options.threads -= 64;
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 2; k++)
        host_must(symwin_broadcast_with(r->comm, r->in, r->out, 1026, SYMWIN_U32, 0, &options,
                                        r->streams[0]),
                  "symwin_broadcast_with");
    host_must(symwin_group_end(), "a group with as many threads as a call alone takes");
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
}

/* Three all-gathers, from and to places of `r->out`; from 1000 on: of the same memory, mapped
 * again. The fence for two addresses is made only where calls have both. */
static const struct stages {
    const char *name;
    int from[3], to[3];
    uint32_t waits[3];
} stages[] = {
    {"apart", {0, 8, 16}, {24, 32, 40}, {0, 0, 0}},
    {"in a row", {0, 24, 32}, {24, 32, 40}, {0, SW_GROUP_WAITS, SW_GROUP_WAITS}},
    {"the last by another address", {0, 24, 1032}, {24, 32, 40}, {0, 1, SW_GROUP_WAITS_ALIAS}},
    {"the second by another address", {0, 1024, 32}, {24, 32, 40}, {0, SW_GROUP_WAITS_ALIAS, 1}},
    {"the last, of the first", {0, 24, 1024}, {24, 32, 40}, {0, SW_GROUP_WAITS_ALIAS, 0}},
};

static void fences(const struct rank *r)
{
    struct host_raw raw;
    unsigned char *other = host_map_again(r->device, r->out, &raw);
    symwin_window *window[2];
    size_t i;
    int k;

    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &window[0]), "register");
    host_must(symwin_window_register(r->comm, other, ROOM, 0, &window[1]), "register");
    for (i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        const struct stages *s = &stages[i];

        host_must(symwin_group_begin(), "symwin_group_begin");
        for (k = 0; k < 3; k++)
            host_must(symwin_allgather(r->comm,
                                       s->from[k] < 1000 ? r->out + s->from[k]
                                                         : other + s->from[k] - 1000,
                                       r->out + s->to[k], 8, SYMWIN_U8, r->streams[0]),
                      "symwin_allgather");
        host_must(symwin_group_end(), "symwin_group_end");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (k = 0; k < 3; k++)
            must_equal(waits[k], s->waits[k], s->name, k);
    }
    for (k = 0; k < 2; k++)
        host_must(symwin_window_deregister(r->comm, window[k]), "deregister");
    host_raw_free(&raw);
}

static void grids(const struct rank *r)
{
    const uint32_t before = job_launches(r);

    must_be(blocks_of(r, 0) > 1, "several blocks", r->rank);
    must_equal(blocks_of(r, 1), 1, "as many blocks as a call asks for", r->rank);
    must_equal(pair_blocks_of(r, 4, 4), 4, "as many as a send and a receive ask for", r->rank);
    must_equal(pair_blocks_of(r, 4, 2), 4, "as many as a send asks for", r->rank);
    must_equal(pair_blocks_of(r, 2, 4), 4, "as many as a receive asks for", r->rank);
    if (r->nranks > 1)
        most_threads(r);
    if (r->nranks > 1)
        return;
    plain_launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuLaunchKernelEx = note_launch;
    must_be(threads_of(r, 0, 0) > 32, "more threads than a warp", r->rank);
    must_be(threads_of(r, 32, 0) == 32, "as many as the first call asks for", r->rank);
    must_be(threads_of(r, 0, 32) == 32, "as many as the second one asks for", r->rank);
    must_be(threads_of(r, 36, 32) > 32 && threads_of(r, 32, 36) > 32,
            "as many as the one asks for that asks for more", r->rank);
    must_be(job_launches(r) - before == 2 + 5, "a launch for each group", r->rank);
    fences(r);
    sw_drv.cuLaunchKernelEx = plain_launch;
}

/* Rank p's word `i` of what it sends to rank `to`. */
static uint32_t word_for(int p, int to, int i)
{
    return (uint32_t)(p * 10000 + to * 100 + i);
}

static uint64_t exchanged(int from, int to)
{
    return (uint64_t)(1 + (from + 2 * to) % 3);
}

/* Collectives with parts, of which each uses what the one before it has written: what the call gets
 * is copied. All ranks get p + 1 words of rank p, then add theirs. */
static void parts_of_a_group(const struct rank *r)
{
    uint32_t *const in = (uint32_t *)(void *)r->in, *const swapped = in + 1024;
    uint32_t *const all = swapped + 1024, *const sums = all + 1024;
    const int n = r->nranks;
    uint64_t sent[8], received[8], gathered[8], places[8];
    symwin_parts from, to;
    int p, i, at;

    for (p = at = 0; p < n; p++) {
        places[p] = (uint64_t)at;
        sent[p] = exchanged(r->rank, p);
        received[p] = exchanged(p, r->rank);
        gathered[p] = (uint64_t)p + 1;
        for (i = 0; i < (int)sent[p]; i++)
            host_put_u32(r->device, (unsigned char *)(in + at++), word_for(r->rank, p, i));
    }
    host_must(symwin_group_begin(), "symwin_group_begin");
    from = (symwin_parts){.counts = sent, .displacements = places};
    to = (symwin_parts){.counts = received};
    host_must(symwin_alltoallv(r->comm, in, &from, swapped, &to, SYMWIN_U32, r->streams[0]),
              "symwin_alltoallv");
    from = to = (symwin_parts){.counts = gathered};
    host_must(symwin_allgatherv(r->comm, swapped, all, &from, SYMWIN_U32, r->streams[1]),
              "symwin_allgatherv");
    host_must(
        symwin_reduce_scatterv(r->comm, all, &to, sums, SYMWIN_U32, SYMWIN_SUM, r->streams[0]),
        "symwin_reduce_scatterv");
    memset(&from, 0xff, sizeof from);
    memset(&to, 0xff, sizeof to);
    memset(sent, 0xff, sizeof sent);
    memset(places, 0xff, sizeof places);
    memset(received, 0xff, sizeof received);
    memset(gathered, 0xff, sizeof gathered);
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    for (p = at = 0; p < n; p++)
        for (i = 0; i < (int)exchanged(p, r->rank); i++, at++) {
            must_be(host_get_u32(r->device, (unsigned char *)(swapped + at)) ==
                        word_for(p, r->rank, i),
                    "symwin_alltoallv in a group", r->rank);
            if (at <= r->rank)
                must_be(host_get_u32(r->device, (unsigned char *)(sums + at)) ==
                            (uint32_t)n * word_for(p, r->rank, i),
                        "its words, gathered and added", r->rank);
        }
}

/* ---- calls on one small memory, at random ---------------------------------------------------- */

enum { MEMORY = 600, CHANCES = 24, MOST_CALLS = 20 }; /* words; groups; calls of one */

static const struct shape allreduce = {
    .name = "allreduce", .collective = SYMWIN_ALLREDUCE, .reduces = 1};

/* A place of `words` words; of another rank it is elsewhere. */
static size_t place_of(uint32_t random, size_t words)
{
    return mix(random) % (MEMORY - words) * sizeof(uint32_t);
}

/* Call `k` of group `turn`, as rank `rank` of `n` makes it: its buffers, as offsets in one memory,
 * are equal or apart. */
static struct job any_call(unsigned turn, int k, int n, int rank)
{
    const uint32_t all = mix(turn * 8191u + (uint32_t)k * 131u + (uint32_t)n);
    uint32_t own = mix(all + (uint32_t)rank * 7919u);
    struct job j = {.is = all % (SHAPES + 2) < SHAPES ? &shapes[all % (SHAPES + 2)] : &allreduce,
                    .options = {.size = sizeof j.options, .algo = SYMWIN_ALGO_ONESHOT},
                    .type = SYMWIN_U32,
                    .op = all / 16 % 2 ? SYMWIN_SUM : SYMWIN_MAX,
                    .count = 1 + all / 32 % 20,
                    .root = (int)(all / 1024 % (uint32_t)n)};
    const struct rank r = {.nranks = n, .rank = rank};
    const size_t in = job_in_bytes(&r, &j), out = job_out_bytes(&r, &j);

    j.in = place_of(own, in / 4);
    j.out = place_of(own + 1, out / 4);
    if (own % 4 == 0 && j.is->in_each == j.is->out_each)
        j.out = j.in;
    else
        for (; j.in < j.out + out && j.out < j.in + in; own++)
            j.out = place_of(own + 2, out / 4);
    return j;
}

/* What the calls of all ranks leave in their memories. */
static void make_by_host(const struct job *jobs, int n, uint32_t memory[][MEMORY])
{
    static _Thread_local uint32_t before[8][MEMORY];
    const size_t bytes = job_bytes(&jobs[0]);
    const void *inputs[8];
    int r, q;

    memcpy(before, memory, (size_t)n * sizeof before[0]);
    for (r = 0; r < n; r++) {
        const struct shape *is = jobs[r].is;
        unsigned char *const out = (unsigned char *)memory[r] + jobs[r].out;

        if (!job_receives(&jobs[r], r))
            continue;
        for (q = 0; q < n; q++)
            inputs[q] = (unsigned char *)before[q] + jobs[q].in + (is->in_each ? r * bytes : 0);
        if (is->reduces)
            reference_allreduce(jobs[r].type, jobs[r].op, n, inputs, out, (size_t)jobs[r].count);
        for (q = 0; q < n && is->out_each; q++)
            memcpy(out + q * bytes, inputs[q], bytes);
        if (is->root_sends)
            memcpy(out, inputs[jobs[r].root], bytes);
    }
}

/* Groups of calls that read and write what others do, by one address or two. */
static void by_chance(struct processes *p, const struct rank *r, const symwin_window *window)
{
    static _Thread_local uint32_t memory[8][MEMORY], found[MEMORY];
    unsigned char *const one = r->out;
    void *two = NULL;
    struct job jobs[8];
    unsigned turn;
    int k, q, i;

    host_must(symwin_window_peer_pointer(r->comm, window, r->rank, 0, &two), "an address");
    for (turn = 0; turn < CHANCES; turn++) {
        const int calls = 2 + (int)(mix(turn) % (MOST_CALLS - 1));

        for (q = 0; q < r->nranks; q++)
            for (i = 0; i < MEMORY; i++)
                memory[q][i] = mix(turn * 31u + (uint32_t)(q * MEMORY + i));
        host_must(host_copy(r->device, one, memory[r->rank], sizeof found), "fill");
        processes_barrier(p);
        host_must(symwin_group_begin(), "symwin_group_begin");
        for (k = 0; k < calls; k++) {
            const uint32_t own = mix(turn * 97u + (uint32_t)(k * 8 + r->rank));
            unsigned char *const at = turn % 2 == 0 || own % 5 > 0 ? one : two;

            for (q = 0; q < r->nranks; q++)
                jobs[q] = any_call(turn, k, r->nranks, q);
            host_must(job_call_on(r, &jobs[r->rank], at + jobs[r->rank].in, at + jobs[r->rank].out,
                                  r->streams[own / 8 % 2]),
                      jobs[0].is->name);
            make_by_host(jobs, r->nranks, memory);
        }
        host_must(symwin_group_end(), "symwin_group_end");
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        host_must(host_copy(r->device, found, one, sizeof found), "read");
        must_be(memcmp(found, memory[r->rank], sizeof found) == 0,
                "calls of a group on one memory, one after another", r->rank);
        processes_barrier(p);
    }
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *window;

    open_rank(p, &r, WAIT_MS);
    in_and_outside_a_capture(&r);
    on_the_threads_own_stream(p, &r);
    parts_of_a_group(&r);
    grids(&r);
    host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &window), "register");
    by_other_addresses(p, &r, window);
    by_chance(p, &r, window);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "deregister");
    close_rank(p, &r);
}

int main(void)
{
    everywhere(body, 5);
    return tap_done();
}
