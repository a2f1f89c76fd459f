/* Asks a running process about its pools and windows, through the socket that a process has if it
 * was started with SYMWIN_INFO=1. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "info.h"
#include "src/inspect/inspect.h"

enum { ANSWER_S = 10 }; /* twice the time that the process gives a reader */

static int fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int fault(const char *format, ...)
{
    va_list args;

    fputs("symwin-info: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    putc('\n', stderr);
    return 0;
}

/* ---- facts about the process from the system ------------------------------------------------- */

static FILE *file_of(pid_t pid, const char *which)
{
    char name[64];

    snprintf(name, sizeof name, "/proc/%ld/%s", (long)pid, which);
    return fopen(name, "re");
}

/* 1: it runs, as this user. 0: it does not; the reason is on stderr. */
static int is_here(pid_t pid)
{
    const int known = kill(pid, 0) == 0 || errno != ESRCH;
    FILE *file = file_of(pid, "status");
    unsigned long user = geteuid();
    char line[256], state = 'R';

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "Uid: %*u %lu", &user);
    }
    if (file != NULL)
        fclose(file);
    if (!known || state == 'Z' || state == 'X')
        return fault("there is no process %ld here, or it has ended: look for its number with ps, "
                     "in the container where it runs",
                     (long)pid);
    if (user != geteuid())
        return fault("process %ld is of user %lu, whom alone it answers: sudo -u '#%lu' "
                     "symwin-info --pid %ld",
                     (long)pid, user, user, (long)pid);
    if (file == NULL && kill(pid, 0) != 0)
        return fault("process %ld is of another user, whom alone it answers: that user must ask it",
                     (long)pid);
    return 1;
}

/* Takes over the other process's TMPDIR and XDG_RUNTIME_DIR, as far as the system tells. Returns
 * whether it was started with SYMWIN_INFO=1; INFO_UNKNOWN: the system does not tell. */
static int take_places(pid_t pid)
{
    FILE *file = file_of(pid, "environ");
    int asked = 0;
    char *line = NULL;
    size_t room = 0;

    if (file == NULL)
        return INFO_UNKNOWN;
    unsetenv("TMPDIR");
    unsetenv("XDG_RUNTIME_DIR");
    while (getdelim(&line, &room, '\0', file) > 0) {
        if (strncmp(line, "TMPDIR=", 7) == 0)
            setenv("TMPDIR", line + 7, 1);
        if (strncmp(line, "XDG_RUNTIME_DIR=", 16) == 0)
            setenv("XDG_RUNTIME_DIR", line + 16, 1);
        asked |= strcmp(line, "SYMWIN_INFO=1") == 0;
    }
    free(line);
    fclose(file);
    return asked;
}

/* ---- the socket ------------------------------------------------------------------------------ */

/* A connection to the process; -1: see errno. */
static int connect_to(pid_t pid, const struct sockaddr_un *address)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    int error = 0;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        error = errno;
    else if (peer.pid != pid)
        error = ECONNREFUSED; /* in another container with the same TMPDIR */
    if (error == 0)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

/* Searches this process's folders for the socket. */
static int find(pid_t pid)
{
    struct sockaddr_un address;
    int error = ENOENT, fd = -1;

    for (int which = 0; which < SW_TEMP_FOLDERS && fd < 0; which++) {
        if (!sw_info_socket_address(which, 0, pid, &address))
            continue;
        fd = connect_to(pid, &address);
        if (fd < 0 && errno != ENOENT && errno != ECONNREFUSED)
            error = errno;
    }
    errno = error;
    return fd;
}

/* Reads everything into a file; NULL: the reason is on stderr. */
static FILE *receive(pid_t pid, int from)
{
    const int fd = memfd_create("symwin-dump", MFD_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "w+") : NULL;
    size_t bytes = 0, kept = 0;
    char part[4096];
    ssize_t got = 0;
    int error;

    while (file != NULL && kept == bytes && (got = read(from, part, sizeof part)) > 0) {
        bytes += (size_t)got;
        kept += fwrite(part, 1, (size_t)got, file);
    }
    error = errno;
    if (file != NULL && kept == bytes && fflush(file) == 0 && got == 0 && bytes > 0) {
        rewind(file);
        return file;
    }
    if (file == NULL || kept != bytes)
        fault("no memory for what process %ld has: %s", (long)pid, strerror(errno));
    else if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))
        fault("process %ld does not answer within %d s: is it stopped (kill -CONT %ld)?", (long)pid,
              ANSWER_S, (long)pid);
    else
        fault("process %ld ended, or has no memory to answer: ask it again", (long)pid);
    if (file != NULL)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return NULL;
}

int info_process(FILE *out, int pid, enum info_form form)
{
    char name[64];
    int fd, asked = 1, right = 0;
    FILE *dump;

    if (!is_here(pid))
        return 0;
    fd = find(pid);
    if (fd < 0 && (errno == ENOENT || errno == ECONNREFUSED)) {
        asked = take_places(pid);
        fd = find(pid);
    }
    if (fd < 0 && errno == EAGAIN)
        return fault("process %ld does not answer within %d s: is it stopped (kill -CONT %ld)?",
                     (long)pid, ANSWER_S, (long)pid);
    if (fd < 0 && errno != ENOENT && errno != ECONNREFUSED)
        return fault("process %ld cannot be asked: %s", (long)pid, strerror(errno));
    if (fd < 0 && asked == 0)
        return fault("process %ld was not started with SYMWIN_INFO=1, without which it cannot be "
                     "asked: set that, and start it again",
                     (long)pid);
    if (fd < 0)
        return fault(
            "process %ld does not listen: it has not used symwin yet, was not started with "
            "SYMWIN_INFO=1, or has no private folder in TMPDIR, XDG_RUNTIME_DIR or /tmp "
            "that is seen from here",
            (long)pid);
    dump = receive(pid, fd);
    close(fd);
    snprintf(name, sizeof name, "what process %d said", pid);
    if (dump != NULL) {
        right = info_show(out, dump, name, form);
        fclose(dump);
    }
    return right;
}
