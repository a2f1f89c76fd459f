/* What one rank tells another, without a call of all ranks: private declarations. */
#ifndef SYMWIN_LETTERS_H
#define SYMWIN_LETTERS_H

#include "src/control/connection.h"
#include "src/control/group.h"
#include "src/driver/driver.h"

/* Memory that comes along is of whichever kind the way takes. */
struct sw_message {
    struct sw_message *next;
    int fd;                              /* owned, kept from forks; -1: none */
    CUmemGenericAllocationHandle memory; /* owned, between ranks of one process; 0: none */
    struct sw_frame_message words;
};

void sw_message_free(struct sw_message *message); /* and what came along */

/* Which kind of handle memory needs to get to a rank. */
enum sw_message_way { SW_WAY_PROCESS, SW_WAY_HOST, SW_WAY_FABRIC };
enum sw_message_way sw_mailbox_way(const struct sw_group *group, int to);

/* Sends `words`, whose header is filled in here, and a descriptor or a handle of memory, of which only the latter is taken
 * over. Waits for room on the way at the most, until `deadline`, and never for a call of the other rank. 0, or an errno.
 * Letters of one rank to another come in the order in which they were sent, and before the word that it has left. */
int sw_mailbox_try(struct sw_group *group, const struct sw_frame_message *words, int fd,
                   CUmemGenericAllocationHandle memory, int64_t deadline);

/* The same, where an error ends the exchange; but that the other process has gone is for whoever waits for it. */
symwin_status sw_mailbox_send(struct sw_group *group, const struct sw_frame_message *words, int fd,
                              CUmemGenericAllocationHandle memory, int64_t deadline,
                              const char *call);

/* Puts what other processes of this host have sent into the mail, which the service thread does in its own time. */
void sw_mailbox_collect(struct sw_group *group);

/* The oldest letter to a rank of this process, the caller's to free; NULL: there is none. */
struct sw_message *sw_mailbox_take(struct sw_group *group, int rank);

/* Waits until there is a letter for `rank`. Ends the exchange where none comes from `peer` before the deadline, or none can
 * come, since `peer` has left, or a process between two hosts. */
symwin_status sw_mailbox_wait(struct sw_group *group, int rank, int peer, int64_t deadline,
                              const char *call);

/* Nobody takes what came for a rank any more. */
void sw_mailbox_drop(struct sw_group *group, int rank);

/* ---- for links.c, under the service lock ---- */

/* Passes on, or puts into the mail, what came from another host. 0: it makes no sense. */
int sw_mailbox_forward(struct sw_group *group, const struct sw_frame_message *words);

/* ---- for group.c: the lines to the other processes, under the service lock ---- */

/* Reads what is there. 0, or the errno that ends the line; the exchange has ended then, but for EPIPE. */
int sw_mailbox_read(struct sw_peer_socket *socket);
void sw_mailbox_destroy(struct sw_group *group);

/* ---- for handles.c: which reads the lines itself while it trades ---- */

void sw_mailbox_exchange_handles(struct sw_group *group, int begins);

/* The next frame of a registration, as sw_frame_receive_now(). */
int sw_mailbox_next_handle(struct sw_peer_socket *socket, union sw_frame *frame, int *fd);

#endif
