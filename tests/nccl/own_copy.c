/* A library with an NCCL of its own, as if linked in statically: the fake NCCL is part of it. */
#include "nccl.h"

FAKE_API ncclResult_t own_alloc(void **ptr, size_t size);
FAKE_API ncclResult_t own_free(void *ptr);

/* No jumps: who called would not show. */
FAKE_API ncclResult_t own_alloc(void **ptr, size_t size)
{
    volatile ncclResult_t result = ncclMemAlloc(ptr, size);

    return result;
}

FAKE_API ncclResult_t own_free(void *ptr)
{
    volatile ncclResult_t result = ncclMemFree(ptr);

    return result;
}
