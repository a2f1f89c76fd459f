/* What tests pass to the kernels of tests/helpers/channel_kernels.cuh and its neighbours. */
#ifndef SYMWIN_TESTS_CHANNEL_ARGS_H
#define SYMWIN_TESTS_CHANNEL_ARGS_H

#include <stdint.h>

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
    uint64_t first, their_first; /* what the words count from */
    uint64_t first_flag;
    uint64_t
        wrong; /* two words of 32 bits: words that are wrong, and whether a wait was given up */
    uint64_t timeout_ns, abort;
};

struct channel_bulk_play_args {
    struct channel_play_args play;
    uint32_t pieces, piece_bytes;
};

struct channel_rate_args {
    uint64_t to, from, bytes;
    uint64_t signals, their_signals, waited;
    uint64_t gave_up;             /* a word of 32 bits */
    uint32_t pieces, piece_bytes; /* of the ring; no pieces: by threads */
    uint64_t timeout_ns;
};

enum { PACKETS_8, PACKETS_16, PACKETS_LINES, PACKETS_KINDS };

/* Places, source and target are two each, `room` bytes apart. */
struct packet_args {
    uint64_t places, their_places, source, target, room, bytes;
    uint64_t epoch;              /* address of the words of the epoch */
    uint64_t since;              /* epochs that are over before the first call */
    uint64_t first, their_first; /* what the words count from */
    uint64_t wrong;              /* as in channel_play_args */
    uint32_t kind, group;
    uint64_t timeout_ns, abort;
};

enum { TEAM_ALL, TEAM_NEAR, TEAM_ACROSS };

/* A window, and a team of its ranks. `words` and `wrong` are offsets in the window, `barrier` in the flat range. */
struct team_args {
    uint64_t base, stride;
    int32_t rank, nranks;
    uint64_t offset, bytes;
    uint32_t team;
    int32_t size;
    uint64_t words, barrier, wrong;
    uint64_t turns, launched; /* turns of the launches before */
    uint64_t timeout_ns, abort;
};

enum { REDUCE_TO_SELF, REDUCE_TO_ALL };

/* A message of `count` elements at `offset` of the flat range, of the ranks of a team as above. */
struct reduce_args {
    uint64_t base, stride;
    int32_t rank, nranks;
    uint32_t team;
    int32_t size;
    uint64_t to; /* an address, or of REDUCE_TO_ALL an offset */
    uint64_t offset, count;
    uint32_t op, group; /* symwin_op, as symwin.h has it */
    uint32_t reach, unused;
};

#endif
