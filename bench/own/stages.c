/* Runs the stages of --kernel and --race one after the other, each in its own process. A kernel
 * that crashes, hangs or writes to wrong memory ends only that process; the next line of the check
 * gets a new one.
 *
 *     compile | check on the emulated driver | check on GPUs | time against the others | draw
 *     compile | hunt on the emulated driver, under ThreadSanitizer | hunt on GPUs     (--race)
 *
 * The processes run this program with the same arguments. Shared memory (struct stage_page) tells
 * them what to do.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../perf/perf.h"

/* The file descriptor of the page, in a stage's process. */
#define PAGE_VARIABLE "SYMWIN_PERF_STAGE"

enum {
    CHECK_S = 10, /* limit of a step, unless --timeout is lower */
    RACE_S = 20,
    CASE_MS = 30000, /* limit of a process that does not notice its timeout */
    SLOW_MS = 1500,
    REPORTED_MS = 1000, /* limit of a process in which ThreadSanitizer has found something */
    MOST_DEATHS = 16,
    MOST_SLOW_DEATHS = 2,
    DEFAULT_SECONDS = 30
};

static struct stage_page *attached;

/* ---- the page -------------------------------------------------------------------------------- */

static uint64_t magic(void)
{
    return carried_digest() ^ sizeof(struct stage_page);
}

