/* Collectives: a part of symwin.h, which includes this.
 */
#ifndef SYMWIN_API_COLLECTIVE_H
#define SYMWIN_API_COLLECTIVE_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, short name, bytes) */
#define SYMWIN_TYPE_LIST(X)                                                                        \
    X(SYMWIN_F64, 0, f64, 8)                                                                       \
    X(SYMWIN_F32, 1, f32, 4)                                                                       \
    X(SYMWIN_F16, 2, f16, 2)                                                                       \
    X(SYMWIN_BF16, 3, bf16, 2)                                                                     \
    X(SYMWIN_F8E4M3, 4, e4m3, 1)                                                                   \
    X(SYMWIN_F8E5M2, 5, e5m2, 1)                                                                   \
    X(SYMWIN_I8, 6, i8, 1)                                                                         \
    X(SYMWIN_U8, 7, u8, 1)                                                                         \
    X(SYMWIN_I32, 8, i32, 4)                                                                       \
    X(SYMWIN_U32, 9, u32, 4)                                                                       \
    X(SYMWIN_I64, 10, i64, 8)                                                                      \
    X(SYMWIN_U64, 11, u64, 8)

typedef enum symwin_type {
#define SYMWIN_TYPE_ENUM(name, value, text, bytes) name = value,
    SYMWIN_TYPE_LIST(SYMWIN_TYPE_ENUM)
#undef SYMWIN_TYPE_ENUM
} symwin_type;

/* X(name, value, short name) */
#define SYMWIN_OP_LIST(X)                                                                          \
    X(SYMWIN_SUM, 0, sum)                                                                          \
    X(SYMWIN_PROD, 1, prod)                                                                        \
    X(SYMWIN_MIN, 2, min)                                                                          \
    X(SYMWIN_MAX, 3, max)                                                                          \
    X(SYMWIN_AVG, 4, avg)                                                                          \
    X(SYMWIN_PREMUL_SUM, 5, mulsum) /* of each rank's elements times its options' scalar */

typedef enum symwin_op {
#define SYMWIN_OP_ENUM(name, value, text) name = value,
    SYMWIN_OP_LIST(SYMWIN_OP_ENUM)
#undef SYMWIN_OP_ENUM
} symwin_op;

/* X(name, value, short name) */
#define SYMWIN_ALGO_LIST(X)                                                                        \
    X(SYMWIN_ALGO_AUTO, 0, auto)                                                                   \
    X(SYMWIN_ALGO_ONESHOT, 1, oneshot)       /* push with flags: any memory, all types */          \
    X(SYMWIN_ALGO_TWOSHOT, 2, twoshot)       /* over windows: loads, then stores */                \
    X(SYMWIN_ALGO_ONESHOT_MC, 3, oneshot_mc) /* over windows: multicast load-reduce */             \
    X(SYMWIN_ALGO_TWOSHOT_MC, 4, twoshot_mc) /* over windows: multicast load-reduce and store */   \
    X(SYMWIN_ALGO_ONESHOT_SENTINEL, 5, oneshot_sentinel) /* half the bytes; integers: oneshot */   \
    X(SYMWIN_ALGO_TWOSHOT_PUSH, 6, twoshot_push) /* push of shares, then of results: any memory */ \
    X(SYMWIN_ALGO_TWOSHOT_PUT, 7, twoshot_put)   /* push of shares, results into windows */        \
    X(SYMWIN_ALGO_COPIES, 8, copies) /* over windows: copy engines; see symwin_allreduce_with() */ \
    X(SYMWIN_ALGO_TWOSHOT_BULK, 9, twoshot_bulk) /* over windows: few multiprocessors; sm_90 */    \
    X(SYMWIN_ALGO_PUT, 10, put) /* over windows: stores into the outputs; not of all-reduces */    \
    X(SYMWIN_ALGO_RAILS, 11, rails) /* over several domains: each rail moves a share, in pieces */ \
    X(SYMWIN_ALGO_NCCL, 12, nccl)   /* over several domains: a call of NCCL's over all ranks */

typedef enum symwin_algo {
#define SYMWIN_ALGO_ENUM(name, value, text) name = value,
    SYMWIN_ALGO_LIST(SYMWIN_ALGO_ENUM)
#undef SYMWIN_ALGO_ENUM
} symwin_algo;

