/* The all-gather: all bytes of any value reach every rank, and nothing else is written; from any
 * memory, in place or not, in graphs, and between all-reduces of the same communicator.
 * test_allgather_refused.c tests what fails. Also runs on GPUs (tests/gpu/both.txt). */
#include "gather.h"

#if defined(__SANITIZE_THREAD__)
enum { THIN = 5, ALTERNATIONS = 16, REPLAYS = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { THIN = 3, ALTERNATIONS = 48, REPLAYS = 5 };
#else
enum { THIN = 1, ALTERNATIONS = 48, REPLAYS = 5 };
#endif

/* ---- what is gathered ------------------------------------------------------------------------ */

/* Sizes around the kernel's limits: word, entry, round (of SLOT / 8 entries), and several
 * rounds. */
static void matrix(struct processes *p, struct rank *r)
{
    static const symwin_type types[] = {SYMWIN_U8, SYMWIN_BF16, SYMWIN_F32, SYMWIN_F64};
    static const uint64_t counts[] = {1, 2, 3, 7, 8, 9, 63, 64, 65, 128, 129, 1000};
    unsigned seed = 1;
    size_t t, c;
    int k;

    for (t = 0; t < 4; t++)
        for (c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (k = 0; k < 4; k++) {
                const size_t size = symwin_type_bytes(types[t]);
                const struct gather g = {.type = types[t],
                                         .count = counts[c],
                                         .in = GUARD + (k % 2 == 0 ? 0 : (1 + c) % 5 * size),
                                         .out = GUARD + (k < 2 ? 0 : (3 + c) % 7 * size),
                                         .in_place = k == 3,
                                         .seed = seed};

                if (seed++ % THIN == 0)
                    gather(r, &g, p);
            }
    must_be(symwin_allgather(r->comm, NULL, NULL, 0, SYMWIN_F32, r->streams[0]) == SYMWIN_OK,
            "no elements", r->rank);
}

/* A window changes nothing, nor does it that some ranks' buffers lie in one. */
static void in_windows(struct processes *p, struct rank *r)
{
    unsigned char *const plain[] = {r->in, r->out};
    symwin_window *windows[2];
    struct gather g = {SYMWIN_I32, 777, GUARD, GUARD, 0, 5};
    int i;

    r->in = host_alloc(r->device, ROOM);
    r->out = host_alloc(r->device, ROOM);
    host_must(symwin_window_register(r->comm, r->in, ROOM, 0, &windows[0]), "register");
    host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &windows[1]), "register");
    for (i = 0; i < 4; i++) {
        unsigned char *const in = r->in, *const out = r->out;

        if (i >= 2 && r->rank % 2 != 0) {
            r->in = plain[0];
            r->out = plain[1];
        }
        g.in_place = i % 2;
        g.seed = 5 + (unsigned)i;
        gather(r, &g, p);
        r->in = in;
        r->out = out;
    }
    host_must(symwin_window_deregister(r->comm, windows[0]), "deregister");
    host_must(symwin_window_deregister(r->comm, windows[1]), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(r->in), "symwin_mem_free");
    host_must(symwin_mem_free(r->out), "symwin_mem_free");
    r->in = plain[0];
    r->out = plain[1];
}

/* ---- what one rank knows alone ---- */

