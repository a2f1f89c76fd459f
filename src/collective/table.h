/* The table of collectives: what each one is, and what its algorithms need. Calls, selection,
 * tables of measured choices, loading of kernels and symwin-perf read it, so a new collective is a
 * row, a kernel file and a public call. */
#ifndef SYMWIN_COLLECTIVE_TABLE_H
#define SYMWIN_COLLECTIVE_TABLE_H

#include "src/collective/kernel_table.h"

/* Of a buffer: more than memory has addresses for. */
#define SW_MOST_BYTES ((uint64_t)1 << 48)

/* What an algorithm needs, as bits. Also what a call lacks for it, checked in this order. */
enum sw_support {
    SW_SUPPORTED = 0,
    SW_NEEDS_ALGORITHM = 1, /* the collective does not have it */
    SW_NEEDS_WINDOWS = 2,   /* the buffers that the collective names are in windows */
    SW_NEEDS_MULTICAST = 4,
    SW_NEEDS_KERNEL = 8, /* a kernel for this type and operation: it was compiled for sm_90 */
    SW_NEEDS_TWO_BUFFERS = 16,
    SW_NEEDS_STREAMS = 32 /* the caller's and the communicator's two run at the same time */
};

/* What the time of a call depends on in the model. */
struct sw_model {
    int nranks;
    size_t bytes; /* passed by one rank: of `count` elements */
    int is_float;
    int most_blocks; /* a limit that slows the message; 0: none */
    int own_loads;   /* loads over windows use a kernel for this number of ranks */
    int bundles;     /* pushes that move bytes send bundles */
    int one_device;  /* all ranks share it, and no link is used */
};

/* Whether a collective has an algorithm, and whether the model may select it. */
enum sw_chosen {
    SW_ABSENT,
    SW_NEVER_CHOSEN,
    SW_CHOSEN,
    SW_CHOSEN_FEW_BLOCKS /* only if a limit leaves few blocks */
};

/* Where the algorithms over windows need a buffer. */
enum sw_lies {
    SW_ANYWHERE,
    SW_AT_ONE_OFFSET,   /* in a window, at one offset on all ranks */
    SW_AT_ANY_OFFSET,   /* in a window on all ranks, which tell the root where (call.cuh: offers) */
    SW_WHERE_ROOT_TELLS /* anywhere; the root's alone, which tells the others where it is */
};

/* Whether registered buffers, those that all ranks pass at one offset, become windows for it. */
enum sw_connects {
    SW_CONNECTS_NEVER,
    SW_CONNECTS_TO_USE, /* if windows make a difference to the call */
    SW_CONNECTS_ALWAYS
};

struct sw_call;

enum { SW_ANY_RANKS = -1 };

struct sw_algorithm {
    enum sw_chosen chosen;
    unsigned needs;                               /* bits of enum sw_support */
    double (*model_us)(const struct sw_model *m); /* NULL: never measured */
    enum sw_kernel_family family;
    /* The algorithm whose kernels serve types without a spare pattern; AUTO: its own kernels do. */
    symwin_algo integers;
    symwin_algo wide_floats; /* the same for floats of 16 bits and more, with that one's grids */
    uint32_t stage;          /* args.stage of its kernel */
    int one_offset;          /* it needs the buffer at one offset where others take any */
    int only_words;          /* its kernels exchange words only: one block */
    int control_warps;       /* the last warp of a block only exchanges control words (push.cuh) */
    /* half slots that a round uses; SW_ANY_RANKS: one per rank; 0: any size */
    int round_slots;
    int launches; /* each round has a launch of its own, up to this many */
    /* All ranks but the root divide the message, by this algorithm's kernels (shares.cuh); AUTO:
     * they do not. Two ranks, and messages of more launches, have this algorithm instead. */
    symwin_algo shares;
    int shared;  /* its blocks use the maximum of shared memory */
    int words;   /* has kernels for short messages, with entries of one word */
    int bundles; /* large parts are sent in bundles (bundles.cuh) */
    int flags;   /* half of an entry is flags whatever the type; otherwise those of integers' are */
    int any;     /* only its kernels for any message serve the collective */
    /* number of ranks with kernels for long messages, or SW_ANY_RANKS; 0: none */
    int long_ranks;
    unsigned most_blocks; /* more are not faster; 0: more are */
    /* With enough blocks: 16-byte vectors of the message that a thread has at least, before blocks
     * get more threads; or the threads of a block, if there are at least so many ranks. 0: as many
     * threads as a block takes. Ranks that share a device have no more than that. */
    unsigned vectors, threads;
    int threads_ranks;
    /* With a kernel for this number of ranks, a limit between these two becomes own_blocks. */
    unsigned own_blocks, own_below;
    /* Queues a call that takes several launches and that counts one block; NULL: one launch. */
    symwin_status (*queue)(const struct sw_call *call);
};

