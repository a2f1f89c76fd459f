/* The mailbox: messages from one rank to another, without a collective call. */
#ifndef SYMWIN_MAILBOX_H
#define SYMWIN_MAILBOX_H

#include "src/control/connection.h"
#include "src/control/group.h"
#include "src/driver/driver.h"

/* Messages of one rank that a process holds, or that wait for a link to another host. Enough for
 * all lanes: each is in one channel at a time, and a channel sends three messages. But an end that
 * is destroyed before its peer has answered gives its lanes back while its messages may still wait:
 * a rank that does so again and again comes to the limit. */
enum { SW_MOST_MESSAGES = 3 * SW_STATE_LANES };

/* A message may carry memory: as `fd`, as `memory`, or as a fabric handle in `words`, depending on
 * where the receiver is (enum sw_message_way). */
struct sw_message {
    struct sw_message *next;
    atomic_int *counted;                 /* its sender's count in the group; NULL: in none */
    int fd;                              /* owned, in the close-on-fork set; -1: none */
    CUmemGenericAllocationHandle memory; /* owned, between ranks of one process; 0: none */
    struct sw_frame_message words;
};

void sw_message_free(struct sw_message *message);     /* and its memory */
void sw_message_close_fd(struct sw_message *message); /* at once: of one that the driver accepted */

/* For so long a rank reads on past its deadline: no rank is blamed for a message that is there. */
enum { SW_UNREAD_MS = 100 };

/* How memory is sent to a rank: in this process as a driver handle, on this host as a descriptor,
 * to another host as a fabric handle. */
enum sw_message_way { SW_WAY_PROCESS, SW_WAY_HOST, SW_WAY_FABRIC };
enum sw_message_way sw_mailbox_way(const struct sw_group *group, int to);

/* Sends `words` (the header is filled in here) with a descriptor (-1: none) or a memory handle (0:
 * none). Takes over the handle, not the descriptor. Waits until `deadline` only for room in the
 * socket, never for a call of the other rank. Returns 0 or an errno.
 *
 * Messages from one rank to another arrive in the order in which they were sent, and before the
 * news that the sender has left. */
int sw_mailbox_try(struct sw_group *group, const struct sw_frame_message *words, int fd,
                   CUmemGenericAllocationHandle memory, int64_t deadline);

/* The same, but an error ends the exchange. That the other process has ended is no error here: a
 * rank that waits for it finds out. */
symwin_status sw_mailbox_send(struct sw_group *group, const struct sw_frame_message *words, int fd,
                              CUmemGenericAllocationHandle memory, int64_t deadline,
                              const char *call);

/* Moves messages that other processes of this host have sent into the mailbox at once, instead of
 * waiting for the poll thread: all that are there, or those that can be read by the deadline. */
void sw_mailbox_collect(struct sw_group *group, int64_t deadline);

/* Takes the oldest message to a rank of this process. The caller frees it, before the rank leaves.
 * It counts for its sender until then. NULL: there is none. */
struct sw_message *sw_mailbox_take(struct sw_group *group, int rank);

/* Waits until there is a message to `rank`. Ends the exchange if there is none by the deadline, or
 * if none can come from `peer`, because it or a linking process on the way has left. The caller has
 * processed what was there at `looked`. If that was past the deadline, more messages do not
 * help. */
symwin_status sw_mailbox_wait(struct sw_group *group, int rank, int peer, int64_t looked,
                              int64_t deadline, const char *call);

/* Frees the messages to a rank that leaves. */
void sw_mailbox_drop(struct sw_group *group, int rank);

/* ---- what host_link.c delivers, under the poll lock ---- */

/* Forwards a message from another host, or puts it into the mailbox. Returns 0 if it is invalid. */
int sw_mailbox_forward(struct sw_group *group, const struct sw_frame_message *words);

/* ---- for group.c: peer sockets, under the poll lock ---- */

/* Receives the frames of one turn (SW_TURN_FRAMES). Returns 0: frames may be left. EAGAIN: none is.
 * Or the errno that breaks the socket; unless that is EPIPE, the exchange has been ended. */
int sw_mailbox_read(struct sw_peer_socket *socket);
void sw_mailbox_destroy(struct sw_group *group);

/* ---- for window/handle_exchange.c ---- */

/* A rank's memory, sent by its process for a registration. At most one of each rank waits. */
struct sw_received_handle {
    struct sw_frame_handle frame;
    int fd;    /* owned, in the close-on-fork set; -1: none */
    int error; /* EMFILE: this process had no room for the descriptor */
    int waits; /* 0: none */
};

/* Takes a handle, which the caller then owns; waits for one until `deadline`. 0: none has come, or
 * the exchange has ended. */
int sw_mailbox_wait_handle(struct sw_group *group, int64_t deadline,
                           struct sw_received_handle *out);

#endif
