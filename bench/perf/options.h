/* The options of the command line. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stddef.h>

#include "src/collective/table.h"
#include "symwin.h"

enum {
    PERF_MOST_RANKS = 1024,
    PERF_MOST_ROTATE = 64,
    PERF_MOST_CALLS = 10000,
    PERF_MOST_REPETITIONS = 1000,
    PERF_MOST_KERNELS = 8,
    PERF_MOST_NAMES = 32 /* more than there are collectives, types or operations */
};

/* Stream calls wait in the stream behind the start gate. A CUDA stream holds about a thousand
 * operations before a launch blocks. A call is one or two operations, but `copies` has many. */
enum { PERF_MOST_STREAM_CALLS = 400, PERF_MOST_OPERATIONS = 1000 };

/* Beside the values of symwin_collective: sends and receives in a ring; and those by parts, again,
 * with their arrays in device memory. */
enum {
    PERF_SENDRECV = SW_COLLECTIVES,
    PERF_ALLTOALLV_DEVICE,
    PERF_ALLGATHERV_DEVICE,
    PERF_REDUCE_SCATTERV_DEVICE,
    PERF_COLLECTIVES
};

enum { PERF_OUT_OF_PLACE = 1, PERF_IN_PLACE = 2 };
enum {
    PERF_NCCL = 1,
    PERF_NCCL_WINDOW = 2,
    PERF_NCCL_PLAIN = 4,
    PERF_TORCH = 8,
    PERF_NCCL_REG = 16,
    PERF_NCCL_REG_OURS = 32,
    PERF_NCCL_WINDOW_OURS = 64,
    PERF_ANY_NCCL = PERF_NCCL | PERF_NCCL_WINDOW | PERF_NCCL_PLAIN | PERF_NCCL_REG |
                    PERF_NCCL_REG_OURS | PERF_NCCL_WINDOW_OURS
};

/* The types of PyTorch's kernels, which only sum. */
#define PERF_TORCH_TYPES (1u << SYMWIN_F32 | 1u << SYMWIN_BF16)
#define PERF_TORCH_COLLECTIVES                                                                     \
    (1u << SYMWIN_ALLREDUCE | 1u << SYMWIN_ALLGATHER | 1u << SYMWIN_REDUCE_SCATTER)

struct perf_options {
    size_t begin, end, step; /* step 0: use factor */
    int factor;
    int threads, per_thread; /* a process has their product of ranks; 0: not given */
    int nproc;               /* processes to fork; 0: none */
    int calls, warmup;       /* calls 0: depends on the size */
    int replays;             /* of the graph; 0: stream launches */
    int rounds;              /* repetitions of stream launches, if replays is 0 */
    int percentiles;         /* number of single calls to time; 0: percentiles of the repetitions */
    int check, host_data;
    unsigned types, ops, algos;                /* bit i: value i of symwin.h's list */
    unsigned char type_order[PERF_MOST_NAMES]; /* each value + 1, in the order given; 0 ends */
    unsigned char op_order[PERF_MOST_NAMES];
    unsigned collectives; /* bit i: value i of symwin.h's list, or PERF_SENDRECV */
    unsigned char collective_order[PERF_MOST_NAMES];
    int root;      /* of the collectives that have one; -1: not given */
    int all_algos; /* skip algorithms that do not support a call */
    int blocks, block_threads, sm_limit;
    int window;
    unsigned placements; /* PERF_OUT_OF_PLACE, PERF_IN_PLACE */
    int rotate;
    int group;
    unsigned rivals; /* PERF_NCCL... */
    int graph_launch;
    int link, launch;
    int progress;
    int timeout_s;
    unsigned seed;
    const char *csv, *json, *tune, *picture;
    const char *kernels[PERF_MOST_KERNELS]; /* your own */
    int kernel_count;
    const char *compile; /* options for the kernels' compilers */
    int race, seconds;   /* seconds of the race hunt; 0: the default */
    int algos_given, rivals_given, collectives_given;
    char arguments[1024]; /* the command line */
};

/* Returns -1 to go on; otherwise the exit status, after printing the help or an error. Defaults
 * that depend on the driver are still 0: see options_complete(). */
int options_parse(int argc, char **argv, struct perf_options *options);

/* Fills in the defaults that depend on the driver. NULL: the options are valid; otherwise what is
 * wrong, as a sentence. */
const char *options_complete(struct perf_options *options, int emulated);

/* Whether an algorithm of multicast is named. */
int options_multicast(const struct perf_options *options);

/* The names of types and operations, by value; NULL ends. */
extern const char *const options_types[], *const options_ops[];

/* The index of a name of `length` characters in such a list; -1: not there. */
int options_find(const char *const *names, const char *name, size_t length);

/* ---- nccl_tests.c: options of nccl-tests ---- */

/* symwin-perf's name of an option of nccl-tests, or the word itself. */
const char *options_own_name(const char *given);

/* Whether the option is refused; if so, prints what to use instead. */
int options_foreign(const char *given);

/* ---- sweep.c ---- */

/* The i-th type, operation or collective in the order given; -1: there are no more. */
int options_nth(const unsigned char order[PERF_MOST_NAMES], unsigned bits, int i);

/* Whether a collective has something for --tune to choose. */
int options_can_tune(int collective);

/* The next size after `bytes`; 0: that was the last. */
size_t options_next_size(const struct perf_options *options, size_t bytes);

/* ---- layout.c ---- */

/* As the library's table, of PERF_SENDRECV and those by parts too. */
const struct sw_collective *collective_of(symwin_collective collective);

/* ---- options.c ---- */

/* The number of calls in a repetition at a size. */
int options_calls(const struct perf_options *options, size_t bytes, int emulated);

#endif
