/* What the kernels of sends and receives share: the protocol, its words, and its waits.
 *
 *   in, out    this rank's device memory, aligned to an element
 *   ring       SW_PAIR_SLOTS slots for each source (kernel_args.h)
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags, because the bytes may have any value; of large messages 16
 *              bytes without (pairs_raw.cuh)
 *   types      none: bytes are moved
 *
 * Numbers. Messages from r to p consist of chunks, which have the numbers 1, 2, ... for the life of
 * the communicator; r counts them in `sent`, p in `received`. A kernel adds its own when all its
 * threads have read the counts. The flag of an entry is the number of its chunk, in 31 bits.
 *
 * Ring. Chunk s lies in slot s mod SW_PAIR_SLOTS at p, and the slot's header has count and type of
 * the message that begins with it. An entry that is not in transit is zero: p loads the entries
 * with the chunk's flag and stores zeros. r sends s when it knows that s - SW_PAIR_SLOTS is empty,
 * so entries meet nothing, and since a chunk has its own flag, no thread takes another's. r learns
 * it in two ways:
 *
 *   ended      each kernel of p that receives from r says first, to which number p had taken all
 *              chunks before. Their zeros were stored by kernels that have ended, so they are in
 *              p's memory before r's next entry can come there, and no fence is needed
 *   taken      the kernel for any number of items also says when it has taken a chunk: one thread
 *              writes s to `taken` at r, with release, after its block's zeros
 *
 * What a chunk without flags left in its slot is such a zero too, and so are the loads of it: flags
 * that follow rely on nothing else.
 *
 * So a send waits at most until p has begun to receive that message or an earlier one of the last
 * SW_PAIR_SLOTS chunks.
 *
 * Large messages have more than SW_PAIR_EAGER chunks. r sends the first one's header, and waits
 * until p has offered its buffer to that chunk: words with the chunk's number, four with the
 * buffer's offset, four with count and type, which r compares. Without an offset the chunks go
 * through the ring (pairs_raw.cuh). With an offset, the blocks of r store their parts there, and
 * add SW_LANDED in all to `landed` at p, with release; only the first chunk has a number and a
 * slot. p waits for the header and for SW_LANDED. An offer stays until the message has been
 * received: no item of the same peer and kind follows it in a kernel. All blocks of r that read the
 * offer have done so by then: those that have parts of the message, and in the kernel for few the
 * others too, for which the last chunk or SW_LANDED waits. What p did with its buffer before, it
 * did in kernels that have ended, so the offer needs no fence. Nobody empties it. Each of its words
 * has 48 bits of the number, so an old one looks new after 2^48 chunks without a large message: at
 * ten million a second that takes 325 days.
 */
#ifndef SYMWIN_KERNELS_PAIRS_CUH
#define SYMWIN_KERNELS_PAIRS_CUH

#include "bytes.cuh"
#include "pair_layout.h"
#include "stages.cuh"

typedef sw_wire_flags sw_pair_wire;

/* Entries that a thread has in flight. */
enum { SW_PAIR_BATCH = 4 };

/* ---- places ---------------------------------------------------------------------------------- */

/* A member of what rank `at` has with rank `with`. */
#define SW_PAIR_AT(args, call, at, with, member)                                                   \
    sw_state_address((args), call, at,                                                             \
                     SW_STATE_PAIR((args).nranks, (args).slot_bytes, with) +                       \
                         offsetof(struct sw_pair, member))

SYMWIN_DEVICE uint64_t sw_pair_payload(const struct sw_kernel_args &args)
{
    return SW_PAIR_SLOT_BYTES(args.slot_bytes) / 2;
}

/* The slot of a chunk that `from` sends to `to`, and its header. */
SYMWIN_DEVICE uint64_t sw_pair_slot(const struct sw_kernel_args &args, const sw_call &call,
                                    int32_t from, int32_t to, uint64_t number)
{
    return sw_state_address(
        args, call, to, SW_STATE_RING(args.nranks, args.slot_bytes, from, number % SW_PAIR_SLOTS));
}

