/* The all-reduce by copies on the emulated driver (allreduce_cases.h), and its failures; and what
 * the driver refuses of an all-gather by copies. */
#include "allreduce_cases.h"
#include "windows.h"

#if defined(__SANITIZE_THREAD__)
/* After a failure, copies go on once kernels run. They overwrite what a peer reads or, where ranks
 * disagree on the count, another rank's copies. These races are documented. In place, any failure
 * causes them. */
enum {
    UNLIKE_COUNTS = 0,
    SHORTER = 8,
    THIN = 211,
    CALLS = 8,
    REPLAYS = 3,
    REFUSED = 8,
    REFUSED_IN_PLACE = 0
};
#elif defined(__SANITIZE_ADDRESS__)
enum {
    UNLIKE_COUNTS = 1,
    SHORTER = 1,
    THIN = 13,
    CALLS = 20,
    REPLAYS = 6,
    REFUSED = 1000,
    REFUSED_IN_PLACE = 1000
};
#else
enum {
    UNLIKE_COUNTS = 1,
    SHORTER = 1,
    THIN = 1,
    CALLS = 60,
    REPLAYS = 12,
    REFUSED = 1000,
    REFUSED_IN_PLACE = 1000
};
#endif

enum { SOON_MS = 500, PATIENT_MS = 60000 };

/* All ranks open before any goes on. A rank that gives up no longer waits for the others, and its
 * copies arrive there whether or not they have made their call. */
static void open_together(struct caller *c, struct harness_team *team, int rank, int timeout_ms,
                          int kernel_timeout_ms)
{
    caller_open(c, team, rank, timeout_ms, kernel_timeout_ms);
    harness_barrier(team);
}

static void begin_again(struct caller *c, const symwin_unique_id *id, const char *name)
{
    struct member *m = &c->member;

    tap_ok(caller_wait(c) == SYMWIN_OK, "%s: rank %d: the stream drains", name, m->rank);
    harness_barrier(m->team); /* until then, copies from other ranks may arrive */
    symwin_comm_destroy(m->comm);
    m->comm = NULL;
    host_must(symwin_comm_create(id, m->team->nranks, m->rank, m->device, NULL, &m->comm),
              "symwin_comm_create");
    host_must(symwin_window_register(m->comm, m->memory, m->bytes, 0, &c->window), "register");
    caller_fill(c, (uint32_t)m->rank + 1, 0);
    host_must(caller_reduce(c, SYMWIN_ALGO_COPIES), "copies");
    host_must(caller_wait(c), "symwin_stream_synchronize");
    tap_ok(caller_differences(c, (uint32_t)(m->team->nranks * (m->team->nranks + 1) / 2)) == 0,
           "%s: rank %d: a new communicator works", name, m->rank);
    harness_barrier(m->team);
    caller_close(c);
}

/* The highest rank does not make the call. */
static void run_missing(struct harness_team *team, int rank, void *arg)
{
    const int absent = team->nranks - 1;
    struct caller c;

    open_together(&c, team, rank, PATIENT_MS, SOON_MS);
    if (rank != absent) {
        host_must(caller_reduce(&c, SYMWIN_ALGO_COPIES), "copies");
        host_must(caller_wait(&c), "symwin_stream_synchronize");
        host_expect("a rank does not come", symwin_comm_check(c.member.comm), SYMWIN_TIMEOUT,
                    "symwin_comm_check|collective 1|for rank 2");
        host_expect("and again", caller_reduce(&c, SYMWIN_ALGO_COPIES), SYMWIN_TIMEOUT,
                    "symwin_allreduce|for rank 2");
    }
    harness_barrier(team);
    begin_again(&c, arg, "after a rank that did not come");
}

static void run_aborted(struct harness_team *team, int rank, void *arg)
{
    struct later later;
    struct caller c;

    open_together(&c, team, rank, PATIENT_MS, PATIENT_MS);
    if (rank == 0)
        later_abort(&later, c.member.comm, 100);
    if (rank != team->nranks - 1)
        host_must(caller_reduce(&c, SYMWIN_ALGO_COPIES), "copies");
    host_must(caller_wait(&c), "symwin_stream_synchronize");
    if (rank == 0)
        later_join(&later);
    harness_barrier(team);
    host_expect("an abort", symwin_comm_check(c.member.comm), SYMWIN_ABORTED,
                "symwin_comm_check|rank 0");
    begin_again(&c, arg, "after an abort");
}

/* Rank 1 passes another operation, or another count. */
static void run_unlike(struct harness_team *team, int rank, const symwin_unique_id *id, int counts)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_COPIES};
    const int other = rank == 1;
    struct caller c;

    open_together(&c, team, rank, PATIENT_MS, PATIENT_MS);
    host_must(symwin_allreduce_with(c.member.comm, c.in, c.out, other && counts ? WORDS - 1 : WORDS,
                                    SYMWIN_U32, other && !counts ? SYMWIN_MAX : SYMWIN_SUM,
                                    &options, c.stream),
              "copies");
    host_must(caller_wait(&c), "symwin_stream_synchronize");
    host_expect("calls that differ", symwin_comm_check(c.member.comm), SYMWIN_MISMATCH,
                "symwin_comm_check|collective 1|differ");
    harness_barrier(team);
    begin_again(&c, id, "after calls that differ");
}

