/* Members that contradict the others. They know the secret, so they are authenticated. In joining
 * and in registration, every rank gets the same error, which names the member and the fault. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "hostile.h"
#include "src/control/control_page.h"

enum { RANKS = 3, LATE = RANKS - 1, ATTACKER = RANKS, AT_ONCE_MS = 1000 };

/* What a member claims; 0: the right value. */
struct claim {
    const char *name;
    int nranks, rank;
    uint32_t protocol;
    symwin_status status;
    const char *words;
    enum { OWN_NAME, CREATORS_NAME, ANOTHERS_NAME } process;
    const char *hosts; /* a letter for each; NULL: one host */
};

static const struct claim claims[] = {
    {"a rank that is taken", RANKS, 1, 0, SYMWIN_INVALID, "rank 1 joined twice", OWN_NAME, NULL},
    {"the creator's own rank", RANKS, 0, 0, SYMWIN_INVALID, "rank 0 joined twice", OWN_NAME, NULL},
    {"more ranks than the others", RANKS + 1, 3, 0, SYMWIN_MISMATCH, "rank 3 passed 4|3", OWN_NAME,
     NULL},
    {"fewer ranks", RANKS - 1, 0, 0, SYMWIN_MISMATCH, "rank 0 passed 2|3", OWN_NAME, NULL},
    {"most ranks", INT32_MAX, INT32_MAX - 1, 0, SYMWIN_MISMATCH,
     "rank 2147483646 passed 2147483647|3", OWN_NAME, NULL},
    {"no ranks", 0, 0, 0, SYMWIN_MISMATCH, "rank 0 passed 0|3", OWN_NAME, NULL},
    {"rank -1", RANKS, -1, 0, SYMWIN_INVALID, "no rank -1 of 3", OWN_NAME, NULL},
    {"rank 3 of 3", RANKS, RANKS, 0, SYMWIN_INVALID, "no rank 3 of 3", OWN_NAME, NULL},
    {"the least rank", RANKS, INT32_MIN, 0, SYMWIN_INVALID, "no rank -2147483648 of 3", OWN_NAME,
     NULL},
    {"another protocol", RANKS, LATE, 99, SYMWIN_MISMATCH, "rank 2's|protocol 99|id uses 13",
     OWN_NAME, NULL},
    {"the creator's process", RANKS, LATE, 0, SYMWIN_DENIED, "rank 2 gives the name of a process",
     CREATORS_NAME, NULL},
    {"another's process", RANKS, LATE, 0, SYMWIN_DENIED, "rank 2 gives the name of a process",
     ANOTHERS_NAME, NULL},
    {"the creator's process, on another host", RANKS, LATE, 0, SYMWIN_DENIED,
     "rank 2 gives the name of a process", CREATORS_NAME, "aaab"},
    {"a process of the creator's host, on another", RANKS, LATE, 0, SYMWIN_DENIED,
     "rank 2 gives the name of a process", ANOTHERS_NAME, "aaab"},
    {"a process of another host, on a third", RANKS, LATE, 0, SYMWIN_DENIED,
     "rank 2 gives the name of a process", ANOTHERS_NAME, "abbc"},
};

