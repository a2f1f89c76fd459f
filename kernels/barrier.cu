/* Barrier: a call without data, which ends when all ranks have come to it.
 *
 *   grid       any; one block is enough
 *
 * Headers are released and acquired. So what a rank's stream did before, stores to other ranks'
 * memory included, is visible to what follows in every rank's stream. The fence is under way
 * together with the loads of the epoch. As in push.cuh, the call is counted before the wait.
 */
#include "call.cuh"

SYMWIN_DEVICE void sw_barrier(const struct sw_kernel_args &args)
{
    const int32_t thread = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;
    sw_call call;

    sw_call_order();
    call = sw_call_read(args);
    if (blockIdx.x == 0 && thread < args.nranks)
        symwin_fence();
    call.failed = symwin_block_any(call.failed); /* see sw_start_barrier() */
    if (blockIdx.x == 0 && !call.failed)
        sw_headers_post(args, call, SW_HEADER_FENCED, thread, threads);
    if (sw_is_last_block(call) && thread == 0) {
        sw_finish_refresh(args, call);
        sw_call_count(call, 0);
    }
    sw_headers_check(args, call, SW_HEADER_FENCED, thread, threads);
    if (call.failed)
        sw_call_report(args, call.epoch);
    sw_call_done(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_barrier(args);                                                                          \
    }
SW_KERNEL_LIST_BARRIER(SW_DEFINE)
#undef SW_DEFINE
