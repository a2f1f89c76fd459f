/* Which ranks run in this process, and how all ranks get one id. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "options.h"

struct launch {
    int nranks;       /* in all processes */
    int first, count; /* this process's ranks: first .. first + count - 1 */
    int local_first;  /* index of `first` among this host's ranks, to choose devices */
    int local_count;  /* ranks on this host */
    int processes;    /* the ranks are spread over these */
    int mpi;          /* the id comes by MPI: built with MPI and not forked */
    int forked;       /* by launch_begin() */
    int alone;        /* without an id, which the others cannot know */
};

/* Call before any other symwin function. With --nproc, forks the other processes; the first process
 * waits for them and returns their exit status. Otherwise asks the launcher, if there is one.
 * Returns -1 to continue, else the program's exit status. */
int launch_begin(const struct options *options, struct launch *launch);

/* The id for all ranks; call once per process. */
symwin_status launch_id(struct launch *launch, symwin_unique_id *id);

/* Call before the process ends; returns its exit status. */
int launch_end(const struct launch *launch, int ok);

#endif
