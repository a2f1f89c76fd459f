/* The cost of the order between communicators: alternating calls on two communicators, each with
 * its own stream, against the same number of calls on one.
 *
 *     build/bench/order [RANKS]          default: 2, as threads, distributed over the devices
 *
 * Prints CSV: what, bytes, and the median over rounds of the time per call in microseconds, from
 * when all calls are queued until all ranks have finished them.
 *
 *     one          one communicator, one stream
 *     order        two, with default grids: calls that do not fit together run one after another
 *     beside       two, with a max_blocks of half the multiprocessors each: they run concurrently
 *     one-graph    one communicator, a graph of all its calls
 *     two-graphs   two, each with a graph of its calls on its own stream
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

enum { ROUNDS = 9, MOST_RANKS = 16, MOST_CALLS = 100, MOST_BYTES = 16 << 20 };
enum way { ONE, ORDER, BESIDE, ONE_GRAPH, TWO_GRAPHS, WAYS };

static const char *const names[WAYS] = {"one", "order", "beside", "one-graph", "two-graphs"};

static struct {
    int ranks, devices;
    pthread_barrier_t barrier;
    symwin_unique_id ids[2];
    uint32_t *gate; /* pinned: streams wait for values of it */
    CUdeviceptr gate_address;
    uint32_t opened;
} all;

struct rank {
    int rank, device;
    symwin_comm *comms[2];
    void *data[2];
    symwin_window *windows[2];
    CUstream streams[2];
    CUgraphExec graphs[2];
};

static void check_cuda(CUresult result, const char *call)
{
    bench_check(sw_check(result, "%s", call));
}

static int is_graph(enum way way)
{
    return way == ONE_GRAPH || way == TWO_GRAPHS;
}

static int comms_of(enum way way)
{
    return way == ONE || way == ONE_GRAPH ? 1 : 2;
}

static void call(const struct rank *r, int i, size_t bytes)
{
    bench_check(symwin_allreduce(r->comms[i], r->data[i], r->data[i], bytes / 4, SYMWIN_F32,
                                 SYMWIN_SUM, r->streams[i]));
}

static void open_rank(struct rank *r, enum way way)
{
    symwin_comm_options options = {.size = sizeof options, .kernel_timeout_ms = 20000};
    symwin_device_info info;

    bench_check(symwin_device_query(r->device, &info));
    if (way == BESIDE)
        options.max_blocks = info.multiprocessors * all.devices / all.ranks / 2;
    if (r->rank == 0)
        for (int i = 0; i < 2; i++)
            bench_check(symwin_unique_id_create(&all.ids[i]));
    pthread_barrier_wait(&all.barrier);
    for (int i = 0; i < comms_of(way); i++) {
        bench_check(
            symwin_comm_create(&all.ids[i], all.ranks, r->rank, r->device, &options, &r->comms[i]));
        bench_check(symwin_mem_alloc(r->device, MOST_BYTES, 0, &r->data[i]));
        check_cuda(sw_drv.cuMemsetD8((CUdeviceptr)(uintptr_t)r->data[i], 0, MOST_BYTES), "fill");
        bench_check(symwin_window_register(r->comms[i], r->data[i], MOST_BYTES, 0, &r->windows[i]));
        bench_check(symwin_stream_create(r->device, &r->streams[i]));
    }
    pthread_barrier_wait(&all.barrier);
    for (int i = 0; i < comms_of(way); i++) /* use it before anything is captured */
        call(r, i, 8);
    for (int i = 0; i < comms_of(way); i++)
        bench_check(symwin_stream_synchronize(r->device, r->streams[i]));
    pthread_barrier_wait(&all.barrier);
}

static void close_rank(struct rank *r, enum way way)
{
    pthread_barrier_wait(&all.barrier);
    for (int i = 0; i < comms_of(way); i++) {
        symwin_comm_destroy(r->comms[i]);
        bench_check(symwin_stream_destroy(r->device, r->streams[i]));
    }
    pthread_barrier_wait(&all.barrier);
    for (int i = 0; i < comms_of(way); i++)
        bench_check(symwin_mem_free(r->data[i]));
    for (int i = comms_of(way); r->rank == 0 && i < 2; i++)
        bench_check(symwin_unique_id_release(&all.ids[i]));
}

