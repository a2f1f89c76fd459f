/* Kernels that fail in one case and are right otherwise. */
#include "symwin/kernel.cuh"

/* The right reduction. */
SYMWIN_DEVICE void reduce(const struct symwin_kernel_args &args)
{
    const symwin_peers &peers = args.peers;
    const uint64_t n = (uint64_t)peers.nranks, r = (uint64_t)peers.rank;
    const uint64_t begin = args.count * r / n, end = args.count * (r + 1) / n;

    if (!symwin_barrier_block(symwin_team_all(peers), args.scratch, args.limit))
        return symwin_give_up(args);
    for (uint64_t i = begin + symwin_thread_index(); i < end; i += symwin_thread_count()) {
        float sum = 0;

        for (int32_t p = 0; p < peers.nranks; p++)
            sum += symwin_load_f32(symwin_peer_address(peers, p, args.in_offset + 4 * i));
        for (int32_t p = 0; p < peers.nranks; p++)
            symwin_store_f32(symwin_peer_address(peers, p, args.out_offset + 4 * i), sum);
    }
    if (!symwin_barrier_block(symwin_team_all(peers), args.scratch, args.limit))
        symwin_give_up(args);
}

/* A wild pointer kills the process. */
SYMWIN_KERNEL_ABOUT(crash, "types=f32 ops=sum windows")

extern "C" __global__ void crash(const struct symwin_kernel_args args)
{
    if (args.count == 7)
        *(volatile int *)16 = 1;
    reduce(args);
}

/* The driver has to reject an address without memory. */
SYMWIN_KERNEL_ABOUT(wild, "types=f32 ops=sum windows")

extern "C" __global__ void wild(const struct symwin_kernel_args args)
{
    if (args.count == 17)
        symwin_store_u32(args.out + (UINT64_C(1) << 30), 1);
    reduce(args);
}

/* An endless loop that lets nobody else run. */
SYMWIN_KERNEL_ABOUT(hang, "types=f32 ops=sum windows")

extern "C" __global__ void hang(const struct symwin_kernel_args args)
{
    while (args.count == 17 && symwin_load_relaxed_u32(args.gave_up) == 0)
        ;
    reduce(args);
}

/* Waits without a limit. */
SYMWIN_KERNEL_ABOUT(patient, "types=f32 ops=sum windows")

extern "C" __global__ void patient(const struct symwin_kernel_args args)
{
    if (symwin_barrier_block(symwin_team_all(args.peers), args.scratch + (32 << 10), {0, 0}))
        reduce(args);
}

/* Writes beside the output. */
SYMWIN_KERNEL_ABOUT(beside, "types=f32 ops=sum windows")

extern "C" __global__ void beside(const struct symwin_kernel_args args)
{
    reduce(args);
    if (args.count == 9)
        symwin_store_u32(args.out + 36, 0);
}

/* Writes to the input where that is another buffer. */
SYMWIN_KERNEL_ABOUT(greedy, "types=f32 ops=sum windows")

extern "C" __global__ void greedy(const struct symwin_kernel_args args)
{
    reduce(args);
    if (args.count == 9 && args.in != args.out)
        symwin_store_u32(args.in + 4, 0);
}
