/* How the two-shot put cuts a message, for its kernel, and for the host, which has results copied (copies.c). Plain
 * C99, C++17 and CUDA; a pure function of what the digest and the communicator say, so all ranks agree.
 *
 *   | share 0                      | share 1                      | ... | share nranks - 1 |
 *   | round 0 | round 1 | ...      | round 0 | round 1 | ...      |     | round 0 | ...    |
 *
 * In entries: a share has rounds * extent, the last shares fewer, or none. The message need not be aligned.
 */
#ifndef SYMWIN_KERNELS_PUT_LAYOUT_H
#define SYMWIN_KERNELS_PUT_LAYOUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define SW_PUT_FN static __host__ __device__ __forceinline__
#else
#define SW_PUT_FN static inline
#endif

/* args.stage: where results are stored. */
enum sw_put_stage {
    SW_PUT_EVERYWHERE = 0,
    SW_PUT_HERE = 1 /* in this rank's output only */
};

struct sw_put_layout {
    uint64_t share;  /* entries of a share */
    uint32_t extent; /* entries of a share in a round */
    uint32_t rounds;
};

/* What an entry of a message carries, in bytes: half of it is flags where no pattern can be spared. */
#define SW_PUT_PAYLOAD(spares) ((spares) ? 16u : 8u)

/* Entries that a receive slot has: slots are for two stages, of which a put has one. */
#define SW_PUT_ROOM(slot_bytes) (2 * (uint64_t)(slot_bytes) / 16)

/* `payload` and `room`: see above. Shares are whole lines of 128 bytes, if there is room for them. */
SW_PUT_FN struct sw_put_layout sw_put_layout_of(uint64_t bytes, uint32_t payload, int32_t nranks,
                                                uint64_t room)
{
    const uint64_t most = room < (uint64_t)1 << 31 ? room : (uint64_t)1 << 31;
    const uint64_t entries = (bytes + payload - 1) / payload;
    const uint64_t even = (entries + (uint32_t)nranks - 1) / (uint32_t)nranks;
    struct sw_put_layout layout = {0, (uint32_t)even, 1};
    uint32_t lines;

    if (even > most) {
        layout.rounds = (uint32_t)((even + most - 1) / most);
        layout.extent = (uint32_t)((even + layout.rounds - 1) / layout.rounds);
    }
    lines = (layout.extent + 7) / 8 * 8;
    if (lines <= most)
        layout.extent = lines;
    layout.share = (uint64_t)layout.rounds * layout.extent;
    return layout;
}

#undef SW_PUT_FN

#endif
