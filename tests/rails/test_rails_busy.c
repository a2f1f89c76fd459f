/* The end of a communicator over several domains waits for no other work of the device, on a driver
 * whose cuMemFreeHost() does: a stream waits for what the caller does next. NCCL's own end may
 * wait, but not that of the stand-in (tests/nccl/stand_in). */
#include "rails.h"

enum { RANKS = 4, SOON_MS = 3000, LIMIT_MS = 8000 };

/* Ends the wait if the main thread does not. */
static void *let_go(void *arg)
{
    uint32_t *const word = arg;
    const int64_t until = host_now_ms() + LIMIT_MS;

    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0 && host_now_ms() < until)
        host_pause_ms(1);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    return NULL;
}

static uint32_t *block(struct CUstream_st *stream)
{
    CUdeviceptr address;
    void *word;

    host_must_cuda(sw_drv.cuMemHostAlloc(&word, sizeof(uint32_t),
                                         CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                   "cuMemHostAlloc");
    memset(word, 0, sizeof(uint32_t));
    host_must_cuda(sw_drv.cuMemHostGetDevicePointer(&address, word, 0), "its address");
    host_must_cuda(sw_drv.cuStreamWaitValue32(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue32");
    return word;
}

static void body(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    struct CUstream_st *stream;
    symwin_comm_info info;
    struct sw_scope scope;
    uint32_t *buffer, *word;
    symwin_comm *comm;
    pthread_t thread;
    int64_t took;
    int device;

    rails_set_engine(rank);
    device = rank % harness_device_count();
    host_must(symwin_comm_create(processes_id(p, rank), p->count, rank, device, &options, &comm),
              "symwin_comm_create");
    host_must(symwin_comm_query(comm, &info), "symwin_comm_query");
    must_equal(info.domains, 2, "domains", rank);
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    buffer = host_alloc(device, 4096);
    host_must(symwin_allreduce(comm, buffer, buffer, 1000, SYMWIN_U32, SYMWIN_SUM, stream),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(device, stream), "synchronize");
    host_must(sw_scope_enter(device, &scope), "sw_scope_enter");
    word = block(stream);
    if (pthread_create(&thread, NULL, let_go, word) != 0)
        abort();
    processes_barrier(p);
    took = host_now_ms();
    symwin_comm_destroy(comm);
    took = host_now_ms() - took;
    must_be(took < SOON_MS, "soon", rank);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    host_must(symwin_stream_synchronize(device, stream), "synchronize");
    must_be(sw_reaper_wait(LIMIT_MS), "all is released", rank);
    host_must_cuda(sw_drv.cuMemFreeHost(word), "cuMemFreeHost");
    sw_scope_leave(&scope);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
}

int main(void)
{
    static const struct place two = {"2 x 2", 1, "aabb"};
    struct processes *p;

    tap_ok(places_run(&two, RANKS, body, NULL, &p), "an end while the device is busy");
    processes_free(p);
    return tap_done();
}