/* Joins after ranks 0 and 1, with the claim, and receives the answer. */
static void attacker(struct processes *p, int rank)
{
    const struct claim *claim = p->arg;
    struct sw_connection connection = {.fd = -1};
    union sw_frame join, answer;
    struct hostile h;
    int error;

    processes_on_host(claim->hosts, rank);

    hostile_wait_for_id(p);
    while (p->rank[0].step == 0 || p->rank[1].step == 0)
        usleep(50);
    host_pause_ms(300); /* they are in the call: by now their JOINs have arrived too */
    if (!hostile_meet(&h, &p->id, claim->hosts != NULL, &connection)) {
        fprintf(stderr, "no challenge\n");
        tap_failures++;
        return;
    }
    join = hostile_join(&h, claim->nranks, claim->rank);
    if (claim->protocol != 0)
        join.join.protocol = claim->protocol;
    if (claim->process == CREATORS_NAME)
        memcpy(join.join.process, h.id.creator, sizeof join.join.process);
    if (claim->process == ANOTHERS_NAME)
        memcpy(join.join.process, &p->rank[1].id, sizeof join.join.process);
    hostile_prove(&h, &join);
    p->rank[rank].number = processes_now_us();
    error = sw_connection_send(&connection, &join, -1, sw_now_ms() + HOSTILE_WAIT_MS);
    if (error == 0)
        error = sw_connection_receive(&connection, &answer, NULL, sw_now_ms() + HOSTILE_WAIT_MS);
    if (error != 0 || answer.header.type != SW_FRAME_REFUSAL) {
        fprintf(stderr, "not told why: %d\n", error);
        tap_failures++;
    } else {
        snprintf(p->rank[rank].text, SW_TEXT_BYTES, "%s", answer.refusal.text);
        p->rank[rank].status = answer.refusal.status;
    }
    p->rank[rank].step = 1;
    sw_connection_close(&connection);
}

static void job(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    const struct claim *claim = p->arg;
    symwin_comm *comm = NULL;

    processes_on_host(claim->hosts, rank);
    harness_device_count();
    sw_poll_lock();
    host_must(sw_process_name((unsigned char *)&p->rank[rank].id), "sw_process_name");
    sw_poll_unlock();
    processes_id(p, rank);
    while (rank == LATE && p->rank[ATTACKER].step == 0)
        usleep(200);
    p->rank[rank].step = 1;
    if (processes_note(p, rank,
                       symwin_comm_create(&p->id, RANKS, rank, rank % harness_device_count(),
                                          &options, &comm)) == SYMWIN_OK)
        symwin_comm_destroy(comm);
    while (rank == 0 && p->rank[LATE].status < 0)
        usleep(200); /* the creator of the id must live until all have joined */
}

static int has_words(const char *text, const char *words)
{
    sw_error_restore(text);
    return host_error_has(words);
}

static struct processes *begin(const struct claim *claim)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)claim);
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, job);
    processes_fork(p, ATTACKER, attacker);
    return p;
}

static void finish(const struct claim *claim, struct processes *p)
{
    int ended = 1, told = 1, soon = 1;
    int r;

    for (r = 0; r <= RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    for (r = 0; r <= RANKS; r++) {
        if (p->rank[r].status != (int)claim->status ||
            strcmp(p->rank[r].text, p->rank[0].text) != 0) {
            printf("# rank %d: %s: %s\n", r, symwin_status_name(p->rank[r].status),
                   p->rank[r].text);
            told = 0;
        }
        if (r < LATE && p->rank[r].at_us - p->rank[ATTACKER].number > AT_ONCE_MS * 1000)
            soon = 0;
    }
    tap_ok(ended, "%s: all end well", claim->name);
    tap_ok(told, "%s: every rank is told %s, in one sentence", claim->name,
           symwin_status_name(claim->status));
    tap_ok(has_words(p->rank[0].text, claim->words), "%s: %s", claim->name, p->rank[0].text);
    tap_ok(soon, "%s: at once", claim->name);
    processes_free(p);
}

/* ---- a member that refuses in the name of no rank ------------------------------------------- */

enum { REFUSES = 1, NO_RANK = 4000 };

/* Refuses when it has got its descriptors; the text would change the colors of a terminal. */
static void refuse(struct processes *p)
{
    static const char text[] = "symwin_comm_create: \x9b"
                               "31m\xc2\x9b"
                               "31m\x1b[31m \xe2\x9b\x84";
    struct sw_connection connection = {.fd = -1};
    const int64_t deadline = sw_now_ms() + HOSTILE_WAIT_MS;
    union sw_frame frame;
    struct hostile h;
    int fd = -1;

    must_be(hostile_meet(&h, &p->id, 0, &connection), "a challenge", REFUSES);
    frame = hostile_join(&h, RANKS, REFUSES);
    must_be(sw_connection_send(&connection, &frame, -1, deadline) == 0, "JOIN", REFUSES);
    while (sw_connection_receive(&connection, &frame, &fd, deadline) == 0 &&
           frame.header.type != SW_FRAME_PAGE)
        ;
    must_be(frame.header.type == SW_FRAME_PAGE, "the page", REFUSES);
    close(fd);
    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = SYMWIN_PEER_LOST;
    frame.refusal.rank = NO_RANK;
    memcpy(frame.refusal.text, text, sizeof text);
    sw_frame_seal(&frame, SW_FRAME_REFUSAL);
    must_be(sw_connection_send(&connection, &frame, -1, deadline) == 0, "REFUSAL", REFUSES);
    while (p->rank[LATE].status < 0)
        usleep(1000);
    sw_connection_close(&connection);
}

static void refused(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;

    processes_on_host("aab", rank);
    processes_id(p, rank);
    if (rank == REFUSES) {
        refuse(p);
        return;
    }
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, 20000, &comm));
    must_be(p->rank[rank].status == SYMWIN_PEER_LOST && host_error_has("rank 1"),
            "the one that refused is named", rank);
    if (rank == 0)
        must_be(host_error_has("symwin_comm_create: rank 1: ?31m?") && host_error_has("31m?[31m") &&
                    host_error_has("\xe2\x9b\x84"),
                "control characters are not shown, others are", rank);
    symwin_comm_destroy(comm);
}

