/* Registered buffers: private declarations. symwin/register.h has the public ones, and what they are. */
#ifndef SYMWIN_REGISTER_PRIVATE_H
#define SYMWIN_REGISTER_PRIVATE_H

#include "src/window/range_cache.h"
#include "src/window/window_register.h"

/* ---- a communicator's registrations ------------------------------------------------------------- */

/* What a meeting of all ranks has made: a window, or a refusal. All ranks have the same, of equally many bytes, in one order,
 * until a meeting takes it down. Under the mutex, but for what stays as it was made. */
struct sw_connected {
    struct sw_use use; /* serves so many pieces; first */
    struct sw_connected *next;
    uint64_t id;             /* one for all ranks, never reused */
    struct sw_window window; /* refused: has no segment */
    char refused[256];       /* "": it is connected */
    unsigned graphs;         /* how often captures hold it */
    cuuint64_t capture;      /* that did so last */
    CUdeviceptr held;        /* owned memory that is not freed for these graphs; 0: none */
    int over;                /* nothing here uses it any more, and nothing will */
    uint32_t done;           /* then: after so many blocks of comm->done no call uses it */
};

/* Under the mutex, where it says nothing else. */
struct sw_registrations {
    atomic_size_t count; /* of ranges; written under the mutex */
    pthread_mutex_t mutex;
    struct sw_range_cache cache;
    struct sw_handle_table handles; /* owned: of the cache's struct sw_range */
    struct sw_connected *connected; /* owned: from the oldest on */
    struct sw_returns *returns;     /* a reference. No mutex */
    struct ncclComm *nccl;          /* attached; NULL: none */
    int (*nccl_register)(struct ncclComm *comm, void *ptr, size_t bytes, void **handle);
    int (*nccl_deregister)(struct ncclComm *comm, void *handle);
    /* For collective calls, without the mutex: */
    uint64_t made;        /* connections so far: the next one's id */
    uint64_t asked;       /* from this id on the next meeting asks what is over */
    cuuint64_t capture;   /* the last that held anything, 0: none did, */
    struct sw_held *held; /* and for what: not owned, there as long as it goes on */
    CUstream side;        /* owned, for the copy to comm->report->done; NULL: not made yet */
    int copying;          /* there may be a copy under way */
    uint32_t counted;     /* what the last one said of comm->done */
};

struct sw_registrations *sw_registrations_create(void); /* NULL: no host memory */

/* Waits for the copy of comm's count of blocks: what it reads and writes may go then. No meeting follows. */
void sw_registrations_end(symwin_comm *comm);

/* Disconnects and takes back all. Graphs may still hold what was in it. */
void sw_registrations_destroy(symwin_comm *comm);

/* ---- register.c: references ---------------------------------------------------------------------- */

/* Calls see() for each range, with what serves its first byte, or NULL, and how often graphs hold what it lies in; under the
 * mutex. */
void sw_registrations_each(symwin_comm *comm,
                           void (*see)(const struct sw_range *range,
                                       const struct sw_connected *connected, unsigned graphs,
                                       void *context),
                           void *context);

/* Gives back what graphs that are gone have held. Without the mutex; any thread. */
void sw_registrations_settle(symwin_comm *comm);

/* Where one rank's bytes lie, as they are registered; under the mutex. */
struct sw_registered {
    int is;                  /* all of them, one buffer's */
    struct sw_connected *by; /* what serves all of them, NULL: nothing */
    uint64_t buffer_id;
};

/* What others have freed is stale from now on. */
struct sw_registered sw_registered_look(symwin_comm *comm, uintptr_t begin, size_t bytes);

/* Whether this rank has at [begin, begin + bytes), which lies in the connection, what that shows. */
int sw_connected_is_current(const symwin_comm *comm, const struct sw_connected *c, uintptr_t begin,
                            size_t bytes);

/* ---- register_nccl.c: an attached NCCL; under the mutex ------------------------------------------ */

symwin_status sw_nccl_put(const char *call, struct sw_registrations *r, struct sw_range *range);
symwin_status sw_nccl_take(const char *call, struct sw_registrations *r, struct sw_range *range);

/* ---- register_call.c: what calls do about registered buffers; without the mutex ----------------- */

/* Where a call finds a buffer that is in no public window: SW_FOUND_ALL: it is settled, by `out`, whose transports are 0 where
 * it was refused. SW_FOUND_PART: it is registered and not settled. Any thread. */
enum sw_found sw_registered_find(symwin_comm *comm, uintptr_t begin, size_t bytes,
                                 struct sw_window_index_entry *out);

/* One buffer of a call. */
struct sw_buffer {
    CUdeviceptr address;
    int is_known;        /* where it lies, which is not said of an address that is none: */
    int in_window;       /* a public one; else: */
    enum sw_found found; /* as sw_registered_find() has it, and its entry, or */
    struct sw_window_index_entry entry; /* the window's; of no transports where there is neither */
};

/* Whether sw_registrations_prepare() could do anything. */
int sw_registrations_any(const symwin_comm *comm, const struct sw_buffer buffers[2]);

/* Before a call is launched: meets the other ranks where all of them do so, and lets a capture hold what it uses. It may set
 * the buffers' entries. A failure of a meeting is all ranks'; `status` is what this rank has found so far: where an error is not
 * enough to keep others from meeting, they hear of it there. */
symwin_status sw_registrations_prepare(symwin_comm *comm, const char *call, symwin_status status,
                                       struct sw_buffer buffers[2], size_t bytes, CUstream stream);

/* What graphs that are gone have held and nobody has given back yet: outlives the communicator. */
struct sw_returns *sw_returns_create(void); /* NULL: no host memory */
void sw_returns_unref(struct sw_returns *returns);
void sw_returns_collect(symwin_comm *comm); /* gives it back */

/* ---- connect.c: a meeting --------------------------------------------------------------------- */

/* One buffer, as this rank has it. */
struct sw_offer {
    CUdeviceptr address;
    int settled;    /* it needs nothing */
    int registered; /* by the program, whether it is settled or not */
    int can;        /* be shared, and held where a graph is to: VMM memory, and one allocation */
    uint64_t buffer_id;
    size_t before, after; /* registered bytes, within the allocation */
    uint64_t births;      /* of the cache, when that was seen */
    size_t start;         /* the address's offset in the allocation, */
    size_t place;         /* and in the physical one */
};

/* Collective: decides what serves the buffers, of `bytes` each, and takes down what is over on all ranks. by[b] is what
 * serves buffer b; NULL: nothing but what has settled it. `status` is what this rank's preparations gave; an error there becomes
 * every rank's. */
symwin_status sw_register_agree(symwin_comm *comm, const char *call, symwin_status status,
                                const struct sw_offer offers[2], size_t bytes,
                                struct sw_connected *by[2]);

/* Frees what it has. Its calls have ended. */
void sw_connected_release(symwin_comm *comm, struct sw_connected *c);

#endif
