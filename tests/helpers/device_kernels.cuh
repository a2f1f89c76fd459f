/* The kernels of the tests of the device API: each makes calls of the headers of symwin/.
 * device_kernels.cc compiles them for the emulated driver, device_kernels.cu with nvcc. */
#ifndef SYMWIN_TESTS_DEVICE_KERNELS_CUH
#define SYMWIN_TESTS_DEVICE_KERNELS_CUH

#include "device_kernels.h"
#include "symwin/channel.cuh"
#include "symwin/copy.cuh"
#include "symwin/multicast.cuh"
#include "symwin/packet.cuh"
#include "symwin/reduce.cuh"
#include "symwin/team.cuh"

/* ---- a channel on a window ---- */

SYMWIN_DEVICE symwin_channel channel_of(const channel_play_args &args)
{
    return {args.own, args.theirs, args.signals, args.their_signals, args.waited};
}

/* `turns` times: puts words into the peer's memory, signals, waits for the peer's words and
 * compares them. One block. */
SYMWIN_KERNEL(channel_play, channel_play_args, args, CHANNEL_THREADS)
{
    const symwin_channel channel = channel_of(args);
    const symwin_limit limit = {args.timeout_ns, args.abort};
    uint32_t failed = 0;

    for (uint64_t turn = 0; turn < args.turns && failed == 0; turn++) {
        /* This rank's words of the turn go to one half of the peer's memory. */
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

/* The same by packets: the peer's next packets show that it has read these. */
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

/* Every thread takes numbers from one counter; each number is taken once. */
SYMWIN_KERNEL(channel_draw, channel_play_args, args, CHANNEL_THREADS)
{
    for (uint64_t turn = 0; turn < args.turns; turn++) {
        const uint64_t number = symwin_fetch_add(args.signals, 1);

        symwin_atomic_add_u32(args.own + 4 * number, 1);
    }
}

/* ---- copies: symwin/copy.cuh and symwin/bulk.cuh ---- */

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

/* One copy by the first group of the grid. */
SYMWIN_KERNEL(channel_copy, channel_copy_args, args, CHANNEL_THREADS)
{
    const symwin_group group = group_of(args.group);
    const uint64_t i = symwin_thread_index();

    if (i < group.count)
        symwin_copy(group, args.to, args.from, args.bytes);
}

/* One copy by rings of the block or the grid, in `cuts` calls. The second half of the calls goes
 * through another ring in the same memory, with one more piece. */
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

/* `turns` times: the block puts words by bulk copies. The last thread signals the peer and waits
 * for its signal. The block then gets the words by bulk copies from where the peer put them. The
 * calls have the only barriers. One block. */
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

/* The rate of copies: a put or a get by the whole grid, by threads or by bulk copies. Each block
 * signals the peer when its part is done. The first block waits for all blocks of the peer, whose
 * grid is as large. */
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

/* ---- packets: symwin/packet.cuh ---- */

SYMWIN_DEVICE void packets_put(const packet_args &args, symwin_group group, uint64_t to,
                               uint64_t from, uint64_t epoch)
{
    if (args.kind == PACKETS_8)
        symwin_put_packets8(group, to, from, args.bytes, symwin_epoch_flag(epoch));
    else if (args.kind == PACKETS_16)
        symwin_put_packets(group, to, from, args.bytes, symwin_epoch_flag(epoch));
    else
        symwin_put_lines(group, to, from, args.bytes, epoch);
}

SYMWIN_DEVICE bool packets_get(const packet_args &args, symwin_group group, uint64_t to,
                               uint64_t from, uint64_t epoch)
{
    const symwin_limit limit = {args.timeout_ns, args.abort};

    if (args.kind == PACKETS_8)
        return symwin_get_packets8(group, to, from, args.bytes, symwin_epoch_flag(epoch), limit);
    if (args.kind == PACKETS_16)
        return symwin_get_packets(group, to, from, args.bytes, symwin_epoch_flag(epoch), limit);
    return symwin_get_lines(group, to, from, args.bytes, epoch, limit);
}

/* Word `i` of what a rank sends in a call. */
SYMWIN_DEVICE uint32_t packet_word(uint64_t first, uint64_t epoch, uint64_t i)
{
    return (uint32_t)(first + 7 * epoch + i);
}

/* One call: compares what the previous call got, puts this call's words, gets the peer's, and
 * writes the next call's. A word is written in one launch and read in the next, so that the grid
 * needs no barrier. */
SYMWIN_KERNEL(packet_swap, packet_args, args, CHANNEL_THREADS)
{
    const symwin_group group = group_of(args.group);
    const uint64_t me = symwin_thread_index(), threads = symwin_thread_count();
    const uint64_t epoch = symwin_epoch_begin(args.epoch), half = epoch % 2, other = 1 - half;
    uint32_t wrong = 0;

    for (uint64_t i = me; i < args.bytes / 4 && epoch > args.since + 1; i += threads)
        wrong += symwin_load_u32(args.target + other * args.room + 4 * i) !=
                 packet_word(args.their_first, epoch - 1, i);
    if (wrong != 0)
        symwin_atomic_add_u32(args.wrong, wrong);
    if (me < group.count) {
        packets_put(args, group, args.their_places + half * args.room,
                    args.source + half * args.room, epoch);
        if (!packets_get(args, group, args.target + half * args.room,
                         args.places + half * args.room, epoch))
            symwin_atomic_add_u32(args.wrong + 4, 1);
    }
    for (uint64_t i = me; i < args.bytes / 4; i += threads)
        symwin_store_u32(args.source + other * args.room + 4 * i,
                         packet_word(args.first, epoch + 1, i));
    symwin_epoch_end(args.epoch);
}

/* Gets packets that the host wrote. */
SYMWIN_KERNEL(packet_get, packet_args, args, CHANNEL_THREADS)
{
    if (!packets_get(args, group_of(args.group), args.target, args.places, args.since))
        symwin_atomic_add_u32(args.wrong + 4, 1);
}

/* ---- teams and barriers: symwin/team.cuh ---- */

SYMWIN_DEVICE symwin_span span_of(const team_args &args)
{
    return {{args.base, args.stride, args.rank, args.nranks}, args.offset, args.bytes, 0, 0};
}

SYMWIN_DEVICE symwin_team team_of(const symwin_peers &peers, uint32_t team, int32_t size)
{
    return team == TEAM_ALL    ? symwin_team_all(peers)
           : team == TEAM_NEAR ? symwin_team_near(peers, size)
                               : symwin_team_across(peers, size);
}

/* How many faults a team has: each member must have one index, and reach all others from it. */
SYMWIN_DEVICE uint32_t team_faults(const symwin_team &team)
{
    uint32_t wrong = 0;
    int32_t members = 0;

    for (int32_t i = 0; i < team.count; i++) {
        const int32_t rank = symwin_team_rank(team, i);
        const int32_t me = symwin_team_index(team, team.peers.rank);

        wrong += rank < 0 || rank >= team.peers.nranks || symwin_team_index(team, rank) != i;
        wrong += symwin_team_after(team, i) != symwin_team_rank(team, (me + i) % team.count);
    }
    for (int32_t r = -3; r < team.peers.nranks + 3; r++)
        members += symwin_team_index(team, r) >= 0;
    return wrong + (members != team.count) + (symwin_team_after(team, 0) != team.peers.rank);
}

/* Every rank of 1 to 12 ranks, in teams of every size: whether the right ranks are in its team of
 * neighbours and in its team across those. */
SYMWIN_KERNEL(team_check, team_args, args, CHANNEL_THREADS)
{
    uint32_t wrong = 0;

    for (int32_t nranks = 1; nranks <= 12; nranks++)
        for (int32_t rank = 0; rank < nranks; rank++)
            for (int32_t size = 1; size <= nranks; size++) {
                const symwin_peers peers = {0, 0, rank, nranks};
                const symwin_team all = symwin_team_all(peers);
                const symwin_team near = symwin_team_near(peers, size);
                const symwin_team across = symwin_team_across(peers, size);

                wrong += team_faults(all) + team_faults(near) + team_faults(across);
                for (int32_t r = 0; r < nranks; r++)
                    wrong += (symwin_team_index(near, r) >= 0) != (r / size == rank / size) ||
                             (symwin_team_index(across, r) >= 0) != (r % size == rank % size) ||
                             symwin_team_index(all, r) != r;
            }
    symwin_store_u32(symwin_span_own(span_of(args), args.wrong), wrong);
}

/* How many bytes the barriers of a grid of `size` blocks need. */
SYMWIN_KERNEL(team_bytes, team_args, args, CHANNEL_THREADS)
{
    const symwin_span span = span_of(args);

    symwin_store_u64(symwin_span_own(span, args.words),
                     symwin_barrier_bytes(span.peers, (uint32_t)args.size));
}

/* `turns` times: each thread writes the turn's number into its word. After a barrier it reads the
 * words of all ranks of the team, of its own block or of all blocks. After a second barrier all
 * have read, and the next turn may write. */
SYMWIN_DEVICE void meet(const team_args &args, bool whole_grid)
{
    const symwin_span span = span_of(args);
    const symwin_team team = team_of(span.peers, args.team, args.size);
    const symwin_limit limit = {args.timeout_ns, args.abort};
    const uint64_t threads = symwin_thread_count();
    uint32_t wrong = 0;
    bool right = true;

    for (uint64_t turn = 1; turn <= args.turns && right; turn++) {
        symwin_store_u64(symwin_span_own(span, args.words + 8 * symwin_thread_index()),
                         args.launched + turn);
        right = whole_grid ? symwin_barrier_grid(team, args.barrier, limit)
                           : symwin_barrier_block(team, args.barrier, limit);
        for (int32_t i = 0; i < team.count && right; i++) {
            const uint64_t from = symwin_span_peer(span, symwin_team_rank(team, i), args.words);
            const uint64_t begin = whole_grid ? 0 : (uint64_t)blockIdx.x * blockDim.x;
            const uint64_t end = whole_grid ? threads : begin + blockDim.x;

            for (uint64_t w = begin; w < end; w++)
                wrong += symwin_load_u64(from + 8 * w) != args.launched + turn;
        }
        if (right)
            right = whole_grid ? symwin_barrier_grid(team, args.barrier, limit)
                               : symwin_barrier_block(team, args.barrier, limit);
    }
    if (wrong != 0)
        symwin_atomic_add_u32(symwin_span_own(span, args.wrong), wrong);
    if (!right)
        symwin_atomic_add_u32(symwin_span_own(span, args.wrong + 4), 1);
}

SYMWIN_KERNEL(team_blocks, team_args, args, CHANNEL_THREADS)
{
    meet(args, false);
}

SYMWIN_KERNEL(team_grids, team_args, args, CHANNEL_THREADS)
{
    meet(args, true);
}

/* ---- reductions: symwin/reduce.cuh and symwin/multicast.cuh ---- */

#define REDUCE_TYPES(X)                                                                            \
    X(f64) X(f32) X(f16) X(bf16) X(e4m3) X(e5m2) X(i8) X(u8) X(i32) X(u32) X(i64) X(u64)
/* Types that multicast only adds, and types of which it also finds the minimum and maximum. */
#define MULTICAST_SUMS(X) X(f64) X(f32)
#define MULTICAST_TYPES(X) X(f16) X(bf16) X(i32) X(u32) X(i64) X(u64)

template <class T>
SYMWIN_DEVICE void reduce_message(const reduce_args &args)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};
    const symwin_team team = team_of(peers, args.team, args.size);
    const symwin_group group = group_of(args.group);

    if (group.count <= symwin_thread_index())
        return;
    switch (args.op) {
    case SYMWIN_SUM:
        symwin_reduce_peers<T, symwin_op_sum>(group, team, args.to, args.offset, args.count);
        break;
    case SYMWIN_PROD:
        symwin_reduce_peers<T, symwin_op_prod>(group, team, args.to, args.offset, args.count);
        break;
    case SYMWIN_MIN:
        symwin_reduce_peers<T, symwin_op_min>(group, team, args.to, args.offset, args.count);
        break;
    case SYMWIN_MAX:
        symwin_reduce_peers<T, symwin_op_max>(group, team, args.to, args.offset, args.count);
        break;
    default:
        symwin_reduce_peers<T, symwin_op_avg>(group, team, args.to, args.offset, args.count);
    }
}

