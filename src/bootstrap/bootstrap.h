/* Bootstrap: how the ranks of a communicator find each other.
 *
 * The creator of an id (the process that made it) opens a rendezvous and listens for the ranks.
 * Each rank joins with sw_bootstrap_join(). When all ranks have joined, the creator sends every
 * process the topology, the control page and its connections, and every process creates its
 * struct sw_group. */
#ifndef SYMWIN_BOOTSTRAP_H
#define SYMWIN_BOOTSTRAP_H

#include "src/control/control.h"

/* ---- environment.c: what the launcher says about this process ---- */

/* All ranks and counts come from one launcher: the first whose variables are complete, in the order
 * SYMWIN_RANK and SYMWIN_NRANKS; RANK and WORLD_SIZE (torchrun); Open MPI; Hydra (MPICH and
 * Intel MPI); Slurm. */
struct sw_launch {
    const char *launcher; /* constant: "symwin", "torchrun", "openmpi", "hydra" or "slurm" */
    int rank;
    int nranks;
    int local_rank;    /* among the job's processes on this host; -1: unknown */
    int local_nranks;  /* processes of the job on this host; 0: unknown */
    char job[128];     /* same for all processes of the job, unique among running jobs */
    char address[256]; /* of rank 0's host; "": unknown */
    int port;          /* on rank 0's host; 0: unknown */
};

/* SYMWIN_INVALID: no launcher's variables, or an invalid value; the text names the variable. */
symwin_status sw_launch_read(const char *call, struct sw_launch *out);

/* Reads a variable that is set: digits only. `what` says in the error what the number is. */
symwin_status sw_launch_number(const char *call, const char *name, const char *what, int least,
                               int most, int *out);

/* Whether no launcher started this process: no variable gives a rank or a number of ranks. */
int sw_launch_is_none(void);

/* Whether the job has processes on other hosts; 0 if the launcher does not tell. */
int sw_launch_is_wide(const struct sw_launch *launch);

/* Pid of another process of the same launcher that has the same rank, number of ranks and job
 * variables, and started at most `within_ms` before this one; 0: none found. */
long sw_launch_rival(const struct sw_launch *launch, int within_ms);

/* ---- launcher.c: what /proc says about the process that started this one ---- */

/* Sets `name` to "<pid>.<start time>" of the launcher; "": unknown. Processes between the launcher
 * and this one are skipped: they have the same value of `variable`. */
void sw_launcher_name(const char *variable, char *name, size_t room);

/* Pid of another process that the launcher started at most `within_ms` before this one, with the
 * same values of all variables in `names`; 0: none found. The first name is that of the rank
 * variable; NULL ends the list. */
long sw_launcher_rival(const char *const *names, int within_ms);

/* ---- member.c, unique_id.c: joining and splitting ---- */

/* Joins the rendezvous of `id` and blocks until all ranks have joined, at most `timeout_ms`. Either
 * all ranks get the group of their process, or all that joined get the same status. */
symwin_status sw_bootstrap_join(const symwin_unique_id *id, int nranks, int rank, int timeout_ms,
                                struct sw_group **out);

/* The part of a split that this rank belongs to: what symwin_comm_create() needs. */
struct sw_split {
    int nranks; /* 0: this rank is in no part */
    int rank;
    symwin_unique_id id; /* secret: the caller wipes it */
    const int *numbers;  /* what texts call its ranks; NULL: their own numbers in the part */
};

/* Collective. `status`: an earlier failure of this rank, which all ranks then get. */
symwin_status sw_split(symwin_comm *parent, symwin_status status, int color, int key,
                       struct sw_split *out);

/* Derives a key from the id: known to all ranks of its communicator and to nobody else. The secrets
 * of the communicator's splits are derived from it. */
void sw_bootstrap_key(const symwin_unique_id *id, unsigned char key[SW_KEY_BYTES]);

/* ---- id_file.c: folders for short-lived files ---- */

/* Sets `name` to "<folder><tail>", where the folder is TMPDIR, XDG_RUNTIME_DIR or /tmp for `which`
 * 0, 1 or 2. 0: the folder is not set or not absolute, or the name is too long. */
#define SW_TEMP_FOLDERS 3
int sw_temp_path(int which, const char *tail, char *name, size_t room);

/* Sets `name` to a folder in that folder which only this user can enter. If there is none, creates
 * it if `make` is set. 0: no such folder; -1: the time is over. Any thread, without
 * the poll lock. */
int sw_own_folder(int which, int make, char *name, size_t room, int64_t deadline);

#endif
