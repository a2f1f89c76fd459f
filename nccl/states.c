/* Deaths and states of communicators, windows, and operations: each is NCCL's, and what hangs on
 * the communicator goes with it. A communicator is known from its first call on. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl/calls.h"

/* ---- deaths ---- */

/* Calls that spin end, with an error on all ranks. */
static void stop(struct sw_comm *comm)
{
    symwin_comm *symwin;

    atomic_store(&comm->stop, 1); /* first: another thread may be making symwin's communicator */
    symwin = atomic_load(&comm->symwin);
    if (symwin != NULL)
        (void)symwin_comm_abort(symwin);
}

/* Whether calls wait for a rank, or did until another rank ended them. What has all that it needs
 * ends soon, on a busy machine too. */
static int is_stuck(struct sw_comm *comm)
{
    return !sw_meet_idle(comm, 300) ||
           symwin_comm_check_calls(atomic_load(&comm->symwin)) != SYMWIN_OK;
}

SW_DEFINE(ncclCommShrink,
          (ncclComm_t comm, int *excluded, int count, ncclComm_t *child, ncclConfig_t *config,
           int flags),
          (comm, excluded, count, child, config, flags))
{
    const int most = sw_birth_asks(config, comm);
    struct sw_comm *parent = (flags & NCCL_SHRINK_ABORT) != 0 && !from->inside ? sw_comm_find(comm)
                                                                               : NULL;

    /* Only what is under way ends: without that, NCCL's parent goes on as before. */
    if (parent != NULL && atomic_load(&parent->symwin) != NULL && is_stuck(parent))
        stop(parent);
    sw_comm_leave(parent);
    return sw_birth_is_over(
        from, SW_PASS(from, ncclCommShrink, (comm, excluded, count, child, config, flags)), child,
        most);
}

static void *remove_main(void *comm)
{
    sw_comm_remove(comm);
    return NULL;
}

/* What symwin calls of NCCL between hosts is no part of the program's group, which a thread has
 * open. */
static void remove_outside(struct sw_comm *comm, void *library)
{
    pthread_t thread;

    if (sw_group_is_open(library) && sw_comm_begin_thread(&thread, remove_main, comm))
        pthread_join(thread, NULL);
    else
        sw_comm_remove(comm);
}

/* symwin's calls end before NCCL's communicator goes: NCCL may wait for their streams. */
SW_DEFINE(ncclCommDestroy, (ncclComm_t comm), (comm))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);

    if (!from->inside)
        sw_birth_forget(comm);
    if (known != NULL) {
        sw_comm_hide(known);
        sw_group_forget(known, comm);
        sw_report_death(known);
        sw_comm_leave(known);
        remove_outside(known, from->library);
    }
    return sw_error_is_nccls(SW_PASS(from, ncclCommDestroy, (comm)));
}

/* NCCL's abort is this rank's alone: the others' calls that have all they need complete. So if this
 * rank has nothing under way, symwin's communicator is destroyed and not aborted. */
static void stop_what_runs(struct sw_comm *comm)
{
    if (atomic_load(&comm->symwin) == NULL || !sw_meet_idle(comm, 5))
        stop(comm);
    atomic_store(&comm->stop, 1);
}

/* A communicator that is removed in a thread of its own: symwin's destroy waits until the other
 * ranks have this rank's last calls behind them. */
struct removal {
    pthread_mutex_t mutex;
    pthread_cond_t over;
    struct sw_comm *comm;
    int done, holders;
};

static void let_go(struct removal *r)
{
    int last;

    pthread_mutex_lock(&r->mutex);
    last = --r->holders == 0;
    pthread_mutex_unlock(&r->mutex);
    if (!last)
        return;
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->over);
    free(r);
}

/* Ends a call that another thread has begun when the abort had looked. */
static void stop_late_calls(struct sw_comm *comm)
{
    const struct timespec moment = {.tv_nsec = 50000};
    int left = 80;

    while (atomic_load(&comm->users) > 0 && left-- > 0)
        nanosleep(&moment, NULL);
    if (atomic_load(&comm->users) > 0)
        stop(comm);
    else
        stop_what_runs(comm);
}

static void *removal_main(void *data)
{
    struct removal *r = data;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the program may be capturing */

    pthread_setname_np(pthread_self(), "symwin-abort");
    if (sw_cu() != NULL)
        (void)sw_cu()->cuThreadExchangeStreamCaptureMode(&mode);
    stop_late_calls(r->comm);
    sw_comm_remove(r->comm);
    pthread_mutex_lock(&r->mutex);
    r->done = 1;
    pthread_cond_signal(&r->over);
    pthread_mutex_unlock(&r->mutex);
    let_go(r);
    return NULL;
}

