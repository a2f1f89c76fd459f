/* The member's side of bootstrap: each rank joins the rendezvous of the process that created the id
 * (rendezvous.c), as a thread of that process or through a socket (client.c), and gets its
 * process's struct sw_group.
 *
 * In other processes each rank joins on its own. The lowest rank receives the descriptors and makes
 * the group, and the others wait for it (process_join.c). Ranks of another host get the table of
 * all ranks by TCP. Then they join a host-local rendezvous, whose id their lowest rank creates.
 *
 * On the thread of the rank that joins, without the poll lock.
 */
#include <stdio.h>
#include <string.h>

#include "src/bootstrap/member.h"
#include "src/bootstrap/rendezvous.h"

static const char call[] = "symwin_comm_create";

enum {
    HOSTS_MS = 4000, /* instead of SW_GRACE_MS, if the creator waits for other hosts' reports */
    LOOK_MS = 2,     /* between looks for the id of the host-local rendezvous */
    ASK_MS = 20,     /* between looks whether another host has ended the exchange */
    REFUSAL_MS = 40, /* for a refusal that should have arrived already */
    ANSWER_MS = 500  /* for the answer of a process that runs */
};

/* ---- the lowest rank of a process ---- */

/* Whether the rank is the lowest of its process. *mates: other ranks of the process. */
static int is_leader(const struct sw_frame_table *table, int rank, int *mates)
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

static symwin_status wrong_frame(const char *what, int fd)
{
    sw_closer_close(fd);
    return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong %s", call, what);
}

