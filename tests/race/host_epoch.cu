/* The push of examples/05_your_own_allreduce, with a count by the host instead of an epoch. A graph
 * repeats that count: in the second replay the flags of the first are still there, and the data
 * beside them is taken for what a peer has sent.
 */
#include "push.cuh"

SYMWIN_KERNEL_ABOUT(host_epoch, "types=f32 ops=sum bytes=16K ranks=8 slots=512K")

extern "C" __global__ void host_epoch(const struct symwin_kernel_args args)
{
    const uint64_t at = symwin_own_address(args.peers, args.scratch);
#ifdef MENDED
    const uint64_t epoch = symwin_epoch_begin(at);
#else
    const uint64_t epoch = args.call + 1;
#endif

    if (push(args, epoch, epoch % 2))
        symwin_epoch_end(at);
}
