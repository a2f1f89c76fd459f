/* Runs the test program again as a child process, with other environment variables or at the other
 * end of a socket. child_finish() prints the child's TAP lines as lines of this program.
 *
 * main() looks at its arguments first: child_part(argc, argv) is the name that child_start() was
 * given, and NULL in the first process.
 */
#ifndef SYMWIN_TESTS_CHILD_H
#define SYMWIN_TESTS_CHILD_H

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

enum { CHILD_FD = 3 }; /* the descriptor that the child is given */

struct child {
    pid_t pid;
    FILE *lines; /* the child's standard output */
};

static inline const char *child_part(int argc, char **argv)
{
    return argc > 1 ? argv[1] : NULL;
}

/* This process's environment with `settings` over it: "NAME=value", ended by NULL; may be NULL. */
static inline char **child_environment(const char *const *settings)
{
    size_t ours = 0, theirs = 0, used = 0, i, k;
    char **all;

    while (environ[ours] != NULL)
        ours++;
    while (settings != NULL && settings[theirs] != NULL)
        theirs++;
    all = calloc(ours + theirs + 1, sizeof *all);
    if (all == NULL)
        return NULL;
    for (i = 0; i < theirs; i++)
        all[used++] = (char *)(uintptr_t)settings[i];
    for (i = 0; i < ours; i++) {
        int overridden = 0;

        for (k = 0; k < theirs; k++)
            overridden |= strncmp(environ[i], settings[k], strcspn(settings[k], "=") + 1) == 0;
        if (!overridden)
            all[used++] = environ[i];
    }
    return all;
}

/* Starts this program with the arguments and settings. Its standard output is `output`. `from` is
 * its descriptor `to` unless `from` is -1. Ends the program where that fails. */
static inline pid_t child_spawn(char *const *argv, const char *const *settings, int output, int to,
                                int from)
{
    char **env = child_environment(settings);
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    int error = ENOMEM;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    if (from >= 0)
        posix_spawn_file_actions_adddup2(&actions, from, to);
    if (env != NULL)
        error = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    free(env);
    if (error != 0) {
        printf("Bail out! starting a child process: %s\n", strerror(error));
        exit(1);
    }
    return pid;
}

/* Starts the child; `fd` is its CHILD_FD unless it is -1. */
static inline struct child child_start(const char *part, const char *const *settings, int fd)
{
    char *argv[] = {(char *)(uintptr_t) "child", (char *)(uintptr_t)part, NULL};
    struct child c;
    int out[2];

    if (pipe2(out, O_CLOEXEC) != 0) {
        perror("child_start");
        exit(1);
    }
    c.pid = child_spawn(argv, settings, out[1], CHILD_FD, fd);
    close(out[1]);
    c.lines = fdopen(out[0], "r");
    if (c.lines == NULL) {
        perror("child_start");
        exit(1);
    }
    return c;
}

/* Prints what the child prints, until it ends. One more TAP line says how it ended. */
static inline void child_finish(struct child *c, const char *part)
{
    char line[1024];
    int status = 0;
    int said = 0;

    while (fgets(line, sizeof line, c->lines) != NULL) {
        const char *text = strstr(line, " - ");

        line[strcspn(line, "\n")] = '\0';
        if (text == NULL || (strncmp(line, "ok ", 3) != 0 && strncmp(line, "not ok ", 7) != 0)) {
            if (strncmp(line, "1..", 3) != 0)
                printf("# %s: %s\n", part, line);
            continue;
        }
        said++;
        tap_ok(line[0] == 'o', "%s: %s", part, text + 3);
    }
    fclose(c->lines);
    waitpid(c->pid, &status, 0);
    tap_ok(said > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "%s: the process ends well (wait status 0x%x)", part, (unsigned)status);
}

static inline void child_run(const char *part, const char *const *settings)
{
    struct child c = child_start(part, settings, -1);

    child_finish(&c, part);
}

#endif
