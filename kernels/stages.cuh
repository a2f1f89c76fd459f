/* Stages of collectives that push: what a worker does in a round of entries (push.cuh).
 *
 *   sw_push_send()      sends the whole message to every peer
 *   sw_scatter()        sends each peer's share to that peer
 *   sw_reduce_share()   reduces the received entries of this rank's share with its input, and
 *                       sends the result to every peer
 *   sw_collect()        receives every peer's result
 *
 * A kernel consists of some of these stages and the loop over rounds. The kernel's file says why
 * there is no circular wait, and why the thread that stores an entry may do so.
 */
#ifndef SYMWIN_KERNELS_STAGES_CUH
#define SYMWIN_KERNELS_STAGES_CUH

#include "push.cuh"

/* A byte as an element type. */
struct sw_byte {
    enum { bytes = 1 };
    static constexpr bool chosen = false;
};

/* ---- a round, and the end -------------------------------------------------------------------- */

/* After round `c` was sent, by all threads. False: this thread has nothing more to do in the
 * call. */
template <class W>
SYMWIN_DEVICE bool sw_push_goes_on(const struct sw_kernel_args &args, sw_call &call,
                                   const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    if (c == 0)
        sw_push_settle(args, call, role, rounds.count);
    if (!W::rounds && call.failed)
        sw_call_report(args, call.epoch);
    return role.works && !call.failed;
}

/* Without rounds, a failure is reported where the thread leaves: this test costs small messages a
 * little. */
template <class W>
SYMWIN_DEVICE void sw_push_end(const struct sw_kernel_args &args, const sw_call &call)
{
    if (W::rounds && call.failed)
        sw_call_report(args, call.epoch);
    sw_call_done(args);
}

/* ---- the whole message ----------------------------------------------------------------------- */

/* One thread's view of a round. */
template <class W>
struct sw_push_round {
    sw_part in, out;
    uint32_t extent;
    uint32_t number;
    uint64_t first[W::words]; /* the thread's first entry of the input */
};

template <class R, class W>
SYMWIN_DEVICE sw_push_round<W> sw_push_begin(const struct sw_kernel_args &args, const sw_role &role,
                                             const sw_rounds &rounds, uint32_t c)
{
    sw_push_round<W> round = {};

    round.in = sw_part_of<W>(args.in, rounds, c);
    round.out = sw_part_of<W>(args.out, rounds, c);
    round.extent = rounds.extent;
    round.number = c;
    if (role.works && role.index < round.extent)
        sw_input_load<R, W>(args, round.in, role.index, round.first);
    return round;
}

/* The next entry is loaded while the current one is sent. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_push_send(const struct sw_kernel_args &args, const sw_call &call,
                                const sw_role &role, const sw_peer_states<N> &states,
                                const sw_push_round<W> &round)
{
    const uint64_t place = sw_slot_place<N>(args, call.round + round.number, args.rank, 0);
    typename W::entry next = W::encode(round.first);

    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < round.extent; i += role.workers) {
        const typename W::entry entry = next;

        if (i + role.workers < round.extent) {
            uint64_t word[W::words];

            sw_input_load<R, W>(args, round.in, i + role.workers, word);
            next = W::encode(word);
        }
        sw_entry_send_all<N, W>(args, states, place + (uint64_t)i * W::bytes, entry);
    }
}

/* ---- a share for each rank ------------------------------------------------------------------- */

/* Entries of a rank's share of a round that is divided among the ranks: a multiple of 8 entries (a
 * line of 128 bytes), if `room`, the most that a share can have, allows it. The last shares may
 * have fewer. */
SYMWIN_DEVICE uint32_t sw_share_of(const sw_rounds &rounds, uint32_t ranks, uint64_t room)
{
    const uint32_t even = (rounds.extent + ranks - 1) / ranks;
    const uint32_t lines = (even + 7) / 8 * 8;

    return lines <= room ? lines : even;
}

/* One thread's view of a round. */
template <class W>
struct sw_twoshot_round {
    sw_part in, out;
    uint32_t extent; /* entries */
    uint32_t each;   /* entries of a share; the last shares may have fewer */
    uint32_t number;
    uint64_t first[W::words]; /* the thread's first item of sw_scatter() */
};

/* Entry i of a peer's share. */
struct sw_item {
    int32_t peer;
    uint32_t i;
    uint32_t entry; /* of the round; it does not exist if it is beyond the round's extent */
};

/* A share for each rank: the items of all peers' shares in a row, the next rank's first. Item `n`
 * is handled by worker `n` modulo the workers. */
template <int N>
struct sw_shares_of_all {
    template <class W>
    SYMWIN_DEVICE uint32_t items(const struct sw_kernel_args &args,
                                 const sw_twoshot_round<W> &round)
    {
        return (uint32_t)(sw_ranks<N>(args) - 1) * round.each;
    }

    template <class W>
    SYMWIN_DEVICE sw_item item(const struct sw_kernel_args &args, const sw_twoshot_round<W> &round,
                               uint32_t n)
    {
        int32_t step = 1;
        sw_item item;

        if (N == 0) {
            step += (int32_t)(n / round.each);
            n %= round.each;
        }
        SYMWIN_UNROLL
        for (int s = 2; s < N; s++) {
            const bool later = n >= round.each;

            step += later ? 1 : 0;
            n -= later ? round.each : 0;
        }
        item.peer = sw_rank_after<N>(args, step);
        item.i = n;
        item.entry = (uint32_t)item.peer * round.each + n;
        return item;
    }
};

