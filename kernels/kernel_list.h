/* Every collective kernel, each named once, by the file that defines it.
 *
 * X(file, family, algo, type, op, ranks, shape): kernels/<file>.cu has
 * SW_KERNEL_NAME(family, algo, type, op, ranks, shape). `family` is one of SW_KERNEL_FAMILY_LIST:
 * its kernels serve one collective or several. The other words are the short names of symwin.h's
 * SYMWIN_ALGO_LIST, SYMWIN_TYPE_LIST and SYMWIN_OP_LIST, but that `sum` is for averages too, and
 * `other` for all that is neither, pre-multiplied sums too: args.op says what it is.
 * `ranks` is n, any number, or 2, 4 or 8, and `shape` what the message must be (push.cuh; select.c
 * looks): any, aligned, whole, short, long, tiny or read. What is asked for most has kernels
 * without the code that it does not need; what is asked for least shares one, since each takes a
 * third of a millisecond to load when a communicator is created (H200). All take one struct by
 * value (SW_KERNEL_ARGS_*), in grids of one dimension, any number of blocks, of as many threads as
 * the function's attribute says; those of copies once for each args.stage.
 *
 * The multicast kernels are those that PTX's multimem.ld_reduce has on sm_90 (no f32 or f64 min and
 * max, no prod, nothing of 8 bits). Images for earlier architectures hold them too, but they return
 * without doing anything, `done` included: not to be launched there.
 */
#ifndef SYMWIN_KERNEL_LIST_H
#define SYMWIN_KERNEL_LIST_H

#define SW_KERNEL_NAME(family, algo, type, op, ranks, shape)                                       \
    sw_##family##_##algo##_##type##_##op##_##ranks##_##shape
#define SW_KERNEL_TEXT(family, algo, type, op, ranks, shape)                                       \
    SW_KERNEL_QUOTE(SW_KERNEL_NAME(family, algo, type, op, ranks, shape))
#define SW_KERNEL_QUOTE(name) SW_KERNEL_QUOTED(name)
#define SW_KERNEL_QUOTED(name) #name

/* The collectives of a family, and which algorithms of theirs: src/collective/table.c. */
#define SW_KERNEL_FAMILY_LIST(X)                                                                   \
    X(allreduce)                                                                                   \
    X(move) X(parts) X(barrier) X(table) X(rows) X(pair) X(few) X(group) X(sum)
enum sw_kernel_family {
#define SW_KERNEL_FAMILY(name) SW_FAMILY_##name,
    SW_KERNEL_FAMILY_LIST(SW_KERNEL_FAMILY)
#undef SW_KERNEL_FAMILY
        SW_FAMILIES
};

/* What their kernels take. */
#define SW_KERNEL_ARGS_allreduce struct sw_kernel_args
#define SW_KERNEL_ARGS_move struct sw_kernel_args
#define SW_KERNEL_ARGS_parts struct sw_kernel_args
#define SW_KERNEL_ARGS_barrier struct sw_kernel_args
#define SW_KERNEL_ARGS_table struct sw_table_args
#define SW_KERNEL_ARGS_rows struct sw_rows_args
#define SW_KERNEL_ARGS_pair struct sw_pair_args
#define SW_KERNEL_ARGS_few struct sw_few_args
#define SW_KERNEL_ARGS_group struct sw_group_args
#define SW_KERNEL_ARGS_sum struct sw_kernel_args

/* The most threads of a block: as many as there are registers for. */
#define SW_KERNEL_THREADS_n 640  /* of 96 registers */
#define SW_KERNEL_THREADS_2 1024 /* of 64 */
#define SW_KERNEL_THREADS_4 768  /* of 80 */
#define SW_KERNEL_THREADS_8 640

/* What `shape` and `ranks` are in code. */
enum sw_kernel_shape {
    SW_SHAPE_any,
    SW_SHAPE_aligned,
    SW_SHAPE_whole,
    SW_SHAPE_short,
    SW_SHAPE_long,
    SW_SHAPE_tiny,
    SW_SHAPE_read, /* short, if the rows that it reads allow that, otherwise as long */
    SW_SHAPES
};
enum { SW_RANKS_n = 0, SW_RANKS_2 = 2, SW_RANKS_4 = 4, SW_RANKS_8 = 8 };

#define SW_KERNEL_ALL_OPS(X, file, family, algo, type)                                             \
    X(file, family, algo, type, sum, n, any) X(file, family, algo, type, other, n, any)

