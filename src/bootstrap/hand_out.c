/* What the creator sends to the ranks. Once all have joined it hands out the topology, the control
 * page, a socket between each two processes of this host, and the connections to the other hosts.
 * Under the poll lock. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

/* Of SW_TELL_MS, while this user's processes have too many descriptors in flight. */
enum { IN_FLIGHT_MS = 200 };

/* ---- frames to a rank, and who is named if that fails ---- */

int sw_rendezvous_number(const struct rendezvous *m, int rank)
{
    return m->table == NULL ? rank : sw_rank_of_host(m->table, m->host, rank);
}

symwin_status sw_rendezvous_culprit(struct rendezvous *m, int rank, symwin_status status)
{
    m->culprit = sw_rendezvous_number(m, rank);
    return status;
}

symwin_status sw_rendezvous_own(struct rendezvous *m, symwin_status status)
{
    int r;

    if (m->table != NULL)
        sw_rendezvous_culprit(m, 0, status); /* the creator of a host-local one is rank 0 of it */
    for (r = m->nranks - 1; r >= 0 && m->slots != NULL; r--)
        if (m->slots[r].taken && m->slots[r].accepted == NULL && !m->slots[r].remote)
            sw_rendezvous_culprit(m, r, status);
    return sw_fail_in(status, call, "the process that made the id: ");
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
    sw_fail(SYMWIN_PEER_LOST, "%s: rank %d joined, but cannot be reached any more: %s", call,
            sw_rendezvous_number(m, rank), strerror(error));
    return sw_rendezvous_culprit(m, rank, error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST);
}

/* ---- the topology ---- */

static int same(const unsigned char *a, const unsigned char *b)
{
    return memcmp(a, b, SW_NAME_BYTES) == 0;
}

/* Numbers processes and hosts in the order of their lowest ranks, except that this host is 0. */
static symwin_status make_topology(const struct rendezvous *m, struct sw_topology *topology)
{
    struct sw_frame_location *locations = calloc((size_t)m->nranks, sizeof *locations);
    int processes = 0, hosts = 1;
    symwin_status status;
    int r, q;

    if (locations == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, m->nranks);
    for (r = 0; r < m->nranks; r++) {
        for (q = 0; q < r && !same(m->slots[q].process, m->slots[r].process); q++)
            ;
        locations[r].process = q < r ? locations[q].process : (uint32_t)processes++;
        for (q = 0; q < r && !(m->slots[q].remote && same(m->slots[q].host, m->slots[r].host)); q++)
            ;
        if (!m->slots[r].remote)
            locations[r].host = 0;
        else
            locations[r].host = q < r ? locations[q].host : (uint32_t)hosts++;
    }
    status = sw_topology_make(topology, m->nranks, processes, hosts);
    if (status == SYMWIN_OK)
        memcpy(topology->locations, locations, (size_t)m->nranks * sizeof *locations);
    free(locations);
    topology->process = -1;
    for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
        if (m->slots[r].accepted == NULL)
            topology->process = (int)topology->locations[r].process;
    return status;
}

static int is_here(const struct sw_topology *topology, int process)
{
    return topology->locations[sw_topology_leader(topology, process)].host == 0;
}

static int lowest_of_host(const struct sw_topology *topology, int host)
{
    int r = 0;

    while (r < topology->nranks && (int)topology->locations[r].host != host)
        r++;
    return r;
}

static symwin_status send_tables(struct rendezvous *m, const struct sw_topology *topology)
{
    const struct sw_rank_table table = {.nranks = m->nranks,
                                        .processes = topology->processes,
                                        .hosts = topology->hosts,
                                        .locations = topology->locations};
    union sw_frame frame;
    symwin_status status = SYMWIN_OK;
    int first, next, r;

    for (first = 0; first < m->nranks && status == SYMWIN_OK; first = next) {
        next = sw_rank_table_put(&table, first, &frame);
        for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
            if (m->slots[r].accepted != NULL)
                status = sw_rendezvous_tell(m, r, &frame, SW_FRAME_TABLE, -1);
    }
    return status;
}

/* Gives process `to` its peer socket to process `from`. Consumes `fd`. */
static symwin_status give_socket(struct rendezvous *m, struct sw_topology *topology, int to,
                                 int from, int fd)
{
    union sw_frame frame = {.pass = {.process = from}};
    symwin_status status;

    if (to == topology->process) {
        topology->sockets[from] = fd;
        return SYMWIN_OK;
    }
    status = sw_rendezvous_tell(m, sw_topology_leader(topology, to), &frame, SW_FRAME_SOCKET, fd);
    close(fd);
    return status;
}

