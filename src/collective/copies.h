/* The all-reduce by copies (copies.c): what symwin.c and the table of collectives call. */
#ifndef SYMWIN_COPIES_H
#define SYMWIN_COPIES_H

#include "src/collective/select.h"

/* Creates the streams and events of comm->copies that do not exist yet. */
symwin_status sw_copies_create(symwin_comm *comm);
void sw_copies_release(symwin_comm *comm);

/* Queues one call; args.done counts one block. If it fails after a part has been queued, the
 * communicator is aborted. */
symwin_status sw_copies_queue(const struct sw_call *call);

#endif
