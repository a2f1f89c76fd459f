/* All collectives against a plain reference: random types, counts, roots, alignments, places and
 * grids, by each algorithm; in windows and outside; in graphs; several under way, among all-reduces
 * of the same communicator. test_collectives_refused.c tests what fails. Also runs on GPUs
 * (tests/gpu/both.txt). */
#include "collectives.h"

#if defined(__SANITIZE_THREAD__)
enum { SWEEP = 28, FLIGHTS = 1, REPLAYS = 2, MOST_RANKS = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SWEEP = 28, FLIGHTS = 2, REPLAYS = 3, MOST_RANKS = 5 };
#else
enum { SWEEP = 250, FLIGHTS = 5, REPLAYS = 5, MOST_RANKS = 8 };
#endif
enum { IN_FLIGHT = 16, CAPTURED = SHAPES, TURNS = 20, PINNED = SWEEP / 8 };

/* ---- random calls ---------------------------------------------------------------------------- */

static symwin_algo algo_of(const struct shape *is, uint32_t random, int windows)
{
    const uint32_t which = random % (ALGOS + 2);

    if (which == ALGOS)
        return SYMWIN_ALGO_AUTO;
    if (which == ALGOS + 1 && is->shares != SYMWIN_ALGO_AUTO)
        return is->shares;
    return is->algos[!shape_is_over(is, windows) ? 0 : which % ALGOS];
}

/* Counts around words, entries and rounds, zero among them; in total at most `room` bytes. */
static uint64_t count_of(const struct rank *r, symwin_type type, uint32_t random, size_t room)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 16, 31, 63, 64, 65, 127, 128, 129, 500};
    const uint64_t most = room / symwin_type_bytes(type) / (uint64_t)r->nranks;
    const uint64_t count = random % 4 == 0 ? mix(random) % 2000 : counts[random / 4 % 16];

    return count < most ? count : most;
}

/* Call number `number`, equal on all ranks but for what a rank decides alone. `room`: bytes that it
 * has at offset `base` of both buffers. `windows`: which of these are in windows, or registered. */
static struct job job_with(const struct rank *r, const struct shape *is, symwin_algo algo,
                           unsigned number, size_t base, size_t room, int windows)
{
    const uint32_t all = mix(number * 2654435761u + 17);
    const uint32_t own = mix(all + (uint32_t)r->rank * 7919u + 1);
    const int alike = !is->any_offset || algo == SYMWIN_ALGO_COPIES;
    struct job j = {.is = is,
                    .options = {.size = sizeof j.options,
                                .algo = algo,
                                .blocks = own % 3 == 0 ? 1 + (int)(own / 3 % 3) : 0,
                                .threads = own % 5 == 0 ? 1 + (int)(own / 5 % 40) : 0},
                    .type = (symwin_type)(mix(all + 1) % 12),
                    .op = (symwin_op)(mix(all + 2) % 6),
                    .root = (int)(mix(all + 3) % (uint32_t)r->nranks),
                    .in_place = mix(own + 4) % 3 == 0,
                    .seed = number,
                    .scalars = number};
    const size_t element = symwin_type_bytes(j.type);

    j.count = count_of(r, j.type, mix(all + 6), room - 4 * GUARD);
    j.in = base + GUARD + mix(own + 7) % 9 * element;
    j.out = base + GUARD + mix(own + 8) % 9 * element;
    if (windows != 0 && alike) { /* the offset of what decides is equal */
        if (j.is->decides == IN)
            j.in = base + GUARD + mix(all + 7) % 9 * element;
        else
            j.out = base + GUARD + mix(all + 8) % 9 * element;
        j.in_place = mix((j.options.algo == SYMWIN_ALGO_ONESHOT ? own : all) + 4) % 3 == 0;
    }
    if (j.is->any_offset && (algo == SYMWIN_ALGO_COPIES || windows == j.is->decides))
        j.in_place = 0; /* the root's would lie in the other buffer */
    if ((algo == SYMWIN_ALGO_PUT || algo == SYMWIN_ALGO_COPIES) && j.is->in_each)
        j.in_place = 0;
    return j;
}

static struct job job_of(const struct rank *r, unsigned number, size_t base, size_t room,
                         int windows)
{
    const uint32_t all = mix(number * 2654435761u + 17);
    const struct shape *is = &shapes[all % SHAPES];

    return job_with(r, is, algo_of(is, mix(all + 5), windows), number, base, room, windows);
}

