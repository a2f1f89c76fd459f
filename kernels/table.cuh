/* Collectives by push whose parts have unequal lengths: a table in the arguments, or in device
 * memory, says what each rank's part of `in` and `out` is (table_layout.h). A kernel says what it
 * does with what it receives; the rest is here.
 *
 * Who knows what. A rank knows what it sends to each peer and what it receives from each, and
 * nothing of the others. What travels from r to p depends only on its length, which both know, on
 * what both have agreed on, slots and types, and of large parts on a word of p, or of r
 * (table_parts.cuh).
 *
 * Rounds. A pair's part travels in an odd number of rounds, or in none if it is empty. Round c uses
 * the slots of parity (q + c) & 1, where q is the number of the call's first round (push.cuh). The
 * call counts as one round of the communicator, however many rounds its pairs have. So its last
 * round has the parity of q for every pair, and the next call finds what it finds after a call of
 * one round.
 *
 * Halves. Entries go through the first half of a slot. Whoever receives round c answers each entry,
 * unless the round is the pair's last: with an entry that carries nothing, into the second half of
 * the sender's slot, after all its entries of the round are empty and a fence. The sender takes the
 * answers of a round before it sends the next. Entry i of a round, and its answer, are handled by
 * the thread i mod workers on either side. Most pairs have one round, and no answers.
 *
 * Lanes. A thread has an entry in flight in each of four lanes, of several peers: it loads those of
 * four peers before it stores one, and awaits those of four together. With few peers a peer has
 * several lanes. The first loads are under way when the thread reads its call.
 *
 * Why no entry meets another. Let Z be the call before this one.
 *   Round 0 of r to p is like round q of other calls: the proof is in push.cuh.
 *   Round 1: r has p's answer to round 0, so p had ended Z before, and had emptied all that came
 *     in it.
 *   Round c > 1: r has the answer to round c - 1. p's thread emptied the entry of round c - 2
 *     before it sent that.
 *   Answers to round c of r to p, in r's slots: p has an entry of round c, which r's thread sent
 *     after it had ended Z and had emptied the answers to rounds before c, with a fence.
 *   The next call begins with the other parity than q. There it finds nothing of this call: the
 *     last that used it are round K - 2 of K and its answers, which are empty before r's thread
 *     sends round K - 1, and so before p has ended the call. Of Z it finds nothing either: both
 *     have seen the other's header of this call.
 *
 * There is no circular wait. A thread goes through turns c = 0, 1, ...: it sends round c to all for
 * whom there is one, receives round c from all, answers, and takes answers. What it waits for in
 * turn c depends on turns before c only, since all send before they wait.
 *
 * Counts. Block 0 tells each peer with its header how many elements it sends there and how many it
 * receives from there, in words of their own (SW_STATE_COUNTS), and compares what it is told with
 * its own counts. It looks for a peer's header and counts at the same time, and uses counts only if
 * the header is that of this call. The words need no epoch: the reader makes them zero, and a peer
 * writes the same word two calls later, when it has seen this rank's header of the call between. A
 * receiver never relies on what it is told: it stores as much as its own table says. If counts
 * differ, both ranks of the pair report both (failure.cuh), and ranks that wait for entries leave.
 * A rank that needs nothing from the two may have ended the call, and fails in the next.
 */
#ifndef SYMWIN_KERNELS_TABLE_CUH
#define SYMWIN_KERNELS_TABLE_CUH

#include "table_parts.cuh"

/* ---- counts ---------------------------------------------------------------------------------- */

/* By the control threads of block 0, before any wait. */
SYMWIN_DEVICE void sw_counts_post(const struct sw_table_args &args, const sw_call &call,
                                  const sw_role &role)
{
    for (int32_t p = role.control_lane; p < args.call.nranks; p += role.control_lanes) {
        const uint64_t counts[2] = {sw_table_in(args, p).count, sw_table_out(args, p).count};

        for (uint32_t which = 0; which < 2 && p != args.call.rank; which++)
            symwin_store_relaxed_u64(
                sw_state_address(
                    args.call, call, p,
                    SW_STATE_COUNTS(args.call.nranks, call.epoch & 1, which, args.call.rank)),
                counts[which] + 1);
    }
}