static void run_unlike_operations(struct harness_team *team, int rank, void *arg)
{
    run_unlike(team, rank, arg, 0);
}

static void run_unlike_counts(struct harness_team *team, int rank, void *arg)
{
    run_unlike(team, rank, arg, 1);
}

/* Rank 1's buffer is mapped twice. The window of its second address pairs it with other memory of
 * the other ranks. */
static void run_two_windows(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = NULL;
    void *own = NULL, *other, *inside;
    struct host_raw again;
    struct caller c;
    size_t i;

    (void)arg;
    open_together(&c, team, rank, PATIENT_MS, PATIENT_MS);
    other = host_map_again(c.member.device, c.member.memory, &again);
    if (rank != 1) {
        host_must(symwin_mem_alloc(c.member.device, 2 * GRANULE, SYMWIN_MEM_OWN, &own), "alloc");
        other = host_at(own, ((uintptr_t)other - again.ptr) % GRANULE);
    }
    host_must(symwin_window_register(c.member.comm, other, c.member.bytes, 0, &window), "register");
    inside = host_at(other, (size_t)((unsigned char *)c.in - (unsigned char *)c.member.memory));
    for (i = 0; i < 2 && rank == 1; i++)
        host_expect("two windows on one buffer",
                    symwin_allreduce(c.member.comm, c.in, host_at(inside, 64 * i), WORDS,
                                     SYMWIN_U32, SYMWIN_SUM, c.stream),
                    SYMWIN_INVALID, "symwin_allreduce|addresses of the same memory|overlap");
    harness_barrier(team);
    caller_fill(&c, (uint32_t)rank + 1, (uint32_t)rank + 1);
    c.out = host_at(inside, WORDS * sizeof(uint32_t));
    host_must(caller_reduce(&c, SYMWIN_ALGO_COPIES), "copies");
    host_must(caller_wait(&c), "symwin_stream_synchronize");
    tap_ok(symwin_comm_check(c.member.comm) == SYMWIN_OK && caller_differences(&c, 6) == 0,
           "rank %d: by two windows of rank 1's buffer, in parts that do not touch", rank);
    harness_barrier(team);
    symwin_window_deregister(c.member.comm, window);
    caller_close(&c);
    host_must(symwin_mem_free(own), "symwin_mem_free");
    host_raw_free(&again);
}

static void two_addresses(void)
{
    struct harness_leaks before = harness_leaks_now();

    harness_run(3, run_two_windows, NULL);
    harness_no_leaks("two addresses", &before);
}

static void must_be(int right, const char *what, int rank)
{
    if (!right)
        tap_ok(0, "rank %d: %s: %s", rank, what, symwin_last_error());
}

/* The n-th driver call of rank 1 fails. Whichever it is, nobody waits for what does not come. */
struct refusal {
    unsigned nth;
    enum { REDUCES, REDUCES_IN_PLACE, GATHERS, CAPTURED } what;
    int fired, failed;
};

static symwin_status refused_call(struct caller *c, const struct refusal *refusal)
{
    const symwin_collective_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_COPIES};

    if (refusal->what != GATHERS)
        return caller_reduce(c, SYMWIN_ALGO_COPIES);
    return symwin_allgather_with(c->member.comm, c->in, c->out, WORDS / 3, SYMWIN_U32, &options,
                                 c->stream);
}

/* Rank 1's has the fault. */
static symwin_status call_with_fault(struct caller *c, struct refusal *refusal, int rank)
{
    symwin_status status;

    if (rank != 1)
        return refused_call(c, refusal);
    sw_emu_fail_nth(refusal->nth, CUDA_ERROR_UNKNOWN, 0, 0);
    status = refused_call(c, refusal);
    refusal->fired = sw_emu_fault_fired();
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    must_be(refusal->fired || status == SYMWIN_OK, "it fails only by the fault", rank);
    return status;
}

static int refused_result_is_right(struct caller *c, const struct refusal *refusal)
{
    int p, wrong = 0;

    if (refusal->what != GATHERS)
        return caller_differences(c, 6) == 0;
    for (p = 0; p < 3; p++)
        wrong += host_get_u32(c->member.device, c->out + p * (WORDS / 3)) != (uint32_t)p + 1 ||
                 host_get_u32(c->member.device, c->out + (p + 1) * (WORDS / 3) - 1) !=
                     (uint32_t)p + 1;
    return wrong == 0;
}

