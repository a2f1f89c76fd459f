/* The plan of the storm: which calls are made, on which communicators, in which groups. All draws
 * from rank->plan are the same on all ranks; what a rank is must not decide about them. No
 * expression has two draws: compilers order them as they like. */
#include <string.h>

#include "storm.h"

enum {
    MOST_BYTES = 1 << 20,   /* of a buffer */
    GROUP_BYTES = 96 << 10, /* of a buffer in a group */
    STEP_BYTES = 7 << 20,   /* of a step */
    MOST_GROUP = 20         /* calls of a group */
};

const char *const step_names[STEPS] = {"collectives", "groups",        "p2p",   "capture",
                                       "births",      "registrations", "states"};
int steps_on[STEPS];

/* ---- a call ---- */

/* Mostly small ones. */
static size_t draw_count(struct dice *dice, size_t most)
{
    const int way = draw(dice, 200);
    size_t count = (size_t)draw(dice, 9);

    if (way < 8)
        return 0;
    if (way >= 70)
        count = (size_t)draw(dice, 300);
    if (way >= 160)
        count = (size_t)draw(dice, 4000);
    if (way >= 195)
        count = (size_t)draw(dice, 30000);
    if (way >= 199)
        count = (size_t)draw(dice, 500000);
    return count < most ? count : most;
}

static void draw_operation(struct dice *dice, struct call *call)
{
    call->scalar_on_host = draw(dice, 2);
    if (call->kind <= REDUCE) {
        call->op = (ncclRedOp_t)draw(dice, PREMUL + 1);
        if (call->op == ncclAvg && call->ranks > 8 && call->type >= ncclFloat8e4m3)
            call->op = ncclSum;
    } else {
        call->op = ncclMax; /* not used by the call */
    }
}

void draw_call(struct rank *rank, struct call *call, struct comm *comm, enum kind kind, size_t most)
{
    struct dice *dice = &rank->plan;

    *call = (struct call){.step = rank->step,
                          .comm = comm->id,
                          .ranks = comm->size,
                          .me = comm->me,
                          .on = comm,
                          .kind = kind};
    call->type = (ncclDataType_t)draw(dice, ncclNumTypes);
    call->root = draw(dice, comm->size);
    call->peer = draw(dice, comm->size);
    call->key = roll(dice);
    call->draws = roll(dice);
    call->in_stream = draw(dice, 3) == 0;
    if (kind == ALL_REDUCE || kind == REDUCE_SCATTER || kind == ALL_GATHER || kind == ALL_TO_ALL)
        call->root = -1;
    call->count = draw_count(dice, most / widths[call->type] / (size_t)comm->size);
    draw_operation(dice, call);
}

static enum kind draw_kind(struct rank *rank)
{
    return (enum kind)draw(&rank->plan, COLLECTIVES);
}

/* Makes room for a step of this many calls. */
static void prepare(struct rank *rank, int calls)
{
    if (rank->pending >= rank->most_pending || rank->pending + calls > MOST_PENDING ||
        rank->arena.size - rank->arena.used < STEP_BYTES)
        flush(rank);
}

static struct call *next_call(struct rank *rank)
{
    return &rank->calls[rank->pending++];
}

/* In the window's memory now and then. */
static void place(struct rank *rank, struct call *call)
{
    struct comm *comm = call->on;
    const int in_window = draw(&rank->plan, 3) == 0 && call->before == NULL && !call->apart;

    rank->planned += call->kind == MESSAGE ? 2 : (unsigned)call->ranks;
    if (in_window && comm->memory.size > 0 && call_place(rank, call, &comm->memory))
        return;
    if (!call_place(rank, call, &rank->arena))
        fail(rank, "no room for a call");
}

/* ---- steps of collectives ---- */

static void step_collective(struct rank *rank)
{
    struct comm *comm = pick_comm(rank, 1, -1);
    struct call *call;

    prepare(rank, 1);
    call = next_call(rank);
    draw_call(rank, call, comm, draw_kind(rank), MOST_BYTES);
    place(rank, call);
    call_fill(rank, call);
    call_make(rank, call, ALL);
}

static int is_part_of(const struct comm *part, const struct comm *whole)
{
    for (int i = 0, j; i < part->size; i++) {
        for (j = 0; j < whole->size && whole->members[j] != part->members[i]; j++)
            ;
        if (j == whole->size)
            return 0;
    }
    return 1;
}

