/* The sockets that ranks of other processes come to, and their handshakes.
 *
 * One socket lies in a folder that only this user can enter; where ranks of other hosts are expected,
 * there is a TCP socket too. Who cannot prove that it has the id's secret is dropped, and disturbs
 * nobody: handshakes run side by side, each with a deadline, and the oldest strangers make room for new
 * ones.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
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
#include <unistd.h>

#include "bootstrap.h"

enum {
    HANDSHAKE_MS = 5000,
    LINGER_MS = 1000,     /* after a failure, to tell late ranks of it */
    PAUSE_MS = 100,       /* before another try to accept without descriptors */
    MOST_STRANGERS = 128, /* connections without a seat */
    MOST_PORTS = 8        /* addresses and ports at a time */
};

static const char call[] = "symwin_unique_id_create";

/* A socket for TCP. Ids that want the same share it, and all are closed together. */
struct port {
    struct sw_watch watch;
    struct sw_id where; /* family, port and address */
};

static struct {
    struct sw_visitor *visitors;
    int strangers;
    struct sw_watch local; /* .fd -1: there is none */
    char folder[sizeof((struct sw_id *)NULL)->folder];
    struct port ports[MOST_PORTS]; /* the first `count` are open */
    int count;
    int64_t linger; /* the sockets stay until then */
} door = {.local = {.fd = -1}};

static void visitor_come(struct sw_watch *watch, short events);

/* ---- opening and closing ---- */

/* Puts "<folder>/s" into an address. */
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

    if (door.folder[0] == '\0')
        return;
    socket_address(door.folder, &address);
    unlink(address.sun_path);
    rmdir(door.folder);
    door.folder[0] = '\0';
}

/* The process ends: what is in the file system must not stay. Nothing else is undone. */
__attribute__((destructor)) static void process_ends(void)
{
    folder_remove();
}

static void watch_close(struct sw_watch *watch)
{
    sw_service_remove(watch);
    if (watch->fd >= 0)
        close(watch->fd);
    watch->fd = -1;
}

static void door_close(void)
{
    folder_remove();
    watch_close(&door.local);
    while (door.count > 0)
        watch_close(&door.ports[--door.count].watch);
}

void sw_door_rest(int linger)
{
    struct sw_watch *open = door.local.fd >= 0 ? &door.local : &door.ports[0].watch;

    if (linger)
        door.linger = sw_now_ms() + LINGER_MS;
    if (sw_root_expects() || (door.local.fd < 0 && door.count == 0))
        return;
    if (sw_now_ms() >= door.linger) {
        door_close();
    } else {
        open->deadline = door.linger;
        sw_service_changed();
    }
}

static symwin_status watch_open(struct sw_watch *watch, int fd)
{
    *watch = (struct sw_watch){
        .fd = fd, .events = POLLIN, .deadline = INT64_MAX, .ready = visitor_come};
    return sw_service_add(watch);
}

/* A folder that only this user can enter, in the first place that takes one. */
static int folder_make(void)
{
    int i;

    for (i = 0; i < SW_PLACES; i++)
        if (sw_place_name(i, "/symwin-XXXXXX", door.folder, sizeof door.folder) &&
            mkdtemp(door.folder) != NULL)
            return 1;
    door.folder[0] = '\0';
    return 0;
}

static int is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Without a place for the socket it is no failure; without a descriptor it is one. */
static symwin_status local_open(void)
{
    struct sockaddr_un address;
    int fd, error;

    if (door.local.fd >= 0 || !folder_make())
        return SYMWIN_OK;
    socket_address(door.folder, &address);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, SOMAXCONN) != 0) {
        error = errno;
        if (fd >= 0)
            close(fd);
        folder_remove();
        if (is_shortage(error))
            return sw_fail(SYMWIN_NO_MEMORY,
                           "%s: no socket for the ranks to come to: %s; raise ulimit -n", call,
                           strerror(error));
        return SYMWIN_OK;
    }
    return watch_open(&door.local, fd);
}

/* The address of a network interface of that name; 0: there is none. */
static int interface_address(const char *name, struct sockaddr_storage *out)
{
    struct ifaddrs *all = NULL, *i;
    int found = 0;

    if (getifaddrs(&all) != 0)
        return 0;
    for (i = all; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr == NULL || strcmp(i->ifa_name, name) != 0)
            continue;
        found = i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6;
        if (found)
            memcpy(out, i->ifa_addr,
                   i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                     : sizeof(struct sockaddr_in6));
    }
    freeifaddrs(all);
    return found;
}

