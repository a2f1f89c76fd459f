/* Lives of communicators: many of them, their memory, births with a rank that is late, and calls
 * that a report counts. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "scenes.h"

enum { FLAG_LATE, FLAG_CALLED, FLAG_FAILED, FLAG_AGAIN };

static ncclComm_t split(ncclComm_t comm, int color, int key)
{
    ncclComm_t child = NULL;

    EXPECT(ncclCommSplit(comm, color, key, &child, NULL), ncclSuccess);
    return child;
}

static void sleep_a_little(void *data)
{
    (void)data;
    usleep(20000);
}

/* ---- many communicators ---- */

/* Some have a call of symwin's, some none. */
void scene_many(struct rank *rank)
{
    enum { MANY = SLOW ? 200 : 1000, ALIVE = 40, WITH_CALL = 8 };
    ncclComm_t base = birth(rank, 0), alive[ALIVE] = {NULL};
    struct left before;
    int i;

    EXPECT(sum(rank, base, 1), rank->ranks);
    alive[0] = split(base, 0, 0);
    EXPECT(sum(rank, alive[0], 1), rank->ranks);
    EXPECT(ncclCommDestroy(alive[0]), ncclSuccess);
    alive[0] = NULL;
    meet(rank);
    if (rank->thread == 0)
        before = left_before();
    meet(rank);
    for (i = 0; i < MANY; i++) {
        ncclComm_t *comm = &alive[i % ALIVE];
        const int halves = i % 3 == 0, parity = rank->rank % 2;

        EXPECT(ncclCommDestroy(*comm), ncclSuccess);
        *comm = split(base, halves ? parity : 0, i % 2 ? -rank->rank : 0);
        if (i % WITH_CALL == 0)
            EXPECT(sum(rank, *comm, 1), halves ? (rank->ranks + 1 - parity) / 2 : rank->ranks);
    }
    for (i = 0; i < ALIVE; i++)
        EXPECT(ncclCommDestroy(alive[i]), ncclSuccess);
    meet(rank);
    if (rank->thread == 0)
        left_is(&before, "many");
    meet(rank);
    EXPECT(sum(rank, base, 1), rank->ranks);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    EXPECT(ncclCommDestroy(base), ncclSuccess);
}

/* ---- memory ---- */

/* What the slots of symwin's communicator take. */
static size_t planned(int ranks)
{
    const char *text = getenv("SYMWIN_NCCL_MEMORY");
    const size_t most = (text != NULL ? strtoul(text, NULL, 10) : 64) << 20;
    size_t slot = (size_t)32 << 20;

    while (4 * (size_t)ranks * slot > most)
        slot /= 2;
    return 4 * (size_t)ranks * slot;
}

/* Each rank has a device of its own. Waits while the device has more than `bytes` used. */
static size_t used_at_last(const struct rank *rank, size_t bytes)
{
    const long long until = now_us() + 5000000;

    while (used_on(rank) > bytes && now_us() < until)
        usleep(1000);
    return used_on(rank);
}

void scene_memory(struct rank *rank)
{
    enum { COMMS = 32, WITH_CALL = 2 };
    const size_t each = planned(rank->ranks);
    const size_t more = ((size_t)rank->ranks + 1) * ((size_t)4 << 20); /* sends, and the rest */
    ncclComm_t comms[COMMS], base = birth(rank, 0);
    size_t before, used;
    void *data = room(4096); /* so that the pool of sum() is there */
    int i;

    meet(rank);
    before = used_on(rank);
    meet(rank);
    for (i = 0; i < COMMS; i++)
        comms[i] = split(base, 0, 0);
    EXPECT(used_on(rank), before);
    meet(rank);
    for (i = 0; i < WITH_CALL; i++)
        EXPECT(sum(rank, comms[i * (COMMS - 1)], 1), rank->ranks);
    used = used_on(rank) - before;
    if (!EXPECT(used >= WITH_CALL * each && used <= WITH_CALL * (each + more), 1))
        fprintf(stderr, "%zu bytes, planned are %zu\n", used, WITH_CALL * each);
    meet(rank);
    for (i = 0; i < COMMS; i++)
        EXPECT(ncclCommSuspend(comms[i], 0), ncclSuccess);
    EXPECT(used_at_last(rank, before), before);
    meet(rank);
    for (i = 0; i < COMMS; i++)
        EXPECT(ncclCommResume(comms[i]), ncclSuccess);
    EXPECT(used_on(rank), before);
    meet(rank);
    for (i = 0; i < COMMS; i += COMMS / 2)
        EXPECT(sum(rank, comms[i], 10), 10 * rank->ranks);
    EXPECT(used_on(rank) >= before + WITH_CALL * each, 1);
    meet(rank);
    for (i = 0; i < COMMS; i++)
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
    EXPECT(used_at_last(rank, before), before);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    EXPECT(ncclCommDestroy(base), ncclSuccess);
    room_free(data);
}

