/* --version, which all benches have. */
#ifndef SYMWIN_BENCH_VERSION_H
#define SYMWIN_BENCH_VERSION_H

#include <stdio.h>
#include <string.h>

#include "../symwin.h"

/* Whether it was asked for, and has been printed. */
static inline int bench_version(const char *name, int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--version") != 0)
        return 0;
    printf("%s (symwin) %s\n", name, SYMWIN_VERSION);
    return 1;
}

#endif
