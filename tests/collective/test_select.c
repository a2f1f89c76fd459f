/* What is selected for calls on a communicator: from rows, the model and the caller's options.
 * test_select_model.c has the model alone. */
#include "harness.h"
#include "src/collective/select.h"

/* Limits on the emulated driver: threads of a block, and blocks of a large message. */
#if defined(__SANITIZE_THREAD__)
#define ROOM 40
#define MOST 2
#else
#define ROOM 64
#define MOST 32
#endif

/* Blocks for `bytes`, of which a thread handles `size` at a time. */
#define FITTING(bytes, size) (((bytes) + (size) * (ROOM - 32) - 1) / ((size) * (ROOM - 32)))
#define BLOCKS(bytes, size) (FITTING(bytes, size) < MOST ? FITTING(bytes, size) : MOST)

enum { RANKS = 2, BYTES = 8 << 20, LARGE = 512 << 20 };

struct place {
    symwin_comm *comm;
    unsigned char *window, *plain; /* of `bytes` bytes each */
    size_t bytes;
    int rank;
};

static const struct ask {
    const char *name;
    size_t count;
    symwin_type type;
    int plain;    /* out is in no window */
    int in_place; /* otherwise in is the first half, out the second */
    symwin_allreduce_options options;
    symwin_algo algo;
    int blocks, threads; /* 0: any */
    int measured;
} asks[] = {
    {"a row", 16, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT, 1, 64, 1},
    {"the next row", 17, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_PUSH, 1, 64, 1},
    {"its blocks", 4096, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_PUSH, 3, 64, 1},
    {"beyond the last row", 65536, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_PUSH, 3, 64, 1},
    {"in place", 16, SYMWIN_F32, 0, 1, {0}, SYMWIN_ALGO_TWOSHOT, 1, 64, 1},
    {"another width", 16, SYMWIN_BF16, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT, 1, 64, 1},
    {"no window", 16, SYMWIN_F32, 1, 0, {0}, SYMWIN_ALGO_ONESHOT, 1, 32, 1},
    {"no row", 16, SYMWIN_I32, 1, 0, {0}, SYMWIN_ALGO_ONESHOT_SENTINEL, 1, 64, 0},
    {"multicast where there is none",
     16,
     SYMWIN_I32,
     0,
     0,
     {0},
     SYMWIN_ALGO_ONESHOT_SENTINEL,
     0,
     0,
     0},
    {"more blocks and threads than fit",
     65536,
     SYMWIN_F64,
     1,
     0,
     {0},
     SYMWIN_ALGO_ONESHOT,
     0,
     64,
     1},
    {"an algorithm",
     4096,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_ONESHOT},
     SYMWIN_ALGO_ONESHOT,
     BLOCKS(16384, 16),
     64,
     0},
    {"a short message",
     256,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_ONESHOT_SENTINEL},
     SYMWIN_ALGO_ONESHOT_SENTINEL,
     BLOCKS(1024, 8),
     ROOM,
     0},
    {"one with a rest",
     255,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_ONESHOT_SENTINEL},
     SYMWIN_ALGO_ONESHOT_SENTINEL,
     BLOCKS(1020, 16),
     ROOM,
     0},
    {"a short one of integers",
     256,
     SYMWIN_I32,
     0,
     0,
     {.algo = SYMWIN_ALGO_ONESHOT_SENTINEL},
     SYMWIN_ALGO_ONESHOT_SENTINEL,
     BLOCKS(1024, 8),
     ROOM,
     0},
    {"one that is not short",
     1028,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_ONESHOT_SENTINEL},
     SYMWIN_ALGO_ONESHOT_SENTINEL,
     BLOCKS(4112, 16),
     ROOM,
     0},
    {"fewer blocks", 4096, SYMWIN_F32, 0, 0, {.blocks = 2}, SYMWIN_ALGO_TWOSHOT_PUSH, 2, 64, 1},
    {"fewer threads", 4096, SYMWIN_F32, 0, 0, {.threads = 31}, SYMWIN_ALGO_TWOSHOT_PUSH, 3, 32, 1},
};

/* The same rows, with multicast in windows. */
static const struct ask multicast_asks[] = {
    {"a row without multicast", 16, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_ONESHOT_SENTINEL, 0, 0, 0},
    {"a large one", MIB, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_MC, 0, 0, 0},
    {"one with multicast", 16, SYMWIN_I32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_MC, 0, 0, 1},
    {"what multicast cannot reduce", 16, SYMWIN_F8E4M3, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT, 1, 64, 1},
    {"no window", 16, SYMWIN_F32, 1, 0, {0}, SYMWIN_ALGO_ONESHOT, 1, 32, 1},
};

