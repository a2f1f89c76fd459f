/* The client of a rank: it connects to the creator of the id, has the creator prove that it knows
 * the secret (HELLO, CHALLENGE), and joins (JOIN).
 *
 * Every wait has a deadline. All descriptors are in the close-on-fork set. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "src/bootstrap/member.h"
#include "src/bootstrap/rendezvous.h"

enum {
    LOOK_MS = 2000,  /* a rank that joins for its host looks so often whether that has failed */
    TELL_MS = 1000,  /* to tell the creator that a rank cannot join, or to hear why none can */
    HEAR_MS = 40,    /* for a refusal that is there */
    PROOF_MS = 2000, /* for the creator's proof over TCP; then the client connects again */
    SLACK_MS = 100   /* a timeout that is shorter by at most this counts as unchanged */
};

static const char call[] = "symwin_comm_create";

/* A socket in the close-on-fork set. -1: see errno. */
static int open_socket(int family, int type)
{
    int fd;

    sw_poll_lock();
    fd = sw_fork_set_add_new(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sw_poll_unlock();
    return fd;
}

/* 0, or an errno. EAGAIN: the listen queue of the creator is full, because many ranks connect at
 * once or the creator is stopped. poll() does not tell when the queue has room. */
static int connect_unix(int fd, const struct sockaddr_un *address, int64_t deadline)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    while (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        if (sw_now_ms() >= deadline)
            return ETIMEDOUT;
        if (errno == EAGAIN)
            nanosleep(&moment, NULL);
    }
    return 0;
}

/* Connects to the creator's local socket. SYMWIN_PEER_LOST: it does not exist any more. */
static symwin_status connect_local(const struct sw_id *id, int64_t deadline, int *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat folder;
    pid_t pid;
    int error;
    int fd;

    if (id->folder[0] == '\0')
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: the process that made the id could not open a socket for others; give it "
            "a writable TMPDIR of at most 21 characters",
            call);
    if (lstat(id->folder, &folder) != 0 && errno == EACCES)
        return sw_fail(SYMWIN_DENIED,
                       "%s: %s cannot be accessed: all ranks must run as one user, with access to "
                       "the TMPDIR of the process that made the id",
                       call, id->folder);
    if (lstat(id->folder, &folder) != 0)
        return sw_fail(
            SYMWIN_PEER_LOST,
            "%s: the process that made the id has ended or released it, or is on another "
            "host and was not given SYMWIN_ADDR (%s: %s)",
            call, id->folder, strerror(errno));
    if (!S_ISDIR(folder.st_mode) || folder.st_uid != geteuid() || (folder.st_mode & 077) != 0)
        return sw_fail(SYMWIN_DENIED,
                       "%s: %s is not this user's private folder; all ranks must run as "
                       "one user",
                       call, id->folder);
    memcpy(address.sun_path, id->folder, sizeof id->folder);
    strcat(address.sun_path, SW_SOCKET_NAME);
    fd = open_socket(AF_UNIX, SOCK_SEQPACKET);
    if (fd < 0)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: socket: %s; raise ulimit -n", call, strerror(errno));
    sw_socket_take_descriptors(fd, 0); /* not before the creator's proof */
    error = connect_unix(fd, &address, deadline);
    if (error != 0) {
        sw_fork_set_close(fd);
        if (error == ETIMEDOUT)
            return sw_fail(SYMWIN_TIMEOUT,
                           "%s: the process that made the id did not answer in time", call);
        return sw_fail(error == EACCES ? SYMWIN_DENIED : SYMWIN_PEER_LOST,
                       "%s: the process that made the id does not answer (%s: %s)", call,
                       address.sun_path, strerror(error));
    }
    if (!sw_socket_same_user(fd, &pid)) {
        sw_fork_set_close(fd);
        return sw_fail(SYMWIN_DENIED, "%s: the process at %s belongs to another user", call,
                       address.sun_path);
    }
    *out = fd;
    return SYMWIN_OK;
}

