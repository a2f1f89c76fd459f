/* Groups of calls: a thread collects its calls and launches them at the end. A send or receive
 * outside a group is a group of one call.
 *
 * Collectives are launched in the order of the calls, then the sends and receives of each
 * communicator together. So ranks may differ in where they make the sends among the collectives.
 */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "src/collective/call.h"
#include "src/collective/grouped.h"
#include "src/collective/pairs.h"

static const char end_call[] = "symwin_group_end";

struct grouped_call {
    int is_pair;
    int is_launched;
    unsigned number; /* of a collective among those of its communicator; 0: not known yet */
    struct sw_pair_call pair;
    struct sw_request request;  /* otherwise; its pointers to the next two are set at the end */
    struct call found;          /* set at the end; if is_found, with its buffers */
    int is_found, agrees;       /* agrees: its communicator is to agree on its buffers */
    struct sw_stream_seen seen; /* if it agrees */
    symwin_collective_options options;
    symwin_parts parts[2];
    uint64_t arrays[2][2][SW_TABLE_RANKS]; /* what these have in host memory, as it was passed */
};

/* A thread's group. */
static _Thread_local struct {
    int depth;                  /* 0: none is open */
    struct grouped_call *calls; /* owned */
    size_t count, room;
    symwin_status status; /* of the first call that failed, with its text */
    char text[SW_TEXT_BYTES];
} group;

/* ---- a thread that ends with its group open ---- */

static struct {
    pthread_once_t once;
    pthread_key_t key; /* of a thread's calls */
    int has_key;
} ending = {.once = PTHREAD_ONCE_INIT};

/* The program's own destructors may still come, and destroy a communicator or make calls. */
static void thread_ends(void *calls)
{
    free(calls);
    group.calls = NULL;
    group.count = group.room = 0;
}

static void make_key(void)
{
    ending.has_key = pthread_key_create(&ending.key, thread_ends) == 0;
}

/* As in pool.c: threads may end after the library is unloaded, and must not call its code then. */
__attribute__((destructor)) static void library_ends(void)
{
    pthread_once(&ending.once, make_key); /* sees the key of whichever thread made it */
    if (ending.has_key)
        pthread_key_delete(ending.key);
}

static void own_calls(struct grouped_call *calls)
{
    group.calls = calls;
    pthread_once(&ending.once, make_key);
    if (ending.has_key)
        (void)pthread_setspecific(ending.key, calls);
}

/* ---- the calls of a group ---- */

int sw_grouped(void)
{
    return group.depth > 0;
}

static symwin_status note_as(symwin_status status, const char *text)
{
    if (status != SYMWIN_OK && group.depth > 0 && group.status == SYMWIN_OK) {
        group.status = status;
        strncpy(group.text, text, sizeof group.text - 1);
    }
    return status;
}

static symwin_status note(symwin_status status)
{
    return note_as(status, symwin_last_error());
}

static struct grouped_call *add(const char *call)
{
    const size_t room = group.room > 0 ? 2 * group.room : 16;
    struct grouped_call *calls = group.calls;

    if (group.count == group.room) {
        calls = realloc(group.calls, room * sizeof *calls);
        if (calls == NULL) {
            (void)sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a call of the group", call);
            return NULL;
        }
        own_calls(calls);
        group.room = room;
    }
    calls += group.count++;
    memset(calls, 0, offsetof(struct grouped_call, arrays));
    return calls;
}

static const symwin_comm *group_comm(size_t i)
{
    const struct grouped_call *c = &group.calls[i];

    return c->is_pair ? c->pair.comm : c->request.comm;
}

static void empty(void)
{
    free(group.calls);
    own_calls(NULL);
    group.count = group.room = 0;
    group.status = SYMWIN_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* The request as it was added, with pointers to what it owns; more calls may move it until the
 * group ends. `table`: for the arguments of a collective by parts. */
static struct sw_request request_of(struct grouped_call *c, struct sw_table_args *table)
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
            parts->counts = c->arrays[b][0];
            parts->displacements = parts->displacements != NULL ? c->arrays[b][1] : NULL;
        }
    }
    if (r.table != NULL)
        r.table = table;
    return r;
}

