/* The parts of a call by table (table.cuh): what a table says of each, and how many rounds a pair's
 * part has. Large parts that lie in windows have none: ranks tell each other where they are.
 *
 * A part in a table in device memory that passes the end of its buffer, or has elements although
 * the buffer is NULL, is treated as empty, and reported.
 *
 * Large parts. A part of more than `large` bytes, which both ranks of its pair know, waits for its
 * receiver. With its counts the receiver writes its place into a record at the sender: an offset,
 * or that its output is in no window. With an offset the part has no rounds. The sender's blocks
 * share out its bytes and store them there, and each adds to a count at the receiver, with release,
 * when it has done so. Otherwise the part travels in rounds like others. The kernels for long calls
 * can do this, and those that read tables; a rank without large parts may launch another one.
 *   Before: nothing is stored unless the record has the sender's own epoch and digest, and as many
 *     bytes as the sender has. So the receiver is in the same call, and what its stream did with
 *     the output before has ended.
 *   After: block 0 of the receiver waits for the counts of its large parts.
 *   Records: each word carries the call's flag, so they need no order among themselves. They have
 *     two parities, as headers do: who writes one of call E + 2 has seen the reader's header of E +
 *     1, so the reader's kernel of E has ended. Its last block has emptied the record by then: else
 *     it would look new in the call of the same flag, 2^32 later.
 *   Counts: a block adds 1, block 0 what is left to SW_LANDED, so the receiver need not know the
 *     grid. They go on from call to call: a peer adds to that of the next call only when this rank
 *     has written a record of it, after this call.
 *   Circles: records are written before any wait. Their readers wait before they send or receive
 *     anything, and the counts need records only.
 *   In place, a rank stores where its peer's input may be. So an all-to-all whose buffers share
 *     memory offers no place. Such a rank stores to peers that offer one by entries, as it receives
 *     there, so a thread has loaded an entry before it overwrites it. In an all-gather, parts in
 *     place are no peer's.
 *
 * Large parts that are added. Their receivers load them, so it is the sender that says where a part
 * lies in its input, and its scalar if words are multiplied. With an offset the part has no rounds:
 * the receiver's blocks load it when they add, and each adds to a count at the sender when the
 * block's sums are complete. A receiver may have such parts and others in one sum.
 *   Before: nothing is loaded unless the record has the receiver's own epoch, digest and bytes.
 *     What the sender's stream did with the input before has ended when the record is written. The
 *     thread that acquires it, and the barrier of its block, order the loads after that.
 *   After: block 0 of the sender waits for the counts, so the input is free when the call has
 *     ended. A block adds to a count, with release, when its threads have added all that they load.
 *   Records and counts are the same words, of which a call uses each in one of the two ways.
 *   Circles: the counts need all rounds of their receiver. What these wait for depends on turns
 *     (table.cuh), none of which waits for a count.
 *   In place, a rank's result overwrites its own part, which no peer loads. Parts that are only
 *     read may overlap. A part that overlaps the result, which callers must not pass, gets no
 *     place: peers load nothing that changes meanwhile.
 */
#ifndef SYMWIN_KERNELS_TABLE_PARTS_CUH
#define SYMWIN_KERNELS_TABLE_PARTS_CUH

#include "bytes.cuh"
#include "stages.cuh"

/* What a kernel does with large parts that lie in windows: nothing, or their senders store them, or
 * their receivers load them. */
enum sw_large { SW_LARGE_NONE, SW_LARGE_STORED, SW_LARGE_LOADED };

/* ---- parts ----------------------------------------------------------------------------------- */

struct sw_table_part {
    uint64_t address;
    uint64_t bytes;            /* 0 if it is not there */
    uint64_t count;            /* elements, as the table says */
    uint64_t end;              /* of it in the buffer, in elements; UINT64_MAX: more than that */
    enum sw_kernel_code wrong; /* SW_KERNEL_OK: it is there; _NULL, or _ROOM */
};

SYMWIN_DEVICE sw_table_row sw_table_row_of(const struct sw_table_side &side, int32_t p)
{
    const uint64_t at = (uint32_t)p;
    sw_table_row row = {0, 0};

    if (side.counts == 0)
        return side.rows[p];
    row.count = symwin_load_u64(side.counts + at * side.step);
    if (side.places != 0)
        row.place = symwin_load_u64(side.places + at * 8);
    return row;
}

