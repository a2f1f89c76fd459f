/* Private declarations, grouped by the file that defines them. Calls go down this page only. */
#ifndef SYMWIN_INTERNAL_H
#define SYMWIN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/kernel_args.h"
#include "kernels/kernel_list.h"
#include "src/base/base.h"
#include "src/control/exchange.h"
#include "src/driver/driver.h"
#include "src/memory/memory.h"
#include "src/window/window_index.h"

/* ---- exchange.c, page.c: see exchange.h ------------------------------------------------------------ */

/* ---- physical.c, vmm_alloc.c: see memory.h ------------------------------------------------------ */

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

/* ---- segment.c: physical allocations of every rank, at one offset of the flat range ----------- */

/* A rank's part of a segment: physical allocations side by side, as they are at its own addresses. */
struct sw_stretch {
    size_t begin; /* from the segment's offset on */
    size_t bytes;
    int pieces; /* physical allocations */
};

struct sw_segment_piece {
    CUmemGenericAllocationHandle memory; /* owned, 0: none */
    size_t offset;                       /* in the flat range */
    size_t bytes;
    uint64_t buffer_id; /* 0: of a rank of another process */
    int mapped;
};

struct sw_segment_rank {
    struct sw_stretch stretch;
    struct sw_segment_piece *pieces; /* in the segment's own memory */
    int shown;                       /* pieces that were given to sw_segment_map() */
    size_t shown_bytes;
    int mapped; /* its part of the flat range shows all of its memory */
    int bound;  /* its memory is bound to the multicast object, for bound_device */
    int bound_device;
    int refs; /* windows of the rank on this segment, and registrations under way */
};

struct sw_segment {
    struct sw_segment *next; /* by offset */
    uint64_t id;             /* the registration's number: one for all ranks, never reused */
    size_t offset;           /* in every rank's part of the flat range */
    size_t bytes;            /* to the end of the last stretch, granular */
    int uneven; /* a rank that keeps it from multicast: of several pieces, or that begins later; -1: none */
    int holders; /* ranks of this process with refs > 0; the last to leave tears it down */
    CUmemGenericAllocationHandle multicast; /* owned, 0: none */
    size_t multicast_bytes;
    int multicast_mapped;
    struct sw_segment_rank rank[]; /* nranks */
};

/* A socket to another process of the communicator. It tells when that process ends, and carries
 * handles, between the processes' lowest ranks, in a registration. */
struct sw_peer_socket {
    struct sw_poll_watch watch; /* .fd is owned; -1: this process's own place */
    struct sw_group *group;
    int process;
    struct sw_early
        *early; /* owned: handles of a registration that has yet to begin here; letters.c */
};

/* What the ranks of one communicator share in this process. */
struct sw_group {
    int nranks;
    int nlocal;    /* ranks of this process */
    int leader;    /* the lowest of them */
    int process;   /* number of this process */
    int processes; /* on all hosts */
    int host;      /* number of this host; 0 decides */
    int hosts;
    uint16_t *process_of;           /* owned: of each rank */
    uint16_t *host_of;              /* owned: of each rank */
    struct sw_peer_socket *sockets; /* owned: to each process of this host */
    struct sw_handle_exchange
        *handle_exchange; /* owned, freed by trade_free(); NULL: all ranks are in this process */
    void (*trade_free)(struct sw_handle_exchange *handle_exchange);
    struct sw_host_link *links; /* owned: to each host; NULL: there is only one */
    int *through;               /* owned, if there are more hosts: see sw_exchange_hosts */
    uint64_t *posts_sent;       /* owned, as that: rounds whose posts went to the deciding host */
    struct sw_exchange_hosts exchange_hosts;
    /* Called when another host may have ended it, on the service thread; NULL: nobody has to know. May free the group. */
    void (*on_far_end)(const struct sw_group *group);
    struct sw_message
        *mail; /* owned: for ranks of this process; under the service lock, as the next ones */
    struct sw_message **mail_end; /* where the next one goes */
    int *waiting;                 /* owned: of each rank, how many of its letters are there */
    int mail_fds;                 /* descriptors with them */
    pthread_cond_t mail_came;
    int trading;                  /* handles are being traded: the service thread reads no line */
    struct sw_poll_watch pulse;   /* of the process that links this host with others */
    _Atomic uint64_t rounds_sent; /* by the deciding host's linking process */
    atomic_int refs;              /* ranks that joined and have not left */
    struct sw_exchange *exchange;

