/* symwin-perf: times and checks collectives, and rivals in the same way. `--help` lists the
 * options.
 *
 * Ranks are threads of this process, of forked processes, or of a launcher's processes. The first
 * thread of each process is the watchdog. If a rank waits longer than the timeout, for the GPU or
 * in a library without timeouts, the watchdog ends the program on all ranks with a message.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common.h"
#include "perf.h"

/* ---- processes ---- */

enum { NAP_NS = 2000000 };

/* Reports a process that died by a signal; no other process may be left to do it. */
static void say_how_it_died(int process, int status)
{
    fprintf(stderr, "symwin-perf: process %d of --nproc died by signal %d, %s\n", process,
            WTERMSIG(status), strsignal(WTERMSIG(status)));
}

/* Waits for all processes; returns the largest exit status. After a failure the others notice it
 * and get some time to end. Then they are killed, since one may be stopped. */
static int wait_for_processes(pid_t *pids, int count, int timeout_s)
{
    const int64_t grace = timeout_s < 5 ? timeout_s * 1000 : 5000;
    int64_t deadline = INT64_MAX;
    int worst = 0, status = 0, ended = 0, killed = 0;

    while (ended < count) {
        const pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid < 0 && errno != EINTR) {
            fprintf(stderr, "symwin-perf: cannot wait for its processes: %s\n", strerror(errno));
            return 1;
        }
        if (pid > 0) {
            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;

            for (int p = 0; p < count; p++) {
                if (pids[p] != pid)
                    continue;
                ended++;
                pids[p] = 0;
                if (WIFSIGNALED(status) && !killed)
                    say_how_it_died(p, status);
            }
            worst = code > worst ? code : worst;
            if (code != 0 && deadline == INT64_MAX)
                deadline = sw_now_ms() + grace;
        } else if (!killed && sw_now_ms() > deadline) {
            for (int p = 0; p < count; p++)
                if (pids[p] > 0) /* 0: ended */
                    kill(pids[p], SIGKILL);
            killed = 1;
        } else {
            perf_nap(NAP_NS);
        }
    }
    return worst;
}

/* Returns -1 in a child; in the parent, the largest exit status. */
static int fork_processes(const struct perf_options *options)
{
    static pid_t pids[PERF_MOST_RANKS];
    const int started = common_start("symwin-perf", options->nproc, pids, SIGTERM);
    int status;

    if (started < 0)
        return -1;
    status = wait_for_processes(pids, started,
                                options->timeout_s); /* for one that is missing, too */
    return started < options->nproc ? 1 : status;
}

static int find_place(struct job *job)
{
    const struct perf_options *o = &job->options;
    symwin_launch_info info;

    if (!ok(symwin_launch_query(&info)) || !ok(symwin_driver_query(&job->driver)))
        return 0;
    job->emulated = sw_driver_is_emulated();
    job->processes = info.nranks;
    job->count = (o->threads > 0 ? o->threads : 1) * (o->per_thread > 0 ? o->per_thread : 1);
    if (o->threads == 0 && o->per_thread == 0 && info.nranks == 1 && o->nproc == 0)
        job->count = job->driver.device_count;
    job->nranks = job->count * info.nranks;
    job->first = job->count * info.rank;
    job->local_first = (info.local_rank >= 0 ? info.local_rank : info.rank) * job->count;
    return 1;
}

/* The default of -e for --tune: memory must hold four buffers of that size, and as much again for
 * other users. */
static int find_largest(struct job *job)
{
    symwin_device_info info;
    size_t bytes = (size_t)1 << 30;

    if (!ok(symwin_device_query(job->local_first % job->driver.device_count, &info)))
        return 0;
    while (bytes > 1 << 20 && bytes > info.total_bytes / 8)
        bytes /= 2;
    job->options.end = bytes;
    return 1;
}

/* Fails if the command line makes no sense for this number of ranks. */
static int check_ranks(const struct job *job)
{
    if (job->nranks > PERF_MOST_RANKS)
        return fail(SYMWIN_INVALID, "%d ranks: at most %d", job->nranks, PERF_MOST_RANKS);
    if (job->options.root >= job->nranks)
        return fail(SYMWIN_INVALID, "-r is %d, and there are %d ranks", job->options.root,
                    job->nranks);
    if ((job->options.rivals & PERF_ANY_NCCL) != 0 && job->emulated && !rivals_stand_in())
        return fail(SYMWIN_INVALID, "--against: NCCL needs GPUs, but this is the emulated driver");
    if (job->options.link && job->nranks < 2)
        return fail(SYMWIN_INVALID, "--link needs at least two ranks: give -t or --nproc");
    return ways_check(&job->options, &job->ways);
}

