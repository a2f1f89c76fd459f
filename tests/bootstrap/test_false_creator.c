/* What a false creator tells a rank: frames that are wrong, without proof, or with descriptors.
 *
 * A rank asks for proof of the secret, and sends no proof of its own before it has that one. It
 * gives up when its timeout expires. */
#include <fcntl.h>
#include <netinet/tcp.h>

#include "false_creator.h"
#include "old_system.h"

enum { LINK_KEY = 0xa7 }; /* each byte of it; HMAC has no such padding */
enum { LINGER_S = 6 };

#define WRONG_PAGE "rank 0, whose process made the id, sent a wrong control page"

/* ---- without the secret ---------------------------------------------------------------------- */

static void answer_rubbish(int fd, union sw_frame *hello)
{
    memset(hello, 0x77, sizeof *hello);
    hostile_send(fd, hello, sizeof *hello, 0);
}

static void answer_reflected(int fd, union sw_frame *hello)
{
    hostile_send_frame(fd, hello);
}

static void answer_without_proof(int fd, union sw_frame *hello)
{
    union sw_frame frame = challenge();

    hostile_send_frame(fd, &frame);
    /* the rank must not send its own proof now */
    if (hostile_answer(fd, hello) != EPIPE) {
        fprintf(stderr, "the rank goes on with a creator that has no secret\n");
        tap_failures++;
    }
}

static void answer_with_another_key(int fd, union sw_frame *hello)
{
    static const unsigned char key[SW_KEY_BYTES] = {1, 2, 3};
    union sw_frame frame = challenge();

    sw_frame_prove_creator(key, &hello->hello, &frame.challenge, frame.challenge.proof);
    hostile_send_frame(fd, &frame);
}

/* Linux 6.16 and later refuse the descriptors: then the frame comes without them, and is not
 * accepted either. */
static void answer_with(int fd, int count)
{
    union sw_frame frame = challenge();

    if (!hostile_send(fd, &frame, frame.header.bytes, count) && errno == EPERM)
        hostile_send_frame(fd, &frame);
}

static void answer_with_descriptors(int fd, union sw_frame *hello)
{
    (void)hello;
    answer_with(fd, 3);
}

static void answer_with_many_descriptors(int fd, union sw_frame *hello)
{
    (void)hello;
    answer_with(fd, HOSTILE_MOST_FDS);
}

static void answer_table(int fd, union sw_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    hello->table.nranks = 2;
    hello->table.processes = 1;
    hello->table.hosts = 1;
    sw_frame_seal(hello, SW_FRAME_TABLE);
    hostile_send_frame(fd, hello);
}

static void answer_refusal_of_success(int fd, union sw_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    hostile_send_frame(fd, hello);
}

static void answer_busy(int fd, union sw_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    strcpy(hello->refusal.text, "too many");
    hello->refusal.status = SYMWIN_BUSY;
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    hostile_send_frame(fd, hello);
}

/* An unterminated text, and a status out of range. */
static void answer_wild_refusal(int fd, union sw_frame *hello)
{
    memset(hello, 'A', sizeof *hello);
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    hello->refusal.status = 1 << 30;
    hostile_send_frame(fd, hello);
}

/* ---- with the secret ------------------------------------------------------------------------- */

/* The answer of a member, so that the rank joins and accepts descriptors. */
static void answer_well(int fd, const union sw_frame *hello)
{
    unsigned char secret[SW_KEY_BYTES];
    union sw_frame frame = challenge();

    memset(secret, 0x33, sizeof secret);
    sw_frame_prove_creator(secret, &hello->hello, &frame.challenge, frame.challenge.proof);
    hostile_send_frame(fd, &frame);
    hostile_answer(fd, &frame);
}

