/* NCCL, a rival in the same process: loaded by dlopen, with NVLS off. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../rivals/multicast.h"
#include "../rivals/nccl.h"
#include "perf.h"

enum { NCCL_MOST_CTAS = 64 };

/* A function of the tests' stand-in for NCCL on the emulated driver. It takes what that needs. */
#define STAND_IN "fake_nccl_on"

static int version;

/* NCCL's values, by symwin_type and symwin_op. */
static const int types[] = {
    [SYMWIN_F64] = 8,     [SYMWIN_F32] = 7,     [SYMWIN_F16] = 6, [SYMWIN_BF16] = 9,
    [SYMWIN_F8E4M3] = 10, [SYMWIN_F8E5M2] = 11, [SYMWIN_I8] = 0,  [SYMWIN_U8] = 1,
    [SYMWIN_I32] = 2,     [SYMWIN_U32] = 3,     [SYMWIN_I64] = 4, [SYMWIN_U64] = 5};
static const int ops[] = {
    [SYMWIN_SUM] = 0, [SYMWIN_PROD] = 1, [SYMWIN_MIN] = 3,
    [SYMWIN_MAX] = 2, [SYMWIN_AVG] = 4,  [SYMWIN_PREMUL_SUM] = -1 /* made for each call */};

/* ---- loading ---- */

int rivals_without_multicast(void)
{
    char text[256];

    return rivals_multicast_off(text, sizeof text) == 0 || fail(SYMWIN_DENIED, "%s", text);
}

int rivals_limit(int sm_limit)
{
    const char *value = getenv("NCCL_MAX_CTAS");
    char text[16];

    snprintf(text, sizeof text, "%d", sm_limit < NCCL_MOST_CTAS ? sm_limit : NCCL_MOST_CTAS);
    if (value != NULL && strcmp(value, text) != 0)
        return fail(
            SYMWIN_INVALID,
            "NCCL_MAX_CTAS is \"%s\" and --sm-limit gives %s: set it to that or leave it unset",
            value, text);
    return setenv("NCCL_MAX_CTAS", text, 1) == 0 ||
           fail(SYMWIN_NO_MEMORY, "NCCL_MAX_CTAS cannot be set");
}

int rivals_found(void)
{
    return rivals_without_multicast() && nccl_open() != NULL;
}

int rivals_load(void)
{
    void (*begin)(CUresult(*)(CUstream, CUhostFn, void *), CUresult(*)(CUdeviceptr *, size_t),
                  CUresult(*)(CUdeviceptr)) = NULL;
    const char *missing;
    void *library, *stand_in;

    if (getenv("NCCL_NVLS_ENABLE") == NULL || strcmp(getenv("NCCL_NVLS_ENABLE"), "0") != 0)
        return fail(SYMWIN_DENIED, "NCCL is loaded only while NVLS is off");
    library = nccl_open();
    if (library == NULL)
        return fail(SYMWIN_UNSUPPORTED, "NCCL cannot be loaded (%s): set SYMWIN_NCCL to its path",
                    dlerror());
    missing = nccl_find(library);
    if (missing != NULL)
        return fail(SYMWIN_UNSUPPORTED, "this NCCL has no %s: 2.27 or later is needed", missing);
    stand_in = dlsym(library, STAND_IN);
    memcpy(&begin, &stand_in, sizeof begin);
    if (begin != NULL)
        begin(sw_drv.cuLaunchHostFunc, sw_drv.cuMemAlloc, sw_drv.cuMemFree);
    return nccl.ncclGetVersion(&version) == 0 || fail(SYMWIN_UNSUPPORTED, "ncclGetVersion failed");
}

int rivals_stand_in(void)
{
    void *library = nccl_open();

    return library != NULL && dlsym(library, STAND_IN) != NULL;
}

int rivals_version(void)
{
    return version;
}

/* ---- calls ---- */

static int check(const struct rank *r, int result, const char *call)
{
    if (result == 0)
        return 1;
    return fail(SYMWIN_DRIVER, "%s: %s (%s)", call, nccl.ncclGetErrorString(result),
                r->nccl != NULL ? nccl.ncclGetLastError(r->nccl) : "no communicator yet");
}

