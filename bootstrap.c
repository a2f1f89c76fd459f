/* How ranks find each other: every rank goes to the process that made the id (root.c), as a thread
 * or through its socket, and comes back with its process's struct sw_group.
 *
 * In a process that did not make the id, each rank goes by itself; the lowest brings the descriptors
 * home and makes the group, for which the others wait.
 */
#include "bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const unsigned char id_magic[8] = "symwin02";
static const char call[] = "symwin_comm_create";

enum { GRACE_MS = 1000 }; /* for the maker's word on who is late, past one's own deadline */

/* A group that its lowest rank has brought home, for the other ranks of this process. */
struct arrival {
    struct arrival *next;
    unsigned char name[SW_NAME_BYTES]; /* of the id */
    int waiting;                       /* ranks that are still to take it */
    symwin_status status;
    struct sw_group *group;
    char text[SW_TEXT_BYTES];
};

static struct {
    pthread_cond_t changed;
    struct arrival *arrivals;
    int named;
    unsigned char process[SW_NAME_BYTES];
} bootstrap = {.changed = PTHREAD_COND_INITIALIZER};

/* ---- names and ids ---- */

static symwin_status random_bytes(void *out, size_t bytes, const char *for_call)
{
    ssize_t got;

    do
        got = getrandom(out, bytes, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)bytes
               ? SYMWIN_OK
               : sw_fail(SYMWIN_DENIED, "%s: getrandom failed: %s", for_call, strerror(errno));
}

symwin_status sw_process_name(unsigned char name[SW_NAME_BYTES])
{
    if (!bootstrap.named) {
        const symwin_status status = random_bytes(bootstrap.process, SW_NAME_BYTES, call);

        if (status != SYMWIN_OK)
            return status;
        sw_service_watch_forks();
        bootstrap.named = 1;
    }
    memcpy(name, bootstrap.process, SW_NAME_BYTES);
    return SYMWIN_OK;
}

void sw_id_name(const struct sw_id *id, unsigned char name[SW_NAME_BYTES])
{
    const struct sw_part parts[] = {{"symwin name", 11}, {id->secret, sizeof id->secret}};
    unsigned char digest[SW_DIGEST_BYTES];

    sw_sha256(parts, 2, digest);
    memcpy(name, digest, SW_NAME_BYTES);
}

int sw_place_name(int which, const char *tail, char *name, size_t room)
{
    const char *const places[SW_PLACES] = {getenv("TMPDIR"), getenv("XDG_RUNTIME_DIR"), "/tmp"};

    if (places[which] == NULL || strlen(places[which]) + strlen(tail) >= room)
        return 0;
    strcpy(name, places[which]);
    strcat(name, tail);
    return 1;
}

symwin_status sw_id_make(struct sw_id *id, char *file, const char *for_call)
{
    symwin_status status;

    memset(id, 0, sizeof *id);
    memcpy(id->magic, id_magic, sizeof id->magic);
    status = random_bytes(id->secret, sizeof id->secret, for_call);
    if (status != SYMWIN_OK)
        return status;
    sw_service_lock();
    status = sw_root_open(id, file);
    sw_service_unlock();
    return status;
}

symwin_status symwin_unique_id_create(symwin_unique_id *id)
{
    static const char own_call[] = "symwin_unique_id_create";
    struct sw_id fresh;
    symwin_status status;

    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: id is NULL", own_call);
    status = sw_id_make(&fresh, NULL, own_call);
    if (status == SYMWIN_OK)
        memcpy(id, &fresh, sizeof fresh);
    return status;
}

symwin_status symwin_unique_id_release(const symwin_unique_id *id)
{
    symwin_status status;
    struct sw_id copy;

    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_unique_id_release: id is NULL");
    memcpy(&copy, id, sizeof copy);
    sw_service_lock();
    status = sw_root_close(&copy);
    sw_service_unlock();
    sw_service_settle();
    return status;
}

symwin_status sw_join_fill(struct sw_wire_join *join, int nranks, int rank, int timeout_ms)
{
    struct stat space = {0};

    memset(join, 0, sizeof *join);
    join->protocol = SW_WIRE_PROTOCOL;
    join->rank = rank;
    join->nranks = nranks;
    join->timeout_ms = timeout_ms;
    join->pid = (int32_t)getpid();
    if (stat("/proc/self/ns/pid", &space) == 0)
        join->pid_space = space.st_ino;
    join->header = (struct sw_wire_header){
        .magic = SW_WIRE_MAGIC, .form = SW_WIRE_FORM, .type = SW_WIRE_JOIN, .bytes = sizeof *join};
    return sw_process_name(join->process);
}

