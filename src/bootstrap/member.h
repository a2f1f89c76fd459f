/* The side of a rank that joins. */
#ifndef SYMWIN_MEMBER_H
#define SYMWIN_MEMBER_H

#include "src/bootstrap/id.h"

/* ---- client.c: without the lock ---- */

#define SW_GRACE_MS 1000 /* for the maker's word on who is late, past one's own deadline */

/* Goes to the maker, and comes again where that promises something. `deadline` has SW_GRACE_MS in it; what the maker
 * hears in JOIN is what is left without. `frame`: the answer to JOIN, TABLE or HERE;
 * on failure the maker's last word, type 0: there was none. `first`: the channel to the maker of a meeting of
 * several hosts, where this is one of one host's ranks; told READY, and closed, on the way. NULL: it is not. */
symwin_status sw_client_join(const struct sw_id *id, struct sw_frame_join *join,
                             struct sw_connection *first, int64_t deadline,
                             struct sw_connection *connection, union sw_frame *frame);

/* Tells the maker that this rank is with the ranks of its host. */
void sw_client_ready(struct sw_connection *first);

/* The next frame from the maker, which must be of that type. A descriptor that comes along is kept. */
symwin_status sw_client_recv_frame(struct sw_connection *connection, union sw_frame *frame,
                                   enum sw_frame_type type, int *fd, int64_t deadline);

/* Sends a frame to the maker. Where it is gone there will be no answer, or its last word is still to be
 * read. */
symwin_status sw_client_send_frame(struct sw_connection *connection, const union sw_frame *frame,
                                   int64_t deadline);

/* ---- process_join.c: without the lock ---- */

/* For rank `rank` of all, which is about to go: what it will need whatever becomes of it. One of the next four calls
 * takes it back. NULL: no memory. */
struct sw_process_join *sw_process_join_new(const struct sw_id *id, int rank);
void sw_process_join_free(struct sw_process_join *own);

/* The lowest rank of a process has made the group, or failed as last said, for `mates` others of the process. */
void sw_process_join_publish(struct sw_process_join *own, int mates, symwin_status status,
                             struct sw_group *group);

/* The others wait for that. */
symwin_status sw_process_join_await(struct sw_process_join *own, int64_t deadline,
                                    struct sw_group **out);

/* Or they have failed on their way, and will not come for it; the ranks that did come hear of it. */
void sw_process_join_abandon(struct sw_process_join *own, symwin_status status, int64_t deadline);

void sw_process_join_forked(void); /* under the lock: in a forked child, forgets all */

#endif
