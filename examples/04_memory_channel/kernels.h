/* What main.c passes to the kernels, and where they are. Plain C, and C++ for kernels.cu. */
#ifndef KERNELS_H
#define KERNELS_H

#include "symwin/channel.h"

enum {
    MOST_THREADS = 1024,
    MOST_BLOCKS = 256
}; /* of a grid; each block has a lane of the channel */

/* Places are bytes from the beginning of a rank's memory, alike on both. */
struct copy_args {
    symwin_channel channel;
    symwin_limit limit;
    uint64_t from, to, bytes; /* what is copied, in whole words of 8 bytes */
    uint64_t packets;         /* where the peer's packets come to: room for 4 * bytes */
    uint64_t calls;   /* MOST_BLOCKS words, zero at first: how many calls by packets there were */
    uint64_t gave_up; /* a word of 32 bits that becomes 1 where a wait has come to its limit */
    uint32_t pieces, piece_bytes; /* of the shared memory that bulk copies go through */
};

/* For real GPUs a fat binary, NULL: nvcc has not made any. For the emulated driver an image, NULL: this was not built in
 * symwin's source tree. */
#ifdef __cplusplus
extern "C" {
#endif
extern const void *const kernels_for_gpus, *const kernels_emulated;
#ifdef __cplusplus
}
#endif

#endif
