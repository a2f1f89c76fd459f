/* Chunks of large messages through the ring of sends and receives (pairs.cuh): 16 bytes in an
 * entry, and no flags, so all that crosses the link is payload.
 *
 * Who knows. A message is large by its bytes, which both ranks know; if they differ, the header and
 * the offer say so before the first chunk. The buffers' alignment, which only one rank knows,
 * decides how that rank accesses its buffer, and nothing of what travels.
 *
 * Chunks. They have the numbers and the slots of all chunks, and `extent` bytes, a multiple of 16:
 * up to a whole slot, less if the message has no more than the ring. r stores chunk s into its slot
 * and then writes s to `filled` at p, with release; p acquires it, copies the bytes out, and writes
 * s to `taken` at r, with release. No entry says what it belongs to, so p's loads and zeros are
 * weak, and all order comes from these words.
 *
 * Room. r stores s when s - SW_PAIR_SLOTS has been taken. It acquires one of two words:
 *
 *   taken      of a chunk that p took in the kernel that receives the message: without flags, or
 *              by the kernel for any number of items
 *   cleared    which that kernel writes with release when it has made its offer: all that p took
 *              before the kernel
 *
 * Flags. The slots have to be zero for chunks with flags, which do not know what was there before.
 * So p stores zeros where it has loaded, unless the next chunk in the slot is of this message and
 * covers it.
 */
#ifndef SYMWIN_KERNELS_PAIRS_RAW_CUH
#define SYMWIN_KERNELS_PAIRS_RAW_CUH

#include "pairs.cuh"

/* Two words of any values. */
struct sw_raw_wire : sw_entry_pair {
    enum { words = 2, aligned = 0, rest = 1, rounds = 1, flows = 0 };
};

/* ---- waits ----------------------------------------------------------------------------------- */

/* The slot of chunk `number`, which this rank sends to p, is empty. */
SYMWIN_DEVICE bool sw_raw_has_room(const struct sw_kernel_args &args, const sw_call &call,
                                   int32_t p, uint64_t number)
{
    return number <= SW_PAIR_SLOTS ||
           symwin_load_acquire_u64(SW_PAIR_AT(args, call, args.rank, p, taken) +
                                   number % SW_PAIR_SLOTS * 8) >= number - SW_PAIR_SLOTS ||
           symwin_load_acquire_u64(SW_PAIR_AT(args, call, args.rank, p, cleared)) >=
               number - SW_PAIR_SLOTS;
}

struct sw_raw_room {
    uint64_t number;

    SYMWIN_MEMBER bool look(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
    {
        return sw_raw_has_room(args, call, p, number);
    }
};

/* Chunk `number` from rank p is in its slot. */
SYMWIN_DEVICE bool sw_raw_is_filled(const struct sw_kernel_args &args, const sw_call &call,
                                    int32_t p, uint64_t number)
{
    return symwin_load_acquire_u64(SW_PAIR_AT(args, call, args.rank, p, filled) +
                                   number % SW_PAIR_SLOTS * 8) == number;
}

struct sw_raw_arrival {
    uint64_t number;

