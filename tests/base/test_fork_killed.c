/* A rank that has a child is killed: the others notice it as soon as without a child.
 *
 * A process's end shows as the end of its sockets, and a child inherits sockets. So a child must
 * hold none of them, at whatever moment it is forked. */
#include "hostile.h"

enum { RANKS = 3, VICTIM = 1, FORKS = 40, AT_ONCE_MS = 1000 };

static void outlive(struct processes *p, int which)
{
    const pid_t pid = fork();

    if (pid > 0) {
        p->pids[RANKS + which] = pid;
        return;
    }
    alarm(PROCESSES_LIMIT_S);
    pause();
    _exit(0);
}

static void die(struct processes *p, int rank)
{
    p->rank[rank].at_us = processes_now_us();
    raise(SIGKILL);
}

static void *fork_all_the_time(void *arg)
{
    struct processes *p = arg;
    int i;

    for (i = 0; i < FORKS; i++) {
        outlive(p, i);
        usleep(i < FORKS / 2 ? 0 : 1000);
    }
    return NULL;
}

/* Rank 1 has a child, and is killed while the other ranks wait for it. */
static void killed_later(struct processes *p, int rank)
{
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;

    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    memory = host_alloc(rank % harness_device_count(), 1);
    if (rank == VICTIM) {
        outlive(p, 0);
        usleep(20000);
        die(p, rank);
    }
    processes_note(p, rank, symwin_window_register(comm, memory, 1, 0, &window));
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* Rank 1 forks repeatedly while it joins. */
static void forks_while_joining(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    pthread_t thread;

    if (rank == VICTIM)
        pthread_create(&thread, NULL, fork_all_the_time, p);
    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    if (rank == VICTIM) {
        pthread_join(thread, NULL);
        die(p, rank);
    }
    while (symwin_comm_check(comm) == SYMWIN_OK)
        usleep(200);
    processes_note(p, rank, symwin_comm_check(comm));
    symwin_comm_destroy(comm);
}

static void *join_in_vain(void *arg)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    struct processes *p = arg;
    symwin_comm *comm;

    symwin_comm_create(processes_id(p, 1), p->count, 1, 0, &options, &comm);
    return NULL;
}

/* Rank 1 waits for rank 2, which does not come. Rank 1 forks and is killed. */
static void killed_while_joining(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    pthread_t thread;

    if (rank == VICTIM) {
        pthread_create(&thread, NULL, join_in_vain, p);
        usleep(300000);
        outlive(p, 0);
        die(p, rank);
    }
    while (rank == 2 && p->rank[0].status < 0)
        usleep(200);
    processes_note(p, rank, processes_comm(p, rank, 20000, &comm));
    while (rank == 0 && p->rank[2].status < 0)
        usleep(200);
}

/* Acts as the id's creator: sends TABLE, PAGE and SOCKET, but not GO. */
static int give_line(int fd, const struct sw_id *id, int line)
{
    union sw_frame in, out;
    int page = -1;

    if (hostile_answer(fd, &in) != 0 || in.header.type != SW_FRAME_HELLO ||
        sw_exchange_page(RANKS, &page) != SYMWIN_OK)
        return 0;
    memset(&out, 0, sizeof out);
    sw_frame_prove_creator(id->secret, &in.hello, &out.challenge, out.challenge.proof);
    sw_frame_seal(&out, SW_FRAME_CHALLENGE);
    if (!hostile_send_frame(fd, &out) || hostile_answer(fd, &in) != 0)
        return 0;
    memset(&out, 0, sizeof out);
    out.table.nranks = RANKS;
    out.table.processes = 2;
    out.table.hosts = 1;
    out.table.locations[1].process = 1;
    sw_frame_seal(&out, SW_FRAME_TABLE);
    if (!hostile_send_frame(fd, &out))
        return 0;
    out.pass = (struct sw_frame_pass){.process = 0};
    sw_frame_seal(&out, SW_FRAME_PAGE);
    if (sw_frame_send(fd, &out, page, INT64_MAX) != 0)
        return 0;
    sw_frame_seal(&out, SW_FRAME_SOCKET);
    close(page);
    return sw_frame_send(fd, &out, line, INT64_MAX) == 0;
}

/* Rank 0 is a creator written by hand; rank 1 is killed while it is being handed its peer
 * socket. */
static void killed_with_a_line(struct processes *p, int rank)
{
    struct sockaddr_un address;
    int listener, fd, ends[2];
    pthread_t thread;
    struct sw_id id;

    if (rank == VICTIM) {
        hostile_wait_for_id(p);
        pthread_create(&thread, NULL, join_in_vain, p);
        while (p->rank[0].step == 0)
            usleep(200);
        usleep(50000);
        outlive(p, 0);
        die(p, rank);
    }
    memset(&id, 0, sizeof id);
    memcpy(id.magic, "symwin02", sizeof id.magic);
    snprintf(id.folder, sizeof id.folder, "/tmp/symwin-fork-XXXXXX");
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (mkdtemp(id.folder) == NULL)
        perror("mkdtemp");
    address = hostile_address(id.folder);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 1) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        perror("socket");
    memcpy(&p->id, &id, sizeof id);
    p->id_made = 1;
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    must_be(give_line(fd, &id, ends[1]), "a creator by hand", rank);
    close(ends[1]);
    p->rank[rank].step = 1;
    must_be(hostile_dropped(ends[0]), "the line is held by a child", rank);
    processes_note(p, rank, sw_fail(SYMWIN_PEER_LOST, "the line to rank 1 has broken"));
    close(ends[0]);
    close(fd);
    close(listener);
    unlink(address.sun_path);
    rmdir(id.folder);
}

/* Whether the process has ended. It can still be waited for. */
static int has_ended(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

static void run_killed(const char *name, int count, void (*body)(struct processes *p, int rank))
{
    struct processes *p = processes_new(RANKS, NULL);
    int64_t ms;
    int ended;
    int r;

    for (r = 0; r < count; r++)
        processes_fork(p, r, body);
    ended = processes_wait(p, VICTIM) == SIGKILL;
    for (r = 0; r < count; r += 2)
        while (p->rank[r].status < 0 && !has_ended(p->pids[r]))
            usleep(200);
    /* The children keep rank 1's mappings of others' memory alive, as with a real driver. */
    for (r = RANKS; r < RANKS + FORKS; r++)
        if (p->pids[r] > 0)
            kill(p->pids[r], SIGKILL);
    for (r = 0; r < count; r += 2)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: all end as they should", name);
    for (r = 0; r < count; r += 2) {
        ms = (p->rank[r].at_us - p->rank[VICTIM].at_us) / 1000;
        tap_ok(p->rank[r].status == SYMWIN_PEER_LOST && ms < AT_ONCE_MS &&
                   strstr(p->rank[r].text, "rank 1") != NULL,
               "%s: rank %d knows after %lld ms: %s", name, r, (long long)ms, p->rank[r].text);
    }
    processes_free(p);
}

int main(void)
{
    run_killed("killed with a child", RANKS, killed_later);
    run_killed("killed while joining, with a child", RANKS, killed_while_joining);
    run_killed("killed while it is given a line", 2, killed_with_a_line);
    run_killed("killed with children from when it joined", RANKS, forks_while_joining);
    return tap_done();
}
