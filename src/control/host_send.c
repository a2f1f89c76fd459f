/* What is sent over the links between hosts, and in which order.
 *
 * Any thread sends, and none waits for room: the rest of a frame that does not fit stays in
 * link->out, and the poll thread goes on when there is room. A thread sends for one turn at most
 * (SW_TURN_FRAMES). How long a host reads nothing is no matter here: calls have deadlines, a rank's
 * messages have a bound, and the system gives the connection up (TCP_USER_TIMEOUT). */
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include "src/control/control.h"

enum {
    SEND_MS = 100,   /* timeout of an END when creation fails */
    SETTLE_MS = 1500 /* for so long the last rank that leaves waits */
};

static void fill_end(union sw_frame *frame, enum sw_frame_type type, symwin_status status, int rank)
{
    memset(frame, 0, sizeof frame->end);
    frame->end.status = (int32_t)status;
    frame->end.rank = rank;
    sw_frame_seal(frame, type);
}

void sw_host_link_say_end(struct sw_connection *connection, symwin_status status, int culprit)
{
    union sw_frame frame;

    fill_end(&frame, SW_FRAME_END, status, culprit);
    sw_connection_send(connection, &frame, -1, sw_now_ms() + SEND_MS);
}

/* Whether the other end accepts LEAVE for this rank from this host: see speaks_for(). */
static int may_speak_for(const struct sw_host_link *link, int rank)
{
    const struct sw_group *group = link->group;

    return group->through[rank] != link->rank;
}

/* ---- which frame is next: under link->queue ---- */

/* Whether this rank's post is to be sent: see struct sw_exchange_hosts. A rank whose post completes
 * the round may not have said yet that it has posted. */
static int is_due(const struct sw_host_link *link, int rank, int is_complete)
{
    const struct sw_group *group = link->group;

    return may_speak_for(link, rank) &&
           (is_complete || sw_exchange_rounds(group->exchange, rank) > link->round) &&
           (sw_host_link_is_below(link) || group->posts_sent[rank] <= link->round);
}

/* As many posts as fit into a frame. */
static int next_posts(struct sw_host_link *link, struct sw_frame_post *frame)
{
    struct sw_group *group = link->group;
    const int is_complete = sw_exchange_complete(group->exchange) > link->round;

    frame->round = link->round;
    frame->bytes = frame->zero = 0;
    for (; link->next_post < group->nranks; link->next_post++) {
        const int rank = link->next_post;

        if (!is_due(link, rank, is_complete))
            continue;
        if (!sw_frame_add_post(frame, rank, sw_exchange_data(group->exchange, rank, link->round)))
            break;
        if (!sw_host_link_is_below(link)) /* those get each post once */
            group->posts_sent[rank] = link->round + 1;
    }
    return frame->bytes > 0;
}

static unsigned char bit_of(int rank)
{
    return (unsigned char)(1 << rank % 8);
}

/* The first rank whose LEAVE is to be sent; -1: none. */
static int next_leave(struct sw_host_link *link)
{
    int r = link->first_leave;

    while (r < link->group->nranks && (link->leaves[r / 8] & bit_of(r)) == 0)
        r++;
    link->first_leave = r;
    if (r == link->group->nranks)
        return -1;
    link->leaves[r / 8] &= (unsigned char)~bit_of(r);
    return r;
}

/* The end of the exchange, and before it its reason. */
static int next_end(struct sw_host_link *link, union sw_frame *frame)
{
    struct sw_exchange *x = link->group->exchange;
    symwin_status status;
    int culprit;

    if (link->end_sent || !sw_exchange_outcome(x, &status, &culprit))
        return 0;
    /* The hosts below must first get the posts of every round that is complete here. A proposal is
     * for the deciding host only. */
    if (sw_host_link_is_below(link) &&
        (!sw_exchange_is_decided(x) ||
         sw_exchange_complete(x) > atomic_load(&link->group->rounds_sent)))
        return 0;
    if (!link->reason_sent && status == SYMWIN_PEER_LOST && culprit < link->group->nranks &&
        sw_exchange_leaves(x, culprit) && may_speak_for(link, culprit)) {
        link->reason_sent = 1;
        fill_end(frame, SW_FRAME_LEAVE, SYMWIN_BUSY, culprit); /* this rank leaves */
        return 1;
    }
    link->end_sent = 1;
    fill_end(frame, SW_FRAME_END, status, culprit);
    (void)sw_exchange_why(x, culprit, frame->end.text);
    return 1;
}

