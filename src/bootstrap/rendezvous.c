/* The rendezvous: the process that creates an id, the creator, keeps one open for it.
 *
 * Ranks of the creator's process join as threads, others through listener.c. Once all ranks have
 * joined, every process gets the topology, and the processes of this host get the control page and
 * a socket to each other (hand_out.c). When all are ready, the creator sends GO, and the rendezvous
 * is over: an id creates one communicator only. A rendezvous that fails (a rank is late, dies, or
 * contradicts the others) fails for all ranks with the same text.
 *
 * Ranks of another host join a far rendezvous there (host_join.c). Its process passes their joins
 * on, by TCP, and gets the table of all ranks. A far rendezvous that fails says so to the creator,
 * and waits for the creator's word: the creator decides who is at fault. Once all ranks have
 * joined, the connection becomes the host link, between the lowest rank of each of the two hosts
 * (host_link.c).
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

enum { GRACE_MS = 1000 }; /* in a far rendezvous, for the creator's word on which rank is late */

static const char call[] = "symwin_comm_create";

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
    sw_rendezvous_end(m);
}

/* Another host may have ended the group's exchange. Not all ranks here may have the group yet. */
static void group_ended(const struct sw_group *group)
{
    struct rendezvous *m = sw_rendezvous.list;
    symwin_status status;

    while (m != NULL && m->group != group)
        m = m->next;
    if (m == NULL || !sw_exchange_is_decided(group->exchange))
        return;
    sw_exchange_outcome(group->exchange, &status, &m->culprit);
    sw_exchange_status(group->exchange, call);
    sw_rendezvous_fail(m, status);
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
    status = sw_poll_add(&m->timer);
    return status == SYMWIN_OK ? SYMWIN_OK : sw_rendezvous_own(m, status);
}

/* Once all ranks have joined: fails if they may be from two jobs. */
static symwin_status check_claims(struct rendezvous *m)
{
    const int rank = m->file != NULL && !m->far ? sw_claim_disputed(m->file, m->nranks) : -1;

    if (rank < 0)
        return SYMWIN_OK;
    return sw_rendezvous_culprit(
        m, rank,
        sw_fail(SYMWIN_INVALID,
                "%s: two processes joined as rank %d of a job of that name at the same time: set "
                "SYMWIN_JOB to a name unique to each job",
                call, rank));
}

/* All ranks have joined, and hosts have their links. */
static void complete(struct rendezvous *m)
{
    symwin_status status;

    sw_listener_clear();
    status = sw_rendezvous_hand_out(m);
    if (status == SYMWIN_OK && m->group != NULL)
        m->group->on_far_end = group_ended;
    if (status != SYMWIN_OK)
        sw_rendezvous_fail(m, status);
    else if (m->unready == 0)
        go(m);
}

/* All ranks have joined. */
static void all_joined(struct rendezvous *m)
{
    symwin_status status;

    status = check_claims(m);
    if (status == SYMWIN_OK)
        status = sw_tree_begin(m);
    if (status != SYMWIN_OK)
        sw_rendezvous_fail(m, status);
    else if (m->unlinked == 0)
        complete(m);
}

/* The creator of the id has ended, or cannot be reached. */
static void up_lost(struct rendezvous *m)
{
    sw_up_drop(m);
    sw_rendezvous_culprit(m, m->creator, SYMWIN_PEER_LOST);
    if (m->proposed)
        sw_rendezvous_end(m);
    else
        sw_rendezvous_decide(m,
                             sw_fail(SYMWIN_PEER_LOST,
                                     "%s: the process that made the id ended before all ranks had "
                                     "joined",
                                     call));
}

/* To a process that joins for its host: its rank has a slot. */
static void welcome(struct sw_accepted *accepted)
{
    union sw_frame frame = {.pass = {.process = 0}};

    sw_frame_seal(&frame, SW_FRAME_READY);
    sw_connection_send(&accepted->connection, &frame, -1, sw_now_ms() + 1);
}

static void fill_slot(struct rendezvous *m, const struct sw_frame_join *join,
                      struct sw_accepted *accepted)
{
    struct slot *s = &m->slots[join->rank];
    const int remote = accepted != NULL && accepted->connection.stream;
    int64_t due;

