/* Failing communicators: ranks that leave, abort, come late, make other calls or call twice. */
#include "windows.h"

#define SENTINEL ((symwin_window *)(uintptr_t)0x5e5e5e5e)

enum {
    PATIENT_MS = 30000, /* a timeout that must not expire */
    SOON_MS = 2000      /* far less than that, but enough on a busy machine */
};

/* The ranks destroy a broken communicator, and a new one works. */
static void expect_fresh_start(struct caller *c, const symwin_unique_id *id, const char *name)
{
    struct member *m = &c->member;

    tap_ok(caller_wait(c) == SYMWIN_OK, "%s: rank %d: the stream drains", name, m->rank);
    symwin_comm_destroy(m->comm);
    m->comm = NULL;
    host_must(symwin_comm_create(id, m->team->nranks, m->rank, m->device, NULL, &m->comm),
              "symwin_comm_create");
    caller_expect_sum(c, name);
}

/* ---- ranks that leave ---- */

static void run_leaver(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = SENTINEL;
    struct member m;
    int64_t since;

    (void)arg;
    member_open(&m, team, rank, GRANULE);
    if (rank == 2) {
        host_pause_ms(20);
    } else {
        since = host_now_ms();
        host_expect("a rank leaves while others register",
                    symwin_window_register(m.comm, m.memory, 64, 0, &window), SYMWIN_PEER_LOST,
                    "symwin_window_register|rank 2 has destroyed");
        tap_ok(window == SENTINEL && host_now_ms() - since < PATIENT_MS / 2,
               "rank %d: at once, and the out-pointer is untouched", rank);
        host_expect("and again", symwin_window_register(m.comm, m.memory, 64, 0, &window),
                    SYMWIN_PEER_LOST, "rank 2 has destroyed");
        host_expect("the communicator says it", symwin_comm_check(m.comm), SYMWIN_PEER_LOST,
                    "symwin_comm_check|rank 2");
    }
    member_close(&m);
}

static void run_late(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = SENTINEL;
    struct member m = {.team = team, .rank = rank, .device = rank};

    (void)arg;
    host_must(caller_comm(team, rank, 1000, 1000, &m.comm), "symwin_comm_create");
    m.memory = host_alloc(m.device, 64);
    if (rank == 1)
        harness_barrier(team); /* until the others have given up */
    host_expect(rank == 1 ? "a rank that comes too late" : "ranks that wait for it",
                symwin_window_register(m.comm, m.memory, 64, 0, &window), SYMWIN_TIMEOUT,
                "rank 1 did not come to symwin_window_register in time|destroy");
    host_expect("and later", symwin_comm_check(m.comm), SYMWIN_TIMEOUT,
                "symwin_comm_check: rank 1 did not come to symwin_window_register in time");
    tap_ok(window == SENTINEL, "rank %d: the out-pointer is untouched", rank);
    if (rank != 1)
        harness_barrier(team);
    TAP_EQ("nothing stays mapped", member_allocations(&m), 0);
    member_close(&m);
}

/* ---- abort ---- */

static void run_abort_register(struct harness_team *team, int rank, void *arg)
{
    const int aborter = *(const int *)arg;
    symwin_window *window = SENTINEL;
    struct later later;
    struct member m;
    int64_t ms;

    member_open(&m, team, rank, GRANULE);
    if (rank == aborter)
        later_abort(&later, m.comm, 50);
    if (rank != 1) { /* rank 1 never comes */
        const int64_t since = host_now_ms();

        host_expect("abort while ranks register",
                    symwin_window_register(m.comm, m.memory, 64, 0, &window), SYMWIN_ABORTED,
                    "symwin_window_register|aborted");
        tap_ok(window == SENTINEL && host_now_ms() - since < SOON_MS + 50,
               "rank %d: the out-pointer is untouched", rank);
    }
    if (rank == aborter) {
        ms = later_join(&later);
        TAP_EQ("symwin_comm_abort", later.status, SYMWIN_OK);
        if (rank != 1)
            tap_ok(ms < SOON_MS, "soon after the abort (%d ms)", (int)ms);
    }
    harness_barrier(team);
    host_expect("every rank knows", symwin_comm_check(m.comm), SYMWIN_ABORTED,
                "symwin_comm_check|abort");
    host_expect("no collective starts",
                symwin_allreduce(m.comm, m.memory, m.memory, 4, SYMWIN_F32, SYMWIN_SUM, NULL),
                SYMWIN_ABORTED, "symwin_allreduce|abort");
    host_expect("a second abort is fine", symwin_comm_abort(m.comm), SYMWIN_OK, "");
    member_close(&m);
}

