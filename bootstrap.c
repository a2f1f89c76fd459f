/* How ranks find each other: every rank goes to the process that made the id (root.c), as a thread
 * or through a socket, and comes back with its process's struct sw_group.
 *
 * In a process that did not make the id, each rank goes by itself; the lowest brings the descriptors
 * home and makes the group, for which the others wait. Ranks of another host learn by TCP who they
 * all are, and then meet once more among themselves, with an id that their lowest makes.
 */
#include "bootstrap.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

symwin_status sw_random_bytes(void *out, size_t bytes, const char *for_call)
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
        const symwin_status status = sw_random_bytes(bootstrap.process, SW_NAME_BYTES, call);

        if (status != SYMWIN_OK)
            return status;
        sw_service_watch_forks();
        bootstrap.named = 1;
    }
    memcpy(name, bootstrap.process, SW_NAME_BYTES);
    return SYMWIN_OK;
}

void sw_host_name(unsigned char name[SW_NAME_BYTES])
{
    const char *given = getenv("SYMWIN_HOST_ID");
    char boot[64] = "";
    struct stat space = {0};
    struct sw_part parts[] = {{"symwin host", 11}, {boot, sizeof boot}, {&space.st_ino, 0}};
    unsigned char digest[SW_DIGEST_BYTES];
    FILE *file;

    if (given != NULL && given[0] != '\0') {
        parts[1] = (struct sw_part){given, strlen(given)};
    } else {
        file = fopen("/proc/sys/kernel/random/boot_id", "re");
        if (file != NULL) {
            if (fgets(boot, sizeof boot, file) == NULL)
                boot[0] = '\0';
            fclose(file);
        }
        /* what shares no file system cannot meet in one */
        if (stat("/proc/self/ns/mnt", &space) == 0)
            parts[2].bytes = sizeof space.st_ino;
    }
    sw_sha256(parts, 3, digest);
    memcpy(name, digest, SW_NAME_BYTES);
}

void sw_id_name(const struct sw_id *id, unsigned char name[SW_NAME_BYTES])
{
    const struct sw_part parts[] = {{"symwin name", 11}, {id->secret, sizeof id->secret}};
    unsigned char digest[SW_DIGEST_BYTES];

    sw_sha256(parts, 2, digest);
    memcpy(name, digest, SW_NAME_BYTES);
}

symwin_status sw_id_make(struct sw_id *id, const struct sw_id_options *options,
                         const char *for_call)
{
    static const struct sw_id_options none;
    symwin_status status = SYMWIN_OK;

    if (options == NULL)
        options = &none;
    memset(id, 0, sizeof *id);
    memcpy(id->magic, id_magic, sizeof id->magic);
    sw_host_name(id->host);
    if (options->secret != NULL)
        memcpy(id->secret, options->secret, sizeof id->secret);
    else
        status = sw_random_bytes(id->secret, sizeof id->secret, for_call);
    if (status != SYMWIN_OK)
        return status;
    sw_service_lock();
    status = sw_root_open(id, options);
    sw_service_unlock();
    sw_service_settle(); /* if it failed */
    return status;
}

symwin_status sw_id_far(struct sw_id *id, const struct sw_id_options *options, const char *for_call)
{
    memset(id, 0, sizeof *id);
    memcpy(id->magic, id_magic, sizeof id->magic);
    memcpy(id->secret, options->secret, sizeof id->secret);
    return sw_door_resolve(options->address, options->port, id, for_call);
}

symwin_status symwin_unique_id_create(symwin_unique_id *id)
{
    static const char own_call[] = "symwin_unique_id_create";
    const char *port = getenv("SYMWIN_PORT");
    struct sw_id_options options = {.secret = NULL};
    symwin_status status = sw_fork_check(own_call);
    struct sw_id fresh;

    if (status != SYMWIN_OK)
        return status;
    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: id is NULL", own_call);
    options.address = getenv("SYMWIN_ADDR");
    if (options.address != NULL && options.address[0] == '\0')
        options.address = NULL;
    options.port = port != NULL ? atoi(port) : 0;
    status = sw_id_make(&fresh, &options, own_call);
    if (status == SYMWIN_OK)
        memcpy(id, &fresh, sizeof fresh);
    return status;
}

