/* How ranks find each other: threads of this process that pass the same unique id.
 *
 * The first rank to come opens a meeting under the id, the others join it, and when the last is
 * there the meeting closes: an id serves once. What they then share is a struct sw_group.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static const unsigned char id_magic[8] = "symwin01";

/* Ranks of one communicator that have come so far. */
struct meeting {
    struct meeting *next;
    symwin_unique_id id;
    struct sw_group *group;
    int come;             /* ranks that joined */
    int inside;           /* ranks that still look at this meeting; the last frees it */
    symwin_status status; /* what ended it before all had come */
    int culprit;
    int other_nranks;        /* the culprit's, for SYMWIN_MISMATCH */
    unsigned char present[]; /* nranks */
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct meeting *meetings;
} bootstrap = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const char call[] = "symwin_comm_create";

symwin_status symwin_unique_id_create(symwin_unique_id *id)
{
    symwin_unique_id fresh = {{0}};
    ssize_t got;

    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_unique_id_create: id is NULL");
    memcpy(fresh.bytes, id_magic, sizeof id_magic);
    do
        got = getrandom(fresh.bytes + sizeof id_magic, 32, 0);
    while (got < 0 && errno == EINTR);
    if (got != 32)
        return sw_fail(SYMWIN_DENIED, "symwin_unique_id_create: getrandom failed: %s",
                       strerror(errno));
    *id = fresh;
    return SYMWIN_OK;
}

static struct sw_group *group_create(int nranks)
{
    struct sw_group *group = calloc(1, sizeof *group);

    if (group == NULL)
        return NULL;
    group->nranks = nranks;
    group->exchange = sw_exchange_create(nranks);
    group->reports = calloc((size_t)nranks, sizeof *group->reports);
    if (group->exchange == NULL || group->reports == NULL ||
        pthread_mutex_init(&group->mutex, NULL) != 0) {
        sw_exchange_destroy(group->exchange);
        free(group->reports);
        free(group);
        return NULL;
    }
    return group;
}

static void group_destroy(struct sw_group *group)
{
    if (group->base != 0)
        sw_drop(sw_drv.cuMemAddressFree(group->base, group->range_bytes), "cuMemAddressFree");
    pthread_mutex_destroy(&group->mutex);
    sw_exchange_destroy(group->exchange);
    free(group->devices);
    free(group->reports);
    free(group);
}

void sw_bootstrap_leave(struct sw_group *group, int rank)
{
    sw_exchange_leave(group->exchange, rank);
    if (atomic_fetch_sub(&group->refs, 1) == 1)
        group_destroy(group);
}

/* The open meeting under `id`, opened if there is none; NULL: no memory. Under the mutex. */
static struct meeting *meeting_open(const symwin_unique_id *id, int nranks)
{
    struct meeting *m;

    for (m = bootstrap.meetings; m != NULL; m = m->next)
        if (memcmp(&m->id, id, sizeof *id) == 0)
            return m;
    m = calloc(1, sizeof *m + (size_t)nranks);
    if (m == NULL)
        return NULL;
    m->group = group_create(nranks);
    if (m->group == NULL) {
        free(m);
        return NULL;
    }
    m->id = *id;
    m->next = bootstrap.meetings;
    bootstrap.meetings = m;
    return m;
}

/* Nobody can join any more. Under the mutex. */
static void meeting_close(struct meeting *m)
{
    struct meeting **at = &bootstrap.meetings;

    while (*at != NULL && *at != m)
        at = &(*at)->next;
    if (*at == m)
        *at = m->next;
    pthread_cond_broadcast(&bootstrap.changed);
}

static void meeting_fail(struct meeting *m, symwin_status status, int culprit)
{
    if (m->status == SYMWIN_OK) {
        m->status = status;
        m->culprit = culprit;
    }
    meeting_close(m);
}

/* The sentence for the calling rank. Under the mutex. */
static symwin_status meeting_error(const struct meeting *m, int timeout_ms)
{
    switch (m->status) {
    case SYMWIN_MISMATCH:
        return sw_fail(
            m->status,
            "%s: nranks differ: the first rank to come passed %d, rank %d passed %d; pass "
            "the same on every rank",
            call, m->group->nranks, m->culprit, m->other_nranks);
    case SYMWIN_INVALID:
        return sw_fail(m->status, "%s: rank %d came twice under one id; pass each rank once", call,
                       m->culprit);
    default:
        return sw_fail(
            m->status,
            "%s: rank %d did not come within %d ms (%d of %d ranks did); start every rank "
            "with this id",
            call, m->culprit, timeout_ms, m->come, m->group->nranks);
    }
}

static int first_absent(const struct meeting *m)
{
    int r = 0;

    while (r < m->group->nranks - 1 && m->present[r])
        r++;
    return r;
}

/* Waits until the meeting is complete or has failed. Under the mutex. */
static void meeting_wait(struct meeting *m, int timeout_ms)
{
    struct timespec deadline;

    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    while (m->status == SYMWIN_OK && m->come < m->group->nranks)
        if (pthread_cond_clockwait(&bootstrap.changed, &bootstrap.mutex, CLOCK_MONOTONIC,
                                   &deadline) == ETIMEDOUT &&
            m->status == SYMWIN_OK && m->come < m->group->nranks)
            meeting_fail(m, SYMWIN_TIMEOUT, first_absent(m));
}

symwin_status sw_bootstrap_join(const symwin_unique_id *id, int nranks, int rank, int timeout_ms,
                                struct sw_group **out)
{
    symwin_status status = SYMWIN_OK;
    struct meeting *m;

    if (memcmp(id->bytes, id_magic, sizeof id_magic) != 0)
        return sw_fail(SYMWIN_INVALID, "%s: id was not made by symwin_unique_id_create", call);
    pthread_mutex_lock(&bootstrap.mutex);
    m = meeting_open(id, nranks);
    if (m == NULL) {
        pthread_mutex_unlock(&bootstrap.mutex);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, nranks);
    }
    m->inside++;
    if (nranks != m->group->nranks) {
        m->other_nranks = nranks;
        meeting_fail(m, SYMWIN_MISMATCH, rank);
    } else if (m->present[rank]) {
        meeting_fail(m, SYMWIN_INVALID, rank);
    } else {
        m->present[rank] = 1;
        if (++m->come == nranks) {
            atomic_store(&m->group->refs, nranks); /* before the first to wake can leave again */
            meeting_close(m);
        }
    }
    meeting_wait(m, timeout_ms);
    status = m->status;
    if (status == SYMWIN_OK)
        *out = m->group;
    else
        meeting_error(m, timeout_ms);
    if (--m->inside == 0) {
        if (status != SYMWIN_OK)
            group_destroy(m->group);
        free(m);
    }
    pthread_mutex_unlock(&bootstrap.mutex);
    return status;
}
