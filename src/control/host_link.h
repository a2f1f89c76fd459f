/* Between hosts: see links.c. */
#ifndef SYMWIN_LINKS_H
#define SYMWIN_LINKS_H

#include <errno.h>

#include "src/control/connection.h"
#include "src/control/group.h"
#include "src/control/mailbox.h"

struct sw_host_link {
    struct sw_poll_watch watch;
    struct sw_connection
        connection; /* .fd -1: this host's own place, or not this process's affair */
    struct sw_group *group;
    int host;
    int rank;              /* the lowest there */
    pthread_mutex_t mutex; /* sending, and the next two */
    int broken;
    atomic_int end_sent;
    atomic_int news;             /* somebody leaves, or it has ended: to be told by whoever sends */
    atomic_uchar *leaves;        /* owned: of each rank, to be told */
    pthread_mutex_t queue;       /* the next one; taken last */
    struct sw_message *messages; /* owned: to be sent, the oldest first */
};

/* The process that links this host with the others. */
int sw_host_link_here(const struct sw_group *group);

/* Of several hosts: the lowest rank of the process that links that one which has not left; -1: all of them have. */
int sw_host_link_staying(const struct sw_group *group, int host);

/* Room for the links of a group of several hosts; 0: no memory. sw_host_link_stop() frees it all. */
int sw_host_link_create(struct sw_group *group);

/* Takes over the channels, one a host, where this process has them. Under the service lock. */
symwin_status sw_host_link_start(struct sw_group *group, struct sw_connection *connections);
void sw_host_link_stop(struct sw_group *group);

/* Tells the other hosts, as far as this process has links, that the exchange is to end; that a rank has
 * left (all but host `but`, -1: all). */
void sw_host_link_end(struct sw_group *group);
void sw_host_link_leave(struct sw_group *group, int rank, int but);

/* Has a letter sent to another host, by this process, which links them: whoever comes to it does so. 0: no host memory. */
int sw_host_link_message(struct sw_group *group, int host, const struct sw_frame_message *words);

/* Says over a connection between hosts that the exchange has ended, or shall never begin. */
void sw_host_link_say_end(struct sw_connection *connection, symwin_status status, int culprit);

#endif