symwin_status symwin_unique_id_release(const symwin_unique_id *id)
{
    symwin_status status = sw_fork_check("symwin_unique_id_release");
    struct sw_id copy;

    if (status != SYMWIN_OK)
        return status;
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
    sw_host_name(join->host);
    join->pid = (int32_t)getpid();
    if (stat("/proc/self/ns/pid", &space) == 0)
        join->pid_space = space.st_ino;
    join->header = (struct sw_wire_header){
        .magic = SW_WIRE_MAGIC, .form = SW_WIRE_FORM, .type = SW_WIRE_JOIN, .bytes = sizeof *join};
    return sw_process_name(join->process);
}

/* ---- groups ---- */

symwin_status sw_place_make(struct sw_place *place, int nranks, int processes, int hosts)
{
    int i;

    *place = (struct sw_place){
        .nranks = nranks, .processes = processes, .hosts = hosts, .page = -1};
    place->seats = calloc((size_t)nranks, sizeof *place->seats);
    place->lines = malloc((size_t)processes * sizeof *place->lines);
    place->channels = malloc((size_t)hosts * sizeof *place->channels);
    for (i = 0; i < processes && place->lines != NULL; i++)
        place->lines[i] = -1;
    for (i = 0; i < hosts && place->channels != NULL; i++)
        place->channels[i] = (struct sw_channel){.fd = -1};
    if (place->seats != NULL && place->lines != NULL && place->channels != NULL)
        return SYMWIN_OK;
    sw_place_release(place);
    return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, nranks);
}

/* Closes what may be kept. */
static void let_go(int fd)
{
    sw_service_forget(fd);
    close(fd);
}

void sw_place_release(struct sw_place *place)
{
    int i;

    for (i = 0; i < place->processes && place->lines != NULL; i++)
        if (place->lines[i] >= 0)
            let_go(place->lines[i]);
    for (i = 0; i < place->hosts && place->channels != NULL; i++)
        sw_channel_close(&place->channels[i]);
    if (place->page >= 0)
        let_go(place->page);
    free(place->seats);
    free(place->lines);
    free(place->channels);
    *place = (struct sw_place){.page = -1};
}

symwin_status sw_place_widen(struct sw_place *place, const struct sw_wire_table *table, int host)
{
    struct sw_place wide;
    symwin_status status = sw_place_make(&wide, table->nranks, table->processes, table->hosts);
    int r, mine = 0;

    if (status != SYMWIN_OK)
        return status;
    memcpy(wide.seats, table->seats, (size_t)table->nranks * sizeof *wide.seats);
    wide.host = host;
    wide.page = place->page;
    place->page = -1;
    wide.process = -1;
    for (r = 0; r < table->nranks && mine < place->nranks; r++) {
        int from;

        if (table->seats[r].host != host)
            continue;
        from = place->seats[mine++].process;
        if (from == place->process)
            wide.process = table->seats[r].process;
        if (place->lines[from] < 0)
            continue;
        wide.lines[table->seats[r].process] = place->lines[from];
        place->lines[from] = -1;
    }
    sw_place_release(place);
    *place = wide;
    return SYMWIN_OK;
}

void sw_group_free(struct sw_group *group)
{
    int p;

    sw_links_stop(group);
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
    free(group->links);
    free(group->elsewhere);
    free(group->lines);
    free(group->process_of);
    free(group->host_of);
    free(group->devices);
    free(group->reports);
    free(group);
}

/* The exchange has ended: this process's kernels must not wait any longer, and the other processes must
 * hear of it. Any thread. */
static void group_ended(void *context)
{
    struct sw_group *group = context;

    sw_group_abort_kernels(group);
    sw_group_break_lines(group);
    sw_links_end(group);
}

static int lowest_here(const struct sw_group *group)
{
    int r = 0;

    while (group->host_of[r] != group->host)
        r++;
    return r;
}

