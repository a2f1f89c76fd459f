/* Registered buffers: private declarations. symwin/register.h explains them. */
#ifndef SYMWIN_REGISTER_PRIVATE_H
#define SYMWIN_REGISTER_PRIVATE_H

#include "src/window/range_cache.h"
#include "src/window/window_register.h"

/* ---- a communicator's registrations ---------------------------------------------------------- */

#define SW_REFUSED_BYTES sizeof(((symwin_registration_info *)0)->refused)

/* A connection: what a connect agreement decided for some bytes, a window or a refusal. All ranks
 * have the same connections in the same order, each of equally many bytes on all ranks, until an
 * agreement removes one. Under the mutex, except for fields that never change. */
struct sw_connected {
    struct sw_use use; /* which pieces it serves; must be the first field */
    struct sw_connected *next;
    uint64_t id;                    /* the same on all ranks, never reused */
    struct sw_window window;        /* refused: without a segment */
    char refused[SW_REFUSED_BYTES]; /* why it was refused; "": it was not */
    unsigned graphs;                /* captures that hold it */
    cuuint64_t capture;             /* the last of them */
    CUdeviceptr held; /* owned memory that the graphs keep from being freed; 0: none */
    int over;         /* nothing on this rank uses it now or later */
    uint32_t done;    /* if over: no call uses it once the device has ended so many blocks */
};

/* Under the mutex, except as noted. */
struct sw_registrations {
    atomic_size_t count; /* of ranges; read without the mutex */
    pthread_mutex_t mutex;
    struct sw_range_cache cache;
    struct sw_handle_table handles; /* owned: of the cache's struct sw_range */
    struct sw_connected *connected; /* owned, oldest first */
    /* A reference: what destroyed graphs held and nobody has released yet. Needs no mutex. Graphs
     * that still hold something keep it after the communicator is gone. */
    struct sw_returns *returns;
    struct ncclComm *nccl; /* attached; NULL: none */
    int (*nccl_register)(struct ncclComm *comm, void *ptr, size_t bytes, void **handle);
    int (*nccl_deregister)(struct ncclComm *comm, void *handle);
    /* Only for the thread in a collective call, without the mutex: */
    uint64_t made;        /* connections made so far: the id of the last one */
    uint64_t asked;       /* the next agreement asks about connections from this id on */
    int keeps;            /* no connection is over yet: calls that may use it are to be launched */
    cuuint64_t capture;   /* the last one that holds connections; 0: none yet */
    struct sw_held *held; /* what it holds: its graph owns this, valid while it goes on */
    CUstream side;        /* owned, for the copy to comm->report->done; NULL: not created yet */
    int copying;          /* that copy may be under way */
    uint32_t counted;     /* blocks that the device has ended, by the last copy */
};

/* ---- register.c: what is registered ---------------------------------------------------------- */

struct sw_registrations *sw_registrations_create(void); /* NULL: no host memory */

/* Waits for the copy of the block count, so that its source and target can be freed. No connect
 * agreement may follow. */
void sw_registrations_end(symwin_comm *comm);

/* Removes all connections and ranges. Graphs that hold some of them may still exist. */
void sw_registrations_destroy(symwin_comm *comm);

/* Frees a connection and releases its memory. Calls that use it must have ended. */
void sw_connected_release(symwin_comm *comm, struct sw_connected *c);

/* Memory in a reservation that can have several mappings is identified by the reservation: this
 * bit, which no driver's buffer id has, and its address. Mappings come and go there, and a range
 * may lie on several. Whether a connection still shows the memory is checked mapping by mapping. */
#define SW_RESERVATION ((uint64_t)1 << 63)

/* The range of those bytes; NULL: there is none, or its memory was freed by its allocator. Under
 * the mutex. */
struct sw_range *sw_registered_known(symwin_comm *comm, uintptr_t begin, size_t bytes);

/* Where a buffer lies that is in no public window. Without the mutex; any thread. Ranges whose
 * memory its allocator has freed become stale.
 *   SW_FOUND_ALL   one connection serves it: *out, of no transports if it was refused
 *   SW_FOUND_PART  it is registered, and no connection serves all of it */
enum sw_found sw_registered_find(symwin_comm *comm, uintptr_t begin, size_t bytes,
                                 struct sw_window_index_entry *out);

/* Why registered bytes at an address were refused; "": they were not, or no call has tried. Any
 * thread. */
void sw_registered_refusal(const symwin_comm *comm, CUdeviceptr at, char why[SW_REFUSED_BYTES]);

/* Whether the connection still shows the memory that this rank has at [begin, begin + bytes), which
 * must lie in the connection. */
int sw_connected_is_current(const symwin_comm *comm, const struct sw_connected *c, uintptr_t begin,
                            size_t bytes);

/* A capture under way. */
struct sw_capture {
    cuuint64_t id; /* 0: there is none */
    CUgraph graph;
};

/* Whether a stream is captured. CU_STREAM_PER_THREAD is another stream in each thread and context,
 * so the thread of the call looks, in the communicator's context. */