/* ---- a member that names no host ------------------------------------------------------------- */

/* Joins over TCP and names host 0, which no host has. It counts as one on another host, and its
 * connection as the link to it. It goes. */
static void name_no_host(struct processes *p)
{
    const int64_t deadline = sw_now_ms() + HOSTILE_WAIT_MS;
    struct sw_connection connection = {.fd = -1};
    union sw_frame frame;
    struct hostile h;

    must_be(hostile_meet(&h, &p->id, 1, &connection), "a challenge", LATE);
    frame = hostile_join(&h, RANKS, LATE);
    memset(frame.join.host, 0, sizeof frame.join.host);
    hostile_prove(&h, &frame);
    must_be(sw_connection_send(&connection, &frame, -1, deadline) == 0, "JOIN", LATE);
    must_be(sw_connection_receive(&connection, &frame, NULL, deadline) == 0 &&
                frame.header.type == SW_FRAME_READY,
            "it has joined", LATE);
    must_be(sw_connection_receive(&connection, &frame, NULL, deadline) == 0 &&
                frame.header.type == SW_FRAME_TABLE && frame.table.hosts == 2 &&
                frame.table.locations[LATE].host == 1,
            "a table with another host", LATE);
    sw_connection_close(&connection);
}

static void names_no_host(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;

    processes_on_host("aab", rank);
    processes_id(p, rank);
    if (rank == LATE) {
        name_no_host(p);
        return;
    }
    processes_note(p, rank, processes_comm_with(p, rank, &p->id, 20000, &comm));
    must_be(p->rank[rank].status == SYMWIN_PEER_LOST && host_error_has("rank 2"),
            "the one that has gone is named", rank);
}

/* ---- a member that reads nothing ------------------------------------------------------------- */

static int small_buffers;

