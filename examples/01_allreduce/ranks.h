/* Shared by the examples: main(), a thread for each rank of this process, output and data.
 *
 * A program defines run_steps(); ranks.c calls it on the thread of each rank. */
#ifndef RANKS_H
#define RANKS_H

#include <pthread.h>

#include "launch.h"
#include "options.h"

/* What the ranks of a process share. While they run, only `expected` and `failed` change. */
struct job {
    struct problem problem;
    struct launch launch;
    size_t bytes; /* of one buffer */
    symwin_driver_info driver;
    symwin_unique_id id;     /* same on all ranks */
    unsigned char *expected; /* expected result; each rank computes a part */
    struct rank *ranks;
    pthread_barrier_t barrier;
    int failed; /* a rank failed; written by the first rank between two barriers */
};

struct rank {
    struct job *job;
    int rank;
    int device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    void *send, *recv; /* device memory */

    unsigned char *staging; /* host memory for a part of a buffer */
    symwin_status status;   /* of the last step */
    char line[1024];        /* its line of output; "": none */
    char complaint[256];    /* the example's own error text, instead of symwin_last_error() */
};

/* ---- defined by the program ---- */

void run_steps(struct rank *self); /* until a step fails; what it has got is released after it */

/* ---- for the program ---- */

/* Ends a step: prints the lines of this process's ranks in rank order, and returns whether all of
 * them have succeeded. A rank that failed prints its reason instead of the line. A failure on one
 * rank ends the example on all, so nobody waits for a rank that has left; ranks of other processes
 * learn it from the communicator. */
int step(struct rank *self, symwin_status status, const char *format, ...);

/* Prints a line once for all ranks. Only rank 0 prints between two steps, so the order is fixed. */
void announce(const struct rank *self, const char *format, ...);

/* The first two steps: the device, and a communicator on it. Returns whether all succeeded. */
int begin(struct rank *self);

/* Creates the stream, and allocates the send and the receive buffer. */
symwin_status allocate(struct rank *self);

/* Fills the send buffer, and computes this rank's part of the expected result. */
symwin_status initialise(struct rank *self);

/* Compares every byte of the receive buffer with the expected result. If all ranks succeed, says so
 * once; a collective call without a new communicator tells them of each other. Returns whether all
 * succeeded. */
int verdict(struct rank *self);

#endif
