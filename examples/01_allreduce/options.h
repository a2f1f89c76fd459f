/* What the command line asks for. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "symwin.h"

struct problem {
    int nranks;
    uint64_t count; /* elements */
    symwin_type type;
    symwin_op op;
    symwin_algo algo;
};

/* Fills all but nranks, which it sets to NTHREADS, or to 0 where that is not given. Returns -1 to go
 * on, else the program's exit status: --help has been printed, or what is wrong. */
int options_parse(int argc, char **argv, struct problem *problem);

#endif
