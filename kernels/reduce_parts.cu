/* Reduce-scatter and reduce by push: every rank sends each receiver that receiver's part, and a
 * receiver reduces what it receives with its own, as the pattern in the arguments says
 * (pattern.cuh). Each part has one result, at one rank.
 *
 *   in, out    this rank's device memory, any element alignment: of `in` a part for each rank, or
 *              one part; of `out` one part, which may be where this rank's own part of `in` is.
 *              What this rank does not send or receive is not accessed
 *   slots      2 * slot_bytes for each source
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    all payload if the type has a spare pattern, otherwise half flags
 *              (sw_reduce::spares)
 *   result     reduced in rank order, as the all-reduce's: the bits are the same
 *
 * In place: nobody is sent a rank's own part, and a thread loads an entry of it before it stores
 * the result there.
 *
 * Reduce with SW_MOVE_SHARES: the message is divided among all ranks but the root. Each rank sends
 * them their shares, each of them reduces its own and sends the result to the root (shares.cuh). So
 * no link carries more than the message. In place, the root's thread that stores an entry has
 * loaded it.
 */
#include "pattern.cuh"
#include "shares.cuh"

template <class R>
struct sw_reduce_parts {
    typedef R element;
    typedef typename sw_wire_of<SW_SHAPE_any, R::spares>::type wire;

    SYMWIN_DEVICE void round(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                             const sw_rounds &rounds, uint32_t c)
    {
        const uint64_t slots = call.state + sw_slot_place<0>(args, call.round + c, 0, 0);
        const sw_part in = sw_pattern_part<wire>(args.in, args.in_step, args.rank, rounds, c);
        const sw_part out = sw_part_of<wire>(args.out, rounds, c);

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; args.from != SW_NO_RANK && i < rounds.extent;
             i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;
            uint64_t own[wire::words], result[wire::words];

            sw_input_load<R, wire>(args, in, i, own);
            if (!sw_entries_reduce<0, R, wire>(args, call, at, own, result))
                return;
            sw_entry_store<R, wire>(out, i, result);
            sw_entries_empty<0, wire>(args, at);
        }
    }
};

/* In shares, in one round. */
template <class R>
struct sw_reduce_shares {
    typedef typename sw_wire_of<SW_SHAPE_any, R::spares>::type wire;

    /* Reduces this rank's share and sends the result to the root. */
    SYMWIN_DEVICE void reduce(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                              const sw_twoshot_round<wire> &round)
    {
        const uint64_t slots = call.state + sw_slot_place<0>(args, call.round, 0, 0);
        const uint64_t to = sw_state_address(args, call, args.root,
                                             sw_slot_place<0>(args, call.round, args.rank, 1));
        const uint32_t begin = sw_share_but_root(args, args.rank) * round.each;

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < round.each && begin + i < round.extent;
             i += role.workers) {
            const uint64_t at = (uint64_t)i * wire::bytes;
            uint64_t own[wire::words], result[wire::words];

            sw_input_load<R, wire>(args, round.in, begin + i, own);
            if (!sw_entries_reduce<0, R, wire>(args, call, slots + at, own, result))
                return;
            wire::store(to + at, wire::encode(result));
            sw_entries_empty<0, wire>(args, slots + at);
        }
    }

    SYMWIN_DEVICE void run(const struct sw_kernel_args &args)
    {
        const uint64_t room = args.slot_bytes / wire::bytes; /* of a share */
        const uint32_t shares = (uint32_t)args.nranks - 1;
        const sw_rounds rounds = sw_rounds_of_bytes<wire>(args.bytes, room * shares);
        const uint32_t each = sw_share_of(rounds, shares, room);
        const sw_role role = sw_role_of_thread();
        sw_twoshot_round<wire> round;
        sw_call call;

        sw_call_order();
        round = sw_twoshot_begin<0, R, wire, sw_shares_but_root>(args, role, rounds, each, 0);
        call = sw_call_read(args);
        if (role.works && !call.failed)
            sw_scatter<0, R, wire, sw_shares_but_root>(args, call, role, round);
        if (sw_push_goes_on<wire>(args, call, role, rounds, 0)) {
            if (args.rank == args.root)
                sw_collect<0, R, wire, sw_shares_but_root>(args, call, role, round);
            else
                reduce(args, call, role, round);
        }
        sw_push_end<wire>(args, call);
    }
};

/* Of N ranks, in a short call. */
template <int N, class R>
struct sw_reduce_parts_short {
    typedef typename sw_wire_of<SW_SHAPE_short, R::spares>::type wire;

    SYMWIN_DEVICE uint32_t entries(const struct sw_kernel_args &args)
    {
        return (uint32_t)(args.bytes / 8);
    }

    SYMWIN_DEVICE uint64_t load(const struct sw_kernel_args &, uint64_t address)
    {
        return sw_element_load<8, SW_OWN>(address);
    }

    SYMWIN_DEVICE bool entry(const struct sw_kernel_args &args, sw_call &call, uint64_t from,
                             const uint64_t own[1], uint32_t i)
    {
        uint64_t result[1];

        if (args.from == SW_NO_RANK)
            return true;
        if (!sw_entries_reduce<N, R, wire>(args, call, from, own, result))
            return false;
        sw_element_store<8, SW_OWN>(args.out + (uint64_t)i * 8, result[0]);
        sw_entries_empty<N, wire>(args, from);
        return true;
    }
};

template <int N, sw_kernel_shape shape, class R>
SYMWIN_DEVICE void sw_reduce_parts_run(const struct sw_kernel_args &args)
{
    if constexpr (shape == SW_SHAPE_short)
        sw_pattern_run_short<N, sw_reduce_parts_short<N, R>>(args, args, sw_role_of_thread(), 0);
    else if (args.stage == SW_MOVE_SHARES)
        sw_reduce_shares<R>::run(args);
    else
        sw_pattern_run<sw_reduce_parts<R>>(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_reduce_parts_run<SW_RANKS_##ranks, SW_SHAPE_##shape,                                    \
                            sw_reduce<symwin_type_##type, symwin_op_##op>>(args);                  \
    }
SW_KERNEL_LIST_REDUCE_PARTS(SW_DEFINE)
#undef SW_DEFINE
