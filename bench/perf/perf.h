/* symwin-perf: the declarations that its files share. Calls go down the list.
 *
 *   main.c      processes, threads, the watchdog
 *   tune.c      --tune: tries algorithms and grids, and writes a table
 *   sweep.c     the order of sizes, types, operations and ways
 *   measure.c   one way at one size: checks, times, checks again
 *   gate.c      one repetition: work behind a start gate, between two events
 *   ways.c      what is timed: symwin's algorithms, NCCL, links
 *   layout.c    what a call is on a rank: buffers, and what its output must be
 *   rank.c      a rank's state
 *   kernels.c   fills and compares on the device, or on the host
 *   ../own/     your own kernels: own.h
 *   rivals.c    NCCL, loaded by dlopen; torch.c PyTorch, in its own processes
 *   table.c     the printed table; record.c the files; machine.c their heads
 *   draft.c     a file until it is complete
 *   options.c   the command line
 *
 * Each rank has a thread. How functions fail: own.h. What one rank finds out, meet() tells to all.
 */
#ifndef PERF_H
#define PERF_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "../own/own.h"
#include "data.h"
#include "kernel_args.h"
#include "options.h"
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
    WAY_LAUNCH_EARLY,
    WAY_LAUNCH_PARTS /* with the arguments of a call by unequal parts */
};

enum memory_kind {
    MEMORY_WINDOW,
    MEMORY_PLAIN,
    MEMORY_NCCL,
    MEMORY_NCCL_WINDOW,
    MEMORY_NCCL_REG,
    MEMORY_POOL_REG, /* symwin's pool, registered with NCCL */
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
    int optional;                 /* skipped if it does not support a call */
    int blocks, threads;          /* the grid; 0: the library's choice */
    int own;                      /* WAY_OWN: index of --kernel */
    symwin_collective collective; /* WAY_OWN */
};

enum { MOST_WAYS = 40 };

/* The ways that the options ask for: symwin's, then NCCL's, then the machine's limits (links and
 * launches). */
struct ways {
    struct way list[MOST_WAYS];
    int count;  /* collectives */
    int limits; /* links and launches, after the collectives */
};

static inline int way_is_launch(const struct way *way)
{
    return way->kind >= WAY_LAUNCH;
}

static inline int way_is_limit(const struct way *way)
{
    return way->kind >= WAY_LINK_ENGINE;
}

/* page: that of --kernel, or NULL. */
void ways_list(const struct perf_options *options, const struct stage_page *page,
               struct ways *ways);

/* Whether a way, which is no limit, is one of the collective. */
int way_serves(const struct way *way, symwin_collective collective);

/* Fails if a way that was asked for serves none of the collectives. */
int ways_check(const struct perf_options *options, const struct ways *ways);

/* ---- results --------------------------------------------------------------------------------- */

struct result {
    const struct way *way;
    symwin_collective collective;
    symwin_type type;
    symwin_op op;
    size_t bytes;   /* of the larger buffer; 0: no data */
    uint64_t count; /* the call's element count */
    int in_place;
    int supported; /* 0: the way does not support the call; the rest is empty */
    int calls, repetitions;
    double us; /* time of a call on the slowest rank: median of the repetitions */
    /* Times of a call: of the repetitions, or of single calls with --percentiles. */
    double p50_us, p99_us, max_us;
    double host_us; /* launch of a call on the slowest rank: median; 0: not measured */
    double ratio;   /* a rival's time divided by ours; 0: none */
    /* On rank 0, by symwin's ways and your own kernels; blocks 0: other ways. */
    symwin_collective_info launched;
    int checked;
    uint64_t wrong; /* wrong elements on all ranks */
};

struct job;
double result_algbw(const struct result *result); /* 10^9 bytes per second */
double result_busbw(const struct result *result, int nranks);
const char *result_launched(const struct result *result); /* name of the algorithm or kernel */
const char *result_type(const struct result *result);     /* "none" if the collective has no data */
const char *result_op(const struct result *result);       /* "none" if it does not reduce */

