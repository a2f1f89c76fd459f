/* How the all-reduce by copies cuts a message, for the host, which makes the copies, and for the kernels, which sum
 * what they bring. Plain C99, C++17 and CUDA; a pure function of what the digest and the communicator say, so all ranks
 * agree.
 *
 *   | head | share 0             | share 1             | ... | share nranks - 1     | tail |
 *          | first | second      | first | second      |     | first | second       |       out of place
 *          | first | second |put | first | second |put |     | first | second | put |        in place
 *
 * Out of place a share, and its length, is a multiple of SW_COPIES_ALIGN in the output, and copies bring all of it.
 * Head and tail, fewer bytes than (nranks + 1) * SW_COPIES_ALIGN together, are reduced by loads from all ranks'
 * inputs. In place there are none, the last shares may be shorter, and the put brings what it says (put_layout.h):
 * what copies bring is kept where that was, until it is added.
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

#define SW_COPIES_ALIGN 128 /* bytes: a line of memory, and whole vectors */

/* args.stage of a kernel. */
enum sw_copies_stage {
    SW_COPIES_BEGIN = 0,
    SW_COPIES_SUM_FIRST = 1, /* of the first chunk, with head and tail */
    SW_COPIES_SUM_SECOND = 2,
    SW_COPIES_END = 3
};

/* Words of SW_STATE_COPIES. */
enum sw_copies_word {
    SW_COPIES_HERE = 0,   /* and 1, by chunk: the sender's pieces are in my output */
    SW_COPIES_SUMMED = 2, /* and 3: the sender has read the pieces in its output */
    SW_COPIES_ENDED = 4   /* the sender's results are in my output, and it reads my input no more */
};

struct sw_copies_layout {
    uint64_t head;    /* bytes */
    uint64_t share;   /* from one share to the next */
    uint64_t copied;  /* of each, by copies */
    uint64_t first;   /* bytes of the first chunk of these */
    uint64_t landing; /* how far into a share they are kept until they are added */
};

SW_COPIES_FN int sw_copies_in_place(const struct sw_kernel_args *args)
{
    return args->in_offset == args->out_offset;
}

/* `size`: bytes of an element, of which out_offset is a multiple; `spares`: its type has a pattern to spare. */
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
