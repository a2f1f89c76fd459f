/* What a planned collective does, and the others of its group, for fuzz/calls.c: which ranks meet
 * before it, what that changes, and whether all ranks launch the same. */
#ifndef SYMWIN_FUZZ_CALLS_PLAN_H
#define SYMWIN_FUZZ_CALLS_PLAN_H

#include "calls_apart.h"

static struct comm after; /* the communicator after the calls */
static int is_planned;    /* the calls may change it */

/* The graph of capture `number` holds the connection that serves a buffer. */
static void hold(struct comm *comm, int rank, const struct buffer *b, unsigned number)
{
    struct connected *c = b->place != NOTHING ? &comm->connected[rank][b->place] : NULL;

    if (c == NULL || c->refused || (c->graphs > 0 && c->capture == number))
        return;
    c->graphs++;
    c->capture = number;
}

static int is_settled(const struct buffer *b)
{
    return b->is_public || b->place != NOTHING;
}

/* Whether the ranks may agree on a buffer. */
static int is_agreed_on(const struct planned *r, enum sw_lies lies)
{
    return r->is->registers != SW_CONNECTS_NEVER && lies == SW_AT_ONE_OFFSET;
}

static struct part part_of(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    const int registered = b->registered && !b->is_public;

    if (!is_agreed_on(r, lies))
        return (struct part){.none = 1};
    return (struct part){b->memory,
                         b->ptr,
                         0,
                         is_settled(b),
                         registered,
                         registered ? b->span : b->ptr,
                         registered ? b->before : 0,
                         registered ? b->after : 0};
}

static int is_lacking(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    return is_agreed_on(r, lies) && !b->nowhere && !is_settled(b);
}

static int is_ready(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    return !is_agreed_on(r, lies) || is_settled(b);
}

static int is_known(const struct planned *r, enum sw_lies lies, const struct buffer *b)
{
    return is_ready(r, lies, b) || b->registered;
}

/* Whether windows make a difference. These calls are too small for AUTO. */
static int is_worth_it(const struct planned *r, const struct call *c)
{
    return r->is->registers == SW_CONNECTS_ALWAYS ||
           (r->is->algos[c->how.algo].needs & SW_NEEDS_WINDOWS) != 0;
}

/* Whether a rank joins an agreement before its call, which may be captured, or may have failed
 * already. */
static int rank_meets(const struct comm *comm, const struct planned *r, const struct call *c,
                      unsigned capture)
{
    const int known = is_known(r, r->is->in, &r->in) && is_known(r, r->is->out, &r->out);

    return (is_lacking(r, r->is->in, &r->in) || is_lacking(r, r->is->out, &r->out)) &&
           is_worth_it(r, c) && (known || (capture != 0 && comm->graph_register));
}

/* Whether the ranks' calls fit together, or all fail, alone or in an agreement; otherwise ranks
 * would wait for others. If so, sets their results. */
