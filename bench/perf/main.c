/* symwin-perf: times all-reduces, checks them, and does the same to rivals. `--help` has the options.
 *
 * Ranks are threads of this process, of processes that it forks, or of a launcher's. Each process has a
 * watchdog, its first thread: a rank that waits for longer than the timeout, on the GPU or in a library
 * that knows no timeout, ends the program on all ranks with a sentence.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

/* ---- processes ---- */

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Starts the processes, which find their numbers where a launcher would have put them. Returns -1 in a
 * child, in the parent the exit status of all: the largest. */
static int fork_processes(int nproc)
{
    const pid_t parent = getpid();
    int worst = 0, status = 0;
    char job[64];

    snprintf(job, sizeof job, "symwin-perf-%ld", (long)parent);
    setenv("SYMWIN_JOB", job, 1);
    set_number("SYMWIN_NRANKS", nproc);
    set_number("SYMWIN_LOCAL_NRANKS", nproc);
    for (int p = 0; p < nproc; p++) {
        const pid_t pid = fork();

        if (pid == 0) {
            /* who ends the parent ends the run */
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() != parent)
                _exit(1);
            set_number("SYMWIN_RANK", p);
            set_number("SYMWIN_LOCAL_RANK", p);
            return -1;
        }
        if (pid < 0) {
            fprintf(stderr, "symwin-perf: cannot fork process %d: %s\n", p, strerror(errno));
            worst = 1; /* the others wait for it until their time is up */
            break;
        }
    }
    while (wait(&status) >= 0 || errno == EINTR) {
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;

        worst = code > worst ? code : worst;
    }
    return worst;
}

static symwin_status find_place(struct job *job)
{
    const struct perf_options *o = &job->options;
    symwin_launch_info info;
    symwin_status status = symwin_launch_query(&info);

    if (status != SYMWIN_OK)
        return status;
    status = symwin_driver_query(&job->driver);
    if (status != SYMWIN_OK)
        return status;
    job->emulated = sw_driver_is_emulated();
    job->processes = info.nranks;
    job->count = (o->threads > 0 ? o->threads : 1) * (o->per_thread > 0 ? o->per_thread : 1);
    if (o->threads == 0 && o->per_thread == 0 && info.nranks == 1 && o->nproc == 0)
        job->count = job->driver.device_count;
    job->nranks = job->count * info.nranks;
    job->first = job->count * info.rank;
    job->local_first = (info.local_rank >= 0 ? info.local_rank : info.rank) * job->count;
    return SYMWIN_OK;
}

static symwin_status check_place(const struct job *job)
{
    const struct perf_options *o = &job->options;

    if (job->nranks > PERF_MOST_RANKS)
        return sw_fail(SYMWIN_INVALID, "%d ranks: at most %d", job->nranks, PERF_MOST_RANKS);
    if (o->link && job->nranks < 2)
        return sw_fail(SYMWIN_INVALID, "--link needs two ranks at least: -t or --nproc");
    if (o->rivals != 0 && job->local_first + job->count > job->driver.device_count)
        return sw_fail(SYMWIN_INVALID,
                       "--against: NCCL wants a GPU for each rank, and there are %d for %d ranks",
                       job->driver.device_count, job->local_first + job->count);
    return SYMWIN_OK;
}

/* ---- ranks ---- */

/* What went wrong, once a process: what the others then get is a consequence. */
static void say(struct job *job, const struct rank *r)
{
    const char *text = symwin_last_error();
    int first;

    pthread_mutex_lock(&job->mutex);
    first = !job->failed;
    job->failed = 1;
    pthread_mutex_unlock(&job->mutex);
    if (!first)
        return;
    if (strncmp(text, "symwin-perf: ", 13) == 0)
        fprintf(stderr, "%s\n", text); /* from a meeting, which says whose it is */
    else
        fprintf(stderr, "symwin-perf: rank %d: %s\n", r->rank, text);
}

static void *rank_main(void *argument)
{
    struct rank *r = argument;
    struct job *job = r->job;
    symwin_status status = rank_open(r);

    if (status == SYMWIN_OK)
        status = machine_meet(r);
    if (status == SYMWIN_OK)
        status = meet(r, r->rank == 0 ? record_open(job) : SYMWIN_OK, NULL, 0);
    if (status == SYMWIN_OK)
        status = sweep(r);
    if (status == SYMWIN_OK)
        status = meet(r, SYMWIN_OK, NULL, 0); /* nobody goes while another uses its memory */
    if (status == SYMWIN_OK && r->rank == 0)
        table_end(job);
    if (status != SYMWIN_OK) {
        say(job, r);
        rank_abort(r);
    }
    rank_close(r, status != SYMWIN_OK);
    pthread_mutex_lock(&job->mutex);
    job->running--;
    pthread_mutex_unlock(&job->mutex);
    return NULL;
}

