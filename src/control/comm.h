/* A communicator, and how its ranks agree. */
#ifndef SYMWIN_COMM_H
#define SYMWIN_COMM_H

#include "kernels/kernel_args.h"
#include "src/base/base.h"
#include "src/control/group.h"

/* ---- kernel_report.c: where kernels report to ---- */

/* A zeroed report in pinned memory that every device reaches. The device's primary context is current. */
symwin_status sw_report_acquire(CUdevice device, struct sw_kernel_report **out);
void sw_report_release(struct sw_kernel_report *report);

/* What the kernels of all ranks have found: a status and a rank, SW_NOBODY if no one of them is to blame. SYMWIN_OK: nothing,
 * or that the host has asked them to leave. And as a sentence. */
symwin_status sw_report_status(const struct sw_kernel_report *report, int *culprit);
symwin_status sw_report_tell(const struct sw_kernel_report *report, const char *call);

/* ---- what a communicator is made of ---- */

struct sw_kernels;
struct sw_comm_memory;
struct sw_tuning;
struct sw_window_index;
struct sw_registrations;
struct sw_channels;

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
    struct sw_comm_memory *memory; /* owned: struct sw_comm_state and the slots */
    size_t state_offset;           /* of that state in the flat range */
    struct sw_ballot *ballots;     /* owned, nranks: the last agreement's */
    struct sw_tuning *tuning;      /* owned; NULL: nothing was measured for these GPUs */

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

/* ---- comm.c: communicators that exist ---- */

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

#endif
