/* Where ranks meet: the process that made an id keeps a meeting open for it.
 *
 * Ranks of this process come as threads, others through a socket in a folder that only this user can
 * enter. When all are there, every process learns which rank is where and gets the control page and
 * a line to every other process; then the meeting is over and the id has served. A meeting that
 * fails (a rank is late, dies, or contradicts the others) fails for all ranks with one sentence.
 *
 * Who cannot prove that it has the id's secret is dropped, and disturbs nobody: handshakes run side by
 * side, each with a deadline, and the oldest strangers make room for new ones.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
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
    MOST_PAST = 64        /* meetings that are remembered after their end */
};

static const char call[] = "symwin_comm_create";

struct seat {
    int taken;
    struct visitor *visitor; /* NULL: a thread of this process */
    unsigned char process[SW_NAME_BYTES];
};

struct meeting {
    struct meeting *next;
    struct sw_id id;
    unsigned char name[SW_NAME_BYTES];
    struct sw_watch timer;
    int timeout_ms; /* of the rank whose deadline comes first */
    int nranks;     /* 0: nobody has come yet */
    struct seat *seats;
    int come;
    int foreign; /* ranks of other processes among them */
    int inside;  /* threads of this process that wait; the last frees a meeting that is over */
    int over;
    symwin_status status; /* how it ended */
    char text[SW_TEXT_BYTES];
    struct sw_group *group; /* for the threads of this process */
    char *file;             /* owned: where the id is written down, NULL: nowhere */
};

/* A connection. */
struct visitor {
    struct sw_watch watch;
    struct visitor *next; /* newest first */
    struct sw_wire_hello hello;
    struct sw_wire_challenge challenge;
    struct meeting *meeting; /* NULL: it has not said hello */
    int seated;
    int rank;
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
    struct visitor *visitors;
    int strangers;
    struct sw_watch listener; /* fd -1: there is none */
    char folder[sizeof((struct sw_id *)0)->folder];
    int64_t linger; /* the socket stays until then */
    struct past past[MOST_PAST];
    unsigned past_count;
} root = {.changed = PTHREAD_COND_INITIALIZER, .listener = {.fd = -1}};

/* ---- the socket ---- */

static void visitor_come(struct sw_watch *watch, short events);

/* Puts "<folder>/s" into an address. */
static void socket_address(const char *folder, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    strncpy(address->sun_path, folder, sizeof address->sun_path - 1);
    strncat(address->sun_path, SW_SOCKET_NAME,
            sizeof address->sun_path - 1 - strlen(address->sun_path));
}

/* The process ends: what is in the file system must not stay. Nothing else is undone. */
__attribute__((destructor)) static void folder_remove(void)
{
    struct sockaddr_un address;

    if (root.listener.fd < 0)
        return;
    socket_address(root.folder, &address);
    unlink(address.sun_path);
    rmdir(root.folder);
}

static void listener_close(void)
{
    if (root.listener.fd < 0)
        return;
    folder_remove();
    sw_service_remove(&root.listener);
    close(root.listener.fd);
    root.listener.fd = -1;
    root.folder[0] = '\0';
}

/* Nobody is expected any more; but ranks of other processes that are on their way to a meeting that
 * has failed shall hear why. */
static void listener_rest(void)
{
    if (root.meetings != NULL || root.listener.fd < 0)
        return;
    if (sw_now_ms() >= root.linger) {
        listener_close();
    } else {
        root.listener.deadline = root.linger;
        sw_service_changed();
    }
}

/* A folder that only this user can enter, in the first place that takes one. */
static int folder_make(void)
{
    int i;

    for (i = 0; i < SW_PLACES; i++)
        if (sw_place_name(i, "/symwin-XXXXXX", root.folder, sizeof root.folder) &&
            mkdtemp(root.folder) != NULL)
            return 1;
    root.folder[0] = '\0';
    return 0;
}

/* Opens the socket, unless it is open. Where that is not possible, only threads of this process can
 * come, which is all that some programs want: the others learn it from the id. */
