/* Unauthenticated connections to the id's creator while a job of three starts: silent, numerous,
 * with garbage, or with proofs that are replayed, moved, altered or reflected. They are dropped,
 * and the job completes as soon as its last rank joins. */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>

#include "attacked.h"
#include "old_system.h"

enum { LINGER_S = 6 };

/* make() returns whether the creator reacted as it should. Connections in `held` (-1: none) stay
 * open until the job is done. */
struct attack {
    const char *name;
    int (*make)(const symwin_unique_id *id, const struct attack *attack);
    long number;
    int old; /* the system cannot refuse descriptors */
};

static int held[MOST];

static int clock_jumps; /* the time of day reads an hour ahead of the system's */

/* Replaces the C library's. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int error = (int)syscall(SYS_clock_gettime, clock, now);

    if (clock == CLOCK_REALTIME && clock_jumps)
        now->tv_sec += 3600;
    return error;
}

/* ---- silence --------------------------------------------------------------------------------- */

static int silent(const symwin_unique_id *id, const struct attack *attack)
{
    long i;

    for (i = 0; i < attack->number; i++)
        if ((held[i] = hostile_connect(id)) < 0)
            return 0;
    /* over the listener's limit: the oldest are dropped */
    return attack->number < MOST || hostile_refused(held[0], SYMWIN_BUSY);
}

/* Whether the creator closes the connection, without a word, after some seconds. */
static int is_closed(int fd, int64_t begin)
{
    enum { LEAST_MS = 3000, MOST_MS = 9000 };
    struct pollfd closed = {.fd = fd, .events = POLLIN};
    char byte;

    return poll(&closed, 1, MOST_MS) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) == 0 &&
           sw_now_ms() - begin > LEAST_MS;
}

/* One that says nothing, and one that falls silent. */
static int silent_for_long(const symwin_unique_id *id, const struct attack *attack)
{
    const int64_t begin = sw_now_ms();
    struct hostile h;

    (void)attack;
    held[0] = hostile_connect(id);
    if (held[0] < 0 || !hostile_begin(&h, id) || !hostile_greet(&h))
        return 0;
    held[1] = h.socket;
    return is_closed(held[0], begin) && is_closed(held[1], begin);
}

static int silent_after_hello(const symwin_unique_id *id, const struct attack *attack)
{
    struct hostile h;
    long i;

    for (i = 0; i < attack->number; i++) {
        if (!hostile_begin(&h, id) || !hostile_greet(&h))
            return 0;
        held[i] = h.socket;
    }
    return 1;
}

/* A rank that has sent HELLO is in its handshake. Connections that are still silent must not push
 * it out, however many they are. */
static int silent_around_a_handshake(const symwin_unique_id *id, const struct attack *attack)
{
    union sw_frame join;
    struct hostile h;
    int refused;

    if (!hostile_begin(&h, id) || !hostile_greet(&h) || !silent(id, attack))
        return 0;
    join = hostile_join(&h, RANKS, LATE);
    join.join.proof[0] ^= 1;
    refused = hostile_send_frame(h.socket, &join) && hostile_refused(h.socket, SYMWIN_DENIED);
    close(h.socket);
    return refused;
}

/* The same over TCP, where frames are keyed after CHALLENGE. The refused client gets SYMWIN_BUSY,
 * so that it retries. */
static int sent_away_over_tcp(const symwin_unique_id *id, const struct attack *attack)
{
    const int64_t deadline = sw_now_ms() + HOSTILE_WAIT_MS;
    struct sockaddr_in to = {.sin_family = AF_INET};
    union sw_frame hello, challenge, frame;
    struct sw_connection channel;
    struct sw_id made;
    int right;

    memcpy(&made, id, sizeof made);
    to.sin_port = made.port;
    memcpy(&to.sin_addr, made.address, sizeof to.sin_addr);
    if (sw_connection_open(&channel, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), 1) != 0 ||
        connect(channel.fd, (struct sockaddr *)&to, sizeof to) != 0)
        return 0;
    hello = hostile_hello(id);
    right = sw_connection_send(&channel, &hello, -1, deadline) == 0 &&
            sw_connection_receive(&channel, &challenge, NULL, deadline) == 0 &&
            silent_after_hello(id, attack);
    sw_connection_key(&channel, 0, made.secret, &hello.hello, &challenge.challenge);
    right = right && sw_connection_receive(&channel, &frame, NULL, deadline) == 0 &&
            frame.header.type == SW_FRAME_REFUSAL && frame.refusal.status == SYMWIN_BUSY;
    sw_connection_close(&channel);
    return right;
}

static int come_and_go(const symwin_unique_id *id, const struct attack *attack)
{
    long i;

    for (i = 0; i < attack->number; i++) {
        const int fd = hostile_connect(id);

        if (fd < 0)
            return 0;
        close(fd);
    }
    return 1;
}

