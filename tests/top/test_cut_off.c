/* A host is cut off from another one at any step of a rank's life: from then on every packet
 * between them is lost, and no connection is closed. Each run is in a network namespace of its own,
 * whose loopback device is taken down. Every rank must return soon, with TIMEOUT or PEER_LOST and
 * the name of a rank of the other host; nothing is left behind. If packets are lost for a moment
 * only, nobody notices.
 *
 *     test_cut_off [STRIDE]            every STRIDE-th step (default 241; soak: 1)
 *     test_cut_off VICTIM STEP SWEEP   one run, as a complaint names it; SWEEP from 0 on */
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "life.h"
#include "rails.h"
#include "steps.h"

#if defined(__SANITIZE_THREAD__)
enum { SLOWER = 8, STRIDE = 397, VICTIMS = 1 }; /* each process takes much memory */
#elif defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 4, STRIDE = 397, VICTIMS = 2 };
#else
enum { SLOWER = 1, STRIDE = 241, VICTIMS = 4 };
#endif

enum {
    RANKS = LIFE_RANKS,
    BOOTSTRAP_MS = 3000 * SLOWER,
    CUT_MS = 400 * SLOWER, /* the ranks' patience while their host is cut off */
    MOMENT_MS = 150,       /* a retransmission may come 200 ms later, the next one 400 */
    PATIENT_MS = 20000,
    SOON_MS = 9000 * SLOWER, /* after the last packet: their patience, and what hosts wait for */
    NOTICED_MS = 20000       /* the system gives up an idle connection */
};

/* CUT: ranks have little patience. MOMENT: packets are lost for a while. IDLE, WAITS: ranks have
 * much patience, and make no call, or one that the other host does not make. */
enum way { CUT, MOMENT, IDLE, WAITS };

static const struct sweep {
    const char *name;
    enum way way;
    const char *hosts; /* a letter per rank */
    int over_domains;
    int rarely;   /* so many strides are one */
    int is_chain; /* each host is linked to the next one alone */
} sweeps[] = {
    {"cut off", CUT, "abab", 0, 1, 0},
    {"cut off, two domains", CUT, "aabb", 1, 1, 0},
    {"cut off for a moment", MOMENT, "aabb", 0, 2, 0},
    {"cut off for a moment, two domains", MOMENT, "abab", 1, 2, 0},
    {"cut off without a call", IDLE, "aabb", 0, 1, 0},
    {"cut off without a call, two domains", IDLE, "aabb", 1, 1, 0},
    {"cut off in an agreement", WAITS, "abab", 0, 1, 0},
    {"cut off, in a chain of hosts", CUT, "abcc", 0, 1, 1},
};

enum { SWEEPS = sizeof sweeps / sizeof sweeps[0] };

/* What a process sees of its runs, in shared memory. */
struct seen {
    int runs, cuts, wrong;
    atomic_int is_cut;      /* in the last run, */
    atomic_llong cut_at_us; /* ... when; 0: not yet */
};

struct plan {
    int victim;
    long nth;
    const struct sweep *sweep;
    struct seen *seen;
};

/* ---- packets --------------------------------------------------------------------------------- */

static int device_socket = -1; /* for the loopback device of this namespace */

static void carry_packets(int yes)
{
    struct ifreq request = {.ifr_name = "lo"};

    request.ifr_flags = (short)(yes ? IFF_UP : 0);
    if (ioctl(device_socket, SIOCSIFFLAGS, &request) != 0) {
        perror("the loopback device");
        abort();
    }
}

/* For this process and its children. 0: the system gives none. */
static int own_network(void)
{
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return 0;
    device_socket = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (device_socket < 0)
        return 0;
    carry_packets(1);
    return 1;
}

/* ---- the victim ------------------------------------------------------------------------------ */

static struct {
    const struct plan *plan;
    atomic_long steps;
} victim;