/* ---- the watchdog ---- */

static int running(struct job *job)
{
    int count;

    pthread_mutex_lock(&job->mutex);
    count = job->running;
    pthread_mutex_unlock(&job->mutex);
    return count;
}

static void nap(void)
{
    const struct timespec moment = {.tv_nsec = 2000000};

    nanosleep(&moment, NULL);
}

/* Ends everything: peers are told, kernels of ours leave; what still hangs after that goes with the
 * process, whose end the peers notice as well. */
static _Noreturn void give_up(struct job *job, struct rank *r, const char *stage)
{
    const int64_t until = sw_now_ms() + 2000;

    pthread_mutex_lock(&job->mutex);
    if (!job->failed)
        fprintf(stderr, "symwin-perf: rank %d: %s took more than %d s (--timeout)\n", r->rank,
                stage, job->options.timeout_s);
    job->failed = 1;
    pthread_mutex_unlock(&job->mutex);
    rank_abort(r);
    while (running(job) > 0 && sw_now_ms() < until)
        nap();
    fflush(NULL);
    _exit(1);
}

static void watch(struct job *job)
{
    while (running(job) > 0) {
        const int64_t now = sw_now_ms();

        for (int i = 0; i < job->count; i++) {
            struct rank *r = &job->ranks[i];
            const char *stage = atomic_load(&r->stage);

            /* A little later than those who know the timeout themselves and say it better. */
            if (stage != NULL && now > atomic_load(&r->stage_ends) + 5000)
                give_up(job, r, stage);
        }
        nap();
    }
}

/* ---- all of it ---- */

static symwin_status run(struct job *job, pthread_t *threads)
{
    job->running = job->count;
    for (int i = 0; i < job->count; i++) {
        struct rank *r = &job->ranks[i];

        r->job = job;
        r->rank = job->first + i;
        r->device = (job->local_first + i) % job->driver.device_count;
        r->scope.device = -1;
        if (pthread_create(&threads[i], NULL, rank_main, r) != 0) {
            fprintf(stderr, "symwin-perf: no thread for rank %d\n", r->rank);
            exit(1); /* the ranks before it wait for it */
        }
    }
    watch(job);
    for (int i = 0; i < job->count; i++)
        pthread_join(threads[i], NULL);
    kernels_unload();
    return job->failed ? SYMWIN_ABORTED : SYMWIN_OK; /* and was said */
}

static symwin_status run_all(struct job *job)
{
    pthread_t *threads;
    symwin_status status;

    ways_list(&job->options, &job->ways);
    if (job->options.rivals != 0) {
        status = rivals_load();
        if (status != SYMWIN_OK)
            return status;
    }
    status = job->processes > 1 ? symwin_unique_id_from_env(&job->id)
                                : symwin_unique_id_create(&job->id);
    if (status != SYMWIN_OK)
        return status;
    threads = calloc((size_t)job->count, sizeof *threads);
    job->ranks = calloc((size_t)job->count, sizeof *job->ranks);
    if (threads == NULL || job->ranks == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", job->count);
    else
        status = run(job, threads);
    free(threads);
    free(job->ranks);
    return status;
}

int main(int argc, char **argv)
{
    struct job job = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    const char *broken = getenv("SYMWIN_PERF_BREAK");
    int exit_status = options_parse(argc, argv, &job.options);
    symwin_status status;
    const char *wrong;

    if (exit_status < 0 && job.options.nproc > 0)
        exit_status = fork_processes(job.options.nproc);
    if (exit_status >= 0)
        return exit_status;
    job.broken = broken != NULL && strcmp(broken, "1") == 0;
    status = find_place(&job);
    if (status == SYMWIN_OK) {
        wrong = options_complete(&job.options, job.emulated);
        if (wrong != NULL) {
            if (job.first == 0) /* the other processes would say the same */
                fprintf(stderr, "symwin-perf: %s\n", wrong);
            return 2;
        }
        status = check_place(&job);
    }
    if (status == SYMWIN_OK)
        status = run_all(&job);
    if (status != SYMWIN_OK && !job.failed)
        fprintf(stderr, "symwin-perf: %s\n", symwin_last_error());
    exit_status = status != SYMWIN_OK || job.wrong > 0;
    if (job.first == 0 && record_close(&job, exit_status) != SYMWIN_OK) {
        fprintf(stderr, "symwin-perf: %s\n", symwin_last_error());
        exit_status = 1;
    }
    return exit_status;
}
