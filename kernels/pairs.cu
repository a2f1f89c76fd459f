/* Sends and receives: bytes from one rank to another, for a table of them (pair_layout.h), in any
 * number and of any length. pairs.cuh has the protocol.
 *
 * Progress. Block b handles the chunks c of item i with (c + i) mod blocks = b, of each item in
 * order, of all items in turn. It begins a chunk only if it can end it: a send if the slot is free,
 * a receive if the first entry is there, whose sender's block sends the rest without waiting (the
 * header of a large message is no such entry, since its sender waits after it), or the number of a
 * chunk without flags, all of which is there then. Otherwise it goes
 * on to its next item. With one item left it may wait. So a chunk waits only for chunks of earlier
 * numbers in its pair, and for the other rank's kernel.
 */
#include "pairs_few.cuh"
#include "pairs_raw.cuh"

/* What a block does next with an item. */
enum sw_pair_way {
    SW_PAIR_ANNOUNCE, /* send: the header of a large message */
    SW_PAIR_ASK,      /* send: find out what the receiver offers */
    SW_PAIR_RING,     /* send or receive a chunk through the ring */
    SW_PAIR_STORE,    /* send: store into the buffer offered */
    SW_PAIR_NOTICE,   /* receive: the header of a message that comes without the ring */
    SW_PAIR_LAND,     /* receive: the chunks of such a message */
    SW_PAIR_HERE      /* copy */
};

/* A block's view of an item; in shared memory. */
struct sw_pair_state {
    uint64_t first; /* number of the message's first chunk */
    uint64_t chunk; /* the block's next chunk of the message; `chunks` or more: none */
    uint32_t way;
};

/* ---- waiting --------------------------------------------------------------------------------- */

