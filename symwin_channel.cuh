/* All of the device API for one-sided access to a peer's memory, and channels, which are made of it.
 *
 *   symwin_copy.cuh     put and get of any number of bytes, at any alignment
 *   symwin_signal.cuh   counters of 64 bits that only grow; waiting for one, with a limit
 *   symwin_team.cuh     windows as kernel arguments, teams of ranks, their barriers
 *   symwin_packet.cuh   data that says itself that it has arrived
 *   channels            all of it between two ranks' memory
 *
 * Addresses are those of windows: symwin_peer_address(), or symwin_window_peer_pointer() on the host. Like all of the
 * device API this is compiled by nvcc and for the emulated driver. symwin_device.cuh says what memory order means.
 */
#ifndef SYMWIN_CHANNEL_CUH
#define SYMWIN_CHANNEL_CUH

#include "symwin_copy.cuh"
#include "symwin_packet.cuh"
#include "symwin_signal.cuh"
#include "symwin_team.cuh"

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
