/* Births of the storm: how a communicator comes to be, from ids or from another communicator. */
#include <limits.h>

#include "storm.h"

enum { MOST_CHILDREN = 3 };

/* ---- meetings: unique ids and barriers ---- */

static struct meeting *next_meeting(struct rank *rank)
{
    if (rank->next_meeting == MEETINGS)
        fail(rank, "more than %d meetings: build it with more", MEETINGS);
    return &world->meetings[rank->next_meeting++];
}

static void wait_for(struct rank *rank, const struct comm *comm, struct meeting *meeting,
                     const char *what)
{
    begin(rank, comm, what);
    while (!atomic_load(&meeting->published))
        pause_briefly();
}

void meet_all(struct rank *rank, const struct comm *comm)
{
    struct meeting *meeting = next_meeting(rank);

    begin(rank, comm, "a barrier of the storm");
    if (comm->me >= 0)
        atomic_fetch_add(&meeting->arrived, 1);
    while (comm->me >= 0 && atomic_load(&meeting->arrived) < comm->size)
        pause_briefly();
}

/* ---- what a birth is ---- */

enum how { INIT, SCALABLE, INIT_ALL, GROW, SPLIT, SHRINK, HOWS };

struct birth {
    enum how how;
    struct comm *parent, *children[MOST_CHILDREN];
    int count; /* of children */
    int blocking, configured, aborts;
    int excluded[MOST_RANKS], excluded_count; /* ranks of the parent */
    int colors[MOST_RANKS], keys[MOST_RANKS]; /* by rank in the parent */
    int host;                                 /* of GROW: the rank of the parent with the id */
    ncclUniqueId ids[2];
    int id_count;
    struct meeting *meeting; /* of INIT_ALL: has the handles */
    ncclComm_t none;
};

/* The child has ids: all its ranks come by one, or those that are no ranks of the parent. */
static int has_ids(const struct birth *birth)
{
    return birth->how <= GROW && birth->meeting == NULL;
}

static void meet_for_id(struct rank *rank, struct birth *birth, ncclUniqueId *id)
{
    struct meeting *meeting = next_meeting(rank);
    const struct comm *parent = birth->parent, *child = birth->children[0];

    if (parent != NULL && parent->me == birth->host)
        NCCL(rank, NULL, ncclCommGetUniqueId, parent->handle, &meeting->id);
    else if (parent == NULL && child->me == 0)
        NCCL(rank, NULL, ncclGetUniqueId, &meeting->id);
    else if (child->me >= 0 && (parent == NULL || parent->me < 0))
        wait_for(rank, child, meeting, "a wait for a unique id");
    else
        return;
    atomic_store(&meeting->published, 1);
    *id = meeting->id;
}

/* ---- what is drawn ---- */

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

/* Ranks that follow each other: in some layouts of the world they are threads of one process. */
static void draw_init_all(struct rank *rank, struct birth *birth)
{
    struct comm *comm = add_comm(rank, birth);
    const int most = rank->ranks < 4 ? rank->ranks : 4, size = 1 + draw(&rank->plan, most);
    const int first = size * draw(&rank->plan, rank->ranks / size);
    const int from = draw(&rank->plan, size);

    for (int i = 0; i < size; i++)
        add_member(rank, comm, first + (from + i) % size);
}

