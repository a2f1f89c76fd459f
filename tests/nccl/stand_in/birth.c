/* How communicators of the stand-in are made: from a unique id, or from another communicator. In a
 * group they are made at its end. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

/* ---- names, which the ranks of a communicator alone know ---- */

static uint64_t digest(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;

    while (bytes-- > 0)
        hash = (hash ^ *at++) * 0x100000001b3u;
    return hash;
}

static void name_by_id(struct ncclComm *comm, const ncclUniqueId *id)
{
    comm->id = *id;
    snprintf(comm->name, sizeof comm->name, "%016llx",
             (unsigned long long)digest(0xcbf29ce484222325u, id, sizeof *id));
}

static void name_by_parent(char *name, const struct ncclComm *parent, const char *how,
                           unsigned number, int color)
{
    uint64_t hash = digest(0xcbf29ce484222325u, parent->name, strlen(parent->name));

    hash = digest(hash, how, strlen(how));
    hash = digest(hash, &number, sizeof number);
    hash = digest(hash, &color, sizeof color);
    snprintf(name, NAME_BYTES, "%016llx", (unsigned long long)hash);
}

/* ---- what all births do ---- */

static ncclResult_t read_config(const ncclConfig_t *config, int *blocking)
{
    if (config == NULL)
        return ncclSuccess;
    if (config->magic != NCCL_CONFIG_MAGIC)
        return refuse(ncclInvalidArgument, "ncclConfig_t argument not initialized via "
                                           "NCCL_CONFIG_INITIALIZER");
    if (config->blocking == INT_MIN)
        return ncclSuccess;
    if (config->blocking != 0 && config->blocking != 1)
        return refuse(ncclInvalidArgument, "Invalid config blocking attribute value %d",
                      config->blocking);
    *blocking = config->blocking;
    return ncclSuccess;
}

STAND_IN_API int stand_in_max_ctas(ncclComm_t comm)
{
    return comm->max_ctas;
}

static ncclResult_t run_join(struct task *task)
{
    return comm_join(task->comm);
}

struct birth {
    ncclComm_t *born;
    int ranks, rank, blocking, device, max_ctas;
    int is_child; /* of a communicator that blocks: NULL until it is there, as with NCCL */
    struct ncclComm *parent;
    ncclResult_t (*run)(struct task *task);
    int color, key;
    ncclUniqueId id;
    const struct wire_kind *kind;
    struct place places[MOST_RANKS];
};

/* The communicator has the name, or that of the id if it is NULL. A task may give it another. */
static ncclResult_t begin(const struct birth *birth, const char *name)
{
    struct ncclComm *comm = comm_create(birth->ranks, birth->rank, birth->blocking);
    struct task task = {.run = birth->run,
                        .comm = comm,
                        .parent = birth->parent,
                        .born = birth->born,
                        .color = birth->color,
                        .key = birth->key,
                        .id = birth->id};
    ncclResult_t result;

    if (comm == NULL)
        return group_fault(refuse(ncclSystemError, "out of memory"));
    comm->max_ctas = birth->max_ctas;
    memcpy(comm->places, birth->places, sizeof comm->places);
    result = comm_place(comm, birth->device);
    if (result == ncclSuccess)
        result = comm_open(comm, birth->kind);
    if (result != ncclSuccess) {
        comm_close(comm, SEAT_FAILED);
        return group_fault(result);
    }
    if (name != NULL)
        memcpy(comm->name, name, NAME_BYTES);
    else
        name_by_id(comm, &birth->id);
    task.is_late = birth->is_child && birth->blocking;
    *birth->born = task.is_late ? NULL : comm;
    return group_task(&task);
}

static ncclResult_t check_ranks(const void *born, int ranks, int rank, const char *function)
{
    if (born == NULL)
        return refuse(ncclInvalidArgument, "%s : newcomm argument is NULL", function);
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks)
        return refuse(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
    return ncclSuccess;
}

/* ---- from a unique id ---- */

static ncclResult_t init(ncclComm_t *comm, int ranks, const ncclUniqueId *id, int rank, int device,
                         const ncclConfig_t *config, const char *function)
{
    struct birth birth = {.born = comm,
                          .ranks = ranks,
                          .rank = rank,
                          .blocking = 1,
                          .device = device,
                          .run = run_join};
    ncclResult_t result = check_ranks(comm, ranks, rank, function);

    if (result == ncclSuccess && id == NULL)
        result = refuse(ncclInvalidArgument, "%s : commId argument is NULL", function);
    if (result == ncclSuccess)
        result = read_config(config, &birth.blocking);
    if (result != ncclSuccess)
        return group_fault(result);
    birth.id = *id;
    birth.max_ctas = config != NULL ? config->maxCTAs : INT_MIN;
    birth.kind = wire_kind_of(id);
    return begin(&birth, NULL);
}