SYMWIN_DEVICE uint64_t sw_pair_header(const struct sw_kernel_args &args, const sw_call &call,
                                      int32_t from, int32_t to, uint64_t number)
{
    return SW_PAIR_AT(args, call, to, from, header) + number % SW_PAIR_SLOTS * 16;
}

SYMWIN_DEVICE bool sw_pair_is_large(const sw_pair_item &item)
{
    return item.chunks > SW_PAIR_EAGER;
}

/* ---- entries --------------------------------------------------------------------------------- */

SYMWIN_DEVICE uint64_t sw_pair_flag(uint64_t number)
{
    return SW_PAIR_FLAG(number) << 32;
}

SYMWIN_DEVICE symwin_v16 sw_pair_encode(uint64_t word, uint64_t number)
{
    const uint64_t flag = sw_pair_flag(number);

    return {(word & 0xffffffffu) | flag, word >> 32 | flag};
}

SYMWIN_DEVICE uint64_t sw_pair_decode(const symwin_v16 &entry)
{
    return (entry.lo & 0xffffffffu) | entry.hi << 32;
}

SYMWIN_DEVICE bool sw_pair_is_there(const symwin_v16 &entry, uint64_t number)
{
    const uint64_t flag = sw_pair_flag(number) >> 32;

    return entry.lo >> 32 == flag && entry.hi >> 32 == flag;
}

/* Of entries and numbers that order the ranks' other accesses too: relaxed on a GPU, where this
 * rank's stream orders its own. The emulated driver orders them, for sanitizers. */
SYMWIN_DEVICE void sw_pair_store_ordered(uint64_t address, const symwin_v16 &entry)
{
    if (!SYMWIN_EMULATED) {
        symwin_store_relaxed_v16(address, entry);
        return;
    }
    symwin_store_release_u64(address, entry.lo);
    symwin_store_release_u64(address + 8, entry.hi);
}

SYMWIN_DEVICE symwin_v16 sw_pair_load_ordered(uint64_t address)
{
    if (!SYMWIN_EMULATED)
        return symwin_load_relaxed_v16(address);
    return {symwin_load_acquire_u64(address), symwin_load_acquire_u64(address + 8)};
}

SYMWIN_DEVICE void sw_pair_store_number(uint64_t address, uint64_t number)
{
    SYMWIN_EMULATED ? symwin_store_release_u64(address, number)
                    : symwin_store_relaxed_u64(address, number);
}

SYMWIN_DEVICE uint64_t sw_pair_load_number(uint64_t address)
{
    return SYMWIN_EMULATED ? symwin_load_acquire_u64(address) : symwin_load_relaxed_u64(address);
}

