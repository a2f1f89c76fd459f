/* The functions that PyTorch calls for memory. */
#include "host_cases.h"

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

/* What is queued on the device may still use the memory. */
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

int main(void)
{
    harness_start();
    memory();
    nothing();
    waits();
    return tap_done();
}
