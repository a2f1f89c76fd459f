/* Each block stores its part of the input into slots of all peers, then a flag for the block. A
 * relaxed store of the flag orders nothing: it can become visible before the data. (On x86 it never
 * does, so there only ThreadSanitizer finds it.)
 */
#include "symwin/kernel.cuh"

#ifdef MENDED
#define STORE_FLAG symwin_store_release_u64
#else
#define STORE_FLAG symwin_store_relaxed_u64
#endif

SYMWIN_KERNEL_ABOUT(relaxed_flag, "types=f32 ops=sum bytes=16K ranks=8 blocks=8 slots=256K")

/* The slot and the flag of this block for what source `p` sends. Slots alternate. The flags are in
 * scratch, not in the slots. */
SYMWIN_DEVICE uint64_t slot_of(const struct symwin_kernel_args &args, uint64_t epoch, int32_t p)
{
    return args.slots + (epoch % 2 * 8 + (uint64_t)p) * (16 << 10);
}

SYMWIN_DEVICE uint64_t flag_of(const struct symwin_kernel_args &args, int32_t p)
{
    return args.scratch + 64 + 8 * (uint64_t)(p * 8 + (int32_t)blockIdx.x);
}

extern "C" __global__ void relaxed_flag(const struct symwin_kernel_args args)
{
    const symwin_peers &peers = args.peers;
    const uint64_t at = symwin_own_address(peers, args.scratch), epoch = symwin_epoch_begin(at);

    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count())
        for (int32_t p = 0; p < peers.nranks; p++)
            symwin_store_u32(
                symwin_peer_address(peers, p, slot_of(args, epoch, peers.rank) + 4 * i),
                symwin_load_u32(args.in + 4 * i));
    __syncthreads();
    if (threadIdx.x < (unsigned)peers.nranks)
        STORE_FLAG(symwin_peer_address(peers, (int32_t)threadIdx.x, flag_of(args, peers.rank)),
                   epoch);
    if (threadIdx.x < (unsigned)peers.nranks &&
        !symwin_wait(symwin_own_address(peers, flag_of(args, (int32_t)threadIdx.x)), epoch,
                     args.limit))
        symwin_give_up(args);
    __syncthreads();
    for (uint64_t i = symwin_thread_index(); i < args.count; i += symwin_thread_count()) {
        float sum = 0;

        for (int32_t p = 0; p < peers.nranks; p++)
            sum += symwin_load_f32(symwin_own_address(peers, slot_of(args, epoch, p) + 4 * i));
        symwin_store_f32(args.out + 4 * i, sum);
    }
    symwin_epoch_end(at);
}