/* The part of the buffer at `buffer` that a row describes. */
SYMWIN_DEVICE sw_table_part sw_table_part_of(const struct sw_table_args &args,
                                             const struct sw_table_side &side, uint64_t buffer,
                                             const sw_table_row &row)
{
    const uint64_t count = row.count, place = row.place;
    sw_table_part part;

    part.wrong = SW_KERNEL_OK;
    if (place > side.room || count > side.room - place)
        part.wrong = SW_KERNEL_ROOM;
    if (buffer == 0 && count > 0)
        part.wrong = SW_KERNEL_NULL;
    part.address = buffer + (part.wrong == SW_KERNEL_OK ? place * args.element : 0);
    part.bytes = part.wrong == SW_KERNEL_OK ? count * args.element : 0;
    part.count = count;
    part.end = count <= UINT64_MAX - place ? place + count : UINT64_MAX;
    return part;
}

SYMWIN_DEVICE sw_table_part sw_table_in(const struct sw_table_args &args, int32_t p)
{
    return sw_table_part_of(args, args.in, args.call.in, sw_table_row_of(args.in, p));
}

SYMWIN_DEVICE sw_table_part sw_table_out(const struct sw_table_args &args, int32_t p)
{
    return sw_table_part_of(args, args.out, args.call.out, sw_table_row_of(args.out, p));
}

/* This rank's own part: where it is, where it goes, and the bytes that both sides have of it; a
 * kernel adds the rounds, which are not those of a pair if no slot limits them. */
struct sw_own_part {
    uint64_t from, to, bytes;
    sw_rounds rounds;
};

SYMWIN_DEVICE sw_own_part sw_table_own(const struct sw_table_args &args)
{
    const sw_table_part in = sw_table_in(args, args.call.rank);
    const sw_table_part out = sw_table_out(args, args.call.rank);

    return {in.address, out.address, in.bytes < out.bytes ? in.bytes : out.bytes, {}};
}

/* How a pair's part of `bytes` that needs several rounds is divided: the extent, and the count in
 * the upper half. Apart from the code that calls it, whose registers and size the divisions are
 * not to cost. */
template <class W>
SW_DEVICE_SLOW uint64_t sw_table_divide(uint64_t bytes, uint64_t room)
{
    sw_rounds rounds = sw_rounds_of_bytes<W>(bytes, room);

    if (rounds.count % 2 == 0) {
        rounds.count++;
        rounds.extent = (uint32_t)(((bytes + W::words * 8 - 1) / (W::words * 8) + rounds.count -
                                    1) /
                                   rounds.count);
    }
    return rounds.extent | (uint64_t)rounds.count << 32;
}

/* How a pair's part is divided into rounds. */
template <class W>
SYMWIN_DEVICE sw_rounds sw_table_rounds(const struct sw_table_args &args, uint64_t bytes)
{
    const uint64_t room = args.call.slot_bytes / W::bytes; /* entries */
    const uint64_t entries = (bytes + W::words * 8 - 1) / (W::words * 8);
    uint64_t divided = entries | (uint64_t)(entries > 0) << 32;

    if (!SYMWIN_LIKELY(entries <= room))
        divided = sw_table_divide<W>(bytes, room);
    return {bytes, (uint32_t)divided, (uint32_t)(divided >> 32), 0};
}

/* ---- large parts ----------------------------------------------------------------------------- */

#define SW_LANDING_AT(args, call, rank, with, member)                                              \
    sw_state_address((args).call, call, rank,                                                      \
                     SW_STATE_LANDING((args).call.nranks, (args).call.slot_bytes, with) +          \
                         offsetof(struct sw_landing, member))

/* Address of the record of rank `from` at rank `at`. */
SYMWIN_DEVICE uint64_t sw_place_at(const struct sw_table_args &args, const sw_call &call,
                                   int32_t at, int32_t from)
{
    return SW_LANDING_AT(args, call, at, from, place) + (call.epoch & 1) * SW_PLACE_WORDS * 8;
}

/* The part that this rank has with rank p and whose place it tells p, and the one of which p tells.
 */
template <sw_large large>
SYMWIN_DEVICE sw_table_part sw_table_told(const struct sw_table_args &args, int32_t p)
{
    return large == SW_LARGE_LOADED ? sw_table_in(args, p) : sw_table_out(args, p);
}

