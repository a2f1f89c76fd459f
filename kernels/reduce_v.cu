/* Reduce-scatter of unequal parts by push: every rank sends each peer that peer's part, as a table
 * says (table.cuh), and adds what it receives to its own.
 *
 *   in         this rank's device memory, any element alignment: a part for each rank
 *   out        one part, which may be where this rank's own part of `in` is
 *   slots      2 * slot_bytes for each source: entries, and answers
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags
 *   types      all, and all operations, by one kernel: only what is done with a word that has come
 *              depends on them, and args.what and args.op say what it is
 *   result     reduced in rank order, as the all-reduce's: the bits are the same
 *
 * Rank r's part has one length for all who send it, so its rounds are those of every peer.
 *
 * In place: nobody is sent a rank's own part, and a thread loads an entry of it before it stores
 * the result there.
 */
#include "any.cuh"
#include "table_short.cuh"

struct sw_reduce_v {
    typedef sw_wire_flags wire;
    static constexpr bool changes = true, large = false;

    template <int n>
    SYMWIN_DEVICE void input(const struct sw_table_args &args, uint64_t (&word)[n][wire::words])
    {
        sw_any_scale<n>(args.call, word);
    }

    SYMWIN_DEVICE sw_own_part own_of(const struct sw_table_args &args)
    {
        sw_own_part own = sw_table_own(args);

        own.rounds = sw_table_rounds<wire>(args, own.bytes);
        return own;
    }

    SYMWIN_DEVICE void begin(const struct sw_table_args &args, const sw_role &role,
                             uint64_t (&word)[wire::words])
    {
        const sw_own_part own = own_of(args);

        sw_part_first<wire>(own.rounds, role, own.from, word);
    }

    SYMWIN_DEVICE void keep(const struct sw_table_args &, const sw_role &,
                            const uint64_t (&)[wire::words])
    {
    }

    /* Reduces entry `at` of all peers' slots, from rank 0's on, and this rank's own word. The words
     * of several ranks are awaited together, and added in rank order. False: the wait was given up.
     */
    SYMWIN_DEVICE bool entry(const struct sw_table_args &args, sw_call &call, uint64_t at,
                             uint64_t (&own)[1][wire::words])
    {
        const uint64_t pitch = 2 * args.call.slot_bytes;
        sw_any_sums<1> sums = {};

        input(args, own);
        SYMWIN_NO_UNROLL
        for (int32_t first = 0; first < args.call.nranks; first += sw_batch<0>::ranks) {
            const int32_t left = args.call.nranks - first;
            typename wire::entry entry[sw_batch<0>::ranks];
            uint64_t word[sw_batch<0>::ranks][wire::words];

            if (!sw_entries_await<0, wire>(args.call, call, at + (uint32_t)first * pitch, first,
                                           entry))
                return false;
            SYMWIN_UNROLL
            for (int32_t j = 0; j < sw_batch<0>::ranks; j++) {
                wire::decode(entry[j], word[j]);
                if (first + j == args.call.rank)
                    word[j][0] = own[0][0];
            }
            sw_any_add_ranks(args.call, first == 0, left, word, sums);
        }
        sw_any_result(args.call, sums, own);
        return true;
    }

    SYMWIN_DEVICE void round(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                             uint32_t c, const uint64_t (&word)[wire::words], uint32_t &most)
    {
        const sw_own_part own = own_of(args);
        const sw_part from = sw_part_of<wire>(own.from, own.rounds, c);
        const sw_part to = sw_part_of<wire>(own.to, own.rounds, c);
        const uint64_t pitch = 2 * args.call.slot_bytes;
        const uint64_t slots = call.state + sw_slot_place<0>(args.call, call.round + c, 0, 0);

        most = own.rounds.count > most ? own.rounds.count : most;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; c < own.rounds.count && i < own.rounds.extent;
             i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;
            uint64_t sum[1][wire::words] = {{word[0]}};

            if (c > 0 || i != role.index)
                sw_entry_load<sw_byte, wire>(from, i, sum[0]);
            if (!entry(args, call, at, sum))
                return;
            sw_entry_store<sw_byte, wire>(to, i, sum[0]);
            SYMWIN_NO_UNROLL
            for (int32_t p = 0; p < args.call.nranks; p++)
                if (p != args.call.rank)
                    wire::store(at + (uint32_t)p * pitch, wire::empty());
        }
    }
};

/* Of N ranks, in a short call. */
template <int N>
struct sw_reduce_v_short {
    typedef sw_wire_flags wire;
    static constexpr bool large = false;

    template <int n>
    SYMWIN_DEVICE void input(const struct sw_table_args &args, uint64_t (&word)[n][1])
    {
        sw_any_scale<n>(args.call, word);
    }

    SYMWIN_DEVICE void receive(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                               const sw_short_parts<N> &in, uint64_t own)
    {
        const uint64_t slots = call.state + sw_slot_place<N>(args.call, call.round, 0, 0);

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < in.entries[0]; i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;
            uint64_t word[N][1], sum[1][1] = {{own}};
            sw_any_sums<1> sums = {};
            wire::entry entry[N];

            if (i != role.index)
                sum[0][0] = sw_element_load<8, SW_OWN>(in.address[0] + (uint64_t)i * 8);
            input(args, sum);
            if (!sw_entries_await<N, wire>(args.call, call, at, 0, entry))
                return;
            SYMWIN_UNROLL
            for (int p = 0; p < N; p++) {
                wire::decode(entry[p], word[p]);
                word[p][0] = p == args.call.rank ? sum[0][0] : word[p][0];
            }
            sw_any_add_ranks(args.call, true, N, word, sums);
            sw_any_result(args.call, sums, sum);
            sw_element_store<8, SW_OWN>(args.call.out + (uint64_t)i * 8, sum[0][0]);
            sw_entries_empty<N, wire>(args.call, at);
        }
    }
};

template <int N, sw_kernel_shape shape>
SYMWIN_DEVICE void sw_reduce_v_run(const struct sw_table_args &args)
{
    if constexpr (shape == SW_SHAPE_short)
        sw_table_run_short<N, sw_reduce_v_short<N>>(args);
    else
        sw_table_run<sw_reduce_v>(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_reduce_v_run<SW_RANKS_##ranks, SW_SHAPE_##shape>(args);                                 \
    }
SW_KERNEL_LIST_REDUCE_V(SW_DEFINE)
#undef SW_DEFINE
