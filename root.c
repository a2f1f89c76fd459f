/* Where ranks meet: the process that made an id keeps a meeting open for it.
 *
 * Ranks of this process come as threads, others through door.c. When all are there, every process learns
 * which rank is where, and those on this host get the control page and a line to each other; then the
 * meeting is over and the id has served. A meeting that fails (a rank is late, dies, or contradicts the
 * others) fails for all ranks with one sentence.
 *
 * Ranks of other hosts come through TCP. They hold meetings of their own after this one (bootstrap.c);
 * from here, the lowest of each host keeps its connection, whose other end goes to the lowest rank of
 * this host: that links the hosts (links.c).
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap.h"

enum {
    TELL_MS = 5000,
    MOST_PAST = 64 /* meetings that are remembered after their end */
};

static const char call[] = "symwin_comm_create";

struct seat {
    int taken;
    struct sw_visitor *visitor; /* NULL: a thread of this process */
    int leads; /* the lowest rank of another process here, which all have come for */
    int ready; /* and has said that its process can go */
    unsigned char process[SW_NAME_BYTES];
    unsigned char host[SW_NAME_BYTES]; /* of one that came through TCP; else zeros */
};

struct meeting {
    struct meeting *next;
    struct sw_id id;
    unsigned char name[SW_NAME_BYTES];
    struct sw_watch timer;
    int timeout_ms; /* of the rank whose deadline comes first */
    int nranks;     /* 0: nobody has come yet */
    int posts;      /* ranks that the control page is for */
    struct seat *seats;
    int come;
    int unready; /* processes that all are waiting for, once all ranks have come */
    int foreign; /* ranks of other processes among them */
    int inside;  /* threads of this process that wait; the last frees a meeting that is over */
    int over;
    symwin_status status; /* how it ended */
    char text[SW_TEXT_BYTES];
    struct sw_group *group; /* for the threads of this process */
    char *file;             /* owned: where the id is written down, NULL: nowhere */
    struct sw_wire_table
        *table; /* owned: of all ranks, where this is a meeting of one host's; or NULL */
    int host;
    struct sw_channel channel; /* owned: to the deciding host, .fd -1: not this process's affair */
};

/* How a meeting ended, for whoever comes too late. */
struct past {
    unsigned char name[SW_NAME_BYTES];
    symwin_status status;
    char text[SW_TEXT_BYTES];
};

static struct {
    pthread_cond_t changed;
    struct meeting *meetings;
    struct past past[MOST_PAST];
    unsigned past_count;
} root = {.changed = PTHREAD_COND_INITIALIZER};

/* ---- meetings ---- */

static void meeting_free(struct meeting *m)
{
    sw_channel_close(&m->channel);
    free(m->table);
    free(m->file);
    free(m->seats);
    free(m);
}

/* Whether ranks of other processes may be on their way. */
static int some_are_coming(const struct meeting *m)
{
    return (m->foreign || sw_door_next(m, NULL) != NULL) && (m->nranks == 0 || m->come < m->nranks);
}

/* Ends a meeting, well or not: nobody can come any more. */
static void meeting_end(struct meeting *m, symwin_status status, const char *text)
{
    struct past *past = &root.past[root.past_count++ % MOST_PAST];
    struct meeting **at = &root.meetings;
    const int linger = status != SYMWIN_OK && some_are_coming(m);
    struct sw_visitor *v;

    m->over = 1;
    m->status = status;
    snprintf(m->text, sizeof m->text, "%s", text);
    memcpy(past->name, m->name, sizeof past->name);
    past->status = status != SYMWIN_OK ? status : SYMWIN_INVALID;
    snprintf(past->text, sizeof past->text, "%s",
             status != SYMWIN_OK
                 ? text
                 : "symwin_comm_create: this id has served; make a new one for every "
                   "communicator");
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    sw_service_remove(&m->timer);
    if (m->file != NULL)
        unlink(m->file);
    if (status != SYMWIN_OK && m->group != NULL) {
        sw_group_free(m->group);
        m->group = NULL;
    }
    while ((v = sw_door_next(m, NULL)) != NULL) {
        if (status == SYMWIN_OK)
            sw_door_drop(v);
        else
            sw_door_refuse(v, status, m->text);
    }
    if (m->inside == 0)
        meeting_free(m);
    else
        pthread_cond_broadcast(&root.changed);
    sw_door_rest(linger);
}

/* What sw_fail() has just said is the trouble of this process, not of a rank that comes. */
static symwin_status own_trouble(symwin_status status)
{
    return sw_fail_in(status, call, "the process that made the id: ");
}

