/* The part of NCCL's header that the programs here need. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <stddef.h>

#define FAKE_API __attribute__((visibility("default")))

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6
} ncclResult_t;

FAKE_API ncclResult_t ncclMemAlloc(void **ptr, size_t size);
FAKE_API ncclResult_t ncclMemFree(void *ptr);
FAKE_API ncclResult_t pncclMemAlloc(void **ptr, size_t size);
FAKE_API ncclResult_t pncclMemFree(void *ptr);

/* Calls that have reached the fake allocator. */
struct fake_nccl {
    int quiet; /* if set, it prints nothing */
    int allocs, frees, live;
    ncclResult_t (*alloc)(void **ptr, size_t size); /* its own, whoever stands before it */
};
FAKE_API struct fake_nccl *fake_nccl(void);

#endif
