/* Hosts whose ranks join by one process of their host: of two ranks of a host, the lower one comes
 * first and joins for both. A rank in each place is killed, stopped, or never comes, while the
 * others wait for the last rank; and all come. */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "processes.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SHORT_MS = 3000 };
#else
enum { SHORT_MS = 1000 };
#endif

enum { LONG_MS = 20000, SETTLED_MS = 300 };

struct job {
    const char *name, *hosts; /* a letter for each rank */
    enum { NOTHING, KILLED, STOPPED, ABSENT } fault;
    int victim;
    symwin_status want;
    const char *words;
    int is_chain; /* each host is linked to the next one alone */
};

/* The lower rank of each host comes first, and the last rank of all when the fault is known. */
static void come_in_turn(struct processes *p, int rank)
{
    const struct job *job = p->arg;

    while (rank % 2 == 1 && p->rank[rank - 1].step == 0)
        usleep(1000);
    if (rank % 2 == 1)
        usleep(SETTLED_MS * 1000 / 2);
    while (job->fault != NOTHING && rank == p->count - 1 && p->rank[0].status < 0)
        usleep(1000);
    p->rank[rank].step = 1;
}

static void create(struct processes *p, int rank)
{
    const struct job *job = p->arg;
    const int time_ms = job->fault == KILLED ? LONG_MS : SHORT_MS;
    symwin_comm *comm = NULL;

    processes_on_host(job->hosts, rank);
    if (job->is_chain)
        sw_host_fan = 1;
    processes_id(p, rank);
    harness_device_count();
    if (job->fault == ABSENT && rank == job->victim)
        return;
    come_in_turn(p, rank);
    p->rank[rank].number = processes_now_us();
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, time_ms, &comm));
    /* a rank whose host's process is stopped hears nothing */
    must_be(p->rank[rank].status == (int)job->want &&
                (host_error_has(job->words) || (job->fault == STOPPED && rank == job->victim + 1)),
            job->words, rank);
    must_be(processes_now_us() - p->rank[rank].number < (time_ms + 4000) * 1000, "in time", rank);
    while (rank == 0 && p->rank[p->count - 1].status < 0) /* its process tells the late one */
        usleep(1000);
}

static void run(const struct job *job)
{
    const int count = (int)strlen(job->hosts);
    struct processes *p = processes_new(count, (void *)(uintptr_t)job);
    int right = 1, r;

    for (r = 0; r < count; r++)
        processes_fork(p, r, create);
    for (r = 0; r < count - 1; r++)
        while (p->rank[r].step == 0 && !(job->fault == ABSENT && r == job->victim))
            usleep(1000);
    usleep(SETTLED_MS * 1000);
    if (job->fault == KILLED || job->fault == STOPPED)
        kill(p->pids[job->victim], job->fault == KILLED ? SIGKILL : SIGSTOP);
    for (r = 0; r < count; r++) {
        if (job->fault == STOPPED && r == job->victim)
            continue;
        right &= processes_wait(p, r) == (job->fault == KILLED && r == job->victim ? SIGKILL : 0);
    }
    if (job->fault == STOPPED) {
        kill(p->pids[job->victim], SIGKILL);
        processes_wait(p, job->victim);
    }
    tap_ok(right, "%s: %s", job->name, p->rank[0].text);
    processes_free(p);
}

/* Rank 2 comes when the process that joins for its host, rank 1's, is stopped. It does not join for
 * the host a second time. */
static void comes_to_stopped(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;

    processes_on_host("abb", rank);
    processes_id(p, rank);
    harness_device_count();
    while (rank == 2 && p->rank[1].step < 2)
        usleep(1000);
    p->rank[rank].step = 1;
    processes_note(
        p, rank, processes_comm_with(p, rank, &p->id, rank == 2 ? SHORT_MS : 2 * SHORT_MS, &comm));
    must_be(p->rank[rank].status == SYMWIN_TIMEOUT, "TIMEOUT", rank);
    must_be(
        rank != 0 || host_error_has("rank 1, which joins") ||
            host_error_has("rank 1 has joined, but did not come"), /* it had, on a busy machine */
        "the stopped one is named", rank);
}

static void come_to_stopped(void)
{
    struct processes *p = processes_new(3, NULL);
    int right = 1, r;

    for (r = 0; r < 3; r++)
        processes_fork(p, r, comes_to_stopped);
    while (p->rank[1].step == 0)
        usleep(1000);
    usleep(SETTLED_MS * 1000);
    kill(p->pids[1], SIGSTOP);
    p->rank[1].step = 2;
    right &= processes_wait(p, 2) == 0;
    right &= processes_wait(p, 0) == 0;
    kill(p->pids[1], SIGKILL);
    processes_wait(p, 1);
    tap_ok(right, "a rank comes when the process that joins for its host is stopped: %s",
           p->rank[2].text);
    processes_free(p);
}

