/* The room rails: communicators whose ranks are in several domains, called wide here. A wide one
 * has no windows and no kernels, but a communicator of the rank's domain, and one of NCCL for each
 * rail that the rank serves. */
#ifndef SYMWIN_RAILS_H
#define SYMWIN_RAILS_H

#include "src/bootstrap/bootstrap.h"
#include "src/collective/collective.h"
#include "src/rails/domains.h"
#include "src/rails/engine.h"

/* Pieces of an all-reduce that NCCL has at the same time: each has a lane, with a communicator of
 * NCCL's for each rail, since calls on one wait for each other. docs/scaling.md says why four. */
enum { SW_LANES = 4, SW_PARTS = SW_LANES + 1 };

/* Multiprocessors that kernels inside leave to those of NCCL's. */
enum { SW_SPARE = 32 };

/* Batches of NCCL's calls of which a lane knows in which call of the communicator they were. */
enum { SW_KNOWN = 256 };

struct sw_lane {
    CUstream streams[2]; /* owned: where NCCL works while kernels do; [1]: in captures */
    uint32_t batches;    /* of calls of NCCL's so far that are in no graph */
    /* Of the latest ones, by their numbers: calls_made of the communicator << 24, and the number's
     * lowest bits. */
    _Atomic uint64_t known[SW_KNOWN];
};

struct sw_wide {
    const struct sw_wide_calls *calls; /* first: what the room collective knows */
    struct sw_remains remains;  /* this, `words`, `memory`, `kernels`, `context`: for the reaper */
    CUcontext context;          /* retained for `words`; NULL: not yet */
    struct sw_kernels *kernels; /* owned: SW_SUM_ALONE */
    int device;
    symwin_comm *comm; /* whose this is; comm->inner has the kernels */
    const struct sw_part_maker *maker;
    struct sw_domains domains;
    int domain, index; /* of this rank */
    int first_rail, rail_count;
    const struct sw_engine *engine;
    /* Owned, SW_LANES times rail_count, those of lane 0 first. Ranks are numbered as domains. */
    struct ncclComm **rails;
    struct ncclComm *all; /* owned: of all ranks */
    uint64_t *counts;     /* owned, for a call inside: three arrays of counts and displacements */

    struct sw_memory memory; /* owned */
    char *scratch;           /* that memory, in a window of `inner` */
    size_t scratch_bytes;    /* a call uses it as two halves, or as SW_PARTS parts */
    size_t half, part;       /* bytes */
    /* Owned, in pinned memory: a word for each lane, an odd number while the device is in calls of
     * NCCL that are in no graph, another one each time; then a verdict for each of `rails`: what
     * kernels of the ranks on it have found before NCCL's last call, an enum sw_kernel_code. */
    _Atomic uint32_t *words;
    CUdeviceptr words_address;
    struct sw_lane lanes[SW_LANES];
    /* Owned: for calls in a thread's own default stream, which is another one in NCCL's threads;
     * [1]: in captures. */
    CUstream beside[2];
    CUevent ready[SW_PARTS], moved[SW_PARTS], last_call, edge; /* owned */
    uint64_t calls_made; /* collectives outside captures, as sw_exchange_count() has them */
    int has_last;        /* last_call is recorded behind the last call outside captures */
    struct sw_wide_captured {
        cuuint64_t id;   /* of the capture; 0: none */
        CUstream stream; /* of the last call in it */
    } captured[SW_CAPTURES];
    int oldest; /* index of the entry to replace next */

    int version; /* of NCCL: the oldest of all ranks */
    /* Of sw_now_ms(): NCCL's part of the creation ends by then, on all ranks at one moment, by the
     * least patient one. A quarter of its time is left, or a second, for the agreement that names
     * who is late. */
    int64_t nccl_until;

    int is_refused; /* an agreement of the creation has failed: it is the last one of all ranks */
    pthread_t watcher;
    int has_watcher;
    atomic_int stop;     /* the watcher ends */
    atomic_int is_ended; /* NCCL's communicators were aborted, or are about to be */
    atomic_int holders;  /* the communicator, and aborts of NCCL's that are under way: */
    atomic_int aborts;   /* ... so many */
    /* Held in functions of NCCL's: of one communicator they are one thread's at a time. */
    pthread_mutex_t nccl;
};

/* Makes and destroys the communicator of a part of a split. */
struct sw_part_maker {
    symwin_status (*make)(const struct sw_split *part, int device,
                          const symwin_comm_options *options, symwin_comm **comm);
    void (*destroy)(symwin_comm *comm);
};

