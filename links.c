/* Ranks on several hosts: what they post travels over TCP between the hosts' lowest ranks' processes.
 *
 * One host decides (exchange.c): the one on which the id was made. Its linking process has a connection
 * to that of every other host. Posts and ends are sent by the rank or thread that comes to them, and
 * received by the service thread.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "links.h"

enum { SEND_MS = 10000 };

static int lowest_of_host(const struct sw_group *group, int host)
{
    int r = 0;

    while (r < group->nranks - 1 && group->host_of[r] != host)
        r++;
    return r;
}

/* The connection is dead, and with it the communicator, unless its other end has left in good order. */
static void link_lost(struct sw_link *link)
{
    struct sw_group *group = link->group;
    const int rank = lowest_of_host(group, link->host);

    sw_service_remove(&link->watch);
    if (sw_exchange_has_left(group->exchange, rank))
        return;
    if (group->host == 0)
        sw_exchange_fail(group->exchange, SYMWIN_PEER_LOST, rank);
    else
        sw_exchange_decide(group->exchange, SYMWIN_PEER_LOST, rank);
}

void sw_links_say_end(struct sw_channel *channel, symwin_status status, int culprit)
{
    union sw_wire_frame frame;

    memset(&frame, 0, sizeof frame.end);
    frame.end.status = (int32_t)status;
    frame.end.rank = culprit;
    sw_wire_seal(&frame, SW_WIRE_END);
    sw_channel_send(channel, &frame, -1, sw_now_ms() + SEND_MS);
}

/* Under link->mutex. */
static void send_end(struct sw_link *link)
{
    struct sw_exchange *x = link->group->exchange;
    symwin_status status;
    int culprit;

    if (link->end_sent || !sw_exchange_outcome(x, &status, &culprit))
        return;
    /* What the deciding host has completed, the others must be able to complete. */
    if (link->group->host == 0 && sw_exchange_complete(x) > atomic_load(&link->group->rounds_sent))
        return;
    link->end_sent = 1;
    sw_links_say_end(&link->channel, status, culprit);
}

/* Whoever is at sending looks for an end when it is done: nobody waits for the other here. */
static void offer_end(struct sw_link *link)
{
    if (pthread_mutex_trylock(&link->mutex) == 0) {
        send_end(link);
        pthread_mutex_unlock(&link->mutex);
    }
}

void sw_links_end(struct sw_group *group)
{
    int h;

    for (h = 0; h < group->hosts && group->links != NULL; h++)
        if (group->links[h].channel.fd >= 0)
            offer_end(&group->links[h]);
}

/* Returns whether it went out. */
static int link_send(struct sw_link *link, const union sw_wire_frame *frame)
{
    int error;

    pthread_mutex_lock(&link->mutex);
    error = sw_channel_send(&link->channel, frame, -1, sw_now_ms() + SEND_MS);
    send_end(link);
    pthread_mutex_unlock(&link->mutex);
    if (!link->end_sent && sw_exchange_ended(link->group->exchange))
        offer_end(link); /* who tried meanwhile found the mutex taken */
    return error == 0;
}

void sw_links_leave(struct sw_group *group, int rank, int but)
{
    union sw_wire_frame frame;
    int h;

    memset(&frame, 0, sizeof frame.end);
    frame.end.rank = rank;
    sw_wire_seal(&frame, SW_WIRE_LEAVE);
    for (h = 0; h < group->hosts && group->links != NULL; h++)
        if (h != but && group->links[h].channel.fd >= 0)
            link_send(&group->links[h], &frame);
}

static void send_round(void *context, uint64_t round, size_t bytes)
{
    struct sw_group *group = context;
    union sw_wire_frame frame;
    int h, r;

    memset(&frame, 0, sizeof frame.post);
    frame.post.round = round;
    frame.post.bytes = (int32_t)bytes;
    for (h = 0; h < group->hosts; h++) {
        if (group->links[h].channel.fd < 0)
            continue;
        for (r = 0; r < group->nranks; r++) {
            /* the deciding host sends what the other does not have, the others what is theirs */
            if (group->host == 0 ? group->host_of[r] == h : group->host_of[r] != group->host)
                continue;
            frame.post.rank = r;
            memcpy(frame.post.data, sw_exchange_data(group->exchange, r, round), bytes);
            sw_wire_seal(&frame, SW_WIRE_POST);
            if (!link_send(&group->links[h], &frame))
                break; /* the service thread finds the connection dead */
        }
    }
    atomic_store(&group->rounds_sent, round + 1);
    if (sw_exchange_ended(group->exchange))
        sw_links_end(group);
}

