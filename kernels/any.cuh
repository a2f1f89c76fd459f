/* Reductions of words whose type and operation are known to the launch only: args.what and args.op
 * say what they are. One kernel then serves all, of messages so small or so rare that it need not
 * be the quickest.
 */
#ifndef SYMWIN_KERNELS_ANY_CUH
#define SYMWIN_KERNELS_ANY_CUH

#include "scalar.cuh"

/* What reduces words of a type by any operation. */
template <typename T>
struct sw_any_reduce : sw_reduce<T, symwin_op_other> {
    typedef sw_reduce<T, symwin_op_other> other;

    /* Averages of signed integers are calculated by sw_reduce. */
    SYMWIN_DEVICE bool is_sum(uint32_t op, bool has_sign)
    {
        return op == SW_KERNEL_SUM || (op == SW_KERNEL_AVERAGE && !has_sign);
    }

    SYMWIN_MEMBER uint64_t result(uint32_t op, bool has_sign, int32_t nranks)
    {
        if (op == SW_KERNEL_AVERAGE && !has_sign)
            return other::base::result(nranks, true);
        return other::result(has_sign ? op | SW_KERNEL_SIGNED : op, nranks);
    }
};

/* The sums of n words, whatever their type: as many accumulators as there can be. */
template <int n>
struct sw_any_sums {
    uint64_t bits[n][4];
};

/* Calls work(r), where r is a sw_any_reduce of the call's type; signed integers have the unsigned
 * type. */
template <class F>
SYMWIN_DEVICE void sw_with_type(const struct sw_kernel_args &args, F work)
{
    switch (SW_WHAT_TYPE(args.what)) {
    case SW_KERNEL_F64:
        return work(sw_any_reduce<symwin_type_f64>());
    case SW_KERNEL_F32:
        return work(sw_any_reduce<symwin_type_f32>());
    case SW_KERNEL_F16:
        return work(sw_any_reduce<symwin_type_f16>());
    case SW_KERNEL_BF16:
        return work(sw_any_reduce<symwin_type_bf16>());
    case SW_KERNEL_F8E4M3:
        return work(sw_any_reduce<symwin_type_e4m3>());
    case SW_KERNEL_F8E5M2:
        return work(sw_any_reduce<symwin_type_e5m2>());
    case SW_KERNEL_I8:
    case SW_KERNEL_U8:
        return work(sw_any_reduce<symwin_type_u8>());
    case SW_KERNEL_I32:
    case SW_KERNEL_U32:
        return work(sw_any_reduce<symwin_type_u32>());
    default:
        return work(sw_any_reduce<symwin_type_u64>());
    }
}

SYMWIN_DEVICE bool sw_has_sign(const struct sw_kernel_args &args)
{
    const uint32_t type = SW_WHAT_TYPE(args.what);

    return type == SW_KERNEL_I8 || type == SW_KERNEL_I32 || type == SW_KERNEL_I64;
}

/* The operation, as words of the type are added. */
SYMWIN_DEVICE uint32_t sw_any_op(const struct sw_kernel_args &args)
{
    return args.op | (sw_has_sign(args) ? (uint32_t)SW_KERNEL_SIGNED : 0);
}

/* Multiplies words of this rank's input by its scalar, if the operation does. */
template <int n>
SYMWIN_DEVICE void sw_any_scale(const struct sw_kernel_args &args, uint64_t (&word)[n][1])
{
    if ((args.op & SW_KERNEL_PREMUL_SUM) == SW_KERNEL_PREMUL_SUM)
        sw_with_type(args, [&](auto r) {
            const uint64_t scalar = sw_scalar_own<decltype(r)>(args);

            SYMWIN_UNROLL
            for (int j = 0; j < n; j++)
                word[j][0] = decltype(r)::scaled(word[j][0], scalar);
        });
}

