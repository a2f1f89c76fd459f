/* A communicator of several hosts cannot be created: the ranks of each host are told the status and
 * the rank that the failure began with. And a forked child does not continue its parent's joins. */
#include <dlfcn.h>
#include <sys/syscall.h>

#include "processes.h"
#include "src/bootstrap/member.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SHORT_MS = 2000 };
#else
enum { SHORT_MS = 500 };
#endif

enum { LONG_MS = 20000 };

/* ---- faults, by replacing calls of the C library -------------------------------------------- */

static struct processes *shared;
static int waits_to_write = -1; /* the id's file appears when this rank's status is known */
static int waits_to_be_ready = -1;
static int cannot_write;    /* no file of an id can be written */
static int cannot_join;     /* no JOIN can be sent over a local socket */
static int has_no_room;     /* the user has too many descriptors in flight */
static int links_until_end; /* the process is killed when it has sent so many links; 0: it is not */

static void wait_for_status(int rank)
{
    while (rank >= 0 && shared->rank[rank].status < 0)
        usleep(1000);
}

int rename(const char *from, const char *to)
{
    int (*of_system)(const char *, const char *);
    void *symbol = dlsym(RTLD_NEXT, "rename");

    memcpy(&of_system, &symbol, sizeof of_system);
    if (waits_to_write >= 0)
        shared->rank[1].step = 1;
    wait_for_status(waits_to_write);
    if (!cannot_write)
        return of_system(from, to);
    errno = EACCES;
    return -1;
}

/* The library sends frames over local sockets by it. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct sw_frame_header *header = message->msg_iov->iov_base;
    ssize_t sent;

    if (header->type == SW_FRAME_READY)
        wait_for_status(waits_to_be_ready);
    if (header->type == SW_FRAME_JOIN && cannot_join) {
        errno = ENOMEM;
        return -1;
    }
    if (header->type == SW_FRAME_PAGE && has_no_room) {
        errno = ETOOMANYREFS;
        return -1;
    }
    sent = (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
    if (header->type == SW_FRAME_LINK && links_until_end > 0 && --links_until_end == 0)
        kill(getpid(), SIGKILL);
    return sent;
}

/* ---- who is told what ----------------------------------------------------------------------- */

static void expect(struct processes *p, int rank, symwin_status want, const char *words)
{
    must_be(p->rank[rank].status == (int)want && strstr(p->rank[rank].text, words) != NULL, words,
            rank);
}

static void create(struct processes *p, int rank, int timeout_ms)
{
    symwin_comm *comm = NULL;

    shared = p;
    processes_note(p, rank, processes_comm(p, rank, timeout_ms, &comm));
}

/* Rank 1 is late when all have joined. On the other host nobody is. */
static void late(struct processes *p, int rank)
{
    processes_on_host("aabb", rank);
    if (rank == 1)
        waits_to_be_ready = 3;
    create(p, rank, rank == 0 ? SHORT_MS : LONG_MS);
    if (rank == 0)
        expect(p, rank, SYMWIN_TIMEOUT, "rank 1 joined, but was not ready within ");
    if (rank == 0)
        expect(p, rank, SYMWIN_TIMEOUT, " ms, the timeout of rank 0");
    if (rank > 1)
        expect(p, rank, SYMWIN_TIMEOUT, "rank 1");
}

/* Rank 2 does not come before rank 1's timeout, which is shorter than rank 0's. */
static void short_timeout(struct processes *p, int rank)
{
    while (rank == 2 && p->rank[0].status < 0)
        usleep(1000);
    if (rank < 2)
        create(p, rank, rank == 1 ? SHORT_MS : LONG_MS);
    if (rank == 0)
        expect(p, rank, SYMWIN_TIMEOUT, "rank 2 did not join within ");
    if (rank == 0)
        expect(p, rank, SYMWIN_TIMEOUT, " ms, the timeout of rank 1 (2 of 3 ranks did)");
}

/* One of ranks 1 and 2, the first, makes the id of their host too late. The other one hears from
 * the creator, before its own time is over, that rank 0's was. */
static void late_elsewhere(struct processes *p, int rank)
{
    processes_on_host("abb", rank);
    if (rank == 1)
        waits_to_write = 2;
    while (rank == 2 && p->rank[1].step == 0)
        usleep(1000);
    create(p, rank, rank == 0 ? SHORT_MS : LONG_MS);
    if (rank != 1)
        expect(p, rank, SYMWIN_TIMEOUT, "rank 1 did not join within ");
    while (rank == 0 && p->rank[2].status < 0) /* its process tells those who are late */
        usleep(1000);
}

/* Rank 2 cannot join rank 1, which has come first, on the same host. */
static void not_joined(struct processes *p, int rank)
{
    processes_on_host("abb", rank);
    while (rank == 2 && p->rank[1].step == 0)
        usleep(1000);
    if (rank == 2)
        usleep(200000);
    p->rank[rank].step = 1;
    cannot_join = rank == 2;
    create(p, rank, LONG_MS);
    expect(p, rank, SYMWIN_NO_MEMORY, "rank 2");
}