    /* Set by the leader before the ranks agree that the communicator exists; constant from then on. */
    CUdeviceptr base; /* owned address range, 0: none */
    size_t range_bytes;
    size_t stride;
    size_t limit; /* the smallest stride of all processes: what segments may use */
    size_t granularity;
    int multicast; /* there is a stride for multicast addresses, and all devices can */
    int *devices;  /* owned: distinct devices of this process's ranks, device_count of them */
    int device_count;

    pthread_mutex_t mutex;             /* the rest */
    struct sw_kernel_report **reports; /* owned: of each rank, NULL before and after it has one */
    struct sw_segment *segments;
    int segment_count;
};

static inline int sw_group_is_local(const struct sw_group *group, int rank)
{
    return group->process_of[rank] == group->process;
}

/* The lowest rank of a process. */
static inline int sw_group_leader_of(const struct sw_group *group, int process)
{
    int r = 0;

    while (r < group->nranks - 1 && group->process_of[r] != process)
        r++;
    return r;
}

/* Address of byte `offset` of a rank's part; rank nranks is the multicast part. */
static inline CUdeviceptr sw_group_address(const struct sw_group *group, int rank, size_t offset)
{
    return group->base + (CUdeviceptr)rank * group->stride + offset;
}

/* The segment that shows these allocations for `rank`, one behind the other, with a reference for the rank; NULL. *offset:
 * of the first of them in the flat range. */
struct sw_segment *sw_segment_find(struct sw_group *group, int rank,
                                   const struct sw_physical *pieces, int count, size_t *offset);
int sw_segment_count(struct sw_group *group);

/* Whether `rank`, of this process, still has at [address, address + bytes) what the segment, of which the caller holds a
 * reference, shows from `offset` of the flat range on: another allocator may have mapped other memory there. */
int sw_segment_is_current(const struct sw_segment *segment, int rank, size_t offset,
                          CUdeviceptr address, size_t bytes);

/* The lowest offset from `from` on that is free in this process for `bytes`. */
symwin_status sw_segment_room(struct sw_group *group, size_t bytes, size_t from, size_t *offset);

/* From the segment's offset to the end of the last stretch; SIZE_MAX: no address space has as much. */
size_t sw_segment_bytes(const struct sw_stretch *stretches, int nranks);

/* Segment `id` at an offset that is free, of a stretch for each rank, made by the first rank of this process to come, with
 * a reference for `rank`. */
symwin_status sw_segment_join(struct sw_group *group, int rank, uint64_t id, size_t offset,
                              const struct sw_stretch *stretches, struct sw_segment **out);

/* Whether the next piece of `rank`'s stretch may have so many bytes. */
symwin_status sw_segment_expects(const struct sw_segment *segment, int rank, uint64_t bytes);

/* Shows the next piece of `rank`'s stretch, which is as long as that wants it, to all devices of this process. Takes over
 * the handle. `buffer_id` is 0 for a rank of another process. */
symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory, size_t bytes, uint64_t buffer_id);

/* The segment that shows `rank` at [offset, offset + bytes) of the flat range, with a reference for rank `holder`, of this
 * process; NULL: there is none. */
struct sw_segment *sw_segment_hold(struct sw_group *group, int rank, size_t offset, size_t bytes,
                                   int holder);

/* Gives up one reference of the rank; the last rank's last one tears the segment down. */
void sw_segment_release(struct sw_group *group, struct sw_segment *segment, int rank);

