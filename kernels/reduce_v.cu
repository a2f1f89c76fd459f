/* Reduce-scatter of unequal parts by push, large ones by loads from windows: every rank sends each
 * peer that peer's part, or says where it lies, as a table says (table.cuh), and adds what it
 * receives to its own.
 *
 *   in         this rank's device memory, any element alignment: a part for each rank
 *   out        one part, which may be where this rank's own part of `in` is
 *   slots      2 * slot_bytes for each source: entries, and answers
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   entries    eight bytes with flags
 *   types      all, and all operations, by one kernel: only what is done with a word that has come
 *              depends on them, and args.what and args.op say what it is
 *   result     reduced in rank order, as the all-reduce's: the bits are the same
 *
 * Rank r's part has one length for all who send it, so its rounds are those of every peer.
 *
 * In place: nobody is sent a rank's own part, and a thread loads an entry of it before it stores
 * the result there, or a vector where all parts are loaded.
 */
#include "any.cuh"
#include "table_short.cuh"

/* ---- parts in windows ------------------------------------------------------------------------ */

/* How this rank's peers have their parts for it. */
struct sw_sources {
    bool some_pushed, some_loaded;
    bool alike; /* those to be loaded and this rank's own are congruent modulo 16 */
};

/* Where rank p's part is: this rank's own, or one that is loaded. */
template <sw_access access>
SYMWIN_DEVICE uint64_t sw_source_of(const struct sw_table_args &args, const sw_call &call,
                                    const sw_own_part &own, int32_t p)
{
    return p == args.call.rank
               ? own.from
               : symwin_peer_address(call.peers, p, sw_place_of<access>(args, call, p));
}

/* `out`: this rank's part, as all send it. */
template <sw_large large>
SYMWIN_DEVICE sw_sources sw_sources_of(const struct sw_table_args &args, const sw_call &call,
                                       const sw_own_part &own, const sw_table_part &out)
{
    sw_sources sources = {false, false, true};

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; large != SW_LARGE_NONE && p < args.call.nranks; p++) {
        if (p == args.call.rank)
            continue;
        if (!sw_is_taken<large>(args, call, p, out)) {
            sources.some_pushed = true;
            continue;
        }
        sources.some_loaded = true;
        if ((sw_source_of<SW_SHARED>(args, call, own, p) - own.from) % 16 != 0)
            sources.alike = false;
    }
    return sources;
}

/* Ranks from which a thread loads at once. */
enum { SW_SUM_RANKS = 4 };

/* Reduces bytes begin .. end - 1 of all ranks' parts, in units of 16 bytes, which are aligned at
 * all ranks, or of 8, of any alignment. By workers. */
