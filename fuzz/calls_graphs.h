/* Steps of fuzz/calls.c on captured all-reduces: graphs hold registered buffers, also when nobody else does. */
#ifndef SYMWIN_FUZZ_CALLS_GRAPHS_H
#define SYMWIN_FUZZ_CALLS_GRAPHS_H

#include "calls_reduce.h"

/* What it takes to launch each graph again. */
static struct replay {
    struct reduction reductions[RANKS];
    struct call calls[RANKS];
} replays[GRAPHS];

static void must(CUresult result, const char *what)
{
    fuzz_must(result == CUDA_SUCCESS, "%s gives %d", what, (int)result);
}

/* ---- captures ---- */

static struct graph *graph_of(const struct step *s)
{
    return &model.graph[s->twist / 8 % GRAPHS];
}

static void step_capture(const struct step *s, int rank, struct call *c)
{
    const struct comm *comm = &model.comm[s->a % COMMS];

    if (graph_of(s)->comm_serial != 0 || comm->left > 0)
        return;
    if (rank == 0)
        model.captures_made++;
    plan_reduce(s, rank, c, model.captures_made);
    c->captures = 1 + (s->a >> 5 & 1);
}

/* What the capture has taken. */
static void note_holds(struct graph *g, const struct comm *comm, int rank)
{
    int count = 0, i;

    for (i = 0; i < RANGES; i++)
        if (is_live(&comm->ranges[rank][i]) && comm->ranges[rank][i].graph > 0 &&
            comm->ranges[rank][i].capture == model.captures_made)
            g->rank[rank].holds[count++] = comm->ranges[rank][i].serial;
}

/* Gives a rank's references back, which the library sees when it comes by. */
static void give_back(const struct graph *g, int rank)
{
    struct comm *comm = &model.comm[g->comm];
    int i, h;

    if (comm->serial != g->comm_serial)
        return;
    for (i = 0; i < RANGES; i++)
        for (h = 0; h < 2; h++)
            if (is_live(&comm->ranges[rank][i]) && g->rank[rank].holds[h] != 0 &&
                comm->ranges[rank][i].serial == g->rank[rank].holds[h])
                comm->ranges[rank][i].returned++;
}

static void destroy_graph(struct graph *g, int rank)
{
    const int was_there = g->rank[rank].graph != NULL || g->rank[rank].exec != NULL;

    if (g->rank[rank].graph != NULL)
        must(sw_drv.cuGraphDestroy(g->rank[rank].graph), "cuGraphDestroy");
    g->rank[rank].graph = NULL;
    if (was_there && g->rank[rank].exec == NULL)
        give_back(g, rank);
}

static void destroy_exec(struct graph *g, int rank)
{
    const int was_there = g->rank[rank].graph != NULL || g->rank[rank].exec != NULL;

    if (g->rank[rank].exec != NULL)
        must(sw_drv.cuGraphExecDestroy(g->rank[rank].exec), "cuGraphExecDestroy");
    g->rank[rank].exec = NULL;
    if (was_there && g->rank[rank].graph == NULL)
        give_back(g, rank);
}

/* The place is free again when no rank has anything there. */
static void forget_graph(struct graph *g)
{
    int r, left = 0;

    for (r = 0; r < model.nranks; r++)
        left += g->rank[r].graph != NULL || g->rank[r].exec != NULL;
    if (left == 0)
        *g = (struct graph){.comm_serial = 0};
}

static void launch(struct graph *g)
{
    struct replay *replay = &replays[g - model.graph];
    int r;

    memcpy(reductions, replay->reductions, sizeof reductions);
    for (r = 0; r < model.nranks; r++)
        fill_input(r, &replay->calls[r]);
    for (r = 0; r < model.nranks; r++)
        fuzz_must(symwin_stream_synchronize(model.device[r], model.stream[r]) == SYMWIN_OK, "%s",
                  symwin_last_error());
    for (r = 0; r < model.nranks; r++) {
        struct sw_scope scope;

        fuzz_must(sw_scope_enter(model.device[r], &scope) == SYMWIN_OK, "%s", symwin_last_error());
        must(sw_drv.cuGraphLaunch(g->rank[r].exec, model.stream[r]), "cuGraphLaunch");
        sw_scope_leave(&scope);
    }
    check_sums(replay->calls);
}

