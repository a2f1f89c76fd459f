/* What the files of streams, events, graphs and kernels share.
 *
 * Lock order: first an event's or a graph launch's lock, then the capture lock, then one device's
 * lock, then the thread pool's. The handle table has its own lock, under which no other is taken.
 */
#ifndef SYMWIN_EMU_EXEC_H
#define SYMWIN_EMU_EXEC_H

#include "emu_internal.h"

/* ---- handle.c: which pointers are handles ---------------------------------------------------- */

/* The kinds up to EMU_LIVE_KINDS count as live objects. The others have a library's count, or count
 * until their callback has run. */
enum emu_handle {
    EMU_HANDLE_STREAM = EMU_LIVE_STREAM,
    EMU_HANDLE_EVENT = EMU_LIVE_EVENT,
    EMU_HANDLE_LIBRARY = EMU_LIVE_LIBRARY,
    EMU_HANDLE_GRAPH = EMU_LIVE_GRAPH,
    EMU_HANDLE_GRAPH_EXEC = EMU_LIVE_GRAPH_EXEC,
    EMU_HANDLE_GREEN = EMU_LIVE_GREEN,
    EMU_HANDLE_KERNEL = EMU_LIVE_KINDS,
    EMU_HANDLE_FUNCTION,
    EMU_HANDLE_USER_OBJECT
};

int emu_handle_add(enum emu_handle kind, const void *handle);  /* -1: no memory */
void *emu_handle_new(enum emu_handle kind, size_t bytes);      /* zeroed; NULL: no memory */
int emu_handle_drop(enum emu_handle kind, const void *handle); /* whether it was one */
int emu_handle_is(enum emu_handle kind, const void *handle);

/* First statement of every entry point that destroys a handle, which it drops; `invalid` is the
 * result if it is none of that kind. */
CUresult emu_enter_drop(enum emu_entry entry, enum emu_handle kind, const void *handle,
                        CUresult invalid);

/* ---- grid.c: the thread pool and the block scheduler ----------------------------------------- */

/* Runs fn(arg) on a separate thread, from a pool that grows as needed. -1: no thread. */
int emu_pool_start(void (*fn)(void *arg), void *arg);

/* Whether the process is exiting: kernels and waits then give up. */
int emu_exiting(void);

/* How many blocks with `threads` threads and `shared` bytes of shared memory fit on a
 * multiprocessor; 0: the block is too large. */
unsigned emu_occupancy(unsigned long long threads, size_t shared);

/* Opens a partition of the device with that many multiprocessors; 0: too many partitions. Closing 0
 * is allowed. */
int emu_partition_open(CUdevice device, unsigned multiprocessors);
void emu_partition_close(CUdevice device, int partition);

/* ---- op.c: operations of streams and graph nodes --------------------------------------------- */

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
    /* kernel parameters, a copy's staged source, or a batch of memory operations */
    void *owned;
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
            unsigned shared; /* dynamic shared memory, bytes */
            int partition;
        } kernel;
        struct {
            CUhostFn fn;
            void *data;
        } host;
        unsigned memory_count;
        struct emu_exec *exec; /* holds a reference */
    };
};

CUresult emu_op_run(const struct emu_op *op);
/* -1: no memory. Not for EMU_OP_GRAPH. */
int emu_op_copy(struct emu_op *to, const struct emu_op *from);
void emu_op_free(struct emu_op *op);

/* Whether the device may read (or write) the whole range. Host memory is always accessible. */
int emu_range_ok(CUdevice device, CUdeviceptr addr, size_t bytes, int write);
int emu_is_device_address(CUdeviceptr addr);

/* Sets the sticky error of the device's context; the first one stays. */
void emu_context_fail(CUdevice device, CUresult code);

/* Whether this thread runs a host function, in which driver calls are not permitted. */
extern __thread int emu_in_host_function;

/* ---- launch.c -------------------------------------------------------------------------------- */

/* Checks a kernel launch on the device and makes an op of it, with a copy of the parameters. On
 * failure there is nothing to free. */
CUresult emu_kernel_op(struct emu_op *op, CUdevice device, const CUDA_KERNEL_NODE_PARAMS *params);

/* ---- stream.c -------------------------------------------------------------------------------- */

/* A point in a stream's work. Reference-counted; everything but refs is under the lock of the
 * stream's device. */
struct emu_mark {
    atomic_int refs;
    int done;
    uint64_t ns; /* time at which it was passed */
    struct CUstream_st *stream;
};
struct emu_mark *emu_mark_ref(struct emu_mark *mark); /* NULL is allowed, also in unref */
void emu_mark_unref(struct emu_mark *mark);
void emu_mark_wait(struct emu_mark *mark);
int emu_mark_passed(struct emu_mark *mark, uint64_t *ns); /* ns may be NULL */

