/* A rank that joins: the client's side of the rendezvous. */
#ifndef SYMWIN_MEMBER_H
#define SYMWIN_MEMBER_H

#include "src/bootstrap/id.h"

/* Wait past the rank's own deadline, for the creator's report on which rank is late. */
#define SW_GRACE_MS 1000

/* A rank's join of one rendezvous. */
struct sw_member {
    const struct sw_id *id;
    struct sw_frame_join join;
    int64_t deadline;                /* includes SW_GRACE_MS */
    struct sw_connection connection; /* owned: to the creator; .fd -1: none */
    struct sw_rank_table table;      /* owned; from the creator; not for its own threads */
    /* Of a host-local rendezvous: this rank's join of the rendezvous of all hosts, by TCP, which
     * is still connected unless this rank's process is the creator. Otherwise NULL. */
    struct sw_member *all;
};

/* ---- client.c: without the poll lock ---- */

/* Connects to the creator of the id and joins; tries again where that can succeed. JOIN tells the
 * creator the time that is left without SW_GRACE_MS. Once JOIN is sent, calls sw_client_ready().
 * Takes the table, which is the answer to JOIN, into member->table. `frame`: on failure the last
 * frame of the creator, or type 0 if there was none. */
symwin_status sw_client_join(struct sw_member *member, union sw_frame *frame);

/* In a host-local rendezvous: tells the creator of the rendezvous of all hosts that this rank has
 * joined the ranks of its host, and closes the connection. */
void sw_client_ready(struct sw_member *member);

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

/* Prepares the join of the host-local rendezvous from local->all: fills in `join`, and `id` as its
 * id. On failure closes local->all->connection if the creator need not be told. */
symwin_status sw_host_join_prepare(struct sw_member *local, struct sw_id *id);

/* The host-local join has failed, and `all` is still connected: agrees with its creator on the
 * failure. Never SYMWIN_OK. */
symwin_status sw_host_join_failed(struct sw_member *all, symwin_status status);

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