SYMWIN_DEVICE bool sw_pair_left(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
{
    return symwin_load_acquire_u32(SW_STATE_AT(sw_state_address(args, call, p, 0), left)) != 0;
}

/* What a thread waits for: look() is true when it is there. First an entry. */
struct sw_pair_entry {
    uint64_t address, number;
    symwin_v16 value;

    SYMWIN_MEMBER bool look(const struct sw_kernel_args &, const sw_call &, int32_t)
    {
        value = symwin_load_relaxed_v16(address);
        return sw_pair_is_there(value, number);
    }
};

/* Half of an offer: four words with 16 bits of `value` each, below those of the number. */
struct sw_pair_offered {
    symwin_v16 entry[2];

    SYMWIN_DEVICE uint64_t tag_of(uint64_t number)
    {
        return number << 16;
    }

    SYMWIN_DEVICE sw_pair_offered of(uint64_t value, uint64_t number)
    {
        const uint64_t tag = tag_of(number);

        return {{{tag | (value & 0xffffu), tag | (value >> 16 & 0xffffu)},
                 {tag | (value >> 32 & 0xffffu), tag | value >> 48}}};
    }

    SYMWIN_MEMBER bool is_there(uint64_t number) const
    {
        const uint64_t tag = tag_of(number);
        const uint64_t differs = (entry[0].lo ^ tag) | (entry[0].hi ^ tag) | (entry[1].lo ^ tag) |
                                 (entry[1].hi ^ tag);

        return differs >> 16 == 0;
    }

    SYMWIN_MEMBER uint64_t value(void) const
    {
        return (entry[0].lo & 0xffffu) | (entry[0].hi & 0xffffu) << 16 |
               (entry[1].lo & 0xffffu) << 32 | entry[1].hi << 48;
    }
};

/* The offer of rank p to the large message of this rank that begins with chunk `number`. */
struct sw_pair_offer {
    uint64_t number;
    sw_pair_offered place, says;

    SYMWIN_MEMBER bool look(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
    {
        const uint64_t at = SW_PAIR_AT(args, call, args.rank, p, offer);

        for (int i = 0; i < 2; i++) {
            place.entry[i] = sw_pair_load_ordered(at + i * 16);
            says.entry[i] = sw_pair_load_ordered(at + 32 + i * 16);
        }
        return place.is_there(number) && says.is_there(number);
    }
};

/* What a large message from rank p has brought into the buffer that it was offered: all. */
struct sw_pair_landing {
    SYMWIN_MEMBER bool look(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
    {
        return symwin_load_acquire_u32(SW_PAIR_AT(args, call, args.rank, p, landed)) -
                   symwin_load_relaxed_u32(SW_PAIR_AT(args, call, args.rank, p, direct)) ==
               SW_LANDED;
    }
};

/* The slot of chunk `number`, which this rank sends to p, is empty. */
SYMWIN_DEVICE bool sw_pair_has_room(const struct sw_kernel_args &args, const sw_call &call,
                                    int32_t p, uint64_t number)
{
    return number <= SW_PAIR_SLOTS ||
           symwin_load_acquire_u64(SW_PAIR_AT(args, call, args.rank, p, taken) +
                                   number % SW_PAIR_SLOTS * 8) >= number - SW_PAIR_SLOTS ||
           sw_pair_load_number(SW_PAIR_AT(args, call, args.rank, p, ended)) >=
               number - SW_PAIR_SLOTS;
}

struct sw_pair_room {
    uint64_t number;

    SYMWIN_MEMBER bool look(const struct sw_kernel_args &args, const sw_call &call, int32_t p)
    {
        return sw_pair_has_room(args, call, p, number);
    }
};

/* Says that this rank waits for the item's peer: to other ranks, and to the thread that reports. */
SYMWIN_DEVICE void sw_pair_say_awaits(const sw_call &call, const sw_pair_item &item)
{
    static_assert(offsetof(struct sw_comm_state, awaits) % 8 == 0 &&
                      offsetof(struct sw_comm_state, awaits_message) ==
                          offsetof(struct sw_comm_state, awaits) + 4,
                  "written in one access");
    symwin_store_relaxed_u64(SW_STATE_AT(call.state, awaits),
                             (uint64_t)SW_PAIR_AWAITS(item) << 32 | ((uint32_t)item.peer + 1));
}

SYMWIN_DEVICE void sw_pair_awaits_none(const sw_call &call)
{
    symwin_store_relaxed_u64(SW_STATE_AT(call.state, awaits), 0);
}

/* Waits for something of the item's peer. False: the wait was given up. */
template <class What>
SYMWIN_DEVICE bool sw_pair_await(const struct sw_kernel_args &args, sw_call &call,
                                 const sw_pair_item &item, What &what)
{
    const int32_t p = item.peer;
    sw_wait wait = {0, 0, 0};
    bool left = false;

    for (;;) {
        if (what.look(args, call, p))
            break;
        if (left) {
            sw_give_up(call, SW_KERNEL_LEFT, p);
            return false;
        }
        if (!sw_wait_turn(wait))
            continue;
        sw_pair_say_awaits(call, item);
        if (!sw_wait_look(args, call, wait, p))
            return false;
        left = sw_pair_left(args, call, p);
    }
    if (wait.since != 0)
        sw_pair_awaits_none(call);
    return true;
}

/* Takes an entry out of the ring; its `value` is what was loaded, or zeros. False: the wait was
 * given up. */
SYMWIN_DEVICE bool sw_pair_take_entry(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_pair_item &item, sw_pair_entry entry, uint64_t *word)
{
    if (!sw_pair_is_there(entry.value, entry.number) && !sw_pair_await(args, call, item, entry))
        return false;
    *word = sw_pair_decode(entry.value);
    symwin_store_relaxed_v16(entry.address, {0, 0});
    return true;
}

/* ---- headers --------------------------------------------------------------------------------- */

SYMWIN_DEVICE void sw_pair_send_header(const struct sw_kernel_args &args, const sw_call &call,
                                       const sw_pair_item &item, uint64_t number)
{
    symwin_store_relaxed_v16(sw_pair_header(args, call, args.rank, item.peer, number),
                             sw_pair_encode(item.says, number));
}

/* Compares count and type of the two ranks of a message. By one thread. */
SYMWIN_DEVICE void sw_pair_compare(sw_call &call, const sw_pair_item &item, uint64_t theirs)
{
    const bool receives = item.kind == SW_PAIR_RECEIVE;
    const uint64_t sent = receives ? theirs : item.says, received = receives ? item.says : theirs;

    if (SW_PAIR_TYPE(sent) != SW_PAIR_TYPE(received))
        sw_counts_differ(call, SW_KERNEL_TYPES, item.peer, SW_PAIR_TYPE(sent),
                         SW_PAIR_TYPE(received), receives);
    else if (sent != received)
        sw_counts_differ(call, SW_KERNEL_COUNTS, item.peer, SW_PAIR_COUNT(sent),
                         SW_PAIR_COUNT(received), receives);
}

/* The header of a message's first chunk. By one thread. */
SYMWIN_DEVICE void sw_pair_take_header(const struct sw_kernel_args &args, sw_call &call,
                                       const sw_pair_item &item, uint64_t number)
{
    uint64_t says;

    if (sw_pair_take_entry(args, call, item,
                           {sw_pair_header(args, call, item.peer, args.rank, number), number, {}},
                           &says))
        sw_pair_compare(call, item, says);
}

/* ---- chunks through the ring ----------------------------------------------------------------- */

/* Tells rank p that all chunks up to `number` were taken before this kernel. By one thread, before
 * it waits. */
SYMWIN_DEVICE void sw_pair_tell_ended(const struct sw_kernel_args &args, const sw_call &call,
                                      int32_t p, uint64_t number)
{
    sw_pair_store_number(SW_PAIR_AT(args, call, p, args.rank, ended), number);
}

SYMWIN_DEVICE sw_part sw_pair_part(const struct sw_kernel_args &args, const sw_pair_item &item,
                                   uint64_t chunk)
{
    const uint32_t extent = (uint32_t)(sw_pair_payload(args) / 8);

    return sw_part_at<sw_pair_wire>(item.address, item.bytes, chunk * extent, extent);
}

/* By a block, when the slot is empty; without the header. `first` is the number of the message's
 * first chunk. */
SYMWIN_DEVICE void sw_pair_send_chunk(const struct sw_kernel_args &args, const sw_call &call,
                                      const sw_pair_item &item, uint64_t first, uint64_t chunk)
{
    const uint64_t number = first + chunk;
    const uint64_t to = sw_pair_slot(args, call, args.rank, item.peer, number);
    const sw_part part = sw_pair_part(args, item, chunk);
    const uint32_t entries = (uint32_t)((part.message.bytes + 7) / 8);

    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < entries; i += SW_PAIR_BATCH * blockDim.x) {
        uint64_t word[SW_PAIR_BATCH];

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * blockDim.x < entries)
                sw_entry_load<sw_byte, sw_pair_wire>(part, i + j * blockDim.x, &word[j]);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * blockDim.x < entries)
                symwin_store_relaxed_v16(to + (uint64_t)(i + j * blockDim.x) * 16,
                                         sw_pair_encode(word[j], number));
    }
}