template <class R, bool by_vectors>
SYMWIN_DEVICE void sw_sum_units(const struct sw_table_args &args, const sw_call &call,
                                const sw_role &role, const sw_own_part &own, uint64_t begin,
                                uint64_t end)
{
    /* A thread's units; types of one byte have twice the sums. */
    constexpr int units = by_vectors && R::bytes > 1 ? 2 : 1;
    constexpr int per = by_vectors ? 2 : 1; /* words */
    const int32_t nranks = args.call.nranks;
    const uint64_t count = (end - begin + per * 8 - 1) / (per * 8);
    uint64_t from[SW_SUM_RANKS] = {};

    SYMWIN_NO_UNROLL
    for (uint64_t i = role.index; i < count; i += (uint64_t)role.workers * units) {
        uint64_t result[units * per];
        R sum[units * per] = {};

        SYMWIN_NO_UNROLL
        for (int32_t first = 0; first < nranks; first += SW_SUM_RANKS) {
            uint64_t word[SW_SUM_RANKS][units * per] = {};

            SYMWIN_UNROLL
            for (int32_t j = 0; j < SW_SUM_RANKS; j++)
                if (first + j < nranks && (nranks > SW_SUM_RANKS || i == role.index))
                    from[j] = sw_source_of<SW_OWN>(args, call, own, first + j) + begin;
            SYMWIN_UNROLL
            for (int32_t j = 0; j < SW_SUM_RANKS; j++) {
                SYMWIN_UNROLL
                for (int u = 0; u < units; u++) {
                    const uint64_t at = i + (uint64_t)role.workers * u;

                    if (first + j >= nranks || at >= count)
                        continue;
                    if constexpr (by_vectors) {
                        const symwin_v16 v = symwin_load_v16(from[j] + at * 16);

                        word[j][u * per] = v.lo;
                        word[j][u * per + 1] = v.hi;
                    } else {
                        word[j][u] = sw_word_load<R::bytes>(sw_message_at(from[j], end - begin),
                                                            at);
                    }
                }
            }
            if (sw_multiplies<R>(args.call)) {
                SYMWIN_UNROLL
                for (int32_t j = 0; j < SW_SUM_RANKS; j++) {
                    const int32_t p = first + j;
                    const uint64_t scalar = p == args.call.rank ? sw_scalar_own<R>(args.call)
                                            : p < nranks ? sw_place_says<SW_OWN>(args, call, p,
                                                                                 SW_PLACE_SCALAR)
                                                         : 0;

                    SYMWIN_UNROLL
                    for (int k = 0; k < units * per; k++)
                        word[j][k] = R::scaled(word[j][k], scalar);
                }
            }
            sw_any_add_words(args.call, first == 0, nranks - first, word, sum);
        }
        SYMWIN_UNROLL
        for (int k = 0; k < units * per; k++)
            result[k] = sum[k].result(args.call.op, sw_has_sign(args.call), nranks);
        SYMWIN_UNROLL
        for (int u = 0; u < units; u++) {
            const uint64_t at = i + (uint64_t)role.workers * u;
            const sw_message to = sw_message_at(own.to + begin, end - begin);

            if (at >= count)
                continue;
            if (by_vectors && to.vectors) {
                symwin_store_v16(to.address + at * 16,
                                 {result[u * per], result[u * per + per - 1]});
                continue;
            }
            SYMWIN_UNROLL
            for (int k = 0; k < per; k++)
                sw_word_store<R::bytes>(to, at * per + k, result[u * per + k]);
        }
    }
}

/* Reduces the whole part: vectors, and what is before and behind them. */
template <class R>
SYMWIN_DEVICE void sw_sum_part(const struct sw_table_args &args, const sw_call &call,
                               const sw_role &role, const sw_own_part &own, bool alike)
{
    const uint64_t before = (0 - own.from) % 16;
    const uint64_t head = alike && before < own.bytes ? before : own.bytes;
    const uint64_t rest = head + (own.bytes - head) / 16 * 16;

    sw_sum_units<R, true>(args, call, role, own, head, rest);
    SYMWIN_NO_UNROLL
    for (int edge = 0; edge < 2; edge++)
        sw_sum_units<R, false>(args, call, role, own, edge == 0 ? 0 : rest,
                               edge == 0 ? head : own.bytes);
}

/* ---- the kernels ----------------------------------------------------------------------------- */

template <sw_large with_large>
struct sw_reduce_v {
    typedef sw_wire_flags wire;
    static constexpr bool changes = true;
    static constexpr sw_large large = with_large;

    SYMWIN_DEVICE uint64_t scalar(const struct sw_table_args &args)
    {
        return sw_any_scalar(args.call);
    }

    template <int n>
    SYMWIN_DEVICE void input(const struct sw_table_args &args, uint64_t (&word)[n][wire::words])
    {
        sw_any_scale<n>(args.call, word);
    }

    SYMWIN_DEVICE sw_own_part own_of(const struct sw_table_args &args)
    {
        sw_own_part own = sw_table_own(args);

        own.rounds = sw_table_rounds<wire>(args, own.bytes);
        return own;
    }