struct rank;
struct pair;

/* ---- layout.c -------------------------------------------------------------------------------- */

/* As the library's names, of PERF_SENDRECV and those by parts too. */
const char *collective_name(symwin_collective collective);
int collective_has_root(symwin_collective collective);
int collective_in_place(symwin_collective collective);  /* whether it can be */
int collective_on_device(symwin_collective collective); /* whether arrays of parts are there */

/* A call on a rank; all lengths are in elements. A barrier, which has no data of its own, is that
 * of the all-gather by which it is checked (../own/cases.c). */
struct layout {
    int sends, receives;    /* whether the rank has an input, an output */
    uint64_t in, out;       /* of the two, also where the rank has none */
    uint64_t larger;        /* of the longer one */
    uint64_t in_at, out_at; /* in place: where they begin in the one buffer, of the longer length */
    /* What the output must be, as arguments of fill() and compare(). */
    int who;
    uint64_t first, part;
    int without, to, which;
    int parts_from;         /* by parts: on which rank an all-to-all has those of the input */
    int send_to, recv_from; /* of sendrecv; SYMWIN_NO_RANK: none */
};

/* which: the root; of sendrecv, whose sends; by parts, which parts. symwin-perf times 0 of the last
 * two. */
struct layout layout_of(symwin_collective collective, int nranks, int rank, int which,
                        uint64_t count);

/* How many kinds of a call there are: `which` is less; of a barrier it is the rank that is late. */
enum { MOST_PARTS = 1 << 16, PERF_EVEN_SEND = 1, PERF_ODD_SEND = 2 };
int layout_kinds(symwin_collective collective, int nranks);

/* The data of the output. */
struct perf_data layout_data(const struct layout *layout, struct perf_data data);

struct layout result_layout(const struct rank *r, const struct result *result);

/* The parts of a call by parts, equal for input and output; each begins where the one before it
 * ends. parts_prepare() brings them to device memory if the collective has them there. It queues
 * that, outside captures. */
symwin_parts parts_of(struct rank *r, symwin_collective collective, uint64_t count);
int parts_prepare(struct rank *r, symwin_collective collective, uint64_t count);

/* A call of this size, rounded down to whole elements. */
struct result result_of_size(const struct job *job, symwin_collective collective, symwin_type type,
                             size_t bytes);

/* ---- draft.c --------------------------------------------------------------------------------- */

struct draft {
    FILE *to;                  /* NULL: closed */
    const char *option, *name; /* the option that names the file, and its final name */
    char path[4096];           /* its name until then */
    char where[2][4096 + 128]; /* sentences that tell the path; the second: after a wrong result */
    volatile int worth;        /* it has results */
    volatile int wrong;        /* 1: a result was wrong, and nothing is written from there on */
    int direct;                /* not a regular file: written without a draft */
    int error;                 /* errno of the first write that failed */
};

enum draft_end {
    DRAFT_DONE,   /* gets its final name */
    DRAFT_KEPT,   /* stays a draft, whose name is printed */
    DRAFT_DROPPED /* removed */
};

int draft_open(struct draft *draft, const char *option, const char *name);
int draft_close(struct draft *draft, enum draft_end end);
void draft_say(const struct draft *draft);

/* Flushes a draft that has results. From now on, a signal that ends the program prints its name. */
void draft_flush(struct draft *draft);

/* ---- the process ----------------------------------------------------------------------------- */

struct rank;

struct job {
    struct perf_options options;
    struct stage_page *page; /* the stage of --kernel or --race; NULL: none */
    symwin_driver_info driver;
    int emulated;
    int multicast; /* communicators and windows may have it: on the emulated driver alone */
    int processes, nranks;
    int first, count; /* ranks of this process */
    int local_first;  /* `first` counted within this host, to choose devices */
    symwin_unique_id id;
    struct ways ways;
    struct rank *ranks;      /* count */
    int broken, stuck, idle; /* SYMWIN_PERF_BREAK */

