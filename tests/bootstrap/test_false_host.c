/* What a false creator, or a false host above or below, tells the process that joins for its host,
 * over TCP: nothing, or what is wrong though they have the secret. */
#include <netinet/tcp.h>

#include "false_creator.h"

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

int main(void)
{
    size_t i;

    processes_run("one that is silent, over TCP", 2, meets_silence, NULL);
    for (i = 0; i < sizeof lies / sizeof lies[0]; i++)
        processes_run(lies[i].name, 2, told_lies, (void *)(uintptr_t)&lies[i]);
    processes_run("a host below that reads no table", 2, passes_to_slow, NULL);
    processes_run("a link from the host above, in a star", 2, link_from_above, NULL);
    processes_run("a host whose rendezvous is over", 2, joins_in_vain, NULL);
    return tap_done();
}
