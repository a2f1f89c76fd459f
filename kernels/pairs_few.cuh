/* The kernel for few sends and receives (pairs.cuh has the protocol).
 *
 *   items      SW_PAIR_FEW at most: one send and one receive of each peer at most. A receive that
 *              is large has its buffer in a window
 *   grid       any multiple of the number of items
 *
 * Each item has blocks of its own, its parts, which may wait for it: no item keeps another from
 * progress. The loads that a message needs first do not depend on each other. If one block has an
 * item, nobody counts blocks: only this block reads and writes the item's counts.
 */
#ifndef SYMWIN_KERNELS_PAIRS_FEW_CUH
#define SYMWIN_KERNELS_PAIRS_FEW_CUH

#include "pairs.cuh"

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

SYMWIN_DEVICE sw_part sw_few_all(const sw_pair_item &item)
{
    return sw_part_at<sw_pair_wire>(item.address, item.bytes, 0, (uint32_t)((item.bytes + 7) / 8));
}

SYMWIN_DEVICE void sw_few_send(const struct sw_kernel_args &args, sw_call &call,
                               const sw_pair_item &item, const sw_few_thread &thread)
{
    const sw_part part = sw_few_all(item);
    const uint32_t entries = (uint32_t)((item.bytes + 7) / 8);
    const uint32_t in_slot = (uint32_t)(sw_pair_payload(args) / 8);
    const uint64_t known = thread.ended + SW_PAIR_SLOTS;
    uint64_t word = thread.word;

    if (sw_few_has_header(thread)) {
        sw_pair_room room = {thread.before + 1};

        if (room.number > known && !sw_pair_await(args, call, item.peer, room))
            return;
        sw_pair_send_header(args, call, item, room.number);
    }
    SYMWIN_NO_UNROLL
    for (uint32_t i = thread.index; i < entries; i += thread.step) {
        const uint64_t now = word;
        sw_pair_room room = {thread.before + 1 + i / in_slot};

        if (room.number > known && !sw_pair_await(args, call, item.peer, room))
            return;
        if (i + thread.step < entries)
            sw_entry_load<sw_byte, sw_pair_wire>(part, i + thread.step, &word);
        symwin_store_relaxed_v16(sw_pair_slot(args, call, args.rank, item.peer, room.number) +
                                     (uint64_t)(i % in_slot) * 16,
                                 sw_pair_encode(now, room.number));
    }
}

SYMWIN_DEVICE void sw_few_receive(const struct sw_kernel_args &args, sw_call &call,
                                  const sw_pair_item &item, const sw_few_thread &thread)
{
    const sw_part part = sw_few_all(item);
    const uint32_t entries = (uint32_t)((item.bytes + 7) / 8);
    const uint32_t in_slot = (uint32_t)(sw_pair_payload(args) / 8);

    if (sw_few_has_header(thread)) {
        sw_pair_tell_ended(args, call, item.peer, thread.before);
        sw_pair_take_header(args, call, item, thread.before + 1);
    }
    SYMWIN_NO_UNROLL
    for (uint32_t i = thread.index; i < entries && !call.failed; i += SW_PAIR_BATCH * thread.step) {
        sw_pair_entry entry[SW_PAIR_BATCH];

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++) {
            const uint32_t at = i + j * thread.step;
            const uint64_t number = thread.before + 1 + at / in_slot;

            if (at >= entries)
                break;
            entry[j] = {sw_pair_slot(args, call, item.peer, args.rank, number) +
                            (uint64_t)(at % in_slot) * 16,
                        number,
                        {}};
            entry[j].value = symwin_load_relaxed_v16(entry[j].address);
        }
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++) {
            const uint32_t at = i + j * thread.step;

            if (at >= entries || !sw_pair_take_entry(args, call, item, entry[j], part, at))
                break;
        }
    }
}

/* ---- large messages -------------------------------------------------------------------------- */

