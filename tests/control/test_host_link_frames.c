/* Frames between two hosts, of which one is the test. A host is believed about its own ranks only.
 * The deciding host sends all completed rounds before an end. A connection detects that the other
 * host is gone. The send queue has a bound, and no forked child has a connection. A host that sends
 * without end does not keep the poll lock, and closing a connection does not wait. Nor does sending
 * to a host that reads nothing: all frames arrive, in order, once it reads. */
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

enum { RANKS = 4, HOSTS = 2, SOON_MS = 5000, QUIET_MS = 60 };

/* Ranks 0 and 1 are on host 0, which decides, ranks 2 and 3 on host 1. The group is one host's, in
 * one process. */
struct pair {
    struct sw_group group;
    struct sw_connection other; /* the test's end of the connection */
    int fd;                     /* the group's end */
};

static void connect_pair(int fds[2])
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

static void pair_open(struct pair *p, int host)
{
    static uint16_t where[RANKS] = {0, 0, 1, 1};
    static atomic_int queued[RANKS];
    struct sw_connection channels[HOSTS] = {{.fd = -1}, {.fd = -1}};
    int fds[2];

    *p = (struct pair){.group = {.nranks = RANKS,
                                 .nlocal = 2,
                                 .leader = 2 * host,
                                 .process = host,
                                 .processes = HOSTS,
                                 .host = host,
                                 .hosts = HOSTS,
                                 .process_of = where,
                                 .host_of = where,
                                 .queued = queued,
                                 .exchange = sw_exchange_create(RANKS)}};
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

static void pair_close(struct pair *p)
{
    sw_poll_lock();
    sw_host_link_stop(&p->group);
    sw_poll_unlock();
    sw_poll_settle();
    sw_connection_close(&p->other);
    sw_exchange_destroy(p->group.exchange);
}

static void say(struct pair *p, enum sw_frame_type type, int rank, uint64_t round)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame);
    if (type == SW_FRAME_POST) {
        frame.post.rank = rank;
        frame.post.round = round;
        frame.post.bytes = 8;
    } else if (type == SW_FRAME_MESSAGE) {
        frame.message.from = rank;
        frame.message.to = (int32_t)round;
    } else {
        frame.end.rank = rank;
        frame.end.status = type == SW_FRAME_END ? SYMWIN_ABORTED : SYMWIN_OK;
    }
    sw_frame_seal(&frame, type);
    if (sw_connection_send(&p->other, &frame, -1, sw_now_ms() + SOON_MS) != 0)
        abort();
}

/* ---- which frames are accepted ---- */

static const struct claim {
    const char *name;
    int host; /* the group's */
    enum sw_frame_type type;
    int rank;
    uint64_t round;       /* of a message: the rank that it is sent to */
    symwin_status status; /* the end of the exchange; OK: it goes on */
    int culprit;
} claims[] = {
    {"host 0: a post of rank 2", 0, SW_FRAME_POST, 2, 0, SYMWIN_OK, 0},
    {"host 0: a post of its own rank 1", 0, SW_FRAME_POST, 1, 0, SYMWIN_PEER_LOST, 2},
    {"host 0: a post of a rank that is not there", 0, SW_FRAME_POST, 4, 0, SYMWIN_PEER_LOST, 2},
    {"host 0: a post of a later round", 0, SW_FRAME_POST, 2, 1, SYMWIN_PEER_LOST, 2},
    {"host 0: its own rank 0 leaves", 0, SW_FRAME_LEAVE, 0, 0, SYMWIN_PEER_LOST, 2},
    {"host 0: a message of rank 2 to rank 3, on its host", 0, SW_FRAME_MESSAGE, 2, 3,
     SYMWIN_PEER_LOST, 2},
    {"host 0: a message of rank 2 to a rank that is not there", 0, SW_FRAME_MESSAGE, 2, 4,
     SYMWIN_PEER_LOST, 2},
    {"host 0: an end that blames rank 3", 0, SW_FRAME_END, 3, 0, SYMWIN_ABORTED, 3},
    {"host 0: an end that blames nobody", 0, SW_FRAME_END, SW_NOBODY, 0, SYMWIN_ABORTED, SW_NOBODY},
    {"host 0: one that blames whom there is not", 0, SW_FRAME_END, 4, 0, SYMWIN_PEER_LOST, 2},
    {"host 1: a post of rank 1", 1, SW_FRAME_POST, 1, 0, SYMWIN_OK, 0},
    {"host 1: a post of its own rank 2", 1, SW_FRAME_POST, 2, 0, SYMWIN_PEER_LOST, 0},
    {"host 1: a post of a later round", 1, SW_FRAME_POST, 0, 7, SYMWIN_PEER_LOST, 0},
    {"host 1: its own rank 3 leaves", 1, SW_FRAME_LEAVE, 3, 0, SYMWIN_PEER_LOST, 0},
    {"host 1: an end that blames rank 2", 1, SW_FRAME_END, 2, 0, SYMWIN_ABORTED, 2},
    {"host 1: one that blames whom there is not", 1, SW_FRAME_END, 4095 - 1, 0, SYMWIN_PEER_LOST,
     0},
};

