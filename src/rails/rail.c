/* NCCL's communicators of a rank: one for each rail that it serves, and one of all ranks. They
 * never block (blocking=0), so that the host waits for a rank with a deadline. */
#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/rails/wide_call.h"

enum { FINALIZE_MS = 2000, GRACE_MS = 1000 };
/* A call of ranks that are connected takes NCCL less time than a sleep takes the system. */
enum { SHORT_POLLS = 200 };
#define CONFIG_MAGIC 0xcafebeefu

symwin_status sw_rail_begin(struct sw_wide *wide, const char *call)
{
    symwin_status status;

    pthread_mutex_lock(&wide->nccl);
    if (!atomic_load(&wide->is_ended))
        return SYMWIN_OK;
    pthread_mutex_unlock(&wide->nccl);
    status = sw_exchange_settled(wide->comm->group->exchange, call);
    return status != SYMWIN_OK
               ? status
               : sw_fail(SYMWIN_ABORTED, "%s: the communicator has ended; destroy it", call);
}

int sw_rail_try(struct sw_wide *wide)
{
    if (pthread_mutex_trylock(&wide->nccl) != 0)
        return 0;
    if (!atomic_load(&wide->is_ended))
        return 1;
    pthread_mutex_unlock(&wide->nccl);
    return 0;
}

void sw_rail_end(struct sw_wide *wide)
{
    pthread_mutex_unlock(&wide->nccl);
}

static symwin_status refused(const struct sw_wide *wide, const char *call, const char *function,
                             struct ncclComm *comm, int result)
{
    const struct sw_engine *e = wide->engine;
    const char *more = e->last_text(comm);

    return sw_fail(result == SW_ENGINE_REMOTE_ERROR ? SYMWIN_PEER_LOST : SYMWIN_DRIVER,
                   "%s: NCCL's %s failed: %s%s%s; destroy the communicator", call, function,
                   e->text_of(result), more != NULL && more[0] != '\0' ? ": " : "",
                   more != NULL ? more : "");
}

/* NCCL's function has not come back in time, or has lost a rank: the culprit. */
static symwin_status lost(const char *call, const char *function, symwin_status status, int culprit)
{
    if (culprit == SW_NOBODY)
        return sw_fail(status,
                       "%s: NCCL's %s was not done in time; look whether NCCL reaches the other "
                       "hosts (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)",
                       call, function);
    return sw_fail(status, "%s: in NCCL's %s, rank %d %s", call, function, culprit,
                   status == SYMWIN_PEER_LOST
                       ? "has given up, or has destroyed its communicator"
                       : "did not come in time: its host does not answer, or its process, which "
                         "links that host, is stopped");
}

/* `until`: of sw_now_ms(). *culprit: who is to blame if it fails. */
static symwin_status settle_until(struct sw_wide *wide, const char *call, const char *function,
                                  struct ncclComm *comm, int result, int64_t until, int *culprit)
{
    const struct timespec moment = {.tv_nsec = 20000};
    struct sw_exchange *x = wide->comm->group->exchange;
    symwin_status status = SYMWIN_TIMEOUT;
    int state = result, polls = 0;