/* The frames of a table of so many ranks that begin with these ranks. */
static void answer_tables(int fd, const union sw_frame *hello, int ranks, const int first[2])
{
    struct sw_rank_table table = {.nranks = ranks, .processes = ranks, .hosts = 1};
    union sw_frame frame;
    int i;

    table.locations = calloc((size_t)ranks, sizeof *table.locations);
    if (table.locations == NULL)
        abort();
    answer_well(fd, hello);
    for (i = 0; i < 2; i++) {
        sw_rank_table_put(&table, first[i], &frame);
        sw_frame_seal(&frame, SW_FRAME_TABLE);
        hostile_send_frame(fd, &frame);
    }
    sw_rank_table_free(&table);
}

static void answer_table_of_many(int fd, union sw_frame *hello)
{
    static const int first[] = {0, SW_TABLE_PART};

    answer_tables(fd, hello, 3000, first);
}

static void answer_table_twice(int fd, union sw_frame *hello)
{
    static const int first[] = {0, 0};

    answer_tables(fd, hello, 3000, first);
}

/* After the refusal comes a descriptor whose close takes long. The rank is stopped meanwhile, or it
 * could close the socket before that. */
static void answer_refusal_and_more(int fd, union sw_frame *hello)
{
    static int reader;
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    const int more = hostile_lingering(LINGER_S, &reader);

    answer_well(fd, hello);
    memset(hello, 0, sizeof *hello);
    strcpy(hello->refusal.text, "no more");
    hello->refusal.status = SYMWIN_ABORTED;
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        abort();
    kill(peer.pid, SIGSTOP);
    hostile_send_frame(fd, hello);
    hostile_send_with(fd, hello, hello->header.bytes, more);
    close(more);
    kill(peer.pid, SIGCONT);
}

static void hand_out_one(int fd, enum sw_frame_type type, int descriptor)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.pass);
    sw_frame_seal(&frame, type);
    hostile_send_fds(fd, &frame, frame.header.bytes, &descriptor, descriptor >= 0);
    close(descriptor);
}

/* Two ranks, and what passes for their control page, which this process then closes. -1: none is
 * sent. */
static void hand_out(int fd, const union sw_frame *hello, int hosts, int page)
{
    union sw_frame frame;

    answer_well(fd, hello);
    memset(&frame, 0, sizeof frame);
    frame.table.nranks = frame.table.processes = 2;
    frame.table.hosts = hosts;
    frame.table.locations[1].process = 1;
    frame.table.locations[0].host = (uint32_t)(hosts - 1); /* rank 1's is 0 */
    sw_frame_seal(&frame, SW_FRAME_TABLE);
    hostile_send_frame(fd, &frame);
    hand_out_one(fd, SW_FRAME_PAGE, page);
}

static void hand_out_page(int fd, const union sw_frame *hello, int page)
{
    hand_out(fd, hello, 1, page);
}

static void answer_without_page(int fd, union sw_frame *hello)
{
    hand_out_page(fd, hello, -1);
}

static void answer_lingering_page(int fd, union sw_frame *hello)
{
    static int reader;

    hand_out_page(fd, hello, hostile_lingering(LINGER_S, &reader));
}

static void answer_slow_page(int fd, union sw_frame *hello)
{
    static int reader;

    hand_out_page(fd, hello, hostile_slow(LINGER_S, &reader));
}

/* As large as needed, but the sender could shorten it, or nobody may write to it. */
static void answer_page_sealed(int fd, const union sw_frame *hello, int seals)
{
    const int page = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (page < 0 || ftruncate(page, 1 << 16) != 0 || fcntl(page, F_ADD_SEALS, seals) != 0)
        abort();
    hand_out_page(fd, hello, page);
}

static void answer_page_unsealed(int fd, union sw_frame *hello)
{
    answer_page_sealed(fd, hello, F_SEAL_GROW | F_SEAL_SEAL);
}

