/* All-gather, all-to-all and broadcast over windows: every rank stores its parts straight into the
 * outputs of the ranks that the pattern in the arguments names (pattern.cuh), itself included.
 *
 *   in         this rank's device memory, any alignment: a part for each rank, or one part
 *   out        a window at out_offset, which is equal on all ranks, any alignment. A part of `in`
 *              may be where it is to be, but no other part of `out`
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   types      none: bytes are moved, 16 in a store if input and output are congruent modulo 16,
 *              otherwise as many as they are congruent
 *
 * Order. As in twoshot.cu: before the first store every block acquires every peer's header, and the
 * end barrier makes all stores visible.
 */
#include "pattern.cuh"

#define SW_PUT_UNROLL 4 /* loads of a thread in flight */

template <int size>
struct sw_move_unit {
    typedef uint64_t type;

    SYMWIN_DEVICE type load(uint64_t address)
    {
        return sw_element_load<size, SW_OWN>(address);
    }

    SYMWIN_DEVICE void store(uint64_t address, type value)
    {
        sw_element_store<size, SW_OWN>(address, value);
    }
};

template <>
struct sw_move_unit<16> {
    typedef symwin_v16 type;

    SYMWIN_DEVICE type load(uint64_t address)
    {
        return symwin_load_v16(address);
    }

    SYMWIN_DEVICE void store(uint64_t address, const type &value)
    {
        symwin_store_v16(address, value);
    }
};

/* Copies `units` of `size` bytes at `from` to offset `to` at the ranks of `steps`. */
template <int size>
SYMWIN_DEVICE void sw_move_units(const struct sw_kernel_args &args, const symwin_peers &peers,
                                 uint64_t from, uint64_t to, uint64_t units, const sw_steps &steps)
{
    const uint64_t threads = symwin_thread_count();

    SYMWIN_NO_UNROLL
    for (uint64_t i = symwin_thread_index(); i < units; i += SW_PUT_UNROLL * threads) {
        typename sw_move_unit<size>::type unit[SW_PUT_UNROLL] = {};

        SYMWIN_UNROLL
        for (int u = 0; u < SW_PUT_UNROLL; u++)
            if (i + (uint64_t)u * threads < units)
                unit[u] = sw_move_unit<size>::load(from + (i + (uint64_t)u * threads) * size);
        SYMWIN_NO_UNROLL
        for (int32_t step = steps.first; step < steps.end; step++) {
            const uint64_t at = symwin_peer_address(peers, sw_rank_after<0>(args, step), to);

            SYMWIN_UNROLL
            for (int u = 0; u < SW_PUT_UNROLL; u++)
                if (i + (uint64_t)u * threads < units)
                    sw_move_unit<size>::store(at + (i + (uint64_t)u * threads) * size, unit[u]);
        }
    }
}

/* Copies a part: units of `size` bytes, and the bytes before and after them. */
template <int size>
SYMWIN_DEVICE void sw_move_aligned(const struct sw_kernel_args &args, const symwin_peers &peers,
                                   uint64_t from, uint64_t to, const sw_steps &steps)
{
    const uint64_t before = (0 - to) % size, head = before < args.bytes ? before : args.bytes;
    const uint64_t units = (args.bytes - head) / size, end = head + units * size;

    sw_move_units<1>(args, peers, from, to, head, steps);
    sw_move_units<size>(args, peers, from + head, to + head, units, steps);
    sw_move_units<1>(args, peers, from + end, to + end, args.bytes - end, steps);
}

/* Copies the part at `from` to the ranks of `steps`. Addresses are aligned as offsets are. */
SYMWIN_DEVICE void sw_move_part(const struct sw_kernel_args &args, const symwin_peers &peers,
                                uint64_t from, const sw_steps &steps)
{
    const uint64_t to = args.out_offset + (uint32_t)args.rank * args.out_step;
    const uint64_t apart = from - to;

    if (apart % 16 == 0)
        sw_move_aligned<16>(args, peers, from, to, steps);
    else if (apart % 8 == 0)
        sw_move_aligned<8>(args, peers, from, to, steps);
    else if (apart % 4 == 0)
        sw_move_aligned<4>(args, peers, from, to, steps);
    else if (apart % 2 == 0)
        sw_move_aligned<2>(args, peers, from, to, steps);
    else
        sw_move_units<1>(args, peers, from, to, args.bytes, steps);
}

SYMWIN_DEVICE void sw_move_parts(const struct sw_kernel_args &args, const symwin_peers &peers)
{
    const uint64_t own = args.out + (uint32_t)args.rank * args.out_step;
    const bool in_place = args.in + (uint32_t)args.rank * args.in_step == own;
    const int32_t first = in_place ? 1 : 0;

    if (args.to != SW_EVERY_RANK)
        return;
    if (args.in_step == 0) {
        sw_move_part(args, peers, args.in, {first, args.nranks});
        return;
    }
    SYMWIN_NO_UNROLL
    for (int32_t step = first; step < args.nranks; step++) {
        const int32_t p = sw_rank_after<0>(args, step);

        sw_move_part(args, peers, args.in + (uint32_t)p * args.in_step, {step, step + 1});
    }
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_call call = sw_call_begin(args);                                                        \
                                                                                                   \
        sw_start_barrier(args, call);                                                              \
        if (!call.failed)                                                                          \
            sw_move_parts(args, call.peers);                                                       \
        sw_call_end(args, call, 0);                                                                \
    }
SW_KERNEL_LIST_PUT(SW_DEFINE)
#undef SW_DEFINE
