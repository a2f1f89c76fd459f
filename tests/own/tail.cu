/* Whole vectors only: what follows the data in the last vector is read and written too. */
#include "symwin/kernel.cuh"

SYMWIN_KERNEL_ABOUT(tail, "types=f32 ops=sum align=16 windows out-of-place")

SYMWIN_DEVICE uint64_t add(uint64_t a, uint64_t b)
{
    const uint32_t lo = symwin_f32_bits(symwin_f32_of((uint32_t)a) + symwin_f32_of((uint32_t)b));
    const uint32_t hi = symwin_f32_bits(symwin_f32_of((uint32_t)(a >> 32)) +
                                        symwin_f32_of((uint32_t)(b >> 32)));

    return lo | (uint64_t)hi << 32;
}

extern "C" __global__ void tail(const struct symwin_kernel_args args)
{
    const symwin_team all = symwin_team_all(args.peers);

    if (!symwin_barrier_block(all, args.scratch, args.limit))
        return symwin_give_up(args);
    for (uint64_t i = symwin_thread_index(); 4 * i < args.count; i += symwin_thread_count()) {
        symwin_v16 sum = {0, 0};

        for (int32_t p = 0; p < args.peers.nranks; p++) {
            const symwin_v16 v = symwin_load_v16(
                symwin_peer_address(args.peers, p, args.in_offset + 16 * i));

            sum = {add(sum.lo, v.lo), add(sum.hi, v.hi)};
        }
        symwin_store_v16(args.out + 16 * i, sum);
    }
    if (!symwin_barrier_block(all, args.scratch, args.limit))
        symwin_give_up(args);
}
