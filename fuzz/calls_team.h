/* Ranks as threads for fuzz/calls.c: each gets one public call, and all call at the same time.
 * Checks that hold for all calls are here: the status is one that the model expects; a failure
 * names the call in a sentence and leaves the out-pointer alone; success leaves the last error
 * alone. Before a collective, a send or a receive, each rank asks what it would launch. */
#ifndef SYMWIN_FUZZ_CALLS_TEAM_H
#define SYMWIN_FUZZ_CALLS_TEAM_H

#include <pthread.h>
#include <sched.h>

#include "fuzz.h"
#include "kernels/pair_layout.h"
#include "src/collective/collective.h"
#include "src/collective/table.h"

enum { RANKS = 3, PAIR = 2 };

#define ONLY(status) (1u << (status))
#define OK_ONLY ONLY(SYMWIN_OK)
#define INVALID_ONLY ONLY(SYMWIN_INVALID)

/* Beside the collectives: in a group, a rank sends to another one and receives from a third. */
enum { PAIRS = SW_COLLECTIVES };

static const struct sw_algorithm pairs_algos[SW_ALGOS] = {
    [SYMWIN_ALGO_ONESHOT] = {.chosen = SW_CHOSEN}};
static const struct sw_collective pairs_shape = {.call = "symwin_group_end", .algos = pairs_algos};

static const struct sw_collective *shape_of(int collective)
{
    return collective == PAIRS ? &pairs_shape : &sw_collectives[collective];
}

enum call_kind {
    CALL_NONE, /* this rank makes no call */
    CALL_ALLOC,
    CALL_FREE,
    CALL_MEM_QUERY,
    CALL_EXPORT,
    CALL_IMPORT,
    CALL_ID_CREATE,
    CALL_ID_RELEASE,
    CALL_COMM_CREATE,
    CALL_COMM_SPLIT,
    CALL_COMM_DESTROY,
    CALL_COMM_QUERY,
    CALL_COMM_CHECK,
    CALL_COMM_ABORT,
    CALL_REGISTER,
    CALL_DEREGISTER,
    CALL_WINDOW_QUERY,
    CALL_PEER_POINTER,
    CALL_MULTICAST_POINTER,
    CALL_FIND,
    CALL_COLLECTIVE,
    CALL_ENTER,
    CALL_LEAVE,
    CALL_RANGE_QUERY,
    CALL_CAPTURE, /* of collectives, which make a graph */
    CALLS
};

static const char *const call_names[CALLS] = {
    [CALL_NONE] = "",
    [CALL_ALLOC] = "symwin_mem_alloc",
    [CALL_FREE] = "symwin_mem_free",
    [CALL_MEM_QUERY] = "symwin_mem_query",
    [CALL_EXPORT] = "symwin_mem_export",
    [CALL_IMPORT] = "symwin_mem_import",
    [CALL_ID_CREATE] = "symwin_unique_id_create",
    [CALL_ID_RELEASE] = "symwin_unique_id_release",
    [CALL_COMM_CREATE] = "symwin_comm_create",
    [CALL_COMM_SPLIT] = "symwin_comm_",
    [CALL_COMM_DESTROY] = "symwin_comm_destroy",
    [CALL_COMM_QUERY] = "symwin_comm_query",
    [CALL_COMM_CHECK] = "symwin_comm_check",
    [CALL_COMM_ABORT] = "symwin_comm_abort",
    [CALL_REGISTER] = "symwin_window_register",
    [CALL_DEREGISTER] = "symwin_window_deregister",
    [CALL_WINDOW_QUERY] = "symwin_window_query",
    [CALL_PEER_POINTER] = "symwin_window_peer_pointer",
    [CALL_MULTICAST_POINTER] = "symwin_window_multicast_pointer",
    [CALL_FIND] = "symwin_window_find",
    [CALL_ENTER] = "symwin_register",
    [CALL_LEAVE] = "symwin_deregister",
    [CALL_RANGE_QUERY] = "symwin_registration_query",
};

union result {
    void *pointer;
    symwin_comm *comm;
    symwin_window *window;
    symwin_registration *registration;
    symwin_mem_info memory;
    symwin_mem_handle handle;
    symwin_comm_info about;
    symwin_window_info view;
    symwin_registration_info range;
    symwin_unique_id id;
    unsigned char bytes[296];
};
_Static_assert(sizeof(union result) == 296, "bytes covers it");