/* Of a process that may not listen by TCP. */
static int cannot_listen;

int listen(int fd, int backlog)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;

    if (cannot_listen && getsockname(fd, (struct sockaddr *)&address, &bytes) == 0 &&
        address.ss_family != AF_UNIX) {
        errno = EACCES;
        return -1;
    }
    return (int)syscall(SYS_listen, fd, backlog);
}

/* Processes of host c may not listen. That matters only if other hosts are to be below it. */
static void no_port(struct processes *p, int rank)
{
    const int is_star = p->arg != NULL;
    symwin_comm *comm = NULL;

    processes_on_host("abcdabcd", rank);
    sw_host_fan = is_star ? 3 : 1;
    processes_id(p, rank);
    harness_device_count();
    cannot_listen = rank % 4 == 2;
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, LONG_MS, &comm));
    must_be(p->rank[rank].status == (is_star ? SYMWIN_OK : SYMWIN_DENIED), "status", rank);
    must_be(is_star || host_error_has("'s process cannot listen for other hosts"), "text", rank);
    symwin_comm_destroy(comm);
}

/* All come, and use the communicator. */
static void all_come(struct processes *p, int rank)
{
    processes_on_host(p->arg, rank);
    everything(p, rank);
}

static void all_come_in_chain(struct processes *p, int rank)
{
    sw_host_fan = 1;
    all_come(p, rank);
}

/* A channel to the host after the next one: its messages go over the host between. */
static void channel_over_a_host(struct processes *p, int rank)
{
    symwin_channel_end *end = NULL;
    symwin_comm *comm = NULL;
    symwin_channel channel;
    void *memory;

    processes_on_host("abcd", rank);
    sw_host_fan = 1;
    host_must(processes_comm(p, rank, LONG_MS, &comm), "symwin_comm_create");
    memory = host_alloc(rank % harness_device_count(), 4096);
    host_must(symwin_channel_create(comm, rank ^ 2, memory, 4096, NULL, &end), "create");
    host_must(symwin_channel_connect(comm, end, &channel), "connect");
    host_must(symwin_channel_destroy(comm, end), "destroy");
    processes_barrier(p);
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* Ranks of one host that look for each other in different folders. */
static void apart(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    char folder[32];

    processes_on_host("abb", rank);
    snprintf(folder, sizeof folder, "%s/%d", (const char *)p->arg, rank);
    must_be(mkdir(folder, 0700) == 0, "mkdir", rank);
    if (rank > 0)
        setenv("TMPDIR", folder, 1);
    processes_note(p, rank, processes_comm(p, rank, LONG_MS, &comm));
    must_be(p->rank[rank].status == SYMWIN_INVALID && host_error_has("need the same TMPDIR"),
            "is told of the folders", rank);
    while (rank == 0 && (p->rank[1].status < 0 || p->rank[2].status < 0))
        usleep(1000);
}

static void come_apart(void)
{
    char folder[] = "/tmp/swfar-XXXXXX", command[64];

    if (mkdtemp(folder) == NULL)
        abort();
    processes_run("ranks of one host with different folders", 3, apart, folder);
    snprintf(command, sizeof command, "rm -r %s", folder);
    TAP_EQ("their folders are removed", system(command), 0);
}

/* The first of the other host's ranks is killed before it has joined at the creator, which is not
 * there yet: another rank takes its place. */
static void taken_over(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    char number[16];

    processes_on_host("abbb", rank);
    snprintf(number, sizeof number, "%d", rank == 1 ? 1 : rank);
    setenv("RANK", number, 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", p->arg, 1);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    if (rank == 3) { /* a first process of rank 1 */
        setenv("RANK", "1", 1);
        rank = 1;
        p->rank[3].step = 1;
    } else {
        while (p->rank[3].step < 2)
            usleep(1000);
    }
    if (rank == 0)
        usleep(SETTLED_MS * 1000);
    harness_device_count();
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    p->count = 3;
    host_must(processes_comm_with(p, rank, &p->rank[rank].id, LONG_MS, &comm),
              "symwin_comm_create");
    symwin_comm_destroy(comm);
}

static void take_over(void)
{
    char port[16];
    struct processes *p = processes_new(4, port);
    int right = 1, r;

    ports_name(port);
    for (r = 0; r < 4; r++)
        processes_fork(p, r, taken_over);
    while (p->rank[3].step == 0)
        usleep(1000);
    usleep(SETTLED_MS * 1000);
    kill(p->pids[3], SIGKILL);
    right &= WTERMSIG(processes_wait(p, 3)) == SIGKILL;
    p->rank[3].step = 2;
    for (r = 0; r < 3; r++)
        right &= processes_wait(p, r) == 0;
    tap_ok(right, "a rank that joins for its host is killed before the creator is there");
    processes_free(p);
}

/* ---- a host that cannot go on ---- */

/* Rank 5 of seven hosts of one rank is below host 1, which is below the creator's. */
enum { DEEP = 5 };

static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = -1; /* the folder itself */

    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count - 2; /* . and .. */
}

