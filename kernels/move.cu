/* All-gather, all-to-all, broadcast, gather and scatter by push: bytes go from the senders' parts
 * to the receivers' as the pattern in the arguments says (pattern.cuh).
 *
 *   in, out    this rank's device memory, any alignment: a part for each rank, or one part. What
 *              this rank does not send or receive is not accessed. The same part of a rank's `in`
 *              and `out` may be the same memory
 *   slots      2 * slot_bytes for each source
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags, because the bytes may have any value
 *   types      none: bytes are moved
 *
 * In place: a thread loads all its entries of a round before it stores what it receives in the
 * round, and entry i of each part is its own in `in` as in `out`.
 */
#include "pattern.cuh"

struct sw_move {
    typedef sw_byte element;
    typedef sw_wire_flags wire;

    /* Receives entry `i` of round `c` from each source of the batch that begins at rank `first`:
     * from the slots at `from`. False: the wait was given up. */
    SYMWIN_DEVICE bool entries(const struct sw_kernel_args &args, sw_call &call,
                               const sw_rounds &rounds, uint32_t c, uint32_t i, int32_t first,
                               uint64_t from)
    {
        typename wire::entry entry[sw_batch<0>::ranks];

        if (!sw_entries_await<0, wire, sw_from_sources<0>>(args, call, from, first, entry))
            return false;
        SYMWIN_UNROLL
        for (int j = 0; j < sw_batch<0>::ranks; j++) {
            uint64_t word[wire::words];

            if (!sw_from_sources<0>::has(args, first + j))
                continue;
            wire::decode(entry[j], word);
            sw_entry_store<sw_byte, wire>(
                sw_pattern_part<wire>(args.out, args.out_step, first + j, rounds, c), i, word);
        }
        return true;
    }

    SYMWIN_DEVICE void own(const struct sw_kernel_args &args, const sw_rounds &rounds, uint32_t c,
                           uint32_t i)
    {
        const sw_part in = sw_pattern_part<wire>(args.in, args.in_step, args.rank, rounds, c);
        const sw_part out = sw_pattern_part<wire>(args.out, args.out_step, args.rank, rounds, c);
        uint64_t word[wire::words];

        if (in.message.address == out.message.address)
            return;
        sw_entry_load<sw_byte, wire>(in, i, word);
        sw_entry_store<sw_byte, wire>(out, i, word);
    }

    SYMWIN_DEVICE void round(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                             const sw_rounds &rounds, uint32_t c)
    {
        const uint64_t slots = call.state + sw_slot_place<0>(args, call.round + c, 0, 0);
        const bool keeps = sw_pattern_has(args.to, args.rank) &&
                           sw_pattern_has(args.from, args.rank);
        const int32_t begin = args.from < 0 ? 0 : args.from;
        const int32_t end = args.from == SW_EVERY_RANK ? args.nranks : args.from + 1;

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;

            if (keeps)
                own(args, rounds, c, i);
            SYMWIN_NO_UNROLL
            for (int32_t first = begin; first < end; first += sw_batch<0>::ranks)
                if (!entries(args, call, rounds, c, i, first,
                             at + (uint64_t)(uint32_t)first * 2 * args.slot_bytes))
                    return;
            sw_entries_empty<0, wire, sw_from_sources<0>>(args, at);
        }
    }
};

/* Of N ranks, in a short call. */
template <int N>
struct sw_move_short {
    typedef typename sw_wire_of<SW_SHAPE_short, false>::type wire;

    SYMWIN_DEVICE void store(const struct sw_kernel_args &args, int32_t p, uint32_t i,
                             uint64_t word)
    {
        sw_element_store<8, SW_OWN>(args.out + (uint32_t)p * args.out_step + (uint64_t)i * 8, word);
    }

    SYMWIN_DEVICE bool entry(const struct sw_kernel_args &args, sw_call &call, uint64_t from,
                             const uint64_t own[1], uint32_t i)
    {
        typename wire::entry entry[N];

        if (sw_pattern_has(args.to, args.rank) && sw_pattern_has(args.from, args.rank))
            store(args, args.rank, i, own[0]);
        if (!sw_entries_await<N, wire, sw_from_sources<N>>(args, call, from, 0, entry))
            return false;
        SYMWIN_UNROLL
        for (int p = 0; p < N; p++) {
            uint64_t word;

            if (!sw_from_sources<N>::has(args, p))
                continue;
            wire::decode(entry[p], &word);
            store(args, p, i, word);
        }
        sw_entries_empty<N, wire, sw_from_sources<N>>(args, from);
        return true;
    }
};

template <int N, sw_kernel_shape shape>
SYMWIN_DEVICE void sw_move_run(const struct sw_kernel_args &args)
{
    if constexpr (shape == SW_SHAPE_short)
        sw_pattern_run_short<N, sw_move_short<N>>(args);
    else
        sw_pattern_run<sw_move>(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_move_run<SW_RANKS_##ranks, SW_SHAPE_##shape>(args);                                     \
    }
SW_KERNEL_LIST_MOVE(SW_DEFINE)
#undef SW_DEFINE
