/* All-gather, all-to-all, broadcast, gather and scatter by push: bytes go from the senders' parts
 * to the receivers' as the pattern in the arguments says (pattern.cuh). And small calls of a group,
 * which may reduce, in one launch.
 *
 *   in, out    this rank's device memory, any alignment: a part for each rank, or one part. What
 *              this rank does not send or receive is not accessed. The same part of a rank's `in`
 *              and `out` may be the same memory
 *   slots      2 * slot_bytes for each source
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags, because the bytes may have any value; of large parts,
 *              bundles (bundles.cuh)
 *   types      none: bytes are moved
 *
 * In place: a thread loads all its entries of a round before it stores what it receives in the
 * round, and entry i of each part is its own in `in` as in `out`.
 */
#include "any.cuh"
#include "shares.cuh"

struct sw_move {
    typedef sw_byte element;
    typedef sw_wire_flags wire;

    /* Receives entry `i` of round `c` from each source of the batch that begins at rank `first`:
     * from the slots at `from`. False: the wait was given up. */
    SYMWIN_DEVICE bool entries(const struct sw_kernel_args &args, sw_call &call,
                               const sw_rounds &rounds, uint32_t c, uint32_t i, int32_t first,
                               uint64_t from)
    {
        typename wire::entry entry[sw_batch<0>::ranks];

        if (!sw_entries_await<0, wire, sw_from_sources<0>>(args, call, from, first, entry))
            return false;
        SYMWIN_UNROLL
        for (int j = 0; j < sw_batch<0>::ranks; j++) {
            uint64_t word[wire::words];

            if (!sw_from_sources<0>::has(args, first + j))
                continue;
            wire::decode(entry[j], word);
            sw_entry_store<sw_byte, wire>(
                sw_pattern_part<wire>(args.out, args.out_step, first + j, rounds, c), i, word);
        }
        return true;
    }

    SYMWIN_DEVICE void own(const struct sw_kernel_args &args, const sw_rounds &rounds, uint32_t c,
                           uint32_t i)
    {
        const sw_part in = sw_pattern_part<wire>(args.in, args.in_step, args.rank, rounds, c);
        const sw_part out = sw_pattern_part<wire>(args.out, args.out_step, args.rank, rounds, c);
        uint64_t word[wire::words];

        if (in.message.address == out.message.address)
            return;
        sw_entry_load<sw_byte, wire>(in, i, word);
        sw_entry_store<sw_byte, wire>(out, i, word);
    }

    SYMWIN_DEVICE void round(const struct sw_kernel_args &args, sw_call &call, const sw_role &role,
                             const sw_rounds &rounds, uint32_t c)
    {
        const uint64_t slots = call.state + sw_slot_place<0>(args, call.round + c, 0, 0) +
                               rounds.before;
        const bool keeps = sw_pattern_has(args.to, args.rank) &&
                           sw_pattern_has(args.from, args.rank);
        const int32_t begin = args.from < 0 ? 0 : args.from;
        const int32_t end = args.from == SW_EVERY_RANK ? args.nranks : args.from + 1;

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < rounds.extent; i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;

            if (keeps)
                own(args, rounds, c, i);
            SYMWIN_NO_UNROLL
            for (int32_t first = begin; first < end; first += sw_batch<0>::ranks)
                if (!entries(args, call, rounds, c, i, first,
                             at + (uint64_t)(uint32_t)first * 2 * args.slot_bytes))
                    return;
            sw_entries_empty<0, wire, sw_from_sources<0>>(args, at);
        }
    }
};

/* Of N ranks, in a short call: a part is words, or if it is tiny 4, 2 or 1 bytes. */
template <int N, sw_kernel_shape shape>
struct sw_move_short {
    typedef typename sw_wire_of<SW_SHAPE_short, false>::type wire;

    SYMWIN_DEVICE uint32_t entries(const struct sw_kernel_args &args)
    {
        return shape == SW_SHAPE_tiny ? 1 : (uint32_t)(args.bytes / 8);
    }

