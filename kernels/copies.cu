/* All-reduce by copies, for messages so large that only link bandwidth counts: the copy engines
 * move all data, and the multiprocessors only sum. This file has the kernels; copies.c queues them
 * and the copies. Collectives that only move bytes have BEGIN ahead of their copies and END behind.
 *
 *   in, out    windows at in_offset and out_offset, which are equal on all ranks; any element
 *              alignment; equal (in place: see below), but not partly overlapping
 *   grid       BEGIN and END one block; SUM any, and ranks' grids may differ; all blocks must be
 *              resident together with the peers'
 *   result     reduced in rank order by one rank and copied to all, so all ranks get the same bits
 *
 * Two shots, in two chunks (copies_layout.h), so that one chunk is summed while another is copied.
 * On rank q, in its stream and in a side stream (copies.c has the order of the copies of a chunk):
 *
 *   stream   BEGIN  scatter 0  scatter 1             gather 0             gather 1  END
 *   side                       SUM 0 ................^ SUM 1 .............^
 *                              ^ after scatter 0       ^ after scatter 1
 *
 *   BEGIN      tells every peer the call's digest and waits for theirs
 *   scatter c  copies chunk c of q's input for share p to the place of share q in p's OUTPUT, so no
 *              scratch memory is needed
 *   SUM c      tells the peers that these pieces have arrived (HERE c) and waits for all peers'
 *              word. Adds chunk c of q's share, its own input and n - 1 pieces, in rank order into
 *              q's output. When all blocks have done so, tells the peers (SUMMED c) and waits for
 *              theirs. SUM 0 also reduces the elements that are in no share
 *   gather c   copies q's result of chunk c to the same place in every peer's output
 *   END        tells the peers (ENDED) and waits for theirs
 *
 * In place, pieces cannot be copied to the place of share q in p's output, because that is p's
 * input. So the two-shot put with SW_PUT_HERE replaces BEGIN: it counts the call, and reduces the
 * last half of each share. When it ends at q, it has ended at every p except for p's finish words,
 * so p has read its input there. The pieces of the first half, in two chunks, are kept in that
 * place. The put's results are copied with those of chunk 1.
 *
 * Words carry the number N of the call among the calls by copies, which END counts in the state: 64
 * bits, never reset, never wrap; a word that equals N has arrived. All words are stored with
 * release and loaded with acquire at system scope. This includes what precedes a kernel in stream
 * order.
 *
 * Why it is correct:
 *   No piece is written early: scatter at q comes after BEGIN at q, which has acquired p's header
 *     of this call. p released that header after everything that its stream did with its output
 *     before. In place: after the put, as explained above.
 *   No piece is read early: SUM c at p has acquired HERE c of q, which q released after its scatter
 *     c.
 *   No piece is overwritten early. Out of place, only q's result c is written to the place of q's
 *     piece c, in gather c at q, after SUM c at q. That SUM has acquired SUMMED c of p, which p's
 *     last block released when all its blocks had read their pieces. In place, only q's results of
 *     the put are written there, in gather 1 at q, which is after both SUMs. p's own result goes to
 *     share p, where there is no piece.
 *   No input is overwritten early, in place: q's result c is written to the place of p's chunk c
 *     for q, in gather c at q, which has acquired HERE c of p. p released it after its scatter c
 *     had read the chunk.
 *   No result is read early: END at p has acquired ENDED of q, which q released after both gathers.
 *     Later work in p's stream comes after END.
 *   Inputs: only q reads its own, except head and tail, which peers load in SUM 0. That is before
 *     their END, so before q's END completes.
 *   Consecutive calls, and graph replays: a word of call N + 1 is written to p after BEGIN of N + 1
 *     at the writer, so after p's header of N + 1, so after p's END of N, when p no longer waits
 *     for any word of N.
 *   No circular wait: BEGIN (or the put), SUM 0, SUM 1, END come in this order on every rank, in
 *     whatever order its streams are run. Each tells before it waits, and waits only for words of
 *     the same stage.
 *
 * Failure: later kernels leave at once, but the copies are made. They stay within the peers'
 * output.
 */
#include "copies_layout.h"
#include "window.cuh"

