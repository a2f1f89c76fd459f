/* A small kernel for each collective but the all-reduce, right or, with -DBUG, with one fault. All
 * elements have four bytes. */
#include "symwin/kernel.cuh"

#ifdef BUG
enum { RIGHT = false };
#else
enum { RIGHT = true };
#endif

SYMWIN_DEVICE bool barrier(const struct symwin_kernel_args &args)
{
    if (symwin_barrier_block(symwin_team_all(args.peers), args.scratch, args.limit))
        return true;
    symwin_give_up(args);
    return false;
}

SYMWIN_DEVICE uint32_t input(const struct symwin_kernel_args &args, int32_t rank, uint64_t i)
{
    return symwin_load_u32(symwin_peer_address(args.peers, rank, args.in_offset + 4 * i));
}

/* The sum of all ranks' elements; in a float's bits. */
SYMWIN_DEVICE uint32_t sum(const struct symwin_kernel_args &args, uint64_t i)
{
    float sum = 0;

    for (int32_t p = 0; p < args.peers.nranks; p++)
        sum += symwin_f32_of(input(args, p, i));
    return symwin_f32_bits(sum);
}

#define OWN (args.count * (uint64_t)args.peers.rank)
#define EACH(i, count)                                                                             \
    for (uint64_t i = symwin_thread_index(); i < (count); i += symwin_thread_count())
#define KERNEL(name, words)                                                                        \
    SYMWIN_KERNEL_ABOUT(name, words)                                                               \
    extern "C" __global__ void name(const struct symwin_kernel_args args)

/* Stores to all outputs. The fault: does not wait until the peers' calls have begun. */
KERNEL(all_gather, "collective=allgather types=f32,i32 windows")
{
    if (RIGHT && !barrier(args))
        return;
    EACH(i, args.count)
    for (int32_t p = 0; p < args.peers.nranks; p++)
        symwin_store_u32(symwin_peer_address(args.peers, p, args.out_offset + 4 * (OWN + i)),
                         symwin_load_u32(args.in + 4 * i));
    barrier(args);
}

/* The fault: leaves before all peers have read its input. */
KERNEL(reduce_scatter, "collective=reduce_scatter types=f32 ops=sum windows")
{
    if (!barrier(args))
        return;
    EACH(i, args.count)
    symwin_store_u32(args.out + 4 * i, sum(args, OWN + i));
    if (RIGHT)
        barrier(args);
}

/* The fault: parts are in whole vectors. */
KERNEL(all_to_all, "collective=alltoall types=f32 windows out-of-place")
{
    const uint64_t part = RIGHT ? args.count : (args.count + 3) / 4 * 4;

    if (!barrier(args))
        return;
    EACH(i, args.count)
    for (int32_t p = 0; p < args.peers.nranks; p++)
        symwin_store_u32(args.out + 4 * ((uint64_t)p * args.count + i),
                         input(args, p, part * (uint64_t)args.peers.rank + i));
    barrier(args);
}

/* The fault: the root is always rank 0. */
KERNEL(broadcast, "collective=broadcast types=f32,u32 windows")
{
    const int32_t root = RIGHT ? args.root : 0;

    if (!barrier(args))
        return;
    EACH(i, args.count)
    if (args.peers.rank != root || args.in != args.out)
        symwin_store_u32(args.out + 4 * i, input(args, root, i));
    barrier(args);
}

/* The fault: every rank gathers. */
KERNEL(gather, "collective=gather types=f32 windows out-of-place")
{
    if (!barrier(args))
        return;
    if (!RIGHT || args.peers.rank == args.root)
        EACH(i, args.count * (uint64_t)args.peers.nranks)
    symwin_store_u32(args.out + 4 * i, input(args, (int32_t)(i / args.count), i % args.count));
    barrier(args);
}

/* The fault: also takes the first element of the part behind. */
KERNEL(scatter, "collective=scatter types=f32 windows")
{
    if (!barrier(args))
        return;
    EACH(i, args.count + !RIGHT)
    symwin_store_u32(args.out + 4 * i, input(args, args.root, OWN + i));
    barrier(args);
}

/* The fault: works in the root's input. */
KERNEL(reduce, "collective=reduce types=f32 ops=sum windows")
{
    if (!barrier(args))
        return;
    if (args.peers.rank == args.root)
        EACH(i, args.count)
        {
            symwin_store_u32(args.out + 4 * i, sum(args, i));
            if (!RIGHT)
                symwin_store_u32(args.in + 4 * i, symwin_load_u32(args.out + 4 * i));
        }
    barrier(args);
}
