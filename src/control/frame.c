/* Frames over local sockets: the parser of all frames, sending and receiving with descriptors,
 * proofs.
 *
 * Every received descriptor is either passed to the caller or closed. Every wait has a deadline. No
 * state is kept; any thread may call. */
#include "src/control/control.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_DESCRIPTORS = 253, /* in one message: SCM_MAX_FD of Linux */
    PIDFD = 4,   /* SCM_PIDFD: its sender's, if whoever made the socket has asked for it */
    AGAIN_MS = 5 /* between two looks for room in a socket */
};

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

/* ---- frames ---- */

/* How many locations are in the frame, whose first rank is one of its nranks. */
static int locations_in(const struct sw_frame_table *table)
{
    const int left = table->nranks - table->first;

    return left < SW_TABLE_PART ? left : SW_TABLE_PART;
}

static size_t table_bytes(int locations)
{
    return offsetof(struct sw_frame_table, locations) +
           (size_t)locations * sizeof(struct sw_frame_location);
}

static size_t posts_bytes(int32_t bytes)
{
    return offsetof(struct sw_frame_post, posts) +
           (bytes > 0 && bytes <= SW_POSTS_BYTES ? (size_t)bytes : 0);
}

static size_t frame_bytes(const union sw_frame *frame)
{
    switch ((enum sw_frame_type)frame->header.type) {
    case SW_FRAME_HELLO:
        return sizeof frame->hello;
    case SW_FRAME_CHALLENGE:
        return sizeof frame->challenge;
    case SW_FRAME_JOIN:
        return sizeof frame->join;
    case SW_FRAME_TABLE:
        return table_bytes(locations_in(&frame->table));
    case SW_FRAME_PAGE:
    case SW_FRAME_SOCKET:
    case SW_FRAME_READY:
    case SW_FRAME_GO:
        return sizeof frame->pass;
    case SW_FRAME_REFUSAL:
        return sizeof frame->refusal;
    case SW_FRAME_HANDLE:
        return sizeof frame->handle;
    case SW_FRAME_HERE:
        return sizeof frame->here;
    case SW_FRAME_LINK:
        return sizeof frame->link;
    case SW_FRAME_POST:
        return posts_bytes(frame->post.bytes);
    case SW_FRAME_LEAVE:
        return offsetof(struct sw_frame_end, text);
    case SW_FRAME_END:
        return sizeof frame->end;
    case SW_FRAME_MESSAGE:
        return sizeof frame->message;
    case SW_FRAME_ASK:
    case SW_FRAME_WELL:
    case SW_FRAME_LINKED:
        return sizeof frame->header;
    case SW_FRAME_ABOVE:
        return sizeof frame->above;
    case SW_FRAME_BEHIND:
        return sizeof frame->behind;
    }
    return 0;
}

void sw_frame_seal(union sw_frame *frame, enum sw_frame_type type)
{
    frame->header = (struct sw_frame_header){
        .magic = SW_FRAME_MAGIC, .form = SW_FRAME_FORM, .type = (uint16_t)type};
    frame->header.bytes = (uint32_t)frame_bytes(frame);
}

static int rank_in(int32_t rank, int32_t nranks)
{
    return nranks >= 1 && nranks <= SW_MAX_RANKS && rank >= 0 && rank < nranks;
}

static int table_valid(const struct sw_frame_table *table, size_t bytes)
{
    int r;

    if (bytes < table_bytes(0) || !rank_in(0, table->nranks) || table->processes < 1 ||
        table->processes > table->nranks || table->hosts < 1 || table->hosts > table->processes ||
        !rank_in(table->first, table->nranks))
        return 0;
    if (bytes != table_bytes(locations_in(table)))
        return 0;
    for (r = 0; r < locations_in(table); r++)
        if (table->locations[r].process >= (uint32_t)table->processes ||
            table->locations[r].host >= (uint32_t)table->hosts)
            return 0;
    return 1;
}

/* ---- posts ---- */

_Static_assert(sizeof(struct sw_post) + SW_EXCHANGE_BYTES <= SW_POSTS_BYTES, "one fits");

