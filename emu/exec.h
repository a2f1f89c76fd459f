/* What the files behind streams, events, graphs and kernels share.
 *
 * Locks, in the order in which they may be taken: an event's or a graph launch's, that of captures,
 * one device's, the thread pool's. Handles have one of their own, under which none is taken.
 */
#ifndef SYMWIN_EMU_EXEC_H
#define SYMWIN_EMU_EXEC_H

#include "emu_internal.h"

/* ---- handle.c: which pointers are handles ---------------------------------------------------- */

enum emu_handle {
    EMU_HANDLE_STREAM = 1,
    EMU_HANDLE_EVENT,
    EMU_HANDLE_LIBRARY,
    EMU_HANDLE_KERNEL,
    EMU_HANDLE_FUNCTION,
    EMU_HANDLE_GRAPH,
    EMU_HANDLE_GRAPH_EXEC,
    EMU_HANDLE_USER_OBJECT,
    EMU_HANDLE_GREEN
};

int emu_handle_add(enum emu_handle kind, const void *handle);  /* -1: no memory */
int emu_handle_drop(enum emu_handle kind, const void *handle); /* whether it was one */
int emu_handle_is(enum emu_handle kind, const void *handle);

/* ---- grid.c: the thread pool and the block scheduler ----------------------------------------- */

/* Runs fn(arg) on a thread of its own, from a pool that grows as needed. -1: no thread left. */
int emu_pool_start(void (*fn)(void *arg), void *arg);

/* Whether the process is ending: kernels and waits give up. */
int emu_exiting(void);

/* How many blocks of that many threads and bytes of shared memory a multiprocessor holds; 0: the block is too large. */
unsigned emu_occupancy(unsigned long long threads, size_t shared);

/* A part of a device with so many multiprocessors; 0: there are too many parts. 0 may be closed. */
int emu_partition_open(CUdevice device, unsigned multiprocessors);
void emu_partition_close(CUdevice device, int partition);

/* ---- op.c: what a stream or a graph node does ------------------------------------------------ */

enum emu_op_kind {
    EMU_OP_NOTHING,
    EMU_OP_COPY,
    EMU_OP_FILL,
    EMU_OP_KERNEL,
    EMU_OP_HOST,
    EMU_OP_MEMORY,
    EMU_OP_GRAPH
};

struct emu_op {
    enum emu_op_kind kind;
    CUdevice device;
    void *owned; /* the kernel's parameters, the copy's staged source, the batch of memory ops */
    union {
        struct {
            CUdeviceptr dst, src;
            size_t bytes;
        } copy;
        struct {
            CUdeviceptr dst;
            unsigned value;
            size_t width, count;
        } fill;
        struct {
            const struct sw_emu_kernel *kernel;
            unsigned grid[3], block[3];
            unsigned shared; /* dynamic, bytes */
            int partition;
        } kernel;
        struct {
            CUhostFn fn;
            void *data;
        } host;
        unsigned memory_count;
        struct emu_exec *exec; /* a reference */
    };
};

CUresult emu_op_run(const struct emu_op *op);
int emu_op_copy(struct emu_op *to, const struct emu_op *from); /* -1: no memory. Not for graphs */
void emu_op_free(struct emu_op *op);

/* Whether all of the range may be read (or written) by the device; host memory may. */
int emu_range_ok(CUdevice device, CUdeviceptr addr, size_t bytes, int write);
int emu_is_device_address(CUdeviceptr addr);

/* Leaves `code` on the device's context; the first one stays. */
void emu_context_fail(CUdevice device, CUresult code);

/* Whether this thread is in a host function, where driver calls are not permitted. */
extern __thread int emu_in_host_function;

/* ---- launch.c -------------------------------------------------------------------------------- */

/* Checks a launch of a kernel on the device and makes an op of it, with a copy of the parameters. On
 * failure there is nothing to free. */
CUresult emu_kernel_op(struct emu_op *op, CUdevice device, const CUDA_KERNEL_NODE_PARAMS *params);

/* ---- stream.c -------------------------------------------------------------------------------- */

/* A point in some stream's work. Reference-counted; everything but refs is under the lock of the
 * stream's device. */