/* A call whose output is the input of a second one: of the same communicator in the other stream,
 * or of another communicator in the same stream. */
static void step_read_after_write(struct rank *rank)
{
    static const enum kind firsts[] = {ALL_REDUCE, BROADCAST, BCAST};
    struct comm *comm = pick_comm(rank, 1, -1), *other = pick_comm(rank, 1, -1);
    struct call *first, *second;

    prepare(rank, 2);
    if (draw(&rank->plan, 2) || !is_part_of(other, comm))
        other = comm;
    first = next_call(rank);
    second = next_call(rank);
    draw_call(rank, first, comm, firsts[draw(&rank->plan, 3)], MOST_BYTES);
    first->numbers = first->kind != ALL_REDUCE;
    place(rank, first);
    draw_call(rank, second, other, draw_kind(rank), MOST_BYTES);
    if (second->kind == BCAST)
        second->kind = BROADCAST;
    second->type = first->type;
    second->op = draw(&rank->plan, 2) ? ncclMax : ncclMin;
    second->before = first;
    second->apart = 1;
    second->count = first->count;
    if (in_elements(second) > first->count)
        second->count /= (size_t)other->size;
    place(rank, second);
    second->stream = other == comm ? 1 - first->stream : first->stream;
    call_fill(rank, first);
    call_fill(rank, second);
    call_make(rank, first, ALL);
    call_make(rank, second, ALL);
}

/* A call whose input is overwritten by a second one in the other stream. */
static void step_write_after_read(struct rank *rank)
{
    static const enum kind firsts[] = {ALL_REDUCE, ALL_GATHER};
    struct comm *comm = pick_comm(rank, 1, -1);
    struct call *first, *second;

    prepare(rank, 2);
    first = next_call(rank);
    second = next_call(rank);
    draw_call(rank, first, comm, firsts[draw(&rank->plan, 2)], MOST_BYTES);
    first->apart = 1;
    place(rank, first);
    draw_call(rank, second, comm, draw(&rank->plan, 2) ? BROADCAST : ALL_REDUCE, MOST_BYTES);
    second->type = first->type;
    second->count = first->count;
    second->apart = 1;
    second->over = first;
    if (second->op == PREMUL || second->op == ncclAvg)
        second->op = ncclSum;
    place(rank, second);
    second->stream = 1 - first->stream;
    call_fill(rank, first);
    call_fill(rank, second);
    first->in_region.size = 0;
    call_make(rank, first, ALL);
    call_make(rank, second, ALL);
}

/* ---- messages ---- */

/* In an order in which no rank waits for another's later call. */
static void step_messages(struct rank *rank)
{
    struct comm *comm = pick_comm(rank, 2, -1);
    const int count = 1 + draw(&rank->plan, 6);

    prepare(rank, count);
    for (int i = 0; i < count && comm != NULL; i++) {
        struct call *call = next_call(rank);

        draw_call(rank, call, comm, MESSAGE, GROUP_BYTES);
        if (call->root == call->peer)
            call->peer = (call->root + 1) % comm->size;
        place(rank, call);
        call_fill(rank, call);
        call_make(rank, call, ALL);
    }
}

/* Adds to a group what each rank sends to others. Counts differ. */
static int add_messages(struct rank *rank, struct comm *comm, struct call **calls, int room)
{
    const int shape = draw(&rank->plan, 4), by = 1 + draw(&rank->plan, comm->size);
    int wanted = comm->size, count = 0;

    if (shape == 2 && comm->size * comm->size <= room)
        wanted = comm->size * comm->size; /* all to all, itself included */
    if (shape == 3)
        wanted = 1 + draw(&rank->plan, 10);
    for (; count < wanted && count < room; count++) {
        struct call *call = calls[count] = next_call(rank);

        draw_call(rank, call, comm, MESSAGE, GROUP_BYTES);
        if (shape < 3) { /* a ring, or neighbours at a distance */
            call->root = count % comm->size;
            call->peer = (call->root + (shape == 2 ? count / comm->size : by)) % comm->size;
        } else if (count > 0 && draw(&rank->plan, 2)) { /* another message of the same pair */
            call->root = calls[count - 1]->root;
            call->peer = calls[count - 1]->peer;
        }
    }
    return count;
}

/* ---- groups ---- */

/* Makes the calls of a group: this rank's sends before its receives, after them, or as they come;
 * parts of it in a nested group. */
