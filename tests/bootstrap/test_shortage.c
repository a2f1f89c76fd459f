/* Processes without memory or descriptors at one step of the bootstrap: the call says so, nothing
 * is closed twice, and other ids are not affected. */
#include <dlfcn.h>
#include <fcntl.h>

#include "hostile.h"
#include "steps.h"

enum { RANKS = 2, TIMEOUT_MS = 3000, VICTIM = 7 /* a number for steps_i_am(); no rank */ };

static const char *fails_at; /* the name of the steps that fail; NULL: none */
static const char *after;    /* only after a step of this name by the same thread; NULL: at once */
static _Thread_local int is_after;

static void choose(const char *name)
{
    is_after |= after != NULL && strcmp(name, after) == 0;
    steps_i_am(fails_at != NULL && strcmp(name, fails_at) == 0 && (after == NULL || is_after)
                   ? VICTIM
                   : -1);
}

/* From now on all steps of the name fail. */
static void fail_at(const char *name, const char *after_name)
{
    fails_at = name;
    after = after_name;
    is_after = 0;
    steps_only(VICTIM);
    steps_each(choose);
    steps_plan(1, STEPS_FAIL, 0, 1);
}

static void fail_no_more(void)
{
    steps_off();
    steps_each(NULL);
}

/* ---- a socket without memory for its frames -------------------------------------------------- */

static atomic_int wrong_closes;

/* Replaces the C library's. */
int close(int fd)
{
    static int (*of_system)(int);
    int result, error;

    if (of_system == NULL) {
        void *symbol = dlsym(RTLD_NEXT, "close");

        memcpy(&of_system, &symbol, sizeof of_system);
    }
    result = of_system(fd);
    error = errno;
    wrong_closes += result != 0 && error == EBADF;
    errno = error;
    return result;
}

/* Rank 1 is on another host. Once it is connected it has no memory. Closing the socket twice could
 * close what another thread has opened under the same number in the meantime. */
static void no_memory(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    const symwin_unique_id *id;

    processes_on_host("ab", rank);
    id = processes_id(p, rank);
    if (rank == 1) {
        fail_at("malloc", "connect");
        processes_note(p, rank, processes_comm_with(p, rank, id, TIMEOUT_MS, &comm));
        must_be(steps_hit() != NULL, "memory runs out", rank);
        fail_no_more();
        must_be(p->rank[1].status == SYMWIN_NO_MEMORY && host_error_has("no host memory"),
                "says that there is no memory", rank);
        must_be(wrong_closes == 0, "each descriptor is closed once", rank);
    }
    host_must(processes_comm_with(p, rank, id, 5 * TIMEOUT_MS, &comm), "symwin_comm_create");
    symwin_comm_destroy(comm);
}

/* ---- a local socket that nobody watches ------------------------------------------------------ */

/* The first id of rank 0 has no folder, so there is no local socket. The second has one, but no
 * descriptor is left for the thread that is to watch it. The third works: it has another socket. */
static void not_watched(struct processes *p, int rank)
{
    symwin_unique_id first, second;
    symwin_comm *comm = NULL;

    if (rank == 0) {
        fail_at("mkdtemp", NULL);
        host_must(symwin_unique_id_create(&first), "an id without a folder");
        fail_at("eventfd", NULL);
        must_be(symwin_unique_id_create(&second) == SYMWIN_NO_MEMORY &&
                    host_error_has("no file descriptor for the poll thread"),
                "nobody can watch the socket", rank);
        fail_no_more();
    }
    must_be(processes_comm(p, rank, TIMEOUT_MS, &comm) == SYMWIN_OK, "the third id", rank);
    symwin_comm_destroy(comm);
    if (rank == 0)
        host_must(symwin_unique_id_release(&first), "symwin_unique_id_release");
}

/* ---- no thread for an unwanted descriptor ---------------------------------------------------- */

/* It is closed without a thread, and does not linger. */
static void no_closer(struct processes *p, int rank)
{
    const int64_t begin = sw_now_ms();
    int where;
    const int fd = hostile_lingering(10, &where);

    (void)p;
    fail_at("pthread_create", NULL);
    sw_closer_close(fd);
    must_be(steps_hit() != NULL, "no thread can be started", rank);
    fail_no_more();
    must_be(fcntl(fd, F_GETFD) < 0 && sw_now_ms() - begin < 2000, "is closed at once", rank);
    close(where);
}

int main(void)
{
    processes_run("no memory for a connection", RANKS, no_memory, NULL);
    processes_run("nobody watches a socket", RANKS, not_watched, NULL);
    processes_run("no thread closes an unwanted descriptor", 1, no_closer, NULL);
    return tap_done();
}
