/* The kernel for few sends and receives (pairs.cuh has the protocol), which small messages use.
 *
 *   items      SW_PAIR_FEW at most: one send and one receive of each peer at most, none large
 *   grid       any multiple of the number of items
 *
 * Each item has blocks of its own, which may wait for it: no item keeps another from progress. The
 * loads that a message needs first do not depend on each other. If one block has an item, nobody
 * counts blocks: only this block reads and writes the item's count of chunks.
 */
#ifndef SYMWIN_KERNELS_PAIRS_FEW_CUH
#define SYMWIN_KERNELS_PAIRS_FEW_CUH

#include "pairs.cuh"

/* A thread among those of an item's blocks: it has entries index, index + step, ... of the message.
 */
struct sw_few_thread {
    uint32_t index, step;
    uint64_t before; /* chunks of the pair before the message */
};

/* The last one, which has an entry only of long messages. */
SYMWIN_DEVICE bool sw_few_has_header(const sw_few_thread &thread)
{
    return thread.index == thread.step - 1;
}

SYMWIN_DEVICE sw_part sw_few_part(const sw_pair_item &item)
{
    return sw_part_at<sw_pair_wire>(item.address, item.bytes, 0, (uint32_t)((item.bytes + 7) / 8));
}

SYMWIN_DEVICE void sw_few_send(const struct sw_few_args &args, sw_call &call,
                               const sw_pair_item &item, const sw_few_thread &thread)
{
    const struct sw_kernel_args &of = args.call;
    const sw_part part = sw_few_part(item);
    const uint32_t entries = (uint32_t)((item.bytes + 7) / 8);
    const uint32_t in_slot = (uint32_t)(sw_pair_payload(of) / 8);
    const uint64_t ended = symwin_load_relaxed_u64(SW_PAIR_AT(of, call, of.rank, item.peer, ended));
    uint64_t word = 0;

    if (thread.index < entries)
        sw_entry_load<sw_byte, sw_pair_wire>(part, thread.index, &word);
    if (sw_few_has_header(thread)) {
        sw_pair_room room = {thread.before + 1};

        if (room.number > ended + SW_PAIR_SLOTS && !sw_pair_await(of, call, item.peer, room))
            return;
        sw_pair_send_header(of, call, item, room.number);
    }
    SYMWIN_NO_UNROLL
    for (uint32_t i = thread.index; i < entries; i += thread.step) {
        const uint64_t now = word;
        sw_pair_room room = {thread.before + 1 + i / in_slot};

        if (room.number > ended + SW_PAIR_SLOTS && !sw_pair_await(of, call, item.peer, room))
            return;
        if (i + thread.step < entries)
            sw_entry_load<sw_byte, sw_pair_wire>(part, i + thread.step, &word);
        symwin_store_relaxed_v16(sw_pair_slot(of, call, of.rank, item.peer, room.number) +
                                     (uint64_t)(i % in_slot) * 16,
                                 sw_pair_encode(now, room.number));
    }
}

SYMWIN_DEVICE void sw_few_receive(const struct sw_few_args &args, sw_call &call,
                                  const sw_pair_item &item, const sw_few_thread &thread)
{
    const struct sw_kernel_args &of = args.call;
    const sw_part part = sw_few_part(item);
    const uint32_t entries = (uint32_t)((item.bytes + 7) / 8);
    const uint32_t in_slot = (uint32_t)(sw_pair_payload(of) / 8);

    if (sw_few_has_header(thread)) {
        sw_pair_tell_ended(of, call, item.peer, thread.before);
        sw_pair_take_header(of, call, item, thread.before + 1);
    }
    SYMWIN_NO_UNROLL
    for (uint32_t i = thread.index; i < entries && !call.failed; i += thread.step) {
        const uint64_t number = thread.before + 1 + i / in_slot;
        sw_pair_entry entry = {sw_pair_slot(of, call, item.peer, of.rank, number) +
                                   (uint64_t)(i % in_slot) * 16,
                               number,
                               {}};
        uint64_t word;

        if (!sw_pair_await(of, call, item.peer, entry))
            return;
        word = sw_pair_decode(entry.value);
        sw_entry_store<sw_byte, sw_pair_wire>(part, i, &word);
        symwin_store_relaxed_v16(entry.address, {0, 0});
    }
}

/* Where the chunks of an item's pair are counted. */
SYMWIN_DEVICE uint64_t sw_few_count(const struct sw_few_args &args, const sw_call &call,
                                    const sw_pair_item &item)
{
    const int32_t self = args.call.rank;

    return item.kind == SW_PAIR_SEND ? SW_PAIR_AT(args.call, call, self, item.peer, sent)
                                     : SW_PAIR_AT(args.call, call, self, item.peer, received);
}

/* By all threads of all blocks, if an item has several: the last one counts for all. */
SYMWIN_DEVICE void sw_few_end(const struct sw_few_args &args, const sw_call &call)
{
    const uint64_t arrived = SW_STATE_AT(call.state, arrived);
    __shared__ uint32_t others;

    if (threadIdx.x == 0)
        others = symwin_add_relaxed_u32(arrived, 1);
    __syncthreads();
    if (others != gridDim.x - 1)
        return;
    if (threadIdx.x == 0)
        symwin_store_relaxed_u32(arrived, 0);
    if (threadIdx.x < args.items) {
        const sw_pair_item &item = args.item[threadIdx.x];
        const uint64_t count = sw_few_count(args, call, item);

        symwin_store_relaxed_u64(count, symwin_load_relaxed_u64(count) + item.chunks);
    }
}

SYMWIN_DEVICE void sw_few_run(const struct sw_few_args &args)
{
    const uint32_t parts = gridDim.x / args.items;
    const sw_pair_item &item = args.item[blockIdx.x % args.items];
    sw_call call = sw_call_begin(args.call);
    const uint64_t count = sw_few_count(args, call, item);
    const sw_few_thread thread = {blockIdx.x / args.items * blockDim.x + threadIdx.x,
                                  parts * blockDim.x, symwin_load_relaxed_u64(count)};

    if (!call.failed && item.kind == SW_PAIR_SEND)
        sw_few_send(args, call, item, thread);
    else if (!call.failed)
        sw_few_receive(args, call, item, thread);
    if (call.failed)
        sw_call_report(args.call, call.epoch);
    __syncthreads(); /* all threads have read the count */
    if (parts > 1)
        sw_few_end(args, call);
    else if (threadIdx.x == 0)
        symwin_store_relaxed_u64(count, thread.before + item.chunks);
    sw_call_done(args.call);
}

#endif
