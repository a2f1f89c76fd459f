/* Ranks on several hosts, told apart by SYMWIN_HOST_ID. They meet over TCP on a loopback address,
 * and the emulated driver emulates a fabric between the hosts. */
#include <sys/resource.h>
#include <sys/syscall.h>

#include "processes.h"
#include "src/bootstrap/rendezvous.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TIME_MS = 2000 };
#else
enum { TIME_MS = 1000 };
#endif

/* The host of each rank. */
struct arrangement {
    const char *name;
    int count;
    const char *hosts; /* a letter per rank */
    const char *port;
};

static void on_host(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;

    processes_on_host(a->hosts, rank);
    everything(p, rank);
}

/* The same through a launcher's environment, with a secret that all ranks share. */
static void launch(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;
    const char host[] = {a->hosts[rank], '\0'};
    char number[16];

    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%d", p->count);
    setenv("WORLD_SIZE", number, 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1); /* so some ranks are on other hosts */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", a->port, 1);
    setenv("SYMWIN_HOST_ID", host, 1);
    setenv("SYMWIN_EMU_FABRIC", "2", 1);
}

static void launched(struct processes *p, int rank)
{
    launch(p, rank);
    if (rank == p->count - 1) { /* fails without the secret, then succeeds with it */
        symwin_unique_id id;

        must_be(symwin_unique_id_from_env(&id) == SYMWIN_DENIED &&
                    strstr(symwin_last_error(), "SYMWIN_SECRET") != NULL,
                "no secret", rank);
    }
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    if (rank != p->count - 1)
        usleep(1000);
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    everything_with(p, rank, &p->rank[rank].id);
}

/* Each host has its own secret: what rank 1 finds at the address proves nothing to it. */
static void other_secret(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;

    launch(p, rank);
    setenv("SYMWIN_SECRET", rank == 0 ? "sixteen letters!" : "SIXTEEN LETTERS!", 1);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", rank == 0 ? "2000" : "1000", 1);
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    must_be(symwin_comm_create(&p->rank[rank].id, p->count, rank, rank, NULL, &comm) ==
                    SYMWIN_TIMEOUT &&
                host_error_has(rank == 0 ? "rank 1 did not join" : "SYMWIN_SECRET differs"),
            "hears that the secret may differ", rank);
}

/* torchrun's agents restart all ranks when one has failed, and count the restarts. */
static void restart(struct processes *p, int rank, const char *count)
{
    launch(p, rank);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", count, 1);
}

/* The last rank of this round never joins, and the others are killed while they wait for it. */
static void first_round(struct processes *p, int rank)
{
    restart(p, rank, "0");
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    p->rank[rank].number = 1;
    everything_with(p, rank, &p->rank[rank].id);
}

static void second_round(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;

    restart(p, rank, a->hosts[rank] == 'a' ? "0" : "1");
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    everything_with(p, rank, &p->rank[rank].id);
}

static void restarted(const struct arrangement *a)
{
    struct processes *p = processes_new(a->count, (void *)(uintptr_t)a);
    int r;

    for (r = 0; r < a->count - 1; r++)
        processes_fork(p, r, first_round);
    for (r = 0; r < a->count - 1; r++)
        while (!p->rank[r].number)
            usleep(100);
    usleep(50000);
    /* Stopped first: otherwise one would notice that another was killed, and end by itself. */
    for (r = 0; r < a->count - 1; r++)
        kill(p->pids[r], SIGSTOP);
    for (r = 0; r < a->count - 1; r++)
        kill(p->pids[r], SIGKILL);
    for (r = 0; r < a->count - 1; r++)
        TAP_EQ("a rank of the first round is killed", WTERMSIG(processes_wait(p, r)), SIGKILL);
    processes_free(p);
    processes_run(a->name, a->count, second_round, (void *)(uintptr_t)a);
}

/* ---- a rank that is connected to itself ---- */

static atomic_int stops_at; /* the type of the frame before which this process stops, or: */
enum { AT_CONNECT = -1 };

static int own_ends; /* connections that are still to be made to themselves */

/* The system may pick any free port for the client's end. Here it picks the port where rank 0 is to
 * listen. */
