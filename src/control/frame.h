/* Frames: what processes send each other. Fixed layout, little-endian, at most 64 KiB.
 *
 * Joining a communicator, over a connection to the process that created the id (the creator):
 *
 *   rank    -> HELLO      the id's name, a nonce
 *   creator -> CHALLENGE  its nonce, and a proof that it knows the id's secret
 *   rank    -> JOIN       who the rank is, and its proof
 *   creator -> HERE       instead of a slot, to a rank of the creator's host that connected by TCP:
 *                         the folder with the creator's local socket
 *           -> TABLE      once all ranks have joined: the process and host of each rank, in as
 *                         many frames as it takes (rank_table.h)
 *           -> PAGE       to the lowest rank of a process, with a descriptor: the control page
 *           -> SOCKET     the same, for each other process of the host: a socket to it
 *           -> LINK       to the lowest rank of the creator's host: a connection to another host
 *   rank    -> READY      its process has created its group; or REFUSAL, if that failed
 *   creator -> GO         to the lowest rank of a process: all processes are ready
 *           -> REFUSAL    instead, at any time: why creation fails
 *
 * On another host, the lowest rank gets GO after its TABLE: the ranks of its host join once more,
 * with an id that it creates. Its other ranks send READY to the first creator when they have sent
 * JOIN to the second. If hosts are too many for a star (tree.c):
 *
 *   creator -> ABOVE      where the host listens to which this one gets a link; TABLE goes before
 *                         it if that host is the creator's
 *   rank    -> LINKED     this host's links are there; when all hosts have said so, GO
 *
 * The link begins as a join: HELLO, CHALLENGE, JOIN, and READY, which is the answer. The TABLE of a
 * host that is not below the creator's comes next, from the host above.
 *
 * A proof is an HMAC-SHA256, keyed with the secret, over both nonces, a word for the direction, and
 * what the sender says about itself. It cannot be replayed, reflected or used by another rank.
 *
 * Over TCP both ends derive a key for the connection from both nonces, once there is a CHALLENGE
 * (connection.c). JOIN and all later frames are followed by an HMAC, and so is a REFUSAL that
 * crosses a JOIN.
 *
 * Between processes of a host, over their peer socket: HANDLE, with the descriptor of a rank's
 * memory; MESSAGE, from one rank to another, with a descriptor if it offers memory.
 *
 * Between hosts, over TCP (host_link.c): POST, of as many ranks as are ready; LEAVE, END, MESSAGE;
 * ASK, which WELL answers, or BEHIND if ranks there have counted calls.
 */
#ifndef SYMWIN_FRAME_H
#define SYMWIN_FRAME_H

#include "src/control/frame_layout.h"

/* Whether an errno of a connection is the other end's fault; else it is this process's. */
int sw_frame_is_theirs(int error);

/* Fills in the header of a frame. What its length depends on must be set before: nranks and first
 * of a TABLE, bytes of a POST. */
void sw_frame_seal(union sw_frame *frame, enum sw_frame_type type);

/* Whether `bytes` received bytes are one whole frame of a known type with safe values: ranks and
 * processes in range, texts terminated. Reads nothing past `bytes`; may write a text's terminating
 * NUL. */
int sw_frame_valid(union sw_frame *frame, size_t bytes);

/* Appends a post, without the zeros at the end of its SW_EXCHANGE_BYTES bytes. 0: there is no
 * room. */
int sw_frame_add_post(struct sw_frame_post *frame, int rank, const unsigned char *data);

/* Reads the post at `at`, 0 at first; its bytes are in front of the place that is returned, where
 * the next one begins. 0: there is no valid post. */
size_t sw_frame_next_post(const struct sw_frame_post *frame, size_t at, struct sw_post *post);

/* Compute the proof of the creator and of a rank; `join` is complete except for its proof. */
void sw_frame_prove_creator(const unsigned char secret[SW_KEY_BYTES],
                            const struct sw_frame_hello *hello,
                            const struct sw_frame_challenge *challenge,
                            unsigned char proof[SW_DIGEST_BYTES]);
void sw_frame_prove_rank(const unsigned char secret[SW_KEY_BYTES],
                         const struct sw_frame_hello *hello,
                         const struct sw_frame_challenge *challenge,
                         const struct sw_frame_join *join, unsigned char proof[SW_DIGEST_BYTES]);

#endif
