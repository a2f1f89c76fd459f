/* Communicators of the storm: registrations, states, ends. */
#include "storm.h"

enum { WINDOW = 1 << 20 };

int comms_alive(const struct rank *rank)
{
    int count = 0;

    for (int i = 0; i < MOST_COMMS; i++)
        count += rank->comms[i].id != 0;
    return count;
}

static struct comm *pick(struct rank *rank, int least, int blocking, int suspended)
{
    struct comm *found[MOST_COMMS];
    int count = 0;

    for (int i = 0; i < MOST_COMMS; i++) {
        struct comm *comm = &rank->comms[i];

        if (comm->id != 0 && comm->size >= least && (blocking < 0 || comm->blocking == blocking) &&
            (suspended < 0 || comm->suspended == suspended))
            found[count++] = comm;
    }
    return count > 0 ? found[draw(&rank->plan, count)] : NULL;
}

struct comm *pick_comm(struct rank *rank, int least, int blocking)
{
    return pick(rank, least, blocking, 0);
}

/* ---- registrations ---- */

/* After a flush. */
static void drop_registration(struct rank *rank, struct comm *comm)
{
    if (comm->registered && comm->me >= 0)
        NCCL(rank, comm, ncclCommDeregister, comm->handle, comm->registration);
    comm->registered = 0;
}

static void drop_window(struct rank *rank, struct comm *comm)
{
    if (comm->memory.size > 0 && comm->me >= 0) {
        NCCL(rank, comm, ncclCommWindowDeregister, comm->handle, comm->window);
        memory_free(rank, &comm->memory);
    }
    comm->memory = (struct memory){0};
}

static void add_registration(struct rank *rank, struct comm *comm)
{
    struct dice mine = {rank->plan.state ^ mix((unsigned)rank->rank)};
    const size_t pages = rank->arena.size / 4096;
    const size_t from = (size_t)draw(&mine, (int)pages);
    const size_t size = 1 + (size_t)draw(&mine, (int)(pages - from));

    comm->registered = 1;
    if (comm->me >= 0)
        NCCL(rank, comm, ncclCommRegister, comm->handle, rank->arena.base + from * 4096,
             size * 4096, &comm->registration);
}

static void add_window(struct rank *rank, struct comm *comm)
{
    const int symmetric = draw(&rank->plan, 2), grouped = draw(&rank->plan, 2);
    void *at = NULL;

    comm->memory = (struct memory){.base = rank->arena.base, .size = WINDOW};
    if (comm->me >= 0) {
        memory_make(rank, &comm->memory, WINDOW);
        if (grouped)
            group_start(rank);
        NCCL(rank, comm, ncclCommWindowRegister, comm->handle, comm->memory.base, WINDOW,
             &comm->window, symmetric ? NCCL_WIN_COLL_SYMMETRIC : 0);
        if (grouped)
            group_end(rank, NULL, 0);
        settle(rank, comm);
        NCCL(rank, comm, ncclWinGetUserPtr, comm->handle, comm->window, &at);
        if (at != comm->memory.base)
            fail(rank, "ncclWinGetUserPtr of communicator %d: %p, not %p", comm->id, at,
                 (void *)comm->memory.base);
    }
    comm->memory.symmetric = symmetric;
}

void step_registration(struct rank *rank)
{
    struct comm *comm = pick_comm(rank, 1, -1);

    if (draw(&rank->plan, 2)) {
        if (!comm->registered) {
            add_registration(rank, comm);
            return;
        }
        flush(rank);
        drop_registration(rank, comm);
    } else if (comm->memory.size == 0) {
        flush(rank);
        add_window(rank, comm);
    } else {
        flush(rank);
        drop_window(rank, comm);
    }
}

/* ---- ends ---- */

/* After a flush. */
static void end_graphs(struct rank *rank, const struct comm *comm)
{
    for (int g = 0; g < MOST_GRAPHS; g++)
        if (graph_has(&rank->graphs[g], comm))
            graph_end(rank, &rank->graphs[g]);
}

static int has_graphs(const struct rank *rank, const struct comm *comm)
{
    int count = 0;

    for (int g = 0; g < MOST_GRAPHS; g++)
        count += graph_has(&rank->graphs[g], comm);
    return count > 0;
}

static void resume(struct rank *rank, struct comm *comm)
{
    if (comm->me >= 0)
        NCCL(rank, comm, ncclCommResume, comm->handle);
    comm->suspended = 0;
}

