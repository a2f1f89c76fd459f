/* All-reduce, two-shot put: the message is divided among the ranks. Each rank pushes every peer
 * that peer's share into receive slots, reduces its own share of what it receives, and stores the
 * result into the output window of every rank (push.cuh).
 *
 *   in, out    windows at in_offset and out_offset, which are equal on all ranks; any element
 *              alignment; equal (in place), but not partly overlapping
 *   slots      2 * slot_bytes for each source; put_layout.h says how they are used
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    all payload if the type has a spare pattern, otherwise half flags
 *              (sw_reduce::spares)
 *   result     reduced in rank order by one rank and stored to all, so all ranks get the same bits;
 *              with SW_PUT_HERE stored here only, and copied to the others by the host (copies.c)
 *
 * Compared with twoshot_push, results are not polled, emptied and copied, which makes large
 * messages faster; the barrier at the end makes small ones slower. Compared with twoshot, nothing
 * is loaded over NVLink.
 *
 * Threads. Entry i of every share is both sent and received by the thread i mod workers. So the
 * condition of push.cuh holds, as in oneshot.cu, as long as all shares have an entry i: if there
 * are several rounds, all shares send full ones, filled up with zeros.
 *
 * Order. Before: the control warp of every block acquires every peer's header, which that peer's
 * kernel released after everything that its stream had done with the output. Only then may the
 * workers store there. In place, an output is a peer's input as well: a rank stores entry i of its
 * share there after it has received it, and the peer sent it after it had loaded it. These accesses
 * are relaxed (SW_SHARED), so no more is needed. After: as in twoshot.cu.
 *
 * Fences between rounds (push.cuh) are for the entries of the round after the next, of the same
 * call. A call ends with a barrier of all ranks, which makes everything that they have emptied
 * visible before the next call. The last round needs no fence before it. The second slots need none
 * before their first use: p emptied them in a call that ended before p posted its header of this
 * one, and r's workers wait for that header before their first result, so before round 1.
 */
#include "push.cuh"
#include "put_layout.h"

/* A round; equal in all threads. */
struct sw_put_round {
    uint64_t in, out; /* addresses of the message */
    uint64_t bytes;
    sw_put_layout layout;
    uint64_t before;  /* entries of a share before this round */
    uint32_t entries; /* of a share in this round; the last round has fewer */
    uint32_t number;  /* counted over all calls */
};

/* Rank p's share of a round of the message at `address`. */
template <class W>
SYMWIN_DEVICE sw_part sw_put_part(const sw_put_round &round, uint64_t address, int32_t p)
{
    return sw_part_at<W>(address, round.bytes, (uint32_t)p * round.layout.share + round.before,
                         round.entries);
}

/* Entries of the part that are sent. */
template <class W>
SYMWIN_DEVICE uint32_t sw_put_entries(const sw_put_round &round, const sw_part &part)
{
    return round.layout.rounds > 1
               ? round.layout.extent
               : (uint32_t)((part.message.bytes + W::words * 8 - 1) / (W::words * 8));
}

/* One peer after another; the next entry is loaded while the current one is sent. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_put_scatter(const struct sw_kernel_args &args, const sw_call &call,
                                  const sw_role &role, const sw_put_round &round)
{
    const uint64_t place = sw_slot_place<N>(args, round.number, args.rank, 0);

    SYMWIN_NO_UNROLL
    for (int32_t step = 1; step < sw_ranks<N>(args); step++) {
        const int32_t p = sw_rank_after<N>(args, step);
        const uint64_t to = sw_state_address(args, call, p, place);
        const sw_part in = sw_put_part<W>(round, round.in, p);
        const uint32_t entries = sw_put_entries<W>(round, in);
        uint64_t next[W::words] = {};

        if (role.index < entries)
            sw_input_load<R, W, SW_SHARED>(args, in, role.index, next);
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < entries; i += role.workers) {
            const symwin_v16 entry = W::encode(next);

            if (i + role.workers < entries)
                sw_input_load<R, W, SW_SHARED>(args, in, i + role.workers, next);
            symwin_store_relaxed_v16(to + (uint64_t)i * SW_ENTRY_BYTES, entry);
        }
    }
}

/* Address of a part of the output at the rank `step` after this one. */
template <int N>
SYMWIN_DEVICE uint64_t sw_put_address(const struct sw_kernel_args &args, const sw_part &out,
                                      int32_t step)
{
    const int64_t ranks = sw_rank_after<N>(args, step) - args.rank;

    return out.message.address + (uint64_t)ranks * args.stride;
}

