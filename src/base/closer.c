/* Descriptors that another process sent and nobody wants: closing one may take as long as that process likes.
 *
 * The last close of a socket waits until its data has gone, as long as whoever set it up has said (SO_LINGER), and that of a
 * file for whoever serves the file system. So a thread of its own closes them, which is there as long as it has any, and holds no
 * lock meanwhile: what it waits for holds up nobody.
 *
 * Until then they are kept from forked children. A descriptor that is being closed has lost its number as soon as the
 * system has begun with it: a fork waits for that moment.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "src/base/base.h"

enum {
    MOST = 1024,  /* that wait; what is beyond is closed by whoever brings it */
    TURNS = 1000, /* that a fork waits at the most, a few microseconds each */
    LEAVE_S = 2   /* for the thread to end, when the library does */
};

static struct {
    pthread_mutex_t mutex; /* taken last */
    pthread_cond_t idle;
    int fds[MOST];
    int count;
    int running;
    int closing; /* the number that is about to be free; -1: none */
} closer = {.mutex = PTHREAD_MUTEX_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER, .closing = -1};

static void *close_all(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "symwin-closer");
    pthread_mutex_lock(&closer.mutex);
    while (closer.count > 0) {
        const int fd = closer.fds[--closer.count];

        closer.closing = fd;
        sw_fork_set_remove(fd); /* before it is closed: others may get the number at once */
        pthread_mutex_unlock(&closer.mutex);
        close(fd);
        pthread_mutex_lock(&closer.mutex);
        closer.closing = -1;
    }
    closer.running = 0;
    pthread_cond_broadcast(&closer.idle);
    pthread_mutex_unlock(&closer.mutex);
    return NULL;
}

/* With all signals blocked: they are the program's. */
static int start(void)
{
    pthread_attr_t detached;
    sigset_t all, before;
    pthread_t thread;
    int error;

    if (pthread_attr_init(&detached) != 0)
        return 0;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &detached, close_all, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return error == 0;
}

void sw_closer_close(int fd)
{
    int taken = 0;

    if (fd < 0)
        return;
    pthread_mutex_lock(&closer.mutex);
    if (closer.count < MOST && sw_fork_set_add(fd)) {
        closer.fds[closer.count++] = fd;
        taken = closer.running || (closer.running = start());
        closer.count -= !taken;
    }
    pthread_mutex_unlock(&closer.mutex);
    if (taken)
        return;
    sw_fork_set_remove(fd);
    close(fd);
}

/* ---- fork, under the service lock ---- */

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

/* What waited is kept, and closed as such. */
void sw_closer_child(void)
{
    closer.count = 0;
    closer.running = 0;
    closer.closing = -1;
    pthread_cond_init(&closer.idle, NULL); /* it may have the parent's threads waiting */
    pthread_mutex_unlock(&closer.mutex);
}

/* ---- the end ---- */

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

/* The library may be unloaded. */
__attribute__((destructor)) static void library_ends(void)
{
    (void)sw_closer_wait(LEAVE_S);
}
