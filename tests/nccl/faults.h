/* Calls of NCCL's allocator while CUDA's driver fails: what faults.c does with the cases of fault_cases.c. */
#ifndef FAKE_FAULTS_H
#define FAKE_FAULTS_H

#include "engine.h"
#include "nccl.h"
#include "symwin.h"

/* They come with the library that is preloaded. */
#pragma weak symwin_mem_trim
#pragma weak symwin_last_error
#pragma weak symwin_unique_id_create
#pragma weak symwin_comm_create
#pragma weak symwin_comm_destroy
#pragma weak symwin_window_register

enum { MIB = 1 << 20, GRANULE = 2 * MIB, MOST_CALLS = 8, DEVICE = 2 };

extern const struct fake_engine *engine;
#define DRIVER (engine->driver)

/* What the environment says. */
struct setting {
    int emulated; /* SYMWIN_DRIVER=emu; else there is a libcuda.so.1 */
    int pool, keeps, debug, peers;
    int first; /* a process's first calls: what is wrong then leaves the process to NCCL */
};
extern struct setting setting;

/* An allocation, and what came of it. */
struct attempt {
    size_t size;
    void *ptr;
    int homeless; /* the thread had no context */
    ncclResult_t result;
    int passed; /* on to NCCL */
    int live;   /* not freed yet */
};

struct release {
    ncclResult_t result, want; /* want: without a fault */
    int passed, wants_passed;  /* on to NCCL */
    unsigned or_else;          /* bit r: with a fault, r too; */
    int may_pass;              /* and on to NCCL where the driver denies that anything is there */
};

/* What NCCL maps for a window: the whole physical allocation, once more. */
struct nccl_window {
    CUdeviceptr memory, address;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    int stage;
};

struct state {
    int by_profiler;   /* calls go by the profiler's names */
    int trims_failed;  /* calls of symwin_mem_trim() */
    int judged_made;   /* allocations before that were before the fault */
    CUcontext context; /* what is to be current */
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
    int fails;                       /* a caller hears of some of its faults */
    void (*before)(struct state *s); /* without faults; NULL: nothing to do */
    void (*call)(struct state *s);
    const char *(*after)(struct state *s); /* without faults: what is wrong, or NULL */
};

/* Ends with one without a name. */
extern const struct fault_case fault_cases[];
extern const struct fault_case first_cases[]; /* of a process that has called nothing yet */

void *try_alloc(struct state *s, size_t size); /* NULL: none */
void try_free(struct state *s, void *ptr);     /* what try_alloc() gave */

/* Frees what the pool has not handed out. */
void try_odd_free(struct state *s, void *ptr, struct release expected);

/* Undoes what `before` has made beside allocations. */
void clear_case(struct state *s);

/* For steps that are no test themselves. */
void must(int result, const char *what);

#endif
