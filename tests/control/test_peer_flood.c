/* Another process that sends more than is read in one turn. Others get the poll lock between two
 * turns, the next turns read the rest, and the end comes after it. The test is the other process.
 * The kernel gives it frames without end: recvmsg() leaves a frame where it is. */
#include <pthread.h>
#include <sys/syscall.h>

#include "peer.h"

/* Ranks 0 and 1 are in this process, rank 2 in the other. Rank 1 has left. */
enum { RANKS = 3, HERE = 0, GONE = 1, OTHER = 2 };
/* MOST: no turn may read more frames. MORE: takes several turns. */
enum { MOST = 4096, MORE = 3 * MOST, FLOOD_MS = 5000, SOON_MS = 5000 };

static atomic_int flooded = -1; /* this socket's first frame is read again and again: */
static atomic_llong repeats;    /* this often, */
static atomic_llong flood_end;  /* at most until this time */
static atomic_int read_us;      /* how long it takes to read a frame */
static atomic_llong frames;     /* that were read from it */

/* Replaces the C library's. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    const int again = fd == flooded && repeats > 0 && sw_now_ms() < flood_end;
    ssize_t got;

    if (fd == flooded && read_us > 0)
        usleep((useconds_t)read_us);
    got = syscall(SYS_recvmsg, fd, message, flags | (again ? MSG_PEEK : 0));
    if (fd == flooded && got > 0) {
        frames++;
        repeats -= again;
    }
    return got;
}

static void flood(int fd, long long times)
{
    flooded = fd;
    frames = 0;
    repeats = times;
    flood_end = sw_now_ms() + FLOOD_MS;
}

static struct sw_group *group_open(int *other)
{
    struct sw_group *group = peer_group(RANKS, OTHER, other);

    sw_group_leave(group, GONE);
    return group;
}

/* `other` is -1 if it is closed. */
static void group_close(struct sw_group *group, int other)
{
    flooded = -1;
    sw_group_leave(group, HERE);
    if (other >= 0)
        close(other);
}

static void send_message(int other, int to)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.message);
    frame.message.from = OTHER;
    frame.message.to = to;
    frame.message.kind = SW_MESSAGE_GONE;
    sw_frame_seal(&frame, SW_FRAME_MESSAGE);
    if (sw_frame_send(other, &frame, -1, sw_now_ms() + SOON_MS) != 0)
        abort();
}

static int read_once(struct sw_group *group)
{
    return sw_mailbox_read(group->sockets[1]);
}

/* One turn, and that the next turns read the rest. */
static void test_turn(void)
{
    const int64_t end = sw_now_ms() + SOON_MS;
    struct sw_group *group;
    long long first;
    int other;

    group = group_open(&other);
    sw_poll_lock();
    send_message(other, GONE);
    flood(group->sockets[1]->watch.fd, MORE);
    (void)read_once(group);
    first = frames;
    sw_poll_unlock();
    tap_ok(first > 0 && first <= MOST, "%lld frames of %d are read in a turn", first, MORE + 1);
    while (frames <= MORE && sw_now_ms() < end)
        host_pause_ms(1);
    TAP_EQ("all are read", (long)frames, MORE + 1);
    tap_ok(!sw_exchange_ended(group->exchange), "frames to a rank that has left are no fault");
    group_close(group, other);
}

/* Frames whose reading takes long, as if each was forwarded to a process that reads slowly. */
static void test_slow_turn(void)
{
    enum { EACH_MS = 10, MOST_MS = 1000 };
    struct sw_group *group;
    int64_t begin, took;
    int other;

    group = group_open(&other);
    sw_poll_lock();
    send_message(other, GONE);
    flood(group->sockets[1]->watch.fd, 2 * MOST_MS / EACH_MS);
    read_us = 1000 * EACH_MS;
    begin = sw_now_ms();
    (void)read_once(group);
    took = sw_now_ms() - begin;
    read_us = 0;
    sw_poll_unlock();
    tap_ok(took < MOST_MS, "a turn of slow frames takes %lld ms", (long long)took);
    group_close(group, other);
}