/* Rank 0 makes the id. It takes two agreements, since one carries fewer bytes than the id has. */
static int share_id(struct rank *r, nccl_unique_id *id)
{
    enum { WORDS = sizeof id->internal / 8, HALF = WORDS / 2 };
    uint64_t words[WORDS] = {0};
    int good = 1;

    if (r->rank == 0)
        good = check(r, nccl.ncclGetUniqueId(id), "ncclGetUniqueId");
    if (r->rank == 0 && good)
        memcpy(words, id->internal, sizeof words);
    for (int half = 0; half < 2; half++) {
        if (!meet(r, good, words + half * HALF, HALF))
            return 0;
        for (int i = 0; i < HALF; i++)
            words[half * HALF + i] = met(r, 0, i);
    }
    memcpy(id->internal, words, sizeof words);
    return 1;
}

int rival_open(struct rank *r)
{
    nccl_unique_id id;
    int good;

    if (!share_id(r, &id))
        return 0;
    stage_begin(r, "ncclCommInitRank");
    good = check(r, nccl.ncclCommInitRank(&r->nccl, r->job->nranks, id, r->rank),
                 "ncclCommInitRank");
    good = meet(r, good, NULL, 0);
    stage_end(r);
    return good;
}

void rival_close(struct rank *r)
{
    if (r->nccl == NULL)
        return;
    stage_begin(r, "ncclCommDestroy");
    if (nccl.ncclCommDestroy(r->nccl) != 0)
        fprintf(stderr, "symwin-perf: rank %d: ncclCommDestroy failed\n", r->rank);
    stage_end(r);
    r->nccl = NULL;
}

int rival_alloc(struct rank *r, size_t bytes, void **out)
{
    return check(r, nccl.ncclMemAlloc(out, bytes), "ncclMemAlloc");
}

void rival_free(void *memory)
{
    nccl.ncclMemFree(memory);
}

int rival_register(struct rank *r, void *memory, size_t bytes, int as_window, void **handle)
{
    const char *call = as_window ? "ncclCommWindowRegister" : "ncclCommRegister";
    int good;

    stage_begin(r, call);
    good = check(r,
                 as_window ? nccl.ncclCommWindowRegister(r->nccl, memory, bytes, handle,
                                                         NCCL_WIN_COLL_SYMMETRIC)
                           : nccl.ncclCommRegister(r->nccl, memory, bytes, handle),
                 call);
    stage_end(r);
    return good;
}

void rival_deregister(struct rank *r, int as_window, void *handle)
{
    if (as_window)
        nccl.ncclCommWindowDeregister(r->nccl, handle);
    else
        nccl.ncclCommDeregister(r->nccl, handle);
}

/* ---- the collectives ---- */

/* A rank's part of a call. */
struct call {
    const struct sw_collective *is;
    const void *in;
    void *out;
    size_t count, part; /* part: bytes of `count` elements */
    int type, op, root; /* NCCL's values */
    int rank, nranks;
    void *comm;
    CUstream stream;
};

/* Before 2.28: what each rank has for each other one, as sends and receives of one group. */
static int exchange(const struct call *c)
{
    int result = nccl.ncclGroupStart();

    for (int peer = 0; peer < c->nranks && result == 0; peer++) {
        const size_t at = (size_t)peer * c->part;

        if ((!c->is->root_sends || c->rank == c->root) &&
            (!c->is->root_receives || peer == c->root))
            result = nccl.ncclSend((const char *)c->in + (c->is->in_each ? at : 0), c->count,
                                   c->type, peer, c->comm, c->stream);
        if (result == 0 && (!c->is->root_sends || peer == c->root) &&
            (!c->is->root_receives || c->rank == c->root))
            result = nccl.ncclRecv((char *)c->out + (c->is->out_each ? at : 0), c->count, c->type,
                                   peer, c->comm, c->stream);
    }
    return result == 0 ? nccl.ncclGroupEnd() : result;
}

/* To the next rank, and from the one before. */
static int ncclSend_call(const struct call *c)
{
    const int next = (c->rank + 1) % c->nranks, before = (c->rank + c->nranks - 1) % c->nranks;
    int result = nccl.ncclGroupStart();

    if (result == 0)
        result = nccl.ncclSend(c->in, c->count, c->type, next, c->comm, c->stream);
    if (result == 0)
        result = nccl.ncclRecv(c->out, c->count, c->type, before, c->comm, c->stream);
    return result == 0 ? nccl.ncclGroupEnd() : result;
}

