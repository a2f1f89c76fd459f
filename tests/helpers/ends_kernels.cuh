/* Kernels for tests/channel/test_channel_host.c, on channels that the host made: memory is [what the peer puts | this rank's words |
 * the peer's packets], in pieces, one a block. Compiled for the emulated driver by ends_kernels.cc, and by nvcc from
 * ends_kernels.cu. */
#include "ends_kernels.h"
#include "symwin/channel.cuh"

SYMWIN_DEVICE void fill_piece(const ends_args &args, uint64_t at, uint64_t value)
{
    for (uint64_t i = threadIdx.x; i < args.bytes / 8; i += blockDim.x)
        symwin_store_u64(args.channel.own + at + 8 * i, value + i);
    __syncthreads();
}

SYMWIN_DEVICE void compare_piece(const ends_args &args, uint64_t at, uint64_t value)
{
    for (uint64_t i = threadIdx.x; i < args.bytes / 8; i += blockDim.x)
        if (symwin_load_u64(args.channel.own + at + 8 * i) != value + i)
            symwin_atomic_add_u32(args.wrong, 1);
    __syncthreads();
}

/* Each block puts its piece and tells the peer's block of its number, by the lane of that number; back and forth, so that
 * nobody puts what has not been looked at. */
SYMWIN_KERNEL(ends_lanes, ends_args, args, ENDS_THREADS)
{
    const symwin_channel lane = symwin_channel_lane(args.channel, blockIdx.x);
    const uint64_t piece = blockIdx.x * args.bytes, mine = (gridDim.x + blockIdx.x) * args.bytes;
    uint32_t failed = 0;

    for (uint64_t turn = 0; turn < args.turns && failed == 0; turn++) {
        fill_piece(args, mine, args.first + turn + 1000 * blockIdx.x);
        symwin_channel_put(lane, symwin_group_block(), piece, mine, args.bytes);
        __syncthreads();
        if (threadIdx.x == 0) {
            symwin_channel_signal(lane);
            failed = !symwin_channel_wait(lane, args.limit);
        }
        failed = symwin_block_any(failed != 0);
        if (failed == 0)
            compare_piece(args, piece, args.their_first + turn + 1000 * blockIdx.x);
        if (threadIdx.x == 0 && failed == 0) {
            symwin_channel_signal(lane);
            failed = !symwin_channel_wait(lane, args.limit);
        }
        failed = symwin_block_any(failed != 0);
    }
    if (threadIdx.x == 0 && failed != 0)
        symwin_store_relaxed_u32(args.wrong + 4, 1);
}

/* All blocks put their pieces and signal; the first waits for all of the peer's and looks at all that they put. */
SYMWIN_KERNEL(ends_many, ends_args, args, ENDS_THREADS)
{
    const uint64_t piece = blockIdx.x * args.bytes, mine = (gridDim.x + blockIdx.x) * args.bytes;
    uint32_t failed = 0;

    fill_piece(args, mine, args.first + 1000 * blockIdx.x);
    symwin_channel_put(args.channel, symwin_group_block(), piece, mine, args.bytes);
    __syncthreads();
    if (threadIdx.x == 0)
        symwin_channel_signal(args.channel);
    if (blockIdx.x != 0)
        return;
    if (threadIdx.x == 0)
        failed = !symwin_channel_wait_for(args.channel, gridDim.x, args.limit);
    failed = symwin_block_any(failed != 0);
    for (uint64_t b = 0; b < gridDim.x && failed == 0; b++)
        compare_piece(args, b * args.bytes, args.their_first + 1000 * b);
    if (threadIdx.x == 0 && failed != 0)
        symwin_store_relaxed_u32(args.wrong + 4, 1);
}

/* One block: packets both ways, two places in turn. */
SYMWIN_KERNEL(ends_packed, ends_args, args, ENDS_THREADS)
{
    const symwin_group group = symwin_group_block();
    bool got = true;

    for (uint64_t turn = 0; turn < args.turns && got; turn++) {
        const uint64_t place = 2 * args.bytes + turn % 2 * 2 * args.bytes;
        const uint32_t flag = (uint32_t)(args.first_flag + turn);

        fill_piece(args, args.bytes, args.first + turn);
        symwin_channel_put_packets(args.channel, group, place, args.bytes, args.bytes, flag);
        got = symwin_channel_get_packets(args.channel, group, 0, place, args.bytes, flag,
                                         args.limit);
        got = !symwin_block_any(!got);
        if (got)
            compare_piece(args, 0, args.their_first + turn);
    }
    if (!got && threadIdx.x == 0)
        symwin_store_relaxed_u32(args.wrong + 4, 1);
}
