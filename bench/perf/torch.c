/* PyTorch's symmetric memory, a rival in its own processes: runs bench/rivals/torch_symm.py under
 * torchrun and takes over its rows. It runs after our ranks have ended, so the GPUs are idle.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf.h"

#define SCRIPT "bench/rivals/torch_symm.py"

enum {
    ALIGNMENT = 16,         /* of a message, in bytes: PyTorch's kernels require it */
    LINE_BYTES = 512,       /* longer lines are not its rows */
    SIZES_BYTES = 64 << 10, /* for the list of sizes */
    GRACE_MS = 5000         /* between SIGTERM and SIGKILL */
};

#define WAY(text)                                                                                  \
    {                                                                                              \
        .library = "torch", .name = text, .kind = WAY_TORCH, .memory = MEMORY_TORCH                \
    }

/* The script's ways, and the collective of each. */
static const struct {
    symwin_collective collective;
    struct way way;
} ways[] = {
    {SYMWIN_ALLREDUCE, WAY("torch-one-shot")},
    {SYMWIN_ALLREDUCE, WAY("torch-two-shot")},
    {SYMWIN_ALLGATHER, WAY("torch-low-contention")},
    {SYMWIN_REDUCE_SCATTER, WAY("torch-reduce-scatter")},
};

/* ---- before the run ---- */

static const char *program(void)
{
    const char *given = getenv("SYMWIN_TORCHRUN");

    return given != NULL && given[0] != '\0' ? given : "torchrun";
}

int program_exists(const char *name)
{
    const char *path = getenv("PATH");
    char file[4096];

    if (strchr(name, '/') != NULL)
        return access(name, X_OK) == 0;
    for (; path != NULL; path = strchr(path, ':') == NULL ? NULL : strchr(path, ':') + 1) {
        snprintf(file, sizeof file, "%.*s/%s", (int)strcspn(path, ":"), path, name);
        if (access(file, X_OK) == 0)
            return 1;
    }
    return 0;
}

/* Lists our sizes that PyTorch's kernels support, separated by commas; "": none. */
static int list_sizes(const struct job *job, symwin_collective collective, symwin_type type,
                      char *text, size_t room)
{
    const struct perf_options *o = &job->options;
    const size_t step = sw_collective_size(collective, job->nranks, ALIGNMENT);
    size_t used = 0;

    text[0] = '\0';
    for (size_t bytes = o->begin; bytes > 0; bytes = options_next_size(o, bytes)) {
        const size_t whole = result_of_size(job, collective, type, bytes).bytes;

        if (whole == 0 || whole % step != 0)
            continue;
        if (used + 24 > room)
            return fail(SYMWIN_INVALID,
                        "--against torch: too many sizes for its command line: give fewer with "
                        "-b -e -f -i");
        used += (size_t)snprintf(text + used, room - used, "%s%zu", used > 0 ? "," : "", whole);
    }
    return 1;
}

/* All ways but the all-reduce's are out of place. */
static int is_wanted(const struct job *job, int collective, int type)
{
    const struct perf_options *o = &job->options;

    return (o->types & PERF_TORCH_TYPES & 1u << type) != 0 &&
           (o->collectives & PERF_TORCH_COLLECTIVES & 1u << collective) != 0 &&
           (collective == SYMWIN_ALLREDUCE || (o->placements & PERF_OUT_OF_PLACE) != 0);
}

/* Calls `each` for every collective and type that is wanted and has sizes, until one fails. */
static int for_each(struct job *job, int (*each)(struct job *job, symwin_collective collective,
                                                 symwin_type type, const char *sizes))
{
    static char sizes[SIZES_BYTES];
    int good = 1;

    for (int c = 0; c < SW_COLLECTIVES; c++)
        for (int type = 0; type < SW_TYPES && good; type++) {
            if (!is_wanted(job, c, type))
                continue;
            good = list_sizes(job, (symwin_collective)c, (symwin_type)type, sizes, sizeof sizes) &&
                   (sizes[0] == '\0' || each(job, (symwin_collective)c, (symwin_type)type, sizes));
        }
    return good;
}

static int nothing(struct job *job, symwin_collective collective, symwin_type type,
                   const char *sizes)
{
    (void)job, (void)collective, (void)type, (void)sizes;
    return 1;
}

