/* The poll thread: waits on sockets so that no rank's thread has to.
 *
 * Each process has one, and only while something is watched: the listener that ranks of other
 * processes connect to, and the peer sockets of a communicator, which tell when another process
 * ends.
 *
 * One lock protects the thread and everything that it serves; callbacks run under it. A forked
 * child has no poll thread. It closes the watched descriptors and the close-on-fork set, because
 * otherwise the parent's death would go unnoticed as long as the child lives, and starts with no
 * watches.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "src/base/base.h"

enum { QUIET, RUNNING, STOPPING };
enum { FEW = 64 };

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t stopped;
    pthread_t thread;
    int state;
    int rests; /* before the next turn */
    int kick;  /* eventfd that wakes the thread; owned while it runs */
    struct sw_poll_watch *watches;
    size_t count;
    uint64_t next_id;
} poll_thread = {
    .mutex = PTHREAD_MUTEX_INITIALIZER, .stopped = PTHREAD_COND_INITIALIZER, .kick = -1};

int64_t sw_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void sw_poll_lock(void)
{
    pthread_mutex_lock(&poll_thread.mutex);
}

void sw_poll_unlock(void)
{
    const int error = errno;

    pthread_mutex_unlock(&poll_thread.mutex);
    errno = error;
}

int sw_poll_wait(pthread_cond_t *changed, int64_t deadline)
{
    const struct timespec until = {.tv_sec = deadline / 1000,
                                   .tv_nsec = (long)(deadline % 1000) * 1000000};

    if (deadline == INT64_MAX)
        return pthread_cond_wait(changed, &poll_thread.mutex) == 0;
    return pthread_cond_clockwait(changed, &poll_thread.mutex, CLOCK_MONOTONIC, &until) !=
           ETIMEDOUT;
}

/* ---- fork ---- */

void sw_fork_set_close(int fd)
{
    sw_poll_lock();
    sw_fork_set_remove(fd);
    close(fd);
    sw_poll_unlock();
}

static void fork_child(void)
{
    const struct sw_poll_watch *w;

    for (w = poll_thread.watches; w != NULL; w = w->next)
        if (w->fd >= 0)
            close(w->fd);
    if (poll_thread.kick >= 0)
        close(poll_thread.kick);
    poll_thread.watches = NULL;
    poll_thread.count = 0;
    poll_thread.state = QUIET;
    poll_thread.kick = -1;
    sw_reaper_child();
    sw_closer_child();
    /* Its copied state may count the parent's waiters. */
    pthread_cond_init(&poll_thread.stopped, NULL);
    sw_fork_child(); /* some of the set were watched, and are closed already */
    sw_poll_unlock();
}

static void fork_prepare(void)
{
    sw_poll_lock();
    sw_closer_prepare();
    sw_reaper_prepare();
}

static void fork_parent(void)
{
    sw_reaper_parent();
    sw_closer_parent();
    sw_poll_unlock();
}

/* When the library is loaded, before any descriptor can be in the close-on-fork set. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* ---- the thread ---- */

static void kick(void)
{
    const uint64_t one = 1;

    if (poll_thread.kick >= 0 && write(poll_thread.kick, &one, sizeof one) < 0)
        return; /* the counter is full: the thread will wake anyway */
}

/* What one turn of the loop waits for. Only the thread uses it, so it needs no lock. */
struct turn {
    struct pollfd *polls; /* [0]: the kick */
    uint64_t *ids;
    size_t room, count;
    int64_t deadline;
    struct pollfd few_polls[FEW]; /* used until more room is allocated */
    uint64_t few_ids[FEW];
};

static void turn_few(struct turn *t)
{
    t->polls = t->few_polls;
    t->ids = t->few_ids;
    t->room = FEW;
}

static void turn_free(struct turn *t)
{
    if (t->polls == t->few_polls)
        return;
    free(t->polls);
    free(t->ids);
    turn_few(t);
}

static int turn_grow(struct turn *t, size_t room)
{
    struct pollfd *polls = malloc(room * sizeof *polls);
    uint64_t *ids = malloc(room * sizeof *ids);

    if (polls == NULL || ids == NULL) {
        free(polls);
        free(ids);
        return 0;
    }
    turn_free(t);
    t->polls = polls;
    t->ids = ids;
    t->room = room;
    return 1;
}

/* Without host memory it polls as many as fit, and starts the next turn soon. */
static void turn_fill(struct turn *t)
{
    const struct sw_poll_watch *w;

    t->deadline = INT64_MAX;
    if (t->room < poll_thread.count + 1 && !turn_grow(t, (poll_thread.count + 1) * 2))
        t->deadline = sw_now_ms() + 10;
    t->polls[0] = (struct pollfd){.fd = poll_thread.kick, .events = POLLIN};
    t->ids[0] = 0;
    t->count = 1;
    for (w = poll_thread.watches; w != NULL && t->count < t->room; w = w->next) {
        t->polls[t->count] = (struct pollfd){.fd = w->fd, .events = w->events};
        t->ids[t->count++] = w->id;
        if (w->deadline < t->deadline)
            t->deadline = w->deadline;
    }
}