    SYMWIN_DEVICE uint64_t load(const struct sw_kernel_args &args, uint64_t address)
    {
        if (shape != SW_SHAPE_tiny)
            return sw_element_load<8, SW_OWN>(address);
        return args.bytes == 4   ? sw_element_load<4, SW_OWN>(address)
               : args.bytes == 2 ? sw_element_load<2, SW_OWN>(address)
                                 : sw_element_load<1, SW_OWN>(address);
    }

    SYMWIN_DEVICE void store(const struct sw_kernel_args &args, int32_t p, uint32_t i,
                             uint64_t word)
    {
        const uint64_t address = args.out + (uint32_t)p * args.out_step + (uint64_t)i * 8;

        if (shape != SW_SHAPE_tiny)
            sw_element_store<8, SW_OWN>(address, word);
        else if (args.bytes == 4)
            sw_element_store<4, SW_OWN>(address, word);
        else if (args.bytes == 2)
            sw_element_store<2, SW_OWN>(address, word);
        else
            sw_element_store<1, SW_OWN>(address, word);
    }

    SYMWIN_DEVICE bool entry(const struct sw_kernel_args &args, sw_call &call, uint64_t from,
                             const uint64_t own[1], uint32_t i)
    {
        typename wire::entry entry[N];

        if (sw_pattern_has(args.to, args.rank) && sw_pattern_has(args.from, args.rank))
            store(args, args.rank, i, own[0]);
        if (!sw_entries_await<N, wire, sw_from_sources<N>>(args, call, from, 0, entry))
            return false;
        SYMWIN_UNROLL
        for (int p = 0; p < N; p++) {
            uint64_t word;

            if (!sw_from_sources<N>::has(args, p))
                continue;
            wire::decode(entry[p], &word);
            store(args, p, i, word);
        }
        sw_entries_empty<N, wire, sw_from_sources<N>>(args, from);
        return true;
    }
};

template <int N, sw_kernel_shape shape>
SYMWIN_DEVICE void sw_move_run(const struct sw_kernel_args &args)
{
    if constexpr (shape == SW_SHAPE_short || shape == SW_SHAPE_tiny)
        sw_pattern_run_short<N, sw_move_short<N, shape>>(args, args, sw_role_of_thread(), 0);
    else if constexpr (shape == SW_SHAPE_long)
        if (args.stage == SW_MOVE_SHARES)
            sw_shares_run<sw_items_whole>(args);
        else
            sw_bundles_run<sw_items_whole>(args);
    else if (args.stage == SW_MOVE_SHARES)
        sw_shares_run<sw_items_any>(args);
    else if (args.stage == SW_MOVE_BUNDLES)
        sw_bundles_run<sw_items_any>(args);
    else
        sw_pattern_run<sw_move>(args);
}

/* ---- several calls at once ------------------------------------------------------------------- */

/* Small calls of a group, in one launch: the slots have the entries of one call after those of
 * another, each where all ranks expect it, and the launch is one call of one round to headers,
 * epochs and the proof in push.cuh. Ranks differ in nothing but what they may differ in with one
 * call. Entry k of all is handled by the thread k mod workers.
 *
 * Some of the calls may reduce: all-reduces, reduce-scatters and reductions to a rank. Each rank
 * pushes a receiver the part that it adds, and adds what it receives in rank order, so the bits are
 * those of the same call alone (words of all ones excepted, which that one changes).
 *
 * A call that uses what a call before it writes on this rank waits until that one has ended here.
 * Then the grid has one block. There is no circular wait: what a rank sends in a call waits for
 * entries of earlier calls only. */
struct sw_group {
    typedef sw_move::wire wire;

    /* What the thread has of entry `k`: a call of that one entry. */
    struct turn {
        struct sw_kernel_args args;
        sw_rounds rounds;
        sw_role role;
        bool reduces;
        bool is_there; /* otherwise it lies between two calls */
    };