/* The line to a process has broken: it has left, or aborted, or died. On the service thread. */
static void line_broken(struct sw_watch *watch, short events)
{
    struct sw_line *line = (struct sw_line *)(void *)watch;
    struct sw_group *group = line->group;
    int r;

    (void)events;
    sw_service_remove(watch);
    for (r = 0; r < group->nranks; r++) {
        if (group->process_of[r] != line->process)
            continue;
        if (sw_exchange_has_left(group->exchange, r)) {
            sw_links_leave(group, r, -1);
        } else if (!sw_exchange_ended(group->exchange)) {
            /* Without the process that links this host with the others, no other decides for it. */
            if (r == lowest_here(group))
                sw_exchange_decide(group->exchange, SYMWIN_PEER_LOST, r);
            else
                sw_exchange_fail(group->exchange, SYMWIN_PEER_LOST, r);
        }
    }
    if (sw_exchange_ended(group->exchange))
        group_ended(group);
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
    if (status == SYMWIN_OK)
        sw_exchange_on_end(group->exchange, group_ended, group);
    if (status == SYMWIN_OK && group->hosts > 1)
        status = sw_links_start(group, place->channels);
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

/* Room for what the place says. */
static symwin_status group_fill(struct sw_group *group, const struct sw_place *place)
{
    int p, r;

    group->nranks = place->nranks;
    group->process = place->process;
    group->processes = place->processes;
    group->host = place->host;
    group->hosts = place->hosts;
    group->reports = calloc((size_t)place->nranks, sizeof *group->reports);
    group->process_of = calloc((size_t)place->nranks, sizeof *group->process_of);
    group->host_of = calloc((size_t)place->nranks, sizeof *group->host_of);
    group->lines = calloc((size_t)place->processes, sizeof *group->lines);
    for (p = 0; p < place->processes && group->lines != NULL; p++)
        group->lines[p].watch.fd = -1;
    if (group->reports == NULL || group->process_of == NULL || group->host_of == NULL ||
        group->lines == NULL || (group->hosts > 1 && !sw_links_create(group)))
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, place->nranks);
    group->leader = place->nranks;
    for (r = 0; r < place->nranks; r++) {
        group->process_of[r] = place->seats[r].process;
        group->host_of[r] = place->seats[r].host;
        if (group->process_of[r] != place->process)
            continue;
        group->nlocal++;
        if (r < group->leader)
            group->leader = r;
    }
    atomic_init(&group->refs, group->nlocal);
    return SYMWIN_OK;
}

symwin_status sw_group_create(struct sw_place *place, struct sw_group **out)
{
    struct sw_group *group = calloc(1, sizeof *group);
    symwin_status status;

    if (group == NULL || pthread_mutex_init(&group->mutex, NULL) != 0) {
        free(group);
        sw_place_release(place);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, place->nranks);
    }
    status = group_fill(group, place);
    if (status == SYMWIN_OK)
        status = group_connect(group, place);
    sw_place_release(place);
    if (status == SYMWIN_OK)
        *out = group;
    else
        sw_group_free(group);
    return status;
}

void sw_bootstrap_leave(struct sw_group *group, int rank)
{
    sw_exchange_leave(group->exchange, rank);
    sw_links_leave(group, rank, -1);
    if (atomic_fetch_sub(&group->refs, 1) != 1)
        return;
    sw_service_lock();
    sw_group_free(group);
    sw_service_unlock();
    sw_service_settle();
}

/* ---- the way to the maker of the id ---- */

/* A socket that no forked child will hold; -1: errno says why there is none. */
static int socket_keep(int family, int type)
{
    int fd, error;

    sw_service_lock();
    fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    error = errno;
    sw_service_keep(fd);
    sw_service_unlock();
    errno = error;
    return fd;
}

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

/* Connects to the maker's socket in its folder. SYMWIN_PEER_LOST: there is none any more. */
static symwin_status connect_here(const struct sw_id *id, int64_t deadline, int *out)
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
                       "%s: the process that made the id has ended, or is on another host and was "
                       "not given SYMWIN_ADDR (%s: %s)",
                       call, id->folder, strerror(errno));
    if (!S_ISDIR(folder.st_mode) || folder.st_uid != geteuid() || (folder.st_mode & 077) != 0)
        return sw_fail(SYMWIN_DENIED,
                       "%s: %s is not this user's private folder; all ranks must run as "
                       "one user",
                       call, id->folder);
    memcpy(address.sun_path, id->folder, sizeof id->folder);
    strcat(address.sun_path, SW_SOCKET_NAME);
    fd = socket_keep(AF_UNIX, SOCK_SEQPACKET);
    if (fd < 0)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: socket: %s; raise ulimit -n", call, strerror(errno));
    error = connect_by(fd, &address, deadline);
    if (error != 0) {
        let_go(fd);
        if (error == ETIMEDOUT)
            return sw_fail(SYMWIN_TIMEOUT,
                           "%s: the process that made the id did not answer in time", call);
        return sw_fail(error == EACCES ? SYMWIN_DENIED : SYMWIN_PEER_LOST,
                       "%s: the process that made the id does not answer (%s: %s)", call,
                       address.sun_path, strerror(error));
    }
    if (!sw_wire_same_user(fd, &pid)) {
        let_go(fd);
        return sw_fail(SYMWIN_DENIED, "%s: the process at %s is not this user's", call,
                       address.sun_path);
    }
    *out = fd;
    return SYMWIN_OK;
}

