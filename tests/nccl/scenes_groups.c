/* Groups of births, windows, operations and calls; and windows. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenes.h"

enum { COUNT = 2000 };

static void fill(int *data, int base)
{
    int i;

    for (i = 0; i < COUNT; i++)
        data[i] = base + i;
}

/* How many elements are not `times` those of fill(), summed over what the ranks begin with. */
static int wrong(const int *data, int ranks, int base, int times)
{
    int bad = 0, i;

    for (i = 0; i < COUNT; i++)
        bad += data[i] != times * (ranks * (base + i) + ranks * (ranks - 1) / 2);
    return bad;
}

static void reduce(const int *in, int *out, ncclRedOp_t op, ncclComm_t comm, CUstream stream)
{
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, op, comm, stream), ncclSuccess);
}

/* ---- one thread is all ranks ---- */

struct seat {
    ncclComm_t comms[2];
    CUstream stream;
    int *data[2];
};

static void take_seat(struct seat *seat, int device)
{
    CUcontext context;
    int i;

    EXPECT(cu.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT(cu.cuStreamCreate(&seat->stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (i = 0; i < 2; i++)
        seat->data[i] = room(COUNT * sizeof *seat->data[i]);
}

static void leave_seat(struct seat *seat, int device)
{
    int i;

    EXPECT(cu.cuStreamDestroy(seat->stream), CUDA_SUCCESS);
    for (i = 0; i < 2; i++) {
        if (seat->comms[i] != NULL)
            EXPECT(ncclCommDestroy(seat->comms[i]), ncclSuccess);
        room_free(seat->data[i]);
    }
    EXPECT(cu.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
}

static void use_seats(struct seat *seats, int how)
{
    int r, i;

    for (r = 0; r < DEVICES; r++)
        for (i = 0; i < 2; i++)
            fill(seats[r].data[i], 5 * i + how + r);
    EXPECT(ncclGroupStart(), ncclSuccess);
    for (r = 0; r < DEVICES; r++)
        for (i = 0; i < 2; i++)
            reduce(seats[r].data[i], seats[r].data[i], ncclSum, seats[r].comms[i], seats[r].stream);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    for (r = 0; r < DEVICES; r++) {
        EXPECT(drains(seats[r].stream), 1);
        for (i = 0; i < 2; i++)
            EXPECT(wrong(seats[r].data[i], DEVICES, 5 * i + how, 1), 0);
    }
}

/* Two communicators of four ranks: by ncclCommInitAll(), or by a group of births. */
void scene_all_at_once(struct rank *rank)
{
    static const int devices[DEVICES] = {0, 1, 2, 3};
    struct seat seats[DEVICES];
    ncclComm_t comms[DEVICES];
    CUcontext old;
    int how, i, r;

    EXPECT(rank->ranks, 1);
    EXPECT(cu.cuCtxGetCurrent(&old), CUDA_SUCCESS);
    for (how = 0; how < 2; how++) {
        for (r = 0; r < DEVICES; r++)
            take_seat(&seats[r], r);
        for (i = 0; i < 2 && how == 0; i++) {
            EXPECT(ncclCommInitAll(comms, DEVICES, i == 0 ? NULL : devices), ncclSuccess);
            for (r = 0; r < DEVICES; r++)
                seats[r].comms[i] = comms[r];
        }
        if (how == 1) {
            EXPECT(ncclGroupStart(), ncclSuccess);
            for (r = 0; r < DEVICES; r++) {
                CUcontext context;

                EXPECT(cu.cuDevicePrimaryCtxRetain(&context, r), CUDA_SUCCESS);
                EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
                for (i = 0; i < 2; i++)
                    EXPECT(ncclCommInitRank(&seats[r].comms[i], DEVICES, world->ids[i], r),
                           ncclSuccess);
                EXPECT(cu.cuDevicePrimaryCtxRelease(r), CUDA_SUCCESS);
            }
            EXPECT(ncclGroupEnd(), ncclSuccess);
        }
        use_seats(seats, how);
        use_seats(seats, how + 2);
        for (r = 0; r < DEVICES; r++)
            leave_seat(&seats[r], r);
        EXPECT(cu.cuCtxSetCurrent(old), CUDA_SUCCESS);
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
}

/* Without a group, since no call waits for the other ranks. */
void scene_one_by_one(struct rank *rank)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    struct seat seats[DEVICES];
    CUcontext old;
    int r, round;

    EXPECT(rank->ranks, 1);
    EXPECT(cu.cuCtxGetCurrent(&old), CUDA_SUCCESS);
    for (r = 0; r < DEVICES; r++) {
        take_seat(&seats[r], r);
        EXPECT(ncclCommInitRankConfig(&seats[r].comms[0], DEVICES, world->ids[0], r, &config),
               ncclInProgress);
    }
    for (round = 0; round < 3; round++) {
        for (r = 0; r < DEVICES; r++) {
            ncclResult_t result;

            while (state(seats[r].comms[0]) == ncclInProgress)
                usleep(500);
            fill(seats[r].data[0], round + r);
            result = ncclAllReduce(seats[r].data[0], seats[r].data[0], COUNT, ncclInt32, ncclSum,
                                   seats[r].comms[0], seats[r].stream);
            EXPECT(result, round == 0 ? ncclInProgress : ncclSuccess);
        }
        for (r = 0; r < DEVICES; r++) {
            while (state(seats[r].comms[0]) == ncclInProgress)
                usleep(500);
            EXPECT(state(seats[r].comms[0]), ncclSuccess);
            EXPECT(drains(seats[r].stream), 1);
            EXPECT(wrong(seats[r].data[0], DEVICES, round, 1), 0);
        }
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    for (r = 0; r < DEVICES; r++) {
        seats[r].comms[1] = NULL;
        leave_seat(&seats[r], r);
    }
    EXPECT(cu.cuCtxSetCurrent(old), CUDA_SUCCESS);
}

/* ---- births of several communicators ---- */

/* In nested groups, with a split, and with a window and calls in the next one. */
void scene_births(struct rank *rank)
{
    const int me = rank->rank, last = rank->ranks - 1;
    ncclComm_t one, two, child, none = (ncclComm_t)(void *)rank;
    ncclWindow_t windows[2] = {NULL};
    int *in = room(65536), *out = room(65536);
    char name[64];

    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommInitRank(&one, rank->ranks, world->ids[0], me), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommInitRank(&two, rank->ranks, world->ids[1], last - me), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommSplit(one, 0, -me, &child, NULL), ncclSuccess);
    EXPECT(ncclCommSplit(two, me == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(none == NULL, me == 0);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommWindowRegister(one, in, 65536, &windows[0], NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    EXPECT(ncclCommWindowRegister(child, out, 32768, &windows[1], NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(windows[0] != NULL && windows[1] != NULL, 1);
    EXPECT(sum(rank, one, me) + sum(rank, two, 1) + sum(rank, child, me),
           rank->ranks * last + rank->ranks);
    if (none != NULL)
        EXPECT(sum(rank, none, 1), last);
    meet(rank);
    EXPECT(dumped("window", "bytes=65536"), rank->ranks / rank->processes);
    EXPECT(dumped("window", "bytes=32768"), rank->ranks / rank->processes);
    snprintf(name, sizeof name, " name=nccl:%p", (void *)child);
    EXPECT(dumped("comm", name), 1);
    meet(rank);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    EXPECT(ncclCommWindowDeregister(one, windows[0]), ncclSuccess);
    EXPECT(ncclCommWindowDeregister(child, windows[1]), ncclSuccess);
    EXPECT(ncclCommDestroy(none), ncclSuccess);
    EXPECT(ncclCommDestroy(child), ncclSuccess);
    EXPECT(ncclCommDestroy(two), ncclSuccess);
    EXPECT(ncclCommDestroy(one), ncclSuccess);
    room_free(in);
    room_free(out);
}

/* ---- calls ---- */

struct team {
    struct rank *rank;
    ncclComm_t one, two;
    CUstream second;
    int *in, *out, *more;
};

/* SYMWIN_NCCL_SERVE=all,broadcast=none */
static int is_mixed(void)
{
    return strstr(getenv("SYMWIN_NCCL_SERVE"), "none") != NULL;
}

/* The operation is gone when the group is launched. */
static void destroy_inside(struct team *t, int on_device)
{
    int *two = room(sizeof *two);
    ncclRedOp_t op;

    *two = 2;
    fill(t->in, 3 + t->rank->rank);
    EXPECT(ncclRedOpCreatePreMulSum(&op, two, ncclInt32,
                                    on_device ? ncclScalarDevice : ncclScalarHostImmediate, t->one),
           ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    reduce(t->in, t->out, op, t->one, t->rank->stream);
    if (is_mixed()) /* so NCCL has both */
        EXPECT(ncclBroadcast(t->in, t->more, COUNT, ncclInt32, 0, t->one, t->rank->stream),
               ncclSuccess);
    EXPECT(ncclRedOpDestroy(op, t->one), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(drains(t->rank->stream), 1);
    EXPECT(wrong(t->out, t->rank->ranks, 3, 2), 0);
    EXPECT(ncclRedOpDestroy(op, t->one), ncclInvalidArgument);
    room_free(two);
}

/* Nothing begins before the outermost end. */
static void nest(struct team *t)
{
    fill(t->in, 7 + t->rank->rank);
    memset(t->out, 0, COUNT * sizeof *t->out);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    reduce(t->in, t->out, ncclSum, t->one, t->rank->stream);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(drains(t->rank->stream), 1);
    EXPECT(t->out[0], 0);
    reduce(t->in, t->more, ncclSum, t->two, t->second);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(drains(t->rank->stream) + drains(t->second), 2);
    EXPECT(wrong(t->out, t->rank->ranks, 7, 1), 0);
    EXPECT(wrong(t->more, t->rank->ranks, 7, 1), 0);
}

/* A group with a call that fails: nothing is launched. The next group works. */
static void fail(struct team *t, int first)
{
    memset(t->out, 0, COUNT * sizeof *t->out);
    EXPECT(ncclGroupStart(), ncclSuccess);
    if (!first)
        reduce(t->in, t->out, ncclSum, t->one, t->rank->stream);
    EXPECT(ncclBroadcast(t->in, t->out, COUNT, ncclInt32, t->rank->ranks, t->one, t->rank->stream),
           ncclInvalidArgument);
    if (first)
        reduce(t->in, t->out, ncclSum, t->two, t->rank->stream);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT(drains(t->rank->stream), 1);
    usleep(5000);
    EXPECT(t->out[0], 0);
    meet(t->rank);
}

/* Each rank calls the communicators in another order, on one stream or on two. */
static void cross(struct team *t, int streams)
{
    const int swapped = t->rank->rank % 2, me = t->rank->rank;
    CUstream other = streams == 2 ? t->second : t->rank->stream;
    int i;

    fill(t->in, 11 + me);
    for (i = 0; i < 4; i++) {
        EXPECT(ncclGroupStart(), ncclSuccess);
        if (!swapped)
            reduce(t->in, t->out, ncclSum, t->one, t->rank->stream);
        reduce(t->in, t->more, ncclSum, t->two, other);
        if (swapped)
            reduce(t->in, t->out, ncclSum, t->one, t->rank->stream);
        EXPECT(ncclGroupEnd(), ncclSuccess);
    }
    EXPECT(drains(t->rank->stream) + drains(other), 2);
    EXPECT(wrong(t->out, t->rank->ranks, 11, 1), 0);
    EXPECT(wrong(t->more, t->rank->ranks, 11, 1), 0);
}

static void *leave_open(void *data)
{
    struct team *t = data;
    CUcontext context;

    EXPECT(cu.cuDevicePrimaryCtxRetain(&context, t->rank->device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT(ncclGroupStart(), ncclSuccess);
    reduce(t->in, t->out, ncclSum, t->one, t->rank->stream);
    reduce(t->in, t->out, ncclSum, t->two, t->rank->stream);
    EXPECT(cu.cuDevicePrimaryCtxRelease(t->rank->device), CUDA_SUCCESS);
    return NULL;
}

void scene_groups(struct rank *rank)
{
    struct team t = {.rank = rank, .one = birth(rank, 0), .two = birth(rank, 1)};
    pthread_t thread;

    EXPECT(cu.cuStreamCreate(&t.second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    t.in = room(COUNT * sizeof *t.in);
    t.out = room(COUNT * sizeof *t.out);
    t.more = room(COUNT * sizeof *t.more);
    fail(&t, 0);
    cross(&t, 2); /* opens both */
    nest(&t);
    destroy_inside(&t, 0);
    destroy_inside(&t, 1);
    fail(&t, 0);
    fail(&t, 1);
    cross(&t, 1);
    cross(&t, 2);
    /* The communicators can be destroyed after that. */
    pthread_create(&thread, NULL, leave_open, &t);
    pthread_join(thread, NULL);
    EXPECT(sum(rank, t.one, 1), rank->ranks);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce) > 0, is_mixed());
    EXPECT(ncclCommDestroy(t.two), ncclSuccess);
    EXPECT(ncclCommDestroy(t.one), ncclSuccess);
    EXPECT(cu.cuStreamDestroy(t.second), CUDA_SUCCESS);
    room_free(t.in);
    room_free(t.out);
    room_free(t.more);
}

/* ---- whose a group is, by the table ---- */

/* A group of `many` all-reduces of `count` integers each; `nccls` is how many of them NCCL has. */
static void reduce_together(struct rank *rank, ncclComm_t comm, int many, size_t count,
                            unsigned nccls)
{
    const unsigned before = calls(STAND_IN_ncclAllReduce);
    int *const data = room(count * (size_t)many * sizeof *data);
    int i, bad = 0;

    for (i = 0; i < many; i++)
        data[(size_t)i * count] = i + rank->rank;
    meet(rank);
    EXPECT(ncclGroupStart(), ncclSuccess);
    for (i = 0; i < many; i++)
        EXPECT(ncclAllReduce(data + (size_t)i * count, data + (size_t)i * count, count, ncclInt32,
                             ncclSum, comm, rank->stream),
               ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    for (i = 0; i < many; i++)
        bad += data[(size_t)i * count] != rank->ranks * i + rank->ranks * (rank->ranks - 1) / 2;
    EXPECT(bad, 0);
    meet(rank);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce) - before,
                  nccls * (unsigned)(rank->ranks / rank->processes));
    meet(rank);
    room_free(data);
}

/* NCCL makes one launch of large calls in a group, and symwin one of each. */
void scene_together(struct rank *rank)
{
    enum { LARGE = (64 << 10) / 4 };
    ncclComm_t comm = birth(rank, 0);

    reduce_together(rank, comm, 1, LARGE, 0);
    reduce_together(rank, comm, 8, 2, 0);
    reduce_together(rank, comm, 12, LARGE, 12);
    reduce_together(rank, comm, 1, LARGE, 0);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

/* A communicator's first calls are a group, of which NCCL has a configured one at once: the ranks
 * do not meet in that group, where NCCL would keep the meeting's call back, but in the next. */
void scene_configured_first(struct rank *rank)
{
    const ncclCollConfig_t config = one_block();
    ncclComm_t comm = birth(rank, 0);
    int *data = room(COUNT * sizeof *data), *sums = room(COUNT * sizeof *sums), round;

    fill(data, rank->rank);
    for (round = 0; round < 2; round++) {
        const unsigned meetings = calls(STAND_IN_ncclAllGather);

        meet(rank);
        EXPECT(ncclGroupStart(), ncclSuccess);
        if (round == 0)
            EXPECT(
                ncclBroadcastConfig(data, data, COUNT, ncclInt32, 0, comm, rank->stream, &config),
                ncclSuccess);
        reduce(data, sums, ncclSum, comm, rank->stream);
        EXPECT(ncclGroupEnd(), ncclSuccess);
        EXPECT(drains(rank->stream), 1);
        meet(rank);
        EXPECT(calls(STAND_IN_ncclAllGather) > meetings, round == 1);
        meet(rank);
    }
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    room_free(data);
    room_free(sums);
}

/* ---- windows ---- */

/* Windows of symwin in this process, of as many bytes. */
static void has_windows(const struct rank *rank, const char *bytes, int each)
{
    meet(rank);
    EXPECT(dumped("window", bytes), each * (rank->ranks / rank->processes));
    meet(rank);
}

void scene_windows(struct rank *rank)
{
    const char *const first = "bytes=131072", *const second = "bytes=262144";
    void *one = room(131072), *two = room(262144);
    ncclWindow_t windows[3] = {NULL};
    ncclComm_t comm = birth(rank, 0);

    EXPECT(ncclCommWindowRegister(comm, one, 131072, &windows[0], NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    EXPECT(ncclCommWindowRegister(comm, two, 262144, &windows[1], 0), ncclSuccess);
    has_windows(rank, NULL, 0);
    EXPECT(sum(rank, comm, 1), rank->ranks); /* makes symwin's communicator */
    has_windows(rank, first, 1);
    has_windows(rank, second, 0); /* is not symmetric */
    EXPECT(ncclCommWindowRegister(comm, two, 262144, &windows[2], NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    has_windows(rank, second, 1);

    EXPECT(ncclAllReduce(one, one, 32768, ncclInt32, ncclSum, comm, rank->stream), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    EXPECT(ncclCommSuspend(comm, 0), ncclSuccess);
    has_windows(rank, NULL, 0);
    EXPECT(ncclCommResume(comm), ncclSuccess);
    EXPECT(sum(rank, comm, 1), rank->ranks);
    has_windows(rank, first, 1);
    has_windows(rank, second, 1);

    EXPECT(ncclCommWindowDeregister(comm, windows[0]), ncclSuccess);
    has_windows(rank, first, 0);
    EXPECT(ncclCommWindowDeregister(comm, windows[0]), ncclInvalidUsage);
    room_free(one);
    room_free(two); /* with its window still on it */
    has_windows(rank, NULL, 0);
    EXPECT(sum(rank, comm, 1), rank->ranks);
    EXPECT(ncclCommWindowDeregister(comm, windows[2]), ncclSuccess);
    EXPECT(ncclCommWindowDeregister(comm, windows[1]), ncclSuccess);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

struct late {
    int *data, base;
};

static void fill_late(void *data)
{
    const struct late *late = data;

    usleep(20000);
    fill(late->data, late->base);
}

/* Rank 0 has a send and an all-reduce in a group, rank 1 the all-reduce before the receive, whoever
 * serves them; also if the group is on a default stream, of which the thread's own is nobody
 * else's. And a communicator ends in a group. */
void scene_send_ahead(struct rank *rank)
{
    enum { BIG = 1 << 20 };
    ncclComm_t comm = birth(rank, 0);
    int *data = room(COUNT * sizeof *data), *big = room(BIG), round;
    struct late late = {data, 0};

    for (round = 0; round < 6; round++) {
        const CUstream streams[] = {rank->stream, CU_STREAM_PER_THREAD, NULL};
        const CUstream own = streams[round % 3];

        fill(data, rank->rank > 0 ? rank->rank : 9); /* which is too early */
        if (rank->rank == 0) {
            EXPECT(cu.cuLaunchHostFunc(own, fill_late, &late), CUDA_SUCCESS);
            EXPECT(ncclGroupStart(), ncclSuccess);
            EXPECT(ncclSend(big, BIG, ncclInt8, 1, comm, own), ncclSuccess);
            reduce(data, data, ncclSum, comm, own);
            EXPECT(ncclGroupEnd(), ncclSuccess);
            EXPECT(drains(own), 1);
        } else {
            reduce(data, data, ncclSum, comm, rank->stream);
            if (rank->rank == 1)
                EXPECT(ncclRecv(big, BIG, ncclInt8, 0, comm, rank->stream), ncclSuccess);
        }
        EXPECT(drains(rank->stream), 1);
        EXPECT(wrong(data, rank->ranks, 0, 1), 0);
    }
    room_free(data);
    room_free(big);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
}

/* ---- threads' own default streams ---- */

enum { OWN_CALLS = 4 };

struct own {
    struct rank *rank;
    ncclComm_t comms[2];
    int *data[OWN_CALLS];
    struct late late[OWN_CALLS];
    CUcontext context;
    ncclResult_t result;
};

static void begin_own(struct own *own, struct rank *rank, const ncclComm_t *comms)
{
    int i;

    *own = (struct own){.rank = rank};
    EXPECT(cu.cuCtxGetCurrent(&own->context), CUDA_SUCCESS);
    for (i = 0; i < OWN_CALLS; i++) {
        own->comms[i % 2] = comms[i % 2];
        own->data[i] = room(COUNT * sizeof *own->data[i]);
        own->late[i] = (struct late){own->data[i], rank->rank};
    }
}

static ncclResult_t reduce_all(const struct own *own)
{
    int i;

    EXPECT(ncclGroupStart(), ncclSuccess);
    for (i = 0; i < OWN_CALLS; i++)
        reduce(own->data[i], own->data[i], ncclSum, own->comms[i % 2], CU_STREAM_PER_THREAD);
    return ncclGroupEnd();
}

static void see_all(const struct own *own)
{
    int i;

    EXPECT(drains(CU_STREAM_PER_THREAD), 1);
    for (i = 0; i < OWN_CALLS; i++)
        EXPECT(wrong(own->data[i], own->rank->ranks, 0, 1), 0);
}

static void fill_all_late(struct own *own)
{
    int i;

    for (i = 0; i < OWN_CALLS; i++) {
        fill(own->data[i], 9);
        EXPECT(cu.cuLaunchHostFunc(CU_STREAM_PER_THREAD, fill_late, &own->late[i]), CUDA_SUCCESS);
    }
}

static void *reduce_at_once(void *data)
{
    struct own *own = data;

    EXPECT(cu.cuCtxSetCurrent(own->context), CUDA_SUCCESS);
    fill_all_late(own);
    own->result = reduce_all(own);
    see_all(own);
    return NULL;
}

static void *capture_as_well(void *data)
{
    struct own *own = data;
    CUgraph graph = NULL;

    EXPECT(cu.cuCtxSetCurrent(own->context), CUDA_SUCCESS);
    EXPECT(cu.cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
           CUDA_SUCCESS);
    own->result = reduce_all(own);
    EXPECT(cu.cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph), CUDA_SUCCESS);
    EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
    return NULL;
}

/* In another thread, while this one captures its own default stream. */
static ncclResult_t beside_a_capture(struct own *other, void *(*run)(void *data))
{
    pthread_t thread;

    EXPECT(pthread_create(&thread, NULL, run, other), 0);
    pthread_join(thread, NULL);
    return other->result;
}

/* Groups of two communicators on threads' own default streams: at once, in a capture, in another
 * thread beside one, and in two captures at a time, which over several hosts is refused. */
void scene_own_streams(struct rank *rank)
{
    const ncclComm_t comms[2] = {birth(rank, 0), birth(rank, 1)};
    struct own own, other;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    int second, i;

    begin_own(&own, rank, comms);
    begin_own(&other, rank, comms);
    EXPECT(reduce_at_once(&own) == NULL && own.result == ncclSuccess, 1);
    for (second = 0; second < 2; second++) {
        meet(rank);
        EXPECT(cu.cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
               CUDA_SUCCESS);
        EXPECT(reduce_all(&own), ncclSuccess);
        meet(rank); /* one that is refused ends the communicator */
        EXPECT(beside_a_capture(&other, second ? capture_as_well : reduce_at_once),
               second && is_set("STAND_IN_HOSTS") ? ncclInvalidUsage : ncclSuccess);
        EXPECT(cu.cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph), CUDA_SUCCESS);
        EXPECT(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
        EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
        for (i = 0; i < 2 && !second; i++) {
            fill_all_late(&own);
            EXPECT(cu.cuGraphLaunch(exec, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
            see_all(&own);
        }
        EXPECT(cu.cuGraphExecDestroy(exec), CUDA_SUCCESS);
    }
    meet(rank);
    for (i = 0; i < 2; i++)
        EXPECT(ncclCommAbort(comms[i]), ncclSuccess);
    for (i = 0; i < OWN_CALLS; i++) {
        room_free(own.data[i]);
        room_free(other.data[i]);
    }
}
