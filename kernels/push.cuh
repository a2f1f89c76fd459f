/* What the kernels that push share: entries and slots, rounds, and the roles of threads in a block.
 *
 * Entries. Each rank has receive slots in its own memory: rows of entries of 16 bytes. An entry
 * that is zero is empty. A sender stores an entry as two words of eight bytes, and the wire formats
 * below ensure that neither word is zero. The receiver polls until both words are there, takes them
 * and stores zeros. Each word shows its own arrival, so there is no flag to read, no fence and no
 * barrier. (PTX treats a vector access as one relaxed access per element, in no given order:
 * "Memory Consistency Model", vector data types.) So a kernel for short messages can treat each
 * word as an entry, whatever its peers do.
 *
 * Rounds. A message larger than the slots is sent in rounds of equal size, the last one filled up
 * with zeros. Rounds are counted over all calls; round q uses the slots of parity q & 1. Every
 * thread handles the same entries in each round of a call, and starts the next round when it has
 * sent and received all of them.
 *
 * Why two parities are enough: when rank r stores an entry of round q into rank p's slot, p has
 * emptied that entry of everything that any round up to q - 2 left there. Let A be the call of
 * round q - 1.
 *   q in A too: in round q - 1 the thread that stores has received from p an entry that was sent by
 *     the same thread of p that empties the entry in question (each kernel says why). That thread
 *     sent it after it had emptied the entry of round q - 2, if q - 2 is in A; a fence between
 *     rounds orders the emptying before the sending for all observers. If q - 2 is of an earlier
 *     call, p ended that call before it sent anything in A.
 *   q in the next call: r's kernel A has ended, so it has seen p's header: p was in A and had ended
 *     all calls before A. If q - 2 is in A, r has received all of p's entries of q - 1, and p's
 *     thread sent each of them after it had emptied its entries of q - 2.
 * Calls over windows in between change nothing. An entry that nobody sends stays zero. If p sends
 * nothing to r, it answers: pattern.cuh.
 *
 * Blocks. In a block of more than one warp, the last one is the control warp: it exchanges headers,
 * counts the block and advances the epochs, while the other warps, the workers, send and receive.
 * In a block of one warp or less, all threads do both. Threads give up only after all threads of
 * their block have begun, so block 0 has always told its peers of the call.
 */
#ifndef SYMWIN_KERNELS_PUSH_CUH
#define SYMWIN_KERNELS_PUSH_CUH

#include "scalar.cuh"

#define SW_ENTRY_BYTES 16

/* ---- what travels in an entry ---------------------------------------------------------------- */

/* An entry of one word: one access for a load or a store. */
struct sw_entry_word {
    typedef uint64_t entry;
    enum { bytes = 8 };

    SYMWIN_DEVICE entry load(uint64_t address)
    {
        return symwin_load_relaxed_u64(address);
    }

    SYMWIN_DEVICE void load_if(bool condition, uint64_t address, entry *e)
    {
        if (condition)
            *e = symwin_load_relaxed_u64(address);
    }

    SYMWIN_DEVICE void store(uint64_t address, entry e)
    {
        symwin_store_relaxed_u64(address, e);
    }

    SYMWIN_DEVICE entry empty(void)
    {
        return 0;
    }

    SYMWIN_DEVICE bool is_there(entry e)
    {
        return ((uint32_t)e | (uint32_t)(e >> 32)) != 0;
    }
};

/* An entry of two words. The words are the same, in the same places; half as many threads each do
 * twice the work. */
struct sw_entry_pair {
    typedef symwin_v16 entry;
    enum { bytes = SW_ENTRY_BYTES };

    SYMWIN_DEVICE entry load(uint64_t address)
    {
        return symwin_load_relaxed_v16(address);
    }

    SYMWIN_DEVICE void load_if(bool condition, uint64_t address, entry *e)
    {
        symwin_load_relaxed_v16_if(condition, address, e);
    }

    SYMWIN_DEVICE void store(uint64_t address, const entry &e)
    {
        symwin_store_relaxed_v16(address, e);
    }

    SYMWIN_DEVICE entry empty(void)
    {
        return {0, 0};
    }

