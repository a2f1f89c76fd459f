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
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/bootstrap/meeting.h"

enum {
    TELL_MS = 5000,
    HOST_MS = 2000, /* for another host's word on who is late there */
    MOST_PAST = 64  /* meetings that are remembered after their end */
};

static const char call[] = "symwin_comm_create";

/* How a meeting ended, for whoever comes too late. */
struct past {
    unsigned char name[SW_NAME_BYTES];
    unsigned char secret[SW_KEY_BYTES]; /* to prove over TCP that it was here, */
    int proves;                         /* if it can be asked there */
    symwin_status status;
    int culprit;
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
    sw_channel_drop(&m->channel);
    free(m->table);
    free(m->file);
    free(m->seats);
    sw_wipe(&m->id, sizeof m->id);
    free(m);
}

/* Whether ranks of other processes may be on their way. */
static int some_are_coming(const struct meeting *m)
{
    return (m->foreign || sw_door_next(m, NULL) != NULL) && (m->nranks == 0 || m->come < m->nranks);
}

/* Whether the connection is between hosts by now, and not to be spoken on from here. */
static int is_linked(const struct meeting *m, const struct sw_visitor *v)
{
    int r;

    for (r = 0; r < m->nranks && m->seats != NULL; r++)
        if (m->seats[r].visitor == v && m->seats[r].linked)
            return 1;
    return 0;
}

/* A meeting has failed: who has gone on already hears of it as of any end of a communicator. */
static void end_elsewhere(struct meeting *m)
{
    if (m->group != NULL) {
        sw_exchange_fail(m->group->exchange, m->status,
                         m->culprit >= 0 ? m->culprit : m->group->leader);
        sw_group_free(m->group);
        m->group = NULL;
    }
    sw_service_remove(&m->link);
    if (m->channel.fd >= 0)
        sw_links_say_end(&m->channel, m->status, m->culprit >= 0 ? m->culprit : 0);
    sw_channel_drop(&m->channel);
}

/* Those who have come hear how it ended. */
static void dismiss(struct meeting *m)
{
    struct sw_visitor *v;

    while ((v = sw_door_next(m, NULL)) != NULL) {
        if (m->status == SYMWIN_OK || is_linked(m, v))
            sw_door_drop(v);
        else
            sw_door_refuse(v, m->status, m->culprit, m->text);
    }
}

/* Ends a meeting as m->status and m->text say: nobody can come any more. */
static void meeting_end(struct meeting *m)
{
    struct past *past = &root.past[root.past_count++ % MOST_PAST];
    struct meeting **at = &root.meetings;
    const int failed = m->status != SYMWIN_OK;
    const int linger = failed && some_are_coming(m);

    m->over = 1;
    memcpy(past->name, m->name, sizeof past->name);
    past->proves = m->id.family != 0; /* over a local socket the system vouches for this process */
    sw_wipe(past->secret, sizeof past->secret);
    if (past->proves)
        memcpy(past->secret, m->id.secret, sizeof past->secret);
    past->status = failed ? m->status : SYMWIN_INVALID;
    past->culprit = failed ? m->culprit : SW_WIRE_UNKNOWN;
    snprintf(past->text, sizeof past->text, "%s",
             failed ? m->text
                    : "symwin_comm_create: this id has served; make a new one for every "
                      "communicator");
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    sw_service_remove(&m->timer);
    if (m->file != NULL)
        unlink(m->file);
    if (failed)
        end_elsewhere(m);
    dismiss(m);
    if (m->inside == 0)
        meeting_free(m);
    else
        pthread_cond_broadcast(&root.changed);
    sw_door_rest(linger);
}

/* Ends it with what sw_fail() has just said. */
static void meeting_fail(struct meeting *m, symwin_status status)
{
    m->status = status;
    snprintf(m->text, sizeof m->text, "%s", symwin_last_error());
    meeting_end(m);
}

int sw_meeting_number(const struct meeting *m, int rank)
{
    int r = 0;

    if (m->table == NULL)
        return rank;
    while (r < m->table->nranks - 1 && (m->table->seats[r].host != m->host || rank-- > 0))
        r++;
    return r;
}

symwin_status sw_meeting_blame(struct meeting *m, int rank, symwin_status status)
{
    m->culprit = sw_meeting_number(m, rank);
    return status;
}