/* Where a rank's buffers lie, whether it works in place, and its grid are its own affair. */
static void each_its_own(struct processes *p, struct rank *r)
{
    unsigned seed = 500;
    int i;

    for (i = 0; i < 24; i++) {
        const uint32_t random = mix((uint32_t)(i * 16 + r->rank));
        const symwin_collective_options options = {.size = sizeof options,
                                                   .blocks = 1 + (int)(random % 3),
                                                   .threads = 1 + (int)(random / 4 % 40)};
        const struct gather g = {.type = SYMWIN_U8,
                                 .count = 1 + mix((uint32_t)i) % 1500,
                                 .in = GUARD + random / 1024 % 16,
                                 .out = GUARD + random / 16384 % 16,
                                 .in_place = random / 262144 % 2 != 0,
                                 .seed = seed + (unsigned)i};

        if (i % THIN != 0)
            continue;
        prepare(r, &g);
        processes_barrier(p);
        host_must(symwin_allgather_with(r->comm, input_of(r, &g), r->out + g.out, g.count, g.type,
                                        &options, r->streams[0]),
                  "symwin_allgather_with");
        wait_for(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        must_be(differences(r, &g) == 0, "ranks that have only the bytes in common", r->rank);
    }
}

/* Captured on this rank alone, and never launched. */
static void captured(const struct rank *r, const struct gather *g)
{
    CUgraph graph = NULL;
    struct sw_scope scope;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(call(r, g, 0), "a captured call");
    host_must_cuda(sw_drv.cuStreamEndCapture(r->streams[0], &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    sw_scope_leave(&scope);
}

/* A rank's part of the output may have its own window too, which the all-gather does not use. */
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
    host_must(symwin_stream_synchronize(r->device, r->streams[0]), "synchronize");
    for (peer = 0; peer < r->nranks; peer++) {
        host_must(host_copy(r->device, &last, out + (size_t)(peer + 1) * part - 1, 1), "copy");
        must_be(last == 0x50 + peer, "each part has arrived", r->rank);
    }
    host_must(symwin_window_deregister(r->comm, own), "deregister");
    host_must(symwin_window_deregister(r->comm, whole), "deregister");
    processes_barrier(p);
    host_must(symwin_mem_free(out), "symwin_mem_free");
}

/* Buffers are registered on one rank, which waits for nobody because of that, in a capture or not:
 * the others' buffers are not. */
static void registered(struct processes *p, struct rank *r)
{
    struct gather g = {SYMWIN_I64, 99, GUARD, GUARD, 0, 600};
    symwin_registration *in = NULL, *out = NULL;
    symwin_comm_info before, after;

    host_must(symwin_comm_query(r->comm, &before), "symwin_comm_query");
    if (r->rank == 0) {
        host_must(symwin_register(r->comm, r->in, ROOM, &in), "symwin_register");
        host_must(symwin_register(r->comm, r->out, ROOM, &out), "symwin_register");
    }
    gather(r, &g, p);
    g.in_place = 1;
    g.seed++;
    gather(r, &g, p);
    if (r->rank == 0)
        captured(r, &g);
    host_must(symwin_comm_query(r->comm, &after), "symwin_comm_query");
    must_be(after.windows == before.windows && after.allocations == before.allocations,
            "no window is made", r->rank);
    if (r->rank == 0) {
        host_must(symwin_deregister(r->comm, in), "symwin_deregister");
        host_must(symwin_deregister(r->comm, out), "symwin_deregister");
    }
}

/* ---- among all-reduces ----------------------------------------------------------------------- */

/* Calls in flight in two streams, with consecutive rounds and epochs. Every second one is an
 * all-reduce of one word with a known sum, by various algorithms. */
static void alternate(struct processes *p, struct rank *r)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT_PUSH,
                                        SYMWIN_ALGO_AUTO};
    const size_t pitch = ROOM / ALTERNATIONS / 64 * 64;
    struct gather g[ALTERNATIONS];
    uint32_t sums[ALTERNATIONS];
    int i;

    for (i = 0; i < ALTERNATIONS; i++) {
        const size_t most = (pitch - 2 * GUARD - 8) / (size_t)r->nranks;

        g[i] = (struct gather){.type = SYMWIN_U8,
                               .count = 1 + mix((unsigned)i) % (uint32_t)most,
                               .in = (size_t)i * pitch,
                               .out = (size_t)i * pitch + GUARD,
                               .seed = 100 + (unsigned)i};
        if (i % 2 == 0)
            prepare(r, &g[i]);
        else
            host_put_u32(r->device, r->in + g[i].in, (uint32_t)(r->rank + 1) * (uint32_t)i);
    }
    processes_barrier(p);
    for (i = 0; i < ALTERNATIONS; i++) {
        const symwin_allreduce_options options = {.size = sizeof options, .algo = algos[i / 2 % 3]};
        const int stream = (int)(mix((unsigned)i + 7) % 2);

        if (i % 2 == 0)
            host_must(call(r, &g[i], stream), "symwin_allgather");
        else
            host_must(symwin_allreduce_with(r->comm, r->in + g[i].in, r->out + g[i].out - GUARD, 1,
                                            SYMWIN_U32, SYMWIN_SUM, &options, r->streams[stream]),
                      "symwin_allreduce");
    }
    wait_for(r, 0);
    wait_for(r, 1);
    for (i = 0; i < ALTERNATIONS; i++) {
        if (i % 2 == 0) {
            must_be(differences(r, &g[i]) == 0, "an all-gather among all-reduces", r->rank);
            continue;
        }
        sums[i] = (uint32_t)(r->nranks * (r->nranks + 1) / 2 * i);
        must_be(host_get_u32(r->device, r->out + g[i].out - GUARD) == sums[i],
                "an all-reduce among all-gathers", r->rank);
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static CUgraphExec capture(const struct rank *r, const struct gather *g, const struct gather *h)
{
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(call(r, g, 0), "a captured call");
    host_must(symwin_allreduce(r->comm, r->in + ROOM / 2, r->in + ROOM / 2, 3, SYMWIN_I32,
                               SYMWIN_MAX, r->streams[0]),
              "a captured all-reduce");
    host_must(call(r, h, 0), "a captured call");
    return host_end_capture(r->streams[0], NULL);
}

/* Two calls with an all-reduce between them, replayed with other inputs. */
static void graphs(struct processes *p, struct rank *r)
{
    struct gather g = {SYMWIN_U8, 1001, GUARD + 3, GUARD + 5, 0, 0};
    struct gather h = {SYMWIN_F16, 77, GUARD, ROOM / 2 + GUARD, 1, 0};
    struct sw_scope scope;
    CUgraphExec exec;
    unsigned k;

    host_must(sw_scope_enter(r->device, &scope), "scope");
    exec = capture(r, &g, &h);
    processes_barrier(p);
    for (k = 0; k < REPLAYS; k++) {
        g.seed = 200 + k;
        h.seed = 300 + k;
        prepare(r, &g);
        prepare(r, &h);
        host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[0]), "cuGraphLaunch");
        wait_for(r, 0);
        must_be(differences(r, &g) == 0 && differences(r, &h) == 0, "a replay", r->rank);
        if (k == 2) {
            g.seed = 400;
            gather(r, &g, p);
        }
    }
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};

    open_rank(p, &r, WAIT_MS);
    matrix(p, &r);
    in_windows(p, &r);
    part_in_its_own_window(p, &r);
    each_its_own(p, &r);
    registered(p, &r);
    alternate(p, &r);
    graphs(p, &r);
    close_rank(p, &r);
}

int main(void)
{
    static const int counts[] = {1, 2, 3, 4, 5, 8};
    struct processes *p;
    size_t place, i;

    for (i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        tap_ok(places_run(&places_all[0], counts[i], body, NULL, &p), "%d ranks of a process",
               counts[i]);
        processes_free(p);
    }
    for (place = 1; place < places_count(); place++) {
        tap_ok(places_run(&places_all[place], 3, body, NULL, &p), "3 ranks, %s",
               places_all[place].name);
        processes_free(p);
    }
    return tap_done();
}
