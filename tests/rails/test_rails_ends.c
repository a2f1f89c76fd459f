/* How communicators over several domains fail and end: engines that are missing or that fail in any
 * call, ranks that are killed or stopped, aborts, and calls that are refused. */
#include <ctype.h>
#include <limits.h>
#include <sys/syscall.h>

#include "rails.h"
#include "src/rails/rails.h"

enum {
    LIMIT_MS = 8000,
    SOON_MS = 3000,
    PIECES = 100000 /* elements of a call of several pieces */
};                  /* after which no rank may still wait, on a busy machine */

struct life {
    symwin_comm *comm;
    struct CUstream_st *stream;
    uint32_t *in, *out;
    CUgraphExec exec; /* NULL: none */
    int device;
};

static const symwin_comm_options options = {.size = sizeof options,
                                            .timeout_ms = 20000,
                                            .bootstrap_timeout_ms = 20000,
                                            .kernel_timeout_ms = 20000,
                                            .slot_bytes = 8192};

static symwin_status begin(struct processes *p, int rank, struct life *life,
                           const symwin_comm_options *with)
{
    life->device = rank % harness_device_count();
    return processes_note(
        p, rank,
        symwin_comm_create(processes_id(p, rank), p->count, rank, life->device, with, &life->comm));
}

static void get_memory(struct life *life)
{
    host_must(symwin_stream_create(life->device, &life->stream), "symwin_stream_create");
    life->in = host_alloc(life->device, 4 * PIECES);
    life->out = host_alloc(life->device, 4 * PIECES);
}

static void end(struct life *life)
{
    if (life->exec != NULL)
        host_must_cuda(sw_drv.cuGraphExecDestroy(life->exec), "cuGraphExecDestroy");
    symwin_comm_destroy(life->comm);
    host_must(symwin_stream_destroy(life->device, life->stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(life->in), "symwin_mem_free");
    host_must(symwin_mem_free(life->out), "symwin_mem_free");
}

static symwin_status reduce(const struct life *life, uint64_t count)
{
    const symwin_collective_options pieces = {
        .size = sizeof pieces, .algo = SYMWIN_ALGO_RAILS, .blocks = 7};

    return symwin_allreduce_with(life->comm, life->in, life->out, count, SYMWIN_U32, SYMWIN_SUM,
                                 count == PIECES ? &pieces : NULL, life->stream);
}

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

/* Only the stand-in fails when it is told to, and only an emulated device has as little memory. */
static int skipped(const char *name, int fails)
{
    fails = fails && processes_use_gpus();
    if (fails)
        tap_ok(1, "%s # SKIP NCCL and devices do not fail when they are told to", name);
    return fails;
}

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
    ABORTED,
    FAILS,
    DRIVER_FAILS,
    DRIVER_REFUSES,
    CHECK_FAILS, /* before anything is launched */
    LITTLE_ROOM, /* in the stream's green context, for as many blocks as are asked for */
    MESSAGE_FAILS,
    LEAVES,
    DIFFERS,
    FAILS_ALONE, /* a kernel, and the domain's others complete */
    REPLAY_FAILS /* the same, in a replay */
};

