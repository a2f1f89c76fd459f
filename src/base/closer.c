/* Closes unwanted descriptors that other processes sent. The sender decides how long it takes.
 *
 * The last close of a socket waits until its data is delivered, if anybody who shares it has asked
 * for that (SO_LINGER), so this is switched off first. It also closes what lies in the socket's
 * queues, so that is taken out, and closed in the same way. The last close of a file waits for the
 * server of its file system. So a separate thread closes them. It runs only while it has
 * descriptors, and holds no lock during close(), so nobody waits for it. Any number can wait: each
 * has a bit.
 *
 * A forked child closes what waits, but no sockets: the parent's thread may close first, and then
 * the child's would be the last close. They stay open in the child, are close-on-exec, and the end
 * of a process does not linger. Files are in the close-on-fork set until their close begins; then
 * the number is free, and a fork waits for that moment.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "src/base/base.h"

enum {
    WORD_BITS = 64,
    TURNS = 1000,   /* polls of a fork for a close in progress, a few microseconds each */
    INSIDE = 64,    /* most messages taken out of a socket, and descriptors that wait meanwhile */
    MOST_FDS = 253, /* in one message: SCM_MAX_FD of Linux */
    PIDFD = 4,      /* SCM_PIDFD: the sender's, where the socket asks for it */
    LEAVE_S = 2     /* for the thread to end when the library is unloaded */
};

static struct {
    pthread_mutex_t mutex; /* taken last */
    pthread_cond_t idle;
    uint64_t waiting[SW_FORK_SET_MOST / WORD_BITS]; /* a bit per descriptor */
    int count;                                      /* bits that are set */
    int open;                                       /* these, and the one that is being closed */
    int word;                                       /* where the thread looks next */
    int running;
    int closing; /* the file in close(); -1: none, or a socket */
} closer = {.mutex = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER, .closing = -1};

void sw_linger_off(int fd)
{
    const struct linger off = {0, 0};

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof off);
}

/* Asks nobody: a file's server might take long to answer fstat(). */
static int is_socket(int fd)
{
    int type;
    socklen_t size = sizeof type;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

/* ---- what lies in a socket ---- */

/* Receives one message. 0: there is none. */
static int take_message(int socket, int is_stream)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(MOST_FDS * sizeof(int))];
    } control;
    char data[4096];
    struct iovec into = {data, sizeof data};
    struct msghdr message = {.msg_iov = &into,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *c;

    if (got < 0)
        return errno == ECONNRESET; /* once, before what the other end sent */
    for (c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c)) {
        const unsigned char *at = CMSG_DATA(c), *end = (const unsigned char *)c + c->cmsg_len;
        int came;

        if (c->cmsg_level != SOL_SOCKET || (c->cmsg_type != SCM_RIGHTS && c->cmsg_type != PIDFD))
            continue;
        for (; at + sizeof came <= end; at += sizeof came) {
            memcpy(&came, at, sizeof came);
            sw_closer_close(came);
        }
    }
    /* An empty message has its sender's credentials at least, the end has none. */
    return got > 0 || (!is_stream && message.msg_controllen > 0);
}

/* A connection, if the socket listens. 0: there is none. */
static int take_connection(int socket)
{
    const int came = accept4(socket, NULL, NULL, SOCK_CLOEXEC);

    sw_closer_close(came);
    return came >= 0;
}

/* At most `most` messages, and only while fewer descriptors than that wait. */
static void take_out(int socket, int most)
{
    const int on = 1;
    int domain, type, i;
    socklen_t size = sizeof domain;

    if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX ||
        getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
        return;
    shutdown(socket, SHUT_RDWR); /* no more can come */
    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    for (i = 0; i < most && sw_closer_count() < most; i++)
        if (!take_message(socket, type == SOCK_STREAM) && !take_connection(socket))
            return;
}

void sw_socket_empty(int socket)
{
    take_out(socket, INT_MAX);
}

/* ---- the thread ---- */

/* One of those that wait. Under the mutex, with count > 0. */
static int take(void)
{
    int bit;

    while (closer.waiting[closer.word] == 0)
        closer.word = (closer.word + 1) % (SW_FORK_SET_MOST / WORD_BITS);
    bit = __builtin_ctzll(closer.waiting[closer.word]);
    closer.waiting[closer.word] &= closer.waiting[closer.word] - 1;
    closer.count--;
    return closer.word * WORD_BITS + bit;
}

