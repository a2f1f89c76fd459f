/* The host's time of a call: of each collective, in turns in one process, so that what runs differ
 * by is not in the differences.
 *
 *     build/bench/host [RANKS] [BYTES] [ROUNDS]
 *
 * Default: 2 ranks, as threads, distributed over the devices; 1K bytes, of the larger buffer; 200
 * rounds. A round has a batch of each row: CALLS calls, queued in a stream without waiting. The
 * ranks meet before each batch, and the slowest one counts.
 *
 * Prints CSV, in microseconds: the median over rounds and the quartiles, and the same of what a row
 * takes more than the all-reduce in the same round. "allreduce again" is noise. A row that makes
 * several calls, in a group, comes twice: whole, and divided by them.
 *
 * If SYMWIN_NCCL is the path of a libnccl.so.2, on GPUs there are rows of NCCL's as well, with the
 * memory as its window, and "more" is more than symwin's row of the same kind. With
 * libsymwin-nccl.so preloaded and SYMWIN_NCCL_SERVE=all, that is what a served call adds. NCCL does
 * nothing in "ncclAllReduce of nothing", which is compared with an all-reduce: with
 * SYMWIN_NCCL_SERVE=none and without the library, the difference is what a forwarded call adds.
 */
#include <pthread.h>
#include <stdio.h>

#include "src/driver/driver.h"
#include "with_nccl.h"

enum { CALLS = 48, MOST_RANKS = 16, MOST_BYTES = 1 << 20, MOST_ROUNDS = 1000, GROUP = 8 };

static struct {
    int ranks, devices, rounds;
    uint64_t part, whole; /* elements */
    pthread_barrier_t barrier;
    symwin_unique_id id;
    int has_nccl;
    nccl_unique_id nccl_id;
} all;

struct rank {
    int rank, device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    void *memory;
    char *in, *out;
    symwin_window *window;
    void *nccl_comm, *nccl_window;  /* NULL: without NCCL */
    uint64_t arrays[2][MOST_RANKS]; /* counts and displacements */
    symwin_parts parts[2];          /* with arrays in host memory, and in device memory */
};

static void allreduce(const struct rank *r)
{
    bench_check(
        symwin_allreduce(r->comm, r->in, r->out, all.whole, SYMWIN_F32, SYMWIN_SUM, r->stream));
}

static void allgather(const struct rank *r)
{
    bench_check(symwin_allgather(r->comm, r->in, r->out, all.part, SYMWIN_F32, r->stream));
}

static void reduce_scatter(const struct rank *r)
{
    bench_check(
        symwin_reduce_scatter(r->comm, r->in, r->out, all.part, SYMWIN_F32, SYMWIN_SUM, r->stream));
}

static void broadcast(const struct rank *r)
{
    bench_check(symwin_broadcast(r->comm, r->in, r->out, all.whole, SYMWIN_F32, 0, r->stream));
}

static void reduce(const struct rank *r)
{
    bench_check(
        symwin_reduce(r->comm, r->in, r->out, all.whole, SYMWIN_F32, SYMWIN_SUM, 0, r->stream));
}

static void alltoall(const struct rank *r)
{
    bench_check(symwin_alltoall(r->comm, r->in, r->out, all.part, SYMWIN_F32, r->stream));
}

static void gather(const struct rank *r)
{
    bench_check(symwin_gather(r->comm, r->in, r->out, all.part, SYMWIN_F32, 0, r->stream));
}

static void scatter(const struct rank *r)
{
    bench_check(symwin_scatter(r->comm, r->in, r->out, all.part, SYMWIN_F32, 0, r->stream));
}

static void barrier(const struct rank *r)
{
    bench_check(symwin_barrier(r->comm, r->stream));
}

static void allgatherv_of(const struct rank *r, const symwin_parts *parts)
{
    bench_check(symwin_allgatherv(r->comm, r->in, r->out, parts, SYMWIN_F32, r->stream));
}

static void reduce_scatterv_of(const struct rank *r, const symwin_parts *parts)
{
    bench_check(
        symwin_reduce_scatterv(r->comm, r->in, parts, r->out, SYMWIN_F32, SYMWIN_SUM, r->stream));
}

static void alltoallv_of(const struct rank *r, const symwin_parts *parts)
{
    bench_check(symwin_alltoallv(r->comm, r->in, parts, r->out, parts, SYMWIN_F32, r->stream));
}

static void allgatherv(const struct rank *r)
{
    allgatherv_of(r, &r->parts[0]);
}

static void reduce_scatterv(const struct rank *r)
{
    reduce_scatterv_of(r, &r->parts[0]);
}

static void alltoallv(const struct rank *r)
{
    alltoallv_of(r, &r->parts[0]);
}

