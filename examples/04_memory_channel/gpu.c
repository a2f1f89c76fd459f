/* The driver calls that the example makes, with types as in cuda.h. */
#include "gpu.h"

#include <stdio.h>
#include <string.h>

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUdeviceptr;

enum {
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
};

#define DRIVER_LIST(X)                                                                             \
    X(cuDeviceGetAttribute, (int *, int, int))                                                     \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, int))                                                \
    X(cuDevicePrimaryCtxRelease, (int))                                                            \
    X(cuCtxSetCurrent, (CUcontext))                                                                \
    X(cuGetErrorName, (CUresult, const char **))                                                   \
    X(cuLibraryLoadData,                                                                           \
      (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))             \
    X(cuLibraryUnload, (CUlibrary))                                                                \
    X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                   \
    X(cuKernelGetFunction, (CUfunction *, CUkernel))                                               \
    X(cuFuncSetAttribute, (CUfunction, int, int))                                                  \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                       unsigned, CUstream, void **, void **))                                      \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                             \
    X(cuStreamBeginCapture, (CUstream, int))                                                       \
    X(cuStreamEndCapture, (CUstream, CUgraph *))                                                   \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                   \
    X(cuGraphUpload, (CUgraphExec, CUstream))                                                      \
    X(cuGraphLaunch, (CUgraphExec, CUstream))                                                      \
    X(cuGraphExecDestroy, (CUgraphExec))                                                           \
    X(cuGraphDestroy, (CUgraph))                                                                   \
    X(cuEventCreate, (CUevent *, unsigned))                                                        \
    X(cuEventDestroy, (CUevent))                                                                   \
    X(cuEventRecord, (CUevent, CUstream))                                                          \
    X(cuEventElapsedTime, (float *, CUevent, CUevent))

#define DRIVER_MEMBER(name, params) CUresult(*name) params;
static struct driver {
    DRIVER_LIST(DRIVER_MEMBER)
} drv; /* constant after gpu_start() */
#undef DRIVER_MEMBER

static const char *const kernel_names[KERNELS] = {
    [PUT] = "bidir_put",
    [GET] = "bidir_get",
    [GET_BULK] = "bidir_get_bulk",
    [PUT_PACKETS] = "bidir_put_packets",
};

const char *gpu_start(void)
{
    static const char *const names[] = {
#define DRIVER_NAME(name, params) #name,
        DRIVER_LIST(DRIVER_NAME)
#undef DRIVER_NAME
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = NULL;

        if (symwin_driver_find(names[i], &function) != SYMWIN_OK)
            return symwin_last_error();
        memcpy((char *)&drv + i * sizeof function, &function, sizeof function);
    }
    return NULL;
}

/* Call and error as text; NULL: no error. */
static const char *check(CUresult result, const char *call)
{
    static _Thread_local char text[128];
    const char *name = NULL;

    if (result == 0)
        return NULL;
    drv.cuGetErrorName(result, &name);
    snprintf(text, sizeof text, "%s: %s", call, name != NULL ? name : "unknown error");
    return text;
}

