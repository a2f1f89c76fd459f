/* Graphs and their execution.
 *
 * Nodes are stored in capture order, so a node's dependencies precede it. An instantiated graph is
 * a deep copy: its graph may be destroyed. Launches of one instantiated graph never overlap (each
 * waits for the mark of the previous one), so the counters of a run are stored in it.
 *
 * A launch holds the emu_exec that it runs. A change of a node while a launch holds it is made in a
 * copy, which the next launch uses.
 */
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "graph.h"

struct CUgraphNode_st {
    struct emu_op op;
    size_t index;
    int leads; /* for emu_graph_leads_to() */
    size_t dep_count;
    CUgraphNode deps[];
};

/* User objects with the number of references to each. */
struct holds {
    size_t count;
    struct hold {
        CUuserObject object;
        unsigned refs;
    } * list;
};

struct CUgraph_st {
    uint64_t id; /* unlike the handle, never reused */
    size_t count, room;
    CUgraphNode *nodes;
    struct holds holds;
};

struct step {
    struct emu_exec *exec;
    struct emu_op op;
    size_t *next; /* steps that depend on it, in exec->edges */
    size_t next_count;
    unsigned deps;
    atomic_uint pending; /* dependencies left in this run */
};

struct emu_exec {
    atomic_int refs; /* the handle and launches */
    struct holds holds;
    size_t count, edge_count;
    struct step *steps;
    size_t *edges;

    pthread_mutex_t mutex;
    pthread_cond_t done;
    size_t unfinished; /* steps left in this run */
};

struct CUgraphExec_st {
    /* its nodes identify the steps; the graph is gone if no graph at this address has the id */
    struct CUgraph_st *graph;
    uint64_t graph_id;

    pthread_mutex_t mutex; /* keeps marks in launch order */
    struct emu_exec *exec; /* for the next launch */
    struct emu_mark *last; /* the last launch's mark */
};

/* ---- user objects ---------------------------------------------------------------------------- */

/* Takes over the references. */
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
    static _Atomic uint64_t ids;
    struct CUgraph_st *g = calloc(1, sizeof *g);

    if (g != NULL)
        g->id = ++ids;
    return g;
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
    return emu_handle_add(EMU_HANDLE_GRAPH, g) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
    CUresult result = emu_enter_drop(EMU_cuGraphDestroy, EMU_HANDLE_GRAPH, graph,
                                     CUDA_ERROR_INVALID_VALUE);

    if (result == CUDA_SUCCESS)
        emu_graph_free(graph);
    return result;
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

static void exec_free(struct emu_exec *x)
{
    for (size_t i = 0; x->steps != NULL && i < x->count; i++)
        emu_op_free(&x->steps[i].op);
    pthread_mutex_destroy(&x->mutex);
    pthread_cond_destroy(&x->done);
    free(x->steps);
    free(x->edges);
    holds_drop(&x->holds);
    free(x);
}

void emu_graph_exec_unref(struct emu_exec *x)
{
    if (atomic_fetch_sub(&x->refs, 1) == 1)
        exec_free(x);
}

/* Converts each node's dependencies into lists of dependents. */
static void edges_make(struct emu_exec *x, const struct CUgraph_st *g)
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

/* Steps without operations. NULL: no memory. */
static struct emu_exec *exec_new(size_t count, size_t edge_count, const struct holds *holds)
{
    struct emu_exec *x = calloc(1, sizeof *x);

    if (x == NULL)
        return NULL;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->mutex, NULL);
    pthread_cond_init(&x->done, NULL);
    x->count = count;
    x->edge_count = edge_count;
    x->steps = calloc(count + 1, sizeof *x->steps);
    x->edges = calloc(edge_count + 1, sizeof *x->edges);
    if (x->steps == NULL || x->edges == NULL || holds_copy(&x->holds, holds) != 0) {
        exec_free(x);
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        x->steps[i].exec = x;
    return x;
}

static struct emu_exec *exec_create(const struct CUgraph_st *g)
{
    struct emu_exec *x;
    size_t edges = 0;

    for (size_t i = 0; i < g->count; i++)
        edges += g->nodes[i]->dep_count;
    x = exec_new(g->count, edges, &g->holds);
    if (x == NULL)
        return NULL;
    for (size_t i = 0; i < g->count; i++) {
        x->steps[i].deps = (unsigned)g->nodes[i]->dep_count;
        if (emu_op_copy(&x->steps[i].op, &g->nodes[i]->op) != 0) {
            exec_free(x);
            return NULL;
        }
    }
    edges_make(x, g);
    return x;
}

/* Allowed while the original runs. */
static struct emu_exec *exec_copy(const struct emu_exec *from)
{
    struct emu_exec *x = exec_new(from->count, from->edge_count, &from->holds);

    if (x == NULL)
        return NULL;
    memcpy(x->edges, from->edges, from->edge_count * sizeof *x->edges);
    for (size_t i = 0; i < from->count; i++) {
        x->steps[i].next = x->edges + (from->steps[i].next - from->edges);
        x->steps[i].next_count = from->steps[i].next_count;
        x->steps[i].deps = from->steps[i].deps;
        if (emu_op_copy(&x->steps[i].op, &from->steps[i].op) != 0) {
            exec_free(x);
            return NULL;
        }
    }
    return x;
}

static void handle_free(struct CUgraphExec_st *h)
{
    if (h->exec != NULL)
        emu_graph_exec_unref(h->exec);
    emu_mark_unref(h->last);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}

static struct CUgraphExec_st *handle_create(struct CUgraph_st *g)
{
    struct CUgraphExec_st *h = calloc(1, sizeof *h);

