/* Ids for ranks that a launcher has started, or that have a transport of their own: a part of symwin.h, which includes this.
 */
#ifndef SYMWIN_API_LAUNCH_H
#define SYMWIN_API_LAUNCH_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a launcher says of this process: mpirun (Open MPI, MPICH, Intel MPI), torchrun, srun, or
 * whoever sets SYMWIN_RANK and SYMWIN_NRANKS. */
typedef struct symwin_launch_info {
    const char *launcher; /* "symwin", "torchrun", "openmpi", "hydra" or "slurm"; NULL: none, and
                           * this process is rank 0 of 1 */
    int rank;
    int nranks;
    int local_rank;   /* on this host, -1: not said */
    int local_nranks; /* of the job on this host; 0: not said */
} symwin_launch_info;

/* SYMWIN_INVALID: half of a launcher's variables, or values that make no sense. */
SYMWIN_API symwin_status symwin_launch_query(symwin_launch_info *info);

/* Gives every process of a launched job the same new id; rank 0's process makes it. Collective over the
 * processes, one thread of each. They meet under the job's name (SYMWIN_JOB, or what the launcher calls
 * it; where it restarts a job, the processes of the old round must be gone by then).
 *
 * The n-th call of one process that finds all variables there meets the n-th of the others, also where it
 * fails then: after a failure all ranks call again, or none.
 *
 * On one host they meet in a folder of this user in TMPDIR, XDG_RUNTIME_DIR or /tmp. On several, all make
 * the id of SYMWIN_SECRET, and find rank 0's process at MASTER_ADDR and MASTER_PORT (or SYMWIN_ADDR and
 * SYMWIN_PORT); then only symwin_comm_create() finds out whether it is there.
 *
 *   SYMWIN_INVALID    see symwin_launch_query(); there is no launcher; the job is on several hosts, and
 *                     MASTER_ADDR or MASTER_PORT are missing or name no address; or another process comes as this
 *                     rank of a job of that name at the same time (or that is only seen in symwin_comm_create())
 *   SYMWIN_TIMEOUT    rank 0 did not come within SYMWIN_BOOTSTRAP_TIMEOUT_MS (60,000)
 *   SYMWIN_DENIED     there is no folder that belongs to this user alone; or the job is on several hosts,
 *                     and SYMWIN_SECRET is missing or too short, or rank 0 cannot listen at its address
 *   SYMWIN_NO_MEMORY  as symwin_unique_id_create(), on rank 0 */
SYMWIN_API symwin_status symwin_unique_id_from_env(symwin_unique_id *id);

/* Gathers `bytes` from every rank into `all`, in rank order. 0: success. */
typedef int (*symwin_allgather_fn)(void *context, const void *mine, void *all, size_t bytes);

/* The same over a transport of the caller's: rank 0 makes the id, and `allgather` spreads it. symwin/mpi.h
 * does so over MPI. Every rank calls `allgather` once to say whether it can take part, and once more if
 * all can; so all fail if one does, but for a bad nranks or rank, or no allgather, which are found before.
 *
 *   SYMWIN_INVALID    a bad argument, or allgather did not return 0
 *   SYMWIN_NO_MEMORY  no host memory for all ranks' words on one of them
 *   SYMWIN_FORKED     one of the processes is a fork of one that used symwin
 *   and what symwin_unique_id_create() returns, on rank 0 */
SYMWIN_API symwin_status symwin_unique_id_share(int nranks, int rank, symwin_allgather_fn allgather,
                                                void *context, symwin_unique_id *id);

#ifdef __cplusplus
}
#endif
#endif