int connect_instead(int fd, const struct sockaddr *address, socklen_t bytes) __asm__("connect");
int connect_instead(int fd, const struct sockaddr *address, socklen_t bytes)
{
    const int yes = 1;
    socklen_t size = sizeof(int);
    int before = 0;

    if (stops_at == AT_CONNECT && address->sa_family == AF_INET)
        raise(SIGSTOP); /* this thread: it does not go on */
    if (own_ends > 0 && address->sa_family == AF_INET) {
        getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &before, &size);
        /* the port may be in use by an earlier run's closed connections */
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        own_ends -= bind(fd, address, bytes) == 0;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &before, sizeof before);
    }
    return (int)syscall(SYS_connect, fd, address, bytes);
}

static void own_end(struct processes *p, int rank)
{
    launch(p, rank);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    if (rank == 0)
        usleep(100000); /* so that rank 1 tries first */
    else
        own_ends = 2;
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    everything_with(p, rank, &p->rank[rank].id);
    must_be(own_ends == 0, "a rank has been connected to itself", rank);
}

/* ---- two processes with one rank ---- */

enum { AGAIN = 3, LATER = 4 };

/* Two processes claim rank 1. All learn it at once: ranks that have joined, on both hosts, and the
 * one that joins after it. */
static void twice(struct processes *p, int rank)
{
    static const int says[] = {0, 1, 2, 1, 3}; /* rank 4 never joins */
    char number[16];
    symwin_comm *comm = NULL;

    launch(p, rank);
    snprintf(number, sizeof number, "%d", says[rank]);
    setenv("RANK", number, 1);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "5000", 1);
    if (rank == AGAIN)
        usleep(200000);
    while (rank == LATER && p->rank[0].status < 0)
        usleep(1000);
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    processes_note(
        p, rank,
        symwin_comm_create(&p->rank[rank].id, p->count, says[rank], says[rank], NULL, &comm));
    must_be(p->rank[rank].status == SYMWIN_INVALID && host_error_has("rank 1 joined twice"),
            "is told who came twice", rank);
    while (p->rank[rank == 0 ? LATER : 0].status < 0)
        usleep(1000);
    must_be(p->rank[rank].at_us - p->rank[0].at_us < 2000000, "is told soon", rank);
}

/* ---- an id that is released ---- */

/* Ranks of other hosts are told at once, as those of this host are. Rank 0's process lives on. */
static void released(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;
    const char host[] = {a->hosts[rank], '\0'};
    symwin_comm *comm = NULL;

    setenv("SYMWIN_HOST_ID", host, 1);
    setenv("SYMWIN_ADDR", "127.0.0.1", 1);
    processes_id(p, rank);
    if (rank == 0)
        host_must(symwin_unique_id_release(&p->id), "symwin_unique_id_release");
    harness_device_count();
    processes_barrier(p);
    if (rank != 0) {
        must_be(processes_comm(p, rank, 5000, &comm) == SYMWIN_PEER_LOST &&
                    host_error_has("has ended or released it"),
                "the id has been released", rank);
        processes_note(p, rank, SYMWIN_OK);
    }
    for (rank = 1; rank < p->count; rank++)
        while (p->rank[rank].status < 0)
            usleep(1000);
}

/* ---- a rank whose timeout expires ---- */

/* Rank 0 is late, and rank 2 never joins. The others fail when the timeout of the first of them
 * expires: the late rank 0 gets no more time than they do. */
static void waits(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    char number[16];

    if (rank == 2)
        return;
    launch(p, rank);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    snprintf(number, sizeof number, "%d", TIME_MS);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", number, 1);
    harness_device_count();
    p->rank[rank].number = processes_now_us();
    if (rank == 0)
        usleep(TIME_MS * 800);
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    processes_note(p, rank,
                   symwin_comm_create(&p->rank[rank].id, p->count, rank, rank, NULL, &comm));
    must_be(p->rank[rank].status == SYMWIN_TIMEOUT && host_error_has("rank 2 did not join"),
            "is told who did not come", rank);
    must_be(p->rank[rank].at_us - p->rank[rank].number < TIME_MS * 1500,
            "is told when the time of the first is over", rank);
}