    SYMWIN_DEVICE void begin(const struct sw_table_args &args, const sw_role &role,
                             uint64_t (&word)[wire::words])
    {
        const sw_own_part own = own_of(args);

        if (large == SW_LARGE_NONE)
            sw_part_first<wire>(own.rounds, role, own.from, word);
    }

    SYMWIN_DEVICE void keep(const struct sw_table_args &, const sw_role &,
                            const uint64_t (&)[wire::words])
    {
    }

    /* Reduces entry `at` of all peers' slots, from rank 0's on, and this rank's own word. The words
     * of several ranks are awaited together, and added in rank order. False: the wait was given up.
     */
    SYMWIN_DEVICE bool entry(const struct sw_table_args &args, sw_call &call, uint64_t at,
                             uint64_t (&own)[1][wire::words])
    {
        const uint64_t pitch = 2 * args.call.slot_bytes;
        sw_any_sums<1> sums = {};

        input(args, own);
        SYMWIN_NO_UNROLL
        for (int32_t first = 0; first < args.call.nranks; first += sw_batch<0>::ranks) {
            const int32_t left = args.call.nranks - first;
            typename wire::entry entry[sw_batch<0>::ranks];
            uint64_t word[sw_batch<0>::ranks][wire::words];

            if (!sw_entries_await<0, wire>(args.call, call, at + (uint32_t)first * pitch, first,
                                           entry))
                return false;
            SYMWIN_UNROLL
            for (int32_t j = 0; j < sw_batch<0>::ranks; j++) {
                wire::decode(entry[j], word[j]);
                if (first + j == args.call.rank)
                    word[j][0] = own[0][0];
            }
            sw_any_add_ranks(args.call, first == 0, left, word, sums);
        }
        sw_any_result(args.call, sums, own);
        return true;
    }

    /* The same where some parts are loaded, of which it is word `w`: rank by rank, and entries are
     * emptied. */
    SYMWIN_DEVICE bool entry_of_some(const struct sw_table_args &args, sw_call &call, uint64_t at,
                                     uint64_t w, uint64_t (&own)[1][wire::words])
    {
        sw_any_sums<1> sums = {};

        input(args, own);
        SYMWIN_NO_UNROLL
        for (int32_t p = 0; p < args.call.nranks; p++) {
            const uint64_t slot = at + (uint64_t)(uint32_t)p * 2 * args.call.slot_bytes;
            const sw_table_part part = sw_table_out(args, p);
            uint64_t word[1][wire::words] = {{own[0][0]}};
            sw_wait wait = {0, 0, 0};
            typename wire::entry entry;

            if (sw_is_taken<large>(args, call, p, part)) {
                const uint64_t from = symwin_peer_address(call.peers, p,
                                                          sw_place_of(args, call, p));

                word[0][0] = sw_any_scaled(args.call,
                                           sw_word_load<1>(sw_message_at(from, part.bytes), w),
                                           sw_place_says(args, call, p, SW_PLACE_SCALAR));
            } else if (p != args.call.rank) {
                while (entry = wire::load(slot), !wire::is_there(entry))
                    if (!sw_wait_on(args.call, call, wait, p))
                        return false;
                wire::decode(entry, word[0]);
                wire::store(slot, wire::empty());
            }
            sw_any_add(args.call, p == 0, word, sums);
        }
        sw_any_result(args.call, sums, own);
        return true;
    }

