/* What only one rank knows must not decide anything: driver callbacks that come late on some ranks
 * or all; ranges that each rank splits in its own way; neighbours in one page; memory that is freed
 * and replaced. And no window is unmapped while a call uses it. */
#include "emu/emu.h"
#include "user_memory.h"

enum { MOST_RANKS = 4 };

/* ---- late driver callbacks ---- */

struct late_case {
    const char *name;
    int late[2]; /* callbacks are late on ranks late[0] to late[1] - 1 */
};

static int is_late(const struct late_case *c, int rank)
{
    return rank >= c->late[0] && rank < c->late[1];
}

static void set_late(const struct member *m, const struct late_case *c)
{
    sw_emu_callbacks_late(m->device, is_late(c, m->rank));
}

static void come(const struct member *m)
{
    sw_emu_callbacks_late(m->device, 0);
    sw_emu_callbacks_come(m->device, 0, 1);
}

static void destroy(CUgraph graph, CUgraphExec exec)
{
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
}

/* Captures the same buffers again after the first graph is gone. */
static void recapture(struct harness_team *team, int rank, void *arg)
{
    const struct late_case *c = arg;
    unsigned char *in, *out;
    CUgraphExec exec;
    CUgraph graph;
    struct member m;
    int i;

    open_member(&m, team, rank, 0, SHORT_MS);
    set_late(&m, c);
    in = host_alloc(m.device, BYTES);
    out = host_alloc(m.device, BYTES);
    for (i = 0; i < 3; i++) {
        exec = capture(&m, in, out, &graph);
        replay(&m, c->name, exec, in, out, (float)i);
        harness_barrier(team);
        destroy(graph, exec);
        expect_sum(&m, "a call outside", in, out, (float)i + 10);
    }
    harness_barrier(team);
    if (is_late(c, rank))
        host_expect("free before the driver has called back", symwin_mem_free(in), SYMWIN_BUSY,
                    "deregister");
    harness_barrier(team);
    meet(&m);
    TAP_EQ("what graphs hold on any rank is mapped", allocations(&m) > 0, c->late[1] > c->late[0]);
    come(&m);
    expect_free("and afterwards", in);
    expect_free("the output too", out);
    meet(&m);
    TAP_EQ("nothing is mapped any more", allocations(&m), 0);
    close_member(&m);
}

/* A message size for which calls on windows use another algorithm. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MANY = 1 << 20 };
#else
enum { MANY = 4 << 20 };
#endif

static void eager_after(struct harness_team *team, int rank, void *arg)
{
    const struct late_case *c = arg;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    symwin_status status;
    struct member m;
    unsigned char *in, *out;

    open_member(&m, team, rank, 0, SHORT_MS);
    set_late(&m, c);
    in = host_alloc(m.device, (size_t)4 * MANY);
    out = host_alloc(m.device, (size_t)4 * MANY);
    host_must_cuda(sw_drv.cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_allreduce(m.comm, in, out, MANY, SYMWIN_F32, SYMWIN_SUM, m.stream),
              "a captured call");
    host_must_cuda(sw_drv.cuStreamEndCapture(m.stream, &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    harness_barrier(team);
    destroy(graph, exec);
    harness_barrier(team);
    status = symwin_allreduce(m.comm, in, out, MANY, SYMWIN_F32, SYMWIN_SUM, m.stream);
    host_expect("a call after the graph", status, SYMWIN_OK, "");
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    host_expect("on all ranks the same one", symwin_comm_check(m.comm), SYMWIN_OK, "");
    harness_barrier(team);
    come(&m);
    expect_free("free", in);
    expect_free("free", out);
    close_member(&m);
}

/* ---- a call in flight ---- */

/* A call on registered buffers waits on the device while its buffers are deregistered and the ranks
 * agree. Nothing may be unmapped before the call has ended, however many blocks were counted since
 * the last agreement. Here cuMemUnmap does not wait, so a kernel that still uses the memory
 * faults. */
