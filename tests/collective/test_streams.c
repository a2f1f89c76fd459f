/* Calls of one communicator stay in order where a stream is not what its handle says: each thread's
 * default stream, which has the same handle in all threads, and captures that overlap. A
 * stream that follows a communicator waits for its last call.
 */
#include <time.h>

#include "harness.h"

enum { RANKS = 2, COUNT = 3000, BYTES = COUNT * 4, STREAMS = 3 };

struct member {
    struct harness_team *team;
    symwin_comm *comm;
    int rank;
    struct sw_scope scope;
    float *data[3]; /* COUNT each */
    CUstream streams[STREAMS];
};

static void open_member(struct member *m, struct harness_team *team, int rank)
{
    int i;

    m->team = team;
    m->rank = rank;
    host_must(harness_comm(team, rank, &m->comm), "create");
    host_must(sw_scope_enter(harness_device(rank), &m->scope), "sw_scope_enter");
    for (i = 0; i < 3; i++)
        m->data[i] = host_alloc(harness_device(rank), BYTES);
    for (i = 0; i < STREAMS; i++)
        host_must(symwin_stream_create(harness_device(rank), &m->streams[i]), "stream_create");
}

static void close_member(struct member *m)
{
    int i;

    for (i = 0; i < STREAMS; i++)
        host_must(symwin_stream_destroy(harness_device(m->rank), m->streams[i]), "stream_destroy");
    symwin_comm_destroy(m->comm);
    for (i = 0; i < 3; i++)
        host_must(symwin_mem_free(m->data[i]), "symwin_mem_free");
    sw_scope_leave(&m->scope);
}

static void fill(const struct member *m, float *at, float value)
{
    float values[COUNT];
    int i;

    for (i = 0; i < COUNT; i++)
        values[i] = value;
    host_must(host_copy(harness_device(m->rank), at, values, BYTES), "fill");
}

static void expect(const struct member *m, const char *name, const float *at, float want)
{
    float values[COUNT];
    int i, wrong = 0;
    symwin_status status = host_copy(harness_device(m->rank), values, at, BYTES);

    for (i = 0; i < COUNT && status == SYMWIN_OK; i++)
        wrong += values[i] != want;
    if (status == SYMWIN_OK)
        status = symwin_comm_check(m->comm);
    tap_ok(status == SYMWIN_OK && wrong == 0, "%s, rank %d: %d wrong%s%s", name, m->rank, wrong,
           status == SYMWIN_OK ? "" : "; ", status == SYMWIN_OK ? "" : symwin_last_error());
}

static symwin_status call(const struct member *m, float *data, CUstream stream)
{
    return symwin_allreduce(m->comm, data, data, COUNT, SYMWIN_F32, SYMWIN_SUM, stream);
}

/* ---- each thread's default stream ---- */

struct helper {
    const struct member *m;
    pthread_barrier_t called;
    symwin_status status;
};

static void nap_ms(long ms)
{
    const struct timespec t = {0, ms * 1000000};

    nanosleep(&t, NULL);
}

/* The second call, from another thread, whose default stream has the same handle. */
static void *call_again(void *arg)
{
    struct helper *h = arg;
    struct sw_scope scope;

    host_must(sw_scope_enter(harness_device(h->m->rank), &scope), "sw_scope_enter");
    h->status = call(h->m, h->m->data[0], CU_STREAM_PER_THREAD);
    pthread_barrier_wait(&h->called);
    if (h->status == SYMWIN_OK)
        h->status = sw_check(sw_drv.cuStreamSynchronize(CU_STREAM_PER_THREAD), "synchronize");
    sw_scope_leave(&scope);
    return NULL;
}

/* Rank 0 makes two calls on the same data from two threads before rank 1 makes the first. */
static void run_own(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    struct helper helper = {.m = &m};
    pthread_t thread;

    (void)arg;
    open_member(&m, team, rank);
    fill(&m, m.data[0], 1);
    harness_barrier(team);
    if (rank == 0) {
        if (pthread_barrier_init(&helper.called, NULL, 2) != 0)
            abort();
        host_must(call(&m, m.data[0], CU_STREAM_PER_THREAD), "the first call");
        if (pthread_create(&thread, NULL, call_again, &helper) != 0)
            abort();
        pthread_barrier_wait(&helper.called);
        nap_ms(50); /* by then, a kernel that does not wait for the previous one is running */
        harness_barrier(team);
        host_must_cuda(sw_drv.cuStreamSynchronize(CU_STREAM_PER_THREAD), "synchronize");
        pthread_join(thread, NULL);
        pthread_barrier_destroy(&helper.called);
        tap_ok(helper.status == SYMWIN_OK, "the second thread's call");
    } else {
        harness_barrier(team);
        host_must(call(&m, m.data[0], m.streams[0]), "the first call");
        host_must(call(&m, m.data[0], m.streams[0]), "the second call");
        host_must_cuda(sw_drv.cuStreamSynchronize(m.streams[0]), "synchronize");
    }
    expect(&m, "threads' own streams", m.data[0], 4);
    harness_barrier(team);
    close_member(&m);
}