template <class W>
SYMWIN_DEVICE sw_twoshot_round<W> sw_twoshot_round_of(const struct sw_kernel_args &args,
                                                      const sw_rounds &rounds, uint32_t each,
                                                      uint32_t c)
{
    sw_twoshot_round<W> round = {};

    round.in = sw_part_of<W>(args.in, rounds, c);
    round.out = sw_part_of<W>(args.out, rounds, c);
    round.extent = rounds.extent;
    round.each = each;
    round.number = c;
    return round;
}

template <int N, class R, class W, class Shares = sw_shares_of_all<N>>
SYMWIN_DEVICE sw_twoshot_round<W> sw_twoshot_begin(const struct sw_kernel_args &args,
                                                   const sw_role &role, const sw_rounds &rounds,
                                                   uint32_t each, uint32_t c)
{
    sw_twoshot_round<W> round = sw_twoshot_round_of<W>(args, rounds, each, c);

    if (role.works && role.index < Shares::items(args, round)) {
        const sw_item item = Shares::item(args, round, role.index);

        if (item.entry < round.extent)
            sw_input_load<R, W>(args, round.in, item.entry, round.first);
    }
    return round;
}

/* The next item is loaded while the current one is sent. */
template <int N, class R, class W, class Shares = sw_shares_of_all<N>>
SYMWIN_DEVICE void sw_scatter(const struct sw_kernel_args &args, const sw_call &call,
                              const sw_role &role, const sw_twoshot_round<W> &round)
{
    const uint64_t place = sw_slot_place<N>(args, call.round + round.number, args.rank, 0);
    const uint32_t items = Shares::items(args, round);
    symwin_v16 next = W::encode(round.first);

    SYMWIN_NO_UNROLL
    for (uint32_t n = role.index; n < items; n += role.workers) {
        const sw_item item = Shares::item(args, round, n);
        const symwin_v16 entry = next;

        if (n + role.workers < items) {
            const sw_item after = Shares::item(args, round, n + role.workers);
            uint64_t word[W::words] = {};

            if (after.entry < round.extent)
                sw_input_load<R, W>(args, round.in, after.entry, word);
            next = W::encode(word);
        }
        if (item.entry < round.extent)
            symwin_store_relaxed_v16(sw_state_address(args, call, item.peer, place) +
                                         (uint64_t)item.i * SW_ENTRY_BYTES,
                                     entry);
    }
}

template <int N, class R, class W>
SYMWIN_DEVICE void sw_reduce_share(const struct sw_kernel_args &args, sw_call &call,
                                   const sw_role &role, const sw_peer_states<N> &states,
                                   const sw_twoshot_round<W> &round)
{
    const uint64_t slots = call.state + sw_slot_place<N>(args, call.round + round.number, 0, 0);
    const uint64_t place = sw_slot_place<N>(args, call.round + round.number, args.rank, 1);
    const uint32_t begin = (uint32_t)args.rank * round.each;

    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < round.each && begin + i < round.extent; i += role.workers) {
        const uint64_t from = slots + (uint64_t)i * SW_ENTRY_BYTES;
        uint64_t own[W::words], result[W::words];

        sw_input_load<R, W>(args, round.in, begin + i, own);
        if (!sw_entries_reduce<N, R, W>(args, call, from, own, result)) {
            if (!W::rounds)
                sw_call_report(args, call.epoch);
            return;
        }
        sw_entry_send_all<N, W>(args, states, place + (uint64_t)i * SW_ENTRY_BYTES,
                                W::encode(result));
        sw_entry_store<R, W>(round.out, begin + i, result);
        sw_entries_empty<N, W>(args, from);
    }
}

template <int N, class R, class W, class Shares = sw_shares_of_all<N>>
SYMWIN_DEVICE void sw_collect(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                              const sw_twoshot_round<W> &round)
{
    const uint64_t slots = call.state + sw_slot_place<N>(args, call.round + round.number, 0, 1);
    const uint32_t items = Shares::items(args, round);

    SYMWIN_NO_UNROLL
    for (uint32_t n = role.index; n < items; n += role.workers) {
        const sw_item item = Shares::item(args, round, n);
        const uint64_t from = slots + (uint64_t)(uint32_t)item.peer * 2 * args.slot_bytes +
                              (uint64_t)item.i * SW_ENTRY_BYTES;
        sw_wait wait = {0, 0, 0};
        uint64_t word[W::words];
        symwin_v16 entry;

        if (item.entry >= round.extent)
            continue;
        while (entry = symwin_load_relaxed_v16(from), !W::is_there(entry))
            if (!sw_wait_on(args, call, wait, item.peer)) {
                if (!W::rounds)
                    sw_call_report(args, call.epoch);
                return;
            }
        W::decode(entry, word);
        sw_entry_store<R, W>(round.out, item.entry, word);
        symwin_store_relaxed_v16(from, {0, 0});
    }
}

#endif