/* This rank's scalar, an element in the low bits; 0: it has none. */
SYMWIN_DEVICE uint64_t sw_any_scalar(const struct sw_kernel_args &args)
{
    uint64_t scalar = 0;

    sw_with_type(args, [&](auto r) {
        if (sw_multiplies<decltype(r)>(args))
            scalar = sw_scalar_own<decltype(r)>(args);
    });
    return scalar;
}

/* Multiplies a word of another rank's input by that rank's scalar, if the operation does. */
SYMWIN_DEVICE uint64_t sw_any_scaled(const struct sw_kernel_args &args, uint64_t word,
                                     uint64_t scalar)
{
    sw_with_type(args, [&](auto r) {
        if (sw_multiplies<decltype(r)>(args))
            word = decltype(r)::scaled(word, scalar);
    });
    return word;
}

/* Adds a word to each sum; `first`: they are the first. */
template <int n>
SYMWIN_DEVICE void sw_any_add(const struct sw_kernel_args &args, bool first,
                              const uint64_t (&word)[n][1], sw_any_sums<n> &sums)
{
    const bool has_sign = sw_has_sign(args);
    const uint32_t op = sw_any_op(args);

    sw_with_type(args, [&](auto r) {
        typedef decltype(r) R;
        R sum[n];
        auto add = [&](auto o) {
            SYMWIN_UNROLL
            for (int j = 0; j < n; j++)
                sum[j].add(word[j][0], op, o);
        };

        SYMWIN_UNROLL
        for (int j = 0; j < n; j++) {
            memcpy(&sum[j], sums.bits[j], sizeof sum[j]);
            if (first)
                sum[j].first(word[j][0], op);
        }
        if (!first && R::is_sum(args.op, has_sign))
            add(symwin_op_sum());
        else if (!first)
            R::with_op(op, add);
        SYMWIN_UNROLL
        for (int j = 0; j < n; j++)
            memcpy(sums.bits[j], &sum[j], sizeof sum[j]);
    });
}

/* Adds m words of each of n ranks, of which `there` exist, to m sums, in the ranks' order; `first`:
 * the first of them begins them. */
template <int n, int m, class R>
SYMWIN_DEVICE void sw_any_add_words(const struct sw_kernel_args &args, bool first, int32_t there,
                                    const uint64_t (&word)[n][m], R (&sum)[m])
{
    const uint32_t op = sw_any_op(args);
    auto add = [&](auto o) {
        SYMWIN_UNROLL
        for (int k = 0; k < m; k++) {
            SYMWIN_UNROLL
            for (int32_t j = 0; j < n; j++)
                if (j < there && (j > 0 || !first))
                    sum[k].add(word[j][k], op, o);
        }
    };

    SYMWIN_UNROLL
    for (int k = 0; k < m; k++)
        if (first)
            sum[k].first(word[0][k], op);
    if (R::is_sum(args.op, sw_has_sign(args)))
        add(symwin_op_sum());
    else
        R::with_op(op, add);
}

/* The same of one word each, whatever its type. */
template <int n>
SYMWIN_DEVICE void sw_any_add_ranks(const struct sw_kernel_args &args, bool first, int32_t there,
                                    const uint64_t (&word)[n][1], sw_any_sums<1> &sums)
{
    sw_with_type(args, [&](auto r) {
        decltype(r) sum[1];

        memcpy(&sum[0], sums.bits[0], sizeof sum[0]);
        sw_any_add_words<n, 1>(args, first, there, word, sum);
        memcpy(sums.bits[0], &sum[0], sizeof sum[0]);
    });
}

template <int n>
SYMWIN_DEVICE void sw_any_result(const struct sw_kernel_args &args, const sw_any_sums<n> &sums,
                                 uint64_t (&word)[n][1])
{
    const bool has_sign = sw_has_sign(args);

    sw_with_type(args, [&](auto r) {
        SYMWIN_UNROLL
        for (int j = 0; j < n; j++) {
            memcpy(&r, sums.bits[j], sizeof r);
            word[j][0] = r.result(args.op, has_sign, args.nranks);
        }
    });
}

#endif
