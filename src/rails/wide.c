/* Creation and end of wide communicators, and the thread that ends all of one when a part of it
 * ends: the kernels of the domain, NCCL's calls on the rails, the exchange of all ranks. */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/rails/rails.h"

/* ---- what ends it ---------------------------------------------------------------------------- */

enum { LOOK_NS = 5000000, GRACE_MS = 1000, LEAVE_MS = 2000, PART_UNIT = 512 };

/* What NCCL says of its failure on this rank, for the others if that ends the communicator. */
static void note_why(const struct sw_wide *wide, struct ncclComm *comm, int result,
                     char why[SW_WHY_BYTES])
{
    const char *more = wide->engine->last_text(comm);

    snprintf(why, SW_WHY_BYTES, "NCCL: %s%s%s", wide->engine->text_of(result),
             more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

/* NCCL's result for a communicator that has failed: SW_ENGINE_OK if none has. */
static int failure_of(struct sw_wide *wide, char why[SW_WHY_BYTES])
{
    int i, state, result = SW_ENGINE_OK;

    if (!sw_rail_try(wide)) /* who is in NCCL hears of it */
        return SW_ENGINE_OK;
    for (i = 0; i < sw_rails_count(wide) && result == SW_ENGINE_OK; i++) {
        state = SW_ENGINE_OK;
        result = wide->engine->get_state(*sw_rail_at(wide, i), &state);
        if (result == SW_ENGINE_OK && state != SW_ENGINE_IN_PROGRESS)
            result = state;
        if (result != SW_ENGINE_OK && result != SW_ENGINE_REMOTE_ERROR)
            note_why(wide, *sw_rail_at(wide, i), result, why);
    }
    sw_rail_end(wide);
    return result;
}

static uint32_t verdict_of(const struct sw_wide *wide)
{
    const int words = SW_LANES * (1 + wide->rail_count);
    uint32_t found = SW_KERNEL_OK;
    int i;

    for (i = SW_LANES; i < words && found == SW_KERNEL_OK; i++)
        found = atomic_load(&wide->words[i]);
    return found;
}

void sw_wide_release(struct sw_wide *wide)
{
    const int words = SW_LANES * (1 + wide->rail_count);
    int i;

    for (i = SW_LANES; i < words && wide->words != NULL; i++)
        atomic_store(&wide->words[i], SW_KERNEL_OK);
}

/* Kernels of another domain have failed, or NCCL has, so what it has brought is worthless. Who
 * knows more ends the exchange within that time. */
static void await_end(const struct sw_wide *wide, int ms, symwin_status status, int culprit,
                      const char *why)
{
    const struct timespec moment = {.tv_nsec = 200000};
    struct sw_exchange *x = wide->comm->group->exchange;
    const int64_t until = sw_now_ms() + ms;

    while (!sw_exchange_ended(x) && sw_now_ms() < until)
        nanosleep(&moment, NULL);
    if (sw_exchange_ended(x))
        return;
    if (why != NULL)
        sw_exchange_say_why(x, culprit, why);
    sw_exchange_fail(x, status, culprit);
}

/* What ends the domain's communicator ends this one. */
static void look_inside(symwin_comm *comm)
{
    const struct sw_wide *wide = comm->wide;
    struct sw_exchange *x = comm->group->exchange;
    symwin_status status = SYMWIN_OK;
    int culprit = 0;

    (void)symwin_comm_check_calls(comm->inner);
    if (!sw_exchange_ended(x) &&
        sw_exchange_outcome(comm->inner->group->exchange, &status, &culprit))
        sw_exchange_fail(x, status,
                         culprit < comm->inner->nranks
                             ? sw_domain_rank(&wide->domains, wide->domain, culprit)
                             : SW_NOBODY);
}

static void look_at_verdicts(const struct sw_wide *wide)
{
    const uint32_t found = verdict_of(wide);

    if (found != SW_KERNEL_OK)
        await_end(wide, 2 * GRACE_MS,
                  found == SW_KERNEL_TIMEOUT ? SYMWIN_TIMEOUT
                  : found == SW_KERNEL_LEFT  ? SYMWIN_PEER_LOST
                                             : SYMWIN_ABORTED,
                  SW_NOBODY, NULL);
}

void sw_wide_look(symwin_comm *comm)
{
    struct sw_wide *wide = comm->wide;
    char why[SW_WHY_BYTES];
    int result;

    if (comm->inner == NULL)
        return; /* it is being made */
    look_inside(comm);
    if (sw_exchange_ended(comm->group->exchange) || !wide->has_watcher)
        return;
    look_at_verdicts(wide);
    result = failure_of(wide, why);
    if (result == SW_ENGINE_REMOTE_ERROR)
        await_end(wide, 2 * GRACE_MS, SYMWIN_PEER_LOST, SW_NOBODY, NULL);
    else if (result != SW_ENGINE_OK)
        await_end(wide, SW_OWN_MS, SYMWIN_DRIVER, comm->rank, why);
}

int64_t sw_wide_patience(const struct sw_wide *wide)
{
    const int64_t ms = wide->comm->kernel_timeout_ms;

    if (ms < 0)
        return INT64_MAX / 2;
    return ms + SW_NAMING_MS + (wide->comm->group->host == 0 ? 0 : SW_NAMING_MS / 2);
}

int sw_wide_culprit(const struct sw_wide *wide, symwin_status *status, uint64_t calls)
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
    return *status == SYMWIN_TIMEOUT ? sw_exchange_behind(x, wide->comm->rank, calls) : SW_NOBODY;
}

/* Ends it, if that is due, for a call that NCCL has for too long, or because NCCL has failed. Until
 * then the other hosts are asked whether they are there. */
static void judge(const struct sw_wide *wide, symwin_status status, uint64_t calls, int is_due)
{
    struct sw_exchange *x = wide->comm->group->exchange;
    int culprit;

    sw_exchange_ask(x);
    if (!is_due)
        return;
    culprit = sw_wide_culprit(wide, &status, calls);
    sw_exchange_fail(x, status, culprit);
}

/* How long the device has been in NCCL's calls of a lane, in ms, as far as this thread has seen. */
struct stay {
    uint32_t inside;
    int64_t entered_at;
};

/* Those of its call that a rank has counted that has made the call; 0: unknown. */
static uint64_t calls_of(const struct sw_lane *lane, uint32_t number)
{
    const uint64_t known = atomic_load(&lane->known[number / 2 % SW_KNOWN]);

    return (known & 0xffffff) == (number & 0xffffff) ? (known >> 24) + 1 : 0;
}

/* *calls: see calls_of(). */
static int64_t longest_stay(const struct sw_wide *wide, struct stay *stays, uint64_t *calls)
{
    const int64_t now = sw_now_ms();
    int64_t longest = 0;
    int i;

    for (i = 0; i < SW_LANES; i++) {
        const uint32_t seen = atomic_load(&wide->words[i]);

        if (seen != stays[i].inside)
            stays[i] = (struct stay){seen, now};
        if (seen % 2 == 1 && now - stays[i].entered_at > longest) {
            longest = now - stays[i].entered_at;
            *calls = calls_of(&wide->lanes[i], seen);
        }
    }
    return longest;
}

static void *watch(void *arg)
{
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    struct sw_wide *wide = arg;
    struct sw_exchange *x = wide->comm->group->exchange;
    const int64_t most_ms = sw_wide_patience(wide);
    struct stay stays[SW_LANES] = {{0}};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* other threads may be capturing */
    int64_t failed_at = 0, stay;
    int is_over = 0;
    uint64_t calls = 0;
    char why[SW_WHY_BYTES];
    int result;

    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    while (!atomic_load(&wide->stop)) {
        nanosleep(&nap, NULL);
        if (is_over) { /* what NCCL still brought may hold streams again */
            sw_wide_release(wide);
            continue;
        }
        look_inside(wide->comm);
        if (!sw_exchange_ended(x))
            look_at_verdicts(wide);
        result = failure_of(wide, why);
        if (result != SW_ENGINE_OK && result != SW_ENGINE_REMOTE_ERROR)
            await_end(wide, SW_OWN_MS, SYMWIN_DRIVER, wide->comm->rank, why);
        if (failed_at == 0 && result == SW_ENGINE_REMOTE_ERROR)
            failed_at = sw_now_ms();
        if (failed_at != 0 && !sw_exchange_ended(x))
            judge(wide, SYMWIN_PEER_LOST, 0, sw_now_ms() - failed_at > GRACE_MS);
        stay = longest_stay(wide, stays, &calls);
        if (stay > 0 && !sw_exchange_ended(x) && stay > most_ms - 2 * SW_NAMING_MS)
            judge(wide, SYMWIN_TIMEOUT, calls, stay > most_ms);
        if (!sw_exchange_ended(x))
            continue;
        (void)symwin_comm_abort(wide->comm->inner);
        sw_rails_destroy(wide, 0);
        is_over = 1;
    }
    return NULL;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* While ranks of the domain meet: one that ends before it has joined is known to the exchange of
 * all alone. In the process that made the domain's id, gives that up: then nobody waits for it. */
struct meeting {
    struct sw_exchange *exchange;
    const symwin_unique_id *id;
    atomic_int is_over;
};

static void *watch_meeting(void *arg)
{
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    struct meeting *m = arg;

    while (!atomic_load(&m->is_over) && !sw_exchange_ended(m->exchange))
        nanosleep(&nap, NULL);
    if (!atomic_load(&m->is_over))
        (void)symwin_unique_id_release(m->id);
    return NULL;
}

static symwin_status meet(struct sw_wide *wide, const struct sw_split *part,
                          const symwin_comm_options *options)
{
    symwin_comm *comm = wide->comm;
    struct meeting m = {.exchange = comm->group->exchange, .id = &part->id};
    pthread_t thread;
    const int begun = sw_thread_begin(&thread, watch_meeting, &m); /* if not, some wait longer */
    const symwin_status status = wide->maker->make(part, comm->device, options, &comm->inner);

    atomic_store(&m.is_over, 1);
    if (begun)
        pthread_join(thread, NULL);
    return status;
}

static symwin_status make_inner(struct sw_wide *wide, const symwin_comm_options *options)
{
    symwin_comm *comm = wide->comm;
    symwin_comm_options own = {.size = sizeof own};
    struct sw_split part;
    symwin_status status = sw_split(comm, SYMWIN_OK, wide->domain, comm->rank, &part);

    if (options != NULL)
        own = *options;
    /* NCCL's kernels run beside those of other pieces, as nccl/attach.c has it too. */
    if (own.spare_multiprocessors < SW_SPARE)
        own.spare_multiprocessors = SW_SPARE;
    own.bootstrap_timeout_ms = sw_comm_patience(comm) > 0 ? sw_comm_patience(comm) : 1;
    part.numbers = wide->domains.members + wide->domains.first_of[wide->domain];
    if (status == SYMWIN_OK)
        status = meet(wide, &part, &own);
    sw_wipe(&part, sizeof part);
    return status;
}

/* Of a message of 1 GiB by two exchanges, for eight ranks a domain: sixteen pieces, each with a
 * share of 8 MiB, what comes of others, and gaps between parts. */
static size_t scratch_bytes(void)
{
    return sw_driver_is_emulated() ? (size_t)256 << 10 : (size_t)81 << 20;
}

static symwin_status make_event(CUevent *event)
{
    return sw_check(sw_drv.cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

static symwin_status make_lanes(struct sw_wide *wide)
{
    const size_t count = SW_LANES * (1 + (size_t)wide->rail_count);
    CUcontext context = NULL;
    void *words = NULL;
    symwin_status status = sw_check(sw_drv.cuDevicePrimaryCtxRetain(&context, wide->device),
                                    "cuDevicePrimaryCtxRetain of device %d", wide->device);
    int i, k;

    if (status == SYMWIN_OK) {
        wide->context = context;
        status = sw_check(
            sw_drv.cuMemHostAlloc(&words, count * sizeof *wide->words,
                                  CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
            "cuMemHostAlloc");
    }
    wide->words = words;
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemHostGetDevicePointer(&wide->words_address, words, 0),
                          "cuMemHostGetDevicePointer");
    if (status == SYMWIN_OK)
        memset(words, 0, count * sizeof *wide->words);
    for (i = 0; i <= SW_LANES; i++)
        for (k = 0; k < 2 && status == SYMWIN_OK; k++)
            status = sw_check(
                sw_drv.cuStreamCreate(i < SW_LANES ? &wide->lanes[i].streams[k] : &wide->beside[k],
                                      CU_STREAM_NON_BLOCKING),
                "cuStreamCreate");
    return status;
}

/* In no pool, as a communicator's own memory (sw_own_memory_create()): kernels of a call that has
 * failed may still write to it. */
static symwin_status make_scratch(struct sw_wide *wide, const char *call)
{
    const size_t bytes = scratch_bytes();
    const symwin_status status = sw_pool_create_apart(call, wide->comm->device, bytes,
                                                      &wide->memory);

    wide->scratch = (char *)(uintptr_t)wide->memory.base;
    wide->scratch_bytes = bytes;
    wide->half = bytes / 2;
    wide->part = bytes / SW_PARTS / PART_UNIT * PART_UNIT;
    return status;
}

static symwin_status make_resources(struct sw_wide *wide, const char *call)
{
    symwin_status status = make_scratch(wide, call);
    int i;

    if (status == SYMWIN_OK)
        status = make_lanes(wide);
    for (i = 0; i < SW_PARTS && status == SYMWIN_OK; i++) {
        status = make_event(&wide->ready[i]);
        if (status == SYMWIN_OK)
            status = make_event(&wide->moved[i]);
    }
    if (status == SYMWIN_OK)
        status = make_event(&wide->edge);
    if (status == SYMWIN_OK)
        status = make_event(&wide->last_call);
    return status == SYMWIN_OK ? sw_kernels_acquire(wide->device, SW_SUM_ALONE, 0, &wide->kernels)
                               : status;
}

static symwin_status start_watcher(struct sw_wide *wide, const char *call)
{
    wide->has_watcher = sw_thread_begin(&wide->watcher, watch, wide);
    return wide->has_watcher ? SYMWIN_OK
                             : sw_fail(SYMWIN_NO_MEMORY, "%s: no thread for a communicator", call);
}

symwin_status sw_wide_agree(struct sw_wide *wide, const char *call, symwin_status status)
{
    if (wide->is_refused)
        return status;
    status = sw_comm_agree(wide->comm, call, status, NULL, 0);
    wide->is_refused = status != SYMWIN_OK;
    return status;
}

/* On a step in NCCL, of which the failing rank has told all and has the text. */
static symwin_status agree_on_nccl(struct sw_wide *wide, const char *call, symwin_status status)
{
    return status != SYMWIN_OK && sw_exchange_ended(wide->comm->group->exchange)
               ? status
               : sw_wide_agree(wide, call, status);
}

/* Each step is agreed on, so that no rank waits for one that has failed. */
static symwin_status build(struct sw_wide *wide, const char *call,
                           const symwin_comm_options *options)
{
    symwin_comm *comm = wide->comm;
    symwin_window *window;
    symwin_status status = sw_engine_load(call, &wide->engine);
    uint64_t values[2 + SW_TUNING_VALUES] = {status == SYMWIN_OK ? (uint64_t)wide->engine->version
                                                                 : 0,
                                             (uint64_t)sw_comm_patience(comm)};
    int64_t patience = INT_MAX;
    int r;

    if (status == SYMWIN_OK)
        status = sw_tuning_introduce(comm, call, wide->domains.count, &values[2]);
    status = sw_comm_agree(comm, call, status, values, 2 + SW_TUNING_VALUES);
    if (status == SYMWIN_OK)
        status = sw_tuning_agree(comm, call, 2); /* the same on all ranks */
    if (status != SYMWIN_OK)
        return status;
    wide->version = INT_MAX;
    for (r = 0; r < comm->nranks; r++) {
        if ((int)comm->ballots[r].values[0] < wide->version)
            wide->version = (int)comm->ballots[r].values[0];
        if ((int64_t)comm->ballots[r].values[1] < patience)
            patience = (int64_t)comm->ballots[r].values[1];
    }
    wide->nccl_until = sw_now_ms() + patience -
                       (patience > 4 * SW_NAMING_MS ? SW_NAMING_MS : patience / 4);
    status = sw_comm_agree(comm, call, make_inner(wide, options), NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = agree_on_nccl(wide, call, sw_rails_create(wide, call));
    if (status != SYMWIN_OK)
        return status;
    status = sw_comm_agree(comm, call, make_resources(wide, call), NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    status = agree_on_nccl(wide, call, sw_rails_connect(wide, call));
    if (status != SYMWIN_OK)
        return status;
    status = symwin_window_register(wide->comm->inner, wide->scratch, wide->scratch_bytes, 0,
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
    pthread_mutex_init(&wide->nccl, NULL);
    wide->calls = &sw_wide_calls;
    wide->device = comm->device;
    atomic_store(&wide->holders, 1);
    wide->comm = comm;
    wide->maker = maker;
    wide->domains = *domains;
    wide->domain = domains->domain_of[comm->rank];
    wide->index = domains->index_of[comm->rank];
    wide->first_rail = sw_rail_first(domains, wide->domain, wide->index);
    wide->rail_count = sw_rail_first(domains, wide->domain, wide->index + 1) - wide->first_rail;
    sw_exchange_count(comm->group->exchange, comm->rank, 0);
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

static void drop_stream(CUstream stream)
{
    if (stream != NULL)
        sw_drop(sw_drv.cuStreamDestroy(stream), "cuStreamDestroy");
}

static void drop_event(CUevent event)
{
    if (event != NULL)
        sw_drop(sw_drv.cuEventDestroy(event), "cuEventDestroy");
}

/* On the reaper: cuMemFreeHost() waits for all kernels of the device, and one may wait for the
 * thread that destroys the communicator. Then no sum is left that streams had behind a verdict, and
 * nothing that uses the scratch. */
static void free_words(struct sw_remains *remains)
{
    struct sw_wide *wide = (struct sw_wide *)(void *)((char *)remains -
                                                      offsetof(struct sw_wide, remains));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* other threads may be capturing */
    const int pushed = wide->context != NULL &&
                       sw_drv.cuCtxPushCurrent(wide->context) == CUDA_SUCCESS;
    CUcontext context;

    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    if (wide->words != NULL)
        sw_drop(sw_drv.cuMemFreeHost((void *)wide->words), "cuMemFreeHost");
    sw_memory_drop(&wide->memory);
    if (wide->kernels != NULL)
        sw_kernels_release(wide->kernels);
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    if (pushed)
        sw_drop(sw_drv.cuCtxPopCurrent(&context), "cuCtxPopCurrent");
    if (wide->context != NULL)
        sw_drop(sw_drv.cuDevicePrimaryCtxRelease(wide->device), "cuDevicePrimaryCtxRelease");
    free(wide);
}

void sw_wide_let_go(struct sw_wide *wide)
{
    if (atomic_fetch_sub(&wide->holders, 1) == 1)
        sw_reaper_take(&wide->remains, free_words);
}

void sw_wide_destroy(symwin_comm *comm)
{
    const struct timespec nap = {.tv_nsec = 50000};
    struct sw_wide *wide = comm->wide;
    int i;

    if (wide == NULL)
        return;
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
    for (i = 0; i < 2 * SW_LANES; i++)
        drop_stream(wide->lanes[i / 2].streams[i % 2]);
    drop_stream(wide->beside[0]);
    drop_stream(wide->beside[1]);
    for (i = 0; i < SW_PARTS; i++) {
        drop_event(wide->ready[i]);
        drop_event(wide->moved[i]);
    }
    drop_event(wide->edge);
    drop_event(wide->last_call);
    sw_domains_free(&wide->domains);
    free(wide->rails);
    free(wide->counts);
    pthread_mutex_destroy(&wide->nccl);
    sw_wide_release(wide); /* what still waits for a verdict would keep the reaper */
    comm->wide = NULL;
    sw_wide_let_go(wide);
}
