/* Runs the test program once more, as another process: under another environment, or as the other
 * end of a socket. The child's TAP lines become lines of this program.
 *
 * The program's main() looks at its arguments first: `child_part(argc, argv)` is the name that was
 * given to child_start(), NULL in the first process.
 */
#ifndef SYMWIN_TESTS_CHILD_H
#define SYMWIN_TESTS_CHILD_H

#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

enum { CHILD_FD = 3, CHILD_SETTINGS = 8 }; /* where the child finds the descriptor it was given */

struct child {
    pid_t pid;
    FILE *lines; /* the child's standard output */
};

static inline const char *child_part(int argc, char **argv)
{
    return argc > 1 ? argv[1] : NULL;
}

static int child_is_set(const char *entry, const char *setting)
{
    const size_t name = strcspn(setting, "=") + 1;

    return strncmp(entry, setting, name) == 0;
}

/* This process's environment, but for the settings: "NAME=value", ended by NULL. */
static char **child_environment(const char *const *settings)
{
    size_t count = 0, used = 0, i;
    char **out;

    while (environ[count] != NULL)
        count++;
    out = calloc(count + CHILD_SETTINGS + 1, sizeof *out);
    if (out == NULL)
        return NULL;
    for (i = 0; i < count; i++) {
        const char *const *s = settings;

        while (*s != NULL && !child_is_set(environ[i], *s))
            s++;
        if (*s == NULL)
            out[used++] = environ[i];
    }
    for (i = 0; i < CHILD_SETTINGS && settings[i] != NULL; i++)
        out[used++] = (char *)(uintptr_t)settings[i];
    return out;
}

/* Starts the child; `fd` becomes its CHILD_FD unless it is -1. */
static struct child child_start(const char *part, const char *const *settings, int fd)
{
    char *argv[] = {(char *)(uintptr_t) "child", (char *)(uintptr_t)part, NULL};
    char **env = child_environment(settings);
    struct child c = {.pid = -1};
    posix_spawn_file_actions_t actions;
    int out[2];
    int error;

    if (env == NULL || pipe(out) != 0) {
        perror("child_start");
        exit(1);
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    if (out[1] != STDOUT_FILENO)
        posix_spawn_file_actions_addclose(&actions, out[1]);
    if (fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, fd, CHILD_FD);
    error = posix_spawn(&c.pid, "/proc/self/exe", &actions, NULL, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    free(env);
    close(out[1]);
    c.lines = fdopen(out[0], "r");
    if (error != 0 || c.lines == NULL) {
        fprintf(stderr, "child_start: %s\n", strerror(error));
        exit(1);
    }
    return c;
}

/* Takes over what the child says until it ends. */
static void child_finish(struct child *c, const char *part)
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
