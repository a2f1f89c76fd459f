/* Creation and end of wide communicators, and the thread that ends all of one when a part of it
 * ends: the kernels of the domain, NCCL's calls on the rails, the exchange of all ranks. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/rails/rails.h"

/* ---- what ends it ---------------------------------------------------------------------------- */

enum { LOOK_NS = 5000000, GRACE_MS = 1000, SPARE = 32, LEAVE_MS = 2000 };

void sw_wide_look(symwin_comm *comm)
{
    const struct sw_wide *wide = comm->wide;
    symwin_comm *inner = comm->inner;
    symwin_status status = SYMWIN_OK;
    int culprit = 0;

    if (inner == NULL)
        return; /* it is being made */
    (void)symwin_comm_check_calls(inner);
    if (!sw_exchange_outcome(inner->group->exchange, &status, &culprit) ||
        sw_exchange_ended(comm->group->exchange))
        return;
    sw_exchange_fail(comm->group->exchange, status,
                     culprit < inner->nranks ? sw_domain_rank(&wide->domains, wide->domain, culprit)
                                             : SW_NOBODY);
}

/* 1: NCCL says that a communicator has failed. */
static int has_failed(struct sw_wide *wide)
{
    int i, state = SW_ENGINE_OK, failed = 0;

    if (sw_rail_begin(wide, "") != SYMWIN_OK)
        return 0;
    for (i = 0; i <= wide->rail_count && !failed; i++) {
        struct ncclComm *comm = i < wide->rail_count ? wide->rails[i] : wide->all;

        failed = wide->engine->get_state(comm, &state) != SW_ENGINE_OK ||
                 (state != SW_ENGINE_OK && state != SW_ENGINE_IN_PROGRESS);
    }
    sw_rail_end(wide);
    return failed;
}

int64_t sw_wide_patience(const struct sw_wide *wide)
{
    const int64_t ms = wide->comm->kernel_timeout_ms;

    if (ms < 0)
        return INT64_MAX / 2;
    return ms + SW_NAMING_MS + (wide->comm->group->host == 0 ? 0 : SW_NAMING_MS / 2);
}

int sw_wide_culprit(const struct sw_wide *wide, symwin_status *status)
{
    const struct sw_exchange *x = wide->comm->group->exchange;
    int r, late;

    for (r = 0; r < wide->comm->nranks; r++)
        if (wide->domains.domain_of[r] != wide->domain && (late = sw_exchange_silent(x, r)) >= 0) {
            *status = sw_exchange_leaves(x, late) ? SYMWIN_PEER_LOST : SYMWIN_TIMEOUT;
            return late;
        }
    for (r = 0; r < wide->comm->nranks; r++)
        if (r != wide->comm->rank && sw_exchange_leaves(x, r)) {
            *status = SYMWIN_PEER_LOST;
            return r;
        }
    return SW_NOBODY;
}

/* Ends it, if that is due, for a call that NCCL has for too long, or because NCCL has failed. Until
 * then the other hosts are asked whether they are there. */
static void judge(const struct sw_wide *wide, symwin_status status, int is_due)
{
    struct sw_exchange *x = wide->comm->group->exchange;
    int culprit;

    sw_exchange_ask(x);
    if (!is_due)
        return;
    culprit = sw_wide_culprit(wide, &status);
    sw_exchange_fail(x, status, culprit);
}

static void *watch(void *arg)
{
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    struct sw_wide *wide = arg;
    struct sw_exchange *x = wide->comm->group->exchange;
    const int64_t most_ms = sw_wide_patience(wide);
    int64_t failed_at = 0, entered_at = 0;
    uint32_t inside = 0, seen;

    while (!atomic_load(&wide->stop)) {
        nanosleep(&nap, NULL);
        sw_wide_look(wide->comm);
        if (failed_at == 0 && has_failed(wide))
            failed_at = sw_now_ms();
        if (failed_at != 0 && !sw_exchange_ended(x))
            judge(wide, SYMWIN_PEER_LOST, sw_now_ms() - failed_at > GRACE_MS);
        seen = atomic_load(wide->inside);
        if (seen != inside)
            entered_at = sw_now_ms();
        inside = seen;
        if (inside % 2 == 1 && !sw_exchange_ended(x) &&
            sw_now_ms() - entered_at > most_ms - 2 * SW_NAMING_MS)
            judge(wide, SYMWIN_TIMEOUT, sw_now_ms() - entered_at > most_ms);
        if (!sw_exchange_ended(x))
            continue;
        (void)symwin_comm_abort(wide->comm->inner);
        sw_rails_destroy(wide, 0);
        break;
    }
    return NULL;
}

