/* A process's share of a communicator. The topology is what the rendezvous gave the process. The
 * group is made from it: the exchange, the peer sockets to other processes, the links to other
 * hosts.
 *
 * sw_topology_make(), sw_group_create(), then
 * sw_group_leave() once for each rank; the last one frees the group. The poll lock protects
 * creation and destruction. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "src/control/control.h"

static const char call[] = "symwin_comm_create";

/* ---- topologies ---- */

symwin_status sw_topology_make(struct sw_topology *topology, int nranks, int processes, int hosts)
{
    int i;

    *topology = (struct sw_topology){
        .nranks = nranks, .processes = processes, .hosts = hosts, .page = -1};
    topology->locations = calloc((size_t)nranks, sizeof *topology->locations);
    topology->sockets = malloc((size_t)processes * sizeof *topology->sockets);
    topology->connections = malloc((size_t)hosts * sizeof *topology->connections);
    for (i = 0; i < processes && topology->sockets != NULL; i++)
        topology->sockets[i] = -1;
    for (i = 0; i < hosts && topology->connections != NULL; i++)
        topology->connections[i] = (struct sw_connection){.fd = -1};
    if (topology->locations != NULL && topology->sockets != NULL && topology->connections != NULL)
        return SYMWIN_OK;
    sw_topology_release(topology);
    return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, nranks);
}

int sw_topology_leader(const struct sw_topology *topology, int process)
{
    int r = 0;

    while (r < topology->nranks - 1 && (int)topology->locations[r].process != process)
        r++;
    return r;
}

void sw_close_fd(int fd)
{
    sw_fork_set_remove(fd);
    close(fd);
}

static void socket_close(int fd)
{
    sw_socket_empty(fd);
    sw_close_fd(fd);
}

void sw_topology_release(struct sw_topology *topology)
{
    int i;

    for (i = 0; i < topology->processes && topology->sockets != NULL; i++)
        if (topology->sockets[i] >= 0)
            socket_close(topology->sockets[i]);
    for (i = 0; i < topology->hosts && topology->connections != NULL; i++)
        sw_connection_drop(&topology->connections[i]);
    if (topology->page >= 0)
        sw_close_fd(topology->page);
    free(topology->locations);
    free(topology->sockets);
    free(topology->connections);
    *topology = (struct sw_topology){.page = -1};
}

void sw_topology_end(struct sw_topology *topology, symwin_status status, int culprit)
{
    int h;

    for (h = 0; h < topology->hosts; h++)
        if (topology->connections[h].fd >= 0)
            sw_host_link_say_end(&topology->connections[h], status,
                                 culprit >= 0 ? culprit : SW_NOBODY);
}

/* ---- groups ---- */

static atomic_uint_fast64_t freed;

uint64_t sw_group_freed(void)
{
    return atomic_load(&freed);
}

void sw_group_count_freed(void)
{
    atomic_fetch_add(&freed, 1);
}

void sw_group_drop_object(struct sw_group *group)
{
    struct sw_multicast *object = &group->object;

    if (object->mapped)
        sw_drop(sw_drv.cuMemUnmap(sw_group_address(group, group->nranks, 0), object->bytes),
                "cuMemUnmap");
    object->mapped = 0;
    if (object->object != 0)
        sw_drop(sw_drv.cuMemRelease(object->object), "cuMemRelease");
    object->object = 0;
    if (atomic_exchange(&object->was_bound, 0)) /* only now is its slot free */
        sw_group_count_freed();
}

/* The last step: what segments need until they are destroyed. */
static void free_range(struct sw_remains *remains)
{
    struct sw_group *group = (struct sw_group *)(void *)remains;
    int stalled;

    pthread_mutex_lock(&group->mutex);
    stalled = group->stalled;
    group->is_left = 1;
    pthread_mutex_unlock(&group->mutex);
    if (stalled > 0)
        return; /* the last that comes back goes on here */
    sw_group_drop_object(group);
    if (group->base != 0)
        sw_drop(sw_drv.cuMemAddressFree(group->base, group->range_bytes), "cuMemAddressFree");
    pthread_mutex_destroy(&group->mutex);
    free(group);
}

