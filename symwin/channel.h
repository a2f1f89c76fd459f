/* Channels: a part of symwin.h, which includes this, and of symwin/channel.cuh.
 *
 * A channel connects two ranks: memory of each rank that the other rank's kernels put to and get
 * from, and counters by which kernels signal and wait. Both ranks create it; afterwards neither
 * waits for the other on the host. Kernels get a struct by value.
 *
 *     symwin_channel_create(comm, peer, memory, bytes, NULL, &end);   on both ranks, each its
 *                                                                     memory
 *     symwin_channel_connect(comm, end, &channel);                    waits for the peer's end
 *     kernel<<<...>>>(channel, ...);                                  symwin/channel.cuh has the
 *                                                                     calls
 *     symwin_channel_destroy(comm, end);
 *
 * Memory: any VMM memory of this rank's device. Memory in a window is already mapped on the peer.
 * Other memory ("registered memory" in MSCCL++'s terms) is exported to the peer alone when it
 * connects: the whole physical allocation, once for all channels on it. Sizes and offsets may
 * differ between the ranks, and a rank may have no memory.
 *
 * Order: the n-th channel that a rank creates with a peer meets the n-th that the peer creates with
 * it. With several channels, create all before connecting the first. Then the ranks cannot wait for
 * each other in a circle, because a rank that waits in symwin_channel_connect() answers for all its
 * channels. Both ranks connect before they make the next collective call.
 *
 * Failures: if either rank fails, both get the same status, and the text of the lower rank that
 * failed. So a failing symwin_channel_create() tells the peer too, and counts as one of the
 * channels.
 *
 * Threads: one thread of a rank at a time, except symwin_channel_query(), symwin_channel_limit()
 * and symwin_channel_destroy(), which any thread may call at any time.
 */
#ifndef SYMWIN_CHANNEL_H
#define SYMWIN_CHANNEL_H

#include "symwin.h"
#include "symwin/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what kernels get ------------------------------------------------------------------------ */

/* A kernel argument: memory and counters of two ranks. The 64-bit words are zeroed before the first
 * kernel and never reset. */
typedef struct symwin_channel {
    uint64_t own;           /* address of this rank's memory; 0: none */
    uint64_t theirs;        /* address of the peer's memory on this rank's device; 0: none */
    uint64_t signals;       /* address of this rank's word: the peer's signals so far */
    uint64_t their_signals; /* address of the peer's word: this rank's signals */
    uint64_t waited;        /* address of this rank's word: signals waited for so far */
} symwin_channel;

/* Lane i's words lie i times this many bytes behind lane 0's. */
#define SYMWIN_CHANNEL_LANE_BYTES 16

typedef struct symwin_limit symwin_limit; /* a kernel's longest wait: symwin/kernel.h */

/* Gives the limit of the library's own kernels: the communicator's kernel_timeout_ms, and the word
 * that an abort or the loss of a rank sets. If a kernel's wait ends by that word,
 * symwin_comm_check() has the reason; a timeout in your own kernel is not reported there. Any
 * thread.
 *
 *   SYMWIN_INVALID  comm or limit is NULL */
SYMWIN_API symwin_status symwin_channel_limit(symwin_comm *comm, symwin_limit *limit);

/* ---- creation and connection ----------------------------------------------------------------- */

/* The handle of this rank's end of a channel. Invalid once destroyed; the value is never reused. */
typedef struct symwin_channel_end symwin_channel_end;

enum { SYMWIN_CHANNEL_LANES = 16384 }; /* of one rank, in all its channels together */

typedef struct symwin_channel_options {
    size_t size; /* sizeof(symwin_channel_options); 0 in any other member selects the default */
    /* Pairs of counters, so that blocks can signal and wait independently. Default 1; the same on
     * both ranks. */
    int lanes;
} symwin_channel_options;

/* Creates this rank's end of a channel and tells the peer. Does not wait for the peer:
 * symwin_channel_connect() does.
 *
 *   peer     another rank
 *   ptr      memory that the peer may access: VMM memory of this rank's device (symwin_mem_alloc(),
 *            ncclMemAlloc() or a framework's), at any alignment; NULL: none. Memory of
 *            symwin_mem_alloc() cannot be freed while it is in a channel (SYMWIN_BUSY)
 *   bytes    within the allocation; 0 if ptr is NULL
 *   options  NULL for the defaults
 *   end      destroy with symwin_channel_destroy()
 *
 *   SYMWIN_INVALID      no such other rank, no VMM memory, another device's memory, past the
 *                       allocation, or invalid options
 *   SYMWIN_UNSUPPORTED  the memory is in no window and cannot be exported (see
 *                       symwin_mem_export()), to another host not as a fabric handle
 *   SYMWIN_NO_MEMORY    too few lanes, descriptors or host memory are left
 *   SYMWIN_TIMEOUT, SYMWIN_PEER_LOST, SYMWIN_ABORTED  the communicator has ended */
SYMWIN_API symwin_status symwin_channel_create(symwin_comm *comm, int peer, void *ptr, size_t bytes,
                                               const symwin_channel_options *options,
                                               symwin_channel_end **end);

/* Waits until the peer has created its end and both ranks have the other's memory. Later calls on
 * the same end give the same result at once.
 *
 *   channel  a kernel argument for this rank's device, valid until symwin_channel_destroy()
 *
 *   SYMWIN_INVALID    no live end of this communicator
 *   SYMWIN_MISMATCH   the lanes differ, the peer has destroyed its end, or the peer's memory is in
 *                     a window that this rank has deregistered
 *   SYMWIN_NO_MEMORY  no address space or descriptor for the peer's memory
 *   SYMWIN_TIMEOUT, SYMWIN_PEER_LOST, SYMWIN_ABORTED  the communicator has ended
 *   and the status of the peer's failed symwin_channel_create() or symwin_channel_connect().
 *
 * After a failure the end must still be destroyed. */
SYMWIN_API symwin_status symwin_channel_connect(symwin_comm *comm, symwin_channel_end *end,
                                                symwin_channel *channel);

/* Destroys this rank's end. Local, in any order, connected or not; call it when this rank's kernels
 * with the channel have ended. This rank's mapping of the peer's memory goes with the last end on
 * it. The peer's kernels may still use this rank's memory until the peer destroys its end, so the
 * ranks must agree before they free it. Counters are reused when both ends are destroyed.
 * symwin_comm_destroy() destroys the remaining ends.
 *
 *   SYMWIN_INVALID  no live end of this communicator */
SYMWIN_API symwin_status symwin_channel_destroy(symwin_comm *comm, symwin_channel_end *end);

typedef struct symwin_channel_info {
    int peer;
    int lanes;
    int connected;      /* 1: symwin_channel_connect() would succeed at once */
    int window;         /* 1: this rank's memory is in a window */
    void *ptr;          /* as passed to symwin_channel_create() */
    size_t bytes;       /* of this rank's memory */
    size_t their_bytes; /* of the peer's memory; 0: none, or not connected */
} symwin_channel_info;

/* Describes an end. Any thread. SYMWIN_INVALID: no live end of this communicator. */
SYMWIN_API symwin_status symwin_channel_query(symwin_comm *comm, const symwin_channel_end *end,
                                              symwin_channel_info *info);

#ifdef __cplusplus
}
#endif
#endif
