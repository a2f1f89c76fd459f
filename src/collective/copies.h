/* The all-reduce by copies (copies.c): what collective.c asks of it. */
#ifndef SYMWIN_COPIES_H
#define SYMWIN_COPIES_H

#include "src/collective/select.h"

/* Makes what is missing of comm->copies. */
symwin_status sw_copies_create(symwin_comm *comm);
void sw_copies_release(symwin_comm *comm);

/* Queues one call; args.done counts one block. If it fails half-way the communicator is aborted. */
symwin_status sw_copies_queue(const struct sw_call *call);

#endif
