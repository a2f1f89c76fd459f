/* The calls that a thread collects in a group, between grouped.c and group_end.c. */
#ifndef SYMWIN_GROUP_CALLS_H
#define SYMWIN_GROUP_CALLS_H

#include <stddef.h>

#include "src/collective/call.h"
#include "src/collective/pairs.h"

struct grouped_call {
    int is_pair;
    int is_launched;
    unsigned number; /* of a collective among those of its communicator; 0: not known yet */
    struct sw_pair_call pair;
    struct sw_request request;  /* otherwise; its pointers to the next two are set at the end */
    struct call found;          /* set at the end; if is_found, with its buffers */
    int is_found, agrees;       /* agrees: its communicator is to agree on its buffers */
    struct sw_stream_seen seen; /* if it agrees */
    symwin_collective_options options;
    symwin_parts parts[2];
    size_t
        arrays[2]; /* of these, if they are in host memory: where they are in the group's words */
};

/* Of a thread. */
struct sw_group_calls {
    int depth;                  /* 0: none is open */
    struct grouped_call *calls; /* owned */
    size_t count, room;
    /* Owned: counts and displacements that were in host memory, as they were passed. */
    uint64_t *words;
    size_t words_count, words_room;
    symwin_status status; /* of the first call that failed, with its text */
    char text[SW_TEXT_BYTES];
};

static inline const symwin_comm *sw_group_comm(const struct sw_group_calls *g, size_t i)
{
    const struct grouped_call *c = &g->calls[i];

    return c->is_pair ? c->pair.comm : c->request.comm;
}

/* ---- group_end.c ---- */

/* Launches all of them, or nothing if one has failed. */
symwin_status sw_group_launch(struct sw_group_calls *g);

/* A send or receive outside a group, which was checked. */
symwin_status sw_pair_launch(const struct sw_pair_call *c);

#endif