/* ---- reused handles ---- */

static CUresult (*plain_id)(CUstream, unsigned long long *);
static CUresult (*plain_wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static _Thread_local unsigned long long played; /* added to the id */
static atomic_int waits;

static CUresult play_id(CUstream stream, unsigned long long *id)
{
    const CUresult result = plain_id(stream, id);

    *id += played;
    return result;
}

static CUresult count_wait(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    atomic_fetch_add(&waits, 1);
    return plain_wait(stream, address, value, flags);
}

/* A new stream may have the handle of a destroyed one. Its id tells them apart. */
static void run_again(struct harness_team *team, int rank, void *arg)
{
    struct member m;
    int i;

    (void)arg;
    open_member(&m, team, rank);
    fill(&m, m.data[0], 1);
    harness_barrier(team);
    for (i = 0; i < 4; i++) {
        played = i < 2 ? 0 : 1000000;
        host_must(call(&m, m.data[0], m.streams[0]), "a call");
    }
    host_must_cuda(sw_drv.cuStreamSynchronize(m.streams[0]), "synchronize");
    expect(&m, "a handle that serves again", m.data[0], 16);
    harness_barrier(team);
    close_member(&m);
}

static void again(void)
{
    plain_id = sw_drv.cuStreamGetId;
    plain_wait = sw_drv.cuStreamWaitValue32;
    if (plain_id == NULL)
        return;
    sw_drv.cuStreamGetId = play_id;
    sw_drv.cuStreamWaitValue32 = count_wait;
    harness_run(RANKS, run_again, NULL);
    sw_drv.cuStreamGetId = plain_id;
    sw_drv.cuStreamWaitValue32 = plain_wait;
    TAP_EQ("each rank waits once", atomic_load(&waits), RANKS);
}

/* ---- overlapping captures ---- */

static void begin(CUstream stream)
{
    host_must_cuda(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "begin");
}

static void wait_a_while(void *unused)
{
    const struct timespec a_while = {.tv_nsec = 20 * 1000000};

    (void)unused;
    nanosleep(&a_while, NULL);
}

/* Two calls of one capture, on two of its streams that nothing else orders, with calls of `others`
 * other captures between them. Rank 0 holds up the first call and rank 1 the second. Without an
 * order between the two, rank 0 would run the second call first, and it would meet rank 1's
 * first. */
static void run_captures(struct harness_team *team, int rank, void *arg)
{
    const int others = *(const int *)arg;
    CUgraphExec first, other[8];
    struct member m;
    int i;

    open_member(&m, team, rank);
    fill(&m, m.data[0], 1);
    fill(&m, m.data[1], 1);
    fill(&m, m.data[2], 3);
    begin(m.streams[0]);
    host_follow(m.streams[0], m.streams[1]);
    host_must_cuda(sw_drv.cuLaunchHostFunc(m.streams[rank], wait_a_while, NULL), "hold up a call");
    host_must(call(&m, m.data[0], m.streams[0]), "the first call of a capture");
    for (i = 0; i < others; i++) {
        begin(m.streams[2]);
        host_must(call(&m, m.data[1], m.streams[2]), "a call of another");
        other[i] = host_end_capture(m.streams[2], NULL);
    }
    host_must(call(&m, m.data[2], m.streams[1]), "the second call of the first");
    host_follow(m.streams[1], m.streams[0]);
    first = host_end_capture(m.streams[0], NULL);
    harness_barrier(team);
    for (i = 0; i < 2; i++)
        host_must_cuda(sw_drv.cuGraphLaunch(first, m.streams[0]), "cuGraphLaunch");
    for (i = 0; i < others; i++)
        host_must_cuda(sw_drv.cuGraphLaunch(other[i], m.streams[0]), "cuGraphLaunch");
    host_must_cuda(sw_drv.cuStreamSynchronize(m.streams[0]), "synchronize");
    expect(&m, "captures beside each other, the first call", m.data[0], 4);
    expect(&m, "captures beside each other, the second call", m.data[2], 12);
    expect(&m, "captures beside each other, the others", m.data[1], (float)(1 << others));
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(first), "cuGraphExecDestroy");
    for (i = 0; i < others; i++)
        host_must_cuda(sw_drv.cuGraphExecDestroy(other[i]), "cuGraphExecDestroy");
    close_member(&m);
}

/* ---- streams that follow ---- */

static void set_flag(void *flag)
{
    atomic_store((atomic_int *)flag, 1);
}