    /* of rank 0 */
    struct result *results;      /* owned */
    _Atomic size_t result_count; /* read by the watchdog */
    size_t result_room;
    struct draft csv, json;
    char unsupported[512]; /* why the last call was that was not supported; "": there was none */
    uint64_t wrong;

    atomic_int running; /* threads */
    atomic_int failed;
};

/* A pair of buffers for calls. */
struct pair {
    void *in, *out;
    symwin_window *in_window, *out_window;
    uint64_t in_offset, out_offset; /* of the windows in the address map */
    void *nccl_in, *nccl_out;       /* NCCL's windows or registrations */
};

struct rank {
    struct job *job;
    int rank, device;
    struct sw_scope scope; /* the device's context is current in the rank's thread */
    symwin_comm *control;  /* for agreements and for the start gate */
    symwin_comm *comm;     /* under test */
    void *nccl;            /* ncclComm_t */
    CUstream stream;
    CUevent begin, end;
    uint32_t *gate; /* owned, pinned: the stream waits for its value */
    CUdeviceptr gate_address;
    uint32_t gate_value;
    CUdeviceptr gate_data; /* owned: buffer of the gate's tiny all-reduce */
    CUdeviceptr report;    /* owned: a struct perf_report */
    CUfunction fill, compare, parts, copy, spread, delay, nothing, nothing_parts;
    int blocks, threads; /* grid of these kernels */
    void *staging;       /* owned, host memory: to fill and compare without kernels */
    uint64_t scalar;     /* of a pre-multiplied sum: the bits of an element */
    /* owned: counts, then displacements, of a call by parts; in host and in device memory */
    uint64_t *counts;
    CUdeviceptr device_counts;
    struct pair memory[MEMORY_KINDS][PERF_MOST_ROTATE];
    double *host_us; /* owned: of each call in a stream repetition */
    struct own_kernel own[PERF_MOST_KERNELS];

    /* Read by the watchdog. */
    const char *_Atomic stage;  /* the step that the timeout limits; NULL: none */
    _Atomic int64_t stage_ends; /* in the time of sw_now_ms() */
    char doing[160];            /* rank 0, for --progress */
};

/* ---- rank.c ---------------------------------------------------------------------------------- */

int rank_open(struct rank *r);
void rank_close(struct rank *r, int failed);

/* An agreement of all ranks, within the timeout. Returns the status of the first rank that failed,
 * or the reason why the communicator ended. met() returns the values of any rank until the next
 * agreement. */
int meet(struct rank *r, int good, const uint64_t *values, int count);
uint64_t met(const struct rank *r, int rank, int value);

/* Ends the run on all ranks, and their kernels' waits. */
void rank_abort(struct rank *r);

/* Marks a step in which the host waits for the GPU or for a library without timeouts. */
void stage_begin(struct rank *r, const char *what);
void stage_end(struct rank *r);

/* Waits for the stream, then checks whether a kernel gave up. */
int rank_synchronize(struct rank *r, const char *what);

/* ---- kernels.c ------------------------------------------------------------------------------- */

/* Whether this program has kernels for GPUs. */
int kernels_are_there(void);

int kernels_load(struct rank *r);
void kernels_unload(void); /* after the last rank has closed */

/* The kernel, with its code loaded: a first launch that loads it could wait for a kernel that waits
 * for this rank. optional: NULL if the library has none of that name. */
int kernel_find(CUlibrary library, const char *name, int optional, CUfunction *out);
int kernel_threads(CUfunction function, const char *name, int *most); /* of a block */
int kernel_launch(struct rank *r, CUfunction function, const char *name, int blocks, int threads,
                  size_t shared, void *args);
int device_multiprocessors(const struct rank *r, int *count);

