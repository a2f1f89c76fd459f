/* Kernels of your own all-reduce, one-shot, two-shot and by multicast, and of the tests of these.
 * fast_allreduce.cu launches them. */
#ifndef FAST_ALLREDUCE_CUH
#define FAST_ALLREDUCE_CUH

#include "symwin/multicast.cuh"
#include "symwin/packet.cuh"
#include "symwin/reduce.cuh"

enum { THREADS = 512, BLOCKS = 36 }; /* most blocks and threads of both kernels' grids */

/* ---- kernels --------------------------------------------------------------------------------- */

enum { NEITHER, START, END, FENCES }; /* the two signals, and alias fences */

/* The window: memory that peers read, and the words of the signals. Offsets are in the window; the
 * input is at 0. */
struct fast_args {
    symwin_span span;
    symwin_limit limit; /* of each wait */
    uint64_t results;   /* two-shot: results of each rank's share */
    uint64_t barrier;   /* symwin_barrier_bytes() of words */

    /* This rank's memory, not visible to peers. */
    uint64_t words, output, inputs, sums;

    uint64_t count, bytes; /* of a message */
    uint32_t turns;        /* rounds of the barrier's test */
    uint32_t late_ns;      /* tests: delay of a late rank */
    uint32_t without;      /* tests: START, END or FENCES are left out to provoke errors */
    uint32_t unused;
};

/* Contents of `words`, as byte offsets. CALLS is an epoch, which counts the calls of the tests. */
enum { CALLS = 0, GAVE_UP = 16, WRONG = 20, BEHIND = 24, AHEAD = 28, WORDS = 32 };

/* Block b of each rank signals block b of the others, and waits for their signals. Then everything
 * that these blocks did before is visible. False: the wait took too long, or the communicator was
 * aborted. After that, later calls do not wait. */
SYMWIN_DEVICE bool signal_all(const fast_args &args, uint32_t which)
{
    symwin_limit limit = args.limit;

    if (args.without == which) {
        __syncthreads();
        return true;
    }
    if (symwin_load_relaxed_u32(args.words + GAVE_UP) != 0)
        limit.timeout_ns = 1;
    if (symwin_barrier_block(symwin_team_all(args.span.peers), args.span.offset + args.barrier,
                             limit))
        return true;
    symwin_store_relaxed_u32(args.words + GAVE_UP, 1);
    return false;
}

/* For code that writes before a start signal: after a failed wait a peer may still be reading. */
SYMWIN_DEVICE bool gave_up(const fast_args &args)
{
    return symwin_block_any(symwin_load_relaxed_u32(args.words + GAVE_UP) != 0);
}

/* For tests: delays some blocks of one rank; the rank changes from turn to turn. */
SYMWIN_DEVICE void be_late(const fast_args &args, uint64_t turn)
{
    if (args.late_ns != 0 && threadIdx.x == 0 &&
        (turn + blockIdx.x) % (uint32_t)args.span.peers.nranks == (uint32_t)args.span.peers.rank)
        for (uint64_t since = symwin_clock_ns(); symwin_clock_ns() - since < args.late_ns;)
            symwin_pause();
    __syncthreads();
}

/* False for good after a rank has given up. Its signals then belong to other calls than its peers
 * are in, and peers may write what it would read. The word is read before the signals, which no
 * longer wait. */
SYMWIN_DEVICE bool begin(const fast_args &args)
{
    const bool over = symwin_load_relaxed_u32(args.words + GAVE_UP) != 0;
    const bool right = signal_all(args, START);

    if (args.late_ns != 0)
        be_late(args, symwin_epoch_begin(args.words + CALLS) + 1);
    return !symwin_block_any(over) && right;
}

/* A range of consecutive elements. */
struct part {
    uint64_t first, count;
};

/* Part `i` of `n` of the range, in whole vectors of 16 bytes; the last parts may be shorter or
 * empty. */
