/* How a rendezvous ends, and what is remembered of it; who is late. Under the poll lock. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/bootstrap/rendezvous.h"

enum {
    ANSWER_MS = 400, /* for the answer of a process that runs */
    WORD_MS = 800,   /* for the creator's word on a failure of a far rendezvous */
    MOST_PAST = 64   /* outcomes that are remembered */
};

static const char call[] = "symwin_comm_create";

/* The outcome of a rendezvous, for ranks that come too late. */
struct past {
    unsigned char name[SW_NAME_BYTES];
    unsigned char secret[SW_KEY_BYTES]; /* for the proof over TCP */
    int proves;                         /* the id has a TCP address */
    symwin_status status;
    int culprit;
    char text[SW_TEXT_BYTES];
};

struct all_rendezvous sw_rendezvous = {.changed = PTHREAD_COND_INITIALIZER};

static struct past all_past[MOST_PAST];
static unsigned past_count;

/* ---- the end ---- */

void sw_rendezvous_free(struct rendezvous *m)
{
    sw_up_drop(m);
    sw_connection_drop(&m->above);
    sw_connection_drop(&m->passed);
    sw_rank_table_free(&m->table);
    free(m->file);
    free(m->slots);
    sw_wipe(&m->id, sizeof m->id);
    sw_wipe(&m->all, sizeof m->all);
    free(m);
}

/* Whether ranks of other processes may still try to join. */
static int more_may_join(const struct rendezvous *m)
{
    const int other_hosts = m->id.family != 0 && m->nranks > 0;

    return (m->foreign || other_hosts || sw_listener_next(m, NULL) != NULL) &&
           (m->nranks == 0 || m->joined < m->nranks);
}

/* Whether the connection has become a host link: nothing may be sent on it from here. */
static int is_linked(const struct rendezvous *m, const struct sw_accepted *v)
{
    int r;

    for (r = 0; r < m->nranks && m->slots != NULL; r++)
        if (m->slots[r].accepted == v && m->slots[r].linked)
            return 1;
    return v->is_link;
}

/* After a failure: processes and hosts that already have a group learn of it as of any end of a
 * communicator. Hosts below must learn it before the link to them closes, so this host decides for
 * them; to the one above it is a proposal. No rank anywhere can succeed without those here. */
static void end_others(struct rendezvous *m)
{
    if (m->group != NULL) {
        m->is_spoken_for = sw_exchange_speaks(m->group->exchange);
        sw_exchange_decide(m->group->exchange, m->status,
                           m->culprit >= 0 ? m->culprit : m->group->leader);
        sw_group_free(m->group);
        m->group = NULL;
    }
}

/* Whether this process tells other hosts over their links, also those that it has handed to its
 * host's linking process. If that one has sent a frame, this one's are invalid: so only if that
 * process is at fault itself, and has not sent any. */
static int speaks_on_links(const struct rendezvous *m)
{
    return m->linking < 0 ||
           (!m->is_spoken_for && m->culprit >= 0 && m->culprit < m->nranks &&
            memcmp(m->slots[m->culprit].process, m->slots[m->linking].process, SW_NAME_BYTES) == 0);
}

static void say_end(const struct rendezvous *m, struct sw_connection *link)
{
    if (link->fd >= 0 && speaks_on_links(m))
        sw_host_link_say_end(link, m->status, m->culprit >= 0 ? m->culprit : SW_NOBODY);
}

/* Refuses the connections of a rendezvous that has failed; drops them if it succeeded. */
static void close_connections(struct rendezvous *m)
{
    struct sw_accepted *v;

    sw_up_leave_above(m);
    if (m->status != SYMWIN_OK) { /* the host above may have its group */
        if (m->above.fd >= 0)
            sw_up_refuse(m, &m->above);
        say_end(m, &m->passed);
    }
    while ((v = sw_listener_next(m, NULL)) != NULL) {
        if (m->moved)
            sw_listener_redirect(v, m->here);
        else if (m->status == SYMWIN_OK || is_linked(m, v)) {
            if (m->status != SYMWIN_OK && v->is_link) /* so may those below */
                say_end(m, &v->connection);
            sw_listener_drop(v);
        } else
            sw_listener_refuse(v, m->status, m->culprit, m->text);
    }
}

