/* How ranks of the stand-in for NCCL reach each other: what is left of it, which ids are none, and
 * waits that another thread ends. */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stand_in_user.h"

enum { FLAG_DONE };

static ncclComm_t begin(const struct rank *rank, int id)
{
    ncclComm_t comm = NULL;

    if (!EXPECT(ncclCommInitRank(&comm, rank->ranks, world->ids[id], rank->rank), ncclSuccess))
        exit(1);
    return comm;
}

static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;

    while (folder != NULL && (entry = readdir(folder)) != NULL)
        count += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return count;
}

static void nothing(void *data)
{
    (void)data;
}

/* A rank in each process. Children end what they have made. So do the communicators with an id, and
 * with the last of them all sockets are gone but those of ids that nobody has used: each of these
 * has a thread and a socket of the first process. */
void test_sockets(struct rank *rank)
{
    const int listeners = over_tcp() && rank->rank == 0 ? MOST_IDS : 0;
    ncclComm_t comm, child;
    int first = 0, sockets, threads;

    EXPECT(cu.cuLaunchHostFunc(rank->stream, nothing, NULL), CUDA_SUCCESS); /* has a thread now */
    sync_stream(rank);
    threads = count_threads();
    comm = begin(rank, 0);
    EXPECT(ones(comm, rank->stream), rank->ranks);
    /* The port; a connection for each pair and plane; two ends for the rank itself. */
    sockets = over_tcp() ? 1 + 3 * (rank->ranks - 1) + 2 : 0;
    sockets += listeners > 0 ? listeners - 1 : 0;
    EXPECT(settles(count_sockets, sockets), sockets);
    for (int i = 0; i < 5; i++) {
        EXPECT(ncclCommSplit(comm, 0, -rank->rank, &child, NULL), ncclSuccess);
        EXPECT(ones(child, rank->stream), rank->ranks);
        EXPECT(ncclCommDestroy(child), ncclSuccess);
        if (rank->rank != 0) {
            EXPECT(ncclCommShrink(comm, &first, 1, &child, NULL, 0), ncclSuccess);
            EXPECT(ones(child, rank->stream), rank->ranks - 1);
            EXPECT(ncclCommAbort(child), ncclSuccess);
        }
    }
    EXPECT(settles(count_sockets, sockets), sockets);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    sockets = listeners > 0 ? listeners - 1 : 0;
    EXPECT(settles(count_sockets, sockets), sockets);
    threads -= listeners > 0;
    EXPECT(settles(count_threads, threads), threads);
}

/* A variable for the next id alone. */
static ncclResult_t id_with(const char *name, const char *value)
{
    const char *text = getenv(name);
    char *old = text != NULL ? strdup(text) : NULL;
    ncclUniqueId id;
    ncclResult_t result;

    setenv(name, value, 1);
    result = ncclGetUniqueId(&id);
    if (old != NULL)
        setenv(name, old, 1);
    else
        unsetenv(name);
    free(old);
    return result;
}

/* Over TCP, with a rank in each process: settings and ids that are none. An id whose token is wrong
 * leads to nobody, and does not disturb those that have the right one. */
void test_ids(struct rank *rank)
{
    ncclUniqueId wrong = world->ids[0];
    const size_t end = strlen(wrong.internal) - 1;
    ncclComm_t comm = NULL;

    EXPECT(id_with("STAND_IN_WIRE", "udp"), ncclInvalidArgument);
    EXPECT(id_with("STAND_IN_ADDRESS", "localhost"), ncclInvalidArgument);
    EXPECT(strstr(ncclGetLastError(NULL), "localhost is no IPv4 address") != NULL, 1);
    wrong.internal[end] = wrong.internal[end] == '0' ? '1' : '0';
    EXPECT(ncclCommInitRank(&comm, rank->ranks, wrong, rank->rank), ncclRemoteError);
    wrong.internal[end - 34] = '\0'; /* nor is a part of one */
    EXPECT(ncclCommInitRank(&comm, rank->ranks, wrong, rank->rank), ncclInvalidArgument);
    comm = begin(rank, 0);
    EXPECT(ones(comm, rank->stream), rank->ranks);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
}

struct waiting {
    ncclComm_t comm, child;
    ncclResult_t result;
};

static int count_splits(void)
{
    return (int)atomic_load(&stand_in()->functions[STAND_IN_ncclCommSplit].calls);
}

static void *wait_for_split(void *data)
{
    struct waiting *waiting = data;

    waiting->result = ncclCommSplit(waiting->comm, 0, 0, &waiting->child, NULL);
    return NULL;
}

/* Rank 0 neither calls nor splits. Another thread ends both waits, long before the deadline. */
void test_stopped(struct rank *rank)
{
    struct waiting waiting = {.comm = begin(rank, 0)};
    struct timespec since, now;
    char *data = room(1);
    pthread_t thread;

    EXPECT(ones(waiting.comm, rank->stream), rank->ranks);
    if (rank->rank != 0) {
        const int splits = rank->processes > 1 ? 1 : rank->ranks - 1;

        EXPECT(ncclAllReduce(data, data, 1, ncclInt8, ncclSum, waiting.comm, rank->stream),
               ncclSuccess);
        pthread_create(&thread, NULL, wait_for_split, &waiting);
        EXPECT(settles(count_splits, splits), splits);
        usleep(20000);
        clock_gettime(CLOCK_MONOTONIC, &since);
        EXPECT(ncclCommAbort(waiting.comm), ncclSuccess);
        pthread_join(thread, NULL);
        sync_stream(rank);
        clock_gettime(CLOCK_MONOTONIC, &now);
        EXPECT(now.tv_sec - since.tv_sec < 10, 1);
        EXPECT(waiting.result == ncclInternalError || waiting.result == ncclRemoteError, 1);
        EXPECT(waiting.child == NULL, 1);
        flag_set(FLAG_DONE);
    } else {
        flag_wait(FLAG_DONE, rank->ranks - 1);
        EXPECT(ncclCommAbort(waiting.comm), ncclSuccess);
    }
    room_free(data);
}

/* All revoke, and can split what they have revoked. Then rank 0 alone revokes: a call of the others
 * fails, though nobody has ended the communicator. */
void test_revoked(struct rank *rank)
{
    ncclComm_t comm = begin(rank, 0), child;
    ncclResult_t error = ncclSuccess;
    char *data = room(1);

    EXPECT(ones(comm, rank->stream), rank->ranks);
    EXPECT(ncclCommRevoke(comm, 0), ncclSuccess);
    EXPECT(ncclCommSplit(comm, 0, 0, &child, NULL), ncclSuccess);
    EXPECT(ncclCommDestroy(comm), ncclSuccess);
    EXPECT(ones(child, rank->stream), rank->ranks);
    if (rank->rank == 0) {
        EXPECT(ncclCommRevoke(child, 0), ncclSuccess);
        flag_wait(FLAG_DONE, rank->ranks - 1);
    } else {
        EXPECT(ncclAllReduce(data, data, 1, ncclInt8, ncclSum, child, rank->stream), ncclSuccess);
        sync_stream(rank);
        EXPECT(ncclCommGetAsyncError(child, &error), ncclSuccess);
        EXPECT(error, ncclRemoteError);
        flag_set(FLAG_DONE);
        flag_wait(FLAG_DONE, rank->ranks - 1);
    }
    EXPECT(ncclCommDestroy(child), ncclSuccess);
    room_free(data);
}