void sw_group_free_range(struct sw_group *group)
{
    sw_reaper_take(&group->remains, free_range);
}

void sw_group_free(struct sw_group *group)
{
    int p;

    if (group->unused_end != NULL)
        group->unused_end(group, 0);

    sw_host_link_stop(group);
    for (p = 0; p < group->processes && group->sockets != NULL; p++)
        if (group->sockets[p] != NULL)
            sw_poll_remove(&group->sockets[p]->watch);
    for (p = 0; p < group->processes && group->sockets != NULL; p++) {
        struct sw_peer_socket *socket = group->sockets[p];

        if (socket == NULL)
            continue;
        socket_close(socket->watch.fd);
        sw_outbox_clear(&socket->outbox, group->queued);
        pthread_mutex_destroy(&socket->mutex);
        free(socket);
    }
    sw_mailbox_destroy(group);
    sw_exchange_destroy(group->exchange);
    free(group->handle_exchange);
    free(group->sockets);
    free(group->process_of);
    free(group->host_of);
    free(group->devices);
    free(group->reports);
    free(group->queued);
    if (group->base != 0)
        sw_group_free_range(group); /* after the last of its segments */
    else
        free_range(&group->remains);
}

/* Asks the waiting kernels of this process's ranks to leave: the user's, and with `all` the
 * library's too. */