static void sweep(const struct rank *r, unsigned seed, unsigned count, int windows)
{
    unsigned i;

    for (i = 0; i < count; i++) {
        const struct job j = job_of(r, seed + i, 0, ROOM / 4, windows);

        job_run(r, &j);
    }
}

/* Buffers in pinned host memory, on some ranks or all: `windows` says which buffers are in windows,
 * and so in device memory. */
static void pinned(const struct rank *r, unsigned seed, unsigned count, int windows)
{
    const int next = (r->rank + 1) % r->nranks, before = (r->rank + r->nranks - 1) % r->nranks;
    struct rank on_host = *r;
    void *in = NULL, *out = NULL;
    struct sw_scope scope;
    unsigned i;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuMemHostAlloc(&in, ROOM, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    host_must_cuda(sw_drv.cuMemHostAlloc(&out, ROOM, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    for (i = 0; i < count; i++) {
        const int some = windows == 0 && r->rank == 0 ? (int)(mix(i) % 3) : 2;
        const struct job j = job_of(r, seed + i, 0, ROOM / 4, windows);

        on_host.in = (windows & IN) != 0 || some == 0 ? r->in : (unsigned char *)in;
        on_host.out = (windows & OUT) != 0 || some == 1 ? r->out : (unsigned char *)out;
        job_run(&on_host, &j);
    }
    if (windows == 0) {
        const symwin_collective_options times = {
            .size = sizeof times, .scalar = (float *)in + 32, .scalar_on_device = 1};

        ((float *)in)[32] = 0.5f;
        ((float *)in)[48] = 8;
        host_must(symwin_allreduce_with(r->comm, (float *)in + 48, (float *)out + 48, 1, SYMWIN_F32,
                                        SYMWIN_PREMUL_SUM, &times, r->streams[0]),
                  "an all-reduce with a scalar in pinned memory");
        job_wait(r, 0);
        must_be(((float *)out)[48] == 4 * (float)r->nranks, "its sum", r->rank);
        ((int *)in)[0] = r->rank;
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_allreduce(r->comm, in, out, 1, SYMWIN_I32, SYMWIN_SUM, r->streams[0]),
                  "an all-reduce");
        host_must(symwin_send(r->comm, in, 1, SYMWIN_I32, next, r->streams[0]), "a send");
        host_must(symwin_recv(r->comm, (int *)out + 16, 1, SYMWIN_I32, before, r->streams[0]),
                  "a receive");
        host_must(symwin_group_end(), "symwin_group_end");
        job_wait(r, 0);
        must_be(((int *)out)[0] == r->nranks * (r->nranks - 1) / 2 && ((int *)out)[16] == before,
                "a sum and a message in pinned memory", r->rank);
    }
    host_must_cuda(sw_drv.cuMemFreeHost(in), "cuMemFreeHost");
    host_must_cuda(sw_drv.cuMemFreeHost(out), "cuMemFreeHost");
    sw_scope_leave(&scope);
}

/* ---- several calls under way ----------------------------------------------------------------- */

/* In two streams; every third call is an all-reduce of one word. */
static void in_flight(const struct rank *r, int windows)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT_PUSH,
                                        SYMWIN_ALGO_AUTO};
    const size_t pitch = ROOM / IN_FLIGHT / 64 * 64;
    struct job jobs[IN_FLIGHT];
    int turn, i;

    for (turn = 0; turn < FLIGHTS; turn++) {
        for (i = 0; i < IN_FLIGHT; i++) {
            jobs[i] = job_of(r, 20000u + (unsigned)(turn * IN_FLIGHT + i), (size_t)i * pitch, pitch,
                             windows);
            if (i % 3 == 2)
                host_put_u32(r->device, r->in + (size_t)i * pitch, (uint32_t)(r->rank + i));
            else
                job_prepare(r, &jobs[i]);
        }
        for (i = 0; i < IN_FLIGHT; i++) {
            const int stream = (int)(mix((unsigned)(turn * 100 + i)) % 2);
            const symwin_allreduce_options options = {.size = sizeof options,
                                                      .algo = algos[i / 3 % 3]};

            if (i % 3 == 2)
                host_must(symwin_allreduce_with(r->comm, r->in + (size_t)i * pitch,
                                                r->out + (size_t)i * pitch, 1, SYMWIN_U32,
                                                SYMWIN_SUM, &options, r->streams[stream]),
                          "symwin_allreduce");
            else
                host_must(job_call(r, &jobs[i], stream), jobs[i].is->name);
        }
        host_must(symwin_barrier(r->comm, r->streams[turn % 2]), "symwin_barrier");
        job_wait(r, 0);
        job_wait(r, 1);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (i = 0; i < IN_FLIGHT; i++)
            if (i % 3 == 2)
                must_be(host_get_u32(r->device, r->out + (size_t)i * pitch) ==
                            (uint32_t)(r->nranks * (r->nranks - 1) / 2 + r->nranks * i),
                        "an all-reduce among others", r->rank);
            else
                must_be(job_is_right(r, &jobs[i]), jobs[i].is->name, r->rank);
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A graph of several calls, by an algorithm if they have it, replayed with other inputs and between
 * other calls. The ranks make no call while one uploads its graph, or destroys it: that may wait
 * for another rank's kernel (docs/hardware.md). */
static void graphs(struct processes *p, const struct rank *r, int windows, symwin_algo algo)
{
    const size_t pitch = ROOM / CAPTURED / 64 * 64;
    struct job jobs[CAPTURED];
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;
    int i;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    for (i = 0; i < CAPTURED; i++) {
        const struct shape *is = &shapes[i % SHAPES];

        jobs[i] = job_with(
            r, is, shape_has(is, algo) && shape_is_over(is, windows) ? algo : SYMWIN_ALGO_AUTO,
            30000u + (unsigned)i, (size_t)i * pitch, pitch, windows);
        jobs[i].op = is->reduces ? SYMWIN_PREMUL_SUM : jobs[i].op;
        host_must(job_call(r, &jobs[i], 0), "a captured call");
    }
    host_must(symwin_barrier(r->comm, r->streams[0]), "a captured barrier");
    exec = host_end_capture(r->streams[0], NULL);
    processes_barrier(p);
    for (k = 0; k < REPLAYS; k++) {
        for (i = 0; i < CAPTURED; i++) {
            jobs[i].seed = 40000u + k * 100 + (unsigned)i;
            job_prepare(r, &jobs[i]);
        }
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "a replay");
        for (i = 0; i < CAPTURED; i++)
            must_be(job_is_right(r, &jobs[i]), "a replay", r->rank);
        jobs[0].seed++;
        job_run(r, &jobs[0]);
    }
    processes_barrier(p);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
    processes_barrier(p);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Each algorithm over windows, of whole vectors, with the buffer that it needs in a window, and the
 * other one in a window or not. */
static void each_over_windows(const struct rank *r, int windows)
{
    int s, a, last;

    for (s = 0; s < SHAPES; s++)
        for (a = 1; a < ALGOS && shapes[s].algos[a] != SYMWIN_ALGO_AUTO; a++)
            for (last = 0; last < 4 && shape_is_over(&shapes[s], windows); last++) {
                const struct job j = {
                    .is = &shapes[s],
                    .options = {.size = sizeof j.options, .algo = shapes[s].algos[a]},
                    .type = SYMWIN_F32,
                    .op = last < 2 ? SYMWIN_SUM : SYMWIN_PREMUL_SUM,
                    .count = 512,
                    .root = last % 2 != 0 ? r->nranks - 1 : 0,
                    .in = GUARD,
                    .out = GUARD,
                    .seed = (unsigned)(s + last)};

                if (last < 2 || j.is->reduces)
                    job_run(r, &j);
            }
}

/* By copies, at the root in place and elsewhere at the root's offset. */
static void copies_in_place(const struct rank *r, const struct shape *is)
{
    struct job j = {.is = is,
                    .options = {.size = sizeof j.options, .algo = SYMWIN_ALGO_COPIES},
                    .type = SYMWIN_U8,
                    .count = 333,
                    .root = r->nranks / 2,
                    .in_place = 1,
                    .in = GUARD,
                    .out = GUARD,
                    .seed = 7};
    const size_t part = (size_t)j.root * job_bytes(&j);
    struct rank at = *r;

    if (r->rank != j.root && job_out_moves(&j)) {
        at.out = r->in;
        j.out += part;
    } else if (r->rank != j.root) {
        at.in = r->out;
        j.in += part;
    }
    job_run(&at, &j);
}

/* One block, whatever is asked for. */
static void what_copies_launch(const struct rank *r, const struct shape *is)
{
    const struct job j = {
        .is = is,
        .options = {.size = sizeof j.options, .algo = SYMWIN_ALGO_COPIES, .blocks = 4},
        .type = SYMWIN_F32,
        .count = 512,
        .in = GUARD,
        .out = GUARD};
    symwin_collective_info info = {.blocks = -1};

    host_must(job_query(r, &j, &info), is->name);
    must_be(info.algo == SYMWIN_ALGO_COPIES && info.blocks == 1 && info.threads <= 64,
            "what copies launch", r->rank);
}

static void by_copies(const struct rank *r)
{
    int s;

    for (s = 0; s < SHAPES; s++) {
        if (!shape_has(&shapes[s], SYMWIN_ALGO_COPIES))
            continue;
        what_copies_launch(r, &shapes[s]);
        if (shapes[s].any_offset)
            copies_in_place(r, &shapes[s]);
    }
}

static void in_windows(struct processes *p, struct rank *r)
{
    symwin_window *windows[2];

    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    each_over_windows(r, IN | OUT);
    sweep(r, 10000, SWEEP, IN | OUT);
    in_flight(r, IN | OUT);
    graphs(p, r, IN | OUT, SYMWIN_ALGO_AUTO);
    graphs(p, r, IN | OUT, SYMWIN_ALGO_COPIES);
    by_copies(r);
    host_must(symwin_window_deregister(r->comm, windows[0]), "deregister");
    each_over_windows(r, OUT);
    sweep(r, 11000, SWEEP / 4, OUT);
    pinned(r, 51000, PINNED / 2, OUT);
    host_must(symwin_window_deregister(r->comm, windows[1]), "deregister");
    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    each_over_windows(r, IN);
    sweep(r, 12000, SWEEP / 4, IN);
    pinned(r, 52000, PINNED / 2, IN);
    host_must(symwin_window_deregister(r->comm, windows[0]), "deregister");
    processes_barrier(p);
}

/* The same with registered buffers, in two ranges that each rank cuts elsewhere. */
static void register_both(const struct rank *r, unsigned turn, symwin_registration *of[4])
{
    unsigned char *const buffers[] = {r->in, r->out};
    int i;

    for (i = 0; i < 4; i++) {
        const size_t cut = 1 + mix(turn * 2 + (unsigned)(i / 2 + r->rank * 100)) % (ROOM - 1);

        host_must(symwin_register(r->comm, buffers[i / 2] + (i % 2 == 0 ? 0 : cut),
                                  i % 2 == 0 ? cut : ROOM - cut, &of[i]),
                  "symwin_register");
    }
}

static void on_registered(struct processes *p, struct rank *r)
{
    const int both = IN | OUT | REGISTERED;
    symwin_registration *of[4];
    unsigned turn;
    int i;

    for (turn = 0; turn < 5; turn++) {
        register_both(r, turn, of);
        if (turn == 0)
            each_over_windows(r, both);
        if (turn == 1)
            in_flight(r, both);
        if (turn == 2)
            graphs(p, r, both, SYMWIN_ALGO_AUTO);
        if (turn == 3)
            graphs(p, r, both, SYMWIN_ALGO_COPIES);
        sweep(r, 13000 + turn * 1000, SWEEP / 8, both);
        for (i = 0; i < 4; i++) /* the peers' calls may not have completed */
            host_must(symwin_deregister(r->comm, of[i]), "symwin_deregister");
    }
    processes_barrier(p);
}

/* ---- where the buffers lie ------------------------------------------------------------------- */

static struct job small_job(int shape, symwin_algo algo, unsigned seed)
{
    return (struct job){.is = &shapes[shape],
                        .options = {.size = sizeof(symwin_collective_options), .algo = algo},
                        .type = SYMWIN_I32,
                        .count = 77,
                        .in = GUARD,
                        .out = GUARD,
                        .in_place = (int)seed % 2,
                        .seed = seed};
}

/* A push needs no window: those that some ranks' buffers lie in change nothing. */
static void in_some_windows(struct processes *p, struct rank *r)
{
    unsigned char *const plain[] = {r->in, r->out};
    symwin_window *windows[2];
    unsigned i;

    r->in = host_alloc(r->device, ROOM);
    r->out = host_alloc(r->device, ROOM);
    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    for (i = 0; i < 2 * SHAPES; i++) {
        const struct job j = small_job((int)i / 2, SYMWIN_ALGO_ONESHOT, i);
        const struct rank mixed = {r->nranks,
                                   r->rank,
                                   r->device,
                                   r->comm,
                                   {r->streams[0]},
                                   r->rank % 2 == 0 ? r->in : plain[0],
                                   r->rank % 3 == 0 ? r->out : plain[1],
                                   r->host,
                                   r->want,
                                   r->scalars,
                                   r->flags,
                                   r->max_blocks};

        job_run(&mixed, &j);
    }
    processes_barrier(p);
    for (i = 0; i < 2; i++)
        host_must(symwin_window_deregister(r->comm, windows[i]), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(r->in), "symwin_mem_free");
    host_must(symwin_mem_free(r->out), "symwin_mem_free");
    r->in = plain[0];
    r->out = plain[1];
}

/* A rank's part of the output may have its own window too, which an all-gather in place does not
 * use. */
static void part_in_its_own_window(struct processes *p, struct rank *r)
{
    const size_t part = 2 << 20;
    unsigned char *const out = host_alloc(r->device, part * (size_t)r->nranks);
    unsigned char *const in = out + (size_t)r->rank * part;
    const unsigned char mine = (unsigned char)(0x50 + r->rank);
    symwin_window *whole = NULL, *own = NULL;
    unsigned char last = 0;
    int peer;

    host_must(symwin_window_register(r->comm, out, part * (size_t)r->nranks, 0, &whole), "whole");
    host_must(symwin_window_register(r->comm, in, part, 0, &own), "own");
    host_must(host_copy(r->device, in + part - 1, &mine, 1), "copy");
    processes_barrier(p);
    host_must(symwin_allgather(r->comm, in, out, part, SYMWIN_U8, r->streams[0]), "in place");
    job_wait(r, 0);
    for (peer = 0; peer < r->nranks; peer++) {
        host_must(host_copy(r->device, &last, out + (size_t)(peer + 1) * part - 1, 1), "copy");
        must_be(last == 0x50 + peer, "each part has arrived", r->rank);
    }
    host_must(symwin_window_deregister(r->comm, own), "deregister");
    host_must(symwin_window_deregister(r->comm, whole), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(out), "symwin_mem_free");
}

/* Captured on this rank alone, and never launched. */
static void captured(const struct rank *r, const struct job *j)
{
    CUgraph graph = NULL;
    struct sw_scope scope;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(job_call(r, j, 0), "a captured call");
    host_must_cuda(sw_drv.cuStreamEndCapture(r->streams[0], &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    sw_scope_leave(&scope);
}

/* Buffers are registered on one rank. In calls that go by pushes it waits for nobody because of
 * that, in a capture or not: the others' buffers are not. */
static void registered(const struct rank *r)
{
    symwin_registration *in = NULL, *out = NULL;
    symwin_comm_info before, after;
    unsigned i;

    host_must(symwin_comm_query(r->comm, &before), "symwin_comm_query");
    if (r->rank == 0) {
        host_must(symwin_register(r->comm, r->in, ROOM, &in), "symwin_register");
        host_must(symwin_register(r->comm, r->out, ROOM, &out), "symwin_register");
    }
    for (i = 0; i < 2 * SHAPES; i++) {
        const struct job j = small_job((int)i / 2, SYMWIN_ALGO_AUTO, i);

        job_run(r, &j);
        if (r->rank == 0)
            captured(r, &j);
    }
    host_must(symwin_comm_query(r->comm, &after), "symwin_comm_query");
    must_be(after.windows == before.windows && after.allocations == before.allocations,
            "no window is made", r->rank);
    if (r->rank == 0) {
        host_must(symwin_deregister(r->comm, in), "symwin_deregister");
        host_must(symwin_deregister(r->comm, out), "symwin_deregister");
    }
}

/* ---- the barrier ----------------------------------------------------------------------------- */

/* What ranks have written to the next rank's memory before a barrier is there after it, whichever
 * rank is late. */
static void barriers(struct processes *p, const struct rank *r)
{
    const int next = (r->rank + 1) % r->nranks;
    symwin_collective_info info = {.blocks = -1};
    symwin_window *window;
    void *to = NULL;
    uint32_t turn, got = 0;

    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &window), "register");
    host_must(symwin_window_peer_pointer(r->comm, window, next, 0, &to), "peer pointer");
    host_must(symwin_barrier_query(r->comm, NULL, &info), "symwin_barrier_query");
    must_be(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks == 1, "what a barrier is", r->rank);
    for (turn = 1; turn <= TURNS; turn++) {
        const symwin_collective_options options = {
            .size = sizeof options, .blocks = 1 + (int)(turn % 3), .threads = 1 + r->rank * 5};

        host_put_u32(r->device, r->in, turn);
        if ((int)turn % r->nranks == r->rank)
            host_pause_ms(3);
        host_must(symwin_memcpy(r->device, to, r->in, 4, r->streams[0]), "copy to the next rank");
        host_must(symwin_barrier_with(r->comm, &options, r->streams[0]), "symwin_barrier");
        host_must(symwin_memcpy(r->device, &got, r->out, 4, r->streams[0]), "copy from here");
        job_wait(r, 0);
        must_be(got == turn, "a barrier", r->rank);
        host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
    }
    job_wait(r, 0);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, window), "deregister");
    processes_barrier(p);
}

