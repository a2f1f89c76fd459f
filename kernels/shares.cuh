/* A message of the root, or for it, that is divided among all other ranks: broadcast and reduce in
 * two steps, by push. In a broadcast the root sends each rank its share, and the rank sends that on
 * to the others. In a reduction each rank sends the others their shares, and they send the root the
 * results. One round; entries as in push.cuh, or bundles.
 *
 *   slots      slot_bytes for each source and step
 *
 * Share 0 is that of the rank after the root. The last shares may be shorter, or have nothing.
 *
 * The proof of push.cuh holds with one round a call, whoever sends to whom: its second case alone
 * is needed. There is no circular wait: what is sent in the first step waits for nothing, and what
 * is sent in the second for the first alone.
 */
#ifndef SYMWIN_KERNELS_SHARES_CUH
#define SYMWIN_KERNELS_SHARES_CUH

#include "bundles.cuh"

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The number of rank p's share. */
SYMWIN_DEVICE uint32_t sw_share_but_root(const struct sw_kernel_args &args, int32_t p)
{
    const int32_t after = p - args.root;

    return (uint32_t)(after < 0 ? after + args.nranks : after) - 1;
}

/* Ranks with shares, without this one. */
SYMWIN_DEVICE uint32_t sw_others_but_root(const struct sw_kernel_args &args)
{
    return (uint32_t)args.nranks - (args.rank == args.root ? 1 : 2);
}

/* Of these, number k, from this rank on. */
SYMWIN_DEVICE int32_t sw_other_but_root(const struct sw_kernel_args &args, uint32_t k)
{
    const int32_t to_root = args.root - args.rank;
    const int32_t root = to_root < 0 ? to_root + args.nranks : to_root;
    const int32_t step = (int32_t)k + 1;

    return sw_rank_after<0>(args, root > 0 && step >= root ? step + 1 : step);
}

/* Shares of entries, for stages.cuh. */
struct sw_shares_but_root {
    template <class W>
    SYMWIN_DEVICE uint32_t items(const struct sw_kernel_args &args,
                                 const sw_twoshot_round<W> &round)
    {
        return sw_others_but_root(args) * round.each;
    }

    template <class W>
    SYMWIN_DEVICE sw_item item(const struct sw_kernel_args &args, const sw_twoshot_round<W> &round,
                               uint32_t n)
    {
        const int32_t p = sw_other_but_root(args, n / round.each);
        const uint32_t i = n % round.each;

        return {p, i, sw_share_but_root(args, p) * round.each + i};
    }
};

/* ---- broadcast ------------------------------------------------------------------------------- */

/* Shares of whole groups of bundles. */
struct sw_bundle_shares {
    uint32_t each; /* bundles of a share */

    /* Bundles of the shares that there are, the last one in full. */
    SYMWIN_MEMBER uint32_t all(const struct sw_kernel_args &args) const
    {
        return (sw_bundle_groups(args.bytes) * SW_GROUP_BUNDLES + each - 1) / each * each;
    }

    /* Ranks behind the message's end have none. */
    SYMWIN_MEMBER bool has(const struct sw_kernel_args &args, int32_t p) const
    {
        return (uint64_t)(sw_share_but_root(args, p) * each) * (SW_BUNDLE_ITEMS * 16) < args.bytes;
    }

    /* Rank p's share of the message at `address`. */
    template <class W>
    SYMWIN_MEMBER sw_part part(const struct sw_kernel_args &args, uint64_t address, int32_t p) const
    {
        const uint32_t items = each * SW_BUNDLE_ITEMS;

        return sw_part_at<W>(address, args.bytes, (uint64_t)sw_share_but_root(args, p) * items,
                             items);
    }
};

SYMWIN_DEVICE sw_bundle_shares sw_bundle_shares_of(const struct sw_kernel_args &args)
{
    const uint32_t shares = (uint32_t)args.nranks - 1;

    return {(sw_bundle_groups(args.bytes) + shares - 1) / shares * SW_GROUP_BUNDLES};
}

/* By the root, whose other number k has share k: sends each rank its share. `word` has those of the
 * thread's first bundle. */