/* ---- parts of a communicator ---- */

/* All-reduces one word per rank: ten times the rank's number in the parent, plus one. */
static void add_up(symwin_comm *part, int device, int number, uint32_t want)
{
    uint32_t *buffer = host_alloc(device, 2 * sizeof *buffer);
    symwin_window *window = NULL;

    host_put_u32(device, buffer, 10 * (uint32_t)number + 1);
    host_must(symwin_window_register(part, buffer, 8, 0, &window), "symwin_window_register");
    host_must(symwin_allreduce(part, buffer, buffer + 1, 1, SYMWIN_U32, SYMWIN_SUM, NULL),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(device, NULL), "symwin_stream_synchronize");
    must_be(host_get_u32(device, buffer + 1) == want, "the sum of the part", number);
    host_must(symwin_window_deregister(part, window), "symwin_window_deregister");
    symwin_comm_destroy(part);
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
}

/* The part of the ranks with the same letter. Checks that its hosts are told apart: all share a
 * file system here, and ranks that met through files would all be on one host. */
static void split_by(struct processes *p, int rank, symwin_comm *parent, const char *letters)
{
    const struct arrangement *a = p->arg;
    symwin_comm *part = NULL;
    char seen[27] = "";
    uint32_t sum = 0;
    int nranks = 0, r;

    for (r = 0; r < p->count; r++) {
        if (letters[r] != letters[rank])
            continue;
        nranks++;
        sum += 10 * (uint32_t)r + 1;
        if (strchr(seen, a->hosts[r]) == NULL)
            strncat(seen, &a->hosts[r], 1);
    }
    host_must(symwin_comm_split(parent, letters[rank], 0, NULL, &part), "symwin_comm_split");
    must_be(part->nranks == nranks && part->group->hosts == (int)strlen(seen),
            "ranks and hosts of a part", rank);
    add_up(part, rank % harness_device_count(), rank, sum);
}

/* The variables apply to the parent's id; the parts do not use them. */
static void split(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;
    const char host[] = {a->hosts[rank], '\0'};
    symwin_comm *parent = NULL;

    setenv("SYMWIN_HOST_ID", host, 1);
    setenv("SYMWIN_EMU_FABRIC", "2", 1);
    if (rank == 0)
        setenv("SYMWIN_ADDR", "127.0.0.2", 1);
    host_must(processes_comm(p, rank, 20000, &parent), "symwin_comm_create");
    setenv("SYMWIN_ADDR", "192.0.2.1", 1); /* of no host here (RFC 5737) */
    setenv("SYMWIN_PORT", a->port, 1);
    split_by(p, rank, parent, a->hosts); /* each host by itself */
    split_by(p, rank, parent, "xyxyxy"); /* the second rank of a host does not hold its host link */
    split_by(p, rank, parent, "xyyyyx"); /* without host 0 */
    split_by(p, rank, parent, "xxxxxx");
    symwin_comm_destroy(parent);
}

/* ---- what is left of fabric handles ---------------------------------------------------------- */

static int has_handle(const void *ballot)
{
    static const char magic[] = "symwin-emu-fab"; /* how the emulated driver's handles begin */

    return memmem(ballot, sizeof(struct sw_ballot), magic, sizeof magic - 1) != NULL;
}

/* A fabric handle gives access to the memory. When a call has returned, none is left on the control
 * page or in the ballots. */
static void no_handle(const symwin_comm *comm, int rank, const char *when)
{
    struct sw_exchange *x = comm->group->exchange;
    const uint64_t rounds = sw_exchange_rounds(x, rank);
    int left = 0;
    int r;

    sw_poll_lock(); /* posts of other hosts come under this lock */
    for (r = 0; r < comm->nranks; r++)
        left += has_handle(sw_exchange_data(x, r, rounds - 1)) +
                has_handle(sw_exchange_data(x, r, rounds - 2)) + has_handle(&comm->ballots[r]);
    sw_poll_unlock();
    must_be(left == 0, when, rank);
}

/* Registers new memory again and again. On the last rank the driver fails at one call after the
 * other, until a registration succeeds. */
