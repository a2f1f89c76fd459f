/* Kernels for tests/device/test_copy.c: calls of symwin/copy.cuh. Compiled as those of channel_kernels.cuh are. */
#ifndef SYMWIN_TESTS_COPY_KERNELS_CUH
#define SYMWIN_TESTS_COPY_KERNELS_CUH

#include "channel_kernels.cuh"
#include "symwin/copy.cuh"

SYMWIN_DEVICE symwin_group group_of(uint32_t which)
{
    switch (which) {
    case CHANNEL_THREAD:
        return symwin_group_thread();
    case CHANNEL_WARP:
        return symwin_group_warp();
    case CHANNEL_BLOCK:
        return symwin_group_block();
    default:
        return symwin_group_grid();
    }
}

/* One copy by a group: of all groups of the grid the first. */
SYMWIN_KERNEL(channel_copy, channel_copy_args, args, CHANNEL_THREADS)
{
    const symwin_group group = group_of(args.group);
    const uint64_t i = symwin_thread_index();

    if (i < group.count)
        symwin_copy(group, args.to, args.from, args.bytes);
}

/* One copy by a ring of the block or the grid, in as many calls as `cuts` says; half of them through another ring in the
 * same memory, with a piece more. */
SYMWIN_KERNEL(channel_bulk, channel_bulk_args, args, CHANNEL_THREADS)
{
    const symwin_group group = group_of(args.copy.group);
    symwin_bulk_ring ring = symwin_bulk_ring_make(symwin_shared(), args.pieces, args.piece_bytes);

    for (uint64_t i = 0; i < args.cuts; i++) {
        const uint64_t begin = args.copy.bytes * i / args.cuts;
        const uint64_t end = args.copy.bytes * (i + 1) / args.cuts;

        if (i > 0 && i == args.cuts / 2) {
            symwin_bulk_ring_end(ring);
            for (uint32_t at = threadIdx.x; at < symwin_shared_bytes(); at += blockDim.x)
                ((volatile unsigned char *)symwin_shared())[at] = 0xee;
            ring = symwin_bulk_ring_make(symwin_shared(), args.pieces + 1, args.piece_bytes);
        }
        symwin_copy_bulk(&ring, group, args.copy.to + begin, args.copy.from + begin, end - begin);
    }
    symwin_bulk_ring_end(ring);
}

/* `turns` times: the last thread tells the peer what its block has put by bulk copies, waits for the peer's, and the block
 * gets by bulk copies what the peer has put from. No barrier but those of the calls. One block. */
SYMWIN_KERNEL(channel_bulk_play, channel_bulk_play_args, args, CHANNEL_THREADS)
{
    const symwin_channel channel = channel_of(args.play);
    const symwin_limit limit = {args.play.timeout_ns, args.play.abort};
    const uint64_t bytes = args.play.bytes, last = blockDim.x - 1;
    symwin_bulk_ring ring = symwin_bulk_ring_make(symwin_shared(), args.pieces, args.piece_bytes);
    uint32_t failed = 0;

    for (uint64_t turn = 0; turn < args.play.turns && failed == 0; turn++) {
        const uint64_t half = turn % 2 * bytes;

        for (uint64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
            symwin_store_u64(channel.own + 2 * bytes + half + 8 * i, args.play.first + turn + i);
        symwin_copy_bulk(&ring, symwin_group_block(), channel.theirs + half,
                         channel.own + 2 * bytes + half, bytes);
        if (threadIdx.x == last) {
            symwin_channel_signal(channel);
            failed = !symwin_channel_wait(channel, limit);
        }
        symwin_copy_bulk(&ring, symwin_group_block(), channel.own + 4 * bytes,
                         channel.theirs + 2 * bytes + half, bytes);
        for (uint64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
            if (symwin_load_u64(channel.own + half + 8 * i) != args.play.their_first + turn + i ||
                symwin_load_u64(channel.own + 4 * bytes + 8 * i) !=
                    args.play.their_first + turn + i)
                symwin_atomic_add_u32(args.play.wrong, 1);
        failed = symwin_block_any(failed != 0);
    }
    if (threadIdx.x == 0 && failed != 0)
        symwin_store_relaxed_u32(args.play.wrong + 4, 1);
    symwin_bulk_ring_end(ring);
}

/* What copies carry: a put or a get by the whole grid, by threads or by bulk copies. Each block tells the peer when its part
 * is done, and the first one waits for all blocks of the peer, whose grid is as large. */
SYMWIN_KERNEL(channel_rate, channel_rate_args, args, 512)
{
    const symwin_limit limit = {args.timeout_ns, 0};

    if (args.pieces > 0) {
        symwin_bulk_ring ring = symwin_bulk_ring_make(symwin_shared(), args.pieces,
                                                      args.piece_bytes);

        symwin_copy_bulk(&ring, symwin_group_grid(), args.to, args.from, args.bytes);
    } else {
        symwin_copy(symwin_group_grid(), args.to, args.from, args.bytes);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        symwin_signal(args.their_signals, 1);
        if (blockIdx.x == 0) {
            const uint64_t told = symwin_load_u64(args.waited) + gridDim.x;

            if (symwin_wait(args.signals, told, limit))
                symwin_store_u64(args.waited, told);
            else
                symwin_store_relaxed_u32(args.gave_up, 1);
        }
    }
}

#endif
