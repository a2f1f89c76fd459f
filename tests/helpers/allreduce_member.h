/* A rank for all-reduces: its communicator, windows and buffers, and calls on them whose results
 * are compared with the plain reference. Ranks are threads or processes of harness_run(). */
#ifndef SYMWIN_TESTS_ALLREDUCE_MEMBER_H
#define SYMWIN_TESTS_ALLREDUCE_MEMBER_H

#include "harness.h"

enum {
    MEMBER_GUARD = 64,
    MEMBER_TYPES = 12,
    MEMBER_OPS = 6,
    MEMBER_ALGOS = 8,
    MEMBER_STREAMS = 3,
    MOST_RANKS = 72
};

extern const symwin_algo member_algos[MEMBER_ALGOS];

/* What all ranks share through `team->arg`. */
struct member_shared {
    size_t bytes; /* of the data part of each buffer */
    int thin;     /* makes every thin-th call only */
    const size_t *counts;
    int runs, streams; /* calls or replays; streams, 0: one */
    unsigned seed;
    size_t slot_bytes;
    unsigned char *inputs[MOST_RANKS]; /* host, `bytes` each */
    unsigned char *expected;           /* host, `bytes` */
    int failed;                        /* whether a rank, or this process, failed */
};

struct member {
    struct harness_team *team;
    struct member_shared *shared;
    int rank, device;
    symwin_comm *comm;
    struct CUstream_st *stream, *streams[MEMBER_STREAMS]; /* `stream` is the first */
    symwin_window *windows[2];
    atomic_int *wrong;       /* the team's: differences that ranks found since it was cleared */
    unsigned char *in, *out; /* device: MEMBER_GUARD + bytes + MEMBER_GUARD each, in windows */
    unsigned char *host;     /* as large */
    uint64_t scalar;         /* of a pre-multiplied sum: as member_prepare() has chosen it */
    void *scalar_at;         /* device: for one word */
};

struct placement {
    symwin_algo algo;
    size_t count;
    size_t in_offset, out_offset; /* bytes from the start of the data part */
    int in_place;
    int blocks, threads;
};

/* The body of each rank begins with member_create(), which says whether all ranks succeeded, and
 * ends with member_destroy() in either case. */
int member_create(struct member *m, struct harness_team *team, int rank);
void member_destroy(struct member *m);

/* Whether the call succeeded; if not, prints why and counts in `wrong`. */
int member_ok(const struct member *m, symwin_status status, const char *what);

int member_over_multicast(symwin_algo algo);
int member_offers(const struct member *m, symwin_algo algo, symwin_op op);

/* Collective: fills all ranks' inputs and the expected result of `count` elements. `whole`: floats
 * are small whole numbers, so that any order of additions gives one result. Each rank gets a scalar
 * of its own, which member_call() passes in host or device memory. */
void member_prepare(struct member *m, symwin_type type, symwin_op op, int whole, unsigned seed,
                    size_t count);

/* One call on prepared inputs: compares the result, what lies around it, and the input. Returns 0
 * if the library does not support the combination. */
int member_call(struct member *m, symwin_type type, symwin_op op, const struct placement *p);

/* ---- sequences of calls ---- */

/* Copies this rank's prepared input of words of 4 bytes to `to`. */
void member_put(struct member *m, void *to, size_t count);

/* Enqueues a call on device memory. */
symwin_status member_enqueue(struct member *m, symwin_algo algo, void *in, void *out, size_t count,
                             symwin_type type, symwin_op op, int blocks,
                             struct CUstream_st *stream);

/* Captures what `calls` enqueues to the first stream. *exec stays NULL on failure. */
symwin_status member_capture(struct member *m, CUstreamCaptureMode mode,
                             symwin_status (*calls)(struct member *m, size_t count), size_t count,
                             CUgraphExec *exec);

/* Checks that the words at `from` are the prepared sums times `factor`. */
void member_expect(struct member *m, const void *from, size_t count, uint32_t factor,
                   const char *what);

/* Collective: one TAP line, whether no rank found a difference; clears `wrong`. */
void member_report(struct member *m, const char *name);

/* Runs the body on `nranks` ranks with `s`, and checks that nothing is left behind. */
void member_run(int nranks, struct member_shared *s,
                void (*body)(struct harness_team *team, int rank, void *arg), const char *name);

#endif
