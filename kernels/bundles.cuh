/* Large parts by push, of any bytes, where 7/8 of what travels is data.
 *
 * A bundle is 8 entries, of one thread: 7 with items of 16 bytes, and one more. The highest bit of
 * each word is its flag. The bits that the flags replace are in the last entry. So a word shows its
 * own arrival, as in push.cuh, and nothing is relied on but the words' own atomicity: it holds for
 * any link and on one device, unlike lines of 128 bytes with one flag (symwin/packet.cuh).
 *
 * A group is the bundles of 32 threads of a warp, 4096 bytes of a slot for 3584 bytes of a part:
 * entry j of bundle b lies at b + 32 j, and so does item j. Each access is 512 bytes in a row.
 *
 * Which ranks send what to whom is as in pattern.cuh. Bundle b for the rank, or from the rank,
 * `step` after this one is sent, received and answered by one thread. It loads from `in` all that
 * it sends in a round before it stores what it receives, so `in` and `out` may be the same memory,
 * and the proof in push.cuh and the answers of pattern.cuh apply to bundles. An answer is one
 * entry.
 */
#ifndef SYMWIN_KERNELS_BUNDLES_CUH
#define SYMWIN_KERNELS_BUNDLES_CUH

#include "pattern.cuh"

enum {
    SW_BUNDLE_ITEMS = 7,
    SW_BUNDLE_ENTRIES = SW_BUNDLE_ITEMS + 1,
    SW_BUNDLE_WORDS = 2 * SW_BUNDLE_ITEMS,
    SW_GROUP_BUNDLES = 32,
    SW_GROUP_ITEMS = SW_GROUP_BUNDLES * SW_BUNDLE_ITEMS
};

#define SW_BUNDLE_FLAG ((uint64_t)1 << 63)

/* Parts as items: of any length and alignment, in any number of rounds; */
struct sw_items_any : sw_entry_pair {
    enum { words = 2, aligned = 0, rest = 1, rounds = 1 };
};

/* and of whole items, aligned to an item, in one round. */
struct sw_items_whole : sw_entry_pair {
    enum { words = 2, aligned = 1, rest = 0, rounds = 0 };
};

/* ---- one bundle ------------------------------------------------------------------------------ */

/* Of what lies in groups, the number of the first of bundle `b`. */
SYMWIN_DEVICE uint32_t sw_bundle_first(uint32_t b, uint32_t of_bundle)
{
    return b / SW_GROUP_BUNDLES * (SW_GROUP_BUNDLES * of_bundle) + b % SW_GROUP_BUNDLES;
}

/* Address of the first entry of bundle `b` in the slot there. */
SYMWIN_DEVICE uint64_t sw_bundle_at(uint64_t slot, uint32_t b)
{
    return slot + (uint64_t)sw_bundle_first(b, SW_BUNDLE_ENTRIES) * SW_ENTRY_BYTES;
}

template <class W>
SYMWIN_DEVICE void sw_bundle_load(const sw_part &part, uint32_t b, uint64_t word[SW_BUNDLE_WORDS])
{
    const uint32_t first = sw_bundle_first(b, SW_BUNDLE_ITEMS);

    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_BUNDLE_ITEMS; j++)
        sw_entry_load<sw_byte, W>(part, first + j * SW_GROUP_BUNDLES, word + 2 * j);
}

/* Stores what is not beyond the part's end. */
template <class W>
SYMWIN_DEVICE void sw_bundle_store(const sw_part &part, uint32_t b,
                                   const uint64_t word[SW_BUNDLE_WORDS])
{
    const uint32_t first = sw_bundle_first(b, SW_BUNDLE_ITEMS);

    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_BUNDLE_ITEMS; j++)
        sw_entry_store<sw_byte, W>(part, first + j * SW_GROUP_BUNDLES, word + 2 * j);
}

/* Sends the words to the slot at `to`. */
SYMWIN_DEVICE void sw_bundle_send(uint64_t to, uint32_t b, const uint64_t word[SW_BUNDLE_WORDS])
{
    const uint64_t at = sw_bundle_at(to, b);
    uint64_t replaced = 0;

    SYMWIN_UNROLL
    for (uint32_t k = 0; k < SW_BUNDLE_WORDS; k++)
        replaced |= word[k] >> 63 << k;
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_BUNDLE_ITEMS; j++)
        sw_entry_pair::store(at + (uint64_t)(j * SW_GROUP_BUNDLES) * SW_ENTRY_BYTES,
                             {word[2 * j] | SW_BUNDLE_FLAG, word[2 * j + 1] | SW_BUNDLE_FLAG});
    sw_entry_pair::store(at + (uint64_t)(SW_BUNDLE_ITEMS * SW_GROUP_BUNDLES) * SW_ENTRY_BYTES,
                         {replaced | SW_BUNDLE_FLAG, SW_BUNDLE_FLAG});
}

