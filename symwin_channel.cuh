/* One-sided access to a peer's memory: signals that need no reset, barriers, packets; and the copies of symwin_copy.cuh.
 *
 *   signals    counters of 64 bits that only grow; waiting for one, with a limit
 *   barriers   of a block, or of the whole grid, with those of the other ranks of a team
 *   packets    eight bytes that say themselves that they have arrived
 *   channels   all of it between two ranks' memory
 *
 * Addresses are those of windows: symwin_peer_address(), or symwin_window_peer_pointer() on the host. Like all of the
 * device API this is compiled by nvcc and for the emulated driver. symwin_device.cuh says what memory order means.
 */
#ifndef SYMWIN_CHANNEL_CUH
#define SYMWIN_CHANNEL_CUH

#include "symwin_copy.cuh"

/* ---- signals --------------------------------------------------------------------------------- */

/* How long to wait: whichever comes first. */
struct symwin_limit {
    uint64_t timeout_ns; /* 0: for ever */
    uint64_t
        abort; /* address of a word of 32 bits that is not 0 when waiting is to end; 0: there is none */
};

/* A wait under way; begins as {0, 0}. */
struct symwin_waiting {
    uint64_t since;
    uint32_t turns;
};

/* Each turn of a poll loop: false when it is time to give up. Looks at clock and abort word now and then. */
SYMWIN_DEVICE bool symwin_keep_waiting(symwin_waiting *waiting, symwin_limit limit)
{
    uint64_t now;

    symwin_pause();
    if (++waiting->turns % 64 != 0)
        return true;
    if (limit.abort != 0 && symwin_load_relaxed_u32(limit.abort) != 0)
        return false;
    if (limit.timeout_ns == 0)
        return true;
    now = symwin_clock_ns();
    if (waiting->since == 0)
        waiting->since = now;
    return now - waiting->since <= limit.timeout_ns;
}

/* Adds `value` to a counter of 64 bits, this rank's or a peer's, and does not wait for it. Release, system scope: all
 * that is ordered before it in this thread, and by a barrier in the threads of its block, is visible to whoever waits for
 * the count. By one thread. (PTX ISA, "red") */
SYMWIN_DEVICE void symwin_signal(uint64_t counter, uint64_t value)
{
#if SYMWIN_EMULATED
    emu_dev_add64(symwin_emu_target(counter, 8), value, __ATOMIC_RELEASE);
#else
    asm volatile("red.release.sys.global.add.u64 [%0], %1;"
                 :
                 : "l"(counter), "l"(value)
                 : "memory");
#endif
}

/* The same, and returns what there was before; acquires too. (PTX ISA, "atom") */
SYMWIN_DEVICE uint64_t symwin_fetch_add(uint64_t counter, uint64_t value)
{
#if SYMWIN_EMULATED
    return emu_dev_add64(symwin_emu_target(counter, 8), value, __ATOMIC_ACQ_REL);
#else
    uint64_t old;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(counter), "l"(value)
                 : "memory");
    return old;
#endif
}

/* Waits until a counter has reached `count`; false where the limit came first. Acquire: all that the adders released up
 * to there is visible to this thread, and behind a barrier to its block. By one thread, or by several that all may go on.
 * Counters only grow: no reset, and none that wraps in a lifetime. */
SYMWIN_DEVICE bool symwin_wait(uint64_t counter, uint64_t count, symwin_limit limit)
{
    symwin_waiting waiting = {0, 0};

    while (symwin_load_acquire_u64(counter) < count)
        if (!symwin_keep_waiting(&waiting, limit))
            return false;
    return true;
}

/* ---- barriers -------------------------------------------------------------------------------- */

/* Ranks first, first + step, ...: `count` of them, this one among them. */
struct symwin_team {
    symwin_peers peers;
    int32_t first, step, count;
};

SYMWIN_DEVICE symwin_team symwin_team_all(const symwin_peers &peers)
{
    return {peers, 0, 1, peers.nranks};
}

SYMWIN_DEVICE int32_t symwin_team_rank(const symwin_team &team, int32_t index)
{
    return team.first + index * team.step;
}

/* Bytes of the words that a barrier needs at `offset` in the memory of each rank, aligned to 8: for each block of the
 * grid one for each rank of the communicator. Zeroed once, by all ranks before the first kernel, and never reset. Words
 * serve one team, and either barriers of blocks or those of grids. */
SYMWIN_DEVICE uint64_t symwin_barrier_bytes(const symwin_peers &peers, uint32_t blocks)
{
    return 8 * (uint64_t)peers.nranks * (blocks > 2 ? blocks : 2);
}

/* Address of a word of a row in the memory of rank `at`: that which rank `of` adds to. */
SYMWIN_DEVICE uint64_t symwin_barrier_word(const symwin_team &team, int32_t at, uint64_t offset,
                                           uint32_t row, int32_t of)
{
    return symwin_peer_address(
        team.peers, at, offset + 8 * ((uint64_t)row * (uint64_t)team.peers.nranks + (uint64_t)of));
}

/* Tells all other ranks of the team and waits for them: the words of a row but this rank's own, which counts the
 * barriers that were passed. By the threads of a block; false, for those that noticed, where the limit came first. */
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
    __syncthreads(); /* all have read what was passed */
    if (threadIdx.x == 0)
        symwin_store_u64(passed, next);
    return right;
}

/* Block b of each rank of the team waits for block b of the others. By all threads of the block; what they all did before
 * is visible to all of them afterwards, on every rank. False, for all threads of the block, where the limit came first:
 * then the words serve no more. */
