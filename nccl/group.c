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

/* Of a thread. */
struct group {
    int depth;
    unsigned long long number;
    void *library;       /* whose group it is */
    ncclResult_t result; /* of what was passed on at once */
    int comms_differ;    /* calls are of several communicators */
    int has_pairs;
    int far_is_late; /* calls over several hosts come after NCCL's group */
    struct sw_call *calls;
    struct window *windows;
    struct op_end *op_ends;
    int call_count, window_count, op_end_count;
    int call_room, window_room, op_end_room;
};

static _Thread_local struct group group;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int has_key;

static void free_group(void *data)
{
    struct group *g = data;
    int i;

    for (i = 0; i < g->call_count; i++)
        sw_comm_leave(g->calls[i].comm);
    for (i = 0; i < g->window_count; i++)
        sw_comm_leave(g->windows[i].comm);
    free(g->calls);
    free(g->windows);
    free(g->op_ends);
    *g = (struct group){0};
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, free_group) == 0;
}

/* Room for one more. */
static void *grown(void *items, int count, int *room, size_t bytes)
{
    const int more = *room > 0 ? 2 * *room : 16;
    void *grown_items;

    if (count < *room)
        return items;
    grown_items = realloc(items, (size_t)more * bytes);
    if (grown_items == NULL)
        return NULL;
    *room = more;
    pthread_once(&key_once, make_key);
    if (has_key)
        (void)pthread_setspecific(key, &group);
    return grown_items;
}

