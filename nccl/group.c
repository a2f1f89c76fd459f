/* Groups. NCCL's own is opened and closed with the program's, and gets at once what this library
 * does not know. Calls are collected, and at the outermost end, of each communicator:
 *
 *   - its collectives are all symwin's, or all NCCL's if one of them is: which calls a group has
 *     of one communicator is equal on all of its ranks, and of all communicators it need not be;
 *   - so are its sends and receives.
 *
 * symwin's are launched first, as one group of symwin, then NCCL's, in their order. Those of
 * communicators over several hosts have calls of NCCL's inside, which would be a part of NCCL's
 * group: a thread launches them, which has none open. */
#include <stdlib.h>

#include "nccl/calls.h"

struct window {
    struct sw_comm *comm;
    void *ptr;
    size_t size;
    ncclWindow_t *handle;
};

/* An operation that is destroyed while calls with it are collected. */
struct op_end {
    struct sw_from from;
    ncclRedOp_t op;
    ncclComm_t comm;
};

/* What a group has of one communicator. */
struct part {
    struct sw_comm *comm; /* a reference; NULL: it was ended in the group, which fails */
    int first;            /* of its calls */
    int has_nccls;        /* a collective was passed on at once: no meeting in this group */
    int is_nccls;         /* its collectives are NCCL's */
    int has_ours;         /* there is a communicator of symwin */
    cudaStream_t lent;    /* for calls on this thread's own default stream; NULL: there are none */
};

/* Of a thread. */
struct group {
    int depth;
    void *library;       /* whose group it is */
    ncclResult_t result; /* of what was passed on at once */
    int has_pairs;
    int ours[2]; /* how many calls are symwin's: on one host, over several */
    struct sw_call *calls;
    struct part *parts; /* in the order of their first calls */
    struct window *windows;
    struct op_end *op_ends;
    int call_count, part_count, window_count, op_end_count;
    int call_room, part_room, window_room, op_end_room;
};

static _Thread_local struct group group;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int has_key;

static void leave_comms(const struct group *g)
{
    int i;

    for (i = 0; i < g->part_count; i++)
        sw_comm_leave(g->parts[i].comm);
    for (i = 0; i < g->window_count; i++)
        sw_comm_leave(g->windows[i].comm);
}

static void free_group(void *data)
{
    struct group *g = data;

    leave_comms(g);
    free(g->calls);
    free(g->parts);
    free(g->windows);
    free(g->op_ends);
    *g = (struct group){0};
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, free_group) == 0;
}

static void *doubled(void *items, int *room, size_t bytes)
{
    const int more = *room > 0 ? 2 * *room : 16;
    void *grown_items = realloc(items, (size_t)more * bytes);

    if (grown_items == NULL)
        return NULL;
    *room = more;
    pthread_once(&key_once, make_key);
    if (has_key)
        (void)pthread_setspecific(key, &group);
    return grown_items;
}

/* Room for one more; NULL: no memory. */
static inline void *grown(void *items, int count, int *room, size_t bytes)
{
    return count < *room ? items : doubled(items, room, bytes);
}

/* Not inline: the compiler would ask again for the thread's variable at each use of the pointer. */
__attribute__((noinline)) struct group *sw_group_of(void *library)
{
    struct group *g = &group;

    return g->depth > 0 && g->library == library ? g : NULL;
}

static ncclResult_t keep(ncclResult_t result)
{
    if (group.result == ncclSuccess && result != ncclInProgress)
        group.result = result;
    return result;
}

ncclResult_t sw_group_fail(void *library, ncclResult_t result)
{
    return sw_group_is_open(library) ? keep(result) : result;
}

struct sw_comm *sw_group_comm(const struct group *g, ncclComm_t handle)
{
    struct sw_comm *comm = g->call_count > 0 ? g->calls[g->call_count - 1].comm : NULL;

