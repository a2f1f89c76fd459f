/* Which driver calls wait for a running kernel: undocumented facts of NVIDIA's driver, which
 * docs/hardware.md quotes. Rank 0's all-reduce waits for rank 1, which never comes, until its
 * timeout. Meanwhile another thread makes one call. If that does not return well before the
 * timeout, it waited for the kernel. The findings are printed as comments; the test is that the
 * kernel gave up in time.
 */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { ITEMS = 4096, PATIENCE_MS = 300, KERNEL_MS = 1000 };

struct probe {
    const char *name;
    int (*call)(struct probe *p); /* CUresult or symwin_status */
    int device;                   /* where the call runs */
    CUdeviceptr ptr;
    void *memory, *far; /* far: of the other device */
    struct CUstream_st *stream;
    CUgraph graph;
    CUgraphExec exec;
    atomic_int returned;
    int result;
};

static int call_alloc(struct probe *p)
{
    return (int)sw_drv.cuMemAlloc(&p->ptr, 64 << 20);
}

static int call_free(struct probe *p)
{
    return (int)sw_drv.cuMemFree(p->ptr);
}

static int call_vmm_alloc(struct probe *p)
{
    return (int)symwin_mem_alloc(p->device, 64 << 20, 0, &p->memory);
}

static int call_vmm_free(struct probe *p)
{
    return (int)symwin_mem_free(p->memory);
}

static int call_stream_create(struct probe *p)
{
    return (int)symwin_stream_create(p->device, &p->stream);
}

static int call_stream_destroy(struct probe *p)
{
    return (int)symwin_stream_destroy(p->device, p->stream);
}

static int call_host_alloc(struct probe *p)
{
    return (int)sw_drv.cuMemHostAlloc(&p->memory, 4096, CU_MEMHOSTALLOC_PORTABLE);
}

static int call_host_free(struct probe *p)
{
    return (int)sw_drv.cuMemFreeHost(p->memory);
}

/* A graph of two memsets of memory from symwin_mem_alloc(). */
static int call_capture(struct probe *p)
{
    int result = (int)symwin_mem_alloc(p->device, 64 << 20, 0, &p->memory);

    if (result == 0)
        result = (int)symwin_stream_create(p->device, &p->stream);
    if (result == 0)
        result = (int)sw_drv.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (int i = 0; i < 2 && result == 0; i++)
        result = (int)sw_drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)p->memory, 0, 4096, p->stream);
    return result != 0 ? result : (int)sw_drv.cuStreamEndCapture(p->stream, &p->graph);
}

/* The same of two copies, to memory of the other device. */
static int call_capture_copies(struct probe *p)
{
    const int other = 1 - p->device;
    const CUmemAccessDesc both[] = {
        {{CU_MEM_LOCATION_TYPE_DEVICE, other}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_DEVICE, p->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    int result = (int)symwin_mem_alloc(p->device, 64 << 20, 0, &p->memory);

    if (result == 0)
        result = (int)symwin_mem_alloc(other, 64 << 20, 0, &p->far);
    if (result == 0)
        result = (int)sw_drv.cuMemSetAccess((CUdeviceptr)(uintptr_t)p->far, 64 << 20, both, 2);
    if (result == 0)
        result = (int)symwin_stream_create(p->device, &p->stream);
    if (result == 0)
        result = (int)sw_drv.cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (int i = 0; i < 2 && result == 0; i++)
        result = (int)sw_drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)p->far,
                                           (CUdeviceptr)(uintptr_t)p->memory, 4096, p->stream);
    return result != 0 ? result : (int)sw_drv.cuStreamEndCapture(p->stream, &p->graph);
}

static int call_free_both(struct probe *p)
{
    const int result = (int)symwin_mem_free(p->far);

    return result != 0 ? result : (int)symwin_mem_free(p->memory);
}

static int call_instantiate(struct probe *p)
{
    return (int)sw_drv.cuGraphInstantiateWithFlags(&p->exec, p->graph, 0);
}

static int call_graph_launch(struct probe *p)
{
    return (int)sw_drv.cuGraphLaunch(p->exec, p->stream);
}

static int call_exec_destroy(struct probe *p)
{
    return (int)sw_drv.cuGraphExecDestroy(p->exec);
}

static int call_graph_destroy(struct probe *p)
{
    return (int)sw_drv.cuGraphDestroy(p->graph);
}

