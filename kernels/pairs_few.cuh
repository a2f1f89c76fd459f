/* The kernel for few sends and receives (pairs.cuh has the protocol).
 *
 *   items      SW_PAIR_FEW at most: one send and one receive of each peer at most
 *   grid       any multiple of the number of items
 *
 * Each item has blocks of its own, its parts, which may wait for it: no item keeps another from
 * progress. The loads that a message needs first do not depend on each other. An item's blocks
 * count themselves in `come`, and the last one counts the message.
 */
#ifndef SYMWIN_KERNELS_PAIRS_FEW_CUH
#define SYMWIN_KERNELS_PAIRS_FEW_CUH

#include "pairs_raw.cuh"

/* The block of an item's blocks that this one is. */
struct sw_few_part {
    uint32_t part, parts;
};

/* A thread among those of an item's blocks: it has entries index, index + step, ... of a message
 * that is not large. */
struct sw_few_thread {
    uint32_t index, step;
    uint64_t before; /* chunks of the pair before the message */
    uint64_t ended;  /* to a send: those that its receiver says it had taken; room without a look */
    uint64_t word;   /* of a send: the thread's first entry, if it has one */
};

/* The last one, which has an entry only of long messages. */
SYMWIN_DEVICE bool sw_few_has_header(const sw_few_thread &thread)
{
    return thread.index == thread.step - 1;
}

SYMWIN_DEVICE uint32_t sw_few_entries(const sw_pair_item &item)
{
    return (uint32_t)((item.bytes + 7) / 8);
}

SYMWIN_DEVICE sw_part sw_few_all(const sw_pair_item &item)
{
    return sw_part_at<sw_pair_wire>(item.address, item.bytes, 0, sw_few_entries(item));
}

/* `words`: messages are whole words, aligned to a word. All else is in functions of its own: code
 * costs time even where it does not run, since each launch fetches it (pattern.cuh). */
template <bool words>
SYMWIN_DEVICE uint64_t sw_few_load(const sw_pair_item &item, uint32_t i)
{
    uint64_t word;

    if (words)
        return symwin_load_u64(item.address + (uint64_t)i * 8);
    sw_entry_load<sw_byte, sw_pair_wire>(sw_few_all(item), i, &word);
    return word;
}

template <bool words>
SYMWIN_DEVICE void sw_few_keep(const sw_pair_item &item, uint32_t i, uint64_t word)
{
    if (words)
        symwin_store_u64(item.address + (uint64_t)i * 8, word);
    else
        sw_entry_store<sw_byte, sw_pair_wire>(sw_few_all(item), i, &word);
}

/* The slot of entry `i` of a message that `from` sends to `to`. */
SYMWIN_DEVICE sw_pair_entry sw_few_entry(const struct sw_kernel_args &args, const sw_call &call,
                                         int32_t from, int32_t to, const sw_few_thread &thread,
                                         uint32_t i)
{
    const uint32_t in_slot = (uint32_t)(sw_pair_payload(args) / 8);
    const uint64_t number = thread.before + 1 + i / in_slot;

    return {sw_pair_slot(args, call, from, to, number) + (uint64_t)(i % in_slot) * 16, number, {}};
}

