/* Links between hosts: host_link.c; host_send.c sends over them. A host's linking process is the
 * process of its lowest rank; only it has connections to other hosts. */
#ifndef SYMWIN_HOST_LINK_H
#define SYMWIN_HOST_LINK_H

#include <errno.h>

#include "src/control/connection.h"
#include "src/control/group.h"

/* Accepts a message from another host, under the poll lock. Returns 0 if it is invalid. */
typedef int (*sw_host_link_deliver)(struct sw_group *group, const struct sw_frame_message *words);

#define SW_LINK_OUT_BYTES (sizeof(struct sw_frame_post) + SW_DIGEST_BYTES)

struct sw_host_link {
    struct sw_poll_watch watch;
    struct sw_connection connection; /* .fd -1: this process has none to that host */
    struct sw_group *group;
    int host;
    int rank;   /* lowest rank of that host */
    int holder; /* see struct sw_connection: until a frame comes; -1: that of the lowest rank */
    sw_host_link_deliver deliver;
    atomic_int news; /* there may be frames to be sent */
    /* Since when an ASK that this host passed on is not answered; 0: there is none. */
    int64_t asked_on; /* under the poll lock */

    pthread_mutex_t mutex; /* protects sending and the fields up to `queue` */
    int broken;
    int left; /* of the last turn frames were left: the poll thread sends them */
    size_t out_bytes, out_sent;
    unsigned char *out; /* owned, SW_LINK_OUT_BYTES: the frame being sent, at most a full POST */

    pthread_mutex_t queue; /* protects what is to be sent; no other mutex is taken under it */
    int reason_sent;
    atomic_int end_sent;   /* or need not be */
    uint64_t round;        /* of the posts to be sent, */
    int next_post;         /* of which those of lower ranks are sent */
    unsigned char *leaves; /* owned: a bit for each rank whose LEAVE is to be sent */
    int first_leave;       /* no lower rank has one */
    int asks, answers;     /* ASK and WELL are to be sent */
    struct sw_outbox outbox;
};

/* Hosts are a tree: host h is below (h - 1) / fan, and host 0, which decides, is below none. With
 * enough links at a host it is a star. The first host after `from` on the way to another one: */
int sw_host_link_next(const struct sw_group *group, int from, int to);

/* This host's linking process. */
int sw_host_link_here(const struct sw_group *group);

/* With several hosts: the lowest rank in the linking process of `host` that has not left; -1: all
 * have. */
int sw_host_link_staying(const struct sw_group *group, int host);

/* Allocates the links of a group with several hosts; 0: no memory. sw_host_link_stop() frees all of
 * it. */
int sw_host_link_create(struct sw_group *group);

/* Under the poll lock. If an end is proposed and not decided yet: looks for the decision. */
void sw_host_link_await(struct sw_group *group);

/* Both run under the poll lock. sw_host_link_start() takes over the connections, at most one for
 * each host. */
symwin_status sw_host_link_start(struct sw_group *group, struct sw_connection *connections,
                                 sw_host_link_deliver deliver);
void sw_host_link_stop(struct sw_group *group);

/* Tell the other hosts, over the connections of this process, that the exchange ends, or that a
 * rank has left. `but` is a host that is not told; -1: none. */
void sw_host_link_end(struct sw_group *group);
void sw_host_link_leave(struct sw_group *group, int rank, int but);

/* Without the poll lock, when all ranks of this process have left: waits until all that is for
 * the other hosts has arrived there, at most SETTLE_MS. */
void sw_host_link_settle(struct sw_group *group);

/* In the linking process: queues a message to another host, and does not wait. Returns 0 if there
 * is no host memory, or if SW_MOST_MESSAGES of its rank are queued: then the exchange has been
 * ended, and that rank is named. After an end such a message is dropped. */
int sw_host_link_message(struct sw_group *group, int host, const struct sw_frame_message *words);

/* Sends END over a connection between hosts: the exchange has ended, or will not start. */
void sw_host_link_say_end(struct sw_connection *connection, symwin_status status, int culprit);

/* ---- host_send.c, for host_link.c ---- */

/* Sends what is to be sent, for one turn. If another thread is sending, it sees the news. */
void sw_host_link_send_news(struct sw_host_link *link);

/* ASK or WELL: sets `what`, link->asks or link->answers, and sends. */
void sw_host_link_say(struct sw_host_link *link, int *what);

/* struct sw_exchange_hosts: called by the host's lowest rank. No other round has posts that are not
 * yet sent: it would not be complete on the other host. */
void sw_host_link_send_posts(void *context, uint64_t round);

/* On a host that does not decide, when posts of the round have come over a link: sends on those
 * from below at once, and all downwards when the round is complete. */
void sw_host_link_pass_on(struct sw_host_link *from, uint64_t round);

/* Whether the other host is below this one. */
static inline int sw_host_link_is_below(const struct sw_host_link *link)
{
    return link->host > link->group->host;
}

#endif
