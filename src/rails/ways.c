/* Which way a call takes between domains, and in how many pieces: what the caller asks for, a table
 * of measured choices, or a model. All ranks decide alike: what one rank knows alone has no part in
 * it. */
#include "src/rails/wide_call.h"

/* ---- the model ------------------------------------------------------------------------------- */

/* Of NCCL 2.28.9, by its own cost model: a call, a hop between hosts, both in us; the share of the
 * network's rate. docs/scaling.md has the source, and what was assumed. */
static const struct protocol {
    int tree; /* all-reduces only */
    double call, hop, share;
} protocols[] = {
    {0, 6.6, 5.0, 0.5}, {0, 14.0, 8.5, 0.92},        {0, 8.4, 14.0, 1.0},
    {1, 6.8, 5.0, .24}, {1, 14.0, 8.5, 0.92 * .938}, {1, 8.4, 14.0, 0.92},
};

/* Bytes in a us: of each rail, and of each device's links inside. From a kernel to one of another
 * stream, and the first byte of a step inside: us. */
#define RAIL_RATE 50e3
#define INSIDE_RATE 340e3
#define HANDOVER_US 1.0
#define INSIDE_US 2.3
/* A message that NCCL posts, in us, and bytes in a us that a sum on SW_SPARE multiprocessors reads:
 * both assumed. */
#define POST_US 1.0
#define SUM_RATE 1e6

enum { MOST_PIECES = 32, LL = 0, SIMPLE = 2 };

/* Times as close as this are equal: then the message goes in fewer pieces, each of which costs more
 * where ranks share a device or the network is slower than assumed. */
#define ALIKE 1.05

/* A call of NCCL on a rail: all of it, and how long the rail is in use. */
static double rail_us(symwin_collective collective, int domains, double bytes, double *in_use)
{
    const int twice = collective == SYMWIN_ALLREDUCE ? 2 : 1;
    double least = 0;
    size_t i;
    int hops;

    for (i = 0; i < sizeof protocols / sizeof protocols[0]; i++) {
        const struct protocol *p = &protocols[i];
        double part = collective == SYMWIN_ALLREDUCE ? (domains - 1.0) / domains : 1.0, us;

        if (p->tree && collective != SYMWIN_ALLREDUCE)
            continue;
        hops = domains - 1;
        if (p->tree) {
            part = domains == 2 ? 0.5 : 1.0;
            for (hops = 0; 1 << hops < domains;)
                hops++;
        }
        part *= twice * bytes / (RAIL_RATE * p->share);
        us = p->call + twice * hops * p->hop + part;
        if (least == 0 || us < least) {
            least = us;
            *in_use = part;
        }
    }
    return least;
}

/* Two exchanges of messages with each other domain, and the sum between them. */
static double exchanges_us(int domains, double bytes, double *in_use)
{
    static const struct protocol *const of_messages[] = {&protocols[LL], &protocols[SIMPLE]};
    const double others = domains - 1.0;
    double least = 0;
    int i;

    for (i = 0; i < 2; i++) {
        const struct protocol *p = of_messages[i];
        const double moved = others / domains * bytes / (RAIL_RATE * p->share),
                     used = 2 * (moved > others * POST_US ? moved : others * POST_US),
                     us = 2 * (p->call + p->hop + HANDOVER_US) + used + bytes / SUM_RATE;

        if (i == 0 || us < least) {
            least = us;
            *in_use = used;
        }
    }
    return least;
}

/* A step inside, in which each rank sends, or gets, all but its own of `bytes`, or `times` that. */
static double inside_us(double bytes, double times)
{
    return INSIDE_US + times * bytes / INSIDE_RATE;
}

/* Those of a part for each rank, of `bytes`. In steps, if there are pieces: one for each domain. */
static int has_parts(symwin_collective collective)
{
    return collective == SYMWIN_ALLGATHER || collective == SYMWIN_REDUCE_SCATTER ||
           collective == SYMWIN_ALLTOALL;
}

static double parts_us(symwin_collective collective, int domains, int rails, double bytes,
                       unsigned pieces)
{
    const int sums = collective == SYMWIN_REDUCE_SCATTER;
    const symwin_collective like = sums ? SYMWIN_REDUCE : SYMWIN_BROADCAST; /* of two: a message */
    const double others = domains - 1.0, inside = inside_us(bytes, rails - 1.0),
                 message = collective == SYMWIN_ALLTOALL ? bytes * rails : bytes;
    double in_use = 0, rail, slowest;

    if (pieces == 1)
        return domains * inside + HANDOVER_US +
               rail_us(like, sums ? domains : 2, others * message, &in_use);
    rail = rail_us(like, sums ? domains : 2, message, &in_use);
    slowest = rail / (domains < SW_LANES ? domains : SW_LANES);
    slowest = in_use > slowest ? in_use : slowest;
    slowest = inside > slowest ? inside : slowest;
    /* The first and the last step go to a lane's stream and back. */
    if (sums)
        return inside + rail + 4 * HANDOVER_US + others * slowest;
    /* What is for the domain itself does not travel: that step is beside another one's rail. */
    return inside + (rail > inside ? rail : inside) + 4 * HANDOVER_US + (others - 1) * slowest;
}