/* With its arrays on the host, which have been checked: there are at most SW_TABLE_RANKS ranks. */
static void copy_parts(struct grouped_call *c, int b, const symwin_parts *parts, size_t nranks)
{
    c->parts[b] = *parts;
    if (parts->on_device)
        return;
    memcpy(c->arrays[b][0], parts->counts, nranks * sizeof *parts->counts);
    if (parts->displacements != NULL)
        memcpy(c->arrays[b][1], parts->displacements, nranks * sizeof *parts->displacements);
}

symwin_status sw_grouped_add(const struct sw_request *r, symwin_status status)
{
    struct grouped_call *c;
    int b;

    if (status == SYMWIN_OK)
        status = sw_request_check_grouped(r);
    if (status != SYMWIN_OK)
        return note(status);
    c = add(r->name);
    if (c == NULL)
        return note(SYMWIN_NO_MEMORY);
    c->request = *r;
    if (r->options != NULL)
        c->options = *r->options;
    for (b = 0; b < 2; b++)
        if (r->parts[b] != NULL)
            copy_parts(c, b, r->parts[b], (size_t)r->comm->nranks);
    return SYMWIN_OK;
}

/* ---- sends and receives ---------------------------------------------------------------------- */

static symwin_status check(struct sw_pair_call *c, const symwin_collective_options *options)
{
    const struct sw_request r = {.name = c->name, .type = c->type, .options = options};
    symwin_status status = sw_request_check(&r);

    if (status != SYMWIN_OK)
        return status;
    if (options != NULL && options->algo != SYMWIN_ALGO_AUTO &&
        options->algo != SYMWIN_ALGO_ONESHOT)
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: there is no algorithm %s for it; pass auto",
                       c->name, symwin_algo_name(options->algo));
    if (options != NULL)
        c->asked = (struct sw_grid){(unsigned)options->blocks, (unsigned)options->threads};
    return sw_wide_calls_of(c->comm) != NULL ? SYMWIN_OK : sw_pair_check(c);
}

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

static symwin_status launch_one(const struct sw_pair_call *c)
{
    struct messages m = {.calls = &c, .n = 1};
    symwin_status status = messages_check(&m, c->name);

    while (status == SYMWIN_OK && m.left)
        status = messages_launch(&m, c->name);
    sw_pairs_close(&m.pairs);
    return status;
}

static symwin_status pair(struct sw_pair_call c, const symwin_collective_options *options)
{
    symwin_status status = check(&c, options);
    struct grouped_call *in_group;
    symwin_message_info info;

    if (status == SYMWIN_OK && (options != NULL || group.depth > 0) &&
        sw_wide_calls_of(c.comm) == NULL)
        status = sw_pair_answer(&c, 1, &info);
    if (group.depth == 0)
        return status == SYMWIN_OK ? launch_one(&c) : status;
    if (status != SYMWIN_OK)
        return note(status);
    in_group = add(c.name);
    if (in_group == NULL)
        return note(SYMWIN_NO_MEMORY);
    in_group->is_pair = 1;
    in_group->pair = c;
    return SYMWIN_OK;
}

symwin_status symwin_send_with(symwin_comm *comm, const void *in, uint64_t count, symwin_type type,
                               int peer, const symwin_collective_options *options,
                               struct CUstream_st *stream)
{
    return pair((struct sw_pair_call){.name = options != NULL ? "symwin_send_with" : "symwin_send",
                                      .comm = comm,
                                      .stream = stream,
                                      .peer = peer,
                                      .buffer = in,
                                      .count = count,
                                      .type = type},
                options);
}

symwin_status symwin_send(symwin_comm *comm, const void *in, uint64_t count, symwin_type type,
                          int peer, struct CUstream_st *stream)
{
    return symwin_send_with(comm, in, count, type, peer, NULL, stream);
}

symwin_status symwin_recv_with(symwin_comm *comm, void *out, uint64_t count, symwin_type type,
                               int peer, const symwin_collective_options *options,
                               struct CUstream_st *stream)
{
    return pair((struct sw_pair_call){.name = options != NULL ? "symwin_recv_with" : "symwin_recv",
                                      .comm = comm,
                                      .stream = stream,
                                      .receives = 1,
                                      .peer = peer,
                                      .buffer = out,
                                      .count = count,
                                      .type = type},
                options);
}

