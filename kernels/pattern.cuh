/* Collectives by push that follow a pattern: which ranks a rank sends to and receives from, and
 * where their parts lie. The pattern is in the arguments, so a kernel serves many collectives.
 *
 *   args.to, args.from         the ranks that this rank sends to and receives from; this rank is
 *                              one of both if it keeps a part of its own
 *   args.in_step, out_step     bytes from one rank's part of `in` or `out` to the next; 0: all
 *                              ranks have the same part
 *   args.bytes                 of each part, equal on all ranks
 *
 * Rank r sends to p if and only if p receives from r. A kernel says what it does with what it
 * receives; the rest is here.
 *
 * Entry i of a part is sent and received by the thread i mod workers.
 *
 * Rounds. push.cuh needs to know when p has emptied its entries. A call of one round is as in
 * oneshot.cu. In a call of several, a rank that receives counts its workers that have emptied
 * their entries of a round, and the last one tells all ranks so, but for the last round
 * (sw_round_tell()). So p's entries may be written
 *   in round 1 of the call, when p's header of the call is here: p has ended all calls before;
 *   in round c > 1, when p has told of round c - 2, of the same parity;
 *   in the next call, if this one awaits at its end what p tells of its last round but one.
 * What p tells has a word for each parity of the call, since p may be in the next call already (as
 * headers: call.cuh). Words of one call come in order: the worker that tells of a round is itself
 * counted in the next one.
 * A worker of a rank that receives also awaits its own rank's word, so that nobody counts a round
 * while others still count the one before of its parity.
 *
 * There is no circular wait: a thread sends all its entries of a round before it waits for others',
 * and nobody needs anything of a later round to empty one.
 */
#ifndef SYMWIN_KERNELS_PATTERN_CUH
#define SYMWIN_KERNELS_PATTERN_CUH

#include "stages.cuh"

/* ---- ranks ----------------------------------------------------------------------------------- */

SYMWIN_DEVICE bool sw_pattern_has(int32_t ranks, int32_t p)
{
    return ranks == SW_EVERY_RANK || ranks == p;
}

/* The ranks whose parts this rank receives. */
template <int N>
struct sw_from_sources {
    SYMWIN_DEVICE bool has(const struct sw_kernel_args &args, int32_t p)
    {
        return sw_is_peer<N>(args, p) && sw_pattern_has(args.from, p);
    }
};

/* Steps first .. end - 1 from this rank: those to which it sends, without itself. */
struct sw_steps {
    int32_t first, end;
};

