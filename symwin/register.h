/* Registered buffers of symwin: a part of symwin.h, which includes this.
 *
 * For programs that cannot register windows by all ranks together: a buffer is registered by its rank alone, in nanoseconds
 * where it is known, and becomes a window in the first all-reduce on it.
 *
 *     symwin_register(comm, in, bytes, &r);             every rank, when it likes
 *     symwin_allreduce(comm, in, out, ...);             the first one connects in and out, if they are registered
 *     symwin_allreduce(comm, in, out, ...);             as on windows from here on
 *     symwin_deregister(comm, r);
 *
 * Ranges. A range is just the bytes that are registered. The same range registered again is counted and not kept twice.
 * Ranges of one buffer that overlap or adjoin serve as one, so each rank may cut the same memory in its own way, or register
 * more than the others. A range is known by its buffer as well as by its address: where memory was freed and the address is
 * another buffer's now, it serves no more.
 *
 * Connecting. In the first all-reduce whose buffers lie in registered ranges and in no window, all ranks agree on the host
 * and map each other's memory: what lies, on all ranks, before and behind the buffers in their ranges as well. So in that
 * call the host waits for the other ranks. They all connect, or none does and the call and later ones on that memory send
 * it through the communicator's own: where an allocation is no VMM memory, or a buffer's offset in its allocation differs, by
 * more than multiples of the granularity (symwin_registration_info.refused says why). Where the offset differs and not as
 * much is registered on all ranks, nothing is noted, and each call waits for the other ranks. As windows, a range may lie on several
 * physical allocations side by side in one reservation, as PyTorch's expandable segments. As for windows:
 *
 *   - in a call all ranks pass registered buffers or none does, and what is connected at the same offset;
 *   - between two calls all ranks register and deregister the same buffers. What is deregistered is connected no more, and
 *     when it is registered again the next call on it waits for the other ranks.
 *
 * Where ranks differ in that, they get SYMWIN_TIMEOUT or SYMWIN_MISMATCH.
 *
 * Disconnecting. A deregistered buffer may be freed at once, but its physical memory stays mapped for the peers, and so in use
 * on the device, until all ranks have met again, in calls that connect other buffers or are captured, or until the
 * communicator is destroyed. Nothing is unmapped while a call that may use it is under way.
 *
 * Graphs. Captured calls register their buffers by themselves, for the graph alone, unless these lie in windows or are
 * registered: then all ranks capture the same calls, each by a thread of its own, and each such captured call waits for the
 * other ranks. What a graph uses it holds until it and what was instantiated of it are destroyed, and the driver has said
 * so, which it may do later: it cannot be freed (SYMWIN_BUSY), whoever deregisters it. Calls outside captures do not go by
 * what graphs alone hold. Captures do not register with the communicator's flag SYMWIN_COMM_NO_GRAPH_REGISTER or the environment
 * SYMWIN_GRAPH_REGISTER=0, and memory that cannot be shared fails no captured call.
 *
 * Threads. Any thread, at any time; other threads' collectives go on. A buffer must not be deregistered while a call on it
 * is being made or has not ended.
 */
#ifndef SYMWIN_REGISTER_H
#define SYMWIN_REGISTER_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm; /* NCCL's */

/* A registration's handle; dead for ever once its last reference is given up. */
typedef struct symwin_registration symwin_registration;

/* Registers this rank's [ptr, ptr + bytes), or counts it once more: symwin_deregister() is to be called as often.
 *
 *   ptr    device memory of this rank's device, of any allocator. Memory of symwin_mem_alloc() cannot be freed while it is
 *          registered (SYMWIN_BUSY)
 *   bytes  > 0, within the allocation, or within those of another allocator that lie side by side in one reservation
 *
 *   SYMWIN_INVALID    bytes 0, no device memory, another device's, or past the allocation
 *   SYMWIN_DRIVER     ncclCommRegister() of an attached communicator failed; nothing is registered
 *   SYMWIN_NO_MEMORY, SYMWIN_ABORTED and what else has ended the communicator */
SYMWIN_API symwin_status symwin_register(symwin_comm *comm, void *ptr, size_t bytes,
                                         symwin_registration **registration);

/* Gives up one reference. With the last one the handle is dead, calls outside captures do not go by the range any more, and it is
 * taken back from an attached NCCL. All that is undone even where a part fails; the first failure is returned. Works on a
 * communicator that has ended.
 *
 *   SYMWIN_INVALID  no live registration of this communicator */
SYMWIN_API symwin_status symwin_deregister(symwin_comm *comm, symwin_registration *registration);

enum { SYMWIN_TRANSPORT_NCCL = 4 /* registered with an attached communicator of NCCL */ };

typedef struct symwin_registration_info {
    void *ptr;
    size_t bytes;
    unsigned local_references; /* symwin_register() less symwin_deregister() */
    unsigned
        graph_references; /* graphs that hold what it is connected by, or other memory beside it in that */
    unsigned
        transports; /* SYMWIN_TRANSPORT_*, of its first byte; 0: not connected yet, or refused */
    uint64_t
        buffer_id; /* of the allocation; of memory in a reservation that has room for several, the reservation's */
    char refused[256]; /* why it does not connect, "" if it does or nobody has tried */
} symwin_registration_info;

/* What a range is and how it fares. SYMWIN_INVALID: no live registration of this communicator. */
SYMWIN_API symwin_status symwin_registration_query(symwin_comm *comm,
                                                   const symwin_registration *registration,
                                                   symwin_registration_info *info);

/* Registers all that is and will be registered with a communicator of NCCL too (ncclCommRegister()), so that NCCL's own
 * collectives on these buffers, over the network or not, copy nothing. NULL: takes all back from the one that is attached;
 * do so before ncclCommDestroy(). Local.
 *
 *   nccl  of the same device. NCCL must be loaded in this process
 *
 *   SYMWIN_INVALID      another one is attached
 *   SYMWIN_UNSUPPORTED  no ncclCommRegister() in this process
 *   SYMWIN_DRIVER       NCCL refused a buffer; none is registered with it, and it is not attached */
SYMWIN_API symwin_status symwin_comm_attach_nccl(symwin_comm *comm, struct ncclComm *nccl);

#ifdef __cplusplus
}
#endif
#endif