#define REDUCE_KERNEL(type)                                                                        \
    SYMWIN_KERNEL(reduce_##type, reduce_args, args, CHANNEL_THREADS)                               \
    {                                                                                              \
        reduce_message<symwin_type_##type>(args);                                                  \
    }
REDUCE_TYPES(REDUCE_KERNEL)
#undef REDUCE_KERNEL

#if SYMWIN_HAS_MULTIMEM

template <class T, class O>
SYMWIN_DEVICE void multicast_message(const reduce_args &args)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};
    const symwin_group group = group_of(args.group);

    if (group.count <= symwin_thread_index())
        return;
    if (args.reach == REDUCE_TO_ALL)
        symwin_multicast_reduce_put<T, O>(group, peers, args.to, args.offset, args.count);
    else
        symwin_multicast_reduce<T, O>(group, peers, args.to, args.offset, args.count);
}

template <class T>
SYMWIN_DEVICE void multicast_sums(const reduce_args &args)
{
    if (args.op == SYMWIN_SUM)
        multicast_message<T, symwin_op_sum>(args);
    else
        multicast_message<T, symwin_op_avg>(args);
}

template <class T>
SYMWIN_DEVICE void multicast_any(const reduce_args &args)
{
    if (args.op == SYMWIN_MIN)
        multicast_message<T, symwin_op_min>(args);
    else if (args.op == SYMWIN_MAX)
        multicast_message<T, symwin_op_max>(args);
    else
        multicast_sums<T>(args);
}