static void answer_page_read_only(int fd, union sw_frame *hello)
{
    answer_page_sealed(fd, hello, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

/* A socket that listens in place of a peer socket. In its queue is a connection with a descriptor
 * whose close takes long. */
static void answer_listening_socket(int fd, union sw_frame *hello)
{
    static int reader;
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int more = hostile_slow(LINGER_S, &reader);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof at.sun_family; /* the system chooses the name */
    int page;

    if (bind(listener, (struct sockaddr *)&at, bytes) != 0 || listen(listener, 1) != 0)
        abort();
    bytes = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &bytes);
    if (connect(client, (struct sockaddr *)&at, bytes) != 0 ||
        !hostile_send_with(client, "more", 4, more))
        abort();
    close(more);
    close(client);
    host_must(sw_exchange_page(2, &page), "sw_exchange_page");
    hand_out_page(fd, hello, page);
    hand_out_one(fd, SW_FRAME_SOCKET, listener);
}

/* A link between hosts that is no TCP connection. Its key must not stay in the rank's memory. */
static void answer_wrong_link(int fd, union sw_frame *hello)
{
    const int wrong = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int page;

    host_must(sw_exchange_page(2, &page), "sw_exchange_page");
    hand_out(fd, hello, 2, page);
    memset(hello, 0, sizeof hello->link);
    hello->link.host = 1;
    memset(hello->link.key, LINK_KEY, sizeof hello->link.key);
    sw_frame_seal(hello, SW_FRAME_LINK);
    hostile_send_fds(fd, hello, hello->header.bytes, &wrong, 1);
    close(wrong);
}

/* ---- silent, over TCP ------------------------------------------------------------------------ */

enum { LONG_MS = 5000, MOST_TIMES = 8 }; /* a rank waits 2 s for proof before it comes again */

/* Makes an id, and listens where it says. */
static int listen_by_tcp(struct processes *p, struct sw_id *id)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const pid_t own = getpid(); /* another test's id is another one, and so is its host's claim */
    socklen_t bytes = sizeof at;

    if (bind(listener, (struct sockaddr *)&at, bytes) != 0 || listen(listener, MOST_TIMES) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &bytes) != 0)
        abort();
    memset(id, 0, sizeof *id);
    memcpy(id->magic, "symwin02", sizeof id->magic);
    memset(id->creator, 1, sizeof id->creator);
    memcpy(id->secret, &own, sizeof own);
    id->family = AF_INET;
    id->port = at.sin_port;
    memcpy(id->address, &at.sin_addr, sizeof at.sin_addr);
    memcpy(&p->id, id, sizeof *id);
    p->id_made = 1;
    return listener;
}

/* Answers nobody. */
static void listen_in_silence(struct processes *p, int rank)
{
    struct sw_id id;
    const int listener = listen_by_tcp(p, &id);
    int fds[MOST_TIMES];
    int times = 0;

    while (p->rank[RANK].status < 0) {
        struct pollfd come = {.fd = listener, .events = POLLIN};

        if (times < MOST_TIMES && poll(&come, 1, 1) > 0)
            fds[times++] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    }
    p->rank[rank].number = times;
    while (times > 0)
        close(fds[--times]);
    close(listener);
}

/* Another process may listen there for a while, and then the creator. The rank connects again. */
static void meets_silence(struct processes *p, int rank)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = LONG_MS, .bootstrap_timeout_ms = LONG_MS};
    symwin_comm *comm = NULL;

    if (rank == CREATOR) {
        listen_in_silence(p, rank);
        must_be(p->rank[rank].number >= 2, "the rank comes again", rank);
        return;
    }
    hostile_wait_for_id(p);
    processes_note(p, rank, symwin_comm_create(&p->id, 2, 1, 0, &options, &comm));
    must_be(p->rank[rank].status == SYMWIN_TIMEOUT &&
                (host_error_has("has not proved") || host_error_has("did not answer in time")),
            "silence is no proof", rank);
}

/* ---- with the secret, over TCP --------------------------------------------------------------- */