/* ---- environment.c: what a launcher says about this process ---------------------------------- */

/* From one launcher's variables, never from two: SYMWIN_RANK and SYMWIN_NRANKS; RANK and WORLD_SIZE
 * (torchrun); Open MPI's; MPICH's and Intel MPI's (Hydra); Slurm's. The first complete set counts. */
struct sw_launch {
    const char *launcher; /* a constant: "symwin", "torchrun", "openmpi", "hydra", "slurm" */
    int rank;
    int nranks;
    int local_rank;    /* among the job's processes on this host; -1: not said */
    int local_nranks;  /* processes of the job on this host; 0: not said */
    char job[128];     /* all processes of the job have the same, no other job at this time has */
    char address[256]; /* of the host of rank 0; "": not said */
    int port;          /* there; 0: not said */
};

/* SYMWIN_INVALID: no launcher's variables, or values that make no sense; the text names the variable.
 */
symwin_status sw_launch_read(const char *call, struct sw_launch *out);

/* Whether nobody says anything of ranks: this process was not launched by a launcher. */
int sw_launch_is_none(void);

/* Whether the job has processes on other hosts; as far as nothing is said, it has none. */
int sw_launch_is_wide(const struct sw_launch *launch);

/* Another process that says it is the same rank of a job of that name, and was started by the same launcher not much before; 0:
 * none is seen. */
long sw_launch_rival(const struct sw_launch *launch, int within_ms);

/* ---- launcher.c: what the system says of the process that has started this one ----------------- */

/* "<pid>.<when it was started>", through programs between that have the same value of `variable`; "": not known. */
void sw_launcher_name(const char *variable, char *name, size_t room);

/* A process that it has started with the same values of all variables, NULL after the last, the rank's first. */
long sw_launcher_rival(const char *const *names, int within_ms);

/* ---- bootstrap.c: how ranks find each other -------------------------------------------------- */

/* Blocks until all ranks have come, at most `timeout_ms`. All get their process's group, or all that
 * came get one status. */
symwin_status sw_bootstrap_join(const symwin_unique_id *id, int nranks, int rank, int timeout_ms,
                                struct sw_group **out);

/* A rank's part of a communicator, by which symwin_comm_create() makes a communicator of its own. */
struct sw_split {
    int nranks; /* 0: this rank is in none */
    int rank;
    symwin_unique_id id; /* the caller wipes it */
};

/* Collective. */
symwin_status sw_split(symwin_comm *parent, int color, int key, struct sw_split *out);

/* What all ranks of the communicator that was made with the id have, and nobody else: makes the secrets of its parts. */
void sw_bootstrap_key(const symwin_unique_id *id, unsigned char key[SW_KEY_BYTES]);

/* Leaves the group; the last rank of the process frees it and its address range. */
void sw_bootstrap_leave(struct sw_group *group, int rank);

/* Asks the waiting kernels of this process's ranks to leave. */
void sw_group_abort_kernels(struct sw_group *group);

/* Makes the other processes look whether the exchange has ended, and abort their kernels if so. */
void sw_group_shut_sockets(struct sw_group *group);

/* ---- handles.c: memory of one process shown in another ---------------------------------------- */

/* What a trade works in, made by the leader before the communicator exists: a process that ran out of memory in the middle of
 * one would leave the others waiting. The group frees it. */
symwin_status sw_handle_exchange_create(struct sw_group *group);

/* By the leader alone, when every rank of this process has mapped its memory in the segment: sends piece `piece` of each to
 * every other process, and maps what they send. All processes must be at it. SYMWIN_OK says that this process has all;
 * whether the others have is for the next agreement. */
symwin_status sw_handle_exchange_run(struct sw_group *group, struct sw_segment *segment, int piece,
                                     int timeout_ms, const char *call);

/* Memory of a rank as a descriptor, which a forked child does not get, the caller's to close by sw_fork_set_close(); or as
 * a fabric handle. */
