/* The fault sweep across processes: every call of the system, of malloc and of the driver in the
 * life of a communicator fails, one after the other, once or for good.
 *
 * Four ranks create a communicator, register, reduce, call each other collective, make channels,
 * connect registered memory, register again, deregister and destroy. They are four processes, four
 * threads of one, or two processes of two threads. One process (for faults of the driver: one rank)
 * is the victim. Whatever the fault, every rank returns soon; in agreed calls all ranks have one
 * status that names one rank, the victim's; every failure has an error text; nothing is left
 * behind; and without the fault the same processes succeed with a new id. An interrupted call
 * (EINTR) never fails. A tuning table is read, too.
 *
 * If a rank cannot tell some of the others, since its connection to them failed, those get TIMEOUT
 * or PEER_LOST, which name it.
 *
 *     test_system_faults [STRIDE [SWEEP [OFFSET]]]   every STRIDE-th step (make soak: 1); only
 *                                                    sweep 0 to 11; not the first step but a
 *                                                    later one */
#include "fault_life.h"

#if defined(__SANITIZE_THREAD__)
enum { DEFAULT_STRIDE = 2503, EACH = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { DEFAULT_STRIDE = 1499, EACH = 5 };
#else
enum { DEFAULT_STRIDE = 307, EACH = 1 }; /* one in EACH of the kinds of faults */
#endif

enum {
    HANG_MS = 9000 * SLOWER,
    FRESH = 8,       /* a process makes its one-time calls among its first steps */
    MOST_WRONG = 20, /* then a sweep ends */
    RETRY_EACH = 8   /* across processes: a life without a fault after this many with one */
};

static const char *const stage_names[STAGES] = {
    "id",      "create",  "alloc",          "register",   "reduce", "each collective",
    "channel", "connect", "register again", "deregister", "end"};

static const char *const kind_names[KINDS] = {"nothing", "system", "interruption", "driver"};

static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE};

enum { CODES = sizeof codes / sizeof codes[0], VARIANTS = 3 };

struct arrangement {
    const char *name;
    int processes;     /* rank r is a thread of process r % processes */
    const char *hosts; /* a letter per process; NULL: one host */
};

static const struct arrangement arrangements[] = {{"4 threads", 1, NULL},
                                                  {"4 processes", 4, NULL},
                                                  {"2 processes of 2 threads", 2, NULL},
                                                  {"4 processes on 2 hosts", 4, "abab"}};

enum {
    PER_ARRANGEMENT = KINDS - 1,
    ALL_SWEEPS = sizeof arrangements / sizeof arrangements[0] * PER_ARRANGEMENT
};

static char table[] = "/tmp/symwin-test.XXXXXX"; /* SYMWIN_TUNING names this file */

/* ---- in the parent: the processes of one arrangement ---- */

static struct {
    struct processes *p; /* NULL: not started */
    struct board *board;
    const struct arrangement *arrangement;
} pool;

static struct {
    int faults, runs, retries, late, divided, wrong, absorbed;
    int64_t slowest_us;
} seen;

static void pool_start(const struct arrangement *arrangement)
{
    int i;

    pool.board = mmap(NULL, sizeof *pool.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
    if (pool.board == MAP_FAILED) {
        perror("pool_start");
        exit(1);
    }
    pool.arrangement = arrangement;
    pool.board->processes = arrangement->processes;
    pool.board->hosts = arrangement->hosts;
    pool.p = processes_new(RANKS, pool.board);
    for (i = 0; i < arrangement->processes; i++)
        processes_fork(pool.p, i, fault_life);
}

/* Returns how many processes failed. */
static int pool_stop(int kill_them)
{
    int wrong = 0;
    int i;

    if (pool.p == NULL)
        return 0;
    pool.board->quit = 1;
    for (i = 0; i < pool.arrangement->processes; i++) {
        if (kill_them)
            kill(pool.p->pids[i], SIGKILL);
        wrong += processes_wait(pool.p, i) != 0;
    }
    processes_free(pool.p);
    munmap(pool.board, sizeof *pool.board);
    pool.p = NULL;
    return wrong;
}

/* Whether all processes completed the round. */
static int pool_round(const struct plan *plan)
{
    const int64_t start = processes_now_us();
    struct board *b = pool.board;
    siginfo_t dead;
    int r;

    b->plan = *plan;
    b->id_made = 0;
    b->hit[0] = '\0';
    b->hit_rank = -1;
    b->done = 0;
    for (r = 0; r < RANKS; r++) {
        pool.p->rank[r].status = -1;
        pool.p->rank[r].text[0] = '\0';
    }
    b->round++;
    while (b->done < b->processes) {
        dead.si_pid = 0;
        if (processes_now_us() - start > HANG_MS * 1000 ||
            (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) == 0 && dead.si_pid != 0))
            return 0;
        usleep(100);
    }
    if (processes_now_us() - start > seen.slowest_us)
        seen.slowest_us = processes_now_us() - start;
    return 1;
}

