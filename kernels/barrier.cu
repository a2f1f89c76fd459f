/* Barrier: a call without data, which ends when all ranks have come to it.
 *
 *   grid       any; one block is enough
 *
 * Headers are released and acquired. So what a rank's stream did before, stores to other ranks'
 * memory included, is visible to what follows in every rank's stream.
 */
#include "call.cuh"

SYMWIN_DEVICE void sw_barrier(const struct sw_kernel_args &args)
{
    sw_call call = sw_call_begin(args);

    sw_start_barrier(args, call, SW_HEADER_RELEASE);
    if (call.failed)
        sw_call_report(args, call.epoch);
    if (sw_is_last_block(call) && threadIdx.x == 0) {
        sw_finish_refresh(args, call);
        sw_call_count(call, 0);
    }
    sw_call_done(args);
}

#define SW_DEFINE(file, family, algo, type, op, ranks, shape)                                      \
    SW_KERNEL(family, algo, type, op, ranks, shape)                                                \
    {                                                                                              \
        sw_barrier(args);                                                                          \
    }
SW_KERNEL_LIST_BARRIER(SW_DEFINE)
#undef SW_DEFINE
