/* The listener: the sockets that ranks of other processes connect to, and the handshakes.
 *
 * There is a local socket in a folder that only this user can enter, and a TCP socket for each
 * address and port on which ranks of other hosts are expected. A connection without a proof of the
 * id's secret is dropped and delays nobody: handshakes run concurrently, each with a deadline, and
 * the oldest unauthenticated connections are refused to make room for new ones.
 *
 * Under the poll lock. Handshakes run on the poll thread.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "src/bootstrap/rendezvous.h"

enum {
    HANDSHAKE_MS = 5000,
    LINGER_MS = 1000,           /* after a failure, to refuse late ranks with the reason */
    PAUSE_MS = 100,             /* without descriptors, until the next accept() */
    MOST_UNAUTHENTICATED = 128, /* connections without a slot */
    MOST_PORTS = 8              /* TCP sockets at a time */
};

static const char call[] = "symwin_unique_id_create";

/* A TCP socket. Ids with the same address and port share it. All are closed together. */
struct port {
    struct sw_poll_watch watch;
    struct sw_id where; /* family, port and address */
};

static struct {
    struct sw_accepted *accepted_list;
    int unauthenticated;
    struct sw_poll_watch local; /* .fd -1: there is none */
    /* The local socket takes no descriptors. Otherwise closing an accepted connection closes those
     * that were sent over it, which can take long. */
    int is_shut;
    char folder[sizeof((struct sw_id *)NULL)->folder];
    struct port ports[MOST_PORTS]; /* the first `count` are open */
    int count;
    int users;      /* rendezvous that are open */
    int64_t linger; /* without users, the sockets stay open until then */
    const struct sw_listener_events *events;
} listener = {.local = {.fd = -1}};

static void accept_one(struct sw_poll_watch *watch, short events);

/* ---- opening and closing ---- */

/* Sets an address to "<folder>/s". */
static void socket_address(const char *folder, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    strncpy(address->sun_path, folder, sizeof address->sun_path - 1);
    strncat(address->sun_path, SW_SOCKET_NAME,
            sizeof address->sun_path - 1 - strlen(address->sun_path));
}

static void folder_remove(void)
{
    struct sockaddr_un address;

    if (listener.folder[0] == '\0')
        return;
    socket_address(listener.folder, &address);
    unlink(address.sun_path);
    rmdir(listener.folder);
    listener.folder[0] = '\0';
}

/* At process exit: only the file system needs cleaning. */
__attribute__((destructor)) static void process_ends(void)
{
    folder_remove();
}

static void watch_close(struct sw_poll_watch *watch)
{
    sw_poll_remove(watch);
    if (watch->fd >= 0)
        close(watch->fd);
    watch->fd = -1;
}

static void close_sockets(void)
{
    folder_remove();
    while (listener.accepted_list != NULL) /* unauthenticated: no rendezvous is open */
        sw_listener_drop(listener.accepted_list);
    watch_close(&listener.local);
    while (listener.count > 0)
        watch_close(&listener.ports[--listener.count].watch);
}

/* Closes the sockets if no rendezvous is open and the time to linger is over. */
static void rest(void)
{
    struct sw_poll_watch *open = listener.local.fd >= 0 ? &listener.local
                                                        : &listener.ports[0].watch;

    if (listener.users > 0 || (listener.local.fd < 0 && listener.count == 0))
        return;
    if (sw_now_ms() >= listener.linger) {
        close_sockets();
    } else {
        open->deadline = listener.linger;
        sw_poll_changed();
    }
}

void sw_listener_close(int linger)
{
    listener.users--;
    if (linger)
        listener.linger = sw_now_ms() + LINGER_MS;
    rest();
}

static symwin_status watch_open(struct sw_poll_watch *watch, int fd)
{
    *watch = (struct sw_poll_watch){
        .fd = fd, .events = POLLIN, .deadline = INT64_MAX, .ready = accept_one};
    return sw_poll_add(watch);
}

/* Creates a folder that only this user can enter. 0: not possible in any temporary folder. */
static int folder_make(void)
{
    int i;

    for (i = 0; i < SW_TEMP_FOLDERS; i++)
        if (sw_temp_path(i, "/symwin-XXXXXX", listener.folder, sizeof listener.folder) &&
            mkdtemp(listener.folder) != NULL)
            return 1;
    listener.folder[0] = '\0';
    return 0;
}

static int is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* SYMWIN_OK also if the file system has no place for the socket; a lack of descriptors or memory is
 * a failure. */
