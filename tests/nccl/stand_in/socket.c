/* The wire between ranks that only TCP joins: a connection for each pair of ranks and each plane,
 * so a plane never waits for another, and the end of a stream says that a rank has left it.
 *
 * A process takes the connections of all its ranks at one port. Who connects says for which
 * communicator, and between which ranks; the rank that is meant takes the connection when its own
 * birth has come that far, and says so with one byte. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "inside.h"

/* What the rank that connects says. */
struct hello {
    char name[NAME_BYTES]; /* of the communicator */
    int from, to, plane;
};

/* A connection that no rank has taken yet. */
struct visitor {
    struct visitor *next;
    int socket;
    size_t got;
    struct hello hello;
};

/* The port of this process, while it has communicators that use it. */
static struct {
    pthread_mutex_t mutex;
    int users, listener;
    struct place place;
    struct visitor *visitors;
} port = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct link {
    int socket, born;
    size_t sent, got; /* of what is said first */
};

struct socket_wire {
    struct wire wire; /* comes first */
    int rank, ranks;
    int own[2]; /* a rank's messages to itself go from the first to the second */
    struct link links[PLANES][MOST_RANKS];
};

static struct socket_wire *wire_of(struct wire *wire)
{
    return (struct socket_wire *)(void *)wire;
}

/* ---- the port ---- */

static ncclResult_t socket_open(void)
{
    uint32_t address;
    ncclResult_t result = tcp_own_address(&address);

    if (result != ncclSuccess)
        return result;
    pthread_mutex_lock(&port.mutex);
    if (port.users == 0)
        port.listener = tcp_listen(address, &port.place);
    if (port.listener >= 0)
        port.users++;
    else
        result = refuse(ncclSystemError, "no port for the connections of other ranks");
    pthread_mutex_unlock(&port.mutex);
    return result;
}

/* Returns the one after it. The mutex is held. */
static struct visitor *visitor_free(struct visitor *visitor)
{
    struct visitor *next = visitor->next;

    free(visitor);
    return next;
}

static void socket_close(void)
{
    pthread_mutex_lock(&port.mutex);
    if (--port.users == 0) {
        close(port.listener);
        while (port.visitors != NULL) {
            close(port.visitors->socket);
            port.visitors = visitor_free(port.visitors);
        }
    }
    pthread_mutex_unlock(&port.mutex);
}

/* Lets in who knocks, and hears them. Those that have gone again are dropped. */
static void port_serve(void)
{
    int socket;

    pthread_mutex_lock(&port.mutex);
    while ((socket = tcp_accept(port.listener)) >= 0) {
        struct visitor *visitor = calloc(1, sizeof *visitor);

        if (visitor == NULL) {
            close(socket);
            break;
        }
        visitor->socket = socket;
        visitor->next = port.visitors;
        port.visitors = visitor;
    }
    for (struct visitor **at = &port.visitors; *at != NULL;) {
        struct visitor *visitor = *at;

        if (tcp_receive(visitor->socket, &visitor->hello, sizeof visitor->hello, &visitor->got) <
                0 ||
            tcp_is_over(visitor->socket)) {
            close(visitor->socket);
            *at = visitor_free(visitor);
        } else {
            at = &visitor->next;
        }
    }
    pthread_mutex_unlock(&port.mutex);
}

/* The socket of a visitor who has said this; -1: there is none. */
static int port_take(const struct hello *hello)
{
    struct visitor **at = &port.visitors;
    int socket = -1;

    pthread_mutex_lock(&port.mutex);
    while (*at != NULL &&
           ((*at)->got < sizeof *hello || memcmp(&(*at)->hello, hello, sizeof *hello) != 0))
        at = &(*at)->next;
    if (*at != NULL) {
        socket = (*at)->socket;
        *at = visitor_free(*at);
    }
    pthread_mutex_unlock(&port.mutex);
    return socket;
}

/* ---- birth ---- */

/* Each rank connects to each in some plane, so it sees whether that one is there at all. */
static int connects(int from, int to, enum plane plane)
{
    return plane == PLANE_CONTROL ? from > to : from < to;
}

static struct hello hello_of(const struct ncclComm *comm, int from, int to, enum plane plane)
{
    struct hello hello = {.from = from, .to = to, .plane = (int)plane};

    memcpy(hello.name, comm->name, strnlen(comm->name, sizeof comm->name));
    return hello;
}

/* 1: it is there; 0: not yet; -1: it will not come. */
static int link_advance(const struct ncclComm *comm, struct link *link, int peer, enum plane plane)
{
    const int mine = connects(comm->rank, peer, plane);
    const struct hello hello = mine ? hello_of(comm, comm->rank, peer, plane)
                                    : hello_of(comm, peer, comm->rank, plane);
    char taken = 1;
    int done;

    if (link->socket < 0)
        link->socket = mine ? tcp_connect(&comm->places[peer]) : port_take(&hello);
    if (link->socket < 0)
        return mine ? -1 : 0;
    if (!mine)
        return tcp_send(link->socket, &taken, sizeof taken, &link->sent);
    done = tcp_send(link->socket, &hello, sizeof hello, &link->sent);
    return done == 1 ? tcp_receive(link->socket, &taken, sizeof taken, &link->got) : done;
}