symwin_status sw_meeting_own(struct meeting *m, symwin_status status)
{
    int r;

    if (m->table != NULL)
        sw_meeting_blame(m, 0, status); /* the lowest of a host makes the id of its meeting */
    for (r = m->nranks - 1; r >= 0 && m->seats != NULL; r--)
        if (m->seats[r].taken && m->seats[r].visitor == NULL && !m->seats[r].far)
            sw_meeting_blame(m, r, status);
    return sw_fail_in(status, call, "the process that made the id: ");
}

symwin_status sw_meeting_tell(struct meeting *m, int rank, union sw_wire_frame *frame,
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
        return sw_meeting_own(m, sw_fail(SYMWIN_NO_MEMORY, "sendmsg: %s", strerror(error)));
    sw_fail(SYMWIN_PEER_LOST, "%s: rank %d came, but cannot be reached any more: %s", call,
            sw_meeting_number(m, rank), strerror(error));
    return sw_meeting_blame(m, rank, error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST);
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

    while (r < m->nranks - 1 && (!m->seats[r].awaited || m->seats[r].ready))
        r++;
    return r;
}

static void meeting_late(struct sw_watch *watch, short events)
{
    struct meeting *m = (struct meeting *)(void *)((char *)watch - offsetof(struct meeting, timer));
    const int here = m->come == m->nranks;
    const int late = here ? first_unready(m) : first_absent(m);
    const int number = sw_meeting_number(m, late);

    (void)events;
    if (here && m->seats[late].far && !m->extended) {
        /* Whether it is late, or the lowest rank of its host, they know there, and will say. */
        m->extended = 1;
        watch->deadline = m->seats[late].deadline + HOST_MS;
        sw_service_changed();
        return;
    }
    if (here)
        sw_fail(SYMWIN_TIMEOUT, "%s: rank %d came, but was not ready within %d ms", call, number,
                m->timeout_ms);
    else
        sw_fail(SYMWIN_TIMEOUT,
                "%s: rank %d did not come within %d ms (%d of %d ranks did); start every rank with "
                "this id",
                call, number, m->timeout_ms, m->come, m->nranks);
    meeting_fail(m, sw_meeting_blame(m, late, SYMWIN_TIMEOUT));
}

/* A word from the deciding host, or none any more, before this host's ranks have met: it can only be the end. */
static void link_word(struct sw_watch *watch, short events)
{
    struct meeting *m = (struct meeting *)(void *)((char *)watch - offsetof(struct meeting, link));
    symwin_status status = SYMWIN_PEER_LOST;
    union sw_wire_frame frame;
    int error;

    (void)events;
    error = sw_channel_receive_now(&m->channel, &frame, NULL);
    if (error == EAGAIN)
        return;
    m->culprit = 0;
    if (error == 0 && frame.header.type == SW_WIRE_END) {
        status = (symwin_status)frame.end.status;
        m->culprit = frame.end.rank;
    } else {
        while (m->table->seats[m->culprit].host != 0)
            m->culprit++;
    }
    sw_service_remove(&m->link);
    sw_channel_drop(&m->channel); /* it knows */
    if (status == SYMWIN_PEER_LOST)
        sw_fail(status, "%s: the process of rank %d ended before all ranks had come", call,
                m->culprit);
    else
        sw_fail(status, "%s: rank %d, on another host, failed with %s", call, m->culprit,
                symwin_status_name(status));
    meeting_fail(m, status);
}

struct meeting *sw_root_named(const unsigned char name[SW_NAME_BYTES])
{
    struct meeting *m = root.meetings;

    while (m != NULL && memcmp(m->name, name, SW_NAME_BYTES) != 0)
        m = m->next;
    return m;
}

