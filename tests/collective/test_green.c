/* Streams of green contexts, which own some of a device's multiprocessors. Grids must be resident
 * on those. Runs on the emulated driver and on GPUs (tests/gpu/both.txt), which ranks may share.
 */
#include "harness.h"

enum { RANKS = 2, COUNT = 1 << 18, BYTES = 4 * COUNT };

struct member {
    struct harness_team *team;
    int rank, device;
    symwin_comm *comm;
    float *data;
    symwin_window *window;
    CUgreenCtx green;
    unsigned multiprocessors; /* of the green context */
    CUstream stream, plain;
    int calls; /* so far */
    struct sw_scope scope;
};

/* The largest grid launched so far, and the number of queries for a stream's green context. */
static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUresult (*plain_ask)(CUstream, CUgreenCtx *);
static atomic_uint largest;
static atomic_int asked;

static CUresult see_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                           void **extra)
{
    unsigned seen = atomic_load(&largest);

    while (seen < config->gridDimX &&
           !atomic_compare_exchange_weak(&largest, &seen, config->gridDimX))
        ;
    return plain_launch(config, function, params, extra);
}

static CUresult see_ask(CUstream stream, CUgreenCtx *green)
{
    atomic_fetch_add(&asked, 1);
    return plain_ask(stream, green);
}

/* ---- a rank with a green context ---- */

static void open_green(struct member *m)
{
    m->green = host_make_part(m->device, 1, &m->multiprocessors);
    host_must_cuda(sw_drv.cuGreenCtxStreamCreate(&m->stream, m->green, CU_STREAM_NON_BLOCKING, 0),
                   "cuGreenCtxStreamCreate");
}

static void open_member(struct member *m, struct harness_team *team, int rank, unsigned flags)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .flags = flags | SYMWIN_COMM_NO_GRAPH_REGISTER,
                                         .timeout_ms = 20000,
                                         .kernel_timeout_ms = 20000,
                                         .slot_bytes = 1 << 20};
    static float values[RANKS][COUNT];
    int k;

    *m = (struct member){.team = team, .rank = rank, .device = harness_device(rank)};
    host_must(symwin_comm_create(&team->id, RANKS, rank, m->device, &options, &m->comm),
              "symwin_comm_create");
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    m->data = host_alloc(m->device, BYTES);
    host_must(symwin_window_register(m->comm, m->data, BYTES, 0, &m->window), "register");
    host_must(symwin_stream_create(m->device, &m->plain), "symwin_stream_create");
    open_green(m);
    for (k = 0; k < COUNT; k++)
        values[rank][k] = (float)(rank + 1);
    host_must(host_copy(m->device, m->data, values[rank], BYTES), "fill");
    harness_barrier(team);
}

static void close_member(struct member *m)
{
    harness_barrier(m->team);
    symwin_comm_destroy(m->comm);
    host_must_cuda(sw_drv.cuStreamDestroy(m->stream), "cuStreamDestroy");
    host_must_cuda(sw_drv.cuGreenCtxDestroy(m->green), "cuGreenCtxDestroy");
    host_must(symwin_stream_destroy(m->device, m->plain), "symwin_stream_destroy");
    host_must(symwin_mem_free(m->data), "symwin_mem_free");
    sw_scope_leave(&m->scope);
}

static symwin_status call(struct member *m, symwin_algo algo, int blocks, CUstream stream)
{
    const symwin_allreduce_options options = {
        .size = sizeof options, .algo = algo, .blocks = blocks};
    const symwin_status status = symwin_allreduce_with(m->comm, m->data, m->data, COUNT, SYMWIN_F32,
                                                       SYMWIN_SUM, &options, stream);

    m->calls += status == SYMWIN_OK;
    return status;
}

/* The value is 1 + 2 after the first call, and each later call doubles it. */
static void check(const struct member *m, const char *name, CUstream stream)
{
    static float values[RANKS][COUNT];
    int k, wrong = 0;

    host_must_cuda(sw_drv.cuStreamSynchronize(stream), "cuStreamSynchronize");
    host_must(host_copy(m->device, values[m->rank], m->data, BYTES), "read");
    for (k = 0; k < COUNT; k++)
        wrong += values[m->rank][k] != (float)(3 << (m->calls - 1));
    tap_ok(wrong == 0 && symwin_comm_check(m->comm) == SYMWIN_OK, "%s, rank %d: %d wrong", name,
           m->rank, wrong);
}

/* All-gathers of one group, a launch each time: of so many elements, from the values that check()
 * finds. */
