/* All-reduce, two-shot push: the message is shared out among the ranks; each sends every peer that peer's share,
 * reduces its own share of what it receives, and sends the result to every peer (push.cuh).
 *
 *   in, out    any device memory of this rank, `count` elements, any element alignment, out == in
 *              allowed; accessed in 16 or 8 bytes where aligned
 *   slots      slot_bytes of each source for either stage
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    all payload where the type can spare a pattern, else half flags (sw_reduce::spares)
 *   result     reduced in rank order by one rank, so all ranks get the same bits
 *
 * Three stages, without a barrier in between: a thread goes on when it has done its part of one.
 *   scatter    entry i of peer p's share, by thread (i + what lies before p's share) mod workers
 *   reduce     entry i of the own share, by thread i mod workers, and out to all peers
 *   collect    entry i of the share that p has reduced, by the same thread as in `scatter`
 * What push.cuh asks for holds. Scatter: the thread that stores entry i at p has collected entry i of p's share, which
 * p's thread i reduced and sent, and that is the one that empties it. Reduce: thread i, which stores the result's
 * entry i at p, has received entry i of its share from p, which p sent by the thread that collects entry i of it.
 */
#include "push.cuh"

/* Entries that a thread has under way in `scatter` and in `collect`. */
#define SW_TWOSHOT_UNROLL 4

struct sw_shares {
    uint32_t each; /* entries of a share; the last ones may have fewer */
    uint64_t extent;
};

/* Entries of rank p's share of a round. */
SYMWIN_DEVICE uint32_t sw_share_entries(const sw_shares &shares, int32_t p)
{
    const uint64_t begin = (uint64_t)p * shares.each;

    return begin >= shares.extent                ? 0
           : shares.extent - begin < shares.each ? (uint32_t)(shares.extent - begin)
                                                 : shares.each;
}

/* Goes through the peers from the next rank on, and through this thread's entries of each one's share. */
struct sw_walk {
    int32_t peer;
    uint32_t first, entries; /* this thread's first entry; of the share */
    uint32_t before, step;   /* entries before, modulo the workers; what a share adds to that */
};

SYMWIN_DEVICE void sw_walk_to(const struct sw_kernel_args &args, const sw_role &role,
                              const sw_shares &shares, sw_walk &walk)
{
    walk.peer = walk.peer + 1 < args.nranks ? walk.peer + 1 : 0;
    walk.first = role.index >= walk.before ? role.index - walk.before
                                           : role.index + (role.workers - walk.before);
    walk.entries = sw_share_entries(shares, walk.peer);
    walk.before += walk.step;
    if (walk.before >= role.workers)
        walk.before -= role.workers;
}

SYMWIN_DEVICE sw_walk sw_walk_of(const struct sw_kernel_args &args, const sw_role &role,
                                 const sw_shares &shares)
{
    return {args.rank, 0, 0, 0, shares.each % role.workers};
}

/* Where the share begins in the message. */
SYMWIN_DEVICE uint64_t sw_share_begin(const sw_rounds &rounds, const sw_shares &shares, uint32_t c,
                                      int32_t p)
{
    return c * rounds.extent + (uint64_t)p * shares.each;
}

/* ---- the stages ------------------------------------------------------------------------------ */

template <class R, class W, int U>
SYMWIN_DEVICE void sw_scatter_entries(const sw_message &in, uint64_t from, uint64_t to,
                                      uint32_t step)
{
    uint64_t word[U][W::words];

    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        sw_entry_load<R, W>(in, from + (uint64_t)u * step, word[u]);
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++)
        symwin_store_relaxed_v16(to + (uint64_t)u * step * SW_ENTRY_BYTES, W::encode(word[u]));
}

template <class R, class W>
SYMWIN_DEVICE void sw_scatter(const struct sw_kernel_args &args, const sw_call &call,
                              const sw_role &role, const sw_rounds &rounds, const sw_shares &shares,
                              uint32_t c)
{
    const sw_message in = sw_message_at(args.in, args.count * R::bytes);
    const uint64_t place = sw_entry_place(args, call.round + c, args.rank, 0, 0);
    const uint32_t workers = role.workers;
    sw_walk walk = sw_walk_of(args, role, shares);

    SYMWIN_NO_UNROLL
    for (int32_t n = 1; n < args.nranks; n++) {
        sw_walk_to(args, role, shares, walk);
        const uint64_t from = sw_share_begin(rounds, shares, c, walk.peer);
        const uint64_t to = sw_state_address(args, call, walk.peer, place);
        uint64_t i = walk.first;

        SYMWIN_NO_UNROLL
        for (; i + (SW_TWOSHOT_UNROLL - 1) * (uint64_t)workers < walk.entries;
             i += SW_TWOSHOT_UNROLL * (uint64_t)workers)
            sw_scatter_entries<R, W, SW_TWOSHOT_UNROLL>(in, from + i, to + i * SW_ENTRY_BYTES,
                                                        workers);
        SYMWIN_NO_UNROLL
        for (; i < walk.entries; i += workers)
            sw_scatter_entries<R, W, 1>(in, from + i, to + i * SW_ENTRY_BYTES, workers);
    }
}

