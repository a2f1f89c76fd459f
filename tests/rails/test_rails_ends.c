/* How communicators over several domains fail and end: engines that are missing or that fail in a
 * creation, ranks that are killed, stopped or late, and aborts. */
#include <ctype.h>
#include <limits.h>
#include <sys/syscall.h>

#include "rails_ends.h"

#if defined(__SANITIZE_THREAD__)
enum { ONE_BLOCK = 1 }; /* emulated kernels have one */
#else
enum { ONE_BLOCK = 0 };
#endif

enum { SOON_MS = 3000 };

/* ---- creations that fail --------------------------------------------------------------------- */

static const struct creation {
    const char *name, *variable, *value;
    int rank; /* whose variable it is; -1: all ranks' */
    symwin_status status;
    const char *words; /* in all ranks' texts, or in that rank's alone if they begin with "1:" */
    /* The time for the creation; the stopped rank goes on when that for NCCL, three quarters of it,
     * is over. 0: it does not. */
    int ms;
} creations[] = {
    {"no NCCL", "SYMWIN_NCCL", "/none/libnccl.so.2", -1, SYMWIN_UNSUPPORTED, "SYMWIN_NCCL", 0},
    {"no NCCL on one rank", "SYMWIN_NCCL", "/none/libnccl.so.2", 3, SYMWIN_UNSUPPORTED,
     "rank 3: the ranks are on several hosts", 0},
    {"a library that is no NCCL", "SYMWIN_NCCL", "libm.so.6", 0, SYMWIN_UNSUPPORTED,
     "it has no ncclGetVersion", 0},
    {"no id", "STAND_IN_FAIL", "ncclGetUniqueId:1:2", 0, SYMWIN_DRIVER, "ncclGetUniqueId failed",
     0},
    {"no id of a rail", "STAND_IN_FAIL", "ncclGetUniqueId:1:2", 1, SYMWIN_DRIVER,
     "ncclGetUniqueId failed", 0},
    {"no rail", "STAND_IN_FAIL", "ncclCommInitRankConfig:1:2", 2, SYMWIN_DRIVER,
     "2:ncclCommInitRankConfig failed", 0},
    {"no communicator of all ranks", "STAND_IN_FAIL", "ncclCommInitRankConfig:2:2", 1,
     SYMWIN_DRIVER, "1:ncclCommInitRankConfig failed", 0},
    {"NCCL's state unknown", "STAND_IN_FAIL", "ncclCommGetAsyncError:1:3", 3, SYMWIN_DRIVER,
     "3:NCCL's ncclCommInitRankConfig failed", 0},
    {"no memory for a domain", "SYMWIN_EMU_MEM", "2M", 3, SYMWIN_NO_MEMORY, "rank 3: ", 0},
    {"a rank is stopped in NCCL", "STAND_IN_FAIL", "ncclCommInitRankConfig:1:-1", 3, SYMWIN_TIMEOUT,
     "rank 3 has joined, but did not come", 0},
    {"a rank is too slow for NCCL", "STAND_IN_FAIL", "ncclCommInitRankConfig:1:-1", 3,
     SYMWIN_TIMEOUT, "rank 1: NCCL's ncclCommInitRankConfig was not done in time", 3900},
};

/* Whether the rank that has the variable is stopped in NCCL for good. */
static int stops(const struct creation *c)
{
    return strstr(c->value, ":-1") != NULL && c->ms == 0;
}

static pid_t slow_rank;

static void *wake_slow(void *arg)
{
    host_pause_ms(((const struct creation *)arg)->ms / 8 * 7);
    kill(slow_rank, SIGCONT);
    return NULL;
}