/* X(name, value, short name) */
#define SYMWIN_COLLECTIVE_LIST(X)                                                                  \
    X(SYMWIN_ALLREDUCE, 0, allreduce)                                                              \
    X(SYMWIN_ALLGATHER, 1, allgather)                                                              \
    X(SYMWIN_ALLTOALL, 2, alltoall)                                                                \
    X(SYMWIN_BROADCAST, 3, broadcast)                                                              \
    X(SYMWIN_GATHER, 4, gather)                                                                    \
    X(SYMWIN_SCATTER, 5, scatter)                                                                  \
    X(SYMWIN_REDUCE_SCATTER, 6, reduce_scatter)                                                    \
    X(SYMWIN_REDUCE, 7, reduce)                                                                    \
    X(SYMWIN_BARRIER, 8, barrier)                                                                  \
    X(SYMWIN_ALLTOALLV, 9, alltoallv)                                                              \
    X(SYMWIN_ALLGATHERV, 10, allgatherv)                                                           \
    X(SYMWIN_REDUCE_SCATTERV, 11, reduce_scatterv)

typedef enum symwin_collective {
#define SYMWIN_COLLECTIVE_ENUM(name, value, text) name = value,
    SYMWIN_COLLECTIVE_LIST(SYMWIN_COLLECTIVE_ENUM)
#undef SYMWIN_COLLECTIVE_ENUM
} symwin_collective;

/* Bytes of one element, 0 for an unknown type; names such as "bf16", "sum", "twoshot", "allreduce",
 * NULL for an unknown value. */
SYMWIN_API size_t symwin_type_bytes(symwin_type type);
SYMWIN_API const char *symwin_type_name(symwin_type type);
SYMWIN_API const char *symwin_op_name(symwin_op op);
SYMWIN_API const char *symwin_algo_name(symwin_algo algo);
SYMWIN_API const char *symwin_collective_name(symwin_collective collective);

/* Reduces `count` elements over all ranks; every rank gets the result. Asynchronous on `stream`,
 * and capturable in a CUDA graph. Collective, but the host does not wait for other ranks (except
 * with registered buffers and captures, see below).
 *
 *   in, out  device memory of `count` elements, aligned to the element; equal, or not overlapping.
 *            Any device memory works, and pinned host memory, at the speed of the bus; ranks may
 *            differ in that, if none registers the buffer. If both are in windows, large messages
 *            are reduced without a copy. Then they must be in windows at equal offsets on all
 *            ranks, or on no rank; otherwise large calls end in SYMWIN_MISMATCH. Registered buffers
 *            become windows in the first call that uses them, other buffers in the first capture.
 *            For this the host waits for the other ranks: see symwin/register.h.
 *   count    elements, equal on all ranks; 0 does nothing. In memory of symwin_mem_alloc() and in
 *            windows it is checked against what there is, on each rank. In memory of other
 *            allocators it is not: past its end, kernels access whatever is there, or fail
 *   op       floats of 16 and 8 bits are accumulated in f32; 8-bit floats saturate; integers wrap;
 *            AVG divides the sum (integers toward zero); MIN and MAX ignore NaN. PREMUL_SUM needs
 *            a scalar: see symwin_collective_options
 *   stream   of this rank's device; NULL is the legacy default stream. In a green context the grid
 *            uses the multiprocessors of that context
 *
 * The ranks are added in the order 0, 1, ...: results are bit-identical on all ranks and in every
 * run. The exception is the multicast algorithms: there the hardware chooses the order, averages of
 * 16-bit floats are rounded twice, and by ONESHOT_MC, which is used on request only, each rank
 * reduces for itself.
 *
 * Calls on one communicator run in the order in which they were made, also on several streams, and
 * inside a capture (for the 8 latest of simultaneous captures). The caller must order a captured
 * graph against these calls and other graphs. A kernel between two calls that begins early
 * (programmatic launch) must wait for the work ahead of it.
 * A call sees what the stream ahead of it has written to its own rank's memory. What the caller's
 * kernels have stored to other ranks' memory is seen there after a symwin_barrier().
 *
 * A call that launches nothing on one rank alone (count 0, or a failure that this rank alone has)
 * leaves the ranks out of step. The others' kernels wait, and this rank's next call meets them: if
 * its arguments agree with theirs, the ranks combine data of different calls and no error is seen;
 * if they differ, all get SYMWIN_MISMATCH. If there is no next call, they wait until their timeout.
 * So pass count 0 on all ranks or on none, and after a failure of this call on one rank make no
 * further call there but symwin_comm_abort() and symwin_comm_destroy(). In a call that
 * runs an agreement about registered buffers, such a failure becomes that of all ranks; not so
 * count 0, or an invalid count or type.
 *
 * After a failure the contents of `out` are undefined, on all ranks until all their streams have
 * drained: copy engines complete the copies that were queued (see COPIES below).
 *
 *   SYMWIN_INVALID      unknown type or operation; an address that is neither device memory of
 *                       this rank nor pinned host memory, or memory of symwin_mem_alloc() that was
 *                       freed; misaligned or partly overlapping buffers; or elements, those of all
 *                       parts, that pass the end of the window or of the allocation in which `in`
 *                       or `out` begins: the text has the rank, the argument, the bytes of the call
 *                       and those that there are
 *   SYMWIN_UNSUPPORTED  the grid does not fit on the device beside those of other ranks there
 *   SYMWIN_MISMATCH, SYMWIN_TIMEOUT, SYMWIN_ABORTED
 *                       an earlier call failed: see symwin_comm_check() */
