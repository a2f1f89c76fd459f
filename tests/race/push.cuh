/* The push of examples/05_your_own_allreduce, for kernels with a bug around it. `epoch` is the
 * value of the call's flags; the call uses slot `turn` of two. Returns false if it gave up.
 */
#include "symwin/kernel.cuh"

SYMWIN_DEVICE bool push(const struct symwin_kernel_args &args, uint64_t epoch, uint64_t turn)
{
    const symwin_peers &peers = args.peers;
    const uint64_t slot = 32 << 10, slots = args.slots + turn * 8 * slot;

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
                    return symwin_give_up(args), false;
            sum += symwin_f32_of((uint32_t)packet);
        }
        symwin_store_f32(args.out + 4 * i, sum);
    }
    return true;
}