/* ---- groups ---- */

void sw_place_release(struct sw_place *place)
{
    int p;

    for (p = 0; p < place->processes && place->lines != NULL; p++)
        if (place->lines[p] >= 0)
            close(place->lines[p]);
    if (place->page >= 0)
        close(place->page);
    free(place->lines);
    place->lines = NULL;
    place->page = -1;
}

static void group_free(struct sw_group *group)
{
    int p;

    for (p = 0; p < group->processes && group->lines != NULL; p++)
        sw_service_remove(&group->lines[p].watch);
    for (p = 0; p < group->processes && group->lines != NULL; p++)
        if (group->lines[p].watch.fd >= 0)
            close(group->lines[p].watch.fd);
    if (group->base != 0)
        sw_drop(sw_drv.cuMemAddressFree(group->base, group->range_bytes), "cuMemAddressFree");
    pthread_mutex_destroy(&group->mutex);
    sw_exchange_destroy(group->exchange);
    sw_handles_destroy(group->trade);
    free(group->lines);
    free(group->process_of);
    free(group->devices);
    free(group->reports);
    free(group);
}

/* The line to a process has broken: it has left, or aborted, or died. On the service thread. */
static void line_broken(struct sw_watch *watch, short events)
{
    struct sw_line *line = (struct sw_line *)(void *)watch;
    struct sw_group *group = line->group;
    int r;

    (void)events;
    sw_service_remove(watch);
    for (r = 0; r < group->nranks; r++)
        if (group->process_of[r] == line->process && !sw_exchange_has_left(group->exchange, r)) {
            sw_exchange_fail(group->exchange, SYMWIN_PEER_LOST, r);
            break;
        }
    if (sw_exchange_ended(group->exchange))
        sw_group_abort_kernels(group);
}

void sw_group_abort_kernels(struct sw_group *group)
{
    int r;

    pthread_mutex_lock(&group->mutex);
    for (r = 0; r < group->nranks; r++)
        if (group->reports[r] != NULL)
            __atomic_store_n(&group->reports[r]->abort, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&group->mutex);
}

void sw_group_break_lines(struct sw_group *group)
{
    int p;

    for (p = 0; p < group->processes && group->lines != NULL; p++)
        if (group->lines[p].watch.fd >= 0)
            shutdown(group->lines[p].watch.fd, SHUT_WR);
}

/* Takes the place's descriptors into the group. */
static symwin_status group_connect(struct sw_group *group, struct sw_place *place)
{
    symwin_status status = SYMWIN_OK;
    int p;

    if (place->page < 0) {
        group->exchange = sw_exchange_create(place->nranks);
        return group->exchange != NULL
                   ? SYMWIN_OK
                   : sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call,
                             place->nranks);
    }
    status = sw_exchange_open(place->page, place->nranks, &group->exchange);
    if (status == SYMWIN_OK && group->processes > 1) {
        group->trade = sw_handles_create(group);
        if (group->trade == NULL)
            status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call,
                             place->nranks);
    }
    for (p = 0; p < place->processes && status == SYMWIN_OK; p++) {
        struct sw_line *line = &group->lines[p];

        if (place->lines[p] < 0)
            continue;
        line->group = group;
        line->process = p;
        line->watch = (struct sw_watch){.fd = place->lines[p],
                                        .events = POLLRDHUP,
                                        .deadline = INT64_MAX,
                                        .ready = line_broken};
        place->lines[p] = -1;
        status = sw_service_add(&line->watch);
    }
    return status;
}

