/* Kernels for tests/device/test_reduce.c: calls of symwin/reduce.cuh and symwin/multicast.cuh, a kernel for each type. Compiled as
 * those of channel_kernels.cuh are. */
#ifndef SYMWIN_TESTS_REDUCE_KERNELS_CUH
#define SYMWIN_TESTS_REDUCE_KERNELS_CUH

#include "copy_kernels.cuh"
#include "symwin/multicast.cuh"
#include "symwin/reduce.cuh"
#include "team_kernels.cuh"

#define REDUCE_TYPES(X)                                                                            \
    X(f64) X(f32) X(f16) X(bf16) X(e4m3) X(e5m2) X(i8) X(u8) X(i32) X(u32) X(i64) X(u64)
/* What multicast adds, and of what it finds extremes. */
#define MULTICAST_SUMS(X) X(f64) X(f32)
#define MULTICAST_TYPES(X) X(f16) X(bf16) X(i32) X(u32) X(i64) X(u64)

template <class T>
SYMWIN_DEVICE void reduce_message(const reduce_args &args)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};
    const symwin_team team = team_of(peers, args.team, args.size);
    const symwin_group group = group_of(args.group);

    if (group.count <= symwin_thread_index())
        return;
    switch (args.op) {
    case SYMWIN_SUM:
        symwin_reduce_peers<T, symwin_op_sum>(group, team, args.to, args.offset, args.count);
        break;
    case SYMWIN_PROD:
        symwin_reduce_peers<T, symwin_op_prod>(group, team, args.to, args.offset, args.count);
        break;
    case SYMWIN_MIN:
        symwin_reduce_peers<T, symwin_op_min>(group, team, args.to, args.offset, args.count);
        break;
    case SYMWIN_MAX:
        symwin_reduce_peers<T, symwin_op_max>(group, team, args.to, args.offset, args.count);
        break;
    default:
        symwin_reduce_peers<T, symwin_op_avg>(group, team, args.to, args.offset, args.count);
    }
}

#define REDUCE_KERNEL(type)                                                                        \
    SYMWIN_KERNEL(reduce_##type, reduce_args, args, CHANNEL_THREADS)                               \
    {                                                                                              \
        reduce_message<symwin_type_##type>(args);                                                  \
    }
REDUCE_TYPES(REDUCE_KERNEL)
#undef REDUCE_KERNEL

#if SYMWIN_HAS_MULTIMEM

template <class T, class O>
SYMWIN_DEVICE void multicast_message(const reduce_args &args)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};
    const symwin_group group = group_of(args.group);

    if (group.count <= symwin_thread_index())
        return;
    if (args.reach == REDUCE_TO_ALL)
        symwin_multicast_reduce_put<T, O>(group, peers, args.to, args.offset, args.count);
    else
        symwin_multicast_reduce<T, O>(group, peers, args.to, args.offset, args.count);
}

template <class T>
SYMWIN_DEVICE void multicast_sums(const reduce_args &args)
{
    if (args.op == SYMWIN_SUM)
        multicast_message<T, symwin_op_sum>(args);
    else
        multicast_message<T, symwin_op_avg>(args);
}

template <class T>
SYMWIN_DEVICE void multicast_any(const reduce_args &args)
{
    if (args.op == SYMWIN_MIN)
        multicast_message<T, symwin_op_min>(args);
    else if (args.op == SYMWIN_MAX)
        multicast_message<T, symwin_op_max>(args);
    else
        multicast_sums<T>(args);
}

SYMWIN_DEVICE void multicast_copy(const reduce_args &args)
{
    const symwin_peers peers = {args.base, args.stride, args.rank, args.nranks};
    const symwin_group group = group_of(args.group);

    if (symwin_thread_index() < group.count)
        symwin_multicast_put(group, peers, args.to, args.offset, args.count);
}

#define MULTICAST_RUN(call) call(args)
#else
#define MULTICAST_RUN(call) (void)args
#endif

#define MULTICAST_KERNEL(type)                                                                     \
    SYMWIN_KERNEL(multicast_##type, reduce_args, args, CHANNEL_THREADS)                            \
    {                                                                                              \
        MULTICAST_RUN(multicast_sums<symwin_type_##type>);                                         \
    }
MULTICAST_SUMS(MULTICAST_KERNEL)
#undef MULTICAST_KERNEL
#define MULTICAST_KERNEL(type)                                                                     \
    SYMWIN_KERNEL(multicast_##type, reduce_args, args, CHANNEL_THREADS)                            \
    {                                                                                              \
        MULTICAST_RUN(multicast_any<symwin_type_##type>);                                          \
    }
MULTICAST_TYPES(MULTICAST_KERNEL)
#undef MULTICAST_KERNEL

/* `offset` is the address of `count` bytes, `to` an offset of all ranks. */
SYMWIN_KERNEL(multicast_put, reduce_args, args, CHANNEL_THREADS)
{
    MULTICAST_RUN(multicast_copy);
}

#endif