template <sw_large large>
SYMWIN_DEVICE sw_table_part sw_table_taken(const struct sw_table_args &args, int32_t p)
{
    return large == SW_LARGE_LOADED ? sw_table_out(args, p) : sw_table_in(args, p);
}

/* Whether a part with rank p is one of which a record is written. */
SYMWIN_DEVICE bool sw_is_large(const struct sw_table_args &args, int32_t p,
                               const sw_table_part &part)
{
    return part.bytes > args.large && p != args.call.rank;
}

/* Whether rank p may access this rank's part. */
template <sw_large large>
SYMWIN_DEVICE bool sw_is_offered(const struct sw_table_args &args, int32_t p,
                                 const sw_table_part &part)
{
    if (large == SW_LARGE_NONE || args.place == SW_NO_OFFSET || !sw_is_large(args, p, part))
        return false;
    if (large == SW_LARGE_LOADED) {
        const sw_table_part result = sw_table_out(args, args.call.rank);

        return result.address >= part.address + part.bytes ||
               part.address >= result.address + result.bytes;
    }
    return true;
}

/* By the control threads of block 0, before any wait. As a header with SW_HEADER_STREAM, a record
 * needs no fence. */
template <class Receive>
SYMWIN_DEVICE void sw_places_post(const struct sw_table_args &args, const sw_call &call,
                                  const sw_role &role)
{
    const uint64_t buffer = Receive::large == SW_LARGE_LOADED ? args.call.in : args.call.out;
    const uint64_t tag = (uint64_t)sw_call_flag(call) << 32, scalar = Receive::scalar(args);

    for (int32_t p = role.control_lane; p < args.call.nranks; p += role.control_lanes) {
        const sw_table_part part = sw_table_told<Receive::large>(args, p);
        const uint64_t to = sw_place_at(args, call, p, args.call.rank);
        const uint64_t offset = sw_is_offered<Receive::large>(args, p, part)
                                    ? args.place + (part.address - buffer)
                                    : SW_NO_OFFSET;
        const uint64_t words[SW_PLACE_WORDS] = {
            args.call.digest, (uint32_t)offset, offset >> 32, (uint32_t)part.bytes,
            part.bytes >> 32, (uint32_t)scalar, scalar >> 32};

        if (!sw_is_large(args, p, part))
            continue;
        for (int w = 0; w < SW_PLACE_WORDS; w++)
            if (SYMWIN_EMULATED) /* for sanitizers */
                symwin_store_release_u64(to + (uint64_t)w * 8, tag | words[w]);
            else
                symwin_store_relaxed_u64(to + (uint64_t)w * 8, tag | words[w]);
    }
}

/* Waits until rank p has said where the part of `bytes` bytes lies there. False: the wait was given
 * up. */
SYMWIN_DEVICE bool sw_place_await(const struct sw_table_args &args, sw_call &call, int32_t p,
                                  uint64_t bytes)
{
    const uint64_t at = sw_place_at(args, call, args.call.rank, p);
    const uint64_t tag = (uint64_t)sw_call_flag(call) << 32;
    sw_wait wait = {0, 0, 0};

    for (;;) {
        uint64_t word[SW_PLACE_WORDS];
        bool all = true;

        /* One acquire, of the last: a load after an acquire waits for it. */
        for (int w = 0; w < SW_PLACE_WORDS; w++)
            word[w] = SYMWIN_EMULATED || w == SW_PLACE_WORDS - 1
                          ? symwin_load_acquire_u64(at + (uint64_t)w * 8)
                          : symwin_load_relaxed_u64(at + (uint64_t)w * 8);
        for (int w = 0; w < SW_PLACE_WORDS; w++)
            all = all && word[w] >> 32 == tag >> 32;
        if (all && word[SW_PLACE_DIGEST] == (tag | args.call.digest) &&
            word[SW_PLACE_BYTES] == (tag | (uint32_t)bytes) &&
            word[SW_PLACE_BYTES + 1] == (tag | bytes >> 32))
            return true;
        if (!sw_wait_on(args.call, call, wait, p))
            return false;
    }
}

/* By all threads of a block: waits for the places of large parts that this rank is to access. */
template <sw_large large>
SYMWIN_DEVICE void sw_places_await(const struct sw_table_args &args, sw_call &call)
{
    for (int32_t p = (int32_t)threadIdx.x; p < args.call.nranks && !call.failed;
         p += (int32_t)blockDim.x) {
        const sw_table_part part = sw_table_taken<large>(args, p);

        if (sw_is_large(args, p, part))
            (void)sw_place_await(args, call, p, part.bytes);
    }
    call.failed = symwin_block_any(call.failed);
}

