/* The rendezvous: the process that creates an id, the creator, keeps one open for it.
 *
 * Ranks of the creator's process join as threads, others through listener.c. Once all ranks have
 * joined, every process gets the topology, and the processes of this host get the control page and
 * a socket to each other (hand_out.c). When all are ready, the creator sends GO, and the rendezvous
 * is over: an id creates one communicator only. A rendezvous that fails (a rank is late, dies, or
 * contradicts the others) fails for all ranks with the same text.
 *
 * Ranks of other hosts join by TCP, and then join a host-local one there (host_join.c).
 * The lowest rank of each host keeps its connection, and the other end goes to the lowest rank of
 * this host: it becomes the host link (host_link.c).
 *
 * Under the poll lock.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/bootstrap/rendezvous.h"

enum {
    HOST_MS = 2000, /* for another host's report on which of its ranks is late */
    MOST_PAST = 64  /* outcomes that are remembered */
};

static const char call[] = "symwin_comm_create";

/* The outcome of a rendezvous, for ranks that come too late. */
struct past {
    unsigned char name[SW_NAME_BYTES];
    unsigned char secret[SW_KEY_BYTES]; /* for the proof over TCP */
    int proves;                         /* the id has a TCP address */
    symwin_status status;
    int culprit;
    char text[SW_TEXT_BYTES];
};

static struct {
    pthread_cond_t changed;
    struct rendezvous *rendezvous_list;
    struct past past[MOST_PAST];
    unsigned past_count;
} the_rendezvous = {.changed = PTHREAD_COND_INITIALIZER};

/* ---- the end ---- */

static void rendezvous_free(struct rendezvous *m)
{
    sw_connection_drop(&m->connection);
    sw_rank_table_drop(m->table);
    free(m->file);
    free(m->slots);
    sw_wipe(&m->id, sizeof m->id);
    free(m);
}

/* Whether ranks of other processes may still try to join. */
static int more_may_join(const struct rendezvous *m)
{
    return (m->foreign || sw_listener_next(m, NULL) != NULL) &&
           (m->nranks == 0 || m->joined < m->nranks);
}

/* Whether the connection has become a host link: nothing may be sent on it from here. */
static int is_linked(const struct rendezvous *m, const struct sw_accepted *v)
{
    int r;

    for (r = 0; r < m->nranks && m->slots != NULL; r++)
        if (m->slots[r].accepted == v && m->slots[r].linked)
            return 1;
    return 0;
}

/* After a failure: processes and hosts that already have a group learn of it as of any end of a
 * communicator. */
static void end_others(struct rendezvous *m)
{
    if (m->group != NULL) {
        sw_exchange_fail(m->group->exchange, m->status,
                         m->culprit >= 0 ? m->culprit : m->group->leader);
        sw_group_free(m->group);
        m->group = NULL;
    }
    sw_poll_remove(&m->link);
    if (m->connection.fd >= 0)
        sw_host_link_say_end(&m->connection, m->status, m->culprit >= 0 ? m->culprit : 0);
    sw_connection_drop(&m->connection);
}

/* Refuses the connections of a rendezvous that has failed; drops them if it succeeded. */
static void close_connections(struct rendezvous *m)
{
    struct sw_accepted *v;

    while ((v = sw_listener_next(m, NULL)) != NULL) {
        if (m->status == SYMWIN_OK || is_linked(m, v))
            sw_listener_drop(v);
        else
            sw_listener_refuse(v, m->status, m->culprit, m->text);
    }
}

/* Ends the rendezvous with m->status and m->text. May free it. */
static void rendezvous_end(struct rendezvous *m)
{
    struct past *past = &the_rendezvous.past[the_rendezvous.past_count++ % MOST_PAST];
    struct rendezvous **at = &the_rendezvous.rendezvous_list;
    const int failed = m->status != SYMWIN_OK;
    const int linger = failed && more_may_join(m);

    m->over = 1;
    memcpy(past->name, m->name, sizeof past->name);
    past->proves = m->id.family != 0; /* over a local socket the peer credentials do */
    sw_wipe(past->secret, sizeof past->secret);
    if (past->proves)
        memcpy(past->secret, m->id.secret, sizeof past->secret);
    past->status = failed ? m->status : SYMWIN_INVALID;
    past->culprit = failed ? m->culprit : SW_FRAME_UNKNOWN;
    snprintf(past->text, sizeof past->text, "%s",
             failed ? m->text
                    : "symwin_comm_create: this id has been used; make a new one for every "
                      "communicator");
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    sw_poll_remove(&m->timer);
    if (m->file != NULL)
        unlink(m->file);
    if (failed)
        end_others(m);
    close_connections(m);
    if (m->waiting == 0)
        rendezvous_free(m);
    else
        pthread_cond_broadcast(&the_rendezvous.changed);
    sw_listener_close(linger);
}

