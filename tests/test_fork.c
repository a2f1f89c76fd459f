/* Forks: what a child may do, and that it takes nothing away from its parent and keeps nothing of it.
 *
 * A child of a process that has loaded the driver can only exec: every call says so. A child of one that
 * has made an id and no more is a process like any other. */
#include "hostile.h"

enum { RANKS = 3, FORKS = 40, AT_ONCE_MS = 1000, BYTES = 4096 };

/* By this name LeakSanitizer asks: what only the parent's threads know of is no leak in a child. */
static int is_child;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

static pid_t fork_now(void)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0)
        is_child = 1;
    return pid;
}

static int ended_well(pid_t pid)
{
    int status = -1;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void must_be(int right, const char *what, int rank)
{
    if (right)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, symwin_last_error());
    tap_failures++;
}

/* ---- what a rank has ------------------------------------------------------------------------- */

struct all {
    symwin_comm *comm;
    symwin_window *window;
    struct CUstream_st *stream;
    uint32_t *memory;
    int device;
};

static void all_make(struct processes *p, int rank, struct all *all)
{
    all->device = rank % harness_device_count();
    host_must(processes_comm(p, rank, 20000, &all->comm), "symwin_comm_create");
    all->memory = host_alloc(all->device, BYTES);
    host_must(symwin_stream_create(all->device, &all->stream), "symwin_stream_create");
    host_must(symwin_window_register(all->comm, all->memory, BYTES, 0, &all->window), "register");
}

static void all_reduce(struct processes *p, int rank, const struct all *all)
{
    const uint32_t want = (uint32_t)(p->count * (p->count + 1) / 2);

    host_put_u32(all->device, all->memory, (uint32_t)rank + 1);
    host_must(symwin_allreduce(all->comm, all->memory, all->memory, 1, SYMWIN_U32, SYMWIN_SUM,
                               all->stream),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(all->device, all->stream), "synchronize");
    host_must(symwin_comm_check(all->comm), "symwin_comm_check");
    must_be(host_get_u32(all->device, all->memory) == want, "the sum", rank);
}