/* How many bytes it takes up to the last that is not zero, in steps of 8. */
static size_t used_bytes(const unsigned char *data)
{
    size_t used = SW_EXCHANGE_BYTES;
    uint64_t last = 0;

    while (used > 0 && last == 0) {
        used -= sizeof last;
        memcpy(&last, data + used, sizeof last);
    }
    return last != 0 ? used + sizeof last : 0;
}

int sw_frame_add_post(struct sw_frame_post *frame, int rank, const unsigned char *data)
{
    const struct sw_post post = {.rank = rank, .bytes = (int32_t)used_bytes(data)};
    const size_t all = sizeof post + (size_t)post.bytes;
    unsigned char *at = frame->posts + frame->bytes;

    if (all > sizeof frame->posts - (size_t)frame->bytes)
        return 0;
    memcpy(at, &post, sizeof post);
    memcpy(at + sizeof post, data, (size_t)post.bytes);
    frame->bytes += (int32_t)all;
    return 1;
}

size_t sw_frame_next_post(const struct sw_frame_post *frame, size_t at, struct sw_post *post)
{
    const size_t end = (size_t)frame->bytes;

    if (end - at < sizeof *post)
        return 0;
    memcpy(post, frame->posts + at, sizeof *post);
    at += sizeof *post;
    if (!rank_in(post->rank, SW_MAX_RANKS) || post->bytes < 0 || post->bytes > SW_EXCHANGE_BYTES ||
        (size_t)post->bytes > end - at)
        return 0;
    return at + (size_t)post->bytes;
}

static int posts_valid(const struct sw_frame_post *frame)
{
    size_t at = 0;
    struct sw_post post;

    if (frame->bytes <= 0 || frame->bytes > SW_POSTS_BYTES)
        return 0;
    do
        at = sw_frame_next_post(frame, at, &post);
    while (at > 0 && at < (size_t)frame->bytes);
    return at > 0;
}

/* ---- validity ---- */

static int status_valid(int32_t status)
{
    return status >= 0 && status <= SYMWIN_STATUS_LAST;
}

static int rank_or_none(int32_t rank)
{
    return rank == -1 || rank_in(rank, SW_MAX_RANKS);
}

static int place_valid(const struct sw_place *place)
{
    return place->family == 0 || place->family == AF_INET || place->family == AF_INET6;
}

/* The receiver checks offsets and sizes of memory: only it knows the limits. */
static int message_valid(struct sw_frame_message *message)
{
    message->text[sizeof message->text - 1] = '\0';
    return rank_in(message->from, SW_MAX_RANKS) && rank_in(message->to, SW_MAX_RANKS) &&
           message->kind >= SW_MESSAGE_OFFER && message->kind <= SW_MESSAGE_GONE &&
           message->memory >= SW_MESSAGE_NONE && message->memory <= SW_MESSAGE_OTHER &&
           status_valid(message->status) && (message->is_fabric == 0 || message->is_fabric == 1);
}

