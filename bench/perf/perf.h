/* symwin-perf: what its files share. Calls go down the list of files at the end of this comment.
 *
 *   main.c      processes, threads, the watchdog
 *   tune.c      --tune: which algorithms and grids, and which is the best; tune_file.c its table
 *   sweep.c     which sizes, types, operations and ways, in which order
 *   measure.c   one way at one size: checked, timed, checked again
 *   gate.c      one repetition: work behind a start gate, between two events
 *   ways.c      what is timed: symwin's algorithms, NCCL, links
 *   rank.c      what a rank holds
 *   kernels.c   fill and compare on the device, or on the host
 *   own.h       kernels of one's own, and the files that they have
 *   rivals.c    NCCL, by dlopen; torch.c PyTorch, in processes of its own
 *   table.c     what is printed; record.c what is written to files; machine.c where it ran
 *   draft.c     a file until it is complete
 *   options.c   the command line
 *
 * A function that returns a symwin_status leaves its sentence with sw_fail() or sw_check(), so that
 * symwin_last_error() has it. What only one rank finds out is told to all in meet().
 */
#ifndef PERF_H
#define PERF_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "data.h"
#include "kernel_args.h"
#include "options.h"
#include "../own/own.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

/* ---- ways.c: what is timed ------------------------------------------------------------------- */

enum way_kind {
    WAY_SYMWIN,
    WAY_OWN,
    WAY_NCCL,
    WAY_TORCH,
    WAY_LINK_ENGINE,
    WAY_LINK_STORES,
    WAY_LINK_SPREAD,
    WAY_LAUNCH,
    WAY_LAUNCH_EARLY
};

enum memory_kind {
    MEMORY_WINDOW,
    MEMORY_PLAIN,
    MEMORY_NCCL,
    MEMORY_NCCL_WINDOW,
    MEMORY_NCCL_REG,
    MEMORY_POOL_REG, /* of symwin's pool, for NCCL */
    MEMORY_POOL_WINDOW,
    MEMORY_TORCH, /* in its own processes */
    MEMORY_KINDS
};

struct way {
    const char *library; /* "symwin", "own", "nccl", "torch", "link" or "launch" */
    const char *name;
    enum way_kind kind;
    symwin_algo algo;
    enum memory_kind memory;
    int optional;        /* passed over where it cannot serve a call */
    int blocks, threads; /* of the grid; 0: the library's choice */
    int own;             /* of WAY_OWN: which --kernel */
};

enum { MOST_WAYS = 40 };

/* The ways that the options ask for: symwin's, then NCCL's, then what the machine gives: links and launches. */
struct ways {
    struct way list[MOST_WAYS];
    int count;  /* of collectives */
    int limits; /* behind them */
};

static inline int way_is_launch(const struct way *way)
{
    return way->kind == WAY_LAUNCH || way->kind == WAY_LAUNCH_EARLY;
}

static inline int way_is_limit(const struct way *way)
{
    return way->kind >= WAY_LINK_ENGINE;
}

/* `page`: of --kernel's, NULL: there are none. */
void ways_list(const struct perf_options *options, const struct stage_page *page,
               struct ways *ways);

/* ---- results ---------------------------------------------------------------------------------- */

struct result {
    const struct way *way;
    symwin_collective collective;
    symwin_type type;
    symwin_op op;
    size_t bytes;   /* of the larger buffer */
    uint64_t count; /* elements that a rank passes, as the call has it */
    int in_place;
    int supported; /* 0: this way cannot serve the call; the rest is empty */
    int calls, repetitions;
    double us; /* of a call: median over the repetitions of the slowest rank's time */
    double p50_us, p99_us,
        max_us;     /* of a call; of the repetitions, or with --percentiles of single calls */
    double host_us; /* to launch a call: median, of the slowest rank; 0: not measured */
    double ratio;   /* a rival's time to that of ours, 0: none */
    symwin_collective_info
        launched; /* by symwin's ways and one's own on rank 0; blocks 0: by another's */
    int checked;
    uint64_t wrong; /* elements, on all ranks */
};

struct job;
double result_algbw(const struct result *result); /* 10^9 bytes a second */
double result_busbw(const struct result *result, int nranks);
const char *result_launched(const struct result *result); /* an algorithm's name, or a kernel's */
const char *result_op(const struct result *result);       /* "none" where nothing is reduced */

/* A call of such a size, or a little less: in whole elements. */
struct result result_of_size(const struct job *job, symwin_type type, size_t bytes);

/* Where a rank's own part of the larger buffer begins, in bytes: what in place means. */
size_t result_own(const struct result *result, int rank);

/* ---- draft.c ---------------------------------------------------------------------------------- */

struct draft {
    FILE *to;                  /* NULL: closed */
    const char *option, *name; /* whose the file is, and what it will be called */
    char path[4096];           /* what it is called until then */
    int direct;                /* it is no regular file, and written to at once */
    int error;                 /* errno of the first write that failed */
};