static void handles(struct processes *p, int rank)
{
    const int odd = p->count - 1;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    symwin_status status;
    int failures = 0;
    unsigned n = 0;
    void *memory[64];

    processes_on_host(rank < p->count / 2 ? "a" : "b", 0);
    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    no_handle(comm, rank, "symwin_comm_create leaves a handle");
    do {
        memory[n] = host_alloc(rank, GRANULE); /* of its own */
        processes_barrier(p);
        if (rank == odd)
            sw_emu_fail_nth(n + 1, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
        status = symwin_window_register(comm, memory[n++], 1, 0, &window);
        if (rank == odd)
            p->rank[odd].step = sw_emu_fault_fired();
        sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
        failures += status != SYMWIN_OK;
        no_handle(comm, rank,
                  status == SYMWIN_OK ? "a registration leaves a handle"
                                      : "one that fails leaves a handle");
        if (status == SYMWIN_OK)
            host_must(symwin_window_deregister(comm, window), "deregister");
        processes_barrier(p);
    } while (p->rank[odd].step != 0 && n < sizeof memory / sizeof memory[0]);
    must_be(failures > 8 && status == SYMWIN_OK, "registrations that fail, and one that does not",
            rank);
    symwin_comm_destroy(comm);
    while (n-- > 0)
        host_must(symwin_mem_free(memory[n]), "symwin_mem_free");
}

/* ---- an id that rank 0 has not created ---- */

struct creator {
    const char *name;
    const char *hosts;
    int count;
    int creator;
    int link;     /* killed when it sends the link of this number; 1: the first, 0: not killed */
    int after;    /* killed after it was sent, not before */
    int is_chain; /* each host is linked to the next one alone */
};

static atomic_int links_to_go, is_killed_after;

/* Replaces the C library's; the library sends frames with descriptors by it. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct sw_frame_header *header = message->msg_iov->iov_base;
    int last = 0;
    ssize_t sent;

    if (stops_at > 0 && header->type == (uint32_t)stops_at)
        raise(SIGSTOP); /* this thread: it does not go on */
    if (links_to_go > 0 && header->type == SW_FRAME_LINK)
        last = --links_to_go == 0;
    if (last && !is_killed_after)
        kill(getpid(), SIGKILL);
    sent = (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
    if (last)
        kill(getpid(), SIGKILL);
    return sent;
}

static const symwin_unique_id *id_of_creator(struct processes *p, int rank, int creator)
{
    if (rank == creator) {
        host_must(symwin_unique_id_create(&p->id), "symwin_unique_id_create");
        p->id_made = 1;
    }
    while (!p->id_made)
        usleep(50);
    return &p->id;
}

static void made_elsewhere(struct processes *p, int rank)
{
    const struct creator *m = p->arg;

    processes_on_host(m->hosts, rank);
    if (m->is_chain)
        sw_host_fan = 1;
    everything_with(p, rank, id_of_creator(p, rank, m->creator));
}

/* All other ranks learn of it within their timeout and a little more. */
static void creator_killed(struct processes *p, int rank)
{
    const struct creator *m = p->arg;
    symwin_comm *comm = NULL;
    int64_t begin;

    processes_on_host(m->hosts, rank);
    if (m->is_chain)
        sw_host_fan = 1;
    id_of_creator(p, rank, m->creator);
    if (rank == m->creator) {
        links_to_go = m->link;
        is_killed_after = m->after;
    }
    harness_device_count();
    processes_barrier(p);
    begin = processes_now_us();
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, 5 * TIME_MS, &comm));
    must_be(p->rank[rank].status == SYMWIN_PEER_LOST || p->rank[rank].status == SYMWIN_TIMEOUT,
            "is told that the creator is lost", rank);
    must_be(processes_now_us() - begin < 9 * TIME_MS * 1000, "is told in time", rank);
}

