/* A rank fails alone: its call of symwin's does, or it has no host memory or no thread left. Nobody
 * waits for it. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "scenes.h"

enum { PATIENCE_US = 8000000 };

/* ---- a call of symwin's fails on one rank alone ---- */

static ncclResult_t reduce(const struct rank *rank, ncclComm_t comm, int *data, int grouped)
{
    ncclResult_t result;

    if (grouped)
        EXPECT(ncclGroupStart(), ncclSuccess);
    result = ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream);
    return grouped ? ncclGroupEnd() : result;
}

/* A group with calls of two communicators, of which one may be over several hosts: the first call
 * fails on the last rank. */
static void two_alone(const struct rank *rank, int *data)
{
    const int is_last = rank->rank == rank->ranks - 1;
    const long long until = now_us() + PATIENCE_US;
    ncclComm_t all = birth(rank, 4), half = NULL;
    int of_host = 0;
    ncclResult_t result;

    EXPECT(ncclCommSplit(all, 2 * rank->rank / rank->ranks, rank->rank, &half, NULL), ncclSuccess);
    EXPECT(sum(rank, all, 1), rank->ranks);
    EXPECT(sum(rank, half, 1), rank->ranks / 2);
    meet(rank);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(
        ncclAllReduce(data, is_last ? &of_host : data, 1, ncclInt32, ncclSum, half, rank->stream),
        ncclSuccess);
    EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, all, rank->stream), ncclSuccess);
    result = ncclGroupEnd();
    if (is_last)
        EXPECT(result, ncclInvalidArgument);
    while (result == ncclSuccess && now_us() < until) {
        result = state(all);
        usleep(500);
    }
    EXPECT(result, is_last ? ncclInvalidArgument : ncclRemoteError);
    EXPECT(strstr(ncclGetLastError(NULL), "symwin_allreduce") != NULL, 1);
    meet(rank);
    EXPECT(ncclCommAbort(half), ncclSuccess);
    EXPECT(ncclCommAbort(all), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
}

/* An all-to-all in place, which NCCL does not refuse; then the last rank alone is in place. Whose
 * the call is depends on neither. */
static void exchange_alone(const struct rank *rank)
{
    const int me = rank->rank, ranks = rank->ranks;
    int *in = room((size_t)ranks * sizeof *in), *out = room((size_t)ranks * sizeof *out), p;
    int *const last = me == ranks - 1 ? in : out;
    ncclComm_t comm = birth(rank, 5);

    EXPECT(sum(rank, comm, 1), ranks);
    for (p = 0; p < ranks; p++)
        in[p] = 100 * me + p;
    EXPECT(ncclAlltoAll(in, in, 1, ncclInt32, comm, rank->stream), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    for (p = 0; p < ranks; p++)
        EXPECT(in[p], 100 * p + me);
    meet(rank);
    EXPECT(ncclAlltoAll(in, last, 1, ncclInt32, comm, rank->stream), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    for (p = 0; p < ranks; p++)
        EXPECT(last[p], 100 * me + p);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    room_free(in);
    room_free(out);
}

/* The last rank passes memory of the host, which symwin does not take. Nobody waits for it: calls
 * of the others end, or fail at once. */
void scene_alone(struct rank *rank)
{
    const int is_last = rank->rank == rank->ranks - 1;
    int *data = room(sizeof *data), of_host = 0, try;

    for (try = 0; try < 4; try++) {
        ncclComm_t comm = birth(rank, try);
        const long long until = now_us() + PATIENCE_US;
        ncclResult_t result;

        EXPECT(sum(rank, comm, 1), rank->ranks);
        meet(rank);
        result = reduce(rank, comm, is_last ? &of_host : data, try % 2);
        if (is_last)
            EXPECT(result, ncclInvalidArgument);
        while (result == ncclSuccess && now_us() < until) {
            result = state(comm);
            usleep(500);
        }
        EXPECT(result, is_last ? ncclInvalidArgument : ncclRemoteError);
        EXPECT(drains(rank->stream), 1);
        EXPECT(state(comm), result); /* whether a kernel has found it, or the call */
        EXPECT(reduce(rank, comm, data, try / 2), ncclRemoteError); /* and no call meets another */
        EXPECT(state(comm), result);
        /* On every rank: not only who has ended it, but why. */
        EXPECT(strstr(ncclGetLastError(NULL), "'s last failure: symwin_") != NULL, 1);
        meet(rank);
        EXPECT(ncclCommAbort(comm), ncclSuccess);
    }
    two_alone(rank, data);
    exchange_alone(rank);
    room_free(data);
}

/* ---- a rank has no host memory for a window ---- */

static _Thread_local size_t loses;     /* items of the library's next small calloc(), which fails */
static _Thread_local int loses_call;   /* the next realloc() fails */
static _Thread_local int loses_thread; /* the next pthread_create() fails */

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
void *__libc_calloc(size_t count, size_t bytes); /* NOLINT */

/* For all libraries of the process. */
__attribute__((visibility("default"))) void *calloc(size_t count, size_t bytes)
{
    Dl_info caller;

    if (count != loses || bytes > 256 || dladdr(__builtin_return_address(0), &caller) == 0 ||
        strstr(caller.dli_fname, "/libsymwin-nccl.so") == NULL)
        return __libc_calloc(count, bytes);
    loses = 0;
    return NULL;
}

void *__libc_realloc(void *ptr, size_t bytes); /* NOLINT */

__attribute__((visibility("default"))) void *realloc(void *ptr, size_t bytes)
{
    if (!loses_call)
        return __libc_realloc(ptr, bytes);
    loses_call = 0;
    return NULL;
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*run)(void *), void *data)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *const next = dlsym(RTLD_NEXT, "pthread_create");

    memcpy(&create, &next, sizeof create);
    if (!loses_thread)
        return create(thread, attributes, run, data);
    loses_thread = 0;
    return EAGAIN;
}
#endif

