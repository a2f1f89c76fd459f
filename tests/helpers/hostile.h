/* Clients that connect to the listener of an id's creator and send frames by hand, right and wrong.
 *
 * The tests know the id's secret, so that they can make a right frame and then change one field. */
#ifndef SYMWIN_TESTS_HOSTILE_H
#define SYMWIN_TESTS_HOSTILE_H

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "processes.h"
#include "src/bootstrap/rendezvous.h"

enum { HOSTILE_WAIT_MS = 4000, HOSTILE_MOST_FDS = 200 };

/* One connection to the id's creator. */
struct hostile {
    int socket;
    struct sw_id id;
    union sw_frame hello, challenge;
};

HARNESS_UNUSED struct sockaddr_un hostile_address(const char *folder)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof address.sun_path, "%s%s", folder, SW_SOCKET_NAME);
    return address;
}

/* The socket; -1: the connection was refused. */
HARNESS_UNUSED int hostile_connect(const symwin_unique_id *id)
{
    struct sockaddr_un address;
    struct sw_id made;
    int fd, error;

    memcpy(&made, id, sizeof made);
    address = hostile_address(made.folder);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    do
        error = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (error != 0 && errno == EINTR);
    if (error == 0)
        return fd;
    close(fd);
    return -1;
}

HARNESS_UNUSED int hostile_begin(struct hostile *h, const symwin_unique_id *id)
{
    memset(h, 0, sizeof *h);
    memcpy(&h->id, id, sizeof h->id);
    h->socket = hostile_connect(id);
    sw_id_name(&h->id, h->hello.hello.name);
    memset(h->hello.hello.nonce, 0x5a, sizeof h->hello.hello.nonce);
    sw_frame_seal(&h->hello, SW_FRAME_HELLO);
    return h->socket >= 0;
}