/* Rank 1 of three, on a host of its own, joins for it. The process that made the id has two other
 * hosts, and is its creator and the host above. */
struct liar {
    struct sw_id id;
    int listener;
    struct sw_connection up, link; /* on which rank 1 has joined at the creator, and above */
};

struct lie {
    const char *name;
    void (*tell)(struct liar *own);
    const char *words;
    int culprit; /* as the creator is told; -1: none */
};

static void say(struct sw_connection *connection, union sw_frame *frame, enum sw_frame_type type)
{
    sw_frame_seal(frame, type);
    must_be(sw_connection_send(connection, frame, -1, sw_now_ms() + LONG_MS) == 0, "send", CREATOR);
}

static void hear(struct sw_connection *connection, union sw_frame *frame, enum sw_frame_type type)
{
    must_be(sw_connection_receive(connection, frame, NULL, sw_now_ms() + LONG_MS) == 0 &&
                frame->header.type == type,
            "receive", CREATOR);
}

static void greet(const struct liar *own, struct sw_connection *connection, union sw_frame *hello)
{
    sw_connection_open(connection, accept4(own->listener, NULL, NULL, SOCK_CLOEXEC), 1);
    hear(connection, hello, SW_FRAME_HELLO);
}

/* Takes a JOIN, with all proofs. */
static void meet(const struct liar *own, struct sw_connection *connection,
                 const union sw_frame *hello, union sw_frame *join)
{
    union sw_frame answer;

    memset(&answer, 0, sizeof answer.challenge);
    sw_frame_prove_creator(own->id.secret, &hello->hello, &answer.challenge,
                           answer.challenge.proof);
    say(connection, &answer, SW_FRAME_CHALLENGE);
    sw_connection_key(connection, 1, own->id.secret, &hello->hello, &answer.challenge);
    hear(connection, join, SW_FRAME_JOIN);
}

static void take_join(const struct liar *own, struct sw_connection *connection,
                      union sw_frame *join)
{
    union sw_frame hello;

    greet(own, connection, &hello);
    meet(own, connection, &hello, join);
    memset(&hello, 0, sizeof hello.pass);
    say(connection, &hello, SW_FRAME_READY);
}

/* Three ranks, each in a process, on a host: */
static void say_hosts(struct sw_connection *connection, const int process[3], const int host[3])
{
    union sw_frame frame;
    int r;

    memset(&frame, 0, sizeof frame.table);
    frame.table.nranks = frame.table.processes = 3;
    for (r = 0; r < 3; r++) {
        frame.table.locations[r].process = (uint32_t)process[r];
        frame.table.locations[r].host = (uint32_t)host[r];
        if (host[r] >= frame.table.hosts)
            frame.table.hosts = host[r] + 1;
    }
    say(connection, &frame, SW_FRAME_TABLE);
}

/* Rank 1's host is below that of rank 2, which listens here too. */
static void say_above(struct liar *own, int rank)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.above);
    frame.above.place.family = own->id.family;
    frame.above.place.port = own->id.port;
    memcpy(frame.above.place.address, own->id.address, sizeof own->id.address);
    frame.above.rank = rank;
    say(&own->up, &frame, SW_FRAME_ABOVE);
}

static void say_go(struct liar *own)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.pass);
    frame.pass.left_ms = LONG_MS;
    say(&own->up, &frame, SW_FRAME_GO);
}

static void rank_of_two_hosts(struct liar *own)
{
    say_hosts(&own->up, (const int[]){0, 1, 1}, (const int[]){0, 1, 0});
    say_go(own);
}

static void star_of_three_hosts(struct liar *own)
{
    say_hosts(&own->up, (const int[]){0, 1, 2}, (const int[]){0, 1, 2});
    say_go(own);
}

static void table_behind_above(struct liar *own)
{
    say_above(own, 2);
    say_hosts(&own->up, (const int[]){0, 1, 2}, (const int[]){0, 2, 1});
}