int sw_frame_valid(union sw_frame *frame, size_t bytes)
{
    if (bytes < sizeof frame->header || frame->header.magic != SW_FRAME_MAGIC ||
        frame->header.form != SW_FRAME_FORM || frame->header.bytes != bytes ||
        frame->header.zero != 0)
        return 0;
    if (frame->header.type == SW_FRAME_TABLE)
        return table_valid(&frame->table, bytes);
    if (frame->header.type == SW_FRAME_POST && bytes < posts_bytes(0))
        return 0;
    if (frame_bytes(frame) != bytes)
        return 0;
    switch ((enum sw_frame_type)frame->header.type) {
    case SW_FRAME_JOIN:
        /* The rendezvous checks rank and nranks: it knows the communicator's. */
        return frame->join.timeout_ms > 0 && place_valid(&frame->join.place);
    case SW_FRAME_ABOVE:
        return place_valid(&frame->above.place) && rank_or_none(frame->above.rank) &&
               rank_or_none(frame->above.creator);
    case SW_FRAME_PAGE:
    case SW_FRAME_GO:
        return rank_or_none(frame->pass.process) && frame->pass.left_ms >= 0;
    case SW_FRAME_SOCKET:
        return frame->pass.process >= 0 && frame->pass.process < SW_MAX_RANKS;
    case SW_FRAME_REFUSAL:
        frame->refusal.text[sizeof frame->refusal.text - 1] = '\0';
        return frame->refusal.status != SYMWIN_OK && status_valid(frame->refusal.status) &&
               frame->refusal.rank >= SW_FRAME_UNKNOWN &&
               (frame->refusal.rank < SW_MAX_RANKS || frame->refusal.rank == SW_NOBODY);
    case SW_FRAME_HANDLE:
        return rank_in(frame->handle.rank, SW_MAX_RANKS) && status_valid(frame->handle.status);
    case SW_FRAME_HERE:
        frame->here.folder[sizeof frame->here.folder - 1] = '\0';
        return frame->here.folder[0] != '\0';
    case SW_FRAME_LINK:
        return frame->link.host >= 0 && frame->link.host < SW_MAX_RANKS &&
               (frame->link.creator == 0 || frame->link.creator == 1) &&
               rank_or_none(frame->link.holder);
    case SW_FRAME_POST:
        return posts_valid(&frame->post);
    case SW_FRAME_BEHIND:
        return (rank_in(frame->behind.rank, SW_MAX_RANKS) || frame->behind.rank == SW_NOBODY) &&
               frame->behind.calls < SW_MOST_CALLS;
    case SW_FRAME_LEAVE:
        return rank_in(frame->end.rank, SW_MAX_RANKS);
    case SW_FRAME_END:
        frame->end.text[sizeof frame->end.text - 1] = '\0';
        return (rank_in(frame->end.rank, SW_MAX_RANKS) || frame->end.rank == SW_NOBODY) &&
               frame->end.status != SYMWIN_OK && status_valid(frame->end.status);
    case SW_FRAME_MESSAGE:
        return message_valid(&frame->message);
    default:
        return 1;
    }
}

int sw_frame_is_theirs(int error)
{
    return error == EPIPE || error == ECONNRESET || error == EPROTO || error == ETIMEDOUT ||
           error == EHOSTUNREACH || error == ENETUNREACH;
}

/* ---- sending ---- */

int sw_frame_send_now(int socket, const union sw_frame *frame, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = {.iov_base = (void *)(uintptr_t)frame, .iov_len = frame->header.bytes};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    ssize_t sent;

    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? errno : 0;
}

int sw_socket_wait(int socket, short events, int64_t deadline)
{
    for (;;) {
        struct pollfd p = {.fd = socket, .events = events};
        const int64_t left = deadline - sw_now_ms();
        int found;

        if (left <= 0)
            return ETIMEDOUT;
        found = poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
        if (found > 0)
            return 0;
        if (found < 0 && errno != EINTR)
            return errno;
    }
}

int sw_socket_wait_room(int socket, int64_t deadline)
{
    const int64_t soon = sw_now_ms() + AGAIN_MS;

    if (soon >= deadline)
        return sw_socket_wait(socket, POLLOUT, deadline);
    (void)sw_socket_wait(socket, POLLOUT, soon); /* the next send finds errors */
    return 0;
}

int sw_frame_wait(int socket, int error, int64_t deadline)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    if (error == EAGAIN)
        return sw_socket_wait_room(socket, deadline);
    if (error != ETOOMANYREFS || sw_now_ms() >= deadline)
        return error;
    /* The user has too many descriptors in flight. Receivers will reduce that. */
    nanosleep(&moment, NULL);
    return 0;
}

int sw_frame_send(int socket, const union sw_frame *frame, int fd, int64_t deadline)
{
    int error;

    do
        error = sw_frame_send_now(socket, frame, fd);
    while (error != 0 && (error = sw_frame_wait(socket, error, deadline)) == 0);
    return error;
}

/* ---- receiving ---- */

/* Stores the first descriptor in *fd if `wanted`, and closes all others. Returns how many there
 * were. */
static int take_descriptors(struct msghdr *message, int wanted, int *fd)
{
    struct cmsghdr *c;
    int count = 0;

    for (c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        const unsigned char *at = CMSG_DATA(c);
        size_t left;

        if (c->cmsg_level != SOL_SOCKET || (c->cmsg_type != SCM_RIGHTS && c->cmsg_type != PIDFD))
            continue;
        for (left = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); left > 0; left--) {
            int came;

            memcpy(&came, at, sizeof came);
            at += sizeof came;
            if (count++ == 0 && wanted)
                *fd = came;
            else
                sw_closer_close(came);
        }
    }
    return count;
}

