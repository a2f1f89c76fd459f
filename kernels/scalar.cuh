/* The pre-multiplied sum: a rank's elements are multiplied by that rank's scalar, and the products
 * are rounded to the element type, before they are added. So the result is the sum of inputs that
 * were multiplied ahead of the call, with the same bits by every algorithm.
 *
 * Who multiplies. What is pushed is multiplied by its sender (sw_input_load() in push.cuh), and so
 * is what a rank adds of its own. What a rank loads from others' windows, or what copies have
 * brought, it multiplies itself: there each rank tells the others its scalar first, in its words of
 * SW_STATE_SCALAR.
 *
 * Only the `other` kernels do this (kernel_list.h). In all others these functions do nothing.
 */
#ifndef SYMWIN_KERNELS_SCALAR_CUH
#define SYMWIN_KERNELS_SCALAR_CUH

#include "call.cuh"
#include "reduce.cuh"
#include "words.cuh"

template <class R>
SYMWIN_DEVICE bool sw_multiplies(const struct sw_kernel_args &args)
{
    return R::chosen && (args.op & SW_KERNEL_PREMUL_SUM) == SW_KERNEL_PREMUL_SUM;
}

/* This rank's scalar, an element in the low bits. In device memory it is read by every kernel that
 * needs it, after sw_call_order(). */
template <class R>
SYMWIN_DEVICE uint64_t sw_scalar_own(const struct sw_kernel_args &args)
{
    return (args.op & SW_KERNEL_SCALAR_AT) != 0 ? sw_element_load<R::bytes, SW_OWN>(args.scalar)
                                                : args.scalar;
}

/* Tells the peers this rank's scalar. By all threads of block 0, before a release to the peers in
 * which the thread with a peer's number (modulo the block) releases to that peer. A word may be
 * written again when its reader has ended its call, which the end of that call has said. */
template <class R>
SYMWIN_DEVICE void sw_scalar_tell(const struct sw_kernel_args &args, const sw_call &call)
{
    const uint64_t place = SW_STATE_SCALAR(args.nranks, args.slot_bytes, args.rank);
    const uint64_t scalar = sw_scalar_own<R>(args);

    for (int32_t p = (int32_t)threadIdx.x; p < args.nranks && !call.failed;
         p += (int32_t)blockDim.x) {
        if (p != args.rank)
            symwin_store_relaxed_u64(sw_state_address(args, call, p, place), scalar);
    }
}

/* Rank p's scalar; a peer's after its release has been acquired. */
template <class R>
SYMWIN_DEVICE uint64_t sw_scalar_of(const struct sw_kernel_args &args, int32_t p)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};

    if (p == args.rank)
        return sw_scalar_own<R>(args);
    return symwin_load_u64(
        symwin_own_address(peers, args.state + SW_STATE_SCALAR(args.nranks, args.slot_bytes, p)));
}

/* A word of rank p's input as it is added. */
template <class R>
SYMWIN_DEVICE uint64_t sw_multiplied(const struct sw_kernel_args &args, int32_t p, uint64_t word)
{
    if constexpr (R::chosen)
        if (sw_multiplies<R>(args))
            return R::scaled(word, sw_scalar_of<R>(args, p));
    return word;
}

/* The start barrier of kernels that load from windows. */
template <class R>
SYMWIN_DEVICE void sw_start_loads(const struct sw_kernel_args &args, sw_call &call,
                                  enum sw_header_order order)
{
    const bool tells = sw_multiplies<R>(args);

    if (tells && blockIdx.x == 0)
        sw_scalar_tell<R>(args, call);
    sw_start_barrier(args, call, tells ? SW_HEADER_RELEASE : order);
}

#endif
