/* Forks: what a child may do. It takes nothing from its parent and keeps nothing of the parent's.
 *
 * If the parent has loaded the driver, its child can only exec: every call returns SYMWIN_FORKED.
 * If the parent has only created an id, the child is like any other process. */
#include "processes.h"

enum { RANKS = 3, BYTES = 4096 };

/* LeakSanitizer calls it by this name. In a child, memory that only the parent's threads point to
 * is no leak. */
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
    if (pid == 0) {
        is_child = 1;
        alarm(PROCESSES_LIMIT_S); /* a child does not inherit the parent's alarm */
        processes_child_threads();
    }
    return pid;
}

/* A thread that has just begun may hold a lock of the sanitizer's malloc. gcc 12's malloc does not
 * reset that lock in a fork, so the child would wait for it for ever. */
static void let_threads_begin(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    host_pause_ms(200);
#endif
}

static int ended_well(pid_t pid)
{
    int status = -1;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- a rank's objects ------------------------------------------------------------------------ */

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
    symwin_channel_info channel_info;
    symwin_collective_info plan;
    symwin_channel_end *end;
    symwin_channel channel;
    symwin_window *window;
    symwin_limit limit;
    symwin_comm *comm;
    void *ptr;

    FORKED(symwin_driver_query(&driver));
    FORKED(symwin_driver_find("cuInit", &ptr));
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
    FORKED(symwin_comm_set_name(all->comm, "x"));
    FORKED(symwin_comm_check(all->comm));
    FORKED(symwin_comm_check_calls(all->comm));
    FORKED(symwin_comm_follow(all->comm, NULL));
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
    FORKED(symwin_allreduce_query(all->comm, all->memory, all->memory, 1, SYMWIN_U32, SYMWIN_SUM,
                                  NULL, &plan));
    FORKED(symwin_allgather(all->comm, all->memory, all->memory, 1, SYMWIN_U32, all->stream));
    FORKED(symwin_allgather_with(all->comm, all->memory, all->memory, 1, SYMWIN_U32, NULL,
                                 all->stream));
    FORKED(symwin_allgather_query(all->comm, all->memory, all->memory, 1, SYMWIN_U32, NULL, &plan));
    FORKED(symwin_channel_create(all->comm, 1, NULL, 0, NULL, &end));
    FORKED(symwin_channel_connect(all->comm, NULL, &channel));
    FORKED(symwin_channel_query(all->comm, NULL, &channel_info));
    FORKED(symwin_channel_limit(all->comm, &limit));
    FORKED(symwin_channel_destroy(all->comm, NULL));
    FORKED(symwin_stream_create(0, &stream));
    FORKED(symwin_stream_synchronize(0, all->stream));
    FORKED(symwin_stream_destroy(0, all->stream));
    FORKED(symwin_memcpy(0, all->memory, &id, 1, all->stream));
    symwin_comm_destroy(all->comm);
}

/* Children make every call and end in either way. Afterwards the parent's objects are unchanged: no
 * rank has left, however late the others come to the next call. */
static void children_of_a_rank(struct processes *p, int rank)
{
    symwin_window *again;
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
        processes_barrier(p);
        usleep(20000 * (unsigned)rank);
        host_must(symwin_window_register(all.comm, all.memory, 64, 0, &again), "register again");
        host_must(symwin_window_deregister(all.comm, again), "deregister");
    }
    all_free(&all);
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

/* The ranks are children of the id's creator, which is not a rank itself. */
static void children_of_a_creator(struct processes *p, int rank)
{
    pid_t pids[RANKS];
    int r;

    processes_id(p, rank);
    let_threads_begin();
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

/* A child can create its own ids, and is not mistaken for its parent. */
static void id_of_a_child(struct processes *p, int rank)
{
    symwin_unique_id own;
    pid_t pid;

    processes_id(p, rank);
    let_threads_begin();
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

/* ---- a fork while a thread is in a call ------------------------------------------------------ */

static void *join_well(void *arg)
{
    struct processes *p = arg;

    processes_note(p, 0, reduce_once(&p->id, 2, 0));
    return NULL;
}

/* Rank 0 waits in symwin_comm_create() when its process forks. The child can create a communicator
 * from scratch, and the parent's call goes on. */
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

            /* OK or SYMWIN_FORKED: the thread may have loaded the driver by now */
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

/* Children at every moment of a rank's whole life. Not with ThreadSanitizer: its fork copies a lock
 * of its allocator that another thread may hold. */
#if !defined(__SANITIZE_THREAD__)
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

#endif

int main(void)
{
    processes_run("children of a rank", 2, children_of_a_rank, NULL);
    processes_run("ranks in children of the creator", 1, children_of_a_creator, NULL);
    processes_run("an id of a child", 1, id_of_a_child, NULL);
    processes_run("a fork inside symwin_comm_create", 2, fork_inside_create, NULL);
#if !defined(__SANITIZE_THREAD__)
    processes_run("forks at any time", 2, fork_at_any_time, NULL);
#endif
    return tap_done();
}
