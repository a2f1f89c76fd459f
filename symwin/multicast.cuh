/* Reductions and stores through multicast addresses, of whole messages: the switch reads or writes all ranks' memory in one
 * access (sm_90 and later, on windows that have such addresses: SYMWIN_TRANSPORT_MULTICAST).
 *
 *   symwin_multimem<type, op>::load()   16 bytes, combined over all ranks
 *   symwin_multicast_reduce()           a message from all ranks into this one's memory
 *   symwin_multicast_put()              a message to all ranks
 *   symwin_multicast_reduce_put()       a message from all ranks to all
 *
 * All ranks means all of the communicator: a team of fewer has no multicast address. What is no whole vector of 16 bytes,
 * and everything where the two places differ by 16, goes through the ranks' own addresses. In which order the
 * switch combines is its own business, an average of 16-bit floats is rounded twice, and of two zeros min and max may return
 * either. Where SYMWIN_HAS_MULTIMEM is 0 this declares nothing. Like all of the device API it is compiled by nvcc and for the
 * emulated driver. symwin/multimem.cuh says what memory order means.
 */
#ifndef SYMWIN_MULTICAST_CUH
#define SYMWIN_MULTICAST_CUH

#include "symwin/multimem.cuh"
#include "symwin/reduce.cuh"

#if SYMWIN_HAS_MULTIMEM

/* ---- accesses -------------------------------------------------------------------------------- */

/* Sixteen bytes of elements <type>, combined by <op> over all ranks: what the instruction has (symwin/multimem.cuh). Any other
 * pair does not compile. */
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
/* An average is the sum, rounded to the type, divided and rounded again. */
template <class T>
struct symwin_multimem<T, symwin_op_avg> : symwin_multimem<T, symwin_op_sum> {
};
#undef SYMWIN_MULTIMEM_VECTOR
#undef SYMWIN_MULTIMEM_TWO
#undef SYMWIN_MULTIMEM_FOUR

/* ---- messages -------------------------------------------------------------------------------- */

/* Combines U vectors, `step` bytes apart. */
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

/* U vectors of a message, to `to`: an address of this rank, or a multicast address. */
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

/* An element to `to`: an address, or an offset in all ranks. */
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

/* Reduces `count` elements at `offset` (in the flat range, aligned to the element) of all ranks into this rank's memory at
 * `to`, aligned to the element, which overlaps no rank's elements. By all threads of the group, each of which does its part
 * and waits for nobody.
 *
 * Relaxed loads, weak stores: what the ranks have put there must have been acquired before (a barrier of all ranks), and
 * nobody changes it until all that reduce have said that they are done. */
template <class T, class O>
SYMWIN_DEVICE void symwin_multicast_reduce(symwin_group group, const symwin_peers &peers,
                                           uint64_t to, uint64_t offset, uint64_t count)
{
    sw_mc_message<T, O, false>(group, peers, to, offset, count);
}

/* The same to offset `to` of all ranks, which may be `offset`. Ranks that do it at the same time do it for messages that do
 * not overlap. Relaxed and weak stores: who is to see what was put needs a release of this group's threads behind it. */
template <class T, class O>
SYMWIN_DEVICE void symwin_multicast_reduce_put(symwin_group group, const symwin_peers &peers,
                                               uint64_t to, uint64_t offset, uint64_t count)
{
    sw_mc_message<T, O, true>(group, peers, to, offset, count);
}

/* Puts `bytes` bytes of this rank's memory at `from` to `offset` of all ranks, this one too, at any alignment. By all threads
 * of the group. Weak loads, relaxed and weak stores: who is to see what was put needs a release of this group's threads behind
 * it. */
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
