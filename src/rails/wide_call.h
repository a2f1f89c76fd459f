/* A call of a wide communicator on its way through the steps (wide_calls.c). */
#ifndef SYMWIN_WIDE_CALL_H
#define SYMWIN_WIDE_CALL_H

#include "src/rails/rails.h"

/* How a call goes between domains. */
struct sw_way {
    symwin_algo algo; /* ONESHOT: one exchange; RAILS; TWOSHOT_PUSH; NCCL */
    unsigned pieces;  /* if it has some; of shares, so many that there is room for each */
    int measured;     /* from a table */
};

/* A call, from its first check to its end. */
struct sw_wide_call {
    const struct sw_request *r;
    struct sw_wide *wide;
    symwin_comm *inner;
    CUstream stream; /* of the steps: not a thread's own default stream */
    int is_captured;
    int lanes; /* which of their streams, as [lanes]; -1: another capture has them */
    struct sw_way way;
    size_t element; /* bytes */
    const char *in;
    char *out;
    symwin_collective_options options; /* of calls inside */
};

/* The stream of a lane, for this call. */
static inline CUstream sw_lane_stream(const struct sw_wide_call *c, int lane)
{
    return c->lanes < 0 ? c->stream : c->wide->lanes[lane].streams[c->lanes];
}

/* ---- rail.c: calls of NCCL together ---- */

/* Calls between ncclGroupStart and ncclGroupEnd, in one stream. */
struct sw_batch {
    struct sw_wide *wide;
    const char *call;
    CUstream stream;
    int lane;
    int marks;       /* whether the stream says when NCCL is in it, */
    uint32_t number; /* ... by this word, and the next one when NCCL is out of it */
    int result;
};

/* Begins one in the call's stream, with communicators of lane 0 and that of all ranks, or in
 * another. After a failure there is none to end. */
symwin_status sw_batch_begin(struct sw_batch *b, const struct sw_wide_call *c);
symwin_status sw_batch_begin_in(struct sw_batch *b, const struct sw_wide_call *c, CUstream stream,
                                int lane);
void sw_batch_note(struct sw_batch *b, int result); /* of a function of NCCL's */

/* After steps inside: all ranks of each rail of the lane that this rank serves, or of rail `one`,
 * get to know whether kernels of one of them have failed. What NCCL moves is worthless then. */
void sw_batch_verdicts(struct sw_batch *b);
void sw_batch_verdict(struct sw_batch *b, int one);
symwin_status sw_batch_end(struct sw_batch *b);

/* After that, before steps inside: if a verdict is a failure, the stream, or a replay of its graph,
 * goes on when the communicator has ended. So the domain's other ranks, whose rails have other
 * verdicts, do not complete the step either. */
symwin_status sw_batch_hold(struct sw_batch *b);

/* NCCL's operation for what was reduced inside: averages and pre-multiplied sums are sums then. */
static inline int sw_rail_op(const struct sw_request *r)
{
    const int op = sw_engine_op(r->op);

    return op >= 0 ? op : sw_engine_op(SYMWIN_SUM);
}

/* The first rail that a rank serves: its own messages take that. */
static inline int sw_rail_of(const struct sw_wide *w, int rank)
{
    return sw_rail_first(&w->domains, w->domains.domain_of[rank], w->domains.index_of[rank]);
}

/* The index in this domain of the rank that serves a rail; whether that is this rank. */
static inline int sw_server_here(const struct sw_wide *w, int rail)
{
    return sw_rail_server(&w->domains, w->domain, rail);
}

static inline int sw_serves(const struct sw_wide *w, int rail)
{
    return rail >= w->first_rail && rail < w->first_rail + w->rail_count;
}

/* ---- wide_check.c: what this rank alone can see, before anything is launched ---- */

symwin_status sw_wide_check(const struct sw_request *r);
symwin_status sw_wide_check_pairs(const struct sw_pair_call *const *calls, size_t n,
                                  const char *call);

/* ---- ways.c: which way ----------------------------------------------------------------------- */

/* The same on all ranks, if all ask for the same. */
symwin_status sw_way_choose(const struct sw_request *r, struct sw_way *way);

/* By the model: of a message of `bytes`, with pieces of at most `most` bytes; and what a way takes,
 * in us, if nothing else is on the links. */