SYMWIN_DEVICE bool symwin_barrier_block(const symwin_team &team, uint64_t offset,
                                        symwin_limit limit)
{
    __syncthreads();
    return !symwin_block_any(!symwin_barrier_row(team, offset, blockIdx.x, limit));
}

/* All blocks of all ranks of the team wait for each other. By all threads of the grid, which must be on the device all at
 * once, and of as many blocks in each call on these words. What they all did before is visible to all of them afterwards.
 * False, for all threads of a block, where the limit came first there: then the words serve no more. */
SYMWIN_DEVICE bool symwin_barrier_grid(const symwin_team &team, uint64_t offset, symwin_limit limit)
{
    const int32_t me = team.peers.rank;
    const uint64_t row = offset + 8 * (uint64_t)team.peers.nranks; /* row 0 is that of the ranks */
    const uint64_t arrived = symwin_peer_address(team.peers, me, row);
    const uint64_t released = arrived + 8;
    __shared__ uint64_t place;
    bool right = true;

    __syncthreads();
    if (threadIdx.x == 0)
        place = symwin_fetch_add(arrived, 1);
    __syncthreads();
    if (place % gridDim.x == gridDim.x - 1) { /* the last one, which has all that the others did */
        right = !symwin_block_any(!symwin_barrier_row(team, offset, 0, limit));
        if (right && threadIdx.x == 0)
            symwin_signal(released, 1);
        return right;
    }
    if (threadIdx.x == 0)
        right = symwin_wait(released, place / gridDim.x + 1, limit);
    return !symwin_block_any(!right);
}

/* ---- packets --------------------------------------------------------------------------------- */

/* Sixteen bytes: a word of data, the flag, a word of data, the flag. Each half is one access, so whoever finds the flag
 * in both has the data: no fence, no signal, half of the bandwidth. The flag is one that the place has not held before, as
 * the number of a call from 1 on; 32 bits. A place may be put again when its reader is known to have read it: with two
 * places used in turn, the reader's own next packets say so. (PTX ISA, "Memory Consistency Model", vector data types) */

/* Puts `bytes` bytes, a multiple of 8, as packets of twice that. `to` is aligned to 16 bytes and `from` to 8. By all
 * threads of the group. */
SYMWIN_DEVICE void symwin_put_packets(symwin_group group, uint64_t to, uint64_t from,
                                      uint64_t bytes, uint32_t flag)
{
    for (uint64_t i = group.index; i < bytes / 8; i += group.count) {
        const uint64_t data = symwin_load_u64(from + 8 * i);

        symwin_store_relaxed_v16(to + 16 * i, {(data & 0xffffffffu) | (uint64_t)flag << 32,
                                               data >> 32 | (uint64_t)flag << 32});
    }
}

/* Waits for packets and writes what they hold to `to`, aligned to 8 bytes; false where the limit came first for this
 * thread: then a part is written. By all threads of the group, each for its own packets. */
SYMWIN_DEVICE bool symwin_get_packets(symwin_group group, uint64_t to, uint64_t from,
                                      uint64_t bytes, uint32_t flag, symwin_limit limit)
{
    for (uint64_t i = group.index; i < bytes / 8; i += group.count) {
        symwin_v16 packet = symwin_load_relaxed_v16(from + 16 * i);
        symwin_waiting waiting = {0, 0};

        while (packet.lo >> 32 != flag || packet.hi >> 32 != flag) {
            if (!symwin_keep_waiting(&waiting, limit))
                return false;
            packet = symwin_load_relaxed_v16(from + 16 * i);
        }
        symwin_store_u64(to + 8 * i, (packet.lo & 0xffffffffu) | packet.hi << 32);
    }
    return true;
}

/* ---- channels -------------------------------------------------------------------------------- */

/* Between this rank's memory and a peer's; a kernel argument. Zeroed once, the three words are never reset. */
struct symwin_channel {
    uint64_t own;     /* address of this rank's memory */
    uint64_t theirs;  /* and of the peer's */
    uint64_t signals; /* of a word of 64 bits in this rank's memory: the peer's signals so far */
    uint64_t their_signals; /* of the peer's such word */
    uint64_t waited;        /* of a word in this rank's memory: how many signals were waited for */
};

/* symwin_copy() to the peer's memory at `to`, from this rank's at `from`, or the other way round: bytes from the
 * beginning of each. */
SYMWIN_DEVICE void symwin_channel_put(const symwin_channel &channel, symwin_group group,
                                      uint64_t to, uint64_t from, uint64_t bytes)
{
    symwin_copy(group, channel.theirs + to, channel.own + from, bytes);
}

SYMWIN_DEVICE void symwin_channel_get(const symwin_channel &channel, symwin_group group,
                                      uint64_t to, uint64_t from, uint64_t bytes)
{
    symwin_copy(group, channel.own + to, channel.theirs + from, bytes);
}

/* Tells the peer that all before it is done: symwin_signal(). By one thread, behind a barrier of those that put. */
SYMWIN_DEVICE void symwin_channel_signal(const symwin_channel &channel)
{
    symwin_signal(channel.their_signals, 1);
}

/* Waits for the next signal of the peer: symwin_wait(). By one thread at a time. Where it gives up, the signal stays to be
 * waited for. */
SYMWIN_DEVICE bool symwin_channel_wait(const symwin_channel &channel, symwin_limit limit)
{
    const uint64_t next = 1 + symwin_load_u64(channel.waited);

    if (!symwin_wait(channel.signals, next, limit))
        return false;
    symwin_store_u64(channel.waited, next);
    return true;
}

#endif
