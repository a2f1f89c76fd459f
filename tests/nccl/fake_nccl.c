/* A fake libnccl.so.2: NCCL's allocator, with memory of malloc, and three functions that print
 * their arguments. It counts the allocator's calls and prints each, unless it is told to be
 * quiet. */
#include <stdio.h>
#include <stdlib.h>

#include "passed.h"

enum { MOST = 64 };

static void *given[MOST];
static ncclResult_t own_alloc(void **ptr, size_t size);
static struct fake_nccl reached = {.alloc = own_alloc};

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

static ncclResult_t own_alloc(void **ptr, size_t size)
{
    return allocate("ncclMemAlloc", ptr, size);
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
    return own_alloc(ptr, size);
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

/* ---- passed on by libsymwin-nccl.so ---- */

FAKE_API ncclResult_t ncclReduce(const void *in, void *out, size_t count, int type, int op,
                                 int root, void *comm, void *stream)
{
    printf("fake ncclReduce %zu %zu %zu %d %d %d %zu %zu\n", (size_t)in, (size_t)out, count, type,
           op, root, (size_t)comm, (size_t)stream);
    return ncclRemoteError;
}

FAKE_API ncclResult_t ncclCommInitRank(void **comm, int nranks, ncclUniqueId id, int rank)
{
    int sum = 0, i;

    for (i = 0; i < (int)sizeof id.internal; i++)
        sum += id.internal[i] * (i + 1);
    printf("fake ncclCommInitRank %d %d %d\n", nranks, sum, rank);
    *comm = NULL;
    return ncclInternalError;
}

FAKE_API const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote" : "another";
}