static CUgraphExec capture(const struct rank *r, int i, size_t bytes, int calls)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    check_cuda(sw_drv.cuStreamBeginCapture(r->streams[i], CU_STREAM_CAPTURE_MODE_RELAXED),
               "cuStreamBeginCapture");
    for (int k = 0; k < calls; k++)
        call(r, i, bytes);
    check_cuda(sw_drv.cuStreamEndCapture(r->streams[i], &graph), "cuStreamEndCapture");
    check_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    bench_check(sw_graph_upload(exec, r->streams[i]));
    check_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    return exec;
}

/* Queues `calls` calls in all. */
static void queue(const struct rank *r, enum way way, size_t bytes, int calls)
{
    const int comms = comms_of(way);

    for (int i = 0; i < comms; i++)
        check_cuda(sw_drv.cuStreamWaitValue32(r->streams[i], all.gate_address, all.opened + 1,
                                              CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
    for (int i = 0; i < comms && is_graph(way); i++)
        check_cuda(sw_drv.cuGraphLaunch(r->graphs[i], r->streams[i]), "cuGraphLaunch");
    for (int k = 0; k < calls && !is_graph(way); k++)
        call(r, k % comms, bytes);
}

static double round_us(const struct rank *r, enum way way, size_t bytes, int calls)
{
    double start;

    queue(r, way, bytes, calls);
    pthread_barrier_wait(&all.barrier);
    start = bench_now_us();
    if (r->rank == 0) {
        all.opened++;
        __atomic_store_n(all.gate, all.opened, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < comms_of(way); i++)
        bench_check(symwin_stream_synchronize(r->device, r->streams[i]));
    pthread_barrier_wait(&all.barrier);
    return (bench_now_us() - start) / calls;
}

static void measure(struct rank *r, enum way way, size_t bytes)
{
    const int calls = sw_driver_is_emulated() ? 4 : bytes > 1 << 20 ? 20 : MOST_CALLS;
    double us[ROUNDS];

    for (int i = 0; i < comms_of(way) && is_graph(way); i++)
        r->graphs[i] = capture(r, i, bytes, calls / comms_of(way));
    pthread_barrier_wait(&all.barrier);
    (void)round_us(r, way, bytes, calls);
    for (int round = 0; round < ROUNDS; round++)
        us[round] = round_us(r, way, bytes, calls);
    for (int i = 0; i < comms_of(way); i++)
        bench_check(symwin_comm_check(r->comms[i]));
    if (r->rank == 0)
        printf("%s,%zu,%.2f\n", names[way], bytes, median(us, ROUNDS));
    for (int i = 0; i < comms_of(way) && is_graph(way); i++)
        check_cuda(sw_drv.cuGraphExecDestroy(r->graphs[i]), "cuGraphExecDestroy");
}

static void *rank_main(void *arg)
{
    static const size_t sizes[] = {8, 256 << 10, 16 << 20};
    struct rank *r = arg;
    struct sw_scope scope;

    bench_check(sw_scope_enter(r->device, &scope));
    for (int way = ONE; way < WAYS; way++) {
        open_rank(r, (enum way)way);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            measure(r, (enum way)way, sizes[s]);
        close_rank(r, (enum way)way);
    }
    sw_scope_leave(&scope);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct rank ranks[MOST_RANKS];
    symwin_driver_info driver;
    struct sw_scope scope;
    void *word = NULL;

    bench_begin("order", argc, argv, 1);
    all.ranks = bench_number(argc, argv, 1, 2, MOST_RANKS, 2);
    bench_check(symwin_driver_query(&driver));
    all.devices = driver.device_count < all.ranks ? driver.device_count : all.ranks;
    bench_check(sw_scope_enter(0, &scope));
    check_cuda(
        sw_drv.cuMemHostAlloc(&word, 64, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
    check_cuda(sw_drv.cuMemHostGetDevicePointer(&all.gate_address, word, 0), "the gate's address");
    memset(word, 0, 64);
    all.gate = word;
    pthread_barrier_init(&all.barrier, NULL, (unsigned)all.ranks);
    printf("what,bytes,us\n");
    fflush(stdout);
    for (int i = 0; i < all.ranks; i++)
        ranks[i] = (struct rank){.rank = i, .device = i % all.devices};
    common_threads("order", ranks, all.ranks, sizeof ranks[0], rank_main);
    check_cuda(sw_drv.cuMemFreeHost(word), "cuMemFreeHost");
    sw_scope_leave(&scope);
    return bench_end();
}
