/* Short calls whose parts have unequal lengths, for a constant number of ranks. What travels is the
 * same as with table.cuh, so each rank may take one or the other: this one, if each of its parts is
 * whole words, aligned to a word, and has one round or none. The host has checked that if the
 * tables are in the arguments; otherwise the kernel does, which has the code of both.
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
    bool large;    /* there is a large one; set by read() */

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

    /* The same of rows that may be in device memory. Whether the parts are such as these calls
     * take. All rows are loaded before one is used. */
    SYMWIN_MEMBER bool read(const struct sw_table_args &args, const struct sw_table_side &side,
                            uint64_t buffer)
    {
        const uint64_t room = args.call.slot_bytes / sw_wire_flags::bytes * 8;
        sw_table_row row[N];
        bool fits = true;

        SYMWIN_UNROLL
        for (int step = 0; step < N; step++)
            row[step] = sw_table_row_of(side, sw_rank_after<N>(args.call, step));
        most = 0;
        large = false;
        SYMWIN_UNROLL
        for (int step = 0; step < N; step++) {
            const sw_table_part part = sw_table_part_of(args, side, buffer, row[step]);

            address[step] = part.address;
            entries[step] = (uint32_t)(part.bytes / 8);
            most = entries[step] > most ? entries[step] : most;
            large = large || part.bytes > args.large;
            fits = fits && (part.bytes == 0 ||
                            ((part.address | part.bytes) % 8 == 0 && part.bytes <= room));
        }
        return fits && !large;
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
 *   receive(args, call, role, in, out, own)
 *                                   receives all entries; own is this rank's first one. If the wait
 *                                   is given up, call.failed is set
 * `finds`: `out` is still to be found, when this rank has sent. */
template <int N, class Receive>
SYMWIN_DEVICE void sw_short_run(const struct sw_table_args &args, const sw_short_parts<N> &in,
                                sw_short_parts<N> &out, bool finds)
{
    typedef sw_wire_flags W;
    const sw_role role = sw_role_of_thread();
    uint64_t word[N][1] = {};
    sw_peer_states<N> states;
    uint64_t own;
    sw_call call;

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
    sw_table_settle<Receive>(args, call, role, false);
    if (finds)
        out.find(args, args.out, args.call.out);
    if (role.works && !call.failed)
        Receive::receive(args, call, role, in, out, own);
    sw_push_end<W>(args.call, call);
}

/* With tables in the arguments. */
template <int N, class Receive>
SYMWIN_DEVICE void sw_table_run_short(const struct sw_table_args &args)
{
    sw_short_parts<N> in, out;

    in.find(args, args.in, args.call.in);
    sw_call_order();
    sw_short_run<N, Receive>(args, in, out, true);
}

/* With tables that may be in device memory. `Other` is for calls that are not short. */
template <int N, class Receive, class Other>
SYMWIN_DEVICE void sw_table_run_read(const struct sw_table_args &args)
{
    sw_short_parts<N> in, out;
    bool fits;

    sw_call_order();
    fits = in.read(args, args.in, args.call.in);
    fits = out.read(args, args.out, args.call.out) && fits && in.entries[0] == out.entries[0];
    if (SYMWIN_LIKELY(fits))
        sw_short_run<N, Receive>(args, in, out, false);
    else
        sw_table_run<Other>(args, in.large || out.large);
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
