/* The sockets of the stand-in, which never block. Their ends close on exec. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "inside.h"

static struct sockaddr_in name_of(uint32_t address, uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr = {.s_addr = address}};
}

ncclResult_t tcp_own_address(uint32_t *address)
{
    const char *text = getenv("STAND_IN_ADDRESS");
    struct in_addr own;

    if (inet_pton(AF_INET, text != NULL ? text : "127.0.0.1", &own) != 1)
        return refuse(ncclInvalidArgument, "STAND_IN_ADDRESS=%s is no IPv4 address", text);
    *address = own.s_addr;
    return ncclSuccess;
}

/* Small messages go at once, since a rank waits for the answer. Each second the system asks a host
 * that says nothing whether it lives. */
static void set_options(int fd)
{
    const int on = 1, second = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof second);
}

int tcp_listen(uint32_t address, struct place *place)
{
    struct sockaddr_in name = name_of(address, 0);
    socklen_t bytes = sizeof name;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 &&
        listen(fd, SOMAXCONN) == 0 && getsockname(fd, (struct sockaddr *)&name, &bytes) == 0) {
        *place = (struct place){.address = address, .port = name.sin_port};
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

int tcp_accept(int listener)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0)
        set_options(fd);
    return fd;
}

int tcp_connect(const struct place *place)
{
    const struct sockaddr_in name = name_of(place->address, place->port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    set_options(fd);
    if (connect(fd, (const struct sockaddr *)&name, sizeof name) == 0 || errno == EINPROGRESS)
        return fd;
    close(fd);
    return -1;
}

/* Counts what a call has moved, and is what the functions below return. A connection that is still
 * being made says EAGAIN, too. */
static int progress(ssize_t some, size_t bytes, size_t *done)
{
    if (some > 0)
        *done += (size_t)some;
    else if (some == 0 || (errno != EAGAIN && errno != EINTR))
        return -1;
    return *done == bytes;
}

int tcp_send(int socket, const void *data, size_t bytes, size_t *done)
{
    if (*done == bytes)
        return 1;
    return progress(send(socket, (const char *)data + *done, bytes - *done, MSG_NOSIGNAL), bytes,
                    done);
}

int tcp_receive(int socket, void *data, size_t bytes, size_t *done)
{
    if (*done == bytes)
        return 1;
    return progress(recv(socket, (char *)data + *done, bytes - *done, 0), bytes, done);
}

/* A host that lives acknowledges what it is sent and asked, even if its ranks are slow. While a
 * stream is stuck the system asks at ever longer intervals, but never has the last answer been
 * longer ago than half of the time since the first. So TCP_USER_TIMEOUT, which counts from the
 * first, would take slow ranks for lost. */
static int is_silent(int socket)
{
    const uint64_t half = wait_most() / 2;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;

    return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_last_ack_recv > (half < 2000 ? 2000 : half);
}

int tcp_is_over(int socket)
{
    struct pollfd ask = {.fd = socket, .events = POLLRDHUP};

    return poll(&ask, 1, 0) > 0 || is_silent(socket);
}
