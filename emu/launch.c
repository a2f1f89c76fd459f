/* Libraries, kernels, occupancy, launches; and functions that a running kernel calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu_device.h"
#include "exec.h"
#include "fiber.h"

/* Default limit of a launch's dynamic shared memory, until the attribute is raised. */
#define PLAIN_SHARED (48 << 10)

/* A kernel in one context. */
struct CUfunc_st {
    struct CUkern_st *kernel;
    CUdevice device;
    atomic_int most_shared;
};

struct CUkern_st {
    const struct sw_emu_kernel *entry;
    struct CUfunc_st functions[EMU_MAX_DEVICES];
};

struct CUlib_st {
    size_t count;
    atomic_size_t next; /* behind the kernel found last */
    struct CUkern_st kernels[];
};

/* ---- libraries ------------------------------------------------------------------------------- */

static void library_free(struct CUlib_st *library, size_t registered)
{
    for (size_t i = 0; i < registered; i++) {
        emu_handle_drop(EMU_HANDLE_KERNEL, &library->kernels[i]);
        for (int d = 0; d < EMU_MAX_DEVICES; d++)
            if (library->kernels[i].functions[d].kernel != NULL)
                emu_handle_drop(EMU_HANDLE_FUNCTION, &library->kernels[i].functions[d]);
    }
    free(library);
}

static struct CUlib_st *library_create(const struct sw_emu_image *image)
{
    struct CUlib_st *library = calloc(1, sizeof *library +
                                             image->kernel_count * sizeof library->kernels[0]);

    if (library == NULL)
        return NULL;
    library->count = image->kernel_count;
    for (size_t i = 0; i < library->count; i++) {
        library->kernels[i].entry = &image->kernels[i];
        if (emu_handle_add(EMU_HANDLE_KERNEL, &library->kernels[i]) != 0) {
            library_free(library, i);
            return NULL;
        }
    }
    if (emu_handle_add(EMU_HANDLE_LIBRARY, library) != 0) {
        library_free(library, library->count);
        return NULL;
    }
    return library;
}

