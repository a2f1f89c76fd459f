/* What the lowest rank of a process brings home, for the other ranks of the process: a group that has a reference for
 * each of them, or why there is none.
 *
 * Who comes takes its reference. Who fails on its way declines it: nobody else would give it back. Whether the lowest
 * rank brings anything home it cannot know then, so what it declines may be remembered for nothing, but not for good.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/member.h"

enum { REMEMBERED_MS = 60000 }; /* beyond the time of who declined: another rank may have more */

struct sw_process_join {
    struct sw_process_join *next;
    unsigned char name[SW_NAME_BYTES]; /* of the id */
    symwin_status status;
    struct sw_group *group; /* brought home */
    char text[SW_TEXT_BYTES];
    int rank;      /* who has this, or has declined */
    int waiting;   /* ranks that are still to take it */
    int64_t until; /* when it was declined: until when that is remembered */
};

static struct {
    pthread_cond_t changed;
    struct sw_process_join *home;
    struct sw_process_join *abandoned;
} joins = {.changed = PTHREAD_COND_INITIALIZER};

/* ---- under the service lock ---- */

static struct sw_process_join **home_of(const unsigned char name[SW_NAME_BYTES])
{
    struct sw_process_join **at = &joins.home;

    while (*at != NULL && memcmp((*at)->name, name, SW_NAME_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

/* Takes one rank's part of what is there; its sentence is last said. */
static symwin_status take(struct sw_process_join **at, struct sw_group **out)
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

/* What was declined under a name, by `rank` or, -1, by any; as a list. */
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

static void remember(struct sw_process_join *own, symwin_status status, int64_t deadline)
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

/* ---- without it ---- */

/* For a rank that does not come: the others need not wait for it. */
static void leave_for(struct sw_group *group, int rank, symwin_status status)
{
    sw_exchange_fail(group->exchange, status, rank);
    sw_bootstrap_leave(group, rank);
}

struct sw_process_join *sw_process_join_new(const struct sw_id *id, int rank)
{
    struct sw_process_join *own = calloc(1, sizeof *own), *before;

    if (own == NULL)
        return NULL;
    sw_id_name(id, own->name);
    own->rank = rank;
    sw_poll_lock();
    before = take_abandoned(own->name, rank); /* it comes after all */
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
        own->next = joins.home;
        joins.home = own;
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
    while (*home_of(own->name) == NULL && status == SYMWIN_OK)
        if (!sw_poll_wait(&joins.changed, deadline) && *home_of(own->name) == NULL)
            status = SYMWIN_TIMEOUT;
    if (status == SYMWIN_OK) {
        status = take(home_of(own->name), out);
        free(own);
    } else {
        remember(own, status, deadline);
        sw_fail(status, "symwin_comm_create: the lowest rank of this process did not bring the "
                        "communicator home");
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
    if (*home_of(own->name) == NULL) {
        remember(own, status, deadline);
        own = NULL;
    } else {
        take(home_of(own->name), &group);
    }
    sw_poll_unlock();
    free(own);
    if (group != NULL)
        leave_for(group, rank, status);
    sw_error_restore(text);
}

void sw_process_join_forked(void)
{
    joins.home = NULL;
    joins.abandoned = NULL;
    pthread_cond_init(&joins.changed, NULL);
}