/* ---- garbage --------------------------------------------------------------------------------- */

/* Sends bytes on a new connection. Returns whether the connection is dropped. */
static int sent_in_vain(const symwin_unique_id *id, const void *data, size_t bytes, int fds)
{
    struct hostile h;
    int dropped;

    if (!hostile_begin(&h, id))
        return 0;
    dropped = hostile_send(h.socket, data, bytes, fds) && hostile_dropped(h.socket);
    close(h.socket);
    return dropped;
}

static int rubbish(const symwin_unique_id *id, const struct attack *attack)
{
    static unsigned char bytes[100000];
    uint64_t state = 7;
    size_t i;

    for (i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)host_random(&state);
    return sent_in_vain(id, bytes, (size_t)attack->number, 0);
}

static int cut_short(const symwin_unique_id *id, const struct attack *attack)
{
    const union sw_frame frame = hostile_hello(id);

    return sent_in_vain(id, &frame, (size_t)attack->number, 0);
}

/* Adds `number` to the length in the frame's header. */
static int lying_bytes(const symwin_unique_id *id, const struct attack *attack)
{
    union sw_frame frame = hostile_hello(id);
    const size_t bytes = frame.header.bytes;

    frame.header.bytes += (uint32_t)attack->number;
    return sent_in_vain(id, &frame, bytes, 0);
}

/* As before, but the frame has the length that it claims. */
static int too_long(const symwin_unique_id *id, const struct attack *attack)
{
    static struct {
        union sw_frame frame;
        char more[70000];
    } out;
    size_t bytes;

    out.frame = hostile_hello(id);
    bytes = out.frame.header.bytes + (size_t)attack->number;
    out.frame.header.bytes = (uint32_t)bytes;
    return sent_in_vain(id, &out, bytes, 0);
}

static int wrong_header(const symwin_unique_id *id, const struct attack *attack)
{
    union sw_frame frames[4];
    int i;

    (void)attack;
    for (i = 0; i < 4; i++)
        frames[i] = hostile_hello(id);
    frames[0].header.magic++;
    frames[1].header.form++;
    frames[2].header.zero = 1;
    frames[3].header.form = 0;
    for (i = 0; i < 4; i++)
        if (!sent_in_vain(id, &frames[i], frames[i].header.bytes, 0))
            return 0;
    return 1;
}

/* Every type except HELLO, known or not, as the first frame. */
static int wrong_type(const symwin_unique_id *id, const struct attack *attack)
{
    unsigned type;

    (void)attack;
    for (type = 0; type <= SW_FRAME_HANDLE + 3; type++) {
        union sw_frame frame;

        if (type == SW_FRAME_HELLO)
            continue;
        memset(&frame, 0, sizeof frame);
        frame.table.nranks = frame.table.processes = 1;
        sw_frame_seal(&frame, (enum sw_frame_type)type);
        if (type == SW_FRAME_JOIN)
            frame.join.timeout_ms = 1000;
        if (type == SW_FRAME_REFUSAL)
            frame.refusal.status = SYMWIN_DENIED;
        if (frame.header.bytes == 0)
            frame.header.bytes = sizeof frame.hello;
        if (!sent_in_vain(id, &frame, frame.header.bytes, 0))
            return 0;
    }
    return 1;
}

static int two_hellos(const symwin_unique_id *id, const struct attack *attack)
{
    struct hostile h;
    int dropped;

    (void)attack;
    if (!hostile_begin(&h, id) || !hostile_greet(&h))
        return 0;
    dropped = hostile_send_frame(h.socket, &h.hello) && hostile_dropped(h.socket);
    close(h.socket);
    return dropped;
}

static int unknown_name(const symwin_unique_id *id, const struct attack *attack)
{
    struct hostile h;
    int refused;

    (void)attack;
    if (!hostile_begin(&h, id))
        return 0;
    h.hello.hello.name[0] ^= 1;
    refused = hostile_send_frame(h.socket, &h.hello) && hostile_refused(h.socket, SYMWIN_INVALID);
    close(h.socket);
    return refused;
}

/* Descriptors with a frame that should have none are neither kept nor leaked. The creator counts
 * its own at the end (processes_fork()). */
static int with_descriptors(const symwin_unique_id *id, const struct attack *attack)
{
    const union sw_frame frame = hostile_hello(id);
    union sw_frame join;
    struct hostile h;
    int dropped;

    if (!hostile_begin(&h, id))
        return 0;
    if (!hostile_send(h.socket, &frame, frame.header.bytes, (int)attack->number)) {
        dropped = errno == EPERM && !attack->old; /* Linux 6.16 and later */
        close(h.socket);
        return dropped;
    }
    dropped = hostile_dropped(h.socket);
    close(h.socket);
    if (!dropped || !hostile_begin(&h, id) || !hostile_greet(&h))
        return 0;
    join = hostile_join(&h, RANKS, LATE);
    dropped = hostile_send(h.socket, &join, join.header.bytes, (int)attack->number) &&
              hostile_dropped(h.socket);
    close(h.socket);
    return dropped;
}