static int plan_once(struct comm *comm, const struct call *c, unsigned capture, int first)
{
    static struct part parts[2][RANKS];
    int failed = 0, meets = 0, places[2] = {NOTHING, NOTHING}, r;

    for (r = 0; r < model.nranks; r++) {
        judge_buffers(&after, r, c);
        if (first && !planned[r].in.skip && !planned[r].out.skip)
            judge_query(r, c);
        failed += planned[r].status != SYMWIN_OK;
        if (planned[r].in.skip || planned[r].out.skip)
            return 0;
        planned[r].meets = rank_meets(&after, &planned[r], c, capture);
        meets += planned[r].meets;
        parts[0][r] = part_of(&planned[r], planned[r].is->in, &planned[r].in);
        parts[1][r] = part_of(&planned[r], planned[r].is->out, &planned[r].out);
    }
    if (failed > 0 && meets == 0)
        return failed == model.nranks;
    if (meets > 0) {
        if (meets < model.nranks || comm->left > 0 || comm->members < model.nranks)
            return 0;
        for (r = 0; r < model.nranks; r++)
            settle(&after, r);
        if (failed == 0 &&
            !meet(&after, parts, parts[0]->none ? planned[0].out_bytes : planned[0].in_bytes,
                  places))
            return 0;
    }
    if (failed > 0) {
        if (!keeps)
            find_over(&after);
        for (r = 0; r < model.nranks; r++)
            planned[r].status = SYMWIN_INVALID;
        return 1;
    }
    for (r = 0; r < model.nranks; r++) {
        struct planned *one = &planned[r];

        if (places[0] != NOTHING)
            place_buffer(&after, r, &one->in, places[0]);
        if (places[1] != NOTHING)
            place_buffer(&after, r, &one->out, places[1]);
        judge_windows(one);
        if (capture != 0 && one->is->registers != SW_CONNECTS_NEVER &&
            (one->meets ||
             (is_ready(one, one->is->in, &one->in) && is_ready(one, one->is->out, &one->out)))) {
            if (one->is->in != SW_ANYWHERE)
                hold(&after, r, &one->in, capture);
            if (one->is->out != SW_ANYWHERE)
                hold(&after, r, &one->out, capture);
        }
        judge_call(r, c);
    }
    return 1;
}

static int count_failed(void)
{
    int failed = 0, r;

    for (r = 0; r < model.nranks; r++)
        failed += planned[r].status != SYMWIN_OK;
    return failed;
}

/* Whether alignments differ that must be equal. */
static int alignments_differ(const char *a, const char *b)
{
    return ((uintptr_t)a ^ (uintptr_t)b) % 16 != 0;
}

/* Whether the offset of a buffer must be equal on all ranks, and is not. */
static int offsets_differ(const struct sw_algorithm *algorithm, enum sw_lies lies,
                          const struct buffer *a, const struct buffer *b)
{
    return (lies == SW_AT_ONE_OFFSET || (lies == SW_AT_ANY_OFFSET && algorithm->one_offset)) &&
           a->offset != b->offset;
}

/* For all collectives but the all-reduce: whether the ranks launch one call. *differ is set if they
 * name an algorithm over windows, and their offsets differ. */
static int agree_on_moves(const struct call *c, int *differ)
{
    const struct planned *first = &planned[0];
    const struct sw_algorithm *algorithm = &first->is->algos[c->how.algo];
    const int by_windows = (algorithm->needs & SW_NEEDS_WINDOWS) != 0;
    int r;

    for (r = 1; r < model.nranks; r++) {
        const struct planned *other = &planned[r];
        const int apart = offsets_differ(algorithm, first->is->in, &other->in, &first->in) ||
                          offsets_differ(algorithm, first->is->out, &other->out, &first->out);

        if (by_windows)
            *differ |= apart;
        else if (c->how.algo == SYMWIN_ALGO_AUTO &&
                 (other->windows != first->windows || (first->windows && apart) ||
                  (first->windows && is_one_buffer(other, r) != is_one_buffer(first, 0))))
            return 0;
    }
    return 1;
}

/* Whether all ranks launch the same call, or none launches any; or calls that *differ. */
static int agree_on_launch(const struct call *c, int *differ)
{
    const struct planned *first = &planned[0];
    int r;

    if (count_failed() > 0)
        return count_failed() == model.nranks;
    if (!both_decide(first))
        return agree_on_moves(c, differ);
    for (r = 1; r < model.nranks; r++) {
        const struct planned *other = &planned[r];

        if (other->windows != first->windows || other->transports != first->transports ||
            (first->windows &&
             (other->in.offset != first->in.offset || other->out.offset != first->out.offset)) ||
            alignments_differ(other->in.ptr, first->in.ptr) ||
            alignments_differ(other->out.ptr, first->out.ptr) ||
            (other->in.ptr == other->out.ptr) != (first->in.ptr == first->out.ptr))
            return 0;
    }
    return 1;
}

