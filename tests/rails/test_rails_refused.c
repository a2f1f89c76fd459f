/* Calls over several domains that are refused: on all ranks, which go on, and those that one rank
 * alone is refused, or that fail there, which end the communicator. */
#include "rails_ends.h"

/* ---- on one rank alone ----------------------------------------------------------------------- */

enum what {
    FAILS,
    FAILS_LATER, /* in no call */
    DRIVER_FAILS,
    DRIVER_REFUSES,
    CHECK_FAILS, /* before anything is launched */
    LITTLE_ROOM, /* in the stream's green context, for as many blocks as are asked for */
    MESSAGE_FAILS,
    DIFFERS,
    FAILS_ALONE, /* a kernel, and the domain's others complete */
    REPLAY_FAILS /* the same, in a replay */
};

static const struct ending endings[] = {
    {"NCCL fails in a call", FAILS, 1, SYMWIN_DRIVER,
     "NCCL has failed on rank 1|rank 1's last failure: symwin_allreduce: NCCL's ncclGroupEnd", NULL,
     0},
    {"NCCL fails later", FAILS_LATER, 1, SYMWIN_DRIVER,
     "NCCL has failed on rank 1|; rank 1's last failure: NCCL: internal error", NULL, 0},
    {"the driver fails in a call", DRIVER_FAILS, 1, SYMWIN_NO_MEMORY,
     "rank 1 has no memory|; rank 1's last failure: cuStreamWaitEvent: ", NULL, 0},
    {"the driver refuses a step of a call", DRIVER_REFUSES, 1, SYMWIN_UNSUPPORTED,
     "rank 1 was refused|; rank 1's last failure: cuStreamWaitEvent: ", NULL, 0},
    {"the driver fails while a call is checked", CHECK_FAILS, 1, SYMWIN_DRIVER,
     "failed on rank 1|; rank 1's last failure: symwin_allreduce: ", NULL, 0},
    {"a call has no room in its stream's part of the device", LITTLE_ROOM, 1, SYMWIN_UNSUPPORTED,
     "rank 1 was refused|; rank 1's last failure: symwin_allreduce_with: |blocks were asked for",
     NULL, 0},
    {"the driver refuses a message", MESSAGE_FAILS, 1, SYMWIN_UNSUPPORTED,
     "rank 1 was refused|; rank 1's last failure: symwin_group_end: ", NULL, 0},
    {"a kernel fails on one rank alone", FAILS_ALONE, 0, SYMWIN_TIMEOUT, "", NULL, 0},
    {"a kernel fails on one rank alone, in a replay", REPLAY_FAILS, 0, SYMWIN_TIMEOUT, "", NULL, 0},
    {"the driver fails in a call by two exchanges", DRIVER_FAILS, 1, SYMWIN_NO_MEMORY,
     "rank 1 has no memory|; rank 1's last failure: cuStreamWaitEvent: ", NULL, 1},
    {"a kernel fails on one rank alone, by two exchanges", FAILS_ALONE, 0, SYMWIN_TIMEOUT, "", NULL,
     1},
    {"a kernel fails on one rank alone, by two exchanges in a replay", REPLAY_FAILS, 0,
     SYMWIN_TIMEOUT, "", NULL, 1},
    {"a rank passes another count", DIFFERS, 1, SYMWIN_MISMATCH, " differ", NULL, 0},
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
    const symwin_comm *inner = life->comm->inner;
    static struct sw_engine engine;
    unsigned char *word = host_alloc(life->device, 256);

    host_put_u32(life->device, word, SW_KERNEL_TIMEOUT);
    failure = word;
    found = (const void *)(uintptr_t)(inner->report_address +
                                      offsetof(struct sw_kernel_report, code));
    engine = *life->comm->wide->engine;
    plain_reduce = engine.all_reduce;
    engine.all_reduce = reduce_failure;
    set_engine(life, &engine);
    if (replays)
        replay(life);
    else
        (void)reduce(life, PIECES);
    while (symwin_comm_check(life->comm) == SYMWIN_OK)
        host_pause_ms(1);
    host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
    host_must(symwin_mem_free(word), "symwin_mem_free");
}

static int has_failed(struct ncclComm *comm, int *state)
{
    (void)comm;
    *state = 3;
    return SW_ENGINE_OK;
}

static void fail_later(const struct life *life)
{
    static struct sw_engine engine;

    engine = *life->comm->wide->engine;
    engine.get_state = has_failed;
    set_engine(life, &engine);
    while (symwin_comm_check(life->comm) == SYMWIN_OK)
        host_pause_ms(1);
}

/* What the rank does that ends it for the others. */
static void end_it(const struct ending *e, struct life *life)
{
    CUresult (*plain_ask)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
    uint32_t unknown = 0;

    switch ((enum what)e->what) {
    case FAILS:
        must_be(reduce(life, 1) == SYMWIN_DRIVER && host_error_has("ncclGroupEnd failed"),
                "a call in which NCCL fails", e->rank);
        break;
    case FAILS_LATER:
        fail_later(life);
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
    }
}

static uint64_t count_of(const struct ending *e)
{
    return e->what == FAILS || e->what == FAILS_LATER     ? 1
           : e->what == CHECK_FAILS || e->what == DIFFERS ? 1000
                                                          : PIECES;
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
    struct life life = {.comm = NULL, .twoshot = e->twoshot};
    int64_t before;

    rails_set_engine(rank);
    if (e->what == FAILS && rank == e->rank)
        setenv("STAND_IN_FAIL", "ncclAllReduce:10:3", 1); /* five connect */
    live(p, rank, &life, &options);
    if (rank == e->rank) {
        host_pause_ms(30);
        end_it(e, &life);
        end(&life);
        return;
    }
    before = host_now_ms();
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
    see_end(p, rank, &life, before);
    if (e->what == DIFFERS && rank / 2 == e->rank / 2) /* its domain knows the values */
        must_be(strstr(p->rank[rank].text,
                       "count differs: rank 1 passed 999, rank 0 passed 1000") != NULL,
                "values", rank);
}

/* ---- on all ranks ---------------------------------------------------------------------------- */

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

int main(int argc, char **argv)
{
    static const struct place two = {"2 x 2", 1, "aabb"};
    const char *only = argc > 1 ? argv[1] : "";
    struct processes *p;
    size_t i;

    for (i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (strstr(endings[i].name, only) != NULL &&
            !skipped(endings[i].name, endings[i].what == FAILS))
            check_ending(&endings[i], 0, be_ended);
    if (only[0] != '\0')
        return tap_done();
    tap_ok(places_run(&two, 4, refused, NULL, &p), "calls that are refused");
    processes_free(p);
    return tap_done();
}