/* Waits for rank p's header, and for what it says that it sends here and receives from here. False:
 * the wait was given up. */
SYMWIN_DEVICE bool sw_counts_take(const struct sw_table_args &args, sw_call &call, int32_t p,
                                  uint64_t *sent, uint64_t *received)
{
    const uint64_t header_at = call.state + SW_STATE_HEADER(args.call.nranks, call.epoch & 1, p);
    const uint64_t header = (uint64_t)call.epoch << 32 | args.call.digest;
    const uint64_t sent_at = call.state + SW_STATE_COUNTS(args.call.nranks, call.epoch & 1, 0, p);
    const uint64_t received_at = call.state +
                                 SW_STATE_COUNTS(args.call.nranks, call.epoch & 1, 1, p);
    sw_wait wait = {0, 0, 0};
    bool called = false; /* its header has been checked */

    for (;;) {
        const uint64_t says = symwin_load_relaxed_u64(header_at);

        *sent = symwin_load_relaxed_u64(sent_at);
        *received = symwin_load_relaxed_u64(received_at);
        if ((called || says == header) && *sent != 0 && *received != 0)
            break;
        if (!sw_wait_turn(wait))
            continue;
        if (!called)
            sw_headers_check(args.call, call, SW_HEADER_RELAXED, p, args.call.nranks);
        called = true;
        if (call.failed || !sw_wait_look(args.call, call, wait, p))
            return false;
    }
    symwin_store_relaxed_u64(sent_at, 0);
    symwin_store_relaxed_u64(received_at, 0);
    *sent -= 1;
    *received -= 1;
    return true;
}

/* Whether it is said of this side that a part of it is wrong. Where all ranks' are the same (no
 * step), a part that passes the room of both buffers is said of the other side. */
SYMWIN_DEVICE bool sw_counts_blame(const struct sw_table_side &side,
                                   const struct sw_table_side &other, const sw_table_part &part)
{
    return part.wrong == SW_KERNEL_NULL ||
           (part.wrong != SW_KERNEL_OK && (side.step != 0 || part.count <= other.room));
}

/* By the control threads of block 0: waits for the peers' headers and counts, compares what ranks
 * say with what this rank sends and receives, and its own parts with the room in its buffers. */