/* Why there is no such meeting; NULL as the secret of one that never was, or is long past. */
symwin_status sw_root_why_not(const unsigned char name[SW_NAME_BYTES], int *culprit,
                              const unsigned char **secret)
{
    unsigned i;

    *secret = NULL;
    for (i = 0; i < MOST_PAST && i < root.past_count; i++)
        if (memcmp(root.past[i].name, name, SW_NAME_BYTES) == 0) {
            *culprit = root.past[i].culprit;
            *secret = root.past[i].proves ? root.past[i].secret : NULL;
            return sw_fail(root.past[i].status, "%s", root.past[i].text);
        }
    *culprit = SW_WIRE_UNKNOWN;
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
                                  const struct sw_id_options *options, const char *for_call)
{
    symwin_status status = sw_process_name(id->maker);

    m->channel.fd = -1;
    m->culprit = -1;
    if (status == SYMWIN_OK)
        status = sw_door_open(id);
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
    if (options->table != NULL && id->folder[0] == '\0')
        return sw_fail(
            SYMWIN_DENIED,
            "%s: could not open a socket for this host's other ranks; give it a writable "
            "TMPDIR of at most 21 characters",
            call);
    if (options->table != NULL) {
        m->table = malloc(sizeof *m->table);
        if (m->table == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
        *m->table = *options->table;
        m->host = options->host;
    }
    if (options->channel != NULL) {
        m->link = (struct sw_watch){.fd = options->channel->fd,
                                    .events = POLLIN | POLLRDHUP,
                                    .deadline = INT64_MAX,
                                    .ready = link_word};
        status = sw_service_add(&m->link);
    }
    /* Last: nothing has to remove the file. */
    if (status == SYMWIN_OK && options->file != NULL)
        status = sw_id_write(options->file, id, for_call);
    return status;
}

symwin_status sw_root_open(struct sw_id *id, const struct sw_id_options *options,
                           const char *for_call)
{
    struct meeting *m = calloc(1, sizeof *m);
    symwin_status status;

    if (m == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", for_call);
    status = meeting_fill(m, id, options, for_call);
    if (status != SYMWIN_OK) {
        sw_service_remove(&m->link);
        meeting_free(m);
        sw_door_rest(0);
        return status;
    }
    if (options->channel != NULL) {
        m->channel = *options->channel;
        *options->channel = (struct sw_channel){.fd = -1};
        sw_service_forget(m->channel.fd); /* it is watched */
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
    m->status = SYMWIN_ABORTED;
    snprintf(m->text, sizeof m->text, "%s: the id was released by the process that made it", call);
    meeting_end(m);
    return SYMWIN_OK;
}

/* ---- a rank comes ---- */

/* All processes are ready: only now does any of them go. One that cannot be told tells the others. */
static void go(struct meeting *m)
{
    union sw_wire_frame frame = {.pass = {.process = 0}};
    int r;

    for (r = 0; r < m->nranks; r++) {
        const struct seat *s = &m->seats[r];

        if (s->awaited && !s->far)
            sw_meeting_tell(m, r, &frame, SW_WIRE_GO, -1);
    }
    meeting_end(m);
}

/* The first rank says how many there are. */
static symwin_status open_seats(struct meeting *m, int nranks)
{
    symwin_status status;

    m->seats = calloc((size_t)nranks, sizeof *m->seats);
    if (m->seats == NULL)
        return sw_meeting_own(m, sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", nranks));
    m->nranks = nranks;
    m->posts = m->table != NULL ? m->table->nranks : nranks;
    status = sw_service_add(&m->timer);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_meeting_own(m, status);
}

/* Who is wrong about nranks: the one that differs from all that came before it; of two, either may be. */
static symwin_status fail_nranks(const struct meeting *m, const struct sw_wire_join *join)
{
    int first = 0;

    while (first < m->nranks - 1 && !m->seats[first].taken)
        first++;
    if (m->come < 2)
        return sw_fail(SYMWIN_MISMATCH,
                       "%s: nranks differ: rank %d passed %d, rank %d passed %d; pass the same on "
                       "every rank",
                       call, first, m->nranks, join->rank, join->nranks);
    return sw_fail(SYMWIN_MISMATCH,
                   "%s: nranks differ: rank %d passed %d, the %d ranks before it passed %d; pass "
                   "the same on every rank",
                   call, join->rank, join->nranks, m->come, m->nranks);
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
        return fail_nranks(m, join);
    if (join->nranks < 1 || join->nranks > SW_MAX_RANKS || join->rank < 0 ||
        join->rank >= join->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d of %d", call, join->rank,
                       join->nranks);
    if (m->nranks != 0 && m->seats[join->rank].taken)
        return sw_fail(SYMWIN_INVALID, "%s: rank %d came twice under one id; pass each rank once",
                       call, join->rank);
    return SYMWIN_OK;
}

/* All have come: whether they are of one job. */
static symwin_status judge_claims(struct meeting *m)
{
    const int rank = m->file != NULL && m->table == NULL ? sw_claim_disputed(m->file, m->nranks)
                                                         : -1;

    if (rank < 0)
        return SYMWIN_OK;
    return sw_meeting_blame(
        m, rank,
        sw_fail(SYMWIN_INVALID,
                "%s: two processes came as rank %d of a job of that name at the same time: set "
                "SYMWIN_JOB to a name that each job has for itself",
                call, rank));
}

/* Takes a seat for a member. If it must not, or if it was the last and something goes wrong, the
 * meeting is over; it is also over when this was the last and no other process has to get ready. */
static void seat(struct meeting *m, const struct sw_wire_join *join, struct sw_visitor *visitor)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms;
    symwin_status status = judge(m, join);
    struct seat *s;

    if (status != SYMWIN_OK && join->rank >= 0 && join->rank < m->nranks)
        sw_meeting_blame(m, join->rank, status);
    if (status == SYMWIN_OK && m->nranks == 0)
        status = open_seats(m, join->nranks);
    if (status != SYMWIN_OK) {
        meeting_fail(m, status);
        return;
    }
    s = &m->seats[join->rank];
    s->taken = 1;
    s->visitor = visitor;
    s->deadline = deadline;
    m->foreign |= visitor != NULL;
    memcpy(s->process, join->process, sizeof s->process);
    s->far = visitor != NULL && visitor->channel.stream;
    if (s->far)
        memcpy(s->host, join->host, sizeof s->host);
    if (deadline < m->timer.deadline) {
        m->timer.deadline = deadline;
        m->timeout_ms = join->timeout_ms;
        sw_service_changed();
    }
    if (++m->come < m->nranks)
        return;
    sw_door_clear();
    status = judge_claims(m);
    if (status == SYMWIN_OK)
        status = sw_meeting_hand_out(m);
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
    const unsigned char *secret;
    struct meeting *m;
    int culprit;

    sw_id_name(id, name);
    m = sw_root_named(name);
    if (m == NULL)
        return sw_root_why_not(name, &culprit, &secret);
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

    if (!s->awaited ||
        (frame->header.type != SW_WIRE_READY && frame->header.type != SW_WIRE_REFUSAL))
        return 0;
    if (frame->header.type == SW_WIRE_REFUSAL) {
        sw_meeting_blame(m, visitor->rank, SYMWIN_OK);
        if (frame->refusal.rank >= 0)
            m->culprit = frame->refusal.rank;
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
    struct meeting *m = visitor->meeting;

    if (m->come == m->nranks && m->seats[visitor->rank].far && m->seats[visitor->rank].ready) {
        m->seats[visitor->rank].visitor = NULL; /* it is with the ranks of its host now */
        sw_door_drop(visitor);
        return;
    }
    sw_fail(SYMWIN_PEER_LOST, "%s: the process of rank %d ended before all ranks had come", call,
            sw_meeting_number(m, visitor->rank));
    meeting_fail(m, sw_meeting_blame(m, visitor->rank, SYMWIN_PEER_LOST));
}

void sw_root_ended(const struct sw_group *group)
{
    struct meeting *m = root.meetings;
    symwin_status status;

    while (m != NULL && m->group != group)
        m = m->next;
    if (m == NULL || !sw_exchange_is_decided(group->exchange))
        return;
    sw_exchange_outcome(group->exchange, &status, &m->culprit);
    sw_exchange_status(group->exchange, call);
    meeting_fail(m, status);
}

void sw_root_failed(struct meeting *meeting, symwin_status status)
{
    meeting_fail(meeting, sw_meeting_own(meeting, status));
}

/* Every meeting that waits for a rank would wait in vain. */
void sw_root_no_room(int error)
{
    struct meeting *m, *next;

    for (m = root.meetings; m != NULL; m = next) {
        next = m->next;
        m->foreign = 1; /* whoever is at the door */
        if (m->come > 0)
            meeting_fail(
                m,
                sw_meeting_own(m, sw_fail(SYMWIN_NO_MEMORY,
                                          "it cannot take in another rank: %s; raise its ulimit -n",
                                          strerror(error))));
    }
}

void sw_root_forked(void)
{
    root.meetings = NULL; /* the parent's */
    sw_wipe(root.past, sizeof root.past);
    root.past_count = 0;
    pthread_cond_init(&root.changed, NULL);
    sw_door_forked();
}