SYMWIN_DEVICE void multicast_copy(const reduce_args &args)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};
    const symwin_group group = group_of(args.group);

    if (symwin_thread_index() < group.count)
        symwin_multicast_put(group, peers, args.to, args.offset, args.count);
}

#define MULTICAST_RUN(call) call(args)
#else
#define MULTICAST_RUN(call) (void)args
#endif

#define MULTICAST_KERNEL(type)                                                                     \
    SYMWIN_KERNEL(multicast_##type, reduce_args, args, CHANNEL_THREADS)                            \
    {                                                                                              \
        MULTICAST_RUN(multicast_sums<symwin_type_##type>);                                         \
    }
MULTICAST_SUMS(MULTICAST_KERNEL)
#undef MULTICAST_KERNEL
#define MULTICAST_KERNEL(type)                                                                     \
    SYMWIN_KERNEL(multicast_##type, reduce_args, args, CHANNEL_THREADS)                            \
    {                                                                                              \
        MULTICAST_RUN(multicast_any<symwin_type_##type>);                                          \
    }
MULTICAST_TYPES(MULTICAST_KERNEL)
#undef MULTICAST_KERNEL

/* `offset` is the address of `count` bytes, `to` an offset on all ranks. */
SYMWIN_KERNEL(multicast_put, reduce_args, args, CHANNEL_THREADS)
{
    MULTICAST_RUN(multicast_copy);
}

/* ---- channels that the host made ---- */

/* Memory is [words that the peer puts | this rank's words | the peer's packets], in pieces, one for
 * each block. */

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

/* Each block puts its piece and signals the peer's block of the same number, on the lane of that
 * number. A second signal in each turn says that the piece was read, so that the next may be put.
 */
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

/* All blocks put their pieces and signal. The first block waits for all blocks of the peer and
 * compares all pieces. */
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

/* One block: packets in both directions, two places in turn. */
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

#endif