/* NCCL refuses two ranks of one host on one GPU. */
static int check_place(struct job *job)
{
    const struct perf_options *o = &job->options;
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE"); /* of NCCL 2.30 */
    const char *host = getenv("NCCL_HOSTID");                  /* perhaps this process's alone */
    const int ranks = host != NULL && host[0] != '\0' ? job->count : job->local_first + job->count;

    if ((o->rivals & PERF_ANY_NCCL) != 0 && (shared == NULL || strcmp(shared, "1") != 0) &&
        ranks > job->driver.device_count)
        return fail(SYMWIN_INVALID,
                    "--against: NCCL needs a GPU for each rank, unless each process has an "
                    "NCCL_HOSTID of its own or NCCL_MULTI_RANK_GPU_ENABLE is 1: there are %d for "
                    "%d ranks",
                    job->driver.device_count, ranks);
    return (o->rivals & PERF_TORCH) == 0 || torch_find(job);
}

/* ---- ranks ---- */

/* Whether this process checks or races kernels. Then its parent prints errors, with the line. */
static int is_check(const struct job *job)
{
    return job->page != NULL && job->page->stage != STAGE_TIME;
}

static void complain(const struct job *job, const char *text)
{
    if (is_check(job))
        stage_died(text);
    else
        fprintf(stderr, "symwin-perf: %s\n", text);
}

/* Prints the first error of a process; later ones are consequences. */
static void say(struct job *job, const struct rank *r)
{
    const char *text = symwin_last_error();

    if (atomic_exchange(&job->failed, 1))
        return;
    if (is_check(job))
        stage_died(text);
    else if (strncmp(text, "symwin-perf: ", 13) == 0)
        fprintf(stderr, "%s\n", text); /* from an agreement: the text names the rank */
    else
        fprintf(stderr, "symwin-perf: rank %d: %s\n", r->rank, text);
}

static int work(struct rank *r)
{
    const struct job *job = r->job;

    if (job->page != NULL && job->page->stage == STAGE_CHECK)
        return check_all(r);
    if (job->page != NULL && job->page->stage == STAGE_RACE)
        return race_all(r);
    return job->options.tune != NULL ? tune(r) : sweep(r);
}

static void *rank_main(void *argument)
{
    struct rank *r = argument;
    struct job *job = r->job;
    int good = rank_open(r) && machine_meet(r) &&
               meet(r, r->rank == 0 ? record_open(job) : 1, NULL, 0) && work(r) &&
               meet(r, 1, NULL, 0); /* no rank leaves while another uses its memory */

    if (!good) {
        say(job, r);
        rank_abort(r);
    }
    rank_close(r, !good);
    atomic_fetch_sub(&job->running, 1);
    return NULL;
}

/* ---- the watchdog ---- */

/* Ends the run: tells the peers, and the library's kernels leave. What still hangs ends with the
 * process; the peers notice that too. */
static _Noreturn void give_up(struct job *job, const pthread_t *threads, struct rank *r,
                              const char *stage)
{
    const int64_t until = sw_now_ms() + 1000;
    char text[256];

    snprintf(text, sizeof text, "rank %d: %s took more than %d s (--timeout)", r->rank, stage,
             job->options.timeout_s);
    if (!atomic_exchange(&job->failed, 1))
        complain(job, text);
    rank_abort(r);
    while (atomic_load(&job->running) > 0 && sw_now_ms() < until)
        perf_nap(NAP_NS);
    for (int i = 0; i < job->count; i++)
        pthread_detach(threads[i]); /* nobody joins them */
    record_leave(job);
    fflush(NULL);
    _exit(1);
}

static void watch(struct job *job, const pthread_t *threads)
{
    const int timeout_s = job->options.timeout_s;
    const int64_t more = timeout_s < 5 ? timeout_s * 1000 : 5000;

    while (atomic_load(&job->running) > 0) {
        const int64_t now = sw_now_ms();

        for (int i = 0; i < job->count; i++) {
            struct rank *r = &job->ranks[i];
            const char *stage = atomic_load(&r->stage);

            /* Later than the waits that have the timeout themselves and report it better. */
            if (stage != NULL && now > atomic_load(&r->stage_ends) + more)
                give_up(job, threads, r, stage);
        }
        perf_nap(NAP_NS);
    }
}

/* ---- entry points ---- */

static int run(struct job *job, pthread_t *threads)
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
            exit(1); /* the earlier ranks wait for it */
        }
    }
    watch(job, threads);
    for (int i = 0; i < job->count; i++)
        pthread_join(threads[i], NULL);
    kernels_unload();
    own_unload();
    return !job->failed; /* the error has been printed */
}

static int run_all(struct job *job)
{
    pthread_t *threads;
    int good;

    if ((job->options.rivals & PERF_ANY_NCCL) != 0 && !rivals_load())
        return 0;
    if (!ok(job->processes > 1 ? symwin_unique_id_from_env(&job->id)
                               : symwin_unique_id_create(&job->id)))
        return 0;
    threads = calloc((size_t)job->count, sizeof *threads);
    job->ranks = calloc((size_t)job->count, sizeof *job->ranks);
    if (threads == NULL || job->ranks == NULL)
        good = fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", job->count);
    else
        good = run(job, threads);
    free(threads);
    free(job->ranks);
    return good;
}