enum draft_end {
    DRAFT_DONE,   /* it gets its name */
    DRAFT_KEPT,   /* it is left under the other, which is said */
    DRAFT_DROPPED /* it is removed */
};

symwin_status draft_open(struct draft *draft, const char *option, const char *name);
symwin_status draft_close(struct draft *draft, enum draft_end end);
void draft_say(const struct draft *draft);

/* What was printed to it is worth keeping: a signal that ends the program says where it is. */
void draft_flush(struct draft *draft);

/* ---- the process ------------------------------------------------------------------------------ */

struct rank;

struct job {
    struct perf_options options;
    struct stage_page *page; /* what this process is for, where there is --kernel or --race; NULL */
    symwin_driver_info driver;
    int emulated;
    int processes, nranks;
    int first, count; /* this process's ranks */
    int local_first;  /* the number of `first` among this host's ranks, for choosing devices */
    symwin_unique_id id;
    struct ways ways;
    struct rank *ranks;      /* count */
    int broken, stuck, idle; /* SYMWIN_PERF_BREAK */

    /* rank 0's */
    struct result *results; /* owned */
    size_t result_count, result_room;
    struct draft csv, json;
    uint64_t wrong;

    pthread_mutex_t mutex; /* for the last two, and for result_count where the watchdog asks */
    int running;           /* threads */
    int failed;
};

/* What a pair of buffers is called with. */
struct pair {
    void *in, *out;
    symwin_window *in_window, *out_window;
    uint64_t in_offset, out_offset; /* of the windows */
    void *nccl_in, *nccl_out;       /* windows, or registrations */
};

struct rank {
    struct job *job;
    int rank, device;
    struct sw_scope scope; /* the device's context is current in the rank's thread */
    symwin_comm *control;  /* for meetings and for the start gate */
    symwin_comm *comm;     /* under test */
    void *nccl;            /* ncclComm_t */
    CUstream stream;
    CUevent begin, end;
    uint32_t *gate; /* owned, pinned: the stream waits for values of it */
    CUdeviceptr gate_address;
    uint32_t gate_value;
    CUdeviceptr gate_data; /* owned: what the tiny all-reduce of the gate reduces */
    CUdeviceptr report;    /* owned: a struct perf_report */
    CUfunction fill, compare, copy, spread, delay, nothing;
    int blocks, threads; /* of those */
    void *staging;       /* owned, host: for filling and comparing without kernels */
    struct pair memory[MEMORY_KINDS][PERF_MOST_ROTATE];
    double *host_us; /* owned: of every call of a stream repetition */
    struct own_kernel own[PERF_MOST_KERNELS];

    /* Read by the watchdog. */
    const char *_Atomic stage;  /* what may take no longer than the timeout, NULL: nothing */
    _Atomic int64_t stage_ends; /* by sw_now_ms() */
    char doing[160];            /* rank 0: for --progress */
};

/* ---- rank.c ----------------------------------------------------------------------------------- */

symwin_status rank_open(struct rank *r);
void rank_close(struct rank *r, int failed);

/* An agreement of all ranks, within the timeout: the status of the first that failed, or what ended the
 * communicator. The values of all can be had from met() until the next meeting. */
symwin_status meet(struct rank *r, symwin_status status, const uint64_t *values, int count);
uint64_t met(const struct rank *r, int rank, int value);

/* Tells all ranks, and their kernels, that it is over. */
void rank_abort(struct rank *r);

/* A stretch in which the host waits for the GPU or for a library that knows no timeout. */
void stage_begin(struct rank *r, const char *what);
void stage_end(struct rank *r);

/* Waits for the stream; then says whether a kernel gave up. */
symwin_status rank_synchronize(struct rank *r, const char *what);

/* ---- kernels.c -------------------------------------------------------------------------------- */

/* Whether this program has any for GPUs. */
int kernels_are_there(void);

symwin_status kernels_load(struct rank *r);
void kernels_unload(void); /* when no rank is left */

/* Queues: makes `to` the elements of `who`, a rank or PERF_RESULT. `poison`: each with a bit flipped, so that
 * all are wrong until something is written there. */
symwin_status fill(struct rank *r, const struct perf_data *data, int who, int poison,
                   uint64_t count, void *to);

/* Waits, and counts the elements that differ from `who`'s; the first of them is described in `text`. */
symwin_status compare(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                      const void *with, uint64_t *wrong, char *text, size_t text_bytes);

/* The same with a report of them; and queued, for a report in device memory. */
struct perf_report;
symwin_status compare_report(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                             const void *with, struct perf_report *report);
symwin_status compare_queue(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                            const void *with, CUdeviceptr report);

/* Queues a copy by a kernel; `bytes` is a multiple of 16. */
symwin_status copy(struct rank *r, void *to, const void *from, size_t bytes);

/* The same to all peers: `to` is rank 0's output, where each peer has `bytes` from every other rank. */
symwin_status store_to_all(struct rank *r, void *to, const void *from, size_t bytes);

/* Queues a kernel that takes so long. */
symwin_status launch_delay(struct rank *r, uint64_t ns);

