/* All-reduce, two-shot over windows: each rank reduces its share of the message by loads from all
 * ranks' input and stores the result to all ranks' output. Nothing is copied in between.
 * Reduce-scatter, with args.stage SW_LOADS_PART: each rank reduces its part of all inputs for its
 * own output. Reduce, with SW_LOADS_ROOT, by the kernels for any message: each rank but the root
 * reduces a share and stores it to the root's output, so each link carries every byte once. The
 * root tells where its output is; if that is in no window, the root reduces all.
 *
 *   in, out    windows at in_offset and out_offset, which are equal on all ranks; any element
 *              alignment; equal (in place), but not partly overlapping. With SW_LOADS_PART the
 *              output is any memory, also this rank's part of the input, which only it loads
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   vectors    16 bytes a load if the offsets are congruent modulo 16, otherwise element by element
 *   result     reduced in rank order by one rank and stored to all, so all ranks get the same bits
 *
 * Order. Before: every block acquires every peer's header, which that peer's kernel released after
 * everything that its stream had written to the input. After: the last block of each grid has
 * acquired all blocks' stores, releases them with its finish words and acquires the peers'. So when
 * the kernel ends, the output is complete here, and no peer reads this rank's input any more.
 */
#include "window.cuh"

/* Vectors that a thread loads from each rank at the same time: as many as fit in registers beside
 * the sums. */
template <int N, class R>
struct sw_twoshot_unroll {
    enum { value = N == 2 ? 3 : N == 4 ? 2 : (int)sw_window_unroll<R>::value };
};

/* Where results go: to offset `out` from the base of each of so many ranks. */
struct sw_results {
    symwin_peers peers;
    int32_t ranks;
    uint64_t out;
};

/* Reduces U vectors, `step` bytes apart. The next rank's vectors are loaded while this rank's are
 * added. The loops over ranks stay rolled: unrolled, their addresses would fill the registers. */
template <class R, int U>
SYMWIN_DEVICE void sw_twoshot_by_rank(const struct sw_kernel_args &args, const symwin_peers &peers,
                                      const sw_results &to, uint64_t in, uint64_t out,
                                      uint64_t step)
{
    symwin_v16 now[U], next[U];
    R lo[U] = {}, hi[U] = {};

    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        next[u] = symwin_load_v16(symwin_peer_address(peers, 0, in + (uint64_t)u * step));
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++) {
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            now[u] = next[u];
        if (p + 1 < args.nranks) {
            SYMWIN_UNROLL
            for (int u = 0; u < U; u++)
                next[u] = symwin_load_v16(
                    symwin_peer_address(peers, p + 1, in + (uint64_t)u * step));
        }
        sw_vectors_add<R, U>(args, now, p, lo, hi);
    }
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        now[u] = {lo[u].result(args.op, args.nranks), hi[u].result(args.op, args.nranks)};
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < to.ranks; p++) {
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            symwin_store_v16(symwin_peer_address(to.peers, p, out + (uint64_t)u * step), now[u]);
    }
}

/* The same with all ranks' loads in flight at once. The sums are calculated one vector at a
 * time. */
template <int N, class R, int U>
SYMWIN_DEVICE void sw_twoshot_at_once(const struct sw_kernel_args &args, const symwin_peers &peers,
                                      const sw_results &to, uint64_t in, uint64_t out,
                                      uint64_t step)
{
    symwin_v16 from[N > 0 ? N : 1][U];

    SYMWIN_UNROLL
    for (int p = 0; p < N; p++) {
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            from[p][u] = symwin_load_v16(symwin_peer_address(peers, p, in + (uint64_t)u * step));
    }
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++) {
        R lo[1] = {}, hi[1] = {};
        symwin_v16 sum;

        SYMWIN_UNROLL
        for (int p = 0; p < N; p++)
            sw_vectors_add<R, 1>(args, &from[p][u], p, lo, hi);
        sum = {lo[0].result(args.op, N), hi[0].result(args.op, N)};
        SYMWIN_UNROLL
        for (int p = 0; p < N; p++)
            if (p < to.ranks)
                symwin_store_v16(symwin_peer_address(to.peers, p, out + (uint64_t)u * step), sum);
    }
}

template <int N, class R, int U>
SYMWIN_DEVICE void sw_twoshot_vectors(const struct sw_kernel_args &args, const symwin_peers &peers,
                                      const sw_results &to, uint64_t in, uint64_t out,
                                      uint64_t step)
{
    if (N > 0)
        sw_twoshot_at_once<N, R, U>(args, peers, to, in, out, step);
    else
        sw_twoshot_by_rank<R, U>(args, peers, to, in, out, step);
}

/* The vectors that a warp handles in one turn are adjacent. NVLink transfers them a few percent
 * faster than vectors distributed over the grid. A remainder too small for a turn of all warps is
 * handled in the same turns by some of the warps, or one vector per thread if each thread has at
 * most one. */
