/* Messages from one rank to another. They are delivered whatever the receiving rank is doing.
 *
 *   same process    into the mailbox of the process's group
 *   same host       over the peer socket of the two processes; the receiver's poll thread, or a
 *                   rank that waits there, reads it into the mailbox. Without room in the socket
 *                   it waits in an outbox; the sender's poll thread goes on when there is room
 *   another host    to the linking process, over TCP (host_link.c), on to the receiver's process
 *
 * Peer sockets also carry the handles of registrations. They wait here, one per rank, until the
 * handle exchange of this process takes them (window/handle_exchange.c).
 *
 * The poll lock protects the mailbox and the reading of peer sockets. Any thread may send.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "src/control/control.h"

enum {
    DESCRIPTORS = 4, /* messages may hold 1/4 of the process's descriptors */
    REST_MS = 1,     /* between two turns, for others to get the lock */
    SLICE_MS = 20,   /* poll interval for what wakes nobody, such as a rank that left */
    CLOSER_MS = 100, /* timeout of waiting for the closer thread */
    LEAVE_MS = 100   /* how long a rank that leaves waits for room in sockets */
};

/* ---- descriptors in messages, those that a rank has taken included ---- */

/* Of all communicators of the process. It grows under the poll lock only. Descriptors that wait for
 * the closer thread count too: messages that were freed, or came when there was no room. */
static atomic_int held_fds;

/* A forked child has none of them. */
static void forget_held(void)
{
    atomic_store(&held_fds, 0);
}

/* So many messages may hold. */
static rlim_t quarter(void)
{
    struct rlimit most;

    return getrlimit(RLIMIT_NOFILE, &most) == 0 ? most.rlim_cur / DESCRIPTORS
                                                : RLIM_INFINITY / DESCRIPTORS;
}

/* Whether messages may hold one more descriptor; counts it. */
static int hold(void)
{
    if ((rlim_t)atomic_load(&held_fds) + (rlim_t)sw_closer_count() >= quarter())
        return 0;
    sw_fork_register(forget_held);
    atomic_fetch_add(&held_fds, 1);
    return 1;
}

/* Whether the closer thread may get one more from a message. If many wait, it gets a moment. */
static int may_drop(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    int i;

    for (i = 0; i < CLOSER_MS && (rlim_t)sw_closer_count() >= 2 * quarter(); i++)
        nanosleep(&moment, NULL);
    return i < CLOSER_MS;
}

/* Closes the message's descriptor by `with`. */
static void let_go(struct sw_message *message, void (*with)(int fd))
{
    if (message->fd < 0)
        return;
    with(message->fd);
    message->fd = -1;
    atomic_fetch_sub(&held_fds, 1);
}

void sw_message_close_fd(struct sw_message *message)
{
    let_go(message, sw_fork_set_close);
}

void sw_message_free(struct sw_message *message)
{
    if (message == NULL)
        return;
    let_go(message, sw_closer_close);
    if (message->memory != 0)
        sw_drop(sw_drv.cuMemRelease(message->memory), "cuMemRelease");
    if (message->counted != NULL)
        atomic_fetch_sub(message->counted, 1);
    /* A fabric handle gives access to the memory. */
    sw_wipe(&message->words, sizeof message->words);
    free(message);
}

/* ---- the mailbox, under the poll lock ---- */

/* Takes over `fd` and `memory` on success. Returns 0 if there is no host memory, or if too many
 * descriptors wait to be closed. */
static int deliver(struct sw_group *group, const struct sw_frame_message *words, int fd,
                   CUmemGenericAllocationHandle memory)
{
    struct sw_message *message = calloc(1, sizeof *message);

    if (message == NULL)
        return 0;
    if (fd >= 0 && !hold()) { /* as if the system had no room for it */
        if (!may_drop()) {
            free(message);
            return 0;
        }
        sw_closer_close(fd);
        fd = -1;
    }
    message->words = *words;
    message->fd = fd;
    message->memory = memory;
    if (sw_exchange_has_left(group->exchange, words->to)) {
        sw_message_free(message);
        return 1;
    }
    if (group->mailboxes[words->to].first == NULL)
        group->mailboxes[words->to].first = message;
    else
        group->mailboxes[words->to].last->next = message;
    group->mailboxes[words->to].last = message;
    message->counted = &group->waiting[words->from];
    atomic_fetch_add(message->counted, 1);
    pthread_cond_broadcast(&group->mailbox_changed);
    return 1;
}

