/* What ranks of a process get when they have met, and the group that is made of it. Under the service lock. */
#ifndef SYMWIN_GROUP_H
#define SYMWIN_GROUP_H

#include "src/control/links.h"
#include "src/control/wire.h"

/* What all ranks of a process get once all ranks of the communicator have come. All owned. */
struct sw_place {
    int nranks;
    int process, processes; /* this one, all of them */
    int host, hosts;
    int page;                    /* the control page; -1: all ranks are in this process */
    struct sw_wire_seat *seats;  /* of each rank */
    int *lines;                  /* to each process; -1: its own, or on another host */
    struct sw_channel *channels; /* to each host, in the process that links it; .fd -1: none */
};

symwin_status sw_place_make(struct sw_place *place, int nranks, int processes, int hosts);
void sw_group_free(struct sw_group *group); /* one that nobody has got */
void sw_place_release(struct sw_place *place);
int sw_place_leader(const struct sw_place *place, int process); /* its lowest rank */
void sw_let_go(int fd); /* closes what may be kept (sw_service_keep) */

/* Tells the other hosts, as far as the place has links to them, that the communicator is not to be: whose
 * fault that is, -1: no rank's. */
void sw_place_end(struct sw_place *place, symwin_status status, int culprit);

/* For a meeting of the ranks of one host, which count from 0 there: makes it a place among all ranks. */
symwin_status sw_place_widen(struct sw_place *place, const struct sw_wire_table *table, int host);

/* The group of this process's ranks, with a reference for each of them. Takes the place over, also when
 * it fails. */
symwin_status sw_group_create(struct sw_place *place, struct sw_group **out);

#endif