/* Queues a kernel that does nothing. `early`: it may begin before what is ahead of it has ended. */
symwin_status launch_nothing(struct rank *r, int early);

/* ---- rivals.c --------------------------------------------------------------------------------- */

/* Switches NVLS off for NCCL, or refuses; before anything has threads. */
symwin_status rivals_without_multicast(void);

/* --sm-limit for NCCL; before anything has threads, too. */
symwin_status rivals_limit(int sm_limit);

/* Whether there is an NCCL to load. */
int rivals_found(void);

/* Loads NCCL; once a process, after that. */
symwin_status rivals_load(void);
int rivals_version(void); /* as ncclGetVersion(): 22809 is 2.28.9; 0: not loaded */

symwin_status rival_open(struct rank *r);
void rival_close(struct rank *r);
symwin_status rival_alloc(struct rank *r, size_t bytes, void **out);
symwin_status rival_register(struct rank *r, void *memory, size_t bytes, int as_window,
                             void **handle);
void rival_deregister(struct rank *r, int as_window, void *handle);
void rival_free(void *memory);
symwin_status rival_call(struct rank *r, const void *in, void *out, uint64_t count,
                         symwin_type type, symwin_op op);

/* ---- torch.c ---------------------------------------------------------------------------------- */

/* Whether execvp() would find it. */
int program_exists(const char *name);

/* Whether it could be run, before it is its turn. */
symwin_status torch_find(const struct job *job);

/* Times it at all sizes and types that it has, when no rank of ours is left; records, prints. By rank 0's process. */
symwin_status torch_run(struct job *job);

/* ---- ways.c ----------------------------------------------------------------------------------- */

/* The buffers of every way, each of the largest size. Collective. */
symwin_status ways_open(struct rank *r);
void ways_close(struct rank *r, int failed);

/* What a call by one of symwin's ways, or one's own, launches on this rank. */
symwin_status way_query(struct rank *r, const struct result *result, symwin_collective_info *info);

/* One call, queued. */
symwin_status way_call(struct rank *r, const struct result *result, const struct pair *pair);

/* ---- gate.c ----------------------------------------------------------------------------------- */

/* What is timed: `queue` puts it into the stream. */
typedef symwin_status (*work_fn)(struct rank *r, void *context);

/* One repetition; *us is from event to event on this rank. Collective. */
symwin_status gated(struct rank *r, work_fn queue, void *context, double *us);

/* The work queued and waited for, without gate or clock. Collective. */
symwin_status ungated(struct rank *r, work_fn queue, void *context);

/* ---- measure.c -------------------------------------------------------------------------------- */

/* Fills all of `result` but the ratio; way, type, op, count, bytes and in_place are given. Collective. */
symwin_status measure(struct rank *r, struct result *result);

/* One call, and whether its result is right: fills `supported`, `launched`, `checked` and adds to `wrong`. */
symwin_status measure_right(struct rank *r, struct result *result);

/* `calls` calls in a graph, replayed `repetitions` times, out of place; nothing is filled or checked. */
symwin_status measure_quickly(struct rank *r, struct result *result);

/* ---- sweep.c ---------------------------------------------------------------------------------- */

symwin_status sweep(struct rank *r);

/* What of ours a rival is held against: what the library chooses, or the fastest where that was not measured. */
struct reference {
    double us; /* 0: nothing yet */
    int chosen;
};

void reference_take(struct reference *reference, const struct result *ours);

/* ---- tune.c, tune_file.c ---------------------------------------------------------------------- */

struct choice {
    symwin_algo algo;
    int blocks, threads; /* as asked for */
    int grid;            /* blocks that were launched */
    double us;           /* of a call */
};

symwin_status tune(struct rank *r);

/* Rank 0: the table, in a file of another name until it is complete. */
struct tune_file;
symwin_status tune_file_open(const struct job *job, const char *gpu, struct tune_file **out);
/* The best choice for a size. */
symwin_status tune_file_add(struct tune_file *file, symwin_type type, int registered, size_t bytes,
                            const struct choice *best);
/* Writes all and gives the file its name; or, if not `good`, removes it. */
symwin_status tune_file_close(struct tune_file *file, int good, int *rows);

/* ---- machine.c, table.c, record.c: rank 0 ------------------------------------------------------ */

/* Which GPU each rank has. Collective. */
symwin_status machine_meet(struct rank *r);
void machine_print(const struct job *job, FILE *to, const char *before_each);
void machine_json(const struct job *job, FILE *to);

void table_head(const struct job *job);
void table_row(const struct job *job, const struct result *out, const struct result *in);
void table_end(const struct job *job, int complete); /* 0: something failed after these rows */

/* Keeps a result, and writes it to the files. */
symwin_status record_open(struct job *job);
symwin_status record(struct job *job, const struct result *result);

/* The files of a run that has gone through everything get their names; those of another are kept, if there are any
 * results, as drafts. */
symwin_status record_close(struct job *job, int complete, int exit_status);

/* By the watchdog, which ends the process: the files are left as they are. */
void record_leave(struct job *job);

#endif