static void create(struct processes *p, int rank)
{
    const struct creation *c = places_arg(p);
    symwin_comm_options with = options;
    struct life life = {.comm = NULL};
    pthread_t thread;

    rails_set_engine(rank);
    if (c->rank < 0 || c->rank == rank)
        setenv(c->variable, c->value, 1);
    if (stops(c))
        with.bootstrap_timeout_ms = SOON_MS;
    if (c->ms > 0) {
        with.bootstrap_timeout_ms = c->ms;
        processes_barrier(p);
    }
    slow_rank = p->pids[3];
    if (c->ms > 0 && rank == 0 && pthread_create(&thread, NULL, wake_slow, (void *)(uintptr_t)c))
        abort();
    if (begin(p, rank, &life, &with) == SYMWIN_OK)
        symwin_comm_destroy(life.comm);
    if (c->ms > 0 && rank == 0)
        pthread_join(thread, NULL);
    if (stops(c) && rank == 0) {
        while (p->rank[1].status < 0 || p->rank[2].status < 0)
            host_pause_ms(5);
        kill(p->pids[c->rank], SIGKILL);
    }
}

static void check_creation(const struct place *place, const struct creation *c)
{
    const int alone = isdigit((unsigned char)c->words[0]) ? c->words[0] - '0' : -1;
    const char *words = alone >= 0 ? c->words + 2 : c->words;
    struct processes *p;
    int right = places_run(place, 4, create, (void *)(uintptr_t)c, &p) || stops(c), r;

    for (r = 0; r < 4; r++) {
        const int says = strstr(p->rank[r].text, words) != NULL;

        if (stops(c) && r == c->rank)
            continue;
        if (p->rank[r].status == (int)c->status && (says || (alone >= 0 && alone != r)))
            continue;
        right = 0;
        fprintf(stderr, "# rank %d: %d, %s\n", r, p->rank[r].status, p->rank[r].text);
    }
    tap_ok(right, "creation: %s", c->name);
    processes_free(p);
}

/* ---- a rank that ends before it joins its domain ---- */

static CUresult (*plain_retain)(CUcontext *, CUdevice);
static atomic_int has_joined;

static CUresult see_context(CUcontext *context, CUdevice device)
{
    atomic_store(&has_joined, 1);
    return plain_retain(context, device);
}

/* connect(), the library's too. With a context, the rank has joined all ranks, and comes to those
 * of its host. */
int see_connect(int file, const void *address, socklen_t bytes) __asm__("connect");

int see_connect(int file, const void *address, socklen_t bytes)
{
    if (atomic_load(&has_joined))
        raise(SIGKILL);
    return (int)syscall(SYS_connect, file, address, bytes);
}

static void join_late(struct processes *p, int rank)
{
    struct life life = {.comm = NULL};
    int64_t before;

    rails_set_engine(rank);
    host_must(harness_device_count() > 0 ? SYMWIN_OK : SYMWIN_DRIVER, "devices");
    if (rank == 3) {
        plain_retain = sw_drv.cuDevicePrimaryCtxRetain;
        sw_drv.cuDevicePrimaryCtxRetain = see_context;
    }
    before = host_now_ms();
    must_be(begin(p, rank, &life, &options) == SYMWIN_PEER_LOST &&
                host_error_has("the process of rank 3 has ended"),
            "a rank of another's domain that has ended is named", rank);
    must_be(host_now_ms() - before < LIMIT_MS, "soon", rank);
    p->rank[rank].number = tap_failures == 0;
}

static void check_joining(const struct place *place)
{
    struct processes *p;
    int right, r;

    (void)places_run(place, 4, join_late, NULL, &p);
    for (right = 1, r = 0; r < 3; r++)
        right &= p->rank[r].number == 1;
    tap_ok(right, "a rank ends before it joins its domain");
    processes_free(p);
}

/* ---- communicators that end ------------------------------------------------------------------ */

enum what {
    KILLED,
    KILLED_IN_A_CALL,
    STOPPED,
    STOPPED_LATER, /* the others have a call of several pieces */
    FULL,          /* the same, and the lowest rank waits for room in its stream */
    LATE,
    LATE_IN_A_CALL, /* with the second of four pieces, one for each lane */
    ABORTED,
    LEAVES
};

