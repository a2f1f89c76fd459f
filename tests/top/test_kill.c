/* A rank is killed, stopped or exits at any step of its life: what happens to the others.
 *
 * Four processes create a communicator, register, reduce, exchange, call each other collective,
 * deregister and destroy. The victim ends at its N-th call of the system, of malloc or of the
 * driver. Every survivor must return soon: with PEER_LOST naming the victim (TIMEOUT if it was
 * stopped), or with success if the victim was no longer needed. In calls that end by an agreement,
 * all survivors return the same. Nothing is left behind.
 *
 *     test_kill [STRIDE]                     every STRIDE-th step (default 29, more with a
 *                                            sanitizer; make soak: 1)
 *     test_kill VICTIM STEP ACTION [HOSTS [domains|chain]]
 *                                            one run, as a complaint names it; HOSTS as "abab" */
#include "life.h"
#include "rails.h"
#include "steps.h"

/* Under ThreadSanitizer a kernel takes a second. */
#if defined(__SANITIZE_THREAD__)
enum { SLOWER = 4, KERNELS_SLOWER = 16, STRIDE = 271 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 4, KERNELS_SLOWER = 4, STRIDE = 151 };
#else
enum { SLOWER = 1, KERNELS_SLOWER = 1, STRIDE = 29 };
#endif

enum {
    RANKS = LIFE_RANKS,
    BOOTSTRAP_MS = 2000 * SLOWER,
    STOP_MS = 300 * KERNELS_SLOWER,
    WAIT_MS = 20000,
    AT_ONCE_MS = 1000 * KERNELS_SLOWER,
    CREATION = 130, /* a rank's steps until then */
    MOST_DELAYS = 1 << 16
};

struct plan {
    int victim;
    long nth;
    enum steps_action action;
    int timeout_ms;
    const char *hosts; /* a letter per rank; NULL: one host */
    int over_domains;  /* each host is one */
    int is_chain;      /* each host is linked to the next one alone */
    long last;         /* no later step is the victim's end; 0: all are */
    int is_loud;       /* says what each rank was told */
};

/* In shared memory: whether the victim ended, and when. */
static struct processes *shared;
static int own_rank;

static void about_to_end(void)
{
    shared->rank[own_rank].at_us = processes_now_us();
    shared->rank[own_rank].number = 1;
}

/* A rank that is stopped while all others are in NCCL is named if its process links its host. So
 * ranks of several domains that may be stopped make no call that all go to NCCL for. */
static void body(struct processes *p, int rank)
{
    const struct plan *plan = p->arg;

    processes_on_host(plan->hosts, rank);
    if (plan->is_chain)
        sw_host_fan = 1;
    if (plan->over_domains)
        rails_set_engine(rank);
    if (rank == plan->victim) {
        shared = p;
        own_rank = rank;
        steps_before(about_to_end);
        steps_plan(plan->nth, plan->action, 0, 0);
    }
    life(p, rank,
         &(struct life){.timeout_ms = plan->timeout_ms,
                        .bootstrap_ms = BOOTSTRAP_MS,
                        .over_domains = plan->over_domains,
                        .short_life = plan->over_domains && plan->action == STEPS_STOP});
    if (rank == plan->victim) {
        p->rank[rank].number = -steps_taken(); /* it outlived its plan */
        steps_off();
    }
}

/* ---- one run ---- */

/* In shared memory: stopped ranks are waited for at the same time, in one process per victim. */
static struct seen {
    /* divided: runs in which the hosts differ, since the victim linked them */
    atomic_int runs, divided;
    atomic_int late; /* answers that name a rank which waited for the victim in an earlier call */
    struct {
        atomic_int runs, kills, wrong;
    } of[RANKS];
    atomic_int delays;
    long delays_us[MOST_DELAYS]; /* from the death to a survivor's answer */
} * seen;

static void complain(const struct plan *plan, const struct processes *p, const char *what, int rank)
{
    int r;

    seen->of[plan->victim].wrong++;
    fprintf(stderr, "# victim %d, step %ld, action %d, hosts %s%s: rank %d: %s\n", plan->victim,
            plan->nth, (int)plan->action, plan->hosts != NULL ? plan->hosts : "aaaa",
            plan->is_chain       ? " chain"
            : plan->over_domains ? " domains"
                                 : "",
            rank, what);
    for (r = 0; r < RANKS; r++)
        fprintf(stderr, "#   rank %d: %s, status %d: %s\n", r, life_stages[p->rank[r].step],
                (int)p->rank[r].status, p->rank[r].text);
}

