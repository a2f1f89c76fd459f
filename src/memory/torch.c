/* What PyTorch calls for memory: the two functions of a CUDAPluggableAllocator. It holds on to what it gets and frees it when
 * its cache is emptied, maybe while kernels still use it: cudaFree, which it calls otherwise, waits for the device. So does
 * the free here, because the next allocation may have the memory at once. */
#include "src/memory/memory.h"

void *symwin_torch_alloc(ptrdiff_t bytes, int device, struct CUstream_st *stream)
{
    void *ptr = NULL;

    (void)stream; /* what is free is free for all streams */
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
    (void)stream; /* others may have used it as well */
    if (ptr == NULL || sw_fork_check("symwin_torch_free") != SYMWIN_OK)
        return;
    status = sw_scope_enter(device, &scope);
    if (status == SYMWIN_OK) {
        status = sw_check(sw_drv.cuCtxSynchronize(), "symwin_torch_free: cuCtxSynchronize");
        sw_scope_leave(&scope);
    }
    /* A device that cannot be waited for may still use it: it stays. */
    if (status == SYMWIN_OK)
        sw_allocation_free_late("symwin_torch_free", ptr);
}
