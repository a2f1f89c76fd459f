/* ncclCommAbort() while calls run, while a call waits on the host, and of an idle communicator. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenes.h"

enum { FLAG_ABORTED, FLAG_GOOD };

/* On a loaded machine a thread may wait for a core longer than anything takes here. So what is good
 * once is good: all ranks come here after a try, and go on until one was, or there were many. */
enum { FEW = 4, MANY = 40 };
static int again(const struct rank *rank, int tries)
{
    meet(rank);
    return tries < FEW || (tries < MANY && atomic_load(&world->flags[FLAG_GOOD]) == 0);
}

/* That one was good. */
static void must_be_good(const struct rank *rank)
{
    if (rank->rank == 0)
        EXPECT(atomic_load(&world->flags[FLAG_GOOD]) > 0, 1);
}

/* The library itself waits 5 ms for a call to end, and 3 ms for its memory to go. */
static void note_time(long long us)
{
    double load = 0;
    const int loaded = getloadavg(&load, 1) == 1 && load > (double)sysconf(_SC_NPROCESSORS_ONLN);

    if (us <= (SLOW ? 100000 : loaded ? 30000 : 10000))
        flag_set(FLAG_GOOD);
}

struct abortion {
    ncclComm_t comm;
    long long us;
};

static void *abort_main(void *data)
{
    struct abortion *a = data;
    const long long before = now_us();

    EXPECT(ncclCommAbort(a->comm), ncclSuccess);
    a->us = now_us() - before;
    return NULL;
}

/* By another thread, which has no current context. */
static long long abort_elsewhere(ncclComm_t comm)
{
    struct abortion a = {.comm = comm};
    pthread_t thread;

    pthread_create(&thread, NULL, abort_main, &a);
    pthread_join(thread, NULL);
    return a.us;
}

/* Rank 0 calls, and nobody else. */
void scene_abort(struct rank *rank)
{
    int try;

    for (try = 0; again(rank, try); try++) {
        ncclComm_t comm = birth(rank, try);
        long long *data = room(sizeof *data);

        EXPECT(sum(rank, comm, 1), rank->ranks);
        meet(rank);
        if (rank->rank == 0) {
            EXPECT(ncclAllReduce(data, data, 1, ncclInt64, ncclSum, comm, rank->stream),
                   ncclSuccess);
            usleep(10000);
            EXPECT(cu.cuStreamQuery(rank->stream), CUDA_ERROR_NOT_READY);
            note_time(abort_elsewhere(comm));
            EXPECT(drains(rank->stream), 1);
            flag_set(FLAG_ABORTED);
        } else {
            flag_wait(FLAG_ABORTED, try + 1);
            EXPECT(ncclCommAbort(comm), ncclSuccess);
        }
        room_free(data);
    }
    must_be_good(rank);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
}

/* ---- at the first call ---- */

struct caller {
    const struct rank *rank;
    ncclComm_t comm;
    int grouped;
    ncclResult_t result;
    atomic_int over;
};

static void *call_main(void *data)
{
    struct caller *c = data;
    long long *memory;
    CUcontext context;

    EXPECT(cu.cuDevicePrimaryCtxRetain(&context, c->rank->device), CUDA_SUCCESS);
    EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    memory = room(sizeof *memory);
    if (c->grouped)
        EXPECT(ncclGroupStart(), ncclSuccess);
    c->result = ncclAllReduce(memory, memory, 1, ncclInt64, ncclSum, c->comm, c->rank->stream);
    if (c->grouped) {
        EXPECT(c->result, ncclSuccess);
        c->result = ncclGroupEnd();
    }
    EXPECT(c->result != ncclSuccess && strlen(ncclGetLastError(NULL)) > 10, 1);
    atomic_store(&c->over, 1);
    EXPECT(drains(c->rank->stream), 1);
    room_free(memory);
    EXPECT(cu.cuDevicePrimaryCtxRelease(c->rank->device), CUDA_SUCCESS);
    return NULL;
}

