/* What programs do around collectives: contexts, groups, streams, operations, configurations. With
 * the library of symwin some calls are symwin's; test_nccl_calls.t says how many NCCL may get. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stand_in_user.h"

enum { COUNT = 20000 };

static int is_served(void)
{
    return getenv("STAND_IN_SERVED") != NULL;
}

static int *numbers(int value)
{
    int *at = room(COUNT * sizeof *at);

    for (int i = 0; i < COUNT; i++)
        at[i] = value;
    return at;
}

static int others(const int *at, int value)
{
    int wrong = 0;

    for (int i = 0; i < COUNT; i++)
        wrong += at[i] != value;
    return wrong;
}

/* Fills a buffer a while after all that is before it in the stream. */
struct late {
    int *at;
    int value;
};

static void fill_late(void *data)
{
    const struct late *late = data;

    usleep(20000);
    for (int i = 0; i < COUNT; i++)
        late->at[i] = late->value;
}

/* ---- what a call leaves as it was ---- */

/* The first calls, while another device's context is current. */
void test_context(struct rank *rank)
{
    const CUdevice device = (rank->rank + 1) % 4;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext own, other, now;
    int *data = numbers(1);

    EXPECT(cu.cuCtxGetCurrent(&own), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRetain(&other, device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(other), CUDA_SUCCESS);
    for (int i = 0; i < 2; i++) {
        EXPECT(ncclAllReduce(data, data, COUNT, ncclInt32, ncclMax, rank->comm, rank->stream),
               ncclSuccess);
        EXPECT(cu.cuCtxGetCurrent(&now), CUDA_SUCCESS);
        EXPECT(now == other, 1);
        EXPECT(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
        EXPECT(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        EXPECT(cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    }
    EXPECT(cu.cuCtxSetCurrent(own), CUDA_SUCCESS);
    EXPECT(cu.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
    sync_stream(rank);
    EXPECT(others(data, 1), 0);
    room_free(data);
}

/* ---- groups ---- */

/* Sends that come first, and those of a group on two streams: what a stream has before its send and
 * behind its receive keeps its order. */
void test_pairs(struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks, right = (me + 1) % ranks,
              left = (me + ranks - 1) % ranks;
    int *in = numbers(me), *out = numbers(-1);
    struct late late = {in, 100 + me};
    CUstream second;

    EXPECT(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    if (me < 2) {
        EXPECT(ncclGroupStart(), ncclSuccess);
        EXPECT(ncclSend(in, COUNT, ncclInt32, !me, rank->comm, rank->stream), ncclSuccess);
        EXPECT(ncclRecv(out, COUNT, ncclInt32, !me, rank->comm, rank->stream), ncclSuccess);
        EXPECT(ncclGroupEnd(), ncclSuccess);
        sync_stream(rank);
        EXPECT(others(out, !me), 0);
    }
    EXPECT(ones(rank->comm, rank->stream), ranks);

    EXPECT(cu.cuLaunchHostFunc(second, fill_late, &late), CUDA_SUCCESS);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclRecv(out, COUNT, ncclInt32, left, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclSend(in, COUNT, ncclInt32, right, rank->comm, second), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(out, 100 + left), 0);
    EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);

    late.value = 200 + me;
    EXPECT(cu.cuLaunchHostFunc(rank->stream, fill_late, &late), CUDA_SUCCESS);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclSend(in, COUNT, ncclInt32, right, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclRecv(out, COUNT, ncclInt32, left, rank->comm, second), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT(others(out, 200 + left), 0);
    sync_stream(rank);

    late.value = -1; /* the same bytes by another type */
    fill_late(&late);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclSend(out, COUNT, ncclInt32, left, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclRecv(in, COUNT * sizeof *in, ncclInt8, right, rank->comm, rank->stream),
           ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(in, 200 + me), 0);
    EXPECT(cu.cuStreamDestroy(second), CUDA_SUCCESS);
    room_free(in);
    room_free(out);
}

/* Ranks call two communicators in one stream, each in another order. */
void test_crossed(struct rank *rank)
{
    const int odd = rank->rank % 2, ranks = rank->ranks;
    int *data[2] = {numbers(1), numbers(2)};
    ncclComm_t comms[2] = {rank->comm, NULL};

    EXPECT(ncclCommInitRank(&comms[1], ranks, world->ids[1], rank->rank), ncclSuccess);
    for (int k = 1; k < 3; k++) {
        EXPECT(ncclGroupStart(), ncclSuccess);
        for (int i = 0; i < 2; i++) {
            const int which = (i + odd) % 2;

            EXPECT(ncclAllReduce(data[which], data[which], COUNT, ncclInt32, ncclSum, comms[which],
                                 rank->stream),
                   ncclSuccess);
        }
        EXPECT(ncclGroupEnd(), ncclSuccess);
        sync_stream(rank);
        EXPECT(others(data[0], k == 1 ? ranks : ranks * ranks), 0);
        EXPECT(others(data[1], k == 1 ? 2 * ranks : 2 * ranks * ranks), 0);
    }
    EXPECT(ncclCommDestroy(comms[1]), ncclSuccess);
    room_free(data[0]);
    room_free(data[1]);
}

/* Two collectives in a group, and then one alone. */
void test_mixed(struct rank *rank)
{
    int *sum = numbers(1), *data = numbers(rank->rank + 5);

    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(sum, sum, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclSuccess);
    EXPECT(ncclBroadcast(data, data, COUNT, ncclInt32, 1, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclBroadcast(sum, data, COUNT, ncclInt32, 0, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(data, rank->ranks), 0);
    room_free(sum);
    room_free(data);
}

/* Nothing of a group that fails is launched; the next one is. */
void test_failed(struct rank *rank)
{
    int *in = numbers(1), *out = numbers(0);
    ncclWindow_t window;

    for (int k = 0; k < 3; k++) {
        EXPECT(ncclGroupStart(), ncclSuccess);
        EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
               ncclSuccess);
        EXPECT(k < 2
                   ? ncclBroadcast(in, in, COUNT, ncclInt32, rank->ranks, rank->comm, rank->stream)
                   : ncclCommWindowRegister(rank->comm, NULL, 4096, &window, 0),
               ncclInvalidArgument);
        EXPECT(ncclGroupEnd(), ncclInvalidArgument);
        sync_stream(rank);
        EXPECT(others(out, 0), 0);
    }
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(out, rank->ranks), 0);
    room_free(in);
    room_free(out);
}

/* ---- operations and configurations ---- */

/* Where the scalar is: what NCCL does not know it takes for the device. */
void test_premul(struct rank *rank)
{
    int *in = numbers(1), *out = numbers(0), *factor = room(sizeof *factor), three = 3;
    float half = 0.5f;
    ncclRedOp_t op, other;

    EXPECT(ncclRedOpCreatePreMulSum(&op, &three, ncclInt32, ncclScalarHostImmediate, rank->comm),
           ncclSuccess);
    EXPECT(
        ncclRedOpCreatePreMulSum(&other, &half, ncclFloat32, ncclScalarHostImmediate, rank->comm),
        ncclSuccess);
    three = 4;
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, other, rank->comm, rank->stream),
           ncclInvalidArgument);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, op, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclRedOpDestroy(op, rank->comm), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(out, 3 * rank->ranks), 0);
    EXPECT(ncclRedOpDestroy(op, rank->comm), ncclInvalidArgument);
    EXPECT(ncclRedOpDestroy(other, rank->comm), ncclSuccess);
    EXPECT(ncclAllReduce(in, out, COUNT, ncclFloat32, other, rank->comm, rank->stream),
           ncclInvalidArgument);
    *factor = 4;
    EXPECT(ncclRedOpCreatePreMulSum(&op, factor, ncclInt32, (ncclScalarResidence_t)2, rank->comm),
           ncclSuccess);
    *factor = 5;
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, op, rank->comm, rank->stream), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(out, 5 * rank->ranks), 0);
    EXPECT(ncclRedOpDestroy(op, rank->comm), ncclSuccess);
    room_free(factor);
    room_free(in);
    room_free(out);
}

/* One that sets nothing changes nothing. */
void test_configured(struct rank *rank)
{
    const ncclCollConfig_t plain = {.size = sizeof plain,
                                    .magic = NCCL_CONFIG_MAGIC,
                                    .minCTAs = INT_MIN,
                                    .maxCTAs = INT_MIN,
                                    .nvlsCTAs = INT_MIN,
                                    .cgaClusterSize = INT_MIN};
    ncclCollConfig_t more = plain, smaller = plain;
    const int me = rank->rank, ranks = rank->ranks, root = ranks - 1, part = COUNT / ranks;
    int *in = numbers(me + 1), *out = numbers(0), *third = numbers(me);

#define CONFIGURED(name, config, ...)                                                              \
    EXPECT(name##Config(in, out, __VA_ARGS__, rank->comm, rank->stream, config), ncclSuccess);     \
    sync_stream(rank);
    CONFIGURED(ncclAllReduce, &plain, COUNT, ncclInt32, ncclMax)
    EXPECT(others(out, ranks), 0);
    CONFIGURED(ncclReduce, NULL, COUNT, ncclInt32, ncclMin, root)
    EXPECT(others(out, me == root ? 1 : ranks), 0);
    CONFIGURED(ncclBroadcast, &plain, COUNT, ncclInt32, 1)
    EXPECT(others(out, 2), 0);
    CONFIGURED(ncclReduceScatter, &plain, (size_t)part, ncclInt32, ncclMax)
    EXPECT(out[0], ranks);
    CONFIGURED(ncclAllGather, &plain, (size_t)part, ncclInt32)
    EXPECT(out[part], 2);
    CONFIGURED(ncclScatter, &plain, (size_t)part, ncclInt32, root)
    EXPECT(out[0], ranks);
    CONFIGURED(ncclGather, &plain, (size_t)part, ncclInt32, root)
    EXPECT(out[0], me == root ? 1 : ranks);
    CONFIGURED(ncclAlltoAll, &plain, (size_t)part, ncclInt32)
    EXPECT(out[0], 1);
    EXPECT(out[part], 2);

    more.maxCTAs = 1;
    smaller.size = 8;
    CONFIGURED(ncclAllReduce, &more, COUNT, ncclInt32, ncclSum)
    CONFIGURED(ncclBroadcast, &more, COUNT, ncclInt32, 0)
    CONFIGURED(ncclAllReduce, &smaller, COUNT, ncclInt32, ncclMin)
    EXPECT(others(out, 1), 0);
    EXPECT(ncclGroupStart(), ncclSuccess);
    /* In place: once only. */
    EXPECT(
        ncclAllReduceConfig(out, out, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream, &more),
        ncclSuccess);
    EXPECT(ncclBroadcast(third, third, COUNT, ncclInt32, 1, rank->comm, rank->stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    sync_stream(rank);
    EXPECT(others(third, 1) + others(out, ranks), 0);
#undef CONFIGURED
    EXPECT(atomic_load(&stand_in()->functions[STAND_IN_ncclAllReduceConfig].calls) > 0, 1);
    EXPECT(is_served() || atomic_load(&stand_in()->functions[STAND_IN_ncclReduceConfig].calls) > 0,
           1);
    room_free(in);
    room_free(out);
    room_free(third);
}

/* ---- order ---- */

/* Calls on two streams, in turn, and one in a graph. */
void test_order(struct rank *rank)
{
    int *in = numbers(0), *sum = numbers(0), *out = numbers(0);
    struct late late = {in, 1};
    CUstream second;
    CUgraph graph;
    CUgraphExec exec;

    EXPECT(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT(ncclBroadcast(in, in, COUNT, ncclInt32, 0, rank->comm, rank->stream), ncclSuccess);
    for (int k = 1; k < 4; k++) {
        sync_stream(rank);
        late.value = k;
        EXPECT(cu.cuLaunchHostFunc(rank->stream, fill_late, &late), CUDA_SUCCESS);
        EXPECT(ncclAllReduce(in, sum, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
               ncclSuccess);
        EXPECT(ncclBroadcast(sum, out, COUNT, ncclInt32, 0, rank->comm, second), ncclSuccess);
        EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
        EXPECT(others(out, k * rank->ranks), 0);
        late.value = -k;
        EXPECT(cu.cuLaunchHostFunc(second, fill_late, &late), CUDA_SUCCESS);
        EXPECT(ncclBroadcast(in, out, COUNT, ncclInt32, 0, rank->comm, second), ncclSuccess);
        EXPECT(ncclAllReduce(out, sum, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
               ncclSuccess);
        sync_stream(rank);
        EXPECT(others(sum, -k * rank->ranks), 0);
    }
    EXPECT(cu.cuStreamBeginCapture(second, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    EXPECT(ncclBroadcast(sum, out, COUNT, ncclInt32, 0, rank->comm, second), ncclSuccess);
    EXPECT(cu.cuStreamEndCapture(second, &graph), CUDA_SUCCESS);
    EXPECT(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT(cu.cuGraphLaunch(exec, second), CUDA_SUCCESS);
    EXPECT(cu.cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT(others(out, -3 * rank->ranks), 0);
    EXPECT(cu.cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT(cu.cuStreamDestroy(second), CUDA_SUCCESS);
    room_free(in);
    room_free(sum);
    room_free(out);
}
