/* Ranks as processes: forked from a parent that never touches symwin's driver, so that each child has
 * its own. What the ranks tell each other and the parent lies in shared memory.
 *
 *     static void body(struct processes *p, int rank) { ... }
 *     processes_run(4, body, arg);           forks 4, waits, reports one TAP line for each
 */
#ifndef SYMWIN_TESTS_PROCESSES_H
#define SYMWIN_TESTS_PROCESSES_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#if defined(__SANITIZE_THREAD__)
enum { PROCESSES_LIMIT_S = 120 };
#else
enum { PROCESSES_LIMIT_S = 30 };
#endif
enum { PROCESSES_MOST = 80 };

/* In shared memory. */
struct processes {
    int count;
    void *arg;
    symwin_unique_id id;
    atomic_int id_made;
    atomic_int arrived; /* at the barrier, all rounds together */
    struct {
        atomic_int status;  /* of the call that matters, -1: not there yet */
        atomic_llong at_us; /* when it was known */
        char text[SW_TEXT_BYTES];
        atomic_int step;
        symwin_unique_id id; /* as this rank has it */
        atomic_llong number; /* whatever the body wants to tell */
    } rank[PROCESSES_MOST];
    pid_t pids[PROCESSES_MOST];
};

HARNESS_UNUSED int64_t processes_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Makes this process one of another host: `hosts` has a letter for each rank. NULL: all are on one. */
HARNESS_UNUSED void processes_on_host(const char *hosts, int rank)
{
    if (hosts != NULL) {
        const char host[] = {hosts[rank], '\0'};

        setenv("SYMWIN_HOST_ID", host, 1);
        setenv("SYMWIN_ADDR", "127.0.0.1", 1);
        setenv("SYMWIN_EMU_FABRIC", "2", 1);
    }
}

/* Keeps a rank's outcome, with its sentence, where the parent sees it. */
HARNESS_UNUSED symwin_status processes_note(struct processes *p, int rank, symwin_status status)
{
    p->rank[rank].at_us = processes_now_us();
    if (status != SYMWIN_OK)
        snprintf(p->rank[rank].text, SW_TEXT_BYTES, "%s", symwin_last_error());
    p->rank[rank].status = (int)status;
    return status;
}

/* In a rank's process. */
HARNESS_UNUSED void must_be(int right, const char *what, int rank)
{
    if (right)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, symwin_last_error());
    tap_failures++;
}

/* The id, made by rank 0. */
HARNESS_UNUSED const symwin_unique_id *processes_id(struct processes *p, int rank)
{
    if (rank == 0) {
        host_must(symwin_unique_id_create(&p->id), "symwin_unique_id_create");
        p->id_made = 1;
    }
    while (!p->id_made)
        usleep(50);
    return &p->id;
}

HARNESS_UNUSED void processes_barrier(struct processes *p)
{
    const int mine = atomic_fetch_add(&p->arrived, 1);
    const int all = (mine / p->count + 1) * p->count;

    while (p->arrived < all)
        usleep(50);
}

HARNESS_UNUSED symwin_status processes_comm_with(struct processes *p, int rank,
                                                 const symwin_unique_id *id, int timeout_ms,
                                                 symwin_comm **comm)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = timeout_ms,
                                         .kernel_timeout_ms = timeout_ms,
                                         .slot_bytes = 8192};

    return symwin_comm_create(id, p->count, rank, rank % harness_device_count(), &options, comm);
}

HARNESS_UNUSED symwin_status processes_comm(struct processes *p, int rank, int timeout_ms,
                                            symwin_comm **comm)
{
    return processes_comm_with(p, rank, processes_id(p, rank), timeout_ms, comm);
}

HARNESS_UNUSED struct processes *processes_new(int count, void *arg)
{
    struct processes *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                               -1, 0);
    int r;

    if (p == MAP_FAILED) {
        perror("processes_new");
        exit(1);
    }
    p->count = count;
    p->arg = arg;
    for (r = 0; r < PROCESSES_MOST; r++)
        p->rank[r].status = -1;
    return p;
}

HARNESS_UNUSED void processes_free(struct processes *p)
{
    munmap(p, sizeof *p);
}

/* What a real driver keeps open is its own affair; a process that has loaded none leaves nothing. */
HARNESS_UNUSED int processes_leave_something(int fds_before)
{
    if (sw_drv.cuInit != NULL && !sw_driver_is_emulated())
        return 0;
    return sw_emu_live_objects() != 0 || harness_count_entries("/proc/self/fd") != fds_before ||
           harness_service_threads() != 0;
}

/* In a forked child that is to have threads, of a process that has some. ThreadSanitizer does not know that
 * the parent's are not here, and ends a child that gets one of their stacks, and so their id, for a new
 * thread: larger ones are none of theirs. */
HARNESS_UNUSED void processes_child_threads(void)
{
#if defined(__SANITIZE_THREAD__)
    pthread_attr_t larger;

    pthread_attr_init(&larger);
    pthread_attr_setstacksize(&larger, 64 << 20);
    pthread_setattr_default_np(&larger);
    pthread_attr_destroy(&larger);
#endif
}

/* Forks one rank. Its exit status is 0 if body returned and left nothing behind. */
HARNESS_UNUSED void processes_fork(struct processes *p, int rank,
                                   void (*body)(struct processes *p, int rank))
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid > 0)
        p->pids[rank] = pid;
    if (pid == 0) {
        struct harness_leaks before;
        int i;

        alarm(PROCESSES_LIMIT_S); /* ends what hangs */
        tap_failures = 0;
        setenv("SYMWIN_DRIVER", "emu", 0);
        before = (struct harness_leaks){0, harness_count_entries("/proc/self/fd"), 0, 0};
        body(p, rank);
        /* Memory that peers still have mapped lives until they are done with it. */
        symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
        for (i = 0; i < 5000 && processes_leave_something(before.fds); i++) {
            sw_poll_settle();
            usleep(1000);
        }
        if (processes_leave_something(before.fds)) {
            fprintf(stderr, "rank %d leaves %zu objects, %d descriptors (had %d), %d threads\n",
                    rank, sw_emu_live_objects(), harness_count_entries("/proc/self/fd"), before.fds,
                    harness_service_threads());
            sw_emu_live_print(2);
            fflush(NULL);
            _exit(3);
        }
        fflush(NULL);
        _exit(tap_failures > 0 ? 4 : 0);
    }
}

/* Waits for one rank; its wait status. */
HARNESS_UNUSED int processes_wait(struct processes *p, int rank)
{
    int status = -1;

    while (waitpid(p->pids[rank], &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

HARNESS_UNUSED void processes_run(const char *name, int count,
                                  void (*body)(struct processes *p, int rank), void *arg)
{
    struct processes *p = processes_new(count, arg);
    int r;

    for (r = 0; r < count; r++)
        processes_fork(p, r, body);
    for (r = 0; r < count; r++) {
        const int status = processes_wait(p, r);

        tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
               "%s: rank %d of %d (wait status 0x%x)", name, r, count, (unsigned)status);
    }
    processes_free(p);
}

#endif