/* Ends it with what sw_fail() has just said. */
static void meeting_fail(struct meeting *m, symwin_status status)
{
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    meeting_end(m, status, text);
}

/* What a sentence calls a rank: in a meeting of one host's ranks, by its number among all. */
static int number_of(const struct meeting *m, int rank)
{
    int r = 0;

    if (m->table == NULL)
        return rank;
    while (r < m->table->nranks - 1 && (m->table->seats[r].host != m->host || rank-- > 0))
        r++;
    return r;
}

static int first_absent(const struct meeting *m)
{
    int r = 0;

    while (r < m->nranks - 1 && m->seats[r].taken)
        r++;
    return r;
}

static int first_unready(const struct meeting *m)
{
    int r = 0;

    while (r < m->nranks - 1 && (!m->seats[r].leads || m->seats[r].ready))
        r++;
    return r;
}

static void meeting_late(struct sw_watch *watch, short events)
{
    struct meeting *m = (struct meeting *)(void *)((char *)watch - offsetof(struct meeting, timer));

    (void)events;
    if (m->come == m->nranks)
        meeting_fail(m, sw_fail(SYMWIN_TIMEOUT, "%s: rank %d came, but was not ready within %d ms",
                                call, number_of(m, first_unready(m)), m->timeout_ms));
    else
        meeting_fail(m, sw_fail(SYMWIN_TIMEOUT,
                                "%s: rank %d did not come within %d ms (%d of %d ranks did); start "
                                "every rank with this id",
                                call, number_of(m, first_absent(m)), m->timeout_ms, m->come,
                                m->nranks));
}

struct meeting *sw_root_named(const unsigned char name[SW_NAME_BYTES])
{
    struct meeting *m = root.meetings;

    while (m != NULL && memcmp(m->name, name, SW_NAME_BYTES) != 0)
        m = m->next;
    return m;
}

/* Why there is no such meeting. */
symwin_status sw_root_why_not(const unsigned char name[SW_NAME_BYTES])
{
    unsigned i;

    for (i = 0; i < MOST_PAST && i < root.past_count; i++)
        if (memcmp(root.past[i].name, name, SW_NAME_BYTES) == 0)
            return sw_fail(root.past[i].status, "%s", root.past[i].text);
    return sw_fail(SYMWIN_INVALID, "%s: this id has served, or another process made it", call);
}

const unsigned char *sw_root_secret(const struct meeting *meeting)
{
    return meeting->id.secret;
}

int sw_root_expects(void)
{
    return root.meetings != NULL;
}

