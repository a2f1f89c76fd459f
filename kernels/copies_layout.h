/* How the all-reduce by copies divides a message: for the host, which queues the copies, and for
 * the kernels, which sum the copied data. Plain C99, C++17 and CUDA. A pure function of the
 * digest's inputs and the communicator, so all ranks agree.
 *
 *   | head | share 0             | share 1             | ... | share nranks - 1     | tail |
 *          | first | second      | first | second      |     | first | second       |  out of place
 *          | first | second |put | first | second |put |     | first | second |put |  in place
 *
 * Out of place, the start of a share in the output and its length are multiples of SW_COPIES_ALIGN,
 * and all of it is copied. Head and tail, together fewer than (nranks + 1) * SW_COPIES_ALIGN
 * bytes, are reduced by loads from all ranks' inputs.
 *
 * In place there is no head or tail, the last shares may be shorter, and the two-shot put handles
 * its part as put_layout.h says. The data of copies stays in the put's part of the share until it
 * is added.
 */
#ifndef SYMWIN_KERNELS_COPIES_LAYOUT_H
#define SYMWIN_KERNELS_COPIES_LAYOUT_H

#include "kernel_args.h"
#include "put_layout.h"

#ifdef __CUDACC__
#define SW_COPIES_FN static __host__ __device__ __forceinline__
#else
#define SW_COPIES_FN static inline
#endif

#define SW_COPIES_ALIGN 128 /* bytes: one cache line, and whole vectors */

/* args.stage of a kernel. */
enum sw_copies_stage {
    SW_COPIES_BEGIN = 0,
    SW_COPIES_SUM_FIRST = 1, /* the first chunk, with head and tail */
    SW_COPIES_SUM_SECOND = 2,
    SW_COPIES_END = 3
};

/* Words of SW_STATE_COPIES. */
enum sw_copies_word {
    SW_COPIES_HERE = 0,   /* and 1, by chunk: the sender's pieces are in my output */
    SW_COPIES_SUMMED = 2, /* and 3: the sender has read the pieces in its output */
    /* the sender's results are in my output, and it no longer reads my input */
    SW_COPIES_ENDED = 4
};

struct sw_copies_layout {
    uint64_t head;    /* bytes */
    uint64_t share;   /* bytes from one share to the next */
    uint64_t copied;  /* bytes of each share that are copied */
    uint64_t first;   /* bytes of the first chunk of `copied` */
    uint64_t landing; /* offset in a share where copied data stays until it is added */
};

SW_COPIES_FN int sw_copies_in_place(const struct sw_kernel_args *args)
{
    return args->in_offset == args->out_offset;
}

/* `size`: bytes of an element; out_offset is a multiple of it. `spares`: the type has a spare
 * pattern. */
SW_COPIES_FN struct sw_copies_layout sw_copies_layout_of(const struct sw_kernel_args *args,
                                                         uint32_t size, int spares)
{
    const uint64_t bytes = args->count * size;
    struct sw_copies_layout layout = {(0 - args->out_offset) % SW_COPIES_ALIGN, 0, 0, 0, 0};

    if (sw_copies_in_place(args)) {
        const uint32_t entry = SW_PUT_PAYLOAD(spares);
        const struct sw_put_layout put = sw_put_layout_of(bytes, entry, args->nranks,
                                                          SW_PUT_ROOM(args->slot_bytes),
                                                          SW_PUT_COPIES(args->out_offset));

        layout.head = 0;
        layout.share = put.share * entry;
        layout.copied = layout.landing = put.copied * entry;
    } else {
        if (layout.head > bytes)
            layout.head = bytes;
        layout.share = (bytes - layout.head) / (uint32_t)args->nranks / SW_COPIES_ALIGN *
                       SW_COPIES_ALIGN;
        layout.copied = layout.share;
    }
    layout.first = (layout.copied / 2 + SW_COPIES_ALIGN - 1) / SW_COPIES_ALIGN * SW_COPIES_ALIGN;
    if (layout.first > layout.copied)
        layout.first = layout.copied;
    return layout;
}

#undef SW_COPIES_FN

#endif