SYMWIN_API symwin_status symwin_allreduce(symwin_comm *comm, const void *in, void *out,
                                          uint64_t count, symwin_type type, symwin_op op,
                                          struct CUstream_st *stream);

typedef struct symwin_collective_options {
    size_t size;      /* sizeof(symwin_collective_options); 0 in another field: the default */
    symwin_algo algo; /* must be equal on all ranks */
    /* Most blocks of the grid, at most what fits, and no more than the communicator's max_blocks;
     * small messages use fewer. A launch for several calls of a group has as many blocks and
     * threads as the call that asks for most, if so many fit. */
    int blocks;
    /* Threads of a block, rounded up to whole warps. In algorithms that push, 32 of them do not
     * move the message: in blocks of more than 32, the last warp only exchanges control words. */
    int threads;
    /* For SYMWIN_PREMUL_SUM, otherwise NULL: one element, by which this rank's elements are
     * multiplied before they are added. Each product is rounded to the type, and the products are
     * added as by SUM: the result has the bits of a SUM of inputs that were multiplied before.
     * Ranks may have different scalars, in either memory. */
    const void *scalar;
    /* 0: the scalar is in host memory, and is read by the call. Otherwise it is in device memory of
     * this rank or in pinned memory, aligned to the element, and is read while the call runs in its
     * stream. So a kernel ahead of it may write it, and each replay of a graph reads it again; it
     * must not change until the call has ended there. */
    int scalar_on_device;
} symwin_collective_options;

typedef symwin_collective_options symwin_allreduce_options;

/* The same with a choice of algorithm and grid. Ranks may choose different grids. Floats of 16 bits
 * and more need no flags: ONESHOT does with them what ONESHOT_SENTINEL does, with half the bytes.
 *
 * COPIES is for the largest messages; in place, kernels move a quarter of the data. It queues
 * copies, which no failure stops. If the ranks' calls differ, or a rank does not make the call, the
 * peers' outputs of this call are still overwritten, with undefined contents, until this rank's
 * stream has passed the call. If counts or offsets differ, a rank copies as many bytes as its own
 * call has, to its own call's offset, also where peers have no output of the call. So after a
 * failure, let all ranks' streams drain before you use an output for anything else. Without
 * failures, an output is written between the beginning and the end of its rank's call, as with all
 * algorithms.
 *
 * A communicator over several domains has other algorithms, for the way between the domains: RAILS,
 * in which each rail moves a share of the message in `blocks` pieces (0: the library's number; of
 * all-gathers, reduce-scatters and all-to-alls more than 1 is at least one for each domain);
 * TWOSHOT_PUSH of all-reduces, in which each domain adds a part of each share, of which the others
 * send theirs, and sends them the sums, in as many pieces: the sums are in the order of the domains
 * and, inside, of the ranks, so they have the same bits in every run, whatever NCCL and the number
 * of pieces, unless a domain reduces by multicast; ONESHOT of all-reduces, broadcasts and reduces,
 * with one exchange between domains; and NCCL, a call of NCCL's over all ranks, which has no
 * PREMUL_SUM. Averages of integers go by NCCL. With ONESHOT, `blocks` and `threads` are those of
 * the kernels inside a domain.
 *
 *   SYMWIN_INVALID      as symwin_allreduce(); or a wrong options->size, algo, blocks or threads;
 *                       or PREMUL_SUM without a scalar, or with one that is not where it is said to
 *                       be; or a scalar with another operation
 *   SYMWIN_UNSUPPORTED  the algorithm cannot serve this call: buffers outside windows, no
 *                       multicast, a type or an operation that it lacks, ONESHOT_MC in place,
 *                       TWOSHOT_BULK before sm_90, COPIES with too many ranks on any device; or
 *                       more blocks or threads than fit
 *   SYMWIN_BUSY         COPIES in a capture while the communicator has one in another capture
 *   SYMWIN_DRIVER       COPIES, and the driver refused a part of it: outside a capture the
 *                       communicator was aborted */
