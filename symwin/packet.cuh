/* Packets: data that says itself that it has arrived. No signal and no fence: whoever finds the flag has the data.
 *
 *   epochs       the number of a call, kept on the device: what flags are made of
 *   packets 8    4 bytes of data and a flag of 4, in one access: half of the bandwidth
 *   packets 16   twice that, in an access of 16 bytes: half of the bandwidth, half of the instructions
 *   lines        120 bytes of data and a flag of 8, by eight threads of a warp: 15 sixteenths of the bandwidth (LL128)
 *
 * A flag is one that its place has not held before, as the number of a call from 1 on: places are zeroed once, before the
 * first kernel, and never reset. A place may be put again when its reader is known to have read it: with two places used in
 * turn, the reader's own next packets say so. Like all of the device API this is compiled by nvcc and for the emulated
 * driver. symwin/device.cuh says what memory order means.
 */
#ifndef SYMWIN_PACKET_CUH
#define SYMWIN_PACKET_CUH

#include "symwin/copy.cuh"
#include "symwin/signal.cuh"

/* ---- epochs ---------------------------------------------------------------------------------- */

/* Sixteen bytes of this rank's memory, aligned to 8 and zeroed once, count the calls of its kernels, in graphs too. */
enum { SYMWIN_EPOCH_BYTES = 16 };

/* The number of this call: 1, 2, ... By any thread, before its block comes to symwin_epoch_end(). Ordered by the kernel's
 * beginning alone, since only the kernel before has written it. */
SYMWIN_DEVICE uint64_t symwin_epoch_begin(uint64_t epoch)
{
    return symwin_load_relaxed_u64(epoch) + 1;
}

/* The call is over for this block: the last block of the grid counts it. By all threads of each block, once a kernel; kernels
 * on the same words follow one another in a stream, and their grids may differ. */
SYMWIN_DEVICE void symwin_epoch_end(uint64_t epoch)
{
    __syncthreads();
    if (threadIdx.x == 0 && symwin_fetch_add(epoch + 8, 1) == gridDim.x - 1) {
        symwin_store_relaxed_u64(epoch + 8, 0);
        symwin_store_relaxed_u64(epoch, symwin_load_relaxed_u64(epoch) + 1);
    }
}

/* A flag of 32 bits for an epoch: never 0, and another one in each of 2^32 - 1 calls. A place that is not put for so long
 * passes for news when the same flag comes again. */
SYMWIN_DEVICE uint32_t symwin_epoch_flag(uint64_t epoch)
{
    return (uint32_t)(epoch % 0xffffffffu) + 1;
}

/* ---- packets of 8 bytes ---------------------------------------------------------------------- */

/* One packet, at an address aligned to 8 bytes. Relaxed, system scope: the eight bytes are one access, and nothing else is
 * ordered. By one thread. (PTX ISA, "Memory Consistency Model", single-copy atomicity) */
SYMWIN_DEVICE void symwin_packet8_store(uint64_t to, uint32_t data, uint32_t flag)
{
    symwin_store_relaxed_u64(to, data | (uint64_t)flag << 32);
}

/* Whether a packet with that flag is there; then `*data` is its data. */
SYMWIN_DEVICE bool symwin_packet8_load(uint64_t from, uint32_t flag, uint32_t *data)
{
    const uint64_t packet = symwin_load_relaxed_u64(from);

    *data = (uint32_t)packet;
    return packet >> 32 == flag;
}

/* Puts `bytes` bytes, a multiple of 4, as packets of twice that. `to` is aligned to 8 bytes and `from` to 4. By all threads
 * of the group. */
SYMWIN_DEVICE void symwin_put_packets8(symwin_group group, uint64_t to, uint64_t from,
                                       uint64_t bytes, uint32_t flag)
{
    for (uint64_t i = group.index; i < bytes / 4; i += group.count)
        symwin_packet8_store(to + 8 * i, symwin_load_u32(from + 4 * i), flag);
}