/* ---- only the first call waits on the host ---- */

/* The first calls are NCCL's, and the second ones symwin's: rank 0's returns before the others have
 * made theirs, whichever communicator they call first. SYMWIN_NCCL_SERVE=all, but no broadcasts and
 * sends. */
void scene_warm(struct rank *rank)
{
    const long long until = now_us() + 20000000;
    ncclComm_t comms[2] = {birth(rank, 0), birth(rank, 1)};
    int *data = room(4096), i;
    CUstream second;

    EXPECT(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (i = 0; i < 2; i++)
        EXPECT(ncclBroadcast(data, data, 1024, ncclInt32, 0, comms[i], rank->stream), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    data[0] = data[1] = 1;
    meet(rank);
    for (i = 0; i < 2; i++) {
        const int which = rank->rank == 0 ? i : 1 - i;

        while (rank->rank != 0 && atomic_load(&world->flags[FLAG_CALLED]) < 2 && now_us() < until)
            usleep(500);
        EXPECT(rank->rank == 0 || atomic_load(&world->flags[FLAG_CALLED]) == 2, 1);
        EXPECT(ncclAllReduce(data + which, data + which, 1, ncclInt32, ncclSum, comms[which],
                             which == 0 ? rank->stream : second),
               ncclSuccess);
        if (rank->rank == 0)
            flag_set(FLAG_CALLED);
    }
    EXPECT(drains(rank->stream) + drains(second), 2);
    EXPECT(data[0] == rank->ranks && data[1] == rank->ranks, 1);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    for (i = 0; i < 2; i++)
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
    EXPECT(cu.cuStreamDestroy(second), CUDA_SUCCESS);
    room_free(data);
}

/* ---- births that do not block ---- */

/* Polls it until it is ready. No call may block, but on a machine that is loaded a few are slow. */
static ncclResult_t poll(ncclComm_t comm)
{
    int polls = 0, slow = 0;
    ncclResult_t error;

    do {
        const long long before = now_us();

        error = state(comm);
        slow += now_us() - before > 250000;
        polls++;
        usleep(500);
    } while (error == ncclInProgress);
    EXPECT(slow <= polls / 50, 1);
    return error;
}

enum { HOW_ALONE, HOW_GROUP, HOWS };

/* Its first call is. */
static void is_in_progress(const struct rank *rank, ncclComm_t comm, int *data)
{
    ncclWindow_t window;
    ncclRedOp_t op;
    int two = 2;

    EXPECT(state(comm), ncclInProgress);
    EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream),
           ncclInvalidArgument);
    EXPECT(ncclCommSuspend(comm, 0), ncclInvalidArgument);
    EXPECT(ncclCommWindowRegister(comm, data, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
           ncclInvalidArgument);
    EXPECT(ncclRedOpCreatePreMulSum(&op, &two, ncclInt32, ncclScalarHostImmediate, comm),
           ncclInvalidArgument);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream),
           ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommWindowRegister(comm, data, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
           ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
}

/* *called: how often FLAG_CALLED was set. */
static void born_later(struct rank *rank, int how, int *called)
{
    const int late = how % rank->ranks, count = how == HOW_GROUP ? 2 : 1;
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    const unsigned before = calls(STAND_IN_ncclAllReduce);
    int *data = room(4096);
    ncclComm_t comms[2];
    int i;

    meet(rank);
    if (rank->rank == late) {
        usleep(400000);
        flag_set(FLAG_LATE);
    }
    if (how == HOW_GROUP)
        EXPECT(ncclGroupStart(), ncclSuccess);
    for (i = 0; i < count; i++)
        EXPECT(ncclCommInitRankConfig(&comms[i], rank->ranks, world->ids[2 * how + i], rank->rank,
                                      &config),
               how == HOW_GROUP ? ncclSuccess : ncclInProgress);
    if (how == HOW_GROUP)
        EXPECT(ncclGroupEnd(), ncclInProgress);
    for (i = count - 1; i >= 0; i--) {
        EXPECT(poll(comms[i]), ncclSuccess);
        EXPECT(atomic_load(&world->flags[FLAG_LATE]), how + 1);
    }
    for (i = 0; i < count; i++) {
        data[0] = rank->rank;
        *called += rank->ranks - 1;
        if (rank->rank == late)
            flag_wait(FLAG_CALLED, *called);
        EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comms[i], rank->stream),
               ncclInProgress);
        if (rank->rank != late) {
            is_in_progress(rank, comms[i], data);
            flag_set(FLAG_CALLED);
        }
        EXPECT(poll(comms[i]), ncclSuccess);
        EXPECT(drains(rank->stream), 1);
        EXPECT(data[1], rank->ranks * (rank->ranks - 1) / 2);
        EXPECT(sum(rank, comms[i], 1), rank->ranks);
        EXPECT(state(comms[i]), ncclSuccess);
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), before);
    for (i = 0; i < count; i++)
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
    room_free(data);
    meet(rank);
}