static void above_nobody(struct liar *own)
{
    say_above(own, 3);
}

static void table_of_others(struct liar *own)
{
    union sw_frame join;

    say_above(own, 2);
    take_join(own, &own->link, &join);
    say_hosts(&own->link, (const int[]){0, 1, 2}, (const int[]){0, 1, 2});
}

/* It has no memory. That is not this host's failure, which comes again. */
static void refusal_from_above(struct liar *own)
{
    union sw_frame frame, join;

    say_above(own, 2);
    greet(own, &own->link, &frame);
    meet(own, &own->link, &frame, &join);
    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = SYMWIN_NO_MEMORY;
    say(&own->link, &frame, SW_FRAME_REFUSAL);
    sw_connection_close(&own->link);
    take_join(own, &own->link, &join);
    say_hosts(&own->link, (const int[]){0, 1, 2}, (const int[]){0, 1, 2});
}

static void table_of_two_hosts(struct liar *own)
{
    union sw_frame join;

    say_above(own, 2);
    take_join(own, &own->link, &join);
    say_hosts(&own->link, (const int[]){0, 1, 1}, (const int[]){0, 2, 1});
}

/* Rank 1 is on a host of its own, and hosts are a chain. */
static void come_by_chain(struct processes *p)
{
    setenv("SYMWIN_HOST_ID", "b", 1);
    sw_host_fan = 1;
    hostile_wait_for_id(p);
}

static void told_lies(struct processes *p, int rank)
{
    const struct lie *lie = p->arg;
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = LONG_MS, .bootstrap_timeout_ms = LONG_MS};
    struct liar own = {.up = {.fd = -1}, .link = {.fd = -1}};
    symwin_comm *comm = NULL;
    union sw_frame frame;

    if (rank == CREATOR) {
        own.listener = listen_by_tcp(p, &own.id);
        take_join(&own, &own.up, &frame);
        lie->tell(&own);
        hear(&own.up, &frame, SW_FRAME_REFUSAL);
        must_be(frame.refusal.rank == lie->culprit, "the culprit", CREATOR);
        sw_connection_close(&own.up);
        sw_connection_close(&own.link);
        close(own.listener);
        return;
    }
    come_by_chain(p);
    processes_note(p, rank, symwin_comm_create(&p->id, 3, 1, 0, &options, &comm));
    must_be(p->rank[rank].status == SYMWIN_DENIED && host_error_has(lie->words), lie->words, rank);
}

/* ---- a host above others, over TCP ----------------------------------------------------------- */

/* Connects where rank 1 listens, with small segments: so there is little room to send to here. -1:
 * nobody listens there. */
static int connect_below(const struct sw_place *place)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = place->port};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 2048, segment = 536;

    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    memcpy(&at.sin_addr, place->address, sizeof at.sin_addr);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
        return fd;
    close(fd);
    return -1;
}

enum { TIMES = 20, MOST_LOCKED_MS = 2000, SLOW_MS = 8000 };

/* A rank joins at rank 1's host, as `first` says. Returns the socket. */
static int join_below(const struct liar *own, const union sw_frame *first, int rank)
{
    struct sw_connection connection;
    union sw_frame hello, answer, join = *first;
    const int fd = connect_below(&first->join.place);

    must_be(fd >= 0 && sw_connection_open(&connection, fd, 1) == 0, "connect", CREATOR);
    memset(&hello, 0, sizeof hello.hello);
    sw_id_name(&own->id, hello.hello.name);
    say(&connection, &hello, SW_FRAME_HELLO);
    hear(&connection, &answer, SW_FRAME_CHALLENGE);
    sw_connection_key(&connection, 0, own->id.secret, &hello.hello, &answer.challenge);
    join.join.rank = rank;
    memset(join.join.host, 2, sizeof join.join.host);
    sw_frame_prove_rank(own->id.secret, &hello.hello, &answer.challenge, &join.join,
                        join.join.proof);
    say(&connection, &join, SW_FRAME_JOIN);
    free(connection.in);
    return fd;
}

