/* All-reduce, two-shot over windows by bulk copies: each rank reduces its share of the message as
 * in twoshot.cu, but bulk copies bring whole pieces to shared memory and take the results from
 * there. One thread of each block starts the copies. A block then has more data in flight than the
 * registers of its threads can hold, so few multiprocessors saturate the links.
 *
 *   in, out    windows at in_offset and out_offset, which are equal on all ranks; any element
 *              alignment; equal (in place), but not partly overlapping
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   pieces     whole vectors of 16 bytes, if the offsets are congruent modulo 16; edges, or
 *              otherwise everything, are handled element by element
 *   result     reduced in rank order by one rank and stored to all, so all ranks get the same bits
 *
 * A block has SW_BULK_STAGES stages in its dynamic shared memory; the launch determines their size.
 * A stage holds a piece of every rank, from the same place of the share; later the result replaces
 * rank 0's piece. Chunk k of a block uses stage k modulo SW_BULK_STAGES: thread 0 starts the loads
 * of its pieces, and the other warps wait for them and add. While they add the next chunk, thread 0
 * starts the stores of the result to all ranks, and refills the stage of the chunk before that one,
 * which its stores have read by then.
 *
 * Order: as in twoshot.cu, headers before and finish words after. Thread 0 executes a fence for the
 * proxy of bulk copies after the headers and before the finish words.
 */
#include "../symwin/bulk.cuh"
#include "window.cuh"

#if SYMWIN_HAS_BULK

#define SW_BULK_STAGES 6

struct alignas(16) sw_bulk_vector {
    uint64_t lo, hi;
};

/* The block's shared memory. */
struct sw_bulk_block {
    sw_bulk_vector *stages;
    uint32_t vectors;  /* of a stage */
    uint64_t *arrived; /* one mbarrier for each stage */
};

SYMWIN_DEVICE sw_bulk_block sw_bulk_block_here(void)
{
    const uint32_t lines = symwin_shared_bytes() / SW_BULK_STAGES / 128;
    __shared__ uint64_t arrived[SW_BULK_STAGES];

    return {(sw_bulk_vector *)symwin_shared(), lines * (128 / 16), arrived};
}

SYMWIN_DEVICE sw_bulk_vector *sw_bulk_stage(const sw_bulk_block &block, uint64_t k)
{
    return block.stages + k % SW_BULK_STAGES * block.vectors;
}

/* The work of a block, in vectors from the message's first vector on. */
struct sw_bulk_work {
    sw_range share;
    uint64_t in, out; /* offsets of vector 0 */
    uint32_t piece;   /* vectors of a piece, at most */
    uint64_t chunks;  /* of this block: every gridDim.x-th chunk of the share */
};

/* First vector of chunk `k` of this block. sw_bulk_vectors(): the chunk's number of vectors. */
SYMWIN_DEVICE uint64_t sw_bulk_begin(const sw_bulk_work &work, uint64_t k)
{
    return work.share.begin + (blockIdx.x + k * gridDim.x) * work.piece;
}

SYMWIN_DEVICE uint32_t sw_bulk_vectors(const sw_bulk_work &work, uint64_t begin)
{
    return work.share.end - begin < work.piece ? (uint32_t)(work.share.end - begin) : work.piece;
}

/* Begins with the next rank, so that the ranks do not all read from the same rank at once; this
 * rank comes last. */
SYMWIN_DEVICE void sw_bulk_ask(const struct sw_kernel_args &args, const symwin_peers &peers,
                               const sw_bulk_block &block, const sw_bulk_work &work, uint64_t k)
{
    const uint32_t stage = (uint32_t)(k % SW_BULK_STAGES);
    const uint64_t begin = sw_bulk_begin(work, k);
    const uint32_t bytes = sw_bulk_vectors(work, begin) * 16;
    sw_bulk_vector *to = sw_bulk_stage(block, k);

    symwin_bulk_expect(&block.arrived[stage], (uint32_t)args.nranks * bytes);
    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step <= args.nranks; step++) {
        const int32_t p = sw_rank_after<0>(args, step);

        symwin_bulk_load(to + (uint32_t)p * work.piece,
                         symwin_peer_address(peers, p, work.in + begin * 16), bytes,
                         &block.arrived[stage]);
    }
}

SYMWIN_DEVICE void sw_bulk_tell(const struct sw_kernel_args &args, const symwin_peers &peers,
                                const sw_bulk_block &block, const sw_bulk_work &work, uint64_t k)
{
    const uint64_t begin = sw_bulk_begin(work, k);
    const uint32_t bytes = sw_bulk_vectors(work, begin) * 16;
    const sw_bulk_vector *from = sw_bulk_stage(block, k);

    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step <= args.nranks; step++)
        symwin_bulk_store(
            symwin_peer_address(peers, sw_rank_after<0>(args, step), work.out + begin * 16), from,
            bytes);
    symwin_bulk_commit();
}

