/* What the ranks of a communicator share in a process (struct sw_group), and who is where (struct sw_topology). */
#ifndef SYMWIN_GROUP_H
#define SYMWIN_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/base/base.h"
#include "src/control/exchange.h"
#include "src/control/frame.h"
#include "src/driver/driver.h"

struct sw_segment;
struct sw_message;
struct sw_kernel_report;
struct sw_host_link;
struct sw_handle_exchange;

/* A socket to another process of the communicator. It tells when that process ends, and carries
 * handles, between the processes' lowest ranks, in a registration. */
struct sw_peer_socket {
    struct sw_poll_watch watch; /* .fd is owned; -1: this process's own place */
    struct sw_group *group;
    int process;
    struct sw_early
        *early; /* owned: handles of a registration that has yet to begin here; letters.c */
};

/* What the ranks of one communicator share in this process. */
struct sw_group {
    int nranks;
    int nlocal;    /* ranks of this process */
    int leader;    /* the lowest of them */
    int process;   /* number of this process */
    int processes; /* on all hosts */
    int host;      /* number of this host; 0 decides */
    int hosts;
    uint16_t *process_of;           /* owned: of each rank */
    uint16_t *host_of;              /* owned: of each rank */
    struct sw_peer_socket *sockets; /* owned: to each process of this host */
    /* Owned, freed by handle_exchange_free(). NULL: all ranks are in this process. */
    struct sw_handle_exchange *handle_exchange;
    void (*handle_exchange_free)(struct sw_handle_exchange *handle_exchange);
    struct sw_host_link *links; /* owned: to each host; NULL: there is only one */
    int *through;               /* owned, if there are more hosts: see sw_exchange_hosts */
    uint64_t *posts_sent;       /* owned, as that: rounds whose posts went to the deciding host */
    struct sw_exchange_hosts exchange_hosts;
    /* Called when another host may have ended it, on the service thread; NULL: nobody has to know. May free the group. */
    void (*on_far_end)(const struct sw_group *group);
    /* Owned: messages for ranks of this process. Under the poll lock, as the next ones. */
    struct sw_message *mailbox;
    struct sw_message **mailbox_end; /* where the next one goes */
    int *waiting;                    /* owned: of each rank, how many of its messages wait */
    int mailbox_fds;                 /* descriptors with them */
    pthread_cond_t mailbox_changed;
    int exchanging_handles;       /* the poll thread then reads no peer socket */
    struct sw_poll_watch pulse;   /* of the process that links this host with others */
    _Atomic uint64_t rounds_sent; /* by the deciding host's linking process */
    atomic_int refs;              /* ranks that joined and have not left */
    struct sw_exchange *exchange;

    /* Set by the leader before the ranks agree that the communicator exists; constant from then on. */
    CUdeviceptr base; /* owned address range, 0: none */
    size_t range_bytes;
    size_t stride;
    size_t limit; /* the smallest stride of all processes: what segments may use */
    size_t granularity;
    int multicast; /* there is a stride for multicast addresses, and all devices can */
    int *devices;  /* owned: distinct devices of this process's ranks, device_count of them */
    int device_count;

    pthread_mutex_t mutex;             /* the rest */
    struct sw_kernel_report **reports; /* owned: of each rank, NULL before and after it has one */
    struct sw_segment *segments;
    int segment_count;
};

static inline int sw_group_is_local(const struct sw_group *group, int rank)
{
    return group->process_of[rank] == group->process;
}

/* The lowest rank of a process. */
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

/* Makes the other processes look whether the exchange has ended, and abort their kernels if so. */
void sw_group_shut_sockets(struct sw_group *group);

/* ---- who is where, and the group that is made of it; under the poll lock ---- */

/* What all ranks of a process get once all ranks of the communicator have come. All owned. */
struct sw_topology {
    int nranks;
    int process, processes; /* this one, all of them */
    int host, hosts;
    int page;                            /* the control page; -1: all ranks are in this process */
    struct sw_frame_location *locations; /* of each rank */
    int *sockets;                        /* to each process; -1: its own, or on another host */
    struct sw_connection
        *connections; /* to each host, in the process that links it; .fd -1: none */
};

symwin_status sw_topology_make(struct sw_topology *topology, int nranks, int processes, int hosts);
void sw_group_free(struct sw_group *group); /* one that nobody has got */
void sw_topology_release(struct sw_topology *topology);
int sw_topology_leader(const struct sw_topology *topology, int process); /* its lowest rank */
void sw_close_fd(int fd); /* closes what may be kept (sw_fork_set_add) */

/* Tells the other hosts, as far as the place has links to them, that the communicator is not to be: whose
 * fault that is, -1: no rank's. */
void sw_topology_end(struct sw_topology *topology, symwin_status status, int culprit);

/* For a meeting of the ranks of one host, which count from 0 there: makes it a place among all ranks. */
symwin_status sw_topology_widen(struct sw_topology *topology, const struct sw_frame_table *table,
                                int host);

/* The group of this process's ranks, with a reference for each of them. Takes the place over, also when
 * it fails. */
symwin_status sw_group_create(struct sw_topology *topology, struct sw_group **out);

#endif
