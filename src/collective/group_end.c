/* The end of a group: finds the buffers of its calls, lets ranks agree, and launches all. */
#include <stdlib.h>
#include <string.h>

#include "src/collective/group_calls.h"

static const char end_call[] = "symwin_group_end";

/* Whether all calls are of one communicator. */
static int is_of_one(const struct sw_group_calls *g)
{
    size_t i = 1;

    while (i < g->count && sw_group_comm(g, i) == sw_group_comm(g, 0))
        i++;
    return i == g->count;
}

/* How many communicators there are at most. */
static size_t most_comms(const struct sw_group_calls *g)
{
    return is_of_one(g) ? 1 : g->count;
}

/* The request as it was added, with pointers to what it and the group own; more calls may move that
 * until the group ends. `table`: for the arguments of a collective by parts. */
static struct sw_request request_of(const struct sw_group_calls *g, struct grouped_call *c,
                                    struct sw_table_args *table)
{
    struct sw_request r = c->request;
    int b;

    if (r.options != NULL)
        r.options = &c->options;
    for (b = 0; b < 2; b++) {
        symwin_parts *const parts = &c->parts[b];

        if (r.parts[b] != NULL)
            r.parts[b] = parts;
        if (r.parts[b] != NULL && !parts->on_device) {
            parts->counts = g->words + c->arrays[b];
            if (parts->displacements != NULL)
                parts->displacements = parts->counts + r.comm->nranks;
        }
    }
    if (r.table != NULL)
        r.table = table;
    return r;
}

/* ---- sends and receives ---------------------------------------------------------------------- */

/* The sends and receives of a communicator that are made together. */
struct messages {
    const struct sw_pair_call **calls;
    size_t n;
    struct sw_pairs pairs; /* of a communicator of one domain */
    int left;              /* there is something to launch */
};

static symwin_status messages_check(struct messages *m, const char *call)
{
    const struct sw_wide_calls *wide = sw_wide_calls_of(m->calls[0]->comm);
    symwin_status status;

    if (wide != NULL) {
        m->left = 1;
        return wide->pairs(m->calls, m->n, call, 0);
    }
    status = sw_pairs_open(m->calls, m->n, call, &m->pairs);
    m->left = sw_pairs_left(&m->pairs);
    return status;
}

/* One kernel; all of them, if the communicator has several domains. */
static symwin_status messages_launch(struct messages *m, const char *call)
{
    const struct sw_wide_calls *wide = sw_wide_calls_of(m->calls[0]->comm);
    const symwin_status status = wide != NULL ? wide->pairs(m->calls, m->n, call, 1)
                                              : sw_pairs_launch(&m->pairs);

    m->left = sw_pairs_left(&m->pairs);
    return status;
}

symwin_status sw_pair_launch(const struct sw_pair_call *c)
{
    struct messages m = {.calls = &c, .n = 1};
    symwin_status status = messages_check(&m, c->name);

    while (status == SYMWIN_OK && m.left)
        status = messages_launch(&m, c->name);
    sw_pairs_close(&m.pairs);
    return status;
}

/* The sends and receives of a group. */
struct all_messages {
    struct messages *of; /* owned: of each communicator */
    size_t n;
    const struct sw_pair_call **calls; /* owned: of one communicator after another */
};

static void close_messages(struct all_messages *all)
{
    while (all->n > 0)
        sw_pairs_close(&all->of[--all->n].pairs);
    free(all->of);
    free(all->calls);
}

/* Sorts them by communicator, and checks them: a buffer may have been freed since its call was
 * added, or its window deregistered. Close them, also after a failure. */
