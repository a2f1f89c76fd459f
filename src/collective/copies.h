/* The all-reduce by copies (copies.c): what collective.c asks of it. */
#ifndef SYMWIN_COPIES_H
#define SYMWIN_COPIES_H

#include "src/collective/select.h"

/* Makes what is missing of comm->copies. */
symwin_status sw_copies_create(symwin_comm *comm);
void sw_copies_release(symwin_comm *comm);

struct sw_copies_call {
    const char *name;                  /* of the public call, for errors */
    const struct sw_kernel_args *args; /* of all stages; done 0: the stream is in a capture */
    uint32_t element;                  /* bytes */
    int is_float;
    CUfunction function;
    CUfunction put;      /* in place: the kernel of the two-shot put; else NULL */
    struct sw_grid grid; /* of the sums */
    struct sw_grid put_grid;
    int early; /* the first kernel may begin before the one ahead of it has ended */
    CUstream stream;
};

/* Queues one call; args.done counts one block. If it fails half-way the communicator is aborted. */
symwin_status sw_copies_queue(symwin_comm *comm, const struct sw_copies_call *call);

#endif