int torch_find(struct job *job)
{
    if (job->nranks > job->driver.device_count)
        return fail(
            SYMWIN_INVALID,
            "--against torch needs a GPU of this host for each rank: there are %d for %d ranks",
            job->driver.device_count, job->nranks);
    if (access(SCRIPT, R_OK) != 0)
        return fail(SYMWIN_INVALID,
                    "--against torch: there is no " SCRIPT " here (%s): run symwin-perf in "
                    "symwin's source folder",
                    strerror(errno));
    if (!program_exists(program()))
        return fail(SYMWIN_INVALID,
                    "--against torch: %s cannot be run: set SYMWIN_TORCHRUN to its path",
                    program());
    return for_each(job, nothing); /* the sizes fit on its command line */
}

/* ---- the process ---- */

struct child {
    pid_t pid;
    int out; /* its stdout */
    char line[LINE_BYTES];
    size_t have;
};

static const char *place_word(unsigned placements)
{
    return placements == PERF_OUT_OF_PLACE ? "out" : placements == PERF_IN_PLACE ? "in" : "both";
}

static int start(const struct job *job, symwin_collective collective, symwin_type type,
                 const char *sizes, struct child *child)
{
    const struct perf_options *o = &job->options;
    static char line[SIZES_BYTES + 512];
    char *words[32] = {(char *)program()}, *rest = line;
    const pid_t parent = getpid();
    int ends[2], count = 1;

    snprintf(line, sizeof line,
             "--standalone --nproc-per-node=%d " SCRIPT " --sizes %s -d %s -n %d -w %d -G %d "
             "--rounds %d --placement %s --collective %s",
             job->nranks, sizes, symwin_type_name(type), o->calls, o->warmup, o->replays, o->rounds,
             place_word(o->placements), symwin_collective_name(collective));
    while ((words[count] = strtok_r(rest, " ", &rest)) != NULL)
        count++;
    if (pipe(ends) != 0)
        return fail(SYMWIN_DENIED, "--against torch: no pipe: %s", strerror(errno));
    fflush(NULL);
    child->pid = fork();
    if (child->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* the run ends with the parent */
        if (getppid() != parent || dup2(ends[1], STDOUT_FILENO) < 0)
            _exit(126);
        close(ends[0]);
        close(ends[1]);
        execvp(words[0], words);
        _exit(127);
    }
    close(ends[1]);
    child->out = ends[0];
    if (child->pid > 0)
        return 1;
    close(ends[0]);
    return fail(SYMWIN_DENIED, "--against torch: cannot fork: %s", strerror(errno));
}

/* Waits for the process and returns its exit status, or -1 if that is not available. A process that
 * still runs at `deadline` gets SIGTERM, then SIGKILL. */