/* Awaits bundle `b` of rank p in the slot at `from`, takes its words and empties it. False: the
 * wait was given up. */
SYMWIN_DEVICE bool sw_bundle_receive(const struct sw_kernel_args &args, sw_call &call, int32_t p,
                                     uint64_t from, uint32_t b, uint64_t word[SW_BUNDLE_WORDS])
{
    const uint64_t at = sw_bundle_at(from, b);
    symwin_v16 entry[SW_BUNDLE_ENTRIES];
    sw_wait wait = {0, 0, 0};

    for (;;) {
        uint64_t flags = SW_BUNDLE_FLAG;

        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_BUNDLE_ENTRIES; j++)
            entry[j] = sw_entry_pair::load(at + (uint64_t)(j * SW_GROUP_BUNDLES) * SW_ENTRY_BYTES);
        SYMWIN_UNROLL
        for (uint32_t j = 0; j < SW_BUNDLE_ENTRIES; j++)
            flags &= entry[j].lo & entry[j].hi;
        if (flags != 0)
            break;
        if (sw_wait_turn(wait) && !sw_wait_look(args, call, wait, p))
            return false;
    }
    SYMWIN_UNROLL
    for (uint32_t j = 0; j < SW_BUNDLE_ENTRIES; j++)
        sw_entry_pair::store(at + (uint64_t)(j * SW_GROUP_BUNDLES) * SW_ENTRY_BYTES,
                             sw_entry_pair::empty());
    SYMWIN_UNROLL
    for (uint32_t k = 0; k < SW_BUNDLE_WORDS; k++) {
        const uint64_t sent = k % 2 == 0 ? entry[k / 2].lo : entry[k / 2].hi;

        word[k] = (sent & ~SW_BUNDLE_FLAG) | entry[SW_BUNDLE_ITEMS].lo >> k << 63;
    }
    return true;
}

/* ---- a round --------------------------------------------------------------------------------- */

/* The bundles of a round that a thread handles, for or from the ranks of some steps. */
struct sw_bundles {
    sw_steps steps;
    uint32_t each; /* of one rank */
    uint32_t u;    /* counts bundles of all of these ranks */
    int32_t p;
    uint32_t b;

    SYMWIN_MEMBER void find(const struct sw_kernel_args &args)
    {
        p = sw_rank_after<0>(args, steps.first + (int32_t)(u / each));
        b = u % each;
    }

    SYMWIN_MEMBER bool is_there(void) const
    {
        return u < (uint32_t)(steps.end - steps.first) * each;
    }
};

SYMWIN_DEVICE sw_bundles sw_bundles_of(const struct sw_kernel_args &args, const sw_role &role,
                                       const sw_rounds &rounds, int32_t ranks)
{
    return {sw_pattern_steps_to(args, ranks), rounds.extent / SW_BUNDLE_ITEMS, role.index, 0, 0};
}

/* `word` has those of the thread's first bundle. */
template <class W>
SYMWIN_DEVICE void sw_bundles_send(const struct sw_kernel_args &args, const sw_call &call,
                                   const sw_role &role, const sw_rounds &rounds, uint32_t c,
                                   uint64_t word[SW_BUNDLE_WORDS])
{
    const uint64_t place = sw_slot_place<0>(args, call.round + c, args.rank, 0);
    sw_bundles of = sw_bundles_of(args, role, rounds, args.to);

    SYMWIN_NO_UNROLL
    for (; of.is_there(); of.u += role.workers) {
        of.find(args);
        if (of.u != role.index)
            sw_bundle_load<W>(sw_pattern_part<W>(args.in, args.in_step, of.p, rounds, c), of.b,
                              word);
        sw_bundle_send(sw_state_address(args, call, of.p, place), of.b, word);
    }
}

/* The part that this rank keeps. */
template <class W>
SYMWIN_DEVICE void sw_bundles_keep(const struct sw_kernel_args &args, const sw_role &role,
                                   const sw_rounds &rounds, uint32_t c)
{
    const sw_part in = sw_pattern_part<W>(args.in, args.in_step, args.rank, rounds, c);
    const sw_part out = sw_pattern_part<W>(args.out, args.out_step, args.rank, rounds, c);

    if (!sw_pattern_has(args.to, args.rank) || !sw_pattern_has(args.from, args.rank) ||
        in.message.address == out.message.address)
        return;
    SYMWIN_NO_UNROLL
    for (uint32_t b = role.index; b < rounds.extent / SW_BUNDLE_ITEMS; b += role.workers) {
        uint64_t word[SW_BUNDLE_WORDS];

        sw_bundle_load<W>(in, b, word);
        sw_bundle_store<W>(out, b, word);
    }
}