/* What two halves of rank p's record say, after that. With SW_OWN they may come from the L1 cache,
 * which the acquire of sw_place_await() has emptied. Rank p writes another record when this kernel
 * has ended. For sanitizers it must have waited for a count of this block, too. */
template <sw_access access = SW_SHARED>
SYMWIN_DEVICE uint64_t sw_place_says(const struct sw_table_args &args, const sw_call &call,
                                     int32_t p, uint32_t word)
{
    const uint64_t at = sw_place_at(args, call, args.call.rank, p) + word * 8;

    return (uint32_t)sw_element_load<8, access>(at) | sw_element_load<8, access>(at + 8) << 32;
}

/* Where the large part that this rank has with rank p lies there; or SW_NO_OFFSET. */
template <sw_access access = SW_SHARED>
SYMWIN_DEVICE uint64_t sw_place_of(const struct sw_table_args &args, const sw_call &call, int32_t p)
{
    return sw_place_says<access>(args, call, p, SW_PLACE_OFFSET);
}

/* By all threads of all blocks, when the block has read the places for the last time. */
SYMWIN_DEVICE void sw_places_empty(const struct sw_table_args &args, const sw_call &call)
{
    const uint32_t words = (uint32_t)args.call.nranks * SW_PLACE_WORDS;

    if (!sw_is_last_of(call, offsetof(struct sw_comm_state, copied)))
        return;
    if (threadIdx.x == 0)
        symwin_store_relaxed_u32(SW_STATE_AT(call.state, copied), 0);
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
        symwin_store_relaxed_u64(
            sw_place_at(args, call, args.call.rank, (int32_t)(i / SW_PLACE_WORDS)) +
                i % SW_PLACE_WORDS * 8,
            0);
}

/* How to read a record that may say SW_NO_OFFSET: then rank p waits for no count. */
static constexpr sw_access SW_ANY_RECORD = SYMWIN_EMULATED ? SW_SHARED : SW_OWN;

/* Whether this rank accesses the part at rank p, whose place p has told. */
template <sw_large large>
SYMWIN_DEVICE bool sw_is_taken(const struct sw_table_args &args, const sw_call &call, int32_t p,
                               const sw_table_part &part)
{
    return large != SW_LARGE_NONE && sw_is_large(args, p, part) &&
           sw_place_of<SW_ANY_RECORD>(args, call, p) != SW_NO_OFFSET;
}

/* The rounds of the part for rank p, and of the part from it. */
template <class W, sw_large large>
SYMWIN_DEVICE sw_rounds sw_rounds_to(const struct sw_table_args &args, const sw_call &call,
                                     int32_t p, const sw_table_part &part)
{
    const bool straight = large == SW_LARGE_LOADED ? sw_is_offered<large>(args, p, part)
                                                   : sw_is_taken<large>(args, call, p, part);

    return sw_table_rounds<W>(args, straight ? 0 : part.bytes);
}

template <class W, sw_large large>
SYMWIN_DEVICE sw_rounds sw_rounds_from(const struct sw_table_args &args, const sw_call &call,
                                       int32_t p, const sw_table_part &part)
{
    const bool straight = large == SW_LARGE_LOADED ? sw_is_taken<large>(args, call, p, part)
                                                   : sw_is_offered<large>(args, p, part);

    return sw_table_rounds<W>(args, straight ? 0 : part.bytes);
}

/* Loads the thread's first entry of a part. */
template <class W>
SYMWIN_DEVICE void sw_part_first(const sw_rounds &rounds, const sw_role &role, uint64_t from,
                                 uint64_t (&word)[W::words])
{
    if (role.index < rounds.extent)
        sw_entry_load<sw_byte, W>(sw_part_of<W>(from, rounds, 0), role.index, word);
}

/* Copies a part by its entries, each by the thread that has it in a round; `first` is the thread's
 * first one. */