/* Calls may be on their way when it is finalized or destroyed, unless something depends on it. */
void end_comm(struct rank *rank, struct comm *comm, int way)
{
    if (comm->registered || comm->memory.size > 0 || way == 2 || has_graphs(rank, comm))
        flush(rank);
    end_graphs(rank, comm);
    if (way == 0 && comm->suspended)
        resume(rank, comm);
    if (way == 2)
        meet_all(rank, comm);
    drop_registration(rank, comm);
    drop_window(rank, comm);
    if (comm->me >= 0) {
        if (way == 0)
            NCCL(rank, comm, ncclCommFinalize, comm->handle);
        if (way == 2)
            NCCL(rank, NULL, ncclCommAbort, comm->handle);
        else
            NCCL(rank, NULL, ncclCommDestroy, comm->handle);
        atomic_fetch_add(&world->deaths, comm->me == 0);
    }
    comm->id = 0;
    comm->handle = NULL;
    rank->planned += (unsigned)comm->size;
}

void step_life(struct rank *rank)
{
    const int alive = comms_alive(rank), way = draw(&rank->plan, 3);

    if (alive < 3 || (alive < MOST_COMMS && draw(&rank->plan, 2)))
        step_births(rank, 2);
    else
        end_comm(rank, pick(rank, 1, -1, -1), way);
}

void end_all(struct rank *rank)
{
    struct comm *comm;

    while ((comm = pick(rank, 1, -1, -1)) != NULL)
        end_comm(rank, comm, draw(&rank->plan, 3));
    flush(rank);
}

/* ---- states ---- */

static void is_refused(struct rank *rank, const struct comm *comm)
{
    ncclResult_t result;

    if (comm->me < 0)
        return;
    begin(rank, comm, "a call that NCCL refuses");
    result = ncclAllReduce(rank->arena.base, rank->arena.base, 1, ncclInt8, ncclSum, comm->handle,
                           rank->streams[0]);
    if (result != ncclInvalidUsage && (result != ncclRemoteError || !comm->revoked))
        fail(rank, "a call on communicator %d, which is %s, returned %d", comm->id,
             comm->revoked ? "revoked" : "suspended", (int)result);
}

/* One at most: others have calls meanwhile. Graphs with its calls end first. */
static void step_suspension(struct rank *rank)
{
    struct comm *comm = pick(rank, 1, -1, 1);

    if (comm != NULL) {
        resume(rank, comm);
        return;
    }
    comm = pick_comm(rank, 1, -1);
    if (has_graphs(rank, comm) || draw(&rank->plan, 2))
        flush(rank);
    end_graphs(rank, comm);
    if (comm->me >= 0)
        NCCL(rank, comm, ncclCommSuspend, comm->handle, 1); /* NCCL_SUSPEND_MEM */
    comm->suspended = 1;
    is_refused(rank, comm);
}

/* With some calls on their way, whose results nobody knows. */
static void step_revocation(struct rank *rank)
{
    struct comm *comm = pick_comm(rank, 1, -1);
    const int lost = draw(&rank->plan, 3), way = draw(&rank->plan, 3);

    flush(rank);
    end_graphs(rank, comm);
    for (int i = 0; i < lost; i++) {
        struct call *call = &rank->calls[rank->pending++];

        draw_call(rank, call, comm, (enum kind)draw(&rank->plan, COLLECTIVES), WINDOW);
        if (!call_place(rank, call, &rank->arena))
            fail(rank, "no room for a call");
        call_fill(rank, call);
        call_make(rank, call, ALL);
        call->me = -1; /* nothing to check */
        rank->planned += (unsigned)comm->size;
    }
    meet_all(rank, comm);
    comm->revoked = 1;
    if (comm->me >= 0)
        NCCL(rank, NULL, ncclCommRevoke, comm->handle, 0);
    is_refused(rank, comm);
    flush(rank);
    if (way == 0 && comm->size > 1 && comms_alive(rank) < MOST_COMMS)
        shrink_revoked(rank, comm);
    else
        end_comm(rank, comm, way == 0 ? 1 : way);
}

void step_states(struct rank *rank)
{
    const int revokes = draw(&rank->plan, 3) == 0;

    if (comms_alive(rank) < 3)
        return; /* calls need one */
    if (revokes)
        step_revocation(rank);
    else
        step_suspension(rank);
}