struct emu_capture;

struct CUstream_st {
    struct CUctx_st *ctx;
    CUdevice device;
    unsigned flags;
    int legacy;
    CUgreenCtx green; /* NULL: primary context, partition 0 */
    int partition;
    uint64_t id;     /* unlike the handle, never reused */
    atomic_int refs; /* handle, running thread, marks */

    /* Under the device's lock. */
    struct emu_task *first, *last; /* the first one runs, or is next */
    uint64_t submitted, completed;
    int at_work;
    pthread_cond_t done;
    /* list of the device's streams that have a handle or work */
    struct CUstream_st *next, **link;

    /* For capture.c, under the capture lock. `capture` is read without it only to compare with
     * NULL. */
    struct emu_capture *_Atomic capture;
    struct CUstream_st *capture_next;
    CUgraphNode *tails;
    size_t tail_count;
};

/* Enqueues the op, or adds it to the stream's capture. The op is moved, and freed on failure too.
 * It starts after the mark `after` (may be NULL). `passed`, if not NULL, receives a mark behind the
 * op. */
CUresult emu_submit(struct CUstream_st *stream, struct emu_op *op, struct emu_mark *after,
                    struct emu_mark **passed);

/* cuStreamCreate for a partition of the device. */
CUresult emu_stream_open(CUstream *stream, struct CUctx_st *ctx, unsigned flags, CUgreenCtx green,
                         int partition);

/* Waits for the work enqueued in the stream so far. */
void emu_stream_wait(struct CUstream_st *stream);

/* Whether work in the legacy stream could start now. */
int emu_legacy_is_free(CUdevice device);

/* The stream of a handle; for NULL the context's legacy stream. For entry points: also returns an
 * error of the context. */
CUresult emu_stream_resolve(CUstream handle, struct CUstream_st **stream);

/* First statement of every entry point on a stream; with invalid arguments, too. */
CUresult emu_enter_stream(enum emu_entry entry, CUstream handle, struct CUstream_st **stream,
                          int invalid);
struct CUstream_st *emu_stream_legacy(CUdevice device);

/* First statement of every entry point here that works in the current context; INVALID_VALUE for
 * invalid arguments. */
CUresult emu_begin(enum emu_entry entry, struct CUctx_st **ctx, int invalid);

/* ---- capture.c, graph.c ---------------------------------------------------------------------- */

/* Whether a capture forbids this thread a call that may synchronize (cuMemAlloc and the like):
 * CUDA_SUCCESS, or STREAM_CAPTURE_UNSUPPORTED, which also invalidates the captures concerned. */
CUresult emu_capture_forbids(void);

/* The same for calls on one stream, which only a capture of that stream forbids. */
CUresult emu_capture_forbids_stream(struct CUstream_st *stream);

/* Work in the legacy stream while a blocking stream of the device is being captured would depend on
 * the capture: returns STREAM_CAPTURE_IMPLICIT and invalidates the capture. */
CUresult emu_capture_forbids_legacy(CUdevice device);

/* Adds the op to the stream's capture. 0: the stream is not capturing, the op is untouched.
 * Otherwise the op is consumed and *result is the result of the call. */
int emu_capture_op(struct CUstream_st *stream, struct emu_op *op, CUresult *result);

/* The nodes that an event recorded in a capture. Empty when `capture` is NULL. */
struct emu_captured {
    struct emu_capture *capture; /* holds a reference */
    CUgraphNode *nodes;
    size_t count;
};
void emu_captured_clear(struct emu_captured *c);

/* cuEventRecord on a capturing stream. 0: the stream is not capturing. */
int emu_capture_record(struct CUstream_st *stream, struct emu_captured *c, CUresult *result);

/* cuStreamWaitEvent on a capturing stream or for a captured event. 0: neither. `recorded`: the
 * event also has a record outside any capture. */
int emu_capture_wait(struct CUstream_st *stream, const struct emu_captured *c, int recorded,
                     CUresult *result);

/* cuEventQuery or cuEventSynchronize of a captured event: invalidates the capture. */
void emu_captured_invalidate(const struct emu_captured *c);

/* The stream's handle is being destroyed. */
void emu_capture_abandon(struct CUstream_st *stream);

/* Runs an instantiated graph, on the calling thread and one more for each parallel branch. */
CUresult emu_graph_run(struct emu_exec *exec);
void emu_graph_exec_unref(struct emu_exec *exec);

#endif