/* Tells the sender that a chunk was taken; after a barrier of the block. By one thread. */
SYMWIN_DEVICE void sw_pair_give(const struct sw_kernel_args &args, const sw_call &call,
                                const sw_pair_item &item, uint64_t number)
{
    symwin_store_release_u64(
        SW_PAIR_AT(args, call, item.peer, args.rank, taken) + number % SW_PAIR_SLOTS * 8, number);
}

/* By a block, with the header if it is the message's first chunk. */
SYMWIN_DEVICE void sw_pair_take_chunk(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_pair_item &item, uint64_t first, uint64_t chunk)
{
    const uint64_t number = first + chunk;
    const uint64_t from = sw_pair_slot(args, call, item.peer, args.rank, number);
    const sw_part part = sw_pair_part(args, item, chunk);
    const uint32_t entries = (uint32_t)((part.message.bytes + 7) / 8);

    if (chunk == 0 && threadIdx.x == 0)
        sw_pair_take_header(args, call, item, number);
    SYMWIN_NO_UNROLL
    for (uint32_t i = threadIdx.x; i < entries && !call.failed; i += SW_PAIR_BATCH * blockDim.x) {
        symwin_v16 value[SW_PAIR_BATCH];

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++)
            if (i + j * blockDim.x < entries)
                value[j] = symwin_load_relaxed_v16(from + (uint64_t)(i + j * blockDim.x) * 16);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_PAIR_BATCH; j++) {
            const uint32_t at = i + j * blockDim.x;
            const sw_pair_entry entry = {from + (uint64_t)at * 16, number, value[j]};
            uint64_t word;

            if (at >= entries || !sw_pair_take_entry(args, call, item, entry, &word))
                break;
            sw_entry_store<sw_byte, sw_pair_wire>(part, at, &word);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && !call.failed)
        sw_pair_give(args, call, item, number);
}

