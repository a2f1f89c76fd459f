/* What a frame may hold: each number at the ends of its range and one beyond, lengths, unterminated
 * texts. Descriptors of a frame: a program started by exec inherits none. Which sockets are
 * accepted. */
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <sys/socket.h>

#include "hostile.h"
#include "src/control/control.h"

/* ---- numbers ---- */

static const struct field {
    const char *name;
    enum sw_frame_type type;
    size_t at; /* of an int32_t */
    int64_t least, most;
} fields[] = {
    {"JOIN's timeout", SW_FRAME_JOIN, offsetof(struct sw_frame_join, timeout_ms), 1, INT32_MAX},
    {"PAGE's process", SW_FRAME_PAGE, offsetof(struct sw_frame_pass, process), -1,
     SW_MAX_RANKS - 1},
    {"LINE's process", SW_FRAME_SOCKET, offsetof(struct sw_frame_pass, process), 0,
     SW_MAX_RANKS - 1},
    {"REFUSAL's status", SW_FRAME_REFUSAL, offsetof(struct sw_frame_refusal, status), 1,
     SYMWIN_STATUS_LAST},
    {"REFUSAL's rank", SW_FRAME_REFUSAL, offsetof(struct sw_frame_refusal, rank), SW_FRAME_UNKNOWN,
     SW_MAX_RANKS - 1},
    {"HANDLE's rank", SW_FRAME_HANDLE, offsetof(struct sw_frame_handle, rank), 0, SW_MAX_RANKS - 1},
    {"HANDLE's status", SW_FRAME_HANDLE, offsetof(struct sw_frame_handle, status), 0,
     SYMWIN_STATUS_LAST},
    {"LINK's host", SW_FRAME_LINK, offsetof(struct sw_frame_link, host), 0, SW_MAX_RANKS - 1},
    {"LINK's end", SW_FRAME_LINK, offsetof(struct sw_frame_link, creator), 0, 1},
    {"LINK's holder", SW_FRAME_LINK, offsetof(struct sw_frame_link, holder), -1, SW_MAX_RANKS - 1},
    {"GO's process", SW_FRAME_GO, offsetof(struct sw_frame_pass, process), -1, SW_MAX_RANKS - 1},
    {"GO's time", SW_FRAME_GO, offsetof(struct sw_frame_pass, left_ms), 0, INT32_MAX},
    {"PAGE's time", SW_FRAME_PAGE, offsetof(struct sw_frame_pass, left_ms), 0, INT32_MAX},
    {"ABOVE's rank", SW_FRAME_ABOVE, offsetof(struct sw_frame_above, rank), -1, SW_MAX_RANKS - 1},
    {"ABOVE's creator", SW_FRAME_ABOVE, offsetof(struct sw_frame_above, creator), -1,
     SW_MAX_RANKS - 1},
    {"POST's rank", SW_FRAME_POST, offsetof(struct sw_frame_post, posts), 0, SW_MAX_RANKS - 1},
    {"LEAVE's rank", SW_FRAME_LEAVE, offsetof(struct sw_frame_end, rank), 0, SW_MAX_RANKS - 1},
    {"END's rank", SW_FRAME_END, offsetof(struct sw_frame_end, rank), 0, SW_MAX_RANKS - 1},
    {"END's status", SW_FRAME_END, offsetof(struct sw_frame_end, status), 1, SYMWIN_STATUS_LAST},
    {"MESSAGE's from", SW_FRAME_MESSAGE, offsetof(struct sw_frame_message, from), 0,
     SW_MAX_RANKS - 1},
    {"MESSAGE's to", SW_FRAME_MESSAGE, offsetof(struct sw_frame_message, to), 0, SW_MAX_RANKS - 1},
    {"MESSAGE's kind", SW_FRAME_MESSAGE, offsetof(struct sw_frame_message, kind), SW_MESSAGE_OFFER,
     SW_MESSAGE_GONE},
    {"MESSAGE's memory", SW_FRAME_MESSAGE, offsetof(struct sw_frame_message, memory),
     SW_MESSAGE_NONE, SW_MESSAGE_OTHER},
    {"MESSAGE's status", SW_FRAME_MESSAGE, offsetof(struct sw_frame_message, status), 0,
     SYMWIN_STATUS_LAST},
    {"MESSAGE's is_fabric", SW_FRAME_MESSAGE, offsetof(struct sw_frame_message, is_fabric), 0, 1},
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

static void set(union sw_frame *frame, size_t at, int64_t value)
{
    const int32_t number = (int32_t)value;

    memcpy((char *)frame + at, &number, sizeof number);
}

/* A valid frame: its numbers are the least. */
static void make(union sw_frame *frame, enum sw_frame_type type)
{
    int i;

    memset(frame, 0, sizeof *frame);
    if (type == SW_FRAME_TABLE) {
        frame->table.nranks = 3;
        frame->table.processes = frame->table.hosts = 1;
    }
    if (type == SW_FRAME_HERE)
        frame->here.folder[0] = '/';
    if (type == SW_FRAME_POST)
        frame->post.bytes = sizeof(struct sw_post);
    sw_frame_seal(frame, type);
    for (i = 0; i < FIELDS; i++)
        if (fields[i].type == type)
            set(frame, fields[i].at, fields[i].least);
}

static int valid_with(const struct field *f, int64_t value)
{
    union sw_frame frame;

    make(&frame, f->type);
    set(&frame, f->at, value);
    return sw_frame_valid(&frame, frame.header.bytes);
}

static void test_numbers(void)
{
    int i;

    for (i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];

        tap_ok(valid_with(f, f->least) && valid_with(f, f->most) && !valid_with(f, f->least - 1) &&
                   (f->most == INT32_MAX || !valid_with(f, f->most + 1)),
               "%s is from %lld to %lld", f->name, (long long)f->least, (long long)f->most);
    }
}