symwin_status symwin_recv(symwin_comm *comm, void *out, uint64_t count, symwin_type type, int peer,
                          struct CUstream_st *stream)
{
    return symwin_recv_with(comm, out, count, type, peer, NULL, stream);
}

/* Not collected in a group. */
static symwin_status query(struct sw_pair_call c, const symwin_collective_options *options,
                           symwin_message_info *info)
{
    symwin_status status = check(&c, options);

    if (status == SYMWIN_OK && info == NULL)
        status = sw_fail(SYMWIN_INVALID, "%s: info is NULL", c.name);
    if (status == SYMWIN_OK && sw_wide_calls_of(c.comm) != NULL)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: the communicator's ranks are in several domains, between which no "
                         "kernel moves messages; query a communicator of one domain",
                         c.name);
    return status == SYMWIN_OK ? sw_pair_answer(&c, 0, info) : status;
}

symwin_status symwin_send_query(symwin_comm *comm, const void *in, uint64_t count, symwin_type type,
                                int peer, const symwin_collective_options *options,
                                symwin_message_info *info)
{
    return query((struct sw_pair_call){.name = "symwin_send_query",
                                       .comm = comm,
                                       .peer = peer,
                                       .buffer = in,
                                       .count = count,
                                       .type = type},
                 options, info);
}

symwin_status symwin_recv_query(symwin_comm *comm, const void *out, uint64_t count,
                                symwin_type type, int peer,
                                const symwin_collective_options *options, symwin_message_info *info)
{
    return query((struct sw_pair_call){.name = "symwin_recv_query",
                                       .comm = comm,
                                       .receives = 1,
                                       .peer = peer,
                                       .buffer = out,
                                       .count = count,
                                       .type = type},
                 options, info);
}

/* ---- groups ---------------------------------------------------------------------------------- */

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

/* Sorts them by communicator, and checks them. Close them, also after a failure. */
static symwin_status open_messages(struct all_messages *all)
{
    unsigned char *seen = calloc(group.count, sizeof *seen);
    symwin_status status = SYMWIN_OK;
    size_t i, j, n = 0;

    all->of = calloc(group.count, sizeof *all->of);
    all->calls = calloc(group.count, sizeof *all->calls);
    if (seen == NULL || all->of == NULL || all->calls == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", end_call,
                         group.count);
    for (i = 0; i < group.count && status == SYMWIN_OK; i++) {
        struct messages *m = &all->of[all->n];

        if (!group.calls[i].is_pair || seen[i])
            continue;
        *m = (struct messages){.calls = all->calls + n};
        for (j = i; j < group.count; j++)
            if (group.calls[j].is_pair && group_comm(j) == group_comm(i)) {
                seen[j] = 1;
                all->calls[n++] = &group.calls[j].pair;
            }
        m->n = (size_t)(all->calls + n - m->calls);
        all->n++;
        status = messages_check(m, end_call);
    }
    free(seen);
    return status;
}

/* In turn, as collectives are (launch_in_turn()). */
static symwin_status launch_messages(struct all_messages *all)
{
    symwin_status status = SYMWIN_OK;
    size_t k, left = all->n;

    while (left > 0 && status == SYMWIN_OK)
        for (left = 0, k = 0; k < all->n && status == SYMWIN_OK; k++) {
            if (all->of[k].left)
                status = messages_launch(&all->of[k], end_call);
            left += (size_t)all->of[k].left;
        }
    return status;
}

/* The agreements of one communicator, for the calls of a group. */
struct agreement {
    struct grouped_call *calls; /* the group's */
    size_t count, first;        /* the first call is the communicator's */
    pthread_t thread;
    symwin_status status;
    char text[SW_TEXT_BYTES];
};

