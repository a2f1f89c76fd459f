/* The library's broadcast by push (kernels/move.cu, pattern.cuh), whose root does not wait for
 * answers: from the third round on, it stores into slots that a peer still reads. The data and its
 * flags are one word, so ThreadSanitizer does not report it.
 */
#include "library.cuh"

#include "kernels/pattern.cuh"

#ifndef MENDED
template <>
SYMWIN_DEVICE bool sw_pattern_take_answers<sw_wire_flags>(const struct sw_kernel_args &, sw_call &,
                                                          const sw_role &, const sw_rounds &,
                                                          uint32_t)
{
    return true;
}
#endif
#undef SW_KERNEL_LIST_MOVE
#define SW_KERNEL_LIST_MOVE(one)

#include "kernels/move.cu"

SYMWIN_KERNEL_ABOUT(push_unanswered, "collective=broadcast types=f32 " LIBRARY_WORDS)

extern "C" __global__ void push_unanswered(const struct symwin_kernel_args args)
{
    struct sw_kernel_args of = library_args(args, 4);

    of.to = args.peers.rank == args.root ? SW_EVERY_RANK : SW_NO_RANK;
    of.from = args.root;
    sw_move_run<0, SW_SHAPE_any>(of);
    library_end(args);
}
