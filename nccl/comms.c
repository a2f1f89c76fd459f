/* The table of communicators. Entries stay in their bucket for ever, and are used again, so that
 * looking up needs no lock. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl/comms.h"

enum { BUCKETS = 256 };

static _Atomic(struct sw_comm *) buckets[BUCKETS];
static pthread_mutex_t additions = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t sw_comm_windows = PTHREAD_MUTEX_INITIALIZER;
static unsigned numbers;

static _Atomic(struct sw_comm *) *bucket_of(ncclComm_t handle)
{
    const uint64_t bits = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u;

    return &buckets[bits >> 56];
}

struct sw_comm *sw_comm_find(ncclComm_t handle)
{
    struct sw_comm *comm;

    if (handle == NULL)
        return NULL;
    comm = atomic_load_explicit(bucket_of(handle), memory_order_acquire);
    for (; comm != NULL; comm = comm->chain) {
        if (atomic_load_explicit(&comm->handle, memory_order_relaxed) != handle)
            continue;
        atomic_fetch_add(&comm->users, 1);
        if (atomic_load(&comm->handle) == handle)
            return comm;
        sw_comm_leave(comm); /* it has gone in between */
    }
    return NULL;
}

void sw_comm_leave(struct sw_comm *comm)
{
    if (comm != NULL)
        atomic_fetch_sub(&comm->users, 1);
}

void sw_comm_stay(struct sw_comm *comm)
{
    atomic_fetch_add(&comm->users, 1);
}

/* Whoever looks up an entry that is not used counts itself for a moment. */
static void renew(struct sw_comm *comm)
{
    memset((char *)comm + offsetof(struct sw_comm, stop), 0,
           sizeof *comm - offsetof(struct sw_comm, stop));
    atomic_store(&comm->state, SW_BORN);
}

/* The caller is its first user. */
static struct sw_comm *add(ncclComm_t handle, void *caller)
{
    _Atomic(struct sw_comm *) *bucket = bucket_of(handle);
    struct sw_comm *comm;

    pthread_mutex_lock(&additions);
    comm = atomic_load(bucket);
    while (comm != NULL && atomic_load(&comm->state) != SW_FREE)
        comm = comm->chain;
    if (comm != NULL) {
        renew(comm);
    } else if ((comm = calloc(1, sizeof *comm)) != NULL) {
        atomic_store(&comm->state, SW_BORN);
        comm->chain = atomic_load(bucket);
        atomic_store_explicit(bucket, comm, memory_order_release);
    }
    if (comm != NULL) {
        comm->caller = caller;
        comm->number = numbers++;
        atomic_fetch_add(&comm->users, 1);
        atomic_store(&comm->handle, handle);
    }
    pthread_mutex_unlock(&additions);
    return comm;
}

ncclResult_t sw_comm_get(ncclComm_t handle, void *caller, struct sw_comm **comm)
{
    struct sw_comm *known = sw_comm_find(handle);
    ncclResult_t result = ncclSuccess;
    int hidden;

    if (known == NULL && handle != NULL) {
        known = add(handle, caller);
        if (known == NULL)
            return sw_error(ncclSystemError, "symwin: no host memory for a communicator");
        result = sw_attach_learn(known);
    }
    if (result == ncclSuccess) {
        *comm = known;
        return ncclSuccess;
    }
    hidden = sw_comm_hide(known);
    sw_comm_leave(known);
    if (hidden)
        sw_comm_remove(known);
    return result;
}

int sw_comm_hide(struct sw_comm *comm)
{
    atomic_store(&comm->state, SW_DYING);
    return atomic_exchange(&comm->handle, NULL) != NULL;
}

static void forget(struct sw_comm *comm)
{
    struct sw_nccl_window *windows;

    pthread_mutex_lock(&sw_comm_windows);
    windows = comm->windows;
    comm->windows = NULL;
    pthread_mutex_unlock(&sw_comm_windows);
    while (windows != NULL) {
        struct sw_nccl_window *window = windows;

        windows = window->next;
        if (window->freed != NULL)
            (void)sw_memory_free(window->freed);
        free(window);
    }
    while (comm->ops != NULL) {
        struct sw_nccl_op *op = comm->ops;

        comm->ops = op->next;
        free(op);
    }
    free(atomic_exchange(&comm->counts, NULL));
}

void sw_comm_remove(struct sw_comm *comm)
{
    const struct timespec moment = {.tv_nsec = 20000};

    while (atomic_load(&comm->users) > 0)
        nanosleep(&moment, NULL);
    sw_close(comm, 0);
    sw_meet_end(comm);
    forget(comm);
    atomic_store(&comm->state, SW_FREE);
}

/* Detached from its beginning: the process may end at any time, and has lost no thread then. */
int sw_comm_begin_thread(pthread_t *thread, void *(*run)(void *data), void *data)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t unnamed;
    int begun;

    if (pthread_attr_init(&attributes) != 0)
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    begun = (thread != NULL ||
             pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0) &&
            pthread_create(thread != NULL ? thread : &unnamed, &attributes, run, data) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return begun;
}

void sw_comm_each(void (*visit)(struct sw_comm *comm, void *data), void *data)
{
    int i;

    for (i = 0; i < BUCKETS; i++) {
        struct sw_comm *comm = atomic_load(&buckets[i]);

        for (; comm != NULL; comm = comm->chain)
            if (atomic_load(&comm->state) != SW_FREE)
                visit(comm, data);
    }
}

/* ---- the driver ---- */

int sw_comm_scope_enter(struct sw_comm *comm, struct sw_comm_scope *scope)
{
    const struct sw_cu *cu = sw_cu();

    if (cu == NULL)
        return 0;
    if (comm->context == NULL) {
        CUcontext context;
        CUdevice device;

        if (cu->cuDeviceGet(&device, comm->device) != CUDA_SUCCESS ||
            cu->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
            return 0;
        comm->context = context;
    }
    if (cu->cuCtxPushCurrent(comm->context) != CUDA_SUCCESS)
        return 0;
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)cu->cuThreadExchangeStreamCaptureMode(&scope->mode);
    return 1;
}

void sw_comm_scope_leave(const struct sw_comm_scope *scope)
{
    CUstreamCaptureMode mode = scope->mode;
    CUcontext context;

    (void)sw_cu()->cuThreadExchangeStreamCaptureMode(&mode);
    (void)sw_cu()->cuCtxPopCurrent(&context);
}