static symwin_status listener_open(void)
{
    struct sockaddr_un address;
    symwin_status status;
    int fd;

    if (root.listener.fd >= 0 || !folder_make())
        return SYMWIN_OK;
    socket_address(root.folder, &address);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, SOMAXCONN) != 0) {
        if (fd >= 0)
            close(fd);
        unlink(address.sun_path);
        rmdir(root.folder);
        root.folder[0] = '\0';
        return SYMWIN_OK;
    }
    root.listener = (struct sw_watch){
        .fd = fd, .events = POLLIN, .deadline = INT64_MAX, .ready = visitor_come};
    status = sw_service_add(&root.listener);
    if (status != SYMWIN_OK)
        listener_close();
    return status;
}

/* ---- meetings ---- */

static void visitor_drop(struct visitor *v)
{
    struct visitor **at = &root.visitors;

    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    root.strangers -= !v->seated;
    sw_service_remove(&v->watch);
    close(v->watch.fd);
    free(v);
}

static void refuse(struct visitor *v, symwin_status status, const char *text)
{
    union sw_wire_frame frame = {.refusal = {.status = (int32_t)status}};

    strncpy(frame.refusal.text, text, sizeof frame.refusal.text - 1);
    sw_wire_seal(&frame, SW_WIRE_REFUSAL);
    sw_wire_send_now(v->watch.fd, &frame, -1);
    visitor_drop(v);
}

static void meeting_free(struct meeting *m)
{
    free(m->file);
    free(m->seats);
    free(m);
}

/* Ends a meeting, well or not: nobody can come any more. */
static void meeting_end(struct meeting *m, symwin_status status, const char *text)
{
    struct past *past = &root.past[root.past_count++ % MOST_PAST];
    struct meeting **at = &root.meetings;
    const int foreign = m->foreign && m->come < m->nranks;
    struct visitor *v, *next;

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
    for (v = root.visitors; v != NULL; v = next) {
        next = v->next;
        if (v->meeting != m)
            continue;
        if (status == SYMWIN_OK)
            visitor_drop(v);
        else
            refuse(v, status, m->text);
    }
    if (m->inside == 0)
        meeting_free(m);
    else
        pthread_cond_broadcast(&root.changed);
    if (status != SYMWIN_OK && foreign)
        root.linger = sw_now_ms() + LINGER_MS;
    listener_rest();
}

/* Ends it with what sw_fail() has just said. */
static void meeting_fail(struct meeting *m, symwin_status status)
{
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    meeting_end(m, status, text);
}

static int first_absent(const struct meeting *m)
{
    int r = 0;

    while (r < m->nranks - 1 && m->seats[r].taken)
        r++;
    return r;
}

static void meeting_late(struct sw_watch *watch, short events)
{
    struct meeting *m = (struct meeting *)(void *)((char *)watch - offsetof(struct meeting, timer));

    (void)events;
    meeting_fail(m,
                 sw_fail(SYMWIN_TIMEOUT,
                         "%s: rank %d did not come within %d ms (%d of %d ranks did); start every "
                         "rank with this id",
                         call, first_absent(m), m->timeout_ms, m->come, m->nranks));
}

static struct meeting *meeting_named(const unsigned char name[SW_NAME_BYTES])
{
    struct meeting *m = root.meetings;

    while (m != NULL && memcmp(m->name, name, SW_NAME_BYTES) != 0)
        m = m->next;
    return m;
}

/* Why there is no such meeting. */
static symwin_status past_status(const unsigned char name[SW_NAME_BYTES])
{
    unsigned i;

    for (i = 0; i < MOST_PAST && i < root.past_count; i++)
        if (memcmp(root.past[i].name, name, SW_NAME_BYTES) == 0)
            return sw_fail(root.past[i].status, "%s", root.past[i].text);
    return sw_fail(SYMWIN_INVALID, "%s: this id has served, or another process made it", call);
}