static void run_refused(struct harness_team *team, int rank, void *arg)
{
    struct refusal *refusal = arg;
    symwin_status status;
    struct caller c;

    open_together(&c, team, rank, PATIENT_MS, PATIENT_MS);
    if (refusal->what == REDUCES_IN_PLACE)
        c.out = c.in;
    status = call_with_fault(&c, refusal, rank);
    if (rank == 1) {
        /* If nothing was queued, the communicator is unchanged and the call can be made again. */
        if (status != SYMWIN_OK && symwin_comm_check(c.member.comm) == SYMWIN_OK)
            status = refused_call(&c, refusal);
        refusal->failed = status != SYMWIN_OK; /* 0 if the fault only hit leaving the context */
    }
    host_must(caller_wait(&c), "symwin_stream_synchronize");
    harness_barrier(team);
    must_be(symwin_comm_check(c.member.comm) == (refusal->failed ? SYMWIN_ABORTED : SYMWIN_OK),
            "all ranks are told", rank);
    must_be(refusal->failed || refused_result_is_right(&c, refusal), "otherwise it works", rank);
    caller_close(&c);
}

/* The same in a capture: nothing of it has run, so the communicator goes on. */
static void run_refused_in_capture(struct harness_team *team, int rank, void *arg)
{
    struct refusal *refusal = arg;
    CUgraph graph = NULL;
    symwin_status status;
    struct caller c;

    open_together(&c, team, rank, PATIENT_MS, PATIENT_MS);
    host_must_cuda(sw_drv.cuStreamBeginCapture(c.stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                   "cuStreamBeginCapture");
    status = call_with_fault(&c, refusal, rank);
    must_be(rank == 1 || status == SYMWIN_OK, "it fails on rank 1 alone", rank);
    sw_drop(sw_drv.cuStreamEndCapture(c.stream, &graph), "cuStreamEndCapture");
    if (graph != NULL)
        host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    harness_barrier(team);
    must_be(symwin_comm_check(c.member.comm) == SYMWIN_OK, "nobody is ended", rank);
    host_must(refused_call(&c, refusal), "a call after it");
    host_must(caller_wait(&c), "symwin_stream_synchronize");
    must_be(refused_result_is_right(&c, refusal), "has the right result", rank);
    caller_close(&c);
}

static void refusals(int what)
{
    static const char *const names[] = {"an all-reduce", "an all-reduce in place", "an all-gather",
                                        "a captured all-reduce"};
    const unsigned most = what == REDUCES_IN_PLACE ? REFUSED_IN_PLACE : REFUSED;
    struct harness_leaks before = harness_leaks_now();
    struct refusal refusal = {.what = what, .fired = 1};

    for (refusal.nth = 1; refusal.fired && refusal.nth <= most; refusal.nth++)
        harness_run(3, what == CAPTURED ? run_refused_in_capture : run_refused, &refusal);
    tap_ok(!refusal.fired || most < 1000,
           "%u driver calls of a rank refused in %s: all ranks leave", refusal.nth - 2,
           names[what]);
    harness_no_leaks(names[what], &before);
}

static void run(void (*body)(struct harness_team *team, int rank, void *arg), const char *name)
{
    struct harness_leaks before = harness_leaks_now();
    symwin_unique_id id;

    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    harness_run(3, body, &id);
    harness_no_leaks(name, &before);
}

int main(void)
{
    harness_fork();
    harness_start();
    if (harness_processes > 0) { /* tests/collective/test_copies_processes.t */
        copies_matrix(harness_processes, 7 * THIN);
        copies_chain(harness_processes, CALLS, 3, 30011 / SHORTER);
        copies_graphs(harness_processes, REPLAYS, 5003);
        return harness_done();
    }
    copies_matrix(1, 11 * THIN);
    copies_matrix(2, THIN);
    copies_matrix(3, 5 * THIN);
    copies_matrix(4, 3 * THIN);
    copies_matrix(5, 11 * THIN);
    copies_matrix(8, 11 * THIN);
    copies_matrix(16, 37 * THIN); /* two ranks per device */
    copies_chain(2, CALLS, 1, 20000 / SHORTER);
    copies_chain(4, CALLS, 1, 50021 / SHORTER);
    copies_chain(4, CALLS, 3, 20011 / SHORTER);
    copies_chain(8, CALLS / 3, 2, 10007 / SHORTER);
    copies_graphs(4, REPLAYS, 5003);
    copies_graphs(2, REPLAYS, 40);
    two_addresses();
    run(run_missing, "a missing rank");
    run(run_aborted, "an abort");
    run(run_unlike_operations, "operations that differ");
    if (UNLIKE_COUNTS)
        run(run_unlike_counts, "counts that differ");
    refusals(REDUCES);
    if (REFUSED_IN_PLACE > 0)
        refusals(REDUCES_IN_PLACE);
    refusals(GATHERS);
    refusals(CAPTURED);
    return tap_done();
}