static struct sw_poll_watch *watch_named(uint64_t id)
{
    struct sw_poll_watch *w = poll_thread.watches;

    while (w != NULL && w->id != id)
        w = w->next;
    return w;
}

static struct sw_poll_watch *watch_late(int64_t now)
{
    struct sw_poll_watch *w = poll_thread.watches;

    while (w != NULL && w->deadline > now)
        w = w->next;
    return w;
}

/* Calls the watches that are ready, then those past their deadline; the latter need no memory and
 * no poll(). Each callback may remove any watch. */
static void turn_serve(const struct turn *t)
{
    const int64_t now = sw_now_ms();
    struct sw_poll_watch *w;
    uint64_t kicks;
    size_t i;

    if (t->count > 0 && t->polls[0].revents != 0 &&
        read(poll_thread.kick, &kicks, sizeof kicks) < 0 && errno != EAGAIN)
        return;
    for (i = 1; i < t->count; i++) {
        if (t->polls[i].revents == 0)
            continue;
        w = watch_named(t->ids[i]);
        if (w != NULL)
            w->ready(w, t->polls[i].revents);
    }
    while ((w = watch_late(now)) != NULL) {
        w->deadline = INT64_MAX;
        w->ready(w, 0);
    }
}

/* Called without the lock. If poll() fails, no watch counts as ready. */
static void turn_wait(struct turn *t)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    int64_t left = t->deadline == INT64_MAX ? -1 : t->deadline - sw_now_ms();

    if (t->deadline != INT64_MAX && left < 0)
        left = 0;
    if (poll(t->polls, (nfds_t)t->count, left > INT_MAX ? INT_MAX : (int)left) >= 0)
        return;
    t->count = 0;
    if (errno != EINTR)
        nanosleep(&moment, NULL); /* it would fail again immediately */
}

/* Without the lock. A thread that waits for it needs a moment to wake, and poll() may need none. */
static void rest(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    nanosleep(&moment, NULL);
}

static void *serve(void *arg)
{
    struct turn t;
    int rests;

    (void)arg;
    pthread_setname_np(pthread_self(), "symwin-poll");
    turn_few(&t);
    sw_poll_lock();
    while (poll_thread.state == RUNNING) {
        turn_fill(&t);
        rests = poll_thread.rests;
        poll_thread.rests = 0;
        sw_poll_unlock();
        if (rests)
            rest();
        turn_wait(&t);
        sw_poll_lock();
        turn_serve(&t);
    }
    sw_poll_unlock();
    turn_free(&t);
    return NULL;
}

/* Starts the thread with all signals blocked: they belong to the program. Under the lock. */
static symwin_status start(void)
{
    sigset_t all, before;
    int error;

    while (poll_thread.state == STOPPING)
        pthread_cond_wait(&poll_thread.stopped, &poll_thread.mutex);
    if (poll_thread.state == RUNNING)
        return SYMWIN_OK;
    poll_thread.kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (poll_thread.kick < 0)
        return sw_fail(SYMWIN_NO_MEMORY,
                       "no file descriptor for the poll thread: %s; raise ulimit -n",
                       strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    poll_thread.state = RUNNING;
    error = pthread_create(&poll_thread.thread, NULL, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        return SYMWIN_OK;
    poll_thread.state = QUIET;
    close(poll_thread.kick);
    poll_thread.kick = -1;
    return sw_fail(SYMWIN_NO_MEMORY,
                   "the poll thread cannot start: %s; raise ulimit -u or ulimit -v",
                   strerror(error));
}

symwin_status sw_poll_add(struct sw_poll_watch *watch)
{
    symwin_status status;

    status = start();
    if (status != SYMWIN_OK)
        return status;
    watch->id = ++poll_thread.next_id;
    watch->next = poll_thread.watches;
    poll_thread.watches = watch;
    poll_thread.count++;
    kick();
    return SYMWIN_OK;
}

void sw_poll_rest(void)
{
    poll_thread.rests = 1;
}

void sw_poll_changed(void)
{
    kick();
}

void sw_poll_remove(struct sw_poll_watch *watch)
{
    struct sw_poll_watch **at = &poll_thread.watches;

    if (watch->id == 0)
        return;
    while (*at != NULL && *at != watch)
        at = &(*at)->next;
    if (*at == watch) {
        *at = watch->next;
        poll_thread.count--;
    }
    watch->id = 0;
    kick(); /* or poll() would go on with a closed descriptor */
}

void sw_poll_settle(void)
{
    sw_poll_lock();
    if (poll_thread.state == RUNNING && poll_thread.watches == NULL &&
        !pthread_equal(poll_thread.thread, pthread_self())) {
        const pthread_t thread = poll_thread.thread;

        poll_thread.state = STOPPING;
        kick();
        sw_poll_unlock();
        pthread_join(thread, NULL);
        sw_poll_lock();
        close(poll_thread.kick);
        poll_thread.kick = -1;
        poll_thread.state = QUIET;
        pthread_cond_broadcast(&poll_thread.stopped);
    }
    sw_poll_unlock();
}