symwin_status sw_root_open(struct sw_id *id, char *file)
{
    struct meeting *m = calloc(1, sizeof *m);
    symwin_status status;

    if (m == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "symwin_unique_id_create: no host memory");
    status = sw_process_name(id->maker);
    if (status == SYMWIN_OK)
        status = listener_open();
    if (status != SYMWIN_OK) {
        free(m);
        return status;
    }
    memcpy(id->folder, root.folder, sizeof id->folder);
    m->id = *id;
    m->file = file;
    sw_id_name(id, m->name);
    m->timer = (struct sw_watch){.fd = -1, .deadline = INT64_MAX, .ready = meeting_late};
    m->next = root.meetings;
    root.meetings = m;
    return SYMWIN_OK;
}

symwin_status sw_root_close(const struct sw_id *id)
{
    unsigned char name[SW_NAME_BYTES];
    struct meeting *m;

    sw_id_name(id, name);
    m = meeting_named(name);
    if (m == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_unique_id_release: the id has served, was released "
                                       "before, or was made by another process");
    meeting_end(m, SYMWIN_ABORTED,
                "symwin_comm_create: the id was released by the process that made it");
    return SYMWIN_OK;
}

/* ---- all have come ---- */

/* Numbers the processes in the order of their lowest ranks. Returns how many there are. */
static int number_processes(const struct meeting *m, uint16_t *process_of)
{
    int processes = 0;
    int r, q;

    for (r = 0; r < m->nranks; r++) {
        for (q = 0; q < r; q++)
            if (memcmp(m->seats[q].process, m->seats[r].process, SW_NAME_BYTES) == 0)
                break;
        process_of[r] = q < r ? process_of[q] : (uint16_t)processes++;
    }
    return processes;
}

static int leader_of(int process, const uint16_t *process_of)
{
    int r = 0;

    while (process_of[r] != process)
        r++;
    return r;
}

/* Sends a frame to a rank. A rank that is not here any more is lost to all. */
static symwin_status tell(const struct meeting *m, int rank, union sw_wire_frame *frame,
                          enum sw_wire_type type, int fd)
{
    int error;

