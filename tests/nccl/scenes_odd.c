/* What programs seldom do: communicators that end while a stream is captured, or that are suspended
 * or ended with calls in a group; groups that were never opened; several threads that ask. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "scenes.h"

/* ---- an end while this thread captures, in the mode that forbids most ---- */

static CUresult end_captured(const struct rank *rank, ncclComm_t comm,
                             ncclResult_t (*end)(ncclComm_t comm))
{
    CUgraph graph;
    CUresult result;

    meet(rank);
    EXPECT(cu.cuStreamBeginCapture(rank->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT(end(comm), ncclSuccess);
    result = cu.cuStreamEndCapture(rank->stream, &graph);
    if (result == CUDA_SUCCESS)
        EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
    meet(rank);
    return result;
}

static ncclResult_t suspend(ncclComm_t comm)
{
    return ncclCommSuspend(comm, 0);
}

/* A capture goes on, whatever symwin's communicator has to give back. */
void scene_captured_end(struct rank *rank)
{
    ncclComm_t comm = birth(rank, 0);

    EXPECT(sum(rank, comm, 1), rank->ranks);
    EXPECT(end_captured(rank, comm, suspend), CUDA_SUCCESS);
    EXPECT(ncclCommResume(comm), ncclSuccess);
    EXPECT(sum(rank, comm, 1), rank->ranks);
    EXPECT(end_captured(rank, comm, ncclCommDestroy), CUDA_SUCCESS);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
}

/* ---- groups ---- */

/* This thread's group would have to end before symwin's communicator can. */
void scene_suspended_group(struct rank *rank)
{
    ncclComm_t comm = birth(rank, 0);
    int *data = room(65536);
    ncclWindow_t window;

    EXPECT(sum(rank, comm, 1), rank->ranks);
    data[0] = 1;
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream), ncclSuccess);
    EXPECT(ncclCommSuspend(comm, 0), ncclInvalidUsage);
    EXPECT(strstr(ncclGetLastError(comm), "end the group") != NULL, 1);
    EXPECT(ncclGroupEnd(), ncclSuccess); /* with its call */
    EXPECT(drains(rank->stream), 1);
    EXPECT(data[0], rank->ranks);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommWindowRegister(comm, data, 65536, &window, NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    EXPECT(ncclCommSuspend(comm, 0), ncclInvalidUsage);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess); /* which has nothing of it */
    EXPECT(ncclCommSuspend(comm, 0), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclCommResume(comm), ncclSuccess);
    EXPECT(sum(rank, comm, 1), rank->ranks);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    room_free(data);
}

/* Its calls are in a group that has another one's: none is launched, and the group says so. A
 * window that is registered there ends with it. */
void scene_ended_group(struct rank *rank)
{
    ncclComm_t other = birth(rank, 0);
    int *data = room(2 * sizeof *data), *window = room(65536), turn;
    ncclWindow_t handle;

    for (turn = 0; turn < 2; turn++) {
        ncclComm_t comm = birth(rank, 1 + turn);

        EXPECT(sum(rank, comm, 1) + sum(rank, other, 1), 2 * rank->ranks);
        data[0] = data[1] = 1;
        EXPECT(ncclGroupStart(), ncclSuccess);
        EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, other, rank->stream), ncclSuccess);
        EXPECT(ncclAllReduce(data + 1, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream),
               ncclSuccess);
        EXPECT(turn == 0 ? ncclCommAbort(comm) : ncclCommDestroy(comm), ncclSuccess);
        EXPECT(ncclGroupEnd(), ncclInvalidUsage);
        EXPECT(drains(rank->stream), 1);
        EXPECT(data[0] + data[1], 2);
        meet(rank);
    }
    EXPECT(sum(rank, other, 1), rank->ranks);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclCommWindowRegister(other, window, 65536, &handle, NCCL_WIN_COLL_SYMMETRIC),
           ncclSuccess);
    EXPECT(ncclCommDestroy(other), ncclSuccess); /* which waits for nobody to leave it */
    EXPECT(ncclGroupEnd(), ncclSuccess);
    room_free(data);
    room_free(window);
}

/* What NCCL says of it, and not what this library said of a call before. */
void scene_unopened(struct rank *rank)
{
    ncclComm_t comm = birth(rank, 0);
    int of_host = 0;

    EXPECT(sum(rank, comm, 1), rank->ranks);
    meet(rank);
    EXPECT(ncclAllReduce(&of_host, &of_host, 1, ncclInt32, ncclSum, comm, rank->stream) !=
               ncclSuccess,
           1);
    meet(rank);
    if (rank->rank == 0) /* the sentence is the process's */
        EXPECT(strncmp(ncclGetLastError(comm), "symwin: ", 8), 0);
    meet(rank);
    EXPECT(ncclGroupEnd(), ncclInvalidUsage);
    meet(rank);
    EXPECT(strstr(ncclGetLastError(comm), "symwin") == NULL, 1);
    meet(rank);
    EXPECT(ncclCommAbort(comm), ncclSuccess);
}

/* ---- several threads ask how far a communicator is ---- */

enum { ASKERS = 6 };

struct asker {
    ncclComm_t comm;
    const int *sum;
    int found; /* when NCCL says that all is over */
    pthread_t thread;
};

static ncclResult_t wait_for(ncclComm_t comm)
{
    ncclResult_t result;

    while ((result = state(comm)) == ncclInProgress)
        usleep(50);
    return result;
}

static void *ask(void *data)
{
    struct asker *asker = data;

    EXPECT(wait_for(asker->comm), ncclSuccess);
    asker->found = *asker->sum;
    return NULL;
}

static void sleep_longer(void *data)
{
    (void)data;
    usleep(200000);
}

/* None hears that ncclCommFinalize() is over while a call is under way. */
void scene_askers(struct rank *rank)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    int *data = room(4096), turn, i;

    for (turn = 0; turn < 3; turn++) {
        struct asker askers[ASKERS];
        ncclComm_t comm;

        EXPECT(ncclCommInitRankConfig(&comm, rank->ranks, world->ids[turn], rank->rank, &config),
               ncclInProgress);
        EXPECT(wait_for(comm), ncclSuccess);
        EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream),
               ncclInProgress);
        EXPECT(wait_for(comm), ncclSuccess);
        EXPECT(drains(rank->stream), 1);
        data[0] = 1;
        data[1] = 0;
        EXPECT(cu.cuLaunchHostFunc(rank->stream, sleep_longer, NULL), CUDA_SUCCESS);
        EXPECT(ncclAllReduce(data, data + 1, 1, ncclInt32, ncclSum, comm, rank->stream),
               ncclSuccess);
        EXPECT(ncclCommFinalize(comm), ncclInProgress);
        for (i = 0; i < ASKERS; i++) {
            askers[i] = (struct asker){.comm = comm, .sum = data + 1};
            EXPECT(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
        }
        for (i = 0; i < ASKERS; i++) {
            pthread_join(askers[i].thread, NULL);
            EXPECT(askers[i].found, rank->ranks);
        }
        EXPECT(drains(rank->stream), 1);
        meet(rank);
        EXPECT(ncclCommDestroy(comm), ncclSuccess);
    }
    room_free(data);
}
