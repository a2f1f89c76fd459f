/* What the host hands to the kernels of kernels.cu; plain C99. */
#ifndef PERF_KERNEL_ARGS_H
#define PERF_KERNEL_ARGS_H

#include <stdint.h>

#include "../../kernels/kernel_args.h"
#include "data.h"

#define PERF_THREADS 512 /* most of a block */

/* Fills, or compares, `count` elements with those of `rank` (or PERF_RESULT). */
struct perf_fill_args {
    uint64_t address; /* aligned to 8 bytes */
    uint64_t count;
    struct perf_data data;
    int32_t rank;
    uint32_t element_bytes;
    uint64_t poison; /* fill: flips these bits of every element, so that each is wrong */
    uint64_t report; /* comparison: address of a struct perf_report in device memory */
};

struct perf_report {
    uint64_t wrong;   /* elements; added up in two halves */
    uint32_t claimed; /* nonzero: the rest is of one of them */
    uint32_t unused;
    uint64_t index;
    uint64_t got, want; /* bits */
};

/* Copies, 16 bytes at a time; both addresses are aligned to that. */
struct perf_copy_args {
    uint64_t from, to;
    uint64_t bytes; /* a multiple of 16 */
};

/* The same to each of the peers, to its place among what comes there: `to` is that of rank 0, `stride` from one to the
 * next. */
struct perf_spread_args {
    uint64_t from, to, stride;
    uint64_t bytes; /* to each, a multiple of 16 */
    int32_t rank, nranks;
};

/* One thread waits. */
struct perf_delay_args {
    uint64_t ns;
};

/* As many bytes as the library's kernels get. */
struct perf_nothing_args {
    unsigned char bytes[sizeof(struct sw_kernel_args)];
};

#endif