    s->taken = 1;
    s->remote = remote;
    s->accepted = remote && accepted->rank != join->rank ? NULL : accepted;
    s->timeout_ms = join->timeout_ms;
    s->deadline = sw_now_ms() + join->timeout_ms;
    m->joined++;
    m->foreign |= accepted != NULL;
    memcpy(s->process, join->process, sizeof s->process);
    if (remote)
        memcpy(s->host, join->host, sizeof s->host);
    s->place = join->place;
    if (remote && s->accepted != NULL) {
        accepted->connection.holder = join->rank;
        welcome(accepted);
    }
    due = s->deadline + (m->far ? GRACE_MS : 0);
    if (due < m->timer.deadline) {
        m->timer.deadline = due;
        m->timeout_ms = join->timeout_ms;
        m->first_due = join->rank;
        sw_poll_changed();
    }
}

/* Passes on what contradicts ranks that joined here before: the creator knows who is wrong. */
static void pass_strange(struct rendezvous *m, const struct sw_frame_join *join,
                         struct sw_accepted *accepted)
{
    if (accepted != NULL)
        accepted->rank = -1;
    if (m->strange.header.bytes != 0)
        return;
    m->strange = *join;
    sw_host_name(m->strange.host);
    m->strange.header.bytes = 1;
    if (m->up.fd >= 0 && sw_up_strange(m) != 0)
        up_lost(m);
}

/* Takes a slot for a rank. The last rank's triggers the hand-out. The rendezvous may be over
 * afterwards: if the rank is not valid, if the hand-out fails, or if no other process must get
 * ready. */
static void take_slot(struct rendezvous *m, const struct sw_frame_join *join,
                      struct sw_accepted *accepted)
{
    symwin_status status = sw_join_check(m, join, accepted);

    if (m->far && (status == SYMWIN_INVALID || status == SYMWIN_MISMATCH)) {
        pass_strange(m, join, accepted);
        return;
    }
    if (status != SYMWIN_OK && join->rank >= 0 && join->rank < m->nranks)
        sw_rendezvous_culprit(m, join->rank, status);
    if (status == SYMWIN_OK && m->nranks == 0)
        status = open_slots(m, join->nranks);
    if (status != SYMWIN_OK) {
        if (m->far && accepted != NULL)
            accepted->rank = -1;
        sw_rendezvous_fail(m, status);
        return;
    }
    fill_slot(m, join, accepted);
    if (m->far) { /* the creator knows when all have joined */
        m->joined--;
        if (m->up.fd >= 0 && !m->proposed && sw_up_join(m, join->rank) != 0)
            up_lost(m);
    } else if (m->joined == m->nranks) {
        all_joined(m);
    }
}

/* ---- what the creator says to a far rendezvous ---- */

/* All ranks have joined: those of this host get what they need. From now on this host alone knows
 * which of them is late. It says so when the time of the first rank of all is over: in the next
 * step the other hosts wait for it half a second longer. */
