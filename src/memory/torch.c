/* The two functions of a PyTorch CUDAPluggableAllocator. Any thread.
 *
 * PyTorch caches what it gets and frees it when it empties its cache, perhaps while kernels still
 * use it: it relies on cudaFree, which waits for the device. So this free waits too, because the
 * next allocation can get the memory immediately.
 */
#include "src/memory/memory.h"

void *symwin_torch_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    void *ptr = NULL;

    (void)stream; /* free memory is free for all streams */
    if (bytes < 0) {
        sw_fail(SYMWIN_INVALID, "symwin_torch_alloc: %td bytes", bytes);
        return NULL;
    }
    if (bytes == 0 || symwin_mem_alloc(device, (size_t)bytes, SYMWIN_MEM_NCCL | SYMWIN_MEM_PEERS,
                                       &ptr) != SYMWIN_OK)
        return NULL;
    return ptr;
}

void symwin_torch_free(void *ptr, ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    struct sw_scope scope;
    symwin_status status;

    (void)bytes;
    (void)stream; /* other streams may have used it too */
    if (ptr == NULL || sw_fork_check("symwin_torch_free") != SYMWIN_OK)
        return;
    status = sw_scope_enter(device, &scope);
    if (status == SYMWIN_OK) {
        status = sw_check(sw_drv.cuCtxSynchronize(), "symwin_torch_free: cuCtxSynchronize");
        sw_scope_leave(&scope);
    }
    /* If the wait failed, the device may still use the memory: leak it. */
    if (status == SYMWIN_OK)
        sw_allocation_free_late("symwin_torch_free", ptr);
}