/* What a query says of a call: of a collective, or of a send or a receive. */
struct answer {
    symwin_status got;
    symwin_collective_info call;
    symwin_message_info message;
};

/* The parts of a buffer whose lengths differ. */
struct lengths {
    uint64_t counts[RANKS], places[RANKS];
};

/* A further call of a group, as the fields of the same names of struct call say. */
enum { MEMBERS = 4 };
struct member {
    int collective, root;
    size_t count;
    unsigned type, op;
    symwin_algo algo;
    void *in, *out;
    struct lengths parts[2];
    char *table;
    int chained; /* it reads what the call before it has written */
    int again;   /* it is the planned call once more, perhaps by another algorithm */
};

/* One rank's call: arguments, allowed results, result. */
struct call {
    enum call_kind kind;
    unsigned want; /* 1 << status for each allowed status */
    unsigned asks; /* the same for the query ahead of a collective */
    symwin_comm *comm;
    symwin_window *window;
    symwin_registration *registration;
    void *ptr, *out;
    const symwin_mem_handle *handle;
    symwin_unique_id id;
    size_t bytes, offset;
    unsigned flags, type, op;
    int collective; /* symwin_collective, or PAIRS */
    int root;       /* of pairs: how far from the sender the receiver is */
    int grouped;
    int member_count; /* of its group, beside itself */
    struct member members[MEMBERS];
    int ends_early;          /* behind its group it makes the call that the others do not make */
    struct lengths parts[2]; /* of `ptr` and `out` */
    char *table;             /* the same in device memory; NULL: passed in host memory */
    int device, rank, nranks, no_result, no_id;
    int settles;  /* registering: drops ended graphs' holds, also if it fails */
    int captures; /* number of collectives */
    symwin_comm_options options;
    symwin_collective_options how;
    struct CUstream_st *stream;

    symwin_status got;
    union result result;
    CUgraph graph; /* from a capture, also a failed one */
    struct answer answers[2];
    unsigned blocks, threads; /* of the last kernel that the call has launched; 0: none */
};

/* Where the result goes; NULL for a call that must be refused for that. */
#define RESULT(member) (c->no_result ? NULL : &c->result.member)

static symwin_status perform_memory(struct call *c)
{
    switch (c->kind) {
    case CALL_ALLOC:
        return symwin_mem_alloc(c->device, c->bytes, c->flags, RESULT(pointer));
    case CALL_FREE:
        return symwin_mem_free(c->ptr);
    case CALL_MEM_QUERY:
        return symwin_mem_query(c->ptr, RESULT(memory));
    case CALL_EXPORT:
        return symwin_mem_export(c->ptr, c->type, RESULT(handle));
    case CALL_IMPORT:
        return symwin_mem_import(c->device, c->handle, RESULT(pointer));
    default:
        abort();
    }
}

static symwin_status perform_comm(struct call *c)
{
    switch (c->kind) {
    case CALL_ID_CREATE:
        return symwin_unique_id_create(RESULT(id));
    case CALL_ID_RELEASE:
        return symwin_unique_id_release(c->no_id ? NULL : &c->id);
    case CALL_COMM_CREATE:
        return symwin_comm_create(c->no_id ? NULL : &c->id, c->nranks, c->rank, c->device,
                                  &c->options, RESULT(comm));
    case CALL_COMM_SPLIT:
        return symwin_comm_split(c->comm, c->nranks, c->rank, &c->options, RESULT(comm));
    case CALL_COMM_DESTROY:
        symwin_comm_destroy(c->comm);
        return SYMWIN_OK;
    case CALL_COMM_QUERY:
        return symwin_comm_query(c->comm, RESULT(about));
    case CALL_COMM_CHECK:
        return symwin_comm_check(c->comm);
    case CALL_COMM_ABORT:
        return symwin_comm_abort(c->comm);
    default:
        return perform_memory(c);
    }
}

