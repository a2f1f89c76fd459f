/* How hosts get links, if they are too many for a star. Host h is below (h - 1) / sw_host_fan
 * (group.h), and the hosts below the creator's are linked by the connections by which they
 * have joined. The process that joins for a host listens by TCP, and its JOIN says where
 * (client.c). When all ranks have joined, the creator tells each host where the one above it
 * listens (ABOVE). The host joins there too, with the secret of the creator's id, and that
 * connection is the link. The table of ranks goes down by the links: the creator sends it to the
 * hosts below its own, and each host to those below it. A host that has the table and all of its
 * links says so (LINKED); when all have, the creator goes on (hand_out.c). What fails until then
 * is for the creator to decide, as before.
 *
 * * Under the poll lock. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/bootstrap/member.h"
#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

enum {
    TRY_MS = 500,  /* for one attempt; who is lost or stopped is for the creator to find */
    PASS_MS = 200, /* for the table, to a host below; one that does not take it comes again */
};

/* ---- at the creator ---- */

/* The table, for a host below this one, and where the one above it listens. `joiners`: the rank
 * that has joined for each host. */
static symwin_status tell_above(struct rendezvous *m, int host, const int *joiners)
{
    const int above = sw_host_above(host), rank = joiners[host];
    symwin_status status = SYMWIN_OK;
    union sw_frame frame;
    int next;

    for (next = 0; above == 0 && next < m->nranks && status == SYMWIN_OK;) {
        next = sw_rank_table_put(&m->table, next, &frame);
        status = sw_rendezvous_tell(m, rank, &frame, SW_FRAME_TABLE, -1);
    }
    memset(&frame, 0, sizeof frame.above);
    frame.above.creator = sw_rendezvous_lowest(m);
    frame.above.rank = above > 0 ? joiners[above] : -1;
    if (above > 0)
        frame.above.place = m->slots[frame.above.rank].place;
    if (status == SYMWIN_OK)
        status = sw_rendezvous_tell(m, rank, &frame, SW_FRAME_ABOVE, -1);
    return status;
}

/* Whether each host that has others below it listens for them. */
static symwin_status check_places(struct rendezvous *m, const int *joiners)
{
    int h;

    for (h = 1; h < m->table.hosts; h++) {
        const int above = sw_host_above(h);

        if (above > 0 && m->slots[joiners[above]].place.family == 0) {
            sw_fail(SYMWIN_DENIED,
                    "%s: rank %d's process cannot listen for other hosts, as one of %d hosts has "
                    "to; let it open a TCP port",
                    call, joiners[above], m->table.hosts);
            return sw_rendezvous_culprit(m, joiners[above], SYMWIN_DENIED);
        }
    }
    return SYMWIN_OK;
}