struct sw_message *sw_mailbox_take(struct sw_group *group, int rank)
{
    struct sw_message *message;

    sw_poll_lock();
    message = group->mailboxes[rank].first;
    if (message != NULL)
        group->mailboxes[rank].first = message->next;
    sw_poll_unlock();
    return message;
}

static void free_all(struct sw_message *message)
{
    while (message != NULL) {
        struct sw_message *next = message->next;

        sw_message_free(message);
        message = next;
    }
}

void sw_mailbox_drop(struct sw_group *group, int rank)
{
    struct sw_message *messages;

    sw_poll_lock();
    messages = group->mailboxes[rank].first;
    group->mailboxes[rank].first = NULL;
    pthread_cond_broadcast(&group->mailbox_changed); /* ranks of this process check who has left */
    sw_poll_unlock();
    free_all(messages); /* there may be many */
}

void sw_mailbox_destroy(struct sw_group *group)
{
    int r;

    for (r = 0; r < group->nranks && group->mailboxes != NULL; r++)
        free_all(group->mailboxes[r].first);
    for (r = 0; r < group->nranks && group->handles != NULL; r++)
        if (group->handles[r].waits)
            sw_closer_close(group->handles[r].fd);
    free(group->mailboxes);
    free(group->handles);
    free(group->waiting);
    pthread_cond_destroy(&group->mailbox_changed);
}

/* ---- sending to another process of the host: any thread ---- */

/* Sends a turn of what waits. Returns whether none waits any more. If the other process has ended
 * or left, it is dropped: the socket shows that. Under the socket's mutex. */
static int send_waiting(struct sw_peer_socket *socket)
{
    const struct sw_frame_message *words;
    int i, error;

    for (i = 0; i < SW_TURN_FRAMES && (words = sw_outbox_first(&socket->outbox)) != NULL; i++) {
        union sw_frame frame;

        frame.message = *words;
        error = sw_frame_send_now(socket->watch.fd, &frame, -1);
        sw_wipe(&frame.message, sizeof frame.message);
        if (error != 0 && error != EPIPE && error != ECONNRESET)
            break;
        sw_outbox_drop_first(&socket->outbox, socket->group->queued);
    }
    return sw_outbox_first(&socket->outbox) == NULL;
}

/* The poll thread is to go on when there is room, if anything waits. Under the socket's mutex. */
static void watch_room(struct sw_peer_socket *socket)
{
    const short waits = sw_outbox_first(&socket->outbox) != NULL ? POLLOUT : 0;

    if ((socket->watch.events & POLLOUT) == waits)
        return;
    socket->watch.events = (short)(POLLIN | POLLRDHUP | waits);
    if (waits)
        sw_poll_changed();
}

int sw_mailbox_go_on(struct sw_peer_socket *socket)
{
    int all;

    pthread_mutex_lock(&socket->mutex);
    all = send_waiting(socket);
    watch_room(socket);
    pthread_mutex_unlock(&socket->mutex);
    return all;
}

/* Without a descriptor a message waits in the outbox if there is no room. Returns 0 or an errno. */
static int post(struct sw_peer_socket *socket, const union sw_frame *frame, int fd)
{
    struct sw_group *group = socket->group;
    int error;

    pthread_mutex_lock(&socket->mutex);
    error = send_waiting(socket) ? sw_frame_send_now(socket->watch.fd, frame, fd) : EAGAIN;
    if (error == EAGAIN && fd < 0) /* after an end nobody needs it */
        error = sw_exchange_ended(group->exchange)
                    ? 0
                    : sw_outbox_add(&socket->outbox, group->queued, &frame->message);
    watch_room(socket);
    pthread_mutex_unlock(&socket->mutex);
    if (error == EOVERFLOW)
        sw_exchange_fail(group->exchange, SYMWIN_MISMATCH, frame->message.from);
    return error;
}

/* Waits for room until `deadline` if there is a descriptor. Returns 0 or an errno. */
static int send_to_process(struct sw_group *group, int process, const union sw_frame *frame, int fd,
                           int64_t deadline)
{
    struct sw_peer_socket *socket = group->sockets[process];
    int error;

    if (socket == NULL) /* whoever handed the sockets out gave a wrong one */
        return EBADF;
    do
        error = post(socket, frame, fd);
    while (error != 0 && (error = sw_frame_wait(socket->watch.fd, error, deadline)) == 0);
    return error;
}

