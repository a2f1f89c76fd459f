/* Groups of several calls for fuzz/calls.c. Beside the planned call, a group has others: the same
 * call once more, perhaps by another algorithm, or collectives on memory of their own, pinned host
 * memory, of which the rest of the model knows nothing. Some read what the one before them writes.
 * One may have a wrong argument. */
#ifndef SYMWIN_FUZZ_CALLS_GROUPS_H
#define SYMWIN_FUZZ_CALLS_GROUPS_H

#include "calls_buffers.h"

enum { MEMBER_COUNTS = 6, MEMBER_WORDS = 1024, UNWRITTEN = 0x5a, TABLES = 4096 };

/* Each rank's: for each member its input and its output. */
static uint32_t *extra[RANKS];

/* The group of this step, the same on all ranks. */
static struct group {
    int count;                      /* of members; 0: there is none */
    struct member members[MEMBERS]; /* without what only a rank has */
    int agrees[MEMBERS];            /* its ranks meet in an agreement */
    unsigned on_device[MEMBERS];    /* bits: ranks that have its arrays in device memory */
    int is_wrong;                   /* the last one has a wrong argument */
    symwin_status refused;          /* what the whole group returns, without any effect */
} group;

static void make_stream(int rank)
{
    if (model.stream[rank] == NULL)
        fuzz_must(symwin_stream_create(model.device[rank], &model.stream[rank]) == SYMWIN_OK, "%s",
                  symwin_last_error());
}

static void make_extra(int rank)
{
    struct sw_scope scope;
    void *memory = NULL;

    if (extra[rank] != NULL)
        return;
    make_stream(rank); /* which keeps the device's context, and so the memory */
    fuzz_must(sw_scope_enter(model.device[rank], &scope) == SYMWIN_OK, "%s", symwin_last_error());
    fuzz_must(sw_drv.cuMemHostAlloc(&memory, 2 * MEMBERS * MEMBER_WORDS * sizeof(uint32_t),
                                    CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS,
              "no pinned memory");
    sw_scope_leave(&scope);
    extra[rank] = memory;
}

/* After the communicators and graphs are gone. */
static void drop_extra(void)
{
    struct sw_scope scope;
    int r;

    for (r = 0; r < model.nranks; r++) {
        if (extra[r] == NULL)
            continue;
        fuzz_must(sw_scope_enter(model.device[r], &scope) == SYMWIN_OK, "%s", symwin_last_error());
        fuzz_must(sw_drv.cuMemFreeHost(extra[r]) == CUDA_SUCCESS, "pinned memory is not freed");
        sw_scope_leave(&scope);
        extra[r] = NULL;
    }
}

/* ---- which calls ---- */

static int is_in_group(const struct step *s)
{
    return s->how >= IN_A_GROUP;
}

/* Whether every rank's output of a call is a whole input of the next one. */
static int can_chain(const struct member *from, const struct member *to)
{
    const struct sw_collective *is = shape_of(from->collective), *next = shape_of(to->collective);
    int r;

    if (is->root_receives || from->type != SYMWIN_U32 || is_pairs(is))
        return 0;
    for (r = 0; r < model.nranks; r++)
        if (out_count(is, from->count, r, from->root) < in_count(next, to->count, r, to->root))
            return 0;
    return 1;
}

static struct member as_member(const struct call *c)
{
    return (struct member){.collective = c->collective,
                           .root = c->root,
                           .count = c->bytes,
                           .type = c->type,
                           .op = c->op,
                           .algo = c->how.algo};
}

/* A graph holds connected buffers of later calls too, of which the model knows nothing. */
static int may_read_planned(const struct member *m, unsigned capture)
{
    const struct sw_collective *is = shape_of(m->collective);

    return m->collective != SYMWIN_ALLREDUCE &&
           (capture == 0 || is->registers == SW_CONNECTS_NEVER || is->in == SW_ANYWHERE);
}

static struct member choose_member(uint32_t random)
{
    static const size_t counts[MEMBER_COUNTS] = {1, 3, 16, 64, 100, 150};

    return (struct member){.collective = (int)(random >> 28) % PAIRS,
                           .root = (int)(random >> 24 & 15) % model.nranks,
                           .count = counts[(random >> 20 & 15) % MEMBER_COUNTS],
                           .type = SYMWIN_U32,
                           .op = SYMWIN_SUM,
                           .algo = (random >> 18 & 1) != 0 ? SYMWIN_ALGO_ONESHOT
                                                           : SYMWIN_ALGO_AUTO};
}

static void make_wrong(struct member *m)
{
    const struct sw_collective *is = shape_of(m->collective);

    if (has_root(is))
        m->root = model.nranks;
    else if (is->reduces)
        m->op = 5;
    else
        m->algo = (symwin_algo)SW_ALGOS;
    group.is_wrong = 1;
}

/* Of all ranks alike. `is_apart`: no rank reads or writes what another one writes, so that the call
 * may be made again, and its output is known. */
static void choose_group(const struct step *s, const struct call *c, unsigned capture, int is_apart)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_COPIES, SYMWIN_ALGO_AUTO, SYMWIN_ALGO_ONESHOT,
                                        SYMWIN_ALGO_PUT, SYMWIN_ALGO_COPIES};
    uint32_t random = (s->a << 24 | s->b << 16 | s->c << 8 | s->twist) * 0x9e3779b1u;
    struct member last = as_member(c);
    int i, any_again = 0, known = is_apart && is_in_group(s);

    group = (struct group){.count = is_in_group(s) ? 1 + (int)(random >> 8) % MEMBERS : 0};
    for (i = 0; i < group.count; i++) {
        struct member *m = &group.members[i];

        random = random * 1664525u + 1013904223u;
        *m = choose_member(random);
        group.on_device[i] = random >> 8 & 7;
        m->chained = (random >> 19 & 1) != 0 && known && can_chain(&last, m) &&
                     (i > 0 || may_read_planned(m, capture));
        if (i == 0 && m->chained)
            m->algo = SYMWIN_ALGO_ONESHOT; /* where ranks' outputs lie makes no difference */
        known = 1;
        if ((random >> 12 & 3) == 0 && is_apart && !is_pairs(shape_of(c->collective))) {
            *m = as_member(c);
            m->algo = algos[(random >> 14 & 15) % (sizeof algos / sizeof algos[0])];
            m->again = any_again = 1;
            known = 0;
        }
        last = *m;
    }
    random = random * 1664525u + 1013904223u;
    if (i > 0 && random >> 28 == 0 && s->how != APART_IN_A_GROUP && !any_again)
        make_wrong(&group.members[i - 1]);
}