/* ---- groups ---- */

/* How many ranks meet before the call. */
static int count_meets(void)
{
    int meets = 0, r;

    for (r = 0; r < model.nranks; r++)
        meets += planned[r].meets;
    return meets;
}

static void refuse_group(const struct comm *comm, symwin_status status)
{
    after = *comm;
    group.refused = status;
}

/* The planned call again, as call `i`. If it fails on all ranks when it is made, the group does.
 * 0: what happens is not known. */
static int plan_again(struct comm *comm, const struct call *c, unsigned capture, int i)
{
    static struct comm before;
    struct planned as_planned[RANKS];
    struct call again = *c;
    int differ = 0, met = keeps, fit, r;

    before = after;
    memcpy(as_planned, planned, sizeof planned);
    again.how.algo = group.members[i].algo;
    fit = plan_once(comm, &again, capture, 0) && agree_on_launch(&again, &differ) && !differ;
    group.agrees[i] |= count_meets() > 0;
    if (fit && count_failed() == 0) {
        for (r = 0; r < model.nranks; r++)
            planned[r].meets = as_planned[r].meets;
        return 1;
    }
    fit = fit && count_failed() == model.nranks && !met && count_meets() == 0;
    for (r = 1; r < model.nranks; r++)
        fit &= planned[r].status == planned[0].status;
    if (fit)
        refuse_group(comm, planned[0].status);
    else
        after = before;
    memcpy(planned, as_planned, sizeof planned);
    return fit;
}

/* What the calls behind the planned one do to the communicator. In captures, the ranks of an
 * all-reduce meet, and find that they cannot share their memory. */
static int plan_members(struct comm *comm, const struct call *c, unsigned capture, int first)
{
    struct part none[2][RANKS] = {{{.none = 0}}};
    int places[2], i, r;

    for (r = 0; r < model.nranks; r++)
        none[0][r].none = none[1][r].none = 1;
    for (i = 0; i < group.count && group.refused == SYMWIN_OK; i++) {
        const struct member *m = &group.members[i];

        if (m->again && !plan_again(comm, c, capture, i)) {
            if (!first)
                return 0;
            group.count = i; /* without it */
        } else if (!m->again && m->collective == SYMWIN_ALLREDUCE && capture != 0 &&
                   comm->graph_register) {
            group.agrees[i] = 1;
            for (r = 0; r < model.nranks; r++)
                settle(&after, r);
            (void)meet(&after, none, 0, places);
        }
    }
    return 1;
}

/* Plans the calls that each rank makes one after the other, or groups of them. */
static int plan_all(struct comm *comm, const struct call *c, unsigned capture, int count,
                    int *differ)
{
    int i, fit = 1;

    if (comm->left == 0 && comm->members == model.nranks)
        look_at_devices(comm);
    for (i = 0; i < count && fit && group.refused == SYMWIN_OK; i++) {
        keeps = 0;
        fit = plan_once(comm, c, capture, i == 0);
        if (fit && group.is_wrong && (count_meets() > 0 || count_failed() == 0))
            refuse_group(comm, SYMWIN_INVALID);
        fit = fit &&
              (!group.is_wrong || group.refused != SYMWIN_OK || count_failed() == model.nranks);
        /* Other calls with this rank's wrong buffer would fail without the agreement. */
        if (planned[0].status != SYMWIN_OK && group.refused == SYMWIN_OK && count_meets() > 0)
            group.count = 0;
        if (planned[0].status != SYMWIN_OK || group.refused != SYMWIN_OK)
            break;
        fit = fit && agree_on_launch(c, differ);
        if (*differ)
            group.count = 0;
        fit = fit && plan_members(comm, c, capture, i == 0);
    }
    return fit && (group.refused != SYMWIN_OK || agree_on_launch(c, differ));
}

#endif