    SYMWIN_MEMBER bool look(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
    {
        return sw_raw_is_filled(args, call, p, number);
    }
};

/* Tells rank p what `ended` says, for stores without flags. By one thread, after the offer. */
SYMWIN_DEVICE void sw_raw_tell_cleared(const struct sw_kernel_args &args, const sw_call &call,
                                       int32_t p, uint64_t number)
{
    symwin_store_release_u64(SW_PAIR_AT(args, call, p, args.rank, cleared), number);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

SYMWIN_DEVICE sw_part sw_raw_part(const sw_pair_item &item, uint64_t chunk)
{
    const uint32_t entries = item.extent / SW_ENTRY_BYTES;

    return sw_part_at<sw_raw_wire>(item.address, item.bytes, chunk * entries, entries);
}

SYMWIN_DEVICE uint32_t sw_raw_entries(const sw_part &part)
{
    return (uint32_t)((part.message.bytes + SW_ENTRY_BYTES - 1) / SW_ENTRY_BYTES);
}

/* By a block, when the slot is empty; without the header. `first` is the number of the message's
 * first chunk. The last thread has to wait for the stores, so the first one may wait for room. */
SYMWIN_DEVICE void sw_raw_send_chunk(const struct sw_kernel_args &args, const sw_call &call,
                                     const sw_pair_item &item, uint64_t first, uint64_t chunk)
{
    const uint64_t number = first + chunk;
    const uint64_t to = sw_pair_slot(args, call, args.rank, item.peer, number);
    const sw_part part = sw_raw_part(item, chunk);
    const uint32_t entries = sw_raw_entries(part);

    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < part.whole; i += SW_PAIR_BATCH * blockDim.x) {
        symwin_v16 value[SW_PAIR_BATCH];

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * blockDim.x < part.whole)
                value[j] = symwin_load_v16(part.message.address +
                                           (uint64_t)(i + j * blockDim.x) * SW_ENTRY_BYTES);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * blockDim.x < part.whole)
                symwin_store_relaxed_v16(to + (uint64_t)(i + j * blockDim.x) * SW_ENTRY_BYTES,
                                         value[j]);
    }
    SYMWIN_NO_UNROLL
    for (uint32_t i = part.whole + threadIdx.x; i < entries; i += blockDim.x) {
        uint64_t word[2];

        sw_words_load<sw_byte, sw_raw_wire, SW_OWN>(part, i, word);
        symwin_store_relaxed_v16(to + (uint64_t)i * SW_ENTRY_BYTES, {word[0], word[1]});
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        symwin_store_release_u64(SW_PAIR_AT(args, call, item.peer, args.rank, filled) +
                                     number % SW_PAIR_SLOTS * 8,
                                 number);
}

/* Whether the next chunk in this one's slot is of the same message, and no shorter. */
SYMWIN_DEVICE bool sw_raw_is_covered(const sw_pair_item &item, uint64_t chunk)
{
    return chunk + SW_PAIR_SLOTS + 1 < item.chunks;
}

/* The bytes of a chunk that is there, from its slot to their place. By a block. */
SYMWIN_DEVICE void sw_raw_copy_out(const sw_pair_item &item, uint64_t chunk, uint64_t from)
{
    const bool empties = !sw_raw_is_covered(item, chunk);
    const sw_part part = sw_raw_part(item, chunk);
    const uint32_t entries = sw_raw_entries(part);

    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < part.whole; i += SW_PAIR_BATCH * blockDim.x) {
        symwin_v16 value[SW_PAIR_BATCH];

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * blockDim.x < part.whole)
                value[j] = symwin_load_v16(from + (uint64_t)(i + j * blockDim.x) * SW_ENTRY_BYTES);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++) {
            const uint64_t at = (uint64_t)(i + j * blockDim.x) * SW_ENTRY_BYTES;

            if (i + j * blockDim.x >= part.whole)
                break;
            symwin_store_v16(part.message.address + at, value[j]);
            if (empties)
                symwin_store_v16(from + at, {0, 0});
        }
    }
    SYMWIN_NO_UNROLL
    for (uint32_t i = part.whole + threadIdx.x; i < entries; i += blockDim.x) {
        const symwin_v16 value = symwin_load_v16(from + (uint64_t)i * SW_ENTRY_BYTES);
        const uint64_t word[2] = {value.lo, value.hi};

        sw_words_store<sw_byte, sw_raw_wire, SW_OWN>(part, i, word);
        if (empties)
            symwin_store_v16(from + (uint64_t)i * SW_ENTRY_BYTES, {0, 0});
    }
}

/* In r's words p's earlier accesses to the slot come before these. If r is another process,
 * ThreadSanitizer cannot see that, but what p itself wrote there last. */
SYMWIN_DEVICE void sw_raw_show_taken(const struct sw_kernel_args &args, const sw_call &call,
                                     int32_t p, uint64_t number)
{
    if (SYMWIN_EMULATED)
        (void)symwin_load_acquire_u64(SW_PAIR_AT(args, call, p, args.rank, taken) +
                                      number % SW_PAIR_SLOTS * 8);
}

/* By a block, with the header if it is the message's first chunk. All threads see whether it
 * failed. */
SYMWIN_DEVICE void sw_raw_take_chunk(const struct sw_kernel_args &args, sw_call &call,
                                     const sw_pair_item &item, uint64_t first, uint64_t chunk)
{
    const uint64_t number = first + chunk;
    sw_raw_arrival arrival = {number};

    if (threadIdx.x == 0) {
        if (chunk == 0)
            sw_pair_take_header(args, call, item, number);
        if (!call.failed)
            (void)sw_pair_await(args, call, item, arrival);
    }
    call.failed = symwin_block_any(call.failed);
    if (call.failed)
        return;
    sw_raw_show_taken(args, call, item.peer, number);
    sw_raw_copy_out(item, chunk, sw_pair_slot(args, call, item.peer, args.rank, number));
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        sw_pair_give(args, call, item, number);
}

#endif
