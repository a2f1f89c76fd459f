/* How ranks find each other: what bootstrap.c (the rank that joins) and root.c (the process that made
 * the id) share. Everything here is called under the service lock unless it says otherwise. */
#ifndef SYMWIN_BOOTSTRAP_H
#define SYMWIN_BOOTSTRAP_H

#include "wire.h"

/* What a symwin_unique_id holds. */
struct sw_id {
    unsigned char magic[8];
    unsigned char secret[SW_KEY_BYTES]; /* who has it is a member */
    unsigned char maker[SW_NAME_BYTES]; /* the process that made it */
    char folder[128 - 8 - SW_KEY_BYTES -
                SW_NAME_BYTES]; /* with the maker's socket; "": it has none */
};
_Static_assert(sizeof(struct sw_id) == sizeof(symwin_unique_id), "fills it");

#define SW_SOCKET_NAME "/s" /* in the folder */

/* Makes an id, as symwin_unique_id_create() does. Without the lock. */
symwin_status sw_id_make(struct sw_id *id, char *file, const char *call);

/* Whether the maker of an id still waits for ranks with it. Without the lock. */
int sw_id_is_open(const struct sw_id *id, int64_t deadline);

/* Puts "<place><tail>" into `name`: a place for files that come and go, number `which`. 0: there is none
 * of that number, or it is too long. */
#define SW_PLACES 3
int sw_place_name(int which, const char *tail, char *name, size_t room);

/* What all ranks of a process get once all ranks of the communicator have come. The descriptors are
 * owned. */
struct sw_place {
    int nranks;
    int process;                /* this one */
    int processes;              /* on this host */
    int page;                   /* the control page; -1: all ranks are in this process */
    const uint16_t *process_of; /* rank -> process */
    int *lines;                 /* processes of them, -1: this one's; NULL: only this process */
};

/* The group of this process's ranks, with a reference for each of them. Takes the descriptors over,
 * also when it fails. */
symwin_status sw_group_create(const struct sw_place *place, struct sw_group **out);
void sw_place_release(struct sw_place *place);

/* This process, to others: random, and another one after a fork. */
symwin_status sw_process_name(unsigned char name[SW_NAME_BYTES]);

/* What the maker is asked for instead of the secret. */
void sw_id_name(const struct sw_id *id, unsigned char name[SW_NAME_BYTES]);

/* Fills in rank, nranks, timeout_ms and what identifies this process. */
symwin_status sw_join_fill(struct sw_wire_join *join, int nranks, int rank, int timeout_ms);

/* ---- root.c ---- */

/* Opens a new id: from now on ranks can come. `file` (owned, NULL: none) is removed when the id has
 * served. */
symwin_status sw_root_open(struct sw_id *id, char *file);

/* Ends the meeting under an id that has not served. */
symwin_status sw_root_close(const struct sw_id *id);

/* A thread of this process takes its seat and waits until all ranks have come or the meeting has
 * failed; the same status for all. */
symwin_status sw_root_join(const struct sw_id *id, const struct sw_wire_join *join,
                           struct sw_group **out);

/* In a forked child: forgets all. */
void sw_root_forked(void);

#endif