static void all_free(struct all *all)
{
    host_must(symwin_window_deregister(all->comm, all->window), "deregister");
    symwin_comm_destroy(all->comm);
    host_must(symwin_stream_destroy(all->device, all->stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(all->memory), "symwin_mem_free");
}

/* ---- every call in a child ------------------------------------------------------------------- */

static void forked(const char *call, symwin_status status)
{
    if (status == SYMWIN_FORKED && strstr(symwin_last_error(), "fork") != NULL)
        return;
    fprintf(stderr, "%s in a forked child: %s, \"%s\"\n", call, symwin_status_name(status),
            symwin_last_error());
    tap_failures++;
}

static int no_allgather(void *context, const void *mine, void *all, size_t bytes)
{
    (void)context;
    (void)mine;
    (void)all;
    (void)bytes;
    return 1;
}

#define FORKED(call) forked(#call, call)

static void every_call(const struct all *all)
{
    symwin_mem_handle handle = {.type = SYMWIN_HANDLE_POSIX_FD, .fd = 0, .bytes = GRANULE};
    symwin_unique_id id = {{0}};
    struct CUstream_st *stream;
    symwin_driver_info driver;
    symwin_device_info device;
    symwin_window_info window_info;
    symwin_comm_info comm_info;
    symwin_mem_info mem_info;
    symwin_window *window;
    symwin_comm *comm;
    void *ptr;

    FORKED(symwin_driver_query(&driver));
    FORKED(symwin_device_query(0, &device));
    FORKED(symwin_mem_alloc(0, 1, 0, &ptr));
    FORKED(symwin_mem_free(all->memory));
    FORKED(symwin_mem_query(all->memory, &mem_info));
    FORKED(symwin_mem_export(all->memory, SYMWIN_HANDLE_POSIX_FD, &handle));
    FORKED(symwin_mem_import(0, &handle, &ptr));
    FORKED(symwin_unique_id_create(&id));
    FORKED(symwin_unique_id_release(&id));
    FORKED(symwin_unique_id_from_env(&id));
    FORKED(symwin_unique_id_share(1, 0, no_allgather, NULL, &id));
    FORKED(symwin_comm_create(&id, 1, 0, 0, NULL, &comm));
    FORKED(symwin_comm_query(all->comm, &comm_info));
    FORKED(symwin_comm_check(all->comm));
    FORKED(symwin_comm_abort(all->comm));
    FORKED(symwin_comm_split(all->comm, 0, 0, NULL, &comm));
    FORKED(symwin_window_register(all->comm, all->memory, BYTES, 0, &window));
    FORKED(symwin_window_deregister(all->comm, all->window));
    FORKED(symwin_window_query(all->comm, all->window, &window_info));
    FORKED(symwin_window_peer_pointer(all->comm, all->window, 0, 0, &ptr));
    FORKED(symwin_window_multicast_pointer(all->comm, all->window, 0, &ptr));
    FORKED(symwin_window_find(all->comm, all->memory, 1, &window));
    FORKED(symwin_allreduce(all->comm, all->memory, all->memory, 1, SYMWIN_U32, SYMWIN_SUM,
                            all->stream));
    FORKED(symwin_allreduce_with(all->comm, all->memory, all->memory, 1, SYMWIN_U32, SYMWIN_SUM,
                                 NULL, all->stream));
    FORKED(symwin_stream_create(0, &stream));
    FORKED(symwin_stream_synchronize(0, all->stream));
    FORKED(symwin_stream_destroy(0, all->stream));
    FORKED(symwin_memcpy(0, all->memory, &id, 1, all->stream));
    symwin_comm_destroy(all->comm);
}

/* Children that try everything and end either way; afterwards the parent's is as it was. */
static void children_of_a_rank(struct processes *p, int rank)
{
    struct all all;
    pid_t pid;
    int way;

    all_make(p, rank, &all);
    all_reduce(p, rank, &all);
    for (way = 0; way < 2; way++) {
        pid = fork_now();
        if (pid == 0) {
            every_call(&all);
            if (way == 0)
                _exit(tap_failures > 0);
            exit(tap_failures > 0);
        }
        must_be(ended_well(pid), way == 0 ? "a child that calls _exit" : "a child that calls exit",
                rank);
        all_reduce(p, rank, &all);
    }
    all_free(&all);
}

/* ---- children that outlive a rank ------------------------------------------------------------ */

static void outlive(struct processes *p, int which)
{
    const pid_t pid = fork_now();

    if (pid > 0) {
        p->pids[RANKS + which] = pid;
        return;
    }
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

/* Rank 1 has a child, and is killed while the others wait for it. */
static void killed_later(struct processes *p, int rank)
{
    symwin_window *window;
    struct all all;

    all_make(p, rank, &all);
    if (rank == 1) {
        outlive(p, 0);
        usleep(20000);
        die(p, rank);
    }
    processes_note(p, rank, symwin_window_register(all.comm, all.memory, 64, 0, &window));
    all_free(&all);
}

/* Rank 1 forks and forks while it joins. */
static void forks_while_joining(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    pthread_t thread;

    if (rank == 1)
        pthread_create(&thread, NULL, fork_all_the_time, p);
    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    if (rank == 1) {
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

/* Rank 1 waits for rank 2, which does not come; it forks, and is killed. */
static void killed_while_joining(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    pthread_t thread;

    if (rank == 1) {
        pthread_create(&thread, NULL, join_in_vain, p);
        usleep(100000);
        outlive(p, 0);
        die(p, rank);
    }
    while (rank == 2 && p->rank[0].status < 0)
        usleep(200);
    processes_note(p, rank, processes_comm(p, rank, 20000, &comm));
    while (rank == 0 && p->rank[2].status < 0)
        usleep(200);
}

/* Takes what a rank gets from the maker, as the maker: TABLE, PAGE and LINE, but not GO. */
static int give_line(int fd, const struct sw_id *id, int line)
{
    union sw_wire_frame in, out;
    int page = -1;

    if (hostile_answer(fd, &in) != 0 || in.header.type != SW_WIRE_HELLO ||
        sw_exchange_page(RANKS, &page) != SYMWIN_OK)
        return 0;
    memset(&out, 0, sizeof out);
    sw_wire_prove_maker(id->secret, &in.hello, &out.challenge, out.challenge.proof);
    sw_wire_seal(&out, SW_WIRE_CHALLENGE);
    if (!hostile_send_frame(fd, &out) || hostile_answer(fd, &in) != 0)
        return 0;
    memset(&out, 0, sizeof out);
    out.table.nranks = RANKS;
    out.table.processes = 2;
    out.table.process_of[1] = 1;
    sw_wire_seal(&out, SW_WIRE_TABLE);
    if (!hostile_send_frame(fd, &out))
        return 0;
    out.pass = (struct sw_wire_pass){.process = 0};
    sw_wire_seal(&out, SW_WIRE_PAGE);
    if (sw_wire_send(fd, &out, page, INT64_MAX) != 0)
        return 0;
    sw_wire_seal(&out, SW_WIRE_LINE);
    close(page);
    return sw_wire_send(fd, &out, line, INT64_MAX) == 0;
}

/* A maker by hand (rank 0), and rank 1 in the middle of being given its line. */
static void killed_with_a_line(struct processes *p, int rank)
{
    struct sockaddr_un address;
    int listener, fd, ends[2];
    pthread_t thread;
    struct sw_id id;

    if (rank == 1) {
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
    must_be(give_line(fd, &id, ends[1]), "a maker by hand", rank);
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

/* Whether it has ended; it can still be waited for. */
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
    ended = processes_wait(p, 1) == SIGKILL;
    for (r = 0; r < count; r += 2)
        while (p->rank[r].status < 0 && !has_ended(p->pids[r]))
            usleep(200);
    /* They hold what memory of the others rank 1 had mapped, as with a real driver. */
    for (r = RANKS; r < RANKS + FORKS; r++)
        if (p->pids[r] > 0)
            kill(p->pids[r], SIGKILL);
    for (r = 0; r < count; r += 2)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: all end as they should", name);
    for (r = 0; r < count; r += 2) {
        ms = (p->rank[r].at_us - p->rank[1].at_us) / 1000;
        tap_ok(p->rank[r].status == SYMWIN_PEER_LOST && ms < AT_ONCE_MS &&
                   strstr(p->rank[r].text, "rank 1") != NULL,
               "%s: rank %d knows after %lld ms: %s", name, r, (long long)ms, p->rank[r].text);
    }
    processes_free(p);
}

/* ---- children of a process that only made an id ---------------------------------------------- */

static symwin_status reduce_once(const symwin_unique_id *id, int nranks, int rank)
{
    struct processes team = {.count = nranks, .id = *id, .id_made = 1};
    struct all all = {.device = rank % harness_device_count()};
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    symwin_status status;

    status = symwin_comm_create(id, nranks, rank, all.device, &options, &all.comm);
    if (status != SYMWIN_OK)
        return status;
    all.memory = host_alloc(all.device, BYTES);
    host_must(symwin_stream_create(all.device, &all.stream), "symwin_stream_create");
    host_must(symwin_window_register(all.comm, all.memory, BYTES, 0, &all.window), "register");
    all_reduce(&team, rank, &all);
    all_free(&all);
    return SYMWIN_OK;
}

/* The ranks are children of the process that made the id, which is none itself. */
static void children_of_a_maker(struct processes *p, int rank)
{
    pid_t pids[RANKS];
    int r;

    processes_id(p, rank);
    for (r = 0; r < RANKS; r++) {
        pids[r] = fork_now();
        if (pids[r] > 0)
            continue;
        host_must(reduce_once(&p->id, RANKS, r), "a rank in a child");
        _exit(tap_failures > 0);
    }
    for (r = 0; r < RANKS; r++)
        must_be(ended_well(pids[r]), "a rank in a child", r);
}

/* A child can make ids of its own, and is not taken for its parent. */
static void id_of_a_child(struct processes *p, int rank)
{
    symwin_unique_id own;
    pid_t pid;

    processes_id(p, rank);
    pid = fork_now();
    if (pid == 0) {
        must_be(symwin_unique_id_release(&p->id) == SYMWIN_INVALID, "the parent's id", rank);
        host_must(symwin_unique_id_create(&own), "an id in a child");
        host_must(reduce_once(&own, 1, 0), "a rank in a child");
        exit(tap_failures > 0);
    }
    must_be(ended_well(pid), "a child with an id of its own", rank);
    host_must(reduce_once(&p->id, 1, 0), "the parent's id, after a child has ended");
}

/* ---- a fork while a thread is inside --------------------------------------------------------- */

static void *join_well(void *arg)
{
    struct processes *p = arg;

    processes_note(p, 0, reduce_once(&p->id, 2, 0));
    return NULL;
}

/* Rank 0 waits in symwin_comm_create() when its process forks: the child has none of it and can begin
 * anew, and the parent's call goes on. */
static void fork_inside_create(struct processes *p, int rank)
{
    symwin_unique_id own;
    pthread_t thread;
    pid_t pid;

    processes_id(p, rank);
    if (rank == 0) {
        pthread_create(&thread, NULL, join_well, p);
        usleep(50000);
        pid = fork_now();
        if (pid == 0) {
            const symwin_status status = symwin_unique_id_create(&own);

            /* whether the thread has loaded the driver by now is its own affair */
            if (status == SYMWIN_OK)
                host_must(reduce_once(&own, 1, 0), "a rank in a child");
            else
                forked("symwin_unique_id_create", status);
            _exit(tap_failures > 0);
        }
        must_be(ended_well(pid), "a child of a fork inside symwin_comm_create", rank);
        p->rank[0].step = 1;
        pthread_join(thread, NULL);
        must_be(p->rank[0].status == SYMWIN_OK, p->rank[0].text, rank);
    } else {
        while (p->rank[0].step == 0)
            usleep(200);
        host_must(reduce_once(&p->id, 2, 1), "rank 1");
    }
}

/* Children at every moment of a rank's whole life. */
static void *fork_and_wait(void *arg)
{
    atomic_int *over = arg;

    while (!atomic_load(over)) {
        const pid_t pid = fork_now();

        if (pid == 0)
            exit(0);
        if (!ended_well(pid)) {
            fprintf(stderr, "a child does not end well\n");
            tap_failures++;
        }
    }
    return NULL;
}

static void fork_at_any_time(struct processes *p, int rank)
{
    atomic_int over = 0;
    pthread_t thread;

    processes_id(p, rank);
    pthread_create(&thread, NULL, fork_and_wait, &over);
    host_must(reduce_once(&p->id, p->count, rank), "a rank whose process forks");
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
}

int main(void)
{
    processes_run("children of a rank", 2, children_of_a_rank, NULL);
    run_killed("killed with a child", RANKS, killed_later);
    run_killed("killed while joining, with a child", RANKS, killed_while_joining);
    run_killed("killed while it is given a line", 2, killed_with_a_line);
    run_killed("killed with children from when it joined", RANKS, forks_while_joining);
    processes_run("ranks in children of the maker", 1, children_of_a_maker, NULL);
    processes_run("an id of a child", 1, id_of_a_child, NULL);
    processes_run("a fork inside symwin_comm_create", 2, fork_inside_create, NULL);
    processes_run("forks at any time", 2, fork_at_any_time, NULL);
    return tap_done();
}
