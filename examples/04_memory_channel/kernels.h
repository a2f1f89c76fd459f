/* Arguments of the kernels, and their images. Plain C, and C++ for kernels.cu. */
#ifndef KERNELS_H
#define KERNELS_H

#include "symwin/channel.h"

enum {
    MOST_THREADS = 1024,
    MOST_BLOCKS = 256
}; /* of a grid; each block has a lane of the channel */

/* Positions are byte offsets in a rank's memory, equal on both ranks. */
struct copy_args {
    symwin_channel channel;
    symwin_limit limit;
    uint64_t from, to, bytes; /* bytes is a multiple of 8 */
    uint64_t packets;         /* for the peer's packets: 4 * bytes */
    /* MOST_BLOCKS 64-bit words, zero at first: number of packet calls */
    uint64_t calls;
    /* a 32-bit word, set to 1 when a wait reached its limit */
    uint64_t gave_up;
    uint32_t pieces, piece_bytes; /* of shared memory for bulk copies */
};

/* For real GPUs a fat binary; NULL: built without nvcc. For the emulated driver an image; NULL:
 * built outside symwin's source tree. */
#ifdef __cplusplus
extern "C" {
#endif
extern const void *const kernels_for_gpus, *const kernels_emulated;
#ifdef __cplusplus
}
#endif

#endif
