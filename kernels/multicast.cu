/* Collectives through multicast addresses (NVLS): the switch reads and sums all ranks' memory in
 * one access, or writes it.
 *
 *   oneshot_mc   every rank load-reduces the whole message and stores it to its own output. The
 *                input is a window; the output is any memory of this rank except the input window
 *                itself, which peers still read. All-gather and broadcast: each rank that sends
 *                stores its part to all ranks; only the output is a window
 *   twoshot_mc   each rank load-reduces its share and stores it to all ranks in one access. Input
 *                and output are windows, and may be the same. Reduce-scatter: each rank
 *                load-reduces its part into its own output; reduce: the root the whole message.
 *                Nobody else reads or writes what they do, so any memory serves as output, also in
 *                place
 *   grid         any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   vectors      16 bytes if input and output are congruent modulo 16; edges, or otherwise
 *                everything, are handled element by element through the peers' own addresses
 *   result       has the switch's order and rounding: f16 and bf16 sums are rounded to the type
 *                before an average divides them; min and max may return either of two zeros. With
 *                oneshot_mc ranks get the same bits only if the switch gives the same result each
 *                time
 *
 * Order: as in twoshot.cu, headers before and finish words after.
 */
#include "../symwin/multicast.cuh"
#include "bytes.cuh"
#include "pattern.cuh"
#include "window.cuh"

#if SYMWIN_HAS_MULTIMEM

/* The result of a combined vector: an average still has to be divided. */
template <class R>
SYMWIN_DEVICE symwin_v16 sw_multicast_result(const struct sw_kernel_args &args, symwin_v16 v)
{
    R lo, hi;

    if (args.op != SW_KERNEL_AVERAGE)
        return v;
    lo.first(v.lo, args.op);
    hi.first(v.hi, args.op);
    return {lo.result(args.op, args.nranks), hi.result(args.op, args.nranks)};
}

/* Combines U vectors per iteration, `step` apart. */
template <class T, class O, int U>
SYMWIN_DEVICE void sw_multicast_vectors(const struct sw_kernel_args &args, uint64_t in,
                                        uint64_t out, uint64_t step, sw_reach reach)
{
    symwin_v16 v[U];

    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        v[u] = symwin_multimem<T, O>::load(in + (uint64_t)u * step);
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++) {
        v[u] = sw_multicast_result<sw_reduce<T, O>>(args, v[u]);
        if (reach == SW_STORE_HERE)
            symwin_store_v16(out + (uint64_t)u * step, v[u]);
        else
            symwin_multimem_store_v16(out + (uint64_t)u * step, v[u]);
    }
}

template <class T, class O>
SYMWIN_DEVICE void sw_multicast_share(const struct sw_kernel_args &args, const symwin_peers &peers,
                                      sw_reach reach)
{
    const bool here = reach == SW_STORE_HERE;
    const uint64_t before = args.stage == SW_LOADS_PART ? (uint32_t)args.rank * args.bytes : 0;
    const sw_cut cut = sw_cut_of(args, here ? args.out : args.out_offset, T::bytes, before);
    const int32_t part = here ? 0 : args.rank, parts = here ? 1 : args.nranks;
    const sw_range vectors = sw_share(cut.vectors, part, parts);
    const uint64_t threads = symwin_thread_count(), step = threads * 16;
    const uint64_t in = symwin_multicast_address(peers, args.in_offset + before) +
                        cut.head * T::bytes;
    const uint64_t out = (here ? args.out : symwin_multicast_address(peers, args.out_offset)) +
                         cut.head * T::bytes;
    uint64_t v = vectors.begin + symwin_thread_index();

    SYMWIN_NO_UNROLL
    for (; v + (SW_WINDOW_UNROLL - 1) * threads < vectors.end; v += SW_WINDOW_UNROLL * threads)
        sw_multicast_vectors<T, O, SW_WINDOW_UNROLL>(args, in + v * 16, out + v * 16, step, reach);
    SYMWIN_NO_UNROLL
    for (; v < vectors.end; v += threads)
        sw_multicast_vectors<T, O, 1>(args, in + v * 16, out + v * 16, step, reach);
    sw_reduce_edges_to<sw_reduce<T, O>>(args, peers, cut, sw_share(cut.edge, part, parts), reach,
                                        before, args.out);
}

template <class T, class O>
SYMWIN_DEVICE void sw_multicast(const struct sw_kernel_args &args, sw_reach reach)
{
    sw_call call = sw_call_begin(args);

    symwin_alias_fence(); /* a kernel that uses the ranks' own addresses may run beside this one */
    sw_start_barrier(args, call, SW_HEADER_RELEASE);
    symwin_alias_fence();
    if (!call.failed && (args.stage != SW_LOADS_ROOT || args.rank == args.root))
        sw_multicast_share<T, O>(args, call.peers,
                                 args.stage == SW_LOADS_SHARE ? reach : SW_STORE_HERE);
    symwin_alias_fence();
    sw_call_end(args, call, 0);
}

/* Stores this rank's part to all ranks. */
SYMWIN_DEVICE void sw_multicast_part(const struct sw_kernel_args &args, const symwin_peers &peers)
{
    const uint64_t to = args.out_offset + (uint32_t)args.rank * args.out_step;

    if (args.to != SW_EVERY_RANK)
        return;
    if ((args.in - to) % 16 == 0)
        symwin_multicast_put(symwin_group_grid(), peers, to, args.in, args.bytes);
    else
        sw_move_part({peers, 0, args.nranks, -1}, sw_crew_of_grid(), args.in, to, args.bytes);
}

SYMWIN_DEVICE void sw_multicast_move(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_begin(args);

    symwin_alias_fence();
    sw_start_barrier(args, call, SW_HEADER_STREAM);
    symwin_alias_fence();
    if (!call.failed)
        sw_multicast_part(args, call.peers);
    symwin_alias_fence();
    sw_call_end(args, call, 0);
}

#define SW_RUN_MOVE(args) sw_multicast_move(args)
#define SW_RUN(algo, type, op)                                                                     \
    sw_multicast<symwin_type_##type, symwin_op_##op>(args, SW_REACH_##algo)
#else
/* This architecture has no multicast. The host knows it and does not launch these kernels. */
#define SW_RUN(algo, type, op) (void)args
#define SW_RUN_MOVE(args) (void)args
#endif

#define SW_REACH_oneshot_mc SW_STORE_HERE
#define SW_REACH_twoshot_mc SW_STORE_EVERYWHERE

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        SW_RUN(algo, type, op);                                                                    \
    }
SW_KERNEL_LIST_MULTICAST(SW_DEFINE)
#undef SW_DEFINE

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        SW_RUN_MOVE(args);                                                                         \
    }
SW_KERNEL_LIST_MULTICAST_MOVE(SW_DEFINE)
#undef SW_DEFINE