    SYMWIN_DEVICE bool is_there(const entry &e)
    {
        return sw_entry_word::is_there(e.lo) && sw_entry_word::is_there(e.hi);
    }
};

/* For types with a spare bit pattern. The pattern is all ones, which is a NaN in every
 * floating-point type here. Another NaN replaces it, and words are sent inverted, so no word sent
 * is zero. */
struct sw_sparing {
    SYMWIN_DEVICE uint64_t spare(uint64_t word)
    {
        return word == ~(uint64_t)0 ? ~(uint64_t)0 >> 1 : word;
    }
};

/* Two words of such a type. */
struct sw_wire_sentinel : sw_entry_pair, sw_sparing {
    enum { words = 2, aligned = 0, rest = 1, rounds = 1, flows = 0 };

    SYMWIN_DEVICE entry encode(const uint64_t *word)
    {
        return {~spare(word[0]), ~spare(word[1])};
    }

    SYMWIN_DEVICE void decode(const entry &e, uint64_t *word)
    {
        word[0] = ~e.lo;
        word[1] = ~e.hi;
    }
};

/* The same if the host has checked that the message is aligned to an entry and that a one-shot or
 * two-shot push has one round. With `whole` it has also checked that the message is whole entries,
 * without a rest. All other code is left out, even a few instructions: small messages gain 0.1 us
 * and more. */
struct sw_wire_aligned : sw_wire_sentinel {
    enum { aligned = 1, rounds = 0 };
};
struct sw_wire_whole : sw_wire_aligned {
    enum { rest = 0 };
};

/* Whole entries of one word. */
struct sw_wire_words : sw_entry_word, sw_sparing {
    enum { words = 1, aligned = 1, rest = 0, rounds = 0, flows = 0 };

    SYMWIN_DEVICE entry encode(const uint64_t *word)
    {
        return ~spare(word[0]);
    }

    SYMWIN_DEVICE void decode(entry e, uint64_t *word)
    {
        word[0] = ~e;
    }
};

/* A long message: whole entries, many per thread, in any number of rounds. */
struct sw_wire_long : sw_wire_whole {
    enum { rounds = 1, flows = 1 };
};

/* One word of any type: each half travels with its own flag. */
struct sw_wire_flags : sw_entry_pair {
    enum { words = 1, aligned = 0, rest = 1, rounds = 1, flows = 0 };
    SYMWIN_DEVICE uint64_t spare(uint64_t word)
    {
        return word;
    }

    SYMWIN_DEVICE entry encode(const uint64_t *word)
    {
        const uint64_t flag = (uint64_t)1 << 32;

        return {(word[0] & 0xffffffffu) | flag, word[0] >> 32 | flag};
    }

    SYMWIN_DEVICE void decode(const entry &e, uint64_t *word)
    {
        word[0] = (e.lo & 0xffffffffu) | e.hi << 32;
    }
};

/* The same if the message is whole words, aligned to a word, in one round. */
struct sw_wire_flags_whole : sw_wire_flags {
    enum { aligned = 1, rest = 0, rounds = 0 };
};

/* The wire format for a shape of kernel_list.h, and for types with and without a spare pattern. */
template <sw_kernel_shape shape, bool spares>
struct sw_wire_of {
    typedef sw_wire_flags type;
};
template <>
struct sw_wire_of<SW_SHAPE_short, false> {
    typedef sw_wire_flags_whole type;
};
template <>
struct sw_wire_of<SW_SHAPE_any, true> {
    typedef sw_wire_sentinel type;
};
template <>
struct sw_wire_of<SW_SHAPE_aligned, true> {
    typedef sw_wire_aligned type;
};
template <>
struct sw_wire_of<SW_SHAPE_whole, true> {
    typedef sw_wire_whole type;
};
template <>
struct sw_wire_of<SW_SHAPE_short, true> {
    typedef sw_wire_words type;
};
template <>
struct sw_wire_of<SW_SHAPE_long, true> {
    typedef sw_wire_long type;
};

/* The part of a message that a round sends: entry i of the round is entry i of the part. */
struct sw_part {
    sw_message message;
    uint32_t whole; /* entries that are one aligned access in memory; others are the rare case */
};

