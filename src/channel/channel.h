/* Channels between two ranks: private declarations. symwin/channel.h is the public header and
 * explains them. */
#ifndef SYMWIN_CHANNELS_H
#define SYMWIN_CHANNELS_H

#include "src/window/window.h"

/* ---- one end of a channel -------------------------------------------------------------------- */

/* A peer's allocation, mapped outside the flat range and for this rank's device only. */
struct sw_import {
    struct sw_import *next;
    int peer;
    uint64_t buffer_id; /* of the mapping in the peer's process; never reused there */
    struct sw_memory memory;
    int refs; /* ends that use it */
};

enum sw_end_state {
    SW_END_OFFERED,
    SW_END_CONNECTED,
    SW_END_FAILED,
    SW_END_DESTROYED /* kept while the peer may still signal */
};

struct sw_end {
    struct sw_end *next;
    uintptr_t handle; /* 0: destroyed */
    enum sw_end_state state;
    int peer;
    uint64_t number;    /* of the channel among those of the two ranks, from 1 */
    int answered;       /* this rank has got the peer's offer and sent its verdict, `mine` */
    symwin_status mine; /* OK: the peer may use this rank's counters */
    int heard;          /* the peer's verdict has come, `theirs` */
    symwin_status theirs;
    int peer_gone; /* the peer could not create its end, or has destroyed it */
    char my_text[SW_MESSAGE_TEXT], their_text[SW_MESSAGE_TEXT];

    void *ptr; /* this rank's memory */
    size_t bytes;
    int window;       /* it is in a window */
    CUdeviceptr held; /* owned memory that the end keeps from being freed, 0: none */
    uint32_t lane, lanes;

    CUdeviceptr their_memory; /* 0: it has none */
    size_t their_bytes;
    size_t their_words;         /* offset of the peer's counters in the flat range */
    struct sw_import *import;   /* a reference; NULL: none */
    struct sw_segment *segment; /* a reference; NULL: none */
};

/* ---- all channels of a communicator ---------------------------------------------------------- */

/* Owned messages, oldest first. */
struct sw_messages {
    struct sw_message *first, *last; /* `last` only if there is a first */
};

struct sw_channels {
    pthread_mutex_t mutex;     /* protects all but the last three */
    struct sw_end *ends;       /* owned */
    struct sw_import *imports; /* owned by the ends */
    unsigned char used[SW_STATE_LANES / 8], dirty[SW_STATE_LANES / 8]; /* bits of lanes */
    /* Only for the thread in a collective call: */
    uint64_t *made;            /* owned, nranks: channels begun with each peer */
    struct sw_messages *early; /* owned, nranks: to ends not created here yet, of each peer */
    struct sw_messages due;    /* to ends that have been created since */
};

struct sw_channels *sw_channels_create(int nranks); /* NULL: no host memory */

/* Destroys all ends. sw_group_leave() drops the messages that are still in the mailbox. */
void sw_channels_destroy(symwin_comm *comm);

/* Calls see() under the mutex for each end that is not destroyed. */
void sw_channels_each(symwin_comm *comm, void (*see)(const struct sw_end *end, void *context),
                      void *context);

/* ---- channel_meet.c: messages between two ends; for the thread in a call --------------------- */

/* Takes the first `lanes` adjacent free lanes and returns the lowest; -1: there are none. *dirty:
 * whether one of them was used before. Under the mutex. */
int sw_lanes_take(struct sw_channels *channels, int lanes, int *dirty);

/* Gives lanes back. Under the mutex. */
void sw_lanes_give(struct sw_channels *channels, uint32_t lane, uint32_t lanes);

/* Offset of a lane in the flat range; the same for every rank. */
size_t sw_lanes_offset(const symwin_comm *comm, uint32_t lane);

void sw_message_fill(const symwin_comm *comm, int peer, enum sw_message_kind kind, uint64_t number,
                     symwin_status status, const char *text, struct sw_frame_message *message);

/* The text of the thread's last error, without the call's name in front. */
void sw_message_text(char to[SW_MESSAGE_TEXT], const char *call);

/* Processes the messages that have come for this rank, to any of its ends. Stops at the deadline,
 * but not before SW_UNREAD_MS have passed. Fails if the communicator has ended. */
symwin_status sw_channels_meet(symwin_comm *comm, const char *call, int64_t deadline);

/* An end with the peer has been created: what came too early for it is due. */
void sw_channels_recall(struct sw_channels *channels, int peer);

void sw_messages_free(struct sw_messages *messages);

/* Unlinks and frees an end that neither rank can use any more. Under the mutex. */
void sw_end_unlink(struct sw_channels *channels, struct sw_end *end);

/* Releases an end's references to the peer's memory. Without the mutex. */
void sw_end_disconnect(symwin_comm *comm, struct sw_import *import, struct sw_segment *segment);

#endif
