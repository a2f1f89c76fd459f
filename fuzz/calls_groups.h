/* Groups of several collectives for fuzz/calls.c. Beside the planned call, a group has others, on
 * memory of their own: pinned host memory, of which the rest of the model knows nothing. Some read
 * what the one before them writes. */
#ifndef SYMWIN_FUZZ_CALLS_GROUPS_H
#define SYMWIN_FUZZ_CALLS_GROUPS_H

#include "calls_buffers.h"

enum { MEMBER_COUNTS = 5, MEMBER_WORDS = 512, UNWRITTEN = 0x5a };

/* Each rank's: for each member its input and its output. */
static uint32_t *extra[RANKS];

static void make_extra(int rank)
{
    struct sw_scope scope;
    void *memory = NULL;

    if (extra[rank] != NULL)
        return;
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

/* Whether every rank's output of a member is a whole input of the next one. */
static int can_chain(const struct member *from, const struct member *to)
{
    const struct sw_collective *is = shape_of(from->collective);

    return !is->root_receives &&
           out_count(is, from->count, 0, from->root) >=
               in_count(shape_of(to->collective), to->count, to->root, to->root);
}

/* Of all ranks alike. */
static void choose_members(const struct step *s, int rank, struct call *c)
{
    static const size_t counts[MEMBER_COUNTS] = {1, 3, 16, 64, 100};
    uint32_t random = (s->a << 24 | s->b << 16 | s->c << 8 | s->twist) * 0x9e3779b1u;
    int i;

    make_extra(rank);
    c->grouped = 1;
    c->member_count = 1 + (int)(random >> 8) % MEMBERS;
    for (i = 0; i < c->member_count; i++) {
        struct member *m = &c->members[i];

        random = random * 1664525u + 1013904223u;
        *m = (struct member){.collective = (int)(random >> 28) % SYMWIN_BARRIER,
                             .root = (int)(random >> 24 & 15) % model.nranks,
                             .count = counts[(random >> 20 & 15) % MEMBER_COUNTS],
                             .in = extra[rank] + 2 * i * MEMBER_WORDS,
                             .out = extra[rank] + (2 * i + 1) * MEMBER_WORDS};
        if (c->kind == CALL_CAPTURE && m->collective == SYMWIN_ALLREDUCE)
            m->collective = SYMWIN_REDUCE; /* whose ranks do not meet, as in an agreement */
        m->chained = i > 0 && (random >> 19 & 1) != 0 && can_chain(m - 1, m);
        if (m->chained)
            m->in = (m - 1)->out;
    }
}

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
        memset(c->members[i].out, UNWRITTEN, MEMBER_WORDS * sizeof *data);
        if (c->members[i].chained)
            continue;
        make_member_input(rank, i, data);
        memcpy(c->members[i].in, data, MEMBER_WORDS * sizeof *data);
    }
}

/* After the calls have ended. */
static void check_members(const struct call made[RANKS])
{
    static uint32_t inputs[RANKS][MOST_PARTS], outputs[RANKS][MOST_PARTS];
    int i, r;

    for (i = 0; i < made[0].member_count; i++) {
        const struct sw_collective *is = shape_of(made[0].members[i].collective);
        const struct member *m = &made[0].members[i];

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
            fuzz_must(((unsigned char *)made[r].members[i].out)[bytes] == UNWRITTEN,
                      "call %d of a group, %s: rank %d wrote behind its output", i + 2, is->call,
                      r);
        }
    }
}

#endif
