/* Device calls for one-sided access to a peer's memory, and channels between two ranks.
 *
 *   symwin/copy.cuh     put and get of any number of bytes, at any alignment
 *   symwin/signal.cuh   64-bit counters that only grow, and waits with a limit
 *   symwin/team.cuh     windows as kernel arguments, teams of ranks, barriers
 *   symwin/packet.cuh   data that carries its own arrival flag
 *   channels            these calls between two ranks' memory
 *
 * Addresses are those of windows (symwin_peer_address(), or symwin_window_peer_pointer() on the
 * host), or of a channel, which the host creates (symwin/channel.h). Compiled by nvcc and for the
 * emulated driver, as all of the device API. symwin/device.cuh explains memory order.
 */
#ifndef SYMWIN_CHANNEL_CUH
#define SYMWIN_CHANNEL_CUH

#include "symwin/channel.h"
#include "symwin/copy.cuh"
#include "symwin/packet.cuh"
#include "symwin/signal.cuh"
#include "symwin/team.cuh"

/* ---- channels -------------------------------------------------------------------------------- */

/* symwin/channel.h defines struct symwin_channel; symwin_channel_connect() fills it in. */

/* Lane i of a channel that has more than i lanes: the same memory, with counters of its own. So
 * block i of one grid and block i of the peer's can signal and wait independently of other
 * blocks. */
SYMWIN_DEVICE symwin_channel symwin_channel_lane(const symwin_channel &channel, uint64_t i)
{
    const uint64_t behind = i * SYMWIN_CHANNEL_LANE_BYTES;

    return {channel.own, channel.theirs, channel.signals + behind, channel.their_signals + behind,
            channel.waited + behind};
}

/* symwin_copy() between this rank's and the peer's memory. `to` and `from` are byte offsets in the
 * target's and in the source's memory: a put writes the peer's, a get reads it. */
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

/* The same with symwin_copy_bulk(), for large messages: through the block's shared memory. */
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

/* symwin_put_packets() from this rank's memory at `from` to the peer's at `to`; and
 * symwin_get_packets() of packets that the peer put at `from` in this rank's memory, to this rank's
 * memory at `to`. */
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

/* Signals the peer that everything before is done: symwin_signal(). By one thread, after a barrier
 * of the threads that put. */
SYMWIN_DEVICE void symwin_channel_signal(const symwin_channel &channel)
{
    symwin_signal(channel.their_signals, 1);
}

/* Waits for `count` further signals of the peer: symwin_wait(). If each of the peer's blocks
 * signals, `count` is their number. By one thread at a time. Returns false if the limit came first;
 * then the signals can be waited for again. */
SYMWIN_DEVICE bool symwin_channel_wait_for(const symwin_channel &channel, uint64_t count,
                                           symwin_limit limit)
{
    const uint64_t next = count + symwin_load_u64(channel.waited);

    if (!symwin_wait(channel.signals, next, limit))
        return false;
    symwin_store_u64(channel.waited, next);
    return true;
}

/* Waits for one further signal. */
SYMWIN_DEVICE bool symwin_channel_wait(const symwin_channel &channel, symwin_limit limit)
{
    return symwin_channel_wait_for(channel, 1, limit);
}

#endif