/* Waits 3 ms for it at most: an abort is to take 10 ms. */
static void remove_soon(struct sw_comm *comm)
{
    struct removal *r = calloc(1, sizeof *r);
    struct timespec until;

    if (r != NULL) {
        *r = (struct removal){.comm = comm, .holders = 2};
        pthread_mutex_init(&r->mutex, NULL);
        pthread_cond_init(&r->over, NULL);
    }
    if (r == NULL || !sw_comm_begin_thread(NULL, removal_main, r)) {
        free(r);
        stop(comm);
        sw_comm_remove(comm);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 3000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&r->mutex);
    while (!r->done && pthread_cond_clockwait(&r->over, &r->mutex, CLOCK_MONOTONIC, &until) == 0)
        ;
    pthread_mutex_unlock(&r->mutex);
    let_go(r);
}

/* Another thread may be in a call, which ends by NCCL's abort if it waits in NCCL. */
SW_DEFINE(ncclCommAbort, (ncclComm_t comm), (comm))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);
    ncclResult_t result;
    int hidden = 0;

    if (!from->inside)
        sw_birth_forget(comm);
    if (known != NULL) {
        stop_what_runs(known);
        hidden = sw_comm_hide(known);
        sw_group_forget(known, comm);
        sw_report_death(known);
        sw_meet_all_asked(known);
        sw_comm_leave(known);
    }
    result = sw_error_is_nccls(SW_PASS(from, ncclCommAbort, (comm)));
    if (hidden)
        remove_soon(known);
    return result;
}

SW_DEFINE(ncclCommRevoke, (ncclComm_t comm, int flags), (comm, flags))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);

    if (known != NULL && from->symbol != NULL && flags == 0) /* NCCL refuses other flags */
        stop(known);
    sw_comm_leave(known);
    return sw_error_is_nccls(SW_PASS(from, ncclCommRevoke, (comm, flags)));
}

/* Whether a call of the communicator is in progress (blocking=0): nothing else is allowed, but to
 * ask for its state, and to end it. */
static int is_later(struct sw_comm *known)
{
    const int later = known != NULL && atomic_load(&known->is_later);

    if (later)
        sw_comm_leave(known);
    return later;
}

/* symwin's memory goes; the first call of symwin's after ncclCommResume() makes it again. */
SW_DEFINE(ncclCommSuspend, (ncclComm_t comm, int flags), (comm, flags))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);
    ncclResult_t result;

    if (is_later(known))
        return sw_call_refuse_later();
    if (known != NULL && sw_group_has(known)) { /* the close would wait for this thread */
        sw_comm_leave(known);
        return sw_error(ncclInvalidUsage,
                        "symwin: the communicator has calls in this thread's group; end the group "
                        "before ncclCommSuspend()");
    }
    result = sw_error_is_nccls(SW_PASS(from, ncclCommSuspend, (comm, flags)));
    /* Not if NCCL refuses, perhaps on this rank alone: the others would not open with it. */
    if (known != NULL && (result == ncclSuccess || result == ncclInProgress))
        sw_close(known, 1);
    sw_comm_leave(known);
    return result;
}

/* All calls so far end; what comes later is NCCL's, which refuses it. The rest goes when the
 * communicator is destroyed. */
SW_DEFINE(ncclCommFinalize, (ncclComm_t comm), (comm))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);
    int born = SW_BORN, attached = SW_ATTACHED;
    ncclResult_t result;

    if (is_later(known))
        return sw_call_refuse_later();
    result = sw_error_is_nccls(SW_PASS(from, ncclCommFinalize, (comm)));
    if (known != NULL && (result == ncclSuccess || result == ncclInProgress)) {
        (void)(atomic_compare_exchange_strong(&known->state, &born, SW_FINAL) ||
               atomic_compare_exchange_strong(&known->state, &attached, SW_FINAL));
        if (result == ncclInProgress)
            atomic_store(&known->ends, 1);
        else if (atomic_load(&known->symwin) != NULL)
            (void)sw_meet_runs(known, -1); /* ncclCommGetAsyncError() tells what has failed */
    }
    sw_comm_leave(known);
    return result;
}

/* With blocking=0 that is in progress until symwin's calls are over too. */
static int still_ends(struct sw_comm *known)
{
    if (atomic_load(&known->ends) && !sw_meet_runs(known, 1))
        atomic_store(&known->ends, 0);
    return atomic_load(&known->ends);
}

