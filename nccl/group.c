/* Groups. NCCL's own is opened and closed with the program's, and gets at once what this library
 * does not know. Calls are collected, and launched at the outermost end (launch.c). */
#include <stdlib.h>

#include "nccl/group.h"

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
    free(g->births);
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

void sw_group_add_birth(const ncclComm_t *child, int most)
{
    struct born *births = grown(group.births, group.birth_count, &group.birth_room,
                                sizeof *group.births);

    if (births == NULL)
        return;
    group.births = births;
    group.births[group.birth_count++] = (struct born){child, most};
}

int sw_group_has(const struct sw_comm *comm)
{
    int i, found = 0;

    for (i = 0; i < group.part_count; i++)
        found |= group.parts[i].comm == comm;
    for (i = 0; i < group.window_count; i++)
        found |= group.windows[i].comm == comm;
    return found;
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

void sw_group_leave(struct group *g)
{
    int i;

    leave_comms(g);
    for (i = 0; i < g->op_end_count; i++)
        (void)SW_PASS(&g->op_ends[i].from, ncclRedOpDestroy,
                      (g->op_ends[i].op, g->op_ends[i].comm));
    g->call_count = g->part_count = g->window_count = g->op_end_count = g->birth_count = 0;
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
        return sw_error_is_nccls(SW_PASS(from, ncclGroupEnd, ()));
    if (g->depth == 1)
        return sw_group_launch(g, from);
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
        sw_group_leave(&group);
    }
    return sw_error_is_nccls(SW_PASS(from, ncclGroupSimulateEnd, (info)));
}
