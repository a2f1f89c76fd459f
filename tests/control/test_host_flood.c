/* A rank that sends too many messages to a rank of another host. All ranks are told its name, and
 * not that of a process on the way. What channels may need is not too many, if the other host reads
 * nothing meanwhile. */
#include "processes.h"

enum { RANKS = 4, MOST = 3 * SW_STATE_LANES, BURST = 64, SOON_MS = 20000 };

/* The lowest rank of a host links it; host a decides. */
static const struct flood {
    const char *name, *hosts;
    int from, to;
    int waiting; /* the receiver counts so many at first */
} floods[] = {
    {"from a host to the one that decides", "aabb", 3, 1, MOST - BURST},
    {"from a host to the linking rank of the one that decides", "aabb", 3, 0, MOST - BURST},
    {"from a linking rank to the host that decides", "aabb", 2, 1, MOST - BURST},
    {"from the host that decides", "aabb", 1, 3, MOST - BURST},
    {"from the host that decides to a linking rank", "aabb", 1, 2, MOST - BURST},
    {"from the rank that links the host that decides", "aabb", 0, 3, MOST - BURST},
    {"by way of the host that decides", "abbc", 2, 3, MOST - BURST},
    {"from a host to the one that decides, each message sent", "aabb", 3, 1, 0},
};

/* Not all at once: they are to be too many for the receiver, and not for a link on the way. */
static void send_many(symwin_comm *comm, const struct flood *f)
{
    const struct sw_frame_message words = {
        .from = f->from, .to = f->to, .kind = SW_MESSAGE_GONE, .number = 1};
    int error = 0, i;

    for (i = f->waiting;
         i < MOST + BURST && error == 0 && !sw_exchange_ended(comm->group->exchange); i++) {
        error = sw_mailbox_try(comm->group, &words, -1, 0, sw_now_ms() + SOON_MS);
        if (i % BURST == 0)
            usleep(1000);
    }
}

static void body(struct processes *p, int rank)
{
    const struct flood *f = p->arg;
    const int64_t end = sw_now_ms() + SOON_MS;
    symwin_comm *comm = NULL;

    processes_on_host(f->hosts, rank);
    host_must(processes_comm(p, rank, SOON_MS, &comm), "symwin_comm_create");
    sw_poll_lock();
    if (rank == f->to)
        comm->group->waiting[f->from] = f->waiting;
    sw_poll_unlock();
    processes_barrier(p);
    if (rank == f->from)
        send_many(comm, f);
    while (!sw_exchange_ended(comm->group->exchange) && sw_now_ms() < end)
        usleep(1000);
    processes_note(p, rank, symwin_comm_check(comm));
    processes_barrier(p);
    symwin_comm_destroy(comm);
}

static void run(const struct flood *f)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)f);
    char words[32];
    int ended = 1, r;

    snprintf(words, sizeof words, "rank %d", f->from);
    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, body);
    for (r = 0; r < RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: all end well", f->name);
    for (r = 0; r < RANKS; r++) {
        sw_error_restore(p->rank[r].text);
        tap_ok(p->rank[r].status == SYMWIN_MISMATCH && host_error_has(words),
               "%s: rank %d is told: %s: %s", f->name, r, symwin_status_name(p->rank[r].status),
               p->rank[r].text);
    }
    processes_free(p);
}

/* ---- a receiver that is stopped for a while ---- */

/* Rank 0 forwards the messages. */
static const struct flood channels[] = {
    {"two messages a channel, to a rank that reads nothing", "aaab", 1, 3, MOST / 3},
    {"from another host, to one that reads nothing and links none", "aabb", 3, 1, MOST / 3},
};

static void patient(struct processes *p, int rank)
{
    const struct flood *f = p->arg;
    const int64_t end = sw_now_ms() + SOON_MS;
    symwin_comm *comm = NULL;
    int arrived = 0;

    processes_on_host(f->hosts, rank);
    host_must(processes_comm(p, rank, SOON_MS, &comm), "symwin_comm_create");
    processes_barrier(p);
    if (rank == f->to)
        sw_poll_lock();
    processes_barrier(p);
    if (rank == f->from)
        send_many(comm, f);
    processes_barrier(p);
    if (rank == f->to)
        sw_poll_unlock();
    while (rank == f->to && arrived < MOST - MOST / 3 + BURST && sw_now_ms() < end) {
        usleep(1000);
        arrived = atomic_load(&comm->group->waiting[f->from]);
    }
    processes_barrier(p);
    processes_note(p, rank, symwin_comm_check(comm));
    processes_barrier(p);
    symwin_comm_destroy(comm);
}

static void run_channels(const struct flood *f)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)f);
    int good = 1, r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, patient);
    for (r = 0; r < RANKS; r++)
        good &= processes_wait(p, r) == 0 && p->rank[r].status == SYMWIN_OK;
    tap_ok(good, "%s: %s", f->name, p->rank[f->from].text);
    processes_free(p);
}

int main(void)
{
    size_t i, count = sizeof floods / sizeof floods[0];

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    count--; /* 10 s of two cores */
#endif
    for (i = 0; i < count; i++)
        run(&floods[i]);
    for (i = 0; i < sizeof channels / sizeof channels[0]; i++)
        run_channels(&channels[i]);
    return tap_done();
}