    return comm != NULL && atomic_load_explicit(&comm->handle, memory_order_relaxed) == handle
               ? comm
               : NULL;
}

/* Finds the communicator's part, or makes it. -1: no memory. Not inline: it is rare. */
__attribute__((noinline)) static int find_part(struct group *g, struct sw_comm *comm)
{
    struct part *parts;
    int p;

    for (p = 0; p < g->part_count; p++)
        if (g->parts[p].comm == comm)
            return comm->part = p;
    parts = grown(g->parts, g->part_count, &g->part_room, sizeof *g->parts);
    if (parts == NULL)
        return -1;
    sw_comm_stay(comm);
    g->parts = parts;
    g->parts[p] = (struct part){.comm = comm, .first = g->call_count};
    return comm->part = g->part_count++;
}

static inline int part_of(struct group *g, struct sw_comm *comm)
{
    const int p = comm->part;

    return p < g->part_count && g->parts[p].comm == comm ? p : find_part(g, comm);
}

struct sw_call *sw_group_next(struct group *g)
{
    struct sw_call *calls = grown(g->calls, g->call_count, &g->call_room, sizeof *g->calls);

    if (calls == NULL)
        return NULL;
    g->calls = calls;
    return &calls[g->call_count];
}

ncclResult_t sw_group_add(struct group *g, struct sw_call *call)
{
    call->part = g->call_count < g->call_room ? part_of(g, call->comm) : -1;
    if (call->part < 0) {
        sw_call_is_lost(call->comm, ncclSystemError);
        return keep(sw_error(ncclSystemError, "symwin: no host memory for a group of %d calls",
                             g->call_count + 1));
    }
    g->call_count++;
    g->has_pairs |= sw_is_pair(call);
    return ncclSuccess;
}

ncclResult_t sw_group_has_passed(struct group *g, struct sw_call *call, ncclResult_t result)
{
    (void)keep(result);
    if (call->sort != SW_CONFIGURED || call->comm == NULL ||
        (result != ncclSuccess && result != ncclInProgress))
        return result;
    /* It is launched at the group's end, and what comes after it waits for that. */
    call->passed = 1;
    call->config = NULL;
    if (sw_group_add(g, call) != ncclSuccess)
        return g->result;
    g->parts[call->comm->part].has_nccls = 1;
    return result;
}

int sw_group_add_window(struct sw_comm *comm, void *ptr, size_t size, ncclWindow_t *handle)
{
    struct window *windows = grown(group.windows, group.window_count, &group.window_room,
                                   sizeof *group.windows);

    if (windows == NULL)
        return 0;
    group.windows = windows;
    group.windows[group.window_count++] = (struct window){comm, ptr, size, handle};
    return 1;
}

int sw_group_add_op_end(const struct sw_from *from, ncclRedOp_t op, ncclComm_t comm)
{
    struct op_end *ends = group.call_count == 0 ? NULL
                                                : grown(group.op_ends, group.op_end_count,
                                                        &group.op_end_room, sizeof *group.op_ends);

    if (ends == NULL)
        return 0;
    group.op_ends = ends;
    group.op_ends[group.op_end_count++] = (struct op_end){*from, op, comm};
    return 1;
}

/* Its entry would wait for this thread to leave it. The group fails, as one of symwin's does. */
void sw_group_forget(struct sw_comm *comm, ncclComm_t handle)
{
    int i, calls = 0, windows = 0, ends = 0;

    for (i = 0; i < group.call_count; i++)
        if (group.calls[i].comm != comm)
            group.calls[calls++] = group.calls[i];
    for (i = 0; i < group.part_count; i++)
        if (group.parts[i].comm == comm) {
            group.parts[i].comm = NULL;
            sw_comm_leave(comm);
        }
    for (i = 0; i < group.window_count; i++)
        if (group.windows[i].comm != comm)
            group.windows[windows++] = group.windows[i];
        else
            sw_comm_leave(comm);
    for (i = 0; i < group.op_end_count; i++)
        if (group.op_ends[i].comm == handle)
            (void)SW_PASS(&group.op_ends[i].from, ncclRedOpDestroy, (group.op_ends[i].op, handle));
        else
            group.op_ends[ends++] = group.op_ends[i];
    if (calls < group.call_count)
        (void)keep(sw_error(ncclInvalidUsage,
                            "symwin: a communicator was ended in a group that has calls on it"));
    group.call_count = calls;
    group.window_count = windows;
    group.op_end_count = ends;
}