template <int N, class R>
SYMWIN_DEVICE void sw_twoshot_range(const struct sw_kernel_args &args, const symwin_peers &peers,
                                    const sw_results &to, const sw_range &vectors, uint64_t in)
{
    const int unroll = sw_twoshot_unroll<N, R>::value;
    const uint64_t lanes = blockDim.x % 32 == 0 ? 32 : 1;
    const uint64_t thread = symwin_thread_index(), threads = symwin_thread_count();
    const uint64_t rest = (vectors.end - vectors.begin) % (threads * unroll);
    const uint64_t single = rest > threads ? rest % (lanes * unroll) : rest;
    const uint64_t turns_end = vectors.end - single;
    uint64_t v = vectors.begin + thread / lanes * lanes * unroll + thread % lanes;

    SYMWIN_NO_UNROLL
    for (; v < turns_end; v += threads * unroll)
        sw_twoshot_vectors<N, R, unroll>(args, peers, to, in + v * 16, to.out + v * 16, lanes * 16);
    SYMWIN_NO_UNROLL
    for (v = turns_end + thread; v < vectors.end; v += threads)
        sw_twoshot_vectors<N, R, 1>(args, peers, to, in + v * 16, to.out + v * 16, 0);
}

/* What this rank reduces. */
struct sw_work {
    uint64_t part;         /* bytes of the input before it */
    int32_t share, shares; /* of what follows; shares is 0: nothing */
    uint64_t out;          /* the address of the result, if that is for one rank */
};

/* For the root, which has told the others where its output is. */
SYMWIN_DEVICE sw_work sw_work_for_root(const struct sw_kernel_args &args, sw_call &call)
{
    const int32_t ahead = args.root - args.rank + (args.root < args.rank ? args.nranks : 0);
    const bool is_root = ahead == 0;
    const uint64_t offset = is_root ? args.out_offset : sw_offer_of(args, call, args.root);

    if (call.failed)
        return {0, 0, 0, 0};
    if (offset == SW_NO_OFFSET || args.nranks == 1)
        return {0, 0, is_root ? 1 : 0, args.out};
    return {0, args.nranks - 1 - ahead, is_root ? 0 : args.nranks - 1,
            symwin_peer_address(call.peers, args.root, offset)};
}

SYMWIN_DEVICE sw_work sw_work_of(const struct sw_kernel_args &args, sw_call &call)
{
    if (args.stage == SW_LOADS_ROOT)
        return sw_work_for_root(args, call);
    if (args.stage == SW_LOADS_PART)
        return {(uint32_t)args.rank * args.bytes, 0, 1, args.out};
    return {0, args.rank, args.nranks, args.out};
}

/* Of any message, for any receiver. */
template <class R>
SYMWIN_DEVICE void sw_twoshot_any(const struct sw_kernel_args &args, sw_call &call)
{
    const symwin_peers &peers = call.peers;
    const bool one = args.stage != SW_LOADS_SHARE;
    const sw_work work = sw_work_of(args, call);
    const sw_cut cut = sw_cut_of(args, one ? work.out : args.out_offset, R::bytes, work.part);
    sw_results to = {peers, args.nranks, args.out_offset};

    if (work.shares == 0)
        return;
    sw_reduce_edges_to<R>(args, peers, cut, sw_share(cut.edge, work.share, work.shares),
                          one ? SW_STORE_HERE : SW_STORE_EVERYWHERE, work.part, work.out);
    if (one)
        to = {{work.out, 0, 0, 1}, 1, 0};
    to.out += cut.head * R::bytes;
    sw_twoshot_range<0, R>(args, peers, to, sw_share(cut.vectors, work.share, work.shares),
                           args.in_offset + work.part + cut.head * R::bytes);
}

/* Of a message of whole vectors, which has no edge. */
template <int N, class R>
SYMWIN_DEVICE void sw_twoshot_whole(const struct sw_kernel_args &args, const symwin_peers &peers)
{
    const bool parts = args.stage == SW_LOADS_PART;
    const uint64_t part = parts ? (uint32_t)args.rank * args.bytes : 0;
    const int32_t share = parts ? 0 : args.rank, shares = parts ? 1 : args.nranks;
    const sw_cut cut = {0, args.count * R::bytes / 16, 0};
    sw_results to = {peers, args.nranks, args.out_offset};

    if (parts)
        to = {{args.out, 0, 0, 1}, 1, 0};
    to.out += cut.head * R::bytes;
    sw_twoshot_range<N, R>(args, peers, to, sw_share(cut.vectors, share, shares),
                           args.in_offset + part + cut.head * R::bytes);
}

template <int N, sw_kernel_shape shape, class R>
SYMWIN_DEVICE void sw_twoshot(const struct sw_kernel_args &args)
{
    const bool offers = N == 0 && args.stage == SW_LOADS_ROOT;
    sw_call call = sw_call_begin(args);

    if (offers && args.rank == args.root)
        sw_offer_post(args, call, SW_EVERY_RANK, args.out_offset);
    sw_start_loads<R>(args, call, SW_HEADER_STREAM);
    if (!call.failed) {
        if constexpr (shape == SW_SHAPE_whole)
            sw_twoshot_whole<N, R>(args, call.peers);
        else
            sw_twoshot_any<R>(args, call);
    }
    sw_call_end(args, call, 0, offers);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_twoshot<SW_RANKS_##ranks, SW_SHAPE_##shape,                                             \
                   sw_reduce<symwin_type_##type, symwin_op_##op>>(args);                           \
    }
SW_KERNEL_LIST_TWOSHOT(SW_DEFINE)
#undef SW_DEFINE