static void allgatherv_device(const struct rank *r)
{
    allgatherv_of(r, &r->parts[1]);
}

static void reduce_scatterv_device(const struct rank *r)
{
    reduce_scatterv_of(r, &r->parts[1]);
}

static void alltoallv_device(const struct rank *r)
{
    alltoallv_of(r, &r->parts[1]);
}

/* Round a ring. */
static void send_and_receive(const struct rank *r)
{
    bench_check(symwin_group_begin());
    bench_check(
        symwin_send(r->comm, r->in, all.whole, SYMWIN_F32, (r->rank + 1) % all.ranks, r->stream));
    bench_check(symwin_recv(r->comm, r->out, all.whole, SYMWIN_F32,
                            (r->rank + all.ranks - 1) % all.ranks, r->stream));
    bench_check(symwin_group_end());
}

static void group(const struct rank *r)
{
    bench_check(symwin_group_begin());
    for (int i = 0; i < GROUP; i++)
        allreduce(r);
    bench_check(symwin_group_end());
}

static void open_nccl(void)
{
    const char *path = getenv("SYMWIN_NCCL");

    if (path == NULL)
        return;
    if (!with_nccl("host"))
        bench_fail("SYMWIN_NCCL", path);
    check_nccl(nccl.ncclGetUniqueId(&all.nccl_id), "ncclGetUniqueId");
    all.has_nccl = 1;
}

static void nccl_allreduce_of(const struct rank *r, size_t count)
{
    enum { F32 = 7, SUM = 0 };

    check_nccl(nccl.ncclAllReduce(r->in, r->out, count, F32, SUM, r->nccl_comm, r->stream),
               "ncclAllReduce");
}

static void nccl_allreduce(const struct rank *r)
{
    nccl_allreduce_of(r, all.whole);
}

static void nccl_nothing(const struct rank *r)
{
    nccl_allreduce_of(r, 0);
}