    SYMWIN_DEVICE void round(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                             uint32_t c, const uint64_t (&word)[wire::words], uint32_t &most)
    {
        const sw_own_part own = own_of(args);
        const sw_part from = sw_part_of<wire>(own.from, own.rounds, c);
        const sw_part to = sw_part_of<wire>(own.to, own.rounds, c);
        const uint64_t pitch = 2 * args.call.slot_bytes;
        const uint64_t slots = call.state + sw_slot_place<0>(args.call, call.round + c, 0, 0);
        const sw_table_part out = sw_table_out(args, args.call.rank);
        const sw_sources sources = sw_sources_of<large>(args, call, own, out);

        if (large != SW_LARGE_NONE && !sources.some_pushed) {
            if (c == 0)
                sw_with_type(args.call, [&](auto r) {
                    sw_sum_part<decltype(r)>(args, call, role, own, sources.alike);
                });
            return;
        }
        most = own.rounds.count > most ? own.rounds.count : most;
        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; c < own.rounds.count && i < own.rounds.extent;
             i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;
            uint64_t sum[1][wire::words] = {{word[0]}};

            if (large != SW_LARGE_NONE || c > 0 || i != role.index)
                sw_entry_load<sw_byte, wire>(from, i, sum[0]);
            if (large != SW_LARGE_NONE && sources.some_loaded) {
                if (!entry_of_some(args, call, at, (uint64_t)c * own.rounds.extent + i, sum))
                    return;
                sw_entry_store<sw_byte, wire>(to, i, sum[0]);
                continue;
            }
            if (!entry(args, call, at, sum))
                return;
            sw_entry_store<sw_byte, wire>(to, i, sum[0]);
            SYMWIN_NO_UNROLL
            for (int32_t p = 0; p < args.call.nranks; p++)
                if (p != args.call.rank)
                    wire::store(at + (uint32_t)p * pitch, wire::empty());
        }
    }
};

/* Of N ranks, in a short call. */
template <int N>
struct sw_reduce_v_short {
    typedef sw_wire_flags wire;
    static constexpr sw_large large = SW_LARGE_NONE;

    template <int n>
    SYMWIN_DEVICE void input(const struct sw_table_args &args, uint64_t (&word)[n][1])
    {
        sw_any_scale<n>(args.call, word);
    }

    SYMWIN_DEVICE void receive(const struct sw_table_args &args, sw_call &call, const sw_role &role,
                               const sw_short_parts<N> &in, const sw_short_parts<N> &, uint64_t own)
    {
        const uint64_t slots = call.state + sw_slot_place<N>(args.call, call.round, 0, 0);

        SYMWIN_NO_UNROLL
        for (uint32_t i = role.index; i < in.entries[0]; i += role.workers) {
            const uint64_t at = slots + (uint64_t)i * wire::bytes;
            uint64_t word[N][1], sum[1][1] = {{own}};
            sw_any_sums<1> sums = {};
            wire::entry entry[N];

            if (i != role.index)
                sum[0][0] = sw_element_load<8, SW_OWN>(in.address[0] + (uint64_t)i * 8);
            input(args, sum);
            if (!sw_entries_await<N, wire>(args.call, call, at, 0, entry))
                return;
            SYMWIN_UNROLL
            for (int p = 0; p < N; p++) {
                wire::decode(entry[p], word[p]);
                word[p][0] = p == args.call.rank ? sum[0][0] : word[p][0];
            }
            sw_any_add_ranks(args.call, true, N, word, sums);
            sw_any_result(args.call, sums, sum);
            sw_element_store<8, SW_OWN>(args.call.out + (uint64_t)i * 8, sum[0][0]);
            sw_entries_empty<N, wire>(args.call, at);
        }
    }
};

template <int N, sw_kernel_shape shape>
SYMWIN_DEVICE void sw_reduce_v_run(const struct sw_table_args &args)
{
    if constexpr (shape == SW_SHAPE_short)
        sw_table_run_short<N, sw_reduce_v_short<N>>(args);
    else if constexpr (shape == SW_SHAPE_read)
        sw_table_run_read<N, sw_reduce_v_short<N>, sw_reduce_v<SW_LARGE_LOADED>>(args);
    else
        sw_table_run<sw_reduce_v<shape == SW_SHAPE_long ? SW_LARGE_LOADED : SW_LARGE_NONE>>(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_reduce_v_run<SW_RANKS_##ranks, SW_SHAPE_##shape>(args);                                 \
    }
SW_KERNEL_LIST_REDUCE_V(SW_DEFINE)
#undef SW_DEFINE