static void run_group(struct member *m, float *out, size_t count)
{
    enum { CALLS = 8 };
    static float values[RANKS][RANKS * CALLS * 4096];
    const size_t all = RANKS * CALLS * count;
    size_t k;
    int wrong = 0;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < CALLS; k++)
        host_must(symwin_allgather(m->comm, m->data + k * count, out + RANKS * k * count, count,
                                   SYMWIN_F32, m->stream),
                  "symwin_allgather");
    host_must(symwin_group_end(), "symwin_group_end");
    host_must_cuda(sw_drv.cuStreamSynchronize(m->stream), "cuStreamSynchronize");
    host_must(host_copy(m->device, values[m->rank], out, all * sizeof(float)), "read");
    for (k = 0; k < all; k++)
        wrong += values[m->rank][k] != (float)(3 << (m->calls - 1));
    tap_ok(wrong == 0 && symwin_comm_check(m->comm) == SYMWIN_OK,
           "a group of %zu elements, rank %d: %d wrong", count, m->rank, wrong);
}

/* A send and a receive of all the data: rank 1's goes to rank 0, and the other way round. */
static void run_messages(struct member *m, void *out)
{
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_send(m->comm, m->data, COUNT, SYMWIN_F32, !m->rank, m->stream), "symwin_send");
    host_must(symwin_recv(m->comm, out, COUNT, SYMWIN_F32, !m->rank, m->stream), "symwin_recv");
    host_must(symwin_group_end(), "symwin_group_end");
    host_must_cuda(sw_drv.cuStreamSynchronize(m->stream), "cuStreamSynchronize");
    tap_ok(symwin_comm_check(m->comm) == SYMWIN_OK, "a send and a receive, rank %d", m->rank);
}

/* ---- cases ---- */

/* How many blocks fit on the stream, taken from the error text for too many. */
static int fit(struct member *m, CUstream stream)
{
    const char *text;
    const symwin_status status = call(m, SYMWIN_ALGO_TWOSHOT_PUSH, 1 << 20, stream);

    host_expect("more blocks than fit", status, SYMWIN_UNSUPPORTED, "asked for|fit on device");
    text = strstr(symwin_last_error(), "asked for and ");
    return text != NULL ? atoi(text + 14) : 0;
}

/* A call of a group that does not fit on its stream is refused when it is made, before the calls
 * ahead of it are launched. */
static void refuse_group(struct member *m, int blocks)
{
    const int calls = m->calls;

    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(call(m, SYMWIN_ALGO_AUTO, 0, m->stream), "a call");
    host_expect("one block more than fit, in a group",
                call(m, SYMWIN_ALGO_TWOSHOT_PUSH, blocks, m->stream), SYMWIN_UNSUPPORTED,
                "asked for|fit on device");
    host_expect("its group", symwin_group_end(), SYMWIN_UNSUPPORTED, "nothing was launched");
    m->calls = calls;
}

static void run_calls(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    float *out;
    int most, i;

    open_member(&m, team, rank, *(const unsigned *)arg);
    out = host_alloc(m.device, BYTES);
    for (i = 0; i < 3; i++)
        host_must(call(&m, SYMWIN_ALGO_AUTO, 0, m.stream), "a call");
    check(&m, "default grids", m.stream);
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT_PUSH, 0, m.stream), "a push");
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT, 0, m.stream), "loads");
    if (m.comm->ranks_on_device == 1)
        host_must(call(&m, SYMWIN_ALGO_COPIES, 0, m.stream), "copies");
    check(&m, "algorithms", m.stream);
    run_group(&m, out, 64);
    run_group(&m, out, 4096);
    run_messages(&m, out);
    harness_barrier(team);
    tap_ok(atomic_load(&largest) <= m.multiprocessors, "%u blocks at most, of %u multiprocessors",
           atomic_load(&largest), m.multiprocessors);
    harness_barrier(team);
    most = fit(&m, m.stream);
    tap_ok(most > 0 && most < fit(&m, m.plain), "rank %d: %d blocks fit, and more on the device",
           rank, most);
    refuse_group(&m, most + 1);
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT_PUSH, most, m.stream), "as many as fit");
    check(&m, "as many blocks as fit", m.stream);
    close_member(&m);
    host_must(symwin_mem_free(out), "symwin_mem_free");
}

/* The driver is queried when the stream changes. */
static void run_asks(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    int i;

    (void)arg;
    open_member(&m, team, rank, 0);
    for (i = 0; i < 4; i++)
        host_must(call(&m, SYMWIN_ALGO_AUTO, 0, m.plain), "a call");
    for (i = 0; i < 4; i++)
        host_must(call(&m, SYMWIN_ALGO_AUTO, 0, m.stream), "a call");
    check(&m, "two streams", m.stream);
    close_member(&m);
}

