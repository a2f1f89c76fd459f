/* Frames over sockets: a local socket, which passes descriptors, or TCP with a proof on each frame. */
#ifndef SYMWIN_CONNECTION_H
#define SYMWIN_CONNECTION_H

#include "src/control/frame.h"

/* Waits until poll() says something of the socket. 0, or an errno: ETIMEDOUT past `deadline`
 * (sw_now_ms()). */
int sw_socket_wait(int socket, short events, int64_t deadline);

/* Sends one frame, with a descriptor unless `fd` is -1. 0, or an errno: ETIMEDOUT past `deadline`.
 */
int sw_frame_send(int socket, const union sw_frame *frame, int fd, int64_t deadline);

/* The same without waiting: EAGAIN. */
int sw_frame_send_now(int socket, const union sw_frame *frame, int fd);

/* Receives one frame, and its descriptor into *fd (-1: it had none), close-on-exec, the caller's to
 * close. 0, or an errno: EAGAIN none is there, EPIPE the other end is gone, EPROTO no valid frame,
 * EMFILE the descriptor had no room here, but the frame is valid. With fd NULL a descriptor is EPROTO. On failure none is
 * kept.
 * sw_connection_receive() waits for one. */
int sw_frame_receive_now(int socket, union sw_frame *frame, int *fd);

/* For a local socket that is about to be closed: takes off what was not read, with its descriptors, which a thread of its own
 * closes. That may take as long as the other end likes. */
void sw_socket_empty(int socket);

/* A connection of either kind: a local socket, which passes descriptors, or TCP (stream.c). */
#define SW_CONNECTION_BYTES (sizeof(union sw_frame) + SW_DIGEST_BYTES)

struct sw_connection {
    int fd; /* owned */
    int stream;
    int keyed; /* frames carry a proof */
    int maker; /* which of the two ends this is */
    unsigned char key[SW_KEY_BYTES];
    uint64_t sent, received; /* keyed frames */
    unsigned char *in;       /* owned, of a stream: the frame under way */
    size_t have;             /* bytes of it */
};

int sw_connection_open(struct sw_connection *connection, int fd, int stream); /* 0, or ENOMEM */
void sw_connection_close(struct sw_connection *connection); /* without the service lock */
void sw_connection_drop(struct sw_connection *connection);  /* under it */

/* From now on a stream's frames carry a proof. */
void sw_connection_key(struct sw_connection *connection, int maker,
                       const unsigned char secret[SW_KEY_BYTES], const struct sw_frame_hello *hello,
                       const struct sw_frame_challenge *challenge);

/* As the functions above; a stream takes no descriptor (EOPNOTSUPP) and gives none. A frame that does
 * not fit its proof is EPROTO. */
int sw_connection_send(struct sw_connection *connection, const union sw_frame *frame, int fd,
                       int64_t deadline);
int sw_connection_receive_now(struct sw_connection *connection, union sw_frame *frame, int *fd);
int sw_connection_receive(struct sw_connection *connection, union sw_frame *frame, int *fd,
                          int64_t deadline);

/* Whether others can send descriptors to the local socket, and to those that are accepted from it; they can by default. 0: the
 * system cannot keep them out (before Linux 6.16): they come, and whoever closes the socket closes those that are on it. */
int sw_socket_take_descriptors(int socket, int yes);

/* Whether a descriptor that came is a socket of that kind, of TCP or as a line: closing it does not wait. */
int sw_socket_is(int fd, int stream);

/* Whether the process at the other end is of this user; *pid is its id as seen from here, 0 if it
 * cannot be seen. */
int sw_socket_same_user(int socket, pid_t *pid);

#endif