    if (h == NULL)
        return NULL;
    pthread_mutex_init(&h->mutex, NULL);
    h->graph = g;
    h->graph_id = g->id;
    h->exec = exec_create(g);
    if (h->exec == NULL) {
        handle_free(h);
        return NULL;
    }
    return h;
}

CUresult sw_emu_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags)
{
    enum { AUTO_FREE_ON_LAUNCH = 1, USE_NODE_PRIORITY = 8 };
    struct CUgraphExec_st *h;
    struct CUctx_st *ctx; /* an H200's driver requires a current context, any */
    CUresult result = emu_begin(EMU_cuGraphInstantiateWithFlags, &ctx, 0);

    if (result != CUDA_SUCCESS)
        return result;
    if (exec == NULL || (flags & ~(unsigned long long)(AUTO_FREE_ON_LAUNCH | USE_NODE_PRIORITY)) ||
        !emu_handle_is(EMU_HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    result = emu_capture_forbids(); /* as on an H200, during another thread's global capture */
    if (result != CUDA_SUCCESS)
        return result;
    h = handle_create(graph);
    if (h == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (emu_handle_add(EMU_HANDLE_GRAPH_EXEC, h) != 0) {
        handle_free(h);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *exec = h;
    return CUDA_SUCCESS;
}

/* Launches in progress hold what they run until they have ended. */
CUresult sw_emu_cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = emu_enter_drop(EMU_cuGraphExecDestroy, EMU_HANDLE_GRAPH_EXEC, exec,
                                     CUDA_ERROR_INVALID_VALUE);

    if (result == CUDA_SUCCESS)
        handle_free(exec);
    return result;
}

/* ---- changes of an instantiated graph -------------------------------------------------------- */

/* -1: not, or no longer, a node of the graph that was instantiated. */
static int step_of(const struct CUgraphExec_st *h, CUgraphNode node, size_t *step)
{
    if (!emu_handle_is(EMU_HANDLE_GRAPH, h->graph) || h->graph->id != h->graph_id)
        return -1;
    for (*step = 0; *step < h->graph->count; ++*step)
        if (h->graph->nodes[*step] == node)
            return 0;
    return -1;
}

/* Under the handle's lock, without which no launch can take a reference. */
static CUresult kernel_set(struct CUgraphExec_st *h, size_t step,
                           const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct emu_exec *x = h->exec;
    struct emu_op op;
    CUresult result;

    if (x->steps[step].op.kind != EMU_OP_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    result = emu_kernel_op(&op, x->steps[step].op.device, params);
    if (result != CUDA_SUCCESS)
        return result;
    op.kernel.partition = x->steps[step].op.kernel.partition;
    if (atomic_load(&x->refs) != 1) {
        x = exec_copy(x);
        if (x == NULL) {
            emu_op_free(&op);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        emu_graph_exec_unref(h->exec);
        h->exec = x;
    }
    emu_op_free(&x->steps[step].op);
    x->steps[step].op = op;
    return CUDA_SUCCESS;
}

/* Here a kernel can only be given as `func`. */
CUresult sw_emu_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS *params)
{
    size_t step;
    CUresult result = emu_enter(EMU_cuGraphExecKernelNodeSetParams);

    if (result != CUDA_SUCCESS)
        return result;
    if (params == NULL || params->kern != NULL || !emu_handle_is(EMU_HANDLE_GRAPH_EXEC, exec) ||
        step_of(exec, node, &step) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&exec->mutex);
    result = kernel_set(exec, step, params);
    pthread_mutex_unlock(&exec->mutex);
    return result;
}

/* ---- launches -------------------------------------------------------------------------------- */

static CUresult enter_launch(enum emu_entry entry, CUgraphExec exec, CUstream stream,
                             struct CUstream_st **s)
{
    CUresult result = emu_enter_stream(entry, stream, s, 0);

    if (result == CUDA_SUCCESS && !emu_handle_is(EMU_HANDLE_GRAPH_EXEC, exec))
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

/* Nothing to upload: a launch finds everything on the host. */
CUresult sw_emu_cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    struct CUstream_st *s;
    CUresult result = enter_launch(EMU_cuGraphUpload, exec, stream, &s);

    if (result == CUDA_SUCCESS && atomic_load(&s->capture) != NULL)
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result;
}

CUresult sw_emu_cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    struct emu_op op = {.kind = EMU_OP_GRAPH};
    struct emu_mark *mark = NULL;
    struct CUstream_st *s;
    CUresult result = enter_launch(EMU_cuGraphLaunch, exec, stream, &s);

    if (result != CUDA_SUCCESS)
        return result;
    op.device = s->device;
    pthread_mutex_lock(&exec->mutex);
    op.exec = exec->exec;
    atomic_fetch_add(&op.exec->refs, 1);
    result = emu_submit(s, &op, exec->last, &mark);
    if (result == CUDA_SUCCESS) {
        emu_mark_unref(exec->last);
        exec->last = mark;
    }
    pthread_mutex_unlock(&exec->mutex);
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

/* If there is no thread for a branch, the branch must still not block the steps that depend on
 * it. */
static void branch_start(struct step *s)
{
    if (emu_pool_start(branch_run, s) == 0)
        return;
    emu_context_fail(s->op.device, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    branch_run(s);
}

/* Runs a step, then the first step that it makes ready, and so on; the others become branches. */
static void branch_run(void *arg)
{
    struct step *s = arg, *next;
    struct emu_exec *x = s->exec;

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

CUresult emu_graph_run(struct emu_exec *x)
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
