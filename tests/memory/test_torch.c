/* The functions that PyTorch calls for memory. */
#include "harness.h"

static symwin_mem_info described(const void *ptr)
{
    symwin_mem_info info = {0};

    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    return info;
}

static void memory(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *small = symwin_torch_alloc(5000, 1, NULL);
    void *large = symwin_torch_alloc(20 * MIB, 1, NULL);

    tap_ok(small != NULL && (uintptr_t)small % 4096 == 0 && described(small).size == 8192 &&
               described(small).device == 1,
           "small memory is aligned for NCCL's windows");
    tap_ok(large != NULL && described(large).base == large && described(large).bytes == 20 * MIB,
           "a segment of PyTorch's has memory of its own");
    host_put_u32(3, large, 5);
    TAP_EQ("peers may use it", host_get_u32(1, large), 5);
    symwin_torch_free(small, 5000, 1, NULL);
    symwin_torch_free(large, 20 * MIB, 1, NULL);
    tap_ok(symwin_mem_query(small, &(symwin_mem_info){0}) == SYMWIN_INVALID &&
               symwin_mem_query(large, &(symwin_mem_info){0}) == SYMWIN_INVALID,
           "and it is freed");
    harness_no_leaks("memory", &before);
}

static void nothing(void)
{
    const struct harness_leaks before = harness_leaks_now();

    tap_ok(symwin_torch_alloc(0, 0, NULL) == NULL, "no bytes: NULL");
    tap_ok(symwin_torch_alloc(-1, 0, NULL) == NULL && host_error_has("symwin_torch_alloc|-1 bytes"),
           "less than none: NULL, and why");
    tap_ok(symwin_torch_alloc(1, 99, NULL) == NULL && host_error_has("no device 99"),
           "no such device: NULL, and why");
    tap_ok(symwin_torch_alloc((ptrdiff_t)1 << 50, 0, NULL) == NULL &&
               host_error_has("CUDA_ERROR_OUT_OF_MEMORY"),
           "more than there is: NULL, and why");
    symwin_torch_free(NULL, 0, 0, NULL);
    harness_no_leaks("nothing", &before);
}

struct freeing {
    void *ptr;
    atomic_int done;
};

static void *free_it(void *arg)
{
    struct freeing *f = arg;

    symwin_torch_free(f->ptr, MIB, 0, NULL);
    f->done = 1;
    return NULL;
}

/* Free waits: work queued on the device may still use the memory. */
static void waits(void)
{
    const struct harness_leaks before = harness_leaks_now();
    struct freeing f = {symwin_torch_alloc(MIB, 0, NULL), 0};
    uint32_t *gate = symwin_torch_alloc(4, 0, NULL);
    struct CUstream_st *stream = NULL, *other = NULL;
    struct sw_scope scope;
    pthread_t id;

    host_must(sw_scope_enter(0, &scope), "sw_scope_enter");
    host_must(symwin_stream_create(0, &stream), "symwin_stream_create");
    host_must(symwin_stream_create(0, &other), "symwin_stream_create");
    host_put_u32(0, gate, 0);
    host_must_cuda(sw_drv.cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)gate, 1,
                                              CU_STREAM_WAIT_VALUE_EQ),
                   "cuStreamWaitValue32");
    pthread_create(&id, NULL, free_it, &f);
    host_pause_ms(50);
    tap_ok(!f.done && described(f.ptr).owned == 1, "a free waits for what is queued");
    host_must_cuda(sw_drv.cuStreamWriteValue32(other, (CUdeviceptr)(uintptr_t)gate, 1, 0),
                   "cuStreamWriteValue32");
    pthread_join(id, NULL);
    tap_ok(symwin_mem_query(f.ptr, &(symwin_mem_info){0}) == SYMWIN_INVALID,
           "and frees when that is done");
    symwin_torch_free(gate, 4, 0, NULL);
    host_must(symwin_stream_destroy(0, stream), "symwin_stream_destroy");
    host_must(symwin_stream_destroy(0, other), "symwin_stream_destroy");
    sw_scope_leave(&scope);
    harness_no_leaks("waits", &before);
}

/* ---- memory that is freed while something holds it ---- */

enum hold { HOLD_WINDOW, HOLD_REGISTRATION, HOLD_GRAPH, HOLD_CHANNEL, HOLD_KINDS };

static const char *const hold_names[] = {"a window", "a registration", "a graph", "a channel"};

/* What holds one allocation of one rank. NULL fields hold nothing. */
struct holder {
    int rank;
    symwin_comm *comm;
    struct CUstream_st *stream;
    symwin_window *window;
    symwin_registration *registration;
    CUgraph graph;
    symwin_channel_end *channel;
};

