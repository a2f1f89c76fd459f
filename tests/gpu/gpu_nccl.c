/* symwin_comm_attach_nccl() with NVIDIA's NCCL: both libraries register the same buffers, reduce
 * them and deregister them.
 *
 *   SYMWIN_NCCL=path/libnccl.so.2   if the loader does not find it
 *   SYMWIN_TEST_RANKS               threads, each with its own GPU; default: the number of GPUs
 *
 * NVLS stays off: NCCL_NVLS_ENABLE must be 0 or unset. */
#include <dlfcn.h>

#include "bench/rivals/multicast.h"
#include "harness.h"

enum { COUNT = 1 << 20, BYTES = 4 * COUNT, NCCL_FLOAT = 7, NCCL_SUM = 0 };

struct nccl_id {
    char internal[128];
};

static struct {
    int (*ncclGetUniqueId)(struct nccl_id *id);
    int (*ncclCommInitRank)(struct ncclComm **comm, int nranks, struct nccl_id id, int rank);
    int (*ncclAllReduce)(const void *in, void *out, size_t count, int type, int op,
                         struct ncclComm *comm, CUstream stream);
    int (*ncclCommDestroy)(struct ncclComm *comm);
} nccl;

static struct nccl_id id;

static void load(void)
{
    static const char *const names[] = {"ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce",
                                        "ncclCommDestroy"};
    const char *path = getenv("SYMWIN_NCCL");
    void *library = dlopen(path != NULL ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    char text[256];
    size_t i;

    if (library == NULL)
        tap_skip_all("there is no libnccl.so.2; SYMWIN_NCCL names one");
    if (rivals_multicast_off(text, sizeof text) != 0)
        tap_skip_all(text);
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(library, names[i]);

        if (symbol == NULL)
            tap_skip_all("this libnccl.so.2 lacks a function");
        memcpy((unsigned char *)&nccl + i * sizeof symbol, &symbol, sizeof symbol);
    }
}

static void must_nccl(int result, const char *what)
{
    if (result == 0)
        return;
    printf("Bail out! %s gave %d\n", what, result);
    exit(1);
}

static void put(int device, void *at, float value)
{
    float *values = malloc(BYTES);
    int i;

    for (i = 0; i < COUNT; i++)
        values[i] = value + (float)(i % 1000);
    host_must(host_copy(device, at, values, BYTES), "copy to the device");
    free(values);
}

static int wrong(int device, CUstream stream, const void *at, int nranks, float sum)
{
    float *values = malloc(BYTES);
    int i, count = 0;

    host_must(symwin_stream_synchronize(device, stream), "synchronize");
    host_must(host_copy(device, values, at, BYTES), "copy from the device");
    for (i = 0; i < COUNT; i++)
        count += values[i] != sum + (float)(nranks * (i % 1000));
    free(values);
    return count;
}

static void body(struct harness_team *team, int rank, void *unused)
{
    const int device = harness_device(rank), n = team->nranks;
    const float sum = (float)(n * (n + 1) / 2);
    symwin_registration *registrations[2];
    symwin_registration_info info;
    struct ncclComm *theirs = NULL;
    symwin_comm *comm = NULL;
    struct sw_scope scope;
    CUstream stream;
    char *memory;

    (void)unused;
    host_must(sw_scope_enter(device, &scope), "sw_scope_enter");
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    host_must(harness_comm(team, rank, &comm), "symwin_comm_create");
    must_nccl(nccl.ncclCommInitRank(&theirs, n, id, rank), "ncclCommInitRank");
    memory = host_alloc(device, 2 * BYTES);
    host_must(symwin_register(comm, memory, BYTES, &registrations[0]), "symwin_register");
    host_expect("attach", symwin_comm_attach_nccl(comm, theirs), SYMWIN_OK, "");
    host_must(symwin_register(comm, memory + BYTES, BYTES, &registrations[1]), "symwin_register");
    host_must(symwin_registration_query(comm, registrations[1], &info), "query");
    tap_ok((info.transports & SYMWIN_TRANSPORT_NCCL) != 0, "rank %d: registered with NCCL", rank);
    put(device, memory, (float)(rank + 1));
    must_nccl(
        nccl.ncclAllReduce(memory, memory + BYTES, COUNT, NCCL_FLOAT, NCCL_SUM, theirs, stream),
        "ncclAllReduce");
    TAP_EQ("NCCL's sum", wrong(device, stream, memory + BYTES, n, sum), 0);
    put(device, memory + BYTES, 0);
    harness_barrier(team);
    host_expect(
        "symwin's all-reduce",
        symwin_allreduce(comm, memory, memory + BYTES, COUNT, SYMWIN_F32, SYMWIN_SUM, stream),
        SYMWIN_OK, "");
    TAP_EQ("symwin's sum", wrong(device, stream, memory + BYTES, n, sum), 0);
    host_must(symwin_registration_query(comm, registrations[0], &info), "query");
    TAP_EQ("the buffer's transports", info.transports,
           SYMWIN_TRANSPORT_NCCL | SYMWIN_TRANSPORT_PEER);
    must_nccl(nccl.ncclAllReduce(memory, memory, COUNT, NCCL_FLOAT, NCCL_SUM, theirs, stream),
              "ncclAllReduce");
    TAP_EQ("NCCL's sum after it", wrong(device, stream, memory, n, sum), 0);
    harness_barrier(team);
    host_expect("deregister", symwin_deregister(comm, registrations[0]), SYMWIN_OK, "");
    host_expect("detach", symwin_comm_attach_nccl(comm, NULL), SYMWIN_OK, "");
    host_must(symwin_registration_query(comm, registrations[1], &info), "query");
    TAP_EQ("not with NCCL any more", info.transports & SYMWIN_TRANSPORT_NCCL, 0);
    host_expect("attach again", symwin_comm_attach_nccl(comm, theirs), SYMWIN_OK, "");
    symwin_comm_destroy(comm);
    must_nccl(nccl.ncclCommDestroy(theirs), "ncclCommDestroy");
    host_must(symwin_mem_free(memory), "symwin_mem_free");
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    sw_scope_leave(&scope);
}

int main(void)
{
    const char *text = getenv("SYMWIN_TEST_RANKS");
    int ranks;

    harness_start();
    if (sw_driver_is_emulated())
        tap_skip_all("NCCL needs GPUs");
    ranks = text != NULL && atoi(text) > 0 ? atoi(text) : harness_device_count();
    if (ranks > harness_device_count())
        ranks = harness_device_count();
    load();
    must_nccl(nccl.ncclGetUniqueId(&id), "ncclGetUniqueId");
    harness_run(ranks, body, NULL);
    return tap_done();
}
