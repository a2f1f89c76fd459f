/* Private declarations, grouped by the file that defines them. Calls go down this page only. */
#ifndef SYMWIN_INTERNAL_H
#define SYMWIN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"
#include "kernels/kernel_args.h"

/* ---- error.c --------------------------------------------------------------------------------- */

#define SW_TEXT_BYTES 512

/* Sets the thread's last error and returns `status`. Called once, where a fault is first seen. */
symwin_status sw_fail(symwin_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* SYMWIN_OK for CUDA_SUCCESS; else the status that fits, and "<text>: CUDA_ERROR_... (what it means)".
 */
symwin_status sw_check(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts back a text that a failure which is not reported has overwritten. */
void sw_error_restore(const char *text);

/* For teardown: the result cannot be acted on. SYMWIN_DEBUG=1 shows it on stderr. */
void sw_drop(CUresult result, const char *call);

/* ---- driver.c: see driver.h; and contexts ---------------------------------------------------- */

/* A stretch of code with a device's primary context current. */
struct sw_scope {
    CUdevice device; /* retained for the stretch; -1: only pushed */
    int pushed;
};

/* Makes the context of `device` current, creating it if need be. */
symwin_status sw_scope_enter(int device, struct sw_scope *scope);

/* The same with a context that the caller holds; does nothing if it is current already. */
symwin_status sw_scope_enter_context(CUcontext context, struct sw_scope *scope);

/* Restores what was current. Leaving a scope twice, or one that was never entered, is fine. */
void sw_scope_leave(struct sw_scope *scope);

/* Turns SYMWIN_DEVICE_CURRENT into an ordinal and checks it, for the call named `call`. Loads the
 * driver. */
symwin_status sw_device_resolve(const char *call, int device, int *out);

/* ---- exchange.c: what ranks tell each other -------------------------------------------------- */

#define SW_EXCHANGE_BYTES 512

struct sw_exchange;

struct sw_exchange *sw_exchange_create(int nranks); /* NULL: no memory */
void sw_exchange_destroy(struct sw_exchange *x);

/* Every rank gives `bytes` (at most SW_EXCHANGE_BYTES) and gets all ranks' in rank order. All ranks
 * succeed, or all return one status: SYMWIN_TIMEOUT or SYMWIN_PEER_LOST naming who is missing,
 * SYMWIN_ABORTED, or what sw_exchange_fail() said; after that, every later call does too. */
symwin_status sw_exchange_allgather(struct sw_exchange *x, int rank, const void *mine, size_t bytes,
                                    void *all, int timeout_ms, const char *call);

/* Ends the exchange for all ranks; the first call decides. `culprit` is a rank. */
void sw_exchange_fail(struct sw_exchange *x, symwin_status status, int culprit);

/* SYMWIN_OK, or what ended it, with the thread's last error set. */
symwin_status sw_exchange_status(struct sw_exchange *x, const char *call);

/* This rank will not come again. */
void sw_exchange_leave(struct sw_exchange *x, int rank);

/* ---- vmm_alloc.c: one rank's memory ---------------------------------------------------------- */

/* A window holds its allocation: sw_memory_hold() finds the owned allocation at `ptr`, if it is one
 * of ours, and keeps it from being freed until sw_memory_drop() with the same base. */
int sw_memory_hold(CUdeviceptr base);
void sw_memory_drop(CUdeviceptr base);

/* The physical allocation under an address. */
struct sw_physical {
    CUdeviceptr base; /* of the mapping */
    size_t bytes;
    int device;
    uint64_t buffer_id;
};
symwin_status sw_physical_find(const char *call, CUdeviceptr ptr, struct sw_physical *out);

/* Read-write access for each of `devices`. */
symwin_status sw_memory_access(CUdeviceptr ptr, size_t bytes, const int *devices, int count);

/* ---- multicast.c ----------------------------------------------------------------------------- */

struct sw_group;
struct sw_segment;

/* Whether this process may create multicast objects (DESIGN 8): never against the variables that
 * switch multicast off, on real hardware only when asked. */
int sw_multicast_allowed(unsigned comm_flags);

/* The steps of giving a segment a multicast object; the ranks agree between them. */
symwin_status sw_multicast_create(struct sw_group *group, struct sw_segment *segment);
symwin_status sw_multicast_add(struct sw_segment *segment, int device);
symwin_status sw_multicast_bind(struct sw_segment *segment, int rank, int device);
symwin_status sw_multicast_map(struct sw_group *group, struct sw_segment *segment);

/* Undoes as much of it as was done. */
void sw_multicast_release(struct sw_group *group, struct sw_segment *segment);

/* ---- segment.c: one physical allocation of every rank, at one offset of the flat range -------- */

struct sw_segment_rank {
    CUmemGenericAllocationHandle memory; /* owned, 0: none */
    size_t bytes;                        /* of the rank's allocation */
    uint64_t buffer_id;
    int mapped; /* its part of the flat range shows its memory */
    int bound;  /* its memory is bound to the multicast object, for bound_device */
    int bound_device;
    int refs; /* windows of the rank on this segment, and registrations under way */
};

struct sw_segment {
    struct sw_segment *next; /* by offset */
    uint64_t id;             /* never reused */
    size_t offset;           /* in every rank's part of the flat range */
    size_t bytes;            /* the largest rank's, granular */
    int holders;             /* ranks with refs > 0; the last to leave tears the segment down */
    CUmemGenericAllocationHandle multicast; /* owned, 0: none */
    size_t multicast_bytes;
    int multicast_mapped;
    struct sw_segment_rank rank[]; /* nranks */
};

/* What the ranks of one communicator share in this process. */
struct sw_group {
    int nranks;
    atomic_int refs; /* ranks that joined and have not left */
    struct sw_exchange *exchange;

    /* Set by rank 0 before the ranks agree that the communicator exists; constant from then on. */
    CUdeviceptr base; /* owned address range, 0: none */
    size_t range_bytes;
    size_t stride;
    size_t granularity;
    int multicast; /* there is a stride for multicast addresses, and all devices can */
    int *devices;  /* owned: distinct devices, device_count of them */
    int device_count;

    pthread_mutex_t mutex;             /* the rest */
    struct sw_kernel_report **reports; /* owned: of each rank, NULL before and after it has one */
    struct sw_segment *segments;
    uint64_t next_segment_id;
    int segment_count;
};

/* Address of byte `offset` of a rank's part; rank nranks is the multicast part. */
static inline CUdeviceptr sw_group_address(const struct sw_group *group, int rank, size_t offset)
{
    return group->base + (CUdeviceptr)rank * group->stride + offset;
}

/* The segment that shows allocation `buffer_id` for `rank`, with a reference for the rank; NULL. */
struct sw_segment *sw_segment_find(struct sw_group *group, int rank, uint64_t buffer_id);
int sw_segment_count(struct sw_group *group);

/* A new segment at a free offset, with one reference for every rank. */
symwin_status sw_segment_create(struct sw_group *group, size_t bytes, struct sw_segment **out);

/* Shows `rank`'s memory in its part of the range, to all devices. Takes over the handle. */
symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory,
                             const struct sw_physical *physical);

/* Gives up one reference of the rank; the last rank's last one tears the segment down. */
void sw_segment_release(struct sw_group *group, struct sw_segment *segment, int rank);

/* ---- bootstrap.c: how ranks find each other -------------------------------------------------- */

/* Blocks until all nranks threads have come, at most `timeout_ms`. All get the group, or all that
 * came get one status. */
symwin_status sw_bootstrap_join(const symwin_unique_id *id, int nranks, int rank, int timeout_ms,
                                struct sw_group **out);

/* Leaves the group; the last rank frees it and its address range. */
void sw_bootstrap_leave(struct sw_group *group, int rank);

/* ---- registry.c: which address belongs to which window --------------------------------------- */

struct sw_registry_entry {
    uintptr_t begin, end; /* addresses of this rank */
    uintptr_t window;     /* the public handle's value */
    size_t offset;        /* of `begin` in the flat range */
    unsigned transports;
};

struct sw_registry;

struct sw_registry *sw_registry_create(void); /* NULL: no memory */
void sw_registry_destroy(struct sw_registry *registry);

/* One writer at a time; readers are never blocked. */
symwin_status sw_registry_reserve(struct sw_registry *registry); /* room for one entry more */
void sw_registry_insert(struct sw_registry *registry, const struct sw_registry_entry *entry);
void sw_registry_remove(struct sw_registry *registry, uintptr_t window);

enum sw_found { SW_FOUND_NONE, SW_FOUND_PART, SW_FOUND_ALL };

/* The smallest window that contains [begin, begin + bytes). SW_FOUND_PART: none does, but some
 * window contains `begin`; *out is then that one. Lock-free, any thread. */
enum sw_found sw_registry_find(struct sw_registry *registry, uintptr_t begin, size_t bytes,
                               struct sw_registry_entry *out);

/* ---- launch.c: kernels of either driver ------------------------------------------------------ */

#define SW_TYPES 12
#define SW_OPS 4 /* an average is a sum */
#define SW_ALGOS 5

/* A device's kernels; constant while the caller holds the reference. */
struct sw_kernels;

/* Loads every kernel into the current context (which is `device`'s): a first launch that still has
 * to load its kernel can wait for a kernel that waits for it. */
symwin_status sw_kernels_acquire(int device, struct sw_kernels **out);
void sw_kernels_release(struct sw_kernels *kernels);
int sw_kernels_present(void); /* whether the library has any for the driver */

/* The kernel, and how many blocks of `threads` the device can hold at the same time; NULL: there is
 * no such kernel. */
CUfunction sw_kernels_get(const struct sw_kernels *kernels, symwin_algo algo, symwin_type type,
                          symwin_op op, int *resident_blocks);
int sw_kernels_threads(const struct sw_kernels *kernels); /* of a block */
int sw_kernels_multiprocessors(const struct sw_kernels *kernels);

/* ---- report.c: where kernels report to --------------------------------------------------------- */

/* A zeroed report in pinned memory that every device reaches. A context must be current. */
symwin_status sw_report_acquire(struct sw_kernel_report **out);
void sw_report_release(struct sw_kernel_report *report);

/* ---- symwin.c: communicators ----------------------------------------------------------------- */

#define SW_MAX_RANKS 4096
#define SW_VOTE_VALUES 8

/* What a rank says at an agreement. */
struct sw_vote {
    uint64_t sequence; /* of the collective host call */
    const char *call;  /* its name: one string for all ranks of the process */
    symwin_status status;
    int nothing;
    uint64_t values[SW_VOTE_VALUES]; /* the call's own */
    char text[256];                  /* the error, if status is one */
};

struct sw_window {
    uintptr_t handle; /* the public value; 0: the communicator's own memory */
    void *ptr;
    size_t bytes;
    size_t offset; /* in the flat range */
    uint64_t buffer_id;
    struct sw_segment *segment; /* holds one reference */
    CUdeviceptr held;           /* owned memory kept from being freed; 0: another allocator's */
    unsigned transports;
};

/* How far creation got; sw_comm_release() undoes that much. */
enum sw_comm_stage {
    SW_COMM_JOINED,    /* in the group */
    SW_COMM_CONTEXT,   /* context retained */
    SW_COMM_KERNELS,   /* kernels loaded */
    SW_COMM_REPORT,    /* pinned memory */
    SW_COMM_MEMORY,    /* device memory */
    SW_COMM_REGISTERED /* and its window */
};

struct symwin_comm {
    enum sw_comm_stage stage;
    int rank;
    int nranks;
    int device;
    int ranks_on_device;
    unsigned flags;
    int timeout_ms;
    int kernel_timeout_ms; /* -1: for ever */
    int max_blocks;        /* 0: by the device */
    size_t slot_bytes;
    struct sw_group *group; /* one of its references */
    CUcontext context;      /* retained: the device's primary context */
    struct sw_kernels *kernels;
    struct sw_kernel_report *report; /* owned, in pinned host memory */
    CUdeviceptr report_address;
    void *memory;           /* owned: struct sw_comm_state and the slots */
    struct sw_window state; /* the window on it */
    struct sw_vote *votes;  /* owned, nranks: the last agreement's */

    atomic_flag busy;           /* a thread is inside a collective call */
    uint64_t sequence;          /* collective host calls so far */
    pthread_mutex_t mutex;      /* the windows */
    struct sw_window **windows; /* owned; by slot, NULL: free */
    size_t window_slots;
    int window_count;
    struct sw_registry *registry;

    /* collective.c, under `busy`: what the next call has to come after */
    uint32_t done;         /* sw_kernel_args.done of the last call outside a capture, 0: none yet */
    CUstream last_stream;  /* its stream */
    cuuint64_t capture_id; /* of the last call in a capture, 0: none yet */
    CUstream capture_stream;
    CUevent order; /* owned, created when first needed */
};

/* One agreement: every rank gives its status (its last error goes along) and up to SW_VOTE_VALUES
 * values; comm->votes then has all ranks'. Returns SYMWIN_OK, or on every rank the status of the
 * lowest rank that failed, with its text; SYMWIN_MISMATCH if the ranks are in different calls. */
symwin_status sw_agree(symwin_comm *comm, const char *call, symwin_status mine,
                       const uint64_t *values, int value_count);

/* SYMWIN_OK, or what has ended this communicator. */
symwin_status sw_comm_status(symwin_comm *comm, const char *call);

/* Begins a collective call of this thread: SYMWIN_BUSY if another is inside one, or what has ended
 * the communicator. sw_comm_leave() ends it. */
symwin_status sw_comm_enter(symwin_comm *comm, const char *call);
void sw_comm_leave(symwin_comm *comm);

/* ---- window.c: windows ----------------------------------------------------------------------- */

/* The collective part of a registration: fills `window`, which then holds its memory. `status` is
 * what this rank's preparations gave; an error there becomes every rank's. */
symwin_status sw_window_attach(symwin_comm *comm, const char *call, symwin_status status, void *ptr,
                               size_t bytes, unsigned flags, struct sw_window *window);
void sw_window_detach(symwin_comm *comm, struct sw_window *window);

/* Deregisters all windows of the communicator. */
void sw_window_detach_all(symwin_comm *comm);

/* ---- collective.c ---------------------------------------------------------------------------- */

/* Frees what the calls have left in the communicator. */
void sw_collective_release(symwin_comm *comm);

#endif
