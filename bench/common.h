/* Shared by the benchmarks: --version, numbers on the command line, and an exit status that
 * includes failed output. */
#ifndef SYMWIN_BENCH_COMMON_H
#define SYMWIN_BENCH_COMMON_H

#include "../examples/common.h"

/* Prints the version if asked for, and rejects more than `most` arguments; both end the program. */
static inline void bench_begin(const char *name, int argc, char **argv, int most)
{
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        exit(common_version(name));
    }
    if (argc - 1 <= most)
        return;
    fprintf(stderr, "%s: what is \"%s\"? It takes at most %d argument%s\n", name, argv[most + 1],
            most, most == 1 ? "" : "s");
    exit(2);
}

/* Argument `i` as a number of least .. most; `otherwise` if it is absent. An invalid one ends the
 * program. */
static inline int bench_number(const char *name, int argc, char **argv, int i, int least, int most,
                               int otherwise)
{
    char *end;
    long value;

    if (i >= argc)
        return otherwise;
    value = strtol(argv[i], &end, 10);
    if (end != argv[i] && *end == '\0' && value >= least && value <= most)
        return (int)value;
    fprintf(stderr, "%s: \"%s\": give a number from %d to %d\n", name, argv[i], least, most);
    exit(2);
}

/* The result of main() after success: fails if output was lost. */
static inline int bench_end(const char *name)
{
    const char *why = common_lost();

    if (why == NULL)
        return EXIT_SUCCESS;
    fprintf(stderr, "%s: what it printed cannot be written: %s\n", name, why);
    return EXIT_FAILURE;
}

#endif
