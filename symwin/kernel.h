/* What your own kernels get from the host: C99, and C++ for device code.
 *
 *   symwin_peers         a communicator's flat range
 *   symwin_limit         the limit of a wait
 *   symwin_kernel_args   the argument of a collective kernel that `symwin-perf --kernel` runs
 *
 * docs/your-own-kernel.md describes such kernels; they include symwin/kernel.cuh.
 */
#ifndef SYMWIN_KERNEL_H
#define SYMWIN_KERNEL_H

#include <stdint.h>

/* A communicator's flat range: byte o of rank r is at base + r * stride + o. If there is multicast,
 * the multicast alias of all ranks is at base + nranks * stride. */
struct symwin_peers {
    uint64_t base;
    uint64_t stride;
    int32_t rank;
    int32_t nranks;
};

/* The limit of a wait, which ends at whichever comes first. */
struct symwin_limit {
    uint64_t timeout_ns; /* nanoseconds; 0: no limit */
    /* Address of a 32-bit word; the wait ends when it is not 0. 0: there is no such word. */
    uint64_t abort;
};

/* The offset of a buffer that lies in no window. */
#define SYMWIN_NO_OFFSET (~(uint64_t)0)

/* No rank to send to or to receive from. */
#define SYMWIN_NO_RANK (-1)

/* One call of the collective that the kernel declares, or of an all-reduce. Passed by value:
 *
 *     extern "C" __global__ void NAME(const struct symwin_kernel_args args)
 *
 * All ranks make the same calls in the same order, each rank one after another. In one call all
 * ranks have the same count, type, operation, root, offsets (but see below) and grid; the next call
 * may have others. All blocks of all ranks' grids are resident at the same time.
 *
 *   collective       in, in elements          out, in elements
 *   allreduce        count                    count: the inputs reduced over all ranks
 *   allgather        count                    count from each rank, in the order of the ranks
 *   alltoall         count for each rank      count from each rank
 *   broadcast        count, the root's        count: the root's input
 *   gather           count                    count from each rank, the root's
 *   scatter          count for each rank,     count: the part of the root's input that is for this
 *                    the root's               rank
 *   reduce_scatter   count for each rank      count: all ranks' parts for this rank, reduced
 *   reduce           count                    count: the inputs reduced over all ranks, the root's
 *   sendrecv         count, for rank `to`     count: the input of rank `from`
 *   alltoallv        parts, for each rank     parts, from each rank
 *   allgatherv       this rank's part         parts, from each rank
 *   reduce_scatterv  parts, for each rank     this rank's part: all ranks' parts for it, reduced
 *   barrier          none                     none: no call ends before all ranks' have begun
 *
 * Other ranks than the root also have memory of this length where only the root has an input or an
 * output, and so has a rank that sends or receives nothing; a call does not change it. In place, a
 * rank's `in` and `out` are equal; or, if one has a part for each rank and the other has not, the
 * shorter one is this rank's part of the longer one. Sendrecv and alltoallv are never in place.
 *
 * Where parts have unequal lengths, in_counts[p] elements from in_displacements[p] on are for rank
 * p, and out_counts[p] elements from out_displacements[p] on are from rank p. Parts do not overlap;
 * any of them may be empty, and their order is arbitrary. An allgatherv has the out_ arrays only,
 * equal on all ranks, as a reduce_scatterv has the in_ arrays. In an alltoallv, in_counts[p] of
 * rank r is out_counts[r] of rank p; that rank alone knows the displacement. No part is longer than
 * `count`.
 *
 * What a kernel can rely on:
 *
 *   in        Complete when this rank's call begins. Only the call changes it until this rank's
 *             call ends. After that it may be overwritten at once: no peer may still read it. The
 *             arrays of counts and displacements alike.
 *   out       Belongs to the call while this rank's call runs; its first contents are undefined. It
 *             must be complete when the call ends, and may then be read or overwritten at once.
 *   scratch   Zero on all ranks before the first call on any rank. After that only calls write it.
 *   slots     As scratch, but while no rank is in a call, all its bits may be set to ones. So slots
 *             can hold data in transit within a call, but no counters.
 *   graphs    Each replay passes the same arguments. What must change with each call, such as an
 *             epoch, must be counted in scratch. */
struct symwin_kernel_args {
    struct symwin_peers peers;
    /* Addresses of this rank's memory, aligned to an element, or as the kernel declares. In place,
     * or not overlapping. */
    uint64_t in, out;
    /* The buffers' offsets in the flat range, equal on all ranks: rank r's input is at
     * symwin_peer_address(peers, r, in_offset). But if a buffer is a part of the other one (in
     * place), each rank has its own part: the offset is that of this rank's, and rank r's is at
     * offset + (int64_t)(r - peers.rank) * bytes, with the bytes of `count` elements, or where its
     * part of the other buffer is. SYMWIN_NO_OFFSET unless the kernel declares that it needs
     * windows. */
    uint64_t in_offset, out_offset;
    uint64_t count; /* elements, > 0; of a barrier 0 */
    int32_t type;   /* symwin_type */
    int32_t op;     /* symwin_op; only of a collective that reduces */
    /* Offsets in the flat range, equal on all ranks and aligned to 256 bytes; and sizes in
     * bytes. */
    uint64_t scratch, scratch_bytes;
    uint64_t slots, slots_bytes;
    /* The limit of every wait for a peer. After it the kernel stores a value other than 0 to the
     * 32-bit word at address `gave_up` and returns. */
    struct symwin_limit limit;
    uint64_t gave_up;
    /* Calls that the host queued before this one. Not an epoch: graph replays repeat it. */
    uint64_t call;
    int32_t root;     /* of a collective that has one */
    int32_t to, from; /* of sendrecv: ranks, this one too, or SYMWIN_NO_RANK */
    int32_t unused;
    /* Of unequal parts: addresses of arrays of a 64-bit word for each rank, in elements, in this
     * rank's memory, which is in no window. */
    uint64_t in_counts, in_displacements, out_counts, out_displacements;
};

#endif
