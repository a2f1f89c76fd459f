/* All-to-all and all-gather of unequal parts by push, large ones by stores into windows: bytes go
 * from the senders' parts to the receivers' as a table says (table.cuh).
 *
 *   in, out    this rank's device memory, any alignment: a part for each rank. The same part of a
 *              rank's `in` and `out` may be the same memory, if both tables are equal
 *   slots      2 * slot_bytes for each source: entries, and answers
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags, because the bytes may have any value
 *   types      none: bytes are moved
 *
 * In place: a thread loads its entries of a round before it stores what it receives in the round,
 * and entry i of a rank's part is its own in `in` as in `out`.
 *
 * And the kernel that stores the table of a call ahead of it, reducing ones too.
 */
#include "table_short.cuh"

template <sw_large with_large>
struct sw_move_v {
    typedef sw_wire_flags wire;
    static constexpr bool changes = false;
    static constexpr sw_large large = with_large;

    SYMWIN_DEVICE uint64_t scalar(const struct sw_table_args &)
    {
        return 0;
    }

    SYMWIN_DEVICE void input(const struct sw_table_args &, uint64_t[][wire::words])
    {
    }

    /* No slot limits the rounds. */
    SYMWIN_DEVICE sw_own_part own_of(const struct sw_table_args &args)
    {
        sw_own_part own = sw_table_own(args);

        if (own.from != own.to)
            own.rounds = sw_rounds_of_bytes<wire>(own.bytes, UINT64_MAX);
        return own;
    }

    SYMWIN_DEVICE void begin(const struct sw_table_args &args, const sw_role &role,
                             uint64_t (&word)[wire::words])
    {
        const sw_own_part own = own_of(args);

        if (large == SW_LARGE_NONE)
            sw_part_first<wire>(own.rounds, role, own.from, word);
    }

    /* `word` is what begin() has loaded. */
    SYMWIN_DEVICE void keep(const struct sw_table_args &args, const sw_role &role,
                            const uint64_t (&word)[wire::words])
    {
        const sw_own_part own = own_of(args);

        if (own.rounds.bytes == 0)
            return;
        if (large != SW_LARGE_NONE)
            sw_move_part(sw_goal_here(), {role.index, role.workers}, own.from, own.to,
                         own.rounds.bytes);
        else
            sw_part_copy<wire>(own.rounds, role, own.from, own.to, word);
    }

    SYMWIN_DEVICE void round(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                             uint32_t c, const uint64_t (&)[wire::words], uint32_t &most)
    {
        const uint64_t slots = call.state + sw_slot_place<0>(args.call, call.round + c, 0, 0);
        sw_lanes<wire> lanes;

        SYMWIN_NO_UNROLL
        for (int32_t step = 1; step < args.call.nranks; step = sw_lanes_next(lanes)) {
            sw_lanes_find<wire, large, false>(args, call, step, c, lanes, most);
            SYMWIN_NO_UNROLL
            for (uint32_t i = role.index; i < lanes.extent; i += role.workers << lanes.shift) {
                typename wire::entry entry[SW_TABLE_BATCH];

                if (!sw_lanes_await(args, call, role, lanes, slots, i, entry))
                    return;
                SYMWIN_UNROLL
                for (uint32_t j = 0; j < SW_TABLE_BATCH; j++) {
                    uint64_t came[wire::words];

                    if (!sw_lane_has(lanes, role, i, j))
                        continue;
                    wire::decode(entry[j], came);
                    sw_entry_store<sw_byte, wire>(sw_lane_part(lanes, j),
                                                  sw_lane_entry(lanes, role, i, j), came);
                }
                sw_lanes_empty(args, role, lanes, slots, i);
            }
        }
    }
};

/* Of N ranks, in a short call. */
template <int N>
struct sw_move_v_short {
    typedef sw_wire_flags wire;
    static constexpr sw_large large = SW_LARGE_NONE;

    SYMWIN_DEVICE void input(const struct sw_table_args &, uint64_t (&)[N][1])
    {
    }

    SYMWIN_DEVICE void receive(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                               const sw_short_parts<N> &in, const sw_short_parts<N> &out,
                               uint64_t own)
    {
        const uint64_t slots = call.state + sw_slot_place<N>(args.call, call.round, 0, 0);

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < out.most; i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;
            wire::entry entry[N];

            if (i != role.index && i < out.entries[0])
                own = sw_element_load<8, SW_OWN>(in.address[0] + (uint64_t)i * 8);
            if (!sw_short_await<N>(args, call, out, at, i, entry))
                return;
            SYMWIN_UNROLL
            for (int step = 0; step < N; step++) {
                const int32_t p = sw_rank_after<N>(args.call, step);
                uint64_t word[1] = {own};

                if (i >= out.entries[step])
                    continue;
                if (step > 0) {
                    wire::decode(entry[step], word);
                    wire::store(at + (uint64_t)(uint32_t)p * 2 * args.call.slot_bytes,
                                wire::empty());
                }
                sw_element_store<8, SW_OWN>(out.address[step] + (uint64_t)i * 8, word[0]);
            }
        }
    }
};

template <int N, sw_kernel_shape shape>
SYMWIN_DEVICE void sw_move_v_run(const struct sw_table_args &args)
{
    if constexpr (shape == SW_SHAPE_short)
        sw_table_run_short<N, sw_move_v_short<N>>(args);
    else if constexpr (shape == SW_SHAPE_read)
        sw_table_run_read<N, sw_move_v_short<N>, sw_move_v<SW_LARGE_STORED>>(args);
    else
        sw_table_run<sw_move_v<shape == SW_SHAPE_long ? SW_LARGE_STORED : SW_LARGE_NONE>>(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_move_v_run<SW_RANKS_##ranks, SW_SHAPE_##shape>(args);                                   \
    }
SW_KERNEL_LIST_MOVE_V(SW_DEFINE)
#undef SW_DEFINE

/* The rows are this rank's own, and its calls read them one after another: the one before has ended
 * when this begins, and this when the next begins. By one block. */
SYMWIN_DEVICE void sw_rows_store(const struct sw_rows_args &args)
{
    sw_call_order();
    for (uint32_t i = threadIdx.x; i < args.count; i += blockDim.x) {
        const uint64_t row = args.first + i, out = row >= args.nranks ? args.nranks : 0;
        const uint64_t count = args.to + (row + out) * 8;

        symwin_store_u64(count, args.rows[i].count);
        symwin_store_u64(count + (uint64_t)args.nranks * 8, args.rows[i].place);
    }
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_rows_store(args);                                                                       \
    }
SW_KERNEL_LIST_ROWS(SW_DEFINE)
#undef SW_DEFINE