SYMWIN_API symwin_status symwin_allreduce_with(symwin_comm *comm, const void *in, void *out,
                                               uint64_t count, symwin_type type, symwin_op op,
                                               const symwin_collective_options *options,
                                               struct CUstream_st *stream);

typedef struct symwin_collective_info {
    symwin_algo algo; /* not AUTO */
    int blocks;       /* of the grid; over several domains: pieces of the message */
    int threads;      /* of a block; over several domains: 0 */
    /* 1: from a row of a table (docs/tuning.md); 0: from the model, or as requested */
    int measured;
} symwin_collective_info;

typedef symwin_collective_info symwin_allreduce_info;

/* What symwin_allreduce_with() would launch on this rank for the same arguments, outside captures
 * and on a stream of the whole device. Launches nothing. Local, and as fast as the call without its
 * launch. No other thread may be in a call on `comm` at the same time.
 *
 *   SYMWIN_INVALID  as symwin_allreduce_with(); or info is NULL, or count is 0
 *   and all statuses that symwin_allreduce_with() returns at once */
SYMWIN_API symwin_status symwin_allreduce_query(symwin_comm *comm, const void *in, const void *out,
                                                uint64_t count, symwin_type type, symwin_op op,
                                                const symwin_collective_options *options,
                                                symwin_collective_info *info);

/* The other collectives. Order, streams, captures, threads and statuses are as for
 * symwin_allreduce(), and so are the options and the query, which have the algorithms that each
 * names. As there, all ranks make the same call with the same count and type; ranks that differ, in
 * the root too, get SYMWIN_MISMATCH from symwin_comm_check(), with both values.
 *
 *   count    elements of a part, equal on all ranks; 0 does nothing. The v-forms have none: their
 *            ranks meet even if all parts are empty
 *   in, out  device or pinned memory, aligned to the element: of one part, or of a part for each
 *            rank, rank r's from element r * count on. They must not overlap, except in place as
 *            stated. What is of the root alone is ignored on other ranks, and may be NULL there.
 *            Any memory works. Large parts are moved or reduced without a copy if the buffer that
 *            the call names, which all ranks pass, lies in a window. Then it must be in windows on
 *            all ranks, or on no rank, and at equal offsets, but for gather and scatter; otherwise
 *            large calls end in SYMWIN_MISMATCH. But for gather and scatter, a registered buffer
 *            becomes a window in the first call that goes over windows, any other in the first
 *            capture of one. For this the host waits for the other ranks: see symwin/register.h
 *   root     a rank, equal on all ranks. SYMWIN_INVALID, on this rank alone: there is no such rank
 *
 * Ranks may differ in grids, and but for one case in whether they work in place.
 *
 * COPIES is for the largest all-gathers, all-to-alls and broadcasts; gather and scatter have it if
 * asked for. Copy engines move the bytes; kernels of one block are ahead of them and behind them,
 * whatever `options` say. What symwin_allreduce_with() says of copies after a failure and in
 * captures holds for these too. Of a rank that is not in place, the driver also copies that rank's
 * own part, perhaps by multiprocessors. */

/* Every rank gets the parts of all ranks.
 *
 *   in       one part
 *   out      a part from each rank. In place, `in` is this rank's part of `out`
 *   options  ONESHOT; PUT and COPIES with `out` in a window, ONESHOT_MC in one with multicast */