/* Waits until the slots of a message's first `chunks` chunks are empty. False: given up. */
SW_DEVICE_SLOW bool sw_few_await_room(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_pair_item &item, uint64_t before, uint64_t chunks)
{
    sw_pair_room room = {before + 1};

    SYMWIN_NO_UNROLL
    for (; room.number <= before + chunks; room.number++)
        if (!sw_pair_await(args, call, item, room))
            return false;
    return true;
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* Where the chunks of an item's pair are counted. */
SYMWIN_DEVICE uint64_t sw_few_count(const struct sw_kernel_args &args, const sw_call &call,
                                    const sw_pair_item &item)
{
    return item.kind == SW_PAIR_SEND ? SW_PAIR_AT(args, call, args.rank, item.peer, sent)
                                     : SW_PAIR_AT(args, call, args.rank, item.peer, received);
}

/* Chunks of the pair before the message, and to a send what its receiver says it had taken. */
struct sw_few_counts {
    uint64_t before, ended;
};

/* By all threads, in one access: all warps of all blocks read these words. */
SYMWIN_DEVICE sw_few_counts sw_few_read(const struct sw_kernel_args &args, const sw_call &call,
                                        const sw_pair_item &item)
{
    const uint64_t at = sw_few_count(args, call, item);
    symwin_v16 words;

    static_assert(offsetof(struct sw_pair, ended) == offsetof(struct sw_pair, sent) + 8 &&
                      offsetof(struct sw_pair, sent) % 16 == 0 &&
                      offsetof(struct sw_pair, received) % 16 == 0 &&
                      sizeof(struct sw_pair) % 16 == 0,
                  "read in one access");
    if (SYMWIN_EMULATED) /* for sanitizers */
        return {symwin_load_relaxed_u64(at),
                item.kind == SW_PAIR_SEND ? symwin_load_acquire_u64(at + 8) : 0};
    words = symwin_load_relaxed_v16(at);
    return {words.lo, words.hi};
}

/* Counts the message as so many chunks: by the last of the item's blocks to come here. By one
 * thread of each, when all threads of its block have read the count, and before the wait for data:
 * after it, that would be time of the call. */
SYMWIN_DEVICE void sw_few_add(const struct sw_kernel_args &args, const sw_call &call,
                              const sw_pair_item &item, const sw_few_part &of, uint64_t before,
                              uint64_t chunks)
{
    const uint64_t come = SW_PAIR_AT(args, call, args.rank, item.peer, come) + item.kind * 4u;

    if (of.parts > 1) {
        if (symwin_add_relaxed_u32(come, 1) != of.parts - 1)
            return;
        symwin_store_relaxed_u32(come, 0);
    }
    symwin_store_relaxed_u64(sw_few_count(args, call, item), before + chunks);
}

/* ---- small messages -------------------------------------------------------------------------- */

SYMWIN_DEVICE void sw_few_put(const struct sw_kernel_args &args, const sw_call &call,
                              const sw_pair_item &item, const sw_few_thread &thread, uint32_t i,
                              uint64_t word)
{
    const sw_pair_entry entry = sw_few_entry(args, call, args.rank, item.peer, thread, i);

    symwin_store_relaxed_v16(entry.address, sw_pair_encode(word, entry.number));
}

/* What a thread has beyond its first entry; then what it receives. */
template <bool words>
SW_DEVICE_SLOW void sw_few_send_rest(const struct sw_kernel_args &args, const sw_call &call,
                                     const sw_pair_item &item, const sw_few_thread &thread)
{
    const uint32_t entries = sw_few_entries(item), step = thread.step;

    SYMWIN_NO_UNROLL
    for (uint32_t i = thread.index + step; i < entries; i += SW_PAIR_BATCH * step) {
        uint64_t word[SW_PAIR_BATCH] = {};

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * step < entries)
                word[j] = sw_few_load<words>(item, i + j * step);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * step < entries)
                sw_few_put(args, call, item, thread, i + j * step, word[j]);
    }
}

template <bool words>
SW_DEVICE_SLOW void sw_few_receive_rest(const struct sw_kernel_args &args, sw_call &call,
                                        const sw_pair_item &item, const sw_few_thread &thread)
{
    const uint32_t entries = sw_few_entries(item), step = thread.step;

    SYMWIN_NO_UNROLL
    for (uint32_t i = thread.index + step; i < entries; i += SW_PAIR_BATCH * step) {
        sw_pair_entry entry[SW_PAIR_BATCH];
        uint64_t word;

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++) {
            if (i + j * step >= entries)
                break;
            entry[j] = sw_few_entry(args, call, item.peer, args.rank, thread, i + j * step);
            entry[j].value = symwin_load_relaxed_v16(entry[j].address);
        }
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++) {
            if (i + j * step >= entries)
                break;
            if (!sw_pair_take_entry(args, call, item, entry[j], &word))
                return;
            sw_few_keep<words>(item, i + j * step, word);
        }
    }
}

/* A thread waits for room for all chunks before it stores an entry, and not again. A receiver's
 * block that has seen one entry of a chunk waits for the others; if one of them waited for room, it
 * could be for a chunk that this block has not taken yet, since blocks take chunks in any order. */
