/* All-reduce, two-shot push: the message is divided among the ranks. Each rank sends every peer
 * that peer's share, reduces its own share of what it receives, and sends the result to every peer
 * (push.cuh).
 *
 *   in, out    any device memory of this rank, `count` elements, any element alignment, out == in
 *              allowed; accessed in 16 or 8 bytes where aligned
 *   slots      slot_bytes for each source and stage
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    all payload if the type has a spare pattern, otherwise half flags
 *              (sw_reduce::spares)
 *   result     reduced in rank order by one rank, so all ranks get the same bits
 *
 * Three stages, without a barrier in between: a thread continues when it has done its part of a
 * stage.
 *   scatter    entry i of peer p's share: by thread (i + entries before p's share) mod workers
 *   reduce     entry i of this rank's share, then sent to all peers: by thread i mod workers
 *   collect    entry i of the share that p has reduced: by the same thread as in `scatter`
 * In long messages, entry i of every share is handled by thread i mod workers in all three stages,
 * and a thread is in all three at once (sw_flow_round()): received entries are reduced and stored
 * while the rest is on the links.
 *
 * The condition of push.cuh holds. Scatter: the thread that stores entry i at p has collected entry
 * i of p's share. p's thread i reduced and sent it, and that is the thread that empties the entry.
 * Reduce: thread i, which stores the result's entry i at p, has received entry i of its share from
 * p. p sent it with the thread that collects entry i of this share.
 *
 * There is no circular wait with any grid. In long messages too, a thread reduces entry i after it
 * has scattered entry i and has reduced and collected entries before i, and depends on nothing
 * else. So by induction over i all ranks scatter and reduce entry i, and what is reduced everywhere
 * can be collected.
 */
#include "stages.cuh"

/* ---- long messages --------------------------------------------------------------------------- */

/* Entry i of every share is handled by thread i mod workers, which is in three stages at once: it
 * scatters entry i, reduces the previous one, and collects the one before that. So received entries
 * are reduced and stored while the rest of the message is still on the links. */

/* Index in the round of entry i of the share of the rank `step` after this one. */
template <int N, class W>
SYMWIN_DEVICE uint32_t sw_flow_entry(const struct sw_kernel_args &args,
                                     const sw_twoshot_round<W> &round, int32_t step, uint32_t i)
{
    return (uint32_t)sw_rank_after<N>(args, step) * round.each + i;
}

template <int N, class R, class W>
SYMWIN_DEVICE void sw_flow_load(const struct sw_kernel_args &args, const sw_twoshot_round<W> &round,
                                uint32_t i, sw_outgoing<N, W> &flow)
{
    SYMWIN_UNROLL
    for (int32_t step = 1; step < N; step++) {
        const uint32_t entry = sw_flow_entry<N>(args, round, step, i);

        flow.there[step - 1] = i < round.each && entry < round.extent;
        if (flow.there[step - 1])
            sw_input_load<R, W>(args, round.in, entry, flow.word[step - 1]);
    }
}

template <int N, class W>
SYMWIN_DEVICE void sw_flow_scatter(const struct sw_kernel_args &args, const sw_call &call,
                                   const sw_peer_states<N> &states,
                                   const sw_twoshot_round<W> &round, uint32_t i,
                                   const sw_outgoing<N, W> &flow)
{
    const uint64_t place = sw_slot_place<N>(args, call.round + round.number, args.rank, 0) +
                           (uint64_t)i * SW_ENTRY_BYTES;

    sw_outgoing_send<N, W>(args, states, place, flow);
}

/* Loads entry i of this rank's own share; `index` is its index in the round. */
template <class R, class W>
SYMWIN_DEVICE void sw_flow_load_own(const struct sw_kernel_args &args,
                                    const sw_twoshot_round<W> &round, uint32_t i, uint32_t index,
                                    uint64_t own[W::words])
{
    if (i < round.each && index < round.extent)
        sw_input_load<R, W>(args, round.in, index, own);
}