symwin_status sw_handle_exchange_export(CUmemGenericAllocationHandle memory, int rank, int *fd);
symwin_status sw_handle_exchange_export_fabric(CUmemGenericAllocationHandle memory,
                                               CUmemFabricHandle *handle);

/* Between hosts: a piece of a rank's memory as a fabric handle, in words of a vote, and the next piece of another host's rank
 * from its words. */
#define SW_FABRIC_WORDS 9
symwin_status sw_handle_exchange_fabric(const struct sw_segment *segment, int rank, int piece,
                                        uint64_t words[SW_FABRIC_WORDS]);
symwin_status sw_handle_exchange_import(struct sw_group *group, struct sw_segment *segment,
                                        int rank, const uint64_t words[SW_FABRIC_WORDS]);

/* ---- launch.c: kernels of either driver ------------------------------------------------------ */

#define SW_TYPES 12
#define SW_OPS 5
#define SW_ALGOS 10

struct sw_kernels; /* a device's; constant while the caller holds the reference */

/* Loads every kernel that so many ranks need into the current context (which is `device`'s): a first
 * launch that still has to load its kernel can wait for a kernel that waits for it. */
symwin_status sw_kernels_acquire(int device, int nranks, struct sw_kernels **out);
void sw_kernels_release(struct sw_kernels *kernels);

struct sw_kernel {
    CUfunction function;
    int threads;     /* that a block takes */
    unsigned shared; /* bytes of dynamic shared memory of a block, for the launch */
    int resident;    /* blocks of so many threads that the whole device holds at the same time */
};

/* The kernel for messages of that shape, or else for any. NULL: there is none. */
const struct sw_kernel *sw_kernels_get(const struct sw_kernels *kernels, symwin_algo algo,
                                       symwin_type type, symwin_op op, enum sw_kernel_shape shape);
/* Bit i: there are kernels of algorithm i. */
unsigned sw_kernels_algos(const struct sw_kernels *kernels);
int sw_kernels_multiprocessors(const struct sw_kernels *kernels);
/* Whether a kernel can begin before the one ahead of it in its stream has ended. */
int sw_kernels_begin_early(const struct sw_kernels *kernels);

/* ---- report.c: where kernels report to --------------------------------------------------------- */

/* A zeroed report in pinned memory that every device reaches. The device's primary context is current. */
symwin_status sw_report_acquire(CUdevice device, struct sw_kernel_report **out);
void sw_report_release(struct sw_kernel_report *report);

/* What the kernels of all ranks have found: a status and a rank, SW_NOBODY if no one of them is to blame. SYMWIN_OK: nothing,
 * or that the host has asked them to leave. And as a sentence. */
symwin_status sw_report_status(const struct sw_kernel_report *report, int *culprit);
symwin_status sw_report_tell(const struct sw_kernel_report *report, const char *call);

/* ---- symwin.c: communicators ----------------------------------------------------------------- */

#define SW_BALLOT_VALUES 14

/* What a rank says at an agreement. */
struct sw_ballot {
    uint64_t sequence; /* of the collective host call */
    char call[32];     /* its name */
    int32_t status;
    int32_t zero;
    uint64_t values[SW_BALLOT_VALUES]; /* the call's own */
    char text[256];                    /* the error, if status is one */
};

struct sw_window {
    uintptr_t handle; /* the public value; 0: the communicator's own memory */
    void *ptr;
    size_t bytes;
    size_t offset;              /* in the flat range */
    uint64_t buffer_id;         /* of the first physical allocation, */
    size_t within;              /* in which it begins here, */
    int pieces;                 /* of so many */
    struct sw_segment *segment; /* holds one reference */
    CUdeviceptr held;           /* owned memory kept from being freed; 0: another allocator's */
    unsigned transports;
};

#define SW_CAPTURES 8 /* that may go on at the same time */