/* A descriptor whose close takes longer than the job may take. It comes with a frame that is
 * received, or after one for which the connection is closed. Nobody may wait for that close. */
static int with_lingering_ones(const symwin_unique_id *id, const struct attack *attack)
{
    const union sw_frame frame = hostile_hello(id);
    int right = 1, i;

    for (i = 0; i < attack->number && right; i++) {
        const int fd = hostile_slow(LINGER_S, &held[2 * i]), socket = hostile_connect(id);

        if (i % 2 != 0)
            right = hostile_send(socket, "rubbish", 7, 0);
        if (!hostile_send_with(socket, &frame, frame.header.bytes - 1, fd)) {
            right &= errno == EPIPE || (errno == EPERM && !attack->old);
            close(held[2 * i]); /* this process closes it soon */
            held[2 * i] = -1;
        }
        close(fd); /* if the frame was sent, the receiver has the last reference */
        held[2 * i + 1] = socket;
    }
    return right;
}

/* ---- proofs ---------------------------------------------------------------------------------- */

static int join_is_refused(struct hostile *h, const union sw_frame *join)
{
    const int refused = hostile_send_frame(h->socket, join) &&
                        hostile_refused(h->socket, SYMWIN_DENIED);

    close(h->socket);
    return refused;
}

/* A frame of one connection is sent again on another. */
static int replayed(const symwin_unique_id *id, const struct attack *attack)
{
    struct hostile first, second;
    union sw_frame join;

    (void)attack;
    if (!hostile_begin(&first, id) || !hostile_greet(&first))
        return 0;
    join = hostile_join(&first, RANKS, LATE);
    close(first.socket);
    return hostile_begin(&second, id) && hostile_greet(&second) && join_is_refused(&second, &join);
}

/* Flips one bit of every byte after the header: rank, parameters and proof. */
static int altered(const symwin_unique_id *id, const struct attack *attack)
{
    size_t at;

    (void)attack;
    for (at = sizeof(struct sw_frame_header); at < sizeof(struct sw_frame_join); at++) {
        union sw_frame join;
        struct hostile h;

        if (!hostile_begin(&h, id) || !hostile_greet(&h))
            return 0;
        join = hostile_join(&h, RANKS, LATE);
        ((unsigned char *)&join)[at] ^= (unsigned char)(1u << at % 8);
        /* an invalid frame is not even answered */
        if (!sw_frame_valid(&join, join.header.bytes)) {
            const int dropped = hostile_send_frame(h.socket, &join) && hostile_dropped(h.socket);

            close(h.socket);
            if (!dropped)
                return 0;
        } else if (!join_is_refused(&h, &join)) {
            fprintf(stderr, "byte %zu of JOIN is not proved\n", at);
            return 0;
        }
    }
    return 1;
}

static int wrong_key(const symwin_unique_id *id, const struct attack *attack)
{
    union sw_frame join;
    struct hostile h;

    (void)attack;
    if (!hostile_begin(&h, id) || !hostile_greet(&h))
        return 0;
    h.id.secret[31] ^= 0x80;
    join = hostile_join(&h, RANKS, LATE);
    return join_is_refused(&h, &join);
}

/* The creator's own proof, of this connection or for a nonce of our choice. */
static int reflected(const symwin_unique_id *id, const struct attack *attack)
{
    struct hostile h, oracle;
    union sw_frame join;

    if (!hostile_begin(&h, id) || !hostile_greet(&h))
        return 0;
    join = hostile_join(&h, RANKS, LATE);
    memcpy(join.join.proof, h.challenge.challenge.proof, SW_DIGEST_BYTES);
    if (attack->number != 0) {
        if (!hostile_begin(&oracle, id))
            return 0;
        memcpy(oracle.hello.hello.nonce, h.challenge.challenge.nonce, SW_KEY_BYTES);
        if (!hostile_greet(&oracle))
            return 0;
        close(oracle.socket);
        memcpy(join.join.proof, oracle.challenge.challenge.proof, SW_DIGEST_BYTES);
    }
    return join_is_refused(&h, &join);
}

/* A valid JOIN, but from another process. */
static int wrong_pid(const symwin_unique_id *id, const struct attack *attack)
{
    union sw_frame join;
    struct hostile h;

    (void)attack;
    if (!hostile_begin(&h, id) || !hostile_greet(&h))
        return 0;
    join = hostile_join(&h, RANKS, LATE);
    join.join.pid = getppid();
    hostile_prove(&h, &join);
    return join_is_refused(&h, &join);
}