symwin_status sw_door_resolve(const char *name, int port, int everywhere, struct sw_id *id,
                              const char *for_call)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_storage address;
    int error;

    if (everywhere && if_nametoindex(name) != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: \"%s\" is an interface, and another one on every host: set MASTER_ADDR "
                       "or SYMWIN_ADDR to an address of rank 0's host",
                       for_call, name);
    if (everywhere || !interface_address(name, &address)) {
        error = getaddrinfo(name, NULL, &hints, &found);
        if (error != 0)
            return sw_fail(SYMWIN_INVALID, "%s: \"%s\" is no address%s: %s", for_call, name,
                           everywhere ? "" : " and no interface of this host", gai_strerror(error));
        memcpy(&address, found->ai_addr, found->ai_addrlen);
        freeaddrinfo(found);
    }
    id->family = address.ss_family;
    id->port = htons((uint16_t)port);
    if (address.ss_family == AF_INET)
        memcpy(id->address, &((struct sockaddr_in *)(void *)&address)->sin_addr, 4);
    else
        memcpy(id->address, &((struct sockaddr_in6 *)(void *)&address)->sin6_addr, 16);
    return SYMWIN_OK;
}

/* Binds a socket to the address and port; the port that it got is in the id then. 0, or an errno. */
static int bind_to(int fd, struct sw_id *id)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = id->port};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = id->port};
    struct sockaddr *address = (struct sockaddr *)(void *)&v6;
    socklen_t bytes = sizeof v6;
    const int yes = 1;

    memcpy(&v4.sin_addr, id->address, sizeof v4.sin_addr);
    memcpy(&v6.sin6_addr, id->address, sizeof v6.sin6_addr);
    if (id->family == AF_INET) {
        address = (struct sockaddr *)(void *)&v4;
        bytes = sizeof v4;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, address, bytes) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, address, &bytes) != 0)
        return errno;
    id->port = id->family == AF_INET ? v4.sin_port : v6.sin6_port;
    return 0;
}

/* Whether the socket will do for the id. */
static int is_for(const struct port *port, const struct sw_id *id)
{
    return port->where.family == id->family && (id->port == 0 || id->port == port->where.port) &&
           memcmp(port->where.address, id->address, sizeof id->address) == 0;
}