    *culprit = wide->comm->rank;
    while (result == SW_ENGINE_IN_PROGRESS) {
        if (atomic_load(&wide->is_ended) || sw_exchange_ended(x)) {
            status = sw_exchange_status(x, call);
            return status != SYMWIN_OK
                       ? status
                       : sw_fail(SYMWIN_ABORTED, "%s: the communicator has ended", call);
        }
        if (sw_now_ms() > until) {
            *culprit = sw_wide_culprit(wide, &status, wide->calls_made);
            return lost(call, function, status, *culprit);
        }
        if (sw_now_ms() > until - 2 * SW_NAMING_MS)
            sw_exchange_ask(x);
        if (polls > SHORT_POLLS)
            nanosleep(&moment, NULL);
        else if (polls++ > 0)
            sched_yield();
        result = wide->engine->get_state(comm, &state);
        if (result == SW_ENGINE_OK)
            result = state;
    }
    if (result == SW_ENGINE_OK)
        return SYMWIN_OK;
    /* If NCCL has lost a rank, the exchange knows which one and why, but maybe a little later. If
     * it has failed here, kernels may know that ranks' calls differ. */
    status = refused(wide, call, function, comm, result);
    until = sw_now_ms() + (result == SW_ENGINE_REMOTE_ERROR ? GRACE_MS : SW_OWN_MS);
    while (!sw_exchange_ended(x) && sw_now_ms() < until) {
        sw_exchange_ask(x);
        nanosleep(&moment, NULL);
    }
    if (sw_exchange_ended(x))
        return sw_exchange_status(x, call);
    if (result != SW_ENGINE_REMOTE_ERROR)
        return status;
    *culprit = sw_wide_culprit(wide, &status, wide->calls_made);
    return *culprit == SW_NOBODY ? status : lost(call, function, status, *culprit);
}

/* After a failure others wait in NCCL for this rank. */
static void end_all(const struct sw_wide *wide, symwin_status status, int culprit)
{
    struct sw_exchange *x = wide->comm->group->exchange;

    if (status == SYMWIN_OK || sw_exchange_ended(x))
        return;
    if (culprit == wide->comm->rank)
        sw_exchange_say_why(x, culprit, symwin_last_error());
    sw_exchange_fail(x, status, culprit);
}

symwin_status sw_rail_settle(struct sw_wide *wide, const char *call, const char *function,
                             struct ncclComm *comm, int result)
{
    symwin_status status;
    int culprit;

    if (result == SW_ENGINE_OK)
        return SYMWIN_OK;
    /* At their first call the ranks connect, for which the host waits as kernels do for a rank. */
    status = settle_until(wide, call, function, comm, result, sw_now_ms() + sw_wide_patience(wide),
                          &culprit);
    end_all(wide, status, culprit);
    return status;
}

/* ---- creation ---- */

static CUdeviceptr word_address(const struct sw_wide *wide, int word)
{
    return wide->words_address + (CUdeviceptr)word * sizeof *wide->words;
}

/* Posts an id and gets those of all ranks. */
static symwin_status share_id(struct sw_wide *wide, const char *call, symwin_status status,
                              int makes, sw_engine_id *ids)
{
    symwin_comm *comm = wide->comm;
    sw_engine_id own = {{0}};
    int result;

    if (status == SYMWIN_OK && makes) {
        result = wide->engine->get_id(&own);
        if (result != SW_ENGINE_OK)
            status = refused(wide, call, "ncclGetUniqueId", NULL, result);
    }
    status = sw_wide_agree(wide, call, status);
    if (status == SYMWIN_OK)
        status = sw_exchange_allgather(comm->group->exchange, comm->rank, &own, sizeof own, ids,
                                       sw_comm_patience(comm), call);
    return status;
}

static symwin_status init(struct sw_wide *wide, const char *call, const sw_engine_id *id, int ranks,
                          int rank, int max_ctas, struct ncclComm **comm)
{
    struct sw_engine_config config = {.size = sizeof config,
                                      .magic = CONFIG_MAGIC,
                                      .version = SW_ENGINE_LEAST,
                                      .blocking = 0,
                                      .cga_cluster_size = INT_MIN,
                                      .min_ctas = INT_MIN,
                                      .max_ctas = max_ctas};
    const int result = wide->engine->init(comm, ranks, *id, rank, &config);
    int culprit;
    const symwin_status status = settle_until(wide, call, "ncclCommInitRankConfig", *comm, result,
                                              wide->nccl_until, &culprit);

    /* All wait in vain. In the time that is left the next agreement finds for whom. */
    if (status != SYMWIN_TIMEOUT)
        end_all(wide, status, culprit);
    return status;
}

int sw_blocks_of_rail(const struct sw_wide *wide, int usual)
{
    const int limit = wide->comm->max_blocks,
              each = limit / (SW_LANES * sw_most_served(&wide->domains));
    int blocks = 1;

    if (limit == 0 || each > usual)
        return usual;
    while (2 * blocks <= each)
        blocks *= 2;
    return blocks;
}

