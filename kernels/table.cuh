/* Collectives by push whose parts have unequal lengths: a table in the arguments, or in device
 * memory, says what each rank's part of `in` and `out` is (table_layout.h). A kernel says what it
 * does with what it receives; the rest is here.
 *
 * Who knows what. A rank knows what it sends to each peer and what it receives from each, and
 * nothing of the others. What travels from r to p depends only on its length, which both know, and
 * on what both have agreed on: slots and types.
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
 * its own counts. The words need no epoch: the reader makes them zero, and a peer writes the same
 * word two calls later, when it has seen this rank's header of the call between. A receiver never
 * relies on what it is told: it stores as much as its own table says. If counts differ, both ranks
 * of the pair report both (failure.cuh), and ranks that wait for entries leave. A rank that needs
 * nothing from the two may have ended the call, and fails in the next.
 *
 * A part in a table in device memory that passes the end of its buffer, or has elements although
 * the buffer is NULL, is treated as empty, and reported.
 */
#ifndef SYMWIN_KERNELS_TABLE_CUH
#define SYMWIN_KERNELS_TABLE_CUH

#include "stages.cuh"

/* Entries that a thread has in flight. */
enum { SW_TABLE_BATCH = 4 };

/* ---- parts ----------------------------------------------------------------------------------- */

struct sw_table_part {
    uint64_t address;
    uint64_t bytes;            /* 0 if it is not there */
    uint64_t count;            /* elements, as the table says */
    uint64_t end;              /* of it in the buffer, in elements; UINT64_MAX: more than that */
    enum sw_kernel_code wrong; /* SW_KERNEL_OK: it is there; _NULL, or _ROOM */
};

/* The part for rank p, or from it, in the buffer at `buffer`. */
SYMWIN_DEVICE sw_table_part sw_table_part_of(const struct sw_table_args &args,
                                             const struct sw_table_side &side, uint64_t buffer,
                                             int32_t p)
{
    const uint64_t at = (uint32_t)p;
    uint64_t count, place = 0;
    sw_table_part part;

    if (side.counts == 0) {
        count = side.rows[p].count;
        place = side.rows[p].place;
    } else {
        count = symwin_load_u64(side.counts + at * side.step);
        if (side.places != 0)
            place = symwin_load_u64(side.places + at * 8);
    }
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
    return sw_table_part_of(args, args.in, args.call.in, p);
}

SYMWIN_DEVICE sw_table_part sw_table_out(const struct sw_table_args &args, int32_t p)
{
    return sw_table_part_of(args, args.out, args.call.out, p);
}

/* How a pair's part is divided into rounds. */
template <class W>
SYMWIN_DEVICE sw_rounds sw_table_rounds(const struct sw_table_args &args, uint64_t bytes)
{
    sw_rounds rounds = sw_rounds_of_bytes<W>(bytes, args.call.slot_bytes / W::bytes);

    if (bytes == 0) {
        rounds.count = 0;
    } else if (rounds.count % 2 == 0) {
        rounds.count++;
        rounds.extent = (uint32_t)(((bytes + W::words * 8 - 1) / (W::words * 8) + rounds.count -
                                    1) /
                                   rounds.count);
    }
    return rounds;
}

/* Turns of a thread: the most rounds of a pair. */
template <class W>
SYMWIN_DEVICE uint32_t sw_table_turns(const struct sw_table_args &args)
{
    uint32_t most = 1;

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.call.nranks; p++) {
        const uint32_t out = sw_table_rounds<W>(args, sw_table_in(args, p).bytes).count;
        const uint32_t in = sw_table_rounds<W>(args, sw_table_out(args, p).bytes).count;

        if (p == args.call.rank)
            continue;
        most = out > most ? out : most;
        most = in > most ? in : most;
    }
    return most;
}

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

/* What rank p says that it sends here (`which` is 0) or receives from here; this rank says the same
 * of itself. False: the wait was given up. */
