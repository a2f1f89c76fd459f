/* Reductions and stores of whole messages through multicast addresses: the switch reads or writes
 * all ranks' memory in one access. Needs sm_90 and a window with SYMWIN_TRANSPORT_MULTICAST.
 *
 *   symwin_multimem<type, op>::load()   16 bytes, reduced over all ranks
 *   symwin_multicast_reduce()           reduces a message of all ranks into this rank's memory
 *   symwin_multicast_put()              puts a message to all ranks
 *   symwin_multicast_reduce_put()       reduces a message of all ranks and puts the result to all
 *
 * All ranks are those of the communicator: a team of fewer has no multicast address. Elements
 * outside whole vectors of 16 bytes, and all elements if the two addresses differ modulo 16, go
 * through the ranks' own addresses. The switch chooses the order of the operands. An average of
 * 16-bit floats is rounded twice, and min or max of two zeros may return either zero. If
 * SYMWIN_HAS_MULTIMEM is 0, this header declares nothing. Compiled by nvcc and for the emulated
 * driver, as all of the device API. symwin/multimem.cuh explains memory order.
 */
#ifndef SYMWIN_MULTICAST_CUH
#define SYMWIN_MULTICAST_CUH

#include "symwin/multimem.cuh"
#include "symwin/reduce.cuh"

#if SYMWIN_HAS_MULTIMEM

/* ---- accesses -------------------------------------------------------------------------------- */

/* Loads 16 bytes of elements <type>, reduced by <op> over all ranks. Only pairs that the hardware
 * supports compile (symwin/multimem.cuh). */
template <class T, class O>
struct symwin_multimem;

#define SYMWIN_MULTIMEM_VECTOR(type, op, access)                                                   \
    template <>                                                                                    \
    struct symwin_multimem<symwin_type_##type, symwin_op_##op> {                                   \
        SYMWIN_DEVICE symwin_v16 load(uint64_t addr)                                               \
        {                                                                                          \
            return symwin_multimem_##access(addr);                                                 \
        }                                                                                          \
    };

#define SYMWIN_MULTIMEM_TWO(type, op, access)                                                      \
    template <>                                                                                    \
    struct symwin_multimem<symwin_type_##type, symwin_op_##op> {                                   \
        SYMWIN_DEVICE symwin_v16 load(uint64_t addr)                                               \
        {                                                                                          \
            const uint64_t lo = symwin_multimem_##access(addr);                                    \
            return symwin_v16{lo, symwin_multimem_##access(addr + 8)};                             \
        }                                                                                          \
    };

#define SYMWIN_MULTIMEM_FOUR(type, op, access)                                                     \
    template <>                                                                                    \
    struct symwin_multimem<symwin_type_##type, symwin_op_##op> {                                   \
        SYMWIN_DEVICE symwin_v16 load(uint64_t addr)                                               \
        {                                                                                          \
            const uint32_t w0 = symwin_multimem_##access(addr);                                    \
            const uint32_t w1 = symwin_multimem_##access(addr + 4);                                \
            const uint32_t w2 = symwin_multimem_##access(addr + 8);                                \
            const uint32_t w3 = symwin_multimem_##access(addr + 12);                               \
            return symwin_v16{w0 | (uint64_t)w1 << 32, w2 | (uint64_t)w3 << 32};                   \
        }                                                                                          \
    };

SYMWIN_MULTIMEM_TWO(f64, sum, add_f64)
SYMWIN_MULTIMEM_VECTOR(f32, sum, add_f32x4)
SYMWIN_MULTIMEM_VECTOR(f16, sum, add_f16x8)
SYMWIN_MULTIMEM_VECTOR(f16, min, min_f16x8)
SYMWIN_MULTIMEM_VECTOR(f16, max, max_f16x8)
SYMWIN_MULTIMEM_VECTOR(bf16, sum, add_bf16x8)
SYMWIN_MULTIMEM_VECTOR(bf16, min, min_bf16x8)
SYMWIN_MULTIMEM_VECTOR(bf16, max, max_bf16x8)
SYMWIN_MULTIMEM_FOUR(i32, sum, add_u32)
SYMWIN_MULTIMEM_FOUR(i32, min, min_s32)
SYMWIN_MULTIMEM_FOUR(i32, max, max_s32)
SYMWIN_MULTIMEM_FOUR(u32, sum, add_u32)
SYMWIN_MULTIMEM_FOUR(u32, min, min_u32)
SYMWIN_MULTIMEM_FOUR(u32, max, max_u32)
SYMWIN_MULTIMEM_TWO(i64, sum, add_u64)
SYMWIN_MULTIMEM_TWO(i64, min, min_s64)
SYMWIN_MULTIMEM_TWO(i64, max, max_s64)
SYMWIN_MULTIMEM_TWO(u64, sum, add_u64)
SYMWIN_MULTIMEM_TWO(u64, min, min_u64)
SYMWIN_MULTIMEM_TWO(u64, max, max_u64)
/* An average: the sum is rounded to the type, divided, and rounded again. */
template <class T>
struct symwin_multimem<T, symwin_op_avg> : symwin_multimem<T, symwin_op_sum> {
};
#undef SYMWIN_MULTIMEM_VECTOR
#undef SYMWIN_MULTIMEM_TWO
#undef SYMWIN_MULTIMEM_FOUR

/* ---- messages -------------------------------------------------------------------------------- */

