/* What every example does alike, beside what it is about: processes of its own, --version, and an exit status that
 * counts what could not be printed. C99 and C++; for programs that define _GNU_SOURCE, or _POSIX_C_SOURCE. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "symwin.h"

/* First of all in main(). Where one of the three is closed, the library would get its number for a descriptor of its own,
 * and what is printed would go there. So it becomes one that cannot be printed to. */
static inline void common_begin(void)
{
    int fd;

    for (fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            exit(EXIT_FAILURE);
}

/* Why what was printed went nowhere; NULL: it did not. */
static inline const char *common_lost(void)
{
    int failed;

    errno = 0;
    failed = fflush(stdout) != 0;
    if (!failed && !ferror(stdout))
        return NULL;
    if (!failed) { /* an earlier line did, and took the reason with it: one more has the same */
        clearerr(stdout);
        putchar('\n');
        fflush(stdout);
    }
    return errno != 0 ? strerror(errno) : "a part of it is lost";
}

/* Before the program returns from main(): `status`, or EXIT_FAILURE where what it printed went nowhere. */
static inline int common_end(const char *name, int status)
{
    const char *why = common_lost();

    if (why == NULL)
        return status;
    fprintf(stderr, "%s: stdout could not be written to: %s\n", name, why);
    return EXIT_FAILURE;
}

static inline int common_version(const char *name)
{
    printf("%s (symwin) %s\n", name, SYMWIN_VERSION);
    return EXIT_SUCCESS;
}

static inline void common_set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* This child ends at once when its parent does, however that ends. It may have ended already. */
static inline void common_follow(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
}

/* Waits for all children. Returns the exit status of all together. */
static inline int common_wait(void)
{
    int failed = 0;

    for (;;) {
        int status = 0;

        if (wait(&status) >= 0)
            failed |= status != 0;
        else if (errno != EINTR) /* no child is left */
            return failed ? EXIT_FAILURE : EXIT_SUCCESS;
    }
}

/* Starts the ranks as children; they find their numbers where a launcher would have put them. Returns
 * -1 in a child, in the parent the exit status of all. Before any call of symwin's: CUDA does not survive a fork. */
static inline int common_fork(const char *name, int nproc)
{
    const pid_t parent = getpid();
    char job[64];
    int p;

    snprintf(job, sizeof job, "%s-%ld", name, (long)parent);
    setenv("SYMWIN_JOB", job, 1);
    common_set_number("SYMWIN_NRANKS", nproc);
    common_set_number("SYMWIN_LOCAL_NRANKS", nproc);
    fflush(stdout); /* or each child would print it again */
    for (p = 0; p < nproc; p++) {
        const pid_t pid = fork();

        if (pid == 0) {
            common_follow(parent);
            common_set_number("SYMWIN_RANK", p);
            common_set_number("SYMWIN_LOCAL_RANK", p);
            return -1;
        }
        if (pid < 0) {
            fprintf(stderr, "%s: cannot fork process %d: %s\n", name, p, strerror(errno));
            return EXIT_FAILURE; /* and the others follow */
        }
    }
    return common_wait();
}

#endif