static void run_creator(const struct creator *m)
{
    struct processes *p = processes_new(m->count, (void *)(uintptr_t)m);
    int right = 1, lost = 0;
    int r;

    for (r = 0; r < m->count; r++)
        processes_fork(p, r, m->link > 0 ? creator_killed : made_elsewhere);
    for (r = 0; r < m->count; r++) {
        const int status = processes_wait(p, r);

        right &= m->link > 0 && r == m->creator ? WIFSIGNALED(status) : status == 0;
        lost += p->rank[r].status == SYMWIN_PEER_LOST;
        if (m->link > 0 && r != m->creator)
            printf("# rank %d: %s\n", r, p->rank[r].text);
    }
    tap_ok(right, "%s (%d told SYMWIN_PEER_LOST)", m->name, lost);
    processes_free(p);
}

/* ---- who joins for its host is stopped ---- */

/* The last rank is not the lowest of its host. It comes before that, joins for both, and is stopped
 * at some step. Nobody else is named; the lowest may not know who joins for it. */
struct stopped {
    const char *name, *hosts;
    int is_chain, at;
};

static void joins_and_stops(struct processes *p, int rank)
{
    const struct stopped *s = p->arg;
    const int last = p->count - 1;
    char name[32];
    symwin_comm *comm = NULL;

    processes_on_host(s->hosts, rank);
    if (s->is_chain)
        sw_host_fan = 1;
    processes_id(p, rank);
    harness_device_count();
    processes_barrier(p);
    if (rank == last)
        stops_at = s->at;
    else if (rank == last - 1)
        usleep(200000);
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, 2 * TIME_MS, &comm));
    snprintf(name, sizeof name, "rank %d", last);
    must_be(p->rank[rank].status == SYMWIN_TIMEOUT, "TIMEOUT", rank);
    must_be(host_error_has(name) ||
                (rank == last - 1 && host_error_has("another rank of this host joins for all")) ||
                (rank == last - 1 && host_error_has("the process that made the id did not answer")),
            "names the one that is stopped", rank);
}

static void run_stopped(const struct stopped *rows, int count)
{
    struct processes *p[8];
    int i, r, right;

    for (i = 0; i < count; i++) {
        p[i] = processes_new((int)strlen(rows[i].hosts), (void *)(uintptr_t)&rows[i]);
        for (r = 0; r < p[i]->count; r++)
            processes_fork(p[i], r, joins_and_stops);
    }
    for (i = 0; i < count; i++) {
        for (r = 0, right = 1; r < p[i]->count - 1; r++)
            right &= processes_wait(p[i], r) == 0;
        kill(p[i]->pids[r], SIGKILL);
        right &= processes_wait(p[i], r) == SIGKILL;
        tap_ok(right, "%s, hosts %s%s: %s", rows[i].name, rows[i].hosts,
               rows[i].is_chain ? " in a chain" : "", p[i]->rank[0].text);
        processes_free(p[i]);
    }
}

/* ---- fewer descriptors than processes ---- */

/* The second process of each host waits on the peer sockets of its own host only, so it may have
 * fewer descriptors than there are processes: the handle exchange succeeds. Then the emulated
 * driver lacks a descriptor for each import, which a GPU's driver might not need. */
