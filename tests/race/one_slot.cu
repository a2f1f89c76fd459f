/* A push as that of examples/05_your_own_allreduce, but with one slot for each rank in place of two in turn: a rank that is
 * through with a call stores into the slot of a peer that is still reading it. The data and its flag are one word, so
 * ThreadSanitizer has nothing to say.
 */
#include "symwin_kernel.cuh"

#ifdef MENDED
#define TURN(epoch) ((epoch) % 2)
#else
#define TURN(epoch) 0
#endif

SYMWIN_KERNEL_ABOUT(one_slot, "types=f32 ops=sum bytes=16K ranks=8 slots=512K")

extern "C" __global__ void one_slot(const struct symwin_kernel_args args)
{
    const symwin_peers &peers = args.peers;
    const uint64_t at = symwin_own_address(peers, args.scratch), epoch = symwin_epoch_begin(at);
    const uint64_t slot = 32 << 10, slots = args.slots + TURN(epoch) * 8 * slot;

    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count())
        for (int32_t p = 0; p < peers.nranks; p++)
            symwin_store_relaxed_u64(
                symwin_peer_address(peers, p, slots + (uint64_t)peers.rank * slot + 8 * i),
                epoch << 32 | symwin_load_u32(args.in + 4 * i));
    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count()) {
        float sum = 0;

        for (int32_t p = 0; p < peers.nranks; p++) {
            const uint64_t from = symwin_own_address(peers, slots + (uint64_t)p * slot + 8 * i);
            symwin_waiting waiting = {0, 0};
            uint64_t packet;

            while ((packet = symwin_load_relaxed_u64(from)) >> 32 != (uint32_t)epoch)
                if (!symwin_keep_waiting(&waiting, args.limit))
                    return symwin_give_up(args);
            sum += symwin_f32_of((uint32_t)packet);
        }
        symwin_store_f32(args.out + 4 * i, sum);
    }
    symwin_epoch_end(at);
}
