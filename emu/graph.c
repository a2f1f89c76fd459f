/* Graphs and their execution.
 *
 * Nodes are stored in the order in which they were captured, so what a node depends on comes before
 * it. An instantiated graph is a deep copy: its graph may go away. Its launches never overlap (each
 * waits for the mark of the last one), so the counters of a run live in it.
 */
#include <stdlib.h>

#include "exec.h"
#include "graph.h"

struct CUgraphNode_st {
    struct emu_op op;
    size_t index;
    int leads; /* emu_graph_leads_to()'s */
    size_t dep_count;
    CUgraphNode deps[];
};

/* User objects, and how many references of each. */
struct holds {
    size_t count;
    struct hold {
        CUuserObject object;
        unsigned refs;
    } * list;
};

struct CUgraph_st {
    size_t count, room;
    CUgraphNode *nodes;
    struct holds holds;
};

struct step {
    struct CUgraphExec_st *exec;
    struct emu_op op;
    size_t *next; /* those that depend on it, in exec->edges */
    size_t next_count;
    unsigned deps;
    atomic_uint pending; /* of them, in this run */
};

struct CUgraphExec_st {
    atomic_int refs; /* the handle and launches */
    struct holds holds;
    size_t count;
    struct step *steps;
    size_t *edges;

    pthread_mutex_t launch_mutex; /* keeps marks in launch order */
    struct emu_mark *last;        /* of the last launch */

    pthread_mutex_t mutex;
    pthread_cond_t done;
    size_t unfinished; /* steps of this run */
};

/* ---- user objects ---------------------------------------------------------------------------- */

/* Takes the references over. */
static int holds_add(struct holds *h, CUuserObject object, unsigned refs)
{
    struct hold *list = realloc(h->list, (h->count + 1) * sizeof *list);

    if (list == NULL)
        return -1;
    h->list = list;
    list[h->count++] = (struct hold){object, refs};
    return 0;
}

static int holds_copy(struct holds *to, const struct holds *from)
{
    for (size_t i = 0; i < from->count; i++) {
        if (holds_add(to, from->list[i].object, 1) != 0)
            return -1;
        emu_user_object_ref(from->list[i].object, 1);
    }
    return 0;
}

static void holds_drop(struct holds *h)
{
    for (size_t i = 0; i < h->count; i++)
        emu_user_object_unref(h->list[i].object, h->list[i].refs);
    free(h->list);
    *h = (struct holds){0};
}

int emu_graph_hold(struct CUgraph_st *g, CUuserObject object, unsigned count)
{
    return holds_add(&g->holds, object, count);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

struct CUgraph_st *emu_graph_create(void)
{
    return calloc(1, sizeof(struct CUgraph_st));
}

void emu_graph_free(struct CUgraph_st *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->count; i++) {
        emu_op_free(&g->nodes[i]->op);
        free(g->nodes[i]);
    }
    free(g->nodes);
    holds_drop(&g->holds);
    free(g);
}