/* At each of its steps. */
static void count_step(const char *name)
{
    (void)name;
    if (atomic_fetch_add(&victim.steps, 1) + 1 != victim.plan->nth)
        return;
    victim.plan->seen->cut_at_us = processes_now_us();
    carry_packets(0);
    victim.plan->seen->is_cut = 1;
    if (victim.plan->sweep->way != MOMENT)
        return;
    usleep(MOMENT_MS * 1000);
    carry_packets(1);
}

/* Waits until the system, not a deadline, tells that the other host is gone. */
static void be_patient(struct processes *p, int rank, const struct plan *plan)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = 3 * NOTICED_MS, .slot_bytes = 8192};
    const int waits = plan->sweep->way == WAITS && plan->sweep->hosts[rank] == 'b';
    symwin_status status = SYMWIN_OK;
    symwin_window *window;
    symwin_comm *comm;
    int64_t until;
    void *memory;

    host_must(symwin_comm_create(processes_id(p, rank), RANKS, rank, rank % harness_device_count(),
                                 &options, &comm),
              "symwin_comm_create");
    host_must(symwin_mem_alloc(rank % harness_device_count(), 4096, 0, &memory), "memory");
    processes_barrier(p);
    if (rank == plan->victim) {
        carry_packets(0);
        plan->seen->cut_at_us = processes_now_us();
        plan->seen->is_cut = 1;
    }
    processes_barrier(p);
    until = host_now_ms() + NOTICED_MS;
    if (waits)
        status = symwin_window_register(comm, memory, 4096, 0, &window);
    while (status == SYMWIN_OK && host_now_ms() < until) {
        host_pause_ms(20);
        status = symwin_comm_check(comm);
    }
    processes_note(p, rank, status);
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

static void body(struct processes *p, int rank)
{
    const struct plan *plan = p->arg;
    const struct life how = {.timeout_ms = plan->sweep->way == CUT ? CUT_MS : PATIENT_MS,
                             .bootstrap_ms = plan->sweep->way == CUT ? BOOTSTRAP_MS : PATIENT_MS,
                             .over_domains = plan->sweep->over_domains};

    processes_on_host(plan->sweep->hosts, rank);
    if (plan->sweep->is_chain)
        sw_host_fan = 1;
    if (plan->sweep->over_domains)
        rails_set_engine(rank);
    if (plan->sweep->way >= IDLE) {
        be_patient(p, rank, plan);
        return;
    }
    if (rank == plan->victim) {
        victim.plan = plan;
        steps_each(count_step);
    }
    life(p, rank, &how);
    steps_each(NULL);
}

/* ---- one run --------------------------------------------------------------------------------- */

static void complain(const struct plan *plan, const struct processes *p, const char *what, int rank)
{
    int r;

    plan->seen->wrong++;
    fprintf(stderr, "# victim %d, step %ld, %s: rank %d: %s\n", plan->victim, plan->nth,
            plan->sweep->name, rank, what);
    for (r = 0; r < RANKS; r++)
        fprintf(stderr, "#   rank %d: %s, status %d, after %lld ms: %s\n", r,
                life_stages[p->rank[r].step], (int)p->rank[r].status,
                (long long)(p->rank[r].at_us - plan->seen->cut_at_us) / 1000, p->rank[r].text);
}

/* Whether the text names a rank of another host, or the process that made the id. */
static int names_other_host(const struct plan *plan, const char *text, int rank)
{
    char name[32];
    int r, found = strstr(text, "the process that made the id") != NULL;

    for (r = 0; r < RANKS; r++) {
        snprintf(name, sizeof name, "rank %d", r);
        found |= plan->sweep->hosts[r] != plan->sweep->hosts[rank] && strstr(text, name) != NULL;
    }
    return found;
}

