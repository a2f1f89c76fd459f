/* Groups in which one thread makes the calls of all ranks: random calls, rank by rank and call by
 * call, in captures, and on buffers on which the ranks agree. Also runs on GPUs
 * (tests/gpu/both.txt). */
#define TEST_SLOT_BYTES 8192
#include "group_jobs.h"
#include <signal.h>

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

static CUdeviceptr memory_of_driver(int device)
{
    CUdeviceptr memory = 0;
    struct sw_scope scope;

    host_must(sw_scope_enter(device, &scope), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemAlloc(&memory, 64), "cuMemAlloc");
    sw_scope_leave(&scope);
    return memory;
}

static int questions, numbers; /* numbers: for the number of the memory alone */
static CUresult (*plain_question)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
static CUresult (*plain_number)(void *, CUpointer_attribute, CUdeviceptr);

static CUresult note_question(unsigned count, CUpointer_attribute *attributes, void **data,
                              CUdeviceptr ptr)
{
    questions++;
    return plain_question(count, attributes, data, ptr);
}

static CUresult note_number(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    numbers++;
    return plain_number(data, attribute, ptr);
}

/* The driver is asked once about a buffer of another allocator in no window, when its call is added
 * to the group, and at the end whether it is still there; and not about one of this library. */
static void asks_once(struct processes *p, int rank)
{
    static CUdeviceptr in[4];
    int q;

    processes_barrier(p);
    if (rank == 0) {
        for (q = 0; q < p->count; q++)
            in[q] = memory_of_driver(all[q].device);
        plain_question = sw_drv.cuPointerGetAttributes;
        sw_drv.cuPointerGetAttributes = note_question;
        plain_number = sw_drv.cuPointerGetAttribute;
        sw_drv.cuPointerGetAttribute = note_number;
        host_must(symwin_group_begin(), "symwin_group_begin");
        for (q = 0; q < p->count; q++)
            host_must(symwin_allgather(all[q].comm, (void *)(uintptr_t)in[q], all[q].out, 8,
                                       SYMWIN_U8, all[q].streams[0]),
                      "symwin_allgather");
        host_must(symwin_group_end(), "symwin_group_end");
        sw_drv.cuPointerGetAttributes = plain_question;
        sw_drv.cuPointerGetAttribute = plain_number;
        must_equal(numbers, p->count, "questions whether it is still there", rank);
        must_equal(questions, p->count, "questions about a buffer a call", rank);
    }
    processes_barrier(p);
    job_wait(&all[rank], 0);
    processes_barrier(p);
    for (q = 0; q < p->count && rank == 0; q++) {
        struct sw_scope scope;

        host_must(sw_scope_enter(all[q].device, &scope), "sw_scope_enter");
        host_must_cuda(sw_drv.cuMemFree(in[q]), "cuMemFree");
        sw_scope_leave(&scope);
    }
}

enum { BARRIERS = 3, MESSAGES = 100, MOST_LAUNCHES = 100 };

static CUstream launches[MOST_LAUNCHES];
static int launch_count;
static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);

static CUresult note_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    if (launch_count < MOST_LAUNCHES)
        launches[launch_count++] = config->hStream;
    return plain_launch(config, function, params, extra);
}

/* Barriers, and around the ring more messages than a launch holds. */
static void ring_all(int nranks)
{
    int q, k;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (q = 0; q < nranks; q++) {
        for (k = 0; k < BARRIERS; k++)
            host_must(symwin_barrier(all[q].comm, all[q].streams[0]), "symwin_barrier");
        for (k = 0; k < MESSAGES; k++) {
            host_must(symwin_send(all[q].comm, all[q].in + 4 * k, 1, SYMWIN_U32, (q + 1) % nranks,
                                  all[q].streams[0]),
                      "symwin_send");
            host_must(symwin_recv(all[q].comm, all[q].out + 4 * k, 1, SYMWIN_U32,
                                  (q + nranks - 1) % nranks, all[q].streams[0]),
                      "symwin_recv");
        }
    }
    host_must(symwin_group_end(), "symwin_group_end");
}

/* No rank's launches are ahead of another's: what they wait for may find no room in a full queue.
 */
static void launches_in_turn(struct processes *p, struct rank *r)
{
    int most[4] = {0}, i, k, q, ahead = 0;

    for (k = 0; k < MESSAGES; k++)
        host_put_u32(r->device, r->in + 4 * k, (uint32_t)(r->rank * MESSAGES + k));
    processes_barrier(p);
    if (r->rank == 0) {
        launch_count = 0;
        plain_launch = sw_drv.cuLaunchKernelEx;
        sw_drv.cuLaunchKernelEx = note_launch;
        ring_all(p->count);
        sw_drv.cuLaunchKernelEx = plain_launch;
        for (i = 0; i < launch_count; i++)
            for (q = 0; q < p->count; q++) {
                most[q] += launches[i] == all[q].streams[0];
                for (k = 0; k < p->count; k++)
                    ahead = most[q] - most[k] > ahead ? most[q] - most[k] : ahead;
            }
        must_equal(most[0], most[p->count - 1], "launches of the first and the last rank", 0);
        must_be(most[0] > BARRIERS + 1, "the messages take several launches", 0);
        must_equal(ahead, 1, "launches by which a rank is ahead", 0);
    }
    processes_barrier(p);
    job_wait(r, 0);
    for (k = 0; k < MESSAGES; k++)
        must_equal(host_get_u32(r->device, r->out + 4 * k),
                   (uint32_t)((r->rank + p->count - 1) % p->count * MESSAGES + k), "message",
                   r->rank);
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
    asks_once(p, rank);
    n = prepare(r, 4000, 0, all_jobs[rank]);
    for (q = 0; q < n; q++) { /* those that run no agreement in a capture */
        all_jobs[rank][q].is = &shapes[q % 5];
        all_jobs[rank][q].options.algo = SYMWIN_ALGO_AUTO;
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
    launches_in_turn(p, r);
    close_rank(p, r);
}

int main(void)
{
    struct processes *p;

    /* For ranks that share a GPU: the most that CUDA takes. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    tap_ok(places_run(&places_all[0], 4, by_one_thread, NULL, &p), "one thread drives 4 ranks");
    processes_free(p);
    return tap_done();
}
