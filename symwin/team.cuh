/* Windows as kernel arguments, teams of ranks, and barriers.
 *
 *   spans      a window as a kernel argument, and its addresses on all ranks
 *   teams      all ranks of a communicator, or some of them
 *   barriers   of one block, or the whole grid, with those of the other ranks of a team
 *
 * Compiled by nvcc and for the emulated driver, as all of the device API. symwin/device.cuh
 * explains memory order.
 */
#ifndef SYMWIN_TEAM_CUH
#define SYMWIN_TEAM_CUH

#include "symwin.h"
#include "symwin/signal.cuh"

/* ---- spans ----------------------------------------------------------------------------------- */

/* A window as a kernel argument: `bytes` bytes at `offset` of each rank's part of the flat
 * range. */
struct symwin_span {
    symwin_peers peers;
    uint64_t offset, bytes;
    uint32_t multicast; /* 1: there are multicast addresses */
    uint32_t unused;
};

/* On the host: the span of the window that symwin_window_query() described. */
static inline symwin_span symwin_span_of(const symwin_window_info &info)
{
    return {{(uint64_t)(uintptr_t)info.base, info.stride, info.rank, info.nranks},
            info.offset,
            info.bytes,
            (info.transports & SYMWIN_TRANSPORT_MULTICAST) != 0,
            0};
}

/* Addresses of the window's byte `at`: of rank `rank`, of this rank, and of all ranks
 * (multicast). */
SYMWIN_DEVICE uint64_t symwin_span_peer(const symwin_span &span, int32_t rank, uint64_t at)
{
    return symwin_peer_address(span.peers, rank, span.offset + at);
}

SYMWIN_DEVICE uint64_t symwin_span_own(const symwin_span &span, uint64_t at)
{
    return symwin_own_address(span.peers, span.offset + at);
}

SYMWIN_DEVICE uint64_t symwin_span_multicast(const symwin_span &span, uint64_t at)
{
    return symwin_multicast_address(span.peers, span.offset + at);
}

/* ---- teams ----------------------------------------------------------------------------------- */

/* Ranks first, first + step, ...: `count` ranks, this rank included. `step` is not 0. */
struct symwin_team {
    symwin_peers peers;
    int32_t first, step, count;
};

/* All ranks of the communicator. */
SYMWIN_DEVICE symwin_team symwin_team_all(const symwin_peers &peers)
{
    return {peers, 0, 1, peers.nranks};
}

/* This rank's team if the ranks are divided into teams of `size` consecutive ranks. The last team
 * may have fewer. */
SYMWIN_DEVICE symwin_team symwin_team_near(const symwin_peers &peers, int32_t size)
{
    const int32_t first = peers.rank / size * size, left = peers.nranks - first;

    return {peers, first, 1, left < size ? left : size};
}

/* The ranks with this rank's index in those teams: every `size`-th rank. */
SYMWIN_DEVICE symwin_team symwin_team_across(const symwin_peers &peers, int32_t size)
{
    const int32_t first = peers.rank % size;

    return {peers, first, size, (peers.nranks - first + size - 1) / size};
}

/* The rank at index `index`, 0 to count - 1. */
SYMWIN_DEVICE int32_t symwin_team_rank(const symwin_team &team, int32_t index)
{
    return team.first + index * team.step;
}

/* The index of a rank; -1 if it is not in the team. */
SYMWIN_DEVICE int32_t symwin_team_index(const symwin_team &team, int32_t rank)
{
    const int32_t far = rank - team.first, index = far / team.step;

    return far % team.step == 0 && index >= 0 && index < team.count ? index : -1;
}

/* The rank `places` (0 to count - 1) indices after this rank; the first follows the last. If each
 * rank visits the team in this order, they do not all access the same peer at once. */
SYMWIN_DEVICE int32_t symwin_team_after(const symwin_team &team, int32_t places)
{
    const int32_t index = symwin_team_index(team, team.peers.rank) + places;

    return symwin_team_rank(team, index < team.count ? index : index - team.count);
}

/* ---- barriers -------------------------------------------------------------------------------- */

