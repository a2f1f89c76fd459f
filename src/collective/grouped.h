/* Groups of calls. */
#ifndef SYMWIN_GROUPED_H
#define SYMWIN_GROUPED_H

#include "src/collective/calls.h"

/* Whether this thread has a group open. */
int sw_grouped(void);

/* Adds a call to this thread's group. `status` is what sw_request_check() said of it. */
symwin_status sw_grouped_add(const struct sw_request *r, symwin_status status);

/* Drops the calls of a communicator that this thread destroys. */
void sw_grouped_forget(const symwin_comm *comm);

#endif