static void fill_answer(const struct sw_host_link *link, union sw_frame *frame)
{
    memset(frame, 0, sizeof frame->behind);
    frame->behind.rank = sw_exchange_fewest(link->group->exchange, link->rank,
                                            &frame->behind.calls);
    sw_frame_seal(frame, frame->behind.rank >= 0 ? SW_FRAME_BEHIND : SW_FRAME_WELL);
}

/* Returns 0 if there is none. A rank's messages come before its leave. So do the end and its
 * reason: else the other host would find another reason. */
static int next_frame(struct sw_host_link *link, union sw_frame *frame)
{
    const struct sw_frame_message *words;
    int rank;

    if (next_posts(link, &frame->post)) {
        sw_frame_seal(frame, SW_FRAME_POST);
        return 1;
    }
    if (link->asks) {
        link->asks = 0;
        sw_frame_seal(frame, SW_FRAME_ASK);
        return 1;
    }
    if (link->answers) {
        link->answers = 0;
        fill_answer(link, frame);
        return 1;
    }
    if (next_end(link, frame))
        return 1;
    words = sw_outbox_first(&link->outbox);
    if (words != NULL) {
        frame->message = *words;
        sw_outbox_drop_first(&link->outbox, link->group->queued);
        return 1;
    }
    rank = next_leave(link);
    if (rank >= 0)
        fill_end(frame, SW_FRAME_LEAVE, SYMWIN_OK, rank);
    return rank >= 0;
}

/* ---- sending: under link->mutex ---- */

/* Sends what is left of the frame in link->out. Returns 0 if there is no room. A connection that
 * fails is shut down, so that the poll thread notices; all frames to it are dropped. */
static int send_out(struct sw_host_link *link)
{
    while (link->out_sent < link->out_bytes && !link->broken) {
        const ssize_t sent = send(link->connection.fd, link->out + link->out_sent,
                                  link->out_bytes - link->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            link->out_sent += (size_t)sent;
        } else if (errno == EAGAIN) {
            return 0;
        } else if (errno != EINTR) {
            link->broken = 1;
            shutdown(link->connection.fd, SHUT_RDWR);
        }
    }
    sw_wipe(link->out, link->out_bytes); /* it may have a fabric handle */
    link->out_bytes = link->out_sent = 0;
    return 1;
}

/* Sends the frames of a turn, without waiting. Returns whether frames may be left. */
static int send_turn(struct sw_host_link *link, int64_t end)
{
    union sw_frame frame;
    int i, found;

    for (i = 0; i < SW_TURN_FRAMES; i++) {
        if (sw_now_ms() > end || !send_out(link))
            return 1;
        pthread_mutex_lock(&link->queue);
        found = next_frame(link, &frame);
        pthread_mutex_unlock(&link->queue);
        if (!found)
            return 0;
        link->out_bytes = sw_connection_seal(&link->connection, &frame, link->out);
        sw_wipe(&frame, frame.header.bytes);
    }
    return 1;
}

/* The poll thread is to send what is left, when there is room. */
static void leave_to_poll_thread(struct sw_host_link *link, int left)
{
    if (link->left == left)
        return;
    link->left = left;
    link->watch.events = (short)(POLLIN | POLLRDHUP | (left ? POLLOUT : 0));
    if (left)
        sw_poll_changed();
}

void sw_host_link_send_news(struct sw_host_link *link)
{
    const int64_t end = sw_now_ms() + SW_TURN_MS;
    int left = 0;

    while (!left && atomic_load(&link->news) && pthread_mutex_trylock(&link->mutex) == 0) {
        atomic_store(&link->news, 0);
        left = send_turn(link, end);
        if (left)
            atomic_store(&link->news, 1);
        leave_to_poll_thread(link, left);
        pthread_mutex_unlock(&link->mutex);
    }
}