struct abort_case {
    int aborter; /* rank */
    symwin_algo algo;
    symwin_unique_id again;
};

/* All ranks except 1 launch; the aborter ends the communicator. */
static void run_abort_kernel(struct harness_team *team, int rank, void *arg)
{
    const struct abort_case *a = arg;
    struct later later;
    struct caller c;
    int64_t since, ms;

    caller_open(&c, team, rank, PATIENT_MS, PATIENT_MS);
    harness_barrier(team);
    since = host_now_ms();
    if (rank != 1)
        host_must(caller_reduce(&c, a->algo), "symwin_allreduce");
    if (rank == a->aborter)
        later_abort(&later, c.member.comm, 50);
    if (rank != 1)
        tap_ok(caller_wait(&c) == SYMWIN_OK && host_now_ms() - since < SOON_MS + 50,
               "rank %d: the kernel leaves", rank);
    if (rank == a->aborter) {
        ms = later_join(&later);
        if (rank != 1)
            tap_ok(ms < SOON_MS, "soon after the abort (%d ms)", (int)ms);
    }
    harness_barrier(team);
    host_expect("every rank knows", symwin_comm_check(c.member.comm), SYMWIN_ABORTED,
                "symwin_comm_check|abort");
    host_expect("no collective starts", caller_reduce(&c, a->algo), SYMWIN_ABORTED,
                "symwin_allreduce|abort");
    expect_fresh_start(&c, &a->again, "after an abort");
    caller_close(&c);
}

/* A rank leaves while its peers' kernels wait for it: their timeout ends the wait. */
static void run_kernel_timeout(struct harness_team *team, int rank, void *arg)
{
    const struct abort_case *a = arg;
    struct caller c;

    caller_open(&c, team, rank, PATIENT_MS, 300);
    if (rank == 2) {
        caller_expect_sum(&c, "before"); /* rank 2 makes no further call */
    } else {
        caller_expect_sum(&c, "before");
        host_must(caller_reduce(&c, a->algo), "symwin_allreduce");
        tap_ok(caller_wait(&c) == SYMWIN_OK, "rank %d: the kernel leaves", rank);
        host_expect("the missing rank has a name", symwin_comm_check(c.member.comm), SYMWIN_TIMEOUT,
                    "symwin_comm_check|waited 300 ms for rank 2|collective 2");
        host_expect("no collective starts", caller_reduce(&c, a->algo), SYMWIN_TIMEOUT,
                    "symwin_allreduce|rank 2");
        TAP_EQ("the output is untouched", caller_differences(&c, 6), 0);
    }
    harness_barrier(team);
    if (rank == 2) { /* its kernel came to nothing, so it has no report of its own */
        host_expect(
            "the late rank comes", caller_reduce(&c, a->algo), SYMWIN_TIMEOUT,
            "symwin_allreduce_with: in collective 2, other ranks waited for rank 2|destroy");
        host_expect("and asks", symwin_comm_check(c.member.comm), SYMWIN_TIMEOUT,
                    "symwin_comm_check: in collective 2, other ranks waited for rank 2");
    }
    expect_fresh_start(&c, &a->again, "after a timeout");
    caller_close(&c);
}

/* ---- calls that differ ---- */

struct call {
    uint64_t count;
    symwin_type type;
    symwin_op op;
    symwin_algo algo;
    size_t shift; /* by which the output is shifted, bytes */
};

