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

struct options {
    struct problem problem; /* all but nranks */
    int nthreads;           /* ranks of a process; 0: not given */
    int nproc;              /* processes to be forked; 0: none */
};

/* Of the program: its name, and what it does, in the words that "and compares" goes on from. */
extern const char program[], purpose[];

/* Returns -1 to go on, else the program's exit status: --help has been printed, or what is wrong. */
int options_parse(int argc, char **argv, struct options *options);

#endif