/* Stores entry `i` of a part of the output at all peers. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_put_result(const struct sw_kernel_args &args, const sw_part &out, uint32_t i,
                                 const uint64_t result[W::words])
{
    sw_part there = out;

    if (SYMWIN_LIKELY(i < out.whole)) {
        SYMWIN_UNROLL
        for (int32_t step = 1; step < sw_ranks<N>(args); step++) {
            there.message.address = sw_put_address<N>(args, out, step);
            sw_entry_store<R, W, SW_SHARED>(there, i, result);
        }
    } else {
        SYMWIN_NO_UNROLL
        for (int32_t step = 1; step < sw_ranks<N>(args); step++) {
            there.message.address = sw_put_address<N>(args, out, step);
            sw_entry_store<R, W, SW_SHARED>(there, i, result);
        }
    }
}

/* Stores entry `i` of this rank's share in the outputs, and empties the slots at `from` that it
 * came from. */
template <int N, class R, class W>
SYMWIN_DEVICE void sw_put_deliver(const struct sw_kernel_args &args, const sw_part &out,
                                  uint64_t from, uint32_t i, const uint64_t result[W::words])
{
    if (args.stage != SW_PUT_HERE)
        sw_put_result<N, R, W>(args, out, i, result);
    sw_entry_store<R, W>(out, i, result);
    sw_entries_empty<N, W>(args, from);
}

template <int N, class R, class W>
SYMWIN_DEVICE void sw_put_share(const struct sw_kernel_args &args, sw_call &call,
                                const sw_role &role, const sw_put_round &round)
{
    const uint64_t slots = call.state + sw_slot_place<N>(args, round.number, 0, 0);
    const sw_part in = sw_put_part<W>(round, round.in, args.rank);
    const sw_part out = sw_put_part<W>(round, round.out, args.rank);
    const uint32_t entries = sw_put_entries<W>(round, in);

    SYMWIN_NO_UNROLL
    for (uint32_t i = role.index; i < entries; i += role.workers) {
        const uint64_t from = slots + (uint64_t)i * SW_ENTRY_BYTES;
        uint64_t own[W::words], result[W::words];

        sw_input_load<R, W>(args, in, i, own);
        if (!sw_entries_reduce<N, R, W>(args, call, from, own, result))
            return;
        sw_put_deliver<N, R, W>(args, out, from, i, result);
    }
}

/* `checks` counts the control threads of a block that have checked the peers' headers. Each adds
 * one, or SW_CHECK_FAILED, which keeps the workers of the block from storing results. */
#define SW_CHECK_FAILED 0x10000u

SYMWIN_DEVICE void sw_put_check(const struct sw_kernel_args &args, sw_call &call,
                                const sw_role &role, uint32_t *checks)
{
    sw_headers_check(args, call, SW_HEADER_STREAM, role.control_lane, role.control_lanes);
    symwin_shared_add_release(checks, call.failed ? SW_CHECK_FAILED : 1);
}

SYMWIN_DEVICE void sw_put_await_checks(sw_call &call, const sw_role &role, const uint32_t *checks)
{
    uint32_t word;

    while (word = symwin_shared_load_acquire(checks),
           word % SW_CHECK_FAILED + word / SW_CHECK_FAILED < (uint32_t)role.control_lanes)
        symwin_pause();
    call.failed = call.failed || word >= SW_CHECK_FAILED;
}

/* By workers, before they store results. In a block without a control warp they check first. */
SYMWIN_DEVICE void sw_put_check_and_wait(const struct sw_kernel_args &args, sw_call &call,
                                         const sw_role &role, uint32_t *checks)
{
    if (role.control_lane >= 0)
        sw_put_check(args, call, role, checks);
    sw_put_await_checks(call, role, checks);
}

/* One round, by a worker; `first`: it is the call's first. */
template <int N, sw_kernel_shape shape, class R, class W>
struct sw_put_stages {
    SYMWIN_DEVICE void run(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                           const sw_put_round &round, bool first, uint32_t *checks)
    {
        sw_put_scatter<N, R, W>(args, call, role, round);
        if (first)
            sw_put_check_and_wait(args, call, role, checks);
        if (!call.failed)
            sw_put_share<N, R, W>(args, call, role, round);
    }
};

/* The same for a long message: a thread scatters entry i of every share and reduces the previous
 * one. This saves the time of the second stage if that stage sends nothing, as with SW_PUT_HERE
 * (four H200s: 2248 us instead of 2297 at 512 MiB in place). There is no circular wait with any
 * grid: an entry is scattered after entries before it have been reduced, and depends on nothing
 * else. */
