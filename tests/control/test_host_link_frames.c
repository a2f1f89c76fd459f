/* Frames between two hosts, of which one is the test. A host is believed about its own ranks only.
 * The deciding host sends all completed rounds before an end. A connection detects that the other
 * host is gone. No forked child has a connection. test_host_link_queue.c has hosts that are slow,
 * and hosts that send a lot. */
#include "host_pair.h"

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
    {"host 0: its own rank 1 is behind", 0, SW_FRAME_BEHIND, 1, 7, SYMWIN_PEER_LOST, 2},
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

/* From below a host has words for its own ranks alone: those of others would be in the mouths of
 * ranks that have not said them. */
static void test_why_of(int host, int rank, int told)
{
    symwin_status status = SYMWIN_OK;
    int turns = 0, culprit = -1;
    char text[SW_WHY_BYTES];
    struct pair p;

    pair_open(&p, host);
    say(&p, SW_FRAME_END, rank, 0);
    while (!sw_exchange_outcome(p.group.exchange, &status, &culprit) && turns++ < SOON_MS)
        host_pause_ms(1);
    tap_ok(status == SYMWIN_ABORTED && culprit == rank &&
               sw_exchange_why(p.group.exchange, rank, text) == told,
           "host %d: why rank %d has ended it: %s, rank %d", host, rank, symwin_status_name(status),
           culprit);
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

/* A message from another host is forwarded to a third one only by the host that decides, and none
 * of or for a rank 3, which is not there: an element after the ranks' makes it look like one. */
static void test_forwarded(void)
{
    enum { THREE = 3 };
    static int where[THREE + 1] = {0, 1, 2, 2};
    static atomic_int queued[THREE + 1];
    static const struct {
        int host, from, to, valid;
    } rows[] = {{0, 1, 2, 1}, {1, 0, 2, 0}, {1, 2, 0, 0}, {2, 0, 1, 0}, {0, 1, 3, 0}};
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct sw_frame_message words = {
            .from = rows[i].from, .to = rows[i].to, .kind = SW_MESSAGE_GONE};
        struct sw_group group = {.nranks = THREE,
                                 .process = rows[i].host,
                                 .processes = THREE,
                                 .host = rows[i].host,
                                 .hosts = THREE,
                                 .fan = THREE,
                                 .process_of = where,
                                 .host_of = where,
                                 .queued = queued,
                                 .exchange = sw_exchange_create(THREE)};
        int valid, h;

        if (group.exchange == NULL || !sw_host_link_create(&group))
            abort();
        for (h = 0; h < THREE; h++) { /* not connected */
            group.links[h].group = &group;
            group.links[h].leaves = calloc(THREE, 1);
            group.links[h].out = malloc(sizeof(union sw_frame));
            if (group.links[h].leaves == NULL || group.links[h].out == NULL)
                abort();
        }
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

/* An end comes when host 0 has completed a round but not sent it. Without the round, host 1 could
 * not complete it any more. */
static void test_end_in_order(void)
{
    const uint64_t nothing = 0;
    union sw_frame frame;
    struct pair p;
    int r, posts = 0, last = -1, error = 0;

    pair_open(&p, 0);
    for (r = 0; r < RANKS; r++)
        sw_exchange_post(p.group.exchange, r, 0, &nothing, sizeof nothing);
    sw_exchange_fail(p.group.exchange, SYMWIN_ABORTED, 1);
    sw_host_link_end(&p.group);
    TAP_EQ("no end before the posts of a round that is complete", next_type(&p, QUIET_MS), 0);
    p.group.exchange_hosts.send(&p.group, 0);
    do {
        error = sw_connection_receive(&p.other, &frame, NULL, sw_now_ms() + SOON_MS);
        if (error == 0 && frame.header.type == SW_FRAME_POST)
            posts += count_posts(&frame.post, &last);
    } while (error == 0 && frame.header.type == SW_FRAME_POST);
    tap_ok(posts == 2 && last == 1, "the posts of host 0's ranks: %d", posts);
    tap_ok(error == 0 && frame.header.type == SW_FRAME_END, "and then the end");
    pair_close(&p);
}

static void post_all(struct pair *p, int first, int end)
{
    unsigned char data[SW_EXCHANGE_BYTES];
    int r;

    for (r = first; r < end; r++) {
        memset(data, r + 1, sizeof data);
        sw_exchange_post(p->group.exchange, r, 0, data, sizeof data);
    }
}

/* Receives until the post of the host's last rank. Returns how many posts are those of the ranks
 * from `first` on, in order and with the right data. */
static int receive_posts(struct pair *p, int first, int *frames)
{
    unsigned char data[SW_EXCHANGE_BYTES];
    union sw_frame frame;
    struct sw_post post;
    int right = 0;

    for (*frames = 0; right < MORE_RANKS / 2; ++*frames) {
        size_t at = 0;

        if (sw_connection_receive(&p->other, &frame, NULL, sw_now_ms() + SOON_MS) != 0 ||
            frame.header.type != SW_FRAME_POST)
            break;
        while (at < (size_t)frame.post.bytes) {
            at = sw_frame_next_post(&frame.post, at, &post);
            memset(data, post.rank + 1, sizeof data);
            if (post.rank != first + right || post.bytes != SW_EXCHANGE_BYTES ||
                memcmp(frame.post.posts + at - sizeof data, data, sizeof data) != 0)
                return -1;
            right++;
        }
    }
    return right;
}

/* More posts than a frame has room for: all come, each once, in as few frames as that takes. Host 1
 * sends what it has, and later the rest. */
static void test_many_posts(int host)
{
    enum { HALF = MORE_RANKS / 2, EARLY = 9, IN_A_FRAME = SW_POSTS_BYTES / (8 + 512) };
    const int first = host * HALF, end = first + HALF;
    int frames = 0, posts;
    struct pair p;

    pair_open_ranks(&p, host, MORE_RANKS);
    post_all(&p, first, first + EARLY);
    if (host == 1)
        p.group.exchange_hosts.send(&p.group, 0);
    post_all(&p, first + EARLY, end);
    p.group.exchange_hosts.send(&p.group, 0);
    if (host == 1) /* the deciding host sends a round once */
        p.group.exchange_hosts.send(&p.group, 0);
    posts = receive_posts(&p, first, &frames);
    tap_ok(posts == HALF && frames <= (HALF - 1) / IN_A_FRAME + 1 + host,
           "host %d: %d posts in %d frames", host, posts, frames);
    TAP_EQ("and no post twice", next_type(&p, QUIET_MS), 0);
    pair_close(&p);
}

/* A round is complete on host 0, and its posts wait for room. Rank 0 hears of an end in the next
 * round and calls once more. Host 1 gets what rank 0 had posted. */
static void test_post_stays(void)
{
    const uint64_t first = 1, second = 2, third = 3;
    union sw_frame frame;
    struct sw_post post;
    struct pair p;
    int r, error;

    pair_open(&p, 0);
    pthread_mutex_lock(&p.group.links[1].mutex);
    for (r = 0; r < RANKS; r++)
        sw_exchange_post(p.group.exchange, r, 0, &first, sizeof first);
    p.group.exchange_hosts.send(&p.group, 0);
    sw_exchange_post(p.group.exchange, 0, 1, &second, sizeof second);
    sw_exchange_fail(p.group.exchange, SYMWIN_ABORTED, 1);
    TAP_EQ("no post after the end", sw_exchange_post(p.group.exchange, 0, 2, &third, sizeof third),
           0);
    pthread_mutex_unlock(&p.group.links[1].mutex);
    sw_host_link_end(&p.group);
    error = sw_connection_receive(&p.other, &frame, NULL, sw_now_ms() + SOON_MS);
    tap_ok(error == 0 && frame.header.type == SW_FRAME_POST &&
               sw_frame_next_post(&frame.post, 0, &post) > 0 && post.rank == 0 &&
               post.bytes == sizeof first &&
               memcmp(frame.post.posts + sizeof post, &first, sizeof first) == 0,
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

static int is_behind(const struct pair *p, int rank, uint64_t calls, int want)
{
    int turns = 0;

    while (sw_exchange_behind(p->group.exchange, rank, calls) != want && turns++ < SOON_MS)
        host_pause_ms(1);
    return sw_exchange_behind(p->group.exchange, rank, calls) == want;
}

/* Who has made fewest calls, of both hosts' ranks; an odd number is that of a rank in a call. */
static void test_behind(void)
{
    struct sw_exchange *x;
    union sw_frame frame;
    struct pair p;

    pair_open(&p, 0);
    x = p.group.exchange;
    tap_ok(sw_exchange_behind(x, 0, 9) == SW_NOBODY, "nobody has counted, and is behind");
    sw_exchange_count(x, 0, 4);
    sw_exchange_count(x, 1, 4);
    say(&p, SW_FRAME_ASK, 0, 0);
    tap_ok(sw_connection_receive(&p.other, &frame, NULL, sw_now_ms() + SOON_MS) == 0 &&
               frame.header.type == SW_FRAME_BEHIND && frame.behind.rank == 0 &&
               frame.behind.calls == 4,
           "a host that is asked tells who has made fewest");
    tap_ok(is_behind(&p, 1, 5, 0) && is_behind(&p, 0, 5, SW_NOBODY) &&
               is_behind(&p, 1, 4, SW_NOBODY),
           "another rank is behind, if it has made fewer");
    say(&p, SW_FRAME_BEHIND, 3, 2);
    tap_ok(is_behind(&p, 0, 4, 3), "a rank of another host");
    say(&p, SW_FRAME_ASK, 0, 0);
    tap_ok(sw_connection_receive(&p.other, &frame, NULL, sw_now_ms() + SOON_MS) == 0 &&
               frame.header.type == SW_FRAME_BEHIND && frame.behind.rank == 0,
           "a host is not told of its own ranks");
    say(&p, SW_FRAME_BEHIND, 2, 6);
    tap_ok(is_behind(&p, 1, 5, 0), "which no longer is");
    sw_exchange_count(x, 0, 3);
    tap_ok(is_behind(&p, 1, 5, 0), "one that is in a call");
    sw_exchange_count(x, 1, 3);
    tap_ok(is_behind(&p, 2, 5, SW_NOBODY), "two in one call: one waits for the other");
    say(&p, SW_FRAME_BEHIND, SW_NOBODY, 1);
    tap_ok(is_behind(&p, 0, 5, SW_NOBODY), "and two of another host");
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

/* ---- a forked child ---- */

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
    test_why_of(0, 3, 1);
    test_why_of(0, 1, 0);
    test_why_of(1, 0, 1);
    test_why_of(1, 2, 1);
    for (i = 0; i < 2; i++) {
        test_second_post(0, 2, i);
        test_second_post(1, 1, i);
        test_left_and_closed((int)i);
        test_leave_is_told((int)i);
        test_asked((int)i);
        test_many_posts((int)i);
    }
    test_behind();
    test_told_leave();
    test_forwarded();
    test_end_in_order();
    test_post_stays();
    test_keepalive();
    test_messages(0);
    test_messages(1);
    test_forks();
    harness_no_leaks("links", &before);
    return tap_done();
}
