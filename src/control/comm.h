/* The communicator: its state, agreement among its ranks, and the list of all communicators. */
#ifndef SYMWIN_COMM_H
#define SYMWIN_COMM_H

#include "kernels/kernel_args.h"
#include "src/base/base.h"
#include "src/control/group.h"

/* ---- kernel_report.c: kernels report failures here ---- */

/* Gets a zeroed report in pinned memory that every device can access. The device's primary context
 * must be current. */
symwin_status sw_report_acquire(CUdevice device, struct sw_kernel_report **out);
void sw_report_release(struct sw_kernel_report *report);

/* The failure that the kernels of all ranks have found: its status, and the rank at fault
 * (SW_NOBODY: no single rank). SYMWIN_OK: no failure, or the host has asked the kernels to leave.
 * sw_report_tell() sets the error text and returns the same status; `shared`: devices are. */
symwin_status sw_report_status(const struct sw_kernel_report *report, int *culprit);
symwin_status sw_report_tell(const struct sw_kernel_report *report, const char *call,
                             const struct sw_exchange *x, int shared);

/* ---- the communicator ---- */

struct sw_kernels;
struct sw_comm_memory;
struct sw_tuning;
struct sw_window_index;
struct sw_registrations;
struct sw_calls;
struct sw_channels;
struct sw_wide;

#define SW_BALLOT_VALUES 14
#define SW_COMM_NAME_BYTES 64 /* of a communicator's name */

/* One rank's part of an agreement. */
struct sw_ballot {
    uint64_t sequence; /* number of the collective host call */
    char call[32];     /* its name */
    int32_t status;
    int32_t zero;
    uint64_t unused; /* a segment that this rank's process does not use (group.h); 0: none */
    uint64_t values[SW_BALLOT_VALUES]; /* their meaning depends on the call */
    char text[256];                    /* error text, unless status is SYMWIN_OK */
};

/* How far creation got: what teardown must undo. */
enum sw_comm_stage {
    SW_COMM_JOINED,    /* group joined */
    SW_COMM_CONTEXT,   /* primary context retained */
    SW_COMM_KERNELS,   /* kernels loaded */
    SW_COMM_REPORT,    /* kernel report acquired */
    SW_COMM_MEMORY,    /* device memory allocated */
    SW_COMM_REGISTERED /* and registered as a window */
};

struct symwin_comm {
    struct sw_remains remains;       /* first */
    struct symwin_comm *next, *prev; /* in this process's list (comm.c) */
    enum sw_comm_stage stage;
    int rank, nranks;
    int device;
    int ranks_on_device;
    int local_on_device; /* those of this process */
    /* Equal on all ranks, up to `algos`. */
    int sharers;          /* the most ranks on one device */
    int streams_per_rank; /* that can run at the same time; the minimum over all ranks */
    unsigned algos;       /* bit i: algorithm i has kernels for the devices of all ranks */
    unsigned flags;
    int timeout_ms;
    int64_t created_by;    /* deadline of the creation; 0: it has ended, and timeout_ms counts */
    int kernel_timeout_ms; /* -1: no limit */
    int max_blocks;        /* 0: the device decides */
    unsigned spare;        /* multiprocessors that calls leave free */
    size_t slot_bytes;
    struct sw_group *group;          /* holds one reference */
    unsigned char key[SW_KEY_BYTES]; /* shared by the ranks only; seeds the secrets of splits */
    CUcontext context;               /* retained: the device's primary context */
    struct sw_kernels *kernels;
    struct sw_kernel_report *report; /* owned, in pinned host memory */
    CUdeviceptr report_address;
    struct sw_comm_memory *memory; /* owned: struct sw_comm_state and the receive slots */
    size_t state_offset;           /* offset of that state in the flat range */
    struct sw_ballot *ballots;     /* owned, nranks: of the last agreement */
    struct sw_tuning *tuning;      /* owned; NULL: no measured table for these GPUs */

    atomic_flag busy;               /* a thread is inside a collective call */
    atomic_int watchers;            /* threads in symwin_comm_abort() and symwin_comm_check() */
    _Atomic uint64_t failures;      /* sw_failures() when the last call began */
    uint64_t sequence;              /* number of collective host calls so far */
    uint64_t unused_from;           /* segments below it are not looked at: agree_unused() */
    int unused_scans;               /* of all unused segments since one ended; alike on all ranks */
    pthread_mutex_t mutex;          /* protects the windows and the name */
    char name[SW_COMM_NAME_BYTES];  /* as symwin_dump() writes it */
    struct sw_handle_table windows; /* owned, with its struct sw_window */
    struct sw_window_index *index;
    struct sw_registrations *registrations; /* owned: register.h */
    struct sw_calls *calls;                 /* owned: order.h */
    struct sw_channels *channels;           /* owned: channel.h */

