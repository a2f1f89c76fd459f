/* A profiler, the reason why NCCL has names that begin with p. */
#include <stdio.h>

#include "nccl.h"

FAKE_API ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    printf("tool\n");
    return pncclMemAlloc(ptr, size);
}

FAKE_API ncclResult_t ncclMemFree(void *ptr)
{
    printf("tool\n");
    return pncclMemFree(ptr);
}
