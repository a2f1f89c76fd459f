/* The member's side of bootstrap: each rank joins the rendezvous of the process that created the id
 * (rendezvous.c), as a thread of that process or through a socket (client.c), and gets its
 * process's struct sw_group.
 *
 * In other processes each rank joins on its own. The lowest rank receives the descriptors and makes
 * the group, and the others wait for it (process_join.c). Ranks of another host join the rendezvous
 * of their host (host_join.c); the one that has opened it joins at the creator for all of them.
 *
 * On the thread of the rank that joins, without the poll lock.
 */
#include <stdio.h>
#include <string.h>

#include "src/bootstrap/member.h"
#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

enum {
    HOSTS_MS = 4000, /* instead of SW_GRACE_MS, with other hosts, until the creator hands out */
    HANDED_MS = 300, /* then, past the time of the first rank: other hosts wait half a second */
    ASK_MS = 20      /* between looks whether another host has ended the exchange */
};

/* ---- the lowest rank of a process ---- */

/* Whether the rank is the lowest of its process. *mates: other ranks of the process. */
static int is_leader(const struct sw_rank_table *table, int rank, int *mates)
{
    int lowest = table->nranks;
    int r;

    *mates = 0;
    for (r = table->nranks - 1; r >= 0; r--)
        if (table->locations[r].process == table->locations[rank].process) {
            lowest = r;
            *mates += r != rank;
        }
    return lowest == rank;
}

/* Number of other processes on the rank's host. */
static int neighbours(const struct sw_topology *topology, int rank)
{
    int count = 0;
    int r, q;

    for (r = 0; r < topology->nranks; r++) {
        if (topology->locations[r].host != topology->locations[rank].host ||
            topology->locations[r].process == topology->locations[rank].process)
            continue;
        for (q = 0; q < r && topology->locations[q].process != topology->locations[r].process; q++)
            ;
        count += q == r;
    }
    return count;
}

/* The lowest rank of the creator's process, among all ranks; -1: it has none. */
static int lowest_of_creator(const struct sw_member *m, int creator)
{
    int r = 0;

    while (r < m->table.nranks && (int)m->table.locations[r].process != creator)
        r++;
    return r == m->table.nranks ? -1 : r;
}

/* Never SYMWIN_OK. Names the member that sent the descriptor, by the number of its process. */
static symwin_status wrong_frame(const struct sw_member *m, int creator, const char *what, int fd)
{
    const int rank = lowest_of_creator(m, creator);

    sw_closer_close(fd);
    if (rank < 0)
        return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong %s", call,
                       what);
    return sw_fail(SYMWIN_DENIED, "%s: rank %d, whose process made the id, sent a wrong %s", call,
                   rank, what);
}

