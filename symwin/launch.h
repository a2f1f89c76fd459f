/* Ids for ranks that a launcher started, or that have their own transport: a part of symwin.h,
 * which includes this.
 */
#ifndef SYMWIN_API_LAUNCH_H
#define SYMWIN_API_LAUNCH_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a launcher says about this process: mpirun (Open MPI, MPICH, Intel MPI), torchrun, srun, or
 * your own launcher that sets SYMWIN_RANK and SYMWIN_NRANKS. */
typedef struct symwin_launch_info {
    /* "symwin", "torchrun", "openmpi", "hydra" or "slurm". NULL: no launcher; this process is rank
     * 0 of 1. */
    const char *launcher;
    int rank;
    int nranks;
    int local_rank;   /* rank among the job's processes on this host; -1: unknown */
    int local_nranks; /* the job's processes on this host; 0: unknown */
} symwin_launch_info;

/* Reads the launcher's variables.
 *
 *   SYMWIN_INVALID  some of a launcher's variables are missing or have invalid values */
SYMWIN_API symwin_status symwin_launch_query(symwin_launch_info *info);

/* Gives every process of a launched job the same new id, which rank 0's process creates. Collective
 * over the processes, one thread of each. The processes meet under the job's name: SYMWIN_JOB, or
 * the launcher's name for it. If the launcher restarts a job, the old processes must have ended
 * before.
 *
 * The n-th call of each process that finds all variables meets the n-th of the others, even if it
 * then fails. So after a failure either all ranks call again, or none.
 *
 * On one host the processes meet in a folder of this user in TMPDIR, XDG_RUNTIME_DIR or /tmp. On
 * several hosts each process derives the id from SYMWIN_SECRET, and connects to rank 0's process at
 * MASTER_ADDR and MASTER_PORT, or SYMWIN_ADDR and SYMWIN_PORT. Only symwin_comm_create() then finds
 * out whether that process is there.
 *
 *   SYMWIN_INVALID    see symwin_launch_query(); there is no launcher; the job is on several hosts
 *                     and MASTER_ADDR or MASTER_PORT is missing or invalid; or another process
 *                     joins as this rank of a job of that name at the same time
 *                     (symwin_comm_create() may be the first to find that)
 *   SYMWIN_TIMEOUT    rank 0 did not join within SYMWIN_BOOTSTRAP_TIMEOUT_MS (default 60,000)
 *   SYMWIN_DENIED     no folder belongs to this user alone; or the job is on several hosts, and
 *                     SYMWIN_SECRET is missing or too short, or rank 0 cannot listen at its address
 *   SYMWIN_NO_MEMORY  as symwin_unique_id_create(), on rank 0 */
SYMWIN_API symwin_status symwin_unique_id_from_env(symwin_unique_id *id);

/* Gathers `bytes` bytes of every rank in `all`, in rank order. Returns 0 on success. */
typedef int (*symwin_allgather_fn)(void *context, const void *mine, void *all, size_t bytes);

/* Gives all ranks one new id over the caller's transport: rank 0 creates it, `allgather`
 * distributes it (symwin/mpi.h does this over MPI). Collective. Every rank calls `allgather` once
 * to say whether it can take part, and a second time if all can. So if one rank fails, all fail,
 * except that a bad nranks or rank, or a NULL allgather, fails before on that rank alone.
 *
 *   SYMWIN_INVALID    a bad argument, or allgather did not return 0
 *   SYMWIN_NO_MEMORY  a rank has no host memory for the gathered data
 *   SYMWIN_FORKED     a process is a fork of one that used symwin
 *   and what symwin_unique_id_create() returns, on rank 0 */
SYMWIN_API symwin_status symwin_unique_id_share(int nranks, int rank, symwin_allgather_fn allgather,
                                                void *context, symwin_unique_id *id);

#ifdef __cplusplus
}
#endif
#endif