SYMWIN_DEVICE bool sw_counts_take(const struct sw_table_args &args, sw_call &call, int32_t p,
                                  uint32_t which, uint64_t *count)
{
    const uint64_t address = call.state +
                             SW_STATE_COUNTS(args.call.nranks, call.epoch & 1, which, p);
    sw_wait wait = {0, 0, 0};
    uint64_t word;

    while (word = symwin_load_relaxed_u64(address), word == 0)
        if (!sw_wait_on(args.call, call, wait, p))
            return false;
    symwin_store_relaxed_u64(address, 0);
    *count = word - 1;
    return true;
}

/* By the control threads of block 0, after the peers' headers: compares what ranks say with what
 * this rank sends and receives, and its own parts with the room in its buffers. */
SYMWIN_DEVICE void sw_counts_check(const struct sw_table_args &args, sw_call &call,
                                   const sw_role &role)
{
    for (int32_t p = role.control_lane; p < args.call.nranks && !call.failed;
         p += role.control_lanes) {
        const sw_table_part in = sw_table_in(args, p), out = sw_table_out(args, p);
        uint64_t sent = in.count, received = out.count; /* by this rank to itself */

        if (out.wrong == SW_KERNEL_NULL || (out.wrong != SW_KERNEL_OK && args.out.step != 0))
            sw_counts_differ(call, out.wrong, p, out.end, args.out.room, 1);
        else if (in.wrong == SW_KERNEL_NULL || (in.wrong != SW_KERNEL_OK && args.in.step != 0))
            sw_counts_differ(call, in.wrong, p, in.end, args.in.room, 0);
        else if (p != args.call.rank && (!sw_counts_take(args, call, p, 0, &sent) ||
                                         !sw_counts_take(args, call, p, 1, &received)))
            return;
        else if (sent != out.count)
            sw_counts_differ(call, SW_KERNEL_COUNTS, p, sent, out.count, 1);
        else if (received != in.count)
            sw_counts_differ(call, SW_KERNEL_COUNTS, p, in.count, received, 0);
    }
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Sends round `c`. */
template <class Receive>
SYMWIN_DEVICE void sw_table_send(const struct sw_table_args &args, const sw_call &call,
                                 const sw_role &role, uint32_t c)
{
    typedef typename Receive::element R;
    typedef typename Receive::wire W;
    const uint64_t place = sw_slot_place<0>(args.call, call.round + c, args.call.rank, 0);

    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step < args.call.nranks; step++) {
        const int32_t p = sw_rank_after<0>(args.call, step);
        const sw_table_part from = sw_table_in(args, p);
        const sw_rounds rounds = sw_table_rounds<W>(args, from.bytes);
        const sw_part part = sw_part_of<W>(from.address, rounds, c);
        const uint64_t to = sw_state_address(args.call, call, p, place);

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; c < rounds.count && i < rounds.extent;
             i += SW_TABLE_BATCH * role.workers) {
            uint64_t word[SW_TABLE_BATCH][W::words];

            SYMWIN_UNROLL
            for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
                if (i + j * role.workers < rounds.extent)
                    sw_entry_load<R, W>(part, i + j * role.workers, word[j]);
                else if (Receive::changes)
                    word[j][0] = 0;
            Receive::input(args, word);
            SYMWIN_UNROLL
            for (uint32_t j = 0; j < SW_TABLE_BATCH; j++)
                if (i + j * role.workers < rounds.extent)
                    W::store(to + (uint64_t)(i + j * role.workers) * W::bytes, W::encode(word[j]));
        }
    }
}

/* Waits for the thread's entries i, i + workers, ..., B of them, of `extent` from rank p at
 * `slots`. False: the wait was given up. */