/* False: the wait was given up. */
template <int N, class R, class W>
SYMWIN_DEVICE bool sw_flow_reduce(const struct sw_kernel_args &args, sw_call &call,
                                  const sw_peer_states<N> &states, const sw_twoshot_round<W> &round,
                                  uint32_t i, const uint64_t own[W::words])
{
    const uint32_t number = call.round + round.number, begin = (uint32_t)args.rank * round.each;
    const uint64_t at = (uint64_t)i * SW_ENTRY_BYTES;
    const uint64_t from = call.state + sw_slot_place<N>(args, number, 0, 0) + at;
    uint64_t result[W::words];

    if (begin + i >= round.extent)
        return true;
    if (!sw_entries_reduce<N, R, W>(args, call, from, own, result))
        return false;
    sw_entries_empty<N, W>(args, from);
    sw_entry_send_all<N, W>(args, states, sw_slot_place<N>(args, number, args.rank, 1) + at,
                            W::encode(result));
    sw_entry_store<R, W>(round.out, begin + i, result);
    return true;
}

/* False: the wait was given up. The peers' entries are polled together, so that the loads
 * overlap. */
template <int N, class R, class W>
SYMWIN_DEVICE bool sw_flow_collect(const struct sw_kernel_args &args, sw_call &call,
                                   const sw_twoshot_round<W> &round, uint32_t i)
{
    const uint64_t slots = call.state + sw_slot_place<N>(args, call.round + round.number, 0, 1) +
                           (uint64_t)i * SW_ENTRY_BYTES;
    symwin_v16 entry[N - 1];
    sw_wait wait = {0, 0, 0};

    for (;;) {
        int32_t missing = -1;

        SYMWIN_UNROLL
        for (int32_t step = 1; step < N; step++) {
            const int32_t p = sw_rank_after<N>(args, step);

            entry[step - 1] = {1, 1}; /* for a share without this entry */
            symwin_load_relaxed_v16_if(sw_flow_entry<N>(args, round, step, i) < round.extent,
                                       slots + (uint64_t)(uint32_t)p * 2 * args.slot_bytes,
                                       &entry[step - 1]);
        }
        SYMWIN_UNROLL
        for (int32_t step = 1; step < N; step++)
            if (!W::is_there(entry[step - 1]))
                missing = sw_rank_after<N>(args, step);
        if (missing < 0)
            break;
        if (!sw_wait_on(args, call, wait, missing))
            return false;
    }
    SYMWIN_UNROLL
    for (int32_t step = 1; step < N; step++) {
        const uint32_t p = (uint32_t)sw_rank_after<N>(args, step);
        const uint32_t index = sw_flow_entry<N>(args, round, step, i);
        uint64_t word[W::words];

        if (index >= round.extent)
            continue;
        W::decode(entry[step - 1], word);
        sw_entry_store<R, W>(round.out, index, word);
        symwin_store_relaxed_v16(slots + (uint64_t)p * 2 * args.slot_bytes, {0, 0});
    }
    return true;
}

/* A round; the thread's first entries have already been sent. A thread in a block of 768 has 80
 * registers, so addresses share registers, and an address computed after stores waits until these
 * have left. So the own entry is loaded before the stores, and slots are emptied before the sum is
 * sent: 4 blocks of 4 ranks on two H200s take 359 us at 16 MiB; 393 in the other order. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_flow_round(const struct sw_kernel_args &args, sw_call &call,
                                 const sw_role &role, const sw_peer_states<N> &states,
                                 const sw_twoshot_round<W> &round)
{
    const uint32_t step = role.workers, begin = (uint32_t)args.rank * round.each;
    sw_outgoing<N, W> next;

    sw_flow_load<N, R, W>(args, round, role.index + step, next);
    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < round.each + step; i += step) {
        uint64_t own[W::words] = {};

        sw_flow_load_own<R, W>(args, round, i, begin + i, own);
        sw_flow_scatter<N, W>(args, call, states, round, i + step, next);
        sw_flow_load<N, R, W>(args, round, i + 2 * step, next);
        if (i < round.each && !sw_flow_reduce<N, R, W>(args, call, states, round, i, own))
            return;
        if (i != role.index && !sw_flow_collect<N, R, W>(args, call, round, i - step))
            return;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* The first load of the input does not wait for the communicator's state, so both overlap. */
