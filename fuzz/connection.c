/* Fuzzer of frames over TCP. Whatever bytes arrive, in whatever pieces, sw_connection_receive_now()
 * must return the frames that were sent, whole and in order, up to the first invalid one; with a
 * key, only those that the other end made. It must not take bytes behind a frame.
 *
 * Input: a small program. Frames with right and with wrong tags are written to a buffer and sent
 * through a pair of sockets in pieces. A model reads the same bytes and tells what each reception
 * must give.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "src/control/control.h"

enum {
    MOST_STEPS = 96,
    MOST_BYTES = 6 * (int)SW_CONNECTION_BYTES, /* of the buffer */
    MOST_PIECE = 40000,
    SCANNED = 64
};

/* A frame that the other end made with its key: only these may be received, in order. */
struct made {
    size_t at;   /* position in the stream; LOST: not written, or without its tag */
    size_t kept; /* position of the original */
    size_t bytes;
};

static const size_t LOST = SIZE_MAX;
static union sw_frame untouched; /* the frame before a reception */

struct run {
    struct fuzz_input in;
    struct sw_connection near, far; /* near receives */
    int keyed, ended, over;
    unsigned char key[SW_KEY_BYTES];
    unsigned char stream[MOST_BYTES];
    size_t written;  /* bytes of the stream that were written */
    size_t sent;     /* bytes sent */
    size_t taken;    /* bytes of frames received */
    uint64_t number; /* of the next keyed frame, as counted by the other end */
    uint64_t came;   /* keyed frames received */
    struct made made[MOST_STEPS];
    unsigned char kept[MOST_BYTES];
    size_t made_count, kept_bytes;
};

/* ---- writing frames ---- */

/* The tag that follows a frame, computed independently. */
static void make_tag(const unsigned char key[SW_KEY_BYTES], int from_creator, uint64_t number,
                     const unsigned char *frame, size_t bytes, unsigned char tag[SW_DIGEST_BYTES])
{
    unsigned char words[16] = {(unsigned char)from_creator};
    const struct sw_part parts[] = {{words, sizeof words}, {frame, bytes}};
    int i;

    for (i = 0; i < 8; i++)
        words[8 + i] = (unsigned char)(number >> 8 * i);
    sw_hmac(key, parts, 2, tag);
}

/* A change that the owner of the key can make, too: another length, or another byte, mostly of the
 * header. */
static void misshape_frame(struct run *run, union sw_frame *frame, int length)
{
    enum { WHOLE = sizeof *frame };
    static const uint32_t lengths[] = {
        0,     12,        15,         16,        17,         65536,          WHOLE - 1,
        WHOLE, WHOLE + 1, WHOLE + 32, INT32_MAX, UINT32_MAX, UINT32_MAX - 31};
    unsigned char *bytes = (unsigned char *)frame;
    const size_t at = fuzz_byte(&run->in);

    if (length)
        frame->header.bytes = lengths[at % (sizeof lengths / sizeof lengths[0])];
    else
        bytes[at < 128 ? at % 32 : at % frame->header.bytes] = (unsigned char)fuzz_byte(&run->in);
}

/* A valid frame of any type, or nearly valid. */
static void make_frame(struct run *run, union sw_frame *frame)
{
    const unsigned kind = fuzz_byte(&run->in), detail = fuzz_byte(&run->in);
    const enum sw_frame_type type = (enum sw_frame_type)(1 + kind % SW_FRAME_READY);
    const int ranks = 1 + (int)(detail % 64) * (detail < 64 ? 1 : 65) % SW_MAX_RANKS;

    memset(frame, (int)(kind >> 4), sizeof *frame);
    if (type == SW_FRAME_TABLE) {
        memset(&frame->table, 0, sizeof frame->table);
        frame->table.nranks = ranks;
        frame->table.processes = frame->table.hosts = 1;
    }
    if (type == SW_FRAME_POST) {
        const struct sw_post post = {(int)detail, (int)detail % 8};

        frame->post.bytes = (int)sizeof post + post.bytes;
        memcpy(frame->post.posts, &post, sizeof post);
    }
    sw_frame_seal(frame, type);
    if (type == SW_FRAME_JOIN)
        frame->join.timeout_ms = 1 + (int)detail;
    if (type == SW_FRAME_PAGE || type == SW_FRAME_SOCKET)
        frame->pass.process = (int)detail;
    if (type == SW_FRAME_REFUSAL) {
        frame->refusal.status = 1 + (int)detail % SYMWIN_STATUS_LAST;
        frame->refusal.rank = (int)detail + SW_FRAME_UNKNOWN;
    }
    if (type == SW_FRAME_HANDLE)
        frame->handle.rank = frame->handle.status = (int)(detail % 8);
    if (type == SW_FRAME_HERE)
        frame->here.folder[0] = '/';
    if (type == SW_FRAME_LINK)
        frame->link.host = (int)detail, frame->link.creator = (int)(detail & 1);
    if (type == SW_FRAME_LEAVE || type == SW_FRAME_END)
        frame->end.rank = frame->end.status = 1 + (int)detail % 8;
    if (kind >= 192)
        misshape_frame(run, frame, kind >= 224);
}

