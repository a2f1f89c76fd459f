/* Hosts that read nothing for a while, and hosts that send without end; one of two is the test. All
 * frames arrive, in order, once a host reads, and sending does not wait for that. The send queue
 * has a bound. A host that sends without end does not keep the poll lock, and closing a connection
 * does not wait. */
#include "host_pair.h"

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
    int rank;

    *got = (struct got){0};
    while (got->last != type &&
           sw_connection_receive(&p->other, &frame, NULL, sw_now_ms() + SOON_MS) == 0) {
        got->last = frame.header.type;
        if (got->last == SW_FRAME_MESSAGE)
            got->messages += frame.message.number == (uint64_t)got->messages;
        else if (got->last == SW_FRAME_POST)
            got->posts += got->messages < MANY ? count_posts(&frame.post, &rank) : 0;
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
    p.group.exchange_hosts.send(&p.group, 0);
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

int main(void)
{
    struct harness_leaks before;

    harness_start();
    before = harness_leaks_now();
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
    harness_no_leaks("links", &before);
    return tap_done();
}