/* Whether the block's next chunk of an item can be handled to its end. By any thread. */
SYMWIN_DEVICE bool sw_pair_is_ready(const struct sw_pair_args &args, const sw_call &call,
                                    const sw_pair_item &item, const sw_pair_state &state)
{
    const uint64_t number = state.first + state.chunk;
    const int32_t self = args.call.rank, peer = item.peer;
    sw_pair_offer offer = {state.first, {}, {}};
    sw_pair_landing landing = {};

    switch (state.way) {
    case SW_PAIR_ASK:
        return offer.look(args.call, call, peer);
    case SW_PAIR_STORE:
    case SW_PAIR_HERE:
        return true;
    case SW_PAIR_LAND:
        return landing.look(args.call, call, peer);
    case SW_PAIR_NOTICE:
        return sw_pair_is_there(
            symwin_load_relaxed_v16(sw_pair_header(args.call, call, peer, self, number)), number);
    default:
        break;
    }
    if (item.kind == SW_PAIR_SEND)
        return sw_pair_is_large(item) && state.way == SW_PAIR_RING
                   ? sw_raw_has_room(args.call, call, peer, number)
                   : sw_pair_has_room(args.call, call, peer, number);
    if (state.chunk == 0) {
        const symwin_v16 header = symwin_load_relaxed_v16(
            sw_pair_header(args.call, call, peer, self, number));

        /* That of a large message comes long before its entries, but says at once what differs. */
        if (!sw_pair_is_there(header, number))
            return false;
        if (!sw_pair_is_large(item) || sw_pair_decode(header) != item.says)
            return true;
    }
    if (sw_pair_is_large(item))
        return sw_raw_is_filled(args.call, call, peer, number);
    return sw_pair_is_there(
        symwin_load_relaxed_v16(sw_pair_slot(args.call, call, peer, self, number)), number);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The block's chunks of an item, from this rank's memory to offset `to`. */
SYMWIN_DEVICE void sw_pair_move(const sw_goal &goal, const sw_pair_item &item, uint64_t chunk,
                                uint64_t to)
{
    SYMWIN_NO_UNROLL
    for (; chunk < item.chunks; chunk += gridDim.x) {
        const uint64_t at = chunk * item.extent, left = item.bytes - at;

        sw_move_part(goal, sw_crew_of_block(), item.address + at, to + at,
                     left < item.extent ? left : item.extent);
    }
}

/* The block's chunks straight into the receiver's buffer. */
SYMWIN_DEVICE void sw_pair_store(const struct sw_pair_args &args, const sw_call &call,
                                 const sw_pair_item &item, const sw_pair_state &state)
{
    const uint64_t blocks = item.chunks < gridDim.x ? item.chunks : gridDim.x;
    sw_pair_offer offer = {state.first, {}, {}};

    (void)offer.look(args.call, call, item.peer); /* it is there */
    sw_pair_move(sw_pair_goal(args.call, call, item), item, state.chunk, offer.place.value());
    __syncthreads();
    if (threadIdx.x == 0)
        sw_pair_tell_landed(args.call, call, item, state.first, state.chunk == 0, (uint32_t)blocks);
}

/* ---- a block's turns ------------------------------------------------------------------------- */

/* By one thread. */
SYMWIN_DEVICE sw_pair_state sw_pair_begin(const struct sw_pair_args &args, const sw_call &call,
                                          const sw_pair_item &item, uint32_t i)
{
    const int32_t self = args.call.rank;
    const uint64_t blocks = gridDim.x, chunk = (blockIdx.x + blocks - i % blocks) % blocks;

    if (item.kind == SW_PAIR_COPY)
        return {0, chunk, SW_PAIR_HERE};
    if (item.kind == SW_PAIR_SEND) {
        const uint64_t first = symwin_load_relaxed_u64(
                                   SW_PAIR_AT(args.call, call, self, item.peer, sent)) +
                               item.before + 1;

        if (!sw_pair_is_large(item))
            return {first, chunk, SW_PAIR_RING};
        if (chunk == 0)
            return {first, chunk, SW_PAIR_ANNOUNCE};
        return {first, chunk, SW_PAIR_ASK};
    }
    const uint64_t first = symwin_load_relaxed_u64(
                               SW_PAIR_AT(args.call, call, self, item.peer, received)) +
                           item.before + 1;

    if (chunk == 0 && !call.failed) {
        sw_pair_tell_ended(args.call, call, item.peer, first - 1 - item.before);
        if (sw_pair_is_large(item))
            sw_pair_make_offer(args.call, call, item, first);
        if (sw_pair_is_large(item) && !sw_pair_is_direct(item))
            sw_raw_tell_cleared(args.call, call, item.peer, first - 1 - item.before);
    }
    if (!sw_pair_is_direct(item))
        return {first, chunk, SW_PAIR_RING};
    return {first, chunk == 0 ? 0 : item.chunks, SW_PAIR_NOTICE};
}

/* A chunk through the ring. */
SYMWIN_DEVICE void sw_pair_pass(const struct sw_pair_args &args, sw_call &call,
                                const sw_pair_item &item, const sw_pair_state &state)
{
    const bool sends = item.kind == SW_PAIR_SEND;

    if (sw_pair_is_large(item)) {
        if (sends)
            sw_raw_send_chunk(args.call, call, item, state.first, state.chunk);
        else
            sw_raw_take_chunk(args.call, call, item, state.first, state.chunk);
    } else if (sends) {
        if (threadIdx.x == 0 && state.chunk == 0)
            sw_pair_send_header(args.call, call, item, state.first);
        sw_pair_send_chunk(args.call, call, item, state.first, state.chunk);
    } else {
        sw_pair_take_chunk(args.call, call, item, state.first, state.chunk);
    }
}

/* Handles what is ready of an item. Writes what comes next to *next, which only one thread uses. */
SYMWIN_DEVICE void sw_pair_handle(const struct sw_pair_args &args, sw_call &call,
                                  const sw_pair_item &item, const sw_pair_state &state,
                                  sw_pair_state *next)
{
    const bool one = threadIdx.x == 0;
    sw_pair_offer offer = {state.first, {}, {}};

    *next = state;
    switch (state.way) {
    case SW_PAIR_ANNOUNCE:
        if (one)
            sw_pair_send_header(args.call, call, item, state.first);
        next->way = SW_PAIR_ASK;
        break;
    case SW_PAIR_ASK:
        if (!one)
            break;
        (void)offer.look(args.call, call, item.peer); /* it is there */
        sw_pair_compare(call, item, offer.says.value());
        next->way = offer.place.value() == SW_NO_OFFSET ? SW_PAIR_RING : SW_PAIR_STORE;
        if (call.failed)
            next->chunk = item.chunks;
        break;
    case SW_PAIR_STORE:
        sw_pair_store(args, call, item, state);
        next->chunk = item.chunks;
        break;
    case SW_PAIR_NOTICE:
        if (one) {
            sw_pair_take_header(args.call, call, item, state.first);
            sw_pair_give(args.call, call, item, state.first);
        }
        next->way = SW_PAIR_LAND;
        break;
    case SW_PAIR_LAND:
        next->chunk = item.chunks;
        break;
    case SW_PAIR_HERE:
        sw_pair_move(sw_goal_here(), item, state.chunk, item.place);
        next->chunk = item.chunks;
        break;
    default:
        sw_pair_pass(args, call, item, state);
        next->chunk += gridDim.x;
    }
}

/* After a turn in which nothing was ready. `open`: the first item that has not ended. */
SYMWIN_DEVICE void sw_pair_wait(const struct sw_pair_args &args, sw_call &call, sw_wait &wait,
                                const sw_pair_state *states, const sw_pair_item &open)
{
    if (!sw_wait_turn(wait))
        return;
    if (threadIdx.x == 0)
        sw_pair_say_awaits(call, open);
    if (!sw_wait_look(args.call, call, wait, open.peer))
        return;
    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < args.items; i += blockDim.x) {
        const sw_pair_item &item = args.item[i];

        if (states[i].chunk < item.chunks && item.kind != SW_PAIR_COPY &&
            sw_pair_left(args.call, call, item.peer) &&
            !sw_pair_is_ready(args, call, item, states[i]))
            sw_give_up(call, SW_KERNEL_LEFT, item.peer);
    }
}