/* Rank 0's first call fails while it waits for the others. */
static void fails_later(struct rank *rank)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    int *data = room(4096);
    ncclComm_t comm;
    char text[64];

    EXPECT(ncclCommInitRankConfig(&comm, rank->ranks, world->ids[2 * HOWS], rank->rank, &config),
           ncclInProgress);
    EXPECT(poll(comm), ncclSuccess);
    meet(rank);
    if (rank->rank == 0) {
        const unsigned before = calls(STAND_IN_ncclCommGetAsyncError);

        snprintf(text, sizeof text, "ncclCommGetAsyncError:%u:%d", before + 1, ncclSystemError);
        setenv("STAND_IN_FAIL", text, 1);
        EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream),
               ncclInProgress);
        while (calls(STAND_IN_ncclCommGetAsyncError) <= before) /* by the thread */
            usleep(500);
        EXPECT(poll(comm), ncclSystemError);
        unsetenv("STAND_IN_FAIL");
        EXPECT(state(comm), ncclSystemError);
        flag_set(FLAG_FAILED);
    } else {
        flag_wait(FLAG_FAILED, 1);
    }
    EXPECT(ncclCommAbort(comm), ncclSuccess);
    room_free(data);
}

void scene_blocking(struct rank *rank)
{
    int how, called = 0;

    for (how = 0; how < HOWS; how++)
        born_later(rank, how, &called);
    fails_later(rank);
}

/* Configurations with limits: the ranks' least one holds, also for a child without a configuration,
 * and not for one that has another. A later communicator may have the handle of one that is gone.
 */
void scene_limits(struct rank *rank)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 1};
    ncclComm_t comms[5], gone;
    int i, again = 0;

    config.maxCTAs = 4 + (rank->rank != 0);
    EXPECT(ncclCommInitRankConfig(&comms[0], rank->ranks, world->ids[0], rank->rank, &config),
           ncclSuccess);
    comms[1] = split(comms[0], 0, 0);
    config.maxCTAs = INT_MIN;
    EXPECT(ncclCommSplit(comms[0], 0, 0, &comms[2], &config), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommSplit(comms[0], 0, 0, &comms[3], &config), ncclSuccess);
    config.maxCTAs = 4 + (rank->rank != 0);
    EXPECT(ncclCommSplit(comms[2], 0, 0, &comms[4], &config), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess); /* the handles are there now */
    for (i = 0; i < 5; i++)
        EXPECT(sum(rank, comms[i], 1), rank->ranks);
    for (i = 0; i < 5; i++)
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
    for (i = 1; i < 7; i += 2) {
        EXPECT(ncclCommInitRankConfig(&gone, rank->ranks, world->ids[i], rank->rank, &config),
               ncclSuccess);
        EXPECT(ncclCommDestroy(gone), ncclSuccess);
        EXPECT(ncclCommInitRank(&comms[0], rank->ranks, world->ids[i + 1], rank->rank),
               ncclSuccess);
        again |= comms[0] == gone;
        EXPECT(sum(rank, comms[0], 1), rank->ranks);
        EXPECT(ncclCommDestroy(comms[0]), ncclSuccess);
    }
    if (again)
        flag_set(FLAG_AGAIN);
    meet(rank);
    if (!SLOW) /* AddressSanitizer keeps what is freed */
        EXPECT(atomic_load(&world->flags[FLAG_AGAIN]) > 0, 1);
}