/* The same rows, on a communicator that may use 8 blocks. */
static const struct ask few_asks[] = {
    {"few blocks", MIB, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT, 0, 0, 0},
    {"few blocks, in place", MIB, SYMWIN_F32, 0, 1, {0}, SYMWIN_ALGO_TWOSHOT, 0, 0, 0},
    {"few blocks, a rest", MIB - 1, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_BULK, 0, 0, 0},
    {"fewer still", MIB, SYMWIN_I32, 0, 0, {.blocks = 3}, SYMWIN_ALGO_TWOSHOT_BULK, 3, 0, 0},
    {"more than it may use",
     MIB,
     SYMWIN_I32,
     0,
     0,
     {.blocks = 9},
     SYMWIN_ALGO_TWOSHOT_BULK,
     8,
     0,
     0},
    {"a smaller message", MIB / 4 - 1, SYMWIN_F32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT_PUSH, 3, 64, 1},
    {"no window", MIB, SYMWIN_F32, 1, 0, {0}, SYMWIN_ALGO_ONESHOT, 8, 32, 1},
};

/* The same rows, on a communicator that may use 16 blocks: loads are not faster with more than
 * 8. */
static const struct ask some_asks[] = {
    {"some blocks",
     MIB,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_TWOSHOT},
     SYMWIN_ALGO_TWOSHOT,
     MOST < 8 ? MOST : 8,
     0,
     0},
    {"some blocks, asked for",
     MIB,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_TWOSHOT, .blocks = 2},
     SYMWIN_ALGO_TWOSHOT,
     2,
     0,
     0},
    {"some blocks, more than 8 asked for",
     MIB,
     SYMWIN_F32,
     0,
     0,
     {.algo = SYMWIN_ALGO_TWOSHOT, .blocks = MOST < 12 ? MOST : 12},
     SYMWIN_ALGO_TWOSHOT,
     MOST < 12 ? MOST : 12,
     0,
     0},
    {"some blocks, integers",
     MIB,
     SYMWIN_I32,
     0,
     0,
     {.algo = SYMWIN_ALGO_TWOSHOT},
     SYMWIN_ALGO_TWOSHOT,
     MOST < 16 ? MOST : 16,
     0,
     0},
};

/* Messages of hundreds of megabytes, for which there is no row. They are queried, not sent. */
static const struct ask large_asks[] = {
    {"copies", 64 * MIB, SYMWIN_I32, 0, 0, {0}, SYMWIN_ALGO_COPIES, 0, 0, 0},
    {"as large, in place", 64 * MIB, SYMWIN_I32, 0, 1, {0}, SYMWIN_ALGO_TWOSHOT, 0, 0, 0},
    {"the largest, in place", 128 * MIB, SYMWIN_I32, 0, 1, {0}, SYMWIN_ALGO_COPIES, 0, 0, 0},
};

/* Two ranks that share a device: copies are selected only if the caller asks for them, and loads
 * over windows already where links would make pushes faster. */
static const struct ask shared_asks[] = {
    {"less on a shared device", MIB / 4, SYMWIN_I32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT, 0, 0, 0},
    {"a shared device", 64 * MIB, SYMWIN_I32, 0, 0, {0}, SYMWIN_ALGO_TWOSHOT, 0, 0, 0},
    {"copies, asked for",
     64 * MIB,
     SYMWIN_I32,
     0,
     0,
     {.algo = SYMWIN_ALGO_COPIES},
     SYMWIN_ALGO_COPIES,
     0,
     0,
     0},
};

static const char rows[] = "gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"
                           "symwin emulated GPU,2,4,float,0,64,oneshot,9,32\n"
                           "symwin emulated GPU,2,4,float,1,64,twoshot,1,64\n"
                           "symwin emulated GPU,2,4,float,1,128,twoshot_push,3,64\n"
                           "symwin emulated GPU,2,8,float,0,128,oneshot,65536,1024\n"
                           "symwin emulated GPU,2,4,integer,1,128,twoshot_mc,0,0\n"
                           "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"
                           "allgather,symwin emulated GPU,2,4,float,0,64,oneshot,2,32\n"
                           "allgather,symwin emulated GPU,2,4,float,0,4096,oneshot,3,64\n"
                           "allgather,symwin emulated GPU,2,4,float,1,4096,copies,0,0\n"
                           "scatter,symwin emulated GPU,2,4,float,1,4096,copies,0,0\n"
                           "broadcast,symwin emulated GPU,2,4,float,0,4096,twoshot_push,3,64\n"
                           "alltoallv,symwin emulated GPU,2,4,float,0,64,oneshot,2,32\n"
                           "alltoallv,symwin emulated GPU,2,4,float,0,4096,oneshot,3,64\n"
                           "alltoallv,symwin emulated GPU,2,4,float,1,64,oneshot,1,64\n"
                           "alltoallv,symwin emulated GPU,2,4,float,1,4096,put,4,32\n"
                           "allgatherv,symwin emulated GPU,2,4,float,1,4096,oneshot,5,64\n"
                           "reduce_scatterv,symwin emulated GPU,2,4,float,0,4096,oneshot,2,64\n"
                           "reduce_scatterv,symwin emulated GPU,2,4,float,1,4096,put,6,32\n";