/* The status of the group is that of its first call that fails. */
static symwin_status collect_pairs(const struct call *c)
{
    const int own = c->rank, n = c->nranks, k = c->root;
    const int valid = k >= 0 && k < n;

    (void)symwin_send_with(c->comm, c->ptr, c->bytes, (symwin_type)c->type,
                           valid ? (own + k) % n : k, &c->how, c->stream);
    return symwin_recv_with(c->comm, c->out, c->bytes, (symwin_type)c->type,
                            valid ? (own + n - k) % n : k, &c->how, c->stream);
}

/* The parts of `ptr`, or of `out`. */
static symwin_parts parts_of(const struct call *c, int b)
{
    const int last = c->nranks - 1;
    const char *counts, *places;

    if (c->table == NULL)
        return (symwin_parts){.counts = c->parts[b].counts};
    counts = c->table + (size_t)b * sizeof c->parts[0];
    places = counts + sizeof c->parts[0].counts;
    return (symwin_parts){(const uint64_t *)(const void *)counts,
                          (const uint64_t *)(const void *)places,
                          c->parts[b].places[last] + c->parts[b].counts[last], 1};
}

static symwin_status collect_alone(const struct call *c)
{
    const symwin_parts in = parts_of(c, 0), out = parts_of(c, 1);
    const symwin_type type = (symwin_type)c->type;
    const symwin_op op = (symwin_op)c->op;

    switch (c->collective) {
    case SYMWIN_ALLREDUCE:
        return symwin_allreduce_with(c->comm, c->ptr, c->out, c->bytes, type, op, &c->how,
                                     c->stream);
    case SYMWIN_ALLGATHER:
        return symwin_allgather_with(c->comm, c->ptr, c->out, c->bytes, type, &c->how, c->stream);
    case SYMWIN_ALLTOALL:
        return symwin_alltoall_with(c->comm, c->ptr, c->out, c->bytes, type, &c->how, c->stream);
    case SYMWIN_BROADCAST:
        return symwin_broadcast_with(c->comm, c->ptr, c->out, c->bytes, type, c->root, &c->how,
                                     c->stream);
    case SYMWIN_GATHER:
        return symwin_gather_with(c->comm, c->ptr, c->out, c->bytes, type, c->root, &c->how,
                                  c->stream);
    case SYMWIN_SCATTER:
        return symwin_scatter_with(c->comm, c->ptr, c->out, c->bytes, type, c->root, &c->how,
                                   c->stream);
    case SYMWIN_REDUCE_SCATTER:
        return symwin_reduce_scatter_with(c->comm, c->ptr, c->out, c->bytes, type, op, &c->how,
                                          c->stream);
    case SYMWIN_REDUCE:
        return symwin_reduce_with(c->comm, c->ptr, c->out, c->bytes, type, op, c->root, &c->how,
                                  c->stream);
    case SYMWIN_BARRIER:
        return symwin_barrier_with(c->comm, &c->how, c->stream);
    case SYMWIN_ALLTOALLV:
        return symwin_alltoallv_with(c->comm, c->ptr, &in, c->out, &out, type, &c->how, c->stream);
    case SYMWIN_ALLGATHERV:
        return symwin_allgatherv_with(c->comm, c->ptr, c->out, &out, type, &c->how, c->stream);
    case SYMWIN_REDUCE_SCATTERV:
        return symwin_reduce_scatterv_with(c->comm, c->ptr, &in, c->out, type, op, &c->how,
                                           c->stream);
    default:
        return collect_pairs(c);
    }
}

/* The group's end has its status. */
static void collect_member(const struct call *c, const struct member *m)
{
    struct call one = *c;

    one.collective = m->collective;
    one.root = m->root;
    one.bytes = m->count;
    one.type = m->type;
    one.op = m->op;
    one.how.algo = m->algo;
    one.ptr = m->in;
    one.out = m->out;
    memcpy(one.parts, m->parts, sizeof one.parts);
    one.table = m->table;
    (void)collect_alone(&one);
}

static symwin_status collect(const struct call *c)
{
    symwin_status status;
    int i;

    if (!c->grouped)
        return collect_alone(c);
    fuzz_must(symwin_group_begin() == SYMWIN_OK, "%s", symwin_last_error());
    (void)collect_alone(c);
    for (i = 0; i < c->member_count; i++)
        collect_member(c, &c->members[i]);
    status = symwin_group_end();
    if (c->ends_early && status == SYMWIN_OK)
        status = symwin_barrier(c->comm, c->stream);
    return status;
}