/* Returns how many connections are missing still; -1: one will not come, from *lost. */
static int advance_all(const struct ncclComm *comm, struct socket_wire *wire, int *lost)
{
    int missing = 0;

    port_serve();
    for (int plane = 0; plane < PLANES; plane++)
        for (int peer = 0; peer < comm->ranks; peer++) {
            struct link *link = &wire->links[plane][peer];
            int done;

            if (peer == comm->rank || link->born)
                continue;
            done = link_advance(comm, link, peer, (enum plane)plane);
            if (done < 0) {
                *lost = peer;
                return -1;
            }
            link->born = done;
            missing += !done;
        }
    return missing;
}

static ncclResult_t connect_all(struct ncclComm *comm, struct socket_wire *wire)
{
    struct wait wait = wait_begin();
    int missing, lost = -1;

    while ((missing = advance_all(comm, wire, &lost)) != 0) {
        if (missing < 0)
            return refuse(ncclRemoteError, "rank %d is gone while ranks meet", lost);
        if (atomic_load(&comm->stop))
            return refuse(ncclInternalError, "aborted while ranks meet");
        if (!wait_more(&wait))
            return refuse(ncclSystemError, "%d connections of rank %d have not come in time",
                          missing, comm->rank);
    }
    return ncclSuccess;
}

/* Others that have connected to a rank whose birth failed see that at once. */
static void turn_away(const struct ncclComm *comm)
{
    port_serve();
    for (int plane = 0; plane < PLANES; plane++)
        for (int peer = 0; peer < comm->ranks; peer++) {
            const struct hello hello = hello_of(comm, peer, comm->rank, (enum plane)plane);
            const int socket = port_take(&hello);

            if (socket >= 0)
                close(socket);
        }
}

static void socket_release(struct wire *wire)
{
    for (int plane = 0; plane < PLANES; plane++)
        for (int peer = 0; peer < wire_of(wire)->ranks; peer++)
            if (wire_of(wire)->links[plane][peer].socket >= 0)
                close(wire_of(wire)->links[plane][peer].socket);
    close(wire_of(wire)->own[0]);
    close(wire_of(wire)->own[1]);
    free(wire_of(wire));
}

static ncclResult_t socket_join(struct ncclComm *comm, struct wire **wire)
{
    struct socket_wire *own;
    ncclResult_t result = ncclSuccess;

    if (meet_is_id(&comm->id)) /* else it has the places from its parent */
        result = meet_others(comm, &port.place, comm->places);
    if (result != ncclSuccess)
        return result;
    own = calloc(1, sizeof *own);
    if (own == NULL)
        return refuse(ncclSystemError, "out of memory");
    own->wire.kind = &socket_kind;
    own->rank = comm->rank;
    own->ranks = comm->ranks;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, own->own) != 0) {
        free(own);
        return refuse(ncclSystemError, "socketpair");
    }
    for (int plane = 0; plane < PLANES; plane++)
        for (int peer = 0; peer < comm->ranks; peer++)
            own->links[plane][peer].socket = -1;
    result = connect_all(comm, own);
    if (result == ncclSuccess) {
        *wire = &own->wire;
        return ncclSuccess;
    }
    socket_release(&own->wire);
    turn_away(comm);
    return result;
}

/* ---- life ---- */

/* By which rank `rank` is sent to or received from. */
static int socket_to(struct socket_wire *wire, enum plane plane, int rank)
{
    return rank == wire->rank ? wire->own[0] : wire->links[plane][rank].socket;
}

static int socket_from(struct socket_wire *wire, enum plane plane, int rank)
{
    return rank == wire->rank ? wire->own[1] : wire->links[plane][rank].socket;
}

/* What was sent before still arrives. */
static void socket_mark(struct wire *wire, int rank, enum seat seat)
{
    (void)rank;
    if (seat < SEAT_REVOKED)
        return;
    for (int plane = 0; plane < PLANES; plane++)
        for (int peer = 0; peer < wire_of(wire)->ranks; peer++)
            if (wire_of(wire)->links[plane][peer].socket >= 0 &&
                (plane != PLANE_CONTROL || seat > SEAT_REVOKED))
                shutdown(wire_of(wire)->links[plane][peer].socket, SHUT_WR);
}

static int socket_is_lost(struct wire *wire, int rank, enum plane plane)
{
    return tcp_is_over(socket_from(wire_of(wire), plane, rank));
}

static size_t socket_put(struct wire *wire, enum plane plane, int from, int to, const void *data,
                         size_t bytes)
{
    size_t done = 0;

    (void)from;
    (void)tcp_send(socket_to(wire_of(wire), plane, to), data, bytes, &done);
    return done;
}

static size_t socket_get(struct wire *wire, enum plane plane, int from, int to, void *data,
                         size_t bytes)
{
    size_t done = 0;

    (void)to;
    (void)tcp_receive(socket_from(wire_of(wire), plane, from), data, bytes, &done);
    return done;
}

const struct wire_kind socket_kind = {
    .open = socket_open,
    .close = socket_close,
    .join = socket_join,
    .release = socket_release,
    .mark = socket_mark,
    .is_lost = socket_is_lost,
    .put = socket_put,
    .get = socket_get,
};
