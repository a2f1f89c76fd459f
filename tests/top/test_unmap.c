/* What unmaps memory waits for no kernel, on a driver whose cuMemUnmap does. Two ranks share a
 * device. A kernel of rank 1 waits for rank 0, which frees, trims, deregisters or destroys before
 * it launches its own. Then: what is not unmapped yet is counted, comes back before an allocation
 * fails, and holds up neither a forked child nor the end of a process.
 */
#include "windows.h"

enum {
    KERNEL_MS = 6000, /* after that a kernel gives up, and what has waited for it goes on */
    MOST_MS = 3000,   /* of a call; those that give memory back on purpose wait a second */
    LARGE = 16 * MIB  /* more than the pools keep */
};

struct place {
    struct caller caller;
    symwin_window *window;
    symwin_channel_end *end;
    symwin_comm *other;
    void *memory;
};

static struct symwin_mem_usage usage_of(int device)
{
    symwin_mem_usage usage;

    host_must(symwin_mem_stats(device, &usage), "symwin_mem_stats");
    return usage;
}

/* ---- the calls: `prepare` on both ranks, `act` on rank 0, `end` on both ---- */

static void prepare_free(struct place *p)
{
    if (p->caller.member.rank == 0)
        p->memory = host_alloc(0, LARGE);
}

/* What is freed and still mapped is not taken for another allocator's memory. */
static void act_free(struct place *p)
{
    symwin_registration *registration;

    host_must(symwin_mem_free(p->memory), "symwin_mem_free");
    host_pause_ms(50); /* until its turn has come */
    host_expect("memory that was freed",
                symwin_register(p->caller.member.comm, p->memory, LARGE, &registration),
                SYMWIN_INVALID, "symwin_register");
}

static void prepare_import(struct place *p)
{
    symwin_mem_handle handle;
    void *memory;

    if (p->caller.member.rank != 0)
        return;
    memory = host_alloc(0, LARGE);
    host_must(symwin_mem_export(memory, SYMWIN_HANDLE_POSIX_FD, &handle), "symwin_mem_export");
    host_must(symwin_mem_import(0, &handle, &p->memory), "symwin_mem_import");
    close(handle.fd);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    (void)sw_reaper_wait(MOST_MS);
}

static void prepare_trim(struct place *p)
{
    if (p->caller.member.rank == 0)
        host_must(symwin_mem_free(host_alloc(0, GRANULE)), "symwin_mem_free");
}

static void act_trim(struct place *p)
{
    (void)p;
    host_must(symwin_mem_trim(SYMWIN_DEVICE_ALL, 0), "symwin_mem_trim");
}

static void make_window(struct place *p)
{
    struct member *m = &p->caller.member;

    p->memory = host_alloc(0, LARGE);
    host_must(symwin_window_register(m->comm, p->memory, LARGE, 0, &p->window), "register");
}

static void deregister(struct place *p)
{
    member_deregister(&p->caller.member, p->window);
}

static void prepare_window(struct place *p)
{
    make_window(p);
    if (p->caller.member.rank == 1)
        deregister(p);
}

static void end_memory(struct place *p)
{
    host_must(symwin_mem_free(p->memory), "symwin_mem_free");
}

static void make_channel(struct place *p)
{
    struct member *m = &p->caller.member;
    symwin_channel channel;

    host_must(symwin_channel_create(m->comm, 1 - m->rank, p->memory, LARGE, NULL, &p->end),
              "symwin_channel_create");
    host_must(symwin_channel_connect(m->comm, p->end, &channel), "symwin_channel_connect");
}

static void destroy_end(struct place *p)
{
    host_must(symwin_channel_destroy(p->caller.member.comm, p->end), "symwin_channel_destroy");
}

static void prepare_channel(struct place *p)
{
    p->memory = host_alloc(0, LARGE);
    make_channel(p);
}

static void end_channel(struct place *p)
{
    if (p->caller.member.rank == 1)
        destroy_end(p);
    end_memory(p);
}

/* The channel of rank 0 is the last that holds the segment. */
static void prepare_last_hold(struct place *p)
{
    make_window(p);
    make_channel(p);
    deregister(p);
    if (p->caller.member.rank == 1)
        destroy_end(p);
}

static void prepare_comm(struct place *p)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    struct member *m = &p->caller.member;

    host_must(symwin_comm_split(m->comm, 0, m->rank, &options, &p->other), "symwin_comm_split");
    if (m->rank == 1)
        symwin_comm_destroy(p->other);
}