static void put(struct run *run, const void *bytes, size_t count)
{
    memcpy(run->stream + run->written, bytes, count);
    run->written += count;
}

static void note_made(struct run *run, size_t at, const void *frame, size_t bytes)
{
    memcpy(run->kept + run->kept_bytes, frame, bytes);
    run->made[run->made_count++] = (struct made){at, run->kept_bytes, bytes};
    run->kept_bytes += bytes;
}

/* What can happen to a frame on its way; most pass unchanged. */
enum spoil {
    TAG_CHANGED,
    TAG_CUT,
    TAG_MISSING,
    TAG_FIRST,
    FRAME_CHANGED,
    FRAME_CUT,
    FRAME_LOST,
    FRAME_TWICE,
    FRAME_AGAIN,  /* an earlier one */
    NUMBER_WRONG, /* from here on: not made by the other end */
    DIRECTION_WRONG,
    KEY_WRONG,
    SPOILS
};

static void put_again(struct run *run, unsigned which)
{
    const struct made *before = &run->made[which % (run->made_count + 1)];

    if (before < run->made + run->made_count && before->at != LOST)
        put(run, run->stream + before->at, before->bytes + SW_DIGEST_BYTES);
}

static void put_foreign(struct run *run, enum spoil spoil, const union sw_frame *frame,
                        size_t bytes, unsigned detail)
{
    unsigned char key[SW_KEY_BYTES], tag[SW_DIGEST_BYTES];
    const int from_creator = run->near.creator ^ (spoil != DIRECTION_WRONG);
    uint64_t number = run->number;

    memcpy(key, run->key, sizeof key);
    if (spoil == KEY_WRONG)
        key[detail % sizeof key] ^= (unsigned char)(1 + detail % 255);
    if (spoil == NUMBER_WRONG)
        number += 1 + (uint64_t)detail;
    make_tag(key, from_creator, number, (const unsigned char *)frame, bytes, tag);
    put(run, frame, bytes);
    put(run, tag, sizeof tag);
}

/* Changes that are possible without the key. */
static void put_spoilt(struct run *run, enum spoil spoil, union sw_frame *frame, size_t bytes)
{
    const unsigned detail = fuzz_byte(&run->in);
    unsigned char *const data = (unsigned char *)frame;
    unsigned char tag[SW_DIGEST_BYTES];
    const size_t at = run->written;

    if (spoil == FRAME_AGAIN) {
        put_again(run, detail);
        return;
    }
    if (spoil >= NUMBER_WRONG) {
        put_foreign(run, spoil, frame, bytes, detail);
        return;
    }
    make_tag(run->key, !run->near.creator, run->number++, data, bytes, tag);
    note_made(run, spoil == FRAME_TWICE ? at : LOST, frame, bytes);
    if (spoil == TAG_CHANGED)
        tag[detail % sizeof tag] ^= (unsigned char)(1u << detail / sizeof tag);
    if (spoil == FRAME_CHANGED)
        data[(detail & 1) != 0 ? detail % 32 / 2 : detail * 67 % bytes] ^=
            (unsigned char)(1 + detail % 255);
    run->far.sent = run->number;
    if (spoil == TAG_FIRST)
        put(run, tag, sizeof tag);
    if (spoil != FRAME_LOST)
        put(run, frame, spoil == FRAME_CUT ? detail * 67 % bytes : bytes);
    if (spoil != TAG_MISSING && spoil != TAG_FIRST && spoil != FRAME_LOST)
        put(run, tag, spoil == TAG_CUT ? detail % sizeof tag : sizeof tag);
    if (spoil == FRAME_TWICE)
        put_again(run, (unsigned)run->made_count - 1);
}

/* Writes an unchanged frame, by the library or by hand. */
static void put_right(struct run *run, const union sw_frame *frame, size_t bytes, int send)
{
    const size_t at = run->written;
    unsigned char tag[SW_DIGEST_BYTES];

    put(run, frame, bytes);
    if (run->keyed) {
        make_tag(run->key, !run->near.creator, run->number, run->stream + at, bytes, tag);
        put(run, tag, sizeof tag);
        note_made(run, at, frame, bytes);
        run->number++;
    }
    if (!send) {
        run->far.sent = run->number;
        return;
    }
    fuzz_must(sw_connection_send(&run->far, frame, -1, sw_now_ms() + 20000) == 0,
              "a frame cannot be sent");
    run->sent = run->written;
}

