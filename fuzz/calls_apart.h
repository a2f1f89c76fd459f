/* Calls that are right on each rank, and differ, for fuzz/calls.c: one rank has another argument,
 * in the planned call or in one of its group, another order of calls, or one call fewer. */
#ifndef SYMWIN_FUZZ_CALLS_APART_H
#define SYMWIN_FUZZ_CALLS_APART_H

#include "calls_groups.h"

enum what { COUNT, TYPE, OP, ROOT, COLLECTIVE, ALGO, ORDER, NUMBER, PLANNED, WHATS };

/* How the calls of this step differ. */
static struct {
    int is_possible, odd; /* the rank */
    int by_parts;         /* lengths do, which two ranks compare */
    int by_offsets;       /* the offsets of windows, on any ranks */
    int at_once;          /* in an agreement, which fails and ends nothing */
} odd_one;

static int mismatch; /* the calls must end the communicator so */

/* ---- the planned call ---- */

/* One element less of what goes between a rank and the next one. Returns whether it differs. */
static int set_parts_apart(struct call *c)
{
    const int next = (c->rank + 1) % model.nranks;
    uint64_t *count = &c->parts[is_gatherv(shape_of(c->collective))].counts[next];

    if (*count == 0)
        return 0;
    (*count)--;
    return 1;
}

/* Another argument on one rank. Returns whether it differs for the ranks. */
static int set_apart(const struct step *s, struct call *c)
{
    const struct sw_collective *is = shape_of(c->collective);
    const int in_place = is_in_place(&planned[c->rank], c->rank); /* another call would not be */

    if (is->by_parts)
        return set_parts_apart(c) && !in_place;
    switch (s->twist / 4 % 8) {
    case 0:
        c->bytes--;
        return c->bytes > 0 && !in_place;
    case 1:
        c->type = c->type == SYMWIN_I8 ? SYMWIN_U8 : SYMWIN_I32;
        return 1;
    case 2:
        c->op = SYMWIN_MAX;
        return is->reduces;
    default:
        return 0;
    case 3:
        if (has_root(is) && !is_pairs(is) && sends(is, c->rank, c->root) &&
            receives(is, c->rank, c->root)) {
            c->root = (c->root + 1) % model.nranks;
            return 1;
        }
        return 0;
    case 4: /* with the buffers of the planned call, which has both, and no larger ones */
        if (c->collective != SYMWIN_ALLTOALL)
            return 0;
        c->collective = SYMWIN_ALLGATHER;
        return !in_place;
    }
}

/* ---- a call of the group ---- */

static enum what what_of(const struct step *s)
{
    return (enum what)(s->twist / 4 % WHATS);
}

static int lengths_differ(const struct member *a, const struct member *b)
{
    const struct sw_collective *is = shape_of(a->collective);

    return (!is_gatherv(is) &&
            memcmp(a->parts[0].counts, b->parts[0].counts, sizeof a->parts[0].counts) != 0) ||
           (!is_reducev(is) &&
            memcmp(a->parts[1].counts, b->parts[1].counts, sizeof a->parts[1].counts) != 0);
}

static int members_differ(const struct member *a, const struct member *b)
{
    const struct sw_collective *is = shape_of(a->collective);

    if (a->collective != b->collective)
        return 1;
    if (is->by_parts && a->type == b->type && (!is->reduces || a->op == b->op)) {
        odd_one.by_parts = 1;
        return lengths_differ(a, b);
    }
    return !is->no_data &&
           (a->type != b->type || a->count != b->count || (has_root(is) && a->root != b->root) ||
            (is->reduces && a->op != b->op));
}

/* The count of call `i`. In a group that agrees on the call's buffers, no later call may depend on
 * an agreement. */
static int set_count(struct call *c, int i)
{
    struct member *m = &c->members[i];
    const struct sw_collective *is = shape_of(m->collective);
    const struct member before = *m;
    int k;

    for (k = i + 1; k < c->member_count && group.agrees[i]; k++)
        if (m->again || (c->members[k].again && group.agrees[k]))
            return 0;
    if (is->no_data || (m->again && (m->count < 2 || group.agrees[i])))
        return 0;
    m->count = m->again ? m->count - 1 : i % 2 == 0 ? 2 * m->count : m->count + 1;
    lengths_of(is, m->count, c->rank, m->parts);
    if (m->again)
        m->table = NULL; /* the planned call's has other lengths */
    odd_one.at_once = group.agrees[i];
    return members_differ(&before, m);
}

/* In captures that register, all-reduces are agreed on. */
static int set_collective(struct member *m, int more, int registers)
{
    m->collective = (m->collective + 1 + more % 7) % (SYMWIN_BARRIER + 1);
    return !m->again && !(registers && m->collective == SYMWIN_ALLREDUCE);
}

static int swap_members(struct call *c, int i)
{
    const struct member one = c->members[i];

    if (i + 1 >= c->member_count || group.agrees[i] || group.agrees[i + 1])
        return 0;
    c->members[i] = c->members[i + 1];
    c->members[i + 1] = one;
    return members_differ(&c->members[i], &one);
}

/* The others wait for the last call of the group until this rank makes another one. */
static int end_early(struct call *c)
{
    const int last = --c->member_count;

    c->ends_early = 1;
    return !group.agrees[last] && c->members[last].collective != SYMWIN_BARRIER &&
           c->collective != PAIRS;
}