static void judge(const struct plan *plan, struct processes *p, int rank, int wait_status)
{
    const symwin_status status = (symwin_status)p->rank[rank].status;

    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
        complain(plan, p, "did not end well", rank);
    else if (plan->sweep->way == MOMENT && status != SYMWIN_OK)
        complain(plan, p, "noticed", rank);
    else if (plan->sweep->way >= IDLE && status != SYMWIN_PEER_LOST)
        complain(plan, p, "did not notice", rank);
    else if (status != SYMWIN_OK && status != SYMWIN_TIMEOUT && status != SYMWIN_PEER_LOST)
        complain(plan, p, "another status", rank);
    else if (status != SYMWIN_OK && !names_other_host(plan, p->rank[rank].text, rank))
        complain(plan, p, "blames its own host", rank);
    else if (plan->sweep->way != MOMENT && plan->seen->is_cut &&
             p->rank[rank].at_us - plan->seen->cut_at_us >
                 (plan->sweep->way == CUT ? SOON_MS : NOTICED_MS) * 1000)
        complain(plan, p, "late", rank);
}

/* In a process of its own, whose network is its own. */
static void run_here(const struct plan *plan)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)plan);
    int statuses[RANKS];
    int r;

    if (!own_network())
        abort();
    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, body);
    for (r = 0; r < RANKS; r++)
        statuses[r] = processes_wait(p, r);
    for (r = 0; r < RANKS; r++)
        judge(plan, p, r, statuses[r]);
    _exit(0);
}

/* Returns whether the victim came to that step. */
static int run(const struct plan *plan)
{
    int status = 0;
    pid_t pid;

    plan->seen->runs++;
    plan->seen->is_cut = 0;
    fflush(stdout);
    pid = fork();
    if (pid == 0)
        run_here(plan);
    waitpid(pid, &status, 0);
    plan->seen->wrong += status != 0;
    plan->seen->cuts += plan->seen->is_cut;
    return plan->seen->is_cut;
}

/* One after the other, until the victim's life has no such step. */
static void run_all(struct plan *plan, long stride)
{
    plan->nth = 1 + plan->victim * stride / RANKS;
    while (run(plan) && plan->sweep->way < IDLE)
        plan->nth += stride;
}

/* All at the same time: most of it ranks wait. */
static void sweep_all(struct seen *seen, long stride)
{
    pid_t pids[SWEEPS * VICTIMS];
    int i;

    fflush(stdout);
    for (i = 0; i < SWEEPS * VICTIMS; i++) {
        const struct sweep *sweep = &sweeps[i / VICTIMS];
        struct plan plan = {.victim = i % VICTIMS, .sweep = sweep, .seen = &seen[i]};

        pids[i] = fork();
        if (pids[i] == 0) {
            run_all(&plan, stride * sweep->rarely);
            _exit(0);
        }
    }
    for (i = 0; i < SWEEPS * VICTIMS; i++) {
        int status = 0;

        waitpid(pids[i], &status, 0);
        tap_ok(status == 0 && seen[i].wrong == 0 && seen[i].cuts > 0,
               "%s, by rank %d: %d of %d runs, all ended well", sweeps[i / VICTIMS].name,
               i % VICTIMS, seen[i].cuts, seen[i].runs);
    }
}

static int network_is_there(void)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0)
        _exit(own_network() ? 0 : 1);
    waitpid(pid, &status, 0);
    return status == 0;
}

int main(int argc, char **argv)
{
    const long stride = argc > 1 ? atol(argv[1]) : STRIDE;
    struct seen *seen = mmap(NULL, SWEEPS * VICTIMS * sizeof *seen, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (seen == MAP_FAILED)
        return 1;
    if (!network_is_there()) {
        puts("1..0 # SKIP the system gives no network namespace");
        return 0;
    }
    if (argc > 3) {
        const struct plan plan = {.victim = atoi(argv[1]),
                                  .nth = atol(argv[2]),
                                  .sweep = &sweeps[atoi(argv[3]) % SWEEPS],
                                  .seen = seen};

        tap_ok(run(&plan) && seen->wrong == 0, "%s, by rank %d at step %ld", plan.sweep->name,
               plan.victim, plan.nth);
        return tap_done();
    }
    sweep_all(seen, stride);
    return tap_done();
}