    SYMWIN_DEVICE turn find(const struct sw_group_args &args, const sw_role &role, uint32_t k)
    {
        uint32_t j = 0;
        turn t = {args.call, {}, role, false, false};

        while (j + 1 < args.call.calls && k >= args.item[j + 1].begin)
            j++;
        t.args.in = args.item[j].in;
        t.args.out = args.item[j].out;
        t.args.in_step = args.item[j].in_step;
        t.args.out_step = args.item[j].out_step;
        t.args.to = args.item[j].to;
        t.args.from = args.item[j].from;
        t.args.what = args.item[j].says.what;
        t.args.op = args.item[j].op;
        t.args.scalar = args.item[j].scalar;
        t.reduces = args.item[j].reduces != 0;
        t.rounds = sw_rounds_of_bytes<wire>(args.item[j].bytes, SW_GROUP_MOST_ENTRIES);
        t.rounds.before = (uint64_t)args.item[j].begin * wire::bytes;
        t.role.index = k - args.item[j].begin;
        t.role.workers = SW_GROUP_MOST_ENTRIES;
        t.is_there = t.role.index < t.rounds.extent;
        return t;
    }

    /* Its words for the ranks from step `step` on. */
    SYMWIN_DEVICE void load(const turn &t, int32_t step, int32_t end,
                            sw_outgoing_batch<wire> &batch)
    {
        sw_pattern_load<sw_byte, wire>(t.args, t.rounds, 0, t.role.index, step, end, batch);
        if (t.reduces)
            sw_any_scale(t.args, batch.word);
    }

    SYMWIN_DEVICE void load_first(const turn &t, sw_outgoing_batch<wire> &batch)
    {
        const sw_steps steps = sw_pattern_steps(t.args);

        if (t.is_there)
            load(t, steps.first, steps.end, batch);
    }

    SYMWIN_DEVICE void send(const turn &t, const sw_call &call, sw_outgoing_batch<wire> &batch)
    {
        const uint64_t place = sw_slot_place<0>(t.args, call.round, t.args.rank, 0) +
                               t.rounds.before + (uint64_t)t.role.index * wire::bytes;
        const sw_steps steps = sw_pattern_steps(t.args);

        SYMWIN_NO_UNROLL
        for (int32_t step = steps.first; t.is_there && step < steps.end;
             step += sw_batch<0>::ranks) {
            if (step != steps.first)
                load(t, step, steps.end, batch);
            SYMWIN_UNROLL
            for (int j = 0; j < sw_batch<0>::ranks; j++)
                if (step + j < steps.end)
                    wire::store(sw_state_after<0>(t.args, step + j) + place,
                                wire::encode(batch.word[j]));
        }
    }

    /* Receives what is added, and stores the result. */
    SYMWIN_DEVICE void add(const turn &t, sw_call &call)
    {
        const sw_part in = sw_pattern_part<wire>(t.args.in, t.args.in_step, t.args.rank, t.rounds,
                                                 0);
        const uint64_t at = call.state + sw_slot_place<0>(t.args, call.round, 0, 0) +
                            t.rounds.before + (uint64_t)t.role.index * wire::bytes;
        uint64_t own[1][wire::words], word[1][wire::words];
        sw_any_sums<1> sums = {};

        if (t.args.from == SW_NO_RANK)
            return;
        sw_entry_load<sw_byte, wire>(in, t.role.index, own[0]);
        sw_any_scale(t.args, own);
        SYMWIN_NO_UNROLL
        for (int32_t first = 0; first < t.args.nranks; first += sw_batch<0>::ranks) {
            const uint64_t from = at + (uint64_t)(uint32_t)first * 2 * t.args.slot_bytes;
            typename wire::entry entry[sw_batch<0>::ranks];

            if (!sw_entries_await<0, wire>(t.args, call, from, first, entry))
                return;
            SYMWIN_NO_UNROLL
            for (int j = 0; j < sw_batch<0>::ranks && first + j < t.args.nranks; j++) {
                typename wire::entry one = entry[0];

                /* An index that is not known to the compiler would put them all in memory. */
                SYMWIN_UNROLL
                for (int m = 1; m < sw_batch<0>::ranks; m++)
                    one = m == j ? entry[m] : one;
                wire::decode(one, word[0]);
                sw_any_add(t.args, first + j == 0, first + j == t.args.rank ? own : word, sums);
            }
        }
        sw_any_result(t.args, sums, word);
        sw_entry_store<sw_byte, wire>(sw_part_of<wire>(t.args.out, t.rounds, 0), t.role.index,
                                      word[0]);
        sw_entries_empty<0, wire>(t.args, at);
    }