/* Tries once. 0, or an errno. */
static int connect_tcp(const struct sw_id *id, int64_t deadline, int *out)
{
    struct sockaddr_storage address;
    const socklen_t length = sw_id_address(id, &address);
    const int fd = open_socket(id->family, SOCK_STREAM);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t bytes = sizeof(int);
    const int yes = 1;
    int error = 0;

    if (fd < 0)
        return errno;
    /* If nobody listens, the system may choose that same port for this end and connect the socket
     * to itself. The proof check detects that. With this option such a socket does not keep the
     * creator from listening on the port later. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    do
        error = connect(fd, (struct sockaddr *)&address, length) == 0 ? 0 : errno;
    while (error == EINTR); /* if connecting has begun, the next call says EALREADY */
    if (error == EISCONN)
        error = 0;
    while (error == EINPROGRESS || error == EALREADY) {
        const int64_t left = deadline - sw_now_ms();
        const int found = left <= 0 ? 0 : poll(&p, 1, left > 1000 ? 1000 : (int)left);

        if (found > 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
        else if (left <= 0)
            error = ETIMEDOUT;
    }
    if (error != 0) {
        sw_fork_set_close(fd);
        return error;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    *out = fd;
    return 0;
}

/* Whether each process made the id from a shared secret, so that its creator may not listen yet. */
static int is_shared(const struct sw_id *id)
{
    static const unsigned char unknown[SW_NAME_BYTES];

    return memcmp(id->creator, unknown, sizeof unknown) == 0;
}

static symwin_status connect_remote(const struct sw_id *id, int64_t deadline, int *out)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    int error;

    while ((error = connect_tcp(id, deadline, out)) != 0 && error != EMFILE && error != ENFILE &&
           (error != ECONNREFUSED || is_shared(id)) && sw_now_ms() < deadline)
        nanosleep(&moment, NULL);
    if (error == EMFILE || error == ENFILE)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: socket: %s; raise ulimit -n", call, strerror(error));
    if (error == ECONNREFUSED && !is_shared(id))
        return sw_fail(
            SYMWIN_PEER_LOST,
            "%s: the process that made the id has ended or released it (nobody listens at "
            "its address)",
            call);
    if (error != 0)
        return sw_fail(SYMWIN_TIMEOUT,
                       "%s: the process that made the id cannot be reached over the network: %s; "
                       "SYMWIN_ADDR there must be an address that all hosts reach",
                       call, strerror(error));
    return SYMWIN_OK;
}

/* Connects to the creator: by the local socket if it is on this host, else by TCP. */
static symwin_status connect_to(const struct sw_id *id, int64_t deadline,
                                struct sw_connection *connection)
{
    const int remote = !sw_id_is_near(id);
    symwin_status status;
    int fd = -1;

    status = remote ? connect_remote(id, deadline, &fd) : connect_local(id, deadline, &fd);
    if (status == SYMWIN_OK && sw_connection_open(connection, fd, remote) != 0) {
        sw_fork_set_close(fd);
        *connection = (struct sw_connection){.fd = -1};
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    return status;
}

/* Receives a frame. A descriptor is added to the close-on-fork set under the same lock. `fd` NULL:
 * none may come. */
static int receive(struct sw_connection *connection, union sw_frame *frame, int *fd,
                   int64_t deadline)
{
    int error;

    if (fd == NULL)
        return sw_connection_receive(connection, frame, NULL, deadline);
    do {
        sw_poll_lock();
        error = sw_connection_receive_now(connection, frame, fd);
        if (error == 0 && *fd >= 0 && !sw_fork_set_add(*fd)) {
            sw_closer_close(*fd);
            *fd = -1;
            error = EMFILE;
        }
        sw_poll_unlock();
    } while (error == EAGAIN && (error = sw_socket_wait(connection->fd, POLLIN, deadline)) == 0);
    return error;
}

/* What a rank that waits on another host tells the creator, and when. Threads that join are few. */
static _Thread_local struct {
    const struct sw_id *id; /* NULL: nothing */
    int rank;
    int64_t at;
} waits;

void sw_client_tell_at(const struct sw_id *id, int rank, int64_t at)
{
    waits.id = id;
    waits.rank = rank;
    waits.at = at;
}

static void tell_that_it_waits(void);

symwin_status sw_client_recv_frame(struct sw_connection *connection, union sw_frame *frame,
                                   enum sw_frame_type type, int *fd, int64_t deadline)
{
    const int tells = waits.id != NULL && waits.at < deadline;
    int error = receive(connection, frame, fd, tells ? waits.at : deadline);

    if (tells && error == ETIMEDOUT) {
        tell_that_it_waits();
        error = receive(connection, frame, fd, deadline);
    }

    switch (error) {
    case 0:
        break;
    case EPIPE:
        return sw_fail(SYMWIN_PEER_LOST,
                       "%s: the process that made the id ended before all ranks had joined", call);
    case ETIMEDOUT:
        return sw_fail(SYMWIN_TIMEOUT, "%s: the process that made the id did not answer in time",
                       call);
    case EMFILE:
        return sw_fail(SYMWIN_NO_MEMORY,
                       "%s: no file descriptor is left for a socket to another process; raise "
                       "ulimit -n",
                       call);
    default:
        if (!sw_frame_is_theirs(error))
            return sw_fail(SYMWIN_NO_MEMORY,
                           "%s: cannot receive from the process that made the id: %s", call,
                           strerror(error));
        return sw_fail(SYMWIN_DENIED,
                       "%s: the answer is not from the process that made the id (%s)", call,
                       strerror(error));
    }
    if (frame->header.type == type ||
        (frame->header.type == SW_FRAME_HERE && (type == SW_FRAME_TABLE || type == SW_FRAME_READY)))
        return SYMWIN_OK;
    if (fd != NULL && *fd >= 0) {
        sw_closer_close(*fd);
        *fd = -1;
    }
    if (frame->header.type == SW_FRAME_REFUSAL)
        return sw_fail((symwin_status)frame->refusal.status, "%s", frame->refusal.text);
    return sw_fail(SYMWIN_DENIED,
                   "%s: the process that made the id sent a frame of type %d instead of %d", call,
                   frame->header.type, (int)type);
}

symwin_status sw_client_send_frame(struct sw_connection *connection, const union sw_frame *frame,
                                   int64_t deadline)
{
    const int error = sw_connection_send(connection, frame, -1, deadline);

    if (error == 0 || (sw_frame_is_theirs(error) && error != ETIMEDOUT))
        return SYMWIN_OK;
    return sw_fail(error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_NO_MEMORY,
                   "%s: cannot send to the process that made the id: %s", call, strerror(error));
}

/* Any process can answer at an address and port. So without a proof nothing counts: neither a
 * refusal, nor its text, nor the end of the connection. The creator may still come. */
static symwin_status fail_unproved(const struct sw_id *id, union sw_frame *answer)
{
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    struct sockaddr_storage address;
    const socklen_t bytes = sw_id_address(id, &address);

    answer->header.type = 0;
    (void)getnameinfo((struct sockaddr *)&address, bytes, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    return sw_fail(
        SYMWIN_BUSY,
        "%s: the process at %s, port %s, has not proved that it knows the id's secret: "
        "the process that made the id is stopped, the id has been used, the port belongs to "
        "another program, or SYMWIN_SECRET differs between the hosts",
        call, host, port);
}

/* Sends HELLO with the id's name, receives CHALLENGE, and checks that the other end knows the
 * secret. */
static symwin_status authenticate(struct sw_connection *connection, const struct sw_id *id,
                                  union sw_frame *hello, union sw_frame *challenge,
                                  int64_t deadline)
{
    unsigned char proof[SW_DIGEST_BYTES];
    symwin_status status;
    int64_t proof_deadline = deadline;
    int proved;

    memset(hello, 0, sizeof hello->hello);
    sw_id_name(id, hello->hello.name);
    status = sw_random_bytes(hello->hello.nonce, sizeof hello->hello.nonce, call);
    if (status != SYMWIN_OK)
        return status;
    sw_frame_seal(hello, SW_FRAME_HELLO);
    status = sw_client_send_frame(connection, hello, deadline);
    if (status != SYMWIN_OK)
        return status;
    if (connection->stream && sw_now_ms() + PROOF_MS < deadline)
        proof_deadline = sw_now_ms() + PROOF_MS;
    challenge->header.type = 0;
    status = sw_client_recv_frame(connection, challenge, SW_FRAME_CHALLENGE, NULL, proof_deadline);
    if (challenge->header.type == 0 && /* failed here, not refused */
        (status == SYMWIN_NO_MEMORY || (status == SYMWIN_TIMEOUT && proof_deadline == deadline)))
        return status;
    if (status == SYMWIN_OK)
        sw_frame_prove_creator(id->secret, &hello->hello, &challenge->challenge, proof);
    proved = status == SYMWIN_OK && sw_digest_equal(proof, challenge->challenge.proof);
    if (!proved && connection->stream)
        return fail_unproved(id, challenge);
    if (status == SYMWIN_OK && !proved)
        status = sw_fail(SYMWIN_DENIED, "%s: the process at %s does not know the id's secret", call,
                         id->folder);
    return status;
}

void sw_client_refuse(struct sw_connection *connection, symwin_status status, int culprit,
                      int64_t deadline)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = (int32_t)status;
    frame.refusal.rank = culprit;
    snprintf(frame.refusal.text, sizeof frame.refusal.text, "%s", symwin_last_error());
    sw_frame_seal(&frame, SW_FRAME_REFUSAL);
    sw_connection_send(connection, &frame, -1, deadline); /* may fail: perhaps it is the cause */
}

symwin_status sw_client_report(struct sw_connection *connection, int rank, symwin_status status,
                               int64_t deadline)
{
    union sw_frame frame;
    char who[32];

    if (status == SYMWIN_OK) {
        memset(&frame, 0, sizeof frame.pass);
        sw_frame_seal(&frame, SW_FRAME_READY);
        return sw_client_send_frame(connection, &frame, deadline);
    }
    snprintf(who, sizeof who, "rank %d: ", rank);
    sw_fail_in(status, call, who);
    sw_client_refuse(connection, status, rank, deadline);
    return status;
}

void sw_client_set_time(struct sw_member *member)
{
    const int64_t left = member->due - sw_now_ms();

    if (left + SLACK_MS < member->join.timeout_ms)
        member->join.timeout_ms = left > 1 ? (int)left : 1;
}

/* A rank that joins for its host listens, at the address by which it has reached the creator, for
 * hosts below it: but only if there can be so many hosts that they are no star. If it cannot, the
 * creator fails if there are. */
static void offer_place(struct sw_member *m)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof address;
    struct sw_id at = {.family = 0};
    symwin_status status;

    if (m->host == NULL || m->join.nranks <= sw_host_fan + 1)
        return;
    if (getsockname(m->connection.fd, (struct sockaddr *)&address, &bytes) != 0 ||
        !sw_id_set_address(&at, &address))
        return;
    sw_poll_lock();
    status = sw_listener_port(&at);
    sw_poll_unlock();
    if (status != SYMWIN_OK)
        return;
    m->join.place = (struct sw_place){.family = at.family, .port = at.port};
    memcpy(m->join.place.address, at.address, sizeof at.address);
}

/* Authenticates both ends, sends JOIN and waits for the answer: TABLE, which comes once all ranks
 * have joined; over TCP READY, which comes at once. `frame`: the last frame received; type 0:
 * none. */
static symwin_status send_join(struct sw_member *m, union sw_frame *frame)
{
    union sw_frame hello;
    symwin_status status;

    frame->header.type = 0;
    status = authenticate(&m->connection, m->id, &hello, frame, m->deadline);
    if (status != SYMWIN_OK)
        return status;
    sw_connection_key(&m->connection, 0, m->id->secret, &hello.hello, &frame->challenge);
    if (!m->connection.stream)
        sw_socket_take_descriptors(m->connection.fd, 1);
    sw_client_set_time(m);
    offer_place(m);
    sw_frame_prove_rank(m->id->secret, &hello.hello, &frame->challenge, &m->join, m->join.proof);
    status = sw_client_send_frame(&m->connection, (union sw_frame *)(void *)&m->join, m->deadline);
    if (status != SYMWIN_OK)
        return status;
    return sw_client_recv_frame(&m->connection, frame,
                                m->connection.stream ? SW_FRAME_READY : SW_FRAME_TABLE, NULL,
                                m->deadline);
}

/* A connection on which the creator has proved itself, and nobody joins. */
static symwin_status meet(const struct sw_id *id, int64_t deadline,
                          struct sw_connection *connection)
{
    union sw_frame hello, challenge;

    symwin_status status = connect_to(id, deadline, connection);

    if (status != SYMWIN_OK)
        return status;
    status = authenticate(connection, id, &hello, &challenge, deadline);
    if (status == SYMWIN_OK)
        sw_connection_key(connection, 0, id->secret, &hello.hello, &challenge.challenge);
    else
        sw_connection_close(connection);
    return status;
}

symwin_status sw_client_link(const struct sw_id *id, const struct sw_frame_join *join,
                             int64_t deadline, struct sw_connection *connection)
{
    union sw_frame hello, frame, mine = {.join = *join};
    symwin_status status = connect_to(id, deadline, connection);

    if (status != SYMWIN_OK)
        return status;
    frame.header.type = 0;
    status = authenticate(connection, id, &hello, &frame, deadline);
    if (status == SYMWIN_OK) {
        sw_connection_key(connection, 0, id->secret, &hello.hello, &frame.challenge);
        sw_frame_prove_rank(id->secret, &hello.hello, &frame.challenge, &mine.join,
                            mine.join.proof);
        status = sw_client_send_frame(connection, &mine, deadline);
    }
    if (status == SYMWIN_OK)
        status = sw_client_recv_frame(connection, &frame, SW_FRAME_READY, NULL, deadline);
    if (status != SYMWIN_OK)
        sw_connection_close(connection);
    return frame.header.type == SW_FRAME_REFUSAL ? SYMWIN_BUSY : status; /* it says why itself */
}

static void tell_that_it_waits(void)
{
    const struct sw_id *id = waits.id;
    const int64_t deadline = sw_now_ms() + TELL_MS;
    struct sw_connection connection;
    char text[SW_TEXT_BYTES];

    waits.id = NULL;
    snprintf(text, sizeof text, "%s", symwin_last_error());
    if (meet(id, deadline, &connection) == SYMWIN_OK) {
        sw_fail(SYMWIN_BUSY, "%s: rank %d waits for another rank of its host", call, waits.rank);
        sw_client_refuse(&connection, SYMWIN_BUSY, waits.rank, deadline);
        sw_connection_close(&connection);
    }
    sw_error_restore(text);
}

void sw_client_tell(const struct sw_id *id, int rank, symwin_status status)
{
    const int64_t deadline = sw_now_ms() + TELL_MS;
    struct sw_connection connection;
    char text[SW_TEXT_BYTES];
    symwin_status met;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    met = meet(id, deadline, &connection);
    sw_error_restore(text);
    if (met != SYMWIN_OK)
        return;
    sw_client_report(&connection, rank, status, deadline);
    sw_connection_close(&connection);
}

symwin_status sw_client_hear(const struct sw_id *id)
{
    const int64_t deadline = sw_now_ms() + TELL_MS;
    struct sw_connection connection;
    union sw_frame frame;
    symwin_status status;
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    frame.header.type = 0;
    status = meet(id, deadline, &connection);
    if (status == SYMWIN_PEER_LOST) /* it has ended */
        return status;
    if (status == SYMWIN_OK) {
        status = sw_client_recv_frame(&connection, &frame, (enum sw_frame_type)0, NULL,
                                      sw_now_ms() + HEAR_MS);
        sw_connection_close(&connection);
    }
    if (frame.header.type == SW_FRAME_REFUSAL && frame.refusal.rank != SW_FRAME_UNKNOWN &&
        frame.refusal.status != SYMWIN_BUSY)
        return status;
    sw_error_restore(text);
    return SYMWIN_OK;
}

int sw_id_is_near(const struct sw_id *id)
{
    unsigned char host[SW_NAME_BYTES];

    sw_host_name(host);
    return id->family == 0 || (memcmp(host, id->host, sizeof host) == 0 && id->folder[0] != '\0');
}

int sw_id_is_open(const struct sw_id *id, int64_t deadline)
{
    union sw_frame hello, challenge;
    struct sw_connection connection;
    int open;

    if (!sw_id_is_valid(id) || connect_to(id, deadline, &connection) != SYMWIN_OK)
        return 0;
    open = authenticate(&connection, id, &hello, &challenge, deadline) == SYMWIN_OK;
    sw_connection_close(&connection);
    return open;
}

/* Whether to connect again after a failure.
 * SYMWIN_INVALID: only if the creator does not know the id and the id is a shared one: the creator
 * may listen already and open this id later. Any other refusal is the outcome of the rendezvous.
 * SYMWIN_BUSY: the creator had too many connections, or gave no proof over TCP.
 * SYMWIN_PEER_LOST: if the creator closed a connection without a refusal, it had no memory for it.
 * If the creator had ended, there would have been no connection. */
static int should_retry(const struct sw_id *id, symwin_status status,
                        const struct sw_connection *connection, const union sw_frame *last)
{
    if (status == SYMWIN_INVALID)
        return is_shared(id) && last->header.type == SW_FRAME_REFUSAL &&
               last->refusal.rank == SW_FRAME_UNKNOWN;
    if (status == SYMWIN_BUSY)
        return 1;
    return status == SYMWIN_PEER_LOST && connection->fd >= 0 &&
           !(connection->stream && is_shared(id)) && last->header.type != SW_FRAME_REFUSAL;
}

/* Whether this rank joins for its host, whose rendezvous has failed meanwhile. */
static int is_in_vain(const struct sw_member *m)
{
    int over;

    if (m->host == NULL)
        return 0;
    sw_poll_lock();
    over = sw_rendezvous_is_over(m->host);
    sw_poll_unlock();
    return over;
}

/* Tries until the answer to JOIN comes, or until trying again cannot succeed. */
static symwin_status join_at(struct sw_member *m, union sw_frame *frame)
{
    const struct timespec moment = {.tv_nsec = 1000000}, pause = {.tv_nsec = 20000000};
    char text[SW_TEXT_BYTES], busy_text[SW_TEXT_BYTES] = "";
    symwin_status status;

    memcpy(text, symwin_last_error(), sizeof text);
    for (;;) {
        const int64_t look = sw_now_ms() + LOOK_MS;
        const int looks = m->host != NULL && look < m->deadline;

        m->connection = (struct sw_connection){.fd = -1};
        frame->header.type = 0;
        status = connect_to(m->id, looks ? look : m->deadline, &m->connection);
        if (status == SYMWIN_TIMEOUT && looks)
            status = is_in_vain(m) ? status : SYMWIN_BUSY;
        else if (status == SYMWIN_OK)
            status = send_join(m, frame);
        if (status == SYMWIN_OK)
            break;
        if (status == SYMWIN_BUSY)
            memcpy(busy_text, symwin_last_error(), sizeof busy_text);
        if (sw_now_ms() >= m->deadline && busy_text[0] != '\0' &&
            (status == SYMWIN_BUSY || status == SYMWIN_TIMEOUT))
            return sw_fail(SYMWIN_TIMEOUT, "%s; this lasted until this rank's timeout", busy_text);
        if (!should_retry(m->id, status, &m->connection, frame) || sw_now_ms() >= m->deadline ||
            is_in_vain(m))
            return status;
        nanosleep(status == SYMWIN_BUSY && !m->connection.stream ? &moment : &pause, NULL);
        sw_connection_close(&m->connection);
    }
    sw_error_restore(text);
    return SYMWIN_OK;
}

/* Takes the first frame of the table, and receives the others. */
static symwin_status take_table(struct sw_member *m, union sw_frame *frame)
{
    symwin_status status = SYMWIN_OK;

    while (status == SYMWIN_OK) {
        const int error = frame->header.type == SW_FRAME_TABLE
                              ? sw_rank_table_take(&m->table, &frame->table)
                              : EPROTO;

        if (error == ENOMEM)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call,
                           frame->table.nranks);
        if (error != 0)
            return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong table",
                           call);
        if (m->table.have == m->table.nranks)
            break;
        status = sw_client_recv_frame(&m->connection, frame, SW_FRAME_TABLE, NULL, m->deadline);
    }
    return status;
}

symwin_status sw_client_join(struct sw_member *member, union sw_frame *frame)
{
    const symwin_status status = join_at(member, frame);

    if (status != SYMWIN_OK || member->connection.stream || frame->header.type == SW_FRAME_HERE)
        return status;
    return take_table(member, frame);
}