/* ---- judging ---- */

static int is_victims(const struct plan *plan, int rank)
{
    if (plan->kind == DRIVER)
        return rank == plan->victim;
    return rank >= 0 && rank % pool.arrangement->processes == plan->victim;
}

/* The rank that a text blames; -1: none. */
static int culprit(const char *text)
{
    const char *creator = strstr(text, "the process that made the id");
    const char *at = strstr(text, "rank ");

    if (creator != NULL && (at == NULL || creator < at))
        return 0;
    return at != NULL && at[5] >= '0' && at[5] <= '9' ? atoi(at + 5) : -1;
}

static int is_agreed(int stage)
{
    return stage == CREATE || stage == REGISTER || stage == AGAIN;
}

/* All ranks are in one agreed call that failed. NULL: with one status. */
static const char *judge_alike(const struct plan *plan, const struct processes *p, int stage)
{
    const int named = culprit(p->rank[0].text);
    int r;

    for (r = 0; r < RANKS; r++) {
        if (p->rank[r].step != stage || p->rank[r].status == SYMWIN_OK)
            return "an agreed call failed on some ranks only";
        if (p->rank[r].status != p->rank[0].status)
            return "statuses differ";
        if (culprit(p->rank[r].text) != named)
            return "sentences name different ranks";
    }
    if (named >= 0 && !is_victims(plan, named))
        return "another rank is named";
    if (named < 0 && plan->kind == DRIVER)
        return "no rank is named";
    return NULL;
}

/* Whether a rank has the status of one of the victim's ranks, and blames that rank. */
static int was_told(const struct plan *plan, const struct processes *p, int rank)
{
    int r, equal = 0;

    for (r = 0; r < RANKS; r++)
        equal |= is_victims(plan, r) && p->rank[r].status == p->rank[rank].status;
    return equal && is_victims(plan, culprit(p->rank[rank].text));
}

/* A victim that cannot tell the others. They have one status, which blames the victim. Some may
 * have been told: by another rank of its process, or before its connection failed for good. Of a
 * channel, the other end may have been told, or all ranks if the victim cannot receive messages,
 * which come early. */
static const char *judge_divided(const struct plan *plan, const struct processes *p, int stage)
{
    const int some_may_be_told = plan->persistent || stage >= REDUCE ||
                                 pool.arrangement->processes < RANKS;
    symwin_status common = SYMWIN_OK;
    int r;

    for (r = 0; r < RANKS; r++) {
        const symwin_status status = (symwin_status)p->rank[r].status;

        if (is_victims(plan, r) || (some_may_be_told && was_told(plan, p, r)))
            continue;
        if (status != SYMWIN_TIMEOUT && status != SYMWIN_PEER_LOST && status != SYMWIN_ABORTED &&
            strstr(p->rank[r].text, "could not open a socket") == NULL)
            return "another status";
        if (common != SYMWIN_OK && status != common && !plan->persistent)
            return "the others' statuses differ";
        if (!is_victims(plan, culprit(p->rank[r].text)))
            return "another rank is blamed";
        common = status;
    }
    return NULL;
}

/* A process that links hosts and can neither send nor receive any more cannot say so: to each host
 * the other one seems late, and one host may know more than the other. Rank 2 never links. */
static int is_mute(const struct plan *plan, const struct processes *p)
{
    int r;

    for (r = 0; r < RANKS; r++)
        if (p->rank[r].status != SYMWIN_OK && p->rank[r].status != SYMWIN_TIMEOUT &&
            p->rank[r].status != SYMWIN_PEER_LOST && p->rank[r].status != SYMWIN_ABORTED &&
            !is_victims(plan, r) && !is_victims(plan, culprit(p->rank[r].text)))
            return 0;
    return plan->persistent && plan->victim != 2;
}

/* The victim could not stat its own folder, and used another one. */
static int is_elsewhere(const struct board *b)
{
    return strcmp(b->hit, "lstat") == 0;
}

/* Of two ranks of a host that have not found each other, the sentence names both. */
static int was_not_found(const struct plan *plan, const char *text)
{
    static const char words[] = "did not find rank ";
    const char *at = strstr(text, words);

    return at != NULL && is_victims(plan, atoi(at + sizeof words - 1));
}

/* While ranks of two hosts meet, each learns of a failure in one of several ways, and fails. On
 * each host a process creates an id: rank 0, and any rank of the other host. */
