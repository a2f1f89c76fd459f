/* The links of one host of two, in this process; the test is the other host. */
#ifndef SYMWIN_TESTS_HOST_PAIR_H
#define SYMWIN_TESTS_HOST_PAIR_H

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "harness.h"
#include "src/bootstrap/rendezvous.h"
#include "src/control/control.h"
#include "src/control/control_page.h"

enum { RANKS = 4, MORE_RANKS = 60, HOSTS = 2, SOON_MS = 5000, QUIET_MS = 60 };

/* Ranks 0 and 1 are on host 0, which decides, ranks 2 and 3 on host 1; or half of more ranks on
 * each. The group is one host's, in one process. */
struct pair {
    struct sw_group group;
    struct sw_connection other; /* the test's end of the connection */
    int fd;                     /* the group's end */
};

HARNESS_UNUSED void connect_pair(int fds[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof at;

    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &bytes) != 0 ||
        connect(fds[0], (struct sockaddr *)&at, sizeof at) != 0)
        abort();
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    if (fds[1] < 0 || fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0 ||
        fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0)
        abort();
}

HARNESS_UNUSED void pair_open_ranks(struct pair *p, int host, int ranks)
{
    static int where[MORE_RANKS];
    static atomic_int queued[MORE_RANKS];
    struct sw_connection channels[HOSTS] = {{.fd = -1}, {.fd = -1}};
    int fds[2], r;

    for (r = 0; r < ranks; r++)
        where[r] = r >= ranks / 2;
    *p = (struct pair){.group = {.nranks = ranks,
                                 .nlocal = ranks / 2,
                                 .leader = ranks / 2 * host,
                                 .process = host,
                                 .processes = HOSTS,
                                 .host = host,
                                 .hosts = HOSTS,
                                 .fan = HOSTS,
                                 .process_of = where,
                                 .host_of = where,
                                 .queued = queued,
                                 .exchange = sw_exchange_create(ranks)}};
    connect_pair(fds);
    p->fd = fds[0];
    if (p->group.exchange == NULL || !sw_host_link_create(&p->group) ||
        sw_connection_open(&channels[1 - host], fds[0], 1) != 0 ||
        sw_connection_open(&p->other, fds[1], 1) != 0)
        abort();
    sw_poll_lock();
    host_must(sw_host_link_start(&p->group, channels, sw_mailbox_forward), "sw_host_link_start");
    sw_poll_unlock();
}

HARNESS_UNUSED void pair_open(struct pair *p, int host)
{
    pair_open_ranks(p, host, RANKS);
}

HARNESS_UNUSED void pair_close(struct pair *p)
{
    sw_poll_lock();
    sw_host_link_stop(&p->group);
    sw_poll_unlock();
    sw_poll_settle();
    sw_connection_close(&p->other);
    sw_exchange_destroy(p->group.exchange);
}

HARNESS_UNUSED void say(struct pair *p, enum sw_frame_type type, int rank, uint64_t round)
{
    static const unsigned char nothing[SW_EXCHANGE_BYTES];
    union sw_frame frame;

    memset(&frame, 0, sizeof frame);
    if (type == SW_FRAME_POST) {
        frame.post.round = round;
        sw_frame_add_post(&frame.post, rank, nothing);
    } else if (type == SW_FRAME_MESSAGE) {
        frame.message.from = rank;
        frame.message.to = (int32_t)round;
    } else if (type == SW_FRAME_BEHIND) {
        frame.behind.rank = rank;
        frame.behind.calls = round;
    } else {
        frame.end.rank = rank;
        frame.end.status = type == SW_FRAME_END ? SYMWIN_ABORTED : SYMWIN_OK;
        if (type == SW_FRAME_END)
            snprintf(frame.end.text, sizeof frame.end.text, "why");
    }
    sw_frame_seal(&frame, type);
    if (sw_connection_send(&p->other, &frame, -1, sw_now_ms() + SOON_MS) != 0)
        abort();
}

/* How many posts a frame has; *last: of the last one the rank. */
HARNESS_UNUSED int count_posts(const struct sw_frame_post *frame, int *last)
{
    struct sw_post post;
    size_t at = 0;
    int count = 0;

    while (at < (size_t)frame->bytes && (at = sw_frame_next_post(frame, at, &post)) > 0) {
        *last = post.rank;
        count++;
    }
    return count;
}

/* The type of the next frame at the test's end; 0: none within `ms`. */
HARNESS_UNUSED int next_type(struct pair *p, int ms)
{
    union sw_frame frame;

    if (sw_connection_receive(&p->other, &frame, NULL, sw_now_ms() + ms) != 0)
        return 0;
    return frame.header.type;
}

#endif