SYMWIN_DEVICE sw_steps sw_pattern_steps(const struct sw_kernel_args &args)
{
    const int32_t step = args.to - args.rank;

    if (args.to == SW_EVERY_RANK)
        return {1, args.nranks};
    if (args.to == SW_NO_RANK || step == 0)
        return {0, 0};
    return {step < 0 ? step + args.nranks : step, step < 0 ? step + args.nranks + 1 : step + 1};
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Round `c` of rank p's part of the input or output. */
template <class W>
SYMWIN_DEVICE sw_part sw_pattern_part(uint64_t address, uint64_t step, int32_t p,
                                      const sw_rounds &rounds, uint32_t c)
{
    return sw_part_of<W>(address + (uint32_t)p * step, rounds, c);
}

/* One entry for each rank of a batch, whose loads overlap. */
template <class W>
struct sw_outgoing_batch {
    uint64_t word[sw_batch<0>::ranks][W::words];
};

/* Loads entry `i` of round `c` for the steps from `step` on. */
template <class R, class W>
SYMWIN_DEVICE void sw_pattern_load(const struct sw_kernel_args &args, const sw_rounds &rounds,
                                   uint32_t c, uint32_t i, int32_t step, int32_t end,
                                   sw_outgoing_batch<W> &batch)
{
    SYMWIN_UNROLL
    for (int j = 0; j < sw_batch<0>::ranks; j++) {
        if (j > 0 && args.in_step == 0) {
            memcpy(batch.word[j], batch.word[0], sizeof batch.word[0]);
        } else if (step + j < end) {
            const int32_t p = sw_rank_after<0>(args, step + j);

            sw_input_load<R, W>(args, sw_pattern_part<W>(args.in, args.in_step, p, rounds, c), i,
                                batch.word[j]);
        }
    }
}

/* Sends round `c`. `next` has the thread's first entry for the first ranks; each entry is loaded
 * while the one before it is sent. */
template <class R, class W>
SYMWIN_DEVICE void sw_pattern_send(const struct sw_kernel_args &args, const sw_call &call,
                                   const sw_role &role, const sw_rounds &rounds, uint32_t c,
                                   const sw_steps &steps, sw_outgoing_batch<W> &next)
{
    const uint64_t place = sw_slot_place<0>(args, call.round + c, args.rank, 0) + rounds.before;
    int32_t step = steps.first;
    uint32_t i = role.index;

    SYMWIN_NO_UNROLL
    while (step < steps.end && i < rounds.extent) {
        const sw_outgoing_batch<W> now = next;
        const uint64_t at = place + (uint64_t)i * W::bytes;
        const int32_t first = step;

        step += sw_batch<0>::ranks;
        if (step >= steps.end) {
            step = steps.first;
            i += role.workers;
        }
        if (i < rounds.extent)
            sw_pattern_load<R, W>(args, rounds, c, i, step, steps.end, next);
        SYMWIN_UNROLL
        for (int j = 0; j < sw_batch<0>::ranks; j++)
            if (first + j < steps.end)
                W::store(sw_state_after<0>(args, first + j) + at, W::encode(now.word[j]));
    }
}

/* What a wait before a round is for. */
enum sw_round_evidence { SW_ROUND_BEGUN, SW_ROUND_EMPTIED };

/* Waits for what rank p has said: that it has begun the call, or that its entries of round `c` of
 * the call are empty. */
SYMWIN_DEVICE void sw_round_await_rank(const struct sw_kernel_args &args, sw_call &call, int32_t p,
                                       sw_round_evidence evidence, uint32_t c)
{
    const uint64_t at = call.state + (evidence == SW_ROUND_BEGUN
                                          ? SW_STATE_HEADER(args.nranks, call.epoch & 1, p)
                                          : SW_STATE_EMPTIED(args.nranks, call.epoch, p));
    sw_wait wait = {0, 0, 0};

    for (;;) {
        const uint64_t said = symwin_load_acquire_u64(at);

        if ((uint32_t)(said >> 32) == call.epoch &&
            (evidence == SW_ROUND_BEGUN || (uint32_t)said >= c))
            return;
        if (!sw_wait_on(args, call, wait, p))
            return;
    }
}

/* The same of all ranks that this one sends to, and of itself. */
SYMWIN_DEVICE void sw_round_await(const struct sw_kernel_args &args, sw_call &call,
                                  sw_round_evidence evidence, uint32_t c)
{
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks && !call.failed; p++) {
        const bool is_own = p == args.rank && args.from != SW_NO_RANK &&
                            evidence == SW_ROUND_EMPTIED;

        if (is_own || (p != args.rank && sw_pattern_has(args.to, p)))
            sw_round_await_rank(args, call, p, evidence, c);
    }
}

/* By every worker of a rank that receives, when its entries of round `c` are empty. */
SYMWIN_DEVICE void sw_round_tell(const struct sw_kernel_args &args, const sw_call &call,
                                 const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const uint64_t count = SW_STATE_AT(call.state, emptied) + c % 2 * 4;
    const uint64_t place = SW_STATE_EMPTIED(args.nranks, call.epoch, args.rank);
    const uint64_t word = (uint64_t)call.epoch << 32 | c;
    uint32_t here, threads;

    if (args.from == SW_NO_RANK)
        return;
    /* One thread counts those of its warp that are here, for the same round: a thread without
     * entries may be a round ahead of another one, and come here with it. */
    here = symwin_warp_alike(symwin_warp_here(), c);
    threads = symwin_warp_count(here);
    symwin_warp_meet(here);
    if (!symwin_warp_leads(here) ||
        symwin_add_acq_rel_u32(count, threads) + threads != (c / 2 + 1) * role.workers)
        return;
    if (c + 3 >= rounds.count) /* this parity is not counted again in the call */
        symwin_store_relaxed_u32(count, 0);
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++)
        symwin_store_release_u64(sw_state_address(args, call, p, place), word);
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* `Receive` has the type of elements, the wire format, and
 *   round(args, call, role, rounds, c)   receives and empties round `c`, and handles this rank's
 *                                        own part. If the wait is given up, call.failed is set. */
