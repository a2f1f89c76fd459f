/* Frames over TCP, and one way to both kinds of socket.
 *
 * A stream has no message boundaries: a frame's header says how long it is. Once each end has the other's
 * nonce, every frame is followed by an HMAC over its number, its direction and itself, keyed for this
 * connection with the secret and both nonces: nothing can be put in, left out or changed on the way. It can be
 * read on the way.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/control/wire.h"

int sw_channel_open(struct sw_channel *channel, int fd, int stream)
{
    *channel = (struct sw_channel){.fd = fd, .stream = stream};
    if (!stream)
        return 0;
    channel->in = malloc(SW_STREAM_BYTES);
    return channel->in != NULL ? 0 : ENOMEM;
}

void sw_channel_drop(struct sw_channel *channel)
{
    sw_service_forget(channel->fd);
    if (channel->fd >= 0 && !channel->stream)
        sw_wire_empty(channel->fd);
    if (channel->fd >= 0)
        close(channel->fd);
    free(channel->in);
    sw_wipe(channel, sizeof *channel);
    channel->fd = -1;
}

void sw_channel_close(struct sw_channel *channel)
{
    sw_service_lock();
    sw_channel_drop(channel);
    sw_service_unlock();
}

void sw_channel_key(struct sw_channel *channel, int maker, const unsigned char secret[SW_KEY_BYTES],
                    const struct sw_wire_hello *hello, const struct sw_wire_challenge *challenge)
{
    const struct sw_part parts[] = {
        {"symwin channel", 14},
        {hello->nonce, sizeof hello->nonce},
        {challenge->nonce, sizeof challenge->nonce},
    };

    if (!channel->stream)
        return; /* the system vouches for the other end */
    sw_hmac(secret, parts, 3, channel->key);
    channel->keyed = 1;
    channel->maker = maker;
}

/* The proof that follows a frame. */
static void tag_of(const struct sw_channel *channel, int from_maker, uint64_t number,
                   const void *frame, size_t bytes, unsigned char tag[SW_DIGEST_BYTES])
{
    const uint64_t words[] = {(uint64_t)from_maker, number};
    const struct sw_part parts[] = {{words, sizeof words}, {frame, bytes}};

    sw_hmac(channel->key, parts, 2, tag);
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
        error = sw_wire_wait(socket, POLLOUT, deadline);
        if (error != 0)
            return error;
    }
    return 0;
}

int sw_channel_send(struct sw_channel *channel, const union sw_wire_frame *frame, int fd,
                    int64_t deadline)
{
    const size_t bytes = frame->header.bytes;
    unsigned char out[SW_STREAM_BYTES];

    if (!channel->stream)
        return sw_wire_send(channel->fd, frame, fd, deadline);
    if (fd >= 0)
        return EOPNOTSUPP;
    memcpy(out, frame, bytes); /* one piece: one packet where it fits */
    if (!channel->keyed)
        return send_all(channel->fd, out, bytes, deadline);
    tag_of(channel, channel->maker, channel->sent++, frame, bytes, out + bytes);
    return send_all(channel->fd, out, bytes + SW_DIGEST_BYTES, deadline);
}

/* ---- receiving ---- */

/* How many bytes the frame under way has, as far as it is known; 0: nonsense. */
static size_t due(const struct sw_channel *channel)
{
    struct sw_wire_header header;

    if (channel->have < sizeof header)
        return sizeof header;
    memcpy(&header, channel->in, sizeof header);
    if (header.magic != SW_WIRE_MAGIC || header.bytes < sizeof header ||
        header.bytes > sizeof(union sw_wire_frame))
        return 0;
    return header.bytes + (channel->keyed ? SW_DIGEST_BYTES : 0);
}

static int take_frame(struct sw_channel *channel, size_t all, union sw_wire_frame *frame)
{
    const size_t bytes = all - (channel->keyed ? SW_DIGEST_BYTES : 0);
    unsigned char tag[SW_DIGEST_BYTES];

    channel->have = 0;
    if (channel->keyed) {
        tag_of(channel, !channel->maker, channel->received++, channel->in, bytes, tag);
        if (!sw_digest_equal(tag, channel->in + bytes))
            return EPROTO;
    }
    memcpy(frame, channel->in, bytes);
    return sw_wire_valid(frame, bytes) ? 0 : EPROTO;
}

int sw_channel_receive_now(struct sw_channel *channel, union sw_wire_frame *frame, int *fd)
{
    if (!channel->stream)
        return sw_wire_receive_now(channel->fd, frame, fd);
    if (fd != NULL)
        *fd = -1;
    for (;;) {
        const size_t all = due(channel);
        ssize_t got;

        if (all == 0)
            return EPROTO;
        if (channel->have >= sizeof(struct sw_wire_header) && channel->have == all)
            return take_frame(channel, all, frame);
        got = recv(channel->fd, channel->in + channel->have, all - channel->have, MSG_DONTWAIT);
        if (got > 0)
            channel->have += (size_t)got;
        else if (got == 0)
            return EPIPE;
        else if (errno == ECONNRESET)
            return EPIPE;
        else if (errno != EINTR)
            return errno;
    }
}

int sw_channel_receive(struct sw_channel *channel, union sw_wire_frame *frame, int *fd,
                       int64_t deadline)
{
    for (;;) {
        int error = sw_channel_receive_now(channel, frame, fd);

        if (error != EAGAIN)
            return error;
        error = sw_wire_wait(channel->fd, POLLIN, deadline);
        if (error != 0)
            return error;
    }
}
