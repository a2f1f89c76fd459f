/* What the examples have in common: main(), a thread for every rank of this process, what they say, their data. */
#ifndef RANKS_H
#define RANKS_H

#include <pthread.h>

#include "launch.h"
#include "options.h"

/* What the ranks of a process share; constant while they run, but for the last member and `expected`. */
struct job {
    struct problem problem;
    struct launch launch;
    size_t bytes; /* of one buffer */
    symwin_driver_info driver;
    symwin_unique_id id;     /* by which the ranks find each other */
    unsigned char *expected; /* the host's result; each rank computes its share */
    struct rank *ranks;
    pthread_barrier_t barrier;
    int failed; /* some rank did; written by rank 0 between two barriers */
};

struct rank {
    struct job *job;
    int rank;
    int device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    void *send, *recv; /* device memory */

    unsigned char *staging; /* host memory, for a part of a buffer at a time */
    symwin_status status;   /* of the step that has just ended */
    char line[1024];        /* what the rank says about it; "": nothing */
    char complaint[256];    /* a failure of the example's own, in place of symwin_last_error() */
};

/* ---- of the program ---- */

void run_steps(struct rank *self);         /* until one fails */
symwin_status clean_up(struct rank *self); /* from wherever they got to */

/* ---- for it ---- */

/* Ends a step: prints the lines of this process's ranks in rank order and tells each whether all of
 * them have succeeded. So a failure on one rank ends the example on all, and nobody waits for a rank
 * that has left; ranks of other processes learn it from the communicator. Where the step went wrong,
 * the reason takes the line's place. */
int step(struct rank *self, symwin_status status, const char *format, ...);

/* What is said once for all ranks. Between two steps only rank 0 prints, so this cannot overtake. */
void announce(const struct rank *self, const char *format, ...);

/* Fills the send buffer, and this rank's share of the host's own result. */
symwin_status initialise(struct rank *self);

/* Compares every byte of the receive buffer with the host's result. Where all ranks have found no fault, says so
 * once. They learn of each other by a collective call that makes nothing. Returns whether none has failed. */
int verdict(struct rank *self);

#endif