/* Bytes of a barrier's words, at the same `offset` of each rank's memory, aligned to 8. For each
 * block of the grid there is a row with one word per rank of the communicator. A barrier of grids
 * needs one row and two more words, which count the grid's blocks. The result is enough for either.
 * The words are zeroed once, by all ranks before the first kernel, and never reset. They serve one
 * team, and either barriers of blocks or barriers of grids. */
SYMWIN_DEVICE uint64_t symwin_barrier_bytes(const symwin_peers &peers, uint32_t blocks)
{
    const uint64_t ranks = (uint64_t)peers.nranks, rows = ranks * blocks;

    return 8 * (rows > ranks + 2 ? rows : ranks + 2);
}

/* Address of the word in row `row` of rank `at` that rank `of` adds to. */
SYMWIN_DEVICE uint64_t symwin_barrier_word(const symwin_team &team, int32_t at, uint64_t offset,
                                           uint32_t row, int32_t of)
{
    return symwin_peer_address(
        team.peers, at, offset + 8 * ((uint64_t)row * (uint64_t)team.peers.nranks + (uint64_t)of));
}

/* Signals all other ranks of the team and waits for them, on one row. This rank's own word in its
 * row counts the barriers passed. By all threads of a block. Returns false, in threads that notice
 * it, if the limit came first. */
SYMWIN_DEVICE bool symwin_barrier_row(const symwin_team &team, uint64_t offset, uint32_t row,
                                      symwin_limit limit)
{
    const int32_t me = team.peers.rank;
    const uint64_t passed = symwin_barrier_word(team, me, offset, row, me);
    const uint64_t next = 1 + symwin_load_u64(passed);
    bool right = true;

    for (int32_t i = (int32_t)threadIdx.x; i < team.count; i += (int32_t)blockDim.x)
        if (symwin_team_rank(team, i) != me)
            symwin_signal(symwin_barrier_word(team, symwin_team_rank(team, i), offset, row, me), 1);
    for (int32_t i = (int32_t)threadIdx.x; i < team.count && right; i += (int32_t)blockDim.x)
        if (symwin_team_rank(team, i) != me)
            right = symwin_wait(
                symwin_barrier_word(team, me, offset, row, symwin_team_rank(team, i)), next, limit);
    __syncthreads(); /* all have read `passed` */
    if (threadIdx.x == 0)
        symwin_store_u64(passed, next);
    return right;
}

/* Block b of each rank of the team waits for block b of the others. By all threads of the block.
 * What they all did before is visible to all of them afterwards, on every rank. Returns false, in
 * all threads of the block, if the limit came first; then the words must not be used again. */
SYMWIN_DEVICE bool symwin_barrier_block(const symwin_team &team, uint64_t offset,
                                        symwin_limit limit)
{
    __syncthreads();
    return !symwin_block_any(!symwin_barrier_row(team, offset, blockIdx.x, limit));
}

/* All blocks of all ranks of the team wait for each other. By all threads of the grid, whose blocks
 * must all be resident. Each call on the same words needs the same number of blocks. What they all
 * did before is visible to all of them afterwards. Returns false, in all threads of a block, if the
 * limit came first in that block; then the words must not be used again. */
SYMWIN_DEVICE bool symwin_barrier_grid(const symwin_team &team, uint64_t offset, symwin_limit limit)
{
    const int32_t me = team.peers.rank;
    const uint64_t row = offset + 8 * (uint64_t)team.peers.nranks; /* row 0 belongs to the ranks */
    const uint64_t arrived = symwin_peer_address(team.peers, me, row);
    const uint64_t released = arrived + 8;
    __shared__ uint64_t place;
    bool right = true;

    __syncthreads();
    if (threadIdx.x == 0)
        place = symwin_fetch_add(arrived, 1);
    __syncthreads();
    if (place % gridDim.x == gridDim.x - 1) {
        /* The last block: it has acquired what the others did. */
        right = !symwin_block_any(!symwin_barrier_row(team, offset, 0, limit));
        if (right && threadIdx.x == 0)
            symwin_signal(released, 1);
        return right;
    }
    if (threadIdx.x == 0)
        right = symwin_wait(released, place / gridDim.x + 1, limit);
    return !symwin_block_any(!right);
}

#endif