/* Sums the pieces of a stage into the place of rank 0's piece; `o`: as the launch says. */
template <class R, class O>
SYMWIN_DEVICE void sw_bulk_sum_by(const struct sw_kernel_args &args, O o, sw_bulk_vector *stage,
                                  uint32_t piece, uint32_t vectors)
{
    const uint32_t others = blockDim.x > 32 ? 32 : 0; /* the warp of thread 0 does not add */

    SYMWIN_NO_UNROLL
    for (uint32_t v = threadIdx.x - others; v < vectors; v += blockDim.x - others) {
        R lo[1] = {}, hi[1] = {};

        SYMWIN_NO_UNROLL
        for (int32_t p = 0; p < args.nranks; p++) {
            const sw_bulk_vector from = stage[(uint32_t)p * piece + v];
            const symwin_v16 now[1] = {{from.lo, from.hi}};

            sw_vectors_add_by<R, 1>(args, o, now, p, lo, hi);
        }
        stage[v] = {lo[0].result(args.op, args.nranks), hi[0].result(args.op, args.nranks)};
    }
}

template <class R>
SYMWIN_DEVICE void sw_bulk_sum(const struct sw_kernel_args &args, sw_bulk_vector *stage,
                               uint32_t piece, uint32_t vectors)
{
    if constexpr (R::chosen)
        R::with_op(args.op, [&](auto o) { sw_bulk_sum_by<R>(args, o, stage, piece, vectors); });
    else
        sw_bulk_sum_by<R>(args, typename R::operation(), stage, piece, vectors);
}

template <class R>
SYMWIN_DEVICE void sw_bulk_pieces(const struct sw_kernel_args &args, const symwin_peers &peers,
                                  const sw_bulk_block &block, const sw_bulk_work &work)
{
    const bool asks = threadIdx.x == 0, sums = blockDim.x <= 32 || threadIdx.x >= 32;

    if (asks) {
        for (int s = 0; s < SW_BULK_STAGES; s++)
            symwin_bulk_init(&block.arrived[s]);
        symwin_bulk_fence();
        for (uint64_t k = 0; k < SW_BULK_STAGES && k < work.chunks; k++)
            sw_bulk_ask(args, peers, block, work, k);
    }
    __syncthreads();
    SYMWIN_NO_UNROLL
    for (uint64_t k = 0; k < work.chunks; k++) {
        const uint32_t stage = (uint32_t)(k % SW_BULK_STAGES);

        if (asks && k > 0)
            sw_bulk_tell(args, peers, block, work, k - 1);
        if (asks && k > 1 && k - 2 + SW_BULK_STAGES < work.chunks) {
            symwin_bulk_wait_read();
            sw_bulk_ask(args, peers, block, work, k - 2 + SW_BULK_STAGES);
        }
        while (!symwin_bulk_loaded(&block.arrived[stage], (uint32_t)(k / SW_BULK_STAGES)))
            symwin_pause();
        if (sums)
            sw_bulk_sum<R>(args, sw_bulk_stage(block, k), work.piece,
                           sw_bulk_vectors(work, sw_bulk_begin(work, k)));
        symwin_bulk_fence_shared();
        __syncthreads();
    }
    if (asks) {
        if (work.chunks > 0)
            sw_bulk_tell(args, peers, block, work, work.chunks - 1);
        symwin_bulk_wait_written();
        symwin_bulk_fence();
    }
}

template <class R>
SYMWIN_DEVICE void sw_bulk_share(const struct sw_kernel_args &args, const symwin_peers &peers)
{
    const sw_bulk_block block = sw_bulk_block_here();
    const uint32_t piece = block.vectors / (uint32_t)args.nranks;
    sw_cut cut = sw_cut_of(args, args.out_offset, R::bytes);
    sw_bulk_work work = {{0, 0}, 0, 0, piece, 0};
    uint64_t chunks;

    if (piece == 0) /* a stage has no room for so many ranks */
        cut = {args.count, 0, args.count};
    work.share = sw_share(cut.vectors, args.rank, args.nranks);
    work.in = args.in_offset + cut.head * R::bytes;
    work.out = args.out_offset + cut.head * R::bytes;
    chunks = piece == 0 ? 0 : (work.share.end - work.share.begin + piece - 1) / piece;
    work.chunks = chunks > blockIdx.x ? (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    sw_bulk_pieces<R>(args, peers, block, work);
    sw_reduce_edges<R>(args, peers, cut, sw_share(cut.edge, args.rank, args.nranks),
                       SW_STORE_EVERYWHERE);
}

template <class R>
SYMWIN_DEVICE void sw_bulk(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_begin(args);

    sw_start_loads<R>(args, call, SW_HEADER_STREAM);
    if (!call.failed)
        sw_bulk_share<R>(args, call.peers);
    sw_call_end(args, call, 0);
}

#define SW_RUN(type, op) sw_bulk<sw_reduce<symwin_type_##type, symwin_op_##op>>(args)
#else
/* This architecture has no bulk copies. The host knows it and does not launch these kernels. */
#define SW_RUN(type, op) (void)args
#endif

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        SW_RUN(type, op);                                                                          \
    }
SW_KERNEL_LIST_TWOSHOT_BULK(SW_DEFINE)
#undef SW_DEFINE
