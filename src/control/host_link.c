/* Links between hosts: posts, messages and ends travel over TCP between the hosts' linking
 * processes.
 *
 * One host decides (exchange.c): the one on which the id was created. Its linking process has a
 * connection to the linking process of every other host; host_send.c sends. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "src/control/control.h"

enum {
    NO_ANSWER_MS = 250, /* of one that was asked for another: before the other's time is over */
    PATIENT_MS = 750,   /* the same of host 0, which asks for all others */
    PULSE_MS = 100,     /* between two calls of beat() */
    KEEPALIVE_S = 5,    /* of silence before the first probe */
    PROBE_S = 2,
    PROBES = 3
};

int sw_host_fan = 4;

int sw_host_link_next(const struct sw_group *group, int from, int to)
{
    while (to > from) {
        const int above = (to - 1) / group->fan;

        if (above == from)
            return to;
        to = above;
    }
    return (from - 1) / group->fan;
}

int sw_host_link_here(const struct sw_group *group)
{
    int lowest = 0;

    while (lowest < group->nranks - 1 && group->host_of[lowest] != group->host)
        lowest++;
    return group->process_of[lowest];
}

int sw_host_link_staying(const struct sw_group *group, int host)
{
    const int process = group->process_of[group->links[host].rank];
    int rank = 0;

    while (rank < group->nranks &&
           (group->process_of[rank] != process || sw_exchange_has_left(group->exchange, rank)))
        rank++;
    return rank < group->nranks ? rank : -1;
}

/* No frame can arrive once all ranks of a linking process have left: that of this host, that of the
 * deciding host, or one between them. */
static int is_cut_off(void *context)
{
    const struct sw_group *group = context;
    int host = group->host;

    while (host != 0 && sw_host_link_staying(group, host) >= 0)
        host = sw_host_link_next(group, host, 0);
    return sw_host_link_staying(group, host) < 0;
}

/* The connection has broken. Unless all ranks of the process at the other end have left, it has
 * died or cannot be reached. */
static void link_lost(struct sw_host_link *link)
{
    struct sw_group *group = link->group;
    const int staying = sw_host_link_staying(group, link->host);
    const int rank = staying >= 0 && link->holder >= 0 ? link->holder : staying;

    sw_poll_remove(&link->watch);
    link->asked_on = 0;
    sw_fork_set_add(link->connection.fd); /* else a forked child would keep it open */
    if (rank < 0)
        return;
    if (sw_host_link_is_below(link))
        sw_exchange_fail(group->exchange, SYMWIN_PEER_LOST, rank);
    else
        sw_exchange_decide(group->exchange, SYMWIN_PEER_LOST, rank);
}

/* ---- receiving, on the poll thread ---- */

/* Whether the other end may send frames for the rank: its host, or one on the way from there. */
static int speaks_for(const struct sw_host_link *link, int rank)
{
    const struct sw_group *group = link->group;

    if (rank >= group->nranks)
        return 0;
    return group->through[rank] == link->rank;
}

/* Posts for ranks of the other host. Returns 0 if one is invalid. */
static int take_posts(struct sw_host_link *link, const struct sw_frame_post *frame)
{
    struct sw_exchange *x = link->group->exchange;
    struct sw_post post;
    size_t at = 0;

    while (at < (size_t)frame->bytes) {
        at = sw_frame_next_post(frame, at, &post);
        if (!speaks_for(link, post.rank) || frame->round != sw_exchange_rounds(x, post.rank) ||
            frame->round > sw_exchange_complete(x)) /* would count for another rank's */
            return 0;
        sw_exchange_post(x, post.rank, frame->round, frame->posts + at - post.bytes,
                         (size_t)post.bytes);
    }
    if (link->group->host != 0) /* there, a rank sends a complete round */
        sw_host_link_pass_on(link, frame->round);
    return 1;
}

/* This host may be between those that ask and one that does not answer. */
static void ask_others(struct sw_host_link *from)
{
    struct sw_group *group = from->group;
    int h;

    for (h = 0; h < group->hosts; h++) {
        struct sw_host_link *link = &group->links[h];

        if (link->watch.id == 0 || link == from) /* 0: it has none, or has lost it */
            continue;
        if (link->asked_on == 0)
            link->asked_on = sw_now_ms();
        sw_host_link_say(link, &link->asks);
    }
}

