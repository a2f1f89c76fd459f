/* From the public calls (calls.c) to what runs them (collective.c). */
#ifndef SYMWIN_CALLS_H
#define SYMWIN_CALLS_H

#include "src/collective/table.h"

/* What the caller of a collective passes. */
struct sw_request {
    symwin_collective collective;
    const char *name; /* of the public call, for texts; agreements have the collective's */
    symwin_comm *comm;
    const void *in, *out;
    uint64_t count;
    symwin_type type;
    symwin_op op;                             /* if the collective reduces */
    int root;                                 /* if it has one */
    const symwin_collective_options *options; /* NULL: the defaults; otherwise checked */
    CUstream stream;
};

/* Launches the call, or with `info` reports what would be launched. */
symwin_status sw_request_run(const struct sw_request *r, symwin_collective_info *info);

#endif
