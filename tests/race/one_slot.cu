/* The push of examples/05_your_own_allreduce, but with one slot for each rank instead of two in
 * turn. A rank that has finished a call stores into the slot of a peer that still reads it. The
 * data and its flag are one word, so ThreadSanitizer does not report it.
 */
#include "push.cuh"

#ifdef MENDED
#define TURN(epoch) ((epoch) % 2)
#else
#define TURN(epoch) 0
#endif

SYMWIN_KERNEL_ABOUT(one_slot, "types=f32 ops=sum bytes=16K ranks=8 slots=512K")

extern "C" __global__ void one_slot(const struct symwin_kernel_args args)
{
    const uint64_t at = symwin_own_address(args.peers, args.scratch);
    const uint64_t epoch = symwin_epoch_begin(at);

    if (push(args, epoch, TURN(epoch)))
        symwin_epoch_end(at);
}
