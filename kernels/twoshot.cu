/* All-reduce, two-shot over windows: each rank reduces its share of the message by loads from all
 * ranks' input and stores the result to all ranks' output. Nothing is copied in between.
 *
 *   in, out    windows at in_offset and out_offset of every rank, the same offsets everywhere;
 *              any element alignment; equal (in place), but not partly overlapping
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   vectors    16 bytes a load where the offsets are congruent modulo 16, else element by element
 *   result     reduced in rank order by one rank and stored to all, so all ranks get the same bits
 *
 * Order. Before: every block acquires every peer's header, which that peer's kernel released after
 * all that its stream had written to the input. After: the last block of each grid has acquired all
 * blocks' stores, releases them with its finish words and acquires the peers'. So when the kernel
 * ends, the output is complete here, and nobody reads this rank's input any more.
 */
#include "window.cuh"

/* Reduces U vectors a turn, `step` apart. The loads from the next rank are under way while this
 * rank's are added. The loops over ranks stay rolled: their addresses would fill the registers. */
template <class R, int U>
SYMWIN_DEVICE void sw_twoshot_vectors(const struct sw_kernel_args &args, const symwin_peers &peers,
                                      uint64_t in, uint64_t out, uint64_t step)
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
        sw_vectors_add<R, U>(args, now, p == 0, lo, hi);
    }
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        now[u] = {lo[u].result(args.op, args.nranks), hi[u].result(args.op, args.nranks)};
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++) {
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            symwin_store_v16(symwin_peer_address(peers, p, out + (uint64_t)u * step), now[u]);
    }
}

template <class R>
SYMWIN_DEVICE void sw_twoshot_share(const struct sw_kernel_args &args, const symwin_peers &peers)
{
    /* Eight accumulators a word make four vectors too many for the registers. */
    const int unroll = R::bytes == 1 ? SW_WINDOW_UNROLL / 2 : SW_WINDOW_UNROLL;
    const sw_cut cut = sw_cut_of(args, args.out_offset, R::bytes);
    const sw_range vectors = sw_share(cut.vectors, args.rank, args.nranks);
    const uint64_t threads = symwin_thread_count(), step = threads * 16;
    const uint64_t in = args.in_offset + cut.head * R::bytes;
    const uint64_t out = args.out_offset + cut.head * R::bytes;
    uint64_t v = vectors.begin + symwin_thread_index();

    SYMWIN_NO_UNROLL
    for (; v + (unroll - 1) * threads < vectors.end; v += unroll * threads)
        sw_twoshot_vectors<R, unroll>(args, peers, in + v * 16, out + v * 16, step);
    SYMWIN_NO_UNROLL
    for (; v < vectors.end; v += threads)
        sw_twoshot_vectors<R, 1>(args, peers, in + v * 16, out + v * 16, step);
    sw_reduce_edges<R>(args, peers, cut, sw_share(cut.edge, args.rank, args.nranks),
                       SW_STORE_EVERYWHERE);
}

template <class R>
SYMWIN_DEVICE void sw_twoshot(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_begin(args);

    sw_start_barrier(args, call);
    if (!call.failed)
        sw_twoshot_share<R>(args, call.peers);
    sw_call_end(args, call, 0);
}

#define SW_DEFINE(file, algo, type, op, ranks, shape)                                              \
    SW_KERNEL(algo, type, op, ranks, shape)                                                        \
    {                                                                                              \
        sw_twoshot<sw_reduce<symwin_type_##type, symwin_op_##op>>(args);                           \
    }
SW_KERNEL_LIST_TWOSHOT(SW_DEFINE)
#undef SW_DEFINE
