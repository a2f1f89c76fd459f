/* How the all-reduce by copies cuts a message, for the host, which makes the copies, and for the kernels, which sum
 * what they bring. Plain C99, C++17 and CUDA; a pure function of what the digest covers, so all ranks agree.
 *
 *   | head | share 0 | share 1 | ... | share nranks - 1 | tail |
 *          ^ a multiple of SW_COPIES_ALIGN in the output, as is every share's length
 *
 * Shares are equal. A share has a first chunk and, if it is long enough for two, a second. Head and tail, fewer bytes
 * than (nranks + 1) * SW_COPIES_ALIGN together, are reduced by loads from all ranks' inputs.
 */
#ifndef SYMWIN_KERNELS_COPIES_LAYOUT_H
#define SYMWIN_KERNELS_COPIES_LAYOUT_H

#include <stdint.h>

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
    uint64_t head;  /* bytes */
    uint64_t share; /* bytes of each */
    uint64_t first; /* bytes of the first chunk of each */
};

/* `size`: bytes of an element, of which out_offset is a multiple. */
SW_COPIES_FN struct sw_copies_layout sw_copies_layout_of(uint64_t count, uint32_t size,
                                                         int32_t nranks, uint64_t out_offset)
{
    const uint64_t bytes = count * size;
    struct sw_copies_layout layout = {(0 - out_offset) % SW_COPIES_ALIGN, 0, 0};

    if (layout.head > bytes)
        layout.head = bytes;
    layout.share = (bytes - layout.head) / (uint32_t)nranks / SW_COPIES_ALIGN * SW_COPIES_ALIGN;
    layout.first = (layout.share / SW_COPIES_ALIGN + 1) / 2 * SW_COPIES_ALIGN;
    return layout;
}

#undef SW_COPIES_FN

#endif