/* Ends the rendezvous with the last error's text. */
static void rendezvous_fail(struct rendezvous *m, symwin_status status)
{
    m->status = status;
    snprintf(m->text, sizeof m->text, "%s", symwin_last_error());
    rendezvous_end(m);
}

/* The lowest rank that has not joined; if all have, the lowest that is awaited and not ready. */
static int first_late(const struct rendezvous *m)
{
    const int all_joined = m->joined == m->nranks;
    int r = 0;

    while (r < m->nranks - 1 &&
           (all_joined ? !m->slots[r].awaited || m->slots[r].ready : m->slots[r].taken))
        r++;
    return r;
}

static void rendezvous_late(struct sw_poll_watch *watch, short events)
{
    struct rendezvous *m = (struct rendezvous *)(void *)((char *)watch -
                                                         offsetof(struct rendezvous, timer));
    const int all_joined = m->joined == m->nranks;
    const int late = first_late(m);
    const int number = sw_rendezvous_number(m, late);

    (void)events;
    if (all_joined && m->slots[late].remote && !m->extended) {
        /* Either it or the lowest rank of its host is late: ranks of that host know and report
         * it. */
        m->extended = 1;
        watch->deadline = m->slots[late].deadline + HOST_MS;
        sw_poll_changed();
        return;
    }
    if (all_joined)
        sw_fail(SYMWIN_TIMEOUT,
                "%s: rank %d joined, but was not ready within %d ms, the timeout of rank %d", call,
                number, m->timeout_ms, sw_rendezvous_number(m, m->first_due));
    else
        sw_fail(SYMWIN_TIMEOUT,
                "%s: rank %d did not join within %d ms, the timeout of rank %d (%d of %d ranks "
                "did); start every rank with this id",
                call, number, m->timeout_ms, sw_rendezvous_number(m, m->first_due), m->joined,
                m->nranks);
    rendezvous_fail(m, sw_rendezvous_culprit(m, late, SYMWIN_TIMEOUT));
}

/* Before the ranks of this host have joined, the connection to the deciding host has a frame or is
 * closed: the communicator has failed. */
static void link_ready(struct sw_poll_watch *watch, short events)
{
    struct rendezvous *m = (struct rendezvous *)(void *)((char *)watch -
                                                         offsetof(struct rendezvous, link));
    symwin_status status = SYMWIN_PEER_LOST;
    union sw_frame frame;
    int error;

    (void)events;
    error = sw_connection_receive_now(&m->connection, &frame, NULL);
    if (error == EAGAIN)
        return;
    m->culprit = sw_rank_of_host(m->table, 0, 0);
    if (error == 0 && frame.header.type == SW_FRAME_END) {
        status = (symwin_status)frame.end.status;
        m->culprit = frame.end.rank;
    }
    sw_poll_remove(&m->link);
    sw_connection_drop(&m->connection); /* the deciding host knows: send no END */
    if (status == SYMWIN_PEER_LOST)
        sw_fail(status, "%s: the process of rank %d ended before all ranks had joined", call,
                m->culprit);
    else
        sw_fail(status, "%s: rank %d, on another host, failed with %s", call, m->culprit,
                symwin_status_name(status));
    rendezvous_fail(m, status);
}

static symwin_status find(const unsigned char name[SW_NAME_BYTES], struct rendezvous **out,
                          int *culprit, const unsigned char **secret)
{
    struct rendezvous *m = the_rendezvous.rendezvous_list;
    unsigned i;

    while (m != NULL && memcmp(m->name, name, SW_NAME_BYTES) != 0)
        m = m->next;
    *out = m;
    *secret = NULL;
    *culprit = SW_FRAME_UNKNOWN;
    if (m != NULL)
        return SYMWIN_OK;
    for (i = 0; i < MOST_PAST && i < the_rendezvous.past_count; i++) {
        const struct past *past = &the_rendezvous.past[i];

        if (memcmp(past->name, name, SW_NAME_BYTES) != 0)
            continue;
        *culprit = past->culprit;
        *secret = past->proves ? past->secret : NULL;
        return sw_fail(past->status, "%s", past->text);
    }
    return sw_fail(SYMWIN_INVALID, "%s: this id has been used, or another process made it", call);
}

