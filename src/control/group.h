/* What ranks of a process get when they have met, and the group that is made of it. Under the service lock. */
#ifndef SYMWIN_GROUP_H
#define SYMWIN_GROUP_H

#include "src/control/frame.h"
#include "src/control/host_link.h"

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
