/* What the kernels that push have in common: entries and slots, rounds, and who does what in a block.
 *
 * Entries. Each rank has receive slots in its own memory, rows of entries of 16 bytes. An entry that is zero
 * is empty. A sender stores one as two words of eight bytes, neither of which is zero: the wire formats below
 * see to that. The receiver polls until both words are there, takes them and stores zeros. Each word says by
 * itself that it has arrived, so there is no flag to fetch, no fence and no barrier. (PTX takes a vector
 * access for one relaxed access an element, in no given order: "Memory Consistency Model", vector data types.)
 *
 * Rounds. A message that exceeds the slots goes in rounds of one size, the last filled up with zeros. Rounds
 * are counted over all calls; round q uses the slots of parity q & 1. Every thread handles the same entries in
 * each round of a call, and goes on to the next round when it has sent and received all of them.
 *
 * Why two parities are enough: when rank r stores an entry of round q into rank p's slot, p has emptied it of
 * what any round up to q - 2 left there. Let A be the call of round q - 1.
 *   q in A too: in round q - 1 the thread that stores has received from p an entry that p sent by the very
 *     thread that empties the entry in question (each kernel says why), and did so after it had emptied it of
 *     round q - 2, if that is in A; a fence between rounds puts the emptying before the sending for everybody.
 *     If q - 2 is of an earlier call, p ended that call before it sent anything in A.
 *   q in the next call: r's kernel A has ended, so it has seen p's header: p was in A and had ended all calls
 *     before, and if q - 2 is in A, r has received all of p's entries of q - 1, each sent after p's thread had
 *     emptied its entries of q - 2.
 * Calls over windows in between change nothing. An entry that nobody sends stays zero.
 *
 * Blocks. The last warp of a block of more than one is the usher: it exchanges headers, counts the block in and
 * moves the epochs while the others, the workers, send and receive. In a block of one warp or less
 * all threads are both. Threads give up only after all of their block have begun, so that block 0 has told its
 * peers of the call, whatever comes.
 */
#ifndef SYMWIN_KERNELS_PUSH_CUH
#define SYMWIN_KERNELS_PUSH_CUH

#include "call.cuh"
#include "reduce.cuh"
#include "words.cuh"

#define SW_ENTRY_BYTES 16

/* ---- what travels in an entry ---------------------------------------------------------------- */

/* Two words of a type that can spare a pattern: all ones, a NaN of every floating-point type here. It is
 * replaced by another NaN, and words travel inverted. */
struct sw_wire_sentinel {
    enum { words = 2 };

    SYMWIN_DEVICE uint64_t spare(uint64_t word)
    {
        return word == ~(uint64_t)0 ? ~(uint64_t)0 >> 1 : word;
    }

    SYMWIN_DEVICE symwin_v16 encode(const uint64_t *word)
    {
        return {~spare(word[0]), ~spare(word[1])};
    }

    SYMWIN_DEVICE void decode(const symwin_v16 &entry, uint64_t *word)
    {
        word[0] = ~entry.lo;
        word[1] = ~entry.hi;
    }
};

/* One word of any type, half of it beside each of two flags. */
struct sw_wire_flags {
    enum { words = 1 };

    SYMWIN_DEVICE uint64_t spare(uint64_t word)
    {
        return word;
    }

    SYMWIN_DEVICE symwin_v16 encode(const uint64_t *word)
    {
        const uint64_t flag = (uint64_t)1 << 32;

        return {(word[0] & 0xffffffffu) | flag, word[0] >> 32 | flag};
    }

    SYMWIN_DEVICE void decode(const symwin_v16 &entry, uint64_t *word)
    {
        word[0] = (entry.lo & 0xffffffffu) | entry.hi << 32;
    }
};

template <bool spares>
struct sw_wire_of {
    typedef sw_wire_flags type;
};
template <>
struct sw_wire_of<true> {
    typedef sw_wire_sentinel type;
};