symwin_status sw_group_create(const struct sw_place *given, struct sw_group **out)
{
    struct sw_place place = *given;
    struct sw_group *group = calloc(1, sizeof *group);
    symwin_status status;
    int p, r;

    if (group == NULL || pthread_mutex_init(&group->mutex, NULL) != 0) {
        free(group);
        sw_place_release(&place);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, place.nranks);
    }
    group->nranks = place.nranks;
    group->process = place.process;
    group->processes = place.processes;
    group->reports = calloc((size_t)place.nranks, sizeof *group->reports);
    group->process_of = calloc((size_t)place.nranks, sizeof *group->process_of);
    group->lines = calloc((size_t)place.processes, sizeof *group->lines);
    for (p = 0; p < place.processes && group->lines != NULL; p++)
        group->lines[p].watch.fd = -1;
    if (group->reports == NULL || group->process_of == NULL || group->lines == NULL) {
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, place.nranks);
    } else {
        group->leader = place.nranks;
        for (r = 0; r < place.nranks; r++) {
            group->process_of[r] = place.process_of[r];
            if (group->process_of[r] != place.process)
                continue;
            group->nlocal++;
            if (r < group->leader)
                group->leader = r;
        }
        atomic_init(&group->refs, group->nlocal);
        status = group_connect(group, &place);
    }
    sw_place_release(&place);
    if (status == SYMWIN_OK)
        *out = group;
    else
        group_free(group);
    return status;
}

void sw_bootstrap_leave(struct sw_group *group, int rank)
{
    sw_exchange_leave(group->exchange, rank);
    if (atomic_fetch_sub(&group->refs, 1) != 1)
        return;
    sw_service_lock();
    group_free(group);
    sw_service_unlock();
    sw_service_settle();
}

/* ---- the way to the maker of the id ---- */

/* 0, or an errno. The maker's queue is full when many come at once, or when it is stopped; no poll()
 * tells when there is room. */
static int connect_by(int fd, const struct sockaddr_un *address, int64_t deadline)
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

/* Connects to the maker's socket. SYMWIN_PEER_LOST: there is none any more. */
static symwin_status connect_to(const struct sw_id *id, int64_t deadline, int *out)
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
            "a writable TMPDIR",
            call);
    if (lstat(id->folder, &folder) != 0)
        return sw_fail(SYMWIN_PEER_LOST,
                       "%s: the process that made the id has ended, or is on another host (%s: %s)",
                       call, id->folder, strerror(errno));
    if (!S_ISDIR(folder.st_mode) || folder.st_uid != geteuid() || (folder.st_mode & 077) != 0)
        return sw_fail(SYMWIN_DENIED,
                       "%s: %s is not this user's private folder; all ranks must run as "
                       "one user",
                       call, id->folder);
    memcpy(address.sun_path, id->folder, sizeof id->folder);
    strcat(address.sun_path, SW_SOCKET_NAME);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: socket: %s; raise ulimit -n", call, strerror(errno));
    error = connect_by(fd, &address, deadline);
    if (error != 0) {
        close(fd);
        if (error == ETIMEDOUT)
            return sw_fail(SYMWIN_TIMEOUT,
                           "%s: the process that made the id did not answer in time", call);
        return sw_fail(error == EACCES ? SYMWIN_DENIED : SYMWIN_PEER_LOST,
                       "%s: the process that made the id does not answer (%s: %s)", call,
                       address.sun_path, strerror(error));
    }
    if (!sw_wire_same_user(fd, &pid)) {
        close(fd);
        return sw_fail(SYMWIN_DENIED, "%s: the process at %s is not this user's", call,
                       address.sun_path);
    }
    *out = fd;
    return SYMWIN_OK;
}

/* The next frame from the maker, which must be of that type. */
static symwin_status expect(int socket, union sw_wire_frame *frame, enum sw_wire_type type, int *fd,
                            int64_t deadline)
{
    const int error = sw_wire_receive(socket, frame, fd, deadline);

    switch (error) {
    case 0:
        break;
    case EPIPE:
        return sw_fail(SYMWIN_PEER_LOST,
                       "%s: the process that made the id ended before all ranks had come", call);
    case ETIMEDOUT:
        return sw_fail(SYMWIN_TIMEOUT, "%s: the process that made the id did not answer in time",
                       call);
    case EMFILE:
        return sw_fail(SYMWIN_NO_MEMORY,
                       "%s: no descriptor is left for a line to another process; raise ulimit -n",
                       call);
    default:
        return sw_fail(SYMWIN_DENIED, "%s: what answers is not the process that made the id (%s)",
                       call, strerror(error));
    }
    if (frame->header.type == type)
        return SYMWIN_OK;
    if (fd != NULL && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    if (frame->header.type == SW_WIRE_REFUSAL)
        return sw_fail((symwin_status)frame->refusal.status, "%s", frame->refusal.text);
    return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent frame %d where %d was due",
                   call, frame->header.type, (int)type);
}