SYMWIN_DEVICE void sw_counts_check(const struct sw_table_args &args, sw_call &call,
                                   const sw_role &role)
{
    for (int32_t p = role.control_lane; p < args.call.nranks && !call.failed;
         p += role.control_lanes) {
        const sw_table_part in = sw_table_in(args, p), out = sw_table_out(args, p);
        uint64_t sent = in.count, received = out.count; /* by this rank to itself */

        if (sw_counts_blame(args.out, args.in, out))
            sw_counts_differ(call, out.wrong, p, out.end, args.out.room, 1);
        else if (sw_counts_blame(args.in, args.out, in))
            sw_counts_differ(call, in.wrong, p, in.end, args.in.room, 0);
        else if (p != args.call.rank && !sw_counts_take(args, call, p, &sent, &received))
            return;
        else if (sent != out.count)
            sw_counts_differ(call, SW_KERNEL_COUNTS, p, sent, out.count, 1);
        else if (received != in.count)
            sw_counts_differ(call, SW_KERNEL_COUNTS, p, in.count, received, 0);
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Entries that a thread has in flight. */
enum { SW_TABLE_BATCH = 4 };

/* A thread has SW_TABLE_BATCH entries in flight, each in a lane. Lanes are for as many peers as
 * there are, from the rank `step` after this one on: for four, or for two with two entries of each,
 * or for one with four. */
template <class W>
struct sw_lanes {
    int32_t step;
    uint32_t shift;  /* a peer has 1 << shift lanes */
    uint32_t extent; /* the most entries of a peer in the round */
    int32_t rank[SW_TABLE_BATCH];
    uint32_t entries[SW_TABLE_BATCH]; /* of the round; 0: there is no such peer, or no such round */
    uint64_t address[SW_TABLE_BATCH]; /* of the round's part in this rank's memory */
    uint64_t bytes[SW_TABLE_BATCH];
};

/* Not kept, since it takes more registers. */
template <class W>
SYMWIN_DEVICE sw_part sw_lane_part(const sw_lanes<W> &lanes, uint32_t j)
{
    return sw_part_at<W>(lanes.address[j], lanes.bytes[j], 0, lanes.entries[j]);
}

/* Entry of lane `j` in the batch that begins with entry `i`. */
template <class W>
SYMWIN_DEVICE uint32_t sw_lane_entry(const sw_lanes<W> &lanes, const sw_role &role, uint32_t i,
                                     uint32_t j)
{
    return i + (j & ((1u << lanes.shift) - 1)) * role.workers;
}

/* Where it is in this rank's slots; `slots` is that of rank 0. */
template <class W>
SYMWIN_DEVICE uint64_t sw_lane_slot(const struct sw_table_args &args, const sw_lanes<W> &lanes,
                                    const sw_role &role, uint64_t slots, uint32_t i, uint32_t j)
{
    return slots + (uint64_t)(uint32_t)lanes.rank[j] * 2 * args.call.slot_bytes +
           (uint64_t)sw_lane_entry(lanes, role, i, j) * W::bytes;
}

template <class W>
SYMWIN_DEVICE bool sw_lane_has(const sw_lanes<W> &lanes, const sw_role &role, uint32_t i,
                               uint32_t j)
{
    return sw_lane_entry(lanes, role, i, j) < lanes.entries[j];
}

/* What this rank sends to peers in round `c`, or receives from them; `most`: the most rounds that a
 * pair has so far. All rows are loaded before one is used. */
template <class W, sw_large large, bool sends>
SYMWIN_DEVICE void sw_lanes_find(const struct sw_table_args &args, const sw_call &call,
                                 int32_t step, uint32_t c, sw_lanes<W> &lanes, uint32_t &most)
{
    const struct sw_table_side &side = sends ? args.in : args.out;
    const uint64_t buffer = sends ? args.call.in : args.call.out;
    const int32_t left = args.call.nranks - step;
    sw_table_row row[SW_TABLE_BATCH];

    lanes.step = step;
    lanes.shift = left > 2 ? 0 : left == 2 ? 1 : 2;
    lanes.extent = 0;
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_TABLE_BATCH; j++) {
        const int32_t at = (int32_t)(j >> lanes.shift);

        lanes.rank[j] = at < left ? sw_rank_after<0>(args.call, step + at) : args.call.rank;
    }
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
        row[j] = sw_table_row_of(side, lanes.rank[j]);
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_TABLE_BATCH; j++) {
        const int32_t p = lanes.rank[j];
        const sw_table_part part = sw_table_part_of(args, side, buffer, row[j]);
        const sw_rounds rounds = sends ? sw_rounds_to<W, large>(args, call, p, part)
                                       : sw_rounds_from<W, large>(args, call, p, part);
        const uint32_t count = p == args.call.rank ? 0 : rounds.count;
        const sw_part of_round = sw_part_of<W>(part.address, rounds, c);

        lanes.entries[j] = c < count ? rounds.extent : 0;
        lanes.address[j] = of_round.message.address;
        lanes.bytes[j] = of_round.message.bytes;
        lanes.extent = lanes.entries[j] > lanes.extent ? lanes.entries[j] : lanes.extent;
        most = count > most ? count : most;
    }
}