/* What a creator passes on from a JOIN must be valid in its ABOVE: its receiver blames it. */
static void test_places(void)
{
    static const struct {
        enum sw_frame_type type;
        size_t at;
    } rows[] = {{SW_FRAME_JOIN, offsetof(struct sw_frame_join, place)},
                {SW_FRAME_ABOVE, offsetof(struct sw_frame_above, place)}};
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        union sw_frame frame;
        int family, right = 1;

        for (family = 0; family < 64; family++) {
            make(&frame, rows[i].type);
            set(&frame, rows[i].at, family);
            right &= sw_frame_valid(&frame, frame.header.bytes) ==
                     (family == AF_UNSPEC || family == AF_INET || family == AF_INET6);
        }
        tap_ok(right, "type %d: a place is an IP address, or none", (int)rows[i].type);
    }
}

/* ---- lengths and texts ---- */

static void test_lengths(void)
{
    int type, wrong = 0, count = 0;

    for (type = SW_FRAME_HELLO; type <= SW_FRAME_LINKED; type++) {
        union sw_frame frame;
        uint32_t bytes;

        make(&frame, (enum sw_frame_type)type);
        bytes = frame.header.bytes;
        count++;
        if (!sw_frame_valid(&frame, bytes))
            wrong += printf("# a frame of type %d is refused\n", type) > 0;
        if (sw_frame_valid(&frame, bytes - 1) || sw_frame_valid(&frame, bytes + 1))
            wrong += printf("# type %d, of another length than it says\n", type) > 0;
        frame.header.bytes = bytes + 4;
        if (sw_frame_valid(&frame, bytes + 4) || sw_frame_valid(&frame, bytes))
            wrong += printf("# type %d, longer than it is\n", type) > 0;
        frame.header.bytes = bytes;
        frame.header.zero = 1;
        if (sw_frame_valid(&frame, bytes))
            wrong += printf("# type %d, a zero that is none\n", type) > 0;
    }
    tap_ok(wrong == 0 && count > 10, "%d types: a frame is as long as it says", count);
}

/* ---- posts ---- */