symwin_status sw_tree_begin(struct rendezvous *m)
{
    symwin_status status = sw_rendezvous_number(m);
    int *joiners, r, h;

    if (status != SYMWIN_OK || m->table.hosts <= sw_host_fan + 1)
        return status;
    joiners = calloc((size_t)m->table.hosts, sizeof *joiners);
    if (joiners == NULL)
        return sw_rendezvous_own(
            m, sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d hosts", call, m->table.hosts));
    for (r = 0; r < m->nranks; r++)
        if (m->slots[r].remote && m->slots[r].accepted != NULL)
            joiners[m->table.locations[r].host] = r;
    m->is_tree = 1;
    m->unlinked = m->table.hosts - 1;
    status = check_places(m, joiners);
    for (h = 1; h < m->table.hosts && status == SYMWIN_OK; h++)
        status = tell_above(m, h, joiners);
    free(joiners);
    return status;
}

int sw_tree_linked(struct rendezvous *m, struct slot *s)
{
    if (m->unlinked == 0 || s->has_links)
        return 0;
    s->has_links = 1;
    m->unlinked--;
    return 1;
}

/* ---- in a far rendezvous ---- */

static int host_of(const struct rendezvous *m, const struct sw_accepted *v)
{
    return (int)m->table.locations[v->rank].host;
}

/* A connection that is no link, once there is a table: its host is not below this one, or has an
 * earlier connection. NULL: there is none. */
static struct sw_accepted *find_strange(const struct rendezvous *m, int host)
{
    struct sw_accepted *v = NULL, *before;

    while ((v = sw_listener_next(m, v)) != NULL) {
        if (!v->is_link)
            continue;
        if (sw_host_above(host_of(m, v)) != host)
            return v;
        for (before = NULL; (before = sw_listener_next(m, before)) != v;)
            if (before->is_link && host_of(m, before) == host_of(m, v))
                return v;
    }
    return NULL;
}

/* How many of the hosts below this one have joined here. Drops what is no link. */
static int count_links(struct rendezvous *m, int host)
{
    struct sw_accepted *v;
    int count = 0;

    while ((v = find_strange(m, host)) != NULL)
        sw_listener_drop(v);
    while ((v = sw_listener_next(m, v)) != NULL)
        count += v->is_link;
    return count;
}

/* Returns whether the host below has taken all of the table. */
static int pass_table(struct rendezvous *m, struct sw_accepted *v)
{
    const int64_t now = sw_now_ms();
    const int64_t deadline = now + (m->patience_ms < PASS_MS ? m->patience_ms : PASS_MS);
    union sw_frame frame;
    int next = 0, error = 0;

    while (next < m->nranks && error == 0) {
        next = sw_rank_table_put(&m->table, next, &frame);
        sw_frame_seal(&frame, SW_FRAME_TABLE);
        error = sw_connection_send(&v->connection, &frame, -1, deadline);
    }
    m->patience_ms -= sw_now_ms() - now;
    v->has_table = error == 0;
    return v->has_table;
}

/* Gives hosts below the table, and says LINKED once all links are there. */
static void look(struct rendezvous *m)
{
    const int host = sw_up_host(m);
    struct sw_accepted *v = NULL, *next;
    int h, due = 0, count;
    union sw_frame frame;

    if (!m->is_tree || host < 0 || m->proposed || m->up.fd < 0)
        return;
    count = count_links(m, host);
    for (v = sw_listener_next(m, NULL); v != NULL; v = next) {
        next = sw_listener_next(m, v);
        if (v->is_link && !v->has_table && !pass_table(m, v)) {
            sw_listener_drop(v);
            count--;
        }
    }
    for (h = 1; h < m->table.hosts; h++)
        due += sw_host_above(h) == host;
    if (m->told_linked || count < due)
        return;
    m->told_linked = 1;
    sw_frame_seal(&frame, SW_FRAME_LINKED);
    sw_connection_send(&m->up, &frame, -1, sw_now_ms() + 100); /* if it fails, its watch sees why */
}

symwin_status sw_tree_above(struct rendezvous *m, const struct sw_frame_above *frame)
{
    const struct sw_place *place = &frame->place;
    const int host = sw_up_host(m), is_below_creator = host >= 0 && sw_host_above(host) == 0;

    if (m->is_tree || is_below_creator != (place->family == 0) ||
        (!is_below_creator && (m->table.have > 0 || frame->rank < 0 || frame->rank >= m->nranks)))
        return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong frame", call);
    m->is_tree = 1;
    m->creator = frame->creator < m->nranks ? frame->creator : -1;
    m->above_rank = frame->rank;
    if (place->family != 0) {
        const uint32_t interface = sw_id_interface(&m->all);

        m->all.family = place->family;
        m->all.port = place->port;
        memcpy(m->all.address, place->address, sizeof m->all.address);
        if (interface != 0)
            sw_id_set_interface(&m->all, interface);
        m->needs_link = 1;
        pthread_cond_broadcast(&sw_rendezvous.changed);
    }
    look(m);
    return SYMWIN_OK;
}

static struct sw_accepted *link_of(const struct rendezvous *m, int rank)
{
    struct sw_accepted *v = NULL;

    while ((v = sw_listener_next(m, v)) != NULL && !(v->is_link && v->rank == rank))
        ;
    return v;
}

void sw_tree_join(struct rendezvous *m, struct sw_accepted *accepted,
                  const struct sw_frame_join *join)
{
    union sw_frame frame = {.pass = {.process = 0}};
    const int is_rank = join->protocol == SW_FRAME_PROTOCOL && join->nranks == m->nranks &&
                        join->rank >= 0 && join->rank < m->nranks && !m->slots[join->rank].taken;
    struct sw_accepted *const older = is_rank ? link_of(m, join->rank) : NULL;

    /* The same host may come again, if it has not heard that it came: it has not said LINKED then,
     * so there is no GO yet. */
    if (!is_rank || (m->told_linked && older == NULL)) {
        sw_listener_drop(accepted);
        return;
    }
    if (older != NULL)
        sw_listener_drop(older);
    sw_poll_remove(&accepted->watch); /* what comes then is for the linking process */
    sw_fork_set_add(accepted->connection.fd);
    accepted->is_link = 1;
    accepted->connection.holder = join->rank;
    sw_frame_seal(&frame, SW_FRAME_READY);
    sw_connection_send(&accepted->connection, &frame, -1, sw_now_ms() + 1);
    look(m);
}

/* The table comes from the host above. Behind its last part nothing is read here: that is for the
 * linking process. */
static void above_ready(struct sw_poll_watch *watch, short events)
{
    struct rendezvous *m = (struct rendezvous *)(void *)((char *)watch -
                                                         offsetof(struct rendezvous, above_watch));
    symwin_status status;
    union sw_frame frame;
    int error;

    (void)events;
    error = sw_connection_receive_now(&m->above, &frame, NULL);
    if (error == EAGAIN)
        return;
    if (error != 0 ||
        frame.header.type != SW_FRAME_TABLE) { /* the creator knows, or it comes back */
        sw_up_leave_above(m);
        sw_connection_drop(&m->above);
        sw_rank_table_free(&m->table);
        m->needs_link = 1;
        pthread_cond_broadcast(&sw_rendezvous.changed);
        return;
    }
    status = sw_up_take_table(m, &frame.table);
    if (status == SYMWIN_OK && m->table.have < m->nranks)
        return;
    sw_up_leave_above(m);
    if (status == SYMWIN_DENIED ||
        (status == SYMWIN_OK && (sw_up_host(m) < 0 || sw_host_above(sw_up_host(m)) == 0)))
        status = sw_rendezvous_culprit(m, m->above_rank,
                                       sw_fail(SYMWIN_DENIED,
                                               "%s: the host of rank %d sent a wrong table", call,
                                               m->above_rank));
    if (status != SYMWIN_OK)
        sw_rendezvous_fail(m, status);
    else
        look(m);
}

void sw_tree_connect(struct rendezvous *m, const struct sw_frame_join *join)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    struct sw_connection connection = {.fd = -1};
    struct sw_id above = m->all;
    symwin_status status;

    memset(above.creator, 1, sizeof above.creator); /* whoever listens there does so already */
    above.folder[0] = '\0';
    sw_poll_unlock();
    status = sw_client_link(&above, join, sw_now_ms() + TRY_MS, &connection);
    if (status != SYMWIN_OK)
        nanosleep(&moment, NULL);
    sw_poll_lock();
    sw_wipe(&above, sizeof above);
    if (status == SYMWIN_NO_MEMORY && !m->over) /* of this process, which has no descriptor */
        sw_rendezvous_fail(m, sw_rendezvous_own(m, status));
    if (status != SYMWIN_OK)
        return;
    m->needs_link = 0;
    m->above = connection;
    if (m->over)
        return;
    m->above_watch = (struct sw_poll_watch){.fd = m->above.fd,
                                            .events = POLLIN | POLLRDHUP,
                                            .deadline = INT64_MAX,
                                            .ready = above_ready};
    sw_fork_set_remove(m->above.fd); /* the watch keeps it from forked children */
    if (sw_poll_add(&m->above_watch) != SYMWIN_OK)
        sw_rendezvous_fail(m, sw_rendezvous_own(m, SYMWIN_NO_MEMORY));
}