    /* Of ranks in several domains (rails/rails.h); NULL: all are in one. Such a communicator has no
     * kernels and no windows: `inner`, that of the rank's domain, has them. */
    struct sw_wide *wide;      /* owned; begins with a pointer to struct sw_wide_calls */
    struct symwin_comm *inner; /* owned */

    /* Calls outside captures; protected as `calls` are. */
    CUdeviceptr done_address; /* device word: number of blocks that have ended */
    uint32_t done;            /* its value once all calls so far have ended */
};

/* How calls of a communicator over several domains are made (rails/wide_calls.c). */
struct sw_request;
struct sw_pair_call;
struct sw_wide_calls {
    /* As sw_request_run(). */
    symwin_status (*run)(const struct sw_request *r, symwin_collective_info *info);
    symwin_status (*check)(const struct sw_request *r); /* of a call that is made later */
    /* Sends and receives that are made together; `n` calls, whose options were checked. `launches`:
     * 0: they are only checked. */
    symwin_status (*pairs)(const struct sw_pair_call *const *calls, size_t n, const char *call,
                           int launches);
    symwin_status (*follow)(symwin_comm *comm, const char *call, CUstream stream);
    void (*look)(symwin_comm *comm); /* whether a part of it has ended: then it ends */
};

/* NULL: all ranks are in one domain. */
static inline const struct sw_wide_calls *sw_wide_calls_of(const symwin_comm *comm)
{
    return comm != NULL && comm->wide != NULL
               ? *(const struct sw_wide_calls *const *)(const void *)comm->wide
               : NULL;
}

/* What a call on `comm` returns if a call on the communicator inside has returned `status`. That
 * one is aborted when `comm` has ended, and `comm` knows why. */
symwin_status sw_comm_reason(symwin_comm *comm, const char *call, symwin_status status);

/* The communicator that has the windows, registered buffers and channels of this one. */
static inline symwin_comm *sw_comm_inside(symwin_comm *comm)
{
    return comm != NULL && comm->inner != NULL ? comm->inner : comm;
}

/* The value to wait for, given an earlier value of comm->done. The device compares modulo 2^32, so
 * a value that is too old would seem to lie ahead. It is limited to 2^30 blocks ago; far fewer
 * blocks can be running. */
static inline uint32_t sw_done_since(const symwin_comm *comm, uint32_t noted)
{
    const uint32_t most = (uint32_t)1 << 30;

    return comm->done - noted > most ? comm->done - most : noted;
}

/* ---- comm.c ---- */

/* One agreement. Every rank passes its status (its last error text is sent too) and up to
 * SW_BALLOT_VALUES values; comm->ballots then has those of all ranks. Returns the same on every
 * rank: SYMWIN_OK, or the status and text of the lowest rank that failed, or SYMWIN_MISMATCH if the
 * ranks are in different calls. */
symwin_status sw_comm_agree(symwin_comm *comm, const char *call, symwin_status mine,
                            const uint64_t *values, int value_count);

/* How many milliseconds a host call that begins now may wait. During creation: those that are left
 * of bootstrap_timeout_ms. */
int sw_comm_patience(const symwin_comm *comm);

/* The list of this process's communicators: from the end of creation to the start of destruction.
 * sw_comm_each() calls see() under a mutex that sw_comm_forget() waits for. */
void sw_comm_list(symwin_comm *comm);
void sw_comm_forget(symwin_comm *comm);
void sw_comm_each(void (*see)(symwin_comm *comm, void *context), void *context);
int sw_comm_is_any(void); /* whether one is in the list */

/* First step of destruction; the communicator's context must be current. Makes peers, on host and
 * device, stop waiting for this rank's next call, then waits for this rank's own calls, and for
 * other threads that are in symwin_comm_abort() or symwin_comm_check(). */
void sw_comm_take_leave(symwin_comm *comm);

/* SYMWIN_OK, or the status that ended this communicator. */
symwin_status sw_comm_status(symwin_comm *comm, const char *call);

/* The rank that did not come in time and so ended this communicator; -1: none did. */
int sw_comm_absent(const symwin_comm *comm);

/* Fails unless `ptr` is memory of this communicator's device. `device` is the device of `ptr`;
 * below 0: the driver is queried. The error text names the call and its argument `name`. */
symwin_status sw_comm_check_device(const symwin_comm *comm, const char *call, const char *name,
                                   CUdeviceptr ptr, int device);

/* The same for a buffer of a call, which may be pinned host memory as well. */
symwin_status sw_comm_check_buffer(const symwin_comm *comm, const char *call, const char *name,
                                   CUdeviceptr ptr);

/* Starts a collective call. SYMWIN_BUSY: another thread is inside one. Also fails with the status
 * that ended the communicator. sw_comm_leave() ends the call. */
symwin_status sw_comm_enter(symwin_comm *comm, const char *call);
void sw_comm_leave(symwin_comm *comm);

#endif