/* Bytes of entry `i` of an aligned part if it is the incomplete last one; otherwise 0. */
template <class W>
SYMWIN_DEVICE uint32_t sw_rest(const sw_part &part, uint32_t i)
{
    return W::rest && i == part.whole ? (uint32_t)part.message.bytes % W::bytes : 0;
}

/* Whether entry `i`, which the part has, is one access. With whole entries of one word, all are. */
template <class W>
SYMWIN_DEVICE bool sw_is_whole(const sw_part &part, uint32_t i)
{
    return (W::bytes == 8 && !W::rest) || SYMWIN_LIKELY(i < part.whole);
}

/* Loads entry `i` of a part by words, or by elements if the part is not aligned; then the store. */
template <class R, class W, sw_access access>
SYMWIN_DEVICE void sw_words_load(const sw_part &part, uint32_t i, uint64_t word[W::words])
{
    SYMWIN_UNROLL
    for (int k = 0; k < W::words; k++)
        word[k] = sw_word_load<R::bytes, access>(part.message,
                                                 (uint64_t)i * W::words + (uint32_t)k);
}

template <class R, class W, sw_access access>
SYMWIN_DEVICE void sw_words_store(const sw_part &part, uint32_t i, const uint64_t word[W::words])
{
    SYMWIN_UNROLL
    for (int k = 0; k < W::words; k++)
        sw_word_store<R::bytes, access>(part.message, (uint64_t)i * W::words + (uint32_t)k,
                                        word[k]);
}

/* Loads entry `i` of a part, with zeros beyond the message's end; then the store. */
template <class R, class W, sw_access access = SW_OWN>
SYMWIN_DEVICE void sw_entry_load(const sw_part &part, uint32_t i, uint64_t word[W::words])
{
    if (sw_is_whole<W>(part, i)) {
        const uint64_t address = part.message.address + (uint64_t)i * (W::words * 8);

        if (W::words == 2) {
            const symwin_v16 v = access == SW_SHARED ? symwin_load_relaxed_v16(address)
                                                     : symwin_load_v16(address);

            word[0] = v.lo;
            word[W::words - 1] = v.hi;
        } else {
            word[0] = sw_element_load<8, access>(address);
        }
        return;
    }
    if (W::aligned && W::words == 2)
        sw_rest_load<R::bytes, access>(part.message.address + (uint64_t)i * W::bytes,
                                       sw_rest<W>(part, i), word);
    else
        sw_words_load<R, W, access>(part, i, word);
}

/* The same of this rank's input, as it is sent and added. */
template <class R, class W, sw_access access = SW_OWN>
SYMWIN_DEVICE void sw_input_load(const struct sw_kernel_args &args, const sw_part &part, uint32_t i,
                                 uint64_t word[W::words])
{
    sw_entry_load<R, W, access>(part, i, word);
    if constexpr (R::chosen) {
        SYMWIN_UNROLL
        for (int k = 0; k < W::words; k++)
            word[k] = sw_multiplied<R>(args, args.rank, word[k]);
    }
}

template <class R, class W, sw_access access = SW_OWN>
SYMWIN_DEVICE void sw_entry_store(const sw_part &part, uint32_t i, const uint64_t word[W::words])
{
    if (sw_is_whole<W>(part, i)) {
        const uint64_t address = part.message.address + (uint64_t)i * (W::words * 8);

        if (W::words == 1)
            sw_element_store<8, access>(address, word[0]);
        else if (access == SW_SHARED)
            symwin_store_relaxed_v16(address, {word[0], word[W::words - 1]});
        else
            symwin_store_v16(address, {word[0], word[W::words - 1]});
        return;
    }
    if (W::aligned && W::words == 2)
        sw_rest_store<R::bytes, access>(part.message.address + (uint64_t)i * W::bytes,
                                        sw_rest<W>(part, i), word);
    else
        sw_words_store<R, W, access>(part, i, word);
}

/* ---- roles ----------------------------------------------------------------------------------- */

struct sw_role {
    bool works;
    /* the thread's number among the block's control threads; negative: it is none */
    int32_t control_lane;
    int32_t control_lanes;
    uint32_t index;   /* a worker's number in the grid */
    uint32_t workers; /* workers of the grid */
};

