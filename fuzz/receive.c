/* Fuzzer of the receiver of frames: whatever another process sends, with any number of descriptors,
 * none stays open here except one that was asked for.
 *
 * Input: a small program. Messages are sent and received over one pair of sockets, and a model
 * tells what each reception must give.
 */
#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "src/control/control.h"

enum {
    MOST_STEPS = 64,
    MOST_QUEUED = 8,
    MOST_FDS = 5, /* per message */
    SCANNED = 64, /* descriptors checked */
    MOST_SENT = sizeof(union sw_frame) + 64
};

struct message {
    unsigned char data[MOST_SENT];
    size_t bytes;
    int fds;
};

struct run {
    struct fuzz_input in;
    int ends[2]; /* 0 sends, 1 receives */
    int shut;
    struct message queue[MOST_QUEUED];
    int first, count;
    int open; /* open descriptors at the start */
    struct stat sample;
};

static int sample_fd = -1; /* the descriptor to send */

/* ---- sending ---- */

/* A frame of the input's choice, complete or one byte too long. */
static void begin_frame(struct run *run, struct message *m)
{
    static const size_t sizes[] = {
        sizeof(struct sw_frame_handle),  sizeof(struct sw_frame_pass),
        sizeof(struct sw_frame_refusal), sizeof(struct sw_frame_join),
        sizeof(struct sw_frame_hello),   sizeof(struct sw_frame_challenge),
        sizeof(struct sw_frame_message)};
    static const uint16_t types[] = {SW_FRAME_HANDLE, SW_FRAME_SOCKET, SW_FRAME_REFUSAL,
                                     SW_FRAME_JOIN,   SW_FRAME_HELLO,  SW_FRAME_CHALLENGE,
                                     SW_FRAME_MESSAGE};
    enum { TYPES = sizeof types / sizeof types[0] };
    const unsigned choice = fuzz_byte(&run->in);
    struct sw_frame_header header = {.magic = SW_FRAME_MAGIC, .form = SW_FRAME_FORM};

    header.type = types[choice % TYPES];
    m->bytes = sizes[choice % TYPES] + (choice >= 240);
    header.bytes = (uint32_t)m->bytes;
    memset(m->data, (int)(choice >> 7), m->bytes);
    memcpy(m->data, &header, sizeof header);
}

/* A message of the input's choice: a frame, or bytes of any length; the first bytes come from the
 * input. */
static void compose(struct run *run, struct message *m)
{
    const unsigned shape = fuzz_byte(&run->in);
    const size_t typed = fuzz_byte(&run->in);
    size_t at = 0, end;

    m->fds = (int)(shape & 7) % (MOST_FDS + 1);
    m->bytes = typed;
    if ((shape & 8) != 0) /* near the longest frame */
        m->bytes = sizeof(union sw_frame) - 32 + typed % 96;
    memset(m->data, 0, m->bytes);
    if ((shape & 16) != 0) {
        begin_frame(run, m);
        at = sizeof(struct sw_frame_header);
    }
    for (end = at + (shape >> 5) * 4; at < end && at < m->bytes; at++)
        m->data[at] = (unsigned char)fuzz_byte(&run->in);
}

static void send_message(struct run *run)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    struct message *m = &run->queue[(run->first + run->count) % MOST_QUEUED];
    struct iovec data = {.iov_base = m->data};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    int i;

    if (run->count == MOST_QUEUED)
        return;
    compose(run, m);
    data.iov_len = m->bytes;
    if (m->fds > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)m->fds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN((size_t)m->fds * sizeof(int));
        for (i = 0; i < m->fds; i++)
            memcpy(CMSG_DATA(&control.header) + (size_t)i * sizeof(int), &sample_fd, sizeof(int));
    }
    if (sendmsg(run->ends[0], &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)m->bytes)
        run->count++; /* else shut down, or full */
}

/* ---- receiving ---- */

/* What frame.h promises for a message, with room for `room` descriptors in this process. */
static int expected(const struct message *m, int place, int room)
{
    union sw_frame frame;

    const int lost = m->fds > 0 && room == 0;

    if ((m->fds > place && !lost) || m->bytes > sizeof frame)
        return EPROTO;
    if (m->bytes == 0)
        return lost ? EPROTO : EPIPE; /* with descriptors, or after another message */
    memcpy(&frame, m->data, m->bytes);
    return !sw_frame_valid(&frame, m->bytes) ? EPROTO : lost ? EMFILE : 0;
}

/* The same bytes, except for a text's terminating zero. */
static void check_frame(const struct message *m, const union sw_frame *got)
{
    union sw_frame want;

    memcpy(&want, m->data, m->bytes);
    sw_frame_valid(&want, m->bytes);
    fuzz_must(memcmp(&want, got, m->bytes) == 0, "another frame came than was sent");
}

