/* A small kernel for each collective but the all-reduce, and for sends and receives, right or, with
 * -DBUG, with one fault. All elements have four bytes. */
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

/* Reads the input of the rank that sends to it. The fault: that is always the rank before. */
KERNEL(send_receive, "collective=sendrecv types=f32,u32 windows")
{
    const int32_t n = args.peers.nranks, from = RIGHT ? args.from : (args.peers.rank + n - 1) % n;

    if (!barrier(args))
        return;
    if (args.from != SYMWIN_NO_RANK)
        EACH(i, args.count)
    symwin_store_u32(args.out + 4 * i, input(args, from, i));
    barrier(args);
}

SYMWIN_DEVICE uint64_t word(uint64_t array, int32_t p)
{
    return symwin_load_u64(array + 8 * (uint64_t)p);
}

/* Where rank `in` tells rank `of` the displacement of the part for it: each block for itself. */
SYMWIN_DEVICE uint64_t told(const struct symwin_kernel_args &args, int32_t in, int32_t of)
{
    const uint64_t i = (uint64_t)blockIdx.x * (uint64_t)args.peers.nranks + (uint64_t)in;

    return symwin_peer_address(args.peers, of, args.slots + 8 * i);
}

/* Tells each peer where the part for it begins, and reads it there. The fault: takes that it begins
 * where the peer's part begins in the own input. */
KERNEL(all_to_all_v, "collective=alltoallv types=f32,i32 windows slots=64K")
{
    const int32_t rank = args.peers.rank;

    for (int32_t p = (int32_t)threadIdx.x; p < args.peers.nranks; p += (int32_t)blockDim.x)
        symwin_store_u64(told(args, rank, p), word(args.in_displacements, p));
    if (!barrier(args))
        return;
    for (int32_t p = 0; p < args.peers.nranks; p++) {
        const uint64_t at = RIGHT ? symwin_load_u64(told(args, p, rank))
                                  : word(args.in_displacements, p);

        EACH(i, word(args.out_counts, p))
        symwin_store_u32(args.out + 4 * (word(args.out_displacements, p) + i),
                         input(args, p, at + i));
    }
    barrier(args);
}

/* The fault: takes that the parts are in the order of the ranks. */
KERNEL(all_gather_v, "collective=allgatherv types=f32,i32 windows")
{
    const int32_t rank = args.peers.rank;
    uint64_t at = word(args.out_displacements, rank);

    if (!RIGHT)
        at = 0;
    for (int32_t p = 0; !RIGHT && p < rank; p++)
        at += word(args.out_counts, p);
    if (!barrier(args))
        return;
    EACH(i, word(args.out_counts, rank))
    for (int32_t p = 0; p < args.peers.nranks; p++)
        symwin_store_u32(symwin_peer_address(args.peers, p, args.out_offset + 4 * (at + i)),
                         symwin_load_u32(args.in + 4 * i));
    barrier(args);
}

/* The fault: a rank whose part is empty leaves at once. */
KERNEL(reduce_scatter_v, "collective=reduce_scatterv types=f32 ops=sum windows")
{
    const uint64_t count = word(args.in_counts, args.peers.rank);

    if ((!RIGHT && count == 0) || !barrier(args))
        return;
    EACH(i, count)
    symwin_store_u32(args.out + 4 * i, sum(args, word(args.in_displacements, args.peers.rank) + i));
    barrier(args);
}

/* The fault: waits for no rank. */
KERNEL(wait_for_all, "collective=barrier")
{
    if (RIGHT)
        barrier(args);
}