/* Whether the victim links its host to others. */
static int is_linking(const struct plan *plan)
{
    return plan->hosts != NULL &&
           strchr(plan->hosts, plan->hosts[plan->victim]) == &plan->hosts[plan->victim];
}

/* Whether the text blames the victim, or the id's creator if the victim creates an id: the lowest
 * rank of each host does. */
static int names_victim(const struct plan *plan, const char *text)
{
    char name[32];

    snprintf(name, sizeof name, "rank %d", plan->victim);
    return strstr(text, name) != NULL || ((plan->victim == 0 || is_linking(plan)) &&
                                          strstr(text, "the process that made the id") != NULL);
}

/* If the victim is a host link, its end may keep one host's word from the other. Windows are of a
 * domain. Only the ranks of one host must agree then. */
static int may_differ(const struct plan *plan, int a, int b)
{
    return plan->hosts != NULL && (is_linking(plan) || plan->over_domains) &&
           plan->hosts[a] != plan->hosts[b];
}

/* Then ranks of one host may go on to a call in which they wait in vain for those of the other
 * host, and blame them. */
static int names_left_behind(const struct plan *plan, const struct processes *p, int rank)
{
    char name[32];
    int r, found = 0;

    for (r = 0; r < RANKS; r++) {
        snprintf(name, sizeof name, "for rank %d;", r);
        found |= r != rank && may_differ(plan, rank, r) && p->rank[r].step < p->rank[rank].step &&
                 strstr(p->rank[rank].text, name) != NULL;
    }
    return found;
}

/* Ranks that need nothing of a stopped rank go on, and wait in a later call for one that does. Its
 * time and theirs begin a moment apart. So the rank that has not come may be named first. */
static int names_late(const struct plan *plan, const struct processes *p, const char *text)
{
    char name[32];
    int r, q, found = 0;

    /* A kernel may wait for a rank that waits for the stopped one in NCCL. */
    if (plan->over_domains && plan->action == STEPS_STOP)
        found = strstr(text, "other ranks waited for rank") != NULL ||
                strstr(text, " ms for rank ") != NULL;
    for (r = 0; r < RANKS; r++) {
        snprintf(name, sizeof name, "rank %d did not c", r);
        for (q = 0; q < RANKS; q++)
            found |= q != plan->victim && p->rank[r].step < p->rank[q].step &&
                     plan->action == STEPS_STOP && strstr(text, name) != NULL;
    }
    seen->late += found;
    return found;
}

/* Any rank of a far host may be the one that joins for it, and makes an id for that host. Another
 * rank of the host does not know which one. */
static int names_host(const struct plan *plan, const struct processes *p, int rank)
{
    const char *text = p->rank[rank].text;

    return plan->hosts != NULL && p->rank[rank].step == CREATE &&
           plan->hosts[plan->victim] == plan->hosts[rank] && plan->hosts[rank] != plan->hosts[0] &&
           (strstr(text, "the process that made the id") != NULL ||
            strstr(text, "another rank of this host joins for all of them") != NULL);
}

static void judge(const struct plan *plan, struct processes *p, int rank, int wait_status)
{
    const symwin_status status = (symwin_status)p->rank[rank].status;
    const int64_t delay = p->rank[rank].at_us - p->rank[plan->victim].at_us;
    const symwin_status want = plan->action == STEPS_STOP ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST;

    if (!p->id_made)
        return;
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
        complain(plan, p, "did not end well", rank);
        return;
    }
    if (status == SYMWIN_OK)
        return;
    if (status == SYMWIN_TIMEOUT && strstr(p->rank[rank].text, "did not join within") != NULL) {
        /* It ended before it had told anybody who it was: only the clock can tell. */
        if (!names_victim(plan, p->rank[rank].text))
            complain(plan, p, "blames another", rank);
        return;
    }
    if (status != want)
        complain(plan, p, "another status", rank);
    else if (!names_victim(plan, p->rank[rank].text) && !names_host(plan, p, rank) &&
             !names_left_behind(plan, p, rank) && !names_late(plan, p, p->rank[rank].text))
        complain(plan, p, "blames another", rank);
    if (plan->action != STEPS_STOP && delay > 0) {
        const int at = atomic_fetch_add(&seen->delays, 1);

        if (at < MOST_DELAYS)
            seen->delays_us[at] = delay;
        if (delay > AT_ONCE_MS * 1000)
            complain(plan, p, "late", rank);
    }
}