/* Through the ring: the block's chunks, each when its slot is empty. */
SYMWIN_DEVICE void sw_few_send_chunks(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_pair_item &item, const sw_few_part &of,
                                      uint64_t first)
{
    SYMWIN_NO_UNROLL
    for (uint64_t chunk = of.part; chunk < item.chunks; chunk += of.parts) {
        sw_pair_room room = {first + chunk};

        if (threadIdx.x == 0)
            (void)sw_pair_await(args, call, item.peer, room);
        call.failed = symwin_block_any(call.failed);
        if (call.failed)
            return;
        sw_pair_send_chunk(args, call, item, first, chunk);
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

/* By all threads of a block. */
SYMWIN_DEVICE void sw_few_send_large(const struct sw_kernel_args &args, sw_call &call,
                                     const sw_pair_item &item, const sw_few_part &of,
                                     uint64_t first)
{
    __shared__ uint64_t to;

    if (threadIdx.x == 0) {
        sw_pair_room room = {first};
        sw_pair_offer offer = {first, {}, {}};

        if (of.part == 0 && sw_pair_await(args, call, item.peer, room))
            sw_pair_send_header(args, call, item, first);
        if (!call.failed && sw_pair_await(args, call, item.peer, offer)) {
            sw_pair_compare(call, item, sw_pair_decode(offer.says));
            to = sw_pair_decode(offer.place);
        }
    }
    call.failed = symwin_block_any(call.failed);
    if (call.failed)
        return;
    if (to == SW_NO_OFFSET)
        sw_few_send_chunks(args, call, item, of, first);
    else
        sw_few_store(args, call, item, of, first, to);
}

/* By one thread. */
SYMWIN_DEVICE void sw_few_receive_large(const struct sw_kernel_args &args, sw_call &call,
                                        const sw_pair_item &item, uint64_t before)
{
    sw_pair_landing landing = {};

    sw_pair_make_offer(args, call, item, before + 1);
    sw_pair_tell_ended(args, call, item.peer, before);
    sw_pair_take_header(args, call, item, before + 1);
    if (!call.failed)
        (void)sw_pair_await(args, call, item.peer, landing);
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* Where the chunks of an item's pair are counted. */
SYMWIN_DEVICE uint64_t sw_few_count(const struct sw_kernel_args &args, const sw_call &call,
                                    const sw_pair_item &item)
{
    return item.kind == SW_PAIR_SEND ? SW_PAIR_AT(args, call, args.rank, item.peer, sent)
                                     : SW_PAIR_AT(args, call, args.rank, item.peer, received);
}

/* Counts the message. By one thread, when all blocks of the item have read the count. */
SYMWIN_DEVICE void sw_few_add(const struct sw_kernel_args &args, const sw_call &call,
                              const sw_pair_item &item, uint64_t before)
{
    const bool receives = item.kind == SW_PAIR_RECEIVE;
    const bool direct = receives ? sw_pair_is_direct(item)
                                 : sw_pair_went(args, call, item, before + 1);

    if (receives && direct)
        sw_pair_count_direct(args, call, item);
    symwin_store_relaxed_u64(sw_few_count(args, call, item), before + (direct ? 1 : item.chunks));
}

/* By all threads of all blocks, if an item has several: the last one counts for all. Of large
 * messages it has to see what other blocks wrote of them. */
SYMWIN_DEVICE void sw_few_end(const struct sw_few_args &args, const sw_call &call)
{
    const uint64_t arrived = SW_STATE_AT(call.state, arrived);
    __shared__ uint32_t others;

    if (threadIdx.x == 0)
        others = args.large ? symwin_add_acq_rel_u32(arrived, 1)
                            : symwin_add_relaxed_u32(arrived, 1);
    __syncthreads();
    if (others != gridDim.x - 1)
        return;
    if (threadIdx.x == 0)
        symwin_store_relaxed_u32(arrived, 0);
    if (threadIdx.x < args.items) {
        const sw_pair_item &item = args.item[threadIdx.x];
        const uint64_t count = sw_few_count(args.call, call, item);

        sw_few_add(args.call, call, item, symwin_load_relaxed_u64(count));
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* All that a thread loads before it knows anything. */
SYMWIN_DEVICE sw_few_thread sw_few_begin(const struct sw_kernel_args &args, const sw_call &call,
                                         const sw_pair_item &item, const sw_few_part &of)
{
    sw_few_thread thread = {of.part * blockDim.x + threadIdx.x, of.parts * blockDim.x, 0, 0, 0};

    thread.before = symwin_load_relaxed_u64(sw_few_count(args, call, item));
    if (item.kind != SW_PAIR_SEND || sw_pair_is_large(item))
        return thread;
    thread.ended = symwin_load_relaxed_u64(SW_PAIR_AT(args, call, args.rank, item.peer, ended));
    if (thread.index < (item.bytes + 7) / 8)
        sw_entry_load<sw_byte, sw_pair_wire>(sw_few_all(item), thread.index, &thread.word);
    return thread;
}

SYMWIN_DEVICE void sw_few_run(const struct sw_few_args &args)
{
    const sw_few_part of = {blockIdx.x / args.items, gridDim.x / args.items};
    const sw_pair_item &item = args.item[blockIdx.x % args.items];
    sw_call call = sw_call_begin(args.call);
    const sw_few_thread thread = sw_few_begin(args.call, call, item, of);
    const bool large = sw_pair_is_large(item);

    if (large) /* all threads of a block do the same */
        call.failed = symwin_block_any(call.failed);
    if (call.failed) {
    } else if (item.kind == SW_PAIR_SEND && large) {
        sw_few_send_large(args.call, call, item, of, thread.before + 1);
    } else if (item.kind == SW_PAIR_SEND) {
        sw_few_send(args.call, call, item, thread);
    } else if (!large) {
        sw_few_receive(args.call, call, item, thread);
    } else if (of.part == 0 && threadIdx.x == 0) {
        sw_few_receive_large(args.call, call, item, thread.before);
    }
    if (call.failed)
        sw_call_report(args.call, call.epoch);
    __syncthreads(); /* all threads have read the count */
    if (of.parts > 1)
        sw_few_end(args, call);
    else if (threadIdx.x == 0)
        sw_few_add(args.call, call, item, thread.before);
    sw_call_done(args.call);
}

#endif