struct sw_collective {
    /* "symwin_allreduce", "symwin_allreduce_with", "symwin_allreduce_query" */
    const char *call, *with, *query;
    int reduces; /* otherwise there is one kernel for all types, which moves bytes */
    int no_data; /* it has no buffers, and a count of 0 */
    /* Lengths of parts differ: struct symwin_parts, not a count. Large ones may go straight into
     * windows, or from there if they are added: tables call that put */
    int by_parts;
    int in_each, out_each; /* a rank's input, or output, has `count` elements for each rank */
    int root_sends, root_receives; /* only the root has an input, or an output */
    /* Each byte of the larger buffer crosses a link this often, times (n - 1) / n; or 0: once, as
     * far as a bandwidth says (nccl-tests' factors). */
    int crossings;
    enum sw_lies in, out; /* for its algorithms over windows */
    enum sw_connects registers;
    symwin_algo small; /* serves every call */
    /* With multicast, for messages for which `small` would not be selected; AUTO: none. Not one in
     * which each rank reduces for itself: nothing says that all get the same bits. */
    symwin_algo large_multicast;
    unsigned ways;                    /* over several domains: bits 1 << algorithm */
    const struct sw_algorithm *algos; /* indexed by symwin_algo; SW_ALGOS elements */
};

extern const struct sw_collective sw_collectives[SW_COLLECTIVES]; /* indexed by symwin_collective */

/* Of sends and receives, which are no collective. */
extern const struct sw_algorithm sw_pairs;

static inline const struct sw_algorithm *sw_algorithm(symwin_collective collective,
                                                      symwin_algo algo)
{
    return &sw_collectives[collective].algos[algo];
}

static inline int sw_has_root(symwin_collective collective)
{
    return sw_collectives[collective].root_sends || sw_collectives[collective].root_receives;
}

/* Whether its pushes may share a launch in a group (move.cu). */
static inline int sw_joins(symwin_collective collective)
{
    return !sw_collectives[collective].no_data && !sw_collectives[collective].by_parts;
}

static inline int sw_algo_is_there(symwin_collective collective, symwin_algo algo)
{
    return sw_algorithm(collective, algo)->chosen != SW_ABSENT;
}

static inline int sw_algo_needs(symwin_collective collective, symwin_algo algo, unsigned what)
{
    return (sw_algorithm(collective, algo)->needs & what) != 0;
}

/* Whether all ranks decide by such a buffer's window how they make a call. */
static inline int sw_decides(enum sw_lies lies)
{
    return lies == SW_AT_ONE_OFFSET || lies == SW_AT_ANY_OFFSET;
}

/* The size of a call, as used by tables of measured choices and symwin-perf: bytes of the larger
 * buffer; in tables, with parts of unequal lengths, of the longest one. `bytes`: of `count`
 * elements, or of that part. */
static inline size_t sw_collective_size(symwin_collective collective, int nranks, size_t bytes)
{
    const struct sw_collective *c = &sw_collectives[collective];

    return c->in_each || c->out_each ? bytes * (size_t)nranks : bytes;
}

/* All other types are integers. They have no spare bit pattern, so pushes send flags with them. */
static inline int sw_type_is_float(symwin_type type)
{
    return type <= SYMWIN_F8E5M2;
}

/* ---- model.c: the times, less what all have in common ---------------------------------------- */

double sw_model_flags(const struct sw_model *m); /* one-shot, by entries with flags */
double sw_model_send(const struct sw_model *m);  /* bytes from one rank, or to one, the same way */
double sw_model_exchange(const struct sw_model *m); /* parts from each rank, the same way */
double sw_model_scatter(const struct sw_model *m);  /* parts from one rank, the same way */
double sw_model_collect(const struct sw_model *m);  /* one-shot to one rank, which reduces */
double sw_model_pass_on(const struct sw_model *m);  /* bytes of the root, in shares, by push; */
double sw_model_collect_shares(const struct sw_model *m); /* ... and sums for it */
double sw_model_sentinel(const struct sw_model *m); /* by entries that are all payload, of floats */
double sw_model_parts_pushed(const struct sw_model *m); /* the same, a part for each rank */
double sw_model_push(const struct sw_model *m);
double sw_model_put(const struct sw_model *m);
double sw_model_loads(const struct sw_model *m);
double sw_model_bulk(const struct sw_model *m);
double sw_model_copies(const struct sw_model *m);
double sw_model_move(const struct sw_model *m);  /* bytes into windows: each rank's part to all, */
double sw_model_store(const struct sw_model *m); /* ... and one rank's part to all */
double sw_model_offered(const struct sw_model *m); /* of one rank, or to it, where ranks tell */
double sw_model_parts_copied(const struct sw_model *m); /* by copy engines, of all ranks, */
double sw_model_root_copied(const struct sw_model *m);  /* ... or of one */
double sw_model_pass(const struct sw_model *m);  /* bytes of the root to all, in shares, by loads */
double sw_model_parts(const struct sw_model *m); /* each rank's part, by loads over windows */
double sw_model_root(const struct sw_model *m);  /* shares for the root, by loads over windows */

#endif