    sw_wire_seal(frame, type);
    error = sw_wire_send(m->seats[rank].visitor->watch.fd, frame, fd, sw_now_ms() + HANDSHAKE_MS);
    if (error == 0)
        return SYMWIN_OK;
    return sw_fail(error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_PEER_LOST,
                   "%s: rank %d came, but cannot be reached any more: %s", call, rank,
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
    memcpy(frame.table.process_of, place->process_of, (size_t)m->nranks * sizeof(uint16_t));
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
    status = tell(m, leader_of(to, place->process_of), &frame, SW_WIRE_LINE, fd);
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

            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
                return sw_fail(SYMWIN_NO_MEMORY, "%s: socketpair: %s; raise ulimit -n", call,
                               strerror(errno));
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

/* Every process gets all that it needs, and only then does any of them go. */
static symwin_status hand_out(const struct meeting *m, struct sw_place *place)
{
    union sw_wire_frame frame = {.pass = {.process = 0}};
    symwin_status status = sw_exchange_page(m->nranks, &place->page);
    int p;

    if (status == SYMWIN_OK)
        status = send_tables(m, place);
    for (p = 0; p < place->processes && status == SYMWIN_OK; p++)
        if (p != place->process)
            status = tell(m, leader_of(p, place->process_of), &frame, SW_WIRE_PAGE, place->page);
    if (status == SYMWIN_OK)
        status = send_lines(m, place);
    for (p = 0; p < place->processes && status == SYMWIN_OK; p++)
        if (p != place->process)
            status = tell(m, leader_of(p, place->process_of), &frame, SW_WIRE_GO, -1);
    return status;
}

/* The index of this process, -1: none of the ranks is here. */
static int own_process(const struct meeting *m, const uint16_t *process_of)
{
    int r;

    for (r = 0; r < m->nranks; r++)
        if (m->seats[r].visitor == NULL)
            return process_of[r];
    return -1;
}

static symwin_status complete(struct meeting *m)
{
    uint16_t *process_of = calloc((size_t)m->nranks, sizeof *process_of);
    struct sw_place place = {.nranks = m->nranks, .page = -1, .process_of = process_of};
    symwin_status status = SYMWIN_OK;
    int p;

    if (process_of != NULL) {
        place.processes = number_processes(m, process_of);
        place.process = own_process(m, process_of);
        place.lines = malloc((size_t)place.processes * sizeof *place.lines);
    }
    if (place.lines == NULL) {
        free(process_of);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, m->nranks);
    }
    for (p = 0; p < place.processes; p++)
        place.lines[p] = -1;
    if (place.processes > 1 || place.process < 0)
        status = hand_out(m, &place);
    if (status == SYMWIN_OK && place.process >= 0)
        status = sw_group_create(&place, &m->group);
    else
        sw_place_release(&place);
    free(process_of);
    return status;
}

/* ---- a rank comes ---- */

/* The first rank says how many there are. */
static symwin_status open_seats(struct meeting *m, int nranks)
{
    m->seats = calloc((size_t)nranks, sizeof *m->seats);
    if (m->seats == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, nranks);
    m->nranks = nranks;
    return sw_service_add(&m->timer);
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
 * meeting is over; it is also over when all went well and this was the last. */
static void seat(struct meeting *m, const struct sw_wire_join *join, struct visitor *visitor)
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
    if (deadline < m->timer.deadline) {
        m->timer.deadline = deadline;
        m->timeout_ms = join->timeout_ms;
        sw_service_changed();
    }
    if (++m->come < m->nranks)
        return;
    status = complete(m);
    if (status == SYMWIN_OK)
        meeting_end(m, SYMWIN_OK, "");
    else
        meeting_fail(m, status);
}

symwin_status sw_root_join(const struct sw_id *id, const struct sw_wire_join *join,
                           struct sw_group **out)
{
    unsigned char name[SW_NAME_BYTES];
    symwin_status status;
    struct meeting *m;

