/* The socket through which symwin-info --pid gets the dump of this process. It lies in a private
 * folder of the user.
 *
 * A separate thread serves it, because a dump waits for mutexes and the poll thread must not. At
 * most MOST_READERS are served at a time. Each has its own text and a deadline, so a reader that
 * does not read delays nobody. A forked child has neither the thread nor its descriptors, and does
 * not touch the socket.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "src/bootstrap/bootstrap.h"
#include "src/inspect/inspect.h"

enum {
    MOST_READERS = 8, /* served at a time; others wait in the socket's queue */
    READER_MS = 5000, /* for a reader to take the whole text */
    PAUSE_MS = 100,   /* before the next accept, after one failed for lack of descriptors */
    FOLDER_MS = 1000, /* to find this user's folder among other users' entries */
    LOCK_MS = 100,    /* for another process that holds the lock of the folder */
    LEAVE_MS = 2000   /* for the thread to end when the process does */
};

#define NAME "info-" /* the process id follows */
#define DRAFT ".new" /* suffix until the socket listens */
#define NAME_ROOM 24 /* bytes for all of these and the slash */
#define OVER (-1)

struct reader {
    int fd;     /* owned, in the close-on-fork set; -1: none */
    char *text; /* owned */
    size_t sent, bytes;
    int64_t deadline;
};

static struct {
    atomic_int owner; /* process id; 0: the thread has not started, OVER: the process ends */
    pthread_t thread;
    int socket, kick; /* owned, in the close-on-fork set; `kick` ends the thread */
    int is_shut;      /* the system keeps senders from passing descriptors */
    uid_t user;
    int64_t pause; /* no accept before this time */
    struct sockaddr_un address;
    struct reader readers[MOST_READERS];
} listener = {.socket = -1, .kick = -1};

int sw_info_socket_address(int which, int make, pid_t pid, struct sockaddr_un *address)
{
    char *path = address->sun_path;
    size_t length;

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!sw_temp_path(which, "", path, sizeof address->sun_path - NAME_ROOM) || path[0] != '/' ||
        sw_own_folder(which, make, path, sizeof address->sun_path - NAME_ROOM,
                      sw_now_ms() + FOLDER_MS) <= 0)
        return 0;
    length = strlen(path);
    snprintf(path + length, sizeof address->sun_path - length, "/" NAME "%ld", (long)pid);
    return 1;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        sw_fork_set_close(*fd);
    *fd = -1;
}

