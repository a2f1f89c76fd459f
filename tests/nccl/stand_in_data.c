/* What the stand-in for NCCL makes of data: types, operations, collectives, groups, graphs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stand_in_user.h"

enum { COUNT = 30000 /* i32: several times what a ring holds */ };

/* ---- every type and operation ---- */

/* 1 and 2 as bits, and what it takes to read others that are not subnormal. */
static const struct {
    size_t width;
    uint64_t one, two;
    int exponent, mantissa; /* 0: an integer */
} types[ncclNumTypes] = {
    [ncclInt8] = {1, 1, 2, 0, 0},
    [ncclUint8] = {1, 1, 2, 0, 0},
    [ncclInt32] = {4, 1, 2, 0, 0},
    [ncclUint32] = {4, 1, 2, 0, 0},
    [ncclInt64] = {8, 1, 2, 0, 0},
    [ncclUint64] = {8, 1, 2, 0, 0},
    [ncclFloat16] = {2, 0x3c00, 0x4000, 5, 10},
    [ncclFloat32] = {4, 0x3f800000, 0x40000000, 8, 23},
    [ncclFloat64] = {8, 0x3ff0000000000000, 0x4000000000000000, 11, 52},
    [ncclBfloat16] = {2, 0x3f80, 0x4000, 8, 7},
    [ncclFloat8e4m3] = {1, 0x38, 0x40, 4, 3},
    [ncclFloat8e5m2] = {1, 0x3c, 0x40, 5, 2},
};

static double number(ncclDataType_t type, const char *at)
{
    const int mantissa = types[type].mantissa;
    uint64_t bits = 0;

    memcpy(&bits, at, types[type].width);
    if (mantissa == 0)
        return (double)bits;
    return ldexp(1 + ldexp((double)(bits & ((1ull << mantissa) - 1)), -mantissa),
                 (int)(bits >> mantissa) - ((1 << (types[type].exponent - 1)) - 1));
}

static int is_two(int rank, size_t i)
{
    return (int)((i >> (rank % 8)) & 1);
}

static double wanted(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t i)
{
    double sum = 0, product = 1;

    for (int r = 0; r < ranks; r++) {
        sum += 1 + is_two(r, i);
        product *= 1 + is_two(r, i);
    }
    switch (op) {
    case ncclProd:
        return product;
    case ncclMax:
        return product > 1 ? 2 : 1;
    case ncclMin:
        return sum < 2 * ranks ? 1 : 2;
    case ncclAvg:
        return types[type].mantissa == 0 ? floor(sum / ranks) : sum / ranks;
    case ncclSum:
        return sum;
    default:
        return 2 * sum; /* pre-multiplied by 2 */
    }
}

static void one_type(struct rank *rank, ncclDataType_t type, ncclRedOp_t op, int in_place)
{
    enum { SMALL = 64 };
    const size_t width = types[type].width;
    char *in = room(SMALL * width), *out = in_place ? in : room(SMALL * width);
    int wrong = 0;

    for (size_t i = 0; i < SMALL; i++)
        memcpy(in + i * width, is_two(rank->rank, i) ? &types[type].two : &types[type].one, width);
    EXPECT(ncclAllReduce(in, out, SMALL, type, op, rank->comm, rank->stream), ncclSuccess);
    sync_stream(rank);
    for (size_t i = 0; i < SMALL; i++)
        wrong += number(type, out + i * width) != wanted(type, op, rank->ranks, i);
    if (!EXPECT(wrong, 0))
        fprintf(stderr, "of type %d, operation %d\n", (int)type, (int)op);
    if (!in_place)
        room_free(out);
    room_free(in);
}