/* Collective, for ranks in several domains, of which it takes over the description. `options`: the
 * caller's. The communicator's context is current. */
symwin_status sw_wide_create(symwin_comm *comm, const char *call, struct sw_domains *domains,
                             const symwin_comm_options *options, const struct sw_part_maker *maker);

/* Ends it. Waits for this rank's calls unless the communicator has ended. The same context. */
void sw_wide_destroy(symwin_comm *comm);

/* ---- rail.c: calls of NCCL ---- */

/* Before and after functions of NCCL's. In between, a thread waits for nothing but NCCL, and not
 * when `is_ended` is set. sw_rail_begin(): SYMWIN_OK, or the communicator has ended, and there is
 * no NCCL any more. sw_rail_try(): the same for who need not ask; whether it has begun. */
symwin_status sw_rail_begin(struct sw_wide *wide, const char *call);
int sw_rail_try(struct sw_wide *wide);
void sw_rail_end(struct sw_wide *wide);

/* Turns a result into a status; waits while NCCL has the call in progress. */
symwin_status sw_rail_settle(struct sw_wide *wide, const char *call, const char *function,
                             struct ncclComm *comm, int result);

/* A lane's communicators of the rails that this rank serves. */
static inline struct ncclComm **sw_rails_of(const struct sw_wide *wide, int lane)
{
    return wide->rails + (size_t)lane * (size_t)wide->rail_count;
}

/* All communicators of NCCL that this rank has: those of `rails`, then that of all ranks. */
static inline int sw_rails_count(const struct sw_wide *wide)
{
    return SW_LANES * wide->rail_count + 1;
}

static inline struct ncclComm **sw_rail_at(struct sw_wide *wide, int i)
{
    return i < SW_LANES * wide->rail_count ? &wide->rails[i] : &wide->all;
}

/* Blocks on a rail in a lane, the same on all ranks: `usual`, or so few that those of all lanes and
 * of all rails that a rank serves are within the communicator's limit. A power of two, since NCCL
 * rounds the blocks of messages up to one. */
int sw_blocks_of_rail(const struct sw_wide *wide, int usual);

/* Makes this rank's communicators of NCCL. Collective. */
symwin_status sw_rails_create(struct sw_wide *wide, const char *call);
/* Lets NCCL connect the ranks of each, for which calls and captures would wait. Collective, with
 * the lanes. */
symwin_status sw_rails_connect(struct sw_wide *wide, const char *call);
void sw_rails_destroy(struct sw_wide *wide, int in_order);

/* ---- wide_calls.c ---- */

extern const struct sw_wide_calls sw_wide_calls;

/* ---- wide.c ---- */

/* An agreement of the creation. Ranks that fail in NCCL may be some steps behind the others, whose
 * next agreement is the same one as theirs, in another step: if it fails, nobody makes more. */
symwin_status sw_wide_agree(struct sw_wide *wide, const char *call, symwin_status status);

/* How long NCCL may have a call, in ms: longer than kernels may wait, whose finding names a rank.
 * Meanwhile hosts are asked whether they are there. Only the deciding host hears all of them, so
 * the others leave it a little time to name one. More than any time: for ever. */
enum { SW_NAMING_MS = 1000 };

/* A rank whose NCCL has failed is at fault, unless kernels find more within that time. */
enum { SW_OWN_MS = 100 };

int64_t sw_wide_patience(const struct sw_wide *wide);

/* Whom to name when NCCL waits too long or has lost a rank, as far as the exchange can tell: a rank
 * whose host does not answer (*status: TIMEOUT), if hosts were asked (sw_exchange_ask()) for a
 * while; one that leaves (PEER_LOST); or the one that has made fewest collectives, if it has made
 * fewer than `calls`. SW_NOBODY: *status stays. */
int sw_wide_culprit(const struct sw_wide *wide, symwin_status *status, uint64_t calls);

/* When it has ended: streams go on that a verdict holds (sw_batch_hold()). */
void sw_wide_release(struct sw_wide *wide);

/* An abort of NCCL's is over, or the communicator is destroyed. The last one frees the words. */
void sw_wide_let_go(struct sw_wide *wide);

/* Ends it if the domain's communicator has ended, or if a rank's part of a call has failed. */
void sw_wide_look(symwin_comm *comm);

#endif
