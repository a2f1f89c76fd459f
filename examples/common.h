/* What all examples share: processes, threads, --version, numbers, and an exit status that includes
 * failed output. C99 and C++; for programs that define _GNU_SOURCE or _POSIX_C_SOURCE. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "symwin.h"

/* Call first in main(). If stdin, stdout or stderr is closed, a later descriptor of the library
 * would get its number, and output would go there. So a descriptor without the needed access takes
 * the number. */
static inline void common_begin(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            exit(EXIT_FAILURE);
}

/* Why output was lost; NULL: it was not. */
static inline const char *common_lost(void)
{
    int failed;

    errno = 0;
    failed = fflush(stdout) != 0;
    if (!failed && !ferror(stdout))
        return NULL;
    /* An earlier write failed and its errno is lost: one more write fails with the same. */
    if (!failed) {
        clearerr(stdout);
        putchar('\n');
        fflush(stdout);
    }
    return errno != 0 ? strerror(errno) : "a part of it is lost";
}

/* Call before main() returns: `status`, or EXIT_FAILURE if output was lost. */
static inline int common_end(const char *name, int status)
{
    const char *why = common_lost();

    if (why == NULL)
        return status;
    fprintf(stderr, "%s: stdout could not be written to: %s\n", name, why);
    return EXIT_FAILURE;
}

/* The exit status for a command line that makes no sense, with a message. */
static inline int common_unknown(const char *name, const char *argument)
{
    fprintf(stderr, "%s: unknown argument \"%s\": --help lists the arguments\n", name, argument);
    return 2;
}

static inline int common_no_value(const char *name, const char *option)
{
    fprintf(stderr, "%s: %s needs a value behind it: see --help\n", name, option);
    return 2;
}

static inline int common_version(const char *name)
{
    printf("%s (symwin) %s\n", name, SYMWIN_VERSION);
    return EXIT_SUCCESS;
}

/* A number of least .. most, with an optional suffix K, M or G; -1: invalid, with a message. */
static inline int64_t common_number(const char *name, const char *what, const char *text,
                                    int64_t least, int64_t most)
{
    static const char suffixes[] = "KMG";
    const char *suffix;
    char *end = NULL;
    int64_t value;
    int shift = 0;

    errno = 0;
    value = text[0] >= '0' && text[0] <= '9' ? strtoll(text, &end, 10) : -1;
    if (value > 0 && *end != '\0' && (suffix = strchr(suffixes, *end)) != NULL) {
        shift = 10 * (int)(suffix - suffixes + 1);
        end++;
    }
    if (value >= 0 && *end == '\0' && errno == 0 && value <= most >> shift &&
        value << shift >= least)
        return value << shift;
    fprintf(stderr, "%s: %s is \"%s\": give a number from %lld to %lld; K, M or G may follow it\n",
            name, what, text, (long long)least, (long long)most);
    return -1;
}

static inline void common_set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Runs body() on a thread for each of `count` ranks, an array with elements of `bytes` bytes. */
static inline void common_threads(const char *name, void *ranks, unsigned count, size_t bytes,
                                  void *(*body)(void *rank))
{
    pthread_t *threads = (pthread_t *)calloc(count, sizeof *threads);

    for (unsigned i = 0; i < count; i++)
        if (threads == NULL ||
            pthread_create(&threads[i], NULL, body, (char *)ranks + i * bytes) != 0) {
            fprintf(stderr, "%s: cannot start a thread for rank %u\n", name, i);
            exit(EXIT_FAILURE); /* the ranks started before wait for it */
        }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}

/* Exit status of a child that failed where the others cannot notice: they wait for its ranks. */
enum { COMMON_ALONE = 3 };

/* Waits for all children, and ends them if one fails alone. Returns their common exit status. */
static inline int common_wait(pid_t *pids, int count)
{
    int failed = 0;

    for (;;) {
        int status = 0;
        const pid_t pid = wait(&status);

        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0) /* no child is left */
            return failed ? EXIT_FAILURE : EXIT_SUCCESS;
        failed |= status != 0;
        for (int p = 0; p < count; p++)
            if (pids[p] == pid)
                pids[p] = 0; /* the number may be another process's from now on */
            else if (pids[p] > 0 && WIFEXITED(status) && WEXITSTATUS(status) == COMMON_ALONE)
                kill(pids[p], SIGKILL);
    }
}

/* Starts the ranks as children, with their numbers in the environment as from a launcher. Call
 * before any symwin function: CUDA does not survive a fork. Returns -1 in a child; in the parent
 * the number of children, fewer than `nproc` after a failure, with a message. A child gets `signal`
 * when its parent ends, however that ends. */
static inline int common_start(const char *name, int nproc, pid_t *pids, int signal)
{
    const pid_t parent = getpid();
    char job[64];

    snprintf(job, sizeof job, "%s-%ld", name, (long)parent);
    setenv("SYMWIN_JOB", job, 1);
    common_set_number("SYMWIN_NRANKS", nproc);
    common_set_number("SYMWIN_LOCAL_NRANKS", nproc);
    fflush(stdout); /* else each child would print it again */
    for (int p = 0; p < nproc; p++) {
        const pid_t pid = fork();

        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, signal);
            if (getppid() != parent) /* it has ended already */
                _exit(EXIT_FAILURE);
            common_set_number("SYMWIN_RANK", p);
            common_set_number("SYMWIN_LOCAL_RANK", p);
            return -1;
        }
        if (pid < 0) {
            fprintf(stderr, "%s: cannot fork process %d: %s\n", name, p, strerror(errno));
            return p;
        }
        pids[p] = pid;
    }
    return nproc;
}

/* The same, and waits: -1 in a child, in the parent the common exit status. */
static inline int common_fork(const char *name, int nproc)
{
    pid_t *pids = (pid_t *)calloc((size_t)nproc, sizeof *pids);
    int started, status;

    if (pids == NULL) {
        fprintf(stderr, "%s: no host memory for %d processes\n", name, nproc);
        return EXIT_FAILURE;
    }
    started = common_start(name, nproc, pids, SIGKILL);
    status = started < 0        ? -1
             : started == nproc ? common_wait(pids, nproc)
                                : EXIT_FAILURE; /* the signal ends the others */
    free(pids);
    return status;
}

#endif
