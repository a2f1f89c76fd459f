/* The kernels of symwin-perf, for any grid: fill buffers with test data, count wrong elements, copy
 * to one peer or to all, wait, do nothing. Compiled by nvcc, and by the host compiler for the
 * emulated driver, like the library's kernels.
 */
#include "kernel_args.h"
#include "kernels/words.cuh"
#include "symwin/device.cuh"

/* Returns eight bytes of consecutive elements, from element `first` on. */
template <int size>
SYMWIN_DEVICE uint64_t perf_word(const struct perf_fill_args &args, uint64_t first)
{
    uint64_t word = 0;

    SYMWIN_NO_UNROLL
    for (uint32_t k = 0; k < 8 / size && first + k < args.count; k++)
        word |= (perf_element(&args.data, args.rank, first + k) ^ args.poison) << (k * size * 8);
    return word;
}

template <int size>
SYMWIN_DEVICE void perf_fill(const struct perf_fill_args &args)
{
    const sw_message message = sw_message_at(args.address, args.count * size);

    SYMWIN_NO_UNROLL
    for (uint64_t i = symwin_thread_index(); i * 8 < message.bytes; i += symwin_thread_count())
        sw_word_store<size>(message, i, perf_word<size>(args, i * (8 / size)));
}

/* The thread that claims the report describes its wrong element. */
SYMWIN_DEVICE void perf_describe(const struct perf_fill_args &args, uint64_t index, uint64_t got,
                                 uint64_t want)
{
    if (symwin_atomic_cas_u32(args.report + offsetof(struct perf_report, claimed), 0, 1) != 0)
        return;
    symwin_store_u64(args.report + offsetof(struct perf_report, index), index);
    symwin_store_u64(args.report + offsetof(struct perf_report, got), got);
    symwin_store_u64(args.report + offsetof(struct perf_report, want), want);
}

/* The thread whose addition overflows the lower half carries into the upper half. */
SYMWIN_DEVICE void perf_count(const struct perf_fill_args &args, uint32_t wrong)
{
    const uint64_t sum = args.report + offsetof(struct perf_report, wrong);

    if (symwin_atomic_add_u32(sum, wrong) > UINT32_MAX - wrong)
        symwin_atomic_add_u32(sum + 4, 1);
}

template <int size>
SYMWIN_DEVICE void perf_compare(const struct perf_fill_args &args)
{
    const sw_message message = sw_message_at(args.address, args.count * size);
    const uint64_t mask = size == 8 ? ~UINT64_C(0) : (UINT64_C(1) << (size * 8 % 64)) - 1;
    uint32_t wrong = 0;

    SYMWIN_NO_UNROLL
    for (uint64_t i = symwin_thread_index(); i * 8 < message.bytes; i += symwin_thread_count()) {
        const uint64_t got = sw_word_load<size>(message, i);
        const uint64_t want = perf_word<size>(args, i * (8 / size));

        if (got == want)
            continue;
        for (uint32_t k = 0; k < 8 / size; k++) {
            const uint64_t g = got >> (k * size * 8) & mask, w = want >> (k * size * 8) & mask;

            if (g == w)
                continue;
            if (wrong++ == 0)
                perf_describe(args, i * (8 / size) + k, g, w);
        }
    }
    if (wrong > 0)
        perf_count(args, wrong);
}

SYMWIN_KERNEL(symwin_perf_fill, struct perf_fill_args, args, PERF_THREADS)
{
    if (args.element_bytes == 1)
        perf_fill<1>(args);
    else if (args.element_bytes == 2)
        perf_fill<2>(args);
    else if (args.element_bytes == 4)
        perf_fill<4>(args);
    else
        perf_fill<8>(args);
}

SYMWIN_KERNEL(symwin_perf_compare, struct perf_fill_args, args, PERF_THREADS)
{
    if (args.element_bytes == 1)
        perf_compare<1>(args);
    else if (args.element_bytes == 2)
        perf_compare<2>(args);
    else if (args.element_bytes == 4)
        perf_compare<4>(args);
    else
        perf_compare<8>(args);
}