static void *agree(void *arg)
{
    struct agreement *a = arg;
    const symwin_comm *comm = a->calls[a->first].request.comm;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    size_t i;

    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    for (i = a->first; i < a->count && a->status == SYMWIN_OK; i++) {
        struct grouped_call *c = &a->calls[i];
        struct sw_request r;

        if (c->is_pair || c->request.comm != comm || !c->agrees)
            continue; /* other communicators' calls are other threads' */
        r = request_of(c, NULL);
        r.seen = &c->seen;
        a->status = sw_request_find(&r, &c->found, NULL);
        c->is_found = a->status == SYMWIN_OK;
        comm->registrations->keeps = 1; /* what calls of the group have found, until the launch */
    }
    comm->registrations->keeps = 0;
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    if (a->status != SYMWIN_OK)
        strncpy(a->text, symwin_last_error(), sizeof a->text - 1);
    return NULL;
}

static int group_is_of_one(void)
{
    size_t i = 1;

    while (i < group.count && group_comm(i) == group_comm(0))
        i++;
    return i == group.count;
}

/* Runs the agreements of all communicators, each in a thread if there are several: an agreement
 * waits for its other ranks, which may be the same thread's. */
static symwin_status agree_all(struct agreement *agreements, size_t n)
{
    symwin_status status = SYMWIN_OK;
    sigset_t signals, before;
    size_t i, started;

    if (n == 1 && group_is_of_one()) {
        (void)agree(agreements);
        return agreements->status;
    }
    sigfillset(&signals); /* they belong to the program's threads */
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    for (started = 0; started < n; started++)
        if (pthread_create(&agreements[started].thread, NULL, agree, &agreements[started]) != 0)
            break;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started < n)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no thread for an agreement of ranks", end_call);
    for (i = 0; i < started; i++) {
        pthread_join(agreements[i].thread, NULL);
        if (status == SYMWIN_OK && agreements[i].status != SYMWIN_OK)
            status = sw_fail(agreements[i].status, "%s", agreements[i].text);
    }
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

/* Finds a call's buffers. `c` has no call of its communicator before it that is to agree, or is to
 * agree as well: what it needs may depend on that. */
static symwin_status find(struct grouped_call *c)
{
    const struct sw_collective *is = &sw_collectives[c->request.collective];
    struct sw_request r = request_of(c, NULL);
    struct sw_parts_bytes bytes = {.part = 0};
    struct sw_table_args table;
    symwin_status status = SYMWIN_OK;

    c->found = sw_call_of(&r);
    if (is->no_data || sw_wide_calls_of(r.comm) != NULL)
        return SYMWIN_OK;
    if (is->by_parts) { /* which are found at the launch: only what was freed meanwhile is new */
        r = request_of(c, &table);
        return sw_parts_find(&r, &bytes);
    }
    if (!c->agrees)
        status = sw_request_find(&r, &c->found, &c->agrees);
    if (status == SYMWIN_OK && c->agrees)
        status = see_capture(c);
    c->is_found = status == SYMWIN_OK && !c->agrees;
    return status;
}

/* The agreement of call i's communicator; n: there is none. */
static size_t agreement_of(const struct agreement *agreements, size_t n, size_t i)
{
    size_t k = 0;

    while (k < n && group_comm(agreements[k].first) != group_comm(i))
        k++;
    return k;
}

/* Finds the buffers of all collectives, and lets all communicators agree on theirs, before anything
 * is launched. */