CUresult sw_emu_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                                  void **jit_values, unsigned int jit_count,
                                  CUlibraryOption *options, void **values, unsigned int count)
{
    const struct sw_emu_image *image = code;
    CUresult result = emu_enter_unless(EMU_cuLibraryLoadData,
                                       library == NULL || code == NULL ||
                                           (jit_count > 0 && (!jit_options || !jit_values)) ||
                                           (count > 0 && (options == NULL || values == NULL)));

    if (result != CUDA_SUCCESS)
        return result;
    if (image->magic != SW_EMU_IMAGE_MAGIC || (image->kernel_count > 0 && image->kernels == NULL))
        return CUDA_ERROR_INVALID_IMAGE;
    *library = library_create(image);
    return *library != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sw_emu_cuLibraryUnload(CUlibrary library)
{
    CUresult result = emu_enter_drop(EMU_cuLibraryUnload, EMU_HANDLE_LIBRARY, library,
                                     CUDA_ERROR_INVALID_HANDLE);

    if (result == CUDA_SUCCESS)
        library_free(library, library->count);
    return result;
}

CUresult sw_emu_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult result = emu_enter_unless(EMU_cuLibraryGetKernel, kernel == NULL || name == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_LIBRARY, library))
        return CUDA_ERROR_INVALID_HANDLE;
    /* Callers usually ask for the kernels in order. */
    for (size_t n = 0, next = atomic_load(&library->next); n < library->count; n++) {
        const size_t i = (next + n) % library->count;

        if (strcmp(library->kernels[i].entry->name, name) == 0) {
            atomic_store(&library->next, i + 1);
            *kernel = &library->kernels[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- functions ------------------------------------------------------------------------------- */

CUresult sw_emu_cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    struct CUctx_st *ctx;
    struct CUfunc_st *f;
    CUresult result = emu_begin(EMU_cuKernelGetFunction, &ctx, function == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_KERNEL, kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    f = &kernel->functions[ctx->device];
    pthread_mutex_lock(&mutex);
    if (f->kernel == NULL) {
        if (emu_handle_add(EMU_HANDLE_FUNCTION, f) == 0)
            *f = (struct CUfunc_st){kernel, ctx->device, PLAIN_SHARED};
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS)
        *function = f;
    return result;
}

/* The kernel of a CUfunction, or of a CUkernel cast to one. *device: the function's device, -1 for
 * a CUkernel. */
static const struct sw_emu_kernel *entry_of(CUfunction function, CUdevice *device)
{
    if (emu_handle_is(EMU_HANDLE_FUNCTION, function)) {
        *device = function->device;
        return function->kernel->entry;
    }
    *device = -1;
    if (emu_handle_is(EMU_HANDLE_KERNEL, function))
        return ((const struct CUkern_st *)(const void *)function)->entry;
    return NULL;
}

static int most_shared(CUfunction function)
{
    return emu_handle_is(EMU_HANDLE_FUNCTION, function) ? atomic_load(&function->most_shared)
                                                        : PLAIN_SHARED;
}

static unsigned most_threads(const struct sw_emu_kernel *entry)
{
    return entry->most_threads != 0 ? entry->most_threads : EMU_BLOCK_THREADS;
}

CUresult sw_emu_cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    CUdevice device;
    CUresult result = emu_enter_unless(EMU_cuFuncGetAttribute, value == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    if (entry_of(function, &device) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int)most_threads(entry_of(function, &device));
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32; /* few enough that only threads limit occupancy */
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = emu_capability(device); /* as if compiled for each device */
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = most_shared(function);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* For a function only; a CUkernel cast to one has another call. */
CUresult sw_emu_cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    const CUresult result = emu_enter(EMU_cuFuncSetAttribute);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_FUNCTION, function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > EMU_BLOCK_SHARED)
        return CUDA_ERROR_INVALID_VALUE;
    atomic_store(&function->most_shared, value);
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuFuncLoad(CUfunction function)
{
    CUdevice device;
    CUresult result = emu_enter(EMU_cuFuncLoad);

    if (result != CUDA_SUCCESS)
        return result;
    return entry_of(function, &device) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sw_emu_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                            int block_threads, size_t dynamic_bytes)
{
    CUdevice device;
    CUresult result = emu_enter_unless(EMU_cuOccupancyMaxActiveBlocksPerMultiprocessor,
                                       blocks == NULL || block_threads <= 0);

    if (result != CUDA_SUCCESS)
        return result;
    if (entry_of(function, &device) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *blocks = (int)emu_occupancy((unsigned long long)block_threads, dynamic_bytes);
    return CUDA_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

static int shape_ok(const struct sw_emu_kernel *entry, const unsigned grid[3],
                    const unsigned block[3])
{
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0 || block[i] > EMU_BLOCK_THREADS)
            return 0;
    return grid[0] <= INT32_MAX && grid[1] <= UINT16_MAX && grid[2] <= UINT16_MAX &&
           (unsigned long long)block[0] * block[1] * block[2] <= most_threads(entry);
}

/* Programmatic stream serialization allows a kernel to start before those ahead of it have ended,
 * but does not require it: here it never does. Any other attribute is INVALID_VALUE: cuda.h lists
 * that among the results of cuLaunchKernelEx, and not NOT_SUPPORTED, but does not say for which
 * attributes. */
static int attributes_ok(const CUlaunchConfig *config)
{
    if (config->numAttrs > 0 && config->attrs == NULL)
        return 0;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_IGNORE &&
            config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return 0;
    return 1;
}

CUresult emu_kernel_op(struct emu_op *op, CUdevice device, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct emu_op made = {.kind = EMU_OP_KERNEL,
                          .device = device,
                          .kernel.grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
                          .kernel.block = {params->blockDimX, params->blockDimY, params->blockDimZ},
                          .kernel.shared = params->sharedMemBytes};
    CUdevice home;
    const struct sw_emu_kernel *entry = entry_of(params->func, &home);

    if (entry == NULL || (home >= 0 && home != device))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!shape_ok(entry, made.kernel.grid, made.kernel.block) ||
        params->sharedMemBytes > (unsigned)most_shared(params->func) || params->extra != NULL ||
        (entry->params_bytes > 0 &&
         (params->kernelParams == NULL || params->kernelParams[0] == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    made.kernel.kernel = entry;
    if (entry->params_bytes > 0) {
        made.owned = malloc(entry->params_bytes);
        if (made.owned == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(made.owned, params->kernelParams[0], entry->params_bytes);
    }
    *op = made;
    return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **params,
                       void **extra)
{
    const CUDA_KERNEL_NODE_PARAMS node = sw_kernel_node(config, function, params, extra);
    struct emu_op op;
    struct CUstream_st *s;
    CUresult result = emu_stream_resolve(config->hStream, &s);

    if (result == CUDA_SUCCESS)
        result = emu_kernel_op(&op, s->device, &node);
    if (result != CUDA_SUCCESS)
        return result;
    op.kernel.partition = s->partition;
    if (!attributes_ok(config)) {
        emu_op_free(&op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return emu_submit(s, &op, NULL, NULL);
}

CUresult sw_emu_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                               unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                               unsigned int block_z, unsigned int shared, CUstream stream,
                               void **params, void **extra)
{
    const CUlaunchConfig config = {grid_x,  grid_y, grid_z, block_x, block_y,
                                   block_z, shared, stream, NULL,    0};
    const CUresult result = emu_enter(EMU_cuLaunchKernel);

    return result == CUDA_SUCCESS ? launch(&config, function, params, extra) : result;
}

CUresult sw_emu_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                                 void **extra)
{
    const CUresult result = emu_enter(EMU_cuLaunchKernelEx);

    if (result != CUDA_SUCCESS)
        return result;
    return config != NULL ? launch(config, function, params, extra) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- functions that kernels call ------------------------------------------------------------- */

static pthread_mutex_t fault_mutex = PTHREAD_MUTEX_INITIALIZER;
static char fault_text[256];

size_t sw_emu_last_fault(char *text, size_t bytes)
{
    size_t length;

    pthread_mutex_lock(&fault_mutex);
    length = strlen(fault_text);
    if (bytes > 0)
        snprintf(text, bytes, "%s", fault_text);
    pthread_mutex_unlock(&fault_mutex);
    return length;
}

static _Noreturn void fault(const void *p, size_t n, int write, const char *what, CUresult code)
{
    const struct emu_dev_thread *me = emu_dev_me();
    struct emu_grid *grid = emu_fiber_grid();

    pthread_mutex_lock(&fault_mutex);
    snprintf(fault_text, sizeof fault_text,
             "device %d, kernel %s: %s %s of %zu bytes at %p by block (%u,%u,%u) thread (%u,%u,%u)",
             me->device, grid->kernel->name, what, write ? "write" : "read", n, p, me->block.x,
             me->block.y, me->block.z, me->thread.x, me->thread.y, me->thread.z);
    pthread_mutex_unlock(&fault_mutex);
    emu_grid_kill(grid, code);
    emu_fiber_leave();
}

__attribute__((noreturn)) void emu_dev_fault(const void *p, size_t n, int write)
{
    const struct emu_dev_thread *me = emu_dev_me();

    if (((uintptr_t)p & (n - 1)) != 0 &&
        emu_access(me->device, (CUdeviceptr)(uintptr_t)p, n, write) != NULL)
        fault(p, n, write, "misaligned", CUDA_ERROR_MISALIGNED_ADDRESS);
    fault(p, n, write, "illegal", CUDA_ERROR_ILLEGAL_ADDRESS);
}

void emu_dev_alias(const void *p, const void *host, size_t n, int write)
{
    if (emu_alias_use(host, n, write, 0))
        fault(p, n, write, "unfenced", CUDA_ERROR_LAUNCH_FAILED);
}

int emu_dev_multicast(const void *p, size_t n, int write, void *targets[EMU_MAX_DEVICES])
{
    struct emu_dev_thread *me = emu_dev_me();
    const int count = emu_multicast_access(me->device, (CUdeviceptr)(uintptr_t)p, n, write,
                                           targets);

    if (count == 0)
        emu_dev_fault(p, n, write);
    if (((uintptr_t)p & (n - 1)) != 0)
        fault(p, n, write, "misaligned", CUDA_ERROR_MISALIGNED_ADDRESS);
    for (int i = 0; emu_dev_watches_aliases() && i < count; i++)
        if (emu_alias_use(targets[i], n, write, 1))
            fault(p, n, write, "unfenced", CUDA_ERROR_LAUNCH_FAILED);
    if (write)
        me->stored = 1;
    return count;
}

#if defined(EMU_TSAN)
void emu_dev_fence(void)
{
    static uint32_t all_fences;

    (void)__atomic_fetch_add(&all_fences, 1, __ATOMIC_ACQ_REL);
}
#endif
