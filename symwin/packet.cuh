/* Packets: data that carries its own arrival flag. A reader that finds the flag has the data,
 * without a signal and without a fence.
 *
 *   epochs       a kernel's call number, counted on the device; flags are derived from it
 *   packets 8    4 bytes of data and a 4-byte flag in one access: half of the bandwidth
 *   packets 16   two of these in one 16-byte access: half of the bandwidth, half of the
 *                instructions
 *   lines        120 bytes of data and an 8-byte flag, by eight threads of a warp: 15/16 of the
 *                bandwidth (LL128)
 *
 * A flag must be a value that its place has not held before, such as a call number from 1 on.
 * Places are zeroed once, before the first kernel, and never reset. A place may be overwritten when
 * its reader is known to have read it: with two places used in turn, the reader's own next packets
 * show that. Compiled by nvcc and for the emulated driver, as all of the device API.
 * symwin/device.cuh explains memory order.
 */
#ifndef SYMWIN_PACKET_CUH
#define SYMWIN_PACKET_CUH

#include "symwin/copy.cuh"
#include "symwin/signal.cuh"

/* ---- epochs ---------------------------------------------------------------------------------- */

/* An epoch's 16 bytes count the calls of a rank's kernels, graph replays included. They are in this
 * rank's memory, aligned to 8 and zeroed once. */
enum { SYMWIN_EPOCH_BYTES = 16 };

/* The number of this call: 1, 2, ... By any thread, before its block calls symwin_epoch_end().
 * Needs no memory order: only the kernel before has written it, and the kernel's begin orders
 * that. */
SYMWIN_DEVICE uint64_t symwin_epoch_begin(uint64_t epoch)
{
    return symwin_load_relaxed_u64(epoch) + 1;
}

/* Ends the call for this block; the last block of the grid counts it. By all threads of each block,
 * once per kernel. Kernels on the same epoch follow one another in a stream; their grids may
 * differ. */
SYMWIN_DEVICE void symwin_epoch_end(uint64_t epoch)
{
    __syncthreads();
    if (threadIdx.x == 0 && symwin_fetch_add(epoch + 8, 1) == gridDim.x - 1) {
        symwin_store_relaxed_u64(epoch + 8, 0);
        symwin_store_relaxed_u64(epoch, symwin_load_relaxed_u64(epoch) + 1);
    }
}

/* A 32-bit flag for an epoch: never 0, and repeated after 2^32 - 1 calls. If a place is not written
 * for that many calls, its old packet looks new when the flag repeats. */
SYMWIN_DEVICE uint32_t symwin_epoch_flag(uint64_t epoch)
{
    return (uint32_t)(epoch % 0xffffffffu) + 1;
}

/* ---- packets of 8 bytes ---------------------------------------------------------------------- */

/* Stores one packet, to an address aligned to 8 bytes. Relaxed, system scope: the eight bytes are
 * one access; nothing else is ordered. By one thread. (PTX ISA, "Memory Consistency Model",
 * single-copy atomicity) */
SYMWIN_DEVICE void symwin_packet8_store(uint64_t to, uint32_t data, uint32_t flag)
{
    symwin_store_relaxed_u64(to, data | (uint64_t)flag << 32);
}

/* Whether a packet with that flag is there; if so, sets `*data` to its data. */
SYMWIN_DEVICE bool symwin_packet8_load(uint64_t from, uint32_t flag, uint32_t *data)
{
    const uint64_t packet = symwin_load_relaxed_u64(from);

    *data = (uint32_t)packet;
    return packet >> 32 == flag;
}

/* Puts `bytes` bytes, a multiple of 4, as packets that take twice that. `to` is aligned to 8 bytes
 * and `from` to 4. By all threads of the group. */
SYMWIN_DEVICE void symwin_put_packets8(symwin_group group, uint64_t to, uint64_t from,
                                       uint64_t bytes, uint32_t flag)
{
    for (uint64_t i = group.index; i < bytes / 4; i += group.count)
        symwin_packet8_store(to + 8 * i, symwin_load_u32(from + 4 * i), flag);
}

/* Waits for the packets of `bytes` bytes of data at `from`, and writes the data to `to`, aligned to
 * 4 bytes. Returns false if the limit came first for this thread; then only a part is written. By
 * all threads of the group, each for its own packets. */