static void tell_news(struct sw_host_link *link)
{
    atomic_store(&link->news, 1);
    sw_host_link_send_news(link);
}

/* ---- what is to be sent ---- */

void sw_host_link_say(struct sw_host_link *link, int *what)
{
    pthread_mutex_lock(&link->queue);
    *what = 1;
    pthread_mutex_unlock(&link->queue);
    tell_news(link);
}

int sw_host_link_message(struct sw_group *group, int host, const struct sw_frame_message *words)
{
    struct sw_host_link *link = &group->links[host];
    int error;

    pthread_mutex_lock(&link->queue);
    error = sw_outbox_add(&link->outbox, group->queued, words);
    pthread_mutex_unlock(&link->queue);
    if (error == EOVERFLOW && sw_exchange_ended(group->exchange))
        return 1;
    if (error == EOVERFLOW)
        sw_exchange_fail(group->exchange, SYMWIN_MISMATCH, words->from);
    if (error != 0)
        return 0;
    tell_news(link);
    return 1;
}

/* Whether frames are left, after a turn of this thread or of the one that is sending. That one may
 * have ended without this thread's news, if it found the lock taken here: they are still there. */
static int is_left(struct sw_host_link *link)
{
    int left;

    sw_host_link_send_news(link);
    pthread_mutex_lock(&link->mutex);
    left = link->left || atomic_load(&link->news);
    pthread_mutex_unlock(&link->mutex);
    return left;
}

/* Whether bytes in the socket have not arrived at the other host, and still can. */
static int is_under_way(const struct sw_host_link *link)
{
    struct pollfd broken = {.fd = link->connection.fd}; /* POLLHUP and POLLERR */
    int bytes = 0;

    return ioctl(link->connection.fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 &&
           poll(&broken, 1, 0) == 0;
}

void sw_host_link_settle(struct sw_group *group)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    const int64_t end = sw_now_ms() + SETTLE_MS;
    int h;

    for (h = 0; h < group->hosts && group->links != NULL; h++)
        while ((is_left(&group->links[h]) || is_under_way(&group->links[h])) && sw_now_ms() < end)
            nanosleep(&moment, NULL);
}

void sw_host_link_end(struct sw_group *group)
{
    int h;

    for (h = 0; h < group->hosts && group->links != NULL; h++)
        if (group->links[h].connection.fd >= 0)
            tell_news(&group->links[h]);
}

void sw_host_link_leave(struct sw_group *group, int rank, int but)
{
    int h;

    for (h = 0; h < group->hosts && group->links != NULL; h++)
        if (h != but && group->links[h].connection.fd >= 0) {
            pthread_mutex_lock(&group->links[h].queue);
            group->links[h].leaves[rank / 8] |= bit_of(rank);
            if (rank < group->links[h].first_leave)
                group->links[h].first_leave = rank;
            pthread_mutex_unlock(&group->links[h].queue);
            tell_news(&group->links[h]);
        }
}

/* To all hosts below this one, or to the one above. A round never goes back: the host's lowest rank
 * may come late to one that others have left. */
static void start_posts(struct sw_group *group, int below, uint64_t round)
{
    int h;

    for (h = 0; h < group->hosts; h++) {
        struct sw_host_link *link = &group->links[h];

        if (link->connection.fd < 0 || sw_host_link_is_below(link) != below)
            continue;
        pthread_mutex_lock(&link->queue);
        if (round >= link->round) {
            link->round = round;
            link->next_post = 0;
        }
        pthread_mutex_unlock(&link->queue);
    }
    if (below)
        atomic_store(&group->rounds_sent, round + 1);
    sw_host_link_end(group); /* an end may have waited for them */
}

void sw_host_link_send_posts(void *context, uint64_t round)
{
    struct sw_group *group = context;

    start_posts(group, group->host == 0, round);
}

void sw_host_link_pass_on(struct sw_host_link *from, uint64_t round)
{
    struct sw_group *group = from->group;

    if (sw_host_link_is_below(from))
        start_posts(group, 0, round);
    else if (sw_exchange_complete(group->exchange) > round)
        start_posts(group, 1, round);
}
