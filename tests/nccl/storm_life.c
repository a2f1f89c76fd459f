/* Communicators of the storm: births, ends, registrations. */
#include <limits.h>

#include "storm.h"

enum { MOST_CHILDREN = 3, WINDOW = 1 << 20 };

int comms_alive(const struct rank *rank)
{
    int count = 0;

    for (int i = 0; i < MOST_COMMS; i++)
        count += rank->comms[i].id != 0;
    return count;
}

struct comm *pick_comm(struct rank *rank, int least, int blocking)
{
    struct comm *found[MOST_COMMS];
    int count = 0;

    for (int i = 0; i < MOST_COMMS; i++) {
        struct comm *comm = &rank->comms[i];

        if (comm->id != 0 && comm->size >= least && (blocking < 0 || comm->blocking == blocking))
            found[count++] = comm;
    }
    return count > 0 ? found[draw(&rank->plan, count)] : NULL;
}

/* ---- meetings: unique ids and barriers ---- */

static struct meeting *next_meeting(struct rank *rank)
{
    if (rank->next_meeting == MEETINGS)
        fail(rank, "more than %d meetings: build it with more", MEETINGS);
    return &world->meetings[rank->next_meeting++];
}

static ncclUniqueId meet_for_id(struct rank *rank, const struct comm *comm)
{
    struct meeting *meeting = next_meeting(rank);

    if (comm->me < 0)
        return (ncclUniqueId){{0}};
    if (comm->me == 0) {
        NCCL(rank, NULL, ncclGetUniqueId, &meeting->id);
        atomic_store(&meeting->published, 1);
    }
    begin(rank, comm, "a wait for a unique id");
    while (comm->me > 0 && !atomic_load(&meeting->published))
        pause_briefly();
    return meeting->id;
}

static void meet_all(struct rank *rank, const struct comm *comm)
{
    struct meeting *meeting = next_meeting(rank);

    begin(rank, comm, "a barrier of the storm");
    if (comm->me >= 0)
        atomic_fetch_add(&meeting->arrived, 1);
    while (comm->me >= 0 && atomic_load(&meeting->arrived) < comm->size)
        pause_briefly();
}

/* ---- births ---- */

enum how { INIT, SPLIT, SHRINK };

struct birth {
    enum how how;
    struct comm *parent, *children[MOST_CHILDREN];
    int count; /* of children */
    int blocking, configured, aborts;
    int excluded[MOST_RANKS], excluded_count; /* ranks of the parent */
    int colors[MOST_RANKS], keys[MOST_RANKS]; /* by rank in the parent */
    ncclUniqueId id;
    ncclComm_t none;
};

static struct comm *add_comm(struct rank *rank, struct birth *birth)
{
    struct comm *comm = rank->comms;

    while (comm->id != 0)
        comm++;
    *comm = (struct comm){.id = ++rank->next_comm, .me = -1, .blocking = birth->blocking};
    birth->children[birth->count++] = comm;
    return comm;
}

static void add_member(const struct rank *rank, struct comm *comm, int member)
{
    if (member == rank->rank)
        comm->me = comm->size;
    comm->members[comm->size++] = member;
}

