/* Shared by the benchmarks: --version, numbers on the command line, errors, the clock, and an exit
 * status that includes failed output. */
#ifndef SYMWIN_BENCH_COMMON_H
#define SYMWIN_BENCH_COMMON_H

#include <time.h>

#include "../examples/common.h"

static const char *bench_name; /* begins every message */

/* Prints the version if asked for, and rejects more than `most` arguments; both end the program. */
static inline void bench_begin(const char *name, int argc, char **argv, int most)
{
    bench_name = name;
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
static inline int bench_number(int argc, char **argv, int i, int least, int most, int otherwise)
{
    char what[32];
    int64_t value;

    if (i >= argc)
        return otherwise;
    snprintf(what, sizeof what, "argument %d", i);
    value = common_number(bench_name, what, argv[i], least, most);
    if (value < 0)
        exit(2);
    return (int)value;
}

/* These end the program after an error. */
static inline _Noreturn void bench_fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", bench_name, what, why);
    exit(1);
}

static inline void bench_must(symwin_status status, const char *what)
{
    if (status != SYMWIN_OK)
        bench_fail(what, symwin_last_error());
}

static inline void bench_check(symwin_status status)
{
    if (status == SYMWIN_OK)
        return;
    fprintf(stderr, "%s: %s\n", bench_name, symwin_last_error());
    exit(1);
}

static inline double bench_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline double bench_now_us(void)
{
    return bench_now_ns() / 1e3;
}

static inline int median_by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of some times, which it sorts; of an even number the upper one. */
static inline double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, median_by_size);
    return values[count / 2];
}

/* The result of main() after success: fails if output was lost. */
static inline int bench_end(void)
{
    const char *why = common_lost();

    if (why == NULL)
        return EXIT_SUCCESS;
    fprintf(stderr, "%s: what it printed cannot be written: %s\n", bench_name, why);
    return EXIT_FAILURE;
}

#endif