template <class W, int B = SW_TABLE_BATCH>
SYMWIN_DEVICE bool sw_table_await(const struct sw_table_args &args, sw_call &call,
                                  const sw_role &role, int32_t p, uint64_t slots, uint32_t extent,
                                  uint32_t i, typename W::entry entry[B])
{
    sw_wait wait = {0, 0, 0};

    for (;;) {
        bool all = true;

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < B; j++) {
            const uint32_t at = i + j * role.workers;

            entry[j] = W::empty();
            W::load_if(at < extent, slots + (uint64_t)at * W::bytes, &entry[j]);
        }
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < B; j++)
            all = all && (W::is_there(entry[j]) || i + j * role.workers >= extent);
        if (all)
            return true;
        if (!sw_wait_on(args.call, call, wait, p))
            return false;
    }
}

template <class W, int B = SW_TABLE_BATCH>
SYMWIN_DEVICE void sw_table_empty(const sw_role &role, uint64_t slots, uint32_t extent, uint32_t i)
{
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < B; j++)
        if (i + j * role.workers < extent)
            W::store(slots + (uint64_t)(i + j * role.workers) * W::bytes, W::empty());
}

/* Answers the entries of round `c`, which this thread has emptied. */
template <class W>
SYMWIN_DEVICE void sw_table_answer(const struct sw_table_args &args, const sw_call &call,
                                   const sw_role &role, uint32_t c)
{
    const uint64_t place = sw_slot_place<0>(args.call, call.round + c, args.call.rank, 1);
    const uint64_t nothing[W::words] = {};

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.call.nranks; p++) {
        const sw_rounds rounds = sw_table_rounds<W>(args, sw_table_out(args, p).bytes);
        const uint64_t to = sw_state_address(args.call, call, p, place);

        if (p == args.call.rank || c + 1 >= rounds.count)
            continue;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers)
            W::store(to + (uint64_t)i * W::bytes, W::encode(nothing));
    }
}

/* Takes the answers to round `c`. False: the wait was given up. */
template <class W>
SYMWIN_DEVICE bool sw_table_take_answers(const struct sw_table_args &args, sw_call &call,
                                         const sw_role &role, uint32_t c)
{
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.call.nranks; p++) {
        const sw_rounds rounds = sw_table_rounds<W>(args, sw_table_in(args, p).bytes);
        const uint64_t slots = call.state + sw_slot_place<0>(args.call, call.round + c, p, 1);

        if (p == args.call.rank || c + 1 >= rounds.count)
            continue;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += SW_TABLE_BATCH * role.workers) {
            typename W::entry entry[SW_TABLE_BATCH];

            if (!sw_table_await<W>(args, call, role, p, slots, rounds.extent, i, entry))
                return false;
            sw_table_empty<W>(role, slots, rounds.extent, i);
        }
    }
    return true;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* `Receive` has the type of elements, the wire format, and
 *   changes, input(args, word)   whether, and how, it makes of words of the input what is sent
 *   round(args, call, role, c)   receives and empties round `c`, and with the first one handles
 *                                this rank's own part. If the wait is given up, call.failed is
 *                                set. */
template <class Receive>
SYMWIN_DEVICE void sw_table_run(const struct sw_table_args &args)
{
    typedef typename Receive::wire W;
    const sw_role role = sw_role_of_thread();
    const bool tells = role.control_lane >= 0 && blockIdx.x == 0;
    uint32_t turns = 0;
    sw_call call;

    sw_call_order();
    call = sw_call_read(args.call);
    if (role.works && !call.failed)
        sw_table_send<Receive>(args, call, role, 0);
    if (tells && !call.failed)
        sw_counts_post(args, call, role);
    sw_push_settle(args.call, call, role, 1);
    if (tells && !call.failed)
        sw_counts_check(args, call, role);
    if (role.works)
        turns = sw_table_turns<W>(args);
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0; c < turns && !call.failed; c++) {
        if (c > 0)
            sw_table_send<Receive>(args, call, role, c);
        Receive::round(args, call, role, c);
        if (call.failed || c + 1 == turns)
            break;
        symwin_fence();
        sw_table_answer<W>(args, call, role, c);
        if (!sw_table_take_answers<W>(args, call, role, c))
            break;
        symwin_fence();
    }
    sw_push_end<W>(args.call, call);
}

#endif