static void test_claim(const struct claim *c)
{
    const int64_t end = sw_now_ms() + SOON_MS;
    const int posts = c->type == SW_FRAME_POST && c->status == SYMWIN_OK;
    symwin_status status = SYMWIN_OK;
    int ended = 0, culprit = 0;
    uint64_t rounds = 0;
    struct pair p;

    pair_open(&p, c->host);
    say(&p, c->type, c->rank, c->round);
    while (!ended && rounds == 0 && sw_now_ms() < end) {
        host_pause_ms(1);
        ended = sw_exchange_outcome(p.group.exchange, &status, &culprit);
        rounds = c->rank < RANKS ? sw_exchange_rounds(p.group.exchange, c->rank) : 0;
    }
    tap_ok(rounds == (uint64_t)posts && ended == (c->status != SYMWIN_OK) && status == c->status &&
               (!ended || culprit == c->culprit),
           "%s: %s, rank %d", c->name, symwin_status_name(status), culprit);
    pair_close(&p);
}

/* A rank posts once for a round, and for the next one only when this one is complete. Two posts
 * count as those of two ranks. */
static void test_second_post(int host, int rank, uint64_t round)
{
    symwin_status status = SYMWIN_OK;
    int turns = 0, culprit = -1;
    struct pair p;

    pair_open(&p, host);
    say(&p, SW_FRAME_POST, rank, 0);
    say(&p, SW_FRAME_POST, rank, round);
    while (!sw_exchange_outcome(p.group.exchange, &status, &culprit) &&
           sw_exchange_rounds(p.group.exchange, rank) < 2 && turns++ < SOON_MS)
        host_pause_ms(1);
    tap_ok(status == SYMWIN_PEER_LOST && culprit == 2 - 2 * host &&
               sw_exchange_rounds(p.group.exchange, rank) == 1,
           "host %d: a second post, of round %d: %s, rank %d", host, (int)round,
           symwin_status_name(status), culprit);
    pair_close(&p);
}

/* Ranks that have left close their connection in order. */
static void test_left_and_closed(int host)
{
    const int first = host == 0 ? 2 : 0; /* of the other host */
    symwin_status status = SYMWIN_OK;
    int turns = 0, culprit = -1, watched = 1;
    struct pair p;

    pair_open(&p, host);
    say(&p, SW_FRAME_LEAVE, first, 0);
    say(&p, SW_FRAME_LEAVE, first + 1, 0);
    shutdown(p.other.fd, SHUT_WR);
    while (watched && turns++ < SOON_MS) {
        host_pause_ms(1);
        sw_poll_lock();
        watched = p.group.links[1 - host].watch.id != 0;
        sw_poll_unlock();
    }
    tap_ok(!watched && !sw_exchange_outcome(p.group.exchange, &status, &culprit),
           "host %d: the other one has left: %s, rank %d", host, symwin_status_name(status),
           culprit);
    pair_close(&p);
}

