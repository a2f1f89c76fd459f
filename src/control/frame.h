/* What processes send each other: frames of fixed layout, little-endian, at most 64 KiB.
 *
 * Joining a communicator, over a socket of the process that made the id:
 *
 *   rank    -> HELLO      which id, a nonce
 *   maker   -> CHALLENGE  its nonce, and proof that it knows the id's secret
 *   rank    -> JOIN       who it is, and its proof
 *           -> HERE       instead of a seat, to a rank of the maker's host that came over the network:
 *                         the folder with the maker's socket
 *   maker   -> TABLE      once all ranks have come: which rank is in which process
 *           -> PAGE, LINE with a descriptor each, to the lowest rank of a process: the control
 *                         page, and a socket to each other process
 *   rank    -> READY      its process has made its group of them; or REFUSAL: why it has not
 *   maker   -> GO         all ranks are ready; to the lowest rank of a process
 *           or REFUSAL    at any time: why not
 *
 * Of another host's ranks the lowest gets GO with its TABLE: its host's ranks shall join once more, an id of
 * its own. The others say READY to the first maker when they have sent JOIN there.
 *
 * A proof is an HMAC-SHA256 keyed with the secret, over both nonces, a word for the direction, and
 * what the sender says of itself: it cannot be replayed, reflected or moved to another rank.
 *
 * Over TCP both ends key their channel (stream.c) with both nonces once there is a CHALLENGE: JOIN and all after it are
 * followed by an HMAC, and so is a REFUSAL that meets a JOIN on its way.
 *
 * Between processes, over their line: HANDLE, with the descriptor of a rank's memory; LETTER, from one rank to another,
 * with the descriptor of memory where it offers any.
 *
 * Between hosts, over TCP (links.c): POST, LEAVE, END, LETTER; ASK, to which the answer is WELL.
 */
#ifndef SYMWIN_FRAME_H
#define SYMWIN_FRAME_H

#include "src/control/frame_layout.h"

/* Whether an errno says something of the other end; else it is about this process. */
int sw_frame_is_theirs(int error);

/* Fills in the header of a frame of that type; a TABLE's nranks must be set. */
void sw_frame_seal(union sw_frame *frame, enum sw_frame_type type);

/* Whether `bytes` received bytes are one whole frame of known type with values that can be relied on:
 * ranks and processes in range, texts ended. Reads nothing past `bytes`; may end a text. */
int sw_frame_valid(union sw_frame *frame, size_t bytes);

/* The maker's and the rank's proof; `join` is complete but for its proof. */
void sw_frame_prove_maker(const unsigned char secret[SW_KEY_BYTES],
                          const struct sw_frame_hello *hello,
                          const struct sw_frame_challenge *challenge,
                          unsigned char proof[SW_DIGEST_BYTES]);
void sw_frame_prove_rank(const unsigned char secret[SW_KEY_BYTES],
                         const struct sw_frame_hello *hello,
                         const struct sw_frame_challenge *challenge,
                         const struct sw_frame_join *join, unsigned char proof[SW_DIGEST_BYTES]);

#endif
