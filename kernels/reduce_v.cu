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
#include "table.cuh"

/* Words that a thread reduces at the same time: as many as have room in registers. */
enum { SW_REDUCE_V_BATCH = 2 };

struct sw_reduce_v {
    typedef sw_byte element;
    typedef sw_wire_flags wire;
    static constexpr bool changes = true, large = false;

    template <int n>
    SYMWIN_DEVICE void input(const struct sw_table_args &args, uint64_t (&word)[n][wire::words])
    {
        sw_any_scale<n>(args.call, word);
    }

    /* Entries i, i + workers, ... of rank p's part. False: the wait was given up. */
    SYMWIN_DEVICE bool take(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                            int32_t p, const sw_part &own, uint64_t slots, uint32_t extent,
                            uint32_t i, uint64_t (&word)[SW_REDUCE_V_BATCH][wire::words])
    {
        typename wire::entry entry[SW_REDUCE_V_BATCH];

        if (p == args.call.rank) {
            SYMWIN_UNROLL
            for (uint32_t j = 0; j < SW_REDUCE_V_BATCH; j++) {
                word[j][0] = 0;
                if (i + j * role.workers < extent)
                    sw_entry_load<sw_byte, wire>(own, i + j * role.workers, word[j]);
            }
            input(args, word);
            return true;
        }
        if (!sw_table_await<wire, SW_REDUCE_V_BATCH>(args, call, role, p, slots, extent, i, entry))
            return false;
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_REDUCE_V_BATCH; j++)
            wire::decode(entry[j], word[j]);
        return true;
    }

    /* Reduces entries i, i + workers, ... of a round. False: the wait was given up. */
    SYMWIN_DEVICE bool batch(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                             const sw_part &in, const sw_part &out, uint64_t slots, uint32_t extent,
                             uint32_t i)
    {
        const uint64_t pitch = 2 * args.call.slot_bytes;
        uint64_t word[SW_REDUCE_V_BATCH][wire::words];
        sw_any_sums<SW_REDUCE_V_BATCH> sums = {};

        SYMWIN_NO_UNROLL
        for (int32_t p = 0; p < args.call.nranks; p++) {
            if (!take(args, call, role, p, in, slots + (uint32_t)p * pitch, extent, i, word))
                return false;
            sw_any_add(args.call, p == 0, word, sums);
        }
        sw_any_result(args.call, sums, word);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_REDUCE_V_BATCH; j++)
            if (i + j * role.workers < extent)
                sw_entry_store<sw_byte, wire>(out, i + j * role.workers, word[j]);
        SYMWIN_NO_UNROLL
        for (int32_t p = 0; p < args.call.nranks; p++)
            if (p != args.call.rank)
                sw_table_empty<wire, SW_REDUCE_V_BATCH>(role, slots + (uint32_t)p * pitch, extent,
                                                        i);
        return true;
    }

    SYMWIN_DEVICE void round(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                             uint32_t c)
    {
        const sw_table_part in = sw_table_in(args, args.call.rank);
        const sw_table_part out = sw_table_out(args, args.call.rank);
        const uint64_t bytes = in.bytes < out.bytes ? in.bytes : out.bytes;
        const bool alone = args.call.nranks == 1; /* without slots */
        const sw_rounds rounds = alone ? sw_rounds_of_bytes<wire>(bytes, UINT64_MAX)
                                       : sw_table_rounds<wire>(args, bytes);
        const uint64_t slots = call.state + sw_slot_place<0>(args.call, call.round + c, 0, 0);

        SYMWIN_NO_UNROLL
        for (; c < rounds.count && bytes > 0; c++) {
            const sw_part from = sw_part_of<wire>(in.address, rounds, c);
            const sw_part to = sw_part_of<wire>(out.address, rounds, c);

            SYMWIN_NO_UNROLL
            for (uint32_t i = role.index; i < rounds.extent; i += SW_REDUCE_V_BATCH * role.workers)
                if (!batch(args, call, role, from, to, slots, rounds.extent, i))
                    return;
            if (!alone)
                break;
        }
    }
};

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_table_run<sw_reduce_v>(args);                                                           \
    }
SW_KERNEL_LIST_REDUCE_V(SW_DEFINE)
#undef SW_DEFINE