/* NCCL's function, or what replaces it where NCCL lacks it. */
#define CALL(name, ...)                                                                            \
    static int name##_call(const struct call *c)                                                   \
    {                                                                                              \
        return nccl.name != NULL ? nccl.name(__VA_ARGS__, c->comm, c->stream) : exchange(c);       \
    }
#define DATA c->in, c->out, c->count, c->type

CALL(ncclAllReduce, DATA, c->op)
CALL(ncclAllGather, DATA)
CALL(ncclAlltoAll, DATA)
CALL(ncclBroadcast, DATA, c->root)
CALL(ncclGather, DATA, c->root)
CALL(ncclScatter, DATA, c->root)
CALL(ncclReduceScatter, DATA, c->op)
CALL(ncclReduce, DATA, c->op, c->root)

static const struct {
    const char *name; /* NULL: NCCL has none */
    int (*call)(const struct call *c);
    int windows;     /* symmetric kernels, or copy engines with NCCL_CTA_POLICY=ZERO */
    int two_buffers; /* does not work in place */
} calls[PERF_COLLECTIVES] = {
#define NAMED(function) #function, function##_call
    [SYMWIN_ALLREDUCE] = {NAMED(ncclAllReduce), .windows = 1},
    [SYMWIN_ALLGATHER] = {NAMED(ncclAllGather), .windows = 1},
    [SYMWIN_ALLTOALL] = {NAMED(ncclAlltoAll), .windows = 1, .two_buffers = 1},
    [SYMWIN_BROADCAST] = {NAMED(ncclBroadcast), .windows = 0},
    [SYMWIN_GATHER] = {NAMED(ncclGather), .windows = 1},
    [SYMWIN_SCATTER] = {NAMED(ncclScatter), .windows = 1},
    [SYMWIN_REDUCE_SCATTER] = {NAMED(ncclReduceScatter), .windows = 1},
    [SYMWIN_REDUCE] = {NAMED(ncclReduce), .windows = 0},
    [PERF_SENDRECV] = {NAMED(ncclSend), .windows = 1},
};

int rival_group_begin(struct rank *r)
{
    return check(r, nccl.ncclGroupStart(), "ncclGroupStart");
}

int rival_group_end(struct rank *r)
{
    return check(r, nccl.ncclGroupEnd(), "ncclGroupEnd");
}

int rival_serves(symwin_collective collective, int as_window)
{
    return calls[collective].name != NULL && (!as_window || calls[collective].windows);
}

/* As PyTorch: the operation lives as long as the call. */
static int premultiplied(struct rank *r, const struct result *result, struct call *call)
{
    int good = check(r,
                     nccl.ncclRedOpCreatePreMulSum(&call->op, &r->scalar, call->type,
                                                   NCCL_SCALAR_HOST_IMMEDIATE, r->nccl),
                     "ncclRedOpCreatePreMulSum");

    if (!good)
        return 0;
    good = check(r, calls[result->collective].call(call), calls[result->collective].name);
    return check(r, nccl.ncclRedOpDestroy(call->op, r->nccl), "ncclRedOpDestroy") && good;
}

int rival_call(struct rank *r, const struct result *result, const void *in, void *out)
{
    struct call call = {.is = collective_of(result->collective),
                        .in = in,
                        .out = out,
                        .count = (size_t)result->count,
                        .part = (size_t)result->count * symwin_type_bytes(result->type),
                        .type = types[result->type],
                        .op = ops[result->op],
                        .root = r->job->options.root,
                        .rank = r->rank,
                        .nranks = r->job->nranks,
                        .comm = r->nccl,
                        .stream = r->stream};
    const char *name = calls[result->collective].name;

    if (result->in_place && calls[result->collective].two_buffers)
        return fail(SYMWIN_UNSUPPORTED, "%s does not work in place", name);
    return result->op == SYMWIN_PREMUL_SUM ? premultiplied(r, result, &call)
                                           : check(r, calls[result->collective].call(&call), name);
}