template <class W>
SYMWIN_DEVICE void sw_shares_send(const struct sw_kernel_args &args, const sw_call &call,
                                  const sw_role &role, const sw_bundle_shares &shares,
                                  uint64_t word[SW_BUNDLE_WORDS])
{
    const uint64_t place = sw_slot_place<0>(args, call.round, args.rank, 0);
    const uint32_t all = shares.all(args);

    SYMWIN_NO_UNROLL
    for (uint32_t u = role.index; u < all; u += role.workers) {
        const int32_t p = sw_other_but_root(args, u / shares.each);

        if (u != role.index)
            sw_bundle_load<W>(shares.part<W>(args, args.in, p), u % shares.each, word);
        sw_bundle_send(sw_state_address(args, call, p, place), u % shares.each, word);
    }
}

/* Receives this rank's share and sends it on. */
template <class W>
SYMWIN_DEVICE void sw_shares_pass(const struct sw_kernel_args &args, sw_call &call,
                                  const sw_role &role, const sw_bundle_shares &shares)
{
    const uint64_t from = call.state + sw_slot_place<0>(args, call.round, args.root, 0);
    const uint64_t place = sw_slot_place<0>(args, call.round, args.rank, 1);
    const sw_part out = shares.part<W>(args, args.out, args.rank);
    const uint32_t others = sw_others_but_root(args);

    SYMWIN_NO_UNROLL
    for (uint32_t b = role.index; b < shares.each; b += role.workers) {
        uint64_t word[SW_BUNDLE_WORDS];

        if (!sw_bundle_receive(args, call, args.root, from, b, word))
            return;
        SYMWIN_NO_UNROLL
        for (uint32_t k = 0; k < others; k++)
            sw_bundle_send(sw_state_address(args, call, sw_other_but_root(args, k), place), b,
                           word);
        sw_bundle_store<W>(out, b, word);
    }
}

/* Receives what the others pass on. */
template <class W>
SYMWIN_DEVICE void sw_shares_receive(const struct sw_kernel_args &args, sw_call &call,
                                     const sw_role &role, const sw_bundle_shares &shares)
{
    const uint32_t all = sw_others_but_root(args) * shares.each;

    SYMWIN_NO_UNROLL
    for (uint32_t u = role.index; u < all; u += role.workers) {
        const int32_t p = sw_other_but_root(args, u / shares.each);
        const uint64_t from = call.state + sw_slot_place<0>(args, call.round, p, 1);
        uint64_t word[SW_BUNDLE_WORDS];

        if (!shares.has(args, p))
            continue;
        if (!sw_bundle_receive(args, call, p, from, u % shares.each, word))
            return;
        sw_bundle_store<W>(shares.part<W>(args, args.out, p), u % shares.each, word);
    }
}

/* By the root: what it keeps. */
template <class W>
SYMWIN_DEVICE void sw_shares_keep(const struct sw_kernel_args &args, const sw_role &role,
                                  const sw_bundle_shares &shares)
{
    const uint32_t all = shares.all(args);

    SYMWIN_NO_UNROLL
    for (uint32_t u = role.index; u < all && args.in != args.out; u += role.workers) {
        const int32_t p = sw_other_but_root(args, u / shares.each);
        uint64_t word[SW_BUNDLE_WORDS];

        sw_bundle_load<W>(shares.part<W>(args, args.in, p), u % shares.each, word);
        sw_bundle_store<W>(shares.part<W>(args, args.out, p), u % shares.each, word);
    }
}

template <class W>
SYMWIN_DEVICE void sw_shares_run(const struct sw_kernel_args &args)
{
    const sw_bundle_shares shares = sw_bundle_shares_of(args);
    const sw_rounds rounds = {args.bytes, 0, 1, 0};
    const sw_role role = sw_role_of_thread();
    const bool is_root = args.rank == args.root;
    uint64_t word[SW_BUNDLE_WORDS] = {};
    sw_call call;

    sw_call_order();
    if (is_root && role.works && role.index < shares.all(args))
        sw_bundle_load<W>(
            shares.part<W>(args, args.in, sw_other_but_root(args, role.index / shares.each)),
            role.index % shares.each, word);
    call = sw_call_read(args);
    if (is_root && role.works && !call.failed)
        sw_shares_send<W>(args, call, role, shares, word);
    if (sw_push_goes_on<W>(args, call, role, rounds, 0)) {
        if (is_root) {
            sw_shares_keep<W>(args, role, shares);
        } else {
            if (shares.has(args, args.rank))
                sw_shares_pass<W>(args, call, role, shares);
            if (!call.failed)
                sw_shares_receive<W>(args, call, role, shares);
        }
        if (!W::rounds && call.failed)
            sw_call_report(args, call.epoch);
    }
    sw_push_end<W>(args, call);
}

#endif
