/* All of the device API for one-sided access to a peer's memory, and channels, which are made of it.
 *
 *   symwin/copy.cuh     put and get of any number of bytes, at any alignment
 *   symwin/signal.cuh   counters of 64 bits that only grow; waiting for one, with a limit
 *   symwin/team.cuh     windows as kernel arguments, teams of ranks, their barriers
 *   symwin/packet.cuh   data that says itself that it has arrived
 *   channels            all of it between two ranks' memory
 *
 * Addresses are those of windows: symwin_peer_address(), or symwin_window_peer_pointer() on the host; or a channel's, which
 * the host makes: symwin/channel.h. Like all of the device API this is compiled by nvcc and for the emulated driver.
 * symwin/device.cuh says what memory order means.
 */
#ifndef SYMWIN_CHANNEL_CUH
#define SYMWIN_CHANNEL_CUH

#include "symwin/channel.h"
#include "symwin/copy.cuh"
#include "symwin/packet.cuh"
#include "symwin/signal.cuh"
#include "symwin/team.cuh"

/* ---- channels -------------------------------------------------------------------------------- */

/* struct symwin_channel is in symwin/channel.h, whose symwin_channel_connect() fills it in; kernels get it by value. */

/* Lane i of a channel that has more than i: the same memory, and counters of its own. So the blocks of two grids, of as
 * many blocks each, can signal and wait each for the other's block of its number. */
SYMWIN_DEVICE symwin_channel symwin_channel_lane(const symwin_channel &channel, uint64_t i)
{
    const uint64_t behind = i * SYMWIN_CHANNEL_LANE_BYTES;

    return {channel.own, channel.theirs, channel.signals + behind, channel.their_signals + behind,
            channel.waited + behind};
}

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

/* symwin_copy_bulk() likewise: large messages, through the block's shared memory. */
SYMWIN_DEVICE void symwin_channel_put_bulk(const symwin_channel &channel, symwin_bulk_ring *ring,
                                           symwin_group group, uint64_t to, uint64_t from,
                                           uint64_t bytes)
{
    symwin_copy_bulk(ring, group, channel.theirs + to, channel.own + from, bytes);
}

SYMWIN_DEVICE void symwin_channel_get_bulk(const symwin_channel &channel, symwin_bulk_ring *ring,
                                           symwin_group group, uint64_t to, uint64_t from,
                                           uint64_t bytes)
{
    symwin_copy_bulk(ring, group, channel.own + to, channel.theirs + from, bytes);
}

/* symwin_put_packets() to the peer's memory at `to`, from this rank's at `from`; and of what the peer has put to this
 * rank's at `from`, symwin_get_packets() to this rank's at `to`. */
SYMWIN_DEVICE void symwin_channel_put_packets(const symwin_channel &channel, symwin_group group,
                                              uint64_t to, uint64_t from, uint64_t bytes,
                                              uint32_t flag)
{
    symwin_put_packets(group, channel.theirs + to, channel.own + from, bytes, flag);
}

SYMWIN_DEVICE bool symwin_channel_get_packets(const symwin_channel &channel, symwin_group group,
                                              uint64_t to, uint64_t from, uint64_t bytes,
                                              uint32_t flag, symwin_limit limit)
{
    return symwin_get_packets(group, channel.own + to, channel.own + from, bytes, flag, limit);
}

/* Tells the peer that all before it is done: symwin_signal(). By one thread, behind a barrier of those that put. */
SYMWIN_DEVICE void symwin_channel_signal(const symwin_channel &channel)
{
    symwin_signal(channel.their_signals, 1);
}

/* Waits for `count` more signals of the peer, as many as it has blocks if each of them signals: symwin_wait(). By one
 * thread at a time. Where it gives up, the signals stay to be waited for. */
SYMWIN_DEVICE bool symwin_channel_wait_for(const symwin_channel &channel, uint64_t count,
                                           symwin_limit limit)
{
    const uint64_t next = count + symwin_load_u64(channel.waited);

    if (!symwin_wait(channel.signals, next, limit))
        return false;
    symwin_store_u64(channel.waited, next);
    return true;
}

/* Waits for the next one. */
SYMWIN_DEVICE bool symwin_channel_wait(const symwin_channel &channel, symwin_limit limit)
{
    return symwin_channel_wait_for(channel, 1, limit);
}

#endif