SYMWIN_DEVICE sw_role sw_role_of_thread(void)
{
    const bool apart = blockDim.x > 32;
    const uint32_t workers = apart ? blockDim.x - 32 : blockDim.x;
    sw_role role;

    role.works = threadIdx.x < workers;
    role.control_lanes = apart ? 32 : (int32_t)blockDim.x;
    role.control_lane = apart ? (int32_t)threadIdx.x - (int32_t)workers : (int32_t)threadIdx.x;
    role.index = blockIdx.x * workers + threadIdx.x;
    role.workers = gridDim.x * workers;
    return role;
}

/* By all threads, after they have sent the first round: tells the peers of the call, and counts the
 * block. The last block counted advances the epochs: by then all threads of the grid have read them
 * and state.failed. There is no fence, which would wait until the peers have received what was
 * sent. */
SYMWIN_DEVICE void sw_push_count(const struct sw_kernel_args &args, sw_call &call,
                                 const sw_role &role, uint32_t rounds)
{
    uint32_t before = 0;

    if (role.control_lane >= 0 && blockIdx.x == 0 && !call.failed)
        sw_headers_post(args, call, SW_HEADER_RELAXED, role.control_lane, role.control_lanes);
    __syncthreads();
    if (role.control_lane < 0)
        return;
    if (role.control_lane == 0)
        before = symwin_add_relaxed_u32(call.state + offsetof(struct sw_comm_state, arrived), 1);
    if (role.control_lane == 0 && before == gridDim.x - 1) {
        sw_finish_refresh(args, call);
        sw_call_count(call, rounds);
    }
}

/* The same, and checks what the peers tell. All this comes before the wait for peers' words, with
 * which a small call ends. After that wait it delayed kernels of one block by 0.08 us (two H200s).
 */
SYMWIN_DEVICE void sw_push_settle(const struct sw_kernel_args &args, sw_call &call,
                                  const sw_role &role, uint32_t rounds)
{
    sw_push_count(args, call, role, rounds);
    if (role.control_lane >= 0 && blockIdx.x == 0)
        sw_headers_check(args, call, SW_HEADER_RELAXED, role.control_lane, role.control_lanes);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* How a message is divided into rounds. */
struct sw_rounds {
    uint64_t bytes;  /* of the message */
    uint32_t extent; /* entries per round */
    uint32_t count;
    uint64_t before; /* bytes of a slot before them: of calls that share it (move.cu) */
};

/* For a message of `bytes`; `room`: entries that fit in a round. */
template <class W>
SYMWIN_DEVICE sw_rounds sw_rounds_of_bytes(uint64_t bytes, uint64_t room)
{
    const uint64_t entries = (bytes + W::words * 8 - 1) / (W::words * 8);
    const uint64_t most = room < 1u << 31 ? room : 1u << 31;
    sw_rounds rounds = {bytes, (uint32_t)entries, 1, 0};

    if (W::rounds && entries > most) { /* otherwise no division of 64 bits is needed */
        rounds.count = (uint32_t)((entries + most - 1) / most);
        rounds.extent = (uint32_t)((entries + rounds.count - 1) / rounds.count);
    }
    return rounds;
}

template <class R, class W>
SYMWIN_DEVICE sw_rounds sw_rounds_of(const struct sw_kernel_args &args, uint64_t room)
{
    return sw_rounds_of_bytes<W>(args.count * R::bytes, room);
}

/* The part of `extent` entries from entry `first` on, of the message of `bytes` at `address`; what
 * is beyond the message's end is cut off. */
template <class W>
SYMWIN_DEVICE sw_part sw_part_at(uint64_t address, uint64_t bytes, uint64_t first, uint32_t extent)
{
    const uint64_t before = first * (W::words * 8);
    const uint64_t left = before < bytes ? bytes - before : 0;
    const uint64_t most = (uint64_t)extent * (W::words * 8);
    sw_part part;

    part.message = sw_message_at(address + before, left < most ? left : most);
    part.whole = 0;
    if (W::aligned || (W::words == 2 ? part.message.vectors : part.message.aligned))
        part.whole = (uint32_t)(part.message.bytes / (W::words * 8));
    return part;
}

/* Round `c` of the message at `address`. */
template <class W>
SYMWIN_DEVICE sw_part sw_part_of(uint64_t address, const sw_rounds &rounds, uint32_t c)
{
    return sw_part_at<W>(address, rounds.bytes, (uint64_t)c * rounds.extent, rounds.extent);
}

/* ---- ranks and slots ------------------------------------------------------------------------- */

/* Address of the communicator's memory at the rank `step` after this one. */
template <int N>
SYMWIN_DEVICE uint64_t sw_state_after(const struct sw_kernel_args &args, int32_t step)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};

    return symwin_peer_address(peers, sw_rank_after<N>(args, step), args.state);
}