int sw_group_is_open(void *library)
{
    return group.depth > 0 && group.library == library;
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

ncclResult_t sw_group_add(const struct sw_call *call)
{
    struct sw_call *calls = grown(group.calls, group.call_count, &group.call_room,
                                  sizeof *group.calls);

    if (calls == NULL) {
        sw_comm_leave(call->comm);
        return keep(sw_error(ncclSystemError, "symwin: no host memory for a group of %d calls",
                             group.call_count + 1));
    }
    group.calls = calls;
    group.calls[group.call_count++] = *call;
    if (call->comm != group.calls[0].comm)
        group.comms_differ = 1;
    group.has_pairs |= sw_is_pair(call);
    if (call->comm->group != group.number) {
        call->comm->group = group.number;
        call->comm->group_has_nccls = 0;
    }
    return ncclSuccess;
}

ncclResult_t sw_group_has_passed(struct sw_call *call, ncclResult_t result, int *kept)
{
    (void)keep(result);
    if (call->sort != SW_CONFIGURED || call->comm == NULL ||
        (result != ncclSuccess && result != ncclInProgress))
        return result;
    /* It is launched at the group's end, and what comes after it waits for that. */
    call->passed = *kept = 1;
    call->config = NULL;
    if (sw_group_add(call) != ncclSuccess)
        return group.result;
    call->comm->group_has_nccls = 1;
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
    for (i = 0; i < group.window_count; i++)
        if (group.windows[i].comm != comm)
            group.windows[windows++] = group.windows[i];
    for (i = calls + windows; i < group.call_count + group.window_count; i++)
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
static void compare(struct group *g)
{
    int i, k;

    for (i = 0; i < g->call_count; i++) {
        struct sw_comm *comm = g->calls[i].comm;
        struct sw_together t = {.count = 0};

        if (sw_is_pair(&g->calls[i]) || comm->group_is_nccls || comm->group_is_compared)
            continue;
        comm->group_is_compared = 1;
        for (k = i; k < g->call_count; k++) {
            const struct sw_call *call = &g->calls[k];

            if (call->comm == comm && !sw_is_pair(call))
                sw_together_add(&t, comm, call->kind, call->count, call->type);
        }
        comm->group_is_nccls = !sw_together_is_ours(&t, comm);
    }
}

/* Again when ranks have met: what a rank has found before that, others may not have. */
static void find_servers(struct group *g)
{
    int i;

    for (i = 0; i < g->call_count; i++)
        g->calls[i].comm->group_is_nccls = g->calls[i].comm->group_is_compared = 0;
    for (i = 0; i < g->call_count; i++) {
        struct sw_call *call = &g->calls[i];

        call->server = !call->passed && sw_call_is_ours(call) ? SW_OURS : SW_NCCLS;
        if (!sw_is_pair(call) && call->server == SW_NCCLS)
            call->comm->group_is_nccls = 1;
    }
    compare(g);
    for (i = 0; i < g->call_count; i++)
        if (!sw_is_pair(&g->calls[i]) && g->calls[i].comm->group_is_nccls)
            g->calls[i].server = SW_NCCLS;
}

/* Those whose ranks meet now, each once. */
static int find_meeting(struct group *g, struct sw_comm **comms)
{
    int i, count = 0;

    for (i = 0; i < g->call_count; i++) {
        struct sw_comm *comm = g->calls[i].comm;
        int known = 0;

        /* What NCCL has of it already keeps it from launching the meeting's own call. */
        if (!sw_call_may_meet(&g->calls[i]) || comm->group_has_nccls || !sw_attach_is_due(comm))
            continue;
        while (known < count && comms[known] != comm)
            known++;
        if (known == count) {
            comms[count++] = comm;
            comm->meets_for = (CUstream)g->calls[i].stream;
        }
    }
    return count;
}

/* Whose each call is. Ranks that have not yet agree first, and make symwin's communicators. */
static ncclResult_t judge(struct group *g)
{
    struct sw_comm **comms = calloc((size_t)g->call_count + 1, sizeof(struct sw_comm *));
    ncclResult_t result = ncclSuccess;
    int i, count = 1;

    if (comms == NULL)
        return sw_error(ncclSystemError, "symwin: no host memory");
    for (i = 0; i < 3 && count > 0 && result == ncclSuccess; i++) {
        find_servers(g);
        count = i < 2 ? find_meeting(g, comms) : 0;
        if (count > 0)
            result = sw_attach_all(comms, count);
    }
    free(comms);
    for (i = 0; i < g->call_count; i++)
        if (g->calls[i].server == SW_OURS && atomic_load(&g->calls[i].comm->symwin) == NULL)
            g->calls[i].server = SW_NCCLS; /* refused, or not agreed yet: on all ranks */
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

/* What the pair's own stream has comes before the launch, and what follows there after it. */
static void join_pairs(struct group *g, int several_hosts, int after)
{
    int i;

    for (i = 0; i < g->call_count; i++) {
        struct sw_call *call = &g->calls[i];

        if (is_among(call, several_hosts) && sw_is_pair(call)) {
            const cudaStream_t stream = stream_of_pairs(g, i);

            if (stream != call->stream)
                sw_order_join(call->comm, after ? stream : call->stream,
                              after ? call->stream : stream);
        }
    }
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

static ncclResult_t launch_one(struct group *g, const struct sw_call *which)
{
    struct sw_call call = *which;

    if (sw_is_pair(&call))
        call.stream = stream_of_pairs(g, (int)(which - g->calls));
    return sw_call_serve(&call);
}

/* As one group of symwin. */
static ncclResult_t launch_all(struct group *g, int several_hosts, int count)
{
    const struct sw_call **calls = calloc((size_t)count, sizeof(struct sw_call *));
    ncclResult_t result = ncclSuccess;
    symwin_status status;
    int i, found = 0;

    if (calls == NULL)
        return sw_error(ncclSystemError, "symwin: no host memory");
    for (i = 0; i < g->call_count; i++)
        if (is_among(&g->calls[i], several_hosts))
            calls[found++] = &g->calls[i];
    if (g->comms_differ)
        qsort(calls, (size_t)count, sizeof(struct sw_call *), compare_places);
    status = symwin_group_begin();
    for (i = 0; i < count && status == SYMWIN_OK && result == ncclSuccess; i++)
        result = launch_one(g, calls[i]);
    if (status == SYMWIN_OK)
        status = symwin_group_end();
    free(calls);
    return result == ncclSuccess && status != SYMWIN_OK ? sw_error_of(status) : result;
}

static ncclResult_t launch_ours(struct group *g, int several_hosts)
{
    ncclResult_t result;
    int i, only = 0, count = 0;

    for (i = 0; i < g->call_count; i++)
        if (is_among(&g->calls[i], several_hosts)) {
            only = i;
            count++;
            sw_order_before(&g->calls[i], SW_OURS);
        }
    if (count == 0)
        return ncclSuccess;
    if (g->has_pairs)
        join_pairs(g, several_hosts, 0);
    result = count == 1 ? sw_call_serve(&g->calls[only]) : launch_all(g, several_hosts, count);
    for (i = 0; i < g->call_count && result == ncclSuccess; i++)
        if (is_among(&g->calls[i], several_hosts)) {
            sw_order_after(&g->calls[i], SW_OURS, ncclSuccess);
            sw_report_call(&g->calls[i]);
        }
    if (g->has_pairs)
        join_pairs(g, several_hosts, 1);
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

/* After a failure no more are passed. */
static ncclResult_t pass_nccls(struct group *g)
{
    ncclResult_t result = ncclSuccess;
    int i;

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

/* Whether there are some; *own: on a thread's own default stream, which is another one in another
 * thread. */
static int find_far(const struct group *g, int *own)
{
    int i, found = 0;

    for (i = 0; i < g->call_count; i++)
        if (is_among(&g->calls[i], 1)) {
            found = 1;
            *own |= g->calls[i].stream == (cudaStream_t)CU_STREAM_PER_THREAD;
        }
    return found;
}

static ncclResult_t launch_far(struct group *g)
{
    struct far far = {.group = g};

    if (!find_far(g, &g->far_is_late) || g->far_is_late)
        return ncclSuccess;
    if (!sw_comm_begin_thread(&far.thread, far_main, &far))
        return sw_error(ncclSystemError, "symwin: no thread is left");
    pthread_join(far.thread, NULL);
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

static void add_windows(struct group *g)
{
    struct adding *all = calloc((size_t)g->window_count + 1, sizeof *all);
    int i, k, count = 0;

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

    for (i = 0; i < g->call_count; i++)
        sw_comm_leave(g->calls[i].comm);
    for (i = 0; i < g->window_count; i++)
        sw_comm_leave(g->windows[i].comm);
    for (i = 0; i < g->op_end_count; i++)
        (void)SW_PASS(&g->op_ends[i].from, ncclRedOpDestroy,
                      (g->op_ends[i].op, g->op_ends[i].comm));
    g->call_count = g->window_count = g->op_end_count = 0;
}

static ncclResult_t end(struct group *g, const struct sw_from *from)
{
    ncclResult_t launched = launch(g), result;

    g->depth = 0; /* what follows is no part of it */
    result = sw_error_is_nccls(SW_PASS(from, ncclGroupEnd, ()));
    if (result == ncclSuccess || result == ncclInProgress)
        after_nccls(g, result);
    if (g->far_is_late && launched == ncclSuccess &&
        (result == ncclSuccess || result == ncclInProgress))
        launched = launch_ours(g, 1);
    if (result == ncclSuccess) /* whatever this rank's own launch came to */
        add_windows(g);
    leave_all(g);
    return launched != ncclSuccess ? launched : result;
}

/* ---- exported functions ---- */

static ncclResult_t group_start(const struct sw_from *from)
{
    static atomic_ullong numbers;
    const ncclResult_t result = sw_error_is_nccls(SW_PASS(from, ncclGroupStart, ()));

    if (from->inside || result != ncclSuccess)
        return result;
    if (group.depth == 0) {
        group.library = from->library;
        group.result = ncclSuccess;
        group.comms_differ = group.has_pairs = group.far_is_late = 0;
        group.number = atomic_fetch_add(&numbers, 1) + 1;
    }
    if (group.library == from->library)
        group.depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(const struct sw_from *from)
{
    if (from->inside || group.depth == 0 || group.library != from->library)
        return SW_PASS(from, ncclGroupEnd, ());
    if (group.depth == 1)
        return end(&group, from);
    group.depth--;
    return sw_error_is_nccls(SW_PASS(from, ncclGroupEnd, ()));
}

ncclResult_t ncclGroupStart(void)
{
    const struct sw_from from = SW_FROM(ncclGroupStart);

    return group_start(&from);
}

ncclResult_t pncclGroupStart(void)
{
    const struct sw_from from = SW_FROM(pncclGroupStart);

    return group_start(&from);
}

ncclResult_t ncclGroupEnd(void)
{
    const struct sw_from from = SW_FROM(ncclGroupEnd);

    return group_end(&from);
}

ncclResult_t pncclGroupEnd(void)
{
    const struct sw_from from = SW_FROM(pncclGroupEnd);

    return group_end(&from);
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