/* ---- at the outermost end ---- */

/* Of several collectives NCCL makes one launch, which may be quicker than symwin's for each. */
static int are_quicker_by_nccl(const struct group *g, int part)
{
    const struct sw_call *call = g->calls + g->parts[part].first;
    const struct sw_call *const end = g->calls + g->call_count;
    struct sw_together t = {.count = 0};

    for (; call < end && !t.is_settled; call++)
        if (call->part == part && !sw_is_pair(call))
            sw_together_add(&t, call->comm, call->kind, call->count, call->type);
    return !sw_together_is_ours(&t, g->parts[part].comm);
}

/* When ranks have met: what a rank finds before that, others may not find. All are NCCL's without
 * a communicator of symwin, which was refused or is not agreed yet, on all ranks. */
static void find_servers(struct group *g)
{
    struct sw_call *const end = g->calls + g->call_count, *call;
    int p, some = 0; /* parts have collectives that are NCCL's */

    for (p = 0; p < g->part_count; p++)
        g->parts[p].has_ours = atomic_load_explicit(&g->parts[p].comm->symwin,
                                                    memory_order_relaxed) != NULL;
    g->ours[0] = g->ours[1] = 0;
    for (call = g->calls; call < end; call++) {
        struct part *part = &g->parts[call->part];
        const int is_ours = part->has_ours && sw_call_is_ours(call);

        call->server = is_ours ? SW_OURS : SW_NCCLS;
        g->ours[call->comm->several_hosts] += is_ours;
        if (!sw_is_pair(call) && call->server == SW_NCCLS)
            part->is_nccls = 1;
    }
    for (p = 0; p < g->part_count; p++) {
        struct part *part = &g->parts[p];

        some |= part->is_nccls = part->is_nccls || are_quicker_by_nccl(g, p);
    }
    for (call = g->calls; call < end && some; call++)
        if (!sw_is_pair(call) && call->server == SW_OURS && g->parts[call->part].is_nccls) {
            call->server = SW_NCCLS;
            g->ours[call->comm->several_hosts]--;
        }
}

/* Whether a part's ranks meet now: it has a collective, and NCCL has none of its calls already,
 * since it would not launch the meeting's own one then. Returns that collective. */
static const struct sw_call *meets(const struct group *g, int part)
{
    const struct part *p = &g->parts[part];
    int i = p->first;

    if (p->has_nccls || !sw_attach_is_due(p->comm))
        return NULL;
    while (i < g->call_count && (g->calls[i].part != part || !sw_call_may_meet(&g->calls[i])))
        i++;
    return i < g->call_count ? &g->calls[i] : NULL;
}

/* For which the ranks meet, in another thread. */
static CUstream stream_to_meet_for(const struct sw_call *call)
{
    cudaStream_t stream = call->stream;

    if (stream == (cudaStream_t)CU_STREAM_PER_THREAD && !sw_order_is_captured(stream) &&
        sw_order_lend(call->comm, &stream) != CUDA_SUCCESS)
        stream = call->stream;
    return (CUstream)stream;
}

