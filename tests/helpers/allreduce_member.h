/* A rank of a team for all-reduces: its communicator, windows and buffers, and one call on them, compared
 * with the plain reference. */
#ifndef SYMWIN_TESTS_ALLREDUCE_MEMBER_H
#define SYMWIN_TESTS_ALLREDUCE_MEMBER_H

#include <stdatomic.h>
#include <stddef.h>

#include "symwin.h"

struct harness_team;

enum { MEMBER_GUARD = 64, MEMBER_TYPES = 12, MEMBER_OPS = 5, MEMBER_ALGOS = 8, MOST_RANKS = 72 };

extern const symwin_algo member_algos[MEMBER_ALGOS];

/* What all ranks share through `team->arg`. */
struct member_shared {
    size_t bytes; /* of the data part of each buffer */
    int thin;
    const size_t *counts;
    int runs;
    unsigned seed;
    size_t slot_bytes;
    unsigned char *inputs[MOST_RANKS]; /* host, `bytes` each */
    unsigned char *expected;           /* host, `bytes` */
    int failed; /* rank 0, or this process's: something went wrong at the end */
};

struct member {
    struct harness_team *team;
    struct member_shared *shared;
    int rank, device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    symwin_window *windows[2];
    atomic_int *wrong;       /* the team's: ranks that found a difference since it was cleared */
    unsigned char *in, *out; /* device: MEMBER_GUARD + bytes + MEMBER_GUARD each, in windows */
    unsigned char *host;     /* as large */
};

struct placement {
    symwin_algo algo;
    size_t count;
    size_t in_offset, out_offset; /* bytes from the start of the data part */
    int in_place;
    int blocks, threads;
};

/* Whether everything is there, on all ranks; member_destroy() comes after either. */
int member_create(struct member *m, struct harness_team *team, int rank);
void member_destroy(struct member *m);

/* Whether the call succeeded; else says why and counts in `wrong`. */
int member_ok(const struct member *m, symwin_status status, const char *what);

int member_over_multicast(symwin_algo algo);
int member_offers(const struct member *m, symwin_algo algo, symwin_op op);

/* Fills all ranks' inputs and the expected result of `count` elements, then lets everybody go on. */
void member_prepare(struct member *m, symwin_type type, symwin_op op, int multicast, unsigned seed,
                    size_t count);

/* One call on prepared inputs. Returns 0 if the library does not offer the combination. */
int member_call(struct member *m, symwin_type type, symwin_op op, const struct placement *p);

#endif