static symwin_status meeting_fill(struct meeting *m, struct sw_id *id,
                                  const struct sw_id_options *options)
{
    symwin_status status = sw_process_name(id->maker);

    m->channel.fd = -1;
    if (status == SYMWIN_OK)
        status = sw_door_open(id, options->address, options->port);
    if (status != SYMWIN_OK)
        return status;
    m->id = *id;
    sw_id_name(id, m->name);
    m->timer = (struct sw_watch){.fd = -1, .deadline = INT64_MAX, .ready = meeting_late};
    if (options->file != NULL) {
        m->file = strdup(options->file);
        if (m->file == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    if (options->table != NULL) {
        m->table = malloc(sizeof *m->table);
        if (m->table == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
        *m->table = *options->table;
        m->host = options->host;
        if (options->channel != NULL) {
            m->channel = *options->channel;
            *options->channel = (struct sw_channel){.fd = -1};
        }
    }
    return SYMWIN_OK;
}

symwin_status sw_root_open(struct sw_id *id, const struct sw_id_options *options)
{
    struct meeting *m = calloc(1, sizeof *m);
    symwin_status status;

    if (m == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "symwin_unique_id_create: no host memory");
    status = meeting_fill(m, id, options);
    if (status != SYMWIN_OK) {
        meeting_free(m);
        sw_door_rest(0);
        return status;
    }
    m->next = root.meetings;
    root.meetings = m;
    return SYMWIN_OK;
}

symwin_status sw_root_close(const struct sw_id *id)
{
    unsigned char name[SW_NAME_BYTES];
    struct meeting *m;

    sw_id_name(id, name);
    m = sw_root_named(name);
    if (m == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_unique_id_release: the id has served, was released "
                                       "before, or was made by another process");
    meeting_end(m, SYMWIN_ABORTED,
                "symwin_comm_create: the id was released by the process that made it");
    return SYMWIN_OK;
}

/* ---- all have come ---- */

static int same(const unsigned char *a, const unsigned char *b)
{
    return memcmp(a, b, SW_NAME_BYTES) == 0;
}

/* Numbers processes and hosts in the order of their lowest ranks, but for this host, which is 0. */
static symwin_status make_place(const struct meeting *m, struct sw_place *place)
{
    static const unsigned char here[SW_NAME_BYTES];
    struct sw_wire_seat *seats = calloc((size_t)m->nranks, sizeof *seats);
    int processes = 0, hosts = 1;
    symwin_status status;
    int r, q;

    if (seats == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, m->nranks);
    for (r = 0; r < m->nranks; r++) {
        for (q = 0; q < r && !same(m->seats[q].process, m->seats[r].process); q++)
            ;
        seats[r].process = q < r ? seats[q].process : (uint16_t)processes++;
        for (q = 0; q < r && !same(m->seats[q].host, m->seats[r].host); q++)
            ;
        if (same(m->seats[r].host, here))
            seats[r].host = 0;
        else
            seats[r].host = q < r ? seats[q].host : (uint16_t)hosts++;
    }
    status = sw_place_make(place, m->nranks, processes, hosts);
    if (status == SYMWIN_OK)
        memcpy(place->seats, seats, (size_t)m->nranks * sizeof *seats);
    free(seats);
    place->process = -1;
    for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
        if (m->seats[r].visitor == NULL)
            place->process = place->seats[r].process;
    return status;
}

static int leader_of(const struct sw_place *place, int process)
{
    int r = 0;

    while (place->seats[r].process != process)
        r++;
    return r;
}

static int is_here(const struct sw_place *place, int process)
{
    return place->seats[leader_of(place, process)].host == 0;
}

static int lowest_of_host(const struct sw_place *place, int host)
{
    int r = 0;

    while (r < place->nranks && place->seats[r].host != host)
        r++;
    return r;
}

/* Sends a frame to a rank. A rank that is not here any more is lost to all. */
static symwin_status tell(const struct meeting *m, int rank, union sw_wire_frame *frame,
                          enum sw_wire_type type, int fd)
{
    const int64_t longest = sw_now_ms() + TELL_MS;
    int error;

    sw_wire_seal(frame, type);
    error = sw_channel_send(&m->seats[rank].visitor->channel, frame, fd,
                            longest < m->timer.deadline ? longest : m->timer.deadline);
    if (error == 0)
        return SYMWIN_OK;
    if (!sw_wire_is_theirs(error))
        return own_trouble(sw_fail(SYMWIN_NO_MEMORY, "sendmsg: %s", strerror(error)));
    return sw_fail(error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST,
                   "%s: rank %d came, but cannot be reached any more: %s", call, number_of(m, rank),
                   strerror(error));
}

static symwin_status send_tables(const struct meeting *m, const struct sw_place *place)
{
    union sw_wire_frame frame;
    symwin_status status = SYMWIN_OK;
    int r;

    memset(&frame, 0, sizeof frame);
    frame.table.nranks = m->nranks;
    frame.table.processes = place->processes;
    frame.table.hosts = place->hosts;
    memcpy(frame.table.seats, place->seats, (size_t)m->nranks * sizeof *place->seats);
    for (r = 0; r < m->nranks && status == SYMWIN_OK; r++)
        if (m->seats[r].visitor != NULL)
            status = tell(m, r, &frame, SW_WIRE_TABLE, -1);
    return status;
}

/* Gives one end of a line to process `to`, whose other end is process `from`'s. Takes `fd`. */
static symwin_status give_line(const struct meeting *m, struct sw_place *place, int to, int from,
                               int fd)
{
    union sw_wire_frame frame = {.pass = {.process = from}};
    symwin_status status;

    if (to == place->process) {
        place->lines[from] = fd;
        return SYMWIN_OK;
    }
    status = tell(m, leader_of(place, to), &frame, SW_WIRE_LINE, fd);
    close(fd);
    return status;
}

static symwin_status send_lines(const struct meeting *m, struct sw_place *place)
{
    symwin_status status = SYMWIN_OK;
    int p, q;

    for (p = 0; p < place->processes; p++)
        for (q = p + 1; q < place->processes; q++) {
            int ends[2];

            if (!is_here(place, p) || !is_here(place, q))
                continue;
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
                return own_trouble(
                    sw_fail(SYMWIN_NO_MEMORY, "socketpair: %s; raise ulimit -n", strerror(errno)));
            status = give_line(m, place, p, q, ends[0]);
            if (status != SYMWIN_OK) {
                close(ends[1]);
                return status;
            }
            status = give_line(m, place, q, p, ends[1]);
            if (status != SYMWIN_OK)
                return status;
        }
    return status;
}

/* The connection to a host goes to the process that links it with this one. */
static symwin_status give_link(const struct meeting *m, struct sw_place *place, int host)
{
    struct sw_channel *channel = &m->seats[lowest_of_host(place, host)].visitor->channel;
    const int linking = lowest_of_host(place, 0);
    union sw_wire_frame frame;

    sw_service_remove(&m->seats[lowest_of_host(place, host)].visitor->watch); /* who links reads */
    if (place->seats[linking].process == place->process) {
        place->channels[host] = *channel;
        *channel = (struct sw_channel){.fd = -1};
        return SYMWIN_OK;
    }
    memset(&frame, 0, sizeof frame.link);
    frame.link.host = host;
    frame.link.sent = channel->sent;
    frame.link.received = channel->received;
    memcpy(frame.link.key, channel->key, sizeof frame.link.key);
    return tell(m, linking, &frame, SW_WIRE_LINK, channel->fd);
}

/* Every process gets all that it needs. */
static symwin_status hand_out(const struct meeting *m, struct sw_place *place)
{
    union sw_wire_frame frame = {.pass = {.process = place->process}};
    symwin_status status = sw_exchange_page(m->posts, &place->page);
    int p, h;

    if (status != SYMWIN_OK)
        return own_trouble(status);
    status = send_tables(m, place);
    for (p = 0; p < place->processes && status == SYMWIN_OK; p++)
        if (p != place->process && is_here(place, p))
            status = tell(m, leader_of(place, p), &frame, SW_WIRE_PAGE, place->page);
    if (status == SYMWIN_OK)
        status = send_lines(m, place);
    for (h = 1; h < place->hosts && status == SYMWIN_OK; h++) {
        status = tell(m, lowest_of_host(place, h), &frame, SW_WIRE_GO, -1);
        if (status == SYMWIN_OK)
            status = give_link(m, place, h);
    }
    return status;
}

/* From now on each of the other processes here has to say that it is ready. */
static void await_ready(struct meeting *m, const struct sw_place *place)
{
    int p;

    for (p = 0; p < place->processes; p++)
        if (p != place->process && is_here(place, p)) {
            m->seats[leader_of(place, p)].leads = 1;
            m->unready++;
        }
}

/* All processes are ready: only now does any of them go. One that cannot be told tells the others. */
static void go(struct meeting *m)
{
    union sw_wire_frame frame = {.pass = {.process = 0}};
    int r;

    for (r = 0; r < m->nranks; r++)
        if (m->seats[r].leads)
            tell(m, r, &frame, SW_WIRE_GO, -1);
    meeting_end(m, SYMWIN_OK, "");
}

static symwin_status complete(struct meeting *m)
{
    struct sw_place place;
    symwin_status status = make_place(m, &place);

    if (status != SYMWIN_OK)
        return own_trouble(status);
    if (place.hosts > 1 && lowest_of_host(&place, 0) == place.nranks)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: the id was made on a host that has none of the ranks; make it on one "
                         "that has",
                         call);
    if (status == SYMWIN_OK && (place.processes > 1 || place.process < 0 || m->table != NULL))
        status = hand_out(m, &place);
    if (status == SYMWIN_OK)
        await_ready(m, &place);
    if (status == SYMWIN_OK && m->table != NULL)
        status = sw_place_widen(&place, m->table, m->host);
    if (status != SYMWIN_OK || place.process < 0) {
        sw_place_release(&place);
        return status;
    }
    if (m->channel.fd >= 0) {
        place.channels[0] = m->channel;
        m->channel = (struct sw_channel){.fd = -1};
    }
    status = sw_group_create(&place, &m->group);
    return status == SYMWIN_OK ? SYMWIN_OK : own_trouble(status);
}

/* ---- a rank comes ---- */

/* The first rank says how many there are. */
static symwin_status open_seats(struct meeting *m, int nranks)
{
    symwin_status status;

    m->seats = calloc((size_t)nranks, sizeof *m->seats);
    if (m->seats == NULL)
        return own_trouble(sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", nranks));
    m->nranks = nranks;
    m->posts = m->table != NULL ? m->table->nranks : nranks;
    status = sw_service_add(&m->timer);
    return status == SYMWIN_OK ? SYMWIN_OK : own_trouble(status);
}

static symwin_status judge(struct meeting *m, const struct sw_wire_join *join)
{
    if (join->protocol != SW_WIRE_PROTOCOL)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: rank %d's symwin speaks protocol %u, and the process that made the id %u; "
            "use one version of symwin on every rank",
            call, join->rank, join->protocol, SW_WIRE_PROTOCOL);
    if (m->nranks != 0 && join->nranks != m->nranks)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: nranks differ: the first rank to come passed %d, rank %d passed %d; pass "
            "the same on every rank",
            call, m->nranks, join->rank, join->nranks);
    if (join->nranks < 1 || join->nranks > SW_MAX_RANKS || join->rank < 0 ||
        join->rank >= join->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d of %d", call, join->rank,
                       join->nranks);
    if (m->nranks != 0 && m->seats[join->rank].taken)
        return sw_fail(SYMWIN_INVALID, "%s: rank %d came twice under one id; pass each rank once",
                       call, join->rank);
    return m->nranks == 0 ? open_seats(m, join->nranks) : SYMWIN_OK;
}

/* Takes a seat for a member. If it must not, or if it was the last and something goes wrong, the
 * meeting is over; it is also over when this was the last and no other process has to get ready. */
static void seat(struct meeting *m, const struct sw_wire_join *join, struct sw_visitor *visitor)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms;
    symwin_status status = judge(m, join);
    struct seat *s;

    if (status != SYMWIN_OK) {
        meeting_fail(m, status);
        return;
    }
    s = &m->seats[join->rank];
    s->taken = 1;
    s->visitor = visitor;
    m->foreign |= visitor != NULL;
    memcpy(s->process, join->process, sizeof s->process);
    if (visitor != NULL && visitor->channel.stream)
        memcpy(s->host, join->host, sizeof s->host);
    if (deadline < m->timer.deadline) {
        m->timer.deadline = deadline;
        m->timeout_ms = join->timeout_ms;
        sw_service_changed();
    }
    if (++m->come < m->nranks)
        return;
    status = complete(m);
    if (status != SYMWIN_OK)
        meeting_fail(m, status);
    else if (m->unready == 0)
        go(m);
}

