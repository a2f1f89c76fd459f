/* A fake libnccl.so.2 for examples/03_with_nccl and symwin-perf. The ranks are threads of this
 * process, and the host moves and adds: it can access memory of malloc and of the emulated driver.
 * It is strict: windows begin at multiples of 4 KiB, every object must be gone before its
 * communicator, and an all-to-all takes two buffers. A pre-multiplied sum is of f32.
 *
 * Calls run at once, and take registered buffers only; or, after fake_nccl_on(), in their stream.
 *
 * FAKE_NCCL=wrong gives wrong results, =null registers nothing, =refuse refuses to register 16 KiB
 * or more, =stuck deregisters but reports a failure, =old has no version. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

enum { MOST_RANKS = 16, PREMUL_SUM = 5 /* the only operation that is made, ncclNumOps */ };

typedef struct {
    char internal[128];
} ncclUniqueId;

struct range {
    const char *begin, *end;
    struct range *next;
};

/* What a call is made of: its kind of collective, or the transfers of a group. */
enum kind {
    ALLREDUCE,
    ALLGATHER,
    ALLTOALL,
    BROADCAST,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    REDUCE,
    GROUP
};

struct transfer {
    const char *in; /* NULL: it receives */
    char *out;
    size_t bytes;
    int peer;
};

struct call {
    struct ncclComm *comm;
    enum kind kind;
    const char *in;
    char *out;
    size_t count, bytes; /* bytes: of `count` elements */
    int type, op, root;
    float scalar;                              /* of this rank's elements */
    struct transfer transfers[2 * MOST_RANKS]; /* of a group */
    int transfer_count;
    struct call *next;
};

struct ncclComm {
    int rank;
    struct range *ranges;
    float scalar;       /* of PREMUL_SUM; 0: there is no such operation */
    struct call *calls; /* in a stream or a graph, as long as the communicator */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static int ranks; /* of the only communicator */
static struct call *current[MOST_RANKS];
static struct {
    int (*cuLaunchHostFunc)(void *stream, void (*fn)(void *), void *data);
    int (*cuMemAlloc)(unsigned long long *ptr, size_t size);
    int (*cuMemFree)(unsigned long long ptr);
} driver; /* NULL without fake_nccl_on() */
static _Thread_local struct call *group;
static _Thread_local void *group_stream;

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
    unsigned long long address = 0;

    if (driver.cuMemAlloc != NULL) {
        if (driver.cuMemAlloc(&address, size) != 0)
            return ncclUnhandledCudaError;
        *ptr = (void *)(uintptr_t)address;
        return ncclSuccess;
    }
    *ptr = aligned_alloc(2 << 20, (size + (2 << 20) - 1) / (2 << 20) * (2 << 20));
    return *ptr != NULL ? ncclSuccess : ncclUnhandledCudaError;
}

FAKE_API ncclResult_t ncclMemFree(void *ptr)
{
    if (driver.cuMemFree != NULL)
        return driver.cuMemFree((uintptr_t)ptr) == 0 ? ncclSuccess : ncclUnhandledCudaError;
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
    const ncclResult_t result = comm->ranges == NULL && comm->scalar == 0 ? ncclSuccess
                                                                          : ncclInvalidUsage;

    pthread_barrier_wait(&barrier);
    while (comm->calls != NULL) {
        struct call *next = comm->calls->next;

        free(comm->calls);
        comm->calls = next;
    }
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

/* ---- the collectives ---- */

static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* by ncclDataType_t */

/* Adds up f32 or i32, from element `first` of the inputs. */
static void add_up(const struct call *c, size_t first, char *to)
{
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < c->count; i++)
            if (c->type == 7)
                ((float *)(void *)to)[i] +=
                    current[r]->scalar * ((const float *)(const void *)current[r]->in)[first + i];
            else
                ((int *)(void *)to)[i] += ((const int *)(const void *)current[r]->in)[first + i];
}

/* What a peer sends to this rank. */
static const char *sent(const struct call *c, int peer)
{
    const struct call *from = current[peer];

    for (int i = 0; i < from->transfer_count; i++)
        if (from->transfers[i].in != NULL && from->transfers[i].peer == c->comm->rank)
            return from->transfers[i].in;
    abort(); /* nobody sends what this rank receives */
}

/* Writes this rank's output to `to`, and returns its bytes. */
static size_t compute(const struct call *c, char *to)
{
    const size_t me = (size_t)c->comm->rank;
    size_t got = 0;

    if ((c->kind == GATHER || c->kind == REDUCE) && c->comm->rank != c->root)
        return 0;
    if (c->kind == ALLREDUCE || c->kind == REDUCE || c->kind == REDUCE_SCATTER) {
        add_up(c, c->kind == REDUCE_SCATTER ? me * c->count : 0, to);
        got = c->bytes;
    } else if (c->kind == BROADCAST || c->kind == SCATTER) {
        memcpy(to, current[c->root]->in + (c->kind == SCATTER ? me * c->bytes : 0), c->bytes);
        got = c->bytes;
    } else if (c->kind != GROUP) {
        for (int r = 0; r < ranks; r++, got += c->bytes)
            memcpy(to + got, current[r]->in + (c->kind == ALLTOALL ? me * c->bytes : 0), c->bytes);
    }
    for (int i = 0; i < c->transfer_count; i++)
        if (c->transfers[i].in == NULL) {
            memcpy(to + got, sent(c, c->transfers[i].peer), c->transfers[i].bytes);
            got += c->transfers[i].bytes;
        }
    return got;
}