SYMWIN_DEVICE part part_of(part whole, uint32_t i, uint32_t n, uint32_t vector)
{
    const uint64_t each = (whole.count + (uint64_t)n * vector - 1) / ((uint64_t)n * vector) *
                          vector;
    const uint64_t first = i * each < whole.count ? i * each : whole.count;
    const uint64_t left = whole.count - first;

    return {whole.first + first, each < left ? each : left};
}

/* Each rank adds up everything itself. The start signal says that the peers' inputs are complete.
 * The end signal says that the peers have read this rank's input, which later work in its stream
 * may overwrite. */
template <class T>
SYMWIN_DEVICE void one_shot(const fast_args &args)
{
    const part mine = part_of({0, args.count}, blockIdx.x, gridDim.x, 16 / T::bytes);
    const uint64_t at = mine.first * T::bytes;

    if (!begin(args))
        return;
    symwin_reduce_peers<T, symwin_op_sum>(symwin_group_block(), symwin_team_all(args.span.peers),
                                          args.output + at, args.span.offset + at, mine.count);
    signal_all(args, END);
}

/* Each rank adds up its share and gathers the others' results. The start signal says that the
 * peers' inputs are complete, and that peers have gathered this rank's result of the previous call.
 * The end signal, between the shots, says that the peers' results are complete, and that they have
 * read this rank's input. No signal follows the second shot. */
template <class T>
SYMWIN_DEVICE void two_shot(const fast_args &args)
{
    const symwin_team team = symwin_team_all(args.span.peers);
    const symwin_group block = symwin_group_block();
    const part all = {0, args.count};
    part share = part_of(all, (uint32_t)args.span.peers.rank, (uint32_t)team.count, 16 / T::bytes);
    part mine = part_of(share, blockIdx.x, gridDim.x, 16 / T::bytes);
    uint64_t at = mine.first * T::bytes;

    if (!begin(args))
        return;
    symwin_reduce_peers<T, symwin_op_sum>(block, team,
                                          symwin_span_own(args.span, args.results + at),
                                          args.span.offset + at, mine.count);
    if (!signal_all(args, END))
        return;
    for (int32_t i = 0; i < team.count; i++) {
        const int32_t rank = symwin_team_after(team, i);

        share = part_of(all, (uint32_t)rank, (uint32_t)team.count, 16 / T::bytes);
        mine = part_of(share, blockIdx.x, gridDim.x, 16 / T::bytes);
        at = mine.first * T::bytes;
        symwin_copy_by<16>(block, args.output + at,
                           symwin_span_peer(args.span, rank, args.results + at),
                           mine.count * T::bytes);
    }
}

/* Orders accesses by a rank's own address and by the multicast address. */
SYMWIN_DEVICE void fence(const fast_args &args)
{
    if (args.without != FENCES)
        symwin_alias_fence();
}

/* Two-shot by the switch, which adds up a share of all inputs in one access and stores the results
 * to all ranks in another. So the second shot reads this rank's own memory. Between an access by a
 * rank's own address and one by the multicast address of the same bytes there are alias fences:
 *
 *   input     stored by its rank's own address   start, fence        added up by multicast
 *   results   stored by multicast                fence, end, fence   copied by its own address */
template <class T>
SYMWIN_DEVICE void multicast(const fast_args &args)
{
#if SYMWIN_HAS_MULTIMEM
    const symwin_peers &peers = args.span.peers;
    const symwin_group block = symwin_group_block();
    const part all = {0, args.count};
    part share = part_of(all, (uint32_t)peers.rank, (uint32_t)peers.nranks, 16 / T::bytes);
    part mine = part_of(share, blockIdx.x, gridDim.x, 16 / T::bytes);
    uint64_t at = mine.first * T::bytes;

    if (!begin(args))
        return;
    fence(args);
    symwin_multicast_reduce_put<T, symwin_op_sum>(
        block, peers, args.span.offset + args.results + at, args.span.offset + at, mine.count);
    fence(args);
    if (!signal_all(args, END))
        return;
    fence(args);
    for (int32_t rank = 0; rank < peers.nranks; rank++) {
        share = part_of(all, (uint32_t)rank, (uint32_t)peers.nranks, 16 / T::bytes);
        mine = part_of(share, blockIdx.x, gridDim.x, 16 / T::bytes);
        at = mine.first * T::bytes;
        symwin_copy_by<16>(block, args.output + at, symwin_span_own(args.span, args.results + at),
                           mine.count * T::bytes);
    }
#endif
}