symwin_status sw_root_join(const struct sw_id *id, const struct sw_wire_join *join,
                           struct sw_group **out)
{
    unsigned char name[SW_NAME_BYTES];
    symwin_status status;
    struct meeting *m;

    sw_id_name(id, name);
    m = sw_root_named(name);
    if (m == NULL)
        return sw_root_why_not(name);
    m->inside++;
    seat(m, join, NULL);
    while (!m->over)
        sw_service_wait(&root.changed, INT64_MAX);
    status = m->status;
    *out = m->group;
    if (status != SYMWIN_OK)
        sw_fail(status, "%s", m->text);
    if (--m->inside == 0)
        meeting_free(m);
    return status;
}

/* ---- what door.c tells ---- */

void sw_root_seat(struct sw_visitor *visitor, const struct sw_wire_join *join)
{
    seat(visitor->meeting, join, visitor);
}

int sw_root_ready(struct sw_visitor *visitor, const union sw_wire_frame *frame)
{
    struct meeting *m = visitor->meeting;
    struct seat *s = &m->seats[visitor->rank];

    if (!s->leads || (frame->header.type != SW_WIRE_READY && frame->header.type != SW_WIRE_REFUSAL))
        return 0;
    if (frame->header.type == SW_WIRE_REFUSAL) {
        meeting_fail(m, sw_fail((symwin_status)frame->refusal.status, "%s", frame->refusal.text));
        return 1;
    }
    m->unready -= !s->ready;
    s->ready = 1;
    if (m->unready == 0)
        go(m);
    return 1;
}