static size_t unread(const struct run *run)
{
    int count = 0;

    fuzz_must(ioctl(run->near.fd, FIONREAD, &count) == 0, "FIONREAD: %s", strerror(errno));
    return (size_t)count;
}

static void write_frame(struct run *run, unsigned how)
{
    const unsigned spoil = fuzz_byte(&run->in);
    union sw_frame frame;
    size_t bytes;
    int send;

    if (run->ended || run->written > MOST_BYTES - 2 * SW_CONNECTION_BYTES ||
        run->kept_bytes > MOST_BYTES - SW_CONNECTION_BYTES)
        return;
    make_frame(run, &frame);
    bytes = frame.header.bytes;
    /* The frame's own length counts if it is possible. */
    if (bytes < sizeof frame.header || bytes > sizeof frame)
        bytes = sizeof frame.header;
    send = (how & 8) != 0 && frame.header.bytes == bytes && run->sent == run->written &&
           unread(run) == 0;
    if (spoil >= 240 && run->keyed)
        put_spoilt(run, (enum spoil)(fuzz_byte(&run->in) % SPOILS), &frame, bytes);
    else
        put_right(run, &frame, bytes, send);
}

static void write_bytes(struct run *run, unsigned count)
{
    for (; count > 0 && !run->ended && run->written <= MOST_BYTES - 2 * SW_CONNECTION_BYTES;
         count--)
        run->stream[run->written++] = (unsigned char)fuzz_byte(&run->in);
}

/* ---- the model ---- */

/* What the sent bytes give next, and the length of that frame. */
static int expected(const struct run *run, size_t *bytes)
{
    const unsigned char *at = run->stream + run->taken;
    const size_t left = run->sent - run->taken;
    const int nothing = run->ended ? EPIPE : EAGAIN;
    unsigned char tag[SW_DIGEST_BYTES];
    union sw_frame frame;

    if (left < sizeof frame.header)
        return nothing;
    memcpy(&frame, at, sizeof frame.header);
    *bytes = frame.header.bytes;
    if (frame.header.magic != SW_FRAME_MAGIC || *bytes < sizeof frame.header ||
        *bytes > sizeof frame)
        return EPROTO;
    if (left < *bytes + (run->keyed ? sizeof tag : 0))
        return nothing;
    memcpy(&frame, at, *bytes);
    if (run->keyed)
        make_tag(run->key, !run->near.creator, run->came, at, *bytes, tag);
    if (run->keyed && memcmp(tag, at + *bytes, sizeof tag) != 0)
        return EACCES; /* EPROTO, and the frame must stay hidden */
    return sw_frame_valid(&frame, *bytes) ? 0 : EPROTO;
}

/* The same bytes, except for a text's terminating zero; and no others. */
static void check_frame(const struct run *run, const union sw_frame *got, size_t bytes)
{
    union sw_frame want;

    want = untouched;
    memcpy(&want, run->stream + run->taken, bytes);
    sw_frame_valid(&want, bytes);
    fuzz_must(memcmp(&want, got, sizeof want) == 0, "another frame came than was sent");
    if (!run->keyed)
        return;
    fuzz_must(run->came < run->made_count && run->made[run->came].bytes == bytes &&
                  memcmp(run->kept + run->made[run->came].kept, run->stream + run->taken, bytes) ==
                      0,
              "frame %llu is not the one that the other end made", (unsigned long long)run->came);
}

/* Returns the result. */
static int receive(struct run *run)
{
    union sw_frame *frame = malloc(sizeof *frame); /* separate block, so an overrun is detected */
    size_t bytes = 0;
    int want = expected(run, &bytes);
    int fd = -77;
    int error;

    if (frame == NULL)
        abort();
    *frame = untouched;
    error = sw_connection_receive_now(&run->near, frame, bytes % 2 == 0 ? &fd : NULL);
    fuzz_must(fd == -77 || fd == -1, "descriptor %d came over a stream", fd);
    fuzz_must(error == (want == EACCES ? EPROTO : want), "%s, not %s", strerror(error),
              strerror(want));
    if (error == 0) {
        check_frame(run, frame, bytes);
        run->taken += bytes + (run->keyed ? SW_DIGEST_BYTES : 0);
        run->came += (uint64_t)run->keyed;
        fuzz_must(unread(run) == run->sent - run->taken, "%zu bytes are unread, not %zu",
                  unread(run), run->sent - run->taken);
    } else if (want != EPROTO) {
        fuzz_must(memcmp(frame, &untouched, sizeof *frame) == 0,
                  "bytes were shown that have no right tag, or are no whole frame");
    }
    free(frame);
    run->over = error != 0 && error != EAGAIN; /* any such error closes the connection */
    return error;
}

