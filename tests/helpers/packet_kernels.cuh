/* Kernels for tests/device/test_packet.c: calls of symwin/packet.cuh. Compiled as those of channel_kernels.cuh are. */
#ifndef SYMWIN_TESTS_PACKET_KERNELS_CUH
#define SYMWIN_TESTS_PACKET_KERNELS_CUH

#include "copy_kernels.cuh"
#include "symwin/packet.cuh"

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

/* What a rank sends as word `i` of a call. */
SYMWIN_DEVICE uint32_t packet_word(uint64_t first, uint64_t epoch, uint64_t i)
{
    return (uint32_t)(first + 7 * epoch + i);
}

/* One call: looks at what the call before got, puts this call's words and gets the peer's, and makes the next call's. What
 * all threads do to the same words is a kernel apart, so that no barrier of the grid is needed. */
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

/* Gets what the host has laid out. */
SYMWIN_KERNEL(packet_get, packet_args, args, CHANNEL_THREADS)
{
    if (!packets_get(args, group_of(args.group), args.target, args.places, args.since))
        symwin_atomic_add_u32(args.wrong + 4, 1);
}

#endif