static void up_go(struct rendezvous *m, const struct sw_frame_pass *go)
{
    const int64_t first = m->timer.deadline - GRACE_MS, of_all = sw_now_ms() + go->left_ms;
    const int is_deep = m->table.hosts > sw_host_fan + 1;
    int r = 0;

    if (sw_up_host(m) < 0 || m->is_tree != is_deep || m->told_linked != is_deep) {
        sw_rendezvous_fail(
            m, sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong table", call));
        return;
    }
    m->joined = m->nranks;
    m->timer.deadline = of_all < first ? of_all : first;
    m->first_due = of_all < first ? -1 : m->first_due;
    sw_poll_changed();
    while (r < m->nranks && (int)m->table.locations[r].process != go->process)
        r++;
    m->creator = r < m->nranks ? r : -1;
    complete(m);
}

static void up_ended(struct rendezvous *m, symwin_status status, int culprit, const char *text)
{
    sw_up_drop(m); /* the creator knows */
    m->culprit = culprit;
    if (text != NULL)
        sw_fail(status, "%s", text);
    else
        sw_fail(status, "%s: rank %d, on another host, failed with %s", call, culprit,
                symwin_status_name(status));
    sw_rendezvous_decide(m, status);
}

static void up_ready(struct sw_poll_watch *watch, short events)
{
    struct rendezvous *m = (struct rendezvous *)(void *)((char *)watch -
                                                         offsetof(struct rendezvous, watch));
    symwin_status status = SYMWIN_OK;
    union sw_frame frame;
    int error;

    (void)events;
    error = sw_connection_receive_now(&m->up, &frame, NULL);
    if (error == EAGAIN)
        return;
    if (error != 0)
        up_lost(m);
    else if (frame.header.type == SW_FRAME_REFUSAL)
        up_ended(m, (symwin_status)frame.refusal.status, frame.refusal.rank, frame.refusal.text);
    else if (frame.header.type == SW_FRAME_END)
        up_ended(m, (symwin_status)frame.end.status, frame.end.rank, NULL);
    else if (m->proposed)
        return; /* sent before the creator knew */
    else if (frame.header.type == SW_FRAME_TABLE && !m->is_tree)
        status = sw_up_take_table(m, &frame.table);
    else if (frame.header.type == SW_FRAME_ABOVE)
        status = sw_tree_above(m, &frame.above);
    else if (frame.header.type == SW_FRAME_GO)
        up_go(m, &frame.pass);
    else if (frame.header.type == SW_FRAME_ASK) {
        sw_frame_seal(&frame, SW_FRAME_WELL);
        if (sw_connection_send(&m->up, &frame, -1, sw_now_ms() + 1) != 0)
            up_lost(m);
    } else
        status = sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong frame",
                         call);
    if (status != SYMWIN_OK)
        sw_rendezvous_fail(m, status);
}

/* The rank that opened the far rendezvous has joined at the creator: the others follow. 0, or an
 * errno. */
static int follow(struct rendezvous *m, int rank)
{
    int error = 0, r;

    for (r = 0; r < m->nranks && error == 0; r++)
        if (m->slots[r].taken && r != rank)
            error = sw_up_join(m, r);
    if (error == 0 && m->strange.header.bytes != 0)
        error = sw_up_strange(m);
    return error;
}

/* Takes over the connection to the creator, on which `rank` has joined. */
static void look_up(struct rendezvous *m, int rank, struct sw_connection *up,
                    const struct sw_id *all)
{
    m->all = *all;
    sw_id_name(all, m->all_name);
    m->watch = (struct sw_poll_watch){
        .fd = up->fd, .events = POLLIN | POLLRDHUP, .deadline = INT64_MAX, .ready = up_ready};
    sw_fork_set_remove(up->fd); /* the watch keeps it from forked children */
    m->up = *up;
    *up = (struct sw_connection){.fd = -1};
    if (sw_poll_add(&m->watch) != SYMWIN_OK)
        sw_rendezvous_fail(m, sw_rendezvous_own(m, SYMWIN_NO_MEMORY));
    else if (follow(m, rank) != 0)
        up_lost(m);
}

/* ---- what the listener tells ---- */

static void joined(struct sw_accepted *accepted, const struct sw_frame_join *join)
{
    struct rendezvous *m = accepted->rendezvous;

    if (m->far && accepted->connection.stream)
        sw_tree_join(m, accepted, join);
    else
        take_slot(m, join, accepted);
}

/* A rank says that it cannot go on, and who is at fault. The text says who sent it. */
static void refused(struct rendezvous *m, int rank, const struct sw_frame_refusal *refusal)
{
    char who[32];
    symwin_status status;

    sw_rendezvous_culprit(m, rank, SYMWIN_OK);
    snprintf(who, sizeof who, "rank %d: ", rank);
    status = sw_fail((symwin_status)refusal->status, "%s", refusal->text);
    if (rank >= 0 && !m->slots[rank].remote && strstr(refusal->text, who) == NULL)
        sw_fail_in(status, call, who);
    if (refusal->rank >= 0 && (m->nranks == 0 || refusal->rank < m->nranks))
        sw_rendezvous_culprit(m, refusal->rank, status);
    sw_rendezvous_fail(m, status);
}