/* Replaces the C library's, whose parameter is of another type. */
int accept_instead(int fd, struct sockaddr *from, socklen_t *bytes, int flags) __asm__("accept4");
int accept_instead(int fd, struct sockaddr *from, socklen_t *bytes, int flags)
{
    const int accepted = (int)syscall(SYS_accept4, fd, from, bytes, flags), least = 1;

    if (accepted >= 0 && small_buffers)
        setsockopt(accepted, SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
    return accepted;
}

/* It joins as 29 ranks, each in a process of its own, and reads nothing more: there is no room for
 * all sockets to the others. The creator's process does not hold the poll lock for long. */
enum { MANY = 30, HELD_MS = 3000 };

static void read_nothing(struct processes *p)
{
    struct hostile h[MANY];
    union sw_frame join;
    int r;

    for (r = 1; r < MANY; r++) {
        must_be(hostile_begin(&h[r], &p->id) && hostile_greet(&h[r]), "a challenge", r);
        join = hostile_join(&h[r], MANY, r);
        memcpy(join.join.process, &r, sizeof r);
        hostile_prove(&h[r], &join);
        must_be(hostile_send_frame(h[r].socket, &join), "JOIN", r);
    }
    while (p->rank[0].status < 0)
        usleep(1000);
    for (r = 1; r < MANY; r++)
        close(h[r].socket);
}

static void *create_with_many(void *arg)
{
    struct processes *p = arg;
    const symwin_comm_options options = {
        .size = sizeof options, .timeout_ms = 20000, .bootstrap_timeout_ms = 20000};
    symwin_comm *comm = NULL;

    processes_note(p, 0, symwin_comm_create(&p->id, MANY, 0, 0, &options, &comm));
    must_be(p->rank[0].status == SYMWIN_TIMEOUT && host_error_has("cannot be reached any more"),
            "one that does not read is named", 0);
    return NULL;
}

static void reads_nothing(struct processes *p, int rank)
{
    int64_t worst = 0;
    pthread_t thread;

    small_buffers = rank == 0;
    harness_device_count();
    processes_id(p, rank);
    if (rank > 0) {
        read_nothing(p);
        return;
    }
    if (pthread_create(&thread, NULL, create_with_many, p) != 0)
        abort();
    while (p->rank[0].status < 0) {
        const int64_t waited = host_longest_lock_ms(1);

        worst = waited > worst ? waited : worst;
        usleep(1000);
    }
    pthread_join(thread, NULL);
    must_be(worst < HELD_MS, "others get the poll lock", rank);
}

/* ---- a member that agrees on no offset ------------------------------------------------------- */

struct ballots {
    const char *name;
    int higher; /* always one above the highest; 0: always offset 0, which is taken */
    int timeout_ms;
    symwin_status want;
    const char *words;
};

static const struct ballots ballots[] = {
    {"votes for less than it may", 0, 20000, SYMWIN_MISMATCH, "rank 2 voted for offset 0"},
    {"always votes for more", 1, 1500, SYMWIN_TIMEOUT, "no common free offset|rank 2"},
};

/* The member's part of a registration, by hand, until the others fail. */
static void vote_otherwise(symwin_comm *comm, int higher)
{
    /* As in window_register.c. */
    enum { BYTES, FLAGS, OFFSET, SEGMENT, PLACE, STRETCH, PIECES, COUNT };
    static const char call[] = "symwin_window_register";
    const uint64_t usual[COUNT] = {[BYTES] = 1, [STRETCH] = GRANULE, [PIECES] = 1};
    const int64_t end = host_now_ms() + 4 * ballots[1].timeout_ms;
    symwin_status status;
    uint64_t offset = 0;
    int r;

    comm->sequence++;
    status = sw_comm_agree(comm, call, SYMWIN_OK, usual, COUNT);
    while (status == SYMWIN_OK && host_now_ms() < end) {
        status = sw_comm_agree(comm, call, SYMWIN_OK, &offset, 1);
        for (r = 0; higher && r < RANKS; r++)
            if (comm->ballots[r].values[0] >= offset)
                offset = comm->ballots[r].values[0] + 1;
    }
}

static void finds_no_offset(struct processes *p, int rank)
{
    const struct ballots *v = p->arg;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;

    host_must(processes_comm(p, rank, v->timeout_ms, &comm), "symwin_comm_create");
    memory = host_alloc(rank, 1);
    if (rank == LATE)
        vote_otherwise(comm, v->higher);
    else
        processes_note(p, rank, symwin_window_register(comm, memory, 1, 0, &window));
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

static void disagree(const struct ballots *v)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)v);
    int ended = 1;
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, finds_no_offset);
    for (r = 0; r < RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: all end well", v->name);
    for (r = 0; r < LATE; r++)
        tap_ok(p->rank[r].status == (int)v->want && has_words(p->rank[r].text, v->words),
               "%s: rank %d: %s", v->name, r, p->rank[r].text);
    processes_free(p);
}

/* ---- a member that never lets the others decide ---------------------------------------------- */

/* Proposes the end again and again. The others wait for an answer no longer than their own
 * timeout. */
