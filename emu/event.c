/* Events. An event holds the mark that its last record left in a stream's work, or its nodes in a
 * capture. An event that was never recorded counts as complete. */
#include <stdlib.h>

#include "exec.h"

struct CUevent_st {
    struct CUctx_st *ctx;
    unsigned flags;
    pthread_mutex_t mutex;
    struct emu_mark *mark; /* owned; NULL: never recorded, or in a capture */
    struct emu_captured captured;
};

CUresult sw_emu_cuEventCreate(CUevent *event, unsigned int flags)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    struct CUctx_st *ctx;
    struct CUevent_st *e;
    CUresult result = emu_begin(EMU_cuEventCreate, &ctx, event == NULL || (flags & ~known) != 0);

    if (result != CUDA_SUCCESS)
        return result;
    e = emu_handle_new(EMU_HANDLE_EVENT, sizeof *e);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->ctx = ctx;
    e->flags = flags;
    pthread_mutex_init(&e->mutex, NULL);
    *event = e;
    return CUDA_SUCCESS;
}

/* Streams that wait for the event hold its mark. */
CUresult sw_emu_cuEventDestroy(CUevent event)
{
    CUresult result = emu_enter_drop(EMU_cuEventDestroy, EMU_HANDLE_EVENT, event,
                                     CUDA_ERROR_INVALID_HANDLE);

    if (result != CUDA_SUCCESS)
        return result;
    emu_mark_unref(event->mark);
    emu_captured_clear(&event->captured);
    pthread_mutex_destroy(&event->mutex);
    free(event);
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuEventRecord(CUevent event, CUstream stream)
{
    struct emu_op op = {.kind = EMU_OP_NOTHING};
    struct emu_mark *mark = NULL, *old;
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuEventRecord, stream, &s, 0);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_EVENT, event) || event->ctx != s->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&event->mutex);
    if (!emu_capture_record(s, &event->captured, &result)) {
        op.device = s->device;
        result = emu_submit(s, &op, NULL, &mark);
        if (result == CUDA_SUCCESS)
            emu_captured_clear(&event->captured);
    }
    if (result == CUDA_SUCCESS) {
        old = event->mark;
        event->mark = mark;
        emu_mark_unref(old);
    }
    pthread_mutex_unlock(&event->mutex);
    return result;
}

CUresult sw_emu_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    struct emu_op op = {.kind = EMU_OP_NOTHING};
    struct emu_mark *mark = NULL;
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuStreamWaitEvent, stream, &s, flags != 0);
    int handled;

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&event->mutex);
    handled = emu_capture_wait(s, &event->captured, event->mark != NULL, &result);
    if (!handled)
        mark = emu_mark_ref(event->mark);
    pthread_mutex_unlock(&event->mutex);
    if (handled || mark == NULL)
        return result;
    op.device = s->device;
    result = emu_submit(s, &op, mark, NULL);
    emu_mark_unref(mark);
    return result;
}

/* The event's mark, with a reference; NULL if it was never recorded. */
static CUresult event_mark(enum emu_entry entry, CUevent event, struct emu_mark **mark)
{
    CUresult result = emu_enter(entry);

    *mark = NULL;
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    result = (CUresult)atomic_load(&event->ctx->sticky);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&event->mutex);
    if (event->captured.capture != NULL) {
        emu_captured_invalidate(&event->captured);
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else {
        *mark = emu_mark_ref(event->mark);
    }
    pthread_mutex_unlock(&event->mutex);
    if (result == CUDA_SUCCESS)
        result = emu_capture_forbids();
    if (result != CUDA_SUCCESS) {
        emu_mark_unref(*mark);
        *mark = NULL;
    }
    return result;
}

CUresult sw_emu_cuEventQuery(CUevent event)
{
    struct emu_mark *mark;
    CUresult result = event_mark(EMU_cuEventQuery, event, &mark);

    if (mark != NULL && !emu_mark_passed(mark, NULL))
        result = CUDA_ERROR_NOT_READY;
    emu_mark_unref(mark);
    return result;
}

CUresult sw_emu_cuEventSynchronize(CUevent event)
{
    struct emu_mark *mark;
    CUresult result = event_mark(EMU_cuEventSynchronize, event, &mark);

    if (mark == NULL)
        return result;
    emu_mark_wait(mark);
    result = (CUresult)atomic_load(&mark->stream->ctx->sticky);
    emu_mark_unref(mark);
    return result;
}

static CUresult event_time(CUevent event, uint64_t *ns)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    pthread_mutex_lock(&event->mutex);
    if (event->captured.capture == NULL && event->mark != NULL)
        result = emu_mark_passed(event->mark, ns) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&event->mutex);
    return result;
}

CUresult sw_emu_cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    uint64_t from, to;
    CUresult result = emu_enter_unless(EMU_cuEventElapsedTime, ms == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_handle_is(EMU_HANDLE_EVENT, start) || !emu_handle_is(EMU_HANDLE_EVENT, end) ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || start->ctx != end->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    result = event_time(start, &from);
    if (result == CUDA_SUCCESS)
        result = event_time(end, &to);
    if (result == CUDA_SUCCESS)
        *ms = (float)((double)((int64_t)to - (int64_t)from) / 1e6);
    return result;
}