struct sw_way sw_way_by_model(symwin_collective collective, int domains, int rails, double bytes,
                              double most);
double sw_way_us(symwin_collective collective, int domains, int rails, double bytes,
                 symwin_algo algo, unsigned pieces);

/* ---- line.c: pieces on their way ---- */

struct sw_line_piece {
    uint64_t at, count;  /* elements */
    uint64_t share, own; /* of shares: elements of each rail, and of this rank */
    int domain;          /* of parts: whose are exchanged, or summed */
    int stays;           /* nothing of it travels, but for the verdict of a step inside */
};

typedef void sw_rail_fn(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room,
                        CUstream stream, int i, struct ncclComm *comm, struct sw_batch *b);

/* What is done with a piece: inside the domain, on the rails, and inside again. `room` is for that
 * piece, of wide->part bytes. NULL: nothing is done inside. */
struct sw_flow {
    symwin_status (*first)(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room);
    sw_rail_fn *rail;
    symwin_status (*last)(const struct sw_wide_call *c, const struct sw_line_piece *p, char *room);
    /* NULL, or after `rail`, in the same stream: what a kernel does for each rail, and calls of
     * NCCL's again. */
    symwin_status (*between)(const struct sw_wide_call *c, const struct sw_line_piece *p,
                             char *room, CUstream stream, int i);
    sw_rail_fn *again;
};

/* sw_line_end() follows the last piece of a call, unless a status was a failure. */
struct sw_line {
    const struct sw_wide_call *call;
    const struct sw_flow *flow;
    struct sw_line_piece pieces[SW_PARTS]; /* those under way, by their numbers */
    unsigned sent, taken;
};

symwin_status sw_line_put(struct sw_line *l, const struct sw_line_piece *p);
symwin_status sw_line_end(struct sw_line *l);

/* What comes in a stream waits for what is in another. */
symwin_status sw_follow_stream(CUevent event, CUstream from, CUstream to);

/* ---- shares.c: one message for all, or of all: each rail has a share of it ---- */

/* Whether each rank of a domain serves as many rails. */
int sw_serve_alike(const struct sw_domains *d, int domain);
int sw_most_served(const struct sw_domains *d); /* rails of one rank, at most */

symwin_status sw_by_nccl(const struct sw_wide_call *c); /* and those of parts but all-to-all */
symwin_status sw_reduce_all(const struct sw_wide_call *c);
/* Of what goes in no shares: each rank gets the domain's sums where the scratch begins. Begins a
 * batch behind that. */
symwin_status sw_begin_short(const struct sw_wide_call *c, uint64_t at, uint64_t count,
                             struct sw_batch *b);
symwin_status sw_broadcast_all(const struct sw_wide_call *c);
symwin_status sw_reduce_to_root(const struct sw_wide_call *c);

/* ---- twoshot.c: all-reduce by two exchanges -------------------------------------------------- */

/* Elements of a share of a piece, and of what goes in no shares, for which there is room on all
 * ranks. 0: there is none. */
uint64_t sw_twoshot_room(const struct sw_wide *w, size_t element);
uint64_t sw_twoshot_rest(const struct sw_wide *w, size_t element);

/* What is done with the share of a rail; and all of what goes in no shares. */
sw_rail_fn sw_twoshot_swap, sw_twoshot_spread;
symwin_status sw_twoshot_sum(const struct sw_wide_call *c, const struct sw_line_piece *p,
                             char *room, CUstream stream, int i);
symwin_status sw_twoshot_short(const struct sw_wide_call *c, uint64_t at, uint64_t count);

/* ---- for_each.c: a part for each rank ---- */

symwin_status sw_gather_all(const struct sw_wide_call *c);
symwin_status sw_reduce_parts(const struct sw_wide_call *c);
symwin_status sw_exchange_joined(const struct sw_wide_call *c); /* all-to-all, by rails */
symwin_status sw_exchange_all(const struct sw_wide_call *c);    /* the same, of unequal parts too */
symwin_status sw_collect(const struct sw_wide_call *c, int gathers); /* or scatters */
symwin_status sw_gather_unequal(const struct sw_wide_call *c);
symwin_status sw_reduce_unequal(const struct sw_wide_call *c);

#endif