/* Of types of 8 bits the one-shot with flags serves the other operations. */
#define SW_KERNEL_SENTINEL(X, file, family, algo)                                                  \
    SW_KERNEL_WIDE_FLOATS(X, file, family, algo)                                                   \
    X(file, family, algo, e4m3, sum, n, any) X(file, family, algo, e5m2, sum, n, any)

#define SW_KERNEL_WIDE_FLOATS(X, file, family, algo)                                               \
    SW_KERNEL_ALL_OPS(X, file, family, algo, f64)                                                  \
    SW_KERNEL_ALL_OPS(X, file, family, algo, f32)                                                  \
    SW_KERNEL_ALL_OPS(X, file, family, algo, f16)                                                  \
    SW_KERNEL_ALL_OPS(X, file, family, algo, bf16)

/* Signed integers use the kernels of the unsigned type: `sum`, but `other` for averages. */
#define SW_KERNEL_ALL_TYPES(X, file, family, algo)                                                 \
    SW_KERNEL_WIDE_FLOATS(X, file, family, algo)                                                   \
    SW_KERNEL_NARROW_TYPES(X, file, family, algo)
#define SW_KERNEL_NARROW_TYPES(X, file, family, algo)                                              \
    SW_KERNEL_ALL_OPS(X, file, family, algo, e4m3)                                                 \
    SW_KERNEL_ALL_OPS(X, file, family, algo, e5m2)                                                 \
    SW_KERNEL_ALL_OPS(X, file, family, algo, u8)                                                   \
    SW_KERNEL_ALL_OPS(X, file, family, algo, u32)                                                  \
    SW_KERNEL_ALL_OPS(X, file, family, algo, u64)

/* What is asked for most, for each of the common numbers of ranks. */
#define SW_KERNEL_SUMS(X, file, algo, ranks, shape)                                                \
    SW_KERNEL_WIDE_SUMS(X, file, allreduce, algo, ranks, shape)                                    \
    X(file, allreduce, algo, e4m3, sum, ranks, shape)                                              \
    X(file, allreduce, algo, e5m2, sum, ranks, shape)
#define SW_KERNEL_WIDE_SUMS(X, file, family, algo, ranks, shape)                                   \
    X(file, family, algo, f32, sum, ranks, shape)                                                  \
    X(file, family, algo, f16, sum, ranks, shape)                                                  \
    X(file, family, algo, bf16, sum, ranks, shape)

#define SW_KERNEL_OF(X, file, algo, ranks)                                                         \
    SW_KERNEL_SUMS(X, file, algo, ranks, aligned)                                                  \
    SW_KERNEL_SUMS(X, file, algo, ranks, whole)

#define SW_KERNEL_COMMON(X, file, algo)                                                            \
    SW_KERNEL_OF(X, file, algo, 2)                                                                 \
    SW_KERNEL_OF(X, file, algo, 4)                                                                 \
    SW_KERNEL_OF(X, file, algo, 8)

#define SW_KERNEL_MULTICAST_OPS(X, file, algo, type)                                               \
    X(file, allreduce, algo, type, sum, n, any)                                                    \
    X(file, allreduce, algo, type, min, n, any) X(file, allreduce, algo, type, max, n, any)

#define SW_KERNEL_MULTICAST_TYPES(X, file, algo)                                                   \
    X(file, allreduce, algo, f64, sum, n, any)                                                     \
    X(file, allreduce, algo, f32, sum, n, any)                                                     \
    SW_KERNEL_MULTICAST_OPS(X, file, algo, f16)                                                    \
    SW_KERNEL_MULTICAST_OPS(X, file, algo, bf16)                                                   \
    SW_KERNEL_MULTICAST_OPS(X, file, algo, i32)                                                    \
    SW_KERNEL_MULTICAST_OPS(X, file, algo, u32)                                                    \
    SW_KERNEL_MULTICAST_OPS(X, file, algo, i64)                                                    \
    SW_KERNEL_MULTICAST_OPS(X, file, algo, u64)

/* Wide floats by the one-shot with flags are served by the sentinel's kernels (table.c). */
#define SW_KERNEL_LIST_ONESHOT(X)                                                                  \
    SW_KERNEL_NARROW_TYPES(X, oneshot, allreduce, oneshot)                                         \
    SW_KERNEL_SENTINEL(X, oneshot, allreduce, oneshot_sentinel)                                    \
    SW_KERNEL_COMMON(X, oneshot, oneshot_sentinel)                                                 \
    SW_KERNEL_SUMS(X, oneshot, oneshot_sentinel, 2, short)                                         \
    SW_KERNEL_SUMS(X, oneshot, oneshot_sentinel, 4, short)                                         \
    SW_KERNEL_SUMS(X, oneshot, oneshot_sentinel, 8, short)                                         \
    SW_KERNEL_SUMS(X, oneshot, oneshot_sentinel, 2, long)
