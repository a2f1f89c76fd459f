/* struct sw_group: what the ranks of a communicator share in one process. struct sw_topology: where
 * each rank is, and the sockets from which a group is made. */
#ifndef SYMWIN_GROUP_H
#define SYMWIN_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/base/base.h"
#include "src/control/exchange.h"
#include "src/control/frame.h"
#include "src/control/outbox.h"
#include "src/control/rank_table.h"
#include "src/driver/driver.h"

#define SW_REASON_BYTES 192 /* why there is no multicast */

/* So many hosts are linked below one, at most: 4. Tests set it before a process creates its first
 * communicator, to the same in all processes: with 1, hosts are a chain. */
extern int sw_host_fan;

/* The host that a host other than 0 is linked below. */
static inline int sw_host_above(int host)
{
    return (host - 1) / sw_host_fan;
}

struct sw_segment;
struct sw_message;
struct sw_received_handle;
struct sw_kernel_report;
struct sw_host_link;
struct sw_handle_exchange;

/* A local socket to another process of the communicator. It shows when that process ends, and
 * carries messages and the memory handles of registrations. */
struct sw_peer_socket {
    struct sw_poll_watch watch; /* .fd is owned */
    struct sw_group *group;
    int process;
    atomic_int died;         /* that process has, if it has ranks that have not left */
    pthread_mutex_t mutex;   /* protects sending, and: */
    struct sw_outbox outbox; /* messages that wait for room */
};

/* Messages to a rank of this process, the oldest first. */
struct sw_mailbox {
    struct sw_message *first, *last; /* owned; `last` only if there is a first */
};

/* The multicast object of a communicator, and what its failures have taught. The leader changes it
 * in agreed steps (multicast.c). */
struct sw_multicast {
    size_t unit;                         /* of bindings; 0: this process has none */
    size_t bytes;                        /* of the object */
    CUmemGenericAllocationHandle object; /* owned, 0: none */
    int mapped;                          /* the object is, as a whole */
    int is_over;                         /* it will never work */
    atomic_int was_bound;                /* something was, and is unbound */
    uint64_t full_at;                    /* sw_group_freed() + 1 when there was no room for more */
    char reason[SW_REASON_BYTES];        /* of the last failure that was not one segment's */
};

struct sw_group {
    struct sw_remains remains; /* first */
    int nranks;
    int nlocal;    /* ranks of this process */
    int leader;    /* the lowest of them */
    int process;   /* number of this process */
    int processes; /* number of processes on all hosts */
    int host;      /* number of this host; host 0 decides */
    int hosts;
    int fan;                                    /* sw_host_fan, or what a test of links gives */
    int *process_of;                            /* owned: of each rank */
    int *host_of;                               /* owned: of each rank */
    struct sw_peer_socket **sockets;            /* owned, each too: to each process; NULL: none */
    struct sw_handle_exchange *handle_exchange; /* owned; NULL: all ranks are in this process */

    /* host_link.c; NULL if there is only one host. */
    struct sw_host_link *links; /* owned: to each host */
    int *through;               /* owned: see struct sw_exchange_hosts */
    uint64_t *posts_sent;       /* owned: of each rank, rounds sent to the deciding host */
    struct sw_exchange_hosts exchange_hosts;
    /* Called on the poll thread, under its lock, after it has read a host link, if the exchange has
     * ended. NULL: no call. May free the group. */
    void (*on_far_end)(const struct sw_group *group);

    /* mailbox.c. Protected by the poll lock. */
    struct sw_mailbox *mailboxes;       /* owned: of each rank; empty for those elsewhere */
    atomic_int *waiting;                /* owned: messages of each rank that are not freed yet */
    atomic_int *queued;                 /* owned: messages of each rank in outboxes */
    struct sw_received_handle *handles; /* owned: of each rank, for a registration */
    pthread_cond_t mailbox_changed;

    struct sw_poll_watch pulse;   /* timer, with several hosts: host_link.c */
    _Atomic uint64_t rounds_sent; /* rounds that the deciding host has sent to the others */
    atomic_int refs;              /* ranks that joined and have not left */
    struct sw_exchange *exchange; /* owned */

