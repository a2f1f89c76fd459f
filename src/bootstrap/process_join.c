/* How the ranks of one process share the group that their lowest rank creates: that rank publishes
 * the group, with a reference for each of the others, or the failure.
 *
 * Each other rank either waits and takes its reference, or abandons the join, because it failed
 * first; then the reference must be dropped for it. An abandoning rank does not know whether the
 * lowest rank will publish anything, so the entry that remembers it expires.
 *
 * Entries are found by the name of the id, under the poll lock. Calls without the lock, from the
 * ranks' threads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/member.h"

enum { REMEMBERED_MS = 60000 }; /* past the abandoning rank's deadline: others may be later */

struct sw_process_join {
    struct sw_process_join *next;
    unsigned char name[SW_NAME_BYTES]; /* of the id */
    symwin_status status;
    struct sw_group *group; /* published; NULL after a failure */
    char text[SW_TEXT_BYTES];
    int rank;      /* that made this entry, among all ranks */
    int waiting;   /* ranks that have not taken their reference */
    int64_t until; /* of an abandoned join: the entry expires then */
};

static struct {
    pthread_cond_t changed;
    struct sw_process_join *published;
    struct sw_process_join *abandoned;
} joins = {.changed = PTHREAD_COND_INITIALIZER};

/* ---- under the poll lock ---- */

/* In a forked child: the joins are the parent's. */
static void forget(void)
{
    joins.published = NULL;
    joins.abandoned = NULL;
    pthread_cond_init(&joins.changed, NULL);
}

static struct sw_process_join **find_published(const unsigned char name[SW_NAME_BYTES])
{
    struct sw_process_join **at = &joins.published;

    while (*at != NULL && memcmp((*at)->name, name, SW_NAME_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

/* Takes one rank's reference, or the failure with its text as the last error. The last rank frees
 * the entry. */
static symwin_status take_reference(struct sw_process_join **at, struct sw_group **out)
{
    struct sw_process_join *a = *at;
    const symwin_status status = a->status;

    *out = a->group;
    if (status != SYMWIN_OK)
        sw_fail(status, "%s", a->text);
    if (--a->waiting == 0) {
        *at = a->next;
        free(a);
    }
    return status;
}

/* Removes the joins of an id that `rank` (-1: any rank) has abandoned; returns them as a list. */
static struct sw_process_join *take_abandoned(const unsigned char name[SW_NAME_BYTES], int rank)
{
    struct sw_process_join **at = &joins.abandoned;
    struct sw_process_join *taken = NULL;

    while (*at != NULL) {
        struct sw_process_join *a = *at;

        if (memcmp(a->name, name, SW_NAME_BYTES) != 0 || (rank >= 0 && a->rank != rank)) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        a->next = taken;
        taken = a;
    }
    return taken;
}

/* Remembers an abandoned join, and forgets those that have expired. */
static void remember_abandoned(struct sw_process_join *own, symwin_status status, int64_t deadline)
{
    struct sw_process_join **at = &joins.abandoned;
    const int64_t now = sw_now_ms();

    while (*at != NULL) {
        struct sw_process_join *a = *at;

        if (a->until > now) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        free(a);
    }
    own->status = status;
    own->until = deadline + REMEMBERED_MS;
    own->next = joins.abandoned;
    joins.abandoned = own;
}

/* ---- without the poll lock ---- */

/* Leaves on behalf of a rank that has abandoned its join; the other ranks need not wait for it. */
static void leave_for(struct sw_group *group, int rank, symwin_status status)
{
    sw_exchange_fail(group->exchange, status, rank);
    sw_group_leave(group, rank);
}

struct sw_process_join *sw_process_join_new(const struct sw_id *id, int rank)
{
    struct sw_process_join *own = calloc(1, sizeof *own), *before;

    sw_fork_register(forget);
    if (own == NULL)
        return NULL;
    sw_id_name(id, own->name);
    own->rank = rank;
    sw_poll_lock();
    before = take_abandoned(own->name, rank); /* this rank joins after all */
    sw_poll_unlock();
    free(before);
    return own;
}

void sw_process_join_free(struct sw_process_join *own)
{
    free(own);
}

void sw_process_join_publish(struct sw_process_join *own, int mates, symwin_status status,
                             struct sw_group *group)
{
    struct sw_process_join *abandoned, *next;

    own->status = status;
    own->group = group;
    own->waiting = mates;
    if (status != SYMWIN_OK)
        snprintf(own->text, sizeof own->text, "%s", symwin_last_error());
    sw_poll_lock();
    abandoned = take_abandoned(own->name, -1);
    for (next = abandoned; next != NULL; next = next->next)
        own->waiting--;
    if (own->waiting > 0) {
        own->next = joins.published;
        joins.published = own;
        own = NULL;
        pthread_cond_broadcast(&joins.changed);
    }
    sw_poll_unlock();
    free(own);
    for (; abandoned != NULL; abandoned = next) {
        next = abandoned->next;
        if (group != NULL)
            leave_for(group, abandoned->rank, abandoned->status);
        free(abandoned);
    }
}

symwin_status sw_process_join_await(struct sw_process_join *own, int64_t deadline,
                                    struct sw_group **out)
{
    symwin_status status = SYMWIN_OK;

    sw_poll_lock();
    while (*find_published(own->name) == NULL && status == SYMWIN_OK)
        if (!sw_poll_wait(&joins.changed, deadline) && *find_published(own->name) == NULL)
            status = SYMWIN_TIMEOUT;
    if (status == SYMWIN_OK) {
        status = take_reference(find_published(own->name), out);
        free(own);
    } else {
        remember_abandoned(own, status, deadline);
        sw_fail(status, "symwin_comm_create: the lowest rank of this process did not create the "
                        "communicator in time");
    }
    sw_poll_unlock();
    return status;
}

void sw_process_join_abandon(struct sw_process_join *own, symwin_status status, int64_t deadline)
{
    const int rank = own->rank;
    struct sw_group *group = NULL;
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    sw_poll_lock();
    if (*find_published(own->name) == NULL) {
        remember_abandoned(own, status, deadline);
        own = NULL;
    } else {
        take_reference(find_published(own->name), &group);
    }
    sw_poll_unlock();
    free(own);
    if (group != NULL)
        leave_for(group, rank, status);
    sw_error_restore(text);
}