#define SW_KERNEL_LIST_TWOSHOT_PUSH(X)                                                             \
    SW_KERNEL_ALL_TYPES(X, twoshot_push, allreduce, twoshot_push)                                  \
    SW_KERNEL_COMMON(X, twoshot_push, twoshot_push)                                                \
    SW_KERNEL_SUMS(X, twoshot_push, twoshot_push, 2, long)                                         \
    SW_KERNEL_SUMS(X, twoshot_push, twoshot_push, 4, long)                                         \
    SW_KERNEL_SUMS(X, twoshot_push, twoshot_push, 8, long)
#define SW_KERNEL_LIST_TWOSHOT_PUT(X)                                                              \
    SW_KERNEL_ALL_TYPES(X, twoshot_put, allreduce, twoshot_put)                                    \
    SW_KERNEL_COMMON(X, twoshot_put, twoshot_put)                                                  \
    SW_KERNEL_SUMS(X, twoshot_put, twoshot_put, 2, long)                                           \
    SW_KERNEL_SUMS(X, twoshot_put, twoshot_put, 4, long)                                           \
    SW_KERNEL_SUMS(X, twoshot_put, twoshot_put, 8, long)
#define SW_KERNEL_LIST_TWOSHOT(X)                                                                  \
    SW_KERNEL_ALL_TYPES(X, twoshot, allreduce, twoshot)                                            \
    SW_KERNEL_SUMS(X, twoshot, twoshot, 2, whole)                                                  \
    SW_KERNEL_SUMS(X, twoshot, twoshot, 4, whole)
#define SW_KERNEL_LIST_TWOSHOT_BULK(X) SW_KERNEL_ALL_TYPES(X, twoshot_bulk, allreduce, twoshot_bulk)
/* Sums of integers by copies share the kernel of other operations: links limit them. */
#define SW_KERNEL_LIST_COPIES(X)                                                                   \
    SW_KERNEL_WIDE_FLOATS(X, copies, allreduce, copies)                                            \
    SW_KERNEL_ALL_OPS(X, copies, allreduce, copies, e4m3)                                          \
    SW_KERNEL_ALL_OPS(X, copies, allreduce, copies, e5m2)                                          \
    X(copies, allreduce, copies, u8, other, n, any)                                                \
    X(copies, allreduce, copies, u32, other, n, any)                                               \
    X(copies, allreduce, copies, u64, other, n, any)
#define SW_KERNEL_LIST_MULTICAST(X)                                                                \
    SW_KERNEL_MULTICAST_TYPES(X, multicast, oneshot_mc)                                            \
    SW_KERNEL_MULTICAST_TYPES(X, multicast, twoshot_mc)
/* What only moves data knows no type and no operation. */
#define SW_KERNEL_LIST_MULTICAST_MOVE(X) X(multicast, move, oneshot_mc, bytes, move, n, any)
#define SW_KERNEL_LIST_MOVE(X)                                                                     \
    X(move, move, oneshot, bytes, move, n, any)                                                    \
    X(move, move, oneshot, bytes, move, n, long)                                                   \
    X(move, move, oneshot, bytes, move, 2, short)                                                  \
    X(move, move, oneshot, bytes, move, 4, short)                                                  \
    X(move, move, oneshot, bytes, move, 8, short)                                                  \
    X(move, move, oneshot, bytes, move, 2, tiny)                                                   \
    X(move, move, oneshot, bytes, move, 4, tiny)                                                   \
    X(move, move, oneshot, bytes, move, 8, tiny)                                                   \
    X(move, group, oneshot, bytes, other, n, any)                                                  \
    X(move, group, oneshot, bytes, move, 2, short)                                                 \
    X(move, group, oneshot, bytes, move, 4, short)                                                 \
    X(move, group, oneshot, bytes, move, 8, short)