/* Ends the table in rank 0's process, after the ranks. A table without rows is a failure. Without
 * PyTorch's rows the table still gets its summary. */
static int finish(struct job *job)
{
    int good = (job->options.rivals & PERF_TORCH) == 0 || torch_run(job);

    if (good && job->result_count == 0 && job->unsupported[0] != '\0')
        good = fail(SYMWIN_UNSUPPORTED,
                    "nothing was measured: nothing that was selected supports the calls; the last "
                    "answer was: %s",
                    job->unsupported);
    else if (good && job->result_count == 0)
        good = fail(SYMWIN_INVALID,
                    "nothing was measured: every size is smaller than an element, or nothing "
                    "that was selected supports the calls");
    if (job->result_count > 0)
        table_end(job, good);
    return good;
}

/* Sets the rivals' environment variables, in all processes. */
static int set_environment(const struct perf_options *o)
{
    return (o->rivals == 0 || rivals_without_multicast()) &&
           ((o->rivals & PERF_ANY_NCCL) == 0 || o->sm_limit == 0 || rivals_limit(o->sm_limit));
}

/* --kernel and --race: this process only starts the stages' processes. */
static int begin_stages(char **argv, const struct perf_options *options)
{
    struct perf_options completed = *options;
    const char *wrong = options_complete(&completed, 0);
    symwin_launch_info info;

    if (wrong == NULL && symwin_launch_query(&info) == SYMWIN_OK && info.launcher != NULL)
        wrong = "--kernel and --race start their own processes: run without a launcher, with -t "
                "or --nproc";
    if (wrong == NULL)
        return stages_run(argv, options);
    fprintf(stderr, "symwin-perf: %s\n", wrong);
    return 2;
}

/* Sets what SYMWIN_PERF_BREAK asks for; returns whether it is valid. */
static int set_broken(struct job *job)
{
    const char *value = getenv("SYMWIN_PERF_BREAK");

    if (value == NULL)
        return 1;
    job->broken = strcmp(value, "1") == 0;
    job->stuck = strcmp(value, "hang") == 0;
    job->idle = strcmp(value, "idle") == 0;
    if (job->broken || job->stuck || job->idle)
        return 1;
    fprintf(stderr, "symwin-perf: SYMWIN_PERF_BREAK is \"%s\": give 1, hang or idle, or unset it\n",
            value);
    return 0;
}

static int perf_main(int argc, char **argv)
{
    struct job job = {.page = NULL};
    int exit_status = options_parse(argc, argv, &job.options);
    const char *wrong;
    int good;

    job.page = stage_page();
    if (exit_status < 0 && !set_broken(&job))
        exit_status = 2;
    if (exit_status < 0 && job.page == NULL && (job.options.kernel_count > 0 || job.options.race))
        exit_status = begin_stages(argv, &job.options);
    if (exit_status < 0 && job.page != NULL)
        stage_options(job.page, &job.options);
    if (exit_status < 0 && !set_environment(&job.options)) {
        fprintf(stderr, "symwin-perf: %s\n", symwin_last_error());
        return 1;
    }
    if (exit_status < 0 && job.options.nproc > 0)
        exit_status = fork_processes(&job.options);
    if (exit_status >= 0)
        return exit_status;
    good = find_place(&job);
    if (good && job.options.tune != NULL && job.options.end == 0 && !job.emulated)
        good = find_largest(&job);
    if (good) {
        wrong = options_complete(&job.options, job.emulated);
        job.multicast = job.emulated && (job.options.race || options_multicast(&job.options));
        ways_list(&job.options, job.page, &job.ways);
        if (wrong == NULL && !check_ranks(&job))
            wrong = symwin_last_error();
        if (wrong != NULL) {
            if (job.first == 0) /* the other processes would print the same */
                fprintf(stderr, "symwin-perf: %s\n", wrong);
            return 2;
        }
        good = check_place(&job);
    }
    good = good && run_all(&job);
    if (good && job.first == 0 && job.options.tune == NULL && !is_check(&job))
        good = finish(&job);
    if (!good && !job.failed)
        complain(&job, symwin_last_error());
    exit_status = !good || job.wrong > 0;
    if (job.first == 0 && !record_close(&job, good, exit_status)) {
        fprintf(stderr, "symwin-perf: %s\n", symwin_last_error());
        exit_status = 1;
    }
    return exit_status;
}

int main(int argc, char **argv)
{
    int exit_status;

    bench_name = "symwin-perf";
    /* The parent may ignore SIGCHLD; this process must not, or its children leave no exit
     * status. */
    signal(SIGCHLD, SIG_DFL);
    exit_status = perf_main(argc, argv);
    return bench_end() == EXIT_SUCCESS || exit_status != 0 ? exit_status : EXIT_FAILURE;
}