/* How far creation got; sw_comm_release() undoes that much. */
enum sw_comm_stage {
    SW_COMM_JOINED,    /* in the group */
    SW_COMM_CONTEXT,   /* context retained */
    SW_COMM_KERNELS,   /* kernels loaded */
    SW_COMM_REPORT,    /* pinned memory */
    SW_COMM_MEMORY,    /* device memory */
    SW_COMM_REGISTERED /* and its window */
};

struct sw_copies {          /* copies.c: what calls by copies have beside the caller's stream */
    CUstream side;          /* owned, for the sums; NULL: not made yet */
    CUstream captured_side; /* owned, the same for calls in captures */
    CUevent fork, join;     /* owned: between the caller's stream and these */
    int loose;              /* `side` may hold work that nobody waits for */
};

struct sw_graph_launch { /* graph_launch.c: all NULL without SYMWIN_COMM_GRAPH_LAUNCH */
    CUgraph graph;       /* owned, and so is `exec`, made of it */
    CUgraphNode node;    /* its only one */
    CUgraphExec exec;
};

struct sw_order;

struct symwin_comm {
    struct symwin_comm *next, *prev; /* of this process's: comm.c */
    enum sw_comm_stage stage;
    int rank;
    int nranks;
    int device;
    int ranks_on_device;
    int local_on_device; /* of these, in this process */
    int shares_devices; /* some device has several ranks; alike on all ranks, as are the next two */
    int streams_per_rank; /* that run at the same time where the fewest do */
    unsigned algos;       /* bit i: all ranks' devices have kernels of algorithm i */
    unsigned flags;
    int timeout_ms;
    int kernel_timeout_ms; /* -1: for ever */
    int max_blocks;        /* 0: by the device */
    size_t slot_bytes;
    struct sw_group *group;          /* one of its references */
    unsigned char key[SW_KEY_BYTES]; /* all ranks' and nobody else's: makes the secrets of parts */
    CUcontext context;               /* retained: the device's primary context */
    struct sw_kernels *kernels;
    struct sw_kernel_report *report; /* owned, in pinned host memory */
    CUdeviceptr report_address;
    struct sw_memory memory;   /* owned: struct sw_comm_state and the slots */
    struct sw_window state;    /* the window on it */
    struct sw_ballot *ballots; /* owned, nranks: the last agreement's */
    struct sw_tuning *tuning;  /* owned; NULL: nothing was measured for these GPUs */

    atomic_flag busy;               /* a thread is inside a collective call */
    uint64_t sequence;              /* collective host calls so far */
    pthread_mutex_t mutex;          /* the windows */
    struct sw_handle_table windows; /* owned, and they: struct sw_window */
    struct sw_window_index *index;
    struct sw_registrations *registrations; /* owned: register.h */
    struct sw_channels *channels;           /* owned: channels.h */

    /* order.c: what the next call has to come after. Under `busy` and the order's mutex. */
    CUdeviceptr done_address;   /* counts the blocks that have ended of calls outside captures */
    uint32_t done;              /* what that comes to */
    int has_last;               /* there was one */
    CUstream last_stream;       /* of the last one, */
    unsigned long long last_id; /* which is no other stream's, 0: not known */
    struct sw_order *order;     /* among the communicators of the device; NULL: none matters */
    symwin_comm *order_next;
    int in_use;                 /* it has made a call */
    uint64_t generation;        /* of its last call, */
    unsigned room;              /* in which so many blocks of its are on the device at once, */
    unsigned captured_room;     /* and of calls in captures, beside other communicators */
    uint64_t before_generation; /* which came after this communicator's calls so far: */
    uint32_t before_done;
    unsigned long long before_id;
    struct sw_seen { /* of the stream that was asked last */
        unsigned long long id;
        CUgreenCtx partition;
        unsigned multiprocessors;
    } seen;
    struct sw_captured {
        cuuint64_t id;   /* of a capture, 0: none */
        CUstream stream; /* of the last call in it */
    } captured[SW_CAPTURES];
    int oldest;            /* of these */
    cuuint64_t capture_id; /* of the last call in any */
    CUevent edge;          /* owned, created when first needed */
    struct sw_copies copies;
    struct sw_graph_launch graph_launch;
};

