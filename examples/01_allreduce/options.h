/* The options of the command line. */
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
    struct problem problem; /* without nranks */
    int nthreads;           /* ranks per process; 0: not given */
    int nproc;              /* processes to fork; 0: none */
};

/* Defined by the program: its name, and the beginning of a sentence that continues with "and
 * compares". */
extern const char program[], purpose[];

/* Returns -1 to continue, else the program's exit status, after printing the help or an error. */
int options_parse(int argc, char **argv, struct options *options);

#endif
