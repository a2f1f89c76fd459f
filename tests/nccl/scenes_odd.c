/* What programs seldom do: communicators that end while a stream is captured. */
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