SYMWIN_API symwin_status symwin_allgather(symwin_comm *comm, const void *in, void *out,
                                          uint64_t count, symwin_type type,
                                          struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_allgather_with(symwin_comm *comm, const void *in, void *out,
                                               uint64_t count, symwin_type type,
                                               const symwin_collective_options *options,
                                               struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_allgather_query(symwin_comm *comm, const void *in, const void *out,
                                                uint64_t count, symwin_type type,
                                                const symwin_collective_options *options,
                                                symwin_collective_info *info);

/* Every rank gets from every rank the part that is for it.
 *
 *   in       a part for each rank
 *   out      a part from each rank. In place, `out` is `in`: on all ranks or on none, if `out` is
 *            in a window, registered or captured
 *   options  ONESHOT; PUT and COPIES with `out` in a window, not in place */
SYMWIN_API symwin_status symwin_alltoall(symwin_comm *comm, const void *in, void *out,
                                         uint64_t count, symwin_type type,
                                         struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_alltoall_with(symwin_comm *comm, const void *in, void *out,
                                              uint64_t count, symwin_type type,
                                              const symwin_collective_options *options,
                                              struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_alltoall_query(symwin_comm *comm, const void *in, const void *out,
                                               uint64_t count, symwin_type type,
                                               const symwin_collective_options *options,
                                               symwin_collective_info *info);

/* Every rank, the root too, gets the root's part.
 *
 *   in       one part, of the root alone. Large parts are faster in place, or from a window
 *   out      one part. In place, `out` is `in`
 *   options  ONESHOT, TWOSHOT_PUSH; PUT, TWOSHOT and COPIES with `out` in a window, ONESHOT_MC in
 *            one with multicast. PUT and COPIES send all of it from the root to each rank: slow for
 *            large parts and more than two ranks */
SYMWIN_API symwin_status symwin_broadcast(symwin_comm *comm, const void *in, void *out,
                                          uint64_t count, symwin_type type, int root,
                                          struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_broadcast_with(symwin_comm *comm, const void *in, void *out,
                                               uint64_t count, symwin_type type, int root,
                                               const symwin_collective_options *options,
                                               struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_broadcast_query(symwin_comm *comm, const void *in, const void *out,
                                                uint64_t count, symwin_type type, int root,
                                                const symwin_collective_options *options,
                                                symwin_collective_info *info);

/* The root gets the parts of all ranks.
 *
 *   in       one part
 *   out      a part from each rank, of the root alone. In place, the root's `in` is its part of
 *            `out`
 *   options  ONESHOT; TWOSHOT with `in` in a window, at any offset on each rank; COPIES with `in`
 *            at one offset */
SYMWIN_API symwin_status symwin_gather(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                       symwin_type type, int root, struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_gather_with(symwin_comm *comm, const void *in, void *out,
                                            uint64_t count, symwin_type type, int root,
                                            const symwin_collective_options *options,
                                            struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_gather_query(symwin_comm *comm, const void *in, const void *out,
                                             uint64_t count, symwin_type type, int root,
                                             const symwin_collective_options *options,
                                             symwin_collective_info *info);

/* Every rank, the root too, gets the part of the root that is for it.
 *
 *   in       a part for each rank, of the root alone
 *   out      one part. In place, the root's `out` is its part of `in`
 *   options  ONESHOT; PUT with `out` in a window, at any offset on each rank; COPIES with `out` at
 *            one offset */
SYMWIN_API symwin_status symwin_scatter(symwin_comm *comm, const void *in, void *out,
                                        uint64_t count, symwin_type type, int root,
                                        struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_scatter_with(symwin_comm *comm, const void *in, void *out,
                                             uint64_t count, symwin_type type, int root,
                                             const symwin_collective_options *options,
                                             struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_scatter_query(symwin_comm *comm, const void *in, const void *out,
                                              uint64_t count, symwin_type type, int root,
                                              const symwin_collective_options *options,
                                              symwin_collective_info *info);

/* The two that reduce. Operations and the order of the ranks are as for symwin_allreduce(), whose
 * result has the same bits, except through multicast.
 *
 * Every rank gets its part of the result.
 *
 *   in       a part for each rank
 *   out      one part. In place, `out` is this rank's part of `in`
 *   options  ONESHOT; TWOSHOT with `in` in a window, TWOSHOT_MC in one with multicast */
SYMWIN_API symwin_status symwin_reduce_scatter(symwin_comm *comm, const void *in, void *out,
                                               uint64_t count, symwin_type type, symwin_op op,
                                               struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_reduce_scatter_with(symwin_comm *comm, const void *in, void *out,
                                                    uint64_t count, symwin_type type, symwin_op op,
                                                    const symwin_collective_options *options,
                                                    struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_reduce_scatter_query(symwin_comm *comm, const void *in,
                                                     const void *out, uint64_t count,
                                                     symwin_type type, symwin_op op,
                                                     const symwin_collective_options *options,
                                                     symwin_collective_info *info);

/* The root gets the result.
 *
 *   in       one part
 *   out      one part, of the root alone. In place, `out` is `in`. If it is in a window too, the
 *            ranks share the work; otherwise the root does all of a TWOSHOT
 *   options  ONESHOT, TWOSHOT_PUSH; TWOSHOT with `in` in a window, TWOSHOT_MC in one with
 *            multicast */
SYMWIN_API symwin_status symwin_reduce(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                       symwin_type type, symwin_op op, int root,
                                       struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_reduce_with(symwin_comm *comm, const void *in, void *out,
                                            uint64_t count, symwin_type type, symwin_op op,
                                            int root, const symwin_collective_options *options,
                                            struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_reduce_query(symwin_comm *comm, const void *in, const void *out,
                                             uint64_t count, symwin_type type, symwin_op op,
                                             int root, const symwin_collective_options *options,
                                             symwin_collective_info *info);

/* Parts of unequal lengths, one for each rank, in a buffer. Those of an output do not overlap, and
 * in place those of an input neither: on the host this is checked. */
typedef struct symwin_parts {
    const uint64_t *counts;        /* elements of each rank's part */
    const uint64_t *displacements; /* the element of the buffer at which each part begins. NULL, on
                                    * the host only: each begins where the one before it ends */
    /* Elements of the buffer, which every part has to end in; one without elements has to begin in
     * it, or at its end. 0: with arrays on the host, this is not checked; on the device, every part
     * that has elements fails. The parts on the host, and the room of those on the device, may not
     * pass the window or the allocation: see symwin_allreduce(). */
    uint64_t room;
    /* 0: the two arrays are in host memory, and are read by the call, also in a group and in a
     * capture. With more than 16 ranks a small kernel is launched ahead of the call's. Otherwise
     * they are in device memory of this rank, aligned to 8 bytes, each of an element for every rank
     * in one allocation, and are read while the call runs in its stream. So a kernel ahead of it
     * may write them, and no host waits; they must not change until the call has ended there. */
    int on_device;
} symwin_parts;

/* Every rank gets from every rank the part that is for it, of any length. The queries of calls with
 * parts answer for what this rank passes: with arrays in device memory, for the room.
 *
 *   in, out   device or pinned memory, aligned to the element. A buffer whose parts have no
 *             elements may be NULL
 *   in_parts  what this rank sends to each rank
 *   out_parts what it receives from each: as many elements as that rank sends. It stores no more
 *             than this, whatever is sent. Ranks may differ in where they have their arrays. In
 *             place, `out` is `in`, and both have equal parts; this is not checked on the device.
 *             If `out` is another buffer, in a window (symwin_window_register()), large parts are
 *             stored straight into it. The receiver alone has to know the window
 *   options   ONESHOT
 *
 * A rank without any element makes the call too.
 *
 *   SYMWIN_INVALID, on this rank alone
 *                       an array is missing, is not where on_device says, or passes the end of its
 *                       allocation in device memory; a part passes the room of its buffer, or this
 *                       rank does not send itself what it receives, with arrays in host memory; and
 *                       as above
 *   SYMWIN_MISMATCH     from symwin_comm_check(): two ranks differ in what one sends to the other,
 *                       with both counts; or, by arrays in device memory, a part passes the room
 *                       of its buffer, with the element at which it ends, or has elements in a
 *                       buffer that is NULL. It has not been accessed */
SYMWIN_API symwin_status symwin_alltoallv(symwin_comm *comm, const void *in,
                                          const symwin_parts *in_parts, void *out,
                                          const symwin_parts *out_parts, symwin_type type,
                                          struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_alltoallv_with(symwin_comm *comm, const void *in,
                                               const symwin_parts *in_parts, void *out,
                                               const symwin_parts *out_parts, symwin_type type,
                                               const symwin_collective_options *options,
                                               struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_alltoallv_query(symwin_comm *comm, const void *in,
                                                const symwin_parts *in_parts, const void *out,
                                                const symwin_parts *out_parts, symwin_type type,
                                                const symwin_collective_options *options,
                                                symwin_collective_info *info);

/* Every rank gets the parts of all ranks, of any length. Statuses are as for symwin_alltoallv().
 *
 *   in       this rank's part: parts->counts[rank] elements. If the arrays are in device memory,
 *            the kernel compares them with the window, or the memory of symwin_mem_alloc(), where
 *            `in` lies; elsewhere nobody does. In place, it is this rank's part of `out`
 *   out      a part from each rank. In a window it gets large parts as in symwin_alltoallv(), in
 *            place too
 *   parts    of `out`; the counts are equal on all ranks, and displacements need not be
 *   options  ONESHOT */
SYMWIN_API symwin_status symwin_allgatherv(symwin_comm *comm, const void *in, void *out,
                                           const symwin_parts *parts, symwin_type type,
                                           struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_allgatherv_with(symwin_comm *comm, const void *in, void *out,
                                                const symwin_parts *parts, symwin_type type,
                                                const symwin_collective_options *options,
                                                struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_allgatherv_query(symwin_comm *comm, const void *in, const void *out,
                                                 const symwin_parts *parts, symwin_type type,
                                                 const symwin_collective_options *options,
                                                 symwin_collective_info *info);

/* Every rank gets its part of the result, of any length. Operations, the order of the ranks and the
 * bits are as for symwin_reduce_scatter(), statuses as for symwin_alltoallv().
 *
 *   in       a part for each rank. Large parts are loaded straight from it where it lies in a
 *            window (symwin_window_register()), also if only some ranks' do, and at any offsets
 *   parts    of `in`; the counts are equal on all ranks, and displacements need not be
 *   out      parts->counts[rank] elements, which are checked as those of `in` in
 *            symwin_allgatherv(). In place, it is this rank's part of `in`
 *   options  ONESHOT; and the scalar of a PREMUL_SUM */
SYMWIN_API symwin_status symwin_reduce_scatterv(symwin_comm *comm, const void *in,
                                                const symwin_parts *parts, void *out,
                                                symwin_type type, symwin_op op,
                                                struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_reduce_scatterv_with(symwin_comm *comm, const void *in,
                                                     const symwin_parts *parts, void *out,
                                                     symwin_type type, symwin_op op,
                                                     const symwin_collective_options *options,
                                                     struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_reduce_scatterv_query(symwin_comm *comm, const void *in,
                                                      const symwin_parts *parts, const void *out,
                                                      symwin_type type, symwin_op op,
                                                      const symwin_collective_options *options,
                                                      symwin_collective_info *info);

/* What follows in a rank's stream waits for what comes before the call in all ranks' streams, and
 * sees what that has written, to other ranks' memory too. The host does not wait.
 *
 *   options  ONESHOT */
SYMWIN_API symwin_status symwin_barrier(symwin_comm *comm, struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_barrier_with(symwin_comm *comm,
                                             const symwin_collective_options *options,
                                             struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_barrier_query(symwin_comm *comm,
                                              const symwin_collective_options *options,
                                              symwin_collective_info *info);

/* Local: what follows in `stream` waits for this rank's calls on the communicator so far, on
 * whatever streams they are. For work that has to keep their order and is no call of symwin's. In a
 * capture it waits for the calls of that capture; outside, for those outside captures.
 *
 *   SYMWIN_BUSY  another thread is in a call on `comm` */
SYMWIN_API symwin_status symwin_comm_follow(symwin_comm *comm, struct CUstream_st *stream);

/* symwin_comm_check() of this rank's kernels alone: SYMWIN_OK until one of them has failed, also if
 * a rank has left that nobody needs any more. Over several domains it is symwin_comm_check(). Any
 * thread, as symwin_comm_check(). */
SYMWIN_API symwin_status symwin_comm_check_calls(symwin_comm *comm);

/* Sends elements to rank `peer`, or receives them from there. Only these two ranks take part. The
 * n-th send of a rank to a peer is for the n-th receive of the peer from it; both pass the same
 * count and type. Order, streams, captures and threads are as for symwin_allreduce(), among
 * collectives too. A send may end before its receive begins, or wait for it; so ranks that exchange
 * data, or pass it round a ring, make the send and the receive in one group. As a rule a
 * small send ends without its receive.
 *
 *   count    elements; 0 sends an empty message, which needs its receive too
 *   in, out  device or pinned memory, aligned to the element; NULL if count is 0. Large messages
 *            are stored straight into `out` if it lies in a window (symwin_window_register()),
 *            which the receiver alone has to know
 *   peer     a rank. This rank itself: with the other call of the two in one group
 *   options  ONESHOT; the grid
 *
 *   SYMWIN_INVALID   on this rank alone: there is no such rank; a call with this rank itself is
 *                    without its other one, or differs from it in count or type, or overlaps it in
 *                    part; and as above
 *   SYMWIN_MISMATCH  from symwin_comm_check(): the two ranks differ in count or type, with both
 *                    values, or without if the kernel of a small send has ended before. Nothing was
 *                    written outside `out`. Or a rank has destroyed its communicator and made no
 *                    receive for a message that had come
 *   SYMWIN_TIMEOUT   from symwin_comm_check(): names the rank that did not come, and of a send or
 *                    receive that waited count, type and peer; of several of a kind with that peer
 *                    in one launch the number, too */
SYMWIN_API symwin_status symwin_send(symwin_comm *comm, const void *in, uint64_t count,
                                     symwin_type type, int peer, struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_send_with(symwin_comm *comm, const void *in, uint64_t count,
                                          symwin_type type, int peer,
                                          const symwin_collective_options *options,
                                          struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_recv(symwin_comm *comm, void *out, uint64_t count, symwin_type type,
                                     int peer, struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_recv_with(symwin_comm *comm, void *out, uint64_t count,
                                          symwin_type type, int peer,
                                          const symwin_collective_options *options,
                                          struct CUstream_st *stream);

/* How the bytes of a message go from the sender's memory to the receiver's. */
typedef enum symwin_path {
    SYMWIN_PATH_RING = 0,     /* through a ring at the receiver, which copies them into `out` */
    SYMWIN_PATH_WINDOW = 1,   /* straight into `out` */
    SYMWIN_PATH_RECEIVER = 2, /* a large send: one of these two, which the receiver alone knows */
    SYMWIN_PATH_OWN = 3       /* copied: this rank is both */
} symwin_path;

typedef struct symwin_message_info {
    symwin_algo algo; /* ONESHOT */
    int blocks;       /* of the grid */
    int threads;      /* of a block */
    int few;          /* 1: by the kernel for few messages; 0: by that for any */
    symwin_path path;
} symwin_message_info;

/* What symwin_send_with() and symwin_recv_with() would launch on this rank for the same arguments,
 * as the only call of a group, or together with its other one if `peer` is this rank; outside
 * captures and on a stream of the whole device. Otherwise as symwin_allreduce_query(), but count
 * may be 0. Nothing is asked of the peer. SYMWIN_UNSUPPORTED over several domains. */
SYMWIN_API symwin_status symwin_send_query(symwin_comm *comm, const void *in, uint64_t count,
                                           symwin_type type, int peer,
                                           const symwin_collective_options *options,
                                           symwin_message_info *info);
SYMWIN_API symwin_status symwin_recv_query(symwin_comm *comm, const void *out, uint64_t count,
                                           symwin_type type, int peer,
                                           const symwin_collective_options *options,
                                           symwin_message_info *info);

/* Between these two, calls of collectives, sends and receives of this thread are checked and
 * collected; the outermost symwin_group_end() launches them. Groups may be nested, and may have
 * calls of several communicators, of several ranks that the thread drives too. Queries and other
 * calls are not collected. So symwin_comm_create(), symwin_comm_split() and
 * symwin_window_register(), which wait for the other ranks, are made in a thread for each rank.
 *
 * A call is in a capture if its stream is in one when symwin_group_end() launches it. So a capture
 * that ends within a group has none of the group's calls, which are launched outside it.
 *
 * A thread that ends with its group open launches nothing of it; the other ranks wait as after a
 * failure. Only the group's thread may destroy a communicator that has calls in it.
 *
 * The collectives of a communicator in a group come in the order of the calls. Those of several
 * communicators are launched in an order that the library chooses, so they do not use each other's
 * results; all ranks call them in one order. Up to 16 small calls in a row (128 KiB of parts
 * together, with the default slots) are made at once, in one launch; but not barriers, calls with
 * unequal parts, and calls by another algorithm than a one-shot. So all ranks put the same
 * collectives in a group. Their streams need not be alike, but two calls are in one capture on all
 * ranks or on none; streams of calls made at once wait for each other. If calls use each other's
 * results, the launch has one block. Memory that has several addresses is known by
 * symwin_window_peer_pointer() of any communicator, and by windows on mappings of one physical
 * allocation, of the communicator that is called; otherwise name it alike in a group. An import
 * counts as another allocation, also in the process that exported the memory.
 *
 * Registered buffers and captured ones are connected before anything is launched; if a group has
 * several communicators, for each in a thread of its own.
 *
 * The sends and receives of a communicator in a group make progress together, whatever their order:
 * exchanges and rings do not deadlock. They are on one stream, and come after the collectives of
 * the group. Messages of one pair keep their order. Those of several communicators come in one
 * order of the communicators on all ranks; otherwise their launches may wait for each other.
 *
 * If a call in a group fails, it returns its status and so does the outermost symwin_group_end();
 * nothing of the group is launched then. The same if memory that a call uses was freed since that
 * was made, unless other memory has its address by then. What fails in the driver while
 * symwin_group_end() launches may come when some calls are launched. The other ranks wait for this
 * one, until their kernel_timeout_ms or symwin_comm_abort(), and where calls connect buffers until
 * timeout_ms.
 *
 *   SYMWIN_INVALID   symwin_group_end(): no group is open; sends and receives of a communicator are
 *                    on two streams; a rank sends to itself and does not receive it; or a
 *                    communicator of the group was destroyed in it
 *   SYMWIN_MISMATCH  from symwin_comm_check(): as for one call, with the number of the call in the
 *                    group; or ranks group their calls otherwise */
SYMWIN_API symwin_status symwin_group_begin(void);
SYMWIN_API symwin_status symwin_group_end(void);

#ifdef __cplusplus
}
#endif
#endif