/* Waits for packets and writes what they hold to `to`, aligned to 4 bytes; false where the limit came first for this
 * thread: then a part is written. By all threads of the group, each for its own packets. */
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

/* A word of data, the flag, a word of data, the flag: each half is one access, so whoever finds the flag in both has the
 * data. At an address aligned to 16 bytes. Relaxed, system scope. By one thread. (PTX ISA, "Memory Consistency Model", vector
 * data types) */
SYMWIN_DEVICE void symwin_packet_store(uint64_t to, uint64_t data, uint32_t flag)
{
    symwin_store_relaxed_v16(
        to, {(data & 0xffffffffu) | (uint64_t)flag << 32, data >> 32 | (uint64_t)flag << 32});
}

/* Whether a packet with that flag is there; then `*data` is its data. */
SYMWIN_DEVICE bool symwin_packet_load(uint64_t from, uint32_t flag, uint64_t *data)
{
    const symwin_v16 packet = symwin_load_relaxed_v16(from);

    *data = (packet.lo & 0xffffffffu) | packet.hi << 32;
    return packet.lo >> 32 == flag && packet.hi >> 32 == flag;
}

/* Puts `bytes` bytes, a multiple of 8, as packets of twice that. `to` is aligned to 16 bytes and `from` to 8. By all
 * threads of the group. */
SYMWIN_DEVICE void symwin_put_packets(symwin_group group, uint64_t to, uint64_t from,
                                      uint64_t bytes, uint32_t flag)
{
    for (uint64_t i = group.index; i < bytes / 8; i += group.count)
        symwin_packet_store(to + 16 * i, symwin_load_u64(from + 8 * i), flag);
}

/* Waits for packets and writes what they hold to `to`, aligned to 8 bytes; false where the limit came first for this
 * thread: then a part is written. By all threads of the group, each for its own packets. */
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

/* A line is 128 bytes, aligned to that: 120 of data, then the epoch as its flag. Eight consecutive threads of a warp store it
 * by one instruction of 16 bytes each, and load it so.
 *
 * No rule of PTX's says that who sees the flag sees the data: to the memory model these are sixteen relaxed accesses. What
 * this leans on is that one warp's store of an aligned line comes to a peer's memory in ascending order of addresses, the
 * flag last. NCCL's LL128 leans on the same, and NCCL enables it by itself only between GPUs of certain architectures on
 * NVLink, since elsewhere a split or reordered line is silent corruption (NVIDIA/nccl issues 281 and 786,
 * src/graph/tuning.cc). So use lines between GPUs that NVLink connects, and packets for anything else. As NCCL's reader does
 * (src/device/prims_ll128.h), this one loads a line's data again when its flag has come.
 *
 * For the emulated driver one thread of the eight does all, and the flag is released and acquired. */
enum { SYMWIN_LINE_BYTES = 128, SYMWIN_LINE_DATA = 120 };

/* Bytes that `bytes` bytes take in lines. */
SYMWIN_DEVICE uint64_t symwin_lines_bytes(uint64_t bytes)
{
    return (bytes + SYMWIN_LINE_DATA - 1) / SYMWIN_LINE_DATA * SYMWIN_LINE_BYTES;
}

/* Words `word`, `word` + 1 of the data, as far as there are so many; zeros beyond. */
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
/* The lanes of this thread's eight. */
SYMWIN_DEVICE uint32_t sw_line_lanes(void)
{
    return 0xffu << (threadIdx.x & 24);
}
#endif

/* Puts `bytes` bytes, a multiple of 8, as lines. `to` is aligned to 128 bytes and `from` to 8; `epoch` is not 0. By all
 * threads of a group of 8 or more that is a warp, a block or, where blocks have a multiple of 8 threads, the grid; what is
 * more than a multiple of 8 of them does nothing. The threads of an eight come together. */
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

/* Waits for lines and writes what they hold to `to`, aligned to 8 bytes; false where the limit came first for this thread:
 * then a part is written. By all threads of such a group. */
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
