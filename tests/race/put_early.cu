/* The library's all-gather by stores into windows (kernels/put.cu), without its start barrier: a
 * rank stores into the output of a peer whose call has not begun.
 */
#include "library.cuh"

#ifndef MENDED
#define sw_start_barrier(args, call, order) ((void)(order))
#endif
#undef SW_KERNEL_LIST_PUT
#define SW_KERNEL_LIST_PUT(one)

#include "kernels/put.cu"

SYMWIN_KERNEL_ABOUT(put_early, "collective=allgather types=f32 windows " LIBRARY_WORDS)

extern "C" __global__ void put_early(const struct symwin_kernel_args args)
{
    struct sw_kernel_args of = library_args(args, 4);

    of.to = of.from = SW_EVERY_RANK;
    of.out_step = of.bytes;
    sw_run_put(of);
    library_end(args);
}