/* How many communicators have met. */
static ncclResult_t meet(struct group *g, int *count)
{
    struct sw_comm **comms = NULL;
    ncclResult_t result = ncclSuccess;
    int p;

    *count = 0;
    for (p = 0; p < g->part_count; p++) {
        const struct sw_call *call = meets(g, p);

        if (call == NULL)
            continue;
        if (comms == NULL)
            comms = calloc((size_t)g->part_count, sizeof(struct sw_comm *));
        if (comms == NULL)
            return sw_error(ncclSystemError, "symwin: no host memory");
        call->comm->meets_for = stream_to_meet_for(call);
        comms[(*count)++] = call->comm;
    }
    if (*count > 0)
        result = sw_attach_all(comms, *count);
    free(comms);
    return result;
}

/* Whose each call is. Ranks that have not yet agree first, and make symwin's communicators. */
static ncclResult_t judge(struct group *g)
{
    ncclResult_t result = ncclSuccess;
    int i, count = 1;

    for (i = 0; i < 2 && count > 0 && result == ncclSuccess; i++)
        result = meet(g, &count);
    find_servers(g);
    return result;
}

/* symwin has the sends and receives of a communicator on one stream: that of the first one. */
static cudaStream_t stream_of_pairs(const struct group *g, int which)
{
    int i = 0;

    while (g->calls[i].comm != g->calls[which].comm || !sw_is_pair(&g->calls[i]))
        i++;
    return g->calls[i].stream;
}

/* Whether a call is launched with those of communicators over several hosts, or with the others. */
static int is_among(const struct sw_call *call, int several_hosts)
{
    return call->server == SW_OURS && call->comm->several_hosts == several_hosts;
}

static void keep_first(CUresult *first, CUresult result)
{
    *first = *first != CUDA_SUCCESS ? *first : result;
}

/* What the pair's own stream has comes before the launch, and what follows there after it. */
static CUresult join_pairs(struct group *g, int several_hosts, int after)
{
    CUresult first = CUDA_SUCCESS;
    int i;

    for (i = 0; i < g->call_count; i++) {
        struct sw_call *call = &g->calls[i];

        if (is_among(call, several_hosts) && sw_is_pair(call)) {
            const cudaStream_t stream = stream_of_pairs(g, i);

            if (stream != call->stream)
                keep_first(&first, sw_order_join(call->comm, after ? stream : call->stream,
                                                 after ? call->stream : stream));
        }
    }
    return first;
}

/* Communicators come in one order on all ranks, whatever the order of the calls is, so that their
 * launches do not wait for each other. */
static int compare_places(const void *a, const void *b)
{
    const struct sw_call *one = *(const struct sw_call *const *)a;
    const struct sw_call *two = *(const struct sw_call *const *)b;

    if (one->comm->place != two->comm->place)
        return one->comm->place < two->comm->place ? -1 : 1;
    return one < two ? -1 : one > two;
}

static inline ncclResult_t launch_one(const struct group *g, const struct sw_call *call)
{
    const cudaStream_t stream = sw_is_pair(call) ? stream_of_pairs(g, (int)(call - g->calls))
                                                 : call->stream;

    sw_order_before_ours(call->comm, stream);
    sw_order_after_ours(call->comm);
    return sw_call_serve(call, stream);
}

/* There is one. */
static ncclResult_t launch_only(const struct group *g, int several_hosts)
{
    const struct sw_call *call = g->calls;

    while (!is_among(call, several_hosts))
        call++;
    return launch_one(g, call);
}

/* NULL: no memory. */
static const struct sw_call **sorted(const struct group *g, int several_hosts, int count)
{
    const struct sw_call **calls = calloc((size_t)count, sizeof(struct sw_call *));
    int i, found = 0;

    if (calls == NULL)
        return NULL;
    for (i = 0; i < g->call_count; i++)
        if (is_among(&g->calls[i], several_hosts))
            calls[found++] = &g->calls[i];
    qsort(calls, (size_t)count, sizeof(struct sw_call *), compare_places);
    return calls;
}