static symwin_status capture(struct call *c)
{
    symwin_status status = SYMWIN_OK;
    struct sw_scope scope;
    int i;

    fuzz_must(sw_scope_enter(c->device, &scope) == SYMWIN_OK, "%s", symwin_last_error());
    fuzz_must(sw_drv.cuStreamBeginCapture(c->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                  CUDA_SUCCESS,
              "no capture");
    for (i = 0; i < c->captures && status == SYMWIN_OK; i++) {
        status = collect(c);
        /* What the library asked the device in one call must have arrived in the next. */
        while (status == SYMWIN_OK && c->comm->registrations->copying &&
               sw_drv.cuStreamQuery(c->comm->registrations->side) == CUDA_ERROR_NOT_READY)
            sched_yield();
    }
    fuzz_must(sw_drv.cuStreamEndCapture(c->stream, &c->graph) == CUDA_SUCCESS,
              "a capture has failed");
    sw_scope_leave(&scope);
    return status;
}

static symwin_status perform(struct call *c)
{
    switch (c->kind) {
    case CALL_REGISTER:
        return symwin_window_register(c->comm, c->ptr, c->bytes, c->flags, RESULT(window));
    case CALL_DEREGISTER:
        return symwin_window_deregister(c->comm, c->window);
    case CALL_WINDOW_QUERY:
        return symwin_window_query(c->comm, c->window, RESULT(view));
    case CALL_PEER_POINTER:
        return symwin_window_peer_pointer(c->comm, c->window, c->rank, c->offset, RESULT(pointer));
    case CALL_MULTICAST_POINTER:
        return symwin_window_multicast_pointer(c->comm, c->window, c->offset, RESULT(pointer));
    case CALL_FIND:
        return symwin_window_find(c->comm, c->ptr, c->bytes, RESULT(window));
    case CALL_COLLECTIVE:
        return collect(c);
    case CALL_ENTER:
        return symwin_register(c->comm, c->ptr, c->bytes, RESULT(registration));
    case CALL_LEAVE:
        return symwin_deregister(c->comm, c->registration);
    case CALL_RANGE_QUERY:
        return symwin_registration_query(c->comm, c->registration, RESULT(range));
    case CALL_CAPTURE:
        return capture(c);
    default:
        return perform_comm(c);
    }
}

static const char *name_of(const struct call *c)
{
    const int collects = c->kind == CALL_COLLECTIVE || c->kind == CALL_CAPTURE;

    return collects ? shape_of(c->collective)->call : call_names[c->kind];
}

/* Whether the last error has the name of the call, or of one of its group. */
static int is_named(const struct call *c)
{
    const char *text = symwin_last_error();
    int i;

    if (strstr(text, name_of(c)) != NULL || (c->ends_early && strstr(text, "symwin_barrier")))
        return 1;
    for (i = 0; i < c->member_count; i++)
        if (strstr(text, shape_of(c->members[i].collective)->call) != NULL)
            return 1;
    return c->member_count > 0 && strstr(text, "symwin_group_end") != NULL;
}

/* ---- queries ---- */

static _Thread_local struct call *launching; /* NULL: what is launched does not count */

/* In the place of the driver's function. */
static CUresult note_launch(const CUlaunchConfig *config, CUfunction function, void **params,
                            void **extra)
{
    if (launching != NULL) {
        launching->blocks = config->gridDimX;
        launching->threads = config->blockDimX;
    }
    return sw_emu_cuLaunchKernelEx(config, function, params, extra);
}

static int is_asked_about(const struct call *c)
{
    return c->kind == CALL_COLLECTIVE || c->kind == CALL_CAPTURE;
}

static symwin_status ask_once(const struct call *c, int receives, struct answer *a)
{
    const symwin_parts in = parts_of(c, 0), out = parts_of(c, 1);
    const symwin_type type = (symwin_type)c->type;
    const symwin_op op = (symwin_op)c->op;
    const int n = c->nranks, k = c->root;
    const int peer = k < 0 || k >= n ? k : (c->rank + (receives ? n - k : k)) % n;
    symwin_collective_info *const info = c->no_result ? NULL : &a->call;

    switch (c->collective) {
    case SYMWIN_ALLREDUCE:
        return symwin_allreduce_query(c->comm, c->ptr, c->out, c->bytes, type, op, &c->how, info);
    case SYMWIN_ALLGATHER:
        return symwin_allgather_query(c->comm, c->ptr, c->out, c->bytes, type, &c->how, info);
    case SYMWIN_ALLTOALL:
        return symwin_alltoall_query(c->comm, c->ptr, c->out, c->bytes, type, &c->how, info);
    case SYMWIN_BROADCAST:
        return symwin_broadcast_query(c->comm, c->ptr, c->out, c->bytes, type, k, &c->how, info);
    case SYMWIN_GATHER:
        return symwin_gather_query(c->comm, c->ptr, c->out, c->bytes, type, k, &c->how, info);
    case SYMWIN_SCATTER:
        return symwin_scatter_query(c->comm, c->ptr, c->out, c->bytes, type, k, &c->how, info);
    case SYMWIN_REDUCE_SCATTER:
        return symwin_reduce_scatter_query(c->comm, c->ptr, c->out, c->bytes, type, op, &c->how,
                                           info);
    case SYMWIN_REDUCE:
        return symwin_reduce_query(c->comm, c->ptr, c->out, c->bytes, type, op, k, &c->how, info);
    case SYMWIN_BARRIER:
        return symwin_barrier_query(c->comm, &c->how, info);
    case SYMWIN_ALLTOALLV:
        return symwin_alltoallv_query(c->comm, c->ptr, &in, c->out, &out, type, &c->how, info);
    case SYMWIN_ALLGATHERV:
        return symwin_allgatherv_query(c->comm, c->ptr, c->out, &out, type, &c->how, info);
    case SYMWIN_REDUCE_SCATTERV:
        return symwin_reduce_scatterv_query(c->comm, c->ptr, &in, c->out, type, op, &c->how, info);
    default:
        return (receives ? symwin_recv_query
                         : symwin_send_query)(c->comm, receives ? c->out : c->ptr, c->bytes, type,
                                              peer, &c->how, c->no_result ? NULL : &a->message);
    }
}

/* A query fails as its call would without an agreement. Of a send and a receive of one rank
 * together, the group may fail where each alone does not. */
static void ask(struct call *c)
{
    const int pairs = c->collective == PAIRS;
    unsigned want = c->no_result ? INVALID_ONLY : c->asks, got = 0;
    int i;

    if (c->no_result && (c->asks & OK_ONLY) == 0)
        want |= c->asks;
    if (c->grouped)
        fuzz_must(symwin_group_begin() == SYMWIN_OK, "%s", symwin_last_error());
    for (i = 0; i < 1 + pairs; i++) {
        static const char *const of_pairs[2] = {"symwin_send_query", "symwin_recv_query"};
        const char *const name = pairs ? of_pairs[i] : shape_of(c->collective)->query;
        struct answer *a = &c->answers[i], before;

        memset(a, 0xa5, sizeof *a);
        before = *a;
        a->got = before.got = ask_once(c, i, a);
        got |= a->got != SYMWIN_OK ? ONLY(a->got) : 0;
        fuzz_must(a->got == SYMWIN_OK || (memcmp(a, &before, sizeof before) == 0 &&
                                          strstr(symwin_last_error(), name) != NULL),
                  "%s fails, and sets its result or says: %s", name, symwin_last_error());
    }
    fuzz_must(!c->grouped || symwin_group_end() == SYMWIN_OK, "queries are in the group");
    if (got == 0)
        got = OK_ONLY;
    if (pairs && c->root == 0 && got == OK_ONLY)
        got |= INVALID_ONLY;
    fuzz_must((got & want) != 0, "%s: queries give 0x%x, which is none of 0x%x: %s",
              shape_of(c->collective)->call, got, want, symwin_last_error());
}

/* ---- one call ---- */

/* Makes the call, and checks what holds for all calls. */
static void make(struct call *c)
{
    const char *name = name_of(c);
    char before[SW_TEXT_BYTES];
    size_t i;

    if (c->kind == CALL_NONE)
        return;
    if (is_asked_about(c))
        ask(c);
    memset(&c->result, 0xa5, sizeof c->result);
    snprintf(before, sizeof before, "%s", symwin_last_error());
    launching = c;
    c->got = perform(c);
    launching = NULL;
    fuzz_must(c->got >= SYMWIN_OK && c->got <= SYMWIN_STATUS_LAST, "%s: status %d", name, c->got);
    fuzz_must((c->want >> c->got & 1) != 0, "%s: %s, which is none of 0x%x: %s", name,
              symwin_status_name(c->got), c->want, c->got == SYMWIN_OK ? "" : symwin_last_error());
    if (c->got == SYMWIN_OK) {
        fuzz_must(strcmp(before, symwin_last_error()) == 0, "%s succeeds and says: %s", name,
                  symwin_last_error());
        return;
    }
    fuzz_must(is_named(c), "%s fails and says: %s", name, symwin_last_error());
    for (i = 0; i < sizeof c->result; i++)
        fuzz_must(c->result.bytes[i] == 0xa5, "%s fails and sets its result", name);
}

/* ---- threads ---- */

/* Threads live from input to input: one per rank but the first, which is the caller, and two
 * more. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct call *work[RANKS + PAIR]; /* NULL: nothing to do */
    int started;
} team = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *team_main(void *arg)
{
    struct call **work = arg;

    pthread_mutex_lock(&team.mutex);
    for (;;) {
        struct call *c = *work;

        if (c == NULL) {
            pthread_cond_wait(&team.changed, &team.mutex);
            continue;
        }
        pthread_mutex_unlock(&team.mutex);
        make(c);
        pthread_mutex_lock(&team.mutex);
        *work = NULL;
        pthread_cond_broadcast(&team.changed);
    }
    return NULL;
}