CUresult emu_graph_publish(struct CUgraph_st *g)
{
    if (emu_handle_add(EMU_HANDLE_GRAPH, g) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    emu_live_add(EMU_LIVE_GRAPH, 1);
    return CUDA_SUCCESS;
}

CUgraphNode emu_graph_add(struct CUgraph_st *g, struct emu_op *op, const CUgraphNode *deps,
                          size_t count)
{
    CUgraphNode node;

    if (g->count == g->room) {
        const size_t room = g->room == 0 ? 16 : 2 * g->room;
        CUgraphNode *nodes = realloc(g->nodes, room * sizeof *nodes);

        if (nodes == NULL)
            return NULL;
        g->nodes = nodes;
        g->room = room;
    }
    node = calloc(1, sizeof *node + count * sizeof node->deps[0]);
    if (node == NULL)
        return NULL;
    node->op = *op;
    node->index = g->count;
    node->dep_count = count;
    for (size_t i = 0; i < count; i++)
        node->deps[i] = deps[i];
    g->nodes[g->count++] = node;
    return node;
}

int emu_graph_leads_to(struct CUgraph_st *g, const CUgraphNode *ends, size_t count)
{
    int all = 1;

    for (size_t i = 0; i < g->count; i++)
        g->nodes[i]->leads = 0;
    for (size_t i = 0; i < count; i++)
        ends[i]->leads = 1;
    for (size_t i = g->count; i-- > 0;) {
        CUgraphNode node = g->nodes[i];

        all &= node->leads;
        for (size_t k = 0; node->leads && k < node->dep_count; k++)
            node->deps[k]->leads = 1;
    }
    return all;
}

CUresult sw_emu_cuGraphDestroy(CUgraph graph)
{
    CUresult result = emu_enter(EMU_cuGraphDestroy);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_drop(EMU_HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    emu_graph_free(graph);
    emu_live_add(EMU_LIVE_GRAPH, -1);
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CUresult result = emu_enter(EMU_cuGraphGetNodes);

    if (result != CUDA_SUCCESS)
        return result;
    if (count == NULL || !emu_handle_is(EMU_HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes != NULL) {
        for (size_t i = 0; i < *count; i++)
            nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
        if (*count > graph->count)
            *count = graph->count;
    } else {
        *count = graph->count;
    }
    return CUDA_SUCCESS;
}

/* ---- instantiation --------------------------------------------------------------------------- */

static void exec_free(struct CUgraphExec_st *x)
{
    for (size_t i = 0; x->steps != NULL && i < x->count; i++)
        emu_op_free(&x->steps[i].op);
    emu_mark_unref(x->last);
    pthread_mutex_destroy(&x->launch_mutex);
    pthread_mutex_destroy(&x->mutex);
    pthread_cond_destroy(&x->done);
    free(x->steps);
    free(x->edges);
    holds_drop(&x->holds);
    free(x);
}

void emu_graph_exec_unref(struct CUgraphExec_st *x)
{
    if (atomic_fetch_sub(&x->refs, 1) == 1)
        exec_free(x);
}

/* Turns each node's list of what it waits for into lists of who waits for it. */
static void edges_make(struct CUgraphExec_st *x, const struct CUgraph_st *g)
{
    size_t *edge = x->edges;

    for (size_t i = 0; i < g->count; i++)
        for (size_t k = 0; k < g->nodes[i]->dep_count; k++)
            x->steps[g->nodes[i]->deps[k]->index].next_count++;
    for (size_t i = 0; i < g->count; i++) {
        x->steps[i].next = edge;
        edge += x->steps[i].next_count;
        x->steps[i].next_count = 0;
    }
    for (size_t i = 0; i < g->count; i++) {
        for (size_t k = 0; k < g->nodes[i]->dep_count; k++) {
            struct step *before = &x->steps[g->nodes[i]->deps[k]->index];

            before->next[before->next_count++] = i;
        }
    }
}

static struct CUgraphExec_st *exec_create(const struct CUgraph_st *g)
{
    struct CUgraphExec_st *x = calloc(1, sizeof *x);
    size_t edges = 0;

    if (x == NULL)
        return NULL;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->launch_mutex, NULL);
    pthread_mutex_init(&x->mutex, NULL);
    pthread_cond_init(&x->done, NULL);
    for (size_t i = 0; i < g->count; i++)
        edges += g->nodes[i]->dep_count;
    x->count = g->count;
    x->steps = calloc(g->count + 1, sizeof *x->steps);
    x->edges = calloc(edges + 1, sizeof *x->edges);
    if (x->steps == NULL || x->edges == NULL || holds_copy(&x->holds, &g->holds) != 0) {
        exec_free(x);
        return NULL;
    }
    for (size_t i = 0; i < g->count; i++) {
        x->steps[i].exec = x;
        x->steps[i].deps = (unsigned)g->nodes[i]->dep_count;
        if (emu_op_copy(&x->steps[i].op, &g->nodes[i]->op) != 0) {
            exec_free(x);
            return NULL;
        }
    }
    edges_make(x, g);
    return x;
}

CUresult sw_emu_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags)
{
    enum { AUTO_FREE_ON_LAUNCH = 1, USE_NODE_PRIORITY = 8 };
    struct CUgraphExec_st *x;
    CUresult result = emu_enter(EMU_cuGraphInstantiateWithFlags);

    if (result != CUDA_SUCCESS)
        return result;
    if (exec == NULL || (flags & ~(unsigned long long)(AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY)) ||
        !emu_handle_is(EMU_HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    result = emu_capture_forbids(); /* as an H200 has it, while another thread captures for all */
    if (result != CUDA_SUCCESS)
        return result;
    x = exec_create(graph);
    if (x == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (emu_handle_add(EMU_HANDLE_GRAPH_EXEC, x) != 0) {
        exec_free(x);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    emu_live_add(EMU_LIVE_GRAPH_EXEC, 1);
    *exec = x;
    return CUDA_SUCCESS;
}

/* Launches that are under way keep it until they have ended. */
CUresult sw_emu_cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = emu_enter(EMU_cuGraphExecDestroy);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_drop(EMU_HANDLE_GRAPH_EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    emu_graph_exec_unref(exec);
    emu_live_add(EMU_LIVE_GRAPH_EXEC, -1);
    return CUDA_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

CUresult sw_emu_cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    struct emu_op op = {.kind = EMU_OP_GRAPH};
    struct emu_mark *mark = NULL;
    struct CUstream_st *s;
    CUresult result = emu_enter(EMU_cuGraphLaunch);

    if (result == CUDA_SUCCESS)
        result = emu_stream_resolve(stream, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_GRAPH_EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    op.device = s->device;
    op.exec = exec;
    atomic_fetch_add(&exec->refs, 1);
    pthread_mutex_lock(&exec->launch_mutex);
    result = emu_submit(s, &op, exec->last, &mark);
    if (result == CUDA_SUCCESS) {
        emu_mark_unref(exec->last);
        exec->last = mark;
    }
    pthread_mutex_unlock(&exec->launch_mutex);
    return result;
}

static void step_run(struct step *s)
{
    const CUdevice device = s->op.device;
    CUresult result;

    if (atomic_load(&emu_contexts[device].sticky) != CUDA_SUCCESS || emu_exiting())
        return;
    result = emu_op_run(&s->op);
    if (result != CUDA_SUCCESS)
        emu_context_fail(device, result);
}

static void branch_run(void *arg);

/* Where there is no thread for a branch, it must not hold up those that may wait for it. */
static void branch_start(struct step *s)
{
    if (emu_pool_start(branch_run, s) == 0)
        return;
    emu_context_fail(s->op.device, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    branch_run(s);
}

/* Runs a step and the first of those that it makes ready, and so on; the others are branches. */
static void branch_run(void *arg)
{
    struct step *s = arg, *next;
    struct CUgraphExec_st *x = s->exec;

    for (; s != NULL; s = next) {
        next = NULL;
        step_run(s);
        for (size_t i = 0; i < s->next_count; i++) {
            struct step *n = &x->steps[s->next[i]];

            if (atomic_fetch_sub(&n->pending, 1) != 1)
                continue;
            if (next == NULL)
                next = n;
            else
                branch_start(n);
        }
        pthread_mutex_lock(&x->mutex);
        if (--x->unfinished == 0)
            pthread_cond_signal(&x->done);
        pthread_mutex_unlock(&x->mutex);
    }
}

CUresult emu_graph_run(struct CUgraphExec_st *x)
{
    struct step *mine = NULL;

    if (x->count == 0)
        return CUDA_SUCCESS;
    x->unfinished = x->count;
    for (size_t i = 0; i < x->count; i++)
        atomic_store(&x->steps[i].pending, x->steps[i].deps);
    /* Only the roots have no dependencies; steps[0] is one. */
    for (size_t i = x->count; i-- > 0;) {
        if (x->steps[i].deps != 0)
            continue;
        if (i == 0)
            mine = &x->steps[i];
        else
            branch_start(&x->steps[i]);
    }
    branch_run(mine);
    pthread_mutex_lock(&x->mutex);
    while (x->unfinished != 0)
        pthread_cond_wait(&x->done, &x->mutex);
    pthread_mutex_unlock(&x->mutex);
    return CUDA_SUCCESS;
}