static void remember(const struct rendezvous *m)
{
    struct past *past = &all_past[past_count++ % MOST_PAST];
    const int failed = m->status != SYMWIN_OK;

    memcpy(past->name, m->name, sizeof past->name);
    past->proves = m->id.family != 0; /* over a local socket the peer credentials do */
    sw_wipe(past->secret, sizeof past->secret);
    if (past->proves)
        memcpy(past->secret, m->id.secret, sizeof past->secret);
    past->status = failed ? m->status : SYMWIN_INVALID;
    past->culprit = failed ? m->culprit : SW_FRAME_UNKNOWN;
    snprintf(past->text, sizeof past->text, "%s",
             failed ? m->text
                    : "symwin_comm_create: this id has been used; make a new one for every "
                      "communicator");
}

/* Ends the rendezvous with m->status and m->text. May free it. */
void sw_rendezvous_end(struct rendezvous *m)
{
    struct rendezvous **at = &sw_rendezvous.list;
    const int failed = m->status != SYMWIN_OK;
    const int linger = failed && more_may_join(m);

    m->over = 1;
    if (!m->moved)
        remember(m);
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    sw_poll_remove(&m->timer);
    if (m->file != NULL)
        unlink(m->file);
    if (failed)
        end_others(m);
    close_connections(m);
    sw_up_drop(m);
    if (m->waiting == 0)
        sw_rendezvous_free(m);
    else
        pthread_cond_broadcast(&sw_rendezvous.changed);
    sw_listener_close(linger);
}

/* Ends the rendezvous with the last error's text. What the creator has decided replaces what was
 * proposed to it. */
void sw_rendezvous_decide(struct rendezvous *m, symwin_status status)
{
    m->status = status;
    snprintf(m->text, sizeof m->text, "%s", symwin_last_error());
    sw_rendezvous_end(m);
}

/* The same; in a far rendezvous the creator decides, if it can be asked. The first failure
 * counts. */
void sw_rendezvous_fail(struct rendezvous *m, symwin_status status)
{
    if (m->proposed)
        return;
    if (m->up.fd < 0) {
        sw_rendezvous_decide(m, status);
        return;
    }
    m->proposed = 1;
    m->status = status;
    snprintf(m->text, sizeof m->text, "%s", symwin_last_error());
    sw_up_refuse(m, &m->up);
    if (m->above.fd >= 0) /* behind its GO the creator reads from hosts below it alone */
        sw_up_refuse(m, &m->above);
    m->timer.deadline = sw_now_ms() + WORD_MS;
    sw_poll_changed();
}

/* The lowest rank that has not joined, if there is one, not one that says that it waits for another
 * rank of its host; if all have, the lowest that has not said that its host is linked, or that is
 * awaited and not ready. */
static int first_late(const struct rendezvous *m)
{
    const int all_joined = m->joined == m->nranks;
    int r = 0;

    if (m->unlinked > 0) {
        while (r < m->nranks - 1 &&
               (m->slots[r].has_links || !m->slots[r].remote || m->slots[r].accepted == NULL))
            r++;
        return r;
    }
    while (r < m->nranks && (all_joined ? !m->slots[r].awaited || m->slots[r].ready
                                        : m->slots[r].taken || m->slots[r].waits))
        r++;
    if (r < m->nranks)
        return r;
    for (r = 0; r < m->nranks - 1 && m->slots[r].taken;)
        r++;
    return r;
}

/* The lowest rank that joined for another host, whose process does not answer; -1: all do. */
int sw_rendezvous_silent(const struct rendezvous *m)
{
    int r = 0;

    while (r < m->nranks && !m->slots[r].silent)
        r++;
    return r < m->nranks ? r : -1;
}

/* Asks the processes that have joined for other hosts whether they run: the ranks that are missing
 * may have joined there. Returns how many were asked. */
static int ask_hosts(struct rendezvous *m)
{
    union sw_frame frame;
    int asked = 0, r;

    sw_frame_seal(&frame, SW_FRAME_ASK);
    for (r = 0; r < m->nranks; r++)
        if (m->slots[r].remote && m->slots[r].accepted != NULL) {
            m->slots[r].silent = 1;
            sw_connection_send(&m->slots[r].accepted->connection, &frame, -1, sw_now_ms() + 1);
            asked++;
        }
    m->asked = 1;
    m->timer.deadline = sw_now_ms() + ANSWER_MS;
    sw_poll_changed();
    return asked;
}

