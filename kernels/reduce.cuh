/* Reductions of the kernels beyond symwin/reduce.cuh: operations that are launch arguments. */
#ifndef SYMWIN_KERNELS_REDUCE_CUH
#define SYMWIN_KERNELS_REDUCE_CUH

#include "../symwin/reduce.cuh"
#include "kernel_args.h"

/* The operation that the launch names: any but the sum. */
struct symwin_op_other {
    enum { averages = 1 };
    template <int n, typename A>
    SYMWIN_DEVICE void combine_all(A *a, const A *b, uint32_t op)
    {
        if (op == SW_KERNEL_MIN)
            symwin_op_min::combine_all<n>(a, b, op);
        else if (op == SW_KERNEL_MAX)
            symwin_op_max::combine_all<n>(a, b, op);
        else if (op == SW_KERNEL_AVERAGE)
            symwin_op_sum::combine_all<n>(a, b, op);
        else
            symwin_op_prod::combine_all<n>(a, b, op);
    }
};

/* Eight bytes of a message, for any operation of the kernel; an average is calculated from a
 * sum. */
template <typename T, typename O>
struct sw_reduce : symwin_accumulator<T, O> {
    SYMWIN_MEMBER uint64_t result(uint32_t op, int32_t nranks)
    {
        return symwin_accumulator<T, O>::result(nranks, O::averages && op == SW_KERNEL_AVERAGE);
    }
};

#endif