/* A later stage. BEGIN has already counted the call, hence epoch - 1. */
SYMWIN_DEVICE sw_call sw_copies_call(const struct sw_kernel_args &args, uint64_t &number)
{
    sw_call call = sw_call_begin(args);

    call.epoch--;
    number = 1 + symwin_load_relaxed_u64(call.state + offsetof(struct sw_comm_state, copies));
    call.failed = symwin_block_any(call.failed);
    if (call.failed) /* a peer may have reported a failure since BEGIN */
        sw_call_report(args, call.epoch);
    return call;
}

/* By all threads of a block, with the same `failed` in all of them. After a failure the peers are
 * told nothing. */
SYMWIN_DEVICE void sw_copies_tell(const struct sw_kernel_args &args, const sw_call &call,
                                  uint32_t which, uint64_t number)
{
    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks && !call.failed;
         p += (int32_t)blockDim.x) {
        if (p != args.rank)
            symwin_store_release_u64(
                sw_state_address(args, call, p, SW_STATE_COPIES(args.nranks, which, args.rank)),
                number);
    }
}

/* By all threads of a block. Afterwards the words of all peers are visible to all threads, or
 * call.failed is set. */
SYMWIN_DEVICE void sw_copies_await(const struct sw_kernel_args &args, sw_call &call, uint32_t which,
                                   uint64_t number)
{
    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks && !call.failed;
         p += (int32_t)blockDim.x) {
        const uint64_t address = sw_state_address(args, call, args.rank,
                                                  SW_STATE_COPIES(args.nranks, which, p));
        sw_wait wait = {0, 0, 0};

        if (p == args.rank)
            continue;
        while (symwin_load_acquire_u64(address) != number) {
            if (!sw_wait_on(args, call, wait, p))
                break;
        }
    }
    call.failed = symwin_block_any(call.failed);
    if (call.failed)
        sw_call_report(args, call.epoch);
}

/* ---- the sum --------------------------------------------------------------------------------- */

/* Addresses of the addends of a chunk. */
struct sw_addends {
    uint64_t own;    /* this rank's own addend */
    uint64_t pieces; /* rank 0's piece */
    uint64_t share;  /* distance from one rank's piece to the next rank's */
    uint64_t result;
    uint64_t bytes;
    bool aligned; /* `own` is aligned to 16 bytes; the others always are */
};

/* U vectors `step` apart. To save registers, U > 1 only if all are aligned. */
template <class R, int U>
SYMWIN_DEVICE void sw_addends_load(uint64_t from, bool aligned, uint64_t step, symwin_v16 *v)
{
    if (U == 1 && !aligned) {
        const sw_message message = sw_message_at(from, 16);

        v[0].lo = sw_word_load<R::bytes>(message, 0);
        v[0].hi = sw_word_load<R::bytes>(message, 1);
        return;
    }
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        v[u] = symwin_load_v16(from + (uint64_t)u * step);
}

/* Like sw_twoshot_by_rank(): the next rank's vectors are loaded while this rank's are added. */
template <class R, int U>
SYMWIN_DEVICE void sw_addends_sum(const struct sw_kernel_args &args, const sw_addends &addends,
                                  uint64_t at, uint64_t step)
{
    uint64_t from = addends.pieces + at; /* of rank p + 1 */
    symwin_v16 now[U], next[U];
    R lo[U] = {}, hi[U] = {};

    sw_addends_load<R, U>(args.rank == 0 ? addends.own + at : from,
                          args.rank != 0 || addends.aligned, step, next);
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++) {
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            now[u] = next[u];
        from += addends.share;
        if (p + 1 < args.nranks)
            sw_addends_load<R, U>(args.rank == p + 1 ? addends.own + at : from,
                                  args.rank != p + 1 || addends.aligned, step, next);
        sw_vectors_add<R, U>(args, now, p, lo, hi);
    }
    from = addends.result + at;
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        symwin_store_v16(from + (uint64_t)u * step,
                         {lo[u].result(args.op, args.nranks), hi[u].result(args.op, args.nranks)});
}

SYMWIN_DEVICE sw_addends sw_addends_of(const struct sw_kernel_args &args,
                                       const sw_copies_layout &layout, int chunk)
{
    const uint64_t begin = chunk == 0 ? 0 : layout.first;
    const uint64_t end = chunk == 0 ? layout.first : layout.copied;
    const uint64_t mine = layout.head + (uint32_t)args.rank * layout.share + begin;

    return {args.in + mine, args.out + layout.head + layout.landing + begin,
            layout.share,   args.out + mine,
            end - begin,    (args.in + mine) % 16 == 0};
}