static const struct ending {
    const char *name;
    enum what what;
    int rank; /* that does it */
    symwin_status status;
    const char *words;
    const char *hosts; /* NULL: "aabb" */
} endings[] = {
    {"a rank is killed", KILLED, 3, SYMWIN_PEER_LOST, "rank 3", NULL},
    {"the rank that made the id is killed", KILLED, 0, SYMWIN_PEER_LOST, "rank 0", NULL},
    {"a rank is killed in a call", KILLED_IN_A_CALL, 2, SYMWIN_PEER_LOST, "rank 2", NULL},
    {"a rank does not come", LATE, 2, SYMWIN_TIMEOUT, "rank 2", NULL},
    {"a rank that links its host is stopped", STOPPED, 2, SYMWIN_TIMEOUT, "rank 2", NULL},
    {"a rank is stopped, and pieces wait for it", STOPPED_LATER, 2, SYMWIN_TIMEOUT, "rank ", NULL},
    {"a call waits for room in a full stream", FULL, 2, SYMWIN_TIMEOUT, "rank ", NULL},
    {"a rank aborts", ABORTED, 1, SYMWIN_ABORTED, "rank 1 aborted", NULL},
    {"NCCL fails in a call", FAILS, 1, SYMWIN_DRIVER, "NCCL has failed on rank 1", NULL},
    {"the driver fails in a call", DRIVER_FAILS, 1, SYMWIN_NO_MEMORY, "rank 1 has no memory", NULL},
    {"the driver refuses a step of a call", DRIVER_REFUSES, 1, SYMWIN_UNSUPPORTED,
     "rank 1 was refused", NULL},
    {"the driver fails while a call is checked", CHECK_FAILS, 1, SYMWIN_DRIVER, "failed on rank 1",
     NULL},
    {"a call has no room in its stream's part of the device", LITTLE_ROOM, 1, SYMWIN_UNSUPPORTED,
     "rank 1 was refused", NULL},
    {"the driver refuses a message", MESSAGE_FAILS, 1, SYMWIN_UNSUPPORTED, "rank 1 was refused",
     NULL},
    {"a rank leaves", LEAVES, 3, SYMWIN_PEER_LOST, "rank 3 has destroyed", NULL},
    {"a kernel fails on one rank alone", FAILS_ALONE, 0, SYMWIN_TIMEOUT, "", NULL},
    {"a kernel fails on one rank alone, in a replay", REPLAY_FAILS, 0, SYMWIN_TIMEOUT, "", NULL},
    {"a rank passes another count", DIFFERS, 1, SYMWIN_MISMATCH, " differ", NULL},
    {"a rank alone in its domain leaves", LEAVES, 3, SYMWIN_PEER_LOST, "rank 3 has destroyed",
     "abcd"},
    {"a rank alone in its domain does not come", LATE, 2, SYMWIN_TIMEOUT, "rank 2", "abcd"},
    {"the rank that made the id does not come", LATE, 0, SYMWIN_TIMEOUT, "rank 0", "abcd"},
    {"a rank alone in its domain is stopped", STOPPED, 2, SYMWIN_TIMEOUT, "rank 2", "abcd"},
};

static CUresult (*plain_wait)(CUstream, CUevent, unsigned);
static CUresult wait_code;
static int wait_at, waits;

static CUresult fail_wait(CUstream stream, CUevent event, unsigned flags)
{
    waits++;
    return wait_at == 0 || waits == wait_at ? wait_code : plain_wait(stream, event, flags);
}

/* The driver refuses a wait for an event: the one with that number, or all if it is 0. The third
 * one comes when the first pieces are on their way. */
static void let_waits_fail(CUresult code, int at)
{
    wait_code = code;
    wait_at = at;
    waits = 0;
    plain_wait = sw_drv.cuStreamWaitEvent;
    sw_drv.cuStreamWaitEvent = fail_wait;
}

static void let_waits_pass(void)
{
    sw_drv.cuStreamWaitEvent = plain_wait;
}

static CUresult fail_to_tell(unsigned count, CUpointer_attribute *attributes, void **answers,
                             CUdeviceptr address)
{
    (void)count, (void)attributes, (void)answers, (void)address;
    return CUDA_ERROR_UNKNOWN;
}

/* As many blocks as a whole device has room for. */
static symwin_status reduce_by_all_blocks(const struct life *life, struct CUstream_st *stream)
{
    symwin_collective_options all = {
        .size = sizeof all, .algo = SYMWIN_ALGO_ONESHOT, .blocks = 1 << 12, .threads = 32};
    symwin_collective_info info;

    while (all.blocks > 1 &&
           symwin_allreduce_query(life->comm->inner, life->in, life->out, 1000, SYMWIN_U32,
                                  SYMWIN_SUM, &all, &info) != SYMWIN_OK)
        all.blocks--;
    return symwin_allreduce_with(life->comm, life->in, life->out, 1000, SYMWIN_U32, SYMWIN_SUM,
                                 &all, stream);
}