static void *close_all(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&closer.mutex);
    while (closer.count > 0) {
        const int fd = take();

        closer.closing = is_socket(fd) ? -1 : fd;
        sw_fork_set_remove(fd); /* before close(): another thread may get the number at once */
        pthread_mutex_unlock(&closer.mutex);
        sw_linger_off(fd);
        take_out(fd, INSIDE);
        close(fd);
        pthread_mutex_lock(&closer.mutex);
        closer.closing = -1;
        closer.open--;
    }
    closer.running = 0;
    pthread_cond_broadcast(&closer.idle);
    pthread_mutex_unlock(&closer.mutex);
    return NULL;
}

struct start {
    void *(*run)(void *);
    const char *name;
    sem_t named;
};

/* glibc opens a file to name another thread, which a program started then would inherit. */
static void *name_and_run(void *arg)
{
    struct start *start = arg;
    void *(*const run)(void *) = start->run;

    pthread_setname_np(pthread_self(), start->name);
    sem_post(&start->named);
    return run(NULL);
}

int sw_thread_begin(pthread_t *thread, void *(*run)(void *), void *data)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, NULL, run, data);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

int sw_thread_start(void *(*run)(void *), const char *name)
{
    struct start start = {.run = run, .name = name};
    pthread_t thread;
    int begun;

    sem_init(&start.named, 0, 0);
    begun = sw_thread_begin(&thread, name_and_run, &start);
    while (begun && sem_wait(&start.named) != 0)
        ;
    sem_destroy(&start.named);
    if (begun)
        pthread_detach(thread);
    return begun;
}

void sw_closer_close(int fd)
{
    int taken = 0;

    if (fd < 0)
        return;
    pthread_mutex_lock(&closer.mutex);
    if (sw_fork_set_add(fd))
        taken = closer.running || (closer.running = sw_thread_start(close_all, "symwin-closer"));
    if (taken) { /* the thread looks when it gets the mutex */
        closer.waiting[fd / WORD_BITS] |= (uint64_t)1 << fd % WORD_BITS;
        closer.count++;
        closer.open++;
    }
    pthread_mutex_unlock(&closer.mutex);
    if (taken)
        return;
    sw_fork_set_remove(fd);
    sw_linger_off(fd);
    close(fd);
}

int sw_closer_count(void)
{
    int open;

    pthread_mutex_lock(&closer.mutex);
    open = closer.open;
    pthread_mutex_unlock(&closer.mutex);
    return open;
}

/* ---- fork, under the poll lock ---- */

void sw_closer_prepare(void)
{
    int turns;

    pthread_mutex_lock(&closer.mutex);
    for (turns = 0; turns < TURNS && closer.closing >= 0 && fcntl(closer.closing, F_GETFD) >= 0;
         turns++) {
        pthread_mutex_unlock(&closer.mutex);
        sched_yield();
        pthread_mutex_lock(&closer.mutex);
    }
}

void sw_closer_parent(void)
{
    pthread_mutex_unlock(&closer.mutex);
}

/* The files that waited are closed as part of the close-on-fork set. */
void sw_closer_child(void)
{
    while (closer.count > 0) {
        const int fd = take();

        if (is_socket(fd))
            sw_fork_set_remove(fd);
    }
    closer.open = 0;
    closer.running = 0;
    closer.closing = -1;
    pthread_cond_init(&closer.idle, NULL); /* its copied state may count the parent's waiters */
    pthread_mutex_unlock(&closer.mutex);
}

/* ---- unloading ---- */

int sw_closer_wait(int seconds)
{
    struct timespec until;
    int done;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&closer.mutex);
    while (closer.running && pthread_cond_clockwait(&closer.idle, &closer.mutex, CLOCK_MONOTONIC,
                                                    &until) != ETIMEDOUT)
        ;
    done = !closer.running;
    pthread_mutex_unlock(&closer.mutex);
    return done;
}

/* The thread's code must not be unmapped while it runs. The shared library never is (-z nodelete).
 * One that contains the static library waits here, but not as long as a close may take. */
__attribute__((destructor)) static void library_ends(void)
{
    (void)sw_closer_wait(LEAVE_S);
}