/* A rank's part of a call. Inputs and outputs may be the same memory. */
static void run(void *data)
{
    struct call *c = data;
    const size_t most = c->bytes * (size_t)ranks;
    char *result = calloc(1, most > 0 ? most : 1);
    size_t got;

    current[c->comm->rank] = c;
    pthread_barrier_wait(&barrier);
    got = compute(c, result);
    if (got > 0 && is("wrong"))
        result[got - 1] ^= 1;
    pthread_barrier_wait(&barrier);
    if (c->kind != GROUP && got > 0)
        memcpy(c->out, result, got);
    for (int i = 0, at = 0; i < c->transfer_count; i++)
        if (c->transfers[i].in == NULL) {
            memcpy(c->transfers[i].out, result + at, c->transfers[i].bytes);
            at += (int)c->transfers[i].bytes;
        }
    free(result);
    pthread_barrier_wait(&barrier);
}

static int is_registered(const struct ncclComm *comm, const void *ptr, size_t size)
{
    const struct range *range = comm->ranges;

    while (range != NULL &&
           ((const char *)ptr < range->begin || (const char *)ptr + size > range->end))
        range = range->next;
    return range != NULL;
}

static ncclResult_t queue(struct call model, void *stream)
{
    struct call *c;

    if (driver.cuLaunchHostFunc == NULL) { /* the program waits for the stream before and after */
        if (model.kind != ALLREDUCE || !is_registered(model.comm, model.in, model.bytes) ||
            !is_registered(model.comm, model.out, model.bytes))
            return ncclInvalidUsage;
        run(&model);
        return ncclSuccess;
    }
    c = malloc(sizeof *c);
    *c = model;
    c->next = c->comm->calls;
    c->comm->calls = c;
    return driver.cuLaunchHostFunc(stream, run, c) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t collective(enum kind kind, const void *in, void *out, size_t count, int type,
                               int op, int root, struct ncclComm *comm, void *stream)
{
    const int adds = kind == ALLREDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
    const struct call model = {.comm = comm,
                               .kind = kind,
                               .in = in,
                               .out = out,
                               .count = count,
                               .bytes = count * widths[type],
                               .type = type,
                               .op = op,
                               .scalar = op == PREMUL_SUM ? comm->scalar : 1,
                               .root = root};
    const int has_op = op == 0 || (op == PREMUL_SUM && comm->scalar != 0 && type == 7);

    if (root >= ranks || (adds && (!has_op || (type != 7 && type != 2))))
        return ncclInvalidArgument;
    if (kind == ALLTOALL && in == out)
        return ncclInvalidUsage;
    return queue(model, stream);
}

FAKE_API ncclResult_t ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence,
                                               struct ncclComm *comm)
{
    if (type != 7 || residence != 1 || comm->scalar != 0)
        return ncclInvalidArgument;
    *op = PREMUL_SUM;
    comm->scalar = *(const float *)scalar;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclRedOpDestroy(int op, struct ncclComm *comm)
{
    if (op != PREMUL_SUM || comm->scalar == 0)
        return ncclInvalidArgument;
    comm->scalar = 0;
    return ncclSuccess;
}

#define COLLECTIVE(name, kind, op, root, ...)                                                      \
    FAKE_API ncclResult_t name(const void *in, void *out, size_t count, int type, __VA_ARGS__)     \
    {                                                                                              \
        return collective(kind, in, out, count, type, op, root, comm, stream);                     \
    }

COLLECTIVE(ncclAllReduce, ALLREDUCE, op, 0, int op, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclAllGather, ALLGATHER, 0, 0, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclReduceScatter, REDUCE_SCATTER, op, 0, int op, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclBroadcast, BROADCAST, 0, root, int root, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclReduce, REDUCE, op, root, int op, int root, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclAlltoAll, ALLTOALL, 0, 0, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclGather, GATHER, 0, root, int root, struct ncclComm *comm, void *stream)
COLLECTIVE(ncclScatter, SCATTER, 0, root, int root, struct ncclComm *comm, void *stream)

/* ---- groups ---- */

FAKE_API ncclResult_t ncclGroupStart(void)
{
    if (group != NULL)
        return ncclInvalidUsage;
    group = calloc(1, sizeof *group);
    group->kind = GROUP;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclInvalidUsage;

    if (group != NULL)
        result = group->comm != NULL ? queue(*group, group_stream) : ncclSuccess;
    free(group);
    group = NULL;
    return result;
}

static ncclResult_t transfer(struct transfer t, struct ncclComm *comm, void *stream)
{
    if (group == NULL || t.peer >= ranks || group->transfer_count == 2 * MOST_RANKS)
        return ncclInvalidUsage;
    group->comm = comm;
    group->bytes = t.bytes;
    group_stream = stream;
    group->transfers[group->transfer_count++] = t;
    return ncclSuccess;
}

FAKE_API ncclResult_t ncclSend(const void *in, size_t count, int type, int peer,
                               struct ncclComm *comm, void *stream)
{
    return transfer((struct transfer){in, NULL, count * widths[type], peer}, comm, stream);
}

FAKE_API ncclResult_t ncclRecv(void *out, size_t count, int type, int peer, struct ncclComm *comm,
                               void *stream)
{
    return transfer((struct transfer){NULL, out, count * widths[type], peer}, comm, stream);
}

/* ---- on the emulated driver ---- */

/* symwin-perf takes an NCCL with this function on the emulated driver. */
FAKE_API void fake_nccl_on(int (*launch)(void *stream, void (*fn)(void *), void *data),
                           int (*alloc)(unsigned long long *ptr, size_t size),
                           int (*release)(unsigned long long ptr))
{
    driver.cuLaunchHostFunc = launch;
    driver.cuMemAlloc = alloc;
    driver.cuMemFree = release;
}

FAKE_API const char *ncclGetLastError(struct ncclComm *comm)
{
    (void)comm;
    return "of the fake";
}
