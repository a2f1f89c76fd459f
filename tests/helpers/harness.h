/* What tests of the library share: ranks as threads, and a check that nothing was left behind.
 *
 * Tests run on the driver that SYMWIN_DRIVER names; harness_start() makes that the emulated one where
 * nothing is set, so a test never touches a GPU by accident.
 */
#ifndef SYMWIN_TESTS_HARNESS_H
#define SYMWIN_TESTS_HARNESS_H

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emu/emu.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "symwin.h"
#include "tap.h"

#define HARNESS_UNUSED __attribute__((unused)) static

/* ---- start ---- */

/* A real driver sets a device up and shuts it down in each call that maps memory, in a process without a context: for as
 * long as the process lives, there is one of each device. */
HARNESS_UNUSED void harness_hold_contexts(void)
{
    CUcontext context;
    int count = 0, i;

    if (sw_driver_is_emulated())
        return;
    (void)sw_drv.cuDeviceGetCount(&count);
    for (i = 0; i < count; i++)
        (void)sw_drv.cuDevicePrimaryCtxRetain(&context, i);
}

HARNESS_UNUSED void harness_start(void)
{
    setenv("SYMWIN_DRIVER", "emu", 0);
    if (sw_driver_load() != SYMWIN_OK)
        tap_skip_all(symwin_last_error());
    harness_hold_contexts();
}

HARNESS_UNUSED int harness_device_count(void)
{
    symwin_driver_info info;

    return symwin_driver_query(&info) == SYMWIN_OK ? info.device_count : 0;
}

/* ---- nothing left behind ---- */

struct harness_leaks {
    size_t objects; /* of the emulated driver; 0 on the real one */
    int fds;
    int threads;
    size_t free_bytes; /* of device 0 on the real driver; 0 on the emulated one */
};

HARNESS_UNUSED int harness_count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int count = 0;

    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Threads of this process by that name. */
HARNESS_UNUSED int harness_threads(const char *name)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300], found[32] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        file = fopen(path, "r");
        if (file != NULL && fgets(found, sizeof found, file) != NULL) {
            found[strcspn(found, "\n")] = '\0';
            count += strcmp(found, name) == 0;
        }
        if (file != NULL)
            fclose(file);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

/* Threads of the library's own. One that has just been joined may be listed a moment longer: the system wakes who
 * joins before it takes the thread off its list. */
HARNESS_UNUSED int harness_service_threads(void)
{
    int turns = 50, count = harness_threads("symwin-poll");

    for (; count > 0 && turns > 0; turns--) {
        usleep(1000);
        count = harness_threads("symwin-poll");
    }
    return count;
}

HARNESS_UNUSED struct harness_leaks harness_leaks_now(void)
{
    struct harness_leaks now = {0};

    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0); /* what the pools keep is not left behind */
    if (sw_driver_is_emulated())
        now.objects = sw_emu_live_objects(); /* first: it lets go of what other processes held */
    (void)sw_closer_wait(10);                /* a thread closes what others sent and nobody wants */
    now.fds = harness_count_entries("/proc/self/fd");
    now.threads = harness_service_threads();
    return now;
}

/* One TAP line: nothing is alive that was not alive at `before`. */
HARNESS_UNUSED void harness_no_leaks(const char *name, const struct harness_leaks *before)
{
    const struct harness_leaks now = harness_leaks_now();
    const int clean = now.objects == before->objects && now.fds == before->fds &&
                      now.threads == before->threads;

    tap_ok(clean,
           "%s: nothing left behind (objects %zu, was %zu; fds %d, was %d; threads %d, was %d)",
           name, now.objects, before->objects, now.fds, before->fds, now.threads, before->threads);
    if (!clean && sw_driver_is_emulated())
        sw_emu_live_print(2);
}

/* ---- ranks ---- */

/* For tests whose own kernels wait for each other, before harness_start(): on a device that ranks share, a function that is
 * loaded at its first launch waits for the device's kernels, of which one may wait for it. */