SYMWIN_DEVICE bool symwin_get_packets8(symwin_group group, uint64_t to, uint64_t from,
                                       uint64_t bytes, uint32_t flag, symwin_limit limit)
{
    for (uint64_t i = group.index; i < bytes / 4; i += group.count) {
        symwin_waiting waiting = {0, 0};
        uint32_t data;

        while (!symwin_packet8_load(from + 8 * i, flag, &data))
            if (!symwin_keep_waiting(&waiting, limit))
                return false;
        symwin_store_u32(to + 4 * i, data);
    }
    return true;
}

/* ---- packets of 16 bytes --------------------------------------------------------------------- */

/* Stores one packet, to an address aligned to 16 bytes: a data word, the flag, a data word, the
 * flag. Each half is one access, so a reader that finds the flag in both has the data. Relaxed,
 * system scope. By one thread. (PTX ISA, "Memory Consistency Model", vector data types) */
SYMWIN_DEVICE void symwin_packet_store(uint64_t to, uint64_t data, uint32_t flag)
{
    symwin_store_relaxed_v16(
        to, {(data & 0xffffffffu) | (uint64_t)flag << 32, data >> 32 | (uint64_t)flag << 32});
}

/* Whether a packet with that flag is there; if so, sets `*data` to its data. */
SYMWIN_DEVICE bool symwin_packet_load(uint64_t from, uint32_t flag, uint64_t *data)
{
    const symwin_v16 packet = symwin_load_relaxed_v16(from);

    *data = (packet.lo & 0xffffffffu) | packet.hi << 32;
    return packet.lo >> 32 == flag && packet.hi >> 32 == flag;
}

/* Puts `bytes` bytes, a multiple of 8, as packets that take twice that. `to` is aligned to 16 bytes
 * and `from` to 8. By all threads of the group. */
SYMWIN_DEVICE void symwin_put_packets(symwin_group group, uint64_t to, uint64_t from,
                                      uint64_t bytes, uint32_t flag)
{
    for (uint64_t i = group.index; i < bytes / 8; i += group.count)
        symwin_packet_store(to + 16 * i, symwin_load_u64(from + 8 * i), flag);
}

/* Waits for the packets of `bytes` bytes of data at `from`, and writes the data to `to`, aligned to
 * 8 bytes. Returns false if the limit came first for this thread; then only a part is written. By
 * all threads of the group, each for its own packets. */