    /* Set by the leader before the ranks agree that the communicator exists; constant
     * afterwards. */
    CUdeviceptr base; /* owned address range, 0: none */
    size_t range_bytes;
    size_t stride;
    size_t limit; /* segments end below it: the smallest stride of all processes */
    size_t granularity;
    int multicast; /* the range has a stride for multicast, and all devices support it */
    int lacks;     /* if not, why: enum sw_multicast_lack of the rank */
    int lacking_rank;
    struct sw_multicast object;
    int *devices; /* owned: the device_count distinct devices of this process's ranks */
    int device_count;

    /* Segments that this process does not use any more, but others may: their memory is bound to
     * the object. The lowest number from `id` on, 0: none; and the end of `id`, or of all (0), when
     * nobody uses it. Set by the leader with the fields above. */
    uint64_t (*unused_from)(struct sw_group *group, uint64_t id);
    void (*unused_end)(struct sw_group *group, uint64_t id);

    pthread_mutex_t mutex; /* protects the fields below */
    int stalled; /* driver calls that have not come back, and segments that waited for one */
    int is_left; /* the range is to be freed when they have */
    struct sw_kernel_report **reports; /* owned array: the report of each rank here, or NULL */
    struct sw_segment *segments;
    int segment_count;
};

static inline int sw_group_is_local(const struct sw_group *group, int rank)
{
    return group->process_of[rank] == group->process;
}

/* Lowest rank of a process. */
static inline int sw_group_leader_of(const struct sw_group *group, int process)
{
    int r = 0;

    while (r < group->nranks - 1 && group->process_of[r] != process)
        r++;
    return r;
}

/* Address of byte `offset` of a rank's part; rank nranks is the multicast part. */
static inline CUdeviceptr sw_group_address(const struct sw_group *group, int rank, size_t offset)
{
    return group->base + (CUdeviceptr)rank * group->stride + offset;
}

/* Asks the waiting kernels of this process's ranks to leave. */
void sw_group_abort_kernels(struct sw_group *group);

/* Shuts the peer sockets: the other processes then check whether the exchange has ended, and abort
 * their kernels if so. */
void sw_group_shut_sockets(struct sw_group *group);

/* Unmaps and releases the multicast object, to which nothing is bound. */
void sw_group_drop_object(struct sw_group *group);

/* How often this process has given back what may have made room in the switch: a binding, or an
 * object that had some. */
uint64_t sw_group_freed(void);
void sw_group_count_freed(void);

/* Frees the range and the group, on the reaper; for the last of group->stalled, when
 * group->is_left. */
void sw_group_free_range(struct sw_group *group);

/* Leaves the group; its last rank here frees it and its address range. Without the poll lock. */
void sw_group_leave(struct sw_group *group, int rank);

/* ---- the topology, and the group made from it; under the poll lock ---- */

/* What a process gets at the rendezvous once all ranks have joined. It owns all of it. */
struct sw_topology {
    int nranks;
    int process, processes; /* number of this one, and how many there are */
    int host, hosts;
    int page;                            /* the control page; -1: all ranks are in this process */
    struct sw_frame_location *locations; /* of each rank */
    int *sockets;                        /* to each process; -1: this process, or on another host */
    /* To each host, in the linking process; .fd -1: none. */
    struct sw_connection *connections;
};

symwin_status sw_topology_make(struct sw_topology *topology, int nranks, int processes, int hosts);
void sw_group_free(struct sw_group *group); /* without references */
void sw_topology_release(struct sw_topology *topology);
int sw_topology_leader(const struct sw_topology *topology, int process); /* lowest rank of it */
void sw_close_fd(int fd); /* for one that may be in the close-on-fork set */

/* Tells the other hosts, over the topology's connections, that creation has failed. `culprit` is
 * the rank at fault; -1: none. */
void sw_topology_end(struct sw_topology *topology, symwin_status status, int culprit);

/* Creates the group of this process's ranks, with one reference for each. Takes over the topology,
 * also on failure. */
symwin_status sw_group_create(struct sw_topology *topology, struct sw_group **out);

#endif
