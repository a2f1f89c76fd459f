/* Calls launched as graphs of one kernel: that they are, and only outside captures; that they are
 * right; and the failure of each of their driver calls (fault_sweep.h).
 */
#include "allreduce_cases.h"
#include "harness.h"

enum { COUNT = 3000, BYTES = 4 * COUNT };

struct state {
    int on;       /* the rank's device */
    int by_parts; /* calls are all-to-alls of unequal parts; of one rank */
    symwin_comm *comm;
    void *memory;
    struct CUstream_st *stream;
    struct sw_scope scope;
};

#include "fault_sweep.h"

#if defined(__SANITIZE_THREAD__)
enum { THIN = 131, RUNS = 6 };
#elif defined(__SANITIZE_ADDRESS__)
enum { THIN = 31, RUNS = 30 };
#else
enum { THIN = 5, RUNS = 100 };
#endif

static symwin_status create(struct harness_team *team, int rank, struct state *s, unsigned flags)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .flags = flags,
                                         .timeout_ms = 20000,
                                         .kernel_timeout_ms = 20000,
                                         .slot_bytes = 8192};

    return symwin_comm_create(&team->id, team->nranks, rank, s->on, &options, &s->comm);
}

static symwin_status create_with(struct harness_team *team, int rank, struct state *s)
{
    return create(team, rank, s, SYMWIN_COMM_GRAPH_LAUNCH);
}

static int made_comm(const struct state *s)
{
    return s->comm != NULL;
}

static void set_up(struct harness_team *team, int rank, struct state *s, unsigned flags)
{
    host_must(create(team, rank, s, flags), "symwin_comm_create");
    host_must(sw_scope_enter(s->on, &s->scope), "sw_scope_enter");
    host_must(symwin_stream_create(s->on, &s->stream), "symwin_stream_create");
    host_must(symwin_mem_alloc(s->on, BYTES, 0, &s->memory), "symwin_mem_alloc");
}

static symwin_status with_comm(struct harness_team *team, int rank, struct state *s)
{
    set_up(team, rank, s, SYMWIN_COMM_GRAPH_LAUNCH);
    return SYMWIN_OK;
}

static void clear(struct state *s)
{
    if (s->stream != NULL) {
        symwin_stream_synchronize(s->on, s->stream);
        symwin_stream_destroy(s->on, s->stream);
    }
    symwin_comm_destroy(s->comm);
    if (s->memory != NULL) {
        symwin_mem_free(s->memory);
        sw_scope_leave(&s->scope);
    }
    *s = (struct state){.on = s->on};
}

static symwin_status reduce(const struct state *s)
{
    static const uint64_t count = COUNT;
    const symwin_parts parts = {&count, NULL, 0, 0};

    if (s->by_parts)
        return symwin_alltoallv(s->comm, s->memory, &parts, s->memory, &parts, SYMWIN_F32,
                                s->stream);
    return symwin_allreduce(s->comm, s->memory, s->memory, COUNT, SYMWIN_F32, SYMWIN_SUM,
                            s->stream);
}

static symwin_status call(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return reduce(s);
}

static const struct fault_case cases[] = {
    {"comm_create", 2, NULL, create_with, made_comm, 1},
    {"allreduce", 2, with_comm, call, NULL, 0},
};

/* ---- how calls are launched ---- */

static unsigned launched(const char *entry, const struct state *s)
{
    unsigned nth, seen = 0;

    for (nth = 1;; nth++) {
        sw_emu_fail_nth(nth, CUDA_ERROR_UNKNOWN, 0, 0);
        (void)reduce(s);
        if (!sw_emu_fault_fired())
            break;
        seen += strcmp(sw_emu_fault_name(), entry) == 0;
    }
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    return seen;
}

