/* A job in which one process lacks the library: rank 1 is another process, this program again,
 * without LD_PRELOAD. Its first collective meets the other ranks' question whether symwin serves
 * the communicator. NCCL may notice that, as the stand-in does, or not. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "scenes.h"

extern char **environ;

enum { OUTPUT_CHANGED = 16, FIRST = 1, GIVEN = 3, TIME_US = 20000000 };
enum { FLAG_BYTES }; /* of the record that the ranks exchange */

/* An all-reduce of one byte, or an all-gather of `bytes` from each of two ranks. */
static ncclResult_t call(ncclComm_t comm, char *data, size_t bytes, CUstream stream)
{
    if (bytes == 0)
        return ncclAllReduce(data, data + 1, 1, ncclUint8, ncclSum, comm, stream);
    return ncclAllGather(data, data + bytes, bytes, ncclUint8, comm, stream);
}

static char *room_for(size_t bytes)
{
    const size_t all = bytes == 0 ? 2 : 3 * bytes;
    char *data = room(all);

    memset(data, FIRST, all);
    return data;
}

/* ---- the rank without it ---- */

/* The exit status says what it saw: the communicator's state, and whether its output has what no
 * rank gave. */
int without_main(const char *hex, size_t bytes)
{
    static struct world own; /* of room() */
    ncclUniqueId id;
    CUcontext context;
    CUstream stream;
    ncclComm_t comm;
    ncclResult_t seen;
    char *data;

    for (size_t i = 0; i < sizeof id; i++) {
        unsigned byte = 0;

        (void)sscanf(hex + 2 * i, "%2x", &byte);
        ((unsigned char *)&id)[i] = (unsigned char)byte;
    }
    world = &own;
    load_driver();
    if (cu.cuDevicePrimaryCtxRetain(&context, 1) != CUDA_SUCCESS ||
        cu.cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        ncclCommInitRank(&comm, 2, id, 1) != ncclSuccess)
        return 255;
    data = room_for(bytes);
    if (getenv("SCENES_MAGIC") != NULL)
        memcpy(data, getenv("SCENES_MAGIC"), strlen(getenv("SCENES_MAGIC")));
    seen = call(comm, data, bytes, stream);
    if (seen == ncclSuccess && cu.cuStreamSynchronize(stream) != CUDA_SUCCESS)
        return 255;
    if (seen == ncclSuccess && ncclCommGetAsyncError(comm, &seen) != ncclSuccess)
        return 255;
    seen += bytes > 0 && data[bytes] != GIVEN ? OUTPUT_CHANGED : 0;
    (void)ncclCommAbort(comm);
    (void)ncclMemFree(data);
    (void)cu.cuStreamDestroy(stream);
    (void)cu.cuDevicePrimaryCtxRelease(1);
    return (int)seen;
}

static int run_without(const ncclUniqueId *id, size_t bytes)
{
    char self[] = "/proc/self/exe", mode[] = "without", hex[2 * sizeof *id + 1], count[32];
    char *arguments[] = {self, mode, hex, count, NULL}, *variables[256];
    int status = -1, used = 0;
    pid_t process;

    for (size_t i = 0; i < sizeof *id; i++)
        snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)id)[i]);
    snprintf(count, sizeof count, "%zu", bytes);
    for (char **at = environ; *at != NULL && used < 255; at++)
        if (strncmp(*at, "LD_PRELOAD=", 11) != 0)
            variables[used++] = *at;
    variables[used] = NULL;
    if (!EXPECT(posix_spawn(&process, self, NULL, NULL, arguments, variables), 0) ||
        !EXPECT(waitpid(process, &status, 0), process) || !EXPECT(WIFEXITED(status), 1))
        return -1;
    return WEXITSTATUS(status);
}

/* ---- the job ---- */

/* Returns the result of rank 0's call, which comes in time, and what rank 1 has seen. */
static ncclResult_t job(struct rank *rank, int id, size_t bytes, int *seen)
{
    const long long begun = now_us();
    ncclResult_t result;
    ncclComm_t comm;
    char *data;

    if (rank->rank == 1) {
        *seen = run_without(&world->ids[id], bytes);
        return ncclSuccess;
    }
    comm = birth(rank, id);
    data = room_for(bytes);
    data[0] = GIVEN;
    usleep(SLOW ? 100000 : 20000); /* so that rank 1 has called: the later one notices first */
    result = call(comm, data, bytes, rank->stream);
    EXPECT(drains(rank->stream), 1);
    EXPECT(data[bytes == 0 ? 1 : bytes], FIRST); /* the output is as it was */
    EXPECT(now_us() - begun < TIME_US, 1);
    EXPECT(ncclCommAbort(comm), ncclSuccess);
    room_free(data);
    return result;
}

/* First the stand-in notices that the ranks have made different calls: both fail, and nothing is
 * overwritten. Then rank 1 makes just the call that rank 0 makes for the library: NCCL cannot
 * notice it, and rank 1 has a record for its data. Rank 0 fails and names it: it must not go on, as
 * its next call would meet rank 1's second one. So it does if the data begin as the record of a
 * version whose ranks meet in another way. */
void scene_without(struct rank *rank)
{
    unsigned bytes = 0;
    int seen = 0, id;

    for (id = 0; id < 20 && bytes == 0; id++) { /* until rank 0 is the one that notices */
        const ncclResult_t result = job(rank, id, 0, &seen);
        const char *text = strstr(ncclGetLastError(NULL), "rank 0 wants ");

        if (rank->rank == 1) {
            EXPECT(seen == ncclInvalidUsage || seen == ncclRemoteError, 1);
        } else {
            EXPECT(result == ncclInvalidUsage || result == ncclRemoteError, 1);
            if (text != NULL && sscanf(text, "rank 0 wants %u", &bytes) == 1)
                atomic_store(&world->flags[FLAG_BYTES], (int)bytes);
        }
        meet(rank);
        bytes = (unsigned)atomic_load(&world->flags[FLAG_BYTES]);
        meet(rank);
    }
    EXPECT(bytes > 0, 1);
    EXPECT(job(rank, id, bytes, &seen), rank->rank == 0 ? ncclInvalidUsage : ncclSuccess);
    if (rank->rank == 0)
        EXPECT(strstr(ncclGetLastError(NULL), "rank 1 has answered") != NULL, 1);
    else
        EXPECT(seen, OUTPUT_CHANGED);
    setenv("SCENES_MAGIC", "symwin1", 1); /* of rank 1: ranks are processes */
    EXPECT(job(rank, id + 1, bytes, &seen), rank->rank == 0 ? ncclInvalidUsage : ncclSuccess);
    if (rank->rank == 0)
        EXPECT(strstr(ncclGetLastError(NULL), "rank 1 has a version of symwin") != NULL, 1);
}
