/* Releases what may wait for kernels, in the order in which it comes.
 *
 * A driver may wait for the kernels of a device before it unmaps memory, and such a kernel may wait
 * for the thread that unmaps. So a separate thread does it, and nobody has to wait for that thread.
 * It runs only while it has something to do.
 *
 * A forked child releases nothing: all of it is the parent's.
 */
#include <time.h>

#include "src/base/base.h"

enum { LEAVE_MS = 2000 }; /* for the thread to end when the library is unloaded */

static struct {
    pthread_mutex_t mutex; /* taken last */
    pthread_cond_t changed;
    struct sw_remains *first, *last; /* `last` only if there is a first */
    uint64_t taken, released;
    int running;
} reaper = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Under the mutex, which it gives up meanwhile. */
static void release_first(void)
{
    struct sw_remains *remains = reaper.first;

    reaper.first = remains->next;
    pthread_mutex_unlock(&reaper.mutex);
    remains->release(remains);
    pthread_mutex_lock(&reaper.mutex);
    reaper.released++;
    pthread_cond_broadcast(&reaper.changed);
}

static void *release_all(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&reaper.mutex);
    while (reaper.first != NULL)
        release_first();
    reaper.running = 0;
    pthread_cond_broadcast(&reaper.changed);
    pthread_mutex_unlock(&reaper.mutex);
    return NULL;
}

void sw_reaper_take(struct sw_remains *remains, void (*release)(struct sw_remains *remains))
{
    *remains = (struct sw_remains){.release = release};
    pthread_mutex_lock(&reaper.mutex);
    if (reaper.first == NULL)
        reaper.first = remains;
    else
        reaper.last->next = remains;
    reaper.last = remains;
    reaper.taken++;
    if (!reaper.running)
        reaper.running = sw_thread_start(release_all, "symwin-reaper");
    if (!reaper.running) /* then nothing else is in the list */
        release_first();
    pthread_mutex_unlock(&reaper.mutex);
}

int sw_reaper_count(void)
{
    int count;

    pthread_mutex_lock(&reaper.mutex);
    count = (int)(reaper.taken - reaper.released);
    pthread_mutex_unlock(&reaper.mutex);
    return count;
}

/* Whether the first `taken` are released. With `thread`: and the thread has ended. */
static int wait_for(uint64_t taken, int thread, int ms)
{
    struct timespec until;
    int done;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while ((done = reaper.released >= taken && !(thread && reaper.running)) == 0 &&
           pthread_cond_clockwait(&reaper.changed, &reaper.mutex, CLOCK_MONOTONIC, &until) == 0)
        ;
    return done;
}

int sw_reaper_wait(int ms)
{
    int done;

    pthread_mutex_lock(&reaper.mutex);
    done = wait_for(reaper.taken, 0, ms);
    pthread_mutex_unlock(&reaper.mutex);
    return done;
}

/* ---- fork, under the poll lock ---- */

void sw_reaper_prepare(void)
{
    pthread_mutex_lock(&reaper.mutex);
}

void sw_reaper_parent(void)
{
    pthread_mutex_unlock(&reaper.mutex);
}

void sw_reaper_child(void)
{
    reaper.first = NULL;
    reaper.released = reaper.taken;
    reaper.running = 0;
    pthread_cond_init(&reaper.changed, NULL); /* its copied state may count the parent's waiters */
    pthread_mutex_unlock(&reaper.mutex);
}

/* ---- unloading ---- */

/* As in closer.c: the thread's code must not be unmapped while it runs. */
__attribute__((destructor)) static void library_ends(void)
{
    pthread_mutex_lock(&reaper.mutex);
    (void)wait_for(reaper.taken, 1, LEAVE_MS);
    pthread_mutex_unlock(&reaper.mutex);
}