static void in_flight(struct harness_team *team, int rank, void *arg)
{
    const uint32_t *blocks = arg;
    static CUdeviceptr gates[MOST_RANKS];
    symwin_registration *registrations[2];
    unsigned char *in, *out, *other;
    _Atomic uint32_t *gate = NULL;
    void *pinned = NULL;
    struct member m;
    char text[256];
    int before, i;

    open_member(&m, team, rank, 0, 20000);
    host_must_cuda(
        sw_drv.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
    gate = pinned;
    atomic_store(gate, 0);
    host_must_cuda(sw_drv.cuMemHostGetDevicePointer(&gates[rank], pinned, 0), "a device's pointer");
    in = host_alloc(m.device, GRANULE);
    out = host_alloc(m.device, GRANULE);
    other = host_alloc(m.device, BYTES);
    before = allocations(&m);
    registrations[0] = enter(&m, in, GRANULE);
    registrations[1] = enter(&m, out, GRANULE);
    expect_sum(&m, "connected", in, out, 1);
    tap_ok(is_connected(&m, in, out), "by windows");
    host_count_on(m.comm, *blocks);
    put(&m, in, 2);
    harness_barrier(team);
    if (rank == team->nranks - 1) /* this rank is late on the device */
        host_must_cuda(
            sw_drv.cuStreamWaitValue32(m.stream, gates[rank], 1, CU_STREAM_WAIT_VALUE_GEQ),
            "cuStreamWaitValue32");
    host_must(reduce_in_windows(&m, in, out), "a call under way");
    leave(&m, registrations[0]);
    leave(&m, registrations[1]);
    for (i = 0; i < 5; i++) {
        symwin_registration *r = enter(&m, other, BYTES);

        host_must(reduce(&m, other, other), "a meeting");
        leave(&m, r);
        (void)symwin_mem_free(other + 1);
    }
    harness_barrier(team);
    tap_ok(allocations(&m) > before + 1, "what the call uses is mapped still");
    harness_barrier(team);
    atomic_store(gate, 1);
    tap_ok(is_sum(&m, out, 2), "the sum of the call that was under way");
    harness_barrier(team);
    tap_ok(sw_emu_last_fault(text, sizeof text) == 0, "no kernel has missed memory");
    host_must(symwin_mem_free(other), "free");
    host_must(symwin_mem_free(in), "free");
    host_must(symwin_mem_free(out), "free");
    meet(&m);
    TAP_EQ("nothing is mapped when it has ended", allocations(&m), before);
    harness_barrier(team);
    host_must_cuda(sw_drv.cuMemFreeHost(pinned), "cuMemFreeHost");
    close_member(&m);
}

/* A graph's connection is over while a call that may use it is still in flight. The next graph must
 * not hold that connection. */
static void over_and_captured(struct harness_team *team, int rank, void *arg)
{
    static CUdeviceptr gates[MOST_RANKS];
    unsigned char *in, *other;
    CUgraphExec exec;
    CUgraph graph;
    void *pinned = NULL;
    struct member m, captures;

    (void)arg;
    open_member(&m, team, rank, 0, 20000);
    captures = m;
    host_must(symwin_stream_create(m.device, &captures.stream), "symwin_stream_create");
    host_must_cuda(
        sw_drv.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
    atomic_store((_Atomic uint32_t *)pinned, 0);
    host_must_cuda(sw_drv.cuMemHostGetDevicePointer(&gates[rank], pinned, 0), "a device's pointer");
    in = host_alloc(m.device, GRANULE);
    other = host_alloc(m.device, BYTES);
    exec = capture(&captures, in, in + BYTES, &graph);
    put(&m, other, 1);
    harness_barrier(team);
    destroy(graph, exec);
    host_must_cuda(sw_drv.cuStreamWaitValue32(m.stream, gates[rank], 1, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
    host_must(reduce(&m, other, other), "a call under way");
    exec = capture(&captures, in, in + BYTES, &graph);
    atomic_store((_Atomic uint32_t *)pinned, 1);
    tap_ok(is_sum(&m, other, 1), "the call that was under way");
    meet(&m);
    tap_ok(allocations(&m) > 0, "what the second graph holds is mapped");
    replay(&captures, "a graph after one that is over", exec, in, in + BYTES, 2);
    harness_barrier(team);
    destroy(graph, exec);
    host_must_cuda(sw_drv.cuMemFreeHost(pinned), "cuMemFreeHost");
    expect_free("free", in);
    host_must(symwin_mem_free(other), "free");
    host_must(symwin_stream_destroy(m.device, captures.stream), "symwin_stream_destroy");
    close_member(&m);
}

/* ---- ranges that each rank splits in its own way ---- */

struct cut {
    int first, end; /* in blocks of BYTES */
};

/* What all ranks do in a step: register, deregister or reduce buffers. Even and odd ranks have
 * different cuts. */
struct step {
    enum { STOP, ENTER, LEAVE, REDUCE, SETTLED /* reduce without an agreement */ } what;
    /* [0]: even ranks, [1]: odd ranks. REDUCE: the first two are in and out */
    struct cut cuts[2][3];
};

static const struct step cut_steps[][14] = {
    /* one range over everything, against two halves */
    {{ENTER, {{{0, 8}}, {{0, 4}, {4, 8}}}},
     {REDUCE, {{{0, 1}, {1, 2}}, {{0, 1}, {1, 2}}}},
     {SETTLED, {{{3, 5}, {5, 7}}, {{3, 5}, {5, 7}}}},
     {SETTLED, {{{7, 8}, {7, 8}}, {{7, 8}, {7, 8}}}},
     {LEAVE, {{{0, 8}}, {{4, 8}, {0, 4}}}},
     {ENTER, {{{0, 5}, {4, 8}}, {{0, 8}}}},
     {REDUCE, {{{4, 5}, {4, 5}}, {{4, 5}, {4, 5}}}},
     {SETTLED, {{{0, 1}, {6, 7}}, {{0, 1}, {6, 7}}}}},
    /* some ranks have registered more around the buffers than others */
    {{ENTER, {{{0, 8}}, {{0, 1}, {4, 5}}}},
     {REDUCE, {{{0, 1}, {0, 1}}, {{0, 1}, {0, 1}}}},
     {REDUCE, {{{4, 5}, {4, 5}}, {{4, 5}, {4, 5}}}},
     {SETTLED, {{{0, 1}, {4, 5}}, {{0, 1}, {4, 5}}}},
     {ENTER, {{{1, 3}}, {{1, 2}, {2, 3}}}},
     {REDUCE, {{{2, 3}, {2, 3}}, {{2, 3}, {2, 3}}}},
     {LEAVE, {{{0, 8}}, {{0, 1}, {4, 5}}}},
     {SETTLED, {{{1, 2}, {2, 3}}, {{1, 2}, {2, 3}}}}},
    /* overlapping ranges of which one stays: its bytes are served without interruption */
    {{ENTER, {{{0, 6}, {2, 8}}, {{0, 8}}}},
     {REDUCE, {{{2, 3}, {2, 3}}, {{2, 3}, {2, 3}}}},
     {ENTER, {{{2, 4}}, {{2, 4}}}},
     {LEAVE, {{{0, 6}, {2, 8}}, {{0, 8}}}},
     {SETTLED, {{{2, 3}, {3, 4}}, {{2, 3}, {3, 4}}}}},
    /* what was deregistered meanwhile is connected again, the rest is not */
    {{ENTER, {{{0, 2}, {2, 4}, {4, 8}}, {{0, 2}, {2, 3}, {3, 8}}}},
     {REDUCE, {{{0, 1}, {1, 2}}, {{0, 1}, {1, 2}}}},
     {LEAVE, {{{0, 2}}, {{0, 2}}}},
     {ENTER, {{{0, 2}}, {{0, 1}, {1, 2}}}},
     {SETTLED, {{{2, 3}, {5, 6}}, {{2, 3}, {5, 6}}}},
     {REDUCE, {{{0, 1}, {3, 4}}, {{0, 1}, {3, 4}}}},
     {SETTLED, {{{1, 2}, {6, 7}}, {{1, 2}, {6, 7}}}}},
    /* the buffer's offset differs between ranks: refused as a whole, and nobody asks again */
    {{ENTER, {{{0, 8}}, {{0, 8}}}},
     {REDUCE, {{{0, 1}, {2, 3}}, {{1, 2}, {4, 5}}}},
     {SETTLED, {{{5, 6}, {7, 8}}, {{0, 1}, {2, 3}}}},
     {SETTLED, {{{3, 4}, {3, 4}}, {{7, 8}, {7, 8}}}}},
};

struct cuts_case {
    const struct step *steps;
    int plain; /* the odd ranks' memory cannot be shared */
};

static void cuts(struct harness_team *team, int rank, void *arg)
{
    const struct cuts_case *c = arg;
    const int odd = rank % 2;
    symwin_registration *of[9][9] = {{NULL}};
    CUdeviceptr plain = 0;
    struct member m;
    unsigned char *own;
    int s, i;

    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, 8 * BYTES);
    host_must_cuda(sw_drv.cuMemAlloc(&plain, 8 * BYTES), "cuMemAlloc");
    if (c->plain && odd) {
        host_must(symwin_mem_free(own), "free");
        own = (unsigned char *)(uintptr_t)plain;
    }
    for (s = 0; c->steps[s].what != STOP; s++) {
        const struct cut *cut = c->steps[s].cuts[odd];
        const uint64_t sequence = m.comm->sequence;
        char name[64];

        for (i = 0; i < 3 && c->steps[s].what < REDUCE && cut[i].end > 0; i++) {
            symwin_registration **r = &of[cut[i].first][cut[i].end];

            if (c->steps[s].what == ENTER)
                *r = enter(&m, own + cut[i].first * BYTES,
                           (size_t)(cut[i].end - cut[i].first) * BYTES);
            else
                leave(&m, *r);
        }
        if (c->steps[s].what < REDUCE)
            continue;
        snprintf(name, sizeof name, "step %d%s", s, c->plain ? ", memory of two kinds" : "");
        harness_barrier(team);
        expect_sum(&m, name, own + cut[0].first * BYTES, own + cut[1].first * BYTES, (float)s);
        tap_ok((m.comm->sequence == sequence) == (c->steps[s].what == SETTLED),
               "%s: ranks meet where they have to", name);
    }
    harness_barrier(team);
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    close_member(&m);
    if (!c->plain || !odd)
        host_must(symwin_mem_free(own), "free");
}

/* A buffer that nobody registered. On one rank it shares a page with a registered buffer. */
static void one_page(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    unsigned char *own, *buffer;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    own = host_alloc(m.device, 8 * BYTES);
    enter(&m, own, 1024);
    buffer = own + (rank == 0 ? 2048 : BYTES);
    expect_sum(&m, "a buffer that nobody registered", buffer, buffer, 1);
    harness_barrier(team);
    close_member(&m);
    host_must(symwin_mem_free(own), "free");
}

/* ---- memory that is replaced ---- */

/* All ranks deregister, free, allocate and register again. One of them gets another allocation. */
static void allocated_anew(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *r;
    struct member m;
    void *memory, *spare = NULL;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    memory = host_alloc(m.device, GRANULE);
    for (i = 0; i < 4; i++) {
        r = enter(&m, memory, GRANULE);
        expect_sum(&m, "registered anew", memory, memory, (float)i);
        tap_ok(is_connected(&m, memory, memory), "it connects");
        expect_sum(&m, "and again", memory, memory, (float)i + 1);
        harness_barrier(team);
        leave(&m, r);
        host_expect("what nobody has registered is free", symwin_mem_free(memory), SYMWIN_OK, "");
        if (rank == i % team->nranks) {
            host_must(symwin_mem_free(spare), "free");
            spare = host_alloc(m.device, GRANULE); /* takes the memory of the buffer */
        }
        memory = host_alloc(m.device, GRANULE);
    }
    close_member(&m);
    host_must(symwin_mem_free(memory), "free");
    host_must(symwin_mem_free(spare), "free");
}

/* One rank alone gives up a range. The others must not wait for ever. */
static void left_alone(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *r;
    symwin_status status;
    struct member m;
    void *memory;

    (void)arg;
    open_member(&m, team, rank, 0, SHORT_MS);
    memory = host_alloc(m.device, GRANULE);
    r = enter(&m, memory, GRANULE);
    expect_sum(&m, "registered on all", memory, memory, 1);
    harness_barrier(team);
    if (rank == 0) {
        leave(&m, r);
        enter(&m, memory, GRANULE);
    }
    status = reduce(&m, memory, memory);
    host_must(symwin_stream_synchronize(m.device, m.stream), "synchronize");
    if (status == SYMWIN_OK)
        status = symwin_comm_check(m.comm);
    tap_ok(status == SYMWIN_TIMEOUT || status == SYMWIN_MISMATCH, "anew on one rank: %s",
           symwin_last_error());
    harness_barrier(team);
    close_member(&m);
    host_must(symwin_mem_free(memory), "free");
}

int main(void)
{
    static struct late_case lates[] = {{"on time", {0, 0}},
                                       {"late on rank 1", {1, 2}},
                                       {"late on ranks 0 to 2", {0, 3}},
                                       {"late on all", {0, 4}}};
    static uint32_t blocks[] = {0, (uint32_t)1 << 31, UINT32_MAX - 1};
    struct cuts_case c;
    size_t i;

    harness_fork();
    harness_start();
    if (!sw_driver_is_emulated())
        tap_skip_all("the emulated driver can be late on purpose");
    for (i = 0; i < sizeof lates / sizeof lates[0]; i++) {
        run(lates[i].name, 3, recapture, &lates[i]);
        run(lates[i].name, 2, eager_after, &lates[i]);
    }
    sw_emu_unmap_waits(0);
    run("over and captured", 2, over_and_captured, NULL);
    for (i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        run("a call under way", 3, in_flight, &blocks[i]);
    sw_emu_unmap_waits(1);
    for (i = 0; i < sizeof cut_steps / sizeof cut_steps[0]; i++)
        for (c.plain = 0; c.plain < 2; c.plain++) {
            c.steps = cut_steps[i];
            run("cuts", 3, cuts, &c);
        }
    run("one page", 2, one_page, NULL);
    run("allocated anew", 3, allocated_anew, NULL);
    run("left alone", 2, left_alone, NULL);
    return harness_done();
}
