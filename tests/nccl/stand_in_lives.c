/* Windows and ends of communicators: of some ranks alone, again and again, of the process. */
#include <stdlib.h>
#include <unistd.h>

#include "stand_in_user.h"

enum { COUNT = 20000, FLAG_DONE = 1, FLAG_CALLED };

/* Registered before the first call, after it, in a group; ended by the program, by the end of the
 * memory, by the communicator's end. */
void test_windows(struct rank *rank)
{
    enum { BYTES = 1 << 16 };
    char *data[4];
    ncclWindow_t windows[4];

    for (int i = 0; i < 4; i++)
        data[i] = room(BYTES);
#define REGISTER(i, flags)                                                                         \
    EXPECT(ncclCommWindowRegister(rank->comm, data[i], BYTES, &windows[i], flags), ncclSuccess)
    REGISTER(0, NCCL_WIN_COLL_SYMMETRIC);
    EXPECT(ones(rank->comm, rank->stream), rank->ranks);
    REGISTER(1, NCCL_WIN_COLL_SYMMETRIC);
    EXPECT(ncclGroupStart(), ncclSuccess);
    REGISTER(2, NCCL_WIN_COLL_SYMMETRIC);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    REGISTER(3, 0);
#undef REGISTER
    EXPECT(ncclCommWindowDeregister(rank->comm, windows[1]), ncclSuccess);
    room_free(data[1]);
    EXPECT(ncclCommSuspend(rank->comm, 0), ncclSuccess);
    EXPECT(ncclCommResume(rank->comm), ncclSuccess);
    EXPECT(ones(rank->comm, rank->stream), rank->ranks);
    room_free(data[2]); /* with its window */
    EXPECT(ones(rank->comm, rank->stream), rank->ranks);
    EXPECT(ncclCommDestroy(rank->comm), ncclSuccess);
    room_free(data[0]);
    room_free(data[3]);
    EXPECT(ncclCommInitRank(&rank->comm, rank->ranks, world->ids[1], rank->rank), ncclSuccess);
}

/* Some ranks free buffers with windows on them while others end communicators that have some. */
void test_freed(struct rank *rank)
{
    enum { BYTES = 4096, TURNS = 20 };
    ncclWindow_t window;
    ncclComm_t child;
    void *data;

    for (int i = 0; i < TURNS; i++) {
        data = room(BYTES);
        EXPECT(ncclCommSplit(rank->comm, 0, 0, &child, NULL), ncclSuccess);
        EXPECT(ncclCommWindowRegister(child, data, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC),
               ncclSuccess);
        EXPECT(ones(child, rank->stream), rank->ranks);
        if ((i + rank->rank) % 2 == 0)
            EXPECT(ncclCommDestroy(child), ncclSuccess);
        room_free(data);
        if ((i + rank->rank) % 2 != 0)
            EXPECT(ncclCommDestroy(child), ncclSuccess);
    }
}

/* Rank 0 is left out: once while nothing is under way, and while all others wait for it. */
void test_left_out(struct rank *rank)
{
    int *data = room(COUNT * sizeof *data), first = 0;
    ncclComm_t fewer;
    ncclResult_t error;
    CUstream second;

    EXPECT(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT(ones(rank->comm, rank->stream), rank->ranks);
    if (getenv("STAND_IN_SERVED") != NULL && rank->rank != 0) {
        EXPECT(ncclCommShrink(rank->comm, &first, 1, &fewer, NULL, NCCL_SHRINK_ABORT), ncclSuccess);
        EXPECT(ncclCommDestroy(fewer), ncclSuccess);
    }
    EXPECT(ones(rank->comm, rank->stream), rank->ranks);
    if (rank->rank != 0) {
        EXPECT(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, rank->comm, rank->stream),
               ncclSuccess);
        flag_set(FLAG_CALLED);
        flag_wait(FLAG_CALLED, rank->ranks - 1);
        EXPECT(ncclCommShrink(rank->comm, &first, 1, &fewer, NULL, NCCL_SHRINK_ABORT), ncclSuccess);
        sync_stream(rank);
        EXPECT(ncclCommGetAsyncError(rank->comm, &error), ncclSuccess);
        EXPECT(error, ncclSuccess);
        EXPECT(ones(fewer, second), rank->ranks - 1);
        EXPECT(ncclCommDestroy(fewer), ncclSuccess);
        flag_set(FLAG_DONE);
    }
    flag_wait(FLAG_DONE, rank->ranks - 1);
    EXPECT(cu.cuStreamDestroy(second), CUDA_SUCCESS);
    room_free(data);
}

/* Communicators come and go, often with the handle of the one before, which was revoked. */
void test_again(struct rank *rank)
{
    ncclComm_t child;

    for (int i = 0; i < 5; i++) {
        EXPECT(ncclCommSplit(rank->comm, 0, 0, &child, NULL), ncclSuccess);
        EXPECT(ones(child, rank->stream), rank->ranks);
        EXPECT(ones(rank->comm, rank->stream), rank->ranks);
        EXPECT(ncclCommRevoke(child, 0), ncclSuccess);
        EXPECT(ncclCommDestroy(child), ncclSuccess);
    }
}

/* Rank 0 leaves, which is no error of the others. */
void test_early(struct rank *rank)
{
    ncclComm_t comm = NULL;
    ncclResult_t error;

    EXPECT(ncclCommInitRank(&comm, rank->ranks, world->ids[0], rank->rank), ncclSuccess);
    EXPECT(ones(comm, rank->stream), rank->ranks);
    if (rank->rank != 0) {
        flag_wait(FLAG_DONE, 1);
        usleep(20000);
        EXPECT(ncclCommGetAsyncError(comm, &error), ncclSuccess);
        EXPECT(error, ncclSuccess);
    }
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    flag_set(FLAG_DONE);
}

/* The process ends with its communicator. */
void test_undestroyed(struct rank *rank)
{
    ncclComm_t comm = NULL;

    EXPECT(ncclCommInitRank(&comm, rank->ranks, world->ids[0], rank->rank), ncclSuccess);
    EXPECT(ones(comm, rank->stream), rank->ranks);
    flag_set(FLAG_DONE);
    flag_wait(FLAG_DONE, rank->ranks);
    exit(0);
}