struct sw_stream_seen {
    CUresult result;
    CUstreamCaptureStatus capturing;
    struct sw_capture capture;
};
void sw_capture_see(CUstream stream, struct sw_stream_seen *seen);

/* Makes room so that sw_held_add() cannot fail for two buffers. */
symwin_status sw_held_reserve(const char *call, struct sw_registrations *r,
                              const struct sw_capture *capture);

/* Lets the capture hold the connection, once. Under the mutex. */
void sw_held_add(struct sw_registrations *r, struct sw_connected *c);

/* Releases what destroyed graphs held. Call it without the mutex; any thread. */
void sw_returns_collect(symwin_comm *comm);
void sw_registrations_settle(symwin_comm *comm); /* frees what that kept from being freed, too */

/* ---- register_nccl.c: an attached NCCL; under the mutex -------------------------------------- */

symwin_status sw_nccl_put(const char *call, struct sw_registrations *r, struct sw_range *range);
symwin_status sw_nccl_take(const char *call, struct sw_registrations *r, struct sw_range *range);
symwin_status sw_nccl_attach(const char *call, struct sw_registrations *r,
                             struct ncclComm *nccl); /* NULL: detaches */

/* ---- register_agree.c: the connect agreement ------------------------------------------------- */

/* What this rank has of one buffer. */
struct sw_offer {
    CUdeviceptr address;
    int settled;    /* in a public window, or one connection serves it */
    int registered; /* by the program, settled or not */
    int can;        /* be shared: mapped VMM memory without a gap; and held, if a graph has to */
    uint64_t buffer_id;   /* as its range's, if registered */
    size_t before, after; /* registered bytes before and after it that adjoin it */
    uint64_t births;      /* the cache's when that was read */
    size_t start;         /* offset of the address in the allocation */
    size_t place;         /* offset of the address in the physical allocation */
};

/* Collective: decides which connections serve the buffers, of `bytes` each, and removes connections
 * that no rank needs. by[b] is the connection of buffer b; NULL: none, or what settled it before.
 * `status` is the result of this rank's preparations; an error there becomes every rank's. */
symwin_status sw_register_agree(symwin_comm *comm, const char *call, symwin_status status,
                                const struct sw_offer offers[2], size_t bytes,
                                struct sw_connected *by[2]);

/* ---- register_call.c: the buffers of a call; without the mutex ------------------------------- */

struct sw_buffer {
    CUdeviceptr address;
    size_t bytes; /* 0: the call has no such buffer on this rank */
    int decides;  /* all ranks pass it alike: they may agree on it. Two have equally many bytes */
    int told;     /* in a connection that is there, the call may use it by this rank's word */
    /* Set by sw_buffers_find(): */
    int in_window;       /* in a window of all ranks, or in a connection that is one */
    int is_public;       /* in a window that the program has registered */
    unsigned transports; /* of the window; so is the rest */
    size_t offset;       /* of the buffer in the flat range */
    uint64_t memory;     /* handle of the physical allocation; 0: unknown, or several */
    size_t within, room; /* offset there; bytes to the end of its window or memory, 0: unknown */
};

/* Whether two buffers that were found overlap in one physical allocation, whatever their addresses.
 * Windows on several allocations are not known to. */
static inline int sw_buffers_overlap_in_memory(const struct sw_buffer *a, const struct sw_buffer *b)
{
    return a->memory != 0 && a->memory == b->memory && a->within < b->within + b->bytes &&
           b->within < a->within + a->bytes;
}

/* Of a call that is launched. */
struct sw_launched {
    CUstream stream;
    const struct sw_stream_seen *seen; /* NULL, or what the call's thread has seen of the stream */
    int later;                         /* another call of sw_buffers_find() runs the agreement */
    int checks;                        /* that one lets a capture hold the connections, too */
    enum sw_checked checked;
    int agrees; /* set: there is an agreement, and `later`; then the result is that without it */
};

/* Finds where the buffers of a call lie, in and out, and checks them. `launched`: NULL, or
 * registered buffers become windows. For that it runs a connect agreement if all ranks do so for
 * this call, and lets a capture hold the connections that the call uses. If it fails, it does on
 * all ranks. `status` is this rank's result so far: with an error, the rank still joins an
 * agreement that the others come to, and reports the error there. `agreement`: the call's name
 * there, which is equal on all ranks. */
symwin_status sw_buffers_find(symwin_comm *comm, const char *call, const char *agreement,
                              symwin_status status, symwin_type type, struct sw_buffer buffers[2],
                              struct sw_launched *launched);

/* ---- registration.c -------------------------------------------------------------------------- */

/* Calls see() for each range, under the mutex: with the connection that serves its first byte, or
 * NULL, and with how often graphs hold connections that overlap it. */
void sw_registrations_each(symwin_comm *comm,
                           void (*see)(const struct sw_range *range,
                                       const struct sw_connected *connected, unsigned graphs,
                                       void *context),
                           void *context);

#endif
