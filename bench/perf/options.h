/* What the command line asks for. */
#ifndef PERF_OPTIONS_H
#define PERF_OPTIONS_H

#include <stddef.h>

#include "symwin.h"

enum {
    PERF_MOST_RANKS = 1024,
    PERF_MOST_ROTATE = 64,
    PERF_MOST_CALLS = 10000,
    PERF_MOST_REPETITIONS = 1000,
    PERF_MOST_KERNELS = 8,
    PERF_MOST_NAMES = 16 /* more than types or operations, which are few */
};

/* Stream calls all wait in the queue behind the start gate, and a CUDA stream holds about a thousand operations before a
 * launch blocks. A call is one or two, but that of copies is many. */
enum { PERF_MOST_STREAM_CALLS = 400, PERF_MOST_OPERATIONS = 1000 };

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

/* Of PyTorch's kernels; they only sum. */
#define PERF_TORCH_TYPES (1u << SYMWIN_F32 | 1u << SYMWIN_BF16)

struct perf_options {
    size_t begin, end, step; /* bytes; step 0: by factor */
    int factor;
    int threads, per_thread; /* ranks of a process: their product; 0: not given */
    int nproc;               /* processes to be forked; 0: none */
    int calls, warmup;       /* calls 0: by size */
    int replays;             /* of the graph; 0: calls are launched in the stream */
    int rounds;              /* of stream calls, where replays is 0 */
    int percentiles;         /* single calls that they are of; 0: they are of the repetitions */
    int check, host_data;
    unsigned types, ops, algos; /* bit i: value i of symwin.h's list */
    unsigned char
        type_order[PERF_MOST_NAMES]; /* one more than each, as they were asked for; 0 ends */
    unsigned char op_order[PERF_MOST_NAMES];
    int all_algos; /* those that cannot serve a call are passed over */
    int blocks, block_threads, sm_limit;
    int collective; /* symwin_collective */
    int window;
    unsigned placements; /* PERF_OUT_OF_PLACE, PERF_IN_PLACE */
    int rotate;
    unsigned rivals; /* PERF_NCCL... */
    int graph_launch;
    int link, launch;
    int progress;
    int timeout_s;
    unsigned seed;
    const char *csv, *json, *tune, *picture;
    const char *kernels[PERF_MOST_KERNELS]; /* of one's own */
    int kernel_count;
    const char *compile; /* words for their compilers */
    int race, seconds;   /* of it; 0: the default */
    int algos_given, rivals_given;
    char arguments[1024]; /* as they were given */
};

/* Returns -1 to go on, else the program's exit status: --help has been printed, or what is wrong. What
 * depends on the driver is still 0 then: see options_complete(). */
int options_parse(int argc, char **argv, struct perf_options *options);

/* The defaults that a GPU and the emulated driver, which shows nothing of speed, have apart. NULL: good;
 * else what is wrong, in a sentence. */
const char *options_complete(struct perf_options *options, int emulated);

/* Type or operation `i` of those that were asked for, in that order; -1: there are no more. */
int options_nth(const unsigned char order[PERF_MOST_NAMES], unsigned bits, int i);

/* ---- nccl_tests.c: options of nccl-tests ---- */

/* The option that does the same here, or the word itself. */
const char *options_own_name(const char *given);

/* Whether it is one that is refused, which is said with what to give instead. */
int options_foreign(const char *given);

/* ---- options.c ---- */

/* The next size after `bytes`, 0: that was the last. */
size_t options_next_size(const struct perf_options *options, size_t bytes);

/* Calls of a repetition at a size. */
int options_calls(const struct perf_options *options, size_t bytes, int emulated);

#endif