/* The call of rank 0 waits on the host until all ranks have called for the first time. */
void scene_opening(struct rank *rank)
{
    int try;

    for (try = 0; again(rank, try); try++) {
        struct caller c = {.rank = rank, .comm = birth(rank, try), .grouped = try % 2};

        if (rank->rank == 0) {
            const unsigned meetings = calls(STAND_IN_ncclAllGather);
            pthread_t thread;

            pthread_create(&thread, NULL, call_main, &c);
            while (calls(STAND_IN_ncclAllGather) == meetings && !atomic_load(&c.over))
                usleep(100);
            usleep(SLOW ? 100000 : 30000);
            EXPECT(atomic_load(&c.over), 0);
            note_time(abort_elsewhere(c.comm));
            pthread_join(thread, NULL);
            flag_set(FLAG_ABORTED);
        } else {
            flag_wait(FLAG_ABORTED, try + 1);
            EXPECT(ncclCommAbort(c.comm), ncclSuccess);
        }
    }
    must_be_good(rank);
}

/* ---- of an idle communicator ---- */

static void wait_for(void *go)
{
    const long long until = now_us() + 5000000;

    while (atomic_load((atomic_int *)go) == 0 && now_us() < until)
        usleep(100);
}

/* Rank 0 aborts and frees a buffer with a window on it, while the kernel that uses it has not even
 * begun: what is on the buffer until then is written to nothing else. */
void scene_freed(struct rank *rank)
{
    enum { BYTES = 4 << 20, COUNT = 5000, TRIES = 4 }; /* no two such buffers share a chunk */
    struct left before = {0};
    int try, i, wrong;

    for (try = 0; try < TRIES; try++) {
        ncclComm_t comm = birth(rank, try);
        int *data = room(BYTES), *other;
        ncclWindow_t window;
        atomic_int go = 0;

        EXPECT(sum(rank, comm, 1), rank->ranks);
        EXPECT(ncclCommWindowRegister(comm, data, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC),
               ncclSuccess);
        meet(rank);
        if (rank->rank == 0) {
            EXPECT(cu.cuLaunchHostFunc(rank->stream, wait_for, &go), CUDA_SUCCESS);
            EXPECT(ncclAllReduce(data, data, COUNT, ncclInt32, ncclSum, comm, rank->stream),
                   ncclSuccess);
            EXPECT(ncclCommAbort(comm), ncclSuccess);
            room_free(data);
            EXPECT(ncclMemFree(data), ncclInvalidArgument);
            other = room(BYTES);
            for (i = 0; i < COUNT; i++)
                other[i] = try - i;
            atomic_store(&go, 1);
            EXPECT(drains(rank->stream), 1);
            flag_set(FLAG_ABORTED);
            meet(rank);
            for (wrong = 0, i = 0; i < COUNT; i++)
                wrong += other[i] != try - i;
            EXPECT(wrong, 0);
            room_free(other);
        } else {
            flag_wait(FLAG_ABORTED, try + 1);
            meet(rank);
            EXPECT(ncclCommAbort(comm), ncclSuccess);
            room_free(data);
        }
        if (try == 0)
            before = left_before();
    }
    left_is(&before, "freed");
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
}

/* Rank 0 aborts when its call is over, and before others have looked whether theirs is: they have
 * its result, and their communicators no error. */
void scene_idle(struct rank *rank)
{
    enum { COUNT = 5000 };
    int *data = room(COUNT * sizeof *data), try, i, wrong;

    for (try = 0; again(rank, try); try++) {
        ncclComm_t comm = birth(rank, try);

        EXPECT(sum(rank, comm, 1), rank->ranks);
        for (i = 0; i < COUNT; i++)
            data[i] = rank->rank == 0 ? try + i : 0;
        meet(rank);
        EXPECT(ncclBroadcast(data, data, COUNT, ncclInt32, 0, comm, rank->stream), ncclSuccess);
        if (rank->rank == 0) {
            EXPECT(drains(rank->stream), 1);
            EXPECT(ncclCommAbort(comm), ncclSuccess);
            flag_set(FLAG_ABORTED);
            meet(rank);
            continue;
        }
        flag_wait(FLAG_ABORTED, try + 1);
        EXPECT(drains(rank->stream), 1);
        if (state(comm) == ncclSuccess) {
            for (wrong = 0, i = 0; i < COUNT; i++)
                wrong += data[i] != try + i;
            EXPECT(wrong, 0);
            flag_set(FLAG_GOOD);
        }
        meet(rank);
        EXPECT(ncclCommAbort(comm), ncclSuccess);
    }
    must_be_good(rank);
    EXPECT_PASSED(calls(STAND_IN_ncclBroadcast), 0);
    room_free(data);
}
