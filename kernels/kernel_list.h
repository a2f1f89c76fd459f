/* Every collective kernel, each named once, by the file that defines it.
 *
 * X(algo, type, op): the kernel is sw_allreduce_<algo>_<type>_<op>; the words are the short names
 * of symwin.h's SYMWIN_ALGO_LIST, SYMWIN_TYPE_LIST and SYMWIN_OP_LIST. An average is a sum with
 * args.average. All take one struct sw_kernel_args by value, in grids of one dimension, any number
 * of blocks of at most SW_KERNEL_MAX_THREADS threads; those of copies once for each args.stage.
 *
 * The multicast kernels are those that PTX's multimem.ld_reduce has on sm_90 (no f32 or f64 min and
 * max, no prod, nothing of 8 bits). Images for earlier architectures hold them too, but they return
 * without doing anything, `done` included: not to be launched there.
 */
#ifndef SYMWIN_KERNEL_LIST_H
#define SYMWIN_KERNEL_LIST_H

#define SW_KERNEL_MAX_THREADS 640 /* of 96 registers */

#define SW_KERNEL_ALL_OPS(X, algo, type)                                                           \
    X(algo, type, sum) X(algo, type, prod) X(algo, type, min) X(algo, type, max)

#define SW_KERNEL_NO_PROD(X, algo, type) X(algo, type, sum) X(algo, type, min) X(algo, type, max)

#define SW_KERNEL_FLOATS(X, algo)                                                                  \
    SW_KERNEL_ALL_OPS(X, algo, f64)                                                                \
    SW_KERNEL_ALL_OPS(X, algo, f32)                                                                \
    SW_KERNEL_ALL_OPS(X, algo, f16)                                                                \
    SW_KERNEL_ALL_OPS(X, algo, bf16)                                                               \
    SW_KERNEL_ALL_OPS(X, algo, e4m3)                                                               \
    SW_KERNEL_ALL_OPS(X, algo, e5m2)

#define SW_KERNEL_ALL_TYPES(X, algo)                                                               \
    SW_KERNEL_FLOATS(X, algo)                                                                      \
    SW_KERNEL_ALL_OPS(X, algo, i8)                                                                 \
    SW_KERNEL_ALL_OPS(X, algo, u8)                                                                 \
    SW_KERNEL_ALL_OPS(X, algo, i32)                                                                \
    SW_KERNEL_ALL_OPS(X, algo, u32)                                                                \
    SW_KERNEL_ALL_OPS(X, algo, i64)                                                                \
    SW_KERNEL_ALL_OPS(X, algo, u64)

#define SW_KERNEL_MULTICAST_TYPES(X, algo)                                                         \
    X(algo, f64, sum)                                                                              \
    X(algo, f32, sum)                                                                              \
    SW_KERNEL_NO_PROD(X, algo, f16)                                                                \
    SW_KERNEL_NO_PROD(X, algo, bf16)                                                               \
    SW_KERNEL_NO_PROD(X, algo, i32)                                                                \
    SW_KERNEL_NO_PROD(X, algo, u32)                                                                \
    SW_KERNEL_NO_PROD(X, algo, i64)                                                                \
    SW_KERNEL_NO_PROD(X, algo, u64)

#define SW_KERNEL_LIST_ONESHOT(X)                                                                  \
    SW_KERNEL_ALL_TYPES(X, oneshot)                                                                \
    SW_KERNEL_FLOATS(X, oneshot_sentinel)
#define SW_KERNEL_LIST_TWOSHOT_PUSH(X) SW_KERNEL_ALL_TYPES(X, twoshot_push)
#define SW_KERNEL_LIST_TWOSHOT_PUT(X) SW_KERNEL_ALL_TYPES(X, twoshot_put)
#define SW_KERNEL_LIST_TWOSHOT(X) SW_KERNEL_ALL_TYPES(X, twoshot)
#define SW_KERNEL_LIST_TWOSHOT_BULK(X) SW_KERNEL_ALL_TYPES(X, twoshot_bulk)
#define SW_KERNEL_LIST_COPIES(X) SW_KERNEL_ALL_TYPES(X, copies)
#define SW_KERNEL_LIST_MULTICAST(X)                                                                \
    SW_KERNEL_MULTICAST_TYPES(X, oneshot_mc)                                                       \
    SW_KERNEL_MULTICAST_TYPES(X, twoshot_mc)

/* X(file, list): kernels/<file>.cu and what it defines; one fatbin each. */
#define SW_KERNEL_FILE_LIST(X)                                                                     \
    X(oneshot, SW_KERNEL_LIST_ONESHOT)                                                             \
    X(twoshot, SW_KERNEL_LIST_TWOSHOT)                                                             \
    X(twoshot_push, SW_KERNEL_LIST_TWOSHOT_PUSH)                                                   \
    X(twoshot_put, SW_KERNEL_LIST_TWOSHOT_PUT)                                                     \
    X(twoshot_bulk, SW_KERNEL_LIST_TWOSHOT_BULK)                                                   \
    X(copies, SW_KERNEL_LIST_COPIES)                                                               \
    X(multicast, SW_KERNEL_LIST_MULTICAST)

#endif
