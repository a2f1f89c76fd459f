/* What the creator sends to the ranks. Once all have joined it hands out the topology, the control
 * page, a socket between each two processes of this host, and the connections to the other hosts.
 * Under the poll lock. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

/* Of SW_TELL_MS, while this user's processes have too many descriptors in flight. */
enum { IN_FLIGHT_MS = 200 };

/* ---- frames to a rank, and who is named if that fails ---- */

symwin_status sw_rendezvous_culprit(struct rendezvous *m, int rank, symwin_status status)
{
    if (!m->proposed) /* the first failure counts */
        m->culprit = rank;
    return status;
}

int sw_rendezvous_lowest(const struct rendezvous *m)
{
    int r = 0;

    if (m->slots == NULL)
        return -1;
    while (r < m->nranks &&
           (!m->slots[r].taken || m->slots[r].accepted != NULL || m->slots[r].remote))
        r++;
    return r < m->nranks ? r : -1;
}

symwin_status sw_rendezvous_own(struct rendezvous *m, symwin_status status)
{
    char who[64] = "the process that made the id: ";
    const int own = sw_rendezvous_lowest(m);

    if (own >= 0)
        sw_rendezvous_culprit(m, own, status);
    if (m->far && m->culprit >= 0)
        snprintf(who, sizeof who, "rank %d: ", m->culprit);
    else if (m->far)
        snprintf(who, sizeof who, "the process that joins for its host: ");
    return sw_fail_in(status, call, who);
}

symwin_status sw_rendezvous_tell(struct rendezvous *m, int rank, union sw_frame *frame,
                                 enum sw_frame_type type, int fd)
{
    struct sw_connection *connection = &m->slots[rank].accepted->connection;
    const int64_t now = sw_now_ms(), left = m->timer.deadline - now;
    const int64_t longest = left < m->patience_ms ? left : m->patience_ms;
    int error = ETIMEDOUT;

    sw_frame_seal(frame, type);
    if (fd >= 0)
        error = sw_connection_send(connection, frame, fd,
                                   now + (longest < IN_FLIGHT_MS ? longest : IN_FLIGHT_MS));
    if (error == ETIMEDOUT) /* nothing was sent: there was no room in the socket */
        error = sw_connection_send(connection, frame, fd, now + longest);
    m->patience_ms -= sw_now_ms() - now;
    if (error == 0)
        return SYMWIN_OK;
    if (error == ETOOMANYREFS)
        return sw_rendezvous_own(
            m, sw_fail(SYMWIN_NO_MEMORY,
                       "this user's processes have too many descriptors in flight: end the one "
                       "that does not receive them, or raise ulimit -n"));
    if (!sw_frame_is_theirs(error))
        return sw_rendezvous_own(m, sw_fail(SYMWIN_NO_MEMORY, "sendmsg: %s", strerror(error)));
    sw_fail(SYMWIN_PEER_LOST, "%s: rank %d joined, but cannot be reached any more: %s", call, rank,
            strerror(error));
    return sw_rendezvous_culprit(m, rank, error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST);
}

/* ---- the topology ---- */

/* A name of a rank's process or host. */
struct named {
    const unsigned char *name;
    int rank;
};

static int compare_names(const void *a, const void *b)
{
    const struct named *one = a, *other = b;
    const int order = memcmp(one->name, other->name, SW_NAME_BYTES);

    return order != 0 ? order : one->rank - other->rank;
}

/* The lowest rank of each name, for each of the ranks. */
static void find_lowest(struct named *names, int count, int *lowest)
{
    int i;

    qsort(names, (size_t)count, sizeof *names, compare_names);
    for (i = 0; i < count; i++)
        lowest[names[i].rank] = i > 0 &&
                                        memcmp(names[i - 1].name, names[i].name, SW_NAME_BYTES) == 0
                                    ? lowest[names[i - 1].rank]
                                    : names[i].rank;
}

/* Numbers processes and hosts in the order of their lowest ranks, except that this host is 0. */
static void number_all(const struct rendezvous *m, struct sw_rank_table *table, struct named *names,
                       int *lowest)
{
    struct sw_frame_location *at = table->locations;
    int count = 0, r;

    table->hosts = 1;
    for (r = 0; r < m->nranks; r++)
        names[r] = (struct named){m->slots[r].process, r};
    find_lowest(names, m->nranks, lowest);
    for (r = 0; r < m->nranks; r++)
        at[r].process = lowest[r] < r ? at[lowest[r]].process : (uint32_t)table->processes++;
    for (r = 0; r < m->nranks; r++)
        if (m->slots[r].remote)
            names[count++] = (struct named){m->slots[r].host, r};
    find_lowest(names, count, lowest);
    for (r = 0; r < m->nranks; r++)
        if (m->slots[r].remote)
            at[r].host = lowest[r] < r ? at[lowest[r]].host : (uint32_t)table->hosts++;
}