static const struct post_row {
    const char *what;
    int32_t bytes; /* of all posts of the frame, of which this is the first */
    struct sw_post post;
    int valid;
} post_rows[] = {
    {"of as many bytes as there can be", 8 + SW_EXCHANGE_BYTES, {1, SW_EXCHANGE_BYTES}, 1},
    {"of one more", 8 + SW_EXCHANGE_BYTES + 1, {1, SW_EXCHANGE_BYTES + 1}, 0},
    {"without a byte", 8, {SW_MAX_RANKS - 1, 0}, 1},
    {"before others without a byte", SW_POSTS_BYTES, {1, 0}, 1},
    {"before more than the frame can have", SW_POSTS_BYTES + 8, {1, 0}, 0},
    {"of a rank that there cannot be", 8, {SW_MAX_RANKS, 0}, 0},
    {"of rank -1", 8, {-1, 0}, 0},
    {"of fewer bytes than none", 16, {1, -8}, 0},
    {"that has all but its last byte", 8 + 15, {1, 16}, 0},
    {"before half a post", 8 + 16 + 4, {1, 16}, 0},
    {"that is not there", 0, {1, 0}, 0},
    {"of a frame of fewer bytes than none", -8, {1, 0}, 0},
};

static void test_posts(void)
{
    size_t i;

    for (i = 0; i < sizeof post_rows / sizeof post_rows[0]; i++) {
        const struct post_row *row = &post_rows[i];
        union sw_frame frame;

        make(&frame, SW_FRAME_POST);
        memcpy(frame.post.posts, &row->post, sizeof row->post);
        frame.post.bytes = row->bytes;
        sw_frame_seal(&frame, SW_FRAME_POST);
        if (row->bytes > SW_POSTS_BYTES)
            frame.header.bytes += (uint32_t)row->bytes;
        tap_ok(sw_frame_valid(&frame, frame.header.bytes) == row->valid, "a post %s: %s", row->what,
               row->valid ? "valid" : "refused");
    }
    for (i = 16; i < 32; i++) { /* its length cannot be read yet */
        union sw_frame frame;

        make(&frame, SW_FRAME_POST);
        frame.header.bytes = (uint32_t)i;
        if (sw_frame_valid(&frame, i))
            break;
    }
    TAP_EQ("a POST that ends before its posts", (int)i, 32);
}

/* Of a rank's data only the zeros at the end are left out; what is read is what was put. */
static void test_zeros(void)
{
    static const int lasts[] = {-1, 0, 7, 8, 100, SW_EXCHANGE_BYTES - 1};
    unsigned char data[SW_EXCHANGE_BYTES];
    struct sw_frame_post frame;
    struct sw_post post = {-1, -1};
    size_t i, next;
    int count;

    for (i = 0; i < sizeof lasts / sizeof lasts[0]; i++) {
        memset(data, 0, sizeof data);
        if (lasts[i] >= 0)
            data[0] = data[lasts[i]] = 5;
        memset(&frame, 0, sizeof frame);
        sw_frame_add_post(&frame, 3, data);
        next = sw_frame_next_post(&frame, 0, &post);
        tap_ok(next == (size_t)frame.bytes && post.rank == 3 && post.bytes > lasts[i] &&
                   post.bytes <= lasts[i] + 8 &&
                   memcmp(frame.posts + next - post.bytes, data, (size_t)post.bytes) == 0,
               "a post whose last byte is at %d has %d", lasts[i], post.bytes);
    }
    memset(&frame, 0, sizeof frame);
    for (count = 0; sw_frame_add_post(&frame, count, data); count++)
        ;
    TAP_EQ("as many posts are added as there is room for", count,
           SW_POSTS_BYTES / (int)(sizeof post + SW_EXCHANGE_BYTES));
    TAP_EQ("and no part of another", frame.bytes, count * (int)(sizeof post + SW_EXCHANGE_BYTES));
}