/* The port that it got is in the id then. */
static symwin_status tcp_open(struct sw_id *id)
{
    struct port *port = door.ports;
    char text[INET6_ADDRSTRLEN] = "";
    symwin_status status;
    int fd, error;

    while (port < door.ports + door.count && !is_for(port, id))
        port++;
    if (port < door.ports + door.count) {
        id->port = port->where.port;
        return SYMWIN_OK;
    }
    if (door.count == MOST_PORTS)
        return sw_fail(SYMWIN_DENIED,
                       "%s: ranks are awaited at %d addresses and ports already, the most there "
                       "can be: let them come, or release their ids",
                       call, door.count);
    port->where = (struct sw_id){.family = id->family, .port = id->port}; /* no secret */
    memcpy(port->where.address, id->address, sizeof id->address);
    fd = socket(id->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    error = fd < 0 ? errno : bind_to(fd, &port->where);
    if (error == 0) {
        status = watch_open(&port->watch, fd);
        if (status == SYMWIN_OK) {
            door.count++;
            id->port = port->where.port;
        } else {
            close(fd);
        }
        return status;
    }
    if (fd >= 0)
        close(fd);
    inet_ntop(id->family, id->address, text, sizeof text);
    return sw_fail(SYMWIN_DENIED,
                   "%s: cannot listen on %s, port %d: %s; set SYMWIN_ADDR to an address of this "
                   "host, SYMWIN_PORT to a free port",
                   call, text, ntohs(id->port), strerror(error));
}

symwin_status sw_door_open(struct sw_id *id)
{
    symwin_status status = local_open();

    if (status == SYMWIN_OK && id->family != 0)
        status = tcp_open(id);
    if (status != SYMWIN_OK)
        sw_door_rest(0);
    else
        memcpy(id->folder, door.folder, sizeof id->folder);
    return status;
}

/* ---- visitors ---- */

void sw_door_drop(struct sw_visitor *v)
{
    struct sw_visitor **at = &door.visitors;

    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    door.strangers -= !v->seated;
    sw_service_remove(&v->watch);
    sw_channel_close(&v->channel);
    free(v);
}

void sw_door_refuse(struct sw_visitor *v, symwin_status status, int culprit, const char *text)
{
    union sw_wire_frame frame;

    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = (int32_t)status;
    frame.refusal.rank = culprit;
    strncpy(frame.refusal.text, text, sizeof frame.refusal.text - 1);
    sw_wire_seal(&frame, SW_WIRE_REFUSAL);
    sw_channel_send(&v->channel, &frame, -1, sw_now_ms() + 1); /* not to wait */
    sw_door_drop(v);
}

struct sw_visitor *sw_door_next(const struct meeting *meeting, const struct sw_visitor *last)
{
    struct sw_visitor *v = last == NULL ? door.visitors : last->next;

    while (v != NULL && v->meeting != meeting)
        v = v->next;
    return v;
}

static void hello(struct sw_visitor *v, const union sw_wire_frame *in)
{
    union sw_wire_frame out;
    symwin_status status;
    int culprit;

    v->hello = in->hello;
    v->meeting = sw_root_named(v->hello.name);
    if (v->meeting == NULL) {
        status = sw_root_why_not(v->hello.name, &culprit);
        sw_door_refuse(v, status, culprit, symwin_last_error());
        return;
    }
    memset(&out, 0, sizeof out.challenge);
    status = sw_random_bytes(out.challenge.nonce, sizeof out.challenge.nonce, call);
    if (status != SYMWIN_OK) {
        sw_root_failed(v->meeting, status); /* no rank of another process can come */
        return;
    }
    sw_wire_prove_maker(sw_root_secret(v->meeting), &v->hello, &out.challenge, out.challenge.proof);
    sw_wire_seal(&out, SW_WIRE_CHALLENGE);
    v->challenge = out.challenge;
    if (sw_channel_send(&v->channel, &out, -1, sw_now_ms() + 1) != 0)
        sw_door_drop(v);
    else
        sw_channel_key(&v->channel, 1, sw_root_secret(v->meeting), &v->hello, &v->challenge);
}

/* Whether the process that speaks is the one that it says it is, as far as that can be seen. */
static int is_itself(const struct sw_visitor *v, const struct sw_wire_join *join)
{
    struct sw_wire_join own;

    if (v->channel.stream)
        return 1; /* its proof is all that there is */
    if (sw_join_fill(&own, 1, 0, 1) != SYMWIN_OK)
        return 0;
    return own.pid_space != join->pid_space || join->pid == v->pid;
}

static int is_here(const struct sw_wire_join *join)
{
    unsigned char host[SW_NAME_BYTES];

    sw_host_name(host);
    return door.folder[0] != '\0' && memcmp(host, join->host, sizeof host) == 0;
}

/* A rank of this host that came over the network: it has to come by the socket in the folder. */
static void send_here(struct sw_visitor *v)
{
    union sw_wire_frame frame;

    memset(&frame, 0, sizeof frame.here);
    strncpy(frame.here.folder, door.folder, sizeof frame.here.folder - 1);
    sw_wire_seal(&frame, SW_WIRE_HERE);
    sw_channel_send(&v->channel, &frame, -1, sw_now_ms() + 1);
    sw_door_drop(v);
}

static void join_in(struct sw_visitor *v, const union sw_wire_frame *in)
{
    const unsigned char *secret = sw_root_secret(v->meeting);
    unsigned char proof[SW_DIGEST_BYTES];

    sw_wire_prove_rank(secret, &v->hello, &v->challenge, &in->join, proof);
    if (!sw_digest_equal(proof, in->join.proof) || !is_itself(v, &in->join)) {
        sw_door_refuse(
            v, SYMWIN_DENIED, -1,
            "symwin_comm_create: the proof does not fit the id: pass the id as it was made");
        return;
    }
    v->seated = 1;
    v->rank = in->join.rank;
    door.strangers--;
    v->watch.deadline = INT64_MAX;
    if (v->channel.stream && is_here(&in->join))
        send_here(v);
    else
        sw_root_seat(v, &in->join);
}

static void visitor_ready(struct sw_watch *watch, short events)
{
    struct sw_visitor *v = (struct sw_visitor *)(void *)watch;
    union sw_wire_frame frame;
    int error;

    error = events == 0 ? ETIMEDOUT : sw_channel_receive_now(&v->channel, &frame, NULL);
    if (error == EAGAIN)
        return;
    if (error == 0 && !v->seated && v->meeting == NULL && frame.header.type == SW_WIRE_HELLO)
        hello(v, &frame);
    else if (error == 0 && !v->seated && v->meeting != NULL && frame.header.type == SW_WIRE_JOIN)
        join_in(v, &frame);
    else if (error == 0 && v->seated && sw_root_ready(v, &frame))
        return;
    else if (v->meeting != NULL && error != 0 && !sw_wire_is_theirs(error))
        sw_root_failed(v->meeting, sw_fail(SYMWIN_NO_MEMORY, "recvmsg: %s", strerror(error)));
    else if (v->seated)
        sw_root_lost(v);
    else
        sw_door_drop(v);
}

/* Of those who have not said which id they come for, if there is one: any other may be a rank in the
 * middle of its handshake. */
static void drop_oldest_stranger(void)
{
    struct sw_visitor *v, *oldest = NULL;

    for (v = door.visitors; v != NULL; v = v->next)
        if (!v->seated && (oldest == NULL || v->meeting == NULL || oldest->meeting != NULL))
            oldest = v;
    if (oldest != NULL)
        sw_door_refuse(oldest, SYMWIN_BUSY, -1,
                       "symwin_comm_create: too many connect to the process that made the id");
}

/* Strangers make room who have had time to say who they are: ranks that have just come have not. */
static void drop_slow_strangers(int error)
{
    const int64_t now = sw_now_ms();
    struct sw_visitor *v, *next;
    char text[SW_TEXT_BYTES];

    snprintf(
        text, sizeof text,
        "symwin_comm_create: the process that made the id cannot take in another rank: %s; raise "
        "its ulimit -n",
        strerror(error));
    for (v = door.visitors; v != NULL; v = next) {
        next = v->next;
        if (!v->seated && now >= v->watch.deadline - HANDSHAKE_MS + PAUSE_MS)
            sw_door_refuse(v, SYMWIN_NO_MEMORY, -1, text);
    }
}

static void visitor_admit(int fd, int stream)
{
    struct sw_visitor *v = calloc(1, sizeof *v);
    const int yes = 1;

    if (v == NULL || sw_channel_open(&v->channel, fd, stream) != 0 ||
        (!stream && !sw_wire_same_user(fd, &v->pid))) {
        free(v);
        close(fd);
        return;
    }
    if (stream)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    v->watch = (struct sw_watch){.fd = fd,
                                 .events = POLLIN | POLLRDHUP,
                                 .deadline = sw_now_ms() + HANDSHAKE_MS,
                                 .ready = visitor_ready};
    if (door.strangers == MOST_STRANGERS)
        drop_oldest_stranger();
    if (sw_service_add(&v->watch) != SYMWIN_OK) {
        sw_channel_close(&v->channel);
        free(v);
        return;
    }
    v->next = door.visitors;
    door.visitors = v;
    door.strangers++;
}

static void visitor_come(struct sw_watch *watch, short events)
{
    int fd, error;

    if (events == 0) { /* a pause is over, or the time to linger */
        watch->events = POLLIN;
        sw_door_rest(0);
        return;
    }
    fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        visitor_admit(fd, watch != &door.local);
        return;
    }
    error = errno;
    if (!is_shortage(error))
        return;
    if (door.strangers > 0)
        drop_slow_strangers(error);
    else
        sw_root_no_room(error); /* first: it may set a deadline for the last to come */
    watch->events = 0;          /* or it would be ready again at once */
    watch->deadline = sw_now_ms() + PAUSE_MS;
    sw_service_changed();
}

void sw_door_forked(void)
{
    /* The parent's, sockets and folder included; what is in memory is lost to the child. */
    door.visitors = NULL;
    door.strangers = 0;
    door.local = (struct sw_watch){.fd = -1};
    door.folder[0] = '\0';
    door.count = 0;
}