/* Four ranks: all results are exact in all types. */
void test_types(struct rank *rank)
{
    for (int type = 0; type < ncclNumTypes; type++) {
        uint64_t two = types[type].two;
        ncclRedOp_t host, device;
        uint64_t *scalar = room(sizeof *scalar);

        for (int op = 0; op < ncclNumOps; op++)
            one_type(rank, (ncclDataType_t)type, (ncclRedOp_t)op, op % 2);
        EXPECT(ncclRedOpCreatePreMulSum(&host, &two, (ncclDataType_t)type, ncclScalarHostImmediate,
                                        rank->comm),
               ncclSuccess);
        EXPECT(ncclRedOpCreatePreMulSum(&device, scalar, (ncclDataType_t)type, ncclScalarDevice,
                                        rank->comm),
               ncclSuccess);
        *scalar = two;
        if (rank->ranks <= 4 && types[type].mantissa != 2) { /* 10 and 14 take three bits */
            one_type(rank, (ncclDataType_t)type, host, 0);
            one_type(rank, (ncclDataType_t)type, device, 1);
        }
        EXPECT(ncclRedOpDestroy(host, rank->comm), ncclSuccess);
        EXPECT(ncclRedOpDestroy(device, rank->comm), ncclSuccess);
        EXPECT(ncclRedOpDestroy(device, rank->comm), ncclInvalidArgument);
        room_free(scalar);
    }
}

/* ---- every collective ---- */

static int value(int from, int to, size_t i)
{
    return from * 1000003 + to * 10007 + (int)i;
}

static void fill(int *at, int from, int to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        at[i] = value(from, to, i);
}

static int differences(const int *at, int from, int to, size_t count)
{
    int wrong = 0;

    for (size_t i = 0; i < count; i++)
        wrong += at[i] != value(from, to, i);
    return wrong;
}

/* The sums of what all ranks have for `to`. */
static int wrong_sums(const int *at, int ranks, int to, size_t count)
{
    int wrong = 0;

    for (size_t i = 0; i < count; i++) {
        int sum = 0;

        for (int r = 0; r < ranks; r++)
            sum += value(r, to, i);
        wrong += at[i] != sum;
    }
    return wrong;
}

void test_collectives(struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks, root = ranks - 1;
    const size_t part = COUNT, all = part * (size_t)ranks;
    int *in = room(all * sizeof *in), *out = room(all * sizeof *out);
    const int served = getenv("STAND_IN_SERVED") != NULL; /* by what is preloaded */
    int wrong = 0;

#define COLLECTIVE(name, ...)                                                                      \
    EXPECT(name(__VA_ARGS__, rank->comm, rank->stream), ncclSuccess);                              \
    sync_stream(rank);
    for (int in_place = 0; in_place < 2; in_place++) {
        int *mine = in_place ? out + (size_t)me * part : in, *to = in_place ? in : out;

        fill(mine, me, 0, part);
        COLLECTIVE(ncclAllGather, mine, out, part, ncclInt32)
        for (int r = 0; r < ranks; r++)
            wrong += differences(out + (size_t)r * part, r, 0, part);
        EXPECT(wrong, 0);

        mine = in_place ? out + (size_t)me * part : in;
        memset(out, 0, all * sizeof *out);
        fill(mine, me, 0, part);
        COLLECTIVE(ncclGather, mine, out, part, ncclInt32, root)
        for (int r = 0; r < ranks; r++)
            wrong += me == root ? differences(out + (size_t)r * part, r, 0, part) : 0;
        EXPECT(wrong, 0);

        for (int r = 0; r < ranks; r++)
            fill(in + (size_t)r * part, me, r, part);
        to = in_place ? in + (size_t)me * part : out;
        COLLECTIVE(ncclReduceScatter, in, to, part, ncclInt32, ncclSum)
        EXPECT(wrong_sums(to, ranks, me, part), 0);

        for (int r = 0; r < ranks; r++)
            fill(in + (size_t)r * part, me, r, part);
        to = in_place && me == root ? in + (size_t)me * part : out;
        COLLECTIVE(ncclScatter, in, to, part, ncclInt32, root)
        EXPECT(differences(to, root, me, part), 0);

        to = in_place ? in : out;
        fill(in, me, 0, part);
        COLLECTIVE(ncclAllReduce, in, to, part, ncclInt32, ncclSum)
        EXPECT(wrong_sums(to, ranks, 0, part), 0);

        fill(in, me, 0, part);
        COLLECTIVE(ncclReduce, in, to, part, ncclInt32, ncclSum, root)
        EXPECT(me == root ? wrong_sums(to, ranks, 0, part) : 0, 0);

        fill(in, me, 0, part);
        COLLECTIVE(ncclBroadcast, in, to, part, ncclInt32, root)
        EXPECT(differences(to, root, 0, part), 0);
    }
    fill(in, me, 0, part);
    COLLECTIVE(ncclBcast, in, part, ncclInt32, 0)
    EXPECT(differences(in, 0, 0, part), 0);
    for (int r = 0; r < ranks; r++)
        fill(in + (size_t)r * part, me, r, part);
    COLLECTIVE(ncclAlltoAll, in, out, part, ncclInt32)
    for (int r = 0; r < ranks; r++)
        wrong += differences(out + (size_t)r * part, r, me, part);
    EXPECT(wrong, 0);
    COLLECTIVE(ncclAllReduce, NULL, NULL, 0, ncclInt32, ncclSum)
#undef COLLECTIVE
    EXPECT(atomic_load(&stand_in()->functions[STAND_IN_ncclBcast].calls),
           served ? 0 : rank->ranks / rank->processes);
    if (getenv("STAND_IN_HOSTS") == NULL) /* over several hosts symwin makes such calls as well */
        EXPECT(atomic_load(&stand_in()->functions[STAND_IN_ncclReduceScatter].calls) > 0, !served);
    room_free(in);
    room_free(out);
}