static symwin_status open_link(struct sw_topology *topology, const struct sw_frame_link *link,
                               int fd)
{
    struct sw_connection *connection = &topology->connections[link->host];

    if (sw_connection_open(connection, fd, 1) != 0) {
        sw_closer_close(fd);
        *connection = (struct sw_connection){.fd = -1};
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    connection->keyed = 1;
    connection->creator = link->creator;
    connection->sent = link->sent;
    connection->received = link->received;
    connection->holder = link->holder;
    connection->passed = 1;
    memcpy(connection->key, link->key, sizeof connection->key);
    return SYMWIN_OK;
}

/* Whether one of the two hosts is above the other. */
static int are_linked(int a, int b)
{
    return (a > b && sw_host_above(a) == b) || (b > a && sw_host_above(b) == a);
}

/* Receives the descriptors: page and sockets for the lowest rank of a process, also the links for
 * the lowest rank of the host. *creator: the creator's process in the table; -1: unknown, or it has
 * no rank. */
static symwin_status receive_descriptors(struct sw_member *m, struct sw_topology *topology,
                                         union sw_frame *frame, int *creator)
{
    struct sw_connection *connection = &m->connection;
    const int rank = m->join.rank;
    symwin_status status;
    int64_t deadline = m->deadline, handed;
    int fd = -1;
    int h, i, links, r;

    status = sw_client_recv_frame(connection, frame, SW_FRAME_PAGE, &fd, deadline);
    handed = sw_now_ms() + (status == SYMWIN_OK ? frame->pass.left_ms : 0) + HANDED_MS;
    if (status == SYMWIN_OK && topology->hosts > 1 && handed < deadline)
        m->deadline = deadline = handed;
    *creator = status == SYMWIN_OK ? frame->pass.process : -1;
    if (status == SYMWIN_OK && !sw_exchange_is_page(fd))
        return wrong_frame(m, *creator, "control page", fd);
    topology->page = status == SYMWIN_OK ? fd : -1;
    for (i = neighbours(topology, rank); i > 0 && status == SYMWIN_OK; i--) {
        status = sw_client_recv_frame(connection, frame, SW_FRAME_SOCKET, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (!sw_socket_is(fd, 0) || frame->pass.process >= topology->processes ||
            frame->pass.process == topology->process || topology->sockets[frame->pass.process] >= 0)
            return wrong_frame(m, *creator, "socket", fd);
        topology->sockets[frame->pass.process] = fd;
    }
    for (r = 0; r < rank && (int)topology->locations[r].host != topology->host; r++)
        ;
    for (links = 0, h = 1; h < topology->hosts; h++)
        links += h == topology->host || sw_host_above(h) == topology->host;
    for (i = r == rank ? links : 0; i > 0 && status == SYMWIN_OK; i--) {
        status = sw_client_recv_frame(connection, frame, SW_FRAME_LINK, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (!sw_socket_is(fd, 1) || frame->link.host >= topology->hosts ||
            !are_linked(topology->host, frame->link.host) ||
            topology->connections[frame->link.host].fd >= 0)
            return wrong_frame(m, *creator, "link", fd);
        status = open_link(topology, &frame->link, fd);
    }
    return status;
}

/* The culprit of a failure as seen by this process: `own`, the one that the last frame names, or
 * the creator's lowest rank, `creator` (-1: it has none). */
static int find_culprit(symwin_status status, const union sw_frame *last, int creator, int own)
{
    int culprit = own;

    if (last->header.type == SW_FRAME_REFUSAL)
        culprit = last->refusal.rank;
    else if (status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT)
        culprit = creator;
    return culprit >= 0 ? culprit : own;
}

/* Receives the descriptors and creates the group. */
static symwin_status create_group(struct sw_member *m, union sw_frame *frame, int *creator,
                                  struct sw_group **out)
{
    const struct sw_rank_table *table = &m->table;
    struct sw_topology topology;
    symwin_status status = sw_topology_make(&topology, table->nranks, table->processes,
                                            table->hosts);
    int p;

    if (status != SYMWIN_OK)
        return status;
    memcpy(topology.locations, table->locations,
           (size_t)table->nranks * sizeof *topology.locations);
    topology.process = (int)table->locations[m->join.rank].process;
    topology.host = (int)table->locations[m->join.rank].host;
    status = receive_descriptors(m, &topology, frame, creator);
    if (status != SYMWIN_OK)
        sw_topology_end(&topology, status,
                        find_culprit(status, frame, lowest_of_creator(m, *creator), m->join.rank));
    sw_poll_lock();
    if (status != SYMWIN_OK) {
        sw_topology_release(&topology);
        sw_poll_unlock();
        return status;
    }
    for (p = 0; p < topology.processes; p++)
        sw_fork_set_remove(topology.sockets[p]); /* the group watches them from now on */
    sw_fork_set_remove(topology.page);
    status = sw_group_create(&topology, out);
    sw_poll_unlock();
    return status;
}

/* Waits for GO. A process that links hosts may learn from another host that the exchange has ended.
 * It then tells the creator and sets *told. */
static symwin_status await_go(struct sw_connection *connection, const struct sw_group *group,
                              union sw_frame *frame, int64_t deadline, int *told)
{
    char text[SW_TEXT_BYTES];
    symwin_status status;
    int culprit;

    *told = 0;
    if (group->hosts == 1 || sw_host_link_here(group) != group->process)
        return sw_client_recv_frame(connection, frame, SW_FRAME_GO, NULL, deadline);
    snprintf(text, sizeof text, "%s", symwin_last_error());
    for (;;) {
        const int64_t slice = sw_now_ms() + ASK_MS;

        status = sw_client_recv_frame(connection, frame, SW_FRAME_GO, NULL,
                                      slice < deadline ? slice : deadline);
        if (status != SYMWIN_TIMEOUT || frame->header.type == SW_FRAME_REFUSAL)
            break;
        if (sw_exchange_ended(group->exchange)) {
            sw_exchange_settled(group->exchange, call);
            sw_exchange_outcome(group->exchange, &status, &culprit);
            sw_client_refuse(connection, status, culprit, deadline);
            *told = 1;
            return status;
        }
        if (sw_now_ms() >= deadline)
            return SYMWIN_TIMEOUT;
    }
    if (status == SYMWIN_OK)
        sw_error_restore(text); /* slices that time out are no error */
    return status;
}

/* No GO: ends the exchange. Unless the creator has refused, other processes may have got GO; they
 * learn of the end from the control page, and other hosts through the links. `creator`: the lowest
 * rank of the creator's process; -1: none. */
static symwin_status fail_group(struct sw_group *group, symwin_status status,
                                const union sw_frame *last, int creator)
{
    const int creator_failed = status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT;

    sw_exchange_fail(group->exchange, status, find_culprit(status, last, creator, group->leader));
    if (last->header.type != SW_FRAME_REFUSAL && !creator_failed)
        return sw_exchange_settled(group->exchange, call);
    sw_exchange_settle(group->exchange); /* hosts below learn it before the links to them close */
    if (last->header.type == SW_FRAME_REFUSAL)
        return status;
    /* The creator is the cause. The page may name another process that failed for the same
     * reason. */
    if (creator >= 0)
        sw_fail(status, "%s: rank %d, whose process made the id, %s", call, creator,
                status == SYMWIN_TIMEOUT ? "did not answer in time"
                                         : "ended before all ranks were ready");
    return status;
}

/* The lowest rank of a process: creates the group, reports to the creator and waits for GO. */
static symwin_status publish(struct sw_member *m, struct sw_group **out)
{
    union sw_frame frame = {.header = {.type = 0}};
    struct sw_group *group = NULL;
    symwin_status status;
    int creator = -1, told = 0;

    status = create_group(m, &frame, &creator, &group);
    if (frame.header.type != SW_FRAME_REFUSAL && status != SYMWIN_PEER_LOST)
        status = sw_client_report(&m->connection, m->join.rank, status, m->deadline);
    if (status == SYMWIN_OK)
        status = await_go(&m->connection, group, &frame, m->deadline, &told);
    if (status == SYMWIN_OK) {
        *out = group;
    } else if (group != NULL) {
        if (!told)
            status = fail_group(group, status, &frame, lowest_of_creator(m, creator));
        sw_poll_lock();
        sw_group_free(group);
        sw_poll_unlock();
    }
    sw_wipe(&frame, sizeof frame); /* it may have been a link, good or wrong, with its key */
    return status;
}

/* ---- joins ---- */

/* Joins through the local socket of the process that made the id. `frame`: its last. */
static symwin_status join_by_socket(struct sw_member *m, union sw_frame *frame,
                                    struct sw_group **out)
{
    /* Allocated first: later the lowest rank could not tell the others that it has no memory. */
    struct sw_process_join *process_join = sw_process_join_new(m->id, m->join.rank);
    symwin_status status;
    int mates = 0;

    frame->header.type = 0;
    if (process_join == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to join", call);
    status = sw_client_join(m, frame);
    sw_client_tell_at(NULL, 0, 0);
    if (status == SYMWIN_OK && frame->header.type == SW_FRAME_HERE) {
        sw_process_join_free(process_join);
        return status;
    }
    if (status != SYMWIN_OK && frame->header.type != SW_FRAME_REFUSAL) {
        sw_process_join_abandon(process_join, status, m->deadline); /* the others may succeed */
        process_join = NULL;
    }
    if (status == SYMWIN_OK && m->table.nranks != m->join.nranks)
        status = sw_fail(SYMWIN_DENIED, "%s: the process that made the id expects %d ranks, not %d",
                         call, m->table.nranks, m->join.nranks);
    if (status != SYMWIN_OK) {
        sw_process_join_free(process_join);
        return status;
    }
    if (m->table.hosts > 1)
        m->deadline += HOSTS_MS - SW_GRACE_MS;
    if (!is_leader(&m->table, m->join.rank, &mates))
        return sw_process_join_await(process_join, m->deadline + SW_GRACE_MS, out);
    status = publish(m, out);
    sw_process_join_publish(process_join, mates, status, status == SYMWIN_OK ? *out : NULL);
    return status;
}

static int is_own(const struct sw_member *m)
{
    return memcmp(m->join.process, m->id->creator, sizeof m->id->creator) == 0;
}

/* As a thread of the process that made the id. */
static symwin_status join_as_thread(struct sw_member *m, struct sw_connection *up,
                                    const struct sw_id *all, struct sw_group **out)
{
    symwin_status status;

    sw_client_set_time(m);
    sw_poll_lock();
    status = sw_rendezvous_join(m->id, &m->join, up, all, out);
    sw_poll_unlock();
    return status;
}

static void join_again(struct sw_member *m)
{
    sw_connection_close(&m->connection);
    m->connection = (struct sw_connection){.fd = -1};
    sw_rank_table_free(&m->table);
}

/* This rank has opened the rendezvous of its host: joins at the creator, then there. `frame`: the
 * creator's last; HERE: this is the creator's host, and the rendezvous is over. */
static symwin_status join_for_host(struct sw_member *m, const struct sw_id *local,
                                   union sw_frame *frame, struct sw_group **out)
{
    symwin_status status;

    m->host = local;
    status = sw_client_join(m, frame);
    m->host = NULL;
    if (status == SYMWIN_OK && frame->header.type != SW_FRAME_HERE) {
        struct sw_member own = *m; /* all but the connection */

        own.id = local;
        return join_as_thread(&own, &m->connection, m->id, out);
    }
    sw_poll_lock();
    if (status == SYMWIN_OK)
        sw_rendezvous_move(local, frame->here.folder);
    else
        status = sw_rendezvous_give_up(local, status);
    sw_poll_unlock();
    return status;
}

/* Whether a rank that could not join the rendezvous of its host looks for another: the process that
 * opened it has died before it knew the outcome, or does not know it any more. */
static int starts_over(const struct sw_member *m, symwin_status status, const union sw_frame *frame)
{
    const int refused = frame->header.type == SW_FRAME_REFUSAL;

    if (sw_now_ms() >= m->due)
        return 0;
    return refused ? status == SYMWIN_INVALID && frame->refusal.rank == SW_FRAME_UNKNOWN
                   : status == SYMWIN_PEER_LOST && m->table.have == 0;
}

/* One attempt to join the rendezvous of this rank's host. *again: it may try once more. HERE in
 * `frame`: it must join at the creator's local socket. */
static symwin_status join_on_host(struct sw_member *m, union sw_frame *frame, int *again,
                                  struct sw_group **out)
{
    const struct sw_id *all = m->id;
    struct sw_id local;
    symwin_status status;
    int leads;

    frame->header.type = 0;
    *again = 0;
    sw_client_tell_at(all, m->join.rank, m->due - m->join.timeout_ms / 4 * 3);
    status = sw_host_join_find(m, &local, &leads);
    if (leads || status != SYMWIN_OK)
        sw_client_tell_at(NULL, 0, 0);
    if (status == SYMWIN_OK && leads) {
        status = join_for_host(m, &local, frame, out);
    } else if (status == SYMWIN_OK) {
        m->id = &local;
        if (is_own(m)) {
            sw_client_tell_at(NULL, 0, 0);
            status = join_as_thread(m, NULL, NULL, out);
            *again = status == SYMWIN_BUSY;
        } else {
            status = join_by_socket(m, frame, out);
            sw_client_tell_at(NULL, 0, 0);
            *again = status != SYMWIN_OK && starts_over(m, status, frame);
        }
        m->id = all;
        if (status == SYMWIN_NO_MEMORY && m->table.have == 0 &&
            frame->header.type != SW_FRAME_REFUSAL)
            sw_client_tell(all, m->join.rank, status); /* those of this host do not know of it */
    }
    sw_wipe(&local, sizeof local);
    return status;
}

/* A rank that is, as far as it knows, not on the creator's host. */
static symwin_status join_far(struct sw_member *m, struct sw_group **out)
{
    const struct sw_id *all = m->id;
    union sw_frame frame;
    symwin_status status;
    struct sw_id here;
    int again;

    m->deadline += SW_GRACE_MS;
    do {
        join_again(m);
        status = join_on_host(m, &frame, &again, out);
    } while (again);
    if (status != SYMWIN_OK || frame.header.type != SW_FRAME_HERE)
        return status;
    join_again(m);
    here = *all;
    memcpy(here.folder, frame.here.folder, sizeof here.folder);
    here.folder[sizeof here.folder - 1] = '\0';
    here.family = 0; /* not over the network again */
    m->id = &here;
    status = join_by_socket(m, &frame, out);
    m->id = all;
    sw_wipe(&here, sizeof here);
    return status;
}

symwin_status sw_bootstrap_join(const symwin_unique_id *unique, int nranks, int rank,
                                int timeout_ms, struct sw_group **out)
{
    struct sw_id id;
    struct sw_member m = {.id = &id, .connection = {.fd = -1}};
    union sw_frame frame;
    symwin_status status;

    memcpy(&id, unique, sizeof id);
    if (!sw_id_is_valid(&id))
        return sw_fail(SYMWIN_INVALID, "%s: id was not made by symwin_unique_id_create", call);
    m.due = sw_now_ms() + timeout_ms;
    m.deadline = m.due + SW_GRACE_MS;
    sw_poll_lock();
    status = sw_join_fill(&m.join, nranks, rank, timeout_ms);
    sw_poll_unlock();
    if (status == SYMWIN_OK && is_own(&m))
        status = join_as_thread(&m, NULL, NULL, out);
    else if (status == SYMWIN_OK && sw_id_is_near(&id))
        status = join_by_socket(&m, &frame, out);
    else if (status == SYMWIN_OK)
        status = join_far(&m, out);
    sw_connection_close(&m.connection);
    sw_rank_table_free(&m.table);
    sw_claim_drop(&id);
    sw_wipe(&id, sizeof id);
    if (status != SYMWIN_OK)
        sw_fail_in(status, call, ""); /* adds the call: what failed may not know it */
    sw_poll_settle();
    return status;
}
