/* The lives of communicators of the stand-in for NCCL: births from others, births in the
 * background, windows, bad arguments, lost ranks, injected faults. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stand_in_user.h"

enum { FLAG_SEEN, FLAG_DONE };

static ncclResult_t state(ncclComm_t comm)
{
    ncclResult_t error = ncclNumResults;

    EXPECT(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    return error;
}

static unsigned calls(int function)
{
    return atomic_load(&stand_in()->functions[function].calls);
}

static int rank_in(ncclComm_t comm)
{
    int rank = -1;

    EXPECT(ncclCommUserRank(comm, &rank), ncclSuccess);
    return rank;
}

/* The sum of what all ranks of `comm` give; 0 if there is none. */
static long long sum(const struct rank *rank, ncclComm_t comm, long long mine)
{
    long long *data = room(sizeof *data), result;
    ncclResult_t called;

    *data = mine;
    called = ncclAllReduce(data, data, 1, ncclInt64, ncclSum, comm, rank->stream);
    if (called != ncclInProgress) /* as of a communicator that does not block */
        EXPECT(called, ncclSuccess);
    EXPECT(wait_ready(comm), ncclSuccess);
    sync_stream(rank);
    result = state(comm) == ncclSuccess ? *data : 0;
    room_free(data);
    return result;
}

/* A rank's part of a communicator of all. */
static ncclComm_t begin(const struct rank *rank)
{
    ncclComm_t comm = NULL;

    if (!EXPECT(ncclCommInitRank(&comm, rank->ranks, world->ids[0], rank->rank), ncclSuccess))
        exit(1);
    return comm;
}

/* ---- births ---- */

/* Colours, keys in reverse, a rank without a colour; then a split of a split, and a shrink. */
void test_children(struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks;
    ncclComm_t half, quarter, fewer, none = rank->comm;
    int first = 0, count = 0;

    EXPECT(ncclCommSplit(rank->comm, me % 2, -me, &half, NULL), ncclSuccess);
    EXPECT(ncclCommCount(half, &count), ncclSuccess);
    EXPECT(count, me % 2 ? ranks / 2 : (ranks + 1) / 2);
    EXPECT(rank_in(half), (ranks - 1 - me) / 2);
    EXPECT(sum(rank, half, 1), count);

    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommSplit(half, 0, 0, &quarter, NULL), ncclSuccess);
    EXPECT(ncclCommSplit(rank->comm, me == 0 ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, NULL),
           ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(rank_in(quarter), rank_in(half));
    EXPECT(none == NULL, me == 0);
    if (none != NULL)
        EXPECT(sum(rank, none, 10), 10 * (ranks - 1));
    EXPECT(ncclCommDestroy(none), ncclSuccess);
    EXPECT(ncclCommDestroy(quarter), ncclSuccess);
    EXPECT(ncclCommDestroy(half), ncclSuccess);

    for (int i = 0; i < 40; i++) { /* a rank may leave before another sees that it came */
        EXPECT(ncclCommSplit(rank->comm, 0, 0, &half, NULL), ncclSuccess);
        EXPECT(ncclCommDestroy(half), ncclSuccess);
    }
    if (me != 0) {
        EXPECT(ncclCommShrink(rank->comm, &first, 1, &fewer, NULL, 0), ncclSuccess);
        EXPECT(rank_in(fewer), me - 1);
        EXPECT(sum(rank, fewer, 1), ranks - 1);
        EXPECT(ncclCommDestroy(fewer), ncclSuccess);
    }
    EXPECT(sum(rank, rank->comm, me), ranks * (ranks - 1) / 2);
}

/* The last rank comes later. */
void test_growth(struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks, old = ranks - 1;
    ncclComm_t comm = NULL, more;

    if (me < old) {
        EXPECT(ncclCommInitRankScalable(&comm, old, me, 1, &world->ids[0], NULL), ncclSuccess);
        EXPECT(ncclCommGrow(comm, ranks, me == 0 ? &world->ids[1] : NULL, -1, &more, NULL),
               ncclSuccess);
    } else {
        EXPECT(ncclCommGrow(NULL, ranks, &world->ids[1], me, &more, NULL), ncclSuccess);
    }
    EXPECT(rank_in(more), me);
    EXPECT(sum(rank, more, 1), ranks);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    EXPECT(ncclCommDestroy(more), ncclSuccess);
}