/* ---- a rank joins ---- */

/* All processes are ready: sends GO and ends the rendezvous. A process that does not get GO ends
 * the exchange for all. */
static void go(struct rendezvous *m)
{
    union sw_frame frame = {.pass = {.process = 0}};
    int r;

    for (r = 0; r < m->nranks; r++) {
        const struct slot *s = &m->slots[r];

        if (s->awaited && !s->remote)
            sw_rendezvous_tell(m, r, &frame, SW_FRAME_GO, -1);
    }
    rendezvous_end(m);
}

/* Another host may have ended the group's exchange. Not all ranks here may have the group yet. */
static void group_ended(const struct sw_group *group)
{
    struct rendezvous *m = the_rendezvous.rendezvous_list;
    symwin_status status;

    while (m != NULL && m->group != group)
        m = m->next;
    if (m == NULL || !sw_exchange_is_decided(group->exchange))
        return;
    sw_exchange_outcome(group->exchange, &status, &m->culprit);
    sw_exchange_status(group->exchange, call);
    rendezvous_fail(m, status);
}

/* The first rank that joins sets nranks. */
static symwin_status open_slots(struct rendezvous *m, int nranks)
{
    symwin_status status;

    m->slots = calloc((size_t)nranks, sizeof *m->slots);
    if (m->slots == NULL)
        return sw_rendezvous_own(m,
                                 sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", nranks));
    m->nranks = nranks;
    m->posts = m->table != NULL ? m->table->nranks : nranks;
    status = sw_poll_add(&m->timer);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_rendezvous_own(m, status);
}

/* With two earlier ranks or more, this one is wrong; with one, either may be. */
static symwin_status fail_nranks(const struct rendezvous *m, const struct sw_frame_join *join)
{
    int first = 0;

    while (first < m->nranks - 1 && !m->slots[first].taken)
        first++;
    if (m->joined < 2)
        return sw_fail(SYMWIN_MISMATCH,
                       "%s: nranks differ: rank %d passed %d, rank %d passed %d; pass the same on "
                       "every rank",
                       call, first, m->nranks, join->rank, join->nranks);
    return sw_fail(SYMWIN_MISMATCH,
                   "%s: nranks differ: rank %d passed %d, the %d ranks before it passed %d; pass "
                   "the same on every rank",
                   call, join->rank, join->nranks, m->joined, m->nranks);
}

/* Whether a rank can be in the process that it names. The name of the creator's process is in the
 * id, so any member knows it. Ranks of one process come the same way, from one pid and host. */
static int is_of_process(const struct rendezvous *m, const struct sw_frame_join *join,
                         const struct sw_accepted *accepted)
{
    int r;

    if (accepted == NULL)
        return 1;
    if (memcmp(join->process, m->id.creator, sizeof join->process) == 0)
        return 0;
    for (r = 0; r < m->nranks; r++) {
        const struct slot *s = &m->slots[r];

        if (s->taken && memcmp(s->process, join->process, sizeof s->process) == 0 &&
            (s->remote != accepted->connection.stream || s->accepted->pid != accepted->pid ||
             (s->remote && memcmp(s->host, join->host, sizeof s->host) != 0)))
            return 0;
    }
    return 1;
}

static symwin_status check_join(struct rendezvous *m, const struct sw_frame_join *join,
                                const struct sw_accepted *accepted)
{
    if (join->protocol != SW_FRAME_PROTOCOL)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: rank %d's symwin uses protocol %u, the process that made the id uses %u; use one "
            "version of symwin on every rank",
            call, join->rank, join->protocol, SW_FRAME_PROTOCOL);
    if (m->nranks != 0 && join->nranks != m->nranks)
        return fail_nranks(m, join);
    if (join->nranks < 1 || join->nranks > SW_MAX_RANKS || join->rank < 0 ||
        join->rank >= join->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d of %d", call, join->rank,
                       join->nranks);
    if (m->nranks != 0 && m->slots[join->rank].taken)
        return sw_fail(SYMWIN_INVALID, "%s: rank %d joined twice with one id; pass each rank once",
                       call, join->rank);
    if (!is_of_process(m, join, accepted))
        return sw_fail(SYMWIN_DENIED, "%s: rank %d gives the name of a process that it is not in",
                       call, join->rank);
    return SYMWIN_OK;
}