static void run_captured(struct harness_team *team, int rank, void *arg)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    struct member m;

    (void)arg;
    open_member(&m, team, rank, 0);
    host_must_cuda(sw_drv.cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
    host_must(call(&m, SYMWIN_ALGO_AUTO, 0, m.stream), "a captured call");
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT_PUSH, 0, m.stream), "a captured push");
    exec = host_end_capture(m.stream, &graph);
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, m.stream), "cuGraphLaunch");
    check(&m, "captured", m.stream);
    harness_barrier(team);
    tap_ok(atomic_load(&largest) <= m.multiprocessors, "captured: %u blocks at most",
           atomic_load(&largest));
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    close_member(&m);
}

static CUresult (*plain_wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static atomic_int waits;

static CUresult count_wait(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    atomic_fetch_add(&waits, 1);
    return plain_wait(stream, address, value, flags);
}

/* Two communicators, one in a part of the device: their calls run one after another, however small
 * they are. */
static void run_two(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    symwin_comm *first;

    (void)arg;
    open_member(&m, team, rank, 0);
    first = m.comm;
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT_PUSH, 1, m.stream), "a call in a part");
    host_must(symwin_comm_split(first, 0, 0, NULL, &m.comm), "split");
    harness_barrier(team);
    atomic_store(&waits, 0);
    harness_barrier(team);
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT_PUSH, 1, m.plain), "a call of another communicator");
    harness_barrier(team);
    TAP_EQ("waits where the parts differ", atomic_load(&waits), RANKS);
    check(&m, "in two parts", m.plain);
    harness_barrier(team);
    symwin_comm_destroy(m.comm);
    m.comm = first;
    close_member(&m);
}

/* MPS, with a fake answer of the driver. */
static CUresult few(CUexecAffinityParam *affinity, CUexecAffinityType type)
{
    affinity->type = type;
    affinity->param.smCount.val = 1;
    return CUDA_SUCCESS;
}

static void run_mps(struct harness_team *team, int rank, void *arg)
{
    struct member m;

    (void)arg;
    open_member(&m, team, rank, 0);
    host_must(call(&m, SYMWIN_ALGO_TWOSHOT_PUSH, 0, m.plain), "a push");
    check(&m, "with an affinity", m.plain);
    harness_barrier(team);
    tap_ok(atomic_load(&largest) == 1, "with an affinity: %u blocks", atomic_load(&largest));
    close_member(&m);
}

static void watched(void (*body)(struct harness_team *, int, void *), unsigned flags)
{
    atomic_store(&largest, 0);
    atomic_store(&asked, 0);
    harness_run(RANKS, body, &flags);
}

int main(void)
{
    CUresult (*affinity)(CUexecAffinityParam *, CUexecAffinityType);
    struct harness_leaks before;

    setenv("SYMWIN_TUNING", "0", 1);
    harness_load_ahead();
    harness_start();
    if (sw_drv.cuGreenCtxStreamCreate == NULL || sw_drv.cuDevResourceGenerateDesc == NULL)
        tap_skip_all("this driver has no green contexts");
    before = harness_leaks_now();
    plain_launch = sw_drv.cuLaunchKernelEx;
    plain_ask = sw_drv.cuStreamGetGreenCtx;
    plain_wait = sw_drv.cuStreamWaitValue32;
    sw_drv.cuStreamWaitValue32 = count_wait;
    sw_drv.cuLaunchKernelEx = see_launch;
    sw_drv.cuStreamGetGreenCtx = see_ask;
    watched(run_calls, 0);
    watched(run_calls, SYMWIN_COMM_GRAPH_LAUNCH);
    watched(run_captured, 0);
    watched(run_asks, 0);
    TAP_EQ("questions for the context of a stream", atomic_load(&asked), 2 * RANKS);
    watched(run_two, 0);
    if (sw_driver_is_emulated()) {
        affinity = sw_drv.cuCtxGetExecAffinity;
        sw_drv.cuCtxGetExecAffinity = few;
        watched(run_mps, 0);
        sw_drv.cuCtxGetExecAffinity = affinity;
    }
    sw_drv.cuLaunchKernelEx = plain_launch;
    sw_drv.cuStreamGetGreenCtx = plain_ask;
    sw_drv.cuStreamWaitValue32 = plain_wait;
    harness_no_leaks("green contexts", &before);
    return tap_done();
}
