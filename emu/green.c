/* Green contexts: a number of a device's multiprocessors, for streams to share.
 *
 * Which multiprocessors is not modelled: blocks of a partition use at most its number, and blocks
 * of the whole device may use all. A descriptor is just a number of multiprocessors, so it is never
 * freed.
 */
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "memory.h"

/* As for devices with compute capability 9. */
#define LEAST (EMU_MULTIPROCESSORS < 8 ? 1u : 8u)

struct CUdevResourceDesc_st {
    unsigned multiprocessors; /* 0: not generated yet */
};

struct CUgreenCtx_st {
    CUdevice device;
    int partition;
    unsigned multiprocessors;
};

static struct CUdevResourceDesc_st descriptors[EMU_MULTIPROCESSORS + 1];

static CUresult answer(CUdevResource *resource, CUdevResourceType type, unsigned multiprocessors)
{
    if (resource == NULL || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm = (CUdevSmResource){multiprocessors, LEAST, LEAST};
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuDeviceGetDevResource(CUdevice dev, CUdevResource *resource,
                                       CUdevResourceType type)
{
    const CUresult result = emu_enter(EMU_cuDeviceGetDevResource);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    return answer(resource, type, EMU_MULTIPROCESSORS);
}

CUresult sw_emu_cuCtxGetDevResource(CUcontext ctx, CUdevResource *resource, CUdevResourceType type)
{
    const CUresult result = emu_enter(EMU_cuCtxGetDevResource);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    return answer(resource, type, EMU_MULTIPROCESSORS);
}

CUresult sw_emu_cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource,
                                         CUdevResourceType type)
{
    const CUresult result = emu_enter(EMU_cuGreenCtxGetDevResource);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_GREEN, green))
        return CUDA_ERROR_INVALID_CONTEXT;
    return answer(resource, type, green->multiprocessors);
}

/* There is no MPS here. */
CUresult sw_emu_cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type)
{
    struct CUctx_st *ctx;
    const CUresult result = emu_begin(EMU_cuCtxGetExecAffinity, &ctx, 0);

    (void)type;
    if (result != CUDA_SUCCESS)
        return result;
    return affinity == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult sw_emu_cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *count,
                                            const CUdevResource *input, CUdevResource *rest,
                                            unsigned int flags, unsigned int least)
{
    const CUresult entered = emu_enter(EMU_cuDevSmResourceSplitByCount);
    unsigned each, groups;

    if (entered != CUDA_SUCCESS)
        return entered;
    if (count == NULL || input == NULL || input->type != CU_DEV_RESOURCE_TYPE_SM || flags != 0 ||
        least > input->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    each = least == 0 ? LEAST : (least + LEAST - 1) / LEAST * LEAST;
    groups = input->sm.smCount / each;
    if (result != NULL && *count < groups)
        groups = *count;
    for (unsigned i = 0; result != NULL && i < groups; i++)
        (void)answer(&result[i], CU_DEV_RESOURCE_TYPE_SM, each);
    if (rest != NULL) {
        (void)answer(rest, CU_DEV_RESOURCE_TYPE_SM, input->sm.smCount - groups * each);
        if (rest->sm.smCount == 0)
            rest->type = CU_DEV_RESOURCE_TYPE_INVALID;
    }
    *count = groups;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources,
                                          unsigned int count)
{
    const CUresult result = emu_enter_unless(EMU_cuDevResourceGenerateDesc,
                                             desc == NULL || resources == NULL || count != 1 ||
                                                 resources->type != CU_DEV_RESOURCE_TYPE_SM ||
                                                 resources->sm.smCount == 0 ||
                                                 resources->sm.smCount > EMU_MULTIPROCESSORS);

    if (result != CUDA_SUCCESS)
        return result;
    *desc = &descriptors[resources->sm.smCount];
    __atomic_store_n(&(*desc)->multiprocessors, resources->sm.smCount, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static int is_descriptor(CUdevResourceDesc desc)
{
    for (unsigned i = 1; i <= EMU_MULTIPROCESSORS; i++)
        if (desc == &descriptors[i])
            return __atomic_load_n(&desc->multiprocessors, __ATOMIC_RELAXED) == i;
    return 0;
}

CUresult sw_emu_cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev,
                                 unsigned int flags)
{
    struct CUgreenCtx_st *made;
    CUcontext primary;
    CUresult result = emu_enter(EMU_cuGreenCtxCreate);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_device_exists(dev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (green == NULL || !is_descriptor(desc) || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = dev;
    made->multiprocessors = (unsigned)(desc - descriptors);
    made->partition = emu_partition_open(dev, made->multiprocessors);
    if (made->partition == 0 || emu_handle_add(EMU_HANDLE_GREEN, made) != 0) {
        emu_partition_close(dev, made->partition);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)sw_emu_cuDevicePrimaryCtxRetain(&primary, dev);
    *green = made;
    return CUDA_SUCCESS;
}

/* Its streams must have been destroyed before. */
CUresult sw_emu_cuGreenCtxDestroy(CUgreenCtx green)
{
    const CUresult result = emu_enter_drop(EMU_cuGreenCtxDestroy, EMU_HANDLE_GREEN, green,
                                           CUDA_ERROR_INVALID_CONTEXT);
    CUdevice device;

    if (result != CUDA_SUCCESS)
        return result;
    device = green->device;
    emu_partition_close(device, green->partition);
    free(green);
    return sw_emu_cuDevicePrimaryCtxRelease(device);
}

CUresult sw_emu_cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                       int priority)
{
    const CUresult result = emu_enter(EMU_cuGreenCtxStreamCreate);

    (void)priority;
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_GREEN, green))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream == NULL || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    return emu_stream_open(stream, &emu_contexts[green->device], flags, green, green->partition);
}

CUresult sw_emu_cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuStreamGetGreenCtx, stream, &s, green == NULL);

    if (result == CUDA_SUCCESS)
        *green = s->green;
    return result;
}
