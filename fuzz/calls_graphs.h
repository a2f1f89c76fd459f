/* Steps of fuzz/calls.c on captured collectives: graphs hold registered buffers, even as the only
 * holder. */
#ifndef SYMWIN_FUZZ_CALLS_GRAPHS_H
#define SYMWIN_FUZZ_CALLS_GRAPHS_H

#include "calls_collective.h"

/* What is needed to launch each graph again. */
static struct replay {
    struct planned planned[RANKS];
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
    plan_collective(s, rank, c, model.captures_made);
    c->captures = captures_of(s);
}

/* Notes what the capture holds. */
static void note_holds(struct graph *g, const struct comm *comm, int rank)
{
    int count = 0, i;

    for (i = 0; i < CONNECTED; i++) {
        const struct connected *c = &comm->connected[rank][i];

        if (c->number != 0 && c->graphs > 0 && c->capture == model.captures_made)
            g->rank[rank].holds[count++] = c->number;
    }
}

/* The driver reports the end of a graph; the library notices it in its next call that checks. */
static void give_back(const struct late *l)
{
    struct comm *comm = &model.comm[l->comm];
    int i, h;

    if (comm->serial != l->comm_serial)
        return;
    for (i = 0; i < CONNECTED; i++)
        for (h = 0; h < 2; h++) {
            struct connected *c = &comm->connected[l->rank][i];

            if (c->number != 0 && c->number == l->holds[h])
                c->returned++;
        }
}

/* A rank's graph has ended; the driver reports it now, or later. */
static void graph_gone(const struct graph *g, int rank)
{
    const struct late l = {
        g->comm, rank, g->comm_serial, {g->rank[rank].holds[0], g->rank[rank].holds[1]}};
    int i = 0;

    if (!model.is_late[rank]) {
        give_back(&l);
        return;
    }
    while (i < LATE && model.late[i].comm_serial != 0)
        i++;
    fuzz_must(i < LATE, "more graphs than steps");
    model.late[i] = l;
}

/* The driver of a rank's device, or of all devices, makes the delayed reports. */
static void callbacks_come(int rank)
{
    int i;

    sw_emu_callbacks_come(rank < 0 ? -1 : model.device[rank], 0, 1);
    for (i = 0; i < LATE; i++) {
        struct late *l = &model.late[i];

        if (l->comm_serial == 0 || (rank >= 0 && model.device[l->rank] != model.device[rank]))
            continue;
        give_back(l);
        l->comm_serial = 0;
    }
}

/* From now on the driver of a rank's device reports late, or in time; earlier reports stay
 * delayed. */
static void set_late(int rank, int late)
{
    int r;

    sw_emu_callbacks_late(model.device[rank], late);
    for (r = 0; r < model.nranks; r++)
        if (model.device[r] == model.device[rank])
            model.is_late[r] = late;
}

/* Once for all ranks. */
static void step_callbacks(const struct step *s, int rank, struct call *c)
{
    (void)c;
    if (rank > 0)
        return;
    if (s->a % 2 == 0)
        set_late((int)(s->b % (unsigned)model.nranks), s->c % 4 != 0);
    if (s->a % 4 != 0)
        callbacks_come((int)(s->b % (unsigned)model.nranks));
}

static void destroy_graph(struct graph *g, int rank)
{
    const int was_there = g->rank[rank].graph != NULL || g->rank[rank].exec != NULL;

    if (g->rank[rank].graph != NULL)
        must(sw_drv.cuGraphDestroy(g->rank[rank].graph), "cuGraphDestroy");
    g->rank[rank].graph = NULL;
    if (was_there && g->rank[rank].exec == NULL)
        graph_gone(g, rank);
}

static void destroy_exec(struct graph *g, int rank)
{
    const int was_there = g->rank[rank].graph != NULL || g->rank[rank].exec != NULL;

    if (g->rank[rank].exec != NULL)
        must(sw_drv.cuGraphExecDestroy(g->rank[rank].exec), "cuGraphExecDestroy");
    g->rank[rank].exec = NULL;
    if (was_there && g->rank[rank].graph == NULL)
        graph_gone(g, rank);
}

/* Frees the model's entry if no rank has anything of the graph. */
static void forget_graph(struct graph *g)
{
    int r, left = 0;

    for (r = 0; r < model.nranks; r++)
        left += g->rank[r].graph != NULL || g->rank[r].exec != NULL;
    if (left == 0)
        *g = (struct graph){.comm_serial = 0};
}

/* `differs`: the ranks' calls do. */
static void launch(struct graph *g, int differs)
{
    struct replay *replay = &replays[g - model.graph];
    int r;

    memcpy(planned, replay->planned, sizeof planned);
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
    if (differs)
        check_apart(&model.comm[g->comm], replay->calls);
    else
        check_outputs(replay->calls);
}

/* Whether the graph itself holds both buffers, as they were used. */
static int lasts(const struct comm *comm, int rank, const struct graph *g)
{
    const struct buffer *both[2] = {&planned[rank].in, &planned[rank].out};
    int b, i;

    for (b = 0; b < 2; b++) {
        int held = 0;

        if (both[b]->is_public && planned[rank].windows)
            return 0;
        for (i = 0; i < CONNECTED; i++) {
            const struct connected *c = &comm->connected[rank][i];

            held |= c->number != 0 &&
                    (c->number == g->rank[rank].holds[0] || c->number == g->rank[rank].holds[1]) &&
                    both[b]->ptr >= c->begin && both[b]->ptr < c->begin + c->bytes;
        }
        if (!held)
            return 0;
    }
    return 1;
}

static void instantiate(struct graph *g, int rank)
{
    struct sw_scope scope;

    fuzz_must(sw_scope_enter(model.device[rank], &scope) == SYMWIN_OK, "%s", symwin_last_error());
    must(sw_drv.cuGraphInstantiateWithFlags(&g->rank[rank].exec, g->rank[rank].graph, 0),
         "cuGraphInstantiateWithFlags");
    sw_scope_leave(&scope);
}

static void done_capture(const struct step *s, int rank, const struct call *c)
{
    struct comm *comm = &model.comm[s->a % COMMS];
    struct graph *g = graph_of(s);
    int r;

    collective_note(s, rank, c);
    if (rank < model.nranks - 1)
        return;
    *g = (struct graph){.comm = (int)(s->a % COMMS), .comm_serial = comm->serial, .lasts = 1};
    for (r = 0; r < model.nranks; r++) {
        g->rank[r].graph = calls[r].graph;
        if (is_planned)
            note_holds(g, comm, r);
        if (calls[r].got == SYMWIN_OK && (calls[r].bytes > 0 || meets_empty(&calls[r])))
            instantiate(g, r);
        g->lasts &= lasts(comm, r, g);
    }
    if (g->rank[0].exec != NULL) {
        memcpy(replays[g - model.graph].planned, planned, sizeof planned);
        memcpy(replays[g - model.graph].calls, calls, sizeof calls);
        launch(g, mismatch);
        return;
    }
    for (r = 0; r < model.nranks; r++)
        destroy_graph(g, r);
    forget_graph(g);
}

/* ---- after capture ---- */

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

/* Once for all ranks, which make no symwin calls: launches the graph, or destroys the objects of
 * one rank or of all. */
static void step_graph(const struct step *s, int rank, struct call *c)
{
    struct graph *g = &model.graph[s->a % GRAPHS];
    int r;

    (void)c;
    if (rank > 0 || g->comm_serial == 0)
        return;
    if (s->b % 4 == 0 && can_launch(g))
        launch(g, 0);
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