template <class R>
SYMWIN_DEVICE void sw_copies_add(const struct sw_kernel_args &args, const sw_addends &addends)
{
    const int unroll = sw_window_unroll<R>::value;
    const uint64_t end = addends.bytes / 16, threads = symwin_thread_count();
    uint64_t v = symwin_thread_index();

    SYMWIN_NO_UNROLL
    for (; addends.aligned && v + (unroll - 1) * threads < end; v += unroll * threads)
        sw_addends_sum<R, unroll>(args, addends, v * 16, threads * 16);
    SYMWIN_NO_UNROLL
    for (; v < end; v += threads)
        sw_addends_sum<R, 1>(args, addends, v * 16, 0);
}

template <class R>
SYMWIN_DEVICE void sw_copies_chunk(const struct sw_kernel_args &args, const sw_call &call,
                                   int chunk)
{
    const sw_copies_layout layout = sw_copies_layout_of(&args, R::bytes, R::spares);

    sw_copies_add<R>(args, sw_addends_of(args, layout, chunk));
    if (chunk == 0 && !sw_copies_in_place(&args)) {
        const uint64_t shared = (uint32_t)args.nranks * layout.share;
        const sw_cut cut = {layout.head / R::bytes, shared / 16, args.count - shared / R::bytes};

        sw_reduce_edges<R>(args, call.peers, cut, {0, cut.edge}, SW_STORE_HERE);
    }
}

/* ---- the stages ------------------------------------------------------------------------------ */

SYMWIN_DEVICE void sw_copies_begin(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_begin(args);

    sw_start_barrier(args, call, SW_HEADER_STREAM);
    if (call.failed)
        sw_call_report(args, call.epoch);
    if (threadIdx.x != 0)
        return;
    /* Keeps the finish words from becoming too old, as in sw_push_settle(). */
    symwin_store_relaxed_u64(
        call.state + SW_STATE_FINISH(args.nranks, call.epoch % (uint32_t)args.nranks), call.epoch);
    sw_call_count(call, 0);
}

template <class R>
SYMWIN_DEVICE void sw_copies_sum(const struct sw_kernel_args &args, int chunk)
{
    uint64_t number;
    sw_call call = sw_copies_call(args, number);

    if (blockIdx.x == 0) {
        if (chunk == 0 && sw_multiplies<R>(args))
            sw_scalar_tell<R>(args, call);
        sw_copies_tell(args, call, SW_COPIES_HERE + (uint32_t)chunk, number);
    }
    sw_copies_await(args, call, SW_COPIES_HERE + (uint32_t)chunk, number);
    if (!call.failed)
        sw_copies_chunk<R>(args, call, chunk);
    if (!sw_is_last_block(call))
        return;
    call.failed = symwin_block_any(sw_has_failed(call));
    sw_copies_tell(args, call, SW_COPIES_SUMMED + (uint32_t)chunk, number);
    sw_copies_await(args, call, SW_COPIES_SUMMED + (uint32_t)chunk, number);
    if (threadIdx.x == 0)
        symwin_store_relaxed_u32(call.state + offsetof(struct sw_comm_state, arrived), 0);
}

SYMWIN_DEVICE void sw_copies_end(const struct sw_kernel_args &args)
{
    uint64_t number;
    sw_call call = sw_copies_call(args, number);

    sw_copies_tell(args, call, SW_COPIES_ENDED, number);
    sw_copies_await(args, call, SW_COPIES_ENDED, number);
    if (threadIdx.x == 0 && !call.failed)
        symwin_store_relaxed_u64(call.state + offsetof(struct sw_comm_state, copies), number);
    sw_call_done(args);
}

template <class R>
SYMWIN_DEVICE void sw_copies(const struct sw_kernel_args &args)
{
    if (args.stage == SW_COPIES_BEGIN)
        sw_copies_begin(args);
    else if (args.stage == SW_COPIES_END)
        sw_copies_end(args);
    else
        sw_copies_sum<R>(args, args.stage == SW_COPIES_SUM_FIRST ? 0 : 1);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_copies<sw_reduce<symwin_type_##type, symwin_op_##op>>(args);                            \
    }
SW_KERNEL_LIST_COPIES(SW_DEFINE)
#undef SW_DEFINE