static void reduce_in_a_part(const struct life *life, int rank)
{
    struct sw_scope scope;
    unsigned multiprocessors;
    CUgreenCtx part;
    CUstream stream;

    host_must(sw_scope_enter(life->device, &scope), "scope");
    part = host_make_part(life->device, 1, &multiprocessors);
    host_must_cuda(sw_drv.cuGreenCtxStreamCreate(&stream, part, CU_STREAM_NON_BLOCKING, 0),
                   "cuGreenCtxStreamCreate");
    must_be(reduce_by_all_blocks(life, stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("blocks were asked for"),
            "a call without room", rank);
    host_must_cuda(sw_drv.cuStreamDestroy(stream), "cuStreamDestroy");
    host_must_cuda(sw_drv.cuGreenCtxDestroy(part), "cuGreenCtxDestroy");
    sw_scope_leave(&scope);
}

/* To a rank of the other domain, and from it, on all ranks. */
static symwin_status exchange(const struct life *life, int rank)
{
    symwin_status status;

    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_send(life->comm, life->in, 9, SYMWIN_U32, (rank + 2) % 4, life->stream),
              "symwin_send");
    host_must(symwin_recv(life->comm, life->out, 9, SYMWIN_U32, (rank + 2) % 4, life->stream),
              "symwin_recv");
    status = symwin_group_end();
    return status;
}

static int (*plain_reduce)(const void *, void *, size_t, int, int, struct ncclComm *, CUstream);
static const void *found, *failure;

/* Says for this rank that its kernel has failed. */
static int reduce_failure(const void *in, void *out, size_t count, int type, int op,
                          struct ncclComm *comm, CUstream stream)
{
    return plain_reduce(in == found ? failure : in, out, count, type, op, comm, stream);
}