/* One try. 0, or an errno. */
static int connect_tcp(const struct sw_id *id, int64_t deadline, int *out)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = id->port};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = id->port};
    const int fd = socket_keep(id->family, SOCK_STREAM);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t bytes = sizeof(int);
    const int yes = 1;
    int error = 0;

    if (fd < 0)
        return errno;
    memcpy(&v4.sin_addr, id->address, sizeof v4.sin_addr);
    memcpy(&v6.sin6_addr, id->address, sizeof v6.sin6_addr);
    if ((id->family == AF_INET ? connect(fd, (struct sockaddr *)&v4, sizeof v4)
                               : connect(fd, (struct sockaddr *)&v6, sizeof v6)) != 0)
        error = errno;
    while (error == EINPROGRESS || error == EINTR) {
        const int64_t left = deadline - sw_now_ms();
        const int found = left <= 0 ? 0 : poll(&p, 1, left > 1000 ? 1000 : (int)left);

        if (found > 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
        else if (left <= 0)
            error = ETIMEDOUT;
    }
    if (error != 0) {
        let_go(fd);
        return error;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    *out = fd;
    return 0;
}

/* The maker may still be on its way. */
static symwin_status connect_far(const struct sw_id *id, int64_t deadline, int *out)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    int error;

    while ((error = connect_tcp(id, deadline, out)) != 0 && error != EMFILE && error != ENFILE &&
           sw_now_ms() < deadline)
        nanosleep(&moment, NULL);
    if (error == EMFILE || error == ENFILE)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: socket: %s; raise ulimit -n", call, strerror(error));
    if (error != 0)
        return sw_fail(SYMWIN_TIMEOUT,
                       "%s: the process that made the id cannot be reached over the network: %s; "
                       "SYMWIN_ADDR there must be an address that all hosts reach",
                       call, strerror(error));
    return SYMWIN_OK;
}

/* Connects to the maker, on this host where it is. */
static symwin_status connect_to(const struct sw_id *id, int64_t deadline,
                                struct sw_channel *channel)
{
    unsigned char host[SW_NAME_BYTES];
    symwin_status status;
    int far = 0;
    int fd = -1;

    sw_host_name(host);
    if (id->family != 0)
        far = memcmp(host, id->host, sizeof host) != 0 || id->folder[0] == '\0';
    status = far ? connect_far(id, deadline, &fd) : connect_here(id, deadline, &fd);
    if (status == SYMWIN_OK && sw_channel_open(channel, fd, far) != 0) {
        let_go(fd);
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    return status;
}

/* Receives a frame; its descriptor, if there may be one, is kept from the moment that it is here. */
static int receive(struct sw_channel *channel, union sw_wire_frame *frame, int *fd,
                   int64_t deadline)
{
    int error;

    if (fd == NULL)
        return sw_channel_receive(channel, frame, NULL, deadline);
    do {
        sw_service_lock();
        error = sw_channel_receive_now(channel, frame, fd);
        if (error == 0)
            sw_service_keep(*fd);
        sw_service_unlock();
    } while (error == EAGAIN && (error = sw_wire_wait(channel->fd, POLLIN, deadline)) == 0);
    return error;
}

/* The next frame from the maker, which must be of that type. A descriptor that comes along is kept. */
static symwin_status expect(struct sw_channel *channel, union sw_wire_frame *frame,
                            enum sw_wire_type type, int *fd, int64_t deadline)
{
    const int error = receive(channel, frame, fd, deadline);

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
        if (!sw_wire_is_theirs(error))
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no word from the process that made the id: %s",
                           call, strerror(error));
        return sw_fail(SYMWIN_DENIED, "%s: what answers is not the process that made the id (%s)",
                       call, strerror(error));
    }
    if (frame->header.type == type ||
        (type == SW_WIRE_TABLE && frame->header.type == SW_WIRE_HERE && channel->stream))
        return SYMWIN_OK;
    if (fd != NULL && *fd >= 0) {
        let_go(*fd);
        *fd = -1;
    }
    if (frame->header.type == SW_WIRE_REFUSAL)
        return sw_fail((symwin_status)frame->refusal.status, "%s", frame->refusal.text);
    return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent frame %d where %d was due",
                   call, frame->header.type, (int)type);
}

/* Sends a frame to the maker. Where it is gone there will be no answer, or its last word is still to be
 * read. */