symwin_status sw_rendezvous_number(struct rendezvous *m)
{
    struct sw_rank_table *table = &m->table;
    struct named *names = calloc((size_t)m->nranks, sizeof *names);
    int *lowest = calloc((size_t)m->nranks, sizeof *lowest);

    table->locations = calloc((size_t)m->nranks, sizeof *table->locations);
    table->nranks = m->nranks;
    if (names != NULL && lowest != NULL && table->locations != NULL)
        number_all(m, table, names, lowest);
    else
        sw_rank_table_free(table);
    free(names);
    free(lowest);
    if (table->locations == NULL)
        return sw_rendezvous_own(
            m, sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, m->nranks));
    return SYMWIN_OK;
}

static symwin_status make_topology(struct rendezvous *m, struct sw_topology *topology)
{
    const struct sw_rank_table *table = &m->table;
    symwin_status status;
    int own;

    status = sw_topology_make(topology, m->nranks, table->processes, table->hosts);
    if (status != SYMWIN_OK)
        return status;
    memcpy(topology->locations, table->locations, (size_t)m->nranks * sizeof *table->locations);
    topology->host = m->far ? sw_up_host(m) : 0;
    own = sw_rendezvous_lowest(m);
    topology->process = own >= 0 ? (int)topology->locations[own].process : -1;
    return SYMWIN_OK;
}

static int lowest_of_host(const struct sw_topology *topology, int host)
{
    int r = 0;

    while (r < topology->nranks && (int)topology->locations[r].host != host)
        r++;
    return r;
}

/* The processes of this host, each by its lowest rank, in ascending order. */
struct here {
    int count;
    int *leaders; /* owned */
};

static symwin_status find_here(const struct sw_topology *topology, struct here *here)
{
    int last = -1, r;

    here->count = 0;
    here->leaders = calloc((size_t)topology->nranks, sizeof *here->leaders);
    if (here->leaders == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, topology->nranks);
    for (r = 0; r < topology->nranks; r++) /* processes are numbered by their lowest ranks */
        if ((int)topology->locations[r].host == topology->host &&
            (int)topology->locations[r].process > last) {
            last = (int)topology->locations[r].process;
            here->leaders[here->count++] = r;
        }
    return SYMWIN_OK;
}

static symwin_status send_tables(struct rendezvous *m)
{
    union sw_frame frame;
    symwin_status status = SYMWIN_OK;
    int first, next, r;

    for (first = 0; first < m->nranks && status == SYMWIN_OK; first = next) {
        next = sw_rank_table_put(&m->table, first, &frame);
        for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
            if (m->slots[r].accepted != NULL && !m->slots[r].has_links) /* else it has the table */
                status = sw_rendezvous_tell(m, r, &frame, SW_FRAME_TABLE, -1);
    }
    return status;
}

/* Gives the process with the lowest rank `to` its peer socket to the one of `from`. Consumes
 * `fd`. */
static symwin_status give_socket(struct rendezvous *m, struct sw_topology *topology, int to,
                                 int from, int fd)
{
    union sw_frame frame = {.pass = {.process = (int)topology->locations[from].process}};
    symwin_status status;

    if ((int)topology->locations[to].process == topology->process) {
        topology->sockets[frame.pass.process] = fd;
        return SYMWIN_OK;
    }
    status = sw_rendezvous_tell(m, to, &frame, SW_FRAME_SOCKET, fd);
    close(fd);
    return status;
}

static symwin_status send_sockets(struct rendezvous *m, struct sw_topology *topology,
                                  const struct here *here)
{
    symwin_status status = SYMWIN_OK;
    int p, q;

    for (p = 0; p < here->count; p++)
        for (q = p + 1; q < here->count; q++) {
            int ends[2];

            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
                return sw_rendezvous_own(
                    m,
                    sw_fail(SYMWIN_NO_MEMORY, "socketpair: %s; raise ulimit -n", strerror(errno)));
            status = give_socket(m, topology, here->leaders[p], here->leaders[q], ends[0]);
            if (status != SYMWIN_OK) {
                close(ends[1]);
                return status;
            }
            status = give_socket(m, topology, here->leaders[q], here->leaders[p], ends[1]);
            if (status != SYMWIN_OK)
                return status;
        }
    return status;
}

/* Hands a connection to another host to the process of this host's lowest rank, which links the
 * hosts. */
static symwin_status give_link(struct rendezvous *m, struct sw_topology *topology, int host,
                               struct sw_connection *connection)
{
    const int linking = lowest_of_host(topology, topology->host);
    union sw_frame frame;
    symwin_status status;

    if ((int)topology->locations[linking].process == topology->process) {
        topology->connections[host] = *connection;
        *connection = (struct sw_connection){.fd = -1};
        return SYMWIN_OK;
    }
    m->linking = linking;
    memset(&frame, 0, sizeof frame.link);
    frame.link.host = host;
    frame.link.creator = connection->creator;
    frame.link.sent = connection->sent;
    frame.link.received = connection->received;
    frame.link.holder = connection->holder;
    memcpy(frame.link.key, connection->key, sizeof frame.link.key);
    status = sw_rendezvous_tell(m, linking, &frame, SW_FRAME_LINK, connection->fd);
    sw_wipe(&frame.link, sizeof frame.link);
    return status;
}