static symwin_status local_open(void)
{
    struct sockaddr_un address;
    symwin_status status;
    int fd, error;

    if (listener.local.fd >= 0 || !folder_make())
        return SYMWIN_OK;
    socket_address(listener.folder, &address);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        listener.is_shut = sw_socket_take_descriptors(fd, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, SOMAXCONN) != 0) {
        error = errno;
        if (fd >= 0)
            close(fd);
        folder_remove();
        if (is_shortage(error))
            return sw_fail(SYMWIN_NO_MEMORY,
                           "%s: cannot open a socket for the ranks: %s; raise ulimit -n", call,
                           strerror(error));
        return SYMWIN_OK;
    }
    status = watch_open(&listener.local, fd);
    if (status != SYMWIN_OK) { /* the next id opens another */
        folder_remove();
        watch_close(&listener.local);
    }
    return status;
}

/* Binds a socket to the id's address and port; writes the actual port to the id. 0, or an errno. */
static int bind_to(int fd, struct sw_id *id)
{
    struct sockaddr_storage address;
    socklen_t bytes = sw_id_address(id, &address);
    const int yes = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return errno;
    id->port = id->family == AF_INET ? ((struct sockaddr_in *)(void *)&address)->sin_port
                                     : ((struct sockaddr_in6 *)(void *)&address)->sin6_port;
    return 0;
}

/* Whether the id can use the socket. */
static int port_fits(const struct port *port, const struct sw_id *id)
{
    return port->where.family == id->family && (id->port == 0 || id->port == port->where.port) &&
           memcmp(port->where.address, id->address, sizeof id->address) == 0;
}

/* Opens a TCP socket for the id, or shares an open one, and writes the port to the id. */
static symwin_status tcp_open(struct sw_id *id)
{
    struct port *port = listener.ports;
    char text[NI_MAXHOST] = "";
    struct sockaddr_storage address;
    symwin_status status;
    int fd, error;

    while (port < listener.ports + listener.count && !port_fits(port, id))
        port++;
    if (port < listener.ports + listener.count) {
        id->port = port->where.port;
        return SYMWIN_OK;
    }
    if (listener.count == MOST_PORTS)
        return sw_fail(SYMWIN_DENIED,
                       "%s: already listening at %d addresses and ports, the maximum: let their "
                       "ranks join, or release their ids",
                       call, listener.count);
    port->where = (struct sw_id){.family = id->family, .port = id->port}; /* no secret */
    memcpy(port->where.address, id->address, sizeof id->address);
    fd = socket(id->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    error = fd < 0 ? errno : bind_to(fd, &port->where);
    if (error == 0) {
        status = watch_open(&port->watch, fd);
        if (status == SYMWIN_OK) {
            listener.count++;
            id->port = port->where.port;
        } else {
            close(fd);
        }
        return status;
    }
    if (fd >= 0)
        close(fd);
    getnameinfo((struct sockaddr *)&address, sw_id_address(id, &address), text, sizeof text, NULL,
                0, NI_NUMERICHOST);
    return sw_fail(SYMWIN_DENIED,
                   "%s: cannot listen on %s, port %d: %s; set SYMWIN_ADDR to an address of this "
                   "host, SYMWIN_PORT to a free port",
                   call, text, ntohs(id->port), strerror(error));
}

symwin_status sw_listener_port(struct sw_id *id)
{
    const symwin_status status = tcp_open(id);

    rest(); /* if its rendezvous is over, nobody closes it later */
    return status;
}

symwin_status sw_listener_open(struct sw_id *id, const struct sw_listener_events *events)
{
    symwin_status status = local_open();

    if (status == SYMWIN_OK && id->family != 0)
        status = tcp_open(id);
    if (status != SYMWIN_OK) {
        rest();
        return status;
    }
    memcpy(id->folder, listener.folder, sizeof id->folder);
    listener.events = events;
    listener.users++;
    return SYMWIN_OK;
}

/* ---- accepted connections ---- */

void sw_listener_drop(struct sw_accepted *v)
{
    struct sw_accepted **at = &listener.accepted_list;

    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    listener.unauthenticated -= !v->has_slot;
    sw_poll_remove(&v->watch);
    if (!v->connection.stream && !listener.is_shut) {
        sw_closer_close(v->connection.fd);
        v->connection.fd = -1;
    }
    sw_connection_drop(&v->connection);
    free(v);
}

void sw_listener_refuse(struct sw_accepted *v, symwin_status status, int culprit, const char *text)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = (int32_t)status;
    frame.refusal.rank = culprit;
    strncpy(frame.refusal.text, text, sizeof frame.refusal.text - 1);
    sw_frame_seal(&frame, SW_FRAME_REFUSAL);
    sw_connection_send(&v->connection, &frame, -1, sw_now_ms() + 1); /* must not wait */
    sw_listener_drop(v);
}