/* Entry `index` of a message, zeros beyond its end; and back. */
template <class R, class W>
SYMWIN_DEVICE void sw_entry_load(const sw_message &message, uint64_t index, uint64_t word[W::words])
{
    if (W::words == 2 && sw_is_whole_vector(message, index)) {
        const symwin_v16 v = symwin_load_v16(message.address + index * 16);

        word[0] = v.lo;
        word[W::words - 1] = v.hi;
        return;
    }
    SYMWIN_UNROLL
    for (int k = 0; k < W::words; k++)
        word[k] = sw_word_load<R::bytes>(message, index * W::words + (uint64_t)k);
}

template <class R, class W>
SYMWIN_DEVICE void sw_entry_store(const sw_message &message, uint64_t index,
                                  const uint64_t word[W::words])
{
    if (W::words == 2 && sw_is_whole_vector(message, index)) {
        symwin_store_v16(message.address + index * 16, {word[0], word[W::words - 1]});
        return;
    }
    SYMWIN_UNROLL
    for (int k = 0; k < W::words; k++)
        sw_word_store<R::bytes>(message, index * W::words + (uint64_t)k, word[k]);
}

/* ---- roles ----------------------------------------------------------------------------------- */

struct sw_role {
    bool works;
    int32_t usher; /* its number among the block's; negative: it is none */
    int32_t ushers;
    uint32_t index;   /* a worker's number in the grid */
    uint32_t workers; /* of the grid */
};

SYMWIN_DEVICE sw_role sw_role_of_thread(void)
{
    const bool apart = blockDim.x > 32;
    const uint32_t workers = apart ? blockDim.x - 32 : blockDim.x;
    sw_role role;

    role.works = threadIdx.x < workers;
    role.ushers = apart ? 32 : (int32_t)blockDim.x;
    role.usher = apart ? (int32_t)threadIdx.x - (int32_t)workers : (int32_t)threadIdx.x;
    role.index = blockIdx.x * workers + threadIdx.x;
    role.workers = gridDim.x * workers;
    return role;
}

/* By all threads, first. */
SYMWIN_DEVICE void sw_push_announce(const struct sw_kernel_args &args, const sw_call &call,
                                    const sw_role &role)
{
    if (blockIdx.x == 0 && role.usher >= 0 && !call.failed)
        sw_headers_post(args, call, SW_HEADER_RELAXED, role.usher, role.ushers);
}

/* By all threads, once they have sent the first round. The last block to come here moves the epochs: by then
 * all threads of the grid that use them have used them, so nothing needs an order. A fence would wait until the
 * peers have what has been sent. */
SYMWIN_DEVICE void sw_push_settle(const struct sw_kernel_args &args, sw_call &call,
                                  const sw_role &role, uint32_t rounds)
{
    uint32_t before = 0;

    __syncthreads();
    if (role.usher < 0)
        return;
    if (role.usher == 0)
        before = symwin_add_relaxed_u32(call.state + offsetof(struct sw_comm_state, arrived), 1);
    if (blockIdx.x == 0)
        sw_headers_check(args, call, SW_HEADER_RELAXED, role.usher, role.ushers);
    if (role.usher != 0 || before != gridDim.x - 1)
        return;
    /* Without calls over windows the finish words would keep the epoch of long ago, and 2^32 calls later
     * pass for news. So calls that do not use them refresh one each. */
    symwin_store_relaxed_u64(
        call.state + SW_STATE_FINISH(args.nranks, call.epoch % (uint32_t)args.nranks), call.epoch);
    sw_call_count(call, rounds);
}

/* ---- sending and receiving ------------------------------------------------------------------- */

/* Offset of entry `entry` of the slot for what `source` sends in a round, in half `half` of it: two-shots have one
 * half for each of their stages, one-shots the whole. */
SYMWIN_DEVICE uint64_t sw_entry_place(const struct sw_kernel_args &args, uint32_t round,
                                      int32_t source, uint32_t half, uint64_t entry)
{
    return SW_STATE_SLOT(args.nranks, args.slot_bytes, round & 1, source) + half * args.slot_bytes +
           entry * SW_ENTRY_BYTES;
}

/* Stores an entry into slots of all peers, beginning with the next rank, so that the ranks do not all knock at one
 * door. `place` is that of this rank's slot. */