static int is_left(struct sw_group *group)
{
    int p, left = 0;

    for (p = 0; p < group->processes; p++)
        if (group->sockets[p] != NULL)
            left |= !sw_mailbox_go_on(group->sockets[p]);
    return left;
}

void sw_mailbox_settle(struct sw_group *group)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    const int64_t end = sw_now_ms() + LEAVE_MS;

    while (is_left(group) && !sw_exchange_ended(group->exchange) && sw_now_ms() < end)
        nanosleep(&moment, NULL);
}

/* ---- peer sockets, under the poll lock ---- */

/* Whether `process` of this host, or another host (-1), may have sent this message. */
static int sender_is_valid(const struct sw_group *group, const struct sw_frame_message *words,
                           int process)
{
    const int here = group->host;

    if (words->from >= group->nranks || words->to >= group->nranks)
        return 0;
    if (group->host_of[words->from] != here) /* through the linking process */
        return process < 0 || process == sw_host_link_here(group);
    return process >= 0 && group->process_of[words->from] == process;
}

/* Forwards a message between hosts: to another process of this host, or to another host. Returns 0
 * or an errno. Between ranks of one host no process forwards: the receiver would name it if the
 * message is wrong, and not the sender. */
static int forward(struct sw_group *group, const struct sw_frame_message *words)
{
    const int here = group->host, host = group->host_of[words->to];
    const int from = group->host_of[words->from];
    union sw_frame frame;
    int next;

    if (sw_host_link_here(group) != group->process || host == from)
        return EPROTO;
    if (host != here) {
        next = sw_host_link_next(group, here, host);
        if (from != here && sw_host_link_next(group, here, from) == next)
            return EPROTO; /* not on the way to its receiver */
        return sw_host_link_message(group, next, words) ? 0 : ENOMEM;
    }
    frame.message = *words;
    return send_to_process(group, group->process_of[words->to], &frame, -1, 0);
}

/* A rank has sent more messages than any needs. It is named, and not a process that forwards its
 * messages, from which others may still come. Returns 0 or EPROTO; takes over `fd` on success. */
static int too_many(struct sw_group *group, const struct sw_frame_message *words, int fd)
{
    sw_exchange_fail_frame(group->exchange, words->from);
    if (group->host_of[words->from] == group->host)
        return EPROTO;
    sw_closer_close(fd);
    return 0;
}

/* Accepts a message from `process`, or from another host (-1). Returns 0 or an errno; takes over
 * `fd` only on success. */
static int accept_message(struct sw_group *group, const struct sw_frame_message *words, int fd,
                          int process)
{
    int error;

    if (!sender_is_valid(group, words, process))
        return EPROTO;
    if (sw_group_is_local(group, words->to)) {
        if (group->waiting[words->from] >= SW_MOST_MESSAGES)
            return too_many(group, words, fd);
        return deliver(group, words, fd, 0) ? 0 : ENOMEM;
    }
    if (fd >= 0)
        return EPROTO;
    error = forward(group, words);
    /* The peer socket of a process that has ended shows that. */
    return error == EPIPE || error == ECONNRESET || error == EOVERFLOW ? 0 : error;
}

int sw_mailbox_forward(struct sw_group *group, const struct sw_frame_message *words)
{
    const int error = accept_message(group, words, -1, -1);

    if (error != 0 && error != EPROTO)
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, group->leader);
    return error != EPROTO;
}

/* Keeps a rank's memory for a registration: one handle per rank, so that no process can make this
 * one hold more descriptors than it has ranks. `error`: EMFILE if the descriptor was lost. Returns
 * 0 or EPROTO; takes over `fd` only on success. */
static int accept_handle(struct sw_group *group, const struct sw_frame_handle *frame, int fd,
                         int error, int process)
{
    if (frame->rank >= group->nranks || group->process_of[frame->rank] != process ||
        group->handles[frame->rank].waits)
        return EPROTO;
    group->handles[frame->rank] = (struct sw_received_handle){*frame, fd, error, 1};
    pthread_cond_broadcast(&group->mailbox_changed);
    return 0;
}

/* Moves the frames of one turn into the mailbox, with their descriptors in the close-on-fork set.
 * Returns as sw_mailbox_read(). */