struct sw_accepted *sw_listener_next(const struct rendezvous *rendezvous,
                                     const struct sw_accepted *last)
{
    struct sw_accepted *v = last == NULL ? listener.accepted_list : last->next;

    while (v != NULL && v->rendezvous != rendezvous)
        v = v->next;
    return v;
}

/* Proves to the client that this process knows the secret. SYMWIN_PEER_LOST: the client is gone.
 * Any other failure is of this process. */
static symwin_status challenge(struct sw_accepted *v, const unsigned char *secret)
{
    union sw_frame out;
    symwin_status status;

    memset(&out, 0, sizeof out.challenge);
    status = sw_random_bytes(out.challenge.nonce, sizeof out.challenge.nonce, call);
    if (status != SYMWIN_OK)
        return status;
    sw_frame_prove_creator(secret, &v->hello, &out.challenge, out.challenge.proof);
    sw_frame_seal(&out, SW_FRAME_CHALLENGE);
    v->challenge = out.challenge;
    if (sw_connection_send(&v->connection, &out, -1, sw_now_ms() + 1) != 0)
        return SYMWIN_PEER_LOST;
    sw_connection_key(&v->connection, 1, secret, &v->hello, &v->challenge);
    return SYMWIN_OK;
}

static void receive_hello(struct sw_accepted *v, const union sw_frame *in)
{
    char text[SW_TEXT_BYTES];
    const unsigned char *secret;
    symwin_status status;
    int culprit;

    v->hello = in->hello;
    status = listener.events->find(v->hello.name, &v->rendezvous, &culprit, &secret);
    if (status != SYMWIN_OK) {
        snprintf(text, sizeof text, "%s", symwin_last_error());
        /* Over TCP the client ignores a refusal without proof. */
        if (v->connection.stream && secret != NULL && challenge(v, secret) == SYMWIN_PEER_LOST)
            sw_listener_drop(v);
        else
            sw_listener_refuse(v, status, culprit, text);
        return;
    }
    v->secret = secret;
    status = challenge(v, secret);
    if (status == SYMWIN_PEER_LOST)
        sw_listener_drop(v);
    else if (status != SYMWIN_OK)
        listener.events->failed(v->rendezvous, status); /* no rank of another process can join */
}

/* Whether the client has the pid that it claims, if both processes see the same pids. */
static int pid_matches(const struct sw_accepted *v, const struct sw_frame_join *join)
{
    struct sw_frame_join own;

    if (v->connection.stream)
        return 1; /* over TCP there is only its proof */
    if (sw_join_fill(&own, 1, 0, 1) != SYMWIN_OK)
        return 0;
    return own.pid_space != join->pid_space || join->pid == v->pid;
}

static int is_here(const struct sw_frame_join *join)
{
    unsigned char host[SW_NAME_BYTES];

    sw_host_name(host);
    return listener.folder[0] != '\0' && memcmp(host, join->host, sizeof host) == 0;
}

/* To the creator's local socket. */
void sw_listener_redirect(struct sw_accepted *v, const char *folder)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.here);
    strncpy(frame.here.folder, folder, sizeof frame.here.folder - 1);
    sw_frame_seal(&frame, SW_FRAME_HERE);
    sw_connection_send(&v->connection, &frame, -1, sw_now_ms() + 1);
    sw_listener_drop(v);
}

static void receive_join(struct sw_accepted *v, const union sw_frame *in)
{
    unsigned char proof[SW_DIGEST_BYTES];

    sw_frame_prove_rank(v->secret, &v->hello, &v->challenge, &in->join, proof);
    if (!sw_digest_equal(proof, in->join.proof) || !pid_matches(v, &in->join)) {
        sw_listener_refuse(
            v, SYMWIN_DENIED, -1,
            "symwin_comm_create: the proof does not match the id: pass the id unchanged");
        return;
    }
    v->has_slot = 1;
    v->rank = in->join.rank;
    listener.unauthenticated--;
    v->watch.deadline = INT64_MAX;
    if (v->connection.stream && is_here(&in->join))
        sw_listener_redirect(v, listener.folder);
    else
        listener.events->joined(v, &in->join);
}