static symwin_status open_messages(struct sw_group_calls *g, struct all_messages *all)
{
    unsigned char *seen;
    symwin_status status = SYMWIN_OK;
    size_t i = 0, j, n = 0;

    while (i < g->count && !g->calls[i].is_pair)
        i++;
    if (i == g->count)
        return SYMWIN_OK;
    seen = calloc(g->count, sizeof *seen);
    all->of = calloc(most_comms(g), sizeof *all->of);
    all->calls = calloc(g->count, sizeof *all->calls);
    if (seen == NULL || all->of == NULL || all->calls == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", end_call, g->count);
    for (; i < g->count && status == SYMWIN_OK; i++) {
        struct messages *m = &all->of[all->n];

        if (!g->calls[i].is_pair || seen[i])
            continue;
        *m = (struct messages){.calls = all->calls + n};
        for (j = i; j < g->count && status == SYMWIN_OK; j++)
            if (g->calls[j].is_pair && sw_group_comm(g, j) == sw_group_comm(g, i)) {
                seen[j] = 1;
                all->calls[n++] = &g->calls[j].pair;
                if (sw_wide_calls_of(sw_group_comm(g, j)) == NULL)
                    status = sw_pair_check(&g->calls[j].pair, SW_CHECKED_BEFORE);
            }
        m->n = (size_t)(all->calls + n - m->calls);
        all->n++;
        if (status == SYMWIN_OK)
            status = messages_check(m, end_call);
    }
    free(seen);
    return status;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* What a thread does for this one: it waits for other ranks, which may be this thread's too. */
struct worker {
    symwin_status (*run)(void *of);
    void *of;
    pthread_t thread;
    int is_thread;
    symwin_status status;
    char text[SW_TEXT_BYTES];
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    w->status = w->run(w->of);
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    if (w->status != SYMWIN_OK)
        strncpy(w->text, symwin_last_error(), sizeof w->text - 1);
    return NULL;
}

static symwin_status worker_begin(struct worker *w, symwin_status (*run)(void *), void *of)
{
    *w = (struct worker){.run = run, .of = of};
    w->is_thread = sw_thread_begin(&w->thread, worker_main, w);
    return w->is_thread ? SYMWIN_OK
                        : sw_fail(SYMWIN_NO_MEMORY, "%s: no thread for a rank's calls", end_call);
}

/* `status`: what is returned if it is an error, with its text. */
static symwin_status worker_end(struct worker *w, symwin_status status)
{
    if (!w->is_thread)
        return status;
    pthread_join(w->thread, NULL);
    w->is_thread = 0;
    return status == SYMWIN_OK && w->status != SYMWIN_OK ? sw_fail(w->status, "%s", w->text)
                                                         : status;
}

/* ---- agreements ------------------------------------------------------------------------------ */

/* Those of one communicator, for the calls of a group. */
struct agreement {
    const struct sw_group_calls *g;
    size_t first; /* the first call is the communicator's */
    struct worker worker;
};

static symwin_status agree(void *of)
{
    const struct agreement *a = of;
    const symwin_comm *comm = a->g->calls[a->first].request.comm;
    symwin_status status = SYMWIN_OK;
    size_t i;

    for (i = a->first; i < a->g->count && status == SYMWIN_OK; i++) {
        struct grouped_call *c = &a->g->calls[i];
        struct sw_request r;

        if (c->is_pair || c->request.comm != comm || !c->agrees)
            continue; /* other communicators' calls are other threads' */
        r = request_of(a->g, c, NULL);
        r.seen = &c->seen;
        status = sw_request_find(&r, &c->found, NULL);
        c->is_found = status == SYMWIN_OK;
        comm->registrations->keeps = 1; /* what calls of the group have found, until the launch */
    }
    comm->registrations->keeps = 0;
    return status;
}

/* Runs the agreements of all communicators, each in a thread if there are several. */
static symwin_status agree_all(const struct sw_group_calls *g, struct agreement *agreements,
                               size_t n)
{
    symwin_status status = SYMWIN_OK;
    size_t i;

    if (n == 1 && is_of_one(g)) {
        agreements->worker = (struct worker){.run = agree, .of = agreements};
        (void)worker_main(&agreements->worker);
        return agreements->worker.status;
    }
    for (i = 0; i < n && status == SYMWIN_OK; i++)
        status = worker_begin(&agreements[i].worker, agree, &agreements[i]);
    for (i = 0; i < n; i++)
        status = worker_end(&agreements[i].worker, status);
    return status;
}

static symwin_status see_capture(struct grouped_call *c)
{
    struct sw_scope scope;
    const symwin_status status = sw_scope_enter_context(c->request.comm->context, &scope);

    if (status == SYMWIN_OK)
        sw_capture_see(c->request.stream, &c->seen);
    sw_scope_leave(&scope);
    return status;
}

/* Parts are found at the launch: only what was freed meanwhile is new. */
static symwin_status find_parts(const struct sw_group_calls *g, struct grouped_call *c)
{
    struct sw_table_args table;
    const struct sw_request r = request_of(g, c, &table);
    struct call found;
    int agrees;

    c->request.checked = SW_CHECKED;
    return sw_request_find(&r, &found, &agrees);
}

/* Finds a call's buffers. `c` has no call of its communicator before it that is to agree, or is to
 * agree as well: what it needs may depend on that. */
static symwin_status find(const struct sw_group_calls *g, struct grouped_call *c)
{
    const struct sw_collective *is = &sw_collectives[c->request.collective];
    struct sw_request r = request_of(g, c, NULL);
    symwin_status status = SYMWIN_OK;

    c->found = sw_call_of(&r);
    if (is->no_data || sw_wide_calls_of(r.comm) != NULL)
        return SYMWIN_OK;
    if (is->by_parts)
        return find_parts(g, c);
    if (!c->agrees)
        status = sw_request_find(&r, &c->found, &c->agrees);
    if (status == SYMWIN_OK && c->agrees)
        status = see_capture(c);
    c->is_found = status == SYMWIN_OK && !c->agrees;
    return status;
}

/* The agreement of call i's communicator; n: there is none. */
static size_t agreement_of(const struct sw_group_calls *g, const struct agreement *agreements,
                           size_t n, size_t i)
{
    size_t k = 0;

    while (k < n && sw_group_comm(g, agreements[k].first) != sw_group_comm(g, i))
        k++;
    return k;
}

/* Finds the buffers of all collectives, and lets all communicators agree on theirs, before anything
 * is launched. */
static symwin_status find_all(struct sw_group_calls *g)
{
    struct agreement *agreements = NULL;
    symwin_status status = SYMWIN_OK;
    size_t i, k, n = 0;

    agreements = calloc(most_comms(g), sizeof *agreements);
    if (agreements == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", end_call, g->count);
    for (i = 0; i < g->count && status == SYMWIN_OK; i++) {
        struct grouped_call *c = &g->calls[i];

        if (c->is_pair)
            continue;
        k = agreement_of(g, agreements, n, i);
        c->agrees = k < n && sw_collectives[c->request.collective].registers != SW_CONNECTS_NEVER;
        status = find(g, c);
        if (status == SYMWIN_OK && c->agrees && k == n)
            agreements[n++] = (struct agreement){.g = g, .first = i};
    }
    if (status == SYMWIN_OK)
        status = agree_all(g, agreements, n);
    free(agreements);
    return status;
}

/* Launches collective `first`, and those of its communicator after it that go with it. So calls of
 * several communicators may change their order, but all ranks launch them in the same one. */
static symwin_status launch_from(struct sw_group_calls *g, size_t first)
{
    struct grouped_call *at[SW_BATCH_CALLS], *const one = &g->calls[first];
    const int joins = sw_joins(one->request.collective) &&
                      sw_wide_calls_of(one->request.comm) == NULL;
    const struct call *calls[SW_BATCH_CALLS];
    struct sw_table_args table;
    struct sw_request request;
    symwin_status status = SYMWIN_OK;
    size_t n = 0, taken = 0, i;

    if (one->number == 0)
        one->number = 1;
    for (i = first; i < g->count && n < (joins ? SW_BATCH_CALLS : 2); i++) {
        struct grouped_call *c = &g->calls[i];

        if (c->is_pair || c->request.comm != one->request.comm)
            continue;
        c->number = one->number + (unsigned)n;
        calls[n] = &c->found;
        at[n++] = c;
    }
    if (n > 1 && joins)
        status = sw_batch_run(calls, n, one->number, &taken);
    for (i = 0; i < taken; i++)
        at[i]->is_launched = 1;
    if (status != SYMWIN_OK || taken > 0)
        return status;
    if (one->is_found)
        return sw_found_run(&one->found);
    request = request_of(g, one, &table);
    return sw_request_run(&request, NULL);
}

/* ---- turns ---- */

/* What is left of a communicator: its next collective that is not launched, or its messages. */
struct turn {
    struct sw_group_calls *g;
    symwin_comm *comm;
    size_t at;                 /* of collectives; g->count: there is none */
    struct messages *messages; /* NULL: they are collectives */
    unsigned round;            /* of the last launch */
    struct worker worker;
};

static int is_left(const struct turn *t)
{
    return t->messages != NULL ? t->messages->left : t->at < t->g->count;
}

static symwin_status launch_next(void *of)
{
    struct turn *t = of;
    struct grouped_call *const calls = t->g->calls;
    symwin_status status;

    if (t->messages != NULL)
        return messages_launch(t->messages, end_call);
    status = launch_from(t->g, t->at);
    calls[t->at].is_launched = 1;
    /* Other communicators' are perhaps other threads'. */
    while (t->at < t->g->count && (calls[t->at].is_pair || calls[t->at].request.comm != t->comm ||
                                   calls[t->at].is_launched))
        t->at++;
    return status;
}

/* Whether another turn is one of the same communicator over several domains, of this thread's other
 * ranks: NCCL waits inside a call for all of them. */
static int goes_with(const struct turn *t, const struct turn *other)
{
    return t->comm->wide != NULL && t->comm->group == other->comm->group && is_left(other);
}

/* Launches turn k, and what goes with it each in a thread. */
static symwin_status launch_turn(struct turn *turns, size_t n, size_t k)
{
    symwin_status status = SYMWIN_OK;
    size_t i;

    for (i = k + 1; i < n && status == SYMWIN_OK; i++)
        if (goes_with(&turns[k], &turns[i])) {
            turns[i].round = turns[k].round;
            status = worker_begin(&turns[i].worker, launch_next, &turns[i]);
        }
    if (status == SYMWIN_OK)
        status = launch_next(&turns[k]);
    else /* threads may wait for this rank already */
        (void)symwin_comm_abort(turns[k].comm);
    for (i = k + 1; i < n; i++)
        status = worker_end(&turns[i].worker, status);
    return status;
}

/* One launch of each communicator in turn, so that ranks of one thread get to their calls together:
 * kernels of the first would wait for those of the last, which a full queue would keep away. */
static symwin_status launch_turns(struct turn *turns, size_t n)
{
    symwin_status status = SYMWIN_OK;
    unsigned round = 0;
    size_t k, left = n;

    while (left > 0 && status == SYMWIN_OK) {
        round++;
        for (left = 0, k = 0; k < n && status == SYMWIN_OK; k++) {
            if (is_left(&turns[k]) && turns[k].round < round) {
                turns[k].round = round;
                status = launch_turn(turns, n, k);
            }
            left += (size_t)is_left(&turns[k]);
        }
    }
    return status;
}

static symwin_status launch_all(struct sw_group_calls *g, struct all_messages *all)
{
    struct turn *turns = calloc(most_comms(g), sizeof *turns);
    symwin_status status;
    size_t i, k, n = 0;

    if (turns == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", end_call, g->count);
    for (i = 0; i < g->count; i++) {
        for (k = 0; k < n && turns[k].comm != g->calls[i].request.comm; k++)
            ;
        if (k == n && !g->calls[i].is_pair)
            turns[n++] = (struct turn){.g = g, .comm = g->calls[i].request.comm, .at = i};
    }
    status = launch_turns(turns, n);
    for (k = 0; k < all->n && status == SYMWIN_OK; k++)
        turns[k] = (struct turn){
            .g = g, .comm = all->of[k].calls[0]->comm, .messages = &all->of[k]};
    if (status == SYMWIN_OK)
        status = launch_turns(turns, all->n);
    free(turns);
    return status;
}

/* A stream that each thread has, of ranks whose calls threads make. */
static symwin_status check_streams(const struct sw_group_calls *g)
{
    size_t i, k;

    for (i = 0; i < g->count; i++) {
        const struct grouped_call *c = &g->calls[i];
        const CUstream stream = c->is_pair ? c->pair.stream : c->request.stream;
        const symwin_comm *comm = sw_group_comm(g, i);

        if (stream != CU_STREAM_PER_THREAD || comm->wide == NULL)
            continue;
        for (k = 0; k < g->count; k++)
            if (sw_group_comm(g, k) != comm && sw_group_comm(g, k)->group == comm->group)
                return sw_fail(
                    SYMWIN_INVALID,
                    "%s: one thread makes calls of ranks %d and %d, which are on several "
                    "hosts, on its own default stream; pass a stream of the device",
                    end_call, comm->rank, sw_group_comm(g, k)->rank);
    }
    return SYMWIN_OK;
}

symwin_status sw_group_launch(struct sw_group_calls *g)
{
    struct all_messages messages = {.n = 0};
    symwin_status status;

    if (g->status != SYMWIN_OK)
        return sw_fail(g->status, "%s: a call of the group failed, and nothing was launched: %s",
                       end_call, g->text);
    if (g->count == 0)
        return SYMWIN_OK;
    status = check_streams(g);
    if (status == SYMWIN_OK)
        status = open_messages(g, &messages);
    if (status == SYMWIN_OK)
        status = find_all(g);
    if (status == SYMWIN_OK)
        status = launch_all(g, &messages);
    else
        status = sw_fail(status, "%s; nothing of the group was launched", symwin_last_error());
    close_messages(&messages);
    return status;
}
