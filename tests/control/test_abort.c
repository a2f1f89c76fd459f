/* Aborts across processes: waits end at once, on hosts and devices, and name the rank that aborted.
 * The user's own objects stay usable, and a new communicator can be made. The same holds if a rank
 * is killed. */
#include "processes.h"

/* Under ThreadSanitizer a kernel takes seconds to look at the abort word. Then any time before the
 * timeouts will do. */
#if defined(__SANITIZE_THREAD__)
enum { MOST_RUNS = 2, FEW_RUNS = 1, KILLS = 2, ANY_US = 10000000 };
#elif defined(__SANITIZE_ADDRESS__)
enum { MOST_RUNS = 3, FEW_RUNS = 2, KILLS = 2, ANY_US = 0 };
#else
enum { MOST_RUNS = 20, FEW_RUNS = 5, KILLS = 10, ANY_US = 0 };
#endif

enum { RANKS = 4, BYTES = 1 << 16, COUNT = BYTES / 8, WAIT_MS = 20000 };

/* The limit is 10 ms if every rank has processors of its own. Otherwise ranks wait for processors
 * that other ranks and other tests use, and the limit is only far from any timeout. */
enum { GOAL_US = 10000, TIMES = 50, PROCESSORS_PER_RANK = 4 };

static int64_t limit_us(int nranks)
{
    if (ANY_US > 0)
        return ANY_US;
    return sysconf(_SC_NPROCESSORS_ONLN) >= PROCESSORS_PER_RANK * nranks ? GOAL_US
                                                                         : TIMES * GOAL_US;
}

/* The others wait for the highest rank. */
static int absent(const struct processes *p)
{
    return p->count - 1;
}

static void must_say(symwin_status got, symwin_status want, const char *words, const char *what,
                     int rank)
{
    if (got == want && host_error_has(words))
        return;
    fprintf(stderr, "rank %d: %s: want %s with \"%s\", got %s: %s\n", rank, what,
            symwin_status_name(want), words, symwin_status_name(got), symwin_last_error());
    tap_failures++;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct rank {
    symwin_comm *comm;
    symwin_window *window;
    struct CUstream_st *stream;
    uint32_t *memory; /* input in the first half, output in the second */
    int device;
};

static symwin_status create(const symwin_unique_id *id, int nranks, int rank, symwin_comm **comm)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = WAIT_MS,
                                         .kernel_timeout_ms = WAIT_MS,
                                         .slot_bytes = 8192};

    return symwin_comm_create(id, nranks, rank, rank % harness_device_count(), &options, comm);
}

static void rank_make(struct processes *p, int rank, struct rank *r)
{
    r->device = rank % harness_device_count();
    r->memory = host_alloc(r->device, BYTES);
    host_must(symwin_stream_create(r->device, &r->stream), "symwin_stream_create");
    host_must(create(processes_id(p, rank), p->count, rank, &r->comm), "symwin_comm_create");
    host_must(symwin_window_register(r->comm, r->memory, BYTES, 0, &r->window), "register");
}

static symwin_status reduce(const struct rank *r)
{
    return symwin_allreduce(r->comm, r->memory, r->memory + COUNT, COUNT, SYMWIN_U32, SYMWIN_SUM,
                            r->stream);
}

static void comm_free(struct rank *r)
{
    must_be(symwin_window_deregister(r->comm, r->window) == SYMWIN_OK, "deregister", 0);
    symwin_comm_destroy(r->comm);
    r->comm = NULL;
}