static void open_place(struct place *p, struct harness_team *team, int rank, unsigned flags,
                       int device, int max_blocks, size_t bytes)
{
    const symwin_comm_options options = {
        .size = sizeof options, .flags = flags, .max_blocks = max_blocks};
    symwin_window *window;

    host_must(symwin_comm_create(&team->id, RANKS, rank, device, &options, &p->comm), "create");
    p->rank = rank;
    p->bytes = bytes;
    p->window = host_alloc(device, bytes);
    p->plain = host_alloc(device, bytes);
    host_must(symwin_window_register(p->comm, p->window, bytes, 0, &window), "register");
}

static void close_place(struct place *p)
{
    symwin_comm_destroy(p->comm);
    host_must(symwin_mem_free(p->window), "symwin_mem_free");
    host_must(symwin_mem_free(p->plain), "symwin_mem_free");
}

static void asked(const struct place *p, const struct ask *a)
{
    const unsigned char *out = a->plain      ? p->plain
                               : a->in_place ? p->window
                                             : p->window + p->bytes / 2;
    symwin_allreduce_options options = a->options;
    symwin_allreduce_info info = {SYMWIN_ALGO_AUTO, -1, -1, -1};
    symwin_status status;

    options.size = sizeof options;
    status = symwin_allreduce_query(p->comm, p->window, out, a->count, a->type, SYMWIN_SUM,
                                    &options, &info);
    tap_ok(status == SYMWIN_OK && info.algo == a->algo && info.measured == a->measured &&
               info.blocks > 0 && info.threads > 0 &&
               (a->blocks == 0 || info.blocks == a->blocks) &&
               (a->threads == 0 || info.threads == (a->threads < ROOM ? a->threads : ROOM)),
           "rank %d: %s: %s, %d blocks of %d threads%s%s", p->rank, a->name,
           symwin_algo_name(info.algo), info.blocks, info.threads,
           info.measured ? ", measured" : "", status == SYMWIN_OK ? "" : symwin_last_error());
}

/* Rows for all-gathers go by the bytes of the output. */
static void gathers(const struct place *p)
{
    static const struct {
        uint64_t count;
        symwin_type type;
        int blocks, threads, measured;
    } of[] = {{8, SYMWIN_F32, 1, 32, 1},
              {9, SYMWIN_F32, 1, 64, 1},
              {512, SYMWIN_F32, 3, 64, 1},
              {1024, SYMWIN_BF16, 3, 64, 1},
              {512, SYMWIN_I32, BLOCKS(2048, 8), 64, 0}};
    size_t i;

    for (i = 0; i < sizeof of / sizeof of[0]; i++) {
        symwin_collective_info info = {SYMWIN_ALGO_AUTO, -1, -1, -1};

        host_must(symwin_allgather_query(p->comm, p->plain, p->plain + MIB, of[i].count, of[i].type,
                                         NULL, &info),
                  "symwin_allgather_query");
        tap_ok(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks == of[i].blocks &&
                   info.threads == (of[i].threads < ROOM ? of[i].threads : ROOM) &&
                   info.measured == of[i].measured,
               "rank %d: all-gather of %llu %s: %d blocks of %d threads%s", p->rank,
               (unsigned long long)of[i].count, symwin_type_name(of[i].type), info.blocks,
               info.threads, info.measured ? ", measured" : "");
    }
}

/* Rows for parts of unequal lengths go by the longest one, and by where this rank's output is, or
 * its input if parts are added. In all-to-alls ranks may differ in both. */