/* The same for all steps. If N is a constant, the addresses are calculated ahead of use. */
template <int N>
struct sw_peer_states {
    uint64_t state[N - 1];

    SYMWIN_MEMBER void find(const struct sw_kernel_args &args)
    {
        SYMWIN_UNROLL
        for (int step = 1; step < N; step++)
            state[step - 1] = sw_state_after<N>(args, step);
    }

    SYMWIN_MEMBER uint64_t after(const struct sw_kernel_args &, int32_t step) const
    {
        return state[step - 1];
    }
};

template <>
struct sw_peer_states<0> {
    SYMWIN_MEMBER void find(const struct sw_kernel_args &)
    {
    }

    SYMWIN_MEMBER uint64_t after(const struct sw_kernel_args &args, int32_t step) const
    {
        return sw_state_after<0>(args, step);
    }
};

/* Offset of entry 0 of the slot for what `source` sends in a round, in half `half` of the slot.
 * Two-shots use one half for each of their stages; one-shots use the whole slot. */
template <int N>
SYMWIN_DEVICE uint64_t sw_slot_place(const struct sw_kernel_args &args, uint32_t round,
                                     int32_t source, uint32_t half)
{
    return SW_STATE_SLOT(sw_ranks<N>(args), args.slot_bytes, round & 1, source) +
           half * args.slot_bytes;
}

/* ---- sending and receiving ------------------------------------------------------------------- */

/* Stores an entry into the slots of all peers, beginning with the next rank, so that the ranks
 * do not all store to the same peer at once. `place` is the entry's offset, in the slot for this
 * rank. */
template <int N, class W>
SYMWIN_DEVICE void sw_entry_send_all(const struct sw_kernel_args &args,
                                     const sw_peer_states<N> &states, uint64_t place,
                                     const typename W::entry &entry)
{
    SYMWIN_UNROLL
    for (int32_t step = 1; step < sw_ranks<N>(args); step++)
        W::store(states.after(args, step) + place, entry);
}

/* One entry of a long message for each peer, by steps; loaded while another entry is reduced. */
template <int N, class W>
struct sw_outgoing {
    uint64_t word[N - 1][W::words];
    bool there[N - 1]; /* the last shares may have fewer */
};

/* `place` is the entry's offset, in the slot for this rank. */
template <int N, class W>
SYMWIN_DEVICE void sw_outgoing_send(const struct sw_kernel_args &args,
                                    const sw_peer_states<N> &states, uint64_t place,
                                    const sw_outgoing<N, W> &outgoing)
{
    SYMWIN_UNROLL
    for (int32_t step = 1; step < N; step++)
        if (outgoing.there[step - 1])
            W::store(states.after(args, step) + place, W::encode(outgoing.word[step - 1]));
}

/* Ranks whose entries a thread polls together, so that their loads overlap. */
template <int N>
struct sw_batch {
    enum { ranks = N > 0 ? N : 4 };
};

template <int N>
SYMWIN_DEVICE bool sw_is_peer(const struct sw_kernel_args &args, int32_t p)
{
    return (N > 0 || p < args.nranks) && p != args.rank;
}

/* The ranks whose entries a thread awaits: all peers. */
template <int N>
struct sw_from_peers {
    SYMWIN_DEVICE bool has(const struct sw_kernel_args &args, int32_t p)
    {
        return sw_is_peer<N>(args, p);
    }
};

/* Waits for an entry of each rank of `From` among ranks first .. first + ranks - 1; `address` is
 * that of rank `first`'s entry. False: the wait was given up. */