/* ---- the job --------------------------------------------------------------------------------- */

static const struct attack attacks[] = {
    {"one silent client", silent, 1, 0},
    {"two clients that are silent for seconds", silent_for_long, 2, 0},
    {"200 silent clients", silent, MOST, 0},
    {"100 clients that fall silent after HELLO", silent_after_hello, 100, 0},
    {"200 clients that fall silent after HELLO", silent_after_hello, MOST, 0},
    {"200 silent clients around a handshake", silent_around_a_handshake, MOST, 0},
    {"200 clients around a handshake over TCP", sent_away_over_tcp, MOST, 0},
    {"1000 clients that come and go", come_and_go, 1000, 0},
    {"1 byte of rubbish", rubbish, 1, 0},
    {"64 bytes of rubbish", rubbish, 64, 0},
    {"100,000 bytes of rubbish", rubbish, 100000, 0},
    {"an empty frame", cut_short, 0, 0},
    {"half a header", cut_short, 8, 0},
    {"a header alone", cut_short, sizeof(struct sw_frame_header), 0},
    {"a HELLO without its last byte", cut_short, sizeof(struct sw_frame_hello) - 1, 0},
    {"a frame that says it is one byte shorter", lying_bytes, -1, 0},
    {"a frame that says it is one byte longer", lying_bytes, 1, 0},
    {"a frame that says it is 4 GiB longer", lying_bytes, 0xffffff00, 0},
    {"a HELLO of one byte more", too_long, 1, 0},
    {"a HELLO of 64 KiB", too_long, 65536, 0},
    {"wrong magic, wrong form", wrong_header, 0, 0},
    {"every type but HELLO first", wrong_type, 0, 0},
    {"two HELLOs", two_hellos, 0, 0},
    {"an unknown name", unknown_name, 0, 0},
    {"a descriptor", with_descriptors, 1, 0},
    {"3 descriptors", with_descriptors, 3, 0},
    {"200 descriptors", with_descriptors, HOSTILE_MOST_FDS, 0},
    {"a descriptor, on an older system", with_descriptors, 1, 1},
    {"3 descriptors, on an older system", with_descriptors, 3, 1},
    {"200 descriptors, on an older system", with_descriptors, HOSTILE_MOST_FDS, 1},
    {"descriptors whose close takes its time", with_lingering_ones, 8, 0},
    {"descriptors whose close takes its time, on an older system", with_lingering_ones, 8, 1},
    {"a recorded JOIN", replayed, 0, 0},
    {"a JOIN altered at each byte", altered, 0, 0},
    {"a wrong key", wrong_key, 0, 0},
    {"the creator's proof as one's own", reflected, 0, 0},
    {"the creator's proof for a nonce of one's choice", reflected, 1, 0},
    {"another's pid", wrong_pid, 0, 0},
};

/* rank[ATTACKER].step: 1 once the attack was made. */
static void attacker(struct processes *p, int rank)
{
    const struct attack *attack = p->arg;
    int i;

    for (i = 0; i < MOST; i++)
        held[i] = -1;
    hostile_wait_for_id(p);
    tap_failures += !attack->make(&p->id, attack);
    p->rank[rank].step = 1;
    for (i = 0; i < RANKS; i++)
        while (p->rank[i].status < 0)
            usleep(200);
    for (i = 0; i < MOST; i++)
        if (held[i] >= 0)
            close(held[i]);
}

static void job(struct processes *p, int rank)
{
    const struct attack *attack = p->arg;

    is_old = attack->old;
    if (attack->make == sent_away_over_tcp)
        setenv("SYMWIN_ADDR", "127.0.0.1", 1);
    harness_device_count(); /* loads the driver first: it is not part of the measured time */
    while (rank == LATE && p->rank[ATTACKER].step == 0)
        usleep(200);
    p->rank[rank].number = processes_now_us();
    host_must(hostile_job(p, rank), "the job");
}

/* The time of day is set back while a thread waits for the closer thread. */
static void jump(void)
{
    const int64_t begin = sw_now_ms();
    int reader, done;

    sw_closer_close(hostile_slow(LINGER_S, &reader));
    clock_jumps = 1;
    done = sw_closer_wait(1);
    clock_jumps = 0;
    tap_ok(!done && sw_now_ms() - begin < 1000 * LINGER_S / 2,
           "a wait of a second takes one, also where the time of day is set back");
    close(reader);
    tap_ok(sw_closer_wait(LINGER_S), "and what nobody wants is closed");
}

int main(void)
{
    size_t i;

    hostile_close_inherited();
    for (i = 0; i < sizeof attacks / sizeof attacks[0]; i++)
        hostile_run(attacks[i].name, &attacks[i], job, attacker);
    jump();
    return tap_done();
}