static void expect_launches(const char *name, const struct state *s, unsigned by_graph)
{
    const unsigned graphs = launched("cuGraphLaunch", s);
    const unsigned settings = launched("cuGraphExecKernelNodeSetParams", s);
    const unsigned kernels = launched("cuLaunchKernelEx", s);

    tap_ok(graphs == by_graph && settings == by_graph && kernels == !by_graph,
           "%s: launches of %u graphs, %u with arguments, and of %u kernels", name, graphs,
           settings, kernels);
}

/* One rank, so that it may fail alone. */
static void run_launches(struct harness_team *team, int rank, void *arg)
{
    struct state s = {.on = harness_device(rank)};
    CUgraph graph = NULL;

    (void)arg;
    set_up(team, rank, &s, SYMWIN_COMM_GRAPH_LAUNCH);
    expect_launches("by graphs", &s, 1);
    host_must(sw_check(sw_drv.cuStreamBeginCapture(s.stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                       "cuStreamBeginCapture"),
              "capture");
    expect_launches("by graphs, in a capture", &s, 0);
    host_must(sw_check(sw_drv.cuStreamEndCapture(s.stream, &graph), "cuStreamEndCapture"),
              "capture");
    host_must(sw_check(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy"), "capture");
    s.by_parts = 1; /* the arguments have another size */
    expect_launches("of unequal parts", &s, 0);
    clear(&s);
}

/* Threads that capture make a communicator and destroy it. */
static void run_in_capture(struct harness_team *team, int rank, void *arg)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    struct state s = {.on = harness_device(rank)};
    struct CUstream_st *stream;
    CUgraph graph = NULL;

    host_must(symwin_stream_create(s.on, &stream), "symwin_stream_create");
    host_must_cuda(sw_drv.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture");
    harness_barrier(team);
    set_up(team, rank, &s, *(unsigned *)arg);
    clear(&s);
    harness_barrier(team);
    host_must_cuda(sw_drv.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    host_must(symwin_stream_destroy(s.on, stream), "symwin_stream_destroy");
    host_must_cuda(sw_drv.cuThreadExchangeStreamCaptureMode(&mode),
                   "cuThreadExchangeStreamCaptureMode");
    TAP_EQ("a thread keeps its mode of captures", mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void run_default(struct harness_team *team, int rank, void *arg)
{
    struct state s = {.on = harness_device(rank)};

    set_up(team, rank, &s, 0);
    expect_launches(arg, &s, strcmp(arg, "SYMWIN_GRAPH_LAUNCH=1") == 0);
    clear(&s);
}

static void run_apart(struct harness_team *team, int rank, void *arg)
{
    struct state s = {.on = harness_device(rank)};
    const symwin_status status = create(team, rank, &s, rank == 0 ? SYMWIN_COMM_GRAPH_LAUNCH : 0);

    (void)arg;
    host_expect("ranks that differ", status, SYMWIN_MISMATCH, "flags");
    clear(&s);
}

int main(void)
{
    static const size_t counts[] = {5, 1027, 0};
    static char by_default[] = "without the flag", environment[] = "SYMWIN_GRAPH_LAUNCH=1";

    harness_start();
    harness_run(1, run_launches, NULL);
    for (unsigned flags = 0; flags <= SYMWIN_COMM_GRAPH_LAUNCH; flags += SYMWIN_COMM_GRAPH_LAUNCH)
        harness_run(2, run_in_capture, &flags);
    harness_run(1, run_default, by_default);
    harness_run(2, run_apart, NULL);
    setenv("SYMWIN_GRAPH_LAUNCH", "1", 1);
    harness_run(1, run_default, environment);
    allreduce_matrix(2, counts, THIN);
    allreduce_matrix(3, counts, THIN);
    allreduce_long(2);
    allreduce_graphs(2, 6);
    allreduce_streams(4, 60);
    allreduce_random(4, RUNS, 1 << 16, 1);
    unsetenv("SYMWIN_GRAPH_LAUNCH");
    return sweep_all(cases, sizeof cases / sizeof cases[0]);
}