static int new_socket(void)
{
    int fd;

    sw_poll_lock();
    fd = sw_fork_set_add_new(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sw_poll_unlock();
    return fd;
}

/* ---- readers --------------------------------------------------------------------------------- */

/* Unless the socket is shut, a reader may have sent descriptors whose close takes long. */
static void reader_drop(struct reader *r)
{
    if (listener.is_shut)
        sw_fork_set_close(r->fd);
    else
        sw_closer_close(r->fd);
    free(r->text);
    *r = (struct reader){.fd = -1};
}

static void reader_send(struct reader *r)
{
    const ssize_t sent = send(r->fd, r->text + r->sent, r->bytes - r->sent,
                              MSG_NOSIGNAL | MSG_DONTWAIT);

    if (sent >= 0)
        r->sent += (size_t)sent;
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        r->sent = r->bytes; /* the reader is gone */
    if (r->sent == r->bytes)
        reader_drop(r);
}

/* The folder keeps other users out already, but not root. */
static int is_own(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == listener.user;
}

static void reader_accept(struct reader *r)
{
    int error;

    sw_poll_lock();
    r->fd = sw_fork_set_add_new(accept4(listener.socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    error = errno;
    sw_poll_unlock();
    if (r->fd < 0) {
        if (error != EAGAIN && error != EINTR && error != ECONNABORTED)
            listener.pause = sw_now_ms() + PAUSE_MS;
    } else if (is_own(r->fd) && sw_dump_text("symwin_dump", &r->text, &r->bytes) == SYMWIN_OK) {
        r->deadline = sw_now_ms() + READER_MS;
        reader_send(r);
    } else {
        reader_drop(r);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* One turn of the loop. 0: the thread must end. */
static int turn(void)
{
    const int64_t now = sw_now_ms();
    struct pollfd polls[2 + MOST_READERS] = {{.fd = listener.kick, .events = POLLIN}, {.fd = -1}};
    int64_t until = INT64_MAX;
    struct reader *idle = NULL;
    int i;

    for (i = 0; i < MOST_READERS; i++) {
        struct reader *r = &listener.readers[i];

        if (r->fd >= 0 && r->deadline <= now)
            reader_drop(r);
        polls[2 + i] = (struct pollfd){.fd = r->fd, .events = POLLOUT};
        if (r->fd < 0)
            idle = r;
        else if (r->deadline < until)
            until = r->deadline;
    }
    if (listener.pause > now)
        until = listener.pause < until ? listener.pause : until;
    else if (idle != NULL)
        polls[1] = (struct pollfd){.fd = listener.socket, .events = POLLIN};
    if (poll(polls, 2 + MOST_READERS, until == INT64_MAX ? -1 : (int)(until - now)) < 0) {
        const struct timespec moment = {.tv_nsec = 10000000};

        if (errno != EINTR)
            nanosleep(&moment, NULL); /* it would fail again immediately */
        return 1;
    }
    for (i = 0; i < MOST_READERS; i++)
        if (polls[2 + i].revents != 0)
            reader_send(&listener.readers[i]);
    if (polls[1].revents != 0)
        reader_accept(idle);
    return polls[0].revents == 0;
}

/* Whether no process listens at this socket any more. */
static int is_stale(const struct sockaddr_un *address)
{
    int fd = new_socket();
    const int stale = fd >= 0 &&
                      connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 &&
                      errno == ECONNREFUSED;

    if (fd >= 0)
        sw_fork_set_close(fd);
    return stale;
}

/* Locks the folder: sockets get and lose their names under this lock, because a process that reuses
 * a process id may take a name that is being removed. Holders keep it briefly; a holder that was
 * stopped is not waited for. 0: another process has it. */
static int lock_folder(int folder)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    int tries;

    for (tries = 0; tries < LOCK_MS; tries++) {
        if (flock(folder, LOCK_EX | LOCK_NB) == 0)
            return 1;
        nanosleep(&moment, NULL);
    }
    return 0;
}

/* The folder of the socket, in the close-on-fork set; -1: none. */
static int open_folder(const struct sockaddr_un *address)
{
    char path[sizeof address->sun_path];
    int fd;

    snprintf(path, sizeof path, "%.*s", (int)(strrchr(address->sun_path, '/') - address->sun_path),
             address->sun_path);
    sw_poll_lock();
    fd = sw_fork_set_add_new(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    sw_poll_unlock();
    return fd;
}

/* Removes sockets of killed processes. A process id that is not visible here may belong to another
 * container, so is_stale() tries to connect. */
static void sweep(void)
{
    struct sockaddr_un address = listener.address;
    const size_t folder = (size_t)(strrchr(address.sun_path, '/') - address.sun_path);
    const int fd = open_folder(&address);
    struct dirent *entry;
    DIR *entries = fd >= 0 && lock_folder(fd) ? fdopendir(fd) : NULL;

    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        char *end = NULL;
        long pid = 0;

        if (strncmp(entry->d_name, NAME, sizeof NAME - 1) == 0)
            pid = strtol(entry->d_name + sizeof NAME - 1, &end, 10);
        if (pid <= 0 || *end != '\0' || strlen(entry->d_name) >= NAME_ROOM - 1 ||
            kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        snprintf(address.sun_path + folder, sizeof address.sun_path - folder, "/%.*s",
                 NAME_ROOM - 2, entry->d_name);
        if (is_stale(&address))
            unlink(address.sun_path);
    }
    sw_poll_lock();
    sw_fork_set_remove(fd);
    if (entries != NULL)
        closedir(entries);
    else if (fd >= 0)
        close(fd);
    sw_poll_unlock();
}

static void *serve(void *arg)
{
    int i;

    (void)arg;
    pthread_setname_np(pthread_self(), "symwin-info");
    symwin_last_error(); /* allocates its thread-local text now, not during unloading */
    sweep();
    while (turn())
        ;
    for (i = 0; i < MOST_READERS; i++)
        if (listener.readers[i].fd >= 0)
            reader_drop(&listener.readers[i]);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* The socket gets its name once it listens, so whatever has the name accepts connections. */
static int open_socket(void)
{
    struct sockaddr_un draft = listener.address;

    strcat(draft.sun_path, DRAFT);
    listener.socket = new_socket();
    unlink(draft.sun_path);
    if (listener.socket >= 0)
        listener.is_shut = sw_socket_take_descriptors(listener.socket, 0);
    if (listener.socket >= 0 &&
        bind(listener.socket, (struct sockaddr *)&draft, sizeof draft) == 0) {
        if (listen(listener.socket, MOST_READERS) == 0 &&
            rename(draft.sun_path, listener.address.sun_path) == 0)
            return 1;
        unlink(draft.sun_path);
    }
    close_fd(&listener.socket);
    return 0;
}

static int open_in(int which)
{
    int folder, opened;

    if (!sw_info_socket_address(which, 1, getpid(), &listener.address))
        return 0;
    folder = open_folder(&listener.address);
    if (folder >= 0)
        (void)lock_folder(folder);
    opened = open_socket();
    if (folder >= 0)
        sw_fork_set_close(folder);
    return opened;
}

/* The thread may be waiting for a mutex that is never unlocked once the process ends: then it is
 * not joined. This polls because ThreadSanitizer does not know pthread_clockjoin_np(). */
static void stop(void)
{
    const struct timespec nap = {.tv_nsec = 100000};
    const int64_t until = sw_now_ms() + LEAVE_MS;
    const uint64_t one = 1;

    unlink(listener.address.sun_path);
    if (write(listener.kick, &one, sizeof one) < 0)
        return;
    while (pthread_tryjoin_np(listener.thread, NULL) != 0) {
        if (sw_now_ms() > until)
            return;
        nanosleep(&nap, NULL);
    }
    close_fd(&listener.socket);
    close_fd(&listener.kick);
}

/* If it fails, nothing is reported: the process works without it. */
static void start(void)
{
    int nobody = 0;
    int which, i;

    if (!sw_setting(SW_SETTING_INFO))
        return;
    for (i = 0; i < MOST_READERS; i++)
        listener.readers[i].fd = -1;
    listener.user = geteuid();
    sw_poll_lock();
    listener.kick = sw_fork_set_add_new(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    sw_poll_unlock();
    for (which = 0; which < SW_TEMP_FOLDERS && listener.kick >= 0; which++)
        if (open_in(which))
            break;
    if (listener.socket < 0 || !sw_thread_begin(&listener.thread, serve, NULL)) {
        if (listener.socket >= 0)
            unlink(listener.address.sun_path);
        close_fd(&listener.socket);
        close_fd(&listener.kick);
    } else if (!atomic_compare_exchange_strong(&listener.owner, &nobody, (int)getpid())) {
        stop(); /* process_ends() has run on another thread */
    }
}

/* Of the processes that a launcher started on this host, only the first prints the message. */
static int speaks_for_host(void)
{
    struct sw_launch launch;

    if (sw_launch_is_none() || sw_launch_read("symwin", &launch) != SYMWIN_OK)
        return 1;
    return (launch.local_rank >= 0 ? launch.local_rank : launch.rank) == 0;
}

void sw_hook_driver_loaded(const char *no_gpu)
{
    if (no_gpu != NULL && speaks_for_host())
        fprintf(stderr, "symwin: no GPU here, running on the emulated driver: %s\n", no_gpu);
    start();
}

__attribute__((destructor)) static void process_ends(void)
{
    if (atomic_exchange(&listener.owner, OVER) == (int)getpid())
        stop();
}
