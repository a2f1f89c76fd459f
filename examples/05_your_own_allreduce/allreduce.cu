/* Two all-reduces: symwin-perf --kernel allreduce.cu:pull and :push. README.md is the tutorial. */
#include "symwin/kernel.cuh"

/* Each rank sums its share of all inputs and stores it to all outputs. A barrier at each end. */
SYMWIN_KERNEL_ABOUT(pull, "types=f32 ops=sum windows blocks=32")

extern "C" __global__ void pull(const struct symwin_kernel_args args)
{
    const symwin_peers &peers = args.peers;
    const uint64_t n = (uint64_t)peers.nranks, r = (uint64_t)peers.rank;
    const uint64_t begin = args.count * r / n, end = args.count * (r + 1) / n;

    /* All inputs are complete, and all outputs may be written. */
    if (!symwin_barrier_block(symwin_team_all(peers), args.scratch, args.limit))
        return symwin_give_up(args);
    for (uint64_t i = begin + symwin_thread_index(); i < end; i += symwin_thread_count()) {
        float sum = 0;

        for (int32_t p = 0; p < peers.nranks; p++)
            sum += symwin_load_f32(symwin_peer_address(peers, p, args.in_offset + 4 * i));
        for (int32_t p = 0; p < peers.nranks; p++)
            symwin_store_f32(symwin_peer_address(peers, p, args.out_offset + 4 * i), sum);
    }
    /* Nobody reads our input any more, and our output is complete. */
    if (!symwin_barrier_block(symwin_team_all(peers), args.scratch, args.limit))
        symwin_give_up(args);
}

/* Each rank stores its input to slots of all peers, each element beside the number of the call, and
 * adds up what arrives. No barrier. */
SYMWIN_KERNEL_ABOUT(push, "types=f32 ops=sum bytes=64K ranks=8 slots=2M")

extern "C" __global__ void push(const struct symwin_kernel_args args)
{
    const symwin_peers &peers = args.peers;
    const uint64_t at = symwin_own_address(peers, args.scratch), epoch = symwin_epoch_begin(at);
    const uint64_t slot = 128 << 10, slots = args.slots + epoch % 2 * 8 * slot; /* alternating */

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