template <int N, class R, class W>
struct sw_put_stages<N, SW_SHAPE_long, R, W> {
    SYMWIN_DEVICE void load(const struct sw_kernel_args &args, const sw_put_round &round,
                            uint32_t i, sw_outgoing<N, W> &e)
    {
        SYMWIN_UNROLL
        for (int32_t step = 1; step < N; step++) {
            const sw_part in = sw_put_part<W>(round, round.in, sw_rank_after<N>(args, step));

            e.there[step - 1] = i < sw_put_entries<W>(round, in);
            if (e.there[step - 1])
                sw_input_load<R, W, SW_SHARED>(args, in, i, e.word[step - 1]);
        }
    }

    SYMWIN_DEVICE void run(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                           const sw_put_round &round, bool first, uint32_t *checks)
    {
        const uint64_t slots = call.state + sw_slot_place<N>(args, round.number, 0, 0);
        const uint64_t place = sw_slot_place<N>(args, round.number, args.rank, 0);
        const sw_part in = sw_put_part<W>(round, round.in, args.rank);
        const sw_part out = sw_put_part<W>(round, round.out, args.rank);
        const uint32_t mine = sw_put_entries<W>(round, in), step = role.workers;
        sw_outgoing<N, W> next;
        sw_peer_states<N> states;

        states.find(args);
        load(args, round, role.index, next);
        sw_outgoing_send<N, W>(args, states, place + (uint64_t)role.index * SW_ENTRY_BYTES, next);
        load(args, round, role.index + step, next);
        if (first)
            sw_put_check_and_wait(args, call, role, checks);
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < round.layout.extent && !call.failed; i += step) {
            const uint64_t from = slots + (uint64_t)i * SW_ENTRY_BYTES;
            uint64_t own[W::words], result[W::words];

            sw_outgoing_send<N, W>(args, states, place + (uint64_t)(i + step) * SW_ENTRY_BYTES,
                                   next);
            load(args, round, i + 2 * step, next);
            if (i >= mine)
                continue;
            sw_input_load<R, W>(args, in, i, own);
            if (!sw_entries_reduce<N, R, W>(args, call, from, own, result))
                return;
            sw_put_deliver<N, R, W>(args, out, from, i, result);
        }
    }
};

template <int N, sw_kernel_shape shape, class R>
SYMWIN_DEVICE void sw_twoshot_put(const struct sw_kernel_args &args)
{
    typedef typename sw_wire_of<shape, R::spares>::type W;
    const uint64_t bytes = args.count * R::bytes;
    const sw_put_layout layout = sw_put_layout_of(
        bytes, SW_PUT_PAYLOAD(R::spares), sw_ranks<N>(args), SW_PUT_ROOM(args.slot_bytes),
        args.stage == SW_PUT_HERE && SW_PUT_COPIES(args.out_offset));
    const sw_role role = sw_role_of_thread();
    __shared__ uint32_t checks;
    sw_call call = sw_call_begin(args);

    /* The addresses that peers use: the buffers may have other addresses too. */
    const uint64_t in = symwin_own_address(call.peers, args.in_offset);
    const uint64_t out = symwin_own_address(call.peers, args.out_offset);

    if (threadIdx.x == 0)
        checks = 0;
    call.failed = symwin_block_any(call.failed); /* see sw_start_barrier() */
    if (role.control_lane >= 0 && !call.failed) {
        if (blockIdx.x == 0)
            sw_headers_post(args, call, SW_HEADER_STREAM, role.control_lane, role.control_lanes);
        if (!role.works)
            sw_put_check(args, call, role, &checks);
    }
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0; role.works && c < layout.rounds && !call.failed; c++) {
        const uint64_t before = layout.copied + (uint64_t)c * layout.extent;
        const uint64_t left = before < layout.share ? layout.share - before : 0;
        const sw_put_round round = {in,
                                    out,
                                    bytes,
                                    layout,
                                    before,
                                    (uint32_t)(left < layout.extent ? left : layout.extent),
                                    call.round + c};

        if (c > 0 && c + 1 < layout.rounds)
            symwin_fence();
        sw_put_stages<N, shape, R, W>::run(args, call, role, round, c == 0, &checks);
    }
    sw_call_end(args, call, layout.rounds);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_twoshot_put<SW_RANKS_##ranks, SW_SHAPE_##shape,                                         \
                       sw_reduce<symwin_type_##type, symwin_op_##op>>(args);                       \
    }
SW_KERNEL_LIST_TWOSHOT_PUT(SW_DEFINE)
#undef SW_DEFINE