static void parts_by_row(const struct place *p)
{
    static const struct {
        symwin_collective collective;
        uint64_t counts[RANKS];
        symwin_type type;
        int window, blocks, threads, measured;
    } of[] = {
        {SYMWIN_ALLTOALLV, {0, 16}, SYMWIN_F32, 0, 1, 32, 1},
        {SYMWIN_ALLTOALLV, {17, 0}, SYMWIN_F32, 0, 0, 64, 1},
        {SYMWIN_ALLTOALLV, {1024, 17}, SYMWIN_F32, 0, 3, 64, 1},
        {SYMWIN_ALLTOALLV, {4096, 17}, SYMWIN_F32, 0, 3, 64, 1},
        {SYMWIN_ALLTOALLV, {0, 0}, SYMWIN_F32, 0, 1, 32, 1},
        {SYMWIN_ALLTOALLV, {0, 16}, SYMWIN_F32, 1, 1, 64, 1},
        {SYMWIN_ALLTOALLV, {1024, 16}, SYMWIN_BF16, 1, 4, 32, 1},
        {SYMWIN_ALLTOALLV, {16, 0}, SYMWIN_I32, 1, 0, 64, 0},
        {SYMWIN_ALLGATHERV, {1024, 16}, SYMWIN_F32, 1, 5, 64, 1},
        {SYMWIN_ALLGATHERV, {1024, 16}, SYMWIN_F32, 0, 0, 64, 0},
        {SYMWIN_REDUCE_SCATTERV, {1024, 16}, SYMWIN_F32, 0, 2, 64, 1},
        {SYMWIN_REDUCE_SCATTERV, {1024, 16}, SYMWIN_F32, 1, 6, 32, 1},
    };
    size_t i;

    for (i = 0; i < sizeof of / sizeof of[0]; i++) {
        const symwin_parts parts = {of[i].counts, NULL, 0, 0};
        const int adds = of[i].collective == SYMWIN_REDUCE_SCATTERV;
        unsigned char *const in = of[i].window && adds ? p->window : p->plain;
        unsigned char *const out = of[i].window && !adds ? p->window : p->plain + MIB;
        symwin_collective_info info = {SYMWIN_ALGO_AUTO, -1, -1, -1};
        const symwin_type type = of[i].type;

        host_must(of[i].collective == SYMWIN_ALLTOALLV
                      ? symwin_alltoallv_query(p->comm, in, &parts, out, &parts, type, NULL, &info)
                  : of[i].collective == SYMWIN_ALLGATHERV
                      ? symwin_allgatherv_query(p->comm, in, out, &parts, type, NULL, &info)
                      : symwin_reduce_scatterv_query(p->comm, in, &parts, out, type, SYMWIN_SUM,
                                                     NULL, &info),
                  "a query of parts");
        tap_ok(info.algo == SYMWIN_ALGO_ONESHOT && info.blocks > 0 &&
                   (of[i].blocks == 0 || info.blocks == of[i].blocks) &&
                   info.threads == (of[i].threads < ROOM ? of[i].threads : ROOM) &&
                   info.measured == of[i].measured,
               "rank %d: %s, row %zu: %d blocks of %d threads%s", p->rank,
               symwin_collective_name(of[i].collective), i, info.blocks, info.threads,
               info.measured ? ", measured" : "");
    }
}

/* A row may name copies, in place too, but not where they need one offset: ranks may differ. */
static void copies_by_row(const struct place *p)
{
    unsigned char *const out = p->window, *const own = out + (size_t)p->rank * 64;
    symwin_collective_info apart = {.blocks = -1}, in_place = apart, scatter = apart;

    host_must(symwin_allgather_query(p->comm, p->plain, out, 16, SYMWIN_F32, NULL, &apart),
              "symwin_allgather_query");
    host_must(symwin_allgather_query(p->comm, own, out, 16, SYMWIN_F32, NULL, &in_place),
              "symwin_allgather_query");
    host_must(symwin_scatter_query(p->comm, p->plain, out, 16, SYMWIN_F32, p->rank, NULL, &scatter),
              "symwin_scatter_query");
    tap_ok(apart.algo == SYMWIN_ALGO_COPIES && apart.blocks == 1 && apart.measured &&
               in_place.algo == SYMWIN_ALGO_COPIES && in_place.blocks == 1 && in_place.measured,
           "rank %d: an all-gather by copies, as its row says", p->rank);
    tap_ok(scatter.algo != SYMWIN_ALGO_COPIES, "rank %d: a scatter by %s, whatever its row says",
           p->rank, symwin_algo_name(scatter.algo));
}

/* Two ranks have no shares of a message: a row that names them is another number of ranks'. */
static void shares_by_row(const struct place *p)
{
    symwin_collective_info info = {.blocks = -1};

    host_must(
        symwin_broadcast_query(p->comm, p->plain, p->plain + MIB, 1024, SYMWIN_F32, 0, NULL, &info),
        "symwin_broadcast_query");
    tap_ok(info.algo == SYMWIN_ALGO_ONESHOT && !info.measured, "rank %d: a broadcast by %s%s",
           p->rank, symwin_algo_name(info.algo), info.measured ? ", measured" : "");
}