/* ---- groups ---- */

/* All to all by sends and receives, itself included; receives come first on odd ranks. */
static void exchange(struct rank *rank, ncclComm_t comm, int *in, int *out, size_t part)
{
    EXPECT(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < 2 * rank->ranks; r++) {
        const int peer = r % rank->ranks, sends = (r < rank->ranks) != (rank->rank % 2);

        if (sends)
            EXPECT(ncclSend(in + (size_t)peer * part, part, ncclInt32, peer, comm, rank->stream),
                   ncclSuccess);
        else
            EXPECT(ncclRecv(out + (size_t)peer * part, part, ncclInt32, peer, comm, rank->stream),
                   ncclSuccess);
    }
    EXPECT(ncclGroupEnd(), ncclSuccess);
}

void test_groups(struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks;
    const size_t part = COUNT, all = part * (size_t)ranks;
    int *in = room(all * sizeof *in), *out = room(all * sizeof *out),
        *sum = room(part * sizeof *in);
    ncclComm_t other;
    CUstream second;
    int wrong = 0;

    EXPECT(ncclCommInitRank(&other, ranks, world->ids[1], me), ncclSuccess);
    EXPECT(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (int r = 0; r < ranks; r++)
        fill(in + (size_t)r * part, me, r, part);
    EXPECT(ncclGroupStart(), ncclSuccess);
    exchange(rank, rank->comm, in, out, part); /* nested */
    EXPECT(ncclAllReduce(in, sum, part, ncclInt32, ncclSum, other, second), ncclSuccess);
    EXPECT(out[0], 0); /* nothing has begun */
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
    for (int r = 0; r < ranks; r++)
        wrong += differences(out + (size_t)r * part, r, me, part);
    EXPECT(wrong, 0);
    EXPECT(wrong_sums(sum, ranks, 0, part), 0);

    /* Several messages to one rank: they come in order. */
    fill(in, me, 0, all);
    EXPECT(ncclGroupStart(), ncclSuccess);
    for (size_t at = 0; at < all; at += part) {
        EXPECT(ncclSend(in + at, part, ncclInt32, (me + 1) % ranks, other, second), ncclSuccess);
        EXPECT(ncclRecv(out + at, part, ncclInt32, (me + ranks - 1) % ranks, other, second),
               ncclSuccess);
    }
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT(differences(out, (me + ranks - 1) % ranks, 0, all), 0);

    /* One communicator, two streams: the calls keep their order. */
    fill(in, me, 0, part);
    EXPECT(ncclAllReduce(in, sum, part, ncclInt32, ncclSum, other, rank->stream), ncclSuccess);
    EXPECT(ncclBroadcast(sum, out, part, ncclInt32, 0, other, second), ncclSuccess);
    EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT(wrong_sums(out, ranks, 0, part), 0);
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT(ncclCommFinalize(other), ncclSuccess);
    EXPECT(ncclCommDestroy(other), ncclSuccess);
    EXPECT(cu.cuStreamDestroy(second), CUDA_SUCCESS);
    room_free(in);
    room_free(out);
    room_free(sum);
}

/* A stream and memory on a device that some communicator holds. Device 0 is current again. */
static CUstream stream_on(CUdevice device, size_t bytes, void *data)
{
    CUstream stream = NULL;
    CUcontext context, first;
    void *memory;

    EXPECT(cu.cuDevicePrimaryCtxRetain(&first, 0), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    memory = room(bytes);
    memcpy(data, &memory, sizeof memory);
    EXPECT(cu.cuCtxSetCurrent(first), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    return stream;
}

/* One thread is several ranks: on several devices, a stream for each; on one device, a stream for
 * all, which only the stand-in can do. */
void test_one_thread(struct rank *rank)
{
    enum { MANY = 3 };
    static const int devices[2][MANY] = {{2, 0, 2}, {0, 0, 0}};
    const int common = getenv("STAND_IN_SERVED") == NULL;
    ncclComm_t comms[MANY];
    CUstream streams[MANY], own[MANY];
    ncclWindow_t windows[MANY];
    int *data[MANY];
    int device;

    for (int shared = 0; shared < 2; shared++) {
        EXPECT(ncclCommInitAll(comms, MANY, devices[shared]), ncclSuccess);
        EXPECT(ncclCommCuDevice(comms[2], &device), ncclSuccess);
        EXPECT(device, devices[shared][2]);
        EXPECT(atomic_load(&stand_in()->live), MANY);
        for (int i = 0; i < MANY; i++) {
            own[i] = stream_on(devices[shared][i], COUNT * sizeof *data[i], &data[i]);
            streams[i] = shared && common ? rank->stream : own[i];
            fill(data[i], i, 0, COUNT);
        }
        EXPECT(ncclGroupStart(), ncclSuccess);
        for (int i = 0; i < MANY; i++)
            EXPECT(ncclAllReduce(data[i], data[i], COUNT, ncclInt32, ncclSum, comms[i], streams[i]),
                   ncclSuccess);
        EXPECT(ncclGroupEnd(), ncclSuccess);
        for (int i = 0; i < MANY; i++) {
            EXPECT(cu.cuStreamSynchronize(streams[i]), CUDA_SUCCESS);
            EXPECT(wrong_sums(data[i], MANY, 0, COUNT), 0);
            EXPECT(cu.cuStreamDestroy(own[i]), CUDA_SUCCESS);
        }
        EXPECT(ncclGroupStart(), ncclSuccess);
        for (int i = 0; i < MANY; i++)
            EXPECT(ncclCommWindowRegister(comms[i], data[i], COUNT * sizeof *data[i], &windows[i],
                                          NCCL_WIN_COLL_SYMMETRIC),
                   ncclSuccess);
        EXPECT(ncclGroupEnd(), ncclSuccess);
        for (int i = 0; i < MANY; i++) {
            EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
            room_free(data[i]);
        }
    }
}

/* ---- graphs ---- */

/* A captured call runs at each launch, with what its buffer holds then. */
void test_capture(struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks;
    int *in = room(COUNT * sizeof *in), *out = room(COUNT * sizeof *out);
    CUgraph graph;
    CUgraphExec exec;

    EXPECT(cu.cuStreamBeginCapture(rank->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
           CUDA_SUCCESS);
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclSuccess);
    EXPECT(ncclBroadcast(out, out, COUNT, ncclInt32, 0, rank->comm, rank->stream), ncclSuccess);
    EXPECT(cu.cuStreamEndCapture(rank->stream, &graph), CUDA_SUCCESS);
    EXPECT(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT(out[0], 0);
    for (int replay = 0; replay < 3; replay++) {
        fill(in, me, replay, COUNT);
        EXPECT(cu.cuGraphLaunch(exec, rank->stream), CUDA_SUCCESS);
        sync_stream(rank);
        EXPECT(wrong_sums(out, ranks, replay, COUNT), 0);
    }
    EXPECT(cu.cuGraphExecDestroy(exec), CUDA_SUCCESS);
    room_free(in);
    room_free(out);
}