void sw_root_lost(struct sw_visitor *visitor)
{
    if (visitor->channel.stream && visitor->meeting->come == visitor->meeting->nranks) {
        /* It has its table, and its host sees to it. */
        visitor->meeting->seats[visitor->rank].visitor = NULL;
        sw_door_drop(visitor);
        return;
    }
    meeting_fail(visitor->meeting,
                 sw_fail(SYMWIN_PEER_LOST,
                         "%s: the process of rank %d ended before all ranks had come", call,
                         number_of(visitor->meeting, visitor->rank)));
}

void sw_root_failed(struct meeting *meeting, symwin_status status)
{
    meeting_fail(meeting, own_trouble(status));
}

/* Every meeting that waits for a rank would wait in vain. */
void sw_root_no_room(int error)
{
    struct meeting *m, *next;

    for (m = root.meetings; m != NULL; m = next) {
        next = m->next;
        m->foreign = 1; /* whoever is at the door */
        if (m->come > 0)
            meeting_fail(m, sw_fail(SYMWIN_NO_MEMORY,
                                    "%s: the process that made the id cannot take in another rank: "
                                    "%s; raise its ulimit -n",
                                    call, strerror(error)));
    }
}

void sw_root_forked(void)
{
    root.meetings = NULL; /* the parent's */
    pthread_cond_init(&root.changed, NULL);
    sw_door_forked();
}
