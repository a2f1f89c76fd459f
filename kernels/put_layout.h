/* How the two-shot put cuts a message, for its kernel, and for copies in place, which begin with one (copies_layout.h).
 * Plain C99, C++17 and CUDA; a pure function of what the digest and the communicator say, so all ranks agree.
 *
 *   | share 0                      | share 1                      | ... | share nranks - 1      |
 *   | round 0 | round 1 | ...      | round 0 | round 1 | ...      |     | round 0 | ...         |
 *   | copied  | round 0 | ...      | copied  | round 0 | ...      |     | copied | round 0 | .. |  with copies
 *
 * In entries; the message need not be aligned. The last rounds and shares may have fewer, or none.
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
    uint64_t share;  /* entries from one share to the next */
    uint64_t copied; /* of these the first, which copies bring */
    uint32_t extent; /* entries of a share in a round, at the most */
    uint32_t rounds;
};

/* What an entry of a message carries, in bytes: half of it is flags where no pattern can be spared. */
#define SW_PUT_PAYLOAD(spares) ((spares) ? 16u : 8u)

/* Whether copies may bring a part: they are added by whole vectors. */
#define SW_PUT_COPIES(out_offset) ((out_offset) % 16 == 0)

/* Entries that a receive slot has: slots are for two stages, of which a put has one. */
#define SW_PUT_ROOM(slot_bytes) (2 * (uint64_t)(slot_bytes) / 16)

/* `payload` and `room`: see above. Shares are whole lines of 8 entries, but for the last ones. With `copies` half of
 * each is left to these, or somewhat less: so that the rest of every share, the last one too, has room for it. */
SW_PUT_FN struct sw_put_layout sw_put_layout_of(uint64_t bytes, uint32_t payload, int32_t nranks,
                                                uint64_t room, int copies)
{
    const uint64_t most = room < (uint64_t)1 << 31 ? room : (uint64_t)1 << 31;
    const uint64_t entries = (bytes + payload - 1) / payload;
    const uint64_t even = (entries + (uint32_t)nranks - 1) / (uint32_t)nranks;
    const uint64_t lacking = 16 * (uint64_t)(uint32_t)nranks; /* in the last share, at the most */
    struct sw_put_layout layout = {(even + 7) / 8 * 8, 0, 0, 1};
    uint64_t left, lines;

    if (copies && layout.share > lacking)
        layout.copied = (layout.share - lacking) / 2 / 8 * 8;
    left = layout.share - layout.copied;
    layout.extent = (uint32_t)left;
    if (left > most) {
        layout.rounds = (uint32_t)((left + most - 1) / most);
        layout.extent = (uint32_t)((left + layout.rounds - 1) / layout.rounds);
    }
    lines = ((uint64_t)layout.extent + 7) / 8 * 8;
    if (lines <= most)
        layout.extent = (uint32_t)lines;
    return layout;
}

#undef SW_PUT_FN

#endif