/* In calls that end by an agreement, all survivors must have one outcome. */
static void judge_agreement(const struct plan *plan, struct processes *p)
{
    int first = plan->victim == 0;
    int r;

    for (r = first + 1; r < RANKS; r++) {
        const int a = p->rank[first].step, b = p->rank[r].step;

        if (r == plan->victim || a == b)
            continue;
        /* Not all ranks are needed to finish a reduction, or to begin the next call. */
        if (a >= REDUCE && b >= REDUCE && a != DEREGISTER)
            continue;
        if (may_differ(plan, first, r))
            seen->divided++;
        else
            complain(plan, p, "does not agree", r);
    }
}

static void wait_for_answers(const struct plan *plan, struct processes *p)
{
    const int64_t limit = processes_now_us() + (5 * BOOTSTRAP_MS + STOP_MS) * 1000;
    int r = 0;

    while (r < RANKS && processes_now_us() < limit) {
        if (r == plan->victim || p->rank[r].status >= 0 ||
            (r != 0 && p->rank[0].number == 1 && !p->id_made))
            r++;
        else
            usleep(1000);
    }
}

/* Returns whether the victim ended as planned. */
static int run(const struct plan *plan)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)plan);
    int statuses[RANKS];
    int r, ended;

    seen->runs++;
    seen->of[plan->victim].runs++;
    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, body);
    if (plan->action == STEPS_STOP) {
        wait_for_answers(plan, p); /* while the victim lives, it holds on to the others' memory */
        kill(p->pids[plan->victim], SIGKILL);
    }
    for (r = 0; r < RANKS; r++)
        if (r != plan->victim)
            statuses[r] = processes_wait(p, r);
    statuses[plan->victim] = processes_wait(p, plan->victim);
    ended = p->rank[plan->victim].number == 1;
    for (r = 0; r < RANKS; r++)
        if (r != plan->victim)
            judge(plan, p, r, statuses[r]);
    judge_agreement(plan, p);
    for (r = 0; r < RANKS && plan->is_loud; r++)
        printf("# rank %d: %s, status %d, after %lld ms: %s\n", r, life_stages[p->rank[r].step],
               (int)p->rank[r].status,
               (long long)(p->rank[r].at_us - p->rank[plan->victim].at_us) / 1000, p->rank[r].text);
    if (!ended && plan->action != STEPS_STOP &&
        (!WIFEXITED(statuses[plan->victim]) || WEXITSTATUS(statuses[plan->victim]) != 0))
        complain(plan, p, "was not hit and did not end well", plan->victim);
    processes_free(p);
    return ended;
}

static int by_size(const void *a, const void *b)
{
    const long x = *(const long *)a, y = *(const long *)b;

    return (x > y) - (x < y);
}

/* Every stride-th step of a rank, until it outlives its plan. Each victim begins at another step,
 * which all of them come to: a life has several hundred. */
static void sweep_victim(struct plan *plan, long stride, int later)
{
    const long apart = (stride < 400 ? stride : 400) / RANKS;

    for (plan->nth = 1 + plan->victim * apart + later;
         (plan->last == 0 || plan->nth <= plan->last) && run(plan); plan->nth += stride)
        seen->of[plan->victim].kills++;
}

/* The same on several hosts that are a chain, in each of these ways; at the same time if the victim
 * is stopped. 0: something has ended badly. */
static int sweep_chains(const struct plan *plan, long stride)
{
    static const char *const chains[] = {"abcc", "abbc", "aabc"};
    pid_t pids[3];
    int i, right = 1;

    for (i = 0; i < 3; i++) {
        struct plan one = *plan;

        one.hosts = chains[i];
        pids[i] = plan->action == STEPS_STOP ? fork() : -1;
        if (pids[i] <= 0)
            sweep_victim(&one, stride, (int)(i * stride / (RANKS * 3)));
        if (pids[i] == 0)
            _exit(0);
    }
    for (i = 0; i < 3; i++) {
        int status = 0;

        if (pids[i] > 0)
            waitpid(pids[i], &status, 0);
        right &= status == 0;
    }
    return right;
}