static void accepted_ready(struct sw_poll_watch *watch, short events)
{
    struct sw_accepted *v = (struct sw_accepted *)(void *)watch;
    union sw_frame frame;
    int error;

    error = events == 0 ? ETIMEDOUT : sw_connection_receive_now(&v->connection, &frame, NULL);
    if (error == EAGAIN)
        return;
    if (error == 0 && !v->has_slot && v->rendezvous == NULL && frame.header.type == SW_FRAME_HELLO)
        receive_hello(v, &frame);
    else if (error == 0 && !v->has_slot && v->rendezvous != NULL &&
             frame.header.type == SW_FRAME_JOIN)
        receive_join(v, &frame);
    else if (error == 0 && !v->has_slot && v->rendezvous != NULL && v->connection.stream &&
             frame.header.type == SW_FRAME_REFUSAL) /* its key proves it */
        listener.events->refused(v->rendezvous, &frame.refusal);
    else if (error == 0 && v->has_slot)
        listener.events->received(v, &frame);
    else if (v->rendezvous != NULL && error != 0 && !sw_frame_is_theirs(error))
        listener.events->failed(v->rendezvous,
                                sw_fail(SYMWIN_NO_MEMORY, "recvmsg: %s", strerror(error)));
    else if (v->has_slot)
        listener.events->received(v, NULL);
    else
        sw_listener_drop(v);
}

static const char too_many[] =
    "symwin_comm_create: too many connections to the process that made the id";
static const char too_few[] = "symwin_comm_create: the process that made the id has too few file "
                              "descriptors for all connections; raise its ulimit -n";

/* Refuses the oldest connection without HELLO; if all have sent it, the oldest one without a slot.
 * After HELLO it may be a rank in its handshake. In either case a rank connects again. */
static void drop_oldest_unauthenticated(const char *why)
{
    struct sw_accepted *v, *oldest = NULL;

    for (v = listener.accepted_list; v != NULL; v = v->next)
        if (!v->has_slot && (oldest == NULL || v->rendezvous == NULL || oldest->rendezvous != NULL))
            oldest = v;
    if (oldest != NULL)
        sw_listener_refuse(oldest, SYMWIN_BUSY, -1, why);
}

void sw_listener_clear(void)
{
    struct sw_accepted *v, *next;

    for (v = listener.accepted_list; v != NULL; v = next) {
        next = v->next;
        if (!v->has_slot)
            sw_listener_refuse(v, SYMWIN_BUSY, -1, too_many);
    }
}

/* Whether unauthenticated connections are too many: they may hold at most as many descriptors as
 * are free. The highest descriptor in use is estimated from the new one, `fd`, and theirs: `fd`
 * alone can be a number that was freed below others. */
static int is_crowded(int fd)
{
    const struct sw_accepted *v;
    struct rlimit most;

    if (listener.unauthenticated >= MOST_UNAUTHENTICATED)
        return 1;
    for (v = listener.accepted_list; v != NULL; v = v->next)
        if (!v->has_slot && v->watch.fd > fd)
            fd = v->watch.fd;
    return getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
           (rlim_t)fd + 1 + (rlim_t)listener.unauthenticated >= most.rlim_cur;
}

static void add_accepted(int fd, int stream)
{
    struct sw_accepted *v = calloc(1, sizeof *v);
    const int yes = 1;

    if (v == NULL || sw_connection_open(&v->connection, fd, stream) != 0 ||
        (!stream && !sw_socket_same_user(fd, &v->pid))) {
        free(v);
        close(fd);
        return;
    }
    if (stream)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    v->watch = (struct sw_poll_watch){.fd = fd,
                                      .events = POLLIN | POLLRDHUP,
                                      .deadline = sw_now_ms() + HANDSHAKE_MS,
                                      .ready = accepted_ready};
    if (is_crowded(fd))
        drop_oldest_unauthenticated(too_many);
    if (sw_poll_add(&v->watch) != SYMWIN_OK) {
        sw_connection_drop(&v->connection);
        free(v);
        return;
    }
    v->next = listener.accepted_list;
    listener.accepted_list = v;
    listener.unauthenticated++;
}

static void accept_one(struct sw_poll_watch *watch, short events)
{
    int fd, error;

    if (events == 0) { /* PAUSE_MS or LINGER_MS is over */
        watch->events = POLLIN;
        rest();
        return;
    }
    fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        add_accepted(fd, watch != &listener.local);
        return;
    }
    error = errno;
    if (!is_shortage(error))
        return;
    if (listener.unauthenticated > 0) {
        drop_oldest_unauthenticated(too_few);
        return; /* a descriptor is free now */
    }
    listener.events->no_room(error); /* first: it may set this watch's deadline, to linger */
    watch->events = 0;               /* or the watch would be ready again at once */
    watch->deadline = sw_now_ms() + PAUSE_MS;
    sw_poll_changed();
}

void sw_listener_forked(void)
{
    /* The sockets and the folder are the parent's. The child leaks the memory. */
    listener.accepted_list = NULL;
    listener.unauthenticated = 0;
    listener.local = (struct sw_poll_watch){.fd = -1};
    listener.folder[0] = '\0';
    listener.count = 0;
    listener.users = 0;
}