SW_DEFINE(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);
    const ncclResult_t result = sw_error_is_nccls(
        SW_PASS(from, ncclCommGetAsyncError, (comm, error)));
    symwin_comm *symwin;

    if (known != NULL && result == ncclSuccess && error != NULL && *error == ncclSuccess) {
        symwin = atomic_load(&known->symwin);
        *error = atomic_load(&known->is_later) ? ncclInProgress
                                               : (ncclResult_t)atomic_load(&known->later);
        /* A rank that has left is no error of NCCL's while nobody needs it. */
        if (*error == ncclSuccess && symwin != NULL && !atomic_load(&known->stop)) {
            *error = (ncclResult_t)atomic_load(&known->failed);
            if (*error == ncclSuccess)
                *error = sw_error_of(symwin_comm_check_calls(symwin));
            if (*error == ncclSuccess && still_ends(known))
                *error = ncclInProgress;
        }
    }
    sw_comm_leave(known);
    return result;
}

/* ---- windows ---- */

/* A buffer that is freed with NCCL's windows still on it. */
struct freed {
    char *ptr;
    const char *end;
    struct sw_nccl_window *ending; /* one of a communicator that is ending; NULL: there is none */
    int before;                    /* it goes with such a one already */
};

/* Ends symwin's windows on it. Those of a communicator that is ending are there until its
 * symwin_comm_destroy() is over: kernels may use them. */
static void end_windows(struct sw_comm *comm, void *data)
{
    struct freed *freed = data;
    symwin_comm *symwin = atomic_load(&comm->symwin);
    const int ended = atomic_load(&comm->handle) == NULL;
    struct sw_nccl_window *window;

    for (window = comm->windows; window != NULL; window = window->next) {
        const char *ptr = window->ptr;

        freed->before |= window->freed == freed->ptr;
        if (ptr < freed->ptr || ptr >= freed->end)
            continue;
        if (ended) {
            freed->ending = window;
        } else if (window->window != NULL) {
            (void)symwin_window_deregister(symwin, window->window);
            window->window = NULL;
        }
    }
}

symwin_status sw_memory_free(void *ptr)
{
    symwin_status status = symwin_mem_free(ptr);
    struct freed freed = {.ptr = ptr};
    symwin_mem_info info;

    if (status != SYMWIN_BUSY || symwin_mem_query(ptr, &info) != SYMWIN_OK)
        return status;
    freed.end = freed.ptr + info.bytes;
    pthread_mutex_lock(&sw_comm_windows);
    sw_comm_each(end_windows, &freed);
    status = freed.before ? SYMWIN_INVALID : symwin_mem_free(ptr);
    if (status == SYMWIN_BUSY && freed.ending != NULL) {
        freed.ending->freed = ptr;
        status = SYMWIN_OK;
    }
    pthread_mutex_unlock(&sw_comm_windows);
    return status == SYMWIN_BUSY ? symwin_mem_free(ptr) : status; /* it may have ended just now */
}

void sw_window_is_lost(struct sw_comm *comm)
{
    comm->lost_windows = 1; /* which the ranks learn if they make symwin's communicator later */
    sw_call_is_lost(comm, ncclSystemError);
}

void sw_window_add(struct sw_comm *comm, void *ptr, size_t size, ncclWindow_t handle)
{
    struct sw_nccl_window *window, **end = &comm->windows;

    if (handle == NULL)
        return; /* NCCL has none on any rank */
    window = calloc(1, sizeof *window);
    if (window == NULL) {
        sw_window_is_lost(comm);
        return;
    }
    *window = (struct sw_nccl_window){.handle = handle, .ptr = ptr, .size = size};
    sw_window_open(comm, window);
    pthread_mutex_lock(&sw_comm_windows);
    while (*end != NULL)
        end = &(*end)->next;
    *end = window;
    pthread_mutex_unlock(&sw_comm_windows);
}

/* A window that NCCL has in progress (blocking=0). */
struct coming {
    struct sw_comm *comm; /* a reference */
    void *ptr;
    size_t size;
    ncclWindow_t *handle;
};

static void *coming_main(void *data)
{
    const struct coming *coming = data;
    struct sw_comm *comm = coming->comm;
    struct sw_comm_scope scope;

    if (sw_meet_launched(comm) && sw_comm_scope_enter(comm, &scope)) {
        sw_window_add(comm, coming->ptr, coming->size, *coming->handle);
        sw_comm_scope_leave(&scope);
    }
    atomic_store(&comm->is_later, 0);
    sw_comm_leave(comm);
    free(data);
    return NULL;
}

/* The registration of symwin's waits for the other ranks, some of which may block in it. 0: no
 * thread has it. */
static int add_later(struct sw_comm *comm, void *ptr, size_t size, ncclWindow_t *handle)
{
    struct coming *coming = calloc(1, sizeof *coming);

    if (coming != NULL) {
        *coming = (struct coming){comm, ptr, size, handle};
        atomic_store(&comm->is_later, 1);
        if (sw_comm_begin_thread(NULL, coming_main, coming))
            return 1;
        atomic_store(&comm->is_later, 0);
    }
    free(coming);
    sw_window_is_lost(comm);
    return 0;
}