/* As one group of symwin. */
static ncclResult_t launch_all(struct group *g, int several_hosts)
{
    const int count = g->ours[several_hosts];
    const struct sw_call **calls = NULL;
    ncclResult_t result = ncclSuccess;
    symwin_status status;
    int i;

    if (g->part_count > 1 && (calls = sorted(g, several_hosts, count)) == NULL)
        return sw_error(ncclSystemError, "symwin: no host memory");
    status = symwin_group_begin();
    for (i = 0; i < (calls != NULL ? count : g->call_count) && status == SYMWIN_OK &&
                result == ncclSuccess;
         i++) {
        const struct sw_call *call = calls != NULL ? calls[i] : &g->calls[i];

        if (is_among(call, several_hosts))
            result = launch_one(g, call);
    }
    if (status == SYMWIN_OK)
        status = symwin_group_end();
    free(calls);
    return result == ncclSuccess && status != SYMWIN_OK ? sw_error_of(status) : result;
}

/* None of them is launched here, and the other ranks do not wait. */
static void lose(const struct group *g, int several_hosts, ncclResult_t result)
{
    int i;

    for (i = 0; i < g->call_count; i++)
        if (is_among(&g->calls[i], several_hosts))
            sw_call_is_lost(g->calls[i].comm, result);
}

static ncclResult_t launch_ours(struct group *g, int several_hosts)
{
    struct sw_call *const end = g->calls + g->call_count, *call;
    ncclResult_t result = ncclSuccess;
    CUresult joined = CUDA_SUCCESS;

    if (g->ours[several_hosts] == 0)
        return ncclSuccess;
    if (g->has_pairs)
        joined = join_pairs(g, several_hosts, 0);
    if (joined == CUDA_SUCCESS)
        result = g->ours[several_hosts] == 1 ? launch_only(g, several_hosts)
                                             : launch_all(g, several_hosts);
    if (g->has_pairs)
        keep_first(&joined, join_pairs(g, several_hosts, 1));
    if (result == ncclSuccess && joined != CUDA_SUCCESS)
        result = sw_order_failed(joined);
    for (call = g->calls; call < end && result == ncclSuccess && sw_setup()->report; call++)
        if (is_among(call, several_hosts))
            sw_report_call(call);
    if (result != ncclSuccess)
        lose(g, several_hosts, result);
    return result;
}

/* NCCL launches the calls of a group together. What is said of one is said of all that are beside
 * it on the same communicator and stream. */
static int are_alike(const struct sw_call *passed, const struct sw_call *other)
{
    return passed->passed && passed->comm == other->comm && passed->stream == other->stream;
}

static void before_nccls(struct group *g, int i)
{
    struct sw_call *call = &g->calls[i];

    /* A configured one went to NCCL before the group's calls of symwin did. */
    if (i > 0 && (call - 1)->sort == SW_PLAIN_CALL && are_alike(call - 1, call))
        call->capture = (call - 1)->capture;
    else
        sw_order_before(call, SW_NCCLS);
}

static int are_all_ours(const struct group *g)
{
    return g->ours[0] + g->ours[1] == g->call_count;
}

/* After a failure no more are passed. */
static ncclResult_t pass_nccls(struct group *g)
{
    ncclResult_t result = ncclSuccess;
    int i;

    if (are_all_ours(g))
        return ncclSuccess;
    for (i = 0; i < g->call_count; i++) {
        struct sw_call *call = &g->calls[i];

        if (call->passed || call->server == SW_OURS)
            continue;
        if (result == ncclSuccess) {
            before_nccls(g, i);
            result = sw_error_is_nccls(sw_call_pass(call));
            if (result == ncclInProgress)
                result = ncclSuccess;
        }
        call->passed = result == ncclSuccess;
    }
    return result;
}

/* `result`: of NCCL's group. */
static void after_nccls(struct group *g, ncclResult_t result)
{
    int i;

    if (are_all_ours(g))
        return;
    for (i = 0; i < g->call_count; i++) {
        struct sw_call *call = &g->calls[i];

        if (!call->passed)
            continue;
        if (i + 1 == g->call_count || !are_alike(call + 1, call))
            sw_order_after(call, SW_NCCLS, result);
        if (call->sort != SW_CONFIGURED) /* those are in the report */
            sw_report_call(call);
    }
}