/* ---- the program ---- */

static void send_piece(struct run *run, size_t most)
{
    const size_t left = run->written - run->sent;
    ssize_t count;

    if (most > left)
        most = left;
    if (most > MOST_PIECE)
        most = MOST_PIECE;
    if (run->ended || most == 0)
        return;
    count = send(run->far.fd, run->stream + run->sent, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0)
        run->sent += (size_t)count;
}

static size_t piece(struct run *run)
{
    static const size_t pieces[] = {1,  2,  15, 16,   17,   31,         32,        33,
                                    47, 48, 49, 1000, 8192, MOST_BYTES, MOST_BYTES};
    const unsigned choice = fuzz_byte(&run->in);

    return choice < 64 ? pieces[choice % (sizeof pieces / sizeof pieces[0])] : choice - 63;
}

static void use_key(struct run *run)
{
    struct sw_frame_hello hello;
    struct sw_frame_challenge challenge;
    const unsigned char secret[SW_KEY_BYTES] = {'s', 'e', 'c', 'r', 'e', 't'};
    const struct sw_part parts[] = {{"symwin channel", 14},
                                    {hello.nonce, sizeof hello.nonce},
                                    {challenge.nonce, sizeof challenge.nonce}};
    const int creator = (int)(fuzz_byte(&run->in) & 1);

    memset(&hello, 1, sizeof hello);
    memset(&challenge, 2, sizeof challenge);
    sw_connection_key(&run->near, creator, secret, &hello, &challenge);
    sw_connection_key(&run->far, !creator, secret, &hello, &challenge);
    sw_hmac(secret, parts, 3, run->key);
    run->keyed = 1;
}

/* Ends the stream in order, or with unread data of ours, which resets the connection. */
static void end_stream(struct run *run, int reset)
{
    union sw_frame frame;

    run->ended = 1;
    if (!reset) {
        shutdown(run->far.fd, SHUT_WR);
        return;
    }
    sw_frame_seal(&frame, SW_FRAME_HELLO);
    memset(&frame.hello.name, 0, sizeof frame.hello - sizeof frame.header);
    (void)sw_connection_send(&run->near, &frame, -1, sw_now_ms() + 20000);
    sw_connection_close(&run->far);
}

/* Receives all that is left; then the stream must end. */
static void drain(struct run *run)
{
    int error = 0;

    while (!run->over && (error == 0 || run->sent < run->written)) {
        send_piece(run, MOST_PIECE);
        error = receive(run);
    }
}

static void step(struct run *run)
{
    const unsigned what = fuzz_byte(&run->in);

    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        write_frame(run, what);
        break;
    case 3:
        receive(run);
        break;
    case 4:
    case 5:
    case 6:
        send_piece(run, piece(run));
        if ((what & 8) == 0)
            receive(run);
        break;
    case 7: /* rare */
        if (what < 128 && !run->keyed) {
            if (what < 96)
                drain(run);
            use_key(run);
        } else if (what >= 240) {
            end_stream(run, what >= 248);
        } else if (what >= 224) {
            write_bytes(run, 1 + what % 32);
        }
    }
}

static void start(struct run *run, const uint8_t *data, size_t size)
{
    int ends[2];

    memset(run, 0, offsetof(struct run, stream));
    memset(&untouched, 0xa5, sizeof untouched);
    run->written = run->sent = run->taken = run->made_count = run->kept_bytes = 0;
    run->number = run->came = 0;
    run->in = (struct fuzz_input){data, size};
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair: %s",
              strerror(errno));
    fuzz_must(sw_connection_open(&run->near, ends[0], 1) == 0 &&
                  sw_connection_open(&run->far, ends[1], 1) == 0,
              "no memory for a channel");
    if ((fuzz_byte(&run->in) & 1) != 0)
        use_key(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    const int before = fuzz_open_descriptors(SCANNED);
    int steps;

    start(&run, data, size);
    for (steps = 0; steps < MOST_STEPS && run.in.left > 0 && !run.over; steps++)
        step(&run);
    drain(&run);
    sw_connection_close(&run.near);
    sw_connection_close(&run.far);
    fuzz_must(fuzz_open_descriptors(SCANNED) == before, "descriptors stay open at the end");
    return 0;
}