static const struct {
    const char *name;
    struct call usual, culprit;
} differences[] = {
    {"count, one-shot",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_ONESHOT, 0},
     {WORDS - 1, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_ONESHOT, 0}},
    {"type, one-shot",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_ONESHOT, 0},
     {WORDS, SYMWIN_F32, SYMWIN_SUM, SYMWIN_ALGO_ONESHOT, 0}},
    {"count, two-shot",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0},
     {1, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0}},
    {"type, two-shot",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0},
     {WORDS, SYMWIN_I32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0}},
    {"operation, two-shot",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0},
     {WORDS, SYMWIN_U32, SYMWIN_MAX, SYMWIN_ALGO_TWOSHOT, 0}},
    {"average and sum, two-shot",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0},
     {WORDS, SYMWIN_U32, SYMWIN_AVG, SYMWIN_ALGO_TWOSHOT, 0}},
    {"place in the window, two-shot",
     {WORDS - 8, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0},
     {WORDS - 8, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 4}},
    {"algorithm",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0},
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_ONESHOT, 0}},
    {"algorithm, the other way",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_ONESHOT, 0},
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0}},
    {"multicast and not",
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT_MC, 0},
     {WORDS, SYMWIN_U32, SYMWIN_SUM, SYMWIN_ALGO_TWOSHOT, 0}},
};

enum { DIFFERENCES = sizeof differences / sizeof differences[0], CULPRIT = 2 };

static symwin_status make_call(struct caller *c, const struct call *call)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = call->algo};

    return symwin_allreduce_with(c->member.comm, c->in, host_at(c->out, call->shift), call->count,
                                 call->type, call->op, &options, c->stream);
}

static void run_difference(struct harness_team *team, int rank, void *arg)
{
    const size_t i = *(const size_t *)arg;
    const struct call *usual = &differences[i].usual;
    struct caller c;
    char name[80];

    caller_open(&c, team, rank, PATIENT_MS, PATIENT_MS);
    caller_fill(&c, 5, 0xabcd);
    harness_barrier(team);
    snprintf(name, sizeof name, "%s differs, seen by rank %d", differences[i].name, rank);
    host_must(make_call(&c, rank == CULPRIT ? &differences[i].culprit : usual), "symwin_allreduce");
    tap_ok(caller_wait(&c) == SYMWIN_OK, "%s: the stream drains", name);
    host_expect(name, symwin_comm_check(c.member.comm), SYMWIN_MISMATCH,
                "symwin_comm_check|differs: rank 2 passed|rank 0 passed|rank 2 differs from");
    host_expect(name, make_call(&c, usual), SYMWIN_MISMATCH, "symwin_allreduce|differ");
    harness_barrier(team);
    if (usual->algo != SYMWIN_ALGO_ONESHOT)
        TAP_EQ("no output is written", caller_differences(&c, 0xabcd), 0);
    harness_barrier(team);
    caller_close(&c);
}

/* ---- calls in another order ---- */

static void run_other_order(struct harness_team *team, int rank, void *arg)
{
    symwin_window *small = NULL, *large = NULL;
    struct caller c;
    symwin_status status;

    (void)arg;
    caller_open(&c, team, rank, PATIENT_MS, PATIENT_MS);
    /* A reduction does not wait on the host, so it may come before or after a registration. */
    if (rank == 0)
        host_must(caller_reduce(&c, SYMWIN_ALGO_AUTO), "symwin_allreduce");
    host_expect("a registration between reductions",
                symwin_window_register(c.member.comm, c.member.memory, 64, 0, &small), SYMWIN_OK,
                "");
    if (rank != 0)
        host_must(caller_reduce(&c, SYMWIN_ALGO_AUTO), "symwin_allreduce");
    tap_ok(caller_wait(&c) == SYMWIN_OK &&
               caller_differences(&c, (uint32_t)(team->nranks * (team->nranks + 1) / 2)) == 0,
           "rank %d: and the sum is right", rank);
    harness_barrier(team);
    /* Registrations in another order are detected by their arguments. */
    status = symwin_window_register(c.member.comm, c.member.memory, rank == 1 ? 128 : 256, 0,
                                    &large);
    host_expect("registrations in another order, the first", status, SYMWIN_MISMATCH,
                "bytes differs|256 on rank 0|128 on rank 1");
    status = symwin_window_register(c.member.comm, c.member.memory, rank == 1 ? 256 : 128, 0,
                                    &large);
    host_expect("and the second", status, SYMWIN_MISMATCH,
                "bytes differs|128 on rank 0|256 on rank 1");
    caller_expect_sum(&c, "the communicator works on");
    /* Reductions in another order end the communicator. */
    host_must(make_call(&c, &(struct call){WORDS, SYMWIN_U32, rank == 1 ? SYMWIN_MAX : SYMWIN_SUM,
                                           SYMWIN_ALGO_TWOSHOT, 0}),
              "symwin_allreduce");
    status = make_call(&c, &(struct call){WORDS, SYMWIN_U32, rank == 1 ? SYMWIN_SUM : SYMWIN_MAX,
                                          SYMWIN_ALGO_TWOSHOT, 0});
    tap_ok(status == SYMWIN_OK || status == SYMWIN_MISMATCH,
           "rank %d: the second is taken or refused", rank);
    tap_ok(caller_wait(&c) == SYMWIN_OK, "rank %d: the stream drains", rank);
    host_expect("reductions in another order", symwin_comm_check(c.member.comm), SYMWIN_MISMATCH,
                "symwin_comm_check|collective 3");
    host_expect("and no registration either",
                symwin_window_register(c.member.comm, c.member.memory, 64, 0, &large),
                SYMWIN_MISMATCH, "symwin_window_register|differ");
    harness_barrier(team);
    caller_close(&c);
}