template <bool words>
SYMWIN_DEVICE void sw_few_send(const struct sw_kernel_args &args, sw_call &call,
                               const sw_pair_item &item, const sw_few_thread &thread)
{
    if (thread.before + item.chunks > thread.ended + SW_PAIR_SLOTS &&
        !sw_few_await_room(args, call, item, thread.before, item.chunks))
        return;
    if (sw_few_has_header(thread))
        sw_pair_send_header(args, call, item, thread.before + 1);
    if (thread.index < sw_few_entries(item))
        sw_few_put(args, call, item, thread, thread.index, thread.word);
    if (thread.index + thread.step < sw_few_entries(item))
        sw_few_send_rest<words>(args, call, item, thread);
}

template <bool words>
SYMWIN_DEVICE void sw_few_receive(const struct sw_kernel_args &args, sw_call &call,
                                  const sw_pair_item &item, const sw_few_thread &thread)
{
    if (sw_few_has_header(thread)) {
        sw_pair_tell_ended(args, call, item.peer, thread.before);
        sw_pair_take_header(args, call, item, thread.before + 1);
    }
    if (thread.index < sw_few_entries(item) && !call.failed) {
        uint64_t word;

        if (!sw_pair_take_entry(
                args, call, item,
                sw_few_entry(args, call, item.peer, args.rank, thread, thread.index), &word))
            return;
        sw_few_keep<words>(item, thread.index, word);
    }
    if (thread.index + thread.step < sw_few_entries(item) && !call.failed)
        sw_few_receive_rest<words>(args, call, item, thread);
}

/* ---- large messages -------------------------------------------------------------------------- */

/* All of the item's blocks have read the offer: the last one has counted the message. */
struct sw_few_counted {
    uint64_t count;