static void team_start(void)
{
    int r;

    for (r = 1; r < RANKS + PAIR && !team.started; r++) {
        pthread_t thread;

        fuzz_must(pthread_create(&thread, NULL, team_main, &team.work[r]) == 0, "no thread");
        pthread_detach(thread);
    }
    team.started = 1;
}

static void team_wait(void)
{
    int r;

    pthread_mutex_lock(&team.mutex);
    for (r = 1; r < RANKS + PAIR; r++)
        while (team.work[r] != NULL)
            pthread_cond_wait(&team.changed, &team.mutex);
    pthread_mutex_unlock(&team.mutex);
}

/* All ranks make their calls at the same time. */
static void team_make(struct call calls[RANKS], int nranks)
{
    int r;

    pthread_mutex_lock(&team.mutex);
    for (r = 1; r < nranks; r++)
        team.work[r] = calls[r].kind != CALL_NONE ? &calls[r] : NULL;
    pthread_cond_broadcast(&team.changed);
    pthread_mutex_unlock(&team.mutex);
    make(&calls[0]);
    team_wait();
}

/* The same, but two threads make one rank's call. While the other ranks stay away, one of the two
 * is inside, the other is refused, and so is `tried`. */
static void team_make_twice(struct call calls[RANKS], int nranks, int rank, struct call *tried)
{
    struct call pair[PAIR] = {calls[rank], calls[rank]};
    int refused, r;

    for (r = 0; r < PAIR; r++)
        pair[r].want |= 1u << SYMWIN_BUSY;
    pthread_mutex_lock(&team.mutex);
    for (r = 0; r < PAIR; r++)
        team.work[RANKS + r] = &pair[r];
    pthread_cond_broadcast(&team.changed);
    while (team.work[RANKS] != NULL && team.work[RANKS + 1] != NULL)
        pthread_cond_wait(&team.changed, &team.mutex);
    refused = team.work[RANKS] != NULL;
    pthread_mutex_unlock(&team.mutex);
    fuzz_must(pair[refused].got == SYMWIN_BUSY, "%s: %s, although the other ranks stay away",
              name_of(&pair[refused]), symwin_status_name(pair[refused].got));
    make(tried);
    calls[rank].kind = CALL_NONE;
    team_make(calls, nranks);
    calls[rank] = pair[!refused];
    fuzz_must(calls[rank].got != SYMWIN_BUSY, "%s: both threads are refused",
              name_of(&calls[rank]));
}

#endif
