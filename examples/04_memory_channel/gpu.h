/* Kernels, graphs and events of the CUDA driver or the emulated one: symwin_driver_find() gives the
 * entry points. A program with the CUDA runtime uses that instead. */
#ifndef GPU_H
#define GPU_H

#include "kernels.h"

enum kernel { PUT, GET, GET_BULK, PUT_PACKETS, KERNELS };

struct grid {
    int blocks, threads;
};

struct gpu {
    int device, multiprocessors;
    int bulk;              /* has bulk copies: sm_90 */
    unsigned shared_bytes; /* for blocks of GET_BULK */
    struct CUstream_st *stream;
    struct CUlib_st *library;
    struct CUfunc_st *functions[KERNELS];
    struct CUevent_st *begin, *end;
    struct CUgraphExec_st *replayed; /* NULL: none */
};

/* These return NULL, or an error text that is valid until the thread's next call. gpu_start() is
 * called once, before the ranks begin. */
const char *gpu_start(void);
const char *gpu_open(struct gpu *gpu, int device);
const char *gpu_clear(struct gpu *gpu, void *memory, int byte, size_t bytes);

/* Makes a graph of `count` launches, one after the other. */
const char *gpu_record(struct gpu *gpu, enum kernel kernel, struct grid grid,
                       struct copy_args *args, int count);

/* Enqueues the graph between two events. */
const char *gpu_replay(struct gpu *gpu);

/* Waits; then the milliseconds of the last replay. */
const char *gpu_elapsed(struct gpu *gpu, double *ms);

void gpu_close(struct gpu *gpu); /* also after a failed gpu_open() */

#endif