/* The step after these lanes' peers. */
template <class W>
SYMWIN_DEVICE int32_t sw_lanes_next(const sw_lanes<W> &lanes)
{
    return lanes.step + (SW_TABLE_BATCH >> lanes.shift);
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Sends round `c`. With `reads` the call is read on the way, when the first entries are being
 * loaded. */
template <class Receive>
SYMWIN_DEVICE void sw_table_send(const struct sw_table_args &args, sw_call &call,
                                 const sw_role &role, uint32_t c, bool reads, uint32_t &most)
{
    typedef typename Receive::wire W;
    sw_lanes<W> lanes;

    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step < args.call.nranks; step = sw_lanes_next(lanes)) {
        sw_lanes_find<W, Receive::large, true>(args, call, step, c, lanes, most);
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < lanes.extent; i += role.workers << lanes.shift) {
            uint64_t word[SW_TABLE_BATCH][W::words], place;

            SYMWIN_UNROLL
            for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
                if (sw_lane_has(lanes, role, i, j))
                    sw_entry_load<sw_byte, W>(sw_lane_part(lanes, j),
                                              sw_lane_entry(lanes, role, i, j), word[j]);
                else if (Receive::changes)
                    word[j][0] = 0;
            if (reads)
                call = sw_call_read(args.call);
            reads = false;
            if (call.failed)
                return;
            Receive::input(args, word);
            place = sw_slot_place<0>(args.call, call.round + c, args.call.rank, 0);
            SYMWIN_UNROLL
            for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
                if (sw_lane_has(lanes, role, i, j))
                    W::store(sw_state_address(args.call, call, lanes.rank[j], place) +
                                 (uint64_t)sw_lane_entry(lanes, role, i, j) * W::bytes,
                             W::encode(word[j]));
        }
    }
    if (reads)
        call = sw_call_read(args.call);
}

/* Waits for the entries of a batch; `slots` is that of rank 0. False: the wait was given up. */
template <class W>
SYMWIN_DEVICE bool sw_lanes_await(const struct sw_table_args &args, sw_call &call,
                                  const sw_role &role, const sw_lanes<W> &lanes, uint64_t slots,
                                  uint32_t i, typename W::entry entry[SW_TABLE_BATCH])
{
    sw_wait wait = {0, 0, 0};

    for (;;) {
        int32_t missing = args.call.rank;

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_TABLE_BATCH; j++) {
            entry[j] = W::empty();
            W::load_if(sw_lane_has(lanes, role, i, j), sw_lane_slot(args, lanes, role, slots, i, j),
                       &entry[j]);
        }
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
            if (sw_lane_has(lanes, role, i, j) && !W::is_there(entry[j]))
                missing = lanes.rank[j];
        if (missing == args.call.rank)
            return true;
        if (!sw_wait_on(args.call, call, wait, missing))
            return false;
    }
}

template <class W>
SYMWIN_DEVICE void sw_lanes_empty(const struct sw_table_args &args, const sw_role &role,
                                  const sw_lanes<W> &lanes, uint64_t slots, uint32_t i)
{
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
        if (sw_lane_has(lanes, role, i, j))
            W::store(sw_lane_slot(args, lanes, role, slots, i, j), W::empty());
}

/* Answers the entries of round `c`, which this thread has emptied. */
template <class W, sw_large large>
SYMWIN_DEVICE void sw_table_answer(const struct sw_table_args &args, const sw_call &call,
                                   const sw_role &role, uint32_t c)
{
    const uint64_t place = sw_slot_place<0>(args.call, call.round + c, args.call.rank, 1);
    const uint64_t nothing[W::words] = {};

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.call.nranks; p++) {
        const sw_rounds rounds = sw_rounds_from<W, large>(args, call, p, sw_table_out(args, p));
        const uint64_t to = sw_state_address(args.call, call, p, place);

        if (p == args.call.rank || c + 1 >= rounds.count)
            continue;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers)
            W::store(to + (uint64_t)i * W::bytes, W::encode(nothing));
    }
}

/* Takes the answers to round `c`: as many as there are entries of the next one. False: the wait was
 * given up. */