/* Handles a frame. Returns 0 if it is invalid. */
static int handle_frame(struct sw_host_link *link, const union sw_frame *frame)
{
    struct sw_group *group = link->group;
    struct sw_exchange *x = group->exchange;

    switch ((enum sw_frame_type)frame->header.type) {
    case SW_FRAME_POST:
        return take_posts(link, &frame->post);
    case SW_FRAME_LEAVE:
        if (!speaks_for(link, frame->end.rank))
            return 0;
        if (frame->end.status == SYMWIN_BUSY) {
            sw_exchange_take_leave(x, frame->end.rank); /* END follows */
            return 1;
        }
        sw_exchange_leave(x, frame->end.rank);
        sw_host_link_leave(group, frame->end.rank, link->host);
        return 1;
    case SW_FRAME_REFUSAL: /* from a host that did not know yet that it is linked */
        if (!sw_host_link_is_below(link) || frame->refusal.rank >= group->nranks)
            return 0;
        sw_exchange_fail(x, (symwin_status)frame->refusal.status,
                         frame->refusal.rank >= 0 ? frame->refusal.rank : SW_NOBODY);
        return 1;
    case SW_FRAME_END:
        if (frame->end.rank >= group->nranks && frame->end.rank != SW_NOBODY)
            return 0;
        /* From below a host tells of the ranks there alone, from above of all. */
        if (!sw_host_link_is_below(link) || speaks_for(link, frame->end.rank))
            sw_exchange_say_why(x, frame->end.rank, frame->end.text);
        if (sw_host_link_is_below(link)) {
            sw_exchange_fail(x, (symwin_status)frame->end.status, frame->end.rank);
        } else {
            link->end_sent = 1; /* the host above knows */
            sw_exchange_decide(x, (symwin_status)frame->end.status, frame->end.rank);
        }
        return 1;
    case SW_FRAME_MESSAGE:
        return speaks_for(link, frame->message.from) && link->deliver(group, &frame->message);
    case SW_FRAME_ASK:
        sw_host_link_say(link, &link->answers);
        ask_others(link);
        return 1;
    case SW_FRAME_WELL:
        return 1;
    case SW_FRAME_BEHIND:
        if (frame->behind.rank != SW_NOBODY && !speaks_for(link, frame->behind.rank))
            return 0;
        sw_exchange_heard_behind(x, link->rank, frame->behind.rank, frame->behind.calls);
        return 1;
    default:
        return 0;
    }
}

/* Handles the frames of one turn. Returns 0: frames may be left. EAGAIN: none is. Or the errno that
 * breaks the connection. */
static int read_turn(struct sw_host_link *link)
{
    const int64_t end = sw_now_ms() + SW_TURN_MS;
    union sw_frame frame;
    int i;

    for (i = 0; i < SW_TURN_FRAMES && sw_now_ms() <= end; i++) {
        const int error = sw_connection_receive_now(&link->connection, &frame, NULL);

        if (error != 0)
            return error;
        sw_exchange_heard(link->group->exchange, link->rank);
        link->holder = -1; /* the linking process has its end */
        link->asked_on = 0;
        if (!handle_frame(link, &frame))
            return EPROTO;
    }
    return 0;
}

static void link_ready(struct sw_poll_watch *watch, short events)
{
    struct sw_host_link *link = (struct sw_host_link *)(void *)watch;
    struct sw_group *group = link->group;
    int error;

    if ((events & POLLOUT) != 0) {
        sw_host_link_send_news(link);
        sw_poll_rest(); /* frames may be left, or another thread is sending */
    }
    error = read_turn(link);
    if (error == 0)
        sw_poll_rest();
    else if (error != EAGAIN)
        link_lost(link);
    if (group->on_far_end != NULL && sw_exchange_ended(group->exchange))
        group->on_far_end(group); /* last: it may free the group */
}

/* ---- the links of a group ---- */

/* Detects a host that has gone without closing its connection. */
static void keep_alive(int socket)
{
    const int yes = 1, idle = KEEPALIVE_S, probe = PROBE_S, probes = PROBES;
    const unsigned longest_ms = (KEEPALIVE_S + PROBE_S * PROBES) * 1000;

    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &probe, sizeof probe);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &longest_ms, sizeof longest_ms);
}

/* Timer. It looks for an end on the control page: the deciding host's END reaches only the linking
 * process. In others it runs while an end is proposed, since the peer sockets that would tell of
 * the decision are shut by then. In the linking process it runs always: it also shows the other
 * processes of this host that the links are served, and asks the other hosts whether they run. The
 * other processes cannot see either. */
static void beat(struct sw_poll_watch *watch, short events)
{
    struct sw_group *group = (struct sw_group *)(void *)((char *)watch -
                                                         offsetof(struct sw_group, pulse));
    int h;

    (void)events;
    sw_exchange_look(group->exchange);
    if (sw_host_link_here(group) != group->process) {
        watch->deadline = INT64_MAX;
        sw_host_link_await(group);
        return;
    }
    sw_exchange_beat(group->exchange);
    for (h = 0; h < group->hosts; h++)
        if (group->links[h].asked_on != 0 &&
            sw_now_ms() - group->links[h].asked_on >=
                (group->host == 0 ? PATIENT_MS : NO_ANSWER_MS) &&
            !sw_exchange_ended(group->exchange))
            sw_exchange_fail(group->exchange, SYMWIN_TIMEOUT,
                             group->links[h].holder >= 0 ? group->links[h].holder
                                                         : group->links[h].rank);
    for (h = 0; h < group->hosts && sw_exchange_is_asked(group->exchange); h++)
        if (group->links[h].connection.fd >= 0)
            sw_host_link_say(&group->links[h], &group->links[h].asks);
    watch->deadline = sw_now_ms() + PULSE_MS;
}

