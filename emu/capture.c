/* Stream capture: work becomes nodes of a graph instead of running.
 *
 * Each capturing stream has `tails`: the nodes that its next node depends on. An event recorded in
 * a capture stores the stream's tails. A wait for the event adds them to the tails of the waiting
 * stream, which joins the capture. When a capture ends, every node must lead to the tails of the
 * stream where it began.
 *
 * One lock for all captures: capturing is rare and short. A stream that is not capturing finds that
 * out without the lock.
 */
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "graph.h"

struct emu_capture {
    struct emu_capture *next; /* list of captures that have not ended */
    unsigned refs;            /* one until it has ended, one per event */
    uint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    int invalid, ended;
    struct CUgraph_st *graph; /* owned until the capture has ended */
    struct CUstream_st *origin;
    struct CUstream_st *streams; /* linked by capture_next, including the origin */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct emu_capture *captures;
static uint64_t last_id;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- under the lock -------------------------------------------------------------------------- */

static void capture_unref(struct emu_capture *c)
{
    if (--c->refs == 0)
        free(c);
}

static void stream_detach(struct CUstream_st *s)
{
    free(s->tails);
    s->tails = NULL;
    s->tail_count = 0;
    s->capture_next = NULL;
    atomic_store(&s->capture, NULL);
}

static void stream_attach(struct emu_capture *c, struct CUstream_st *s)
{
    s->capture_next = c->streams;
    c->streams = s;
    atomic_store(&s->capture, c);
}

/* Ends the capture; returns its graph. */
static struct CUgraph_st *capture_end(struct emu_capture *c)
{
    struct emu_capture **link = &captures;
    struct CUgraph_st *graph = c->graph;

    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    while (c->streams != NULL) {
        struct CUstream_st *s = c->streams;

        c->streams = s->capture_next;
        stream_detach(s);
    }
    c->ended = 1;
    c->graph = NULL;
    capture_unref(c);
    return graph;
}

/* Adds nodes to the stream's tails, without duplicates. */
static CUresult tails_add(struct CUstream_st *s, const CUgraphNode *nodes, size_t count)
{
    CUgraphNode *tails;

    if (count == 0)
        return CUDA_SUCCESS;
    tails = realloc(s->tails, (s->tail_count + count) * sizeof *tails);
    if (tails == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->tails = tails;
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;

        while (k < s->tail_count && tails[k] != nodes[i])
            k++;
        if (k == s->tail_count)
            tails[s->tail_count++] = nodes[i];
    }
    return CUDA_SUCCESS;
}

static CUresult node_add(struct emu_capture *c, struct CUstream_st *s, struct emu_op *op)
{
    CUgraphNode *tails = s->tails != NULL ? s->tails : malloc(sizeof *tails);
    CUgraphNode node;

    if (tails == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->tails = tails;
    node = emu_graph_add(c->graph, op, s->tails, s->tail_count);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->tails[0] = node;
    s->tail_count = 1;
    return CUDA_SUCCESS;
}

/* ---- calls that a capture forbids ------------------------------------------------------------ */

CUresult emu_capture_forbids(void)
{
    CUresult result = CUDA_SUCCESS;

    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    for (struct emu_capture *c = captures; c != NULL; c = c->next) {
        const int ours = c->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                         pthread_equal(c->thread, pthread_self());
        const int everybodys = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                               thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

        if (ours || everybodys) {
            c->invalid = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult emu_capture_forbids_stream(struct CUstream_st *s)
{
    CUresult result = CUDA_SUCCESS;
    struct emu_capture *c;

    if (atomic_load(&s->capture) == NULL)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    c = atomic_load(&s->capture);
    if (c != NULL) {
        result = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                            : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        c->invalid = 1;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Under the lock. */
static CUresult forbids_legacy(CUdevice device, int invalidate)
{
    CUresult result = CUDA_SUCCESS;

    for (struct emu_capture *c = captures; c != NULL; c = c->next) {
        for (struct CUstream_st *s = c->streams; s != NULL; s = s->capture_next) {
            if (s->device != device || (s->flags & CU_STREAM_NON_BLOCKING) != 0)
                continue;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            c->invalid |= invalidate;
        }
    }
    return result;
}

CUresult emu_capture_forbids_legacy(CUdevice device)
{
    CUresult result;

    pthread_mutex_lock(&mutex);
    result = forbids_legacy(device, 1);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* ---- operations, records and waits in a capture ---------------------------------------------- */

int emu_capture_op(struct CUstream_st *s, struct emu_op *op, CUresult *result)
{
    struct emu_capture *c;

    if (s->legacy) {
        *result = emu_capture_forbids_legacy(s->device);
        if (*result == CUDA_SUCCESS)
            return 0;
        emu_op_free(op);
        return 1;
    }
    if (atomic_load(&s->capture) == NULL)
        return 0;
    pthread_mutex_lock(&mutex);
    c = atomic_load(&s->capture);
    if (c != NULL) {
        if (c->invalid)
            *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        else if (op->kind == EMU_OP_GRAPH)
            *result =
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* graphs within graphs are not supported */
        else
            *result = node_add(c, s, op);
        if (*result != CUDA_SUCCESS)
            c->invalid = 1;
    }
    pthread_mutex_unlock(&mutex);
    if (c != NULL && *result != CUDA_SUCCESS)
        emu_op_free(op);
    return c != NULL;
}

static void captured_clear(struct emu_captured *e)
{
    if (e->capture != NULL)
        capture_unref(e->capture);
    free(e->nodes);
    *e = (struct emu_captured){0};
}

void emu_captured_clear(struct emu_captured *e)
{
    pthread_mutex_lock(&mutex);
    captured_clear(e);
    pthread_mutex_unlock(&mutex);
}

void emu_captured_invalidate(const struct emu_captured *e)
{
    pthread_mutex_lock(&mutex);
    if (e->capture != NULL)
        e->capture->invalid = 1;
    pthread_mutex_unlock(&mutex);
}

int emu_capture_record(struct CUstream_st *s, struct emu_captured *e, CUresult *result)
{
    struct emu_capture *c;

    if (atomic_load(&s->capture) == NULL)
        return 0;
    pthread_mutex_lock(&mutex);
    c = atomic_load(&s->capture);
    if (c != NULL && c->invalid) {
        *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (c != NULL) {
        CUgraphNode *nodes = malloc((s->tail_count + 1) * sizeof *nodes);

        *result = nodes != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (nodes != NULL) {
            captured_clear(e);
            for (size_t i = 0; i < s->tail_count; i++)
                nodes[i] = s->tails[i];
            *e = (struct emu_captured){c, nodes, s->tail_count};
            c->refs++;
        }
    }
    pthread_mutex_unlock(&mutex);
    return c != NULL;
}

/* The stream is not capturing: it joins the event's capture. */
static CUresult wait_joins(struct CUstream_st *s, const struct emu_captured *e)
{
    struct emu_capture *c = e->capture;
    CUresult result;

    if (c->ended)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (c->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->legacy) {
        c->invalid = 1;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    result = tails_add(s, e->nodes, e->count);
    if (result == CUDA_SUCCESS)
        stream_attach(c, s);
    return result;
}

/* The stream is part of capture c. */
static CUresult wait_within(struct emu_capture *c, struct CUstream_st *s,
                            const struct emu_captured *e, int recorded)
{
    CUresult result;

    if (c->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (e->capture == NULL && !recorded)
        return CUDA_SUCCESS;
    if (e->capture == c)
        result = tails_add(s, e->nodes, e->count);
    else if (e->capture == NULL || e->capture->ended)
        result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    else
        result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (result == CUDA_ERROR_STREAM_CAPTURE_MERGE)
        e->capture->invalid = 1;
    if (result != CUDA_SUCCESS)
        c->invalid = 1;
    return result;
}

int emu_capture_wait(struct CUstream_st *s, const struct emu_captured *e, int recorded,
                     CUresult *result)
{
    struct emu_capture *c;
    int handled = 1;

    pthread_mutex_lock(&mutex);
    c = atomic_load(&s->capture);
    if (c != NULL)
        *result = wait_within(c, s, e, recorded);
    else if (e->capture != NULL)
        *result = wait_joins(s, e);
    else
        handled = 0;
    pthread_mutex_unlock(&mutex);
    return handled;
}

void emu_capture_abandon(struct CUstream_st *s)
{
    struct CUgraph_st *graph = NULL;
    struct CUstream_st **link;
    struct emu_capture *c;

    if (atomic_load(&s->capture) == NULL)
        return;
    pthread_mutex_lock(&mutex);
    c = atomic_load(&s->capture);
    if (c != NULL && c->origin == s) {
        graph = capture_end(c);
    } else if (c != NULL) {
        c->invalid = 1;
        for (link = &c->streams; *link != s; link = &(*link)->capture_next)
            ;
        *link = s->capture_next;
        stream_detach(s);
    }
    pthread_mutex_unlock(&mutex);
    emu_graph_free(graph);
}

/* ---- entry points ---------------------------------------------------------------------------- */

CUresult sw_emu_cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    struct emu_capture *c;
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuStreamBeginCapture, stream, &s,
                                       (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED);

    if (result != CUDA_SUCCESS)
        return result;
    if (s->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->graph = emu_graph_create();
    if (c->graph == NULL) {
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->refs = 1;
    c->mode = mode;
    c->thread = pthread_self();
    c->origin = s;
    pthread_mutex_lock(&mutex);
    if (atomic_load(&s->capture) != NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        c->id = ++last_id;
        c->next = captures;
        captures = c;
        stream_attach(c, s);
    }
    pthread_mutex_unlock(&mutex);
    if (result != CUDA_SUCCESS) {
        emu_graph_free(c->graph);
        free(c);
    }
    return result;
}

/* A failed context does not prevent ending a capture: otherwise the capture could never end. */
CUresult sw_emu_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct CUgraph_st *made;
    struct emu_capture *c;
    CUresult result = emu_enter_unless(EMU_cuStreamEndCapture, graph == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    *graph = NULL;
    if (stream == CU_STREAM_PER_THREAD) {
        stream = NULL;
        result = emu_stream_resolve(CU_STREAM_PER_THREAD, &stream);
        if (stream == NULL)
            return result;
        result = CUDA_SUCCESS;
    } else if (!emu_handle_is(EMU_HANDLE_STREAM, stream)) {
        return stream == NULL || stream == CU_STREAM_LEGACY ? CUDA_ERROR_ILLEGAL_STATE
                                                            : CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&mutex);
    c = atomic_load(&stream->capture);
    if (c == NULL)
        result = CUDA_ERROR_ILLEGAL_STATE;
    else if (c->origin != stream)
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (result != CUDA_SUCCESS) {
        pthread_mutex_unlock(&mutex);
        return result;
    }
    if (c->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!emu_graph_leads_to(c->graph, stream->tails, stream->tail_count))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    made = capture_end(c);
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS)
        result = emu_graph_publish(made);
    if (result == CUDA_SUCCESS)
        *graph = made;
    else
        emu_graph_free(made);
    return result;
}

/* What is asked for with NULL is left out. */
static CUresult capture_info(enum emu_entry entry, CUstream stream, CUstreamCaptureStatus *status,
                             cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
                             size_t *count)
{
    struct emu_capture *c;
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(entry, stream, &s, status == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    pthread_mutex_lock(&mutex);
    if (s->legacy)
        result = forbids_legacy(s->device, 0);
    c = atomic_load(&s->capture);
    if (c != NULL)
        *status = c->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        if (id != NULL)
            *id = c->id;
        if (graph != NULL)
            *graph = c->graph;
        if (dependencies != NULL)
            *dependencies = s->tails;
        if (count != NULL)
            *count = s->tail_count;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult sw_emu_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                          cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **dependencies, size_t *count)
{
    return capture_info(EMU_cuStreamGetCaptureInfo_v2, stream, status, id, graph, dependencies,
                        count);
}

CUresult sw_emu_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return capture_info(EMU_cuStreamIsCapturing, stream, status, NULL, NULL, NULL, NULL);
}

CUresult sw_emu_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode old = thread_mode;
    CUresult result = emu_enter_unless(EMU_cuThreadExchangeStreamCaptureMode,
                                       mode == NULL ||
                                           (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED);

    if (result != CUDA_SUCCESS)
        return result;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* `graph` may be one that is being captured, which changes under the capture lock. */
CUresult sw_emu_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                        unsigned int flags)
{
    const struct emu_capture *c;
    CUresult result = emu_enter(EMU_cuGraphRetainUserObject);

    if (result != CUDA_SUCCESS)
        return result;
    if (count == 0 || (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) != 0 ||
        !emu_handle_is(EMU_HANDLE_USER_OBJECT, object))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (c = captures; c != NULL && c->graph != graph; c = c->next)
        ;
    if (c == NULL && !emu_handle_is(EMU_HANDLE_GRAPH, graph))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (emu_graph_hold(graph, object, count) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0)
        emu_user_object_ref(object, count);
    pthread_mutex_unlock(&mutex);
    return result;
}