static void nccl_group(const struct rank *r)
{
    check_nccl(nccl.ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < GROUP; i++)
        nccl_allreduce(r);
    check_nccl(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

static const struct row {
    const char *name;
    void (*call)(const struct rank *r);
    int calls;                          /* in a group */
    void (*than)(const struct rank *r); /* NCCL's: what "more" compares it with; others: NULL */
} rows[] = {
    {"allreduce", allreduce, 1, NULL},
    {"allreduce again", allreduce, 1, NULL},
    {"allgather", allgather, 1, NULL},
    {"reduce_scatter", reduce_scatter, 1, NULL},
    {"broadcast", broadcast, 1, NULL},
    {"reduce", reduce, 1, NULL},
    {"alltoall", alltoall, 1, NULL},
    {"gather", gather, 1, NULL},
    {"scatter", scatter, 1, NULL},
    {"barrier", barrier, 1, NULL},
    {"allgatherv", allgatherv, 1, NULL},
    {"reduce_scatterv", reduce_scatterv, 1, NULL},
    {"alltoallv", alltoallv, 1, NULL},
    {"allgatherv_device", allgatherv_device, 1, NULL},
    {"reduce_scatterv_device", reduce_scatterv_device, 1, NULL},
    {"alltoallv_device", alltoallv_device, 1, NULL},
    {"send and receive", send_and_receive, 2, NULL},
    {"group of 8 allreduces", group, GROUP, NULL},
    {"ncclAllReduce", nccl_allreduce, 1, allreduce},
    {"ncclAllReduce of nothing", nccl_nothing, 1, allreduce},
    {"group of 8 ncclAllReduces", nccl_group, GROUP, group},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

/* Of a batch, divided by how often its row's function was called. */
static double times_us[MOST_RANKS][ROWS][MOST_ROUNDS];

/* The untimed call has the library remember what the batch repeats. */
static double batch_us(const struct rank *r, const struct row *row)
{
    const int times = CALLS / row->calls;
    double start, us;

    row->call(r);
    pthread_barrier_wait(&all.barrier);
    start = bench_now_us();
    for (int i = 0; i < times; i++)
        row->call(r);
    us = (bench_now_us() - start) / times;
    bench_check(symwin_stream_synchronize(r->device, r->stream));
    bench_check(symwin_comm_check(r->comm));
    return us;
}

static void open_rank(struct rank *r)
{
    const symwin_comm_options options = {.size = sizeof options, .kernel_timeout_ms = 20000};
    const uint64_t bytes = all.whole * 4;

    bench_check(symwin_comm_create(&all.id, all.ranks, r->rank, r->device, &options, &r->comm));
    bench_check(symwin_stream_create(r->device, &r->stream));
    bench_check(symwin_mem_alloc(r->device, 2 * bytes + sizeof r->arrays, 0, &r->memory));
    bench_check(symwin_window_register(r->comm, r->memory, 2 * bytes, 0, &r->window));
    r->in = r->memory;
    r->out = r->in + bytes;
    for (int i = 0; i < all.ranks; i++) {
        r->arrays[0][i] = all.part;
        r->arrays[1][i] = all.part * (uint64_t)i;
    }
    for (int on_device = 0; on_device < 2; on_device++) {
        uint64_t *at = on_device ? (uint64_t *)(r->out + bytes) : r->arrays[0];

        r->parts[on_device] = (symwin_parts){.counts = at,
                                             .displacements = at + MOST_RANKS,
                                             .room = all.whole,
                                             .on_device = on_device};
    }
    bench_check(symwin_memcpy(r->device, r->out + bytes, r->arrays, sizeof r->arrays, r->stream));
    bench_check(symwin_stream_synchronize(r->device, r->stream));
    if (all.has_nccl) {
        check_nccl(nccl.ncclCommInitRank(&r->nccl_comm, all.ranks, all.nccl_id, r->rank),
                   "ncclCommInitRank");
        check_nccl(nccl.ncclCommWindowRegister(r->nccl_comm, r->memory, 2 * bytes, &r->nccl_window,
                                               NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister");
    }
}

static void close_rank(struct rank *r)
{
    if (all.has_nccl) {
        check_nccl(nccl.ncclCommWindowDeregister(r->nccl_comm, r->nccl_window),
                   "ncclCommWindowDeregister");
        check_nccl(nccl.ncclCommDestroy(r->nccl_comm), "ncclCommDestroy");
    }
    symwin_comm_destroy(r->comm);
    bench_check(symwin_stream_destroy(r->device, r->stream));
    pthread_barrier_wait(&all.barrier);
    bench_check(symwin_mem_free(r->memory));
}

/* Each round begins with another row. */
static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct sw_scope scope; /* NCCL takes the thread's device */

    bench_check(sw_scope_enter(r->device, &scope));
    open_rank(r);
    for (int round = 0; round < all.rounds; round++)
        for (int i = 0; i < ROWS; i++) {
            const int row = (round + i) % ROWS;

            if (rows[row].than == NULL || all.has_nccl)
                times_us[r->rank][row][round] = batch_us(r, &rows[row]);
        }
    close_rank(r);
    sw_scope_leave(&scope);
    return NULL;
}

static double slowest(int row, int round)
{
    double us = 0;

    for (int rank = 0; rank < all.ranks; rank++)
        us = times_us[rank][row][round] > us ? times_us[rank][row][round] : us;
    return us;
}

/* The median and the quartiles. */
static void print_middle(double *values)
{
    printf(",%.3f", median(values, all.rounds));
    printf(",%.3f,%.3f", values[all.rounds / 4], values[all.rounds * 3 / 4]);
}

static void print_row(int row, int divided)
{
    double us[MOST_ROUNDS], more[MOST_ROUNDS];
    int base = 0;

    while (rows[row].than != NULL && rows[base].call != rows[row].than)
        base++;
    for (int round = 0; round < all.rounds; round++) {
        us[round] = slowest(row, round) / divided;
        more[round] = us[round] - slowest(base, round) / (base > 0 ? divided : 1);
    }
    printf("%s,%d", rows[row].name, divided);
    print_middle(us);
    print_middle(more);
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct rank ranks[MOST_RANKS];
    symwin_driver_info driver;

    bench_begin("host", argc, argv, 3);
    all.ranks = bench_number(argc, argv, 1, 2, MOST_RANKS, 2);
    all.part = (uint64_t)bench_number(argc, argv, 2, 64, MOST_BYTES, 1024) / 4 /
               (uint64_t)all.ranks;
    all.rounds = bench_number(argc, argv, 3, 1, MOST_ROUNDS, 200);
    all.whole = all.part * (uint64_t)all.ranks;
    bench_check(symwin_driver_query(&driver));
    all.devices = driver.device_count < all.ranks ? driver.device_count : all.ranks;
    bench_check(symwin_unique_id_create(&all.id));
    open_nccl();
    pthread_barrier_init(&all.barrier, NULL, (unsigned)all.ranks);
    for (int i = 0; i < all.ranks; i++)
        ranks[i] = (struct rank){.rank = i, .device = i % all.devices};
    common_threads("host", ranks, all.ranks, sizeof ranks[0], rank_main);
    printf("call,divided by,us,quarter,three quarters,more,quarter,three quarters\n");
    for (int row = 0; row < ROWS && (rows[row].than == NULL || all.has_nccl); row++) {
        print_row(row, 1);
        if (rows[row].calls > 1)
            print_row(row, rows[row].calls);
    }
    return bench_end();
}