SW_DEFINE(ncclCommWindowRegister,
          (ncclComm_t comm, void *ptr, size_t size, ncclWindow_t *window, int flags),
          (comm, ptr, size, window, flags))
{
    struct sw_comm *known = NULL;
    ncclResult_t result = from->inside ? ncclSuccess : sw_comm_get(comm, from->caller, &known);

    if (result != ncclSuccess)
        return sw_group_fail(from->library, result);
    if (is_later(known))
        return sw_group_fail(from->library, sw_call_refuse_later());
    result = sw_error_is_nccls(
        SW_PASS(from, ncclCommWindowRegister, (comm, ptr, size, window, flags)));
    if (known != NULL)
        (void)sw_group_fail(from->library, result);
    /* Calls pass other windows at any offset, which symwin does not serve as windows. */
    if (known != NULL && (result == ncclSuccess || result == ncclInProgress) && window != NULL &&
        (flags & NCCL_WIN_COLL_SYMMETRIC) != 0 && atomic_load(&known->state) != SW_REFUSED) {
        const int grouped = sw_group_is_open(from->library);

        if (!grouped && result == ncclInProgress) {
            if (add_later(known, ptr, size, window))
                return result; /* and the thread leaves the communicator */
        } else if (!grouped)
            sw_window_add(known, ptr, size, *window);
        else if (sw_group_add_window(known, ptr, size, window))
            return result; /* and the group leaves the communicator */
        else
            sw_window_is_lost(known);
    }
    sw_comm_leave(known);
    return result;
}

SW_DEFINE(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window), (comm, window))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);
    struct sw_nccl_window **at = known != NULL ? &known->windows : NULL, *gone = NULL;

    if (is_later(known))
        return sw_call_refuse_later();
    pthread_mutex_lock(&sw_comm_windows);
    while (at != NULL && *at != NULL && (*at)->handle != window)
        at = &(*at)->next;
    if (at != NULL && *at != NULL) {
        gone = *at;
        *at = gone->next;
        if (gone->window != NULL)
            (void)symwin_window_deregister(atomic_load(&known->symwin), gone->window);
    }
    pthread_mutex_unlock(&sw_comm_windows);
    free(gone);
    sw_comm_leave(known);
    return sw_error_is_nccls(SW_PASS(from, ncclCommWindowDeregister, (comm, window)));
}

/* ---- operations ---- */

SW_DEFINE(ncclRedOpCreatePreMulSum,
          (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,
           ncclComm_t comm),
          (op, scalar, type, residence, comm))
{
    struct sw_comm *known = NULL;
    ncclResult_t result = from->inside ? ncclSuccess : sw_comm_get(comm, from->caller, &known);
    struct sw_nccl_op *made = NULL;

    if (result != ncclSuccess)
        return sw_group_fail(from->library, result);
    if (is_later(known))
        return sw_call_refuse_later();
    /* Without memory the call fails here: this rank alone would not know the operation. */
    if (known != NULL && sw_type_bytes(type) > 0)
        made = calloc(1, sizeof *made);
    result = known != NULL && sw_type_bytes(type) > 0 && made == NULL
                 ? sw_error(ncclSystemError, "symwin: no host memory for an operation")
                 : sw_error_is_nccls(SW_PASS(from, ncclRedOpCreatePreMulSum,
                                             (op, scalar, type, residence, comm)));
    if (result != ncclSuccess) {
        free(made);
    } else if (made != NULL) {
        *made = (struct sw_nccl_op){.next = known->ops, .op = *op, .type = type};
        if (residence == ncclScalarHostImmediate)
            memcpy(made->value, scalar, sw_type_bytes(type));
        else /* NCCL takes what it does not know for the device too */
            made->scalar = scalar;
        known->ops = made;
    }
    sw_comm_leave(known);
    return result;
}

SW_DEFINE(ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm))
{
    struct sw_comm *known = from->inside ? NULL : sw_comm_find(comm);
    struct sw_nccl_op **at = known != NULL ? &known->ops : NULL;

    while (at != NULL && *at != NULL && (*at)->op != op)
        at = &(*at)->next;
    if (at != NULL && *at != NULL) {
        struct sw_nccl_op *gone = *at;

        *at = gone->next;
        free(gone);
    }
    sw_comm_leave(known);
    if (!from->inside && sw_group_is_open(from->library) && sw_group_add_op_end(from, op, comm))
        return ncclSuccess;
    return sw_error_is_nccls(SW_PASS(from, ncclRedOpDestroy, (op, comm)));
}