static void check_descriptor(const struct run *run, const struct message *m, int fd)
{
    struct stat what;

    fuzz_must((fd >= 0) == (m->fds == 1), "%d descriptors were sent, and %d came", m->fds, fd);
    if (fd < 0)
        return;
    fuzz_must((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "%d stays open over exec", fd);
    fuzz_must(fstat(fd, &what) == 0 && what.st_ino == run->sample.st_ino &&
                  what.st_dev == run->sample.st_dev,
              "%d is not what was sent", fd);
    close(fd);
}

/* Lets this process open `room` more descriptors. Returns the previous limit. */
static struct rlimit limit(int room)
{
    struct rlimit was = {0}, tight;
    int end = 0;

    fuzz_must(getrlimit(RLIMIT_NOFILE, &was) == 0, "getrlimit: %s", strerror(errno));
    tight = was;
    for (; fcntl(end, F_GETFD) >= 0 || room > 0; end++)
        room -= fcntl(end, F_GETFD) < 0;
    tight.rlim_cur = (rlim_t)end;
    fuzz_must(setrlimit(RLIMIT_NOFILE, &tight) == 0, "setrlimit: %s", strerror(errno));
    return was;
}

/* An empty message without descriptors looks like the end of the connection. The receiver then
 * looks a second time and skips it. Returns whether there was one. */
static int skip_empty(struct run *run)
{
    const struct message *m = &run->queue[run->first];

    if (run->count == 0 || m->bytes > 0 || m->fds > 0)
        return 0;
    run->first = (run->first + 1) % MOST_QUEUED;
    run->count--;
    return 1;
}

static void receive_message(struct run *run)
{
    enum { UNTOUCHED = -77 };
    const int empty = skip_empty(run);
    const struct message *m = &run->queue[run->first];
    const unsigned shape = fuzz_byte(&run->in);
    const int place = (int)(shape & 1);
    const int tight = (shape & 2) != 0;
    const int room = tight ? (int)(shape >> 2 & 3) : MOST_FDS;
    const struct rlimit was = tight ? limit(room) : (struct rlimit){0};
    union sw_frame *frame = malloc(sizeof *frame); /* separate block, so an overrun is detected */
    int fd = UNTOUCHED;
    int error, want;

    if (frame == NULL)
        abort();
    error = sw_frame_receive_now(run->ends[1], frame, place ? &fd : NULL);
    if (tight)
        setrlimit(RLIMIT_NOFILE, &was);
    want = run->count > 0 ? expected(m, place, room) : run->shut ? EPIPE : empty ? EPROTO : EAGAIN;
    fuzz_must(error == want, "%s, not %s", strerror(error), strerror(want));
    if (error == 0) {
        check_frame(m, frame);
        if (place)
            check_descriptor(run, m, fd);
    } else {
        fuzz_must(fd == UNTOUCHED, "a failure left descriptor %d", fd);
    }
    free(frame);
    if (run->count > 0) {
        run->first = (run->first + 1) % MOST_QUEUED;
        run->count--;
    }
    sw_closer_wait(10);
    fuzz_must(fuzz_open_descriptors(SCANNED) == run->open, "%d descriptors are open, not %d",
              fuzz_open_descriptors(SCANNED), run->open);
}

/* ---- the program ---- */

static void start(struct run *run, const uint8_t *data, size_t size)
{
    run->in = (struct fuzz_input){data, size};
    run->shut = run->first = run->count = 0;
    if (sample_fd < 0)
        sample_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    fuzz_must(sample_fd >= 0 && fstat(sample_fd, &run->sample) == 0, "/dev/null: %s",
              strerror(errno));
    fuzz_must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, run->ends) == 0,
              "socketpair: %s", strerror(errno));
    run->open = fuzz_open_descriptors(SCANNED);
}

static void step(struct run *run)
{
    switch (fuzz_byte(&run->in) % 8) {
    case 0:
    case 1:
    case 2:
        send_message(run);
        break;
    case 7: /* rare: nothing can be sent afterwards */
        if (fuzz_byte(&run->in) % 4 == 0) {
            shutdown(run->ends[0], SHUT_WR);
            run->shut = 1;
        }
        break;
    default:
        receive_message(run);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run; /* messages need no clearing */
    int before, steps;

    before = fuzz_open_descriptors(SCANNED) + (sample_fd < 0);
    start(&run, data, size);
    for (steps = 0; steps < MOST_STEPS && run.in.left > 0; steps++)
        step(&run);
    close(run.ends[0]);
    close(run.ends[1]);
    fuzz_must(sw_closer_wait(10), "descriptors that nobody wants stay open");
    fuzz_must(fuzz_open_descriptors(SCANNED) == before, "descriptors stay open at the end");
    return 0;
}