EXPORTED(ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank),
         (comm, ranks, id, rank))
{
    return init(comm, ranks, &id, rank, -1, NULL, "CommInitRank");
}

EXPORTED(ncclCommInitRankConfig,
         (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config),
         (comm, ranks, id, rank, config))
{
    return init(comm, ranks, &id, rank, -1, config, "CommInitRankConfig");
}

EXPORTED(ncclCommInitRankScalable,
         (ncclComm_t * comm, int ranks, int rank, int id_count, ncclUniqueId *ids,
          ncclConfig_t *config),
         (comm, ranks, rank, id_count, ids, config))
{
    if (id_count < 1 || id_count > ranks)
        return group_fault(refuse(ncclInvalidArgument,
                                  "improper usage of "
                                  "ncclCommInitRankScalable: nId = %d",
                                  id_count));
    return init(comm, ranks, ids, rank, -1, config, "CommInitRankScalable");
}

EXPORTED(ncclCommInitAll, (ncclComm_t * comms, int count, const int *devices),
         (comms, count, devices))
{
    ncclUniqueId id;
    ncclResult_t result;

    if (comms == NULL || count < 1 || count > MOST_RANKS)
        return refuse(ncclInvalidArgument, "Invalid device count requested : %d", count);
    result = reach_id(&id, "CommInitAll");
    if (result != ncclSuccess)
        return result;
    group_start();
    for (int i = 0; i < count; i++)
        (void)init(&comms[i], count, &id, i, devices != NULL ? devices[i] : i, NULL, "CommInitAll");
    return group_end();
}

/* ---- from another communicator ---- */

struct ballot {
    int color, key;
};

static int is_before(const struct ballot *all, int a, int b)
{
    return all[a].key < all[b].key || (all[a].key == all[b].key && a < b);
}

/* The place of a rank among those of its color. */
static int rank_among(const struct ballot *all, int ranks, int rank)
{
    int before = 0;

    for (int r = 0; r < ranks; r++)
        before += all[r].color == all[rank].color && is_before(all, r, rank);
    return before;
}

static ncclResult_t run_split(struct task *task)
{
    const struct ballot mine = {task->color, task->key};
    struct ballot all[MOST_RANKS];
    struct ncclComm *comm = task->comm, *parent = task->parent;
    const ncclResult_t result = comm_exchange(parent, task->ticket, &mine, all, sizeof mine);

    if (result != ncclSuccess || task->born == NULL)
        return result;
    for (int r = 0; r < parent->ranks; r++)
        if (all[r].color == task->color) {
            comm->ranks++;
            comm->places[rank_among(all, parent->ranks, r)] = parent->places[r];
        }
    comm->rank = rank_among(all, parent->ranks, parent->rank);
    name_by_parent(comm->name, parent, "split", task->ticket, task->color);
    return comm_join(comm);
}

EXPORTED(ncclCommSplit,
         (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config),
         (comm, color, key, child, config))
{
    const struct task none = {.run = run_split, .comm = comm, .parent = comm, .color = color};
    struct birth birth = {.born = child,
                          .is_child = 1,
                          .parent = comm,
                          .device = -1,
                          .run = run_split,
                          .color = color,
                          .key = key};
    ncclResult_t result = comm_alive(comm, "CommSplit");

    if (result == ncclSuccess)
        result = check_ranks(child, 1, 0, "CommSplit");
    if (result == ncclSuccess && color < NCCL_SPLIT_NOCOLOR)
        result = refuse(ncclInvalidArgument, "CommSplit : color must be non-negative");
    if (result == ncclSuccess) {
        birth.blocking = comm->blocking;
        birth.kind = comm->kind;
        result = read_config(config, &birth.blocking);
    }
    if (result != ncclSuccess)
        return group_fault(result);
    *child = NULL;
    return color == NCCL_SPLIT_NOCOLOR ? group_task(&none) : begin(&birth, comm->name);
}

/* A name that only depends on what all ranks of the child know: those that are excluded now may
 * have shrunk the communicator with others before. */