static struct stage_page *map_page(int fd)
{
    void *page = mmap(NULL, sizeof(struct stage_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return page != MAP_FAILED ? page : NULL;
}

struct stage_page *stage_page(void)
{
    const char *fd = getenv(PAGE_VARIABLE);

    if (attached != NULL || fd == NULL)
        return attached;
    attached = map_page(atoi(fd));
    if (attached != NULL && attached->magic == magic()) {
        attached->answer = tsan_is_there() ? ANSWER_TSAN : ANSWER_PLAIN;
        return attached;
    }
    fprintf(stderr,
            "symwin-perf: this program and its parent were built from different headers: run make "
            "benches\n");
    exit(1);
}

void stage_says(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(attached->doing, sizeof attached->doing, format, args);
    va_end(args);
    atomic_store(&attached->since, sw_now_ms());
}

void stage_reported(const char *text)
{
    if (text != NULL)
        snprintf(attached->reported, sizeof attached->reported, "%s", text);
    atomic_store(&attached->reported_at, text != NULL ? sw_now_ms() : 0);
}

void stage_about(const struct rank *r, const struct own_kernel *k)
{
    char text[512];

    if (r->rank != 0 || (attached->told & 1 << attached->kernel) != 0)
        return;
    attached->told |= 1 << attached->kernel;
    own_about_print(&attached->about[attached->kernel], text, sizeof text);
    printf("# %s: %s\n", k->name, text);
    fflush(stdout);
}

void stage_died(const char *text)
{
    const char *begin = strncmp(text, "symwin-perf: ", 13) == 0 ? text + 13 : text;
    char fault[256] = "";

    if (attached->died[0] != '\0') /* the first reason counts */
        return;
    if (sw_driver_is_emulated())
        (void)sw_emu_last_fault(fault, sizeof fault);
    snprintf(attached->died, sizeof attached->died, "%.600s%s%s", begin,
             fault[0] != '\0' ? ": " : "", fault);
}

/* The table's file if the command line names none. */
static void picture_csv(const struct stage_page *page, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/table.csv", page->folder);
}

/* Defaults of the timing stage, from the kernels' descriptions. */
static void time_options(const struct stage_page *page, struct perf_options *o)
{
    static char table[300];
    uint64_t most = 0;
    int limited = 1, windows = 0;

    o->collectives = 0;
    for (int k = 0; k < page->kernels; k++) {
        o->collectives |= 1u << page->about[k].collective;
        windows |= rival_serves(page->about[k].collective, 1);
        limited &= page->about[k].bytes > 0;
        most = page->about[k].bytes > most ? page->about[k].bytes : most;
    }
    if (o->types == 0 && page->about[0].types != 0)
        o->types = (page->about[0].types & 1u << SYMWIN_F32) != 0
                       ? 1u << SYMWIN_F32
                       : page->about[0].types & (0 - page->about[0].types);
    if (o->end == 0 && limited)
        o->end = (size_t)most;
    if (!o->rivals_given && page->gpus > 1 && o->threads <= page->gpus && o->nproc == 0 &&
        rivals_found())
        o->rivals = PERF_NCCL | (windows ? PERF_NCCL_WINDOW : 0);
    if (o->csv == NULL) {
        picture_csv(page, table, sizeof table);
        o->csv = table;
    }
}

void stage_options(const struct stage_page *page, struct perf_options *o)
{
    if (page->stage == STAGE_TIME) {
        time_options(page, o);
        return;
    }
    o->threads = page->ranks;
    o->per_thread = 1;
    o->nproc = 0;
    o->csv = o->json = o->picture = NULL;
    o->rivals = 0;
    o->link = o->launch = 0;
    o->host_data = 0;
    if (o->timeout_s > (page->stage == STAGE_RACE ? RACE_S : CHECK_S))
        o->timeout_s = page->stage == STAGE_RACE ? RACE_S : CHECK_S;
    o->sm_limit = 0;
}

/* Waits are short, since no rank is late for long. Slots are small, so that the library's
 * algorithms need several rounds. */
void stage_comm(const struct stage_page *page, symwin_comm_options *options)
{
    if (page->stage == STAGE_TIME)
        return;
    options->kernel_timeout_ms = options->timeout_ms * 2 / 5;
    if (page->kernel < 0)
        options->slot_bytes = 1024;
}

static void print_line(const struct stage_page *page, int failed, int cases, const char *text)
{
    char more[64] = "";

    if (!failed && cases > 0)
        snprintf(more, sizeof more, " (%d %s%s)", cases,
                 page->stage == STAGE_RACE ? "burst" : "call", cases > 1 ? "s" : "");
    if (!failed && cases == 0)
        snprintf(more, sizeof more, " (not supported)");
    printf("%-7s %s, %d ranks: %s%s%s%s\n",
           failed ? page->stage == STAGE_RACE ? "FOUND" : "FAILED" : "ok", page->driver,
           page->ranks, page->line_name, more, failed ? ": " : "", failed ? text : "");
    fflush(stdout);
}

void stage_line(int failed, int cases, const char *text)
{
    print_line(attached, failed, cases, text);
}

/* ---- processes ------------------------------------------------------------------------------- */

static volatile sig_atomic_t asked_to_end;

static void ask_to_end(int signal_number)
{
    asked_to_end = signal_number;
}

/* ThreadSanitizer does not start if the kernel randomises more address bits than it supports. */
static void begin_process(const struct stage_page *page, const char *program, char **argv, int fd,
                          const char *driver, pid_t parent)
{
    char number[16];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    snprintf(number, sizeof number, "%d", fd);
    setenv(PAGE_VARIABLE, number, 1);
    if (driver != NULL)
        setenv("SYMWIN_DRIVER", driver, 1);
    if (page->unrandomised)
        (void)personality(ADDR_NO_RANDOMIZE);
    execv(program, argv);
    _exit(127);
}

/* Runs the process to its end; returns the status of waitpid(). *late: it took too long and was
 * killed. Its output is this program's: if nobody reads it any more, this program ends too. */
static int run_process(struct stage_page *page, const char *program, char **argv, int fd,
                       const char *driver, int limit_ms, int *late)
{
    const pid_t parent = getpid();
    int status = 0;
    pid_t pid;

    *late = 0;
    page->since = sw_now_ms();
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        begin_process(page, program, argv, fd, driver, parent);
    if (pid < 0)
        return 127 << 8;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        const int64_t since = atomic_load(&page->since);
        const int64_t reported = atomic_load(&page->reported_at);

        if (asked_to_end || (reported > 0 && sw_now_ms() - reported > REPORTED_MS))
            kill(pid, SIGKILL);
        if (limit_ms > 0 && since > 0 && sw_now_ms() - since > limit_ms) {
            *late = 1;
            kill(pid, SIGKILL);
        }
        perf_nap(5000000);
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE)
        asked_to_end = SIGPIPE;
    return status;
}

/* ---- setup ----------------------------------------------------------------------------------- */

struct stages {
    char **argv;
    const struct perf_options *o;
    struct stage_page *page;
    int fd;
    int gpus, capability;
    char self[4096], runner[4096];
    const char *sanitizer; /* that the runner was built with */
    int failed;
    int misused; /* the command line is invalid */
};

/* Looks next to this program: build/bench has build/tsan/bench, an installed program has its own
 * folder. */
static int find_runner(struct stages *s)
{
    static const char *const places[] = {"../tsan/bench/symwin-perf", "symwin-perf-tsan"};
    const char *given = getenv("SYMWIN_PERF_TSAN");
    const char *slash = strrchr(s->self, '/');

    s->sanitizer = own_sanitizer;
    snprintf(s->runner, sizeof s->runner, "%s", s->self);
    if (tsan_is_there())
        return 1;
    if (given != NULL) {
        if (access(given, X_OK) != 0)
            return fail(SYMWIN_INVALID,
                        "SYMWIN_PERF_TSAN is \"%s\": give the path of a symwin-perf under "
                        "ThreadSanitizer (make race builds one), or unset it",
                        given);
        snprintf(s->runner, sizeof s->runner, "%s", given);
        s->sanitizer = "thread";
        return 1;
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(s->runner, sizeof s->runner, "%.*s/%s", (int)(slash - s->self), s->self,
                 places[i]);
        s->sanitizer = "thread";
        if (access(s->runner, X_OK) == 0)
            return 1;
    }
    snprintf(s->runner, sizeof s->runner, "%s", s->self);
    s->sanitizer = own_sanitizer;
    printf(
        "# no symwin-perf with ThreadSanitizer found (make race builds it, SYMWIN_PERF_TSAN names "
        "it): missing releases and acquires cannot be found\n");
    return 1;
}

static void add_options(const char *variable, const char *separator, const char *more)
{
    const char *given = getenv(variable);
    char options[1024];

    snprintf(options, sizeof options, "%.500s%s%s", given != NULL ? given : "", separator, more);
    setenv(variable, options, 1);
}

/* ThreadSanitizer writes its reports to the folder. It leaves signals alone: with them a process
 * that crashes would end with the exit status of one that found nothing. Leak checks are off, since
 * LeakSanitizer fails on the thread-local storage of a loaded module. */
static void set_sanitizer_options(const struct stages *s)
{
    char options[512];

    snprintf(
        options, sizeof options,
        "log_path=%s/reports halt_on_error=0 exitcode=0 report_thread_leaks=0 die_after_fork=0 "
        "handle_segv=0 handle_sigbus=0 handle_sigfpe=0",
        s->page->folder);
    add_options("TSAN_OPTIONS", " ", options);
    add_options("ASAN_OPTIONS", ":", "detect_leaks=0");
}

static int find_driver(struct stages *s)
{
    symwin_driver_info driver;
    symwin_device_info device;
    int good = ok(symwin_driver_query(&driver));

    if (!good || strcmp(driver.name, "emu") == 0)
        return good;
    if (!kernels_are_there())
        return fail(
            SYMWIN_UNSUPPORTED,
            "on GPUs, --kernel and --race need a symwin-perf built with nvcc: run make benches, "
            "or set SYMWIN_DRIVER=emu to run without GPUs");
    s->gpus = driver.device_count;
    if (!ok(symwin_device_query(0, &device)))
        return 0;
    s->capability = device.capability;
    return 1;
}

static int make_page(struct stages *s)
{
    s->fd = memfd_create("symwin-perf", 0);
    if (s->fd < 0 || ftruncate(s->fd, sizeof *s->page) != 0 || (s->page = map_page(s->fd)) == NULL)
        return fail(SYMWIN_NO_MEMORY, "no shared memory for the stages: %s", strerror(errno));
    s->page->magic = magic();
    s->page->kernels = s->o->kernel_count;
    s->page->seed = s->o->seed;
    s->page->gpus = s->gpus;
    for (int i = 0; i < s->o->kernel_count; i++)
        if (!own_source_find(s->o->kernels[i], &s->page->sources[i])) {
            s->misused = failure() == SYMWIN_INVALID;
            return 0;
        }
    if (readlink("/proc/self/exe", s->self, sizeof s->self - 1) < 0)
        return fail(SYMWIN_DENIED, "/proc/self/exe cannot be read: %s", strerror(errno));
    return compile_begin(s->page->folder);
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Prints why a process ended in the middle of a line. slow: it had been busy for a long time. */
static void say_death(const struct stage_page *page, int status, int late, int slow)
{
    const char *hint = slow ? " (does each loop that waits call symwin_wait(), or "
                              "symwin_keep_waiting() with args.limit?)"
                            : "";
    char why[sizeof page->died + sizeof page->doing + sizeof page->burst + 256];

    if (atomic_load(&page->reported_at) > 0)
        snprintf(why, sizeof why, "%s\n        %s", page->reported, page->burst);
    else if (late)
        snprintf(why, sizeof why, "did not end in %d s: %s%s", CASE_MS / 1000, page->doing, hint);
    else if (WIFSIGNALED(status))
        snprintf(why, sizeof why, "ended by signal %d (%s): %s", WTERMSIG(status),
                 strsignal(WTERMSIG(status)), page->doing);
    else
        snprintf(why, sizeof why, "%s; %s%s",
                 page->died[0] != '\0' ? page->died : "the process ended", page->doing, hint);
    print_line(page, 1, 0, why);
}

/* Whether the program started as the symwin-perf that the stage needs. Otherwise its exit status
 * says nothing about kernels. */
static int answered(const struct stages *s, const char *program)
{
    const char *variable = program == s->runner && getenv("SYMWIN_PERF_TSAN") != NULL
                               ? "SYMWIN_PERF_TSAN: "
                               : "";

    if (s->page->answer == ANSWER_NONE)
        return fail(SYMWIN_INVALID, "%s%s did not start as a symwin-perf of this build", variable,
                    program);
    if (program == s->runner && strcmp(s->sanitizer, "thread") == 0 &&
        s->page->answer != ANSWER_TSAN)
        return fail(SYMWIN_INVALID, "%s%s was built without ThreadSanitizer: make race builds one",
                    variable, program);
    return 1;
}

/* Runs all lines of a stage on a driver; each process that dies is replaced by a new one. Returns 0
 * if the stage did not run: nothing was checked then. */
static int run_lines(struct stages *s, enum stage stage, int kernel, int ranks, int on_gpus,
                     const char *program)
{
    struct stage_page *page = s->page;
    int late, status, slow, deaths = 0, slow_deaths = 0;

    page->stage = stage;
    page->kernel = kernel;
    page->ranks = ranks;
    page->from = 0;
    page->failed = 0;
    page->bursts = 0;
    page->seconds = s->o->seconds > 0 ? s->o->seconds : DEFAULT_SECONDS;
    snprintf(page->driver, sizeof page->driver, "%s", on_gpus ? "GPUs" : "emulated driver");
    do {
        page->line = -1;
        page->answer = ANSWER_NONE;
        page->died[0] = '\0';
        atomic_store(&page->reported_at, 0);
        snprintf(page->line_name, sizeof page->line_name, "%s",
                 kernel >= 0 ? page->sources[kernel].name : "start");
        snprintf(page->doing, sizeof page->doing, "before the first call");
        status = run_process(page, program, s->argv, s->fd, on_gpus ? NULL : "emu", CASE_MS, &late);
        if (asked_to_end)
            break;
        if (!answered(s, program))
            return 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
        slow = atomic_load(&page->reported_at) == 0 && sw_now_ms() - page->since > SLOW_MS;
        say_death(page, status, late, slow && kernel >= 0);
        page->failed++;
        page->from = page->line + 1;
        slow_deaths += slow;
        if (slow_deaths == MOST_SLOW_DEATHS && page->line >= 0)
            printf("# the remaining lines are skipped, since each could take as long\n");
    } while (page->line >= 0 && ++deaths < MOST_DEATHS && slow_deaths < MOST_SLOW_DEATHS &&
             (stage == STAGE_CHECK || kernel < 0));
    s->failed += page->failed;
    return asked_to_end || stage != STAGE_RACE || page->bursts + page->failed + page->fewer > 0 ||
           fail(SYMWIN_INVALID, "--race made no call: none of the algorithms can be raced here");
}

/* Checks a kernel on the emulated driver and, if it passes, on GPUs. */
static int check(struct stages *s, int kernel)
{
    const enum own_kind kind = s->page->sources[kernel].kind;
    const int ranks = s->o->threads * (s->o->per_thread > 0 ? s->o->per_thread : 1);

    int good = 1;

    for (int few = 2; few <= 3 && kind != OWN_IMAGE; few++)
        if (good && (few == 2 || s->failed == 0) && !asked_to_end)
            good = run_lines(s, STAGE_CHECK, kernel, few, 0, s->self);
    if (good && s->failed == 0 && s->gpus > 0 && kind != OWN_OBJECT && !asked_to_end)
        good = run_lines(s, STAGE_CHECK, kernel,
                         ranks > 1     ? ranks
                         : s->gpus > 1 ? s->gpus
                                       : 2,
                         1, s->self);
    return good;
}

/* Hunts with `ranks` ranks, or with fewer if the kernel cannot have so many. */
static int race_by(struct stages *s, int kernel, int ranks, int on_gpus, const char *program)
{
    int good;

    s->page->fewer = 0;
    good = run_lines(s, STAGE_RACE, kernel, ranks, on_gpus, program);
    if (good && s->page->fewer > 0 && s->failed == 0)
        good = run_lines(s, STAGE_RACE, kernel, s->page->fewer, on_gpus, program);
    return good;
}

static int race(struct stages *s, int kernel)
{
    const enum own_kind kind = kernel >= 0 ? s->page->sources[kernel].kind : OWN_SOURCE;
    const int ranks = s->o->threads * (s->o->per_thread > 0 ? s->o->per_thread : 1);

    int good = 1;

    if (kind != OWN_IMAGE)
        good = race_by(s, kernel, ranks > 1 ? ranks : 3, 0,
                       kind == OWN_OBJECT ? s->self : s->runner);
    if (good && s->failed == 0 && s->gpus > 0 && kind != OWN_OBJECT && !asked_to_end)
        good = race_by(s, kernel, ranks > 1 ? ranks : s->gpus > 1 ? s->gpus : 2, 1, s->self);
    return good;
}

/* ---- entry points ---------------------------------------------------------------------------- */

static int compile(struct stages *s)
{
    const int emu = s->o->race ? OWN_FOR_EMU_RACE : OWN_FOR_EMU,
              gpu = s->o->race ? OWN_FOR_GPU_RACE : OWN_FOR_GPU;

    return compile_all(s->page->folder, s->page->sources, s->page->kernels,
                       1u << emu | (s->gpus > 0 ? 1u << gpu : 0), s->capability, s->sanitizer,
                       s->o->compile);
}

/* By default, the picture is named after the first kernel, in the current folder. */
static void find_picture(const struct perf_options *o, const struct stage_page *page, char *path,
                         size_t bytes)
{
    if (o->picture != NULL)
        snprintf(path, bytes, "%s", o->picture);
    else
        snprintf(path, bytes, "%s.svg", page->sources[0].name);
}

static int picture_draw(const struct perf_options *o, const struct stage_page *page)
{
    char path[4096], table[300], script[300];
    int status = 0;
    pid_t pid;

    if (collective_of(page->about[0].collective)->no_data) {
        printf("# no picture: a barrier has no sizes\n");
        return 1;
    }
    find_picture(o, page, path, sizeof path);
    picture_csv(page, table, sizeof table);
    snprintf(script, sizeof script, "%s/include/bench/plot.py", page->folder);
    if (!program_exists("python3"))
        return fail(SYMWIN_UNSUPPORTED, "no picture: python3 is not in PATH");
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        execlp("python3", "python3", script, "--output", path, "--collective",
               collective_name(page->about[0].collective), o->csv != NULL ? o->csv : table,
               (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return fail(SYMWIN_UNSUPPORTED, "no picture: python3 %s failed", script);
    printf("# picture: %s\n", path);
    return 1;
}

/* Times the kernels, the library's algorithms and NCCL. Prints the table and draws its file. */
static int time_all(struct stages *s)
{
    int late, status;

    for (int i = 0; i < s->o->kernel_count; i++)
        if (s->page->sources[i].kind == OWN_OBJECT && s->gpus > 0) {
            printf("# %s is for the emulated driver only: nothing is timed\n", s->o->kernels[i]);
            return 0;
        }
    s->page->stage = STAGE_TIME;
    status = run_process(s->page, s->self, s->argv, s->fd, s->gpus > 0 ? NULL : "emu", 0, &late);
    if (WIFSIGNALED(status) && !asked_to_end)
        fprintf(stderr, "symwin-perf: the process that times the kernels ended by signal %d (%s)\n",
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (picture_draw(s->o, s->page))
        return 0;
    fprintf(stderr, "symwin-perf: %s\n", symwin_last_error());
    return s->o->picture != NULL; /* otherwise the picture was not asked for */
}

static int run_stages(struct stages *s)
{
    int good = find_driver(s) && make_page(s);

    for (int i = 0; i < s->o->kernel_count && good; i++)
        if (s->page->sources[i].kind == OWN_IMAGE && s->gpus == 0)
            good = fail(SYMWIN_UNSUPPORTED, "--kernel %s needs a GPU, and there is none",
                        s->o->kernels[i]);
    if (!good)
        return 0;
    s->sanitizer = own_sanitizer;
    if (s->o->race && !find_runner(s))
        return 0;
    s->page->unrandomised = strcmp(s->sanitizer, "thread") == 0;
    set_sanitizer_options(s);
    good = compile(s);
    for (int i = 0; i < s->o->kernel_count && good && !asked_to_end; i++)
        good = s->o->race ? race(s, i) : check(s, i);
    if (good && s->o->race && s->o->kernel_count == 0)
        good = race(s, -1);
    return good;
}

int stages_run(char **argv, const struct perf_options *options)
{
    struct stages s = {.argv = argv, .o = options, .fd = -1};
    int good;
    int exit_status;

    signal(SIGINT, ask_to_end);
    signal(SIGTERM, ask_to_end);
    if (signal(SIGPIPE, ask_to_end) == SIG_IGN)
        signal(SIGPIPE, SIG_IGN);
    good = run_stages(&s);
    if (!good && asked_to_end != SIGPIPE)
        fprintf(stderr, "symwin-perf: %s\n", symwin_last_error());
    exit_status = s.misused ? 2 : !good || s.failed > 0;
    if (good && !asked_to_end)
        printf("# %s\n", exit_status != 0 ? "FAILED"
                         : options->race  ? "nothing was found"
                                          : "all checks passed");
    if (exit_status == 0 && !options->race && !asked_to_end)
        exit_status = time_all(&s);
    fflush(stdout); /* the last chance for SIGPIPE while the folder is there */
    if (s.page != NULL)
        compile_end(s.page->folder);
    if (asked_to_end == SIGPIPE) { /* ends as any program whose output nobody reads */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return asked_to_end ? 128 + asked_to_end : exit_status;
}
