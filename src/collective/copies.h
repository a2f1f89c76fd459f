/* Calls by copies (copies.c). */
#ifndef SYMWIN_COPIES_H
#define SYMWIN_COPIES_H

#include "src/collective/select.h"

/* Its side streams. */
struct sw_copies {
    CUstream side;          /* owned, runs the sums, or copies; NULL: not created yet */
    CUstream captured_side; /* owned, the same for captured calls */
    CUevent fork, join;     /* owned, order the caller's stream and a side stream */
    int loose;              /* `side` may hold work that no other stream waits for */
};

/* Creates those that do not exist yet. */
symwin_status sw_copies_create(struct sw_copies *copies);
void sw_copies_release(struct sw_copies *copies);

/* SYMWIN_BUSY if the stream is captured and calls by copies are in another capture: these have one
 * side stream. */
symwin_status sw_copies_check(const symwin_comm *comm, const char *call, CUstream stream);

/* Queues one call; args.done counts one block. If it fails after a part has been queued, the
 * communicator is aborted. */
symwin_status sw_copies_queue(const struct sw_call *call);

#endif