/* Queues filling `to` with the elements of `who`: a rank, PERF_RESULT or PERF_PARTS. poison: flips
 * a bit of each, so that elements that are never written are wrong. */
int fill(struct rank *r, const struct perf_data *data, int who, int poison, uint64_t count,
         void *to);

/* Waits, counts the elements that differ from those of `who`, and describes the first in `text`. */
int compare(struct rank *r, const struct perf_data *data, int who, uint64_t count, const void *with,
            uint64_t *wrong, char *text, size_t text_bytes);

/* The same with a report; and the same queued, with a report in device memory. */
struct perf_report;
int compare_report(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                   const void *with, struct perf_report *report);
int compare_queue(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                  const void *with, CUdeviceptr report);

/* Queues a copy by a kernel; `bytes` is a multiple of 16. */
int copy(struct rank *r, void *to, const void *from, size_t bytes);

/* The same to all peers. `to` is rank 0's output; each output has `bytes` bytes from every other
 * rank. */
int store_to_all(struct rank *r, void *to, const void *from, size_t bytes);

/* Queues writing the arrays of unequal parts: counts and displacements of the input's, then of the
 * output's. */
int fill_parts(struct rank *r, const struct layout *layout, CUdeviceptr to);

/* Queues a kernel that waits for `ns`. */
int launch_delay(struct rank *r, uint64_t ns);

/* Queues a kernel that does nothing, with arguments as large as those of a call, or of one by
 * unequal parts. early: it may begin before the work ahead of it has ended. */
int launch_nothing(struct rank *r, int by_parts, int early);

/* ---- rivals.c -------------------------------------------------------------------------------- */

/* Turns NVLS off for NCCL, or refuses. Call it before any thread starts. */
int rivals_without_multicast(void);

/* Applies --sm-limit to NCCL. Call it before any thread starts. */
int rivals_limit(int sm_limit);

/* Whether NCCL can be loaded. */
int rivals_found(void);

/* Loads NCCL, once a process, after the two functions above. */
int rivals_load(void);
int rivals_stand_in(void); /* whether it would be tests' one for the emulated driver */
int rivals_version(void);  /* the number of ncclGetVersion(): 22809 is 2.28.9; 0: not loaded */

int rival_open(struct rank *r);
void rival_close(struct rank *r);
int rival_alloc(struct rank *r, size_t bytes, void **out);
int rival_register(struct rank *r, void *memory, size_t bytes, int as_window, void **handle);
void rival_deregister(struct rank *r, int as_window, void *handle);
void rival_free(void *memory);

/* Whether NCCL has the collective, and as_window: serves symmetric windows by code of their own. */
int rival_serves(symwin_collective collective, int as_window);

/* Queues a call. SYMWIN_UNSUPPORTED: NCCL does not have it in place. */
int rival_call(struct rank *r, const struct result *result, const void *in, void *out);

/* Calls between the two are a group of NCCL's. */
int rival_group_begin(struct rank *r);
int rival_group_end(struct rank *r);

/* ---- torch.c --------------------------------------------------------------------------------- */

/* Whether execvp() would find the program. */
int program_exists(const char *name);

/* Checks early whether PyTorch can be run later. */
int torch_find(struct job *job);

/* Times PyTorch at all sizes and types that it supports, records and prints. Called by rank 0's
 * process after all ranks have ended. */
int torch_run(struct job *job);

/* ---- ways.c ---------------------------------------------------------------------------------- */

/* The input and output of a call. In place, both are in the pair's output. */
unsigned char *result_in(const struct rank *r, const struct result *result,
                         const struct pair *pair);
unsigned char *result_out(const struct rank *r, const struct result *result,
                          const struct pair *pair);

/* Allocates the buffers of every way, each of the largest size. Collective. */
int ways_open(struct rank *r);
void ways_close(struct rank *r, int failed);