template <class W>
SYMWIN_DEVICE void sw_bundles_receive(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const uint64_t slots = call.state + sw_slot_place<0>(args, call.round + c, 0, 0);
    sw_bundles of = sw_bundles_of(args, role, rounds, args.from);

    SYMWIN_NO_UNROLL
    for (; of.is_there(); of.u += role.workers) {
        uint64_t word[SW_BUNDLE_WORDS];

        of.find(args);
        if (!sw_bundle_receive(args, call, of.p, slots + (uint32_t)of.p * 2 * args.slot_bytes, of.b,
                               word))
            return;
        sw_bundle_store<W>(sw_pattern_part<W>(args.out, args.out_step, of.p, rounds, c), of.b,
                           word);
    }
}

/* Answers the bundles of round `c`, which this thread has emptied. */
SYMWIN_DEVICE void sw_bundles_answer(const struct sw_kernel_args &args, const sw_call &call,
                                     const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const uint64_t place = sw_slot_place<0>(args, call.round + c, args.rank, 0);
    sw_bundles of = sw_bundles_of(args, role, rounds, args.from);

    SYMWIN_NO_UNROLL
    for (; of.is_there(); of.u += role.workers) {
        of.find(args);
        if (sw_to_sources::has(args, of.p))
            sw_entry_pair::store(sw_bundle_at(sw_state_address(args, call, of.p, place), of.b),
                                 {SW_BUNDLE_FLAG, SW_BUNDLE_FLAG});
    }
}

/* Takes the answers to round `c`. False: the wait was given up. */
SYMWIN_DEVICE bool sw_bundles_take_answers(const struct sw_kernel_args &args, sw_call &call,
                                           const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const uint64_t slots = call.state + sw_slot_place<0>(args, call.round + c, 0, 0);
    sw_bundles of = sw_bundles_of(args, role, rounds, args.to);

    SYMWIN_NO_UNROLL
    for (; of.is_there(); of.u += role.workers) {
        sw_wait wait = {0, 0, 0};
        uint64_t at;

        of.find(args);
        if (!sw_from_targets::has(args, of.p))
            continue;
        at = sw_bundle_at(slots + (uint32_t)of.p * 2 * args.slot_bytes, of.b);
        while (!sw_entry_pair::is_there(sw_entry_pair::load(at)))
            if (sw_wait_turn(wait) && !sw_wait_look(args, call, wait, of.p))
                return false;
        sw_entry_pair::store(at, sw_entry_pair::empty());
    }
    symwin_fence();
    return true;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Groups of so many bytes, the last one perhaps in part. */
SYMWIN_DEVICE uint32_t sw_bundle_groups(uint64_t bytes)
{
    const uint64_t group = SW_GROUP_ITEMS * 16;

    return (uint32_t)((bytes + group - 1) / group);
}

/* Rounds of whole groups, as items. */
template <class W>
SYMWIN_DEVICE sw_rounds sw_rounds_of_groups(uint64_t bytes, uint64_t slot_bytes)
{
    const uint32_t groups = sw_bundle_groups(bytes);
    sw_rounds rounds = {bytes, groups * SW_GROUP_ITEMS, 1, 0};

    if (W::rounds) {
        const uint32_t most = (uint32_t)(slot_bytes /
                                         (SW_GROUP_BUNDLES * SW_BUNDLE_ENTRIES * SW_ENTRY_BYTES));

        rounds.count = (groups + most - 1) / most;
        rounds.extent = (groups + rounds.count - 1) / rounds.count * SW_GROUP_ITEMS;
    }
    return rounds;
}

template <class W>
SYMWIN_DEVICE void sw_bundles_run(const struct sw_kernel_args &args)
{
    const sw_rounds rounds = sw_rounds_of_groups<W>(args.bytes, 2 * args.slot_bytes);
    const sw_role role = sw_role_of_thread();
    sw_bundles first = sw_bundles_of(args, role, rounds, args.to);
    uint64_t word[SW_BUNDLE_WORDS] = {};
    sw_call call;

    sw_call_order();
    if (role.works && first.is_there())
        first.find(args);
    SYMWIN_NO_UNROLL
    for (uint32_t c = 0;;) {
        if (role.works && first.is_there())
            sw_bundle_load<W>(sw_pattern_part<W>(args.in, args.in_step, first.p, rounds, c),
                              first.b, word);
        if (c == 0)
            call = sw_call_read(args);
        if (role.works && !call.failed)
            sw_bundles_send<W>(args, call, role, rounds, c, word);
        if (!sw_push_goes_on<W>(args, call, role, rounds, c))
            break;
        sw_bundles_keep<W>(args, role, rounds, c);
        sw_bundles_receive<W>(args, call, role, rounds, c);
        if (!W::rounds && call.failed)
            sw_call_report(args, call.epoch);
        if (!W::rounds || call.failed || c + 1 == rounds.count)
            break;
        symwin_fence();
        sw_bundles_answer(args, call, role, rounds, c);
        if (!sw_bundles_take_answers(args, call, role, rounds, c))
            break;
        c++;
    }
    sw_push_end<W>(args, call);
}

#endif
