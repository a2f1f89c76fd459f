/* Streams and their order.
 *
 * A stream is a queue. While it has work, one pool thread executes it and returns to the pool when
 * the queue is empty. So an idle stream costs nothing, and destroying a stream with work does not
 * wait: the last reference (handle, thread or mark) frees it.
 *
 * Each task gets a ticket from its device's counter. The order of the legacy stream against
 * blocking streams follows from tickets: a legacy task starts when no blocking stream of the device
 * has an unfinished task with a smaller ticket; a task of a blocking stream starts when the legacy
 * stream has none. A task only waits for smaller tickets and for earlier marks, so there is no
 * cycle.
 */
#include <stdlib.h>
#include <time.h>

#include "emu_device.h"
#include "exec.h"

struct emu_task {
    struct emu_task *next;
    struct emu_op op;
    uint64_t ticket;
    struct emu_mark *after;  /* owned; must be passed before it starts */
    struct emu_mark *passed; /* owned; passed when it has ended */
};

struct device {
    pthread_mutex_t mutex;
    uint64_t tickets;
    struct CUstream_st *streams; /* with a handle or work; without the legacy one */
    struct CUstream_st legacy;
};

static struct device devices[EMU_MAX_DEVICES];

__attribute__((constructor)) static void devices_init(void)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++) {
        struct CUstream_st *s = &devices[i].legacy;

        pthread_mutex_init(&devices[i].mutex, NULL);
        pthread_cond_init(&s->done, NULL);
        s->ctx = &emu_contexts[i];
        s->device = i;
        s->legacy = 1;
        s->id = (uint64_t)i + 1;
        atomic_init(&s->refs, 1); /* never freed */
    }
}