/* Rails begin in the order of their numbers on all ranks. In each round, a rank of domain 0 makes
 * the id of one of its rails. */
static symwin_status create_rails(struct sw_wide *wide, const char *call, int lane,
                                  sw_engine_id *ids)
{
    struct ncclComm **const rails = sw_rails_of(wide, lane);
    const struct sw_domains *d = &wide->domains;
    const int rounds = (d->rails + d->size_of[0] - 1) / d->size_of[0];
    sw_engine_id *const mine = calloc((size_t)wide->rail_count, sizeof *mine);
    symwin_status status = SYMWIN_OK;
    int k, i, rail;

    if (mine == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for rails", call);
    for (k = 0; k < rounds; k++) {
        status = share_id(wide, call, status, wide->domain == 0 && k < wide->rail_count, ids);
        for (i = 0; i < wide->rail_count && status == SYMWIN_OK; i++) {
            const int maker = sw_rail_server(d, 0, rail = wide->first_rail + i);

            if (rail - sw_rail_first(d, 0, maker) == k)
                mine[i] = ids[sw_domain_rank(d, 0, maker)];
        }
    }
    /* NCCL's kernels of all lanes have room at the same time. */
    for (i = 0; i < wide->rail_count && status == SYMWIN_OK; i++)
        status = init(wide, call, &mine[i], d->count, wide->domain,
                      sw_blocks_of_rail(wide, SW_SPARE / SW_LANES), &rails[i]);
    free(mine);
    return status;
}

symwin_status sw_rails_create(struct sw_wide *wide, const char *call)
{
    symwin_comm *comm = wide->comm;
    sw_engine_id *ids = calloc((size_t)comm->nranks, sizeof *ids);
    symwin_status status = SYMWIN_OK;
    int lane;

    wide->rails = calloc((size_t)wide->rail_count * SW_LANES, sizeof(struct ncclComm *));
    wide->counts = calloc(3 * (size_t)comm->nranks, sizeof *wide->counts);
    if (ids == NULL || wide->rails == NULL || wide->counts == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, comm->nranks);
    if (ids != NULL) {
        status = share_id(wide, call, status, comm->rank == 0, ids);
        if (status == SYMWIN_OK) {
            const sw_engine_id id = ids[0];

            for (lane = 0; lane < SW_LANES && status == SYMWIN_OK; lane++)
                status = create_rails(wide, call, lane, ids);
            if (status == SYMWIN_OK)
                status = init(wide, call, &id, comm->nranks, comm->rank,
                              comm->max_blocks > 0 ? comm->max_blocks : INT_MIN, &wide->all);
        }
    } else {
        status = sw_wide_agree(wide, call, status);
    }
    free(ids);
    return status;
}

/* Waits for a call that all ranks have made. */
static symwin_status await_stream(struct sw_wide *wide, const char *call, CUstream stream)
{
    const struct timespec moment = {.tv_nsec = 50000};
    const int64_t until = wide->nccl_until;
    struct sw_exchange *x = wide->comm->group->exchange;
    CUresult result;

    while ((result = sw_drv.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           !sw_exchange_ended(x) && sw_now_ms() < until)
        nanosleep(&moment, NULL);
    if (result != CUDA_ERROR_NOT_READY)
        return sw_check_stream(result, call, "cuStreamQuery");
    return sw_exchange_ended(x) ? sw_exchange_status(x, call)
                                : lost(call, "ncclAllReduce", SYMWIN_TIMEOUT, SW_NOBODY);
}

symwin_status sw_rails_connect(struct sw_wide *wide, const char *call)
{
    const int rails = sw_rails_count(wide);
    const CUstream stream = wide->lanes[0].streams[0];
    const struct sw_engine *e = wide->engine;
    symwin_status status = SYMWIN_OK;
    int i, result, culprit;

    for (i = 0; i < rails && status == SYMWIN_OK; i++) {
        struct ncclComm *const comm = *sw_rail_at(wide, i);
        /* Verdicts are 0, and their sums; those of all ranks are not kept. */
        void *const word = (void *)(uintptr_t)word_address(wide, i + 1 < rails ? SW_LANES + i : 0);

        result = e->all_reduce(word, word, 1, sw_engine_type(SYMWIN_U32), sw_engine_op(SYMWIN_SUM),
                               comm, stream);
        status = settle_until(wide, call, "ncclAllReduce", comm, result, wide->nccl_until,
                              &culprit);
        if (status != SYMWIN_TIMEOUT) /* as in init() */
            end_all(wide, status, culprit);
    }
    return status == SYMWIN_OK ? await_stream(wide, call, stream) : status;
}

/* ---- end ---- */

/* Whether NCCL has let go of a communicator whose calls are over. */
static int finalize(struct sw_wide *wide, struct ncclComm *comm, int64_t until)
{
    const struct timespec moment = {.tv_nsec = 50000};
    const struct sw_engine *e = wide->engine;
    int result = e->finalize(comm), state = SW_ENGINE_OK;

    while (result == SW_ENGINE_IN_PROGRESS && sw_now_ms() < until) {
        nanosleep(&moment, NULL);
        if (e->get_state(comm, &state) != SW_ENGINE_OK)
            return 0;
        result = state;
    }
    return result == SW_ENGINE_OK;
}

struct one_abort {
    struct sw_wide *wide;
    struct ncclComm *comm;
};

static void *abort_main(void *arg)
{
    const struct one_abort one = *(struct one_abort *)arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* others may be capturing */

    free(arg);
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    (void)one.wide->engine->abort(one.comm);
    atomic_fetch_sub(&one.wide->aborts, 1);
    sw_wide_let_go(one.wide);
    return NULL;
}

static void begin_abort(struct sw_wide *wide, struct ncclComm *comm)
{
    struct one_abort *one = malloc(sizeof *one);
    pthread_t thread;
    int begun = 0;

    if (one != NULL) {
        *one = (struct one_abort){wide, comm};
        atomic_fetch_add(&wide->holders, 1);
        atomic_fetch_add(&wide->aborts, 1);
        begun = sw_thread_begin(&thread, abort_main, one);
    }
    if (begun)
        pthread_detach(thread);
    else if (one != NULL)
        (void)abort_main(one);
    else
        (void)wide->engine->abort(comm);
}

/* All at the same time: NCCL's abort of one waits for all kernels of the device, also for those of
 * another one, and for graphs that have its calls. Such a graph's thread outlives this call, and
 * keeps the words, which NCCL may write to until then. */
static void abort_all(struct sw_wide *wide)
{
    const struct timespec moment = {.tv_nsec = 50000};
    const int64_t until = sw_now_ms() + GRACE_MS;
    int i, begun = 0; /* none if this was called before, and has waited */

    for (i = 0; i < sw_rails_count(wide) && wide->rails != NULL; i++) {
        struct ncclComm **const comm = sw_rail_at(wide, i);

        if (*comm == NULL)
            continue;
        begin_abort(wide, *comm);
        *comm = NULL;
        begun = 1;
    }
    while (begun && atomic_load(&wide->aborts) > 0 && sw_now_ms() < until) {
        sw_wide_release(wide); /* an abort may wait for streams */
        nanosleep(&moment, NULL);
    }
}

void sw_rails_destroy(struct sw_wide *wide, int in_order)
{
    const int64_t until = sw_now_ms() + FINALIZE_MS;
    int i;

    atomic_store(&wide->is_ended, 1);
    pthread_mutex_lock(&wide->nccl); /* whoever is in NCCL leaves */
    pthread_mutex_unlock(&wide->nccl);
    for (i = 0; i < sw_rails_count(wide) && wide->rails != NULL && in_order; i++) {
        struct ncclComm **const comm = sw_rail_at(wide, i);

        if (*comm == NULL || !finalize(wide, *comm, until))
            continue;
        (void)wide->engine->destroy(*comm);
        *comm = NULL;
    }
    abort_all(wide);
}

/* ---- calls ---- */

/* A captured call says nothing: in replays the word would always be the same. */
static symwin_status mark(const struct sw_batch *b, uint32_t value)
{
    return b->marks ? sw_check_stream(sw_drv.cuStreamWriteValue32(
                                          b->stream, word_address(b->wide, b->lane), value, 0),
                                      b->call, "cuStreamWriteValue32")
                    : SYMWIN_OK;
}

symwin_status sw_batch_begin_in(struct sw_batch *b, const struct sw_wide_call *c, CUstream stream,
                                int lane)
{
    symwin_status status;

    *b = (struct sw_batch){.wide = c->wide,
                           .call = c->r->name,
                           .stream = stream,
                           .lane = lane,
                           .marks = !c->is_captured};
    b->number = b->marks ? 2 * c->wide->lanes[lane].batches++ + 1 : 0;
    if (b->marks && c->r->comm != NULL) /* it is no message */
        atomic_store(&c->wide->lanes[lane].known[b->number / 2 % SW_KNOWN],
                     c->wide->calls_made << 24 | (b->number & 0xffffff));
    status = mark(b, b->number); /* which may wait for room in the stream */
    if (status == SYMWIN_OK)
        status = sw_rail_begin(c->wide, c->r->name);
    if (status != SYMWIN_OK)
        return status;
    status = sw_rail_settle(c->wide, b->call, "ncclGroupStart", NULL,
                            c->wide->engine->group_start());
    if (status != SYMWIN_OK)
        sw_rail_end(c->wide);
    return status;
}

symwin_status sw_batch_begin(struct sw_batch *b, const struct sw_wide_call *c)
{
    return sw_batch_begin_in(b, c, c->stream, 0);
}

void sw_batch_note(struct sw_batch *b, int result)
{
    if (b->result == SW_ENGINE_OK && result != SW_ENGINE_IN_PROGRESS)
        b->result = result;
}

void sw_batch_verdict(struct sw_batch *b, int one)
{
    const struct sw_wide *w = b->wide;
    const int i = b->lane * w->rail_count + one;
    const CUdeviceptr found = w->comm->inner->report_address +
                              offsetof(struct sw_kernel_report, code),
                      verdict = word_address(w, SW_LANES + i);

    sw_batch_note(b,
                  w->engine->all_reduce((const void *)(uintptr_t)found, (void *)(uintptr_t)verdict,
                                        1, sw_engine_type(SYMWIN_U32), sw_engine_op(SYMWIN_MAX),
                                        w->rails[i], b->stream));
}

void sw_batch_verdicts(struct sw_batch *b)
{
    int i;

    for (i = 0; i < b->wide->rail_count; i++)
        sw_batch_verdict(b, i);
}

/* All communicators of this rank may have been in the group. */
symwin_status sw_batch_end(struct sw_batch *b)
{
    struct sw_wide *wide = b->wide;
    const int result = wide->engine->group_end();
    symwin_status status = SYMWIN_OK;
    int i;

    if (b->result == SW_ENGINE_OK)
        b->result = result;
    for (i = 0; i < sw_rails_count(wide) && status == SYMWIN_OK && b->result != SW_ENGINE_OK; i++)
        status = sw_rail_settle(wide, b->call, "ncclGroupEnd", *sw_rail_at(wide, i), b->result);
    sw_rail_end(wide);
    return status == SYMWIN_OK ? mark(b, b->number + 1) : status;
}

symwin_status sw_batch_hold(struct sw_batch *b)
{
    const int rails = b->wide->rail_count;
    symwin_status status = SYMWIN_OK;
    int i;

    for (i = 0; i < rails && status == SYMWIN_OK; i++)
        status = sw_check_stream(
            sw_drv.cuStreamWaitValue32(b->stream,
                                       word_address(b->wide, SW_LANES + b->lane * rails + i),
                                       SW_KERNEL_OK, CU_STREAM_WAIT_VALUE_EQ),
            b->call, "cuStreamWaitValue32");
    return status;
}