/* ---- a rank's calls ---- */

/* Behind all buffers, as that of the planned call. */
static char *table_of(int rank, int i)
{
    const struct memory *m = planned[rank].in.memory;

    if ((group.on_device[i] >> rank & 1) == 0 || m == NULL || m->owner == NOBODY ||
        m->device != model.device[rank] || m->asked < m->bytes)
        return NULL;
    return m->ptr + m->bytes - TABLES + (size_t)(rank * MEMBERS + i) * sizeof calls->parts;
}

/* What the rank alone has. */
static void place_member(int rank, int i, struct call *c)
{
    struct member *m = &c->members[i];
    const struct sw_collective *is = shape_of(m->collective);

    if (m->again) {
        m->in = c->ptr;
        m->out = c->out;
        memcpy(m->parts, c->parts, sizeof m->parts);
        m->table = c->table;
        return;
    }
    m->in = extra[rank] + 2 * i * MEMBER_WORDS;
    m->out = extra[rank] + (2 * i + 1) * MEMBER_WORDS;
    if (m->chained)
        m->in = i > 0 ? (m - 1)->out : c->out;
    lengths_of(is, m->count, rank, m->parts);
    m->table = is->by_parts ? table_of(rank, i) : NULL;
}

static void join_group(int rank, struct call *c)
{
    int i;

    make_extra(rank);
    c->grouped = 1;
    c->member_count = group.count;
    memcpy(c->members, group.members, sizeof c->members);
    for (i = 0; i < c->member_count; i++)
        place_member(rank, i, c);
}

/* ---- data ---- */

/* Other data than that of the planned call, and of the other members. */
static void make_member_input(int rank, int i, uint32_t data[MOST_PARTS])
{
    size_t k;

    make_input(rank, data);
    for (k = 0; k < MOST_PARTS; k++)
        data[k] ^= (uint32_t)(i + 1) << 20;
}

static void fill_members(int rank, const struct call *c)
{
    static uint32_t data[MOST_PARTS];
    int i;

    for (i = 0; i < c->member_count; i++) {
        const struct member *m = &c->members[i];

        if (m->again)
            continue;
        fuzz_must(m->table == NULL || symwin_memcpy(model.device[rank], m->table, m->parts,
                                                    sizeof m->parts, c->stream) == SYMWIN_OK,
                  "%s", symwin_last_error());
        memset(m->out, UNWRITTEN, MEMBER_WORDS * sizeof *data);
        if (m->chained)
            continue;
        make_member_input(rank, i, data);
        memcpy(m->in, data, MEMBER_WORDS * sizeof *data);
    }
}

/* A rank writes nothing behind its outputs. */
static void check_behind(int rank, const struct call *c)
{
    int i;

    for (i = 0; i < c->member_count; i++) {
        const struct member *m = &c->members[i];
        const struct sw_collective *is = shape_of(m->collective);
        size_t at = (size_t)out_count(is, m->count, rank, m->root) * sizeof(uint32_t);

        for (; !m->again && at < MEMBER_WORDS * sizeof(uint32_t); at++)
            fuzz_must(((unsigned char *)m->out)[at] == UNWRITTEN,
                      "call %d of a group, %s: rank %d wrote behind its output", i + 2, is->call,
                      rank);
    }
}

/* After the calls have ended. */
static void check_members(const struct call made[RANKS])
{
    static uint32_t inputs[RANKS][MOST_PARTS], outputs[RANKS][MOST_PARTS];
    const struct planned *p = planned;
    int i, r;

    for (r = 0; r < model.nranks && made[0].member_count > 0; r++)
        make_input(r, inputs[r]);
    for (r = 0; r < model.nranks && made[0].member_count > 0; r++)
        make_output(p->is, p->count, p->bytes / p->count, r, p->root, inputs, outputs[r]);
    for (i = 0; i < made[0].member_count; i++) {
        const struct sw_collective *is = shape_of(made[0].members[i].collective);
        const struct member *m = &made[0].members[i];

        if (m->again)
            continue;
        for (r = 0; r < model.nranks; r++)
            if (m->chained)
                memcpy(inputs[r], outputs[r], sizeof inputs[r]);
            else
                make_member_input(r, i, inputs[r]);
        for (r = 0; r < model.nranks; r++) {
            const size_t bytes = (size_t)out_count(is, m->count, r, m->root) * sizeof **outputs;

            make_output(is, m->count, sizeof **outputs, r, m->root, inputs, outputs[r]);
            fuzz_must(memcmp(made[r].members[i].out, outputs[r], bytes) == 0,
                      "call %d of a group, %s: rank %d's output is wrong", i + 2, is->call, r);
        }
    }
    for (r = 0; r < model.nranks; r++)
        check_behind(r, &made[r]);
}

#endif