/* ---- two threads of one rank ---- */

struct second {
    struct caller *c;
    symwin_status reduce, enter;
};

static void *register_main(void *arg)
{
    struct second *s = arg;
    symwin_window *window = NULL;

    s->enter = symwin_window_register(s->c->member.comm, s->c->member.memory, 64, 0, &window);
    return NULL;
}

static void run_busy(struct harness_team *team, int rank, void *arg)
{
    symwin_window *window = SENTINEL;
    struct second second = {0};
    symwin_comm_info info;
    pthread_t thread;
    struct caller c;
    int64_t since = host_now_ms();

    (void)arg;
    caller_open(&c, team, rank, PATIENT_MS, PATIENT_MS);
    second.c = &c;
    if (rank == 0) {
        pthread_create(&thread, NULL, register_main, &second); /* waits for rank 1 */
        do {
            host_pause_ms(5);
            second.reduce = symwin_allreduce(c.member.comm, c.in, c.out, 0, SYMWIN_U32, SYMWIN_SUM,
                                             c.stream);
        } while (second.reduce == SYMWIN_OK && host_now_ms() - since < PATIENT_MS);
        host_expect("a reduction while another thread registers", second.reduce, SYMWIN_BUSY,
                    "symwin_allreduce|another thread");
        host_expect("so a registration",
                    symwin_window_register(c.member.comm, c.member.memory, 64, 0, &window),
                    SYMWIN_BUSY, "symwin_window_register|another thread|rank 0");
        tap_ok(window == SENTINEL, "the out-pointer is untouched");
        host_expect("queries are free", symwin_comm_query(c.member.comm, &info), SYMWIN_OK, "");
        host_expect("so are lookups", symwin_window_find(c.member.comm, c.in, 4, &window),
                    SYMWIN_OK, "");
        host_expect("and checks", symwin_comm_check(c.member.comm), SYMWIN_OK, "");
        harness_barrier(team);
        pthread_join(thread, NULL);
        host_expect("the first thread's registration succeeds", second.enter, SYMWIN_OK, "");
    } else {
        harness_barrier(team);
        host_must(symwin_window_register(c.member.comm, c.member.memory, 64, 0, &window),
                  "symwin_window_register");
    }
    caller_expect_sum(&c, "after that");
    caller_close(&c);
}

/* ---- a destroy beside other threads ---- */

static _Thread_local int is_watcher; /* it is held in the middle of its call */
static atomic_int inside, go_on, destroyed;

static void hold_watcher(void)
{
    if (!is_watcher)
        return;
    atomic_store(&inside, 1);
    while (!atomic_load(&go_on))
        host_pause_ms(1);
}

void __real_sw_group_abort_kernels(struct sw_group *group);
void __wrap_sw_group_abort_kernels(struct sw_group *group);
symwin_status __real_sw_report_status(const struct sw_kernel_report *report, int *culprit);
symwin_status __wrap_sw_report_status(const struct sw_kernel_report *report, int *culprit);

