/* The push of examples/05_your_own_allreduce, but each block counts its own calls. A block that is
 * not part of a call does not count it. In the next call it mistakes a flag that another block's
 * call has left for a new one.
 */
#include "push.cuh"

#ifdef MENDED
#define OF_BLOCK 0
#define EPOCH_END(at) symwin_epoch_end(at)
#else
#define OF_BLOCK SYMWIN_EPOCH_BYTES *blockIdx.x
#define EPOCH_END(at) block_end(at)
#endif

SYMWIN_KERNEL_ABOUT(grid_epoch, "types=f32 ops=sum bytes=16K ranks=8 slots=512K")

#ifndef MENDED
SYMWIN_DEVICE void block_end(uint64_t at)
{
    __syncthreads();
    if (threadIdx.x == 0)
        symwin_store_relaxed_u64(at, 1 + symwin_load_relaxed_u64(at));
}
#endif

extern "C" __global__ void grid_epoch(const struct symwin_kernel_args args)
{
    const uint64_t at = symwin_own_address(args.peers, args.scratch + OF_BLOCK);
    const uint64_t epoch = symwin_epoch_begin(at);

    if (push(args, epoch, epoch % 2))
        EPOCH_END(at);
}