/* Rank 0 has called, and a stream follows; it must not go on before rank 1 calls. */
static void follow(const struct member *m, const char *name, atomic_int *flag)
{
    if (m->rank == 0) {
        nap_ms(20);
        tap_ok(!atomic_load(flag), "%s: it waits for the call", name);
    }
    harness_barrier(m->team);
}

static void run_follow(struct harness_team *team, int rank, void *arg)
{
    atomic_int flag = 0;
    CUgraphExec exec;
    struct member m;

    (void)arg;
    open_member(&m, team, rank);
    fill(&m, m.data[0], 1);
    harness_barrier(team);
    host_must(symwin_comm_follow(m.comm, m.streams[1]), "before the first call");
    if (rank == 0) {
        host_must(call(&m, m.data[0], m.streams[0]), "a call");
        host_must(symwin_comm_follow(m.comm, m.streams[1]), "symwin_comm_follow");
        host_must_cuda(sw_drv.cuLaunchHostFunc(m.streams[1], set_flag, &flag), "set a flag");
    }
    follow(&m, "a stream that follows", &flag);
    if (rank != 0)
        host_must(call(&m, m.data[0], m.streams[0]), "a call");
    host_must_cuda(sw_drv.cuStreamSynchronize(m.streams[1]), "synchronize");
    TAP_EQ("it goes on behind the call", atomic_load(&flag), rank == 0);
    host_must_cuda(sw_drv.cuStreamSynchronize(m.streams[0]), "synchronize");

    atomic_store(&flag, 0);
    begin(m.streams[0]);
    host_follow(m.streams[0], m.streams[1]);
    host_must(call(&m, m.data[0], m.streams[0]), "a captured call");
    begin(m.streams[2]);
    tap_ok(symwin_comm_follow(m.comm, m.streams[2]) == SYMWIN_OK,
           "a capture without calls follows none of another capture");
    host_must_cuda(sw_drv.cuGraphExecDestroy(host_end_capture(m.streams[2], NULL)), "destroy");
    host_must(symwin_comm_follow(m.comm, m.streams[1]), "symwin_comm_follow");
    host_must_cuda(sw_drv.cuLaunchHostFunc(m.streams[1], set_flag, &flag), "set a flag");
    host_follow(m.streams[1], m.streams[0]);
    exec = host_end_capture(m.streams[0], NULL);
    harness_barrier(team);
    if (rank == 0)
        host_must_cuda(sw_drv.cuGraphLaunch(exec, m.streams[0]), "cuGraphLaunch");
    follow(&m, "a captured stream that follows", &flag);
    if (rank != 0)
        host_must_cuda(sw_drv.cuGraphLaunch(exec, m.streams[0]), "cuGraphLaunch");
    host_must_cuda(sw_drv.cuStreamSynchronize(m.streams[0]), "synchronize");
    TAP_EQ("it goes on behind the captured call", atomic_load(&flag), 1);
    expect(&m, "calls that are followed", m.data[0], 4);
    harness_barrier(team);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    close_member(&m);
}

/* Ranks that share a device and its default stream: one's kernel is behind the other's, which waits
 * for it. */
static void one_stream(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = 20000, .kernel_timeout_ms = 1500};
    symwin_comm *comm;
    void *data;

    (void)arg;
    host_must(symwin_comm_create(&team->id, team->nranks, rank, 0, &options, &comm), "create");
    data = host_alloc(0, BYTES);
    harness_barrier(team);
    host_must(symwin_allreduce(comm, data, data, COUNT, SYMWIN_F32, SYMWIN_SUM, NULL), "allreduce");
    host_must(symwin_stream_synchronize(0, NULL), "synchronize");
    host_expect("ranks on one stream", symwin_comm_check(comm), SYMWIN_TIMEOUT,
                "waited 1500 ms for rank |; ranks that share a device need a stream each|destroy");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(data), "symwin_mem_free");
}

int main(void)
{
    const int one = 1, most = SW_CAPTURES - 1;
    CUresult (*get_id)(CUstream, unsigned long long *);
    struct harness_leaks before;

    harness_start();
    before = harness_leaks_now();
    harness_run(RANKS, run_own, NULL);
    again();
    get_id = sw_drv.cuStreamGetId; /* like an older driver */
    sw_drv.cuStreamGetId = NULL;
    harness_run(RANKS, run_own, NULL);
    sw_drv.cuStreamGetId = get_id;
    harness_run(RANKS, run_captures, (void *)(uintptr_t)&one);
    harness_run(RANKS, run_captures, (void *)(uintptr_t)&most);
    harness_run(RANKS, run_follow, NULL);
    harness_run(RANKS, one_stream, NULL);
    harness_no_leaks("streams", &before);
    return tap_done();
}