static symwin_status find_all(void)
{
    struct agreement *agreements = NULL;
    symwin_status status = SYMWIN_OK;
    size_t i, k, n = 0;

    agreements = calloc(group.count, sizeof *agreements);
    if (agreements == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", end_call, group.count);
    for (i = 0; i < group.count && status == SYMWIN_OK; i++) {
        struct grouped_call *c = &group.calls[i];

        if (c->is_pair)
            continue;
        k = agreement_of(agreements, n, i);
        c->agrees = k < n && sw_collectives[c->request.collective].registers != SW_CONNECTS_NEVER;
        status = find(c);
        if (status == SYMWIN_OK && c->agrees && k == n)
            agreements[n++] = (struct agreement){group.calls, group.count, i, 0, SYMWIN_OK, ""};
    }
    if (status == SYMWIN_OK)
        status = agree_all(agreements, n);
    free(agreements);
    return status;
}

/* Launches collective `first`, and those of its communicator after it that go with it. So calls of
 * several communicators may change their order, but all ranks launch them in the same one. */
static symwin_status launch_from(size_t first)
{
    struct grouped_call *at[SW_BATCH_CALLS], *const one = &group.calls[first];
    const int joins = sw_joins(one->request.collective) &&
                      sw_wide_calls_of(one->request.comm) == NULL;
    const struct call *calls[SW_BATCH_CALLS];
    struct sw_table_args table;
    struct sw_request request;
    symwin_status status = SYMWIN_OK;
    size_t n = 0, taken = 0, i;

    if (one->number == 0)
        one->number = 1;
    for (i = first; i < group.count && n < (joins ? SW_BATCH_CALLS : 2); i++) {
        struct grouped_call *c = &group.calls[i];

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
    request = request_of(one, &table);
    return sw_request_run(&request, NULL);
}

/* The next collective of a communicator that is not launched yet. */
struct turn {
    const symwin_comm *comm;
    size_t at; /* group.count: there is none */
};

static void go_on(struct turn *turn)
{
    while (turn->at < group.count &&
           (group.calls[turn->at].is_pair || group.calls[turn->at].is_launched ||
            group.calls[turn->at].request.comm != turn->comm))
        turn->at++;
}

/* One launch of each communicator in turn, so that ranks of one thread get to their calls together:
 * kernels of the first would wait for those of the last, which a full queue would keep away. */
static symwin_status launch_in_turn(void)
{
    struct turn *turns = calloc(group.count, sizeof *turns);
    symwin_status status = SYMWIN_OK;
    size_t i, k, n = 0, left;

    if (turns == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu calls", end_call, group.count);
    for (i = 0; i < group.count; i++) {
        for (k = 0; k < n && turns[k].comm != group.calls[i].request.comm; k++)
            ;
        if (k == n && !group.calls[i].is_pair)
            turns[n++] = (struct turn){group.calls[i].request.comm, i};
    }
    for (left = n; left > 0 && status == SYMWIN_OK;)
        for (left = 0, k = 0; k < n && status == SYMWIN_OK; k++) {
            if (turns[k].at < group.count) {
                status = launch_from(turns[k].at);
                group.calls[turns[k].at].is_launched = 1;
                go_on(&turns[k]);
            }
            left += turns[k].at < group.count;
        }
    free(turns);
    return status;
}

static symwin_status launch(void)
{
    struct all_messages messages = {.n = 0};
    symwin_status status;

    if (group.status != SYMWIN_OK)
        return sw_fail(group.status, "%s: a call of the group failed, and nothing was launched: %s",
                       end_call, group.text);
    if (group.count == 0)
        return SYMWIN_OK;
    status = open_messages(&messages);
    if (status == SYMWIN_OK)
        status = find_all();
    if (status == SYMWIN_OK)
        status = launch_in_turn();
    if (status == SYMWIN_OK)
        status = launch_messages(&messages);
    close_messages(&messages);
    return status;
}

symwin_status symwin_group_begin(void)
{
    const symwin_status status = sw_fork_check("symwin_group_begin");

    if (status == SYMWIN_OK)
        group.depth++;
    return status;
}

symwin_status symwin_group_end(void)
{
    symwin_status status = sw_fork_check(end_call);

    if (status != SYMWIN_OK)
        return status;
    if (group.depth == 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: this thread has no group open; call "
                       "symwin_group_begin() first",
                       end_call);
    if (--group.depth > 0)
        return SYMWIN_OK;
    status = launch();
    empty();
    return status;
}

void sw_grouped_forget(const symwin_comm *comm)
{
    size_t i, kept = 0;

    for (i = 0; i < group.count; i++) {
        if (group_comm(i) != comm)
            group.calls[kept++] = group.calls[i];
    }
    if (kept < group.count)
        (void)note_as(SYMWIN_INVALID, "a communicator was destroyed in the group that uses it");
    group.count = kept;
    if (kept == 0) { /* the thread may never end its group */
        free(group.calls);
        own_calls(NULL);
        group.room = 0;
    }
}