/* The call runs what the query reports. The digests of two algorithms differ, so the call succeeds
 * only if rank 0, with AUTO, runs what rank 1 asks for. */
static void runs(const struct place *p)
{
    struct CUstream_st *stream = NULL;
    symwin_allreduce_info info;
    symwin_allreduce_options options = {.size = sizeof options};
    float one = 1, sum = 0;
    symwin_status status;

    host_must(symwin_stream_create(p->rank, &stream), "symwin_stream_create");
    host_must(symwin_allreduce_query(p->comm, p->window, p->window, 1, SYMWIN_F32, SYMWIN_SUM, NULL,
                                     &info),
              "symwin_allreduce_query");
    options.algo = p->rank == 0 ? SYMWIN_ALGO_AUTO : info.algo;
    host_must(symwin_memcpy(p->rank, p->window, &one, sizeof one, stream), "symwin_memcpy");
    status = symwin_allreduce_with(p->comm, p->window, p->window, 1, SYMWIN_F32, SYMWIN_SUM,
                                   &options, stream);
    if (status == SYMWIN_OK)
        status = symwin_memcpy(p->rank, &sum, p->window, sizeof sum, stream);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(p->rank, stream);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(p->comm);
    tap_ok(status == SYMWIN_OK && sum == RANKS, "rank %d: what runs is what the query says%s",
           p->rank, status == SYMWIN_OK ? "" : symwin_last_error());
    host_must(symwin_stream_destroy(p->rank, stream), "symwin_stream_destroy");
}

static void refuses(const struct place *p)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = SYMWIN_ALGO_TWOSHOT};
    symwin_allreduce_info info = {.blocks = -7};

    host_expect("info NULL",
                symwin_allreduce_query(p->comm, p->window, p->window, 1, SYMWIN_F32, SYMWIN_SUM,
                                       NULL, NULL),
                SYMWIN_INVALID, "symwin_allreduce_query: info is NULL");
    host_expect("count 0",
                symwin_allreduce_query(p->comm, p->window, p->window, 0, SYMWIN_F32, SYMWIN_SUM,
                                       NULL, &info),
                SYMWIN_INVALID, "symwin_allreduce_query: count is 0");
    host_expect(
        "comm NULL",
        symwin_allreduce_query(NULL, p->window, p->window, 1, SYMWIN_F32, SYMWIN_SUM, NULL, &info),
        SYMWIN_INVALID, "symwin_allreduce_query: comm is NULL");
    host_expect("type 77",
                symwin_allreduce_query(p->comm, p->window, p->window, 1, (symwin_type)77,
                                       SYMWIN_SUM, NULL, &info),
                SYMWIN_INVALID, "no type 77");
    host_expect("two-shot outside windows",
                symwin_allreduce_query(p->comm, p->plain, p->plain, 1, SYMWIN_F32, SYMWIN_SUM,
                                       &options, &info),
                SYMWIN_UNSUPPORTED, "twoshot needs both buffers in windows");
    tap_ok(info.blocks == -7, "and nothing is set");
}

static void calls(struct harness_team *team, int rank, void *arg)
{
    struct place p;
    size_t i;

    (void)arg;
    open_place(&p, team, rank, SYMWIN_COMM_NO_MULTICAST, rank, 0, BYTES);
    for (i = 0; i < sizeof asks / sizeof asks[0]; i++)
        asked(&p, &asks[i]);
    gathers(&p);
    parts_by_row(&p);
    copies_by_row(&p);
    shares_by_row(&p);
    runs(&p);
    refuses(&p);
    close_place(&p);
}

/* A row asks for more blocks than exist: it gets as many as fit beside the other rank's, and one
 * more does not fit. */
static void fits(const struct place *p)
{
    symwin_allreduce_options options = {.size = sizeof options};
    symwin_allreduce_info info = {SYMWIN_ALGO_AUTO, -1, -1, -1};

    host_must(symwin_allreduce_query(p->comm, p->window, p->plain, MIB, SYMWIN_F64, SYMWIN_SUM,
                                     NULL, &info),
              "symwin_allreduce_query");
    options.algo = info.algo;
    options.blocks = info.blocks;
    tap_ok(info.measured && symwin_allreduce_query(p->comm, p->window, p->plain, MIB, SYMWIN_F64,
                                                   SYMWIN_SUM, &options, &info) == SYMWIN_OK,
           "rank %d: the %d blocks of a row for more fit", p->rank, options.blocks);
    options.blocks++;
    host_expect("one more does not",
                symwin_allreduce_query(p->comm, p->window, p->plain, MIB, SYMWIN_F64, SYMWIN_SUM,
                                       &options, &info),
                SYMWIN_UNSUPPORTED, "fit on device 0 beside the other ranks'");
}