static void few_descriptors(struct processes *p, int rank)
{
    const char host[] = {(char)('a' + rank / 2), '\0'};
    const rlim_t most = (rlim_t)p->count - 1;
    const struct rlimit limit = {most, most};
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;

    processes_on_host(host, 0);
    setenv("SYMWIN_EMU_DEVICES", "2", 1);
    host_must(symwin_comm_create(processes_id(p, rank), p->count, rank, rank % 2, NULL, &comm),
              "symwin_comm_create");
    memory = host_alloc(rank % 2, GRANULE);
    if (rank % 2 == 1)
        must_be(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit", rank);
    must_be(symwin_window_register(comm, memory, GRANULE, 0, &window) == SYMWIN_DRIVER &&
                host_error_has("rank 1: cuMemImportFromShareableHandle"),
            "the handle exchange came through", rank);
    processes_barrier(p);
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* A port that the system chooses. */
static const char *fresh(void)
{
    static char ports[16][16];
    static int count;

    ports_name(ports[count]);
    return ports[count++];
}

int main(void)
{
    const struct arrangement parts[] = {
        {"parts of two hosts", 4, "aabb", fresh()},
        {"parts of three hosts", 6, "abccba", fresh()},
        {"parts of one host", 4, "aaaa", fresh()},
    };
    const struct arrangement torn = {"restarted on two hosts", 4, "aabb", fresh()};
    const struct arrangement itself = {"connected to itself", 2, "ab", fresh()};
    const struct arrangement secrets = {"two secrets", 2, "ab", fresh()};
    const struct arrangement one_twice = {"a rank comes twice", 5, "aabbb", fresh()};
    const struct arrangement given_up = {"an id is released", 3, "aab", NULL};
    const struct arrangement in_vain = {"rank 0 is late, rank 2 absent", 4, "aabb", fresh()};
    const struct arrangement arrangements[] = {
        {"two hosts", 2, "ab", NULL},       {"two of two", 4, "aabb", NULL},
        {"dealt in turn", 4, "abab", NULL}, {"one and three", 4, "abbb", NULL},
        {"three and one", 4, "aaab", NULL}, {"four hosts", 4, "abcd", NULL},
        {"three hosts", 6, "abccab", NULL},
    };
    const struct arrangement jobs[] = {
        {"launched on two hosts", 4, "aabb", fresh()},
        {"launched on two hosts, in turn", 4, "abab", fresh()},
    };
    static const struct creator creators[] = {
        {"an id made by rank 1, of the same host", "aabb", 4, 1, 0, 0, 0},
        {"an id made on the second host", "aabb", 4, 3, 0, 0, 0},
        {"an id made on the third host", "abccab", 6, 2, 0, 0, 0},
        {"killed before it hands the link over", "aabb", 4, 1, 1, 0, 0},
        {"killed when it has handed the link over", "aabb", 4, 1, 1, 1, 0},
        {"killed on the second host before it hands the link over", "aabb", 4, 3, 1, 0, 0},
        {"killed on the second host when it has", "aabb", 4, 3, 1, 1, 0},
        {"killed between two links", "aabc", 4, 1, 1, 1, 0},
        {"killed after two links", "aabc", 4, 1, 2, 1, 0},
        {"an id made on the second host of a chain", "aabcd", 5, 2, 0, 0, 1},
        {"killed when it has handed a chain's link over", "aabc", 4, 1, 1, 1, 1},
    };
    static const struct stopped stopped[] = {
        {"stopped before it joins for its host", "abb", 0, AT_CONNECT},
        {"stopped with its host's link in hand", "abb", 0, SW_FRAME_LINK},
        {"stopped before it sends GO", "abb", 0, SW_FRAME_GO},
        {"stopped before it joins for its host", "abcc", 1, AT_CONNECT},
        {"stopped with its host's link in hand", "abcc", 1, SW_FRAME_LINK},
        {"stopped before it sends GO", "abcc", 1, SW_FRAME_GO},
    };
    size_t i;

    for (i = 0; i < sizeof arrangements / sizeof arrangements[0]; i++)
        processes_run(arrangements[i].name, arrangements[i].count, on_host,
                      (void *)(uintptr_t)&arrangements[i]);
    for (i = 0; i < sizeof creators / sizeof creators[0]; i++)
        run_creator(&creators[i]);
    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        processes_run(jobs[i].name, jobs[i].count, launched, (void *)(uintptr_t)&jobs[i]);
    processes_run(itself.name, itself.count, own_end, (void *)(uintptr_t)&itself);
    processes_run(secrets.name, secrets.count, other_secret, (void *)(uintptr_t)&secrets);
    processes_run(one_twice.name, one_twice.count, twice, (void *)(uintptr_t)&one_twice);
    processes_run(given_up.name, given_up.count, released, (void *)(uintptr_t)&given_up);
    processes_run(in_vain.name, in_vain.count, waits, (void *)(uintptr_t)&in_vain);
    restarted(&torn);
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        processes_run(parts[i].name, parts[i].count, split, (void *)(uintptr_t)&parts[i]);

    run_stopped(stopped, sizeof stopped / sizeof stopped[0]); /* after those that have a port */
    processes_run("handles", 4, handles, NULL);
    processes_run("fewer descriptors than processes", 8, few_descriptors, NULL);
    return tap_done();
}