void __wrap_sw_group_abort_kernels(struct sw_group *group)
{
    hold_watcher();
    __real_sw_group_abort_kernels(group);
}

symwin_status __wrap_sw_report_status(const struct sw_kernel_report *report, int *culprit)
{
    hold_watcher();
    return __real_sw_report_status(report, culprit);
}

struct watcher {
    symwin_status (*call)(symwin_comm *comm);
    const char *name;
};

static const struct watcher watchers[] = {{symwin_comm_abort, "symwin_comm_abort"},
                                          {symwin_comm_check, "symwin_comm_check"}};

struct watch {
    const struct watcher *watcher;
    symwin_comm *comm;
};

static void *watch(void *arg)
{
    const struct watch *w = arg;

    is_watcher = 1;
    TAP_EQ(w->watcher->name, w->watcher->call(w->comm), SYMWIN_OK);
    return NULL;
}

static void *destroy(void *arg)
{
    symwin_comm_destroy(arg);
    atomic_store(&destroyed, 1);
    return NULL;
}

/* What a thread reads in the middle of its call must not be freed. */
static void run_watched(struct harness_team *team, int rank, void *arg)
{
    enum { WHILE_MS = 200 };
    struct watch w = {.watcher = arg};
    pthread_t threads[2];

    host_must(caller_comm(team, rank, PATIENT_MS, PATIENT_MS, &w.comm), "symwin_comm_create");
    harness_barrier(team);
    if (rank == 1) {
        symwin_comm_destroy(w.comm);
        return;
    }
    inside = go_on = destroyed = 0;
    if (pthread_create(&threads[0], NULL, watch, &w) != 0)
        abort();
    while (!atomic_load(&inside))
        host_pause_ms(1);
    if (pthread_create(&threads[1], NULL, destroy, w.comm) != 0)
        abort();
    host_pause_ms(WHILE_MS);
    tap_ok(!atomic_load(&destroyed), "the destroy waits for another thread's %s", w.watcher->name);
    atomic_store(&go_on, 1);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

/* ---- */

static void abort_kernels(void)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT,
                                        SYMWIN_ALGO_TWOSHOT_MC};
    const struct harness_leaks before = harness_leaks_now();
    struct abort_case a;
    size_t i;

    for (i = 0; i < sizeof algos / sizeof algos[0]; i++)
        for (a.aborter = 0; a.aborter < 2; a.aborter++) { /* 1: the rank that the others wait for */
            a.algo = algos[i];
            host_must(symwin_unique_id_create(&a.again), "symwin_unique_id_create");
            harness_run(3, run_abort_kernel, &a);
        }
    harness_no_leaks("abort while kernels wait", &before);
    for (i = 0; i < sizeof algos / sizeof algos[0]; i++) {
        a.algo = algos[i];
        host_must(symwin_unique_id_create(&a.again), "symwin_unique_id_create");
        harness_run(3, run_kernel_timeout, &a);
    }
    harness_no_leaks("kernels that time out", &before);
}

int main(void)
{
    struct harness_leaks before;
    int aborter;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    harness_run(4, run_leaver, NULL);
    harness_no_leaks("a rank that leaves", &before);
    harness_run(3, run_late, NULL);
    harness_no_leaks("a rank that is late", &before);
    for (aborter = 0; aborter < 2; aborter++)
        harness_run(3, run_abort_register, &aborter);
    harness_no_leaks("abort while ranks register", &before);
    abort_kernels();
    for (i = 0; i < DIFFERENCES; i++)
        harness_run(4, run_difference, &i);
    harness_no_leaks("calls that differ", &before);
    harness_run(3, run_other_order, NULL);
    harness_no_leaks("calls in another order", &before);
    harness_run(2, run_busy, NULL);
    harness_no_leaks("two threads", &before);
    for (i = 0; i < sizeof watchers / sizeof watchers[0]; i++)
        harness_run(2, run_watched, (void *)(uintptr_t)&watchers[i]);
    harness_no_leaks("a destroy beside other threads", &before);
    return tap_done();
}