template <int N, sw_kernel_shape shape, class R>
struct sw_twoshot_push {
    SYMWIN_DEVICE void run(const struct sw_kernel_args &args)
    {
        typedef typename sw_wire_of<shape, R::spares>::type W;
        const uint32_t ranks = (uint32_t)sw_ranks<N>(args);
        const uint64_t room = args.slot_bytes / SW_ENTRY_BYTES; /* of a share */
        const sw_rounds rounds = sw_rounds_of<R, W>(args, room * ranks);
        const uint32_t each = sw_share_of(rounds, ranks, room);
        const sw_role role = sw_role_of_thread();
        sw_twoshot_round<W> round;
        sw_peer_states<N> states;
        sw_call call;

        sw_call_order();
        round = sw_twoshot_begin<N, R, W>(args, role, rounds, each, 0);
        call = sw_call_read(args);
        states.find(args);
        SYMWIN_NO_UNROLL
        for (uint32_t c = 0;;) {
            if (role.works && !call.failed)
                sw_scatter<N, R, W>(args, call, role, round);
            if (!sw_push_goes_on<W>(args, call, role, rounds, c))
                break;
            sw_reduce_share<N, R, W>(args, call, role, states, round);
            if (!call.failed)
                sw_collect<N, R, W>(args, call, role, round);
            if (!W::rounds || call.failed || ++c == rounds.count)
                break;
            symwin_fence();
            round = sw_twoshot_begin<N, R, W>(args, role, rounds, each, c);
        }
        sw_push_end<W>(args, call);
    }
};

template <int N, class R>
struct sw_twoshot_push<N, SW_SHAPE_long, R> {
    SYMWIN_DEVICE void run(const struct sw_kernel_args &args)
    {
        typedef typename sw_wire_of<SW_SHAPE_long, R::spares>::type W;
        const uint64_t room = args.slot_bytes / SW_ENTRY_BYTES;
        const sw_rounds rounds = sw_rounds_of<R, W>(args, room * N);
        const uint32_t each = sw_share_of(rounds, N, room);
        const sw_role role = sw_role_of_thread();
        sw_twoshot_round<W> round;
        sw_outgoing<N, W> first;
        sw_peer_states<N> states;
        sw_call call;

        sw_call_order();
        round = sw_twoshot_round_of<W>(args, rounds, each, 0);
        if (role.works)
            sw_flow_load<N, R, W>(args, round, role.index, first);
        call = sw_call_read(args);
        states.find(args);
        SYMWIN_NO_UNROLL
        for (uint32_t c = 0;;) {
            if (role.works && !call.failed)
                sw_flow_scatter<N, W>(args, call, states, round, role.index, first);
            if (!sw_push_goes_on<W>(args, call, role, rounds, c))
                break;
            sw_flow_round<N, R, W>(args, call, role, states, round);
            if (call.failed || ++c == rounds.count)
                break;
            symwin_fence();
            round = sw_twoshot_round_of<W>(args, rounds, each, c);
            sw_flow_load<N, R, W>(args, round, role.index, first);
        }
        sw_push_end<W>(args, call);
    }
};

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_twoshot_push<SW_RANKS_##ranks, SW_SHAPE_##shape,                                        \
                        sw_reduce<symwin_type_##type, symwin_op_##op>>::run(args);                 \
    }
SW_KERNEL_LIST_TWOSHOT_PUSH(SW_DEFINE)
#undef SW_DEFINE
