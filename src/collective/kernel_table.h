/* Kernels of either driver, loaded for a device; and launches through a graph of one kernel. */
#ifndef SYMWIN_KERNEL_TABLE_H
#define SYMWIN_KERNEL_TABLE_H

#include "kernels/kernel_list.h"
#include "src/window/window.h"

#define SW_TYPES 12
#define SW_OPS 6
#define SW_ALGOS 13
#define SW_ONE(name, value, text) +1
enum { SW_COLLECTIVES = 0 SYMWIN_COLLECTIVE_LIST(SW_ONE) };
#undef SW_ONE

struct sw_kernels; /* a device's; constant while the caller holds the reference */

/* Loads every kernel that a communicator of so many ranks may launch, into the current context,
 * which is `device`'s. Nothing is left for the first launch: loading a kernel can wait for a
 * running kernel, which may be waiting for this rank. `multicast`: those that use it, too. */
symwin_status sw_kernels_acquire(int device, int nranks, int multicast, struct sw_kernels **out);
void sw_kernels_release(struct sw_kernels *kernels);

/* In place of a number of ranks: the kernel of sw_kernels_sum() and no other, for a communicator
 * over several domains. */
enum { SW_SUM_ALONE = 0 };

struct sw_kernel {
    CUfunction function;
    int threads;      /* that a block takes */
    unsigned shared;  /* bytes of dynamic shared memory of a block, for the launch */
    int resident;     /* blocks of so many threads that the whole device holds at the same time */
    symwin_type type; /* that it is named after */
    int other;        /* it is for what is no sum, and for sums if no kernel is */
    enum sw_kernel_shape shape; /* of the messages that it is for */
};

/* The algorithm that does the work of `algo` for a type: mostly itself. */
symwin_algo sw_kernels_algo(symwin_collective collective, symwin_algo algo, symwin_type type);
/* The kernel for messages of that shape, or else for any. NULL: there is none. */
const struct sw_kernel *sw_kernels_get(const struct sw_kernels *kernels,
                                       symwin_collective collective, symwin_algo algo,
                                       symwin_type type, symwin_op op, enum sw_kernel_shape shape);
/* The kernel of sends and receives: of any number, or of a few that are not large. */
const struct sw_kernel *sw_kernels_pairs(const struct sw_kernels *kernels, int few);
/* The kernel of several small calls of a group (kernels/group_layout.h): of any, or if they are
 * short and do not wait for each other, NULL if there is none for the number of ranks. */
const struct sw_kernel *sw_kernels_group(const struct sw_kernels *kernels,
                                         enum sw_kernel_shape shape);
/* The kernel that stores rows ahead of a call by parts (kernels/table_layout.h). It has no function
 * where the ranks are few enough for the arguments of the call's own kernel. */
const struct sw_kernel *sw_kernels_rows(const struct sw_kernels *kernels);
/* The kernel that reduces arrays in a rank's own memory (kernels/sum.cu). It has no function unless
 * SW_SUM_ALONE was asked for. */
const struct sw_kernel *sw_kernels_sum(const struct sw_kernels *kernels);
/* sw_kernel_args.op for a call by that kernel, which may be that of another type. */
uint32_t sw_kernel_op(const struct sw_kernel *kernel, symwin_type type, symwin_op op);
/* Bit i: there are kernels of algorithm i, of each collective that has it. */
unsigned sw_kernels_algos(const struct sw_kernels *kernels);
int sw_kernels_multiprocessors(const struct sw_kernels *kernels);
/* Whether a kernel can begin before the one ahead of it in its stream has ended. */
int sw_kernels_begin_early(const struct sw_kernels *kernels);

/* ---- graph_launch.c ---- */

/* All NULL without SYMWIN_COMM_GRAPH_LAUNCH. */
struct sw_graph_launch {
    CUgraph graph;    /* owned */
    CUgraphNode node; /* the only node */
    CUgraphExec exec; /* owned, instantiated from `graph` */
};

/* Uploads a graph before its first launch, and waits for the stream. Otherwise the first launch
 * uploads it; if two launches do so at once on a device, one may wait until the other has run. */
symwin_status sw_graph_upload(CUgraphExec exec, CUstream stream);

/* Nothing without SYMWIN_COMM_GRAPH_LAUNCH. */
symwin_status sw_graph_launch_create(symwin_comm *comm);
void sw_graph_launch_release(struct sw_graph_launch *g);

/* As cuLaunchKernelEx, less its attributes; the stream is in no capture. */
symwin_status sw_graph_launch(const struct sw_graph_launch *g, const CUlaunchConfig *config,
                              CUfunction function, void **params, const char *call);

#endif