/* Once all ranks have joined: fails if they may be from two jobs. */
static symwin_status check_claims(struct rendezvous *m)
{
    const int rank = m->file != NULL && m->table == NULL ? sw_claim_disputed(m->file, m->nranks)
                                                         : -1;

    if (rank < 0)
        return SYMWIN_OK;
    return sw_rendezvous_culprit(
        m, rank,
        sw_fail(SYMWIN_INVALID,
                "%s: two processes joined as rank %d of a job of that name at the same time: set "
                "SYMWIN_JOB to a name unique to each job",
                call, rank));
}

/* Takes a slot for a rank. The last rank's triggers the hand-out. The rendezvous is over afterwards
 * if the rank is not valid, if the hand-out fails, or if no other process must get ready. */
static void take_slot(struct rendezvous *m, const struct sw_frame_join *join,
                      struct sw_accepted *accepted)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms;
    symwin_status status = check_join(m, join, accepted);
    struct slot *s;

    if (status != SYMWIN_OK && join->rank >= 0 && join->rank < m->nranks)
        sw_rendezvous_culprit(m, join->rank, status);
    if (status == SYMWIN_OK && m->nranks == 0)
        status = open_slots(m, join->nranks);
    if (status != SYMWIN_OK) {
        rendezvous_fail(m, status);
        return;
    }
    s = &m->slots[join->rank];
    s->taken = 1;
    s->accepted = accepted;
    s->deadline = deadline;
    m->foreign |= accepted != NULL;
    memcpy(s->process, join->process, sizeof s->process);
    s->remote = accepted != NULL && accepted->connection.stream;
    if (s->remote)
        memcpy(s->host, join->host, sizeof s->host);
    if (deadline < m->timer.deadline) {
        m->timer.deadline = deadline;
        m->timeout_ms = join->timeout_ms;
        m->first_due = join->rank;
        sw_poll_changed();
    }
    if (++m->joined < m->nranks)
        return;
    sw_listener_clear();
    status = check_claims(m);
    if (status == SYMWIN_OK)
        status = sw_rendezvous_hand_out(m);
    if (status == SYMWIN_OK && m->group != NULL)
        m->group->on_far_end = group_ended;
    if (status != SYMWIN_OK)
        rendezvous_fail(m, status);
    else if (m->unready == 0)
        go(m);
}

/* ---- what the listener tells ---- */

static void joined(struct sw_accepted *accepted, const struct sw_frame_join *join)
{
    take_slot(accepted->rendezvous, join, accepted);
}

/* A rank says that it cannot go on, and who is at fault. The text says who sent it. */
static void refused(struct rendezvous *m, int rank, const struct sw_frame_refusal *refusal)
{
    char who[32];
    symwin_status status;

    sw_rendezvous_culprit(m, rank, SYMWIN_OK);
    snprintf(who, sizeof who, "rank %d: ", m->culprit);
    status = sw_fail((symwin_status)refusal->status, "%s", refusal->text);
    if (strstr(refusal->text, who) == NULL)
        sw_fail_in(status, call, who);
    if (refusal->rank >= 0 && refusal->rank < m->posts)
        m->culprit = refusal->rank;
    rendezvous_fail(m, status);
}

static void received(struct sw_accepted *accepted, const union sw_frame *frame)
{
    struct rendezvous *m = accepted->rendezvous;
    struct slot *s = &m->slots[accepted->rank];

    if (frame != NULL && s->awaited && frame->header.type == SW_FRAME_READY) {
        m->unready -= !s->ready;
        s->ready = 1;
        if (m->unready == 0)
            go(m);
    } else if (frame != NULL && s->awaited && frame->header.type == SW_FRAME_REFUSAL) {
        refused(m, accepted->rank, &frame->refusal);
    } else if (m->joined == m->nranks && s->remote && s->ready) {
        s->accepted = NULL; /* it has joined the ranks of its host */
        sw_listener_drop(accepted);
    } else {
        sw_fail(SYMWIN_PEER_LOST, "%s: the process of rank %d ended before all ranks had joined",
                call, sw_rendezvous_number(m, accepted->rank));
        rendezvous_fail(m, sw_rendezvous_culprit(m, accepted->rank, SYMWIN_PEER_LOST));
    }
}

static void failed(struct rendezvous *m, symwin_status status)
{
    rendezvous_fail(m, sw_rendezvous_own(m, status));
}