static const char *judge_hosts(const struct plan *plan, const struct processes *p)
{
    int r;

    for (r = 0; r < RANKS; r++) {
        const char *text = p->rank[r].text;

        if (p->rank[r].step != CREATE || p->rank[r].status == SYMWIN_OK)
            return "an agreed call failed on some ranks only";
        if (!is_victims(plan, r) && !is_victims(plan, culprit(text)) &&
            !was_not_found(plan, text) &&
            (plan->victim == 2 || strstr(text, "the process that made the id") == NULL))
            return "another rank is blamed";
    }
    return NULL;
}

/* Whether a failure may leave the victim with a status that the others lack. */
static int may_divide(const struct plan *plan, int stage)
{
    return plan->kind == SYSTEM && (plan->persistent || stage == CREATE);
}

static const char *judge(const struct plan *plan, const struct processes *p, const struct board *b)
{
    int first = ENDED;
    const char *wrong;
    int r;

    for (r = 0; r < b->processes; r++)
        if (b->left[r].objects != 0 || b->left[r].fds != 0 || b->left[r].threads != 0)
            return "something is left behind";
    for (r = 0; r < RANKS; r++) {
        if (p->rank[r].status == SYMWIN_OK)
            continue;
        if (p->rank[r].text[0] == '\0' ||
            (is_agreed(p->rank[r].step) && strncmp(p->rank[r].text, "symwin_", 7) != 0))
            return "a failure without a sentence";
        if (p->rank[r].step < first)
            first = p->rank[r].step;
    }
    if (first == ENDED)
        return NULL;
    if (b->hit[0] == '\0')
        return "fails without a fault";
    if (plan->kind == INTERRUPTION)
        return "fails for a signal";
    if (first == ID) /* no other rank has begun */
        return is_victims(plan, 0) ? NULL : "another rank cannot make an id";
    if (first == CONNECT && judge_alike(plan, p, first) == NULL)
        return NULL; /* in the agreement that connects; before and after it ranks may differ */
    if (!is_agreed(first))
        return b->hosts != NULL && is_mute(plan, p) ? NULL : judge_divided(plan, p, first);
    wrong = judge_alike(plan, p, first);
    if (wrong == NULL || !may_divide(plan, first))
        return wrong;
    seen.divided++;
    if (b->hosts != NULL && (is_mute(plan, p) || is_elsewhere(b)))
        return NULL;
    if (b->hosts != NULL && first == CREATE)
        return judge_hosts(plan, p);
    return judge_divided(plan, p, first);
}

static void complain(const struct plan *plan, const char *what)
{
    const struct processes *p = pool.p;
    const struct board *b = pool.board;
    int r;

    seen.wrong++;
    fprintf(stderr, "# %s: %s fault %ld (%s of rank %d), victim %d, variant %d%s: %s\n",
            pool.arrangement->name, kind_names[plan->kind], plan->nth, b->hit, b->hit_rank,
            plan->victim, plan->variant, plan->persistent ? ", for good" : "", what);
    for (r = 0; r < RANKS; r++)
        fprintf(stderr, "#   rank %d: %s, status %d: %s\n", r, stage_names[p->rank[r].step],
                (int)p->rank[r].status, p->rank[r].text);
    for (r = 0; r < b->processes; r++)
        if (b->left[r].objects != 0 || b->left[r].fds != 0 || b->left[r].threads != 0)
            fprintf(stderr, "#   process %d leaves %d objects, %d descriptors, %d threads\n", r,
                    b->left[r].objects, b->left[r].fds, b->left[r].threads);
}

/* ---- the sweep ---- */

/* Whether a rank came too late that the fault has not hit: on a busy machine that is no fault of
 * the library. */
static int is_late(const struct plan *plan)
{
    int r;

    for (r = 0; r < RANKS; r++)
        if (pool.p->rank[r].status == SYMWIN_TIMEOUT &&
            (pool.board->hit[0] == '\0' || !is_victims(plan, culprit(pool.p->rank[r].text))))
            return 1;
    return 0;
}

/* One run, again while a rank is late, three times at most. Returns whether the fault hit. */
static int run(const struct arrangement *arrangement, const struct plan *plan)
{
    const char *wrong;
    int hit, r, again;

    for (again = 0;; again++) {
        if (pool.p == NULL)
            pool_start(arrangement);
        seen.runs++;
        if (!pool_round(plan)) {
            complain(plan, "a process hangs or died");
            pool_stop(1);
            return 1;
        }
        wrong = judge(plan, pool.p, pool.board);
        if (wrong == NULL || again == 3 || !is_late(plan))
            break;
        seen.late++;
        pool_stop(0);
    }
    hit = pool.board->hit[0] != '\0';
    if (wrong != NULL) {
        complain(plan, wrong);
        pool_stop(0);
    } else {
        for (r = 0; r < RANKS && pool.p->rank[r].status == SYMWIN_OK; r++)
            ;
        seen.absorbed += hit && r == RANKS;
    }
    return hit;
}

