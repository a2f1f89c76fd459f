/* A rank that joins: the client's side of the rendezvous. */
#ifndef SYMWIN_MEMBER_H
#define SYMWIN_MEMBER_H

#include "src/bootstrap/id.h"

/* Wait past the rank's own deadline, for the creator's report on which rank is late. */
#define SW_GRACE_MS 1000

/* A rank's join of one rendezvous. */
struct sw_member {
    const struct sw_id *id;   /* of that rendezvous */
    const struct sw_id *host; /* this rank joins for its host, whose rendezvous has this id; NULL */
    struct sw_frame_join join;
    int64_t due;                     /* the rank's own deadline */
    int64_t deadline;                /* with SW_GRACE_MS, or twice that on another host */
    struct sw_connection connection; /* owned: to the creator; .fd -1: none */
    struct sw_rank_table table;      /* owned; from the creator; not for its own threads */
};

/* ---- client.c: without the poll lock ---- */

/* Connects to the creator of the id and joins; tries again where that can succeed. JOIN tells the
 * creator the time that is left. Takes the table, which is the answer to JOIN, into member->table;
 * over TCP there is none. `frame`: the last frame of the creator, or type 0 if there was none.
 * HERE: the rank must join by the local socket. */
symwin_status sw_client_join(struct sw_member *member, union sw_frame *frame);

/* Joins at another host than the creator's, where `id` says, for a link to it. */
symwin_status sw_client_link(const struct sw_id *id, const struct sw_frame_join *join,
                             int64_t deadline, struct sw_connection *connection);

/* Sets the timeout in JOIN to what is left of the rank's time: the creator measures it from the
 * arrival of JOIN. Error texts show the timeout, so the caller's value stays if little time has
 * passed. */
void sw_client_set_time(struct sw_member *member);

/* For a rank of another host that cannot join there. sw_client_tell(): tells the creator why, with
 * the last error's text, if it can be reached. sw_client_hear(): what the creator says to those who
 * come too late, or SYMWIN_PEER_LOST if it has ended; SYMWIN_OK: nothing, or no answer. */
void sw_client_tell(const struct sw_id *id, int rank, symwin_status status);

/* From `at` on, if this thread still waits for a frame then, the creator of `id` is told that the
 * rank waits for another one of its host: once. `id` NULL: no longer. */
void sw_client_tell_at(const struct sw_id *id, int rank, int64_t at);
symwin_status sw_client_hear(const struct sw_id *id);

/* Tells the creator that this process is ready, or why it is not; `rank` is its number among all
 * ranks. */
symwin_status sw_client_report(struct sw_connection *connection, int rank, symwin_status status,
                               int64_t deadline);

/* Tells the creator why this process fails, with the last error's text. The creator refuses the
 * other ranks with it. */
void sw_client_refuse(struct sw_connection *connection, symwin_status status, int culprit,
                      int64_t deadline);

/* Receives the next frame from the creator, which must have that type. A descriptor that comes with
 * it goes into the close-on-fork set. */
symwin_status sw_client_recv_frame(struct sw_connection *connection, union sw_frame *frame,
                                   enum sw_frame_type type, int *fd, int64_t deadline);

/* Sends a frame to the creator. SYMWIN_OK also if the creator is gone: its last frame may still be
 * unread, and the next receive reports the rest. */
symwin_status sw_client_send_frame(struct sw_connection *connection, const union sw_frame *frame,
                                   int64_t deadline);

/* ---- host_join.c: without the poll lock ---- */

/* Finds the id of the rendezvous of this rank's host, which is another than the creator's. If there
 * is none, opens one and sets *leads: this rank joins for its host. */
symwin_status sw_host_join_find(const struct sw_member *member, struct sw_id *local, int *leads);

/* ---- process_join.c: without the poll lock ---- */

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

#endif