void sw_host_link_await(struct sw_group *group)
{
    if (group->pulse.id == 0 || group->pulse.deadline != INT64_MAX ||
        !sw_exchange_ended(group->exchange) || sw_exchange_is_decided(group->exchange))
        return;
    group->pulse.deadline = sw_now_ms() + PULSE_MS;
    sw_poll_changed();
}

/* Of another process than the linking one of that host. */
static void set_holder(struct sw_host_link *link)
{
    const struct sw_group *group = link->group;
    const int holder = link->connection.holder;

    link->holder = -1;
    if (holder < 0 || holder >= group->nranks || group->host_of[holder] != link->host ||
        group->process_of[holder] == group->process_of[link->rank])
        return;
    link->holder = holder;
    sw_exchange_is_held(group->exchange, link->rank, holder);
}

/* A linking process that got its end from another one says a word at once: from then on, if its
 * host is silent or the link breaks, the other process is not to blame. */
symwin_status sw_host_link_start(struct sw_group *group, struct sw_connection *connections,
                                 sw_host_link_deliver deliver)
{
    symwin_status status = SYMWIN_OK;
    int h, r;

    for (r = group->nranks - 1; r >= 0; r--)
        group->links[group->host_of[r]].rank = r;
    for (r = 0; r < group->nranks; r++)
        group->through[r] =
            group->host_of[r] == group->host
                ? -1
                : group->links[sw_host_link_next(group, group->host, group->host_of[r])].rank;
    group->exchange_hosts = (struct sw_exchange_hosts){.decides = group->host == 0,
                                                       .decider = group->links[0].rank,
                                                       .links = group->links[group->host].rank,
                                                       .is_deep = group->hosts - 1 > group->fan,
                                                       .through = group->through,
                                                       .send = sw_host_link_send_posts,
                                                       .is_cut_off = is_cut_off,
                                                       .context = group};
    for (h = 0; h < group->hosts && status == SYMWIN_OK; h++) {
        struct sw_host_link *link = &group->links[h];

        if (connections[h].fd < 0)
            continue;
        link->leaves = calloc((size_t)group->nranks / 8 + 1, 1);
        link->out = malloc(SW_LINK_OUT_BYTES);
        if (link->leaves == NULL || link->out == NULL) {
            status = sw_fail(SYMWIN_NO_MEMORY, "symwin_comm_create: no host memory for %d ranks",
                             group->nranks);
            break;
        }
        link->group = group;
        link->host = h;
        link->next_post = group->nranks;
        link->deliver = deliver;
        link->connection = connections[h];
        connections[h] = (struct sw_connection){.fd = -1};
        set_holder(link);
        keep_alive(link->connection.fd);
        link->watch = (struct sw_poll_watch){.fd = link->connection.fd,
                                             .events = POLLIN | POLLRDHUP,
                                             .deadline = INT64_MAX,
                                             .ready = link_ready};
        status = sw_poll_add(&link->watch);
    }
    sw_exchange_beat(group->exchange);
    if (status == SYMWIN_OK) {
        group->pulse = (struct sw_poll_watch){.fd = -1, .deadline = 0, .ready = beat};
        status = sw_poll_add(&group->pulse);
    }
    sw_exchange_set_hosts(group->exchange, &group->exchange_hosts);
    for (h = 0; h < group->hosts && status == SYMWIN_OK; h++)
        if (group->links[h].connection.fd >= 0 && group->links[h].connection.passed)
            sw_host_link_say(&group->links[h], &group->links[h].answers);
    if (status == SYMWIN_OK && sw_host_link_here(group) == group->process)
        sw_exchange_speak(group->exchange);
    return status;
}

void sw_host_link_stop(struct sw_group *group)
{
    int h;

    sw_poll_remove(&group->pulse);
    for (h = 0; h < group->hosts && group->links != NULL; h++) {
        sw_poll_remove(&group->links[h].watch);
        sw_connection_drop(&group->links[h].connection);
        sw_outbox_clear(&group->links[h].outbox, group->queued);
        if (group->links[h].out != NULL)
            sw_wipe(group->links[h].out, SW_LINK_OUT_BYTES);
        free(group->links[h].out);
        pthread_mutex_destroy(&group->links[h].mutex);
        pthread_mutex_destroy(&group->links[h].queue);
        free(group->links[h].leaves);
    }
    free(group->links);
    free(group->through);
    free(group->posts_sent);
}

int sw_host_link_create(struct sw_group *group)
{
    const size_t nranks = (size_t)group->nranks;
    int h;

    group->through = calloc(nranks, sizeof *group->through);
    group->posts_sent = calloc(nranks, sizeof *group->posts_sent);
    group->links = calloc((size_t)group->hosts, sizeof *group->links);
    for (h = 0; h < group->hosts && group->links != NULL; h++) {
        struct sw_host_link *link = &group->links[h];

        link->connection.fd = link->watch.fd = -1;
        pthread_mutex_init(&link->mutex, NULL);
        pthread_mutex_init(&link->queue, NULL);
    }
    return group->through != NULL && group->posts_sent != NULL && group->links != NULL;
}