void make_group(struct rank *rank, struct call **calls, int count)
{
    struct call *mine[MOST_GROUP];
    const int nested = draw(&rank->plan, 3) == 0, from = draw(&rank->plan, 3);
    int order = (int)(mix(calls[0]->draws ^ (unsigned)rank->rank) % 3), own = 0, open = 0;

    for (int i = 0; i < count; i++)
        if (calls[i]->me >= 0)
            mine[own++] = calls[i];
    if (own == 0)
        return;
    group_start(rank);
    for (int pass = 0; pass < (order == 0 ? 1 : 2); pass++)
        for (int i = 0; i < own; i++) {
            if (nested && pass == 0 && i == from) {
                group_start(rank);
                open = 1;
            }
            call_make(rank, mine[i],
                      order == 0                    ? ALL
                      : (order == 1) == (pass == 0) ? SENDS
                                                    : RECEIVES);
            if (open && i == own / 2 + 1) {
                group_end(rank, mine, own);
                open = 0;
            }
        }
    if (open)
        group_end(rank, mine, own);
    group_end(rank, mine, own);
    for (int i = 0; i < own; i++)
        call_copy(rank, mine[i]);
}

/* A group of one communicator has calls in all streams; in one of several, each communicator keeps
 * to one stream, so that the ranks' streams cannot wait for each other in different orders. */
static void step_group(struct rank *rank, int collectives, int messages)
{
    struct comm *comms[3];
    struct call *calls[MOST_GROUP];
    const int blocking = draw(&rank->plan, 4) > 0, parts = 1 + draw(&rank->plan, 3);
    int comm_count = 0, count = 0;

    prepare(rank, MOST_GROUP);
    for (int i = 0; i < parts; i++) {
        struct comm *comm = pick_comm(rank, 1, blocking);

        if (comm != NULL)
            comms[comm_count++] = comm;
    }
    for (int i = 0; i < comm_count; i++) {
        const int more = collectives ? 1 + draw(&rank->plan, 4) : 0;

        for (int j = 0; j < more && count < MOST_GROUP; j++) {
            calls[count] = next_call(rank);
            draw_call(rank, calls[count], comms[i], draw_kind(rank), GROUP_BYTES);
            count++;
        }
        if (messages)
            count += add_messages(rank, comms[i], calls + count, MOST_GROUP - count);
    }
    if (count == 0)
        return;
    for (int i = count - 1; i > 0 && !messages; i--) { /* communicators alternate */
        const int j = draw(&rank->plan, i + 1);
        struct call *call = calls[i];

        calls[i] = calls[j];
        calls[j] = call;
    }
    for (int i = 0; i < count; i++) {
        place(rank, calls[i]);
        for (int j = 0; j < i && comm_count > 1; j++)
            if (calls[j]->on == calls[i]->on)
                calls[i]->stream = calls[j]->stream;
        call_fill(rank, calls[i]);
    }
    make_group(rank, calls, count);
}

/* ---- the whole ---- */

static void step(struct rank *rank)
{
    const int what = draw(&rank->plan, 1000);

    if (what < 14 && steps_on[DO_BIRTHS])
        step_life(rank);
    else if (what < 26 && steps_on[DO_STATES])
        step_states(rank);
    else if (what < 42 && steps_on[DO_REGISTRATIONS])
        step_registration(rank);
    else if (what < 80 && steps_on[DO_CAPTURE])
        step_capture(rank);
    else if (what < 200 && steps_on[DO_GROUPS])
        step_group(rank, 1, 0);
    else if (what < 260 && steps_on[DO_GROUPS] && steps_on[DO_P2P])
        step_group(rank, draw(&rank->plan, 2), 1);
    else if (what < 360 && steps_on[DO_P2P])
        step_messages(rank);
    else if (what < 480 && steps_on[DO_COLLECTIVES])
        step_read_after_write(rank);
    else if (what < 540 && steps_on[DO_COLLECTIVES])
        step_write_after_read(rank);
    else if (steps_on[DO_COLLECTIVES])
        step_collective(rank);
}

void run_plan(struct rank *rank, unsigned long long calls)
{
    const unsigned long long end = rank->planned + calls;

    births_at_start(rank);
    flush(rank);
    for (; rank->planned < end; rank->step++) {
        rank->planned += rank->step % 8 == 0; /* all kinds of steps may be off but rare ones */
        step(rank);
    }
    end_all(rank);
}