static symwin_status send_sockets(struct rendezvous *m, struct sw_topology *topology)
{
    symwin_status status = SYMWIN_OK;
    int p, q;

    for (p = 0; p < topology->processes; p++)
        for (q = p + 1; q < topology->processes; q++) {
            int ends[2];

            if (!is_here(topology, p) || !is_here(topology, q))
                continue;
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
                return sw_rendezvous_own(
                    m,
                    sw_fail(SYMWIN_NO_MEMORY, "socketpair: %s; raise ulimit -n", strerror(errno)));
            status = give_socket(m, topology, p, q, ends[0]);
            if (status != SYMWIN_OK) {
                close(ends[1]);
                return status;
            }
            status = give_socket(m, topology, q, p, ends[1]);
            if (status != SYMWIN_OK)
                return status;
        }
    return status;
}

/* Hands the connection to another host to the process of this host's lowest rank, which links the
 * hosts. */
static symwin_status give_link(struct rendezvous *m, struct sw_topology *topology, int host)
{
    struct sw_connection *connection =
        &m->slots[lowest_of_host(topology, host)].accepted->connection;
    const int linking = lowest_of_host(topology, 0);
    union sw_frame frame;
    symwin_status status;

    m->slots[lowest_of_host(topology, host)].linked = 1;
    /* From now on the linking process reads from it. */
    sw_poll_remove(&m->slots[lowest_of_host(topology, host)].accepted->watch);
    if ((int)topology->locations[linking].process == topology->process) {
        topology->connections[host] = *connection;
        *connection = (struct sw_connection){.fd = -1};
        return SYMWIN_OK;
    }
    memset(&frame, 0, sizeof frame.link);
    frame.link.host = host;
    frame.link.sent = connection->sent;
    frame.link.received = connection->received;
    memcpy(frame.link.key, connection->key, sizeof frame.link.key);
    status = sw_rendezvous_tell(m, linking, &frame, SW_FRAME_LINK, connection->fd);
    sw_wipe(&frame.link, sizeof frame.link);
    return status;
}

/* Sends the frames in the order in which they are expected: TABLE, PAGE, SOCKET, LINK by the
 * processes of this host; TABLE, GO by the lowest rank of another host. */
static symwin_status hand_out(struct rendezvous *m, struct sw_topology *topology)
{
    union sw_frame frame = {.pass = {.process = topology->process}};
    symwin_status status = sw_exchange_page(m->posts, &topology->page);
    int p, h;

    if (status != SYMWIN_OK)
        return sw_rendezvous_own(m, status);
    status = send_tables(m, topology);
    for (p = 0; p < topology->processes && status == SYMWIN_OK; p++)
        if (p != topology->process && is_here(topology, p))
            status = sw_rendezvous_tell(m, sw_topology_leader(topology, p), &frame, SW_FRAME_PAGE,
                                        topology->page);
    if (status == SYMWIN_OK)
        status = send_sockets(m, topology);
    for (h = 1; h < topology->hosts && status == SYMWIN_OK; h++) {
        status = sw_rendezvous_tell(m, lowest_of_host(topology, h), &frame, SW_FRAME_GO, -1);
        if (status == SYMWIN_OK)
            status = give_link(m, topology, h);
    }
    return status;
}

static void await(struct rendezvous *m, int rank)
{
    m->slots[rank].awaited = 1;
    m->unready++;
}

/* From now on each other process of this host must send READY, and each rank of another host once
 * it has joined the ranks of its host. Until then this process watches for their end. */
static void await_ready(struct rendezvous *m, const struct sw_topology *topology)
{
    int p, r;

    for (p = 0; p < topology->processes; p++)
        if (p != topology->process && is_here(topology, p))
            await(m, sw_topology_leader(topology, p));
    for (r = 0; r < m->nranks; r++)
        if (m->slots[r].remote && !m->slots[r].linked)
            await(m, r);
}

symwin_status sw_rendezvous_hand_out(struct rendezvous *m)
{
    struct sw_topology topology;
    symwin_status status = make_topology(m, &topology);

    if (status != SYMWIN_OK)
        return sw_rendezvous_own(m, status);
    if (topology.hosts > 1 && lowest_of_host(&topology, 0) == topology.nranks)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: the id was made on a host that runs none of the ranks; make it on "
                         "one that does",
                         call);
    if (status == SYMWIN_OK && (topology.processes > 1 || topology.process < 0 || m->table != NULL))
        status = hand_out(m, &topology);
    if (status == SYMWIN_OK)
        await_ready(m, &topology);
    if (status == SYMWIN_OK && m->table != NULL &&
        sw_topology_widen(&topology, m->table, m->host) != SYMWIN_OK)
        status = sw_rendezvous_own(m, SYMWIN_NO_MEMORY);
    if (status != SYMWIN_OK)
        sw_topology_end(&topology, status, m->culprit);
    if (status != SYMWIN_OK || topology.process < 0) {
        sw_topology_release(&topology);
        return status;
    }
    if (m->connection.fd >= 0) {
        sw_poll_remove(&m->link);
        topology.connections[0] = m->connection;
        m->connection = (struct sw_connection){.fd = -1};
    }
    status = sw_group_create(&topology, &m->group);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_rendezvous_own(m, status);
}