/* A launch for several calls takes as much of what they ask for as fits. */
static void cuts(const struct place *p)
{
    const struct sw_query q = {.call = "a launch",
                               .comm = p->comm,
                               .collective = SYMWIN_ALLGATHER,
                               .type = SYMWIN_U8,
                               .bytes = MIB};
    const struct sw_grid asked[] = {{100000, 0}, {0, 100000}, {100000, 100000}};
    const struct sw_kernel *const kernels[] = {sw_kernels_group(p->comm->kernels, SW_SHAPE_any),
                                               sw_kernels_pairs(p->comm->kernels, 0)};
    size_t i, k;

    for (i = 0; i < sizeof asked / sizeof asked[0]; i++)
        for (k = 0; k < 2; k++) {
            const unsigned fit = (unsigned)(kernels[k]->resident / p->comm->ranks_on_device);
            struct sw_grid grid = {0, 0};

            host_must(k == 0 ? sw_select_group(&q, kernels[k], 1, &asked[i], &grid)
                             : sw_select_pairs(&q, kernels[k], &asked[i], &grid),
                      "a launch for several calls");
            tap_ok(grid.blocks > 0 && grid.blocks <= fit &&
                       grid.threads <= (unsigned)kernels[k]->threads,
                   "%u blocks of %u threads are cut to %u of %u", asked[i].blocks, asked[i].threads,
                   grid.blocks, grid.threads);
            host_expect("and refused for one call", sw_select_check(&q, kernels[k], &asked[i]),
                        SYMWIN_UNSUPPORTED, "a launch: 100000 |were asked for");
        }
}

/* ---- plans of earlier calls (plans.c) ---- */

static int is_like(const struct sw_plan *a, const struct sw_plan *b)
{
    return a->algo == b->algo && a->algorithm == b->algorithm && a->kernel == b->kernel &&
           a->grid.blocks == b->grid.blocks && a->grid.threads == b->grid.threads &&
           a->stage == b->stage && a->bytes == b->bytes && a->put == b->put &&
           a->put_grid.blocks == b->put_grid.blocks && a->put_grid.threads == b->put_grid.threads &&
           a->measured == b->measured;
}

/* Queries of which each differs from the one before in one thing, and plans made anew. */
static void plans(const struct place *p)
{
    static const symwin_collective collectives[] = {
        SYMWIN_ALLREDUCE,      SYMWIN_ALLGATHER, SYMWIN_BROADCAST,  SYMWIN_REDUCE,
        SYMWIN_REDUCE_SCATTER, SYMWIN_ALLTOALLV, SYMWIN_ALLGATHERV, SYMWIN_REDUCE_SCATTERV};
    enum { COLLECTIVES = sizeof collectives / sizeof collectives[0] };
    static const symwin_type types[] = {SYMWIN_F32, SYMWIN_BF16, SYMWIN_I64, SYMWIN_U8};
    static const symwin_op ops[] = {SYMWIN_SUM, SYMWIN_MAX};
    static const symwin_algo algos[] = {SYMWIN_ALGO_AUTO, SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_TWOSHOT,
                                        SYMWIN_ALGO_COPIES};
    struct sw_query q = {.call = "a plan", .comm = p->comm, .bytes = 16};
    struct sw_grid asked = {0, 0};
    symwin_algo algo = SYMWIN_ALGO_AUTO;
    uint64_t state = 1;
    int i, differ = 0, failed = 0, known = 0;

    for (i = 0; i < 20000; i++) {
        struct sw_plan anew = {.algo = SYMWIN_ALGO_AUTO}, kept = anew;
        const uint64_t r = host_random(&state) >> 16;
        symwin_status status;

        switch (r % 18) {
        case 0:
            q.collective = collectives[r / 32 % COLLECTIVES];
            break;
        case 1:
            q.type = types[r / 32 % 4];
            break;
        case 2:
            q.op = ops[r / 32 % 2];
            break;
        case 3:
            q.bytes = ((size_t)2 << r / 32 % 20) * (8 + r / 1024 % 8);
            break;
        case 4:
            q.in_place ^= 1;
            break;
        case 5:
            q.aligned ^= 1;
            break;
        case 6:
            q.windows_aligned ^= 1;
            break;
        case 7:
            q.windows ^= 1;
            break;
        case 8:
            q.multiprocessors = r / 32 % 2 ? 2 : 0;
            break;
        case 9:
            q.most_blocks = r / 32 % 2;
            break;
        case 10:
            algo = algos[r / 32 % 4];
            break;
        case 11:
            asked.blocks = r / 32 % 3;
            break;
        case 12:
            asked.threads = r / 32 % 2 * 64;
            break;
        case 13:
            q.transports ^= SYMWIN_TRANSPORT_MULTICAST;
            break;
        case 14:
            q.large_parts ^= 1;
            break;
        case 15:
            q.short_parts ^= 1;
            break;
        case 16:
            q.by_window ^= 1;
            break;
        default:
            q.reads_parts ^= 1;
        }
        status = sw_select_new_plan(&q, algo, &asked, &anew);
        if (status == SYMWIN_OK) {
            differ += sw_select_plan(&q, algo, &asked, &kept) != SYMWIN_OK ||
                      !is_like(&anew, &kept);
            known++;
        } else {
            failed += sw_select_plan(&q, algo, &asked, &kept) != status;
        }
    }
    tap_ok(differ == 0 && failed == 0 && known > 1000,
           "rank %d: %d plans, of earlier calls or not: %d differ, %d are not refused", p->rank,
           known, differ, failed);
}

