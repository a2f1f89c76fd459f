/* Short calls whose parts have unequal lengths, for a constant number of ranks. What travels is the
 * same as with table.cuh, so each rank may launch one or the other: this one, if its own tables are
 * in the arguments, and each of its parts is whole words, aligned to a word, and has one round or
 * none. The host has checked that.
 *
 * An entry is a word. A thread loads one for each rank, with all loads under way together, and
 * awaits those of all ranks together. There are no answers, since no pair has a second round.
 */
#ifndef SYMWIN_KERNELS_TABLE_SHORT_CUH
#define SYMWIN_KERNELS_TABLE_SHORT_CUH

#include "table.cuh"

/* Parts by steps from this rank: [0] is its own. */
template <int N>
struct sw_short_parts {
    uint64_t address[N];
    uint32_t entries[N];
    uint32_t most; /* of a part */

    SYMWIN_MEMBER void find(const struct sw_table_args &args, const struct sw_table_side &side,
                            uint64_t buffer)
    {
        most = 0;
        SYMWIN_UNROLL
        for (int step = 0; step < N; step++) {
            const struct sw_table_row &row = side.rows[sw_rank_after<N>(args.call, step)];

            address[step] = buffer + row.place * args.element;
            entries[step] = (uint32_t)row.count * (uint32_t)args.element / 8;
            most = entries[step] > most ? entries[step] : most;
        }
    }

    /* Entry `i` of each part that has one, from step `first` on. */
    SYMWIN_MEMBER void load(int first, uint32_t i, uint64_t (&word)[N][1]) const
    {
        SYMWIN_UNROLL
        for (int step = first; step < N; step++)
            if (i < entries[step])
                word[step][0] = sw_element_load<8, SW_OWN>(address[step] + (uint64_t)i * 8);
    }
};

/* `Receive` has
 *   input(args, word)               as in table.cuh
 *   receive(args, call, role, in, own)   receives all entries; own is this rank's first one. If the
 *                                   wait is given up, call.failed is set */
template <int N, class Receive>
SYMWIN_DEVICE void sw_table_run_short(const struct sw_table_args &args)
{
    typedef sw_wire_flags W;
    const sw_role role = sw_role_of_thread();
    uint64_t word[N][1] = {};
    sw_peer_states<N> states;
    sw_short_parts<N> in;
    uint64_t own;
    sw_call call;

    in.find(args, args.in, args.call.in);
    sw_call_order();
    if (role.works)
        in.load(0, role.index, word);
    call = sw_call_read(args.call);
    states.find(args.call);
    own = word[0][0];
    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; role.works && !call.failed && i < in.most; i += role.workers) {
        const uint64_t place = sw_slot_place<N>(args.call, call.round, args.call.rank, 0) +
                               (uint64_t)i * W::bytes;

        if (i != role.index)
            in.load(1, i, word);
        Receive::input(args, word);
        SYMWIN_UNROLL
        for (int step = 1; step < N; step++)
            if (i < in.entries[step])
                W::store(states.after(args.call, step) + place, W::encode(word[step]));
    }
    sw_table_settle<Receive>(args, call, role);
    if (role.works && !call.failed)
        Receive::receive(args, call, role, in, own);
    sw_push_end<W>(args.call, call);
}

/* Waits for entry `i` of all peers that send one; `at` is that of rank 0. False: the wait was given
 * up. */
template <int N>
SYMWIN_DEVICE bool sw_short_await(const struct sw_table_args &args, sw_call &call,
                                  const sw_short_parts<N> &parts, uint64_t at, uint32_t i,
                                  sw_wire_flags::entry (&entry)[N])
{
    typedef sw_wire_flags W;
    sw_wait wait = {0, 0, 0};

    for (;;) {
        int32_t missing = args.call.rank;

        SYMWIN_UNROLL
        for (int step = 1; step < N; step++) {
            const int32_t p = sw_rank_after<N>(args.call, step);

            entry[step] = W::empty();
            W::load_if(i < parts.entries[step],
                       at + (uint64_t)(uint32_t)p * 2 * args.call.slot_bytes, &entry[step]);
        }
        SYMWIN_UNROLL
        for (int step = 1; step < N; step++)
            if (i < parts.entries[step] && !W::is_there(entry[step]))
                missing = sw_rank_after<N>(args.call, step);
        if (missing == args.call.rank)
            return true;
        if (!sw_wait_on(args.call, call, wait, missing))
            return false;
    }
}

#endif