/* ---- the bits of sums ------------------------------------------------------------------------ */

/* Results of reduce-scatter and reduce have the all-reduce's bits, whatever the inputs. */
static void same_bits(const struct rank *r)
{
    const symwin_collective_options sentinel = {.size = sizeof sentinel,
                                                .algo = SYMWIN_ALGO_ONESHOT_SENTINEL};
    const uint64_t count = 100, all = count * (uint64_t)r->nranks;
    int t, op, root;

    for (t = 0; t < 12; t++)
        for (op = 0; op < 5; op++) {
            const symwin_type type = (symwin_type)t;
            const size_t bytes = (size_t)count * symwin_type_bytes(type);

            root = (t + op) % r->nranks;
            reference_fill_wild(type, (uint64_t)(t * 5 + op), r->rank, 0, (size_t)all, r->host);
            host_must(host_copy(r->device, r->in, r->host, bytes * (size_t)r->nranks), "fill");
            host_must(symwin_allreduce_with(r->comm, r->in, r->out, all, type, (symwin_op)op,
                                            &sentinel, r->streams[0]),
                      "symwin_allreduce_with");
            job_wait(r, 0);
            host_must(host_copy(r->device, r->want, r->out, bytes * (size_t)r->nranks), "read");
            host_must(symwin_reduce_scatter(r->comm, r->in, r->out, count, type, (symwin_op)op,
                                            r->streams[0]),
                      "symwin_reduce_scatter");
            job_wait(r, 0);
            host_must(host_copy(r->device, r->host, r->out, bytes), "read");
            must_be(memcmp(r->host, r->want + (size_t)r->rank * bytes, bytes) == 0,
                    "the bits of a reduce-scatter", r->rank);
            host_must(symwin_reduce(r->comm, r->in, r->out, all, type, (symwin_op)op, root,
                                    r->streams[0]),
                      "symwin_reduce");
            job_wait(r, 0);
            host_must(host_copy(r->device, r->host, r->out, bytes * (size_t)r->nranks), "read");
            must_be(r->rank != root || memcmp(r->host, r->want, bytes * (size_t)r->nranks) == 0,
                    "the bits of a reduce", r->rank);
        }
}