SYMWIN_KERNEL(symwin_perf_parts, struct perf_parts_args, args, PERF_THREADS)
{
    const uint64_t n = (uint32_t)args.data.nranks, threads = symwin_thread_count();

    for (uint64_t i = symwin_thread_index(); i < n; i += threads) {
        const int32_t p = (int32_t)i;

        symwin_store_u64(args.address + 8 * i, perf_part(&args.data, args.from, p));
        symwin_store_u64(args.address + 8 * (n + i), perf_part_in(&args.data, args.from, p));
        symwin_store_u64(args.address + 8 * (2 * n + i), perf_part(&args.data, p, args.to));
        symwin_store_u64(args.address + 8 * (3 * n + i), perf_part_out(&args.data, p, args.to));
    }
}

SYMWIN_KERNEL(symwin_perf_delay, struct perf_delay_args, args, PERF_THREADS)
{
    const uint64_t begun = symwin_clock_ns();

    while (symwin_clock_ns() - begun < args.ns)
        symwin_pause();
}

SYMWIN_KERNEL(symwin_perf_nothing, struct perf_nothing_args, args, PERF_THREADS)
{
    (void)args;
    symwin_launch_wait();
    symwin_launch_next();
}

SYMWIN_KERNEL(symwin_perf_nothing_parts, struct perf_nothing_parts_args, args, PERF_THREADS)
{
    (void)args;
    symwin_launch_wait();
    symwin_launch_next();
}

/* Each thread has four loads in flight: enough to fill a link with stores. */
SYMWIN_KERNEL(symwin_perf_copy, struct perf_copy_args, args, PERF_THREADS)
{
    const uint64_t vectors = args.bytes / 16, threads = symwin_thread_count();
    uint64_t i = symwin_thread_index();

    SYMWIN_NO_UNROLL
    for (; i + 3 * threads < vectors; i += 4 * threads) {
        symwin_v16 v[4];

        SYMWIN_UNROLL
        for (int k = 0; k < 4; k++)
            v[k] = symwin_load_v16(args.from + (i + (uint64_t)k * threads) * 16);
        SYMWIN_UNROLL
        for (int k = 0; k < 4; k++)
            symwin_store_v16(args.to + (i + (uint64_t)k * threads) * 16, v[k]);
    }
    SYMWIN_NO_UNROLL
    for (; i < vectors; i += threads)
        symwin_store_v16(args.to + i * 16, symwin_load_v16(args.from + i * 16));
}

/* Each rank starts with the next rank, so that not all ranks store to the same peer at once. The
 * library's kernels do the same. */
SYMWIN_KERNEL(symwin_perf_spread, struct perf_spread_args, args, PERF_THREADS)
{
    const uint64_t vectors = args.bytes / 16, threads = symwin_thread_count();

    SYMWIN_NO_UNROLL
    for (uint64_t i = symwin_thread_index(); i < vectors; i += 4 * threads) {
        symwin_v16 v[4] = {};

        SYMWIN_UNROLL
        for (int k = 0; k < 4; k++)
            if (i + (uint64_t)k * threads < vectors)
                v[k] = symwin_load_v16(args.from + (i + (uint64_t)k * threads) * 16);
        SYMWIN_NO_UNROLL
        for (int32_t step = 1; step < args.nranks; step++) {
            const int32_t p = (args.rank + step) % args.nranks;
            const uint32_t place = (uint32_t)(args.rank - (args.rank > p));
            const uint64_t to = args.to + (uint32_t)p * args.stride + place * args.bytes;

            SYMWIN_UNROLL
            for (int k = 0; k < 4; k++)
                if (i + (uint64_t)k * threads < vectors)
                    symwin_store_v16(to + (i + (uint64_t)k * threads) * 16, v[k]);
        }
    }
}