SYMWIN_DEVICE void sw_entry_send_all(const struct sw_kernel_args &args, const sw_call &call,
                                     uint64_t place, const symwin_v16 &entry)
{
    for (int32_t step = 1; step < args.nranks; step++) {
        const int32_t p = args.rank + step;

        symwin_store_relaxed_v16(
            sw_state_address(args, call, p < args.nranks ? p : p - args.nranks, place), entry);
    }
}

SYMWIN_DEVICE bool sw_entry_is_there(const symwin_v16 &entry)
{
    return entry.lo != 0 && entry.hi != 0;
}

/* Ranks whose entries a thread polls together: their loads overlap. */
#define SW_PUSH_BATCH 4

/* Takes an entry of each peer among ranks first .. first + SW_PUSH_BATCH - 1; `address` is that of the first one's.
 * False when the wait was given up. */
SYMWIN_DEVICE bool sw_entries_take(const struct sw_kernel_args &args, sw_call &call,
                                   uint64_t address, int32_t first, symwin_v16 entry[SW_PUSH_BATCH])
{
    const uint64_t pitch = 2 * args.slot_bytes;
    sw_wait wait = {0, 0, 0};

    for (;;) {
        int32_t missing = -1;

        SYMWIN_UNROLL
        for (int j = 0; j < SW_PUSH_BATCH; j++)
            if (first + j < args.nranks && first + j != args.rank)
                entry[j] = symwin_load_relaxed_v16(address + (uint64_t)j * pitch);
        SYMWIN_UNROLL
        for (int j = 0; j < SW_PUSH_BATCH; j++)
            if (first + j < args.nranks && first + j != args.rank && !sw_entry_is_there(entry[j]))
                missing = first + j;
        if (missing < 0)
            break;
        if (!sw_wait_on(args, call, wait, missing))
            return false;
    }
    SYMWIN_UNROLL
    for (int j = 0; j < SW_PUSH_BATCH; j++)
        if (first + j < args.nranks && first + j != args.rank)
            symwin_store_relaxed_v16(address + (uint64_t)j * pitch, {0, 0});
    return true;
}

/* Takes an entry of every peer and reduces them with this rank's own, in rank order; `address` is that of rank 0's.
 * What comes out has been spared as if it had travelled: it is the same on all ranks. */
template <class R, class W>
SYMWIN_DEVICE bool sw_entries_reduce(const struct sw_kernel_args &args, sw_call &call,
                                     uint64_t address, const uint64_t own[W::words],
                                     uint64_t result[W::words])
{
    R sum[W::words] = {};

    for (int32_t first = 0; first < args.nranks; first += SW_PUSH_BATCH) {
        symwin_v16 entry[SW_PUSH_BATCH];

        if (!sw_entries_take(args, call, address + (uint64_t)first * 2 * args.slot_bytes, first,
                             entry))
            return false;
        SYMWIN_UNROLL
        for (int j = 0; j < SW_PUSH_BATCH; j++) {
            uint64_t word[W::words];

            if (first + j >= args.nranks)
                break;
            W::decode(entry[j], word);
            SYMWIN_UNROLL
            for (int k = 0; k < W::words; k++) {
                const uint64_t operand = first + j == args.rank ? W::spare(own[k]) : word[k];

                if (first + j == 0)
                    sum[k].first(operand);
                else
                    sum[k].add(operand);
            }
        }
    }
    SYMWIN_UNROLL
    for (int k = 0; k < W::words; k++)
        result[k] = W::spare(sum[k].result(args.average, args.nranks));
    return true;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

struct sw_rounds {
    uint64_t entries; /* of the message */
    uint64_t extent;  /* of a round */
    uint32_t count;
};

/* `room`: entries that a round can have. */
template <class R, class W>
SYMWIN_DEVICE sw_rounds sw_rounds_of(const struct sw_kernel_args &args, uint64_t room)
{
    const uint64_t bytes = W::words * 8;
    sw_rounds rounds;

    rounds.entries = (args.count * R::bytes + bytes - 1) / bytes;
    rounds.count = 1;
    rounds.extent = rounds.entries;
    if (rounds.entries > room) { /* else without divisions of 64 bits */
        rounds.count = (uint32_t)((rounds.entries + room - 1) / room);
        rounds.extent = (rounds.entries + rounds.count - 1) / rounds.count;
    }
    return rounds;
}

#endif
