/* The push of examples/05_your_own_allreduce, in which each block counts its own calls. A block that a call does not have
 * counts none, and in the next takes a flag for news that another block's call has left.
 */
#include "symwin_kernel.cuh"

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
    const symwin_peers &peers = args.peers;
    const uint64_t at = symwin_own_address(peers, args.scratch + OF_BLOCK);
    const uint64_t epoch = symwin_epoch_begin(at);
    const uint64_t slot = 32 << 10, slots = args.slots + epoch % 2 * 8 * slot;

    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count())
        for (int32_t p = 0; p < peers.nranks; p++)
            symwin_store_relaxed_u64(
                symwin_peer_address(peers, p, slots + (uint64_t)peers.rank * slot + 8 * i),
                epoch << 32 | symwin_load_u32(args.in + 4 * i));
    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count()) {
        float sum = 0;

        for (int32_t p = 0; p < peers.nranks; p++) {
            const uint64_t from = symwin_own_address(peers, slots + (uint64_t)p * slot + 8 * i);
            symwin_waiting waiting = {0, 0};
            uint64_t packet;

            while ((packet = symwin_load_relaxed_u64(from)) >> 32 != (uint32_t)epoch)
                if (!symwin_keep_waiting(&waiting, args.limit))
                    return symwin_give_up(args);
            sum += symwin_f32_of((uint32_t)packet);
        }
        symwin_store_f32(args.out + 4 * i, sum);
    }
    EPOCH_END(at);
}