/* BUSY: a rank of another host waits there for the one that joins for it. */
static void cannot_join(struct rendezvous *m, const struct sw_frame_refusal *refusal)
{
    if (refusal->status == SYMWIN_BUSY) {
        if (refusal->rank >= 0 && refusal->rank < m->nranks)
            m->slots[refusal->rank].waits = 1;
        return;
    }
    refused(m, -1, refusal);
}

/* The connection of a rank that has joined has ended, or has a frame that it may not send. */
static void lost(struct sw_accepted *accepted)
{
    struct rendezvous *m = accepted->rendezvous;
    const int rank = accepted->rank;

    sw_fail(SYMWIN_PEER_LOST, "%s: the process of rank %d ended before all ranks had joined", call,
            rank);
    sw_rendezvous_culprit(m, rank, SYMWIN_PEER_LOST);
    m->slots[rank].accepted = NULL;
    sw_listener_drop(accepted);
    sw_rendezvous_fail(m, SYMWIN_PEER_LOST);
}

/* From a process that has joined for its host. */
static void received_remote(struct sw_accepted *accepted, const union sw_frame *frame)
{
    struct rendezvous *m = accepted->rendezvous;
    struct slot *s = &m->slots[accepted->rank];

    if (frame == NULL)
        lost(accepted);
    else if (frame->header.type == SW_FRAME_WELL && s->silent) {
        s->silent = 0;
        if (sw_rendezvous_silent(m) < 0)
            sw_rendezvous_fail_late(m);
    } else if (frame->header.type == SW_FRAME_REFUSAL)
        refused(m, accepted->rank, &frame->refusal);
    else if (frame->header.type == SW_FRAME_LINKED && sw_tree_linked(m, s)) {
        if (m->unlinked == 0)
            complete(m);
    } else if (frame->header.type == SW_FRAME_JOIN &&
               memcmp(frame->join.host, s->host, sizeof s->host) == 0)
        take_slot(m, &frame->join, accepted);
    else
        lost(accepted);
}

static void received(struct sw_accepted *accepted, const union sw_frame *frame)
{
    struct rendezvous *m = accepted->rendezvous;
    struct slot *s = accepted->rank >= 0 ? &m->slots[accepted->rank] : NULL;

    if (s == NULL) { /* it waits for the creator's word */
        if (frame == NULL)
            sw_listener_drop(accepted);
    } else if (s->remote) {
        received_remote(accepted, frame);
    } else if (frame != NULL && s->awaited && frame->header.type == SW_FRAME_READY) {
        m->unready -= !s->ready;
        s->ready = 1;
        if (m->unready == 0)
            go(m);
    } else if (frame != NULL && s->awaited && frame->header.type == SW_FRAME_REFUSAL) {
        refused(m, accepted->rank, &frame->refusal);
    } else {
        lost(accepted);
    }
}

static void failed(struct rendezvous *m, symwin_status status)
{
    sw_rendezvous_fail(m, sw_rendezvous_own(m, status));
}

/* Fails every rendezvous that a rank has joined: the others cannot connect. */
static void no_room(int error)
{
    struct rendezvous *m, *next;

    for (m = sw_rendezvous.list; m != NULL; m = next) {
        next = m->next;
        m->foreign = 1; /* the client that could not be accepted */
        if (m->joined > 0 || (m->far && m->nranks > 0))
            sw_rendezvous_fail(
                m, sw_rendezvous_own(
                       m, sw_fail(SYMWIN_NO_MEMORY,
                                  "it cannot accept another rank: %s; raise its ulimit -n",
                                  strerror(error))));
    }
}

static const struct sw_listener_events events = {.find = sw_rendezvous_find,
                                                 .joined = joined,
                                                 .refused = cannot_join,
                                                 .received = received,
                                                 .failed = failed,
                                                 .no_room = no_room};

/* ---- open, join and close ---- */