template <class R, class W>
SYMWIN_DEVICE void sw_reduce_share(const struct sw_kernel_args &args, sw_call &call,
                                   const sw_role &role, const sw_rounds &rounds,
                                   const sw_shares &shares, uint32_t c)
{
    const sw_message in = sw_message_at(args.in, args.count * R::bytes);
    const sw_message out = sw_message_at(args.out, args.count * R::bytes);
    const uint32_t round = call.round + c, entries = sw_share_entries(shares, args.rank);
    const uint64_t begin = sw_share_begin(rounds, shares, c, args.rank);

    SYMWIN_NO_UNROLL
    for (uint64_t i = role.index; i < entries; i += role.workers) {
        const uint64_t place = sw_entry_place(args, round, 0, 0, i);
        uint64_t own[W::words], result[W::words];

        sw_entry_load<R, W>(in, begin + i, own);
        if (!sw_entries_reduce<R, W>(args, call, sw_state_address(args, call, args.rank, place),
                                     own, result))
            return;
        sw_entry_send_all(args, call, sw_entry_place(args, round, args.rank, 1, i),
                          W::encode(result));
        sw_entry_store<R, W>(out, begin + i, result);
    }
}

/* Takes U entries of one peer. */
template <class R, class W, int U>
SYMWIN_DEVICE bool sw_collect_entries(const struct sw_kernel_args &args, sw_call &call,
                                      int32_t peer, const sw_message &out, uint64_t to,
                                      uint64_t from, uint32_t step)
{
    symwin_v16 entry[U];
    sw_wait wait = {0, 0, 0};

    for (;;) {
        bool all = true;

        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            entry[u] = symwin_load_relaxed_v16(from + (uint64_t)u * step * SW_ENTRY_BYTES);
        SYMWIN_UNROLL
        for (int u = 0; u < U; u++)
            all = all && sw_entry_is_there(entry[u]);
        if (all)
            break;
        if (!sw_wait_on(args, call, wait, peer))
            return false;
    }
    SYMWIN_UNROLL
    for (int u = 0; u < U; u++) {
        uint64_t word[W::words];

        symwin_store_relaxed_v16(from + (uint64_t)u * step * SW_ENTRY_BYTES, {0, 0});
        W::decode(entry[u], word);
        sw_entry_store<R, W>(out, to + (uint64_t)u * step, word);
    }
    return true;
}

template <class R, class W>
SYMWIN_DEVICE void sw_collect(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                              const sw_rounds &rounds, const sw_shares &shares, uint32_t c)
{
    const sw_message out = sw_message_at(args.out, args.count * R::bytes);
    const uint32_t workers = role.workers;
    sw_walk walk = sw_walk_of(args, role, shares);

    SYMWIN_NO_UNROLL
    for (int32_t n = 1; n < args.nranks && !call.failed; n++) {
        sw_walk_to(args, role, shares, walk);
        const uint64_t to = sw_share_begin(rounds, shares, c, walk.peer);
        const uint64_t from = sw_state_address(
            args, call, args.rank, sw_entry_place(args, call.round + c, walk.peer, 1, 0));
        uint64_t i = walk.first;
        bool going = true;

        SYMWIN_NO_UNROLL
        for (; going && i + (SW_TWOSHOT_UNROLL - 1) * (uint64_t)workers < walk.entries;
             i += SW_TWOSHOT_UNROLL * (uint64_t)workers)
            going = sw_collect_entries<R, W, SW_TWOSHOT_UNROLL>(args, call, walk.peer, out, to + i,
                                                                from + i * SW_ENTRY_BYTES, workers);
        SYMWIN_NO_UNROLL
        for (; going && i < walk.entries; i += workers)
            going = sw_collect_entries<R, W, 1>(args, call, walk.peer, out, to + i,
                                                from + i * SW_ENTRY_BYTES, workers);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class R>
SYMWIN_DEVICE void sw_twoshot_push(const struct sw_kernel_args &args)
{
    typedef typename sw_wire_of<R::spares>::type W;
    const uint64_t room = args.slot_bytes / SW_ENTRY_BYTES; /* for a share */
    const sw_rounds rounds = sw_rounds_of<R, W>(args, room * (uint32_t)args.nranks);
    const uint64_t even = (rounds.extent + (uint32_t)args.nranks - 1) / (uint32_t)args.nranks;
    /* Whole lines of 128 bytes, where there is room. */
    const uint64_t lines = (even + 7) / 8 * 8;
    const sw_shares shares = {(uint32_t)(lines <= room ? lines : even), rounds.extent};
    const sw_role role = sw_role_of_thread();
    sw_call call = sw_call_begin(args);

    sw_push_announce(args, call, role);
    if (role.works && !call.failed)
        sw_scatter<R, W>(args, call, role, rounds, shares, 0);
    sw_push_settle(args, call, role, rounds.count);
    for (uint32_t c = 0; c < rounds.count && role.works && !call.failed; c++) {
        if (c > 0) {
            symwin_fence();
            sw_scatter<R, W>(args, call, role, rounds, shares, c);
        }
        sw_reduce_share<R, W>(args, call, role, rounds, shares, c);
        if (!call.failed)
            sw_collect<R, W>(args, call, role, rounds, shares, c);
    }
    sw_call_done(args, call);
}

#define SW_DEFINE(algo, type, op)                                                                  \
    SYMWIN_KERNEL(sw_allreduce_##algo##_##type##_##op, struct sw_kernel_args, args,                \
                  SW_KERNEL_MAX_THREADS)                                                           \
    {                                                                                              \
        sw_twoshot_push<sw_reduce<sw_type_##type, sw_op_##op>>(args);                              \
    }
SW_KERNEL_LIST_TWOSHOT_PUSH(SW_DEFINE)
#undef SW_DEFINE
