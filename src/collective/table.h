/* The table of collectives: what each one is, and what its algorithms need. Calls, selection,
 * tables of measured choices, loading of kernels and symwin-perf read it, so that a new
 * collective is a row, a kernel file and a public call. */
#ifndef SYMWIN_COLLECTIVE_TABLE_H
#define SYMWIN_COLLECTIVE_TABLE_H

#include "src/collective/kernel_table.h"

/* What an algorithm needs, as bits; and what it lacks for a call, in the order in which that is
 * looked for. */
enum sw_service {
    SW_SERVES = 0,
    SW_NEEDS_ALGORITHM = 1, /* the collective does not have it */
    SW_NEEDS_WINDOWS = 2,   /* both buffers in windows, at offsets that are equal on all ranks */
    SW_NEEDS_MULTICAST = 4,
    SW_NEEDS_KERNEL = 8, /* of its own, for this type and operation: it was compiled for sm_90 */
    SW_NEEDS_TWO_BUFFERS = 16,
    SW_NEEDS_STREAMS = 32 /* the caller's and the communicator's two, at the same time */
};

/* What the time of a call depends on, by the model. */
struct sw_model {
    int nranks;
    size_t bytes; /* that a rank passes: count elements */
    int is_float;
    int most_blocks; /* a limit that the message feels; 0: none */
    int own_loads;   /* loads over windows go by a kernel for the number of ranks */
};

/* Whether a collective has an algorithm, and whether the model may choose it. */
enum sw_chosen {
    SW_ABSENT,
    SW_NEVER_CHOSEN,
    SW_CHOSEN,
    SW_CHOSEN_FEW_BLOCKS /* where a limit leaves few */
};

struct sw_call;

enum { SW_ANY_RANKS = -1 };

struct sw_algorithm {
    enum sw_chosen chosen;
    unsigned needs;                               /* enum sw_service */
    double (*model_us)(const struct sw_model *m); /* NULL: was never measured */
    /* Whose kernels serve types that have no pattern to spare; AUTO: its own do. */
    symwin_algo integers;
    int control_warps;    /* the last warp of its blocks does no part of the message (push.cuh) */
    int round_slots;      /* half slots of a round; SW_ANY_RANKS: one for each rank; 0: no matter */
    int shared;           /* its blocks take all the shared memory that they can */
    int words;            /* there are kernels for short messages, by words */
    int long_ranks;       /* whose kernels for long messages there are, or SW_ANY_RANKS; 0: none */
    unsigned most_blocks; /* more gain nothing; 0: they do */
    unsigned own_blocks, own_below; /* by a kernel for the number of ranks, of a limit in between */
    /* Queues a call that is more than one launch, and that counts one block; NULL: it is one. */
    symwin_status (*queue)(const struct sw_call *call);
};

struct sw_collective {
    const char *call; /* "symwin_allreduce" */
    int reduces;      /* else there is one kernel for all types, which moves bytes */
    int has_root;
    int in_each, out_each; /* a rank's input, or output, has `count` elements for each rank */
    int crossings;         /* of a link, by each byte of the larger buffer: times (n - 1) / n */
    int uses_windows;      /* registered buffers become windows for it */
    symwin_algo small;     /* what serves every call */
    /* Where there is multicast: for small messages, and for those that `small` would not get. AUTO:
     * none. */
    symwin_algo small_multicast, large_multicast;
    const struct sw_algorithm *algos; /* by symwin_algo, SW_ALGOS of them */
};

extern const struct sw_collective sw_collectives[SW_COLLECTIVES]; /* by symwin_collective */

static inline const struct sw_algorithm *sw_algorithm(symwin_collective collective,
                                                      symwin_algo algo)
{
    return &sw_collectives[collective].algos[algo];
}

static inline int sw_algo_is_there(symwin_collective collective, symwin_algo algo)
{
    return sw_algorithm(collective, algo)->chosen != SW_ABSENT;
}

static inline int sw_algo_needs(symwin_collective collective, symwin_algo algo, unsigned what)
{
    return (sw_algorithm(collective, algo)->needs & what) != 0;
}

/* The size of a call, as tables of measured choices and symwin-perf count: bytes of the larger
 * buffer. `bytes`: of `count` elements. */
static inline size_t sw_collective_size(symwin_collective collective, int nranks, size_t bytes)
{
    const struct sw_collective *c = &sw_collectives[collective];

    return c->in_each || c->out_each ? bytes * (size_t)nranks : bytes;
}

/* Others are integers, which have no pattern of bits to spare: pushes carry flags beside them. */
static inline int sw_type_is_float(symwin_type type)
{
    return type <= SYMWIN_F8E5M2;
}

/* ---- model.c: the times, less what all have in common ---------------------------------------- */

double sw_model_flags(const struct sw_model *m);    /* one-shot, by entries with flags */
double sw_model_sentinel(const struct sw_model *m); /* by entries that are all payload, of floats */
double sw_model_push(const struct sw_model *m);
double sw_model_put(const struct sw_model *m);
double sw_model_loads(const struct sw_model *m);
double sw_model_bulk(const struct sw_model *m);
double sw_model_copies(const struct sw_model *m);

#endif