static symwin_status speak(struct sw_channel *channel, const union sw_wire_frame *frame,
                           int64_t deadline)
{
    const int error = sw_channel_send(channel, frame, -1, deadline);

    if (error == 0 || (sw_wire_is_theirs(error) && error != ETIMEDOUT))
        return SYMWIN_OK;
    return sw_fail(error == ETIMEDOUT ? SYMWIN_TIMEOUT : SYMWIN_NO_MEMORY,
                   "%s: no word to the process that made the id: %s", call, strerror(error));
}

/* Says which id it is about, and makes sure that the other knows its secret. */
static symwin_status greet(struct sw_channel *channel, const struct sw_id *id,
                           union sw_wire_frame *hello, union sw_wire_frame *challenge,
                           int64_t deadline)
{
    unsigned char proof[SW_DIGEST_BYTES];
    symwin_status status;

    memset(hello, 0, sizeof hello->hello);
    sw_id_name(id, hello->hello.name);
    status = sw_random_bytes(hello->hello.nonce, sizeof hello->hello.nonce, call);
    if (status != SYMWIN_OK)
        return status;
    sw_wire_seal(hello, SW_WIRE_HELLO);
    status = speak(channel, hello, deadline);
    if (status == SYMWIN_OK)
        status = expect(channel, challenge, SW_WIRE_CHALLENGE, NULL, deadline);
    if (status != SYMWIN_OK)
        return status;
    sw_wire_prove_maker(id->secret, &hello->hello, &challenge->challenge, proof);
    if (!sw_digest_equal(proof, challenge->challenge.proof))
        return sw_fail(SYMWIN_DENIED, "%s: the process at %s does not know the id's secret", call,
                       id->folder);
    return SYMWIN_OK;
}

/* Takes a seat: proves that it knows the secret too, and waits until all have come. `frame` has the maker's
 * last word, if there was one. */
static symwin_status introduce(struct sw_channel *channel, const struct sw_id *id,
                               struct sw_wire_join *join, union sw_wire_frame *frame,
                               int64_t deadline)
{
    union sw_wire_frame hello;
    symwin_status status;

    frame->header.type = 0;
    status = greet(channel, id, &hello, frame, deadline);
    if (status != SYMWIN_OK)
        return status;
    sw_wire_prove_rank(id->secret, &hello.hello, &frame->challenge, join, join->proof);
    status = speak(channel, (union sw_wire_frame *)(void *)join, deadline);
    sw_channel_key(channel, 0, id->secret, &hello.hello, &frame->challenge);
    return status == SYMWIN_OK ? expect(channel, frame, SW_WIRE_TABLE, NULL, deadline) : status;
}

int sw_id_is_open(const struct sw_id *id, int64_t deadline)
{
    union sw_wire_frame hello, challenge;
    struct sw_channel channel;
    int open;

    if (memcmp(id->magic, id_magic, sizeof id_magic) != 0 ||
        memchr(id->folder, 0, sizeof id->folder) == NULL ||
        connect_to(id, deadline, &channel) != SYMWIN_OK)
        return 0;
    open = greet(&channel, id, &hello, &challenge, deadline) == SYMWIN_OK;
    sw_channel_close(&channel);
    return open;
}

/* Whether the rank is the lowest of its process, and how many others that has. */
static int leads(const struct sw_wire_table *table, int rank, int *mates)
{
    int lowest = table->nranks;
    int r;

    *mates = 0;
    for (r = table->nranks - 1; r >= 0; r--)
        if (table->seats[r].process == table->seats[rank].process) {
            lowest = r;
            *mates += r != rank;
        }
    return lowest == rank;
}

/* How many processes of the rank's host there are beside its own. */
static int neighbours(const struct sw_place *place, int rank)
{
    int count = 0;
    int r, q;

    for (r = 0; r < place->nranks; r++) {
        if (place->seats[r].host != place->seats[rank].host ||
            place->seats[r].process == place->seats[rank].process)
            continue;
        for (q = 0; q < r && place->seats[q].process != place->seats[r].process; q++)
            ;
        count += q == r;
    }
    return count;
}

static symwin_status wrong(const char *what, int fd)
{
    if (fd >= 0)
        let_go(fd);
    return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong %s", call, what);
}

