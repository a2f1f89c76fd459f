/* Channels of symwin: a part of symwin.h, which includes this, and of symwin/channel.cuh.
 *
 * A channel is between two ranks: memory of each that the other one's kernels put to and get from, and counters by which
 * kernels signal and wait. Both ranks make it, neither waits for the other then; what a kernel needs of it is a struct,
 * passed by value.
 *
 *     symwin_channel_create(comm, peer, memory, bytes, NULL, &end);   on both ranks, each with its own memory
 *     symwin_channel_connect(comm, end, &channel);                    waits for the peer's
 *     kernel<<<...>>>(channel, ...);                                  symwin_channel_put() and so on: symwin/channel.cuh
 *     symwin_channel_destroy(comm, end);
 *
 * Memory. Any VMM memory of this rank's device. What lies in a window is mapped on the peer already; other memory
 * (registered memory in MSCCL++'s terms), of which only this rank knows, is shown to the peer alone, when it connects:
 * the whole physical allocation, once for all channels on it. Sizes and offsets may differ; a rank may have none at all.
 *
 * Order. The n-th channel that a rank makes with a peer meets the n-th that the peer makes with it. Who has several makes
 * all of them before it connects the first: then no order of peers can make ranks wait for each other, since whoever
 * waits in one symwin_channel_connect() answers for all its channels. Both ranks connect before they make the next
 * collective call.
 *
 * A failure of either rank is both ranks' failure, with one status, and with the text of the lower one that failed. So
 * symwin_channel_create() also tells the peer when it fails, and that counts as one of the channels.
 *
 * Like the communicator's other calls, these are made by one thread of a rank at a time; but symwin_channel_query(),
 * symwin_channel_limit() and symwin_channel_destroy() by any.
 */
#ifndef SYMWIN_CHANNEL_H
#define SYMWIN_CHANNEL_H

#include "symwin.h"
#include "symwin/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what kernels get ------------------------------------------------------------------------ */

/* Between this rank's memory and a peer's. The words are zeroed before the first kernel, and never reset. */
typedef struct symwin_channel {
    uint64_t own;     /* address of this rank's memory, 0: it has none */
    uint64_t theirs;  /* and of the peer's, as this rank's device has it */
    uint64_t signals; /* of a word of 64 bits in this rank's memory: the peer's signals so far */
    uint64_t their_signals; /* of the peer's such word */
    uint64_t waited;        /* of a word in this rank's memory: how many signals were waited for */
} symwin_channel;

/* A channel's further lanes have their words behind those: lane i's are i times as much behind each. */
#define SYMWIN_CHANNEL_LANE_BYTES 16

typedef struct symwin_limit symwin_limit; /* how long a kernel waits: symwin/kernel.h */

/* The limit of the communicator's own kernels: its kernel_timeout_ms, and the word that an abort or the loss of a rank
 * sets. Kernels that leave by it find the reason on the host, by symwin_comm_check(); after a timeout the library knows of
 * none. Any thread.
 *
 *   SYMWIN_INVALID  comm or limit is NULL */
SYMWIN_API symwin_status symwin_channel_limit(symwin_comm *comm, symwin_limit *limit);

/* ---- making them ----------------------------------------------------------------------------- */

/* This rank's end of a channel: a handle, dead for ever once destroyed. */
typedef struct symwin_channel_end symwin_channel_end;

enum { SYMWIN_CHANNEL_LANES = 16384 }; /* that a rank can have, of all its channels together */

typedef struct symwin_channel_options {
    size_t size; /* sizeof(symwin_channel_options); 0 elsewhere: the default */
    int lanes; /* pairs of counters, by which blocks can signal and wait each for itself; 1, the same on both ranks */
} symwin_channel_options;

/* Begins a channel with another rank, and tells it. Waits for nobody: symwin_channel_connect() does.
 *
 *   peer     another rank
 *   ptr      what the peer may reach: VMM memory of this rank's device (symwin_mem_alloc(), ncclMemAlloc(), a
 *            framework's), at any alignment; NULL: nothing. The channel keeps memory of symwin_mem_alloc() from being freed
 *            (SYMWIN_BUSY)
 *   bytes    within the allocation; 0 where ptr is NULL
 *   options  NULL for the defaults
 *   end      destroy with symwin_channel_destroy()
 *
 *   SYMWIN_INVALID      no other rank of that number, no VMM memory, another device's memory, past the allocation, or
 *                       options that make no sense
 *   SYMWIN_UNSUPPORTED  the memory is in no window and cannot be exported (see symwin_mem_export()), to another host not
 *                       as a fabric handle
 *   SYMWIN_NO_MEMORY    more lanes than there are, or no descriptor or host memory is left
 *   SYMWIN_TIMEOUT, SYMWIN_PEER_LOST, SYMWIN_ABORTED  the communicator is no longer usable */
SYMWIN_API symwin_status symwin_channel_create(symwin_comm *comm, int peer, void *ptr, size_t bytes,
                                               const symwin_channel_options *options,
                                               symwin_channel_end **end);

/* Waits until the peer has made its end and both have the other's memory. Repeated, gives the same again.
 *
 *   channel  what kernels of this rank's device get, by value. Good until symwin_channel_destroy()
 *
 *   SYMWIN_INVALID    no live end of this communicator
 *   SYMWIN_MISMATCH   lanes differ, the peer has destroyed its end, or its memory is in a window that this rank has
 *                     given up
 *   SYMWIN_NO_MEMORY  no address space or descriptor for the peer's memory
 *   SYMWIN_TIMEOUT, SYMWIN_PEER_LOST, SYMWIN_ABORTED  the communicator is no longer usable
 *   and what the peer's symwin_channel_create() or _connect() failed with. The end is still to be destroyed. */
SYMWIN_API symwin_status symwin_channel_connect(symwin_comm *comm, symwin_channel_end *end,
                                                symwin_channel *channel);

/* Gives up this rank's end. Local, in any order, connected or not; call it when this rank's kernels with the channel have
 * ended. What this rank has mapped of the peer's memory goes with the last end on it. The peer's kernels may still use
 * this rank's memory until its end is destroyed too: that is for the ranks to know before they free it. Counters serve
 * another channel when both ends are gone. symwin_comm_destroy() destroys what is left.
 *
 *   SYMWIN_INVALID  no live end of this communicator */
SYMWIN_API symwin_status symwin_channel_destroy(symwin_comm *comm, symwin_channel_end *end);

typedef struct symwin_channel_info {
    int peer;
    int lanes;
    int connected;      /* symwin_channel_connect() would succeed at once */
    int window;         /* this rank's memory is in a window */
    void *ptr;          /* as passed to symwin_channel_create() */
    size_t bytes;       /* of this rank's memory, */
    size_t their_bytes; /* and of the peer's; 0: it has none, or is not connected */
} symwin_channel_info;

/* SYMWIN_INVALID: no live end of this communicator. */
SYMWIN_API symwin_status symwin_channel_query(symwin_comm *comm, const symwin_channel_end *end,
                                              symwin_channel_info *info);

#ifdef __cplusplus
}
#endif
#endif
