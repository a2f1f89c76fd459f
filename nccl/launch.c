/* A group at its outermost end (group.c collects it). Of each communicator:
 *
 *   - its collectives are all symwin's, or all NCCL's if one of them is: which calls a group has
 *     of one communicator is equal on all of its ranks, and of all communicators it need not be;
 *   - so are its sends and receives.
 *
 * symwin's are launched first, as one group of symwin, then NCCL's, in their order. Those of
 * communicators over several hosts have calls of NCCL's inside, which would be a part of NCCL's
 * group: a thread launches them, which has none open. */
#include <stdlib.h>

#include "nccl/group.h"

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

    if (ours != ncclSuccess)
        return ours;
    ours = judge(g);
    if (ours != ncclSuccess) { /* of a communicator that all others may have launched calls of */
        lose(g, 0, ours);
        lose(g, 1, ours);
        return ours;
    }
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

static void note_births(const struct group *g)
{
    int i;

    for (i = 0; i < g->birth_count; i++)
        if (*g->births[i].handle != NULL) /* a split may leave this rank out */
            sw_birth_note(*g->births[i].handle, g->births[i].most);
}

ncclResult_t sw_group_launch(struct group *g, const struct sw_from *from)
{
    ncclResult_t launched = launch(g), result;

    g->depth = 0; /* what follows is no part of it */
    result = sw_error_is_nccls(SW_PASS(from, ncclGroupEnd, ()));
    if (result == ncclSuccess || result == ncclInProgress)
        after_nccls(g, result);
    if (result == ncclSuccess)
        note_births(g);
    if (result == ncclSuccess || (result == ncclInProgress && are_windows_there(g)))
        add_windows(g); /* whatever this rank's own launch came to */
    sw_group_leave(g);
    return launched != ncclSuccess ? launched : result;
}