HARNESS_UNUSED void harness_load_ahead(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

/* With SYMWIN_TEST_PROCESSES=N, harness_fork() makes N processes of the test, and each is one rank of
 * every team of N: it runs the body once, for itself. What ranks share beyond the id, the barrier and
 * harness_count(), they then have to compute for themselves. */
struct harness_job {
    pthread_barrier_t barrier;
    symwin_unique_id id;
    atomic_int count;
    pid_t pids[64];
};

__attribute__((
    weak)) struct harness_job *harness_job; /* in shared memory, NULL: ranks are threads */
__attribute__((weak)) int harness_process, harness_processes;

/* First of all in main(), before the driver is loaded. */
HARNESS_UNUSED void harness_fork(void)
{
    const char *text = getenv("SYMWIN_TEST_PROCESSES");
    pthread_barrierattr_t shared;
    int p;

    harness_processes = text != NULL ? atoi(text) : 0;
    if (harness_processes < 1 || harness_processes > 64)
        return;
    harness_job = mmap(NULL, sizeof *harness_job, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (harness_job == MAP_FAILED || pthread_barrierattr_init(&shared) != 0 ||
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_barrier_init(&harness_job->barrier, &shared, (unsigned)harness_processes) != 0) {
        perror("harness_fork");
        exit(1);
    }
    for (p = 1; p < harness_processes; p++) {
        const pid_t pid = fork();

        if (pid < 0) {
            perror("fork");
            exit(1);
        }
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the first process */
            harness_process = p;
            tap_silent = 1;
            return;
        }
        harness_job->pids[p] = pid;
    }
}

/* In place of tap_done(): one line more for each other process. */
HARNESS_UNUSED int harness_done(void)
{
    int p;

    for (p = 1; harness_process == 0 && p < harness_processes; p++) {
        int status = -1;

        while (waitpid(harness_job->pids[p], &status, 0) < 0 && errno == EINTR)
            ;
        tap_ok(status == 0, "process %d ends well (wait status 0x%x)", p, (unsigned)status);
    }
    return tap_done();
}

struct harness_team {
    int nranks;
    symwin_unique_id id; /* fresh for every team */
    pthread_barrier_t barrier;
    atomic_int count; /* see harness_count() */
    void (*body)(struct harness_team *team, int rank, void *arg);
    void *arg;
};

struct harness_rank {
    struct harness_team *team;
    int rank;
};

HARNESS_UNUSED void *harness_rank_main(void *arg)
{
    struct harness_rank *self = arg;

    self->team->body(self->team, self->rank, self->team->arg);
    return NULL;
}

/* The part of this process's rank in a team of processes. */
HARNESS_UNUSED void harness_run_process(struct harness_team *team)
{
    if (team->nranks != harness_processes) {
        fprintf(stderr, "harness_run: %d ranks in %d processes\n", team->nranks, harness_processes);
        exit(1);
    }
    if (harness_process == 0) {
        if (symwin_unique_id_create(&harness_job->id) != SYMWIN_OK)
            exit(1);
        harness_job->count = 0;
    }
    pthread_barrier_wait(&harness_job->barrier);
    team->id = harness_job->id;
    team->body(team, harness_process, team->arg);
    if (harness_process == 0)
        symwin_unique_id_release(&team->id);
    pthread_barrier_wait(&harness_job->barrier); /* nobody holds another's memory any more */
}

/* Calls body(team, rank, arg) on nranks threads and waits for all. */
HARNESS_UNUSED void
harness_run(int nranks, void (*body)(struct harness_team *team, int rank, void *arg), void *arg)
{
    struct harness_team team = {.nranks = nranks, .body = body, .arg = arg};
    struct harness_rank *ranks = calloc((size_t)nranks, sizeof *ranks);
    pthread_t *threads = calloc((size_t)nranks, sizeof *threads);
    int r;

    if (harness_job != NULL) {
        harness_run_process(&team);
        free(threads);
        free(ranks);
        return;
    }
    if (ranks == NULL || threads == NULL || symwin_unique_id_create(&team.id) != SYMWIN_OK ||
        pthread_barrier_init(&team.barrier, NULL, (unsigned)nranks) != 0) {
        fprintf(stderr, "harness_run: cannot start %d ranks\n", nranks);
        exit(1);
    }
    for (r = 0; r < nranks; r++) {
        ranks[r] = (struct harness_rank){&team, r};
        if (pthread_create(&threads[r], NULL, harness_rank_main, &ranks[r]) != 0) {
            fprintf(stderr, "harness_run: cannot start the thread of rank %d\n", r);
            exit(1);
        }
    }
    for (r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    symwin_unique_id_release(&team.id); /* if the body had no use for it */
    pthread_barrier_destroy(&team.barrier);
    free(threads);
    free(ranks);
}

HARNESS_UNUSED void harness_barrier(struct harness_team *team)
{
    pthread_barrier_wait(harness_job != NULL ? &harness_job->barrier : &team->barrier);
}

/* A number that all ranks of a team share; 0 at first. */
HARNESS_UNUSED atomic_int *harness_count(struct harness_team *team)
{
    return harness_job != NULL ? &harness_job->count : &team->count;
}

/* The device of a rank: ranks are dealt over the devices. SYMWIN_TEST_DEVICES limits how many. */
HARNESS_UNUSED int harness_device(int rank)
{
    const char *text = getenv("SYMWIN_TEST_DEVICES");
    const int count = harness_device_count();
    int use = text != NULL ? atoi(text) : count;

    if (use < 1 || use > count)
        use = count;
    return rank % use;
}

/* A communicator with timeouts that suit a test; *comm stays NULL on failure. */
HARNESS_UNUSED symwin_status harness_comm(struct harness_team *team, int rank, symwin_comm **comm)
{
    const symwin_comm_options options = {
        .size = sizeof options,
        .timeout_ms = 20000,
        .kernel_timeout_ms = 20000,
    };

    return symwin_comm_create(&team->id, team->nranks, rank, harness_device(rank), &options, comm);
}

#endif