static void act_comm(struct place *p)
{
    symwin_comm_destroy(p->other);
}

static const struct row {
    const char *name;
    void (*prepare)(struct place *p), (*act)(struct place *p), (*end)(struct place *p);
} rows[] = {
    {"symwin_mem_free of more than is kept", prepare_free, act_free, NULL},
    {"symwin_mem_free of imported memory", prepare_import, act_free, NULL},
    {"symwin_mem_trim", prepare_trim, act_trim, NULL},
    {"symwin_window_deregister", prepare_window, deregister, end_memory},
    {"symwin_channel_destroy", prepare_channel, destroy_end, end_channel},
    {"symwin_channel_destroy, the last on a segment", prepare_last_hold, destroy_end, end_memory},
    {"symwin_comm_destroy of another communicator", prepare_comm, act_comm, NULL},
};

static void one_row(struct place *p, const struct row *row)
{
    struct caller *c = &p->caller;
    const int rank = c->member.rank;
    symwin_status status = SYMWIN_OK;
    int64_t took;

    row->prepare(p);
    caller_fill(c, (uint32_t)rank + 1, 0);
    (void)sw_reaper_wait(MOST_MS);
    harness_barrier(c->member.team);
    if (rank == 1)
        status = caller_reduce(c, SYMWIN_ALGO_AUTO);
    harness_barrier(c->member.team);
    if (rank == 0) {
        took = host_now_ms();
        row->act(p);
        took = host_now_ms() - took;
        tap_ok(took < MOST_MS, "%s does not wait for a kernel that waits for its caller (%d ms)",
               row->name, (int)took);
        status = caller_reduce(c, SYMWIN_ALGO_AUTO);
    }
    if (status == SYMWIN_OK)
        status = caller_wait(c);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(c->member.comm);
    tap_ok(status == SYMWIN_OK && caller_differences(c, 3) == 0, "%s: rank %d: the sum is right%s",
           row->name, rank, status == SYMWIN_OK ? "" : symwin_last_error());
    harness_barrier(c->member.team);
    if (row->end != NULL)
        row->end(p);
}

static void each_row(struct harness_team *team, int rank, void *arg)
{
    struct place p = {0};

    caller_open(&p.caller, team, rank, 20000, KERNEL_MS);
    one_row(&p, arg);
    caller_close(&p.caller);
}

/* ---- one rank alone: the device waits for a word of the host ---- */

struct blocked {
    CUstream stream;
    CUdeviceptr address;
    uint32_t *word;
    struct sw_scope scope;
    pthread_t thread;
};