/* The parent's ranks, and some others behind them. */
static void draw_grow(struct rank *rank, struct birth *birth)
{
    const struct comm *parent = birth->parent;
    struct comm *comm = add_comm(rank, birth);
    const int from = draw(&rank->plan, rank->ranks);

    birth->host = draw(&rank->plan, parent->size);
    for (int i = 0; i < parent->size; i++)
        add_member(rank, comm, parent->members[i]);
    for (int i = 0; i < rank->ranks; i++) {
        const int member = (from + i) % rank->ranks;
        const int wanted = draw(&rank->plan, 2) || comm->size == parent->size;
        int known = 0;

        while (known < parent->size && parent->members[known] != member)
            known++;
        if (known == parent->size && wanted)
            add_member(rank, comm, member);
    }
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

/* ---- the calls ---- */

/* One thread makes all ranks, for those of other threads. */
static void init_all(struct rank *rank, struct birth *birth)
{
    struct comm *child = birth->children[0];
    int devices[MOST_RANKS];

    rank->calls_made++; /* the same number as by an id, as other layouts do */
    for (int i = 0; i < child->size; i++)
        devices[i] = child->members[i] % rank->devices;
    if (child->me == 0)
        NCCL(rank, child, ncclCommInitAll, birth->meeting->handles, child->size, devices);
}

static void take_handle(struct rank *rank, struct birth *birth)
{
    struct comm *child = birth->children[0];

    if (child->me == 0)
        atomic_store(&birth->meeting->published, 1);
    else
        wait_for(rank, child, birth->meeting, "a wait for ncclCommInitAll");
    child->handle = birth->meeting->handles[child->me];
}

static void make_birth(struct rank *rank, struct birth *birth)
{
    struct comm *parent = birth->parent, *child = birth->children[0];
    ncclConfig_t config = config_of(birth);
    ncclConfig_t *given = birth->configured ? &config : NULL;
    ncclConfig_t *needed = birth->blocking ? given : &config; /* of ranks without a parent */
    ncclComm_t *handle = handle_of(birth);

    if (birth->how == SPLIT ? parent->me < 0 : child->me < 0)
        return;
    if (birth->parent != NULL)
        config.blocking = birth->blocking;
    if (birth->meeting != NULL)
        init_all(rank, birth);
    else if (birth->how == SCALABLE)
        NCCL(rank, child, ncclCommInitRankScalable, handle, child->size, child->me, birth->id_count,
             birth->ids, needed);
    else if (birth->parent == NULL && needed == NULL)
        NCCL(rank, child, ncclCommInitRank, handle, child->size, birth->ids[0], child->me);
    else if (birth->parent == NULL)
        NCCL(rank, child, ncclCommInitRankConfig, handle, child->size, birth->ids[0], child->me,
             needed);
    else if (birth->how == GROW && parent->me < 0)
        NCCL(rank, child, ncclCommGrow, NULL, child->size, birth->ids, child->me, handle, needed);
    else if (birth->how == GROW)
        NCCL(rank, child, ncclCommGrow, parent->handle, child->size,
             parent->me == birth->host ? birth->ids : NULL, -1, handle, given);
    else if (birth->how == SPLIT)
        NCCL(rank, parent, ncclCommSplit, parent->handle, birth->colors[parent->me],
             birth->keys[parent->me], handle, given);
    else
        NCCL(rank, child, ncclCommShrink, parent->handle, birth->excluded, birth->excluded_count,
             handle, given, birth->aborts ? NCCL_SHRINK_ABORT : 0);
}

/* Waits until the communicator is ready, if it is not blocking. */
void settle(struct rank *rank, struct comm *comm)
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

    *birth = (struct birth){.how = (enum how)draw(&rank->plan, HOWS)};
    birth->blocking = other != NULL ? other->blocking : draw(&rank->plan, 3) > 0;
    birth->configured = draw(&rank->plan, 3);
    birth->id_count = 1 + draw(&rank->plan, 2);
    if (birth->how == INIT_ALL && !birth->blocking)
        birth->how = INIT;
    if (birth->how >= GROW) {
        birth->parent = pick_comm(rank, birth->how == SHRINK ? 2 : 1,
                                  other != NULL ? other->blocking : -1);
        if (birth->parent == NULL ||
            (other != NULL &&
             (other->parent == birth->parent || other->children[0] == birth->parent)) ||
            (birth->how == GROW && birth->parent->size == rank->ranks))
            birth->how = INIT;
        else
            birth->blocking = birth->parent->blocking;
    }
    for (int i = 0; other != NULL && i < other->count; i++)
        if (other->children[i] == birth->parent)
            birth->how = INIT;
    if (birth->how < GROW)
        birth->parent = NULL;
    if (free < 1)
        return 0;
    if (birth->how == GROW)
        draw_grow(rank, birth);
    else if (birth->how == SPLIT)
        draw_split(rank, birth, free);
    else if (birth->how == SHRINK)
        draw_shrink(rank, birth);
    else if (birth->how == INIT_ALL)
        draw_init_all(rank, birth);
    else
        draw_init(rank, birth);
    if (birth->how != SCALABLE || birth->children[0]->size == 1)
        birth->id_count = 1;
    return 1;
}

/* Before the calls: nothing that the births need is on its way. */
static void prepare(struct rank *rank, struct birth *birth, int grouped)
{
    const struct comm *child = birth->children[0]; /* NULL: a split without colours */
    int one_process = birth->how == INIT_ALL;

    if (birth->parent != NULL || draw(&rank->plan, 2))
        flush(rank);
    for (int i = 0; one_process && i < child->size; i++)
        one_process = child->members[i] / rank->threads == child->members[0] / rank->threads;
    if (one_process)
        birth->meeting = next_meeting(rank);
    for (int i = 0; i < birth->id_count && has_ids(birth); i++)
        meet_for_id(rank, birth, &birth->ids[i]);
    birth->aborts = birth->how == SHRINK && !grouped &&
                    (birth->parent->revoked || draw(&rank->plan, 3) == 0);
    if (birth->aborts)
        meet_all(rank, birth->parent);
    rank->planned += (unsigned)rank->ranks;
}

static void finish(struct rank *rank, struct birth *birth)
{
    if (birth->parent != NULL && (birth->how == SPLIT || birth->how == GROW))
        settle(rank, birth->parent);
    if (birth->meeting != NULL && birth->children[0]->me >= 0)
        take_handle(rank, birth);
    for (int c = 0; c < birth->count; c++)
        look_at(rank, birth->children[c]);
    if (birth->none != NULL)
        fail(rank, "a rank without colour has a communicator");
    if (birth->aborts)
        end_comm(rank, birth->parent, 2);
}

static void make_births(struct rank *rank, struct birth *births, int count, int grouped)
{
    int mine = 0;

    for (int i = 0; i < count; i++) {
        prepare(rank, &births[i], grouped);
        mine += handle_of(&births[i]) != &births[i].none ||
                (births[i].how == SPLIT && births[i].parent->me >= 0);
    }
    if (grouped && mine > 0)
        group_start(rank);
    for (int i = 0; i < count; i++)
        make_birth(rank, &births[i]);
    if (grouped && mine > 0)
        group_end(rank, NULL, 0);
    for (int i = 0; i < count; i++)
        finish(rank, &births[i]);
}

void step_births(struct rank *rank, int most)
{
    struct birth births[2];
    const int grouped = draw(&rank->plan, 2);
    int count = draw_birth(rank, &births[0], NULL);

    if (count == 1 && grouped && most > 1)
        count += draw_birth(rank, &births[1], &births[0]);
    make_births(rank, births, count, grouped);
}

void births_at_start(struct rank *rank)
{
    struct birth birth = {.how = INIT, .blocking = 1, .id_count = 1};

    draw_init(rank, &birth);
    make_births(rank, &birth, 1, 0);
    while (comms_alive(rank) < 3)
        step_births(rank, 1);
}

void shrink_revoked(struct rank *rank, struct comm *comm)
{
    struct birth birth = {.how = SHRINK, .parent = comm, .blocking = comm->blocking};

    birth.configured = draw(&rank->plan, 3);
    draw_shrink(rank, &birth);
    make_births(rank, &birth, 1, 0);
}
