/* What the lowest rank of a process brings home, for the other ranks of the process: a group that has a reference for
 * each of them, or why there is none.
 *
 * Who comes takes its reference. Who fails on its way declines it: nobody else would give it back. Whether the lowest
 * rank brings anything home it cannot know then, so what it declines may be remembered for nothing, but not for good.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"

enum { REMEMBERED_MS = 60000 }; /* beyond the time of who declined: another rank may have more */

struct sw_arrival {
    struct sw_arrival *next;
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
    struct sw_arrival *home;
    struct sw_arrival *declined;
} arrivals = {.changed = PTHREAD_COND_INITIALIZER};

/* ---- under the service lock ---- */

static struct sw_arrival **home_of(const unsigned char name[SW_NAME_BYTES])
{
    struct sw_arrival **at = &arrivals.home;

    while (*at != NULL && memcmp((*at)->name, name, SW_NAME_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

/* Takes one rank's part of what is there; its sentence is last said. */
static symwin_status take(struct sw_arrival **at, struct sw_group **out)
{
    struct sw_arrival *a = *at;
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
static struct sw_arrival *take_declined(const unsigned char name[SW_NAME_BYTES], int rank)
{
    struct sw_arrival **at = &arrivals.declined;
    struct sw_arrival *taken = NULL;

    while (*at != NULL) {
        struct sw_arrival *a = *at;

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

static void remember(struct sw_arrival *own, symwin_status status, int64_t deadline)
{
    struct sw_arrival **at = &arrivals.declined;
    const int64_t now = sw_now_ms();

    while (*at != NULL) {
        struct sw_arrival *a = *at;

        if (a->until > now) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        free(a);
    }
    own->status = status;
    own->until = deadline + REMEMBERED_MS;
    own->next = arrivals.declined;
    arrivals.declined = own;
}

/* ---- without it ---- */

/* For a rank that does not come: the others need not wait for it. */
static void leave_for(struct sw_group *group, int rank, symwin_status status)
{
    sw_exchange_fail(group->exchange, status, rank);
    sw_bootstrap_leave(group, rank);
}

struct sw_arrival *sw_arrival_new(const struct sw_id *id, int rank)
{
    struct sw_arrival *own = calloc(1, sizeof *own), *before;

    if (own == NULL)
        return NULL;
    sw_id_name(id, own->name);
    own->rank = rank;
    sw_service_lock();
    before = take_declined(own->name, rank); /* it comes after all */
    sw_service_unlock();
    free(before);
    return own;
}

void sw_arrival_free(struct sw_arrival *own)
{
    free(own);
}

void sw_arrival_announce(struct sw_arrival *own, int mates, symwin_status status,
                         struct sw_group *group)
{
    struct sw_arrival *declined, *next;

    own->status = status;
    own->group = group;
    own->waiting = mates;
    if (status != SYMWIN_OK)
        snprintf(own->text, sizeof own->text, "%s", symwin_last_error());
    sw_service_lock();
    declined = take_declined(own->name, -1);
    for (next = declined; next != NULL; next = next->next)
        own->waiting--;
    if (own->waiting > 0) {
        own->next = arrivals.home;
        arrivals.home = own;
        own = NULL;
        pthread_cond_broadcast(&arrivals.changed);
    }
    sw_service_unlock();
    free(own);
    for (; declined != NULL; declined = next) {
        next = declined->next;
        if (group != NULL)
            leave_for(group, declined->rank, declined->status);
        free(declined);
    }
}

symwin_status sw_arrival_await(struct sw_arrival *own, int64_t deadline, struct sw_group **out)
{
    symwin_status status = SYMWIN_OK;

    sw_service_lock();
    while (*home_of(own->name) == NULL && status == SYMWIN_OK)
        if (!sw_service_wait(&arrivals.changed, deadline) && *home_of(own->name) == NULL)
            status = SYMWIN_TIMEOUT;
    if (status == SYMWIN_OK) {
        status = take(home_of(own->name), out);
        free(own);
    } else {
        remember(own, status, deadline);
        sw_fail(status, "symwin_comm_create: the lowest rank of this process did not bring the "
                        "communicator home");
    }
    sw_service_unlock();
    return status;
}

void sw_arrival_decline(struct sw_arrival *own, symwin_status status, int64_t deadline)
{
    const int rank = own->rank;
    struct sw_group *group = NULL;
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    sw_service_lock();
    if (*home_of(own->name) == NULL) {
        remember(own, status, deadline);
        own = NULL;
    } else {
        take(home_of(own->name), &group);
    }
    sw_service_unlock();
    free(own);
    if (group != NULL)
        leave_for(group, rank, status);
    sw_error_restore(text);
}

void sw_arrivals_forked(void)
{
    arrivals.home = NULL;
    arrivals.declined = NULL;
    pthread_cond_init(&arrivals.changed, NULL);
}
