/* How the two-shot put divides a message: for its kernel, and for copies in place, which begin with
 * a put (copies_layout.h). Plain C99, C++17 and CUDA. A pure function of the digest's inputs and
 * the communicator, so all ranks agree.
 *
 *   | share 0                      | share 1                      | ... | share nranks - 1      |
 *   | round 0 | round 1 | ...      | round 0 | round 1 | ...      |     | round 0 | ...         |
 *   | copied  | round 0 | ...      | copied  | round 0 | ...      |     | copied | round 0 | .. |
 *
 * The last line is the layout with copies. Sizes are in entries; the message need not be aligned.
 * The last rounds and shares may have fewer entries, or none.
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
    uint64_t copied; /* the first entries of a share, which are copied */
    uint32_t extent; /* entries of a share in a round, at most */
    uint32_t rounds;
};

/* Bytes of the message in an entry: half of the entry is flags if the type has no spare pattern. */
#define SW_PUT_PAYLOAD(spares) ((spares) ? 16u : 8u)

/* Whether a part may be copied: its addition needs whole vectors. */
#define SW_PUT_COPIES(out_offset) ((out_offset) % 16 == 0)

/* Entries of a receive slot. Slots have room for two stages; a put has only one. */
#define SW_PUT_ROOM(slot_bytes) (2 * (uint64_t)(slot_bytes) / 16)

/* `payload`: SW_PUT_PAYLOAD(); `room`: SW_PUT_ROOM(). Shares are multiples of 8 entries (a line of
 * 128 bytes), except the last ones. With `copies`, slightly less than half of each share is left to
 * copies, so that the rest of every share, also of the last one, has room for the copied data. */
SW_PUT_FN struct sw_put_layout sw_put_layout_of(uint64_t bytes, uint32_t payload, int32_t nranks,
                                                uint64_t room, int copies)
{
    const uint64_t most = room < (uint64_t)1 << 31 ? room : (uint64_t)1 << 31;
    const uint64_t entries = (bytes + payload - 1) / payload;
    const uint64_t even = (entries + (uint32_t)nranks - 1) / (uint32_t)nranks;
    /* entries missing in the last share, at most */
    const uint64_t lacking = 16 * (uint64_t)(uint32_t)nranks;
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