    sw_id_name(id, name);
    m = meeting_named(name);
    if (m == NULL)
        return past_status(name);
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

/* ---- visitors ---- */

static void visitor_hello(struct visitor *v, const union sw_wire_frame *in)
{
    union sw_wire_frame out;

    v->hello = in->hello;
    v->meeting = meeting_named(v->hello.name);
    if (v->meeting == NULL) {
        const symwin_status status = past_status(v->hello.name);

        refuse(v, status, symwin_last_error());
        return;
    }
    memset(&out, 0, sizeof out.challenge);
    if (getrandom(out.challenge.nonce, sizeof out.challenge.nonce, 0) !=
        (ssize_t)sizeof out.challenge.nonce) {
        refuse(v, SYMWIN_DENIED, "symwin_comm_create: the id's maker has no random numbers");
        return;
    }
    sw_wire_prove_maker(v->meeting->id.secret, &v->hello, &out.challenge, out.challenge.proof);
    sw_wire_seal(&out, SW_WIRE_CHALLENGE);
    v->challenge = out.challenge;
    if (sw_wire_send_now(v->watch.fd, &out, -1) != 0)
        visitor_drop(v);
}

/* Whether the process that speaks is the one that it says it is, as far as that can be seen. */
static int is_itself(int fd, const struct sw_wire_join *join)
{
    struct sw_wire_join own = {.rank = 0};
    pid_t pid = 0;

    if (!sw_wire_same_user(fd, &pid) || sw_join_fill(&own, 1, 0, 1) != SYMWIN_OK)
        return 0;
    return own.pid_space != join->pid_space || join->pid == pid;
}

static void visitor_join(struct visitor *v, const union sw_wire_frame *in)
{
    unsigned char proof[SW_DIGEST_BYTES];

    sw_wire_prove_rank(v->meeting->id.secret, &v->hello, &v->challenge, &in->join, proof);
    if (!sw_digest_equal(proof, in->join.proof) || !is_itself(v->watch.fd, &in->join)) {
        refuse(v, SYMWIN_DENIED,
               "symwin_comm_create: the proof does not fit the id: pass the id as it was made");
        return;
    }
    v->seated = 1;
    v->rank = in->join.rank;
    root.strangers--;
    v->watch.deadline = INT64_MAX;
    seat(v->meeting, &in->join, v);
}

static void visitor_lost(struct visitor *v)
{
    if (v->seated)
        meeting_fail(v->meeting, sw_fail(SYMWIN_PEER_LOST,
                                         "%s: the process of rank %d ended before all ranks had "
                                         "come",
                                         call, v->rank));
    else
        visitor_drop(v);
}

static void visitor_ready(struct sw_watch *watch, short events)
{
    struct visitor *v = (struct visitor *)(void *)watch;
    union sw_wire_frame frame;
    int error;

    error = events == 0 ? ETIMEDOUT : sw_wire_receive_now(watch->fd, &frame, NULL);
    if (error == EAGAIN)
        return;
    if (error == 0 && !v->seated && v->meeting == NULL && frame.header.type == SW_WIRE_HELLO)
        visitor_hello(v, &frame);
    else if (error == 0 && !v->seated && v->meeting != NULL && frame.header.type == SW_WIRE_JOIN)
        visitor_join(v, &frame);
    else
        visitor_lost(v);
}

/* Of those who have not said which id they come for, if there is one: any other may be a rank in the
 * middle of its handshake. */
static void drop_oldest_stranger(void)
{
    struct visitor *v, *oldest = NULL;

    for (v = root.visitors; v != NULL; v = v->next)
        if (!v->seated && (oldest == NULL || v->meeting == NULL || oldest->meeting != NULL))
            oldest = v;
    if (oldest != NULL)
        visitor_drop(oldest);
}

/* No descriptor is left for a visitor: every meeting that waits for one would wait in vain. */
static void out_of_descriptors(int error)
{
    struct meeting *m, *next;

    for (m = root.meetings; m != NULL; m = next) {
        next = m->next;
        if (m->come > 0)
            meeting_fail(m, sw_fail(SYMWIN_NO_MEMORY,
                                    "%s: the process that made the id cannot take in another rank: "
                                    "%s; raise its ulimit -n",
                                    call, strerror(error)));
    }
}

static void visitor_come(struct sw_watch *watch, short events)
{
    struct visitor *v;
    pid_t pid;
    int fd;

    if (events == 0) { /* a pause is over, or the time to linger */
        watch->events = POLLIN;
        listener_rest();
        return;
    }
    fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
            return;
        if (root.strangers > 0) {
            drop_oldest_stranger();
            return;
        }
        watch->events = 0; /* or it would be ready again at once */
        watch->deadline = sw_now_ms() + PAUSE_MS;
        out_of_descriptors(errno);
        return;
    }
    v = calloc(1, sizeof *v);
    if (v == NULL || !sw_wire_same_user(fd, &pid)) {
        free(v);
        close(fd);
        return;
    }
    v->watch = (struct sw_watch){.fd = fd,
                                 .events = POLLIN | POLLRDHUP,
                                 .deadline = sw_now_ms() + HANDSHAKE_MS,
                                 .ready = visitor_ready};
    if (root.strangers == MOST_STRANGERS)
        drop_oldest_stranger();
    if (sw_service_add(&v->watch) != SYMWIN_OK) {
        close(fd);
        free(v);
        return;
    }
    v->next = root.visitors;
    root.visitors = v;
    root.strangers++;
}

void sw_root_forked(void)
{
    /* The parent's, socket and folder included; what is in memory is lost to the child. */
    root.meetings = NULL;
    root.visitors = NULL;
    root.strangers = 0;
    root.listener = (struct sw_watch){.fd = -1};
    root.folder[0] = '\0';
    pthread_cond_init(&root.changed, NULL);
}
