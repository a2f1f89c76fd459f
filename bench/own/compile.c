/* Compiles a FILE.cu to modules: a shared object for the emulated driver, another for
 * ThreadSanitizer, and code for a GPU. The compilers run in parallel, each in a process. The output
 * of one that fails is printed.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../perf/perf.h"

enum { MOST_WORDS = 40, COMPILE_MS = 100000, SHOWN_LINES = 30 };

const char own_sanitizer[] = PERF_SANITIZE;

/* ---- the folder ------------------------------------------------------------------------------ */

int compile_begin(char folder[256])
{
    const char *in = getenv("TMPDIR");
    char headers[300];

    snprintf(folder, 256, "%s/symwin-perf.XXXXXX", in != NULL && in[0] == '/' ? in : "/tmp");
    if (mkdtemp(folder) == NULL) {
        const int error = errno;

        folder[0] = '\0';
        return fail(SYMWIN_DENIED, "cannot create a folder to compile in: %s: %s",
                    in != NULL ? in : "/tmp", strerror(error));
    }
    snprintf(headers, sizeof headers, "%s/include", folder);
    return carried_write(headers);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void compile_end(const char *folder)
{
    if (folder[0] == '\0')
        return;
    if (getenv("SYMWIN_PERF_KEEP") != NULL)
        printf("# the compiled files are kept in %s\n", folder);
    else
        (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void own_module_path(const char *folder, int k, enum own_module which, char *path, size_t bytes)
{
    static const char *const ends[] = {[OWN_FOR_EMU] = "so",
                                       [OWN_FOR_EMU_RACE] = "race.so",
                                       [OWN_FOR_GPU] = "cubin",
                                       [OWN_FOR_GPU_RACE] = "race.cubin"};

    snprintf(path, bytes, "%s/%d.%s", folder, k, ends[which]);
}

/* ---- compilers ------------------------------------------------------------------------------- */

/* Only the first word counts, as in "ccache g++". */
static int compiler_exists(const char *words)
{
    char first[4096];

    snprintf(first, sizeof first, "%.*s", (int)strcspn(words, " "), words);
    return program_exists(first);
}

static int find_cxx(const char *sanitizer, const char **out)
{
    const char *given = getenv("CXX");

    /* A program has one runtime of a sanitizer: that of the compiler that built it. */
    if (sanitizer[0] != '\0') {
        *out = strcmp(sanitizer, "thread") == 0 ? PERF_THREAD_CXX : PERF_CXX;
        return compiler_exists(*out) ||
               fail(SYMWIN_UNSUPPORTED,
                    "--kernel: cannot run %s, which built symwin-perf with a sanitizer, and must "
                    "build your kernel",
                    *out);
    }
    if (given != NULL && given[0] != '\0') {
        *out = given;
        return compiler_exists(given) ||
               fail(SYMWIN_UNSUPPORTED,
                    "--kernel: CXX is \"%s\", which cannot be run; the emulated driver needs a C++ "
                    "compiler: set CXX to one, or unset it",
                    given);
    }
    *out = PERF_CXX;
    if (!compiler_exists(*out))
        *out = "c++";
    return compiler_exists(*out) ||
           fail(SYMWIN_UNSUPPORTED,
                "--kernel: cannot run %s; the emulated driver needs a C++ compiler: set CXX",
                PERF_CXX);
}

static int find_nvcc(char *out, size_t bytes)
{
    const char *given = getenv("NVCC"), *home = getenv("CUDA_HOME");

    snprintf(out, bytes, "%s", given != NULL && given[0] != '\0' ? given : "nvcc");
    if (program_exists(out))
        return 1;
    if (given != NULL && given[0] != '\0')
        return fail(
            SYMWIN_UNSUPPORTED,
            "--kernel: NVCC is \"%s\", which cannot be run: set it to nvcc's path, or unset "
            "it",
            given);
    snprintf(out, bytes, "%s/bin/nvcc", home != NULL ? home : "/usr/local/cuda");
    if (program_exists(out))
        return 1;
    snprintf(out, bytes, "/usr/local/cuda/bin/nvcc");
    if (program_exists(out))
        return 1;
    return fail(SYMWIN_UNSUPPORTED,
                "--kernel: nvcc is neither in PATH nor in CUDA_HOME: set CUDA_HOME, or set "
                "SYMWIN_DRIVER=emu to run without a GPU");
}

/* ---- one compilation ------------------------------------------------------------------------- */

struct job_of {
    enum own_module which;
    const struct own_source *source;
    char include[300], wrapper[300], output[300], said[300];
    char fixed[256], sanitize[64], compiler[4096], more[1024];
    const char *words[MOST_WORDS];
    int count;
    pid_t pid;
    int64_t begun, ended;
    int status; /* the exit status */
};

static void word(struct job_of *job, const char *text)
{
    if (job->count < MOST_WORDS - 1)
        job->words[job->count++] = text;
}

/* Splits at spaces; `room` keeps the words. */
static void split_words(struct job_of *job, const char *words, char *room, size_t bytes)
{
    char *rest = room, *one;

    snprintf(room, bytes, "%s", words != NULL ? words : "");
    while ((one = strtok_r(rest, " ", &rest)) != NULL)
        word(job, one);
}

/* Adds the function that the emulated driver calls, after the kernel. */
static int write_wrapper(struct job_of *job)
{
    FILE *file = fopen(job->wrapper, "w");
    int wrong;

    if (file == NULL)
        return fail(SYMWIN_DENIED, "%s: %s", job->wrapper, strerror(errno));
    fprintf(file, "#include \"symwin/kernel.cuh\"\n#include \"%s\"\nSYMWIN_KERNEL_EMULATED(%s)\n",
            job->source->path, job->source->name);
    wrong = ferror(file);
    wrong |= fclose(file) != 0;
    return !wrong || fail(SYMWIN_DENIED, "%s cannot be written", job->wrapper);
}

/* The same options as for the library's kernels on the emulated driver. For ThreadSanitizer
 * without optimisation: a report then names the line of the kernel that called a function of the
 * headers. */
static void host_words(struct job_of *job, const char *cxx, const char *sanitizer, int race)
{
    split_words(job, cxx, job->compiler, sizeof job->compiler);
    split_words(job,
                "-std=c++17 -g -fPIC -shared -pthread -fno-exceptions -fno-rtti "
                "-fno-threadsafe-statics -Wall -Wno-unknown-pragmas -Wno-unused-function",
                job->fixed, sizeof job->fixed);
    word(job, race ? "-O0" : "-O1");
    snprintf(job->sanitize, sizeof job->sanitize, "-fsanitize=%s", sanitizer);
    if (sanitizer[0] != '\0')
        word(job, job->sanitize);
    word(job, job->wrapper);
}

static void gpu_words(struct job_of *job, int capability)
{
    char words[128];

    snprintf(words, sizeof words,
             "-std=c++17 -O3 -lineinfo -gencode arch=compute_%d,code=sm_%d --cubin", capability,
             capability);
    word(job, job->compiler);
    split_words(job, words, job->fixed, sizeof job->fixed);
    word(job, job->source->path);
}

static int prepare(struct job_of *job, const char *folder, int k, int capability,
                   const char *sanitizer, const char *more)
{
    const int race = job->which == OWN_FOR_EMU_RACE || job->which == OWN_FOR_GPU_RACE;
    const int is_gpu = job->which == OWN_FOR_GPU || job->which == OWN_FOR_GPU_RACE;
    int good;
    const char *cxx;

    snprintf(job->include, sizeof job->include, "%s/include", folder);
    snprintf(job->wrapper, sizeof job->wrapper, "%s/%d.cc", folder, k);
    own_module_path(folder, k, job->which, job->output, sizeof job->output);
    snprintf(job->said, sizeof job->said, "%s/%d.%d.said", folder, k, (int)job->which);
    if (is_gpu) {
        good = find_nvcc(job->compiler, sizeof job->compiler);
        gpu_words(job, capability);
    } else {
        if (!race)
            sanitizer = own_sanitizer;
        good = find_cxx(sanitizer, &cxx) && write_wrapper(job);
        host_words(job, cxx, sanitizer, race);
    }
    if (race)
        word(job, "-DSYMWIN_RACE");
    word(job, "-I");
    word(job, job->include);
    word(job, "-o");
    word(job, job->output);
    split_words(job, more, job->more, sizeof job->more);
    return good;
}

static int start(struct job_of *job)
{
    const pid_t parent = getpid();

    job->words[job->count] = NULL;
    job->begun = sw_now_ms();
    fflush(NULL);
    job->pid = fork();
    if (job->pid == 0) {
        const int said = open(job->said, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || said < 0 || dup2(said, STDOUT_FILENO) < 0 ||
            dup2(said, STDERR_FILENO) < 0)
            _exit(126);
        execvp(job->words[0], (char *const *)job->words);
        _exit(127);
    }
    return job->pid > 0 ||
           fail(SYMWIN_NO_MEMORY, "cannot start %s: %s", job->words[0], strerror(errno));
}

/* Prints the first lines of the compiler's output. */
static void show(const struct job_of *job)
{
    FILE *file = fopen(job->said, "r");
    char line[1024];

    for (int i = 0; file != NULL && i < SHOWN_LINES && fgets(line, sizeof line, file) != NULL; i++)
        fputs(line, stderr);
    if (file != NULL)
        fclose(file);
}

static int judge(const struct job_of *job)
{
    static const char *const what[] = {[OWN_FOR_EMU] = "the emulated driver",
                                       [OWN_FOR_EMU_RACE] = "the emulated driver, with delays",
                                       [OWN_FOR_GPU] = "the GPU",
                                       [OWN_FOR_GPU_RACE] = "the GPU, with delays"};
    const char *slash = strrchr(job->source->path, '/');

    if (WIFEXITED(job->status) && WEXITSTATUS(job->status) == 0) {
        if (access(job->output, R_OK) != 0)
            return fail(SYMWIN_INVALID, "%s: %s made no file for %s, with exit status 0",
                        job->source->path, job->words[0], what[job->which]);
        printf("# %s:%s compiled for %s in %.1f s\n", slash + 1, job->source->name,
               what[job->which], (double)(job->ended - job->begun) / 1e3);
        return 1;
    }
    show(job);
    if (WIFSIGNALED(job->status))
        return fail(SYMWIN_TIMEOUT, "%s: %s took more than %d s, or was ended by signal %d",
                    job->source->path, job->words[0], COMPILE_MS / 1000, WTERMSIG(job->status));
    return fail(SYMWIN_INVALID, "%s does not compile for %s with %s%s", job->source->path,
                what[job->which], job->words[0],
                job->which == OWN_FOR_EMU
                    ? "; it must contain device code only, which uses the symwin/*.cuh headers"
                    : "");
}

/* Returns how many still run. */
static int poll_jobs(struct job_of *jobs, int count)
{
    int running = 0;

    for (int i = 0; i < count; i++) {
        struct job_of *job = &jobs[i];

        if (job->ended != 0)
            continue;
        if (waitpid(job->pid, &job->status, WNOHANG) == job->pid) {
            job->ended = sw_now_ms();
            continue;
        }
        running++;
        if (sw_now_ms() - job->begun > COMPILE_MS)
            kill(job->pid, SIGKILL);
    }
    return running;
}

/* ---- all jobs -------------------------------------------------------------------------------- */

/* Links a module that is already compiled. */
static int link_image(const char *folder, int k, const struct own_source *source, unsigned wanted)
{
    for (int which = 0; which < OWN_MODULES; which++) {
        const int is_gpu = which == OWN_FOR_GPU || which == OWN_FOR_GPU_RACE;
        char path[300];

        if ((wanted & 1u << which) == 0 || is_gpu != (source->kind == OWN_IMAGE))
            continue;
        own_module_path(folder, k, (enum own_module)which, path, sizeof path);
        if (symlink(source->path, path) != 0)
            return fail(SYMWIN_DENIED, "%s: %s", path, strerror(errno));
    }
    return 1;
}

int compile_all(const char *folder, const struct own_source *sources, int count, unsigned wanted,
                int capability, const char *sanitizer, const char *more)
{
    static struct job_of jobs[PERF_MOST_KERNELS * OWN_MODULES];
    int good = 1, started = 0;

    for (int k = 0; k < count && good; k++) {
        if (sources[k].kind != OWN_SOURCE)
            good = link_image(folder, k, &sources[k], wanted);
        for (int which = 0; which < OWN_MODULES && sources[k].kind == OWN_SOURCE; which++) {
            struct job_of *job = &jobs[started];

            if ((wanted & 1u << which) == 0 || !good)
                continue;
            *job = (struct job_of){.which = (enum own_module)which, .source = &sources[k]};
            good = prepare(job, folder, k, capability, sanitizer, more) && start(job);
            started += good;
        }
    }
    while (poll_jobs(jobs, started) > 0)
        perf_nap(2000000);
    for (int i = 0; i < started; i++)
        good &= judge(&jobs[i]);
    return good;
}