/* Whether the other end may speak for the rank. */
static int speaks_for(const struct sw_link *link, int rank)
{
    const struct sw_group *group = link->group;

    if (rank >= group->nranks)
        return 0;
    return group->host == 0 ? group->host_of[rank] == link->host
                            : group->host_of[rank] != group->host;
}

/* Returns whether the frame makes sense. */
static int take(struct sw_link *link, const union sw_wire_frame *frame)
{
    struct sw_group *group = link->group;
    struct sw_exchange *x = group->exchange;

    switch ((enum sw_wire_type)frame->header.type) {
    case SW_WIRE_POST:
        if (!speaks_for(link, frame->post.rank) ||
            frame->post.round != sw_exchange_rounds(x, frame->post.rank))
            return 0;
        sw_exchange_post(x, frame->post.rank, frame->post.round, frame->post.data,
                         (size_t)frame->post.bytes);
        return 1;
    case SW_WIRE_LEAVE:
        if (!speaks_for(link, frame->end.rank))
            return 0;
        sw_exchange_leave(x, frame->end.rank);
        if (group->host == 0)
            sw_links_leave(group, frame->end.rank, link->host);
        return 1;
    case SW_WIRE_END:
        if (frame->end.rank >= group->nranks)
            return 0;
        if (group->host == 0)
            sw_exchange_fail(x, (symwin_status)frame->end.status, frame->end.rank);
        else
            sw_exchange_decide(x, (symwin_status)frame->end.status, frame->end.rank);
        return 1;
    default:
        return 0;
    }
}

/* On the service thread. */
static void link_ready(struct sw_watch *watch, short events)
{
    struct sw_link *link = (struct sw_link *)(void *)watch;
    union sw_wire_frame frame;
    int error;

    (void)events;
    do
        error = sw_channel_receive_now(&link->channel, &frame, NULL);
    while (error == 0 && take(link, &frame));
    if (error != EAGAIN)
        link_lost(link);
}

symwin_status sw_links_start(struct sw_group *group, struct sw_channel *channels)
{
    symwin_status status = SYMWIN_OK;
    int h, r;

    for (r = 0; r < group->nranks; r++)
        group->elsewhere[r] = group->host_of[r] != group->host;
    group->exchange_hosts = (struct sw_exchange_hosts){.decides = group->host == 0,
                                                       .relay = -1,
                                                       .elsewhere = group->elsewhere,
                                                       .send_round = send_round,
                                                       .context = group};
    if (group->process_of[lowest_of_host(group, group->host)] == group->process)
        group->exchange_hosts.relay = lowest_of_host(group, group->host);
    for (h = 0; h < group->hosts && status == SYMWIN_OK; h++) {
        struct sw_link *link = &group->links[h];

        if (channels[h].fd < 0)
            continue;
        link->group = group;
        link->host = h;
        link->channel = channels[h];
        channels[h] = (struct sw_channel){.fd = -1};
        link->watch = (struct sw_watch){.fd = link->channel.fd,
                                        .events = POLLIN | POLLRDHUP,
                                        .deadline = INT64_MAX,
                                        .ready = link_ready};
        status = sw_service_add(&link->watch);
    }
    sw_exchange_set_hosts(group->exchange, &group->exchange_hosts);
    return status;
}

void sw_links_stop(struct sw_group *group)
{
    int h;

    for (h = 0; h < group->hosts && group->links != NULL; h++) {
        sw_service_remove(&group->links[h].watch);
        sw_channel_close(&group->links[h].channel);
        pthread_mutex_destroy(&group->links[h].mutex);
    }
}

int sw_links_create(struct sw_group *group)
{
    int h;

    group->elsewhere = calloc((size_t)group->nranks, 1);
    group->links = calloc((size_t)group->hosts, sizeof *group->links);
    if (group->elsewhere == NULL || group->links == NULL)
        return 0;
    for (h = 0; h < group->hosts; h++) {
        group->links[h].channel.fd = group->links[h].watch.fd = -1;
        pthread_mutex_init(&group->links[h].mutex, NULL);
    }
    return 1;
}