/* Says which id it is about, and makes sure that the other knows its secret. */
static symwin_status greet(int socket, const struct sw_id *id, union sw_wire_frame *hello,
                           union sw_wire_frame *challenge, int64_t deadline)
{
    unsigned char proof[SW_DIGEST_BYTES];
    symwin_status status;

    memset(hello, 0, sizeof hello->hello);
    sw_id_name(id, hello->hello.name);
    status = random_bytes(hello->hello.nonce, sizeof hello->hello.nonce, call);
    if (status != SYMWIN_OK)
        return status;
    sw_wire_seal(hello, SW_WIRE_HELLO);
    sw_wire_send(socket, hello, -1, deadline); /* if it fails, there will be no answer */
    status = expect(socket, challenge, SW_WIRE_CHALLENGE, NULL, deadline);
    if (status != SYMWIN_OK)
        return status;
    sw_wire_prove_maker(id->secret, &hello->hello, &challenge->challenge, proof);
    if (!sw_digest_equal(proof, challenge->challenge.proof))
        return sw_fail(SYMWIN_DENIED, "%s: the process at %s does not know the id's secret", call,
                       id->folder);
    return SYMWIN_OK;
}

/* Takes a seat: proves that it knows the secret too. */
static symwin_status introduce(int socket, const struct sw_id *id, struct sw_wire_join *join,
                               int64_t deadline)
{
    union sw_wire_frame hello, challenge;
    symwin_status status = greet(socket, id, &hello, &challenge, deadline);

    if (status != SYMWIN_OK)
        return status;
    sw_wire_prove_rank(id->secret, &hello.hello, &challenge.challenge, join, join->proof);
    sw_wire_send(socket, (union sw_wire_frame *)(void *)join, -1, deadline);
    return SYMWIN_OK;
}

int sw_id_is_open(const struct sw_id *id, int64_t deadline)
{
    union sw_wire_frame hello, challenge;
    int socket = -1;
    int open;

    if (memcmp(id->magic, id_magic, sizeof id_magic) != 0 ||
        memchr(id->folder, 0, sizeof id->folder) == NULL ||
        connect_to(id, deadline, &socket) != SYMWIN_OK)
        return 0;
    open = greet(socket, id, &hello, &challenge, deadline) == SYMWIN_OK;
    close(socket);
    return open;
}

/* Which ranks are here, from the table. */
static int leads(const struct sw_wire_table *table, int rank, int *mates)
{
    int lowest = table->nranks;
    int r;

    *mates = 0;
    for (r = table->nranks - 1; r >= 0; r--)
        if (table->process_of[r] == table->process_of[rank]) {
            lowest = r;
            *mates += r != rank;
        }
    return lowest == rank;
}

/* The descriptors, for the lowest rank of a process. */
static symwin_status collect(int socket, struct sw_place *place, int64_t deadline)
{
    union sw_wire_frame frame;
    symwin_status status;
    int fd = -1;
    int i;

    status = expect(socket, &frame, SW_WIRE_PAGE, &place->page, deadline);
    for (i = 1; i < place->processes && status == SYMWIN_OK; i++) {
        status = expect(socket, &frame, SW_WIRE_LINE, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (fd < 0 || frame.pass.process >= place->processes ||
            frame.pass.process == place->process || place->lines[frame.pass.process] >= 0) {
            if (fd >= 0)
                close(fd);
            return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong line",
                           call);
        }
        place->lines[frame.pass.process] = fd;
    }
    return status;
}

