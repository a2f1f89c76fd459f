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
    __shared__ uint32_t before;

    sw_start_barrier(args, call);
    if (call.failed)
        sw_call_report(args, call.epoch);
    if (threadIdx.x == 0)
        before = symwin_atomic_add_u32(call.state + offsetof(struct sw_comm_state, arrived), 1);
    __syncthreads();
    if (before == gridDim.x - 1 && threadIdx.x == 0) {
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
