/* Which ranks run in this process, and how they get one id with those of other processes. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "options.h"

struct launch {
    int nranks;       /* all */
    int first, count; /* this process's ranks: first .. first + count - 1 */
    int local_first;  /* the number of `first` among the ranks of this host, for choosing devices */
    int local_count;  /* ranks on this host */
    int processes;    /* that the ranks are spread over */
    int mpi;          /* and they meet through MPI: built so, and not forked by this program */
};

/* With --nproc, forks the other processes of this program; the first process waits for them and its
 * exit status is in the result. Otherwise asks the launcher, if there is one. Before any other call of
 * symwin's. Returns -1 to go on, else the program's exit status. */
int launch_begin(const struct options *options, struct launch *launch);

/* The id for all ranks; once a process. */
symwin_status launch_id(const struct launch *launch, symwin_unique_id *id);

/* Before the process ends. */
void launch_end(const struct launch *launch);

#endif