/* Rank 1 cannot make the id of its host. */
static void no_id(struct processes *p, int rank)
{
    processes_on_host("ab", rank);
    cannot_write = rank == 1;
    create(p, rank, LONG_MS);
    expect(p, rank, SYMWIN_DENIED, rank == 1 ? "cannot be written" : "rank 1: ");
}

/* The creator cannot pass the page. It does not wait for that with the poll lock held. */
static void no_room_in_flight(struct processes *p, int rank)
{
    enum { SOON_MS = 2000 };
    int64_t begin;

    has_no_room = rank == 0;
    harness_device_count();
    processes_barrier(p);
    begin = sw_now_ms();
    create(p, rank, LONG_MS);
    expect(p, rank, SYMWIN_NO_MEMORY, "descriptors in flight");
    expect(p, rank, SYMWIN_NO_MEMORY, "ulimit -n");
    must_be(sw_now_ms() - begin < SOON_MS, "soon", rank);
}

/* ---- a creator whose process has another number than its rank ------------------------------- */

/* Process 0 has ranks 0 and 1; processes from 1 on have one rank each. */
enum { CREATOR = 1, CREATORS_RANK = 2, TOLD = 3 };

struct killed {
    const char *name;
    const char *hosts; /* a letter per process */
    int ranks, links;
};

struct rank {
    struct processes *p;
    int rank;
};

static void *rank_main(void *arg)
{
    const struct rank *r = arg;
    symwin_comm *comm = NULL;

    processes_note(r->p, r->rank, processes_comm_with(r->p, r->rank, &r->p->id, LONG_MS, &comm));
    return NULL;
}

static void creator_killed(struct processes *p, int process)
{
    const struct killed *k = p->arg;
    struct rank first = {p, process == 0 ? 0 : process + 1}, second = {p, 1};
    pthread_t thread;

    processes_on_host(k->hosts, process);
    if (process == CREATOR) {
        links_until_end = k->links;
        host_must(symwin_unique_id_create(&p->id), "symwin_unique_id_create");
        p->id_made = 1;
    }
    while (!p->id_made)
        usleep(50);
    if (process == 0 && pthread_create(&thread, NULL, rank_main, &second) != 0)
        abort();
    rank_main(&first);
    if (process == 0)
        pthread_join(thread, NULL);
    if (first.rank == TOLD)
        expect(p, TOLD, SYMWIN_PEER_LOST, "the process of rank 2 ");
    if (process == 0) /* between two links it has no group yet, and says "the process that" */
        expect(p, 0, SYMWIN_PEER_LOST, k->ranks == 4 ? "rank 2" : "made the id");
}

static void kill_creator(const struct killed *k)
{
    struct processes *p = processes_new(k->ranks, (void *)(uintptr_t)k);
    int right = 1, i;

    for (i = 0; i < k->ranks - 1; i++)
        processes_fork(p, i, creator_killed);
    for (i = 0; i < k->ranks - 1; i++) {
        const int status = processes_wait(p, i);

        right &= i == CREATOR ? WIFSIGNALED(status) : status == 0;
    }
    tap_ok(right, "%s", k->name);
    processes_free(p);
}

/* ---- a fork while a join is remembered ------------------------------------------------------ */

/* Rank 1's join failed in the parent. In the child rank 0 publishes a failure for one other rank of
 * the process, which is the child's rank 1. */
static void forked(struct processes *p, int rank)
{
    struct sw_process_join *own;
    struct sw_group *group = NULL;
    int status = -1;
    struct sw_id id;
    pid_t pid;

    (void)p;
    memset(&id, 0, sizeof id);
    sw_process_join_abandon(sw_process_join_new(&id, 1), SYMWIN_NO_MEMORY, sw_now_ms());
    pid = fork();
    if (pid == 0) {
        own = sw_process_join_new(&id, 0);
        sw_process_join_publish(own, 1, sw_fail(SYMWIN_DENIED, "rank 0's"), NULL);
        own = sw_process_join_new(&id, 1);
        _exit(sw_process_join_await(own, sw_now_ms() + SHORT_MS, &group) != SYMWIN_DENIED);
    }
    must_be(waitpid(pid, &status, 0) == pid && status == 0, "the child has joins of its own", rank);
    sw_process_join_free(sw_process_join_new(&id, 1));
}

int main(void)
{
    static const struct killed killed[] = {
        {"the creator is killed when all have what they need", "aab", 4, 1},
        {"the creator is killed between two links", "aabc", 5, 1},
    };
    size_t i;

    processes_run("late, while a rank looks for the id of its host", 4, late, NULL);
    processes_run("late, and a rank of its host says so", 3, late_elsewhere, NULL);
    processes_run("one rank's timeout is shorter than the others'", 3, short_timeout, NULL);
    processes_run("a rank that cannot join those of its host", 3, not_joined, NULL);
    processes_run("too many descriptors in flight", 2, no_room_in_flight, NULL);
    processes_run("an id of a host that cannot be made", 2, no_id, NULL);
    for (i = 0; i < sizeof killed / sizeof killed[0]; i++)
        kill_creator(&killed[i]);
    processes_run("a forked child", 1, forked, NULL);
    return tap_done();
}
