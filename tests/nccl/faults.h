/* Calls of NCCL's allocator while CUDA's driver fails: what faults.c and fault_cases.c share. */
#ifndef FAKE_FAULTS_H
#define FAKE_FAULTS_H

#include "engine.h"
#include "nccl.h"
#include "symwin.h"

/* Weak: they come with the preloaded library. */
#pragma weak symwin_mem_trim
#pragma weak symwin_last_error
#pragma weak symwin_unique_id_create
#pragma weak symwin_comm_create
#pragma weak symwin_comm_destroy
#pragma weak symwin_window_register

enum { MIB = 1 << 20, GRANULE = 2 * MIB, MOST_CALLS = 8, DEVICE = 2 };

extern const struct fake_engine *engine;
#define DRIVER (engine->driver)

/* The settings in the environment. */
struct setting {
    int emulated; /* SYMWIN_DRIVER=emu; else there is a libcuda.so.1 */
    int pool, keeps, debug, peers;
    int first; /* a process's first calls: a failure leaves the process to NCCL */
};
extern struct setting setting;

/* An allocation and its result. */
struct attempt {
    size_t size;
    void *ptr;
    int homeless; /* the thread had no context */
    ncclResult_t result;
    int passed; /* went on to NCCL */
    int live;   /* not freed yet */
};

struct release {
    ncclResult_t result, want; /* want: without a fault */
    int passed, wants_passed;  /* went on to NCCL; should do so without a fault */
    unsigned or_else;          /* bit r: with a fault, result r is allowed too */
    int may_pass;              /* may go on to NCCL if the driver denies that the memory exists */
};

/* What NCCL maps for a window: another mapping of the whole physical allocation. */
struct nccl_window {
    CUdeviceptr memory, address;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    int stage;
};

struct state {
    int by_profiler;   /* calls use the profiler's names */
    int trims_failed;  /* calls of symwin_mem_trim() */
    int judged_made;   /* earlier allocations were made before the fault */
    CUcontext context; /* should be current */
    struct attempt made[MOST_CALLS];
    struct release freed[MOST_CALLS];
    int made_count, freed_count;
    struct nccl_window windows[2];
    struct nccl_window foreign; /* memory that is neither symwin's nor NCCL's */
    CUdeviceptr plain;
    void *own; /* memory of NCCL */
    symwin_comm *comm;
};

struct fault_case {
    const char *name;
    int emulated_only;
    int fails;                       /* some faults reach the caller */
    void (*before)(struct state *s); /* without faults; NULL: nothing to do */
    void (*call)(struct state *s);
    const char *(*after)(struct state *s); /* without faults: what is wrong, or NULL */
};

/* The last one has no name. */
extern const struct fault_case fault_cases[];
extern const struct fault_case first_cases[]; /* for a process that has made no call yet */

void *try_alloc(struct state *s, size_t size); /* NULL: none */
void try_free(struct state *s, void *ptr);     /* of memory of try_alloc() */

/* Frees memory that the pool has not handed out. */
void try_odd_free(struct state *s, void *ptr, struct release expected);

/* Undoes what `before` made, except allocations. */
void clear_case(struct state *s);

/* For steps that are not under test. */
void must(int result, const char *what);

#endif