/* While the flood lasts, others get the lock and destroy another communicator. */
static void test_lock(void)
{
    enum { TIMES = 20 };
    struct sw_group *group, *second;
    int64_t begin, worst;
    int other, other_second;

    group = group_open(&other);
    second = group_open(&other_second);
    flood(group->sockets[1]->watch.fd, INT64_MAX);
    send_message(other, GONE);
    while (frames == 0)
        host_pause_ms(1);
    worst = host_longest_lock_ms(TIMES);
    begin = sw_now_ms();
    sw_group_leave(second, HERE);
    tap_ok(sw_now_ms() < flood_end && repeats > 0,
           "others get the lock within %lld ms, and destroy a communicator in %lld",
           (long long)worst, (long long)(sw_now_ms() - begin));
    close(other_second);
    group_close(group, other);
}

static int has_message(struct sw_group *group)
{
    struct sw_message *message = sw_mailbox_take(group, HERE);
    const int has = message != NULL;

    sw_message_free(message);
    return has;
}

/* The other process sends a lot, then a message to rank 0, and ends. */
static void test_end(int closes)
{
    const char *name = closes ? "closes" : "shuts its socket";
    const int64_t end = sw_now_ms() + SOON_MS;
    symwin_status status = SYMWIN_OK;
    struct sw_group *group;
    int other, culprit = -1;

    group = group_open(&other);
    sw_poll_lock();
    send_message(other, GONE);
    send_message(other, HERE);
    shutdown(other, SHUT_WR);
    if (closes)
        close(other);
    flood(group->sockets[1]->watch.fd, MORE);
    sw_poll_unlock();
    while (!sw_exchange_outcome(group->exchange, &status, &culprit) && sw_now_ms() < end)
        host_pause_ms(1);
    tap_ok(status == SYMWIN_PEER_LOST && culprit == OTHER, "%s: %s, rank %d", name,
           symwin_status_name(status), culprit);
    tap_ok(frames == MORE + 2 && has_message(group), "%s: what it sent before is read", name);
    group_close(group, closes ? -1 : other);
}

/* The other process sends a lot to one rank of this process, then a lot to another. That one takes
 * some and leaves: nobody waits for what the first one has. */
static void test_two_receivers(void)
{
    enum { HALF = SW_MOST_MESSAGES / 2, TAKEN = 1000, MOST_MS = 250 };
    const int64_t end = sw_now_ms() + 4 * SOON_MS;
    struct sw_group *group;
    int64_t took;
    int other, i, found = 0;

    group = peer_group(RANKS, OTHER, &other);
    for (i = 0; i < 2 * HALF; i++)
        send_message(other, i < HALF ? GONE : HERE);
    while (atomic_load(&group->waiting[OTHER]) < 2 * HALF && sw_now_ms() < end)
        host_pause_ms(1);
    took = sw_now_ms();
    for (i = 0; i < TAKEN; i++)
        found += has_message(group);
    group_close(group, -1);
    took = sw_now_ms() - took;
    tap_ok(found == TAKEN && took < MOST_MS,
           "%d messages to another rank: this one takes %d of its own and leaves in %lld ms", HALF,
           found, (long long)took);
    sw_group_leave(group, GONE);
    close(other);
}

/* A rank waits for rank 2, which has left, or its time is over. The message is behind many
 * frames. */
static void test_wait(int left)
{
    struct sw_group *group;
    int other;

    group = group_open(&other);
    sw_poll_lock();
    sw_poll_remove(&group->sockets[1]->watch); /* only the rank reads */
    sw_poll_unlock();
    send_message(other, GONE);
    send_message(other, HERE);
    if (left)
        sw_exchange_leave(group->exchange, OTHER);
    flood(group->sockets[1]->watch.fd, MOST);
    tap_ok(sw_mailbox_wait(group, HERE, OTHER, 0, sw_now_ms() + (left ? SOON_MS : 0), "wait") ==
                   SYMWIN_OK &&
               has_message(group),
           "behind %d frames a rank finds the message of one that %s", MOST + 1,
           left ? "has left" : "is late");
    group_close(group, other);
}

/* A rank reads what has come, however many turns that takes, but only until its deadline. */
static void test_collect(void)
{
    enum { COUNT = 10, EACH_MS = 10, SHORT_MS = 50, MOST_MS = 1000 };
    struct sw_group *group;
    int64_t begin;
    int other, i, found = 0;

    group = group_open(&other);
    sw_poll_lock();
    sw_poll_remove(&group->sockets[1]->watch); /* only the rank reads */
    sw_poll_unlock();
    for (i = 0; i < COUNT; i++)
        send_message(other, HERE);
    flood(group->sockets[1]->watch.fd, 0);
    read_us = 1000 * EACH_MS; /* a turn is too short for them */
    sw_mailbox_collect(group, sw_now_ms() + SOON_MS);
    read_us = 0;
    while (has_message(group))
        found++;
    TAP_EQ("messages that were there", found, COUNT);
    send_message(other, GONE);
    flood(group->sockets[1]->watch.fd, INT64_MAX);
    begin = sw_now_ms();
    sw_mailbox_collect(group, begin + SHORT_MS);
    tap_ok(sw_now_ms() - begin < MOST_MS, "a flood is read for %lld ms",
           (long long)(sw_now_ms() - begin));
    group_close(group, other);
}