struct emu_mark {
    atomic_int refs;
    int done;
    uint64_t ns; /* when it was passed */
    struct CUstream_st *stream;
};
struct emu_mark *emu_mark_ref(struct emu_mark *mark); /* NULL is fine, here and in unref */
void emu_mark_unref(struct emu_mark *mark);
void emu_mark_wait(struct emu_mark *mark);
int emu_mark_passed(struct emu_mark *mark, uint64_t *ns); /* ns may be NULL */

struct emu_capture;

struct CUstream_st {
    struct CUctx_st *ctx;
    CUdevice device;
    unsigned flags;
    int legacy;
    CUgreenCtx green; /* NULL: the primary context's, in partition 0 */
    int partition;
    uint64_t id;     /* unlike the handle never used again */
    atomic_int refs; /* the handle, the thread at work, marks */

    /* under the device's lock */
    struct emu_task *first, *last; /* the first one is running or next */
    uint64_t submitted, completed;
    int at_work;
    pthread_cond_t done;
    struct CUstream_st *next, **link; /* all streams of the device that have a handle or work */

    /* graph.c's, under the capture lock; `capture` is read without it to see that it is NULL */
    struct emu_capture *_Atomic capture;
    struct CUstream_st *capture_next;
    CUgraphNode *tails;
    size_t tail_count;
};

/* Enqueues the op (moved; freed on failure too), or adds it to the capture that the stream is in.
 * It starts when `after` was passed (may be NULL); `*passed`, if asked for, is a mark behind it. */
CUresult emu_submit(struct CUstream_st *stream, struct emu_op *op, struct emu_mark *after,
                    struct emu_mark **passed);

/* cuStreamCreate, in a partition of the device. */
CUresult emu_stream_open(CUstream *stream, struct CUctx_st *ctx, unsigned flags, CUgreenCtx green,
                         int partition);

/* Waits for what has been enqueued in the stream so far. */
void emu_stream_wait(struct CUstream_st *stream);

/* Whether work in the legacy stream could start at once. */
int emu_legacy_is_free(CUdevice device);

/* The stream behind a handle: the context's legacy one for NULL. For the entry points: also answers
 * what is wrong with the context. */
CUresult emu_stream_resolve(CUstream handle, struct CUstream_st **stream);
struct CUstream_st *emu_stream_legacy(CUdevice device);

/* First statements of every entry point here that works in the current context. */
CUresult emu_begin(enum emu_entry entry, struct CUctx_st **ctx);

/* ---- graph.c --------------------------------------------------------------------------------- */

/* Whether a capture forbids this thread a call that may synchronize (cuMemAlloc and the like):
 * CUDA_SUCCESS, or STREAM_CAPTURE_UNSUPPORTED with the captures in question invalidated. */
CUresult emu_capture_forbids(void);

/* As the last, for calls on one stream that a capture of that very stream forbids. */
CUresult emu_capture_forbids_stream(struct CUstream_st *stream);

/* Work in the legacy stream, while a blocking stream of the device is being captured, would depend
 * on the capture: STREAM_CAPTURE_IMPLICIT, and the capture is invalid. */
CUresult emu_capture_forbids_legacy(CUdevice device);

/* Adds the op to the capture that the stream is in. 0: it is in none, the op is untouched. Else the
 * op is gone and *result is the call's. */
int emu_capture_op(struct CUstream_st *stream, struct emu_op *op, CUresult *result);

/* An event's part in a capture. Empty when `capture` is NULL. */
struct emu_captured {
    struct emu_capture *capture; /* a reference */
    CUgraphNode *nodes;
    size_t count;
};
void emu_captured_clear(struct emu_captured *c);

/* cuEventRecord on a stream in a capture. 0: it is in none. */
int emu_capture_record(struct CUstream_st *stream, struct emu_captured *c, CUresult *result);

/* cuStreamWaitEvent where the stream is in a capture or the event was captured. 0: neither.
 * `recorded`: the event has a record outside any capture. */
int emu_capture_wait(struct CUstream_st *stream, const struct emu_captured *c, int recorded,
                     CUresult *result);

/* cuEventQuery, cuEventSynchronize of a captured event: invalidates the capture. */
void emu_captured_invalidate(const struct emu_captured *c);

/* The stream's handle is going away. */
void emu_capture_abandon(struct CUstream_st *stream);

/* What a launch of an instantiated graph runs, on the calling thread and one more for each parallel
 * branch. */
CUresult emu_graph_run(struct emu_exec *exec);
void emu_graph_exec_unref(struct emu_exec *exec);

#endif