/* Rank 2 joins at rank 1's host, as often as it can, and reads no table. */
static void read_slowly(struct processes *p)
{
    struct liar own = {.up = {.fd = -1}, .link = {.fd = -1}};
    struct sw_rank_table table = {.nranks = SW_MAX_RANKS, .processes = 3, .hosts = 3};
    union sw_frame join, frame;
    int fds[TIMES], next, i;

    own.listener = listen_by_tcp(p, &own.id);
    take_join(&own, &own.up, &join);
    table.locations = calloc(SW_MAX_RANKS, sizeof *table.locations);
    table.locations[1] = (struct sw_frame_location){1, 1};
    table.locations[2] = (struct sw_frame_location){2, 2};
    for (next = 0; next < SW_MAX_RANKS;) {
        next = sw_rank_table_put(&table, next, &frame);
        say(&own.up, &frame, SW_FRAME_TABLE);
    }
    free(table.locations);
    memset(&frame, 0, sizeof frame.above);
    frame.above.rank = -1;
    say(&own.up, &frame, SW_FRAME_ABOVE);
    say(&own.up, &frame, SW_FRAME_ASK);
    hear(&own.up, &frame, SW_FRAME_WELL); /* it has read all of that */
    for (i = 0; i < TIMES; i++)
        fds[i] = join_below(&own, &join, 2);
    while (i-- > 0)
        close(fds[i]);
    sw_connection_close(&own.up);
    close(own.listener);
}

static atomic_int locks; /* whether keep_locking() goes on */

/* Adds up for how long others have had the poll lock, in us. */
static void *keep_locking(void *arg)
{
    long *us = arg;

    while (locks) {
        const long begun = processes_now_us();

        sw_poll_lock();
        *us += processes_now_us() - begun;
        sw_poll_unlock();
        usleep(1000);
    }
    return NULL;
}

static void passes_to_slow(struct processes *p, int rank)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = SLOW_MS, .bootstrap_timeout_ms = SLOW_MS};
    symwin_comm *comm = NULL;
    pthread_t thread;
    long us = 0;

    if (rank == CREATOR) {
        read_slowly(p);
        return;
    }
    come_by_chain(p);
    locks = 1;
    pthread_create(&thread, NULL, keep_locking, &us);
    processes_note(p, rank, symwin_comm_create(&p->id, SW_MAX_RANKS, 1, 0, &options, &comm));
    locks = 0;
    pthread_join(thread, NULL);
    must_be(p->rank[rank].status == SYMWIN_PEER_LOST, "the creator has gone", rank);
    must_be(us < MOST_LOCKED_MS * 1000, "the lock is free", rank);
}

/* Rank 0 joins there, though its host is above rank 1's, and both are a star. */
static void link_from_above(struct processes *p, int rank)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = LONG_MS, .bootstrap_timeout_ms = LONG_MS};
    struct liar own = {.up = {.fd = -1}, .link = {.fd = -1}};
    symwin_comm *comm = NULL;
    union sw_frame join, frame;
    int fd;

    if (rank == CREATOR) {
        own.listener = listen_by_tcp(p, &own.id);
        take_join(&own, &own.up, &join);
        say_hosts(&own.up, (const int[]){0, 1, 2}, (const int[]){0, 1, 0});
        say(&own.up, &frame, SW_FRAME_ASK);
        hear(&own.up, &frame, SW_FRAME_WELL); /* it has read the table */
        fd = join_below(&own, &join, 0);
        must_be(recv(fd, &frame, sizeof(struct sw_frame_pass), MSG_WAITALL) > 0, "READY", rank);
        say_go(&own);
        usleep(100000);
        sw_connection_close(&own.up);
        close(fd);
        close(own.listener);
        return;
    }
    come_by_chain(p);
    processes_note(p, rank, symwin_comm_create(&p->id, 3, 1, 0, &options, &comm));
    must_be(p->rank[rank].status == SYMWIN_PEER_LOST && host_error_has("rank 0"), "rank 0", rank);
}