/* Messages of another host, after the end, to a process that does not read. Each would hold the
 * lock as long as it waits for room. */
static void test_forward_after_the_end(void)
{
    enum { TIMES = 20, MOST_MS = 500 };
    static int process_of[RANKS] = {0, 1, 2}, host_of[RANKS] = {0, 0, 1};
    static atomic_int queued[RANKS];
    const struct sw_frame_message words = {.from = 2, .to = 1, .kind = SW_MESSAGE_GONE};
    struct sw_peer_socket socket = {.process = 1}, *sockets[RANKS] = {NULL, &socket};
    struct sw_group group = {.nranks = RANKS,
                             .processes = RANKS,
                             .hosts = 2,
                             .fan = 2,
                             .process_of = process_of,
                             .host_of = host_of,
                             .sockets = sockets,
                             .queued = queued,
                             .exchange = sw_exchange_create(RANKS)};
    int64_t begin;
    int fds[2], i, valid = 1;

    if (group.exchange == NULL ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        abort();
    socket.watch.fd = fds[0];
    socket.group = &group;
    while (send(fds[0], "", 1, 0) == 1)
        ;
    sw_exchange_fail(group.exchange, SYMWIN_ABORTED, 0);
    begin = sw_now_ms();
    for (i = 0; i < TIMES; i++)
        valid &= sw_mailbox_forward(&group, &words);
    tap_ok(valid && sw_now_ms() - begin < MOST_MS,
           "after the end, %d messages that nobody reads are forwarded in %lld ms", TIMES,
           (long long)(sw_now_ms() - begin));
    close(fds[0]);
    close(fds[1]);
    sw_exchange_destroy(group.exchange);
}

/* A message with a descriptor to a process that does not read: to rank 1 there, or through it to
 * rank 2, on another host. A rank of that process is named. */
static void test_full_socket(int to, int culprit)
{
    static int process_of[] = {0, 0, 2, 1}, host_of[] = {0, 0, 1, 0};
    static atomic_int queued[4];
    const struct sw_frame_message words = {.from = 3, .to = to, .kind = SW_MESSAGE_GONE};
    struct sw_peer_socket socket = {.process = 0}, *sockets[3] = {&socket};
    struct sw_group group = {.nranks = 4,
                             .process = 1,
                             .processes = 3,
                             .hosts = 2,
                             .fan = 2,
                             .process_of = process_of,
                             .host_of = host_of,
                             .sockets = sockets,
                             .queued = queued,
                             .exchange = sw_exchange_create(4)};
    symwin_status status = SYMWIN_OK;
    int fds[2], named = -1;

    if (group.exchange == NULL ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
        abort();
    socket.watch.fd = fds[0];
    socket.group = &group;
    while (send(fds[0], "", 1, 0) == 1)
        ;
    (void)sw_mailbox_send(&group, &words, fds[0], 0, sw_now_ms() + 20, "test");
    (void)sw_exchange_outcome(group.exchange, &status, &named);
    tap_ok(status == SYMWIN_TIMEOUT && named == culprit,
           "a full socket on the way to rank %d: %s, rank %d", to, symwin_status_name(status),
           named);
    close(fds[0]);
    close(fds[1]);
    sw_exchange_destroy(group.exchange);
}

/* ---- messages to a process that does not read, without a descriptor ---- */

enum { MANY = 5000, AT_ONCE_MS = 2000 }; /* more than fit into a socket */

static int send_number(struct sw_group *group, uint64_t number, int fd, int64_t deadline)
{
    const struct sw_frame_message words = {
        .from = HERE, .to = OTHER, .kind = SW_MESSAGE_GONE, .number = number};

    return sw_mailbox_try(group, &words, fd, 0, deadline);
}

/* The number of the next message to the other process; -1: none comes. */
static int64_t next_number(int other, int *fd)
{
    const int64_t end = sw_now_ms() + SOON_MS;
    union sw_frame frame;
    int error;

    while ((error = sw_frame_receive_now(other, &frame, fd)) == EAGAIN && sw_now_ms() < end)
        usleep(200);
    return error == 0 && frame.header.type == SW_FRAME_MESSAGE ? (int64_t)frame.message.number : -1;
}

/* They wait, and are sent in order when it reads again. One with a descriptor comes after them. */
static void test_outbox(void)
{
    const int64_t begin = sw_now_ms();
    struct sw_group *group;
    int other, i, error = 0, fd = -1;

    group = group_open(&other);
    for (i = 0; i < MANY && error == 0; i++)
        error = send_number(group, (uint64_t)i, -1, 0);
    tap_ok(error == 0 && sw_now_ms() - begin < AT_ONCE_MS && group->queued[HERE] > 0,
           "%d messages to a process that does not read: %d wait, in %lld ms", i,
           group->queued[HERE], (long long)(sw_now_ms() - begin));
    TAP_EQ("a descriptor waits for room", send_number(group, MANY, other, sw_now_ms() + 20),
           ETIMEDOUT);
    for (i = 0; i < MANY && next_number(other, &fd) == i; i++)
        ;
    TAP_EQ("it reads again, and gets all in order", i, MANY);
    for (i = 0; i < SOON_MS && group->queued[HERE] > 0;
         i++) /* the last one counts a moment longer */
        host_pause_ms(1);
    TAP_EQ("none waits", group->queued[HERE], 0);
    TAP_EQ("a descriptor", send_number(group, MANY, other, sw_now_ms() + SOON_MS), 0);
    TAP_EQ("comes after them", next_number(other, &fd), MANY);
    tap_ok(fd >= 0 && !sw_exchange_ended(group->exchange), "and nothing has ended");
    close(fd);
    group_close(group, other);
}

/* A rank that sends more than any needs is named. */
static void test_outbox_bound(void)
{
    symwin_status status = SYMWIN_OK;
    int other, i, error = 0, named = -1;
    struct sw_group *group;

    group = group_open(&other);
    for (i = 0; i < 2 * SW_MOST_MESSAGES && error == 0; i++)
        error = send_number(group, (uint64_t)i, -1, 0);
    (void)sw_exchange_outcome(group->exchange, &status, &named);
    tap_ok(error == EOVERFLOW && i > SW_MOST_MESSAGES && status == SYMWIN_MISMATCH && named == HERE,
           "message %d is too many: %s, rank %d", i, symwin_status_name(status), named);
    error = send_number(group, 0, -1, 0);
    tap_ok(error == 0 || error == EPIPE, "after the end it is dropped");
    group_close(group, other);
}

/* A rank that leaves waits a moment for a process that reads late, and not for one that never
 * reads. */
enum { LEAVE_MS = 100 };

struct late_reader {
    int other, most, count;
};

static void *read_late(void *arg)
{
    struct late_reader *l = arg;

    host_pause_ms(10);
    while (l->count < l->most && next_number(l->other, NULL) == l->count)
        l->count++;
    return NULL;
}

static void test_leave(int reads)
{
    struct late_reader late = {0};
    struct sw_group *group;
    pthread_t reader;
    int64_t begin;

    group = group_open(&late.other);
    for (; group->queued[HERE] < 20; late.most++)
        (void)send_number(group, (uint64_t)late.most, -1, 0);
    if (reads && pthread_create(&reader, NULL, read_late, &late) != 0)
        abort();
    begin = sw_now_ms();
    group_close(group, -1);
    begin = sw_now_ms() - begin;
    if (reads)
        pthread_join(reader, NULL);
    /* All arrive, unless the reader is later than the rank waits. */
    tap_ok(begin < AT_ONCE_MS && (begin >= LEAVE_MS || late.count == late.most),
           "a leave takes %lld ms with a process that reads %s: %d messages of %d",
           (long long)begin, reads ? "late" : "nothing", late.count, late.most);
    close(late.other);
}

int main(void)
{
    struct harness_leaks before;

    harness_start();
    before = harness_leaks_now();
    test_turn();
    test_slow_turn();
    test_lock();
    test_end(0);
    test_end(1);
    test_two_receivers();
    test_wait(1);
    test_wait(0);
    test_collect();
    test_forward_after_the_end();
    test_full_socket(1, 1);
    test_full_socket(2, 0);
    test_outbox();
    test_outbox_bound();
    test_leave(0);
    test_leave(1);
    harness_no_leaks("peers", &before);
    return tap_done();
}
