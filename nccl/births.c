/* Births are NCCL's. What a communicator's configuration says of multiprocessors holds for symwin's
 * kernels too, so it is noted until the communicator's first call asks. */
#include <stdlib.h>

#include "nccl/calls.h"

#define CONFIG_MAGIC 0xcafebeefu

static struct note {
    struct note *next;
    ncclComm_t handle;
    int most;
} * notes;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct note **find(ncclComm_t handle)
{
    struct note **at = &notes;

    while (*at != NULL && (*at)->handle != handle)
        at = &(*at)->next;
    return at;
}

static int noted(ncclComm_t handle)
{
    const struct note *note;
    int most;

    pthread_mutex_lock(&mutex);
    note = *find(handle);
    most = note != NULL ? note->most : 0;
    pthread_mutex_unlock(&mutex);
    return most;
}

void sw_birth_note(ncclComm_t handle, int most)
{
    struct note **at, *gone = NULL;

    pthread_mutex_lock(&mutex);
    at = find(handle);
    if (most > 0 && *at == NULL && (*at = calloc(1, sizeof **at)) != NULL)
        (*at)->handle = handle;
    if (*at != NULL && most > 0) {
        (*at)->most = most;
    } else if (*at != NULL) {
        gone = *at;
        *at = gone->next;
    }
    pthread_mutex_unlock(&mutex);
    free(gone);
}

int sw_birth_limit(ncclComm_t handle)
{
    return sw_setup()->most_blocks > 0 ? sw_setup()->most_blocks : noted(handle);
}

void sw_birth_forget(ncclComm_t handle)
{
    sw_birth_note(handle, 0);
}

int sw_birth_asks(const ncclConfig_t *config, ncclComm_t parent)
{
    if (config == NULL)
        return noted(parent);
    if (config->size < sizeof *config || config->magic != CONFIG_MAGIC) /* before 2.17, or none */
        return 0;
    return config->maxCTAs > 0 ? config->maxCTAs : 0;
}

ncclResult_t sw_birth_is_over(const struct sw_from *from, ncclResult_t result,
                              const ncclComm_t *child, int most)
{
    if (!from->inside && child != NULL && (result == ncclSuccess || result == ncclInProgress)) {
        if (*child != NULL)
            sw_birth_note(*child, most);
        else if (most > 0 && sw_group_is_open(from->library)) /* NCCL sets it at the group's end */
            sw_group_add_birth(child, most);
    }
    return sw_error_is_nccls(result);
}

SW_DEFINE(ncclCommInitRankConfig,
          (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config),
          (comm, ranks, id, rank, config))
{
    const int most = sw_birth_asks(config, NULL);

    return sw_birth_is_over(
        from, SW_PASS(from, ncclCommInitRankConfig, (comm, ranks, id, rank, config)), comm, most);
}

SW_DEFINE(ncclCommInitRankScalable,
          (ncclComm_t * comm, int ranks, int rank, int count, ncclUniqueId *ids,
           ncclConfig_t *config),
          (comm, ranks, rank, count, ids, config))
{
    const int most = sw_birth_asks(config, NULL);

    return sw_birth_is_over(
        from, SW_PASS(from, ncclCommInitRankScalable, (comm, ranks, rank, count, ids, config)),
        comm, most);
}

SW_DEFINE(ncclCommSplit,
          (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config),
          (comm, color, key, child, config))
{
    const int most = sw_birth_asks(config, comm);

    return sw_birth_is_over(from, SW_PASS(from, ncclCommSplit, (comm, color, key, child, config)),
                            child, most);
}

SW_DEFINE(ncclCommGrow,
          (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *child,
           ncclConfig_t *config),
          (comm, ranks, id, rank, child, config))
{
    const int most = sw_birth_asks(config, comm);

    return sw_birth_is_over(
        from, SW_PASS(from, ncclCommGrow, (comm, ranks, id, rank, child, config)), child, most);
}
