/* The kernels of the tests of the device API, as the tests see them: their arguments, and the image
 * that the emulated driver loads. The kernels are in device_kernels.cuh. C and C++, and nvcc. */
#ifndef SYMWIN_TESTS_DEVICE_KERNELS_H
#define SYMWIN_TESTS_DEVICE_KERNELS_H

#include <stdint.h>

#include "symwin/channel.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct sw_emu_image device_image;

#ifdef __cplusplus
}
#endif

enum { CHANNEL_THREAD, CHANNEL_WARP, CHANNEL_BLOCK, CHANNEL_GRID, CHANNEL_GROUPS };
enum { CHANNEL_THREADS = 64 };

struct channel_copy_args {
    uint64_t to, from, bytes;
    uint32_t group, unused;
};

struct channel_bulk_args {
    struct channel_copy_args copy;
    uint32_t pieces, piece_bytes;
    uint64_t cuts;
};

struct channel_play_args {
    uint64_t own, theirs, signals, their_signals, waited;
    uint64_t bytes, turns;
    uint64_t first, their_first; /* the first words' values */
    uint64_t first_flag;
    /* Address of two words of 32 bits: how many words were wrong; whether a wait timed out. */
    uint64_t wrong;
    uint64_t timeout_ns, abort;
};

struct channel_bulk_play_args {
    struct channel_play_args play;
    uint32_t pieces, piece_bytes;
};

struct channel_rate_args {
    uint64_t to, from, bytes;
    uint64_t signals, their_signals, waited;
    uint64_t gave_up;             /* address of a word of 32 bits: whether a wait timed out */
    uint32_t pieces, piece_bytes; /* of the ring; 0 pieces: threads copy */
    uint64_t timeout_ns;
};

enum { PACKETS_8, PACKETS_16, PACKETS_LINES, PACKETS_KINDS };

/* There are two places, two sources and two targets, each `room` bytes apart. */
struct packet_args {
    uint64_t places, their_places, source, target, room, bytes;
    uint64_t epoch;              /* address of the epoch's words */
    uint64_t since;              /* epochs that ended before the first call */
    uint64_t first, their_first; /* the first words' values */
    uint64_t wrong;              /* as in channel_play_args */
    uint32_t kind, group;
    uint64_t timeout_ns, abort;
};

enum { TEAM_ALL, TEAM_NEAR, TEAM_ACROSS };

/* A window and a team of its ranks. `words` and `wrong` are offsets in the window, `barrier` is an
 * offset in the flat range. */
struct team_args {
    uint64_t base, stride;
    int32_t rank, nranks;
    uint64_t offset, bytes;
    uint32_t team;
    int32_t size;
    uint64_t words, barrier, wrong;
    uint64_t turns, launched; /* turns of earlier launches */
    uint64_t timeout_ns, abort;
};

enum { REDUCE_TO_SELF, REDUCE_TO_ALL };

/* A message of `count` elements at `offset` of the flat range, on the ranks of a team. */
struct reduce_args {
    uint64_t base, stride;
    int32_t rank, nranks;
    uint32_t team;
    int32_t size;
    uint64_t to; /* an address; for REDUCE_TO_ALL an offset */
    uint64_t offset, count;
    uint32_t op, group; /* a symwin_op */
    uint32_t reach, unused;
};

enum { ENDS_THREADS = 64 };

struct ends_args {
    symwin_channel channel;
    symwin_limit limit;
    uint64_t bytes, turns; /* bytes of a piece */
    uint64_t first, their_first;
    uint64_t first_flag;
    /* Address of two words of 32 bits: how many words were wrong; whether a wait timed out. */
    uint64_t wrong;
};

#endif