/* ---- large messages -------------------------------------------------------------------------- */

/* Offers the buffer to a large message. By one thread. */
SYMWIN_DEVICE void sw_pair_make_offer(const struct sw_kernel_args &args, const sw_call &call,
                                      const sw_pair_item &item, uint64_t first)
{
    const uint64_t at = SW_PAIR_AT(args, call, item.peer, args.rank, offer);
    const sw_pair_offered place = sw_pair_offered::of(item.place, first);
    const sw_pair_offered says = sw_pair_offered::of(item.says, first);

    for (int i = 0; i < 2; i++) {
        sw_pair_store_ordered(at + i * 16, place.entry[i]);
        sw_pair_store_ordered(at + 32 + i * 16, says.entry[i]);
    }
}

/* Where bytes for the item's peer go. */
SYMWIN_DEVICE sw_goal sw_pair_goal(const struct sw_kernel_args &args, const sw_call &call,
                                   const sw_pair_item &item)
{
    const int32_t step = item.peer - args.rank + (item.peer < args.rank ? args.nranks : 0);

    return {call.peers, step, step + 1, -1};
}

/* Tells the receiver that a block has stored what it has of the message. By one thread of each of
 * `blocks` blocks, one of them the first, after a barrier of the block. */
SYMWIN_DEVICE void sw_pair_tell_landed(const struct sw_kernel_args &args, const sw_call &call,
                                       const sw_pair_item &item, uint64_t first, bool is_first,
                                       uint32_t blocks)
{
    if (is_first)
        symwin_store_relaxed_u64(SW_PAIR_AT(args, call, args.rank, item.peer, way), first);
    symwin_add_system_u32(SW_PAIR_AT(args, call, item.peer, args.rank, landed),
                          SW_LANDED_BY(is_first, blocks));
}

/* Whether a large message that this rank sent went without the ring. */
SYMWIN_DEVICE bool sw_pair_went(const struct sw_kernel_args &args, const sw_call &call,
                                const sw_pair_item &item, uint64_t first)
{
    return sw_pair_is_large(item) &&
           symwin_load_relaxed_u64(SW_PAIR_AT(args, call, args.rank, item.peer, way)) == first;
}

SYMWIN_DEVICE bool sw_pair_is_direct(const sw_pair_item &item) /* of a receive */
{
    return sw_pair_is_large(item) && item.place != SW_NO_OFFSET;
}

/* Counts a message that came without the ring. By one thread. */
SYMWIN_DEVICE void sw_pair_count_direct(const struct sw_kernel_args &args, const sw_call &call,
                                        const sw_pair_item &item)
{
    const uint64_t at = SW_PAIR_AT(args, call, args.rank, item.peer, direct);

    symwin_store_relaxed_u32(at, symwin_load_relaxed_u32(at) + SW_LANDED);
}

#endif