static int read_turn(struct sw_peer_socket *socket)
{
    const int64_t end = sw_now_ms() + SW_TURN_MS;
    union sw_frame frame;
    int i;

    for (i = 0; i < SW_TURN_FRAMES && sw_now_ms() <= end; i++) {
        int fd = -1;
        int error = sw_frame_receive_now(socket->watch.fd, &frame, &fd);

        if (error == 0 && !sw_fork_set_add(fd)) {
            sw_closer_close(fd);
            fd = -1;
            error = EMFILE;
        }
        if (error != 0 && error != EMFILE)
            return error;
        /* Also if its descriptor was lost: the rank that needs it reports that. */
        if (frame.header.type == SW_FRAME_MESSAGE)
            error = accept_message(socket->group, &frame.message, fd, socket->process);
        else if (frame.header.type == SW_FRAME_HANDLE)
            error = accept_handle(socket->group, &frame.handle, fd, error, socket->process);
        else
            error = EPROTO;
        if (error != 0) {
            sw_closer_close(fd);
            return error;
        }
    }
    return 0;
}

int sw_mailbox_read(struct sw_peer_socket *socket)
{
    struct sw_group *group = socket->group;
    const int error = read_turn(socket);

    if (error == EPROTO)
        sw_exchange_fail_frame(group->exchange, sw_group_leader_of(group, socket->process));
    else if (error != 0 && error != EAGAIN && error != EPIPE) /* no room here for a frame */
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, group->leader);
    return error;
}

/* ---- sending ---- */

enum sw_message_way sw_mailbox_way(const struct sw_group *group, int to)
{
    if (sw_group_is_local(group, to))
        return SW_WAY_PROCESS;
    return group->host_of[to] == group->host ? SW_WAY_HOST : SW_WAY_FABRIC;
}

/* Returns 0 or an errno. */
static int dispatch(struct sw_group *group, const union sw_frame *frame, int fd,
                    CUmemGenericAllocationHandle memory, int64_t deadline)
{
    const struct sw_frame_message *words = &frame->message;
    const int to = words->to;
    int process = group->process_of[to], delivered;

    if (process == group->process) {
        sw_poll_lock();
        delivered = deliver(group, words, -1, memory);
        sw_poll_unlock();
        return delivered ? 0 : ENOMEM;
    }
    if (group->host_of[to] != group->host) {
        process = sw_host_link_here(group);
        if (process == group->process)
            return sw_host_link_message(
                       group, sw_host_link_next(group, group->host, group->host_of[to]), words)
                       ? 0
                       : ENOMEM;
    }
    return send_to_process(group, process, frame, fd, deadline);
}

int sw_mailbox_try(struct sw_group *group, const struct sw_frame_message *words, int fd,
                   CUmemGenericAllocationHandle memory, int64_t deadline)
{
    union sw_frame frame;
    int error;

    frame.message = *words;
    sw_frame_seal(&frame, SW_FRAME_MESSAGE);
    error = dispatch(group, &frame, fd, memory, deadline);
    if (error != 0 && memory != 0)
        sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    return error;
}

symwin_status sw_mailbox_send(struct sw_group *group, const struct sw_frame_message *words, int fd,
                              CUmemGenericAllocationHandle memory, int64_t deadline,
                              const char *call)
{
    const int error = sw_mailbox_try(group, words, fd, memory, deadline);

    if (error == 0 || error == EPIPE || error == ECONNRESET)
        return SYMWIN_OK; /* the peer socket shows that the process has ended or left */
    if (error == ETIMEDOUT)
        sw_exchange_fail(group->exchange, SYMWIN_TIMEOUT,
                         group->host_of[words->to] == group->host
                             ? words->to
                             : sw_group_leader_of(group, sw_host_link_here(group)));
    else
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, words->from);
    return sw_exchange_settled(group->exchange, call);
}

/* ---- waiting ---- */

/* Reads one turn of each peer socket, under the poll lock. Returns whether frames of `process` may
 * be left; -1: of any process. */
static int read_sockets(struct sw_group *group, int process)
{
    int p, left = 0;

    for (p = 0; p < group->processes; p++)
        if (group->sockets[p] != NULL) { /* the poll thread sees errors too */
            const int error = sw_mailbox_read(group->sockets[p]);

            left |= error == 0 && (p == process || process < 0);
        }
    return left;
}