template <class W>
SYMWIN_DEVICE void sw_part_copy(const sw_rounds &rounds, const sw_role &role, uint64_t from,
                                uint64_t to, const uint64_t (&first)[W::words])
{
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0; c < rounds.count; c++) {
        const sw_part source = sw_part_of<W>(from, rounds, c), goal = sw_part_of<W>(to, rounds, c);

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers) {
            uint64_t word[W::words] = {first[0]};

            if (c > 0 || i != role.index)
                sw_entry_load<sw_byte, W>(source, i, word);
            sw_entry_store<sw_byte, W>(goal, i, word);
        }
    }
}

/* Where all peers take one part, which is the same for all of them: if it is at one offset. */
SYMWIN_DEVICE uint64_t sw_place_of_all(const struct sw_table_args &args, const sw_call &call)
{
    const int32_t first = sw_rank_after<0>(args.call, 1);
    uint64_t place = args.in.step == 0 && args.call.nranks > 1 &&
                             sw_is_large(args, first, sw_table_in(args, first))
                         ? sw_place_of<SW_ANY_RECORD>(args, call, first)
                         : SW_NO_OFFSET;

    SYMWIN_NO_UNROLL
    for (int32_t step = 2; step < args.call.nranks && place != SW_NO_OFFSET; step++)
        if (sw_place_of<SW_ANY_RECORD>(args, call, sw_rank_after<0>(args.call, step)) != place)
            place = SW_NO_OFFSET;
    return place;
}

/* Stores this rank's large parts. By workers. */
template <class W>
SYMWIN_DEVICE void sw_parts_store(const struct sw_table_args &args, const sw_call &call,
                                  const sw_role &role)
{
    const sw_crew crew = {role.index, role.workers};
    const uint64_t place = sw_place_of_all(args, call);

    if (place != SW_NO_OFFSET) { /* loaded once */
        const sw_table_part part = sw_table_in(args, sw_rank_after<0>(args.call, 1));

        sw_move_part({call.peers, 1, args.call.nranks, -1}, crew, part.address, place, part.bytes);
        return;
    }
    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step < args.call.nranks; step++) {
        const int32_t p = sw_rank_after<0>(args.call, step);
        const sw_table_part part = sw_table_in(args, p), comes = sw_table_out(args, p);
        const bool in_place = comes.bytes > 0 && comes.address == part.address;

        if (!sw_is_taken<SW_LARGE_STORED>(args, call, p, part))
            continue;
        if (in_place) {
            const sw_rounds rounds = sw_table_rounds<W>(args, part.bytes);
            uint64_t first[W::words] = {};

            sw_part_first<W>(rounds, role, part.address, first);
            sw_part_copy<W>(rounds, role, part.address,
                            symwin_peer_address(call.peers, p, sw_place_of<SW_OWN>(args, call, p)),
                            first);
        } else {
            sw_move_part({call.peers, step, step + 1, -1}, crew, part.address,
                         sw_place_of<SW_OWN>(args, call, p), part.bytes);
        }
    }
}

/* By all threads, when the workers have stored or loaded: tells the peers, and in block 0 waits for
 * what they store or load here. The places are read no more, and emptied before the wait, which has
 * time. */
template <sw_large large>
SYMWIN_DEVICE void sw_parts_land(const struct sw_table_args &args, sw_call &call)
{
    const int32_t self = args.call.rank;

    call.failed = symwin_block_any(call.failed);
    for (int32_t p = (int32_t)threadIdx.x; p < args.call.nranks && !call.failed;
         p += (int32_t)blockDim.x)
        if (sw_is_taken<large>(args, call, p, sw_table_taken<large>(args, p)))
            symwin_add_system_u32(SW_LANDING_AT(args, call, p, self, landed),
                                  SW_LANDED_BY(blockIdx.x == 0, gridDim.x));
    sw_places_empty(args, call);
    for (int32_t p = (int32_t)threadIdx.x; p < args.call.nranks && blockIdx.x == 0 && !call.failed;
         p += (int32_t)blockDim.x) {
        const uint64_t taken = SW_LANDING_AT(args, call, self, p, taken);
        const uint32_t want = symwin_load_relaxed_u32(taken) + SW_LANDED;
        sw_wait wait = {0, 0, 0};

        if (!sw_is_offered<large>(args, p, sw_table_told<large>(args, p)))
            continue;
        while (symwin_load_acquire_u32(SW_LANDING_AT(args, call, self, p, landed)) != want)
            if (!sw_wait_on(args.call, call, wait, p))
                return;
        symwin_store_relaxed_u32(taken, want);
    }
}

#endif
