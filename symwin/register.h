/* Registered buffers: a part of symwin.h, which includes this.
 *
 * For programs whose ranks cannot register windows together. Each rank registers a buffer on its
 * own, in nanoseconds if the range is already known. The buffer becomes a window in the first
 * all-reduce on it, or in the first other collective that can use that.
 *
 *     symwin_register(comm, in, bytes, &r);             each rank, at any time
 *     symwin_allreduce(comm, in, out, ...);             the first call connects registered in and
 *                                                       out
 *     symwin_allreduce(comm, in, out, ...);             later calls work as on windows
 *     symwin_deregister(comm, r);
 *
 * Ranges. A range covers exactly the registered bytes. The same range registered again only counts
 * one more reference. Ranges of one buffer that overlap or adjoin work as one, so each rank may
 * divide the same memory differently, or register more than the others. A range is known by its
 * buffer as well as its address: if the memory was freed and another buffer has the address, the
 * range is no longer used.
 *
 * Which calls. Both buffers of an all-reduce, of any size; `out` of all-gather, all-to-all and
 * broadcast, and `in` of reduce-scatter and reduce, if the call names an algorithm over windows or
 * is of a size for which AUTO chooses one. Smaller calls wait for nobody. The other buffer of such
 * a call may be registered or not on each rank. Gather, scatter, sends and receives, and
 * collectives with unequal parts connect nothing and use no registered buffer as a window.
 *
 * Connecting. In the first such call whose buffers lie in registered ranges and in no window, the
 * ranks reach an agreement on the host and map each other's memory: the buffers, and the memory
 * before and behind them that is registered on all ranks. So in that call the host waits for the
 * other ranks. Either all ranks connect the buffers or none does. If none, this call and later ones
 * on that memory go through the communicator's internal buffers; symwin_registration_info.refused
 * says why. Reasons are an allocation that is no VMM memory, or a buffer whose offset in its
 * allocation differs between ranks, other than by multiples of the granularity. If offsets differ
 * and the ranks have registered different amounts around the buffer, or some ranks make an
 * all-reduce in place and others do not, no result is kept and each call waits for the other ranks
 * again. As under a window, a range may lie on several physical allocations side by side in one
 * reservation, as PyTorch's expandable segments do. The rules are those of windows:
 *
 *   - In one such call either all ranks pass registered buffers or none does; connected buffers are
 *     at the same offset on all ranks.
 *   - Between two calls all ranks register and deregister the same buffers. A deregistered buffer
 *     is no longer connected. When it is registered again, the next call on it waits for the other
 *     ranks.
 *
 * If ranks break these rules, they get SYMWIN_TIMEOUT or SYMWIN_MISMATCH.
 *
 * Disconnecting. A deregistered buffer may be freed at once. But its physical memory stays mapped
 * for the peers, and so in use on the device, until the ranks meet again (in a call that connects
 * other buffers, or in a captured call) or until the communicator is destroyed. Nothing is unmapped
 * while a call that may use it is under way.
 *
 * Graphs. A captured call of those above registers its buffers for the graph alone, unless they lie
 * in windows or are registered. So all ranks must capture the same calls, each rank in its own
 * thread or all in a group, and each such call waits for the other ranks. The graph holds the
 * memory until the graph and all its instances are destroyed and the driver has reported that,
 * which may be later. Until then the memory cannot be freed (SYMWIN_BUSY), even if it is
 * deregistered. Calls outside captures do not use what only graphs hold. Captured calls register
 * nothing with SYMWIN_COMM_NO_GRAPH_REGISTER or SYMWIN_GRAPH_REGISTER=0. Memory that cannot be
 * shared does not make a captured call fail.
 *
 * Threads. Any thread, at any time, also during collective calls of other threads. Do not
 * deregister a buffer while a call on it is being made or has not completed.
 */
#ifndef SYMWIN_REGISTER_H
#define SYMWIN_REGISTER_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm; /* NCCL's */

/* A registration's handle. Invalid once its last reference is released; the value is never
 * reused. */
typedef struct symwin_registration symwin_registration;

/* Registers this rank's [ptr, ptr + bytes), or adds a reference to it. Each call needs its own
 * symwin_deregister(). Local.
 *
 *   ptr    memory of this rank's device, of any allocator. Memory of symwin_mem_alloc() cannot be
 *          freed while it is registered (SYMWIN_BUSY)
 *   bytes  > 0, within the allocation; memory of another allocator may lie on several allocations
 *          side by side in one reservation
 *
 *   SYMWIN_INVALID    bytes 0, no device memory, another device's memory, or past the allocation
 *   SYMWIN_DRIVER     ncclCommRegister() of the attached NCCL communicator failed; nothing is
 *                     registered
 *   SYMWIN_NO_MEMORY  no host memory
 *   SYMWIN_ABORTED and other statuses with which the communicator has ended */
SYMWIN_API symwin_status symwin_register(symwin_comm *comm, void *ptr, size_t bytes,
                                         symwin_registration **registration);

/* Releases one reference. Local. The last one invalidates the handle, ends the range's use by calls
 * outside captures, and deregisters it from an attached NCCL. All steps are done even if one fails;
 * the first failure is returned. Also works on a communicator that has ended.
 *
 *   SYMWIN_INVALID  no live registration of this communicator */
SYMWIN_API symwin_status symwin_deregister(symwin_comm *comm, symwin_registration *registration);

enum { SYMWIN_TRANSPORT_NCCL = 4 /* registered with the attached NCCL communicator */ };

typedef struct symwin_registration_info {
    void *ptr;
    size_t bytes;
    unsigned local_references; /* symwin_register() calls minus symwin_deregister() calls */
    /* Graphs that hold the connected memory under this range, or other memory of that
     * connection. */
    unsigned graph_references;
    /* SYMWIN_TRANSPORT_*, of the first byte; 0: not connected yet, or refused. */
    unsigned transports;
    /* Of the mapping; of the reservation if that has room for several allocations. */
    uint64_t buffer_id;
    char refused[256]; /* why it does not connect; "": it does, or no call has tried */
} symwin_registration_info;

/* Describes a range. SYMWIN_INVALID: no live registration of this communicator. */
SYMWIN_API symwin_status symwin_registration_query(symwin_comm *comm,
                                                   const symwin_registration *registration,
                                                   symwin_registration_info *info);

/* Attaches an NCCL communicator: all present and later registrations are also registered with it
 * (ncclCommRegister()), so that NCCL's own collectives on these buffers, over the network or not,
 * copy nothing. NULL detaches: it deregisters all from the attached one; do so before
 * ncclCommDestroy(). Local.
 *
 *   nccl  of the same device; NCCL must be loaded in this process
 *
 *   SYMWIN_INVALID      another one is attached
 *   SYMWIN_UNSUPPORTED  no ncclCommRegister() in this process
 *   SYMWIN_DRIVER       NCCL refused a buffer; nothing is registered with it, and it is not
 *                       attached */
SYMWIN_API symwin_status symwin_comm_attach_nccl(symwin_comm *comm, struct ncclComm *nccl);

#ifdef __cplusplus
}
#endif
#endif