double sw_way_us(symwin_collective collective, int domains, int rails, double bytes,
                 symwin_algo algo, unsigned pieces)
{
    const double others = rails - 1.0, piece = bytes / pieces;
    double in_use = 0, step, rail, slowest;

    if (has_parts(collective))
        return parts_us(collective, domains, rails, bytes, pieces);
    if (algo == SYMWIN_ALGO_ONESHOT)
        return inside_us(bytes, collective == SYMWIN_ALLREDUCE ? others : rails > 1) + HANDOVER_US +
               rail_us(collective, domains, bytes, &in_use);
    step = inside_us(piece, others / rails);
    rail = algo == SYMWIN_ALGO_TWOSHOT_PUSH ? exchanges_us(domains, piece / rails, &in_use)
                                            : rail_us(collective, domains, piece / rails, &in_use);
    slowest = rail / (pieces < SW_LANES ? pieces : SW_LANES);
    slowest = in_use > slowest ? in_use : slowest;
    slowest = 2 * step > slowest ? 2 * step : slowest;
    return 2 * step + rail + 2 * HANDOVER_US + (pieces - 1) * slowest;
}

/* The number of pieces, each of at most `most` bytes; and what they take. */
static unsigned pieces_by_model(symwin_collective collective, int domains, int rails, double bytes,
                                double most, symwin_algo algo, double *least)
{
    double us[MOST_PIECES + 1];
    unsigned fewest = 1, pieces;

    while (bytes / fewest > most && fewest < MOST_PIECES) /* there is no room */
        fewest *= 2;
    *least = sw_way_us(collective, domains, rails, bytes, algo, fewest);
    for (pieces = fewest; pieces <= MOST_PIECES; pieces *= 2) {
        us[pieces] = sw_way_us(collective, domains, rails, bytes, algo, pieces);
        *least = us[pieces] < *least ? us[pieces] : *least;
    }
    for (pieces = fewest; us[pieces] > ALIKE * *least;)
        pieces *= 2;
    return pieces;
}

