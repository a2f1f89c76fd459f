/* Threads of the library that wait so that no rank has to: closer.c and reaper.c. Each runs only
 * while it has something to do. */
#ifndef SYMWIN_THREADS_H
#define SYMWIN_THREADS_H

#include <pthread.h>

/* Starts a thread with all signals blocked: they belong to the program. 0: no room. */
int sw_thread_begin(pthread_t *thread, void *(*run)(void *), void *data);

/* The same, detached. */
int sw_thread_start(void *(*run)(void *), const char *name);

/* ---- closer.c: unwanted descriptors of other processes --------------------------------------- */

/* Closes an unwanted descriptor of another process on a separate thread, because its sender can
 * make the last close take long. Forked children inherit only sockets. With or without the lock. */
void sw_closer_close(int fd);
void sw_linger_off(int fd);       /* if it is a socket, its last close does not wait for its data */
void sw_socket_empty(int socket); /* before a local one is closed: what is in it is unwanted */
int sw_closer_count(void);        /* how many are not closed yet */
int sw_closer_wait(int seconds);  /* at most so long until all are closed; 0: some are not */
void sw_closer_prepare(void); /* called around a fork, under the poll lock; the next two as well */
void sw_closer_parent(void);
void sw_closer_child(void);

/* ---- reaper.c: what may wait for kernels ----------------------------------------------------- */

/* What is left of an object that nobody uses any more. */
struct sw_remains {
    struct sw_remains *next;
    void (*release)(struct sw_remains *remains); /* may free it; takes no lock for long */
};

/* Releases `remains` soon, after all that was taken before. Waits for nothing, unless the system
 * has no room for a thread: then for the release. Any thread, under no lock that release() takes.
 * `next` and `release` are set here. */
void sw_reaper_take(struct sw_remains *remains, void (*release)(struct sw_remains *remains));

/* How much has been taken and is not released yet. */
int sw_reaper_count(void);

/* For so long calls wait that must give memory back, or that fail without it. */
enum { SW_REAPER_MS = 1000 };

/* Waits, `ms` at most, until what was taken so far is released. 0: some is not. Under no lock. */
int sw_reaper_wait(int ms);

void sw_reaper_prepare(void); /* called around a fork, under the poll lock; the next two as well */
void sw_reaper_parent(void);
void sw_reaper_child(void);

#endif