static void hold(struct holder *h, enum hold kind, void *ptr, size_t bytes)
{
    switch (kind) {
    case HOLD_WINDOW:
        host_must(symwin_window_register(h->comm, ptr, bytes, 0, &h->window), "register");
        break;
    case HOLD_REGISTRATION:
        host_must(symwin_register(h->comm, ptr, bytes, &h->registration), "symwin_register");
        break;
    case HOLD_GRAPH:
        host_must_cuda(sw_drv.cuStreamBeginCapture(h->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                       "cuStreamBeginCapture");
        host_must(symwin_allreduce(h->comm, ptr, ptr, bytes / 4, SYMWIN_F32, SYMWIN_SUM, h->stream),
                  "a captured call");
        host_must_cuda(sw_drv.cuStreamEndCapture(h->stream, &h->graph), "cuStreamEndCapture");
        break;
    case HOLD_CHANNEL:
        host_must(symwin_channel_create(h->comm, 1 - h->rank, ptr, bytes, NULL, &h->channel),
                  "symwin_channel_create");
        break;
    case HOLD_KINDS:
        break;
    }
}

static void let_go(struct holder *h, enum hold kind)
{
    switch (kind) {
    case HOLD_WINDOW:
        host_must(symwin_window_deregister(h->comm, h->window), "deregister");
        break;
    case HOLD_REGISTRATION:
        host_must(symwin_deregister(h->comm, h->registration), "symwin_deregister");
        break;
    case HOLD_GRAPH:
        host_must_cuda(sw_drv.cuGraphDestroy(h->graph), "cuGraphDestroy");
        host_must(symwin_mem_trim(0, 0), "symwin_mem_trim"); /* frees what graphs have held */
        break;
    case HOLD_CHANNEL:
        host_must(symwin_channel_destroy(h->comm, h->channel), "symwin_channel_destroy");
        break;
    case HOLD_KINDS:
        break;
    }
}

struct used {
    uint64_t allocations, bytes, reserved;
};

static struct used used_now(int device)
{
    symwin_mem_usage usage;

    (void)sw_reaper_wait(10000); /* what was given back is not reserved any more */
    host_must(symwin_mem_stats(device, &usage), "symwin_mem_stats");
    return (struct used){usage.allocations, usage.used_bytes, usage.reserved_bytes};
}

static int used_is(int device, const struct used *before, uint64_t allocations, uint64_t bytes)
{
    const struct used now = used_now(device);

    return now.allocations == before->allocations + allocations &&
           now.bytes == before->bytes + bytes;
}

/* Two holds, ended in either order. `bytes` is the size of the allocation. */
static void held(struct holder *h, int device, enum hold first, enum hold second, size_t bytes)
{
    const struct used before = used_now(device);
    void *ptr = symwin_torch_alloc((ptrdiff_t)bytes, device, NULL);
    symwin_registration *other = NULL;
    char name[100];

    snprintf(name, sizeof name, "%zu bytes, held by %s and %s", bytes, hold_names[first],
             hold_names[second]);
    hold(h, first, ptr, bytes);
    hold(h, second, ptr, bytes);
    symwin_torch_free(ptr, (ptrdiff_t)bytes, device, NULL);
    tap_ok(used_is(device, &before, 1, bytes), "%s: a free leaves them where they are", name);
    host_expect(name, symwin_mem_query(ptr, &(symwin_mem_info){0}), SYMWIN_INVALID, "freed");
    host_expect(name, symwin_register(h->comm, ptr, 64, &other), SYMWIN_INVALID, "freed");
    host_expect(name, symwin_mem_free(ptr), SYMWIN_INVALID, "freed before");
    symwin_torch_free(ptr, (ptrdiff_t)bytes, device, NULL);
    let_go(h, second);
    tap_ok(used_is(device, &before, 1, bytes), "%s: as long as one holds it", name);
    let_go(h, first);
    tap_ok(used_is(device, &before, 0, 0), "%s: the last one's end gives it back", name);
    host_must(symwin_mem_trim(device, SIZE_MAX), "symwin_mem_trim");
    TAP_EQ("bytes that the device is short of", used_now(device).reserved - before.reserved, 0);
}

static void run_held(struct harness_team *team, int rank, void *unused)
{
    static const size_t sizes[] = {8192, 4 * MIB};
    const int device = harness_device(rank);
    struct holder h = {.rank = rank};
    void *left;
    size_t i;
    int a, b;

    (void)unused;
    host_must(harness_comm(team, rank, &h.comm), "symwin_comm_create");
    host_must(symwin_stream_create(device, &h.stream), "symwin_stream_create");
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (a = 0; a < HOLD_KINDS; a++)
            for (b = 0; b < HOLD_KINDS; b++)
                if (a != b)
                    held(&h, device, a, b, sizes[i]);
    /* What is still held goes with the communicator. */
    for (a = 0; a < HOLD_KINDS; a++) {
        const struct used before = used_now(device);

        if (a == HOLD_GRAPH)
            continue;
        left = symwin_torch_alloc(8192, device, NULL);
        hold(&h, a, left, 8192);
        symwin_torch_free(left, 8192, device, NULL);
        TAP_EQ("bytes in use", used_now(device).bytes - before.bytes, 8192);
    }
    host_must(symwin_stream_destroy(device, h.stream), "symwin_stream_destroy");
    symwin_comm_destroy(h.comm);
    TAP_EQ("bytes in use when the communicator has gone", used_now(device).bytes, 0);
    TAP_EQ("bytes of the device", used_now(device).reserved, 0);
}

static void busy(void)
{
    const struct harness_leaks before = harness_leaks_now();

    harness_run(2, run_held, NULL);
    harness_no_leaks("memory that was held", &before);
}

int main(void)
{
    setenv("SYMWIN_MEM_KEEP", "0", 1); /* so that freed memory is released at once */
    harness_start();
    memory();
    nothing();
    waits();
    busy();
    return tap_done();
}
