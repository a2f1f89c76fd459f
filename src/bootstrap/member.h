/* A rank that joins: the client's side of the rendezvous. */
#ifndef SYMWIN_MEMBER_H
#define SYMWIN_MEMBER_H

#include "src/bootstrap/id.h"

/* ---- client.c: without the poll lock ---- */

/* Wait past the rank's own deadline, for the creator's report on which rank is late. */
#define SW_GRACE_MS 1000

/* Connects to the creator of the id and joins; tries again where that can succeed. `deadline`
 * includes SW_GRACE_MS; JOIN tells the creator the time that is left without it.
 * `frame`: the answer to JOIN, TABLE or HERE; on failure the last frame of the creator, or type 0
 * if there was none.
 * `first`: for a host-local rendezvous, the connection to the creator of the rendezvous of all
 * hosts; gets READY and is closed once JOIN is sent. NULL: not host-local. */
symwin_status sw_client_join(const struct sw_id *id, struct sw_frame_join *join,
                             struct sw_connection *first, int64_t deadline,
                             struct sw_connection *connection, union sw_frame *frame);

/* Tells the creator of the rendezvous of all hosts that this rank has joined the ranks of its host,
 * and closes the connection. */
void sw_client_ready(struct sw_connection *first);

/* Receives the next frame from the creator, which must have that type. A descriptor that comes with
 * it goes into the close-on-fork set. */
symwin_status sw_client_recv_frame(struct sw_connection *connection, union sw_frame *frame,
                                   enum sw_frame_type type, int *fd, int64_t deadline);

/* Sends a frame to the creator. SYMWIN_OK also if the creator is gone: its last frame may still be
 * unread, and the next receive reports the rest. */
symwin_status sw_client_send_frame(struct sw_connection *connection, const union sw_frame *frame,
                                   int64_t deadline);

/* ---- process_join.c: without the poll lock, except the last ---- */

/* For a rank that is about to join; `rank` is its number among all ranks. Allocates what each
 * outcome needs, so that no outcome fails to be reported. One of the next four calls frees it.
 * NULL: no memory. */
struct sw_process_join *sw_process_join_new(const struct sw_id *id, int rank);
void sw_process_join_free(struct sw_process_join *own);

/* The lowest rank of the process: hands its group, or its failure with the last error's text, to
 * the `mates` other ranks of the process. */
void sw_process_join_publish(struct sw_process_join *own, int mates, symwin_status status,
                             struct sw_group *group);

/* Another rank of the process: waits for that. */
symwin_status sw_process_join_await(struct sw_process_join *own, int64_t deadline,
                                    struct sw_group **out);

/* A rank that failed before it could wait: if the process gets a group, this rank leaves it, and
 * the other ranks of the communicator fail with `status`. */
void sw_process_join_abandon(struct sw_process_join *own, symwin_status status, int64_t deadline);

void sw_process_join_forked(void); /* under the lock, in a forked child: forgets all */

#endif