/* Skips the call after an error. */
#define TRY(wrong, name, args)                                                                     \
    do {                                                                                           \
        if ((wrong) == NULL)                                                                       \
            (wrong) = check(drv.name args, #name);                                                 \
    } while (0)

static const char *load_kernels(struct gpu *gpu)
{
    symwin_driver_info info;
    const void *image = NULL;
    const char *wrong = NULL;
    CUkernel kernel = NULL;

    if (symwin_driver_query(&info) != SYMWIN_OK)
        return symwin_last_error();
    image = strcmp(info.name, "emu") == 0 ? kernels_emulated : kernels_for_gpus;
    if (image == NULL)
        return "this program was built without kernels for the driver: build it with nvcc for "
               "GPUs, "
               "in symwin's source tree for the emulated driver";
    TRY(wrong, cuLibraryLoadData, (&gpu->library, image, NULL, NULL, 0, NULL, NULL, 0));
    for (int k = 0; k < KERNELS; k++) {
        TRY(wrong, cuLibraryGetKernel, (&kernel, gpu->library, kernel_names[k]));
        TRY(wrong, cuKernelGetFunction, (&gpu->functions[k], kernel));
    }
    return wrong;
}

const char *gpu_open(struct gpu *gpu, int device)
{
    CUcontext context = NULL;
    symwin_device_info info;
    const char *wrong = NULL;
    int shared = 0;

    *gpu = (struct gpu){.device = -1};
    TRY(wrong, cuDevicePrimaryCtxRetain, (&context, device));
    if (wrong != NULL)
        return wrong;
    gpu->device = device;
    TRY(wrong, cuCtxSetCurrent, (context));
    TRY(wrong, cuDeviceGetAttribute,
        (&gpu->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    TRY(wrong, cuDeviceGetAttribute,
        (&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
    if (wrong == NULL && symwin_device_query(device, &info) != SYMWIN_OK)
        wrong = symwin_last_error();
    if (wrong == NULL && symwin_stream_create(device, &gpu->stream) != SYMWIN_OK)
        wrong = symwin_last_error();
    TRY(wrong, cuEventCreate, (&gpu->begin, 0));
    TRY(wrong, cuEventCreate, (&gpu->end, 0));
    if (wrong == NULL)
        wrong = load_kernels(gpu);
    if (wrong != NULL)
        return wrong;
    gpu->bulk = info.capability >= 90;
    gpu->shared_bytes = gpu->bulk && shared > 1024 ? (unsigned)shared - 1024 : 16384;
    TRY(wrong, cuFuncSetAttribute,
        (gpu->functions[GET_BULK], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
         (int)gpu->shared_bytes));
    return wrong;
}

void gpu_close(struct gpu *gpu)
{
    if (gpu->device < 0)
        return;
    if (gpu->replayed != NULL)
        drv.cuGraphExecDestroy(gpu->replayed);
    if (gpu->begin != NULL)
        drv.cuEventDestroy(gpu->begin);
    if (gpu->end != NULL)
        drv.cuEventDestroy(gpu->end);
    if (gpu->library != NULL)
        drv.cuLibraryUnload(gpu->library);
    if (gpu->stream != NULL)
        symwin_stream_destroy(gpu->device, gpu->stream);
    drv.cuCtxSetCurrent(NULL);
    drv.cuDevicePrimaryCtxRelease(gpu->device);
    gpu->device = -1;
}

const char *gpu_clear(struct gpu *gpu, void *memory, int byte, size_t bytes)
{
    return check(drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, (unsigned char)byte, bytes,
                                     gpu->stream),
                 "cuMemsetD8Async");
}

const char *gpu_record(struct gpu *gpu, enum kernel kernel, struct grid grid,
                       struct copy_args *args, int count)
{
    const unsigned shared = kernel == GET_BULK ? args->pieces * (args->piece_bytes + 8) : 0;
    void *params[] = {args}; /* the launch copies it */
    const char *wrong = NULL;
    CUgraph graph = NULL;
    CUresult ended;

    if (gpu->replayed != NULL)
        TRY(wrong, cuGraphExecDestroy, (gpu->replayed));
    gpu->replayed = NULL;
    TRY(wrong, cuStreamBeginCapture, (gpu->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (wrong != NULL)
        return wrong;
    for (int i = 0; i < count; i++)
        TRY(wrong, cuLaunchKernel,
            (gpu->functions[kernel], (unsigned)grid.blocks, 1, 1, (unsigned)grid.threads, 1, 1,
             shared, gpu->stream, params, NULL));
    ended = drv.cuStreamEndCapture(gpu->stream, &graph); /* also after an error */
    if (wrong == NULL)
        wrong = check(ended, "cuStreamEndCapture");
    TRY(wrong, cuGraphInstantiateWithFlags, (&gpu->replayed, graph, 0));
    TRY(wrong, cuGraphUpload, (gpu->replayed, gpu->stream)); /* else the first launch does it */
    if (graph != NULL)
        drv.cuGraphDestroy(graph);
    return wrong;
}

const char *gpu_replay(struct gpu *gpu)
{
    const char *wrong = NULL;

    TRY(wrong, cuEventRecord, (gpu->begin, gpu->stream));
    TRY(wrong, cuGraphLaunch, (gpu->replayed, gpu->stream));
    TRY(wrong, cuEventRecord, (gpu->end, gpu->stream));
    return wrong;
}

const char *gpu_elapsed(struct gpu *gpu, double *ms)
{
    const char *wrong = NULL;
    float elapsed = 0;

    if (symwin_stream_synchronize(gpu->device, gpu->stream) != SYMWIN_OK)
        return symwin_last_error();
    TRY(wrong, cuEventElapsedTime, (&elapsed, gpu->begin, gpu->end));
    *ms = elapsed;
    return wrong;
}