static void *probe_main(void *arg)
{
    struct probe *p = arg;
    struct sw_scope scope;

    if (sw_scope_enter(p->device, &scope) == SYMWIN_OK) {
        p->result = p->call(p);
        sw_scope_leave(&scope);
    }
    atomic_store(&p->returned, 1);
    return NULL;
}

static void pause_ms(int ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static void body(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = 20000, .kernel_timeout_ms = KERNEL_MS};
    const int device = harness_device(rank);
    struct probe *p = arg;
    struct CUstream_st *stream = NULL;
    symwin_comm *comm = NULL;
    void *data = NULL;
    pthread_t thread;
    int early;

    if (symwin_comm_create(&team->id, team->nranks, rank, device, &options, &comm) != SYMWIN_OK ||
        symwin_stream_create(device, &stream) != SYMWIN_OK ||
        symwin_mem_alloc(device, ITEMS * 4, 0, &data) != SYMWIN_OK) {
        tap_ok(0, "%s: set up rank %d: %s", p->name, rank, symwin_last_error());
        exit(tap_done());
    }
    harness_barrier(team);
    if (rank == 0) {
        tap_ok(symwin_allreduce(comm, data, data, ITEMS, SYMWIN_I32, SYMWIN_SUM, stream) ==
                   SYMWIN_OK,
               "%s: launch", p->name);
        pause_ms(50);
        pthread_create(&thread, NULL, probe_main, p);
        pause_ms(PATIENCE_MS);
        early = atomic_load(&p->returned);
        tap_ok(symwin_stream_synchronize(device, stream) == SYMWIN_OK &&
                   symwin_comm_check(comm) == SYMWIN_TIMEOUT,
               "%s: the kernel waited until its time was up", p->name);
        pthread_join(thread, NULL);
        tap_ok(p->result == 0, "%s: succeeds (%d)", p->name, p->result);
        printf("# device %d: %s %s for a running kernel on device %d\n", p->device, p->name,
               early ? "does not wait" : "waits", device);
    }
    harness_barrier(team);
    symwin_comm_destroy(comm);
    symwin_mem_free(data);
    symwin_stream_destroy(device, stream);
}

int main(void)
{
    static const struct {
        const char *name;
        int (*call)(struct probe *p);
    } calls[] = {
        {"cuMemAlloc", call_alloc},
        {"cuMemFree", call_free},
        {"symwin_mem_alloc", call_vmm_alloc},
        {"symwin_mem_free (cuMemUnmap)", call_vmm_free},
        {"cuStreamCreate", call_stream_create},
        {"cuStreamDestroy", call_stream_destroy},
        {"cuMemHostAlloc", call_host_alloc},
        {"cuMemFreeHost", call_host_free},
        {"capture of two memsets", call_capture},
        {"cuGraphInstantiate", call_instantiate},
        {"cuGraphLaunch", call_graph_launch},
        {"cuGraphLaunch, the second", call_graph_launch},
        {"cuGraphExecDestroy", call_exec_destroy},
        {"cuGraphDestroy", call_graph_destroy},
        {"cuStreamDestroy, of launches", call_stream_destroy},
        {"symwin_mem_free", call_vmm_free},
        /* from here on with two devices only */
        {"capture of copies to the other device", call_capture_copies},
        {"cuGraphInstantiate of copies", call_instantiate},
        {"cuGraphLaunch of copies", call_graph_launch},
        {"cuGraphExecDestroy of copies", call_exec_destroy},
        {"cuGraphDestroy of copies", call_graph_destroy},
        {"cuStreamDestroy, of copies", call_stream_destroy},
        {"symwin_mem_free of both", call_free_both},
    };
    enum { CALLS = sizeof calls / sizeof calls[0], WITH_TWO = 7 };
    struct probe p = {0};
    struct sw_scope keep[2];
    int devices, d;
    size_t i;

    setenv("SYMWIN_DRIVER", "cuda", 0);
    harness_start();
    devices = harness_device_count() < 2 ? 1 : 2;
    for (d = 0; d < devices; d++) /* the contexts stay for the whole run */
        tap_ok(sw_scope_enter(d, &keep[d]) == SYMWIN_OK, "context of device %d", d);
    for (d = 0; d < devices; d++)
        for (i = 0; i < CALLS - (devices == 2 ? 0 : WITH_TWO); i++) {
            p.name = calls[i].name;
            p.call = calls[i].call;
            p.device = d;
            atomic_store(&p.returned, 0);
            harness_run(2, body, &p);
        }
    while (d-- > 0)
        sw_scope_leave(&keep[d]);
    return tap_done();
}