/* Until the time of the first rank is over. */
static int32_t left_ms(const struct rendezvous *m)
{
    const int64_t left = m->timer.deadline - sw_now_ms();

    return left <= 0 ? 0 : left < INT32_MAX ? (int32_t)left : INT32_MAX;
}

/* In a far rendezvous: the link to the host above, and those to hosts below. If another process
 * gets them, this one keeps its own descriptors until that one is ready: see speaks_on_links(). */
static symwin_status give_far_links(struct rendezvous *m, struct sw_topology *topology)
{
    const int above = sw_host_above(topology->host);
    struct sw_connection *const link = above == 0 ? &m->up : &m->above;
    symwin_status status;
    struct sw_accepted *v = NULL;

    sw_poll_remove(&m->watch); /* from now on the linking process reads from it */
    link->holder = above == 0 ? m->creator : m->above_rank;
    status = give_link(m, topology, above, link);
    while (status == SYMWIN_OK && m->is_tree && (v = sw_listener_next(m, v)) != NULL)
        if (v->is_link)
            status = give_link(m, topology, (int)m->table.locations[v->rank].host, &v->connection);
    if (status == SYMWIN_OK) {
        m->passed = *link;
        *link = (struct sw_connection){.fd = -1};
        if (above == 0 && m->passed.fd >= 0)
            sw_fork_set_add(m->passed.fd); /* the watch kept it from forked children */
        sw_connection_drop(&m->up);
        sw_connection_drop(&m->above);
    }
    return status;
}

/* The process that has joined for another host gets GO first: it hands out there. If that host is
 * linked to this one, the connection is the link. */
static symwin_status give_links(struct rendezvous *m, struct sw_topology *topology)
{
    union sw_frame frame = {.pass = {.process = topology->process}};
    symwin_status status = SYMWIN_OK;
    int r;

    if (m->far)
        return give_far_links(m, topology);
    for (r = 0; r < m->nranks && status == SYMWIN_OK; r++) {
        struct slot *s = &m->slots[r];

        if (!s->remote || s->accepted == NULL)
            continue;
        frame.pass.left_ms = left_ms(m);
        status = sw_rendezvous_tell(m, r, &frame, SW_FRAME_GO, -1);
        if (status != SYMWIN_OK)
            break;
        s->linked = 1;
        sw_poll_remove(&s->accepted->watch); /* from now on the linking process reads from it */
        s->accepted->is_link = (int)topology->locations[r].host <= sw_host_fan;
        if (s->accepted->is_link)
            status = give_link(m, topology, (int)topology->locations[r].host,
                               &s->accepted->connection);
    }
    return status;
}

/* Sends the frames in the order in which they are expected: TABLE, PAGE, SOCKET, LINK by the
 * processes of this host; TABLE, GO by those that have joined for other hosts. */
static symwin_status hand_out(struct rendezvous *m, struct sw_topology *topology,
                              const struct here *here)
{
    union sw_frame frame = {.pass = {.process = topology->process}};
    symwin_status status = sw_exchange_page(m->nranks, &topology->page);
    int i;

    if (status != SYMWIN_OK)
        return sw_rendezvous_own(m, status);
    status = send_tables(m);
    frame.pass.left_ms = left_ms(m);
    for (i = 0; i < here->count && status == SYMWIN_OK; i++)
        if (m->slots[here->leaders[i]].accepted != NULL)
            status = sw_rendezvous_tell(m, here->leaders[i], &frame, SW_FRAME_PAGE, topology->page);
    if (status == SYMWIN_OK)
        status = send_sockets(m, topology, here);
    if (status == SYMWIN_OK)
        status = give_links(m, topology);
    return status;
}

/* From now on each other process of this host must send READY. Until then this process watches for
 * their end. */
static void await_ready(struct rendezvous *m, const struct here *here)
{
    int i;

    for (i = 0; i < here->count; i++)
        if (m->slots[here->leaders[i]].accepted != NULL) {
            m->slots[here->leaders[i]].awaited = 1;
            m->unready++;
        }
}

symwin_status sw_rendezvous_hand_out(struct rendezvous *m)
{
    struct sw_topology topology;
    struct here here = {.count = 0};
    symwin_status status = make_topology(m, &topology);

    if (status != SYMWIN_OK)
        return sw_rendezvous_own(m, status);
    status = find_here(&topology, &here);
    if (status != SYMWIN_OK)
        sw_rendezvous_own(m, status);
    else if (topology.hosts > 1 && here.count == 0)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: the id was made on a host that runs none of the ranks; make it on "
                         "one that does",
                         call);
    if (status == SYMWIN_OK && (topology.processes > 1 || topology.process < 0))
        status = hand_out(m, &topology, &here);
    if (status == SYMWIN_OK)
        await_ready(m, &here);
    free(here.leaders);
    if (status != SYMWIN_OK)
        sw_topology_end(&topology, status, m->culprit);
    if (status != SYMWIN_OK || topology.process < 0) {
        sw_topology_release(&topology);
        return status;
    }
    status = sw_group_create(&topology, &m->group);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_rendezvous_own(m, status);
}