/* A value that comm->done had, for a comparison with what the device counts. They are compared around the circle of 32 bits,
 * where one that was noted too long ago would seem to be still to come; blocks under way are far fewer than this takes for
 * them. */
static inline uint32_t sw_done_since(const symwin_comm *comm, uint32_t noted)
{
    const uint32_t most = (uint32_t)1 << 30;

    return comm->done - noted > most ? comm->done - most : noted;
}

/* ---- comm.c: communicators that exist --------------------------------------------------------- */

/* One agreement: every rank gives its status (its last error goes along) and up to SW_BALLOT_VALUES
 * values; comm->votes then has all ranks'. Returns SYMWIN_OK, or on every rank the status of the
 * lowest rank that failed, with its text; SYMWIN_MISMATCH if the ranks are in different calls. */
symwin_status sw_comm_agree(symwin_comm *comm, const char *call, symwin_status mine,
                            const uint64_t *values, int value_count);

/* The communicators of this process: those that were created, until they are about to be destroyed. Calls see() for each
 * under a mutex that sw_comm_forget() waits for. */
void sw_comm_list(symwin_comm *comm);
void sw_comm_forget(symwin_comm *comm);
void sw_comm_each(void (*see)(symwin_comm *comm, void *context), void *context);

/* Before a communicator is destroyed, with its context current: ends what waits for this rank's next call, on hosts and
 * devices, and waits for this rank's own calls. */
void sw_comm_take_leave(symwin_comm *comm);

/* SYMWIN_OK, or what has ended this communicator. */
symwin_status sw_comm_status(symwin_comm *comm, const char *call);

/* Whether `ptr`, which the call named `call` calls `name`, is memory of this communicator's device. `device` has it; below 0:
 * the driver is asked. */
symwin_status sw_comm_check_device(const symwin_comm *comm, const char *call, const char *name,
                                   CUdeviceptr ptr, int device);

/* Begins a collective call of this thread: SYMWIN_BUSY if another is inside one, or what has ended
 * the communicator. sw_comm_leave() ends it. */
symwin_status sw_comm_enter(symwin_comm *comm, const char *call);
void sw_comm_leave(symwin_comm *comm);

/* ---- attach.c: registration ------------------------------------------------------------------- */

/* The collective part of a registration: fills `window`, which then holds its memory. `status` is
 * what this rank's preparations gave; an error there becomes every rank's. */
symwin_status sw_window_register(symwin_comm *comm, const char *call, symwin_status status,
                                 void *ptr, size_t bytes, unsigned flags, struct sw_window *window);
void sw_window_detach(symwin_comm *comm, struct sw_window *window);

/* What a window is to whoever looks for an address. */
struct sw_window_index_entry sw_window_entry(const struct sw_window *window, uintptr_t handle);

/* ---- window.c: windows ----------------------------------------------------------------------- */

/* Deregisters all windows of the communicator. */
void sw_window_detach_all(symwin_comm *comm);

/* ---- graph_launch.c -------------------------------------------------------------------------- */

/* Ahead of a graph's first launch, which otherwise does so: of two that do it at the same time on a device one may wait
 * until the other has run. Waits for the stream. */
symwin_status sw_graph_upload(CUgraphExec exec, CUstream stream);

/* Nothing without SYMWIN_COMM_GRAPH_LAUNCH. The caller's context is the communicator's. */
symwin_status sw_graph_launch_create(symwin_comm *comm);
void sw_graph_launch_release(symwin_comm *comm);

/* As cuLaunchKernelEx, less its attributes; the stream is in no capture. */
symwin_status sw_graph_launch(const symwin_comm *comm, const CUlaunchConfig *config,
                              CUfunction function, void **params, const char *call);

#endif