/* Lets a rank's calls differ. Returns whether they do, so that all ranks learn of it. `registers`:
 * in a capture that registers. */
static int set_group_apart(const struct step *s, struct call *c, int registers)
{
    const enum what what = what_of(s);
    const int i = (int)(s->c % (unsigned)c->member_count);
    struct member *m = &c->members[i];
    const struct sw_collective *is = shape_of(m->collective);

    switch (what) {
    case COUNT:
        return set_count(c, i);
    case TYPE:
        m->type = m->type == SYMWIN_I8 ? SYMWIN_U8 : SYMWIN_I32;
        return !is->no_data;
    case OP:
        m->op = SYMWIN_MAX;
        return is->reduces;
    case ROOT:
        m->root = (m->root + 1) % model.nranks;
        return has_root(is) && !m->again;
    case COLLECTIVE:
        return !group.agrees[i] && set_collective(m, (int)s->b, registers);
    case ALGO:
        if (!m->again || group.agrees[i] || (is->algos[m->algo].needs & SW_NEEDS_WINDOWS) == 0)
            return 0;
        m->algo = SYMWIN_ALGO_ONESHOT;
        return 1;
    case ORDER:
        return swap_members(c, i);
    case NUMBER:
        return end_early(c);
    default:
        odd_one.by_parts = shape_of(c->collective)->by_parts || c->collective == PAIRS;
        return c->collective != SYMWIN_ALLREDUCE && set_apart(s, c);
    }
}

/* ---- the plan ---- */

/* How the calls differ, if they can. `fits`: they would succeed otherwise. */
static void choose_apart(const struct step *s, const struct call *c, int differ, int registers,
                         int fits)
{
    struct call probe = *c;

    memset(&odd_one, 0, sizeof odd_one);
    odd_one.odd = probe.rank = (int)(s->twist % (unsigned)model.nranks);
    odd_one.by_offsets = differ;
    odd_one.by_parts = shape_of(c->collective)->by_parts || c->collective == PAIRS;
    probe.ptr = planned[probe.rank].in.ptr;
    probe.out = planned[probe.rank].out.ptr;
    set_parts(&probe, probe.rank);
    if (!fits || model.nranks == 1 || planned[0].is->no_data ||
        (c->collective == PAIRS && c->root == 0))
        return;
    if (differ || s->how != APART_IN_A_GROUP) {
        odd_one.is_possible = differ || set_apart(s, &probe);
        return;
    }
    odd_one.by_parts = 0;
    if (group.count == 0)
        return;
    join_group(probe.rank, &probe);
    odd_one.is_possible = set_group_apart(s, &probe, registers);
}

/* Calls that are right on each rank, and differ. */
static void plan_mismatch(const struct step *s, int rank, struct call *c, int registers)
{
    const int grouped = s->how == APART_IN_A_GROUP && !odd_one.by_offsets;

    c->want = OK_ONLY;
    c->asks = ONLY(planned[rank].asked);
    mismatch = !odd_one.at_once;
    if (grouped)
        join_group(rank, c);
    if (grouped && c->kind != CALL_CAPTURE) /* later calls may know of it */
        c->want |= ONLY(SYMWIN_MISMATCH);
    if (odd_one.at_once)
        c->want = ONLY(SYMWIN_MISMATCH);
    if (rank == odd_one.odd && !odd_one.by_offsets)
        (void)(grouped ? set_group_apart(s, c, registers) : set_apart(s, c));
}

/* ---- what all ranks learn ---- */

/* Whether a rank's text names the odd one. Where more than half of the ranks agree, it must; where
 * two ranks compare, others need not know who they are. */
static int check_culprit(const char *text, const char *first)
{
    const int tie = strstr(text, "no majority agrees") != NULL;
    char name[48];

    snprintf(name, sizeof name, odd_one.by_parts ? "rank %d" : "rank %d differs from ranks",
             odd_one.odd);
    fuzz_must(strstr(text, name) != NULL || tie, "rank %d's calls differ, and the text is: %s",
              odd_one.odd, text);
    fuzz_must(odd_one.by_parts || strcmp(text, first) == 0, "ranks get two texts: %s | %s", first,
              text);
    return strstr(text, name) != NULL;
}

/* All ranks learn that the calls differ; of a send and a receive, when a rank has asked. */
static void check_mismatch(struct comm *comm)
{
    char first[SW_TEXT_BYTES] = "";
    int named = 0, r;

    for (r = 0; r < model.nranks; r++)
        fuzz_must(symwin_stream_synchronize(model.device[r], model.stream[r]) == SYMWIN_OK, "%s",
                  symwin_last_error());
    for (r = 0; r < model.nranks; r++)
        (void)symwin_comm_check(comm->ptr[r]);
    for (r = 0; r < model.nranks; r++) {
        const symwin_status status = symwin_comm_check(comm->ptr[r]);

        fuzz_must(status == SYMWIN_MISMATCH, "%s: calls that differ end in %s on rank %d: %s",
                  planned[0].is->call, symwin_status_name(status), r, symwin_last_error());
        if (r == 0)
            snprintf(first, sizeof first, "%s", symwin_last_error());
        named += !odd_one.by_offsets && check_culprit(symwin_last_error(), first);
    }
    fuzz_must(named > 0 || odd_one.by_offsets || !odd_one.by_parts,
              "lengths differ, and no rank says which: %s", first);
    comm->ended = SYMWIN_MISMATCH;
}

#endif
