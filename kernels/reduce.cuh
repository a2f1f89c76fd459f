/* Reductions of the kernels beyond symwin/reduce.cuh: operations that are launch arguments. */
#ifndef SYMWIN_KERNELS_REDUCE_CUH
#define SYMWIN_KERNELS_REDUCE_CUH

#include "../symwin/reduce.cuh"
#include "kernel_args.h"

/* Signed integers use the kernels of the unsigned type. `as`: the signed type of an unsigned one;
 * that of a float is itself. */
template <typename A>
struct sw_signed {
    typedef A as;
};
template <>
struct sw_signed<uint8_t> {
    typedef int8_t as;
};
template <>
struct sw_signed<uint32_t> {
    typedef int32_t as;
};
template <>
struct sw_signed<uint64_t> {
    typedef int64_t as;
};

/* `One` of accumulators as signed integers. */
template <class One>
struct sw_op_signed : sw_op_of<sw_op_signed<One>> {
    template <typename A>
    SYMWIN_DEVICE A combine(A a, A b)
    {
        typedef typename sw_signed<A>::as S;
        return (A)One::combine((S)a, (S)b);
    }
};

/* The operations that a launch may name: any but the sum; of integers that one too, as
 * SW_KERNEL_PLAIN_SUM. */
struct symwin_op_other {
};

/* The sum of products (scalar.cuh). */
struct sw_op_premul : symwin_op_sum {
};
template <class O>
struct sw_is_premul {
    static constexpr bool value = false;
};
template <>
struct sw_is_premul<sw_op_premul> {
    static constexpr bool value = true;
};

/* A product that is rounded before it is added: the compiler may not make one operation of both. */
SYMWIN_DEVICE float sw_product(float a, float b)
{
#if SYMWIN_EMULATED
    return a * b;
#else
    return __fmul_rn(a, b);
#endif
}

SYMWIN_DEVICE double sw_product(double a, double b)
{
#if SYMWIN_EMULATED
    return a * b;
#else
    return __dmul_rn(a, b);
#endif
}

template <typename A>
SYMWIN_DEVICE A sw_product(A a, A b)
{
    return symwin_op_prod::combine(a, b);
}

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

template <typename T>
struct sw_reduce<T, symwin_op_other> : symwin_accumulator<T, symwin_op_other> {
    typedef symwin_accumulator<T, symwin_op_other> base;
    typedef typename T::acc A;
    typedef typename sw_signed<A>::as S;
    static constexpr bool chosen = true;
    static constexpr bool integers = (A)0.5f == (A)0;

    /* Calls work(o) with the operation `o` that the launch names, found by bits of its value.
     * Loops that do so once, not for each word, are quicker. */
    template <class F>
    SYMWIN_DEVICE void with_op(uint32_t op, F work)
    {
        if ((op & SW_KERNEL_MIN) != 0) {
            const bool max = (op & SW_KERNEL_PROD) != 0;

            if (integers && (op & SW_KERNEL_SIGNED) != 0)
                max ? work(sw_op_signed<symwin_op_max>()) : work(sw_op_signed<symwin_op_min>());
            else
                max ? work(symwin_op_max()) : work(symwin_op_min());
        } else if ((op & SW_KERNEL_AVERAGE) != 0) {
            if (!integers || (op & SW_KERNEL_PROD) != 0)
                work(sw_op_premul());
            else
                work(symwin_op_sum());
        } else {
            work(symwin_op_prod());
        }
    }

    SYMWIN_MEMBER void first(uint64_t word, uint32_t)
    {
        base::first(word);
    }

    SYMWIN_MEMBER void add(uint64_t word, uint32_t op)
    {
        with_op(op, [&](auto o) { add(word, op, o); });
    }

    /* `O` is the operation that `op` names. */
    template <class O>
    SYMWIN_MEMBER void add(uint64_t word, uint32_t, O)
    {
        A operand[T::per];

        T::unpack(word, operand);
        O::template combine_all<T::per>(base::sum, operand, 0);
    }

    /* A word whose elements are multiplied by the scalar, an element in the low bits. */
    SYMWIN_DEVICE uint64_t scaled(uint64_t word, uint64_t scalar)
    {
        A product[T::per], factor[T::per];

        T::unpack(word, product);
        T::unpack(scalar, factor);
        SYMWIN_UNROLL
        for (int i = 0; i < T::per; i++)
            product[i] = sw_product(product[i], factor[0]);
        return T::pack(product);
    }

    SYMWIN_MEMBER uint64_t result(uint32_t op, int32_t nranks)
    {
        if constexpr (integers) {
            SYMWIN_UNROLL
            for (int i = 0; i < T::per; i++) {
                if (op == SW_KERNEL_AVERAGE)
                    base::sum[i] = sw_divide(base::sum[i], nranks);
                else if (op == (SW_KERNEL_AVERAGE | SW_KERNEL_SIGNED))
                    base::sum[i] = (A)sw_divide((S)base::sum[i], nranks);
            }
        }
        return base::result(nranks, false);
    }
};

#endif
