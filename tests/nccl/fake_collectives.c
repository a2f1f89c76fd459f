/* A fake libnccl.so.2 for examples/03_with_nccl. The ranks are threads of this process, and the
 * host computes the sums: it can access memory of malloc and of the emulated driver. It is strict:
 * collectives take registered buffers only, windows begin at multiples of 4 KiB, and every object
 * must be gone before its communicator.
 *
 * FAKE_NCCL=wrong adds wrongly, =null registers nothing, =refuse refuses to register 16 KiB or
 * more, =stuck deregisters but reports a failure, =old has no version. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

enum { MOST_RANKS = 16 };

typedef struct {
    char internal[128];
} ncclUniqueId;

struct range {
    const char *begin, *end;
    struct range *next;
};

struct ncclComm {
    int rank;
    struct range *ranges;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static int ranks; /* of the only communicator */
static const float *inputs[MOST_RANKS];

static int is(const char *what)
{
    const char *text = getenv("FAKE_NCCL");

    return text != NULL && strcmp(text, what) == 0;
}

FAKE_API const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "invalid usage" : "another error";
}

FAKE_API ncclResult_t ncclGetVersion(int *version)
{
    *version = 22807;
    return is("old") ? ncclInternalError : ncclSuccess;
}

FAKE_API ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    *ptr = aligned_alloc(2 << 20, (size + (2 << 20) - 1) / (2 << 20) * (2 << 20));
    return *ptr != NULL ? ncclSuccess : ncclUnhandledCudaError;
}

FAKE_API ncclResult_t ncclMemFree(void *ptr)
{
    free(ptr);
    return ncclSuccess;
}

/* ---- communicators ---- */

FAKE_API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 5, sizeof *id);
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclCommInitRank(struct ncclComm **comm, int nranks, ncclUniqueId id,
                                       int rank)
{
    if (id.internal[127] != 5 || nranks > MOST_RANKS || rank >= nranks)
        return ncclInvalidArgument;
    pthread_mutex_lock(&mutex);
    if (ranks == 0)
        pthread_barrier_init(&barrier, NULL, (unsigned)nranks);
    ranks = nranks;
    pthread_mutex_unlock(&mutex);
    *comm = calloc(1, sizeof **comm);
    (*comm)->rank = rank;
    pthread_barrier_wait(&barrier);
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclCommDestroy(struct ncclComm *comm)
{
    const ncclResult_t result = comm->ranges == NULL ? ncclSuccess : ncclInvalidUsage;

    pthread_barrier_wait(&barrier);
    free(comm);
    return result;
}

/* ---- registration ---- */

FAKE_API ncclResult_t ncclCommRegister(struct ncclComm *comm, void *ptr, size_t size, void **handle)
{
    struct range *range = NULL;

    if (is("null"))
        return ncclSuccess;
    if (is("refuse") && size >= 16384)
        return ncclInvalidUsage;
    range = malloc(sizeof *range);
    *range = (struct range){ptr, (char *)ptr + size, comm->ranges};
    comm->ranges = range;
    *handle = range;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclCommDeregister(struct ncclComm *comm, void *handle)
{
    struct range **at = &comm->ranges;

    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    if (*at == NULL)
        return ncclInvalidUsage;
    *at = (*at)->next;
    free(handle);
    return is("stuck") ? ncclInternalError : ncclSuccess;
}

FAKE_API ncclResult_t ncclCommWindowRegister(struct ncclComm *comm, void *ptr, size_t size,
                                             void **window, int flags)
{
    pthread_barrier_wait(&barrier);
    if ((uintptr_t)ptr % 4096 != 0 || flags != 1)
        return ncclInvalidArgument;
    return ncclCommRegister(comm, ptr, size, window);
}

FAKE_API ncclResult_t ncclCommWindowDeregister(struct ncclComm *comm, void *window)
{
    return ncclCommDeregister(comm, window);
}

/* ---- the all-reduce ---- */

static int is_registered(const struct ncclComm *comm, const void *ptr, size_t size)
{
    const struct range *range = comm->ranges;

    while (range != NULL &&
           ((const char *)ptr < range->begin || (const char *)ptr + size > range->end))
        range = range->next;
    return range != NULL;
}

FAKE_API ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                                    struct ncclComm *comm, void *stream)
{
    const size_t size = count * sizeof(float);
    float *sums;
    size_t i;
    int r;

    (void)stream; /* the program waits for the stream before and after */
    if (!is_registered(comm, in, size) || !is_registered(comm, out, size) || type != 7 || op != 0)
        return ncclInvalidUsage;
    sums = calloc(count, sizeof *sums);
    inputs[comm->rank] = in;
    pthread_barrier_wait(&barrier);
    for (r = 0; r < ranks; r++)
        for (i = 0; i < count; i++)
            sums[i] += inputs[r][i];
    if (is("wrong"))
        sums[count - 1] += 1;
    pthread_barrier_wait(&barrier);
    memcpy(out, sums, size);
    free(sums);
    pthread_barrier_wait(&barrier);
    return ncclSuccess;
}