static void test_nobody(void)
{
    union sw_frame frame;

    make(&frame, SW_FRAME_END);
    frame.end.rank = SW_NOBODY;
    tap_ok(sw_frame_valid(&frame, frame.header.bytes), "END names nobody");
    memset(frame.end.text, 'x', sizeof frame.end.text);
    tap_ok(sw_frame_valid(&frame, frame.header.bytes) &&
               strlen(frame.end.text) == sizeof frame.end.text - 1,
           "its text gets an end");
    make(&frame, SW_FRAME_REFUSAL);
    frame.refusal.rank = SW_NOBODY;
    tap_ok(sw_frame_valid(&frame, frame.header.bytes), "and REFUSAL");
    make(&frame, SW_FRAME_LEAVE);
    frame.end.rank = SW_NOBODY;
    tap_ok(!sw_frame_valid(&frame, frame.header.bytes), "LEAVE is of a rank");
}

static void test_table(void)
{
    union sw_frame frame;

    make(&frame, SW_FRAME_TABLE);
    frame.table.nranks++;
    tap_ok(!sw_frame_valid(&frame, frame.header.bytes), "a TABLE of more ranks than it has");
    frame.table.nranks -= 2;
    tap_ok(!sw_frame_valid(&frame, frame.header.bytes), "and of fewer");
    frame.table.nranks = 5;
    frame.table.first = 2;
    tap_ok(sw_frame_valid(&frame, frame.header.bytes), "with the locations of the last ranks");
    frame.table.first = -1;
    tap_ok(!sw_frame_valid(&frame, frame.header.bytes), "from a rank on that is none");
    frame.table.first = 5;
    sw_frame_seal(&frame, SW_FRAME_TABLE);
    tap_ok(!sw_frame_valid(&frame, frame.header.bytes), "or the one after the last");
}

static void test_texts(void)
{
    union sw_frame frame;

    make(&frame, SW_FRAME_REFUSAL);
    memset(frame.refusal.text, 'x', sizeof frame.refusal.text);
    tap_ok(sw_frame_valid(&frame, frame.header.bytes) &&
               memchr(frame.refusal.text, 0, sizeof frame.refusal.text) != NULL,
           "REFUSAL's text is ended");
    make(&frame, SW_FRAME_HERE);
    memset(frame.here.folder, 'x', sizeof frame.here.folder);
    tap_ok(sw_frame_valid(&frame, frame.header.bytes) &&
               memchr(frame.here.folder, 0, sizeof frame.here.folder) != NULL,
           "HERE's folder is ended");
    make(&frame, SW_FRAME_MESSAGE);
    memset(frame.message.text, 'x', sizeof frame.message.text);
    tap_ok(sw_frame_valid(&frame, frame.header.bytes) &&
               memchr(frame.message.text, 0, sizeof frame.message.text) != NULL,
           "MESSAGE's text is ended");
}

/* ---- descriptors ---- */

static void send_with(int socket, const union sw_frame *frame, const int *fds, size_t count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control;
    struct iovec data = {.iov_base = (void *)(uintptr_t)frame, .iov_len = frame->header.bytes};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};

    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    if (sendmsg(socket, &message, 0) != (ssize_t)frame->header.bytes)
        abort();
}

static void test_descriptors(void)
{
    const int before = harness_count_entries("/proc/self/fd"), yes = 1;
    union sw_frame frame;
    int fd = -1, sockets[2], three[3];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        abort();
    three[0] = three[1] = three[2] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    make(&frame, SW_FRAME_PAGE);
    send_with(sockets[0], &frame, three, 1);
    TAP_EQ("a frame with a descriptor", sw_frame_receive_now(sockets[1], &frame, &fd), 0);
    tap_ok(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0,
           "which no program gets that this process starts");
    close(fd);
    send_with(sockets[0], &frame, three, 3);
    TAP_EQ("a frame with three", sw_frame_receive_now(sockets[1], &frame, &fd), EPROTO);
    send_with(sockets[0], &frame, three, 1);
    TAP_EQ("one where none is wanted", sw_frame_receive_now(sockets[1], &frame, NULL), EPROTO);
    /* Whoever made the socket may have asked for a descriptor of each sender (SO_PASSPIDFD). */
    if (setsockopt(sockets[1], SOL_SOCKET, 76, &yes, sizeof yes) == 0) {
        send_with(sockets[0], &frame, three, 1);
        TAP_EQ("one with its sender's", sw_frame_receive_now(sockets[1], &frame, &fd), EPROTO);
    }
    close(three[0]);
    close(sockets[0]);
    close(sockets[1]);
    tap_ok(sw_closer_wait(10), "what is not wanted is closed");
    TAP_EQ("none is kept", harness_count_entries("/proc/self/fd"), before);
}

