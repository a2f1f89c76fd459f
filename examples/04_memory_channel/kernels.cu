/* The kernels. Both ranks launch the same kernel, with the same grid of up to MOST_BLOCKS blocks,
 * so each copies in both directions at a time. nvcc compiles this file for GPUs, the host compiler
 * for the emulated driver (emu_kernels.cc). */
#include "kernels.h"
#include "symwin/channel.cuh"

SYMWIN_DEVICE void give_up(const copy_args &args)
{
    symwin_store_relaxed_u32(args.channel.own + args.gave_up, 1);
}

/* Every block signals the peer that its part is complete; the first block waits for all blocks of
 * the peer. So no barrier of the grid is needed, and the kernel ends when all data of the peer has
 * arrived. */
SYMWIN_KERNEL(bidir_put, copy_args, args, MOST_THREADS)
{
    symwin_channel_put(args.channel, symwin_group_grid(), args.to, args.from, args.bytes);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    symwin_channel_signal(args.channel);
    if (blockIdx.x == 0 && !symwin_channel_wait_for(args.channel, gridDim.x, args.limit))
        give_up(args);
}

/* Waits until the peer's kernel has begun: then earlier work in the peer's stream is complete, and
 * its memory may be read. Each block waits for the peer's block of the same index, on a lane of the
 * channel. False, for all threads of the block: it did not come. */
SYMWIN_DEVICE bool both_are_here(const copy_args &args)
{
    const symwin_channel lane = symwin_channel_lane(args.channel, blockIdx.x);
    bool late = false;

    if (threadIdx.x == 0) {
        symwin_channel_signal(lane);
        late = !symwin_channel_wait(lane, args.limit);
        if (late)
            give_up(args);
    }
    return !symwin_block_any(late);
}

SYMWIN_KERNEL(bidir_get, copy_args, args, MOST_THREADS)
{
    if (both_are_here(args))
        symwin_channel_get(args.channel, symwin_group_grid(), args.to, args.from, args.bytes);
}

/* For large messages: one thread per block moves pieces through shared memory. More pieces are in
 * flight than threads can have loads in flight. Requires sm_90; on older GPUs it equals
 * bidir_get. */
SYMWIN_KERNEL(bidir_get_bulk, copy_args, args, MOST_THREADS)
{
    symwin_bulk_ring ring = symwin_bulk_ring_make(symwin_shared(), args.pieces, args.piece_bytes);

    if (both_are_here(args))
        symwin_channel_get_bulk(args.channel, &ring, symwin_group_grid(), args.to, args.from,
                                args.bytes);
}

/* The number of this call, for all threads of the block. The device counts, so that a graph can be
 * replayed. Each block has its own count. The first block also updates the counts of blocks that
 * this grid does not have, so the next grid may be larger. */
SYMWIN_DEVICE uint32_t begin_call(const copy_args &args)
{
    return 1 + (uint32_t)symwin_load_u64(args.channel.own + args.calls + 8 * blockIdx.x);
}

SYMWIN_DEVICE void end_call(const copy_args &args, uint32_t call)
{
    const uint64_t words = args.channel.own + args.calls;

    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0)
        symwin_store_u64(words + 8 * blockIdx.x, call);
    for (uint32_t b = gridDim.x + threadIdx.x; b < MOST_BLOCKS && blockIdx.x == 0; b += blockDim.x)
        symwin_store_u64(words + 8 * b, call);
}

/* Packets show their arrival themselves: no signals. Two buffers alternate, since the peer may
 * still read the packets of the previous call. Its packets of the previous call prove that it has
 * read those of the call before that. */
SYMWIN_KERNEL(bidir_put_packets, copy_args, args, MOST_THREADS)
{
    const symwin_group group = symwin_group_grid();
    const uint32_t call = begin_call(args);
    const uint64_t place = args.packets + (call & 1) * 2 * args.bytes;

    symwin_channel_put_packets(args.channel, group, place, args.from, args.bytes, call);
    if (!symwin_channel_get_packets(args.channel, group, args.to, place, args.bytes, call,
                                    args.limit))
        give_up(args);
    end_call(args, call);
}
