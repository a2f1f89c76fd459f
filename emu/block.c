/* Plain memory: cuMemAlloc and cuMemHostAlloc.
 *
 * A block has its own range of whole granules in the arena, with its own pages. Its mapping has
 * exactly the requested size, so an access beyond the end is detected. A device block is accessible
 * to its device, a host block to every device and to the host, at the same address.
 */
#include <sys/mman.h>

#include "exec.h"
#include "memory.h"

/* Device memory is charged in units of this. */
#define BLOCK_UNIT 512

static size_t charge_of(size_t bytes)
{
    return (bytes + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
}

/* Under the lock. */
static CUresult block_make(struct CUctx_st *ctx, size_t bytes, enum emu_range_kind kind,
                           CUdeviceptr *out)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    const CUdeviceptr va = emu_range_take(bytes, EMU_GRANULE, 0, kind);
    struct emu_view *view;

    if (va == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mmap((void *)(uintptr_t)va, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
        emu_range_give(va);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    view = emu_view_add(va, bytes, NULL);
    if (view == NULL) {
        (void)emu_arena_hide(va, bytes);
        emu_range_give(va);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    view->ctx = ctx;
    view->device = kind == EMU_DEVICE_BLOCK ? ctx->device : -1;
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        if (kind == EMU_HOST_BLOCK || i == ctx->device)
            atomic_store_explicit(&view->seen.access[i], CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                  memory_order_relaxed);
    *out = va;
    return CUDA_SUCCESS;
}

/* The block that begins at va, NULL if there is none of that kind. Under the lock. */
static struct emu_view *block_at(CUdeviceptr va, enum emu_range_kind kind)
{
    struct emu_view *view = emu_view_at(va);

    return view != NULL && view->kind == kind && view->seen.va == va ? view : NULL;
}

/* Waits for the block's device, then frees the block. */
static CUresult block_free(CUdeviceptr va, enum emu_range_kind kind)
{
    CUresult result = CUDA_SUCCESS;
    CUdevice device = 0;
    struct emu_view *view;

    pthread_mutex_lock(&emu_memory_mutex);
    view = block_at(va, kind);
    if (view != NULL)
        device = view->ctx->device;
    pthread_mutex_unlock(&emu_memory_mutex);
    if (view == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    (void)emu_device_drain(device);

    pthread_mutex_lock(&emu_memory_mutex);
    view = block_at(va, kind);
    if (view == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (emu_arena_hide(va, view->seen.bytes) != 0) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        emu_memory_give(view->device, charge_of(view->seen.bytes));
        emu_view_remove(view);
        emu_range_give(va);
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* The calls that free. A kernel's error is reported, but does not prevent the free. */
static CUresult free_entry(enum emu_entry entry, CUdeviceptr va, enum emu_range_kind kind)
{
    struct CUctx_st *ctx = NULL;
    const CUresult begun = emu_begin(entry, &ctx, 0);
    CUresult result;

    if (begun != CUDA_SUCCESS && (ctx == NULL || begun != (CUresult)atomic_load(&ctx->sticky)))
        return begun;
    result = emu_capture_forbids();
    if (result == CUDA_SUCCESS)
        result = block_free(va, kind);
    return result == CUDA_SUCCESS ? begun : result;
}

CUresult sw_emu_cuMemAlloc(CUdeviceptr *ptr, size_t size)
{
    struct CUctx_st *ctx;
    CUresult result = emu_begin(EMU_cuMemAlloc, &ctx, 0);

    if (result == CUDA_SUCCESS)
        result = emu_capture_forbids();
    if (result != CUDA_SUCCESS)
        return result;
    if (ptr == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > emu_machine.mem_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&emu_memory_mutex);
    if (emu_memory_take(ctx->device, charge_of(size)) != 0) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        result = block_make(ctx, size, EMU_DEVICE_BLOCK, ptr);
        if (result != CUDA_SUCCESS)
            emu_memory_give(ctx->device, charge_of(size));
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMemFree(CUdeviceptr ptr)
{
    return free_entry(EMU_cuMemFree, ptr, EMU_DEVICE_BLOCK);
}

CUresult sw_emu_cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                           CU_MEMHOSTALLOC_WRITECOMBINED;
    struct CUctx_st *ctx;
    CUdeviceptr va;
    CUresult result = emu_begin(EMU_cuMemHostAlloc, &ctx, 0);

    if (result == CUDA_SUCCESS)
        result = emu_capture_forbids();
    if (result != CUDA_SUCCESS)
        return result;
    if (ptr == NULL || size == 0 || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&emu_memory_mutex);
    result = block_make(ctx, size, EMU_HOST_BLOCK, &va);
    pthread_mutex_unlock(&emu_memory_mutex);
    if (result == CUDA_SUCCESS)
        *ptr = (void *)(uintptr_t)va;
    return result;
}

CUresult sw_emu_cuMemFreeHost(void *ptr)
{
    return free_entry(EMU_cuMemFreeHost, (CUdeviceptr)(uintptr_t)ptr, EMU_HOST_BLOCK);
}

CUresult sw_emu_cuMemHostGetDevicePointer(CUdeviceptr *dptr, void *ptr, unsigned int flags)
{
    const CUdeviceptr va = (CUdeviceptr)(uintptr_t)ptr;
    struct CUctx_st *ctx;
    const struct emu_view *view;
    CUresult result = emu_begin(EMU_cuMemHostGetDevicePointer, &ctx, dptr == NULL || flags != 0);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    view = emu_view_at(va);
    if (view != NULL && view->kind == EMU_HOST_BLOCK)
        *dptr = va;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    struct CUctx_st *ctx;
    CUresult result = emu_begin(EMU_cuMemGetInfo, &ctx, free_bytes == NULL || total_bytes == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    *free_bytes = emu_memory_left(ctx->device);
    pthread_mutex_unlock(&emu_memory_mutex);
    *total_bytes = emu_machine.mem_bytes;
    return CUDA_SUCCESS;
}