static symwin_status open_link(struct sw_topology *topology, const struct sw_frame_link *link,
                               int fd)
{
    struct sw_connection *connection = &topology->connections[link->host];

    if (sw_connection_open(connection, fd, 1) != 0) {
        sw_fork_set_close(fd);
        *connection = (struct sw_connection){.fd = -1};
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    connection->keyed = 1;
    connection->maker = 1;
    connection->sent = link->sent;
    connection->received = link->received;
    memcpy(connection->key, link->key, sizeof connection->key);
    return SYMWIN_OK;
}

/* Receives the descriptors: page and sockets for the lowest rank of a process, also the links for
 * the lowest rank of the host. *maker: the creator's process in the table; -1: unknown, or it has
 * no rank. */
static symwin_status receive_descriptors(struct sw_connection *connection,
                                         struct sw_topology *topology, int rank,
                                         union sw_frame *frame, int *maker, int64_t deadline)
{
    symwin_status status;
    int fd = -1;
    int i, r;

    status = sw_client_recv_frame(connection, frame, SW_FRAME_PAGE, &topology->page, deadline);
    *maker = status == SYMWIN_OK ? frame->pass.process : -1;
    for (i = neighbours(topology, rank); i > 0 && status == SYMWIN_OK; i--) {
        status = sw_client_recv_frame(connection, frame, SW_FRAME_SOCKET, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (!sw_socket_is(fd, 0) || frame->pass.process >= topology->processes ||
            frame->pass.process == topology->process || topology->sockets[frame->pass.process] >= 0)
            return wrong_frame("socket", fd);
        topology->sockets[frame->pass.process] = fd;
    }
    for (r = 0; r < rank && topology->locations[r].host != topology->host; r++)
        ;
    for (i = r == rank ? topology->hosts - 1 : 0; i > 0 && status == SYMWIN_OK; i--) {
        status = sw_client_recv_frame(connection, frame, SW_FRAME_LINK, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (!sw_socket_is(fd, 1) || frame->link.host >= topology->hosts ||
            topology->connections[frame->link.host].fd >= 0)
            return wrong_frame("link", fd);
        status = open_link(topology, &frame->link, fd);
        sw_wipe(frame->link.key, sizeof frame->link.key);
    }
    return status;
}

/* The culprit of a failure as seen by this process: `own`, the one that the last frame names, or
 * the creator's lowest rank, `maker` (-1: it has none). */
static int find_culprit(symwin_status status, const union sw_frame *last, int maker, int own)
{
    int culprit = own;

    if (last->header.type == SW_FRAME_REFUSAL)
        culprit = last->refusal.rank;
    else if (status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT)
        culprit = maker;
    return culprit >= 0 ? culprit : own;
}

/* Receives the descriptors and creates the group. `all_ranks`: their table if the rendezvous was
 * host-local; else NULL. */
static symwin_status create_group(struct sw_connection *connection,
                                  const struct sw_frame_table *table, int rank,
                                  const struct sw_frame_table *all_ranks, int host,
                                  union sw_frame *frame, int *maker, int64_t deadline,
                                  struct sw_group **out)
{
    struct sw_topology topology;
    symwin_status status = sw_topology_make(&topology, table->nranks, table->processes,
                                            table->hosts);
    int p;

    if (status != SYMWIN_OK)
        return status;
    memcpy(topology.locations, table->locations,
           (size_t)table->nranks * sizeof *topology.locations);
    topology.process = table->locations[rank].process;
    status = receive_descriptors(connection, &topology, rank, frame, maker, deadline);
    if (status == SYMWIN_OK && all_ranks != NULL) {
        sw_poll_lock();
        status = sw_topology_widen(&topology, all_ranks, host);
        sw_poll_unlock();
    }
    if (status != SYMWIN_OK)
        sw_topology_end(&topology, status, find_culprit(status, frame, *maker, rank));
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

/* The number among all ranks of a host's rank-th rank. */
static int rank_of_all(const struct sw_frame_table *all_ranks, int host, int rank)
{
    int r = 0;

    while (all_ranks->locations[r].host != host || rank-- > 0)
        r++;
    return r;
}

/* Tells the creator why this process fails, with the last error's text. The creator refuses the
 * other ranks with it. */
static void send_refusal(struct sw_connection *connection, symwin_status status, int culprit,
                         int64_t deadline)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = (int32_t)status;
    frame.refusal.rank = culprit;
    snprintf(frame.refusal.text, sizeof frame.refusal.text, "%s", symwin_last_error());
    sw_frame_seal(&frame, SW_FRAME_REFUSAL);
    sw_connection_send(connection, &frame, -1, deadline); /* may fail: perhaps it is the cause */
}

/* Tells the creator that this process is ready, or why it is not. */
static symwin_status report(struct sw_connection *connection, int rank, symwin_status status,
                            int64_t deadline)
{
    union sw_frame frame;
    char who[32];

    if (status == SYMWIN_OK) {
        memset(&frame, 0, sizeof frame.pass);
        sw_frame_seal(&frame, SW_FRAME_READY);
        return sw_client_send_frame(connection, &frame, deadline);
    }
    snprintf(who, sizeof who, "rank %d: ", rank);
    sw_fail_in(status, call, who);
    send_refusal(connection, status, rank, deadline);
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
            send_refusal(connection, status, culprit, deadline);
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

/* The lowest rank of the creator's process, among all ranks; -1: it has none. */
static int lowest_of_maker(const struct sw_frame_table *table,
                           const struct sw_frame_table *all_ranks, int host, int maker)
{
    int r = 0;

    while (r < table->nranks && table->locations[r].process != maker)
        r++;
    if (r == table->nranks)
        return -1;
    return all_ranks == NULL ? r : rank_of_all(all_ranks, host, r);
}

/* No GO: ends the exchange. Unless the creator has refused, other processes may have got GO; they
 * learn of the end from the control page, and other hosts through the links. `maker`: the creator's
 * lowest rank; -1: none. */
static symwin_status fail_group(struct sw_group *group, symwin_status status,
                                const union sw_frame *last, int maker)
{
    const int creator_failed = status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT;

    sw_exchange_fail(group->exchange, status, find_culprit(status, last, maker, group->leader));
    if (last->header.type == SW_FRAME_REFUSAL)
        return status;
    if (!creator_failed)
        return sw_exchange_settled(group->exchange, call);
    /* The creator is the cause. The page may name another process that failed for the same
     * reason. */
    if (maker >= 0)
        sw_fail(status, "%s: rank %d, whose process made the id, %s", call, maker,
                status == SYMWIN_TIMEOUT ? "did not answer in time"
                                         : "ended before all ranks were ready");
    return status;
}

/* The lowest rank of a process: creates the group, reports to the creator and waits for GO. */
static symwin_status publish(struct sw_connection *connection, const struct sw_frame_table *table,
                             int rank, const struct sw_frame_table *all_ranks, int host,
                             int64_t deadline, struct sw_group **out)
{
    union sw_frame frame = {.header = {.type = 0}};
    const int own = all_ranks == NULL ? rank : rank_of_all(all_ranks, host, rank);
    struct sw_group *group = NULL;
    symwin_status status;
    int maker = -1, told = 0;

    status = create_group(connection, table, rank, all_ranks, host, &frame, &maker, deadline,
                          &group);
    if (frame.header.type != SW_FRAME_REFUSAL && status != SYMWIN_PEER_LOST)
        status = report(connection, own, status, deadline);
    if (status == SYMWIN_OK)
        status = await_go(connection, group, &frame, deadline, &told);
    if (status == SYMWIN_OK) {
        *out = group;
    } else if (group != NULL) {
        if (!told)
            status = fail_group(group, status, &frame,
                                lowest_of_maker(table, all_ranks, host, maker));
        sw_poll_lock();
        sw_group_free(group);
        sw_poll_unlock();
    }
    return status;
}

/* ---- ranks of another host than the creator's ---- */

static symwin_status join_rendezvous(const struct sw_id *id, struct sw_frame_join *join,
                                     struct sw_connection *first,
                                     const struct sw_frame_table *all_ranks, int host,
                                     struct sw_group **out);

/* Waits where only a refusal may come: no frame has type 0. Never SYMWIN_OK. */
static symwin_status await_refusal(struct sw_connection *connection, union sw_frame *frame,
                                   int64_t deadline)
{
    return sw_client_recv_frame(connection, frame, (enum sw_frame_type)0, NULL, deadline);
}

/* Waits until the lowest rank of the host has written the id of the host-local rendezvous, or the
 * creator refuses. */
static symwin_status await_id(const char *tail, struct sw_id *local,
                              struct sw_connection *connection, union sw_frame *frame, int lowest,
                              int64_t deadline)
{
    char text[SW_TEXT_BYTES];
    unsigned turn = 0;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    while (!sw_id_read(tail, turn++, local, sw_id_is_open, deadline)) {
        const symwin_status status = await_refusal(connection, frame, sw_now_ms() + LOOK_MS);

        if (status != SYMWIN_TIMEOUT)
            return status;
        if (sw_now_ms() >= deadline)
            return sw_fail(
                SYMWIN_TIMEOUT,
                "%s: rank %d, the lowest on this host, did not join the other ranks of the host "
                "in time; all need the same TMPDIR",
                call, lowest);
    }
    sw_error_restore(text); /* looks that fail are no error */
    return SYMWIN_OK;
}

/* The host-local rendezvous has failed for this rank. If the first creator has refused, its refusal
 * counts. Otherwise this rank tells it the culprit: itself, or after a timeout the lowest rank of
 * the host. After a timeout it then waits for the first creator's refusal, which may name another:
 * if the first creator does not answer, that may be why the lowest rank was late. */
static symwin_status local_failed(struct sw_connection *first, int rank, int lowest,
                                  symwin_status status)
{
    char text[SW_TEXT_BYTES];
    union sw_frame frame;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    frame.header.type = 0;
    await_refusal(first, &frame, sw_now_ms() + REFUSAL_MS);
    if (frame.header.type == SW_FRAME_REFUSAL)
        return (symwin_status)frame.refusal.status;
    sw_error_restore(text);
    if (status != SYMWIN_TIMEOUT)
        return report(first, rank, status, sw_now_ms());
    send_refusal(first, status, lowest, sw_now_ms());
    return await_refusal(first, &frame, sw_now_ms() + ANSWER_MS);
}

/* Joins the host-local rendezvous. The lowest rank of the host creates its id and writes it to a
 * file, where the others find it. */
static symwin_status join_host_local(const struct sw_id *id, const struct sw_frame_join *join,
                                     const struct sw_frame_table *table,
                                     struct sw_connection *connection, int64_t deadline,
                                     struct sw_group **out)
{
    const int host = table->locations[join->rank].host;
    const struct sw_part parts[] = {{id->secret, sizeof id->secret}, {&host, sizeof host}};
    char tail[SW_TAIL_BYTES], name[SW_FILE_NAME_BYTES];
    struct sw_id_options options = {
        .file = name, .table = table, .host = host, .connection = connection};
    union sw_frame frame = {.header = {.type = 0}};
    const int lowest = rank_of_all(table, host, 0);
    symwin_status status = SYMWIN_OK;
    struct sw_frame_join mine;
    struct sw_id local;
    int rank = 0, nranks = 0, r;

    for (r = 0; r < table->nranks; r++) {
        rank += table->locations[r].host == host && r < join->rank;
        nranks += table->locations[r].host == host;
    }
    if (lowest == join->rank)
        status = sw_client_recv_frame(connection, &frame, SW_FRAME_GO, NULL, deadline);
    sw_id_tail(parts, 2, tail);
    if (status == SYMWIN_OK && lowest == join->rank)
        status = sw_id_file(tail, call, name);
    if (status == SYMWIN_OK)
        status = lowest == join->rank
                     ? sw_id_make(&local, &options, call)
                     : await_id(tail, &local, connection, &frame, lowest, deadline - SW_GRACE_MS);
    if (status != SYMWIN_OK) {
        sw_wipe(&local, sizeof local);
        if (lowest != join->rank && frame.header.type != SW_FRAME_REFUSAL)
            return local_failed(connection, join->rank, lowest, status);
        if (frame.header.type == SW_FRAME_GO)
            sw_host_link_say_end(connection, status, lowest);
        return status;
    }
    mine = *join;
    mine.rank = rank;
    mine.nranks = nranks;
    mine.posts = table->nranks;
    mine.timeout_ms = sw_now_ms() + SW_GRACE_MS < deadline
                          ? (int)(deadline - SW_GRACE_MS - sw_now_ms())
                          : 1;
    status = join_rendezvous(&local, &mine, lowest == join->rank ? NULL : connection, table, host,
                             out);
    sw_wipe(&local, sizeof local);
    if (status == SYMWIN_OK || lowest == join->rank || connection->fd < 0)
        return status;
    return local_failed(connection, join->rank, lowest, status);
}

/* Joins through a socket of the creator. */
static symwin_status join_by_socket(const struct sw_id *id, struct sw_frame_join *join,
                                    struct sw_connection *first,
                                    const struct sw_frame_table *all_ranks, int host,
                                    int64_t deadline, struct sw_group **out)
{
    int64_t group_deadline = deadline; /* after TABLE */
    /* Allocated first: later the lowest rank could not tell the others that it has no memory. */
    struct sw_process_join *process_join = sw_process_join_new(
        id, all_ranks == NULL ? join->rank : rank_of_all(all_ranks, host, join->rank));
    union sw_frame frame = {.header = {.type = 0}};
    struct sw_connection connection = {.fd = -1};
    struct sw_frame_table table;
    symwin_status status;
    int mates = 0;

    if (process_join == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to join", call);
    status = sw_client_join(id, join, first, deadline, &connection, &frame);
    if (status == SYMWIN_OK && frame.header.type == SW_FRAME_HERE) {
        struct sw_id local = *id;

        sw_connection_close(&connection);
        sw_process_join_free(process_join);
        memcpy(local.folder, frame.here.folder, sizeof local.folder);
        local.folder[sizeof local.folder - 1] = '\0';
        local.family = 0; /* not over the network again */
        status = join_by_socket(&local, join, first, all_ranks, host, deadline, out);
        sw_wipe(&local, sizeof local);
        return status;
    }
    if (status != SYMWIN_OK) {
        sw_connection_close(&connection);
        if (frame.header.type == SW_FRAME_REFUSAL) /* all ranks are refused */
            sw_process_join_free(process_join);
        else /* the others may succeed */
            sw_process_join_abandon(process_join, status, deadline);
        return status;
    }
    if (frame.table.nranks != join->nranks)
        status = sw_fail(SYMWIN_DENIED, "%s: the process that made the id expects %d ranks, not %d",
                         call, frame.table.nranks, join->nranks);
    table = frame.table;
    if (status == SYMWIN_OK && table.hosts > 1)
        group_deadline = deadline - SW_GRACE_MS + HOSTS_MS;
    if (status == SYMWIN_OK && connection.stream) {
        status = join_host_local(id, join, &table, &connection, deadline, out);
    } else if (status == SYMWIN_OK && is_leader(&table, join->rank, &mates)) {
        status = publish(&connection, &table, join->rank, all_ranks, host, group_deadline, out);
        sw_process_join_publish(process_join, mates, status, status == SYMWIN_OK ? *out : NULL);
        process_join = NULL;
    } else if (status == SYMWIN_OK) {
        status = sw_process_join_await(process_join, group_deadline + SW_GRACE_MS, out);
        process_join = NULL;
    }
    sw_connection_close(&connection);
    sw_process_join_free(process_join);
    return status;
}

static symwin_status join_rendezvous(const struct sw_id *id, struct sw_frame_join *join,
                                     struct sw_connection *first,
                                     const struct sw_frame_table *all_ranks, int host,
                                     struct sw_group **out)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms + SW_GRACE_MS;
    symwin_status status;

    if (memcmp(join->process, id->maker, sizeof id->maker) != 0)
        return join_by_socket(id, join, first, all_ranks, host, deadline, out);
    if (first != NULL)
        sw_client_ready(first);
    sw_poll_lock();
    status = sw_rendezvous_join(id, join, out);
    sw_poll_unlock();
    return status;
}

symwin_status sw_bootstrap_join(const symwin_unique_id *unique, int nranks, int rank,
                                int timeout_ms, struct sw_group **out)
{
    struct sw_frame_join join;
    symwin_status status;
    struct sw_id id;

    memcpy(&id, unique, sizeof id);
    if (!sw_id_is_valid(&id))
        return sw_fail(SYMWIN_INVALID, "%s: id was not made by symwin_unique_id_create", call);
    sw_poll_lock();
    status = sw_join_fill(&join, nranks, rank, timeout_ms);
    sw_poll_unlock();
    if (status == SYMWIN_OK)
        status = join_rendezvous(&id, &join, NULL, NULL, 0, out);
    sw_claim_drop(&id);
    sw_wipe(&id, sizeof id);
    if (status != SYMWIN_OK)
        sw_fail_in(status, call, ""); /* adds the call: what failed may not know it */
    sw_poll_settle();
    return status;
}

void sw_bootstrap_forget(void)
{
    sw_process_join_forked();
    sw_claims_forked();
    sw_id_forked();
    sw_rendezvous_forked();
}