void sw_mailbox_collect(struct sw_group *group, int64_t deadline)
{
    sw_poll_lock();
    while (read_sockets(group, -1) && sw_now_ms() < deadline && !sw_exchange_ended(group->exchange))
        sw_poll_wait(&group->mailbox_changed, sw_now_ms() + REST_MS);
    sw_poll_unlock();
}

/* What a rank waits for may be among frames that are left. */
static int is_late(int64_t now, int64_t deadline, int unread)
{
    return now - (unread ? SW_UNREAD_MS : 0) >= deadline;
}

/* A rank that has left, so that no message from `peer` can arrive any more: `peer`, or the lowest
 * rank of a host whose linking process forwards them. -1: none. */
static int left_rank(const struct sw_group *group, int peer)
{
    const int there = group->host_of[peer];
    int host = group->host;

    if (sw_exchange_has_left(group->exchange, peer))
        return peer;
    while (there != group->host) { /* those on the way of its messages */
        if (sw_host_link_staying(group, host) < 0)
            return group->links[host].rank;
        if (host == there)
            break;
        host = sw_host_link_next(group, host, there);
    }
    return -1;
}

/* `peer` may wait for another rank itself, or its host's linking process may be stopped. */
static void fail_late(struct sw_exchange *x, int peer, const char *call)
{
    const int culprit = sw_exchange_culprit(x, peer);

    if (culprit == peer)
        sw_exchange_fail_late(x, peer, call, 0);
    else
        sw_exchange_fail(x, SYMWIN_TIMEOUT, culprit);
}

symwin_status sw_mailbox_wait(struct sw_group *group, int rank, int peer, int64_t looked,
                              int64_t deadline, const char *call)
{
    struct sw_exchange *x = group->exchange;
    const int sender = group->host_of[peer] == group->host ? group->process_of[peer]
                                                           : sw_host_link_here(group);
    const int64_t call_deadline = deadline; /* without the allowance */
    int over = 0, too_late;

    deadline += sw_exchange_allowance(x, peer);
    too_late = is_late(looked, deadline, 1); /* messages may come without end */
    sw_poll_lock();
    while (too_late || group->mailboxes[rank].first == NULL) {
        const int64_t now = sw_now_ms();
        const int left = left_rank(group, peer);
        int unread;

        over = sw_exchange_ended(x);
        if (over)
            break;
        /* A message that got through is in this process's peer sockets before the news that a rank
         * leaves. The poll thread may not have read it yet, or may be unable to. So read first: no
         * rank is blamed for a message that is there. */
        unread = read_sockets(group, sender);
        if (!too_late && group->mailboxes[rank].first != NULL)
            break;
        if (left >= 0 && !unread)
            sw_exchange_fail(x, SYMWIN_PEER_LOST, left);
        else if (too_late || is_late(now, deadline, unread))
            fail_late(x, peer, call);
        else {
            if (now >= call_deadline)
                sw_exchange_ask(x);
            sw_exchange_waits_for(x, rank, peer);
            sw_poll_wait(&group->mailbox_changed,
                         now < deadline && deadline < now + SLICE_MS ? deadline : now + SLICE_MS);
        }
    }
    sw_poll_unlock();
    sw_exchange_waits_for(x, rank, -1);
    return over ? sw_exchange_settled(x, call) : SYMWIN_OK;
}

static struct sw_received_handle *first_handle(const struct sw_group *group)
{
    int r = 0;

    while (r < group->nranks && !group->handles[r].waits)
        r++;
    return r < group->nranks ? &group->handles[r] : NULL;
}

int sw_mailbox_wait_handle(struct sw_group *group, int64_t deadline, struct sw_received_handle *out)
{
    struct sw_received_handle *handle;

    sw_poll_lock();
    for (;;) {
        const int64_t now = sw_now_ms();
        int unread = 0;

        handle = first_handle(group);
        if (handle == NULL) { /* read first, as in sw_mailbox_wait() */
            unread = read_sockets(group, -1);
            handle = first_handle(group);
        }
        if (handle != NULL || is_late(now, deadline, unread) || sw_exchange_ended(group->exchange))
            break;
        sw_poll_wait(&group->mailbox_changed, unread ? now + SLICE_MS : deadline);
    }
    if (handle != NULL) {
        *out = *handle;
        handle->waits = 0;
    }
    sw_poll_unlock();
    return handle != NULL;
}