/* The lowest rank of a process makes the group. */
static symwin_status bring_home(int socket, const struct sw_wire_table *table, int rank,
                                int64_t deadline, struct sw_group **out)
{
    struct sw_place place = {.nranks = table->nranks,
                             .process = table->process_of[rank],
                             .processes = table->processes,
                             .page = -1,
                             .process_of = table->process_of};
    union sw_wire_frame frame;
    symwin_status status;
    int p;

    place.lines = malloc((size_t)place.processes * sizeof *place.lines);
    if (place.lines == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d lines", call, place.processes);
    for (p = 0; p < place.processes; p++)
        place.lines[p] = -1;
    status = collect(socket, &place, deadline);
    if (status == SYMWIN_OK)
        status = expect(socket, &frame, SW_WIRE_GO, NULL, deadline);
    if (status != SYMWIN_OK) {
        sw_place_release(&place);
        return status;
    }
    sw_service_lock();
    status = sw_group_create(&place, out);
    sw_service_unlock();
    return status;
}

/* ---- ranks of one process that did not make the id ---- */

/* Leaves the outcome for the other ranks of this process. */
static void announce(const struct sw_id *id, int mates, symwin_status status,
                     struct sw_group *group)
{
    struct arrival *a;

    if (mates == 0)
        return;
    a = calloc(1, sizeof *a);
    if (a == NULL)
        return; /* they time out */
    sw_id_name(id, a->name);
    a->waiting = mates;
    a->status = status;
    a->group = group;
    if (status != SYMWIN_OK)
        snprintf(a->text, sizeof a->text, "%s", symwin_last_error());
    sw_service_lock();
    a->next = bootstrap.arrivals;
    bootstrap.arrivals = a;
    pthread_cond_broadcast(&bootstrap.changed);
    sw_service_unlock();
}

static struct arrival **arrival_of(const unsigned char name[SW_NAME_BYTES])
{
    struct arrival **at = &bootstrap.arrivals;

    while (*at != NULL && memcmp((*at)->name, name, SW_NAME_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

static symwin_status await(const struct sw_id *id, int64_t deadline, struct sw_group **out)
{
    unsigned char name[SW_NAME_BYTES];
    symwin_status status = SYMWIN_OK;
    struct arrival **at;

    sw_id_name(id, name);
    sw_service_lock();
    for (at = arrival_of(name); *at == NULL; at = arrival_of(name))
        if (!sw_service_wait(&bootstrap.changed, deadline) && *arrival_of(name) == NULL) {
            sw_service_unlock();
            return sw_fail(
                SYMWIN_TIMEOUT,
                "%s: the lowest rank of this process did not bring the communicator home", call);
        }
    status = (*at)->status;
    *out = (*at)->group;
    if (status != SYMWIN_OK)
        sw_fail(status, "%s", (*at)->text);
    if (--(*at)->waiting == 0) {
        struct arrival *gone = *at;

        *at = gone->next;
        free(gone);
    }
    sw_service_unlock();
    return status;
}

static symwin_status join_by_socket(const struct sw_id *id, struct sw_wire_join *join,
                                    struct sw_group **out)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms + GRACE_MS;
    union sw_wire_frame frame;
    symwin_status status;
    int socket = -1;
    int mates = 0;

    status = connect_to(id, deadline, &socket);
    if (status != SYMWIN_OK)
        return status;
    status = introduce(socket, id, join, deadline);
    if (status == SYMWIN_OK)
        status = expect(socket, &frame, SW_WIRE_TABLE, NULL, deadline);
    if (status == SYMWIN_OK && frame.table.nranks != join->nranks)
        status = sw_fail(SYMWIN_DENIED, "%s: the process that made the id counts %d ranks, not %d",
                         call, frame.table.nranks, join->nranks);
    if (status == SYMWIN_OK) {
        if (leads(&frame.table, join->rank, &mates)) {
            const struct sw_wire_table table = frame.table;

            status = bring_home(socket, &table, join->rank, deadline, out);
            announce(id, mates, status, status == SYMWIN_OK ? *out : NULL);
        } else {
            status = await(id, deadline + GRACE_MS, out);
        }
    }
    close(socket);
    return status;
}

symwin_status sw_bootstrap_join(const symwin_unique_id *unique, int nranks, int rank,
                                int timeout_ms, struct sw_group **out)
{
    struct sw_wire_join join;
    symwin_status status;
    struct sw_id id;
    int mine;

    memcpy(&id, unique, sizeof id);
    id.folder[sizeof id.folder - 1] = '\0';
    if (memcmp(id.magic, id_magic, sizeof id_magic) != 0)
        return sw_fail(SYMWIN_INVALID, "%s: id was not made by symwin_unique_id_create", call);
    sw_service_lock();
    status = sw_join_fill(&join, nranks, rank, timeout_ms);
    mine = memcmp(join.process, id.maker, sizeof id.maker) == 0;
    if (status == SYMWIN_OK && mine)
        status = sw_root_join(&id, &join, out);
    sw_service_unlock();
    if (status == SYMWIN_OK && !mine)
        status = join_by_socket(&id, &join, out);
    sw_service_settle();
    return status;
}

void sw_bootstrap_forked(void)
{
    bootstrap.arrivals = NULL;
    bootstrap.named = 0;
    pthread_cond_init(&bootstrap.changed, NULL);
    sw_root_forked();
}
