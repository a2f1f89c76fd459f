/* The CUDA runtime functions that this example and 07_all_to_all call, on symwin's emulated
 * driver: for machines without nvcc, which never reads this file. Its includes exist only in
 * symwin's source tree. */
#ifndef EMULATED_H
#define EMULATED_H

#include <pthread.h>

#include "emu/emu.h"
#include "src/driver/driver.h"

typedef CUresult cudaError_t;
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
typedef CUgraph cudaGraph_t;
typedef CUgraphExec cudaGraphExec_t;

static const cudaError_t cudaSuccess = CUDA_SUCCESS;
static const CUstreamCaptureMode cudaStreamCaptureModeThreadLocal =
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

static inline const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;

    return sw_drv.cuGetErrorString(error, &text) == CUDA_SUCCESS ? text : "unknown error";
}

/* As in the runtime: makes the device's primary context current, until the program ends. */
static inline cudaError_t cudaSetDevice(int device)
{
    CUcontext context;
    const cudaError_t error = sw_drv.cuDevicePrimaryCtxRetain(&context, device);

    return error == CUDA_SUCCESS ? sw_drv.cuCtxSetCurrent(context) : error;
}

#define cudaEventCreate(event) sw_drv.cuEventCreate(event, 0)
#define cudaEventDestroy sw_drv.cuEventDestroy
#define cudaEventRecord sw_drv.cuEventRecord
#define cudaEventElapsedTime sw_drv.cuEventElapsedTime
#define cudaStreamBeginCapture sw_drv.cuStreamBeginCapture
#define cudaStreamEndCapture sw_drv.cuStreamEndCapture
#define cudaGraphInstantiate sw_drv.cuGraphInstantiateWithFlags
#define cudaGraphUpload sw_drv.cuGraphUpload
#define cudaGraphLaunch sw_drv.cuGraphLaunch
#define cudaGraphExecDestroy sw_drv.cuGraphExecDestroy
#define cudaGraphDestroy sw_drv.cuGraphDestroy

/* ---- kernels --------------------------------------------------------------------------------- */

/* A kernel is loaded at its first launch and stays until the program ends. */
struct emulated_kernel {
    struct sw_emu_kernel entry;
    struct sw_emu_image image;
    CUlibrary library;
};

static pthread_mutex_t emulated_lock = PTHREAD_MUTEX_INITIALIZER;
static struct emulated_kernel emulated_kernels[32];

static inline CUlibrary emulated_library(void (*run)(const void *), size_t params_bytes,
                                         unsigned most_threads)
{
    struct emulated_kernel *k = emulated_kernels;
    CUlibrary library;

    pthread_mutex_lock(&emulated_lock);
    while (k->library != NULL && k->entry.run != run)
        k++;
    if (k->library == NULL) {
        k->entry = {"kernel", run, params_bytes, most_threads};
        k->image = {SW_EMU_IMAGE_MAGIC, 1, &k->entry};
        (void)sw_drv.cuLibraryLoadData(&k->library, &k->image, NULL, NULL, 0, NULL, NULL, 0);
    }
    library = k->library;
    pthread_mutex_unlock(&emulated_lock);
    return library;
}

template <typename Args>
static cudaError_t emulated_launch(void (*run)(const void *), unsigned most_threads,
                                   unsigned blocks, unsigned threads, cudaStream_t stream,
                                   Args args)
{
    void *params[] = {&args};
    CUfunction function = NULL;
    CUkernel kernel = NULL;
    cudaError_t error;

    error = sw_drv.cuLibraryGetKernel(&kernel, emulated_library(run, sizeof args, most_threads),
                                      "kernel");
    if (error == CUDA_SUCCESS)
        error = sw_drv.cuKernelGetFunction(&function, kernel);
    if (error == CUDA_SUCCESS)
        error = sw_drv.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, params,
                                      NULL);
    return error;
}

#endif
