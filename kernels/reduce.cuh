/* Reductions of the kernels beyond symwin/reduce.cuh: operations that are launch arguments. */
#ifndef SYMWIN_KERNELS_REDUCE_CUH
#define SYMWIN_KERNELS_REDUCE_CUH

#include "../symwin/reduce.cuh"
#include "kernel_args.h"

/* Signed integers use the kernels of the unsigned type. `signs`: the sign bits of eight bytes, zero
 * for floats. */
template <typename A>
struct sw_signed {
    static constexpr uint64_t signs = 0;
};
template <>
struct sw_signed<uint8_t> {
    typedef int8_t type;
    static constexpr uint64_t signs = 0x8080808080808080u;
};
template <>
struct sw_signed<uint32_t> {
    typedef int32_t type;
    static constexpr uint64_t signs = 0x8000000080000000u;
};
template <>
struct sw_signed<uint64_t> {
    typedef int64_t type;
    static constexpr uint64_t signs = 0x8000000000000000u;
};

/* The operations that a launch may name: any but the sum. An average is one of signed integers. */
struct symwin_op_other {
};

/* Eight bytes of a message. `op` is that of the launch: an average is calculated from a sum. */
template <typename T, typename O>
struct sw_reduce : symwin_accumulator<T, O> {
    typedef symwin_accumulator<T, O> base;
    typedef O operation;
    static constexpr bool chosen = false; /* by the launch */

    SYMWIN_MEMBER void first(uint64_t word, uint32_t)
    {
        base::first(word);
    }

    SYMWIN_MEMBER void add(uint64_t word, uint32_t, O = O())
    {
        base::add(word);
    }

    SYMWIN_MEMBER uint64_t result(uint32_t op, int32_t nranks)
    {
        return base::result(nranks, O::averages && op != SW_KERNEL_SUM);
    }
};

/* The order of signed integers is that of unsigned ones with the sign bit changed. Sums and
 * products have the same bits. */
template <typename T>
struct sw_reduce<T, symwin_op_other> : symwin_accumulator<T, symwin_op_other> {
    typedef symwin_accumulator<T, symwin_op_other> base;
    typedef typename T::acc A;
    static constexpr bool chosen = true;
    static constexpr uint64_t signs = sw_signed<A>::signs;

    /* Calls work(o) with the operation `o` that the launch names, found by bits of its value.
     * Loops that do so once, not for each word, are quicker. */
    template <class F>
    SYMWIN_DEVICE void with_op(uint32_t op, F work)
    {
        if ((op & SW_KERNEL_MIN) != 0) {
            if ((op & SW_KERNEL_PROD) != 0)
                work(symwin_op_max());
            else
                work(symwin_op_min());
        } else if (signs != 0 && (op & SW_KERNEL_AVERAGE) != 0) {
            work(symwin_op_sum());
        } else {
            work(symwin_op_prod());
        }
    }

    /* Changes the sign bits of a word if the order is that of signed integers, and changes them
     * back. */
    SYMWIN_DEVICE uint64_t flip(uint64_t word, uint32_t op)
    {
        return word ^ ((op & SW_KERNEL_SIGNED) != 0 ? signs : 0);
    }

    SYMWIN_MEMBER void first(uint64_t word, uint32_t op)
    {
        base::first(flip(word, op));
    }

    SYMWIN_MEMBER void add(uint64_t word, uint32_t op)
    {
        with_op(op, [&](auto o) { add(word, op, o); });
    }

    /* `O` is the operation that `op` names. */
    template <class O>
    SYMWIN_MEMBER void add(uint64_t word, uint32_t op, O)
    {
        A operand[T::per];

        T::unpack(flip(word, op), operand);
        O::template combine_all<T::per>(base::sum, operand, 0);
    }

    SYMWIN_MEMBER uint64_t result(uint32_t op, int32_t nranks)
    {
        if constexpr (signs != 0) {
            SYMWIN_UNROLL
            for (int i = 0; i < T::per && op == SW_KERNEL_AVERAGE; i++)
                base::sum[i] = (A)sw_divide((typename sw_signed<A>::type)base::sum[i], nranks);
        }
        return flip(base::result(nranks, false), op);
    }
};

#endif
