/* The kernels: each copies in both directions at the same time, since both ranks launch it. For any grid of up to MOST_BLOCKS
 * blocks, the same one on both ranks. nvcc compiles this for GPUs, the host compiler for the emulated driver
 * (emu_kernels.cc). */
#include "kernels.h"
#include "symwin/channel.cuh"

SYMWIN_DEVICE void give_up(const copy_args &args)
{
    symwin_store_relaxed_u32(args.channel.own + args.gave_up, 1);
}

/* Every block tells the peer that its part is there; the first one waits for all blocks of the peer. So no barrier of the grid
 * is needed, and the kernel ends when all that the peer puts has come. */
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

/* The peer's kernel has begun, so what was ahead of it in the peer's stream is done: its memory may be read. Each block asks
 * the peer's block of its number, by a lane of its own. False, for all threads of the block: it has not come. */
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

/* Large messages: one thread of each block has pieces moved through shared memory, more of them at a time than threads can
 * have loads under way. Needs sm_90; before, it is the same as bidir_get. */
SYMWIN_KERNEL(bidir_get_bulk, copy_args, args, MOST_THREADS)
{
    symwin_bulk_ring ring = symwin_bulk_ring_make(symwin_shared(), args.pieces, args.piece_bytes);

    if (both_are_here(args))
        symwin_channel_get_bulk(args.channel, &ring, symwin_group_grid(), args.to, args.from,
                                args.bytes);
}

/* The number of this call, for all threads of the block. Counted on the device, so that a graph can be replayed; by each block
 * for itself, and by the first one for those that this grid has not, so that the next grid may be another. */
SYMWIN_DEVICE uint32_t begin_call(const copy_args &args)
{
    return 1 + (uint32_t)symwin_load_u64(args.channel.own + args.calls + 8 * blockIdx.x);
}

SYMWIN_DEVICE void end_call(const copy_args &args, uint32_t call)
{
    const uint64_t words = args.channel.own + args.calls;

    __syncthreads(); /* all have read it */
    if (threadIdx.x == 0)
        symwin_store_u64(words + 8 * blockIdx.x, call);
    for (uint32_t b = gridDim.x + threadIdx.x; b < MOST_BLOCKS && blockIdx.x == 0; b += blockDim.x)
        symwin_store_u64(words + 8 * b, call);
}

/* Data that says itself that it has arrived: no signals. Two places in turn, since the peer may still be reading what came by
 * the call before; that it has read what came by the one before that, its packets of the call before say. */
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
