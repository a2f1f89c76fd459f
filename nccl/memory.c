/* ncclMemAlloc and ncclMemFree for unchanged programs: their memory comes from symwin's pool.
 *
 *   the program -> this library -> symwin_mem_alloc()
 *                               -> or the next ncclMemAlloc, normally NCCL's own
 *
 * A call is passed to the next ncclMemAlloc where NCCL itself would use cudaMalloc (no pointer, no
 * size, cuMem off) and where symwin cannot serve it (no driver, no virtual memory management, no
 * current context). So a program is never worse off than without this library. Nothing is printed,
 * except about an invalid variable. The emulated driver is used only with SYMWIN_DRIVER=emu.
 *
 * The library calls only public functions of libsymwin.so, so a process has one pool. README.md
 * lists what to watch for. Any thread may call.
 */
#include <stdatomic.h>
#include <string.h>

#include "nccl/calls.h"

typedef ncclResult_t (*alloc_fn)(void **ptr, size_t size);
typedef ncclResult_t (*free_fn)(void *ptr);

/* ---- the next ncclMemAlloc and ncclMemFree --------------------------------------------------- */

/* Where a call is passed on to. */
struct sw_passed {
    struct sw_next *next;
    void *caller;
};

static ncclResult_t pass_alloc(const struct sw_passed *to, void **ptr, size_t size)
{
    void *symbol = sw_next_find(to->next, to->caller);
    alloc_fn call;

    if (symbol == NULL)
        return ptr == NULL ? ncclInvalidArgument : ncclSystemError;
    memcpy(&call, &symbol, sizeof call);
    return call(ptr, size);
}

static ncclResult_t pass_free(const struct sw_passed *to, void *ptr)
{
    void *symbol = sw_next_find(to->next, to->caller);
    free_fn call;

    if (symbol == NULL)
        return ncclInvalidArgument;
    memcpy(&call, &symbol, sizeof call);
    return call(ptr);
}

/* Results of cuMemRetainAllocationHandle for addresses without VMM memory: CUDA_ERROR_INVALID_VALUE
 * and CUDA_ERROR_NOT_SUPPORTED. */
enum { NOTHING_THERE = 1, NOTHING_OF_THAT_KIND = 801 };

static atomic_int served; /* whether symwin has handed out memory here */

/* ---- memory ---------------------------------------------------------------------------------- */

static int has_current_device(void)
{
    symwin_device_info info;

    return symwin_device_query(SYMWIN_DEVICE_CURRENT, &info) == SYMWIN_OK;
}

static ncclResult_t allocate(const struct sw_passed *to, void **ptr, size_t size)
{
    const struct sw_setup *setup = sw_setup();
    void *memory = NULL;
    symwin_status status;

    if (setup->refused && setup->memory && ptr != NULL && size != 0)
        return ncclInvalidArgument;
    if (ptr == NULL || size == 0 || !setup->usable || !setup->memory)
        return pass_alloc(to, ptr, size);
    status = symwin_mem_alloc(SYMWIN_DEVICE_CURRENT, size, setup->flags, &memory);
    if (status == SYMWIN_INVALID && !has_current_device()) {
        /* NCCL asks the CUDA runtime, which has device 0 also for a thread without a context, so
         * the call is passed on. With emulated memory there is no runtime, and no NCCL that could
         * use the memory. */
        if (!setup->emulated)
            return pass_alloc(to, ptr, size);
        status = symwin_mem_alloc(0, size, setup->flags, &memory);
    }
    switch (status) {
    case SYMWIN_OK:
        atomic_store_explicit(&served, 1, memory_order_relaxed);
        *ptr = memory;
        return ncclSuccess;
    case SYMWIN_UNSUPPORTED:
        return pass_alloc(to, ptr, size);
    case SYMWIN_NO_MEMORY: /* NCCL's result if cuMemCreate fails, for any reason */
        return ncclUnhandledCudaError;
    case SYMWIN_INVALID:
        return ncclInvalidArgument;
    default:
        return ncclSystemError;
    }
}

/* For an address that symwin does not free: ncclSuccess if the call may be passed on, or the
 * result. The address may still be in symwin's memory: inside an allocation, or in a free part of
 * the pool. NCCL would take it for its own and unmap the whole mapping, with other buffers. So if
 * the driver does not say what is there, the memory is not freed. The emulated driver is not asked,
 * since no NCCL can unmap its memory. */
static ncclResult_t objection(void *ptr)
{
    unsigned long long handle = 0;
    symwin_mem_info info;
    symwin_status status;
    int result;

    if (!atomic_load_explicit(&served, memory_order_relaxed))
        return ncclSuccess;
    status = symwin_mem_query(ptr, &info);
    if (status == SYMWIN_OK)
        return info.owned != 0 ? ncclInvalidArgument : ncclSuccess;
    if (status != SYMWIN_INVALID)
        return ncclSystemError;
    /* No allocation is there. If the driver has memory at the address, it is the pool's. */
    if (sw_setup()->retain == NULL)
        return ncclSuccess;
    result = sw_setup()->retain(&handle, ptr);
    if (result == 0) {
        sw_setup()->release(handle);
        return ncclInvalidArgument;
    }
    return result == NOTHING_THERE || result == NOTHING_OF_THAT_KIND ? ncclSuccess
                                                                     : ncclSystemError;
}

static ncclResult_t give_back(const struct sw_passed *to, void *ptr)
{
    symwin_status status;
    ncclResult_t refused;

    if (ptr == NULL)
        return ncclSuccess;       /* as cudaFree(), which NCCL calls in that case */
    status = sw_memory_free(ptr); /* NCCL frees a buffer with its windows on it */
    switch (status) {
    case SYMWIN_OK:
        return ncclSuccess;
    case SYMWIN_INVALID:
        refused = objection(ptr);
        return refused != ncclSuccess ? refused : pass_free(to, ptr);
    case SYMWIN_BUSY: /* a symwin window is on it */
        return ncclInvalidUsage;
    default:
        return ncclSystemError;
    }
}

/* ---- exported functions ---------------------------------------------------------------------- */

/* The caller decides which NCCL's function is the next one. */
#define TO(next) (&(struct sw_passed){&(next), __builtin_return_address(0)})

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    return allocate(TO(sw_next_ncclMemAlloc), ptr, size);
}

ncclResult_t ncclMemFree(void *ptr)
{
    return give_back(TO(sw_next_ncclMemFree), ptr);
}

ncclResult_t pncclMemAlloc(void **ptr, size_t size)
{
    return allocate(TO(sw_next_pncclMemAlloc), ptr, size);
}

ncclResult_t pncclMemFree(void *ptr)
{
    return give_back(TO(sw_next_pncclMemFree), ptr);
}