struct sw_way sw_way_by_model(symwin_collective collective, int domains, int rails, double bytes,
                              double most)
{
    const double alone = sw_way_us(collective, domains, rails, bytes, SYMWIN_ALGO_ONESHOT, 1);
    double least;
    unsigned pieces;

    if (has_parts(collective))
        return (struct sw_way){
            SYMWIN_ALGO_RAILS,
            ALIKE * parts_us(collective, domains, rails, bytes, 2) < alone ? (unsigned)domains : 1,
            0};
    pieces = pieces_by_model(collective, domains, rails, bytes, most, SYMWIN_ALGO_RAILS, &least);
    return least < alone ? (struct sw_way){SYMWIN_ALGO_RAILS, pieces, 0}
                         : (struct sw_way){SYMWIN_ALGO_ONESHOT, 1, 0};
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* An average of integers is divided once, by NCCL: nothing here divides sums of several domains. */
static int divides_once(const struct sw_request *r)
{
    return sw_collectives[r->collective].reduces && r->op == SYMWIN_AVG &&
           !sw_type_is_float(r->type);
}

/* Whether a call can go that way, on all ranks. */
static int can_go(const struct sw_request *r, symwin_algo algo)
{
    const struct sw_wide *w = r->comm->wide;

    if (!sw_way_is_there(r->collective, algo))
        return 0;
    if (algo == SYMWIN_ALGO_NCCL)
        return !sw_collectives[r->collective].reduces || sw_engine_op(r->op) >= 0;
    if (divides_once(r))
        return 0;
    if (algo == SYMWIN_ALGO_TWOSHOT_PUSH)
        return sw_twoshot_room(w, symwin_type_bytes(r->type)) > 0 &&
               sw_twoshot_rest(w, symwin_type_bytes(r->type)) > 0;
    if (algo != SYMWIN_ALGO_RAILS)
        return 1;
    switch (r->collective) {
    case SYMWIN_REDUCE:
        return sw_serve_alike(&w->domains, w->domains.domain_of[r->root]);
    case SYMWIN_ALLTOALL: /* parts for a domain are joined, and it answers with as many */
        return w->domains.regular;
    default:
        return 1;
    }
}

static struct sw_way by_itself(const struct sw_request *r, size_t bytes)
{
    static const symwin_algo order[] = {SYMWIN_ALGO_RAILS, SYMWIN_ALGO_NCCL};
    const struct sw_wide *w = r->comm->wide;
    int i = 0;

    if (can_go(r, SYMWIN_ALGO_RAILS) &&
        (can_go(r, SYMWIN_ALGO_ONESHOT) || has_parts(r->collective)))
        return sw_way_by_model(r->collective, w->domains.count, w->domains.rails, (double)bytes,
                               (double)w->part * w->domains.rails);
    if (can_go(r, SYMWIN_ALGO_ONESHOT))
        return (struct sw_way){SYMWIN_ALGO_ONESHOT, 1, 0};
    while (!can_go(r, order[i]))
        i++;
    return (struct sw_way){order[i], 1, 0};
}

/* Those of one message, of which each rail has a share. */
static int has_shares(symwin_collective collective)
{
    return collective == SYMWIN_ALLREDUCE || collective == SYMWIN_BROADCAST ||
           collective == SYMWIN_REDUCE;
}

/* The pieces that there are if so many are asked for: more if a part of the scratch has no room for
 * the shares of a rank that serves most rails; fewer if shares do not divide into so many. */
static unsigned pieces_of_shares(const struct sw_request *r, symwin_algo algo, unsigned asked)
{
    const struct sw_wide *w = r->comm->wide;
    const size_t element = symwin_type_bytes(r->type);
    const uint64_t share = r->count / (uint64_t)w->domains.rails,
                   room = algo == SYMWIN_ALGO_TWOSHOT_PUSH
                              ? sw_twoshot_room(w, element)
                              : w->part / element / (uint64_t)sw_most_served(&w->domains),
                   fewest = (share + room - 1) / room, pieces = asked > fewest ? asked : fewest,
                   each = (share + pieces - 1) / pieces;

    return share > 0 ? (unsigned)((share + each - 1) / each) : 1;
}

static unsigned twoshot_pieces(const struct sw_request *r, double bytes)
{
    const struct sw_wide *w = r->comm->wide;
    const size_t element = symwin_type_bytes(r->type);
    double us;

    return pieces_by_model(r->collective, w->domains.count, w->domains.rails, bytes,
                           (double)(sw_twoshot_room(w, element) * element) * w->domains.rails,
                           SYMWIN_ALGO_TWOSHOT_PUSH, &us);
}

symwin_status sw_way_choose(const struct sw_request *r, struct sw_way *way)
{
    const size_t bytes = (size_t)r->count * symwin_type_bytes(r->type);
    const symwin_algo asked = r->options != NULL ? r->options->algo : SYMWIN_ALGO_AUTO;
    const struct sw_tuning_row *row;

    if (asked == SYMWIN_ALGO_AUTO) {
        row = sw_tuning_find(r->comm->tuning, r->collective, r->type, 0,
                             sw_collective_size(r->collective, r->comm->nranks, bytes));
        if (row != NULL && bytes > 0 && can_go(r, row->algo))
            *way = (struct sw_way){row->algo, row->blocks, 1};
        else
            *way = by_itself(r, bytes);
    } else if (!sw_way_is_there(r->collective, asked)) {
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the communicator's ranks are in several domains, where the call cannot "
                       "go by %s; pass SYMWIN_ALGO_AUTO",
                       r->name, symwin_algo_name(asked));
    } else if (!can_go(r, asked)) {
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: %s; pass SYMWIN_ALGO_AUTO", r->name,
                       asked == SYMWIN_ALGO_NCCL ? "NCCL alone has no pre-multiplied sum here"
                       : divides_once(r)         ? "an average of integers goes by NCCL alone"
                       : asked == SYMWIN_ALGO_TWOSHOT_PUSH
                           ? "there are too many domains for two exchanges"
                       : r->collective == SYMWIN_ALLTOALL
                           ? "the domains differ in size, so it cannot go by rails"
                           : "the domains' sizes do not let it go by rails");
    } else if (sw_way_has_pieces(asked) && r->options->blocks > 0) {
        *way = (struct sw_way){asked, (unsigned)r->options->blocks, 0};
    } else if (asked == SYMWIN_ALGO_TWOSHOT_PUSH) {
        *way = (struct sw_way){asked, twoshot_pieces(r, (double)bytes), 0};
    } else {
        *way = by_itself(r, bytes);
        if (way->algo != asked)
            *way = (struct sw_way){asked, 1, 0};
    }
    if (way->pieces < 1)
        way->pieces = 1;
    if (sw_way_has_pieces(way->algo) && has_shares(r->collective))
        way->pieces = pieces_of_shares(r, way->algo, way->pieces);
    return SYMWIN_OK;
}