/* A reduce-scatter uses the window of `in` only. Where this rank's `out` lies does not decide how,
 * since it may lie otherwise on another rank. */
static void decides_alike(const struct place *p)
{
    symwin_collective_info even = {.blocks = -1}, odd = {.blocks = -1};
    int differ = 0, windows = 0;
    uint64_t count;

    for (count = 256; count * RANKS * 4 <= p->bytes; count += count / 4) {
        const uint64_t whole = count / 4 * 4;

        host_must(symwin_reduce_scatter_query(p->comm, p->window, p->plain, whole, SYMWIN_F32,
                                              SYMWIN_SUM, NULL, &even),
                  "symwin_reduce_scatter_query");
        host_must(symwin_reduce_scatter_query(p->comm, p->window, p->plain + 4, whole, SYMWIN_F32,
                                              SYMWIN_SUM, NULL, &odd),
                  "symwin_reduce_scatter_query");
        differ += even.algo != odd.algo;
        windows += even.algo == SYMWIN_ALGO_TWOSHOT;
    }
    tap_ok(differ == 0 && windows > 0, "rank %d: the output's address decides nothing: %d differ",
           p->rank, differ);
}

/* What all ranks send, or reduce, goes by multicast if the model would not push it. */
static void multicast_is_chosen(const struct place *p)
{
    const uint64_t few = 256, many = p->bytes / RANKS / 4;
    unsigned char *const w = p->window;
    symwin_collective_info small = {.blocks = -1}, of[4];

    host_must(symwin_allgather_query(p->comm, p->plain, w, few, SYMWIN_U32, NULL, &small),
              "symwin_allgather_query");
    host_must(symwin_allgather_query(p->comm, p->plain, w, many, SYMWIN_U32, NULL, &of[0]),
              "symwin_allgather_query");
    host_must(symwin_broadcast_query(p->comm, p->plain, w, many, SYMWIN_U32, 0, NULL, &of[1]),
              "symwin_broadcast_query");
    host_must(symwin_reduce_scatter_query(p->comm, w, p->plain, many, SYMWIN_U32, SYMWIN_SUM, NULL,
                                          &of[2]),
              "symwin_reduce_scatter_query");
    host_must(
        symwin_reduce_query(p->comm, w, p->plain, many, SYMWIN_U32, SYMWIN_SUM, 0, NULL, &of[3]),
        "symwin_reduce_query");
    tap_ok(small.algo == SYMWIN_ALGO_ONESHOT && of[0].algo == SYMWIN_ALGO_ONESHOT_MC &&
               of[1].algo == SYMWIN_ALGO_ONESHOT_MC && of[2].algo == SYMWIN_ALGO_TWOSHOT_MC &&
               of[3].algo == SYMWIN_ALGO_TWOSHOT_MC,
           "rank %d: multicast of other collectives: %s, %s, %s and %s", p->rank,
           symwin_algo_name(of[0].algo), symwin_algo_name(of[1].algo), symwin_algo_name(of[2].algo),
           symwin_algo_name(of[3].algo));
}

/* The largest broadcasts of two ranks go by copies: not where ranks share a device. Other messages
 * that are only moved are stored or loaded, if they are not in place. */