    SYMWIN_MEMBER bool look(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
    {
        return symwin_load_relaxed_u64(SW_PAIR_AT(args, call, args.rank, p, sent)) == count;
    }
};

/* Through the ring: the block's chunks, each when its slot is empty. The last chunk waits for the
 * blocks that have none: after it, another offer may come before they have read this one. */
SW_DEVICE_SLOW void sw_few_send_chunks(const struct sw_kernel_args &args, sw_call &call,
                                       const sw_pair_item &item, const sw_few_part &of,
                                       uint64_t first)
{
    SYMWIN_NO_UNROLL
    for (uint64_t chunk = of.part; chunk < item.chunks; chunk += of.parts) {
        sw_raw_room room = {first + chunk};
        sw_few_counted counted = {first + chunk};

        if (threadIdx.x == 0 && sw_pair_await(args, call, item, room) && chunk == item.chunks - 1)
            (void)sw_pair_await(args, call, item, counted);
        call.failed = symwin_block_any(call.failed);
        if (call.failed)
            return;
        sw_raw_send_chunk(args, call, item, first, chunk);
    }
}

/* Straight into the receiver's buffer, at offset `to`: the block's part of the bytes, which may be
 * none. */
SYMWIN_DEVICE void sw_few_store(const struct sw_kernel_args &args, const sw_call &call,
                                const sw_pair_item &item, const sw_few_part &of, uint64_t first,
                                uint64_t to)
{
    const uint64_t bytes = ((item.bytes + of.parts - 1) / of.parts + 127) & ~(uint64_t)127;
    const uint64_t at = of.part * bytes, left = at < item.bytes ? item.bytes - at : 0;

    sw_move_part(sw_pair_goal(args, call, item), sw_crew_of_block(), item.address + at, to + at,
                 left < bytes ? left : bytes);
    __syncthreads();
    if (threadIdx.x == 0)
        sw_pair_tell_landed(args, call, item, first, of.part == 0, of.parts);
}

/* Into a buffer in no window: the block's chunks. */
SW_DEVICE_SLOW void sw_few_take_chunks(const struct sw_kernel_args &args, sw_call &call,
                                       const sw_pair_item &item, const sw_few_part &of,
                                       uint64_t first)
{
    SYMWIN_NO_UNROLL
    for (uint64_t chunk = of.part; chunk < item.chunks && !call.failed; chunk += of.parts) {
        sw_raw_take_chunk(args, call, item, first, chunk);
    }
}

/* By all threads of a block. The last one sends the header while the first one looks for the offer.
 */
SYMWIN_DEVICE void sw_few_send_large(const struct sw_kernel_args &args, sw_call &call,
                                     const sw_pair_item &item, const sw_few_part &of,
                                     uint64_t before)
{
    const uint64_t first = before + 1;
    const bool last = threadIdx.x == blockDim.x - 1;
    __shared__ uint64_t to;

    if (last && of.part == 0 && sw_few_await_room(args, call, item, before, 1))
        sw_pair_send_header(args, call, item, first);
    if (threadIdx.x == 0 && !call.failed) {
        sw_pair_offer offer = {first, {}, {}};

        if (sw_pair_await(args, call, item, offer)) {
            sw_pair_compare(call, item, offer.says.value());
            to = offer.place.value();
        }
    }
    call.failed = symwin_block_any(call.failed);
    if (call.failed)
        return;
    if (last)
        sw_few_add(args, call, item, of, before, to == SW_NO_OFFSET ? item.chunks : 1);
    if (to == SW_NO_OFFSET)
        sw_few_send_chunks(args, call, item, of, first);
    else
        sw_few_store(args, call, item, of, first, to);
}

/* By all threads of a block. */
SYMWIN_DEVICE void sw_few_receive_large(const struct sw_kernel_args &args, sw_call &call,
                                        const sw_pair_item &item, const sw_few_part &of,
                                        uint64_t before)
{
    const bool direct = sw_pair_is_direct(item);
    sw_pair_landing landing = {};

    if (of.part == 0 && threadIdx.x == 0) {
        sw_pair_make_offer(args, call, item, before + 1);
        sw_pair_tell_ended(args, call, item.peer, before);
        if (!direct)
            sw_raw_tell_cleared(args, call, item.peer, before);
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        sw_few_add(args, call, item, of, before, direct ? 1 : item.chunks);
    if (!direct)
        sw_few_take_chunks(args, call, item, of, before + 1);
    if (!direct || of.part != 0 || threadIdx.x != 0)
        return;
    sw_pair_take_header(args, call, item, before + 1);
    if (!call.failed && sw_pair_await(args, call, item, landing))
        sw_pair_count_direct(args, call, item);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <bool words>
SYMWIN_DEVICE void sw_few_small(const struct sw_kernel_args &args, sw_call &call,
                                const sw_pair_item &item, const sw_few_part &of,
                                const sw_few_counts &counts)
{
    const bool sends = item.kind == SW_PAIR_SEND;
    const uint64_t before = counts.before;
    sw_few_thread thread = {of.part * blockDim.x + threadIdx.x, of.parts * blockDim.x, before,
                            counts.ended, 0};

    if (sends) { /* all under way together */
        if (thread.index < sw_few_entries(item))
            thread.word = sw_few_load<words>(item, thread.index);
        if (!call.failed)
            sw_few_send<words>(args, call, item, thread);
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        sw_few_add(args, call, item, of, before, item.chunks);
    if (!sends && !call.failed)
        sw_few_receive<words>(args, call, item, thread);
}

SW_DEVICE_SLOW void sw_few_bytes(const struct sw_kernel_args &args, sw_call &call,
                                 const sw_pair_item &item, const sw_few_part &of,
                                 const sw_few_counts &counts)
{
    sw_few_small<false>(args, call, item, of, counts);
}

SW_DEVICE_SLOW void sw_few_large(const struct sw_kernel_args &args, sw_call &call,
                                 const sw_pair_item &item, const sw_few_part &of, uint64_t before)
{
    call.failed = symwin_block_any(call.failed);
    if (!call.failed && item.kind == SW_PAIR_SEND)
        sw_few_send_large(args, call, item, of, before);
    else if (!call.failed)
        sw_few_receive_large(args, call, item, of, before);
}

SYMWIN_DEVICE void sw_few_run(const struct sw_few_args &args)
{
    const sw_few_part of = {blockIdx.x / args.items, gridDim.x / args.items};
    const sw_pair_item &item = args.item[blockIdx.x % args.items];
    sw_few_counts counts;
    sw_call call;

    sw_call_order();
    call = sw_call_read(args.call);
    counts = sw_few_read(args.call, call, item);
    if (sw_pair_is_large(item))
        sw_few_large(args.call, call, item, of, counts.before);
    else if (((item.address | item.bytes) & 7) != 0)
        sw_few_bytes(args.call, call, item, of, counts);
    else
        sw_few_small<true>(args.call, call, item, of, counts);
    if (call.failed)
        sw_call_report(args.call, call.epoch);
    sw_call_done(args.call);
}

#endif