static void *read_one_later(void *arg)
{
    union sw_frame frame;

    usleep(50000);
    if (sw_frame_receive_now(*(const int *)arg, &frame, NULL) != 0)
        abort();
    return NULL;
}

/* Room for one frame is room, also in a socket that is nearly full: its reader is slow. */
static void test_room(void)
{
    union sw_frame frame;
    int sockets[2], error, sent = 0;
    pthread_t reader;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        abort();
    make(&frame, SW_FRAME_GO);
    while ((error = sw_frame_send_now(sockets[0], &frame, -1)) == 0)
        sent++;
    TAP_EQ("a full socket", error, EAGAIN);
    TAP_EQ("in which nobody makes room", sw_frame_send(sockets[0], &frame, -1, sw_now_ms() + 20),
           ETIMEDOUT);
    if (pthread_create(&reader, NULL, read_one_later, &sockets[1]) != 0)
        abort();
    error = sw_frame_send(sockets[0], &frame, -1, sw_now_ms() + 2000);
    pthread_join(reader, NULL);
    tap_ok(sent > 8 && error == 0, "one of %d frames is read: another is sent", sent);
    close(sockets[0]);
    close(sockets[1]);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static const struct kind {
    const char *name;
    int family, type;
    enum { ALONE, LISTENS, CONNECTED } state;
    int local, stream; /* what it passes for */
} kinds[] = {
    {"a connected local socket", AF_UNIX, SOCK_SEQPACKET, CONNECTED, 1, 0},
    {"a local socket that listens", AF_UNIX, SOCK_SEQPACKET, LISTENS, 0, 0},
    {"a local socket that may listen later", AF_UNIX, SOCK_SEQPACKET, ALONE, 0, 0},
    {"a local stream", AF_UNIX, SOCK_STREAM, CONNECTED, 0, 0},
    {"local datagrams", AF_UNIX, SOCK_DGRAM, CONNECTED, 0, 0},
    {"TCP", AF_INET, SOCK_STREAM, ALONE, 0, 1},
    {"TCP that listens", AF_INET, SOCK_STREAM, LISTENS, 0, 0},
    {"TCP over IPv6", AF_INET6, SOCK_STREAM, ALONE, 0, 1},
    {"UDP", AF_INET, SOCK_DGRAM, ALONE, 0, 0},
};

static void test_kind(const struct kind *k)
{
    const struct sockaddr any = {.sa_family = (sa_family_t)k->family};
    int fds[2] = {-1, -1};

    if (k->state == CONNECTED && socketpair(k->family, k->type | SOCK_CLOEXEC, 0, fds) != 0)
        abort();
    if (k->state != CONNECTED)
        fds[0] = socket(k->family, k->type | SOCK_CLOEXEC, 0);
    if (fds[0] < 0) {
        tap_ok(1, "%s # SKIP this system has none", k->name);
        return;
    }
    if (k->state == LISTENS && ((k->family == AF_UNIX && bind(fds[0], &any, sizeof(sa_family_t))) ||
                                listen(fds[0], 1) != 0))
        abort();
    tap_ok(sw_socket_is(fds[0], 0) == k->local && sw_socket_is(fds[0], 1) == k->stream, "%s",
           k->name);
    close(fds[0]);
    if (fds[1] >= 0)
        close(fds[1]);
}

static void test_kinds(void)
{
    size_t i;

    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        test_kind(&kinds[i]);
    tap_ok(!sw_socket_is(-1, 0) && !sw_socket_is(-1, 1), "no descriptor");
}

int main(void)
{
    test_numbers();
    test_places();
    test_lengths();
    test_table();
    test_posts();
    test_zeros();
    test_nobody();
    test_texts();
    test_descriptors();
    test_room();
    test_kinds();
    return tap_done();
}