/* Loads U reduced vectors, `step` bytes apart. */
template <class T, class O, int U>
SYMWIN_DEVICE void sw_mc_load(uint64_t from, uint64_t step, int32_t nranks, symwin_v16 v[U])
{
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        v[u] = symwin_multimem<T, O>::load(from + (uint64_t)u * step);
    SYMWIN_UNROLL
    for (int u = 0; u < U && O::divides; u++) {
        symwin_accumulator<T, O> lo, hi;

        lo.first(v[u].lo);
        hi.first(v[u].hi);
        v[u] = {lo.result(nranks), hi.result(nranks)};
    }
}

/* Reduces U vectors of a message to `to`: an address of this rank, or a multicast address. */
template <class T, class O, int U, bool EVERYWHERE>
SYMWIN_DEVICE void sw_mc_vectors(uint64_t to, uint64_t from, uint64_t step, int32_t nranks)
{
    symwin_v16 v[U];

    sw_mc_load<T, O, U>(from, step, nranks, v);
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++) {
        if (EVERYWHERE)
            symwin_multimem_store_v16(to + (uint64_t)u * step, v[u]);
        else
            symwin_store_v16(to + (uint64_t)u * step, v[u]);
    }
}

/* Stores one element to `to`: an address of this rank, or an offset on all ranks. */
template <uint32_t SIZE, bool EVERYWHERE>
SYMWIN_DEVICE void sw_mc_element(const symwin_peers &peers, uint64_t to, uint64_t value)
{
    typedef sw_unit<SIZE> unit;

    if (!EVERYWHERE)
        unit::store(to, (typename unit::type)value);
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < peers.nranks && EVERYWHERE; p++)
        unit::store(symwin_peer_address(peers, p, to), (typename unit::type)value);
}

template <class T, class O, bool EVERYWHERE>
SYMWIN_DEVICE void sw_mc_message(symwin_group group, const symwin_peers &peers, uint64_t to,
                                 uint64_t offset, uint64_t count)
{
    enum { SIZE = T::bytes, AT_ONCE = 4 };
    const sw_between cut = sw_cut_between(to, offset, count, SIZE);
    const uint64_t edge = cut.head + cut.tail, step = group.count * 16;
    const uint64_t in = symwin_multicast_address(peers, offset) + cut.head * SIZE;
    const uint64_t out = (EVERYWHERE ? symwin_multicast_address(peers, to) : to) + cut.head * SIZE;
    uint64_t v = group.index;

    SYMWIN_NO_UNROLL
    for (; v + (AT_ONCE - 1) * group.count < cut.vectors; v += AT_ONCE * group.count)
        sw_mc_vectors<T, O, AT_ONCE, EVERYWHERE>(out + v * 16, in + v * 16, step, peers.nranks);
    SYMWIN_NO_UNROLL
    for (; v < cut.vectors; v += group.count)
        sw_mc_vectors<T, O, 1, EVERYWHERE>(out + v * 16, in + v * 16, step, peers.nranks);
    SYMWIN_NO_UNROLL
    for (uint64_t e = group.index; e < edge; e += group.count) {
        const uint64_t at = e * SIZE + (e < cut.head ? 0 : cut.vectors * 16);

        sw_mc_element<SIZE, EVERYWHERE>(
            peers, to + at, symwin_reduce_element<T, O>(symwin_team_all(peers), offset + at));
    }
}

/* Reduces `count` elements at `offset` of all ranks into this rank's memory at address `to`.
 * `offset` is in the flat range. Both are aligned to the element, and `to` overlaps no rank's
 * elements. All threads of the group call it; each does its part and waits for nobody.
 *
 * Relaxed loads, weak stores. The ranks' data must have been acquired before (a barrier of all
 * ranks), and stays unchanged until all ranks that reduce have said that they are done. */
template <class T, class O>
SYMWIN_DEVICE void symwin_multicast_reduce(symwin_group group, const symwin_peers &peers,
                                           uint64_t to, uint64_t offset, uint64_t count)
{
    sw_mc_message<T, O, false>(group, peers, to, offset, count);
}

/* The same, with the result at offset `to` of all ranks; `to` may be `offset`. If several ranks do
 * this at the same time, their messages must not overlap. Relaxed and weak stores: the group's
 * threads must release the result for its readers. */
template <class T, class O>
SYMWIN_DEVICE void symwin_multicast_reduce_put(symwin_group group, const symwin_peers &peers,
                                               uint64_t to, uint64_t offset, uint64_t count)
{
    sw_mc_message<T, O, true>(group, peers, to, offset, count);
}

/* Puts `bytes` bytes of this rank's memory at address `from` to `offset` of all ranks, this rank
 * included, at any alignment. By all threads of the group. Weak loads, relaxed and weak stores: the
 * group's threads must release the data for its readers. */
SYMWIN_DEVICE void symwin_multicast_put(symwin_group group, const symwin_peers &peers,
                                        uint64_t offset, uint64_t from, uint64_t bytes)
{
    const sw_between cut = sw_cut_between(offset, from, bytes, 1);
    const uint64_t out = symwin_multicast_address(peers, offset) + cut.head;
    const uint64_t edge = cut.head + cut.tail;

    SYMWIN_NO_UNROLL
    for (uint64_t v = group.index; v < cut.vectors; v += group.count)
        symwin_multimem_store_v16(out + v * 16, symwin_load_v16(from + cut.head + v * 16));
    SYMWIN_NO_UNROLL
    for (uint64_t e = group.index; e < edge; e += group.count) {
        const uint64_t at = e < cut.head ? e : e + cut.vectors * 16;

        sw_mc_element<1, true>(peers, offset + at, symwin_load_u8(from + at));
    }
}

#endif
#endif
