/* The median of some times; of an even number the upper one. */
#ifndef SYMWIN_BENCH_MEDIAN_H
#define SYMWIN_BENCH_MEDIAN_H

#include <stdlib.h>

static inline int median_by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, median_by_size);
    return values[count / 2];
}

#endif