/* Sends any bytes with descriptors. */
HARNESS_UNUSED int hostile_send_fds(int socket, const void *data, size_t bytes, const int *fds,
                                    int count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(HOSTILE_MOST_FDS * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    memset(&control, 0, sizeof control);
    if (count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, (size_t)count * sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* The same with the socket itself, `count` times. */
HARNESS_UNUSED int hostile_send(int socket, const void *data, size_t bytes, int count)
{
    int fds[HOSTILE_MOST_FDS];
    int i;

    for (i = 0; i < count; i++)
        fds[i] = socket;
    return hostile_send_fds(socket, data, bytes, fds, count);
}

/* The same with one descriptor. */
HARNESS_UNUSED int hostile_send_with(int socket, const void *data, size_t bytes, int fd)
{
    return hostile_send_fds(socket, data, bytes, &fd, 1);
}

/* A descriptor whose last close takes `seconds`: a connection to this process with unsent data that
 * nobody reads. The close ends early when *where is closed. */
HARNESS_UNUSED int hostile_lingering(int seconds, int *where)
{
    static char much[1 << 20];
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger linger = {1, seconds};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 2048;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof here;

    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&here, &size) != 0 ||
        connect(fd, (struct sockaddr *)&here, sizeof here) != 0) {
        perror("hostile_lingering");
        exit(1);
    }
    while (send(fd, much, sizeof much, MSG_DONTWAIT) > 0)
        ;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    *where = listener;
    return fd;
}

/* A descriptor whose last close takes `seconds`, whether or not it lingers: a local socket in which
 * a lingering one lies, behind more than the closer thread takes out. The close ends early when
 * *where is closed. */
HARNESS_UNUSED int hostile_slow(int seconds, int *where)
{
    const int lingering = hostile_lingering(seconds, where);
    int ends[2], i, sent;

    sent = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
    for (i = 0; i < 64 && sent; i++)
        sent = hostile_send(ends[0], "slow", 4, 0);
    if (!sent || !hostile_send_with(ends[0], "slow", 4, lingering)) {
        perror("hostile_slow");
        exit(1);
    }
    close(lingering);
    close(ends[0]);
    return ends[1];
}

/* Hands the closer thread one whose close takes long, until *where is closed, and waits until that
 * close has begun: the thread takes what waits in any order. Returns its number, which is free. */
HARNESS_UNUSED int hostile_occupy_closer(int seconds, int *where)
{
    const int fd = hostile_slow(seconds, where);
    const int64_t deadline = sw_now_ms() + 1000 * seconds;

    sw_closer_close(fd);
    while (fcntl(fd, F_GETFD) >= 0) {
        if (sw_now_ms() > deadline) {
            fprintf(stderr, "hostile_occupy_closer: the close has not begun\n");
            exit(1);
        }
        usleep(1000);
    }
    return fd;
}

HARNESS_UNUSED int hostile_send_frame(int socket, const union sw_frame *frame)
{
    return hostile_send(socket, frame, frame->header.bytes, 0);
}

/* Receives the answer: 0 and a frame, EPIPE if the connection is closed, or another errno. */
HARNESS_UNUSED int hostile_answer(int socket, union sw_frame *frame)
{
    struct sw_connection connection = {.fd = socket};

    return sw_connection_receive(&connection, frame, NULL, sw_now_ms() + HOSTILE_WAIT_MS);
}

/* Sends HELLO and receives the challenge. */
HARNESS_UNUSED int hostile_greet(struct hostile *h)
{
    return hostile_send_frame(h->socket, &h->hello) &&
           hostile_answer(h->socket, &h->challenge) == 0 &&
           h->challenge.header.type == SW_FRAME_CHALLENGE;
}

/* Connects by TCP or to the local socket, and sends HELLO and receives the challenge. */
HARNESS_UNUSED int hostile_meet(struct hostile *h, const symwin_unique_id *id, int by_tcp,
                                struct sw_connection *connection)
{
    const int64_t deadline = sw_now_ms() + HOSTILE_WAIT_MS;
    struct sockaddr_storage to;
    socklen_t bytes;

    if (!hostile_begin(h, id))
        return 0;
    if (by_tcp) {
        bytes = sw_id_address(&h->id, &to);
        close(h->socket);
        h->socket = socket(h->id.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(h->socket, (struct sockaddr *)&to, bytes) != 0)
            return 0;
    }
    if (sw_connection_open(connection, h->socket, by_tcp) != 0 ||
        sw_connection_send(connection, &h->hello, -1, deadline) != 0 ||
        sw_connection_receive(connection, &h->challenge, NULL, deadline) != 0 ||
        h->challenge.header.type != SW_FRAME_CHALLENGE)
        return 0;
    if (by_tcp)
        sw_connection_key(connection, 0, h->id.secret, &h->hello.hello, &h->challenge.challenge);
    return 1;
}

HARNESS_UNUSED void hostile_prove(const struct hostile *h, union sw_frame *join)
{
    sw_frame_prove_rank(h->id.secret, &h->hello.hello, &h->challenge.challenge, &join->join,
                        join->join.proof);
}

/* A right JOIN frame. */
HARNESS_UNUSED union sw_frame hostile_join(const struct hostile *h, int nranks, int rank)
{
    union sw_frame join;

    memset(&join, 0, sizeof join);
    host_must(sw_join_fill(&join.join, nranks, rank, 20000), "sw_join_fill");
    hostile_prove(h, &join);
    return join;
}

/* Whether the connection is closed without a frame. */
HARNESS_UNUSED int hostile_dropped(int socket)
{
    union sw_frame frame;

    return hostile_answer(socket, &frame) == EPIPE;
}

/* Whether a refusal with the status comes, and the connection is then closed. */
HARNESS_UNUSED int hostile_refused(int socket, symwin_status status)
{
    union sw_frame frame;

    return hostile_answer(socket, &frame) == 0 && frame.header.type == SW_FRAME_REFUSAL &&
           frame.refusal.status == (int)status && frame.refusal.text[0] != '\0' &&
           hostile_dropped(socket);
}

/* The whole life of a rank: create, reduce, destroy. */
HARNESS_UNUSED symwin_status hostile_job(struct processes *p, int rank)
{
    const int device = rank % harness_device_count();
    struct CUstream_st *stream = NULL;
    symwin_comm *comm = NULL;
    symwin_status status;
    uint32_t *word;

    status = processes_note(p, rank, processes_comm(p, rank, 20000, &comm));
    if (status != SYMWIN_OK)
        return status;
    word = host_alloc(device, sizeof *word);
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    host_put_u32(device, word, (uint32_t)rank + 1);
    host_must(symwin_allreduce(comm, word, word, 1, SYMWIN_U32, SYMWIN_SUM, stream), "all-reduce");
    host_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    host_must(symwin_comm_check(comm), "symwin_comm_check");
    if (host_get_u32(device, word) != (uint32_t)(p->count * (p->count + 1) / 2)) {
        fprintf(stderr, "rank %d: a wrong sum\n", rank);
        tap_failures++;
    }
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(word), "symwin_mem_free");
    return SYMWIN_OK;
}

HARNESS_UNUSED void hostile_wait_for_id(struct processes *p)
{
    unsigned slept = 0;

    while (!p->id_made)
        nap(&slept);
}

#endif
