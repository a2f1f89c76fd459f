/* The room bootstrap: how ranks find each other. */
#ifndef SYMWIN_BOOTSTRAP_H
#define SYMWIN_BOOTSTRAP_H

#include "src/control/control.h"

/* ---- environment.c: what a launcher says about this process ---- */

/* From one launcher's variables, never from two: SYMWIN_RANK and SYMWIN_NRANKS; RANK and WORLD_SIZE
 * (torchrun); Open MPI's; MPICH's and Intel MPI's (Hydra); Slurm's. The first complete set counts. */
struct sw_launch {
    const char *launcher; /* a constant: "symwin", "torchrun", "openmpi", "hydra", "slurm" */
    int rank;
    int nranks;
    int local_rank;    /* among the job's processes on this host; -1: not said */
    int local_nranks;  /* processes of the job on this host; 0: not said */
    char job[128];     /* all processes of the job have the same, no other job at this time has */
    char address[256]; /* of the host of rank 0; "": not said */
    int port;          /* there; 0: not said */
};

/* SYMWIN_INVALID: no launcher's variables, or values that make no sense; the text names the variable.
 */
symwin_status sw_launch_read(const char *call, struct sw_launch *out);

/* Whether nobody says anything of ranks: this process was not launched by a launcher. */
int sw_launch_is_none(void);

/* Whether the job has processes on other hosts; as far as nothing is said, it has none. */
int sw_launch_is_wide(const struct sw_launch *launch);

/* Another process that says it is the same rank of a job of that name, and was started by the same launcher not much before; 0:
 * none is seen. */
long sw_launch_rival(const struct sw_launch *launch, int within_ms);

/* ---- launcher.c: what the system says of the process that has started this one ---- */

/* "<pid>.<when it was started>", through programs between that have the same value of `variable`; "": not known. */
void sw_launcher_name(const char *variable, char *name, size_t room);

/* A process that it has started with the same values of all variables, NULL after the last, the rank's first. */
long sw_launcher_rival(const char *const *names, int within_ms);

/* ---- member.c, unique_id.c: how ranks find each other ---- */

/* Blocks until all ranks have come, at most `timeout_ms`. All get their process's group, or all that
 * came get one status. */
symwin_status sw_bootstrap_join(const symwin_unique_id *id, int nranks, int rank, int timeout_ms,
                                struct sw_group **out);

/* A rank's part of a communicator, by which symwin_comm_create() makes a communicator of its own. */
struct sw_split {
    int nranks; /* 0: this rank is in none */
    int rank;
    symwin_unique_id id; /* the caller wipes it */
};

/* Collective. */
symwin_status sw_split(symwin_comm *parent, int color, int key, struct sw_split *out);

/* What all ranks of the communicator that was made with the id have, and nobody else: makes the secrets of its parts. */
void sw_bootstrap_key(const symwin_unique_id *id, unsigned char key[SW_KEY_BYTES]);

/* Leaves the group; the last rank of the process frees it and its address range. */
void sw_bootstrap_leave(struct sw_group *group, int rank);

/* ---- id_file.c: folders for files that come and go ---- */

/* Puts "<place><tail>" into `name`: a place for files that come and go, number `which`. 0: there is none
 * of that number, or it is too long. */
#define SW_FILE_PLACES 3
int sw_file_place_name(int which, const char *tail, char *name, size_t room);

/* The same with a folder of this user, which no other can enter; made where it is not there, if `make` is set. 0: no
 * such folder. Any thread, without the lock. */
int sw_own_folder(int which, int make, char *name, size_t room);

#endif
