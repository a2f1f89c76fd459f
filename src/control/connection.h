/* Frames over sockets: a local socket, which can pass descriptors (frame.c), or TCP, with a proof
 * on each frame (connection.c).
 *
 * Functions return 0 or an errno unless they say otherwise. A `deadline` is a time of sw_now_ms();
 * past it they return ETIMEDOUT. */
#ifndef SYMWIN_CONNECTION_H
#define SYMWIN_CONNECTION_H

#include "src/control/frame.h"

/* Waits until poll() reports an event on the socket. */
int sw_socket_wait(int socket, short events, int64_t deadline);

/* Waits a moment for room in the socket; then the caller tries to send again. poll() reports room
 * only when a large part of the buffer is free: a peer that reads slowly would seem not to read. */
int sw_socket_wait_room(int socket, int64_t deadline);

/* Sends one frame, with a descriptor unless `fd` is -1. */
int sw_frame_send(int socket, const union sw_frame *frame, int fd, int64_t deadline);

/* The same without waiting. EAGAIN: no room. */
int sw_frame_send_now(int socket, const union sw_frame *frame, int fd);

/* After its `error`: waits a moment for room. 0: try again. Else the errno that ends it. */
int sw_frame_wait(int socket, int error, int64_t deadline);

/* Receives one frame without waiting, and its descriptor into *fd (-1: it has none). The descriptor
 * is close-on-exec; the caller closes it. With fd NULL a frame with a descriptor is EPROTO. After a
 * failure no descriptor is left open.
 *
 * EAGAIN: no frame is there. EPIPE: the other end is closed. EPROTO: not a valid frame. EMFILE:
 * this process had no room for the descriptor, but the frame is valid. */
int sw_frame_receive_now(int socket, union sw_frame *frame, int *fd);

/* Sockets of other processes are read in turns, under the poll lock: otherwise a process that sends
 * without end would keep it. A turn ends after so many frames, or after that time. */
enum { SW_TURN_FRAMES = 1024, SW_TURN_MS = 20 };

/* ---- one interface for both kinds of socket ---- */

#define SW_CONNECTION_BYTES (sizeof(union sw_frame) + SW_DIGEST_BYTES)

struct sw_connection {
    int fd;      /* owned */
    int stream;  /* TCP; else a local socket */
    int keyed;   /* frames carry a proof */
    int creator; /* this is the end of the process that created the id */
    /* Of a link between hosts: the rank that made the other end, whose process hands it to the
     * linking process there; -1: unknown, or the same. */
    int holder;
    int passed; /* another process of this host has made this end */
    unsigned char key[SW_KEY_BYTES];
    uint64_t sent, received; /* number of keyed frames */
    unsigned char *in;       /* owned, TCP only: the frame being received */
    size_t have;             /* bytes of it that are there */
};

int sw_connection_open(struct sw_connection *connection, int fd, int stream); /* or ENOMEM */
void sw_connection_close(struct sw_connection *connection); /* without the poll lock */
void sw_connection_drop(struct sw_connection *connection);  /* under the poll lock */

/* From now on TCP frames carry a proof. Does nothing for a local socket. */
void sw_connection_key(struct sw_connection *connection, int creator,
                       const unsigned char secret[SW_KEY_BYTES], const struct sw_frame_hello *hello,
                       const struct sw_frame_challenge *challenge);

/* As the functions above; sw_connection_receive() waits for a frame. TCP cannot send a descriptor
 * (EOPNOTSUPP) and receives none. A frame that does not match its proof is EPROTO. */
int sw_connection_send(struct sw_connection *connection, const union sw_frame *frame, int fd,
                       int64_t deadline);
int sw_connection_receive_now(struct sw_connection *connection, union sw_frame *frame, int *fd);
int sw_connection_receive(struct sw_connection *connection, union sw_frame *frame, int *fd,
                          int64_t deadline);

/* TCP: writes a frame and its proof to `out`, and returns how many bytes that is. They must be the
 * next to be sent. */
size_t sw_connection_seal(struct sw_connection *connection, const union sw_frame *frame,
                          unsigned char *out);

/* Allows or forbids peers to send descriptors to the local socket and to connections accepted from
 * it; the default is to allow it. Returns whether that worked. Before Linux 6.16 it does not:
 * descriptors arrive, and whoever closes the socket also closes the unread ones. */
int sw_socket_take_descriptors(int socket, int yes);

/* Whether a received descriptor is a TCP socket (`stream`), or a connected local socket of the kind
 * used here. It does not listen: the close of one that listens also closes what lies in the queues
 * of its connections, which can take long. */
int sw_socket_is(int fd, int stream);

/* Whether the process at the other end belongs to this user. *pid is its id in this pid namespace,
 * 0 if it is not visible here. */
int sw_socket_same_user(int socket, pid_t *pid);

#endif