/* A scalar in host memory is read by the call, though the group launches it later. */
static void scalar_in_group(const struct rank *r)
{
    uint32_t scalar = (uint32_t)r->rank + 2, want = 0;
    const symwin_collective_options options = {.size = sizeof options, .scalar = &scalar};
    int p;

    for (p = 0; p < r->nranks; p++)
        want += ((uint32_t)p + 2) * ((uint32_t)p + 100);
    host_put_u32(r->device, r->in, (uint32_t)r->rank + 100);
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_allreduce_with(r->comm, r->in, r->out, 1, SYMWIN_U32, SYMWIN_PREMUL_SUM,
                                    &options, r->streams[0]),
              "symwin_allreduce_with");
    scalar = 0;
    host_must(symwin_group_end(), "symwin_group_end");
    job_wait(r, 0);
    must_be(host_get_u32(r->device, r->out) == want, "a scalar in a group", r->rank);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

/* A query says what a call would launch. */
static void queries(const struct rank *r)
{
    int i;

    for (i = 0; i < SHAPES; i++) {
        const struct job j = {.is = &shapes[i],
                              .options = {.size = sizeof j.options, .blocks = 1, .threads = 32},
                              .type = SYMWIN_F32,
                              .count = 100,
                              .in = GUARD,
                              .out = GUARD};
        symwin_collective_info info = {.blocks = -1};

        host_must(job_query(r, &j, &info), j.is->name);
        must_be(info.algo == j.is->algos[0] && info.blocks == 1 && info.threads == 32, "a query",
                r->rank);
    }
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, WAIT_MS);
    queries(&r);
    same_bits(&r);
    scalar_in_group(&r);
    barriers(p, &r);
    sweep(&r, 0, SWEEP, 0);
    pinned(&r, 50000, PINNED, 0);
    in_flight(&r, 0);
    graphs(p, &r, 0, SYMWIN_ALGO_AUTO);
    in_windows(p, &r);
    on_registered(p, &r);
    if (r.nranks == 3) {
        in_some_windows(p, &r);
        part_in_its_own_window(p, &r);
        registered(&r);
    }
    close_rank(p, &r);
}

