/* What the kernels over windows share: how a message is divided into edges and 16-byte vectors, how
 * these are distributed among the ranks, and the element-wise reduction of the edges.
 *
 *   | head | vector | vector | ...            | vector | tail |
 *   in_offset      ^ 16-byte aligned, here and in the output
 *
 * Vectors exist only if input and output are congruent modulo 16; otherwise the whole message is
 * edge. An offset is aligned as its address is, because strides and bases are multiples of the page
 * size.
 */
#ifndef SYMWIN_KERNELS_WINDOW_CUH
#define SYMWIN_KERNELS_WINDOW_CUH

#include "scalar.cuh"

/* Vectors that a thread loads from each rank at the same time. If the thread adds them itself,
 * types of one byte use half as many: their eight accumulators per word would make four vectors
 * exceed the registers. */
#define SW_WINDOW_UNROLL 4
template <class R>
struct sw_window_unroll {
    enum { value = R::bytes == 1 ? SW_WINDOW_UNROLL / 2 : SW_WINDOW_UNROLL };
};

struct sw_cut {
    uint64_t head;    /* elements before the vectors */
    uint64_t vectors; /* of 16 bytes */
    uint64_t edge;    /* elements that are in no vector, including the head */
};

/* `out` is the output's address or offset, or any value congruent to it modulo 16. `part`: bytes of
 * the input before what is reduced. */
SYMWIN_DEVICE sw_cut sw_cut_of(const struct sw_kernel_args &args, uint64_t out, uint32_t size,
                               uint64_t part = 0)
{
    const uint64_t to_boundary = (0 - args.in_offset - part) % 16 / size;
    sw_cut cut = {args.count, 0, args.count};

    if ((args.in_offset + part - out) % 16 == 0 && to_boundary < args.count) {
        cut.head = to_boundary;
        cut.vectors = (args.count - to_boundary) * size / 16;
        cut.edge = args.count - cut.vectors * 16 / size;
    }
    return cut;
}

struct sw_range {
    uint64_t begin, end;
};

/* Part `part` of `parts` of [0, total): sizes differ by at most one. */
SYMWIN_DEVICE sw_range sw_share(uint64_t total, int32_t part, int32_t parts)
{
    const uint64_t each = total / (uint32_t)parts, more = total % (uint32_t)parts;
    const uint64_t before = (uint32_t)part < more ? (uint32_t)part : more;
    const uint64_t begin = each * (uint32_t)part + before;

    return {begin, begin + each + ((uint32_t)part < more ? 1 : 0)};
}

/* Adds U vectors of rank p to the sums, which are kept in halves. `o` is the operation that args.op
 * names. */
template <class R, int U, class O>
SYMWIN_DEVICE void sw_vectors_add_by(const struct sw_kernel_args &args, O o,
                                     const symwin_v16 now[U], int32_t p, R lo[U], R hi[U])
{
    const uint64_t scalar = sw_is_premul<O>::value ? sw_scalar_of<R>(args, p) : 0;

    SYMWIN_UNROLL
    for (int u = 0; u < U; u++) {
        symwin_v16 v = now[u];

        if constexpr (sw_is_premul<O>::value)
            v = {R::scaled(v.lo, scalar), R::scaled(v.hi, scalar)};
        if (p == 0) {
            lo[u].first(v.lo, args.op);
            hi[u].first(v.hi, args.op);
        } else {
            lo[u].add(v.lo, args.op, o);
            hi[u].add(v.hi, args.op, o);
        }
    }
}

template <class R, int U>
SYMWIN_DEVICE void sw_vectors_add(const struct sw_kernel_args &args, const symwin_v16 now[U],
                                  int32_t p, R lo[U], R hi[U])
{
    if constexpr (R::chosen)
        R::with_op(args.op, [&](auto o) { sw_vectors_add_by<R, U>(args, o, now, p, lo, hi); });
    else
        sw_vectors_add_by<R, U>(args, typename R::operation(), now, p, lo, hi);
}

/* Where a result is stored: in the output window of every rank, or only in one output. */
enum sw_reach { SW_STORE_EVERYWHERE, SW_STORE_HERE };

/* Reduces the given range of edge elements, one at a time, in rank order. `part` as above; `out`:
 * the address of the one output. */
template <class R>
SYMWIN_DEVICE void sw_reduce_edges_to(const struct sw_kernel_args &args, const symwin_peers &peers,
                                      const sw_cut &cut, sw_range range, sw_reach reach,
                                      uint64_t part, const uint64_t &out)
{
    const uint64_t threads = symwin_thread_count(), in = args.in_offset + part;

    SYMWIN_NO_UNROLL
    for (uint64_t e = range.begin + symwin_thread_index(); e < range.end; e += threads) {
        const uint64_t at = e * R::bytes + (e < cut.head ? 0 : cut.vectors * 16);
        uint64_t word;
        R sum;

        word = sw_element_load<R::bytes, SW_OWN>(symwin_peer_address(peers, 0, in + at));
        sum.first(sw_multiplied<R>(args, 0, word), args.op);
        SYMWIN_NO_UNROLL
        for (int32_t p = 1; p < args.nranks; p++) {
            word = sw_element_load<R::bytes, SW_OWN>(symwin_peer_address(peers, p, in + at));
            sum.add(sw_multiplied<R>(args, p, word), args.op);
        }
        word = sum.result(args.op, args.nranks);
        if (reach == SW_STORE_HERE) {
            sw_element_store<R::bytes, SW_OWN>(out + at, word);
            continue;
        }
        SYMWIN_NO_UNROLL
        for (int32_t p = 0; p < args.nranks; p++)
            sw_element_store<R::bytes, SW_OWN>(symwin_peer_address(peers, p, args.out_offset + at),
                                               word);
    }
}

/* The same, with this rank's output. */
template <class R>
SYMWIN_DEVICE void sw_reduce_edges(const struct sw_kernel_args &args, const symwin_peers &peers,
                                   const sw_cut &cut, sw_range range, sw_reach reach)
{
    sw_reduce_edges_to<R>(args, peers, cut, range, reach, 0, args.out);
}

#endif