template <int N, class W, class From = sw_from_peers<N>>
SYMWIN_DEVICE bool sw_entries_await(const struct sw_kernel_args &args, sw_call &call,
                                    uint64_t address, int32_t first,
                                    typename W::entry entry[sw_batch<N>::ranks])
{
    const uint64_t pitch = 2 * args.slot_bytes;
    sw_wait wait = {0, 0, 0};

    for (;;) {
        bool all = true;

        if (N == 2) { /* one peer: both elements get its entry */
            entry[0] = W::load(address + (uint64_t)(1 - args.rank) * pitch);
            entry[sw_batch<N>::ranks - 1] = entry[0];
        } else {
            SYMWIN_UNROLL
            for (int j = 0; j < sw_batch<N>::ranks; j++) {
                entry[j] = W::empty();
                W::load_if(From::has(args, first + j), address + (uint64_t)j * pitch, &entry[j]);
            }
        }
        SYMWIN_UNROLL
        for (int j = 0; j < sw_batch<N>::ranks; j++)
            all = all && (W::is_there(entry[j]) || !From::has(args, first + j));
        if (all)
            return true;
        if (sw_wait_turn(wait)) {
            int32_t missing = args.rank;

            for (int j = 0; j < sw_batch<N>::ranks; j++)
                if (From::has(args, first + j) && !W::is_there(entry[j]))
                    missing = first + j;
            if (!sw_wait_look(args, call, wait, missing))
                return false;
        }
    }
}

/* Reduces the entries of all peers and this rank's own words, in rank order; `address` is that of
 * rank 0's entry. The result passes through spare() as if it had been sent, so it is the same on
 * all ranks. False: the wait was given up.
 *
 * Entries of several peers arrive at different times. If part of a warp continued early, the warp
 * would execute the reduction once per part. So the threads of a warp wait for each other: four
 * ranks on two H200s take 3.70 us for 64 KiB of fp8 (3.82 without), 6.52 for 512 KiB of bf16
 * (6.67); eight ranks take 7.53 for 256 KiB (8.26). Two ranks took 0.1 us longer with it, and long
 * messages with few blocks 2 %. */
template <int N, class R, class W>
SYMWIN_DEVICE bool sw_entries_reduce(const struct sw_kernel_args &args, sw_call &call,
                                     uint64_t address, const uint64_t own[W::words],
                                     uint64_t result[W::words])
{
    const bool together = N > 2 && !W::flows;
    R sum[W::words] = {};

    for (int32_t first = 0; first < sw_ranks<N>(args); first += sw_batch<N>::ranks) {
        const uint64_t from = address + (uint64_t)first * 2 * args.slot_bytes;
        const uint32_t warp = together ? symwin_warp_here() : 0;
        typename W::entry entry[sw_batch<N>::ranks];
        const bool came = sw_entries_await<N, W>(args, call, from, first, entry);

        if (together)
            symwin_warp_meet(warp);
        if (!came)
            return false;
        SYMWIN_UNROLL
        for (int j = 0; j < sw_batch<N>::ranks; j++) {
            uint64_t word[W::words];

            if (N == 0 && first + j >= args.nranks)
                break;
            W::decode(entry[j], word);
            SYMWIN_UNROLL
            for (int k = 0; k < W::words; k++) {
                const uint64_t operand = first + j == args.rank ? W::spare(own[k]) : word[k];

                if (first + j == 0)
                    sum[k].first(operand, args.op);
                else
                    sum[k].add(operand, args.op);
            }
        }
    }
    SYMWIN_UNROLL
    for (int k = 0; k < W::words; k++)
        result[k] = W::spare(sum[k].result(args.op, sw_ranks<N>(args)));
    return true;
}

/* Empties the entries of all ranks of `From`, which have been read. */
template <int N, class W, class From = sw_from_peers<N>>
SYMWIN_DEVICE void sw_entries_empty(const struct sw_kernel_args &args, uint64_t address)
{
    SYMWIN_UNROLL
    for (int32_t p = 0; p < sw_ranks<N>(args); p++)
        if (From::has(args, p))
            W::store(address + (uint64_t)p * 2 * args.slot_bytes, W::empty());
}

#endif