/* A message from another host is forwarded to a third one only by the host that decides. */
static void test_forwarded(void)
{
    enum { THREE = 3 };
    static uint16_t where[THREE] = {0, 1, 2};
    static atomic_int queued[THREE];
    static const struct {
        int host, from, to, valid;
    } rows[] = {{0, 1, 2, 1}, {1, 0, 2, 0}, {1, 2, 0, 0}, {2, 0, 1, 0}};
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct sw_frame_message words = {
            .from = rows[i].from, .to = rows[i].to, .kind = SW_MESSAGE_GONE};
        struct sw_group group = {.nranks = THREE,
                                 .process = rows[i].host,
                                 .processes = THREE,
                                 .host = rows[i].host,
                                 .hosts = THREE,
                                 .process_of = where,
                                 .host_of = where,
                                 .queued = queued,
                                 .exchange = sw_exchange_create(THREE)};
        int valid, h;

        if (group.exchange == NULL || !sw_host_link_create(&group))
            abort();
        for (h = 0; h < THREE; h++) /* not connected */
            group.links[h].group = &group;
        sw_poll_lock();
        valid = sw_mailbox_forward(&group, &words);
        sw_host_link_stop(&group);
        sw_poll_unlock();
        tap_ok(valid == rows[i].valid, "host %d %s a message of host %d to host %d", rows[i].host,
               valid ? "forwards" : "refuses", rows[i].from, rows[i].to);
        sw_exchange_destroy(group.exchange);
    }
}

/* ---- which frames are sent ---- */

/* The type of the next frame at the test's end; 0: none within `ms`. */
static int next_type(struct pair *p, int ms)
{
    union sw_frame frame;

    if (sw_connection_receive(&p->other, &frame, NULL, sw_now_ms() + ms) != 0)
        return 0;
    return frame.header.type;
}

/* An end comes when host 0 has completed a round but not sent it. Without the round, host 1 could
 * not complete it any more. */
static void test_end_in_order(void)
{
    const uint64_t nothing = 0;
    struct pair p;
    int r, posts = 0, type;

    pair_open(&p, 0);
    for (r = 0; r < RANKS; r++)
        sw_exchange_post(p.group.exchange, r, 0, &nothing, sizeof nothing);
    sw_exchange_fail(p.group.exchange, SYMWIN_ABORTED, 1);
    sw_host_link_end(&p.group);
    TAP_EQ("no end before the posts of a round that is complete", next_type(&p, QUIET_MS), 0);
    p.group.exchange_hosts.send(&p.group, 0, sizeof nothing);
    while ((type = next_type(&p, SOON_MS)) == SW_FRAME_POST)
        posts++;
    TAP_EQ("the posts of host 0's ranks", posts, 2);
    TAP_EQ("and then the end", type, SW_FRAME_END);
    pair_close(&p);
}

/* A round is complete on host 0, and its posts wait for room. Rank 0 hears of an end in the next
 * round and calls once more. Host 1 gets what rank 0 had posted. */
static void test_post_stays(void)
{
    const uint64_t first = 1, second = 2, third = 3;
    union sw_frame frame;
    struct pair p;
    int r, error;

    pair_open(&p, 0);
    pthread_mutex_lock(&p.group.links[1].mutex);
    for (r = 0; r < RANKS; r++)
        sw_exchange_post(p.group.exchange, r, 0, &first, sizeof first);
    p.group.exchange_hosts.send(&p.group, 0, sizeof first);
    sw_exchange_post(p.group.exchange, 0, 1, &second, sizeof second);
    sw_exchange_fail(p.group.exchange, SYMWIN_ABORTED, 1);
    TAP_EQ("no post after the end", sw_exchange_post(p.group.exchange, 0, 2, &third, sizeof third),
           0);
    pthread_mutex_unlock(&p.group.links[1].mutex);
    sw_host_link_end(&p.group);
    error = sw_connection_receive(&p.other, &frame, NULL, sw_now_ms() + SOON_MS);
    tap_ok(error == 0 && frame.header.type == SW_FRAME_POST && frame.post.rank == 0 &&
               memcmp(frame.post.data, &first, sizeof first) == 0,
           "a post that waited is sent as it was made");
    pair_close(&p);
}

