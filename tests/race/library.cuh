/* A call of a kernel of the library's as one of your own: its communicator's memory is in scratch.
 * For kernels that move bytes (kernels/pattern.cuh). Compile with -I and the source tree.
 */
#include <stddef.h>

#include "symwin/kernel.cuh"

#include "kernels/call.cuh"

/* Slots are small, so that messages take several rounds. */
#define SLOT_BYTES 1024

/* scratch= of SYMWIN_KERNEL_ABOUT: for 8 ranks. */
#define LIBRARY_WORDS "scratch=1M ranks=8 blocks=4"

/* The arguments of a call in which every rank has a part of `count` elements. What differs is set
 * by the caller: to, from, and the steps. */
SYMWIN_DEVICE struct sw_kernel_args library_args(const struct symwin_kernel_args &args,
                                                 uint32_t element_bytes)
{
    struct sw_kernel_args of = {};

    of.base = args.peers.base;
    of.stride = args.peers.stride;
    of.state = args.scratch;
    of.rank = args.peers.rank;
    of.nranks = args.peers.nranks;
    of.in = args.in;
    of.out = args.out;
    of.in_offset = args.in_offset;
    of.out_offset = args.out_offset;
    of.count = args.count;
    of.bytes = args.count * element_bytes;
    of.digest = (uint32_t)args.count;
    of.slot_bytes = SLOT_BYTES;
    of.report = symwin_own_address(args.peers, args.scratch + args.scratch_bytes) -
                sizeof(struct sw_kernel_report);
    of.timeout_ns = args.limit.timeout_ns;
    of.root = args.root;
    return of;
}

/* By all threads, last. */
SYMWIN_DEVICE void library_end(const struct symwin_kernel_args &args)
{
    if (symwin_load_relaxed_u32(symwin_own_address(args.peers, args.scratch) +
                                offsetof(struct sw_comm_state, failed)) != 0)
        symwin_give_up(args);
}