/* Others come when rank 0 has seen that its birth goes on. */
void test_not_blocking(struct rank *rank)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    ncclComm_t comm = NULL, child, same;
    ncclWindow_t window = NULL;
    void *data = room(4096), *ptr = NULL;
    int count = 0;

    if (rank->rank != 0)
        flag_wait(FLAG_SEEN, 1);
    EXPECT(ncclCommInitRankConfig(&comm, rank->ranks, world->ids[0], rank->rank, &config),
           ncclInProgress);
    if (rank->rank == 0) {
        EXPECT(state(comm), ncclInProgress);
        EXPECT(ncclCommCount(comm, &count), ncclInvalidArgument);
        EXPECT(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument);
        flag_set(FLAG_SEEN);
    }
    EXPECT(wait_ready(comm), ncclSuccess);
    EXPECT(sum(rank, comm, 1), rank->ranks);
    EXPECT(ncclCommWindowRegister(comm, data, 4096, &window, 0), ncclInProgress);
    EXPECT(wait_ready(comm), ncclSuccess);
    EXPECT(ncclWinGetUserPtr(comm, window, &ptr), ncclSuccess);
    EXPECT(ptr == data, 1);
    room_free(data);

    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess); /* as its parent */
    EXPECT(ncclGroupEnd(), ncclInProgress);
    EXPECT(wait_ready(child), ncclSuccess);
    config.blocking = 1;
    EXPECT(ncclCommSplit(comm, 0, 0, &same, &config), ncclSuccess);
    EXPECT(sum(rank, same, 1) + sum(rank, child, 1), 2 * rank->ranks);
    EXPECT(ncclCommDestroy(same), ncclSuccess);
    EXPECT(ncclCommDestroy(child), ncclSuccess);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);

    config.blocking = 0; /* aborted before the others have come */
    EXPECT(ncclCommInitRankConfig(&comm, rank->ranks + 1, world->ids[1], rank->rank, &config),
           ncclInProgress);
    EXPECT(ncclCommAbort(comm), ncclSuccess);
}

/* ---- what a communicator keeps ---- */

void test_registration(struct rank *rank)
{
    enum { BYTES = 8192 };
    char *data = room(BYTES);
    ncclWindow_t first = NULL, second = NULL;
    void *handle = NULL, *ptr = NULL;

    EXPECT(ncclCommWindowRegister(rank->comm, data, BYTES, &first, NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommWindowRegister(rank->comm, data + 4096, 4096, &second, 0), ncclSuccess);
    EXPECT(second == NULL, 1);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclWinGetUserPtr(rank->comm, second, &ptr), ncclSuccess);
    EXPECT(ptr == data + 4096, 1);
    EXPECT(ncclCommRegister(rank->comm, data, BYTES, &handle), ncclSuccess);
    EXPECT(ncclCommWindowDeregister(rank->comm, (ncclWindow_t)handle), ncclInvalidUsage);
    EXPECT(ncclCommDeregister(rank->comm, handle), ncclSuccess);
    EXPECT(ncclCommDeregister(rank->comm, handle), ncclInvalidUsage);
    EXPECT(ncclCommWindowDeregister(rank->comm, first), ncclSuccess);
    EXPECT(ncclCommWindowRegister(rank->comm, data + 1, 1, &first, 0), ncclInvalidArgument);
    EXPECT(ncclCommSuspend(rank->comm, 0), ncclSuccess);
    EXPECT(ncclAllReduce(data, data, 1, ncclInt8, ncclSum, rank->comm, rank->stream),
           ncclInvalidUsage);
    EXPECT(ncclCommResume(rank->comm), ncclSuccess);
    EXPECT(ncclCommResume(rank->comm), ncclInvalidUsage);
    EXPECT(sum(rank, rank->comm, 1), rank->ranks);
    room_free(data);
}

