/* The communicators of NCCL that this library knows: what hangs on each, from its birth to its
 * death (docs/design.md, "Programs on NCCL"). */
#ifndef SYMWIN_NCCL_COMMS_H
#define SYMWIN_NCCL_COMMS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "nccl/served.h"
#include "nccl/setup.h"

enum sw_state {
    SW_FREE,     /* the entry may be used for another one */
    SW_BORN,     /* its ranks have not agreed yet: they do at their first collective */
    SW_ATTACHED, /* its calls may be symwin's */
    SW_REFUSED,  /* NCCL has all of them: `why` */
    SW_FINAL,    /* ncclCommFinalize() was called: NCCL refuses them */
    SW_DYING
};

enum sw_server { SW_NOBODY, SW_NCCLS, SW_OURS };

enum { SW_CLASSES = 48 }; /* of sizes: powers of two */
enum { SW_CAPTURES = 8 }; /* at once, as in symwin */

/* A window of NCCL's, which is one of symwin's too while the communicator has one. */
struct sw_nccl_window {
    struct sw_nccl_window *next;
    ncclWindow_t handle;
    void *ptr;
    size_t size;
    symwin_window *window;
    void *freed; /* the allocation, which goes with a communicator that is ending */
};

/* A pre-multiplied sum. */
struct sw_nccl_op {
    struct sw_nccl_op *next;
    ncclRedOp_t op;
    ncclDataType_t type;
    const void *scalar; /* in device memory; NULL: in `value` */
    char value[8];
};

/* Where ranks exchange records over NCCL. */
struct sw_meeting {
    CUstream stream;
    char *memory;              /* of records and words; pinned, or `device_memory` */
    size_t bytes;              /* of a record */
    CUdeviceptr device_memory; /* without a stream or pinned memory */
    int words_are_due;         /* NCCL has begun the first exchange, and not the second */
};

struct sw_comm {
    struct sw_comm *chain; /* in its bucket; set once */
    _Atomic(ncclComm_t) handle;
    atomic_int users; /* threads that are in a call on it */
    atomic_int state; /* an enum sw_state */
    /* From here on, an entry that is used again is zeroed. */
    atomic_int stop;   /* whoever waits for ranks of it ends */
    atomic_int asking; /* threads in a function of NCCL's that answers at once */
    void *caller;      /* of its birth: decides which NCCL it belongs to */
    int rank, ranks, device;
    unsigned number; /* of this process's communicators */
    CUcontext context;
    struct sw_meeting meeting;
    char why[200];
    int most_blocks;          /* of symwin's kernels; 0: no limit. A guess before the agreement */
    int several_hosts;        /* symwin goes between them by NCCL; equal on all ranks */
    uint64_t sizes[SW_KINDS]; /* which classes are symwin's; a guess before the agreement */
    uint64_t place;           /* among communicators in a group: equal on all ranks */
    int opened;               /* symwin's communicator was made, or refused */
    atomic_int failed; /* an ncclResult_t: of the first call of symwin's that has failed here */
    _Atomic(symwin_comm *) symwin; /* NULL: there is none */

    atomic_int is_later; /* a call is in progress in a thread of this library (blocking=0) */
    atomic_int later;    /* the result of such a call: an ncclResult_t */
    atomic_int ends;     /* ncclCommFinalize() is in progress: symwin's calls may not be over */
    int passed;          /* NCCL has had calls of it, perhaps in graphs */
    CUstream meets_for;  /* of the call for which the ranks meet */

    /* What order.c knows of calls outside captures, and of those in the last captures. */
    struct sw_last {
        cuuint64_t capture; /* 0: none */
        CUevent event;      /* behind NCCL's last call */
        int is_ahead;       /* symwin's next call waits for it */
    } nccls[1 + SW_CAPTURES];
    int captures;   /* that NCCL had calls in */
    int some_ahead; /* of those; it may be none */
    int ours_ahead; /* NCCL's next call outside captures waits for symwin's */
    /* For calls on a thread's own default stream that another thread launches: outside captures,
     * and in one. */
    cudaStream_t lent[2];

    struct sw_nccl_window *windows;
    int lost_windows; /* this rank has no record of one that the others have */
    struct sw_nccl_op *ops;
    _Atomic(struct sw_counts *) counts; /* an abort takes them away from calls of other threads */

    int part; /* of the group that collects calls on it; a guess, as each thread has a group */
};

/* The communicator, which stays until sw_comm_leave(); NULL: it is not known. */
struct sw_comm *sw_comm_find(ncclComm_t handle);
void sw_comm_leave(struct sw_comm *comm);
void sw_comm_stay(struct sw_comm *comm); /* once more */

/* The same, of one that was not known as well. Unless NCCL says who this rank is, the call must
 * fail: the other ranks may meet for it, and NCCL would have the call and the meeting at once. */
ncclResult_t sw_comm_get(ncclComm_t handle, void *caller, struct sw_comm **comm);

/* Nobody finds it any more, but for who is in a call. Then, when all have left, it is gone: who has
 * hidden it removes it, and 0 means that another thread has. */
int sw_comm_hide(struct sw_comm *comm);
void sw_comm_remove(struct sw_comm *comm);

/* Begins a thread that gets none of the program's signals. NULL: nobody waits for it. Whether there
 * is one. */