static int stop(struct child *child, int64_t deadline)
{
    int signal = SIGTERM, status = 0;
    pid_t ended;

    close(child->out);
    while ((ended = waitpid(child->pid, &status, WNOHANG)) != child->pid) {
        if (ended < 0 && errno != EINTR)
            return -1;
        perf_nap(2000000);
        if (sw_now_ms() < deadline)
            continue;
        kill(child->pid, signal);
        signal = SIGKILL;
        deadline = sw_now_ms() + GRACE_MS;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The next line without its newline; NULL: there are no more, or (*late) none came until the
 * deadline. */
static const char *next_line(struct child *child, int64_t deadline, int *late)
{
    static char line[LINE_BYTES];

    for (;;) {
        struct pollfd wait = {.fd = child->out, .events = POLLIN};
        char *end = memchr(child->line, '\n', child->have);
        const int64_t left = deadline - sw_now_ms();
        ssize_t got;

        if (end == NULL && child->have == sizeof child->line)
            end = child->line + child->have - 1;
        if (end != NULL) {
            const size_t length = (size_t)(end - child->line);

            memcpy(line, child->line, length);
            line[length] = '\0';
            child->have -= length + 1;
            memmove(child->line, end + 1, child->have);
            return line;
        }
        *late = left <= 0;
        if (*late)
            return NULL;
        if (poll(&wait, 1, left < 1000 ? (int)left : 1000) <= 0)
            continue;
        got = read(child->out, child->line + child->have, sizeof child->line - child->have);
        if (got == 0 || (got < 0 && errno != EINTR))
            return NULL;
        child->have += got > 0 ? (size_t)got : 0;
    }
}

/* ---- rows ---- */

/* Parses a row of torch_symm.py; returns whether it is one. */
static int parse(const struct job *job, const char *line, symwin_collective collective,
                 symwin_type type, struct result *out)
{
    char name[32], type_name[16], op[8], place[8];
    unsigned long long bytes, count, wrong;
    struct result r = {
        .collective = collective, .type = type, .op = SYMWIN_SUM, .supported = 1, .checked = 1};
    int ranks = 0;

    if (sscanf(
            line,
            "torch,%31[^,],%15[^,],%7[^,],%llu,%llu,%7[^,],symmetric,%*[a-z],%d,%d,%d,%lf,%*f,%*f,"
            "%llu,%lf,%lf,%lf,%lf",
            name, type_name, op, &bytes, &count, place, &ranks, &r.calls, &r.repetitions, &r.us,
            &wrong, &r.p50_us, &r.p99_us, &r.max_us,
            &r.host_us) < 14) /* graphs have no host time */
        return 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (ways[i].collective == collective && strcmp(ways[i].way.name, name) == 0)
            r.way = &ways[i].way;
    r.bytes = (size_t)bytes;
    r.count = count;
    r.wrong = wrong;
    r.in_place = strcmp(place, "in") == 0;
    if (r.way == NULL || ranks != job->nranks || strcmp(type_name, symwin_type_name(type)) != 0 ||
        strcmp(op, result_op(&r)) != 0 ||
        bytes != sw_collective_size(collective, ranks, count * symwin_type_bytes(type)) ||
        !(r.us > 0))
        return 0;
    *out = r;
    return 1;
}

/* Its time divided by ours for the same call; 0: we have none. */
static double ratio(const struct job *job, const struct result *rival)
{
    struct reference reference = {0};

    for (size_t i = 0; i < job->result_count; i++) {
        const struct result *r = &job->results[i];

        if (r->way->kind == WAY_SYMWIN && r->collective == rival->collective &&
            r->type == rival->type && r->op == rival->op && r->bytes == rival->bytes &&
            r->in_place == rival->in_place)
            reference_take(&reference, r);
    }
    return reference.us > 0 ? rival->us / reference.us : 0;
}

/* Takes a line: rows are recorded, the line with its version goes to our table and CSV file, other
 * comments are dropped, and anything else goes to stderr. */
static int take(struct job *job, const char *line, symwin_collective collective, symwin_type type,
                int *rows)
{
    struct result result;

    if (strncmp(line, "# torch_symm.py", 15) == 0) {
        printf("%s\n", line);
        if (job->csv.to != NULL)
            fprintf(job->csv.to, "%s\n", line);
    } else if (parse(job, line, collective, type, &result)) {
        result.ratio = ratio(job, &result);
        (*rows)++;
        if (!record(job, &result))
            return 0;
        table_row(job, result.in_place ? NULL : &result, result.in_place ? &result : NULL);
    } else if (line[0] != '#' && strncmp(line, "library,", 8) != 0) {
        fprintf(stderr, "symwin-perf: torch: %s\n", line);
    }
    return 1;
}

static int run_one(struct job *job, symwin_collective collective, symwin_type type,
                   const char *sizes)
{
    const int64_t step = (int64_t)job->options.timeout_s * 1000;
    int64_t deadline = sw_now_ms() + 2 * step; /* for torchrun, imports and NCCL */
    int good = 1;
    struct child child = {.out = -1};
    const char *line;
    int late = 0, rows = 0, code;

    if (!start(job, collective, type, sizes, &child))
        return 0;
    if (job->options.collectives != 1u << collective)
        table_head(job, collective);
    while (good && (line = next_line(&child, deadline, &late)) != NULL) {
        good = take(job, line, collective, type, &rows);
        deadline = sw_now_ms() + step;
    }
    code = stop(&child, sw_now_ms() + (late || !good ? 0 : GRACE_MS));
    if (!good)
        return 0;
    if (late)
        return fail(SYMWIN_TIMEOUT, "--against torch: " SCRIPT " printed nothing for too long");
    if (code == 127)
        return fail(SYMWIN_UNSUPPORTED,
                    "--against torch: torchrun cannot be run: set SYMWIN_TORCHRUN to its path");
    if (rows == 0 || (code != 0 && job->wrong == 0))
        return fail(SYMWIN_UNSUPPORTED,
                    "--against torch: " SCRIPT " gave %d rows and ended with status %d", rows,
                    code);
    return 1;
}

int torch_run(struct job *job)
{
    return for_each(job, run_one);
}