void test_arguments(struct rank *rank)
{
    ncclConfig_t config = {.magic = 1};
    ncclComm_t comm = rank->comm, bad = NULL;
    ncclUniqueId id = world->ids[1];
    int data[2] = {0}, version = 0;
    ncclResult_t result;

#define ALL_REDUCE(in, count, type, op, on)                                                        \
    ncclAllReduce(in, data, count, (ncclDataType_t)(type), (ncclRedOp_t)(op), on, rank->stream)
    EXPECT(ALL_REDUCE(data, 1, ncclInt32, ncclSum, NULL), ncclInvalidArgument);
    if (rank->processes == rank->ranks) /* the text is the process's */
        EXPECT(strcmp(ncclGetLastError(NULL), "AllReduce : comm argument is NULL"), 0);
    EXPECT(ALL_REDUCE(data, 1, ncclInt32, ncclSum, (ncclComm_t)(void *)data), ncclInvalidArgument);
    if (rank->processes == rank->ranks)
        EXPECT(strcmp(ncclGetLastError(NULL), "AllReduce : corrupted comm object detected") != 0 &&
                   strcmp(ncclGetLastError(NULL),
                          "CommUserRank : corrupted comm object detected") != 0, /* symwin asks */
               0);
    EXPECT(ALL_REDUCE(data, 1, ncclNumTypes, ncclSum, comm), ncclInvalidArgument);
    EXPECT(ALL_REDUCE(data, 1, -1, ncclSum, comm), ncclInvalidArgument);
    EXPECT(ALL_REDUCE(data, 1, ncclInt32, ncclNumOps, comm), ncclInvalidArgument);
    EXPECT(ALL_REDUCE(data, 1, ncclInt32, -1, comm), ncclInvalidArgument);
    EXPECT(ncclBroadcast(data, data, 1, ncclInt32, -1, comm, NULL), ncclInvalidArgument);
    EXPECT(ncclReduce(data, data, 1, ncclInt32, ncclSum, rank->ranks, comm, NULL),
           ncclInvalidArgument);
    EXPECT(ncclSend(data, 1, ncclInt32, rank->ranks, comm, NULL), ncclInvalidArgument);
    EXPECT(ncclGroupStart(), ncclSuccess); /* a group fails as a whole */
    EXPECT(ncclBroadcast(data, data, 1, ncclInt32, 0, comm, NULL), ncclSuccess);
    EXPECT(ncclBroadcast(data, data, 1, ncclInt32, -1, comm, NULL), ncclInvalidArgument);
    EXPECT(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT(ncclCommInitRank(&bad, 2, id, 2), ncclInvalidArgument);
    EXPECT(ncclCommInitRank(&bad, 0, id, 0), ncclInvalidArgument);
    EXPECT(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument);
    EXPECT(ncclCommInitRankConfig(&bad, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT(ncclCommSplit(comm, -2, 0, &bad, NULL), ncclInvalidArgument);
    EXPECT(ncclCommShrink(comm, data, 0, &bad, NULL, 0), ncclInvalidArgument);
    EXPECT(ncclCommRevoke(comm, 1), ncclInvalidArgument);
    EXPECT(ncclCommDestroy(NULL), ncclSuccess);
    EXPECT(ncclCommAbort(NULL), ncclSuccess);
    EXPECT(ncclCommFinalize(NULL), ncclInvalidArgument);
    EXPECT(ncclGetVersion(NULL), ncclInvalidArgument);
    EXPECT(ncclGetVersion(&version), ncclSuccess);
    EXPECT(version, 22809);
    EXPECT(strcmp(ncclGetErrorString(ncclSuccess), "no error"), 0);
    EXPECT(sum(rank, comm, 1), rank->ranks);
    flag_set(FLAG_SEEN);
    flag_wait(FLAG_SEEN, rank->ranks);
    /* symwin cannot know that the others pass NULL too, so it ends the communicator for all. */
    result = ALL_REDUCE(NULL, 1, ncclInt32, ncclSum, comm);
    EXPECT(result == ncclInvalidArgument ||
               (getenv("STAND_IN_SERVED") != NULL && result == ncclRemoteError),
           1);
#undef ALL_REDUCE
}

/* ---- lost ranks ---- */

/* All ranks but 0 call, and learn that it is gone, at once or later. */
static void call_without_first(const struct rank *rank, ncclComm_t comm, ncclResult_t want)
{
    char *data = room(1);
    const ncclResult_t result = ncclAllReduce(data, data, 1, ncclInt8, ncclSum, comm, rank->stream);

    EXPECT(result == ncclSuccess || result == want, 1);
    sync_stream(rank);
    EXPECT(result == ncclSuccess ? state(comm) : result, want);
    EXPECT(ncclBroadcast(data, data, 1, ncclInt8, 0, comm, rank->stream), want);
    room_free(data);
}

/* A call of all, which all have seen the end of. */
static void call_with_all(const struct rank *rank, ncclComm_t comm)
{
    EXPECT(sum(rank, comm, 1), rank->ranks);
    flag_set(FLAG_SEEN);
    flag_wait(FLAG_SEEN, rank->ranks);
}

void test_abort(struct rank *rank)
{
    ncclComm_t comm = begin(rank);

    call_with_all(rank, comm);
    if (rank->rank != 0)
        call_without_first(rank, comm, ncclRemoteError);
    EXPECT(ncclCommAbort(comm), ncclSuccess);
    EXPECT(ncclCommAbort(comm), ncclInvalidArgument);
}

/* Rank 0 leaves; the others go on without it. */
void test_revoke(struct rank *rank)
{
    ncclComm_t fewer;
    int first = 0;

    call_with_all(rank, rank->comm);
    EXPECT(ncclCommRevoke(rank->comm, 0), ncclSuccess);
    EXPECT(state(rank->comm), ncclSuccess);
    EXPECT(ncclAllGather(&first, &first, 1, ncclInt8, rank->comm, rank->stream), ncclInvalidUsage);
    if (rank->rank == 0)
        return;
    EXPECT(ncclCommShrink(rank->comm, &first, 1, &fewer, NULL, NCCL_SHRINK_ABORT), ncclSuccess);
    EXPECT(sum(rank, fewer, 1), rank->ranks - 1);
    EXPECT(ncclCommDestroy(fewer), ncclSuccess);
}

/* The process of rank 0 is killed while others wait for it. */
void test_killed(struct rank *rank)
{
    ncclComm_t comm = begin(rank);

    call_with_all(rank, comm);
    if (rank->rank == 0)
        raise(SIGKILL);
    call_without_first(rank, comm, ncclRemoteError);
    EXPECT(ncclCommAbort(comm), ncclSuccess);
}

/* Rank 0 does not call in time. */
void test_late(struct rank *rank)
{
    ncclComm_t comm = begin(rank);

    if (rank->rank != 0) {
        EXPECT(sum(rank, comm, 1), 0);
        EXPECT(state(comm) == ncclSystemError || state(comm) == ncclRemoteError, 1);
        flag_set(FLAG_DONE);
    }
    flag_wait(FLAG_DONE, rank->ranks - 1);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

/* A rank never comes to the birth, and one comes twice. */
void test_absent(struct rank *rank)
{
    ncclComm_t comm = (ncclComm_t)(void *)rank;
    ncclResult_t result;

    result = ncclCommInitRank(&comm, rank->ranks + 1, world->ids[0], rank->rank);
    EXPECT(result == ncclSystemError || result == ncclRemoteError, 1);
    EXPECT(comm == NULL, 1);
    if (rank->rank > 1)
        return;
    result = ncclCommInitRank(&comm, 3, world->ids[1], 1);
    EXPECT(result != ncclSuccess, 1);
    atomic_fetch_add(&world->flags[FLAG_SEEN], result == ncclInvalidUsage);
    flag_set(FLAG_DONE);
    flag_wait(FLAG_DONE, 2);
    EXPECT(atomic_load(&world->flags[FLAG_SEEN]), 1);
}

/* With the library of symwin: a variable of process 1 is invalid. */
void test_invalid(struct rank *rank)
{
    int data = 1; /* is not accessed */

    EXPECT(ncclAllReduce(&data, &data, 1, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclInvalidArgument);
    EXPECT(strstr(ncclGetLastError(NULL), rank->rank == 1 ? "SYMWIN_NCCL_" : "rank 1") != NULL, 1);
    EXPECT(ncclBcast(&data, 1, ncclInt32, 0, NULL, rank->stream), ncclInvalidArgument);
    EXPECT(strcmp(ncclGetLastError(NULL), "Bcast : comm argument is NULL"), 0);
}

/* Rank 0 has another count, type or operation than the others. */
void test_mismatch(struct rank *rank)
{
    static const struct {
        size_t count;
        ncclDataType_t type;
        ncclRedOp_t op;
    } cases[] = {{2, ncclInt32, ncclSum}, {1, ncclUint32, ncclSum}, {1, ncclInt32, ncclMax}};
    const struct rank *r = rank;
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t mine = r->rank == 0 ? i : 0;
        int *data = room(2 * sizeof *data);
        ncclComm_t comm;

        EXPECT(ncclCommInitRank(&comm, r->ranks, world->ids[i], r->rank), ncclSuccess);
        EXPECT(ncclAllReduce(data, data, r->rank == 0 ? cases[mine].count : 1,
                             r->rank == 0 ? cases[mine].type : ncclInt32,
                             r->rank == 0 ? cases[mine].op : ncclSum, comm, r->stream),
               ncclSuccess);
        sync_stream(r);
        EXPECT(state(comm) == ncclInvalidUsage || state(comm) == ncclRemoteError, 1);
        EXPECT(ncclCommAbort(comm), ncclSuccess);
        room_free(data);
    }
}

/* ---- faults: STAND_IN_FAIL=ncclAllReduce:2:3, one rank in each process ---- */

void test_fault(struct rank *rank)
{
    int data = 1;

    EXPECT(sum(rank, rank->comm, 1), rank->ranks);
    EXPECT(ncclAllReduce(&data, &data, 1, ncclInt32, ncclSum, rank->comm, rank->stream),
           ncclInternalError);
    EXPECT(strstr(ncclGetLastError(rank->comm), "STAND_IN_FAIL") != NULL, 1);
    sync_stream(rank);
    EXPECT(data, 1);
    EXPECT(sum(rank, rank->comm, 1), rank->ranks);
    EXPECT(calls(STAND_IN_ncclAllReduce), 3);
    EXPECT(calls(STAND_IN_ncclCommInitRank), 1);
    EXPECT(calls(STAND_IN_ncclBroadcast), 0);
    EXPECT(strcmp(stand_in()->functions[STAND_IN_ncclSend].name, "ncclSend"), 0);
}
