/* Sum of what other domains have sent to a rank (src/rails/twoshot.c): of nranks arrays of so many
 * elements in this rank's own memory, by the call's operation.
 *
 *   arrays     number r at base + r * stride, but number `rank` at `in`; any element alignment
 *   out        may be `in`
 *   bytes      of an array
 *   grid       any; nothing waits for anything
 *   result     reduced in the arrays' order and rounded once: the bits depend on nothing else
 *   types      all, and all operations, by one kernel (any.cuh): links are slower than it is
 *
 * A thread stores what it has loaded from `in` before, so that they may be the same.
 */
#include "any.cuh"

enum { SW_SUM_LOADS = 4 }; /* arrays from which a thread loads at once */

/* Units of 16 bytes, aligned in all arrays, or of 8 of any alignment; the last one of the latter
 * may be a part. From byte `begin` on. */
template <class R, bool by_vectors>
SYMWIN_DEVICE void sw_sum_arrays(const struct sw_kernel_args &args, uint64_t begin, uint64_t end)
{
    constexpr int words = by_vectors ? 2 : 1;
    const uint64_t units = (end - begin + words * 8 - 1) / (words * 8);

    SYMWIN_NO_UNROLL
    for (uint64_t i = symwin_thread_index(); i < units; i += symwin_thread_count()) {
        R sum[words] = {};
        uint64_t result[words];

        SYMWIN_NO_UNROLL
        for (int32_t first = 0; first < args.nranks; first += SW_SUM_LOADS) {
            uint64_t word[SW_SUM_LOADS][words] = {};

            SYMWIN_UNROLL
            for (int32_t j = 0; j < SW_SUM_LOADS; j++) {
                const int32_t r = first + j;
                const uint64_t from = begin + (r == args.rank
                                                   ? args.in
                                                   : args.base + (uint64_t)r * args.stride);

                if (r >= args.nranks)
                    continue;
                if constexpr (by_vectors) {
                    const symwin_v16 v = symwin_load_v16(from + i * 16);

                    word[j][0] = v.lo;
                    word[j][1] = v.hi;
                } else {
                    word[j][0] = sw_word_load<R::bytes>(sw_message_at(from, end - begin), i);
                }
            }
            sw_any_add_words(args, first == 0, args.nranks - first, word, sum);
        }
        SYMWIN_UNROLL
        for (int k = 0; k < words; k++)
            result[k] = sum[k].result(args.op, sw_has_sign(args), args.nranks);
        if constexpr (by_vectors)
            symwin_store_v16(args.out + begin + i * 16, {result[0], result[1]});
        else
            sw_word_store<R::bytes>(sw_message_at(args.out + begin, end - begin), i, result[0]);
    }
}

template <class R>
SYMWIN_DEVICE void sw_sum(const struct sw_kernel_args &args)
{
    const bool aligned = (args.in | args.out | args.base | args.stride) % 16 == 0;
    const uint64_t vectors = aligned ? args.bytes / 16 * 16 : 0;

    sw_sum_arrays<R, true>(args, 0, vectors);
    sw_sum_arrays<R, false>(args, vectors, args.bytes);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_with_type(args, [&](auto r) { sw_sum<decltype(r)>(args); });                            \
    }
SW_KERNEL_LIST_SUM(SW_DEFINE)
#undef SW_DEFINE
