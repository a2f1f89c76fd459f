/* Frames over TCP, and one interface for TCP and local sockets.
 *
 * TCP has no message boundaries: a frame's header says how long it is. Once each end has the
 * other's nonce, every frame is followed by an HMAC over its number, its direction and its bytes.
 * The key is derived for this connection from the secret and both nonces. So nobody on the way can
 * insert, drop or change a frame. Frames are not encrypted.
 *
 * One thread at a time sends on a connection, and one receives. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/control/control.h"

int sw_connection_open(struct sw_connection *connection, int fd, int stream)
{
    *connection = (struct sw_connection){.fd = fd, .stream = stream, .holder = -1};
    if (!stream)
        return 0;
    connection->in = malloc(SW_CONNECTION_BYTES);
    return connection->in != NULL ? 0 : ENOMEM;
}

void sw_connection_drop(struct sw_connection *connection)
{
    sw_fork_set_remove(connection->fd);
    if (connection->fd >= 0 && !connection->stream)
        sw_socket_empty(connection->fd);
    if (connection->stream)
        sw_linger_off(connection->fd); /* the process that passed a link to this one shares it */
    if (connection->fd >= 0)
        close(connection->fd);
    free(connection->in);
    sw_wipe(connection, sizeof *connection);
    connection->fd = -1;
}

void sw_connection_close(struct sw_connection *connection)
{
    sw_poll_lock();
    sw_connection_drop(connection);
    sw_poll_unlock();
}

void sw_connection_key(struct sw_connection *connection, int creator,
                       const unsigned char secret[SW_KEY_BYTES], const struct sw_frame_hello *hello,
                       const struct sw_frame_challenge *challenge)
{
    const struct sw_part parts[] = {
        {"symwin channel", 14},
        {hello->nonce, sizeof hello->nonce},
        {challenge->nonce, sizeof challenge->nonce},
    };

    if (!connection->stream)
        return; /* the system guarantees who is at the other end */
    sw_hmac(secret, parts, 3, connection->key);
    connection->keyed = 1;
    connection->creator = creator;
}

/* The proof that follows a frame. */
static void tag_of(const struct sw_connection *connection, int from_creator, uint64_t number,
                   const void *frame, size_t bytes, unsigned char tag[SW_DIGEST_BYTES])
{
    const uint64_t words[] = {(uint64_t)from_creator, number};
    const struct sw_part parts[] = {{words, sizeof words}, {frame, bytes}};

    sw_hmac(connection->key, parts, 2, tag);
}

/* ---- sending ---- */

static int send_all(int socket, const unsigned char *data, size_t bytes, int64_t deadline)
{
    while (bytes > 0) {
        const ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        int error;

        if (sent > 0) {
            data += sent;
            bytes -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return errno;
        error = sw_socket_wait_room(socket, deadline);
        if (error != 0)
            return error;
    }
    return 0;
}

size_t sw_connection_seal(struct sw_connection *connection, const union sw_frame *frame,
                          unsigned char *out)
{
    const size_t bytes = frame->header.bytes;

    memcpy(out, frame, bytes);
    if (!connection->keyed)
        return bytes;
    tag_of(connection, connection->creator, connection->sent++, frame, bytes, out + bytes);
    return bytes + SW_DIGEST_BYTES;
}

int sw_connection_send(struct sw_connection *connection, const union sw_frame *frame, int fd,
                       int64_t deadline)
{
    unsigned char out[SW_CONNECTION_BYTES];
    size_t bytes;

    if (!connection->stream)
        return sw_frame_send(connection->fd, frame, fd, deadline);
    if (fd >= 0)
        return EOPNOTSUPP;
    bytes = sw_connection_seal(connection, frame, out);
    return send_all(connection->fd, out, bytes, deadline); /* as one piece: one packet if it fits */
}

/* ---- receiving ---- */

/* Number of bytes to receive for the current frame: of its header first, then of all of it, with
 * its proof. 0: the header is invalid. */
static size_t due(const struct sw_connection *connection)
{
    struct sw_frame_header header;

    if (connection->have < sizeof header)
        return sizeof header;
    memcpy(&header, connection->in, sizeof header);
    if (header.magic != SW_FRAME_MAGIC || header.bytes < sizeof header ||
        header.bytes > sizeof(union sw_frame))
        return 0;
    return header.bytes + (connection->keyed ? SW_DIGEST_BYTES : 0);
}

static int take_frame(struct sw_connection *connection, size_t all, union sw_frame *frame)
{
    const size_t bytes = all - (connection->keyed ? SW_DIGEST_BYTES : 0);
    unsigned char tag[SW_DIGEST_BYTES];

    connection->have = 0;
    if (connection->keyed) {
        tag_of(connection, !connection->creator, connection->received++, connection->in, bytes,
               tag);
        if (!sw_digest_equal(tag, connection->in + bytes))
            return EPROTO;
    }
    memcpy(frame, connection->in, bytes);
    return sw_frame_valid(frame, bytes) ? 0 : EPROTO;
}

int sw_connection_receive_now(struct sw_connection *connection, union sw_frame *frame, int *fd)
{
    if (!connection->stream)
        return sw_frame_receive_now(connection->fd, frame, fd);
    if (fd != NULL)
        *fd = -1;
    for (;;) {
        const size_t all = due(connection);
        ssize_t got;

        if (all == 0)
            return EPROTO;
        if (connection->have >= sizeof(struct sw_frame_header) && connection->have == all)
            return take_frame(connection, all, frame);
        got = recv(connection->fd, connection->in + connection->have, all - connection->have,
                   MSG_DONTWAIT);
        if (got > 0)
            connection->have += (size_t)got;
        else if (got == 0)
            return EPIPE;
        else if (errno == ECONNRESET)
            return EPIPE;
        else if (errno != EINTR)
            return errno;
    }
}

int sw_connection_receive(struct sw_connection *connection, union sw_frame *frame, int *fd,
                          int64_t deadline)
{
    for (;;) {
        int error = sw_connection_receive_now(connection, frame, fd);

        if (error != EAGAIN)
            return error;
        error = sw_socket_wait(connection->fd, POLLIN, deadline);
        if (error != 0)
            return error;
    }
}