static ncclResult_t name_of_shrinking(char *name, struct ncclComm *comm, uint64_t excluded)
{
    struct shrinking *at = comm->shrinkings;
    char how[32];

    while (at != NULL && at->excluded != excluded)
        at = at->next;
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL)
            return refuse(ncclSystemError, "out of memory");
        at->excluded = excluded;
        at->next = comm->shrinkings;
        comm->shrinkings = at;
    }
    snprintf(how, sizeof how, "shrink %llx", (unsigned long long)excluded);
    name_by_parent(name, comm, how, at->count++, 0);
    return ncclSuccess;
}

static int is_in(int rank, const int *list, int count)
{
    for (int i = 0; i < count; i++)
        if (list[i] == rank)
            return 1;
    return 0;
}

EXPORTED(ncclCommShrink,
         (ncclComm_t comm, int *excluded, int count, ncclComm_t *child, ncclConfig_t *config,
          int flags),
         (comm, excluded, count, child, config, flags))
{
    struct birth birth = {.born = child, .is_child = 1, .device = -1, .run = run_join};
    char name[NAME_BYTES];
    uint64_t lost = 0;
    ncclResult_t result = flags & NCCL_SHRINK_ABORT ? comm_check(comm, "CommShrink")
                                                    : comm_alive(comm, "CommShrink");

    if (result == ncclSuccess)
        result = check_ranks(child, 1, 0, "CommShrink");
    if (result == ncclSuccess && (excluded == NULL || count < 1 || count >= comm->ranks ||
                                  is_in(comm->rank, excluded, count)))
        result = refuse(ncclInvalidArgument, "CommShrink : invalid list of excluded ranks");
    if (result == ncclSuccess) {
        birth.blocking = comm->blocking;
        result = read_config(config, &birth.blocking);
    }
    if (result != ncclSuccess)
        return group_fault(result);
    if (flags & NCCL_SHRINK_ABORT)
        comm_stop(comm, STOP_REVOKED);
    birth.kind = comm->kind;
    for (int r = 0; r < comm->ranks; r++) {
        if (r == comm->rank)
            birth.rank = birth.ranks;
        if (is_in(r, excluded, count))
            lost |= (uint64_t)1 << r;
        else
            birth.places[birth.ranks++] = comm->places[r];
    }
    result = name_of_shrinking(name, comm, lost);
    return result == ncclSuccess ? begin(&birth, name) : group_fault(result);
}

/* One rank of the old communicator has the id. */
static ncclResult_t run_growth(struct task *task)
{
    static const ncclUniqueId none;
    ncclUniqueId all[MOST_RANKS];
    const ncclResult_t result = comm_exchange(task->parent, task->ticket, &task->id, all,
                                              sizeof task->id);
    int r = 0;

    if (result != ncclSuccess)
        return result;
    while (r < task->parent->ranks && memcmp(&all[r], &none, sizeof none) == 0)
        r++;
    if (r == task->parent->ranks)
        return refuse(ncclInvalidArgument, "CommGrow : no rank has a uniqueId");
    if (wire_kind_of(&all[r]) != task->comm->kind)
        return refuse(ncclInvalidUsage, "CommGrow : the uniqueId is of another STAND_IN_WIRE");
    name_by_id(task->comm, &all[r]);
    return comm_join(task->comm);
}

EXPORTED(ncclCommGrow,
         (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *child,
          ncclConfig_t *config),
         (comm, ranks, id, rank, child, config))
{
    struct birth birth = {
        .born = child, .is_child = 1, .parent = comm, .device = -1, .run = run_growth};
    ncclResult_t result;

    if (comm == NULL)
        return init(child, ranks, id, rank, -1, config, "CommGrow");
    result = comm_ready(comm, "CommGrow");
    if (result == ncclSuccess)
        result = check_ranks(child, ranks, comm->rank, "CommGrow");
    if (result == ncclSuccess && (rank != -1 || ranks <= comm->ranks))
        result = refuse(ncclInvalidArgument, "CommGrow : rank must be -1, and ranks more than %d",
                        comm->ranks);
    if (result == ncclSuccess) {
        birth.blocking = comm->blocking;
        result = read_config(config, &birth.blocking);
    }
    if (result != ncclSuccess)
        return group_fault(result);
    birth.ranks = ranks;
    birth.rank = comm->rank;
    birth.kind = comm->kind;
    if (id != NULL)
        birth.id = *id;
    return begin(&birth, NULL);
}
