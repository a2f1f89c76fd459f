/* Communicators over several domains, whose ranks of a host are one thread's: it makes the calls of
 * both in groups, in streams and in captures. Engine and GPUs are as for test_rails.c. */
#define TEST_ROOM (1 << 20)
#include "rails_jobs.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANDOM = 12 };
#else
enum { RANDOM = 30 };
#endif

static struct rank pair[2]; /* of this process */
static struct job pair_jobs[2];

/* Barriers around a call of any kind, and a message to the next rank: of both ranks in a group. */
static void call_both(int nranks)
{
    int i, k;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 2; k++)
        for (i = 0; i < 2; i++) {
            const struct rank *r = &pair[i];

            host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
            if (k == 0)
                host_must(job_call(r, &pair_jobs[i], 0), "a call");
            else {
                host_must(symwin_send(r->comm, r->scalars, 1, SYMWIN_U32, (r->rank + 1) % nranks,
                                      r->streams[0]),
                          "symwin_send");
                host_must(symwin_recv(r->comm, (char *)r->scalars + 64, 1, SYMWIN_U32,
                                      (r->rank + nranks - 1) % nranks, r->streams[0]),
                          "symwin_recv");
            }
        }
    host_must(symwin_group_end(), "symwin_group_end");
}

static CUgraphExec captured[2];

static void capture_both(int nranks)
{
    struct sw_scope scope;
    int i;

    for (i = 0; i < 2; i++) {
        host_must(sw_scope_enter(pair[i].device, &scope), "scope");
        host_must_cuda(
            sw_drv.cuStreamBeginCapture(pair[i].streams[0], CU_STREAM_CAPTURE_MODE_RELAXED),
            "cuStreamBeginCapture");
        sw_scope_leave(&scope);
    }
    call_both(nranks);
    for (i = 0; i < 2; i++) {
        host_must(sw_scope_enter(pair[i].device, &scope), "scope");
        captured[i] = host_end_capture(pair[i].streams[0], NULL);
        sw_scope_leave(&scope);
    }
}

/* A thread's own default stream is another one in the threads that make the calls. */
static void refuse_own_streams(void)
{
    int i;

    host_must(symwin_group_begin(), "symwin_group_begin");
    for (i = 0; i < 2; i++)
        host_must(symwin_barrier(pair[i].comm, CU_STREAM_PER_THREAD), "symwin_barrier");
    must_be(symwin_group_end() == SYMWIN_INVALID &&
                host_error_has("one thread makes calls of ranks | and |, which are on several "
                               "hosts, on its own default stream; pass a stream of the device"),
            "a thread's own stream", pair[0].rank);
}

static void one_of_two(struct processes *p, int rank)
{
    struct rank *r = &pair[rank % 2];
    const int drives = rank % 2 == 0;
    unsigned i;

    equal_domains = 1;
    *r = (struct rank){.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    open_rank(p, r, WAIT_MS);
    for (i = 0; i < some(r, RANDOM) + 2; i++) {
        struct job *j = &pair_jobs[rank % 2];
        const int is_captured = i % 4 == 3;

        *j = any(r, 9000 + i);
        j->scalars = 0;
        if (j->op == SYMWIN_PREMUL_SUM) /* whose scalars have the place of the messages */
            j->op = SYMWIN_SUM;
        job_prepare(r, j);
        host_put_u32(r->device, (unsigned char *)r->scalars, (uint32_t)rank + i);
        processes_barrier(p);
        if (drives && is_captured)
            capture_both(p->count);
        else if (drives)
            call_both(p->count);
        processes_barrier(p);
        if (is_captured)
            host_must_cuda(sw_drv.cuGraphLaunch(captured[rank % 2], r->streams[0]),
                           "cuGraphLaunch");
        job_wait(r, 0);
        must_be(job_is_right(r, j), "one thread for two ranks", rank);
        must_equal(host_get_u32(r->device, (unsigned char *)r->scalars + 64),
                   (uint32_t)((rank + p->count - 1) % p->count) + i, "a message", rank);
        if (is_captured)
            host_must_cuda(sw_drv.cuGraphExecDestroy(captured[rank % 2]), "cuGraphExecDestroy");
        processes_barrier(p);
    }
    if (drives)
        refuse_own_streams();
    close_rank(p, r);
}

/* A process with two ranks. */
static void on_its_host(struct processes *p, int process)
{
    struct places_thread ranks[2];
    pthread_t threads[2];
    int i;

    processes_on_host("ab", process);
    rails_set_engine(process);
    processes_child_threads();
    for (i = 0; i < 2; i++) {
        ranks[i] = (struct places_thread){p, 2 * process + i};
        if (pthread_create(&threads[i], NULL, places_thread_main, &ranks[i]) != 0)
            abort();
    }
    for (i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static int one_thread(void)
{
    struct places_job job = {.body = one_of_two};
    struct processes *p = processes_new(4, &job);
    int right = 1, i;

    for (i = 0; i < 2; i++)
        processes_fork(p, i, on_its_host);
    for (i = 0; i < 2; i++)
        right &= processes_wait_loud(p, i) == 0;
    processes_free(p);
    return right;
}

/* By a process of its own: ranks are forked before the driver starts. */
static int device_count(void)
{
    const pid_t child = fork();
    int status = 0;

    if (child == 0) {
        harness_start();
        _exit(harness_device_count());
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : 0;
}

int main(void)
{
    if (processes_use_gpus() && device_count() < 2)
        tap_skip_all("takes two GPUs: NCCL has one rank of a process on each");
    tap_ok(one_thread(), "one thread for the two ranks of each of two hosts");
    return tap_done();
}