/* The block's chunks of all items. All threads see the same states, and so take the same turns. */
SYMWIN_DEVICE void sw_pair_turns(const struct sw_pair_args &args, sw_call &call,
                                 sw_pair_state *states)
{
    sw_wait wait = {0, 0, 0};
    uint32_t open = args.items;

    SYMWIN_NO_UNROLL
    while (open > 0 && !call.failed) {
        const bool alone = open == 1;
        bool moved = false;
        uint32_t first = 0;

        open = 0;
        SYMWIN_NO_UNROLL
        for (uint32_t i = 0; i < args.items; i++) {
            const sw_pair_item &item = args.item[i];
            const sw_pair_state state = states[i];
            const bool waits = alone && item.kind == SW_PAIR_RECEIVE && state.way == SW_PAIR_RING;
            sw_pair_state next;

            if (state.chunk >= item.chunks)
                continue;
            if (open++ == 0)
                first = i;
            if (!waits &&
                !symwin_block_any(threadIdx.x == 0 && sw_pair_is_ready(args, call, item, state)))
                continue;
            sw_pair_handle(args, call, item, state, &next);
            __syncthreads();
            if (threadIdx.x == 0)
                states[i] = next;
            __syncthreads();
            moved = true;
        }
        if (moved)
            wait = {0, 0, 0};
        else if (open > 0)
            sw_pair_wait(args, call, wait, states, args.item[first]);
        call.failed = symwin_block_any(call.failed);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* By the last block: counts the chunks of all items. */
SYMWIN_DEVICE void sw_pair_count(const struct sw_pair_args &args, const sw_call &call,
                                 const sw_pair_state *states)
{
    const int32_t self = args.call.rank;

    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < args.items; i += blockDim.x) {
        const sw_pair_item &item = args.item[i];
        const uint64_t first = states[i].first;

        if (!item.last)
            continue;
        if (item.kind == SW_PAIR_SEND) {
            const bool direct = sw_pair_went(args.call, call, item, first);

            symwin_store_relaxed_u64(SW_PAIR_AT(args.call, call, self, item.peer, sent),
                                     first - 1 + (direct ? 1 : item.chunks));
        } else if (item.kind == SW_PAIR_RECEIVE) {
            const bool direct = sw_pair_is_direct(item);

            if (direct)
                sw_pair_count_direct(args.call, call, item);
            symwin_store_relaxed_u64(SW_PAIR_AT(args.call, call, self, item.peer, received),
                                     first - 1 + (direct ? 1 : item.chunks));
        }
    }
}

/* Other blocks need to have ordered their words of large messages only. */
SYMWIN_DEVICE void sw_pair_end(const struct sw_pair_args &args, sw_call &call,
                               const sw_pair_state *states)
{
    const uint64_t arrived = SW_STATE_AT(call.state, arrived);
    __shared__ uint32_t before;

    if (call.failed)
        sw_call_report(args.call, call.epoch);
    if (threadIdx.x == 0)
        before = args.large ? symwin_add_acq_rel_u32(arrived, 1)
                            : symwin_add_relaxed_u32(arrived, 1);
    __syncthreads();
    if (before == gridDim.x - 1) {
        if (threadIdx.x == 0)
            symwin_store_relaxed_u32(arrived, 0);
        if (!symwin_block_any(call.failed || sw_has_failed(call))) {
            if (threadIdx.x == 0)
                sw_pair_awaits_none(call);
            sw_pair_count(args, call, states);
        }
    }
    sw_call_done(args.call);
}

SYMWIN_DEVICE void sw_pair_run(const struct sw_pair_args &args)
{
    __shared__ sw_pair_state states[SW_PAIR_ITEMS];
    sw_call call = sw_call_begin(args.call);

    call.failed = symwin_block_any(call.failed);
    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < args.items; i += blockDim.x)
        states[i] = sw_pair_begin(args, call, args.item[i], i);
    __syncthreads();
    sw_pair_turns(args, call, states);
    sw_pair_end(args, call, states);
}

#define SW_RUN_pair(args) sw_pair_run(args)
#define SW_RUN_few(args) sw_few_run(args)
#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        SW_RUN_##family(args);                                                                     \
    }
SW_KERNEL_LIST_PAIRS(SW_DEFINE)
#undef SW_DEFINE