/* Fails every rendezvous that a rank has joined: the others cannot connect. */
static void no_room(int error)
{
    struct rendezvous *m, *next;

    for (m = the_rendezvous.rendezvous_list; m != NULL; m = next) {
        next = m->next;
        m->foreign = 1; /* the client that could not be accepted */
        if (m->joined > 0)
            rendezvous_fail(m,
                            sw_rendezvous_own(
                                m, sw_fail(SYMWIN_NO_MEMORY,
                                           "it cannot accept another rank: %s; raise its ulimit -n",
                                           strerror(error))));
    }
}

static const struct sw_listener_events events = {
    .find = find, .joined = joined, .received = received, .failed = failed, .no_room = no_room};

/* ---- open, join and close ---- */

static symwin_status rendezvous_fill(struct rendezvous *m, struct sw_id *id,
                                     const struct sw_id_options *options, const char *for_call)
{
    symwin_status status = SYMWIN_OK;

    m->id = *id;
    sw_id_name(id, m->name);
    m->timer = (struct sw_poll_watch){.fd = -1, .deadline = INT64_MAX, .ready = rendezvous_late};
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
        m->table = sw_rank_table_copy(options->table);
        if (m->table == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
        m->host = options->host;
    }
    if (options->connection != NULL) {
        m->link = (struct sw_poll_watch){.fd = options->connection->fd,
                                         .events = POLLIN | POLLRDHUP,
                                         .deadline = INT64_MAX,
                                         .ready = link_ready};
        status = sw_poll_add(&m->link);
    }
    /* Last, so that no failure has to remove the file. */
    if (status == SYMWIN_OK && options->file != NULL)
        status = sw_id_write(options->file, id, for_call);
    return status;
}

symwin_status sw_rendezvous_open(struct sw_id *id, const struct sw_id_options *options,
                                 const char *for_call)
{
    struct rendezvous *m = calloc(1, sizeof *m);
    symwin_status status;

    if (m == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", for_call);
    m->connection.fd = -1;
    m->culprit = -1;
    m->patience_ms = SW_TELL_MS;
    status = sw_process_name(id->creator);
    if (status == SYMWIN_OK)
        status = sw_listener_open(id, &events);
    if (status == SYMWIN_OK) {
        status = rendezvous_fill(m, id, options, for_call);
        if (status != SYMWIN_OK)
            sw_listener_close(0);
    }
    if (status != SYMWIN_OK) {
        sw_poll_remove(&m->link);
        rendezvous_free(m);
        return status;
    }
    if (options->connection != NULL) {
        m->connection = *options->connection;
        *options->connection = (struct sw_connection){.fd = -1};
        sw_fork_set_remove(m->connection.fd); /* the watch keeps it from forked children */
    }
    m->next = the_rendezvous.rendezvous_list;
    the_rendezvous.rendezvous_list = m;
    return SYMWIN_OK;
}

symwin_status sw_rendezvous_close(const struct sw_id *id)
{
    unsigned char name[SW_NAME_BYTES];
    const unsigned char *secret;
    struct rendezvous *m;
    int culprit;

    sw_id_name(id, name);
    if (find(name, &m, &culprit, &secret) != SYMWIN_OK)
        return sw_fail(SYMWIN_INVALID,
                       "symwin_unique_id_release: the id has been used, was released before, or "
                       "was made by another process");
    m->status = SYMWIN_ABORTED;
    snprintf(m->text, sizeof m->text, "%s: the id was released by the process that made it", call);
    rendezvous_end(m);
    return SYMWIN_OK;
}

symwin_status sw_rendezvous_join(const struct sw_id *id, const struct sw_frame_join *join,
                                 struct sw_group **out)
{
    unsigned char name[SW_NAME_BYTES];
    symwin_status status;
    const unsigned char *secret;
    struct rendezvous *m;
    int culprit;

    sw_id_name(id, name);
    status = find(name, &m, &culprit, &secret);
    if (status != SYMWIN_OK)
        return status;
    m->waiting++;
    take_slot(m, join, NULL);
    while (!m->over)
        sw_poll_wait(&the_rendezvous.changed, INT64_MAX);
    status = m->status;
    *out = m->group;
    if (status != SYMWIN_OK)
        sw_fail(status, "%s", m->text);
    if (--m->waiting == 0)
        rendezvous_free(m);
    return status;
}

void sw_rendezvous_forked(void)
{
    the_rendezvous.rendezvous_list = NULL; /* the parent's */
    sw_wipe(the_rendezvous.past, sizeof the_rendezvous.past);
    the_rendezvous.past_count = 0;
    pthread_cond_init(&the_rendezvous.changed, NULL);
    sw_listener_forked();
}
