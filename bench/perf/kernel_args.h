/* The arguments of the kernels in kernels.cu; plain C99. */
#ifndef PERF_KERNEL_ARGS_H
#define PERF_KERNEL_ARGS_H

#include <stdint.h>

#include "../../kernels/kernel_args.h"
#include "../../kernels/table_layout.h"
#include "data.h"

#define PERF_THREADS 512 /* maximum of a block */

/* Fills `count` elements with those of `rank` (or PERF_RESULT or PERF_PARTS), or compares them. */
struct perf_fill_args {
    uint64_t address; /* aligned to 8 bytes */
    uint64_t count;
    struct perf_data data;
    int32_t rank;
    uint32_t element_bytes;
    uint64_t poison; /* fill: flips these bits of every element, to make it wrong */
    uint64_t report; /* comparison: address of a struct perf_report in device memory */
};

struct perf_report {
    uint64_t wrong;   /* number of elements; added up in two halves */
    uint32_t claimed; /* nonzero: index, got and want describe one of them */
    uint32_t unused;
    uint64_t index;
    uint64_t got, want; /* bits */
};

/* Copies 16 bytes at a time; both addresses are aligned to 16. */
struct perf_copy_args {
    uint64_t from, to;
    uint64_t bytes; /* a multiple of 16 */
};

/* Copies to all peers, each time to this rank's place in the peer's buffer. `to` is the address on
 * rank 0; the next rank's is `stride` further. */
struct perf_spread_args {
    uint64_t from, to, stride;
    uint64_t bytes; /* to each, a multiple of 16 */
    int32_t rank, nranks;
};

/* Writes the counts and displacements of unequal parts, of a 64-bit word for each rank each: those
 * that rank `from` has in its input, and behind them those that rank `to` has in its output. */
struct perf_parts_args {
    uint64_t address;
    struct perf_data data;
    int32_t from, to;
};

/* Waits with one thread. */
struct perf_delay_args {
    uint64_t ns;
};

/* As large as the arguments of the library's kernels, and of those for unequal parts. */
struct perf_nothing_args {
    unsigned char bytes[sizeof(struct sw_kernel_args)];
};
struct perf_nothing_parts_args {
    unsigned char bytes[sizeof(struct sw_table_args)];
};

#endif
