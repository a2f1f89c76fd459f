/* One call of your own kernel or of a library's algorithm, and its outcome. */
#ifndef PERF_CASES_H
#define PERF_CASES_H

#include "../perf/perf.h"

/* What is called: your own kernel or a library's algorithm. */
struct subject {
    struct own_kernel *own; /* NULL: the library */
    symwin_algo algo;       /* the library's algorithm */
    const struct own_about *about;
};

struct own_case {
    symwin_collective collective;
    int which; /* as in layout_of() */
    int slot;  /* where in the room it has its counts and displacements */
    symwin_type type;
    symwin_op op;
    uint64_t count;
    unsigned in_shift, out_shift; /* bytes beyond a multiple of 16 or of the kernel's alignment */
    int in_place;                 /* then the shifts are equal */
    int blocks, threads;          /* 0: the library's choice */
};

/* Buffers for messages of up to `bytes` bytes in the larger one, with a margin on both sides. */
struct room {
    size_t bytes;
    enum memory_kind kind;
    struct pair pair;  /* owned */
    CUdeviceptr parts; /* owned: counts and displacements, one behind the other; 0: none */
};

enum { ROOM_SLOTS = 6 };

/* What went wrong on some rank; all ranks know it. */
enum wrong { RIGHT, WRONG_RESULT, WROTE_BESIDE, CHANGED_INPUT, CHANGED_OUTPUT };

struct outcome {
    enum wrong wrong;
    int gave_up; /* 1 + the first rank with a wait at its limit; 0: none */
    int rank;
    uint64_t index, got, want; /* WROTE_BESIDE: index is an offset in bytes, the rest unused */
};

enum { CASE_TEXT = 256 };

/* Collective. */
int room_open(struct rank *r, const struct subject *subject, size_t bytes, struct room *room);
void room_close(struct rank *r, struct room *room);

/* The buffers of a call on a rank, in bytes. */
struct spot {
    struct layout is;
    unsigned char *in, *out;
    size_t in_bytes, out_bytes;
    unsigned char *whole; /* the one buffer in place; otherwise the output */
    size_t whole_bytes;
};

struct spot case_spot(const struct rank *r, const struct room *room, const struct own_case *c);

/* Bytes of the larger buffer. */
size_t case_bytes(const struct rank *r, const struct own_case *c);

/* Queues filling the input, and filling the output with wrong values; and the arrays of unequal
 * parts. */
int case_fill(struct rank *r, const struct room *room, const struct own_case *c,
              const struct perf_data *data);

/* Queues the call. A barrier moves nothing: it is the second step of an all-gather, in which each
 * rank writes its part, and copies those of its peers behind the barrier; and a barrier ends it. */
int case_call(struct rank *r, const struct subject *subject, const struct room *room,
              const struct own_case *c);

/* One call alone, with all checks. Collective. */
int case_try(struct rank *r, const struct subject *subject, const struct room *room,
             const struct own_case *c, uint32_t seed, struct outcome *outcome);

/* Tells all ranks the outcome of the first rank that failed. Collective. */
int outcome_meet(struct rank *r, struct outcome *outcome);

/* Prints "f32 sum, 5 elements in place, 2 blocks of 64 threads", and the outcome of the case. */
void case_print(const struct own_case *c, char text[CASE_TEXT]);
void outcome_print(const struct outcome *outcome, const struct own_case *c, char text[CASE_TEXT]);

struct perf_data case_data(const struct rank *r, const struct own_case *c, uint32_t seed);

/* The next number of a random sequence. */
uint32_t random_next(uint64_t *state);

#endif