/* Before symwin's communicator is made, NCCL has all calls then; later they fail on all ranks. */
void scene_lost_window(struct rank *rank)
{
    enum { BYTES = 4 << 20 };
    const int is_last = rank->rank == rank->ranks - 1;
    int *data = room(BYTES), try;

    for (try = 0; try < 6; try++) {
        const int late = try % 2, grouped = try / 2;
        ncclComm_t comm = birth(rank, try);
        ncclWindow_t window;

        if (late)
            EXPECT(sum(rank, comm, 1), rank->ranks);
        meet(rank);
        if (grouped)
            EXPECT(ncclGroupStart(), ncclSuccess);
        loses = is_last ? (try < 4 ? 1 : 2) : 0; /* the window, or the group's list of two */
        EXPECT(ncclCommWindowRegister(comm, data, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC),
               ncclSuccess);
        if (grouped)
            EXPECT(ncclGroupEnd(), ncclSuccess);
        EXPECT(loses, 0);
        if (late)
            EXPECT(reduce(rank, comm, data, grouped), ncclRemoteError);
        else
            EXPECT(sum(rank, comm, 1), rank->ranks);
        EXPECT(drains(rank->stream), 1);
        meet(rank);
        EXPECT(ncclCommAbort(comm), ncclSuccess);
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 3 * rank->ranks / rank->processes);
    room_free(data);
}

/* The last rank has no host memory for its first group, or over several hosts no thread that
 * launches it: its call or its group fails, and nobody waits for it. */
void scene_lost_call(struct rank *rank)
{
    const int is_last = rank->rank == rank->ranks - 1;
    const int tries = is_set("STAND_IN_HOSTS") ? 2 : 1;
    int *data = room(sizeof *data), try;

    for (try = 0; try < tries; try++) {
        const long long until = now_us() + PATIENCE_US;
        ncclComm_t comm = birth(rank, try);
        ncclResult_t result;

        EXPECT(sum(rank, comm, 1), rank->ranks);
        meet(rank);
        EXPECT(ncclGroupStart(), ncclSuccess);
        loses_call = is_last && try == 0;
        result = ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream);
        EXPECT(loses_call, 0);
        EXPECT(result, is_last && try == 0 ? ncclSystemError : ncclSuccess);
        loses_thread = is_last && try == 1;
        result = ncclGroupEnd();
        EXPECT(loses_thread, 0);
        EXPECT(result == ncclSystemError, is_last);
        while (result == ncclSuccess && now_us() < until) {
            result = state(comm);
            usleep(500);
        }
        EXPECT(result, is_last ? ncclSystemError : ncclRemoteError);
        EXPECT(drains(rank->stream), 1);
        meet(rank);
        EXPECT(ncclCommAbort(comm), ncclSuccess);
    }
    room_free(data);
}