#define SW_KERNEL_LIST_MOVE_V(X)                                                                   \
    X(move_v, table, oneshot, bytes, move, n, any)                                                 \
    X(move_v, table, oneshot, bytes, move, n, long)                                                \
    X(move_v, table, oneshot, bytes, move, 2, short)                                               \
    X(move_v, table, oneshot, bytes, move, 4, short)                                               \
    X(move_v, table, oneshot, bytes, move, 8, short)                                               \
    X(move_v, table, oneshot, bytes, move, 2, read)                                                \
    X(move_v, table, oneshot, bytes, move, 4, read)                                                \
    X(move_v, table, oneshot, bytes, move, 8, read)
/* For communicators of so many ranks that the arguments of the others do not hold their rows. */
#define SW_KERNEL_LIST_ROWS(X) X(move_v, rows, oneshot, bytes, move, n, any)
/* One kernel knows all types and operations: of parts of unequal lengths, words are not many. */
#define SW_KERNEL_LIST_REDUCE_V(X)                                                                 \
    X(reduce_v, table, oneshot, bytes, other, n, any)                                              \
    X(reduce_v, table, oneshot, bytes, other, n, long)                                             \
    X(reduce_v, table, oneshot, bytes, other, 2, short)                                            \
    X(reduce_v, table, oneshot, bytes, other, 4, short)                                            \
    X(reduce_v, table, oneshot, bytes, other, 8, short)                                            \
    X(reduce_v, table, oneshot, bytes, other, 2, read)                                             \
    X(reduce_v, table, oneshot, bytes, other, 4, read)                                             \
    X(reduce_v, table, oneshot, bytes, other, 8, read)
#define SW_KERNEL_LIST_PAIRS(X)                                                                    \
    X(pairs, pair, oneshot, bytes, move, n, any) X(pairs, few, oneshot, bytes, move, n, short)
#define SW_KERNEL_LIST_PUT(X)                                                                      \
    X(put, move, put, bytes, move, n, any) X(put, move, twoshot, bytes, move, n, any)
#define SW_KERNEL_LIST_BARRIER(X) X(barrier, barrier, oneshot, bytes, move, n, any)
/* For communicators over several domains, which have no other: of what domains sent each other. */
#define SW_KERNEL_LIST_SUM(X) X(sum, sum, oneshot, bytes, other, n, any)
#define SW_KERNEL_LIST_REDUCE_PARTS(X)                                                             \
    SW_KERNEL_ALL_TYPES(X, reduce_parts, parts, oneshot)                                           \
    SW_KERNEL_WIDE_SUMS(X, reduce_parts, parts, oneshot, 2, short)                                 \
    SW_KERNEL_WIDE_SUMS(X, reduce_parts, parts, oneshot, 4, short)                                 \
    SW_KERNEL_WIDE_SUMS(X, reduce_parts, parts, oneshot, 8, short)

#define SW_KERNEL_LIST(X)                                                                          \
    SW_KERNEL_LIST_ONESHOT(X)                                                                      \
    SW_KERNEL_LIST_TWOSHOT(X)                                                                      \
    SW_KERNEL_LIST_TWOSHOT_PUSH(X)                                                                 \
    SW_KERNEL_LIST_TWOSHOT_PUT(X)                                                                  \
    SW_KERNEL_LIST_TWOSHOT_BULK(X)                                                                 \
    SW_KERNEL_LIST_COPIES(X)                                                                       \
    SW_KERNEL_LIST_MULTICAST(X)                                                                    \
    SW_KERNEL_LIST_MULTICAST_MOVE(X)                                                               \
    SW_KERNEL_LIST_MOVE(X)                                                                         \
    SW_KERNEL_LIST_MOVE_V(X)                                                                       \
    SW_KERNEL_LIST_ROWS(X)                                                                         \
    SW_KERNEL_LIST_REDUCE_V(X)                                                                     \
    SW_KERNEL_LIST_PAIRS(X)                                                                        \
    SW_KERNEL_LIST_PUT(X)                                                                          \
    SW_KERNEL_LIST_REDUCE_PARTS(X)                                                                 \
    SW_KERNEL_LIST_SUM(X)                                                                          \
    SW_KERNEL_LIST_BARRIER(X)

/* Each file: one fatbin. */
#define SW_KERNEL_FILE_LIST(X)                                                                     \
    X(oneshot)                                                                                     \
    X(twoshot)                                                                                     \
    X(twoshot_push)                                                                                \
    X(twoshot_put)                                                                                 \
    X(twoshot_bulk)                                                                                \
    X(copies)                                                                                      \
    X(multicast) X(move) X(move_v) X(reduce_v) X(pairs) X(put) X(reduce_parts) X(sum) X(barrier)

#endif