/* Those over several hosts. */
struct far {
    struct group *group;
    ncclResult_t result;
    pthread_t thread;
};

static void *far_main(void *data)
{
    struct far *far = data;

    far->result = launch_ours(far->group, 1);
    return NULL;
}

/* This thread's own default stream is another one in that thread: calls on it are launched on one
 * of the communicator's, which comes after it, */
static CUresult lend_streams(struct group *g)
{
    CUresult result = CUDA_SUCCESS;
    int i;

    for (i = 0; i < g->call_count && result == CUDA_SUCCESS; i++) {
        struct sw_call *call = &g->calls[i];
        struct part *part = &g->parts[call->part];

        if (!is_among(call, 1) || call->stream != (cudaStream_t)CU_STREAM_PER_THREAD)
            continue;
        if (part->lent == NULL)
            result = sw_order_lend(call->comm, &part->lent);
        if (result == CUDA_SUCCESS)
            call->stream = part->lent;
    }
    return result;
}

/* ... and before what follows there. */
static CUresult take_streams_back(const struct group *g)
{
    CUresult first = CUDA_SUCCESS;
    int p;

    for (p = 0; p < g->part_count; p++)
        if (g->parts[p].lent != NULL)
            keep_first(&first, sw_order_join(g->parts[p].comm, g->parts[p].lent,
                                             (cudaStream_t)CU_STREAM_PER_THREAD));
    return first;
}

static ncclResult_t launch_far(struct group *g)
{
    struct far far = {.group = g, .result = ncclSuccess};
    CUresult joined;

    if (g->ours[1] == 0)
        return ncclSuccess;
    joined = lend_streams(g);
    if (joined == CUDA_SUCCESS && sw_comm_begin_thread(&far.thread, far_main, &far))
        pthread_join(far.thread, NULL);
    else if (joined == CUDA_SUCCESS)
        far.result = sw_error(ncclSystemError, "symwin: no thread is left");
    keep_first(&joined, take_streams_back(g));
    if (far.result == ncclSuccess && joined != CUDA_SUCCESS)
        far.result = sw_order_failed(joined);
    if (far.result != ncclSuccess)
        lose(g, 1, far.result);
    return far.result;
}

/* What was collected, before NCCL's group ends. After a failure nothing is launched, as in NCCL. */
static ncclResult_t launch(struct group *g)
{
    ncclResult_t ours = g->result, nccls;

    if (ours == ncclSuccess)
        ours = judge(g);
    if (ours != ncclSuccess)
        return ours;
    ours = launch_ours(g, 0);
    if (ours == ncclSuccess)
        ours = launch_far(g);
    else
        lose(g, 1, ours);
    nccls = pass_nccls(g);
    return ours != ncclSuccess ? ours : nccls;
}

/* Each communicator's in a thread, in their order: symwin's registration waits for the other ranks,
 * which this thread may drive too. */
struct adding {
    struct group *group;
    struct sw_comm *comm;
    pthread_t thread;
    int threaded;
};

static void *adding_main(void *data)
{
    const struct adding *adding = data;
    const struct group *g = adding->group;
    int i;

    for (i = 0; i < g->window_count; i++)
        if (g->windows[i].comm == adding->comm)
            sw_window_add(adding->comm, g->windows[i].ptr, g->windows[i].size,
                          *g->windows[i].handle);
    return NULL;
}

/* Waits for NCCL's, of communicators that do not block. */
static int are_windows_there(const struct group *g)
{
    int i = 0;

    while (i < g->window_count && sw_meet_launched(g->windows[i].comm))
        i++;
    return i == g->window_count;
}