template <class Receive>
SYMWIN_DEVICE void sw_pattern_run(const struct sw_kernel_args &args)
{
    typedef typename Receive::element R;
    typedef typename Receive::wire W;
    const sw_rounds rounds = sw_rounds_of_bytes<W>(args.bytes, 2 * args.slot_bytes / W::bytes);
    const sw_steps steps = sw_pattern_steps(args);
    const sw_role role = sw_role_of_thread();
    sw_outgoing_batch<W> next = {};
    sw_call call;

    sw_call_order();
    if (role.works && role.index < rounds.extent)
        sw_pattern_load<R, W>(args, rounds, 0, role.index, steps.first, steps.end, next);
    call = sw_call_read(args);
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0;;) {
        if (role.works && !call.failed)
            sw_pattern_send<R, W>(args, call, role, rounds, c, steps, next);
        if (!sw_push_goes_on<W>(args, call, role, rounds, c))
            break;
        Receive::round(args, call, role, rounds, c);
        if (call.failed || rounds.count == 1)
            break;
        if (c + 1 < rounds.count)
            sw_round_tell(args, call, role, rounds, c);
        c++;
        if (c == 1)
            sw_round_await(args, call, SW_ROUND_BEGUN, 0);
        else
            sw_round_await(args, call, SW_ROUND_EMPTIED, c - 2);
        if (call.failed || c == rounds.count)
            break;
        if (role.index < rounds.extent)
            sw_pattern_load<R, W>(args, rounds, c, role.index, steps.first, steps.end, next);
    }
    sw_push_end<W>(args, call);
}

/* ---- a short call ---------------------------------------------------------------------------- */

/* One entry of each part, by steps from this rank: [0] is of the part that it keeps. */
template <int N, class W>
struct sw_short_entries {
    uint64_t word[N][W::words];
};

template <int N, class Receive>
SYMWIN_DEVICE void sw_short_load(const struct sw_kernel_args &args, uint32_t i, int32_t step,
                                 uint64_t word[1])
{
    const int32_t p = sw_rank_after<N>(args, step);

    if (sw_pattern_has(args.to, p))
        word[0] = Receive::load(args, args.in + (uint32_t)p * args.in_step + (uint64_t)i * 8);
}

template <int N, class Receive>
SYMWIN_DEVICE void sw_short_load_all(const struct sw_kernel_args &args, uint32_t i,
                                     sw_short_entries<N, typename Receive::wire> &entries)
{
    SYMWIN_UNROLL
    for (int step = 0; step < N; step++)
        sw_short_load<N, Receive>(args, i, step, entries.word[step]);
}

template <int N, class W>
SYMWIN_DEVICE void sw_short_send(const struct sw_kernel_args &args, const sw_peer_states<N> &states,
                                 uint64_t place, const sw_short_entries<N, W> &entries)
{
    SYMWIN_UNROLL
    for (int step = 1; step < N; step++)
        if (sw_pattern_has(args.to, sw_rank_after<N>(args, step)))
            W::store(states.after(args, step) + place, W::encode(entries.word[step]));
}

/* A call of N ranks with parts of whole words, aligned to a word, in one round. The same protocol
 * in less code: loads for all ranks are under way together, with that of the part that this rank
 * keeps, and a word is an entry. Code costs time even where it does not run, since each launch
 * fetches it: with code for other lengths four ranks on one H100 took 3.2 us and not 2.8.
 * `role` is of the threads that share the call, `before` the bytes of each slot that other calls of
 * the launch use; `launch` has the launch's arguments. (The compiler keeps those of a call of a
 * group in registers if nothing takes their address.) `Receive` has
 *   entries(args)                     of a part
 *   load(args, address)               a word of the input
 *   entry(args, call, from, own, i)   receives and empties entry `i`: at `from` is that of rank 0,
 *                                     `own` is this rank's. False: the wait was given up */
template <int N, class Receive>
SYMWIN_DEVICE void sw_pattern_run_short(const struct sw_kernel_args &launch,
                                        const struct sw_kernel_args &args, const sw_role &role,
                                        uint64_t before)
{
    typedef typename Receive::wire W;
    const sw_rounds rounds = {args.bytes, Receive::entries(args), 1, before};
    sw_short_entries<N, W> first = {};
    sw_peer_states<N> states;
    uint64_t place, slots;
    sw_call call;

    sw_call_order();
    if (role.works && role.index < rounds.extent)
        sw_short_load_all<N, Receive>(args, role.index, first);
    call = sw_call_read(launch);
    states.find(args);
    place = sw_slot_place<N>(args, call.round, args.rank, 0) + before;
    if (role.works && !call.failed) {
        sw_short_entries<N, W> entries = first;

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers) {
            if (i != role.index)
                sw_short_load_all<N, Receive>(args, i, entries);
            sw_short_send<N, W>(args, states, place + (uint64_t)i * W::bytes, entries);
        }
    }
    if (sw_push_goes_on<W>(launch, call, role, rounds, 0)) {
        slots = call.state + sw_slot_place<N>(args, call.round, 0, 0) + before;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers) {
            if (i != role.index)
                sw_short_load<N, Receive>(args, i, 0, first.word[0]);
            if (!Receive::entry(args, call, slots + (uint64_t)i * W::bytes, first.word[0], i)) {
                sw_call_report(launch, call.epoch);
                break;
            }
        }
    }
    sw_push_end<W>(launch, call);
}

#endif
