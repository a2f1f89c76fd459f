/* A fake libnccl.so.2: only NCCL's allocator, with memory of malloc. It counts the calls that reach
 * it and prints each, unless it is told to be quiet. */
#include <stdio.h>
#include <stdlib.h>

#include "nccl.h"

enum { MOST = 64 };

static void *given[MOST];
static struct fake_nccl reached;

FAKE_API struct fake_nccl *fake_nccl(void)
{
    return &reached;
}

static ncclResult_t allocate(const char *name, void **ptr, size_t size)
{
    int i = 0;

    reached.allocs++;
    if (!reached.quiet)
        printf("fake %s %s%zu\n", name, ptr == NULL ? "NULL " : "", size);
    if (ptr == NULL)
        return ncclUnhandledCudaError; /* like cudaMalloc() */
    *ptr = NULL;
    if (size == 0)
        return ncclSuccess;
    while (i < MOST && given[i] != NULL)
        i++;
    if (i == MOST)
        return ncclUnhandledCudaError;
    *ptr = given[i] = malloc(64);
    reached.live++;
    return ncclSuccess;
}

static ncclResult_t give_back(const char *name, void *ptr)
{
    int i = 0;

    while (i < MOST && given[i] != ptr)
        i++;
    reached.frees++;
    if (!reached.quiet)
        printf("fake %s%s\n", name, i == MOST ? " of a stranger" : "");
    if (i == MOST)
        return ncclRemoteError; /* no other code here returns it */
    given[i] = NULL;
    reached.live--;
    free(ptr);
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    return allocate("ncclMemAlloc", ptr, size);
}

FAKE_API ncclResult_t ncclMemFree(void *ptr)
{
    return give_back("ncclMemFree", ptr);
}

FAKE_API ncclResult_t pncclMemAlloc(void **ptr, size_t size)
{
    return allocate("pncclMemAlloc", ptr, size);
}

FAKE_API ncclResult_t pncclMemFree(void *ptr)
{
    return give_back("pncclMemFree", ptr);
}
