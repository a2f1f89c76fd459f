/* Kernels for tests/channel/test_channel.c: each makes calls of symwin/channel.cuh. Compiled for the emulated driver by
 * channel_kernels.cc, and by nvcc from channel_kernels.cu, with those of copy_kernels.cuh. */
#ifndef SYMWIN_TESTS_CHANNEL_KERNELS_CUH
#define SYMWIN_TESTS_CHANNEL_KERNELS_CUH

#include "channel_args.h"
#include "symwin/channel.cuh"

SYMWIN_DEVICE symwin_channel channel_of(const channel_play_args &args)
{
    return {args.own, args.theirs, args.signals, args.their_signals, args.waited};
}

/* `turns` times: puts words into the peer's memory, signals, waits for the peer's and looks at them. One block. */
SYMWIN_KERNEL(channel_play, channel_play_args, args, CHANNEL_THREADS)
{
    const symwin_channel channel = channel_of(args);
    const symwin_limit limit = {args.timeout_ns, args.abort};
    uint32_t failed = 0;

    for (uint64_t turn = 0; turn < args.turns && failed == 0; turn++) {
        /* Word by word this rank's number of the turn, into the half of the turn. */
        const uint64_t half = turn % 2 * args.bytes;

        for (uint64_t i = threadIdx.x; i < args.bytes / 8; i += blockDim.x)
            symwin_store_u64(channel.own + 2 * args.bytes + 8 * i, args.first + turn + i);
        __syncthreads();
        symwin_channel_put(channel, symwin_group_block(), half, 2 * args.bytes, args.bytes);
        __syncthreads();
        if (threadIdx.x == 0) {
            symwin_channel_signal(channel);
            failed = !symwin_channel_wait(channel, limit);
        }
        failed = symwin_block_any(failed != 0);
        for (uint64_t i = threadIdx.x; i < args.bytes / 8 && failed == 0; i += blockDim.x)
            if (symwin_load_u64(channel.own + half + 8 * i) != args.their_first + turn + i)
                symwin_atomic_add_u32(args.wrong, 1);
        __syncthreads();
    }
    if (threadIdx.x == 0 && failed != 0)
        symwin_store_relaxed_u32(args.wrong + 4, 1);
}

/* The same by packets, of which the next ones of the peer say that it has read these. */
SYMWIN_KERNEL(channel_packets, channel_play_args, args, CHANNEL_THREADS)
{
    const symwin_channel channel = channel_of(args);
    const symwin_limit limit = {args.timeout_ns, args.abort};
    bool got = true;

    for (uint64_t turn = 0; turn < args.turns && got; turn++) {
        const uint64_t place = 4 * args.bytes + turn % 2 * 2 * args.bytes;
        const uint32_t flag = (uint32_t)(args.first_flag + turn);

        for (uint64_t i = threadIdx.x; i < args.bytes / 8; i += blockDim.x)
            symwin_store_u64(channel.own + 8 * i, args.first + turn + i);
        symwin_put_packets(symwin_group_block(), channel.theirs + place, channel.own, args.bytes,
                           flag);
        got = symwin_get_packets(symwin_group_block(), channel.own + args.bytes,
                                 channel.own + place, args.bytes, flag, limit);
        for (uint64_t i = threadIdx.x; i < args.bytes / 8 && got; i += blockDim.x)
            if (symwin_load_u64(channel.own + args.bytes + 8 * i) != args.their_first + turn + i)
                symwin_atomic_add_u32(args.wrong, 1);
        got = !symwin_block_any(!got);
    }
    if (!got)
        symwin_store_relaxed_u32(args.wrong + 4, 1);
}

/* Every thread draws numbers from one counter, of which each is drawn once. */
SYMWIN_KERNEL(channel_draw, channel_play_args, args, CHANNEL_THREADS)
{
    for (uint64_t turn = 0; turn < args.turns; turn++) {
        const uint64_t number = symwin_fetch_add(args.signals, 1);

        symwin_atomic_add_u32(args.own + 4 * number, 1);
    }
}

#endif