/* Rank 2's time is over when rank 1, in the same process, hears from the creator: nobody is to join
 * at that host any more. */
static void *joins_for_a_moment(void *arg)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = 100, .bootstrap_timeout_ms = 100};
    struct processes *p = arg;
    symwin_comm *comm = NULL;

    while (p->rank[CREATOR].step == 0)
        usleep(1000);
    must_be(symwin_comm_create(&p->id, 3, 2, 0, &options, &comm) == SYMWIN_TIMEOUT, "TIMEOUT", 2);
    p->rank[RANK].step = 1;
    return NULL;
}

static void joins_in_vain(struct processes *p, int rank)
{
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = SLOW_MS, .bootstrap_timeout_ms = SLOW_MS};
    struct liar own = {.up = {.fd = -1}, .link = {.fd = -1}};
    symwin_comm *comm = NULL;
    union sw_frame hello, join;
    pthread_t thread;

    if (rank == CREATOR) {
        own.listener = listen_by_tcp(p, &own.id);
        greet(&own, &own.up, &hello);
        p->rank[rank].step = 1;
        while (p->rank[RANK].step == 0)
            usleep(1000);
        meet(&own, &own.up, &hello, &join);
        memset(&hello, 0, sizeof hello.pass);
        say(&own.up, &hello, SW_FRAME_READY);
        while (p->rank[RANK].status < 0)
            usleep(1000);
        must_be(join.join.place.family == AF_INET && connect_below(&join.join.place) < 0,
                "nobody listens", rank);
        p->rank[rank].step = 2;
        sw_connection_close(&own.up);
        close(own.listener);
        return;
    }
    come_by_chain(p);
    pthread_create(&thread, NULL, joins_for_a_moment, p);
    processes_note(p, rank, symwin_comm_create(&p->id, 3, 1, 0, &options, &comm));
    must_be(p->rank[rank].status == SYMWIN_TIMEOUT, "the time of rank 2", rank);
    pthread_join(thread, NULL);
    while (p->rank[CREATOR].step < 2 && p->rank[CREATOR].status < 0)
        usleep(1000);
}

#define WRONG_FROM_CREATOR "the process that made the id sent a wrong "

static const struct lie lies[] = {
    {"a rank of two hosts", rank_of_two_hosts, WRONG_FROM_CREATOR "table", -1},
    {"a star of too many hosts", star_of_three_hosts, WRONG_FROM_CREATOR "table", -1},
    {"a table behind ABOVE", table_behind_above, WRONG_FROM_CREATOR "frame", -1},
    {"a rank above that is none", above_nobody, WRONG_FROM_CREATOR "frame", -1},
    {"a table of other hosts, from above", table_of_others, "the host of rank 2 sent a wrong table",
     2},
    {"a refusal from above", refusal_from_above, "the host of rank 2 sent a wrong table", 2},
    {"a rank of two hosts, from above", table_of_two_hosts, "the host of rank 2 sent a wrong table",
     2},
};

/* ---- runs ------------------------------------------------------------------------------------ */