SYMWIN_DEVICE bool symwin_get_packets(symwin_group group, uint64_t to, uint64_t from,
                                      uint64_t bytes, uint32_t flag, symwin_limit limit)
{
    for (uint64_t i = group.index; i < bytes / 8; i += group.count) {
        symwin_waiting waiting = {0, 0};
        uint64_t data;

        while (!symwin_packet_load(from + 16 * i, flag, &data))
            if (!symwin_keep_waiting(&waiting, limit))
                return false;
        symwin_store_u64(to + 8 * i, data);
    }
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* A line is 128 bytes, aligned to 128: 120 bytes of data, then the epoch as a 64-bit flag. Eight
 * consecutive threads of a warp store it by one instruction of 16 bytes each, and load it the same
 * way.
 *
 * PTX does not guarantee that a reader that sees the flag sees the data: for its memory model a
 * line is sixteen relaxed accesses. Lines rely on a hardware property: one warp's store of an
 * aligned line reaches a peer's memory in ascending order of addresses, the flag last. NCCL's LL128
 * relies on the same. NCCL enables it by default only between GPUs of certain architectures on
 * NVLink, because elsewhere a split or reordered line is silent corruption (NVIDIA/nccl issues 281
 * and 786, src/graph/tuning.cc). So use lines only between GPUs that NVLink connects, and packets
 * otherwise. Like NCCL's reader (src/device/prims_ll128.h), this one loads a line's data again
 * after its flag has come.
 *
 * On the emulated driver one thread of the eight does all, with release and acquire of the flag. */
enum { SYMWIN_LINE_BYTES = 128, SYMWIN_LINE_DATA = 120 };

/* Bytes of the lines for `bytes` bytes of data. */
SYMWIN_DEVICE uint64_t symwin_lines_bytes(uint64_t bytes)
{
    return (bytes + SYMWIN_LINE_DATA - 1) / SYMWIN_LINE_DATA * SYMWIN_LINE_BYTES;
}

/* Words `word` and, if `two`, `word` + 1 of the data; zeros beyond its end. */
SYMWIN_DEVICE symwin_v16 sw_line_data(uint64_t from, uint64_t words, uint64_t word, bool two)
{
    symwin_v16 data = {0, 0};

    if (word < words)
        data.lo = symwin_load_u64(from + 8 * word);
    if (two && word + 1 < words)
        data.hi = symwin_load_u64(from + 8 * word + 8);
    return data;
}

SYMWIN_DEVICE void sw_line_keep(uint64_t to, uint64_t words, uint64_t word, bool two,
                                const symwin_v16 &data)
{
    if (word < words)
        symwin_store_u64(to + 8 * word, data.lo);
    if (two && word + 1 < words)
        symwin_store_u64(to + 8 * word + 8, data.hi);
}

#if !SYMWIN_EMULATED
/* The mask of this thread's eight lanes. */
SYMWIN_DEVICE uint32_t sw_line_lanes(void)
{
    return 0xffu << (threadIdx.x & 24);
}
#endif

/* Puts `bytes` bytes, a multiple of 8, as lines. `to` is aligned to 128 bytes and `from` to 8;
 * `epoch` is not 0. By all threads of a group of at least 8: a warp, a block, or the grid if its
 * blocks have a multiple of 8 threads. Threads beyond a multiple of 8 do nothing. The eight threads
 * of a line call it together. */
SYMWIN_DEVICE void symwin_put_lines(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes,
                                    uint64_t epoch)
{
    const uint64_t words = bytes / 8, place = group.index % 8, eights = group.count / 8;

    if (group.index / 8 >= eights)
        return;
    for (uint64_t line = group.index / 8; line * 15 < words; line += eights) {
        const uint64_t word = line * 15, at = to + line * SYMWIN_LINE_BYTES;
#if SYMWIN_EMULATED
        for (uint64_t k = 0; k < 15 && place == 7; k++)
            symwin_store_relaxed_u64(at + 8 * k, sw_line_data(from, words, word + k, false).lo);
        if (place == 7)
            symwin_store_release_u64(at + 120, epoch);
#else
        symwin_v16 data = sw_line_data(from, words, word + 2 * place, place < 7);

        if (place == 7)
            data.hi = epoch;
        __syncwarp(sw_line_lanes());
        symwin_store_relaxed_v16(at + 16 * place, data);
#endif
    }
}

/* Waits for the lines of `bytes` bytes of data at `from`, and writes the data to `to`, aligned to 8
 * bytes. Returns false if the limit came first for this thread; then only a part is written. By all
 * threads of such a group. */
SYMWIN_DEVICE bool symwin_get_lines(symwin_group group, uint64_t to, uint64_t from, uint64_t bytes,
                                    uint64_t epoch, symwin_limit limit)
{
    const uint64_t words = bytes / 8, place = group.index % 8, eights = group.count / 8;

    if (group.index / 8 >= eights)
        return true;
    for (uint64_t line = group.index / 8; line * 15 < words; line += eights) {
        const uint64_t word = line * 15, at = from + line * SYMWIN_LINE_BYTES;
        symwin_waiting waiting = {0, 0};
#if SYMWIN_EMULATED
        while (place == 7 && symwin_load_acquire_u64(at + 120) != epoch)
            if (!symwin_keep_waiting(&waiting, limit))
                return false;
        for (uint64_t k = 0; k < 15 && place == 7; k++)
            sw_line_keep(to, words, word + k, false, {symwin_load_relaxed_u64(at + 8 * k), 0});
#else
        const uint32_t lanes = sw_line_lanes();

        while (__any_sync(lanes, place == 7 && symwin_load_relaxed_v16(at + 112).hi != epoch))
            if (__any_sync(lanes, !symwin_keep_waiting(&waiting, limit)))
                return false;
        sw_line_keep(to, words, word + 2 * place, place < 7,
                     symwin_load_relaxed_v16(at + 16 * place));
#endif
    }
    return true;
}

#endif