static void large_moves(const struct place *p, int one_device)
{
    const uint64_t count = 32 * MIB, part = 64 * MIB; /* elements */
    const symwin_algo sent = one_device ? SYMWIN_ALGO_PUT : SYMWIN_ALGO_COPIES;
    unsigned char *const w = p->window;
    symwin_collective_info swap, place, cast, scatter, gather, row;

    swap = place = cast = scatter = gather = row = (symwin_collective_info){.blocks = -1};
    host_must(symwin_allgather_query(p->comm, p->plain, w, 16, SYMWIN_F32, NULL, &row),
              "symwin_allgather_query");
    tap_ok((row.algo == SYMWIN_ALGO_COPIES) == !one_device,
           "rank %d: a row that names copies%s: %s", p->rank, one_device ? " on one device" : "",
           symwin_algo_name(row.algo));
    host_must(symwin_alltoall_query(p->comm, p->plain, w, count, SYMWIN_BF16, NULL, &swap),
              "symwin_alltoall_query");
    host_must(symwin_alltoall_query(p->comm, w, w, count, SYMWIN_BF16, NULL, &place),
              "symwin_alltoall_query");
    host_must(symwin_broadcast_query(p->comm, p->plain, w, 4 * count, SYMWIN_BF16, 0, NULL, &cast),
              "symwin_broadcast_query");
    host_must(symwin_scatter_query(p->comm, p->plain, w, part, SYMWIN_BF16, 0, NULL, &scatter),
              "symwin_scatter_query");
    host_must(symwin_gather_query(p->comm, w, p->plain, part, SYMWIN_BF16, 0, NULL, &gather),
              "symwin_gather_query");
    tap_ok(swap.algo == SYMWIN_ALGO_PUT && cast.algo == sent && (one_device || cast.blocks == 1) &&
               place.algo == SYMWIN_ALGO_ONESHOT && scatter.algo == SYMWIN_ALGO_PUT &&
               gather.algo == SYMWIN_ALGO_TWOSHOT,
           "rank %d: large messages%s: all-to-all %s, in place %s; broadcast %s; scatter %s; "
           "gather %s",
           p->rank, one_device ? " on one device" : "", symwin_algo_name(swap.algo),
           symwin_algo_name(place.algo), symwin_algo_name(cast.algo),
           symwin_algo_name(scatter.algo), symwin_algo_name(gather.algo));
}

/* Queries on a communicator with these flags and this limit. */
struct questions {
    unsigned flags;
    int max_blocks;
    size_t bytes; /* of the window */
    const struct ask *asks;
    size_t count;
    int one_device; /* both ranks are on one device */
};

static void answers(struct harness_team *team, int rank, void *arg)
{
    const struct questions *q = arg;
    struct place p;
    size_t i;

    open_place(&p, team, rank, q->flags, q->one_device ? 0 : rank, q->max_blocks, q->bytes);
    for (i = 0; i < q->count; i++)
        asked(&p, &q->asks[i]);
    if (q->max_blocks > 0)
        decides_alike(&p);
    if (q->flags == SYMWIN_COMM_MULTICAST)
        multicast_is_chosen(&p);
    if (q->bytes == LARGE)
        large_moves(&p, q->one_device);
    if (q->one_device) {
        fits(&p);
        cuts(&p);
    }
    plans(&p);
    close_place(&p);
}

static void set_table(void)
{
    char name[] = "/tmp/symwin-test.XXXXXX";
    const int fd = mkstemp(name);

    if (fd < 0 || write(fd, rows, strlen(rows)) != (ssize_t)strlen(rows) || close(fd) != 0)
        abort();
    setenv("SYMWIN_TUNING", name, 1);
}

#define ASKS(asks) asks, sizeof(asks) / sizeof((asks)[0])

int main(void)
{
    static const struct questions of[] = {
        {SYMWIN_COMM_NO_MULTICAST, 8, BYTES, ASKS(few_asks), 0},
        {SYMWIN_COMM_NO_MULTICAST, 16, BYTES, ASKS(some_asks), 0},
        {SYMWIN_COMM_NO_MULTICAST, 0, LARGE, ASKS(large_asks), 0},
        {SYMWIN_COMM_NO_MULTICAST, 0, LARGE, ASKS(shared_asks), 1},
        {SYMWIN_COMM_MULTICAST, 0, 4 * BYTES, ASKS(multicast_asks), 0},
    };
    struct harness_leaks before;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    set_table();
    harness_run(RANKS, calls, NULL);
    for (i = 0; i < sizeof of / sizeof of[0]; i++) {
        struct questions q = of[i];

        if (q.flags != SYMWIN_COMM_MULTICAST || sw_driver_is_emulated())
            harness_run(RANKS, answers, &q);
    }
    unlink(getenv("SYMWIN_TUNING"));
    harness_no_leaks("calls", &before);
    return tap_done();
}
