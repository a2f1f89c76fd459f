/* All-reduce, one-shot push: every rank sends its whole message to every peer and reduces what it
 * receives (push.cuh).
 *
 *   oneshot            entries carry eight bytes with flags: every type
 *   oneshot_sentinel   entries are all payload, so half the traffic: floating-point types. For
 *                      short messages an entry is one word
 *
 *   in, out    any device memory of this rank, `count` elements, any element alignment, out == in
 *              allowed; accessed in 16 or 8 bytes where aligned
 *   slots      2 * slot_bytes for each source
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   result     reduced in rank order, so all ranks get the same bits
 *
 * Entry i of a round is both sent and received by the thread i mod workers. So the condition of
 * push.cuh holds: the thread that stores entry i at p has received p's entry i, which was sent by
 * p's thread for entry i, and that thread empties it.
 *
 * In a long message (sw_oneshot_flow()) a thread receives some entries before it has sent all.
 * There is no circular wait with any grid: a thread sends entry i after it has received entries
 * before i, and depends on nothing else. So by induction over i all ranks send entry i.
 */
#include "stages.cuh"

template <int N, class R, class W>
SYMWIN_DEVICE void sw_oneshot_receive(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_role &role, const sw_push_round<W> &round)
{
    const uint64_t slots = call.state + sw_slot_place<N>(args, call.round + round.number, 0, 0);

    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < round.extent; i += role.workers) {
        const uint64_t from = slots + (uint64_t)i * W::bytes;
        uint64_t own[W::words], result[W::words];

        if (i == role.index)
            memcpy(own, round.first, sizeof own);
        else
            sw_input_load<R, W>(args, round.in, i, own);
        if (!sw_entries_reduce<N, R, W>(args, call, from, own, result)) {
            if (!W::rounds)
                sw_call_report(args, call.epoch);
            return;
        }
        sw_entry_store<R, W>(round.out, i, result);
        sw_entries_empty<N, W>(args, from);
    }
}

/* Sends the first entry of a long message. sw_oneshot_flow() sends the others. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_oneshot_start(const struct sw_kernel_args &args, const sw_call &call,
                                    const sw_role &role, const sw_peer_states<N> &states,
                                    const sw_push_round<W> &round)
{
    const uint64_t place = sw_slot_place<N>(args, call.round + round.number, args.rank, 0);

    if (role.index < round.extent)
        sw_entry_send_all<N, W>(args, states, place + (uint64_t)role.index * W::bytes,
                                W::encode(round.first));
}

/* Sends an entry before it receives the previous one, and loads the next one in the meantime. So
 * received entries are reduced while the rest of the message is still on the links. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_oneshot_flow(const struct sw_kernel_args &args, sw_call &call,
                                   const sw_role &role, const sw_peer_states<N> &states,
                                   const sw_push_round<W> &round)
{
    const uint64_t place = sw_slot_place<N>(args, call.round + round.number, args.rank, 0);
    const uint64_t slots = call.state + sw_slot_place<N>(args, call.round + round.number, 0, 0);
    const uint32_t step = role.workers;
    uint64_t own[W::words], next[W::words] = {}, after[W::words] = {}, result[W::words];

    memcpy(own, round.first, sizeof own);
    if (role.index + step < round.extent)
        sw_input_load<R, W>(args, round.in, role.index + step, next);
    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < round.extent; i += step) {
        const uint64_t at = (uint64_t)i * W::bytes;

        if (i + step < round.extent)
            sw_entry_send_all<N, W>(args, states, place + at + (uint64_t)step * W::bytes,
                                    W::encode(next));
        if (i + 2 * step < round.extent)
            sw_input_load<R, W>(args, round.in, i + 2 * step, after);
        if (!sw_entries_reduce<N, R, W>(args, call, slots + at, own, result))
            return;
        sw_entry_store<R, W>(round.out, i, result);
        sw_entries_empty<N, W>(args, slots + at);
        memcpy(own, next, sizeof own);
        memcpy(next, after, sizeof next);
    }
}

/* The first load of the input does not wait for the communicator's state, so both overlap. */
template <int N, sw_kernel_shape shape, class R, bool spares>
SYMWIN_DEVICE void sw_oneshot(const struct sw_kernel_args &args)
{
    typedef typename sw_wire_of<shape, spares>::type W;
    const sw_rounds rounds = sw_rounds_of<R, W>(args, 2 * args.slot_bytes / W::bytes);
    const sw_role role = sw_role_of_thread();
    sw_push_round<W> round;
    sw_peer_states<N> states;
    sw_call call;

    sw_call_order();
    round = sw_push_begin<R, W>(args, role, rounds, 0);
    call = sw_call_read(args);
    states.find(args);
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0;;) {
        if (role.works && !call.failed && shape == SW_SHAPE_long)
            sw_oneshot_start<N, R, W>(args, call, role, states, round);
        else if (role.works && !call.failed)
            sw_push_send<N, R, W>(args, call, role, states, round);
        if (!sw_push_goes_on<W>(args, call, role, rounds, c))
            break;
        if (shape == SW_SHAPE_long)
            sw_oneshot_flow<N, R, W>(args, call, role, states, round);
        else
            sw_oneshot_receive<N, R, W>(args, call, role, round);
        if (!W::rounds || call.failed || ++c == rounds.count)
            break;
        symwin_fence();
        round = sw_push_begin<R, W>(args, role, rounds, c);
    }
    sw_push_end<W>(args, call);
}

#define SW_SPARES_oneshot false
#define SW_SPARES_oneshot_sentinel true

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_oneshot<SW_RANKS_##ranks, SW_SHAPE_##shape,                                             \
                   sw_reduce<symwin_type_##type, symwin_op_##op>, SW_SPARES_##algo>(args);         \
    }
SW_KERNEL_LIST_ONESHOT(SW_DEFINE)
#undef SW_DEFINE