/* A process queries only once whether fabric handles are permitted. */
static int is_remembered(const struct arrangement *arrangement, const struct plan *plan)
{
    return arrangement->hosts != NULL && plan->kind == DRIVER &&
           plan->code == CUDA_ERROR_NOT_PERMITTED;
}

static void retry(const struct arrangement *arrangement, const struct plan *plan)
{
    const struct plan none = {.kind = NOTHING, .nth = plan->nth};

    if (pool.p == NULL || is_remembered(arrangement, plan) ||
        (arrangement->processes > 1 && plan->nth % RETRY_EACH != 0))
        return;
    seen.retries++;
    run(arrangement, &none);
}

/* of the first step in a stride; runs with all offsets together cover all steps */
static long offset;

/* Every stride-th step of a victim, until it outlives its plan. Returns the number of faults. */
static int sweep(const struct arrangement *arrangement, struct plan plan, long stride)
{
    const long start = 1 +
                       (offset + plan.victim * 7 + plan.variant * 5 + plan.persistent * 3) % stride;
    const int wrong = seen.wrong;
    int faults = 0;

    for (plan.nth = start; seen.wrong - wrong < MOST_WRONG; plan.nth += stride) {
        if ((plan.nth <= FRESH || is_remembered(arrangement, &plan)) && pool_stop(0) != 0)
            complain(&plan, "does not end well");
        if (!run(arrangement, &plan))
            break;
        faults++;
        retry(arrangement, &plan);
    }
    seen.faults += faults;
    return faults;
}

/* All victims, variants and persistences of one kind. */
static void sweep_kind(const struct arrangement *arrangement, enum kind kind, long stride)
{
    const int victims = kind == DRIVER ? RANKS : arrangement->processes;
    const int variants = kind == DRIVER ? CODES : kind == SYSTEM ? VARIANTS : 1;
    const int persistences = kind == INTERRUPTION ? 1 : 2;
    struct plan plan = {.kind = kind};
    const int64_t start = processes_now_us();
    const int wrong = seen.wrong;
    int faults = 0, one = 0;

    for (plan.victim = 0; plan.victim < victims; plan.victim++)
        for (plan.variant = 0; plan.variant < variants; plan.variant++)
            for (plan.persistent = 0; plan.persistent < persistences; plan.persistent++)
                if (one++ % EACH == 0) {
                    plan.code = kind == DRIVER ? codes[plan.variant] : CUDA_SUCCESS;
                    faults += sweep(arrangement, plan, stride);
                }
    if (pool_stop(0) != 0) {
        printf("# a process did not end well\n");
        seen.wrong++;
    }
    tap_ok(seen.wrong == wrong && faults > 0, "%s: %d faults of kind %s in %.1f s",
           arrangement->name, faults, kind_names[kind], (processes_now_us() - start) / 1e6);
}

/* Threads of one process never have to wait for a timeout: many of their steps run even in a short
 * run. A communicator's life has thousands of driver calls, most of them alike, since it loads
 * kernels: fewer of them run. */
static void sweep_strided(int which, long stride)
{
    const struct arrangement *arrangement = &arrangements[which / PER_ARRANGEMENT];
    const enum kind kind = (enum kind)(1 + which % PER_ARRANGEMENT);

    if (kind == DRIVER)
        stride *= 2;
    else if (arrangement->hosts != NULL)
        stride *= 3; /* a process that is silent for good costs the full timeouts */
    else if (arrangement->processes == 1)
        stride = (stride + 40) / 41;
    sweep_kind(arrangement, kind, stride);
}

static void set_table(void)
{
    static const char rows[] = "gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"
                               "symwin emulated GPU,4,4,integer,1,64,twoshot_push,1,64\n"
                               "symwin emulated GPU,4,4,integer,1,4096,oneshot,1,64\n";
    const int fd = mkstemp(table);

    if (fd < 0 || write(fd, rows, strlen(rows)) != (ssize_t)strlen(rows) || close(fd) != 0)
        abort();
    setenv("SYMWIN_TUNING", table, 1);
}

int main(int argc, char **argv)
{
    const long stride = argc > 1 ? atol(argv[1]) : DEFAULT_STRIDE;
    const int only = argc > 2 ? atoi(argv[2]) : -1;
    int which;

    offset = argc > 3 ? atol(argv[3]) : 0;
    set_table();
    for (which = 0; which < ALL_SWEEPS; which++)
        if (only < 0 || which == only)
            sweep_strided(which, stride);
    printf("# %d faults in %d runs: %d absorbed, %d where the victim could not tell the others; %d "
           "retries without a fault; %d runs again for a late rank; slowest %.1f ms\n",
           seen.faults, seen.runs, seen.absorbed, seen.divided, seen.retries, seen.late,
           seen.slowest_us / 1000.0);
    tap_ok(seen.late <= 1 + seen.runs / 100, "at most one run of a hundred is late");
    unlink(table);
    return tap_done();
}