static void with_few(struct processes *p, int rank)
{
    const int few = *(const int *)p->arg;
    struct rlimit limit;
    symwin_comm *comm = NULL;

    processes_on_host("abcdefg", rank);
    processes_id(p, rank);
    harness_device_count();
    if (rank == DEEP) {
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = (rlim_t)(open_files() + few);
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, LONG_MS, &comm));
    symwin_comm_destroy(comm);
}

/* However few descriptors it has, all ranks are told the same, at once. */
static void has_few(int few)
{
    const int64_t begun = processes_now_us();
    struct processes *p = processes_new(DEEP + 2, &few);
    int right = 1, r, failed;

    for (r = 0; r < p->count; r++)
        processes_fork(p, r, with_few);
    for (r = 0; r < p->count; r++)
        right &= processes_wait(p, r) == 0;
    failed = p->rank[DEEP].status != SYMWIN_OK;
    for (r = 0; r < p->count; r++)
        right &= p->rank[r].status == p->rank[DEEP].status &&
                 (!failed || strstr(p->rank[r].text, "rank 5") != NULL);
    right &= processes_now_us() - begun < LONG_MS * 1000 / 2;
    for (r = 0; r < p->count && !right; r++)
        printf("# rank %d: %d %s\n", r, p->rank[r].status, p->rank[r].text);
    tap_ok(right, "a host below others has %d descriptors left: %s", few,
           symwin_status_name((symwin_status)p->rank[DEEP].status));
    processes_free(p);
}

int main(void)
{
    static const struct job jobs[] = {
        {"killed beside the creator", "aabbcc", KILLED, 1, SYMWIN_PEER_LOST, "rank 1", 0},
        {"killed, who joined for its host", "aabbcc", KILLED, 2, SYMWIN_PEER_LOST, "rank 2", 0},
        {"killed, who joined by another", "aabbcc", KILLED, 3, SYMWIN_PEER_LOST, "rank 3", 0},
        {"killed on the last host", "aabbcc", KILLED, 4, SYMWIN_PEER_LOST, "rank 4", 0},
        {"killed on the fourth host", "aabbccddee", KILLED, 7, SYMWIN_PEER_LOST, "rank 7", 0},
        {"stopped, who joined for its host", "aabbcc", STOPPED, 2, SYMWIN_TIMEOUT,
         "rank 2, which joins", 0},
        {"stopped, who joined by another", "aabbcc", STOPPED, 3, SYMWIN_TIMEOUT, "rank 5", 0},
        {"absent beside the creator", "aabbcc", ABSENT, 1, SYMWIN_TIMEOUT, "rank 1 did not join",
         0},
        {"absent, the second of its host", "aabbcc", ABSENT, 3, SYMWIN_TIMEOUT,
         "rank 3 did not join", 0},
        {"absent on the fourth host", "aabbccddee", ABSENT, 7, SYMWIN_TIMEOUT,
         "rank 7 did not join", 0},
        {"killed, who joined for a host above others", "aabbccddeeffgg", KILLED, 2,
         SYMWIN_PEER_LOST, "rank 2", 0},
        {"killed, who joined for a host below another", "aabbccddeeffgg", KILLED, 10,
         SYMWIN_PEER_LOST, "rank 10", 0},
        {"stopped, who joined for a host above others", "aabbccddeeffgg", STOPPED, 2,
         SYMWIN_TIMEOUT, "rank 2, which joins", 0},
        {"killed, who joined for a host of a chain", "aabbccdd", KILLED, 4, SYMWIN_PEER_LOST,
         "rank 4", 1},
        {"stopped, who joined for a host of a chain", "aabbccdd", STOPPED, 4, SYMWIN_TIMEOUT,
         "rank 4, which joins", 1},
    };
    size_t i;
    int few;

    processes_run("five hosts of two", 10, all_come, (void *)(uintptr_t) "aabbccddee");
    processes_run("five hosts in turn", 10, all_come, (void *)(uintptr_t) "abcdeabcde");
    processes_run("seven hosts, two of them not linked to the creator's", 14, all_come,
                  (void *)(uintptr_t) "aabbccddeeffgg");
    processes_run("a chain of four hosts", 8, all_come_in_chain, (void *)(uintptr_t) "aabbccdd");
    processes_run("channels over a host", 4, channel_over_a_host, NULL);
    processes_run("a chain in turn", 6, all_come_in_chain, (void *)(uintptr_t) "abccba");
    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        run(&jobs[i]);
    processes_run("a host of a star cannot listen", 8, no_port, (void *)(uintptr_t) "star");
    processes_run("a host of a chain cannot listen", 8, no_port, NULL);
    take_over();
    come_to_stopped();
    come_apart();
    for (few = 1; few <= 5; few++)
        has_few(few);
    return tap_done();
}