/* Opens a pair of buffers, one of `pairs`, each of `bytes` bytes. Collective. */
int pair_open(struct rank *r, enum memory_kind kind, size_t bytes, int pairs, struct pair *pair);
void pair_close(struct rank *r, enum memory_kind kind, struct pair *pair); /* also in part open */

/* Registers memory as a window of the communicator under test, without multicast. Collective. */
int memory_window(struct rank *r, void *memory, size_t bytes, symwin_window **window,
                  uint64_t *offset);

/* A zeroed word of pinned memory, for cuMemFreeHost, and its device address. `what` goes into the
 * error's text. */
int memory_pinned(const char *what, uint32_t **word, CUdeviceptr *address);

/* A rank's part of a call of a collective by the library. */
struct perf_call {
    symwin_comm *comm;
    const void *in;
    void *out;
    uint64_t count;
    symwin_type type;
    symwin_op op;
    int root;
    symwin_collective_options options;
    int to, from;                     /* of sendrecv; SYMWIN_NO_RANK: none */
    symwin_parts in_parts, out_parts; /* without counts: collective_call() sets both */
};

/* Queues it. */
int collective_call(struct rank *r, symwin_collective collective, const struct perf_call *c);

/* What a call by symwin or by your own kernel launches on this rank. */
int way_query(struct rank *r, const struct result *result, symwin_collective_info *info);

/* Queues one call. */
int way_call(struct rank *r, const struct result *result, const struct pair *pair);

/* ---- gate.c ---------------------------------------------------------------------------------- */

/* Queues the work that is timed. */
typedef int (*work_fn)(struct rank *r, void *context);

/* Runs one repetition; *us is the time between the events on this rank. Collective. */
int gated(struct rank *r, work_fn queue, void *context, double *us);

/* Captures the work in a graph, ready to be launched. */
int captured(struct rank *r, work_fn queue, void *context, CUgraphExec *exec);

/* Queues the work and waits for it, without gate and clock. Collective. */
int ungated(struct rank *r, work_fn queue, void *context);

/* ---- measure.c ------------------------------------------------------------------------------- */

/* Fills all of `result` except the ratio; way, type, op, count, bytes and in_place are given.
 * Collective. */
int measure(struct rank *r, struct result *result);

/* Makes one call and checks it: fills `supported`, `launched`, `checked` and adds to `wrong`. */
int measure_right(struct rank *r, struct result *result);

/* Times `calls` calls in a graph, replayed `repetitions` times, out of place. Fills and checks
 * nothing. */
int measure_quickly(struct rank *r, struct result *result);

/* ---- sweep.c --------------------------------------------------------------------------------- */

int sweep(struct rank *r);

/* Our time that a rival is compared with: that of the library's choice, or the fastest if that was
 * not measured. */
struct reference {
    double us; /* 0: none yet */
    int chosen;
};

void reference_take(struct reference *reference, const struct result *ours);

/* ---- tune.c ---------------------------------------------------------------------------------- */

int tune(struct rank *r);

/* ---- machine.c, table.c, record.c: rank 0 ---------------------------------------------------- */

/* Collects each rank's GPU. Collective. */
int machine_meet(struct rank *r);
void machine_print(const struct job *job, FILE *to, const char *before_each);
void machine_json(const struct job *job, FILE *to);

void table_begin(const struct job *job);
void table_head(const struct job *job, symwin_collective collective);
void table_row(const struct job *job, const struct result *out, const struct result *in);
void table_end(const struct job *job, int complete); /* 0: the run failed after these rows */

/* Keeps a result and writes it to the files. */
int record_open(struct job *job);
int record(struct job *job, const struct result *result);

/* Closes the files. They get their final names if the run is complete; otherwise they stay drafts,
 * or are removed if there are no results. */
int record_close(struct job *job, int complete, int exit_status);

/* For the watchdog, before it ends the process: the drafts stay as they are. */
void record_leave(struct job *job);

#endif
