/* What a kernel of one's own gets from the host: plain C99, and C++ for device code.
 *
 *   symwin_peers         the flat range of a communicator
 *   symwin_limit         how long to wait
 *   symwin_kernel_args   the one argument of a collective that `symwin-perf --kernel` runs
 *
 * docs/your-own-kernel.md is about such kernels, symwin/kernel.cuh is what they include.
 */
#ifndef SYMWIN_KERNEL_H
#define SYMWIN_KERNEL_H

#include <stdint.h>

/* A communicator's flat range: byte o of rank r is at base + r * stride + o. Where there is
 * multicast, the alias of all ranks follows the last one. */
struct symwin_peers {
    uint64_t base;
    uint64_t stride;
    int32_t rank;
    int32_t nranks;
};

/* How long to wait: whichever comes first. */
struct symwin_limit {
    uint64_t timeout_ns; /* 0: for ever */
    /* Address of a word of 32 bits that is not 0 when waiting is to end; 0: there is none. */
    uint64_t abort;
};

/* A buffer that lies in no window has no offset. */
#define SYMWIN_NO_OFFSET (~(uint64_t)0)

/* One all-reduce: `out` becomes `in` reduced over all ranks, on each of them. A kernel takes it by value:
 *
 *     extern "C" __global__ void NAME(const struct symwin_kernel_args args)
 *
 * All ranks make the same calls in the same order, each rank's one after the other. Count, type, operation, offsets
 * and grid are alike on all ranks in a call, and may be others in the next. The blocks of a grid, and those of all
 * ranks, are on their devices at the same time.
 *
 * What a kernel may count on:
 *
 *   in        complete when this rank's call begins, and nobody but the call changes it until this rank's call ends.
 *             Then anything may be written there at once: a peer that still reads it reads that
 *   out       this rank's from when its call begins until it ends; what is there at the beginning is nothing. At the
 *             end it is complete, may be read at once, and is then anybody's again
 *   scratch   zero on all ranks before the first call on any; after that written by the calls alone
 *   slots     as scratch; but whenever no rank is in a call they may be overwritten with ones, each bit of them. So
 *             they can hold what is on its way within a call, and no counters
 *   a graph   passes the same arguments in each of its replays. What has to be another in each call, as an epoch, is
 *             counted in scratch */
struct symwin_kernel_args {
    struct symwin_peers peers;
    /* Addresses in this rank's memory, aligned to an element, or as the kernel says. Equal, or not overlapping. */
    uint64_t in, out;
    /* The same in the flat range, alike on all ranks: rank r's input is at symwin_peer_address(peers, r, in_offset).
     * SYMWIN_NO_OFFSET unless the kernel says that it needs windows. */
    uint64_t in_offset, out_offset;
    uint64_t count; /* elements, > 0 */
    int32_t type;   /* symwin_type */
    int32_t op;     /* symwin_op */
    /* Offsets in the flat range, on all ranks; aligned to 256 bytes. */
    uint64_t scratch, scratch_bytes;
    uint64_t slots, slots_bytes;
    /* Of every wait for a peer; after it the kernel leaves, and makes the word of 32 bits at the address not 0. */
    struct symwin_limit limit;
    uint64_t gave_up;
    /* How many calls the host had queued before this one. No epoch: a graph repeats it. */
    uint64_t call;
};

#endif
