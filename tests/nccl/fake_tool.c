/* A profiler, the reason why NCCL has names that begin with p. */
#include <dlfcn.h>
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

/* By RTLD_NEXT as this library sees it: not as a jump, by which the caller would be another. */
FAKE_API void *tool_next(const char *name);

FAKE_API void *tool_next(const char *name)
{
    void *volatile found = dlsym(RTLD_NEXT, name);

    return found;
}