/* A host that is asked answers, and what it is sent shows that the other one runs. */
static void test_asked(int host)
{
    struct control_page *page;
    struct pair p;

    pair_open(&p, host);
    page = p.group.exchange->page;
    tap_ok(atomic_load(&page->slots[2 - 2 * host].heard) == 0, "nothing is heard at first");
    say(&p, SW_FRAME_ASK, 0, 0);
    TAP_EQ("ASK is answered", next_type(&p, SOON_MS), SW_FRAME_WELL);
    tap_ok(atomic_load(&page->slots[2 - 2 * host].heard) != 0, "host %d is heard", 1 - host);
    pair_close(&p);
}

/* What the other host has told is not told to it. */
static void test_told_leave(void)
{
    int turns = 0;
    struct pair p;

    pair_open(&p, 0);
    say(&p, SW_FRAME_LEAVE, 2, 0);
    while (!sw_exchange_has_left(p.group.exchange, 2) && turns++ < SOON_MS)
        host_pause_ms(1);
    tap_ok(sw_exchange_has_left(p.group.exchange, 2) && next_type(&p, QUIET_MS) == 0,
           "a leave is not told to the host that it came from");
    pair_close(&p);
}

/* A rank that leaves is told to the other host, unless it has said so itself. */
static void test_leave_is_told(int host)
{
    const int rank = 2 * host;
    struct pair p;

    pair_open(&p, host);
    sw_host_link_leave(&p.group, rank, 1 - host);
    TAP_EQ("a leave is not sent back", next_type(&p, QUIET_MS), 0);
    sw_host_link_leave(&p.group, rank, host);
    TAP_EQ("a leave is told to the other host", next_type(&p, SOON_MS), SW_FRAME_LEAVE);
    pair_close(&p);
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t bytes = sizeof value;

    return getsockopt(fd, level, name, &value, &bytes) == 0 ? value : -1;
}

/* A host that vanishes without a word: the system probes after 5 s of silence, and gives up within
 * 15 s. */