    SYMWIN_DEVICE void receive(const turn &t, sw_call &call)
    {
        if (t.is_there && t.reduces)
            add(t, call);
        else if (t.is_there)
            sw_move::round(t.args, call, t.role, t.rounds, 0);
    }

    /* The calls from `first` on that wait for none of each other: the number of the next one. */
    SYMWIN_DEVICE uint32_t together(const struct sw_group_args &args, uint32_t first)
    {
        uint32_t j = first + 1;

        while (j < args.call.calls && args.item[j].waits == 0)
            j++;
        return j;
    }

    SYMWIN_DEVICE uint32_t begin_of(const struct sw_group_args &args, uint32_t j)
    {
        return j < args.call.calls ? args.item[j].begin : args.entries;
    }

    SYMWIN_DEVICE void run(const struct sw_group_args &args)
    {
        const sw_role role = sw_role_of_thread();
        sw_outgoing_batch<wire> batch = {};
        sw_call call;

        sw_call_order();
        if (role.works && role.index < begin_of(args, together(args, 0)))
            load_first(find(args, role, role.index), batch);
        call = sw_call_read(args.call);
        SYMWIN_NO_UNROLL
        for (uint32_t first = 0, next; first < args.call.calls; first = next) {
            const uint32_t begin = args.item[first].begin + role.index;
            uint32_t end;

            next = together(args, first);
            end = begin_of(args, next);
            SYMWIN_NO_UNROLL
            for (uint32_t k = begin; role.works && !call.failed && k < end; k += role.workers) {
                const turn t = find(args, role, k);

                if (k != role.index)
                    load_first(t, batch);
                send(t, call, batch);
            }
            if (first == 0)
                sw_push_settle(args.call, call, role, 1);
            SYMWIN_NO_UNROLL
            for (uint32_t k = begin; role.works && !call.failed && k < end; k += role.workers)
                receive(find(args, role, k), call);
            if (next < args.call.calls) {
                const bool alias = args.item[next].waits == SW_GROUP_WAITS_ALIAS;

                if (alias)
                    symwin_alias_fence();
                call.failed = symwin_block_any(call.failed);
                if (alias)
                    symwin_alias_fence();
            }
        }
        sw_push_end<wire>(args.call, call);
    }
};

/* The same of short calls that only move bytes and do not wait for each other. Each has as many
 * blocks of its own, so nobody searches for the call of an entry. The grid is a multiple of the
 * number of calls. */
template <int N>
SYMWIN_DEVICE void sw_group_short(const struct sw_group_args &args)
{
    const struct sw_group_item &item = args.item[blockIdx.x % args.call.calls];
    const uint32_t part = blockIdx.x / args.call.calls, parts = gridDim.x / args.call.calls;
    struct sw_kernel_args one = args.call;
    sw_role role = sw_role_of_thread();

    one.in = item.in;
    one.out = item.out;
    one.in_step = item.in_step;
    one.out_step = item.out_step;
    one.bytes = item.bytes;
    one.to = item.to;
    one.from = item.from;
    role.workers /= gridDim.x;
    role.index = part * role.workers + threadIdx.x;
    role.workers *= parts;
    sw_pattern_run_short<N, sw_move_short<N, SW_SHAPE_short>>(
        args.call, one, role, (uint64_t)item.begin * sw_move::wire::bytes);
}

template <int N, sw_kernel_shape shape>
SYMWIN_DEVICE void sw_group_run(const struct sw_group_args &args)
{
    if constexpr (shape == SW_SHAPE_short)
        sw_group_short<N>(args);
    else
        sw_group::run(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        SW_RUN_##family(SW_RANKS_##ranks, SW_SHAPE_##shape)(args);                                 \
    }
#define SW_RUN_move(ranks, shape) sw_move_run<ranks, shape>
#define SW_RUN_group(ranks, shape) sw_group_run<ranks, shape>
SW_KERNEL_LIST_MOVE(SW_DEFINE)
#undef SW_DEFINE