static void end_kernels(struct sw_group *group, int all)
{
    int r;

    pthread_mutex_lock(&group->mutex);
    for (r = 0; r < group->nranks; r++) {
        if (group->reports[r] == NULL)
            continue;
        __atomic_store_n(&group->reports[r]->ended, 1, __ATOMIC_RELEASE);
        if (all)
            __atomic_store_n(&group->reports[r]->abort, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&group->mutex);
}

/* The exchange has ended: stops this process's waiting kernels and tells the other processes. Any
 * thread. */
static void group_ended(void *context)
{
    struct sw_group *group = context;
    symwin_status status;
    int culprit;

    /* If a rank has left, the library's kernels detect that themselves, and those that do not need
     * it complete. So they are not asked to leave. */
    end_kernels(group, !sw_exchange_outcome(group->exchange, &status, &culprit) ||
                           status != SYMWIN_PEER_LOST || culprit >= group->nranks ||
                           !sw_exchange_leaves(group->exchange, culprit));
    sw_group_shut_sockets(group);
    sw_host_link_end(group);
    pthread_cond_broadcast(&group->mailbox_changed);
}

/* A process is lost with all its ranks that have not left. */
static void process_lost(struct sw_group *group, int process)
{
    /* Without the linking process no other host can decide for this one, whether an end is proposed
     * or not. */
    const int linked = group->hosts > 1 && process == sw_host_link_here(group);
    int r;

    for (r = 0; r < group->nranks; r++) {
        if (group->process_of[r] != process)
            continue;
        if (sw_exchange_has_left(group->exchange, r)) {
            sw_host_link_leave(group, r, -1);
            continue;
        }
        sw_exchange_is_lost(group->exchange, r);
        if (linked)
            sw_exchange_decide(group->exchange, SYMWIN_PEER_LOST, r);
        else if (!sw_exchange_ended(group->exchange))
            sw_exchange_fail(group->exchange, SYMWIN_PEER_LOST, r);
    }
}

/* The socket to a process has broken. That process has left, died, or learned of an end. Or this
 * process could not read the socket (`can_read` 0): that has ended the exchange, but the other
 * process is not lost. On the poll thread. */
static void socket_broken(struct sw_peer_socket *socket, int can_read)
{
    struct sw_group *group = socket->group;

    sw_poll_remove(&socket->watch);
    sw_fork_set_add(socket->watch.fd); /* else a forked child would keep it open */
    if (can_read &&
        !sw_exchange_is_quiet(group->exchange, sw_group_leader_of(group, socket->process))) {
        atomic_store(&socket->died, 1); /* or all its ranks have left */
        process_lost(group, socket->process);
    }
    if (sw_exchange_ended(group->exchange)) {
        group_ended(group);
        sw_host_link_await(group);
    }
}

/* A peer socket has frames, or its end. On the poll thread. */
static void socket_ready(struct sw_poll_watch *watch, short events)
{
    struct sw_peer_socket *socket = (struct sw_peer_socket *)(void *)watch;
    int error;

    if ((events & POLLOUT) != 0) {
        (void)sw_mailbox_go_on(socket);
        sw_poll_rest(); /* messages may be left */
    }
    error = sw_mailbox_read(socket);
    if (error == 0) { /* the end comes after the frames that are left */
        sw_poll_rest();
        return;
    }
    if (error != EAGAIN || (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
        socket_broken(socket, error == EAGAIN || error == EPIPE);
}

void sw_group_abort_kernels(struct sw_group *group)
{
    end_kernels(group, 1);
}

static void shut_sockets(struct sw_group *group)
{
    int p;

    for (p = 0; p < group->processes && group->sockets != NULL; p++)
        if (group->sockets[p] != NULL)
            shutdown(group->sockets[p]->watch.fd, SHUT_WR);
}

void sw_group_shut_sockets(struct sw_group *group)
{
    sw_exchange_be_quiet(group->exchange, group->leader);
    shut_sockets(group);
}

/* Moves the topology's descriptors into the group. */
static symwin_status group_connect(struct sw_group *group, struct sw_topology *topology)
{
    symwin_status status = SYMWIN_OK;
    int p;

    if (topology->page < 0) {
        group->exchange = sw_exchange_create(topology->nranks);
        if (group->exchange == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call,
                           topology->nranks);
        sw_exchange_on_end(group->exchange, group_ended, group);
        return SYMWIN_OK;
    }
    status = sw_exchange_open(topology->page, topology->nranks, &group->exchange);
    if (status == SYMWIN_OK)
        sw_exchange_on_end(group->exchange, group_ended, group);
    if (status == SYMWIN_OK && group->hosts > 1)
        status = sw_host_link_start(group, topology->connections, sw_mailbox_forward);
    for (p = 0; p < topology->processes && status == SYMWIN_OK; p++) {
        struct sw_peer_socket *socket;

        if (topology->sockets[p] < 0)
            continue;
        socket = group->sockets[p] = calloc(1, sizeof *socket);
        if (socket == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d processes", call,
                           topology->processes);
        pthread_mutex_init(&socket->mutex, NULL);
        socket->group = group;
        socket->process = p;
        socket->watch = (struct sw_poll_watch){.fd = topology->sockets[p],
                                               .events = POLLIN | POLLRDHUP,
                                               .deadline = INT64_MAX,
                                               .ready = socket_ready};
        topology->sockets[p] = -1;
        status = sw_poll_add(&socket->watch);
    }
    return status;
}

/* Allocates the group's arrays and fills them from the topology. */
static symwin_status group_fill(struct sw_group *group, const struct sw_topology *topology)
{
    int r;

    group->nranks = topology->nranks;
    group->process = topology->process;
    group->processes = topology->processes;
    group->host = topology->host;
    group->hosts = topology->hosts;
    group->fan = sw_host_fan;
    group->reports = calloc((size_t)topology->nranks, sizeof *group->reports);
    group->process_of = calloc((size_t)topology->nranks, sizeof *group->process_of);
    group->host_of = calloc((size_t)topology->nranks, sizeof *group->host_of);
    group->sockets = calloc((size_t)topology->processes, sizeof *group->sockets);
    group->waiting = calloc((size_t)topology->nranks, sizeof *group->waiting);
    group->queued = calloc((size_t)topology->nranks, sizeof *group->queued);
    group->handles = calloc((size_t)topology->nranks, sizeof *group->handles);
    group->mailboxes = calloc((size_t)topology->nranks, sizeof *group->mailboxes);
    if (group->reports == NULL || group->process_of == NULL || group->host_of == NULL ||
        group->sockets == NULL || group->waiting == NULL || group->queued == NULL ||
        group->handles == NULL || group->mailboxes == NULL ||
        (group->hosts > 1 && !sw_host_link_create(group)))
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, topology->nranks);
    group->leader = sw_topology_leader(topology, topology->process);
    for (r = 0; r < topology->nranks; r++) {
        group->process_of[r] = (int)topology->locations[r].process;
        group->host_of[r] = (int)topology->locations[r].host;
        if (group->process_of[r] != topology->process)
            continue;
        group->nlocal++;
    }
    atomic_init(&group->refs, group->nlocal);
    return SYMWIN_OK;
}

/* Creation has failed: the other processes and hosts must not wait for this process's ranks. */
static void group_give_up(struct sw_group *group, struct sw_topology *topology,
                          symwin_status status)
{
    const int leader = sw_topology_leader(topology, topology->process);

    if (group != NULL && group->exchange != NULL)
        sw_exchange_fail(group->exchange, status, leader);
    sw_topology_end(topology, status, leader);
    if (group != NULL)
        sw_group_free(group);
}

symwin_status sw_group_create(struct sw_topology *topology, struct sw_group **out)
{
    struct sw_group *group = calloc(1, sizeof *group);
    symwin_status status;

    if (group != NULL)
        pthread_cond_init(&group->mailbox_changed, NULL);
    if (group != NULL && pthread_mutex_init(&group->mutex, NULL) != 0) {
        free(group);
        group = NULL;
    }
    if (group == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call,
                         topology->nranks);
    else
        status = group_fill(group, topology);
    if (status == SYMWIN_OK)
        status = group_connect(group, topology);
    if (status == SYMWIN_OK)
        *out = group;
    else
        group_give_up(group, topology, status);
    sw_topology_release(topology);
    return status;
}

/* Whether a rank of another process may still use multicast addresses: it has not left, and its
 * process is not known to have died. That a rank is lost says less: it may be of another host, to
 * which the link has broken. */
static int is_used_elsewhere(struct sw_group *group)
{
    int r;

    for (r = 0; r < group->nranks; r++) {
        const struct sw_peer_socket *socket = group->sockets[group->process_of[r]];

        if (!sw_exchange_has_left(group->exchange, r) &&
            (socket == NULL || !atomic_load(&socket->died)))
            return 1;
    }
    return 0;
}

/* Memory of this process that is bound to the multicast object stays so until all ranks have left,
 * but a rank that never does keeps nobody: a second at most. The process that links this host to
 * others tells them who has left when it sees the end of our socket. */
static void await_others(struct sw_group *group)
{
    const struct timespec nap = {.tv_nsec = 500000};
    const int64_t until = sw_now_ms() + SW_REAPER_MS;

    if (group->unused_from == NULL || group->unused_from(group, 0) == 0)
        return;
    shut_sockets(group);
    while (is_used_elsewhere(group) && sw_now_ms() < until)
        nanosleep(&nap, NULL);
}

void sw_group_leave(struct sw_group *group, int rank)
{
    sw_mailbox_settle(group);
    sw_exchange_leave(group->exchange, rank);
    sw_host_link_leave(group, rank, -1);
    sw_mailbox_drop(group, rank);
    if (atomic_fetch_sub(&group->refs, 1) != 1)
        return;
    await_others(group);
    sw_host_link_settle(group);
    sw_poll_lock();
    sw_group_free(group);
    sw_poll_unlock();
    sw_poll_settle();
}