void sw_rendezvous_fail_late(struct rendezvous *m)
{
    const int all_joined = m->joined == m->nranks && m->unlinked == 0;
    const int silent = sw_rendezvous_silent(m);
    const int late = silent >= 0 && !all_joined ? silent : first_late(m);

    if (all_joined && m->first_due < 0)
        sw_fail(SYMWIN_TIMEOUT,
                "%s: rank %d joined, but was not ready when the time of the first rank was over",
                call, late);
    else if (all_joined || (m->unlinked > 0 && silent < 0))
        sw_fail(SYMWIN_TIMEOUT,
                "%s: rank %d joined, but was not ready within %d ms, the timeout of rank %d", call,
                late, m->timeout_ms, m->first_due);
    else if (silent >= 0)
        sw_fail(SYMWIN_TIMEOUT,
                "%s: the process of rank %d, which joins for the ranks of its host, did not answer "
                "within %d ms, the timeout of rank %d",
                call, late, m->timeout_ms, m->first_due);
    else
        sw_fail(SYMWIN_TIMEOUT,
                "%s: rank %d did not join within %d ms, the timeout of rank %d (%d of %d ranks "
                "did); start every rank with this id",
                call, late, m->timeout_ms, m->first_due, m->joined, m->nranks);
    m->culprit = late;
    sw_rendezvous_decide(m, SYMWIN_TIMEOUT);
}

void sw_rendezvous_late(struct sw_poll_watch *watch, short events)
{
    struct rendezvous *m = (struct rendezvous *)(void *)((char *)watch -
                                                         offsetof(struct rendezvous, timer));

    (void)events;
    if (m->proposed) { /* the creator does not answer */
        sw_rendezvous_end(m);
    } else if (m->far && m->joined < m->nranks) {
        sw_up_drop(m);
        m->culprit = m->creator;
        sw_rendezvous_decide(m, sw_fail(SYMWIN_TIMEOUT,
                                        "%s: the process that made the id did not answer in time; "
                                        "look whether it runs, and whether this host reaches its "
                                        "address",
                                        call));
    } else if (m->far || (m->joined == m->nranks && m->unlinked == 0) || m->asked ||
               ask_hosts(m) == 0) {
        sw_rendezvous_fail_late(m);
    }
}

symwin_status sw_rendezvous_find(const unsigned char name[SW_NAME_BYTES], struct rendezvous **out,
                                 int *culprit, const unsigned char **secret)
{
    struct rendezvous *m = sw_rendezvous.list;
    unsigned i;

    while (m != NULL && memcmp(m->name, name, SW_NAME_BYTES) != 0 &&
           (m->all.family == 0 || memcmp(m->all_name, name, SW_NAME_BYTES) != 0))
        m = m->next;
    *out = m;
    *secret = NULL;
    if (m != NULL)
        *secret = memcmp(m->name, name, SW_NAME_BYTES) == 0 ? m->id.secret : m->all.secret;
    *culprit = SW_FRAME_UNKNOWN;
    if (m != NULL)
        return SYMWIN_OK;
    for (i = 0; i < MOST_PAST && i < past_count; i++) {
        const struct past *past = &all_past[i];

        if (memcmp(past->name, name, SW_NAME_BYTES) != 0)
            continue;
        *culprit = past->culprit;
        *secret = past->proves ? past->secret : NULL;
        return sw_fail(past->status, "%s", past->text);
    }
    return sw_fail(SYMWIN_INVALID, "%s: this id has been used, or another process made it", call);
}

int sw_rendezvous_is_over(const struct sw_id *id)
{
    const struct rendezvous *m = sw_rendezvous.list;
    unsigned char name[SW_NAME_BYTES];

    sw_id_name(id, name);
    while (m != NULL && memcmp(m->name, name, SW_NAME_BYTES) != 0)
        m = m->next;
    return m == NULL;
}

void sw_rendezvous_forget(void)
{
    sw_wipe(all_past, sizeof all_past);
    past_count = 0;
}
