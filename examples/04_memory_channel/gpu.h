/* Kernels, graphs and events by CUDA's driver, or by the emulated one: symwin_driver_find() gives the entry points of whichever
 * answers. A program on the CUDA runtime has all this from there. */
#ifndef GPU_H
#define GPU_H

#include "kernels.h"

enum kernel { PUT, GET, GET_BULK, PUT_PACKETS, KERNELS };

struct grid {
    int blocks, threads;
};

struct gpu {
    int device, multiprocessors;
    int bulk;              /* it has bulk copies: sm_90 */
    unsigned shared_bytes; /* that GET_BULK's blocks have */
    struct CUstream_st *stream;
    struct CUlib_st *library;
    struct CUfunc_st *functions[KERNELS];
    struct CUevent_st *begin, *end;
    struct CUgraphExec_st *replayed; /* NULL: none */
};

/* These return NULL, or what went wrong, which is good until the thread's next call. The first one is called once, before the
 * ranks begin. */
const char *gpu_start(void);
const char *gpu_open(struct gpu *gpu, int device);
const char *gpu_clear(struct gpu *gpu, void *memory, int byte, size_t bytes);

/* Makes a graph of `count` launches, one behind the other. */
const char *gpu_record(struct gpu *gpu, enum kernel kernel, struct grid grid,
                       struct copy_args *args, int count);

/* Queues it, between two events, and behind whatever is in the stream. */
const char *gpu_replay(struct gpu *gpu);

/* Waits; milliseconds of the last replay. */
const char *gpu_elapsed(struct gpu *gpu, double *ms);

void gpu_close(struct gpu *gpu); /* from wherever it got to */

#endif