/* A window of ranks of which the last one does not block, or none does. */
void scene_coming_window(struct rank *rank)
{
    enum { BYTES = 4 << 20, COUNT = BYTES / sizeof(int) / (SLOW ? 16 : 1) };
    int *data = room(BYTES), try, i, wrong;

    for (try = 0; try < 4; try++) {
        const int blocks = try % 2 == 0 && rank->rank < rank->ranks - 1, grouped = try / 2;
        const ncclResult_t begun = blocks ? ncclSuccess : ncclInProgress;
        ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = blocks};
        ncclWindow_t window = NULL;
        ncclComm_t comm;

        EXPECT(ncclCommInitRankConfig(&comm, rank->ranks, world->ids[try], rank->rank, &config),
               begun);
        EXPECT(poll(comm), ncclSuccess);
        EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream), begun);
        EXPECT(poll(comm), ncclSuccess);
        EXPECT(drains(rank->stream), 1);
        if (grouped)
            EXPECT(ncclGroupStart(), ncclSuccess);
        EXPECT(ncclCommWindowRegister(comm, data, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC),
               grouped ? ncclSuccess : begun);
        if (grouped)
            EXPECT(ncclGroupEnd(), begun);
        EXPECT(poll(comm), ncclSuccess);
        EXPECT(window != NULL, 1);
        for (i = 0; i < COUNT; i++)
            data[i] = rank->rank + i;
        EXPECT(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, rank->stream),
               ncclSuccess);
        EXPECT(drains(rank->stream), 1);
        for (wrong = i = 0; i < COUNT; i++)
            wrong += data[i] != rank->ranks * (rank->ranks - 1) / 2 + rank->ranks * i;
        EXPECT(wrong, 0);
        EXPECT(ncclCommWindowDeregister(comm, window), ncclSuccess);
        EXPECT(ncclCommDestroy(comm), ncclSuccess);
        meet(rank);
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    room_free(data);
}

/* ---- ncclCommFinalize() ---- */

/* A call that begins a while later. */
static void call_late(const struct rank *rank, ncclComm_t comm, int *data)
{
    data[0] = 1;
    EXPECT(cu.cuLaunchHostFunc(rank->stream, sleep_a_little, NULL), CUDA_SUCCESS);
    EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream), ncclSuccess);
}

/* Whoever has served the communicator, what comes after it is NCCL's, which refuses it. */
static void is_final(const struct rank *rank, ncclComm_t comm, int *data)
{
    ncclWindow_t window;
    int turns;

    EXPECT(data[1], rank->ranks);
    for (turns = 0; turns < 500 && cu.cuStreamQuery(rank->stream) != CUDA_SUCCESS; turns++)
        usleep(1000); /* a kernel leaves its stream a moment after its last word */
    EXPECT(cu.cuStreamQuery(rank->stream), CUDA_SUCCESS);
    data[1] = 0;
    EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream),
           ncclInvalidUsage);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream),
           ncclInvalidUsage);
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT(ncclCommWindowRegister(comm, data, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
           ncclInvalidUsage);
    EXPECT(ncclCommFinalize(comm), ncclInvalidUsage);
    EXPECT(drains(rank->stream), 1);
    EXPECT(data[1], 0);
    EXPECT(state(comm), ncclSuccess);
    meet(rank);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

void scene_final(struct rank *rank)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    int *data = room(4096);
    ncclComm_t comm = birth(rank, 0);

    EXPECT(sum(rank, comm, 1), rank->ranks);
    call_late(rank, comm, data);
    EXPECT(ncclCommFinalize(comm), ncclSuccess); /* waits for the call */
    is_final(rank, comm, data);

    EXPECT(ncclCommInitRankConfig(&comm, rank->ranks, world->ids[1], rank->rank, &config),
           ncclInProgress);
    EXPECT(poll(comm), ncclSuccess);
    EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream), ncclInProgress);
    EXPECT(poll(comm), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    call_late(rank, comm, data);
    EXPECT(ncclCommFinalize(comm), ncclInProgress);
    EXPECT(poll(comm), ncclSuccess);
    is_final(rank, comm, data);
    room_free(data);
}

/* ---- calls to be counted ---- */

/* A child has made none of the calls, and reports none. Not under sanitizers, to which what the
 * parent's other threads hold is lost there. */