static symwin_status rendezvous_fill(struct rendezvous *m, struct sw_id *id,
                                     const struct sw_id_options *options, const char *for_call)
{
    symwin_status status = SYMWIN_OK;

    m->id = *id;
    sw_id_name(id, m->name);
    m->timer = (struct sw_poll_watch){.fd = -1, .deadline = INT64_MAX, .ready = sw_rendezvous_late};
    if (options->file != NULL) {
        m->file = strdup(options->file);
        if (m->file == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    m->far = options->far;
    if (m->far && id->folder[0] == '\0')
        return sw_fail(
            SYMWIN_DENIED,
            "%s: could not open a socket for this host's other ranks; give it a writable "
            "TMPDIR of at most 21 characters",
            call);
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
    m->up.fd = m->above.fd = m->passed.fd = -1;
    m->culprit = m->creator = m->above_rank = m->linking = -1;
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
        sw_rendezvous_free(m);
        return status;
    }
    m->next = sw_rendezvous.list;
    sw_rendezvous.list = m;
    return SYMWIN_OK;
}

static symwin_status find_of(const struct sw_id *id, struct rendezvous **m, int *culprit)
{
    unsigned char name[SW_NAME_BYTES];
    const unsigned char *secret;

    sw_id_name(id, name);
    return sw_rendezvous_find(name, m, culprit, &secret);
}

symwin_status sw_rendezvous_close(const struct sw_id *id)
{
    struct rendezvous *m;
    int culprit;

    if (find_of(id, &m, &culprit) != SYMWIN_OK)
        return sw_fail(SYMWIN_INVALID,
                       "symwin_unique_id_release: the id has been used, was released before, or "
                       "was made by another process");
    m->status = SYMWIN_ABORTED;
    snprintf(m->text, sizeof m->text, "%s: the id was released by the process that made it", call);
    sw_rendezvous_end(m);
    return SYMWIN_OK;
}

symwin_status sw_rendezvous_join(const struct sw_id *id, const struct sw_frame_join *join,
                                 struct sw_connection *up, const struct sw_id *all,
                                 struct sw_group **out)
{
    struct rendezvous *m, over = {.status = SYMWIN_OK};
    symwin_status status;

    status = find_of(id, &m, &over.culprit);
    if (status != SYMWIN_OK && up != NULL) { /* it failed meanwhile, and the creator must know */
        over.status = status;
        snprintf(over.text, sizeof over.text, "%s", symwin_last_error());
        sw_up_refuse(&over, up);
    }
    if (status != SYMWIN_OK)
        return status;
    m->waiting++;
    take_slot(m, join, NULL);
    if (up != NULL && !m->over)
        look_up(m, join->rank, up, all);
    else if (up != NULL)
        sw_up_refuse(m, up);
    while (!m->over)
        if (all != NULL && m->needs_link)
            sw_tree_connect(m, join);
        else
            sw_poll_wait(&sw_rendezvous.changed, INT64_MAX);
    status = m->status;
    *out = m->group;
    if (status != SYMWIN_OK)
        sw_fail(status, "%s", m->text);
    if (--m->waiting == 0)
        sw_rendezvous_free(m);
    return status;
}

void sw_rendezvous_move(const struct sw_id *id, const char *folder)
{
    struct rendezvous *m;
    int culprit;

    if (find_of(id, &m, &culprit) != SYMWIN_OK)
        return;
    m->moved = 1;
    m->here = folder;
    m->status = SYMWIN_BUSY;
    sw_rendezvous_end(m);
}

symwin_status sw_rendezvous_give_up(const struct sw_id *id, symwin_status status)
{
    char text[SW_TEXT_BYTES];
    struct rendezvous *m;
    symwin_status ended;
    int culprit;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    ended = find_of(id, &m, &culprit);
    if (ended != SYMWIN_OK)
        return ended;
    sw_fail(status, "%s", text);
    sw_rendezvous_decide(m, status);
    return status;
}

void sw_rendezvous_forked(void)
{
    sw_rendezvous.list = NULL; /* the parent's */
    sw_rendezvous_forget();
    pthread_cond_init(&sw_rendezvous.changed, NULL);
    sw_listener_forked();
}