/* In a graph that is launched once. */
static void replay(struct life *life)
{
    struct sw_scope scope;

    host_must(sw_scope_enter(life->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(life->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(reduce(life, PIECES), "a captured call");
    life->exec = host_end_capture(life->stream, NULL);
    host_must_cuda(sw_drv.cuGraphLaunch(life->exec, life->stream), "cuGraphLaunch");
    sw_scope_leave(&scope);
}

static void fail_alone(struct life *life, int replays)
{
    struct sw_wide *wide = life->comm->wide;
    const symwin_comm *inner = life->comm->inner;
    static struct sw_engine engine;
    unsigned char *word = host_alloc(life->device, 256);

    host_put_u32(life->device, word, SW_KERNEL_TIMEOUT);
    failure = word;
    found = (const void *)(uintptr_t)(inner->report_address +
                                      offsetof(struct sw_kernel_report, code));
    engine = *wide->engine;
    plain_reduce = engine.all_reduce;
    engine.all_reduce = reduce_failure;
    pthread_mutex_lock(&wide->nccl); /* the watching thread has it too */
    wide->engine = &engine;
    pthread_mutex_unlock(&wide->nccl);
    if (replays)
        replay(life);
    else
        (void)reduce(life, PIECES);
    while (symwin_comm_check(life->comm) == SYMWIN_OK)
        host_pause_ms(1);
    host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
    host_must(symwin_mem_free(word), "symwin_mem_free");
}

/* What the rank does that ends it for the others. */
static void end_it(struct processes *p, const struct ending *e, struct life *life)
{
    CUresult (*plain_ask)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
    uint32_t unknown = 0;

    switch (e->what) {
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
        while ((e->rank != 0 && p->rank[0].status < 0) || (e->rank != 1 && p->rank[1].status < 0) ||
               (e->rank != 2 && p->rank[2].status < 0) || p->rank[3].status < 0)
            host_pause_ms(5);
        break;
    case FAILS:
        must_be(reduce(life, 1) == SYMWIN_DRIVER && host_error_has("ncclGroupEnd failed"),
                "a call in which NCCL fails", e->rank);
        break;
    case DRIVER_FAILS:
        let_waits_fail(CUDA_ERROR_OUT_OF_MEMORY, 3);
        must_be(reduce(life, PIECES) == SYMWIN_NO_MEMORY, "a call in which the driver fails",
                e->rank);
        let_waits_pass();
        break;
    case DRIVER_REFUSES:
        let_waits_fail(CUDA_ERROR_NOT_SUPPORTED, 3);
        must_be(reduce(life, PIECES) == SYMWIN_UNSUPPORTED, "a call that the driver refuses",
                e->rank);
        let_waits_pass();
        break;
    case MESSAGE_FAILS:
        let_waits_fail(CUDA_ERROR_NOT_SUPPORTED, 0);
        must_be(exchange(life, e->rank) == SYMWIN_UNSUPPORTED, "a message that the driver refuses",
                e->rank);
        let_waits_pass();
        break;
    case CHECK_FAILS:
        plain_ask = sw_drv.cuPointerGetAttributes;
        sw_drv.cuPointerGetAttributes = fail_to_tell;
        must_be(symwin_allreduce(life->comm, &unknown, life->out, 1, SYMWIN_U32, SYMWIN_SUM,
                                 life->stream) == SYMWIN_DRIVER,
                "a call that the driver fails to check", e->rank);
        sw_drv.cuPointerGetAttributes = plain_ask;
        break;
    case LITTLE_ROOM:
        reduce_in_a_part(life, e->rank);
        break;
    case DIFFERS:
        (void)reduce(life, 999); /* the others' kernels may have found it by the end of the call */
        break;
    case FAILS_ALONE:
    case REPLAY_FAILS:
        fail_alone(life, e->what == REPLAY_FAILS);
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

static uint64_t count_of(const struct ending *e)
{
    return e->what == FAILS ? 1
           : e->what == STOPPED_LATER || e->what == DRIVER_FAILS || e->what == DRIVER_REFUSES ||
                   e->what == FAILS_ALONE
               ? PIECES
               : 1000;
}

/* The call that the others make. */
static symwin_status call(const struct ending *e, const struct life *life, int rank)
{
    return e->what == LITTLE_ROOM     ? reduce_by_all_blocks(life, life->stream)
           : e->what == MESSAGE_FAILS ? exchange(life, rank)
                                      : reduce(life, count_of(e));
}

static void be_ended(struct processes *p, int rank)
{
    const struct ending *e = places_arg(p);
    symwin_comm_options with = options;
    struct life life = {.comm = NULL};
    int64_t before;
    int r;

    rails_set_engine(rank);
    if (e->what == FAILS && rank == e->rank)
        setenv("STAND_IN_FAIL", "ncclAllReduce:10:3", 1); /* five connect */
    if (is_stopped(e) || e->what == LATE)
        with.kernel_timeout_ms = 700;
    host_must(begin(p, rank, &life, &with), "symwin_comm_create");
    p->rank[rank].status = -1;
    get_memory(&life);
    host_must(reduce(&life, 1), "the first call");
    host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
    host_must(reduce(&life, 1000), "the second call");
    host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
    processes_barrier(p);
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
    if (e->what == REPLAY_FAILS)
        replay(&life);
    if (e->what == REPLAY_FAILS || call(e, &life, rank) == SYMWIN_OK) {
        host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
        /* Whatever NCCL has brought, the other rank's part is not in it. Unless NCCL failed on the
         * rank, after a step that others have the result of. */
        must_be(e->what == FAILS || e->what == DRIVER_FAILS || e->what == DRIVER_REFUSES ||
                    e->what == MESSAGE_FAILS || symwin_comm_check(life.comm) != SYMWIN_OK,
                "no result", rank);
    }
    while (symwin_comm_check(life.comm) == SYMWIN_OK && host_now_ms() - before < LIMIT_MS)
        host_pause_ms(1);
    processes_note(p, rank, symwin_comm_check(life.comm));
    if (e->what == DIFFERS && rank / 2 == e->rank / 2) /* its domain knows the values */
        must_be(host_error_has("count differs: rank 1 passed 999, rank 0 passed 1000"), "values",
                rank);
    must_be(host_now_ms() - before < LIMIT_MS, "soon", rank);
    must_be(reduce(&life, 1) != SYMWIN_OK, "a call afterwards fails", rank);
    end(&life);
    must_be(host_now_ms() - before < LIMIT_MS, "destroyed soon", rank);
    p->rank[rank].number = tap_failures == 0;
    if (is_stopped(e) && rank == 0) { /* e->rank is another */
        for (r = 1; r < 4; r++)
            while (r != e->rank && p->rank[r].status < 0)
                host_pause_ms(5);
        kill(p->pids[e->rank], SIGKILL);
    }
}

static void check_ending(const struct place *place, const struct ending *e)
{
    const struct place other = {e->name, 1, e->hosts};
    struct processes *p;
    int right, r;

    right = places_run(e->hosts != NULL ? &other : place, 4, be_ended, (void *)(uintptr_t)e, &p) ||
            e->what <= FULL;
    for (r = 0; r < 4; r++) {
        if (r == e->rank || (p->rank[r].status == (int)e->status &&
                             strstr(p->rank[r].text, e->words) != NULL && p->rank[r].number == 1))
            continue;
        right = 0;
        fprintf(stderr, "# rank %d: %d, %s\n", r, p->rank[r].status, p->rank[r].text);
    }
    tap_ok(right, "%s", e->name);
    processes_free(p);
}

/* ---- calls that are refused ------------------------------------------------------------------ */

/* Calls of unequal parts, of which nothing may be sent. */
static void refused_parts(const struct life *life, int rank)
{
    const uint64_t ones[4] = {1, 1, 1, 1}, twice[4] = {2, 2, 2, 2}, apart[4] = {0, 2, 4, 6},
                   touching[4] = {0, 1, 2, 3}, huge[4] = {1, 1, 1, (uint64_t)1 << 61},
                   none[4] = {0};
    const uint64_t none_first[4] = {0, 1, 1, 1}, behind_it[4] = {5, 0, 1, 2};
    const symwin_parts untold = {.counts = rank == 0 ? none : none_first},
                       told = {.counts = rank == 0 ? none : none_first, .displacements = behind_it};
    uint64_t own[4] = {1, 1, 1, 1};
    const struct {
        const uint64_t *in, *out, *places;
        uint64_t room;
        size_t offset; /* of out behind in, in elements; 0: another buffer */
        const char *words;
    } rows[] = {
        {ones, huge, NULL, 0, 0, "more than any memory holds"},
        {ones, ones, NULL, UINT64_MAX, 0, "out_parts->room is 18446744073709551615"},
        {ones, ones, NULL, 3, 0, "the part for rank 3 in out_parts has 1 elements from element 3"},
        {ones, none, huge, 3, 0, "has 0 elements from element 2305843009213693952"},
        {twice, twice, touching, 0, 0, "from 1 on for rank 1 overlap those from 0 on for rank 0"},
        {own, ones, apart, 0, 0, "sends 2 elements to itself and receives 1"},
        {ones, ones, NULL, 0, 1, "overlap; pass two buffers"},
    };
    size_t i;

    own[rank] = 2;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const symwin_parts in = {.counts = rows[i].in}, out = {.counts = rows[i].out,
                                                               .displacements = rows[i].places,
                                                               .room = rows[i].room};

        must_be(symwin_alltoallv(life->comm, life->in, &in,
                                 rows[i].offset > 0 ? life->in + rows[i].offset : life->out, &out,
                                 SYMWIN_U32, life->stream) == SYMWIN_INVALID &&
                    host_error_has(rows[i].words),
                rows[i].words, rank);
    }
    host_must(
        symwin_alltoallv(life->comm, life->in, &told, life->in, &untold, SYMWIN_U32, life->stream),
        "equal parts in place, whose places one array tells");
}

/* Of the parts that are summed, one may be where the sum goes, if no other one touches it. */
static void refused_sums(const struct life *life, int rank)
{
    const uint64_t twice[4] = {2, 2, 2, 2}, touching[4] = {0, 1, 2, 3};
    const symwin_parts in = {.counts = twice}, near = {.counts = twice, .displacements = touching};

    must_be(symwin_reduce_scatterv(life->comm, life->in, &in, life->in + 2 * rank + 1, SYMWIN_U32,
                                   SYMWIN_SUM, life->stream) == SYMWIN_INVALID &&
                host_error_has("overlap; pass two buffers"),
            "sums over parts that others add", rank);
    must_be(symwin_reduce_scatterv(life->comm, life->in, &near, life->in + rank, SYMWIN_U32,
                                   SYMWIN_SUM, life->stream) == SYMWIN_INVALID &&
                host_error_has("from 1 on for rank 1 overlap those from 0 on for rank 0"),
            "sums in the place of parts that overlap", rank);
    host_must(symwin_reduce_scatterv(life->comm, life->in, &near, life->out, SYMWIN_U32, SYMWIN_SUM,
                                     life->stream),
              "sums of parts that overlap");
    host_must(symwin_reduce_scatterv(life->comm, life->in, &in, life->in + 2 * rank, SYMWIN_U32,
                                     SYMWIN_SUM, life->stream),
              "sums in place");
}

/* In a capture that is invalid nothing is launched, and the communicator goes on. */
static void refused_in_capture(const struct life *life, int rank)
{
    struct sw_scope scope;
    CUgraph graph;

    host_must(sw_scope_enter(life->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(life->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    (void)sw_drv.cuStreamQuery(life->stream); /* which a capture forbids */
    must_be(reduce(life, 1000) == SYMWIN_INVALID && host_error_has("the capture of the stream is"),
            "a call in an invalid capture", rank);
    must_be(symwin_send(life->comm, life->in, 1, SYMWIN_U32, (rank + 2) % 4, life->stream) ==
                    SYMWIN_INVALID &&
                host_error_has("the capture of the stream is"),
            "a message in one", rank);
    must_be(sw_drv.cuStreamEndCapture(life->stream, &graph) != CUDA_SUCCESS, "the capture's end",
            rank);
    sw_scope_leave(&scope);
}

/* On a thread's own default stream, whose steps are in another one. Nothing of it has run. */
static void driver_refuses_in_capture(const struct life *life, int rank)
{
    const CUstream own = CU_STREAM_PER_THREAD;
    struct sw_scope scope;
    CUgraph graph;

    host_must(sw_scope_enter(life->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    let_waits_fail(CUDA_ERROR_NOT_SUPPORTED, 0);
    must_be(symwin_barrier(life->comm, own) == SYMWIN_UNSUPPORTED, "a captured call", rank);
    let_waits_pass();
    if (sw_drv.cuStreamEndCapture(own, &graph) == CUDA_SUCCESS)
        host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    sw_scope_leave(&scope);
    must_be(symwin_comm_check(life->comm) == SYMWIN_OK, "a captured call ends nothing", rank);
}

static void refused(struct processes *p, int rank)
{
    const uint64_t counts[4] = {1, 1, 1, 1}, many[4] = {700000, 1, 1, 1};
    const uint64_t many_at[4] = {3, 0, 1, 2};
    const symwin_collective_options
        put = {.size = sizeof put, .algo = SYMWIN_ALGO_TWOSHOT_PUT},
        rails = {.size = sizeof rails, .algo = SYMWIN_ALGO_RAILS},
        one_piece = {.size = sizeof one_piece, .algo = SYMWIN_ALGO_RAILS, .blocks = 1},
        four_pieces = {.size = sizeof four_pieces, .algo = SYMWIN_ALGO_RAILS, .blocks = 4},
        wide_blocks = {.size = sizeof wide_blocks,
                       .algo = SYMWIN_ALGO_RAILS,
                       .blocks = 9,
                       .threads = 1 << 20},
        many_threads = {.size = sizeof many_threads, .threads = 1 << 20},
        nccl = {.size = sizeof nccl, .algo = SYMWIN_ALGO_NCCL, .scalar = counts};
    const symwin_parts on_device = {.counts = counts, .displacements = counts, .on_device = 1};
    const symwin_parts on_host = {.counts = counts}, no_counts = {.counts = NULL},
                       too_many = {.counts = many, .displacements = many_at};
    symwin_collective_options device_scalar = {.size = sizeof device_scalar};
    symwin_collective_info info;
    symwin_message_info message;
    symwin_channel_end *channel;
    struct life life = {.comm = NULL};
    uint32_t here = 0;

    rails_set_engine(rank);
    host_must(begin(p, rank, &life, &options), "symwin_comm_create");
    get_memory(&life);
    device_scalar.scalar = life.in;
    must_be(symwin_allreduce_with(life.comm, life.in, life.out, 1, SYMWIN_U32, SYMWIN_SUM, &put,
                                  life.stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("cannot go by twoshot_put"),
            "an algorithm", rank);
    must_be(symwin_gather_with(life.comm, life.in, life.out, 1, SYMWIN_U32, 0, &rails,
                               life.stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("cannot go by rails"),
            "a gather by rails", rank);
    must_be(symwin_allreduce_with(life.comm, life.in, life.out, 1, SYMWIN_F32, SYMWIN_PREMUL_SUM,
                                  &nccl, life.stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("NCCL alone has no pre-multiplied sum"),
            "a pre-multiplied sum by NCCL", rank);
    must_be(symwin_allreduce_with(life.comm, life.in, life.out, 1, SYMWIN_I32, SYMWIN_AVG, &rails,
                                  life.stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("an average of integers goes by NCCL alone"),
            "an average of integers by rails", rank);
    must_be(symwin_reduce_scatterv(life.comm, life.in, &on_host, life.out, SYMWIN_I32, SYMWIN_AVG,
                                   life.stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("no averages of integers in unequal parts"),
            "an average of integers in unequal parts", rank);
    must_be(symwin_broadcast(life.comm, life.in, life.out, 1, SYMWIN_U32, 4, life.stream) ==
                    SYMWIN_INVALID &&
                host_error_has("root is 4"),
            "a root that is no rank", rank);
    must_be(symwin_allreduce(life.comm, &here, life.out, 1, SYMWIN_U32, SYMWIN_SUM, life.stream) ==
                    SYMWIN_INVALID &&
                host_error_has("is not device memory"),
            "memory of the host", rank);
    must_be(symwin_allgather(life.comm, life.in, life.out, PIECES, SYMWIN_U32, life.stream) ==
                    SYMWIN_INVALID &&
                host_error_has("400000 elements (1600000 bytes) at out"),
            "parts that pass the end of their allocation", rank);
    must_be(symwin_alltoallv(life.comm, life.in, &on_host, life.out, &too_many, SYMWIN_U32,
                             life.stream) == SYMWIN_INVALID &&
                host_error_has("at out (0x"),
            "unequal parts that do", rank);
    must_be(symwin_send(life.comm, life.in, 2000000, SYMWIN_U32, 2, life.stream) ==
                    SYMWIN_INVALID &&
                host_error_has("2000000 elements (8000000 bytes) at in"),
            "a message that does", rank);
    must_be(symwin_send(life.comm, life.in, 1, SYMWIN_U32, 9, life.stream) == SYMWIN_INVALID &&
                host_error_has("peer is 9"),
            "a peer that is no rank", rank);
    must_be(symwin_allgatherv(life.comm, life.in, life.out, &on_device, SYMWIN_U32, life.stream) ==
                    SYMWIN_UNSUPPORTED &&
                host_error_has("host memory"),
            "counts on the device", rank);
    must_be(symwin_send_query(life.comm, life.in, 1, SYMWIN_U32, 1, NULL, &message) ==
                    SYMWIN_UNSUPPORTED &&
                host_error_has("several domains"),
            "a query of a message", rank);
    must_be(symwin_allreduce(life.comm, life.in, life.in + 1, 2, SYMWIN_U32, SYMWIN_SUM,
                             life.stream) == SYMWIN_INVALID &&
                host_error_has("overlap in part"),
            "buffers that overlap", rank);
    must_be(symwin_allreduce_with(life.comm, life.in, life.out, 1, SYMWIN_F32, SYMWIN_PREMUL_SUM,
                                  &device_scalar, life.stream) == SYMWIN_INVALID &&
                host_error_has("scalar_on_device"),
            "a scalar on the device", rank);
    must_be(symwin_alltoallv(life.comm, life.in, NULL, life.out, &on_host, SYMWIN_U32,
                             life.stream) == SYMWIN_INVALID &&
                host_error_has("in_parts is NULL"),
            "parts that are not there", rank);
    refused_parts(&life, rank);
    refused_sums(&life, rank);
    refused_in_capture(&life, rank);
    must_be(symwin_send(life.comm, (char *)life.in + 1, 1, SYMWIN_U32, (rank + 2) % 4,
                        life.stream) == SYMWIN_INVALID &&
                host_error_has("not aligned to 4 bytes"),
            "a message that is not aligned", rank);
    host_must(symwin_group_begin(), "symwin_group_begin");
    must_be(symwin_alltoallv(life.comm, life.in, &on_host, life.out, &no_counts, SYMWIN_U32,
                             life.stream) == SYMWIN_INVALID,
            "parts without counts, in a group", rank);
    must_be(symwin_group_end() == SYMWIN_INVALID, "the end of that group", rank);
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_send(life.comm, life.in, 1, SYMWIN_U32, 0, life.stream), "send");
    must_be(symwin_recv(life.comm, life.out, 1, SYMWIN_U32, 0, NULL) == SYMWIN_OK &&
                symwin_group_end() == SYMWIN_INVALID && host_error_has("one stream"),
            "messages on two streams", rank);
    must_be(symwin_channel_create(life.comm, (rank + 1) % 4, life.in, 4096, NULL, &channel) ==
                    SYMWIN_UNSUPPORTED &&
                host_error_has("symwin_comm_split"),
            "a channel", rank);
    host_must(symwin_allreduce_query(life.comm, life.in, life.out, 5, SYMWIN_U32, SYMWIN_SUM, NULL,
                                     &info),
              "a query");
    /* A rail has 50,000 elements, and a piece has room for 12,800 of the scratch. */
    host_must(symwin_allreduce_query(life.comm, life.in, life.out, PIECES, SYMWIN_U32, SYMWIN_SUM,
                                     &one_piece, &info),
              "a query of a large message");
    must_be(info.blocks == 4, "more pieces than were asked for, since there is no room", rank);
    host_must(symwin_allreduce_query(life.comm, life.in, life.out, 10, SYMWIN_U32, SYMWIN_SUM,
                                     &four_pieces, &info),
              "a query of a small message");
    must_be(info.blocks == 3, "fewer pieces than were asked for: five elements a rail", rank);
    host_must(symwin_broadcast_with(life.comm, life.in, life.out, PIECES, SYMWIN_U32, 1,
                                    &wide_blocks, life.stream),
              "a broadcast, of which one domain would refuse the limits");
    must_be(symwin_allreduce_with(life.comm, life.in, life.out, 1, SYMWIN_U32, SYMWIN_SUM,
                                  &many_threads, life.stream) == SYMWIN_UNSUPPORTED &&
                host_error_has("1048576 threads were asked for"),
            "more threads than a block takes", rank);
    driver_refuses_in_capture(&life, rank);
    host_must(reduce(&life, 1), "a call after all that");
    host_must(symwin_stream_synchronize(life.device, life.stream), "synchronize");
    processes_barrier(p);
    end(&life);
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
static const void *words;
static atomic_int goes_on, is_freed;

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
    engine = *wide->engine;
    plain_abort = engine.abort;
    engine.abort = abort_late;
    pthread_mutex_lock(&wide->nccl); /* the watching thread has it too */
    wide->engine = &engine;
    pthread_mutex_unlock(&wide->nccl);
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
    atomic_store(&goes_on, 1);
    while (!atomic_load(&is_freed) && host_now_ms() < until)
        host_pause_ms(1);
    must_be(atomic_load(&is_freed), "and no longer", rank);
    must_be(sw_reaper_wait(LIMIT_MS), "all is released", rank);
}

/* ---- limits ---------------------------------------------------------------------------------- */

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
    symwin_comm_destroy(part.comm);
}

/* A rank alone in its domain serves three rails: four lanes of each share a limit. */
static void limited(struct processes *p, int rank)
{
    struct life life = {.comm = NULL};

    rails_set_engine(rank);
    host_must(begin(p, rank, &life, &options), "symwin_comm_create");
    get_memory(&life);
    check_limit(&life, 0, 8, INT_MIN, rank);
    check_limit(&life, 1, 1, 1, rank);
    check_limit(&life, 25, 2, 25, rank);
    check_limit(&life, 1000, 8, 1000, rank);
    processes_barrier(p);
    end(&life);
}

int main(int argc, char **argv)
{
    static const struct place unlike = {"3 + 1", 1, "aaab"};
    static const struct place two = {"2 x 2", 1, "aabb"};
    const char *only = argc > 1 ? argv[1] : "";
    struct processes *p;
    size_t i;

    for (i = 0; i < sizeof creations / sizeof creations[0]; i++)
        if (strstr(creations[i].name, only) != NULL &&
            !skipped(creations[i].name, strcmp(creations[i].variable, "SYMWIN_NCCL") != 0))
            check_creation(&two, &creations[i]);
    if (strstr("a rank ends before it joins its domain", only) != NULL)
        check_joining(&two);
    for (i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (strstr(endings[i].name, only) != NULL &&
            !skipped(endings[i].name, endings[i].what == FAILS))
            check_ending(&two, &endings[i]);
    if (only[0] != '\0')
        return tap_done();
    tap_ok(places_run(&two, 4, refused, NULL, &p), "calls that are refused");
    processes_free(p);
    tap_ok(places_run(&two, 4, split, NULL, &p), "parts of a communicator over domains");
    processes_free(p);
    tap_ok(places_run(&two, 4, outlived, NULL, &p), "an abort of NCCL's that takes long");
    processes_free(p);
    tap_ok(places_run(&unlike, 4, limited, NULL, &p), "limits of NCCL's blocks");
    processes_free(p);
    return tap_done();
}