static const struct fake fakes[] = {
    {"rubbish", open_well, answer_rubbish, SYMWIN_DENIED, "not from the process that made the id",
     0, 0, 0},
    {"its own HELLO", open_well, answer_reflected, SYMWIN_DENIED,
     "sent a frame of type 1 instead of", 0, 0, 0},
    {"a TABLE", open_well, answer_table, SYMWIN_DENIED, "sent a frame of type 4 instead of", 0, 0,
     0},
    {"a TABLE of other ranks, in two frames", open_well, answer_table_of_many, SYMWIN_DENIED,
     "expects 3000 ranks, not 2", 0, 0, 0},
    {"the beginning of a TABLE twice", open_well, answer_table_twice, SYMWIN_DENIED,
     "sent a wrong table", 0, 0, 0},
    {"a CHALLENGE without a proof", open_well, answer_without_proof, SYMWIN_DENIED,
     "does not know the id's secret", 0, 0, 0},
    {"a proof by another key", open_well, answer_with_another_key, SYMWIN_DENIED,
     "does not know the id's secret", 0, 0, 0},
    {"3 descriptors", open_well, answer_with_descriptors, SYMWIN_DENIED, "", 0, 0, 0},
    {"200 descriptors", open_well, answer_with_many_descriptors, SYMWIN_DENIED, "", 0, 0, 0},
    {"3 descriptors, on an older system", open_well, answer_with_descriptors, SYMWIN_DENIED,
     "not from the process", 0, 0, 1},
    {"200 descriptors, on an older system", open_well, answer_with_many_descriptors, SYMWIN_DENIED,
     "not from the process", 0, 0, 1},
    {"a REFUSAL of success", open_well, answer_refusal_of_success, SYMWIN_DENIED,
     "not from the process", 0, 0, 0},
    {"a REFUSAL without end", open_well, answer_wild_refusal, SYMWIN_DENIED, "not from the process",
     0, 0, 0},
    {"a refusal, and a descriptor behind it", open_well, answer_refusal_and_more, SYMWIN_ABORTED,
     "no more", 0, 0, 0},
    {"no control page", open_well, answer_without_page, SYMWIN_DENIED, WRONG_PAGE, 0, 0, 0},
    {"a lingering socket for a control page", open_well, answer_lingering_page, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a control page whose close takes long", open_well, answer_slow_page, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a control page that can be shortened", open_well, answer_page_unsealed, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a control page that cannot be written", open_well, answer_page_read_only, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a socket that listens for a peer socket", open_well, answer_listening_socket, SYMWIN_DENIED,
     "rank 0, whose process made the id, sent a wrong socket", 0, 0, 0},
    {"a link that is no TCP connection", open_well, answer_wrong_link, SYMWIN_DENIED,
     "rank 0, whose process made the id, sent a wrong link", 0, 0, 0},
    {"a creator that is busy", open_well, answer_busy, SYMWIN_TIMEOUT, "", 0, 10, 0},
};

/* Whether the key of a link is on this thread's stack, used or not. A sanitizer does not see
 * pread(). */
static int stack_has_key(void)
{
    static unsigned char page[4096];
    const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    uintptr_t at = (uintptr_t)__builtin_frame_address(0) & ~(sizeof page - 1);
    int has = 0, run = 0;
    size_t i;

    for (; pread(memory, page, sizeof page, (off_t)at) == sizeof page; at -= sizeof page)
        for (i = 0; i < sizeof page; i++) {
            run = page[i] == LINK_KEY ? run + 1 : 0;
            has |= run == SW_KEY_BYTES;
        }
    close(memory);
    return has;
}

static void told(struct processes *p, int rank)
{
    is_old = ((const struct fake *)p->arg)->old;
    rank_at_a_false_creator(p, rank);
    must_be(!stack_has_key(), "no key is left on the stack", rank);
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof fakes / sizeof fakes[0]; i++)
        run_fake(&fakes[i], told);
    processes_run("one that is silent, over TCP", 2, meets_silence, NULL);
    for (i = 0; i < sizeof lies / sizeof lies[0]; i++)
        processes_run(lies[i].name, 2, told_lies, (void *)(uintptr_t)&lies[i]);
    processes_run("a host below that reads no table", 2, passes_to_slow, NULL);
    processes_run("a link from the host above, in a star", 2, link_from_above, NULL);
    processes_run("a host whose rendezvous is over", 2, joins_in_vain, NULL);
    return tap_done();
}