/* Some ranks of the world in any order. */
static void draw_init(struct rank *rank, struct birth *birth)
{
    struct comm *comm = add_comm(rank, birth);
    const int size = draw(&rank->plan, 2) ? rank->ranks : 1 + draw(&rank->plan, rank->ranks);
    int order[MOST_RANKS];

    for (int i = 0; i < rank->ranks; i++) {
        const int j = draw(&rank->plan, i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < size; i++)
        add_member(rank, comm, order[i]);
}

static void draw_split(struct rank *rank, struct birth *birth, int free)
{
    const struct comm *parent = birth->parent;
    const int colors = 1 + draw(&rank->plan, free < MOST_CHILDREN ? free : MOST_CHILDREN);

    for (int r = 0; r < parent->size; r++) {
        birth->colors[r] = draw(&rank->plan, colors + (draw(&rank->plan, 3) == 0)) % (colors + 1);
        birth->keys[r] = draw(&rank->plan, 5) - 2;
    }
    for (int c = 0; c < colors; c++) {
        struct comm *comm = NULL;

        for (int key = -2; key < 3; key++)
            for (int r = 0; r < parent->size; r++)
                if (birth->colors[r] == c && birth->keys[r] == key) {
                    comm = comm != NULL ? comm : add_comm(rank, birth);
                    add_member(rank, comm, parent->members[r]);
                }
    }
    for (int r = 0; r < parent->size; r++)
        birth->colors[r] = birth->colors[r] == colors ? NCCL_SPLIT_NOCOLOR
                                                      : 3 + 7 * birth->colors[r];
}

static void draw_shrink(struct rank *rank, struct birth *birth)
{
    const struct comm *parent = birth->parent;
    struct comm *comm = add_comm(rank, birth);
    const int kept = draw(&rank->plan, parent->size);
    const int lost = (kept + 1 + draw(&rank->plan, parent->size - 1)) % parent->size;

    for (int r = 0; r < parent->size; r++)
        if (r != lost && (r == kept || draw(&rank->plan, 3) > 0))
            add_member(rank, comm, parent->members[r]);
        else
            birth->excluded[birth->excluded_count++] = r;
}

static ncclConfig_t config_of(const struct birth *birth)
{
    return (ncclConfig_t){.size = 80,
                          .magic = NCCL_CONFIG_MAGIC,
                          .version = 22809,
                          .blocking = birth->configured > 1 && birth->blocking ? INT_MIN
                                                                               : birth->blocking};
}

static ncclComm_t *handle_of(struct birth *birth)
{
    for (int i = 0; i < birth->count; i++)
        if (birth->children[i]->me >= 0)
            return &birth->children[i]->handle;
    return &birth->none;
}

static void make_birth(struct rank *rank, struct birth *birth)
{
    struct comm *parent = birth->parent, *child = birth->children[0];
    ncclConfig_t config = config_of(birth);
    ncclConfig_t *given = birth->configured ? &config : NULL;
    ncclComm_t *handle = handle_of(birth);

    if (birth->how == INIT && child->me >= 0) {
        if (birth->blocking && !birth->configured)
            NCCL(rank, child, ncclCommInitRank, handle, child->size, birth->id, child->me);
        else
            NCCL(rank, child, ncclCommInitRankConfig, handle, child->size, birth->id, child->me,
                 &config);
    } else if (birth->how == SPLIT && parent->me >= 0) {
        if (given != NULL)
            given->blocking = birth->blocking;
        NCCL(rank, parent, ncclCommSplit, parent->handle, birth->colors[parent->me],
             birth->keys[parent->me], handle, given);
    } else if (birth->how == SHRINK && child->me >= 0) {
        if (given != NULL)
            given->blocking = birth->blocking;
        NCCL(rank, child, ncclCommShrink, parent->handle, birth->excluded, birth->excluded_count,
             handle, given, birth->aborts ? NCCL_SHRINK_ABORT : 0);
    }
}

/* Waits until the communicator is ready, if it is not blocking. */
static void settle(struct rank *rank, struct comm *comm)
{
    begin(rank, comm, "a wait for a birth or a registration");
    if (comm->me >= 0 && !comm->blocking)
        nccl_done(rank, comm, ncclInProgress);
}

static void look_at(struct rank *rank, struct comm *comm)
{
    int size = -1, me = -1, device = -1;

    if (comm->me < 0)
        return;
    settle(rank, comm);
    NCCL(rank, comm, ncclCommCount, comm->handle, &size);
    NCCL(rank, comm, ncclCommUserRank, comm->handle, &me);
    NCCL(rank, comm, ncclCommCuDevice, comm->handle, &device);
    if (size != comm->size || me != comm->me || device != rank->device)
        fail(rank, "communicator %d: rank %d of %d on device %d, not %d of %d on %d", comm->id, me,
             size, device, comm->me, comm->size, rank->device);
    atomic_fetch_add(&world->births, me == 0);
}

/* In a group all communicators are blocking, or none is. */
static int draw_birth(struct rank *rank, struct birth *birth, const struct birth *other)
{
    const int free = MOST_COMMS - comms_alive(rank);

    *birth = (struct birth){.how = (enum how)draw(&rank->plan, 3)};
    birth->blocking = other != NULL ? other->blocking : draw(&rank->plan, 3) > 0;
    birth->configured = draw(&rank->plan, 3);
    if (birth->how != INIT) {
        birth->parent = pick_comm(rank, birth->how == SHRINK ? 2 : 1,
                                  other != NULL ? other->blocking : -1);
        if (birth->parent == NULL || (other != NULL && (other->parent == birth->parent ||
                                                        other->children[0] == birth->parent)))
            birth->how = INIT;
        else
            birth->blocking = birth->parent->blocking;
    }
    for (int i = 0; other != NULL && i < other->count; i++)
        if (other->children[i] == birth->parent)
            birth->how = INIT;
    if (birth->how == INIT)
        birth->parent = NULL;
    if (free < 1)
        return 0;
    if (birth->how == INIT)
        draw_init(rank, birth);
    else if (birth->how == SPLIT)
        draw_split(rank, birth, free);
    else
        draw_shrink(rank, birth);
    return 1;
}

static void end_comm(struct rank *rank, struct comm *comm, int way);

static void step_births(struct rank *rank, int most)
{
    struct birth births[2];
    const int grouped = draw(&rank->plan, 2);
    int count = draw_birth(rank, &births[0], NULL);
    int mine = 0;

    if (count == 1 && grouped && most > 1)
        count += draw_birth(rank, &births[1], &births[0]);
    for (int i = 0; i < count; i++) {
        struct birth *birth = &births[i];

        if (birth->parent != NULL || draw(&rank->plan, 2))
            flush(rank);
        if (birth->how == INIT)
            birth->id = meet_for_id(rank, birth->children[0]);
        birth->aborts = birth->how == SHRINK && !grouped && draw(&rank->plan, 3) == 0;
        if (birth->aborts)
            meet_all(rank, birth->parent);
        mine += handle_of(birth) != &birth->none || (birth->how == SPLIT && birth->parent->me >= 0);
        rank->planned += (unsigned)rank->ranks;
    }
    if (grouped && mine > 0)
        group_start(rank);
    for (int i = 0; i < count; i++)
        make_birth(rank, &births[i]);
    if (grouped && mine > 0)
        group_end(rank, NULL, 0);
    for (int i = 0; i < count; i++) {
        struct birth *birth = &births[i];

        if (birth->parent != NULL && birth->how == SPLIT)
            settle(rank, birth->parent);
        for (int c = 0; c < birth->count; c++)
            look_at(rank, birth->children[c]);
        if (birth->none != NULL)
            fail(rank, "a rank without colour has a communicator");
        if (birth->aborts)
            end_comm(rank, birth->parent, 2);
    }
}

void births_at_start(struct rank *rank)
{
    struct birth birth = {.how = INIT, .blocking = 1};

    draw_init(rank, &birth);
    birth.id = meet_for_id(rank, birth.children[0]);
    make_birth(rank, &birth);
    look_at(rank, birth.children[0]);
    while (comms_alive(rank) < 3)
        step_births(rank, 1);
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

/* Calls may be on their way when it is finalized or destroyed, unless something depends on it. */
static void end_comm(struct rank *rank, struct comm *comm, int way)
{
    int used = comm->registered || comm->memory.size > 0 || way == 2;

    for (int g = 0; g < MOST_GRAPHS; g++)
        used |= graph_has(&rank->graphs[g], comm);
    if (used)
        flush(rank);
    for (int g = 0; g < MOST_GRAPHS; g++)
        if (graph_has(&rank->graphs[g], comm))
            graph_end(rank, &rank->graphs[g]);
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
        end_comm(rank, pick_comm(rank, 1, -1), way);
}

void end_all(struct rank *rank)
{
    struct comm *comm;

    while ((comm = pick_comm(rank, 1, -1)) != NULL)
        end_comm(rank, comm, draw(&rank->plan, 3));
    flush(rank);
}