static const struct ending endings[] = {
    {"a rank is killed", KILLED, 3, SYMWIN_PEER_LOST, "rank 3", NULL, 0},
    {"the rank that made the id is killed", KILLED, 0, SYMWIN_PEER_LOST, "rank 0", NULL, 0},
    {"a rank is killed in a call", KILLED_IN_A_CALL, 2, SYMWIN_PEER_LOST, "rank 2", NULL, 0},
    {"a rank does not come", LATE, 2, SYMWIN_TIMEOUT, "rank 2", NULL, 0},
    {"a rank that links its host is stopped", STOPPED, 2, SYMWIN_TIMEOUT, "rank 2", NULL, 0},
    {"a rank is stopped, and pieces wait for it", STOPPED_LATER, 2, SYMWIN_TIMEOUT, "rank ", NULL,
     0},
    {"a rank is stopped, and pieces wait for it by two exchanges", STOPPED_LATER, 2, SYMWIN_TIMEOUT,
     "rank ", NULL, 1},
    {"a call waits for room in a full stream", FULL, 2, SYMWIN_TIMEOUT, "rank ", NULL, 0},
    {"a rank aborts", ABORTED, 1, SYMWIN_ABORTED, "rank 1 aborted", NULL, 0},
    {"a rank leaves", LEAVES, 3, SYMWIN_PEER_LOST, "rank 3 has destroyed", NULL, 0},
    {"a rank alone in its domain leaves", LEAVES, 3, SYMWIN_PEER_LOST, "rank 3 has destroyed",
     "abcd", 0},
    {"a rank alone in its domain does not come", LATE, 2, SYMWIN_TIMEOUT, "rank 2", "abcd", 0},
    {"a rank alone in its domain does not come with a second piece", LATE_IN_A_CALL, 2,
     SYMWIN_TIMEOUT, "rank 2", "abcd", 0},
    {"the rank that made the id does not come", LATE, 0, SYMWIN_TIMEOUT, "rank 0", "abcd", 0},
    {"a rank alone in its domain is stopped", STOPPED, 2, SYMWIN_TIMEOUT, "rank 2", "abcd", 0},
};

enum { FOUR_PIECES = 50000 }; /* elements, on one rail */

static symwin_status reduce_in_four(const struct life *life)
{
    const symwin_collective_options four = {
        .size = sizeof four, .algo = SYMWIN_ALGO_RAILS, .blocks = 4};

    return symwin_allreduce_with(life->comm, life->in, life->out, FOUR_PIECES, SYMWIN_U32,
                                 SYMWIN_SUM, &four, life->stream);
}

static void wait_until_known(const struct processes *p, int rank)
{
    int r;

    for (r = 0; r < 4; r++)
        while (r != rank && p->rank[r].status < 0)
            host_pause_ms(5);
}

static int (*plain_reduce)(const void *, void *, size_t, int, int, struct ncclComm *, CUstream);
static const struct ncclComm *first_lane;
static const struct processes *others;
static int late_rank;

static int reduce_late(const void *in, void *out, size_t count, int type, int op,
                       struct ncclComm *comm, CUstream stream)
{
    if (first_lane == NULL)
        first_lane = comm;
    if (comm != first_lane)
        wait_until_known(others, late_rank);
    return plain_reduce(in, out, count, type, op, comm, stream);
}

static void be_late_in_a_call(const struct processes *p, const struct life *life, int rank)
{
    static struct sw_engine engine;

    others = p;
    late_rank = rank;
    engine = *life->comm->wide->engine;
    plain_reduce = engine.all_reduce;
    engine.all_reduce = reduce_late;
    set_engine(life, &engine);
    must_be(reduce_in_four(life) != SYMWIN_OK, "a late call", rank);
}