/* Whether both buffers stay as long as the graph does, as they were served. */
static int lasts(const struct comm *comm, int rank, const struct graph *g)
{
    const struct buffer *both[2] = {&reductions[rank].in, &reductions[rank].out};
    int b, i, held = 0;

    for (b = 0; b < 2; b++) {
        if (reductions[rank].windows && both[b]->is_public)
            return 0;
        for (i = 0; i < RANGES; i++) {
            const struct range *r = &comm->ranges[rank][i];

            if (is_live(r) &&
                (r->serial == g->rank[rank].holds[0] || r->serial == g->rank[rank].holds[1]) &&
                both[b]->ptr >= r->begin && both[b]->ptr < r->end)
                break;
        }
        held += i < RANGES;
    }
    return held == 2;
}

static void done_capture(const struct step *s, int rank, const struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct graph *g = graph_of(s);
    int r;

    reduce_note(s, rank, c);
    if (rank < model.nranks - 1)
        return;
    *g = (struct graph){.comm = (int)(s->a % COMMS), .comm_serial = comm->serial, .lasts = 1};
    for (r = 0; r < model.nranks; r++) {
        g->rank[r].graph = calls[r].graph;
        if (is_planned)
            note_holds(g, comm, r);
        if (calls[r].got == SYMWIN_OK && calls[r].bytes > 0)
            must(sw_drv.cuGraphInstantiateWithFlags(&g->rank[r].exec, calls[r].graph, 0),
                 "cuGraphInstantiateWithFlags");
        g->lasts &= lasts(comm, r, g);
    }
    if (g->rank[0].exec != NULL) {
        memcpy(replays[g - model.graph].reductions, reductions, sizeof reductions);
        memcpy(replays[g - model.graph].calls, calls, sizeof calls);
        launch(g);
        return;
    }
    for (r = 0; r < model.nranks; r++)
        destroy_graph(g, r);
    forget_graph(g);
}

/* ---- what becomes of graphs ---- */

static int can_launch(const struct graph *g)
{
    const struct comm *comm = &model.comm[g->comm];
    int r;

    if (g->comm_serial == 0 || !g->lasts || comm->serial != g->comm_serial || comm->left > 0 ||
        comm->ended != SYMWIN_OK)
        return 0;
    for (r = 0; r < model.nranks; r++)
        if (g->rank[r].exec == NULL)
            return 0;
    return 1;
}

/* Once for all ranks, which make no calls of symwin: launches the graph, or destroys what a rank or all have. */
static void step_graph(const struct step *s, int rank, struct call *c)
{
    struct graph *g = &model.graph[s->a % GRAPHS];
    int r;

    (void)c;
    if (rank > 0 || g->comm_serial == 0)
        return;
    if (s->b % 4 == 0 && can_launch(g))
        launch(g);
    for (r = 0; r < model.nranks; r++) {
        if (s->odd >= 0 && s->odd < model.nranks && r != s->odd)
            continue;
        if ((s->b % 4 & 1) != 0)
            destroy_graph(g, r);
        if ((s->b % 4 & 2) != 0)
            destroy_exec(g, r);
    }
    forget_graph(g);
}

static void destroy_graphs(void)
{
    int i, r;

    for (i = 0; i < GRAPHS; i++) {
        for (r = 0; r < model.nranks; r++) {
            destroy_exec(&model.graph[i], r);
            destroy_graph(&model.graph[i], r);
        }
        forget_graph(&model.graph[i]);
    }
}

#endif