static symwin_status take_link(struct sw_place *place, const struct sw_wire_link *link, int fd)
{
    struct sw_channel *channel = &place->channels[link->host];

    if (sw_channel_open(channel, fd, 1) != 0) {
        let_go(fd);
        *channel = (struct sw_channel){.fd = -1};
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    channel->keyed = 1;
    channel->maker = 1;
    channel->sent = link->sent;
    channel->received = link->received;
    memcpy(channel->key, link->key, sizeof channel->key);
    return SYMWIN_OK;
}

/* The descriptors, for the lowest rank of a process; links for the lowest of the host. */
static symwin_status collect(struct sw_channel *channel, struct sw_place *place, int rank,
                             union sw_wire_frame *frame, int *maker, int64_t deadline)
{
    symwin_status status;
    int fd = -1;
    int i, r;

    status = expect(channel, frame, SW_WIRE_PAGE, &place->page, deadline);
    *maker = status == SYMWIN_OK ? frame->pass.process : -1;
    for (i = neighbours(place, rank); i > 0 && status == SYMWIN_OK; i--) {
        status = expect(channel, frame, SW_WIRE_LINE, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (fd < 0 || frame->pass.process >= place->processes ||
            frame->pass.process == place->process || place->lines[frame->pass.process] >= 0)
            return wrong("line", fd);
        place->lines[frame->pass.process] = fd;
    }
    for (r = 0; r < rank && place->seats[r].host != place->host; r++)
        ;
    for (i = r == rank ? place->hosts - 1 : 0; i > 0 && status == SYMWIN_OK; i--) {
        status = expect(channel, frame, SW_WIRE_LINK, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (fd < 0 || frame->link.host >= place->hosts || place->channels[frame->link.host].fd >= 0)
            return wrong("link", fd);
        status = take_link(place, &frame->link, fd);
    }
    return status;
}

/* Makes the group of what comes. `wide`: this was a meeting of one host's ranks, and that is the table of
 * all. */
static symwin_status settle_in(struct sw_channel *channel, const struct sw_wire_table *table,
                               int rank, const struct sw_wire_table *wide, int host,
                               union sw_wire_frame *frame, int *maker, int64_t deadline,
                               struct sw_group **out)
{
    struct sw_place place;
    symwin_status status = sw_place_make(&place, table->nranks, table->processes, table->hosts);
    int p;

    if (status != SYMWIN_OK)
        return status;
    memcpy(place.seats, table->seats, (size_t)table->nranks * sizeof *place.seats);
    place.process = table->seats[rank].process;
    status = collect(channel, &place, rank, frame, maker, deadline);
    if (status == SYMWIN_OK && wide != NULL)
        status = sw_place_widen(&place, wide, host);
    if (status != SYMWIN_OK) {
        sw_place_release(&place);
        return status;
    }
    sw_service_lock();
    for (p = 0; p < place.processes; p++)
        sw_service_forget(place.lines[p]); /* they are watched from now on */
    sw_service_forget(place.page);
    status = sw_group_create(&place, out);
    sw_service_unlock();
    return status;
}

/* The number of a host's rank among all. */
static int rank_of_all(const struct sw_wire_table *wide, int host, int rank)
{
    int r = 0;

    while (wide->seats[r].host != host || rank-- > 0)
        r++;
    return r;
}

/* Tells the maker that this process is ready, or why it is not; the others hear it from the maker. */
static symwin_status report(struct sw_channel *channel, int rank, symwin_status status,
                            int64_t deadline)
{
    union sw_wire_frame frame;
    char who[32];

    memset(&frame, 0, sizeof frame.refusal);
    if (status == SYMWIN_OK) {
        sw_wire_seal(&frame, SW_WIRE_READY);
        return speak(channel, &frame, deadline);
    }
    snprintf(who, sizeof who, "rank %d: ", rank);
    sw_fail_in(status, call, who);
    frame.refusal.status = (int32_t)status;
    snprintf(frame.refusal.text, sizeof frame.refusal.text, "%s", symwin_last_error());
    sw_wire_seal(&frame, SW_WIRE_REFUSAL);
    sw_channel_send(channel, &frame, -1, deadline); /* it may be what does not work */
    return status;
}

/* The lowest rank of the process that made the id; -1: it has none. */
static int lowest_of_maker(const struct sw_wire_table *table, const struct sw_wire_table *wide,
                           int host, int maker)
{
    int r = 0;

    while (r < table->nranks && table->seats[r].process != maker)
        r++;
    if (r == table->nranks)
        return -1;
    return wide == NULL ? r : rank_of_all(wide, host, r);
}

/* This process shall not go, and does not know whether others do: they learn of it from the page. `maker` is
 * a rank, -1: none. */
static symwin_status give_up(struct sw_group *group, symwin_status status, int maker)
{
    const int makers = status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT;

    sw_exchange_fail(group->exchange, status, makers && maker >= 0 ? maker : group->leader);
    if (!makers)
        return sw_exchange_status(group->exchange, call);
    /* The page may have the end of a process that left for the same reason. */
    if (maker >= 0)
        sw_fail(status, "%s: rank %d, whose process made the id, %s", call, maker,
                status == SYMWIN_TIMEOUT ? "did not answer in time"
                                         : "ended before all ranks could go");
    return status;
}

/* The lowest rank of a process makes the group. */
static symwin_status bring_home(struct sw_channel *channel, const struct sw_wire_table *table,
                                int rank, const struct sw_wire_table *wide, int host,
                                int64_t deadline, struct sw_group **out)
{
    union sw_wire_frame frame = {.header = {.type = 0}};
    const int own = wide == NULL ? rank : rank_of_all(wide, host, rank);
    struct sw_group *group = NULL;
    symwin_status status;
    int maker = -1;

    status = settle_in(channel, table, rank, wide, host, &frame, &maker, deadline, &group);
    if (frame.header.type != SW_WIRE_REFUSAL && status != SYMWIN_PEER_LOST)
        status = report(channel, own, status, deadline);
    if (status == SYMWIN_OK)
        status = expect(channel, &frame, SW_WIRE_GO, NULL, deadline);
    if (status == SYMWIN_OK) {
        *out = group;
    } else if (group != NULL) {
        if (frame.header.type != SW_WIRE_REFUSAL)
            status = give_up(group, status, lowest_of_maker(table, wide, host, maker));
        sw_service_lock();
        sw_group_free(group);
        sw_service_unlock();
    }
    return status;
}

/* ---- ranks of one process that did not make the id ---- */

/* Leaves the outcome for the other ranks of this process, in `a`, which it takes over. */
static void announce(struct arrival *a, const struct sw_id *id, int mates, symwin_status status,
                     struct sw_group *group)
{
    if (mates == 0) {
        free(a);
        return;
    }
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

/* Whether to come again. The maker of an id that was not passed on, but is the same for all by a shared
 * secret, may have come to its door and not yet to this id. And whom a maker drops without a word it had
 * no room for: one of this host that has ended cannot be connected to. */
static int is_worth_a_try(const struct sw_id *id, symwin_status status,
                          const struct sw_channel *channel, const union sw_wire_frame *last)
{
    static const unsigned char unknown[SW_NAME_BYTES];

    if (status == SYMWIN_INVALID)
        return memcmp(id->maker, unknown, sizeof unknown) == 0;
    return status == SYMWIN_PEER_LOST && channel->fd >= 0 && !channel->stream &&
           last->header.type != SW_WIRE_REFUSAL;
}

/* Connects and introduces itself. */
static symwin_status knock(const struct sw_id *id, struct sw_wire_join *join, int64_t deadline,
                           struct sw_channel *channel, union sw_wire_frame *frame)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    char text[SW_TEXT_BYTES];
    symwin_status status;

    memcpy(text, symwin_last_error(), sizeof text);
    for (;;) {
        *channel = (struct sw_channel){.fd = -1};
        status = connect_to(id, deadline, channel);
        if (status == SYMWIN_OK)
            status = introduce(channel, id, join, frame, deadline);
        if (status == SYMWIN_OK)
            break;
        if (!is_worth_a_try(id, status, channel, frame) || sw_now_ms() >= deadline)
            return status;
        sw_channel_close(channel);
        nanosleep(&moment, NULL);
    }
    sw_error_restore(text);
    return SYMWIN_OK;
}

static symwin_status join_wide(const struct sw_id *id, struct sw_wire_join *join,
                               const struct sw_wire_table *wide, int host, struct sw_group **out);

/* This host's ranks meet among themselves: the lowest makes an id and writes it down for the others. */
static symwin_status meet_here(const struct sw_id *id, const struct sw_wire_join *join,
                               const struct sw_wire_table *table, struct sw_channel *channel,
                               struct sw_group **out)
{
    const int host = table->seats[join->rank].host;
    const struct sw_part parts[] = {{id->secret, sizeof id->secret}, {&host, sizeof host}};
    const struct sw_id_options options = {
        .file = NULL, .table = table, .host = host, .channel = channel};
    struct sw_id_options written = options;
    char name[SW_FILE_NAME_BYTES];
    struct sw_wire_join mine;
    struct sw_id local;
    symwin_status status;
    int rank = 0, nranks = 0, r;

    for (r = 0; r < table->nranks; r++) {
        rank += table->seats[r].host == host && r < join->rank;
        nranks += table->seats[r].host == host;
    }
    status = sw_id_file(parts, 2, call, name);
    if (status != SYMWIN_OK)
        return status;
    if (rank == 0) {
        written.file = name;
        status = sw_id_make(&local, &written, call);
        if (status == SYMWIN_OK)
            status = sw_id_write(name, &local, call);
    } else if (!sw_id_read(name, &local, sw_now_ms() + join->timeout_ms)) {
        for (r = 0; table->seats[r].host != host; r++)
            ;
        status = sw_fail(
            SYMWIN_TIMEOUT,
            "%s: rank %d, the lowest on this host, did not come within %d ms to where the "
            "host's ranks meet; they need the same TMPDIR",
            call, r, join->timeout_ms);
    }
    if (status != SYMWIN_OK)
        return status;
    sw_service_lock();
    status = sw_join_fill(&mine, nranks, rank, join->timeout_ms);
    sw_service_unlock();
    mine.posts = table->nranks;
    return status == SYMWIN_OK ? join_wide(&local, &mine, table, host, out) : status;
}

/* Through the maker's socket. */
static symwin_status join_by_socket(const struct sw_id *id, struct sw_wire_join *join,
                                    const struct sw_wire_table *wide, int host,
                                    struct sw_group **out)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms + GRACE_MS;
    /* Here, because the lowest rank could not tell the others that there is no memory to tell them. */
    struct arrival *arrival = calloc(1, sizeof *arrival);
    struct sw_channel channel = {.fd = -1};
    union sw_wire_frame frame;
    struct sw_wire_table table;
    symwin_status status;
    int mates = 0;

    if (arrival == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to join", call);
    status = knock(id, join, deadline, &channel, &frame);
    if (status == SYMWIN_OK && frame.header.type == SW_WIRE_HERE) {
        struct sw_id local = *id;

        sw_channel_close(&channel);
        free(arrival);
        memcpy(local.folder, frame.here.folder, sizeof local.folder);
        local.folder[sizeof local.folder - 1] = '\0';
        local.family = 0; /* not over the network again */
        return join_by_socket(&local, join, wide, host, out);
    }
    if (status == SYMWIN_OK && frame.table.nranks != join->nranks)
        status = sw_fail(SYMWIN_DENIED, "%s: the process that made the id counts %d ranks, not %d",
                         call, frame.table.nranks, join->nranks);
    if (status == SYMWIN_OK) {
        int lowest = 0;

        table = frame.table;
        while (table.seats[lowest].host != table.seats[join->rank].host)
            lowest++;
        if (channel.stream && lowest == join->rank)
            status = expect(&channel, &frame, SW_WIRE_GO, NULL, deadline);
        if (status == SYMWIN_OK && channel.stream) {
            status = meet_here(id, join, &table, lowest == join->rank ? &channel : NULL, out);
        } else if (status == SYMWIN_OK && leads(&table, join->rank, &mates)) {
            status = bring_home(&channel, &table, join->rank, wide, host, deadline, out);
            announce(arrival, id, mates, status, status == SYMWIN_OK ? *out : NULL);
            arrival = NULL;
        } else if (status == SYMWIN_OK) {
            status = await(id, deadline + GRACE_MS, out);
        }
    }
    sw_channel_close(&channel);
    free(arrival);
    return status;
}

static symwin_status join_wide(const struct sw_id *id, struct sw_wire_join *join,
                               const struct sw_wire_table *wide, int host, struct sw_group **out)
{
    symwin_status status = SYMWIN_OK;
    int mine;

    sw_service_lock();
    mine = memcmp(join->process, id->maker, sizeof id->maker) == 0;
    if (mine)
        status = sw_root_join(id, join, out);
    sw_service_unlock();
    return mine ? status : join_by_socket(id, join, wide, host, out);
}

symwin_status sw_bootstrap_join(const symwin_unique_id *unique, int nranks, int rank,
                                int timeout_ms, struct sw_group **out)
{
    struct sw_wire_join join;
    symwin_status status;
    struct sw_id id;

    memcpy(&id, unique, sizeof id);
    id.folder[sizeof id.folder - 1] = '\0';
    if (memcmp(id.magic, id_magic, sizeof id_magic) != 0)
        return sw_fail(SYMWIN_INVALID, "%s: id was not made by symwin_unique_id_create", call);
    sw_service_lock();
    status = sw_join_fill(&join, nranks, rank, timeout_ms);
    sw_service_unlock();
    if (status == SYMWIN_OK)
        status = join_wide(&id, &join, NULL, 0, out);
    if (status != SYMWIN_OK)
        sw_fail_in(status, call, ""); /* what failed may not know in which call it was */
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