static void add_windows(struct group *g)
{
    struct adding *all;
    int i, k, count = 0;

    if (g->window_count == 0)
        return;
    all = calloc((size_t)g->window_count + 1, sizeof *all);
    for (i = 0; i < g->window_count && all == NULL; i++)
        sw_window_is_lost(g->windows[i].comm);
    for (i = 0; i < g->window_count && all != NULL; i++) {
        for (k = 0; k < count && all[k].comm != g->windows[i].comm; k++)
            ;
        if (k == count)
            all[count++] = (struct adding){.group = g, .comm = g->windows[i].comm};
    }
    for (k = 1; k < count; k++)
        all[k].threaded = sw_comm_begin_thread(&all[k].thread, adding_main, &all[k]);
    for (k = 0; k < count; k++)
        if (!all[k].threaded)
            (void)adding_main(&all[k]);
    for (k = 0; k < count; k++)
        if (all[k].threaded)
            pthread_join(all[k].thread, NULL);
    free(all);
}

static void leave_all(struct group *g)
{
    int i;

    leave_comms(g);
    for (i = 0; i < g->op_end_count; i++)
        (void)SW_PASS(&g->op_ends[i].from, ncclRedOpDestroy,
                      (g->op_ends[i].op, g->op_ends[i].comm));
    g->call_count = g->part_count = g->window_count = g->op_end_count = 0;
}

static ncclResult_t end(struct group *g, const struct sw_from *from)
{
    ncclResult_t launched = launch(g), result;

    g->depth = 0; /* what follows is no part of it */
    result = sw_error_is_nccls(SW_PASS(from, ncclGroupEnd, ()));
    if (result == ncclSuccess || result == ncclInProgress)
        after_nccls(g, result);
    if (result == ncclSuccess || (result == ncclInProgress && are_windows_there(g)))
        add_windows(g); /* whatever this rank's own launch came to */
    leave_all(g);
    return launched != ncclSuccess ? launched : result;
}

/* ---- exported functions ---- */

static ncclResult_t group_start(const struct sw_from *from)
{
    const ncclResult_t result = sw_error_is_nccls(SW_PASS(from, ncclGroupStart, ()));

    if (from->inside || result != ncclSuccess)
        return result;
    if (group.depth == 0) {
        group.library = from->library;
        group.result = ncclSuccess;
        group.has_pairs = 0;
        group.ours[0] = group.ours[1] = 0;
    }
    if (group.library == from->library)
        group.depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(const struct sw_from *from)
{
    struct group *g = from->inside ? NULL : sw_group_of(from->library);

    if (g == NULL)
        return SW_PASS(from, ncclGroupEnd, ());
    if (g->depth == 1)
        return end(g, from);
    g->depth--;
    return sw_error_is_nccls(SW_PASS(from, ncclGroupEnd, ()));
}

ncclResult_t ncclGroupStart(void)
{
    struct sw_from room;

    return group_start(SW_FROM(ncclGroupStart, &room));
}

ncclResult_t pncclGroupStart(void)
{
    struct sw_from room;

    return group_start(SW_FROM(pncclGroupStart, &room));
}

ncclResult_t ncclGroupEnd(void)
{
    struct sw_from room;

    return group_end(SW_FROM(ncclGroupEnd, &room));
}

ncclResult_t pncclGroupEnd(void)
{
    struct sw_from room;

    return group_end(SW_FROM(pncclGroupEnd, &room));
}

/* Nothing is launched: NCCL tells what its calls would take. */
SW_DEFINE(ncclGroupSimulateEnd, (void *info), (info))
{
    int i;

    if (!from->inside && sw_group_is_open(from->library) && --group.depth == 0) {
        for (i = 0; i < group.call_count; i++)
            if (!group.calls[i].passed)
                (void)sw_call_pass(&group.calls[i]);
        leave_all(&group);
    }
    return sw_error_is_nccls(SW_PASS(from, ncclGroupSimulateEnd, (info)));
}