int sw_comm_begin_thread(pthread_t *thread, void *(*run)(void *data), void *data);

/* Held where lists of windows change, and where threads look through those of others: any thread
 * may free a buffer, whose windows end. */
extern pthread_mutex_t sw_comm_windows;

/* Calls `visit` for each that is known, or is ending: that one has no handle. */
void sw_comm_each(void (*visit)(struct sw_comm *comm, void *data), void *data);

/* The device's context is current until sw_comm_scope_leave(), and the thread may do what captures
 * of other streams forbid. */
struct sw_comm_scope {
    CUstreamCaptureMode mode; /* that was before */
};
int sw_comm_scope_enter(struct sw_comm *comm, struct sw_comm_scope *scope);
void sw_comm_scope_leave(const struct sw_comm_scope *scope);

/* One of NCCL's functions for the communicator. */
#define SW_NCCL_OF(comm, name) sw_from_find(&sw_next_##name, (comm)->caller)

/* ---- attach.c: ranks agree ------------------------------------------------------------------- */

/* Learns from NCCL who this rank is. */
ncclResult_t sw_attach_learn(struct sw_comm *comm);

/* Whether the ranks meet for this collective, all of them, whosever it is: to agree, or to make
 * symwin's communicator, which is tried once. */
int sw_attach_is_due(const struct sw_comm *comm);

/* They meet, and if they agree and any call is symwin's, they make its communicator as well.
 * ncclInProgress from sw_attach_begin(): NCCL does not block (blocking=0), and the end may be in
 * another thread. */
ncclResult_t sw_attach_begin(struct sw_comm *comm);
ncclResult_t sw_attach_end(struct sw_comm *comm);

/* Both, of each communicator once, in threads, for a group of NCCL's. The first failure. */
ncclResult_t sw_attach_all(struct sw_comm *const *comms, int count);

/* Frees memory of symwin_mem_alloc(), and ends symwin's windows on it that are NCCL's too. If they
 * are of a communicator that is ending, the memory goes with it. SYMWIN_BUSY: a program's own
 * window of symwin is on it. */
symwin_status sw_memory_free(void *ptr);

/* Makes NCCL's window one of symwin's too, if there is a communicator of symwin. */
void sw_window_open(struct sw_comm *comm, struct sw_nccl_window *window);

/* Ends symwin's part. `users` of the communicator's users are the caller. */
void sw_close(struct sw_comm *comm, int users);

/* ---- meet.c ---------------------------------------------------------------------------------- */

/* All ranks exchange a record each, of `bytes`. Prepares, and begins it; ncclInProgress: it has
 * begun, and NCCL does not block (blocking=0). */
ncclResult_t sw_meet_prepare(struct sw_comm *comm, size_t bytes);
ncclResult_t sw_meet_begin(struct sw_comm *comm, const void *mine);
/* Waits for the records, at most `ms` from where NCCL has begun. Success and !*came: this rank has
 * given up, and no rank will find that none has. */
ncclResult_t sw_meet_await(struct sw_comm *comm, int ms, int *came);
/* When they have come: waits for the words, which say who has given up. */
ncclResult_t sw_meet_wait(struct sw_comm *comm);
/* Without a wait. ncclInProgress: the words are not there yet. With the context current. */
ncclResult_t sw_meet_query(const struct sw_comm *comm);
/* This rank tells the others that it cannot agree, in its call's stream, and reads nothing. */
static inline int sw_meet_is_deaf(const struct sw_comm *comm)
{
    return comm->meeting.device_memory != 0;
}
int sw_met_gave_up(const struct sw_comm *comm, int rank);
const void *sw_met(const struct sw_comm *comm, int rank); /* that rank's record */
const void *sw_meet_mine(const struct sw_comm *comm);     /* what this one has told */
/* Waits until NCCL has launched what was in progress (blocking=0), or the communicator ends.
 * Whether it has. */
int sw_meet_launched(struct sw_comm *comm);
ncclResult_t sw_meet_was_aborted(void);
/* Around a question to NCCL, which answers at once, about a communicator that another thread may
 * abort: its handle, or NULL. An abort waits until all have asked that got it. So does a call that
 * a thread of this library's makes, if NCCL does not block. */
ncclComm_t sw_meet_ask(struct sw_comm *comm);
void sw_meet_has_asked(struct sw_comm *comm);
void sw_meet_all_asked(struct sw_comm *comm);
/* Whether symwin's calls of this rank are over, within some milliseconds. */
int sw_meet_idle(struct sw_comm *comm, int ms);
/* Whether they are under way even then. -1: waits until they are not, or one has failed. */
int sw_meet_runs(struct sw_comm *comm, int ms);
/* Gives back what meetings have used, and the context. */
void sw_meet_end(struct sw_comm *comm);

/* ---- errors.c -------------------------------------------------------------------------------- */

/* Keeps a sentence for ncclGetLastError(), and returns the result. */
__attribute__((format(printf, 2, 3))) ncclResult_t sw_error(ncclResult_t result, const char *format,
                                                            ...);
ncclResult_t sw_error_of(symwin_status status);      /* with symwin's sentence */
ncclResult_t sw_error_is_nccls(ncclResult_t result); /* NCCL has the sentence, if it failed */

#endif