static void rank_free(struct rank *r)
{
    host_must(symwin_stream_destroy(r->device, r->stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(r->memory), "symwin_mem_free");
}

/* Copies and the stream still work. */
static void still_usable(const struct rank *r, int rank)
{
    uint32_t word = 0x5eed0000u + (uint32_t)rank;
    uint32_t back = 0;

    host_must(symwin_memcpy(r->device, r->memory, &word, sizeof word, r->stream), "a copy");
    host_must(symwin_memcpy(r->device, &back, r->memory, sizeof back, r->stream), "a copy back");
    host_must(symwin_stream_synchronize(r->device, r->stream), "the stream afterwards");
    must_be(back == word, "a copy after the end of the communicator", rank);
}

/* A communicator of the ranks that are left, with the memory and the stream of the old one. */
static void again(struct rank *r, const symwin_unique_id *id, int nranks, int rank)
{
    uint32_t words[2] = {(uint32_t)rank + 1, 0};

    host_must(create(id, nranks, rank, &r->comm), "a new communicator");
    host_must(symwin_window_register(r->comm, r->memory, BYTES, 0, &r->window), "register");
    host_must(host_copy(r->device, r->memory, words, sizeof words), "copy");
    host_must(reduce(r), "all-reduce");
    host_must(symwin_stream_synchronize(r->device, r->stream), "synchronize");
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(host_get_u32(r->device, r->memory + COUNT) == (uint32_t)(nranks * (nranks + 1) / 2),
            "the sum of the new communicator", rank);
    comm_free(r);
}

/* ---- abort ----------------------------------------------------------------------------------- */

struct way {
    const char *name;
    int runs;
    int nranks;
    int aborter;
    int kernels; /* the others wait in kernels; 0: in a host call */
};

/* In shared memory: the second communicator's id. */
static struct second {
    symwin_unique_id id;
    atomic_int made;
} * second;

static const symwin_unique_id *second_id(int rank)
{
    if (rank == 0) {
        host_must(symwin_unique_id_create(&second->id), "a second id");
        second->made = 1;
    }
    while (!second->made)
        usleep(50);
    return &second->id;
}

/* Waits until all ranks but the absent one are about to wait. */
static void wait_for_others(const struct processes *p)
{
    int r;

    for (r = 0; r < absent(p); r++)
        while (p->rank[r].step == 0)
            usleep(200);
    host_pause_ms(20);
}

/* Aborts when all ranks are waiting. */
struct abort_later {
    struct processes *p;
    symwin_comm *comm;
    int rank;
};

static void *abort_later(void *arg)
{
    const struct abort_later *later = arg;

    wait_for_others(later->p);
    later->p->rank[later->rank].number = processes_now_us();
    must_be(symwin_comm_abort(later->comm) == SYMWIN_OK, "symwin_comm_abort", later->rank);
    return NULL;
}

static void wait_in_kernel(struct processes *p, int rank, struct rank *r, const char *words)
{
    host_must(reduce(r), "all-reduce");
    p->rank[rank].step = 1;
    must_be(symwin_stream_synchronize(r->device, r->stream) == SYMWIN_OK, "synchronize", rank);
    must_say(processes_note(p, rank, symwin_comm_check(r->comm)), SYMWIN_ABORTED, words,
             "symwin_comm_check", rank);
}

static void wait_in_call(struct processes *p, int rank, struct rank *r, const char *words)
{
    symwin_window *window = NULL;

    p->rank[rank].step = 1;
    must_say(processes_note(p, rank, symwin_window_register(r->comm, r->memory, 64, 0, &window)),
             SYMWIN_ABORTED, words, "symwin_window_register", rank);
}

static void aborted(struct processes *p, int rank)
{
    const struct way *way = p->arg;
    struct abort_later later = {.p = p, .rank = rank};
    struct rank r = {0};
    char words[32];
    pthread_t thread;

    snprintf(words, sizeof words, "rank %d|aborted", way->aborter);
    rank_make(p, rank, &r);
    processes_barrier(p);
    if (rank == way->aborter) {
        later.comm = r.comm;
        pthread_create(&thread, NULL, abort_later, &later);
    }
    if (rank == absent(p)) /* makes no call until the end */
        while (p->rank[way->aborter].number == 0 || symwin_comm_check(r.comm) == SYMWIN_OK)
            usleep(200);
    if (rank != absent(p) && way->kernels)
        wait_in_kernel(p, rank, &r, words);
    else if (rank != absent(p))
        wait_in_call(p, rank, &r, words);
    if (rank == way->aborter)
        pthread_join(thread, NULL);
    processes_barrier(p); /* nobody leaves because another does */
    /* later calls fail the same way */
    must_say(symwin_window_register(r.comm, r.memory, 64, 0, &(symwin_window *){NULL}),
             SYMWIN_ABORTED, words, "a later call", rank);
    must_say(reduce(&r), SYMWIN_ABORTED, words, "a later all-reduce", rank);
    must_say(symwin_comm_check(r.comm), SYMWIN_ABORTED, words, "symwin_comm_check", rank);
    still_usable(&r, rank);
    comm_free(&r);
    again(&r, second_id(rank), p->count, rank);
    rank_free(&r);
}

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Time from the abort to the last rank's return. -1: a rank failed. */
static int64_t abort_once(const struct way *way)
{
    struct processes *p = processes_new(way->nranks, (void *)(uintptr_t)way);
    int64_t last = 0;
    int right = 1;
    int r;

    second->made = 0;
    for (r = 0; r < way->nranks; r++)
        processes_fork(p, r, aborted);
    for (r = 0; r < way->nranks; r++) {
        const int status = processes_wait(p, r);

        if (status != 0)
            printf("# rank %d: wait status 0x%x\n", r, (unsigned)status);
        right &= status == 0;
        if (r != absent(p) && p->rank[r].at_us > last)
            last = p->rank[r].at_us;
    }
    last -= p->rank[way->aborter].number;
    processes_free(p);
    return right ? last : -1;
}

static void run_aborts(const struct way *way)
{
    const int runs = way->runs;
    int64_t us[MOST_RUNS];
    int failed = 0;
    int i;

    for (i = 0; i < runs; i++) {
        us[i] = abort_once(way);
        failed += us[i] < 0;
    }
    qsort(us, (size_t)runs, sizeof us[0], by_size);
    printf("# %s: %lld us from the abort to the last rank's return (median of %d, at most %lld)\n",
           way->name, (long long)us[runs / 2], runs, (long long)us[runs - 1]);
    tap_ok(failed == 0, "%s: all ranks leave and begin anew (%d of %d runs failed)", way->name,
           failed, runs);
    tap_ok(us[runs / 2] < limit_us(way->nranks), "%s: soon", way->name);
}

/* ---- death ----------------------------------------------------------------------------------- */

/* The highest rank is killed while the others' kernels wait for it. */
static void killed(struct processes *p, int rank)
{
    struct rank r = {0};

    rank_make(p, rank, &r);
    processes_barrier(p);
    if (rank == absent(p)) {
        wait_for_others(p);
        p->rank[rank].at_us = processes_now_us();
        raise(SIGKILL);
    }
    host_must(reduce(&r), "all-reduce");
    p->rank[rank].step = 1;
    must_be(symwin_stream_synchronize(r.device, r.stream) == SYMWIN_OK, "synchronize", rank);
    must_say(processes_note(p, rank, symwin_comm_check(r.comm)), SYMWIN_PEER_LOST, "rank 3",
             "symwin_comm_check", rank);
    still_usable(&r, rank);
    comm_free(&r);
    again(&r, second_id(rank), RANKS - 1, rank);
    rank_free(&r);
}

static void run_killed(void)
{
    int64_t us[KILLS];
    int failed = 0;
    int i, r;

    for (i = 0; i < KILLS; i++) {
        struct processes *p = processes_new(RANKS, NULL);
        const int victim = absent(p);

        us[i] = 0;
        second->made = 0;
        for (r = 0; r < RANKS; r++)
            processes_fork(p, r, killed);
        for (r = 0; r < RANKS; r++) {
            failed += processes_wait(p, r) != (r == victim ? SIGKILL : 0);
            if (p->rank[r].at_us - p->rank[victim].at_us > us[i])
                us[i] = p->rank[r].at_us - p->rank[victim].at_us;
        }
        processes_free(p);
    }
    qsort(us, KILLS, sizeof us[0], by_size);
    printf(
        "# a rank is killed: %lld us to the last survivor's return (median of %d, at most %lld)\n",
        (long long)us[KILLS / 2], KILLS, (long long)us[KILLS - 1]);
    TAP_EQ("a rank is killed: the survivors leave and begin anew", failed, 0);
    tap_ok(us[KILLS / 2] < limit_us(RANKS), "a rank is killed: soon");
}

int main(void)
{
    static const struct way ways[] = {
        {"4 ranks in a host call, the creator aborts", FEW_RUNS, RANKS, 0, 0},
        {"4 ranks in a host call, another aborts", MOST_RUNS, RANKS, 1, 0},
        {"4 ranks in a host call, the one they wait for aborts", FEW_RUNS, RANKS, RANKS - 1, 0},
        {"4 ranks in kernels, the creator aborts", FEW_RUNS, RANKS, 0, 1},
        {"4 ranks in kernels, another aborts", MOST_RUNS, RANKS, 2, 1},
        {"4 ranks in kernels, the one they wait for aborts", FEW_RUNS, RANKS, RANKS - 1, 1},
        {"2 ranks, one in a kernel, the other aborts", MOST_RUNS, 2, 1, 1},
    };
    size_t i;

    second = mmap(NULL, sizeof *second, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (second == MAP_FAILED)
        return 1;
    for (i = 0; i < sizeof ways / sizeof ways[0]; i++)
        run_aborts(&ways[i]);
    run_killed();
    return tap_done();
}
