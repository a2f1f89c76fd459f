/* Every rank reads all inputs and writes its own output. Without a barrier at the end, a rank that
 * has finished goes on: later work in its stream overwrites input that a peer still reads.
 */
#include "symwin/kernel.cuh"

SYMWIN_KERNEL_ABOUT(no_end_barrier, "types=f32 ops=sum windows out-of-place")

extern "C" __global__ void no_end_barrier(const struct symwin_kernel_args args)
{
    const symwin_peers &peers = args.peers;

    if (!symwin_barrier_block(symwin_team_all(peers), args.scratch, args.limit))
        return symwin_give_up(args);
    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count()) {
        float sum = 0;

        for (int32_t p = 0; p < peers.nranks; p++)
            sum += symwin_load_f32(symwin_peer_address(peers, p, args.in_offset + 4 * i));
        symwin_store_f32(args.out + 4 * i, sum);
    }
#ifdef MENDED
    if (!symwin_barrier_block(symwin_team_all(peers), args.scratch, args.limit))
        symwin_give_up(args);
#endif
}