template <class W, sw_large large>
SYMWIN_DEVICE bool sw_table_take_answers(const struct sw_table_args &args, sw_call &call,
                                         const sw_role &role, uint32_t c)
{
    const uint64_t slots = call.state + sw_slot_place<0>(args.call, call.round + c, 0, 1);
    sw_lanes<W> lanes;
    uint32_t most = 0;

    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step < args.call.nranks; step = sw_lanes_next(lanes)) {
        sw_lanes_find<W, large, true>(args, call, step, c + 1, lanes, most);
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < lanes.extent; i += role.workers << lanes.shift) {
            typename W::entry entry[SW_TABLE_BATCH];

            if (!sw_lanes_await(args, call, role, lanes, slots, i, entry))
                return false;
            sw_lanes_empty(args, role, lanes, slots, i);
        }
    }
    return true;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* By all threads, around the first round: tells the peers of the call, checks what they tell.
 * `straight`: this rank has large parts. */
template <class Receive>
SYMWIN_DEVICE void sw_table_settle(const struct sw_table_args &args, sw_call &call,
                                   const sw_role &role, bool straight)
{
    const bool tells = role.control_lane >= 0 && blockIdx.x == 0;

    if (tells && !call.failed)
        sw_counts_post(args, call, role);
    if constexpr (Receive::large != SW_LARGE_NONE)
        if (straight && tells && !call.failed)
            sw_places_post<Receive>(args, call, role);
    sw_push_count(args.call, call, role, 1);
    if (tells && !call.failed)
        sw_counts_check(args, call, role);
    if (straight)
        sw_places_await<Receive::large>(args, call);
}

/* `Receive` has the wire format, and
 *   large                        what it does with large parts
 *   scalar(args)                 of this rank, for those who load its parts
 *   changes, input(args, word)   whether, and how, it makes of words of the input what is sent
 *   begin(args, role, own)       loads the thread's first word of this rank's own part
 *   keep(args, role, own)        does with the own part what need not wait for peers
 *   round(args, call, role, c, own, most)
 *                                receives and empties round `c`, the first time also what it loads.
 *                                If the wait is given up, call.failed is set. `most` becomes the
 *                                most rounds of a pair that it sees
 * `has_large`: false: this rank has no large parts. */
template <class Receive>
SYMWIN_DEVICE void sw_table_run(const struct sw_table_args &args, bool has_large = true)
{
    typedef typename Receive::wire W;
    const sw_role role = sw_role_of_thread();
    const bool straight = Receive::large != SW_LARGE_NONE && has_large;
    const bool reads = !straight && role.works; /* the call, while it sends */
    uint64_t own[W::words] = {};
    uint32_t turns = 1;
    sw_call call = {};

    sw_call_order();
    if (!reads)
        call = sw_call_read(args.call);
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0;; c++) {
        if (straight && c == 0) {
            if (role.works && !call.failed)
                Receive::keep(args, role, own);
            sw_table_settle<Receive>(args, call, role, true);
            if (Receive::large == SW_LARGE_STORED && role.works && !call.failed)
                sw_parts_store<W>(args, call, role);
        }
        if (role.works && !call.failed)
            sw_table_send<Receive>(args, call, role, c, reads && c == 0, turns);
        if (role.works && !call.failed && c == 0)
            Receive::begin(args, role, own);
        if (!straight && c == 0)
            sw_table_settle<Receive>(args, call, role, false);
        if (!role.works || call.failed)
            break;
        if (!straight && c == 0)
            Receive::keep(args, role, own);
        Receive::round(args, call, role, c, own, turns);
        if (call.failed || c + 1 >= turns)
            break;
        symwin_fence();
        sw_table_answer<W, Receive::large>(args, call, role, c);
        if (!sw_table_take_answers<W, Receive::large>(args, call, role, c))
            break;
        symwin_fence();
    }
    if (straight)
        sw_parts_land<Receive::large>(args, call);
    sw_push_end<W>(args.call, call);
}

#endif