static void proposes(struct processes *p, int rank)
{
    enum { TIMEOUT_MS = 1000, LAST_MS = 8000, SOON_MS = 4500 };
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    int64_t begin;
    void *memory;

    host_must(processes_comm(p, rank, TIMEOUT_MS, &comm), "symwin_comm_create");
    memory = host_alloc(rank, 1);
    begin = host_now_ms();
    if (rank == LATE) {
        struct control_page *page = comm->group->exchange->page;

        while (host_now_ms() < begin + LAST_MS &&
               (p->rank[0].status < 0 || p->rank[1].status < 0)) {
            page->proposed_at = sw_now_ms();
            page->proposal = (uint64_t)1 << 48;
            usleep(50000);
        }
        page->proposal = 0;
    } else {
        processes_note(p, rank, symwin_window_register(comm, memory, 1, 0, &window));
        must_be(p->rank[rank].status != SYMWIN_OK && host_now_ms() < begin + SOON_MS,
                "a proposal that is always fresh", rank);
    }
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- a member that writes in others' names --------------------------------------------------- */

/* Sets all ballots to one color that nobody has chosen. Runs in its own process, which ends no
 * later than its parent. */
static pid_t rewrite(struct control_page *page)
{
    const size_t at = offsetof(struct sw_ballot, values);
    const uint64_t color = 77;
    const pid_t pid = fork();
    int r, i;

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        for (r = 0; r < RANKS; r++)
            for (i = 0; i < 2; i++)
                *(volatile uint64_t *)(void *)(page->slots[r].data[i] + at) = color;
}

/* Whatever the ballots become, all ranks return. */
static void rewritten(struct processes *p, int rank)
{
    enum { TIMES = 20 };
    symwin_comm *comm = NULL, *part = NULL;
    symwin_status status = SYMWIN_OK;
    pid_t writer = -1;
    int i;

    host_must(processes_comm(p, rank, 1500, &comm), "symwin_comm_create");
    if (rank == LATE)
        writer = rewrite(comm->group->exchange->page);
    for (i = 0; i < TIMES && status == SYMWIN_OK; i++) {
        status = symwin_comm_split(comm, 1, rank, NULL, &part);
        if (status == SYMWIN_OK)
            symwin_comm_destroy(part);
    }
    if (writer > 0) {
        kill(writer, SIGKILL);
        waitpid(writer, NULL, 0);
    }
    symwin_comm_destroy(comm);
}

/* ---- a member that sends frames nobody expects ----------------------------------------------- */

struct unasked {
    const char *name;
    int count;                  /* frames */
    int ranks[2], sequences[2]; /* of handles; ranks[0] < 0: the frames are messages */
    int with_descriptors;
    symwin_status want; /* the others' status; OK: they accept it */
    int to;             /* of messages, which rank 0's process gets */
    const char *hosts;  /* a letter for each; NULL: one host */
};

static const struct unasked unasked[] = {
    {"handles of another's memory", 1, {1, 1}, {7, 7}, 1, SYMWIN_MISMATCH, 0, NULL},
    {"handles of no rank", 1, {3, 3}, {7, 7}, 1, SYMWIN_MISMATCH, 0, NULL},
    {"two handles of one rank", 2, {2, 2}, {7, 7}, 1, SYMWIN_MISMATCH, 0, NULL},
    {"handles of two registrations", 2, {2, 2}, {7, 8}, 1, SYMWIN_MISMATCH, 0, NULL},
    {"200 handles", 200, {2, 2}, {7, 7}, 1, SYMWIN_MISMATCH, 0, NULL},
    {"100 messages with descriptors", 100, {-1, -1}, {0, 0}, 1, SYMWIN_OK, 0, NULL},
    {"too many messages", 3 * SW_STATE_LANES + 100, {-1, -1}, {0, 0}, 0, SYMWIN_MISMATCH, 0, NULL},
    {"a message to a rank of another process", 1, {-1, -1}, {0, 0}, 0, SYMWIN_MISMATCH, 1, NULL},
    {"a message to another host", 1, {-1, -1}, {0, 0}, 0, SYMWIN_OK, 1, "aba"},
    {"a descriptor for another host", 1, {-1, -1}, {0, 0}, 1, SYMWIN_MISMATCH, 1, "aba"},
};

/* 0, or an errno: EPIPE if the receiver has closed the socket. */
static int send_unasked(const struct unasked *u, int line, int fd, int i)
{
    union sw_frame frame;

    if (u->ranks[0] >= 0) {
        memset(&frame, 0, sizeof frame.handle);
        frame.handle.rank = u->ranks[i % 2];
        frame.handle.sequence = (uint64_t)u->sequences[i % 2];
        frame.handle.bytes = GRANULE;
        sw_frame_seal(&frame, SW_FRAME_HANDLE);
    } else {
        memset(&frame, 0, sizeof frame.message);
        frame.message.from = LATE;
        frame.message.to = u->to;
        frame.message.number = (uint64_t)i + 1;
        sw_frame_seal(&frame, SW_FRAME_MESSAGE);
    }
    return sw_frame_send(line, &frame, u->with_descriptors ? fd : -1, sw_now_ms() + 5000);
}

/* Rank 0 may have 200 descriptors in all. Whatever comes, most are left to the program. */
static void sends_unasked(struct processes *p, int rank)
{
    enum { ALL = 200, OWN = 100 };
    const struct rlimit limit = {ALL, ALL};
    const struct unasked *u = p->arg;
    symwin_comm *comm = NULL;
    int error = 0, i;

    processes_on_host(u->hosts, rank);
    host_must(processes_comm(p, rank, 5000, &comm), "symwin_comm_create");
    if (rank == 0)
        must_be(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit", rank);
    processes_barrier(p);
    if (rank == LATE) {
        const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

        for (i = 0; i < u->count && error == 0; i++)
            error = send_unasked(u, comm->group->sockets[0]->watch.fd, fd, i);
        must_be(error == 0 || error == EPIPE || error == ECONNRESET, "frames are sent", rank);
        close(fd);
        p->rank[rank].step = 1;
    }
    while (rank == 0 && p->rank[LATE].step == 0)
        usleep(1000);
    for (i = 0; rank == 0 && i < 5000 && (i < 300 || symwin_comm_check(comm) != u->want); i++)
        usleep(1000);
    if (rank == 0) {
        int fds;

        must_be(symwin_comm_check(comm) == u->want &&
                    (u->want == SYMWIN_OK || host_error_has("rank 2 has sent what no process")),
                "what comes of it", rank);
        must_be(sw_closer_wait(5), "what nobody wants is closed", rank);
        fds = harness_count_entries("/proc/self/fd");
        must_be(fds < OWN, "the program has descriptors left", rank);
        p->rank[0].number = fds;
    }
    processes_barrier(p);
    symwin_comm_destroy(comm);
}

static void send_all_unasked(const struct unasked *u)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)u);
    int ended = 1;
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, sends_unasked);
    for (r = 0; r < RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: %s; rank 0 has %lld descriptors", u->name, symwin_status_name(u->want),
           (long long)p->rank[0].number);
    processes_free(p);
}

/* All at the same time: every creator lingers for a second to refuse late ranks. */
int main(void)
{
    enum { CLAIMS = sizeof claims / sizeof claims[0] };
    struct processes *begun[CLAIMS];
    size_t i;

    for (i = 0; i < CLAIMS; i++)
        begun[i] = begin(&claims[i]);
    for (i = 0; i < CLAIMS; i++)
        finish(&claims[i], begun[i]);
    processes_run("a refusal that names no rank", RANKS, refused, NULL);
    processes_run("a member that names no host", RANKS, names_no_host, NULL);
    processes_run("a member that reads nothing", 2, reads_nothing, NULL);
    for (i = 0; i < sizeof ballots / sizeof ballots[0]; i++)
        disagree(&ballots[i]);
    processes_run("an end that is always proposed anew", RANKS, proposes, NULL);
    processes_run("votes that another has rewritten", RANKS, rewritten, NULL);
    for (i = 0; i < sizeof unasked / sizeof unasked[0]; i++)
        send_all_unasked(&unasked[i]);
    return tap_done();
}
