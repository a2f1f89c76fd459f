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
 * Entry i of a part is sent, received and answered by the thread i mod workers.
 *
 * Answers. push.cuh needs to know when p has emptied its entries. If p sends to r as well, r knows
 * from p's entries, as in oneshot.cu. If it does not, p answers each entry of a round with an entry
 * that carries nothing, after all its entries of the round are empty and a fence, and r awaits the
 * answers before its next round. The last round of a call has no answers. So most calls, which have
 * one round, have none. In terms of the proof in push.cuh:
 *   q in A too: r has the answer of round q - 1, from the thread that empties the entry in
 *     question.
 *   q in the next call, q - 2 in A: r has the answer of q - 2, which is not the last round of A.
 *   An answer of round q comes after p's entry of round q was sent, so after p's thread had emptied
 *     all answers of rounds before, of this call with a fence, or of a call that p has ended.
 *
 * There is no circular wait: a thread sends all its entries of a round before it waits, and answers
 * before it waits for answers.
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

/* The ranks that answer. */
struct sw_from_targets {
    SYMWIN_DEVICE bool has(const struct sw_kernel_args &args, int32_t p)
    {
        return sw_is_peer<0>(args, p) && sw_pattern_has(args.to, p) &&
               !sw_pattern_has(args.from, p);
    }
};

/* The ranks that this rank answers. */
struct sw_to_sources {
    SYMWIN_DEVICE bool has(const struct sw_kernel_args &args, int32_t p)
    {
        return sw_from_sources<0>::has(args, p) && !sw_pattern_has(args.to, p);
    }
};

/* Steps first .. end - 1 from this rank: those of `ranks` without itself. */
struct sw_steps {
    int32_t first, end;
};

SYMWIN_DEVICE sw_steps sw_pattern_steps_to(const struct sw_kernel_args &args, int32_t ranks)
{
    const int32_t step = ranks - args.rank;

    if (ranks == SW_EVERY_RANK)
        return {1, args.nranks};
    if (ranks == SW_NO_RANK || step == 0)
        return {0, 0};
    return {step < 0 ? step + args.nranks : step, step < 0 ? step + args.nranks + 1 : step + 1};
}

SYMWIN_DEVICE sw_steps sw_pattern_steps(const struct sw_kernel_args &args)
{
    return sw_pattern_steps_to(args, args.to);
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

/* Answers the entries of round `c`, which this thread has emptied. */
template <class W>
SYMWIN_DEVICE void sw_pattern_answer(const struct sw_kernel_args &args, const sw_call &call,
                                     const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const uint64_t place = sw_slot_place<0>(args, call.round + c, args.rank, 0);
    const uint64_t nothing[W::words] = {};

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++) {
        const uint64_t to = sw_state_address(args, call, p, place);

        if (!sw_to_sources::has(args, p))
            continue;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers)
            W::store(to + (uint64_t)i * W::bytes, W::encode(nothing));
    }
}

/* Takes the answers to round `c`. False: the wait was given up. */
template <class W>
SYMWIN_DEVICE bool sw_pattern_take_answers(const struct sw_kernel_args &args, sw_call &call,
                                           const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const uint64_t slots = call.state + sw_slot_place<0>(args, call.round + c, 0, 0);

    if (args.to == SW_NO_RANK || args.from == SW_EVERY_RANK)
        return true;
    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < rounds.extent; i += role.workers) {
        const uint64_t at = slots + (uint64_t)i * W::bytes;

        SYMWIN_NO_UNROLL
        for (int32_t p = 0; p < args.nranks; p += sw_batch<0>::ranks) {
            typename W::entry entry[sw_batch<0>::ranks];

            if (!sw_entries_await<0, W, sw_from_targets>(
                    args, call, at + (uint64_t)(uint32_t)p * 2 * args.slot_bytes, p, entry))
                return false;
        }
        sw_entries_empty<0, W, sw_from_targets>(args, at);
    }
    symwin_fence();
    return true;
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
        if (call.failed || c + 1 == rounds.count)
            break;
        symwin_fence();
        sw_pattern_answer<W>(args, call, role, rounds, c);
        if (!sw_pattern_take_answers<W>(args, call, role, rounds, c))
            break;
        c++;
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