uint64_t emu_dev_globaltimer(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- lifetime -------------------------------------------------------------------------------- */

static void stream_unref(struct CUstream_st *s)
{
    struct device *d = &devices[s->device];

    if (atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    pthread_mutex_lock(&d->mutex);
    *s->link = s->next;
    if (s->next != NULL)
        s->next->link = s->link;
    pthread_mutex_unlock(&d->mutex);
    pthread_cond_destroy(&s->done);
    free(s);
}

static struct emu_mark *mark_create(struct CUstream_st *s)
{
    struct emu_mark *m = calloc(1, sizeof *m);

    if (m == NULL)
        return NULL;
    atomic_init(&m->refs, 1);
    atomic_fetch_add(&s->refs, 1);
    m->stream = s;
    return m;
}

struct emu_mark *emu_mark_ref(struct emu_mark *m)
{
    if (m != NULL)
        atomic_fetch_add(&m->refs, 1);
    return m;
}

void emu_mark_unref(struct emu_mark *m)
{
    if (m == NULL || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    stream_unref(m->stream);
    free(m);
}

void emu_mark_wait(struct emu_mark *m)
{
    struct device *d = &devices[m->stream->device];

    pthread_mutex_lock(&d->mutex);
    while (!m->done)
        pthread_cond_wait(&m->stream->done, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
}

int emu_mark_passed(struct emu_mark *m, uint64_t *ns)
{
    struct device *d = &devices[m->stream->device];
    int done;

    pthread_mutex_lock(&d->mutex);
    done = m->done;
    if (ns != NULL)
        *ns = m->ns;
    pthread_mutex_unlock(&d->mutex);
    return done;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Waits until `other` has no unfinished task with a ticket below `ticket`. The lock is held.
 * Returns whether it slept: then the list of streams may have changed. */
static int wait_for_tickets(struct device *d, struct CUstream_st *other, uint64_t ticket)
{
    int slept = 0;

    if (other->first == NULL || other->first->ticket >= ticket)
        return 0;
    atomic_fetch_add(&other->refs, 1);
    while (other->first != NULL && other->first->ticket < ticket) {
        pthread_cond_wait(&other->done, &d->mutex);
        slept = 1;
    }
    if (other->legacy) {
        atomic_fetch_sub(&other->refs, 1);
    } else {
        pthread_mutex_unlock(&d->mutex);
        stream_unref(other);
        pthread_mutex_lock(&d->mutex);
    }
    return slept;
}

/* Waits for every stream of the device that `which` selects. The lock is held. */
static void wait_for_streams(struct device *d, uint64_t ticket, int (*which)(struct CUstream_st *))
{
    struct CUstream_st *s = d->streams;

    while (s != NULL) {
        if (which(s) && wait_for_tickets(d, s, ticket))
            s = d->streams;
        else
            s = s->next;
    }
}

static int is_blocking(struct CUstream_st *s)
{
    return (s->flags & CU_STREAM_NON_BLOCKING) == 0;
}

static int is_any(struct CUstream_st *s)
{
    (void)s;
    return 1;
}

static void task_run(struct CUstream_st *s, struct emu_task *t)
{
    struct device *d = &devices[s->device];
    CUresult result;

    if (t->after != NULL)
        emu_mark_wait(t->after);
    if (s->legacy || is_blocking(s)) {
        pthread_mutex_lock(&d->mutex);
        if (s->legacy)
            wait_for_streams(d, t->ticket, is_blocking);
        else
            wait_for_tickets(d, &d->legacy, t->ticket);
        pthread_mutex_unlock(&d->mutex);
    }
    /* After a sticky error, tasks of the context do nothing. */
    if (atomic_load(&s->ctx->sticky) == CUDA_SUCCESS && !emu_exiting()) {
        result = emu_op_run(&t->op);
        if (result != CUDA_SUCCESS)
            emu_context_fail(s->device, result);
    }
    emu_op_free(&t->op);
}

static void stream_work(void *arg)
{
    struct CUstream_st *s = arg;
    struct device *d = &devices[s->device];
    struct emu_task *t;

    pthread_mutex_lock(&d->mutex);
    while ((t = s->first) != NULL) {
        pthread_mutex_unlock(&d->mutex);
        task_run(s, t);
        pthread_mutex_lock(&d->mutex);
        if (t->passed != NULL) {
            t->passed->ns = emu_dev_globaltimer();
            t->passed->done = 1;
        }
        s->first = t->next;
        if (s->first == NULL)
            s->last = NULL;
        s->completed++;
        pthread_cond_broadcast(&s->done);
        pthread_mutex_unlock(&d->mutex);
        emu_mark_unref(t->after);
        emu_mark_unref(t->passed);
        free(t);
        pthread_mutex_lock(&d->mutex);
    }
    s->at_work = 0;
    pthread_mutex_unlock(&d->mutex);
    stream_unref(s);
}

/* Adds the task to the queue and starts a thread if none works on it. */
static CUresult enqueue(struct CUstream_st *s, struct emu_task *t)
{
    struct device *d = &devices[s->device];
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&d->mutex);
    if (!s->at_work) {
        /* The thread cannot look at the queue before the lock is free. */
        atomic_fetch_add(&s->refs, 1);
        if (emu_pool_start(stream_work, s) != 0) {
            atomic_fetch_sub(&s->refs, 1);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        s->at_work = 1;
        t->ticket = ++d->tickets;
        if (s->last != NULL)
            s->last->next = t;
        else
            s->first = t;
        s->last = t;
        s->submitted++;
    }
    pthread_mutex_unlock(&d->mutex);
    return result;
}

CUresult emu_submit(struct CUstream_st *s, struct emu_op *op, struct emu_mark *after,
                    struct emu_mark **passed)
{
    struct emu_task *t;
    CUresult result;

    if (emu_capture_op(s, op, &result))
        return result;
    t = calloc(1, sizeof *t);
    if (t != NULL && passed != NULL)
        t->passed = mark_create(s);
    if (t == NULL || (passed != NULL && t->passed == NULL)) {
        free(t);
        emu_op_free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    t->op = *op;
    t->after = emu_mark_ref(after);
    if (passed != NULL)
        *passed = emu_mark_ref(t->passed);
    result = enqueue(s, t);
    if (result != CUDA_SUCCESS) {
        if (passed != NULL)
            emu_mark_unref(*passed);
        emu_mark_unref(t->passed);
        emu_mark_unref(t->after);
        emu_op_free(&t->op);
        free(t);
    }
    return result;
}

void emu_stream_wait(struct CUstream_st *s)
{
    struct device *d = &devices[s->device];
    uint64_t target;

    pthread_mutex_lock(&d->mutex);
    target = s->submitted;
    while (s->completed < target)
        pthread_cond_wait(&s->done, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
}

CUresult emu_device_drain(CUdevice device)
{
    struct device *d = &devices[device];
    uint64_t ticket;

    pthread_mutex_lock(&d->mutex);
    ticket = d->tickets + 1;
    wait_for_tickets(d, &d->legacy, ticket);
    wait_for_streams(d, ticket, is_any);
    pthread_mutex_unlock(&d->mutex);
    return (CUresult)atomic_load(&emu_contexts[device].sticky);
}

int emu_legacy_is_free(CUdevice device)
{
    struct device *d = &devices[device];
    int busy;

    pthread_mutex_lock(&d->mutex);
    busy = d->legacy.first != NULL;
    for (struct CUstream_st *s = d->streams; s != NULL && !busy; s = s->next)
        busy = is_blocking(s) && s->first != NULL;
    pthread_mutex_unlock(&d->mutex);
    return !busy;
}

/* ---- entry points ---------------------------------------------------------------------------- */

CUresult emu_begin(enum emu_entry entry, struct CUctx_st **ctx, int invalid)
{
    CUresult result = emu_enter(entry);

    if (result != CUDA_SUCCESS)
        return result;
    *ctx = emu_current();
    if (*ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = (CUresult)atomic_load(&(*ctx)->sticky);
    return result == CUDA_SUCCESS && invalid ? CUDA_ERROR_INVALID_VALUE : result;
}

struct CUstream_st *emu_stream_legacy(CUdevice device)
{
    return &devices[device].legacy;
}

/* A stream with a reference, without a handle. */
static struct CUstream_st *stream_new(struct CUctx_st *ctx, unsigned flags)
{
    static _Atomic uint64_t last_id = EMU_MAX_DEVICES;
    struct device *d = &devices[ctx->device];
    struct CUstream_st *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    pthread_cond_init(&s->done, NULL);
    s->ctx = ctx;
    s->device = ctx->device;
    s->flags = flags;
    s->id = atomic_fetch_add(&last_id, 1) + 1;
    atomic_init(&s->refs, 1);
    pthread_mutex_lock(&d->mutex);
    s->next = d->streams;
    s->link = &d->streams;
    if (s->next != NULL)
        s->next->link = &s->next;
    d->streams = s;
    pthread_mutex_unlock(&d->mutex);
    return s;
}

/* ---- each thread's default streams ---- */

/* A thread's EMU_MAX_DEVICES streams, NULL where it has used none. */
static pthread_key_t own_key;
static int has_own_key;

static void own_end(void *streams)
{
    struct CUstream_st **own = streams;

    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        if (own[i] != NULL) {
            emu_capture_abandon(own[i]);
            stream_unref(own[i]);
        }
    free(own);
}

__attribute__((constructor)) static void own_init(void)
{
    has_own_key = pthread_key_create(&own_key, own_end) == 0;
}

/* Threads may end after this library was unloaded. */
__attribute__((destructor)) static void own_wind_up(void)
{
    if (has_own_key)
        (void)pthread_key_delete(own_key);
}

static CUresult own_stream(struct CUstream_st **stream)
{
    struct CUctx_st *ctx = emu_current();
    struct CUstream_st **own;

    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!has_own_key)
        return CUDA_ERROR_OUT_OF_MEMORY;
    own = pthread_getspecific(own_key);
    if (own == NULL) {
        own = calloc(EMU_MAX_DEVICES, sizeof(struct CUstream_st *));
        if (own == NULL || pthread_setspecific(own_key, own) != 0) {
            free(own);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (own[ctx->device] == NULL)
        own[ctx->device] = stream_new(ctx, 0);
    *stream = own[ctx->device];
    return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- handles ---- */

CUresult emu_stream_resolve(CUstream handle, struct CUstream_st **stream)
{
    struct CUctx_st *ctx;

    if (handle == CU_STREAM_PER_THREAD) {
        const CUresult result = own_stream(stream);

        if (result != CUDA_SUCCESS)
            return result;
    } else if (handle == NULL || handle == CU_STREAM_LEGACY) {
        ctx = emu_current();
        if (ctx == NULL)
            return CUDA_ERROR_INVALID_CONTEXT;
        *stream = emu_stream_legacy(ctx->device);
    } else {
        if (!emu_handle_is(EMU_HANDLE_STREAM, handle))
            return CUDA_ERROR_INVALID_HANDLE;
        *stream = handle;
    }
    return (CUresult)atomic_load(&(*stream)->ctx->sticky);
}

CUresult emu_enter_stream(enum emu_entry entry, CUstream handle, struct CUstream_st **stream,
                          int invalid)
{
    CUresult result = emu_enter(entry);

    if (result == CUDA_SUCCESS)
        result = emu_stream_resolve(handle, stream);
    return result == CUDA_SUCCESS && invalid ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult emu_stream_open(CUstream *stream, struct CUctx_st *ctx, unsigned flags, CUgreenCtx green,
                         int partition)
{
    struct CUstream_st *s = stream_new(ctx, flags);

    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->green = green;
    s->partition = partition;
    if (emu_handle_add(EMU_HANDLE_STREAM, s) != 0) {
        stream_unref(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream = s;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuStreamCreate(CUstream *stream, unsigned int flags)
{
    struct CUctx_st *ctx;
    CUresult result = emu_begin(EMU_cuStreamCreate, &ctx,
                                stream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0);

    return result == CUDA_SUCCESS ? emu_stream_open(stream, ctx, flags, NULL, 0) : result;
}

CUresult sw_emu_cuStreamDestroy(CUstream stream)
{
    CUresult result = emu_enter_drop(EMU_cuStreamDestroy, EMU_HANDLE_STREAM, stream,
                                     CUDA_ERROR_INVALID_HANDLE);

    if (result != CUDA_SUCCESS)
        return result;
    emu_capture_abandon(stream);
    stream_unref(stream);
    return CUDA_SUCCESS;
}

/* Common part of Synchronize and Query. */
static CUresult observe(enum emu_entry entry, CUstream handle, struct CUstream_st **s)
{
    CUresult result = emu_enter_stream(entry, handle, s, 0);

    if (result == CUDA_SUCCESS && (*s)->legacy)
        result = emu_capture_forbids_legacy((*s)->device);
    if (result == CUDA_SUCCESS)
        result = emu_capture_forbids_stream(*s);
    return result;
}

CUresult sw_emu_cuStreamSynchronize(CUstream stream)
{
    struct CUstream_st *s;
    CUresult result = observe(EMU_cuStreamSynchronize, stream, &s);

    if (result != CUDA_SUCCESS)
        return result;
    emu_stream_wait(s);
    return (CUresult)atomic_load(&s->ctx->sticky);
}

CUresult sw_emu_cuStreamQuery(CUstream stream)
{
    struct CUstream_st *s;
    struct device *d;
    CUresult result = observe(EMU_cuStreamQuery, stream, &s);

    if (result != CUDA_SUCCESS)
        return result;
    d = &devices[s->device];
    pthread_mutex_lock(&d->mutex);
    result = s->first != NULL ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&d->mutex);
    return result;
}

CUresult sw_emu_cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuStreamGetCtx, stream, &s, ctx == NULL);

    if (result == CUDA_SUCCESS)
        *ctx = s->ctx;
    return result;
}

CUresult sw_emu_cuStreamGetId(CUstream stream, unsigned long long *id)
{
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuStreamGetId, stream, &s, id == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    result = emu_capture_forbids_stream(s); /* as an H200's driver does, in each mode */
    if (result == CUDA_SUCCESS)
        *id = s->id;
    return result;
}