static void test_keepalive(void)
{
    struct pair p;

    pair_open(&p, 0);
    TAP_EQ("the system looks after silent connections", option(p.fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    tap_ok(option(p.fd, IPPROTO_TCP, TCP_KEEPIDLE) + option(p.fd, IPPROTO_TCP, TCP_KEEPINTVL) *
                                                         option(p.fd, IPPROTO_TCP, TCP_KEEPCNT) <=
               15,
           "and finds them dead in 15 s");
    tap_ok(option(p.fd, IPPROTO_TCP, TCP_USER_TIMEOUT) > 0 &&
               option(p.fd, IPPROTO_TCP, TCP_USER_TIMEOUT) <= 15000,
           "those where something was sent too");
    pair_close(&p);
}

/* Messages that wait because another thread holds the link's lock: of each rank as many as channels
 * may need. One more ends the exchange, and its rank is named. */
static void test_messages(int culprit)
{
    struct sw_frame_message words = {.to = 3, .kind = SW_MESSAGE_GONE};
    symwin_status status = SYMWIN_OK;
    int queued = 0, named = -1, i, too_many;
    struct pair p;

    pair_open(&p, 0);
    sw_poll_lock();
    pthread_mutex_lock(&p.group.links[1].mutex);
    for (i = 0; i < 2 * SW_MOST_MESSAGES; i++) {
        words.from = i / SW_MOST_MESSAGES;
        queued += sw_host_link_message(&p.group, 1, &words);
    }
    tap_ok(queued == i && !sw_exchange_ended(p.group.exchange), "%d messages of two ranks wait",
           queued);
    words.from = culprit;
    too_many = !sw_host_link_message(&p.group, 1, &words);
    (void)sw_exchange_outcome(p.group.exchange, &status, &named);
    tap_ok(too_many && status == SYMWIN_MISMATCH && named == culprit,
           "one more of rank %d is too many: %s, rank %d", culprit, symwin_status_name(status),
           named);
    TAP_EQ("after the end it is dropped", sw_host_link_message(&p.group, 1, &words), 1);
    pthread_mutex_unlock(&p.group.links[1].mutex);
    sw_poll_unlock();
    pair_close(&p);
}

/* ---- a host that reads nothing for a while ---- */

enum { MANY = 3000 }; /* messages: more than fit into the connection, fewer than may be queued */

/* A pair with rank 1's messages 0, 1, ... to rank 2, sent under the poll lock as the poll thread
 * does. Returns for how long. */
static int64_t pair_open_full(struct pair *p)
{
    const int64_t begin = sw_now_ms();
    const int bytes = 1 << 16;
    struct sw_frame_message words;
    union sw_frame frame;
    int i;

    pair_open(p, 0);
    if (setsockopt(p->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0)
        abort();
    memset(&frame, 0, sizeof frame.message);
    sw_frame_seal(&frame, SW_FRAME_MESSAGE);
    words = frame.message;
    words.from = 1;
    words.to = 2;
    sw_poll_lock();
    for (i = 0; i < MANY; i++) {
        words.number = (uint64_t)i;
        (void)sw_host_link_message(&p->group, 1, &words);
    }
    sw_poll_unlock();
    return sw_now_ms() - begin;
}

/* What the other host got. */
struct got {
    int messages; /* those in order */
    int posts;    /* before the last message */
    int last;     /* type of the last frame */
};

/* Reads until there is a frame of that type, or none within SOON_MS. */
static void read_until(struct pair *p, int type, struct got *got)
{
    union sw_frame frame;

    *got = (struct got){0};
    while (got->last != type &&
           sw_connection_receive(&p->other, &frame, NULL, sw_now_ms() + SOON_MS) == 0) {
        got->last = frame.header.type;
        if (got->last == SW_FRAME_MESSAGE)
            got->messages += frame.message.number == (uint64_t)got->messages;
        else if (got->last == SW_FRAME_POST)
            got->posts += got->messages < MANY;
    }
}

/* Posts overtake messages that wait, a leave does not. */
static void test_slow_reader(void)
{
    enum { PAUSE_MS = 300, AT_ONCE_MS = 1000 };
    const uint64_t nothing = 0;
    int64_t worst, begin, spent;
    struct got got;
    struct pair p;
    int r;

    spent = pair_open_full(&p);
    begin = sw_now_ms();
    for (r = 0; r < RANKS; r++)
        sw_exchange_post(p.group.exchange, r, 0, &nothing, sizeof nothing);
    p.group.exchange_hosts.send(&p.group, 0, sizeof nothing);
    sw_host_link_leave(&p.group, 1, -1);
    spent += sw_now_ms() - begin;
    tap_ok(spent < AT_ONCE_MS, "who sends to a host that reads nothing goes on in %lld ms",
           (long long)spent);
    worst = host_longest_lock_ms(20);
    host_pause_ms(PAUSE_MS);
    tap_ok(worst < AT_ONCE_MS && !sw_exchange_ended(p.group.exchange),
           "a host that reads nothing for a while is not lost; lock in %lld ms", (long long)worst);
    read_until(&p, SW_FRAME_LEAVE, &got);
    TAP_EQ("it then gets all messages in order", got.messages, MANY);
    TAP_EQ("before their last one the posts", got.posts, 2);
    TAP_EQ("and then the leave", got.last, SW_FRAME_LEAVE);
    pair_close(&p);
}

/* A rank needs not wait for room, whatever its deadline: channels never need more than there is. */
static void test_room(void)
{
    const struct sw_frame_message words = {.from = 1, .to = 2, .number = MANY};
    struct got got;
    struct pair p;

    (void)pair_open_full(&p);
    TAP_EQ("one more is queued, past the deadline", sw_mailbox_try(&p.group, &words, -1, 0, 0), 0);
    sw_host_link_leave(&p.group, 1, -1);
    read_until(&p, SW_FRAME_LEAVE, &got);
    tap_ok(got.messages == MANY + 1 && !sw_exchange_ended(p.group.exchange),
           "nothing has ended, and %d messages arrive", got.messages);
    TAP_EQ("another one, when all are sent", sw_mailbox_try(&p.group, &words, -1, 0, 0), 0);
    TAP_EQ("arrives too", next_type(&p, SOON_MS), SW_FRAME_MESSAGE);
    pair_close(&p);
}

/* The other host has gone. What is sent to it is dropped, and the link says who is lost. */
static void test_queue_of_a_lost_link(void)
{
    const struct sw_frame_message words = {.from = 1, .to = 3};
    symwin_status status = SYMWIN_OK;
    int64_t begin;
    int i, error = 0, culprit = -1;
    struct pair p;

    (void)pair_open_full(&p);
    sw_connection_close(&p.other);
    begin = sw_now_ms();
    for (i = 0; i < SW_MOST_MESSAGES && error == 0; i++)
        error = sw_mailbox_try(&p.group, &words, -1, 0, begin + SOON_MS);
    while (!sw_exchange_outcome(p.group.exchange, &status, &culprit) &&
           sw_now_ms() < begin + SOON_MS)
        host_pause_ms(1);
    tap_ok(error == 0 && status == SYMWIN_PEER_LOST && culprit == 2,
           "%d messages into a lost link: %s, rank %d", i, symwin_status_name(status), culprit);
    pair_close(&p);
}

static void test_end_overtakes_messages(void)
{
    struct got got;
    struct pair p;

    (void)pair_open_full(&p);
    sw_exchange_fail(p.group.exchange, SYMWIN_ABORTED, 1);
    sw_host_link_end(&p.group);
    read_until(&p, SW_FRAME_END, &got);
    tap_ok(got.last == SW_FRAME_END && got.messages < MANY,
           "an end comes before the rest of the messages: %d of %d", got.messages, MANY);
    pair_close(&p);
}

static void *read_late(void *arg)
{
    struct got *got = calloc(1, sizeof *got);

    host_pause_ms(QUIET_MS);
    read_until(arg, SW_FRAME_LEAVE, got);
    return got;
}

/* The last rank of a process leaves. It waits for a host that reads late, and not for ever for one
 * that does not read. */
static void test_last_leave(int reads)
{
    enum { BOUND_MS = 4000 };
    struct got *got = NULL;
    int64_t begin;
    pthread_t reader;
    struct pair p;

    (void)pair_open_full(&p);
    if (reads && pthread_create(&reader, NULL, read_late, &p) != 0)
        abort();
    begin = sw_now_ms();
    sw_host_link_leave(&p.group, 1, -1);
    sw_host_link_settle(&p.group);
    begin = sw_now_ms() - begin;
    sw_poll_lock();
    shutdown(p.fd, SHUT_WR);
    sw_poll_unlock();
    if (reads)
        pthread_join(reader, (void **)&got);
    tap_ok(begin < BOUND_MS && (!reads || (got->messages == MANY && got->last == SW_FRAME_LEAVE)),
           "the last leave takes %lld ms with a host that reads %s", (long long)begin,
           reads ? "late" : "nothing");
    free(got);
    pair_close(&p);
}

static void *leave_and_settle(void *arg)
{
    sw_host_link_leave(arg, 1, -1);
    sw_host_link_settle(arg);
    return NULL;
}

/* This thread's turn ends just when the last rank leaves: it sees no news any more, and the rank
 * waits for its lock. */
static void test_last_leave_meets_a_turn(void)
{
    struct sw_host_link *link;
    pthread_t leaver;
    struct pair p;

    pair_open(&p, 0);
    link = &p.group.links[1];
    pthread_mutex_lock(&link->mutex);
    if (pthread_create(&leaver, NULL, leave_and_settle, &p.group) != 0)
        abort();
    while (!atomic_load(&link->news))
        host_pause_ms(1);
    host_pause_ms(QUIET_MS); /* it comes to the lock */
    pthread_mutex_unlock(&link->mutex);
    pthread_join(leaver, NULL);
    TAP_EQ("the last leave is sent though another thread was sending", next_type(&p, SOON_MS),
           SW_FRAME_LEAVE);
    pair_close(&p);
}

/* The socket has taken everything, but the other host reads late: what it has not acknowledged is
 * waited for. If it is gone, nobody is. */
static void test_last_leave_arrives(int gone)
{
    enum { TIMES = 500, GONE_MS = 1000 };
    const struct sw_frame_message words = {.from = 1, .to = 2};
    struct got *got = NULL;
    int64_t begin;
    const int much = 1 << 20;
    int i, bytes = 0, left;
    pthread_t reader;
    struct pair p;

    pair_open(&p, 0);
    setsockopt(p.fd, SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
    for (i = 0; i < TIMES; i++)
        (void)sw_mailbox_try(&p.group, &words, -1, 0, 0);
    sw_host_link_leave(&p.group, 1, -1);
    pthread_mutex_lock(&p.group.links[1].mutex);
    left = p.group.links[1].left;
    pthread_mutex_unlock(&p.group.links[1].mutex);
    (void)ioctl(p.fd, SIOCOUTQ, &bytes);
    tap_ok(!left && bytes > 0, "%d bytes are in the socket", bytes);
    if (gone)
        sw_connection_close(&p.other);
    else if (pthread_create(&reader, NULL, read_late, &p) != 0)
        abort();
    begin = sw_now_ms();
    sw_host_link_settle(&p.group);
    (void)ioctl(p.fd, SIOCOUTQ, &bytes);
    tap_ok(gone ? sw_now_ms() - begin < GONE_MS : bytes == 0,
           "the last leave of a process: %d bytes left after %lld ms, the other host %s", bytes,
           (long long)(sw_now_ms() - begin), gone ? "gone" : "reads late");
    if (!gone)
        pthread_join(reader, (void **)&got);
    free(got);
    pair_close(&p);
}

/* ---- a host that sends a lot ---- */

/* Whenever a frame is read from one, the other sends one. */
static atomic_int flooded = -1, flooder = -1;
static union sw_frame well;
static atomic_llong flood_end; /* until this time */
static atomic_int frames;

/* Replaces the C library's. */
ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    if (fd == flooded && bytes == sizeof well.header && sw_now_ms() < flood_end) {
        frames++;
        (void)send(flooder, &well, sizeof well.header, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    return syscall(SYS_recvfrom, fd, data, bytes, flags, NULL, NULL);
}

/* The flood ends after FLOOD_MS. Others get the lock before that. */
static void test_flood(void)
{
    enum { FLOOD_MS = 3000, TIMES = 20 };
    int64_t worst;
    struct pair p;

    pair_open(&p, 0);
    sw_frame_seal(&well, SW_FRAME_WELL);
    sw_poll_lock();
    flooded = p.fd;
    flooder = p.other.fd;
    flood_end = sw_now_ms() + FLOOD_MS;
    say(&p, SW_FRAME_WELL, 0, 0);
    sw_poll_unlock();
    while (frames == 0)
        host_pause_ms(1);
    worst = host_longest_lock_ms(TIMES);
    tap_ok(sw_now_ms() < flood_end, "a flood: others get the lock within %lld ms",
           (long long)worst);
    sw_poll_lock();
    flooded = -1;
    sw_poll_unlock();
    tap_ok(!sw_exchange_ended(p.group.exchange), "a flood is no fault");
    pair_close(&p);
}

/* The other end closes after many frames. The last one before the end counts. */
static void test_many_then_the_end(void)
{
    enum { FRAMES = 5000 };
    symwin_status status = SYMWIN_OK;
    int turns = 0, culprit = 0, i;
    struct pair p;

    pair_open(&p, 0);
    sw_poll_lock();
    for (i = 0; i < FRAMES; i++)
        say(&p, SW_FRAME_WELL, 0, 0);
    say(&p, SW_FRAME_POST, 2, 0);
    shutdown(p.other.fd, SHUT_WR);
    sw_poll_unlock();
    while (!sw_exchange_outcome(p.group.exchange, &status, &culprit) && turns++ < SOON_MS)
        host_pause_ms(1);
    tap_ok(status == SYMWIN_PEER_LOST && sw_exchange_rounds(p.group.exchange, 2) == 1,
           "%d frames, a post and the end: %s, with the post", FRAMES, symwin_status_name(status));
    pair_close(&p);
}

/* The process that passed the connection to this one shares it. It makes it linger, while the other
 * host does not read. */
static void test_lingering(void)
{
    enum { LINGER_S = 10, SOON_TO_STOP_MS = 1000 };
    const struct linger linger = {1, LINGER_S};
    static char much[1 << 20];
    int64_t begin;
    struct pair p;

    pair_open(&p, 0);
    while (send(p.fd, much, sizeof much, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    setsockopt(p.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    begin = sw_now_ms();
    pair_close(&p);
    tap_ok(sw_now_ms() - begin < SOON_TO_STOP_MS, "a link that lingers is closed in %lld ms",
           (long long)(sw_now_ms() - begin));
}

static int child_has(int fd)
{
    const pid_t child = fork();
    int status = -1;

    if (child == 0)
        _exit(fcntl(fd, F_GETFD) >= 0);
    waitpid(child, &status, 0);
    return status != 0;
}

static void test_forks(void)
{
    symwin_status status = SYMWIN_OK;
    int turns = 0, culprit = 0;
    struct pair p;

    pair_open(&p, 0);
    TAP_EQ("a forked child has the connection", child_has(p.fd), 0);
    shutdown(p.other.fd, SHUT_RDWR);
    while (!sw_exchange_outcome(p.group.exchange, &status, &culprit) && turns++ < SOON_MS)
        host_pause_ms(1);
    TAP_EQ("the other end is gone", status, SYMWIN_PEER_LOST);
    TAP_EQ("a forked child has the lost connection", child_has(p.fd), 0);
    pair_close(&p);
}

int main(void)
{
    struct harness_leaks before;
    size_t i;

    harness_start();
    before = harness_leaks_now();
    for (i = 0; i < sizeof claims / sizeof claims[0]; i++)
        test_claim(&claims[i]);
    for (i = 0; i < 2; i++) {
        test_second_post(0, 2, i);
        test_second_post(1, 1, i);
        test_left_and_closed((int)i);
        test_leave_is_told((int)i);
        test_asked((int)i);
    }
    test_told_leave();
    test_forwarded();
    test_end_in_order();
    test_post_stays();
    test_keepalive();
    test_messages(0);
    test_messages(1);
    test_slow_reader();
    test_room();
    test_queue_of_a_lost_link();
    test_end_overtakes_messages();
    test_last_leave(1);
    test_last_leave(0);
    test_last_leave_meets_a_turn();
    test_last_leave_arrives(0);
    test_last_leave_arrives(1);
    test_flood();
    test_many_then_the_end();
    test_lingering();
    test_forks();
    harness_no_leaks("links", &before);
    return tap_done();
}
