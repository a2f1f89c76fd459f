/* The small program of tests/nccl/way.c: one thread is two ranks, which reduce. */
#ifndef WAYS_H
#define WAYS_H

#include <stdint.h>
#include <string.h>

#include "stand_in/driver_fill.h"
#include "stand_in/stand_in.h"

/* The functions of NCCL that it calls. */
#define WAY_CALLS(X)                                                                               \
    X(ncclCommInitAll)                                                                             \
    X(ncclCommDestroy)                                                                             \
    X(ncclAllReduce)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclMemAlloc)                                                                                \
    X(ncclMemFree)

struct way {
#define WAY_MEMBER(name) __typeof__(&name) name;
    WAY_CALLS(WAY_MEMBER)
#undef WAY_MEMBER
};

#define WAY_ENTRIES(X)                                                                             \
    X(cuInit, 2000, (unsigned))                                                                    \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                     \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                \
    X(cuCtxSetCurrent, 4000, (CUcontext))                                                          \
    X(cuStreamCreate, 2000, (CUstream *, unsigned))                                                \
    X(cuStreamDestroy, 4000, (CUstream))                                                           \
    X(cuStreamSynchronize, 2000, (CUstream))

struct way_driver {
#define WAY_MEMBER(name, version, params) CUresult(*name) params;
    WAY_ENTRIES(WAY_MEMBER)
#undef WAY_MEMBER
};

/* 30 + 12, or -1 if something fails. */
static int way_run(const struct way *w)
{
    static const struct driver_entry entries[] = {
#define WAY_ENTRY(name, version, params) {#name, version, offsetof(struct way_driver, name)},
        WAY_ENTRIES(WAY_ENTRY)
#undef WAY_ENTRY
    };
    struct way_driver cu;
    CUcontext contexts[2];
    CUstream streams[2];
    ncclComm_t comms[2];
    int *data[2], bad, result, i;
    void *memory;

    if (driver_fill(entries, sizeof entries / sizeof entries[0], &cu) != NULL)
        return -1;
    bad = cu.cuInit(0) != CUDA_SUCCESS;
    for (i = 0; i < 2; i++) {
        bad += cu.cuDevicePrimaryCtxRetain(&contexts[i], i) != CUDA_SUCCESS;
        bad += cu.cuCtxSetCurrent(contexts[i]) != CUDA_SUCCESS;
        bad += cu.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS;
        bad += w->ncclMemAlloc(&memory, 4096) != ncclSuccess;
        if (bad > 0)
            return -1;
        data[i] = memory;
        *data[i] = i == 0 ? 30 : 12;
    }
    bad += w->ncclCommInitAll(comms, 2, NULL) != ncclSuccess;
    bad += w->ncclGroupStart() != ncclSuccess;
    for (i = 0; i < 2 && bad == 0; i++)
        bad += w->ncclAllReduce(data[i], data[i], 1, ncclInt32, ncclSum, comms[i], streams[i]) !=
               ncclSuccess;
    bad += w->ncclGroupEnd() != ncclSuccess;
    for (i = 0; i < 2 && bad == 0; i++) {
        bad += cu.cuStreamSynchronize(streams[i]) != CUDA_SUCCESS;
        bad += w->ncclCommDestroy(comms[i]) != ncclSuccess;
    }
    result = *data[0] == *data[1] ? *data[0] : -1;
    for (i = 0; i < 2; i++) {
        bad += w->ncclMemFree(data[i]) != ncclSuccess;
        bad += cu.cuStreamDestroy(streams[i]) != CUDA_SUCCESS;
        bad += cu.cuDevicePrimaryCtxRelease(i) != CUDA_SUCCESS;
    }
    return bad == 0 ? result : -1;
}

#endif
