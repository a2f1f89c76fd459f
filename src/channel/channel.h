/* Channels between two ranks: private declarations. symwin/channel.h has the public ones, and what they are. */
#ifndef SYMWIN_CHANNELS_H
#define SYMWIN_CHANNELS_H

#include "src/window/window.h"

/* ---- an end, and what it has of the peer ------------------------------------------------------ */

/* A peer's allocation that is mapped here, outside of the flat range, for this rank's device alone. */
struct sw_import {
    struct sw_import *next;
    int peer;
    uint64_t buffer_id; /* in the peer's process, where it is never used again */
    struct sw_memory memory;
    int refs; /* ends */
};

enum sw_end_state {
    SW_END_OFFERED,
    SW_END_CONNECTED,
    SW_END_FAILED,
    SW_END_DESTROYED /* and the peer may still signal */
};

struct sw_end {
    struct sw_end *next;
    uintptr_t handle; /* 0: destroyed */
    enum sw_end_state state;
    int peer;
    uint64_t number;    /* of the channel among those of the two ranks, from 1 */
    int answered;       /* this rank has taken the peer's offer, and told what came of it: */
    symwin_status mine; /* OK: the peer may use the words from now on */
    int heard;          /* and the peer has: */
    symwin_status theirs;
    int peer_gone; /* the peer has no end, or not any more */
    char my_text[SW_MESSAGE_TEXT], their_text[SW_MESSAGE_TEXT];

    void *ptr; /* this rank's memory */
    size_t bytes;
    int window;
    CUdeviceptr held; /* owned memory kept from being freed, 0: none */
    uint32_t lane, lanes;

    CUdeviceptr their_memory; /* 0: it has none */
    size_t their_bytes;
    size_t their_words;         /* offset in the flat range */
    struct sw_import *import;   /* a reference; NULL: none */
    struct sw_segment *segment; /* a reference; NULL: none */
};

/* ---- a communicator's -------------------------------------------------------------------------- */

struct sw_channels {
    pthread_mutex_t mutex;     /* the rest, but for what only the thread in a call has */
    struct sw_end *ends;       /* owned */
    struct sw_import *imports; /* owned by the ends */
    unsigned char used[SW_STATE_LANES / 8], dirty[SW_STATE_LANES / 8]; /* bits of lanes */
    /* Of the thread in a call: */
    uint64_t *made;           /* owned, nranks: channels begun with each peer */
    struct sw_message *early; /* owned: to ends that this rank has yet to make, the oldest first */
};

struct sw_channels *sw_channels_create(int nranks); /* NULL: no host memory */

/* Destroys all ends. The communicator's mail is dropped by sw_bootstrap_leave(). */
void sw_channels_destroy(symwin_comm *comm);

/* Calls see() for each end that is not destroyed, under the mutex. */
void sw_channels_each(symwin_comm *comm, void (*see)(const struct sw_end *end, void *context),
                      void *context);

/* ---- channel_meet.c: what two ends tell each other; by the thread in a call ---------------------- */

/* The lowest lane of `lanes` that are free, which are taken then; -1: there are not so many beside each other. Under the
 * mutex, as the next. */
int sw_lanes_take(struct sw_channels *channels, int lanes, int *dirty);
void sw_lanes_give(struct sw_channels *channels, uint32_t lane, uint32_t lanes);

/* Offset of a rank's lane in the flat range. */
size_t sw_lanes_offset(const symwin_comm *comm, uint32_t lane);

void sw_message_fill(const symwin_comm *comm, int peer, enum sw_message_kind kind, uint64_t number,
                     symwin_status status, const char *text, struct sw_frame_message *message);

/* What the thread's last error says, without the call's name in front. */
void sw_message_text(char to[SW_MESSAGE_TEXT], const char *call);

/* Deals with all that has come for this rank. */
symwin_status sw_channels_meet(symwin_comm *comm, const char *call, int64_t deadline);

/* Takes an end that nobody can use any more off the list. Under the mutex. */
void sw_end_unlink(struct sw_channels *channels, struct sw_end *end);

/* Gives up what an end had of the peer's memory. Without the mutex. */
void sw_end_disconnect(symwin_comm *comm, struct sw_import *import, struct sw_segment *segment);

#endif