int sw_frame_receive_now(int socket, union sw_frame *frame, int *fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))]; /* else recvmsg() closes the rest */
    } control;
    struct iovec data = {.iov_base = frame, .iov_len = sizeof *frame};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    int came = -1;
    int error = 0;
    int resets = 0, ends = 0;
    int count;
    ssize_t got;

    /* Frames may still be there after a reset or the end was reported, so each is retried once:
     *
     * - A peer that closes with a frame of ours unread resets the socket. The reset is reported
     *   before the peer's last frames.
     * - Without waiting, Linux looks for frames first and then for the end
     *   (__unix_dgram_recvmsg()). A frame and the end may both arrive in between.
     *
     * No frame can follow the end, so the second result is correct. */
    do {
        message.msg_controllen = sizeof control;
        got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while ((got < 0 && (errno == EINTR || (errno == ECONNRESET && resets++ == 0))) ||
             (got == 0 && message.msg_controllen == 0 && (message.msg_flags & MSG_CTRUNC) == 0 &&
              ends++ == 0));
    if (got < 0 && errno == EAGAIN && ends > 0)
        return EPROTO; /* not the end, but an empty frame */
    if (got < 0)
        return errno == ECONNRESET ? EPIPE : errno;
    count = take_descriptors(&message, fd != NULL, &came);
    if ((message.msg_flags & MSG_CTRUNC) != 0 && count == 0)
        error = (message.msg_flags & MSG_TRUNC) == 0 && sw_frame_valid(frame, (size_t)got)
                    ? EMFILE /* no free descriptor number in this process */
                    : EPROTO;
    else if (count > (fd != NULL) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        error = EPROTO;
    else if (got == 0)
        error = EPIPE;
    else if (!sw_frame_valid(frame, (size_t)got))
        error = EPROTO;
    if (error != 0) {
        sw_closer_close(came);
        return error;
    }
    if (fd != NULL)
        *fd = came;
    return 0;
}

/* ---- proofs ---- */

void sw_frame_prove_creator(const unsigned char secret[SW_KEY_BYTES],
                            const struct sw_frame_hello *hello,
                            const struct sw_frame_challenge *challenge,
                            unsigned char proof[SW_DIGEST_BYTES])
{
    const struct sw_part parts[] = {
        {"symwin maker", 12},
        {hello->nonce, sizeof hello->nonce},
        {challenge->nonce, sizeof challenge->nonce},
    };

    sw_hmac(secret, parts, 3, proof);
}

void sw_frame_prove_rank(const unsigned char secret[SW_KEY_BYTES],
                         const struct sw_frame_hello *hello,
                         const struct sw_frame_challenge *challenge,
                         const struct sw_frame_join *join, unsigned char proof[SW_DIGEST_BYTES])
{
    const struct sw_part parts[] = {
        {"symwin rank", 11},
        {hello->nonce, sizeof hello->nonce},
        {challenge->nonce, sizeof challenge->nonce},
        {join, offsetof(struct sw_frame_join, proof)},
    };

    sw_hmac(secret, parts, 4, proof);
}

int sw_socket_take_descriptors(int socket, int yes)
{
    return setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &yes, sizeof yes) == 0;
}

static int is_connected(int fd)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;

    return getpeername(fd, (struct sockaddr *)&peer, &size) == 0;
}

int sw_socket_is(int fd, int stream)
{
    int family = AF_UNSPEC, type = 0, listens = 1;
    socklen_t size = sizeof(int);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens)
        return 0;
    if (!stream && !is_connected(fd)) /* whoever shares it could make it listen later */
        return 0;
    return stream ? (family == AF_INET || family == AF_INET6) && type == SOCK_STREAM
                  : family == AF_UNIX && type == SOCK_SEQPACKET;
}

int sw_socket_same_user(int socket, pid_t *pid)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || bytes != sizeof peer)
        return 0;
    *pid = peer.pid;
    return peer.uid == geteuid();
}