static void block(struct blocked *b)
{
    host_must(sw_scope_enter(0, &b->scope), "sw_scope_enter");
    host_must(symwin_stream_create(0, &b->stream), "symwin_stream_create");
    host_must_cuda(sw_drv.cuMemHostAlloc((void **)&b->word, sizeof *b->word,
                                         CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                   "cuMemHostAlloc");
    host_must_cuda(sw_drv.cuMemHostGetDevicePointer(&b->address, b->word, 0), "device pointer");
    *b->word = 0;
    host_must_cuda(sw_drv.cuStreamWaitValue32(b->stream, b->address, 1, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
}

static void unblock(struct blocked *b)
{
    __atomic_store_n(b->word, 1, __ATOMIC_RELEASE);
}

static void end_block(struct blocked *b)
{
    unblock(b);
    host_must(symwin_stream_synchronize(0, b->stream), "synchronize");
    host_must_cuda(sw_drv.cuMemFreeHost(b->word), "cuMemFreeHost");
    host_must(symwin_stream_destroy(0, b->stream), "symwin_stream_destroy");
    sw_scope_leave(&b->scope);
}

static void *unblock_soon(void *arg)
{
    host_pause_ms(200);
    unblock(arg);
    return NULL;
}

/* Memory that is not unmapped yet counts as reserved, and an allocation waits for it. */
static void out_of_memory(void)
{
    const struct harness_leaks before = harness_leaks_now();
    const size_t most = 44 * (size_t)MIB; /* of 80 */
    struct blocked b;
    symwin_mem_info info;
    void *memory = host_alloc(0, most);
    int64_t took;

    block(&b);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    TAP_EQ("what is not unmapped yet is reserved", usage_of(0).reserved_bytes, most);
    TAP_EQ("but kept for nobody", usage_of(0).kept_bytes, 0);
    host_expect("nor known any more", symwin_mem_query(memory, &info), SYMWIN_INVALID, "");
    took = host_now_ms();
    host_expect("while the device is busy", symwin_mem_alloc(0, most, 0, &memory), SYMWIN_NO_MEMORY,
                "");
    took = host_now_ms() - took;
    tap_ok(took < MOST_MS, "an allocation does not wait for ever (%d ms)", (int)took);
    if (pthread_create(&b.thread, NULL, unblock_soon, &b) != 0)
        abort();
    host_expect("when it ends soon", symwin_mem_alloc(0, most, 0, &memory), SYMWIN_OK, "");
    pthread_join(b.thread, NULL);
    TAP_EQ("it is there once", usage_of(0).reserved_bytes, most);
    end_block(&b);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    host_must(symwin_mem_trim(0, 0), "symwin_mem_trim");
    TAP_EQ("trimming waits until all is given back", usage_of(0).reserved_bytes, 0);
    harness_no_leaks("out of memory", &before);
}

/* A registration waits for segments that are being destroyed if the flat range is full. */
static void full_range(struct harness_team *team, int rank, void *arg)
{
    struct blocked *b = arg;
    struct place p = {0};
    struct member *m = &p.caller.member;
    symwin_window *window = NULL;

    caller_open(&p.caller, team, rank, 20000, KERNEL_MS);
    make_window(&p);
    if (rank == 0) {
        m->comm->group->limit = member_query(m, p.window).offset + LARGE;
        block(b);
    }
    harness_barrier(team);
    deregister(&p);
    if (rank == 0 && pthread_create(&b->thread, NULL, unblock_soon, b) != 0)
        abort();
    harness_barrier(team);
    TAP_EQ("no allocation is in a window", member_allocations(m), 1); /* that of the caller */
    host_expect("a window where the last one was",
                symwin_window_register(m->comm, p.memory, LARGE, 0, &window), SYMWIN_OK, "");
    harness_barrier(team);
    if (rank == 0) {
        pthread_join(b->thread, NULL);
        end_block(b);
    }
    if (window != NULL)
        member_deregister(m, window);
    end_memory(&p);
    caller_close(&p.caller);
}

/* The exit status of a child; -1: it had to be killed. */
static int reap_child(pid_t pid)
{
    const int64_t end = host_now_ms() + 10000;
    int status = 0;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (host_now_ms() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        host_pause_ms(1);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void forked(void)
{
    const struct harness_leaks before = harness_leaks_now();
    struct blocked b;
    void *memory = host_alloc(0, LARGE);
    int64_t begin;
    pid_t pid;

    block(&b);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    fflush(stdout);
    begin = host_now_ms();
    pid = fork();
    if (pid == 0) /* with the library's destructors */
        exit(symwin_mem_free(memory) == SYMWIN_FORKED && sw_reaper_count() == 0 ? 0 : 1);
    TAP_EQ("a forked child has none of it", reap_child(pid), 0);
    tap_ok(host_now_ms() - begin < 1500, "and ends at once");
    TAP_EQ("the parent still has", sw_reaper_count() > 0, 1);
    end_block(&b);
    harness_no_leaks("forked", &before);
}

/* A process ends while memory is not unmapped yet. */
static void ended(void)
{
    struct blocked b;
    void *memory;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        harness_start();
        memory = host_alloc(0, LARGE);
        block(&b);
        host_must(symwin_mem_free(memory), "symwin_mem_free");
        exit(0);
    }
    TAP_EQ("a process ends with memory that waits", reap_child(pid), 0);
}

int main(void)
{
    struct blocked b;
    size_t i;

    setenv("SYMWIN_EMU_DEVICES", "1", 1);
    setenv("SYMWIN_EMU_MEM", "80M", 1);
    setenv("SYMWIN_MEM_KEEP", "8M", 1);
    setenv("SYMWIN_DRIVER", "emu", 1);
    alarm(240);
    ended(); /* before this process has the driver */
    harness_start();
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct harness_leaks before = harness_leaks_now();

        harness_run(2, each_row, (void *)(uintptr_t)&rows[i]);
        harness_no_leaks(rows[i].name, &before);
    }
    harness_run(2, full_range, &b);
    out_of_memory();
    forked();
    return tap_done();
}