/* What the rank does that ends it for the others. */
static void end_it(struct processes *p, const struct ending *e, const struct life *life)
{
    switch ((enum what)e->what) {
    case KILLED_IN_A_CALL:
        host_must(reduce(life, 1000), "a call");
        host_pause_ms(20);
        /* fallthrough */
    case KILLED:
        p->rank[e->rank].number = 1;
        raise(SIGKILL);
        break;
    case STOPPED_LATER:
    case FULL:
    case STOPPED: /* the lowest other rank ends it when the others know */
        raise(SIGSTOP);
        break;
    case ABORTED:
        host_must(symwin_comm_abort(life->comm), "symwin_comm_abort");
        /* fallthrough */
    case LATE: /* it makes no call until the others know */
        wait_until_known(p, e->rank);
        break;
    case LATE_IN_A_CALL:
        be_late_in_a_call(p, life, e->rank);
        break;
    case LEAVES:
        break;
    }
}

static int is_stopped(const struct ending *e)
{
    return e->what == STOPPED || e->what == STOPPED_LATER || e->what == FULL;
}

static CUresult (*plain_write)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

/* A full stream has room when it is empty; then there is room for all. */
static CUresult wait_for_room(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags)
{
    while (sw_drv.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        host_pause_ms(1);
    return plain_write(stream, address, value, flags);
}

static void be_ended(struct processes *p, int rank)
{
    const struct ending *e = places_arg(p);
    symwin_comm_options with = options;
    struct life life = {.comm = NULL, .twoshot = e->twoshot};
    symwin_status status;
    int64_t before;

    rails_set_engine(rank);
    if (is_stopped(e) || e->what == LATE || e->what == LATE_IN_A_CALL)
        with.kernel_timeout_ms = 700;
    live(p, rank, &life, &with);
    if (rank == e->rank) {
        host_pause_ms(30);
        end_it(p, e, &life);
        end(&life);
        return;
    }
    before = host_now_ms();
    while (e->what == KILLED_IN_A_CALL && p->rank[e->rank].number != 1)
        host_pause_ms(1);
    if (e->what == KILLED_IN_A_CALL)
        host_pause_ms(100); /* it was in the call, and waited; that it is gone has been noticed */
    if (e->what == FULL)
        host_must(reduce(&life, 1), "a call that waits");
    if (e->what == FULL && rank == 0) {
        plain_write = sw_drv.cuStreamWriteValue32;
        sw_drv.cuStreamWriteValue32 = wait_for_room;
    }
    status = e->what == LATE_IN_A_CALL ? reduce_in_four(&life)
                                       : reduce(&life, e->what == STOPPED_LATER ? PIECES : 1000);
    if (status == SYMWIN_OK) {
        host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
        /* Whatever NCCL has brought, the other rank's part is not in it. */
        must_be(symwin_comm_check(life.comm) != SYMWIN_OK, "no result", rank);
    }
    see_end(p, rank, &life, before);
    if (is_stopped(e) && rank == 0) { /* e->rank is another */
        wait_until_known(p, e->rank);
        kill(p->pids[e->rank], SIGKILL);
    }
}

/* Parts of one over several domains: of one domain, with channels; and over domains again. */
static void split(struct processes *p, int rank)
{
    struct life life = {.comm = NULL}, part = {.comm = NULL};
    symwin_comm_info info;
    int by;

    rails_set_engine(rank);
    host_must(begin(p, rank, &life, &options), "symwin_comm_create");
    get_memory(&life);
    for (by = 0; by < 2; by++) { /* 0: by domain; 1: across */
        part = life;
        host_must(
            symwin_comm_split(life.comm, by == 0 ? rank / 2 : rank % 2, rank, &options, &part.comm),
            "symwin_comm_split");
        host_must(symwin_comm_query(part.comm, &info), "symwin_comm_query");
        must_equal(info.domains, 1 + by, "domains of a part", rank);
        must_equal(info.rails, by, "rails of a part", rank);
        host_put_u32(life.device, part.in, (uint32_t)rank + 1);
        host_must(reduce(&part, 1), "a call of a part");
        host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
        must_equal(host_get_u32(life.device, part.out),
                   by == 0 ? (rank < 2 ? 3 : 7) : (rank % 2 == 0 ? 4 : 6), "a sum", rank);
        processes_barrier(p);
        symwin_comm_destroy(part.comm);
    }
    processes_barrier(p);
    end(&life);
}

/* ---- an abort that takes long ---------------------------------------------------------------- */

enum { ABORT_MS = 1500 }; /* more than GRACE_MS in rail.c */

static int (*plain_abort)(struct ncclComm *);
static CUresult (*plain_free)(void *);
static CUresult (*plain_unmap)(CUdeviceptr, size_t);
static const void *words;
static CUdeviceptr scratch;
static atomic_int goes_on, is_freed, is_unmapped;

static int abort_late(struct ncclComm *comm)
{
    while (!atomic_load(&goes_on))
        host_pause_ms(1);
    return plain_abort(comm);
}

static CUresult see_free(void *memory)
{
    if (memory == words)
        atomic_store(&is_freed, 1);
    return plain_free(memory);
}

/* The words' end waits for kernels that may still use the scratch. */
static CUresult see_unmap(CUdeviceptr base, size_t bytes)
{
    if (base == scratch)
        atomic_store(&is_unmapped, atomic_load(&is_freed) ? 1 : -1);
    return plain_unmap(base, bytes);
}

static void outlived(struct processes *p, int rank)
{
    static struct sw_engine engine;
    struct life life = {.comm = NULL};
    int64_t until = host_now_ms() + LIMIT_MS, before;
    struct sw_wide *wide;

    rails_set_engine(rank);
    host_must(begin(p, rank, &life, &options), "symwin_comm_create");
    get_memory(&life);
    host_must(reduce(&life, PIECES), "a call");
    host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
    wide = life.comm->wide;
    words = (const void *)wide->words;
    plain_free = sw_drv.cuMemFreeHost;
    sw_drv.cuMemFreeHost = see_free;
    scratch = wide->memory.base;
    plain_unmap = sw_drv.cuMemUnmap;
    sw_drv.cuMemUnmap = see_unmap;
    engine = *wide->engine;
    plain_abort = engine.abort;
    engine.abort = abort_late;
    set_engine(&life, &engine);
    processes_barrier(p);
    if (rank == 1)
        host_must(symwin_comm_abort(life.comm), "symwin_comm_abort");
    while (symwin_comm_check(life.comm) == SYMWIN_OK)
        host_pause_ms(1);
    host_pause_ms(ABORT_MS); /* the watching thread has waited for it */
    before = host_now_ms();
    end(&life);
    must_be(host_now_ms() - before < ABORT_MS / 2, "a destroy does not wait for it again", rank);
    must_be(sw_reaper_wait(LIMIT_MS) && !atomic_load(&is_freed),
            "words stay while NCCL may write to them", rank);
    must_equal(atomic_load(&is_unmapped), 0, "so does the scratch", rank);
    atomic_store(&goes_on, 1);
    while (!atomic_load(&is_freed) && host_now_ms() < until)
        host_pause_ms(1);
    must_be(atomic_load(&is_freed), "and no longer", rank);
    must_be(sw_reaper_wait(LIMIT_MS), "all is released", rank);
    must_equal(atomic_load(&is_unmapped), 1, "the scratch after the words", rank);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static CUresult (*plain_launch)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUfunction of_sums; /* the kernel to look at; NULL: any */
static unsigned widest;    /* grid of its launches */

static CUresult see_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                           void **extra)
{
    if ((of_sums == NULL || function == of_sums) && config->gridDimX > widest)
        widest = config->gridDimX;
    return plain_launch(config, function, params, extra);
}

/* The blocks of the kernel between two exchanges are no more than NCCL's on a rail, if these have a
 * limit. */
static void check_sums(const struct life *life, int has_limit, int on_rail, int rank)
{
    struct life twoshot = *life;

    twoshot.twoshot = 1;
    of_sums = sw_kernels_sum(life->comm->wide->kernels)->function;
    widest = 0;
    plain_launch = sw_drv.cuLaunchKernelEx;
    sw_drv.cuLaunchKernelEx = see_launch;
    host_must(reduce(&twoshot, PIECES), "two exchanges with a limit");
    sw_drv.cuLaunchKernelEx = plain_launch;
    host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
    must_equal(host_get_u32(life->device, life->out), 4, "a sum by two exchanges", rank);
    if (has_limit && sw_driver_is_emulated())
        must_equal((int)widest, on_rail, "blocks of a sum", rank);
    else if (has_limit) /* a block of a GPU has more threads */
        must_be(widest > 0 && (int)widest <= on_rail, "blocks of a sum", rank);
}

enum { THREE = 3 };

/* A call's own limit holds for kernels inside if the library chooses to go by rails, where
 * `blocks` of a caller who chooses them are pieces. */
static void check_own_limit(const struct life *life, int rank)
{
    const symwin_collective_options three = {.size = sizeof three, .blocks = THREE};
    symwin_collective_info info;
    int limited;

    host_must(symwin_reduce_scatter_query(life->comm, life->in, life->out, PIECES / 4, SYMWIN_U32,
                                          SYMWIN_SUM, &three, &info),
              "symwin_reduce_scatter_query");
    must_equal((int)info.algo, SYMWIN_ALGO_RAILS, "the library chooses rails", rank);
    plain_launch = sw_drv.cuLaunchKernelEx;
    for (limited = 0; limited < 2; limited++) {
        of_sums = NULL;
        widest = 0;
        sw_drv.cuLaunchKernelEx = see_launch;
        host_must(symwin_reduce_scatter_with(life->comm, life->in, life->out, PIECES / 4,
                                             SYMWIN_U32, SYMWIN_SUM, limited ? &three : NULL,
                                             life->stream),
                  "a call with a limit of its own");
        sw_drv.cuLaunchKernelEx = plain_launch;
        host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
        must_be(limited ? widest <= THREE : widest > THREE || ONE_BLOCK, "blocks of kernels inside",
                rank);
    }
}

/* NCCL's blocks on each rail and on the communicator of all ranks, with `max_blocks`. */
static void check_limit(const struct life *life, int max_blocks, int on_rail, int of_all, int rank)
{
    void *const symbol = rails_find("stand_in_max_ctas");
    struct life part = *life;
    symwin_comm_options with = options;
    const struct sw_wide *wide;
    int (*max_ctas)(struct ncclComm *);
    int i;

    with.max_blocks = max_blocks;
    memcpy(&max_ctas, &symbol, sizeof max_ctas);
    host_must(symwin_comm_split(life->comm, 0, rank, &with, &part.comm), "symwin_comm_split");
    wide = part.comm->wide;
    for (i = 0; i < SW_LANES * wide->rail_count && max_ctas != NULL; i++)
        must_equal(max_ctas(wide->rails[i]), on_rail, "blocks of NCCL on a rail", rank);
    if (max_ctas != NULL)
        must_equal(max_ctas(wide->all), of_all, "blocks of NCCL's of all ranks", rank);
    host_put_u32(life->device, part.in, 1);
    host_must(reduce(&part, PIECES), "a call with a limit");
    host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
    must_equal(host_get_u32(life->device, part.out), 4, "a sum", rank);
    check_sums(&part, max_blocks > 0 && max_blocks < 1000, on_rail, rank);
    symwin_comm_destroy(part.comm);
}

/* A rank alone in its domain serves three rails: four lanes of each share a limit. */
static void limited(struct processes *p, int rank)
{
    struct life life = {.comm = NULL};

    rails_set_engine(rank);
    host_must(begin(p, rank, &life, &options), "symwin_comm_create");
    get_memory(&life);
    check_own_limit(&life, rank);
    check_limit(&life, 0, 8, INT_MIN, rank);
    check_limit(&life, 1, 1, 1, rank);
    check_limit(&life, 25, 2, 25, rank);
    check_limit(&life, 40, 2, 40, rank); /* three would be four for messages */
    check_limit(&life, 1000, 8, 1000, rank);
    processes_barrier(p);
    end(&life);
}

/* ---- messages -------------------------------------------------------------------------------- */

static int (*plain_send)(const void *, size_t, int, int, struct ncclComm *, CUstream);
static int (*plain_recv)(void *, size_t, int, int, struct ncclComm *, CUstream);
static unsigned sent_to, received_from; /* domains, a bit each */

static int see_send(const void *in, size_t count, int type, int peer, struct ncclComm *comm,
                    CUstream stream)
{
    sent_to |= 1u << peer;
    return plain_send(in, count, type, peer, comm, stream);
}

static int see_recv(void *out, size_t count, int type, int peer, struct ncclComm *comm,
                    CUstream stream)
{
    received_from |= 1u << peer;
    return plain_recv(out, count, type, peer, comm, stream);
}

/* NCCL connects two ranks for messages at their first one. So the first call lets it connect all of
 * them, also one of a single element, of which most domains have no part. */
static void connects(struct processes *p, int rank)
{
    static struct sw_engine engine;
    struct life life = {.comm = NULL, .twoshot = 1};
    const symwin_collective_options by = {.size = sizeof by, .algo = SYMWIN_ALGO_TWOSHOT_PUSH};
    const unsigned peers = 0xfu & ~(1u << rank);

    rails_set_engine(rank);
    host_must(begin(p, rank, &life, &options), "symwin_comm_create");
    get_memory(&life);
    engine = *life.comm->wide->engine;
    plain_send = engine.send;
    plain_recv = engine.recv;
    engine.send = see_send;
    engine.recv = see_recv;
    set_engine(&life, &engine);
    host_put_u32(life.device, life.in, (uint32_t)rank + 1);
    host_must(symwin_allreduce_with(life.comm, life.in, life.out, 1, SYMWIN_U32, SYMWIN_SUM, &by,
                                    life.stream),
              "a small call");
    host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
    must_equal(host_get_u32(life.device, life.out), 10, "a sum of one element", rank);
    must_equal((int)sent_to, (int)peers, "domains that got a message", rank);
    must_equal((int)received_from, (int)peers, "domains that sent one", rank);
    processes_barrier(p);
    end(&life);
}

static void check_alike(const char *only, const char *name, const struct place *place,
                        void (*body)(struct processes *p, int rank))
{
    struct processes *p;

    if (strstr(name, only) == NULL)
        return;
    tap_ok(places_run(place, 4, body, NULL, &p), "%s", name);
    processes_free(p);
}

int main(int argc, char **argv)
{
    static const struct place unlike = {"3 + 1", 1, "aaab"};
    static const struct place two = {"2 x 2", 1, "aabb"};
    static const struct place apart = {"one on each", 1, "abcd"};
    const char *only = argc > 1 ? argv[1] : "";
    size_t i;

    for (i = 0; i < sizeof creations / sizeof creations[0]; i++)
        if (strstr(creations[i].name, only) != NULL &&
            !skipped(creations[i].name, strcmp(creations[i].variable, "SYMWIN_NCCL") != 0))
            check_creation(&two, &creations[i]);
    if (strstr("a rank ends before it joins its domain", only) != NULL)
        check_joining(&two);
    for (i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        struct ending e = endings[i];

        /* NCCL's own calls wait for the rank on the host, so several are in the call. */
        if (e.what == LATE_IN_A_CALL && !sw_driver_is_emulated())
            e.words = "";
        if (strstr(e.name, only) != NULL)
            check_ending(&e, e.what <= FULL, be_ended);
    }
    check_alike(only, "parts of a communicator over domains", &two, split);
    check_alike(only, "an abort of NCCL's that takes long", &two, outlived);
    check_alike(only, "limits of NCCL's blocks", &unlike, limited);
    check_alike(only, "a small call by two exchanges", &apart, connects);
    return tap_done();
}