/* ---- multicast ------------------------------------------------------------------------------- */

/* By multicast, if it reduces the type by the operation. */
static void cast(const struct rank *r, const struct shape *is, unsigned number, int windows)
{
    const struct job j = job_with(r, is, is->multicast, number, 0, ROOM / 4, windows);
    symwin_collective_info info;

    if (j.count == 0 || job_query(r, &j, &info) == SYMWIN_OK)
        job_run(r, &j);
    else
        must_be(host_error_has("multicast cannot reduce"), is->name, r->rank);
}

static void multicast_body(struct processes *p, int rank)
{
    static const int which[] = {IN | OUT, IN, OUT};
    struct rank r = {.nranks = p->count,
                     .rank = rank,
                     .device = rank % harness_device_count(),
                     .flags = SYMWIN_COMM_MULTICAST};
    symwin_window *windows[2];
    unsigned i, w;
    int s;

    if (skips_multicast(p, rank))
        return;
    open_rank(p, &r, WAIT_MS);
    for (w = 0; w < 3; w++) {
        if ((which[w] & IN) != 0)
            host_must(
                symwin_window_register(r.comm, r.in, ROOM, SYMWIN_WINDOW_MULTICAST, &windows[0]),
                "register");
        if ((which[w] & OUT) != 0)
            host_must(
                symwin_window_register(r.comm, r.out, ROOM, SYMWIN_WINDOW_MULTICAST, &windows[1]),
                "register");
        for (s = 0; s < SHAPES; s++) {
            if (shapes[s].multicast == SYMWIN_ALGO_AUTO || (which[w] & shapes[s].decides) == 0)
                continue;
            for (i = 0; i < SWEEP / 8; i++)
                cast(&r, &shapes[s], 50000u + w * 1000 + i, which[w]);
        }
        if ((which[w] & IN) != 0)
            host_must(symwin_window_deregister(r.comm, windows[0]), "deregister");
        if ((which[w] & OUT) != 0)
            host_must(symwin_window_deregister(r.comm, windows[1]), "deregister");
    }
    close_rank(p, &r);
}

int main(void)
{
    struct processes *p;
    int nranks, right;
    size_t i;

    everywhere(body, MOST_RANKS);
    setenv("SYMWIN_EMU_ALIAS", "1", 1); /* kernels without alias fences are killed */
    for (nranks = 2; nranks <= 4; nranks++) {
        right = places_run(&places_all[0], nranks, multicast_body, NULL, &p);
        tap_ok(right, "multicast, %d ranks%s", nranks, p->rank[0].text);
        processes_free(p);
    }
    for (i = 1; i < places_count(); i++) {
        right = places_run(&places_all[i], 3, multicast_body, NULL, &p);
        tap_ok(right, "multicast, %s%s", places_all[i].name, p->rank[0].text);
        processes_free(p);
    }
    return tap_done();
}