#define KERNELS(type)                                                                              \
    SYMWIN_KERNEL(one_shot_##type, fast_args, args, THREADS)                                       \
    {                                                                                              \
        one_shot<symwin_type_##type>(args);                                                        \
    }                                                                                              \
    SYMWIN_KERNEL(two_shot_##type, fast_args, args, THREADS)                                       \
    {                                                                                              \
        two_shot<symwin_type_##type>(args);                                                        \
    }                                                                                              \
    SYMWIN_KERNEL(multicast_##type, fast_args, args, THREADS)                                      \
    {                                                                                              \
        multicast<symwin_type_##type>(args);                                                       \
    }
KERNELS(f32)
KERNELS(f16)
KERNELS(bf16)

/* ---- kernels of the tests -------------------------------------------------------------------- */

/* Tests the barrier alone. In each turn every thread writes the turn's number where the peers see
 * it; all must find exactly this number between the signals. With an older one, the start signal
 * did not hold a rank back; with a newer one, the end signal did not. */
SYMWIN_KERNEL(barrier_turns, fast_args, args, THREADS)
{
    const uint64_t before = (symwin_epoch_begin(args.words + CALLS) - 1) * args.turns;
    const uint64_t place = 4 * ((uint64_t)blockIdx.x * THREADS + threadIdx.x);
    const uint64_t other = 4 * ((uint64_t)blockIdx.x * THREADS + (threadIdx.x + 1) % blockDim.x);
    uint32_t behind = 0, ahead = 0;

    if (gave_up(args))
        return;
    for (uint32_t turn = 1; turn <= args.turns; turn++) {
        const uint32_t number = (uint32_t)before + turn;

        be_late(args, number);
        symwin_store_u32(symwin_span_own(args.span, place), number);
        if (!signal_all(args, START))
            break;
        be_late(args, number + 1);
        for (int32_t rank = 0; rank < args.span.peers.nranks; rank++) {
            const uint32_t found = symwin_load_u32(symwin_span_peer(args.span, rank, other));

            behind += (int32_t)(found - number) < 0;
            ahead += (int32_t)(found - number) > 0;
        }
        if (!signal_all(args, END))
            break;
    }
    if (behind != 0)
        symwin_add_relaxed_u32(args.words + BEHIND, behind);
    if (ahead != 0)
        symwin_add_relaxed_u32(args.words + AHEAD, ahead);
    symwin_epoch_end(args.words + CALLS);
}

/* Each call has a different input: the same elements, shifted. */
enum { SHIFTS = 16, SHIFT_BYTES = 16 };

SYMWIN_DEVICE uint64_t shift_of_call(const fast_args &args)
{
    return symwin_epoch_begin(args.words + CALLS) % SHIFTS * SHIFT_BYTES;
}

SYMWIN_KERNEL(next_input, fast_args, args, THREADS)
{
    if (gave_up(args))
        return;
    be_late(args, symwin_epoch_begin(args.words + CALLS));
    symwin_copy_by<16>(symwin_group_grid(), symwin_span_own(args.span, 0),
                       args.inputs + shift_of_call(args), args.bytes);
}

/* Compares the output with sums computed on the host, and ends the call. */
SYMWIN_KERNEL(check_output, fast_args, args, THREADS)
{
    const uint64_t sums = args.sums + shift_of_call(args);
    uint32_t wrong = 0;

    for (uint64_t i = symwin_thread_index(); i < args.bytes / 2; i += symwin_thread_count())
        wrong += symwin_load_u16(args.output + 2 * i) != symwin_load_u16(sums + 2 * i);
    if (wrong != 0)
        symwin_add_relaxed_u32(args.words + WRONG, wrong);
    symwin_epoch_end(args.words + CALLS);
}

#endif