static void sweep(const char *name, struct plan plan, long stride)
{
    pid_t pids[RANKS];
    int victim;

#if defined(__SANITIZE_THREAD__)
    /* Only the timeout detects it, and kernels take seconds here. */
    if (plan.action == STEPS_STOP) {
        tap_ok(1, "%s # SKIP under ThreadSanitizer", name);
        return;
    }
#endif
    memset(seen->of, 0, sizeof seen->of);
    fflush(stdout);
    for (victim = 0; victim < RANKS; victim++) {
        plan.victim = victim;
        pids[victim] = plan.action == STEPS_STOP ? fork() : -1;
        if (pids[victim] <= 0 && !plan.is_chain)
            sweep_victim(&plan, stride, 0);
        else if (pids[victim] <= 0 && !sweep_chains(&plan, stride))
            seen->of[victim].wrong++;
        if (pids[victim] == 0) {
            fflush(stdout);
            _exit(0);
        }
    }
    for (victim = 0; victim < RANKS; victim++) {
        int status = 0;

        if (pids[victim] > 0)
            waitpid(pids[victim], &status, 0);
        tap_ok(status == 0 && seen->of[victim].wrong == 0 && seen->of[victim].kills > 0,
               "%s: rank %d: %d of %d runs hit, all ended well", name, victim,
               seen->of[victim].kills, seen->of[victim].runs);
    }
}

/* Repeats the run that a complaint names. */
static int again(int argc, char **argv)
{
    struct plan plan = {.victim = atoi(argv[1]),
                        .nth = atol(argv[2]),
                        .action = (enum steps_action)atoi(argv[3]),
                        .hosts = argc > 4 ? argv[4] : NULL,
                        .is_loud = 1,
                        .over_domains = argc > 5 && strcmp(argv[5], "domains") == 0,
                        .is_chain = argc > 5 && strcmp(argv[5], "chain") == 0};

    plan.timeout_ms = plan.action == STEPS_STOP ? STOP_MS : WAIT_MS;
    tap_ok(run(&plan) && seen->of[plan.victim].wrong == 0,
           "victim %d ends at step %ld, and the others well", plan.victim, plan.nth);
    return tap_done();
}

int main(int argc, char **argv)
{
    const long stride = argc > 1 ? atol(argv[1]) : STRIDE;
    int delays;

    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        return 1;
    if (argc > 3)
        return again(argc, argv);
    sweep("killed", (struct plan){.action = STEPS_KILL, .timeout_ms = WAIT_MS}, stride);
    sweep("exits", (struct plan){.action = STEPS_EXIT, .timeout_ms = WAIT_MS}, stride * 5);
    sweep("stopped", (struct plan){.action = STEPS_STOP, .timeout_ms = STOP_MS}, stride * 5);
    sweep("killed, on two hosts",
          (struct plan){.action = STEPS_KILL, .timeout_ms = WAIT_MS, .hosts = "abab"}, stride * 3);
    sweep("stopped, on two hosts",
          (struct plan){.action = STEPS_STOP, .timeout_ms = STOP_MS, .hosts = "abab"}, stride * 9);
    sweep("killed, in two domains",
          (struct plan){
              .action = STEPS_KILL, .timeout_ms = WAIT_MS, .hosts = "abab", .over_domains = 1},
          stride * 3);
    sweep("stopped, in two domains",
          (struct plan){
              .action = STEPS_STOP, .timeout_ms = STOP_MS, .hosts = "abab", .over_domains = 1},
          stride * 9);
    /* Most that may go wrong there does until hosts have agreed once. */
    sweep("killed, in a chain of hosts",
          (struct plan){.action = STEPS_KILL, .timeout_ms = WAIT_MS, .is_chain = 1}, stride * 30);
    sweep(
        "stopped, in a chain of hosts",
        (struct plan){.action = STEPS_STOP, .timeout_ms = STOP_MS, .is_chain = 1, .last = CREATION},
        stride < CREATION / 2 ? stride * 2 : CREATION - 10);
    delays = seen->delays < MOST_DELAYS ? seen->delays : MOST_DELAYS;
    qsort(seen->delays_us, (size_t)delays, sizeof seen->delays_us[0], by_size);
    tap_ok(seen->late <= RANKS + seen->runs / 100, "%d of %d runs' answers name a rank that waits",
           seen->late, seen->runs);
    if (delays > 0)
        printf("# %d runs, %d in which the hosts lost each other in the middle of an agreement; "
               "%d answers after a death: median %.1f ms, 99%% %.1f ms, slowest %.1f ms\n",
               seen->runs, seen->divided, delays, seen->delays_us[delays / 2] / 1000.0,
               seen->delays_us[delays * 99 / 100] / 1000.0, seen->delays_us[delays - 1] / 1000.0);
    return tap_done();
}