/* ---- creation -------------------------------------------------------------------------------- */

static symwin_status make_inner(struct sw_wide *wide, const symwin_comm_options *options)
{
    symwin_comm *comm = wide->comm;
    symwin_comm_options own = {.size = sizeof own};
    struct sw_split part;
    symwin_status status = sw_split(comm, SYMWIN_OK, wide->domain, comm->rank, &part);

    if (options != NULL)
        own = *options;
    /* NCCL's kernels run beside those of other pieces, as nccl/attach.c has it too. */
    if (own.spare_multiprocessors < SPARE)
        own.spare_multiprocessors = SPARE;
    own.bootstrap_timeout_ms = sw_comm_patience(comm) > 0 ? sw_comm_patience(comm) : 1;
    part.numbers = wide->domains.members + wide->domains.first_of[wide->domain];
    if (status == SYMWIN_OK)
        status = wide->maker->make(&part, comm->device, &own, &comm->inner);
    sw_wipe(&part, sizeof part);
    return status;
}

static size_t scratch_bytes(void)
{
    return sw_driver_is_emulated() ? (size_t)256 << 10 : (size_t)16 << 20;
}

static symwin_status make_resources(struct sw_wide *wide)
{
    const size_t bytes = scratch_bytes();
    void *memory = NULL, *word = NULL;
    symwin_status status = symwin_mem_alloc(wide->comm->device, bytes, 0, &memory);
    int i;

    if (status == SYMWIN_OK)
        status = sw_check(
            sw_drv.cuMemHostAlloc(&word, sizeof *wide->inside,
                                  CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
            "cuMemHostAlloc");
    wide->inside = word;
    if (status == SYMWIN_OK) {
        atomic_store(wide->inside, 0);
        status = sw_check(sw_drv.cuMemHostGetDevicePointer(&wide->inside_address, word, 0),
                          "cuMemHostGetDevicePointer");
    }

    wide->scratch = memory;
    wide->half = bytes / 2;
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuStreamCreate(&wide->side, CU_STREAM_NON_BLOCKING),
                          "cuStreamCreate");
    for (i = 0; i < 2 && status == SYMWIN_OK; i++) {
        status = sw_check(sw_drv.cuEventCreate(&wide->ready[i], CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
        if (status == SYMWIN_OK)
            status = sw_check(sw_drv.cuEventCreate(&wide->moved[i], CU_EVENT_DISABLE_TIMING),
                              "cuEventCreate");
    }
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventCreate(&wide->edge, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventCreate(&wide->last_call, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
    return status;
}

static symwin_status start_watcher(struct sw_wide *wide, const char *call)
{
    sigset_t all, before;

    sigfillset(&all); /* they belong to the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    wide->has_watcher = pthread_create(&wide->watcher, NULL, watch, wide) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return wide->has_watcher ? SYMWIN_OK
                             : sw_fail(SYMWIN_NO_MEMORY, "%s: no thread for a communicator", call);
}

/* Each step is agreed on, so that no rank waits for one that has failed. */
static symwin_status build(struct sw_wide *wide, const char *call,
                           const symwin_comm_options *options)
{
    symwin_comm *comm = wide->comm;
    symwin_window *window;
    symwin_status status = sw_engine_load(call, &wide->engine);
    uint64_t values[] = {status == SYMWIN_OK ? (uint64_t)wide->engine->version : 0,
                         (uint64_t)sw_comm_patience(comm)};
    int64_t patience = INT_MAX;
    int r;

    status = sw_comm_agree(comm, call, status, values, 2);
    if (status != SYMWIN_OK)
        return status;
    wide->version = INT_MAX;
    for (r = 0; r < comm->nranks; r++) {
        if ((int)comm->ballots[r].values[0] < wide->version)
            wide->version = (int)comm->ballots[r].values[0];
        if ((int64_t)comm->ballots[r].values[1] < patience)
            patience = (int64_t)comm->ballots[r].values[1];
    }
    wide->created_by = sw_now_ms() + patience;
    status = sw_comm_agree(comm, call, make_inner(wide, options), NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = sw_rails_create(wide, call);
    if (status == SYMWIN_OK || !sw_exchange_ended(comm->group->exchange))
        status = sw_comm_agree(comm, call, status, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = sw_comm_agree(comm, call, make_resources(wide), NULL, 0);
    if (status == SYMWIN_OK)
        status = symwin_window_register(wide->comm->inner, wide->scratch, 2 * wide->half, 0,
                                        &window);
    if (status == SYMWIN_OK)
        status = start_watcher(wide, call);
    return sw_comm_agree(comm, call, status, NULL, 0);
}

symwin_status sw_wide_create(symwin_comm *comm, const char *call, struct sw_domains *domains,
                             const symwin_comm_options *options, const struct sw_part_maker *maker)
{
    struct sw_wide *wide = calloc(1, sizeof *wide);
    symwin_status status = SYMWIN_OK;

    if (wide == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a communicator", call);
    status = sw_comm_agree(comm, call, status, NULL, 0);
    if (status != SYMWIN_OK) {
        free(wide);
        sw_domains_free(domains);
        return status;
    }
    wide->calls = &sw_wide_calls;
    wide->comm = comm;
    wide->maker = maker;
    wide->domains = *domains;
    wide->domain = domains->domain_of[comm->rank];
    wide->index = domains->index_of[comm->rank];
    wide->first_rail = sw_rail_first(domains, wide->domain, wide->index);
    wide->rail_count = sw_rail_first(domains, wide->domain, wide->index + 1) - wide->first_rail;
    comm->wide = wide;
    status = build(wide, call, options);
    if (status != SYMWIN_OK)
        sw_wide_destroy(comm);
    return status;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Waits for the calls outside graphs. If the communicator has ended, they end soon. */
static void await_calls(struct sw_wide *wide)
{
    const struct timespec nap = {.tv_nsec = 50000};
    struct sw_exchange *x = wide->comm->group->exchange;
    int64_t until = INT64_MAX;

    while (wide->has_last && sw_now_ms() < until &&
           sw_drv.cuEventQuery(wide->last_call) == CUDA_ERROR_NOT_READY) {
        if (until == INT64_MAX && sw_exchange_ended(x))
            until = sw_now_ms() + LEAVE_MS;
        nanosleep(&nap, NULL);
    }
}

static void drop_event(CUevent event)
{
    if (event != NULL)
        sw_drop(sw_drv.cuEventDestroy(event), "cuEventDestroy");
}

void sw_wide_destroy(symwin_comm *comm)
{
    const struct timespec nap = {.tv_nsec = 50000};
    /* Another thread may be capturing in global mode, which would forbid these driver calls. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct sw_wide *wide = comm->wide;
    int i;

    if (wide == NULL)
        return;
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    await_calls(wide);
    if (wide->has_watcher) /* so that what others see of the parts is not taken for a death */
        sw_exchange_take_leave(comm->group->exchange, comm->rank);
    if (wide->has_watcher) {
        atomic_store(&wide->stop, 1);
        pthread_join(wide->watcher, NULL);
    }
    while (atomic_load(&comm->watchers) > 0) /* threads that look at it */
        nanosleep(&nap, NULL);
    if (wide->engine != NULL)
        sw_rails_destroy(wide, wide->has_watcher && !sw_exchange_ended(comm->group->exchange));
    if (sw_exchange_ended(comm->group->exchange) && wide->comm->inner != NULL)
        (void)symwin_comm_abort(wide->comm->inner);
    if (comm->inner != NULL)
        wide->maker->destroy(comm->inner);
    comm->inner = NULL;
    if (wide->side != NULL)
        sw_drop(sw_drv.cuStreamDestroy(wide->side), "cuStreamDestroy");
    for (i = 0; i < 2; i++) {
        drop_event(wide->ready[i]);
        drop_event(wide->moved[i]);
    }
    drop_event(wide->edge);
    drop_event(wide->last_call);
    if (wide->inside != NULL)
        sw_drop(sw_drv.cuMemFreeHost((void *)wide->inside), "cuMemFreeHost");
    if (wide->scratch != NULL)
        (void)symwin_mem_free(wide->scratch);
    sw_domains_free(&wide->domains);
    free(wide->rails);
    free(wide);
    comm->wide = NULL;
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
}