static void child_ends(void)
{
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    const pid_t child = fork();
    int status = 1;

    if (child == 0)
        exit(0);
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
#endif
}

/* The counts are in tests/programs/test_nccl_scenes.t. */
void scene_report(struct rank *rank)
{
    char *in = room((size_t)4 << 20), *out = room((size_t)4 << 20);
    ncclComm_t one = birth(rank, 0), two = birth(rank, 1);
    ncclRedOp_t op;
    float three = 3;
    int i;

    for (i = 0; i < 3; i++) /* 4 bytes */
        EXPECT(ncclAllReduce(in, out, 1, ncclFloat32, ncclSum, one, rank->stream), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess); /* the ranks of `two` have not met yet */
    EXPECT(ncclSend(in, 16, ncclInt8, 1 - rank->rank, two, rank->stream), ncclSuccess);
    EXPECT(ncclRecv(out, 16, ncclInt8, 1 - rank->rank, two, rank->stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    for (i = 0; i < 2; i++) /* 1000 bytes */
        EXPECT(ncclAllReduce(in, out, 250, ncclFloat32, ncclMax, one, rank->stream), ncclSuccess);
    EXPECT(ncclAllReduce(in, out, 512, ncclFloat16, ncclSum, two, rank->stream), ncclSuccess);
    EXPECT(ncclRedOpCreatePreMulSum(&op, &three, ncclFloat32, ncclScalarHostImmediate, one),
           ncclSuccess);
    EXPECT(ncclReduce(in, out, 65536, ncclFloat32, op, 0, one, rank->stream), ncclSuccess);
    EXPECT(ncclRedOpDestroy(op, one), ncclSuccess);
    EXPECT(ncclBroadcast(in, out, 100, ncclInt8, 0, one, rank->stream), ncclSuccess); /* NCCL's */
    EXPECT(ncclBcast(in, 100, ncclInt8, 0, two, rank->stream), ncclSuccess);
    EXPECT(ncclAllReduce(in, out, 0, ncclFloat32, ncclSum, one, rank->stream), ncclSuccess);
    EXPECT(ncclAllGather(in, out, 1 << 20, ncclUint8, two, rank->stream), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAlltoAll(in, out, 16, ncclInt64, two, rank->stream), ncclSuccess);
    EXPECT(ncclSend(in, 32, ncclInt8, (rank->rank + 1) % rank->ranks, two, rank->stream),
           ncclSuccess);
    EXPECT(ncclRecv(out, 32, ncclInt8, (rank->rank + rank->ranks - 1) % rank->ranks, two,
                    rank->stream),
           ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess); /* with one of NCCL's, both are */
    EXPECT(ncclAllReduce(in, out, 2, ncclFloat64, ncclSum, one, rank->stream), ncclSuccess);
    EXPECT(ncclBroadcast(in, out, 2, ncclInt8, 0, one, rank->stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclAllReduce(in, out, 1, ncclNumTypes, ncclSum, one, rank->stream),
           ncclInvalidArgument);
    EXPECT(cu.cuStreamSynchronize(rank->stream), CUDA_SUCCESS);
    child_ends();
    EXPECT(ncclCommDestroy(two), ncclSuccess);
    EXPECT(ncclCommDestroy(one), ncclSuccess);
    room_free(in);
    room_free(out);
}

/* ---- what calls cost the host: tests/nccl/cost ---- */

/* SCENES_CALLS=N: N times each rank makes an all-reduce, whoever serves it; SCENES_GROUP=K: a group
 * of K instead. */
void scene_cost(struct rank *rank)
{
    const char *calls = getenv("SCENES_CALLS"), *group = getenv("SCENES_GROUP");
    const int count = calls != NULL ? atoi(calls) : 10, each = group != NULL ? atoi(group) : 0;
    ncclComm_t comm = birth(rank, 0);
    int *data = room(64 * sizeof *data), i, k;

    for (i = 0; i < count; i++) {
        if (each > 0)
            EXPECT(ncclGroupStart(), ncclSuccess);
        for (k = 0; k < (each > 0 ? each : 1); k++)
            EXPECT(ncclAllReduce(data + k, data + k, 1, ncclInt32, ncclSum, comm, rank->stream),
                   ncclSuccess);
        if (each > 0)
            EXPECT(ncclGroupEnd(), ncclSuccess);
        EXPECT(cu.cuStreamSynchronize(rank->stream), CUDA_SUCCESS);
    }
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    room_free(data);
}
